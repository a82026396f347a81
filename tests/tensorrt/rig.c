#include "rig.h"

#include "bound.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char cuda_path[] = TANDEM_STANDIN_DIR "/cuda/libcuda.so.1";

/* Under a memory checker on a GPU a test takes longer. */
enum { LINES_MAX = 4096, OPTIONS_MAX = 8, TESTS_MAX = 64, SECONDS_MAX = 60, SECONDS_MAX_REAL = 120 };

const struct standin_cuda *rig_device;
const struct standin_nvinfer *rig_library;
struct driver rig_cuda;
const char *rig_layout = "11";

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES_MAX][300];
static size_t line_count;
static struct tandem_stats stats_before;

static void keep_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  (void)level;
  pthread_mutex_lock(&lines_lock);
  if (line_count < LINES_MAX)
    snprintf(lines[line_count++], sizeof lines[0], "%s", line);
  pthread_mutex_unlock(&lines_lock);
}

unsigned rig_lines(const char *text) {
  unsigned found = 0;
  pthread_mutex_lock(&lines_lock);
  for (size_t i = 0; i < line_count; i++)
    found += strstr(lines[i], text) != NULL;
  pthread_mutex_unlock(&lines_lock);
  return found;
}

static void *open_control(const char *path, const char *symbol) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *found = library ? dlsym(library, symbol) : NULL;
  if (!found)
    fprintf(stderr, "%s: %s\n", path, library ? "is no stand-in" : dlerror());
  return found;
}

bool rig_on_real_driver(void) {
  const char *driver = getenv("STANDIN_TEST_DRIVER");
  return driver && strcmp(driver, "real") == 0;
}

int rig_start(int argc, char **argv) {
  char why[256];
  if (argc > 1)
    rig_layout = argv[1];
  const char *path = strcmp(rig_layout, "10") == 0    ? TANDEM_STANDIN_DIR "/10/libnvinfer.so.10"
                     : strcmp(rig_layout, "11") == 0  ? TANDEM_STANDIN_DIR "/11/libnvinfer.so.11"
                     : strcmp(rig_layout, "rtx") == 0 ? TANDEM_STANDIN_DIR "/rtx/libtensorrt_rtx.so.1"
                                                      : NULL;
  if (!path) {
    fprintf(stderr, "layout %s, expected 10, 11 or rtx\n", rig_layout);
    return 1;
  }
  setenv("TANDEM_TENSORRT_LIBRARY", path, 1);
  if (!rig_on_real_driver()) {
    setenv("TANDEM_CUDA_LIBRARY", cuda_path, 1); /* before the library that opens it */
    void *cuda = open_control(cuda_path, "standin_cuda_control");
    if (!cuda)
      return 1;
    const struct standin_cuda *(*cuda_control)(void);
    memcpy(&cuda_control, &cuda, sizeof cuda);
    rig_device = cuda_control();
  }
  void *nvinfer = open_control(path, "standin_nvinfer_control");
  if (!nvinfer)
    return 1;
  const struct standin_nvinfer *(*nvinfer_control)(void);
  memcpy(&nvinfer_control, &nvinfer, sizeof nvinfer);
  rig_library = nvinfer_control();
  if (!driver_open(&rig_cuda, why, sizeof why)) {
    fprintf(stderr, "%s\n", why);
    return 1;
  }
  /* A real driver takes a second for each new primary context: one is kept. */
  void *kept;
  if (!rig_device && rig_cuda.primary_retain(&kept, 0) != CU_OK) {
    fprintf(stderr, "device 0 gives no primary context\n");
    return 1;
  }
  tandem_set_log_sink(keep_line, NULL);
  return 0;
}

static void skip_it(void **state) {
  (void)state;
  skip();
}

int rig_run_tests(const char *name, const struct CMUnitTest *tests, size_t count) {
  struct CMUnitTest chosen[TESTS_MAX];
  if (count > TESTS_MAX) {
    fprintf(stderr, "%zu tests, expected at most %d\n", count, TESTS_MAX);
    return 1;
  }
  for (size_t i = 0; i < count; i++) {
    chosen[i] = tests[i];
    if (rig_on_real_driver() && tests[i].setup_func == rig_setup)
      chosen[i] = (struct CMUnitTest){.name = tests[i].name, .test_func = skip_it};
  }
  return _cmocka_run_group_tests(name, chosen, count, NULL, NULL);
}

int rig_setup_anywhere(void **state) {
  return rig_setup(state);
}

int rig_setup(void **state) {
  (void)state;
  bound_set("a test of the TensorRT vendor", rig_device ? SECONDS_MAX : SECONDS_MAX_REAL);
  if (rig_device)
    rig_device->reset();
  rig_library->reset();
  pthread_mutex_lock(&lines_lock);
  line_count = 0;
  pthread_mutex_unlock(&lines_lock);
  stats_before = rig_stats();
  return 0;
}

int rig_teardown(void **state) {
  (void)state;
  struct standin_cuda_live live = {0};
  struct standin_counts counts;
  struct tandem_stats stats = rig_stats();
  uint64_t violations = 0;
  if (rig_device) {
    rig_device->fail_at(NULL, 0, 0);
    rig_device->live(&live);
    violations = rig_device->violations();
  }
  rig_library->counts(&counts);
  bool clean = stats.engines == 0 && stats.loads == 0 && live.device_blocks == 0 && live.host_blocks == 0 &&
               live.primary_retains == 0 && live.streams == 0 && live.events == 0 && live.graphs == 0 &&
               live.graph_instances == 0 && counts.engines == 0 && counts.contexts == 0 &&
               counts.runtimes == 0 && counts.traps == 0 && counts.misuses == 0 && violations == 0;
  if (!clean) {
    fprintf(stderr,
            "left behind: %llu engines and %llu loads of tandem; %lld runtimes, %lld engines, %lld contexts "
            "of the "
            "library, %llu traps, %llu misuses; %llu violations; %llu retains of primary contexts\n",
            (unsigned long long)stats.engines, (unsigned long long)stats.loads, (long long)counts.runtimes,
            (long long)counts.engines, (long long)counts.contexts, (unsigned long long)counts.traps,
            (unsigned long long)counts.misuses, (unsigned long long)violations,
            (unsigned long long)live.primary_retains);
    if (rig_device)
      rig_device->report();
  }
  return clean ? 0 : 1;
}

uint64_t rig_calls(const char *function) {
  return rig_device ? rig_device->calls(function) : 0;
}

uint64_t rig_used(int device) {
  return rig_device ? rig_device->memory_used(device) : 0;
}

void rig_hold(bool held) {
  if (rig_device)
    rig_device->hold(held);
}

bool rig_wait_held(unsigned count) {
  return !rig_device || rig_device->wait_held(count);
}

/* ---------------------------------------------------------------- payloads */

static const int64_t widths[] = {8, 16, 4};

const struct standin_mlp rig_dynamic = {.name = "dynamic",
                                        .seed = 2,
                                        .relu = true,
                                        .layer_count = 2,
                                        .widths = widths,
                                        .rows_min = 1,
                                        .rows_opt = 4,
                                        .rows_max = 8,
                                        .scratch_base = 1000,
                                        .scratch_per_row = 1000};
static const int64_t plain_widths[] = {8, 4};
const struct standin_mlp rig_plain = {.name = "plain",
                                      .seed = 7,
                                      .layer_count = 1,
                                      .widths = plain_widths,
                                      .rows_min = 2,
                                      .rows_opt = 2,
                                      .rows_max = 2};

struct rig_payload rig_wrap(void *plan, size_t plan_size, int32_t device_id) {
  struct rig_payload payload;
  assert_non_null(plan);
  payload.bytes = standin_payload_bytes(
      &(struct standin_payload){.plan = plan, .plan_size = plan_size, .device_id = device_id}, &payload.size);
  assert_non_null(payload.bytes);
  free(plan);
  return payload;
}

struct rig_payload rig_sample(const char *name) {
  size_t size;
  void *plan = standin_sample_bytes(name, &size);
  return rig_wrap(plan, size, 0);
}

struct rig_payload rig_mlp(const struct standin_mlp *mlp, int32_t device_id) {
  size_t size;
  void *plan = standin_mlp_bytes(mlp, &size);
  return rig_wrap(plan, size, device_id);
}

void rig_payload_free(struct rig_payload *payload) {
  free(payload->bytes);
  *payload = (struct rig_payload){0};
}

/* ---------------------------------------------------------------- loads */

static enum tandem_status load_with(const struct rig_payload *payload, struct tandem_load **load,
                                    struct tandem_error *error, va_list pairs) {
  struct tandem_option options[OPTIONS_MAX];
  size_t count = 0;
  for (const char *key; count < OPTIONS_MAX && (key = va_arg(pairs, const char *)) != NULL;)
    options[count++] = (struct tandem_option){key, va_arg(pairs, const char *)};
  void *copy = malloc(payload->size);
  assert_non_null(copy);
  memcpy(copy, payload->bytes, payload->size);
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "TensorRTBackend",
                                  .payload = copy,
                                  .payload_size = payload->size,
                                  .options = options,
                                  .option_count = count};
  enum tandem_status status = tandem_load_create(&desc, load, error);
  memset(copy, 0xa5, payload->size);
  free(copy);
  return status;
}

enum tandem_status rig_try_load(const struct rig_payload *payload, struct tandem_load **load,
                                struct tandem_error *error, ...) {
  va_list pairs;
  va_start(pairs, error);
  enum tandem_status status = load_with(payload, load, error, pairs);
  va_end(pairs);
  return status;
}

struct tandem_load *rig_load(const struct rig_payload *payload, ...) {
  struct tandem_load *load = NULL;
  struct tandem_error error;
  va_list pairs;
  va_start(pairs, payload);
  enum tandem_status status = load_with(payload, &load, &error, pairs);
  va_end(pairs);
  if (status != TANDEM_OK)
    fail_msg("%s", error.message);
  return load;
}

struct tandem_load_info rig_info(const struct tandem_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(load, &info, NULL), TANDEM_OK);
  return info;
}

struct tandem_stats rig_stats(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(tandem_stats_get(&stats, NULL), TANDEM_OK);
  return stats;
}

struct tandem_tensor rig_tensor(void *data, int32_t dtype, int32_t rank, ...) {
  struct tandem_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
  va_list dims;
  va_start(dims, rank);
  tensor.size = tandem_dtype_size(dtype);
  for (int32_t i = 0; i < rank; i++) {
    tensor.shape[i] = va_arg(dims, int);
    tensor.size *= (size_t)tensor.shape[i];
  }
  va_end(dims);
  return tensor;
}

enum tandem_status rig_run(struct tandem_load *load, struct tandem_run_desc *run,
                           struct tandem_error *error) {
  run->struct_size = sizeof *run;
  return tandem_load_run(load, run, error);
}

void rig_fill(float *values, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++)
    values[i] = (float)((i * 37 + seed * 101 + 11) % 64) / 16.0f - 2.0f;
}

void rig_expect_mlp(struct tandem_load *load, const struct standin_mlp *mlp, int64_t rows, unsigned seed) {
  size_t width = (size_t)mlp->widths[0], depth = (size_t)mlp->widths[mlp->layer_count], count = (size_t)rows;
  float *x = malloc(count * width * sizeof *x), *y = malloc(count * depth * sizeof *y);
  float *expected = malloc(count * depth * sizeof *y);
  assert_true(x && y && expected);
  rig_fill(x, count * width, seed);
  memset(y, 0xff, count * depth * sizeof *y);
  assert_true(standin_mlp_expect(mlp, x, rows, expected));
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, (int)rows, (int)width);
  struct tandem_tensor output = rig_tensor(y, TANDEM_FLOAT32, 2, (int)rows, (int)depth);
  struct tandem_error error;
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_int_equal(output.rank, 2);
  assert_int_equal(output.shape[0], rows);
  assert_memory_equal(y, expected, count * depth * sizeof *y);
  free(x);
  free(y);
  free(expected);
}

/* ---------------------------------------------------------------- device memory */

void rig_push(int device) {
  void *context;
  assert_int_equal(rig_cuda.primary_retain(&context, device), CU_OK);
  assert_int_equal(rig_cuda.context_push(context), CU_OK);
}

void rig_pop(int device) {
  void *context;
  assert_int_equal(rig_cuda.context_pop(&context), CU_OK);
  assert_int_equal(rig_cuda.primary_release(device), CU_OK);
}

static void keep(int device) {
  void *context;
  assert_int_equal(rig_cuda.primary_retain(&context, device), CU_OK);
}

static void give_up(int device) {
  assert_int_equal(rig_cuda.primary_release(device), CU_OK);
}

void *rig_allocate(int device, size_t size) {
  uint64_t address;
  keep(device);
  rig_push(device);
  assert_int_equal(rig_cuda.allocate(&address, size), CU_OK);
  rig_pop(device);
  return (void *)(uintptr_t)address;
}

void rig_free(int device, void *memory) {
  rig_push(device);
  assert_int_equal(rig_cuda.release((uint64_t)(uintptr_t)memory), CU_OK);
  rig_pop(device);
  give_up(device);
}

void rig_write(int device, void *to, const void *from, size_t size) {
  rig_push(device);
  assert_int_equal(rig_cuda.copy_to((uint64_t)(uintptr_t)to, from, size), CU_OK);
  rig_pop(device);
}

void rig_read(int device, void *to, const void *from, size_t size) {
  rig_push(device);
  assert_int_equal(rig_cuda.copy_from(to, (uint64_t)(uintptr_t)from, size), CU_OK);
  rig_pop(device);
}

void *rig_stream(int device) {
  void *stream;
  keep(device);
  rig_push(device);
  assert_int_equal(rig_cuda.stream_create(&stream, 1), CU_OK);
  rig_pop(device);
  return stream;
}

void rig_stream_free(int device, void *stream) {
  rig_push(device);
  assert_int_equal(rig_cuda.stream_destroy(stream), CU_OK);
  rig_pop(device);
  give_up(device);
}

static bool is_done(int result) {
  if (result != CU_OK && result != CU_NOT_READY)
    fail_msg("the driver answers %d", result);
  return result == CU_OK;
}

bool rig_stream_is_done(void *stream) {
  rig_push(0);
  int result = rig_cuda.stream_query(stream);
  rig_pop(0);
  return is_done(result);
}

bool rig_event_is_done(void *event) {
  rig_push(0);
  int result = rig_cuda.event_query(event);
  rig_pop(0);
  return is_done(result);
}

void rig_event_wait(void *event) {
  rig_push(0);
  int result = rig_cuda.event_synchronize(event);
  rig_pop(0);
  assert_int_equal(result, CU_OK);
}

void *rig_current(void) {
  void *context = NULL;
  assert_int_equal(rig_cuda.context_get(&context), CU_OK);
  return context;
}
