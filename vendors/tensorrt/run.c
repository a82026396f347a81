/* One run: its stream, what it waits for, its scratch, the library's work or a recorded graph, its end.
 *
 * Everything that can be refused is refused before anything is queued, but for what only the run tells; a run
 * that fails later waits for what it queued, so the caller's buffers are his again when it returns. A run
 * with the shapes and buffers of the run before tells the library nothing: it asks the driver what each
 * pointer is, leases scratch, enqueues and waits.
 *
 * Runs of one load are in order also when they return early: the event of a run is waited for by the next
 * one's stream, before that leases scratch or writes a staging buffer.
 *
 * A stream that the caller is capturing gets what a run enqueues and nothing else, so such a run may neither
 * allocate, copy from the host nor be the first with its shapes; its scratch has to be there, and stays the
 * load's.
 */
#include "context.h"

#include <stdio.h>

enum tandem_status td_trt_refuse(struct td_trt_run *run, enum tandem_status status, const char *step) {
  size_t free_bytes, total_bytes;
  td_trt_forget_told(run->self);
  int32_t code = run->captured ? TD_CUDA_OK : td_cuda.memory_info(&free_bytes, &total_bytes);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, step, run->error);
  return td_trt_host()->fail(run->error, status, "TensorRT could not %s", step);
}

enum tandem_status td_trt_refuse_capture(struct td_trt_run *run, const char *reason) {
  return td_trt_host()->fail(
      run->error, TANDEM_INVALID_STATE,
      "the stream is being captured and %s; run this load once with the same shapes and buffers "
      "in device memory before the capture",
      reason);
}

/* ---------------------------------------------------------------- streams */

int32_t td_trt_wait(struct td_trt_run *run) {
  td_trt_host()->wait_begin();
  int32_t code = td_cuda.stream_wait(run->stream);
  td_trt_host()->wait_end();
  return code;
}

static enum tandem_status check_stream(struct td_trt_run *run) {
  int32_t status = TD_CUDA_CAPTURE_NONE;
  int32_t code = td_cuda.stream_capturing(run->stream, &status);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, "use the stream", run->error);
  if (status == TD_CUDA_CAPTURE_INVALIDATED)
    return td_trt_host()->fail(run->error, TANDEM_INVALID_STATE,
                               "the stream's capture was invalidated earlier; end it, and capture again");
  run->captured = status == TD_CUDA_CAPTURE_ACTIVE;
  if (!run->captured || !run->self->flight)
    return TANDEM_OK;
  /* A capture cannot be told to wait for an event from before it. */
  code = td_cuda.event_query(run->self->event);
  if (code == TD_CUDA_NOT_READY)
    return td_trt_refuse_capture(run, "a run of this load that returned early is still in flight");
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, "ask for the end of the run before", run->error);
  run->self->flight = false;
  return TANDEM_OK;
}

/* The same handle may be another stream by now: the per-thread stream has one for all threads, and a
 * destroyed stream's handle comes back. */
int32_t td_trt_order(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  int32_t code = TD_CUDA_OK;
  if (self->flight && !run->ordered)
    code = td_cuda.stream_await_event(run->stream, self->event, 0);
  run->ordered = code == TD_CUDA_OK;
  return code;
}

static enum tandem_status finish(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  const struct tandem_run_desc *desc = run->desc;
  int32_t code = TD_CUDA_OK;
  self->warm = true;
  if (run->captured)
    return TANDEM_OK;
  if (!desc->return_early || self->waits) {
    code = td_trt_wait(run);
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "wait for the run", run->error);
    self->flight = false;
    enum tandem_status status = self->waits ? td_trt_hand_out_values(run) : TANDEM_OK;
    if (status != TANDEM_OK)
      return status;
  }
  if (desc->return_early) {
    code = td_cuda.event_record(self->event, run->stream);
    if (code != TD_CUDA_OK)
      return td_cuda_fail(self->cuda, code, "record the run's event", run->error);
    self->flight = true;
    if (desc->done != NULL)
      *desc->done = self->event;
  }
  td_scratch_return(&self->scratch, desc->return_early ? self->event : NULL);
  run->queued = false;
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- queue */

static enum tandem_status check_counts(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  const struct tandem_run_desc *desc = run->desc;
  size_t left = self->output_count - self->alias_count;
  bool left_out = desc->output_count == left && self->alias_count > 0 && left > 0;
  if (desc->input_count != self->input_count || (desc->output_count != self->output_count && !left_out))
    return td_trt_host()->fail(
        run->error, TANDEM_INVALID_ARGUMENT,
        "%zu inputs and %zu outputs were given, the engine has %zu inputs and %zu outputs, of "
        "which %zu that update an input may be left out if another remains",
        desc->input_count, desc->output_count, self->input_count, self->output_count, self->alias_count);
  size_t next = 0;
  for (size_t i = self->input_count; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    tensor->given = left_out && tensor->aliased ? NULL : &desc->outputs[next++];
  }
  return TANDEM_OK;
}

static enum tandem_status bind_addresses(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  for (size_t i = 0; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    void *address = tensor->on_host ? tensor->host : (void *)(uintptr_t)tensor->address;
    if (tensor->late || tensor->bound == address)
      continue;
    if (!td_trt_context_set_address(self->trt, tensor->name, address))
      return td_trt_refuse(run, TANDEM_INVALID_ARGUMENT, "take the address of an input or output");
    tensor->bound = address;
  }
  return TANDEM_OK;
}

static enum tandem_status lease_scratch(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  uint64_t address;
  char step[96];
  if (!self->leases)
    return TANDEM_OK;
  /* An engine that needs scratch for some shape wants an address for every one. */
  size_t size = self->scratch_size > 0 ? self->scratch_size : 1;
  int32_t code = td_scratch_lease(self->cuda, &self->scratch, size, run->captured, &address);
  if (run->captured && code == TD_CUDA_NOT_READY)
    return td_trt_host()->fail(run->error, TANDEM_INVALID_STATE,
                               "the stream is being captured and no scratch of %zu bytes is idle: other "
                               "loads have what there is, or "
                               "it was given up; run this load once more before the next capture (from then "
                               "on it has scratch of its "
                               "own), or load it with share_scratch=false",
                               size);
  if (code != TD_CUDA_OK) {
    snprintf(step, sizeof step, "allocate %zu bytes of scratch", size);
    return td_cuda_fail(self->cuda, code, step, run->error);
  }
  if (address == self->scratch_address && self->scratch_size == self->scratch_told)
    return TANDEM_OK;
  if (TD_TRT_HAS(context_set_scratch))
    td_trt_context_set_scratch(self->trt, (void *)(uintptr_t)address, (int64_t)self->scratch_size);
  else
    td_trt_context_set_scratch_v1(self->trt, (void *)(uintptr_t)address);
  self->scratch_address = address;
  self->scratch_told = self->scratch_size;
  return TANDEM_OK;
}

static size_t write_key(struct td_trt_context *self) {
  uint64_t *key = self->key;
  size_t used = 0;
  key[used++] = (uint64_t)(uint32_t)self->profile;
  key[used++] = self->scratch_address;
  key[used++] = self->scratch_told;
  for (size_t i = 0; i < self->tensor_count; i++) {
    const struct td_trt_tensor *tensor = &self->tensors[i];
    key[used++] = (uint64_t)(uintptr_t)tensor->bound;
    for (int32_t d = 0; !tensor->output && d < tensor->dims.rank; d++)
      key[used++] = (uint64_t)tensor->dims.d[d];
  }
  return used;
}

static enum tandem_status enqueue(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  int32_t code = TD_CUDA_OK;
  enum td_graph_result result = TD_GRAPH_PLAIN;
  run->queued = true;
  if (self->graphs != NULL && self->warm && !run->captured) {
    struct td_graph_request request = {.enqueue = td_trt_context_enqueue,
                                       .capturable =
                                           TD_TRT_HAS(context_capturable) ? td_trt_context_capturable : NULL,
                                       .context = self->trt,
                                       .stream = run->stream,
                                       .foreign = run->desc->stream != NULL,
                                       .flight = self->flight ? self->event : NULL,
                                       .key = self->key,
                                       .key_count = write_key(self)};
    result = td_graphs_run(self->graphs, self->cuda, &request, &code);
  }
  if (result == TD_GRAPH_FAILED)
    return td_cuda_fail(self->cuda, code, "launch a recorded run", run->error);
  /* Into the caller's capture what must not be there has to fail, not to be left out. */
  int32_t mode = run->captured ? td_cuda_capture_mode(TD_CUDA_CAPTURE_THREAD_LOCAL) : 0;
  bool enqueued = result != TD_GRAPH_PLAIN || td_trt_context_enqueue(self->trt, run->stream);
  if (run->captured)
    td_cuda_capture_mode(mode);
  if (!enqueued) {
    for (size_t i = 0; i < self->output_count; i++)
      if (self->tensors[self->input_count + i].late && self->allocators[i].code != TD_CUDA_OK)
        return td_cuda_fail(self->cuda, self->allocators[i].code,
                            "allocate an output whose size depends on the data", run->error);
    return td_trt_refuse(run, TANDEM_DEVICE_ERROR, "enqueue the run");
  }
  if (result == TD_GRAPH_RECORDED || run->captured)
    td_scratch_keep(&self->scratch);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- one run */

static enum tandem_status run_entered(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  enum tandem_status status = check_stream(run);
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++)
    status = td_trt_take_input(run, i);
  if (status == TANDEM_OK)
    status = td_trt_settle_shapes(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < self->tensor_count; i++)
    status = td_trt_take_output(run, i);
  if (status != TANDEM_OK || (status = bind_addresses(run)) != TANDEM_OK)
    return status;
  /* Before the lease: it may be of scratch that the run before still uses, and is given back as free. */
  int32_t code = td_trt_order(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "wait for the run before", run->error);
  if ((status = lease_scratch(run)) != TANDEM_OK)
    return status;
  code = td_trt_copy_inputs(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "copy an input", run->error);
  status = enqueue(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < self->tensor_count; i++)
    status = td_trt_copy_output(run, i);
  return status == TANDEM_OK ? finish(run) : status;
}

enum tandem_status td_trt_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error) {
  struct td_trt_context *self = context;
  struct td_trt_run run = {.self = self,
                           .desc = desc,
                           .error = error,
                           .stream = desc->stream != NULL ? desc->stream : TD_CUDA_STREAM_PER_THREAD};
  if (desc->done != NULL)
    *desc->done = NULL;
  enum tandem_status status = check_counts(&run);
  if (status == TANDEM_OK)
    status = td_cuda_enter(self->cuda, error);
  if (status != TANDEM_OK)
    return status;
  status = run_entered(&run);
  if (status != TANDEM_OK && run.queued && !run.captured && !td_cuda_lost(self->cuda)) {
    /* Buffers and scratch are in use until what was queued has run. */
    int32_t code = td_trt_wait(&run);
    if (code != TD_CUDA_OK) {
      td_scratch_keep(&self->scratch); /* nobody knows whether it is still in use */
      status = td_cuda_fail(self->cuda, code, "wait for a failed run", error);
    } else if (run.ordered)
      self->flight = false;
  }
  if (status != TANDEM_OK && run.captured && run.queued)
    td_scratch_keep(&self->scratch);
  td_scratch_return(&self->scratch, NULL);
  td_cuda_leave(self->cuda);
  return status;
}
