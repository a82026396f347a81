/* Payloads of AOTInductor programs, and what the stand-in engines compute. TESTS ONLY. */
#include "aoti.h"

#include "plan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPU = 0, CUDA = 1, HEADER = 64, ALIGNMENT = 256 };

/* ---------------------------------------------------------------- the libraries */

/* The table that a library's control function gives. */
static const void *find_control(const char *path, const char *name) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *address = library ? dlsym(library, name) : NULL;
  const void *(*control)(void);
  if (!address) {
    fprintf(stderr, "stand-in: no %s in %s\n", name, path);
    return NULL;
  }
  memcpy(&control, &address, sizeof control);
  return control();
}

bool standin_aoti_start(bool torch, const struct standin_cuda **cuda, const struct standin_shims **shims) {
  static const char *const variables[] = {"TANDEM_AOTI_SHIMS_LIBRARY", "TANDEM_TORCH_LIBRARY"};
  static const char *const libraries[] = {TANDEM_STANDIN_DIR "/shims/libaoti_cuda_shims.so",
                                          TANDEM_STANDIN_DIR "/torch/libtorch_cpu.so"};
  static const char driver[] = TANDEM_STANDIN_DIR "/cuda/libcuda.so.1";
  setenv("TANDEM_CUDA_LIBRARY", driver, 1);
  unsetenv(variables[!torch]);
  setenv(variables[torch], libraries[torch], 1);
  *cuda = find_control(driver, "standin_cuda_control");
  *shims = find_control(libraries[torch], "standin_shims_control");
  return *cuda && *shims;
}

size_t standin_aoti_left(const struct standin_cuda *cuda, const struct standin_shims *shims) {
  struct standin_cuda_live live;
  cuda->live(&live);
  size_t left = (size_t)(live.device_blocks + live.host_blocks + live.primary_retains + live.streams +
                         live.events + live.modules + live.graphs + live.graph_instances +
                         (uint64_t)shims->tensors() + shims->streams() + cuda->violations());
  if (left > 0) {
    cuda->report();
    fprintf(stderr, "stand-in: left are the above, %lld tensors, %llu streams of threads; %llu violations\n",
            (long long)shims->tensors(), (unsigned long long)shims->streams(),
            (unsigned long long)cuda->violations());
  }
  return left;
}

/* ---------------------------------------------------------------- bytes */

static void put(struct standin_bytes *bytes, const void *data, size_t size) {
  if (size > STANDIN_BYTES_MAX - bytes->size) {
    fprintf(stderr, "stand-in payload: no room for %zu bytes after %zu\n", size, bytes->size);
    abort();
  }
  memcpy(bytes->data + bytes->size, data, size);
  bytes->size += size;
}

void standin_put_number(struct standin_bytes *bytes, uint64_t number, unsigned width) {
  for (unsigned i = 0; i < width; i++)
    put(bytes, &(unsigned char){(unsigned char)(number >> (8 * i))}, 1);
}

static void put_text(struct standin_bytes *bytes, const char *text) {
  standin_put_number(bytes, strlen(text), 4);
  put(bytes, text, strlen(text));
}

struct standin_bytes standin_cuda_payload(const struct standin_constant *constants, uint32_t count) {
  struct standin_bytes bytes = {.size = 0};
  put(&bytes, "ETCUDAFQN3", 10);
  put_text(&bytes, STANDIN_SO_KEY);
  standin_put_number(&bytes, count, 4);
  for (uint32_t i = 0; i < count; i++) {
    const struct standin_constant *constant = &constants[i];
    put_text(&bytes, constant->fqn);
    put_text(&bytes, constant->key);
    standin_put_number(&bytes, constant->storage, 8);
    standin_put_number(&bytes, (uint32_t)constant->dtype, 4);
    standin_put_number(&bytes, (uint32_t)constant->device, 4);
    standin_put_number(&bytes, (uint64_t)constant->offset, 8);
    standin_put_number(&bytes, constant->rank, 4);
    for (uint32_t d = 0; d < constant->rank; d++)
      standin_put_number(&bytes, (uint64_t)constant->sizes[d], 8);
    for (uint32_t d = 0; d < constant->rank; d++)
      standin_put_number(&bytes, (uint64_t)constant->strides[d], 8);
  }
  return bytes;
}

void standin_put_fat(struct standin_bytes *bytes, const uint32_t *architectures, size_t count) {
  standin_put_number(bytes, 0xba55ed50, 4);
  standin_put_number(bytes, 1, 2);
  standin_put_number(bytes, 16, 2);
  standin_put_number(bytes, count * (64 + 8), 8);
  for (size_t i = 0; i < count; i++) {
    standin_put_number(bytes, 2, 2);
    standin_put_number(bytes, 0x101, 2);
    standin_put_number(bytes, 64, 4);
    standin_put_number(bytes, 8, 8);
    standin_put_number(bytes, 0, 4);
    standin_put_number(bytes, 0, 8);
    standin_put_number(bytes, architectures[i], 4);
    for (int k = 0; k < 5; k++)
      standin_put_number(bytes, 0, 8);
  }
}

/* ---------------------------------------------------------------- named data */

struct copy {
  size_t size;
  unsigned char data[];
};

static enum tandem_status get(void *user, const char *key, const void **data, size_t *size, void **token) {
  struct standin_named *named = user;
  size_t i = 0;
  while (i < STANDIN_ENTRIES_MAX && named->entries[i].key && strcmp(named->entries[i].key, key) != 0)
    i++;
  if (i == STANDIN_ENTRIES_MAX || !named->entries[i].key)
    return TANDEM_MISSING_DATA;
  struct copy *copy = malloc(sizeof *copy + named->entries[i].size);
  if (!copy)
    return TANDEM_OUT_OF_MEMORY;
  copy->size = named->entries[i].size;
  memcpy(copy->data, named->entries[i].data, copy->size);
  *data = copy->data;
  *size = copy->size;
  *token = copy;
  named->held++;
  return TANDEM_OK;
}

static void give_back(void *user, void *token) {
  struct standin_named *named = user;
  struct copy *copy = token;
  memset(copy->data, 0xA5, copy->size);
  free(copy);
  named->held--;
}

struct tandem_named_data standin_named_data(struct standin_named *named) {
  return (struct tandem_named_data){.get = get, .release = give_back, .user = named};
}

/* ---------------------------------------------------------------- programs */

static bool read_library(struct standin_program *program) {
  static const char *const names[STANDIN_ENGINE_COUNT] = {"plain", "rows", "state", "host_buffer"};
  char path[1024];
  snprintf(path, sizeof path, TANDEM_STANDIN_DIR "/engines/%s.so", names[program->engine]);
  FILE *file = fopen(path, "rb");
  long size = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  program->so = size > 0 ? malloc((size_t)size) : NULL;
  if (program->so) {
    rewind(file);
    program->so_size = fread(program->so, 1, (size_t)size, file);
  }
  if (file)
    fclose(file);
  if (size > 0 && program->so_size == (size_t)size)
    return true;
  fprintf(stderr, "stand-in engine: cannot read %s\n", path);
  return false;
}

static bool has_number(const struct standin_program *program) {
  return program->engine == STANDIN_ROWS || program->engine == STANDIN_HOST_BUFFER;
}

static void fill(float *values, size_t count, uint32_t seed, uint64_t first) {
  for (size_t i = 0; i < count; i++)
    values[i] = standin_weight(seed, first + i, STANDIN_COLUMNS);
}

/* Bytes of a constant, all of its storage. */
static void add(struct standin_program *program, struct standin_constant constant, const void *data) {
  uint32_t at = program->constant_count++;
  for (uint32_t d = constant.rank, stride = 1; d-- > 0; stride *= (uint32_t)constant.sizes[d])
    constant.strides[d] = stride;
  program->constants[at] = constant;
  program->named.entries[at + 1].key = constant.key;
  program->named.entries[at + 1].data = data;
  program->named.entries[at + 1].size = (size_t)constant.storage;
}

bool standin_program_init(struct standin_program *program, enum standin_engine engine, uint32_t seed) {
  static const int64_t rows[STANDIN_ENGINE_COUNT] = {2, STANDIN_ROWS_MAX, 3, 2};
  *program = (struct standin_program){.engine = engine, .rows = rows[engine]};
  program->relu = has_number(program);
  if (!read_library(program)) {
    standin_program_fini(program);
    return false;
  }
  fill(program->weight, STANDIN_COLUMNS * STANDIN_OUTPUTS, seed, 0);
  fill(program->bias, 2 * STANDIN_OUTPUTS, seed, 100);
  fill(program->cache, STANDIN_ROWS_MAX * STANDIN_COLUMNS, seed, 200);
  program->named.entries[0].key = STANDIN_SO_KEY;
  program->named.entries[0].data = program->so;
  program->named.entries[0].size = program->so_size;
  add(program,
      (struct standin_constant){"layer.weight",
                                "cuda_fqn_weight:cuda:layer.weight",
                                sizeof program->weight,
                                TANDEM_FLOAT32,
                                CUDA,
                                0,
                                2,
                                {STANDIN_COLUMNS, STANDIN_OUTPUTS},
                                {0}},
      program->weight);
  add(program,
      (struct standin_constant){"layer.bias",
                                "cuda_fqn_weight:cuda:layer.bias",
                                sizeof program->bias,
                                TANDEM_FLOAT32,
                                CUDA,
                                STANDIN_OUTPUTS,
                                1,
                                {STANDIN_OUTPUTS},
                                {0}},
      program->bias);
  if (engine == STANDIN_STATE)
    add(program,
        (struct standin_constant){"cache",
                                  "cuda_fqn_weight:cuda:cache",
                                  (uint64_t)rows[engine] * STANDIN_COLUMNS * sizeof *program->cache,
                                  TANDEM_FLOAT32,
                                  CUDA,
                                  0,
                                  2,
                                  {rows[engine], STANDIN_COLUMNS},
                                  {0}},
        program->cache);
  if (has_number(program))
    add(program,
        (struct standin_constant){
            "relu", "cuda_fqn_weight:cpu:relu", sizeof program->relu, TANDEM_INT64, CPU, 0, 0, {0}, {0}},
        &program->relu);
  program->payload = standin_cuda_payload(program->constants, program->constant_count);
  return true;
}

void standin_program_fini(struct standin_program *program) {
  free(program->so);
  free(program->blob);
  program->so = program->blob = NULL;
}

/* The values in the order of the engine's constants. */
static struct standin_bytes make_blob(const struct standin_program *program) {
  struct standin_bytes blob = {.size = 0};
  put(&blob, program->weight, sizeof program->weight);
  if (has_number(program))
    put(&blob, &program->relu, sizeof program->relu);
  if (program->engine == STANDIN_STATE)
    put(&blob, program->cache, (size_t)program->rows * STANDIN_COLUMNS * sizeof *program->cache);
  put(&blob, program->bias + STANDIN_OUTPUTS, STANDIN_OUTPUTS * sizeof *program->bias);
  return blob;
}

bool standin_program_make_old(struct standin_program *program) {
  static const char text[] = STANDIN_SO_KEY "\n0b_weights_blob";
  struct standin_bytes blob = make_blob(program);
  program->blob = malloc(blob.size);
  if (!program->blob)
    return false;
  memcpy(program->blob, blob.data, blob.size);
  program->payload = (struct standin_bytes){.size = 0};
  put(&program->payload, text, sizeof text - 1);
  for (int i = 1; i < STANDIN_ENTRIES_MAX; i++)
    program->named.entries[i].key = NULL;
  program->named.entries[1].key = "0b_weights_blob";
  program->named.entries[1].data = program->blob;
  program->named.entries[1].size = blob.size;
  return true;
}

void *standin_program_own_payload(const struct standin_program *program, size_t *size) {
  char text[512];
  bool dynamic = program->engine == STANDIN_ROWS;
  struct standin_bytes header = {.size = 0}, blob = make_blob(program);
  int length =
      snprintf(text, sizeof text,
               "{\"device\": \"cuda\", \"inputs\": [{\"name\": \"x\", \"dtype\": \"float32\", \"shape\": "
               "[[%d, %d], %d]}], \"outputs\": [{\"name\": \"y\", \"dtype\": \"float32\", \"shape\": "
               "[[%d, %d], %d]}], \"mutable\": [%s]}",
               dynamic ? 1 : (int)program->rows, (int)program->rows, STANDIN_COLUMNS,
               dynamic ? 1 : (int)program->rows, (int)program->rows, STANDIN_OUTPUTS,
               program->engine == STANDIN_STATE ? "\"layer.bias\", \"cache\"" : "");
  size_t so = HEADER + (size_t)length;
  size_t weights = (so + program->so_size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  *size = weights + blob.size;
  put(&header, "TDAOTI01", 8);
  standin_put_number(&header, HEADER, 4);
  standin_put_number(&header, (uint64_t)length, 4);
  standin_put_number(&header, so, 8);
  standin_put_number(&header, program->so_size, 8);
  standin_put_number(&header, weights, 8);
  standin_put_number(&header, blob.size, 8);
  unsigned char *bytes = calloc(1, *size);
  if (!bytes)
    return NULL;
  memcpy(bytes, header.data, header.size);
  memcpy(bytes + HEADER, text, (size_t)length);
  memcpy(bytes + so, program->so, program->so_size);
  memcpy(bytes + weights, blob.data, blob.size);
  return bytes;
}

void standin_program_expect(const struct standin_program *program, const float *const *inputs, size_t steps,
                            int64_t rows, float *output) {
  double x[STANDIN_ROWS_MAX * STANDIN_COLUMNS];
  size_t count = (size_t)rows * STANDIN_COLUMNS;
  for (size_t i = 0; i < count; i++)
    x[i] = program->engine == STANDIN_STATE ? (double)program->cache[i] : (double)inputs[steps - 1][i];
  for (size_t step = 0; program->engine == STANDIN_STATE && step < steps; step++)
    for (size_t i = 0; i < count; i++)
      x[i] = x[i] / 2 + (double)inputs[step][i];
  for (size_t r = 0; r < (size_t)rows; r++)
    for (size_t j = 0; j < STANDIN_OUTPUTS; j++) {
      double sum = (double)program->bias[STANDIN_OUTPUTS + j] * (program->engine == STANDIN_ROWS ? 2 : 1);
      for (size_t k = 0; k < STANDIN_COLUMNS; k++)
        sum += x[r * STANDIN_COLUMNS + k] * (double)program->weight[k * STANDIN_OUTPUTS + j];
      output[r * STANDIN_OUTPUTS + j] = program->relu && sum < 0 ? 0.0f : (float)sum;
    }
}
