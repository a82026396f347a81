/* The real libraries of pip's packages, as far as they go on this machine: usage test_wheels
 * lean10|lean11|rtx, their paths in TANDEM_TENSORRT_LEAN10, TANDEM_TENSORRT_LEAN11 and TANDEM_TENSORRT_RTX
 * (unset: skipped).
 *
 * Without a GPU lean runtimes refuse to start and RTX starts and refuses plans; with one they refuse garbage
 * and plans of other products and devices. Either way the user has to read the library's own words, and
 * nothing may be left behind. */
#include "base.h"
#include "rtx_builder.h"
#include "tensorrt.h"

#include <dirent.h>
#include <libgen.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct library {
  const char *argument, *variable, *name;
  int32_t version, newest; /* newest: what the folder of the package has */
  enum td_trt_product product;
} libraries[] = {
    {"lean10", "TANDEM_TENSORRT_LEAN10", "TensorRT 10.16.1 (lean)", 101601, 110400, TD_TRT_LEAN},
    {"lean11", "TANDEM_TENSORRT_LEAN11", "TensorRT 11.4.0 (lean)", 110400, 110400, TD_TRT_LEAN},
    {"rtx", "TANDEM_TENSORRT_RTX", "TensorRT-RTX 1.7.1", 10701, 10701, TD_TRT_RTX},
};
static const struct library *library;
static const char *path;
static bool has_driver;

/* Lines that were told since the last load, one after the other. */
static char told[16384];

static void keep_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level;
  size_t used = strlen(told);
  snprintf(told + used, sizeof told - used, "%s\n", line);
}

static void *make_payload(const void *plan, size_t plan_size, size_t *size) {
  static const char metadata[] = "{\"hardware_compatible\":false,\"device_id\":0}";
  enum { ENGINE_AT = 80 };
  _Static_assert(32 + sizeof metadata <= ENGINE_AT, "the metadata ends before the engine");
  unsigned char *bytes = calloc(1, ENGINE_AT + plan_size);
  assert_non_null(bytes);
  memcpy(bytes, "TR01", 4);
  bytes[4] = 32;
  bytes[8] = sizeof metadata - 1;
  bytes[12] = ENGINE_AT;
  for (int i = 0; i < 8; i++)
    bytes[16 + i] = (unsigned char)((uint64_t)plan_size >> (8 * i));
  memcpy(bytes + 32, metadata, sizeof metadata - 1);
  memcpy(bytes + ENGINE_AT, plan, plan_size);
  *size = ENGINE_AT + plan_size;
  return bytes;
}

static unsigned count_descriptors(void) {
  unsigned count = 0;
  DIR *entries = opendir("/proc/self/fd");
  while (readdir(entries) != NULL)
    count++;
  closedir(entries);
  return count;
}

static struct tandem_stats stats(void) {
  struct tandem_stats now = {.struct_size = sizeof now};
  assert_int_equal(tandem_stats_get(&now, NULL), TANDEM_OK);
  return now;
}

/* Loads a plan that must be refused; the message. */
static const char *refuse(const void *plan, size_t plan_size) {
  static struct tandem_error error;
  size_t size;
  void *payload = make_payload(plan, plan_size, &size);
  struct tandem_load_desc desc = {
      .struct_size = sizeof desc, .backend = "tensorrt", .payload = payload, .payload_size = size};
  struct tandem_load *load;
  struct tandem_stats before = stats();
  uint64_t live = td_memory_live();
  told[0] = '\0';
  enum tandem_status status = tandem_load_create(&desc, &load, &error);
  assert_null(load);
  if (status == TANDEM_OK || status == TANDEM_INTERNAL || strchr(error.message, '\n') != NULL)
    fail_msg("%s: \"%s\"", tandem_status_name(status), error.message);
  struct tandem_stats after = stats();
  assert_int_equal(after.engines, 0);
  assert_int_equal(after.loads, 0);
  assert_int_equal(after.bytes_held, 0);
  assert_int_equal(after.failures, before.failures + 1);
  assert_int_equal(td_memory_live(), live);
  free(payload);
  return error.message;
}

static void assert_says(const char *message, const char *words) {
  if (strstr(message, words) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", message, words);
}

/* ---------------------------------------------------------------- search and gate */

static void another_product_than_the_forced_one_is_refused(void **state) {
  (void)state;
  struct tandem_vendor_library found = {0};
  struct tandem_error error;
  setenv("TANDEM_TENSORRT_RUNTIME", "full", 1);
  assert_int_equal(td_trt_open(&td_host, &found, &error), TANDEM_UNSUPPORTED);
  assert_says(error.message, library->name);
  assert_says(error.message, "TANDEM_TENSORRT_RUNTIME");
  unsetenv("TANDEM_TENSORRT_RUNTIME");
}

static void of_a_folder_the_newest_library_is_taken(void **state) {
  (void)state;
  struct tandem_vendor_library found = {0};
  struct tandem_error error;
  char folder[4096];
  snprintf(folder, sizeof folder, "%s", path);
  setenv("TANDEM_TENSORRT_LIBRARY", dirname(folder), 1);
  assert_int_equal(td_trt_open(&td_host, &found, &error), TANDEM_OK);
  assert_int_equal(td_trt.version, library->newest);
  assert_int_equal(td_trt.product, library->product);
  setenv("TANDEM_TENSORRT_LIBRARY", path, 1);
}

static void a_pip_package_is_found_through_its_environment(void **state) {
  (void)state;
  struct tandem_vendor_library found = {0};
  struct tandem_error error;
  char packages[4096];
  snprintf(packages, sizeof packages, "%s", path);
  dirname(packages);
  unsetenv("TANDEM_TENSORRT_LIBRARY");
  setenv("TANDEM_TENSORRT_RUNTIME", library->product == TD_TRT_RTX ? "rtx" : "lean", 1);
  setenv("PYTHONPATH", dirname(packages), 1);
  assert_int_equal(td_trt_open(&td_host, &found, &error), TANDEM_OK);
  assert_int_equal(td_trt.product, library->product);
  unsetenv("PYTHONPATH");
  unsetenv("TANDEM_TENSORRT_RUNTIME");
  setenv("TANDEM_TENSORRT_LIBRARY", path, 1);
}

static void the_library_tells_its_version_before_anything_is_created(void **state) {
  (void)state;
  for (size_t i = 0; i < tandem_vendor_count(); i++) {
    struct tandem_vendor_info info = {.struct_size = sizeof info};
    if (strcmp(tandem_vendor_backend(i), "TensorRTBackend") != 0)
      continue;
    assert_int_equal(tandem_vendor_get_info(i, &info, NULL), TANDEM_OK);
    if (!info.available)
      fail_msg("%s", info.reason);
    assert_memory_equal(info.version, library->name, strlen(library->name));
    assert_string_equal(info.path, path);
    assert_int_equal(td_trt.version, library->version);
    assert_int_equal(td_trt.product, library->product);
    return;
  }
  fail_msg("no TensorRT vendor");
}

/* ---------------------------------------------------------------- runtime and logger */

/* Lines reach the sink after the vendor's call that they belong to. */
static struct td_lines *begin_call(struct td_call *call) {
  struct td_lines *lines = td_lines_create("test", TANDEM_LOG_WARNING);
  assert_non_null(lines);
  told[0] = '\0';
  td_call_begin(call, &td_vendor_tensorrt, lines);
  return lines;
}

static void end_call(struct td_call *call, struct td_lines *lines) {
  td_call_end(call, TANDEM_OK, "test", NULL);
  td_lines_destroy(lines);
}

static void a_runtime_starts_or_says_why_through_our_logger(void **state) {
  (void)state;
  struct tandem_error error = {0};
  struct td_call call;
  void *runtime;
  struct td_lines *lines = begin_call(&call);
  enum tandem_status status = td_trt_create_runtime(&runtime, &error);
  end_call(&call, lines);
  if (library->product == TD_TRT_RTX || has_driver) {
    assert_int_equal(status, TANDEM_OK);
    void **logger = td_trt_runtime_logger(runtime);
    assert_non_null(logger);
    void (*log)(void *, int32_t, const char *);
    memcpy(&log, &((void **)logger[0])[library->version == 101601 ? 0 : 4], sizeof log);
    lines = begin_call(&call);
    log(logger, TD_TRT_ERROR, "through the pointer that the library keeps");
    end_call(&call, lines);
    assert_says(told, "through the pointer that the library keeps");
    assert_false(td_trt_runtime_host_code(runtime));
    td_trt_runtime_set_host_code(runtime, true);
    assert_true(td_trt_runtime_host_code(runtime));
    td_trt_delete(runtime);
  } else {
    assert_int_equal(status, TANDEM_UNAVAILABLE);
    assert_null(runtime); /* the library returned 0x228 */
    assert_says(told, "CUDA initialization failure with error: 35");
  }
}

/* ---------------------------------------------------------------- plans */

/* What a library says first of a plan that is none. */
static void assert_refused_in_own_words(const char *message) {
  if (library->product != TD_TRT_RTX && !has_driver)
    assert_says(message, "CUDA initialization failure with error: 35");
  else
    assert_says(message, library->name);
  if (!has_driver)
    assert_says(message, "no CUDA driver");
  assert_says(message, "could not deserialize the engine: ");
}

static void garbage_is_refused_in_the_librarys_own_words(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 3, 63, 64, 4096, 100000};
  unsigned char *garbage = malloc(100000);
  memset(garbage, 'A', 100000);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    const char *message = refuse(garbage, sizes[i]);
    assert_refused_in_own_words(message);
    if (library->product == TD_TRT_RTX && sizes[i] >= 64)
      assert_says(message, "magic");
  }
  free(garbage);
}

static void *read_plan(const char *name, size_t *size) {
  char file_path[4096];
  snprintf(file_path, sizeof file_path, "%s/rtx/%s.engine", TD_DATA, name);
  FILE *file = fopen(file_path, "rb");
  assert_non_null(file);
  unsigned char *bytes = malloc(1 << 20);
  *size = fread(bytes, 1, 1 << 20, file);
  assert_true(*size > 0);
  fclose(file);
  return bytes;
}

static void plans_of_rtx_are_refused_with_what_is_known_of_both_sides(void **state) {
  (void)state;
  static const char *const names[] = {"c_tiny_sm80_sm120", "tiny_all", "tiny_dyn_all", "tiny_vcx"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    size_t size;
    void *plan = read_plan(names[i], &size);
    const char *message = refuse(plan, size);
    assert_refused_in_own_words(message);
    if (library->product == TD_TRT_RTX && !has_driver)
      assert_says(message, "cudaError 35"); /* the driver is too old or not there */
    if (library->product == TD_TRT_RTX || has_driver)
      assert_says(message, "built by TensorRT-RTX 1.7.1");
    free(plan);
  }
}

static void a_cut_plan_of_rtx_is_refused(void **state) {
  (void)state;
  size_t size;
  void *plan = read_plan("tiny_all", &size);
  for (size_t cut = 16; cut < size; cut = cut * 2 + 7)
    assert_refused_in_own_words(refuse(plan, cut));
  free(plan);
}

static void a_plan_that_rtx_built_here_is_refused_without_its_gpu(void **state) {
  (void)state;
  const char *rtx = getenv("TANDEM_TENSORRT_RTX");
  size_t size = 0;
  if (rtx == NULL)
    skip();
  void *plan = rtx_build_plan(rtx, &size);
  assert_non_null(plan);
  assert_true(size > 1000);
  assert_memory_equal(plan, "vtrt", 4);
  const char *message = refuse(plan, size);
  assert_refused_in_own_words(message);
  if (library->product == TD_TRT_RTX || has_driver)
    assert_says(message, "built by TensorRT-RTX 1.7.1");
  free(plan);
}

static void loads_that_fail_leave_nothing(void **state) {
  (void)state;
  size_t size;
  void *plan = read_plan("tiny_all", &size);
  refuse(plan, size);
  unsigned descriptors = count_descriptors();
  for (int i = 0; i < 30; i++)
    refuse(plan, size);
  assert_int_equal(count_descriptors(), descriptors);
  free(plan);
}

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(another_product_than_the_forced_one_is_refused),
      cmocka_unit_test(of_a_folder_the_newest_library_is_taken),
      cmocka_unit_test(a_pip_package_is_found_through_its_environment),
      cmocka_unit_test(the_library_tells_its_version_before_anything_is_created),
      cmocka_unit_test(a_runtime_starts_or_says_why_through_our_logger),
      cmocka_unit_test(garbage_is_refused_in_the_librarys_own_words),
      cmocka_unit_test(plans_of_rtx_are_refused_with_what_is_known_of_both_sides),
      cmocka_unit_test(a_cut_plan_of_rtx_is_refused),
      cmocka_unit_test(a_plan_that_rtx_built_here_is_refused_without_its_gpu),
      cmocka_unit_test(loads_that_fail_leave_nothing),
  };
  for (size_t i = 0; count == 2 && i < sizeof libraries / sizeof libraries[0]; i++)
    if (strcmp(arguments[1], libraries[i].argument) == 0)
      library = &libraries[i];
  if (library == NULL) {
    fprintf(stderr, "usage: %s lean10|lean11|rtx\n", arguments[0]);
    return 1;
  }
  path = getenv(library->variable);
  if (path == NULL || *path == '\0') {
    printf("%s is not set\n", library->variable);
    return 77;
  }
  unsetenv("TANDEM_TENSORRT_RUNTIME");
  setenv("TANDEM_TENSORRT_LIBRARY", path, 1);
  td_trt_set_host(&td_host);
  tandem_set_log_sink(keep_line, NULL);
  has_driver = td_cuda_open(NULL) == TANDEM_OK;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
