/* Status names, errors and last reasons: whole in one place, cut visibly in the other, whatever memory does.
 */
#include "base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONG = 5000 };

static char *long_text(void) {
  static char text[LONG + 1];
  for (int i = 0; i < LONG; i++)
    text[i] = (char)('a' + i % 26);
  return text;
}

static void every_status_has_its_name_and_text(void **state) {
  (void)state;
  int count = 0;
#define CHECK(name, number, text, executorch, python)                                                        \
  assert_int_equal(TANDEM_##name, number);                                                                   \
  assert_string_equal(tandem_status_name(TANDEM_##name), #name);                                             \
  assert_string_equal(tandem_status_text(TANDEM_##name), text);                                              \
  assert_int_equal(count, number);                                                                           \
  count++;
  TANDEM_STATUS_TABLE(CHECK)
#undef CHECK
  assert_string_equal(tandem_status_name((enum tandem_status)count), "UNKNOWN");
  assert_string_equal(tandem_status_text((enum tandem_status) - 1), "unknown status");
}

static void every_dtype_has_its_size_and_name(void **state) {
  (void)state;
  static const struct {
    int32_t dtype;
    size_t size;
    const char *name;
  } expected[] = {
      {TANDEM_UINT8, sizeof(uint8_t), "uint8"},
      {TANDEM_INT8, sizeof(int8_t), "int8"},
      {TANDEM_INT16, sizeof(int16_t), "int16"},
      {TANDEM_INT32, sizeof(int32_t), "int32"},
      {TANDEM_INT64, sizeof(int64_t), "int64"},
      {TANDEM_FLOAT16, 2, "float16"},
      {TANDEM_FLOAT32, sizeof(float), "float32"},
      {TANDEM_FLOAT64, sizeof(double), "float64"},
      {TANDEM_BOOL, 1, "bool"},
      {TANDEM_BFLOAT16, 2, "bfloat16"},
      {TANDEM_FLOAT8_E5M2, 1, "float8_e5m2"},
      {TANDEM_FLOAT8_E4M3FN, 1, "float8_e4m3fn"},
      {TANDEM_UINT16, sizeof(uint16_t), "uint16"},
      {TANDEM_UINT32, sizeof(uint32_t), "uint32"},
      {TANDEM_UINT64, sizeof(uint64_t), "uint64"},
  };
  size_t known = 0;
  for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
    assert_int_equal(tandem_dtype_size(expected[i].dtype), expected[i].size);
    assert_string_equal(tandem_dtype_name(expected[i].dtype), expected[i].name);
  }
  for (int32_t dtype = -2; dtype < 64; dtype++)
    known += tandem_dtype_size(dtype) > 0;
  assert_int_equal(known, sizeof(expected) / sizeof(expected[0]));
  assert_int_equal(tandem_dtype_size(8), 0); /* complex half */
  assert_string_equal(tandem_dtype_name(8), "unknown");
}

static void an_error_carries_code_and_sentence(void **state) {
  (void)state;
  struct tandem_error error;
  char reason[64];
  assert_int_equal(td_fail(&error, TANDEM_NOT_FOUND, "no %s at %d", "engine", 7), TANDEM_NOT_FOUND);
  assert_int_equal(error.code, TANDEM_NOT_FOUND);
  assert_string_equal(error.message, "no engine at 7");
  assert_int_equal(tandem_last_reason(reason, sizeof(reason)), strlen("no engine at 7"));
  assert_string_equal(reason, "no engine at 7");
  td_clear(&error);
  assert_int_equal(error.code, TANDEM_OK);
  assert_string_equal(error.message, "");
  td_clear(NULL);
  assert_int_equal(td_fail(NULL, TANDEM_INTERNAL, "no error given"), TANDEM_INTERNAL);
  tandem_last_reason(reason, sizeof(reason));
  assert_string_equal(reason, "no error given");
  assert_int_equal(tandem_fail(&error, TANDEM_UNSUPPORTED, "from %s", "outside"), TANDEM_UNSUPPORTED);
  assert_int_equal(error.code, TANDEM_UNSUPPORTED);
  assert_string_equal(error.message, "from outside");
  tandem_last_reason(reason, sizeof(reason));
  assert_string_equal(reason, "from outside");
}

static void an_error_is_one_line_whatever_it_quotes(void **state) {
  (void)state;
  struct tandem_error error;
  char whole[LONG + 32];
  td_fail(&error, TANDEM_BAD_OPTION, "found '%s'", "a\nb\r\nc");
  assert_string_equal(error.message, "found 'a b  c'");
  tandem_last_reason(whole, sizeof(whole));
  assert_string_equal(whole, "found 'a b  c'");
  td_fail(&error, TANDEM_BAD_OPTION, "found '%s'", "\x1b[31m\tred\a\x7f\x01 caf\xc3\xa9");
  assert_string_equal(error.message, "found ' [31m red    caf\xc3\xa9'");
  tandem_fail(&error, TANDEM_BAD_OPTION, "from\n%s", "outside");
  assert_string_equal(error.message, "from outside");
  td_fail(&error, TANDEM_BAD_OPTION, "%s\nend\r", long_text()); /* too long for the error */
  assert_null(strpbrk(error.message, "\r\n"));
  assert_int_equal(tandem_last_reason(whole, sizeof(whole)), strlen(long_text()) + strlen(" end "));
  assert_null(strpbrk(whole, "\r\n"));
  assert_string_equal(whole + strlen(long_text()), " end ");
}

static void a_message_may_quote_the_error_it_goes_to(void **state) {
  (void)state;
  struct tandem_error error;
  td_fail(&error, TANDEM_BAD_PROGRAM, "offset 12 is odd");
  td_fail(&error, error.code, "parse: %s", error.message);
  assert_int_equal(error.code, TANDEM_BAD_PROGRAM);
  assert_string_equal(error.message, "parse: offset 12 is odd");
}

static void a_long_message_is_cut_in_the_error_and_whole_in_the_reason(void **state) {
  (void)state;
  struct tandem_error error;
  char whole[LONG + 16], part[11];
  td_fail(&error, TANDEM_INTERNAL, "%s", long_text());
  assert_int_equal(strlen(error.message), sizeof(error.message) - 1);
  assert_string_equal(error.message + sizeof(error.message) - 4, "...");
  assert_memory_equal(error.message, long_text(), sizeof(error.message) - 4);
  assert_int_equal(tandem_last_reason(whole, sizeof(whole)), LONG);
  assert_string_equal(whole, long_text());
  assert_int_equal(tandem_last_reason(part, sizeof(part)), LONG);
  assert_string_equal(part, "abcdefghij");
  assert_int_equal(tandem_last_reason(NULL, 0), LONG);
  part[0] = 'x';
  assert_int_equal(tandem_last_reason(part, 0), LONG);
  assert_int_equal(part[0], 'x');

  uint64_t live = td_memory_live();
  td_fail(&error, TANDEM_INTERNAL, "short");
  assert_int_equal(td_memory_live(), live - 1);
}

static void the_longest_message_that_fits_is_not_cut(void **state) {
  (void)state;
  struct tandem_error error;
  int most = (int)sizeof(error.message) - 1;
  td_fail(&error, TANDEM_INTERNAL, "%.*s", most, long_text());
  assert_int_equal(strlen(error.message), most);
  assert_memory_equal(error.message, long_text(), (size_t)most);
  td_fail(&error, TANDEM_INTERNAL, "%.*s", most + 1, long_text());
  assert_string_equal(error.message + most - 3, "...");
  td_fail(&error, TANDEM_INTERNAL, "short");
}

static void a_cut_never_splits_a_character(void **state) {
  (void)state;
  struct tandem_error error;
  for (int shift = 0; shift < 4; shift++) {
    char text[2048] = "";
    for (int i = 0; i < shift; i++)
      strcat(text, "x");
    while (strlen(text) < 1500)
      strcat(text, "\xf0\x9f\xa4\x96");
    td_fail(&error, TANDEM_INTERNAL, "%s", text);
    size_t kept = strlen(error.message) - 3;
    assert_string_equal(error.message + kept, "...");
    assert_int_equal((kept - (size_t)shift) % 4, 0);
    assert_true(kept > sizeof(error.message) - 8);
  }
  td_fail(&error, TANDEM_INTERNAL, "%s", "");
  char blanks[1500];
  memset(blanks, 0x80, sizeof(blanks) - 1);
  blanks[sizeof(blanks) - 1] = '\0';
  td_fail(&error, TANDEM_INTERNAL, "%s", blanks);
  assert_string_equal(error.message, "...");
  td_fail(&error, TANDEM_INTERNAL, "short");
}

static void without_memory_the_error_is_still_filled(void **state) {
  (void)state;
  struct tandem_error error;
  char whole[LONG + 16];
  td_memory_fail_at(1);
  td_fail(&error, TANDEM_OUT_OF_MEMORY, "%s", long_text());
  td_memory_fail_at(0);
  assert_int_equal(error.code, TANDEM_OUT_OF_MEMORY);
  assert_string_equal(error.message + sizeof(error.message) - 4, "...");
  assert_int_equal(tandem_last_reason(whole, sizeof(whole)), strlen(error.message));
  assert_string_equal(whole, error.message);
}

static void a_text_that_cannot_be_formatted_leaves_the_status_text(void **state) {
  (void)state;
  struct tandem_error error;
  td_fail(&error, TANDEM_DEVICE_LOST, "%ls", L"\x4e00");
  assert_int_equal(error.code, TANDEM_DEVICE_LOST);
  assert_string_equal(error.message, "device lost");
}

static void *fail_at_length(void *argument) {
  char reason[8];
  size_t before = tandem_last_reason(reason, sizeof(reason));
  td_fail(NULL, TANDEM_INTERNAL, "%s", long_text());
  *(size_t *)argument = before;
  return NULL;
}

static void a_reason_belongs_to_its_thread_and_dies_with_it(void **state) {
  (void)state;
  td_fail(NULL, TANDEM_INTERNAL, "of the main thread");
  uint64_t live = td_memory_live();
  size_t before = 1;
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, fail_at_length, &before), 0);
  pthread_join(thread, NULL);
  assert_int_equal(before, 0);
  assert_int_equal(td_memory_live(), live);
  char reason[32];
  tandem_last_reason(reason, sizeof(reason));
  assert_string_equal(reason, "of the main thread");
}

/* Before any other test: the library takes its key once. */
static void without_a_thread_key_a_long_reason_is_cut_and_nothing_leaks(void **state) {
  (void)state;
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    pthread_key_t key;
    while (pthread_key_create(&key, NULL) == 0)
      continue;
    struct tandem_error error;
    td_fail(&error, TANDEM_INTERNAL, "%s", long_text());
    exit(tandem_last_reason(NULL, 0) == strlen(error.message) && td_memory_live() == 0 ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_version_is_the_header_s(void **state) {
  (void)state;
  assert_string_equal(tandem_version(), TANDEM_VERSION);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_a_thread_key_a_long_reason_is_cut_and_nothing_leaks),
      cmocka_unit_test(every_status_has_its_name_and_text),
      cmocka_unit_test(every_dtype_has_its_size_and_name),
      cmocka_unit_test(an_error_carries_code_and_sentence),
      cmocka_unit_test(an_error_is_one_line_whatever_it_quotes),
      cmocka_unit_test(a_message_may_quote_the_error_it_goes_to),
      cmocka_unit_test(a_long_message_is_cut_in_the_error_and_whole_in_the_reason),
      cmocka_unit_test(the_longest_message_that_fits_is_not_cut),
      cmocka_unit_test(a_cut_never_splits_a_character),
      cmocka_unit_test(without_memory_the_error_is_still_filled),
      cmocka_unit_test(a_text_that_cannot_be_formatted_leaves_the_status_text),
      cmocka_unit_test(a_reason_belongs_to_its_thread_and_dies_with_it),
      cmocka_unit_test(the_version_is_the_header_s),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
