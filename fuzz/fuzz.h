/* What the fuzz targets have in common. */
#ifndef TANDEM_FUZZ_FUZZ_H
#define TANDEM_FUZZ_FUZZ_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static inline void require(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
  abort();
}

/* A copy that ends where its bytes do, so that a sanitizer sees one byte too many. Owned (free). */
static inline uint8_t *copy_bytes(const uint8_t *bytes, size_t size) {
  uint8_t *copy = (uint8_t *)calloc(1, size ? size : 1);
  require(copy != NULL, "no memory");
  if (size)
    memcpy(copy, bytes, size);
  return copy;
}

/* The same with a NUL behind it. */
static inline char *copy_text(const uint8_t *bytes, size_t size) {
  char *copy = (char *)malloc(size + 1);
  require(copy != NULL, "no memory");
  if (size)
    memcpy(copy, bytes, size);
  copy[size] = '\0';
  return copy;
}

/* What every message has to be: there, and one line that a terminal can show. */
static inline void require_line(const char *message) {
  require(message[0] != '\0', "an error without a message");
  for (const char *at = message; *at; at++)
    require((unsigned char)*at >= ' ' && *at != 0x7f, "a control character in a message");
}

#ifdef __cplusplus
}
#endif

#endif
