/* Stand-in library of any vendor, TESTS ONLY: what vendors look for when they open their library, and nothing
 * behind it. It is there to be found: copied under a vendor's file names. */
#include "../../vendors/aotinductor/abi.h"
#include "../../vendors/openvino/abi.h"

#include <string.h>

static int answer(const char *symbol, void *first) {
  if (strcmp(symbol, "ov_get_openvino_version") != 0)
    return -1;
  *(struct ov_version *)first = (struct ov_version){.build_number = "2026.4.1-standin"};
  return OV_OK;
}

#pragma GCC visibility push(default)

#define DEFINE(symbol)                                                                                       \
  int symbol(void *first);                                                                                   \
  int symbol(void *first) {                                                                                  \
    return answer(#symbol, first);                                                                           \
  }
#define DEFINE_OPENVINO(member, symbol, result, parameters) DEFINE(symbol)
#define DEFINE_TORCH(member, symbol, parameters)            DEFINE(symbol)
TD_OPENVINO_CALLS(DEFINE_OPENVINO)
TD_AOTI_TENSOR_CALLS(DEFINE_TORCH)
DEFINE(createInferRuntime_INTERNAL)

int getInferLibVersion(void);
int getInferLibVersion(void) {
  return 110400; /* lean, since there is no builder */
}
