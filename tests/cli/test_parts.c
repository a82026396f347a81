/* Command lines, seeded inputs, digests of outputs and the measure of private memory. */
#include "cli.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* ---------------------------------------------------------------- command lines */

struct parsed {
  bool json;
  const char *text, *positional;
  uint64_t number;
  struct td_text_list list;
};

static int parse(struct parsed *parsed, int count, char **arguments) {
  const struct td_usage usage = {"try", "THING", "help\n"};
  const struct td_flag flags[] = {
      {"--json", TD_FLAG_SWITCH, &parsed->json, 0, 0},
      {"--text", TD_FLAG_TEXT, &parsed->text, 0, 0},
      {"--number", TD_FLAG_COUNT, &parsed->number, 2, 9},
      {"--list", TD_FLAG_LIST, &parsed->list, 0, 0},
  };
  *parsed = (struct parsed){.number = 5};
  return td_args_parse(&usage, flags, 4, count, arguments, &parsed->positional);
}

#define PARSE(parsed, ...)                                                                                   \
  parse(parsed, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static void values_come_after_a_space_or_an_equals_sign(void **state) {
  struct parsed parsed;
  (void)state;
  assert_int_equal(PARSE(&parsed, "--number", "7", "--text=a=b", "x", "--list", "1", "--list=2", "--json"),
                   TD_ARGS_GO);
  assert_true(parsed.json);
  assert_int_equal(parsed.number, 7);
  assert_string_equal(parsed.text, "a=b");
  assert_string_equal(parsed.positional, "x");
  assert_int_equal(parsed.list.count, 2);
  assert_string_equal(parsed.list.items[1], "2");
  td_text_list_fini(&parsed.list);
}

static void two_dashes_end_the_options(void **state) {
  struct parsed parsed;
  (void)state;
  assert_int_equal(PARSE(&parsed, "--json", "--", "--text"), TD_ARGS_GO);
  assert_string_equal(parsed.positional, "--text");
}

static void wrong_calls_end_with_two(void **state) {
  struct parsed parsed;
  (void)state;
  assert_int_equal(PARSE(&parsed, "--json"), TD_EXIT_USAGE);
  assert_int_equal(PARSE(&parsed, "a", "b"), TD_EXIT_USAGE);
  assert_int_equal(PARSE(&parsed, "a", "--jso"), TD_EXIT_USAGE);
  assert_int_equal(PARSE(&parsed, "a", "--jsonx"), TD_EXIT_USAGE);
  assert_int_equal(PARSE(&parsed, "a", "--json=1"), TD_EXIT_USAGE);
  assert_int_equal(PARSE(&parsed, "a", "--text"), TD_EXIT_USAGE);
  char *numbers[] = {"", "1", "10", "-3", "+3", "3 ", "0x3", "99999999999999999999999"};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    assert_int_equal(PARSE(&parsed, "a", "--number", numbers[i]), TD_EXIT_USAGE);
}

/* ---------------------------------------------------------------- tensors */

static void inputs_are_seeded_alike_and_within_bounds(void **state) {
  static const int32_t dtypes[] = {TANDEM_FLOAT32,  TANDEM_FLOAT64, TANDEM_FLOAT16,
                                   TANDEM_BFLOAT16, TANDEM_INT64,   TANDEM_UINT8,
                                   TANDEM_BOOL,     TANDEM_INT32,   TANDEM_FLOAT8_E5M2};
  (void)state;
  for (size_t k = 0; k < sizeof dtypes / sizeof dtypes[0]; k++) {
    const struct tandem_io io = {.dtype = dtypes[k], .rank = 2, .min = {1, 100}, .max = {INT64_MAX, 100}};
    const struct td_text_list none = {0};
    struct tandem_tensor *a, *b;
    struct tandem_error error = {0};
    assert_int_equal(td_inputs_create(&io, 1, &none, &a, &error), TANDEM_OK);
    assert_int_equal(td_inputs_create(&io, 1, &none, &b, &error), TANDEM_OK);
    assert_int_equal(a->shape[0], 1);
    assert_int_equal(a->size, 100 * tandem_dtype_size(dtypes[k]));
    assert_memory_equal(a->data, b->data, a->size);
    bool varied = false;
    for (size_t i = 0; i < 100; i++) {
      size_t width = tandem_dtype_size(dtypes[k]);
      const unsigned char *at = (const unsigned char *)a->data + i * width;
      varied = varied || memcmp(at, a->data, width) != 0;
      float single;
      double real;
      int64_t whole = 0;
      switch (dtypes[k]) {
      case TANDEM_FLOAT32:
        memcpy(&single, at, sizeof single);
        assert_true(single >= -1 && single <= 1);
        break;
      case TANDEM_FLOAT64:
        memcpy(&real, at, sizeof real);
        assert_true(real >= -1 && real < 1);
        break;
      case TANDEM_FLOAT16: /* |x| <= 1 */
        assert_true(((at[1] & 0x7f) << 8 | at[0]) <= 0x3c00);
        break;
      case TANDEM_BFLOAT16:
        assert_true(((at[1] & 0x7f) << 8 | at[0]) <= 0x3f80);
        break;
      case TANDEM_FLOAT8_E5M2: /* finite */
        assert_true((*at & 0x7c) != 0x7c);
        break;
      default:
        memcpy(&whole, at, width);
        assert_true(whole >= 0 && whole < (dtypes[k] == TANDEM_BOOL ? 2 : 8));
        break;
      }
    }
    assert_true(varied);
    td_inputs_destroy(a, 1);
    td_inputs_destroy(b, 1);
  }
}

static void inputs_that_cannot_be_made_are_refused(void **state) {
  const struct td_text_list none = {0}, one = {(const char *[]){"x.npy"}, 1};
  struct tandem_tensor *tensors;
  struct tandem_error error = {0};
  const struct tandem_io huge = {
      .dtype = TANDEM_FLOAT32, .rank = 2, .min = {1, 1}, .max = {INT64_MAX - 1, INT64_MAX - 1}};
  const struct tandem_io odd = {.dtype = 99, .rank = 1, .min = {1}, .max = {1}};
  (void)state;
  assert_int_equal(td_inputs_create(&huge, 1, &none, &tensors, &error), TANDEM_UNSUPPORTED);
  assert_null(tensors);
  assert_int_equal(td_inputs_create(&odd, 1, &none, &tensors, &error), TANDEM_UNSUPPORTED);
  assert_int_equal(td_inputs_create(NULL, 0, &one, &tensors, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "0 inputs, 1 --input given"));
}

static void the_digest_sees_every_byte_and_the_shape(void **state) {
  unsigned char bytes[37] = {0};
  struct tandem_tensor tensor = {
      .data = bytes, .size = sizeof bytes, .dtype = TANDEM_UINT8, .rank = 1, .shape = {sizeof bytes}};
  uint64_t plain = td_outputs_hash(&tensor, 1);
  (void)state;
  for (size_t i = 0; i < sizeof bytes; i++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[i] ^= (unsigned char)(1 << bit);
      assert_true(td_outputs_hash(&tensor, 1) != plain);
      bytes[i] ^= (unsigned char)(1 << bit);
    }
  assert_true(td_outputs_hash(&tensor, 1) == plain);
  tensor.rank = 2;
  tensor.shape[1] = 1;
  assert_true(td_outputs_hash(&tensor, 1) != plain);
}

/* ---------------------------------------------------------------- memory */

static void private_memory_counts_touched_pages_and_not_files(void **state) {
#ifdef __SANITIZE_THREAD__
  skip(); /* each touched page of a program under it has pages of shadow beside it */
#endif
  enum { SIZE = 32 << 20 };
  (void)state;
  int64_t before = td_memory_private();
  assert_true(before > 0);
  unsigned char *block = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(block, MAP_FAILED);
  assert_true(td_memory_private() - before < 1 << 20);
  memset(block, 1, SIZE);
  int64_t grown = td_memory_private() - before;
  assert_in_range(grown, SIZE - (1 << 20), SIZE + (1 << 20));
  munmap(block, SIZE);
  assert_true(td_memory_private() - before < 1 << 20);

  char path[] = "/tmp/tandem-memory-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0 && unlink(path) == 0 && ftruncate(fd, SIZE) == 0);
  block = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(block, MAP_FAILED);
  memset(block, 1, SIZE);
  assert_true(td_memory_private() - before < 1 << 20);
  munmap(block, SIZE);
  close(fd);
}

static void control_characters_of_names_do_not_reach_a_terminal(void **state) {
  (void)state;
  char text[] = "a\x1b[2Jb\n\t\x7f caf\xc3\xa9";
  assert_string_equal(td_show(text), "a?[2Jb??? caf\xc3\xa9");
  cJSON *document = cJSON_Parse("{\"methods\":[{\"name\":\"for\\u001b[mward\"}],\"k\\u0007\":\"v\",\"n\":3}");
  assert_non_null(document);
  td_show_all(document);
  assert_string_equal(td_text(cJSON_GetArrayItem(cJSON_GetObjectItem(document, "methods"), 0), "name"),
                      "for?[mward");
  assert_string_equal(td_text(document, "k?"), "v");
  assert_true(td_number(document, "n") == 3);
  cJSON_Delete(document);
}

static void bars_are_plain_where_stdout_is_no_terminal(void **state) {
  (void)state;
  if (isatty(STDOUT_FILENO))
    skip();
  assert_string_equal(td_bar(0, 10), "");
  assert_string_equal(td_bar(0.5, 10), "#####");
  assert_string_equal(td_bar(7, 4), "####");
  assert_string_equal(td_bar(-1, 4), "");
}

/* ---------------------------------------------------------------- progress */

/* The first line that progress writes, a second after it began, when `done` of `total` steps are done. */
static void read_progress(uint64_t done, uint64_t total, char *line, size_t size) {
  int ends[2], terminal = dup(STDERR_FILENO);
  assert_true(terminal >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
  td_progress_begin("working", total);
  for (uint64_t i = 0; i < done; i++)
    td_progress_step(NULL);
  ssize_t n = read(ends[0], line, size - 1);
  td_progress_end();
  dup2(terminal, STDERR_FILENO);
  for (int i = 0; i < 2; i++)
    close(ends[i]);
  close(terminal);
  assert_true(n > 0);
  line[n] = 0;
}

static void progress_names_the_step_under_way_and_never_one_too_many(void **state) {
  static const char *const expected[] = {"working: step 1 of 2, ", "working: step 2 of 2, ",
                                         "working: step 2 of 2, "};
  char line[256];
  (void)state;
  for (size_t done = 0; done <= 2; done++) {
    read_progress(done, 2, line, sizeof line);
    line[strlen(expected[done])] = 0;
    assert_string_equal(line, expected[done]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_come_after_a_space_or_an_equals_sign),
      cmocka_unit_test(two_dashes_end_the_options),
      cmocka_unit_test(wrong_calls_end_with_two),
      cmocka_unit_test(inputs_are_seeded_alike_and_within_bounds),
      cmocka_unit_test(inputs_that_cannot_be_made_are_refused),
      cmocka_unit_test(the_digest_sees_every_byte_and_the_shape),
      cmocka_unit_test(private_memory_counts_touched_pages_and_not_files),
      cmocka_unit_test(control_characters_of_names_do_not_reach_a_terminal),
      cmocka_unit_test(bars_are_plain_where_stdout_is_no_terminal),
      cmocka_unit_test(progress_names_the_step_under_way_and_never_one_too_many),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
