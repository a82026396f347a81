/* aoti_peers containers|runners COUNT ENGINE.so WEIGHTS.blob DTYPE:AxBxC LIBRARY...: what a program does
 * without tandem, one JSON document on stdout.
 *
 *   containers  one container with its own weights for each load, as ExecuTorch's CudaBackend makes them
 *   runners     one container with COUNT runners, which share its weights and wait for one another
 *
 * The engine has one input and one output of that dtype and shape. The libraries are opened for all to see,
 * in order, as the engine's undefined symbols want them: the CUDA runtime, then ExecuTorch's shims or
 * libtorch.
 */
#include "direct.h"
#include "driver.h"

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT_MAX = 16, RANK_MAX = 8, RUNS = 50 };

static struct driver cuda;
static struct direct engine;
static int64_t shape[RANK_MAX], strides[RANK_MAX], rank;
static int32_t dtype;
static size_t size;
static uint64_t input;

_Noreturn static void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void stop(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("aoti_peers: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

static void must(int code, const char *call) {
  if (code)
    stop("%s says %d", call, code);
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double used_memory(void) {
  size_t free_bytes, total_bytes;
  must(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  return (double)(total_bytes - free_bytes);
}

static void *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) != 0)
    stop("%s is not there", path);
  long length = ftell(file);
  void *bytes = malloc((size_t)length + 1);
  rewind(file);
  if (!bytes || fread(bytes, 1, (size_t)length, file) != (size_t)length)
    stop("%s cannot be read", path);
  fclose(file);
  return bytes;
}

/* Runs once on whichever runner is free; the output goes to `host` when that is given. */
static void run(struct aoti_container *container, void *stream, void *host) {
  struct aoti_tensor *in, *out = NULL;
  void *data;
  must(direct_tensors.create_tensor((void *)(uintptr_t)input, rank, shape, strides, 0, dtype,
                                    AOTI_DEVICE_CUDA, 0, &in, 0, NULL, 0),
       "aoti_torch_create_tensor_from_blob_v2");
  must(engine.run(container, &in, 1, &out, 1, stream, NULL), "the run");
  must(cuda.stream_synchronize(stream), "cuStreamSynchronize");
  must(direct_tensors.tensor_data(out, &data), "aoti_torch_get_data_ptr");
  if (host)
    must(cuda.copy_from(host, (uint64_t)(uintptr_t)data, size), "cuMemcpyDtoH");
  must(direct_tensors.delete_tensor(out), "aoti_torch_delete_tensor_object");
}

struct runner {
  struct aoti_container *container;
  void *stream, *context;
  pthread_barrier_t *start;
  pthread_t thread;
};

static void *run_many(void *user) {
  struct runner *runner = user;
  must(cuda.context_push(runner->context), "cuCtxPushCurrent");
  pthread_barrier_wait(runner->start);
  for (int i = 0; i < RUNS; i++)
    run(runner->container, runner->stream, NULL);
  return NULL;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    int32_t dtype;
    size_t size;
  } dtypes[] = {{"float16", 5, 2}, {"float32", 6, 4}, {"bfloat16", 15, 2}};
  char why[256], name[16] = "";
  void *context = NULL, *streams[COUNT_MAX];
  struct aoti_container *containers[COUNT_MAX];
  if (argc < 7)
    stop("usage: aoti_peers containers|runners COUNT ENGINE.so WEIGHTS.blob DTYPE:AxBxC LIBRARY...");
  bool separate = strcmp(argv[1], "containers") == 0;
  int count = atoi(argv[2]), at = 0;
  if (count < 1 || count > COUNT_MAX || sscanf(argv[5], "%15[a-z0-9]:%n", name, &at) != 1)
    stop("COUNT is 1 to %d, then ENGINE.so WEIGHTS.blob DTYPE:AxBxC", COUNT_MAX);
  for (char *text = argv[5] + at; *text && rank < RANK_MAX; text += *text == 'x')
    shape[rank++] = strtoll(text, &text, 10);
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
    if (strcmp(name, dtypes[i].name) == 0) {
      dtype = dtypes[i].dtype;
      size = dtypes[i].size;
    }
  int64_t stride = 1;
  for (int64_t d = rank; d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  size *= (size_t)stride;
  if (!driver_open(&cuda, why, sizeof why))
    stop("%s", why);
  must(cuda.primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuda.context_push(context), "cuCtxPushCurrent");
  direct_open_libraries(argc - 6, argv + 6);
  direct_open_engine(&engine, argv[3]);
  const uint8_t *weights = read_file(argv[4]);
  void *zeros = calloc(1, size), *first = malloc(size), *other = malloc(size);
  must(cuda.allocate(&input, size), "cuMemAlloc");
  must(cuda.copy_to(input, zeros, size), "cuMemcpyHtoD");
  for (int i = 0; i < count; i++)
    must(cuda.stream_create(&streams[i], 1), "cuStreamCreate");

  cJSON *document = cJSON_CreateObject(), *bytes, *seconds, *speeds;
  cJSON_AddStringToObject(document, "measurement", "peers");
  cJSON_AddStringToObject(document, "kind", argv[1]);
  cJSON_AddNumberToObject(document, "count", count);
  bytes = cJSON_AddArrayToObject(document, "load_bytes");
  seconds = cJSON_AddArrayToObject(document, "load_seconds");
  bool equal = true;
  for (int i = 0; i < count; i++) {
    double before = used_memory(), began = now_s();
    if (separate || i == 0) {
      must(engine.api.create(&containers[i], separate ? 1 : (size_t)count, "cuda:0", NULL), "create");
      must(engine.api.load_blob(containers[i], weights), "load the weights");
    } else {
      containers[i] = containers[0];
    }
    cJSON_AddItemToArray(seconds, cJSON_CreateNumber(now_s() - began));
    run(containers[i], streams[i], i ? other : first);
    cJSON_AddItemToArray(bytes, cJSON_CreateNumber(used_memory() - before));
    equal = equal && (i == 0 || memcmp(first, other, size) == 0);
  }
  cJSON_AddBoolToObject(document, "outputs_equal", equal);
  speeds = cJSON_AddObjectToObject(document, "ms_a_run_of_all");
  for (int k = 1; k <= count; k *= 2) {
    struct runner runners[COUNT_MAX];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)k + 1);
    for (int i = 0; i < k; i++) {
      runners[i] = (struct runner){
          .container = containers[i], .stream = streams[i], .context = context, .start = &start};
      must(pthread_create(&runners[i].thread, NULL, run_many, &runners[i]), "pthread_create");
    }
    pthread_barrier_wait(&start);
    double began = now_s();
    for (int i = 0; i < k; i++)
      pthread_join(runners[i].thread, NULL);
    snprintf(name, sizeof name, "%d", k);
    cJSON_AddNumberToObject(speeds, name, (now_s() - began) * 1e3 / RUNS);
    pthread_barrier_destroy(&start);
  }
  cJSON_AddBoolToObject(document, "good", true);
  puts(cJSON_PrintUnformatted(document));
  fflush(stdout);
  _Exit(0); /* deleting containers of several loads has crashed; it is not what is measured */
}
