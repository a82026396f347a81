/* The caller's tensors in a run: where they lie, which are staged, what is copied.
 *
 * What a pointer is the driver is asked in every run: an address may have become other memory since. Memory
 * that cannot be bound in place is staged (../cuda/run.c).
 *
 * An input that an output is aliased to is bound for both and must be device memory: it is updated in place,
 * and a staged copy would be lost. Tensors that live on the host (shape tensors) are copied to memory of the
 * context, so that a change of their values is noticed. An output whose size depends on the data is written
 * to a buffer of the load, given out while the library runs, and copied when its shape is known.
 */
#include "context.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT_MAX = 256 };

/* ---------------------------------------------------------------- inputs */

/* Room for the values of a shape tensor. */
static enum tandem_status make_host_room(struct td_trt_tensor *tensor, size_t bytes,
                                         struct tandem_error *error) {
  size_t size = bytes > 0 ? bytes : 1;
  if (tensor->host_size >= size)
    return TANDEM_OK;
  void *host = td_trt_host()->allocate(size);
  if (host == NULL)
    return td_trt_host()->fail(error, TANDEM_OUT_OF_MEMORY,
                               "no host memory for the values of a shape tensor");
  td_trt_host()->release(tensor->host);
  tensor->host = host;
  tensor->host_size = size;
  tensor->bound = NULL;
  if (!tensor->output)
    tensor->dims.rank = -1;
  return TANDEM_OK;
}

/* A shape tensor: its values are needed now, on the host. */
static enum tandem_status fetch_values(struct td_trt_run *run, struct td_trt_tensor *tensor,
                                       const void *data) {
  unsigned char values[256];
  void *fetched = values;
  enum tandem_status status = make_host_room(tensor, tensor->memory.bytes, run->cuda.error);
  if (status != TANDEM_OK || tensor->memory.bytes == 0)
    return status;
  status = td_run_locate(&run->cuda, &tensor->memory, data, tensor->memory.bytes);
  if (status != TANDEM_OK)
    return status;
  const void *source = data;
  if (tensor->memory.bytes > sizeof values &&
      (fetched = td_trt_host()->allocate(tensor->memory.bytes)) == NULL)
    return td_trt_host()->fail(run->cuda.error, TANDEM_OUT_OF_MEMORY,
                               "no host memory for the values of a shape tensor");
  if (tensor->memory.pointer.place == TD_CUDA_DEVICE) {
    int32_t code;
    if (run->cuda.captured) {
      status = td_run_refuse_capture(&run->cuda, "the values of a shape tensor are in device memory");
      goto done;
    }
    if ((code = td_run_order(&run->cuda)) == TD_CUDA_OK) /* they may be what the run before writes */
      code =
          td_cuda.copy_out(fetched, tensor->memory.pointer.address, tensor->memory.bytes, run->cuda.stream);
    int32_t waited = td_cuda_wait(run->cuda.stream);
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK) {
      status = td_cuda_fail(run->self->cuda, code, "read the values of a shape tensor", run->cuda.error);
      goto done;
    }
    source = fetched;
  }
  if (tensor->dims.rank < 0 || memcmp(tensor->host, source, tensor->memory.bytes) != 0) {
    if (run->cuda.captured) {
      status = td_run_refuse_capture(&run->cuda, "a shape tensor has other values than the run before");
      goto done;
    }
    memcpy(tensor->host, source, tensor->memory.bytes);
    tensor->dims.rank = -1; /* so that the library hears of it */
    run->reshaped = true;
  }
done:
  if (fetched != values)
    td_trt_host()->release(fetched);
  return status;
}

enum tandem_status td_trt_take_input(struct td_trt_run *run, size_t index) {
  struct td_trt_tensor *tensor = &run->self->tensors[index];
  const struct tandem_tensor *given = &run->cuda.desc->inputs[index];
  tensor->memory.bytes = tensor->element;
  for (int32_t d = 0; d < given->rank; d++)
    tensor->memory.bytes *= (size_t)given->shape[d]; /* tandem has checked that this does not wrap */
  if (tensor->on_host)
    return fetch_values(run, tensor, given->data);
  enum tandem_status status = td_run_locate(&run->cuda, &tensor->memory, given->data, tensor->memory.bytes);
  if (status != TANDEM_OK)
    return status;
  if (tensor->aliased) {
    if (tensor->memory.pointer.place == TD_CUDA_DEVICE && td_cuda_can_bind(&tensor->memory))
      return TANDEM_OK;
    if (tensor->memory.pointer.place == TD_CUDA_DEVICE)
      return td_trt_host()->fail(
          run->cuda.error, TANDEM_INVALID_ARGUMENT,
          "the address of input %zu (%s) is not aligned to %d bytes and the engine updates it in place; give "
          "it at an aligned address",
          tensor->memory.number, tensor->name, TD_CUDA_ALIGNMENT);
    return td_trt_host()->fail(
        run->cuda.error, TANDEM_INVALID_ARGUMENT,
        "input %zu (%s) is in host memory and the engine updates it in place; give it in memory of "
        "cuda:%d",
        tensor->memory.number, tensor->name, run->self->cuda->device_id);
  }
  return td_cuda_can_bind(&tensor->memory) ? TANDEM_OK : td_run_stage(&run->cuda, &tensor->memory);
}

/* ---------------------------------------------------------------- outputs */

/* Gives an output its real shape and makes sure of room for it. */
static enum tandem_status make_room(struct td_trt_run *run, struct td_trt_tensor *tensor,
                                    const struct td_trt_dims *dims) {
  const struct tandem_host *host = td_trt_host();
  struct tandem_tensor *given = tensor->given;
  char text[256];
  td_trt_dims_write(dims, text, sizeof text);
  if (!td_trt_dims_bytes(dims, tensor->element, &tensor->memory.bytes))
    return host->fail(run->cuda.error, TANDEM_OUT_OF_MEMORY,
                      "output %zu (%s) has shape %s, more bytes than there are", tensor->memory.number,
                      tensor->name, text);
  /* A number without dimensions may be asked for where the engine has one dimension of 1. */
  bool scalar = given->rank == 0 && dims->rank == 1 && dims->d[0] == 1;
  bool same = scalar || (given->rank == dims->rank &&
                         memcmp(given->shape, dims->d, (size_t)dims->rank * sizeof *dims->d) == 0);
  if (!same) {
    given->rank = dims->rank;
    memcpy(given->shape, dims->d, (size_t)dims->rank * sizeof *dims->d);
  }
  bool room = given->size >= tensor->memory.bytes && (given->data != NULL || tensor->memory.bytes == 0);
  if ((!same || !room) && run->cuda.desc->resize != NULL) {
    size_t index = (size_t)(given - run->cuda.desc->outputs);
    enum tandem_status status = run->cuda.desc->resize(run->cuda.desc->resize_user, index, given);
    if (status != TANDEM_OK)
      return host->fail(run->cuda.error, status,
                        "output %zu (%s) has shape %s, which the caller's tensor cannot take",
                        tensor->memory.number, tensor->name, text);
    room = given->size >= tensor->memory.bytes && (given->data != NULL || tensor->memory.bytes == 0);
  }
  if (given->data == NULL && tensor->memory.bytes > 0)
    return host->fail(run->cuda.error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has no address, %zu bytes are needed", tensor->memory.number,
                      tensor->name, tensor->memory.bytes);
  if (!room)
    return host->fail(run->cuda.error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has shape %s, %zu bytes, the caller's tensor has room for %zu",
                      tensor->memory.number, tensor->name, text, tensor->memory.bytes, given->size);
  return TANDEM_OK;
}

enum tandem_status td_trt_take_output(struct td_trt_run *run, size_t index) {
  struct td_trt_context *self = run->self;
  struct td_trt_tensor *tensor = &self->tensors[index];
  struct td_trt_allocator *allocator = &self->allocators[index - self->input_count];
  enum tandem_status status = TANDEM_OK;
  tensor->memory.copied = false;
  if (tensor->late) {
    allocator->dims.rank = -1;
    allocator->code = TD_CUDA_OK;
    if (run->cuda.captured)
      return td_run_refuse_capture(&run->cuda, "the shape of an output depends on the data");
    /* The buffer it writes to may be replaced while the library runs. */
    return td_flight_await(self->cuda, &self->flight, run->cuda.error);
  }
  if (tensor->given != NULL && (status = make_room(run, tensor, &tensor->dims)) == TANDEM_OK)
    status = td_run_locate(&run->cuda, &tensor->memory, tensor->given->data, tensor->memory.bytes);
  if (status != TANDEM_OK)
    return status;
  if (tensor->aliased) {
    /* The engine writes to the input; the caller's own output, if any, gets a copy. */
    tensor->memory.copied = tensor->given != NULL && tensor->memory.bytes > 0 &&
                            tensor->memory.pointer.address != self->tensors[tensor->input].memory.address;
    tensor->memory.address = self->tensors[tensor->input].memory.address;
    if (tensor->memory.copied && run->cuda.captured && tensor->memory.pointer.place == TD_CUDA_HOST)
      return td_run_refuse_capture(&run->cuda, "an output is in host memory");
    return TANDEM_OK;
  }
  if (tensor->on_host) {
    if (run->cuda.captured)
      return td_run_refuse_capture(&run->cuda, "a shape tensor is written on the host");
    return make_host_room(tensor, tensor->memory.bytes, run->cuda.error);
  }
  return td_cuda_can_bind(&tensor->memory) ? TANDEM_OK : td_run_stage(&run->cuda, &tensor->memory);
}

void *td_trt_output_reallocate(struct td_trt_output_allocator *base, const char *name, void *current,
                               uint64_t size, uint64_t alignment, void *stream) {
  struct td_trt_allocator *allocator = (struct td_trt_allocator *)(void *)base;
  struct td_trt_context *self = allocator->context;
  struct td_trt_tensor *tensor = &self->tensors[allocator->tensor];
  (void)name;
  (void)current;
  (void)stream;
  if (alignment > ALIGNMENT_MAX || size > SIZE_MAX)
    return NULL;
  if (size == 0)
    return (void *)(uintptr_t)self->cuda->nothing;
  if (tensor->memory.staged.size < size) {
    td_cuda_give(self->cuda, &tensor->memory.staged);
    allocator->code = td_cuda_take(self->cuda, (size_t)size, &tensor->memory.staged);
  }
  return (void *)(uintptr_t)tensor->memory.staged.address;
}

void td_trt_output_shape(struct td_trt_output_allocator *base, const char *name,
                         const struct td_trt_dims *dims) {
  (void)name;
  ((struct td_trt_allocator *)(void *)base)->dims = *dims;
}

/* ---------------------------------------------------------------- copies */

int32_t td_trt_copy_inputs(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  int32_t code = TD_CUDA_OK;
  for (size_t i = 0; code == TD_CUDA_OK && i < self->input_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    if (tensor->memory.copied && !tensor->on_host)
      code = td_run_copy(&run->cuda, &tensor->memory, false);
  }
  return code;
}

enum tandem_status td_trt_copy_output(struct td_trt_run *run, size_t index) {
  struct td_trt_context *self = run->self;
  struct td_trt_tensor *tensor = &self->tensors[index];
  if (tensor->late && tensor->given != NULL) {
    const struct td_trt_dims *dims = &self->allocators[index - self->input_count].dims;
    if (dims->rank < 0 || dims->rank > TD_TRT_MAX_RANK)
      return td_trt_refuse(run, TANDEM_INTERNAL, "tell the shape of an output");
    enum tandem_status status = make_room(run, tensor, dims);
    if (status == TANDEM_OK)
      status = td_run_locate(&run->cuda, &tensor->memory, tensor->given->data, tensor->memory.bytes);
    if (status != TANDEM_OK)
      return status;
    if (tensor->memory.staged.size < tensor->memory.bytes)
      return td_trt_refuse(run, TANDEM_INTERNAL, "keep to the size that it asked for an output");
    tensor->memory.copied = tensor->memory.bytes > 0;
    tensor->memory.address = tensor->memory.staged.address;
  }
  if (!tensor->memory.copied || tensor->on_host)
    return TANDEM_OK;
  int32_t code = td_run_copy(&run->cuda, &tensor->memory, true);
  return code == TD_CUDA_OK ? TANDEM_OK : td_cuda_fail(self->cuda, code, "copy an output", run->cuda.error);
}

enum tandem_status td_trt_hand_out_values(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  for (size_t i = self->input_count; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    if (!tensor->on_host || tensor->given == NULL || tensor->memory.bytes == 0)
      continue;
    if (tensor->memory.pointer.place != TD_CUDA_DEVICE) {
      memcpy(tensor->given->data, tensor->host, tensor->memory.bytes);
      continue;
    }
    run->cuda.queued = true;
    int32_t code =
        td_cuda.copy_in(tensor->memory.pointer.address, tensor->host, tensor->memory.bytes, run->cuda.stream);
    int32_t waited = td_cuda_wait(run->cuda.stream);
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "copy a shape tensor", run->cuda.error);
  }
  return TANDEM_OK;
}
