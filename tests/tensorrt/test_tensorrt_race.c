/* Loads that race for device memory, and the same bytes on two devices: what shows only there. Over the
 * stand-in libraries; two of tests/mutants are caught here. */
#include "rig.h"
#include "scene.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { WIDE = 256, RACERS = 8, ROUNDS = 20 };
static const int64_t wide_widths[] = {WIDE, WIDE, WIDE};
static const uint64_t wide_size = 2 * (WIDE * WIDE + WIDE) * sizeof(float); /* bytes of one copy's weights */

static struct standin_mlp wide(uint32_t flags) {
  return (struct standin_mlp){.name = "wide",
                              .seed = 3,
                              .flags = flags,
                              .layer_count = 2,
                              .widths = wide_widths,
                              .rows_min = 2,
                              .rows_opt = 2,
                              .rows_max = 2};
}

struct racer {
  const struct rig_payload *payload;
  const char *budget, *timeout; /* option values; NULL: not given */
  pthread_t thread;
  struct tandem_load *load;
  struct tandem_error error;
  enum tandem_status status;
};

static void *race(void *argument) {
  struct racer *racer = argument;
  struct tandem_option options[2];
  size_t count = 0;
  if (racer->budget)
    options[count++] = (struct tandem_option){"weight_streaming_budget", racer->budget};
  if (racer->timeout)
    options[count++] = (struct tandem_option){"flight_timeout_ms", racer->timeout};
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "TensorRTBackend",
                                  .payload = racer->payload->bytes,
                                  .payload_size = racer->payload->size,
                                  .options = options,
                                  .option_count = count};
  racer->status = tandem_load_create(&desc, &racer->load, &racer->error);
  return NULL;
}

static void start(struct racer *racer) {
  assert_int_equal(pthread_create(&racer->thread, NULL, race, racer), 0);
}

static void join_good(struct racer *racer) {
  pthread_join(racer->thread, NULL);
  if (racer->status != TANDEM_OK)
    fail_msg("%s", racer->error.message);
}

static void eight_racing_loads_fit_where_one_copy_and_a_half_does(void **state) {
  struct standin_mlp mlp = wide(0);
  struct rig_payload payload = rig_mlp(&mlp, 0);
  (void)state;
  rig_device->set_memory(0, wide_size * 3 / 2);
  for (int round = 0; round < ROUNDS; round++) {
    struct racer racers[RACERS];
    uint64_t builds = rig_stats().builds;
    scene_watch_waits(NULL, NULL);
    rig_library->gate_close(STANDIN_DESERIALIZE);
    for (int i = 0; i < RACERS; i++) {
      racers[i] = (struct racer){.payload = &payload};
      start(&racers[i]);
    }
    assert_true(rig_library->wait_inside(STANDIN_DESERIALIZE, 1));
    assert_true(scene_wait_waiting(RACERS - 1));
    rig_library->gate_open(STANDIN_DESERIALIZE);
    for (int i = 0; i < RACERS; i++)
      join_good(&racers[i]);
    assert_int_equal(rig_stats().builds, builds + 1);
    assert_int_equal(rig_info(racers[0].load).users, RACERS);
    rig_expect_mlp(racers[round % RACERS].load, &mlp, 2, (unsigned)round);
    for (int i = 0; i < RACERS; i++)
      tandem_load_destroy(racers[i].load);
  }
  rig_device->set_memory(0, (uint64_t)16 << 30);
  rig_payload_free(&payload);
}

/* The first load's build stands before it has any memory, and somebody else has most of it: the second one
 * waits in vain, tries for itself, does not fit, and gets the first one's engine all the same. Its second
 * wait is bounded as the first one: the first build has those 2 s to end in. */
static void a_racer_whose_own_copy_does_not_fit_gets_the_first_ones_engine(void **state) {
  struct standin_mlp mlp = wide(STANDIN_PLAN_STREAMABLE);
  struct rig_payload payload = rig_mlp(&mlp, 0);
  struct racer first = {.payload = &payload},
               second = {.payload = &payload, .budget = "99999999", .timeout = "2000"};
  (void)state;
  rig_device->set_memory(0, wide_size * 3 / 2);
  void *ballast = rig_allocate(0, wide_size);
  setenv("STANDIN_AUTOMATIC_BUDGET", "99999999", 1);
  rig_library->gate_close(STANDIN_AUTOMATIC_BUDGET);
  start(&first);
  assert_true(rig_library->wait_inside(STANDIN_AUTOMATIC_BUDGET, 1));
  uint64_t tried = rig_library->calls(STANDIN_BUDGET);
  start(&second);
  /* It has tried when its own engine is gone again. */
  for (struct standin_counts counts = {0}; rig_library->calls(STANDIN_BUDGET) == tried || counts.engines != 1;
       sched_yield())
    rig_library->counts(&counts);
  rig_free(0, ballast);
  rig_library->gate_open(STANDIN_AUTOMATIC_BUDGET);
  join_good(&first);
  join_good(&second);
  assert_int_equal(rig_info(first.load).engine_id, rig_info(second.load).engine_id);
  assert_true(rig_info(second.load).fallback);
  rig_expect_mlp(second.load, &mlp, 2, 5);
  tandem_load_destroy(first.load);
  tandem_load_destroy(second.load);
  unsetenv("STANDIN_AUTOMATIC_BUDGET");
  rig_device->set_memory(0, (uint64_t)16 << 30);
  rig_payload_free(&payload);
}

static void the_same_bytes_on_two_devices_are_two_engines(void **state) {
  struct standin_mlp mlp = wide(0);
  struct rig_payload payloads[2] = {rig_mlp(&mlp, 0), rig_mlp(&mlp, 1)};
  struct tandem_load *loads[4];
  (void)state;
  for (int i = 0; i < 4; i++)
    loads[i] = rig_load(&payloads[i % 2], NULL);
  assert_int_equal(rig_stats().engines, 2);
  for (int i = 0; i < 4; i++) {
    assert_string_equal(rig_info(loads[i]).device, i % 2 ? "cuda:1" : "cuda:0");
    assert_int_equal(rig_info(loads[i]).users, 2);
    assert_true(rig_used(i % 2) >= wide_size);
    rig_expect_mlp(loads[i], &mlp, 2, (unsigned)i);
    assert_null(rig_current());
  }
  for (int i = 0; i < 4; i++)
    tandem_load_destroy(loads[i]);
  rig_payload_free(&payloads[0]);
  rig_payload_free(&payloads[1]);
}

int main(int argc, char **argv) {
  int failed = rig_start(argc, argv);
  if (failed)
    return failed;
  const struct CMUnitTest tests[] = {
      RIG_TEST(eight_racing_loads_fit_where_one_copy_and_a_half_does),
      RIG_TEST(a_racer_whose_own_copy_does_not_fit_gets_the_first_ones_engine),
      RIG_TEST(the_same_bytes_on_two_devices_are_two_engines),
  };
  return RIG_RUN_TESTS(tests);
}
