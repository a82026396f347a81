/* An engine: one deserialized plan, with the runtime it came from and its hold on a CUDA context.
 *
 * Each engine has a runtime of its own, since the DLA core and the permission for host code are the
 * runtime's; a second runtime costs host memory of kilobytes. The weight-streaming budget is set once, before
 * any context exists, and the engine is never changed after that.
 *
 * Without a CUDA driver a plan is still given to the library: what it says is what the user has to read, and
 * the missing driver is told after it. When a plan is refused, the error gathers what is known of both sides:
 * the library's words come first (from the host), then what the plan, the program and the device are.
 *
 * Builds and teardowns hold the capture lock together with others, so that none of the library's allocations
 * falls into the recording of a graph.
 */
#include "tensorrt.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the program says about the plan that this thread resolved last: for messages alone. resolve and build
 * of one load run on one thread, and a build without its resolve just says less. */
static _Thread_local struct {
  const void *engine;
  size_t engine_size;
  bool hardware_compatible;
  char target_platform[64];
} resolved;

/* ---------------------------------------------------------------- plans */

bool td_trt_read_plan(const void *bytes, size_t size, struct td_trt_plan *plan) {
  static const unsigned char magic[8] = {'v', 't', 'r', 't'};
  enum { VERSION_AT = 24, HEADER_SIZE = 64 };
  const unsigned char *at = bytes;
  if (bytes == NULL || size < HEADER_SIZE || memcmp(at, magic, sizeof magic) != 0)
    return false;
  plan->product = TD_TRT_RTX;
  snprintf(plan->name, sizeof plan->name, "TensorRT-RTX %d.%d.%d", at[VERSION_AT], at[VERSION_AT + 1],
           at[VERSION_AT + 2]);
  return true;
}

/* ---------------------------------------------------------------- resolve */

static enum tandem_status read_dla_core(const char *value, int32_t *core, struct tandem_error *error) {
  char *end = NULL;
  *core = -1;
  if (value == NULL || value[0] == '\0')
    return TANDEM_OK;
  long number = strtol(value, &end, 10);
  if (*end != '\0' || number < 0 || number > INT32_MAX)
    return td_trt_host()->fail(error, TANDEM_BAD_OPTION, "dla_core=%s: expected the index of a DLA core",
                               value);
  *core = (int32_t)number;
  return TANDEM_OK;
}

static bool allows_host_code(const char *const *options) {
  const char *value = options[TD_TRT_HOST_CODE];
  return value != NULL && strcmp(value, "true") == 0;
}

enum tandem_status td_trt_resolve(const struct tandem_payload *payload, const char *const *options,
                                  struct tandem_resolution *resolution, struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  const struct td_trt_payload *state = payload->state;
  int32_t core;
  size_t used = 0;
  memset(resolution, 0, sizeof *resolution);
  if (payload->engine == NULL)
    return host->fail(
        error, TANDEM_MISSING_DATA,
        "engine_key names \"%.200s\", but the load has no named data; give the .ptd file that the "
        "program was exported with",
        state->engine_key);
  enum tandem_status status = read_dla_core(options[TD_TRT_DLA_CORE], &core, error);
  if (status != TANDEM_OK)
    return status;
  snprintf(resolution->device, sizeof resolution->device, "cuda:%" PRId32, state->device_id);
  if (core >= 0)
    used = (size_t)snprintf(resolution->options, sizeof resolution->options, "dla_core=%" PRId32, core);
  if (allows_host_code(options))
    snprintf(resolution->options + used, sizeof resolution->options - used, "%shost_code_allowed=true",
             used > 0 ? ";" : "");
  resolved.engine = payload->engine;
  resolved.engine_size = payload->engine_size;
  resolved.hardware_compatible = state->hardware_compatible;
  snprintf(resolved.target_platform, sizeof resolved.target_platform, "%s", state->target_platform);
  status = td_cuda_resolve(state->device_id, &resolution->context_id, error);
  if (status != TANDEM_UNAVAILABLE)
    return status;
  /* No driver: the library is to say so in its own words, when it is asked to build. */
  resolution->context_id = 0;
  if (error != NULL)
    *error = (struct tandem_error){0};
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- why a plan was refused */

struct text {
  char *at;
  size_t size;
};

static void add_text(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_text(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text->at, text->size, format, arguments);
  va_end(arguments);
  size_t written = length < 0 ? 0 : (size_t)length < text->size ? (size_t)length : text->size - 1;
  text->at += written;
  text->size -= written;
}

/* RTX tells by bits why it would refuse a plan; 0 when it does not or sees nothing wrong. */
static uint64_t diagnose(void *runtime, const struct tandem_build_desc *desc) {
  uint64_t diagnosis = 0;
  if (!TD_TRT_HAS(runtime_validity) || desc->engine_size > INT64_MAX)
    return 0;
  int32_t validity = td_trt_runtime_validity(runtime, desc->engine, (int64_t)desc->engine_size, &diagnosis);
  return validity == TD_TRT_INVALID ? diagnosis : 0;
}

static void add_diagnosis(struct text *text, uint64_t diagnosis) {
  static const struct {
    uint64_t bit;
    const char *reason;
  } reasons[] = {
      {TD_TRT_WHY_VERSION, "another version built it"},
      {TD_TRT_WHY_CAPABILITY, "it is not built for this compute capability"},
      {TD_TRT_WHY_DRIVER, "the CUDA driver is too old"},
      {TD_TRT_WHY_RUNTIME, "the CUDA runtime is too old"},
      {TD_TRT_WHY_MEMORY, "the GPU has too little memory"},
      {TD_TRT_WHY_MALFORMED, "it is malformed"},
      {TD_TRT_WHY_CUDA, "CUDA failed"},
  };
  const char *joint = "; the library's check of it: ";
  for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
    if (diagnosis & reasons[i].bit) {
      add_text(text, "%s%s", joint, reasons[i].reason);
      joint = ", ";
    }
}

/* Whether a plan made compatible on purpose would run on this device. */
static void add_advice(struct text *text, const struct td_cuda_facts *facts, bool known) {
  if (td_trt.product == TD_TRT_RTX)
    add_text(text,
             "; a plan built with compute capability %d.%d among its targets would help if the library "
             "supports it",
             facts->major, facts->minor);
  else if (facts->major < 8)
    add_text(text, "; a hardware-compatible plan would not help, it needs compute capability 8.0 or newer");
  else if (known && resolved.hardware_compatible)
    add_text(text, "; the program is hardware-compatible already, so export it for this GPU");
  else
    add_text(text, "; a hardware-compatible plan (Ampere and newer) built by the same TensorRT would help, "
                   "else export it on this GPU");
}

/* The error for a plan that the library did not take. */
static enum tandem_status explain_refusal(const struct tandem_build_desc *desc, int32_t device_id,
                                          uint64_t diagnosis, const struct tandem_error *no_driver,
                                          struct tandem_error *error) {
  char message[700];
  struct text text = {message, sizeof message};
  struct td_cuda_facts facts = {0};
  struct td_trt_plan plan;
  unsigned said = td_trt_said();
  bool known = resolved.engine == desc->engine && resolved.engine_size == desc->engine_size;
  bool device = no_driver == NULL && td_cuda_describe(device_id, &facts);
  bool named = td_trt_read_plan(desc->engine, desc->engine_size, &plan);
  bool foreign = named ? td_trt.product != plan.product : (said & TD_TRT_SAID_MAGIC) != 0;
  bool capability = (said & TD_TRT_SAID_CAPABILITY) != 0 || (diagnosis & TD_TRT_WHY_CAPABILITY) != 0;
  bool version = (said & TD_TRT_SAID_VERSION) != 0 || (diagnosis & TD_TRT_WHY_VERSION) != 0;
  add_text(&text, "%s refused the plan of %zu bytes", td_trt.name, desc->engine_size);
  if (named)
    add_text(&text, ", built by %s", plan.name);
  add_diagnosis(&text, diagnosis);
  if (device)
    add_text(&text, "; device %" PRId32 " is %s with compute capability %d.%d, CUDA driver %d.%d", device_id,
             facts.name, facts.major, facts.minor, td_cuda_driver_version() / 1000,
             td_cuda_driver_version() % 1000 / 10);
  else if (no_driver != NULL)
    add_text(&text, "; %.300s", no_driver->message);
  if (known)
    add_text(&text, "; the program says hardware_compatible=%s%s%s",
             resolved.hardware_compatible ? "true" : "false",
             resolved.target_platform[0] != '\0' ? ", target platform " : "", resolved.target_platform);
  if (foreign)
    add_text(&text, "; it is no plan of this product: use the TensorRT that built it "
                    "(TANDEM_TENSORRT_RUNTIME, TANDEM_TENSORRT_LIBRARY) or export the program again");
  else if (capability && device)
    add_advice(&text, &facts, known);
  else if (version)
    add_text(&text, "; use the version that built it, or export the program again with this one");
  else if ((said & TD_TRT_SAID_HOST_CODE) != 0)
    add_text(&text, "; it brings host code: set host_code_allowed=true if you trust it");
  enum tandem_status status = no_driver != NULL                      ? TANDEM_UNAVAILABLE
                              : foreign || capability || version     ? TANDEM_UNSUPPORTED
                              : (diagnosis & TD_TRT_WHY_MEMORY) != 0 ? TANDEM_OUT_OF_MEMORY
                              : (diagnosis & (TD_TRT_WHY_DRIVER | TD_TRT_WHY_RUNTIME)) != 0
                                  ? TANDEM_UNSUPPORTED
                                  : TANDEM_BAD_PROGRAM;
  return td_trt_host()->fail(error, status, "%s", message);
}

/* ---------------------------------------------------------------- build */

static enum tandem_status set_options(void *runtime, const struct tandem_build_desc *desc, int32_t *core,
                                      struct tandem_error *error) {
  enum tandem_status status = read_dla_core(desc->options[TD_TRT_DLA_CORE], core, error);
  if (status != TANDEM_OK)
    return status;
  if (*core >= 0) {
    int32_t count = td_trt_runtime_dla_core_count(runtime);
    if (*core >= count)
      return td_trt_host()->fail(error, TANDEM_BAD_OPTION,
                                 "dla_core=%" PRId32 ": %s finds %" PRId32
                                 " DLA cores on %s; leave the option out",
                                 *core, td_trt.name, count, desc->resolution->device);
    td_trt_runtime_set_dla_core(runtime, *core);
  }
  if (allows_host_code(desc->options))
    td_trt_runtime_set_host_code(runtime, true);
  return TANDEM_OK;
}

/* A plan that was serialized without its weights runs and answers wrongly. Being refittable says nothing: a
 * refitted plan that was serialized with its weights is fine. */
static enum tandem_status check_weights(void *engine, struct tandem_error *error) {
  if (TD_TRT_HAS(engine_stat)) {
    int64_t stripped = td_trt_engine_stat(engine, TD_TRT_STRIPPED_WEIGHTS);
    if (stripped < 0)
      return TANDEM_OK;
    return td_trt_host()->fail(error, TANDEM_BAD_PROGRAM,
                               "the plan lacks %" PRId64
                               " bytes of its weights (it was built with STRIP_PLAN) "
                               "and would answer wrongly; refit it and serialize it with its weights, then "
                               "export the program again",
                               stripped);
  }
  if (td_trt_engine_refittable(engine))
    td_trt_say(TANDEM_LOG_WARNING,
               "the plan is refittable and %s cannot tell whether it lacks its weights (10.14 can)",
               td_trt.name);
  return TANDEM_OK;
}

/* Sets the budget and fills what streams. */
static enum tandem_status set_budget(void *engine, int64_t asked, struct tandem_engine_info *info,
                                     struct tandem_error *error) {
  int64_t streamable = td_trt_engine_streamable_size(engine), budget;
  info->streamable_size = streamable > 0 ? streamable : 0;
  info->effective_budget = 0;
  if (streamable <= 0)
    return TANDEM_OK;
  if (!TD_TRT_HAS(engine_set_budget)) {
    /* TensorRT 10.0's own setter gives other meanings to its numbers; unset, all weights are resident. */
    info->effective_budget = streamable;
    if (asked < 0 || asked >= streamable)
      return TANDEM_OK;
    return td_trt_host()->fail(error, TANDEM_UNSUPPORTED,
                               "weight_streaming_budget=%" PRId64
                               " needs TensorRT 10.1 or newer, this is %s; "
                               "leave the option out or use a newer TensorRT",
                               asked, td_trt.name);
  }
  budget = asked >= 0 ? asked : td_trt_engine_automatic_budget(engine);
  budget = budget < 0 ? 0 : budget > streamable ? streamable : budget;
  if (!td_trt_engine_set_budget(engine, budget))
    return td_trt_host()->fail(error, TANDEM_DEVICE_ERROR,
                               "%s did not take a weight-streaming budget of %" PRId64 " of %" PRId64
                               " streamable bytes",
                               td_trt.name, budget, streamable);
  int64_t effective = td_trt_engine_budget(engine);
  info->effective_budget = effective >= 0 && effective <= streamable ? effective : budget;
  return TANDEM_OK;
}

static void tell_size(void *engine, struct tandem_engine_info *info) {
  int64_t weights = TD_TRT_HAS(engine_stat) ? td_trt_engine_stat(engine, TD_TRT_TOTAL_WEIGHTS) : 0;
  int64_t streamed = info->streamable_size - info->effective_budget;
  if (weights <= 0)
    return;
  info->engine_bytes = (uint64_t)weights;
  info->device_bytes = (uint64_t)(streamed > 0 && streamed <= weights ? weights - streamed : weights);
}

/* Everything that calls the library; `no_driver` is the reason when CUDA is not there, else NULL. */
static enum tandem_status deserialize(struct td_trt_engine *built, const struct tandem_build_desc *desc,
                                      const struct tandem_error *no_driver, struct tandem_engine_info *info,
                                      struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  td_trt_listen();
  enum tandem_status status = td_trt_create_runtime(&built->runtime, error);
  if (status != TANDEM_OK && no_driver != NULL)
    return host->fail(error, status, "%s created no runtime; %s", td_trt.name, no_driver->message);
  if (status != TANDEM_OK ||
      (status = set_options(built->runtime, desc, &built->dla_core, error)) != TANDEM_OK)
    return status;
  void *engine = td_trt_runtime_deserialize(built->runtime, desc->engine, desc->engine_size);
  if (!TD_TRT_LIVE(engine))
    return explain_refusal(desc, built->device_id, diagnose(built->runtime, desc), no_driver, error);
  built->engine = engine;
  if (no_driver != NULL)
    return host->fail(error, TANDEM_UNAVAILABLE, "%s", no_driver->message);
  if ((status = check_weights(engine, error)) != TANDEM_OK ||
      (status = set_budget(engine, desc->budget, info, error)) != TANDEM_OK)
    return status;
  tell_size(engine, info);
  built->profile_count = td_trt_engine_profile_count(engine);
  return TANDEM_OK;
}

/* After a failure between enter and leave: the driver is asked, for the library may have failed because the
 * device is lost, and nobody else has noticed yet. */
static enum tandem_status check_device(const struct td_trt_engine *built, enum tandem_status status,
                                       struct tandem_error *error) {
  size_t free_bytes, total_bytes;
  int32_t code = td_cuda.memory_info(&free_bytes, &total_bytes);
  return code == TD_CUDA_OK ? status : td_cuda_fail(built->cuda, code, "deserialize the engine", error);
}

enum tandem_status td_trt_build(const struct tandem_build_desc *desc, void **engine,
                                struct tandem_engine_info *info, struct tandem_error *error) {
  const struct tandem_host *host = td_trt_host();
  struct tandem_error no_driver = {0};
  bool entered = false;
  *engine = NULL;
  *info = (struct tandem_engine_info){0};
  struct td_trt_engine *built = host->allocate(sizeof *built);
  if (built == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a TensorRT engine");
  built->device_id = (int32_t)strtol(desc->resolution->device + strlen("cuda:"), NULL, 10);
  td_cuda_capture_lock_shared();
  enum tandem_status status =
      td_cuda_acquire(built->device_id, desc->resolution->context_id, &built->cuda, &no_driver);
  if (status == TANDEM_OK) {
    status = td_cuda_enter(built->cuda, error);
    entered = status == TANDEM_OK;
  } else if (status == TANDEM_UNAVAILABLE) {
    status = TANDEM_OK;
  } else {
    status = host->fail(error, status, "%s", no_driver.message);
  }
  if (status == TANDEM_OK)
    status = deserialize(built, desc, entered ? NULL : &no_driver, info, error);
  if (status != TANDEM_OK && entered)
    status = check_device(built, status, error);
  /* As in td_trt_engine_destroy; without a driver there is no device that could be lost. */
  if (status != TANDEM_OK && (!entered || !td_cuda_lost(built->cuda))) {
    td_trt_delete(built->engine);
    td_trt_delete(built->runtime);
  }
  if (entered)
    td_cuda_leave(built->cuda);
  if (status == TANDEM_OK) {
    *engine = built;
  } else {
    td_cuda_release(built->cuda);
    host->release(built);
  }
  td_cuda_capture_unlock();
  return status;
}

void td_trt_engine_destroy(void *engine) {
  struct td_trt_engine *built = engine;
  if (built == NULL)
    return;
  td_cuda_capture_lock_shared();
  bool entered = td_cuda_enter(built->cuda, NULL) == TANDEM_OK;
  /* The library would call into a device that is gone: its objects are forgotten with it. */
  if (entered && !td_cuda_lost(built->cuda)) {
    td_trt_delete(built->engine);
    td_trt_delete(built->runtime);
  }
  if (entered)
    td_cuda_leave(built->cuda);
  td_cuda_release(built->cuda);
  td_cuda_capture_unlock();
  td_trt_host()->release(built);
}
