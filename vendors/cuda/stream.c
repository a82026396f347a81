/* Streams that runs lease.
 *
 * libtorch's allocator keeps what a run frees for later runs on the same stream, and gives it to no other.
 * Loads with a stream each would keep as much each; loads that run one after another on one stream keep it
 * once, and k that run at a time k times. So the stream that was given back last is leased first, and one is
 * destroyed only where more than TD_STREAM_IDLE_MAX ran at a time.
 *
 * libtorch's products of matrices keep a workspace (32 MiB on an H200) for each thread on each stream that it
 * used. k threads that were given each other's streams would keep k x k of them, so a thread's own last
 * stream comes before all others.
 */
#include "cuda.h"

#include <string.h>

static _Thread_local char here; /* its address stands for the thread */

/* The stream that the calling thread is to have, behind it in `idle`; 0: there is none. */
static size_t choose_locked(const struct td_stream_pool *pool) {
  size_t behind = pool->idle_count;
  while (behind > 0 && pool->idle[behind - 1].thread != (uintptr_t)&here)
    behind--;
  return behind > 0 ? behind : pool->idle_count;
}

int32_t td_stream_lease(struct td_cuda_context *cuda, void **stream) {
  struct td_stream_pool *pool = &cuda->streams;
  *stream = NULL;
  td_cuda_host()->lock_alone(&pool->lock);
  size_t behind = choose_locked(pool);
  if (behind > 0) {
    struct td_stream *chosen = &pool->idle[behind - 1];
    *stream = chosen->handle;
    memmove(chosen, chosen + 1, (pool->idle_count-- - behind) * sizeof *chosen);
  }
  td_cuda_host()->unlock(&pool->lock);
  return *stream != NULL ? TD_CUDA_OK : td_cuda.stream_create(stream, TD_CUDA_STREAM_NON_BLOCKING);
}

void td_stream_return(struct td_cuda_context *cuda, void *stream, bool idle) {
  struct td_stream_pool *pool = &cuda->streams;
  td_cuda_host()->lock_alone(&pool->lock);
  bool kept = idle && pool->idle_count < TD_STREAM_IDLE_MAX;
  if (kept)
    pool->idle[pool->idle_count++] = (struct td_stream){.handle = stream, .thread = (uintptr_t)&here};
  td_cuda_host()->unlock(&pool->lock);
  if (!kept && !td_cuda_lost(cuda))
    td_cuda.stream_destroy(stream);
}

void td_stream_fini(struct td_cuda_context *cuda) {
  struct td_stream_pool *pool = &cuda->streams;
  while (pool->idle_count > 0)
    td_cuda.stream_destroy(pool->idle[--pool->idle_count].handle);
}
