/* Streams that runs lease (vendors/cuda/stream.c), with a driver that only counts them. */
#include "base.h"

#include "../../vendors/cuda/cuda.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

enum { STREAMS_MAX = 2 * TD_STREAM_IDLE_MAX };

static struct td_cuda_context device;
static char streams[STREAMS_MAX];
static _Atomic int made, destroyed;

static int32_t make_stream(void **stream, uint32_t flags) {
  (void)flags;
  *stream = &streams[made++];
  return TD_CUDA_OK;
}

static int32_t refuse_stream(void **stream, uint32_t flags) {
  (void)stream, (void)flags;
  return TD_CUDA_OUT_OF_MEMORY;
}

static int32_t destroy_stream(void *stream) {
  (void)stream;
  destroyed++;
  return TD_CUDA_OK;
}

static int begin(void **state) {
  (void)state;
  memset(&device, 0, sizeof device);
  made = destroyed = 0;
  td_cuda_set_host(&td_host);
  td_cuda.stream_create = make_stream;
  td_cuda.stream_destroy = destroy_stream;
  return 0;
}

static int end(void **state) {
  (void)state;
  td_stream_fini(&device);
  assert_int_equal(destroyed, made);
  return 0;
}

static void *lease(void) {
  void *stream;
  assert_int_equal(td_stream_lease(&device, &stream), TD_CUDA_OK);
  return stream;
}

static void runs_that_take_turns_have_one_stream_and_those_at_once_one_each(void **state) {
  (void)state;
  void *first = lease();
  td_stream_return(&device, first, true);
  assert_ptr_equal(lease(), first);
  void *second = lease();
  assert_ptr_not_equal(second, first);
  td_stream_return(&device, first, true);
  td_stream_return(&device, second, true);
  assert_ptr_equal(lease(), second); /* the last one first */
  assert_ptr_equal(lease(), first);
  assert_int_equal(made, 2);
  td_stream_return(&device, second, true);
  td_stream_return(&device, first, true);
}

static void a_stream_that_may_be_at_work_goes_to_nobody(void **state) {
  (void)state;
  void *busy = lease();
  td_stream_return(&device, busy, false);
  assert_int_equal(destroyed, 1);
  void *other = lease();
  assert_ptr_not_equal(other, busy);
  td_stream_return(&device, other, true);
}

static void of_a_lost_device_none_is_destroyed(void **state) {
  (void)state;
  void *stream = lease();
  device.lost = 1;
  td_stream_return(&device, stream, false);
  assert_int_equal(destroyed, 0);
  destroyed++; /* with the device */
}

static void a_driver_that_makes_none_is_told(void **state) {
  (void)state;
  void *stream;
  td_cuda.stream_create = refuse_stream;
  assert_int_equal(td_stream_lease(&device, &stream), TD_CUDA_OUT_OF_MEMORY);
}

static void as_many_stay_as_the_pool_has_room_for(void **state) {
  (void)state;
  void *leased[TD_STREAM_IDLE_MAX + 2];
  for (size_t i = 0; i < TD_STREAM_IDLE_MAX + 2; i++)
    leased[i] = lease();
  for (size_t i = 0; i < TD_STREAM_IDLE_MAX + 2; i++)
    td_stream_return(&device, leased[i], true);
  assert_int_equal(destroyed, 2);
}

/* ---------------------------------------------------------------- threads */

struct runner {
  pthread_t thread;
  pthread_barrier_t *turn;
  bool second; /* to return and to lease again */
  void *before, *after;
};

static void *run_twice(void *user) {
  struct runner *runner = user;
  td_stream_lease(&device, &runner->before);
  for (int turn = 0; turn < 4; turn++) {
    pthread_barrier_wait(runner->turn);
    if (turn == runner->second)
      td_stream_return(&device, runner->before, true);
    if (turn == 2 + runner->second)
      td_stream_lease(&device, &runner->after);
  }
  pthread_barrier_wait(runner->turn);
  td_stream_return(&device, runner->after, true);
  return NULL;
}

/* Each pair of a thread and a stream costs a workspace in libtorch. */
static void a_thread_gets_the_stream_that_it_gave_back(void **state) {
  (void)state;
  struct runner runners[2];
  pthread_barrier_t turn;
  pthread_barrier_init(&turn, NULL, 2);
  for (int i = 0; i < 2; i++) {
    runners[i] = (struct runner){.turn = &turn, .second = i};
    assert_int_equal(pthread_create(&runners[i].thread, NULL, run_twice, &runners[i]), 0);
  }
  for (int i = 0; i < 2; i++)
    pthread_join(runners[i].thread, NULL);
  pthread_barrier_destroy(&turn);
  assert_int_equal(made, 2);
  for (int i = 0; i < 2; i++)
    assert_ptr_equal(runners[i].after, runners[i].before);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(runs_that_take_turns_have_one_stream_and_those_at_once_one_each),
      TEST(a_stream_that_may_be_at_work_goes_to_nobody),
      TEST(of_a_lost_device_none_is_destroyed),
      TEST(a_driver_that_makes_none_is_told),
      TEST(as_many_stay_as_the_pool_has_room_for),
      TEST(a_thread_gets_the_stream_that_it_gave_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
