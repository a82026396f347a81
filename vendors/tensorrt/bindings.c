/* The inputs and outputs of a context: their names, order, types, bounds and aliases, read once when it is
 * created.
 *
 * Names and order are the payload's where it has them, the engine's otherwise. Nothing of the payload is
 * believed: what it says is compared with the engine, and a program that contradicts its engine is refused
 * before a run could bind a tensor to the wrong place.
 *
 * What an engine writes in place it writes also when the program does not say so, so the engine's aliases
 * count too. Libraries that cannot be asked for them leave it to the shapes, which then have to be the same.
 *
 * Everything made here is the context's, also after a failure: td_trt_context_destroy frees it.
 */
#include "context.h"

#include <string.h>

#define ABSENT SIZE_MAX

static size_t find_tensor(const struct td_trt_context *self, const char *name, bool output) {
  size_t begin = output ? self->input_count : 0, end = output ? self->tensor_count : self->input_count;
  for (size_t i = begin; i < end; i++)
    if (self->tensors[i].name != NULL && strcmp(self->tensors[i].name, name) == 0)
      return i;
  return ABSENT;
}

static enum tandem_status read_bounds(struct td_trt_context *self, size_t index, struct tandem_io *io,
                                      const struct td_trt_dims *dims, struct tandem_error *error) {
  const struct td_trt_tensor *tensor = &self->tensors[index];
  for (int32_t p = 0; p < self->engine->profile_count; p++) {
    struct td_trt_bound *bound = &self->bounds[(size_t)p * self->input_count + index];
    struct td_trt_dims min = *dims, max = *dims;
    if (tensor->dynamic) {
      min = td_trt_engine_profile_shape(self->engine->engine, tensor->name, p, TD_TRT_PROFILE_MIN);
      max = td_trt_engine_profile_shape(self->engine->engine, tensor->name, p, TD_TRT_PROFILE_MAX);
    }
    if (min.rank != dims->rank || max.rank != dims->rank)
      return td_trt_host()->fail(
          error, TANDEM_BAD_PROGRAM,
          "input %zu (%s) has %d dimensions, optimization profile %d gives bounds of %d for it",
          tensor->memory.number, tensor->name, dims->rank, p, min.rank);
    bool taken = self->any_profile || p == self->profile,
         first = p == (self->any_profile ? 0 : self->profile);
    for (int32_t d = 0; d < dims->rank; d++) {
      bound->min[d] = min.d[d];
      bound->max[d] = max.d[d];
      if (taken && (first || min.d[d] < io->min[d]))
        io->min[d] = min.d[d];
      if (taken && (first || max.d[d] > io->max[d]))
        io->max[d] = max.d[d];
    }
  }
  return TANDEM_OK;
}

/* Fills one tensor and its io. On failure what was filled is freed with the context. */
static enum tandem_status read_tensor(struct td_trt_context *self, size_t index, const char *name,
                                      struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  struct td_trt_tensor *tensor = &self->tensors[index];
  struct tandem_io *io = &self->ios[index];
  void *engine = self->engine->engine;
  tensor->output = index >= self->input_count;
  tensor->memory.side = tensor->output ? "output" : "input";
  tensor->memory.number = tensor->output ? index - self->input_count : index;
  tensor->name = host->allocate(strlen(name) + 1);
  if (tensor->name == NULL)
    return td_trt_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the name of a tensor");
  memcpy(tensor->name, name, strlen(name) + 1);
  io->name = tensor->memory.name = tensor->name;
  int32_t dtype = td_trt_engine_dtype(engine, name);
  io->dtype = td_trt_dtype(dtype);
  if (io->dtype < 0)
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "%s %zu (%s) has TensorRT's type %s, which ExecuTorch's tensors do not have; convert it in the "
        "model",
        tensor->memory.side, tensor->memory.number, name, td_trt_dtype_name(dtype));
  tensor->element = tandem_dtype_size(io->dtype);
  int32_t format = td_trt_engine_format(engine, name);
  if (format != TD_TRT_LINEAR)
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "%s %zu (%s) has TensorRT's memory format %d, only the linear one (0) is possible; export it with "
        "contiguous inputs and outputs",
        tensor->memory.side, tensor->memory.number, name, format);
  tensor->on_host = td_trt_engine_location(engine, name) == TD_TRT_ON_HOST;
  tensor->dims.rank = -1;
  struct td_trt_dims dims = td_trt_engine_shape(engine, name);
  if (dims.rank < 0 || dims.rank > TD_TRT_MAX_RANK)
    return host->fail(error, TANDEM_UNSUPPORTED, "%s %zu (%s) has %d dimensions, 0 to %d are possible",
                      tensor->memory.side, tensor->memory.number, name, dims.rank, TD_TRT_MAX_RANK);
  io->rank = dims.rank;
  for (int32_t d = 0; d < dims.rank; d++) {
    tensor->dynamic = tensor->dynamic || dims.d[d] < 0;
    io->min[d] = dims.d[d] < 0 ? 0 : dims.d[d];
    io->max[d] = dims.d[d] < 0 ? INT64_MAX : dims.d[d];
  }
  if (!tensor->output)
    return read_bounds(self, index, io, &dims, error);
  if (!tensor->dynamic)
    tensor->dims = dims;
  return TANDEM_OK;
}

/* Names and order of the payload when it has them, checked against the engine; else the engine's. */
static enum tandem_status read_tensors(struct td_trt_context *self, const struct td_trt_payload *payload,
                                       struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  void *engine = self->engine->engine;
  enum tandem_status status = TANDEM_OK;
  int32_t listed = td_trt_engine_io_count(engine);
  size_t count = listed > 0 ? (size_t)listed : 0, input_count = 0;
  for (size_t i = 0; i < count; i++) {
    const char *name = td_trt_engine_io_name(engine, (int32_t)i);
    if (name == NULL)
      return host->fail(error, TANDEM_INTERNAL, "TensorRT does not name input or output %zu of %zu", i,
                        count);
    input_count += td_trt_engine_mode(engine, name) == TD_TRT_MODE_INPUT;
  }
  if (payload->bindings != NULL && payload->binding_count != count)
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program's io_bindings names %zu inputs and outputs, its engine has %zu; export it again",
        payload->binding_count, count);
  self->ios = host->allocate((count + 1) * sizeof *self->ios);
  self->tensors = host->allocate((count + 1) * sizeof *self->tensors);
  self->allocators = host->allocate((count - input_count + 1) * sizeof *self->allocators);
  self->bounds =
      host->allocate(((size_t)self->engine->profile_count * input_count + 1) * sizeof *self->bounds);
  self->key = host->allocate((count * (2 + TD_TRT_MAX_RANK) + 4) * sizeof *self->key);
  if (self->ios == NULL || self->tensors == NULL || self->allocators == NULL || self->bounds == NULL ||
      self->key == NULL)
    return td_trt_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for inputs and outputs");
  self->input_count = input_count;
  self->output_count = count - input_count;
  self->tensor_count = count;
  size_t inputs = 0, outputs = 0;
  for (size_t i = 0; status == TANDEM_OK && i < count; i++) {
    const struct td_trt_binding *binding = payload->bindings != NULL ? &payload->bindings[i] : NULL;
    const char *name = binding != NULL ? binding->name : td_trt_engine_io_name(engine, (int32_t)i);
    int32_t mode = td_trt_engine_mode(engine, name);
    if (mode != TD_TRT_MODE_INPUT && mode != TD_TRT_MODE_OUTPUT)
      return host->fail(
          error, TANDEM_BAD_PROGRAM,
          "the program's io_bindings names \"%s\", which its engine does not have; export it again", name);
    bool is_input = mode == TD_TRT_MODE_INPUT;
    if (binding != NULL && binding->is_input != is_input)
      return host->fail(
          error, TANDEM_BAD_PROGRAM,
          "the program's io_bindings says that \"%s\" is an %s, its engine has it as an %s; export it again",
          name, is_input ? "output" : "input", is_input ? "input" : "output");
    size_t index = is_input ? inputs++ : self->input_count + outputs++;
    if (inputs > self->input_count || outputs > self->output_count ||
        find_tensor(self, name, !is_input) != ABSENT)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "the program's io_bindings names \"%s\" twice; export it again", name);
    status = read_tensor(self, index, name, error);
  }
  return status;
}

/* ---------------------------------------------------------------- aliases */

static enum tandem_status set_alias(struct td_trt_context *self, const char *output, const char *input,
                                    bool by_user, struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  void *engine = self->engine->engine;
  size_t to = find_tensor(self, input, false), from = find_tensor(self, output, true);
  if (to == ABSENT || from == ABSENT)
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program's aliased_io names %s \"%s\", which its engine does not have; export it again",
        to == ABSENT ? "input" : "output", to == ABSENT ? input : output);
  struct td_trt_tensor *source = &self->tensors[from], *target = &self->tensors[to];
  if (source->aliased && source->input != to)
    return host->fail(error, TANDEM_BAD_PROGRAM, "the program's aliased_io names output \"%s\" twice",
                      output);
  for (size_t i = self->input_count; i < self->tensor_count; i++)
    if (i != from && self->tensors[i].aliased && self->tensors[i].input == to)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "outputs \"%s\" and \"%s\" both update input \"%s\", expected one output for an "
                        "input; export it again",
                        self->tensors[i].name, output, input);
  const char *engines = TD_TRT_HAS(engine_aliased_input) ? td_trt_engine_aliased_input(engine, output) : NULL;
  if (!by_user && TD_TRT_HAS(engine_aliased_input) && (engines == NULL || strcmp(engines, input) != 0))
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program's aliased_io says that output \"%s\" updates input \"%s\" (kv_cache_update), its "
        "engine says %s%s%s; export it again",
        output, input, engines != NULL ? "\"" : "", engines != NULL ? engines : "no input",
        engines != NULL ? "\"" : "");
  struct td_trt_dims a = td_trt_engine_shape(engine, output), b = td_trt_engine_shape(engine, input);
  bool same = by_user || !TD_TRT_HAS(engine_aliased_input);
  if (same && (!td_trt_dims_same(&a, &b) || self->ios[from].dtype != self->ios[to].dtype)) {
    char text[2][160];
    td_trt_dims_write(&a, text[0], sizeof text[0]);
    td_trt_dims_write(&b, text[1], sizeof text[1]);
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program's aliased_io says that output \"%s\" updates input \"%s\" (%s), but their shapes "
        "are %s %s and %s %s, expected the same; export it again",
        output, input, by_user ? "user" : "kv_cache_update", tandem_dtype_name(self->ios[from].dtype),
        text[0], tandem_dtype_name(self->ios[to].dtype), text[1]);
  }
  if (source->on_host || target->on_host)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "output \"%s\" updates input \"%s\", which lives on the host", output, input);
  if (!source->aliased)
    self->alias_count++;
  source->aliased = target->aliased = true;
  source->input = to;
  source->same = same;
  self->ios[from].updates = (int32_t)to + 1;
  return TANDEM_OK;
}

static enum tandem_status read_aliases(struct td_trt_context *self, const struct td_trt_payload *payload,
                                       struct tandem_error *error) {
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < payload->alias_count; i++)
    status = set_alias(self, payload->aliases[i].output, payload->aliases[i].input,
                       payload->aliases[i].kind == TD_TRT_ALIAS_USER, error);
  /* What the engine does in place it does also when the program does not say so. */
  for (size_t i = self->input_count; status == TANDEM_OK && i < self->tensor_count; i++) {
    const char *input = !self->tensors[i].aliased && TD_TRT_HAS(engine_aliased_input)
                            ? td_trt_engine_aliased_input(self->engine->engine, self->tensors[i].name)
                            : NULL;
    if (input != NULL)
      status = set_alias(self, self->tensors[i].name, input, false, error);
  }
  return status;
}

enum tandem_status td_trt_read_bindings(struct td_trt_context *self, const struct td_trt_payload *payload,
                                        struct tandem_error *error) {
  enum tandem_status status = read_tensors(self, payload, error);
  return status == TANDEM_OK ? read_aliases(self, payload, error) : status;
}
