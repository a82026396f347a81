/* Stand-in libnvinfer, TESTS ONLY: IExecutionContext.
 *
 * A run is checked as a real one is (shapes, addresses, scratch memory), then put on the stream and not
 * waited for, but where the data decide an output's size. Temporaries lie in the scratch memory, so two runs
 * that share it without an order give wrong numbers.
 */
#include "nvinfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool own_scratch(struct context *context) {
  struct engine *engine = context->engine;
  if (context->strategy == STRATEGY_USER_MANAGED)
    return true;
  int64_t size =
      context->strategy == STRATEGY_STATIC ? most_scratch(engine) : profile_scratch(engine, context->profile);
  uint64_t address = 0;
  if (size && !allocate(engine->runtime->logger, &address, (uint64_t)size))
    return false;
  if (context->scratch)
    cuda.release(context->scratch);
  context->owns_scratch = true;
  context->scratch = address;
  context->scratch_size = size;
  return true;
}

static void free_context(struct context *context) {
  if (context->owns_scratch && context->scratch)
    cuda.release(context->scratch);
  free(context->inputs);
  free(context->shapes);
  free(context->addresses);
  free(context->allocators);
  free_object(&context->object, sizeof *context);
}

void *create_context(struct engine *engine, int32_t strategy) {
  void *logger = engine->runtime->logger;
  if (!begin(STANDIN_CONTEXT, logger))
    return NULL;
  struct context *context = NULL;
  void *face = NULL;
  if (strategy < STRATEGY_STATIC || strategy > STRATEGY_USER_MANAGED ||
      !is_current(engine, "createExecutionContext"))
    goto done;
  context = make_object(sizeof *context, CLASS_CONTEXT);
  if (!context)
    goto done;
  context->engine = engine;
  context->strategy = strategy;
  context->inputs = make_shapes(engine);
  context->shapes = make_shapes(engine);
  context->addresses = calloc(engine->header.tensor_count + 1, sizeof *context->addresses);
  context->allocators = calloc(engine->header.tensor_count + 1, sizeof *context->allocators);
  if (!context->inputs || !context->shapes || !context->addresses || !context->allocators ||
      !own_scratch(context)) {
    free_context(context);
    goto done;
  }
  atomic_fetch_add(&engine->contexts, 1);
  count(COUNTER_CONTEXTS, 1);
  face = &context->object.face;
done:
  end(STANDIN_CONTEXT);
  return face;
}

void delete_context(void *pointer) {
  struct context *context = object_of(pointer, CLASS_CONTEXT);
  if (!context)
    return;
  struct engine *engine = context->engine;
  is_current(engine, "destruction of a context");
  free_context(context);
  atomic_fetch_sub(&engine->contexts, 1);
  count(COUNTER_CONTEXTS, -1);
}

/* One thread at a time. */
static bool enter(struct context *context, const char *what) {
  if (!atomic_flag_test_and_set(&context->busy))
    return true;
  misuse("%s: two threads in one execution context", what);
  return false;
}

static void leave(struct context *context) {
  atomic_flag_clear(&context->busy);
}

static void *logger_of(const struct context *context) {
  return context->engine->runtime->logger;
}

static void *get_engine(struct context *context) {
  return &context->engine->object.face;
}

static void set_name(struct context *context, const char *name) {
  snprintf(context->name, sizeof context->name, "%s", name ? name : "");
}

static const char *get_name(struct context *context) {
  return context->name;
}

static void set_profiler(struct context *context, void *profiler) {
  context->profiler = profiler;
}

static void *get_profiler(struct context *context) {
  return context->profiler;
}

static void set_context_recorder(struct context *context, void *recorder) {
  context->error_recorder = recorder;
}

static void *get_context_recorder(struct context *context) {
  return context->error_recorder;
}

static int32_t get_profile(struct context *context) {
  return context->profile;
}

static uint64_t set_profile(struct context *context, int32_t profile, void *stream) {
  (void)stream;
  void *logger = logger_of(context);
  if (!begin(STANDIN_PROFILE, logger))
    return truth(false);
  bool done = false;
  if (profile < 0 || profile >= (int32_t)context->engine->header.profile_count) {
    say(logger, ERROR,
        "IExecutionContext::setOptimizationProfileAsync: Error Code 3: API Usage Error (Parameter "
        "check failed, condition: profileIndex >= 0 && profileIndex < getNbOptimizationProfiles().)");
  } else if (enter(context, "setOptimizationProfileAsync")) {
    if (context->profile != profile)
      for (uint32_t i = 0; i < context->engine->header.tensor_count; i++)
        context->inputs[i] = dims_of(context->engine->tensors[i].rank, context->engine->tensors[i].dims);
    context->profile = profile;
    done = context->strategy != STRATEGY_ON_PROFILE_CHANGE || own_scratch(context);
    leave(context);
  }
  end(STANDIN_PROFILE);
  return truth(done);
}

static void write_dims(char *text, size_t size, const struct dims *dims) {
  size_t used = (size_t)snprintf(text, size, "[");
  for (int32_t i = 0; i < dims->rank && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? "," : "", (long long)dims->d[i]);
  if (used < size)
    snprintf(text + used, size - used, "]");
}

static bool check_input_shape(struct context *context, int tensor, const struct dims *dims) {
  const struct engine *engine = context->engine;
  const struct standin_tensor_record *record = &engine->tensors[tensor];
  const struct standin_profile_record *bounds = bounds_of(engine, context->profile, tensor);
  struct dims expected = dims_of(record->rank, record->dims);
  char set[128], wanted[128];
  write_dims(wanted, sizeof wanted, &expected);
  if (record->mode != STANDIN_INPUT || dims->rank != record->rank) {
    say(logger_of(context), ERROR,
        "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, condition: "
        "engineDims.nbDims == dims.nbDims. Input %s has %d dimensions, expected %d.)",
        record->name, dims->rank, record->rank);
    return false;
  }
  write_dims(set, sizeof set, dims);
  for (int32_t i = 0; i < dims->rank; i++) {
    if (record->dims[i] >= 0 && dims->d[i] != record->dims[i]) {
      say(logger_of(context), ERROR,
          "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, "
          "condition: "
          "engineDims.d[i] == dims.d[i]. Static dimension mismatch while setting input shape for %s. Set "
          "dimensions "
          "are %s. Expected dimensions are %s.)",
          record->name, set, wanted);
      return false;
    }
    if (dims->d[i] < bounds->min[i] || dims->d[i] > bounds->max[i]) {
      say(logger_of(context), ERROR,
          "IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, "
          "condition: "
          "satisfyProfile. Set dimension %s for tensor %s does not satisfy any optimization profiles. Valid "
          "range for "
          "profile %d at dimension %d: [%lld..%lld].)",
          set, record->name, context->profile, i, (long long)bounds->min[i], (long long)bounds->max[i]);
      return false;
    }
  }
  return true;
}

static uint64_t set_input_shape(struct context *context, const char *name, const struct dims *dims) {
  if (!begin(STANDIN_INPUT_SHAPE, logger_of(context)))
    return truth(false);
  bool done = false;
  if (enter(context, "setInputShape")) {
    int tensor = find_tensor(context->engine, name);
    done = tensor >= 0 && check_input_shape(context, tensor, dims);
    if (done)
      context->inputs[tensor] = *dims;
    leave(context);
  }
  end(STANDIN_INPUT_SHAPE);
  return truth(done);
}

/* Shapes of everything, from what was set; false when they do not fit. */
static bool update_shapes(struct context *context) {
  const struct engine *engine = context->engine;
  for (uint32_t i = 0; i < engine->header.tensor_count; i++)
    if (engine->tensors[i].mode == STANDIN_INPUT)
      context->shapes[i] = context->inputs[i];
  bool fits = infer(engine, context->addresses, context->shapes);
  if (!fits)
    say(logger_of(context), ERROR,
        "IExecutionContext::inferShapes: Error Code 7: Internal Error (stand-in: shapes of "
        "the inputs do not fit each other.)");
  return fits;
}

static struct dims get_shape(struct context *context, const char *name) {
  int tensor = find_tensor(context->engine, name);
  if (tensor < 0)
    return (struct dims){.rank = -1};
  if (!enter(context, "getTensorShape"))
    return (struct dims){.rank = -1};
  bool fits = update_shapes(context);
  struct dims dims = fits ? context->shapes[tensor] : (struct dims){.rank = -1};
  leave(context);
  return dims;
}

static struct dims get_strides(struct context *context, const char *name) {
  struct dims dims = get_shape(context, name);
  int64_t stride = 1;
  for (int32_t i = dims.rank; i-- > 0;) {
    int64_t extent = dims.d[i];
    dims.d[i] = stride;
    stride *= extent;
  }
  return dims;
}

static uint64_t set_address_as(struct context *context, const char *name, uint64_t address, int mode) {
  if (!begin(STANDIN_ADDRESS, logger_of(context)))
    return truth(false);
  int tensor = find_tensor(context->engine, name);
  bool done = tensor >= 0 && (!mode || context->engine->tensors[tensor].mode == mode);
  if (done && enter(context, "setTensorAddress")) {
    context->addresses[tensor] = address;
    leave(context);
  }
  end(STANDIN_ADDRESS);
  return truth(done);
}

static uint64_t set_address(struct context *context, const char *name, void *address) {
  return set_address_as(context, name, (uint64_t)(uintptr_t)address, 0);
}

static uint64_t set_input_address(struct context *context, const char *name, const void *address) {
  return set_address_as(context, name, (uint64_t)(uintptr_t)address, STANDIN_INPUT);
}

static uint64_t set_output_address(struct context *context, const char *name, void *address) {
  return set_address_as(context, name, (uint64_t)(uintptr_t)address, STANDIN_OUTPUT);
}

static void *get_address(struct context *context, const char *name) {
  int tensor = find_tensor(context->engine, name);
  return tensor < 0 ? NULL : (void *)(uintptr_t)context->addresses[tensor];
}

static bool is_specified(const struct context *context, uint32_t tensor) {
  const struct standin_tensor_record *record = &context->engine->tensors[tensor];
  return record->mode != STANDIN_INPUT || count_elements(&context->inputs[tensor]) >= 0;
}

static uint64_t are_shapes_specified(struct context *context) {
  bool all = true;
  for (uint32_t i = 0; i < context->engine->header.tensor_count; i++)
    all &= is_specified(context, i);
  return truth(all);
}

static int32_t infer_shapes(struct context *context, int32_t room, const char **names) {
  if (!begin(STANDIN_INFER, logger_of(context)))
    return -1;
  int32_t missing = -1;
  if (enter(context, "inferShapes")) {
    missing = 0;
    for (uint32_t i = 0; i < context->engine->header.tensor_count; i++) {
      const struct standin_tensor_record *record = &context->engine->tensors[i];
      bool has_values =
          record->mode != STANDIN_INPUT || record->location != STANDIN_HOST || context->addresses[i];
      if (is_specified(context, i) && has_values)
        continue;
      if (missing < room && names)
        names[missing] = record->name;
      missing++;
    }
    if (missing == 0 && !update_shapes(context))
      missing = -1;
    leave(context);
  }
  end(STANDIN_INFER);
  return missing;
}

static uint64_t set_consumed_event(struct context *context, void *event) {
  context->consumed_event = event;
  return truth(true);
}

static void *get_consumed_event(struct context *context) {
  return context->consumed_event;
}

static uint64_t set_allocator(struct context *context, const char *name, void *allocator) {
  int tensor = find_tensor(context->engine, name);
  bool fits = tensor >= 0 && context->engine->tensors[tensor].mode == STANDIN_OUTPUT;
  if (fits)
    context->allocators[tensor] = allocator;
  return truth(fits);
}

static void *get_allocator(struct context *context, const char *name) {
  int tensor = find_tensor(context->engine, name);
  return tensor < 0 ? NULL : context->allocators[tensor];
}

static int64_t get_output_limit(struct context *context, const char *name) {
  const struct engine *engine = context->engine;
  int tensor = find_tensor(engine, name);
  if (tensor < 0 || engine->tensors[tensor].mode != STANDIN_OUTPUT)
    return -1;
  struct dims *shapes = make_largest(engine, context->profile);
  int64_t elements = shapes ? count_elements(&shapes[tensor]) : -1;
  for (uint32_t i = 0; shapes && elements < 0 && i < engine->header.layer_count; i++)
    if (engine->layers[i].y == tensor) /* depends on data or values: never more than goes in */
      elements = count_elements(&shapes[engine->layers[i].a]);
  free(shapes);
  return elements < 0 ? -1 : elements * dtype_size(engine->tensors[tensor].dtype);
}

static uint64_t update_scratch(struct context *context) {
  if (!begin(STANDIN_SCRATCH, logger_of(context)))
    return 0;
  uint64_t size = 0;
  if (context->strategy != STRATEGY_USER_MANAGED || !(uint8_t)are_shapes_specified(context)) {
    say(logger_of(context), ERROR,
        "IExecutionContext::updateDeviceMemorySizeForShapes: Error Code 3: API Usage Error "
        "(stand-in: needs user-managed memory and all input shapes.)");
  } else if (enter(context, "updateDeviceMemorySizeForShapes")) {
    if (update_shapes(context))
      size = plan_scratch(context->engine, context->shapes).end;
    leave(context);
  }
  end(STANDIN_SCRATCH);
  return size;
}

static void set_scratch(struct context *context, void *memory, int64_t size) {
  note_scratch(size);
  if (context->strategy != STRATEGY_USER_MANAGED) {
    misuse("setDeviceMemoryV2 on a context that owns its memory");
    return;
  }
  if ((uintptr_t)memory % ALIGNMENT)
    misuse("setDeviceMemoryV2 with memory that is not aligned to %d bytes", ALIGNMENT);
  context->scratch = (uint64_t)(uintptr_t)memory;
  context->scratch_size = size;
}

static void set_scratch_unsized(struct context *context, void *memory) {
  set_scratch(context, memory, most_scratch(context->engine));
}

static void *ask_output(void *allocator, const char *name, uint64_t current, int64_t size, void *stream) {
  entry *const *table = *(entry *const **)allocator;
  void *(*ask)(void *, const char *, void *, uint64_t, uint64_t, void *);
  memcpy(&ask, &table[ALLOCATE_OUTPUT_SLOT], sizeof ask);
  return ask(allocator, name, (void *)(uintptr_t)current, (uint64_t)size, ALIGNMENT, stream);
}

static void tell_shape(void *allocator, const char *name, const struct dims *dims) {
  entry *const *table = *(entry *const **)allocator;
  void (*tell)(void *, const char *, const struct dims *);
  memcpy(&tell, &table[NOTIFY_SHAPE_SLOT], sizeof tell);
  struct dims copy = *dims;
  tell(allocator, name, &copy);
  memset(&copy, 0x7f, sizeof copy); /* the library's own: gone after the call */
}

/* The address of an output of known shape: its allocator's, else the one that was set. */
static bool settle_output(struct context *context, int tensor, void *stream) {
  const struct standin_tensor_record *record = &context->engine->tensors[tensor];
  void *allocator = context->allocators[tensor];
  if (!allocator)
    return true;
  int64_t size = count_elements(&context->shapes[tensor]) * dtype_size(record->dtype);
  void *memory = ask_output(allocator, record->name, context->addresses[tensor], size, stream);
  if (!memory) {
    say(logger_of(context), ERROR,
        "IExecutionContext::enqueueV3: Error Code 2: OutOfMemory (output allocator gave nothing for %s)",
        record->name);
    return false;
  }
  context->addresses[tensor] = (uint64_t)(uintptr_t)memory;
  tell_shape(allocator, record->name, &context->shapes[tensor]);
  return true;
}

static bool check_addresses(const struct context *context) {
  const struct engine *engine = context->engine;
  for (uint32_t i = 0; i < engine->header.tensor_count; i++) {
    const struct standin_tensor_record *record = &engine->tensors[i];
    bool input = record->mode == STANDIN_INPUT;
    if (!context->addresses[i] && (input || !context->allocators[i])) {
      say(logger_of(context), ERROR,
          input ? "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Address is not set for input "
                  "tensor %s. "
                  "Call setInputTensorAddress or setTensorAddress before enqueue/execute.)"
                : "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Neither address or allocator "
                  "is set for "
                  "output tensor %s. Call setOutputTensorAddress, setTensorAddress or setOutputAllocator "
                  "before "
                  "enqueue/execute.)",
          record->name);
      return false;
    }
    if (record->alias >= 0 && context->addresses[i] != context->addresses[record->alias]) {
      say(logger_of(context), ERROR,
          "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Aliased output %s must have the "
          "address of its "
          "input %s.)",
          record->name, engine->tensors[record->alias].name);
      return false;
    }
  }
  return true;
}

static uint64_t place_of(const struct context *context, const struct scratch_plan *plan, int32_t index) {
  int32_t tensors = (int32_t)context->engine->header.tensor_count;
  return index < tensors ? context->addresses[index]
                         : context->scratch + plan->temporaries[(index - tensors) % 2];
}

static int launch(const struct context *context, enum kernel kernel, const unsigned *grid,
                  const unsigned *block, void *stream, void **parameters) {
  return cuda.launch(context->engine->module->functions[kernel], grid[0], grid[1], 1, block[0], block[1], 1,
                     0, stream, parameters, NULL);
}

static int launch_flat(const struct context *context, enum kernel kernel, int64_t items, void *stream,
                       void **parameters) {
  unsigned blocks = items > INT64_C(256) * 1024 ? 1024 : (unsigned)((items + 255) / 256);
  return launch(context, kernel, (unsigned[]){blocks, 1}, (unsigned[]){256, 1}, stream, parameters);
}

static int run_gemm(struct context *context, const struct scratch_plan *plan, uint32_t index, void *stream) {
  const struct engine *engine = context->engine;
  const struct standin_layer_record *layer = &engine->layers[index];
  int64_t rows = count_elements(&context->shapes[layer->a]) / layer->k;
  uint64_t a = place_of(context, plan, layer->a), y = place_of(context, plan, layer->y);
  uint64_t w = engine->device_weights + (uint64_t)engine->resident_at[index];
  int result = CU_OK;
  if (engine->resident_at[index] < 0) {
    w = context->scratch + plan->stream;
    result = cuda.copy_to_async(w, engine->host_weights + layer->weights_at, layer->weights_size, stream);
  }
  uint64_t b = w + (uint64_t)(layer->k * layer->n) * 4;
  int k = (int)layer->k, n = (int)layer->n, act = (int)layer->act;
  for (int64_t row = 0; row < rows && !result; row += 65535) { /* the most in one dimension of a grid */
    int64_t now = rows - row < 65535 ? rows - row : 65535;
    uint64_t from = a + (uint64_t)(row * layer->k) * 4, to = y + (uint64_t)(row * layer->n) * 4;
    result = launch(context, KERNEL_GEMM, (unsigned[]){(unsigned)(n + 31) / 32, (unsigned)now},
                    (unsigned[]){32, 8}, stream, (void *[]){&from, &w, &b, &to, &k, &n, &act});
  }
  return result;
}

/* The number of elements is known after the run only, so the stream is waited for, as the libraries do. */
static int run_positive(struct context *context, const struct scratch_plan *plan,
                        const struct standin_layer_record *layer, void *stream) {
  uint64_t a = place_of(context, plan, layer->a), counter = context->scratch + plan->counter;
  int64_t items = count_elements(&context->shapes[layer->a]), found = 0;
  if (items) {
    int result = launch(context, KERNEL_COUNT, (unsigned[]){1, 1}, (unsigned[]){1, 1}, stream,
                        (void *[]){&a, &counter, &items});
    if (!result)
      result = cuda.copy_from_async(&found, counter, sizeof found, stream);
    if (!result)
      result = cuda.stream_synchronize(stream);
    if (result)
      return result;
  }
  context->shapes[layer->y] = (struct dims){.rank = 1, .d = {found}};
  if (!settle_output(context, layer->y, stream))
    return CU_OUT_OF_MEMORY;
  uint64_t y = context->addresses[layer->y];
  return found ? launch(context, KERNEL_POSITIVE, (unsigned[]){1, 1}, (unsigned[]){1, 1}, stream,
                        (void *[]){&a, &y, &items, &found})
               : CU_OK;
}

static int run_layer(struct context *context, const struct scratch_plan *plan, uint32_t index, void *stream) {
  const struct standin_layer_record *layer = &context->engine->layers[index];
  uint64_t a = place_of(context, plan, layer->a), y = place_of(context, plan, layer->y);
  int64_t items = count_elements(&context->shapes[layer->y]);
  if (layer->kind == STANDIN_SHAPE) {
    int64_t *to = (int64_t *)(uintptr_t)y;
    for (int32_t i = 0; i < context->shapes[layer->a].rank; i++)
      to[i] = context->shapes[layer->a].d[i];
    return CU_OK;
  }
  if (layer->kind == STANDIN_POSITIVE)
    return run_positive(context, plan, layer, stream);
  if (items == 0)
    return CU_OK;
  if (layer->kind == STANDIN_GEMM)
    return run_gemm(context, plan, index, stream);
  if (layer->kind == STANDIN_ADD) {
    uint64_t b = place_of(context, plan, layer->b);
    return launch_flat(context, KERNEL_ADD, items, stream, (void *[]){&a, &b, &y, &items});
  }
  if (layer->kind == STANDIN_CACHE) {
    uint64_t b = place_of(context, plan, layer->b);
    int64_t added = count_elements(&context->shapes[layer->b]);
    return launch_flat(context, KERNEL_CACHE, items, stream, (void *[]){&a, &b, &items, &added});
  }
  int32_t tensors = (int32_t)context->engine->header.tensor_count;
  int64_t size = items * (layer->y < tensors ? dtype_size(context->engine->tensors[layer->y].dtype) : 4);
  return launch_flat(context, KERNEL_COPY, size, stream, (void *[]){&a, &y, &size});
}

static bool run_layers(struct context *context, void *stream) {
  const struct engine *engine = context->engine;
  void *logger = logger_of(context);
  if (!is_current(engine, "enqueueV3"))
    return false;
  if (!(uint8_t)are_shapes_specified(context)) {
    say(logger, ERROR,
        "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Parameter check failed, condition: "
        "allInputDimensionsSpecified(0). Not all input dimensions are specified.)");
    return false;
  }
  if (!check_addresses(context) || !update_shapes(context))
    return false;
  struct scratch_plan plan = plan_scratch(engine, context->shapes);
  if (plan.end && (!context->scratch || context->scratch_size < (int64_t)plan.end)) {
    say(logger, ERROR,
        "IExecutionContext::enqueueV3: Error Code 3: API Usage Error (Device memory of %lld bytes is set, "
        "%llu are "
        "needed for these shapes.)",
        (long long)context->scratch_size, (unsigned long long)plan.end);
    return false;
  }
  int result = plan.end ? cuda.set_async(context->scratch, 0xa5, plan.end, stream) : CU_OK;
  for (uint32_t i = 0; i < engine->header.tensor_count; i++)
    if (engine->tensors[i].mode == STANDIN_OUTPUT && count_elements(&context->shapes[i]) >= 0 &&
        !settle_output(context, (int)i, stream))
      return false;
  for (uint32_t i = 0; i < engine->header.layer_count && !result; i++)
    result = run_layer(context, &plan, i, stream);
  if (!result && context->consumed_event)
    result = cuda.event_record(context->consumed_event, stream);
  return passed(logger, "IExecutionContext::enqueueV3", result);
}

static uint64_t enqueue(struct context *context, void *stream) {
  if (!begin(STANDIN_ENQUEUE, logger_of(context)))
    return truth(false);
  bool done = false;
  if (enter(context, "enqueueV3")) {
    done = run_layers(context, stream);
    leave(context);
  }
  count(COUNTER_ENQUEUES, 1);
  end(STANDIN_ENQUEUE);
  return truth(done);
}

/* Hints without effect here. */
static void take_streams(struct context *context, void **streams, int32_t number) {
  (void)context;
  (void)streams;
  (void)number;
}

static void take_limit(struct context *context, size_t limit) {
  (void)context;
  (void)limit;
}

static uint64_t take_verbosity(struct context *context, int32_t verbosity) {
  (void)context;
  (void)verbosity;
  return truth(true);
}

static void take_flag(struct context *context, bool flag) {
  (void)context;
  (void)flag;
}

/* RTX only. */
static uint64_t is_capturable(struct context *context, void *stream) {
  (void)stream;
  for (uint32_t i = 0; i < context->engine->header.layer_count; i++)
    if (context->engine->layers[i].kind == STANDIN_POSITIVE)
      return truth(false);
  return truth(true);
}

const struct method context_methods[] = {
    METHOD(0, "getPImpl", NULL, get_face),
    METHOD(0, "setDebugSync", "debug_sync (set)", take_flag),
    METHOD(0, "setProfiler", "profiler (set)", set_profiler),
    METHOD(0, "getProfiler", "profiler (get)", get_profiler),
    METHOD(0, "getEngine", "engine (get)", get_engine),
    METHOD(0, "setName", "name (set)", set_name),
    METHOD(0, "getName", "name (get)", get_name),
    METHOD(0, "setDeviceMemory", "device_memory (set)", set_scratch_unsized),
    METHOD(0, "getOptimizationProfile", "active_optimization_profile (get)", get_profile),
    METHOD(0, "allInputDimensionsSpecified", "all_binding_shapes_specified (get)", are_shapes_specified),
    METHOD(0, "setErrorRecorder", "error_recorder (set)", set_context_recorder),
    METHOD(0, "getErrorRecorder", "error_recorder (get)", get_context_recorder),
    METHOD(0, "setOptimizationProfileAsync", "set_optimization_profile_async", set_profile),
    METHOD(0, "setEnqueueEmitsProfile", "enqueue_emits_profile (set)", take_flag),
    METHOD(0, "setInputShape", "set_input_shape", set_input_shape),
    METHOD(0, "getTensorShape", "get_tensor_shape", get_shape),
    METHOD(0, "getTensorStrides", "get_tensor_strides", get_strides),
    METHOD(0, "setTensorAddress", "set_tensor_address", set_address),
    METHOD(0, "getTensorAddress", "get_tensor_address", get_address),
    METHOD(0, "setInputTensorAddress", NULL, set_input_address),
    METHOD(0, "setOutputTensorAddress", NULL, set_output_address),
    METHOD(0, "inferShapes", NULL, infer_shapes),
    METHOD(0, "setInputConsumedEvent", "set_input_consumed_event", set_consumed_event),
    METHOD(0, "getInputConsumedEvent", "get_input_consumed_event", get_consumed_event),
    METHOD(0, "getOutputTensorAddress", NULL, get_address),
    METHOD(0, "setOutputAllocator", "set_output_allocator", set_allocator),
    METHOD(0, "getOutputAllocator", "get_output_allocator", get_allocator),
    METHOD(0, "getMaxOutputSize", "get_max_output_size", get_output_limit),
    METHOD(0, "enqueueV3", "execute_async_v3", enqueue),
    METHOD(0, "setPersistentCacheLimit", "persistent_cache_limit (set)", take_limit),
    METHOD(0, "setNvtxVerbosity", "nvtx_verbosity (set)", take_verbosity),
    METHOD(0, "setAuxStreams", "set_aux_streams", take_streams),
    METHOD(0, "updateDeviceMemorySizeForShapes", "update_device_memory_size_for_shapes", update_scratch),
    METHOD(1, "setDeviceMemoryV2", "set_device_memory", set_scratch),
    METHOD(99, NULL, "is_stream_capturable", is_capturable),
    {0},
};
