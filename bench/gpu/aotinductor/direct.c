#include "direct.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct aoti_tensor_api direct_tensors;
int32_t (*direct_enter_stream)(void *stream, int32_t device_index, void **guard);
int32_t (*direct_leave_stream)(void *guard);

static void *need(void *library, const char *symbol) {
  void *address = dlsym(library, symbol);
  if (!address) {
    fprintf(stderr, "%s is missing\n", symbol);
    exit(1);
  }
  return address;
}

static void *open_library(const char *path, int flags) {
  void *library = dlopen(path, RTLD_NOW | flags);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  return library;
}

void direct_open_libraries(int count, char **paths) {
  void *address;
  for (int i = 0; i < count; i++)
    open_library(paths[i], RTLD_GLOBAL);
#define FIND(member, symbol, parameters)                                                                     \
  address = need(RTLD_DEFAULT, #symbol);                                                                     \
  memcpy(&direct_tensors.member, &address, sizeof address);
  TD_AOTI_TENSOR_CALLS(FIND)
#undef FIND
  address = need(RTLD_DEFAULT, "aoti_torch_create_cuda_stream_guard");
  memcpy(&direct_enter_stream, &address, sizeof address);
  address = need(RTLD_DEFAULT, "aoti_torch_delete_cuda_stream_guard");
  memcpy(&direct_leave_stream, &address, sizeof address);
}

void direct_open_engine(struct direct *engine, const char *path) {
  void *library = open_library(path, RTLD_LOCAL), *address;
#define FIND(member, symbol, parameters)                                                                     \
  address = need(library, #symbol);                                                                          \
  memcpy(&engine->api.member, &address, sizeof address);
#define FIND_OPTIONAL(member, symbol, parameters)                                                            \
  address = dlsym(library, #symbol);                                                                         \
  memcpy(&engine->api.member, &address, sizeof address);
  TD_AOTI_ENGINE_CALLS(FIND, FIND_OPTIONAL)
#undef FIND
#undef FIND_OPTIONAL
  address = need(library, "AOTInductorModelContainerRun");
  memcpy(&engine->run, &address, sizeof address);
  if (!engine->api.load_blob)
    need(library, "AOTInductorModelUpdateConstantsFromBlob");
}
