/* A load: one hold on a shared engine, and the context and buffers that are this load's alone.
 *
 * Making one goes through the pipeline in order: options, payload, vendor library, resolution, digest, pool,
 * context. Each step has its undo in one exit path, since a failed load must leave nothing. The log lines of
 * the load are delivered last, when its entry is published or withdrawn and nothing is locked.
 *
 * `turn` says who has the context: a run or reset of this load, and nothing else. It also counts the uses
 * under way, so that a load is not destroyed under a run that still has to tell its lines or waits for its
 * turn. Everything else of a load is constant once it was handed out.
 */
#include "base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct tandem_load {
  uint64_t id;
  const struct tandem_vendor *vendor; /* borrowed, lives as long as the process */
  struct td_lease lease;
  void *context; /* owned */
  struct tandem_context_io io;
  struct td_turn turn;
  struct td_lines *lines; /* owned; may be NULL */
  struct td_got got;
  double seconds;
  double digest_seconds;
  long process; /* that made it */
  char label[128];
};

static _Atomic uint64_t last_id;

/* ---------------------------------------------------------------- create */

/* What is alive while a load is made, for the one exit path. */
struct making {
  struct td_options options;
  struct tandem_payload payload;
  bool parsed;
  struct tandem_part *parts; /* owned: the engine bytes, then the payload's parts */
  struct tandem_resolution resolution;
  struct td_watch *watch; /* owned; NULL where nobody asks */
  struct td_want want;
};

static enum tandem_status check_desc(const struct tandem_load_desc *desc, struct tandem_load **load,
                                     struct tandem_error *error) {
  if (load == NULL || desc == NULL || desc->struct_size != sizeof *desc)
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "load must be given, and desc->struct_size is %zu, expected %zu",
                   desc != NULL ? desc->struct_size : 0, sizeof *desc);
  if (desc->flags & ~TANDEM_LOAD_CALLER_HOLDS_LOCK)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "desc->flags is 0x%x, known is 0x%x", desc->flags,
                   TANDEM_LOAD_CALLER_HOLDS_LOCK);
  if (desc->backend == NULL)
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "desc->backend is NULL, expected a backend id or vendor name");
  if (desc->payload == NULL && desc->payload_size > 0)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "desc->payload is NULL but payload_size is %zu",
                   desc->payload_size);
  if ((desc->options == NULL && desc->option_count > 0) ||
      (desc->compile_specs == NULL && desc->compile_spec_count > 0))
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "desc has %zu options and %zu compile specs but a NULL array", desc->option_count,
                   desc->compile_spec_count);
  return TANDEM_OK;
}

static enum tandem_status parse_payload(struct tandem_load *load, const struct tandem_load_desc *desc,
                                        struct making *making, struct tandem_error *error) {
  struct td_call call;
  td_call_begin(&call, load->vendor, load->lines);
  enum tandem_status status = load->vendor->parse(&td_host, desc->payload, desc->payload_size,
                                                  desc->named_data, &making->payload, error);
  status = td_call_end(&call, status, "read the payload", error);
  making->parsed = status == TANDEM_OK;
  if (status != TANDEM_OK)
    return status;
  making->parts = td_payload_parts(&making->payload, error);
  return making->parts != NULL ? TANDEM_OK : TANDEM_OUT_OF_MEMORY;
}

/* From here on a rewrite of a file that the engine's bytes are mapped from is seen. */
static enum tandem_status watch_files(struct making *making, struct tandem_error *error) {
  if (!making->options.use_shared_engines && making->options.expect_sha256[0] == '\0')
    return TANDEM_OK;
  making->watch = td_watch_create(making->parts, making->payload.part_count + 1);
  return making->watch != NULL
             ? TANDEM_OK
             : td_fail(error, TANDEM_OUT_OF_MEMORY, "no host memory to note the files of an engine's bytes");
}

/* Before any lookup: who may not present these bytes must not get an engine made of them. */
static enum tandem_status check_expected(const struct making *making, struct tandem_error *error) {
  char found[65];
  if (making->options.expect_sha256[0] == '\0')
    return TANDEM_OK;
  enum tandem_status status = td_sha256_parts(making->parts, making->payload.part_count + 1, found, error);
  if (status == TANDEM_OK && strcmp(found, making->options.expect_sha256) != 0)
    status = td_fail(
        error, TANDEM_BAD_PROGRAM,
        "the engine's bytes have SHA-256 %s, option expect_sha256 allows only %s; load the program that "
        "was approved or approve this one",
        found, making->options.expect_sha256);
  return status;
}

static enum tandem_status resolve(struct tandem_load *load, struct making *making,
                                  struct tandem_error *error) {
  struct td_call call;
  td_call_begin(&call, load->vendor, load->lines);
  enum tandem_status status =
      load->vendor->resolve(&making->payload, making->options.vendor_values, &making->resolution, error);
  return td_call_end(&call, status, "resolve the options", error);
}

static enum tandem_status identify(struct tandem_load *load, const struct tandem_load_desc *desc,
                                   const struct tandem_vendor_library *library, struct making *making,
                                   struct tandem_error *error) {
  const struct td_options *options = &making->options;
  making->want = (struct td_want){
      .key = {.vendor = load->vendor,
              .library = library,
              .resolution = &making->resolution,
              .trust_domain = options->trust_domain,
              .size = making->payload.engine_size,
              .kind = options->identity},
      .engine = making->payload.engine,
      .parts = making->payload.parts,
      .part_count = making->payload.part_count,
      .watch = making->watch,
      .option_values = options->vendor_values,
      .budget = -1,
      .share = options->use_shared_engines,
      .across_budgets = options->share_across_budgets,
      .payload_copy = options->payload_copy,
      .flight_timeout_ms = options->flight_timeout_ms,
      .lines = load->lines,
  };
  if (load->vendor->flags & TANDEM_VENDOR_HAS_BUDGET)
    making->want.budget = options->weight_streaming_budget;
  else if (options->weight_streaming_budget >= 0)
    td_lines_add(load->lines, TANDEM_LOG_INFO, "weight_streaming_budget is ignored: %s streams no weights",
                 load->vendor->name);
  if (!options->flight_timeout_set && (desc->flags & TANDEM_LOAD_CALLER_HOLDS_LOCK))
    making->want.flight_timeout_ms = 10000; /* the builder may need the lock that this thread holds */
  if (!options->use_shared_engines)
    return TANDEM_OK;
  uint64_t begin = td_now_ns();
  enum tandem_status status = td_digest_parts(making->parts, making->payload.part_count + 1,
                                              options->identity, &making->want.key.digest, error);
  load->digest_seconds = (double)(td_now_ns() - begin) * 1e-9;
  return status;
}

/* The engine found or built may be of bytes that came into a file after check_expected. */
static enum tandem_status check_unmoved(const struct making *making, struct tandem_error *error) {
  if (making->options.expect_sha256[0] == '\0' || !td_watch_moved(making->watch))
    return TANDEM_OK;
  return td_fail(error, TANDEM_BAD_PROGRAM,
                 "the program's file changed after its engine's bytes were found to be what option "
                 "expect_sha256 allows; load it again, and replace program files by rename");
}

/* Here and not where the engine is built, for a load that shares it asks in vain just the same. */
static void tell_idle_budget(struct tandem_load *load, const struct making *making) {
  if ((load->vendor->flags & TANDEM_VENDOR_HAS_BUDGET) && making->want.budget >= 0 &&
      td_entry_streamable(load->lease.entry) == 0)
    td_lines_add(load->lines, TANDEM_LOG_WARNING,
                 "weight_streaming_budget=%lld is ignored: the engine streams no weights",
                 (long long)making->want.budget);
}

static enum tandem_status create_context(struct tandem_load *load, const struct making *making,
                                         struct tandem_error *error) {
  struct tandem_context_desc desc = {.payload = &making->payload,
                                     .options = making->options.vendor_values,
                                     .share_scratch = making->options.share_scratch,
                                     .cuda_graph = making->options.cuda_graph,
                                     .profile = making->options.profile};
  struct td_call call;
  td_call_begin(&call, load->vendor, load->lines);
  enum tandem_status status = load->vendor->context_create(td_entry_engine(load->lease.entry), &desc,
                                                           &load->context, &load->io, error);
  status = td_call_end(&call, status, "create an execution context", error);
  if (status == TANDEM_OUT_OF_MEMORY)
    td_pool_explain_memory(&making->want, error);
  return status;
}

static void tell_success(struct tandem_load *load) {
  struct tandem_load_info info;
  td_entry_get_info(&load->lease, &info);
  if (load->got.shared)
    td_lines_add(load->lines, TANDEM_LOG_INFO, "shares engine %llu, %llu loads now (%s on %s, %.1f ms)",
                 (unsigned long long)info.engine_id, (unsigned long long)info.users, info.vendor, info.device,
                 load->seconds * 1e3);
  else
    td_lines_add(load->lines, TANDEM_LOG_INFO, "built engine %llu (%s on %s, %.1f ms)",
                 (unsigned long long)info.engine_id, info.vendor, info.device, load->seconds * 1e3);
}

static enum tandem_status make(struct tandem_load *load, const struct tandem_load_desc *desc,
                               struct making *making, struct tandem_error *error) {
  const struct tandem_vendor_library *library = NULL;
  enum tandem_status status = td_options_resolve(load->vendor, desc, load->lines, &making->options, error);
  if (status != TANDEM_OK)
    return status;
  td_lines_set_level(load->lines, making->options.log_level);
  if ((status = td_call_check_fork(load->vendor, error)) != TANDEM_OK ||
      (status = parse_payload(load, desc, making, error)) != TANDEM_OK ||
      (status = watch_files(making, error)) != TANDEM_OK ||
      (status = check_expected(making, error)) != TANDEM_OK ||
      (status = td_vendor_open(load->vendor, load->lines, &library, error)) != TANDEM_OK ||
      (status = resolve(load, making, error)) != TANDEM_OK ||
      (status = identify(load, desc, library, making, error)) != TANDEM_OK ||
      (status = td_pool_acquire(&making->want, &load->lease, &load->got, error)) != TANDEM_OK)
    return status;
  tell_idle_budget(load, making);
  if ((status = check_unmoved(making, error)) == TANDEM_OK)
    status = create_context(load, making, error);
  if (status != TANDEM_OK)
    td_pool_release(&load->lease, load->lines);
  if (status == TANDEM_OUT_OF_MEMORY &&
      td_pool_acquire_other_budget(&making->want, &load->lease, &load->got)) {
    status = create_context(load, making, error);
    if (status != TANDEM_OK)
      td_pool_release(&load->lease, load->lines);
  }
  return status;
}

static enum tandem_status create(const struct tandem_load_desc *desc, struct tandem_load **out,
                                 struct tandem_error *error) {
  const struct tandem_vendor *vendor = NULL;
  uint64_t begin = td_now_ns();
  enum tandem_status status = check_desc(desc, out, error);
  if (status == TANDEM_OK)
    status = td_vendor_find(desc->backend, &vendor, error);
  if (status != TANDEM_OK) {
    td_pool_count(0, true);
    return status;
  }
  struct tandem_load *load = td_alloc(sizeof *load);
  struct making *making = td_alloc(sizeof *making);
  if (load == NULL || making == NULL) {
    status = td_fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a load");
    td_pool_count(0, true);
    goto done;
  }
  load->id = atomic_fetch_add(&last_id, 1) + 1;
  load->vendor = vendor;
  load->process = (long)getpid();
  load->lease.turn = &load->turn;
  if (desc->label != NULL)
    snprintf(load->label, sizeof load->label, "%s", desc->label);
  else
    snprintf(load->label, sizeof load->label, "load %llu", (unsigned long long)load->id);
  load->lines = td_lines_create(load->label, td_options_log_level());
  status = make(load, desc, making, error);
  load->seconds = (double)(td_now_ns() - begin) * 1e-9;
  td_pool_count(load->digest_seconds, status != TANDEM_OK);
  td_watch_destroy(making->watch);
  td_free(making->parts);
  if (making->parsed)
    vendor->payload_destroy(&making->payload);
  if (status == TANDEM_OK)
    tell_success(load);
  td_lines_deliver(load->lines);
done:
  td_free(making);
  if (status == TANDEM_OK) {
    *out = load;
  } else if (load != NULL) {
    td_lines_destroy(load->lines);
    td_free(load);
  }
  return status;
}

enum tandem_status tandem_load_create(const struct tandem_load_desc *desc, struct tandem_load **load,
                                      struct tandem_error *error) {
  int cancel = td_cancel_disable();
  /* Vendors report through it even when the caller does not ask. */
  struct tandem_error own;
  error = error != NULL ? error : &own;
  td_clear(error);
  if (load != NULL)
    *load = NULL;
  struct td_load_hooked hooked;
  enum tandem_status status = td_load_begin(&hooked, error);
  if (status == TANDEM_OK) {
    status = create(desc, load, error);
    td_load_end(&hooked);
  } else {
    td_pool_count(0, true);
  }
  td_cancel_restore(cancel);
  return status;
}

/* ---------------------------------------------------------------- use */

/* False when this thread has the turn already: it is in a callback of its own run, which waits for it. */
static bool begin_use(struct tandem_load *load) {
  struct td_turn *turn = &load->turn;
  uint64_t self = td_thread_id();
  td_mutex_lock(&turn->lock);
  if (turn->busy && turn->owner == self) {
    td_mutex_unlock(&turn->lock);
    return false;
  }
  turn->uses++;
  while (turn->busy) {
    td_mutex_unlock(&turn->lock);
    td_wait_begin();
    td_mutex_lock(&turn->lock);
    while (turn->busy)
      td_cond_wait(&turn->changed, &turn->lock);
    td_mutex_unlock(&turn->lock);
    td_wait_end(); /* may block in the host, so the turn is not taken before it */
    td_mutex_lock(&turn->lock);
  }
  turn->busy = true;
  turn->owner = self;
  td_mutex_unlock(&turn->lock);
  return true;
}

/* After this the load may be destroyed by whoever waits for that, so the lines go out without it. */
static void end_use(struct tandem_load *load) {
  struct td_turn *turn = &load->turn;
  struct td_lines said = {.level = TANDEM_LOG_WARNING};
  td_lines_move(load->lines, &said);
  td_mutex_lock(&turn->lock);
  turn->busy = false;
  if (turn->uses > 0) /* 0: forked meanwhile */
    turn->uses--;
  td_cond_broadcast(&turn->changed);
  td_mutex_unlock(&turn->lock);
  td_lines_deliver(&said);
}

static void await_uses(struct tandem_load *load) {
  struct td_turn *turn = &load->turn;
  td_mutex_lock(&turn->lock);
  bool used = turn->uses > 0;
  td_mutex_unlock(&turn->lock);
  if (!used)
    return;
  td_wait_begin();
  td_mutex_lock(&turn->lock);
  while (turn->uses > 0)
    td_cond_wait(&turn->changed, &turn->lock);
  td_mutex_unlock(&turn->lock);
  td_wait_end();
}

void tandem_load_destroy(struct tandem_load *load) {
  if (load == NULL)
    return;
  int cancel = td_cancel_disable();
  if (!td_entry_inherited(load->lease.entry)) {
    await_uses(load);
    struct td_call call;
    td_call_begin(&call, load->vendor, load->lines);
    load->vendor->context_destroy(load->context);
    td_call_end(&call, TANDEM_OK, "destroy the context", NULL);
  }
  td_pool_release(&load->lease, load->lines);
  td_lines_destroy(load->lines);
  td_mutex_fini(&load->turn.lock);
  td_free(load);
  td_cancel_restore(cancel);
}

void tandem_load_io(const struct tandem_load *load, const struct tandem_io **inputs, size_t *input_count,
                    const struct tandem_io **outputs, size_t *output_count) {
  static const struct tandem_context_io none;
  const struct tandem_context_io *io = load != NULL ? &load->io : &none;
  if (inputs != NULL)
    *inputs = io->inputs;
  if (input_count != NULL)
    *input_count = io->input_count;
  if (outputs != NULL)
    *outputs = io->outputs;
  if (output_count != NULL)
    *output_count = io->output_count;
}

/* ---------------------------------------------------------------- checks of tensors */

static enum tandem_status check_dtype(const struct tandem_tensor *tensor, const struct tandem_io *io,
                                      size_t index, const char *role, struct tandem_error *error) {
  if (io->dtype >= 0 ? tensor->dtype == io->dtype : tandem_dtype_size(tensor->dtype) > 0)
    return TANDEM_OK;
  return td_fail(error, TANDEM_INVALID_ARGUMENT, "%s %zu (%s) is %s, expected %s", role, index, io->name,
                 tandem_dtype_name(tensor->dtype), io->dtype >= 0 ? tandem_dtype_name(io->dtype) : "a dtype");
}

static enum tandem_status check_layout(const struct tandem_tensor *tensor, const struct tandem_io *io,
                                       size_t index, const char *role, struct tandem_error *error) {
  uint64_t expected = 1;
  if (tensor->strides == NULL)
    return TANDEM_OK;
  if (tensor->rank < 0 || tensor->rank > TANDEM_MAX_RANK)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "%s %zu (%s) has rank %d, expected 0 to %d", role, index,
                   io->name, tensor->rank, TANDEM_MAX_RANK);
  for (int32_t d = 0; d < tensor->rank; d++)
    if (tensor->shape[d] == 0)
      return TANDEM_OK;
  for (int32_t d = tensor->rank - 1; d >= 0; d--) {
    if (tensor->shape[d] != 1 && (uint64_t)tensor->strides[d] != expected)
      return td_fail(
          error, TANDEM_INVALID_ARGUMENT,
          "%s %zu (%s) is not contiguous: dimension %d has stride %lld elements, expected %llu; pass a "
          "contiguous tensor",
          role, index, io->name, d, (long long)tensor->strides[d], (unsigned long long)expected);
    expected *= (uint64_t)tensor->shape[d]; /* cannot wrap: the bytes of the shape do not */
  }
  return TANDEM_OK;
}

static enum tandem_status check_input(const struct tandem_tensor *tensor, const struct tandem_io *io,
                                      size_t index, struct tandem_error *error) {
  enum tandem_status status = check_dtype(tensor, io, index, "input", error);
  if (status != TANDEM_OK)
    return status;
  if (tensor->rank < 0 || tensor->rank > TANDEM_MAX_RANK || (io->rank >= 0 && tensor->rank != io->rank))
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "input %zu (%s) has rank %d, expected %s%d", index,
                   io->name, tensor->rank, io->rank >= 0 ? "" : "0 to ",
                   io->rank >= 0 ? io->rank : TANDEM_MAX_RANK);
  size_t bytes = tandem_dtype_size(tensor->dtype);
  for (int32_t d = 0; d < tensor->rank; d++) {
    int64_t extent = tensor->shape[d];
    if (extent < 0 || (io->rank >= 0 && (extent < io->min[d] || extent > io->max[d])))
      return td_fail(error, TANDEM_INVALID_ARGUMENT,
                     "input %zu (%s) has extent %lld in dimension %d, expected %lld to %lld", index, io->name,
                     (long long)extent, d, io->rank >= 0 ? (long long)io->min[d] : 0LL,
                     io->rank >= 0 ? (long long)io->max[d] : (long long)INT64_MAX);
    if (__builtin_mul_overflow(bytes, (size_t)extent, &bytes))
      return td_fail(error, TANDEM_INVALID_ARGUMENT, "input %zu (%s) has a shape whose size overflows", index,
                     io->name);
  }
  /* Before the size: an expanded view is smaller than its shape says, and the layout is the reason. */
  status = check_layout(tensor, io, index, "input", error);
  if (status != TANDEM_OK)
    return status;
  if (bytes > tensor->size)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "input %zu (%s) has %zu bytes, its shape needs %zu", index,
                   io->name, tensor->size, bytes);
  if (bytes > 0 && tensor->data == NULL)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "input %zu (%s) has no address", index, io->name);
  return TANDEM_OK;
}

/* How many outputs a run gives: all, or, when it leaves them out, those that update no input (*left). */
static bool check_output_count(const struct tandem_context_io *io, size_t given, size_t *left,
                               bool *left_out) {
  *left = 0;
  for (size_t i = 0; i < io->output_count; i++)
    *left += io->outputs[i].updates == 0;
  *left_out = given != io->output_count && given == *left && *left > 0;
  return given == io->output_count || *left_out;
}

static enum tandem_status fail_counts(const struct tandem_context_io *io, const struct tandem_run_desc *run,
                                      size_t left, struct tandem_error *error) {
  if (left == io->output_count || left == 0)
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "%zu inputs and %zu outputs were given, the engine has %zu inputs and %zu outputs",
                   run->input_count, run->output_count, io->input_count, io->output_count);
  return td_fail(error, TANDEM_INVALID_ARGUMENT,
                 "%zu inputs and %zu outputs were given, the engine has %zu inputs and %zu outputs, or %zu "
                 "outputs without those that update an input",
                 run->input_count, run->output_count, io->input_count, io->output_count, left);
}

static enum tandem_status check_run(const struct tandem_load *load, const struct tandem_run_desc *run,
                                    struct tandem_error *error) {
  const struct tandem_context_io *io = &load->io;
  if (run == NULL || run->struct_size != sizeof *run)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "run->struct_size is %zu, expected %zu",
                   run != NULL ? run->struct_size : 0, sizeof *run);
  if (!(load->vendor->flags & TANDEM_VENDOR_HAS_STREAMS) && (run->stream != NULL || run->return_early))
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "run->stream or run->return_early is set, but %s runs on no stream; leave both zero",
                   load->vendor->name);
  if (run->return_early && run->stream == NULL)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "run->return_early needs run->stream, the caller's own");
  size_t left = 0;
  bool left_out = false;
  bool counted = check_output_count(io, run->output_count, &left, &left_out);
  if (!counted || run->input_count != io->input_count)
    return fail_counts(io, run, left, error);
  if ((run->inputs == NULL && run->input_count > 0) || (run->outputs == NULL && run->output_count > 0))
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "the array of inputs or of outputs is NULL");
  for (size_t i = 0; i < io->input_count; i++) {
    enum tandem_status status = check_input(&run->inputs[i], &io->inputs[i], i, error);
    if (status != TANDEM_OK)
      return status;
  }
  for (size_t i = 0, next = 0; i < io->output_count; i++) {
    if (left_out && io->outputs[i].updates != 0)
      continue;
    const struct tandem_tensor *tensor = &run->outputs[next++];
    enum tandem_status status = check_dtype(tensor, &io->outputs[i], i, "output", error);
    if (status == TANDEM_OK)
      status = check_layout(tensor, &io->outputs[i], i, "output", error);
    if (status != TANDEM_OK)
      return status;
    if (tensor->data == NULL && tensor->size > 0)
      return td_fail(error, TANDEM_INVALID_ARGUMENT, "output %zu (%s) has no address but %zu bytes", i,
                     io->outputs[i].name, tensor->size);
  }
  return TANDEM_OK;
}

/* A load of a parent process whose vendor does not survive fork. */
static enum tandem_status check_process(const struct tandem_load *load, struct tandem_error *error) {
  if (!td_entry_inherited(load->lease.entry))
    return TANDEM_OK;
  return td_fail(
      error, TANDEM_DEVICE_LOST,
      "%s was loaded by process %ld and cannot be used in process %ld, which was forked from it; load "
      "programs after the fork, or start workers with exec (Python: spawn)",
      load->label, load->process, (long)getpid());
}

static enum tandem_status use_context(struct tandem_load *load, const struct tandem_run_desc *run,
                                      struct tandem_error *error) {
  struct td_call call;
  enum tandem_status status;
  if (!begin_use(load))
    return td_fail(error, TANDEM_INVALID_STATE, "%s is used from a callback of its own run", load->label);
  td_call_begin(&call, load->vendor, load->lines);
  if (run != NULL)
    status = td_call_end(&call, load->vendor->run(load->context, run, error), "run", error);
  else
    status = td_call_end(&call, load->vendor->reset(load->context, error), "reset the state", error);
  end_use(load);
  return status;
}

enum tandem_status tandem_load_run(struct tandem_load *load, const struct tandem_run_desc *run,
                                   struct tandem_error *error) {
  int cancel = td_cancel_disable();
  struct tandem_error own;
  error = error != NULL ? error : &own;
  td_clear(error);
  if (run != NULL && run->struct_size == sizeof *run && run->done != NULL)
    *run->done = NULL;
  enum tandem_status status = load != NULL ? check_process(load, error)
                                           : td_fail(error, TANDEM_INVALID_ARGUMENT, "no load was given");
  if (status == TANDEM_OK)
    status = check_run(load, run, error);
  if (status == TANDEM_OK)
    status = use_context(load, run, error);
  td_cancel_restore(cancel);
  return status;
}

enum tandem_status tandem_load_reset(struct tandem_load *load, struct tandem_error *error) {
  int cancel = td_cancel_disable();
  struct tandem_error own;
  error = error != NULL ? error : &own;
  td_clear(error);
  enum tandem_status status = load != NULL ? check_process(load, error)
                                           : td_fail(error, TANDEM_INVALID_ARGUMENT, "no load was given");
  if (status == TANDEM_OK)
    status = use_context(load, NULL, error);
  td_cancel_restore(cancel);
  return status;
}

enum tandem_status tandem_load_get_info(const struct tandem_load *load, struct tandem_load_info *info,
                                        struct tandem_error *error) {
  int cancel = td_cancel_disable();
  enum tandem_status status = TANDEM_OK;
  td_clear(error);
  if (load == NULL || info == NULL || info->struct_size != sizeof *info) {
    status = td_fail(error, TANDEM_INVALID_ARGUMENT,
                     "load must be given, and info->struct_size is %zu, expected %zu",
                     info != NULL ? info->struct_size : 0, sizeof *info);
  } else {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->id = load->id;
    info->shared = load->got.shared;
    info->joined = load->got.joined;
    info->fallback = load->got.fallback;
    info->seconds = load->seconds;
    info->digest_seconds = load->digest_seconds;
    info->build_seconds = load->got.build_seconds;
    info->wait_seconds = load->got.wait_seconds;
    td_entry_get_info(&load->lease, info);
  }
  td_cancel_restore(cancel);
  return status;
}
