/* The pool's promises, one section each, in the order of the design. Gates and latches of the fake vendor
 * decide who is where; nothing sleeps to be sure. After every test nothing is alive, and the fake vendor has
 * seen no promise of vendor.h broken.
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
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RACERS = 8 };

static struct fake_vendor *plain, *budgets, *keeps;

struct sample {
  struct fake_model model;
  void *payload;
  size_t size;
};

/* A and B are two engines; S streams 1000 of its bytes. */
static struct sample a = {.model = {.rank = 1, .min = {5}, .max = {5}, .cost = 1000, .seed = 1}};
static struct sample b = {.model = {.rank = 1, .min = {5}, .max = {5}, .cost = 1000, .seed = 2}};
static struct sample s = {
    .model = {.rank = 1, .min = {5}, .max = {5}, .cost = 100, .streamable_size = 1000, .seed = 3}};

#define LOAD(fake, sample, ...) scene_load(fake, (sample).payload, (sample).size, __VA_ARGS__)

static void assert_made(const struct scene_load *load) {
  if (load->status != TANDEM_OK)
    fail_msg("%s", load->error.message);
}

static struct scene_load made(struct scene_load load) {
  scene_make(&load);
  assert_made(&load);
  return load;
}

static void destroy_all(struct scene_load *loads, size_t count) {
  for (size_t i = 0; i < count; i++)
    scene_destroy(&loads[i]);
}

static int begin(void **state) {
  (void)state;
  fake_vendor_reset(plain);
  fake_vendor_reset(budgets);
  fake_vendor_reset(keeps);
  scene_watch_waits(NULL, NULL);
  scene_watch_log(NULL, NULL);
  return 0;
}

/* Threads and loads of a test that failed half-way would disturb the next ones. */
static int stop(const char *reason) {
  print_error("%s; the tests end here\n", reason);
  exit(1);
}

static int end(void **state) {
  (void)state;
  struct fake_vendor *const all[] = {plain, budgets, keeps};
  td_memory_fail_at(0);
  for (int i = 0; i < 3; i++) {
    const char *what = "";
    uint64_t violations = fake_violations(all[i], &what);
    if (violations) {
      return stop(what);
    }
    if (fake_live_engines(all[i]) || fake_live_contexts(all[i]) || fake_live_payloads(all[i]) ||
        fake_memory_used(all[i])) {
      return stop("engines, contexts, payloads or memory were left behind");
    }
  }
  struct tandem_stats stats = scene_stats();
  if (stats.engines || stats.loads || stats.bytes_held || stats.bytes_saved) {
    return stop("the pool is not empty");
  }
  if (scene_waits_begun() != scene_waits_ended()) {
    return stop("a wait began and did not end");
  }
  bound_set("", 0);
  return 0;
}

/* ---------------------------------------------------------------- 1: one build an identity */

static void a_second_load_waits_for_the_flight(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, NULL);
  struct tandem_stats before = scene_stats();
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&second);
  assert_true(scene_wait_waiting(1));
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  scene_join(&second);
  assert_made(&first);
  assert_made(&second);
  assert_int_equal(fake_count(plain, FAKE_BUILD), 1);
  struct tandem_load_info one = scene_info(&first), two = scene_info(&second);
  assert_false(one.shared || one.joined || one.fallback);
  assert_true(two.shared && two.joined);
  assert_false(two.fallback);
  assert_int_equal(one.engine_id, two.engine_id);
  assert_int_not_equal(one.id, two.id);
  assert_int_equal(two.users, 2);
  assert_true(one.build_seconds > 0 && two.build_seconds == 0);
  assert_true(two.wait_seconds > 0 && one.wait_seconds == 0);
  struct tandem_stats after = scene_stats();
  assert_int_equal(after.builds - before.builds, 1);
  assert_int_equal(after.joined - before.joined, 1);
  assert_int_equal(after.hits, before.hits);
  assert_true(scene_runs(&first, &a.model, 0));
  assert_true(scene_runs(&second, &a.model, 0));
  scene_destroy(&first);
  assert_true(scene_runs(&second, &a.model, 0));
  scene_destroy(&second);
}

static void loads_of_other_identities_are_not_held_up(void **state) {
  (void)state;
  BOUND(30);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load slow = LOAD(plain, a, NULL), quick = LOAD(plain, b, NULL);
  fake_call_back(plain, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&slow);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_make(&quick); /* on this thread: it would hang here */
  assert_made(&quick);
  assert_true(scene_runs(&quick, &b.model, 0));
  scene_destroy(&quick);
  scene_latch_open(&latch);
  scene_join(&slow);
  assert_made(&slow);
  scene_destroy(&slow);
}

static void racers_with_other_budgets_wait_for_the_first_flight(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load loads[] = {LOAD(budgets, s, "weight_streaming_budget", "100", NULL),
                               LOAD(budgets, s, "weight_streaming_budget", "50", NULL),
                               LOAD(budgets, s, NULL)};
  fake_gate_close(budgets, FAKE_BUILD);
  scene_start(&loads[0]);
  assert_true(fake_wait_inside(budgets, FAKE_BUILD, 1));
  scene_start(&loads[1]);
  scene_start(&loads[2]);
  assert_true(scene_wait_waiting(2));
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 1);
  fake_gate_open(budgets, FAKE_BUILD);
  for (int i = 0; i < 3; i++) {
    scene_join(&loads[i]);
    assert_made(&loads[i]);
  }
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 3);
  assert_int_equal(scene_info(&loads[0]).budget, 100);
  assert_int_equal(scene_info(&loads[1]).budget, 50);
  assert_int_equal(scene_info(&loads[2]).budget, 500);
  assert_int_equal(fake_live_engines(budgets), 3);
  destroy_all(loads, 3);
}

static void ten_times_the_budget_shares_with_once(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load loads[] = {LOAD(budgets, s, "weight_streaming_budget", "1000", NULL),
                               LOAD(budgets, s, "weight_streaming_budget", "10000", NULL),
                               LOAD(budgets, s, "weight_streaming_budget", "9223372036854775807", NULL)};
  fake_gate_close(budgets, FAKE_BUILD);
  scene_start(&loads[1]);
  assert_true(fake_wait_inside(budgets, FAKE_BUILD, 1));
  scene_start(&loads[0]);
  assert_true(scene_wait_waiting(1));
  fake_gate_open(budgets, FAKE_BUILD);
  scene_join(&loads[1]);
  scene_join(&loads[0]);
  scene_make(&loads[2]);
  for (int i = 0; i < 3; i++) {
    assert_made(&loads[i]);
    assert_int_equal(scene_info(&loads[i]).budget, 1000);
    assert_int_equal(scene_info(&loads[i]).users, 3);
  }
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 1);
  destroy_all(loads, 3);
}

static void another_effective_budget_is_another_engine(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load half = made(LOAD(budgets, s, "weight_streaming_budget", "600", NULL));
  struct scene_load same = made(LOAD(budgets, s, "weight_streaming_budget", "600", NULL));
  struct scene_load quarter = made(LOAD(budgets, s, "weight_streaming_budget", "250", NULL));
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 2);
  assert_int_equal(scene_info(&half).users, 2);
  assert_int_equal(scene_info(&quarter).users, 1);
  assert_int_not_equal(scene_info(&half).engine_id, scene_info(&quarter).engine_id);
  assert_true(scene_runs(&half, &s.model, 0));
  assert_true(scene_runs(&quarter, &s.model, 0));
  scene_destroy(&half);
  scene_destroy(&quarter);
  scene_destroy(&same);
}

static void automatic_shares_with_automatic(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load one = made(LOAD(budgets, s, NULL));
  struct scene_load two = made(LOAD(budgets, s, "weight_streaming_budget", "auto", NULL));
  struct scene_load three = made(LOAD(budgets, s, "weight_streaming_budget", "500", NULL));
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 1); /* 500 is what automatic came to */
  assert_int_equal(scene_info(&two).users, 3);
  scene_destroy(&one);
  scene_destroy(&two);
  scene_destroy(&three);
}

static void an_automatic_load_takes_the_engine_that_its_build_turns_out_to_be(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load explicit_one = made(LOAD(budgets, s, "weight_streaming_budget", "500", NULL));
  uint64_t contexts = fake_count(budgets, FAKE_CONTEXT_CREATE);
  /* looks inside the next context_create: by then the copy has to be gone */
  struct scene_load automatic = LOAD(budgets, s, NULL);
  fake_gate_close(budgets, FAKE_CONTEXT_CREATE);
  scene_start(&automatic);
  assert_true(fake_wait_inside(budgets, FAKE_CONTEXT_CREATE, 1));
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 2);
  assert_int_equal(fake_live_engines(budgets), 1);
  fake_gate_open(budgets, FAKE_CONTEXT_CREATE);
  scene_join(&automatic);
  assert_made(&automatic);
  assert_int_equal(fake_count(budgets, FAKE_CONTEXT_CREATE), contexts + 1);
  assert_true(scene_info(&automatic).shared);
  assert_int_equal(scene_info(&automatic).engine_id, scene_info(&explicit_one).engine_id);
  int line = scene_find_line("500", 0);
  assert_true(line >= 0);
  struct scene_load again = made(LOAD(budgets, s, NULL)); /* known by now */
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 2);
  scene_destroy(&explicit_one);
  assert_true(scene_runs(&automatic, &s.model, 0));
  scene_destroy(&automatic);
  scene_destroy(&again);
}

static void an_explicit_build_takes_the_engine_that_an_automatic_one_became_meanwhile(void **state) {
  (void)state;
  BOUND(30);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load known = made(LOAD(budgets, s, "weight_streaming_budget", "10", NULL));
  struct scene_load explicit_one = LOAD(budgets, s, "weight_streaming_budget", "500", NULL);
  fake_call_back(budgets, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&explicit_one);
  assert_true(fake_wait_inside(budgets, FAKE_BUILD, 1));
  struct scene_load automatic = made(LOAD(budgets, s, NULL)); /* nobody can know that it comes to 500 */
  scene_latch_open(&latch);
  scene_join(&explicit_one);
  assert_made(&explicit_one);
  assert_int_equal(scene_info(&automatic).engine_id, scene_info(&explicit_one).engine_id);
  assert_int_equal(fake_live_engines(budgets), 2);
  scene_destroy(&known);
  scene_destroy(&explicit_one);
  scene_destroy(&automatic);
}

static void every_budget_shares_when_nothing_streams(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load loads[] = {LOAD(budgets, a, "weight_streaming_budget", "7", NULL), LOAD(budgets, a, NULL),
                               LOAD(budgets, a, "weight_streaming_budget", "0", NULL)};
  for (int i = 0; i < 3; i++) {
    scene_make(&loads[i]);
    assert_made(&loads[i]);
  }
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 1);
  assert_int_equal(scene_info(&loads[0]).users, 3);
  /* Each that asked for one is told, whether it built the engine or shares it. */
  int seven = scene_find_line("weight_streaming_budget=7 is ignored", 0),
      zero = scene_find_line("weight_streaming_budget=0 is ignored", 0);
  assert_true(seven >= 0 && zero > seven);
  assert_int_equal(scene_line_level(zero), TANDEM_LOG_WARNING);
  assert_true(scene_find_line("is ignored", zero + 1) < 0);
  destroy_all(loads, 3);
}

static void a_vendor_without_budgets_ignores_them(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load one = made(LOAD(plain, s, "weight_streaming_budget", "7", NULL));
  struct scene_load two = made(LOAD(plain, s, NULL));
  assert_int_equal(fake_count(plain, FAKE_BUILD), 1);
  assert_int_equal(scene_info(&one).budget, -1);
  assert_true(scene_find_line("weight_streaming_budget", 0) >= 0);
  scene_destroy(&one);
  scene_destroy(&two);
}

static void every_part_of_the_identity_tells_engines_apart(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load loads[] = {
      LOAD(plain, a, NULL),
      LOAD(plain, a, "device", "fake:1", NULL),
      LOAD(plain, a, "precision", "f16", NULL),
      LOAD(plain, a, "num_threads", "3", NULL),
      LOAD(plain, a, "trust_domain", "tenant", NULL),
      LOAD(plain, a, "identity", "fast", NULL),
      LOAD(plain, b, NULL),
      LOAD(keeps, a, NULL),
  };
  size_t count = sizeof loads / sizeof *loads;
  for (size_t i = 0; i < count; i++) {
    scene_make(&loads[i]);
    assert_made(&loads[i]);
    assert_false(scene_info(&loads[i]).shared);
  }
  assert_int_equal(scene_stats().engines, count);
  for (size_t i = 0; i < count; i++) { /* and each has a twin that shares */
    struct scene_load again = loads[i];
    scene_make(&again);
    assert_made(&again);
    assert_int_equal(scene_info(&again).engine_id, scene_info(&loads[i]).engine_id);
    scene_destroy(&again);
  }
  destroy_all(loads, count);
}

static uint64_t current_context;

static enum tandem_status resolve_in_context(const struct tandem_payload *payload, const char *const *options,
                                             struct tandem_resolution *resolution,
                                             struct tandem_error *error) {
  resolution->context_id = current_context;
  return fake_vendor_table(plain)->resolve(payload, options, resolution, error);
}

static void loads_in_other_device_contexts_do_not_share(void **state) {
  (void)state;
  BOUND(30);
  static struct tandem_vendor vendor;
  vendor = *fake_vendor_table(plain);
  vendor.name = "fake-contexts";
  vendor.backend = "FakeContextsBackend";
  vendor.resolve = resolve_in_context;
  assert_int_equal(tandem_vendor_register(&vendor, NULL), TANDEM_OK);
  static const uint64_t contexts[] = {0, 1, UINT64_C(1) << 40, 1};
  struct scene_load loads[4];
  for (int i = 0; i < 4; i++) {
    current_context = contexts[i];
    loads[i] = LOAD(plain, a, NULL);
    loads[i].backend = vendor.backend;
    scene_make(&loads[i]);
    assert_made(&loads[i]);
    assert_int_equal(scene_info(&loads[i]).shared, i == 3);
  }
  assert_int_equal(fake_count(plain, FAKE_BUILD), 3);
  assert_int_equal(scene_info(&loads[3]).engine_id, scene_info(&loads[1]).engine_id);
  destroy_all(loads, 4);
}

static void what_belongs_to_the_load_does_not_part_engines(void **state) {
  (void)state;
  BOUND(30);
  static const char *const pairs[][2] = {{"share_scratch", "false"},
                                         {"cuda_graph", "true"},
                                         {"flight_timeout_ms", "5"},
                                         {"payload_bytes", "copy"},
                                         {"log_level", "error"},
                                         {"share_across_budgets", "true"},
                                         {"profile", "0"}};
  struct scene_load first = made(LOAD(keeps, a, NULL));
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    struct scene_load other = made(LOAD(keeps, a, pairs[i][0], pairs[i][1], NULL));
    assert_int_equal(scene_info(&other).engine_id, scene_info(&first).engine_id);
    scene_destroy(&other);
  }
  scene_destroy(&first);
}

/* ---------------------------------------------------------------- 2: no lock is held */

static _Thread_local bool inside_probe;

/* Uses every lock that tandem has, from within. A pool, log, options or registry lock held here would hang.
 */
static void probe(void *user) {
  if (inside_probe)
    return;
  inside_probe = true;
  (void)user;
  char value[64];
  struct tandem_error error;
  scene_stats();
  tandem_vendor_count();
  tandem_get_option(NULL, "log_level", value, sizeof value, &error);
  struct scene_load other = LOAD(keeps, b, NULL);
  scene_make(&other);
  if (other.status == TANDEM_OK)
    scene_runs(&other, &b.model, 0);
  scene_destroy(&other);
  inside_probe = false;
}

static void probe_line(void *user, enum tandem_log_level level, const char *line) {
  (void)level;
  (void)line;
  probe(user);
}

static void no_lock_is_held_during_any_entry_of_a_vendor(void **state) {
  (void)state;
  BOUND(60);
  struct scene_load ready = made(LOAD(keeps, b, NULL)); /* so that the probes have a hit */
  for (int entry = FAKE_PARSE; entry < FAKE_ENTRY_COUNT; entry++) {
    fake_vendor_reset(plain);
    fake_call_back(plain, (enum fake_entry)entry, 100, probe, NULL);
    if (entry == FAKE_MEMORY)
      fake_set_memory(plain, 1);
    struct scene_load load = LOAD(plain, a, NULL);
    scene_make(&load);
    if (entry != FAKE_MEMORY) {
      assert_made(&load);
      assert_true(scene_runs(&load, &a.model, 0));
      assert_int_equal(tandem_load_reset(load.load, NULL), TANDEM_OK);
    } else {
      assert_int_equal(load.status, TANDEM_OUT_OF_MEMORY);
    }
    scene_destroy(&load);
    if (entry != FAKE_DESCRIBE)
      assert_true(fake_count(plain, (enum fake_entry)entry) > 0);
  }
  scene_destroy(&ready);
}

static void no_lock_is_held_during_the_sink(void **state) {
  (void)state;
  BOUND(60);
  scene_watch_log(probe_line, NULL);
  static const enum fake_entry entries[] = {
      FAKE_PARSE,           FAKE_RESOLVE,        FAKE_BUILD,           FAKE_CONTEXT_CREATE, FAKE_RUN,
      FAKE_CONTEXT_DESTROY, FAKE_ENGINE_DESTROY, FAKE_PAYLOAD_DESTROY, FAKE_RESET};
  for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
    fake_say(plain, entries[i], TANDEM_LOG_WARNING, TANDEM_OK, "a line", 1, i % 2);
  struct scene_load load = made(LOAD(plain, a, NULL));
  assert_true(scene_runs(&load, &a.model, 0));
  assert_int_equal(tandem_load_reset(load.load, NULL), TANDEM_OK);
  scene_destroy(&load);
  fake_fail_at(plain, FAKE_BUILD, 1, 1, TANDEM_BAD_PROGRAM, "no");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_BAD_PROGRAM);
  assert_true(scene_line_count() > 5);
  scene_watch_log(NULL, NULL);
}

static void no_lock_is_held_during_a_hook(void **state) {
  (void)state;
  BOUND(60);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, NULL), third = LOAD(plain, a, NULL);
  scene_watch_waits(probe, NULL);
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&second);
  assert_true(scene_wait_waiting(1));
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  scene_join(&second);
  assert_made(&second);
  scene_destroy(&first);
  fake_gate_close(plain, FAKE_ENGINE_DESTROY);
  scene_start_destroy(&second);
  assert_true(fake_wait_inside(plain, FAKE_ENGINE_DESTROY, 1));
  scene_start(&third);
  assert_true(scene_wait_waiting(1));
  fake_gate_open(plain, FAKE_ENGINE_DESTROY);
  scene_join(&second);
  scene_join(&third);
  assert_made(&third);
  scene_destroy(&third);
  assert_true(scene_waits_begun() >= 2);
  assert_int_equal(scene_waits_begun(), scene_waits_ended());
}

/* ---------------------------------------------------------------- 3: waiting is harmless */

static void *run_there(void *load) {
  return scene_runs(load, &a.model, 0) ? load : NULL;
}

static void a_wait_for_a_context_calls_the_hooks(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load load = made(LOAD(plain, a, NULL));
  pthread_t threads[2];
  fake_gate_close(plain, FAKE_RUN);
  assert_int_equal(pthread_create(&threads[0], NULL, run_there, &load), 0);
  assert_true(fake_wait_inside(plain, FAKE_RUN, 1));
  assert_int_equal(pthread_create(&threads[1], NULL, run_there, &load), 0);
  assert_true(scene_wait_waiting(1));
  assert_int_equal(fake_count(plain, FAKE_RUN), 1);
  fake_gate_open(plain, FAKE_RUN);
  for (int i = 0; i < 2; i++) {
    void *passed = NULL;
    pthread_join(threads[i], &passed);
    assert_non_null(passed);
  }
  assert_int_equal(scene_waits_begun(), 1);
  scene_destroy(&load);
}

static void destroying_a_load_waits_for_its_run(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load load = made(LOAD(plain, a, NULL));
  pthread_t thread;
  fake_gate_close(plain, FAKE_RUN);
  assert_int_equal(pthread_create(&thread, NULL, run_there, &load), 0);
  assert_true(fake_wait_inside(plain, FAKE_RUN, 1));
  struct scene_load gone = load;
  scene_start_destroy(&gone);
  assert_true(scene_wait_waiting(1));
  assert_int_equal(fake_count(plain, FAKE_CONTEXT_DESTROY), 0);
  fake_gate_open(plain, FAKE_RUN);
  void *passed = NULL;
  pthread_join(thread, &passed);
  assert_non_null(passed);
  scene_join(&gone);
}

static void a_load_that_holds_a_lock_builds_for_itself_after_the_timeout(void **state) {
  (void)state;
  BOUND(30);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load first = LOAD(plain, a, NULL);
  struct scene_load second = LOAD(plain, a, "flight_timeout_ms", "20", NULL);
  struct tandem_stats before = scene_stats();
  second.flags = TANDEM_LOAD_CALLER_HOLDS_LOCK;
  fake_call_back(plain, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_make(&second); /* returns although the first flight is stuck */
  assert_made(&second);
  struct tandem_load_info info = scene_info(&second);
  assert_true(info.fallback);
  assert_false(info.shared);
  assert_true(scene_find_line("flight_timeout_ms", 0) >= 0);
  assert_true(scene_runs(&second, &a.model, 0));
  scene_latch_open(&latch);
  scene_join(&first);
  assert_made(&first);
  assert_int_equal(scene_stats().fallbacks - before.fallbacks, 1);
  assert_int_equal(scene_stats().engines, 2);
  struct scene_load third = made(LOAD(plain, a, NULL)); /* shares the published one */
  assert_int_equal(scene_info(&third).engine_id, scene_info(&first).engine_id);
  scene_destroy(&first);
  scene_destroy(&second);
  scene_destroy(&third);
}

static void one_waiter_at_a_time_builds_for_itself(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load first = LOAD(plain, a, NULL), waiters[RACERS];
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  for (int i = 0; i < RACERS; i++) {
    waiters[i] = LOAD(plain, a, "flight_timeout_ms", "1", NULL);
    scene_start(&waiters[i]);
  }
  /* The first load and one waiter stand at the gate; the others wait for their turn, however late it is. */
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 2));
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  assert_made(&first);
  for (int i = 0; i < RACERS; i++) {
    scene_join(&waiters[i]);
    assert_made(&waiters[i]);
    assert_true(scene_runs(&waiters[i], &a.model, 0));
  }
  assert_true(fake_peak_inside(plain, FAKE_BUILD) <= 2);
  scene_destroy(&first);
  destroy_all(waiters, RACERS);
}

static void after_an_own_copy_that_failed_the_load_shares_and_the_errors_are_warnings(void **state) {
  (void)state;
  BOUND(30);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, "flight_timeout_ms", "1000", NULL);
  /* Long, since within it, after the own copy failed, the first load has to be done on a busy machine too. */
  struct tandem_stats before = scene_stats();
  second.label = "second";
  fake_call_back(plain, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  fake_say(plain, FAKE_BUILD, TANDEM_LOG_ERROR, TANDEM_OUT_OF_MEMORY, "no room for a copy", 1, false);
  fake_fail_at(plain, FAKE_BUILD, 1, 100, TANDEM_OUT_OF_MEMORY, "no copy");
  scene_start(&second);
  assert_true(fake_wait_count(plain, FAKE_BUILD, 2)); /* the second one's own, which fails */
  scene_latch_open(&latch); /* the first one's call was begun before the fault was set: it succeeds */
  scene_join(&first);
  scene_join(&second);
  assert_made(&first);
  assert_made(&second);
  struct tandem_load_info info = scene_info(&second);
  assert_true(info.shared && info.fallback);
  assert_int_equal(info.engine_id, scene_info(&first).engine_id);
  assert_int_equal(scene_stats().fallbacks - before.fallbacks, 1);
  int line = scene_find_line("second: ", 0);
  assert_true(line >= 0);
  line = scene_find_line("no room for a copy", 0);
  assert_true(line >= 0);
  assert_int_equal(scene_line_level(line), TANDEM_LOG_WARNING);
  assert_true(scene_find_line("shares engine", line) > line);
  scene_destroy(&first);
  scene_destroy(&second);
}

static void a_second_own_copy_that_does_not_fit_ends_the_load(void **state) {
  (void)state;
  BOUND(30);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, "flight_timeout_ms", "1", NULL);
  fake_call_back(plain, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  fake_fail_at(plain, FAKE_BUILD, 1, 2, TANDEM_OUT_OF_MEMORY, "no copy"); /* a third attempt would succeed */
  scene_make(&second);
  assert_int_equal(second.status, TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(second.error.message, "no copy"));
  assert_int_equal(fake_count(plain, FAKE_BUILD), 3);
  scene_latch_open(&latch);
  scene_join(&first);
  assert_made(&first);
  scene_destroy(&first);
}

static void a_long_wait_is_told_and_a_lock_holder_waits_ten_seconds(void **state) {
  (void)state;
  BOUND(60);
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load first = LOAD(plain, a, NULL), patient = LOAD(plain, a, NULL),
                    holder = LOAD(plain, a, NULL);
  patient.label = "patient";
  holder.flags = TANDEM_LOAD_CALLER_HOLDS_LOCK;
  fake_call_back(plain, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&patient);
  assert_true(scene_wait_waiting(1));
  scene_start(&holder);
  scene_join(&holder);
  assert_made(&holder);
  assert_true(scene_info(&holder).fallback);
  assert_true(scene_info(&holder).wait_seconds >= 9.9);
  scene_latch_open(&latch);
  scene_join(&first);
  scene_join(&patient);
  assert_made(&patient);
  assert_true(scene_info(&patient).joined);
  int line = scene_find_line("has waited 10 s", 0);
  assert_true(line >= 0);
  assert_true(strstr(scene_line(line), "patient") || strstr(scene_line(line), "load "));
  scene_destroy(&first);
  scene_destroy(&patient);
  scene_destroy(&holder);
}

/* ---------------------------------------------------------------- 4: re-entry */

struct nested {
  struct scene_load load;
  bool keep;
};

static void load_inside(void *user) {
  struct nested *nested = user;
  scene_make(&nested->load);
  if (!nested->keep)
    scene_destroy(&nested->load);
}

static void a_load_inside_a_build_is_private(void **state) {
  (void)state;
  BOUND(30);
  struct nested nested = {.load = LOAD(plain, a, NULL), .keep = true};
  fake_call_back(plain, FAKE_BUILD, 1, load_inside, &nested);
  struct scene_load outer = made(LOAD(plain, a, NULL));
  assert_made(&nested.load);
  assert_false(scene_info(&nested.load).shared);
  assert_int_not_equal(scene_info(&nested.load).engine_id, scene_info(&outer).engine_id);
  assert_int_equal(scene_stats().engines, 2);
  assert_true(scene_runs(&nested.load, &a.model, 0));
  scene_destroy(&nested.load);
  scene_destroy(&outer);
}

static void a_load_inside_a_teardown_is_private(void **state) {
  (void)state;
  BOUND(30);
  static const enum fake_entry entries[] = {FAKE_ENGINE_DESTROY, FAKE_CONTEXT_DESTROY, FAKE_CONTEXT_CREATE,
                                            FAKE_RUN};
  for (size_t i = 0; i < 4; i++) {
    struct nested nested = {.load = LOAD(plain, a, NULL)};
    fake_call_back(plain, entries[i], 1, load_inside, &nested);
    struct scene_load outer = made(LOAD(plain, a, NULL));
    assert_true(scene_runs(&outer, &a.model, 0));
    scene_destroy(&outer);
    assert_made(&nested.load);
    assert_int_equal(scene_stats().engines, 0);
  }
}

static void a_load_inside_a_failing_build_stands(void **state) {
  (void)state;
  BOUND(30);
  struct nested nested = {.load = LOAD(plain, a, NULL), .keep = true};
  fake_call_back(plain, FAKE_BUILD, 1, load_inside, &nested);
  fake_fail_at(plain, FAKE_BUILD, 1, 1, TANDEM_BAD_PROGRAM, "the outer one");
  struct scene_load outer = LOAD(plain, a, NULL);
  scene_make(&outer);
  assert_int_equal(outer.status, TANDEM_BAD_PROGRAM);
  assert_made(&nested.load);
  scene_destroy(&nested.load);
}

/* ---------------------------------------------------------------- 6: failed flights */

static void check_shared_failure(enum tandem_status status) {
  fake_vendor_reset(plain);
  struct scene_load loads[RACERS];
  struct tandem_stats before = scene_stats();
  fake_gate_close(plain, FAKE_BUILD);
  fake_fail_at(plain, FAKE_BUILD, 1, 1, status, "these bytes are no good");
  loads[0] = LOAD(plain, a, NULL);
  scene_start(&loads[0]);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  for (int i = 1; i < RACERS; i++) {
    loads[i] = LOAD(plain, a, NULL);
    scene_start(&loads[i]);
  }
  assert_true(scene_wait_waiting(RACERS - 1));
  fake_gate_open(plain, FAKE_BUILD);
  for (int i = 0; i < RACERS; i++) {
    scene_join(&loads[i]);
    assert_int_equal(loads[i].status, status);
    assert_int_equal(loads[i].error.code, status);
    assert_null(loads[i].load);
    assert_string_equal(loads[i].error.message, loads[0].error.message);
    assert_non_null(strstr(loads[i].error.message, "these bytes are no good"));
  }
  assert_int_equal(fake_count(plain, FAKE_BUILD), 1);
  assert_int_equal(scene_stats().failures - before.failures, RACERS);
  struct scene_load later = made(LOAD(plain, a, NULL)); /* and it is not remembered */
  scene_destroy(&later);
}

static void what_is_wrong_with_the_bytes_fails_every_waiter(void **state) {
  (void)state;
  BOUND(30);
  check_shared_failure(TANDEM_BAD_PROGRAM);
  check_shared_failure(TANDEM_UNSUPPORTED);
  check_shared_failure(TANDEM_BAD_OPTION);
}

static void check_failure_of_a_budget(enum tandem_status status) {
  fake_vendor_reset(budgets);
  struct scene_load loads[] = {LOAD(budgets, s, "weight_streaming_budget", "0", NULL),
                               LOAD(budgets, s, "weight_streaming_budget", "0", NULL),
                               LOAD(budgets, s, NULL)};
  fake_gate_close(budgets, FAKE_BUILD);
  fake_fail_at(budgets, FAKE_BUILD, 1, 1, status, "this budget cannot be set");
  scene_start(&loads[0]);
  assert_true(fake_wait_inside(budgets, FAKE_BUILD, 1));
  scene_start(&loads[1]);
  scene_start(&loads[2]);
  assert_true(scene_wait_waiting(2));
  fake_gate_open(budgets, FAKE_BUILD);
  for (int i = 0; i < 3; i++)
    scene_join(&loads[i]);
  assert_int_equal(loads[0].status, status);
  assert_int_equal(loads[1].status, status); /* asked for the same */
  assert_made(&loads[2]);
  assert_int_equal(fake_count(budgets, FAKE_BUILD), 2);
  scene_destroy(&loads[2]);
}

static void what_is_wrong_with_a_budget_fails_no_waiter_with_another(void **state) {
  (void)state;
  BOUND(30);
  check_failure_of_a_budget(TANDEM_UNSUPPORTED);
  check_failure_of_a_budget(TANDEM_BAD_OPTION);
}

static void check_retried_failure(enum tandem_status status) {
  fake_vendor_reset(plain);
  struct scene_load loads[RACERS];
  fake_gate_close(plain, FAKE_BUILD);
  fake_fail_at(plain, FAKE_BUILD, 1, 3, status, "not now");
  loads[0] = LOAD(plain, a, NULL);
  scene_start(&loads[0]);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  for (int i = 1; i < RACERS; i++) {
    loads[i] = LOAD(plain, a, NULL);
    scene_start(&loads[i]);
  }
  assert_true(scene_wait_waiting(RACERS - 1));
  fake_gate_open(plain, FAKE_BUILD);
  int failed = 0;
  for (int i = 0; i < RACERS; i++) {
    scene_join(&loads[i]);
    failed += loads[i].status != TANDEM_OK;
    assert_true(loads[i].status == TANDEM_OK || loads[i].status == status);
  }
  assert_int_equal(failed, 3);
  assert_int_equal(fake_count(plain, FAKE_BUILD), 4);
  assert_int_equal(fake_peak_inside(plain, FAKE_BUILD), 1); /* one at a time */
  assert_int_equal(scene_stats().engines, 1);
  destroy_all(loads, RACERS);
}

static void after_out_of_memory_or_a_device_error_waiters_try_one_at_a_time(void **state) {
  (void)state;
  BOUND(30);
  check_retried_failure(TANDEM_OUT_OF_MEMORY);
  check_retried_failure(TANDEM_DEVICE_ERROR);
}

static void a_failure_at_any_step_leaves_nothing_and_names_the_step(void **state) {
  (void)state;
  BOUND(60);
  static const enum fake_entry steps[] = {FAKE_PARSE, FAKE_RESOLVE, FAKE_BUILD, FAKE_CONTEXT_CREATE};
  static const enum tandem_status statuses[] = {TANDEM_BAD_PROGRAM, TANDEM_OUT_OF_MEMORY,
                                                TANDEM_DEVICE_ERROR};
  for (int healthy = 0; healthy < 2; healthy++) {
    struct scene_load other = LOAD(plain, a, NULL);
    if (healthy)
      scene_make(&other);
    for (size_t i = 0; i < 4; i++)
      for (size_t j = 0; j < 3; j++) {
        if (healthy && steps[i] == FAKE_BUILD)
          continue; /* a hit builds nothing */
        uint64_t live = td_memory_live(), memory = fake_memory_used(plain);
        for (int repeat = 0; repeat < 25; repeat++) {
          fake_fail_at(plain, steps[i], 1, 1, statuses[j], "an injected fault");
          struct scene_load load = LOAD(plain, a, NULL);
          scene_make(&load);
          assert_int_equal(load.status, statuses[j]);
          assert_null(load.load);
          if (!strstr(load.error.message, "an injected fault") || !strstr(load.error.message, "could not"))
            fail_msg("%s", load.error.message);
          assert_int_equal(td_memory_live(), live);
          assert_int_equal(fake_memory_used(plain), memory);
          assert_int_equal(scene_stats().loads, healthy);
        }
      }
    if (healthy) {
      assert_int_equal(scene_info(&other).users, 1);
      assert_true(scene_runs(&other, &a.model, 0));
      scene_destroy(&other);
    }
  }
}

static void a_vendor_that_says_nothing_still_gets_a_message(void **state) {
  (void)state;
  BOUND(30);
  fake_fail_at(plain, FAKE_BUILD, 1, 1, TANDEM_INTERNAL, NULL);
  struct scene_load load = LOAD(plain, a, NULL);
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_INTERNAL);
  assert_int_equal(load.error.code, TANDEM_INTERNAL);
  assert_true(load.error.message[0] != 0);
}

static void a_failing_context_fails_its_load_only(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, NULL);
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&second);
  assert_true(scene_wait_waiting(1));
  fake_gate_close(plain, FAKE_CONTEXT_CREATE);
  fake_gate_open(plain, FAKE_BUILD);
  assert_true(fake_wait_inside(plain, FAKE_CONTEXT_CREATE, 2));
  fake_vendor_reset(plain); /* opens the gates */
  scene_join(&first);
  scene_join(&second);
  assert_made(&first);
  assert_made(&second);
  scene_destroy(&first);
  scene_destroy(&second);

  /* one of the two contexts fails, the other load has the engine */
  first = LOAD(plain, a, NULL), second = LOAD(plain, a, NULL);
  fake_gate_close(plain, FAKE_BUILD);
  fake_fail_at(plain, FAKE_CONTEXT_CREATE, 1, 1, TANDEM_DEVICE_ERROR, "no context");
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_watch_waits(NULL, NULL);
  scene_start(&second);
  assert_true(scene_wait_waiting(1));
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  scene_join(&second);
  assert_int_equal((first.status == TANDEM_OK) + (second.status == TANDEM_OK), 1);
  assert_int_equal(scene_stats().engines, 1);
  assert_int_equal(fake_count(plain, FAKE_BUILD), 1);
  struct scene_load *alive = first.load ? &first : &second;
  assert_true(scene_runs(alive, &a.model, 0));
  scene_destroy(alive);

  /* nobody else holds it: the entry closes */
  fake_fail_at(plain, FAKE_CONTEXT_CREATE, 1, 1, TANDEM_DEVICE_ERROR, "no context");
  struct scene_load alone = LOAD(plain, a, NULL);
  scene_make(&alone);
  assert_int_equal(alone.status, TANDEM_DEVICE_ERROR);
  assert_int_equal(fake_live_engines(plain), 0);
}

static void out_of_memory_is_what_any_line_says(void **state) {
  (void)state;
  BOUND(30);
  static const enum fake_entry steps[] = {FAKE_BUILD, FAKE_CONTEXT_CREATE};
  for (int i = 0; i < 2; i++) {
    fake_vendor_reset(plain);
    fake_say(plain, steps[i], TANDEM_LOG_ERROR, TANDEM_OUT_OF_MEMORY, "cudaMalloc gave 2", 1, false);
    fake_say(plain, steps[i], TANDEM_LOG_ERROR, TANDEM_DEVICE_LOST, "a consequence", 1, false);
    fake_fail_at(plain, steps[i], 1, 1, TANDEM_BAD_PROGRAM, "the magic tag does not match");
    struct scene_load load = LOAD(plain, a, NULL);
    scene_make(&load);
    assert_int_equal(load.status, TANDEM_OUT_OF_MEMORY);
    char *decisive = strstr(load.error.message, "cudaMalloc gave 2");
    char *later = strstr(load.error.message, "the magic tag");
    assert_true(decisive && later && decisive < later);
    assert_non_null(strstr(load.error.message, "free"));
  }
}

static void a_lost_device_is_what_a_line_says(void **state) {
  (void)state;
  BOUND(30);
  fake_say(plain, FAKE_RUN, TANDEM_LOG_ERROR, TANDEM_DEVICE_LOST, "the device fell off the bus", 1, false);
  fake_fail_at(plain, FAKE_RUN, 1, 1, TANDEM_INTERNAL, "run failed");
  struct scene_load load = made(LOAD(plain, a, NULL));
  float x[5] = {0}, y[5];
  struct tandem_tensor in = {.data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 1, .shape = {5}};
  struct tandem_tensor out = in;
  out.data = y;
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_DEVICE_LOST);
  assert_non_null(strstr(error.message, "fell off the bus"));
  assert_int_equal(tandem_load_run(load.load, &desc, &error),
                   TANDEM_OK); /* the line came, the call succeeded */
  assert_int_equal(error.code, TANDEM_OK);
  scene_destroy(&load);
}

static void out_of_memory_tells_free_and_total_or_why_not(void **state) {
  (void)state;
  BOUND(30);
  fake_set_memory(plain, 512 << 20);
  struct sample big = {.model = a.model};
  big.model.cost = (uint64_t)1 << 40;
  big.payload = fake_payload_create(&big.model, &big.size);
  struct scene_load load = LOAD(plain, big, NULL);
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(load.error.message, "512 MiB"));
  assert_non_null(strstr(load.error.message, "cannot allocate"));
  fake_fail_at(plain, FAKE_MEMORY, 1, 1, TANDEM_DEVICE_ERROR, "the driver does not answer");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(load.error.message, "the driver does not answer"));
  free(big.payload);
}

/* ---------------------------------------------------------------- 7: the last release */

static void a_load_during_a_teardown_waits_and_two_copies_never_coexist(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load first = made(LOAD(plain, a, NULL)), second = LOAD(plain, a, NULL);
  fake_gate_close(plain, FAKE_ENGINE_DESTROY);
  scene_start_destroy(&first);
  assert_true(fake_wait_inside(plain, FAKE_ENGINE_DESTROY, 1));
  assert_int_equal(scene_stats().engines, 0);
  scene_start(&second);
  assert_true(scene_wait_waiting(1));
  assert_int_equal(fake_count(plain, FAKE_BUILD), 1);
  struct scene_load other = made(LOAD(plain, b, NULL)); /* others are not held up */
  fake_gate_open(plain, FAKE_ENGINE_DESTROY);
  scene_join(&first);
  scene_join(&second);
  assert_made(&second);
  assert_int_equal(fake_peak_copies(plain), 1);
  assert_int_equal(fake_count(plain, FAKE_BUILD), 3);
  assert_true(scene_info(&second).wait_seconds > 0);
  scene_destroy(&second);
  scene_destroy(&other);
}

static void a_lock_holder_builds_during_an_endless_teardown(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load first = made(LOAD(plain, a, NULL)),
                    second = LOAD(plain, a, "flight_timeout_ms", "20", NULL);
  fake_gate_close(plain, FAKE_ENGINE_DESTROY);
  scene_start_destroy(&first);
  assert_true(fake_wait_inside(plain, FAKE_ENGINE_DESTROY, 1));
  scene_make(&second);
  assert_made(&second);
  assert_true(scene_info(&second).fallback);
  fake_gate_open(plain, FAKE_ENGINE_DESTROY);
  scene_join(&first);
  scene_destroy(&second);
}

/* ---------------------------------------------------------------- 8: another budget */

static void without_the_option_another_budget_is_not_taken(void **state) {
  (void)state;
  BOUND(30);
  fake_set_memory(budgets, 1300);
  struct scene_load first = made(LOAD(budgets, s, "weight_streaming_budget", "600", NULL));
  struct scene_load second = LOAD(budgets, s, "weight_streaming_budget", "900", NULL);
  scene_make(&second);
  assert_int_equal(second.status, TANDEM_OUT_OF_MEMORY);
  assert_true(scene_runs(&first, &s.model, 0));
  scene_destroy(&first);
}

static void a_load_that_does_not_fit_may_take_another_budget(void **state) {
  (void)state;
  BOUND(30);
  struct tandem_stats before = scene_stats();
  fake_set_memory(budgets, 1300);
  struct scene_load first = made(LOAD(budgets, s, "weight_streaming_budget", "600", NULL));
  struct scene_load second =
      made(LOAD(budgets, s, "weight_streaming_budget", "900", "share_across_budgets", "true", NULL));
  struct tandem_load_info info = scene_info(&second);
  assert_true(info.shared && info.fallback);
  assert_int_equal(info.budget, 600);
  assert_int_equal(info.engine_id, scene_info(&first).engine_id);
  struct tandem_stats after = scene_stats();
  assert_int_equal(after.fallbacks - before.fallbacks, 1);
  int line = scene_find_line("share_across_budgets", 0);
  assert_true(line >= 0);
  assert_int_equal(scene_find_line("cannot allocate", line), -1); /* the attempt's lines come before it */
  line = scene_find_line("cannot allocate", 0);
  assert_true(line >= 0);
  assert_int_equal(scene_line_level(line), TANDEM_LOG_WARNING);
  assert_true(scene_runs(&second, &s.model, 0));
  scene_destroy(&first);
  scene_destroy(&second);
}

static void a_context_that_does_not_fit_may_take_another_budget(void **state) {
  (void)state;
  BOUND(30);
  fake_set_memory(budgets, 100 + 200 + FAKE_CONTEXT_COST + 100 + 900); /* no room for a second context */
  struct scene_load first = made(LOAD(budgets, s, "weight_streaming_budget", "200", NULL));
  struct scene_load second =
      made(LOAD(budgets, s, "weight_streaming_budget", "900", "share_across_budgets", "true", NULL));
  assert_int_equal(scene_info(&second).budget, 200);
  assert_true(scene_info(&second).fallback);
  assert_int_equal(fake_live_engines(budgets), 1);
  scene_destroy(&first);
  scene_destroy(&second);
}

/* ---------------------------------------------------------------- 9: counts */

static void counts_are_exact(void **state) {
  (void)state;
  BOUND(30);
  struct sample unknown = {.model = b.model};
  unknown.model.flags = FAKE_MODEL_UNKNOWN_SIZE;
  unknown.payload = fake_payload_create(&unknown.model, &unknown.size);
  struct tandem_stats start = scene_stats();
  struct scene_load loads[] = {LOAD(plain, a, NULL), LOAD(plain, a, NULL), LOAD(plain, a, NULL),
                               LOAD(plain, unknown, NULL), LOAD(plain, unknown, NULL)};
  scene_make(&loads[0]);
  struct tandem_stats one = scene_stats();
  uint64_t cost = scene_info(&loads[0]).engine_bytes;
  assert_true(cost > 1000);
  assert_int_equal(scene_info(&loads[0]).device_bytes, 1000);
  assert_false(scene_info(&loads[0]).engine_bytes_estimated);
  assert_int_equal(one.engines, 1);
  assert_int_equal(one.loads, 1);
  assert_int_equal(one.bytes_held, cost);
  assert_int_equal(one.bytes_saved, 0);
  assert_false(one.bytes_estimated);
  assert_true(one.digest_seconds > start.digest_seconds);
  assert_true(one.build_seconds > start.build_seconds);
  for (int i = 1; i < 5; i++) {
    scene_make(&loads[i]);
    assert_made(&loads[i]);
  }
  uint64_t estimate = scene_info(&loads[3]).engine_bytes;
  assert_true(scene_info(&loads[3]).engine_bytes_estimated);
  assert_int_equal(estimate, unknown.size - FAKE_ENGINE_OFFSET);
  struct tandem_stats five = scene_stats();
  assert_int_equal(five.engines, 2);
  assert_int_equal(five.loads, 5);
  assert_int_equal(five.builds - start.builds, 2);
  assert_int_equal(five.hits - start.hits, 3);
  assert_int_equal(five.joined, start.joined);
  assert_int_equal(five.failures, start.failures);
  assert_int_equal(five.bytes_held, cost + estimate);
  assert_int_equal(five.bytes_saved, 2 * cost + estimate);
  assert_true(five.bytes_estimated);
  destroy_all(loads, 5);
  struct tandem_stats last = scene_stats();
  assert_int_equal(last.builds - start.builds, 2);
  assert_int_equal(last.bytes_held, 0);
  assert_false(last.bytes_estimated);
  free(unknown.payload);
}

/* ---------------------------------------------------------------- 10: fork, exit, cancellation */

static int end_of(pid_t child) {
  int status = -1;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void a_forked_child_can_load_whatever_other_threads_did(void **state) {
  (void)state;
  BOUND(60);
  struct scene_load old = made(LOAD(keeps, b, NULL)), building = LOAD(keeps, a, NULL),
                    waiting = LOAD(keeps, a, NULL);
  struct scene_load inherited = made(LOAD(plain, b, NULL));
  fake_gate_close(keeps, FAKE_BUILD);
  scene_start(&building);
  assert_true(fake_wait_inside(keeps, FAKE_BUILD, 1));
  scene_start(&waiting);
  assert_true(scene_wait_waiting(1));
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of a_forked_child_can_load_whatever_other_threads_did", 5);
    fake_vendor_reset(keeps);
    struct scene_load mine = LOAD(keeps, a, NULL), again = LOAD(keeps, a, NULL), fresh = LOAD(plain, b, NULL);
    scene_make(&mine); /* the parent's flight is not waited for */
    scene_make(&again);
    int failed = !(mine.status == TANDEM_OK && again.status == TANDEM_OK && scene_info(&again).shared &&
                   scene_runs(&mine, &a.model, 0));
    scene_destroy(&mine);
    scene_destroy(&again);
    failed |= scene_runs(&old, &b.model, 0) ? 0 : 2; /* its vendor survives fork */
    struct scene_load shares = LOAD(keeps, b, NULL);
    scene_make(&shares);
    failed |= shares.status == TANDEM_OK && scene_info(&shares).shared ? 0 : 4;
    scene_destroy(&shares);
    struct tandem_tensor in = {.dtype = TANDEM_FLOAT32, .rank = 1, .shape = {5}};
    float x[5] = {0}, y[5];
    in.data = x;
    in.size = sizeof x;
    struct tandem_tensor out = in;
    out.data = y;
    struct tandem_run_desc desc = {
        .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
    struct tandem_error error = {0};
    enum tandem_status status = tandem_load_run(inherited.load, &desc, &error);
    failed |= status == TANDEM_DEVICE_LOST && strstr(error.message, "fork") ? 0 : 8;
    failed |= tandem_load_reset(inherited.load, &error) == TANDEM_DEVICE_LOST ? 0 : 16;
    scene_make(&fresh); /* not the inherited engine */
    failed |=
        fresh.status == TANDEM_OK && !scene_info(&fresh).shared && scene_runs(&fresh, &b.model, 0) ? 0 : 32;
    scene_destroy(&fresh);
    uint64_t destroyed = fake_count(plain, FAKE_ENGINE_DESTROY) + fake_count(plain, FAKE_CONTEXT_DESTROY);
    scene_destroy(&inherited); /* only forgotten */
    failed |= fake_count(plain, FAKE_ENGINE_DESTROY) + fake_count(plain, FAKE_CONTEXT_DESTROY) == destroyed
                  ? 0
                  : 64;
    scene_destroy(&old);
    failed |= scene_stats().engines == 0 ? 0 : 128;
    bound_end_child(failed);
  }
  int status = end_of(child);
  fake_gate_open(keeps, FAKE_BUILD);
  scene_join(&building);
  scene_join(&waiting);
  assert_int_equal(status, 0);
  assert_made(&building);
  assert_made(&waiting);
  assert_true(scene_runs(&inherited, &b.model, 0));
  scene_destroy(&building);
  scene_destroy(&waiting);
  scene_destroy(&inherited);
  scene_destroy(&old);
}

/* The entries that a load, a run and an unload go through and in which another thread may stand at a fork. */
static const enum fake_entry lost_entries[] = {FAKE_PARSE,          FAKE_RESOLVE, FAKE_BUILD,
                                               FAKE_CONTEXT_CREATE, FAKE_RUN,     FAKE_CONTEXT_DESTROY,
                                               FAKE_ENGINE_DESTROY};

static void *load_run_unload(void *passed) {
  struct scene_load load = LOAD(plain, a, NULL);
  scene_make(&load);
  *(bool *)passed = load.status == TANDEM_OK && scene_runs(&load, &a.model, 0);
  scene_destroy(&load);
  return NULL;
}

static void ignore_fact(void *user, const char *key, const char *value) {
  (void)user, (void)key, (void)value;
}

static bool is_refused(struct scene_load *load) {
  scene_make(load);
  return load->status == TANDEM_DEVICE_LOST && strstr(load->error.message, "when process") &&
         strstr(load->error.message, "1 call into vendors (fake)") &&
         strstr(load->error.message, "start the child with exec");
}

/* What the vendor or the loader had locked on that thread stays locked in the child. */
static void a_child_forked_during_another_thread_s_call_refuses_its_vendor(void **state) {
  (void)state;
  BOUND(120);
  for (size_t i = 0; i < sizeof lost_entries / sizeof *lost_entries; i++) {
    enum fake_entry entry = lost_entries[i];
    pthread_t thread;
    bool passed = false;
    fake_gate_close(plain, entry);
    assert_int_equal(pthread_create(&thread, NULL, load_run_unload, &passed), 0);
    assert_true(fake_wait_inside(plain, entry, 1));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
      bound_set("a child forked during another thread's call", 5);
      uint64_t parsed = fake_count(plain, FAKE_PARSE);
      struct scene_load mine = LOAD(plain, b, NULL), other = LOAD(keeps, b, NULL);
      struct tandem_error error = {0};
      int failed = is_refused(&mine) ? 0 : 1;
      failed |= tandem_payload_describe("FakeBackend", b.payload, b.size, ignore_fact, NULL, &error) ==
                        TANDEM_DEVICE_LOST
                    ? 0
                    : 2;
      char hex[65];
      failed |=
          tandem_payload_sha256("FakeBackend", b.payload, b.size, NULL, hex, &error) == TANDEM_DEVICE_LOST
              ? 0
              : 32;
      failed |= fake_count(plain, FAKE_PARSE) == parsed ? 0 : 4; /* nothing of the vendor was entered */
      scene_make(&other);
      failed |= other.status == TANDEM_OK && scene_runs(&other, &b.model, 0) ? 0 : 8;
      scene_destroy(&other);
      pid_t grandchild = fork(); /* has the same locks */
      if (grandchild == 0)
        bound_end_child(is_refused(&mine) ? 0 : 1);
      failed |= end_of(grandchild) == 0 ? 0 : 16;
      bound_end_child(failed);
    }
    int status = end_of(child);
    fake_gate_open(plain, entry);
    pthread_join(thread, NULL);
    assert_int_equal(status, 0);
    assert_true(passed);
    child = fork();
    if (child == 0) { /* nothing is under way any more */
      bound_set("a child forked after another thread's call", 5);
      load_run_unload(&passed);
      bound_end_child(passed ? 0 : 1);
    }
    assert_int_equal(end_of(child), 0);
  }
}

static void a_forked_child_does_not_wait_for_a_teardown_of_its_parent(void **state) {
  (void)state;
  BOUND(60);
  struct scene_load gone = made(LOAD(keeps, a, NULL));
  fake_gate_close(keeps, FAKE_ENGINE_DESTROY);
  scene_start_destroy(&gone);
  assert_true(fake_wait_inside(keeps, FAKE_ENGINE_DESTROY, 1));
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of a_forked_child_does_not_wait_for_a_teardown_of_its_parent", 5);
    fake_vendor_reset(keeps);
    struct scene_load mine = LOAD(keeps, a, NULL);
    scene_make(&mine);
    bool runs = mine.status == TANDEM_OK && scene_runs(&mine, &a.model, 0);
    scene_destroy(&mine);
    bound_end_child(runs ? 0 : 1);
  }
  int status = end_of(child);
  fake_gate_open(keeps, FAKE_ENGINE_DESTROY);
  scene_join(&gone);
  assert_int_equal(status, 0);
}

static void a_forked_child_does_not_wait_for_a_run_of_its_parent(void **state) {
  (void)state;
  BOUND(60);
  struct scene_load load = made(LOAD(keeps, a, NULL));
  pthread_t thread;
  fake_gate_close(keeps, FAKE_RUN);
  assert_int_equal(pthread_create(&thread, NULL, run_there, &load), 0);
  assert_true(fake_wait_inside(keeps, FAKE_RUN, 1));
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of a_forked_child_does_not_wait_for_a_run_of_its_parent", 5);
    fake_vendor_reset(keeps);
    bool runs = scene_runs(&load, &a.model, 0);
    scene_destroy(&load);
    bound_end_child(runs ? 0 : 1);
  }
  int status = end_of(child);
  fake_gate_open(keeps, FAKE_RUN);
  void *passed = NULL;
  pthread_join(thread, &passed);
  assert_non_null(passed);
  assert_int_equal(status, 0);
  scene_destroy(&load);
}

static pid_t forked_child;

static void fork_inside(void *user) {
  (void)user;
  fflush(NULL);
  forked_child = fork();
  if (forked_child != 0)
    return;
  bound_set("the child of a_fork_inside_a_vendors_call_leaves_both_sides_usable", 5);
  struct scene_load nested = LOAD(plain, a, NULL); /* its flight is this thread's own */
  scene_make(&nested);
  bool runs = nested.status == TANDEM_OK && scene_runs(&nested, &a.model, 0);
  scene_destroy(&nested);
  bound_end_child(runs ? 0 : 1);
}

static void a_fork_inside_a_vendors_call_leaves_both_sides_usable(void **state) {
  (void)state;
  BOUND(60);
  static const enum fake_entry entries[] = {FAKE_BUILD, FAKE_CONTEXT_CREATE, FAKE_RUN, FAKE_ENGINE_DESTROY};
  for (int i = 0; i < 4; i++) {
    fake_call_back(plain, entries[i], 1, fork_inside, NULL);
    struct scene_load load = made(LOAD(plain, a, NULL));
    assert_true(scene_runs(&load, &a.model, 0));
    scene_destroy(&load);
    assert_int_equal(end_of(forked_child), 0);
  }
}

/* Both sides go on from inside the vendor's call; `user` gets what fork returned. */
static void fork_and_go_on(void *user) {
  pid_t *child = user;
  fflush(NULL);
  *child = fork();
  if (*child == 0)
    bound_set("a child that was forked inside a vendor's call", 5);
}

static void a_run_that_forked_ends_in_the_child_too(void **state) {
  (void)state;
  BOUND(60);
  pid_t child = -1;
  struct scene_load load = made(LOAD(keeps, a, NULL));
  fake_call_back(keeps, FAKE_RUN, 1, fork_and_go_on, &child);
  bool runs = scene_runs(&load, &a.model, 0);
  if (child == 0) {
    runs = runs && scene_runs(&load, &a.model, 0) && tandem_load_reset(load.load, NULL) == TANDEM_OK;
    scene_destroy(&load); /* waits for uses that are under way: there is none */
    bound_end_child(runs && scene_stats().engines == 0 ? 0 : 1);
  }
  int status = end_of(child);
  assert_true(runs);
  assert_true(scene_runs(&load, &a.model, 0));
  scene_destroy(&load);
  assert_int_equal(status, 0);
}

static void a_build_that_forked_is_published_in_the_child_too(void **state) {
  (void)state;
  BOUND(60);
  pid_t child = -1;
  struct scene_load first = LOAD(keeps, a, NULL), second = LOAD(keeps, a, NULL);
  fake_call_back(keeps, FAKE_BUILD, 1, fork_and_go_on, &child);
  scene_make(&first);
  scene_make(&second);
  bool made = first.status == TANDEM_OK && second.status == TANDEM_OK;
  bool shared = made && scene_info(&second).shared && scene_info(&first).users == 2 &&
                scene_stats().engines == 1 && scene_runs(&second, &a.model, 0);
  scene_destroy(&first);
  scene_destroy(&second);
  bool gone = scene_stats().engines == 0;
  if (child == 0)
    bound_end_child(shared && gone ? 0 : 1);
  int status = end_of(child);
  assert_true(shared && gone);
  assert_int_equal(status, 0);
}

/* In the child of a process where a waiter was building for itself: 0 when a waiter gets that turn here. */
static int build_for_oneself(void) {
  struct scene_latch latch;
  scene_latch_init(&latch);
  struct scene_load slow = LOAD(keeps, a, NULL), other = LOAD(keeps, a, "flight_timeout_ms", "1", NULL);
  fake_call_back(keeps, FAKE_BUILD, 1, scene_latch_wait, &latch);
  scene_start(&slow);
  if (!fake_wait_inside(keeps, FAKE_BUILD, 1))
    return 1;
  scene_make(&other); /* would wait for the slow one for as long as that takes */
  bool alone = other.status == TANDEM_OK && scene_info(&other).fallback && !scene_info(&other).shared;
  scene_latch_open(&latch);
  scene_join(&slow);
  scene_destroy(&other);
  scene_destroy(&slow);
  return alone ? 0 : 2;
}

static void *end_at_once(void *nothing) {
  return nothing;
}

/* Whether a child that is forked now can start threads at all: qemu-user ends it when it does. */
static bool children_start_threads(void) {
  pthread_t thread;
  fflush(NULL);
  pid_t child = fork();
  if (child == 0)
    bound_end_child(pthread_create(&thread, NULL, end_at_once, NULL) || pthread_join(thread, NULL));
  return end_of(child) == 0;
}

static void a_forked_child_has_the_turn_that_a_thread_of_its_parent_had(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__)
  skip(); /* the sanitizer can start no thread in a child that was forked beside threads */
#endif
  BOUND(60);
  struct scene_load first = LOAD(plain, a, NULL), second = LOAD(plain, a, "flight_timeout_ms", "1", NULL);
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&second);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 2)); /* it has the turn to build for itself */
  bool possible = children_start_threads();
  pid_t child = possible ? fork() : -1;
  if (child == 0) {
    bound_set("the child of a_forked_child_has_the_turn_that_a_thread_of_its_parent_had", 5);
    bound_end_child(build_for_oneself());
  }
  int status = possible ? end_of(child) : 0;
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  scene_join(&second);
  assert_made(&first);
  assert_made(&second);
  scene_destroy(&first);
  scene_destroy(&second);
  if (!possible)
    skip();
  assert_int_equal(status, 0);
}

static void exit_without_unloading_is_clean(void **state) {
  (void)state;
  BOUND(60);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of exit_without_unloading_is_clean", 10);
    struct scene_load load = LOAD(plain, a, NULL);
    scene_make(&load);
    if (load.status != TANDEM_OK || !scene_runs(&load, &a.model, 0))
      _exit(1);
    exit(0); /* exit handlers run, the load is alive */
  }
  assert_int_equal(end_of(child), 0);
}

static struct scene_load at_exit;

static void unload_at_exit(void) {
  scene_destroy(&at_exit);
  if (scene_stats().engines != 0)
    _exit(3);
}

static void unloading_in_an_exit_handler_is_clean(void **state) {
  (void)state;
  BOUND(60);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of unloading_in_an_exit_handler_is_clean", 10);
    atexit(unload_at_exit);
    at_exit = LOAD(plain, a, NULL);
    scene_make(&at_exit);
    exit(at_exit.status == TANDEM_OK ? 0 : 1);
  }
  assert_int_equal(end_of(child), 0);
}

static void *load_and_note(void *user) {
  struct scene_load *load = user;
  scene_make(load);
  pthread_testcancel(); /* acted on after the call */
  return NULL;
}

static void cancellation_is_acted_on_after_the_call(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load building = LOAD(plain, a, NULL), waiting = LOAD(plain, a, NULL);
  pthread_t builder, waiter;
  fake_gate_close(plain, FAKE_BUILD);
  assert_int_equal(pthread_create(&builder, NULL, load_and_note, &building), 0);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  assert_int_equal(pthread_create(&waiter, NULL, load_and_note, &waiting), 0);
  assert_true(scene_wait_waiting(1));
  assert_int_equal(pthread_cancel(builder), 0); /* the builder stands in a cond wait of the fake vendor */
  assert_int_equal(pthread_cancel(waiter), 0);
  fake_gate_open(plain, FAKE_BUILD);
  void *end_value = NULL;
  pthread_join(builder, &end_value);
  assert_ptr_equal(end_value, PTHREAD_CANCELED);
  pthread_join(waiter, &end_value);
  assert_ptr_equal(end_value, PTHREAD_CANCELED);
  assert_made(&building); /* both calls had come to their end */
  assert_made(&waiting);
  scene_destroy(&building);
  scene_destroy(&waiting);
}

/* ---------------------------------------------------------------- options that decide who shares */

static void a_load_that_does_not_share_neither_uses_nor_publishes(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load before = made(LOAD(plain, a, NULL));
  struct scene_load alone = made(LOAD(plain, a, "use_shared_engines", "false", NULL));
  struct scene_load alone_too = made(LOAD(plain, a, "use_shared_engines", "0", NULL));
  struct scene_load after = made(LOAD(plain, a, NULL));
  assert_int_equal(fake_count(plain, FAKE_BUILD), 3);
  assert_false(scene_info(&alone).shared || scene_info(&alone_too).shared);
  assert_int_equal(scene_info(&alone).users, 1);
  assert_int_equal(scene_info(&after).engine_id, scene_info(&before).engine_id);
  assert_true(scene_info(&alone).digest_seconds == 0); /* nothing to look up */
  scene_destroy(&before);
  scene_destroy(&after);
  struct scene_load later = made(LOAD(plain, a, NULL));
  assert_false(scene_info(&later).shared);
  scene_destroy(&alone);
  scene_destroy(&alone_too);
  scene_destroy(&later);
}

static void trust_domains_do_not_share(void **state) {
  (void)state;
  BOUND(30);
  struct scene_load one = made(LOAD(plain, a, "trust_domain", "one", NULL));
  struct scene_load two = made(LOAD(plain, a, "trust_domain", "two", NULL));
  struct scene_load none = made(LOAD(plain, a, NULL));
  struct scene_load again = made(LOAD(plain, a, "trust_domain", "one", NULL));
  assert_int_equal(fake_count(plain, FAKE_BUILD), 3);
  assert_int_equal(scene_info(&again).engine_id, scene_info(&one).engine_id);
  scene_destroy(&one);
  scene_destroy(&two);
  scene_destroy(&none);
  scene_destroy(&again);
}

static void only_the_expected_bytes_get_an_engine(void **state) {
  (void)state;
  BOUND(30);
  char right[65];
  assert_int_equal(
      tandem_sha256((const char *)a.payload + FAKE_ENGINE_OFFSET, a.size - FAKE_ENGINE_OFFSET, right, NULL),
      TANDEM_OK);
  struct scene_load live = made(LOAD(plain, a, "expect_sha256", right, NULL));
  char wrong[65];
  memcpy(wrong, right, sizeof wrong);
  wrong[0] = wrong[0] == '0' ? '1' : '0';
  struct scene_load other = LOAD(plain, a, "expect_sha256", wrong, NULL);
  scene_make(&other); /* although an engine of these bytes lives */
  assert_int_equal(other.status, TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(other.error.message, wrong));
  assert_non_null(strstr(other.error.message, right));
  assert_int_equal(scene_info(&live).users, 1);
  scene_destroy(&live);
}

/* ---------------------------------------------------------------- bytes */

struct mapped {
  char path[64];
  int file;
  void *map;
};

static struct mapped map_payload(const struct sample *sample) {
  struct mapped mapped = {.path = "/tmp/tandem-pool-XXXXXX"};
  mapped.file = mkstemp(mapped.path);
  assert_true(mapped.file >= 0);
  assert_int_equal(write(mapped.file, sample->payload, sample->size), (ssize_t)sample->size);
  mapped.map = mmap(NULL, sample->size, PROT_READ, MAP_SHARED, mapped.file, 0);
  assert_true(mapped.map != MAP_FAILED);
  return mapped;
}

static void unmap_payload(struct mapped *mapped, const struct sample *sample) {
  munmap(mapped->map, sample->size);
  close(mapped->file);
  unlink(mapped->path);
}

static void kept_bytes_are_mapped_or_copied_as_asked(void **state) {
  (void)state;
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load map = made(scene_load(keeps, mapped.map, a.size, NULL));
  assert_int_equal(scene_info(&map).payload_bytes,
                   scene_maps_twice() ? TANDEM_PAYLOAD_MAPPED : TANDEM_PAYLOAD_COPIED);
  assert_true(scene_info(&map).payload_bytes_size >= a.size - FAKE_ENGINE_OFFSET);
  scene_destroy(&map);
  struct scene_load copy = made(scene_load(keeps, mapped.map, a.size, "payload_bytes", "copy", NULL));
  assert_int_equal(scene_info(&copy).payload_bytes, TANDEM_PAYLOAD_COPIED);
  assert_int_equal(scene_info(&copy).payload_bytes_size, a.size - FAKE_ENGINE_OFFSET);
  unmap_payload(&mapped, &a);
  assert_true(scene_runs(&copy, &a.model, 0));
  scene_destroy(&copy);
  struct scene_load heap = made(LOAD(keeps, a, NULL)); /* memory cannot be mapped again */
  assert_int_equal(scene_info(&heap).payload_bytes, TANDEM_PAYLOAD_COPIED);
  scene_destroy(&heap);
  struct scene_load released = made(LOAD(plain, a, NULL));
  assert_int_equal(scene_info(&released).payload_bytes, TANDEM_PAYLOAD_RELEASED);
  assert_int_equal(scene_info(&released).payload_bytes_size, 0);
  scene_destroy(&released);
}

static void an_engine_whose_file_changed_is_not_shared(void **state) {
  (void)state;
  if (!scene_maps_twice())
    skip();
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load first = made(scene_load(keeps, mapped.map, a.size, NULL));
  struct scene_load hit = made(scene_load(keeps, mapped.map, a.size, NULL));
  assert_true(scene_info(&hit).shared);
  scene_destroy(&hit);
  /* other bytes of the same size in the same file: what the mapped engine computes from now on */
  assert_int_equal(pwrite(mapped.file, b.payload, b.size, 0), (ssize_t)b.size);
  struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
  assert_int_equal(futimens(mapped.file, times), 0); /* coarse clocks: the stamp differs for sure */
  struct tandem_stats before = scene_stats();
  struct scene_load second = made(LOAD(keeps, a, NULL)); /* the true bytes of A, from memory */
  assert_int_equal(scene_stats().hits, before.hits);
  assert_int_equal(scene_stats().builds, before.builds + 1);
  assert_false(scene_info(&second).shared);
  assert_true(scene_runs(&second, &a.model, 0));
  assert_true(scene_find_line("file", 0) >= 0);
  struct scene_load third = made(LOAD(keeps, a, NULL)); /* and the new one is the one to share */
  assert_int_equal(scene_info(&third).engine_id, scene_info(&second).engine_id);
  scene_destroy(&first);
  scene_destroy(&second);
  scene_destroy(&third);
  unmap_payload(&mapped, &a);
}

/* In place; the stamp differs for sure, however coarse the file system's clock is. */
static void rewrite(const struct mapped *mapped, const void *bytes, size_t size) {
  struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
  assert_int_equal(pwrite(mapped->file, bytes, size, 0), (ssize_t)size);
  assert_int_equal(futimens(mapped->file, times), 0);
}

/* A's file becomes B's after a load took the digest of A and before it builds. */
static void an_engine_of_a_file_rewritten_before_the_build_is_not_shared(void **state) {
  (void)state;
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load first = scene_load(plain, mapped.map, a.size, NULL);
  struct scene_load waiters[3] = {LOAD(plain, a, NULL), LOAD(plain, a, NULL), LOAD(plain, a, NULL)};
  struct tandem_stats before = scene_stats();
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  for (int i = 0; i < 3; i++)
    scene_start(&waiters[i]);
  assert_true(scene_wait_waiting(3));
  rewrite(&mapped, b.payload, b.size);
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  assert_made(&first);
  assert_true(scene_runs(&first, &b.model, 0)); /* what it was built from */
  for (int i = 0; i < 3; i++)
    scene_join(&waiters[i]);
  for (int i = 0; i < 3; i++) {
    assert_made(&waiters[i]);
    assert_true(scene_runs(&waiters[i], &a.model, 0));
    assert_int_equal(scene_info(&waiters[i]).users, 3); /* with each other */
  }
  int line = scene_find_line("changed while it was loaded", 0);
  assert_true(line >= 0);
  assert_int_equal(scene_line_level(line), TANDEM_LOG_WARNING);
  struct scene_load later = made(LOAD(plain, a, NULL));
  assert_true(scene_info(&later).shared && scene_runs(&later, &a.model, 0));
  assert_int_equal(scene_info(&first).users, 1);
  assert_int_equal(scene_stats().builds - before.builds, 2);
  assert_int_equal(scene_stats().engines, 2);
  scene_destroy(&first);
  destroy_all(waiters, 3);
  scene_destroy(&later);
  unmap_payload(&mapped, &a);
}

/* Where the vendor keeps the bytes their stamp is taken at the build: it is the rewritten file's own. */
static void a_mapped_engine_of_a_file_rewritten_during_a_teardown_is_not_shared(void **state) {
  (void)state;
  if (!scene_maps_twice())
    skip();
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load gone = made(LOAD(keeps, a, NULL));
  struct scene_load first = scene_load(keeps, mapped.map, a.size, NULL);
  fake_gate_close(keeps, FAKE_ENGINE_DESTROY);
  scene_start_destroy(&gone);
  assert_true(fake_wait_inside(keeps, FAKE_ENGINE_DESTROY, 1));
  scene_start(&first);
  assert_true(scene_wait_waiting(1)); /* the digest is taken */
  rewrite(&mapped, b.payload, b.size);
  fake_gate_open(keeps, FAKE_ENGINE_DESTROY);
  scene_join(&gone);
  scene_join(&first);
  assert_made(&first);
  assert_int_equal(scene_info(&first).payload_bytes, TANDEM_PAYLOAD_MAPPED);
  assert_true(scene_runs(&first, &b.model, 0));
  struct scene_load second = made(LOAD(keeps, a, NULL)), third = made(LOAD(keeps, a, NULL));
  assert_false(scene_info(&second).shared);
  assert_true(scene_info(&third).shared);
  assert_true(scene_runs(&second, &a.model, 0));
  assert_true(scene_runs(&third, &a.model, 0));
  scene_destroy(&first);
  scene_destroy(&second);
  scene_destroy(&third);
  unmap_payload(&mapped, &a);
}

static void a_bad_program_that_a_rewrite_made_is_the_error_of_its_load_only(void **state) {
  (void)state;
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load first = scene_load(plain, mapped.map, a.size, NULL), waiter = LOAD(plain, a, NULL);
  void *zeros = calloc(1, a.size);
  assert_non_null(zeros);
  fake_gate_close(plain, FAKE_BUILD);
  scene_start(&first);
  assert_true(fake_wait_inside(plain, FAKE_BUILD, 1));
  scene_start(&waiter);
  assert_true(scene_wait_waiting(1));
  rewrite(&mapped, zeros, a.size);
  fake_gate_open(plain, FAKE_BUILD);
  scene_join(&first);
  scene_join(&waiter);
  assert_int_equal(first.status, TANDEM_BAD_PROGRAM);
  assert_made(&waiter);
  assert_true(scene_runs(&waiter, &a.model, 0));
  assert_true(scene_find_line("changed while it was loaded", 0) >= 0);
  scene_destroy(&waiter);
  unmap_payload(&mapped, &a);
  free(zeros);
}

/* Approved is A. B comes into its file after that was checked: before the digest, where B's engine would be
 * found, or after it, where one of B would be built. */
static void bytes_that_come_into_an_approved_file_while_it_loads_are_refused(void **state) {
  (void)state;
  BOUND(30);
  static const enum fake_entry places[] = {FAKE_RESOLVE, FAKE_BUILD};
  char sum[65];
  assert_int_equal(
      tandem_sha256((const char *)a.payload + FAKE_ENGINE_OFFSET, a.size - FAKE_ENGINE_OFFSET, sum, NULL),
      TANDEM_OK);
  for (int i = 0; i < 4; i++) {
    struct mapped mapped = map_payload(&a);
    struct scene_load theirs = made(LOAD(plain, b, NULL));
    struct scene_load first = scene_load(plain, mapped.map, a.size, "expect_sha256", sum,
                                         "use_shared_engines", i < 2 ? "true" : "false", NULL);
    enum fake_entry place = places[i % 2];
    fake_gate_close(plain, place);
    scene_start(&first);
    assert_true(fake_wait_inside(plain, place, 1));
    rewrite(&mapped, b.payload, b.size);
    fake_gate_open(plain, place);
    scene_join(&first);
    assert_int_equal(first.status, TANDEM_BAD_PROGRAM);
    assert_non_null(strstr(first.error.message, "expect_sha256"));
    assert_int_equal(scene_stats().engines, 1);
    scene_destroy(&theirs);
    unmap_payload(&mapped, &a);
  }
}

static void an_engine_whose_file_was_replaced_by_rename_is_shared(void **state) {
  (void)state;
  BOUND(30);
  struct mapped mapped = map_payload(&a);
  struct scene_load first = made(scene_load(keeps, mapped.map, a.size, NULL));
  struct mapped other = map_payload(&b);
  assert_int_equal(rename(other.path, mapped.path), 0);
  struct scene_load second = made(LOAD(keeps, a, NULL));
  assert_true(scene_info(&second).shared);
  assert_true(scene_runs(&second, &a.model, 0));
  scene_destroy(&first);
  scene_destroy(&second);
  unmap_payload(&mapped, &a);
  unmap_payload(&other, &b);
}

/* ---------------------------------------------------------------- allocations */

static void every_failing_allocation_with_budgets_and_kept_bytes_leaves_nothing(void **state) {
  (void)state;
  BOUND(60);
  struct mapped mapped = map_payload(&s);
  struct scene_load live = made(LOAD(budgets, s, "weight_streaming_budget", "500", NULL));
  scene_runs(&live, &s.model, 0);
  for (int kind = 0; kind < 4; kind++) {
    uint64_t start = td_memory_live();
    for (uint64_t n = 1;; n++) {
      struct scene_load load = kind == 0   ? LOAD(budgets, s, NULL) /* builds, adopts */
                               : kind == 1 ? scene_load(keeps, mapped.map, s.size, NULL)
                               : kind == 2 ? LOAD(keeps, s, "payload_bytes", "copy", "identity", "fast", NULL)
                                           : LOAD(plain, s, "use_shared_engines", "false", NULL);
      td_memory_fail_at(n);
      scene_make(&load);
      bool reached = td_memory_count() >= n;
      td_memory_fail_at(0);
      assert_true(load.status == TANDEM_OK || load.status == TANDEM_OUT_OF_MEMORY);
      scene_destroy(&load);
      scene_clear_log();
      if (td_memory_live() != start)
        fail_msg("kind %d, allocation %llu: %lld blocks left", kind, (unsigned long long)n,
                 (long long)(td_memory_live() - start));
      if (!reached)
        break;
      assert_true(n < 10000);
    }
  }
  scene_destroy(&live);
  unmap_payload(&mapped, &s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  plain = fake_vendor_create("fake", "FakeBackend", 0);
  budgets = fake_vendor_create("fake-budget", "FakeBudgetBackend", TANDEM_VENDOR_HAS_BUDGET);
  keeps = fake_vendor_create("fake-keeps", "FakeKeepsBackend",
                             TANDEM_VENDOR_KEEPS_ENGINE_BYTES | TANDEM_VENDOR_SURVIVES_FORK);
  a.payload = fake_payload_create(&a.model, &a.size);
  b.payload = fake_payload_create(&b.model, &b.size);
  s.payload = fake_payload_create(&s.model, &s.size);
  if (!plain || !budgets || !keeps || !a.payload || !b.payload || !s.payload ||
      tandem_set_option(NULL, "log_level", "debug", NULL) != TANDEM_OK)
    return 1;
  const struct CMUnitTest tests[] = {
      TEST(a_second_load_waits_for_the_flight),
      TEST(loads_of_other_identities_are_not_held_up),
      TEST(racers_with_other_budgets_wait_for_the_first_flight),
      TEST(ten_times_the_budget_shares_with_once),
      TEST(another_effective_budget_is_another_engine),
      TEST(automatic_shares_with_automatic),
      TEST(an_automatic_load_takes_the_engine_that_its_build_turns_out_to_be),
      TEST(an_explicit_build_takes_the_engine_that_an_automatic_one_became_meanwhile),
      TEST(every_budget_shares_when_nothing_streams),
      TEST(a_vendor_without_budgets_ignores_them),
      TEST(every_part_of_the_identity_tells_engines_apart),
      TEST(loads_in_other_device_contexts_do_not_share),
      TEST(what_belongs_to_the_load_does_not_part_engines),
      TEST(no_lock_is_held_during_any_entry_of_a_vendor),
      TEST(no_lock_is_held_during_the_sink),
      TEST(no_lock_is_held_during_a_hook),
      TEST(a_wait_for_a_context_calls_the_hooks),
      TEST(destroying_a_load_waits_for_its_run),
      TEST(a_load_that_holds_a_lock_builds_for_itself_after_the_timeout),
      TEST(one_waiter_at_a_time_builds_for_itself),
      TEST(after_an_own_copy_that_failed_the_load_shares_and_the_errors_are_warnings),
      TEST(a_second_own_copy_that_does_not_fit_ends_the_load),
      TEST(a_long_wait_is_told_and_a_lock_holder_waits_ten_seconds),
      TEST(a_load_inside_a_build_is_private),
      TEST(a_load_inside_a_teardown_is_private),
      TEST(a_load_inside_a_failing_build_stands),
      TEST(what_is_wrong_with_the_bytes_fails_every_waiter),
      TEST(what_is_wrong_with_a_budget_fails_no_waiter_with_another),
      TEST(after_out_of_memory_or_a_device_error_waiters_try_one_at_a_time),
      TEST(a_failure_at_any_step_leaves_nothing_and_names_the_step),
      TEST(a_vendor_that_says_nothing_still_gets_a_message),
      TEST(a_failing_context_fails_its_load_only),
      TEST(out_of_memory_is_what_any_line_says),
      TEST(a_lost_device_is_what_a_line_says),
      TEST(out_of_memory_tells_free_and_total_or_why_not),
      TEST(a_load_during_a_teardown_waits_and_two_copies_never_coexist),
      TEST(a_lock_holder_builds_during_an_endless_teardown),
      TEST(without_the_option_another_budget_is_not_taken),
      TEST(a_load_that_does_not_fit_may_take_another_budget),
      TEST(a_context_that_does_not_fit_may_take_another_budget),
      TEST(counts_are_exact),
      TEST(a_forked_child_can_load_whatever_other_threads_did),
      TEST(a_child_forked_during_another_thread_s_call_refuses_its_vendor),
      TEST(a_forked_child_does_not_wait_for_a_teardown_of_its_parent),
      TEST(a_forked_child_does_not_wait_for_a_run_of_its_parent),
      TEST(a_fork_inside_a_vendors_call_leaves_both_sides_usable),
      TEST(a_run_that_forked_ends_in_the_child_too),
      TEST(a_build_that_forked_is_published_in_the_child_too),
      TEST(a_forked_child_has_the_turn_that_a_thread_of_its_parent_had),
      TEST(exit_without_unloading_is_clean),
      TEST(unloading_in_an_exit_handler_is_clean),
      TEST(cancellation_is_acted_on_after_the_call),
      TEST(a_load_that_does_not_share_neither_uses_nor_publishes),
      TEST(trust_domains_do_not_share),
      TEST(only_the_expected_bytes_get_an_engine),
      TEST(kept_bytes_are_mapped_or_copied_as_asked),
      TEST(an_engine_whose_file_changed_is_not_shared),
      TEST(an_engine_of_a_file_rewritten_before_the_build_is_not_shared),
      TEST(bytes_that_come_into_an_approved_file_while_it_loads_are_refused),
      TEST(a_mapped_engine_of_a_file_rewritten_during_a_teardown_is_not_shared),
      TEST(a_bad_program_that_a_rewrite_made_is_the_error_of_its_load_only),
      TEST(an_engine_whose_file_was_replaced_by_rename_is_shared),
      TEST(every_failing_allocation_with_budgets_and_kept_bytes_leaves_nothing),
  };
  int failed = cmocka_run_group_tests_name("pool", tests, NULL, NULL);
  scene_clear_log();
  free(a.payload);
  free(b.payload);
  free(s.payload);
  return failed ? 1 : 0;
}
