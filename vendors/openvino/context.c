/* A context: one infer request of the shared compiled model, bound to the caller's own memory.
 *
 * Inputs and outputs of constant shape are never copied here: the request reads and writes the caller's
 * memory. A binding is remembered by address and shape, and OpenVINO is called only when one of them changes;
 * a run with the buffers of the run before costs the inference and nothing else. Nothing is read through a
 * remembered address before the next run has named it again.
 *
 * The shape of a dynamic output is known after the inference, so it stays in the request's memory until the
 * caller has made room, and is copied then.
 *
 * OpenVINO keeps one tensor for an input that is passed straight on to an output: binding the output would
 * rebind the input, whose run then reads the caller's output and writes nothing (seen with 2025.4.1 and
 * 2026.4.1). Such outputs are found when the context is made and copied from the input.
 *
 * The state of a model (its variables) lives in the request, so it belongs to the load; the C interface
 * cannot clear it, a new request does. A failed run forgets the bindings and keeps request and state.
 */
#include "openvino.h"

#include <inttypes.h>
#include <stdalign.h>
#include <stdio.h>
#include <string.h>

struct binding {
  void *data; /* borrowed; compared, never followed */
  int64_t shape[TANDEM_MAX_RANK];
  enum ov_element element; /* constant */
  bool bound;
  bool constant; /* the shape is */
  bool passed;   /* an output that is an input, */
  size_t source; /* the one of this index */
};

struct context {
  struct ov_compiled_model *model;  /* borrowed from the engine */
  struct ov_infer_request *request; /* owned */
  struct tandem_io *ios;            /* owned: inputs, then outputs */
  struct binding *bindings;         /* owned, likewise */
  size_t input_count, output_count;
  bool dynamic; /* the shape of an input varies */
};

static const struct {
  enum ov_element element;
  int32_t dtype; /* -1: ExecuTorch has none */
  const char *name;
} elements[] = {
    {OV_DYNAMIC, -1, "dynamic"},
    {OV_BOOLEAN, TANDEM_BOOL, "boolean"},
    {OV_BF16, TANDEM_BFLOAT16, "bf16"},
    {OV_F16, TANDEM_FLOAT16, "f16"},
    {OV_F32, TANDEM_FLOAT32, "f32"},
    {OV_F64, TANDEM_FLOAT64, "f64"},
    {OV_I4, -1, "i4"},
    {OV_I8, TANDEM_INT8, "i8"},
    {OV_I16, TANDEM_INT16, "i16"},
    {OV_I32, TANDEM_INT32, "i32"},
    {OV_I64, TANDEM_INT64, "i64"},
    {OV_U1, -1, "u1"},
    {OV_U2, -1, "u2"},
    {OV_U3, -1, "u3"},
    {OV_U4, -1, "u4"},
    {OV_U6, -1, "u6"},
    {OV_U8, TANDEM_UINT8, "u8"},
    {OV_U16, TANDEM_UINT16, "u16"},
    {OV_U32, TANDEM_UINT32, "u32"},
    {OV_U64, TANDEM_UINT64, "u64"},
    {OV_NF4, -1, "nf4"},
    {OV_F8E4M3, TANDEM_FLOAT8_E4M3FN, "f8e4m3"},
    {OV_F8E5M2, TANDEM_FLOAT8_E5M2, "f8e5m2"},
    {OV_STRING, -1, "string"},
    {OV_F4E2M1, -1, "f4e2m1"},
    {OV_F8E8M0, -1, "f8e8m0"},
};

/* OpenVINO refuses a null address, also for a tensor without elements. */
static alignas(64) unsigned char nothing[64];

/* ---------------------------------------------------------------- create */

static const char *side_name(bool output) {
  return output ? "output" : "input";
}

static enum tandem_status read_element(enum ov_element element, const char *side, const char *name,
                                       struct tandem_io *io, struct tandem_error *error) {
  const char *known = NULL;
  for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
    if (elements[i].element == element) {
      known = elements[i].name;
      io->dtype = elements[i].dtype;
    }
  if (known == NULL)
    return td_openvino_host()->fail(error, TANDEM_UNSUPPORTED,
                                    "%s \"%s\" has OpenVINO's element type number %d, which ExecuTorch's "
                                    "tensors do not have",
                                    side, name, (int)element);
  if (io->dtype < 0)
    return td_openvino_host()->fail(error, TANDEM_UNSUPPORTED,
                                    "%s \"%s\" has OpenVINO's element type %s, which ExecuTorch's tensors do "
                                    "not have; convert it in the model",
                                    side, name, known);
  return TANDEM_OK;
}

static enum tandem_status read_shape(const struct ov_partial_shape *shape, const char *side, const char *name,
                                     struct tandem_io *io, bool *constant, struct tandem_error *error) {
  *constant = true;
  if (shape->rank.min != shape->rank.max) {
    io->rank = -1;
    *constant = false;
    return TANDEM_OK;
  }
  if (shape->rank.min < 0 || shape->rank.min > TANDEM_MAX_RANK)
    return td_openvino_host()->fail(error, TANDEM_UNSUPPORTED,
                                    "%s \"%s\" has %" PRId64 " dimensions, at most %d are possible", side,
                                    name, shape->rank.min, TANDEM_MAX_RANK);
  io->rank = (int32_t)shape->rank.min;
  for (int32_t i = 0; i < io->rank; i++) {
    io->min[i] = shape->dims[i].min > 0 ? shape->dims[i].min : 0;
    io->max[i] = shape->dims[i].max >= 0 ? shape->dims[i].max : INT64_MAX;
    *constant = *constant && io->min[i] == io->max[i];
  }
  return TANDEM_OK;
}

/* Fills one io and its binding. On failure what was filled is freed with the context. */
static enum tandem_status read_port(struct context *self, bool output, size_t index,
                                    struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  const char *side = side_name(output);
  size_t slot = output ? self->input_count + index : index;
  struct tandem_io *io = &self->ios[slot];
  struct binding *binding = &self->bindings[slot];
  struct ov_port *port = NULL;
  struct ov_partial_shape shape = {0};
  char *name = NULL, step[64];
  enum tandem_status status = TANDEM_OK;
  snprintf(step, sizeof step, "read %s %zu of the model", side, index);
  int code =
      output ? td_ov.output_port(self->model, index, &port) : td_ov.input_port(self->model, index, &port);
  if (code != OV_OK)
    return td_openvino_fail(error, TANDEM_INTERNAL, code, step);
  /* A port without a name is legal; then its place names it. */
  if (td_ov.port_name(port, &name) != OV_OK)
    name = NULL;
  size_t size = (name != NULL ? strlen(name) : 0) + sizeof "output18446744073709551615";
  char *copy = host->allocate(size);
  if (copy == NULL) {
    status = host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for the name of %s %zu", side, index);
    goto done;
  }
  io->name = copy;
  if (name != NULL)
    snprintf(copy, size, "%s", name);
  else
    snprintf(copy, size, "%s%zu", side, index);
  code = td_ov.port_element(port, &binding->element);
  if (code == OV_OK)
    status = read_element(binding->element, side, io->name, io, error);
  if (code == OV_OK && status == TANDEM_OK)
    code = td_ov.port_shape(port, &shape);
  if (code != OV_OK)
    status = td_openvino_fail(error, TANDEM_INTERNAL, code, step);
  else if (status == TANDEM_OK)
    status = read_shape(&shape, side, io->name, io, &binding->constant, error);
  td_ov.partial_shape_free(&shape);
done:
  if (name != NULL)
    td_ov.text_free(name);
  td_ov.port_free(port);
  return status;
}

/* The smallest shape an input may have, `more` than that in dynamic dimensions; a rank that varies gives 0.
 */
static int32_t smallest_shape(const struct tandem_io *io, int64_t more, int64_t *shape) {
  for (int32_t i = 0; i < io->rank; i++) {
    int64_t least = io->min[i] == io->max[i] || io->min[i] > 0 ? io->min[i] : 1;
    shape[i] = io->max[i] - least > more ? least + more : io->max[i];
  }
  return io->rank > 0 ? io->rank : 0;
}

/* Finds the outputs that are inputs: binds an address to each input and sees whether an output has it then.
 * The address is not followed, and the next run binds every input anew. */
static void find_passed(struct context *self) {
  for (size_t i = 0; i < self->input_count; i++) {
    int64_t shape[TANDEM_MAX_RANK];
    struct ov_tensor *tensor = NULL, *found = NULL;
    int32_t rank = smallest_shape(&self->ios[i], 0, shape);
    if (td_ov.tensor_wrap(self->bindings[i].element, (struct ov_shape){rank, shape}, nothing, &tensor) !=
        OV_OK)
      continue;
    bool bound = td_ov.request_set_input(self->request, i, tensor) == OV_OK;
    td_ov.tensor_free(tensor);
    for (size_t k = 0; bound && k < self->output_count; k++) {
      struct binding *output = &self->bindings[self->input_count + k];
      void *data = NULL;
      if (output->passed || td_ov.request_get_output(self->request, k, &found) != OV_OK)
        continue;
      if (td_ov.tensor_data(found, &data) == OV_OK && data == nothing) {
        output->passed = true;
        output->source = i;
      }
      td_ov.tensor_free(found);
    }
    /* The next input must not be taken for this one. */
    if (bound && td_ov.tensor_wrap(self->bindings[i].element, (struct ov_shape){rank, shape}, nothing + 1,
                                   &tensor) == OV_OK) {
      td_ov.request_set_input(self->request, i, tensor);
      td_ov.tensor_free(tensor);
    }
  }
}

enum tandem_status td_openvino_context_create(void *engine, const struct tandem_context_desc *desc,
                                              void **context, struct tandem_context_io *io,
                                              struct tandem_error *error) {
  (void)desc;
  const struct tandem_host *host = td_openvino_host();
  enum tandem_status status = TANDEM_OK;
  *context = NULL;
  struct context *self = host->allocate(sizeof *self);
  if (self == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for an OpenVINO context");
  self->model = td_openvino_model(engine);
  size_t input_count = 0, output_count = 0;
  int code = td_ov.input_count(self->model, &input_count);
  if (code == OV_OK)
    code = td_ov.output_count(self->model, &output_count);
  if (code != OV_OK) {
    status = td_openvino_fail(error, TANDEM_INTERNAL, code, "count the model's inputs and outputs");
    goto failed;
  }
  size_t count = input_count + output_count;
  self->ios = host->allocate((count + 1) * sizeof *self->ios);
  self->bindings = host->allocate((count + 1) * sizeof *self->bindings);
  if (self->ios == NULL || self->bindings == NULL) {
    status = host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu inputs and outputs", count);
    goto failed;
  }
  self->input_count = input_count;
  self->output_count = output_count;
  for (size_t i = 0; status == TANDEM_OK && i < count; i++)
    status = read_port(self, i >= input_count, i >= input_count ? i - input_count : i, error);
  if (status != TANDEM_OK)
    goto failed;
  code = td_ov.request_create(self->model, &self->request);
  if (code != OV_OK) {
    self->request = NULL;
    status = td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, "create an infer request");
    goto failed;
  }
  for (size_t i = 0; i < input_count; i++)
    self->dynamic = self->dynamic || !self->bindings[i].constant;
  find_passed(self);
  *io = (struct tandem_context_io){.inputs = self->ios,
                                   .input_count = input_count,
                                   .outputs = self->ios + input_count,
                                   .output_count = output_count};
  *context = self;
  return TANDEM_OK;
failed:
  td_openvino_context_destroy(self);
  return status;
}

void td_openvino_context_destroy(void *context) {
  struct context *self = context;
  const struct tandem_host *host = td_openvino_host();
  if (self == NULL)
    return;
  if (self->request != NULL)
    td_ov.request_free(self->request);
  for (size_t i = 0; i < self->input_count + self->output_count; i++)
    host->release((void *)(uintptr_t)self->ios[i].name);
  host->release(self->bindings);
  host->release(self->ios);
  host->release(self);
}

/* ---------------------------------------------------------------- run */

static void forget_bindings(struct context *self) {
  for (size_t i = 0; i < self->input_count + self->output_count; i++)
    self->bindings[i].bound = false;
}

/* False when the bytes of the shape do not fit in size_t. */
static bool count_bytes(int32_t rank, const int64_t *shape, int32_t dtype, size_t *bytes) {
  *bytes = tandem_dtype_size(dtype);
  for (int32_t i = 0; i < rank; i++)
    if (shape[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)shape[i], bytes))
      return false;
  return true;
}

static void write_shape(int32_t rank, const int64_t *shape, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
  if (used < size)
    snprintf(text + used, size - used, "]");
}

/* Binds the caller's memory to a place of the request, unless it is bound to it already. */
static enum tandem_status bind(struct context *self, bool output, size_t index, void *data, int32_t rank,
                               const int64_t *shape, struct tandem_error *error) {
  struct binding *binding = &self->bindings[output ? self->input_count + index : index];
  size_t shape_size = (size_t)rank * sizeof *shape;
  if (binding->bound && binding->data == data && memcmp(binding->shape, shape, shape_size) == 0)
    return TANDEM_OK;
  char step[64];
  struct ov_tensor *tensor = NULL;
  int64_t dims[TANDEM_MAX_RANK];
  memcpy(dims, shape, shape_size);
  binding->bound = false;
  int code =
      td_ov.tensor_wrap(binding->element, (struct ov_shape){.rank = rank, .dims = dims}, data, &tensor);
  if (code == OV_OK) {
    code = output ? td_ov.request_set_output(self->request, index, tensor)
                  : td_ov.request_set_input(self->request, index, tensor);
    td_ov.tensor_free(tensor);
  }
  if (code != OV_OK) {
    snprintf(step, sizeof step, "bind %s %zu", side_name(output), index);
    return td_openvino_fail(error, TANDEM_INVALID_ARGUMENT, code, step);
  }
  binding->data = data;
  memcpy(binding->shape, shape, shape_size);
  binding->bound = true;
  return TANDEM_OK;
}

/* Gives an output its real shape and makes sure of room for it; *bytes is what will be written. */
static enum tandem_status make_room(const struct tandem_run_desc *desc, size_t index,
                                    const struct tandem_io *io, int32_t rank, const int64_t *shape,
                                    size_t *bytes, struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  struct tandem_tensor *tensor = &desc->outputs[index];
  size_t shape_size = (size_t)rank * sizeof *shape;
  char text[256];
  if (tensor->dtype != io->dtype)
    return host->fail(error, TANDEM_INVALID_ARGUMENT, "output %zu \"%s\" is %s, the caller's tensor is %s",
                      index, io->name, tandem_dtype_name(io->dtype), tandem_dtype_name(tensor->dtype));
  write_shape(rank, shape, text, sizeof text);
  if (!count_bytes(rank, shape, io->dtype, bytes))
    return host->fail(error, TANDEM_OUT_OF_MEMORY,
                      "output %zu \"%s\" has shape %s, more bytes than there are", index, io->name, text);
  bool same = tensor->rank == rank && memcmp(tensor->shape, shape, shape_size) == 0;
  tensor->rank = rank;
  memcpy(tensor->shape, shape, shape_size);
  bool room = tensor->size >= *bytes && (tensor->data != NULL || *bytes == 0);
  if ((!same || !room) && desc->resize != NULL) {
    enum tandem_status status = desc->resize(desc->resize_user, index, tensor);
    if (status != TANDEM_OK)
      return host->fail(error, status,
                        "output %zu \"%s\" has shape %s, which the caller's tensor cannot take", index,
                        io->name, text);
    room = tensor->size >= *bytes && (tensor->data != NULL || *bytes == 0);
  }
  if (!room)
    return host->fail(error, TANDEM_INVALID_ARGUMENT,
                      "output %zu \"%s\" has shape %s, %zu bytes, the caller's tensor has room for %zu",
                      index, io->name, text, *bytes, tensor->data != NULL ? tensor->size : 0);
  return TANDEM_OK;
}

/* Copies a dynamic output from the request's memory to the caller's. */
static enum tandem_status fetch_output(struct context *self, size_t index, const struct tandem_run_desc *desc,
                                       struct tandem_error *error) {
  const struct tandem_io *io = &self->ios[self->input_count + index];
  enum tandem_status status;
  struct ov_tensor *tensor = NULL;
  struct ov_shape shape = {0};
  void *data = NULL;
  size_t bytes;
  char step[64];
  snprintf(step, sizeof step, "read output %zu", index);
  int code = td_ov.request_get_output(self->request, index, &tensor);
  if (code != OV_OK)
    return td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, step);
  code = td_ov.tensor_shape(tensor, &shape);
  if (code != OV_OK) {
    status = td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, step);
    goto done;
  }
  if (shape.rank < 0 || shape.rank > TANDEM_MAX_RANK) {
    status = td_openvino_host()->fail(error, TANDEM_UNSUPPORTED,
                                      "output %zu \"%s\" has %" PRId64 " dimensions, at most %d are possible",
                                      index, io->name, shape.rank, TANDEM_MAX_RANK);
    goto done;
  }
  status = make_room(desc, index, io, (int32_t)shape.rank, shape.dims, &bytes, error);
  if (status != TANDEM_OK || bytes == 0)
    goto done;
  code = td_ov.tensor_data(tensor, &data);
  if (code != OV_OK || data == NULL) {
    status = td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, step);
    goto done;
  }
  memcpy(desc->outputs[index].data, data, bytes);
done:
  if (shape.dims != NULL)
    td_ov.shape_free(&shape);
  td_ov.tensor_free(tensor);
  return status;
}

/* Writes an output that is an input. */
static enum tandem_status pass_input(struct context *self, size_t index, const struct tandem_run_desc *desc,
                                     struct tandem_error *error) {
  const struct tandem_tensor *input = &desc->inputs[self->bindings[self->input_count + index].source];
  size_t bytes;
  enum tandem_status status =
      make_room(desc, index, &self->ios[self->input_count + index], input->rank, input->shape, &bytes, error);
  if (status == TANDEM_OK && bytes > 0)
    memmove(desc->outputs[index].data, input->data, bytes);
  return status;
}

/* After a run that failed for want of memory OpenVINO goes on asking for that memory in every run, of every
 * request of the model, whose shape is the one of the run before; another shape ends that (2025.4.1 and
 * 2026.4.1). So two of the smallest runs, of two shapes, in a request of their own, which has no state of
 * ours. Best effort: their failure is not told, the next run tells its own. */
static void settle(struct context *self) {
  const struct tandem_host *host = td_openvino_host();
  struct ov_infer_request *request = NULL;
  if (!self->dynamic || td_ov.request_create(self->model, &request) != OV_OK)
    return;
  void **zeros = host->allocate((self->input_count + 1) * sizeof *zeros);
  for (int64_t more = 0; zeros != NULL && more < 2; more++) {
    bool bound = true;
    for (size_t i = 0; bound && i < self->input_count; i++) {
      int64_t shape[TANDEM_MAX_RANK];
      struct ov_tensor *tensor = NULL;
      size_t bytes;
      int32_t rank = smallest_shape(&self->ios[i], more, shape);
      bound = count_bytes(rank, shape, self->ios[i].dtype, &bytes) &&
              (zeros[i] = host->allocate(bytes)) != NULL &&
              td_ov.tensor_wrap(self->bindings[i].element, (struct ov_shape){rank, shape}, zeros[i],
                                &tensor) == OV_OK;
      if (bound) {
        bound = td_ov.request_set_input(request, i, tensor) == OV_OK;
        td_ov.tensor_free(tensor);
      }
    }
    if (bound)
      td_ov.request_infer(request);
    for (size_t i = 0; i < self->input_count; i++) {
      host->release(zeros[i]);
      zeros[i] = NULL;
    }
  }
  host->release(zeros);
  td_ov.request_free(request);
}

enum tandem_status td_openvino_run(void *context, const struct tandem_run_desc *desc,
                                   struct tandem_error *error) {
  struct context *self = context;
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++) {
    const struct tandem_tensor *tensor = &desc->inputs[i];
    status = bind(self, false, i, tensor->data != NULL ? tensor->data : nothing, tensor->rank, tensor->shape,
                  error);
  }
  for (size_t i = 0; status == TANDEM_OK && i < self->output_count; i++) {
    const struct tandem_io *io = &self->ios[self->input_count + i];
    const struct binding *binding = &self->bindings[self->input_count + i];
    size_t bytes;
    if (!binding->constant || binding->passed)
      continue;
    status = make_room(desc, i, io, io->rank, io->min, &bytes, error);
    if (status == TANDEM_OK && bytes > 0)
      status = bind(self, true, i, desc->outputs[i].data, io->rank, io->min, error);
  }
  if (status == TANDEM_OK) {
    int code = td_ov.request_infer(self->request);
    if (code != OV_OK) {
      status = td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, "run the model");
      settle(self);
    }
  }
  for (size_t i = 0; status == TANDEM_OK && i < self->output_count; i++) {
    const struct binding *binding = &self->bindings[self->input_count + i];
    if (binding->passed)
      status = pass_input(self, i, desc, error);
    else if (!binding->constant)
      status = fetch_output(self, i, desc, error);
  }
  if (status != TANDEM_OK)
    forget_bindings(self);
  return status;
}

enum tandem_status td_openvino_reset(void *context, struct tandem_error *error) {
  struct context *self = context;
  struct ov_infer_request *fresh = NULL;
  int code = td_ov.request_create(self->model, &fresh);
  if (code != OV_OK)
    return td_openvino_fail(error, TANDEM_DEVICE_ERROR, code,
                            "create a new infer request to clear its state");
  td_ov.request_free(self->request);
  self->request = fresh;
  forget_bindings(self);
  return TANDEM_OK;
}
