/* Stand-in libnvinfer, TESTS ONLY: ICudaEngine, IRuntimeConfig, and what follows from shapes. */
#include "nvinfer.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- shapes */

int64_t count_elements(const struct dims *dims) {
  int64_t elements = 1;
  for (int32_t i = 0; i < dims->rank; i++) {
    if (dims->d[i] < 0)
      return -1;
    elements *= dims->d[i];
  }
  return dims->rank < 0 ? -1 : elements;
}

int64_t dtype_size(int32_t dtype) {
  static const int64_t sizes[] = {4, 2, 1, 4, 1, 1, 1, 2, 8};
  return dtype >= 0 && dtype < (int32_t)(sizeof sizes / sizeof *sizes) ? sizes[dtype] : 0;
}

uint64_t align_up(uint64_t size) {
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

int find_tensor(const struct engine *engine, const char *name) {
  for (uint32_t i = 0; name && i < engine->header.tensor_count; i++)
    if (strcmp(engine->tensors[i].name, name) == 0)
      return (int)i;
  say(engine->runtime->logger, ERROR,
      "Error Code 3: API Usage Error (given invalid tensor name: %s. Get valid tensor names with "
      "getIOTensorName())",
      name ? name : "(null)");
  return -1;
}

struct dims dims_of(int32_t rank, const int64_t *d) {
  struct dims dims = {.rank = rank};
  for (int32_t i = 0; i < rank; i++)
    dims.d[i] = d[i];
  return dims;
}

const struct standin_profile_record *bounds_of(const struct engine *engine, int32_t profile, int tensor) {
  return &engine->profiles[(size_t)profile * engine->header.tensor_count + (size_t)tensor];
}

/* Fills shapes from those of the inputs; -1 where they depend on what is not known yet. False: they do not
 * fit. */
bool infer(const struct engine *engine, const uint64_t *addresses, struct dims *shapes) {
  for (uint32_t i = 0; i < engine->header.layer_count; i++) {
    const struct standin_layer_record *layer = &engine->layers[i];
    const struct dims *a = &shapes[layer->a];
    struct dims *y = &shapes[layer->y];
    switch (layer->kind) {
    case STANDIN_GEMM:
      *y = *a;
      if (a->rank < 1 || (a->d[a->rank - 1] >= 0 && a->d[a->rank - 1] != layer->k))
        return false;
      y->d[y->rank - 1] = layer->n;
      break;
    case STANDIN_ADD:
      if (count_elements(a) != count_elements(&shapes[layer->b]))
        return false;
      *y = *a;
      break;
    case STANDIN_SHAPE:
      *y = (struct dims){.rank = 1, .d = {a->rank}};
      break;
    case STANDIN_POSITIVE:
      *y = (struct dims){.rank = 1, .d = {-1}};
      break;
    case STANDIN_SLICE: {
      *y = dims_of(engine->tensors[layer->y].rank, engine->tensors[layer->y].dims);
      const int64_t *wanted = addresses ? (const int64_t *)(uintptr_t)addresses[layer->b] : NULL;
      if (!wanted)
        break;
      for (int32_t d = 0; d < y->rank; d++)
        y->d[d] = wanted[d];
      if (count_elements(y) < 0 || (count_elements(a) >= 0 && count_elements(y) > count_elements(a)))
        return false;
      break;
    }
    default:
      *y = *a;
    }
  }
  return true;
}

/* Where things lie in the scratch memory, for these shapes. */
struct scratch_plan plan_scratch(const struct engine *engine, const struct dims *shapes) {
  struct scratch_plan plan = {0};
  uint64_t sizes[2] = {0}, counter = 0;
  for (uint32_t i = 0; i < engine->header.layer_count; i++)
    if (engine->layers[i].kind == STANDIN_POSITIVE)
      counter = ALIGNMENT;
  for (uint32_t i = 0; i < engine->header.temporary_count; i++) {
    int64_t elements = count_elements(&shapes[engine->header.tensor_count + i]);
    uint64_t size = elements > 0 ? align_up((uint64_t)elements * 4) : 0;
    if (size > sizes[i % 2])
      sizes[i % 2] = size;
  }
  int64_t rows = 0;
  for (uint32_t i = 0; i < engine->header.tensor_count && rows == 0; i++)
    if (engine->tensors[i].mode == STANDIN_INPUT)
      rows = shapes[i].rank > 0 && shapes[i].d[0] > 0 ? shapes[i].d[0] : 1;
  plan.temporaries[0] = counter;
  plan.temporaries[1] = plan.temporaries[0] + sizes[0];
  plan.stream = plan.temporaries[1] + sizes[1];
  plan.end = plan.stream + align_up((uint64_t)engine->largest_streamed) +
             (uint64_t)(engine->header.scratch_base + engine->header.scratch_per_row * rows);
  return plan;
}

struct dims *make_shapes(const struct engine *engine) {
  size_t total = (size_t)engine->header.tensor_count + engine->header.temporary_count;
  struct dims *shapes = calloc(total + 1, sizeof *shapes);
  for (uint32_t i = 0; shapes && i < engine->header.tensor_count; i++)
    shapes[i] = dims_of(engine->tensors[i].rank, engine->tensors[i].dims);
  return shapes;
}

struct dims *make_largest(const struct engine *engine, int32_t profile) {
  struct dims *shapes = make_shapes(engine);
  for (uint32_t i = 0; shapes && i < engine->header.tensor_count; i++)
    if (engine->tensors[i].mode == STANDIN_INPUT)
      shapes[i] = dims_of(engine->tensors[i].rank, bounds_of(engine, profile, (int)i)->max);
  if (shapes)
    infer(engine, NULL, shapes);
  return shapes;
}

int64_t profile_scratch(const struct engine *engine, int32_t profile) {
  struct dims *shapes = make_largest(engine, profile);
  int64_t size = shapes ? (int64_t)plan_scratch(engine, shapes).end : 0;
  free(shapes);
  return size;
}

int64_t most_scratch(const struct engine *engine) {
  int64_t most = 0;
  for (uint32_t i = 0; i < engine->header.profile_count; i++) {
    int64_t size = profile_scratch(engine, (int32_t)i);
    most = size > most ? size : most;
  }
  return most;
}

/* ---------------------------------------------------------------- ICudaEngine */

void delete_engine(void *pointer) {
  struct engine *engine = object_of(pointer, CLASS_ENGINE);
  if (!engine)
    return;
  if (atomic_load(&engine->contexts))
    misuse("an engine is destroyed before %d contexts of it", atomic_load(&engine->contexts));
  is_current(engine, "destruction of an engine");
  atomic_fetch_sub(&engine->runtime->engines, 1);
  count(COUNTER_ENGINES, -1);
  free_engine(engine);
}

static int32_t count_layers(struct engine *engine) {
  return (int32_t)engine->header.layer_count;
}

static uint64_t is_refittable(struct engine *engine) {
  return truth(engine->header.flags & STANDIN_PLAN_REFITTABLE);
}

static const char *get_engine_name(struct engine *engine) {
  return engine->header.name;
}

static int32_t count_profiles(struct engine *engine) {
  return (int32_t)engine->header.profile_count;
}

static int32_t get_capability(struct engine *engine) {
  (void)engine;
  return 0;
}

static void set_engine_recorder(struct engine *engine, void *recorder) {
  engine->error_recorder = recorder;
}

static void *get_engine_recorder(struct engine *engine) {
  return engine->error_recorder;
}

static struct dims get_engine_shape(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return tensor < 0 ? (struct dims){.rank = -1}
                    : dims_of(engine->tensors[tensor].rank, engine->tensors[tensor].dims);
}

static int32_t get_dtype(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return tensor < 0 ? 0 : engine->tensors[tensor].dtype;
}

static int32_t get_location(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return tensor < 0 ? 0 : engine->tensors[tensor].location;
}

static uint64_t is_shape_io(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return truth(tensor >= 0 && engine->tensors[tensor].shape_io);
}

static int32_t get_mode(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return tensor < 0 ? 0 : engine->tensors[tensor].mode;
}

static int32_t get_component(struct engine *engine, const char *name) {
  (void)find_tensor(engine, name);
  return -1; /* nothing is vectorized */
}

static int32_t get_component_of_profile(struct engine *engine, const char *name, int32_t profile) {
  (void)profile;
  return get_component(engine, name);
}

static int32_t get_format(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  return tensor < 0 ? 0 : engine->tensors[tensor].format;
}

static int32_t get_format_of_profile(struct engine *engine, const char *name, int32_t profile) {
  (void)profile;
  return get_format(engine, name);
}

static const char *get_format_text(struct engine *engine, const char *name) {
  return get_format(engine, name) ? "Stand-in vectorized format" : "Row major linear format (kLINEAR)";
}

static const char *get_format_text_of_profile(struct engine *engine, const char *name, int32_t profile) {
  (void)profile;
  return get_format_text(engine, name);
}

static struct dims get_profile_shape(struct engine *engine, const char *name, int32_t profile,
                                     int32_t selector) {
  int tensor = find_tensor(engine, name);
  if (tensor < 0 || profile < 0 || profile >= (int32_t)engine->header.profile_count || selector < 0 ||
      selector > 2 || engine->tensors[tensor].mode != STANDIN_INPUT)
    return (struct dims){.rank = -1};
  const struct standin_profile_record *bounds = bounds_of(engine, profile, tensor);
  return dims_of(engine->tensors[tensor].rank, selector == 0   ? bounds->min
                                               : selector == 1 ? bounds->opt
                                                               : bounds->max);
}

static const int64_t *get_profile_values(struct engine *engine, const char *name, int32_t profile,
                                         int32_t selector) {
  (void)profile;
  (void)selector;
  (void)find_tensor(engine, name);
  return NULL;
}

static int32_t count_tensors(struct engine *engine) {
  return (int32_t)engine->header.tensor_count;
}

static const char *get_tensor_name(struct engine *engine, int32_t index) {
  return index >= 0 && (uint32_t)index < engine->header.tensor_count ? engine->tensors[index].name : NULL;
}

static int32_t get_hardware(struct engine *engine) {
  return (int32_t)engine->header.hardware;
}

static int32_t count_aux_streams(struct engine *engine) {
  (void)engine;
  return 0;
}

static int64_t get_streamable(struct engine *engine) {
  return engine->header.flags & STANDIN_PLAN_STREAMABLE ? (int64_t)engine->header.weights_size : 0;
}

static uint64_t set_budget(struct engine *engine, int64_t budget) {
  void *logger = engine->runtime->logger;
  if (!begin(STANDIN_BUDGET, logger))
    return truth(false);
  bool done = false;
  if (atomic_load(&engine->contexts))
    say(logger, ERROR,
        "ICudaEngine::setWeightStreamingBudgetV2: Error Code 3: API Usage Error (The weight streaming "
        "budget cannot be modified while there are active IExecutionContexts.)");
  else if (!get_streamable(engine))
    say(logger, ERROR,
        "ICudaEngine::setWeightStreamingBudgetV2: Error Code 3: API Usage Error (The engine was not "
        "built with weight streaming.)");
  else if (budget < 0)
    say(logger, ERROR,
        "ICudaEngine::setWeightStreamingBudgetV2: Error Code 3: API Usage Error (Parameter check "
        "failed, condition: gpuMemoryBudget >= 0.)");
  else if (is_current(engine, "setWeightStreamingBudgetV2"))
    done = place_weights(engine, engine->host_weights, budget);
  if (done)
    engine->budget = budget < get_streamable(engine) ? budget : get_streamable(engine);
  end(STANDIN_BUDGET);
  return truth(done);
}

static int64_t get_budget(struct engine *engine) {
  return engine->budget;
}

static int64_t get_automatic_budget(struct engine *engine) {
  if (!begin(STANDIN_AUTOMATIC_BUDGET, engine->runtime->logger))
    return -1;
  size_t free_bytes = 0, total_bytes = 0;
  cuda.memory_info(&free_bytes, &total_bytes);
  int64_t budget = get_streamable(engine);
  if ((int64_t)(free_bytes / 2) < budget)
    budget = (int64_t)(free_bytes / 2);
  const char *text = getenv("STANDIN_AUTOMATIC_BUDGET");
  if (text && *text)
    budget = strtoll(text, NULL, 10);
  end(STANDIN_AUTOMATIC_BUDGET);
  return budget;
}

static int64_t get_streaming_scratch(struct engine *engine) {
  return (int64_t)align_up((uint64_t)engine->largest_streamed);
}

static int64_t get_most_scratch(struct engine *engine) {
  return most_scratch(engine);
}

static int64_t get_profile_scratch(struct engine *engine, int32_t profile) {
  return profile >= 0 && profile < (int32_t)engine->header.profile_count ? profile_scratch(engine, profile)
                                                                         : 0;
}

static int64_t get_stat(struct engine *engine, int32_t stat) {
  if (stat == 0)
    return (int64_t)engine->header.weights_size;
  return engine->header.flags & STANDIN_PLAN_STRIPPED ? (int64_t)engine->header.weights_size : -1;
}

static const char *get_aliased_input(struct engine *engine, const char *name) {
  int tensor = find_tensor(engine, name);
  int32_t alias = tensor < 0 ? -1 : engine->tensors[tensor].alias;
  return alias < 0 ? NULL : engine->tensors[alias].name;
}

static void *create_context_with_config(struct engine *engine, void *pointer) {
  struct config *config = pointer ? object_of(pointer, CLASS_CONFIG) : NULL;
  return create_context(engine, config ? config->strategy : STRATEGY_STATIC);
}

static void *create_context_without_memory(struct engine *engine) {
  return create_context(engine, STRATEGY_USER_MANAGED);
}

/* ---------------------------------------------------------------- IRuntimeConfig */

static void *create_config(struct engine *engine) {
  (void)engine;
  struct config *config = make_object(sizeof *config, CLASS_CONFIG);
  return config ? &config->object.face : NULL;
}

void delete_config(void *pointer) {
  struct config *config = object_of(pointer, CLASS_CONFIG);
  if (config)
    free_object(&config->object, sizeof *config);
}

static void set_strategy(struct config *config, int32_t strategy) {
  config->strategy = strategy;
}

static int32_t get_strategy(struct config *config) {
  return config->strategy;
}

/* ---------------------------------------------------------------- methods */

const struct method engine_methods[] = {
    METHOD(0, "getPImpl", NULL, get_face),
    METHOD(0, "getNbLayers", "num_layers (get)", count_layers),
    METHOD(0, "createExecutionContext", "create_execution_context|strategy", create_context),
    METHOD(0, "createExecutionContextWithoutDeviceMemory", NULL, create_context_without_memory),
    METHOD(0, "getDeviceMemorySize", NULL, get_most_scratch),
    METHOD(0, "getDeviceMemorySizeForProfile", NULL, get_profile_scratch),
    METHOD(0, "isRefittable", "refittable (get)", is_refittable),
    METHOD(0, "getName", "name (get)", get_engine_name),
    METHOD(0, "getNbOptimizationProfiles", "num_optimization_profiles (get)", count_profiles),
    METHOD(0, "getEngineCapability", "engine_capability (get)", get_capability),
    METHOD(0, "setErrorRecorder", "error_recorder (set)", set_engine_recorder),
    METHOD(0, "getErrorRecorder", "error_recorder (get)", get_engine_recorder),
    METHOD(0, "getTensorShape", "get_tensor_shape", get_engine_shape),
    METHOD(0, "getTensorDataType", "get_tensor_dtype", get_dtype),
    METHOD(0, "getTensorLocation", "get_tensor_location", get_location),
    METHOD(0, "isShapeInferenceIO", "is_shape_inference_io", is_shape_io),
    METHOD(0, "getTensorIOMode", "get_tensor_mode", get_mode),
    METHOD(0, "getTensorBytesPerComponent", "get_tensor_bytes_per_component|name: str)", get_component),
    METHOD(0, "getTensorBytesPerComponentV2", "get_tensor_bytes_per_component|profile_index",
           get_component_of_profile),
    METHOD(0, "getTensorComponentsPerElement", "get_tensor_components_per_element|name: str)", get_component),
    METHOD(0, "getTensorComponentsPerElementV2", "get_tensor_components_per_element|profile_index",
           get_component_of_profile),
    METHOD(0, "getTensorFormat", "get_tensor_format|name: str)", get_format),
    METHOD(0, "getTensorFormatV2", "get_tensor_format|profile_index", get_format_of_profile),
    METHOD(0, "getTensorFormatDesc", "get_tensor_format_desc|name: str)", get_format_text),
    METHOD(0, "getTensorFormatDescV2", "get_tensor_format_desc|profile_index", get_format_text_of_profile),
    METHOD(0, "getTensorVectorizedDim", "get_tensor_vectorized_dim|name: str)", get_component),
    METHOD(0, "getTensorVectorizedDimV2", "get_tensor_vectorized_dim|profile_index",
           get_component_of_profile),
    METHOD(0, "getProfileShape", "get_tensor_profile_shape", get_profile_shape),
    METHOD(11, "getProfileTensorValuesV2", NULL, get_profile_values),
    METHOD(0, "getNbIOTensors", "num_io_tensors (get)", count_tensors),
    METHOD(0, "getIOTensorName", "get_tensor_name", get_tensor_name),
    METHOD(0, "getHardwareCompatibilityLevel", "hardware_compatibility_level (get)", get_hardware),
    METHOD(0, "getNbAuxStreams", "num_aux_streams (get)", count_aux_streams),
    METHOD(0, "getStreamableWeightsSize", "streamable_weights_size (get)", get_streamable),
    METHOD(1, "setWeightStreamingBudgetV2", "weight_streaming_budget_v2 (set)", set_budget),
    METHOD(1, "getWeightStreamingBudgetV2", "weight_streaming_budget_v2 (get)", get_budget),
    METHOD(1, "getWeightStreamingAutomaticBudget", "get_weight_streaming_automatic_budget",
           get_automatic_budget),
    METHOD(1, "getWeightStreamingScratchMemorySize", "weight_streaming_scratch_memory_size (get)",
           get_streaming_scratch),
    METHOD(1, "getDeviceMemorySizeV2", "device_memory_size_v2 (get)", get_most_scratch),
    METHOD(1, "getDeviceMemorySizeForProfileV2", "get_device_memory_size_for_profile_v2",
           get_profile_scratch),
    METHOD(11, "createExecutionContextWithRuntimeConfig", "create_execution_context|runtime_config",
           create_context_with_config),
    METHOD(11, "createRuntimeConfig", "create_runtime_config", create_config),
    METHOD(14, "getEngineStat", "get_engine_stat", get_stat),
    METHOD(15, "getAliasedInputTensor", "get_aliased_input_tensor", get_aliased_input),
    {0},
};

const struct method config_methods[] = {
    METHOD(11, "getPImpl", NULL, get_face),
    METHOD(11, "setExecutionContextAllocationStrategy", "set_execution_context_allocation_strategy",
           set_strategy),
    METHOD(11, "getExecutionContextAllocationStrategy", "get_execution_context_allocation_strategy",
           get_strategy),
    {0},
};
