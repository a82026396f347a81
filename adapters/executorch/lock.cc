/* The C door's locks, which a forked child can judge.
 *
 * Every lock is in one list, and a fork tries each: one that it gets is free in the child, one that it does
 * not get was held by a thread that the child does not have. Such a lock is lost, once and for all, and its
 * users are told so instead of waiting for ever.
 */
#include "door.h"

#include <unistd.h>

namespace tandem {

std::mutex Lock::all_mutex;
Lock *Lock::all;
const bool Lock::guarded = pthread_atfork(before_fork, after_fork, begin_child) == 0;

Lock::Lock() {
  std::lock_guard<std::mutex> guard(all_mutex);
  next_ = all;
  all = this;
}

Lock::~Lock() {
  std::lock_guard<std::mutex> guard(all_mutex);
  Lock **place = &all;
  while (*place != this)
    place = &(*place)->next_;
  *place = next_;
}

void Lock::before_fork() {
  all_mutex.lock();
  for (Lock *lock = all; lock; lock = lock->next_)
    lock->is_free_ = lock->mutex.try_lock();
}

void Lock::after_fork() {
  for (Lock *lock = all; lock; lock = lock->next_)
    if (lock->is_free_)
      lock->mutex.unlock();
  all_mutex.unlock();
}

void Lock::begin_child() {
  for (Lock *lock = all; lock; lock = lock->next_)
    lock->lost = !lock->is_free_;
  after_fork();
}

Turn::Turn(Lock &lock) : lock_(lock) {
  while (!lock_.lost && !lock_.mutex.try_lock()) {
    tandem_wait_begin();
    lock_.mutex.lock();
    lock_.mutex.unlock(); /* the hook after the wait may block in the host: not with the mutex held */
    tandem_wait_end();
  }
}

Turn::~Turn() {
  if (!lock_.lost)
    lock_.mutex.unlock();
}

enum tandem_status Turn::check(const char *what, struct tandem_error *error) const {
  if (!lock_.lost)
    return TANDEM_OK;
  return tandem_fail(
      error, TANDEM_DEVICE_LOST,
      "another thread was using %s when process %ld was forked: fork while no program is loaded, "
      "run or unloaded, or start the child with exec (Python: multiprocessing's \"spawn\")",
      what, static_cast<long>(getpid()));
}

} // namespace tandem
