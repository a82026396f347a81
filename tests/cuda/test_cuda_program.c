/* Programs (.pte) with a CudaBackend delegate and the data file (.ptd) that has its engine and weights,
 * through the C door: ExecuTorch's own runtime, its device copies, the plug-in and the vendor as they ship.
 * The engine is the stand-in "rows", on the stand-in driver and shims. */
#include <tandem/program.h>

#include "aoti.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct standin_cuda *standin;
static const struct standin_shims *shims;
static struct tandem_error error;
static char data_file[] = "/tmp/tandem-cuda-program-XXXXXX", other_file[] = "/tmp/tandem-cuda-program-XXXXXX";
static struct standin_program program, other; /* that the data files are of: equal but for a number */

static enum tandem_status open_method(const char *name, const char *data, struct tandem_method **method) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", TANDEM_DATA, name);
  struct tandem_program_desc desc = {
      .struct_size = sizeof desc, .path = path, .data_paths = &data, .data_path_count = data != NULL};
  struct tandem_program *opened = NULL;
  error = (struct tandem_error){0};
  *method = NULL;
  if (tandem_program_create(&desc, &opened, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  enum tandem_status status = tandem_method_create(opened, "forward", NULL, 0, method, &error);
  tandem_program_destroy(opened); /* a method keeps its program */
  return status;
}

static struct tandem_method *must_open(const char *name, const char *data) {
  struct tandem_method *method;
  if (open_method(name, data, &method) != TANDEM_OK)
    fail_msg("%s", error.message);
  return method;
}

static struct tandem_load_info info_of(struct tandem_method *method) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(tandem_method_load(method, 0), &info, &error), TANDEM_OK);
  assert_null(tandem_method_load(method, 1));
  return info;
}

enum sine { NO_SINE, SINE_AFTER, SINE_BEFORE }; /* on the host, around the engine */

static void assert_runs(struct tandem_method *method, const struct standin_program *of, int64_t rows,
                        enum sine sine) {
  float x[STANDIN_ROWS_MAX * STANDIN_COLUMNS], engine_x[STANDIN_ROWS_MAX * STANDIN_COLUMNS];
  float y[STANDIN_ROWS_MAX * STANDIN_OUTPUTS], expected[STANDIN_ROWS_MAX * STANDIN_OUTPUTS];
  const float *inputs[] = {engine_x};
  size_t in_count = (size_t)rows * STANDIN_COLUMNS, out_count = (size_t)rows * STANDIN_OUTPUTS;
  for (size_t i = 0; i < in_count; i++) {
    x[i] = (float)((i * 37 + (size_t)rows * 11) % 128) / 64.0f - 1.0f;
    engine_x[i] = sine == SINE_BEFORE ? sinf(x[i]) : x[i];
  }
  for (size_t i = 0; i < sizeof y / sizeof *y; i++)
    y[i] = NAN;
  struct tandem_tensor in = {.data = x,
                             .size = in_count * sizeof *x,
                             .dtype = TANDEM_FLOAT32,
                             .rank = 2,
                             .shape = {rows, STANDIN_COLUMNS}};
  struct tandem_tensor out = {.data = y, .size = sizeof y, .dtype = TANDEM_FLOAT32};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  if (tandem_method_run(method, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_int_equal(out.rank, 2);
  assert_int_equal(out.shape[0], rows);
  assert_int_equal(out.shape[1], STANDIN_OUTPUTS);
  standin_program_expect(of, inputs, 1, rows, expected);
  for (size_t i = 0; i < out_count; i++) {
    float value = sine == SINE_AFTER ? sinf(expected[i]) : expected[i];
    assert_true(sine == NO_SINE ? y[i] == value : fabsf(y[i] - value) <= 1e-6f);
  }
}

static int end(void **state) {
  (void)state;
  struct tandem_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(tandem_stats_get(&stats, &error), TANDEM_OK);
  assert_int_equal(stats.loads, 0);
  assert_int_equal(standin_aoti_left(standin, shims), 0);
  return 0;
}

/* ---------------------------------------------------------------- tests */

static void the_program_s_payload_is_the_one_that_the_data_file_is_for(void **state) {
  (void)state;
  struct tandem_program_desc desc = {.struct_size = sizeof desc, .path = TANDEM_DATA "/cuda_layer.pte"};
  struct tandem_program *opened = NULL;
  const struct tandem_delegate *delegates;
  size_t count;
  assert_int_equal(tandem_program_create(&desc, &opened, &error), TANDEM_OK);
  assert_int_equal(tandem_program_delegates(opened, "forward", &delegates, &count, &error), TANDEM_OK);
  assert_int_equal(count, 1);
  assert_string_equal(delegates[0].backend, "CudaBackend");
  assert_int_equal(delegates[0].payload_size, program.payload.size);
  assert_memory_equal(delegates[0].payload, program.payload.data, program.payload.size);
  tandem_program_destroy(opened);
}

static void a_program_runs_with_any_number_of_rows(void **state) {
  (void)state;
  struct tandem_method *method = must_open("cuda_layer.pte", data_file);
  assert_true(tandem_method_direct(method));
  assert_string_equal(info_of(method).device, "cuda:0");
  for (int64_t rows = 1; rows <= STANDIN_ROWS_MAX; rows++)
    assert_runs(method, &program, rows, NO_SINE);
  tandem_method_destroy(method);
}

static void what_runs_on_the_host_gets_the_delegate_s_output_from_the_device(void **state) {
  (void)state;
  struct tandem_method *method = must_open("cuda_layer_sine.pte", data_file);
  assert_false(tandem_method_direct(method));
  standin->reset();
  for (int64_t rows = STANDIN_ROWS_MAX; rows >= 1; rows--)
    assert_runs(method, &program, rows, SINE_AFTER);
  assert_int_equal(standin->calls("cuMemcpyAsync"), 2 * STANDIN_ROWS_MAX); /* there, and back */
  tandem_method_destroy(method);
}

static void an_output_that_stays_on_the_device_is_copied_by_the_door(void **state) {
  (void)state;
  struct tandem_method *method = must_open("cuda_sine_layer_io.pte", data_file);
  assert_false(tandem_method_direct(method));
  for (int64_t rows = 1; rows <= STANDIN_ROWS_MAX; rows++)
    assert_runs(method, &program, rows, SINE_BEFORE);
  tandem_method_destroy(method);
}

static void programs_share_the_engine_that_their_data_makes_equal(void **state) {
  (void)state;
  struct tandem_method *first = must_open("cuda_layer.pte", data_file),
                       *second = must_open("cuda_layer_sine.pte", data_file),
                       *third = must_open("cuda_layer.pte", other_file);
  assert_int_equal(info_of(first).engine_id, info_of(second).engine_id);
  assert_int_equal(info_of(first).users, 2);
  assert_int_not_equal(info_of(first).engine_id, info_of(third).engine_id);
  assert_runs(first, &program, 3, NO_SINE);
  assert_runs(third, &other, 3, NO_SINE);
  tandem_method_destroy(first);
  assert_runs(second, &program, 5, SINE_AFTER);
  tandem_method_destroy(second);
  assert_runs(third, &other, 8, NO_SINE);
  tandem_method_destroy(third);
}

static void a_data_file_that_is_not_given_is_asked_for(void **state) {
  (void)state;
  struct tandem_method *method;
  assert_int_equal(open_method("cuda_layer_sine.pte", NULL, &method), TANDEM_MISSING_DATA);
  assert_null(method);
  assert_non_null(strstr(error.message, "give the .ptd that was exported with it"));
  assert_null(strchr(error.message, '\n'));
}

static void another_program_s_data_file_is_told_by_what_it_lacks(void **state) {
  (void)state;
  struct tandem_method *method;
  assert_int_equal(open_method("cuda_layer.pte", TANDEM_DATA "/demo_named.ptd", &method),
                   TANDEM_MISSING_DATA);
  assert_null(method);
  if (strstr(error.message, "\"" STANDIN_SO_KEY "\" (part 1 of 4) is neither in") == NULL)
    fail_msg("\"%s\" does not name it", error.message);
  assert_null(strchr(error.message, '\n'));
}

/* ---------------------------------------------------------------- main */

static bool write_data(char *path, const struct standin_program *of) {
  int file = mkstemp(path);
  if (file < 0)
    return false;
  close(file);
  return standin_write_data_file(path, of->named.entries, of->constant_count + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(the_program_s_payload_is_the_one_that_the_data_file_is_for, end),
      cmocka_unit_test_teardown(a_program_runs_with_any_number_of_rows, end),
      cmocka_unit_test_teardown(what_runs_on_the_host_gets_the_delegate_s_output_from_the_device, end),
      cmocka_unit_test_teardown(an_output_that_stays_on_the_device_is_copied_by_the_door, end),
      cmocka_unit_test_teardown(programs_share_the_engine_that_their_data_makes_equal, end),
      cmocka_unit_test_teardown(a_data_file_that_is_not_given_is_asked_for, end),
      cmocka_unit_test_teardown(another_program_s_data_file_is_told_by_what_it_lacks, end),
  };
  if (!standin_aoti_start(false, &standin, &shims) || !standin_program_init(&program, STANDIN_ROWS, 5) ||
      !standin_program_init(&other, STANDIN_ROWS, 5))
    return 1;
  other.relu = 0;
  bool written = write_data(data_file, &program) && write_data(other_file, &other);
  int failed = written ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
  if (!written)
    fprintf(stderr, "%s or %s cannot be written\n", data_file, other_file);
  unlink(data_file);
  unlink(other_file);
  standin_program_fini(&program);
  standin_program_fini(&other);
  return failed;
}
