/* Stand-in libnvinfer, TESTS ONLY: IRuntime, and how a plan becomes an engine.
 *
 * A plan is checked record by record before anything is taken from it, as a real library would refuse or
 * crash on damaged bytes; only the weights are taken unchecked. A failed build frees everything. Kernels are
 * loaded once a CUDA context and unloaded with the last engine in it.
 */
#include "nvinfer.h"

#include "kernels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kernel_names[KERNEL_KINDS] = {"standin_gemm",  "standin_add",   "standin_copy",
                                                       "standin_cache", "standin_count", "standin_positive"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules; /* by lock */

/* ---------------------------------------------------------------- CUDA */

static const char *cuda_text(int result) {
  const char *text = NULL;
  cuda.error_string(result, &text);
  return text ? text : "unknown error";
}

bool passed(void *logger, const char *where, int result) {
  if (result == CU_OK)
    return true;
  if (result == CU_OUT_OF_MEMORY)
    say(logger, ERROR, "%s: Error Code 2: OutOfMemory (no further information)", where);
  else
    say(logger, ERROR, "%s: Error Code 1: Cuda Runtime (%s)", where, cuda_text(result));
  return false;
}

bool allocate(void *logger, uint64_t *address, uint64_t size) {
  int result = cuda.allocate(address, size);
  if (result == CU_OK)
    return true;
  say(logger, ERROR, "[defaultAllocator.cpp::allocate::58] Error Code 1: Cuda Runtime (%s)",
      cuda_text(result));
  if (result == CU_OUT_OF_MEMORY)
    say(logger, ERROR, "Error Code 2: OutOfMemory (Requested size was %llu bytes.)",
        (unsigned long long)size);
  return false;
}

/* The context that a library on top of the CUDA runtime works in: the current one, else device 0's own, which
 * stays current. */
static bool current_context(void *logger, void **context) {
  if (!has_cuda) {
    say(logger, ERROR,
        "IRuntime::deserializeCudaEngine: Error Code 1: Cuda Runtime (ScopedCudaStream: cudaError 35)");
    say(logger, ERROR, "catchCudaError: cudaError 35");
    return false;
  }
  int result = cuda.context_get(context);
  if (!result && !*context) {
    result = cuda.primary_retain(context, 0);
    if (!result)
      result = cuda.context_set(*context);
  }
  return passed(logger, "CUDA", result);
}

bool is_current(const struct engine *engine, const char *what) {
  void *context = NULL;
  cuda.context_get(&context);
  if (context == engine->cuda_context)
    return true;
  misuse("%s: the engine's CUDA context is not current", what);
  return false;
}

static struct module *take_module(void *logger, void *context) {
  unsigned long long id = 0;
  cuda.context_id(context, &id);
  pthread_mutex_lock(&lock);
  struct module *module = modules;
  while (module && (module->context != context || module->context_id != id))
    module = module->next;
  if (module)
    module->users++;
  pthread_mutex_unlock(&lock);
  if (module)
    return module;
  module = calloc(1, sizeof *module);
  if (!module)
    return NULL;
  module->context = context;
  module->context_id = id;
  module->users = 1;
  int result = cuda.module_load(&module->handle, standin_ptx);
  bool loaded = result == CU_OK;
  for (int i = 0; i < KERNEL_KINDS && !result; i++)
    result = cuda.module_function(&module->functions[i], module->handle, kernel_names[i]);
  if (!passed(logger, "loading kernels", result)) {
    if (loaded)
      cuda.module_unload(module->handle);
    free(module);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  module->next = modules;
  modules = module;
  pthread_mutex_unlock(&lock);
  return module;
}

static void give_module(struct module *module) {
  if (!module)
    return;
  pthread_mutex_lock(&lock);
  bool last = --module->users == 0;
  if (last) {
    struct module **link = &modules;
    while (*link != module)
      link = &(*link)->next;
    *link = module->next;
  }
  pthread_mutex_unlock(&lock);
  if (last) {
    cuda.module_unload(module->handle);
    free(module);
  }
}

/* ---------------------------------------------------------------- IRuntime */

void delete_runtime(void *pointer) {
  struct runtime *runtime = object_of(pointer, CLASS_RUNTIME);
  if (!runtime)
    return;
  if (atomic_load(&runtime->engines))
    misuse("a runtime is destroyed before %d engines of it", atomic_load(&runtime->engines));
  count(COUNTER_RUNTIMES, -1);
  free_object(&runtime->object, sizeof *runtime);
}

static int device_compute(void) {
  int device = 0, major = 0, minor = 0;
  cuda.context_device(&device);
  cuda.device_attribute(&major, 75, device);
  cuda.device_attribute(&minor, 76, device);
  return major * 10 + minor;
}

static bool refuse(void *logger, const char *text) {
  say(logger, ERROR, "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (%s)", text);
  return false;
}

static bool check_header(const struct runtime *runtime, const struct standin_plan_header *header,
                         size_t size) {
  if (memcmp(header->magic, STANDIN_PLAN_MAGIC, sizeof header->magic) != 0)
    return refuse(runtime->logger, "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed."
                                   "Magic tag does not match");
  if (header->format != STANDIN_PLAN_FORMAT)
    return refuse(runtime->logger, "Serialization assertion header.format failed.Version tag does not match");
  if (header->size != size)
    return refuse(runtime->logger, "Serialization assertion header.planSize == blobSize failed.");
  if (header->library && header->library != (uint32_t)BUILT_VERSION) {
    say(runtime->logger, ERROR,
        "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is not "
        "compatible with "
        "this version of TensorRT, expecting library version %d got %u, please rebuild.)",
        BUILT_VERSION, header->library);
    return false;
  }
  uint32_t compute = (uint32_t)device_compute();
  bool fits = !header->compute || header->compute == compute || (header->hardware == 1 && compute >= 80);
  if (!fits && STANDIN_PRODUCT == 1)
    say(runtime->logger, ERROR,
        "The engine cannot run on this GPU, which has compute capability %u.%u. Supported compute "
        "capabilities: %u.%u",
        compute / 10, compute % 10, header->compute / 10, header->compute % 10);
  else if (!fits)
    say(runtime->logger, ERROR,
        "IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated "
        "on an "
        "incompatible device, expecting compute %u.%u got compute %u.%u, please rebuild.)",
        compute / 10, compute % 10, header->compute / 10, header->compute % 10);
  if (fits && header->flags & STANDIN_PLAN_HOST_CODE && !runtime->host_code_allowed) {
    say(runtime->logger, ERROR,
        "IRuntime::deserializeCudaEngine: Error Code 4: API Usage Error (Plan contains host executable code, "
        "call "
        "setEngineHostCodeAllowed(true) to deserialize it.)");
    return false;
  }
  return fits;
}

/* The sizes that the header gives, all within the blob. */
static bool check_sizes(const struct standin_plan_header *header) {
  if (header->tensor_count > 1024 || header->profile_count < 1 || header->profile_count > 64 ||
      header->layer_count > 100000 || header->temporary_count > 100000 || header->scratch_base < 0 ||
      header->scratch_base > (int64_t)1 << 40 || header->scratch_per_row < 0 ||
      header->scratch_per_row > (int64_t)1 << 30)
    return false;
  uint64_t records =
      sizeof *header + header->tensor_count * sizeof(struct standin_tensor_record) +
      (uint64_t)header->profile_count * header->tensor_count * sizeof(struct standin_profile_record) +
      header->layer_count * sizeof(struct standin_layer_record);
  return records <= header->weights_offset && header->weights_offset <= header->size &&
         header->weights_size == header->size - header->weights_offset;
}

static bool check_records(const struct engine *engine) {
  int32_t tensors = (int32_t)engine->header.tensor_count;
  int32_t total = tensors + (int32_t)engine->header.temporary_count;
  for (int32_t i = 0; i < tensors; i++) {
    const struct standin_tensor_record *tensor = &engine->tensors[i];
    if (!memchr(tensor->name, '\0', sizeof tensor->name) || tensor->rank < 0 ||
        tensor->rank > STANDIN_RANK_MAX ||
        (tensor->mode != STANDIN_INPUT && tensor->mode != STANDIN_OUTPUT) || !dtype_size(tensor->dtype) ||
        tensor->alias < -1 || tensor->alias >= tensors)
      return false;
  }
  for (uint32_t i = 0; i < engine->header.layer_count; i++) {
    const struct standin_layer_record *layer = &engine->layers[i];
    bool two = layer->kind == STANDIN_ADD || layer->kind == STANDIN_CACHE || layer->kind == STANDIN_SLICE;
    if (layer->kind < STANDIN_GEMM || layer->kind > STANDIN_POSITIVE || layer->a < 0 || layer->a >= total ||
        layer->y < 0 || layer->y >= total || (two && (layer->b < 0 || layer->b >= total)))
      return false;
    bool io_only =
        layer->kind == STANDIN_SLICE || layer->kind == STANDIN_SHAPE || layer->kind == STANDIN_POSITIVE;
    if (io_only && (layer->y >= tensors || (layer->kind == STANDIN_SLICE && layer->b >= tensors)))
      return false;
    if (layer->kind == STANDIN_SLICE && engine->tensors[layer->b].dims[0] < engine->tensors[layer->y].rank)
      return false;
    if (layer->kind == STANDIN_GEMM &&
        (layer->k <= 0 || layer->n <= 0 || layer->k > 1 << 20 || layer->n > 1 << 20 ||
         layer->weights_size != (uint64_t)(layer->k * layer->n + layer->n) * 4 ||
         layer->weights_at > engine->header.weights_size ||
         layer->weights_size > engine->header.weights_size - layer->weights_at))
      return false;
  }
  return true;
}

void free_engine(struct engine *engine) {
  if (engine->device_weights)
    cuda.release(engine->device_weights);
  if (engine->host_weights)
    cuda.host_release(engine->host_weights);
  give_module(engine->module);
  free(engine->tensors);
  free(engine->profiles);
  free(engine->layers);
  free(engine->resident_at);
  free_object(&engine->object, sizeof *engine);
}

/* Puts whole layers into `budget` bytes of device memory, in order; the rest streams. */
bool place_weights(struct engine *engine, const unsigned char *weights, int64_t budget) {
  void *logger = engine->runtime->logger;
  int64_t resident = 0, largest = 0;
  for (uint32_t i = 0; i < engine->header.layer_count; i++) {
    int64_t size = (int64_t)engine->layers[i].weights_size;
    bool stays = size <= budget - resident;
    engine->resident_at[i] = stays ? resident : -1;
    resident += stays ? size : 0;
    largest = !stays && size > largest ? size : largest;
  }
  uint64_t address = 0;
  if (resident && !allocate(logger, &address, (uint64_t)resident))
    return false;
  for (uint32_t i = 0; i < engine->header.layer_count; i++) {
    const struct standin_layer_record *layer = &engine->layers[i];
    if (engine->resident_at[i] < 0 || !layer->weights_size)
      continue;
    int result = cuda.copy_to(address + (uint64_t)engine->resident_at[i], weights + layer->weights_at,
                              layer->weights_size);
    if (!passed(logger, "copying weights", result)) {
      cuda.release(address);
      return false;
    }
  }
  if (engine->device_weights)
    cuda.release(engine->device_weights);
  engine->device_weights = address;
  engine->largest_streamed = largest;
  return true;
}

static void *duplicate(const void *from, size_t size) {
  void *copy = malloc(size + 1);
  if (copy && size)
    memcpy(copy, from, size);
  return copy;
}

static bool fill_engine(struct engine *engine, const unsigned char *blob) {
  const struct standin_plan_header *header = &engine->header;
  void *logger = engine->runtime->logger;
  size_t tensors_size = header->tensor_count * sizeof *engine->tensors;
  size_t profiles_size = (size_t)header->profile_count * header->tensor_count * sizeof *engine->profiles;
  const unsigned char *from = blob + sizeof *header;
  engine->tensors = duplicate(from, tensors_size);
  engine->profiles = duplicate(from + tensors_size, profiles_size);
  engine->layers =
      duplicate(from + tensors_size + profiles_size, header->layer_count * sizeof *engine->layers);
  engine->resident_at = calloc(header->layer_count + 1, sizeof *engine->resident_at);
  if (!engine->tensors || !engine->profiles || !engine->layers || !engine->resident_at) {
    say(logger, ERROR, "Error Code 2: OutOfMemory (host memory)");
    return false;
  }
  if (!check_records(engine))
    return refuse(logger, "Serialization assertion failed.Plan records are inconsistent");
  if (!(engine->module = take_module(logger, engine->cuda_context)))
    return false;
  const unsigned char *weights = blob + header->weights_offset;
  bool streams = header->flags & STANDIN_PLAN_STREAMABLE && header->weights_size;
  if (!streams)
    return place_weights(engine, weights, INT64_MAX / 2);
  void *pinned = NULL;
  if (!passed(logger, "host memory for weights", cuda.host_allocate(&pinned, header->weights_size, 0)))
    return false;
  engine->host_weights = pinned;
  memcpy(pinned, weights, header->weights_size);
  return place_weights(engine, engine->host_weights, 0);
}

static void *deserialize(struct runtime *runtime, const void *blob, size_t size) {
  if (!begin(STANDIN_DESERIALIZE, runtime->logger))
    return NULL;
  struct engine *engine = NULL;
  void *face = NULL, *context = NULL;
  struct standin_plan_header header;
  if (!blob || size == 0) {
    say(runtime->logger, ERROR,
        "IRuntime::deserializeCudaEngine: Error Code 3: API Usage Error (Parameter check "
        "failed, condition: blob != nullptr && size > 0.)");
    goto done;
  }
  if (size < sizeof header) {
    refuse(runtime->logger, "Serialization assertion size >= sizeof(header) failed.Blob is too short");
    goto done;
  }
  memcpy(&header, blob, sizeof header);
  if (!current_context(runtime->logger, &context) || !check_header(runtime, &header, size))
    goto done;
  if (!check_sizes(&header)) {
    refuse(runtime->logger, "Serialization assertion failed.Sizes in the plan are inconsistent");
    goto done;
  }
  engine = make_object(sizeof *engine, CLASS_ENGINE);
  if (!engine)
    goto done;
  engine->runtime = runtime;
  engine->header = header;
  engine->cuda_context = context;
  if (!fill_engine(engine, blob)) {
    free_engine(engine);
    goto done;
  }
  say(runtime->logger, INFO, "Loaded engine size: %llu MiB", (unsigned long long)(size >> 20));
  atomic_fetch_add(&runtime->engines, 1);
  count(COUNTER_BUILDS, 1);
  count(COUNTER_ENGINES, 1);
  face = &engine->object.face;
done:
  end(STANDIN_DESERIALIZE);
  return face;
}

/* Reads all of it through IStreamReaderV2: slot 4 read(dst, size, stream). */
static void *deserialize_stream(struct runtime *runtime, void *reader) {
  entry *const *table = *(entry *const **)reader;
  int64_t (*read)(void *, void *, int64_t, void *);
  memcpy(&read, &table[4], sizeof read);
  struct standin_plan_header header;
  unsigned char *blob = NULL;
  void *engine = NULL;
  if (read(reader, &header, sizeof header, NULL) != (int64_t)sizeof header || header.size < sizeof header ||
      header.size > (uint64_t)1 << 40 || !(blob = malloc(header.size))) {
    refuse(runtime->logger, "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed."
                            "Magic tag does not match");
    return NULL;
  }
  memcpy(blob, &header, sizeof header);
  int64_t rest = (int64_t)(header.size - sizeof header);
  if (rest == 0 || read(reader, blob + sizeof header, rest, NULL) == rest)
    engine = deserialize(runtime, blob, header.size);
  free(blob);
  return engine;
}

static void set_dla_core(struct runtime *runtime, int32_t core) {
  runtime->dla_core = core;
}

static int32_t get_dla_core(struct runtime *runtime) {
  return runtime->dla_core;
}

static int32_t count_dla_cores(struct runtime *runtime) {
  (void)runtime;
  const char *text = getenv("STANDIN_DLA_CORES");
  return text ? (int32_t)strtol(text, NULL, 10) : 0;
}

static void *get_logger(struct runtime *runtime) {
  return runtime->logger;
}

static void set_runtime_recorder(struct runtime *runtime, void *recorder) {
  runtime->error_recorder = recorder;
}

static void *get_runtime_recorder(struct runtime *runtime) {
  return runtime->error_recorder;
}

static uint64_t set_max_threads(struct runtime *runtime, int32_t threads) {
  if (threads >= 1)
    runtime->max_threads = threads;
  return truth(threads >= 1);
}

static int32_t get_max_threads(struct runtime *runtime) {
  return runtime->max_threads;
}

static void set_directory(struct runtime *runtime, const char *directory) {
  snprintf(runtime->directory, sizeof runtime->directory, "%s", directory ? directory : "");
}

static const char *get_directory(struct runtime *runtime) {
  return runtime->directory;
}

static void set_tempfile_flags(struct runtime *runtime, uint32_t flags) {
  runtime->tempfile_flags = flags;
}

static uint32_t get_tempfile_flags(struct runtime *runtime) {
  return runtime->tempfile_flags;
}

static void allow_host_code(struct runtime *runtime, bool allowed) {
  runtime->host_code_allowed = allowed;
}

static uint64_t is_host_code_allowed(struct runtime *runtime) {
  return truth(runtime->host_code_allowed);
}

/* RTX only. */
static int64_t get_header_size(struct runtime *runtime) {
  (void)runtime;
  return sizeof(struct standin_plan_header);
}

static int32_t get_validity(struct runtime *runtime, const void *blob, int64_t size, uint64_t *diagnostics) {
  (void)runtime;
  struct standin_plan_header header;
  *diagnostics = 0;
  if (size < (int64_t)sizeof header || !blob) {
    *diagnostics = 32;
    return 2;
  }
  memcpy(&header, blob, sizeof header);
  if (memcmp(header.magic, STANDIN_PLAN_MAGIC, sizeof header.magic) != 0)
    *diagnostics |= 32;
  else if (header.library && header.library != (uint32_t)BUILT_VERSION)
    *diagnostics |= 1;
  else if (!has_cuda)
    *diagnostics |= 64;
  else if (header.compute && header.compute != (uint32_t)device_compute() && header.hardware != 1)
    *diagnostics |= 2;
  return *diagnostics ? 2 : 0;
}

const struct method runtime_methods[] = {
    METHOD(0, "getPImpl", NULL, get_face),
    METHOD(0, "deserializeCudaEngine|const void *", "deserialize_cuda_engine|serialized_engine", deserialize),
    METHOD(7, "deserializeCudaEngineV2", "deserialize_cuda_engine|stream_reader_v2", deserialize_stream),
    METHOD(0, "setDLACore", "DLA_core (set)", set_dla_core),
    METHOD(0, "getDLACore", "DLA_core (get)", get_dla_core),
    METHOD(0, "getNbDLACores", "num_DLA_cores (get)", count_dla_cores),
    METHOD(0, "getLogger", "logger (get)", get_logger),
    METHOD(0, "setErrorRecorder", "error_recorder (set)", set_runtime_recorder),
    METHOD(0, "getErrorRecorder", "error_recorder (get)", get_runtime_recorder),
    METHOD(0, "setMaxThreads", "max_threads (set)", set_max_threads),
    METHOD(0, "getMaxThreads", "max_threads (get)", get_max_threads),
    METHOD(0, "setTemporaryDirectory", "temporary_directory (set)", set_directory),
    METHOD(0, "getTemporaryDirectory", "temporary_directory (get)", get_directory),
    METHOD(0, "setTempfileControlFlags", "tempfile_control_flags (set)", set_tempfile_flags),
    METHOD(0, "getTempfileControlFlags", "tempfile_control_flags (get)", get_tempfile_flags),
    METHOD(0, "setEngineHostCodeAllowed", "engine_host_code_allowed (set)", allow_host_code),
    METHOD(0, "getEngineHostCodeAllowed", "engine_host_code_allowed (get)", is_host_code_allowed),
    METHOD(99, NULL, "engine_header_size (get)", get_header_size),
    METHOD(99, NULL, "get_engine_validity", get_validity),
    {0},
};
