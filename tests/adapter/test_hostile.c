/* Damaged programs and data files: every edit of one byte and every length ends in an answer or an error,
 * within a bounded time. What is loaded is also run where all of a method is delegated; ExecuTorch's own
 * kernels assert that their arguments are of the right kind, and end the process when they are not. */
#include <tandem/program.h>

#include "demo_vendor.h" /* before cmocka.h, which makes a macro of `fail` */

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { EDIT_SECONDS = 10 };

/* A hostile program may ask for any size: the allocator's answer is NULL, with sanitizers too. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=2048";
}
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=2048";
}

static char under_test[64]; /* for the line that a hang or a crash leaves */

static void tell(int signal_number) {
  static const char ended[] = ": hung or crashed\n";
  if (write(STDERR_FILENO, under_test, strlen(under_test)) < 0 ||
      write(STDERR_FILENO, ended, sizeof(ended) - 1) < 0)
    _exit(2);
  signal(signal_number, SIG_DFL);
  if (signal_number == SIGALRM)
    _exit(1);
  raise(signal_number);
}

/* cmocka sets its own handlers before each test; a sanitizer's tell more than this one. */
static void catch_crashes(void) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  signal(SIGSEGV, tell);
  signal(SIGABRT, tell);
  signal(SIGBUS, tell);
#endif
}

static int ran, refused;

/* Loads everything that a program says it has, and runs it. */
static void use(const struct tandem_program_desc *desc, bool runs) {
  struct tandem_error error;
  struct tandem_program *program = NULL;
  alarm(EDIT_SECONDS);
  catch_crashes();
  enum tandem_status status = tandem_program_create(desc, &program, &error);
  if (status != TANDEM_OK) {
    assert_null(program);
    assert_int_equal(error.code, status);
    assert_true(error.message[0] != '\0');
    assert_null(strchr(error.message, '\n'));
    refused++;
  }
  for (size_t i = 0; i < tandem_program_method_count(program); i++) {
    const char *name = tandem_program_method_name(program, i);
    const struct tandem_delegate *delegates;
    const struct tandem_io *inputs, *outputs;
    size_t input_count, output_count, count;
    unsigned sum = 0;
    if (tandem_program_delegates(program, name, &delegates, &count, NULL) == TANDEM_OK)
      for (size_t d = 0; d < count; d++)
        for (size_t b = 0; b < delegates[d].payload_size; b++)
          sum += ((const unsigned char *)delegates[d].payload)[b];
    assert_true(sum < 1u << 30);
    assert_int_equal(
        tandem_program_method_io(program, name, &inputs, &input_count, &outputs, &output_count, &error),
        TANDEM_OK);
    struct tandem_method *method = NULL;
    status = tandem_method_create(program, name, NULL, 0, &method, &error);
    if (status != TANDEM_OK) {
      assert_null(method);
      assert_true(error.message[0] != '\0');
      refused++;
      continue;
    }
    struct tandem_tensor x[4] = {{0}}, y[4] = {{0}};
    bool small = input_count <= 4 && output_count <= 4;
    for (size_t t = 0; small && t < input_count; t++) {
      x[t].dtype = inputs[t].dtype;
      x[t].rank = inputs[t].rank;
      x[t].size = tandem_dtype_size(inputs[t].dtype);
      for (int32_t d = 0; d < inputs[t].rank; d++) {
        x[t].shape[d] = inputs[t].max[d] == INT64_MAX ? 1 : inputs[t].max[d];
        small = small && x[t].shape[d] <= 65536 && x[t].size <= 1u << 24;
        x[t].size *= small ? (size_t)x[t].shape[d] : 1;
      }
    }
    for (size_t t = 0; small && t < input_count; t++)
      assert_non_null(x[t].data = calloc(1, x[t].size + 1));
    for (size_t t = 0; small && t < output_count; t++)
      y[t].dtype = outputs[t].dtype;
    struct tandem_run_desc run = {.struct_size = sizeof(run),
                                  .inputs = x,
                                  .input_count = input_count,
                                  .outputs = y,
                                  .output_count = output_count};
    if (runs && small && tandem_method_run(method, &run, &error) == TANDEM_OK) {
      for (size_t t = 0; t < output_count; t++)
        for (size_t b = 0; b < y[t].size; b++)
          sum += ((const unsigned char *)y[t].data)[b];
      ran++;
    }
    for (size_t t = 0; small && t < input_count; t++)
      free(x[t].data);
    tandem_method_destroy(method);
  }
  tandem_program_destroy(program);
  alarm(0);
}

static unsigned char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  unsigned char *bytes = malloc(*size);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, *size, file), *size);
  fclose(file);
  return bytes;
}

/* A block that ends where its bytes do, so that a sanitizer sees the first byte read past them. */
static void use_bytes(const unsigned char *bytes, size_t size, bool runs) {
  unsigned char *copy = NULL;
  assert_int_equal(posix_memalign((void **)&copy, 64, size), 0);
  memcpy(copy, bytes, size);
  struct tandem_program_desc desc = {.struct_size = sizeof(desc), .bytes = copy, .size = size};
  use(&desc, runs);
  free(copy);
}

static const unsigned char masks[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff};

static void edit_every_byte(const char *name, bool runs) {
  size_t size;
  unsigned char *bytes = read_file(data_path(name), &size);
  ran = refused = 0;
  for (size_t i = 0; i < size; i++)
    for (size_t m = 0; m < sizeof(masks); m++) {
      snprintf(under_test, sizeof(under_test), "%s: byte %zu ^ 0x%02x", name, i, masks[m]);
      bytes[i] ^= masks[m];
      use_bytes(bytes, size, runs);
      bytes[i] ^= masks[m];
    }
  print_message("%s: %d runs, %d refusals\n", name, ran, refused);
  assert_true(refused > 0);
  assert_true(!runs || ran > 0);
  ran = refused = 0;
  use_bytes(bytes, size, true);
  assert_true(ran > 0);
  assert_int_equal(refused, 0);
  free(bytes);
}

static void a_program_with_one_edited_byte_is_answered(void **state) {
  (void)state;
  edit_every_byte("demo_affine.pte", true);
}

static void a_program_of_kernels_with_one_edited_byte_is_answered(void **state) {
  (void)state;
  edit_every_byte("linear.pte", false);
}

static void a_program_cut_short_is_answered(void **state) {
  (void)state;
  const char *names[] = {"demo_affine.pte", "demo_methods.pte", "linear.pte"};
  for (size_t n = 0; n < 3; n++) {
    size_t size;
    unsigned char *bytes = read_file(data_path(names[n]), &size);
    for (size_t length = 1; length <= size; length++) {
      snprintf(under_test, sizeof(under_test), "%s: %zu bytes of %zu", names[n], length, size);
      use_bytes(bytes, length, true);
    }
    free(bytes);
  }
}

/* Data files come by path only: one in memory has one too. */
static void edit_data(const char *program, const char *data, bool read) {
  char path[64];
  int file = memfd_create("edited.ptd", MFD_CLOEXEC);
  assert_true(file >= 0);
  snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
  size_t size;
  unsigned char *bytes = read_file(data_path(data), &size);
  const char *paths[1] = {path};
  struct tandem_program_desc desc = {.struct_size = sizeof(desc),
                                     .path = data_path(program),
                                     .data_paths = paths,
                                     .data_path_count = 1,
                                     .read = read};
  ran = refused = 0;
  for (size_t i = 0; i < size; i++)
    for (size_t m = 0; m < sizeof(masks); m++) {
      snprintf(under_test, sizeof(under_test), "%s: byte %zu ^ 0x%02x", data, i, masks[m]);
      bytes[i] ^= masks[m];
      assert_int_equal(pwrite(file, bytes, size, 0), size);
      use(&desc, true);
      bytes[i] ^= masks[m];
    }
  assert_int_equal(pwrite(file, bytes, size, 0), size);
  for (size_t length = size; length-- > 0;) {
    snprintf(under_test, sizeof(under_test), "%s: %zu bytes of %zu", data, length, size);
    assert_int_equal(ftruncate(file, (off_t)length), 0);
    use(&desc, true);
  }
  print_message("%s: %d runs, %d refusals\n", data, ran, refused);
  assert_true(ran > 0);
  assert_true(refused > 0);
  close(file);
  free(bytes);
}

static void a_damaged_data_file_is_answered(void **state) {
  (void)state;
  edit_data("demo_named.pte", "demo_named.ptd", false);
  edit_data("linear_external.pte", "linear_external.ptd", true);
}

static void ignore_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  (void)level;
  (void)line;
}

static int set_up(void **state) {
  (void)state;
  signal(SIGALRM, tell);
  tandem_set_log_sink(ignore_line, NULL);
  struct tandem_error error;
  return tandem_vendor_register(&demo_vendor, &error) == TANDEM_OK &&
                 tandem_executorch_register(&error) == TANDEM_OK
             ? 0
             : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_program_with_one_edited_byte_is_answered),
      cmocka_unit_test(a_program_of_kernels_with_one_edited_byte_is_answered),
      cmocka_unit_test(a_program_cut_short_is_answered),
      cmocka_unit_test(a_damaged_data_file_is_answered),
  };
  return cmocka_run_group_tests(tests, set_up, NULL);
}
