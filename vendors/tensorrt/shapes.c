/* The shapes of a run: what the library is told of the inputs, and what it tells of the outputs.
 *
 * What it was told last is remembered, so a run with the shapes and values of the run before tells it
 * nothing. A refusal leaves no half of that: td_trt_forget_told, and the next run tells everything.
 *
 * With profile=auto the optimization profile in use stays as long as it takes the shapes, since a switch
 * costs; else the first that does is chosen. The switch is work on the stream, so it comes after the run
 * before. Under a caller's capture none of this is possible: such a run needs shapes that are settled.
 *
 * An output whose shape only the run tells gets an allocator (tensors.c), for good: the library keeps it.
 */
#include "context.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void td_trt_dims_write(const struct td_trt_dims *dims, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < dims->rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", dims->d[i]);
  if (used < size)
    snprintf(text + used, size - used, "]");
}

bool td_trt_dims_same(const struct td_trt_dims *a, const struct td_trt_dims *b) {
  return a->rank == b->rank && a->rank >= 0 && memcmp(a->d, b->d, (size_t)a->rank * sizeof *a->d) == 0;
}

bool td_trt_dims_bytes(const struct td_trt_dims *dims, size_t element, size_t *bytes) {
  *bytes = element;
  for (int32_t i = 0; i < dims->rank; i++)
    if (dims->d[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)dims->d[i], bytes))
      return false;
  return dims->rank >= 0;
}

/* ---------------------------------------------------------------- what the library is told */

void td_trt_forget_told(struct td_trt_context *self) {
  self->settled = self->warm = false;
  self->scratch_address = 0;
  for (size_t i = 0; i < self->tensor_count; i++) {
    self->tensors[i].bound = NULL;
    if (!self->tensors[i].output)
      self->tensors[i].dims.rank = -1;
  }
}

static bool fits(const struct td_trt_context *self, int32_t profile, const struct tandem_run_desc *desc) {
  for (size_t i = 0; i < self->input_count; i++) {
    const struct td_trt_bound *bound = &self->bounds[(size_t)profile * self->input_count + i];
    for (int32_t d = 0; d < desc->inputs[i].rank; d++)
      if (desc->inputs[i].shape[d] < bound->min[d] || desc->inputs[i].shape[d] > bound->max[d])
        return false;
  }
  return true;
}

static enum tandem_status tell_no_profile(struct td_trt_run *run) {
  char text[512] = "";
  size_t used = 0;
  for (size_t i = 0; i < run->self->input_count && used < sizeof text; i++) {
    struct td_trt_dims dims = {.rank = run->cuda.desc->inputs[i].rank};
    memcpy(dims.d, run->cuda.desc->inputs[i].shape, sizeof dims.d);
    char shape[160];
    td_trt_dims_write(&dims, shape, sizeof shape);
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", i > 0 ? ", " : "",
                             run->self->tensors[i].name, shape);
  }
  return td_trt_host()->fail(
      run->cuda.error, TANDEM_INVALID_ARGUMENT,
      "none of the engine's %d optimization profiles takes the input shapes %s together",
      run->self->engine->profile_count, text);
}

static bool has_shape(const struct td_trt_tensor *tensor, const struct tandem_tensor *given) {
  return tensor->dims.rank == given->rank &&
         memcmp(tensor->dims.d, given->shape, (size_t)given->rank * sizeof *given->shape) == 0;
}

/* Option profile=auto: the one in use if it takes the shapes, else the first that does. */
static enum tandem_status switch_profile(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  int32_t chosen = self->profile;
  for (int32_t p = 0; !fits(self, chosen, run->cuda.desc); p++) {
    if (p == self->engine->profile_count)
      return tell_no_profile(run);
    chosen = p;
  }
  if (chosen == self->profile)
    return TANDEM_OK;
  if (run->cuda.captured)
    return td_run_refuse_capture(&run->cuda, "the shapes need another optimization profile");
  int32_t code = td_run_order(&run->cuda);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "wait for the run before", run->cuda.error);
  td_trt_forget_told(self);
  run->cuda.queued = true;
  if (!td_trt_context_set_profile(self->trt, chosen, run->cuda.stream))
    return td_trt_refuse(run, TANDEM_DEVICE_ERROR, "switch the optimization profile");
  self->profile = chosen;
  return TANDEM_OK;
}

/* The engine writes an aliased output over its input, so it may not need more than that has. */
static enum tandem_status check_alias(struct td_trt_run *run, const struct td_trt_tensor *output) {
  const struct td_trt_tensor *input = &run->self->tensors[output->input];
  size_t need, room;
  bool fits = td_trt_dims_bytes(&output->dims, output->element, &need) &&
              td_trt_dims_bytes(&input->dims, input->element, &room) && need <= room;
  if (fits && (!output->same || td_trt_dims_same(&output->dims, &input->dims)))
    return TANDEM_OK;
  char text[2][160];
  td_trt_dims_write(&output->dims, text[0], sizeof text[0]);
  td_trt_dims_write(&input->dims, text[1], sizeof text[1]);
  return td_trt_host()->fail(run->cuda.error, TANDEM_INVALID_ARGUMENT,
                             "output %zu (%s) updates input %zu (%s) in place and has shape %s where that is "
                             "given as %s, expected %s",
                             output->memory.number, output->name, input->memory.number, input->name, text[0],
                             text[1], output->same ? "the same shape" : "no more bytes than the input has");
}

static enum tandem_status infer_shapes(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  if (td_trt_context_infer_shapes(self->trt, 0, NULL) != 0)
    return td_trt_refuse(run, TANDEM_INVALID_ARGUMENT,
                         "infer the shapes of the outputs from those of the inputs");
  self->waits = false;
  for (size_t i = self->input_count; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    if (tensor->dynamic)
      tensor->dims = td_trt_context_shape(self->trt, tensor->name);
    size_t bytes;
    enum tandem_status status;
    if (tensor->dims.rank < 0 || tensor->dims.rank > TD_TRT_MAX_RANK)
      return td_trt_refuse(run, TANDEM_INTERNAL, "tell the rank of an output");
    if (tensor->aliased && (status = check_alias(run, tensor)) != TANDEM_OK)
      return status;
    bool late = !td_trt_dims_bytes(&tensor->dims, tensor->element, &bytes);
    if (late && !tensor->late &&
        !td_trt_context_set_allocator(self->trt, tensor->name, &self->allocators[i - self->input_count].base))
      return td_trt_refuse(run, TANDEM_INTERNAL,
                           "take an allocator for an output whose shape depends on the data");
    if (late && self->graphs != NULL) {
      td_trt_say(TANDEM_LOG_WARNING,
                 "cuda_graph: runs are not recorded: the shape of output %s depends on the data",
                 tensor->name);
      td_graphs_destroy(self->graphs, self->cuda); /* nothing was recorded: this is the first run */
      self->graphs = NULL;
    }
    tensor->late = tensor->late || late;
    self->waits = self->waits || tensor->on_host;
  }
  if (self->leases)
    self->scratch_size = td_trt_context_update_scratch(self->trt);
  self->settled = true;
  return TANDEM_OK;
}

enum tandem_status td_trt_settle_shapes(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  bool same = self->settled && !run->reshaped;
  for (size_t i = 0; same && i < self->input_count; i++)
    same = has_shape(&self->tensors[i], &run->cuda.desc->inputs[i]);
  if (same)
    return run->cuda.captured && !self->warm
               ? td_run_refuse_capture(&run->cuda, "this is the load's first run with these shapes")
               : TANDEM_OK;
  if (run->cuda.captured)
    return td_run_refuse_capture(&run->cuda, "this is the load's first run with these shapes");
  self->settled = self->warm = false;
  enum tandem_status status = self->any_profile ? switch_profile(run) : TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    const struct tandem_tensor *given = &run->cuda.desc->inputs[i];
    if (tensor->on_host && (tensor->bound != tensor->host || tensor->dims.rank < 0)) {
      if (!td_trt_context_set_address(self->trt, tensor->name, tensor->host))
        return td_trt_refuse(run, TANDEM_INVALID_ARGUMENT, "take the values of a shape tensor");
      tensor->bound = tensor->host;
    }
    if (has_shape(tensor, given))
      continue;
    struct td_trt_dims dims = {.rank = given->rank};
    memcpy(dims.d, given->shape, (size_t)given->rank * sizeof *given->shape);
    if (tensor->dynamic && !td_trt_context_set_input_shape(self->trt, tensor->name, &dims))
      return td_trt_refuse(run, TANDEM_INVALID_ARGUMENT, "take the shape of an input");
    tensor->dims = dims;
  }
  return status == TANDEM_OK ? infer_shapes(run) : status;
}
