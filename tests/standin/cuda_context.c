/* Stand-in libcuda, TESTS ONLY: start, devices, contexts, and what tests turn.
 *
 * Every entry of this library begins with enter(), which is where a fork, the end of the process and ordered
 * failures are noticed, so no entry can forget one of them. Contexts are never freed: a stale handle gets the
 * driver's error instead of a crash.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { NAMES_MAX = 160, FAULTS_MAX = 32 };

struct state state = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct {
  const char *name;
  uint64_t calls;
} calls[NAMES_MAX];

static struct {
  char name[64];
  unsigned left; /* calls until it strikes; 0: free */
  int result;
} faults[FAULTS_MAX];

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;

void lock(void) {
  pthread_mutex_lock(&state.lock);
}

void unlock(void) {
  pthread_mutex_unlock(&state.lock);
}

uint64_t clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------- start and end */

static uint64_t number_from(const char *name, uint64_t fallback) {
  const char *text = getenv(name);
  return text && *text ? strtoull(text, NULL, 0) : fallback;
}

static void end_thread(void *memory) {
  struct thread *thread = memory;
  lock();
  for (unsigned i = 0; i < thread->per_thread_count; i++) {
    destroy_stream_locked(thread->per_thread[i]);
    release_stream_locked(thread->per_thread[i]);
  }
  unlock();
  free(thread);
}

static void after_fork(void) {
  state.forked = true;
}

static void add_fault(const char *name, unsigned nth, int result) {
  for (int i = 0; i < FAULTS_MAX; i++) {
    if (faults[i].left)
      continue;
    snprintf(faults[i].name, sizeof faults[i].name, "%s", name);
    faults[i].left = nth;
    faults[i].result = result;
    return;
  }
}

static void set_device(int index) {
  struct device *device = &state.devices[index];
  int compute = (int)number_from("STANDIN_CUDA_COMPUTE", 90);
  device->memory_size = number_from("STANDIN_CUDA_MEMORY", (uint64_t)16 << 30);
  device->range_size = number_from("STANDIN_CUDA_ADDRESSES", (uint64_t)64 << 30);
  void *range = mmap(NULL, device->range_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    fprintf(stderr, "stand-in cuda: no addresses for device %d\n", index);
    device->range_size = 0;
  } else {
    device->range = (uint64_t)(uintptr_t)range;
  }
  static const int ones[] = {15, 19, 31, 41, 83, 89, 99, 115}; /* unified addressing, managed, pools, ... */
  for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
    device->attributes[ones[i]] = 1;
  device->attributes[1] = 1024; /* threads a block */
  device->attributes[10] = 32;
  device->attributes[16] = 4;
  device->attributes[33] = index + 1; /* PCI bus */
  device->attributes[75] = compute / 10;
  device->attributes[76] = compute % 10;
  char text[512];
  snprintf(text, sizeof text, "%s",
           getenv("STANDIN_CUDA_ATTRIBUTES") ? getenv("STANDIN_CUDA_ATTRIBUTES") : "");
  char *rest = NULL;
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    int attribute = atoi(part);
    char *value = strchr(part, '=');
    if (value && attribute > 0 && attribute < ATTRIBUTES_MAX)
      device->attributes[attribute] = atoi(value + 1);
  }
}

static void start(void) {
  pthread_key_create(&thread_key, end_thread);
  pthread_atfork(NULL, NULL, after_fork);
  uint64_t count = number_from("STANDIN_CUDA_DEVICES", 2);
  state.device_count = count > DEVICES_MAX ? DEVICES_MAX : (int)count;
  state.driver_version = (int)number_from("STANDIN_CUDA_DRIVER", 13000);
  for (int i = 0; i < state.device_count; i++)
    set_device(i);
  char text[512];
  snprintf(text, sizeof text, "%s", getenv("STANDIN_CUDA_FAIL") ? getenv("STANDIN_CUDA_FAIL") : "");
  char *rest = NULL;
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    char name[64];
    unsigned nth;
    int result;
    if (sscanf(part, "%63[^:]:%u:%d", name, &nth, &result) == 3 && nth)
      add_fault(name, nth, result);
    else
      fprintf(stderr, "stand-in cuda: STANDIN_CUDA_FAIL: expected name:n:result, found '%s'\n", part);
  }
  state.ready = true;
}

__attribute__((destructor)) static void end(void) {
  if (state.forked || !state.ready)
    return;
  if (getenv("STANDIN_CUDA_REPORT"))
    standin_cuda_control()->report();
  lock();
  state.ended = true;
  unlock();
}

struct thread *this_thread(void) {
  struct thread *thread = pthread_getspecific(thread_key);
  if (!thread) {
    thread = calloc(1, sizeof *thread);
    pthread_setspecific(thread_key, thread);
  }
  return thread;
}

int enter(const char *function) {
  pthread_once(&once, start);
  if (state.forked)
    return CU_NOT_INITIALIZED;
  int result = CU_OK;
  lock();
  int i = 0;
  while (i < NAMES_MAX - 1 && calls[i].name && strcmp(calls[i].name, function) != 0)
    i++;
  calls[i].name = function;
  calls[i].calls++;
  for (int f = 0; f < FAULTS_MAX && !result; f++)
    if (faults[f].left && strcmp(faults[f].name, function) == 0 && --faults[f].left == 0)
      result = faults[f].result;
  if (state.ended)
    result = CU_DEINITIALIZED;
  else if (!state.started && strcmp(function, "cuInit") != 0 && strcmp(function, "cuDriverGetVersion") != 0 &&
           strcmp(function, "cuGetProcAddress") != 0)
    result = CU_NOT_INITIALIZED;
  unlock();
  return result;
}

void violate_locked(struct context *context, int error, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "stand-in cuda: %s\n", text);
  state.violations++;
  if (context && error && !context->error)
    context->error = error;
  pthread_cond_broadcast(&state.changed);
}

/* ---------------------------------------------------------------- versions, errors */

EXPORT int cuInit(unsigned flags) {
  ENTER("cuInit");
  if (flags)
    return CU_INVALID_VALUE;
  lock();
  state.started = state.device_count > 0;
  unlock();
  return state.device_count ? CU_OK : CU_NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version) {
  ENTER("cuDriverGetVersion");
  lock();
  *version = state.driver_version;
  unlock();
  return CU_OK;
}

static const struct {
  int error;
  const char *name, *text;
} errors[] = {
    {CU_OK, "CUDA_SUCCESS", "no error"},
    {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CU_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {CU_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CU_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CU_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CU_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CU_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

static int describe_error(int error, bool name, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    if (errors[i].error == error) {
      *text = name ? errors[i].name : errors[i].text;
      return CU_OK;
    }
  }
  *text = NULL;
  return CU_INVALID_VALUE;
}

/* Callable at any time, as the driver's are. */
EXPORT int cuGetErrorString(int error, const char **text) {
  return describe_error(error, false, text);
}

EXPORT int cuGetErrorName(int error, const char **text) {
  return describe_error(error, true, text);
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
  (void)version;
  (void)flags;
  ENTER("cuGetProcAddress");
  Dl_info self;
  void *library = dladdr(&state, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
  char longer[128];
  *function = NULL;
  static const char *const suffixes[] = {"_v2", "WithFlags", ""};
  for (int i = 0; library && i < 3 && !*function; i++) {
    snprintf(longer, sizeof longer, "%s%s", name, suffixes[i]);
    *function = dlsym(library, longer);
  }
  if (library)
    dlclose(library);
  if (found)
    *found = *function ? 0 : 1;
  return *function ? CU_OK : CU_NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* ---------------------------------------------------------------- devices */

static bool is_device(int device) {
  return device >= 0 && device < state.device_count;
}

EXPORT int cuDeviceGetCount(int *count) {
  ENTER("cuDeviceGetCount");
  *count = state.device_count;
  return CU_OK;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
  ENTER("cuDeviceGet");
  if (!is_device(ordinal))
    return CU_INVALID_DEVICE;
  *device = ordinal;
  return CU_OK;
}

EXPORT int cuDeviceGetName(char *name, int size, int device) {
  ENTER("cuDeviceGetName");
  if (!is_device(device) || size <= 0)
    return CU_INVALID_DEVICE;
  snprintf(name, (size_t)size, "stand-in device %d", device);
  return CU_OK;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  ENTER("cuDeviceGetUuid");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  memset(uuid, 0x5d, 16);
  uuid[15] = (unsigned char)device;
  return CU_OK;
}

EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT int cuDeviceGetPCIBusId(char *text, int size, int device) {
  ENTER("cuDeviceGetPCIBusId");
  if (!is_device(device) || size <= 0)
    return CU_INVALID_DEVICE;
  snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
  return CU_OK;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER("cuDeviceGetAttribute");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  if (attribute <= 0 || attribute >= ATTRIBUTES_MAX)
    return CU_INVALID_VALUE;
  lock();
  *value = state.devices[device].attributes[attribute];
  unlock();
  return CU_OK;
}

EXPORT int cuDeviceComputeCapability(int *major, int *minor, int device) {
  ENTER("cuDeviceComputeCapability");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  *major = state.devices[device].attributes[75];
  *minor = state.devices[device].attributes[76];
  return CU_OK;
}

EXPORT int cuDeviceTotalMem_v2(size_t *size, int device) {
  ENTER("cuDeviceTotalMem");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  *size = state.devices[device].memory_size;
  unlock();
  return CU_OK;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  ENTER("cuDeviceCanAccessPeer");
  if (!is_device(device) || !is_device(peer))
    return CU_INVALID_DEVICE;
  *can = device != peer;
  return CU_OK;
}

/* ---------------------------------------------------------------- contexts */

int context_status_locked(const struct context *context, uint64_t id) {
  if (!context->alive || (id && context->id != id))
    return CU_CONTEXT_IS_DESTROYED;
  return context->error ? context->error : state.devices[context->device].lost;
}

int current_locked(struct context **context) {
  struct thread *thread = this_thread();
  *context = thread->depth ? thread->stack[thread->depth - 1] : NULL;
  return *context ? context_status_locked(*context, 0) : CU_INVALID_CONTEXT;
}

static bool is_context_locked(const void *handle) {
  for (struct context *context = state.contexts; context; context = context->next)
    if (context == handle)
      return true;
  return false;
}

static struct context *make_context_locked(int device) {
  struct context *context = calloc(1, sizeof *context);
  if (!context)
    return NULL;
  context->device = device;
  context->next = state.contexts;
  state.contexts = context;
  return context;
}

static void revive_locked(struct context *context) {
  context->alive = true;
  context->id = ++state.last_id;
  context->error = 0;
  context->peers = 0;
  context->legacy = NULL;
}

/* Everything that lives in it goes, as the driver does it. */
static void end_context_locked(struct context *context) {
  if (!context->error && !state.devices[context->device].lost)
    drain_context_locked(context);
  context->alive = false;
  struct stream *next_stream;
  for (struct stream *stream = state.streams; stream; stream = next_stream) {
    next_stream = stream->next;
    if (stream->context == context)
      destroy_stream_locked(stream);
  }
  struct event *next_event;
  for (struct event *event = state.events; event; event = next_event) {
    next_event = event->next;
    if (event->context == context && !event->destroyed)
      destroy_event_locked(event);
  }
  struct module **module = &state.modules;
  while (*module) {
    struct module *found = *module;
    if (found->context == context) {
      *module = found->next;
      free(found);
    } else {
      module = &found->next;
    }
  }
  for (size_t i = state.block_count; i-- > 0;)
    if (i < state.block_count && state.blocks[i]->context == context)
      drop_block_locked(state.blocks[i]);
  pthread_cond_broadcast(&state.changed);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  struct device *found = &state.devices[device];
  int result = found->lost;
  if (!found->primary) {
    found->primary = make_context_locked(device);
    if (found->primary)
      found->primary->is_primary = true;
  }
  if (!found->primary)
    result = CU_OUT_OF_MEMORY;
  if (!result) {
    if (!found->primary->alive)
      revive_locked(found->primary);
    found->primary->retains++;
    *context = found->primary;
  }
  unlock();
  return result;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("cuDevicePrimaryCtxRelease");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  struct context *primary = state.devices[device].primary;
  int result = CU_OK;
  if (!primary || primary->retains == 0)
    result = CU_INVALID_CONTEXT;
  else if (--primary->retains == 0)
    end_context_locked(primary);
  unlock();
  return result;
}

EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
  ENTER("cuDevicePrimaryCtxReset");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  struct context *primary = state.devices[device].primary;
  if (primary && primary->alive) {
    end_context_locked(primary);
    primary->retains = 0;
  }
  unlock();
  return CU_OK;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  ENTER("cuDevicePrimaryCtxGetState");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  struct context *primary = state.devices[device].primary;
  *active = primary && primary->alive;
  *flags = primary ? primary->flags : 0;
  unlock();
  return CU_OK;
}

EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
  (void)flags;
  ENTER("cuDevicePrimaryCtxSetFlags");
  return is_device(device) ? CU_OK : CU_INVALID_DEVICE;
}

static int push_locked(struct context *context) {
  struct thread *thread = this_thread();
  if (thread->depth == DEPTH_MAX)
    return CU_OUT_OF_MEMORY;
  thread->stack[thread->depth++] = context;
  return CU_OK;
}

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) {
  ENTER("cuCtxCreate");
  if (!is_device(device))
    return CU_INVALID_DEVICE;
  lock();
  int result = state.devices[device].lost;
  struct context *made = result ? NULL : make_context_locked(device);
  if (made) {
    revive_locked(made);
    made->flags = flags;
    *context = made;
    result = push_locked(made);
  } else if (!result) {
    result = CU_OUT_OF_MEMORY;
  }
  unlock();
  return result;
}

EXPORT int cuCtxDestroy_v2(void *context) {
  ENTER("cuCtxDestroy");
  lock();
  int result = CU_INVALID_CONTEXT;
  struct context *found = context;
  if (is_context_locked(context) && !found->is_primary && found->alive) {
    end_context_locked(found);
    struct thread *thread = this_thread();
    if (thread->depth && thread->stack[thread->depth - 1] == found)
      thread->depth--;
    result = CU_OK;
  }
  unlock();
  return result;
}

EXPORT int cuCtxPushCurrent_v2(void *context) {
  ENTER("cuCtxPushCurrent");
  lock();
  int result = CU_INVALID_CONTEXT;
  if (is_context_locked(context))
    result = ((struct context *)context)->alive ? push_locked(context) : CU_CONTEXT_IS_DESTROYED;
  unlock();
  return result;
}

EXPORT int cuCtxPopCurrent_v2(void **context) {
  ENTER("cuCtxPopCurrent");
  lock();
  struct thread *thread = this_thread();
  int result = CU_INVALID_CONTEXT;
  if (thread->depth) {
    struct context *top = thread->stack[--thread->depth];
    if (context)
      *context = top;
    result = CU_OK;
  }
  unlock();
  return result;
}

EXPORT int cuCtxSetCurrent(void *context) {
  ENTER("cuCtxSetCurrent");
  lock();
  struct thread *thread = this_thread();
  int result = CU_OK;
  if (context && !is_context_locked(context)) {
    result = CU_INVALID_CONTEXT;
  } else if (context && !((struct context *)context)->alive) {
    result = CU_CONTEXT_IS_DESTROYED;
  } else {
    if (thread->depth)
      thread->depth--;
    if (context)
      result = push_locked(context);
  }
  unlock();
  return result;
}

EXPORT int cuCtxGetCurrent(void **context) {
  ENTER("cuCtxGetCurrent");
  struct thread *thread = this_thread();
  *context = thread->depth ? thread->stack[thread->depth - 1] : NULL;
  return CU_OK;
}

EXPORT int cuCtxGetDevice(int *device) {
  ENTER("cuCtxGetDevice");
  lock();
  struct context *context;
  current_locked(&context);
  int result = context ? (context->alive ? CU_OK : CU_CONTEXT_IS_DESTROYED) : CU_INVALID_CONTEXT;
  if (!result)
    *device = context->device;
  unlock();
  return result;
}

EXPORT int cuCtxGetId(void *context, unsigned long long *id) {
  ENTER("cuCtxGetId");
  lock();
  struct context *found = context;
  int result = CU_OK;
  if (!context)
    current_locked(&found);
  if (!found || !is_context_locked(found))
    result = CU_INVALID_CONTEXT;
  else if (!found->alive)
    result = CU_CONTEXT_IS_DESTROYED;
  else
    *id = found->id;
  unlock();
  return result;
}

EXPORT int cuCtxGetFlags(unsigned *flags) {
  ENTER("cuCtxGetFlags");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    *flags = context->flags;
  unlock();
  return result;
}

EXPORT int cuCtxGetApiVersion(void *context, unsigned *version) {
  ENTER("cuCtxGetApiVersion");
  lock();
  int result = !context || is_context_locked(context) ? CU_OK : CU_INVALID_CONTEXT;
  unlock();
  *version = 3020;
  return result;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER("cuCtxGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return CU_OK;
}

EXPORT int cuCtxEnablePeerAccess(void *peer, unsigned flags) {
  (void)flags;
  ENTER("cuCtxEnablePeerAccess");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result && (!is_context_locked(peer) || !((struct context *)peer)->alive))
    result = CU_INVALID_CONTEXT;
  if (!result) {
    uint64_t bit = (uint64_t)1 << ((struct context *)peer)->device;
    if (context->peers & bit)
      result = CU_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= bit;
  }
  unlock();
  return result;
}

EXPORT int cuCtxSynchronize(void) {
  ENTER("cuCtxSynchronize");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  if (!result) {
    drain_context_locked(context);
    result = context_status_locked(context, 0);
  }
  unlock();
  return result;
}

/* ---------------------------------------------------------------- what tests turn */

static void hold(bool held) {
  lock();
  state.held = held;
  state.passes = 0;
  pthread_cond_broadcast(&state.changed);
  unlock();
}

static void pass(unsigned count) {
  lock();
  state.passes += count;
  pthread_cond_broadcast(&state.changed);
  unlock();
}

static bool wait_held(unsigned count) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 20;
  lock();
  int waited = 0;
  while (state.held_kernels < count && !waited)
    waited = pthread_cond_timedwait(&state.changed, &state.lock, &end);
  bool reached = state.held_kernels >= count;
  unlock();
  return reached;
}

static void fail_at(const char *function, unsigned nth, int result) {
  pthread_once(&once, start);
  lock();
  if (!function)
    memset(faults, 0, sizeof faults);
  else if (nth)
    add_fault(function, nth, result);
  unlock();
}

static uint64_t count_calls(const char *function) {
  uint64_t count = 0;
  lock();
  for (int i = 0; i < NAMES_MAX && calls[i].name; i++)
    if (strcmp(calls[i].name, function) == 0)
      count = calls[i].calls;
  unlock();
  return count;
}

static void lose_device(int device, int error) {
  pthread_once(&once, start);
  lock();
  if (is_device(device)) {
    state.devices[device].lost = error;
    pthread_cond_broadcast(&state.changed);
  }
  unlock();
}

static void live(struct standin_cuda_live *to) {
  pthread_once(&once, start);
  memset(to, 0, sizeof *to);
  lock();
  for (size_t i = 0; i < state.block_count; i++) {
    bool on_device = state.blocks[i]->kind == BLOCK_DEVICE;
    *(on_device ? &to->device_blocks : &to->host_blocks) += 1;
    *(on_device ? &to->device_bytes : &to->host_bytes) += state.blocks[i]->size;
  }
  for (struct context *context = state.contexts; context; context = context->next) {
    to->contexts += context->alive;
    to->primary_retains += context->is_primary ? context->retains : 0;
  }
  for (struct stream *stream = state.streams; stream; stream = stream->next)
    to->streams += !stream->destroyed && !stream->is_legacy && !stream->is_per_thread;
  for (struct event *event = state.events; event; event = event->next)
    to->events += !event->destroyed;
  for (struct module *module = state.modules; module; module = module->next)
    to->modules++;
  for (struct graph *graph = state.graphs; graph; graph = graph->next)
    *(graph->is_instance ? &to->graph_instances : &to->graphs) += 1;
  unlock();
}

static size_t report(void) {
  struct standin_cuda_live now;
  live(&now);
  lock();
  for (size_t i = 0; i < state.block_count; i++) {
    static const char *const kinds[] = {"device", "managed", "pinned", "registered"};
    const struct block *block = state.blocks[i];
    fprintf(stderr, "stand-in cuda: alive: %zu bytes of %s memory at %#llx, device %d, block %llu\n",
            block->size, kinds[block->kind], (unsigned long long)block->address, block->device,
            (unsigned long long)block->id);
  }
  unlock();
  uint64_t things = now.device_blocks + now.host_blocks + now.primary_retains + now.streams + now.events +
                    now.modules + now.graphs + now.graph_instances;
  fprintf(
      stderr,
      "stand-in cuda: alive: %llu blocks, %llu contexts, %llu primary retains, %llu streams, %llu events, "
      "%llu modules, %llu graphs, %llu graph instances\n",
      (unsigned long long)(now.device_blocks + now.host_blocks), (unsigned long long)now.contexts,
      (unsigned long long)now.primary_retains, (unsigned long long)now.streams,
      (unsigned long long)now.events, (unsigned long long)now.modules, (unsigned long long)now.graphs,
      (unsigned long long)now.graph_instances);
  return (size_t)things;
}

static uint64_t count_violations(void) {
  lock();
  uint64_t count = state.violations;
  unlock();
  return count;
}

static void set_memory(int device, uint64_t size) {
  pthread_once(&once, start);
  lock();
  if (is_device(device))
    state.devices[device].memory_size = size;
  unlock();
}

static uint64_t memory_used(int device) {
  lock();
  uint64_t used = is_device(device) ? state.devices[device].memory_used : 0;
  unlock();
  return used;
}

static uint64_t memory_peak(int device) {
  lock();
  uint64_t peak = is_device(device) ? state.devices[device].memory_peak : 0;
  unlock();
  return peak;
}

static void set_attribute(int device, int attribute, int value) {
  pthread_once(&once, start);
  lock();
  if (is_device(device) && attribute > 0 && attribute < ATTRIBUTES_MAX)
    state.devices[device].attributes[attribute] = value;
  unlock();
}

static void set_driver_version(int version) {
  pthread_once(&once, start);
  lock();
  state.driver_version = version;
  unlock();
}

static void reset(void) {
  pthread_once(&once, start);
  lock();
  memset(faults, 0, sizeof faults);
  for (int i = 0; i < NAMES_MAX; i++)
    calls[i].calls = 0;
  for (int i = 0; i < state.device_count; i++)
    state.devices[i].memory_peak = state.devices[i].memory_used;
  state.violations = 0;
  state.held = false;
  state.passes = 0;
  pthread_cond_broadcast(&state.changed);
  unlock();
}

static void make_green(void *handle) {
  lock();
  struct stream *stream;
  if (find_stream_locked(handle, &stream) == CU_OK)
    stream->is_green = true;
  unlock();
}

EXPORT const struct standin_cuda *standin_cuda_control(void) {
  static const struct standin_cuda control = {
      .struct_size = sizeof control,
      .hold = hold,
      .wait_held = wait_held,
      .pass = pass,
      .fail_at = fail_at,
      .calls = count_calls,
      .lose_device = lose_device,
      .report = report,
      .live = live,
      .violations = count_violations,
      .set_memory = set_memory,
      .memory_used = memory_used,
      .memory_peak = memory_peak,
      .set_attribute = set_attribute,
      .set_driver_version = set_driver_version,
      .reset = reset,
      .make_green = make_green,
  };
  return &control;
}

/* For ctypes. */
EXPORT void standin_cuda_hold(int held);
EXPORT void standin_cuda_fail_at(const char *function, unsigned nth, int result);
EXPORT size_t standin_cuda_report(void);
EXPORT uint64_t standin_cuda_violations(void);

EXPORT void standin_cuda_hold(int held) {
  hold(held != 0);
}

EXPORT void standin_cuda_fail_at(const char *function, unsigned nth, int result) {
  fail_at(function, nth, result);
}

EXPORT size_t standin_cuda_report(void) {
  return report();
}

EXPORT uint64_t standin_cuda_violations(void) {
  return count_violations();
}
