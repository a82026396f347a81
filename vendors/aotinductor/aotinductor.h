/* What the sources of the AOTInductor vendor share.
 *
 * Two tables of one vendor: td_vendor_aotinductor reads tandem's own payload (backend TandemAotiBackend),
 * td_vendor_aotinductor_cuda ExecuTorch's (backend CudaBackend). Both parse into a td_aoti_program, from
 * which engine.c, context.c and state.c do the rest. cuda.c has all that touches a GPU.
 */
#ifndef TANDEM_VENDORS_AOTINDUCTOR_AOTINDUCTOR_H
#define TANDEM_VENDORS_AOTINDUCTOR_AOTINDUCTOR_H

#include <tandem/vendor.h>

#include "abi.h"

/* ---------------------------------------------------------------- aotinductor.c */

extern const struct tandem_vendor td_vendor_aotinductor __attribute__((visibility("hidden")));
/* The order of the values that td_vendor_aotinductor hands over. */
enum { TD_AOTI_DEVICE, TD_AOTI_OPTION_COUNT };

const struct tandem_host *td_aoti_host(void);
void td_aoti_set_host(const struct tandem_host *host);
void td_aoti_say(enum tandem_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---------------------------------------------------------------- library.c */

struct td_aoti_library {
  bool torch; /* libtorch; else ExecuTorch's shims, which serve CUDA engines only */
  void *handle;
  struct aoti_tensor_api tensor;
  char version[32]; /* of torch, "2.13.0"; "" when the library does not tell */
  char path[512];
};
/* Filled when td_aoti_open has succeeded, constant after that. */
extern struct td_aoti_library td_aoti;

enum tandem_status td_aoti_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                struct tandem_error *error);

/* The library that has the functions of CUDA engines too. UNAVAILABLE: a torch without CUDA. */
enum tandem_status td_aoti_open_cuda(void **library, struct tandem_error *error);

/* ---------------------------------------------------------------- payload.c: tandem's own payload */

/* A constant as a payload describes it, or as the engine was seen to create it. */
struct td_aoti_constant {
  const char *name; /* the engine's own; NULL in a program: the engine gives it */
  const char *fqn;  /* "layers.0.weight" */
  int32_t dtype, device_type;
  int32_t rank;
  int64_t sizes[TANDEM_MAX_RANK], strides[TANDEM_MAX_RANK];
  int64_t offset; /* elements from `data` */
  int32_t layout;
  const void *data;  /* of a program: host bytes, borrowed; of an engine: memory of its device */
  size_t size;       /* bytes at data */
  bool mutable;      /* runs write to it: each context has its own copy */
  uint8_t *metadata; /* of an opaque layout; owned by the engine */
  size_t metadata_size;
};

/* A parsed program. Everything borrowed from the payload's bytes and parts unless said otherwise. */
struct td_aoti_program {
  const void *so;
  size_t so_size;
  const char *so_sha256;  /* begins with 64 hex digits, as exported; "" when not told */
  const uint8_t *weights; /* as load_blob takes them; NULL: `constants` have the bytes */
  size_t weights_size;
  struct td_aoti_constant *constants; /* owned; NULL: noted while the engine loads the weights */
  size_t constant_count;
  bool state_known;           /* `mutable_names` or constants[].mutable say what runs write to */
  const char **mutable_names; /* owned array: fqns */
  size_t mutable_count;
  struct tandem_io *inputs, *outputs; /* owned; NULL: not told, then any dtype and rank (-1) is taken */
  size_t input_count, output_count;
  int32_t device_type;
  const char *torch_version; /* that compiled it; "" when not told */
  const char *machine;       /* processor that it was compiled for ("x86_64"); "" when not told */
  const char *features;      /* its instruction sets that the program may use, by spaces; "" likewise */
  int32_t capability;        /* compute capability x 10 that it needs at least, 0: not told */
  void *document;            /* owned; text is in it */
};

/* What a program is before it is read: no text is NULL. */
extern const struct td_aoti_program td_aoti_no_program __attribute__((visibility("hidden")));

/* Reads a payload of either form. `parts` as in struct tandem_payload. Errors: BAD_PROGRAM, UNSUPPORTED,
 * OUT_OF_MEMORY. */
enum tandem_status td_aoti_read(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_part *parts, size_t part_count,
                                struct td_aoti_program *program, struct tandem_error *error);
void td_aoti_program_fini(const struct tandem_host *host, struct td_aoti_program *program);
/* TandemAotiBackend's entries of the vendor table. */
enum tandem_status td_aoti_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                 const struct tandem_named_data *named_data, struct tandem_payload *payload,
                                 struct tandem_error *error);
void td_aoti_payload_destroy(struct tandem_payload *payload);
void td_aoti_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user);

/* ---------------------------------------------------------------- cuda_payload.c: CudaBackend's payload */

extern const struct tandem_vendor td_vendor_aotinductor_cuda __attribute__((visibility("hidden")));

/* Called by td_aoti_read for bytes that do not begin with tandem's magic. Part 0 is the .so, the others are
 * the weights; no parts at all: only what the payload itself tells is filled in. */
enum tandem_status td_aoti_cuda_read(const struct tandem_host *host, const void *bytes, size_t size,
                                     const struct tandem_part *parts, size_t part_count,
                                     struct td_aoti_program *program, struct tandem_error *error);

/* ---------------------------------------------------------------- image.c */

/* A function of the vendor that an engine's library calls in place of the one of that name. */
struct td_aoti_hook {
  const char *name;
  void *address; /* NULL: nobody has it */
};
/* Opens a private copy of an engine's library, its tensor functions bound to `library` or to a hook; the
 * host's library_close closes it. Errors: UNSUPPORTED (a function is missing, another processor, the loader
 * refuses), BAD_PROGRAM, OUT_OF_MEMORY, INTERNAL. */
enum tandem_status td_aoti_open_image(const void *so, size_t size, void *library,
                                      const struct td_aoti_hook *hooks, size_t hook_count, void **opened,
                                      struct tandem_error *error);

/* ---------------------------------------------------------------- modules.c */

struct td_aoti_modules;                               /* the GPU code that one engine has loaded */
struct td_aoti_modules *td_aoti_modules_create(void); /* NULL: no memory */
/* When no container is left; NULL is fine. `forget`: the device is lost. Called between enter and leave,
 * unless forgotten. */
void td_aoti_modules_destroy(struct td_aoti_modules *modules, bool forget);
enum { TD_AOTI_MODULE_HOOKS = 3 };
/* The driver's functions that an engine's library calls for its GPU code. */
void td_aoti_module_hooks(struct td_aoti_hook hooks[TD_AOTI_MODULE_HOOKS]);

/* ---------------------------------------------------------------- engine.c */

struct td_aoti_cuda; /* cuda.c: a device's context, held */

/* What one call of an engine's library is watched for, on the calling thread. */
struct td_aoti_watch {
  struct td_aoti_constant *constants; /* NULL, or where each tensor that it creates from a blob is noted */
  size_t count, capacity;
  bool failed;                  /* one could not be noted */
  bool lend;                    /* it is given tensors: they serve as the new handles that it asks for */
  struct aoti_tensor **tensors; /* NULL, or handles of which those that it deletes become NULL */
  size_t tensor_count;
  struct td_aoti_modules *modules; /* NULL, or the engine's, where it loads and unloads GPU code */
};
void td_aoti_watch(struct td_aoti_watch *watch); /* NULL ends it */
struct td_aoti_modules *td_aoti_watched_modules(void);

/* What tandem's void *engine points to: constant once built, shared by its contexts. */
struct td_aoti_engine {
  void *so; /* opened for the life of the engine */
  struct aoti_engine_api api;
  struct aoti_container *container;   /* owned; has the weights unless `memory` does */
  void *memory;                       /* device memory of a program's described constants; owned */
  void *host_memory;                  /* the same, of constants that a CUDA engine has on the CPU */
  struct td_aoti_constant *constants; /* owned */
  size_t constant_count;
  struct td_aoti_cuda *cuda;       /* owned; NULL on the CPU */
  struct td_aoti_modules *modules; /* owned; NULL on the CPU */
  int32_t device_type, device_index;
  char device[16];      /* "cpu", "cuda:0" */
  uint64_t state_bytes; /* of mutable constants, of which each context has a copy */
};

enum tandem_status td_aoti_resolve(const struct tandem_payload *payload, const char *const *options,
                                   struct tandem_resolution *resolution, struct tandem_error *error);
/* Before a run on the CPU: a child that is forked afterwards is refused its loads. */
void td_aoti_note_run(void);
enum tandem_status td_aoti_build(const struct tandem_build_desc *desc, void **engine,
                                 struct tandem_engine_info *info, struct tandem_error *error);
void td_aoti_engine_destroy(void *engine);
enum tandem_status td_aoti_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                  uint64_t *total_bytes, struct tandem_error *error);
/* The error of an engine's call: OUT_OF_MEMORY when its text says so, else `status`. */
enum tandem_status td_aoti_fail(const struct td_aoti_engine *engine, enum tandem_status status,
                                struct tandem_error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---------------------------------------------------------------- state.c */

/* A context's own copies of the mutable constants, one after the other: one block of device memory. */
struct td_aoti_state {
  char *memory;
};
enum { TD_AOTI_ALIGNMENT = 256 }; /* of constants in a block */
/* Bytes that a constant takes in a block. */
size_t td_aoti_room(const struct td_aoti_constant *constant);
enum tandem_status td_aoti_state_init(const struct td_aoti_engine *engine, struct td_aoti_state *state,
                                      struct tandem_error *error);
/* Writes the initial values again, those of the engine's own set, which no run has touched. */
enum tandem_status td_aoti_state_clear(const struct td_aoti_engine *engine, struct td_aoti_state *state,
                                       struct tandem_error *error);
void td_aoti_state_fini(const struct td_aoti_engine *engine, struct td_aoti_state *state);
/* Memory of the engine's device: the host's without `cuda`. free(NULL) is fine. */
enum tandem_status td_aoti_allocate(struct td_aoti_cuda *cuda, size_t size, void **memory,
                                    struct tandem_error *error);
void td_aoti_free(struct td_aoti_cuda *cuda, void *memory);
/* Between host and device in any direction; returns when done. */
enum tandem_status td_aoti_copy(struct td_aoti_cuda *cuda, void *to, const void *from, size_t size,
                                struct tandem_error *error);

/* ---------------------------------------------------------------- context.c */

struct td_aoti_context {
  const struct td_aoti_engine *engine; /* outlives the context */
  struct aoti_container *container;    /* owned; one runner, borrows the engine's weights */
  struct td_aoti_state state;
  struct aoti_tensor **constants; /* owned, handles too: of the engine's constants or of the copies */
  struct tandem_io *ios;          /* owned, names too: inputs, then outputs */
  size_t input_count, output_count;
  struct aoti_tensor **handles; /* owned: room for inputs, then outputs, of one run */
  bool ran;                     /* the first run, which may fold constants, is done */
  bool share_scratch, cuda_graph;
  void *cuda; /* cuda.c's part: streams, staging, graph; NULL on the CPU */
};

enum tandem_status td_aoti_context_create(void *engine, const struct tandem_context_desc *desc,
                                          void **context, struct tandem_context_io *io,
                                          struct tandem_error *error);
void td_aoti_context_destroy(void *context);
enum tandem_status td_aoti_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error);
enum tandem_status td_aoti_reset(void *context, struct tandem_error *error);

/* Runs the model once on `stream` (NULL on the CPU). data[i] is input i's memory on the device, its shape is
 * desc->inputs[i]'s. On success self->handles[input_count + k] is output k, to be deleted by
 * td_aoti_drop_outputs. Device work is queued, not awaited. */
enum tandem_status td_aoti_invoke(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                  void *const *data, void *stream, struct tandem_error *error);
void td_aoti_drop_outputs(struct td_aoti_context *self);

/* An output of a run: contiguous tensors only. */
struct td_aoti_result {
  const void *data; /* on the device */
  size_t size;      /* bytes */
  int32_t dtype, rank;
  int64_t shape[TANDEM_MAX_RANK];
};
enum tandem_status td_aoti_result(struct td_aoti_context *self, size_t index, struct td_aoti_result *result,
                                  struct tandem_error *error);
/* Gives the caller's output its real shape and makes sure of room for it. */
enum tandem_status td_aoti_make_room(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                     size_t index, const struct td_aoti_result *result,
                                     struct tandem_error *error);

/* ---------------------------------------------------------------- cuda.c: everything that touches a GPU */

/* What an option names: "cuda", which is device 0, or "cuda:N". False for anything else. */
bool td_aoti_cuda_index(const char *device, int *index);
/* Device "cuda:N": that it is there, its compute capability is `capability` (0: any) or later, the id of its
 * context. Errors: UNAVAILABLE, UNSUPPORTED, DEVICE_ERROR, DEVICE_LOST. */
enum tandem_status td_aoti_cuda_resolve(int32_t index, int32_t capability,
                                        struct tandem_resolution *resolution, struct tandem_error *error);
/* That the device has `capability` (0: any) or later. UNSUPPORTED names both. */
enum tandem_status td_aoti_cuda_check(int32_t index, int32_t capability, struct tandem_error *error);
/* The compute capability x 10 that the GPU code in a library needs at least; 0: none found. */
int32_t td_aoti_cuda_capability(const void *so, size_t size);
/* Retains the device's context; release gives it back. */
enum tandem_status td_aoti_cuda_acquire(const struct tandem_resolution *resolution,
                                        struct td_aoti_cuda **cuda, struct tandem_error *error);
void td_aoti_cuda_release(struct td_aoti_cuda *cuda);
/* Around every entry that calls the engine or the functions below: makes the context the thread's current one
 * and takes it away again. NULL is fine and does nothing. */
enum tandem_status td_aoti_cuda_enter(struct td_aoti_cuda *cuda, struct tandem_error *error);
void td_aoti_cuda_leave(struct td_aoti_cuda *cuda);
/* Before the engine's library allocates `size` bytes. NULL is fine. */
void td_aoti_cuda_make_room(struct td_aoti_cuda *cuda, size_t size);
enum tandem_status td_aoti_cuda_allocate(struct td_aoti_cuda *cuda, size_t size, void **memory,
                                         struct tandem_error *error);
void td_aoti_cuda_free(struct td_aoti_cuda *cuda, void *memory);
/* Between host and device in any direction; returns when done. */
enum tandem_status td_aoti_cuda_copy(struct td_aoti_cuda *cuda, void *to, const void *from, size_t size,
                                     struct tandem_error *error);
/* Free and total bytes of the current context's device. */
enum tandem_status td_aoti_cuda_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                       uint64_t *total_bytes, struct tandem_error *error);
/* A context's part: its stream, staging, graph. Called between enter and leave; fini also where the device is
 * lost. */
enum tandem_status td_aoti_cuda_context_init(struct td_aoti_context *self, struct tandem_error *error);
void td_aoti_cuda_context_fini(struct td_aoti_context *self);
/* tandem's run on a GPU: stages what must be staged, calls td_aoti_invoke, td_aoti_result and
 * td_aoti_make_room, writes the outputs. Called between enter and leave. */
enum tandem_status td_aoti_cuda_run(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                    struct tandem_error *error);
/* Before a reset or destruction: waits for the context's last run. */
enum tandem_status td_aoti_cuda_settle(struct td_aoti_context *self, struct tandem_error *error);

#endif
