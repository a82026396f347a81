/* Fuzz target of the check of data files (.ptd): whatever the bytes, they are refused with a reason or taken,
 * and nothing is read beyond the flatbuffer. */
#include "adapter.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  std::string why;
  std::vector<std::string> untyped;
  tandem::DataLayout layout = {};
  uint8_t *exact = copy_bytes(bytes, size);
  bool good = tandem::read_data_layout(exact, size, size, &layout, &why);
  if (good) {
    require(layout.buffer_size <= size && layout.segment_base <= size, "a layout outside the file");
    uint8_t *buffer = copy_bytes(exact, static_cast<size_t>(layout.buffer_size));
    good = tandem::check_data(buffer, layout, size, &untyped, &why);
    free(buffer);
  }
  require(good || !why.empty(), "refused without a reason");
  free(exact);
  return 0;
}
