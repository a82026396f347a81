/* gpu_bench MEASUREMENT [NAME=VALUE...] [FILE...]: one JSON document on stdout.
 *
 * `good` in it is false where a figure is beyond what tandem promises; the exit status is 0 all the same,
 * since the measurement was made. Status 1: it was not.
 */
#include "bench.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct driver cuda;
static void *contexts[DEVICES_USED];

static const char *doing = "";

void about(const char *what) {
  doing = what;
}

void stop(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "gpu_bench: %s%s", doing, *doing ? ": " : "");
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

void must(bool good, const char *format, ...) {
  if (good)
    return;
  va_list arguments;
  char text[512];
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  stop("%s", text);
}

void must_cuda(int code, const char *call) {
  if (code != CU_OK)
    stop("%s says %d", call, code);
}

double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double percentile(double *values, size_t count, double percent) {
  qsort(values, count, sizeof *values, order);
  size_t rank = (size_t)((double)count * percent / 100 + 0.999999);
  return values[rank > 0 ? (rank > count ? count : rank) - 1 : 0];
}

/* ---------------------------------------------------------------- the device */

void open_device(int device) {
  char why[256];
  if (!cuda.init && !driver_open(&cuda, why, sizeof why))
    stop("%s", why);
  if (!contexts[device])
    must_cuda(cuda.primary_retain(&contexts[device], device), "cuDevicePrimaryCtxRetain");
}

void enter_device(int device) {
  must_cuda(cuda.context_push(contexts[device]), "cuCtxPushCurrent");
}

void leave_device(void) {
  void *context;
  must_cuda(cuda.context_pop(&context), "cuCtxPopCurrent");
}

int64_t used_memory(int device) {
  size_t free_bytes, total_bytes;
  enter_device(device);
  must_cuda(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  leave_device();
  return (int64_t)(total_bytes - free_bytes);
}

uint64_t allocate_device(int device, size_t size) {
  uint64_t address;
  enter_device(device);
  must_cuda(cuda.allocate(&address, size), "cuMemAlloc");
  leave_device();
  return address;
}

void free_device(int device, uint64_t address) {
  enter_device(device);
  must_cuda(cuda.release(address), "cuMemFree");
  leave_device();
}

void *make_stream(int device) {
  void *stream;
  enum { NON_BLOCKING = 1 };
  enter_device(device);
  must_cuda(cuda.stream_create(&stream, NON_BLOCKING), "cuStreamCreate");
  leave_device();
  return stream;
}

void describe_machine(cJSON *document) {
  int version = 0, count = 0;
  char text[64];
  must_cuda(cuda.driver_version(&version), "cuDriverGetVersion");
  must_cuda(cuda.device_count(&count), "cuDeviceGetCount");
  snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
  cJSON_AddStringToObject(document, "cuda_driver", text);
  cJSON_AddNumberToObject(document, "devices", count);
  cJSON_AddStringToObject(document, "tandem", tandem_version());
  for (size_t i = 0; i < tandem_vendor_count(); i++) {
    struct tandem_vendor_info info = {.struct_size = sizeof info};
    if (strcmp(tandem_vendor_backend(i), "TensorRTBackend") != 0)
      continue;
    must(tandem_vendor_get_info(i, &info, NULL) == TANDEM_OK, "the TensorRT vendor tells nothing");
    cJSON_AddStringToObject(document, "library", info.available ? info.version : info.reason);
    cJSON_AddStringToObject(document, "library_path", info.path);
  }
}

/* ---------------------------------------------------------------- engines */

void make_model(struct model *model, int32_t layer_count, int64_t width, int64_t scratch, uint32_t seed,
                uint32_t flags) {
  *model = (struct model){.layer_count = layer_count, .width = width, .scratch = scratch, .seed = seed};
  model->widths = malloc(((size_t)layer_count + 1) * sizeof *model->widths);
  must(model->widths, "no memory");
  for (int32_t i = 0; i <= layer_count; i++)
    model->widths[i] = width;
  model->mlp = (struct standin_mlp){.name = "bench",
                                    .seed = seed,
                                    .flags = flags,
                                    .relu = true,
                                    .layer_count = layer_count,
                                    .widths = model->widths,
                                    .rows_min = ROWS,
                                    .rows_opt = ROWS,
                                    .rows_max = ROWS,
                                    .scratch_base = scratch};
  model->plan = standin_mlp_bytes(&model->mlp, &model->plan_size);
  must(model->plan, "no memory for a plan of %d layers", layer_count);
}

void free_model(struct model *model) {
  free(model->widths);
  free(model->plan);
}

size_t model_weights(const struct model *model) {
  return (size_t)model->layer_count * (size_t)(model->width * model->width + model->width) * sizeof(float);
}

size_t model_io(const struct model *model) {
  return 2 * ROWS * (size_t)model->width * sizeof(float);
}

void *make_payload(const void *plan, size_t plan_size, int device, size_t *size) {
  static const char plain[] =
      "{\"io_bindings\":[{\"name\":\"x\",\"is_input\":true},{\"name\":\"y\",\"is_input\":"
      "false}],\"device_id\":0}";
  bool known = plan_size >= 8 && memcmp(plan, STANDIN_PLAN_MAGIC, sizeof STANDIN_PLAN_MAGIC) == 0;
  const struct standin_payload payload = {
      .plan = plan, .plan_size = plan_size, .metadata = known ? NULL : plain, .device_id = device};
  void *bytes = standin_payload_bytes(&payload, size);
  must(bytes, "no memory for a payload");
  return bytes;
}

struct bytes wrap_model(const struct model *model, int device) {
  struct bytes bytes;
  bytes.data = make_payload(model->plan, model->plan_size, device, &bytes.size);
  return bytes;
}

enum tandem_status load_with(const struct bytes *payload, struct tandem_load **load,
                             struct tandem_error *error, va_list pairs) {
  struct tandem_option options[8];
  size_t count = 0;
  for (const char *key; count < 8 && (key = va_arg(pairs, const char *)) != NULL;)
    options[count++] = (struct tandem_option){key, va_arg(pairs, const char *)};
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "TensorRTBackend",
                                        .payload = payload->data,
                                        .payload_size = payload->size,
                                        .options = options,
                                        .option_count = count};
  return tandem_load_create(&desc, load, error);
}

struct tandem_load *load_payload(const struct bytes *payload, ...) {
  struct tandem_error error = {0};
  struct tandem_load *load;
  va_list pairs;
  va_start(pairs, payload);
  enum tandem_status status = load_with(payload, &load, &error, pairs);
  va_end(pairs);
  must(status == TANDEM_OK, "%s", error.message);
  return load;
}

struct tandem_load_info info_of(const struct tandem_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  must(tandem_load_get_info(load, &info, NULL) == TANDEM_OK, "no information of a load");
  return info;
}

struct tandem_stats stats_now(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  must(tandem_stats_get(&stats, NULL) == TANDEM_OK, "no statistics");
  return stats;
}

/* ---------------------------------------------------------------- tensors */

void make_tensors(struct tensors *tensors, const struct model *model, int device, unsigned seed) {
  size_t count = ROWS * (size_t)model->width, size = count * sizeof(float);
  float *values = malloc(size);
  must(values, "no memory");
  for (size_t i = 0; i < count; i++)
    values[i] = (float)((i * 37 + seed * 101 + 11) % 64) / 16.0f - 2.0f;
  struct tandem_tensor tensor = {
      .size = size, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {ROWS, model->width}};
  *tensors = (struct tensors){.device = device, .count = count, .x = tensor, .y = tensor};
  if (device < 0) {
    tensors->x.data = values;
    tensors->y.data = malloc(size);
    must(tensors->y.data, "no memory");
    return;
  }
  uint64_t address = allocate_device(device, size);
  enter_device(device);
  must_cuda(cuda.copy_to(address, values, size), "cuMemcpyHtoD");
  leave_device();
  tensors->x.data = (void *)(uintptr_t)address;
  tensors->y.data = (void *)(uintptr_t)allocate_device(device, size);
  free(values);
}

void free_tensors(struct tensors *tensors) {
  if (tensors->device < 0) {
    free(tensors->x.data);
    free(tensors->y.data);
    return;
  }
  free_device(tensors->device, (uint64_t)(uintptr_t)tensors->x.data);
  free_device(tensors->device, (uint64_t)(uintptr_t)tensors->y.data);
}

float *read_output(const struct tensors *tensors) {
  size_t size = tensors->count * sizeof(float);
  float *values = malloc(size);
  must(values, "no memory");
  if (tensors->device < 0) {
    memcpy(values, tensors->y.data, size);
    return values;
  }
  enter_device(tensors->device);
  must_cuda(cuda.copy_from(values, (uint64_t)(uintptr_t)tensors->y.data, size), "cuMemcpyDtoH");
  leave_device();
  return values;
}

void run_load(struct tandem_load *load, struct tensors *tensors, void *stream) {
  struct tandem_error error;
  const struct tandem_run_desc run = {.struct_size = sizeof run,
                                      .inputs = &tensors->x,
                                      .input_count = 1,
                                      .outputs = &tensors->y,
                                      .output_count = 1,
                                      .stream = stream};
  must(tandem_load_run(load, &run, &error) == TANDEM_OK, "%s", error.message);
}

/* ---------------------------------------------------------------- documents */

int64_t argument(int count, char **arguments, const char *name, int64_t fallback) {
  size_t size = strlen(name);
  for (int i = 0; i < count; i++)
    if (strncmp(arguments[i], name, size) == 0 && arguments[i][size] == '=')
      return strtoll(arguments[i] + size + 1, NULL, 10);
  return fallback;
}

cJSON *add_numbers(cJSON *object, const char *key, const double *values, size_t count) {
  cJSON *list = cJSON_AddArrayToObject(object, key);
  for (size_t i = 0; i < count; i++)
    cJSON_AddItemToArray(list, cJSON_CreateNumber(values[i]));
  return list;
}

void judge(cJSON *document, const char *key, double value, double limit) {
  cJSON *limits = cJSON_GetObjectItem(document, "limits");
  if (!limits)
    limits = cJSON_AddObjectToObject(document, "limits");
  cJSON *entry = cJSON_AddObjectToObject(limits, key);
  cJSON_AddNumberToObject(entry, "value", value);
  cJSON_AddNumberToObject(entry, "limit", limit);
  cJSON_AddBoolToObject(entry, "good", value <= limit);
}

/* Errors come back with the call that failed; of warnings the first one is told. */
static pthread_mutex_t warning_lock = PTHREAD_MUTEX_INITIALIZER;
static char warning[512]; /* guarded by warning_lock */

static void take_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  if (level != TANDEM_LOG_WARNING)
    return;
  pthread_mutex_lock(&warning_lock);
  if (!*warning)
    snprintf(warning, sizeof warning, "%s", line);
  pthread_mutex_unlock(&warning_lock);
}

int main(int count, char **arguments) {
  static const struct {
    const char *name;
    cJSON *(*measure)(int count, char **arguments);
  } measurements[] = {
      {"memory", measure_memory},   {"speed", measure_speed}, {"streams", measure_streams},
      {"storm", measure_storm},     {"race", measure_race},   {"refusals", measure_refusals},
      {"devices", measure_devices}, {"check", measure_check}, {"cases", measure_cases},
  };
  for (size_t i = 0; count > 1 && i < sizeof measurements / sizeof measurements[0]; i++) {
    if (strcmp(measurements[i].name, arguments[1]) != 0)
      continue;
    tandem_set_log_sink(take_line, NULL);
    open_device(0);
    double began = now_s();
    cJSON *document = measurements[i].measure(count - 2, arguments + 2), *entry;
    cJSON_AddStringToObject(document, "measurement", measurements[i].name);
    describe_machine(document);
    cJSON_AddNumberToObject(document, "seconds", now_s() - began);
    if (*warning)
      cJSON_AddStringToObject(document, "first_warning", warning);
    bool good = true;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(document, "limits")) {
      good = good && cJSON_IsTrue(cJSON_GetObjectItem(entry, "good"));
    }
    cJSON_AddBoolToObject(document, "good", good);
    char *text = cJSON_PrintUnformatted(document);
    must(text, "no memory");
    puts(text);
    return 0;
  }
  stop("expected one of memory, speed, streams, storm, race, refusals, devices, check, cases");
}
