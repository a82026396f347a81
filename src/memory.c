/* Allocation: the one door through which src takes memory.
 *
 * Blocks are zeroed, so a create path that fails half way can release every member of its object without
 * knowing how far it came. Size 0 gives a block of its own: NULL then means failure and nothing else.
 *
 * The testable build (TD_FAULTS) can make the n-th allocation fail, which is how every create path is swept,
 * and counts the blocks alive, which is how "a failure leaves nothing" is proved. Its counters are atomic:
 * a flight, its waiters and the digest's threads allocate at once. In the library that ships none of it
 * exists.
 */
#include "base.h"

#include <stdlib.h>
#include <string.h>

#ifdef TD_FAULTS
#include <stdatomic.h>

static _Atomic uint64_t fail_at;
static _Atomic uint64_t allocation_count;
static _Atomic uint64_t live_count;

void td_memory_fail_at(uint64_t n) {
  /* Off first, so that another thread cannot meet the new count with the old target. */
  atomic_store(&fail_at, 0);
  atomic_store(&allocation_count, 0);
  atomic_store(&fail_at, n);
}

uint64_t td_memory_count(void) {
  return atomic_load(&allocation_count);
}

uint64_t td_memory_live(void) {
  return atomic_load(&live_count);
}
#endif

void *td_alloc(size_t size) {
#ifdef TD_FAULTS
  if (atomic_fetch_add(&allocation_count, 1) + 1 == atomic_load(&fail_at))
    return NULL;
#endif
  void *memory = calloc(1, size ? size : 1);
#ifdef TD_FAULTS
  if (memory)
    atomic_fetch_add(&live_count, 1);
#endif
  return memory;
}

void td_free(void *memory) {
#ifdef TD_FAULTS
  if (memory)
    atomic_fetch_sub(&live_count, 1);
#endif
  free(memory);
}

char *td_text_copy(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = td_alloc(size);
  if (copy)
    memcpy(copy, text, size);
  return copy;
}
