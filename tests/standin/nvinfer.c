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
#include "nvinfer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slot_row {
  const char *version, *class_name;
  int slot;
  const char *method, *signature;
};
#include "slots.h"

/* Where the observer's names are, and where the header's. */
#if STANDIN_PRODUCT == 10
static const char seen_version[] = "10.16.1", header_version[] = "10.16.1";
#elif STANDIN_PRODUCT == 11
static const char seen_version[] = "11.4.0", header_version[] = "11.1";
#else
static const char seen_version[] = "rtx-1.7.1", header_version[] = "11.1";
#endif

const char *const class_names[CLASS_COUNT] = {"VRuntime", "VCudaEngine", "VExecutionContext",
                                              "VRuntimeConfig"};

static entry *tables[CLASS_COUNT][SLOTS_MAX];
static entry *faces[CLASS_COUNT][8];
struct driver cuda;
bool has_cuda;

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
  count(COUNTER_TRAPS, 1);
  return 0;
}

#define TRAP(n)                                                                                              \
  static uint64_t trap_##n(void *self) {                                                                     \
    return trapped(self, n);                                                                                 \
  }
#define TEN(X, t)    X(t##0) X(t##1) X(t##2) X(t##3) X(t##4) X(t##5) X(t##6) X(t##7) X(t##8) X(t##9)
#define ALL_SLOTS(X) TEN(X, ) TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5) TEN(X, 6) TEN(X, 7)
ALL_SLOTS(TRAP)

void *make_object(size_t size, enum class class) {
  prepare();
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

void free_object(struct object *object, size_t size) {
  memset(object, 0xdf, size);
  object->mark = OBJECT_DEAD;
  free(object);
}

void *object_of(void *pointer, enum class class) {
  struct object *object = (struct object *)(void *)((char *)pointer - FACE_OFFSET);
  if (object->mark == OBJECT_ALIVE && object->class == class && object->face.impl == object)
    return object;
  misuse("%p is no living %s", pointer, class_names[class]);
  return NULL;
}

void *get_face(struct object *self) {
  return &self->face;
}

/* ---------------------------------------------------------------- tables */

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

int32_t told_version(void) {
  const char *text = getenv("STANDIN_NVINFER_VERSION");
  return text && *text ? (int32_t)strtol(text, NULL, 10) : BUILT_VERSION;
}

static void fill_table(enum class class, const struct method *methods, void (*destroy)(void *)) {
#define NAME(n) (entry *)trap_##n,
  static entry *const traps[SLOTS_MAX] = {ALL_SLOTS(NAME)};
  memcpy(tables[class], traps, sizeof traps);
  memcpy(faces[class], traps, sizeof faces[class]);
  faces[class][1] = (entry *)destroy;
  int minor = told_version() / 100 % 100;
  for (const struct method *method = methods; method->entry; method++) {
    if (STANDIN_PRODUCT == 10 && minor < method->since)
      continue;
    int slot = STANDIN_PRODUCT == 10 ? -1 : find_slot(seen_version, class_names[class], method->seen);
    if (slot < 0)
      slot = find_slot(header_version, class_names[class], method->name);
    if (slot >= 0 && slot < SLOTS_MAX)
      tables[class][slot] = method->entry;
  }
}

static void prepare_once(void) {
  fill_table(CLASS_RUNTIME, runtime_methods, delete_runtime);
  fill_table(CLASS_ENGINE, engine_methods, delete_engine);
  fill_table(CLASS_CONTEXT, context_methods, delete_context);
  fill_table(CLASS_CONFIG, config_methods, delete_config);
  char why[256];
  has_cuda = driver_open(&cuda, why, sizeof why);
  read_orders();
}

void prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare_once);
}

/* ---------------------------------------------------------------- what the libraries export */

static void *_Atomic last_logger;

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
  return atomic_load(&last_logger);
}

/* The version is not checked, as in the real libraries. */
EXPORT void *createInferRuntime_INTERNAL(void *logger, int32_t version) {
  (void)version;
  prepare();
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
    count(COUNTER_RUNTIMES, 1);
    atomic_store(&last_logger, logger);
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
