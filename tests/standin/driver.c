/* Opens the CUDA driver, real or stand-in, at run time. TESTS ONLY. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool driver_open(struct driver *driver, char *why, size_t why_size) {
  const char *path = getenv("TANDEM_CUDA_LIBRARY");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, why_size, "%s", dlerror());
    return false;
  }
  struct driver found;
#define X(field, symbol, parameters)                                                                         \
  {                                                                                                          \
    void *address = dlsym(library, symbol);                                                                  \
    if (!address) {                                                                                          \
      snprintf(why, why_size, "no symbol " symbol);                                                          \
      return false;                                                                                          \
    }                                                                                                        \
    memcpy(&found.field, &address, sizeof address);                                                          \
  }
  DRIVER_FUNCTIONS(X)
#undef X
  int result = found.init(0);
  if (result) {
    snprintf(why, why_size, "cuInit says %d", result);
    return false;
  }
  *driver = found;
  return true;
}
