/* What the sources of the TensorRT vendor share. One section a source; the source's comment has its reasons.
 * What the sources of a context share besides is in context.h.
 *
 * Words: a *library* is the TensorRT runtime that was opened (full, lean or RTX); a *plan* is what it
 * deserializes into an engine; *scratch* is the device memory that a context needs while it runs.
 * `void *` named runtime, engine, context are public objects of the library; CUDA's handles (context, stream,
 * event) are `void *` too, device addresses are `uint64_t` as in the driver's interface.
 *
 * Every td_trt_* call that reaches the library or CUDA is made between td_cuda_enter and td_cuda_leave of the
 * engine's context.
 */
#ifndef TANDEM_VENDORS_TENSORRT_TENSORRT_H
#define TANDEM_VENDORS_TENSORRT_TENSORRT_H

#include <tandem/vendor.h>

#include "../cuda/cuda.h"
#include "abi.h"

/* The order of the values that tandem hands over; the table of options has them in this order. */
enum {
  TD_TRT_DLA_CORE,  /* "-1": none */
  TD_TRT_HOST_CODE, /* "true" / "false" */
  TD_TRT_OPTION_COUNT,
};

/* ---------------------------------------------------------------- tensorrt.c */

extern const struct tandem_vendor td_vendor_tensorrt __attribute__((visibility("hidden")));

/* The host given to open and parse; set before anything below is used. */
const struct tandem_host *td_trt_host(void);
void td_trt_set_host(const struct tandem_host *host);
/* One line to the host's log. */
void td_trt_say(enum tandem_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---------------------------------------------------------------- library.c */

enum td_trt_product { TD_TRT_FULL, TD_TRT_LEAN, TD_TRT_RTX };

/* Filled when td_trt_open has succeeded, constant after that. */
struct td_trt_library {
  enum td_trt_product product;
  int32_t version; /* 101601, 110400, 10701 (RTX) */
  int32_t major, minor, patch;
  char name[64]; /* "TensorRT 10.16.1", "TensorRT 11.4.0 (lean)", "TensorRT-RTX 1.7.1": for messages */
  char path[512];
  td_trt_create_runtime_fn create_runtime;
  struct td_trt_slots slots;
};
extern struct td_trt_library td_trt;

#define TD_TRT_HAS(member) (td_trt.slots.member >= 0)

enum tandem_status td_trt_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                               struct tandem_error *error);
/* The slots of a version number as getInferLibVersion gives it, for `product` and the facts of `library`
 * beside its path. UNSUPPORTED, the version named, for every layout that is not known. */
enum tandem_status td_trt_choose(const struct tandem_host *host, int32_t version, bool lean,
                                 struct td_trt_library *library, struct tandem_error *error);
/* A runtime with the process's logger, owned. Errors: UNAVAILABLE. */
enum tandem_status td_trt_create_runtime(void **runtime, struct tandem_error *error);
/* Destroys any public object; NULL is fine. */
void td_trt_delete(void *object);
/* The status that a line of the library tells: OUT_OF_MEMORY, DEVICE_LOST or OK. */
enum tandem_status td_trt_judge_line(const char *line);
/* What the library's warnings and errors on this thread said of their cause since listen. */
enum {
  TD_TRT_SAID_CAPABILITY = 1, /* the plan is for another GPU */
  TD_TRT_SAID_VERSION = 2,    /* of another version */
  TD_TRT_SAID_MAGIC = 4,      /* no plan of this product */
  TD_TRT_SAID_HOST_CODE = 8,  /* brings host code that is not allowed */
};
void td_trt_listen(void);
unsigned td_trt_said(void);
/* The tandem_dtype of a td_trt_dtype, -1 when no tensor of tandem can hold it; the name in any case. */
int32_t td_trt_dtype(int32_t dtype);
const char *td_trt_dtype_name(int32_t dtype);

/* td_trt_engine_io_count(engine), td_trt_context_enqueue(context, stream), ...: one function for each row of
 * TD_TRT_METHODS. A method that this library lacks (TD_TRT_HAS(engine_stat)) returns zero. */
#define TD_TRT_DECLARE(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)   \
  result td_trt_##member parameters;
TD_TRT_METHODS(TD_TRT_DECLARE, TD_TRT_DECLARE)
#undef TD_TRT_DECLARE

/* Makes an IOutputAllocator that calls td_trt_output_reallocate and td_trt_output_shape. */
void td_trt_output_allocator_init(struct td_trt_output_allocator *allocator);

/* ---------------------------------------------------------------- payload.c */

enum td_trt_alias_kind { TD_TRT_ALIAS_CACHE, TD_TRT_ALIAS_USER }; /* "kv_cache_update", "user" */

struct td_trt_binding {
  const char *name;
  const char *dtype; /* as written ("float32"); "" when not given */
  bool is_input;
  int32_t rank;                   /* -1: no shape was written */
  int64_t shape[TANDEM_MAX_RANK]; /* -1: dynamic */
};

struct td_trt_alias {
  const char *output, *input; /* names; both are among the bindings when there are any */
  enum td_trt_alias_kind kind;
};

/* What tandem_payload.state points to. Text is owned by the payload. */
struct td_trt_payload {
  int format; /* 1 for TR01, 2 for TR02 */
  uint32_t metadata_offset, metadata_size, engine_offset;
  uint64_t engine_size;                  /* as the header says: 0 with an engine_key */
  const struct td_trt_binding *bindings; /* NULL: names and order come from the engine */
  size_t binding_count;
  const struct td_trt_alias *aliases;
  size_t alias_count;
  int32_t device_id; /* >= 0 */
  bool hardware_compatible;
  const char *target_platform;     /* "" when not given */
  const char *serialized_metadata; /* likewise */
  const char *engine_key;          /* "" when the engine is in the payload */
  /* The named data of engine_key, given back by payload_destroy. */
  void (*release)(void *user, void *token);
  void *release_user, *token;
  void *document; /* the parsed metadata, which owns the text */
};

enum tandem_status td_trt_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_named_data *named_data, struct tandem_payload *payload,
                                struct tandem_error *error);
void td_trt_payload_destroy(struct tandem_payload *payload);
void td_trt_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user);

/* What the header of a plan tells without its library. */
struct td_trt_plan {
  enum td_trt_product product;
  char name[64]; /* "TensorRT-RTX 1.7.1" */
};
/* False for plans whose header is not known: only RTX's is. */
bool td_trt_read_plan(const void *bytes, size_t size, struct td_trt_plan *plan);

/* ---------------------------------------------------------------- engine.c */

/* What tandem's void *engine points to: constant once built, shared by its contexts. */
struct td_trt_engine {
  void *runtime;                /* owned */
  void *engine;                 /* owned, an ICudaEngine */
  struct td_cuda_context *cuda; /* owned; NULL only without a driver, then no engine is ever built */
  int32_t device_id;
  int32_t dla_core; /* -1: none */
  int32_t profile_count;
};

enum tandem_status td_trt_resolve(const struct tandem_payload *payload, const char *const *options,
                                  struct tandem_resolution *resolution, struct tandem_error *error);
enum tandem_status td_trt_build(const struct tandem_build_desc *desc, void **engine,
                                struct tandem_engine_info *info, struct tandem_error *error);
void td_trt_engine_destroy(void *engine);

/* ---------------------------------------------------------------- context.c */

enum tandem_status td_trt_context_create(void *engine, const struct tandem_context_desc *desc, void **context,
                                         struct tandem_context_io *io, struct tandem_error *error);
void td_trt_context_destroy(void *context);

/* ---------------------------------------------------------------- run.c */

enum tandem_status td_trt_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error);

/* ---------------------------------------------------------------- tensors.c */

/* Called by the library through td_trt_output_allocator: memory for an output whose size shows only during
 * the run (`stream` is NULL for the synchronous form), and its shape. */
void *td_trt_output_reallocate(struct td_trt_output_allocator *allocator, const char *name, void *current,
                               uint64_t size, uint64_t alignment, void *stream);
void td_trt_output_shape(struct td_trt_output_allocator *allocator, const char *name,
                         const struct td_trt_dims *dims);

#endif
