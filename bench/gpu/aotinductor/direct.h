/* AOTInductor engines without tandem: opened and called as their own header says, for what tandem is compared
 * with. The libraries with their tensor functions are opened for all to see, since an engine does not name
 * them. */
#ifndef TANDEM_BENCH_GPU_AOTINDUCTOR_DIRECT_H
#define TANDEM_BENCH_GPU_AOTINDUCTOR_DIRECT_H

#include "abi.h"

struct direct {
  struct aoti_engine_api api;
  /* On whichever runner of the container is free. */
  int32_t (*run)(struct aoti_container *container, struct aoti_tensor **inputs, size_t input_count,
                 struct aoti_tensor **outputs, size_t output_count, void *stream, void *proxy);
};

extern struct aoti_tensor_api direct_tensors; /* filled by direct_open_libraries, as are these two */
/* Between the two the thread's engine calls allocate and free in the order of `stream`. */
extern int32_t (*direct_enter_stream)(void *stream, int32_t device_index, void **guard);
extern int32_t (*direct_leave_stream)(void *guard);

/* Both end the process with a line on stderr when something is missing. */
void direct_open_libraries(int count, char **paths);
void direct_open_engine(struct direct *engine, const char *path);

#endif
