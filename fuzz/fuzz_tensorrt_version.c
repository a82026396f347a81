/* Fuzz target of the table of TensorRT's layouts: whatever number a library gives as its version, it is
 * refused in one line, or the methods that are always needed have slots. */
#include "base.h"
#include "fuzz.h"
#include "tensorrt.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct td_trt_library library = {0};
  int32_t version;
  if (size != 1 + sizeof version)
    return 0;
  bool lean = bytes[0] & 1;
  memcpy(&version, bytes + 1, sizeof version);
  enum tandem_status status = td_trt_choose(&td_host, version, lean, &library, &error);
  require_line(library.name);
  require(strlen(library.name) < sizeof library.name - 1, "a name that was cut");
  if (status != TANDEM_OK) {
    require(status == TANDEM_UNSUPPORTED && error.code == status, "an error without its status");
    require_line(error.message);
    return 0;
  }
  require(library.version == version && library.major > 0, "another version than was asked for");
  require(TD_TRT_LEAN != library.product || lean, "a lean library that is none");
  require(library.slots.engine_io_count >= 0 && library.slots.context_enqueue >= 0,
          "a method without a slot");
  return 0;
}
