/* One run of a load on a GPU, as far as it is the same for every engine: its stream, what it comes after, the
 * caller's tensors, its end.
 *
 * Runs of one load are in order also when they return early: the next one's stream waits for the event of
 * such a run, whatever stream that was on. The same handle may be another stream by now: the per-thread
 * stream has one for all threads, and a destroyed stream's handle comes back.
 *
 * Memory that the device reaches is bound in place. Other host memory is staged through buffers that stay
 * with the load, and so is an address that no kernel may be given. A buffer is replaced only when the run
 * before, which may still use it, is done.
 *
 * A stream that the caller is capturing gets what an engine enqueues and nothing else. Nothing is staged
 * there: the graph would keep the address of a buffer that a later run may give away. A run that is still in
 * flight is refused: a capture cannot be told to wait for an event from before it.
 *
 * A run that fails waits for what it queued, so the caller's buffers are his again when it returns.
 */
#include "cuda.h"

#include <stdio.h>

enum { EVENT_WITHOUT_TIMES = 2 };

int32_t td_cuda_wait(void *stream) {
  td_cuda_host()->wait_begin();
  int32_t code = td_cuda.stream_wait(stream);
  td_cuda_host()->wait_end();
  return code;
}

int32_t td_cuda_wait_event(void *event) {
  td_cuda_host()->wait_begin();
  int32_t code = td_cuda.event_wait(event);
  td_cuda_host()->wait_end();
  return code;
}

/* ---------------------------------------------------------------- the run before */

enum tandem_status td_flight_init(struct td_cuda_context *cuda, struct td_flight *flight,
                                  struct tandem_error *error) {
  *flight = (struct td_flight){0};
  int32_t code = td_cuda.event_create(&flight->event, EVENT_WITHOUT_TIMES);
  if (code == TD_CUDA_OK)
    return TANDEM_OK;
  flight->event = NULL;
  return td_cuda_fail(cuda, code, "create an event", error);
}

void td_flight_fini(struct td_cuda_context *cuda, struct td_flight *flight) {
  if (flight->event != NULL && !td_cuda_lost(cuda))
    td_cuda.event_destroy(flight->event);
}

enum tandem_status td_flight_await(struct td_cuda_context *cuda, struct td_flight *flight,
                                   struct tandem_error *error) {
  if (!flight->pending)
    return TANDEM_OK;
  int32_t code = td_cuda_wait_event(flight->event);
  flight->pending = false;
  return code == TD_CUDA_OK ? TANDEM_OK : td_cuda_fail(cuda, code, "wait for the run before", error);
}

int32_t td_run_order(struct td_run *run) {
  int32_t code = TD_CUDA_OK;
  if (run->flight->pending && !run->ordered)
    code = td_cuda.stream_await_event(run->stream, run->flight->event, 0);
  run->ordered = code == TD_CUDA_OK;
  return code;
}

/* ---------------------------------------------------------------- captures */

enum tandem_status td_run_refuse_capture(struct td_run *run, const char *reason) {
  return td_cuda_host()->fail(
      run->error, TANDEM_INVALID_STATE,
      "the stream is being captured and %s; run this load once with the same shapes and with buffers in "
      "device memory before the capture",
      reason);
}

enum tandem_status td_run_check_stream(struct td_run *run, const char *never) {
  int32_t status = TD_CUDA_CAPTURE_NONE;
  int32_t code = td_cuda.stream_capturing(run->stream, &status);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->cuda, code, "use the stream", run->error);
  if (status == TD_CUDA_CAPTURE_INVALIDATED)
    return td_cuda_host()->fail(run->error, TANDEM_INVALID_STATE,
                                "the stream's capture was invalidated earlier; end it, and capture again");
  run->captured = status == TD_CUDA_CAPTURE_ACTIVE;
  if (run->captured && never != NULL)
    return td_cuda_host()->fail(run->error, TANDEM_INVALID_STATE, "the stream is being captured and %s",
                                never);
  if (!run->captured || !run->flight->pending)
    return TANDEM_OK;
  code = td_cuda.event_query(run->flight->event);
  if (code == TD_CUDA_NOT_READY)
    return td_run_refuse_capture(run, "a run of this load that returned early is still in flight");
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->cuda, code, "ask for the end of the run before", run->error);
  run->flight->pending = false;
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- tensors */

enum tandem_status td_run_locate(struct td_run *run, struct td_cuda_tensor *tensor, const void *data,
                                 size_t bytes) {
  tensor->data = (void *)(uintptr_t)data;
  tensor->bytes = bytes;
  tensor->copied = false;
  tensor->pointer = bytes > 0
                        ? td_cuda_locate(run->cuda, data, bytes)
                        : (struct td_cuda_pointer){.address = run->cuda->nothing, .place = TD_CUDA_DEVICE};
  tensor->address = tensor->pointer.address;
  if (tensor->pointer.place != TD_CUDA_FOREIGN)
    return TANDEM_OK;
  return td_cuda_host()->fail(
      run->error, TANDEM_INVALID_ARGUMENT,
      "%s %zu (%s) lies in memory of cuda:%d that is not mapped for cuda:%d, where the engine is; copy it "
      "there",
      tensor->side, tensor->number, tensor->name, tensor->pointer.owner, run->cuda->device_id);
}

bool td_cuda_can_bind(const struct td_cuda_tensor *tensor) {
  return tensor->pointer.place != TD_CUDA_HOST && tensor->address % TD_CUDA_ALIGNMENT == 0;
}

enum tandem_status td_run_stage(struct td_run *run, struct td_cuda_tensor *tensor) {
  char step[160];
  if (run->captured && tensor->pointer.place == TD_CUDA_HOST)
    return td_run_refuse_capture(run, "a tensor is in host memory");
  if (run->captured) {
    snprintf(step, sizeof step, "the address of %s %zu (%.64s) is not aligned to %d bytes", tensor->side,
             tensor->number, tensor->name, TD_CUDA_ALIGNMENT);
    return td_run_refuse_capture(run, step);
  }
  tensor->copied = true;
  if (tensor->staged.size < tensor->bytes) {
    enum tandem_status status = td_flight_await(run->cuda, run->flight, run->error);
    if (status != TANDEM_OK)
      return status;
    td_cuda_give(run->cuda, &tensor->staged);
    int32_t code = td_cuda_take(run->cuda, tensor->bytes, &tensor->staged);
    if (code != TD_CUDA_OK) {
      snprintf(step, sizeof step, "allocate %zu bytes for %s %zu (%.64s)", tensor->bytes, tensor->side,
               tensor->number, tensor->name);
      return td_cuda_fail(run->cuda, code, step, run->error);
    }
  }
  tensor->address = tensor->staged.address;
  return TANDEM_OK;
}

int32_t td_run_copy(struct td_run *run, const struct td_cuda_tensor *tensor, bool out) {
  uint64_t theirs = tensor->pointer.address, ours = tensor->address;
  size_t bytes = tensor->bytes;
  run->queued = true;
  if (tensor->pointer.place == TD_CUDA_DEVICE)
    return td_cuda.copy_within(out ? theirs : ours, out ? ours : theirs, bytes, run->stream);
  if (tensor->pointer.inside != bytes)
    return td_cuda_copy_host(run->cuda, ours, tensor->data, bytes, out, run->stream);
  return out ? td_cuda.copy_out(tensor->data, ours, bytes, run->stream)
             : td_cuda.copy_in(ours, tensor->data, bytes, run->stream);
}

/* ---------------------------------------------------------------- end */

enum tandem_status td_run_wait(struct td_run *run) {
  int32_t code = td_cuda_wait(run->stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->cuda, code, "wait for the run", run->error);
  run->queued = run->flight->pending = false;
  return TANDEM_OK;
}

enum tandem_status td_run_return_early(struct td_run *run) {
  int32_t code = td_cuda.event_record(run->flight->event, run->stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->cuda, code, "record the run's event", run->error);
  run->flight->pending = true;
  run->queued = false;
  if (run->desc->done != NULL)
    *run->desc->done = run->flight->event;
  return TANDEM_OK;
}

enum tandem_status td_run_give_up(struct td_run *run, enum tandem_status status) {
  if (!run->queued || run->captured || td_cuda_lost(run->cuda))
    return status;
  int32_t code = td_cuda_wait(run->stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->cuda, code, "wait for a failed run", run->error);
  run->queued = false;
  if (run->ordered)
    run->flight->pending = false;
  return status;
}

int32_t td_run_ask_device(const struct td_run *run) {
  size_t free_bytes, total_bytes;
  return run->captured ? TD_CUDA_OK : td_cuda.memory_info(&free_bytes, &total_bytes);
}
