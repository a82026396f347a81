/* An engine: one compiled model, imported under a core that carries the load's options.
 *
 * OpenVINO's C import takes no properties. They are set on the core before it and change nothing in models
 * imported earlier, so each set of options has a core of its own, kept for the process: a core costs up to
 * 6 ms and 0.02 MiB. The list of cores only grows at its head, by one compare-and-swap, and nothing is ever
 * taken out, so that readers need no lock, no thread can be caught holding one by fork, and OpenVINO is
 * never called under one. Sets beyond CORES_MAX get a core that dies with its engine.
 *
 * A payload of another OpenVINO or another processor is refused by OpenVINO itself, which knows best what it
 * can run; this file only turns that into a line that names both and the remedy.
 */
#include "openvino.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CORES_MAX = 64, TEXT_MAX = 384 };

struct core {
  struct core *next; /* constant once in the list */
  unsigned depth;    /* cores in the list up to here */
  struct ov_core *handle;
  char text[TEXT_MAX]; /* device and options */
};

static _Atomic(struct core *) cores;

struct engine {
  struct ov_compiled_model *model; /* owned */
  struct core *private_core;       /* owned; NULL when the core is in the list */
};

/* ---------------------------------------------------------------- options */

static const struct {
  int option;
  const char *key; /* in the canonical text */
  const char *property;
} properties[] = {
    {TD_OPENVINO_PRECISION, "precision", "INFERENCE_PRECISION_HINT"},
    {TD_OPENVINO_STREAMS, "num_streams", "NUM_STREAMS"},
    {TD_OPENVINO_THREADS, "num_threads", "INFERENCE_NUM_THREADS"},
    {TD_OPENVINO_HINT, "performance_hint", "PERFORMANCE_HINT"},
    {TD_OPENVINO_PINNING, "cpu_pinning", "ENABLE_CPU_PINNING"},
};
enum { PROPERTY_COUNT = sizeof properties / sizeof properties[0] };

/* What the user writes and what OpenVINO wants. */
static const struct {
  int option;
  const char *written, *wanted;
} spellings[] = {
    {TD_OPENVINO_PRECISION, "f32", "f32"},
    {TD_OPENVINO_PRECISION, "bf16", "bf16"},
    {TD_OPENVINO_PRECISION, "f16", "f16"},
    {TD_OPENVINO_HINT, "latency", "LATENCY"},
    {TD_OPENVINO_HINT, "throughput", "THROUGHPUT"},
    {TD_OPENVINO_HINT, "cumulative_throughput", "CUMULATIVE_THROUGHPUT"},
    {TD_OPENVINO_PINNING, "true", "YES"},
    {TD_OPENVINO_PINNING, "false", "NO"},
};
enum { SPELLING_COUNT = sizeof spellings / sizeof spellings[0] };

/* What OpenVINO wants for a value, "" when it is to decide. NULL: there is no such value. */
static const char *spell(int option, const char *value) {
  if (value == NULL || value[0] == '\0' || strcmp(value, "auto") == 0)
    return "";
  if (option == TD_OPENVINO_STREAMS || option == TD_OPENVINO_THREADS) {
    value += strspn(value, "0");
    return strspn(value, "0123456789") == strlen(value) && strlen(value) <= 10 ? value : NULL;
  }
  for (size_t i = 0; i < SPELLING_COUNT; i++)
    if (spellings[i].option == option && strcmp(spellings[i].written, value) == 0)
      return spellings[i].wanted;
  return NULL;
}

static void list_values(int option, char *list, size_t size) {
  snprintf(list, size, "auto");
  for (size_t i = 0; i < SPELLING_COUNT; i++) {
    size_t used = strlen(list);
    if (spellings[i].option == option)
      snprintf(list + used, size - used, ", %s", spellings[i].written);
  }
}

/* ---------------------------------------------------------------- the process that uses OpenVINO */

/* OpenVINO's threads do not live on in a forked child, whose next import may then wait for one of them for
 * ever: measured 1 in 300 with 2026.4.1 and 3 in 148 with 2025.4.1 where the parent was idle, more where a
 * thread of it was inferring, and most with a new core. So a child whose parent used it is refused. */
static _Atomic int user; /* the process that made the first core; 0: none */

static enum tandem_status enter_process(struct tandem_error *error) {
  int self = (int)getpid(), first = 0;
  if (atomic_compare_exchange_strong(&user, &first, self) || first == self)
    return TANDEM_OK;
  return td_openvino_host()->fail(error, TANDEM_UNAVAILABLE,
                                  "process %d was forked from process %d after that one had used OpenVINO, "
                                  "whose threads the child does not have: load only after the fork, or start "
                                  "the child with exec (Python: multiprocessing's \"spawn\")",
                                  self, first);
}

static enum tandem_status create_core(struct ov_core **core, struct tandem_error *error) {
  enum tandem_status status = enter_process(error);
  if (status != TANDEM_OK)
    return status;
  int code = td_ov.core_create(core);
  if (code == OV_OK)
    return TANDEM_OK;
  *core = NULL;
  return td_openvino_fail(error, TANDEM_UNAVAILABLE, code, "create an OpenVINO core");
}

/* ---------------------------------------------------------------- resolve */

/* "CPU", or a device that the library has: it loads all plugins to tell, which "CPU" is spared. */
static enum tandem_status check_device(const char *device, struct tandem_error *error) {
  if (strcmp(device, "CPU") == 0)
    return TANDEM_OK;
  const struct tandem_host *host = td_openvino_host();
  enum tandem_status status = TANDEM_OK;
  struct ov_core *core = NULL;
  struct ov_devices devices = {0};
  char list[256] = "";
  bool found = false;
  status = create_core(&core, error);
  if (status != TANDEM_OK)
    return status;
  int code = td_ov.core_devices(core, &devices);
  if (code != OV_OK) {
    status = td_openvino_fail(error, TANDEM_DEVICE_ERROR, code, "list OpenVINO's devices");
    goto done;
  }
  for (size_t i = 0; i < devices.count; i++) {
    const char *name = devices.names[i];
    size_t used = strlen(list), family = strcspn(name, ".");
    found = found || strcmp(name, device) == 0 ||
            (strlen(device) == family && strncmp(name, device, family) == 0);
    snprintf(list + used, sizeof list - used, "%s%s", used > 0 ? ", " : "", name);
  }
  if (!found)
    status = host->fail(error, TANDEM_BAD_OPTION, "device=%s: OpenVINO %s has %s here", device,
                        td_openvino_version, list[0] != '\0' ? list : "no device");
  td_ov.devices_free(&devices);
done:
  td_ov.core_free(core);
  return status;
}

enum tandem_status td_openvino_resolve(const struct tandem_payload *payload, const char *const *options,
                                       struct tandem_resolution *resolution, struct tandem_error *error) {
  (void)payload;
  const struct tandem_host *host = td_openvino_host();
  const char *device = options[TD_OPENVINO_DEVICE];
  memset(resolution, 0, sizeof *resolution);
  if (device == NULL || device[0] == '\0')
    device = "CPU";
  size_t length = strlen(device);
  if (length >= sizeof resolution->device)
    return host->fail(error, TANDEM_BAD_OPTION, "device has %zu characters, at most %zu are possible", length,
                      sizeof resolution->device - 1);
  for (size_t i = 0; i < length; i++)
    resolution->device[i] = (char)(device[i] >= 'a' && device[i] <= 'z' ? device[i] - 'a' + 'A' : device[i]);
  size_t used = 0;
  for (size_t i = 0; i < PROPERTY_COUNT; i++) {
    int option = properties[i].option;
    const char *value = options[option], *wanted = spell(option, value);
    bool number = option == TD_OPENVINO_STREAMS || option == TD_OPENVINO_THREADS;
    if (wanted == NULL) {
      char list[128];
      list_values(option, list, sizeof list);
      return host->fail(error, TANDEM_BAD_OPTION, "%s=%s: expected %s", properties[i].key, value,
                        number ? "decimal digits (0: OpenVINO decides)" : list);
    }
    if (wanted[0] != '\0')
      used += (size_t)snprintf(resolution->options + used, sizeof resolution->options - used, "%s%s=%s",
                               used > 0 ? ";" : "", properties[i].key, number ? wanted : value);
  }
  return check_device(resolution->device, error);
}

/* ---------------------------------------------------------------- cores */

static void destroy_core(struct core *core) {
  if (core == NULL)
    return;
  if (core->handle != NULL)
    td_ov.core_free(core->handle);
  td_openvino_host()->release(core);
}

static struct core *find_core(const char *text) {
  for (struct core *core = atomic_load_explicit(&cores, memory_order_acquire); core != NULL;
       core = core->next)
    if (strcmp(core->text, text) == 0)
      return core;
  return NULL;
}

/* The core of a set of options; *owned when it did not go into the list and is the caller's. */
static enum tandem_status get_core(const struct tandem_resolution *resolution, const char *const *options,
                                   struct core **result, bool *owned, struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  enum tandem_status status;
  char text[TEXT_MAX];
  *owned = false;
  /* The texts are bounded so that both fit: every canonical value is short. */
  snprintf(text, sizeof text, "%.64s;%.300s", resolution->device, resolution->options);
  *result = find_core(text);
  if (*result != NULL)
    return TANDEM_OK;
  struct core *core = host->allocate(sizeof *core);
  if (core == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for an OpenVINO core");
  snprintf(core->text, sizeof core->text, "%s", text);
  status = create_core(&core->handle, error);
  if (status != TANDEM_OK)
    goto failed;
  for (size_t i = 0; i < PROPERTY_COUNT; i++) {
    const char *value = options[properties[i].option], *wanted = spell(properties[i].option, value);
    if (wanted == NULL || wanted[0] == '\0')
      continue;
    int code = td_ov.core_set(core->handle, resolution->device, properties[i].property, wanted);
    if (code != OV_OK) {
      char step[128];
      snprintf(step, sizeof step, "set %s=%s on %s", properties[i].key, value, resolution->device);
      status = td_openvino_fail(error, TANDEM_BAD_OPTION, code, step);
      goto failed;
    }
  }
  struct core *head = atomic_load_explicit(&cores, memory_order_acquire);
  do {
    struct core *other = find_core(text);
    if (other != NULL) {
      destroy_core(core);
      *result = other;
      return TANDEM_OK;
    }
    core->next = head;
    core->depth = head != NULL ? head->depth + 1 : 1;
    *owned = core->depth > CORES_MAX;
  } while (!*owned && !atomic_compare_exchange_weak_explicit(&cores, &head, core, memory_order_acq_rel,
                                                             memory_order_acquire));
  *result = core;
  return TANDEM_OK;
failed:
  destroy_core(core);
  return status;
}

/* ---------------------------------------------------------------- build */

/* Why OpenVINO would not import, as a line that a user can act on. `reason` is OpenVINO's text. */
static enum tandem_status explain_import(const struct tandem_build_desc *desc, int code,
                                         struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  char reason[1024], current[256], current_set[128], instruction_set[160] = "";
  struct td_openvino_blob blob;
  td_openvino_reason(code, reason, sizeof reason);
  if (td_openvino_read_blob(host, desc->engine, desc->engine_size, &blob, error) != TANDEM_OK)
    return TANDEM_BAD_PROGRAM;
  /* 2026 says "blob: meta=..;ov=..;isa=.. current: meta=..;ov=..;isa=.." */
  const char *at = strstr(reason, "current: ");
  snprintf(current, sizeof current, "%.*s", at != NULL ? (int)strcspn(at + 9, "\n") : 0,
           at != NULL ? at + 9 : "");
  td_openvino_find_value(current, strlen(current), "isa", current_set, sizeof current_set);
  bool unnamed_expected = strncmp(td_openvino_version, "2025.", 5) == 0;
  bool other_format =
      unnamed_expected ? blob.format == TD_OPENVINO_NAMED
                       : blob.format == TD_OPENVINO_UNNAMED && strstr(reason, "requirements magic") != NULL;
  bool other_version = blob.version[0] != '\0' && strcmp(blob.version, td_openvino_version) != 0;
  if (other_format || other_version)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the payload was exported by OpenVINO %s and this is OpenVINO %s: export the program "
                      "again with openvino==%s, or install the version that it was exported with",
                      blob.version[0] != '\0' ? blob.version : "2025 or older (it names no version)",
                      td_openvino_version, td_openvino_version);
  if (current_set[0] != '\0' && strcmp(current_set, blob.instruction_set) != 0) {
    snprintf(instruction_set, sizeof instruction_set, "%s",
             blob.instruction_set[0] != '\0' ? blob.instruction_set : "none that it names");
    return host->fail(
        error, TANDEM_UNSUPPORTED,
        "the payload was exported for the instruction set \"%s\" and this processor has \"%s\": "
        "export the program again on this machine",
        instruction_set, current_set);
  }
  return td_openvino_fail(error, TANDEM_BAD_PROGRAM, code, "import the payload");
}

/* A precision is a hint to OpenVINO: say so when it was not followed. */
static void report_precision(const struct engine *engine, const char *const *options) {
  const char *wanted = spell(TD_OPENVINO_PRECISION, options[TD_OPENVINO_PRECISION]);
  char *actual = NULL, line[256];
  if (wanted == NULL || wanted[0] == '\0')
    return;
  if (td_ov.model_get(engine->model, "INFERENCE_PRECISION_HINT", &actual) != OV_OK || actual == NULL)
    return;
  if (strcmp(actual, wanted) != 0) {
    snprintf(line, sizeof line, "precision=%s was asked for, OpenVINO %s took %.32s", wanted,
             td_openvino_version, actual);
    td_openvino_host()->log(&td_vendor_openvino, TANDEM_LOG_WARNING, TANDEM_OK, line);
  }
  td_ov.text_free(actual);
}

enum tandem_status td_openvino_build(const struct tandem_build_desc *desc, void **engine,
                                     struct tandem_engine_info *info, struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  enum tandem_status status;
  *engine = NULL;
  struct engine *built = host->allocate(sizeof *built);
  if (built == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for an OpenVINO engine");
  struct core *core = NULL;
  bool owned = false;
  status = enter_process(error);
  if (status == TANDEM_OK)
    status = get_core(desc->resolution, desc->options, &core, &owned, error);
  if (status != TANDEM_OK)
    goto failed;
  if (owned)
    built->private_core = core;
  int code = td_ov.core_import(core->handle, desc->engine, desc->engine_size, desc->resolution->device,
                               &built->model);
  if (code != OV_OK) {
    built->model = NULL;
    status = explain_import(desc, code, error);
    goto failed;
  }
  report_precision(built, desc->options);
  /* What the repacked weights cost shows only in the process's memory; OpenVINO does not tell it. */
  *info = (struct tandem_engine_info){.engine_bytes = 0, .effective_budget = -1};
  *engine = built;
  return TANDEM_OK;
failed:
  destroy_core(built->private_core);
  host->release(built);
  return status;
}

void td_openvino_engine_destroy(void *engine) {
  struct engine *self = engine;
  if (self == NULL)
    return;
  td_ov.model_free(self->model);
  destroy_core(self->private_core);
  td_openvino_host()->release(self);
}

struct ov_compiled_model *td_openvino_model(void *engine) {
  return ((struct engine *)engine)->model;
}
