/* A context: a container of its own that borrows the engine's weights, with copies of what runs write to.
 *
 * Not one of several runners of the engine's container: those wait for one another when all are busy, and
 * share handles whose counts are not atomic in ExecuTorch's shims. A container without weights costs next to
 * nothing (0.1 ms, no memory that grows with the model), and its one runner runs on the calling thread.
 *
 * Inputs are read in place on the CPU. Outputs are the program's own tensors and are copied: where they lie
 * is decided by compiled code, which cannot be given memory to write to.
 */
#include "aotinductor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a tensor without elements points to. */
static char nothing[TD_AOTI_ALIGNMENT] __attribute__((aligned(TD_AOTI_ALIGNMENT)));

/* ---------------------------------------------------------------- create */

/* Handles of the context's constants: the engine's, or the copy where runs write. */
static enum tandem_status make_constants(struct td_aoti_context *self, struct aoti_pair *pairs,
                                         struct tandem_error *error) {
  const struct td_aoti_engine *engine = self->engine;
  char *at = self->state.memory;
  for (size_t i = 0; i < engine->constant_count; i++) {
    const struct td_aoti_constant *constant = &engine->constants[i];
    void *data = constant->mutable ? at : (void *)(uintptr_t)constant->data;
    if (constant->mutable)
      at += td_aoti_room(constant);
    int32_t index = constant->device_type == engine->device_type ? engine->device_index : 0;
    if (td_aoti.tensor.create_tensor(data != NULL ? data : nothing, constant->rank, constant->sizes,
                                     constant->strides, constant->offset, constant->dtype,
                                     constant->device_type, index, &self->constants[i], constant->layout,
                                     constant->metadata, (int64_t)constant->metadata_size) != 0) {
      self->constants[i] = NULL;
      return td_aoti_fail(engine, TANDEM_BAD_PROGRAM, error, "make a tensor of constant %s", constant->fqn);
    }
    pairs[i] = (struct aoti_pair){.name = constant->name, .tensor = self->constants[i]};
  }
  return TANDEM_OK;
}

static enum tandem_status make_container(struct td_aoti_context *self, struct tandem_error *error) {
  const struct td_aoti_engine *engine = self->engine;
  const struct tandem_host *host = td_aoti_host();
  enum tandem_status status;
  if (engine->api.create(&self->container, 1, engine->device, NULL) != 0) {
    self->container = NULL;
    return td_aoti_fail(engine, TANDEM_DEVICE_ERROR, error, "start the program on %s", engine->device);
  }
  self->constants = host->allocate((engine->constant_count + 1) * sizeof(struct aoti_tensor *));
  struct aoti_pair *pairs = host->allocate((engine->constant_count + 1) * sizeof *pairs);
  if (self->constants == NULL || pairs == NULL) {
    status = host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu constants", engine->constant_count);
    goto done;
  }
  status = make_constants(self, pairs, error);
  if (status != TANDEM_OK || engine->constant_count == 0)
    goto done;
  struct td_aoti_watch watch = {
      .lend = true, .tensors = self->constants, .tensor_count = engine->constant_count};
  td_aoti_watch(&watch);
  int32_t code = engine->api.set_constants(self->container, pairs, engine->constant_count, false, true);
  td_aoti_watch(NULL);
  if (code != 0)
    status = td_aoti_fail(engine, TANDEM_BAD_PROGRAM, error, "give the program its %zu constants",
                          engine->constant_count);
done:
  host->release(pairs);
  return status;
}

static char *copy_text(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = td_aoti_host()->allocate(size);
  return copy != NULL ? memcpy(copy, text, size) : NULL;
}

/* One side's inputs or outputs: as the program tells them, else names alone. */
static enum tandem_status make_ios(struct td_aoti_context *self, bool output, const struct tandem_io *told,
                                   struct tandem_error *error) {
  const struct aoti_engine_api *api = &self->engine->api;
  size_t count = output ? self->output_count : self->input_count;
  struct tandem_io *ios = output ? self->ios + self->input_count : self->ios;
  for (size_t i = 0; i < count; i++) {
    const char *name = NULL;
    if (told != NULL)
      ios[i] = told[i];
    else if ((output ? api->output_name : api->input_name)(self->container, i, &name) != 0)
      return td_aoti_fail(self->engine, TANDEM_BAD_PROGRAM, error, "read the name of %s %zu",
                          output ? "output" : "input", i);
    else
      ios[i] = (struct tandem_io){.name = name, .dtype = -1, .rank = -1};
    ios[i].name = copy_text(ios[i].name);
    if (ios[i].name == NULL)
      return td_aoti_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for the names of a program");
  }
  return TANDEM_OK;
}

static enum tandem_status read_ios(struct td_aoti_context *self, const struct td_aoti_program *program,
                                   struct tandem_error *error) {
  const struct aoti_engine_api *api = &self->engine->api;
  const struct tandem_host *host = td_aoti_host();
  size_t inputs = 0, outputs = 0;
  if (api->input_count(self->container, &inputs) != 0 || api->output_count(self->container, &outputs) != 0)
    return td_aoti_fail(self->engine, TANDEM_BAD_PROGRAM, error, "count the program's inputs and outputs");
  if (program->inputs != NULL && (inputs != program->input_count || outputs != program->output_count))
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the program tells %zu inputs and %zu outputs, its library has %zu and %zu; export it "
                      "again",
                      program->input_count, program->output_count, inputs, outputs);
  self->ios = host->allocate((inputs + outputs + 1) * sizeof *self->ios);
  self->handles = host->allocate((inputs + outputs + 1) * sizeof(struct aoti_tensor *));
  if (self->ios == NULL || self->handles == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu inputs and outputs", inputs + outputs);
  self->input_count = inputs;
  self->output_count = outputs;
  enum tandem_status status = make_ios(self, false, program->inputs, error);
  return status == TANDEM_OK ? make_ios(self, true, program->outputs, error) : status;
}

enum tandem_status td_aoti_context_create(void *engine, const struct tandem_context_desc *desc,
                                          void **context, struct tandem_context_io *io,
                                          struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  struct td_aoti_engine *base = engine;
  *context = NULL;
  struct td_aoti_context *self = host->allocate(sizeof *self);
  if (self == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for an AOTInductor context");
  self->engine = base;
  self->share_scratch = desc->share_scratch;
  self->cuda_graph = desc->cuda_graph;
  enum tandem_status status = td_aoti_cuda_enter(base->cuda, error);
  if (status == TANDEM_OK) {
    if ((status = td_aoti_state_init(base, &self->state, error)) == TANDEM_OK &&
        (status = make_container(self, error)) == TANDEM_OK &&
        (status = read_ios(self, desc->payload->state, error)) == TANDEM_OK && base->cuda != NULL)
      status = td_aoti_cuda_context_init(self, error);
    td_aoti_cuda_leave(base->cuda);
  }
  if (status != TANDEM_OK) {
    td_aoti_context_destroy(self);
    return status;
  }
  *io = (struct tandem_context_io){.inputs = self->ios,
                                   .input_count = self->input_count,
                                   .outputs = self->ios + self->input_count,
                                   .output_count = self->output_count};
  *context = self;
  return TANDEM_OK;
}

static void destroy_container(struct td_aoti_context *self) {
  const struct td_aoti_engine *engine = self->engine;
  if (self->container == NULL)
    return;
  /* A library that frees what it was lent has done our work. */
  struct td_aoti_watch watch = {.tensors = self->constants,
                                .tensor_count = self->constants != NULL ? engine->constant_count : 0,
                                .modules = engine->modules};
  td_aoti_watch(&watch);
  engine->api.destroy(self->container);
  td_aoti_watch(NULL);
}

void td_aoti_context_destroy(void *context) {
  struct td_aoti_context *self = context;
  const struct tandem_host *host = td_aoti_host();
  if (self == NULL)
    return;
  /* Else the device is lost with all that is on it, and the container is not called again. */
  bool entered = td_aoti_cuda_enter(self->engine->cuda, NULL) == TANDEM_OK;
  if (entered && self->cuda != NULL)
    td_aoti_cuda_settle(self, NULL);
  if (self->cuda != NULL)
    td_aoti_cuda_context_fini(self);
  if (entered)
    destroy_container(self);
  for (size_t i = 0; self->constants != NULL && i < self->engine->constant_count; i++)
    if (self->constants[i] != NULL)
      td_aoti.tensor.delete_tensor(self->constants[i]);
  if (entered) {
    td_aoti_state_fini(self->engine, &self->state);
    td_aoti_cuda_leave(self->engine->cuda);
  }
  for (size_t i = 0; self->ios != NULL && i < self->input_count + self->output_count; i++)
    host->release((void *)(uintptr_t)self->ios[i].name);
  host->release(self->ios);
  host->release(self->handles);
  host->release(self->constants);
  host->release(self);
}

/* ---------------------------------------------------------------- run */

/* Of a shape without gaps, last dimension fastest. The bytes of the shape do not wrap, so neither do these.
 */
static void fill_strides(int32_t rank, const int64_t *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int32_t d = rank - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= shape[d] > 0 ? shape[d] : 1;
  }
}

enum tandem_status td_aoti_invoke(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                  void *const *data, void *stream, struct tandem_error *error) {
  const struct td_aoti_engine *engine = self->engine;
  struct aoti_tensor **inputs = self->handles, **outputs = self->handles + self->input_count;
  int64_t strides[TANDEM_MAX_RANK];
  size_t made = 0;
  int32_t code = 0;
  while (code == 0 && made < self->input_count) {
    const struct tandem_tensor *tensor = &desc->inputs[made];
    void *memory = data[made] != NULL ? data[made] : nothing;
    fill_strides(tensor->rank, tensor->shape, strides);
    code = td_aoti.tensor.create_tensor(memory, tensor->rank, tensor->shape, strides, 0, tensor->dtype,
                                        engine->device_type, engine->device_index, &inputs[made],
                                        AOTI_LAYOUT_STRIDED, NULL, 0);
    made += code == 0;
  }
  memset(outputs, 0, self->output_count * sizeof(struct aoti_tensor *));
  if (code == 0) {
    struct td_aoti_watch watch = {.modules = engine->modules};
    td_aoti_watch(&watch);
    code = engine->api.run(self->container, inputs, self->input_count, outputs, self->output_count, stream,
                           NULL);
    td_aoti_watch(NULL);
  }
  if (code == 0) {
    self->ran = true;
    return TANDEM_OK;
  }
  /* A run that takes the inputs over clears their handles; a failing one may not have come to that. */
  enum tandem_status status = td_aoti_fail(engine, TANDEM_DEVICE_ERROR, error, "run the program");
  for (size_t i = 0; i < made; i++)
    if (inputs[i] != NULL)
      td_aoti.tensor.delete_tensor(inputs[i]);
  td_aoti_drop_outputs(self);
  return status;
}

void td_aoti_drop_outputs(struct td_aoti_context *self) {
  struct aoti_tensor **outputs = self->handles + self->input_count;
  for (size_t i = 0; i < self->output_count; i++) {
    if (outputs[i] != NULL)
      td_aoti.tensor.delete_tensor(outputs[i]);
    outputs[i] = NULL;
  }
}

/* False when the bytes of the shape do not fit in size_t. */
static bool count_bytes(int32_t rank, const int64_t *shape, int32_t dtype, size_t *bytes) {
  *bytes = tandem_dtype_size(dtype);
  for (int32_t i = 0; i < rank; i++)
    if (shape[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)shape[i], bytes))
      return false;
  return true;
}

static bool is_contiguous(int32_t rank, const int64_t *shape, const int64_t *strides) {
  int64_t expected[TANDEM_MAX_RANK];
  fill_strides(rank, shape, expected);
  for (int32_t d = 0; d < rank; d++)
    if (shape[d] > 1 && strides[d] != expected[d])
      return false;
  return true;
}

enum tandem_status td_aoti_result(struct td_aoti_context *self, size_t index, struct td_aoti_result *result,
                                  struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  const struct tandem_io *io = &self->ios[self->input_count + index];
  struct aoti_tensor *tensor = self->handles[self->input_count + index];
  int64_t rank = 0, *sizes = NULL, *strides = NULL;
  int32_t dtype = -1;
  void *data = NULL;
  if (tensor == NULL || td_aoti.tensor.tensor_rank(tensor, &rank) != 0 ||
      td_aoti.tensor.tensor_sizes(tensor, &sizes) != 0 ||
      td_aoti.tensor.tensor_strides(tensor, &strides) != 0 ||
      td_aoti.tensor.tensor_dtype(tensor, &dtype) != 0 || td_aoti.tensor.tensor_data(tensor, &data) != 0)
    return td_aoti_fail(self->engine, TANDEM_DEVICE_ERROR, error, "read output %zu \"%s\"", index, io->name);
  if (rank < 0 || rank > TANDEM_MAX_RANK)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "output %zu \"%s\" has %" PRId64 " dimensions, at most %d are possible", index,
                      io->name, rank, TANDEM_MAX_RANK);
  if (io->dtype >= 0 && dtype != io->dtype)
    return host->fail(error, TANDEM_BAD_PROGRAM, "output %zu \"%s\" came as %s, the program tells %s", index,
                      io->name, tandem_dtype_name(dtype), tandem_dtype_name(io->dtype));
  *result = (struct td_aoti_result){.data = data, .dtype = dtype, .rank = (int32_t)rank};
  memcpy(result->shape, sizes, (size_t)rank * sizeof *sizes);
  if (tandem_dtype_size(dtype) == 0 || !count_bytes(result->rank, sizes, dtype, &result->size))
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "output %zu \"%s\" has dtype %d or a shape that tandem has not", index, io->name,
                      dtype);
  if (result->size > 0 && !is_contiguous(result->rank, sizes, strides))
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "output %zu \"%s\" is not contiguous: let the model return .contiguous() of it, as "
                      "tandem.export does, and export it again",
                      index, io->name);
  return TANDEM_OK;
}

static void write_shape(const struct td_aoti_result *result, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < result->rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", result->shape[i]);
  if (used < size)
    snprintf(text + used, size - used, "]");
}

static bool has_room(const struct tandem_tensor *tensor, size_t bytes) {
  return bytes == 0 || (tensor->data != NULL && tensor->size >= bytes);
}

enum tandem_status td_aoti_make_room(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                     size_t index, const struct td_aoti_result *result,
                                     struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  const struct tandem_io *io = &self->ios[self->input_count + index];
  struct tandem_tensor *tensor = &desc->outputs[index];
  size_t shape_size = (size_t)result->rank * sizeof *result->shape;
  char text[400];
  if (tensor->dtype != result->dtype)
    return host->fail(error, TANDEM_INVALID_ARGUMENT, "output %zu \"%s\" is %s, the caller's tensor is %s",
                      index, io->name, tandem_dtype_name(result->dtype), tandem_dtype_name(tensor->dtype));
  write_shape(result, text, sizeof text);
  bool same = tensor->rank == result->rank && memcmp(tensor->shape, result->shape, shape_size) == 0;
  tensor->rank = result->rank;
  memcpy(tensor->shape, result->shape, shape_size);
  if ((!same || !has_room(tensor, result->size)) && desc->resize != NULL) {
    enum tandem_status status = desc->resize(desc->resize_user, index, tensor);
    if (status != TANDEM_OK)
      return host->fail(error, status,
                        "output %zu \"%s\" has shape %s, which the caller's tensor cannot take", index,
                        io->name, text);
  }
  if (!has_room(tensor, result->size))
    return host->fail(error, TANDEM_INVALID_ARGUMENT,
                      "output %zu \"%s\" has shape %s, %zu bytes, the caller's tensor has room for %zu",
                      index, io->name, text, result->size, tensor->data != NULL ? tensor->size : 0);
  return TANDEM_OK;
}

static enum tandem_status run_on_host(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                      struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  struct td_aoti_result result;
  enum tandem_status status;
  if (desc->stream != NULL || desc->return_early)
    return host->fail(error, TANDEM_INVALID_ARGUMENT,
                      "the run has a stream or asks to return early, but the program runs on the CPU");
  void **data = host->allocate((self->input_count + 1) * sizeof *data);
  if (data == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu inputs", self->input_count);
  for (size_t i = 0; i < self->input_count; i++)
    data[i] = desc->inputs[i].data;
  td_aoti_note_run();
  status = td_aoti_invoke(self, desc, data, NULL, error);
  for (size_t i = 0; status == TANDEM_OK && i < self->output_count; i++) {
    status = td_aoti_result(self, i, &result, error);
    if (status == TANDEM_OK)
      status = td_aoti_make_room(self, desc, i, &result, error);
    if (status == TANDEM_OK && result.size > 0)
      memcpy(desc->outputs[i].data, result.data, result.size);
  }
  td_aoti_drop_outputs(self);
  host->release(data);
  return status;
}

enum tandem_status td_aoti_run(void *context, const struct tandem_run_desc *desc,
                               struct tandem_error *error) {
  struct td_aoti_context *self = context;
  if (self->engine->cuda == NULL)
    return run_on_host(self, desc, error);
  enum tandem_status status = td_aoti_cuda_enter(self->engine->cuda, error);
  if (status == TANDEM_OK) {
    status = td_aoti_cuda_run(self, desc, error);
    td_aoti_cuda_leave(self->engine->cuda);
  }
  return status;
}

enum tandem_status td_aoti_reset(void *context, struct tandem_error *error) {
  struct td_aoti_context *self = context;
  enum tandem_status status = td_aoti_cuda_enter(self->engine->cuda, error);
  if (status != TANDEM_OK)
    return status;
  if (self->cuda != NULL)
    status = td_aoti_cuda_settle(self, error);
  if (status == TANDEM_OK)
    status = td_aoti_state_clear(self->engine, &self->state, error);
  td_aoti_cuda_leave(self->engine->cuda);
  return status;
}
