/* A context: one execution context of the shared engine, its addresses and shapes, and the buffers of a load.
 *
 * What the library was told last is remembered, so a run with the shapes and buffers of the run before tells
 * it nothing: it asks the driver what each pointer is (an address may have become other memory since), leases
 * scratch, enqueues and waits. Everything that can be refused is refused before anything is queued; a run
 * that fails later waits for what it queued, so the caller's buffers are his again when it returns.
 *
 * Memory that the device reaches is bound in place. Other host memory is staged through buffers that stay
 * with the load. An input that an output is aliased to is bound for both and must be device memory: it is
 * updated in place, and a staged copy would be lost. An output whose size depends on the data is written to a
 * buffer of the load, given out while the library runs, and copied when its shape is known. Tensors that live
 * on the host (shape tensors) are copied to memory of the context, so that a change of their values is
 * noticed.
 *
 * Runs of one load are in order also when they return early: the event of a run is waited for by the next
 * one's stream. A stream that the caller is capturing gets what a run enqueues and nothing else, so such a
 * run may neither allocate, copy from the host nor be the first with its shapes; its scratch has to be there,
 * and stays the load's.
 */
#include "tensorrt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EVENT_WITHOUT_TIMES = 2, STREAM_NON_BLOCKING = 1, ALIGNMENT_MAX = 256 };

/* The widest access of a kernel: an address that is no multiple of it is staged. */
enum { ALIGNMENT_MIN = 16 };

#define ABSENT SIZE_MAX

struct tensor {
  char *name;  /* owned */
  size_t side; /* its index among the inputs or the outputs, for messages */
  bool output;
  bool on_host; /* a shape tensor */
  bool dynamic; /* its engine shape has -1 */
  bool late;    /* an output whose shape only the run tells */
  bool aliased; /* an input that is updated in place, or the output that does it */
  size_t input; /* of an aliased output */
  bool same;    /* which has the input's shape in every run: nobody else says that it may differ */
  size_t element;
  struct td_trt_dims dims; /* as the library knows them; rank -1: not told yet */
  void *bound;             /* address that the library knows; NULL: none */
  struct td_cuda_buffer staged;
  void *host; /* owned: values of an on_host tensor */
  size_t host_size;
  /* Of the run under way. */
  struct tandem_tensor *given; /* the caller's output; NULL: left out */
  const void *data;
  size_t bytes;
  struct td_cuda_pointer pointer;
  uint64_t address; /* to bind */
  bool copied;      /* between data and staged */
};

struct allocator {
  struct td_trt_output_allocator base; /* first: the library has its address */
  struct context *context;
  size_t tensor;
  struct td_trt_dims dims; /* rank -1: not told in this run */
  int32_t code;            /* of the driver */
};

struct bound {
  int64_t min[TD_TRT_MAX_RANK], max[TD_TRT_MAX_RANK];
};

struct context {
  struct td_trt_engine *engine; /* shared */
  struct td_cuda_context *cuda; /* the engine's */
  void *trt;                    /* owned, an IExecutionContext */
  struct tandem_io *ios;        /* owned, as tensors */
  struct tensor *tensors;       /* owned: inputs, then outputs */
  struct allocator *allocators; /* owned, as outputs */
  struct bound *bounds;         /* owned: of each profile, of each input */
  size_t input_count, output_count, alias_count;
  int32_t profile; /* the one in use */
  bool any_profile;
  bool settled;        /* the library knows the shapes and has inferred those of the outputs */
  bool warm;           /* a run with these shapes has been done */
  bool waits;          /* an output is known on the host only after the run */
  bool leases;         /* the engine needs scratch for some shape, and this load leases it */
  size_t scratch_size; /* for the shapes in use */
  uint64_t scratch_address;
  size_t scratch_told; /* with scratch_address */
  struct td_scratch scratch;
  struct td_graphs *graphs;
  uint64_t *key; /* owned: room for a graph's key */
  void *event;   /* owned */
  bool flight;   /* a run that returned early may be in flight: its end is the event */
};

struct run {
  struct context *self;
  const struct tandem_run_desc *desc;
  struct tandem_error *error;
  void *stream;
  bool captured; /* by the caller */
  bool reshaped; /* the library was told of other shapes or values */
  bool ordered;  /* what is queued comes after the run before */
  bool queued;   /* something is on the stream */
};

static enum tandem_status no_memory(const char *what, struct tandem_error *error) {
  return td_trt_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for %s", what);
}

static const char *side_name(const struct tensor *tensor) {
  return tensor->output ? "output" : "input";
}

static size_t count_of(const struct context *self) {
  return self->input_count + self->output_count;
}

static void write_dims(const struct td_trt_dims *dims, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < dims->rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? ", " : "", dims->d[i]);
  if (used < size)
    snprintf(text + used, size - used, "]");
}

static bool same_dims(const struct td_trt_dims *a, const struct td_trt_dims *b) {
  return a->rank == b->rank && a->rank >= 0 && memcmp(a->d, b->d, (size_t)a->rank * sizeof *a->d) == 0;
}

/* False when the bytes do not fit in size_t, or a dimension is not known. */
static bool count_bytes(const struct td_trt_dims *dims, size_t element, size_t *bytes) {
  *bytes = element;
  for (int32_t i = 0; i < dims->rank; i++)
    if (dims->d[i] < 0 || __builtin_mul_overflow(*bytes, (size_t)dims->d[i], bytes))
      return false;
  return dims->rank >= 0;
}

/* ---------------------------------------------------------------- create: what the engine says */

static size_t find_tensor(const struct context *self, const char *name, bool output) {
  size_t begin = output ? self->input_count : 0, end = output ? count_of(self) : self->input_count;
  for (size_t i = begin; i < end; i++)
    if (self->tensors[i].name != NULL && strcmp(self->tensors[i].name, name) == 0)
      return i;
  return ABSENT;
}

static enum tandem_status read_bounds(struct context *self, size_t index, struct tandem_io *io,
                                      const struct td_trt_dims *dims, struct tandem_error *error) {
  const struct tensor *tensor = &self->tensors[index];
  for (int32_t p = 0; p < self->engine->profile_count; p++) {
    struct bound *bound = &self->bounds[(size_t)p * self->input_count + index];
    struct td_trt_dims min = *dims, max = *dims;
    if (tensor->dynamic) {
      min = td_trt_engine_profile_shape(self->engine->engine, tensor->name, p, TD_TRT_PROFILE_MIN);
      max = td_trt_engine_profile_shape(self->engine->engine, tensor->name, p, TD_TRT_PROFILE_MAX);
    }
    if (min.rank != dims->rank || max.rank != dims->rank)
      return td_trt_host()->fail(
          error, TANDEM_BAD_PROGRAM,
          "input %zu (%s) has %d dimensions, optimization profile %d gives bounds of %d for it", tensor->side,
          tensor->name, dims->rank, p, min.rank);
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
static enum tandem_status read_tensor(struct context *self, size_t index, const char *name,
                                      struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  struct tensor *tensor = &self->tensors[index];
  struct tandem_io *io = &self->ios[index];
  void *engine = self->engine->engine;
  tensor->output = index >= self->input_count;
  tensor->side = tensor->output ? index - self->input_count : index;
  tensor->name = host->allocate(strlen(name) + 1);
  if (tensor->name == NULL)
    return no_memory("the name of a tensor", error);
  memcpy(tensor->name, name, strlen(name) + 1);
  io->name = tensor->name;
  int32_t dtype = td_trt_engine_dtype(engine, name);
  io->dtype = td_trt_dtype(dtype);
  if (io->dtype < 0)
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "%s %zu (%s) has TensorRT's type %s, which ExecuTorch's tensors do not have; convert it in the "
        "model",
        side_name(tensor), tensor->side, name, td_trt_dtype_name(dtype));
  tensor->element = tandem_dtype_size(io->dtype);
  int32_t format = td_trt_engine_format(engine, name);
  if (format != TD_TRT_LINEAR)
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "%s %zu (%s) has TensorRT's memory format %d, only the linear one (0) is possible; export it with "
        "contiguous inputs and outputs",
        side_name(tensor), tensor->side, name, format);
  tensor->on_host = td_trt_engine_location(engine, name) == TD_TRT_ON_HOST;
  tensor->dims.rank = -1;
  struct td_trt_dims dims = td_trt_engine_shape(engine, name);
  if (dims.rank < 0 || dims.rank > TD_TRT_MAX_RANK)
    return host->fail(error, TANDEM_UNSUPPORTED, "%s %zu (%s) has %d dimensions, 0 to %d are possible",
                      side_name(tensor), tensor->side, name, dims.rank, TD_TRT_MAX_RANK);
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
static enum tandem_status read_tensors(struct context *self, const struct td_trt_payload *payload,
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
    return no_memory("inputs and outputs", error);
  self->input_count = input_count;
  self->output_count = count - input_count;
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

/* ---------------------------------------------------------------- create: aliases */

static enum tandem_status set_alias(struct context *self, const char *output, const char *input, bool by_user,
                                    struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  void *engine = self->engine->engine;
  size_t to = find_tensor(self, input, false), from = find_tensor(self, output, true);
  if (to == ABSENT || from == ABSENT)
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program's aliased_io names %s \"%s\", which its engine does not have; export it again",
        to == ABSENT ? "input" : "output", to == ABSENT ? input : output);
  struct tensor *source = &self->tensors[from], *target = &self->tensors[to];
  if (source->aliased && source->input != to)
    return host->fail(error, TANDEM_BAD_PROGRAM, "the program's aliased_io names output \"%s\" twice",
                      output);
  for (size_t i = self->input_count; i < count_of(self); i++)
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
  if (same && (!same_dims(&a, &b) || self->ios[from].dtype != self->ios[to].dtype)) {
    char text[2][160];
    write_dims(&a, text[0], sizeof text[0]);
    write_dims(&b, text[1], sizeof text[1]);
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

static enum tandem_status read_aliases(struct context *self, const struct td_trt_payload *payload,
                                       struct tandem_error *error) {
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < payload->alias_count; i++)
    status = set_alias(self, payload->aliases[i].output, payload->aliases[i].input,
                       payload->aliases[i].kind == TD_TRT_ALIAS_USER, error);
  /* What the engine does in place it does also when the program does not say so. */
  for (size_t i = self->input_count; status == TANDEM_OK && i < count_of(self); i++) {
    const char *input = !self->tensors[i].aliased && TD_TRT_HAS(engine_aliased_input)
                            ? td_trt_engine_aliased_input(self->engine->engine, self->tensors[i].name)
                            : NULL;
    if (input != NULL)
      status = set_alias(self, self->tensors[i].name, input, false, error);
  }
  return status;
}

/* ---------------------------------------------------------------- create */

static enum tandem_status choose_profile(struct context *self, int32_t asked, struct tandem_error *error) {
  int32_t count = self->engine->profile_count;
  if (asked >= count)
    return td_trt_host()->fail(
        error, TANDEM_BAD_OPTION,
        "option profile is %d, the engine has %d optimization profile%s, the last is %d; choose "
        "one of them or \"auto\"",
        asked, count, count == 1 ? "" : "s", count - 1);
  self->any_profile = asked < 0 && count > 1;
  self->profile = asked < 0 ? 0 : asked;
  return TANDEM_OK;
}

static int64_t engine_scratch(void *engine) {
  return TD_TRT_HAS(engine_scratch) ? td_trt_engine_scratch(engine)
                                    : (int64_t)td_trt_engine_scratch_v1(engine);
}

/* The library chooses profile 0 itself, for the first context at least. On a stream of our own: the caller
 * may be capturing any other. With the capture lock held shared, which is given up for the wait. */
static enum tandem_status set_first_profile(struct context *self, struct tandem_error *error) {
  void *stream = NULL;
  if (td_trt_context_profile(self->trt) == self->profile)
    return TANDEM_OK;
  int32_t code = td_cuda.stream_create(&stream, STREAM_NON_BLOCKING);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "create a stream", error);
  bool set = td_trt_context_set_profile(self->trt, self->profile, stream);
  /* No lock is held while the host's hooks run. */
  td_cuda_capture_unlock();
  td_trt_host()->wait_begin();
  code = td_cuda.stream_wait(stream);
  td_trt_host()->wait_end();
  td_cuda_capture_lock_shared();
  td_cuda.stream_destroy(stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "choose an optimization profile", error);
  if (!set)
    return td_trt_host()->fail(error, TANDEM_DEVICE_ERROR, "TensorRT does not take optimization profile %d",
                               self->profile);
  return TANDEM_OK;
}

static const char *why_no_graphs(const struct context *self) {
  if (self->alias_count > 0)
    return "an output is aliased to an input";
  for (size_t i = 0; i < count_of(self); i++)
    if (self->tensors[i].on_host)
      return "a shape tensor is read or written on the host";
  return NULL;
}

static enum tandem_status make_library_context(struct context *self, const struct tandem_context_desc *desc,
                                               struct tandem_error *error) {
  void *engine = self->engine->engine;
  int64_t scratch = engine_scratch(engine);
  self->leases = desc->share_scratch && scratch > 0;
  self->trt = td_trt_engine_create_context(engine, desc->share_scratch ? TD_TRT_SCRATCH_OF_USER
                                                                       : TD_TRT_SCRATCH_STATIC);
  if (!TD_TRT_LIVE(self->trt)) {
    self->trt = NULL;
    return td_trt_host()->fail(error, TANDEM_DEVICE_ERROR,
                               "TensorRT creates no execution context (scratch %s, %" PRId64
                               " bytes at most)",
                               desc->share_scratch ? "leased" : "its own", scratch);
  }
  int32_t code = td_cuda.event_create(&self->event, EVENT_WITHOUT_TIMES);
  if (code != TD_CUDA_OK) {
    self->event = NULL;
    return td_cuda_fail(self->cuda, code, "create an event", error);
  }
  return set_first_profile(self, error);
}

enum tandem_status td_trt_context_create(void *engine, const struct tandem_context_desc *desc, void **context,
                                         struct tandem_context_io *io, struct tandem_error *error) {
  const struct td_trt_payload *payload = desc->payload->state;
  *context = NULL;
  struct context *self = td_trt_host()->allocate(sizeof *self);
  if (self == NULL)
    return no_memory("a context", error);
  self->engine = engine;
  self->cuda = self->engine->cuda;
  td_scratch_join(self->cuda, &self->scratch);
  td_cuda_capture_lock_shared();
  enum tandem_status status = td_cuda_enter(self->cuda, error);
  if (status == TANDEM_OK) {
    if ((status = choose_profile(self, desc->profile, error)) == TANDEM_OK &&
        (status = read_tensors(self, payload, error)) == TANDEM_OK &&
        (status = read_aliases(self, payload, error)) == TANDEM_OK &&
        (status = make_library_context(self, desc, error)) == TANDEM_OK && desc->cuda_graph)
      self->graphs = td_graphs_create(self->cuda, &td_vendor_tensorrt, why_no_graphs(self));
    td_cuda_leave(self->cuda);
  }
  td_cuda_capture_unlock();
  if (status != TANDEM_OK) {
    td_trt_context_destroy(self);
    return status;
  }
  for (size_t i = 0; i < self->output_count; i++) {
    struct allocator *allocator = &self->allocators[i];
    td_trt_output_allocator_init(&allocator->base);
    allocator->context = self;
    allocator->tensor = self->input_count + i;
  }
  *io = (struct tandem_context_io){.inputs = self->ios,
                                   .input_count = self->input_count,
                                   .outputs = self->ios + self->input_count,
                                   .output_count = self->output_count};
  *context = self;
  return TANDEM_OK;
}

/* Waits for the run that returned early, and for nothing else. Between enter and leave. */
static void await_flight(struct context *self) {
  if (!self->flight)
    return;
  td_trt_host()->wait_begin();
  int32_t code = td_cuda.event_wait(self->event);
  td_trt_host()->wait_end();
  self->flight = false;
  if (code != TD_CUDA_OK)
    td_cuda_fail(self->cuda, code, "wait for the run before", NULL);
}

static void destroy_objects(struct context *self) {
  td_graphs_destroy(self->graphs, self->cuda);
  if (td_cuda_lost(self->cuda))
    return;
  td_trt_delete(self->trt);
  for (size_t i = 0; self->tensors != NULL && i < count_of(self); i++)
    td_cuda_give(self->cuda, &self->tensors[i].staged);
}

void td_trt_context_destroy(void *context) {
  struct context *self = context;
  const struct tandem_host *host = td_trt_host();
  if (self == NULL)
    return;
  bool entered = td_cuda_enter(self->cuda, NULL) == TANDEM_OK;
  if (entered)
    await_flight(self);
  td_cuda_capture_lock_shared();
  if (entered) {
    destroy_objects(self);
  } else {
    td_graphs_destroy(self->graphs, self->cuda);
  }
  td_scratch_leave(self->cuda, &self->scratch);
  if (entered) {
    if (self->event != NULL && !td_cuda_lost(self->cuda))
      td_cuda.event_destroy(self->event);
    td_cuda_leave(self->cuda);
  }
  td_cuda_capture_unlock();
  for (size_t i = 0; self->tensors != NULL && i < count_of(self); i++) {
    host->release(self->tensors[i].name);
    host->release(self->tensors[i].host);
  }
  host->release(self->key);
  host->release(self->bounds);
  host->release(self->allocators);
  host->release(self->tensors);
  host->release(self->ios);
  host->release(self);
}

/* ---------------------------------------------------------------- run: errors */

/* The library may have half of what it was told: the next run tells it everything. */
static void forget_told(struct context *self) {
  self->settled = self->warm = false;
  self->scratch_address = 0;
  for (size_t i = 0; i < count_of(self); i++) {
    self->tensors[i].bound = NULL;
    if (!self->tensors[i].output)
      self->tensors[i].dims.rank = -1;
  }
}

/* The library said no. Its own lines have the reason, unless the device is lost: then no call can succeed. */
static enum tandem_status refuse(struct run *run, enum tandem_status status, const char *step) {
  size_t free_bytes, total_bytes;
  forget_told(run->self);
  int32_t code = run->captured ? TD_CUDA_OK : td_cuda.memory_info(&free_bytes, &total_bytes);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, step, run->error);
  return td_trt_host()->fail(run->error, status, "TensorRT could not %s", step);
}

static enum tandem_status refuse_capture(struct run *run, const char *reason) {
  return td_trt_host()->fail(
      run->error, TANDEM_INVALID_STATE,
      "the stream is being captured and %s; run this load once with the same shapes and buffers "
      "in device memory before the capture",
      reason);
}

/* ---------------------------------------------------------------- run: inputs */

/* Puts what follows after the run before, whatever stream that was on. The same handle may be another stream
 * by now: the per-thread stream has one for all threads, and a destroyed stream's handle comes back. */
static int32_t order(struct run *run) {
  struct context *self = run->self;
  int32_t code = TD_CUDA_OK;
  if (self->flight && !run->ordered)
    code = td_cuda.stream_await_event(run->stream, self->event, 0);
  run->ordered = code == TD_CUDA_OK;
  return code;
}

static enum tandem_status locate(struct run *run, struct tensor *tensor, const void *data) {
  struct context *self = run->self;
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
        side_name(tensor), tensor->side, tensor->name, tensor->pointer.owner, self->cuda->device_id);
  return TANDEM_OK;
}

/* Decides that a tensor goes through a buffer of the load, and has it. */
static enum tandem_status stage(struct run *run, struct tensor *tensor) {
  struct context *self = run->self;
  char step[160];
  if (run->captured && tensor->pointer.place == TD_CUDA_HOST)
    return refuse_capture(run, "a tensor is in host memory");
  if (run->captured) {
    /* The graph would keep the address of a buffer that a later run may give away. */
    snprintf(step, sizeof step, "the address of %s %zu (%.64s) is not aligned to %d bytes", side_name(tensor),
             tensor->side, tensor->name, ALIGNMENT_MIN);
    return refuse_capture(run, step);
  }
  tensor->copied = true;
  if (tensor->staged.size < tensor->bytes) {
    await_flight(self);
    td_cuda_give(self->cuda, &tensor->staged);
    int32_t code = td_cuda_take(self->cuda, tensor->bytes, &tensor->staged);
    if (code != TD_CUDA_OK) {
      snprintf(step, sizeof step, "allocate %zu bytes for %s %zu (%.64s)", tensor->bytes, side_name(tensor),
               tensor->side, tensor->name);
      return td_cuda_fail(self->cuda, code, step, run->error);
    }
  }
  tensor->address = tensor->staged.address;
  return TANDEM_OK;
}

static bool is_aligned(const struct tensor *tensor) {
  return tensor->address % ALIGNMENT_MIN == 0;
}

/* Room for the values of a shape tensor. */
static enum tandem_status make_host_room(struct tensor *tensor, size_t bytes, struct tandem_error *error) {
  size_t size = bytes > 0 ? bytes : 1;
  if (tensor->host_size >= size)
    return TANDEM_OK;
  void *host = td_trt_host()->allocate(size);
  if (host == NULL)
    return no_memory("the values of a shape tensor", error);
  td_trt_host()->release(tensor->host);
  tensor->host = host;
  tensor->host_size = size;
  tensor->bound = NULL;
  if (!tensor->output)
    tensor->dims.rank = -1;
  return TANDEM_OK;
}

/* A shape tensor: its values are needed now, on the host. */
static enum tandem_status fetch_values(struct run *run, struct tensor *tensor, const void *data) {
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
    return no_memory("the values of a shape tensor", run->error);
  if (tensor->pointer.place == TD_CUDA_DEVICE) {
    int32_t code;
    if (run->captured) {
      status = refuse_capture(run, "the values of a shape tensor are in device memory");
      goto done;
    }
    if ((code = order(run)) == TD_CUDA_OK) /* they may be what the run before writes */
      code = td_cuda.copy_out(fetched, tensor->pointer.address, tensor->bytes, run->stream);
    td_trt_host()->wait_begin();
    int32_t waited = td_cuda.stream_wait(run->stream);
    td_trt_host()->wait_end();
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK) {
      status = td_cuda_fail(run->self->cuda, code, "read the values of a shape tensor", run->error);
      goto done;
    }
    source = fetched;
  }
  if (tensor->dims.rank < 0 || memcmp(tensor->host, source, tensor->bytes) != 0) {
    if (run->captured) {
      status = refuse_capture(run, "a shape tensor has other values than the run before");
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

static enum tandem_status take_input(struct run *run, size_t index) {
  struct tensor *tensor = &run->self->tensors[index];
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
          tensor->side, tensor->name, ALIGNMENT_MIN);
    return td_trt_host()->fail(
        run->error, TANDEM_INVALID_ARGUMENT,
        "input %zu (%s) is in host memory and the engine updates it in place; give it in memory of "
        "cuda:%d",
        tensor->side, tensor->name, run->self->cuda->device_id);
  }
  if (tensor->pointer.place == TD_CUDA_HOST || !is_aligned(tensor))
    status = stage(run, tensor);
  return status;
}

/* ---------------------------------------------------------------- run: shapes */

static bool fits(const struct context *self, int32_t profile, const struct tandem_run_desc *desc) {
  for (size_t i = 0; i < self->input_count; i++) {
    const struct bound *bound = &self->bounds[(size_t)profile * self->input_count + i];
    for (int32_t d = 0; d < desc->inputs[i].rank; d++)
      if (desc->inputs[i].shape[d] < bound->min[d] || desc->inputs[i].shape[d] > bound->max[d])
        return false;
  }
  return true;
}

static enum tandem_status tell_no_profile(struct run *run) {
  char text[512] = "";
  size_t used = 0;
  for (size_t i = 0; i < run->self->input_count && used < sizeof text; i++) {
    struct td_trt_dims dims = {.rank = run->desc->inputs[i].rank};
    memcpy(dims.d, run->desc->inputs[i].shape, sizeof dims.d);
    char shape[160];
    write_dims(&dims, shape, sizeof shape);
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", i > 0 ? ", " : "",
                             run->self->tensors[i].name, shape);
  }
  return td_trt_host()->fail(
      run->error, TANDEM_INVALID_ARGUMENT,
      "none of the engine's %d optimization profiles takes the input shapes %s together",
      run->self->engine->profile_count, text);
}

static bool has_shape(const struct tensor *tensor, const struct tandem_tensor *given) {
  return tensor->dims.rank == given->rank &&
         memcmp(tensor->dims.d, given->shape, (size_t)given->rank * sizeof *given->shape) == 0;
}

/* Option profile=auto: the one in use if it takes the shapes, else the first that does. */
static enum tandem_status switch_profile(struct run *run) {
  struct context *self = run->self;
  int32_t chosen = self->profile;
  for (int32_t p = 0; !fits(self, chosen, run->desc); p++) {
    if (p == self->engine->profile_count)
      return tell_no_profile(run);
    chosen = p;
  }
  if (chosen == self->profile)
    return TANDEM_OK;
  if (run->captured)
    return refuse_capture(run, "the shapes need another optimization profile");
  int32_t code = order(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "wait for the run before", run->error);
  forget_told(self);
  run->queued = true;
  if (!td_trt_context_set_profile(self->trt, chosen, run->stream))
    return refuse(run, TANDEM_DEVICE_ERROR, "switch the optimization profile");
  self->profile = chosen;
  return TANDEM_OK;
}

/* The engine writes an aliased output over its input, so it may not need more than that has. */
static enum tandem_status check_alias(struct run *run, const struct tensor *output) {
  const struct tensor *input = &run->self->tensors[output->input];
  size_t need, room;
  bool fits = count_bytes(&output->dims, output->element, &need) &&
              count_bytes(&input->dims, input->element, &room) && need <= room;
  if (fits && (!output->same || same_dims(&output->dims, &input->dims)))
    return TANDEM_OK;
  char text[2][160];
  write_dims(&output->dims, text[0], sizeof text[0]);
  write_dims(&input->dims, text[1], sizeof text[1]);
  return td_trt_host()->fail(run->error, TANDEM_INVALID_ARGUMENT,
                             "output %zu (%s) updates input %zu (%s) in place and has shape %s where that is "
                             "given as %s, expected %s",
                             output->side, output->name, input->side, input->name, text[0], text[1],
                             output->same ? "the same shape" : "no more bytes than the input has");
}

static enum tandem_status infer_shapes(struct run *run) {
  struct context *self = run->self;
  if (td_trt_context_infer_shapes(self->trt, 0, NULL) != 0)
    return refuse(run, TANDEM_INVALID_ARGUMENT, "infer the shapes of the outputs from those of the inputs");
  self->waits = false;
  for (size_t i = self->input_count; i < count_of(self); i++) {
    struct tensor *tensor = &self->tensors[i];
    if (tensor->dynamic)
      tensor->dims = td_trt_context_shape(self->trt, tensor->name);
    size_t bytes;
    enum tandem_status status;
    if (tensor->dims.rank < 0 || tensor->dims.rank > TD_TRT_MAX_RANK)
      return refuse(run, TANDEM_INTERNAL, "tell the rank of an output");
    if (tensor->aliased && (status = check_alias(run, tensor)) != TANDEM_OK)
      return status;
    bool late = !count_bytes(&tensor->dims, tensor->element, &bytes);
    if (late && !tensor->late &&
        !td_trt_context_set_allocator(self->trt, tensor->name, &self->allocators[i - self->input_count].base))
      return refuse(run, TANDEM_INTERNAL, "take an allocator for an output whose shape depends on the data");
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

static enum tandem_status settle_shapes(struct run *run) {
  struct context *self = run->self;
  bool same = self->settled && !run->reshaped;
  for (size_t i = 0; same && i < self->input_count; i++)
    same = has_shape(&self->tensors[i], &run->desc->inputs[i]);
  if (same)
    return run->captured && !self->warm
               ? refuse_capture(run, "this is the load's first run with these shapes")
               : TANDEM_OK;
  if (run->captured)
    return refuse_capture(run, "this is the load's first run with these shapes");
  self->settled = self->warm = false;
  enum tandem_status status = self->any_profile ? switch_profile(run) : TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++) {
    struct tensor *tensor = &self->tensors[i];
    const struct tandem_tensor *given = &run->desc->inputs[i];
    if (tensor->on_host && (tensor->bound != tensor->host || tensor->dims.rank < 0)) {
      if (!td_trt_context_set_address(self->trt, tensor->name, tensor->host))
        return refuse(run, TANDEM_INVALID_ARGUMENT, "take the values of a shape tensor");
      tensor->bound = tensor->host;
    }
    if (has_shape(tensor, given))
      continue;
    struct td_trt_dims dims = {.rank = given->rank};
    memcpy(dims.d, given->shape, (size_t)given->rank * sizeof *given->shape);
    if (tensor->dynamic && !td_trt_context_set_input_shape(self->trt, tensor->name, &dims))
      return refuse(run, TANDEM_INVALID_ARGUMENT, "take the shape of an input");
    tensor->dims = dims;
  }
  return status == TANDEM_OK ? infer_shapes(run) : status;
}

/* ---------------------------------------------------------------- run: outputs */

/* Gives an output its real shape and makes sure of room for it. */
static enum tandem_status make_room(struct run *run, struct tensor *tensor, const struct td_trt_dims *dims) {
  const struct tandem_host *host = td_trt_host();
  struct tandem_tensor *given = tensor->given;
  char text[256];
  write_dims(dims, text, sizeof text);
  if (!count_bytes(dims, tensor->element, &tensor->bytes))
    return host->fail(run->error, TANDEM_OUT_OF_MEMORY,
                      "output %zu (%s) has shape %s, more bytes than there are", tensor->side, tensor->name,
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
                        "output %zu (%s) has shape %s, which the caller's tensor cannot take", tensor->side,
                        tensor->name, text);
    room = given->size >= tensor->bytes && (given->data != NULL || tensor->bytes == 0);
  }
  if (given->data == NULL && tensor->bytes > 0)
    return host->fail(run->error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has no address, %zu bytes are needed", tensor->side, tensor->name,
                      tensor->bytes);
  if (!room)
    return host->fail(run->error, TANDEM_INVALID_ARGUMENT,
                      "output %zu (%s) has shape %s, %zu bytes, the caller's tensor has room for %zu",
                      tensor->side, tensor->name, text, tensor->bytes, given->size);
  return TANDEM_OK;
}

/* What the caller gives for an output, and where the engine writes it. */
static enum tandem_status take_output(struct run *run, size_t index) {
  struct context *self = run->self;
  struct tensor *tensor = &self->tensors[index];
  struct allocator *allocator = &self->allocators[index - self->input_count];
  enum tandem_status status = TANDEM_OK;
  tensor->copied = false;
  if (tensor->late) {
    allocator->dims.rank = -1;
    allocator->code = TD_CUDA_OK;
    await_flight(self); /* the buffer it writes to may be replaced while the library runs */
    return run->captured ? refuse_capture(run, "the shape of an output depends on the data") : TANDEM_OK;
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
      return refuse_capture(run, "an output is in host memory");
    return TANDEM_OK;
  }
  if (tensor->on_host) {
    if (run->captured)
      return refuse_capture(run, "a shape tensor is written on the host");
    return make_host_room(tensor, tensor->bytes, run->error);
  }
  if (tensor->pointer.place == TD_CUDA_HOST || !is_aligned(tensor))
    status = stage(run, tensor);
  return status;
}

void *td_trt_output_reallocate(struct td_trt_output_allocator *base, const char *name, void *current,
                               uint64_t size, uint64_t alignment, void *stream) {
  struct allocator *allocator = (struct allocator *)(void *)base;
  struct context *self = allocator->context;
  struct tensor *tensor = &self->tensors[allocator->tensor];
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
  ((struct allocator *)(void *)base)->dims = *dims;
}

/* ---------------------------------------------------------------- run: queue */

static enum tandem_status bind_addresses(struct run *run) {
  struct context *self = run->self;
  for (size_t i = 0; i < count_of(self); i++) {
    struct tensor *tensor = &self->tensors[i];
    void *address = tensor->on_host ? tensor->host : (void *)(uintptr_t)tensor->address;
    if (tensor->late || tensor->bound == address)
      continue;
    if (!td_trt_context_set_address(self->trt, tensor->name, address))
      return refuse(run, TANDEM_INVALID_ARGUMENT, "take the address of an input or output");
    tensor->bound = address;
  }
  return TANDEM_OK;
}

static enum tandem_status lease_scratch(struct run *run) {
  struct context *self = run->self;
  uint64_t address;
  char step[96];
  if (!self->leases)
    return TANDEM_OK;
  /* An engine that needs scratch for some shape wants an address for every one. */
  size_t size = self->scratch_size > 0 ? self->scratch_size : 1;
  int32_t code = td_scratch_lease(self->cuda, &self->scratch, size, run->captured, &address);
  if (run->captured && code == TD_CUDA_NOT_READY)
    return td_trt_host()->fail(run->error, TANDEM_INVALID_STATE,
                               "the stream is being captured and no scratch of %zu bytes is idle: other "
                               "loads have what there is, or "
                               "it was given up; run this load once more before the next capture (from then "
                               "on it has scratch of its "
                               "own), or load it with share_scratch=false",
                               size);
  if (code != TD_CUDA_OK) {
    snprintf(step, sizeof step, "allocate %zu bytes of scratch", size);
    return td_cuda_fail(self->cuda, code, step, run->error);
  }
  if (address == self->scratch_address && self->scratch_size == self->scratch_told)
    return TANDEM_OK;
  if (TD_TRT_HAS(context_set_scratch))
    td_trt_context_set_scratch(self->trt, (void *)(uintptr_t)address, (int64_t)self->scratch_size);
  else
    td_trt_context_set_scratch_v1(self->trt, (void *)(uintptr_t)address);
  self->scratch_address = address;
  self->scratch_told = self->scratch_size;
  return TANDEM_OK;
}

/* Between a buffer and the host memory of a tensor, which was located already. */
static int32_t copy_tensor(struct run *run, const struct tensor *tensor, void *host, bool out) {
  if (tensor->pointer.inside != tensor->bytes)
    return td_cuda_copy_host(run->self->cuda, tensor->address, host, tensor->bytes, out, run->stream);
  return out ? td_cuda.copy_out(host, tensor->address, tensor->bytes, run->stream)
             : td_cuda.copy_in(tensor->address, host, tensor->bytes, run->stream);
}

static int32_t copy_inputs(struct run *run) {
  struct context *self = run->self;
  int32_t code = TD_CUDA_OK;
  for (size_t i = 0; code == TD_CUDA_OK && i < self->input_count; i++) {
    struct tensor *tensor = &self->tensors[i];
    if (!tensor->copied || tensor->on_host)
      continue;
    run->queued = true;
    code = tensor->pointer.place == TD_CUDA_DEVICE
               ? td_cuda.copy_within(tensor->address, tensor->pointer.address, tensor->bytes, run->stream)
               : copy_tensor(run, tensor, (void *)(uintptr_t)tensor->data, false);
  }
  return code;
}

static size_t write_key(struct context *self) {
  uint64_t *key = self->key;
  size_t used = 0;
  key[used++] = (uint64_t)(uint32_t)self->profile;
  key[used++] = self->scratch_address;
  key[used++] = self->scratch_told;
  for (size_t i = 0; i < count_of(self); i++) {
    const struct tensor *tensor = &self->tensors[i];
    key[used++] = (uint64_t)(uintptr_t)tensor->bound;
    for (int32_t d = 0; !tensor->output && d < tensor->dims.rank; d++)
      key[used++] = (uint64_t)tensor->dims.d[d];
  }
  return used;
}

static enum tandem_status enqueue(struct run *run) {
  struct context *self = run->self;
  int32_t code = TD_CUDA_OK;
  enum td_graph_result result = TD_GRAPH_PLAIN;
  run->queued = true;
  if (self->graphs != NULL && self->warm && !run->captured) {
    struct td_graph_request request = {.enqueue = td_trt_context_enqueue,
                                       .capturable =
                                           TD_TRT_HAS(context_capturable) ? td_trt_context_capturable : NULL,
                                       .context = self->trt,
                                       .stream = run->stream,
                                       .foreign = run->desc->stream != NULL,
                                       .flight = self->flight ? self->event : NULL,
                                       .key = self->key,
                                       .key_count = write_key(self)};
    result = td_graphs_run(self->graphs, self->cuda, &request, &code);
  }
  if (result == TD_GRAPH_FAILED)
    return td_cuda_fail(self->cuda, code, "launch a recorded run", run->error);
  /* Into the caller's capture what must not be there has to fail, not to be left out. */
  int32_t mode = run->captured ? td_cuda_capture_mode(TD_CUDA_CAPTURE_THREAD_LOCAL) : 0;
  bool enqueued = result != TD_GRAPH_PLAIN || td_trt_context_enqueue(self->trt, run->stream);
  if (run->captured)
    td_cuda_capture_mode(mode);
  if (!enqueued) {
    for (size_t i = 0; i < self->output_count; i++)
      if (self->tensors[self->input_count + i].late && self->allocators[i].code != TD_CUDA_OK)
        return td_cuda_fail(self->cuda, self->allocators[i].code,
                            "allocate an output whose size depends on the data", run->error);
    return refuse(run, TANDEM_DEVICE_ERROR, "enqueue the run");
  }
  if (result == TD_GRAPH_RECORDED || run->captured)
    td_scratch_keep(&self->scratch);
  return TANDEM_OK;
}

/* Brings an output to where the caller wants it; what lives on the host follows when the run is done. */
static enum tandem_status copy_output(struct run *run, size_t index) {
  struct context *self = run->self;
  struct tensor *tensor = &self->tensors[index];
  if (tensor->late && tensor->given != NULL) {
    const struct td_trt_dims *dims = &self->allocators[index - self->input_count].dims;
    if (dims->rank < 0 || dims->rank > TD_TRT_MAX_RANK)
      return refuse(run, TANDEM_INTERNAL, "tell the shape of an output");
    enum tandem_status status = make_room(run, tensor, dims);
    if (status == TANDEM_OK)
      status = locate(run, tensor, tensor->given->data);
    if (status != TANDEM_OK)
      return status;
    if (tensor->staged.size < tensor->bytes)
      return refuse(run, TANDEM_INTERNAL, "keep to the size that it asked for an output");
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

static int32_t wait_for_stream(struct run *run) {
  td_trt_host()->wait_begin();
  int32_t code = td_cuda.stream_wait(run->stream);
  td_trt_host()->wait_end();
  return code;
}

/* Shape tensors that the library has written on the host. */
static enum tandem_status hand_out_values(struct run *run) {
  struct context *self = run->self;
  for (size_t i = self->input_count; i < count_of(self); i++) {
    struct tensor *tensor = &self->tensors[i];
    if (!tensor->on_host || tensor->given == NULL || tensor->bytes == 0)
      continue;
    if (tensor->pointer.place != TD_CUDA_DEVICE) {
      memcpy(tensor->given->data, tensor->host, tensor->bytes);
      continue;
    }
    int32_t code = td_cuda.copy_in(tensor->pointer.address, tensor->host, tensor->bytes, run->stream);
    int32_t waited = wait_for_stream(run);
    code = code != TD_CUDA_OK ? code : waited;
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "copy a shape tensor", run->error);
  }
  return TANDEM_OK;
}

static enum tandem_status finish(struct run *run) {
  struct context *self = run->self;
  const struct tandem_run_desc *desc = run->desc;
  int32_t code = TD_CUDA_OK;
  self->warm = true;
  if (run->captured)
    return TANDEM_OK;
  if (!desc->return_early || self->waits) {
    code = wait_for_stream(run);
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "wait for the run", run->error);
    self->flight = false;
    enum tandem_status status = self->waits ? hand_out_values(run) : TANDEM_OK;
    if (status != TANDEM_OK)
      return status;
  }
  if (desc->return_early) {
    code = td_cuda.event_record(self->event, run->stream);
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "record the run's event", run->error);
    self->flight = true;
    if (desc->done != NULL)
      *desc->done = self->event;
  }
  td_scratch_return(&self->scratch, desc->return_early ? self->event : NULL);
  run->queued = false;
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- run */

static enum tandem_status check_counts(struct run *run) {
  struct context *self = run->self;
  const struct tandem_run_desc *desc = run->desc;
  size_t left = self->output_count - self->alias_count;
  bool left_out = desc->output_count == left && self->alias_count > 0 && left > 0;
  if (desc->input_count != self->input_count || (desc->output_count != self->output_count && !left_out))
    return td_trt_host()->fail(
        run->error, TANDEM_INVALID_ARGUMENT,
        "%zu inputs and %zu outputs were given, the engine has %zu inputs and %zu outputs, of "
        "which %zu that update an input may be left out if another remains",
        desc->input_count, desc->output_count, self->input_count, self->output_count, self->alias_count);
  size_t next = 0;
  for (size_t i = self->input_count; i < count_of(self); i++) {
    struct tensor *tensor = &self->tensors[i];
    tensor->given = left_out && tensor->aliased ? NULL : &desc->outputs[next++];
  }
  return TANDEM_OK;
}

static enum tandem_status check_stream(struct run *run) {
  int32_t status = TD_CUDA_CAPTURE_NONE;
  int32_t code = td_cuda.stream_capturing(run->stream, &status);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, "use the stream", run->error);
  if (status == TD_CUDA_CAPTURE_INVALIDATED)
    return td_trt_host()->fail(run->error, TANDEM_INVALID_STATE,
                               "the stream's capture was invalidated earlier; end it, and capture again");
  run->captured = status == TD_CUDA_CAPTURE_ACTIVE;
  if (!run->captured || !run->self->flight)
    return TANDEM_OK;
  /* A capture cannot be told to wait for an event from before it. */
  code = td_cuda.event_query(run->self->event);
  if (code == TD_CUDA_NOT_READY)
    return refuse_capture(run, "a run of this load that returned early is still in flight");
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, "ask for the end of the run before", run->error);
  run->self->flight = false;
  return TANDEM_OK;
}

static enum tandem_status run_entered(struct run *run) {
  struct context *self = run->self;
  enum tandem_status status = check_stream(run);
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++)
    status = take_input(run, i);
  if (status == TANDEM_OK)
    status = settle_shapes(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < count_of(self); i++)
    status = take_output(run, i);
  if (status != TANDEM_OK || (status = bind_addresses(run)) != TANDEM_OK)
    return status;
  /* Before the lease: it may be of scratch that the run before still uses, and is given back as free. */
  int32_t code = order(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "wait for the run before", run->error);
  if ((status = lease_scratch(run)) != TANDEM_OK)
    return status;
  code = copy_inputs(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "copy an input", run->error);
  status = enqueue(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < count_of(self); i++)
    status = copy_output(run, i);
  return status == TANDEM_OK ? finish(run) : status;
}

enum tandem_status td_trt_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error) {
  struct context *self = context;
  struct run run = {.self = self,
                    .desc = desc,
                    .error = error,
                    .stream = desc->stream != NULL ? desc->stream : TD_CUDA_STREAM_PER_THREAD};
  if (desc->done != NULL)
    *desc->done = NULL;
  enum tandem_status status = check_counts(&run);
  if (status == TANDEM_OK)
    status = td_cuda_enter(self->cuda, error);
  if (status != TANDEM_OK)
    return status;
  status = run_entered(&run);
  if (status != TANDEM_OK && run.queued && !run.captured && !td_cuda_lost(self->cuda)) {
    /* Buffers and scratch are in use until what was queued has run. */
    int32_t code = wait_for_stream(&run);
    if (code != TD_CUDA_OK) {
      td_scratch_keep(&self->scratch); /* nobody knows whether it is still in use */
      status = td_cuda_fail(self->cuda, code, "wait for a failed run", error);
    } else if (run.ordered)
      self->flight = false;
  }
  if (status != TANDEM_OK && run.captured && run.queued)
    td_scratch_keep(&self->scratch);
  td_scratch_return(&self->scratch, NULL);
  td_cuda_leave(self->cuda);
  return status;
}
