/* Times loads and runs of one program through the C door; bench/compare.py calls it, one process a
 * measurement.
 *
 *   loads PLUGIN PROGRAM MODE SECONDS [--stock LIBRARY] [--bytes] [KEY=VALUE]...
 *
 * MODE `lone` runs one load for SECONDS, `pair` two loads from two threads that start at once, `load` makes
 * two loads and tells what each took. One JSON line on stdout. With --stock, ExecuTorch's own backend library
 * is loaded first and so keeps its name: the same door, runtime and timing then measure the stock delegate.
 * --bytes reads the file first; the stock delegate frees what it maps, and OpenVINO 2026 goes on reading it.
 *
 * The libraries are opened in the order that the measurement wants, which is why none is linked.
 */
#include <tandem/program.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { IO_MAX = 16, OPTIONS_MAX = 8, RUNS_MAX = 1 << 20, WARM_RUNS = 5 };

static struct {
  __typeof__(&tandem_program_create) program_create;
  __typeof__(&tandem_program_destroy) program_destroy;
  __typeof__(&tandem_program_method_io) method_io;
  __typeof__(&tandem_method_create) method_create;
  __typeof__(&tandem_method_destroy) method_destroy;
  __typeof__(&tandem_method_run) method_run;
  __typeof__(&tandem_method_load) method_load;
  __typeof__(&tandem_load_get_info) load_get_info;
  __typeof__(&tandem_dtype_size) dtype_size;
  __typeof__(&tandem_executorch_active) active;
} door;

static struct tandem_error error;

static void stop(const char *what) {
  fprintf(stderr, "loads: %s: %s\n", what, error.message);
  exit(1);
}

static void *symbol(void *library, const char *name) {
  void *address = dlsym(library, name);
  if (!address) {
    fprintf(stderr, "loads: no %s in the plug-in\n", name);
    exit(1);
  }
  return address;
}

static void open_door(const char *plugin, const char *stock) {
  if (stock && !dlopen(stock, RTLD_NOW | RTLD_GLOBAL)) {
    fprintf(stderr, "loads: %s\n", dlerror());
    exit(1);
  }
  void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "loads: %s\n", dlerror());
    exit(1);
  }
  *(void **)&door.program_create = symbol(library, "tandem_program_create");
  *(void **)&door.program_destroy = symbol(library, "tandem_program_destroy");
  *(void **)&door.method_io = symbol(library, "tandem_program_method_io");
  *(void **)&door.method_create = symbol(library, "tandem_method_create");
  *(void **)&door.method_destroy = symbol(library, "tandem_method_destroy");
  *(void **)&door.method_run = symbol(library, "tandem_method_run");
  *(void **)&door.method_load = symbol(library, "tandem_method_load");
  *(void **)&door.load_get_info = symbol(library, "tandem_load_get_info");
  *(void **)&door.dtype_size = symbol(library, "tandem_dtype_size");
  *(void **)&door.active = symbol(library, "tandem_executorch_active");
  if (door.active("OpenvinoBackend") != !stock) {
    fprintf(stderr, "loads: OpenvinoBackend is not the one asked for\n");
    exit(1);
  }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---------------------------------------------------------------- one load and its runs */

struct arm {
  struct tandem_program *program;
  struct tandem_method *method;
  struct tandem_tensor inputs[IO_MAX], outputs[IO_MAX];
  size_t input_count, output_count;
  double *seconds; /* of each run */
  size_t count;
  double first, last; /* begin of the first and end of the last run */
};

static void fill(struct tandem_tensor *tensor, const struct tandem_io *io, size_t door_size, unsigned seed) {
  size_t elements = 1;
  tensor->dtype = io->dtype;
  tensor->rank = io->rank;
  for (int32_t d = 0; d < io->rank; d++) {
    tensor->shape[d] = io->max[d];
    elements *= (size_t)io->max[d];
  }
  tensor->size = elements * door_size;
  tensor->data = calloc(elements + 64, door_size);
  if (!tensor->data) {
    fprintf(stderr, "loads: no memory for an input\n");
    exit(1);
  }
  float *values = tensor->data;
  for (size_t i = 0; io->dtype == TANDEM_FLOAT32 && i < elements; i++)
    values[i] = (float)(rand_r(&seed) % 2048) / 1024.0F - 1.0F;
}

static void load(struct arm *arm, const struct tandem_program_desc *desc, const struct tandem_option *options,
                 size_t option_count) {
  const struct tandem_io *inputs, *outputs;
  if (door.program_create(desc, &arm->program, &error) != TANDEM_OK)
    stop("open the program");
  if (door.method_create(arm->program, "forward", options, option_count, &arm->method, &error) != TANDEM_OK)
    stop("load the method");
  if (door.method_io(arm->program, "forward", &inputs, &arm->input_count, &outputs, &arm->output_count,
                     &error) != TANDEM_OK)
    stop("describe the method");
  if (arm->input_count > IO_MAX || arm->output_count > IO_MAX) {
    fprintf(stderr, "loads: more than %d inputs or outputs\n", IO_MAX);
    exit(1);
  }
  for (size_t i = 0; i < arm->input_count; i++)
    fill(&arm->inputs[i], &inputs[i], door.dtype_size(inputs[i].dtype), (unsigned)i + 1);
  for (size_t i = 0; i < arm->output_count; i++)
    arm->outputs[i].dtype = outputs[i].dtype; /* data NULL: the method's own memory */
  arm->seconds = malloc(RUNS_MAX * sizeof *arm->seconds);
  if (!arm->seconds)
    stop("no memory for the times");
}

static void run(struct arm *arm) {
  struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                 .inputs = arm->inputs,
                                 .input_count = arm->input_count,
                                 .outputs = arm->outputs,
                                 .output_count = arm->output_count};
  for (size_t i = 0; i < arm->output_count; i++)
    arm->outputs[i].data = NULL;
  if (door.method_run(arm->method, &desc, &error) != TANDEM_OK)
    stop("run");
}

static double duration;
static pthread_barrier_t gate;

static void *work(void *argument) {
  struct arm *arm = argument;
  for (int i = 0; i < WARM_RUNS; i++)
    run(arm);
  pthread_barrier_wait(&gate);
  double begin = arm->first = now(), end = begin + duration;
  while (begin < end && arm->count < RUNS_MAX) {
    run(arm);
    double done = now();
    arm->seconds[arm->count++] = done - begin;
    begin = done;
  }
  arm->last = begin;
  return NULL;
}

static int compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void release(struct arm *arm) {
  door.method_destroy(arm->method);
  door.program_destroy(arm->program);
  for (size_t i = 0; i < arm->input_count; i++)
    free(arm->inputs[i].data);
  free(arm->seconds);
}

/* ---------------------------------------------------------------- modes */

static void tell_runs(struct arm *arms, unsigned count) {
  pthread_t threads[2];
  double rate = 0;
  pthread_barrier_init(&gate, NULL, count);
  for (unsigned i = 0; i < count; i++)
    if (pthread_create(&threads[i], NULL, work, &arms[i]) != 0) {
      fprintf(stderr, "loads: no thread\n");
      exit(1);
    }
  for (unsigned i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < count; i++) {
    qsort(arms[i].seconds, arms[i].count, sizeof *arms[i].seconds, compare);
    rate += (double)arms[i].count / (arms[i].last - arms[i].first);
  }
  printf("{\"runs\": %zu, \"median_s\": %.9f, \"per_second\": %.4f}\n", arms[0].count,
         arms[0].seconds[arms[0].count / 2], rate);
  pthread_barrier_destroy(&gate);
}

static void tell_loads(struct arm *arms, unsigned count) {
  printf("[");
  for (unsigned i = 0; i < count; i++) {
    struct tandem_load_info info = {.struct_size = sizeof info};
    if (door.load_get_info(door.method_load(arms[i].method, 0), &info, &error) != TANDEM_OK)
      stop("read the load's information");
    printf("%s{\"shared\": %s, \"seconds\": %.6f, \"digest_seconds\": %.6f, \"build_seconds\": %.6f}",
           i ? ", " : "", info.shared ? "true" : "false", info.seconds, info.digest_seconds,
           info.build_seconds);
  }
  printf("]\n");
}

static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  void *bytes = NULL;
  long length = -1;
  if (file && fseek(file, 0, SEEK_END) == 0)
    length = ftell(file);
  if (length > 0 && fseek(file, 0, SEEK_SET) == 0)
    bytes = aligned_alloc(4096, ((size_t)length + 4095) & ~(size_t)4095);
  if (!bytes || fread(bytes, 1, (size_t)length, file) != (size_t)length) {
    fprintf(stderr, "loads: cannot read %s\n", path);
    exit(1);
  }
  fclose(file);
  *size = (size_t)length;
  return bytes;
}

int main(int argc, char **argv) {
  struct tandem_option options[OPTIONS_MAX];
  size_t option_count = 0;
  const char *stock = NULL;
  bool in_memory = false;
  if (argc < 5) {
    fprintf(
        stderr,
        "usage: loads PLUGIN PROGRAM lone|pair|load SECONDS [--stock LIBRARY] [--bytes] [KEY=VALUE]...\n");
    return 2;
  }
  for (int i = 5; i < argc; i++) {
    char *value = strchr(argv[i], '=');
    if (strcmp(argv[i], "--stock") == 0 && i + 1 < argc)
      stock = argv[++i];
    else if (strcmp(argv[i], "--bytes") == 0)
      in_memory = true;
    else if (value && option_count < OPTIONS_MAX) {
      *value = '\0';
      options[option_count++] = (struct tandem_option){argv[i], value + 1};
    } else {
      fprintf(stderr, "loads: argument %s\n", argv[i]);
      return 2;
    }
  }
  open_door(argv[1], stock);
  duration = strtod(argv[4], NULL);
  struct tandem_program_desc desc = {.struct_size = sizeof desc, .path = argv[2]};
  void *bytes = NULL;
  if (in_memory) {
    desc.path = NULL;
    desc.bytes = bytes = read_file(argv[2], &desc.size);
  }
  struct arm arms[2] = {0};
  unsigned count = strcmp(argv[3], "lone") == 0 ? 1 : 2;
  for (unsigned i = 0; i < count; i++)
    load(&arms[i], &desc, options, option_count);
  if (strcmp(argv[3], "load") == 0)
    tell_loads(arms, count);
  else
    tell_runs(arms, count);
  for (unsigned i = 0; i < count; i++)
    release(&arms[i]);
  free(bytes);
  return 0;
}
