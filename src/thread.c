/* Threads, locks and waits: the only source that knows pthread.
 *
 * Zeroed storage is a ready lock or condition, so that locks live in static tables and in blocks of td_alloc
 * without an init that could fail; glibc promises the sizes (asserted here) and a unit test proves the rest.
 * Deadlines are of CLOCK_MONOTONIC: a clock that is set back must not stretch flight_timeout_ms.
 * A thread of ours takes no signal: a host's handlers run on the host's threads, with the host's stacks.
 *
 * The host's hooks are called with no lock held. A wait or load that began with one pair ends with that pair
 * although another was set meanwhile, since the first host still waits for its lock or has a scope open; the
 * pair is therefore kept by the thread. A wait inside a wait hook calls no hook: the lock is already being
 * given up.
 *
 * Around fork this source holds its own lock, so that the child never finds it taken by a thread that is
 * gone.
 */
#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)

_Static_assert(sizeof(struct td_mutex) >= sizeof(pthread_mutex_t), "td_mutex is too small");
_Static_assert(sizeof(struct td_cond) >= sizeof(pthread_cond_t), "td_cond is too small");
_Static_assert(sizeof(struct td_thread) >= sizeof(pthread_t), "td_thread is too small");
_Static_assert(_Alignof(struct td_mutex) >= _Alignof(pthread_mutex_t), "td_mutex is not aligned");
_Static_assert(_Alignof(struct td_cond) >= _Alignof(pthread_cond_t), "td_cond is not aligned");
_Static_assert(sizeof(int) == sizeof(pthread_once_t), "td_once takes an int");
_Static_assert(PTHREAD_ONCE_INIT == 0, "a zeroed int is a fresh once");

static pthread_mutex_t *lock_of(struct td_mutex *mutex) {
  return (pthread_mutex_t *)(void *)mutex->storage;
}

static pthread_cond_t *cond_of(struct td_cond *cond) {
  return (pthread_cond_t *)(void *)cond->storage;
}

void td_mutex_lock(struct td_mutex *mutex) {
  pthread_mutex_lock(lock_of(mutex));
}

void td_mutex_unlock(struct td_mutex *mutex) {
  pthread_mutex_unlock(lock_of(mutex));
}

void td_mutex_fini(struct td_mutex *mutex) {
  pthread_mutex_destroy(lock_of(mutex));
}

void td_cond_wait(struct td_cond *cond, struct td_mutex *mutex) {
  pthread_cond_wait(cond_of(cond), lock_of(mutex));
}

bool td_cond_wait_until(struct td_cond *cond, struct td_mutex *mutex, uint64_t deadline_ns) {
  struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / NS_PER_S),
                              .tv_nsec = (long)(deadline_ns % NS_PER_S)};
  return pthread_cond_clockwait(cond_of(cond), lock_of(mutex), CLOCK_MONOTONIC, &deadline) != ETIMEDOUT;
}

void td_cond_broadcast(struct td_cond *cond) {
  pthread_cond_broadcast(cond_of(cond));
}

struct start {
  void (*run)(void *);
  void *argument;
};

static void *run_start(void *memory) {
  struct start start = *(struct start *)memory;
  td_free(memory);
  start.run(start.argument);
  return NULL;
}

bool td_thread_start(struct td_thread *thread, void (*run)(void *), void *argument) {
  struct start *start = td_alloc(sizeof(*start));
  if (!start)
    return false;
  start->run = run;
  start->argument = argument;

  /* The new thread inherits the mask, so it has no moment in which a signal could reach it. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int refused = pthread_create((pthread_t *)(void *)thread->storage, NULL, run_start, start);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (refused)
    td_free(start);
  return !refused;
}

void td_thread_join(struct td_thread *thread) {
  pthread_join(*(pthread_t *)(void *)thread->storage, NULL);
}

uint64_t td_thread_id(void) {
  /* Counted instead of gettid: the kernel gives a number again as soon as its thread has ended. */
  static _Atomic uint64_t last;
  static _Thread_local uint64_t id;
  if (!id)
    id = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
  return id;
}

/* ---- what runs when a thread ends */

static int exit_once;
static pthread_key_t exit_key;
static bool exit_key_made;
static _Thread_local void (*exit_function)(void);

static void run_exit_function(void *marker) {
  (void)marker;
  exit_function();
}

static void make_exit_key(void) {
  exit_key_made = pthread_key_create(&exit_key, run_exit_function) == 0;
}

bool td_thread_at_exit(void (*function)(void)) {
  td_once(&exit_once, make_exit_key);
  /* A key's destructor runs for a value that is not NULL; the value itself says nothing. */
  if (!exit_key_made || pthread_setspecific(exit_key, &exit_key) != 0)
    return false;
  exit_function = function;
  return true;
}

int td_cancel_disable(void) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  return state;
}

void td_cancel_restore(int state) {
  pthread_setcancelstate(state, NULL);
}

void td_once(int *once, void (*function)(void)) {
  pthread_once(once, function);
}

uint64_t td_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

unsigned td_cpu_count(void) {
  /* More than 1,024 processors do not fit cpu_set_t; then the machine's number has to do. */
  cpu_set_t set;
  long count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (unsigned)count : 1;
}

/* ---- the host's wait hooks */

struct hooks {
  tandem_wait_fn begin;
  tandem_wait_fn end;
  void *user;
};

static struct td_mutex hooks_lock;
static struct hooks hooks;                 /* guarded by hooks_lock */
static tandem_load_begin_fn load_begin;    /* guarded by hooks_lock */
static struct td_load_hooked load_hooked;  /* guarded by hooks_lock; its token is not used */
static _Thread_local struct hooks waiting; /* the pair that this thread's wait began with */
static _Thread_local unsigned wait_depth;

static void take_hooks(void) {
  td_mutex_lock(&hooks_lock);
}

static void give_hooks(void) {
  td_mutex_unlock(&hooks_lock);
}

/* Before any thread can be inside: a fork that has begun runs no handler registered meanwhile. */
__attribute__((constructor)) static void guard_hooks_at_fork(void) {
  pthread_atfork(take_hooks, give_hooks, give_hooks);
}

void td_fork_handlers(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
  pthread_atfork(prepare, parent, child);
}

void tandem_set_wait_hooks(tandem_wait_fn begin, tandem_wait_fn end, void *user) {
  struct hooks wanted = {begin, end, user};
  int state = td_cancel_disable();
  td_mutex_lock(&hooks_lock);
  hooks = wanted;
  td_mutex_unlock(&hooks_lock);
  td_cancel_restore(state);
}

void td_wait_begin(void) {
  if (wait_depth++)
    return;
  td_mutex_lock(&hooks_lock);
  waiting = hooks;
  td_mutex_unlock(&hooks_lock);
  if (waiting.begin)
    waiting.begin(waiting.user);
}

void td_wait_end(void) {
  if (wait_depth == 1 && waiting.end)
    waiting.end(waiting.user);
  wait_depth--;
}

void tandem_wait_begin(void) {
  td_wait_begin();
}

void tandem_wait_end(void) {
  td_wait_end();
}

void tandem_set_load_hooks(tandem_load_begin_fn begin, tandem_load_end_fn end, void *user) {
  int state = td_cancel_disable();
  td_mutex_lock(&hooks_lock);
  load_begin = begin;
  load_hooked = (struct td_load_hooked){.end = end, .user = user};
  td_mutex_unlock(&hooks_lock);
  td_cancel_restore(state);
}

enum tandem_status td_load_begin(struct td_load_hooked *hooked, struct tandem_error *error) {
  td_mutex_lock(&hooks_lock);
  tandem_load_begin_fn begin = load_begin;
  *hooked = load_hooked;
  td_mutex_unlock(&hooks_lock);
  if (!begin)
    return TANDEM_OK;
  struct tandem_error own = {.code = TANDEM_OK};
  enum tandem_status status = begin(hooked->user, &hooked->token, &own);
  if (status == TANDEM_OK)
    return TANDEM_OK;
  if ((unsigned)status > TANDEM_INTERNAL) /* of the host's own invention */
    status = TANDEM_INTERNAL;
  own.message[sizeof(own.message) - 1] = '\0';
  return td_fail(error, status, "%s", own.message[0] ? own.message : "the host's load hook refused the load");
}

void td_load_end(const struct td_load_hooked *hooked) {
  if (hooked->end)
    hooked->end(hooked->user, hooked->token);
}

/* ---------------------------------------------------------------- locks of vendors */

static pthread_rwlock_t *real_host_lock(struct tandem_host_lock *lock) {
  return (pthread_rwlock_t *)(void *)lock;
}
_Static_assert(sizeof(struct tandem_host_lock) >= sizeof(pthread_rwlock_t),
               "storage holds a pthread_rwlock_t");

/* The hook after a wait may block in the host, so it is called without the lock, which is then tried anew. */
void td_host_lock_alone(struct tandem_host_lock *lock) {
  while (pthread_rwlock_trywrlock(real_host_lock(lock)) != 0) {
    td_wait_begin();
    pthread_rwlock_wrlock(real_host_lock(lock));
    pthread_rwlock_unlock(real_host_lock(lock));
    td_wait_end();
  }
}

void td_host_lock_shared(struct tandem_host_lock *lock) {
  while (pthread_rwlock_tryrdlock(real_host_lock(lock)) != 0) {
    td_wait_begin();
    pthread_rwlock_rdlock(real_host_lock(lock));
    pthread_rwlock_unlock(real_host_lock(lock));
    td_wait_end();
  }
}

bool td_host_try_lock_alone(struct tandem_host_lock *lock) {
  return pthread_rwlock_trywrlock(real_host_lock(lock)) == 0;
}

void td_host_unlock(struct tandem_host_lock *lock) {
  pthread_rwlock_unlock(real_host_lock(lock));
}
