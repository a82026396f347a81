/* The C door: programs from files and bytes, their facts, their runs and their errors. */
#include <tandem/program.h>

#include "demo_vendor.h" /* before cmocka.h, which makes a macro of `fail` */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pthread.h>

#include <cmocka.h>

static struct tandem_error error;

static struct tandem_program *open_program(const char *name, const char *data) {
  const char *paths[1] = {data ? data_path(data) : NULL};
  struct tandem_program_desc desc = {.struct_size = sizeof(desc),
                                     .path = data_path(name),
                                     .data_paths = paths,
                                     .data_path_count = data ? 1 : 0};
  struct tandem_program *program = NULL;
  enum tandem_status status = tandem_program_create(&desc, &program, &error);
  assert_string_equal(error.message, "");
  assert_int_equal(status, TANDEM_OK);
  assert_non_null(program);
  return program;
}

static struct tandem_method *open_method(struct tandem_program *program, const char *name) {
  struct tandem_method *method = NULL;
  enum tandem_status status = tandem_method_create(program, name, NULL, 0, &method, &error);
  assert_string_equal(error.message, "");
  assert_int_equal(status, TANDEM_OK);
  return method;
}

static struct tandem_tensor tensor_of(float *data, int32_t rank, int64_t rows, int64_t columns) {
  struct tandem_tensor tensor = {
      .data = data, .dtype = TANDEM_FLOAT32, .rank = rank, .shape = {rows, columns}};
  tensor.size = (size_t)(rows * columns) * sizeof(float);
  return tensor;
}

static enum tandem_status run_once(struct tandem_method *method, const struct tandem_tensor *x,
                                   struct tandem_tensor *y) {
  struct tandem_run_desc run = {
      .struct_size = sizeof(run), .inputs = x, .input_count = 1, .outputs = y, .output_count = 1};
  return tandem_method_run(method, &run, &error);
}

static void fill(float *data, size_t count) {
  for (size_t i = 0; i < count; i++)
    data[i] = (float)i * 0.25f - 1.0f;
}

static void check_affine(struct tandem_method *method, int64_t rows, float scale, float bias) {
  float in[256], out[256];
  size_t count = (size_t)rows * 4;
  assert_true(count <= 256);
  fill(in, count);
  for (size_t i = 0; i < count; i++)
    out[i] = NAN;
  struct tandem_tensor x = tensor_of(in, 2, rows, 4), y = tensor_of(out, 2, rows, 4);
  enum tandem_status status = run_once(method, &x, &y);
  assert_string_equal(error.message, "");
  assert_int_equal(status, TANDEM_OK);
  assert_int_equal(y.rank, 2);
  assert_int_equal(y.shape[0], rows);
  assert_int_equal(y.shape[1], 4);
  for (size_t i = 0; i < count; i++)
    assert_float_equal(out[i], in[i] * scale + bias, 1e-6);
}

static void a_program_tells_its_methods(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_methods.pte", NULL);
  assert_int_equal(tandem_program_method_count(program), 2);
  assert_string_equal(tandem_program_method_name(program, 0), "forward");
  assert_string_equal(tandem_program_method_name(program, 1), "negate");
  assert_null(tandem_program_method_name(program, 2));
  const struct tandem_io *inputs, *outputs;
  size_t input_count, output_count;
  assert_int_equal(
      tandem_program_method_io(program, "negate", &inputs, &input_count, &outputs, &output_count, &error),
      TANDEM_OK);
  assert_int_equal(input_count, 1);
  assert_int_equal(output_count, 1);
  assert_string_equal(inputs[0].name, "input0");
  assert_int_equal(inputs[0].dtype, TANDEM_FLOAT32);
  assert_int_equal(inputs[0].rank, 2);
  assert_int_equal(inputs[0].min[0], 2);
  assert_int_equal(inputs[0].max[0], 2);
  assert_int_equal(inputs[0].max[1], 4);
  assert_int_equal(tandem_program_method_io(program, "backward", &inputs, &input_count, NULL, NULL, &error),
                   TANDEM_NOT_FOUND);
  assert_null(inputs);
  assert_int_equal(input_count, 0);
  assert_non_null(strstr(error.message, "\"backward\""));
  assert_non_null(strstr(error.message, "\"forward\", \"negate\""));
  tandem_program_destroy(program);
}

static void tensors_with_a_name_are_told(void **state) {
  (void)state;
  const struct tandem_io *attributes;
  size_t count;
  struct tandem_program *program = open_program("linear_external.pte", NULL);
  assert_int_equal(tandem_program_method_attributes(program, "forward", &attributes, &count, &error),
                   TANDEM_OK);
  assert_int_equal(count, 2);
  assert_string_equal(attributes[0].name, "linear.weight");
  assert_string_equal(attributes[1].name, "linear.bias");
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(attributes[i].dtype, TANDEM_FLOAT32);
    assert_int_equal(attributes[i].rank, 2 - (int)i);
    assert_int_equal(attributes[i].min[0], 3);
    assert_memory_equal(attributes[i].min, attributes[i].max, sizeof(attributes[i].min));
  }
  assert_int_equal(attributes[0].max[1], 4);
  assert_int_equal(tandem_program_method_attributes(program, "backward", &attributes, &count, &error),
                   TANDEM_NOT_FOUND);
  assert_null(attributes);
  assert_int_equal(count, 0);
  assert_int_equal(tandem_program_method_attributes(program, "forward", NULL, NULL, &error), TANDEM_OK);
  tandem_program_destroy(program);
  program = open_program("linear.pte", NULL); /* whose weights have no names */
  assert_int_equal(tandem_program_method_attributes(program, "forward", NULL, &count, &error), TANDEM_OK);
  assert_int_equal(count, 0);
  tandem_program_destroy(program);
}

static void both_methods_of_a_program_run(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_methods.pte", NULL);
  struct tandem_method *forward = open_method(program, "forward"), *negate = open_method(program, "negate");
  check_affine(forward, 2, 2.0f, 3.0f);
  check_affine(negate, 2, -1.0f, 0.5f);
  check_affine(forward, 2, 2.0f, 3.0f);
  tandem_method_destroy(negate);
  tandem_method_destroy(forward);
  tandem_program_destroy(program);
}

static void a_method_outlives_its_program(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_mixed.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  tandem_program_destroy(program);
  float in[8], out[8];
  fill(in, 8);
  struct tandem_tensor x = tensor_of(in, 2, 2, 4), y = tensor_of(out, 2, 2, 4);
  assert_int_equal(run_once(method, &x, &y), TANDEM_OK);
  for (int i = 0; i < 8; i++)
    assert_float_equal(out[i], sinf(in[i] * 2.0f + 3.0f) * 0.5f + 1.0f, 1e-5);
  tandem_method_destroy(method);
}

static void two_loads_of_a_program_share_one_engine(void **state) {
  (void)state;
  int before = demo.builds;
  struct tandem_program *one = open_program("demo_affine.pte", NULL),
                        *other = open_program("demo_affine.pte", NULL);
  struct tandem_method *first = open_method(one, "forward"), *second = open_method(other, "forward");
  assert_int_equal(demo.builds - before, 1);
  assert_int_equal(demo.contexts, 2);
  struct tandem_load_info info = {.struct_size = sizeof(info)};
  assert_int_equal(tandem_load_get_info(tandem_method_load(second, 0), &info, &error), TANDEM_OK);
  assert_true(info.shared);
  assert_int_equal(info.users, 2);
  assert_null(tandem_method_load(second, 1));
  tandem_method_destroy(first);
  tandem_program_destroy(one);
  check_affine(second, 2, 2.0f, 3.0f);
  tandem_method_destroy(second);
  tandem_program_destroy(other);
  assert_int_equal(demo.engines, 0);
  assert_int_equal(demo.contexts, 0);
}

static void loads_are_listed_in_the_order_of_the_delegates(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_mixed.pte", NULL);
  const struct tandem_delegate *delegates;
  size_t count;
  assert_int_equal(tandem_program_delegates(program, "forward", &delegates, &count, &error), TANDEM_OK);
  assert_int_equal(count, 2);
  struct tandem_method *method = open_method(program, "forward");
  struct tandem_load_info first = {.struct_size = sizeof(first)}, second = {.struct_size = sizeof(second)};
  assert_int_equal(tandem_load_get_info(tandem_method_load(method, 0), &first, NULL), TANDEM_OK);
  assert_int_equal(tandem_load_get_info(tandem_method_load(method, 1), &second, NULL), TANDEM_OK);
  assert_true(first.id < second.id);
  assert_true(first.engine_id != second.engine_id);
  assert_null(tandem_method_load(method, 2));
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void a_reset_reaches_every_load(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_mixed.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  int before = demo_resets;
  assert_int_equal(tandem_method_reset(method, &error), TANDEM_OK);
  assert_int_equal(demo_resets - before, 2);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  char *bytes = aligned_alloc(64, (*size + 127) / 64 * 64);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *size, file), *size);
  fclose(file);
  return bytes;
}

static void delegates_point_at_their_payload(void **state) {
  (void)state;
  size_t file_size;
  char *bytes = read_file(data_path("demo_mixed.pte"), &file_size);
  for (int read = 0; read < 3; read++) {
    struct tandem_program_desc desc = {
        .struct_size = sizeof(desc), .path = data_path("demo_mixed.pte"), .read = read == 1};
    if (read == 2) {
      desc.path = NULL;
      desc.bytes = bytes;
      desc.size = file_size;
    }
    struct tandem_program *program;
    const struct tandem_delegate *delegates;
    size_t count;
    assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_OK);
    assert_int_equal(tandem_program_delegates(program, "forward", &delegates, &count, &error), TANDEM_OK);
    assert_int_equal(count, 2);
    for (size_t i = 0; i < count; i++) {
      assert_string_equal(delegates[i].backend, "DemoBackend");
      assert_int_equal(delegates[i].payload_size, 20);
      assert_true(delegates[i].file_offset + 20 <= file_size);
      assert_memory_equal(delegates[i].payload, "DEMO", 4);
      assert_memory_equal(delegates[i].payload, bytes + delegates[i].file_offset, 20);
      assert_true(delegates[i].in_segment);
      assert_int_equal(delegates[i].file_offset % delegates[i].alignment, 0);
      assert_true(delegates[i].alignment == 4096 ||
                  delegates[i].file_offset % (delegates[i].alignment * 2) != 0);
    }
    tandem_program_destroy(program);
  }
  free(bytes);
}

static void bytes_and_a_read_file_run_as_a_mapped_one(void **state) {
  (void)state;
  size_t size;
  char *bytes = read_file(data_path("demo_affine.pte"), &size);
  struct tandem_program_desc from_bytes = {.struct_size = sizeof(from_bytes), .bytes = bytes, .size = size};
  struct tandem_program_desc from_file = {
      .struct_size = sizeof(from_file), .path = data_path("demo_affine.pte"), .read = true};
  struct tandem_program *one, *other;
  assert_int_equal(tandem_program_create(&from_bytes, &one, &error), TANDEM_OK);
  assert_int_equal(tandem_program_create(&from_file, &other, &error), TANDEM_OK);
  int before = demo.builds;
  struct tandem_method *first = open_method(one, "forward"), *second = open_method(other, "forward");
  assert_int_equal(demo.builds - before, 1);
  check_affine(first, 2, 2.0f, 3.0f);
  check_affine(second, 2, 2.0f, 3.0f);
  tandem_method_destroy(first);
  tandem_method_destroy(second);
  tandem_program_destroy(one);
  tandem_program_destroy(other);
  free(bytes);
}

static void dynamic_shapes_run_within_their_bounds(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_dynamic.pte", NULL);
  const struct tandem_io *inputs;
  assert_int_equal(tandem_program_method_io(program, "forward", &inputs, NULL, NULL, NULL, &error),
                   TANDEM_OK);
  assert_true(inputs[0].min[0] < inputs[0].max[0]);
  assert_int_equal(inputs[0].max[0], 64);
  struct tandem_method *method = open_method(program, "forward");
  check_affine(method, 2, 2.0f, 3.0f);
  check_affine(method, 64, 2.0f, 3.0f);
  check_affine(method, 1, 2.0f, 3.0f);
  check_affine(method, 64, 2.0f, 3.0f);
  float big[65 * 4], out[65 * 4];
  fill(big, 65 * 4);
  struct tandem_tensor x = tensor_of(big, 2, 65, 4), y = tensor_of(out, 2, 65, 4);
  assert_int_equal(run_once(method, &x, &y), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "\"input0\""));
  assert_non_null(strstr(error.message, "[65, 4]"));
  assert_non_null(strstr(error.message, "0..64"));
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void an_output_without_memory_is_borrowed(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  float in[8];
  fill(in, 8);
  struct tandem_tensor x = tensor_of(in, 2, 2, 4), y = {.dtype = TANDEM_FLOAT32};
  assert_true(tandem_method_direct(method));
  for (int turn = 0; turn < 3; turn++) {
    y.data = NULL;
    in[0] = (float)turn;
    assert_int_equal(run_once(method, &x, &y), TANDEM_OK);
    assert_non_null(y.data);
    assert_int_equal(y.size, 32);
    assert_int_equal(y.rank, 2);
    for (int i = 0; i < 8; i++)
      assert_float_equal(((float *)y.data)[i], in[i] * 2 + 3, 1e-6);
  }
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static enum tandem_status give_memory(void *user, size_t output, struct tandem_tensor *tensor) {
  assert_int_equal(output, 0);
  assert_int_equal(tensor->rank, 2);
  tensor->size = (size_t)(tensor->shape[0] * tensor->shape[1]) * sizeof(float);
  tensor->data = *(float **)user = malloc(tensor->size);
  return TANDEM_OK;
}

static void a_resize_function_gives_the_memory(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_dynamic.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  float in[12], *out = NULL;
  fill(in, 12);
  struct tandem_tensor x = tensor_of(in, 2, 3, 4), y = {.dtype = TANDEM_FLOAT32};
  struct tandem_run_desc run = {.struct_size = sizeof(run),
                                .inputs = &x,
                                .input_count = 1,
                                .outputs = &y,
                                .output_count = 1,
                                .resize = give_memory,
                                .resize_user = &out};
  assert_int_equal(tandem_method_run(method, &run, &error), TANDEM_OK);
  assert_non_null(out);
  assert_ptr_equal(y.data, out);
  for (int i = 0; i < 12; i++)
    assert_float_equal(out[i], in[i] * 2 + 3, 1e-6);
  free(out);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void wrong_tensors_are_refused_by_name(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  float in[8], out[8];
  fill(in, 8);
  const struct tandem_tensor good = tensor_of(in, 2, 2, 4), room = tensor_of(out, 2, 2, 4);
  const int64_t columns_first[2] = {1, 2};
  const struct {
    const char *expected;
    struct tandem_tensor x, y;
  } cases[] = {
      {"\"input0\" is float64: expected float32",
       {.data = in, .size = 64, .dtype = TANDEM_FLOAT64, .rank = 2, .shape = {2, 4}},
       room},
      {"\"input0\" has rank 1", tensor_of(in, 1, 8, 1), room},
      {"\"input0\" has the shape [4, 2]: expected [2, 4]", tensor_of(in, 2, 4, 2), room},
      {"\"input0\" has the shape [-2, 4]",
       {.data = in, .size = 32, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {-2, 4}},
       room},
      {"\"input0\" has 28 bytes",
       {.data = in, .size = 28, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 4}},
       room},
      {"\"input0\" has 32 bytes at NULL",
       {.size = 32, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 4}},
       room},
      {"\"input0\" is at an address that is no multiple of 4",
       {.data = (char *)in + 1, .size = 32, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 4}},
       room},
      {"\"input0\" is not contiguous",
       {.data = in,
        .size = 32,
        .dtype = TANDEM_FLOAT32,
        .rank = 2,
        .shape = {2, 4},
        .strides = columns_first},
       room},
      {"\"output0\" is int32: expected float32",
       good,
       {.data = out, .size = 32, .dtype = TANDEM_INT32, .rank = 2, .shape = {2, 4}}},
      {"\"output0\" has room for 31 bytes",
       good,
       {.data = out, .size = 31, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 4}}},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct tandem_tensor y = cases[i].y;
    assert_int_equal(run_once(method, &cases[i].x, &y), TANDEM_INVALID_ARGUMENT);
    if (!strstr(error.message, cases[i].expected))
      fail_msg("expected \"%s\" in \"%s\"", cases[i].expected, error.message);
    check_affine(method, 2, 2.0f, 3.0f);
  }
  struct tandem_run_desc run = {.struct_size = sizeof(run), .inputs = &good, .input_count = 1};
  assert_int_equal(tandem_method_run(method, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "1 inputs and 0 outputs"));
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

/* DemoBackend has no streams: the load says so of a method that is one of its delegates alone. */
static void only_a_method_that_is_one_delegate_takes_a_stream(void **state) {
  (void)state;
  const struct {
    const char *name, *expected;
    bool direct;
  } cases[] = {{"demo_affine.pte", "demo", true}, {"demo_mixed.pte", "is not one delegate", false}};
  for (size_t c = 0; c < 2; c++) {
    struct tandem_program *program = open_program(cases[c].name, NULL);
    struct tandem_method *method = open_method(program, "forward");
    assert_int_equal(tandem_method_direct(method), cases[c].direct);
    float in[8], out[8];
    void *event = NULL;
    fill(in, 8);
    struct tandem_tensor x = tensor_of(in, 2, 2, 4), y = tensor_of(out, 2, 2, 4);
    const struct tandem_run_desc good = {
        .struct_size = sizeof(good), .inputs = &x, .input_count = 1, .outputs = &y, .output_count = 1};
    int before = demo.runs;
    for (int i = 0; i < (cases[c].direct ? 2 : 3); i++) {
      struct tandem_run_desc run = good;
      run.stream = i == 0 ? &event : NULL;
      run.return_early = i == 1;
      run.done = i == 2 ? &event : NULL;
      assert_int_equal(tandem_method_run(method, &run, &error), TANDEM_INVALID_ARGUMENT);
      assert_non_null(strstr(error.message, cases[c].expected));
    }
    struct tandem_run_desc wrong = good;
    wrong.input_count = 0;
    wrong.done = &event;
    event = in;
    assert_int_equal(tandem_method_run(method, &wrong, &error), TANDEM_INVALID_ARGUMENT);
    assert_null(event);
    assert_int_equal(demo.runs, before);
    assert_int_equal(tandem_method_run(method, &good, &error), TANDEM_OK);
    tandem_method_destroy(method);
    tandem_program_destroy(program);
  }
  assert_false(tandem_method_direct(NULL));
}

/* A run past ExecuTorch would read what it has written; one through it copies. */
static void an_output_in_the_memory_of_an_input_is_refused(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  float memory[16];
  fill(memory, 16);
  for (int shift = 0; shift <= 8; shift += 4) {
    struct tandem_tensor x = tensor_of(memory + shift, 2, 2, 4), y = tensor_of(memory + 4, 2, 2, 4);
    assert_int_equal(run_once(method, &x, &y), TANDEM_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "output \"output0\" overlaps input \"input0\""));
  }
  struct tandem_tensor x = tensor_of(memory, 2, 2, 4), y = tensor_of(memory + 8, 2, 2, 4);
  assert_int_equal(run_once(method, &x, &y), TANDEM_OK);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void an_input_that_is_no_tensor_keeps_its_value(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_count.pte", NULL);
  const struct tandem_io *inputs;
  size_t count;
  assert_int_equal(tandem_program_method_io(program, "forward", &inputs, &count, NULL, NULL, &error),
                   TANDEM_OK);
  assert_int_equal(count, 1);
  const struct tandem_constant *constants;
  assert_int_equal(tandem_program_method_constants(program, "forward", &constants, &count, &error),
                   TANDEM_OK);
  assert_int_equal(count, 1);
  assert_int_equal(constants[0].position, 1);
  assert_int_equal(constants[0].kind, TANDEM_CONSTANT_INT);
  assert_int_equal(constants[0].integer, 5);
  assert_int_equal(tandem_program_method_constants(program, "none", &constants, &count, &error),
                   TANDEM_NOT_FOUND);
  assert_null(constants);
  struct tandem_method *method = open_method(program, "forward");
  check_affine(method, 2, 10.0f, 15.0f);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void outputs_without_planned_memory_run(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_unplanned.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  check_affine(method, 2, 2.0f, 3.0f);
  check_affine(method, 2, 2.0f, 3.0f);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void check_linear(const char *name, const char *data) {
  struct tandem_program *program = open_program(name, data);
  struct tandem_method *method = open_method(program, "forward");
  const float bias[3] = {1.0f, -1.0f, 0.5f};
  float in[8], out[6];
  fill(in, 8);
  struct tandem_tensor x = tensor_of(in, 2, 2, 4), y = tensor_of(out, 2, 2, 3);
  assert_int_equal(run_once(method, &x, &y), TANDEM_OK);
  for (int row = 0; row < 2; row++)
    for (int column = 0; column < 3; column++) {
      float sum = bias[column];
      for (int i = 0; i < 4; i++)
        sum += in[row * 4 + i] * (float)(column * 4 + i) / 8;
      assert_float_equal(out[row * 3 + column], sum, 1e-5);
    }
  assert_null(tandem_method_load(method, 0));
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void parts_without_a_delegate_run_on_the_wheels_kernels(void **state) {
  (void)state;
  check_linear("linear.pte", NULL);
}

static void weights_in_a_data_file_are_found(void **state) {
  (void)state;
  check_linear("linear_external.pte", "linear_external.ptd");
}

static void a_backend_that_the_wheel_brings_is_opened(void **state) {
  (void)state;
  check_linear("linear_xnnpack.pte", NULL);
}

static void a_payload_in_a_data_file_is_found(void **state) {
  (void)state;
  int before = demo.named;
  struct tandem_program *program = open_program("demo_named.pte", "demo_named.ptd");
  struct tandem_method *method = open_method(program, "forward");
  assert_int_equal(demo.named - before, 1);
  check_affine(method, 2, 2.0f, 3.0f);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void missing_data_is_an_error_of_its_own(void **state) {
  (void)state;
  struct tandem_method *method = NULL;
  struct tandem_program *program = open_program("demo_named.pte", NULL);
  assert_int_equal(tandem_method_create(program, "forward", NULL, 0, &method, &error), TANDEM_MISSING_DATA);
  assert_non_null(strstr(error.message, "\"affine\""));
  assert_null(method);
  tandem_program_destroy(program);
  program = open_program("linear_external.pte", "demo_named.ptd"); /* another program's */
  assert_int_equal(tandem_method_create(program, "forward", NULL, 0, &method, &error), TANDEM_MISSING_DATA);
  assert_non_null(strstr(error.message, "\"linear."));
  assert_null(method);
  tandem_program_destroy(program);
}

static void several_data_files_are_merged(void **state) {
  (void)state;
  const char *paths[2] = {data_path("linear_external.ptd"), data_path("demo_named.ptd")};
  struct tandem_program_desc desc = {.struct_size = sizeof(desc),
                                     .path = data_path("demo_named.pte"),
                                     .data_paths = paths,
                                     .data_path_count = 2};
  struct tandem_program *program = NULL;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_OK);
  struct tandem_method *method = open_method(program, "forward");
  check_affine(method, 2, 2.0f, 3.0f);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void options_reach_the_load(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = NULL, *shared = NULL;
  const struct tandem_option fancy[] = {{"style", "fancy"}, {"use_shared_engines", "false"}};
  int before = demo.builds;
  assert_int_equal(tandem_method_create(program, "forward", fancy, 2, &method, &error), TANDEM_OK);
  assert_string_equal(demo.style, "fancy");
  assert_int_equal(tandem_method_create(program, "forward", fancy, 1, &shared, &error), TANDEM_OK);
  assert_int_equal(demo.builds - before, 2);
  tandem_method_destroy(method);
  tandem_method_destroy(shared);
  method = NULL;
  const struct {
    struct tandem_option option;
    const char *expected;
  } wrong[] = {{{"colour", "red"}, "colour"},
               {{"style", "loud"}, "style"},
               {{"a-key-that-is-far-longer-than-the-sixty-four-bytes-that-executorch-has-for-one", "1"},
                "a-key-that"}};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(tandem_method_create(program, "forward", &wrong[i].option, 1, &method, &error),
                     TANDEM_BAD_OPTION);
    assert_non_null(strstr(error.message, wrong[i].expected));
    assert_null(method);
  }
  tandem_program_destroy(program);
  program = open_program("linear.pte", NULL);
  assert_int_equal(tandem_method_create(program, "forward", &wrong[0].option, 1, &method, &error),
                   TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "colour"));
  tandem_program_destroy(program);
}

static void the_delegates_sentence_reaches_the_caller(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = NULL;
  strcpy(demo.refuse_build, "the device is on fire");
  demo.refuse_status = TANDEM_DEVICE_ERROR;
  enum tandem_status status = tandem_method_create(program, "forward", NULL, 0, &method, &error);
  demo.refuse_build[0] = '\0';
  assert_int_equal(status, TANDEM_DEVICE_ERROR);
  assert_int_equal(error.code, TANDEM_DEVICE_ERROR);
  assert_non_null(strstr(error.message, "the device is on fire"));
  assert_null(method);
  assert_int_equal(demo.contexts, 0);
  assert_int_equal(demo.engines, 0);
  method = open_method(program, "forward");
  check_affine(method, 2, 2.0f, 3.0f);
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

/* `path` with every `from` replaced by `to` of the same length. */
static struct tandem_program *open_edited(char **bytes, const char *name, const char *from, const char *to) {
  size_t size, found = 0;
  *bytes = read_file(data_path(name), &size);
  for (size_t i = 0; i + strlen(from) <= size; i++)
    if (memcmp(*bytes + i, from, strlen(from)) == 0) {
      memcpy(*bytes + i, to, strlen(to));
      found++;
    }
  assert_true(found > 0);
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .bytes = *bytes, .size = size};
  struct tandem_program *program = NULL;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_OK);
  return program;
}

static void a_missing_operator_is_named(void **state) {
  (void)state;
  char *bytes;
  struct tandem_method *method = NULL;
  struct tandem_program *program = open_edited(&bytes, "demo_mixed.pte", "aten::sin", "aten::sjn");
  assert_int_equal(tandem_method_create(program, "forward", NULL, 0, &method, &error), TANDEM_NOT_FOUND);
  assert_non_null(strstr(error.message, "aten::sjn.out"));
  tandem_program_destroy(program);
  free(bytes);
}

static void a_missing_backend_is_named(void **state) {
  (void)state;
  char *bytes;
  struct tandem_method *method = NULL;
  struct tandem_program *program = open_edited(&bytes, "demo_affine.pte", "DemoBackend", "NoneBackend");
  assert_int_equal(tandem_method_create(program, "forward", NULL, 0, &method, &error), TANDEM_NOT_FOUND);
  assert_non_null(strstr(error.message, "NoneBackend"));
  tandem_program_destroy(program);
  free(bytes);
}

/* channels.pte takes up to 4 images channels last and as many in rows, and gives the first in rows, the
 * second channels last, and the first's negative channels last. */
#define IMAGE (2 * 3 * 4) /* elements: channels, height, width */
#define ROOM  (4 * IMAGE)

static const int64_t rows_strides[4] = {IMAGE, 12, 4, 1}, last_strides[4] = {IMAGE, 1, 8, 2};

static struct tandem_tensor images_of(float *data, int64_t count, const int64_t *strides) {
  return (struct tandem_tensor){.data = data,
                                .size = (size_t)count * IMAGE * sizeof(float),
                                .dtype = TANDEM_FLOAT32,
                                .rank = 4,
                                .shape = {count, 2, 3, 4},
                                .strides = strides};
}

static enum tandem_status give_room(void *user, size_t output, struct tandem_tensor *tensor) {
  tensor->data = (float *)user + output * ROOM;
  tensor->size = ROOM * sizeof(float);
  return TANDEM_OK;
}

static void a_program_that_has_channels_last_takes_and_gives_rows(void **state) {
  (void)state;
  struct tandem_program *program = open_program("channels.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  float rows[ROOM], last[ROOM], other[ROOM], room[3 * ROOM];
  fill(rows, ROOM);
  for (int i = 0; i < ROOM; i++) {
    last[i / IMAGE * IMAGE + i % 12 * 2 + i % IMAGE / 12] = rows[i];
    other[i] = rows[i] * 3;
  }
  for (int turn = 0; turn < 5 * 3 * 3; turn++) {
    int count = turn / 9, way_in = turn / 3 % 3, way_out = turn % 3; /* given, resized, borrowed */
    const int64_t *strides[3] = {NULL, rows_strides, last_strides};
    struct tandem_tensor inputs[2] = {images_of(way_in == 2 ? last : rows, count, strides[way_in]),
                                      images_of(other, count, NULL)};
    struct tandem_tensor outputs[3];
    for (size_t i = 0; i < 3; i++)
      outputs[i] = images_of(way_out == 0 ? room + i * ROOM : NULL, count, NULL);
    for (int i = 0; i < 3 * ROOM; i++)
      room[i] = NAN;
    struct tandem_run_desc run = {.struct_size = sizeof(run),
                                  .inputs = inputs,
                                  .input_count = 2,
                                  .outputs = outputs,
                                  .output_count = 3,
                                  .resize = way_out == 1 ? give_room : NULL,
                                  .resize_user = room};
    enum tandem_status status = tandem_method_run(method, &run, &error);
    assert_string_equal(error.message, "");
    assert_int_equal(status, TANDEM_OK);
    for (size_t o = 0; o < 3; o++) {
      assert_int_equal(outputs[o].shape[0], count);
      assert_int_equal(outputs[o].shape[3], 4);
      assert_null(outputs[o].strides);
      for (int i = 0; i < count * IMAGE; i++)
        assert_float_equal(((float *)outputs[o].data)[i], o == 1 ? other[i] : o == 0 ? rows[i] : -rows[i], 0);
    }
  }
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void strides_of_neither_order_are_refused_by_name(void **state) {
  (void)state;
  struct tandem_program *program = open_program("channels.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  const int64_t columns_strides[4] = {IMAGE, 12, 1, 3};
  float rows[ROOM], room[3 * ROOM];
  fill(rows, ROOM);
  const struct {
    const char *expected;
    const int64_t *strides[3]; /* of both inputs and an output */
  } cases[] = {
      {"\"input0\" is not contiguous, nor laid out as the program has it", {columns_strides, NULL, NULL}},
      {"\"input1\" is not contiguous: copy it first", {NULL, last_strides, NULL}},
      {"\"output1\" is not contiguous", {NULL, NULL, last_strides}},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    struct tandem_tensor inputs[2] = {images_of(rows, 4, cases[i].strides[0]),
                                      images_of(rows, 4, cases[i].strides[1])};
    struct tandem_tensor outputs[3] = {images_of(room, 4, NULL),
                                       images_of(room + ROOM, 4, cases[i].strides[2]),
                                       images_of(room + 2 * ROOM, 4, NULL)};
    struct tandem_run_desc run = {.struct_size = sizeof(run),
                                  .inputs = inputs,
                                  .input_count = 2,
                                  .outputs = outputs,
                                  .output_count = 3};
    assert_int_equal(tandem_method_run(method, &run, &error), TANDEM_INVALID_ARGUMENT);
    if (!strstr(error.message, cases[i].expected))
      fail_msg("expected \"%s\" in \"%s\"", cases[i].expected, error.message);
  }
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static void an_engines_other_layout_is_refused_by_name(void **state) {
  (void)state;
  struct tandem_method *method = NULL;
  const char *names[] = {"demo_channels.pte", "demo_device_channels.pte"};
  for (int i = 0; i < 2; i++) {
    struct tandem_program *program = open_program(names[i], NULL);
    assert_int_equal(tandem_method_create(program, "forward", NULL, 0, &method, &error), TANDEM_UNSUPPORTED);
    assert_non_null(strstr(error.message, "\"input0\" is not laid out with its last dimension fastest"));
    tandem_program_destroy(program);
  }
}

static void what_cannot_be_opened_is_said(void **state) {
  (void)state;
  struct tandem_program *program = (struct tandem_program *)&error;
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .path = "/nowhere/at.pte"};
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_NOT_FOUND);
  assert_null(program);
  assert_non_null(strstr(error.message, "/nowhere/at.pte: No such file or directory"));
  desc.path = "/";
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_INVALID_ARGUMENT);
  desc.path = data_path("../adapter/demo_vendor.h");
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "ET12"));
  desc.path = data_path("demo_affine.pte");
  desc.bytes = "x";
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_INVALID_ARGUMENT);
  desc.path = NULL;
  desc.size = 1;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "(bytes): 1 bytes: a program has at least 64"));
  desc.struct_size = 8;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_INVALID_ARGUMENT);
  const char *data = data_path("demo_affine.pte");
  struct tandem_program_desc wrong_data = {.struct_size = sizeof(desc),
                                           .path = data_path("demo_named.pte"),
                                           .data_paths = &data,
                                           .data_path_count = 1};
  assert_int_equal(tandem_program_create(&wrong_data, &program, &error), TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "demo_affine.pte"));
  assert_non_null(strstr(error.message, "FH01"));
  tandem_program_destroy(NULL);
  tandem_method_destroy(NULL);
}

static void a_long_message_can_be_read_whole(void **state) {
  (void)state;
  char path[2048] = "/", whole[4096];
  memset(path + 1, 'p', sizeof(path) - 2);
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .path = path};
  struct tandem_program *program = NULL;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_NOT_FOUND);
  assert_string_equal(error.message + strlen(error.message) - 3, "...");
  assert_true(tandem_last_reason(whole, sizeof(whole)) > strlen(path));
  assert_memory_equal(whole, path, strlen(path));
  assert_non_null(strstr(whole, "File name too long"));
}

static void null_arguments_are_refused(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .path = data_path("demo_affine.pte")};
  struct tandem_method *method;
  assert_int_equal(tandem_program_create(&desc, NULL, &error), TANDEM_INVALID_ARGUMENT);
  tandem_program_destroy(program);
  assert_int_equal(tandem_program_create(NULL, &program, NULL), TANDEM_INVALID_ARGUMENT);
  assert_null(program);
  assert_int_equal(tandem_program_method_count(NULL), 0);
  assert_null(tandem_program_method_name(NULL, 0));
  assert_int_equal(tandem_program_method_io(NULL, "forward", NULL, NULL, NULL, NULL, &error),
                   TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_program_delegates(NULL, "forward", NULL, NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_program_method_attributes(NULL, "forward", NULL, NULL, &error),
                   TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_method_create(NULL, "forward", NULL, 0, &method, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_method_run(NULL, NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_method_reset(NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_null(tandem_method_load(NULL, 0));
}

struct worker {
  struct tandem_method *method;
  int failures;
};

static void *run_many(void *argument) {
  struct worker *worker = argument;
  for (int round = 0; round < 200; round++) {
    float in[8], out[8];
    for (int i = 0; i < 8; i++)
      in[i] = (float)(round * 8 + i);
    struct tandem_tensor x = tensor_of(in, 2, 2, 4), y = tensor_of(out, 2, 2, 4);
    struct tandem_run_desc run = {
        .struct_size = sizeof(run), .inputs = &x, .input_count = 1, .outputs = &y, .output_count = 1};
    if (tandem_method_run(worker->method, &run, NULL) != TANDEM_OK)
      worker->failures++;
    for (int i = 0; i < 8; i++)
      worker->failures += out[i] != in[i] * 2 + 3;
  }
  return NULL;
}

static void one_method_on_two_threads_is_serialised(void **state) {
  (void)state;
  struct tandem_program *program = open_program("demo_affine.pte", NULL);
  struct tandem_method *method = open_method(program, "forward");
  struct worker workers[2] = {{method, 0}, {method, 0}};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, run_many, &workers[i]), 0);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    assert_int_equal(workers[i].failures, 0);
  }
  tandem_method_destroy(method);
  tandem_program_destroy(program);
}

static atomic_bool enough;

static void *ask_for_backends(void *argument) {
  while (!enough)
    tandem_executorch_active("DemoBackend");
  return argument;
}

/* Loads ask which backends are tandem's, so a thread may be doing that at any fork. */
static void a_child_forked_while_threads_ask_for_backends_gets_an_answer(void **state) {
  (void)state;
  pthread_t threads[2];
  int failed = 0;
  enough = false;
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, ask_for_backends, NULL), 0);
  for (int i = 0; i < 100 && !failed; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(10);
      _exit(!tandem_executorch_active("DemoBackend"));
    }
    failed = child < 0 || waitpid(child, &failed, 0) != child || failed;
  }
  enough = true;
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  assert_false(failed);
}

static void the_runtime_is_told_by_path_and_version(void **state) {
  (void)state;
  assert_true(access(tandem_executorch_path(), R_OK) == 0);
  assert_non_null(strstr(tandem_executorch_path(), "libexecutorch"));
  int major, minor, patch;
  assert_int_equal(sscanf(tandem_executorch_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

static int register_demo(void **state) {
  (void)state;
  if (tandem_vendor_register(&demo_vendor, &error) != TANDEM_OK || tandem_executorch_active("DemoBackend"))
    return -1;
  return tandem_executorch_register(&error) == TANDEM_OK && tandem_executorch_active("DemoBackend") &&
                 tandem_executorch_active("OpenvinoBackend") && !tandem_executorch_active("NoneBackend")
             ? 0
             : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_program_tells_its_methods),
      cmocka_unit_test(tensors_with_a_name_are_told),
      cmocka_unit_test(both_methods_of_a_program_run),
      cmocka_unit_test(a_method_outlives_its_program),
      cmocka_unit_test(two_loads_of_a_program_share_one_engine),
      cmocka_unit_test(loads_are_listed_in_the_order_of_the_delegates),
      cmocka_unit_test(a_reset_reaches_every_load),
      cmocka_unit_test(delegates_point_at_their_payload),
      cmocka_unit_test(bytes_and_a_read_file_run_as_a_mapped_one),
      cmocka_unit_test(dynamic_shapes_run_within_their_bounds),
      cmocka_unit_test(an_output_without_memory_is_borrowed),
      cmocka_unit_test(a_resize_function_gives_the_memory),
      cmocka_unit_test(wrong_tensors_are_refused_by_name),
      cmocka_unit_test(only_a_method_that_is_one_delegate_takes_a_stream),
      cmocka_unit_test(an_output_in_the_memory_of_an_input_is_refused),
      cmocka_unit_test(an_input_that_is_no_tensor_keeps_its_value),
      cmocka_unit_test(outputs_without_planned_memory_run),
      cmocka_unit_test(parts_without_a_delegate_run_on_the_wheels_kernels),
      cmocka_unit_test(weights_in_a_data_file_are_found),
      cmocka_unit_test(a_backend_that_the_wheel_brings_is_opened),
      cmocka_unit_test(a_payload_in_a_data_file_is_found),
      cmocka_unit_test(missing_data_is_an_error_of_its_own),
      cmocka_unit_test(several_data_files_are_merged),
      cmocka_unit_test(options_reach_the_load),
      cmocka_unit_test(the_delegates_sentence_reaches_the_caller),
      cmocka_unit_test(a_missing_operator_is_named),
      cmocka_unit_test(a_missing_backend_is_named),
      cmocka_unit_test(a_program_that_has_channels_last_takes_and_gives_rows),
      cmocka_unit_test(strides_of_neither_order_are_refused_by_name),
      cmocka_unit_test(an_engines_other_layout_is_refused_by_name),
      cmocka_unit_test(what_cannot_be_opened_is_said),
      cmocka_unit_test(a_long_message_can_be_read_whole),
      cmocka_unit_test(null_arguments_are_refused),
      cmocka_unit_test(one_method_on_two_threads_is_serialised),
      cmocka_unit_test(a_child_forked_while_threads_ask_for_backends_gets_an_answer),
      cmocka_unit_test(the_runtime_is_told_by_path_and_version),
  };
  return cmocka_run_group_tests(tests, register_demo, NULL);
}
