/* Fuzz target of what is read of a TensorRT plan without its library: whatever the bytes, the answer is no or
 * the name of a product. */
#include "fuzz.h"
#include "tensorrt.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct td_trt_plan plan = {.product = TD_TRT_FULL};
  uint8_t *exact = copy_bytes(bytes, size);
  if (td_trt_read_plan(exact, size, &plan)) {
    require(plan.product == TD_TRT_RTX, "a product that has no known header");
    require_line(plan.name);
    require(strlen(plan.name) < sizeof plan.name - 1, "a name that was cut");
  }
  free(exact);
  return 0;
}
