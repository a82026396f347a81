/* What the fuzz targets of the vendors' payload parsers have in common: a parse of a copy that is as long as
 * its bytes, so that a sanitizer sees one byte too many, and what holds of its end, good or bad. */
#ifndef TANDEM_FUZZ_PAYLOAD_H
#define TANDEM_FUZZ_PAYLOAD_H

#include <tandem/vendor.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

extern const struct tandem_host td_host;

static void require(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
  abort();
}

/* A tandem_fact_fn; `user` is a size_t. */
static void read_fact(void *user, const char *key, const char *value) {
  size_t *seen = user;
  require(key[0] != '\0', "a fact without a name");
  *seen += strlen(key) + strlen(value);
}

/* `check` is called with what was parsed of `bytes`. */
static int fuzz_parse(const struct tandem_vendor *vendor, const uint8_t *bytes, size_t size,
                      void (*check)(const struct tandem_payload *payload, const uint8_t *bytes,
                                    size_t size)) {
  struct tandem_error error = {0};
  struct tandem_payload payload;
  uint8_t *exact = malloc(size ? size : 1);
  if (!exact)
    return 0;
  if (size)
    memcpy(exact, bytes, size);
  enum tandem_status status = vendor->parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    check(&payload, exact, size);
    vendor->payload_destroy(&payload);
  } else {
    require(error.code == status && error.message[0] != '\0' && !strchr(error.message, '\n'),
            "an error not of one line");
    require(payload.state == NULL, "something left of a failed parse");
  }
  free(exact);
  return 0;
}

#endif
