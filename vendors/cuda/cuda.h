/* What the CUDA vendors share: the driver's interface, contexts and memory of devices, scratch, recorded
 * runs, leased streams, and a run's stream and tensors.
 *
 * CUDA's handles (context, stream, event) are `void *`, device addresses are `uint64_t` as in the driver's
 * interface. Every call that reaches CUDA is made between td_cuda_enter and td_cuda_leave, unless its comment
 * says otherwise.
 */
#ifndef TANDEM_VENDORS_CUDA_CUDA_H
#define TANDEM_VENDORS_CUDA_CUDA_H

#include <tandem/vendor.h>

/* ---------------------------------------------------------------- device.c: TANDEM_CUDA_LIBRARY or
 * libcuda.so.1, opened at the first use; a failure is not remembered. */

/* The host that vendors were given; set by each vendor's open and parse before anything below is used. */
const struct tandem_host *td_cuda_host(void);
void td_cuda_set_host(const struct tandem_host *host);
/* One line of this vendor's to the host's log. */
void td_cuda_say(const struct tandem_vendor *vendor, enum tandem_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

enum { TD_CUDA_OK = 0, TD_CUDA_OUT_OF_MEMORY = 2, TD_CUDA_DEINITIALIZED = 4, TD_CUDA_NOT_READY = 600 };
enum { TD_CUDA_CAPTURE_NONE = 0, TD_CUDA_CAPTURE_ACTIVE = 1, TD_CUDA_CAPTURE_INVALIDATED = 2 };
enum { TD_CUDA_CAPTURE_THREAD_LOCAL = 1, TD_CUDA_CAPTURE_RELAXED = 2 };
#define TD_CUDA_STREAM_PER_THREAD ((void *)2)
enum { TD_CUDA_STREAM_NON_BLOCKING = 1 };

/* The driver's entries: CUresult is int32_t, handles are void *, device addresses uint64_t.
 * R(member, symbol, parameters): every driver of CUDA 12 has it. O: newer drivers only, NULL
 * elsewhere. */
#define TD_CUDA_ENTRIES(R, O)                                                                                \
  R(init, cuInit, (uint32_t flags))                                                                          \
  R(driver_version, cuDriverGetVersion, (int32_t * version))                                                 \
  R(device_count, cuDeviceGetCount, (int32_t * count))                                                       \
  R(device_get, cuDeviceGet, (int32_t * device, int32_t ordinal))                                            \
  R(device_name, cuDeviceGetName, (char *name, int32_t size, int32_t device))                                \
  R(device_attribute, cuDeviceGetAttribute, (int32_t * value, int32_t attribute, int32_t device))            \
  R(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int32_t device))                              \
  R(primary_release, cuDevicePrimaryCtxRelease_v2, (int32_t device))                                         \
  R(primary_state, cuDevicePrimaryCtxGetState, (int32_t device, uint32_t * flags, int32_t * active))         \
  R(context_current, cuCtxGetCurrent, (void **context))                                                      \
  R(context_push, cuCtxPushCurrent_v2, (void *context))                                                      \
  R(context_pop, cuCtxPopCurrent_v2, (void **context))                                                       \
  R(context_device, cuCtxGetDevice, (int32_t * device))                                                      \
  O(context_id, cuCtxGetId, (void *context, uint64_t *id))                                                   \
  R(memory_info, cuMemGetInfo_v2, (size_t * free_bytes, size_t * total_bytes))                               \
  R(memory_allocate, cuMemAlloc_v2, (uint64_t * address, size_t size))                                       \
  R(memory_free, cuMemFree_v2, (uint64_t address))                                                           \
  R(copy_in, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t size, void *stream))               \
  R(copy_out, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, void *stream))                    \
  R(copy_within, cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t size, void *stream))              \
  R(pool_default, cuDeviceGetDefaultMemPool, (void **pool, int32_t device))                                  \
  R(pool_get, cuMemPoolGetAttribute, (void *pool, int32_t attribute, void *value))                           \
  R(pool_set, cuMemPoolSetAttribute, (void *pool, int32_t attribute, void *value))                           \
  R(pool_trim, cuMemPoolTrimTo, (void *pool, size_t keep))                                                   \
  O(graph_trim, cuDeviceGraphMemTrim, (int32_t device))                                                      \
  R(pointer_attributes, cuPointerGetAttributes,                                                              \
    (uint32_t count, int32_t * attributes, void **values, uint64_t address))                                 \
  R(stream_create, cuStreamCreate, (void **stream, uint32_t flags))                                          \
  R(stream_destroy, cuStreamDestroy_v2, (void *stream))                                                      \
  R(stream_wait, cuStreamSynchronize, (void *stream))                                                        \
  R(stream_query, cuStreamQuery, (void *stream))                                                             \
  R(stream_await_event, cuStreamWaitEvent, (void *stream, void *event, uint32_t flags))                      \
  R(stream_capturing, cuStreamIsCapturing, (void *stream, int32_t *status))                                  \
  O(stream_context, cuStreamGetCtx_v2, (void *stream, void **context, void **green))                         \
  R(event_create, cuEventCreate, (void **event, uint32_t flags))                                             \
  R(event_destroy, cuEventDestroy_v2, (void *event))                                                         \
  R(event_record, cuEventRecord, (void *event, void *stream))                                                \
  R(event_query, cuEventQuery, (void *event))                                                                \
  R(event_wait, cuEventSynchronize, (void *event))                                                           \
  R(capture_mode, cuThreadExchangeStreamCaptureMode, (int32_t * mode))                                       \
  R(capture_begin, cuStreamBeginCapture_v2, (void *stream, int32_t mode))                                    \
  R(capture_end, cuStreamEndCapture, (void *stream, void **graph))                                           \
  R(module_load, cuModuleLoad, (void **module, const char *path))                                            \
  R(module_load_data, cuModuleLoadData, (void **module, const void *image))                                  \
  R(module_unload, cuModuleUnload, (void *module))                                                           \
  R(graph_instantiate, cuGraphInstantiateWithFlags, (void **executable, void *graph, uint64_t flags))        \
  R(graph_launch, cuGraphLaunch, (void *executable, void *stream))                                           \
  R(graph_destroy, cuGraphDestroy, (void *graph))                                                            \
  R(graph_exec_destroy, cuGraphExecDestroy, (void *executable))                                              \
  R(error_name, cuGetErrorName, (int32_t code, const char **name))

struct td_cuda_api {
#define TD_CUDA_MEMBER(member, symbol, parameters) int32_t(*member) parameters;
  TD_CUDA_ENTRIES(TD_CUDA_MEMBER, TD_CUDA_MEMBER)
#undef TD_CUDA_MEMBER
};
/* Filled when td_cuda_open has succeeded, constant after that. */
extern struct td_cuda_api td_cuda;

/* UNAVAILABLE: no driver, or one that cannot be started; names what was looked for. */
enum tandem_status td_cuda_open(struct tandem_error *error);
/* 12080 for CUDA 12.8; 0 without a driver. */
int32_t td_cuda_driver_version(void);
struct td_cuda_facts {
  char name[128];       /* "NVIDIA H200" */
  int32_t major, minor; /* compute capability */
  int32_t device_count;
};
/* Facts of a device, for messages. False when there is no driver or no such device (device_count is right).
 */
bool td_cuda_describe(int32_t device_id, struct td_cuda_facts *facts);

/* Device memory of tandem's own that lies idle, and scratch: see device.c and scratch.c. */
struct td_cuda_buffer {
  uint64_t address; /* 0: none */
  size_t size;
};
enum { TD_CUDA_IDLE_MAX = 16 };
/* See scratch.c. */
struct td_scratch_block {
  _Atomic uintptr_t state;         /* free, leased, or the td_scratch whose run in flight has it */
  _Atomic size_t size;             /* 0: no memory; changed under a lease */
  uint64_t address;                /* under a lease */
  void *event;                     /* of that run: borrowed, alive while it is the state's */
  struct td_scratch_block *next;   /* constant once linked */
  struct td_scratch_block *linked; /* in a context's kept blocks, or being freed: under a lease */
};
enum { TD_SCRATCH_FIRST = 8 };
struct td_scratch_pool {
  struct tandem_host_lock lock;
  struct td_scratch_block *blocks;                 /* guarded by lock; blocks are added and never taken out */
  struct td_scratch_block first[TD_SCRATCH_FIRST]; /* the first ones; later ones are allocated */
  size_t first_count;                              /* guarded by lock */
  size_t users;                                    /* contexts that lease here; guarded by lock */
};

/* See stream.c. */
enum { TD_STREAM_IDLE_MAX = 64 };
struct td_stream {
  void *handle;     /* owned by who has the lease, or by the pool */
  uintptr_t thread; /* which had the last lease */
};
struct td_stream_pool {
  struct tandem_host_lock lock;
  struct td_stream idle[TD_STREAM_IDLE_MAX]; /* guarded by lock */
  size_t idle_count;                         /* likewise */
};

/* A context of one device that engines hold: the primary one, retained, or the caller's. One a device and
 * context however many engines there are. */
struct td_cuda_context {
  int32_t device_id; /* as the user counts */
  int32_t device;    /* CUdevice */
  void *handle;
  uint64_t id;      /* what td_cuda_resolve gave */
  uint64_t real_id; /* cuCtxGetId; 0 when the driver has none */
  bool primary;
  bool reads_pageable; /* the device reads pageable memory through the host's page tables */
  uint64_t nothing;    /* an address for tensors without elements; constant */
  _Atomic uint32_t lost;
  struct tandem_host_lock idle_lock;
  struct td_cuda_buffer idle[TD_CUDA_IDLE_MAX]; /* guarded by idle_lock */
  size_t idle_bytes;                            /* likewise */
  struct td_scratch_pool scratch;
  struct td_stream_pool streams;
  struct tandem_host_lock pool_lock;
  size_t pool_users;            /* of td_cuda_hold_pool; guarded by pool_lock */
  void *pool;                   /* whose threshold was raised, or NULL; likewise */
  uint64_t pool_threshold;      /* that it had; likewise */
  struct td_cuda_context *next; /* guarded by the registry's lock */
  size_t users;                 /* likewise */
};

/* Which context loads of this device use: the calling thread's current one if it is of this device and not
 * the device's primary one, else the primary one. The id stays the same while the context lives.
 * Errors: UNAVAILABLE (no driver), UNSUPPORTED (no such device: names it and the devices there are),
 * DEVICE_ERROR, DEVICE_LOST. */
enum tandem_status td_cuda_resolve(int32_t device_id, uint64_t *context_id, struct tandem_error *error);
/* Whether a context with that id is its device's primary one. */
bool td_cuda_is_primary(uint64_t context_id);
/* The context with that id, for an engine; retains the primary one. Errors: as td_cuda_resolve, and
 * INVALID_STATE when the id is of no context that can be reached any more. */
enum tandem_status td_cuda_acquire(int32_t device_id, uint64_t context_id, struct td_cuda_context **context,
                                   struct tandem_error *error);
void td_cuda_release(struct td_cuda_context *context); /* NULL is fine */
/* Pushes the context on the calling thread, and puts the thread into relaxed capture mode; leave undoes both.
 * They nest. After a failed enter no leave. */
enum tandem_status td_cuda_enter(struct td_cuda_context *context, struct tandem_error *error);
void td_cuda_leave(struct td_cuda_context *context);
/* True when the context's device was reset or lost, or the driver is shutting down: objects are then only
 * forgotten, never destroyed. Called between enter and leave, or after a failed enter. */
bool td_cuda_lost(struct td_cuda_context *context);
/* Sets the calling thread's capture mode, returns the one it had. */
int32_t td_cuda_capture_mode(int32_t mode);
/* The error of a driver call that returned `code`; remembers a lost device. `step` says what was tried. */
enum tandem_status td_cuda_fail(struct td_cuda_context *context, int32_t code, const char *step,
                                struct tandem_error *error);
/* The vendor's entry. */
enum tandem_status td_cuda_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                  uint64_t *total_bytes, struct tandem_error *error);

enum td_cuda_place {
  TD_CUDA_HOST,    /* the device does not reach it: to be staged */
  TD_CUDA_MAPPED,  /* host memory that the device reaches at `address` */
  TD_CUDA_DEVICE,  /* memory of this device, or of another one that is mapped for this one, or managed */
  TD_CUDA_FOREIGN, /* memory of device `owner`, which this one does not reach */
};
struct td_cuda_pointer {
  uint64_t address;
  enum td_cuda_place place;
  int32_t owner;
  bool managed;
  size_t inside; /* bytes from here on that lie in one registration; a copy may not go past its end */
};
/* What `size` bytes at a caller's pointer are, as the driver tells. Between enter and leave. */
struct td_cuda_pointer td_cuda_locate(struct td_cuda_context *context, const void *data, size_t size);

/* Queues a copy between device memory and a caller's host memory, which may be registered in part. Between
 * enter and leave. */
int32_t td_cuda_copy_host(struct td_cuda_context *context, uint64_t device, void *host, size_t size, bool out,
                          void *stream);
/* Memory of this device; what lies idle is given up before the second try. The
 * driver's code: TD_CUDA_OK or why not. Between enter and leave. */
int32_t td_cuda_allocate(struct td_cuda_context *context, size_t size, uint64_t *address);
/* Stalls the device. */
void td_cuda_free(struct td_cuda_context *context, uint64_t address);
/* While held, the device's default pool, from which cudaMallocAsync allocates, keeps its memory. Called
 * outside of enter and leave. */
void td_cuda_hold_pool(struct td_cuda_context *context);
/* The last one lets the pool's memory go, and what recorded runs had. */
void td_cuda_drop_pool(struct td_cuda_context *context);
/* Before somebody else, an engine's library, allocates `size` bytes: gives up what lies idle where less is
 * free.
 */
void td_cuda_make_room(struct td_cuda_context *context, size_t size);
/* At least `size` bytes from what lies idle, else new. The buffer must be empty. */
int32_t td_cuda_take(struct td_cuda_context *context, size_t size, struct td_cuda_buffer *buffer);
/* Leaves it for the next; nothing may use it any more. Empties the buffer, which may be empty. */
void td_cuda_give(struct td_cuda_context *context, struct td_cuda_buffer *buffer);

/* ---------------------------------------------------------------- scratch.c */

/* A context's part in the device's pool of scratch; zeroed to begin with. */
struct td_scratch {
  struct td_scratch_block *block; /* of the last run; borrowed from the pool */
  struct td_scratch_block *kept;  /* its own until td_scratch_leave, linked */
  bool held;                      /* block is leased by the run under way */
  bool wanted;                    /* a captured run got none: the next run keeps its block */
};
void td_scratch_join(struct td_cuda_context *cuda, struct td_scratch *scratch);
/* Gives back everything; the context's work must be done. Scratch beyond one a context is freed. */
void td_scratch_leave(struct td_cuda_context *cuda, struct td_scratch *scratch);
/* At least `size` bytes, size > 0, for one run; the driver's code. `captured`: only what is there and idle,
 * else TD_CUDA_NOT_READY. */
int32_t td_scratch_lease(struct td_cuda_context *cuda, struct td_scratch *scratch, size_t size, bool captured,
                         uint64_t *address);
/* Ends the lease: at once, or when `event`, which is the context's own, has completed. */
void td_scratch_return(struct td_scratch *scratch, void *event);
/* The leased scratch stays the context's own: a captured graph has its address. */
void td_scratch_keep(struct td_scratch *scratch);
/* Frees what no run has; for an allocation that failed. Returns whether there was any. */
bool td_scratch_trim(struct td_cuda_context *cuda, size_t leave);
/* With the last engine of the device; `forget`: the memory is gone already. */
void td_scratch_fini(struct td_cuda_context *cuda, bool forget);

/* ---------------------------------------------------------------- stream.c */

/* For one run that is over when it returns; the driver's code. */
int32_t td_stream_lease(struct td_cuda_context *cuda, void **stream);
/* Ends the lease. Not `idle`: something may still be on the stream, which then goes to nobody else. */
void td_stream_return(struct td_cuda_context *cuda, void *stream, bool idle);
/* With the last engine of the device, unless that is lost. */
void td_stream_fini(struct td_cuda_context *cuda);

/* ---------------------------------------------------------------- graph.c */

struct td_graphs; /* the recorded runs of one context; NULL: it records none */

/* NULL, and a line that says why, when this load cannot record: `reason` (NULL: none known). */
struct td_graphs *td_graphs_create(struct td_cuda_context *cuda, const struct tandem_vendor *vendor,
                                   const char *reason);
void td_graphs_destroy(struct td_graphs *graphs, struct td_cuda_context *cuda);
/* What a recorded run depends on; td_graphs_run compares `size` bytes of `key`. */
struct td_graph_request {
  /* Queues the run on a stream; false when that fails. */
  bool (*enqueue)(void *context, void *stream);
  /* NULL: always. */
  bool (*capturable)(void *context, void *stream);
  void *context;
  void *stream; /* of the run */
  bool foreign; /* the stream is the caller's */
  void *flight; /* event of the run before, which may still be in flight; NULL: it is done */
  const uint64_t *key;
  size_t key_count;
};
enum td_graph_result {
  TD_GRAPH_PLAIN,    /* nothing was queued: enqueue as usual */
  TD_GRAPH_LAUNCHED, /* the run is queued */
  TD_GRAPH_RECORDED, /* likewise; the scratch in use is in the graph now */
  TD_GRAPH_FAILED,   /* see *code */
};
enum td_graph_result td_graphs_run(struct td_graphs *graphs, struct td_cuda_context *cuda,
                                   const struct td_graph_request *request, int32_t *code);

/* The process's capture lock: alone while a run is recorded, shared by what a vendor's library must not do
 * meanwhile: TensorRT's builds, creation and teardown of contexts, the first runs of AOTInductor's engines.
 * Taken inside nothing but a context's own turn. */
void td_cuda_capture_lock_shared(void);
void td_cuda_capture_unlock(void);

/* ---------------------------------------------------------------- run.c */

/* With the host's hooks around the wait; the driver's code. */
int32_t td_cuda_wait(void *stream);
int32_t td_cuda_wait_event(void *event);

/* Of a load: the end of its last run when that returned early. */
struct td_flight {
  void *event;  /* owned */
  bool pending; /* that run may not be done */
};
enum tandem_status td_flight_init(struct td_cuda_context *cuda, struct td_flight *flight,
                                  struct tandem_error *error);
void td_flight_fini(struct td_cuda_context *cuda, struct td_flight *flight);
/* Waits for that run and nothing else. */
enum tandem_status td_flight_await(struct td_cuda_context *cuda, struct td_flight *flight,
                                   struct tandem_error *error);

struct td_run {
  struct td_cuda_context *cuda;
  struct td_flight *flight; /* the load's */
  const struct tandem_run_desc *desc;
  struct tandem_error *error;
  void *stream;
  bool captured; /* by the caller */
  bool ordered;  /* what is queued comes after the run before */
  bool queued;   /* something is on the stream */
};
/* First of all: whether the stream can be used, and is being captured. `never` says why no run of this load
 * can be captured; NULL: they can. */
enum tandem_status td_run_check_stream(struct td_run *run, const char *never);
enum tandem_status td_run_refuse_capture(struct td_run *run, const char *reason);
/* Puts what follows after the run before; the driver's code. */
int32_t td_run_order(struct td_run *run);
/* When an engine's library said no: the driver's code when that is since the device is lost. */
int32_t td_run_ask_device(const struct td_run *run);
/* Waits for what was queued. */
enum tandem_status td_run_wait(struct td_run *run);
/* In place of that: records the load's event, and gives it to the caller. */
enum tandem_status td_run_return_early(struct td_run *run);
/* Ends a run that failed with `status`; returns that, or what is worse. `queued` stays true when nobody knows
 * whether what was queued is done. */
enum tandem_status td_run_give_up(struct td_run *run, enum tandem_status status);

/* The widest access of a kernel: an address that is no multiple of it is staged. */
enum { TD_CUDA_ALIGNMENT = 16 };
struct td_cuda_tensor {
  const char *side, *name; /* "input" or "output", for messages; borrowed */
  size_t number;           /* among those, likewise */
  struct td_cuda_buffer staged;
  /* Of the run under way. */
  void *data; /* the caller's */
  size_t bytes;
  struct td_cuda_pointer pointer; /* what data is */
  uint64_t address;               /* that the engine reads or writes */
  bool copied;                    /* between data and address */
};
/* Sets all of the run under way, address to where data is. */
enum tandem_status td_run_locate(struct td_run *run, struct td_cuda_tensor *tensor, const void *data,
                                 size_t bytes);
/* Whether an engine can be given the tensor's address. */
bool td_cuda_can_bind(const struct td_cuda_tensor *tensor);
/* Puts a buffer of the load between data and the engine. */
enum tandem_status td_run_stage(struct td_run *run, struct td_cuda_tensor *tensor);
/* Queues a copy from data to address, or `out`; the driver's code. */
int32_t td_run_copy(struct td_run *run, const struct td_cuda_tensor *tensor, bool out);

#endif
