/* Fuzz target of the CudaBackend payload parser: whatever the bytes, it ends with an error of one line or
 * with constants whose shapes lie in their storage. */
#include "aotinductor.h"
#include "payload.h"

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

static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size,
                          struct named *named) {
  struct tandem_error error = {0};
  struct td_aoti_program program;
  size_t seen = 0;
  require(td_aoti_cuda_read(&td_host, bytes, size, NULL, 0, &program, &error) == TANDEM_OK,
          "parsed once and not again");
  named->sizes[named->size_count++] = 64; /* the library */
  for (size_t i = 0; i < program.constant_count; i++) {
    check_constant(&program.constants[i]);
    if (named->size_count < NAMED_MAX)
      named->sizes[named->size_count++] = program.constants[i].size;
  }
  td_aoti_program_fini(&td_host, &program);
  td_vendor_aotinductor_cuda.describe(payload, read_fact, &seen);
  require(seen > 0, "no facts");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  return fuzz_parse(&td_vendor_aotinductor_cuda, bytes, size, check_payload);
}
