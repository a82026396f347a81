/* What is special to OpenVINO, with the real library: element types, shapes, state, options, refusals, the
 * search of the library, and a forked child. The suite in conformance.c has what every vendor promises.
 *
 * Models are IR text, compiled and exported by OpenVINO when the test runs, and what a run is compared with
 * is OpenVINO's own inference of the same blob, by calls that are looked up here and share nothing with the
 * vendor but the declarations. With TANDEM_OPENVINO_2025_LIBRARY set, the whole program runs a second time
 * over that library.
 */
#include "base.h"
#include "bound.h"

#include "../../vendors/openvino/openvino.h"

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { IO_MAX = 4, BYTES_MAX = 4096, SECONDS = 60 };

/* ---------------------------------------------------------------- OpenVINO itself */

struct ov_model;

static struct {
  int (*core_create)(struct ov_core **);
  int (*core_set)(const struct ov_core *, const char *, ...);
  int (*core_read)(const struct ov_core *, const char *, size_t, const struct ov_tensor *,
                   struct ov_model **);
  int (*core_compile)(const struct ov_core *, const struct ov_model *, const char *, size_t,
                      struct ov_compiled_model **, ...);
  int (*core_import)(const struct ov_core *, const char *, size_t, const char *, struct ov_compiled_model **);
  int (*model_export)(const struct ov_compiled_model *, const char *);
  int (*request_create)(const struct ov_compiled_model *, struct ov_infer_request **);
  int (*request_set_input)(struct ov_infer_request *, size_t, const struct ov_tensor *);
  int (*request_get_output)(const struct ov_infer_request *, size_t, struct ov_tensor **);
  int (*request_infer)(struct ov_infer_request *);
  int (*tensor_wrap)(enum ov_element, struct ov_shape, void *, struct ov_tensor **);
  int (*tensor_data)(const struct ov_tensor *, void **);
  int (*tensor_bytes)(const struct ov_tensor *, size_t *);
  int (*tensor_shape)(const struct ov_tensor *, struct ov_shape *);
  int (*shape_free)(struct ov_shape *);
  void (*core_free)(struct ov_core *);
  void (*source_free)(struct ov_model *);
  void (*compiled_free)(struct ov_compiled_model *);
  void (*request_free)(struct ov_infer_request *);
  void (*tensor_free)(struct ov_tensor *);
  const char *(*last_error)(void);
} ov;

static const char *library_path;

static void find_calls(void) {
  void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  assert_non_null(library);
  const struct {
    const char *name;
    void *place;
  } calls[] = {
      {"ov_core_create", &ov.core_create},
      {"ov_core_set_property", &ov.core_set},
      {"ov_core_read_model_from_memory_buffer", &ov.core_read},
      {"ov_core_compile_model", &ov.core_compile},
      {"ov_core_import_model", &ov.core_import},
      {"ov_compiled_model_export_model", &ov.model_export},
      {"ov_compiled_model_create_infer_request", &ov.request_create},
      {"ov_infer_request_set_input_tensor_by_index", &ov.request_set_input},
      {"ov_infer_request_get_output_tensor_by_index", &ov.request_get_output},
      {"ov_infer_request_infer", &ov.request_infer},
      {"ov_tensor_create_from_host_ptr", &ov.tensor_wrap},
      {"ov_tensor_data", &ov.tensor_data},
      {"ov_tensor_get_byte_size", &ov.tensor_bytes},
      {"ov_tensor_get_shape", &ov.tensor_shape},
      {"ov_shape_free", &ov.shape_free},
      {"ov_core_free", &ov.core_free},
      {"ov_model_free", &ov.source_free},
      {"ov_compiled_model_free", &ov.compiled_free},
      {"ov_infer_request_free", &ov.request_free},
      {"ov_tensor_free", &ov.tensor_free},
      {"ov_get_last_err_msg", &ov.last_error},
  };
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    void *address = dlsym(library, calls[i].name);
    assert_non_null(address);
    memcpy(calls[i].place, &address, sizeof address);
  }
}

static bool worked(int code, const char *step) {
  if (code != 0)
    print_error("OpenVINO could not %s: %s\n", step, ov.last_error());
  return code == 0;
}
#define OV(call) assert_true(worked((call), #call))

/* ---------------------------------------------------------------- models */

/* IR under construction: layers numbered from 0, each with its output at port 0. The reader wants a precision
 * on every port and takes the types from the inputs. */
struct ir {
  char layers[12288], edges[2048], text[16384];
  int count;
  float weights[256];
  size_t weight_count;
};

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...) {
  size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text + used, size - used, format, arguments);
  va_end(arguments);
  assert_true(length >= 0 && (size_t)length < size - used);
}

static int add_input(struct ir *ir, const char *name, const char *element, const char *shape) {
  append(ir->layers, sizeof ir->layers,
         "<layer id=\"%d\" name=\"%s\" type=\"Parameter\" version=\"opset1\"><data shape=\"%s\" "
         "element_type=\"%s\"/><output><port id=\"0\" precision=\"FP32\" names=\"%s\"/></output></layer>",
         ir->count, name, shape, element, name);
  return ir->count++;
}

static int add_weights(struct ir *ir, size_t rows, size_t columns, float scale) {
  size_t count = rows * columns;
  assert_true(ir->weight_count + count <= sizeof ir->weights / sizeof ir->weights[0]);
  append(ir->layers, sizeof ir->layers,
         "<layer id=\"%d\" name=\"c%d\" type=\"Const\" version=\"opset1\"><data element_type=\"f32\" "
         "shape=\"%zu,%zu\" offset=\"%zu\" size=\"%zu\"/><output><port id=\"0\" "
         "precision=\"FP32\"/></output></layer>",
         ir->count, ir->count, rows, columns, ir->weight_count * sizeof(float), count * sizeof(float));
  for (size_t i = 0; i < count; i++, ir->weight_count++)
    ir->weights[ir->weight_count] = scale * ((float)(ir->weight_count * 37 % 101) - 50.0f) / 7.0f;
  return ir->count++;
}

static void connect(struct ir *ir, int from, int to, int port) {
  append(ir->edges, sizeof ir->edges,
         "<edge from-layer=\"%d\" from-port=\"0\" to-layer=\"%d\" to-port=\"%d\"/>", from, to, port);
}

/* A layer of one or two inputs (`second` -1: one); its output has port 0, inputs 1 and 2. */
static int add_layer(struct ir *ir, const char *type, const char *version, const char *data, int first,
                     int second, const char *name) {
  append(ir->layers, sizeof ir->layers,
         "<layer id=\"%d\" name=\"l%d\" type=\"%s\" version=\"%s\"><data %s/><input><port id=\"1\" "
         "precision=\"FP32\"/>%s</input>"
         "<output><port id=\"0\" precision=\"FP32\" names=\"%s\"/></output></layer>",
         ir->count, ir->count, type, version, data, second >= 0 ? "<port id=\"2\" precision=\"FP32\"/>" : "",
         name);
  connect(ir, first, ir->count, 1);
  if (second >= 0)
    connect(ir, second, ir->count, 2);
  return ir->count++;
}

static void add_output(struct ir *ir, int from) {
  append(ir->layers, sizeof ir->layers,
         "<layer id=\"%d\" name=\"r%d\" type=\"Result\" version=\"opset1\"><input><port id=\"0\" "
         "precision=\"FP32\"/></input>"
         "</layer>",
         ir->count, ir->count);
  connect(ir, from, ir->count++, 0);
}

struct blob {
  char *bytes;
  size_t size;
};

/* Has OpenVINO compile and export the model. False when it cannot; `loud` prints why. */
static bool try_export(struct ir *ir, bool loud, struct blob *blob) {
  struct ov_core *core = NULL;
  struct ov_tensor *weights = NULL;
  struct ov_model *source = NULL;
  struct ov_compiled_model *compiled = NULL;
  char path[64];
  struct stat state;
  snprintf(ir->text, sizeof ir->text,
           "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>%s</layers><edges>%s</edges></net>",
           ir->layers, ir->edges);
  int file = memfd_create("blob", MFD_CLOEXEC);
  assert_true(file >= 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  OV(ov.core_create(&core));
  int64_t bytes = (int64_t)(ir->weight_count * sizeof(float));
  if (bytes > 0)
    OV(ov.tensor_wrap(OV_U8, (struct ov_shape){1, &bytes}, ir->weights, &weights));
  int code = ov.core_read(core, ir->text, strlen(ir->text), weights, &source);
  if (code == 0)
    code = ov.core_compile(core, source, "CPU", 0, &compiled);
  if (code == 0)
    code = ov.model_export(compiled, path);
  if (code != 0 && loud)
    fail_msg("OpenVINO made no blob: %s\n%s", ov.last_error(), ir->text);
  *blob = (struct blob){NULL, 0};
  if (code == 0) {
    assert_int_equal(fstat(file, &state), 0);
    blob->size = (size_t)state.st_size;
    blob->bytes = malloc(blob->size);
    assert_non_null(blob->bytes);
    assert_int_equal(pread(file, blob->bytes, blob->size, 0), (ssize_t)blob->size);
  }
  close(file);
  ov.compiled_free(compiled);
  ov.source_free(source);
  if (weights != NULL)
    ov.tensor_free(weights);
  ov.core_free(core);
  return code == 0;
}

static struct blob export(struct ir *ir) {
  struct blob blob;
  try_export(ir, true, &blob);
  return blob;
}

#define MATMUL "transpose_a=\"false\" transpose_b=\"false\""
#define NUMPY  "auto_broadcast=\"numpy\""

/* (shape,4) -> (shape,8) */
static struct blob make_linear(const char *shape) {
  struct ir ir = {.count = 0};
  int x = add_input(&ir, "x", "f32", shape), w = add_weights(&ir, 4, 8, 0.3f);
  add_output(&ir, add_layer(&ir, "MatMul", "opset1", MATMUL, x, w, "y"));
  return export(&ir);
}

/* state += x; y = state, from zero */
static struct blob make_stateful(void) {
  struct ir ir = {.count = 0};
  int x = add_input(&ir, "x", "f32", "1,4"), zero = add_weights(&ir, 1, 4, 0.0f);
  int state = add_layer(&ir, "ReadValue", "opset6",
                        "variable_id=\"s\" variable_type=\"f32\" variable_shape=\"1,4\"", zero, -1, "state");
  int sum = add_layer(&ir, "Add", "opset1", NUMPY, x, state, "y");
  add_layer(&ir, "Assign", "opset6", "variable_id=\"s\"", sum, -1, "next");
  add_output(&ir, sum);
  return export(&ir);
}

/* One input passed to one output. */
static struct ir pass_through(const char *element, const char *shape) {
  struct ir ir = {.count = 0};
  add_output(&ir, add_input(&ir, "x", element, shape));
  return ir;
}

/* ---------------------------------------------------------------- runs */

static struct tandem_tensor tensor_of(void *data, size_t size, int32_t dtype, int32_t rank,
                                      const int64_t *shape) {
  struct tandem_tensor tensor = {.data = data, .size = size, .dtype = dtype, .rank = rank};
  for (int32_t i = 0; i < rank; i++)
    tensor.shape[i] = shape[i];
  return tensor;
}

struct result {
  unsigned char bytes[BYTES_MAX];
  size_t size;
  int64_t rank, shape[TANDEM_MAX_RANK];
};

/* What OpenVINO itself gives for output `index`; `precision` NULL: as the library decides. */
static void infer(const struct blob *blob, enum ov_element element, const struct tandem_tensor *inputs,
                  size_t input_count, const char *precision, size_t index, struct result *result) {
  struct ov_core *core = NULL;
  struct ov_compiled_model *compiled = NULL;
  struct ov_infer_request *request = NULL;
  struct ov_tensor *tensor = NULL;
  struct ov_shape shape = {0};
  void *data = NULL;
  OV(ov.core_create(&core));
  if (precision != NULL)
    OV(ov.core_set(core, "CPU", "INFERENCE_PRECISION_HINT", precision));
  OV(ov.core_import(core, blob->bytes, blob->size, "CPU", &compiled));
  OV(ov.request_create(compiled, &request));
  for (size_t i = 0; i < input_count; i++) {
    int64_t dims[TANDEM_MAX_RANK];
    memcpy(dims, inputs[i].shape, sizeof dims);
    OV(ov.tensor_wrap(element, (struct ov_shape){inputs[i].rank, dims}, inputs[i].data, &tensor));
    OV(ov.request_set_input(request, i, tensor));
    ov.tensor_free(tensor);
  }
  OV(ov.request_infer(request));
  OV(ov.request_get_output(request, index, &tensor));
  OV(ov.tensor_bytes(tensor, &result->size));
  OV(ov.tensor_shape(tensor, &shape));
  assert_in_range(result->size, 0, BYTES_MAX);
  result->rank = shape.rank;
  for (int64_t i = 0; i < shape.rank; i++)
    result->shape[i] = shape.dims[i];
  if (result->size > 0) {
    OV(ov.tensor_data(tensor, &data));
    memcpy(result->bytes, data, result->size);
  }
  ov.shape_free(&shape);
  ov.tensor_free(tensor);
  ov.request_free(request);
  ov.compiled_free(compiled);
  ov.core_free(core);
}

static enum tandem_status try_load(const struct blob *blob, const struct tandem_option *options, size_t count,
                                   struct tandem_load **load, struct tandem_error *error) {
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "OpenvinoBackend",
                                  .payload = blob->bytes,
                                  .payload_size = blob->size,
                                  .options = options,
                                  .option_count = count};
  return tandem_load_create(&desc, load, error);
}

static struct tandem_load *load_with(const struct blob *blob, const char *key, const char *value) {
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  struct tandem_option option = {key, value};
  if (try_load(blob, &option, key != NULL, &load, &error) != TANDEM_OK)
    fail_msg("load: %s", error.message);
  return load;
}

static struct tandem_load *load(const struct blob *blob) {
  return load_with(blob, NULL, NULL);
}

static enum tandem_status try_run(struct tandem_load *load, const struct tandem_tensor *inputs,
                                  size_t input_count, struct tandem_tensor *outputs, size_t output_count,
                                  tandem_resize_fn resize, void *user, struct tandem_error *error) {
  struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                 .inputs = inputs,
                                 .input_count = input_count,
                                 .outputs = outputs,
                                 .output_count = output_count,
                                 .resize = resize,
                                 .resize_user = user};
  return tandem_load_run(load, &desc, error);
}

static void run(struct tandem_load *load, const struct tandem_tensor *input, struct tandem_tensor *output) {
  struct tandem_error error = {0};
  if (try_run(load, input, 1, output, 1, NULL, NULL, &error) != TANDEM_OK)
    fail_msg("run: %s", error.message);
}

static void assert_says(const struct tandem_error *error, enum tandem_status status, const char *part) {
  if (error->code != status || strstr(error->message, part) == NULL)
    fail_msg("expected %s with \"%s\", found %s with \"%s\"", tandem_status_name(status), part,
             tandem_status_name(error->code), error->message);
  assert_null(strchr(error->message, '\n'));
}

static void fill(float *values, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++)
    values[i] = (float)((i * 31 + seed * 17) % 41) / 8.0f - 2.0f;
}

static uint64_t engines(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(tandem_stats_get(&stats, NULL), TANDEM_OK);
  return stats.engines;
}

/* ---------------------------------------------------------------- tests */

static void each_run_reads_and_writes_the_buffers_of_its_own_call(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct tandem_load *one = load(&blob);
  float in[3][8], out[3][16];
  struct result expected;
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  /* Each pair of buffers, old and new values at one address, and back again. */
  static const struct {
    int in, out;
  } order[] = {{0, 0}, {0, 0}, {1, 0}, {1, 1}, {0, 2}, {2, 0}, {0, 0}, {0, 1}};
  for (unsigned i = 0; i < sizeof order / sizeof order[0]; i++) {
    struct tandem_tensor input = tensor_of(in[order[i].in], sizeof in[0], TANDEM_FLOAT32, 2, in_shape);
    struct tandem_tensor output = tensor_of(out[order[i].out], sizeof out[0], TANDEM_FLOAT32, 2, out_shape);
    fill(in[order[i].in], 8, i + 1);
    memset(out, 0xff, sizeof out);
    run(one, &input, &output);
    infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
    assert_memory_equal(out[order[i].out], expected.bytes, sizeof out[0]);
    for (int other = 0; other < 3; other++)
      for (size_t k = 0; other != order[i].out && k < sizeof out[0]; k++)
        assert_int_equal(((unsigned char *)out[other])[k], 0xff);
  }
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void buffers_need_only_the_alignment_of_their_elements(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct tandem_load *one = load(&blob);
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  _Alignas(64) float in[8 + 16], out[16 + 16];
  struct result expected;
  for (size_t shift = 0; shift < 16; shift++) {
    struct tandem_tensor input = tensor_of(in + shift, 8 * sizeof *in, TANDEM_FLOAT32, 2, in_shape);
    struct tandem_tensor output = tensor_of(out + shift, 16 * sizeof *out, TANDEM_FLOAT32, 2, out_shape);
    fill(in + shift, 8, (unsigned)shift);
    run(one, &input, &output);
    infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
    assert_memory_equal(out + shift, expected.bytes, 16 * sizeof *out);
  }
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void inputs_and_outputs_are_told_with_their_bounds(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct ir ir = {.count = 0};
  int a = add_input(&ir, "first", "f32", "1..32,4"), b = add_input(&ir, "second", "i64", "?,3");
  int c = add_input(&ir, "third", "u8", "");
  add_output(&ir, b);
  add_output(&ir, a);
  add_output(&ir, c);
  struct blob blob = export(&ir);
  struct tandem_load *one = load(&blob);
  const struct tandem_io *inputs, *outputs;
  size_t input_count, output_count;
  tandem_load_io(one, &inputs, &input_count, &outputs, &output_count);
  assert_int_equal(input_count, 3);
  assert_int_equal(output_count, 3);
  assert_string_equal(inputs[0].name, "first");
  assert_int_equal(inputs[0].dtype, TANDEM_FLOAT32);
  assert_int_equal(inputs[0].rank, 2);
  assert_int_equal(inputs[0].min[0], 1);
  assert_int_equal(inputs[0].max[0], 32);
  assert_int_equal(inputs[0].min[1], 4);
  assert_int_equal(inputs[0].max[1], 4);
  assert_string_equal(inputs[1].name, "second");
  assert_int_equal(inputs[1].dtype, TANDEM_INT64);
  assert_int_equal(inputs[1].min[0], 0);
  assert_true(inputs[1].max[0] == INT64_MAX);
  assert_string_equal(inputs[2].name, "third");
  assert_int_equal(inputs[2].rank, 0);
  assert_int_equal(outputs[0].dtype, TANDEM_INT64);
  assert_int_equal(outputs[1].max[0], 32);
  assert_int_equal(outputs[2].rank, 0);
  tandem_load_destroy(one);
  free(blob.bytes);
}

struct room {
  unsigned calls;
  int64_t rows;
  float *data;
  size_t size;
  enum tandem_status status;
};

static enum tandem_status make_room(void *user, size_t output, struct tandem_tensor *tensor) {
  struct room *room = user;
  assert_int_equal(output, 0);
  room->calls++;
  room->rows = tensor->shape[0];
  tensor->data = room->data;
  tensor->size = room->size;
  return room->status;
}

static void a_dynamic_output_takes_its_real_shape(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("1..32,4");
  struct tandem_load *one = load(&blob);
  float in[32 * 4], out[32 * 8], other[32 * 8];
  struct result expected;
  struct tandem_error error = {0};
  static const int64_t rows[] = {4, 32, 1, 4, 17};
  fill(in, 32 * 4, 3);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    const int64_t in_shape[] = {rows[i], 4}, planned[] = {32, 8};
    size_t written = (size_t)rows[i] * 8;
    struct tandem_tensor input = tensor_of(in, (size_t)rows[i] * 4 * sizeof *in, TANDEM_FLOAT32, 2, in_shape);
    struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, planned);
    memset(out, 0xff, sizeof out);
    run(one, &input, &output);
    assert_int_equal(output.rank, 2);
    assert_int_equal(output.shape[0], rows[i]);
    assert_int_equal(output.shape[1], 8);
    infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
    assert_int_equal(expected.size, written * sizeof *out);
    assert_memory_equal(out, expected.bytes, expected.size);
    for (size_t k = expected.size; k < sizeof out; k++)
      assert_int_equal(((unsigned char *)out)[k], 0xff);

    /* The caller's resize gives the memory, and is asked only for a shape that is not the planned one. */
    struct room room = {.data = other, .size = sizeof other};
    output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, planned);
    assert_int_equal(try_run(one, &input, 1, &output, 1, make_room, &room, &error), TANDEM_OK);
    assert_int_equal(room.calls, rows[i] != 32);
    if (room.calls > 0)
      assert_int_equal(room.rows, rows[i]);
    assert_memory_equal(room.calls > 0 ? other : out, expected.bytes, expected.size);
  }
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void an_output_without_room_is_refused_by_name_and_the_load_goes_on(void **state) {
  (void)state;
  BOUND(SECONDS);
  static const char *const shapes[] = {"1..32,4", "4,4"};
  for (size_t i = 0; i < 2; i++) {
    struct blob blob = make_linear(shapes[i]);
    struct tandem_load *one = load(&blob);
    float in[16], out[32];
    struct result expected;
    struct tandem_error error = {0};
    static const int64_t in_shape[] = {4, 4}, out_shape[] = {4, 8};
    fill(in, 16, 5);
    struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
    struct tandem_tensor output = tensor_of(out, sizeof out - 1, TANDEM_FLOAT32, 2, out_shape);
    try_run(one, &input, 1, &output, 1, NULL, NULL, &error);
    assert_says(&error, TANDEM_INVALID_ARGUMENT, "\"y\"");
    struct room room = {.data = out, .size = sizeof out, .status = TANDEM_OUT_OF_MEMORY};
    output = tensor_of(out, 0, TANDEM_FLOAT32, 2, out_shape);
    try_run(one, &input, 1, &output, 1, make_room, &room, &error);
    assert_says(&error, TANDEM_OUT_OF_MEMORY, "\"y\"");
    assert_int_equal(room.calls, 1);
    output = tensor_of(out, sizeof out, TANDEM_INT32, 2, out_shape);
    try_run(one, &input, 1, &output, 1, NULL, NULL, &error);
    assert_says(&error, TANDEM_INVALID_ARGUMENT, "y");
    output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
    run(one, &input, &output);
    infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
    assert_memory_equal(out, expected.bytes, sizeof out);
    tandem_load_destroy(one);
    free(blob.bytes);
  }
}

static int (*real_set_input)(struct ov_infer_request *, size_t, const struct ov_tensor *);
static struct ov_tensor *foreign; /* what a failing run leaves bound to input 0 */

static int lose_bindings(struct ov_infer_request *request) {
  assert_int_equal(real_set_input(request, 0, foreign), OV_OK);
  return -1;
}

/* OpenVINO does not say what a request is bound to after a run of it failed. */
static void a_run_after_a_failed_one_reads_the_buffers_of_its_own_call(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct tandem_load *one = load(&blob);
  float in[8], out[16], other[8];
  struct result expected;
  struct tandem_error error = {0};
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  int64_t dims[] = {2, 4};
  struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
  struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
  fill(in, 8, 1);
  fill(other, 8, 2);
  run(one, &input, &output);
  OV(ov.tensor_wrap(OV_F32, (struct ov_shape){.rank = 2, .dims = dims}, other, &foreign));
  const struct ov_api kept = td_ov;
  real_set_input = td_ov.request_set_input;
  td_ov.request_infer = lose_bindings;
  enum tandem_status status = try_run(one, &input, 1, &output, 1, NULL, NULL, &error);
  td_ov = kept;
  assert_int_equal(status, TANDEM_DEVICE_ERROR);
  memset(out, 0xff, sizeof out);
  run(one, &input, &output); /* the same memory, and nothing of the other one */
  infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
  assert_memory_equal(out, expected.bytes, sizeof out);
  ov.tensor_free(foreign);
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void state_belongs_to_the_load_and_reset_clears_it(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_stateful();
  struct tandem_load *first = load(&blob), *second = load(&blob);
  assert_int_equal(engines(), 1);
  static const int64_t shape[] = {1, 4};
  float in[4] = {1, 2, 3, 4}, out[4];
  struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, shape), output;
  static const struct {
    bool second, reset;
    float times;
  } steps[] = {{0, 0, 1}, {0, 0, 2}, {1, 0, 1}, {0, 0, 3}, {1, 1, 1},
               {0, 0, 4}, {0, 1, 1}, {1, 0, 2}, {0, 0, 2}};
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    struct tandem_load *load = steps[i].second ? second : first;
    if (steps[i].reset)
      assert_int_equal(tandem_load_reset(load, NULL), TANDEM_OK);
    output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, shape);
    memset(out, 0xff, sizeof out);
    run(load, &input, &output);
    for (size_t k = 0; k < 4; k++)
      if (out[k] != steps[i].times * in[k])
        fail_msg("step %zu, element %zu: expected %g, found %g", i, k, (double)(steps[i].times * in[k]),
                 (double)out[k]);
  }
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  free(blob.bytes);
}

static void every_element_type_of_executorch_passes_through(void **state) {
  (void)state;
  BOUND(SECONDS);
  static const struct {
    const char *name;
    enum ov_element element;
    int32_t dtype;
  } types[] = {
      {"boolean", OV_BOOLEAN, TANDEM_BOOL},
      {"bf16", OV_BF16, TANDEM_BFLOAT16},
      {"f16", OV_F16, TANDEM_FLOAT16},
      {"f32", OV_F32, TANDEM_FLOAT32},
      {"f64", OV_F64, TANDEM_FLOAT64},
      {"i8", OV_I8, TANDEM_INT8},
      {"i16", OV_I16, TANDEM_INT16},
      {"i32", OV_I32, TANDEM_INT32},
      {"i64", OV_I64, TANDEM_INT64},
      {"u8", OV_U8, TANDEM_UINT8},
      {"u16", OV_U16, TANDEM_UINT16},
      {"u32", OV_U32, TANDEM_UINT32},
      {"u64", OV_U64, TANDEM_UINT64},
      {"f8e4m3", OV_F8E4M3, TANDEM_FLOAT8_E4M3FN},
      {"f8e5m2", OV_F8E5M2, TANDEM_FLOAT8_E5M2},
  };
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    struct ir ir = pass_through(types[i].name, "2,3");
    struct blob blob;
    if (!try_export(&ir, false, &blob)) {
      print_message("%s: OpenVINO's CPU plugin does not compile a model of it\n", types[i].name);
      continue;
    }
    struct tandem_load *one = load(&blob);
    const struct tandem_io *inputs, *outputs;
    tandem_load_io(one, &inputs, NULL, &outputs, NULL);
    assert_int_equal(inputs[0].dtype, types[i].dtype);
    assert_int_equal(outputs[0].dtype, types[i].dtype);
    static const int64_t shape[] = {2, 3};
    size_t size = 6 * tandem_dtype_size(types[i].dtype);
    _Alignas(8) unsigned char in[48] = {0}, out[48], kept[48];
    struct result expected;
    for (size_t k = 0; k < size; k += tandem_dtype_size(types[i].dtype))
      in[k] = types[i].dtype == TANDEM_BOOL ? k % 2 : (unsigned char)(k + 1);
    memset(out, 0xee, sizeof out);
    memcpy(kept, in, sizeof kept);
    struct tandem_tensor input = tensor_of(in, size, types[i].dtype, 2, shape);
    struct tandem_tensor output = tensor_of(out, size, types[i].dtype, 2, shape);
    run(one, &input, &output);
    infer(&blob, types[i].element, &input, 1, NULL, 0, &expected);
    assert_int_equal(expected.size, size);
    if (memcmp(out, expected.bytes, size) != 0 || memcmp(in, kept, size) != 0)
      fail_msg("%s differs from what OpenVINO gives, or the input was written", types[i].name);
    tandem_load_destroy(one);
    free(blob.bytes);
  }
}

static void an_element_type_that_tensors_lack_is_refused_by_name(void **state) {
  (void)state;
  BOUND(SECONDS);
  static const char *const types[] = {"i4", "u4", "u1", "nf4", "string", "f4e2m1"};
  unsigned refused = 0;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    struct ir ir = pass_through(types[i], "2,4");
    struct blob blob;
    struct tandem_load *one = NULL;
    struct tandem_error error = {0};
    if (!try_export(&ir, false, &blob))
      continue;
    try_load(&blob, NULL, 0, &one, &error);
    assert_null(one);
    assert_says(&error, TANDEM_UNSUPPORTED, types[i]);
    assert_says(&error, TANDEM_UNSUPPORTED, "\"x\"");
    assert_int_equal(engines(), 0);
    refused++;
    free(blob.bytes);
  }
  assert_true(refused > 0);
}

static void scalars_and_empty_tensors_run(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct ir ir = {.count = 0};
  int x = add_input(&ir, "x", "f32", ""), y = add_input(&ir, "y", "f32", "");
  add_output(&ir, add_layer(&ir, "Add", "opset1", NUMPY, x, y, "z"));
  struct blob blob = export(&ir);
  struct tandem_load *one = load(&blob);
  float a = 1.5f, b = 2.25f, sum = 0;
  struct tandem_error error = {0};
  struct tandem_tensor inputs[] = {tensor_of(&a, sizeof a, TANDEM_FLOAT32, 0, NULL),
                                   tensor_of(&b, sizeof b, TANDEM_FLOAT32, 0, NULL)};
  struct tandem_tensor output = tensor_of(&sum, sizeof sum, TANDEM_FLOAT32, 0, NULL);
  if (try_run(one, inputs, 2, &output, 1, NULL, NULL, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(sum == 3.75f);
  tandem_load_destroy(one);
  free(blob.bytes);

  blob = make_linear("?,4");
  one = load(&blob);
  static const int64_t none[] = {0, 4}, some[] = {2, 4}, planned[] = {2, 8};
  float in[8], out[16];
  struct result expected;
  fill(in, 8, 1);
  for (int round = 0; round < 2; round++) {
    struct tandem_tensor empty = tensor_of(NULL, 0, TANDEM_FLOAT32, 2, none);
    output = tensor_of(round == 0 ? NULL : out, round == 0 ? 0 : sizeof out, TANDEM_FLOAT32, 2, planned);
    run(one, &empty, &output);
    assert_int_equal(output.shape[0], 0);
    assert_int_equal(output.shape[1], 8);
    struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, some);
    output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, planned);
    run(one, &input, &output);
    infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
    assert_memory_equal(out, expected.bytes, sizeof out);
  }
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void one_value_may_be_several_outputs_and_a_constant_one(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct ir ir = {.count = 0};
  int x = add_input(&ir, "x", "f32", "1,4"), c = add_weights(&ir, 1, 4, 1.0f);
  int sum = add_layer(&ir, "Add", "opset1", NUMPY, x, c, "y");
  add_output(&ir, sum);
  add_output(&ir, x);
  add_output(&ir, c);
  add_output(&ir, sum);
  struct blob blob = export(&ir);
  struct tandem_load *one = load(&blob);
  static const int64_t shape[] = {1, 4};
  float in[2][4], out[4][4];
  struct tandem_error error = {0};
  for (unsigned round = 0; round < 4; round++) {
    struct tandem_tensor input = tensor_of(in[round % 2], sizeof in[0], TANDEM_FLOAT32, 2, shape), outputs[4];
    float kept[4];
    fill(in[round % 2], 4, round);
    memcpy(kept, in[round % 2], sizeof kept);
    memset(out, 0xff, sizeof out);
    for (size_t i = 0; i < 4; i++)
      outputs[i] = tensor_of(out[(i + round) % 4], sizeof out[0], TANDEM_FLOAT32, 2, shape);
    if (try_run(one, &input, 1, outputs, 4, NULL, NULL, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    assert_memory_equal(in[round % 2], kept, sizeof kept);
    for (size_t i = 0; i < 4; i++) {
      struct result expected;
      infer(&blob, OV_F32, &input, 1, NULL, i, &expected);
      assert_int_equal(expected.size, sizeof out[0]);
      if (memcmp(outputs[i].data, expected.bytes, expected.size) != 0)
        fail_msg("round %u, output %zu differs from OpenVINO's", round, i);
    }
  }
  tandem_load_destroy(one);
  free(blob.bytes);
}

static void options_change_the_engine_and_are_told_in_one_form(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  static const struct {
    const char *key, *value, *told;
  } cases[] = {
      {"precision", "f32", "precision=f32"},
      {"num_streams", "2", "num_streams=2"},
      {"num_threads", "1", "num_threads=1"},
      {"performance_hint", "throughput", "performance_hint=throughput"},
      {"cpu_pinning", "false", "cpu_pinning=false"},
  };
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  float in[8], out[16];
  struct result expected;
  fill(in, 8, 9);
  struct tandem_load *plain = load(&blob);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct tandem_load *one = load_with(&blob, cases[i].key, cases[i].value);
    struct tandem_load *same = load_with(&blob, cases[i].key, cases[i].value);
    struct tandem_load_info info = {.struct_size = sizeof info};
    assert_int_equal(engines(), 2);
    assert_int_equal(tandem_load_get_info(one, &info, NULL), TANDEM_OK);
    assert_string_equal(info.device, "CPU");
    if (strstr(info.options, cases[i].told) == NULL)
      fail_msg("\"%s\" does not tell %s", info.options, cases[i].told);
    struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
    struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
    run(one, &input, &output);
    infer(&blob, OV_F32, &input, 1, i == 0 ? "f32" : NULL, 0, &expected);
    assert_memory_equal(out, expected.bytes, sizeof out);
    tandem_load_destroy(one);
    tandem_load_destroy(same);
  }
  /* What leaves it to OpenVINO is one engine, however it is written. */
  static const struct tandem_option automatic[] = {{"device", "cpu"},
                                                   {"precision", "auto"},
                                                   {"num_streams", "0"},
                                                   {"num_threads", "000"},
                                                   {"performance_hint", "auto"}};
  struct tandem_load *same = NULL;
  assert_int_equal(try_load(&blob, automatic, 5, &same, NULL), TANDEM_OK);
  assert_int_equal(engines(), 1);
  tandem_load_destroy(same);
  tandem_load_destroy(plain);
  assert_int_equal(engines(), 0);
  free(blob.bytes);
}

static int (*real_core_create)(struct ov_core **);
static void (*real_core_free)(struct ov_core *);
static int cores_made, cores_freed;

static int count_core(struct ov_core **core) {
  int code = real_core_create(core);
  cores_made += code == OV_OK;
  return code;
}

static void count_freed_core(struct ov_core *core) {
  cores_freed++;
  real_core_free(core);
}

/* Each set of options needs a core; 64 are kept, those of further sets go with their engines. */
static void cores_do_not_pile_up_with_the_sets_of_options(void **state) {
  (void)state;
  BOUND(2 * SECONDS);
  enum { KEPT = 64, FIRST = 1001, MORE = 6 };
  struct blob blob = make_linear("2,4");
  struct td_openvino_blob facts;
  tandem_load_destroy(load(&blob)); /* the library is open now */
  real_core_create = td_ov.core_create;
  real_core_free = td_ov.core_free;
  td_ov.core_create = count_core;
  td_ov.core_free = count_freed_core;
  float in[8], out[16];
  struct result expected;
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
  struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
  fill(in, 8, 4);
  infer(&blob, OV_F32, &input, 1, NULL, 0, &expected);
  char text[16];
  for (int i = 0; i < KEPT + MORE; i++) {
    snprintf(text, sizeof text, "%d", FIRST + i);
    tandem_load_destroy(load_with(&blob, "num_threads", text));
  }
  assert_int_equal(cores_made, KEPT + MORE);
  assert_true(cores_made - cores_freed <= KEPT);
  int kept = cores_made - cores_freed;
  for (int i = 0; i < MORE; i++) {
    snprintf(text, sizeof text, "%d", FIRST + KEPT + MORE + i);
    struct tandem_load *one = load_with(&blob, "num_threads", text);
    assert_int_equal(cores_made - cores_freed, kept + 1);
    run(one, &input, &output);
    assert_memory_equal(out, expected.bytes, sizeof out);
    tandem_load_destroy(one);
    assert_int_equal(cores_made - cores_freed, kept);
  }
  /* A build that fails leaves none either. */
  struct tandem_option option = {"num_threads", "2001"};
  struct tandem_load *none = NULL;
  struct tandem_error error = {0};
  assert_int_equal(td_openvino_read_blob(&td_host, blob.bytes, blob.size, &facts, NULL), TANDEM_OK);
  memset(blob.bytes + facts.model_offset, 'x', facts.model_size);
  int made = cores_made;
  try_load(&blob, &option, 1, &none, &error);
  assert_says(&error, TANDEM_BAD_PROGRAM, "import the payload");
  assert_int_equal(cores_made, made + 1);
  assert_int_equal(cores_made - cores_freed, kept);
  td_ov.core_create = real_core_create;
  td_ov.core_free = real_core_free;
  free(blob.bytes);
}

static void a_device_that_is_not_there_is_refused_with_those_that_are(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  static const char *const devices[] = {"TPU", "CPU.7", "CPU,CPU"};
  for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
    struct tandem_load *one = NULL;
    struct tandem_error error = {0};
    struct tandem_option option = {"device", devices[i]};
    try_load(&blob, &option, 1, &one, &error);
    assert_null(one);
    assert_says(&error, TANDEM_BAD_OPTION, devices[i]);
    assert_says(&error, TANDEM_BAD_OPTION, "has CPU");
  }
  free(blob.bytes);
}

static void refuse_edited(const struct blob *blob, const char *from, const char *to,
                          enum tandem_status status, const char *const *parts, size_t part_count) {
  struct blob copy = {malloc(blob->size), blob->size};
  struct tandem_load *one = NULL;
  struct tandem_error error = {0};
  assert_non_null(copy.bytes);
  memcpy(copy.bytes, blob->bytes, blob->size);
  char *at = memmem(copy.bytes, copy.size, from, strlen(from));
  assert_non_null(at);
  memcpy(at, to, strlen(to));
  try_load(&copy, NULL, 0, &one, &error);
  assert_null(one);
  for (size_t i = 0; i < part_count; i++)
    assert_says(&error, status, parts[i]);
  assert_int_equal(engines(), 0);
  free(copy.bytes);
}

static void a_blob_of_another_version_or_processor_is_refused_with_both_named(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct td_openvino_blob facts;
  assert_int_equal(td_openvino_read_blob(&td_host, blob.bytes, blob.size, &facts, NULL), TANDEM_OK);
  if (facts.format == TD_OPENVINO_UNNAMED) {
    /* As a 2026 writes it. */
    static const char text[] = "meta=1.0;ov=2026.4.1;isa=Intel AVX2";
    struct blob named = {calloc(1, blob.size + 20 + sizeof text - 1), blob.size + 20 + sizeof text - 1};
    assert_non_null(named.bytes);
    memcpy(named.bytes, "RR_UPCVO\1", 9);
    named.bytes[12] = (char)(sizeof text - 1);
    memcpy(named.bytes + 20, text, sizeof text - 1);
    memcpy(named.bytes + 20 + sizeof text - 1, blob.bytes, blob.size);
    refuse_edited(&named, "isa", "isa", TANDEM_UNSUPPORTED,
                  (const char *const[]){"OpenVINO 2026.4.1", "OpenVINO 2025.4.1", "export the program again"},
                  3);
    free(named.bytes);
  } else {
    char other[80], set[160];
    snprintf(other, sizeof other, "ov=%s", facts.version);
    snprintf(set, sizeof set, "isa=%s", facts.instruction_set);
    other[strlen(other) - 1] = '9';
    char now[80];
    snprintf(now, sizeof now, "ov=%s", facts.version);
    refuse_edited(&blob, now, other, TANDEM_UNSUPPORTED,
                  (const char *const[]){other + 3, facts.version, "export the program again"}, 3);
    char another[160];
    snprintf(another, sizeof another, "%s", set);
    another[strlen(another) - 1] = '#';
    refuse_edited(&blob, set, another, TANDEM_UNSUPPORTED,
                  (const char *const[]){another + 4, facts.instruction_set, "export the program again"}, 3);
    /* What 2025 writes: the same without the name. */
    struct blob unnamed = {blob.bytes + facts.header_size - 48, blob.size - facts.header_size + 48};
    struct tandem_load *one = NULL;
    struct tandem_error error = {0};
    try_load(&unnamed, NULL, 0, &one, &error);
    assert_says(&error, TANDEM_UNSUPPORTED, "2025 or older");
    assert_says(&error, TANDEM_UNSUPPORTED, facts.version);
    assert_says(&error, TANDEM_UNSUPPORTED, "export the program again");
  }
  free(blob.bytes);
}

static void a_model_that_openvino_cannot_read_is_a_bad_program(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct td_openvino_blob facts;
  struct tandem_load *one = NULL;
  struct tandem_error error = {0};
  assert_int_equal(td_openvino_read_blob(&td_host, blob.bytes, blob.size, &facts, NULL), TANDEM_OK);
  memset(blob.bytes + facts.model_offset, 'x', facts.model_size);
  try_load(&blob, NULL, 0, &one, &error);
  assert_null(one);
  assert_says(&error, TANDEM_BAD_PROGRAM, "import the payload");
  assert_null(strstr(error.message, "Exception from"));
  assert_int_equal(engines(), 0);
  free(blob.bytes);
}

static void a_load_that_runs_out_of_memory_leaves_nothing(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct blob blob = make_linear("2,4");
  struct tandem_load *one = load(&blob); /* the core of these options stays */
  tandem_load_destroy(one);
  uint64_t before = td_memory_live();
  for (uint64_t n = 1;; n++) {
    struct tandem_error error = {0};
    td_memory_fail_at(n);
    enum tandem_status status = try_load(&blob, NULL, 0, &one, &error);
    td_memory_fail_at(0);
    if (status == TANDEM_OK)
      break;
    assert_int_equal(status, TANDEM_OUT_OF_MEMORY);
    assert_int_equal(td_memory_live(), before);
    assert_int_equal(engines(), 0);
    assert_true(n < 1000);
  }
  tandem_load_destroy(one);
  assert_int_equal(td_memory_live(), before);
  free(blob.bytes);
}

static void the_memory_of_the_host_is_told(void **state) {
  (void)state;
  struct tandem_resolution resolution = {.device = "CPU"};
  uint64_t available = 0, total = 0;
  struct tandem_error error = {0};
  assert_int_equal(td_vendor_openvino.memory(&resolution, &available, &total, &error), TANDEM_OK);
  assert_true(available > 0 && available <= total);
  strcpy(resolution.device, "GPU");
  assert_int_equal(td_vendor_openvino.memory(&resolution, &available, &total, &error), TANDEM_UNSUPPORTED);
}

/* ---------------------------------------------------------------- processes */

/* Runs `body` in a forked child; its result is the child's exit status. A child that hangs is killed. */
static int in_child(int (*body)(void *), void *argument) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(30);
    _exit(body(argument));
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status))
    fail_msg("the child ended by signal %d", WTERMSIG(status));
  return WEXITSTATUS(status);
}

struct inherited {
  struct blob blob;
  struct tandem_load *load;
};

static int use_in_child(void *argument) {
  struct inherited *inherited = argument;
  struct tandem_error error = {0};
  struct tandem_load *one = NULL;
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  float in[8] = {0}, out[16];
  struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
  struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
  if (try_run(inherited->load, &input, 1, &output, 1, NULL, NULL, &error) != TANDEM_DEVICE_LOST)
    return 1;
  if (try_load(&inherited->blob, NULL, 0, &one, &error) != TANDEM_UNAVAILABLE || one != NULL ||
      strstr(error.message, "forked") == NULL)
    return 2;
  tandem_load_destroy(inherited->load);
  return 0;
}

static void a_forked_child_gets_a_clear_error_and_never_waits(void **state) {
  (void)state;
  BOUND(SECONDS);
  struct inherited inherited = {make_linear("2,4"), NULL};
  static const int64_t in_shape[] = {2, 4}, out_shape[] = {2, 8};
  float in[8], out[16];
  struct result expected;
  fill(in, 8, 2);
  struct tandem_tensor input = tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape);
  struct tandem_tensor output = tensor_of(out, sizeof out, TANDEM_FLOAT32, 2, out_shape);
  inherited.load = load(&inherited.blob);
  for (int i = 0; i < 20; i++) {
    run(inherited.load, &input, &output);
    assert_int_equal(in_child(use_in_child, &inherited), 0);
  }
  run(inherited.load, &input, &output);
  infer(&inherited.blob, OV_F32, &input, 1, NULL, 0, &expected);
  assert_memory_equal(out, expected.bytes, sizeof out);
  tandem_load_destroy(inherited.load);
  free(inherited.blob.bytes);
}

/* Everything below runs in children forked before this process has opened OpenVINO. */

struct place {
  const char *variable, *value;
};

/* Opens the vendor's library with one variable set and the others not; 0 when it found library_path. */
static int open_with(void *argument) {
  const struct place *place = argument;
  struct tandem_vendor_library library = {{0}, {0}, {0}};
  struct tandem_error error = {0};
  static const char *const variables[] = {"TANDEM_OPENVINO_LIBRARY", "OPENVINO_LIB_PATH", "VIRTUAL_ENV",
                                          "CONDA_PREFIX", "PYTHONPATH"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
    unsetenv(variables[i]);
  setenv("HOME", "/nonexistent", 1);
  setenv(place->variable, place->value, 1);
  enum tandem_status status = td_vendor_openvino.open(&td_host, &library, &error);
  if (status != TANDEM_OK)
    fprintf(stderr, "%s=%s: %s\n", place->variable, place->value, error.message);
  return status != TANDEM_OK                       ? 1
         : strcmp(library.path, library_path) != 0 ? 2
         : strncmp(library.version, "202", 3) != 0 ? 3
         : library.build_id[0] == '\0'             ? 4
                                                   : 0;
}

static int open_missing(void *argument) {
  const struct place *place = argument;
  struct tandem_vendor_library library;
  struct tandem_error error = {0};
  setenv(place->variable, place->value, 1);
  enum tandem_status status = td_vendor_openvino.open(&td_host, &library, &error);
  bool told = strstr(error.message, place->variable) != NULL && strstr(error.message, place->value) != NULL;
  return status == TANDEM_UNAVAILABLE && told && strchr(error.message, '\n') == NULL ? 0 : 1;
}

static void the_library_is_found_where_the_user_or_python_has_it(void **state) {
  (void)state;
  BOUND(SECONDS);
  char folder[512], packages[512], prefix[512];
  snprintf(folder, sizeof folder, "%s", library_path);
  *strrchr(folder, '/') = '\0';
  snprintf(packages, sizeof packages, "%s", folder);
  char *inside = strstr(packages, "/openvino/libs");
  const struct place named[] = {{"TANDEM_OPENVINO_LIBRARY", library_path},
                                {"TANDEM_OPENVINO_LIBRARY", folder},
                                {"OPENVINO_LIB_PATH", library_path}};
  for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
    assert_int_equal(in_child(open_with, (void *)(uintptr_t)&named[i]), 0);
  const struct place missing[] = {{"TANDEM_OPENVINO_LIBRARY", "/nonexistent/libopenvino_c.so"},
                                  {"TANDEM_OPENVINO_LIBRARY", "/proc"},
                                  {"TANDEM_OPENVINO_LIBRARY", "/etc/passwd"}};
  for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
    assert_int_equal(in_child(open_missing, (void *)(uintptr_t)&missing[i]), 0);
  if (inside == NULL)
    return;
  *inside = '\0';
  char list[1100];
  snprintf(list, sizeof list, "/nonexistent::%s", packages);
  assert_int_equal(in_child(open_with, &(struct place){"PYTHONPATH", list}), 0);
  snprintf(prefix, sizeof prefix, "%s", packages);
  char *lib = strstr(prefix, "/lib/python3");
  if (lib == NULL)
    return;
  *lib = '\0';
  assert_int_equal(in_child(open_with, &(struct place){"VIRTUAL_ENV", prefix}), 0);
}

/* A host whose library is this program: get_version lies, every other symbol is there. */
static const char *pretended_version;

static int pretend_version(struct ov_version *version) {
  version->build_number = pretended_version;
  return 0;
}

static void do_nothing(void) {}

static void *pretend_library(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  (void)name, (void)error;
  snprintf(path, path_size, "/pretended/libopenvino_c.so");
  return &pretended_version;
}

static void *pretend_symbol(void *library, const char *name) {
  (void)library;
  int (*version)(struct ov_version *) = pretend_version;
  void (*nothing)(void) = do_nothing;
  void *address;
  if (strcmp(name, "ov_get_openvino_version") == 0)
    memcpy(&address, &version, sizeof address);
  else
    memcpy(&address, &nothing, sizeof address);
  return address;
}

static int open_pretended(void *argument) {
  static const struct {
    const char *version;
    enum tandem_status status;
  } cases[] = {
      {"2024.6.0-1-x", TANDEM_UNSUPPORTED}, {"2025.1.0-1-x", TANDEM_UNSUPPORTED},
      {"2025.3.0-1-x", TANDEM_UNSUPPORTED}, {"2025.4.0-1-x", TANDEM_OK},
      {"2026.0.0-1-x", TANDEM_OK},          {"2026.4.1-1-x", TANDEM_OK},
      {"2027.0.0-1-x", TANDEM_UNSUPPORTED}, {"nonsense", TANDEM_UNSUPPORTED},
  };
  (void)argument;
  struct tandem_host host = td_host;
  host.library_open = pretend_library;
  host.library_symbol = pretend_symbol;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct tandem_vendor_library library;
    struct tandem_error error = {0};
    pretended_version = cases[i].version;
    if (td_vendor_openvino.open(&host, &library, &error) != cases[i].status)
      return (int)i + 1;
    if (cases[i].status != TANDEM_OK && (strstr(error.message, cases[i].version) == NULL ||
                                         strstr(error.message, "/pretended/libopenvino_c.so") == NULL ||
                                         strstr(error.message, "pip install") == NULL))
      return 100 + (int)i;
  }
  return 0;
}

static void an_older_library_is_refused_by_name(void **state) {
  (void)state;
  BOUND(SECONDS);
  assert_int_equal(in_child(open_pretended, NULL), 0);
}

/* This program once more, over a library of its own; its exit status, 77 also where the system cannot start a
 * program that qemu-user runs. */
static int run_self(const char *library, const char *argument) {
  int status = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("TANDEM_OPENVINO_LIBRARY", library, 1);
    unsetenv("TANDEM_OPENVINO_2025_LIBRARY");
#ifdef __SANITIZE_ADDRESS__
    /* 2025.4.1 unloads its frontends, whose static objects then look lost. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
#endif
    execl("/proc/self/exe", "test_openvino_engine", argument, (char *)NULL);
    _exit(errno == ENOEXEC ? 77 : 1);
  }
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int run_without_memory(void) {
  find_calls();
  struct ir ir = {.count = 0};
  int x = add_input(&ir, "x", "f32", "1,4"), w = add_weights(&ir, 4, 8, 0.3f);
  /* An intermediate of 4 GiB, so that its run cannot fit below the limit. */
  append(ir.layers, sizeof ir.layers,
         "<layer id=\"%d\" name=\"p\" type=\"Parameter\" version=\"opset1\"><data shape=\"?,8\" "
         "element_type=\"f32\"/><output><port id=\"0\" precision=\"FP32\" names=\"p\"/></output></layer>",
         ir.count);
  int p = ir.count++;
  int y = add_layer(&ir, "MatMul", "opset1", MATMUL, x, w, "y");
  add_output(&ir, add_layer(&ir, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", p,
                            add_layer(&ir, "Add", "opset1", NUMPY, p, y, "s"), "z"));
  struct blob blob = export(&ir);
  struct tandem_load *one = load(&blob);
  enum { ROWS = 32768 }; /* z is ROWS x ROWS floats, 4 GiB */
  static float in[4], many[ROWS * 8];
  const int64_t in_shape[] = {1, 4}, many_shape[] = {ROWS, 8}, planned[] = {1, 1};
  float out;
  struct tandem_error error = {0};
  struct tandem_tensor inputs[] = {tensor_of(in, sizeof in, TANDEM_FLOAT32, 2, in_shape),
                                   tensor_of(many, sizeof many, TANDEM_FLOAT32, 2, many_shape)};
  struct tandem_tensor output = tensor_of(&out, sizeof out, TANDEM_FLOAT32, 2, planned);
  /* Warm first, so that no thread has to be made under the limit. */
  const int64_t one_row[] = {1, 8};
  struct tandem_tensor small[] = {inputs[0], tensor_of(many, 8 * sizeof *many, TANDEM_FLOAT32, 2, one_row)};
  if (try_run(one, small, 2, &output, 1, NULL, NULL, &error) != TANDEM_OK)
    return 1;
  char line[256];
  uint64_t pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file == NULL || fgets(line, sizeof line, file) == NULL || sscanf(line, "%lu", &pages) != 1)
    return 2;
  fclose(file);
  struct rlimit limit = {pages * (uint64_t)sysconf(_SC_PAGESIZE) + (1u << 30), RLIM_INFINITY}, taken;
  if (setrlimit(RLIMIT_AS, &limit) != 0 || getrlimit(RLIMIT_AS, &taken) != 0)
    return 3;
  if (taken.rlim_cur != limit.rlim_cur) /* qemu-user takes it and keeps to none */
    return 77;
  output = tensor_of(&out, sizeof out, TANDEM_FLOAT32, 2, planned);
  enum tandem_status status = try_run(one, inputs, 2, &output, 1, NULL, NULL, &error);
  fprintf(stderr, "%s: %s\n", tandem_status_name(status), error.message);
  if (status != TANDEM_OUT_OF_MEMORY)
    return 4;
  output = tensor_of(&out, sizeof out, TANDEM_FLOAT32, 2, planned);
  return try_run(one, small, 2, &output, 1, NULL, NULL, &error) == TANDEM_OK ? 0 : 5;
}

static void a_run_without_memory_says_so_and_the_load_goes_on(void **state) {
  (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip(); /* a sanitizer's own address space leaves no limit to set */
#endif
  BOUND(SECONDS);
  int status = run_self(library_path, "--without-memory");
  if (status == 77)
    skip();
  assert_int_equal(status, 0);
}

static int print_path(void *argument) {
  (void)argument;
  struct tandem_vendor_library library;
  struct tandem_error error = {0};
  if (td_vendor_openvino.open(&td_host, &library, &error) != TANDEM_OK) {
    fprintf(stderr, "SKIPPED: %s\n", error.message);
    return 77;
  }
  return write(*(int *)argument, library.path, strlen(library.path)) > 0 ? 0 : 1;
}

/* Where the vendor finds its library, asked in a child so that this process has opened none. */
static int find_library(void) {
  static char path[512];
  int ends[2], status = 0;
  if (pipe(ends) != 0)
    return 1;
  pid_t child = fork();
  if (child == 0)
    _exit(print_path(&ends[1]));
  close(ends[1]);
  ssize_t size = read(ends[0], path, sizeof path - 1);
  close(ends[0]);
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
    return 1;
  if (size > 0)
    library_path = path;
  return WEXITSTATUS(status);
}

static int find_calls_once(void **state) {
  (void)state;
  find_calls();
  return 0;
}

int main(int argc, char **argv) {
  const char *older = getenv("TANDEM_OPENVINO_2025_LIBRARY");
  const char *required = getenv("TANDEM_REQUIRE_OPENVINO");
  if (argc > 1 && strcmp(argv[1], "--without-memory") == 0) {
    library_path = getenv("TANDEM_OPENVINO_LIBRARY");
    return run_without_memory();
  }
  int failed = older != NULL && *older != '\0' ? run_self(older, NULL) : 0;
  int found = find_library();
  if (found != 0)
    return found == 77 && (required == NULL || strcmp(required, "1") != 0) ? 77 : 1;
  print_message("OpenVINO: %s\n", library_path);
  const struct CMUnitTest apart[] = {
      cmocka_unit_test(the_library_is_found_where_the_user_or_python_has_it),
      cmocka_unit_test(an_older_library_is_refused_by_name),
      cmocka_unit_test(a_run_without_memory_says_so_and_the_load_goes_on),
  };
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_run_reads_and_writes_the_buffers_of_its_own_call),
      cmocka_unit_test(buffers_need_only_the_alignment_of_their_elements),
      cmocka_unit_test(inputs_and_outputs_are_told_with_their_bounds),
      cmocka_unit_test(a_dynamic_output_takes_its_real_shape),
      cmocka_unit_test(an_output_without_room_is_refused_by_name_and_the_load_goes_on),
      cmocka_unit_test(a_run_after_a_failed_one_reads_the_buffers_of_its_own_call),
      cmocka_unit_test(state_belongs_to_the_load_and_reset_clears_it),
      cmocka_unit_test(every_element_type_of_executorch_passes_through),
      cmocka_unit_test(an_element_type_that_tensors_lack_is_refused_by_name),
      cmocka_unit_test(scalars_and_empty_tensors_run),
      cmocka_unit_test(one_value_may_be_several_outputs_and_a_constant_one),
      cmocka_unit_test(options_change_the_engine_and_are_told_in_one_form),
      cmocka_unit_test(a_device_that_is_not_there_is_refused_with_those_that_are),
      cmocka_unit_test(a_blob_of_another_version_or_processor_is_refused_with_both_named),
      cmocka_unit_test(a_model_that_openvino_cannot_read_is_a_bad_program),
      cmocka_unit_test(a_load_that_runs_out_of_memory_leaves_nothing),
      cmocka_unit_test(cores_do_not_pile_up_with_the_sets_of_options),
      cmocka_unit_test(the_memory_of_the_host_is_told),
      cmocka_unit_test(a_forked_child_gets_a_clear_error_and_never_waits),
  };
  failed += cmocka_run_group_tests(apart, NULL, NULL);
  failed += cmocka_run_group_tests(tests, find_calls_once, NULL);
#ifdef __SANITIZE_THREAD__
  /* TBB's threads end during exit, and how they are synchronised with it the sanitizer cannot see. */
  fflush(NULL);
  _exit(failed != 0 ? 1 : 0);
#endif
  return failed != 0 ? 1 : 0;
}
