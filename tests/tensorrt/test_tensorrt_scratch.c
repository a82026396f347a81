/* Scratch: what it costs, who has it when, and when it is given back. Sizes are read from the stand-in
 * driver. */
#include "rig.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { LOADS = 4 };

/* x [rows, 8] -> y [rows, 4] in one layer: all the scratch it needs is 64 KiB a row. */
static const int64_t widths[] = {8, 4};
static const struct standin_mlp big = {.name = "big",
                                       .seed = 5,
                                       .layer_count = 1,
                                       .widths = widths,
                                       .rows_min = 1,
                                       .rows_opt = 4,
                                       .rows_max = 8,
                                       .scratch_per_row = 65536};

static uint64_t used(void) {
  return rig_used(0);
}

struct io {
  void *x, *y, *stream, *done;
  struct tandem_tensor input, output;
  struct tandem_run_desc run;
  float expected[32];
  int rows;
};

/* Device tensors of `rows`, and a stream to return early on. */
static void io_init(struct io *io, const struct standin_mlp *mlp, int rows, unsigned seed) {
  float x[64];
  io->rows = rows;
  io->x = rig_allocate(0, sizeof x);
  io->y = rig_allocate(0, sizeof io->expected);
  io->stream = rig_stream(0);
  rig_fill(x, 64, seed);
  rig_write(0, io->x, x, sizeof x);
  assert_true(standin_mlp_expect(mlp, x, rows, io->expected));
  io->input = rig_tensor(io->x, TANDEM_FLOAT32, 2, rows, 8);
  io->output = rig_tensor(io->y, TANDEM_FLOAT32, 2, rows, 4);
  io->run = (struct tandem_run_desc){.struct_size = sizeof io->run,
                                     .inputs = &io->input,
                                     .input_count = 1,
                                     .outputs = &io->output,
                                     .output_count = 1,
                                     .stream = io->stream,
                                     .return_early = true,
                                     .done = &io->done};
}

static void io_expect(struct io *io) {
  float y[32];
  rig_read(0, y, io->y, sizeof y);
  assert_memory_equal(y, io->expected, (size_t)io->rows * 16);
}

static void io_fini(struct io *io) {
  rig_free(0, io->x);
  rig_free(0, io->y);
  rig_stream_free(0, io->stream);
}

static void run_waiting(struct tandem_load *load, struct io *io) {
  struct tandem_run_desc run = io->run;
  struct tandem_error error;
  run.return_early = false;
  run.done = NULL;
  if (tandem_load_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
}

static void loads_that_run_one_after_another_cost_one_scratch(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *loads[LOADS];
  struct io io;
  for (int i = 0; i < LOADS; i++)
    loads[i] = rig_load(&payload, NULL);
  io_init(&io, &big, 4, 1);
  uint64_t before = used();
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < LOADS; i++) {
      run_waiting(loads[i], &io);
      io_expect(&io);
      RIG_EXPECT_TOLD(used() - before, 4 * 65536);
    }
  for (int i = 0; i + 1 < LOADS; i++)
    tandem_load_destroy(loads[i]);
  RIG_EXPECT_TOLD(used() - before, 4 * 65536);
  run_waiting(loads[LOADS - 1], &io);
  tandem_load_destroy(loads[LOADS - 1]);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void loads_that_run_at_a_time_cost_one_scratch_each(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *loads[LOADS];
  struct io io[LOADS];
  for (int i = 0; i < LOADS; i++) {
    loads[i] = rig_load(&payload, NULL);
    io_init(&io[i], &big, 2, (unsigned)i);
  }
  uint64_t before = used();
  rig_hold(true);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(tandem_load_run(loads[i], &io[i].run, NULL), TANDEM_OK);
    RIG_EXPECT_TOLD(used() - before, (uint64_t)(i + 1) * 2 * 65536);
  }
  assert_true(rig_wait_held(2));
  /* A lease ends with its run's event, not with the call: a third load gets scratch of its own. */
  assert_int_equal(tandem_load_run(loads[2], &io[2].run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(used() - before, 3 * 2 * 65536);
  rig_hold(false);
  for (int i = 0; i < 3; i++) {
    rig_event_wait(io[i].done);
    io_expect(&io[i]);
  }
  /* Nobody asked them since, yet what they had is free: the fourth needs none of its own. */
  assert_int_equal(tandem_load_run(loads[3], &io[3].run, NULL), TANDEM_OK);
  rig_event_wait(io[3].done);
  io_expect(&io[3]);
  RIG_EXPECT_TOLD(used() - before, 3 * 2 * 65536);
  /* No more than one for each load that is left. */
  tandem_load_destroy(loads[0]);
  tandem_load_destroy(loads[1]);
  RIG_EXPECT_TOLD(used() - before, 2 * 2 * 65536);
  tandem_load_destroy(loads[2]);
  RIG_EXPECT_TOLD(used() - before, 2 * 65536);
  run_waiting(loads[3], &io[3]);
  io_expect(&io[3]);
  tandem_load_destroy(loads[3]);
  for (int i = 0; i < LOADS; i++)
    io_fini(&io[i]);
  rig_payload_free(&payload);
}

static void a_load_that_returns_early_again_and_again_needs_one_scratch(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *load = rig_load(&payload, NULL), *other = rig_load(&payload, NULL);
  struct io io;
  io_init(&io, &big, 3, 1);
  uint64_t before = used();
  rig_hold(true);
  for (int i = 0; i < 5; i++)
    assert_int_equal(tandem_load_run(load, &io.run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(used() - before, 3 * 65536);
  rig_hold(false);
  rig_event_wait(io.done);
  io_expect(&io);
  run_waiting(other, &io);
  RIG_EXPECT_TOLD(used() - before, 3 * 65536);
  tandem_load_destroy(load);
  run_waiting(other, &io);
  tandem_load_destroy(other);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void a_larger_run_replaces_the_scratch_and_a_smaller_one_is_told_its_own_need(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct standin_counts counts;
  const int rows[] = {1, 5, 2, 8, 3};
  uint64_t most = 0, before = used();
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct io io;
    io_init(&io, &big, rows[i], 1);
    uint64_t tensors = 2 * 512;
    most = (uint64_t)rows[i] * 65536 > most ? (uint64_t)rows[i] * 65536 : most;
    run_waiting(load, &io);
    io_expect(&io);
    RIG_EXPECT_TOLD(used() - before - tensors, most);
    rig_library->counts(&counts);
    assert_int_equal(counts.scratch_told, rows[i] * 65536);
    io_fini(&io);
  }
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void an_engine_that_never_needs_scratch_leases_none(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct standin_counts counts;
  struct io io;
  io_init(&io, &rig_plain, 2, 1);
  uint64_t before = used(), allocations = rig_calls("cuMemAlloc");
  run_waiting(load, &io);
  io_expect(&io);
  rig_library->counts(&counts);
  RIG_EXPECT_TOLD(used(), before);
  RIG_EXPECT_TOLD(rig_calls("cuMemAlloc"), allocations);
  assert_int_equal(rig_library->calls(STANDIN_SCRATCH), 0);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_payload_free(&payload);
}

/* Two layers without scratch of their own: what lies between them is all the scratch there is. */
static void a_shape_that_needs_none_of_an_engine_that_may_need_some_gets_a_byte(void **state) {
  (void)state;
  static const int64_t two[] = {8, 16, 4};
  const struct standin_mlp mlp = {.name = "empty",
                                  .seed = 3,
                                  .layer_count = 2,
                                  .widths = two,
                                  .rows_min = 0,
                                  .rows_opt = 1,
                                  .rows_max = 4};
  struct rig_payload payload = rig_mlp(&mlp, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct standin_counts counts;
  struct tandem_tensor input = rig_tensor(NULL, TANDEM_FLOAT32, 2, 0, 8),
                       output = rig_tensor(NULL, TANDEM_FLOAT32, 2, 0, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  uint64_t before = used();
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  rig_library->counts(&counts);
  assert_int_equal(counts.scratch_told, 0);
  RIG_EXPECT_TOLD(used() - before, 512); /* as the driver rounds one byte */
  rig_expect_mlp(load, &mlp, 4, 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void without_share_scratch_each_load_has_its_own(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  uint64_t before = used();
  struct tandem_load *shared = rig_load(&payload, NULL),
                     *first = rig_load(&payload, "share_scratch", "false", NULL);
  uint64_t with_first = used();
  struct tandem_load *second = rig_load(&payload, "share_scratch", "false", NULL);
  assert_int_equal(rig_stats().engines, 1);
  RIG_EXPECT_TOLD(used() - with_first >= 8 * 65536, true);
  RIG_EXPECT_TOLD(with_first - before >= 8 * 65536, true);
  rig_expect_mlp(first, &big, 8, 1);
  rig_expect_mlp(second, &big, 2, 2);
  rig_expect_mlp(shared, &big, 5, 3);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  tandem_load_destroy(shared);
  rig_payload_free(&payload);
}

static void scratch_that_does_not_fit_fails_that_run_alone(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  struct io small, large;
  io_init(&small, &big, 1, 1);
  io_init(&large, &big, 8, 2);
  run_waiting(load, &small);
  rig_device->set_memory(0, used() + 65536);
  large.run.return_early = false;
  assert_int_equal(tandem_load_run(load, &large.run, &error), TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(error.message, "524288 bytes of scratch"));
  run_waiting(load, &small);
  io_expect(&small);
  rig_device->set_memory(0, UINT64_C(1) << 34);
  run_waiting(load, &large);
  io_expect(&large);
  tandem_load_destroy(load);
  io_fini(&small);
  io_fini(&large);
  rig_payload_free(&payload);
}

static void idle_scratch_is_given_up_before_an_allocation_fails(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0), other = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL), *second = rig_load(&other, NULL);
  struct io io;
  io_init(&io, &big, 8, 1);
  run_waiting(load, &io);
  rig_device->set_memory(0, used());
  rig_expect_mlp(second, &rig_dynamic, 8, 1); /* its buffers for host tensors have to come from somewhere */
  rig_device->set_memory(0, UINT64_C(1) << 34);
  run_waiting(load, &io);
  io_expect(&io);
  tandem_load_destroy(load);
  tandem_load_destroy(second);
  io_fini(&io);
  rig_payload_free(&payload);
  rig_payload_free(&other);
}

struct runner {
  struct tandem_load *load;
  pthread_t thread;
  unsigned seed;
};

static void a_run_that_cannot_be_ordered_leaves_the_scratch_to_the_run_in_flight(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *load = rig_load(&payload, NULL), *other = rig_load(&payload, NULL);
  struct io io[2];
  for (unsigned i = 0; i < 2; i++)
    io_init(&io[i], &big, 4, i + 1);
  uint64_t before = used();
  rig_hold(true);
  assert_int_equal(tandem_load_run(load, &io[0].run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(1));
  struct tandem_run_desc again = io[0].run;
  again.stream = io[1].stream;
  again.done = NULL;
  rig_device->fail_at("cuStreamWaitEvent", 1, 999);
  assert_int_not_equal(tandem_load_run(load, &again, NULL), TANDEM_OK);
  rig_device->fail_at(NULL, 0, 0);
  RIG_EXPECT_TOLD(used() - before, 4 * 65536);
  assert_int_equal(tandem_load_run(other, &io[1].run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(used() - before, 2 * 4 * 65536);
  rig_hold(false);
  for (unsigned i = 0; i < 2; i++) {
    rig_event_wait(io[i].done);
    io_expect(&io[i]);
  }
  tandem_load_destroy(load);
  tandem_load_destroy(other);
  io_fini(&io[0]);
  io_fini(&io[1]);
  rig_payload_free(&payload);
}

static void a_run_that_fails_gives_its_scratch_back(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct tandem_load *first = rig_load(&payload, NULL), *second = rig_load(&payload, NULL);
  struct io io;
  io_init(&io, &big, 8, 1);
  run_waiting(first, &io);
  uint64_t before = used();
  rig_library->fail_at(STANDIN_ENQUEUE, 1, STANDIN_FAIL_PLAIN);
  assert_int_not_equal(tandem_load_run(first, &io.run, NULL), TANDEM_OK);
  run_waiting(second, &io);
  assert_int_equal(used(), before);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void *run_many(void *argument) {
  struct runner *runner = argument;
  for (unsigned i = 0; i < 60; i++)
    rig_expect_mlp(runner->load, &big, 1 + (runner->seed + i) % 8, runner->seed + i);
  return NULL;
}

static void loads_of_one_engine_run_at_the_same_time_with_their_own_numbers(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&big, 0);
  struct runner runners[LOADS];
  uint64_t before = used();
  for (unsigned i = 0; i < LOADS; i++)
    runners[i] = (struct runner){.load = rig_load(&payload, NULL), .seed = i};
  for (unsigned i = 0; i < LOADS; i++)
    assert_int_equal(pthread_create(&runners[i].thread, NULL, run_many, &runners[i]), 0);
  for (unsigned i = 0; i < LOADS; i++)
    pthread_join(runners[i].thread, NULL);
  if (rig_device)
    assert_true(rig_device->memory_peak(0) - before <= LOADS * (8 * 65536 + 2 * 512) + 65536);
  for (unsigned i = 0; i < LOADS; i++)
    tandem_load_destroy(runners[i].load);
  rig_payload_free(&payload);
}

int main(int argc, char **argv) {
  int failed = rig_start(argc, argv);
  if (failed)
    return failed;
  const struct CMUnitTest tests[] = {
      RIG_TEST_ANYWHERE(loads_that_run_one_after_another_cost_one_scratch),
      RIG_TEST_ANYWHERE(loads_that_run_at_a_time_cost_one_scratch_each),
      RIG_TEST_ANYWHERE(a_load_that_returns_early_again_and_again_needs_one_scratch),
      RIG_TEST_ANYWHERE(a_larger_run_replaces_the_scratch_and_a_smaller_one_is_told_its_own_need),
      RIG_TEST_ANYWHERE(an_engine_that_never_needs_scratch_leases_none),
      RIG_TEST_ANYWHERE(a_shape_that_needs_none_of_an_engine_that_may_need_some_gets_a_byte),
      RIG_TEST_ANYWHERE(without_share_scratch_each_load_has_its_own),
      RIG_TEST(scratch_that_does_not_fit_fails_that_run_alone),
      RIG_TEST(idle_scratch_is_given_up_before_an_allocation_fails),
      RIG_TEST_ANYWHERE(loads_of_one_engine_run_at_the_same_time_with_their_own_numbers),
      RIG_TEST(a_run_that_fails_gives_its_scratch_back),
      RIG_TEST(a_run_that_cannot_be_ordered_leaves_the_scratch_to_the_run_in_flight),
  };
  return RIG_RUN_TESTS(tests) ? 1 : 0;
}
