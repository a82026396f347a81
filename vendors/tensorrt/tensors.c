/* The caller's tensors in a run: where they lie, which are staged, what is copied.
 *
 * Memory that the device reaches is bound in place. Other host memory is staged through buffers that stay
 * with the load, and so is an address that no kernel may be given. What a pointer is the driver is asked in
 * every run: an address may have become other memory since.
 *
 * An input that an output is aliased to is bound for both and must be device memory: it is updated in place,
 * and a staged copy would be lost. Tensors that live on the host (shape tensors) are copied to memory of the
 * context, so that a change of their values is noticed. An output whose size depends on the data is written
 * to a buffer of the load, given out while the library runs, and copied when its shape is known.
 *
 * A buffer is replaced only when the run before, which may still use it, is done.
 */
#include "context.h"

#include <stdio.h>
#include <string.h>

enum { ALIGNMENT_MAX = 256 };

/* The widest access of a kernel: an address that is no multiple of it is staged. */
enum { ALIGNMENT_MIN = 16 };

static enum tandem_status locate(struct td_trt_run *run, struct td_trt_tensor *tensor, const void *data) {
  struct td_trt_context *self = run->self;
  tensor->data = data;
  tensor->copied = false;
  if (tensor->bytes == 0) {
    tensor->pointer = (struct td_cuda_pointer){.address = self->cuda->nothing, .place = TD_CUDA_DEVICE};
    tensor->address = self->cuda->nothing;
    return TANDEM_OK;
  }
  tensor->pointer = td_cuda_locate(self->cuda, data, tensor->bytes);
  tensor->address = tensor->pointer.address;
  if (tensor->pointer.place == TD_CUDA_FOREIGN)
    return td_trt_host()->fail(
        run->error, TANDEM_INVALID_ARGUMENT,
        "%s %zu (%s) lies in memory of cuda:%d that is not mapped for cuda:%d, where the engine "
        "is; copy it there",
        tensor->side, tensor->number, tensor->name, tensor->pointer.owner, self->cuda->device_id);
  return TANDEM_OK;
}

/* Decides that a tensor goes through a buffer of the load, and has it. */
static enum tandem_status stage(struct td_trt_run *run, struct td_trt_tensor *tensor) {
  struct td_trt_context *self = run->self;
  char step[160];
  if (run->captured && tensor->pointer.place == TD_CUDA_HOST)
    return td_trt_refuse_capture(run, "a tensor is in host memory");
  if (run->captured) {
    /* The graph would keep the address of a buffer that a later run may give away. */
    snprintf(step, sizeof step, "the address of %s %zu (%.64s) is not aligned to %d bytes", tensor->side,
             tensor->number, tensor->name, ALIGNMENT_MIN);
    return td_trt_refuse_capture(run, step);
  }
  tensor->copied = true;
  if (tensor->staged.size < tensor->bytes) {
    td_trt_await_flight(self);
    td_cuda_give(self->cuda, &tensor->staged);
    int32_t code = td_cuda_take(self->cuda, tensor->bytes, &tensor->staged);
    if (code != TD_CUDA_OK) {
      snprintf(step, sizeof step, "allocate %zu bytes for %s %zu (%.64s)", tensor->bytes, tensor->side,
               tensor->number, tensor->name);
      return td_cuda_fail(self->cuda, code, step, run->error);
    }
  }
  tensor->address = tensor->staged.address;
  return TANDEM_OK;
}

static bool is_aligned(const struct td_trt_tensor *tensor) {
  return tensor->address % ALIGNMENT_MIN == 0;
}

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
  enum tandem_status status = make_host_room(tensor, tensor->bytes, run->error);
  if (status != TANDEM_OK || tensor->bytes == 0)
    return status;
  status = locate(run, tensor, data);
  if (status != TANDEM_OK)
    return status;
  const void *source = data;
  if (tensor->bytes > sizeof values && (fetched = td_trt_host()->allocate(tensor->bytes)) == NULL)
    return td_trt_host()->fail(run->error, TANDEM_OUT_OF_MEMORY,
                               "no host memory for the values of a shape tensor");
  if (tensor->pointer.place == TD_CUDA_DEVICE) {
    int32_t code;
    if (run->captured) {
      status = td_trt_refuse_capture(run, "the values of a shape tensor are in device memory");
      goto done;
    }
    if ((code = td_trt_order(run)) == TD_CUDA_OK) /* they may be what the run before writes */
      code = td_cuda.copy_out(fetched, tensor->pointer.address, tensor->bytes, run->stream);
    int32_t waited = td_trt_wait(run);
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK) {
      status = td_cuda_fail(run->self->cuda, code, "read the values of a shape tensor", run->error);
      goto done;
    }
    source = fetched;
  }
  if (tensor->dims.rank < 0 || memcmp(tensor->host, source, tensor->bytes) != 0) {
    if (run->captured) {
      status = td_trt_refuse_capture(run, "a shape tensor has other values than the run before");
      goto done;
    }
    memcpy(tensor->host, source, tensor->bytes);
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
  const struct tandem_tensor *given = &run->desc->inputs[index];
  tensor->bytes = tensor->element;
  for (int32_t d = 0; d < given->rank; d++)
    tensor->bytes *= (size_t)given->shape[d]; /* tandem has checked that this does not wrap */
  if (tensor->on_host)
    return fetch_values(run, tensor, given->data);
  enum tandem_status status = locate(run, tensor, given->data);
  if (status != TANDEM_OK)
    return status;
  if (tensor->aliased) {
    if (tensor->pointer.place == TD_CUDA_DEVICE && is_aligned(tensor))
      return TANDEM_OK;
    if (tensor->pointer.place == TD_CUDA_DEVICE)
      return td_trt_host()->fail(
          run->error, TANDEM_INVALID_ARGUMENT,
          "the address of input %zu (%s) is not aligned to %d bytes and the engine updates it in place; give "
          "it at an aligned address",
          tensor->number, tensor->name, ALIGNMENT_MIN);
    return td_trt_host()->fail(
        run->error, TANDEM_INVALID_ARGUMENT,
        "input %zu (%s) is in host memory and the engine updates it in place; give it in memory of "
        "cuda:%d",
        tensor->number, tensor->name, run->self->cuda->device_id);
  }
  if (tensor->pointer.place == TD_CUDA_HOST || !is_aligned(tensor))
    status = stage(run, tensor);
  return status;
}

/* ---------------------------------------------------------------- outputs */

/* Gives an output its real shape and makes sure of room for it. */
static enum tandem_status make_room(struct td_trt_run *run, struct td_trt_tensor *tensor,
                                    const struct td_trt_dims *dims) {
  const struct tandem_host *host = td_trt_host();
  struct tandem_tensor *given = tensor->given;
  char text[256];
  td_trt_dims_write(dims, text, sizeof text);
  if (!td_trt_dims_bytes(dims, tensor->element, &tensor->bytes))
    return host->fail(run->error, TANDEM_OUT_OF_MEMORY,
                      "output %zu (%s) has shape %s, more bytes than there are", tensor->number, tensor->name,
                      text);
  /* A number without dimensions may be asked for where the engine has one dimension of 1. */
  bool scalar = given->rank == 0 && dims->rank == 1 && dims->d[0] == 1;
  bool same = scalar || (given->rank == dims->rank &&
                         memcmp(given->shape, dims->d, (size_t)dims->rank * sizeof *dims->d) == 0);
  if (!same) {
    given->rank = dims->rank;
    memcpy(given->shape, dims->d, (size_t)dims->rank * sizeof *dims->d);
  }
  bool room = given->size >= tensor->bytes && (given->data != NULL || tensor->bytes == 0);
  if ((!same || !room) && run->desc->resize != NULL) {
    size_t index = (size_t)(given - run->desc->outputs);
    enum tandem_status status = run->desc->resize(run->desc->resize_user, index, given);
    if (status != TANDEM_OK)
      return host->fail(run->error, status,
                        "output %zu (%s) has shape %s, which the caller's tensor cannot take", tensor->number,
                        tensor->name, text);
    room = given->size >= tensor->bytes && (given->data != NULL || tensor->bytes == 0);
  }
  if (given->data == NULL && tensor->bytes > 0)
    return host->fail(run->error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has no address, %zu bytes are needed", tensor->number, tensor->name,
                      tensor->bytes);
  if (!room)
    return host->fail(run->error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has shape %s, %zu bytes, the caller's tensor has room for %zu",
                      tensor->number, tensor->name, text, tensor->bytes, given->size);
  return TANDEM_OK;
}

enum tandem_status td_trt_take_output(struct td_trt_run *run, size_t index) {
  struct td_trt_context *self = run->self;
  struct td_trt_tensor *tensor = &self->tensors[index];
  struct td_trt_allocator *allocator = &self->allocators[index - self->input_count];
  enum tandem_status status = TANDEM_OK;
  tensor->copied = false;
  if (tensor->late) {
    allocator->dims.rank = -1;
    allocator->code = TD_CUDA_OK;
    td_trt_await_flight(self); /* the buffer it writes to may be replaced while the library runs */
    return run->captured ? td_trt_refuse_capture(run, "the shape of an output depends on the data")
                         : TANDEM_OK;
  }
  if (tensor->given != NULL && (status = make_room(run, tensor, &tensor->dims)) == TANDEM_OK)
    status = locate(run, tensor, tensor->given->data);
  if (status != TANDEM_OK)
    return status;
  if (tensor->aliased) {
    /* The engine writes to the input; the caller's own output, if any, gets a copy. */
    tensor->copied = tensor->given != NULL && tensor->bytes > 0 &&
                     tensor->pointer.address != self->tensors[tensor->input].address;
    tensor->address = self->tensors[tensor->input].address;
    if (tensor->copied && run->captured && tensor->pointer.place == TD_CUDA_HOST)
      return td_trt_refuse_capture(run, "an output is in host memory");
    return TANDEM_OK;
  }
  if (tensor->on_host) {
    if (run->captured)
      return td_trt_refuse_capture(run, "a shape tensor is written on the host");
    return make_host_room(tensor, tensor->bytes, run->error);
  }
  if (tensor->pointer.place == TD_CUDA_HOST || !is_aligned(tensor))
    status = stage(run, tensor);
  return status;
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
  if (tensor->staged.size < size) {
    td_cuda_give(self->cuda, &tensor->staged);
    allocator->code = td_cuda_take(self->cuda, (size_t)size, &tensor->staged);
  }
  return (void *)(uintptr_t)tensor->staged.address;
}

void td_trt_output_shape(struct td_trt_output_allocator *base, const char *name,
                         const struct td_trt_dims *dims) {
  (void)name;
  ((struct td_trt_allocator *)(void *)base)->dims = *dims;
}

/* ---------------------------------------------------------------- copies */

/* Between a buffer and the host memory of a tensor, which was located already. */
static int32_t copy_tensor(struct td_trt_run *run, const struct td_trt_tensor *tensor, void *host, bool out) {
  if (tensor->pointer.inside != tensor->bytes)
    return td_cuda_copy_host(run->self->cuda, tensor->address, host, tensor->bytes, out, run->stream);
  return out ? td_cuda.copy_out(host, tensor->address, tensor->bytes, run->stream)
             : td_cuda.copy_in(tensor->address, host, tensor->bytes, run->stream);
}

int32_t td_trt_copy_inputs(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  int32_t code = TD_CUDA_OK;
  for (size_t i = 0; code == TD_CUDA_OK && i < self->input_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    if (!tensor->copied || tensor->on_host)
      continue;
    run->queued = true;
    code = tensor->pointer.place == TD_CUDA_DEVICE
               ? td_cuda.copy_within(tensor->address, tensor->pointer.address, tensor->bytes, run->stream)
               : copy_tensor(run, tensor, (void *)(uintptr_t)tensor->data, false);
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
      status = locate(run, tensor, tensor->given->data);
    if (status != TANDEM_OK)
      return status;
    if (tensor->staged.size < tensor->bytes)
      return td_trt_refuse(run, TANDEM_INTERNAL, "keep to the size that it asked for an output");
    tensor->copied = tensor->bytes > 0;
    tensor->address = tensor->staged.address;
  }
  if (!tensor->copied || tensor->on_host)
    return TANDEM_OK;
  int32_t code =
      tensor->pointer.place == TD_CUDA_DEVICE
          ? td_cuda.copy_within(tensor->pointer.address, tensor->address, tensor->bytes, run->stream)
          : copy_tensor(run, tensor, tensor->given->data, true);
  return code == TD_CUDA_OK ? TANDEM_OK : td_cuda_fail(self->cuda, code, "copy an output", run->error);
}

enum tandem_status td_trt_hand_out_values(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  for (size_t i = self->input_count; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    if (!tensor->on_host || tensor->given == NULL || tensor->bytes == 0)
      continue;
    if (tensor->pointer.place != TD_CUDA_DEVICE) {
      memcpy(tensor->given->data, tensor->host, tensor->bytes);
      continue;
    }
    int32_t code = td_cuda.copy_in(tensor->pointer.address, tensor->host, tensor->bytes, run->stream);
    int32_t waited = td_trt_wait(run);
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "copy a shape tensor", run->error);
  }
  return TANDEM_OK;
}
