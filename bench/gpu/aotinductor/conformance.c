/* aoti_conformance FOLDER LIBRARY...: the conformance suite that every vendor passes, with AOTInductor
 * engines on a GPU. FOLDER has plain.payload, dynamic.payload and stateful.payload (models.py conformance).
 * Expected numbers are the engines' own, opened and run without tandem, and are compared bit by bit. */
#include "../../../tests/conformance/conformance.h"

#include "base.h"
#include "direct.h"
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIBRARY_OFFSET = 16, WEIGHTS_OFFSET = 32 };

struct model {
  unsigned char *payload;
  size_t size;
  int64_t columns, outputs_per_row;
  struct direct engine;
};

static struct driver cuda;
static void *context;

static void must(int code, const char *what) {
  if (code == 0)
    return;
  fprintf(stderr, "aoti_conformance: %s says %d\n", what, code);
  exit(1);
}

static uint64_t number_at(const struct model *model, size_t offset) {
  uint64_t number;
  memcpy(&number, model->payload + offset, sizeof number);
  return number;
}

/* The engine's library needs a file of its own name: a copy of it that is gone again once it is open. */
static void open_engine(struct model *model) {
  char path[] = "/tmp/aoti_conformance.XXXXXX";
  int file = mkstemp(path);
  uint64_t size = number_at(model, LIBRARY_OFFSET + 8);
  if (file < 0 || write(file, model->payload + number_at(model, LIBRARY_OFFSET), size) != (ssize_t)size)
    must(1, "a temporary file");
  close(file);
  direct_open_engine(&model->engine, path);
  unlink(path);
}

static struct model read_model(const char *folder, const char *name, int64_t columns,
                               int64_t outputs_per_row) {
  struct model model = {.columns = columns, .outputs_per_row = outputs_per_row};
  char path[2048];
  snprintf(path, sizeof path, "%s/%s.payload", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) != 0)
    must(1, path);
  model.size = (size_t)ftell(file);
  model.payload = malloc(model.size);
  rewind(file);
  if (!model.payload || fread(model.payload, 1, model.size, file) != model.size)
    must(1, path);
  fclose(file);
  open_engine(&model);
  return model;
}

/* The same but for a bit of the first weight. */
static struct model make_twin(const struct model *model) {
  struct model twin = *model;
  twin.payload = malloc(model->size);
  if (!twin.payload)
    must(1, "memory");
  memcpy(twin.payload, model->payload, model->size);
  twin.payload[number_at(model, WEIGHTS_OFFSET) + 2] ^= 0x40;
  return twin;
}

static void step(struct model *model, struct aoti_container *container, void *stream, uint64_t input,
                 const float *values, int64_t rows, float *output) {
  int64_t shape[2] = {rows, model->columns}, strides[2] = {model->columns, 1};
  struct aoti_tensor *in, *out = NULL;
  void *data;
  must(cuda.copy_to(input, values, (size_t)(rows * model->columns) * sizeof *values), "cuMemcpyHtoD");
  must(direct_tensors.create_tensor((void *)(uintptr_t)input, 2, shape, strides, 0, TANDEM_FLOAT32,
                                    AOTI_DEVICE_CUDA, 0, &in, 0, NULL, 0),
       "create a tensor");
  must(model->engine.run(container, &in, 1, &out, 1, stream, NULL), "the run");
  must(cuda.stream_synchronize(stream), "cuStreamSynchronize");
  must(direct_tensors.tensor_data(out, &data), "the output");
  must(cuda.copy_from(output, (uint64_t)(uintptr_t)data,
                      (size_t)(rows * model->outputs_per_row) * sizeof *output),
       "cuMemcpyDtoH");
  direct_tensors.delete_tensor(out);
}

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  struct model *model = user;
  struct aoti_container *container;
  void *stream, *popped;
  uint64_t input;
  must(cuda.context_push(context), "cuCtxPushCurrent");
  must(cuda.stream_create(&stream, 1), "cuStreamCreate");
  must(cuda.allocate(&input, CONFORMANCE_FLOATS_MAX * sizeof(float)), "cuMemAlloc");
  must(model->engine.api.create(&container, 1, "cuda:0", NULL), "create");
  must(model->engine.api.load_blob(container, model->payload + number_at(model, WEIGHTS_OFFSET)),
       "load the weights");
  for (size_t i = 0; i < steps; i++)
    step(model, container, stream, input, inputs[i], rows, output);
  model->engine.api.destroy(container);
  cuda.release(input);
  cuda.stream_destroy(stream);
  cuda.context_pop(&popped);
  return true;
}

static struct conformance_model describe(const char *name, struct model *model, int64_t rows_min,
                                         int64_t rows_max) {
  return (struct conformance_model){.name = name,
                                    .payload = model->payload,
                                    .payload_size = model->size,
                                    .rank = 2,
                                    .shape = {rows_max, model->columns},
                                    .rows_min = rows_min,
                                    .rows_max = rows_max,
                                    .outputs_per_row = (size_t)model->outputs_per_row,
                                    .expect = expect,
                                    .user = model};
}

int main(int argc, char **argv) {
  struct tandem_error error = {0};
  const struct tandem_vendor *vendor = NULL;
  char why[256];
  if (argc < 3 || !driver_open(&cuda, why, sizeof why)) {
    fprintf(stderr, "usage: aoti_conformance FOLDER LIBRARY..., and a CUDA driver\n");
    return 1;
  }
  must(cuda.primary_retain(&context, 0), "cuDevicePrimaryCtxRetain");
  direct_open_libraries(argc - 2, argv + 2);
  if (td_vendor_find("aotinductor", &vendor, &error) != TANDEM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  struct model plain = read_model(argv[1], "plain", 8, 4), twin = make_twin(&plain),
               dynamic = read_model(argv[1], "dynamic", 8, 4),
               stateful = read_model(argv[1], "stateful", 16, 16);
  struct conformance_model described[] = {describe("plain", &plain, 2, 2), describe("twin", &twin, 2, 2),
                                          describe("dynamic", &dynamic, 1, 8),
                                          describe("stateful", &stateful, 1, 1)};
  struct conformance conformance = {.vendor = vendor,
                                    .plain = &described[0],
                                    .twin = &described[1],
                                    .dynamic = &described[2],
                                    .stateful = &described[3],
                                    .bounds_known = true,
                                    .rounds = 10};
  int failed = conformance_run(&conformance);
  fflush(stdout);
  _Exit(failed ? 1 : 0); /* engines opened here have no order to be taken down in */
}
