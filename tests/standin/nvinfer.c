/* Stand-in libnvinfer, TESTS ONLY: the object layout and the slots of TensorRT 10.16, 11.4 or RTX 1.7 around
 * plans of plan.h, run by a CUDA driver, real or stand-in.
 *
 * What is kept true to the real libraries is their binary interface and their traps: calls go through mImpl's
 * table, whose slots come from slots.tsv; a public object is 0x228 bytes into its allocation and a failed
 * creation returns 0x228; only al of a bool means anything; the logger's slot and the output allocator's
 * differ by version; log text is gone after the call. A slot that is not made here prints which one it was.
 * Use that a real library would answer with a crash is counted (misuses) and printed.
 *
 * Engines are immutable once a context exists; a context is used by one thread at a time, and both are
 * checked.
 */
#include "driver.h"
#include "plan.h"
#include "standin.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels.h"

#define EXPORT __attribute__((visibility("default")))

struct slot_row {
  const char *version, *class_name;
  int slot;
  const char *method, *signature;
};
#include "slots.h"

/* STANDIN_PRODUCT: 10, 11 or 1 (RTX). */
#if STANDIN_PRODUCT == 10
static const char seen_version[] = "10.16.1", header_version[] = "10.16.1";
enum { BUILT_VERSION = 101601, LOGGER_SLOT = 0, ALLOCATE_OUTPUT_SLOT = 5, NOTIFY_SHAPE_SLOT = 6 };
#elif STANDIN_PRODUCT == 11
static const char seen_version[] = "11.4.0", header_version[] = "11.1";
enum { BUILT_VERSION = 110400, LOGGER_SLOT = 4, ALLOCATE_OUTPUT_SLOT = 5, NOTIFY_SHAPE_SLOT = 6 };
#else
static const char seen_version[] = "rtx-1.7.1", header_version[] = "11.1";
enum { BUILT_VERSION = 10701, LOGGER_SLOT = 4, ALLOCATE_OUTPUT_SLOT = 4, NOTIFY_SHAPE_SLOT = 5 };
#endif

enum { SLOTS_MAX = 80, FACE_OFFSET = 0x228, ALIGNMENT = 256, STEP_LINE_SIZE = 256 };
enum { INTERNAL_ERROR = 0, ERROR = 1, WARNING = 2, INFO = 3 };
enum { STRATEGY_STATIC = 0, STRATEGY_ON_PROFILE_CHANGE = 1, STRATEGY_USER_MANAGED = 2 };

typedef void entry(void);

enum class { CLASS_RUNTIME, CLASS_ENGINE, CLASS_CONTEXT, CLASS_CONFIG, CLASS_COUNT };
static const char *const class_names[CLASS_COUNT] = {"VRuntime", "VCudaEngine", "VExecutionContext",
                                                     "VRuntimeConfig"};

/* What a client holds: a pointer to a face. */
struct face {
  entry *const *vptr;
  struct object *impl;
};

struct object {
  entry *const *vptr;
  enum class class;
  uint32_t mark; /* OBJECT_ALIVE while it lives */
  char unused[FACE_OFFSET - 16];
  struct face face;
};
_Static_assert(offsetof(struct object, face) == FACE_OFFSET, "as in the real libraries");
enum { OBJECT_ALIVE = 0x0b1ec7, OBJECT_DEAD = 0xdead };

struct dims {
  int32_t rank;
  int64_t d[STANDIN_RANK_MAX];
};
_Static_assert(sizeof(struct dims) == 72, "Dims64");

enum kernel {
  KERNEL_GEMM,
  KERNEL_ADD,
  KERNEL_COPY,
  KERNEL_CACHE,
  KERNEL_COUNT,
  KERNEL_POSITIVE,
  KERNEL_KINDS
};
static const char *const kernel_names[KERNEL_KINDS] = {"standin_gemm",  "standin_add",   "standin_copy",
                                                       "standin_cache", "standin_count", "standin_positive"};

/* The kernels in one CUDA context, shared by the engines in it. */
struct module {
  struct module *next;
  void *context;
  unsigned long long context_id;
  void *handle;
  void *functions[KERNEL_KINDS];
  unsigned users;
};

struct runtime {
  struct object object;
  void *logger; /* borrowed */
  void *error_recorder;
  int32_t engines;
  int32_t max_threads, dla_core;
  uint32_t tempfile_flags;
  bool host_code_allowed;
  char directory[256];
};

struct engine {
  struct object object;
  struct runtime *runtime;
  struct standin_plan_header header;
  struct standin_tensor_record *tensors;   /* owned */
  struct standin_profile_record *profiles; /* owned, [profile][tensor] */
  struct standin_layer_record *layers;     /* owned */
  int64_t *resident_at;                    /* owned: of each layer's weights in device memory, -1: streamed */
  void *cuda_context;
  struct module *module;
  unsigned char *host_weights; /* owned, pinned: streamable engines only */
  uint64_t device_weights;     /* owned */
  int64_t budget, largest_streamed;
  void *error_recorder;
  _Atomic int contexts;
};

struct context {
  struct object object;
  struct engine *engine;
  int32_t strategy, profile;
  struct dims *inputs; /* owned, one a tensor; rank -1: not set */
  struct dims *shapes; /* owned, tensors then temporaries; as inferred last */
  uint64_t *addresses; /* owned */
  void **allocators;   /* owned */
  uint64_t scratch;    /* of the caller, or owned with the other strategies */
  int64_t scratch_size;
  bool owns_scratch;
  void *consumed_event, *error_recorder, *profiler;
  char name[64];
  atomic_flag busy;
};

struct config {
  struct object object;
  int32_t strategy;
};

static entry *tables[CLASS_COUNT][SLOTS_MAX];
static entry *faces[CLASS_COUNT][8];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct driver cuda;
static bool has_cuda;
static struct module *modules;       /* by lock */
static struct standin_counts counts; /* by lock */

static const char *const step_names[STANDIN_STEP_COUNT] = {
    "runtime",     "deserialize", "automatic_budget", "budget",  "context", "profile",
    "input_shape", "infer",       "address",          "scratch", "enqueue"};

static struct step {
  uint64_t calls;
  bool closed;
  unsigned inside;
  unsigned fail_in; /* calls; 0: never */
  enum standin_failure how;
  bool says, other_thread;
  int severity;
  char line[STEP_LINE_SIZE];
} steps[STANDIN_STEP_COUNT]; /* by lock */

/* ---------------------------------------------------------------- bools, misuse, log */

/* Callers that look at more than al are wrong. */
static uint64_t truth(bool value) {
  return UINT64_C(0xfedcba9876543200) | (value ? 1u : 0u);
}

static void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[256];
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "stand-in nvinfer: misuse: %s\n", text);
  pthread_mutex_lock(&lock);
  counts.misuses++;
  pthread_mutex_unlock(&lock);
}

static void write_line(void *logger, int severity, char *line) {
  if (!logger)
    return;
  entry *const *table = *(entry *const **)logger;
  void (*log)(void *, int32_t, const char *);
  memcpy(&log, &table[LOGGER_SLOT], sizeof log);
  log(logger, severity, line);
  memset(line, '#', strlen(line)); /* the text is the library's own, and it is gone now */
  pthread_mutex_lock(&lock);
  counts.lines++;
  pthread_mutex_unlock(&lock);
}

static void say(void *logger, int severity, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void say(void *logger, int severity, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  write_line(logger, severity, line);
}

struct other_line {
  void *logger;
  int severity;
  char text[STEP_LINE_SIZE];
};

static void *write_other(void *argument) {
  struct other_line *line = argument;
  write_line(line->logger, line->severity, line->text);
  return NULL;
}

static void say_from_thread(void *logger, int severity, const char *text) {
  struct other_line line = {.logger = logger, .severity = severity};
  snprintf(line.text, sizeof line.text, "%s", text);
  pthread_t thread;
  if (pthread_create(&thread, NULL, write_other, &line) == 0)
    pthread_join(thread, NULL);
}

/* ---------------------------------------------------------------- steps: gates, failures, lines */

/* Every step begins and ends; false: it fails, what there is to say was said, and it has ended. */
static bool begin(enum standin_step which, void *logger) {
  struct step *step = &steps[which];
  pthread_mutex_lock(&lock);
  step->calls++;
  step->inside++;
  pthread_cond_broadcast(&changed);
  while (step->closed)
    pthread_cond_wait(&changed, &lock);
  bool fails = step->fail_in && --step->fail_in == 0;
  struct step now = *step;
  pthread_mutex_unlock(&lock);
  if (now.says && now.other_thread)
    say_from_thread(logger, now.severity, now.line);
  else if (now.says)
    say(logger, now.severity, "%s", now.line);
  if (!fails)
    return true;
  if (now.how == STANDIN_FAIL_OUT_OF_MEMORY) {
    say(logger, ERROR, "[defaultAllocator.cpp::allocate::58] Error Code 1: Cuda Runtime (out of memory)");
    say(logger, WARNING, "Requested amount of GPU memory (1048576 bytes) could not be allocated.");
    say(logger, ERROR, "Error Code 2: OutOfMemory (Requested size was 1048576 bytes.)");
    say(logger, ERROR, "Error Code 10: Internal Error (stand-in: %s could not go on.)", step_names[which]);
  } else if (now.how == STANDIN_FAIL_PLAIN) {
    say(logger, ERROR, "Error Code 2: Internal Error (stand-in: %s was told to fail.)", step_names[which]);
  }
  pthread_mutex_lock(&lock);
  step->inside--;
  pthread_mutex_unlock(&lock);
  return false;
}

static void end(enum standin_step which) {
  pthread_mutex_lock(&lock);
  steps[which].inside--;
  pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- objects */

static uint64_t trapped(void *self, int slot) {
  struct object *object = self;
  const char *name = "no object of this library";
  if ((uintptr_t)self > 4096 && (uintptr_t)self % 8 == 0 && object->mark == OBJECT_ALIVE &&
      object->class < CLASS_COUNT)
    name = class_names[object->class];
  const char *method = "?";
  for (size_t i = 0; i < sizeof slot_rows / sizeof *slot_rows; i++)
    if (slot_rows[i].slot == slot && strcmp(slot_rows[i].class_name, name) == 0 &&
        (strcmp(slot_rows[i].version, seen_version) == 0 ||
         strcmp(slot_rows[i].version, header_version) == 0))
      method = slot_rows[i].method;
  fprintf(stderr, "stand-in nvinfer %d: slot %d of %s (%s) is not there\n", BUILT_VERSION, slot, name,
          method);
  pthread_mutex_lock(&lock);
  counts.traps++;
  pthread_mutex_unlock(&lock);
  return 0;
}

#define TRAP(n)                                                                                              \
  static uint64_t trap_##n(void *self) {                                                                     \
    return trapped(self, n);                                                                                 \
  }
#define TEN(X, t) X(t##0) X(t##1) X(t##2) X(t##3) X(t##4) X(t##5) X(t##6) X(t##7) X(t##8) X(t##9)
#define ALL_SLOTS(X)                                                                                         \
  X(0)                                                                                                       \
  X(1)                                                                                                       \
  X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5) TEN(X, 6)        \
      TEN(X, 7)
ALL_SLOTS(TRAP)

static void prepare(void);

static void *make_object(size_t size, enum class class) {
  pthread_once(&once, prepare);
  struct object *object = calloc(1, size);
  if (!object)
    return NULL;
  object->vptr = tables[class];
  object->class = class;
  object->mark = OBJECT_ALIVE;
  object->face.vptr = faces[class];
  object->face.impl = object;
  return object;
}

static void free_object(struct object *object, size_t size) {
  memset(object, 0xdf, size);
  object->mark = OBJECT_DEAD;
  free(object);
}

/* The object of a public pointer, for arguments and destructors. */
static void *object_of(void *pointer, enum class class) {
  struct object *object = (struct object *)(void *)((char *)pointer - FACE_OFFSET);
  if (object->mark == OBJECT_ALIVE && object->class == class && object->face.impl == object)
    return object;
  misuse("%p is no living %s", pointer, class_names[class]);
  return NULL;
}

static void count(int64_t *counter, int64_t *peak, int change) {
  pthread_mutex_lock(&lock);
  *counter += change;
  if (peak && *counter > *peak)
    *peak = *counter;
  pthread_mutex_unlock(&lock);
}

static void *get_face(struct object *self) {
  return &self->face;
}

/* ---------------------------------------------------------------- CUDA */

static const char *cuda_text(int result) {
  const char *text = NULL;
  cuda.error_string(result, &text);
  return text ? text : "unknown error";
}

/* True when `result` is fine, else logs as the libraries do. */
static bool passed(void *logger, const char *where, int result) {
  if (result == CU_OK)
    return true;
  if (result == CU_OUT_OF_MEMORY)
    say(logger, ERROR, "%s: Error Code 2: OutOfMemory (no further information)", where);
  else
    say(logger, ERROR, "%s: Error Code 1: Cuda Runtime (%s)", where, cuda_text(result));
  return false;
}

static bool allocate(void *logger, uint64_t *address, uint64_t size) {
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

static bool is_current(const struct engine *engine, const char *what) {
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

/* ---------------------------------------------------------------- shapes */

static int64_t count_elements(const struct dims *dims) {
  int64_t elements = 1;
  for (int32_t i = 0; i < dims->rank; i++) {
    if (dims->d[i] < 0)
      return -1;
    elements *= dims->d[i];
  }
  return dims->rank < 0 ? -1 : elements;
}

static int64_t dtype_size(int32_t dtype) {
  static const int64_t sizes[] = {4, 2, 1, 4, 1, 1, 1, 2, 8};
  return dtype >= 0 && dtype < (int32_t)(sizeof sizes / sizeof *sizes) ? sizes[dtype] : 0;
}

static uint64_t align_up(uint64_t size) {
  return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int find_tensor(const struct engine *engine, const char *name) {
  for (uint32_t i = 0; name && i < engine->header.tensor_count; i++)
    if (strcmp(engine->tensors[i].name, name) == 0)
      return (int)i;
  say(engine->runtime->logger, ERROR,
      "Error Code 3: API Usage Error (given invalid tensor name: %s. Get valid tensor names with "
      "getIOTensorName())",
      name ? name : "(null)");
  return -1;
}

static struct dims dims_of(int32_t rank, const int64_t *d) {
  struct dims dims = {.rank = rank};
  for (int32_t i = 0; i < rank; i++)
    dims.d[i] = d[i];
  return dims;
}

static const struct standin_profile_record *bounds_of(const struct engine *engine, int32_t profile,
                                                      int tensor) {
  return &engine->profiles[(size_t)profile * engine->header.tensor_count + (size_t)tensor];
}

/* Fills shapes from those of the inputs; -1 where they depend on what is not known yet. False: they do not
 * fit. */
static bool infer(const struct engine *engine, const uint64_t *addresses, struct dims *shapes) {
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

struct scratch_plan {
  uint64_t counter, temporaries[2], stream, end;
};

/* Where things lie in the scratch memory, for these shapes. */
static struct scratch_plan plan_scratch(const struct engine *engine, const struct dims *shapes) {
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

static struct dims *make_shapes(const struct engine *engine) {
  size_t total = (size_t)engine->header.tensor_count + engine->header.temporary_count;
  struct dims *shapes = calloc(total + 1, sizeof *shapes);
  for (uint32_t i = 0; shapes && i < engine->header.tensor_count; i++)
    shapes[i] = dims_of(engine->tensors[i].rank, engine->tensors[i].dims);
  return shapes;
}

/* Shapes at the upper bounds of a profile; owned. */
static struct dims *make_largest(const struct engine *engine, int32_t profile) {
  struct dims *shapes = make_shapes(engine);
  for (uint32_t i = 0; shapes && i < engine->header.tensor_count; i++)
    if (engine->tensors[i].mode == STANDIN_INPUT)
      shapes[i] = dims_of(engine->tensors[i].rank, bounds_of(engine, profile, (int)i)->max);
  if (shapes)
    infer(engine, NULL, shapes);
  return shapes;
}

static int64_t profile_scratch(const struct engine *engine, int32_t profile) {
  struct dims *shapes = make_largest(engine, profile);
  int64_t size = shapes ? (int64_t)plan_scratch(engine, shapes).end : 0;
  free(shapes);
  return size;
}

static int64_t most_scratch(const struct engine *engine) {
  int64_t most = 0;
  for (uint32_t i = 0; i < engine->header.profile_count; i++) {
    int64_t size = profile_scratch(engine, (int32_t)i);
    most = size > most ? size : most;
  }
  return most;
}

/* ---------------------------------------------------------------- IRuntime */

static void delete_runtime(void *pointer) {
  struct runtime *runtime = object_of(pointer, CLASS_RUNTIME);
  if (!runtime)
    return;
  if (runtime->engines)
    misuse("a runtime is destroyed before %d engines of it", runtime->engines);
  count(&counts.runtimes, NULL, -1);
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

static void free_engine(struct engine *engine) {
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
static bool place_weights(struct engine *engine, const unsigned char *weights, int64_t budget) {
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
  pthread_mutex_lock(&lock);
  runtime->engines++;
  counts.builds++;
  pthread_mutex_unlock(&lock);
  count(&counts.engines, &counts.engines_peak, 1);
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

/* ---------------------------------------------------------------- ICudaEngine */

static void delete_engine(void *pointer) {
  struct engine *engine = object_of(pointer, CLASS_ENGINE);
  if (!engine)
    return;
  if (atomic_load(&engine->contexts))
    misuse("an engine is destroyed before %d contexts of it", atomic_load(&engine->contexts));
  is_current(engine, "destruction of an engine");
  pthread_mutex_lock(&lock);
  engine->runtime->engines--;
  pthread_mutex_unlock(&lock);
  count(&counts.engines, NULL, -1);
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

static void *create_context(struct engine *engine, int32_t strategy) {
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
  count(&counts.contexts, &counts.contexts_peak, 1);
  face = &context->object.face;
done:
  end(STANDIN_CONTEXT);
  return face;
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

static void delete_config(void *pointer) {
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

/* ---------------------------------------------------------------- IExecutionContext */

static void delete_context(void *pointer) {
  struct context *context = object_of(pointer, CLASS_CONTEXT);
  if (!context)
    return;
  struct engine *engine = context->engine;
  is_current(engine, "destruction of a context");
  free_context(context);
  atomic_fetch_sub(&engine->contexts, 1);
  count(&counts.contexts, NULL, -1);
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
  pthread_mutex_lock(&lock);
  counts.scratch_told = size;
  pthread_mutex_unlock(&lock);
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
  unsigned blocks = items > 256 * 1024 ? 1024 : (unsigned)((items + 255) / 256);
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
  pthread_mutex_lock(&lock);
  counts.enqueues++;
  pthread_mutex_unlock(&lock);
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

/* ---------------------------------------------------------------- tables */

/* The header's name, and the name the observer of 11.4 and RTX saw ("|" then a part of the signature where
 * one name stands for two slots; NULL: never seen). `since`: minor of 10.x. */
static const struct implementation {
  enum class class;
  int since;
  const char *method, *seen;
  entry *entry;
} implementations[] = {
#define RUNTIME(since, method, seen, function)                                                               \
  { CLASS_RUNTIME, since, method, seen, (entry *)function }
#define ENGINE(since, method, seen, function)                                                                \
  { CLASS_ENGINE, since, method, seen, (entry *)function }
#define CONTEXT(since, method, seen, function)                                                               \
  { CLASS_CONTEXT, since, method, seen, (entry *)function }
    RUNTIME(0, "getPImpl", NULL, get_face),
    RUNTIME(0, "deserializeCudaEngine|const void *", "deserialize_cuda_engine|serialized_engine",
            deserialize),
    RUNTIME(7, "deserializeCudaEngineV2", "deserialize_cuda_engine|stream_reader_v2", deserialize_stream),
    RUNTIME(0, "setDLACore", "DLA_core (set)", set_dla_core),
    RUNTIME(0, "getDLACore", "DLA_core (get)", get_dla_core),
    RUNTIME(0, "getNbDLACores", "num_DLA_cores (get)", count_dla_cores),
    RUNTIME(0, "getLogger", "logger (get)", get_logger),
    RUNTIME(0, "setErrorRecorder", "error_recorder (set)", set_runtime_recorder),
    RUNTIME(0, "getErrorRecorder", "error_recorder (get)", get_runtime_recorder),
    RUNTIME(0, "setMaxThreads", "max_threads (set)", set_max_threads),
    RUNTIME(0, "getMaxThreads", "max_threads (get)", get_max_threads),
    RUNTIME(0, "setTemporaryDirectory", "temporary_directory (set)", set_directory),
    RUNTIME(0, "getTemporaryDirectory", "temporary_directory (get)", get_directory),
    RUNTIME(0, "setTempfileControlFlags", "tempfile_control_flags (set)", set_tempfile_flags),
    RUNTIME(0, "getTempfileControlFlags", "tempfile_control_flags (get)", get_tempfile_flags),
    RUNTIME(0, "setEngineHostCodeAllowed", "engine_host_code_allowed (set)", allow_host_code),
    RUNTIME(0, "getEngineHostCodeAllowed", "engine_host_code_allowed (get)", is_host_code_allowed),
    RUNTIME(99, NULL, "engine_header_size (get)", get_header_size),
    RUNTIME(99, NULL, "get_engine_validity", get_validity),
    ENGINE(0, "getPImpl", NULL, get_face),
    ENGINE(0, "getNbLayers", "num_layers (get)", count_layers),
    ENGINE(0, "createExecutionContext", "create_execution_context|strategy", create_context),
    ENGINE(0, "createExecutionContextWithoutDeviceMemory", NULL, create_context_without_memory),
    ENGINE(0, "getDeviceMemorySize", NULL, get_most_scratch),
    ENGINE(0, "getDeviceMemorySizeForProfile", NULL, get_profile_scratch),
    ENGINE(0, "isRefittable", "refittable (get)", is_refittable),
    ENGINE(0, "getName", "name (get)", get_engine_name),
    ENGINE(0, "getNbOptimizationProfiles", "num_optimization_profiles (get)", count_profiles),
    ENGINE(0, "getEngineCapability", "engine_capability (get)", get_capability),
    ENGINE(0, "setErrorRecorder", "error_recorder (set)", set_engine_recorder),
    ENGINE(0, "getErrorRecorder", "error_recorder (get)", get_engine_recorder),
    ENGINE(0, "getTensorShape", "get_tensor_shape", get_engine_shape),
    ENGINE(0, "getTensorDataType", "get_tensor_dtype", get_dtype),
    ENGINE(0, "getTensorLocation", "get_tensor_location", get_location),
    ENGINE(0, "isShapeInferenceIO", "is_shape_inference_io", is_shape_io),
    ENGINE(0, "getTensorIOMode", "get_tensor_mode", get_mode),
    ENGINE(0, "getTensorBytesPerComponent", "get_tensor_bytes_per_component|name: str)", get_component),
    ENGINE(0, "getTensorBytesPerComponentV2", "get_tensor_bytes_per_component|profile_index",
           get_component_of_profile),
    ENGINE(0, "getTensorComponentsPerElement", "get_tensor_components_per_element|name: str)", get_component),
    ENGINE(0, "getTensorComponentsPerElementV2", "get_tensor_components_per_element|profile_index",
           get_component_of_profile),
    ENGINE(0, "getTensorFormat", "get_tensor_format|name: str)", get_format),
    ENGINE(0, "getTensorFormatV2", "get_tensor_format|profile_index", get_format_of_profile),
    ENGINE(0, "getTensorFormatDesc", "get_tensor_format_desc|name: str)", get_format_text),
    ENGINE(0, "getTensorFormatDescV2", "get_tensor_format_desc|profile_index", get_format_text_of_profile),
    ENGINE(0, "getTensorVectorizedDim", "get_tensor_vectorized_dim|name: str)", get_component),
    ENGINE(0, "getTensorVectorizedDimV2", "get_tensor_vectorized_dim|profile_index",
           get_component_of_profile),
    ENGINE(0, "getProfileShape", "get_tensor_profile_shape", get_profile_shape),
    ENGINE(11, "getProfileTensorValuesV2", NULL, get_profile_values),
    ENGINE(0, "getNbIOTensors", "num_io_tensors (get)", count_tensors),
    ENGINE(0, "getIOTensorName", "get_tensor_name", get_tensor_name),
    ENGINE(0, "getHardwareCompatibilityLevel", "hardware_compatibility_level (get)", get_hardware),
    ENGINE(0, "getNbAuxStreams", "num_aux_streams (get)", count_aux_streams),
    ENGINE(0, "getStreamableWeightsSize", "streamable_weights_size (get)", get_streamable),
    ENGINE(1, "setWeightStreamingBudgetV2", "weight_streaming_budget_v2 (set)", set_budget),
    ENGINE(1, "getWeightStreamingBudgetV2", "weight_streaming_budget_v2 (get)", get_budget),
    ENGINE(1, "getWeightStreamingAutomaticBudget", "get_weight_streaming_automatic_budget",
           get_automatic_budget),
    ENGINE(1, "getWeightStreamingScratchMemorySize", "weight_streaming_scratch_memory_size (get)",
           get_streaming_scratch),
    ENGINE(1, "getDeviceMemorySizeV2", "device_memory_size_v2 (get)", get_most_scratch),
    ENGINE(1, "getDeviceMemorySizeForProfileV2", "get_device_memory_size_for_profile_v2",
           get_profile_scratch),
    ENGINE(11, "createExecutionContextWithRuntimeConfig", "create_execution_context|runtime_config",
           create_context_with_config),
    ENGINE(11, "createRuntimeConfig", "create_runtime_config", create_config),
    ENGINE(14, "getEngineStat", "get_engine_stat", get_stat),
    ENGINE(15, "getAliasedInputTensor", "get_aliased_input_tensor", get_aliased_input),
    CONTEXT(0, "getPImpl", NULL, get_face),
    CONTEXT(0, "setDebugSync", "debug_sync (set)", take_flag),
    CONTEXT(0, "setProfiler", "profiler (set)", set_profiler),
    CONTEXT(0, "getProfiler", "profiler (get)", get_profiler),
    CONTEXT(0, "getEngine", "engine (get)", get_engine),
    CONTEXT(0, "setName", "name (set)", set_name),
    CONTEXT(0, "getName", "name (get)", get_name),
    CONTEXT(0, "setDeviceMemory", "device_memory (set)", set_scratch_unsized),
    CONTEXT(0, "getOptimizationProfile", "active_optimization_profile (get)", get_profile),
    CONTEXT(0, "allInputDimensionsSpecified", "all_binding_shapes_specified (get)", are_shapes_specified),
    CONTEXT(0, "setErrorRecorder", "error_recorder (set)", set_context_recorder),
    CONTEXT(0, "getErrorRecorder", "error_recorder (get)", get_context_recorder),
    CONTEXT(0, "setOptimizationProfileAsync", "set_optimization_profile_async", set_profile),
    CONTEXT(0, "setEnqueueEmitsProfile", "enqueue_emits_profile (set)", take_flag),
    CONTEXT(0, "setInputShape", "set_input_shape", set_input_shape),
    CONTEXT(0, "getTensorShape", "get_tensor_shape", get_shape),
    CONTEXT(0, "getTensorStrides", "get_tensor_strides", get_strides),
    CONTEXT(0, "setTensorAddress", "set_tensor_address", set_address),
    CONTEXT(0, "getTensorAddress", "get_tensor_address", get_address),
    CONTEXT(0, "setInputTensorAddress", NULL, set_input_address),
    CONTEXT(0, "setOutputTensorAddress", NULL, set_output_address),
    CONTEXT(0, "inferShapes", NULL, infer_shapes),
    CONTEXT(0, "setInputConsumedEvent", "set_input_consumed_event", set_consumed_event),
    CONTEXT(0, "getInputConsumedEvent", "get_input_consumed_event", get_consumed_event),
    CONTEXT(0, "getOutputTensorAddress", NULL, get_address),
    CONTEXT(0, "setOutputAllocator", "set_output_allocator", set_allocator),
    CONTEXT(0, "getOutputAllocator", "get_output_allocator", get_allocator),
    CONTEXT(0, "getMaxOutputSize", "get_max_output_size", get_output_limit),
    CONTEXT(0, "enqueueV3", "execute_async_v3", enqueue),
    CONTEXT(0, "setPersistentCacheLimit", "persistent_cache_limit (set)", take_limit),
    CONTEXT(0, "setNvtxVerbosity", "nvtx_verbosity (set)", take_verbosity),
    CONTEXT(0, "setAuxStreams", "set_aux_streams", take_streams),
    CONTEXT(0, "updateDeviceMemorySizeForShapes", "update_device_memory_size_for_shapes", update_scratch),
    CONTEXT(1, "setDeviceMemoryV2", "set_device_memory", set_scratch),
    CONTEXT(99, NULL, "is_stream_capturable", is_capturable),
    {CLASS_CONFIG, 11, "getPImpl", NULL, (entry *)get_face},
    {CLASS_CONFIG, 11, "setExecutionContextAllocationStrategy", "set_execution_context_allocation_strategy",
     (entry *)set_strategy},
    {CLASS_CONFIG, 11, "getExecutionContextAllocationStrategy", "get_execution_context_allocation_strategy",
     (entry *)get_strategy},
};

/* The slot of "method" or "method|part of the signature" in the rows of a version, -1: none. */
static int find_slot(const char *version, const char *class_name, const char *wanted) {
  if (!wanted)
    return -1;
  size_t length = strcspn(wanted, "|");
  const char *part = wanted[length] ? wanted + length + 1 : "";
  for (size_t i = 0; i < sizeof slot_rows / sizeof *slot_rows; i++) {
    const struct slot_row *row = &slot_rows[i];
    if (strcmp(row->version, version) == 0 && strcmp(row->class_name, class_name) == 0 &&
        strncmp(row->method, wanted, length) == 0 && row->method[length] == '\0' &&
        strstr(row->signature, part))
      return row->slot;
  }
  return -1;
}

static int32_t told_version(void) {
  const char *text = getenv("STANDIN_NVINFER_VERSION");
  return text && *text ? (int32_t)strtol(text, NULL, 10) : BUILT_VERSION;
}

static void read_orders(void);

static void prepare(void) {
#define NAME(n) (entry *)trap_##n,
  static entry *const traps[SLOTS_MAX] = {ALL_SLOTS(NAME)};
  for (int class = 0; class < CLASS_COUNT; class ++) {
    memcpy(tables[class], traps, sizeof traps);
    memcpy(faces[class], traps, sizeof faces[class]);
  }
  faces[CLASS_RUNTIME][1] = (entry *)delete_runtime;
  faces[CLASS_ENGINE][1] = (entry *)delete_engine;
  faces[CLASS_CONTEXT][1] = (entry *)delete_context;
  faces[CLASS_CONFIG][1] = (entry *)delete_config;
  int minor = told_version() / 100 % 100;
  for (size_t i = 0; i < sizeof implementations / sizeof *implementations; i++) {
    const struct implementation *made = &implementations[i];
    if (STANDIN_PRODUCT == 10 && minor < made->since)
      continue;
    const char *class_name = class_names[made->class];
    int slot = STANDIN_PRODUCT == 10 ? -1 : find_slot(seen_version, class_name, made->seen);
    if (slot < 0)
      slot = find_slot(header_version, class_name, made->method);
    if (slot >= 0 && slot < SLOTS_MAX)
      tables[made->class][slot] = made->entry;
  }
  char why[256];
  has_cuda = driver_open(&cuda, why, sizeof why);
  read_orders();
}

/* ---------------------------------------------------------------- what tests turn */

static void fail_at(enum standin_step step, unsigned nth, enum standin_failure how) {
  pthread_mutex_lock(&lock);
  steps[step].fail_in = nth;
  steps[step].how = how;
  pthread_mutex_unlock(&lock);
}

static void set_gate(enum standin_step step, bool closed) {
  pthread_mutex_lock(&lock);
  steps[step].closed = closed;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void gate_close(enum standin_step step) {
  set_gate(step, true);
}

static void gate_open(enum standin_step step) {
  set_gate(step, false);
}

static bool wait_inside(enum standin_step step, unsigned number) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_mutex_lock(&lock);
  int waited = 0;
  while (steps[step].inside < number && !waited)
    waited = pthread_cond_timedwait(&changed, &lock, &until);
  bool reached = steps[step].inside >= number;
  pthread_mutex_unlock(&lock);
  return reached;
}

static void order_line(enum standin_step step, int severity, const char *line, bool other_thread) {
  pthread_mutex_lock(&lock);
  steps[step].says = line != NULL;
  steps[step].severity = severity;
  steps[step].other_thread = other_thread;
  snprintf(steps[step].line, sizeof steps[step].line, "%s", line ? line : "");
  pthread_mutex_unlock(&lock);
}

static uint64_t count_calls(enum standin_step step) {
  pthread_mutex_lock(&lock);
  uint64_t calls = steps[step].calls;
  pthread_mutex_unlock(&lock);
  return calls;
}

static void get_counts(struct standin_counts *to) {
  pthread_mutex_lock(&lock);
  *to = counts;
  pthread_mutex_unlock(&lock);
}

static void reset(void) {
  pthread_once(&once, prepare);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < STANDIN_STEP_COUNT; i++) {
    unsigned inside = steps[i].inside;
    memset(&steps[i], 0, sizeof steps[i]);
    steps[i].inside = inside;
  }
  struct standin_counts fresh = {.runtimes = counts.runtimes,
                                 .engines = counts.engines,
                                 .contexts = counts.contexts,
                                 .engines_peak = counts.engines,
                                 .contexts_peak = counts.contexts};
  counts = fresh;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static int find_step(const char *name) {
  for (int i = 0; i < STANDIN_STEP_COUNT; i++)
    if (strcmp(step_names[i], name) == 0)
      return i;
  fprintf(stderr, "stand-in nvinfer: no step '%s'\n", name);
  return -1;
}

static void read_orders(void) {
  char text[512];
  snprintf(text, sizeof text, "%s", getenv("STANDIN_FAIL") ? getenv("STANDIN_FAIL") : "");
  char *rest = NULL;
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    char name[64], how[32] = "plain";
    unsigned nth = 1;
    sscanf(part, "%63[^:]:%u:%31s", name, &nth, how);
    int step = find_step(name);
    if (step >= 0)
      fail_at((enum standin_step)step, nth,
              strcmp(how, "out_of_memory") == 0 ? STANDIN_FAIL_OUT_OF_MEMORY
              : strcmp(how, "silent") == 0      ? STANDIN_FAIL_SILENT
                                                : STANDIN_FAIL_PLAIN);
  }
  snprintf(text, sizeof text, "%s", getenv("STANDIN_SAY") ? getenv("STANDIN_SAY") : "");
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    int step = find_step(part);
    if (step >= 0)
      order_line((enum standin_step)step, INFO, "stand-in: a line from a thread of the library", true);
  }
}

EXPORT const struct standin_nvinfer *standin_nvinfer_control(void) {
  static const struct standin_nvinfer control = {
      .struct_size = sizeof control,
      .version = BUILT_VERSION,
      .fail_at = fail_at,
      .gate_close = gate_close,
      .gate_open = gate_open,
      .wait_inside = wait_inside,
      .say = order_line,
      .calls = count_calls,
      .counts = get_counts,
      .reset = reset,
  };
  pthread_once(&once, prepare);
  return &control;
}

/* For ctypes. */
EXPORT int standin_fail_at(const char *step, unsigned nth, int how);
EXPORT uint64_t standin_builds(void);
EXPORT int64_t standin_engines(void);
EXPORT uint64_t standin_misuses(void);

EXPORT int standin_fail_at(const char *name, unsigned nth, int how) {
  int step = find_step(name);
  pthread_once(&once, prepare);
  if (step >= 0)
    fail_at((enum standin_step)step, nth, (enum standin_failure)how);
  return step < 0;
}

EXPORT uint64_t standin_builds(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.builds;
}

EXPORT int64_t standin_engines(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.engines;
}

EXPORT uint64_t standin_misuses(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.misuses + now.traps;
}

/* ---------------------------------------------------------------- what the libraries export */

static void *last_logger;

EXPORT int32_t getInferLibVersion(void) {
  return told_version();
}

EXPORT int32_t getInferLibMajorVersion(void) {
  return told_version() / 10000;
}

EXPORT int32_t getInferLibMinorVersion(void) {
  return told_version() / 100 % 100;
}

EXPORT int32_t getInferLibPatchVersion(void) {
  return told_version() % 100;
}

EXPORT int32_t getInferLibBuildVersion(void) {
  return 0;
}

EXPORT void *getLogger(void) {
  pthread_mutex_lock(&lock);
  void *logger = last_logger;
  pthread_mutex_unlock(&lock);
  return logger;
}

/* The version is not checked, as in the real libraries. */
EXPORT void *createInferRuntime_INTERNAL(void *logger, int32_t version) {
  (void)version;
  pthread_once(&once, prepare);
  if (!logger)
    return (void *)FACE_OFFSET;
  if (!begin(STANDIN_RUNTIME, logger))
    return (void *)FACE_OFFSET;
  struct runtime *runtime = NULL;
  if (!has_cuda && STANDIN_PRODUCT != 1)
    say(logger, ERROR, "CUDA initialization failure with error: 35");
  else
    runtime = make_object(sizeof *runtime, CLASS_RUNTIME);
  if (runtime) {
    runtime->logger = logger;
    runtime->max_threads = 1;
    runtime->tempfile_flags = 3;
    runtime->dla_core = -1;
    count(&counts.runtimes, NULL, 1);
    pthread_mutex_lock(&lock);
    last_logger = logger;
    pthread_mutex_unlock(&lock);
  }
  end(STANDIN_RUNTIME);
  return runtime ? (void *)&runtime->object.face : (void *)FACE_OFFSET;
}

#if STANDIN_PRODUCT != 11 || !defined(STANDIN_LEAN)
EXPORT void *createInferBuilder_INTERNAL(void *logger, int32_t version) {
  (void)version;
  say(logger, ERROR, "stand-in: there is no builder here");
  return NULL;
}
#endif
