/* The registry of vendors, the state of their libraries, and what the host gives them.
 *
 * A vendor's library is opened by the first load that needs it, by one thread at a time, outside the lock;
 * a failure is not remembered, so that a library installed or repaired later is found by the next load.
 * Libraries stay open for the life of the process: their threads and thread-local destructors outlive loads.
 * A vendor may give back only what is the code of one engine.
 * This is the only source with dlopen.
 */
#include "base.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VENDORS_MAX = 16 };

extern const struct tandem_vendor td_vendor_aotinductor;
extern const struct tandem_vendor td_vendor_aotinductor_cuda;
extern const struct tandem_vendor td_vendor_openvino;
extern const struct tandem_vendor td_vendor_tensorrt;

enum library_state { LIBRARY_CLOSED, LIBRARY_OPENING, LIBRARY_OPEN };

struct slot {
  struct tandem_vendor vendor;          /* a copy, optional entries filled in; constant once published */
  struct tandem_vendor_library library; /* constant once open */
  enum library_state state;             /* guarded by registry_lock */
  uint64_t opener;                      /* thread that opens it; guarded by registry_lock */
};

static struct td_mutex registry_lock;
static struct td_cond registry_changed;
static struct slot slots[VENDORS_MAX]; /* the first slot_count are published */
static size_t slot_count;              /* guarded by registry_lock; only grows */

/* ---------------------------------------------------------------- optional entries */

static void describe_nothing(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {
  (void)payload, (void)fact, (void)user;
}

static enum tandem_status reset_nothing(void *context, struct tandem_error *error) {
  (void)context, (void)error;
  return TANDEM_OK;
}

static enum tandem_status memory_unknown(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                         uint64_t *total_bytes, struct tandem_error *error) {
  *free_bytes = *total_bytes = 0;
  return td_fail(error, TANDEM_UNSUPPORTED, "the vendor does not tell the memory of %s", resolution->device);
}

/* ---------------------------------------------------------------- host services */

/* The error of a library that is not there is NOT_FOUND: a search goes on to the next place. */
static void *open_library(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  if (path != NULL && path_size > 0)
    path[0] = '\0';
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *reason = dlerror();
    if (reason == NULL)
      reason = "the loader gives no reason";
    bool missing = strstr(reason, "No such file") != NULL && strncmp(reason, name, strlen(name)) == 0;
    td_fail(error, missing ? TANDEM_NOT_FOUND : TANDEM_UNAVAILABLE, "cannot open the library %s: %s", name,
            reason);
    return NULL;
  }
  struct link_map *map = NULL;
  if (path != NULL && path_size > 0 && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) {
    char *real = realpath(map->l_name, NULL);
    snprintf(path, path_size, "%s", real != NULL ? real : map->l_name);
    free(real);
  }
  td_clear(error);
  return library;
}

static void *find_symbol(void *library, const char *name) {
  return dlsym(library, name);
}

static void close_library(void *library) {
  if (library != NULL)
    dlclose(library);
}

const struct tandem_host td_host = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_host),
    .log = td_log_vendor,
    .fail = td_fail,
    .allocate = td_alloc,
    .release = td_free,
    .library_open = open_library,
    .library_symbol = find_symbol,
    .wait_begin = td_wait_begin,
    .wait_end = td_wait_end,
    .lock_alone = td_host_lock_alone,
    .lock_shared = td_host_lock_shared,
    .unlock = td_host_unlock,
    .try_lock_alone = td_host_try_lock_alone,
    .library_close = close_library,
    .sha256 = tandem_sha256,
};

/* ---------------------------------------------------------------- registry */

static const char *missing_entry(const struct tandem_vendor *vendor) {
  return vendor->name == NULL || vendor->name[0] == '\0'         ? "name"
         : vendor->backend == NULL || vendor->backend[0] == '\0' ? "backend"
         : vendor->open == NULL                                  ? "open"
         : vendor->parse == NULL                                 ? "parse"
         : vendor->payload_destroy == NULL                       ? "payload_destroy"
         : vendor->resolve == NULL                               ? "resolve"
         : vendor->build == NULL                                 ? "build"
         : vendor->engine_destroy == NULL                        ? "engine_destroy"
         : vendor->context_create == NULL                        ? "context_create"
         : vendor->context_destroy == NULL                       ? "context_destroy"
         : vendor->run == NULL                                   ? "run"
                                                                 : NULL;
}

/* A row that would mislead the option table is refused here, where its author sees it. */
static enum tandem_status check_options(const struct tandem_vendor *vendor, struct tandem_error *error) {
  if (vendor->option_count > TD_VENDOR_OPTIONS_MAX || (vendor->option_count > 0 && vendor->options == NULL))
    return td_fail(error, TANDEM_INVALID_ARGUMENT,
                   "the vendor %s declares %zu options, at most %d are possible", vendor->name,
                   vendor->option_count, TD_VENDOR_OPTIONS_MAX);
  for (size_t i = 0; i < vendor->option_count; i++) {
    const struct tandem_vendor_option *option = &vendor->options[i];
    if (option->name == NULL || option->name[0] == '\0')
      return td_fail(error, TANDEM_INVALID_ARGUMENT, "option %zu of the vendor %s has no name", i,
                     vendor->name);
    if (option->kind < TANDEM_OPTION_TEXT || option->kind > TANDEM_OPTION_CHOICE)
      return td_fail(error, TANDEM_INVALID_ARGUMENT, "option %s of the vendor %s has the unknown kind %d",
                     option->name, vendor->name, (int)option->kind);
    if (option->kind == TANDEM_OPTION_CHOICE && (option->choices == NULL || option->choices[0] == '\0'))
      return td_fail(error, TANDEM_INVALID_ARGUMENT, "option %s of the vendor %s is a choice without choices",
                     option->name, vendor->name);
    if (td_options_is_core(option->name))
      return td_fail(error, TANDEM_INVALID_ARGUMENT,
                     "option %s of the vendor %s is one of tandem's own; rename it", option->name,
                     vendor->name);
  }
  return TANDEM_OK;
}

static struct slot *find_locked(const char *name) {
  for (size_t i = 0; i < slot_count; i++)
    if (strcmp(slots[i].vendor.backend, name) == 0 || strcmp(slots[i].vendor.name, name) == 0)
      return &slots[i];
  return NULL;
}

static enum tandem_status add(const struct tandem_vendor *vendor, struct tandem_error *error) {
  if (vendor == NULL)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "no vendor was given");
  if (vendor->abi_version != TANDEM_VENDOR_ABI || vendor->struct_size != sizeof *vendor)
    return td_fail(
        error, TANDEM_INVALID_ARGUMENT,
        "the vendor was built for vendor ABI %u with a table of %u bytes, this tandem has ABI %u with "
        "%zu bytes; build it with this tandem's vendor.h",
        vendor->abi_version, vendor->struct_size, TANDEM_VENDOR_ABI, sizeof *vendor);
  const char *missing = missing_entry(vendor);
  if (missing != NULL)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "the vendor table lacks %s, which is mandatory", missing);
  enum tandem_status status = check_options(vendor, error);
  if (status != TANDEM_OK)
    return status;
  td_mutex_lock(&registry_lock);
  bool taken = find_locked(vendor->name) != NULL || find_locked(vendor->backend) != NULL;
  bool full = slot_count == VENDORS_MAX;
  if (!taken && !full) {
    struct slot *slot = &slots[slot_count];
    slot->vendor = *vendor;
    if (slot->vendor.describe == NULL)
      slot->vendor.describe = describe_nothing;
    if (slot->vendor.reset == NULL)
      slot->vendor.reset = reset_nothing;
    if (slot->vendor.memory == NULL)
      slot->vendor.memory = memory_unknown;
    slot_count++;
  }
  td_mutex_unlock(&registry_lock);
  if (taken)
    status = td_fail(error, TANDEM_INVALID_STATE, "a vendor is registered already as %s or for %s",
                     vendor->name, vendor->backend);
  else if (full)
    status =
        td_fail(error, TANDEM_INVALID_STATE, "%d vendors are registered already, no more fit", VENDORS_MAX);
  return status;
}

static void add_builtin(void) {
  add(&td_vendor_openvino, NULL);
  add(&td_vendor_tensorrt, NULL);
  add(&td_vendor_aotinductor, NULL);
  add(&td_vendor_aotinductor_cuda, NULL);
}

static void ensure_builtin(void) {
  static int once;
  td_once(&once, add_builtin);
}

enum tandem_status tandem_vendor_register(const struct tandem_vendor *vendor, struct tandem_error *error) {
  int cancel = td_cancel_disable();
  td_clear(error);
  ensure_builtin();
  enum tandem_status status = add(vendor, error);
  td_cancel_restore(cancel);
  return status;
}

const struct tandem_vendor *td_vendor_at(size_t index) {
  ensure_builtin();
  td_mutex_lock(&registry_lock);
  const struct tandem_vendor *vendor = index < slot_count ? &slots[index].vendor : NULL;
  td_mutex_unlock(&registry_lock);
  return vendor;
}

enum tandem_status td_vendor_find(const char *name, const struct tandem_vendor **vendor,
                                  struct tandem_error *error) {
  ensure_builtin();
  *vendor = NULL;
  char known[700] = "";
  size_t used = 0;
  td_mutex_lock(&registry_lock);
  struct slot *slot = find_locked(name);
  for (size_t i = 0; slot == NULL && i < slot_count && used < sizeof known; i++)
    used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "",
                             slots[i].vendor.backend);
  td_mutex_unlock(&registry_lock);
  if (slot == NULL)
    return td_fail(error, TANDEM_NOT_FOUND, "no vendor is registered for %.200s, expected one of %s", name,
                   known);
  *vendor = &slot->vendor;
  return TANDEM_OK;
}

static struct slot *slot_of(const struct tandem_vendor *vendor) {
  return (struct slot *)(void *)((char *)(uintptr_t)vendor - offsetof(struct slot, vendor));
}

/* True when this thread is to open the library; waits while another one does. */
static bool claim(struct slot *slot, bool *reentered) {
  uint64_t self = td_thread_id();
  *reentered = false;
  for (;;) {
    td_mutex_lock(&registry_lock);
    enum library_state state = slot->state;
    *reentered = state == LIBRARY_OPENING && slot->opener == self;
    if (state == LIBRARY_CLOSED) {
      slot->state = LIBRARY_OPENING;
      slot->opener = self;
    }
    td_mutex_unlock(&registry_lock);
    if (state != LIBRARY_OPENING || *reentered)
      return state == LIBRARY_CLOSED;
    td_wait_begin();
    td_mutex_lock(&registry_lock);
    while (slot->state == LIBRARY_OPENING)
      td_cond_wait(&registry_changed, &registry_lock);
    td_mutex_unlock(&registry_lock);
    td_wait_end();
  }
}

enum tandem_status td_vendor_open(const struct tandem_vendor *vendor, struct td_lines *lines,
                                  const struct tandem_vendor_library **library, struct tandem_error *error) {
  struct slot *slot = slot_of(vendor);
  bool reentered = false;
  *library = NULL;
  enum tandem_status status = td_call_check_fork(vendor, error);
  if (status != TANDEM_OK)
    return status;
  if (claim(slot, &reentered)) {
    struct tandem_vendor_library found;
    memset(&found, 0, sizeof found);
    struct td_call call;
    td_call_begin(&call, vendor, lines);
    status = td_call_end(&call, vendor->open(&td_host, &found, error), "open the vendor's library", error);
    td_mutex_lock(&registry_lock);
    if (status == TANDEM_OK)
      slot->library = found;
    slot->state = status == TANDEM_OK ? LIBRARY_OPEN : LIBRARY_CLOSED;
    td_cond_broadcast(&registry_changed);
    td_mutex_unlock(&registry_lock);
    if (status != TANDEM_OK)
      return status;
  }
  if (reentered)
    return td_fail(error, TANDEM_INVALID_STATE, "the library of %s is being opened by this very thread",
                   vendor->name);
  *library = &slot->library;
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- public views */

size_t tandem_vendor_count(void) {
  int cancel = td_cancel_disable();
  ensure_builtin();
  td_mutex_lock(&registry_lock);
  size_t count = slot_count;
  td_mutex_unlock(&registry_lock);
  td_cancel_restore(cancel);
  return count;
}

const char *tandem_vendor_backend(size_t index) {
  int cancel = td_cancel_disable();
  const struct tandem_vendor *vendor = td_vendor_at(index);
  td_cancel_restore(cancel);
  return vendor != NULL ? vendor->backend : NULL;
}

enum tandem_status tandem_vendor_get_info(size_t index, struct tandem_vendor_info *info,
                                          struct tandem_error *error) {
  int cancel = td_cancel_disable();
  td_clear(error);
  enum tandem_status status = TANDEM_OK;
  const struct tandem_vendor *vendor = td_vendor_at(index);
  if (info == NULL || info->struct_size != sizeof *info)
    status = td_fail(error, TANDEM_INVALID_ARGUMENT, "info->struct_size is %zu, expected %zu",
                     info != NULL ? info->struct_size : 0, sizeof *info);
  else if (vendor == NULL)
    status = td_fail(error, TANDEM_INVALID_ARGUMENT, "no vendor has index %zu, there are %zu", index,
                     tandem_vendor_count());
  if (status == TANDEM_OK) {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    snprintf(info->name, sizeof info->name, "%s", vendor->name);
    snprintf(info->backend, sizeof info->backend, "%s", vendor->backend);
    const struct tandem_vendor_library *library;
    struct tandem_error reason;
    struct td_lines *lines = td_lines_create(vendor->name, td_options_log_level());
    info->available = td_vendor_open(vendor, lines, &library, &reason) == TANDEM_OK;
    if (info->available) {
      snprintf(info->version, sizeof info->version, "%s", library->version);
      snprintf(info->path, sizeof info->path, "%s", library->path);
    } else {
      snprintf(info->reason, sizeof info->reason, "%s", reason.message);
    }
    td_lines_destroy(lines);
  }
  td_cancel_restore(cancel);
  return status;
}

/* For whoever only looks at a payload: the vendor's sentence is the error as it is. A fork meanwhile knows of
 * the call. */
static enum tandem_status look_into_payload(const struct tandem_vendor *vendor, const void *payload,
                                            size_t size, const struct tandem_named_data *named_data,
                                            struct tandem_payload *parsed, struct tandem_error *error) {
  enum tandem_status status = td_call_check_fork(vendor, error);
  if (status != TANDEM_OK)
    return status;
  struct td_call call;
  td_call_begin(&call, vendor, NULL);
  status = vendor->parse(&td_host, payload, size, named_data, parsed, error);
  td_call_end(&call, TANDEM_OK, "read the payload", NULL);
  return status;
}

enum tandem_status tandem_payload_describe(const char *backend, const void *payload, size_t size,
                                           tandem_fact_fn fact, void *user, struct tandem_error *error) {
  int cancel = td_cancel_disable();
  td_clear(error);
  const struct tandem_vendor *vendor = NULL;
  enum tandem_status status;
  if (backend == NULL || (payload == NULL && size > 0) || fact == NULL)
    status = td_fail(error, TANDEM_INVALID_ARGUMENT, "backend, payload and fact must be given");
  else
    status = td_vendor_find(backend, &vendor, error);
  struct tandem_payload parsed = {0};
  if (status == TANDEM_OK)
    status = look_into_payload(vendor, payload, size, NULL, &parsed, error);
  if (status == TANDEM_OK) {
    vendor->describe(&parsed, fact, user);
    vendor->payload_destroy(&parsed);
  }
  td_cancel_restore(cancel);
  return status;
}

struct tandem_part *td_payload_parts(const struct tandem_payload *payload, struct tandem_error *error) {
  struct tandem_part *parts = td_alloc((payload->part_count + 1) * sizeof *parts);
  if (parts == NULL) {
    td_fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the parts of a payload");
    return NULL;
  }
  parts[0] = (struct tandem_part){payload->engine, payload->engine_size};
  for (size_t i = 0; i < payload->part_count; i++)
    parts[i + 1] = payload->parts[i];
  return parts;
}

/* Given where the caller has none: a vendor then refuses a payload that needs some, where NULL lets it read
 * the payload without. */
static enum tandem_status get_nothing(void *user, const char *key, const void **data, size_t *size,
                                      void **token) {
  (void)user;
  (void)key;
  *data = NULL;
  *size = 0;
  *token = NULL;
  return TANDEM_MISSING_DATA;
}

static void release_nothing(void *user, void *token) {
  (void)user;
  (void)token;
}

enum tandem_status tandem_payload_sha256(const char *backend, const void *payload, size_t size,
                                         const struct tandem_named_data *named_data, char hex[65],
                                         struct tandem_error *error) {
  int cancel = td_cancel_disable();
  const struct tandem_named_data nothing = {get_nothing, release_nothing, NULL};
  const struct tandem_vendor *vendor = NULL;
  struct tandem_payload parsed = {0};
  struct tandem_part *parts = NULL;
  enum tandem_status status;
  td_clear(error);
  if (backend == NULL || (payload == NULL && size > 0) || hex == NULL)
    status = td_fail(error, TANDEM_INVALID_ARGUMENT, "backend, payload and hex must be given");
  else
    status = td_vendor_find(backend, &vendor, error);
  if (status != TANDEM_OK)
    goto done;
  status =
      look_into_payload(vendor, payload, size, named_data != NULL ? named_data : &nothing, &parsed, error);
  if (status != TANDEM_OK)
    goto done;
  parts = td_payload_parts(&parsed, error);
  status = parts != NULL ? td_sha256_parts(parts, parsed.part_count + 1, hex, error) : TANDEM_OUT_OF_MEMORY;
  td_free(parts);
  vendor->payload_destroy(&parsed);

done:
  td_cancel_restore(cancel);
  return status;
}

/* ---------------------------------------------------------------- fork */

void td_vendor_fork_lock(void) {
  td_mutex_lock(&registry_lock);
}

void td_vendor_fork_unlock(void) {
  td_mutex_unlock(&registry_lock);
}

/* A library that another thread was opening is closed for the child: that thread does not exist here. Gives
 * the lock back. */
void td_vendor_fork_child(void) {
  registry_changed = (struct td_cond){{0}};
  for (size_t i = 0; i < slot_count; i++)
    if (slots[i].state == LIBRARY_OPENING && slots[i].opener != td_thread_id())
      slots[i].state = LIBRARY_CLOSED;
  td_mutex_unlock(&registry_lock);
}
