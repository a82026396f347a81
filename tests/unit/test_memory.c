/* Allocation: zeroed, counted, and failing exactly where a test says. */
#include "base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

/* Sanitizers end the process instead of returning NULL unless they are told not to. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1";
}
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "allocator_may_return_null=1";
}

static void what_no_system_has_is_refused(void **state) {
  (void)state;
  uint64_t live = td_memory_live();
  volatile size_t size = SIZE_MAX / 2;
  assert_null(td_alloc(size));
  assert_int_equal(td_memory_live(), live);
}

static void a_block_is_zeroed(void **state) {
  (void)state;
  enum { SIZE = 4096 };
  static const unsigned char zeros[SIZE];
  for (int round = 0; round < 4; round++) {
    unsigned char *block = td_alloc(SIZE);
    assert_non_null(block);
    assert_memory_equal(block, zeros, SIZE);
    memset(block, 0xa5, SIZE);
    td_free(block);
  }
}

static void no_bytes_is_a_block_of_its_own(void **state) {
  (void)state;
  void *one = td_alloc(0), *other = td_alloc(0);
  assert_non_null(one);
  assert_non_null(other);
  assert_ptr_not_equal(one, other);
  td_free(one);
  td_free(other);
  td_free(NULL);
}

static void only_the_chosen_allocation_fails(void **state) {
  (void)state;
  uint64_t live = td_memory_live();
  for (uint64_t n = 1; n <= 3; n++) {
    void *blocks[3];
    td_memory_fail_at(n);
    for (uint64_t i = 0; i < 3; i++) {
      blocks[i] = td_alloc(8);
      assert_int_equal(blocks[i] == NULL, i + 1 == n);
    }
    assert_int_equal(td_memory_count(), 3);
    assert_int_equal(td_memory_live(), live + 2);
    for (int i = 0; i < 3; i++)
      td_free(blocks[i]);
    assert_int_equal(td_memory_live(), live);
  }
  td_memory_fail_at(0);
  void *block = td_alloc(8);
  assert_non_null(block);
  td_free(block);
}

static void a_text_is_copied_or_refused(void **state) {
  (void)state;
  char text[] = "policy";
  char *copy = td_text_copy(text);
  assert_non_null(copy);
  text[0] = 'x';
  assert_string_equal(copy, "policy");
  td_free(copy);
  td_memory_fail_at(1);
  assert_null(td_text_copy(text));
  td_memory_fail_at(0);
}

enum { THREADS = 4, ALLOCATIONS = 2000 };
static _Atomic int failures;

static void allocate_often(void *unused) {
  (void)unused;
  for (int i = 0; i < ALLOCATIONS; i++) {
    void *block = td_alloc(16);
    if (!block)
      atomic_fetch_add(&failures, 1);
    td_free(block);
  }
}

static void of_many_threads_one_allocation_fails(void **state) {
  (void)state;
  struct td_thread threads[THREADS];
  td_memory_fail_at(THREADS * ALLOCATIONS / 2);
  for (int i = 0; i < THREADS; i++)
    assert_true(td_thread_start(&threads[i], allocate_often, NULL));
  for (int i = 0; i < THREADS; i++)
    td_thread_join(&threads[i]);
  assert_int_equal(atomic_load(&failures), 1);
  assert_int_equal(td_memory_count(), THREADS * ALLOCATIONS + THREADS);
  td_memory_fail_at(0);
  assert_int_equal(td_memory_live(), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_block_is_zeroed),
      cmocka_unit_test(what_no_system_has_is_refused),
      cmocka_unit_test(no_bytes_is_a_block_of_its_own),
      cmocka_unit_test(only_the_chosen_allocation_fails),
      cmocka_unit_test(a_text_is_copied_or_refused),
      cmocka_unit_test(of_many_threads_one_allocation_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
