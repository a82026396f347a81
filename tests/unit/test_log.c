/* Lines of vendors: kept in order and within bounds, labelled, delivered after the call with nothing locked.
 */
#include "base.h"
#include "bound.h"
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct fake_vendor *fake, *other;
static struct fake_model model = {.rank = 1, .min = {4}, .max = {4}, .cost = 10, .seed = 1};
static void *payload;
static size_t size;

static int begin(void **state) {
  (void)state;
  fake_vendor_reset(fake);
  fake_vendor_reset(other);
  scene_watch_log(NULL, NULL);
  scene_watch_waits(NULL, NULL);
  return tandem_set_option(NULL, "log_level", "info", NULL) == TANDEM_OK ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  bound_set("", 0);
  return scene_stats().engines == 0 ? 0 : -1;
}

static struct scene_load load_labelled(const char *label) {
  struct scene_load load = scene_load(fake, payload, size, NULL);
  load.label = label;
  return load;
}

static void lines_keep_their_order_and_name_their_load(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_PARSE, TANDEM_LOG_INFO, TANDEM_OK, "line one", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "line two", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_INFO, TANDEM_OK, "line three", 1, false);
  fake_say(fake, FAKE_CONTEXT_CREATE, TANDEM_LOG_INFO, TANDEM_OK, "line four", 1, false);
  struct scene_load load = load_labelled("the left arm");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OK);
  static const char *const texts[] = {"line one", "line two", "line three", "line four"};
  int at = 0;
  for (int i = 0; i < 4; i++) {
    at = scene_find_line(texts[i], at);
    assert_true(at >= 0);
    assert_ptr_equal(strstr(scene_line(at), "the left arm: "), scene_line(at));
    assert_non_null(strstr(scene_line(at), "fake"));
    assert_int_equal(scene_line_level(at), i == 1 ? TANDEM_LOG_WARNING : TANDEM_LOG_INFO);
  }
  scene_destroy(&load);
}

static void a_load_without_a_label_is_named_by_its_number(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "hello", 1, false);
  struct scene_load load = load_labelled(NULL);
  scene_make(&load);
  char label[64];
  snprintf(label, sizeof label, "load %llu: ", (unsigned long long)scene_info(&load).id);
  int at = scene_find_line("hello", 0);
  assert_true(at >= 0);
  assert_ptr_equal(strstr(scene_line(at), label), scene_line(at));
  scene_destroy(&load);
}

static unsigned engines_when_told;

static void note_engines(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  (void)level;
  if (strstr(line, "hello"))
    engines_when_told = (unsigned)scene_stats().engines + 1;
}

static void lines_come_after_the_entry_was_published_withdrawn_or_removed(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "hello", 1, false);
  fake_say(fake, FAKE_ENGINE_DESTROY, TANDEM_LOG_WARNING, TANDEM_OK, "hello", 1, false);
  scene_watch_log(note_engines, NULL);
  struct scene_load load = load_labelled("l");
  engines_when_told = 0;
  scene_make(&load);
  assert_int_equal(engines_when_told, 2); /* one engine */
  engines_when_told = 0;
  scene_destroy(&load);
  assert_int_equal(engines_when_told, 1); /* none */
  engines_when_told = 0;
  fake_fail_at(fake, FAKE_BUILD, 1, 1, TANDEM_BAD_PROGRAM, "no");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_BAD_PROGRAM);
  assert_int_equal(engines_when_told, 1);
  scene_watch_log(NULL, NULL);
}

static void what_is_over_the_bound_is_dropped_and_counted(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "chatter", 700, false);
  uint64_t before = scene_stats().log_lines_dropped;
  struct scene_load load = load_labelled("l");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OK);
  size_t kept = 0;
  for (int at = 0; (at = scene_find_line("chatter", at)) >= 0; at++)
    kept++;
  uint64_t dropped = scene_stats().log_lines_dropped - before;
  assert_true(kept > 0 && kept < 700);
  assert_true(dropped >= 700 - kept);
  char count[32];
  snprintf(count, sizeof count, "%llu log lines", (unsigned long long)dropped);
  assert_true(scene_find_line(count, 0) >= 0);
  scene_destroy(&load);
}

static void a_long_line_is_cut_and_a_line_stays_one_line(void **state) {
  (void)state;
  BOUND(20);
  char *text = malloc(10000);
  assert_non_null(text);
  memset(text, 'x', 9999);
  text[9999] = 0;
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, text, 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "two\nlines\n", 1, false);
  struct scene_load load = load_labelled("l");
  scene_make(&load);
  int at = scene_find_line("xxxx", 0);
  assert_true(at >= 0 && strlen(scene_line(at)) < 9999);
  at = scene_find_line("two", 0);
  assert_true(at >= 0);
  assert_null(strchr(scene_line(at), '\n'));
  assert_non_null(strstr(scene_line(at), "lines"));
  scene_destroy(&load);
  fake_vendor_reset(fake);
  free(text);
}

static void a_line_of_the_vendors_own_thread_names_the_only_load_under_way(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "from a thread", 1, true);
  struct scene_load load = load_labelled("only");
  scene_make(&load);
  int at = scene_find_line("from a thread", 0);
  assert_true(at >= 0);
  assert_non_null(strstr(scene_line(at), "only: "));
  scene_destroy(&load);
}

static void a_line_of_the_vendors_own_thread_names_the_vendor_when_two_loads_are_under_way(void **state) {
  (void)state;
  BOUND(20);
  struct fake_model second = model;
  second.seed = 2;
  size_t second_size;
  void *second_payload = fake_payload_create(&second, &second_size);
  struct scene_load one = load_labelled("one"), two = scene_load(fake, second_payload, second_size, NULL);
  two.label = "two";
  struct scene_latch latch;
  scene_latch_init(&latch);
  fake_call_back(fake, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&one);
  assert_true(fake_wait_inside(fake, FAKE_BUILD, 1));
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "from a thread", 1, true);
  scene_make(&two);
  int at = scene_find_line("from a thread", 0);
  assert_true(at >= 0);
  assert_null(strstr(scene_line(at), "one: "));
  assert_null(strstr(scene_line(at), "two: "));
  assert_non_null(strstr(scene_line(at), "fake"));
  scene_latch_open(&latch);
  scene_join(&one);
  scene_destroy(&one);
  scene_destroy(&two);
  free(second_payload);
}

static void say_outside(void *user) {
  (void)user;
  td_log_vendor(fake_vendor_table(other), TANDEM_LOG_WARNING, TANDEM_OK, "of another vendor");
}

static void *say_outside_there(void *user) {
  say_outside(user);
  return NULL;
}

static void say_on_another_thread(void *user) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, say_outside_there, user) == 0)
    pthread_join(thread, NULL);
}

static void a_line_of_another_vendors_thread_does_not_name_the_load(void **state) {
  (void)state;
  BOUND(20);
  fake_call_back(fake, FAKE_BUILD, 1, say_on_another_thread, NULL);
  struct scene_load load = load_labelled("mine");
  scene_make(&load);
  int at = scene_find_line("of another vendor", 0);
  assert_true(at >= 0);
  assert_null(strstr(scene_line(at), "mine: "));
  assert_non_null(strstr(scene_line(at), "other-fake"));
  scene_destroy(&load);
}

static void a_line_outside_any_call_comes_with_the_next_delivery(void **state) {
  (void)state;
  BOUND(20);
  say_outside(NULL);
  assert_int_equal(scene_find_line("of another vendor", 0), -1);
  struct scene_load load = load_labelled("l");
  scene_make(&load);
  assert_true(scene_find_line("of another vendor", 0) >= 0);
  scene_destroy(&load);
}

static void the_level_of_a_load_decides_about_its_lines(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_ERROR, TANDEM_OK, "an error", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "a warning", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_INFO, TANDEM_OK, "an info", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_DEBUG, TANDEM_OK, "a debug", 1, false);
  static const char *const levels[] = {"error", "warning", "info", "debug"};
  static const char *const texts[] = {"an error", "a warning", "an info", "a debug"};
  for (int level = 0; level < 4; level++) {
    scene_clear_log();
    struct scene_load load = scene_load(fake, payload, size, "log_level", levels[level], NULL);
    scene_make(&load);
    for (int text = 0; text < 4; text++)
      assert_int_equal(scene_find_line(texts[text], 0) >= 0, text <= level);
    scene_destroy(&load);
  }
}

static void an_error_line_is_the_first_thing_in_the_error(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "a warning", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_ERROR, TANDEM_OK, "the decisive line", 1, false);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_ERROR, TANDEM_OK, "a later line", 1, false);
  fake_fail_at(fake, FAKE_BUILD, 1, 1, TANDEM_UNSUPPORTED, "what the code says");
  struct scene_load load = load_labelled("l");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_UNSUPPORTED);
  char *decisive = strstr(load.error.message, "the decisive line");
  char *own = strstr(load.error.message, "what the code says");
  assert_true(decisive && own && decisive < own);
  assert_null(strstr(load.error.message, "a later line"));
  assert_null(strstr(load.error.message, "a warning"));
}

/* What goes to stderr while `load` is made. Owned. */
static char *stderr_of(struct scene_load *load) {
  fflush(stderr);
  FILE *file = tmpfile();
  assert_non_null(file);
  int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  scene_make(load);
  scene_destroy(load);
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  char *text = calloc(1, 65536);
  assert_non_null(text);
  rewind(file);
  size_t length = fread(text, 1, 65535, file);
  text[length] = 0;
  fclose(file);
  return text;
}

static void without_a_sink_lines_go_to_stderr(void **state) {
  (void)state;
  BOUND(20);
  tandem_set_log_sink(NULL, NULL);
  fake_say(fake, FAKE_BUILD, TANDEM_LOG_WARNING, TANDEM_OK, "a warning", 1, false);
  struct scene_load load = load_labelled("shown");
  char *text = stderr_of(&load);
  assert_non_null(strstr(text, "tandem: warning: shown: "));
  assert_non_null(strstr(text, "a warning\n"));
  free(text);
}

static unsigned lines_when_inside;

static void look_at_stderr(void *user) {
  (void)user;
  off_t length = lseek(STDERR_FILENO, 0, SEEK_CUR);
  lines_when_inside = length > 0;
}

static void direct_lines_are_on_stderr_at_once_and_only_once(void **state) {
  (void)state;
  BOUND(20);
  tandem_set_log_sink(NULL, NULL);
  setenv("TANDEM_LOG_DIRECT", "1", 1);
  fake_say(fake, FAKE_PARSE, TANDEM_LOG_WARNING, TANDEM_OK, "before the crash", 1, false);
  fake_call_back(fake, FAKE_BUILD, 1, look_at_stderr, NULL);
  struct scene_load load = load_labelled("l");
  char *text = stderr_of(&load);
  unsetenv("TANDEM_LOG_DIRECT");
  assert_int_equal(lines_when_inside, 1);
  char *first = strstr(text, "before the crash");
  assert_non_null(first);
  assert_null(strstr(first + 1, "before the crash"));
  free(text);
}

static void lines_of_runs_are_delivered_too(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_RUN, TANDEM_LOG_WARNING, TANDEM_OK, "in a run", 1, false);
  fake_say(fake, FAKE_RESET, TANDEM_LOG_WARNING, TANDEM_OK, "in a reset", 1, false);
  struct scene_load load = load_labelled("runs");
  scene_make(&load);
  assert_true(scene_runs(&load, &model, 0));
  int at = scene_find_line("in a run", 0);
  assert_true(at >= 0);
  assert_non_null(strstr(scene_line(at), "runs: "));
  assert_int_equal(tandem_load_reset(load.load, NULL), TANDEM_OK);
  assert_true(scene_find_line("in a reset", 0) >= 0);
  scene_destroy(&load);
}

static struct scene_load doomed;

static void destroy_doomed(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  (void)level;
  if (strstr(line, "last words"))
    scene_destroy(&doomed);
}

static void the_sink_may_destroy_the_load_that_told_the_line(void **state) {
  (void)state;
  BOUND(20);
  fake_say(fake, FAKE_RUN, TANDEM_LOG_WARNING, TANDEM_OK, "last words", 1, false);
  scene_watch_log(destroy_doomed, NULL);
  doomed = load_labelled("doomed");
  scene_make(&doomed);
  assert_true(scene_runs(&doomed, &model, 0));
  assert_null(doomed.load);
  scene_watch_log(NULL, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  fake = fake_vendor_create("fake", "FakeBackend", 0);
  other = fake_vendor_create("other-fake", "OtherBackend", 0);
  payload = fake_payload_create(&model, &size);
  if (!fake || !other || !payload)
    return 1;
  const struct CMUnitTest tests[] = {
      TEST(lines_keep_their_order_and_name_their_load),
      TEST(a_load_without_a_label_is_named_by_its_number),
      TEST(lines_come_after_the_entry_was_published_withdrawn_or_removed),
      TEST(what_is_over_the_bound_is_dropped_and_counted),
      TEST(a_long_line_is_cut_and_a_line_stays_one_line),
      TEST(a_line_of_the_vendors_own_thread_names_the_only_load_under_way),
      TEST(a_line_of_the_vendors_own_thread_names_the_vendor_when_two_loads_are_under_way),
      TEST(a_line_of_another_vendors_thread_does_not_name_the_load),
      TEST(a_line_outside_any_call_comes_with_the_next_delivery),
      TEST(the_level_of_a_load_decides_about_its_lines),
      TEST(an_error_line_is_the_first_thing_in_the_error),
      TEST(without_a_sink_lines_go_to_stderr),
      TEST(direct_lines_are_on_stderr_at_once_and_only_once),
      TEST(lines_of_runs_are_delivered_too),
      TEST(the_sink_may_destroy_the_load_that_told_the_line),
  };
  int failed = cmocka_run_group_tests_name("log", tests, NULL, NULL);
  scene_clear_log();
  free(payload);
  return failed ? 1 : 0;
}
