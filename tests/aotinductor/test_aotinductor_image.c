/* The edited copy of an engine's library, on this processor and with its loader: no torch is needed. */
#include "aotinductor.h"

#include "base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int answer_one(int question) {
  return question + 1;
}

static int answer_two(int question) {
  return question + 2;
}

typedef int (*answer_fn)(int);

/* The program exports it: a copy that looked for its helper by name would find this one. */
__attribute__((visibility("default"))) int helper(int question);
int helper(int question) {
  return 1000 * question;
}

static answer_fn open_copy(answer_fn answer, void **copy) {
  static unsigned char bytes[1 << 20];
  FILE *file = fopen(IMAGE_LIBRARY, "rb");
  assert_non_null(file);
  size_t size = fread(bytes, 1, sizeof bytes, file);
  fclose(file);
  assert_true(size > 0 && size < sizeof bytes);
  struct td_aoti_hook hook = {.name = "aoti_torch_answer"};
  memcpy(&hook.address, &answer, sizeof answer);
  struct tandem_error error = {0};
  if (td_aoti_open_image(bytes, size, NULL, &hook, 1, copy, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  memset(bytes, 0, sizeof bytes); /* the copy is its own */
  void *entry = td_host.library_symbol(*copy, "AOTInductorAsk");
  assert_non_null(entry);
  answer_fn ask;
  memcpy(&ask, &entry, sizeof entry);
  return ask;
}

static void each_copy_calls_its_own_hook_and_its_own_functions(void **state) {
  (void)state;
  void *one = NULL, *two = NULL;
  answer_fn ask_one = open_copy(answer_one, &one), ask_two = open_copy(answer_two, &two);
  assert_ptr_not_equal(one, two);
  assert_int_equal(ask_one(5), 51);
  assert_int_equal(ask_two(5), 52);
  assert_null(td_host.library_symbol(one, "helper")); /* hidden */
  td_host.library_close(one);
  assert_int_equal(ask_two(6), 62);
  td_host.library_close(two);
}

static bool is_stack_executable(void) {
  char line[4096];
  bool executable = false, seen = false;
  FILE *file = fopen("/proc/self/maps", "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL)
    if (strstr(line, "[stack]") != NULL) {
      const char *rights = strchr(line, ' ');
      assert_non_null(rights);
      seen = true;
      executable = executable || rights[3] == 'x';
    }
  fclose(file);
  assert_true(seen);
  return executable;
}

/* The library is linked as one that asks for it. */
static void no_copy_makes_the_stack_executable(void **state) {
  (void)state;
  void *copy = NULL;
  assert_false(is_stack_executable());
  answer_fn ask = open_copy(answer_one, &copy);
  assert_false(is_stack_executable());
  assert_int_equal(ask(5), 51);
  td_host.library_close(copy);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(no_copy_makes_the_stack_executable), /* first: a stack once made so stays so */
      cmocka_unit_test(each_copy_calls_its_own_hook_and_its_own_functions),
  };
  td_aoti_set_host(&td_host);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
