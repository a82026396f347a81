/* CUDA through the driver's own interface, opened at run time: no CUDA runtime is linked or loaded, so
 * nothing here can change the error that a thread's CUDA runtime has pending.
 *
 * What is kept true: the calling thread's context is what it was before, also none at all: every use lies
 * between td_cuda_enter, which pushes, and td_cuda_leave, which pops. Engines of one device and CUDA context
 * share one td_cuda_context, found in a registry whose lock is held over list work only. The primary context
 * has the id 0, which the driver's own ids never are, so that an id got before the context was made is still
 * its id afterwards; when a primary context is lost its successor gets another one.
 *
 * A free stalls the device and so every other load. Buffers that a load gives back lie idle for the next one,
 * bounded in number and bytes, and go with the last engine of the device.
 *
 * Between enter and leave the thread is in relaxed capture mode. In the default one not only an allocation
 * but a wait or a question to an event breaks a capture that another thread makes in global mode, and fails
 * itself (seen on an H200, driver 13.0).
 *
 * An error that says the context is gone for good is remembered. From then on nothing is released into it:
 * the driver has taken everything back. A primary context that was reset comes back with the same handle as
 * soon as anybody retains it, without the memory that it had; only its id tells (seen likewise).
 */
#include "cuda.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Numbers of the driver's interface. */
enum {
  CUDA_INVALID_VALUE = 1,
  CUDA_INVALID_CONTEXT = 201,
  CUDA_CONTEXT_IS_DESTROYED = 709,
  ATTRIBUTE_MAJOR = 75,
  ATTRIBUTE_MINOR = 76,
  ATTRIBUTE_PAGEABLE = 88,
  ATTRIBUTE_HOST_PAGE_TABLES = 100,
  MEMORY_HOST = 1,
  POOL_THRESHOLD = 4,
};

/* Idle bytes beyond this are freed at once. */
#define IDLE_BYTES_MAX ((size_t)64 << 20)

struct td_cuda_api td_cuda;

static _Atomic(const struct tandem_host *) the_host;

static struct tandem_host_lock open_lock;
static _Atomic bool opened;
static int32_t version; /* of the driver; constant once opened */
static _Atomic long process;

/* Of the calling thread: how deep it is in td_cuda_enter, and its capture mode outside of it. */
static _Thread_local unsigned entered;
static _Thread_local int32_t callers_mode;

static struct tandem_host_lock registry_lock;
static struct td_cuda_context *registry;       /* guarded by registry_lock */
static _Atomic uint64_t lost_primary_contexts; /* in this process so far */

const struct tandem_host *td_cuda_host(void) {
  return atomic_load_explicit(&the_host, memory_order_acquire);
}

void td_cuda_set_host(const struct tandem_host *host) {
  atomic_store_explicit(&the_host, host, memory_order_release);
}

void td_cuda_say(const struct tandem_vendor *vendor, enum tandem_log_level level, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  td_cuda_host()->log(vendor, level, TANDEM_OK, line);
}

/* ---------------------------------------------------------------- errors */

static const char *code_name(int32_t code) {
  const char *name = NULL;
  if (td_cuda.error_name == NULL || td_cuda.error_name(code, &name) != TD_CUDA_OK || name == NULL)
    return "an error that the driver has no name for";
  return name;
}

/* After these the context, or the driver, is of no use until the process starts anew or resets the device. */
static bool is_fatal(int32_t code) {
  switch (code) {
  case TD_CUDA_DEINITIALIZED:
  case 46:                   /* DEVICE_UNAVAILABLE */
  case CUDA_INVALID_CONTEXT: /* of ours, so it was reset */
  case 214:                  /* ECC_UNCORRECTABLE */
  case 220:                  /* NVLINK_UNCORRECTABLE */
  case 226:                  /* CONTAINED */
  case 700:                  /* ILLEGAL_ADDRESS */
  case 702:                  /* LAUNCH_TIMEOUT */
  case CUDA_CONTEXT_IS_DESTROYED:
  case 710: /* ASSERT */
  case 714: /* HARDWARE_STACK_ERROR */
  case 715: /* ILLEGAL_INSTRUCTION */
  case 716: /* MISALIGNED_ADDRESS */
  case 717: /* INVALID_ADDRESS_SPACE */
  case 718: /* INVALID_PC */
  case 719: /* LAUNCH_FAILED */
  case 721: /* TENSOR_MEMORY_LEAK */
  case 810: /* MPS_CLIENT_TERMINATED */
  case 911: /* EXTERNAL_DEVICE */
    return true;
  default:
    return false;
  }
}

/* Counted before it can be seen: who finds a primary context lost has to find another id for its successor,
 * also on a processor that does not order the two by itself. Two threads at once count one too many, which
 * skips an id. */
static void mark_lost(struct td_cuda_context *context) {
  if (td_cuda_lost(context))
    return;
  if (context->primary)
    atomic_fetch_add(&lost_primary_contexts, 1);
  atomic_store_explicit(&context->lost, 1, memory_order_release);
}

static enum tandem_status tell_lost(const struct td_cuda_context *context, const char *step,
                                    struct tandem_error *error) {
  return td_cuda_host()->fail(
      error, TANDEM_DEVICE_LOST,
      "cannot %s: the CUDA context of cuda:%d was reset or lost; destroy its loads, reset "
      "the device or restart the process, and load again",
      step, context->device_id);
}

enum tandem_status td_cuda_fail(struct td_cuda_context *context, int32_t code, const char *step,
                                struct tandem_error *error) {
  const struct tandem_host *host = td_cuda_host();
  if (code == TD_CUDA_OUT_OF_MEMORY)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "cannot %s: CUDA_ERROR_OUT_OF_MEMORY", step);
  if (code == TD_CUDA_DEINITIALIZED) {
    if (context != NULL)
      mark_lost(context);
    return host->fail(error, TANDEM_DEVICE_LOST,
                      "cannot %s: the CUDA driver is shutting down, since the process ends", step);
  }
  if (is_fatal(code)) {
    if (context != NULL)
      mark_lost(context);
    return host->fail(
        error, TANDEM_DEVICE_LOST,
        "cannot %s: %s (%d), after which the CUDA context is lost; destroy its loads, reset the "
        "device or restart the process, and load again",
        step, code_name(code), code);
  }
  return host->fail(error, TANDEM_DEVICE_ERROR, "cannot %s: %s (%d)", step, code_name(code), code);
}

bool td_cuda_lost(struct td_cuda_context *context) {
  return context == NULL || atomic_load_explicit(&context->lost, memory_order_acquire) != 0;
}

/* ---------------------------------------------------------------- open */

static enum tandem_status find_entries(void *library, const char *path, struct td_cuda_api *api,
                                       struct tandem_error *error) {
  const struct tandem_host *host = td_cuda_host();
  const char *missing = NULL;
  void *address;
#define FIND(member, symbol, parameters)                                                                     \
  address = host->library_symbol(library, #symbol);                                                          \
  memcpy(&api->member, &address, sizeof address);
#define NEED(member, symbol, parameters)                                                                     \
  FIND(member, symbol, parameters)                                                                           \
  if (address == NULL && missing == NULL)                                                                    \
    missing = #symbol;
  TD_CUDA_ENTRIES(NEED, FIND)
#undef NEED
#undef FIND
  if (missing != NULL)
    return host->fail(
        error, TANDEM_UNAVAILABLE,
        "the CUDA driver library %s has no %s; it is too old or no driver, install the driver of "
        "CUDA 12 or later",
        path, missing);
  return TANDEM_OK;
}

static enum tandem_status open_alone(struct tandem_error *error) {
  const struct tandem_host *host = td_cuda_host();
  const char *name = getenv("TANDEM_CUDA_LIBRARY");
  char path[512] = "";
  struct td_cuda_api api = {0};
  struct tandem_error reason = {0};
  bool given = name != NULL && name[0] != '\0';
  if (!given)
    name = "libcuda.so.1";
  void *library = host->library_open(name, path, sizeof path, &reason);
  if (library == NULL)
    return host->fail(error, TANDEM_UNAVAILABLE, "no CUDA driver: %s (%s)", reason.message,
                      given ? "named by TANDEM_CUDA_LIBRARY"
                            : "install NVIDIA's driver, or name its library in TANDEM_CUDA_LIBRARY");
  enum tandem_status status = find_entries(library, path, &api, error);
  if (status != TANDEM_OK)
    return status;
  td_cuda.error_name = api.error_name;
  int32_t code = api.init(0);
  if (code != TD_CUDA_OK)
    return host->fail(error, TANDEM_UNAVAILABLE, "the CUDA driver %s does not start: %s (%d)", path,
                      code_name(code), code);
  if (api.driver_version(&version) != TD_CUDA_OK)
    version = 0;
  td_cuda = api;
  atomic_store(&process, (long)getpid());
  atomic_store_explicit(&opened, true, memory_order_release);
  return TANDEM_OK;
}

enum tandem_status td_cuda_open(struct tandem_error *error) {
  const struct tandem_host *host = td_cuda_host();
  enum tandem_status status = TANDEM_OK;
  if (!atomic_load_explicit(&opened, memory_order_acquire)) {
    host->lock_alone(&open_lock);
    if (!atomic_load_explicit(&opened, memory_order_relaxed))
      status = open_alone(error);
    host->unlock(&open_lock);
    return status;
  }
  /* Before any lock: another thread of the parent may have held one at the fork. */
  if (atomic_load(&process) != (long)getpid())
    return host->fail(
        error, TANDEM_UNAVAILABLE,
        "CUDA was started by process %ld and does not work in process %ld, which was forked from "
        "it; load after the fork, or start workers with exec (Python: spawn)",
        atomic_load(&process), (long)getpid());
  return TANDEM_OK;
}

int32_t td_cuda_driver_version(void) {
  return td_cuda_open(NULL) == TANDEM_OK ? version : 0;
}

bool td_cuda_describe(int32_t device_id, struct td_cuda_facts *facts) {
  int32_t device;
  memset(facts, 0, sizeof *facts);
  if (td_cuda_open(NULL) != TANDEM_OK || td_cuda.device_count(&facts->device_count) != TD_CUDA_OK ||
      device_id < 0 || device_id >= facts->device_count ||
      td_cuda.device_get(&device, device_id) != TD_CUDA_OK)
    return false;
  return td_cuda.device_name(facts->name, sizeof facts->name, device) == TD_CUDA_OK &&
         td_cuda.device_attribute(&facts->major, ATTRIBUTE_MAJOR, device) == TD_CUDA_OK &&
         td_cuda.device_attribute(&facts->minor, ATTRIBUTE_MINOR, device) == TD_CUDA_OK;
}

static enum tandem_status find_device(int32_t device_id, int32_t *device, struct tandem_error *error) {
  int32_t count = 0;
  enum tandem_status status = td_cuda_open(error);
  if (status != TANDEM_OK)
    return status;
  int32_t code = td_cuda.device_count(&count);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(NULL, code, "count the CUDA devices", error);
  if (count == 0)
    return td_cuda_host()->fail(error, TANDEM_UNAVAILABLE,
                                "the load asks for CUDA device %d, this machine has no CUDA device",
                                device_id);
  if (device_id < 0 || device_id >= count)
    return td_cuda_host()->fail(
        error, TANDEM_UNSUPPORTED,
        "the load asks for CUDA device %d, this machine has the devices 0 to %d; "
        "export the program for one of them, or name one where the backend has an option for it",
        device_id, count - 1);
  code = td_cuda.device_get(device, device_id);
  return code == TD_CUDA_OK ? TANDEM_OK : td_cuda_fail(NULL, code, "find the CUDA device", error);
}

/* ---------------------------------------------------------------- contexts */

#define SUCCESSOR ((uint64_t)1 << 63) /* ids of primary contexts made after one was lost */

bool td_cuda_is_primary(uint64_t id) {
  return id == 0 || (id & SUCCESSOR) != 0;
}

static uint64_t next_primary_id(void) {
  uint64_t lost = atomic_load(&lost_primary_contexts);
  return lost > 0 ? SUCCESSOR | lost : 0;
}

static uint64_t driver_id(void *handle) {
  uint64_t id = 0;
  if (td_cuda.context_id == NULL || td_cuda.context_id(handle, &id) != TD_CUDA_OK)
    return 0;
  return id;
}

/* Looks without making a primary context that nobody has. */
static bool is_primary(void *handle, int32_t device) {
  uint32_t flags;
  int32_t active = 0;
  void *primary = NULL;
  if (td_cuda.primary_state(device, &flags, &active) != TD_CUDA_OK || active == 0 ||
      td_cuda.primary_retain(&primary, device) != TD_CUDA_OK)
    return false;
  td_cuda.primary_release(device);
  return primary == handle;
}

/* The calling thread's own context when it is of this device and not the primary one, else NULL. */
static enum tandem_status find_callers(int32_t device, void **handle, uint64_t *id,
                                       struct tandem_error *error) {
  int32_t found;
  *handle = NULL;
  int32_t code = td_cuda.context_current(handle);
  if (code == TD_CUDA_OK && *handle != NULL)
    code = td_cuda.context_device(&found);
  if (code != TD_CUDA_OK)
    return td_cuda_fail(NULL, code, "find the thread's CUDA context", error);
  if (*handle == NULL)
    return TANDEM_OK;
  if (found != device || is_primary(*handle, device)) {
    *handle = NULL;
    return TANDEM_OK;
  }
  /* A driver without ids is older than 12.0: there the address has to do. */
  *id = driver_id(*handle);
  if (*id == 0)
    *id = (uint64_t)(uintptr_t)*handle;
  return TANDEM_OK;
}

/* True when a context that was made earlier still works. */
static bool is_alive(struct td_cuda_context *context) {
  size_t free_bytes, total_bytes;
  if (td_cuda_enter(context, NULL) != TANDEM_OK)
    return false;
  if (is_fatal(td_cuda.memory_info(&free_bytes, &total_bytes)))
    mark_lost(context);
  td_cuda_leave(context);
  return !td_cuda_lost(context);
}

/* Finds a live one and counts a user in. `id` NULL: the primary one of the device. */
static struct td_cuda_context *find_context(int32_t device_id, const uint64_t *id) {
  struct td_cuda_context *found = NULL;
  td_cuda_host()->lock_alone(&registry_lock);
  for (struct td_cuda_context *each = registry; each != NULL && found == NULL; each = each->next)
    if (each->device_id == device_id && (id != NULL ? each->id == *id : each->primary) &&
        !td_cuda_lost(each)) {
      each->users++;
      found = each;
    }
  td_cuda_host()->unlock(&registry_lock);
  return found;
}

enum tandem_status td_cuda_resolve(int32_t device_id, uint64_t *context_id, struct tandem_error *error) {
  int32_t device;
  void *handle;
  *context_id = 0;
  enum tandem_status status = find_device(device_id, &device, error);
  if (status == TANDEM_OK)
    status = find_callers(device, &handle, context_id, error);
  if (status != TANDEM_OK)
    return status;
  struct td_cuda_context *known = find_context(device_id, handle != NULL ? context_id : NULL);
  bool alive = known != NULL && is_alive(known);
  if (handle == NULL)
    *context_id = alive ? known->id : next_primary_id();
  else if (known != NULL && !alive)
    status = tell_lost(known, "load", error);
  td_cuda_release(known);
  return status;
}

/* What a context keeps on its device, made with it so that no run has to. */
static enum tandem_status furnish(struct td_cuda_context *context, struct tandem_error *error) {
  int32_t pageable = 0, tables = 0;
  enum tandem_status status = td_cuda_enter(context, error);
  if (status != TANDEM_OK)
    return status;
  context->real_id = driver_id(context->handle);
  if (td_cuda.device_attribute(&pageable, ATTRIBUTE_PAGEABLE, context->device) != TD_CUDA_OK ||
      td_cuda.device_attribute(&tables, ATTRIBUTE_HOST_PAGE_TABLES, context->device) != TD_CUDA_OK)
    pageable = tables = 0;
  /* A device that faults pages in reads them too, many times slower than a copy: both have to be there. */
  context->reads_pageable = pageable != 0 && tables != 0;
  int32_t code = td_cuda_allocate(context, 256, &context->nothing);
  if (code != TD_CUDA_OK)
    status = td_cuda_fail(context, code, "allocate device memory", error);
  td_cuda_leave(context);
  return status;
}

static void destroy_context(struct td_cuda_context *context) {
  if (td_cuda_enter(context, NULL) == TANDEM_OK) {
    bool forget = td_cuda_lost(context);
    td_scratch_fini(context, forget);
    if (!forget)
      td_stream_fini(context);
    for (size_t i = 0; i < TD_CUDA_IDLE_MAX && !forget; i++)
      if (context->idle[i].address != 0)
        td_cuda.memory_free(context->idle[i].address);
    if (context->nothing != 0 && !forget)
      td_cuda.memory_free(context->nothing);
    td_cuda_leave(context);
  } else {
    td_scratch_fini(context, true);
  }
  if (context->primary && context->handle != NULL && !td_cuda_lost(context))
    td_cuda.primary_release(context->device);
  td_cuda_host()->release(context);
}

enum tandem_status td_cuda_acquire(int32_t device_id, uint64_t context_id, struct td_cuda_context **context,
                                   struct tandem_error *error) {
  const struct tandem_host *host = td_cuda_host();
  int32_t device = 0;
  uint64_t callers_id = 0;
  *context = NULL;
  enum tandem_status status = find_device(device_id, &device, error);
  if (status != TANDEM_OK)
    return status;
  *context = find_context(device_id, &context_id);
  if (*context != NULL)
    return TANDEM_OK;
  struct td_cuda_context *made = host->allocate(sizeof *made), *found = NULL;
  if (made == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for a CUDA context's record");
  made->device_id = device_id;
  made->device = device;
  made->id = context_id;
  made->primary = td_cuda_is_primary(context_id);
  made->users = 1;
  if (made->primary) {
    int32_t code = td_cuda.primary_retain(&made->handle, device);
    if (code != TD_CUDA_OK) {
      made->handle = NULL;
      status = td_cuda_fail(NULL, code, "retain the device's primary CUDA context", error);
    }
  } else {
    status = find_callers(device, &made->handle, &callers_id, error);
    if (status == TANDEM_OK && (made->handle == NULL || callers_id != context_id))
      status = host->fail(error, TANDEM_INVALID_STATE,
                          "the CUDA context with id %" PRIu64 " is not current on this thread any more",
                          context_id);
  }
  if (status == TANDEM_OK)
    status = furnish(made, error);
  if (status == TANDEM_OK) {
    host->lock_alone(&registry_lock);
    for (found = registry; found != NULL; found = found->next)
      if (found->device_id == device_id && found->id == context_id && !td_cuda_lost(found))
        break;
    if (found != NULL) {
      found->users++;
    } else {
      made->next = registry;
      registry = made;
    }
    host->unlock(&registry_lock);
  }
  if (status != TANDEM_OK || found != NULL)
    destroy_context(made);
  if (status == TANDEM_OK)
    *context = found != NULL ? found : made;
  return status;
}

void td_cuda_release(struct td_cuda_context *context) {
  const struct tandem_host *host = td_cuda_host();
  if (context == NULL)
    return;
  host->lock_alone(&registry_lock);
  bool last = --context->users == 0;
  for (struct td_cuda_context **each = &registry; last && *each != NULL; each = &(*each)->next)
    if (*each == context) {
      *each = context->next;
      break;
    }
  host->unlock(&registry_lock);
  if (last)
    destroy_context(context);
}

/* Whether the context that was just pushed is the one that it was. */
static int32_t check_life(struct td_cuda_context *context) {
  uint64_t id = 0;
  if (context->real_id == 0)
    return TD_CUDA_OK;
  int32_t code = td_cuda.context_id(context->handle, &id);
  if (code == TD_CUDA_OK && id != context->real_id)
    code = CUDA_CONTEXT_IS_DESTROYED;
  return is_fatal(code) ? code : TD_CUDA_OK;
}

enum tandem_status td_cuda_enter(struct td_cuda_context *context, struct tandem_error *error) {
  static const char step[] = "enter the CUDA context";
  if (context == NULL)
    return td_cuda_host()->fail(error, TANDEM_UNAVAILABLE, "there is no CUDA context");
  if (td_cuda_lost(context))
    return tell_lost(context, step, error);
  int32_t code = td_cuda.context_push(context->handle);
  /* No stream and no address is involved: what it does not take is a handle that is no context any more. */
  if (code == CUDA_INVALID_VALUE)
    code = CUDA_INVALID_CONTEXT;
  if (code != TD_CUDA_OK)
    return td_cuda_fail(context, code, step, error);
  code = check_life(context);
  if (code != TD_CUDA_OK) {
    void *popped;
    td_cuda.context_pop(&popped);
    return td_cuda_fail(context, code, step, error);
  }
  if (entered++ == 0) {
    int32_t mode = TD_CUDA_CAPTURE_RELAXED;
    callers_mode = td_cuda.capture_mode(&mode) == TD_CUDA_OK ? mode : TD_CUDA_CAPTURE_RELAXED;
  }
  return TANDEM_OK;
}

void td_cuda_leave(struct td_cuda_context *context) {
  void *popped;
  (void)context;
  if (--entered == 0 && callers_mode != TD_CUDA_CAPTURE_RELAXED)
    td_cuda.capture_mode(&(int32_t){callers_mode});
  td_cuda.context_pop(&popped);
}

int32_t td_cuda_capture_mode(int32_t mode) {
  return td_cuda.capture_mode(&mode) == TD_CUDA_OK ? mode : TD_CUDA_CAPTURE_RELAXED;
}

/* Asked when memory is short, so nothing is allocated for it. */
enum tandem_status td_cuda_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                  uint64_t *total_bytes, struct tandem_error *error) {
  int device_id;
  int32_t device;
  void *handle = NULL, *popped;
  uint64_t id = 0;
  size_t free_size = 0, total_size = 0;
  bool primary = td_cuda_is_primary(resolution->context_id);
  *free_bytes = *total_bytes = 0;
  if (sscanf(resolution->device, "cuda:%d", &device_id) != 1)
    return td_cuda_host()->fail(error, TANDEM_INVALID_ARGUMENT, "\"%s\" is no CUDA device",
                                resolution->device);
  enum tandem_status status = find_device(device_id, &device, error);
  if (status != TANDEM_OK)
    return status;
  struct td_cuda_context *known = find_context(device_id, &resolution->context_id);
  int32_t code = TD_CUDA_OK;
  if (known != NULL)
    handle = known->handle;
  else if (primary)
    code = td_cuda.primary_retain(&handle, device);
  else
    status = find_callers(device, &handle, &id, error);
  if (status == TANDEM_OK && code == TD_CUDA_OK && handle != NULL) {
    code = td_cuda.context_push(handle);
    if (code == TD_CUDA_OK) {
      code = td_cuda.memory_info(&free_size, &total_size);
      td_cuda.context_pop(&popped);
    }
    if (known == NULL && primary)
      td_cuda.primary_release(device);
  }
  if (status == TANDEM_OK && (code != TD_CUDA_OK || handle == NULL))
    status = td_cuda_fail(known, code != TD_CUDA_OK ? code : CUDA_INVALID_CONTEXT,
                          "read how much device memory is free", error);
  td_cuda_release(known);
  *free_bytes = free_size;
  *total_bytes = total_size;
  return status;
}

/* ---------------------------------------------------------------- memory */

struct td_cuda_pointer td_cuda_locate(struct td_cuda_context *context, const void *data, size_t size) {
  struct td_cuda_pointer pointer = {
      .address = (uint64_t)(uintptr_t)data, .owner = context->device_id, .inside = size};
  uint32_t type = 0, managed = 0;
  int32_t owner = -1;
  uint64_t device_address = 0, begin = 0;
  size_t extent = 0;
  /* The last two tell where registered memory ends: a tensor may begin inside and end outside of it. */
  int32_t attributes[] = {2 /* MEMORY_TYPE */,    3 /* DEVICE_POINTER */,    8 /* IS_MANAGED */,
                          9 /* DEVICE_ORDINAL */, 11 /* RANGE_START_ADDR */, 12 /* RANGE_SIZE */};
  void *values[] = {&type, &device_address, &managed, &owner, &begin, &extent};
  int32_t code =
      td_cuda.pointer_attributes(sizeof attributes / sizeof *attributes, attributes, values, pointer.address);
  if (code != TD_CUDA_OK)
    type = 0; /* not an address that the driver knows */
  pointer.managed = type != 0 && managed != 0;
  if (type == 0) {
    pointer.place = context->reads_pageable ? TD_CUDA_MAPPED : TD_CUDA_HOST;
  } else if (pointer.managed) {
    pointer.place = TD_CUDA_DEVICE;
  } else if (type == MEMORY_HOST) {
    uint64_t at = pointer.address - begin;
    if (extent > 0 && at < extent && size > extent - at)
      pointer.inside = (size_t)(extent - at);
    if (device_address != 0 && pointer.inside == size) {
      pointer.place = TD_CUDA_MAPPED;
      pointer.address = device_address;
    } else {
      pointer.place = context->reads_pageable ? TD_CUDA_MAPPED : TD_CUDA_HOST;
    }
  } else {
    pointer.place = device_address != 0 ? TD_CUDA_DEVICE : TD_CUDA_FOREIGN;
    pointer.owner = owner;
    if (device_address != 0)
      pointer.address = device_address;
  }
  return pointer;
}

/* Part by part: the driver takes no copy that leaves a registration. */
int32_t td_cuda_copy_host(struct td_cuda_context *context, uint64_t device, void *host, size_t size, bool out,
                          void *stream) {
  int32_t code = TD_CUDA_OK;
  while (code == TD_CUDA_OK && size > 0) {
    size_t part = td_cuda_locate(context, host, size).inside;
    code = out ? td_cuda.copy_out(host, device, part, stream) : td_cuda.copy_in(device, host, part, stream);
    host = (unsigned char *)host + part;
    device += part;
    size -= part;
  }
  return code;
}

void td_cuda_free(struct td_cuda_context *context, uint64_t address) {
  if (address != 0 && !td_cuda_lost(context))
    td_cuda.memory_free(address);
}

/* Frees everything idle; whether there was any. */
static bool trim_idle(struct td_cuda_context *context) {
  struct td_cuda_buffer freed[TD_CUDA_IDLE_MAX];
  bool any = false;
  td_cuda_host()->lock_alone(&context->idle_lock);
  memcpy(freed, context->idle, sizeof freed);
  memset(context->idle, 0, sizeof context->idle);
  context->idle_bytes = 0;
  td_cuda_host()->unlock(&context->idle_lock);
  for (size_t i = 0; i < TD_CUDA_IDLE_MAX; i++)
    if (freed[i].address != 0) {
      td_cuda_free(context, freed[i].address);
      any = true;
    }
  return any;
}

/* The pool with the default threshold of 0 unmaps all its memory whenever a wait finds it unused, which is
 * after every run of an engine that allocates as it runs, and the next run maps it again. The number is more
 * than any device has, of no granularity that a driver could round it to, and not UINT64_MAX, which
 * applications choose: only what is found to be ours is set back. */
static const uint64_t held_threshold = (uint64_t)1 << 62;

void td_cuda_hold_pool(struct td_cuda_context *context) {
  void *pool;
  uint64_t threshold = held_threshold;
  bool alive = td_cuda_enter(context, NULL) == TANDEM_OK;
  td_cuda_host()->lock_alone(&context->pool_lock);
  if (context->pool_users++ == 0 && alive && td_cuda.pool_default(&pool, context->device) == TD_CUDA_OK &&
      td_cuda.pool_get(pool, POOL_THRESHOLD, &context->pool_threshold) == TD_CUDA_OK &&
      context->pool_threshold < held_threshold &&
      td_cuda.pool_set(pool, POOL_THRESHOLD, &threshold) == TD_CUDA_OK)
    context->pool = pool;
  td_cuda_host()->unlock(&context->pool_lock);
  if (alive)
    td_cuda_leave(context);
}

/* Unmaps what of the pool's memory, and of recorded runs', nothing uses. Whether there may have been any. */
static bool trim_pool_locked(struct td_cuda_context *context, size_t keep) {
  if (context->pool == NULL)
    return false;
  td_cuda.pool_trim(context->pool, keep);
  if (td_cuda.graph_trim != NULL)
    td_cuda.graph_trim(context->device);
  return true;
}

void td_cuda_drop_pool(struct td_cuda_context *context) {
  uint64_t now;
  bool alive = td_cuda_enter(context, NULL) == TANDEM_OK;
  td_cuda_host()->lock_alone(&context->pool_lock);
  if (--context->pool_users == 0 && context->pool != NULL) {
    if (alive && td_cuda.pool_get(context->pool, POOL_THRESHOLD, &now) == TD_CUDA_OK &&
        now == held_threshold) {
      td_cuda.pool_set(context->pool, POOL_THRESHOLD, &context->pool_threshold);
      trim_pool_locked(context, (size_t)context->pool_threshold);
    }
    context->pool = NULL;
  }
  td_cuda_host()->unlock(&context->pool_lock);
  if (alive)
    td_cuda_leave(context);
}

static bool trim_pool(struct td_cuda_context *context) {
  td_cuda_host()->lock_alone(&context->pool_lock);
  bool any = trim_pool_locked(context, 0);
  td_cuda_host()->unlock(&context->pool_lock);
  return any;
}

/* Whether there may have been any. */
static bool give_up_idle(struct td_cuda_context *context) {
  bool idle = trim_idle(context);
  bool scratch = td_scratch_trim(context, 0);
  bool pool = trim_pool(context);
  return idle || scratch || pool;
}

void td_cuda_make_room(struct td_cuda_context *context, size_t size) {
  size_t free_bytes, total_bytes;
  if (td_cuda.memory_info(&free_bytes, &total_bytes) == TD_CUDA_OK && free_bytes < size)
    give_up_idle(context);
}

int32_t td_cuda_allocate(struct td_cuda_context *context, size_t size, uint64_t *address) {
  *address = 0;
  int32_t code = td_cuda.memory_allocate(address, size);
  if (code == TD_CUDA_OUT_OF_MEMORY && give_up_idle(context))
    code = td_cuda.memory_allocate(address, size);
  if (code != TD_CUDA_OK)
    *address = 0;
  return code;
}

int32_t td_cuda_take(struct td_cuda_context *context, size_t size, struct td_cuda_buffer *buffer) {
  size_t best = TD_CUDA_IDLE_MAX;
  if (size > SIZE_MAX - 511)
    return TD_CUDA_OUT_OF_MEMORY;
  size = (size + 511) & ~(size_t)511; /* what the driver rounds to anyway */
  td_cuda_host()->lock_alone(&context->idle_lock);
  for (size_t i = 0; i < TD_CUDA_IDLE_MAX; i++) {
    const struct td_cuda_buffer *idle = &context->idle[i];
    /* One much too large would be missed by the tensor that it was made for. */
    if (idle->address != 0 && idle->size >= size && idle->size - size <= size / 4 + 4096 &&
        (best == TD_CUDA_IDLE_MAX || idle->size < context->idle[best].size))
      best = i;
  }
  if (best < TD_CUDA_IDLE_MAX) {
    *buffer = context->idle[best];
    context->idle_bytes -= buffer->size;
    context->idle[best] = (struct td_cuda_buffer){0};
  }
  td_cuda_host()->unlock(&context->idle_lock);
  if (best < TD_CUDA_IDLE_MAX)
    return TD_CUDA_OK;
  int32_t code = td_cuda_allocate(context, size, &buffer->address);
  buffer->size = code == TD_CUDA_OK ? size : 0;
  return code;
}

void td_cuda_give(struct td_cuda_context *context, struct td_cuda_buffer *buffer) {
  struct td_cuda_buffer given = *buffer;
  *buffer = (struct td_cuda_buffer){0};
  if (given.address == 0)
    return;
  td_cuda_host()->lock_alone(&context->idle_lock);
  for (size_t i = 0; i < TD_CUDA_IDLE_MAX && given.address != 0; i++)
    if (context->idle[i].address == 0 && given.size <= IDLE_BYTES_MAX - context->idle_bytes) {
      context->idle[i] = given;
      context->idle_bytes += given.size;
      given.address = 0;
    }
  td_cuda_host()->unlock(&context->idle_lock);
  td_cuda_free(context, given.address);
}
