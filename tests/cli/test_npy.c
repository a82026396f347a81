/* .npy files: what NumPy writes is read, what is not a tensor here is refused in one line that says where. */
#include "cli.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* A version 1 file of `header` and `data_size` zero bytes; *size is that of the file. */
static unsigned char *make_file(const char *header, size_t data_size, size_t *size) {
  size_t length = strlen(header);
  *size = 10 + length + data_size;
  unsigned char *file = calloc(1, *size);
  assert_non_null(file);
  memcpy(file, "\x93NUMPY\x01\x00", 8);
  file[8] = (unsigned char)length;
  file[9] = (unsigned char)(length >> 8);
  memcpy(file + 10, header, length);
  return file;
}

static enum tandem_status parse(const char *header, size_t data_size, struct td_npy *npy,
                                struct tandem_error *error) {
  size_t size;
  unsigned char *file = make_file(header, data_size, &size);
  enum tandem_status status = td_npy_parse(file, size, "x.npy", npy, error);
  free(file);
  return status;
}

static void every_type_of_numpy_is_read(void **state) {
  static const struct {
    const char *text;
    int32_t dtype;
    size_t size;
  } types[] = {
      {"|u1", TANDEM_UINT8, 1},   {"|i1", TANDEM_INT8, 1},    {"<i2", TANDEM_INT16, 2},
      {"<i4", TANDEM_INT32, 4},   {"<i8", TANDEM_INT64, 8},   {"<f2", TANDEM_FLOAT16, 2},
      {"<f4", TANDEM_FLOAT32, 4}, {"<f8", TANDEM_FLOAT64, 8}, {"|b1", TANDEM_BOOL, 1},
      {"<u2", TANDEM_UINT16, 2},  {"<u4", TANDEM_UINT32, 4},  {"<u8", TANDEM_UINT64, 8},
  };
  (void)state;
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    char header[128];
    struct td_npy npy;
    struct tandem_error error = {0};
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (3, 2), }",
             types[i].text);
    assert_int_equal(parse(header, 6 * types[i].size, &npy, &error), TANDEM_OK);
    assert_int_equal(npy.dtype, types[i].dtype);
    assert_int_equal(npy.rank, 2);
    assert_int_equal(npy.shape[0], 3);
    assert_int_equal(npy.shape[1], 2);
    assert_int_equal(npy.data_size, 6 * types[i].size);
    assert_int_equal(npy.data_offset, 10 + strlen(header));
  }
}

static void keys_come_in_any_order_and_quoting(void **state) {
  struct td_npy npy;
  struct tandem_error error = {0};
  (void)state;
  assert_int_equal(parse("{\"shape\":(4,),\"fortran_order\":False,\"descr\":\"<f4\"}", 16, &npy, &error),
                   TANDEM_OK);
  assert_int_equal(npy.rank, 1);
  assert_int_equal(npy.shape[0], 4);
}

static void scalars_and_empty_tensors_are_read(void **state) {
  struct td_npy npy;
  struct tandem_error error = {0};
  (void)state;
  assert_int_equal(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, &npy, &error),
                   TANDEM_OK);
  assert_int_equal(npy.rank, 0);
  assert_int_equal(parse("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7), }", 0, &npy, &error),
                   TANDEM_OK);
  assert_int_equal(npy.data_size, 0);
}

static void what_is_wrong_is_told_in_one_line(void **state) {
  static const struct {
    const char *header;
    size_t data_size;
    const char *words;
  } cases[] = {
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4,
       "at byte 20 expected a little-endian type out of bool, (u)int8-64, float16-64, found '>f4'"},
      {"{'descr': 'f8\x18\n', 'fortran_order': False, 'shape': (1,), }", 8, "float16-64, found 'f8??'"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", 8, "little-endian type"},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", 8, "little-endian type"},
      {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", 4,
       "expected a quoted text, found '['"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", 4, "C order"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, "expected a digit, found '-'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }", 4, "within 63 bits"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 4,
       "can be addressed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 9223372036854775807), }", 0,
       "can be addressed"},
      {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1), }", 1,
       "at most 16"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4, "needs 8 bytes of data, 4 are there"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 12,
       "needs 8 bytes of data, 12 are there"},
      {"{'descr': '<f4', 'fortran_order': False, }", 4, "'descr', 'fortran_order' and 'shape'"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, "each once"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'more': 1}", 4, "each once"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), } x", 4,
       "nothing after the dictionary, found 'x'"},
      {"{'descr': '<f4", 4, "the closing quote, found the end of the header"},
      {"", 4, "expected '{', found the end of the header"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct td_npy npy;
    struct tandem_error error = {0};
    assert_int_equal(parse(cases[i].header, cases[i].data_size, &npy, &error), TANDEM_INVALID_ARGUMENT);
    assert_int_equal(error.code, TANDEM_INVALID_ARGUMENT);
    if (!strstr(error.message, cases[i].words) || strncmp(error.message, "x.npy: ", 7) != 0)
      fail_msg("for %s\nexpected: %s\nfound: %s", cases[i].header, cases[i].words, error.message);
    assert_null(strchr(error.message, '\n'));
  }
}

static void every_cut_of_a_file_is_refused(void **state) {
  size_t size;
  unsigned char *file = make_file("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24, &size);
  (void)state;
  for (size_t n = 0; n < size; n++) {
    struct td_npy npy;
    struct tandem_error error = {0};
    unsigned char *cut = malloc(n ? n : 1);
    assert_non_null(cut);
    memcpy(cut, file, n);
    assert_int_equal(td_npy_parse(cut, n, "x.npy", &npy, &error), TANDEM_INVALID_ARGUMENT);
    free(cut);
  }
  free(file);
}

static void unknown_versions_are_refused(void **state) {
  size_t size;
  unsigned char *file = make_file("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, &size);
  struct td_npy npy;
  struct tandem_error error = {0};
  (void)state;
  for (unsigned major = 0; major < 256; major += 4) {
    file[6] = (unsigned char)major;
    assert_int_equal(td_npy_parse(file, size, "x.npy", &npy, &error), TANDEM_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "version"));
  }
  free(file);
}

static void what_is_written_is_read_back(void **state) {
  char path[] = "/tmp/tandem-npy-XXXXXX";
  float numbers[6] = {1, -2, 3.5f, 0, 1e30f, -0.f};
  (void)state;
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  for (int32_t rank = 0; rank <= TANDEM_MAX_RANK; rank++) {
    struct tandem_tensor tensor = {
        .data = numbers, .size = sizeof numbers, .dtype = TANDEM_FLOAT32, .rank = rank};
    size_t count = 1;
    for (int32_t i = 0; i < rank; i++)
      count *= (size_t)(tensor.shape[i] = i == rank - 1 ? 3 : i == rank - 2 ? 2 : 1);
    struct td_npy npy;
    struct tandem_error error = {0};
    void *data = NULL;
    assert_int_equal(td_npy_write(path, &tensor, &error), TANDEM_OK);
    assert_int_equal(td_npy_read(path, &npy, &data, &error), TANDEM_OK);
    assert_int_equal(npy.dtype, TANDEM_FLOAT32);
    assert_int_equal(npy.rank, rank);
    assert_memory_equal(npy.shape, tensor.shape, sizeof npy.shape);
    assert_int_equal(npy.data_offset % 64, 0);
    assert_int_equal(npy.data_size, count * sizeof(float));
    assert_memory_equal(data, numbers, npy.data_size);
    free(data);
  }
  unlink(path);
}

static void files_that_cannot_be_read_are_named(void **state) {
  struct td_npy npy;
  struct tandem_error error = {0};
  void *data = &npy;
  (void)state;
  assert_int_equal(td_npy_read("/nowhere/x.npy", &npy, &data, &error), TANDEM_NOT_FOUND);
  assert_null(data);
  assert_non_null(strstr(error.message, "/nowhere/x.npy"));
  assert_int_equal(td_npy_read("/dev/zero", &npy, &data, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "not a regular file"));
  assert_int_equal(td_npy_read("/", &npy, &data, &error), TANDEM_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_type_of_numpy_is_read),
      cmocka_unit_test(keys_come_in_any_order_and_quoting),
      cmocka_unit_test(scalars_and_empty_tensors_are_read),
      cmocka_unit_test(what_is_wrong_is_told_in_one_line),
      cmocka_unit_test(every_cut_of_a_file_is_refused),
      cmocka_unit_test(unknown_versions_are_refused),
      cmocka_unit_test(what_is_written_is_read_back),
      cmocka_unit_test(files_that_cannot_be_read_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
