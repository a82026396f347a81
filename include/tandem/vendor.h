/* The contract between tandem and a vendor: the code that turns engine bytes into an engine and runs it.
 *
 * A vendor is one constant `struct tandem_vendor`. tests/vendors/fake.c is the skeleton to copy, and
 * tests/conformance the suite that every vendor passes. docs/vendors.md walks through both.
 *
 * What tandem promises to a vendor:
 *  - It holds no lock during any entry.
 *  - open runs alone; after it succeeded it is not called again. parse, describe and payload_destroy may run
 *    before it and never touch a library or a device.
 *  - build of one identity runs alone; builds of other identities run at the same time.
 *  - Calls that take one context never overlap; calls on two contexts of one engine do.
 *  - Every context of an engine is destroyed before the engine; engine_destroy runs once, after which a new
 *    build of the same identity may begin.
 *  - Every *_destroy is called for exactly what the matching create returned with TANDEM_OK.
 *  - Rank, dtype, layout and bounds of inputs were checked against the context's tandem_io before run.
 * What a vendor promises:
 *  - An engine is immutable: a run of one context never shows in another one.
 *  - A failing entry leaves nothing behind and says what, expected, found and what to do in `error`.
 *  - It keeps no pointer that it was given past the call, except engine bytes if it sets
 *    TANDEM_VENDOR_KEEPS_ENGINE_BYTES, which tandem then keeps alive until engine_destroy returned.
 */
#ifndef TANDEM_VENDOR_H
#define TANDEM_VENDOR_H

#include <tandem/tandem.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_VENDOR_ABI 1u

/* The engine goes on reading the bytes given to build: tandem keeps them (mapped or copied) with it. */
#define TANDEM_VENDOR_KEEPS_ENGINE_BYTES (1u << 0)
/* Engines and contexts go on working in a forked child, and new ones can be made there, whatever other
 * threads were doing; otherwise tandem refuses to touch the former, and the latter if a call was under way.
 */
#define TANDEM_VENDOR_SURVIVES_FORK (1u << 1)
/* build honours a weight-streaming budget and reports the effective one. */
#define TANDEM_VENDOR_HAS_BUDGET (1u << 2)
/* run takes a caller's stream and may return early; for others tandem refuses both. */
#define TANDEM_VENDOR_HAS_STREAMS (1u << 3)
/* Exporters of this backend write compile specs of their own: those that are no options are told at debug
 * level only. */
#define TANDEM_VENDOR_HAS_EXPORTER_SPECS (1u << 4)

/* A lock that any number of threads share or one has alone. A zeroed one is ready. */
struct tandem_host_lock {
  uint64_t storage[8];
};

/* What tandem gives to a vendor. Lives as long as the process. Every function is callable from any thread. */
struct tandem_host {
  uint32_t abi_version;
  uint32_t struct_size;
  /* A line of the vendor's library. Kept during a vendor call and delivered afterwards. `status` is
   * OUT_OF_MEMORY or DEVICE_LOST when this line says so, else TANDEM_OK: a failing call on whose thread such
   * a line came fails with that status. */
  void (*log)(const struct tandem_vendor *vendor, enum tandem_log_level level, enum tandem_status status,
              const char *line);
  /* Fills `error` (NULL is fine) as printf does and returns `status`. */
  enum tandem_status (*fail)(struct tandem_error *error, enum tandem_status status, const char *format, ...)
      __attribute__((format(printf, 3, 4)));
  /* Zeroed memory or NULL; release(NULL) is fine. */
  void *(*allocate)(size_t size);
  void (*release)(void *memory);
  /* Opens a shared library for the life of the process and writes the path it was found at. `name` is a
   * path or a name for the loader. NULL and an `error` (NOT_FOUND, UNAVAILABLE) otherwise. */
  void *(*library_open)(const char *name, char *path, size_t path_size, struct tandem_error *error);
  /* The address of a symbol, or NULL. */
  void *(*library_symbol)(void *library, const char *name);
  /* Waits of the vendor, with no lock held: the host's hooks are called. A wait for a lock calls them too. */
  void (*wait_begin)(void);
  void (*wait_end)(void);
  void (*lock_alone)(struct tandem_host_lock *lock);
  void (*lock_shared)(struct tandem_host_lock *lock);
  void (*unlock)(struct tandem_host_lock *lock);
  /* False when the lock is not free at once: never waits. */
  bool (*try_lock_alone)(struct tandem_host_lock *lock);
  /* Gives back a library that is an engine's own code, opened for that engine. */
  void (*library_close)(void *library);
  /* 64 lower-case hex digits and a NUL. Errors: OUT_OF_MEMORY, INTERNAL; hex is "" then. */
  enum tandem_status (*sha256)(const void *data, size_t size, char hex[65], struct tandem_error *error);
};

/* One option of the vendor's own. tandem resolves precedence, checks the value and hands the values to the
 * vendor in this order. */
enum tandem_option_kind {
  TANDEM_OPTION_TEXT = 0,
  TANDEM_OPTION_BOOL = 1,   /* normalised to "true" / "false" */
  TANDEM_OPTION_COUNT = 2,  /* decimal digits within int32 */
  TANDEM_OPTION_CHOICE = 3, /* one of `choices`, separated by '|' */
};

struct tandem_vendor_option {
  const char *name;
  enum tandem_option_kind kind;
  const char *choices;
  const char *fallback; /* the default; "" where the vendor's library decides */
};

/* Filled by open. */
struct tandem_vendor_library {
  char version[128]; /* "2026.4.1-..." */
  char path[512];
  char build_id[128]; /* what tells two builds of one version apart; "" when the path has to do */
};

/* Engine bytes that lie elsewhere: in named data whose token the payload's `state` keeps. */
struct tandem_part {
  const void *data;
  size_t size;
};

/* Filled by parse. The engine is made of `engine` and `parts` and of nothing else: both are what two loads
 * must have equal to share, part by part. */
struct tandem_payload {
  const void *engine; /* the engine bytes: inside the payload, or in named data whose token `state` keeps */
  size_t engine_size;
  const struct tandem_part *parts; /* NULL: none; lives as long as `state` */
  size_t part_count;
  void *state; /* the vendor's own, for context_create; freed by payload_destroy */
};

/* Filled by resolve: what an engine's identity has beyond its bytes. */
struct tandem_resolution {
  char device[64];     /* "CPU", "cuda:1" */
  uint64_t context_id; /* CUDA context; 0 elsewhere */
  char options[384];   /* canonical text of every option that changes the engine: "precision=f32;..." */
};

struct tandem_build_desc {
  const void *engine;
  size_t engine_size;
  const struct tandem_part *parts; /* borrowed for the call, also with TANDEM_VENDOR_KEEPS_ENGINE_BYTES */
  size_t part_count;
  const char *const *options; /* resolved values, in the order of tandem_vendor.options */
  const struct tandem_resolution *resolution;
  int64_t budget; /* bytes asked for; -1: automatic */
};

struct tandem_engine_info {
  uint64_t engine_bytes; /* what one engine costs as the vendor reports it; 0: not known */
  uint64_t device_bytes;
  int64_t streamable_size;  /* 0 when nothing streams */
  int64_t effective_budget; /* -1 without TANDEM_VENDOR_HAS_BUDGET */
};

struct tandem_context_desc {
  const struct tandem_payload *payload;
  const char *const *options;
  bool share_scratch; /* tandem's own options of this load */
  bool cuda_graph;
  int32_t profile; /* optimization profile; -1: by the shapes of each run */
};

/* Filled by context_create; the arrays are the context's own and live as long as it. */
struct tandem_context_io {
  const struct tandem_io *inputs;
  size_t input_count;
  const struct tandem_io *outputs;
  size_t output_count;
};

struct tandem_vendor {
  uint32_t abi_version; /* TANDEM_VENDOR_ABI */
  uint32_t struct_size; /* sizeof(struct tandem_vendor) */
  const char *name;     /* "openvino" */
  const char *backend;  /* ExecuTorch's backend id, "OpenvinoBackend" */
  uint32_t flags;       /* TANDEM_VENDOR_* */
  const struct tandem_vendor_option *options;
  size_t option_count;

  /* Finds and starts the library. Tried again at the next load after a failure (UNAVAILABLE, UNSUPPORTED). */
  enum tandem_status (*open)(const struct tandem_host *host, struct tandem_vendor_library *library,
                             struct tandem_error *error);
  /* Checks a payload and finds its engine bytes; `named_data` may be NULL. `host` as in open, always given.
   */
  enum tandem_status (*parse)(const struct tandem_host *host, const void *bytes, size_t size,
                              const struct tandem_named_data *named_data, struct tandem_payload *payload,
                              struct tandem_error *error);
  void (*payload_destroy)(struct tandem_payload *payload);
  /* Tells facts of a parsed payload (optional: NULL tells none). */
  void (*describe)(const struct tandem_payload *payload, tandem_fact_fn fact, void *user);
  /* Checks the option values against the device and gives them their canonical form. */
  enum tandem_status (*resolve)(const struct tandem_payload *payload, const char *const *options,
                                struct tandem_resolution *resolution, struct tandem_error *error);
  enum tandem_status (*build)(const struct tandem_build_desc *desc, void **engine,
                              struct tandem_engine_info *info, struct tandem_error *error);
  void (*engine_destroy)(void *engine);
  enum tandem_status (*context_create)(void *engine, const struct tandem_context_desc *desc, void **context,
                                       struct tandem_context_io *io, struct tandem_error *error);
  void (*context_destroy)(void *context);
  /* Inputs are as many as the context has, outputs too, or those alone that update no input; tandem has
   * checked that, their dtypes and layouts, and the shapes of inputs. Outputs as in tandem_run_desc; the
   * vendor writes rank and shape, and calls resize before it writes data when the real shape differs from the
   * one given or does not fit `size`. What `done` points to is NULL. */
  enum tandem_status (*run)(void *context, const struct tandem_run_desc *desc, struct tandem_error *error);
  /* Clears the state between runs (optional: NULL when engines of this vendor keep none). */
  enum tandem_status (*reset)(void *context, struct tandem_error *error);
  /* Free and total bytes of the device's memory (optional: NULL means not known). */
  enum tandem_status (*memory)(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                               uint64_t *total_bytes, struct tandem_error *error);
};

#ifdef __cplusplus
}
#endif

#endif
