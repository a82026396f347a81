/* Fuzz target of the .npy parser: whatever the bytes, it ends with an error or with a tensor that lies
 * exactly in the file. */
#include "cli.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct td_npy npy;
  uint8_t *exact = copy_bytes(bytes, size);
  enum tandem_status status = td_npy_parse(exact, size, "input", &npy, &error);
  if (status == TANDEM_OK) {
    size_t expected = 0;
    require(npy.rank >= 0 && npy.rank <= TANDEM_MAX_RANK, "a rank out of bounds");
    require(td_tensor_size(npy.dtype, npy.rank, npy.shape, &expected), "a size that cannot be");
    require(expected == npy.data_size, "a size that is not the shape's");
    require(npy.data_offset <= size && npy.data_size == size - npy.data_offset, "data outside the file");
  } else {
    require(error.code == status, "an error without its status");
    require(strncmp(error.message, "input: ", 7) == 0, "an error that does not name the file");
    require_line(error.message);
  }
  free(exact);
  return 0;
}
