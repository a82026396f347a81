/* Races: sixteen threads that load at once, and storms of loads, runs and releases with faults.
 *
 * What must hold whatever the order: exactly one build a round of equal loads, right numbers from every run,
 * never two copies of one engine, and nothing left at the end. Seeds are fixed, so that the load on the pool
 * is the same each time; the order is the scheduler's.
 */
#include "base.h"
#include "bound.h"
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 16, ROUNDS = 200, MODELS = 4, STORM_THREADS = 8 };

/* A sanitizer makes each step some ten times slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { STORM_STEPS = 150 };
#else
enum { STORM_STEPS = 600 };
#endif

static struct fake_vendor *fake, *budgets, *keeps;
static struct fake_model models[MODELS];
static void *payloads[MODELS];
static size_t sizes[MODELS];

static int begin(void **state) {
  (void)state;
  fake_vendor_reset(fake);
  fake_vendor_reset(budgets);
  fake_vendor_reset(keeps);
  scene_watch_log(NULL, NULL);
  scene_watch_waits(NULL, NULL);
  return 0;
}

static int end(void **state) {
  (void)state;
  struct fake_vendor *const all[] = {fake, budgets, keeps};
  int failed = 0;
  bound_set("", 0);
  for (int i = 0; i < 3; i++) {
    const char *what = "";
    if (fake_violations(all[i], &what)) {
      print_error("promise to the vendor broken: %s\n", what);
      failed = -1;
    }
    if (fake_live_engines(all[i]) || fake_live_contexts(all[i]) || fake_live_payloads(all[i]) ||
        fake_memory_used(all[i]))
      failed = -1;
  }
  struct tandem_stats stats = scene_stats();
  if (stats.engines || stats.loads || scene_waits_begun() != scene_waits_ended())
    failed = -1;
  return failed;
}

/* ---------------------------------------------------------------- sixteen at once */

struct racer {
  pthread_barrier_t *start;
  struct scene_load load;
  bool passed;
  pthread_t thread;
};

static void *race(void *opaque) {
  struct racer *racer = opaque;
  pthread_barrier_wait(racer->start);
  scene_make(&racer->load);
  racer->passed = racer->load.status == TANDEM_OK && scene_runs(&racer->load, &models[0], 0);
  return NULL;
}

static void sixteen_loads_at_once_make_one_build_a_round(void **state) {
  (void)state;
  BOUND(60);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  struct tandem_stats first = scene_stats();
  for (int round = 0; round < ROUNDS; round++) {
    struct racer racers[THREADS];
    for (int i = 0; i < THREADS; i++) {
      racers[i] = (struct racer){.start = &start, .load = scene_load(fake, payloads[0], sizes[0], NULL)};
      assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
      pthread_join(racers[i].thread, NULL);
    assert_int_equal(fake_count(fake, FAKE_BUILD), round + 1);
    assert_int_equal(scene_stats().engines, 1);
    assert_int_equal(scene_stats().loads, THREADS);
    unsigned built = 0;
    for (int i = 0; i < THREADS; i++) {
      assert_true(racers[i].passed);
      built += !scene_info(&racers[i].load).shared;
    }
    assert_int_equal(built, 1);
    for (int i = 0; i < THREADS; i++)
      scene_destroy(&racers[i].load);
    assert_int_equal(scene_stats().engines, 0);
  }
  struct tandem_stats last = scene_stats();
  assert_int_equal(last.builds - first.builds, ROUNDS);
  assert_int_equal(last.hits + last.joined - first.hits - first.joined, ROUNDS * (THREADS - 1));
  assert_int_equal(fake_peak_copies(fake), 1);
  pthread_barrier_destroy(&start);
}

/* ---------------------------------------------------------------- storms */

struct storm {
  unsigned seed;
  struct fake_vendor *vendor;
  bool faults;
  bool passed;
  uint64_t made, failed;
  pthread_t thread;
};

static unsigned next(unsigned *seed) {
  *seed = *seed * 1103515245u + 12345u;
  return *seed >> 16;
}

static void *blow(void *opaque) {
  struct storm *storm = opaque;
  struct scene_load held[3] = {{0}};
  unsigned which[3] = {0};
  storm->passed = true;
  for (int step = 0; step < STORM_STEPS && storm->passed; step++) {
    unsigned place = next(&storm->seed) % 3, what = next(&storm->seed) % 8;
    struct scene_load *load = &held[place];
    if (load->load && what < 4) {
      scene_destroy(load);
    } else if (load->load) {
      storm->passed = scene_runs(load, &models[which[place]], 0) ||
                      storm->faults; /* an injected fault of run; numbers are checked in the other storms */
    } else {
      which[place] = next(&storm->seed) % MODELS;
      unsigned kind = next(&storm->seed) % 16;
      if (kind == 0)
        *load = scene_load(storm->vendor, payloads[which[place]], sizes[which[place]], "use_shared_engines",
                           "false", NULL);
      else if (kind < 4)
        *load =
            scene_load(storm->vendor, payloads[which[place]], sizes[which[place]], "weight_streaming_budget",
                       kind == 1   ? "100"
                       : kind == 2 ? "300"
                                   : "100000",
                       NULL);
      else
        *load = scene_load(storm->vendor, payloads[which[place]], sizes[which[place]], NULL);
      scene_make(load);
      storm->made += load->status == TANDEM_OK;
      storm->failed += load->status != TANDEM_OK;
      if (load->status != TANDEM_OK && (!storm->faults || load->load || !load->error.message[0]))
        storm->passed = false;
    }
  }
  for (int i = 0; i < 3; i++)
    scene_destroy(&held[i]);
  return NULL;
}

static void blow_together(struct fake_vendor *vendor, bool faults) {
  struct storm storms[STORM_THREADS];
  uint64_t failed = 0;
  struct tandem_stats before = scene_stats();
  for (unsigned i = 0; i < STORM_THREADS; i++) {
    storms[i] = (struct storm){.seed = 7 * i + 1, .vendor = vendor, .faults = faults};
    assert_int_equal(pthread_create(&storms[i].thread, NULL, blow, &storms[i]), 0);
  }
  for (unsigned i = 0; i < STORM_THREADS; i++)
    pthread_join(storms[i].thread, NULL);
  for (unsigned i = 0; i < STORM_THREADS; i++) {
    assert_true(storms[i].passed);
    assert_true(storms[i].made > 0);
    failed += storms[i].failed;
  }
  assert_int_equal(scene_stats().failures - before.failures, failed);
}

static void a_storm_over_several_engines_gives_right_numbers(void **state) {
  (void)state;
  BOUND(60);
  blow_together(fake, false);
}

static void a_storm_over_budgets_gives_right_numbers(void **state) {
  (void)state;
  BOUND(60);
  blow_together(budgets, false);
}

static void a_storm_over_kept_bytes_gives_right_numbers(void **state) {
  (void)state;
  BOUND(60);
  blow_together(keeps, false);
}

static atomic_bool storm_is_over;

/* Turns one fault after the other on and off while the storm blows. */
static void *inject(void *opaque) {
  struct fake_vendor *vendor = opaque;
  static const enum fake_entry entries[] = {FAKE_BUILD, FAKE_CONTEXT_CREATE, FAKE_PARSE, FAKE_RESOLVE,
                                            FAKE_RUN};
  static const enum tandem_status statuses[] = {TANDEM_BAD_PROGRAM, TANDEM_OUT_OF_MEMORY,
                                                TANDEM_DEVICE_ERROR};
  unsigned seed = 99;
  while (!atomic_load(&storm_is_over)) {
    enum fake_entry entry = entries[next(&seed) % 5];
    fake_fail_at(vendor, entry, 1 + next(&seed) % 3, 1 + next(&seed) % 2, statuses[next(&seed) % 3],
                 "a fault");
    fake_wait_count(vendor, entry, fake_count(vendor, entry)); /* lets the others run */
    sched_yield();
  }
  for (int i = 0; i < 5; i++)
    fake_fail_at(vendor, entries[i], 0, 0, TANDEM_OK, NULL);
  return NULL;
}

static void a_storm_with_faults_leaves_nothing(void **state) {
  (void)state;
  BOUND(60);
  pthread_t thread;
  atomic_store(&storm_is_over, false);
  assert_int_equal(pthread_create(&thread, NULL, inject, keeps), 0);
  blow_together(keeps, true);
  atomic_store(&storm_is_over, true);
  pthread_join(thread, NULL);
}

static void a_storm_under_a_memory_limit_leaves_nothing(void **state) {
  (void)state;
  BOUND(60);
  fake_set_memory(budgets, 3000); /* two or three engines fit, not all */
  blow_together(budgets, true);
}

static void a_storm_with_slow_builds_and_teardowns_never_has_two_copies(void **state) {
  (void)state;
  BOUND(60);
  fake_delay(fake, FAKE_BUILD, 1);
  fake_delay(fake, FAKE_ENGINE_DESTROY, 1);
  struct racer racers[THREADS];
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < THREADS; i++) {
      racers[i] = (struct racer){.start = &start, .load = scene_load(fake, payloads[0], sizes[0], NULL)};
      assert_int_equal(pthread_create(&racers[i].thread, NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
      pthread_join(racers[i].thread, NULL);
      assert_true(racers[i].passed);
    }
    /* all destroyed by threads of their own, while loads of the next kind arrive */
    struct scene_load again[4];
    for (int i = 0; i < THREADS; i++)
      scene_start_destroy(&racers[i].load);
    for (int i = 0; i < 4; i++) {
      again[i] = scene_load(fake, payloads[0], sizes[0], NULL);
      scene_start(&again[i]);
    }
    for (int i = 0; i < THREADS; i++)
      scene_join(&racers[i].load);
    for (int i = 0; i < 4; i++) {
      scene_join(&again[i]);
      assert_int_equal(again[i].status, TANDEM_OK);
      scene_destroy(&again[i]);
    }
  }
  assert_int_equal(fake_peak_copies(fake), 1);
  pthread_barrier_destroy(&start);
}

static void impatient_loads_get_an_engine_whatever_happens(void **state) {
  (void)state;
  BOUND(60);
  fake_delay(fake, FAKE_BUILD, 2);
  for (int round = 0; round < 20; round++) {
    struct scene_load loads[THREADS];
    for (int i = 0; i < THREADS; i++) {
      loads[i] = scene_load(fake, payloads[1], sizes[1], "flight_timeout_ms", "1", NULL);
      loads[i].flags = TANDEM_LOAD_CALLER_HOLDS_LOCK;
      scene_start(&loads[i]);
    }
    for (int i = 0; i < THREADS; i++) {
      scene_join(&loads[i]);
      assert_int_equal(loads[i].status, TANDEM_OK);
      assert_true(scene_runs(&loads[i], &models[1], 0));
    }
    for (int i = 0; i < THREADS; i++)
      scene_destroy(&loads[i]);
  }
  assert_true(fake_peak_inside(fake, FAKE_BUILD) <= 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  fake = fake_vendor_create("fake", "FakeBackend", 0);
  budgets = fake_vendor_create("fake-budget", "FakeBudgetBackend", TANDEM_VENDOR_HAS_BUDGET);
  keeps = fake_vendor_create("fake-keeps", "FakeKeepsBackend", TANDEM_VENDOR_KEEPS_ENGINE_BYTES);
  if (!fake || !budgets || !keeps)
    return 1;
  for (unsigned i = 0; i < MODELS; i++) {
    models[i] = (struct fake_model){
        .rank = 1, .min = {6}, .max = {6}, .cost = 500, .streamable_size = i < 2 ? 1000 : 0, .seed = i};
    payloads[i] = fake_payload_create(&models[i], &sizes[i]);
    if (!payloads[i])
      return 1;
  }
  const struct CMUnitTest tests[] = {
      TEST(sixteen_loads_at_once_make_one_build_a_round),
      TEST(a_storm_over_several_engines_gives_right_numbers),
      TEST(a_storm_over_budgets_gives_right_numbers),
      TEST(a_storm_over_kept_bytes_gives_right_numbers),
      TEST(a_storm_with_faults_leaves_nothing),
      TEST(a_storm_under_a_memory_limit_leaves_nothing),
      TEST(a_storm_with_slow_builds_and_teardowns_never_has_two_copies),
      TEST(impatient_loads_get_an_engine_whatever_happens),
  };
  int failed = cmocka_run_group_tests_name("race", tests, NULL, NULL);
  scene_clear_log();
  for (unsigned i = 0; i < MODELS; i++)
    free(payloads[i]);
  return failed ? 1 : 0;
}
