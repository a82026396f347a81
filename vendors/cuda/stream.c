/* Streams that runs lease.
 *
 * libtorch's allocator keeps what a run frees for later runs on the same stream, and gives it to no other.
 * Loads with a stream each would keep as much each; loads that run one after another on one stream keep it
 * once, and k that run at a time k times. So the stream that was given back last is leased first.
 */
#include "cuda.h"

int32_t td_stream_lease(struct td_cuda_context *cuda, void **stream) {
  struct td_stream_pool *pool = &cuda->streams;
  *stream = NULL;
  td_cuda_host()->lock_alone(&pool->lock);
  if (pool->idle_count > 0)
    *stream = pool->idle[--pool->idle_count];
  td_cuda_host()->unlock(&pool->lock);
  return *stream != NULL ? TD_CUDA_OK : td_cuda.stream_create(stream, TD_CUDA_STREAM_NON_BLOCKING);
}

void td_stream_return(struct td_cuda_context *cuda, void *stream, bool idle) {
  struct td_stream_pool *pool = &cuda->streams;
  td_cuda_host()->lock_alone(&pool->lock);
  bool kept = idle && pool->idle_count < TD_CUDA_IDLE_MAX;
  if (kept)
    pool->idle[pool->idle_count++] = stream;
  td_cuda_host()->unlock(&pool->lock);
  if (!kept && !td_cuda_lost(cuda))
    td_cuda.stream_destroy(stream);
}

void td_stream_fini(struct td_cuda_context *cuda) {
  struct td_stream_pool *pool = &cuda->streams;
  while (pool->idle_count > 0)
    td_cuda.stream_destroy(pool->idle[--pool->idle_count]);
}
