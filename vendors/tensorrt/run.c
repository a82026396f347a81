/* One run: its stream, what it waits for, its scratch, the library's work or a recorded graph, its end.
 *
 * Everything that can be refused is refused before anything is queued, but for what only the run tells. A run
 * with the shapes and buffers of the run before tells the library nothing: it asks the driver what each
 * pointer is, leases scratch, enqueues and waits.
 *
 * Its order among the runs of the load, captures and failures are as for every engine on a GPU
 * (../cuda/run.c). The run before is waited for, on the stream, before scratch is leased or a staging buffer
 * written. Under a caller's capture a run may neither allocate, copy from the host nor be the first with its
 * shapes; its scratch has to be there, and stays the load's: the graph has its address.
 */
#include "context.h"

#include <stdio.h>

enum tandem_status td_trt_refuse(struct td_trt_run *run, enum tandem_status status, const char *step) {
  td_trt_forget_told(run->self);
  int32_t code = td_run_ask_device(&run->cuda);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(run->self->cuda, code, step, run->cuda.error);
  return td_trt_host()->fail(run->cuda.error, status, "TensorRT could not %s", step);
}

/* A run gives all outputs, or those alone that update no input. */
static void assign_outputs(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  const struct tandem_run_desc *desc = run->cuda.desc;
  bool left_out = desc->output_count != self->output_count;
  size_t next = 0;
  for (size_t i = self->input_count; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    tensor->given = left_out && tensor->aliased ? NULL : &desc->outputs[next++];
  }
}

static enum tandem_status bind_addresses(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  for (size_t i = 0; i < self->tensor_count; i++) {
    struct td_trt_tensor *tensor = &self->tensors[i];
    void *address = tensor->on_host ? tensor->host : (void *)(uintptr_t)tensor->memory.address;
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
  int32_t code = td_scratch_lease(self->cuda, &self->scratch, size, run->cuda.captured, &address);
  if (run->cuda.captured && code == TD_CUDA_NOT_READY)
    return td_trt_host()->fail(run->cuda.error, TANDEM_INVALID_STATE,
                               "the stream is being captured and no scratch of %zu bytes is idle: other "
                               "loads have what there is, or "
                               "it was given up; run this load once more before the next capture (from then "
                               "on it has scratch of its "
                               "own), or load it with share_scratch=false",
                               size);
  if (code != TD_CUDA_OK) {
    snprintf(step, sizeof step, "allocate %zu bytes of scratch", size);
    return td_cuda_fail(self->cuda, code, step, run->cuda.error);
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
  run->cuda.queued = true;
  if (self->graphs != NULL && self->warm && !run->cuda.captured) {
    struct td_graph_request request = {.enqueue = td_trt_context_enqueue,
                                       .capturable =
                                           TD_TRT_HAS(context_capturable) ? td_trt_context_capturable : NULL,
                                       .context = self->trt,
                                       .stream = run->cuda.stream,
                                       .foreign = run->cuda.desc->stream != NULL,
                                       .flight = self->flight.pending ? self->flight.event : NULL,
                                       .key = self->key,
                                       .key_count = write_key(self)};
    result = td_graphs_run(self->graphs, self->cuda, &request, &code);
  }
  if (result == TD_GRAPH_FAILED)
    return td_cuda_fail(self->cuda, code, "launch a recorded run", run->cuda.error);
  /* Into the caller's capture what must not be there has to fail, not to be left out. */
  int32_t mode = run->cuda.captured ? td_cuda_capture_mode(TD_CUDA_CAPTURE_THREAD_LOCAL) : 0;
  bool enqueued = result != TD_GRAPH_PLAIN || td_trt_context_enqueue(self->trt, run->cuda.stream);
  if (run->cuda.captured)
    td_cuda_capture_mode(mode);
  if (!enqueued) {
    for (size_t i = 0; i < self->output_count; i++)
      if (self->tensors[self->input_count + i].late && self->allocators[i].code != TD_CUDA_OK)
        return td_cuda_fail(self->cuda, self->allocators[i].code,
                            "allocate an output whose size depends on the data", run->cuda.error);
    return td_trt_refuse(run, TANDEM_DEVICE_ERROR, "enqueue the run");
  }
  if (result == TD_GRAPH_RECORDED || run->cuda.captured)
    td_scratch_keep(&self->scratch);
  return TANDEM_OK;
}

static enum tandem_status finish(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  bool early = run->cuda.desc->return_early;
  enum tandem_status status = TANDEM_OK;
  self->warm = true;
  if (run->cuda.captured)
    return TANDEM_OK;
  if (!early || self->waits)
    status = td_run_wait(&run->cuda);
  if (status == TANDEM_OK && self->waits)
    status = td_trt_hand_out_values(run);
  if (status == TANDEM_OK && early)
    status = td_run_return_early(&run->cuda);
  if (status == TANDEM_OK)
    td_scratch_return(&self->scratch, early ? self->flight.event : NULL);
  return status;
}

static enum tandem_status run_entered(struct td_trt_run *run) {
  struct td_trt_context *self = run->self;
  enum tandem_status status = td_run_check_stream(&run->cuda, NULL);
  for (size_t i = 0; status == TANDEM_OK && i < self->input_count; i++)
    status = td_trt_take_input(run, i);
  if (status == TANDEM_OK)
    status = td_trt_settle_shapes(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < self->tensor_count; i++)
    status = td_trt_take_output(run, i);
  if (status != TANDEM_OK || (status = bind_addresses(run)) != TANDEM_OK)
    return status;
  /* Before the lease: it may be of scratch that the run before still uses, and is given back as free. */
  int32_t code = td_run_order(&run->cuda);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "wait for the run before", run->cuda.error);
  if ((status = lease_scratch(run)) != TANDEM_OK)
    return status;
  code = td_trt_copy_inputs(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "copy an input", run->cuda.error);
  status = enqueue(run);
  for (size_t i = self->input_count; status == TANDEM_OK && i < self->tensor_count; i++)
    status = td_trt_copy_output(run, i);
  return status == TANDEM_OK ? finish(run) : status;
}

enum tandem_status td_trt_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error) {
  struct td_trt_context *self = context;
  struct td_trt_run run = {
      .self = self,
      .cuda = {.cuda = self->cuda,
               .flight = &self->flight,
               .desc = desc,
               .error = error,
               .stream = desc->stream != NULL ? desc->stream : TD_CUDA_STREAM_PER_THREAD}};
  assign_outputs(&run);
  enum tandem_status status = td_cuda_enter(self->cuda, error);
  if (status != TANDEM_OK)
    return status;
  status = run_entered(&run);
  if (status != TANDEM_OK)
    status = td_run_give_up(&run.cuda, status);
  if (status != TANDEM_OK && run.cuda.queued)
    td_scratch_keep(&self->scratch); /* a graph has it, or nobody knows whether it is still in use */
  td_scratch_return(&self->scratch, NULL);
  td_cuda_leave(self->cuda);
  return status;
}
