/* Stand-in libaoti_cuda_shims.so and, with STANDIN_TORCH, libtorch_cpu.so, TESTS ONLY: tensors over the
 * stand-in driver.
 *
 * Memory of a tensor is allocated from and freed on the calling thread's current stream. As in ExecuTorch's
 * library a thread that has none gets a new one when that is asked for, which nobody destroys; in libtorch it
 * has the default stream.
 */
#include "abi.h"
#include "aoti.h"
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { DEVICES = 8, NON_BLOCKING = 1 };

struct block {
  uint64_t address;
  int32_t device_type, device_index;
  _Atomic int refs;
};

struct aoti_tensor {
  void *data;
  int64_t rank, sizes[TANDEM_MAX_RANK], strides[TANDEM_MAX_RANK];
  int32_t dtype;
  struct block *block; /* shared with other handles; NULL: the memory is somebody else's */
};

/* std::optional<cudaStream_t>, as functions return it. */
struct current_stream {
  void *stream;
  bool present;
};

struct guard {
  int32_t device_index;
  void *before;
};

static struct driver cuda;
static bool opened;
static _Thread_local struct current_stream current[DEVICES];
static _Atomic int64_t tensors;
static _Atomic uint64_t streams;
static void *_Atomic deleted_on;

static void open_driver(void) {
  char why[256];
  opened = driver_open(&cuda, why, sizeof why);
  if (!opened)
    fprintf(stderr, "stand-in shims: %s\n", why);
}

static bool has_driver(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_driver);
  return opened;
}

/* ---------------------------------------------------------------- a thread's stream */

/* False: the driver makes none. */
static bool find_stream(int32_t device, void **stream) {
  struct current_stream *here = &current[device];
#ifndef STANDIN_TORCH
  if (!here->present) {
    if (!has_driver() || cuda.stream_create(&here->stream, NON_BLOCKING) != CU_OK)
      return false;
    here->present = true;
    streams++;
  }
#endif
  *stream = here->stream;
  return true;
}

EXPORT int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device_index, void **made);
int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device_index, void **made) {
  struct guard *guard = malloc(sizeof *guard);
  if (!guard || !find_stream(device_index, &guard->before)) {
    free(guard);
    return 1;
  }
  guard->device_index = device_index;
  current[device_index].stream = stream;
  *made = guard;
  return 0;
}

EXPORT int32_t aoti_torch_delete_cuda_stream_guard(void *made);
int32_t aoti_torch_delete_cuda_stream_guard(void *made) {
  struct guard *guard = made;
  current[guard->device_index].stream = guard->before;
  free(guard);
  return 0;
}

#ifdef STANDIN_TORCH
EXPORT uint64_t aoti_torch_abi_version(void);
uint64_t aoti_torch_abi_version(void) {
  return (uint64_t)2 << 56 | (uint64_t)13 << 48;
}
#else
EXPORT struct current_stream
peek_stream(int8_t device) __asm__("_ZN10executorch8backends4cuda21peekCurrentCUDAStreamEa");
struct current_stream peek_stream(int8_t device) {
  return current[device];
}

EXPORT int32_t set_stream(void *stream, int8_t device) __asm__(
    "_ZN10executorch8backends4cuda20setCurrentCUDAStreamEP11CUstream_sta");
int32_t set_stream(void *stream, int8_t device) {
  current[device] = (struct current_stream){.stream = stream, .present = true};
  return 0;
}

EXPORT void clear_stream(int8_t device) __asm__("_ZN10executorch8backends4cuda22clearCurrentCUDAStreamEa");
void clear_stream(int8_t device) {
  current[device] = (struct current_stream){0};
}
#endif

/* ---------------------------------------------------------------- tensors */

#define DECLARE(member, symbol, parameters) EXPORT int32_t symbol parameters;
TD_AOTI_TENSOR_CALLS(DECLARE)
#undef DECLARE

/* Of what the stand-in engines have; 0: none of it. */
static size_t size_of(int32_t dtype) {
  return dtype == TANDEM_FLOAT32 ? sizeof(float) : dtype == TANDEM_INT64 ? sizeof(int64_t) : 0;
}

static struct aoti_tensor *make_tensor(int64_t rank, const int64_t *sizes, const int64_t *strides,
                                       int32_t dtype) {
  struct aoti_tensor *made =
      rank >= 0 && rank <= TANDEM_MAX_RANK && size_of(dtype) > 0 ? calloc(1, sizeof *made) : NULL;
  if (!made)
    return NULL;
  made->rank = rank;
  made->dtype = dtype;
  memcpy(made->sizes, sizes, (size_t)rank * sizeof *sizes);
  memcpy(made->strides, strides, (size_t)rank * sizeof *strides);
  tensors++;
  return made;
}

/* As far as the calling thread's context tells. */
static bool is_here(int32_t device_type, int32_t device_index) {
  int device = -1;
  return device_type == AOTI_DEVICE_CPU
             ? device_index == 0
             : has_driver() && cuda.context_device(&device) == CU_OK && device == device_index;
}

int32_t aoti_torch_create_tensor_from_blob_v2(void *data, int64_t rank, const int64_t *sizes,
                                              const int64_t *strides, int64_t offset, int32_t dtype,
                                              int32_t device_type, int32_t device_index,
                                              struct aoti_tensor **tensor, int32_t layout,
                                              const uint8_t *metadata, int64_t metadata_size) {
  (void)metadata;
  if (!is_here(device_type, device_index))
    return 1;
  *tensor =
      layout == AOTI_LAYOUT_STRIDED && metadata_size == 0 ? make_tensor(rank, sizes, strides, dtype) : NULL;
  if (!*tensor)
    return 1;
  (*tensor)->data = (char *)data + (size_t)offset * size_of(dtype);
  return 0;
}

/* Bytes from the first element to the last. */
static size_t count_bytes(const struct aoti_tensor *tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor->rank; d++) {
    if (tensor->sizes[d] == 0)
      return 0;
    last += (tensor->sizes[d] - 1) * tensor->strides[d];
  }
  return (size_t)(last + 1) * size_of(tensor->dtype);
}

static struct block *allocate(size_t size, int32_t device_type, int32_t device_index) {
  void *stream;
  struct block *made = calloc(1, sizeof *made);
  if (!made)
    return NULL;
  *made = (struct block){.device_type = device_type, .device_index = device_index, .refs = 1};
  if (device_type == AOTI_DEVICE_CPU)
    made->address = (uint64_t)(uintptr_t)malloc(size);
  else if (!find_stream(device_index, &stream) || !has_driver() ||
           cuda.allocate_async(&made->address, size, stream) != CU_OK)
    made->address = 0;
  if (made->address)
    return made;
  free(made);
  return NULL;
}

static void release(struct block *block) {
  void *stream;
  if (!block || --block->refs > 0)
    return;
  if (block->device_type == AOTI_DEVICE_CPU)
    free((void *)(uintptr_t)block->address);
  else if (find_stream(block->device_index, &stream))
    cuda.release_async(block->address, stream);
  free(block);
}

EXPORT int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        struct aoti_tensor **tensor);
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device_type, int32_t device_index, struct aoti_tensor **tensor) {
  struct aoti_tensor *made = make_tensor(rank, sizes, strides, dtype);
  size_t size = made ? count_bytes(made) : 0;
  if (size > 0) {
    made->block = allocate(size, device_type, device_index);
    made->data = made->block ? (void *)(uintptr_t)made->block->address : NULL;
  }
  *tensor = made;
  if (made && (size == 0 || made->block))
    return 0;
  if (made)
    aoti_torch_delete_tensor_object(made);
  *tensor = NULL;
  return 1;
}

int32_t aoti_torch_new_tensor_handle(struct aoti_tensor *tensor, struct aoti_tensor **shared) {
  *shared = make_tensor(tensor->rank, tensor->sizes, tensor->strides, tensor->dtype);
  if (!*shared)
    return 1;
  (*shared)->data = tensor->data;
  (*shared)->block = tensor->block;
  if (tensor->block)
    tensor->block->refs++;
  return 0;
}

int32_t aoti_torch_delete_tensor_object(struct aoti_tensor *tensor) {
  if (!tensor)
    return 0;
  release(tensor->block);
  deleted_on = current[0].stream;
  tensors--;
  free(tensor);
  return 0;
}

int32_t aoti_torch_get_data_ptr(struct aoti_tensor *tensor, void **data) {
  *data = tensor->data;
  return 0;
}

int32_t aoti_torch_get_dim(struct aoti_tensor *tensor, int64_t *rank) {
  *rank = tensor->rank;
  return 0;
}

int32_t aoti_torch_get_sizes(struct aoti_tensor *tensor, int64_t **sizes) {
  *sizes = tensor->sizes;
  return 0;
}

int32_t aoti_torch_get_strides(struct aoti_tensor *tensor, int64_t **strides) {
  *strides = tensor->strides;
  return 0;
}

int32_t aoti_torch_get_dtype(struct aoti_tensor *tensor, int32_t *dtype) {
  *dtype = tensor->dtype;
  return 0;
}

/* ---------------------------------------------------------------- what tests ask */

static int64_t count_tensors(void) {
  return tensors;
}

static uint64_t count_streams(void) {
  return streams;
}

static bool tell_current(int8_t device, void **stream) {
  *stream = current[device].stream;
  return current[device].present || *stream;
}

static void *tell_deleted_on(void) {
  return deleted_on;
}

EXPORT const struct standin_shims *standin_shims_control(void);
const struct standin_shims *standin_shims_control(void) {
  static const struct standin_shims control = {.struct_size = sizeof control,
                                               .tensors = count_tensors,
                                               .streams = count_streams,
                                               .current = tell_current,
                                               .deleted_on = tell_deleted_on};
  return &control;
}
