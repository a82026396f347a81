/* Inside the stand-in libnvinfer. TESTS ONLY.
 *
 * nvinfer.c has what the library exports, its objects and their tables; nvinfer_control.c log, orders of
 * tests and counters; nvinfer_runtime.c IRuntime and how a plan becomes an engine; nvinfer_engine.c
 * ICudaEngine and shapes; nvinfer_context.c IExecutionContext. Each class's file lists its methods by name;
 * their slots come from slots.tsv.
 */
#ifndef TANDEM_STANDIN_NVINFER_H
#define TANDEM_STANDIN_NVINFER_H

#include "driver.h"
#include "plan.h"
#include "standin.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* STANDIN_PRODUCT: 10, 11 or 1 (RTX). */
#if STANDIN_PRODUCT == 10
enum { BUILT_VERSION = 101601, LOGGER_SLOT = 0, ALLOCATE_OUTPUT_SLOT = 5, NOTIFY_SHAPE_SLOT = 6 };
#elif STANDIN_PRODUCT == 11
enum { BUILT_VERSION = 110400, LOGGER_SLOT = 4, ALLOCATE_OUTPUT_SLOT = 5, NOTIFY_SHAPE_SLOT = 6 };
#else
enum { BUILT_VERSION = 10701, LOGGER_SLOT = 4, ALLOCATE_OUTPUT_SLOT = 4, NOTIFY_SHAPE_SLOT = 5 };
#endif

enum { SLOTS_MAX = 80, FACE_OFFSET = 0x228, ALIGNMENT = 256 };
enum { INTERNAL_ERROR = 0, ERROR = 1, WARNING = 2, INFO = 3 };
enum { STRATEGY_STATIC = 0, STRATEGY_ON_PROFILE_CHANGE = 1, STRATEGY_USER_MANAGED = 2 };

typedef void entry(void);

enum class { CLASS_RUNTIME, CLASS_ENGINE, CLASS_CONTEXT, CLASS_CONFIG, CLASS_COUNT };

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
  _Atomic int engines;
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

/* Where things lie in the scratch memory of a run. */
struct scratch_plan {
  uint64_t counter, temporaries[2], stream, end;
};

/* A method: the header's name, and the name the observer of 11.4 and RTX saw ("|" then a part of the
 * signature where one name stands for two slots; NULL: never seen). `since`: minor of 10.x. */
struct method {
  int since;
  const char *name, *seen;
  entry *entry;
};
#define METHOD(since, name, seen, function)                                                                  \
  { since, name, seen, (entry *)function }
extern const struct method runtime_methods[], engine_methods[], context_methods[], config_methods[];

/* Loaded by prepare(), which runs once before any object is made. */
extern struct driver cuda;
extern bool has_cuda;
void prepare(void);

/* nvinfer.c: objects. */
void *make_object(size_t size, enum class class);
void free_object(struct object *object, size_t size);
/* The object of a public pointer, for arguments and destructors; NULL, and a misuse, if it does not live. */
void *object_of(void *pointer, enum class class);
void *get_face(struct object *self);
void delete_runtime(void *pointer);
void delete_engine(void *pointer);
void delete_context(void *pointer);
void delete_config(void *pointer);
int32_t told_version(void);
extern const char *const class_names[CLASS_COUNT];

/* nvinfer_control.c */
enum counter {
  COUNTER_RUNTIMES,
  COUNTER_ENGINES,
  COUNTER_CONTEXTS,
  COUNTER_BUILDS,
  COUNTER_ENQUEUES,
  COUNTER_TRAPS
};
void count(enum counter counter, int change);
void note_scratch(int64_t size);
/* Callers that look at more than al of a bool are wrong. */
uint64_t truth(bool value);
void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say(void *logger, int severity, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Every step begins and ends; false: it fails, what there is to say was said, and it has ended. */
bool begin(enum standin_step which, void *logger);
void end(enum standin_step which);
void read_orders(void);

/* nvinfer_runtime.c */
/* True when `result` is fine, else logs as the libraries do. */
bool passed(void *logger, const char *where, int result);
bool allocate(void *logger, uint64_t *address, uint64_t size);
bool is_current(const struct engine *engine, const char *what);
bool place_weights(struct engine *engine, const unsigned char *weights, int64_t budget);
void free_engine(struct engine *engine);

/* nvinfer_engine.c */
int64_t count_elements(const struct dims *dims); /* -1: not known */
int64_t dtype_size(int32_t dtype);               /* 0: none of ours */
uint64_t align_up(uint64_t size);
int find_tensor(const struct engine *engine, const char *name); /* -1 after a log line */
struct dims dims_of(int32_t rank, const int64_t *d);
const struct standin_profile_record *bounds_of(const struct engine *engine, int32_t profile, int tensor);
/* Fills shapes from those of the inputs; -1 where they depend on what is not known yet. False: they do not
 * fit. */
bool infer(const struct engine *engine, const uint64_t *addresses, struct dims *shapes);
struct scratch_plan plan_scratch(const struct engine *engine, const struct dims *shapes);
struct dims *make_shapes(const struct engine *engine);                   /* owned */
struct dims *make_largest(const struct engine *engine, int32_t profile); /* owned: at the upper bounds */
int64_t profile_scratch(const struct engine *engine, int32_t profile);
int64_t most_scratch(const struct engine *engine);

/* nvinfer_context.c */
void *create_context(struct engine *engine, int32_t strategy);

#endif
