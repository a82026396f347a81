/* Fuzz target of the CudaBackend payload parser: whatever the bytes, it ends with an error of one line or
 * with constants whose shapes lie in their storage. With -fsanitize=fuzzer it searches; fuzz/replay.c runs it
 * over the corpus as an ordinary test. */
#include "aotinductor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

extern const struct tandem_host td_host;

static void require(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "fuzz_cuda_payload: %s\n", what);
  abort();
}

static void read_fact(void *user, const char *key, const char *value) {
  size_t *seen = user;
  require(key[0] != '\0', "a fact without a name");
  *seen += strlen(key) + strlen(value);
}

static void check_constant(const struct td_aoti_constant *constant) {
  uint64_t last = (uint64_t)constant->offset;
  bool empty = false;
  require(constant->fqn[0] != '\0', "a constant without a name");
  require(constant->rank >= 0 && constant->rank <= TANDEM_MAX_RANK, "a rank out of bounds");
  for (int32_t d = 0; d < constant->rank; d++) {
    require(constant->sizes[d] >= 0 && constant->strides[d] >= 0, "a negative extent");
    empty = empty || constant->sizes[d] == 0;
    last += (uint64_t)(constant->sizes[d] - 1) * (uint64_t)constant->strides[d];
  }
  require(empty || (last + 1) * tandem_dtype_size(constant->dtype) <= constant->size,
          "a shape outside its storage");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  const struct tandem_vendor *vendor = &td_vendor_aotinductor_cuda;
  struct tandem_error error = {0};
  struct tandem_payload payload;
  uint8_t *exact = malloc(size ? size : 1); /* so that a sanitizer sees one byte too many */
  if (!exact)
    return 0;
  if (size)
    memcpy(exact, bytes, size);
  enum tandem_status status = vendor->parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    struct td_aoti_program program;
    size_t seen = 0;
    require(td_aoti_cuda_read(&td_host, exact, size, NULL, 0, &program, &error) == TANDEM_OK,
            "parsed once and not again");
    for (size_t i = 0; i < program.constant_count; i++)
      check_constant(&program.constants[i]);
    td_aoti_program_fini(&td_host, &program);
    vendor->describe(&payload, read_fact, &seen);
    require(seen > 0, "no facts");
    vendor->payload_destroy(&payload);
  } else {
    require(error.code == status && error.message[0] != '\0' && !strchr(error.message, '\n'),
            "an error not of one line");
    require(payload.state == NULL, "something left of a failed parse");
  }
  free(exact);
  return 0;
}
