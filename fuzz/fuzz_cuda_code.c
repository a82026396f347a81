/* Fuzz target of the search for GPU code in an engine's library: whatever the bytes, the answer is a compute
 * capability that some kernel in them names, or none. */
#include "aotinductor.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  uint8_t *exact = copy_bytes(bytes, size);
  int32_t capability = td_aoti_cuda_capability(exact, size);
  bool named = capability == 0;
  for (size_t i = 0; !named && i + sizeof capability <= size; i++)
    named = memcmp(exact + i, &capability, sizeof capability) == 0;
  require(capability >= 0 && capability < 1000 && named, "a compute capability that no kernel names");
  free(exact);
  return 0;
}
