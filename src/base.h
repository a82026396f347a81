/* What the sources of libtandem share. One section a source; the source's own comment tells its reasons.
 *
 * Words: an *entry* is the pool's record of one engine; a *lease* is a load's hold on an entry; a *flight* is
 * a build under way; a *call* is one entry of a vendor under way on a thread; *lines* are the log lines that
 * one load collected and has not delivered yet.
 *
 * Locks, none of which is held while another one is taken, nor across a vendor, file, sink or hook:
 *   pool        pool.c      entries, leases, counters
 *   log         log.c       sink, level, calls under way, pending lines
 *   options     options.c   process options
 *   registry    vendor.c    vendors and the state of their libraries
 *   identity    identity.c  the process's secret and OpenSSL's first use
 *   hooks       thread.c    the host's hooks
 *   a turn      load.c      who has a load's context: a run or reset has it over its vendor call, no longer
 * Fork alone takes several: all of them, in the handlers.
 */
#ifndef TANDEM_SRC_BASE_H
#define TANDEM_SRC_BASE_H

#include <tandem/vendor.h>

#include <stdarg.h>

/* ---------------------------------------------------------------- status.c */

/* Fills `error` (NULL is fine) and the thread's last reason, cut messages ending in "..."; returns status. */
enum tandem_status td_fail(struct tandem_error *error, enum tandem_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
enum tandem_status td_fail_list(struct tandem_error *error, enum tandem_status status, const char *format,
                                va_list arguments);
void td_clear(struct tandem_error *error);

/* ---------------------------------------------------------------- thread.c: the only source with pthread */

struct td_mutex {
  uint64_t storage[6]; /* a zeroed one is ready to use */
};
struct td_cond {
  uint64_t storage[7]; /* a zeroed one is ready to use */
};
struct td_thread {
  uint64_t storage[1];
};

void td_mutex_lock(struct td_mutex *mutex);
void td_mutex_unlock(struct td_mutex *mutex);
void td_mutex_fini(struct td_mutex *mutex);
void td_cond_wait(struct td_cond *cond, struct td_mutex *mutex);
/* False when `deadline_ns` (td_now_ns) has passed. */
bool td_cond_wait_until(struct td_cond *cond, struct td_mutex *mutex, uint64_t deadline_ns);
void td_cond_broadcast(struct td_cond *cond);
/* tandem_host's lock; the wait hooks are called around a wait for it. */
void td_host_lock_alone(struct tandem_host_lock *lock);
void td_host_lock_shared(struct tandem_host_lock *lock);
void td_host_unlock(struct tandem_host_lock *lock);
bool td_host_try_lock_alone(struct tandem_host_lock *lock);
/* Starts a thread with every signal blocked; false when the system refuses. */
bool td_thread_start(struct td_thread *thread, void (*run)(void *), void *argument);
void td_thread_join(struct td_thread *thread);
/* `function` runs on the calling thread when it ends (one for each thread: the last reason's); false when the
 * system refuses. */
bool td_thread_at_exit(void (*function)(void));
/* A number that names the calling thread, never 0, not reused while the thread lives. */
uint64_t td_thread_id(void);
/* Every public function runs between these two; the result of enter goes to leave. */
int td_cancel_disable(void);
void td_cancel_restore(int state);
/* Registers handlers that take the short locks around fork; from a constructor. */
void td_fork_handlers(void (*prepare)(void), void (*parent)(void), void (*child)(void));
/* Runs `function` once in the process. `once` is zeroed static storage. */
void td_once(int *once, void (*function)(void));
uint64_t td_now_ns(void);    /* CLOCK_MONOTONIC */
unsigned td_cpu_count(void); /* processors this process may run on, at least 1 */

/* Calls the host's hooks around a wait. Never with a lock of ours held. */
void td_wait_begin(void);
void td_wait_end(void);

/* Calls the host's hooks around a load. Never with a lock of ours held. After a failure there is no end. */
struct td_load_hooked {
  tandem_load_end_fn end; /* NULL: none */
  void *user;
  void *token;
};
enum tandem_status td_load_begin(struct td_load_hooked *hooked, struct tandem_error *error);
void td_load_end(const struct td_load_hooked *hooked);

/* ---------------------------------------------------------------- memory.c */

void *td_alloc(size_t size); /* zeroed, NULL on failure; size 0 gives a valid pointer */
void td_free(void *memory);
char *td_text_copy(const char *text); /* NULL on failure */
#ifdef TD_FAULTS
/* Tests: the n-th allocation from now fails (1 = the next), 0 turns it off; the count of allocations since.
 */
void td_memory_fail_at(uint64_t n);
uint64_t td_memory_count(void);
/* Blocks given out and not freed. */
uint64_t td_memory_live(void);
#endif

/* ---------------------------------------------------------------- bytes.c */

/* Engine bytes kept beyond the payload's life. */
struct td_bytes {
  const void *data;
  size_t size;
  enum tandem_payload_bytes kind;
  void *base; /* of the mapping or the copy */
  size_t base_size;
  bool watched;      /* fd is open */
  int fd;            /* of the mapped file, for its stat data; -1 when it could not be opened */
  uint64_t stamp[6]; /* device, inode, size, mtime, ctime, link count when it was mapped */
};
/* Maps (mremap of a shared read-only file mapping) or copies. `copy_only`: option payload_bytes=copy.
 * Errors: OUT_OF_MEMORY. */
enum tandem_status td_bytes_keep(const void *data, size_t size, bool copy_only, struct td_bytes *bytes,
                                 struct tandem_error *error);
void td_bytes_release(struct td_bytes *bytes);
/* True when the file of a mapping has changed since, as far as its stat data tells. */
bool td_bytes_moved(const struct td_bytes *bytes);

/* The files that parts are mapped from, as they were when it was created; owned. NULL: no memory. */
struct td_watch;
struct td_watch *td_watch_create(const struct tandem_part *parts, size_t count);
void td_watch_destroy(struct td_watch *watch);
/* True when one of the files has changed since; false for NULL. */
bool td_watch_moved(const struct td_watch *watch);

/* ---------------------------------------------------------------- identity.c */

struct td_digest {
  unsigned char tag[16];
};
enum td_identity { TD_IDENTITY_KEYED, TD_IDENTITY_FAST };
/* Keyed with a key drawn once per process. Errors: OUT_OF_MEMORY, INTERNAL. */
enum tandem_status td_digest_parts(const struct tandem_part *parts, size_t count, enum td_identity kind,
                                   struct td_digest *digest, struct tandem_error *error);
enum tandem_status td_digest(const void *data, size_t size, enum td_identity kind, struct td_digest *digest,
                             struct tandem_error *error);
/* Of the parts one after the other. */
enum tandem_status td_sha256_parts(const struct tandem_part *parts, size_t count, char hex[65],
                                   struct tandem_error *error);

/* ---------------------------------------------------------------- options.c */

enum { TD_OPTION_VALUE_MAX = 256, TD_VENDOR_OPTIONS_MAX = 16 };

/* The resolved options of one load; a copy, nothing in it changes later. */
struct td_options {
  bool use_shared_engines;
  int64_t weight_streaming_budget; /* -1: auto */
  bool share_across_budgets;
  bool share_scratch;
  bool cuda_graph;
  bool flight_timeout_set;
  uint64_t flight_timeout_ms; /* 0: as long as the flight lives */
  enum td_identity identity;
  bool payload_copy;
  char trust_domain[TD_OPTION_VALUE_MAX];
  char expect_sha256[65]; /* "" when not asked */
  int32_t profile;        /* -1: auto */
  enum tandem_log_level log_level;
  char vendor_text[TD_VENDOR_OPTIONS_MAX][TD_OPTION_VALUE_MAX];
  const char *vendor_values[TD_VENDOR_OPTIONS_MAX]; /* into vendor_text, in the vendor's order */
};

struct td_lines;
/* Resolves every option for a load of `vendor`; notes (an unknown compile spec) go to `lines`, which may be
 * NULL. Errors: BAD_OPTION, OUT_OF_MEMORY. */
enum tandem_status td_options_resolve(const struct tandem_vendor *vendor, const struct tandem_load_desc *desc,
                                      struct td_lines *lines, struct td_options *options,
                                      struct tandem_error *error);
/* `name` is in tandem's own table, in either spelling. */
bool td_options_is_core(const char *name);
/* The level for lines that belong to no load. */
enum tandem_log_level td_options_log_level(void);
void td_options_fork_lock(void);
void td_options_fork_unlock(void);

/* ---------------------------------------------------------------- log.c */

/* The lines of one load, bounded. Every field is guarded by the log's lock. */
struct td_line;
struct td_lines {
  char label[128];
  enum tandem_log_level level;
  struct td_line *head;  /* owned */
  struct td_line **tail; /* NULL: the list is empty */
  unsigned count;
  uint64_t dropped;
};
struct td_lines *td_lines_create(const char *label,
                                 enum tandem_log_level level); /* NULL: lines are dropped */
void td_lines_set_level(struct td_lines *lines, enum tandem_log_level level);
void td_lines_add(struct td_lines *lines, enum tandem_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Error lines so far become warnings: the load went on. */
void td_lines_forgive(struct td_lines *lines);
/* Moves what `from` (NULL: nothing) has to `to`, which was empty: lines that may outlive their load. */
void td_lines_move(struct td_lines *from, struct td_lines *to);
/* Gives the lines to the sink and empties them. Never with a lock of ours held. NULL is fine. */
void td_lines_deliver(struct td_lines *lines);
void td_lines_destroy(struct td_lines *lines); /* delivers first */

/* A vendor call under way on this thread. Nests. */
struct td_call {
  struct td_call *outer;           /* on this thread */
  struct td_call *next, *previous; /* of all threads; guarded by the log's lock */
  struct td_lines *lines;
  const struct tandem_vendor *vendor;
  enum tandem_status worst; /* OUT_OF_MEMORY or DEVICE_LOST when a line on this thread said so */
  char decisive[512];       /* the first error line on this thread */
};
void td_call_begin(struct td_call *call, const struct tandem_vendor *vendor, struct td_lines *lines);
/* The status that the call ends with, and its error with the vendor's decisive line first: `status` and
 * `error` as the vendor left them, `step` ("deserialize the engine") named in the message. */
enum tandem_status td_call_end(struct td_call *call, enum tandem_status status, const char *step,
                               struct tandem_error *error);
bool td_call_nested(void); /* this thread is inside a vendor call */
/* Before a vendor is entered anew: DEVICE_LOST in a child that was forked while other threads were inside
 * vendors, unless `vendor` survives fork. */
enum tandem_status td_call_check_fork(const struct tandem_vendor *vendor, struct tandem_error *error);
/* tandem_host.log */
void td_log_vendor(const struct tandem_vendor *vendor, enum tandem_log_level level, enum tandem_status status,
                   const char *line);
uint64_t td_log_dropped(void);
void td_log_fork_lock(void);
void td_log_fork_unlock(void);
void td_log_fork_child(void);

/* ---------------------------------------------------------------- vendor.c: the only source with dlopen */

extern const struct tandem_host td_host;
/* By backend id or name. Errors: NOT_FOUND. */
enum tandem_status td_vendor_find(const char *name, const struct tandem_vendor **vendor,
                                  struct tandem_error *error);
const struct tandem_vendor *td_vendor_at(size_t index); /* NULL past the end */
/* The engine bytes and the parts of a payload, in this order, part_count + 1 of them; owned, NULL: no memory.
 */
struct tandem_part *td_payload_parts(const struct tandem_payload *payload, struct tandem_error *error);
/* Opens the vendor's library, or waits while another thread does. *library lives as long as the process. */
enum tandem_status td_vendor_open(const struct tandem_vendor *vendor, struct td_lines *lines,
                                  const struct tandem_vendor_library **library, struct tandem_error *error);
void td_vendor_fork_lock(void);
void td_vendor_fork_unlock(void);
void td_vendor_fork_child(void);

/* ---------------------------------------------------------------- pool.c */

struct td_entry;

/* What two loads must have equal to share. Text is borrowed for the call of td_pool_acquire. */
struct td_key {
  const struct tandem_vendor *vendor;
  const struct tandem_vendor_library *library;
  const struct tandem_resolution *resolution;
  const char *trust_domain;
  uint64_t size;
  struct td_digest digest;
  enum td_identity kind;
};

/* Whose turn it is to use a load's context. `lock` guards the rest and is held for no more than that. */
struct td_turn {
  struct td_mutex lock;
  struct td_cond changed;
  bool busy;      /* a run or reset has the context */
  uint64_t owner; /* the thread of it, while busy */
  uint64_t uses;  /* runs and resets that have begun, the waiting ones included */
};

/* A load's hold on an entry; part of the load, linked into the pool while it holds. */
struct td_lease {
  struct td_entry *entry;           /* shared */
  struct td_lease *next, *previous; /* guarded by the pool's lock */
  struct td_turn *turn;             /* reset in a forked child */
};

struct td_want {
  struct td_key key;
  const void *engine;              /* borrowed; key.size bytes */
  const struct tandem_part *parts; /* borrowed; the engine bytes that lie elsewhere */
  size_t part_count;
  const struct td_watch *watch; /* borrowed; their files as they were before the digest was taken; or NULL */
  const char *const *option_values;
  int64_t budget; /* -1: automatic */
  bool share;     /* option use_shared_engines */
  bool across_budgets;
  bool payload_copy;
  uint64_t flight_timeout_ms;
  struct td_lines *lines;
};

/* How a lease was got; seconds for the load's information. */
struct td_got {
  bool shared, joined, fallback;
  double build_seconds, wait_seconds;
};

/* Finds the engine of want's identity or builds it, once however many loads race. On success the lease
 * holds the entry and the load is counted. */
enum tandem_status td_pool_acquire(const struct td_want *want, struct td_lease *lease, struct td_got *got,
                                   struct tandem_error *error);
/* Another live engine of the same bytes and device under another budget; for a load that ran out of memory
 * (option share_across_budgets). False when there is none. The lease must be empty. */
bool td_pool_acquire_other_budget(const struct td_want *want, struct td_lease *lease, struct td_got *got);
/* Gives the hold back; the last one destroys the engine, vendor lines going to `lines`. */
void td_pool_release(struct td_lease *lease, struct td_lines *lines);
void td_pool_count(double digest_seconds, bool failed);
/* Adds the device's free and total memory to an out-of-memory error. */
void td_pool_explain_memory(const struct td_want *want, struct tandem_error *error);
/* stats->struct_size is kept. */
void td_pool_stats(struct tandem_stats *stats);

void *td_entry_engine(const struct td_entry *entry);
/* Bytes of weights that may be streamed, 0 when none. */
int64_t td_entry_streamable(const struct td_entry *entry);
/* Fills the engine's part of the information. */
void td_entry_get_info(const struct td_lease *lease, struct tandem_load_info *info);
/* The engine was made by a parent process and its vendor does not survive fork. */
bool td_entry_inherited(const struct td_entry *entry);

#endif
