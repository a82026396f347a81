/* The public view of the counters. What they count is tested with the pool. */
#include "base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void a_process_without_loads_has_zeroes(void **state) {
  (void)state;
  struct tandem_stats stats;
  struct tandem_error error;
  memset(&stats, 0xA5, sizeof stats);
  stats.struct_size = sizeof stats;
  assert_int_equal(tandem_stats_get(&stats, &error), TANDEM_OK);
  assert_int_equal(error.code, TANDEM_OK);
  assert_int_equal(stats.struct_size, sizeof stats);
  assert_true(stats.engines == 0 && stats.loads == 0 && stats.builds == 0 && stats.hits == 0);
  assert_true(stats.joined == 0 && stats.fallbacks == 0 && stats.failures == 0);
  assert_true(stats.bytes_held == 0 && stats.bytes_saved == 0 && !stats.bytes_estimated);
  assert_true(stats.digest_seconds == 0 && stats.build_seconds == 0 && stats.log_lines_dropped == 0);
}

static void an_unknown_size_is_refused_and_both_are_named(void **state) {
  (void)state;
  struct tandem_stats stats = {.struct_size = 3};
  struct tandem_error error;
  assert_int_equal(tandem_stats_get(&stats, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(error.code, TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "3"));
  assert_int_equal(tandem_stats_get(NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_stats_get(NULL, NULL), TANDEM_INVALID_ARGUMENT);
}

static void a_load_of_no_vendor_counts_as_a_failure(void **state) {
  (void)state;
  struct tandem_stats before = {.struct_size = sizeof before}, after = before;
  struct tandem_load_desc desc = {.struct_size = sizeof desc, .backend = "no such backend"};
  struct tandem_load *load = NULL;
  assert_int_equal(tandem_stats_get(&before, NULL), TANDEM_OK);
  assert_int_equal(tandem_load_create(&desc, &load, NULL), TANDEM_NOT_FOUND);
  assert_null(load);
  assert_int_equal(tandem_stats_get(&after, NULL), TANDEM_OK);
  assert_int_equal(after.failures, before.failures + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_process_without_loads_has_zeroes),
                                     cmocka_unit_test(an_unknown_size_is_refused_and_both_are_named),
                                     cmocka_unit_test(a_load_of_no_vendor_counts_as_a_failure)};
  return cmocka_run_group_tests_name("stats", tests, NULL, NULL) ? 1 : 0;
}
