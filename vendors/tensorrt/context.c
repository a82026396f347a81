/* A context: created for a load of the shared engine, destroyed with it.
 *
 * A load has an execution context of its own in the library, an event, staging buffers and, with cuda_graph,
 * recorded runs; weights and code are the engine's. Scratch is leased for each run (share_scratch), or the
 * library's context has its own.
 *
 * Creation and destruction hold the capture lock shared: what a library does meanwhile could break another
 * load's recording. It is given up for every wait, since the host's hooks may run for long and are called
 * with no lock held.
 *
 * Destruction waits for this load's last run and for no other. In a device that is lost nothing is released:
 * the driver has taken it back. The event goes after the scratch, whose pool may still ask it.
 */
#include "context.h"

#include <inttypes.h>

static enum tandem_status choose_profile(struct td_trt_context *self, int32_t asked,
                                         struct tandem_error *error) {
  int32_t count = self->engine->profile_count;
  if (asked >= count)
    return td_trt_host()->fail(
        error, TANDEM_BAD_OPTION,
        "option profile is %d, the engine has %d optimization profile%s, the last is %d; choose "
        "one of them or \"auto\"",
        asked, count, count == 1 ? "" : "s", count - 1);
  self->any_profile = asked < 0 && count > 1;
  self->profile = asked < 0 ? 0 : asked;
  return TANDEM_OK;
}

static int64_t engine_scratch(void *engine) {
  return TD_TRT_HAS(engine_scratch) ? td_trt_engine_scratch(engine)
                                    : (int64_t)td_trt_engine_scratch_v1(engine);
}

/* The library chooses profile 0 itself, for the first context at least. On a stream of our own: the caller
 * may be capturing any other. With the capture lock held shared, which is given up for the wait. */
static enum tandem_status set_first_profile(struct td_trt_context *self, struct tandem_error *error) {
  void *stream = NULL;
  if (td_trt_context_profile(self->trt) == self->profile)
    return TANDEM_OK;
  int32_t code = td_cuda.stream_create(&stream, TD_CUDA_STREAM_NON_BLOCKING);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "create a stream", error);
  bool set = td_trt_context_set_profile(self->trt, self->profile, stream);
  /* No lock is held while the host's hooks run. */
  td_cuda_capture_unlock();
  code = td_cuda_wait(stream);
  td_cuda_capture_lock_shared();
  td_cuda.stream_destroy(stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(self->cuda, code, "choose an optimization profile", error);
  if (!set)
    return td_trt_host()->fail(error, TANDEM_DEVICE_ERROR, "TensorRT does not take optimization profile %d",
                               self->profile);
  return TANDEM_OK;
}

static const char *why_no_graphs(const struct td_trt_context *self) {
  if (self->alias_count > 0)
    return "an output is aliased to an input";
  for (size_t i = 0; i < self->tensor_count; i++)
    if (self->tensors[i].on_host)
      return "a shape tensor is read or written on the host";
  return NULL;
}

static enum tandem_status make_library_context(struct td_trt_context *self,
                                               const struct tandem_context_desc *desc,
                                               struct tandem_error *error) {
  void *engine = self->engine->engine;
  int64_t scratch = engine_scratch(engine);
  self->leases = desc->share_scratch && scratch > 0;
  self->trt = td_trt_engine_create_context(engine, desc->share_scratch ? TD_TRT_SCRATCH_OF_USER
                                                                       : TD_TRT_SCRATCH_STATIC);
  if (!TD_TRT_LIVE(self->trt)) {
    self->trt = NULL;
    return td_trt_host()->fail(error, TANDEM_DEVICE_ERROR,
                               "TensorRT creates no execution context (scratch %s, %" PRId64
                               " bytes at most)",
                               desc->share_scratch ? "leased" : "its own", scratch);
  }
  enum tandem_status status = td_flight_init(self->cuda, &self->flight, error);
  return status == TANDEM_OK ? set_first_profile(self, error) : status;
}

enum tandem_status td_trt_context_create(void *engine, const struct tandem_context_desc *desc, void **context,
                                         struct tandem_context_io *io, struct tandem_error *error) {
  *context = NULL;
  struct td_trt_context *self = td_trt_host()->allocate(sizeof *self);
  if (self == NULL)
    return td_trt_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a context");
  self->engine = engine;
  self->cuda = self->engine->cuda;
  td_scratch_join(self->cuda, &self->scratch);
  td_cuda_capture_lock_shared();
  enum tandem_status status = td_cuda_enter(self->cuda, error);
  if (status == TANDEM_OK) {
    if ((status = choose_profile(self, desc->profile, error)) == TANDEM_OK &&
        (status = td_trt_read_bindings(self, desc->payload->state, error)) == TANDEM_OK &&
        (status = make_library_context(self, desc, error)) == TANDEM_OK && desc->cuda_graph)
      self->graphs = td_graphs_create(self->cuda, &td_vendor_tensorrt, why_no_graphs(self));
    td_cuda_leave(self->cuda);
  }
  td_cuda_capture_unlock();
  if (status != TANDEM_OK) {
    td_trt_context_destroy(self);
    return status;
  }
  for (size_t i = 0; i < self->output_count; i++) {
    struct td_trt_allocator *allocator = &self->allocators[i];
    td_trt_output_allocator_init(&allocator->base);
    allocator->context = self;
    allocator->tensor = self->input_count + i;
  }
  *io = (struct tandem_context_io){.inputs = self->ios,
                                   .input_count = self->input_count,
                                   .outputs = self->ios + self->input_count,
                                   .output_count = self->output_count};
  *context = self;
  return TANDEM_OK;
}

static void destroy_objects(struct td_trt_context *self) {
  if (td_cuda_lost(self->cuda))
    return;
  td_trt_delete(self->trt);
  for (size_t i = 0; self->tensors != NULL && i < self->tensor_count; i++)
    td_cuda_give(self->cuda, &self->tensors[i].memory.staged);
}

void td_trt_context_destroy(void *context) {
  struct td_trt_context *self = context;
  const struct tandem_host *host = td_trt_host();
  if (self == NULL)
    return;
  bool entered = td_cuda_enter(self->cuda, NULL) == TANDEM_OK;
  if (entered)
    td_flight_await(self->cuda, &self->flight, NULL);
  td_cuda_capture_lock_shared();
  td_graphs_destroy(self->graphs, self->cuda);
  if (entered)
    destroy_objects(self);
  td_scratch_leave(self->cuda, &self->scratch);
  if (entered) {
    td_flight_fini(self->cuda, &self->flight);
    td_cuda_leave(self->cuda);
  }
  td_cuda_capture_unlock();
  for (size_t i = 0; self->tensors != NULL && i < self->tensor_count; i++) {
    host->release(self->tensors[i].name);
    host->release(self->tensors[i].host);
  }
  host->release(self->key);
  host->release(self->bounds);
  host->release(self->allocators);
  host->release(self->tensors);
  host->release(self->ios);
  host->release(self);
}
