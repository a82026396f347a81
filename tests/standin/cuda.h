/* Inside the stand-in libcuda. TESTS ONLY.
 *
 * One lock, state.lock, guards everything here; one condition, state.changed, tells of every change.
 * Functions ending in _locked need the lock. Data of blocks is read and written outside it, by the threads of
 * streams and by nobody else, while the block is pinned; so a race of two runs on one buffer is one for TSan
 * as well.
 *
 * Device memory is not where its address says: addresses come from a range without access, data lies
 * elsewhere. Code that takes a device pointer for a host pointer crashes here as it does on a GPU.
 */
#ifndef TANDEM_STANDIN_CUDA_H
#define TANDEM_STANDIN_CUDA_H

#include "driver.h"
#include "standin.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

enum { DEVICES_MAX = 8, ATTRIBUTES_MAX = 160, PARAMETERS_MAX = 8, DEPTH_MAX = 64 };

struct device {
  uint64_t memory_size, memory_used, memory_peak;
  uint64_t range, range_size, range_next; /* addresses without access */
  int attributes[ATTRIBUTES_MAX];
  int lost;                /* what every context returns, 0: fine */
  struct context *primary; /* one for ever, as its handle is on a GPU; its id changes with each life */
  uint64_t pool_threshold;
};

struct context {
  struct context *next;
  uint64_t id;
  int device;
  bool is_primary, alive;
  unsigned retains;
  unsigned flags;
  int error;      /* sticky */
  uint64_t peers; /* bit d: memory of device d may be used by kernels */
  struct stream *legacy;
};

enum block_kind { BLOCK_DEVICE, BLOCK_MANAGED, BLOCK_HOST, BLOCK_REGISTERED };

struct block {
  uint64_t address, id;
  size_t size;
  unsigned char *data; /* owned, but a registered block's */
  enum block_kind kind;
  int device;
  struct context *context;
  uint64_t context_id;
  unsigned flags;
  unsigned pins; /* operations that use it now */
  bool freed;    /* waits for the last pin to go */
};

enum op_kind { OP_COPY, OP_SET, OP_KERNEL, OP_RECORD, OP_WAIT_EVENT, OP_WAIT_STREAM, OP_HOST, OP_FREE };

struct op {
  struct op *next;
  enum op_kind kind;
  uint64_t to, from; /* OP_COPY, OP_SET, OP_FREE (from) */
  uint64_t size;
  unsigned value;          /* OP_SET */
  unsigned width;          /* OP_SET, bytes */
  unsigned char *snapshot; /* OP_COPY from pageable memory: owned */
  int kernel;
  uint64_t parameters[PARAMETERS_MAX];
  unsigned grid[2];
  struct event *event; /* holds a reference */
  uint64_t generation;
  struct stream *stream; /* OP_WAIT_STREAM: holds a reference */
  void (*host)(void *);
  void *argument;
};

struct capture {
  struct graph *graph; /* NULL once ended */
  struct stream *origin;
  struct thread *thread;
  int mode;
  bool invalid;
  unsigned refs; /* streams in it, and events recorded in it */
};

struct stream {
  struct stream *next;
  struct context *context;
  uint64_t context_id, id;
  unsigned flags;
  int priority;
  bool is_legacy, is_per_thread, is_green, destroyed, running;
  unsigned refs;
  struct op *first, *last;
  uint64_t submitted, completed;
  struct capture *capture;
  size_t capture_position, joined_position;
};

struct event {
  struct event *next;
  struct context *context;
  uint64_t context_id;
  unsigned flags;
  unsigned refs;
  bool destroyed;
  uint64_t recorded, completed; /* generations */
  uint64_t time_ns;
  struct capture *capture; /* of the last record, if that was captured: holds a reference */
  struct stream *capture_stream;
  size_t capture_position;
};

struct graph {
  struct graph *next;
  bool is_instance;
  struct context *context; /* that of the captured stream, or of the instantiation */
  struct op *ops;          /* owned array */
  size_t count, capacity;
};

struct module {
  struct module *next;
  struct context *context;
  uint64_t context_id;
};

/* What belongs to one thread of the caller. */
struct thread {
  struct context *stack[DEPTH_MAX];
  int depth;
  int capture_mode;
  struct stream *per_thread[DEVICES_MAX * 4]; /* one a context */
  unsigned per_thread_count;
};

struct state {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool ready, started, forked, ended;
  int device_count, driver_version;
  struct device devices[DEVICES_MAX];
  struct context *contexts;
  struct stream *streams;
  struct event *events;
  struct graph *graphs;
  struct module *modules;
  struct block **blocks; /* owned, by address */
  size_t block_count, block_capacity;
  uint64_t last_id;
  uint64_t violations;
  bool held;
  unsigned held_kernels, passes;
};

extern struct state state;

/* Counts the call, applies orders to fail. CU_OK: go on, with nothing locked. */
int enter(const char *function);
#define ENTER(function)                                                                                      \
  do {                                                                                                       \
    int entered = enter(function);                                                                           \
    if (entered)                                                                                             \
      return entered;                                                                                        \
  } while (0)

void lock(void);
void unlock(void);
struct thread *this_thread(void);
/* The calling thread's context, if there is one and it works. */
int current_locked(struct context **context);
int context_status_locked(const struct context *context, uint64_t id);
void violate_locked(struct context *context, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* cuda_memory.c */
int allocate_locked(struct context *context, size_t size, enum block_kind kind, uint64_t *address);
struct block *find_block_locked(uint64_t address);
void drop_block_locked(struct block *block);
void unpin_locked(struct block *block);
/* Where the data of [address, address + size) is for an operation of `context`; NULL after a violation.
 * `kernel`: as a kernel sees it; otherwise as a copy does. *pinned may be NULL (pageable memory). */
void *reach_locked(struct context *context, uint64_t address, uint64_t size, bool kernel, const char *who,
                   struct block **pinned);
bool is_pageable_locked(uint64_t address);

/* cuda_stream.c */
/* Finds a stream by handle, also 0, 1, 2. */
int find_stream_locked(void *handle, struct stream **stream);
/* Queues, or captures. Takes over what `op` holds, also on failure. */
int submit_locked(struct stream *stream, const struct op *op);
void drain_locked(struct stream *stream, uint64_t sequence);
void drain_context_locked(struct context *context);
void release_op_locked(struct op *op);
void destroy_stream_locked(struct stream *stream);
void release_stream_locked(struct stream *stream);
void destroy_event_locked(struct event *event);
void release_event_locked(struct event *event);
uint64_t clock_ns(void);

/* cuda_graph.c */
/* Calls that may break a capture: CU_OK, or an error after it broke those that forbid it. */
int unsafe_call_locked(void);
int capture_locked(struct stream *stream, const struct op *op);
void break_capture_locked(struct capture *capture);
void release_capture_locked(struct capture *capture);
/* Copies what an op holds. */
void copy_op_locked(struct op *to, const struct op *from);

/* cuda_kernel.c */
void run_kernel(struct context *context, const struct op *op);
const char *kernel_name(int kernel);

#endif
