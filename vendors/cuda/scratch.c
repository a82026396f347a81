/* Scratch: the device memory that a run needs while it runs, and nobody between runs.
 *
 * Each device has a pool of blocks. A run leases one and returns it, so loads that run one after another use
 * one block and k that run at a time use k. A block that is too small is freed and made larger, never kept
 * beside the larger one. Blocks beyond one for each context go when a context goes, all of them with the last
 * engine of the device.
 *
 * A lease is one compare and swap of the block's state when the block of this context's last run is free,
 * which it is for a load that runs alone; the pool's lock is for everything else. The record of a block lives
 * as long as the pool, so a context may always look at the one it had before; address and event are touched
 * only by whoever has the lease.
 *
 * A block returned by a run that is still in flight has its context for a state: that context may take it at
 * once, since tandem orders the runs of one load, and any other, with the pool's lock, after its event.
 *
 * Under a caller's capture no memory is allocated or freed and nothing is waited for: such a lease takes any
 * block that is idle and large enough, or none. A context that got none keeps the block of its next run, so
 * that its next capture depends on nobody.
 */
#include "cuda.h"

#include <stdatomic.h>
#include <string.h>

/* States below any address of a context. */
enum { BLOCK_FREE = 0, BLOCK_LEASED = 1 };

static bool claim(struct td_scratch_block *block, uintptr_t from) {
  return atomic_compare_exchange_strong_explicit(&block->state, &from, BLOCK_LEASED, memory_order_acquire,
                                                 memory_order_relaxed);
}

static void unclaim(struct td_scratch_block *block, uintptr_t to) {
  atomic_store_explicit(&block->state, to, memory_order_release);
}

static size_t size_of(const struct td_scratch_block *block) {
  return atomic_load_explicit(&block->size, memory_order_relaxed);
}

/* Claims a block that no run of another context has. *was is the state to give it back with. */
static bool claim_idle_locked(struct td_scratch_block *block, const struct td_scratch *scratch,
                              uintptr_t *was) {
  *was = atomic_load_explicit(&block->state, memory_order_relaxed);
  if (*was == BLOCK_LEASED || !claim(block, *was))
    return false;
  if (*was == BLOCK_FREE || *was == (uintptr_t)scratch)
    return true;
  if (td_cuda.event_query(block->event) == TD_CUDA_OK) {
    *was = BLOCK_FREE;
    return true;
  }
  unclaim(block, *was);
  return false;
}

/* Gives up the memory of a leased block. */
static void empty(struct td_cuda_context *cuda, struct td_scratch_block *block) {
  uint64_t address = block->address;
  block->address = 0;
  atomic_store_explicit(&block->size, 0, memory_order_relaxed);
  td_cuda_free(cuda, address);
}

/* ---------------------------------------------------------------- who leases here */

void td_scratch_join(struct td_cuda_context *cuda, struct td_scratch *scratch) {
  memset(scratch, 0, sizeof *scratch);
  td_cuda_host()->lock_alone(&cuda->scratch.lock);
  cuda->scratch.users++;
  td_cuda_host()->unlock(&cuda->scratch.lock);
}

void td_scratch_leave(struct td_cuda_context *cuda, struct td_scratch *scratch) {
  size_t users;
  td_cuda_host()->lock_alone(&cuda->scratch.lock);
  users = --cuda->scratch.users;
  for (struct td_scratch_block *block = scratch->kept, *linked; block != NULL; block = linked) {
    linked = block->linked;
    unclaim(block, BLOCK_FREE);
  }
  if (scratch->held)
    unclaim(scratch->block, BLOCK_FREE);
  /* The event goes with the context, so nobody may have to ask it any more. */
  for (struct td_scratch_block *block = cuda->scratch.blocks; block != NULL; block = block->next)
    if (claim(block, (uintptr_t)scratch))
      unclaim(block, BLOCK_FREE);
  td_cuda_host()->unlock(&cuda->scratch.lock);
  memset(scratch, 0, sizeof *scratch);
  td_scratch_trim(cuda, users);
}

/* ---------------------------------------------------------------- lease */

static struct td_scratch_block *new_block_locked(struct td_scratch_pool *pool) {
  return pool->first_count < TD_SCRATCH_FIRST ? &pool->first[pool->first_count++]
                                              : td_cuda_host()->allocate(sizeof *pool->blocks);
}

/* The smallest block that fits, else (`grows`) the largest that does not, else a new one without memory;
 * leased, *was as above. NULL: none, or no memory for its record. */
static struct td_scratch_block *find_locked(struct td_cuda_context *cuda, const struct td_scratch *scratch,
                                            size_t size, bool grows, uintptr_t *was) {
  struct td_scratch_block *best = NULL;
  for (struct td_scratch_block *block = cuda->scratch.blocks; block != NULL; block = block->next) {
    uintptr_t state;
    if (!claim_idle_locked(block, scratch, &state))
      continue;
    size_t have = size_of(block), best_size = best != NULL ? size_of(best) : 0;
    bool fits = have >= size, best_fits = best != NULL && best_size >= size;
    bool better =
        fits ? !best_fits || have < best_size : grows && !best_fits && (best == NULL || have > best_size);
    if (!better) {
      unclaim(block, state);
      continue;
    }
    if (best != NULL)
      unclaim(best, *was);
    best = block;
    *was = state;
  }
  if (best == NULL && grows && (best = new_block_locked(&cuda->scratch)) != NULL) {
    atomic_init(&best->state, BLOCK_LEASED);
    best->next = cuda->scratch.blocks;
    cuda->scratch.blocks = best;
    *was = BLOCK_FREE;
  }
  return best;
}

/* Gives a leased block `size` bytes instead of what it has. */
static int32_t grow(struct td_cuda_context *cuda, struct td_scratch_block *block, uintptr_t was,
                    size_t size) {
  if (was != BLOCK_FREE)
    td_cuda_wait_event(block->event);
  empty(cuda, block);
  int32_t code = td_cuda_allocate(cuda, size, &block->address);
  if (code == TD_CUDA_OK)
    atomic_store_explicit(&block->size, size, memory_order_relaxed);
  return code;
}

int32_t td_scratch_lease(struct td_cuda_context *cuda, struct td_scratch *scratch, size_t size, bool captured,
                         uint64_t *address) {
  struct td_scratch_block *block = scratch->block;
  uintptr_t was = BLOCK_FREE;
  int32_t code = TD_CUDA_OK;
  *address = 0;
  /* A graph that was captured with this load has its address, so only this load's runs may write to it. */
  for (struct td_scratch_block *kept = scratch->kept; kept != NULL; kept = kept->linked)
    if (size_of(kept) >= size) {
      *address = kept->address;
      return TD_CUDA_OK;
    }
  if (block != NULL && !claim(block, BLOCK_FREE)) {
    was = (uintptr_t)scratch;
    if (!claim(block, was))
      block = NULL;
  }
  if (block != NULL && size_of(block) < size) {
    unclaim(block, was);
    block = NULL;
  }
  if (block == NULL) {
    td_cuda_host()->lock_alone(&cuda->scratch.lock);
    block = find_locked(cuda, scratch, size, !captured, &was);
    td_cuda_host()->unlock(&cuda->scratch.lock);
    if (block != NULL && size_of(block) < size)
      code = grow(cuda, block, was, size);
  }
  if (block == NULL) {
    scratch->wanted = scratch->wanted || captured;
    return captured ? TD_CUDA_NOT_READY : TD_CUDA_OUT_OF_MEMORY;
  }
  if (code != TD_CUDA_OK) {
    unclaim(block, BLOCK_FREE);
    return code;
  }
  scratch->block = block;
  scratch->held = true;
  *address = block->address;
  return TD_CUDA_OK;
}

void td_scratch_return(struct td_scratch *scratch, void *event) {
  if (scratch->wanted)
    td_scratch_keep(scratch);
  if (!scratch->held)
    return;
  scratch->held = false;
  scratch->block->event = event;
  unclaim(scratch->block, event != NULL ? (uintptr_t)scratch : BLOCK_FREE);
}

void td_scratch_keep(struct td_scratch *scratch) {
  if (!scratch->held)
    return;
  scratch->held = scratch->wanted = false;
  scratch->block->linked = scratch->kept;
  scratch->kept = scratch->block;
  scratch->block = NULL;
}

/* ---------------------------------------------------------------- end */

bool td_scratch_trim(struct td_cuda_context *cuda, size_t leave) {
  struct td_scratch_block *freed = NULL;
  uintptr_t was;
  size_t count = 0;
  bool any = false;
  td_cuda_host()->lock_alone(&cuda->scratch.lock);
  for (struct td_scratch_block *block = cuda->scratch.blocks; block != NULL; block = block->next)
    if (size_of(block) > 0)
      count++;
  for (struct td_scratch_block *block = cuda->scratch.blocks; block != NULL && count > leave;
       block = block->next)
    if (size_of(block) > 0 && claim_idle_locked(block, NULL, &was)) {
      block->linked = freed;
      freed = block;
      count--;
    }
  td_cuda_host()->unlock(&cuda->scratch.lock);
  for (struct td_scratch_block *block = freed, *linked; block != NULL; block = linked) {
    linked = block->linked;
    empty(cuda, block);
    unclaim(block, BLOCK_FREE);
    any = true;
  }
  return any;
}

void td_scratch_fini(struct td_cuda_context *cuda, bool forget) {
  for (struct td_scratch_block *block = cuda->scratch.blocks, *next; block != NULL; block = next) {
    next = block->next;
    if (!forget)
      td_cuda_free(cuda, block->address);
    if (block < cuda->scratch.first || block >= cuda->scratch.first + TD_SCRATCH_FIRST)
      td_cuda_host()->release(block);
  }
  cuda->scratch.blocks = NULL;
}
