/* AOTInductor engines on a GPU: the device's context, weights in its memory, and a run's tensors and streams.
 *
 * What an engine allocates while it runs is ordered by the stream of the run, and so is what it frees; the
 * device's pool keeps that memory mapped while there is an engine, for all loads together. The outputs, which
 * it allocates too, are copied to the caller's memory and freed on that same stream, so a run that returns
 * early leaves nothing that the host would have to wait for.
 *
 * To the engine's own work a run adds on the host: entering and leaving the context (five calls of the
 * driver), a question for each tensor and one to a caller's stream, a handle for each input, and a copy for
 * each output, which no engine can be made to write elsewhere. On the device it adds the copies.
 *
 * ExecuTorch's shims keep a current stream for each thread. A thread without one gets a new one as soon as
 * that is asked for, which every run does, and nobody destroys it: each further thread that ran an engine
 * left a stream, and runs of a process with hundreds of them grew slower and slower (H200). So a thread that
 * has none is lent its default stream, which is no object of its own, and has none again afterwards.
 *
 * Engines call the CUDA runtime, which knows one context a device: the primary one. A caller whose thread has
 * another one current is refused, since its memory is not the engine's.
 *
 * What is the same for a run of every engine is in ../cuda/run.c: streams and their order, captures, staging.
 *
 * Recorded runs: the graph holds the model with the copies of its outputs, so the addresses of inputs and
 * outputs are its key. The shapes of outputs are known from the run before with the same input shapes.
 * libtorch's allocator may give memory that a graph has to others, so only engines on ExecuTorch's shims,
 * which allocate from the stream, are recorded or captured.
 *
 * First runs load kernels and do so one at a time: torch's own notes say that two at once may deadlock.
 */
#include "aotinductor.h"

#include "../cuda/cuda.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* std::optional<cudaStream_t>, as functions return it. */
struct current_stream {
  void *stream;
  bool present;
};

struct td_aoti_cuda {
  struct td_cuda_context *device; /* owned */
  bool pool_held;
  /* The calling thread's current stream on a device, of the shims; NULL: the library has no such functions.
   */
  struct current_stream (*peek_stream)(int8_t device_index);
  int32_t (*set_stream)(void *stream, int8_t device_index);
  void (*clear_stream)(int8_t device_index);
  /* Between the two the thread's engine calls allocate and free in the order of `stream`. */
  int32_t (*enter_stream)(void *stream, int32_t device_index, void **guard);
  int32_t (*leave_stream)(void *guard);
};

/* td_aoti_context.cuda */
struct part {
  struct td_cuda_context *device; /* the engine's */
  void *stream;                   /* owned; NULL: each run leases one from the device */
  struct td_flight flight;
  struct td_cuda_tensor *tensors; /* owned: inputs, then outputs */
  void **data;                    /* owned: addresses of the inputs */
  struct td_aoti_result *results; /* owned: shapes of the outputs of the last run ... */
  uint64_t *shapes;               /* owned: ... whose input shapes these are */
  size_t shape_count;             /* 0: none */
  struct td_graphs *graphs;       /* NULL: runs are not recorded */
  uint64_t *key;                  /* owned */
};

struct run {
  struct td_aoti_context *self;
  struct part *part;
  struct td_run cuda;
};

/* ---------------------------------------------------------------- the device */

bool td_aoti_cuda_index(const char *device, int *index) {
  static const char prefix[] = "cuda:";
  const char *number = device + sizeof prefix - 1;
  *index = 0;
  if (strcmp(device, "cuda") == 0)
    return true;
  if (strncmp(device, prefix, sizeof prefix - 1) != 0)
    return false;
  size_t length = strspn(number, "0123456789");
  *index = (int)strtol(number, NULL, 10);
  return length >= 1 && length <= 3 && number[length] == '\0';
}

enum tandem_status td_aoti_cuda_check(int32_t index, int32_t capability, struct tandem_error *error) {
  struct td_cuda_facts facts;
  if (!td_cuda_describe(index, &facts) || facts.major * 10 + facts.minor >= capability)
    return TANDEM_OK;
  return td_aoti_host()->fail(error, TANDEM_UNSUPPORTED,
                              "the program was compiled for compute capability %d.%d, cuda:%" PRId32
                              " (%s) has %d.%d; export it on such a GPU",
                              capability / 10, capability % 10, index, facts.name, facts.major, facts.minor);
}

/* Kernels lie in the library as fat binaries: u32 magic, u16 version, u16 header size, u64 size, then entries
 * of u16 kind, u16 version, u32 header size, u64 size and, 28 bytes in, u32 architecture (read from what nvcc
 * of CUDA 13 wrote). One entry of a kernel is enough, all kernels are needed. */
int32_t td_aoti_cuda_capability(const void *so, size_t size) {
  static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
  enum { FAT_HEADER = 16, ENTRY_HEADER = 32, ARCHITECTURES_MAX = 1000 };
  const unsigned char *at = so, *end = at + size;
  uint32_t needed = 0;
  while ((at = memmem(at, (size_t)(end - at), magic, sizeof magic)) != NULL) {
    uint16_t header_size;
    uint64_t left = (uint64_t)(end - at), fat_size, entry_size;
    uint32_t entry_header, architecture, least = UINT32_MAX;
    if (left < FAT_HEADER)
      break;
    memcpy(&header_size, at + 6, sizeof header_size);
    memcpy(&fat_size, at + 8, sizeof fat_size);
    if (header_size >= FAT_HEADER && header_size <= left && fat_size <= left - header_size) {
      const unsigned char *entry = at + header_size;
      for (uint64_t rest = fat_size; rest >= ENTRY_HEADER;) {
        memcpy(&entry_header, entry + 4, sizeof entry_header);
        memcpy(&entry_size, entry + 8, sizeof entry_size);
        memcpy(&architecture, entry + 28, sizeof architecture);
        least = architecture < least ? architecture : least;
        if (entry_header < ENTRY_HEADER || entry_header > rest || entry_size > rest - entry_header)
          break;
        entry += entry_header + entry_size;
        rest -= entry_header + entry_size;
      }
    }
    if (least < ARCHITECTURES_MAX && least > needed)
      needed = least;
    at += sizeof magic;
  }
  return (int32_t)needed;
}

enum tandem_status td_aoti_cuda_resolve(int32_t index, int32_t capability,
                                        struct tandem_resolution *resolution, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  td_cuda_set_host(host);
  enum tandem_status status = td_cuda_resolve(index, &resolution->context_id, error);
  if (status != TANDEM_OK)
    return status;
  if (!td_cuda_is_primary(resolution->context_id))
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the thread's current CUDA context is not the primary one of cuda:%" PRId32
                      ", the only one that AOTInductor engines run in; make that current before the load",
                      index);
  status = td_aoti_cuda_check(index, capability, error);
  snprintf(resolution->device, sizeof resolution->device, "cuda:%" PRId32, index);
  return status;
}

enum tandem_status td_aoti_cuda_acquire(const struct tandem_resolution *resolution,
                                        struct td_aoti_cuda **cuda, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  int index = 0;
  void *library, *address;
  *cuda = NULL;
  if (sscanf(resolution->device, "cuda:%d", &index) != 1)
    return host->fail(error, TANDEM_INTERNAL, "\"%s\" is no CUDA device", resolution->device);
  enum tandem_status status = td_aoti_open_cuda(&library, error);
  if (status != TANDEM_OK)
    return status;
  struct td_aoti_cuda *made = host->allocate(sizeof *made);
  if (made == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the record of %s", resolution->device);
  address = host->library_symbol(library, "aoti_torch_create_cuda_stream_guard");
  memcpy(&made->enter_stream, &address, sizeof address);
  address = host->library_symbol(library, "aoti_torch_delete_cuda_stream_guard");
  memcpy(&made->leave_stream, &address, sizeof address);
  address = host->library_symbol(library, "_ZN10executorch8backends4cuda21peekCurrentCUDAStreamEa");
  memcpy(&made->peek_stream, &address, sizeof address);
  address =
      host->library_symbol(library, "_ZN10executorch8backends4cuda20setCurrentCUDAStreamEP11CUstream_sta");
  memcpy(&made->set_stream, &address, sizeof address);
  address = host->library_symbol(library, "_ZN10executorch8backends4cuda22clearCurrentCUDAStreamEa");
  memcpy(&made->clear_stream, &address, sizeof address);
  if (made->enter_stream == NULL || made->leave_stream == NULL)
    status = host->fail(error, TANDEM_UNAVAILABLE,
                        "%s has no aoti_torch_create_cuda_stream_guard, which CUDA engines need; install a "
                        "torch with CUDA, or ExecuTorch's libaoti_cuda_shims.so",
                        td_aoti.path);
  else
    status = td_cuda_acquire(index, resolution->context_id, &made->device, error);
  if (status != TANDEM_OK) {
    host->release(made);
    return status;
  }
  /* libtorch has an allocator of its own. */
  made->pool_held = !td_aoti.torch;
  if (made->pool_held)
    td_cuda_hold_pool(made->device);
  *cuda = made;
  return TANDEM_OK;
}

void td_aoti_cuda_release(struct td_aoti_cuda *cuda) {
  if (cuda == NULL)
    return;
  if (cuda->pool_held)
    td_cuda_drop_pool(cuda->device);
  td_cuda_release(cuda->device);
  td_aoti_host()->release(cuda);
}

/* Whose thread was lent a stream, and how often that has entered since: a callback may run another load. */
static _Thread_local const struct td_aoti_cuda *lender;
static _Thread_local unsigned lender_entered;

static void lend_stream(const struct td_aoti_cuda *cuda) {
  int8_t index = (int8_t)cuda->device->device_id;
  if (lender == NULL && cuda->peek_stream != NULL && cuda->set_stream != NULL && cuda->clear_stream != NULL &&
      !cuda->peek_stream(index).present && cuda->set_stream(TD_CUDA_STREAM_PER_THREAD, index) == 0)
    lender = cuda;
  lender_entered += lender == cuda;
}

enum tandem_status td_aoti_cuda_enter(struct td_aoti_cuda *cuda, struct tandem_error *error) {
  enum tandem_status status = cuda != NULL ? td_cuda_enter(cuda->device, error) : TANDEM_OK;
  if (cuda != NULL && status == TANDEM_OK)
    lend_stream(cuda);
  return status;
}

void td_aoti_cuda_leave(struct td_aoti_cuda *cuda) {
  if (cuda == NULL)
    return;
  if (lender == cuda && --lender_entered == 0) {
    cuda->clear_stream((int8_t)cuda->device->device_id);
    lender = NULL;
  }
  td_cuda_leave(cuda->device);
}

enum tandem_status td_aoti_cuda_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                       uint64_t *total_bytes, struct tandem_error *error) {
  td_cuda_set_host(td_aoti_host());
  return td_cuda_memory(resolution, free_bytes, total_bytes, error);
}

void td_aoti_cuda_make_room(struct td_aoti_cuda *cuda, size_t size) {
  if (cuda != NULL)
    td_cuda_make_room(cuda->device, size);
}

enum tandem_status td_aoti_cuda_allocate(struct td_aoti_cuda *cuda, size_t size, void **memory,
                                         struct tandem_error *error) {
  uint64_t address;
  char step[64];
  int32_t code = td_cuda_allocate(cuda->device, size > 0 ? size : 1, &address);
  *memory = (void *)(uintptr_t)address;
  if (code == TD_CUDA_OK)
    return TANDEM_OK;
  snprintf(step, sizeof step, "allocate %zu bytes of device memory", size);
  return td_cuda_fail(cuda->device, code, step, error);
}

void td_aoti_cuda_free(struct td_aoti_cuda *cuda, void *memory) {
  td_cuda_free(cuda->device, (uint64_t)(uintptr_t)memory);
}

enum tandem_status td_aoti_cuda_copy(struct td_aoti_cuda *cuda, void *to, const void *from, size_t size,
                                     struct tandem_error *error) {
  void *stream = TD_CUDA_STREAM_PER_THREAD;
  if (size == 0)
    return TANDEM_OK;
  bool to_device = td_cuda_locate(cuda->device, to, size).place == TD_CUDA_DEVICE;
  bool from_device = td_cuda_locate(cuda->device, from, size).place == TD_CUDA_DEVICE;
  uint64_t source = (uint64_t)(uintptr_t)from, target = (uint64_t)(uintptr_t)to;
  int32_t code = TD_CUDA_OK;
  if (to_device && from_device)
    code = td_cuda.copy_within(target, source, size, stream);
  else if (to_device)
    code = td_cuda_copy_host(cuda->device, target, (void *)(uintptr_t)from, size, false, stream);
  else if (from_device)
    code = td_cuda_copy_host(cuda->device, source, to, size, true, stream);
  int32_t waited = td_cuda_wait(stream);
  code = code != TD_CUDA_OK ? code : waited;
  if (code != TD_CUDA_OK)
    return td_cuda_fail(cuda->device, code, "copy device memory", error);
  /* One of the two is, so the driver was asked and failed. */
  if (!to_device && !from_device)
    return td_aoti_host()->fail(error, TANDEM_DEVICE_ERROR,
                                "the CUDA driver does not tell where %zu bytes lie that are to be copied",
                                size);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- a context's part */

static size_t count_of(const struct td_aoti_context *self) {
  return self->input_count + self->output_count;
}

static enum tandem_status make_part(struct td_aoti_context *self, struct part *part,
                                    struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  size_t shapes = self->input_count * (1 + TANDEM_MAX_RANK);
  part->device = self->engine->cuda->device;
  part->tensors = host->allocate((count_of(self) + 1) * sizeof *part->tensors);
  part->data = host->allocate((self->input_count + 1) * sizeof *part->data);
  part->results = host->allocate((self->output_count + 1) * sizeof *part->results);
  part->shapes = host->allocate((shapes + 1) * sizeof *part->shapes);
  part->key = host->allocate((shapes + count_of(self) + 1) * sizeof *part->key);
  if (part->tensors == NULL || part->data == NULL || part->results == NULL || part->shapes == NULL ||
      part->key == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a context's tensors");
  for (size_t i = 0; i < count_of(self); i++) {
    bool output = i >= self->input_count;
    part->tensors[i] = (struct td_cuda_tensor){.side = output ? "output" : "input",
                                               .number = output ? i - self->input_count : i,
                                               .name = self->ios[i].name};
  }
  bool leases = self->share_scratch && td_aoti.torch;
  int32_t code = leases ? TD_CUDA_OK : td_cuda.stream_create(&part->stream, TD_CUDA_STREAM_NON_BLOCKING);
  if (code != TD_CUDA_OK) {
    part->stream = NULL;
    return td_cuda_fail(part->device, code, "create a stream", error);
  }
  enum tandem_status status = td_flight_init(part->device, &part->flight, error);
  if (status != TANDEM_OK)
    return status;
  if (self->cuda_graph)
    part->graphs =
        td_graphs_create(part->device, &td_vendor_aotinductor,
                         td_aoti.torch ? "the engine allocates from libtorch, which may give memory "
                                         "that a graph has to others; with "
                                         "TANDEM_AOTI_SHIMS_LIBRARY it does not"
                                       : NULL);
  return TANDEM_OK;
}

enum tandem_status td_aoti_cuda_context_init(struct td_aoti_context *self, struct tandem_error *error) {
  struct part *part = td_aoti_host()->allocate(sizeof *part);
  self->cuda = part;
  if (part == NULL)
    return td_aoti_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a context's streams");
  enum tandem_status status = make_part(self, part, error);
  if (status != TANDEM_OK)
    td_aoti_cuda_context_fini(self);
  return status;
}

void td_aoti_cuda_context_fini(struct td_aoti_context *self) {
  const struct tandem_host *host = td_aoti_host();
  struct part *part = self->cuda;
  self->cuda = NULL;
  if (part == NULL)
    return;
  td_graphs_destroy(part->graphs, part->device);
  td_flight_fini(part->device, &part->flight);
  if (!td_cuda_lost(part->device)) {
    for (size_t i = 0; part->tensors != NULL && i < count_of(self); i++)
      td_cuda_give(part->device, &part->tensors[i].staged);
    if (part->stream != NULL)
      td_cuda.stream_destroy(part->stream);
  }
  host->release(part->key);
  host->release(part->shapes);
  host->release(part->results);
  host->release(part->data);
  host->release(part->tensors);
  host->release(part);
}

enum tandem_status td_aoti_cuda_settle(struct td_aoti_context *self, struct tandem_error *error) {
  struct part *part = self->cuda;
  return part != NULL ? td_flight_await(part->device, &part->flight, error) : TANDEM_OK;
}

/* ---------------------------------------------------------------- run: the caller's tensors */

static size_t size_of(const struct tandem_tensor *tensor) {
  size_t bytes = tandem_dtype_size(tensor->dtype); /* tandem checked that this does not wrap */
  for (int32_t d = 0; d < tensor->rank; d++)
    bytes *= (size_t)tensor->shape[d];
  return bytes;
}

static enum tandem_status take_input(struct run *run, size_t index) {
  const struct tandem_tensor *given = &run->cuda.desc->inputs[index];
  struct td_cuda_tensor *tensor = &run->part->tensors[index];
  enum tandem_status status = td_run_locate(&run->cuda, tensor, given->data, size_of(given));
  if (status == TANDEM_OK && !td_cuda_can_bind(tensor))
    status = td_run_stage(&run->cuda, tensor);
  run->part->data[index] = (void *)(uintptr_t)tensor->address;
  return status;
}

/* Room in the caller's tensor for a result, and where that is. A host output is staged only for a graph. */
static enum tandem_status take_output(struct run *run, size_t output, const struct td_aoti_result *result,
                                      bool graph) {
  struct td_cuda_tensor *tensor = &run->part->tensors[run->self->input_count + output];
  enum tandem_status status = td_aoti_make_room(run->self, run->cuda.desc, output, result, run->cuda.error);
  if (status == TANDEM_OK)
    status = td_run_locate(&run->cuda, tensor, run->cuda.desc->outputs[output].data, result->size);
  if (status == TANDEM_OK && tensor->pointer.place == TD_CUDA_HOST && (graph || run->cuda.captured))
    status = td_run_stage(&run->cuda, tensor);
  return status;
}

/* All of them, of the shapes that the run before with the same input shapes gave. */
static enum tandem_status take_outputs(struct run *run, bool graph) {
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; status == TANDEM_OK && i < run->self->output_count; i++)
    status = take_output(run, i, &run->part->results[i], graph);
  return status;
}

static int32_t copy_inputs(struct run *run) {
  int32_t code = TD_CUDA_OK;
  for (size_t i = 0; code == TD_CUDA_OK && i < run->self->input_count; i++)
    if (run->part->tensors[i].copied)
      code = td_run_copy(&run->cuda, &run->part->tensors[i], false);
  return code;
}

/* ---------------------------------------------------------------- run: the model */

/* Frees the outputs in the order of the stream that uses them. */
static void drop_outputs(struct run *run, void *stream) {
  struct td_aoti_cuda *cuda = run->self->engine->cuda;
  void *guard = NULL;
  bool guarded = cuda->enter_stream(stream, run->part->device->device_id, &guard) == 0;
  if (!guarded && !run->cuda.captured)
    td_cuda_wait(stream);
  td_aoti_drop_outputs(run->self);
  if (guarded)
    cuda->leave_stream(guard);
}

/* The engine said no. A lost device is the reason of every failure on it. */
static enum tandem_status judge(struct run *run, enum tandem_status status) {
  int32_t code = status != TANDEM_OK ? td_run_ask_device(&run->cuda) : TD_CUDA_OK;
  return code == TD_CUDA_OK ? status
                            : td_cuda_fail(run->part->device, code, "run the engine", run->cuda.error);
}

static enum tandem_status invoke(struct run *run, void *stream) {
  static struct tandem_host_lock first_run;
  const struct tandem_host *host = td_aoti_host();
  struct td_aoti_context *self = run->self;
  bool first = !self->ran;
  if (first) {
    host->wait_begin(); /* around all of it: the hooks are called with no lock held */
    host->lock_alone(&first_run);
    td_cuda_capture_lock_shared();
  }
  enum tandem_status status = td_aoti_invoke(self, run->cuda.desc, run->part->data, stream, run->cuda.error);
  if (first) {
    int32_t code = status == TANDEM_OK ? td_cuda_wait(stream) : TD_CUDA_OK;
    if (code != TD_CUDA_OK)
      status = td_cuda_fail(run->part->device, code, "wait for the first run", run->cuda.error);
    td_cuda_capture_unlock();
    host->unlock(&first_run);
    host->wait_end();
  }
  return status;
}

/* What a graph holds: the model, and its outputs brought to where they belong. */
static bool record_run(void *context, void *stream) {
  struct run *run = context;
  struct td_aoti_context *self = run->self;
  struct tandem_error ignored;
  if (td_aoti_invoke(self, run->cuda.desc, run->part->data, stream, &ignored) != TANDEM_OK)
    return false;
  bool recorded = true;
  for (size_t i = 0; recorded && i < self->output_count; i++) {
    const struct td_aoti_result *expected = &run->part->results[i];
    struct td_aoti_result result;
    recorded = td_aoti_result(self, i, &result, &ignored) == TANDEM_OK && result.size == expected->size &&
               (result.size == 0 ||
                td_cuda.copy_within(run->part->tensors[self->input_count + i].address,
                                    (uint64_t)(uintptr_t)result.data, result.size, stream) == TD_CUDA_OK);
  }
  drop_outputs(run, stream);
  return recorded;
}

static size_t write_shapes(const struct run *run, uint64_t *to) {
  size_t used = 0;
  for (size_t i = 0; i < run->self->input_count; i++) {
    const struct tandem_tensor *given = &run->cuda.desc->inputs[i];
    to[used++] = (uint64_t)(uint32_t)given->rank << 32 | (uint32_t)given->dtype;
    for (int32_t d = 0; d < given->rank; d++)
      to[used++] = (uint64_t)given->shape[d];
  }
  return used;
}

static enum tandem_status run_graph(struct run *run, enum td_graph_result *result) {
  struct td_aoti_context *self = run->self;
  struct part *part = run->part;
  size_t used = write_shapes(run, part->key);
  int32_t code;
  *result = TD_GRAPH_PLAIN;
  if (used != part->shape_count || memcmp(part->key, part->shapes, used * sizeof *part->key) != 0)
    return TANDEM_OK;
  enum tandem_status status = take_outputs(run, true);
  if (status != TANDEM_OK)
    return status;
  for (size_t i = 0; i < count_of(self); i++)
    part->key[used++] = part->tensors[i].address;
  struct td_graph_request request = {.enqueue = record_run,
                                     .context = run,
                                     .stream = run->cuda.stream,
                                     .foreign = run->cuda.desc->stream != NULL,
                                     .flight = part->flight.pending ? part->flight.event : NULL,
                                     .key = part->key,
                                     .key_count = used};
  run->cuda.queued = true;
  *result = td_graphs_run(part->graphs, part->device, &request, &code);
  if (*result == TD_GRAPH_FAILED)
    return td_cuda_fail(part->device, code, "launch a recorded run", run->cuda.error);
  for (size_t i = 0; *result != TD_GRAPH_PLAIN && i < self->output_count; i++) {
    const struct td_cuda_tensor *tensor = &part->tensors[self->input_count + i];
    code = tensor->copied ? td_run_copy(&run->cuda, tensor, true) : TD_CUDA_OK;
    if (code != TD_CUDA_OK)
      return td_cuda_fail(part->device, code, "copy an output", run->cuda.error);
  }
  return TANDEM_OK;
}

static enum tandem_status run_plainly(struct run *run) {
  struct td_aoti_context *self = run->self;
  struct part *part = run->part;
  size_t used = write_shapes(run, part->key);
  if (run->cuda.captured && (!self->ran || used != part->shape_count ||
                             memcmp(part->key, part->shapes, used * sizeof *part->key) != 0))
    return td_run_refuse_capture(&run->cuda, "this is the first run with these shapes");
  /* What is refused leaves nothing in the caller's capture. */
  enum tandem_status status = run->cuda.captured ? take_outputs(run, false) : TANDEM_OK;
  if (status != TANDEM_OK)
    return status;
  part->shape_count = 0;
  run->cuda.queued = true;
  /* Into the caller's capture what must not be there has to fail, not to be left out. */
  int32_t mode = run->cuda.captured ? td_cuda_capture_mode(TD_CUDA_CAPTURE_THREAD_LOCAL) : 0;
  status = judge(run, invoke(run, run->cuda.stream));
  for (size_t i = 0; status == TANDEM_OK && i < self->output_count; i++) {
    struct td_aoti_result *result = &part->results[i];
    const struct td_cuda_tensor *tensor = &part->tensors[self->input_count + i];
    status = td_aoti_result(self, i, result, run->cuda.error);
    if (status == TANDEM_OK)
      status = take_output(run, i, result, false);
    if (status != TANDEM_OK || result->size == 0)
      continue;
    uint64_t from = (uint64_t)(uintptr_t)result->data;
    int32_t code = tensor->pointer.place == TD_CUDA_HOST
                       ? td_cuda_copy_host(part->device, from, run->cuda.desc->outputs[i].data, tensor->bytes,
                                           true, run->cuda.stream)
                       : td_cuda.copy_within(tensor->address, from, tensor->bytes, run->cuda.stream);
    if (code != TD_CUDA_OK)
      status = td_cuda_fail(part->device, code, "copy an output", run->cuda.error);
  }
  drop_outputs(run, run->cuda.stream);
  if (run->cuda.captured)
    td_cuda_capture_mode(mode);
  if (status == TANDEM_OK) {
    memcpy(part->shapes, part->key, used * sizeof *part->key);
    part->shape_count = used;
  }
  return status;
}

/* ---------------------------------------------------------------- run */

static enum tandem_status finish(struct run *run) {
  if (run->cuda.captured)
    return TANDEM_OK;
  return run->cuda.desc->return_early ? td_run_return_early(&run->cuda) : td_run_wait(&run->cuda);
}

static enum tandem_status run_entered(struct run *run) {
  static const char never[] = "the engine allocates from libtorch, which may give memory that a graph has to "
                              "others; set TANDEM_AOTI_SHIMS_LIBRARY, or capture nothing of this load";
  struct part *part = run->part;
  enum td_graph_result result = TD_GRAPH_PLAIN;
  enum tandem_status status = TANDEM_OK;
  /* The load's own stream is known to nobody who could capture it. */
  if (run->cuda.desc->stream != NULL)
    status = td_run_check_stream(&run->cuda, td_aoti.torch ? never : NULL);
  for (size_t i = 0; status == TANDEM_OK && i < run->self->input_count; i++)
    status = take_input(run, i);
  if (status != TANDEM_OK)
    return status;
  int32_t code = td_run_order(&run->cuda);
  if (code == TD_CUDA_OK)
    code = copy_inputs(run);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(part->device, code, "bring the inputs to the device", run->cuda.error);
  if (part->graphs != NULL && run->self->ran && !run->cuda.captured)
    status = run_graph(run, &result);
  if (status == TANDEM_OK && result == TD_GRAPH_PLAIN)
    status = run_plainly(run);
  return status == TANDEM_OK ? finish(run) : status;
}

static enum tandem_status run_on(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                 void *stream, bool *idle, struct tandem_error *error) {
  struct part *part = self->cuda;
  struct run run = {
      .self = self,
      .part = part,
      .cuda = {
          .cuda = part->device, .flight = &part->flight, .desc = desc, .error = error, .stream = stream}};
  enum tandem_status status = run_entered(&run);
  if (status != TANDEM_OK)
    status = td_run_give_up(&run.cuda, status);
  *idle = !run.cuda.queued;
  return status;
}

enum tandem_status td_aoti_cuda_run(struct td_aoti_context *self, const struct tandem_run_desc *desc,
                                    struct tandem_error *error) {
  struct part *part = self->cuda;
  void *stream = desc->stream != NULL ? desc->stream : part->stream;
  bool idle;
  if (stream != NULL)
    return run_on(self, desc, stream, &idle, error);
  int32_t code = td_stream_lease(part->device, &stream);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(part->device, code, "create a stream", error);
  enum tandem_status status = run_on(self, desc, stream, &idle, error);
  td_stream_return(part->device, stream, idle);
  return status;
}
