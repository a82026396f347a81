/* An engine: the program's opened library and one set of weights, of which every context borrows.
 *
 * The weights are loaded by a container of the engine's own, which never runs. The library's interface does
 * not tell the shape of a constant, so each is noted as the container creates it: the library's calls to
 * create a tensor come here (image.c), and go on to torch. Where a payload describes its constants instead,
 * the engine holds them in memory of its own. A container that is given its constants keeps a handle of each
 * that it never frees (torch 2.13); it is given the context's own handle for it, which the context frees.
 *
 * What a call of this thread is watched for is in a thread-local variable, set around that one call: calls of
 * other engines and of torch itself are not seen.
 */
#include "aotinductor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the process that ran on the CPU */

/* OpenMP's threads, which a run on the CPU starts, do not live on in a forked child: its first run waits for
 * them for ever (seen with torch 2.13 and a program large enough to need them). So a child of a process that
 * ran is refused before it has a load to run. */
static _Atomic int runner; /* the first process to run on the CPU; 0: none */

void td_aoti_note_run(void) {
  int none = 0;
  if (atomic_load_explicit(&runner, memory_order_relaxed) == 0)
    atomic_compare_exchange_strong(&runner, &none, (int)getpid());
}

static enum tandem_status check_process(struct tandem_error *error) {
  int self = (int)getpid(), first = atomic_load(&runner);
  if (first == 0 || first == self)
    return TANDEM_OK;
  return td_aoti_host()->fail(error, TANDEM_UNAVAILABLE,
                              "process %d was forked from process %d after that one had run an AOTInductor "
                              "program on the CPU, whose OpenMP threads the child does not have: run only "
                              "after the fork, or start the child with exec (Python: multiprocessing's "
                              "\"spawn\")",
                              self, first);
}

/* ---------------------------------------------------------------- what the library's calls are watched for
 */

static _Thread_local struct td_aoti_watch *watching;

static bool note_constant(struct td_aoti_watch *watch, const struct td_aoti_constant *seen,
                          const uint8_t *metadata) {
  const struct tandem_host *host = td_aoti_host();
  if (watch->count == watch->capacity)
    return false;
  struct td_aoti_constant *constant = &watch->constants[watch->count];
  *constant = *seen;
  if (seen->metadata_size > 0) {
    constant->metadata = host->allocate(seen->metadata_size);
    if (constant->metadata == NULL)
      return false;
    memcpy(constant->metadata, metadata, seen->metadata_size);
  }
  watch->count++;
  return true;
}

static int32_t create_tensor(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides,
                             int64_t offset, int32_t dtype, int32_t device_type, int32_t device_index,
                             struct aoti_tensor **tensor, int32_t layout, const uint8_t *metadata,
                             int64_t metadata_size) {
  struct td_aoti_watch *watch = watching;
  if (watch != NULL && watch->constants != NULL) {
    struct td_aoti_constant seen = {.dtype = dtype,
                                    .device_type = device_type,
                                    .rank = (int32_t)rank,
                                    .offset = offset,
                                    .layout = layout,
                                    .data = data,
                                    .metadata_size = metadata_size > 0 ? (size_t)metadata_size : 0};
    if (rank < 0 || rank > TANDEM_MAX_RANK) {
      watch->failed = true;
    } else {
      memcpy(seen.sizes, sizes, (size_t)rank * sizeof *sizes);
      memcpy(seen.strides, strides, (size_t)rank * sizeof *strides);
      watch->failed = !note_constant(watch, &seen, metadata) || watch->failed;
    }
  }
  return td_aoti.tensor.create_tensor(data, rank, sizes, strides, offset, dtype, device_type, device_index,
                                      tensor, layout, metadata, metadata_size);
}

static int32_t share_tensor(struct aoti_tensor *tensor, struct aoti_tensor **shared) {
  if (watching == NULL || !watching->lend)
    return td_aoti.tensor.share_tensor(tensor, shared);
  *shared = tensor;
  return 0;
}

static int32_t delete_tensor(struct aoti_tensor *tensor) {
  struct td_aoti_watch *watch = watching;
  for (size_t i = 0; watch != NULL && i < watch->tensor_count; i++)
    if (watch->tensors[i] == tensor)
      watch->tensors[i] = NULL;
  return td_aoti.tensor.delete_tensor(tensor);
}

/* The library keeps its last error's text in a thread-local variable. A destructor for that would hold the
 * library in memory until the thread ends, which the main thread never does; without one a thread that saw an
 * error loses its text. */
static int forget_destructor(void (*destructor)(void *), void *object, void *library) {
  (void)destructor, (void)object, (void)library;
  return 0;
}

void td_aoti_watch(struct td_aoti_watch *watch) {
  watching = watch;
}

struct td_aoti_modules *td_aoti_watched_modules(void) {
  return watching != NULL ? watching->modules : NULL;
}

/* ---------------------------------------------------------------- errors */

static bool says_out_of_memory(const char *line) {
  static const char *const signs[] = {"bad_alloc", "out of memory", "Out of memory", "not enough memory",
                                      "DefaultCPUAllocator"};
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
    if (strstr(line, signs[i]) != NULL)
      return true;
  return false;
}

enum tandem_status td_aoti_fail(const struct td_aoti_engine *engine, enum tandem_status status,
                                struct tandem_error *error, const char *format, ...) {
  const struct tandem_host *host = td_aoti_host();
  const char *text = NULL;
  char step[256], line[512] = "";
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(step, sizeof step, format, arguments);
  va_end(arguments);
  if (engine->api.last_error != NULL && engine->api.last_error(&text) == 0 && text != NULL)
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
  if (line[0] == '\0')
    return host->fail(error, status,
                      "%s: the program's library failed and gave no reason; if its error went to stderr, it "
                      "is there",
                      step);
  if (says_out_of_memory(line)) {
    status = TANDEM_OUT_OF_MEMORY;
    host->log(&td_vendor_aotinductor, TANDEM_LOG_ERROR, status, line);
  }
  /* What allocates does not say why it failed. Whether the device is lost is asked after this. */
  if (strstr(line, "aoti_torch_empty_strided") != NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "%s: there is no memory for a tensor: %s", step, line);
  return host->fail(error, status, "%s: %s", step, line);
}

/* ---------------------------------------------------------------- resolve */

/* "cpu", "cuda" or "cuda:1"; "": the program's own device. */
enum tandem_status td_aoti_resolve(const struct tandem_payload *payload, const char *const *options,
                                   struct tandem_resolution *resolution, struct tandem_error *error) {
  const struct td_aoti_program *program = payload->state;
  const char *device = options[TD_AOTI_DEVICE];
  bool cuda = program->device_type == AOTI_DEVICE_CUDA;
  int index = 0;
  memset(resolution, 0, sizeof *resolution);
  if (device[0] != '\0' && (cuda ? !td_aoti_cuda_index(device, &index) : strcmp(device, "cpu") != 0))
    return td_aoti_host()->fail(
        error, TANDEM_BAD_OPTION,
        "device=%.40s: the program was compiled for %s; give %s, or export it for another "
        "device",
        device, cuda ? "cuda" : "cpu", cuda ? "cuda:0, cuda:1, ..." : "cpu or nothing");
  if (cuda)
    return td_aoti_cuda_resolve(index, program->capability, resolution, error);
  snprintf(resolution->device, sizeof resolution->device, "CPU");
  return TANDEM_OK;
}

enum tandem_status td_aoti_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                  uint64_t *total_bytes, struct tandem_error *error) {
  if (strncmp(resolution->device, "cuda", 4) == 0)
    return td_aoti_cuda_memory(resolution, free_bytes, total_bytes, error);
  *free_bytes = *total_bytes = 0;
  return td_aoti_host()->fail(error, TANDEM_UNSUPPORTED, "the memory of %s is the system's",
                              resolution->device);
}

/* ---------------------------------------------------------------- does the program fit this machine? */

static bool is_told(const char *text) {
  return text[0] != '\0';
}

/* A newer torch runs what an older one compiled; the other way round nobody promises. */
static enum tandem_status check_torch(const struct td_aoti_program *program, struct tandem_error *error) {
  unsigned compiled_major, compiled_minor, major, minor;
  if (!td_aoti.torch || !is_told(program->torch_version) ||
      sscanf(program->torch_version, "%u.%u", &compiled_major, &compiled_minor) != 2)
    return TANDEM_OK; /* a function that is missing is told by its name */
  const char *here = td_aoti.version[0] != '\0' ? td_aoti.version : "2.8";
  if (sscanf(here, "%u.%u", &major, &minor) != 2 || compiled_major < major ||
      (compiled_major == major && compiled_minor <= minor))
    return TANDEM_OK;
  return td_aoti_host()->fail(error, TANDEM_UNSUPPORTED,
                              "the program was compiled by torch %.32s and this is torch %s%s (%s): install "
                              "torch %.32s or newer, or export the program again with this one",
                              program->torch_version, here, td_aoti.version[0] != '\0' ? "" : " or older",
                              td_aoti.path, program->torch_version);
}

/* Whether `words` (by spaces) has the first `length` characters of `word` as a word. */
static bool has_word(const char *words, const char *word, size_t length) {
  for (const char *at = words; *at != '\0';) {
    size_t size = strcspn(at, " \t\n");
    if (size == length && memcmp(at, word, length) == 0)
      return true;
    at += size + (at[size] != '\0');
  }
  return false;
}

/* The line of /proc/cpuinfo that lists what the processor has: owned, NULL when it cannot be read. */
static char *read_features(void) {
  char *line = NULL;
  size_t capacity = 0;
  bool found = false;
  FILE *file = fopen("/proc/cpuinfo", "re");
  while (file != NULL && !found && getline(&line, &capacity, file) > 0)
    found = strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0;
  if (file != NULL)
    fclose(file);
  if (!found) {
    free(line);
    line = NULL;
  }
  return line;
}

static enum tandem_status check_processor(const struct td_aoti_program *program, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  enum tandem_status status = TANDEM_OK;
  struct utsname system;
  if (is_told(program->machine) && uname(&system) == 0 && strcmp(system.machine, program->machine) != 0)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the program was compiled for %.32s and this processor is %.32s: export it again on a "
                      "machine like this one",
                      program->machine, system.machine);
  if (!is_told(program->features))
    return TANDEM_OK;
  char *here = read_features();
  for (const char *at = program->features; here != NULL && *at != '\0' && status == TANDEM_OK;) {
    size_t length = strcspn(at, " ");
    if (length > 0 && !has_word(here, at, length))
      status =
          host->fail(error, TANDEM_UNSUPPORTED,
                     "the program was compiled for a processor with %.*s, which this one lacks: export it "
                     "again on a machine like this one",
                     (int)length, at);
    at += length + (at[length] != '\0');
  }
  free(here);
  return status;
}

/* ---------------------------------------------------------------- build */

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
static bool find_symbol(void *library, const char *name, void *member) {
  void *address = td_aoti_host()->library_symbol(library, name);
  memcpy(member, &address, sizeof address);
  return address != NULL;
}

/* The first mandatory entry point that the library lacks, NULL when it has all. */
static const char *find_calls(void *library, struct aoti_engine_api *api) {
#define FIND(member, symbol, parameters)                                                                     \
  if (!find_symbol(library, #symbol, &api->member))                                                          \
    return #symbol;
#define FIND_OPTIONAL(member, symbol, parameters) (void)find_symbol(library, #symbol, &api->member);
  TD_AOTI_ENGINE_CALLS(FIND, FIND_OPTIONAL)
#undef FIND
#undef FIND_OPTIONAL
  return NULL;
}

static enum tandem_status open_program(struct td_aoti_engine *self, const struct td_aoti_program *program,
                                       struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  union {
    int32_t (*create)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t,
                      struct aoti_tensor **, int32_t, const uint8_t *, int64_t);
    int32_t (*share)(struct aoti_tensor *, struct aoti_tensor **);
    int32_t (*drop)(struct aoti_tensor *);
    int (*forget)(void (*)(void *), void *, void *);
    void *address; /* POSIX gives functions and data pointers one representation */
  } create = {.create = create_tensor}, share = {.share = share_tensor}, drop = {.drop = delete_tensor},
    forget = {.forget = forget_destructor};
  enum { HOOKS = 6 };
  struct td_aoti_hook hooks[HOOKS + TD_AOTI_MODULE_HOOKS] = {
      {"aoti_torch_create_tensor_from_blob_v2", create.address},
      {"aoti_torch_new_tensor_handle", share.address},
      {"aoti_torch_delete_tensor_object", drop.address},
      {"aoti_torch_proxy_executor_call_function", NULL},
      {"__cxa_thread_atexit", forget.address},
      {"__cxa_thread_atexit_impl", forget.address}};
  td_aoti_module_hooks(hooks + HOOKS);
  void *library = td_aoti.handle;
  enum tandem_status status = TANDEM_OK;
  if (self->device_type == AOTI_DEVICE_CUDA)
    status = td_aoti_open_cuda(&library, error);
  else if (!td_aoti.torch)
    status = host->fail(error, TANDEM_UNAVAILABLE,
                        "the program runs on the CPU, for which %s has no functions: install torch with: pip "
                        "install torch, or set TANDEM_TORCH_LIBRARY to the path of libtorch_cpu.so",
                        td_aoti.path);
  if (status == TANDEM_OK)
    status = td_aoti_open_image(program->so, program->so_size, library, hooks, HOOKS + TD_AOTI_MODULE_HOOKS,
                                &self->so, error);
  if (status != TANDEM_OK)
    return status;
  const char *missing = find_calls(self->so, &self->api);
  if (missing != NULL)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the program's library has no %s: torch 2.9 or newer has to compile it", missing);
  return TANDEM_OK;
}

/* Makes the engine's container and with it notes the constants. */
static enum tandem_status load_weights(struct td_aoti_engine *self, const struct td_aoti_program *program,
                                       struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  uint64_t wanted = 0;
  size_t count = 0;
  if (self->api.create(&self->container, 1, self->device, NULL) != 0) {
    self->container = NULL;
    return td_aoti_fail(self, TANDEM_DEVICE_ERROR, error, "start the program on %s", self->device);
  }
  if (self->api.constant_count(self->container, &count) != 0)
    return td_aoti_fail(self, TANDEM_BAD_PROGRAM, error, "count the program's constants");
  self->constants = host->allocate((count + 1) * sizeof *self->constants);
  if (self->constants == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu constants", count);
  for (size_t i = 0; i < count; i++) {
    size_t size = 0;
    bool folded = false;
    if (self->api.constant_folded(self->container, i, &folded) != 0 ||
        self->api.constant_size(self->container, i, &size) != 0)
      return td_aoti_fail(self, TANDEM_BAD_PROGRAM, error, "read the size of constant %zu", i);
    wanted += folded ? 0 : size;
    self->constant_count += !folded;
  }
  if (program->constants != NULL || self->constant_count == 0)
    return TANDEM_OK;
  if (wanted > program->weights_size)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the program has %zu bytes of weights, its library reads %" PRIu64
                      "; export the program again",
                      program->weights_size, wanted);
  td_aoti_cuda_make_room(self->cuda, wanted);
  struct td_aoti_watch watch = {.constants = self->constants, .capacity = self->constant_count};
  td_aoti_watch(&watch);
  int32_t code = self->api.load_blob != NULL ? self->api.load_blob(self->container, program->weights) : 0;
  td_aoti_watch(NULL);
  if (code != 0)
    return td_aoti_fail(self, TANDEM_DEVICE_ERROR, error, "load %" PRIu64 " bytes of weights", wanted);
  if (watch.count == 0 && !watch.failed) /* a library that has its weights in it loads none */
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "the program's weights are in its library, where every load would have its own: export it "
        "with tandem.export, which keeps them apart");
  if (watch.failed || watch.count != self->constant_count)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the program's library created %zu constants of %zu in a way that tandem can follow",
                      watch.count, self->constant_count);
  return TANDEM_OK;
}

static const struct td_aoti_constant *find_described(const struct td_aoti_program *program, const char *fqn) {
  for (size_t i = 0; i < program->constant_count; i++)
    if (strcmp(program->constants[i].fqn, fqn) == 0)
      return &program->constants[i];
  return NULL;
}

/* Whether a constant of a CUDA engine is in host memory. */
static bool is_beside_device(const struct td_aoti_engine *self, const struct td_aoti_constant *constant) {
  return self->device_type == AOTI_DEVICE_CUDA && constant->device_type == AOTI_DEVICE_CPU;
}

/* Whether runs write to a constant: as the program says, else whether they could. Parameters do not change
 * when a program runs; buffers do or do not, and a copy too many costs memory while one too few would mix two
 * loads' state. */
static enum tandem_status read_mutable(struct td_aoti_engine *self, const struct td_aoti_program *program,
                                       size_t index, struct td_aoti_constant *constant,
                                       struct tandem_error *error) {
  int32_t type = AOTI_UNKNOWN;
  if (program->state_known && program->constants != NULL)
    return TANDEM_OK; /* copied with the description */
  if (program->state_known) {
    for (size_t i = 0; i < program->mutable_count; i++)
      constant->mutable = constant->mutable || strcmp(program->mutable_names[i], constant->fqn) == 0;
    return TANDEM_OK;
  }
  if (self->api.constant_type != NULL && self->api.constant_type(self->container, index, &type) != 0)
    return td_aoti_fail(self, TANDEM_BAD_PROGRAM, error, "read the type of constant %s", constant->fqn);
  constant->mutable = type != AOTI_PARAMETER;
  if (!is_beside_device(self, constant))
    return TANDEM_OK;
  /* A number that the host reads; a context's copies are in device memory. */
  constant->mutable = false;
  return type != AOTI_BUFFER
             ? TANDEM_OK
             : td_aoti_host()->fail(
                   error, TANDEM_UNSUPPORTED,
                   "the program keeps the buffer %s on the CPU, where loads cannot have their "
                   "own; register it on the model's device and export again",
                   constant->fqn);
}

/* Gives each constant its names, and whether runs write to it. */
static enum tandem_status name_constants(struct td_aoti_engine *self, const struct td_aoti_program *program,
                                         struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  size_t found = 0;
  for (size_t i = 0, next = 0; next < self->constant_count; i++) {
    struct td_aoti_constant *constant = &self->constants[next];
    const char *name = NULL, *fqn = NULL;
    bool folded = false;
    size_t size = 0;
    if (self->api.constant_folded(self->container, i, &folded) != 0 ||
        self->api.constant_name(self->container, i, &name) != 0 ||
        self->api.constant_fqn(self->container, i, &fqn) != 0 ||
        self->api.constant_size(self->container, i, &size) != 0)
      return td_aoti_fail(self, TANDEM_BAD_PROGRAM, error, "read constant %zu", i);
    if (folded)
      continue;
    if (program->constants != NULL) {
      const struct td_aoti_constant *described = find_described(program, fqn);
      if (described == NULL)
        return host->fail(
            error, TANDEM_BAD_PROGRAM,
            "the program's library needs the constant %s, which the program does not have; export "
            "it again",
            fqn);
      *constant = *described;
    } else {
      constant->size = size;
    }
    constant->name = name;
    constant->fqn = fqn;
    enum tandem_status status = read_mutable(self, program, i, constant, error);
    if (status != TANDEM_OK)
      return status;
    found += constant->mutable;
    next++;
  }
  if (program->state_known && program->constants == NULL && found < program->mutable_count)
    return host->fail(
        error, TANDEM_BAD_PROGRAM,
        "the program says that runs write to %zu of its constants (%s ...), its library has %zu of "
        "them; export it again",
        program->mutable_count, program->mutable_names[0], found);
  return TANDEM_OK;
}

/* Puts constants that a payload describes into memory of the engine's own: those of one device into one
 * block, `cuda` NULL for the CPU's. */
static enum tandem_status place_constants(struct td_aoti_engine *self, struct td_aoti_cuda *cuda, bool beside,
                                          void **memory, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  size_t total = 0;
  for (size_t i = 0; i < self->constant_count; i++)
    if (is_beside_device(self, &self->constants[i]) == beside &&
        __builtin_add_overflow(total, td_aoti_room(&self->constants[i]), &total))
      return host->fail(error, TANDEM_OUT_OF_MEMORY,
                        "the program's constants have more bytes than there are");
  enum tandem_status status = total > 0 ? td_aoti_allocate(cuda, total, memory, error) : TANDEM_OK;
  char *at = *memory;
  for (size_t i = 0; status == TANDEM_OK && i < self->constant_count; i++) {
    struct td_aoti_constant *constant = &self->constants[i];
    if (is_beside_device(self, constant) != beside)
      continue;
    status = td_aoti_copy(cuda, at, constant->data, constant->size, error);
    constant->data = at;
    at += td_aoti_room(constant);
  }
  return status;
}

/* Payloads of CudaBackend do not tell what GPU they are for; the code in their library does. */
static enum tandem_status check_gpu(const struct td_aoti_engine *self, const struct td_aoti_program *program,
                                    struct tandem_error *error) {
  if (self->device_type != AOTI_DEVICE_CUDA || program->capability != 0)
    return TANDEM_OK;
  return td_aoti_cuda_check(self->device_index, td_aoti_cuda_capability(program->so, program->so_size),
                            error);
}

/* Machine code that was damaged on its way ends the process. Here and not where a payload is parsed: who
 * shares an engine has the same bytes. */
static enum tandem_status check_library(const struct td_aoti_program *program, struct tandem_error *error) {
  char found[65];
  if (!is_told(program->so_sha256))
    return TANDEM_OK;
  enum tandem_status status = td_aoti_host()->sha256(program->so, program->so_size, found, error);
  if (status != TANDEM_OK || strncmp(found, program->so_sha256, sizeof found - 1) == 0)
    return status;
  return td_aoti_host()->fail(
      error, TANDEM_BAD_PROGRAM,
      "the program is damaged: its compiled library (%zu bytes) has SHA-256 %s, it was "
      "exported with %.64s; copy the file again or export the program again",
      program->so_size, found, program->so_sha256);
}

static enum tandem_status fill(struct td_aoti_engine *self, const struct td_aoti_program *program,
                               struct tandem_error *error) {
  enum tandem_status status;
  if ((self->cuda == NULL && (status = check_process(error)) != TANDEM_OK) ||
      (status = check_torch(program, error)) != TANDEM_OK ||
      (status = check_processor(program, error)) != TANDEM_OK ||
      (status = check_gpu(self, program, error)) != TANDEM_OK ||
      (status = check_library(program, error)) != TANDEM_OK ||
      (status = open_program(self, program, error)) != TANDEM_OK ||
      (status = load_weights(self, program, error)) != TANDEM_OK ||
      (status = name_constants(self, program, error)) != TANDEM_OK)
    return status;
  if (program->constants == NULL)
    return TANDEM_OK;
  status = place_constants(self, self->cuda, false, &self->memory, error);
  return status == TANDEM_OK ? place_constants(self, NULL, true, &self->host_memory, error) : status;
}

enum tandem_status td_aoti_build(const struct tandem_build_desc *desc, void **engine,
                                 struct tandem_engine_info *info, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  struct td_aoti_program program;
  struct td_aoti_engine *self = NULL;
  *engine = NULL;
  enum tandem_status status =
      td_aoti_read(host, desc->engine, desc->engine_size, desc->parts, desc->part_count, &program, error);
  if (status != TANDEM_OK)
    return status;
  self = host->allocate(sizeof *self);
  if (self == NULL) {
    status = host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for an AOTInductor engine");
    goto done;
  }
  self->device_type = program.device_type;
  snprintf(self->device, sizeof self->device, "cpu");
  if (self->device_type == AOTI_DEVICE_CUDA) {
    snprintf(self->device, sizeof self->device, "%.15s", desc->resolution->device);
    self->device_index = (int32_t)strtol(self->device + strcspn(self->device, "0123456789"), NULL, 10);
    self->modules = td_aoti_modules_create();
    status = self->modules != NULL ? td_aoti_cuda_acquire(desc->resolution, &self->cuda, error)
                                   : host->fail(error, TANDEM_OUT_OF_MEMORY,
                                                "no memory for the record of an engine's GPU code");
    if (status == TANDEM_OK)
      status = td_aoti_cuda_enter(self->cuda, error);
  }
  if (status == TANDEM_OK) {
    status = fill(self, &program, error);
    td_aoti_cuda_leave(self->cuda);
  }
  if (status != TANDEM_OK)
    goto done;
  uint64_t bytes = 0;
  for (size_t i = 0; i < self->constant_count; i++) {
    bytes += self->constants[i].size;
    self->state_bytes += self->constants[i].mutable ? self->constants[i].size : 0;
  }
  if (!program.state_known && self->state_bytes > 0)
    td_aoti_say(TANDEM_LOG_INFO,
                "each load has its own copy of %" PRIu64
                " bytes of buffers: the program does not say which of them runs write to",
                self->state_bytes);
  *info = (struct tandem_engine_info){.engine_bytes = bytes + program.so_size,
                                      .device_bytes = self->device_type == AOTI_DEVICE_CUDA ? bytes : 0,
                                      .effective_budget = -1};
  *engine = self;
  self = NULL;
done:
  td_aoti_engine_destroy(self);
  td_aoti_program_fini(host, &program);
  return status;
}

void td_aoti_engine_destroy(void *engine) {
  struct td_aoti_engine *self = engine;
  const struct tandem_host *host = td_aoti_host();
  if (self == NULL)
    return;
  if (td_aoti_cuda_enter(self->cuda, NULL) == TANDEM_OK) { /* else the device is lost, and all on it */
    if (self->container != NULL)
      self->api.destroy(self->container);
    td_aoti_modules_destroy(self->modules, false);
    td_aoti_free(self->cuda, self->memory);
    td_aoti_cuda_leave(self->cuda);
    host->library_close(self->so);
  } else {
    td_aoti_modules_destroy(self->modules, true);
  }
  td_aoti_free(NULL, self->host_memory);
  for (size_t i = 0; self->constants != NULL && i < self->constant_count; i++)
    host->release(self->constants[i].metadata);
  host->release(self->constants);
  td_aoti_cuda_release(self->cuda);
  host->release(self);
}
