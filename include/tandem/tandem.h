/* tandem: loads of the same engine share one engine.
 *
 * What may be shared: an *engine*, that is a compiled network with its weights, ready to run and immutable
 * once published. Between whom: all loads of one process whose engine bytes, vendor library, device, trust
 * domain and effective options are equal. What is never shared: a *context*, the state that one load needs
 * to run an engine, and its buffers. A *load* is what one call of tandem_load_create makes; the last
 * tandem_load_destroy of an engine's loads frees the engine.
 *
 * Words of ownership used below: *owned* (you free it), *borrowed* (valid for the time said, not yours),
 * *shared* (counted by tandem).
 *
 * Rules for every function here, unless its comment says otherwise:
 *  - Thread rule: callable from any thread at any time.
 *  - Errors: fallible functions return a tandem_status and fill the optional, caller-owned error. Outputs
 *    are cleared first. After an error everything that existed before is as it was.
 *  - Blocking: a function that may wait says so; before each wait the host's wait hook is called.
 *  - No function aborts, throws or keeps a pointer that it was given past its return.
 *  - pthread cancellation is disabled inside every call and acted on after it.
 *
 * Option structs begin with struct_size: set it to sizeof the struct; a size that tandem does not know is
 * an INVALID_ARGUMENT. Zero every field that you do not use.
 */
#ifndef TANDEM_TANDEM_H
#define TANDEM_TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_VERSION "0.1.0"

#define TANDEM_API __attribute__((visibility("default")))

/* ---------------------------------------------------------------- status and errors */

/* Chosen by what the caller can do about it. X(name, number, text, ExecuTorch error, Python class). */
#define TANDEM_STATUS_TABLE(X)                                                                               \
  X(OK, 0, "ok", Ok, None)                                                                                   \
  X(INVALID_ARGUMENT, 1, "invalid argument", InvalidArgument, InvalidArgumentError)                          \
  X(BAD_OPTION, 2, "bad option", InvalidType, BadOptionError)                                                \
  X(BAD_PROGRAM, 3, "bad program", InvalidProgram, BadProgramError)                                          \
  X(UNSUPPORTED, 4, "unsupported here", DelegateInvalidCompatibility, UnsupportedError)                      \
  X(NOT_FOUND, 5, "not found", NotFound, NotFoundError)                                                      \
  X(MISSING_DATA, 6, "missing external data", InvalidExternalData, MissingDataError)                         \
  X(UNAVAILABLE, 7, "vendor library unavailable", NotSupported, UnavailableError)                            \
  X(OUT_OF_MEMORY, 8, "out of memory", MemoryAllocationFailed, OutOfMemoryError)                             \
  X(DEVICE_ERROR, 9, "device error", AccessFailed, DeviceError)                                              \
  X(DEVICE_LOST, 10, "device lost", DelegateInvalidHandle, DeviceLostError)                                  \
  X(INVALID_STATE, 11, "invalid state", InvalidState, InvalidStateError)                                     \
  X(INTERNAL, 12, "internal error", Internal, InternalError)

enum tandem_status {
#define TANDEM_STATUS_MEMBER(name, number, text, executorch, python) TANDEM_##name = (number),
  TANDEM_STATUS_TABLE(TANDEM_STATUS_MEMBER)
#undef TANDEM_STATUS_MEMBER
};

/* Filled on failure and cleared on success. A message that had to be cut ends in "...". Owned by the
 * caller. */
struct tandem_error {
  enum tandem_status code;
  char message[1024];
};

/* The status's name ("OUT_OF_MEMORY") and short text ("out of memory"); static strings, never NULL. */
TANDEM_API const char *tandem_status_name(enum tandem_status status);
TANDEM_API const char *tandem_status_text(enum tandem_status status);

/* The whole message of the calling thread's last error, cut to `size` bytes with its NUL. Returns the
 * length of the whole message, 0 when the thread has had no error. `buffer` may be NULL when size is 0. */
TANDEM_API size_t tandem_last_reason(char *buffer, size_t size);

/* For libraries that add functions in tandem's style: fills `error` (NULL is fine) and the thread's last
 * reason as tandem itself does, and returns `status`. */
TANDEM_API enum tandem_status tandem_fail(struct tandem_error *error, enum tandem_status status,
                                          const char *format, ...) __attribute__((format(printf, 3, 4)));

/* TANDEM_VERSION of the library that is running. */
TANDEM_API const char *tandem_version(void);

/* ---------------------------------------------------------------- log and waits */

enum tandem_log_level {
  TANDEM_LOG_ERROR = 0,
  TANDEM_LOG_WARNING = 1,
  TANDEM_LOG_INFO = 2,
  TANDEM_LOG_DEBUG = 3,
};

/* One line without a newline; `line` is borrowed for the call. Called with no lock of tandem held, from any
 * thread and from several at once; it may call tandem, load and run included. */
typedef void (*tandem_log_fn)(void *user, enum tandem_log_level level, const char *line);

/* Replaces the process's log sink; NULL restores the default, which writes to stderr. A delivery that has
 * begun on another thread may still use the old sink, so `user` must stay valid. */
TANDEM_API void tandem_set_log_sink(tandem_log_fn sink, void *user);

/* Called on the waiting thread before and after every wait of tandem, with no lock of tandem held: a host
 * whose thread holds a lock that others need can give it up meanwhile. Both or neither may be NULL. */
typedef void (*tandem_wait_fn)(void *user);
TANDEM_API void tandem_set_wait_hooks(tandem_wait_fn begin, tandem_wait_fn end, void *user);

/* For code between tandem and a host (an adapter) that waits itself: calls the hooks, with no lock held. */
TANDEM_API void tandem_wait_begin(void);
TANDEM_API void tandem_wait_end(void);

/* ---------------------------------------------------------------- options */

/* Text key and value, both borrowed for the call. Numbers are decimal digits, booleans true/false/1/0.
 * The options are listed in docs/options.md. Precedence, highest first: load, scope of the calling thread,
 * compile spec of the program, process, environment (TANDEM_OPT_<NAME>), default. */
struct tandem_option {
  const char *key;
  const char *value;
};

/* Sets an option for the process's later loads; `backend` (a backend id or vendor name) restricts it to
 * that backend, NULL means all. A NULL value takes the process's setting back.
 * Errors: BAD_OPTION (unknown name, malformed value), NOT_FOUND (unknown backend). */
TANDEM_API enum tandem_status tandem_set_option(const char *backend, const char *key, const char *value,
                                                struct tandem_error *error);

/* Writes the value that a load of `backend` begun now on this thread, without options or compile specs of
 * its own, would use. `size` includes the NUL. Errors: BAD_OPTION, NOT_FOUND, INVALID_ARGUMENT (too
 * small). */
TANDEM_API enum tandem_status tandem_get_option(const char *backend, const char *key, char *value,
                                                size_t size, struct tandem_error *error);

/* True when `key` is the name of an option of tandem's or of this backend's. */
TANDEM_API bool tandem_option_known(const char *backend, const char *key);

/* Options for the loads that the calling thread makes until the scope is released; scopes nest, the inner
 * one wins. The options are copied. Release on the thread that acquired, innermost first; NULL is fine.
 * Errors: BAD_OPTION, OUT_OF_MEMORY; nothing is applied then. */
struct tandem_scope;
TANDEM_API enum tandem_status tandem_scope_acquire(const struct tandem_option *options, size_t count,
                                                   struct tandem_scope **scope, struct tandem_error *error);
TANDEM_API void tandem_scope_release(struct tandem_scope *scope);

/* Called on the loading thread around every tandem_load_create of the process, whoever calls it, with no lock
 * of tandem held: `begin` before the load's options are read, `end` as its last act, with the token that
 * begin left (NULL before it). For a host whose options belong to a task instead of a thread: begin acquires
 * a scope, end releases it. A status other than OK from begin fails the load, with the error that it filled,
 * and end is not called. Also around tandem_get_option, which tells what a load would use. A hook that loads
 * is called for that load too. */
typedef enum tandem_status (*tandem_load_begin_fn)(void *user, void **token, struct tandem_error *error);
typedef void (*tandem_load_end_fn)(void *user, void *token);

/* Replaces the process's load hooks; both or neither may be NULL. A load that began with one pair ends with
 * it, so `user` must stay valid. */
TANDEM_API void tandem_set_load_hooks(tandem_load_begin_fn begin, tandem_load_end_fn end, void *user);

/* ---------------------------------------------------------------- tensors */

#define TANDEM_MAX_RANK 16

/* The numbers of ExecuTorch's ScalarType. */
enum tandem_dtype {
  TANDEM_UINT8 = 0,
  TANDEM_INT8 = 1,
  TANDEM_INT16 = 2,
  TANDEM_INT32 = 3,
  TANDEM_INT64 = 4,
  TANDEM_FLOAT16 = 5,
  TANDEM_FLOAT32 = 6,
  TANDEM_FLOAT64 = 7,
  TANDEM_BOOL = 11,
  TANDEM_BFLOAT16 = 15,
  TANDEM_FLOAT8_E5M2 = 23,
  TANDEM_FLOAT8_E4M3FN = 24,
  TANDEM_UINT16 = 27,
  TANDEM_UINT32 = 28,
  TANDEM_UINT64 = 29,
};

/* Bytes of one element, 0 for a number that is no dtype; the name ("float32"), or "unknown". */
TANDEM_API size_t tandem_dtype_size(int32_t dtype);
TANDEM_API const char *tandem_dtype_name(int32_t dtype);

struct tandem_tensor {
  void *data;    /* borrowed; may be NULL when the tensor has no elements */
  size_t size;   /* bytes that may be read (inputs) or written (outputs) at data */
  int32_t dtype; /* enum tandem_dtype */
  int32_t rank;  /* 0..TANDEM_MAX_RANK */
  int64_t shape[TANDEM_MAX_RANK];
  const int64_t *strides; /* elements, borrowed; NULL: contiguous, last dimension fastest */
};

/* One input or output of a load. A static dimension has min == max. */
struct tandem_io {
  const char *name; /* borrowed for the life of the load */
  int32_t dtype;    /* -1: not told, any is taken */
  int32_t rank;     /* -1: any */
  int64_t min[TANDEM_MAX_RANK];
  int64_t max[TANDEM_MAX_RANK]; /* INT64_MAX: no bound known */
  int32_t updates; /* of an output: 1 + the index of the input that it updates in place; 0: none */
};

/* ---------------------------------------------------------------- loads */

struct tandem_load;

/* A compile spec of the program; the value need not end in NUL. Borrowed for the call. */
struct tandem_spec {
  const char *key;
  const void *value;
  size_t size;
};

/* Bytes that a program keeps outside the payload, by key. get fills data, size and token (borrowed until
 * release(user, token)) or returns MISSING_DATA. Called on the loading thread with no lock of tandem held. */
struct tandem_named_data {
  enum tandem_status (*get)(void *user, const char *key, const void **data, size_t *size, void **token);
  void (*release)(void *user, void *token);
  void *user;
};

/* The calling thread holds a lock that the builder of a flight may need (Python's interpreter lock inside a
 * foreign extension): waits for flights are bounded by flight_timeout_ms, 10,000 unless set. */
#define TANDEM_LOAD_CALLER_HOLDS_LOCK (1u << 0)

struct tandem_load_desc {
  size_t struct_size;
  const char *backend; /* backend id ("OpenvinoBackend") or vendor name ("openvino") */
  const void *payload; /* borrowed until tandem_load_create returns */
  size_t payload_size; /* bytes */
  const struct tandem_option *options;
  size_t option_count;
  const struct tandem_spec *compile_specs;
  size_t compile_spec_count;
  const struct tandem_named_data *named_data; /* NULL: none */
  const char *label;                          /* names the load in log lines and errors; NULL: "load N" */
  uint32_t flags;                             /* TANDEM_LOAD_* */
};

/* Makes a load. Blocks while an engine is built, by this call or, for the same identity, by another.
 * *load is owned: give it to tandem_load_destroy. Errors: every status; DEVICE_LOST for a lost device, and in
 * a process forked while another thread was in a vendor, or after a vendor that does not survive a fork ran.
 */
TANDEM_API enum tandem_status tandem_load_create(const struct tandem_load_desc *desc,
                                                 struct tandem_load **load, struct tandem_error *error);

/* Frees the load's context, then the engine if no other load has it. Blocks for a run of this load that is
 * under way on another thread; no other use of the load may begin. NULL is fine. */
TANDEM_API void tandem_load_destroy(struct tandem_load *load);

/* The load's inputs and outputs, in the payload's binding order. The arrays are borrowed for the life of
 * the load. Any output pointer may be NULL. */
TANDEM_API void tandem_load_io(const struct tandem_load *load, const struct tandem_io **inputs,
                               size_t *input_count, const struct tandem_io **outputs, size_t *output_count);

/* Called on the running thread, once for each output (an index of run->outputs) whose real shape is not the
 * one in `outputs`, before anything is written to it: `tensor` has the real rank and shape, and the callback
 * sets data and size to memory that fits. A status other than OK ends the run with it. It must not use the
 * load. */
typedef enum tandem_status (*tandem_resize_fn)(void *user, size_t output, struct tandem_tensor *tensor);

struct tandem_run_desc {
  size_t struct_size;
  const struct tandem_tensor *inputs; /* borrowed for the call */
  size_t input_count;
  struct tandem_tensor *outputs; /* data, size and dtype are read; rank and shape are written */
  size_t output_count;           /* outputs that update an input may be left out, all of them
                                    together, as long as another remains */
  tandem_resize_fn resize;       /* NULL: outputs must have room for the real shape */
  void *resize_user;
  void *stream;      /* CUstream to run on; NULL: one of the load's own. NULL on a CPU */
  bool return_early; /* return when the work is queued on `stream`, which must be given */
  void **done; /* NULL, or with return_early receives a CUevent that completes after the run's work; it is
                  borrowed until the load's next run or its destruction */
};

/* Runs the load once; returns when its outputs are written, unless return_early asks otherwise: then inputs
 * and outputs must stay until the event. Device memory is used in place, whatever host memory the device
 * cannot reach is staged. Blocks while another thread runs this load; two loads run at the same
 * time, of one engine or not. An error leaves the load usable, outputs undefined.
 * Errors: INVALID_ARGUMENT (count, rank, dtype, layout, bounds, room: the tensor is named), INVALID_STATE (a
 * capture that the load is not ready for), UNSUPPORTED, OUT_OF_MEMORY, DEVICE_ERROR, DEVICE_LOST (also a load
 * inherited through fork), BAD_PROGRAM, INTERNAL. */
TANDEM_API enum tandem_status tandem_load_run(struct tandem_load *load, const struct tandem_run_desc *run,
                                              struct tandem_error *error);

/* Clears the state that the model keeps between runs of this load. Blocks as tandem_load_run does. */
TANDEM_API enum tandem_status tandem_load_reset(struct tandem_load *load, struct tandem_error *error);

/* How the engine of a load keeps the bytes that its vendor goes on reading. */
enum tandem_payload_bytes {
  TANDEM_PAYLOAD_RELEASED = 0, /* the vendor needs none after the build */
  TANDEM_PAYLOAD_MAPPED = 1,   /* a second mapping of the program's file */
  TANDEM_PAYLOAD_COPIED = 2,   /* a private copy */
};

struct tandem_load_info {
  size_t struct_size;
  uint64_t id;                 /* of the load, from 1, never reused in a process */
  uint64_t engine_id;          /* of its engine, likewise */
  uint64_t users;              /* loads that have this engine now, this one included */
  bool shared;                 /* the load did not build its engine but took one that another load built */
  bool joined;                 /* it waited for a flight to get it */
  bool fallback;               /* it got an engine after a first attempt failed or timed out */
  bool engine_bytes_estimated; /* engine_bytes is the size of the engine's bytes, not the vendor's report */
  double seconds;              /* the whole tandem_load_create */
  double digest_seconds;
  double build_seconds; /* 0 when shared */
  double wait_seconds;
  uint64_t engine_bytes;       /* bytes one engine costs */
  uint64_t device_bytes;       /* bytes of it in device memory, 0 for a CPU */
  int64_t budget;              /* effective weight-streaming budget, bytes; -1: the vendor has none */
  int32_t payload_bytes;       /* enum tandem_payload_bytes */
  uint64_t payload_bytes_size; /* bytes mapped or copied for the engine, 0 when released */
  char vendor[32];
  char vendor_version[128];
  char device[64];
  char options[512]; /* "key=value;..." of the vendor's options that are not at their default,
                        as they count for the identity; empty: none; tandem's own are not listed */
};

/* Fills *info; set info->struct_size first. */
TANDEM_API enum tandem_status tandem_load_get_info(const struct tandem_load *load,
                                                   struct tandem_load_info *info, struct tandem_error *error);

/* ---------------------------------------------------------------- statistics */

/* Exact, taken at one moment. engines, loads, bytes_held and bytes_saved are of now, the rest since start. */
struct tandem_stats {
  size_t struct_size;
  uint64_t engines;
  uint64_t loads;
  uint64_t builds;      /* engines that vendors built */
  uint64_t hits;        /* loads that found a ready engine */
  uint64_t joined;      /* loads that waited for a flight and share its engine */
  uint64_t fallbacks;   /* loads that took an engine after a first attempt failed or timed out */
  uint64_t failures;    /* loads that failed */
  uint64_t bytes_held;  /* sum of engine_bytes over engines */
  uint64_t bytes_saved; /* sum of engine_bytes x (loads - 1) over engines */
  bool bytes_estimated; /* at least one engine_bytes in the sums is an estimate */
  double digest_seconds;
  double build_seconds;
  uint64_t log_lines_dropped;
};

TANDEM_API enum tandem_status tandem_stats_get(struct tandem_stats *stats, struct tandem_error *error);

/* ---------------------------------------------------------------- vendors and payloads */

struct tandem_vendor; /* tandem/vendor.h */

/* Adds a vendor, for the life of the process; *vendor is borrowed for as long. Errors: INVALID_ARGUMENT
 * (another ABI version, an entry missing), INVALID_STATE (its name or backend id is taken). */
TANDEM_API enum tandem_status tandem_vendor_register(const struct tandem_vendor *vendor,
                                                     struct tandem_error *error);

struct tandem_vendor_info {
  size_t struct_size;
  char name[32];
  char backend[64];
  bool available; /* its library was opened */
  char version[128];
  char path[512];
  char reason[1024]; /* why it is not available and what mends it */
};

TANDEM_API size_t tandem_vendor_count(void);

/* The backend id of vendor `index`, without opening its library; static, NULL past the end. */
TANDEM_API const char *tandem_vendor_backend(size_t index);

/* Opens the library of vendor `index` if need be and tells what was found. Blocks while another thread
 * opens it. Errors: INVALID_ARGUMENT (index). */
TANDEM_API enum tandem_status tandem_vendor_get_info(size_t index, struct tandem_vendor_info *info,
                                                     struct tandem_error *error);

/* Calls `fact` for each fact of a payload (key and value borrowed for the call), without opening a vendor's
 * library: kind, engine offset and size, versions. Errors: NOT_FOUND (backend), BAD_PROGRAM, UNSUPPORTED,
 * DEVICE_LOST (in a forked child, see tandem_load_create). */
typedef void (*tandem_fact_fn)(void *user, const char *key, const char *value);
TANDEM_API enum tandem_status tandem_payload_describe(const char *backend, const void *payload, size_t size,
                                                      tandem_fact_fn fact, void *user,
                                                      struct tandem_error *error);

/* The SHA-256 that the option expect_sha256 is compared with: of the engine bytes of a payload, wherever they
 * lie. `named_data` as in tandem_load_desc. No vendor's library is opened. Errors: NOT_FOUND (backend),
 * BAD_PROGRAM, UNSUPPORTED, MISSING_DATA (named data that is not given), OUT_OF_MEMORY, DEVICE_LOST
 * (likewise). */
TANDEM_API enum tandem_status tandem_payload_sha256(const char *backend, const void *payload, size_t size,
                                                    const struct tandem_named_data *named_data, char hex[65],
                                                    struct tandem_error *error);

/* The SHA-256 of `size` bytes as 64 hex digits and a NUL. */
TANDEM_API enum tandem_status tandem_sha256(const void *data, size_t size, char hex[65],
                                            struct tandem_error *error);

#ifdef __cplusplus
}
#endif

#endif
