/* Locks, waits and threads: zeroed storage works, waits end, hooks pair up, fork and cancellation do no harm.
 */
#include "base.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4 };
static const uint64_t SECOND = UINT64_C(1000000000);

static void start_all(struct td_thread threads[THREADS], void (*run)(void *), void *argument) {
  for (int i = 0; i < THREADS; i++)
    assert_true(td_thread_start(&threads[i], run, argument));
}

static void join_all(struct td_thread threads[THREADS]) {
  for (int i = 0; i < THREADS; i++)
    td_thread_join(&threads[i]);
}

/* This definition stands before libc's. */
static bool no_affinity;

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set) {
  memset(set, 0, size);
  return no_affinity || syscall(SYS_sched_getaffinity, thread, size, set) < 0 ? -1 : 0;
}

/* ---- locks */

static void zeroed_storage_is_what_glibc_initialises(void **state) {
  (void)state;
  static const struct td_mutex mutex;
  static const struct td_cond cond;
  static const pthread_mutex_t fresh_mutex = PTHREAD_MUTEX_INITIALIZER;
  static const pthread_cond_t fresh_cond = PTHREAD_COND_INITIALIZER;
  assert_memory_equal(&mutex, &fresh_mutex, sizeof(fresh_mutex));
  assert_memory_equal(&cond, &fresh_cond, sizeof(fresh_cond));
}

struct counter {
  struct td_mutex lock;
  long count;
};

static void count_up(void *argument) {
  struct counter *counter = argument;
  for (int i = 0; i < 10000; i++) {
    td_mutex_lock(&counter->lock);
    counter->count++;
    td_mutex_unlock(&counter->lock);
  }
}

static void a_zeroed_mutex_excludes(void **state) {
  (void)state;
  struct counter counter = {.count = 0};
  struct td_thread threads[THREADS];
  start_all(threads, count_up, &counter);
  join_all(threads);
  assert_int_equal(counter.count, THREADS * 10000);
  td_mutex_fini(&counter.lock);
}

struct gate {
  struct td_mutex lock;
  struct td_cond moved;
  int arrived;
  bool open;
  bool in_time;
};

static void wait_at_gate(void *argument) {
  struct gate *gate = argument;
  td_mutex_lock(&gate->lock);
  gate->arrived++;
  td_cond_broadcast(&gate->moved);
  while (!gate->open)
    td_cond_wait(&gate->moved, &gate->lock);
  td_mutex_unlock(&gate->lock);
}

static void a_broadcast_wakes_every_waiter(void **state) {
  (void)state;
  struct gate gate = {.arrived = 0};
  struct td_thread threads[THREADS];
  uint64_t deadline = td_now_ns() + 60 * SECOND;
  start_all(threads, wait_at_gate, &gate);
  td_mutex_lock(&gate.lock);
  while (gate.arrived < THREADS)
    assert_true(td_cond_wait_until(&gate.moved, &gate.lock, deadline));
  gate.open = true;
  td_cond_broadcast(&gate.moved);
  td_mutex_unlock(&gate.lock);
  join_all(threads);
}

static void a_wait_ends_at_its_deadline_and_not_before(void **state) {
  (void)state;
  struct gate gate = {.arrived = 0};
  uint64_t deadline = td_now_ns() + SECOND / 50;
  td_mutex_lock(&gate.lock);
  while (td_cond_wait_until(&gate.moved, &gate.lock, deadline))
    continue;
  assert_true(td_now_ns() >= deadline);
  assert_false(td_cond_wait_until(&gate.moved, &gate.lock, 0));
  assert_false(td_cond_wait_until(&gate.moved, &gate.lock, td_now_ns()));
  td_mutex_unlock(&gate.lock);
}

/* ---- threads */

static void read_mask(void *argument) {
  pthread_sigmask(SIG_BLOCK, NULL, argument);
}

static void a_thread_of_ours_takes_no_signal(void **state) {
  (void)state;
  sigset_t all, before, after, inside, possible;
  sigfillset(&all);
  sigemptyset(&inside);
  /* What can be blocked here at all: not what is the C library's own, and in qemu-user not the last two. */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_sigmask(SIG_SETMASK, &before, &possible);
  assert_int_equal(sigismember(&possible, SIGALRM), 1);
  struct td_thread thread;
  assert_true(td_thread_start(&thread, read_mask, &inside));
  td_thread_join(&thread);
  for (int number = 1; number <= SIGRTMAX; number++)
    assert_int_equal(sigismember(&inside, number), sigismember(&possible, number));
  pthread_sigmask(SIG_BLOCK, NULL, &after);
  for (int number = 1; number <= SIGSYS; number++)
    assert_int_equal(sigismember(&before, number), sigismember(&after, number));
}

static void never_run(void *argument) {
  *(bool *)argument = true;
}

static void a_thread_that_cannot_start_leaves_nothing(void **state) {
  (void)state;
  bool ran = false;
  struct td_thread thread;
  uint64_t live = td_memory_live();
  td_memory_fail_at(1);
  assert_false(td_thread_start(&thread, never_run, &ran));
  td_memory_fail_at(0);

  /* The system refuses a stack that no address space holds. */
  pthread_attr_t before, huge;
  assert_int_equal(pthread_getattr_default_np(&before), 0);
  assert_int_equal(pthread_attr_init(&huge), 0);
  assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0);
  assert_int_equal(pthread_setattr_default_np(&huge), 0);
  bool started = td_thread_start(&thread, never_run, &ran);
  assert_int_equal(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&before);
  pthread_attr_destroy(&huge);
  assert_false(started);
  assert_false(ran);
  assert_int_equal(td_memory_live(), live);
}

static void take_id(void *argument) {
  uint64_t id = td_thread_id();
  *(uint64_t *)argument = td_thread_id() == id ? id : 0;
}

static void thread_numbers_are_never_used_twice(void **state) {
  (void)state;
  uint64_t last = td_thread_id();
  assert_int_not_equal(last, 0);
  for (int i = 0; i < 10; i++) {
    uint64_t id = 0;
    struct td_thread thread;
    assert_true(td_thread_start(&thread, take_id, &id));
    td_thread_join(&thread);
    assert_true(id > last);
    last = id;
  }
}

static _Atomic int exits;

static void note_exit(void) {
  atomic_fetch_add(&exits, 1);
}

static void ask_for_exit(void *argument) {
  *(bool *)argument =
      td_thread_at_exit(note_exit) && td_thread_at_exit(note_exit) && atomic_load(&exits) == 0;
}

static void what_was_asked_for_runs_when_the_thread_ends(void **state) {
  (void)state;
  bool asked = false;
  struct td_thread thread;
  assert_true(td_thread_start(&thread, ask_for_exit, &asked));
  td_thread_join(&thread);
  assert_true(asked);
  assert_int_equal(atomic_load(&exits), 1);
}

static int once;
static _Atomic int once_runs;

static void run_once(void) {
  atomic_fetch_add(&once_runs, 1);
}

static void call_once(void *early) {
  td_once(&once, run_once);
  if (atomic_load(&once_runs) != 1)
    atomic_store((_Atomic bool *)early, true);
}

static void once_is_once_for_all_threads(void **state) {
  (void)state;
  struct td_thread threads[THREADS];
  _Atomic bool early = false;
  start_all(threads, call_once, &early);
  join_all(threads);
  assert_false(early);
  assert_int_equal(atomic_load(&once_runs), 1);
}

static void the_clock_never_goes_back(void **state) {
  (void)state;
  uint64_t last = td_now_ns();
  for (int i = 0; i < 1000; i++) {
    uint64_t now = td_now_ns();
    assert_true(now >= last);
    last = now;
  }
}

static void processors_are_those_this_process_may_use(void **state) {
  (void)state;
  cpu_set_t before, one;
  assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
  assert_int_equal(td_cpu_count(), CPU_COUNT(&before));
  no_affinity = true; /* more of them than the set has room for */
  unsigned of_machine = td_cpu_count();
  no_affinity = false;
  assert_true(of_machine >= 1);
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
    if (CPU_ISSET(cpu, &before))
      CPU_SET(cpu, &one);
  assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
  unsigned count = td_cpu_count();
  assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
  assert_int_equal(count, 1);
}

/* ---- cancellation */

struct cancelled {
  struct gate gate;
  _Atomic bool survived;
};

static void *reach_cancellation_points(void *argument) {
  struct cancelled *cancelled = argument;
  int state = td_cancel_disable();
  wait_at_gate(&cancelled->gate);
  pthread_testcancel();
  atomic_store(&cancelled->survived, true);
  td_cancel_restore(state);
  for (int i = 0; i < 60; i++)
    sleep(1);
  return NULL;
}

static void cancellation_waits_for_the_end_of_a_call(void **state) {
  (void)state;
  struct cancelled cancelled = {.survived = false};
  pthread_t thread;
  void *result = NULL;
  assert_int_equal(pthread_create(&thread, NULL, reach_cancellation_points, &cancelled), 0);
  td_mutex_lock(&cancelled.gate.lock);
  while (cancelled.gate.arrived < 1)
    td_cond_wait(&cancelled.gate.moved, &cancelled.gate.lock);
  pthread_cancel(thread);
  cancelled.gate.open = true;
  td_cond_broadcast(&cancelled.gate.moved);
  td_mutex_unlock(&cancelled.gate.lock);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_ptr_equal(result, PTHREAD_CANCELED);
  assert_true(atomic_load(&cancelled.survived));
}

/* ---- wait hooks */

struct host {
  int begun, ended;
  struct host *next; /* set as the hooks' host by begin */
  bool wait_inside;
};

static void end_wait(void *user);

static void begin_wait(void *user) {
  struct host *host = user;
  host->begun++;
  if (host->next)
    tandem_set_wait_hooks(begin_wait, end_wait, host->next);
  if (host->wait_inside) {
    td_wait_begin();
    td_wait_end();
  }
}

static void end_wait(void *user) {
  struct host *host = user;
  host->ended++;
  if (host->wait_inside) {
    td_wait_begin();
    td_wait_end();
  }
}

static void a_wait_calls_both_hooks_of_its_host(void **state) {
  (void)state;
  struct host host = {.begun = 0};
  tandem_set_wait_hooks(begin_wait, end_wait, &host);
  for (int i = 1; i <= 3; i++) {
    (i == 2 ? tandem_wait_begin : td_wait_begin)();
    assert_int_equal(host.begun, i);
    assert_int_equal(host.ended, i - 1);
    (i == 2 ? tandem_wait_end : td_wait_end)();
    assert_int_equal(host.ended, i);
  }
  tandem_set_wait_hooks(NULL, NULL, NULL);
  td_wait_begin();
  td_wait_end();
  assert_int_equal(host.begun, 3);
  assert_int_equal(host.ended, 3);
}

static void a_wait_ends_with_the_host_it_began_with(void **state) {
  (void)state;
  struct host second = {.begun = 0}, first = {.next = &second};
  tandem_set_wait_hooks(begin_wait, end_wait, &first);
  td_wait_begin();
  assert_int_equal(first.begun, 1);
  td_wait_end();
  assert_int_equal(first.ended, 1);
  assert_int_equal(second.begun + second.ended, 0);
  td_wait_begin();
  tandem_set_wait_hooks(NULL, NULL, NULL);
  td_wait_end();
  assert_int_equal(second.begun, 1);
  assert_int_equal(second.ended, 1);
  assert_int_equal(first.begun, 1);
}

static void a_wait_inside_a_hook_calls_no_hook(void **state) {
  (void)state;
  struct host host = {.wait_inside = true};
  tandem_set_wait_hooks(begin_wait, end_wait, &host);
  td_wait_begin();
  td_wait_end();
  tandem_set_wait_hooks(NULL, NULL, NULL);
  assert_int_equal(host.begun, 1);
  assert_int_equal(host.ended, 1);
}

/* ---- locks of vendors */

struct shared_lock {
  struct tandem_host_lock lock;
  struct gate gate; /* the holder keeps the lock until it opens */
  int begun, ended, held_in_hook;
};

static void hold_lock(void *argument) {
  struct shared_lock *shared = argument;
  td_host_lock_alone(&shared->lock);
  wait_at_gate(&shared->gate);
  td_host_unlock(&shared->lock);
}

static void open_gate(void *user) {
  struct shared_lock *shared = user;
  shared->begun++;
  td_mutex_lock(&shared->gate.lock);
  shared->gate.open = true;
  td_cond_broadcast(&shared->gate.moved);
  td_mutex_unlock(&shared->gate.lock);
}

static void try_lock(void *user) {
  struct shared_lock *shared = user;
  pthread_rwlock_t *lock = (pthread_rwlock_t *)(void *)&shared->lock;
  shared->ended++;
  if (pthread_rwlock_trywrlock(lock) == 0)
    pthread_rwlock_unlock(lock);
  else
    shared->held_in_hook++;
}

static void a_wait_for_a_vendor_s_lock_calls_the_hooks_without_it(void **state) {
  (void)state;
  for (int alone = 0; alone < 2; alone++) {
    struct shared_lock shared = {.begun = 0};
    struct td_thread holder;
    tandem_set_wait_hooks(open_gate, try_lock, &shared);
    assert_true(td_thread_start(&holder, hold_lock, &shared));
    td_mutex_lock(&shared.gate.lock);
    while (shared.gate.arrived < 1)
      td_cond_wait(&shared.gate.moved, &shared.gate.lock);
    td_mutex_unlock(&shared.gate.lock);
    (alone ? td_host_lock_alone : td_host_lock_shared)(&shared.lock);
    tandem_set_wait_hooks(NULL, NULL, NULL);
    assert_int_equal(shared.begun, 1);
    assert_int_equal(shared.ended, 1);
    assert_int_equal(shared.held_in_hook, 0);
    td_host_unlock(&shared.lock);
    td_thread_join(&holder);
  }
}

struct tried {
  pthread_rwlock_t *lock;
  bool read, write;
};

static void try_both(void *argument) {
  struct tried *tried = argument;
  tried->read = pthread_rwlock_tryrdlock(tried->lock) == 0;
  if (tried->read)
    pthread_rwlock_unlock(tried->lock);
  tried->write = pthread_rwlock_trywrlock(tried->lock) == 0;
  if (tried->write)
    pthread_rwlock_unlock(tried->lock);
}

static void a_vendor_s_lock_is_shared_or_alone(void **state) {
  (void)state;
  struct tandem_host_lock lock = {0};
  struct tried tried = {.lock = (pthread_rwlock_t *)(void *)&lock};
  struct td_thread thread;
  td_host_lock_shared(&lock);
  td_host_lock_shared(&lock);
  assert_true(td_thread_start(&thread, try_both, &tried));
  td_thread_join(&thread);
  assert_true(tried.read);
  assert_false(tried.write);
  td_host_unlock(&lock);
  td_host_unlock(&lock);
  td_host_lock_alone(&lock);
  assert_true(td_thread_start(&thread, try_both, &tried));
  td_thread_join(&thread);
  assert_false(tried.read || tried.write);
  td_host_unlock(&lock);
}

/* ---- fork */

static int forked_prepare, forked_parent, forked_child;

static void note_prepare(void) {
  forked_prepare++;
}
static void note_parent(void) {
  forked_parent++;
}
static void note_child(void) {
  forked_child++;
}

static void expect_success(pid_t child) {
  int status = -1;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void fork_runs_each_handler_on_its_side(void **state) {
  (void)state;
  td_fork_handlers(note_prepare, note_parent, note_child);
  pid_t child = fork();
  if (child == 0)
    exit(forked_prepare == 1 && forked_parent == 0 && forked_child == 1 ? 0 : 1);
  expect_success(child);
  assert_int_equal(forked_prepare, 1);
  assert_int_equal(forked_parent, 1);
  assert_int_equal(forked_child, 0);
}

static _Atomic bool stop;

static void set_hooks_for_ever(void *argument) {
  while (!atomic_load(&stop))
    tandem_set_wait_hooks(begin_wait, end_wait, argument);
}

static void a_child_can_wait_whatever_other_threads_did(void **state) {
  (void)state;
  struct host host = {.begun = 0};
  struct td_thread thread;
  assert_true(td_thread_start(&thread, set_hooks_for_ever, &host));
  for (int round = 0; round < 50; round++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      td_wait_begin();
      td_wait_end();
      _exit(0);
    }
    expect_success(child);
  }
  atomic_store(&stop, true);
  td_thread_join(&thread);
  tandem_set_wait_hooks(NULL, NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(zeroed_storage_is_what_glibc_initialises),
      cmocka_unit_test(a_zeroed_mutex_excludes),
      cmocka_unit_test(a_broadcast_wakes_every_waiter),
      cmocka_unit_test(a_wait_ends_at_its_deadline_and_not_before),
      cmocka_unit_test(a_thread_of_ours_takes_no_signal),
      cmocka_unit_test(a_thread_that_cannot_start_leaves_nothing),
      cmocka_unit_test(thread_numbers_are_never_used_twice),
      cmocka_unit_test(what_was_asked_for_runs_when_the_thread_ends),
      cmocka_unit_test(once_is_once_for_all_threads),
      cmocka_unit_test(the_clock_never_goes_back),
      cmocka_unit_test(processors_are_those_this_process_may_use),
      cmocka_unit_test(cancellation_waits_for_the_end_of_a_call),
      cmocka_unit_test(a_wait_calls_both_hooks_of_its_host),
      cmocka_unit_test(a_wait_ends_with_the_host_it_began_with),
      cmocka_unit_test(a_wait_inside_a_hook_calls_no_hook),
      cmocka_unit_test(a_wait_for_a_vendor_s_lock_calls_the_hooks_without_it),
      cmocka_unit_test(a_vendor_s_lock_is_shared_or_alone),
      cmocka_unit_test(fork_runs_each_handler_on_its_side),
      cmocka_unit_test(a_child_can_wait_whatever_other_threads_did),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
