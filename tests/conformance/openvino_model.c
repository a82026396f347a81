/* Writes an IR (XML and weights) to a temporary folder, has OpenVINO compile and export it, and keeps the
 * exported bytes. The numbers come from an import of these bytes, since that is what a program's payload goes
 * through; a fresh infer request for each question gives fresh state. The C interface is declared here and
 * not taken from the vendor, which is what is under test.
 */
#include "openvino_model.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct shape {
  int64_t rank;
  int64_t *dims;
};
enum { ELEMENT_F32 = 4 };

static struct {
  int (*core_create)(void **core);
  int (*core_read_model)(void *core, const char *xml, const char *bin, void **model);
  int (*core_compile_model)(void *core, void *model, const char *device, size_t count, void **compiled, ...);
  int (*core_import_model)(void *core, const char *bytes, size_t size, const char *device, void **compiled);
  int (*compiled_export)(void *compiled, const char *path);
  int (*compiled_request)(void *compiled, void **request);
  int (*tensor_create)(int type, struct shape shape, void *data, void **tensor);
  int (*tensor_data)(void *tensor, void **data);
  int (*tensor_size)(void *tensor, size_t *bytes);
  int (*request_set_input)(void *request, size_t index, void *tensor);
  int (*request_output)(void *request, size_t index, void **tensor);
  int (*request_infer)(void *request);
  void (*core_free)(void *), (*model_free)(void *), (*compiled_free)(void *), (*request_free)(void *),
      (*tensor_free)(void *);
  const char *(*last_error)(void);
} api;
static void *core;

/* ---------------------------------------------------------------- the library */

static void *open_near(void) {
  const char *named = getenv("TANDEM_OPENVINO_LIBRARY");
  if (named && *named)
    return dlopen(named, RTLD_NOW | RTLD_LOCAL);
  const char *home = getenv("HOME");
  const char *const patterns[] = {
      "%s/.cache/tandem/venv-test-*/lib/python3*/site-packages/openvino/libs/libopenvino_c.so.*",
      "%s/.cache/tandem/venv-demo-*/lib/python3*/site-packages/openvino/libs/libopenvino_c.so.*"};
  void *library = NULL;
  for (size_t i = 0; i < 2 && !library; i++) {
    char pattern[512];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, patterns[i], home ? home : "");
    if (glob(pattern, 0, NULL, &found) == 0) {
      library = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
      if (library)
        setenv("TANDEM_OPENVINO_LIBRARY", found.gl_pathv[0], 1); /* tandem is to use the same one */
    }
    globfree(&found);
  }
  return library ? library : dlopen("libopenvino_c.so", RTLD_NOW | RTLD_LOCAL);
}

static bool find_symbols(void *library) {
  const struct {
    const char *name;
    void *place;
  } symbols[] = {{"ov_core_create", &api.core_create},
                 {"ov_core_read_model", &api.core_read_model},
                 {"ov_core_compile_model", &api.core_compile_model},
                 {"ov_core_import_model", &api.core_import_model},
                 {"ov_compiled_model_export_model", &api.compiled_export},
                 {"ov_compiled_model_create_infer_request", &api.compiled_request},
                 {"ov_tensor_create_from_host_ptr", &api.tensor_create},
                 {"ov_tensor_data", &api.tensor_data},
                 {"ov_tensor_get_byte_size", &api.tensor_size},
                 {"ov_infer_request_set_input_tensor_by_index", &api.request_set_input},
                 {"ov_infer_request_get_output_tensor_by_index", &api.request_output},
                 {"ov_infer_request_infer", &api.request_infer},
                 {"ov_core_free", &api.core_free},
                 {"ov_model_free", &api.model_free},
                 {"ov_compiled_model_free", &api.compiled_free},
                 {"ov_infer_request_free", &api.request_free},
                 {"ov_tensor_free", &api.tensor_free},
                 {"ov_get_last_err_msg", &api.last_error}};
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address) {
      fprintf(stderr, "openvino: the library has no %s\n", symbols[i].name);
      return false;
    }
    memcpy(symbols[i].place, &address, sizeof address);
  }
  return true;
}

static bool check(int status, const char *step) {
  if (status != 0)
    fprintf(stderr, "openvino: %s: status %d, %s\n", step, status, api.last_error());
  return status == 0;
}

bool openvino_start(void) {
  if (core)
    return true;
  void *library = open_near();
  if (!library) {
    fprintf(stderr, "SKIPPED: no OpenVINO library (%s); set TANDEM_OPENVINO_LIBRARY to libopenvino_c.so\n",
            dlerror());
    return false;
  }
  return find_symbols(library) && check(api.core_create(&core), "create a core");
}

int openvino_skip_status(void) {
  const char *required = getenv("TANDEM_REQUIRE_OPENVINO");
  return required && strcmp(required, "1") == 0 ? 1 : 77;
}

/* ---------------------------------------------------------------- writing a model */

/* Text that grows by printf; a buffer of the caller's. */
struct text {
  char *buffer;
  size_t size, used;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text->buffer + text->used, text->size - text->used, format, arguments);
  va_end(arguments);
  if (length > 0 && (size_t)length < text->size - text->used)
    text->used += (size_t)length;
}

static void add_port(struct text *xml, int id, int64_t rows, size_t columns) {
  add(xml, "<port id=\"%d\" precision=\"FP32\"><dim>%lld</dim><dim>%zu</dim></port>", id, (long long)rows,
      columns);
}

static void add_constant(struct text *xml, int id, size_t rows, size_t columns, size_t offset) {
  add(xml,
      "<layer id=\"%d\" name=\"c%d\" type=\"Const\" version=\"opset1\"><data element_type=\"f32\" "
      "shape=\"%zu, %zu\" offset=\"%zu\" size=\"%zu\"/><output>",
      id, id, rows, columns, offset, rows * columns * sizeof(float));
  add_port(xml, 0, (int64_t)rows, columns);
  add(xml, "</output></layer>");
}

static void add_binary(struct text *xml, int id, const char *type, const char *data, int64_t rows,
                       size_t columns, int64_t other_rows, size_t other_columns, size_t result_columns,
                       const char *name) {
  add(xml, "<layer id=\"%d\" name=\"l%d\" type=\"%s\" version=\"opset1\"><data %s/><input>", id, id, type,
      data);
  add_port(xml, 0, rows, columns);
  add_port(xml, 1, other_rows, other_columns);
  add(xml,
      "</input><output><port id=\"2\" precision=\"FP32\" names=\"%s\"><dim>%lld</dim><dim>%zu</dim></port>",
      name, (long long)rows, result_columns);
  add(xml, "</output></layer>");
}

static void add_edge(struct text *xml, int from, int from_port, int to, int to_port) {
  add(xml, "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"%d\"/>", from, from_port, to,
      to_port);
}

static void add_input(struct text *xml, int64_t rows_min, int64_t rows_max) {
  int64_t rows = rows_min == rows_max ? rows_min : -1;
  add(xml, "<layer id=\"0\" name=\"x\" type=\"Parameter\" version=\"opset1\"><data shape=\"");
  if (rows < 0)
    add(xml, "%lld..%lld", (long long)rows_min, (long long)rows_max);
  else
    add(xml, "%lld", (long long)rows);
  add(xml,
      ",8\" element_type=\"f32\"/><output><port id=\"0\" precision=\"FP32\" names=\"x\"><dim>%lld</dim>"
      "<dim>8</dim></port></output></layer>",
      (long long)rows);
}

static void add_result(struct text *xml, int id, int64_t rows, size_t columns) {
  add(xml, "<layer id=\"%d\" name=\"y\" type=\"Result\" version=\"opset1\"><input>", id);
  add_port(xml, 0, rows, columns);
  add(xml, "</input></layer>");
}

#define NUMPY  "auto_broadcast=\"numpy\""
#define MATMUL "transpose_a=\"false\" transpose_b=\"false\""

enum { HIDDEN = 16 };

/* y = ((x A) + b) C, with A 8 x 16, b 1 x 16, C 16 x 4. */
static size_t write_mlp(struct text *xml, int64_t rows_min, int64_t rows_max) {
  int64_t rows = rows_min == rows_max ? rows_min : -1;
  add_input(xml, rows_min, rows_max);
  add_constant(xml, 1, 8, HIDDEN, 0);
  add_constant(xml, 2, 1, HIDDEN, 8 * HIDDEN * sizeof(float));
  add_constant(xml, 3, HIDDEN, 4, 9 * HIDDEN * sizeof(float));
  add_binary(xml, 4, "MatMul", MATMUL, rows, 8, 8, HIDDEN, HIDDEN, "h");
  add_binary(xml, 5, "Add", NUMPY, rows, HIDDEN, 1, HIDDEN, HIDDEN, "i");
  add_binary(xml, 6, "MatMul", MATMUL, rows, HIDDEN, HIDDEN, 4, 4, "y");
  add_result(xml, 7, rows, 4);
  add(xml, "</layers><edges>");
  add_edge(xml, 0, 0, 4, 0);
  add_edge(xml, 1, 0, 4, 1);
  add_edge(xml, 4, 2, 5, 0);
  add_edge(xml, 2, 0, 5, 1);
  add_edge(xml, 5, 2, 6, 0);
  add_edge(xml, 3, 0, 6, 1);
  add_edge(xml, 6, 2, 7, 0);
  return 13 * HIDDEN;
}

/* state += x; y = state * 3 */
static size_t write_stateful(struct text *xml) {
  add_input(xml, 1, 1);
  add_constant(xml, 1, 1, 8, 0);
  add_constant(xml, 2, 1, 8, 8 * sizeof(float));
  add(xml, "<layer id=\"3\" name=\"read\" type=\"ReadValue\" version=\"opset6\"><data variable_id=\"s\" "
           "variable_type=\"f32\" variable_shape=\"1,8\"/><input>");
  add_port(xml, 0, 1, 8);
  add(xml, "</input><output>");
  add_port(xml, 1, 1, 8);
  add(xml, "</output></layer>");
  add_binary(xml, 4, "Add", NUMPY, 1, 8, 1, 8, 8, "sum");
  add_binary(xml, 5, "Multiply", NUMPY, 1, 8, 1, 8, 8, "y");
  add(xml,
      "<layer id=\"6\" name=\"write\" type=\"Assign\" version=\"opset6\"><data variable_id=\"s\"/><input>");
  add_port(xml, 0, 1, 8);
  add(xml, "</input><output>");
  add_port(xml, 1, 1, 8);
  add(xml, "</output></layer>");
  add_result(xml, 7, 1, 8);
  add(xml, "</layers><edges>");
  add_edge(xml, 1, 0, 3, 0);
  add_edge(xml, 3, 1, 4, 0);
  add_edge(xml, 0, 0, 4, 1);
  add_edge(xml, 4, 2, 5, 0);
  add_edge(xml, 2, 0, 5, 1);
  add_edge(xml, 4, 2, 6, 0);
  add_edge(xml, 5, 2, 7, 0);
  return 16;
}

static void fill_weights(enum openvino_kind kind, float *weights, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++) {
    uint32_t mixed = ((uint32_t)i + 1u) * 2654435761u ^ (seed + 1u) * 40503u;
    weights[i] = (float)((mixed >> 8) % 255u + 1u) / 128.0f - 1.0f;
    if (weights[i] == 0)
      weights[i] = 0.5f;
    if (kind == OPENVINO_STATEFUL)
      weights[i] = i < count / 2 ? 0.0f : 3.0f;
  }
}

static bool write_file(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "wb");
  bool written = file && fwrite(data, 1, size, file) == size;
  if (file && fclose(file) != 0)
    written = false;
  return written;
}

static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  void *data = NULL;
  if (!file)
    return NULL;
  if (fseek(file, 0, SEEK_END) == 0) {
    long end = ftell(file);
    rewind(file);
    if (end > 0 && (data = malloc((size_t)end)) != NULL && fread(data, 1, (size_t)end, file) != (size_t)end) {
      free(data);
      data = NULL;
    }
    *size = (size_t)end;
  }
  fclose(file);
  return data;
}

bool openvino_model_init(struct openvino_model *model, enum openvino_kind kind, int64_t rows_min,
                         int64_t rows_max, unsigned seed) {
  char folder[] = "/tmp/tandem-openvino-XXXXXX", xml_path[64], bin_path[64], blob_path[64];
  static char buffer[16384];
  float weights[16 * HIDDEN];
  struct text xml = {buffer, sizeof buffer, 0};
  void *network = NULL, *compiled = NULL;
  memset(model, 0, sizeof *model);
  model->rows_min = rows_min;
  model->rows_max = rows_max;
  model->columns = 8;
  model->outputs_per_row = kind == OPENVINO_MLP ? 4 : 8;
  add(&xml, "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers>");
  size_t count = kind == OPENVINO_MLP ? write_mlp(&xml, rows_min, rows_max) : write_stateful(&xml);
  add(&xml, "</edges></net>");
  fill_weights(kind, weights, count, seed);
  memcpy(model->last_weights, weights + count - 4, sizeof model->last_weights);
  if (!mkdtemp(folder))
    return false;
  snprintf(xml_path, sizeof xml_path, "%s/m.xml", folder);
  snprintf(bin_path, sizeof bin_path, "%s/m.bin", folder);
  snprintf(blob_path, sizeof blob_path, "%s/m.blob", folder);
  /* Processors with half floats, Arm's since 8.2, would have weights of that size in the blob. */
  bool made =
      write_file(xml_path, xml.buffer, xml.used) && write_file(bin_path, weights, count * sizeof *weights) &&
      check(api.core_read_model(core, xml_path, bin_path, &network), "read the model") &&
      check(api.core_compile_model(core, network, "CPU", 2, &compiled, "INFERENCE_PRECISION_HINT", "f32"),
            "compile the model") &&
      check(api.compiled_export(compiled, blob_path), "export the model") &&
      (model->blob = read_file(blob_path, &model->blob_size)) != NULL &&
      check(api.core_import_model(core, model->blob, model->blob_size, "CPU", &model->compiled),
            "import the blob");
  if (compiled)
    api.compiled_free(compiled);
  if (network)
    api.model_free(network);
  unlink(xml_path);
  unlink(bin_path);
  unlink(blob_path);
  rmdir(folder);
  return made;
}

bool openvino_model_init_twin(struct openvino_model *twin, const struct openvino_model *model) {
  *twin = *model;
  twin->compiled = NULL;
  twin->blob = malloc(model->blob_size);
  if (!twin->blob)
    return false;
  memcpy(twin->blob, model->blob, model->blob_size);
  unsigned char *found = memmem(twin->blob, twin->blob_size, model->last_weights, sizeof model->last_weights);
  if (!found) {
    fprintf(stderr, "openvino: the weights do not lie in the blob as they were given\n");
    return false;
  }
  found[sizeof model->last_weights - 1] ^= 0x80; /* little endian: the sign */
  return check(api.core_import_model(core, twin->blob, twin->blob_size, "CPU", &twin->compiled),
               "import the blob");
}

void openvino_model_fini(struct openvino_model *model) {
  if (model->compiled)
    api.compiled_free(model->compiled);
  free(model->blob); /* the import reads it until here */
  memset(model, 0, sizeof *model);
}

bool openvino_model_infer(const struct openvino_model *model, const float *const *inputs, size_t steps,
                          int64_t rows, float *output) {
  int64_t dims[2] = {rows, (int64_t)model->columns};
  size_t size = (size_t)rows * model->columns * sizeof(float), bytes = 0;
  void *request = NULL, *result = NULL, *data = NULL, *tensor = NULL;
  float *copy = malloc(size);
  bool done =
      copy && check(api.compiled_request(model->compiled, &request), "make a request") &&
      check(api.tensor_create(ELEMENT_F32, (struct shape){2, dims}, copy, &tensor), "make a tensor") &&
      check(api.request_set_input(request, 0, tensor), "set the input");
  for (size_t i = 0; i < steps && done; i++) {
    memcpy(copy, inputs[i], size);
    done = check(api.request_infer(request), "infer");
  }
  done = done && check(api.request_output(request, 0, &result), "get the output") &&
         check(api.tensor_data(result, &data), "read the output") &&
         check(api.tensor_size(result, &bytes), "size the output");
  if (done && bytes != (size_t)rows * model->outputs_per_row * sizeof(float)) {
    fprintf(stderr, "openvino: the output has %zu bytes\n", bytes);
    done = false;
  }
  if (done)
    memcpy(output, data, bytes);
  if (result)
    api.tensor_free(result);
  if (tensor)
    api.tensor_free(tensor);
  if (request)
    api.request_free(request);
  free(copy);
  return done;
}
