/* The CUDA driver's binary interface, as far as the stand-ins and their tests need it. TESTS ONLY.
 *
 * Numbers and names are the driver's; the header of its SDK is not used. Handles are opaque, results are
 * ints.
 */
#ifndef TANDEM_STANDIN_DRIVER_H
#define TANDEM_STANDIN_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  CU_OK = 0,
  CU_INVALID_VALUE = 1,
  CU_OUT_OF_MEMORY = 2,
  CU_NOT_INITIALIZED = 3,
  CU_DEINITIALIZED = 4,
  CU_NO_DEVICE = 100,
  CU_INVALID_DEVICE = 101,
  CU_INVALID_IMAGE = 200,
  CU_INVALID_CONTEXT = 201,
  CU_PEER_ACCESS_UNSUPPORTED = 217,
  CU_INVALID_HANDLE = 400,
  CU_ILLEGAL_STATE = 401,
  CU_NOT_FOUND = 500,
  CU_NOT_READY = 600,
  CU_ILLEGAL_ADDRESS = 700,
  CU_PEER_ACCESS_ALREADY_ENABLED = 704,
  CU_PRIMARY_CONTEXT_ACTIVE = 708,
  CU_CONTEXT_IS_DESTROYED = 709,
  CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CU_HOST_MEMORY_NOT_REGISTERED = 713,
  CU_LAUNCH_FAILED = 719,
  CU_NOT_SUPPORTED = 801,
  CU_STREAM_CAPTURE_UNSUPPORTED = 900,
  CU_STREAM_CAPTURE_INVALIDATED = 901,
  CU_STREAM_CAPTURE_MERGE = 902,
  CU_STREAM_CAPTURE_UNMATCHED = 903,
  CU_STREAM_CAPTURE_UNJOINED = 904,
  CU_STREAM_CAPTURE_ISOLATION = 905,
  CU_STREAM_CAPTURE_IMPLICIT = 906,
  CU_CAPTURED_EVENT = 907,
  CU_STREAM_CAPTURE_WRONG_THREAD = 908,
};

enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD_LOCAL = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURE_STATUS_NONE = 0, CU_CAPTURE_STATUS_ACTIVE = 1, CU_CAPTURE_STATUS_INVALIDATED = 2 };

/* Streams that are no pointers. */
#define CU_LEGACY_STREAM     ((void *)0x1)
#define CU_PER_THREAD_STREAM ((void *)0x2)

#define DRIVER_FUNCTIONS(X)                                                                                  \
  X(init, "cuInit", (unsigned flags))                                                                        \
  X(driver_version, "cuDriverGetVersion", (int *version))                                                    \
  X(error_string, "cuGetErrorString", (int error, const char **text))                                        \
  X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                   \
  X(device_count, "cuDeviceGetCount", (int *count))                                                          \
  X(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                       \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                                \
  X(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device))                                           \
  X(context_create, "cuCtxCreate_v2", (void **context, unsigned flags, int device))                          \
  X(context_destroy, "cuCtxDestroy_v2", (void *context))                                                     \
  X(context_push, "cuCtxPushCurrent_v2", (void *context))                                                    \
  X(context_pop, "cuCtxPopCurrent_v2", (void **context))                                                     \
  X(context_set, "cuCtxSetCurrent", (void *context))                                                         \
  X(context_get, "cuCtxGetCurrent", (void **context))                                                        \
  X(context_device, "cuCtxGetDevice", (int *device))                                                         \
  X(context_id, "cuCtxGetId", (void *context, unsigned long long *id))                                       \
  X(context_synchronize, "cuCtxSynchronize", (void))                                                         \
  X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                             \
  X(allocate, "cuMemAlloc_v2", (uint64_t * address, size_t size))                                            \
  X(release, "cuMemFree_v2", (uint64_t address))                                                             \
  X(allocate_async, "cuMemAllocAsync", (uint64_t * address, size_t size, void *stream))                      \
  X(release_async, "cuMemFreeAsync", (uint64_t address, void *stream))                                       \
  X(allocate_managed, "cuMemAllocManaged", (uint64_t * address, size_t size, unsigned flags))                \
  X(host_allocate, "cuMemHostAlloc", (void **memory, size_t size, unsigned flags))                           \
  X(host_release, "cuMemFreeHost", (void *memory))                                                           \
  X(host_register, "cuMemHostRegister_v2", (void *memory, size_t size, unsigned flags))                      \
  X(host_unregister, "cuMemHostUnregister", (void *memory))                                                  \
  X(pointer_attribute, "cuPointerGetAttribute", (void *value, int attribute, uint64_t address))              \
  X(copy_to, "cuMemcpyHtoD_v2", (uint64_t to, const void *from, size_t size))                                \
  X(copy_from, "cuMemcpyDtoH_v2", (void *to, uint64_t from, size_t size))                                    \
  X(copy_to_async, "cuMemcpyHtoDAsync_v2", (uint64_t to, const void *from, size_t size, void *stream))       \
  X(copy_from_async, "cuMemcpyDtoHAsync_v2", (void *to, uint64_t from, size_t size, void *stream))           \
  X(copy_async, "cuMemcpyAsync", (uint64_t to, uint64_t from, size_t size, void *stream))                    \
  X(set_async, "cuMemsetD8Async", (uint64_t to, unsigned char value, size_t size, void *stream))             \
  X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                                        \
  X(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                                    \
  X(stream_synchronize, "cuStreamSynchronize", (void *stream))                                               \
  X(stream_query, "cuStreamQuery", (void *stream))                                                           \
  X(stream_wait, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))                           \
  X(stream_capturing, "cuStreamIsCapturing", (void *stream, int *status))                                    \
  X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                                      \
  X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                                         \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                                          \
  X(event_create, "cuEventCreate", (void **event, unsigned flags))                                           \
  X(event_destroy, "cuEventDestroy_v2", (void *event))                                                       \
  X(event_record, "cuEventRecord", (void *event, void *stream))                                              \
  X(event_query, "cuEventQuery", (void *event))                                                              \
  X(event_synchronize, "cuEventSynchronize", (void *event))                                                  \
  X(module_load, "cuModuleLoadData", (void **module, const void *image))                                     \
  X(module_unload, "cuModuleUnload", (void *module))                                                         \
  X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name))               \
  X(launch, "cuLaunchKernel",                                                                                \
    (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
     unsigned block_z, unsigned shared_size, void *stream, void **parameters, void **extra))                 \
  X(graph_instantiate, "cuGraphInstantiateWithFlags",                                                        \
    (void **instance, void *graph, unsigned long long flags))                                                \
  X(graph_launch, "cuGraphLaunch", (void *instance, void *stream))                                           \
  X(graph_destroy, "cuGraphDestroy", (void *graph))                                                          \
  X(graph_instance_destroy, "cuGraphExecDestroy", (void *instance))

struct driver {
#define X(field, symbol, parameters) int(*field) parameters;
  DRIVER_FUNCTIONS(X)
#undef X
};

/* TANDEM_CUDA_LIBRARY, else libcuda.so.1; calls cuInit. False, and what is missing in `why`. */
bool driver_open(struct driver *driver, char *why, size_t why_size);

#endif
