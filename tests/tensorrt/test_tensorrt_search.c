/* Where the vendor looks for TensorRT, over the stand-in libraries laid out as pip does: the full library
 * before the lean one before RTX, one of them where it is forced, and nothing that cannot be used. */
#include "base.h"
#include "tensorrt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[] = "/tmp/tandem-search-XXXXXX"; /* site-packages */
static struct tandem_vendor_library found;
static struct tandem_error error;

static void run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *format, ...) {
  char command[2048];
  va_list arguments;
  va_start(arguments, format);
  assert_true(vsnprintf(command, sizeof command, format, arguments) < (int)sizeof command);
  va_end(arguments);
  assert_int_equal(system(command), 0);
}

/* A library of the stand-ins, copied: the loader takes two links to one file for one library. */
static void place(const char *from, const char *to) {
  run("mkdir -p \"$(dirname '%s/%s')\" && cp '%s/%s' '%s/%s'", root, to, TANDEM_STANDIN_DIR, from, root, to);
}

static enum tandem_status search(const char *library, const char *runtime) {
  found = (struct tandem_vendor_library){0};
  error = (struct tandem_error){0};
  if (library != NULL)
    setenv("TANDEM_TENSORRT_LIBRARY", library, 1);
  else
    unsetenv("TANDEM_TENSORRT_LIBRARY");
  if (runtime != NULL)
    setenv("TANDEM_TENSORRT_RUNTIME", runtime, 1);
  else
    unsetenv("TANDEM_TENSORRT_RUNTIME");
  return td_trt_open(&td_host, &found, &error);
}

static void assert_found(const char *name) {
  char path[256];
  if (error.code != TANDEM_OK)
    fail_msg("%s", error.message);
  snprintf(path, sizeof path, "%s/%s", root, name);
  assert_string_equal(found.path, path);
  assert_string_equal(td_trt.path, path);
}

static void assert_says(const char *words) {
  if (strstr(error.message, words) == NULL || strchr(error.message, '\n') != NULL)
    fail_msg("\"%s\" does not say \"%s\" in one line", error.message, words);
}

static void the_full_library_comes_before_lean_before_rtx(void **state) {
  (void)state;
  place("rtx/libtensorrt_rtx.so.1", "tensorrt_rtx_libs/libtensorrt_rtx.so.1");
  assert_int_equal(search(NULL, NULL), TANDEM_OK);
  assert_found("tensorrt_rtx_libs/libtensorrt_rtx.so.1");
  assert_int_equal(td_trt.product, TD_TRT_RTX);
  place("lean/libnvinfer_lean.so.11", "tensorrt_lean_libs/libnvinfer_lean.so.11");
  assert_int_equal(search(NULL, NULL), TANDEM_OK);
  assert_found("tensorrt_lean_libs/libnvinfer_lean.so.11");
  assert_int_equal(td_trt.product, TD_TRT_LEAN);
  place("10/libnvinfer.so.10", "tensorrt_libs/libnvinfer.so.10");
  assert_int_equal(search(NULL, NULL), TANDEM_OK);
  assert_found("tensorrt_libs/libnvinfer.so.10");
  assert_int_equal(td_trt.product, TD_TRT_FULL);
}

static void a_forced_product_is_the_only_one_looked_for(void **state) {
  (void)state;
  assert_int_equal(search(NULL, "rtx"), TANDEM_OK);
  assert_found("tensorrt_rtx_libs/libtensorrt_rtx.so.1");
  assert_int_equal(search(NULL, "lean"), TANDEM_OK);
  assert_found("tensorrt_lean_libs/libnvinfer_lean.so.11");
  assert_int_equal(search(NULL, "full"), TANDEM_OK);
  assert_found("tensorrt_libs/libnvinfer.so.10");
  run("mv '%s/tensorrt_rtx_libs' '%s/away'", root, root);
  setenv("PYTHONPATH", "/nowhere", 1);
  char library[256];
  snprintf(library, sizeof library, "%s/tensorrt_libs/libnvinfer.so.10", root);
  assert_int_equal(search(library, "rtx"), TANDEM_UNSUPPORTED);
  assert_says("TANDEM_TENSORRT_RUNTIME asks for another product");
  setenv("PYTHONPATH", root, 1);
  run("mv '%s/away' '%s/tensorrt_rtx_libs'", root, root);
}

static void the_newest_that_can_be_used_is_taken_from_a_folder(void **state) {
  (void)state;
  char folder[256];
  snprintf(folder, sizeof folder, "%s/tensorrt_libs", root);
  place("11/libnvinfer.so.11", "tensorrt_libs/libnvinfer.so.11");
  assert_int_equal(search(folder, NULL), TANDEM_OK);
  assert_found("tensorrt_libs/libnvinfer.so.11");
  /* Newer by name: no library, and a library that is no TensorRT. */
  run("echo rubbish > '%s/libnvinfer.so.98'", folder);
  place("cuda/libcuda.so.1", "tensorrt_libs/libnvinfer.so.97");
  assert_int_equal(search(folder, NULL), TANDEM_OK);
  assert_found("tensorrt_libs/libnvinfer.so.11");
  assert_int_equal(search(NULL, NULL), TANDEM_OK);
  /* 10 counts for more than 8 and 9: by number, not by letter. */
  run("mv '%s/libnvinfer.so.11' '%s/libnvinfer.so.9'", folder, folder);
  assert_int_equal(search(folder, NULL), TANDEM_OK);
  assert_found("tensorrt_libs/libnvinfer.so.10");
}

static void a_named_library_is_used_or_is_the_error(void **state) {
  (void)state;
  char library[256];
  snprintf(library, sizeof library, "%s/tensorrt_libs/libnvinfer.so.97", root);
  assert_int_equal(search(library, NULL), TANDEM_UNSUPPORTED);
  assert_says("has no getInferLibVersion");
  snprintf(library, sizeof library, "%s/tensorrt_libs/libnvinfer.so.98", root);
  assert_int_equal(search(library, NULL), TANDEM_UNAVAILABLE);
  assert_says(library);
  assert_int_equal(search("/nowhere/libnvinfer.so.10", NULL), TANDEM_UNAVAILABLE);
  assert_says("TANDEM_TENSORRT_LIBRARY=/nowhere/libnvinfer.so.10 cannot be used: this path does not exist");
  snprintf(library, sizeof library, "%s/empty", root);
  mkdir(library, 0700);
  assert_int_equal(search(library, NULL), TANDEM_UNAVAILABLE);
  assert_says("there is no libnvinfer.so");
}

static void a_version_without_a_known_layout_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *version, *named;
  } cases[] = {{"8601", "TensorRT 8.6.1"},
               {"120000", "TensorRT 12.0.0"},
               {"10401", "TensorRT-RTX 1.4.1"},
               {"20000", "TensorRT-RTX 2.0.0"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char name[64], library[256];
    snprintf(name, sizeof name, "other/libnvinfer.so.%zu", i);
    snprintf(library, sizeof library, "%s/%s", root, name);
    place("11/libnvinfer.so.11", name);
    setenv("STANDIN_NVINFER_VERSION", cases[i].version, 1);
    assert_int_equal(search(library, NULL), TANDEM_UNSUPPORTED);
    unsetenv("STANDIN_NVINFER_VERSION");
    assert_says(cases[i].named);
    assert_says("TensorRT 10, TensorRT 11 and TensorRT-RTX 1.5");
  }
}

/* Runs first: a library that the process has loaded is found by its name. */
static void what_was_searched_is_told_when_nothing_is_there(void **state) {
  (void)state;
  if (search(NULL, NULL) == TANDEM_OK)
    skip(); /* this machine has one */
  assert_int_equal(error.code, TANDEM_UNAVAILABLE);
  assert_says("libnvinfer.so, libnvinfer_lean.so, libtensorrt_rtx.so");
  assert_says("pip install");
  assert_int_equal(search(NULL, "rtx"), TANDEM_UNAVAILABLE);
  assert_says("looked for libtensorrt_rtx.so in");
}

/* Ours are found through PYTHONPATH; a virtual environment of the machine would come before it. */
static int begin(void **state) {
  (void)state;
  if (mkdtemp(root) == NULL)
    return -1;
  unsetenv("VIRTUAL_ENV");
  unsetenv("CONDA_PREFIX");
  setenv("PYTHONPATH", root, 1);
  return 0;
}

static int end(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -r '%s'", root);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_searched_is_told_when_nothing_is_there),
      cmocka_unit_test(the_full_library_comes_before_lean_before_rtx),
      cmocka_unit_test(a_forced_product_is_the_only_one_looked_for),
      cmocka_unit_test(the_newest_that_can_be_used_is_taken_from_a_folder),
      cmocka_unit_test(a_named_library_is_used_or_is_the_error),
      cmocka_unit_test(a_version_without_a_known_layout_is_refused_by_name),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
