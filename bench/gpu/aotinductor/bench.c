/* aoti_bench MEASUREMENT PROGRAM.pte [DATA.ptd...] [NAME=VALUE...]: one JSON document on stdout.
 *
 * Programs run through the C door, as a host without Python runs them; what is measured is the device's
 * memory as its driver counts it (one process, nothing else on the device) and wall time around whole runs,
 * inputs and outputs in device memory where the method takes that. Inputs are made from the shapes that the
 * program tells. `good` is false where a figure is beyond what issue 6 promises; the exit status is 0 all the
 * same.
 *
 * speed takes what tandem's run costs over the engine's own from containers without tandem, in the same
 * process and turn by turn: engine=FILE.so weights=FILE.blob libraries=A:B:C name the program's engine and
 * what it is bound to. They are fed as a program needs it that has its tensors in memory of its own: outputs
 * are copied there on the stream of the run, host tensors go through device memory, and one wait ends the
 * run. Either side's output memory is freed in the order of the stream of its run, as tandem frees it.
 */
#include "direct.h"
#include "driver.h"

#include <tandem/program.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, TENSORS_MAX = 32, LOADS = 8, AT_ONCE_MAX = 8, FILES_MAX = 8 };

static struct driver cuda;
static void *context;
static struct tandem_program *program;
static const char *const *words;
static int word_count;
static const char *files[FILES_MAX];
static int file_count;
static const char *path_of_program;
static const char *device_of_loads; /* NULL: as the arguments or the program say */
static bool host_tensors;

_Noreturn static void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void stop(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("aoti_bench: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void must_cuda(int code, const char *call) {
  if (code != CU_OK)
    stop("%s says %d", call, code);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts; the nearest rank. */
static double percentile(double *values, size_t count, double percent) {
  qsort(values, count, sizeof *values, order);
  size_t rank = (size_t)((double)count * percent / 100 + 0.999999);
  return values[rank > 0 ? (rank > count ? count : rank) - 1 : 0];
}

static const char *word(const char *name, const char *fallback) {
  size_t size = strlen(name);
  for (int i = 0; i < word_count; i++)
    if (strncmp(words[i], name, size) == 0 && words[i][size] == '=')
      return words[i] + size + 1;
  return fallback;
}

static size_t number(const char *name, size_t fallback) {
  const char *text = word(name, NULL);
  return text ? strtoull(text, NULL, 10) : fallback;
}

static void judge(cJSON *document, const char *key, double value, double limit) {
  cJSON *limits = cJSON_GetObjectItem(document, "limits");
  if (!limits)
    limits = cJSON_AddObjectToObject(document, "limits");
  cJSON *entry = cJSON_AddObjectToObject(limits, key);
  cJSON_AddNumberToObject(entry, "value", value);
  cJSON_AddNumberToObject(entry, "limit", limit);
  cJSON_AddBoolToObject(entry, "good", value <= limit);
}

static double used_memory(void) {
  size_t free_bytes, total_bytes;
  must_cuda(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  return (double)(total_bytes - free_bytes);
}

static struct tandem_program *open_program(const char *path, const char *const *data, size_t count) {
  struct tandem_program_desc desc = {
      .struct_size = sizeof desc, .path = path, .data_paths = data, .data_path_count = count};
  struct tandem_program *opened;
  struct tandem_error error;
  if (tandem_program_create(&desc, &opened, &error) != TANDEM_OK)
    stop("%s", error.message);
  return opened;
}

/* ---------------------------------------------------------------- loads */

/* A load with tensors of its own. */
struct load {
  struct tandem_method *method;
  struct tandem_tensor inputs[TENSORS_MAX], outputs[TENSORS_MAX];
  size_t input_count, output_count;
  bool on_device; /* the tensors */
  void *stream;
  struct aoti_container *container; /* not NULL: without tandem, there is no method */
  bool copies;                      /* its outputs into `outputs`; else they are left where they are */
  uint64_t staged[TENSORS_MAX];     /* device memory of its host inputs */
};
static struct direct direct;

static struct tandem_method *try_method(const char *shared, const char *graph, struct tandem_error *error) {
  struct tandem_option options[3] = {{"use_shared_engines", shared}, {"cuda_graph", graph}};
  size_t count = 2;
  struct tandem_method *method = NULL;
  const char *device = device_of_loads ? device_of_loads : word("target_device", NULL);
  if (device)
    options[count++] = (struct tandem_option){word("device_option", "target_device"), device};
  tandem_method_create(program, word("method", "forward"), options, count, &method, error);
  return method;
}

static float value_at(size_t i, unsigned seed) {
  return (float)((i * 37 + seed * 101 + 11) % 64) / 64.0f - 0.5f;
}

/* Of a normal half or 0, which value_at's are. */
static uint16_t half_of(float value) {
  int exponent;
  float mantissa = frexpf(fabsf(value), &exponent);
  if (mantissa == 0)
    return 0;
  return (uint16_t)((value < 0) << 15 | (exponent + 14) << 10 | ((int)(mantissa * 2048) - 1024));
}

static void fill(void *data, int32_t dtype, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++) {
    float value = value_at(i, seed);
    uint32_t bits;
    switch (dtype) {
    case TANDEM_FLOAT32:
      ((float *)data)[i] = value;
      break;
    case TANDEM_FLOAT64:
      ((double *)data)[i] = (double)value;
      break;
    case TANDEM_BFLOAT16:
      memcpy(&bits, &value, sizeof bits);
      ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
      break;
    case TANDEM_FLOAT16:
      ((uint16_t *)data)[i] = half_of(value);
      break;
    default: /* indices and masks */
      memset((char *)data + i * tandem_dtype_size(dtype), 0, tandem_dtype_size(dtype));
      ((char *)data)[i * tandem_dtype_size(dtype)] = (char)(dtype == TANDEM_BOOL ? 1 : i % 4);
    }
  }
}

static void make_tensor(struct tandem_tensor *tensor, const struct tandem_io *io, bool on_device, bool filled,
                        unsigned seed) {
  size_t count = 1;
  *tensor = (struct tandem_tensor){.dtype = io->dtype, .rank = io->rank};
  for (int32_t d = 0; d < io->rank; d++) {
    tensor->shape[d] = io->max[d];
    count *= (size_t)io->max[d];
  }
  tensor->size = count * tandem_dtype_size(io->dtype);
  void *host = calloc(1, tensor->size + 1);
  if (!host)
    stop("no memory for %zu bytes", tensor->size);
  if (filled)
    fill(host, io->dtype, count, seed);
  tensor->data = host;
  if (!on_device)
    return;
  uint64_t address;
  must_cuda(cuda.allocate(&address, tensor->size + 1), "cuMemAlloc");
  must_cuda(cuda.copy_to(address, host, tensor->size), "cuMemcpyHtoD");
  tensor->data = (void *)(uintptr_t)address;
  free(host);
}

static void make_tensors(struct load *load, unsigned seed) {
  struct tandem_error error = {0};
  const struct tandem_io *inputs, *outputs;
  if (tandem_program_method_io(program, word("method", "forward"), &inputs, &load->input_count, &outputs,
                               &load->output_count, &error) != TANDEM_OK ||
      load->input_count > TENSORS_MAX || load->output_count > TENSORS_MAX)
    stop("inputs and outputs: %s", error.message);
  for (size_t i = 0; i < load->input_count; i++)
    make_tensor(&load->inputs[i], &inputs[i], load->on_device, true, seed + (unsigned)i);
  for (size_t i = 0; i < load->output_count; i++)
    make_tensor(&load->outputs[i], &outputs[i], load->on_device, false, 0);
}

static struct load make_load(const char *shared, const char *graph, unsigned seed) {
  struct load load = {0};
  struct tandem_error error = {0};
  load.method = try_method(shared, graph, &error);
  if (!load.method)
    stop("%s", error.message);
  load.on_device = tandem_method_direct(load.method) && !host_tensors && !number("host_tensors", 0);
  make_tensors(&load, seed);
  return load;
}

/* With weights of its own. Never freed: deleting containers of several loads has crashed. */
static struct load make_direct(const uint8_t *weights, bool on_device, bool copies, unsigned seed) {
  struct load load = {.on_device = on_device, .copies = copies};
  if (direct.api.create(&load.container, 1, "cuda:0", NULL) || direct.api.load_blob(load.container, weights))
    stop("the engine does not load");
  must_cuda(cuda.stream_create(&load.stream, 1), "cuStreamCreate");
  make_tensors(&load, seed);
  for (size_t i = 0; !on_device && i < load.input_count; i++)
    must_cuda(cuda.allocate(&load.staged[i], load.inputs[i].size + 1), "cuMemAlloc");
  return load;
}

static enum tandem_status try_run(struct load *load, struct tandem_error *error) {
  struct tandem_run_desc run = {.struct_size = sizeof run,
                                .inputs = load->inputs,
                                .input_count = load->input_count,
                                .outputs = load->outputs,
                                .output_count = load->output_count,
                                .stream = load->stream};
  return tandem_method_run(load->method, &run, error);
}

static void run_direct(struct load *load) {
  struct aoti_tensor *inputs[TENSORS_MAX], *outputs[TENSORS_MAX] = {NULL};
  bool failed = false;
  for (size_t i = 0; i < load->input_count; i++) {
    const struct tandem_tensor *tensor = &load->inputs[i];
    int64_t strides[TANDEM_MAX_RANK], stride = 1;
    for (int32_t d = tensor->rank; d-- > 0;) {
      strides[d] = stride;
      stride *= tensor->shape[d];
    }
    void *data = tensor->data;
    if (!load->on_device) {
      must_cuda(cuda.copy_to_async(load->staged[i], data, tensor->size, load->stream), "cuMemcpyHtoDAsync");
      data = (void *)(uintptr_t)load->staged[i];
    }
    failed =
        failed || direct_tensors.create_tensor(data, tensor->rank, tensor->shape, strides, 0, tensor->dtype,
                                               AOTI_DEVICE_CUDA, 0, &inputs[i], AOTI_LAYOUT_STRIDED, NULL, 0);
  }
  if (failed || direct.api.run(load->container, inputs, load->input_count, outputs, load->output_count,
                               load->stream, NULL))
    stop("the engine does not run");
  for (size_t i = 0; load->copies && i < load->output_count; i++) {
    const struct tandem_tensor *tensor = &load->outputs[i];
    void *data;
    if (direct_tensors.tensor_data(outputs[i], &data))
      stop("an output has no data");
    uint64_t from = (uint64_t)(uintptr_t)data;
    must_cuda(load->on_device
                  ? cuda.copy_async((uint64_t)(uintptr_t)tensor->data, from, tensor->size, load->stream)
                  : cuda.copy_from_async(tensor->data, from, tensor->size, load->stream),
              "copy an output");
  }
  void *guard;
  if (direct_enter_stream(load->stream, 0, &guard))
    stop("no stream for the engine's memory");
  for (size_t i = 0; i < load->output_count; i++)
    direct_tensors.delete_tensor(outputs[i]);
  direct_leave_stream(guard);
  must_cuda(cuda.stream_synchronize(load->stream), "cuStreamSynchronize");
}

static void run_load(struct load *load) {
  struct tandem_error error;
  if (load->container) {
    run_direct(load);
    return;
  }
  if (try_run(load, &error) != TANDEM_OK)
    stop("run: %s", error.message);
}

static void free_load(struct load *load) {
  tandem_method_destroy(load->method);
  for (size_t i = 0; i < load->input_count + load->output_count; i++) {
    struct tandem_tensor *tensor =
        i < load->input_count ? &load->inputs[i] : &load->outputs[i - load->input_count];
    if (load->on_device)
      must_cuda(cuda.release((uint64_t)(uintptr_t)tensor->data), "cuMemFree");
    else
      free(tensor->data);
  }
}

static struct tandem_load_info info_of(const struct load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  if (tandem_load_get_info(tandem_method_load(load->method, 0), &info, NULL) != TANDEM_OK)
    stop("no information of a load");
  return info;
}

/* All outputs, one after the other; owned. */
static void *read_outputs(const struct load *load, size_t *size) {
  *size = 0;
  for (size_t i = 0; i < load->output_count; i++)
    *size += load->outputs[i].size;
  char *bytes = malloc(*size + 1), *at = bytes;
  for (size_t i = 0; bytes && i < load->output_count; i++) {
    if (load->on_device)
      must_cuda(cuda.copy_from(at, (uint64_t)(uintptr_t)load->outputs[i].data, load->outputs[i].size),
                "cuMemcpyDtoH");
    else
      memcpy(at, load->outputs[i].data, load->outputs[i].size);
    at += load->outputs[i].size;
  }
  return bytes;
}

static bool same_outputs(const struct load *one, const struct load *other) {
  size_t size, other_size;
  void *a = read_outputs(one, &size), *b = read_outputs(other, &other_size);
  bool same = size == other_size && memcmp(a, b, size) == 0;
  free(a);
  free(b);
  return same;
}

static double io_bytes(const struct load *load) {
  double bytes = 0;
  for (size_t i = 0; load->on_device && i < load->input_count; i++)
    bytes += (double)load->inputs[i].size;
  for (size_t i = 0; load->on_device && i < load->output_count; i++)
    bytes += (double)load->outputs[i].size;
  return bytes;
}

/* ---------------------------------------------------------------- memory */

/* Loads one after another, each run once; memory after the load and after its run, each load's tensors made
 * before its first figure is taken. */
static void measure_loads(cJSON *document, const char *shared, const char *graph) {
  struct load loads[LOADS];
  size_t count = number("loads", LOADS);
  double base = used_memory(), before = base;
  bool equal = true;
  cJSON *mode = cJSON_CreateObject(), *load_bytes, *run_bytes, *seconds, *digests;
  cJSON_AddItemToArray(cJSON_GetObjectItem(document, "modes"), mode);
  cJSON_AddBoolToObject(mode, "shared", strcmp(shared, "true") == 0);
  cJSON_AddBoolToObject(mode, "graph", strcmp(graph, "true") == 0);
  load_bytes = cJSON_AddArrayToObject(mode, "load_bytes");
  run_bytes = cJSON_AddArrayToObject(mode, "run_bytes");
  seconds = cJSON_AddArrayToObject(mode, "load_seconds");
  digests = cJSON_AddArrayToObject(mode, "digest_seconds");
  double second_bytes = 0, second_seconds = 0;
  for (size_t i = 0; i < count && i < LOADS; i++) {
    loads[i] = make_load(shared, graph, 1);
    struct tandem_load_info info = info_of(&loads[i]);
    double after = used_memory();
    for (int k = 0; k < (strcmp(graph, "true") == 0 ? 3 : 1); k++)
      run_load(&loads[i]);
    double ran = used_memory();
    equal = equal && same_outputs(&loads[0], &loads[i]);
    cJSON_AddItemToArray(load_bytes, cJSON_CreateNumber(after - before));
    cJSON_AddItemToArray(run_bytes, cJSON_CreateNumber(ran - after));
    cJSON_AddItemToArray(seconds, cJSON_CreateNumber(info.seconds));
    cJSON_AddItemToArray(digests, cJSON_CreateNumber(info.digest_seconds));
    if (i == 1) {
      second_bytes = after - before - io_bytes(&loads[i]);
      second_seconds = info.seconds - info.digest_seconds;
    }
    before = ran;
  }
  cJSON_AddBoolToObject(mode, "outputs_equal", equal);
  cJSON_AddNumberToObject(mode, "engine_bytes", (double)info_of(&loads[0]).engine_bytes);
  cJSON_AddNumberToObject(mode, "io_bytes", io_bytes(&loads[0]));
  cJSON_AddBoolToObject(mode, "tensors_on_device", loads[0].on_device);
  for (size_t i = 0; i < count && i < LOADS; i++)
    free_load(&loads[i]);
  cJSON_AddNumberToObject(mode, "left_bytes", used_memory() - base);
  if (strcmp(shared, "true") == 0 && strcmp(graph, "false") == 0) {
    judge(document, "second_shared_load_bytes", second_bytes, 4.0 * MIB);
    judge(document, "second_shared_load_seconds_beyond_digest", second_seconds, 0.002);
  }
  judge(document, strcmp(shared, "true") == 0 ? "shared_outputs_differ" : "private_outputs_differ", !equal,
        0);
}

static void measure_memory(cJSON *document) {
  cJSON_AddArrayToObject(document, "modes");
  struct load warm = make_load("true", "false", 1); /* the context, and what libraries allocate once */
  run_load(&warm);
  free_load(&warm);
  measure_loads(document, "true", "false");
  measure_loads(document, "false", "false");
  if (number("graph", 1))
    measure_loads(document, "true", "true");
}

/* ---------------------------------------------------------------- speed */

/* Threads that stay: the shims leave a stream for each thread that ran an engine without tandem. */
struct runner {
  struct load *load;
  size_t runs;
  pthread_barrier_t *turn; /* a round begins, and ends */
};

static void *run_many(void *user) {
  struct runner *runner = user;
  pthread_barrier_t *turn = runner->turn; /* the rest is another round's as soon as one has ended */
  must_cuda(cuda.context_push(context), "cuCtxPushCurrent"); /* which containers without tandem want */
  for (;;) {
    pthread_barrier_wait(turn);
    for (size_t i = 0; i < runner->runs; i++)
      run_load(runner->load);
    pthread_barrier_wait(turn);
  }
  return NULL;
}

/* Those that run `count` loads at once. They end with the process. */
static struct {
  struct runner runners[AT_ONCE_MAX];
  pthread_barrier_t turn;
} teams[AT_ONCE_MAX + 1];

/* Seconds a run of all. */
static double run_together(struct load *loads, size_t count, size_t runs) {
  struct runner *runners = teams[count].runners;
  pthread_barrier_t *turn = &teams[count].turn;
  pthread_t thread;
  if (count == 1) {
    double began = now_s();
    for (size_t i = 0; i < runs; i++)
      run_load(loads);
    return (now_s() - began) / (double)runs;
  }
  bool there = runners[0].turn != NULL;
  if (!there)
    pthread_barrier_init(turn, NULL, (unsigned)count + 1);
  for (size_t i = 0; i < count; i++) {
    runners[i] = (struct runner){.load = &loads[i], .runs = runs, .turn = turn};
    if (!there && (pthread_create(&thread, NULL, run_many, &runners[i]) != 0 || pthread_detach(thread) != 0))
      stop("no thread");
  }
  pthread_barrier_wait(turn);
  double began = now_s();
  pthread_barrier_wait(turn);
  return (now_s() - began) / (double)runs;
}

/* Paired: each round runs either side, the order changing, so that what drifts meets both alike. */
static void compare(cJSON *document, const char *key, struct load *one, struct load *other, size_t count,
                    size_t rounds, size_t runs, double limit) {
  double *a = calloc(3 * rounds, sizeof *a), *b = a + rounds, *ratios = b + rounds;
  run_together(one, count, runs);
  run_together(other, count, runs);
  for (size_t i = 0; i < rounds; i++) {
    if (i % 2 == 0)
      a[i] = run_together(one, count, runs);
    b[i] = run_together(other, count, runs);
    if (i % 2 != 0)
      a[i] = run_together(one, count, runs);
    ratios[i] = a[i] / b[i];
  }
  cJSON *object = cJSON_AddObjectToObject(cJSON_GetObjectItem(document, "comparisons"), key);
  double middle = percentile(ratios, rounds, 50);
  cJSON_AddNumberToObject(object, "loads_at_once", (double)count);
  cJSON_AddNumberToObject(object, "rounds", (double)rounds);
  cJSON_AddNumberToObject(object, "runs", (double)runs);
  cJSON_AddNumberToObject(object, "median_ms", percentile(a, rounds, 50) * 1e3);
  cJSON_AddNumberToObject(object, "other_median_ms", percentile(b, rounds, 50) * 1e3);
  cJSON_AddNumberToObject(object, "median_of_ratios", middle);
  cJSON_AddNumberToObject(object, "ratio_p25", percentile(ratios, rounds, 25));
  cJSON_AddNumberToObject(object, "ratio_p75", percentile(ratios, rounds, 75));
  if (limit > 0)
    judge(document, key, middle, limit);
  free(a);
}

static uint8_t *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) != 0)
    stop("%s is not there", path);
  size_t size = (size_t)ftell(file);
  uint8_t *bytes = malloc(size + 1);
  rewind(file);
  if (!bytes || fread(bytes, 1, size, file) != size)
    stop("%s cannot be read", path);
  fclose(file);
  return bytes;
}

/* What tandem's run costs over the engine's own. */
static void compare_direct(cJSON *document, struct load *shared, size_t rounds, size_t runs) {
  struct load same[4], bare, on_host, host_shared;
  char names[4096], key[64], *rest = names, *paths[8];
  int count = 0;
  bool equal = true;
  snprintf(names, sizeof names, "%s", word("libraries", ""));
  for (char *name = strsep(&rest, ":"); name && count < 8; name = strsep(&rest, ":"))
    paths[count++] = name;
  direct_open_libraries(count, paths);
  direct_open_engine(&direct, word("engine", ""));
  const uint8_t *weights = read_file(word("weights", "")); /* stays, as the containers do */
  for (unsigned i = 0; i < 4; i++)
    same[i] = make_direct(weights, shared->on_device, true, i + 1);
  bare = make_direct(weights, shared->on_device, false, 1);
  on_host = make_direct(weights, false, true, 1);
  host_tensors = true;
  host_shared = make_load("true", "false", 1);
  host_tensors = false;
  for (unsigned i = 0; i < 4; i++) { /* first runs one after the other: they load kernels */
    run_load(&same[i]);
    run_load(&shared[i]);
    equal = equal && same_outputs(&same[i], &shared[i]);
  }
  run_load(&bare);
  run_load(&on_host);
  run_load(&host_shared);
  equal = equal && same_outputs(&on_host, &host_shared);
  judge(document, "direct_outputs_differ", !equal, 0);
  for (size_t at_once = 1; at_once <= 4; at_once *= 2) {
    snprintf(key, sizeof key, "tandem_over_direct_%zu_at_once", at_once);
    compare(document, key, shared, same, at_once, rounds, runs, 1.01);
  }
  compare(document, "tandem_over_direct_host_tensors", &host_shared, &on_host, 1, rounds, runs, 1.01);
  compare(document, "tandem_over_direct_that_copies_no_output", shared, &bare, 1, rounds, runs, 0);
  free_load(&host_shared);
}

static void measure_speed(cJSON *document) {
  struct load shared[4], alone[4], graphs[1];
  size_t rounds = number("rounds", 31), runs = number("runs", 10);
  char key[64];
  cJSON_AddObjectToObject(document, "comparisons");
  for (unsigned i = 0; i < 4; i++)
    shared[i] = make_load("true", "false", i + 1);
  for (unsigned i = 0; i < 4; i++)
    alone[i] = make_load("false", "false", i + 1);
  for (size_t count = 1; count <= 4; count *= 2) {
    snprintf(key, sizeof key, "shared_over_private_%zu_at_once", count);
    compare(document, key, shared, alone, count, rounds, runs, 1.01);
  }
  bool equal = true;
  for (int i = 0; i < 4; i++)
    equal = equal && same_outputs(&shared[i], &alone[i]);
  judge(document, "outputs_differ", !equal, 0);
  if (number("graph", 1)) {
    graphs[0] = make_load("true", "true", 1);
    for (int i = 0; i < 4; i++)
      run_load(graphs);
    judge(document, "replayed_outputs_differ", !same_outputs(graphs, alone), 0);
    compare(document, "replayed_over_plain", graphs, shared, 1, rounds, runs, 0);
    free_load(graphs);
  }
  if (word("engine", NULL))
    compare_direct(document, shared, rounds, runs);
  for (int i = 0; i < 4; i++) {
    free_load(&shared[i]);
    free_load(&alone[i]);
  }
}

/* ---------------------------------------------------------------- storm, race, state */

static struct {
  struct load *load;
  volatile bool ended;
  double *seconds;
  size_t count, capacity;
} beside;

static void *run_beside(void *unused) {
  (void)unused;
  while (!beside.ended) {
    double began = now_s();
    run_load(beside.load);
    if (beside.count < beside.capacity)
      beside.seconds[beside.count++] = now_s() - began;
  }
  return NULL;
}

/* Load, run, unload, many times: of the engine that a running load has, then of one that nobody has, which is
 * built and freed each time. */
static void measure_storm(cJSON *document) {
  size_t cycles = number("cycles", 1000), builds = number("builds", 20);
  struct load running = make_load("true", "false", 1);
  run_load(&running);
  beside.load = &running;
  beside.capacity = 1 << 20;
  beside.seconds = calloc(beside.capacity, sizeof *beside.seconds);
  pthread_t thread;
  if (pthread_create(&thread, NULL, run_beside, NULL) != 0)
    stop("no thread");
  for (int i = 0; i < 20; i++) { /* what two runs at once need, and the first ones leave for the later ones */
    struct load first = make_load("true", "false", 2);
    run_load(&first);
    free_load(&first);
  }
  double before = used_memory(), highest = 0;
  double began = now_s();
  for (size_t i = 0; i < cycles; i++) {
    struct load load = make_load("true", "false", 2);
    run_load(&load);
    free_load(&load);
    double grown = used_memory() - before;
    highest = grown > highest ? grown : highest;
  }
  double seconds = now_s() - began;
  beside.ended = true;
  pthread_join(thread, NULL);
  double after = used_memory() - before;
  cJSON_AddNumberToObject(document, "cycles", (double)cycles);
  cJSON_AddNumberToObject(document, "cycles_per_s", (double)cycles / seconds);
  cJSON_AddNumberToObject(document, "grown_bytes", after);
  cJSON_AddNumberToObject(document, "highest_bytes", highest);
  cJSON_AddNumberToObject(document, "runs_beside", (double)beside.count);
  cJSON_AddNumberToObject(document, "beside_p50_ms", percentile(beside.seconds, beside.count, 50) * 1e3);
  cJSON_AddNumberToObject(document, "beside_p99_ms", percentile(beside.seconds, beside.count, 99) * 1e3);
  judge(document, "memory_after_cycles", after, 2.0 * MIB);
  free_load(&running);
  /* Modules that torch does not unload show here: each build opens the engine's library anew. */
  double base = used_memory();
  for (size_t i = 0; i < builds; i++) {
    struct load load = make_load("true", "false", 2);
    run_load(&load);
    free_load(&load);
  }
  cJSON_AddNumberToObject(document, "builds", (double)builds);
  cJSON_AddNumberToObject(document, "left_bytes_a_build",
                          (used_memory() - base) / (double)(builds ? builds : 1));
}

struct racer {
  struct tandem_method *method;
  struct tandem_error error;
  pthread_barrier_t *start;
  pthread_t thread;
};

static void *race_one(void *user) {
  struct racer *racer = user;
  pthread_barrier_wait(racer->start);
  racer->method = try_method("true", "false", &racer->error);
  return NULL;
}

/* Eight loads at once where one and a half copies of the engine fit. */
static void measure_race(cJSON *document) {
  struct racer racers[LOADS];
  struct load one = make_load("true", "false", 1);
  double engine = (double)info_of(&one).device_bytes;
  run_load(&one);
  free_load(&one);
  size_t free_bytes, total_bytes, rounds = number("rounds", 5), failed = 0;
  must_cuda(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  uint64_t ballast = 0;
  size_t room = (size_t)(engine * 1.5);
  if (free_bytes > room)
    must_cuda(cuda.allocate(&ballast, free_bytes - room), "cuMemAlloc");
  cJSON_AddNumberToObject(document, "engine_bytes", engine);
  cJSON_AddNumberToObject(document, "room_bytes", (double)room);
  for (size_t round = 0; round < rounds; round++) {
    pthread_barrier_t start;
    struct tandem_stats stats = {.struct_size = sizeof stats};
    pthread_barrier_init(&start, NULL, LOADS);
    for (int i = 0; i < LOADS; i++) {
      racers[i] = (struct racer){.start = &start};
      pthread_create(&racers[i].thread, NULL, race_one, &racers[i]);
    }
    for (int i = 0; i < LOADS; i++)
      pthread_join(racers[i].thread, NULL);
    tandem_stats_get(&stats, NULL);
    failed += stats.engines != 1;
    for (int i = 0; i < LOADS; i++) {
      if (!racers[i].method) {
        failed++;
        if (!cJSON_GetObjectItem(document, "first_failure"))
          cJSON_AddStringToObject(document, "first_failure", racers[i].error.message);
      }
      tandem_method_destroy(racers[i].method);
    }
    pthread_barrier_destroy(&start);
  }
  if (ballast)
    must_cuda(cuda.release(ballast), "cuMemFree");
  cJSON_AddNumberToObject(document, "rounds", (double)rounds);
  judge(document, "loads_that_failed", (double)failed, 0);
}

/* A place in a cache moves on with each step. */
static void add_one(struct load *load, size_t index) {
  struct tandem_tensor *input = &load->inputs[index];
  int64_t place = 0;
  if (load->on_device)
    must_cuda(cuda.copy_from(&place, (uint64_t)(uintptr_t)input->data, sizeof place), "cuMemcpyDtoH");
  else
    memcpy(&place, input->data, sizeof place);
  place++;
  if (load->on_device)
    must_cuda(cuda.copy_to((uint64_t)(uintptr_t)input->data, &place, sizeof place), "cuMemcpyHtoD");
  else
    memcpy(input->data, &place, sizeof place);
}

/* run: outputs of each step of two loads, for others to compare. inputs=FILE,FILE (raw bytes of the program's
 * dtypes), out=FOLDER, steps=N, step_input=K (an int64 that goes up by one each step); the second load starts
 * a step later. */
static void measure_run(cJSON *document) {
  struct load loads[2] = {make_load("true", "false", 1), make_load("true", "false", 1)};
  char names[1024], path[2048];
  size_t steps = number("steps", 1), stepped = number("step_input", SIZE_MAX);
  snprintf(names, sizeof names, "%s", word("inputs", ""));
  char *rest = names;
  for (size_t i = 0; i < loads[0].input_count && *names; i++) {
    char *name = strsep(&rest, ",");
    FILE *file = name ? fopen(name, "rb") : NULL;
    void *bytes = calloc(1, loads[0].inputs[i].size + 1);
    if (!file || !bytes)
      stop("input %zu: %s is not there", i, name ? name : "(none)");
    size_t size = fread(bytes, 1, loads[0].inputs[i].size, file);
    fclose(file);
    for (int k = 0; k < 2; k++) {
      struct tandem_tensor *input = &loads[k].inputs[i];
      if (size != input->size) { /* a dynamic first dimension */
        size_t row = input->size / (size_t)input->shape[0];
        input->shape[0] = (int64_t)(size / row);
      }
      if (loads[k].on_device)
        must_cuda(cuda.copy_to((uint64_t)(uintptr_t)input->data, bytes, size), "cuMemcpyHtoD");
      else
        memcpy(input->data, bytes, size);
    }
    free(bytes);
  }
  for (size_t step = 0; step <= steps; step++)
    for (int k = 0; k < 2; k++) {
      if ((k == 0 && step == steps) || (k == 1 && step == 0))
        continue;
      struct load *load = &loads[k];
      if (stepped < load->input_count && !(k == 0 ? step == 0 : step == 1))
        add_one(load, stepped);
      run_load(load);
      size_t size;
      char *bytes = read_outputs(load, &size);
      size_t real = tandem_dtype_size(load->outputs[0].dtype);
      for (int32_t d = 0; d < load->outputs[0].rank; d++)
        real *= (size_t)load->outputs[0].shape[d];
      snprintf(path, sizeof path, "%s/load%d.step%zu.bin", word("out", "."), k, k == 0 ? step : step - 1);
      FILE *file = fopen(path, "wb");
      if (!file || fwrite(bytes, 1, real, file) != real)
        stop("%s cannot be written", path);
      fclose(file);
      free(bytes);
    }
  struct tandem_load_info info = info_of(&loads[1]);
  cJSON_AddBoolToObject(document, "shared", info.shared);
  cJSON_AddBoolToObject(document, "direct", tandem_method_direct(loads[0].method));
  cJSON_AddNumberToObject(document, "engine_bytes", (double)info.engine_bytes);
  cJSON_AddStringToObject(document, "device", info.device);
  judge(document, "second_load_does_not_share", !info.shared, 0);
  free_load(&loads[0]);
  free_load(&loads[1]);
}

/* values: one program with two data files of equal keys and other values: two engines, two results. */
static void measure_values(cJSON *document) {
  struct load loads[3];
  struct tandem_program *programs[2];
  if (file_count != 2)
    stop("values wants two data files");
  for (int i = 0; i < 3; i++) {
    if (i < 2)
      programs[i] = open_program(path_of_program, &files[i], 1);
    program = programs[i == 1];
    loads[i] = make_load("true", "false", 1);
    run_load(&loads[i]);
  }
  bool apart = info_of(&loads[0]).engine_id != info_of(&loads[1]).engine_id;
  bool together = info_of(&loads[0]).engine_id == info_of(&loads[2]).engine_id;
  judge(document, "other_values_share_an_engine", !apart, 0);
  judge(document, "equal_values_have_two_engines", !together, 0);
  judge(document, "outputs_are_those_of_the_other_file", same_outputs(&loads[0], &loads[1]), 0);
  judge(document, "outputs_differ", !same_outputs(&loads[0], &loads[2]), 0);
  for (int i = 0; i < 3; i++)
    free_load(&loads[i]);
  tandem_program_destroy(programs[1]); /* the other one is main's */
  program = programs[0];
}

/* devices: the same bytes on two GPUs of one process are two engines, a second load on one of them shares. */
static void measure_devices(cJSON *document) {
  static const char *const names[] = {"cuda:0", "cuda:1", "cuda:1"};
  struct load loads[3];
  host_tensors = true;
  for (int i = 0; i < 3; i++) {
    device_of_loads = names[i];
    loads[i] = make_load("true", "false", 1);
    run_load(&loads[i]);
    judge(document,
          i == 0   ? "first_is_elsewhere"
          : i == 1 ? "second_is_elsewhere"
                   : "third_is_elsewhere",
          strcmp(info_of(&loads[i]).device, names[i]) != 0, 0);
  }
  judge(document, "two_gpus_share_an_engine", info_of(&loads[0]).engine_id == info_of(&loads[1]).engine_id,
        0);
  judge(document, "one_gpu_has_two_engines", info_of(&loads[1]).engine_id != info_of(&loads[2]).engine_id, 0);
  judge(document, "outputs_differ",
        !same_outputs(&loads[0], &loads[1]) || !same_outputs(&loads[1], &loads[2]), 0);
  for (int i = 0; i < 3; i++)
    free_load(&loads[i]);
}

/* ---------------------------------------------------------------- main */

static void open_all(int argc, char **argv) {
  char why[256];
  int device = 0;
  words = (const char *const *)argv + 3;
  word_count = argc - 3;
  for (int i = 3; i < argc && file_count < FILES_MAX; i++)
    if (!strchr(argv[i], '='))
      files[file_count++] = argv[i];
  if (!driver_open(&cuda, why, sizeof why))
    stop("%s", why);
  const char *target = word("target_device", NULL);
  if (target && strncmp(target, "cuda:", 5) == 0)
    device = atoi(target + 5);
  must_cuda(cuda.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
  must_cuda(cuda.context_push(context), "cuCtxPushCurrent");
  path_of_program = argv[2];
  if (strcmp(argv[1], "values") != 0)
    program = open_program(argv[2], files, (size_t)file_count);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*measure)(cJSON *document);
  } measurements[] = {{"memory", measure_memory},  {"speed", measure_speed}, {"storm", measure_storm},
                      {"race", measure_race},      {"run", measure_run},     {"values", measure_values},
                      {"devices", measure_devices}};
  for (size_t i = 0; argc > 2 && i < sizeof measurements / sizeof *measurements; i++) {
    if (strcmp(measurements[i].name, argv[1]) != 0)
      continue;
    open_all(argc, argv);
    cJSON *document = cJSON_CreateObject(), *entry;
    cJSON_AddStringToObject(document, "measurement", argv[1]);
    cJSON_AddStringToObject(document, "program", argv[2]);
    double began = now_s();
    measurements[i].measure(document);
    cJSON_AddNumberToObject(document, "seconds", now_s() - began);
    cJSON_AddStringToObject(document, "tandem", tandem_version());
    bool good = true;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(document, "limits")) {
      good = good && cJSON_IsTrue(cJSON_GetObjectItem(entry, "good"));
    }
    cJSON_AddBoolToObject(document, "good", good);
    char *text = cJSON_PrintUnformatted(document);
    if (!text)
      stop("no memory");
    puts(text);
    fflush(stdout);
    tandem_program_destroy(program);
    if (direct.run)
      _Exit(0); /* see make_direct */
    return 0;
  }
  stop("usage: aoti_bench memory|speed|storm|race|run|values|devices PROGRAM.pte [DATA.ptd...] "
       "[NAME=VALUE...]");
}
