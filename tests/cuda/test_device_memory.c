/* Programs that plan memory on a CUDA device, through the C door, over the stand-in driver: ExecuTorch's own
 * runtime and copy kernels, and the allocator of adapters/executorch/device.cc. */
#include <tandem/program.h>

#include "../adapter/demo_vendor.h" /* before cmocka.h, which makes a macro of `fail` */
#include "standin.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 2, COLUMNS = 4, COUNT = ROWS * COLUMNS, MEMORY_DEVICE = 2 };

static struct tandem_error error;
static const struct standin_cuda *cuda;
static struct {
  int (*pointer_attribute)(void *value, int attribute, uint64_t address);
  int (*primary_retain)(void **context, int device);
  int (*primary_release)(int device);
  int (*context_push)(void *context);
  int (*context_pop)(void **context);
  int (*context_current)(void **context);
  int (*copy)(uint64_t to, uint64_t from, size_t size);
} driver;
static int on_device; /* tensors that the delegate found in device memory */

static bool is_on_device(const void *data) {
  uint32_t type = 0;
  return driver.pointer_attribute(&type, 2, (uint64_t)(uintptr_t)data) == 0 && type == MEMORY_DEVICE;
}

/* The demo's own run on copies of what lies on the device. */
static enum tandem_status run_on_device(void *context, const struct tandem_run_desc *desc,
                                        struct tandem_error *failure) {
  float in[256], out[256];
  struct tandem_tensor x = desc->inputs[0], *y = &desc->outputs[0], host = x;
  struct tandem_run_desc copy = *desc;
  void *primary = NULL, *popped;
  if (memcmp(y->shape, x.shape, sizeof(int64_t) * 2) != 0) {
    memcpy(y->shape, x.shape, sizeof(int64_t) * 2);
    assert_int_equal(desc->resize(desc->resize_user, 0, y), TANDEM_OK);
  }
  on_device += is_on_device(x.data) + is_on_device(y->data);
  assert_true(x.size <= sizeof(in) && y->size == x.size);
  assert_int_equal(driver.primary_retain(&primary, 0), 0);
  driver.context_push(primary);
  assert_int_equal(driver.copy((uintptr_t)in, (uintptr_t)x.data, x.size), 0);
  x.data = in;
  host.data = out;
  copy.inputs = &x;
  copy.outputs = &host;
  enum tandem_status status = demo_run(context, &copy, failure);
  assert_int_equal(driver.copy((uintptr_t)y->data, (uintptr_t)out, x.size), 0);
  driver.context_pop(&popped);
  driver.primary_release(0);
  return status;
}

static enum tandem_status (*vendor_run)(void *, const struct tandem_run_desc *,
                                        struct tandem_error *) = run_on_device;

static enum tandem_status run_chosen(void *context, const struct tandem_run_desc *desc,
                                     struct tandem_error *failure) {
  return vendor_run(context, desc, failure);
}

static struct tandem_vendor vendor;

/* What demo_device_mixed.pte and demo_device_io.pte compute: a delegate, a sine on the host, a delegate. */
static float mixed(float x) {
  return sinf(x * 2 + 3) * 0.5f + 1;
}

static enum tandem_status open_method(const char *name, struct tandem_method **method) {
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .path = data_path(name)};
  struct tandem_program *program = NULL;
  assert_int_equal(tandem_program_create(&desc, &program, &error), TANDEM_OK);
  enum tandem_status status = tandem_method_create(program, "forward", NULL, 0, method, &error);
  tandem_program_destroy(program); /* a method keeps its program */
  return status;
}

static struct tandem_method *need_method(const char *name) {
  struct tandem_method *method = NULL;
  enum tandem_status status = open_method(name, &method);
  assert_string_equal(error.message, "");
  assert_int_equal(status, TANDEM_OK);
  return method;
}

static enum tandem_status run_once(struct tandem_method *method, void *in, void *out, int64_t rows) {
  struct tandem_tensor x = {.data = in,
                            .size = (size_t)rows * COLUMNS * sizeof(float),
                            .dtype = TANDEM_FLOAT32,
                            .rank = 2,
                            .shape = {rows, COLUMNS}};
  struct tandem_tensor y = x;
  y.data = out;
  struct tandem_run_desc run = {
      .struct_size = sizeof(run), .inputs = &x, .input_count = 1, .outputs = &y, .output_count = 1};
  enum tandem_status status = tandem_method_run(method, &run, &error);
  if (status == TANDEM_OK && !out) {
    assert_false(is_on_device(y.data)); /* a borrowed output is the host's to read */
    for (size_t i = 0; i < (size_t)rows * COLUMNS; i++)
      assert_float_equal(((float *)y.data)[i], mixed(((float *)in)[i]), 1e-6);
  }
  return status;
}

static void check_run(struct tandem_method *method, int64_t rows) {
  float in[256], out[256];
  for (size_t i = 0; i < 256; i++) {
    in[i] = (float)i * 0.5f - 1;
    out[i] = NAN;
  }
  assert_int_equal(run_once(method, in, out, rows), TANDEM_OK);
  assert_string_equal(error.message, "");
  for (size_t i = 0; i < (size_t)rows * COLUMNS; i++)
    assert_float_equal(out[i], mixed(in[i]), 1e-6);
}

static void check_nothing_is_left(void) {
  struct standin_cuda_live live;
  void *current = &live;
  cuda->live(&live);
  assert_int_equal(live.device_blocks, 0);
  assert_int_equal(live.primary_retains, 0);
  assert_int_equal(cuda->violations(), 0);
  assert_int_equal(driver.context_current(&current), 0);
  assert_null(current);
}

/* First: a driver that was opened stays open. */
static void without_a_driver_the_error_says_what_is_missing(void **state) {
  (void)state;
  struct tandem_method *method = NULL;
  setenv("TANDEM_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  assert_int_equal(open_method("demo_device_mixed.pte", &method), TANDEM_UNAVAILABLE);
  assert_non_null(strstr(error.message, "there is no CUDA driver: /nowhere/libcuda.so.1"));
  assert_null(strchr(error.message, '\n'));
  assert_null(method);
  setenv("TANDEM_CUDA_LIBRARY", STANDIN_CUDA, 1);
}

static void tensors_reach_the_delegate_on_the_device_and_come_back(void **state) {
  (void)state;
  struct tandem_method *method = need_method("demo_device_mixed.pte");
  on_device = 0;
  check_run(method, ROWS);
  assert_int_equal(on_device, 4);
  check_run(method, 5); /* a dynamic dimension */
  check_run(method, 1);
  tandem_method_destroy(method);
  check_nothing_is_left();
}

static void inputs_and_outputs_that_stay_on_the_device_are_copied_by_the_door(void **state) {
  (void)state;
  float in[COUNT] = {1, 2, 3};
  struct tandem_method *method = need_method("demo_device_io.pte");
  on_device = 0;
  check_run(method, ROWS);
  assert_int_equal(on_device, 4);
  assert_int_equal(run_once(method, in, NULL, ROWS), TANDEM_OK);
  tandem_method_destroy(method);
  check_nothing_is_left();
}

/* Then the load takes the caller's tensors, and stages what it must itself. */
static void a_method_of_one_delegate_and_its_copies_runs_on_the_caller_s_tensors(void **state) {
  (void)state;
  float in[COUNT] = {1, 2, 3}, out[COUNT];
  struct tandem_method *method = need_method("demo_device.pte");
  assert_true(tandem_method_direct(method));
  vendor_run = demo_run;
  assert_int_equal(run_once(method, in, out, ROWS), TANDEM_OK);
  vendor_run = run_on_device;
  for (size_t i = 0; i < COUNT; i++)
    assert_float_equal(out[i], in[i] * 2 + 3, 1e-6);
  tandem_method_destroy(method);
  check_nothing_is_left();
  method = need_method("demo_device_mixed.pte");
  assert_false(tandem_method_direct(method));
  tandem_method_destroy(method);
}

static void each_method_has_memory_of_its_own(void **state) {
  (void)state;
  struct standin_cuda_live one, two;
  struct tandem_method *first = need_method("demo_device_mixed.pte");
  cuda->live(&one);
  struct tandem_method *second = need_method("demo_device_mixed.pte");
  cuda->live(&two);
  assert_true(one.device_blocks > 0);
  assert_int_equal(two.device_blocks, 2 * one.device_blocks);
  check_run(first, ROWS);
  tandem_method_destroy(first);
  check_run(second, ROWS);
  tandem_method_destroy(second);
  check_nothing_is_left();
}

static void memory_that_is_not_there_is_told_and_nothing_stays(void **state) {
  (void)state;
  struct tandem_method *method = NULL;
  cuda->set_memory(0, 64);
  assert_int_equal(open_method("demo_device_mixed.pte", &method), TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(error.message, "cuda:0 has no room for the"));
  assert_null(method);
  cuda->set_memory(0, 1 << 30);
  check_nothing_is_left();
  assert_int_equal(demo.contexts, 0);
}

static void a_copy_that_fails_is_told_and_the_method_goes_on(void **state) {
  (void)state;
  float in[COUNT] = {0}, out[COUNT];
  struct tandem_method *method = need_method("demo_device_mixed.pte");
  for (unsigned nth = 1; nth <= 2; nth++) { /* there, and back */
    cuda->fail_at("cuMemcpyAsync", nth, 1);
    assert_int_equal(run_once(method, in, out, ROWS), TANDEM_DEVICE_ERROR);
    assert_non_null(
        strstr(error.message, nth == 1 ? "to cuda:0: CUDA error 1" : "from cuda:0: CUDA error 1"));
    check_run(method, ROWS);
  }
  tandem_method_destroy(method);
  check_nothing_is_left();
}

static void a_forked_child_is_told_and_its_parent_goes_on(void **state) {
  (void)state;
  float in[COUNT] = {0}, out[COUNT];
  struct tandem_method *method = need_method("demo_device_mixed.pte"), *other = NULL;
  int status = 0;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool told = run_once(method, in, out, ROWS) == TANDEM_DEVICE_LOST && strstr(error.message, "forked") &&
                open_method("demo_device_mixed.pte", &other) == TANDEM_UNAVAILABLE &&
                strstr(error.message, "forked");
    if (!told)
      fprintf(stderr, "the child was told \"%s\"\n", error.message);
    tandem_method_destroy(method);
    _exit(!told);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  check_run(method, ROWS);
  tandem_method_destroy(method);
  check_nothing_is_left();
}

/* Devices, sizes and places among them: ExecuTorch follows them without a look. */
static void a_program_with_one_edited_byte_is_answered(void **state) {
  (void)state;
  static const unsigned char masks[] = {0x01, 0x02, 0x10, 0x40, 0x80, 0xff};
  unsigned char *bytes = aligned_alloc(64, 4096);
  FILE *file = fopen(data_path("demo_device_mixed.pte"), "rb");
  assert_true(bytes && file);
  size_t size = fread(bytes, 1, 4096, file), refused = 0;
  fclose(file);
  assert_true(size > 0 && size < 4096);
  for (size_t i = 0; i < size; i++)
    for (size_t m = 0; m < sizeof(masks); m++) {
      struct tandem_program_desc desc = {.struct_size = sizeof(desc), .bytes = bytes, .size = size};
      struct tandem_program *program = NULL;
      struct tandem_method *method = NULL;
      bytes[i] ^= masks[m];
      refused += tandem_program_create(&desc, &program, &error) != TANDEM_OK ||
                 tandem_method_create(program, "forward", NULL, 0, &method, &error) != TANDEM_OK;
      tandem_method_destroy(method);
      tandem_program_destroy(program);
      bytes[i] ^= masks[m];
    }
  free(bytes);
  assert_true(refused > 0);
  check_nothing_is_left();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_a_driver_the_error_says_what_is_missing),
      cmocka_unit_test(tensors_reach_the_delegate_on_the_device_and_come_back),
      cmocka_unit_test(inputs_and_outputs_that_stay_on_the_device_are_copied_by_the_door),
      cmocka_unit_test(a_method_of_one_delegate_and_its_copies_runs_on_the_caller_s_tensors),
      cmocka_unit_test(each_method_has_memory_of_its_own),
      cmocka_unit_test(memory_that_is_not_there_is_told_and_nothing_stays),
      cmocka_unit_test(a_forked_child_is_told_and_its_parent_goes_on),
      cmocka_unit_test(a_program_with_one_edited_byte_is_answered),
      cmocka_unit_test(a_copy_that_fails_is_told_and_the_method_goes_on),
  };
  void *library = dlopen(STANDIN_CUDA, RTLD_NOW | RTLD_LOCAL);
  const struct standin_cuda *(*control)(void) = NULL;
  if (!library)
    return fprintf(stderr, "%s\n", dlerror()), 1;
  *(void **)&control = dlsym(library, "standin_cuda_control");
  *(void **)&driver.pointer_attribute = dlsym(library, "cuPointerGetAttribute");
  *(void **)&driver.primary_retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&driver.primary_release = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
  *(void **)&driver.context_push = dlsym(library, "cuCtxPushCurrent_v2");
  *(void **)&driver.context_pop = dlsym(library, "cuCtxPopCurrent_v2");
  *(void **)&driver.context_current = dlsym(library, "cuCtxGetCurrent");
  *(void **)&driver.copy = dlsym(library, "cuMemcpy");
  cuda = control();
  vendor = demo_vendor;
  vendor.run = run_chosen;
  if (tandem_vendor_register(&vendor, &error) || tandem_executorch_register(&error))
    return fprintf(stderr, "%s\n", error.message), 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
