/* Cases from the field (shared/cases) 01, 09, 13, 19, 21, 25 and 29 through tandem's public interface, over
 * the stand-in libraries. Weights are smaller than on a GPU; the limits are the cases' own shares of them. */
#include "rig.h"

#include "base.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t wide[] = {8, 512, 512, 512, 4};
static const struct standin_mlp heavy = {.name = "heavy",
                                         .seed = 11,
                                         .layer_count = 4,
                                         .widths = wide,
                                         .rows_min = 1,
                                         .rows_opt = 1,
                                         .rows_max = 4,
                                         .scratch_base = 4096};
static const int64_t heavy_bytes = (8 * 512 + 2 * 512 * 512 + 512 * 4) * 4;

/* Four layers this wide are beyond what is exact in float, so equal means equal to a private engine. */
static void run_heavy(struct tandem_load *load, float y[16]) {
  float x[32];
  rig_fill(x, 32, 4);
  memset(y, 0xff, 16 * sizeof *y);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 4, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
}

/* What a private engine gives, 50 times the same. */
static void make_reference(const struct rig_payload *payload, float reference[16]) {
  struct tandem_load *load = rig_load(payload, "use_shared_engines", "false", NULL);
  float y[16];
  run_heavy(load, reference);
  for (int i = 0; i < 49; i++) {
    run_heavy(load, y);
    assert_memory_equal(y, reference, sizeof y);
  }
  tandem_load_destroy(load);
}

static void expect_heavy(struct tandem_load *load, const float reference[16]) {
  float y[16];
  run_heavy(load, y);
  assert_memory_equal(y, reference, sizeof y);
}

static uint64_t used(void) {
  return rig_used(0);
}

/* ---------------------------------------------------------------- 01 */

static void case_01_the_second_load_adds_no_second_set_of_weights(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&heavy, 0);
  char path[] = "/tmp/tandem-case-01-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, payload.bytes, payload.size), (ssize_t)payload.size);
  float reference[16];
  make_reference(&payload, reference);
  struct tandem_load *loads[3] = {rig_load(&payload, NULL)};
  tandem_load_destroy(loads[0]);
  uint64_t empty = used();
  loads[0] = rig_load(&payload, NULL);
  expect_heavy(loads[0], reference);
  uint64_t first = used();
  RIG_EXPECT_TOLD(first - empty >= (uint64_t)heavy_bytes, true);
  /* From a file of its own, then from bytes. */
  struct rig_payload copy = {malloc(payload.size), payload.size};
  assert_non_null(copy.bytes);
  assert_int_equal(pread(file, copy.bytes, copy.size, 0), (ssize_t)copy.size);
  loads[1] = rig_load(&copy, NULL);
  expect_heavy(loads[1], reference);
  uint64_t second = used();
  loads[2] = rig_load(&payload, NULL);
  expect_heavy(loads[2], reference);
  uint64_t third = used();
  RIG_EXPECT_TOLD(second - first < (uint64_t)heavy_bytes * 15 / 100, true);
  RIG_EXPECT_TOLD(third - second < (uint64_t)heavy_bytes * 15 / 100, true);
  assert_int_equal(rig_stats().engines, 1);
  assert_int_equal(rig_info(loads[2]).users, 3);
  for (int i = 0; i < 3; i++)
    tandem_load_destroy(loads[i]);
  close(file);
  unlink(path);
  rig_payload_free(&copy);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- 09 */

struct cache {
  struct tandem_load *load;
  void *memory;
  float y[16];
};

static enum tandem_status step(struct cache *cache, const float *x, void *memory,
                               struct tandem_error *error) {
  struct tandem_tensor inputs[] = {rig_tensor((void *)(uintptr_t)x, TANDEM_FLOAT32, 1, 8),
                                   rig_tensor(memory, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor outputs[] = {rig_tensor(cache->y, TANDEM_FLOAT32, 2, 4, 4),
                                    rig_tensor(memory, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = outputs, .output_count = 2};
  return rig_run(cache->load, &run, error);
}

static void case_09_state_of_one_load_never_reaches_another(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("cache");
  struct cache caches[2];
  float expected[2][32] = {{0}}, found[32], x[8], host[32] = {0}, untouched[32] = {0};
  struct tandem_error error;
  for (int i = 0; i < 2; i++) {
    caches[i].load = rig_load(&payload, NULL);
    caches[i].memory = rig_allocate(0, sizeof found);
    rig_write(0, caches[i].memory, expected[i], sizeof found);
  }
  assert_int_equal(rig_stats().engines, 1);
  const int order[] = {0, 0, 0, 1, 0};
  for (unsigned i = 0; i < 5; i++) {
    rig_fill(x, 8, i);
    if (step(&caches[order[i]], x, caches[order[i]].memory, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    for (size_t k = 0; k < 32; k++)
      expected[order[i]][k] = expected[order[i]][k] / 2 + x[k % 8];
  }
  for (int i = 0; i < 2; i++) {
    rig_read(0, found, caches[i].memory, sizeof found);
    assert_memory_equal(found, expected[i], sizeof found);
  }
  uint64_t enqueued = rig_library->calls(STANDIN_ENQUEUE);
  assert_int_equal(step(&caches[1], x, host, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "cache"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), enqueued);
  assert_memory_equal(host, untouched, sizeof host);
  assert_int_equal(step(&caches[0], x, caches[0].memory, &error), TANDEM_OK);
  for (int i = 0; i < 2; i++) {
    rig_free(0, caches[i].memory);
    tandem_load_destroy(caches[i].load);
  }
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- 13 */

static void case_13_the_budget_is_part_of_the_identity(void **state) {
  (void)state;
  struct standin_mlp mlp = heavy;
  mlp.flags = STANDIN_PLAN_STREAMABLE;
  struct rig_payload payload = rig_mlp(&mlp, 0);
  struct tandem_load *loads[6];
  float reference[16];
  make_reference(&payload, reference);
  loads[3] = rig_load(&payload, NULL);
  int64_t size = heavy_bytes;
  char half[32], quarter[32], all[32], ten[32];
  snprintf(half, sizeof half, "%lld", (long long)(size / 2));
  snprintf(quarter, sizeof quarter, "%lld", (long long)(size / 4));
  snprintf(all, sizeof all, "%lld", (long long)(size * 2));
  snprintf(ten, sizeof ten, "%lld", (long long)(size * 10));
  static const char budget[] = "weight_streaming_budget";
  loads[0] = rig_load(&payload, budget, half, NULL);
  loads[1] = rig_load(&payload, budget, half, NULL);
  loads[2] = rig_load(&payload, budget, quarter, NULL);
  assert_int_equal(rig_info(loads[0]).engine_id, rig_info(loads[1]).engine_id);
  assert_int_not_equal(rig_info(loads[0]).engine_id, rig_info(loads[2]).engine_id);
  assert_int_equal(rig_info(loads[0]).users, 2);
  assert_int_equal(rig_info(loads[0]).budget, size / 2);
  assert_int_equal(rig_info(loads[2]).budget, size / 4);
  loads[4] = rig_load(&payload, budget, ten, NULL);
  loads[5] = rig_load(&payload, budget, all, NULL);
  assert_int_equal(rig_info(loads[4]).engine_id, rig_info(loads[5]).engine_id);
  assert_true(rig_info(loads[4]).budget < size * 2);
  for (int i = 0; i < 6; i++)
    expect_heavy(loads[i], reference);
  for (int i = 0; i < 6; i++)
    tandem_load_destroy(loads[i]);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- 19 */

static size_t count_descriptors(void) {
  size_t count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

enum { EVENT, RUNTIME, DESERIALIZE, BUDGET, CONTEXT, BINDING, ALIAS, RECORD, RETAIN, FAILURES };

static void order_failure(int failure) {
  switch (failure) {
  case EVENT:
    rig_device->fail_at("cuEventCreate", 1, CU_OUT_OF_MEMORY);
    break;
  case RUNTIME:
    rig_library->fail_at(STANDIN_RUNTIME, 1, STANDIN_FAIL_PLAIN);
    break;
  case DESERIALIZE:
    rig_library->fail_at(STANDIN_DESERIALIZE, 1, STANDIN_FAIL_PLAIN);
    break;
  case BUDGET:
    rig_library->fail_at(STANDIN_BUDGET, 1, STANDIN_FAIL_PLAIN);
    break;
  case CONTEXT:
    rig_library->fail_at(STANDIN_CONTEXT, 1, STANDIN_FAIL_SILENT);
    break;
  case RECORD:
    td_memory_fail_at(1);
    break;
  case RETAIN:
    rig_device->fail_at("cuDevicePrimaryCtxRetain", 1, CU_OUT_OF_MEMORY);
    break;
  default:
    break;
  }
}

static void forget_failures(void) {
  rig_device->fail_at(NULL, 0, 0);
  td_memory_fail_at(0);
  for (int step_index = 0; step_index < STANDIN_STEP_COUNT; step_index++)
    rig_library->fail_at((enum standin_step)step_index, 0, STANDIN_FAIL_PLAIN);
}

static struct rig_payload with_metadata(const char *metadata, const struct standin_alias *alias) {
  struct rig_payload payload;
  size_t size;
  void *plan = standin_sample_bytes("stream", &size);
  payload.bytes = standin_payload_bytes(&(struct standin_payload){.plan = plan,
                                                                  .plan_size = size,
                                                                  .metadata = metadata,
                                                                  .aliases = alias,
                                                                  .alias_count = alias != NULL},
                                        &payload.size);
  free(plan);
  assert_non_null(payload.bytes);
  return payload;
}

static void case_19_a_hundred_failed_loads_leave_nothing(void **state) {
  (void)state;
  const struct standin_alias alias = {"y", "x", "user"};
  struct rig_payload good = rig_sample("stream");
  struct rig_payload bad_binding = with_metadata(
      "{\"io_bindings\":[{\"name\":\"x\",\"is_input\":true},{\"name\":\"none\",\"is_input\":false}]}", NULL);
  struct rig_payload bad_alias = with_metadata(NULL, &alias);
  struct standin_cuda_live before, after;
  for (int shared = 0; shared < 2; shared++)
    for (int failure = 0; failure < FAILURES; failure++) {
      /* The same bytes live elsewhere, so what an engine's build would do is not done: these cannot fail. */
      if (shared && failure != EVENT && failure != CONTEXT && failure != BINDING && failure != ALIAS &&
          failure != RECORD)
        continue;
      const struct rig_payload *payload = failure == BINDING ? &bad_binding
                                          : failure == ALIAS ? &bad_alias
                                                             : &good;
      struct tandem_load *healthy = shared ? rig_load(&good, NULL) : NULL, *load = NULL;
      struct tandem_error error;
      size_t descriptors = 0;
      uint64_t bytes = 0, blocks = 0;
      for (int round = 0; round < 100; round++) {
        order_failure(failure);
        enum tandem_status status = rig_try_load(payload, &load, &error, NULL);
        forget_failures();
        if (status == TANDEM_OK || load != NULL)
          fail_msg("failure %d, round %d: the load was made", failure, round);
        assert_true(error.message[0] != '\0');
        rig_device->live(round < 2 ? &before : &after);
        if (round == 1) {
          bytes = used();
          descriptors = count_descriptors();
          blocks = td_memory_live();
        }
      }
      if (memcmp(&before, &after, sizeof before) != 0)
        fail_msg("failure %d left something on the device", failure);
      RIG_EXPECT_TOLD(used(), bytes);
      assert_int_equal(count_descriptors(), descriptors);
      assert_int_equal(td_memory_live(), blocks);
      if (healthy)
        assert_int_equal(rig_info(healthy).users, 1);
      load = rig_load(&good, NULL);
      assert_int_equal(rig_info(load).users, shared ? 2 : 1);
      tandem_load_destroy(load);
      tandem_load_destroy(healthy);
    }
  rig_payload_free(&good);
  rig_payload_free(&bad_binding);
  rig_payload_free(&bad_alias);
}

/* ---------------------------------------------------------------- 21 */

struct errand {
  const struct rig_payload *payload;
  struct tandem_load *load;
  void *context; /* of the caller: device 0's */
};

static void expect_current(const struct errand *errand) {
  assert_ptr_equal(rig_current(), errand->context);
}

static void *make_on_a_thread(void *argument) {
  struct errand *errand = argument;
  struct tandem_load *load = NULL;
  assert_int_equal(rig_cuda.context_push(errand->context), CU_OK);
  rig_library->fail_at(STANDIN_CONTEXT, 1, STANDIN_FAIL_PLAIN);
  assert_int_not_equal(rig_try_load(errand->payload, &load, NULL, NULL), TANDEM_OK);
  expect_current(errand);
  errand->load = rig_load(errand->payload, NULL);
  expect_current(errand);
  return NULL;
}

static void *use_on_a_thread(void *argument) {
  struct errand *errand = argument;
  float x[64], y[32];
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 1, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_cuda.context_push(errand->context), CU_OK);
  rig_expect_mlp(errand->load, &rig_dynamic, 5, 1);
  expect_current(errand);
  assert_int_equal(rig_run(errand->load, &run, NULL), TANDEM_INVALID_ARGUMENT);
  expect_current(errand);
  rig_library->fail_at(STANDIN_ENQUEUE, 1, STANDIN_FAIL_PLAIN);
  output = rig_tensor(y, TANDEM_FLOAT32, 2, 2, 4);
  assert_int_not_equal(rig_run(errand->load, &run, NULL), TANDEM_OK);
  expect_current(errand);
  rig_expect_mlp(errand->load, &rig_dynamic, 6, 2);
  tandem_load_destroy(errand->load);
  expect_current(errand);
  return NULL;
}

static void case_21_another_device_from_a_fresh_thread(void **state) {
  (void)state;
  struct rig_payload first = rig_mlp(&rig_dynamic, 0), second = rig_mlp(&rig_dynamic, 1);
  pthread_t thread;
  rig_push(0);
  struct errand errand = {.payload = &second, .context = rig_current()};
  struct tandem_load *here = rig_load(&first, NULL);
  assert_int_equal(pthread_create(&thread, NULL, make_on_a_thread, &errand), 0);
  pthread_join(thread, NULL);
  assert_int_equal(rig_stats().engines, 2);
  assert_string_equal(rig_info(here).device, "cuda:0");
  assert_string_equal(rig_info(errand.load).device, "cuda:1");
  assert_true(rig_used(1) > 0);
  assert_int_equal(pthread_create(&thread, NULL, use_on_a_thread, &errand), 0);
  pthread_join(thread, NULL);
  RIG_EXPECT_TOLD(rig_used(1), 0);
  rig_expect_mlp(here, &rig_dynamic, 3, 3);
  tandem_load_destroy(here);
  expect_current(&errand);
  rig_pop(0);
  rig_payload_free(&first);
  rig_payload_free(&second);
}

/* ---------------------------------------------------------------- 25 */

static void case_25_outside_the_profile_then_inside_again(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *first = rig_load(&payload, NULL), *second = rig_load(&payload, NULL);
  float x[72], y[36], untouched[36];
  struct tandem_error error;
  rig_fill(x, 72, 1);
  rig_fill(y, 36, 2);
  memcpy(untouched, y, sizeof y);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 9, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 9, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_run(first, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "input 0 (x)"));
  assert_non_null(strstr(error.message, "9 in dimension 0, expected 1 to 8"));
  rig_expect_mlp(second, &rig_dynamic, 3, 1);
  input = rig_tensor(x, TANDEM_FLOAT32, 1, 8);
  assert_int_equal(rig_run(first, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "rank 1, expected 2"));
  assert_memory_equal(y, untouched, sizeof y);
  rig_expect_mlp(second, &rig_dynamic, 7, 2);
  rig_expect_mlp(first, &rig_dynamic, 8, 3);
  rig_expect_mlp(second, &rig_dynamic, 1, 4);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- 29 */

static void case_29_memory_runs_out(void **state) {
  (void)state;
  struct standin_mlp mlp = rig_dynamic;
  mlp.scratch_base = 1 << 20;
  struct rig_payload payload = rig_mlp(&mlp, 0);
  struct tandem_load *first = rig_load(&payload, "share_scratch", "false", NULL), *second = NULL;
  struct tandem_error error;
  rig_expect_mlp(first, &mlp, 2, 1);
  /* The weights fit, one more context does not. */
  rig_device->set_memory(0, used() + (1 << 19));
  assert_int_equal(rig_try_load(&payload, &second, &error, "share_scratch", "false", NULL),
                   TANDEM_OUT_OF_MEMORY);
  assert_int_equal(rig_info(first).users, 1);
  rig_expect_mlp(first, &mlp, 3, 2);
  /* A load that shares its scratch has none yet, and says so when it runs. */
  second = rig_load(&payload, NULL);
  float x[8] = {0}, y[4];
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 1, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 1, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_run(second, &run, &error), TANDEM_OUT_OF_MEMORY);
  rig_expect_mlp(first, &mlp, 4, 3);
  rig_device->set_memory(0, UINT64_C(1) << 34);
  rig_expect_mlp(second, &mlp, 4, 4);
  tandem_load_destroy(second);
  second = rig_load(&payload, "share_scratch", "false", NULL);
  rig_expect_mlp(second, &mlp, 1, 5);
  tandem_load_destroy(second);
  tandem_load_destroy(first);
  /* The driver's k-th allocation fails: of the first load, then of a shared one and its run. */
  for (int shared = 0; shared < 2; shared++) {
    struct tandem_load *healthy = shared ? rig_load(&payload, NULL) : NULL;
    for (unsigned k = 1; k < 12; k++) {
      rig_device->fail_at("cuMemAlloc", k, CU_OUT_OF_MEMORY);
      second = NULL;
      enum tandem_status status = rig_try_load(&payload, &second, &error, NULL);
      if (status == TANDEM_OK)
        status = rig_run(second, &run, &error);
      rig_device->fail_at(NULL, 0, 0);
      if (status != TANDEM_OK)
        assert_int_equal(status, TANDEM_OUT_OF_MEMORY);
      tandem_load_destroy(second);
      second = rig_load(&payload, NULL);
      rig_expect_mlp(second, &mlp, 2, k);
      tandem_load_destroy(second);
      if (healthy)
        assert_int_equal(rig_info(healthy).users, 1);
    }
    tandem_load_destroy(healthy);
  }
  rig_payload_free(&payload);
}

int main(int argc, char **argv) {
  int failed = rig_start(argc, argv);
  if (failed)
    return failed;
  const struct CMUnitTest tests[] = {
      RIG_TEST_ANYWHERE(case_01_the_second_load_adds_no_second_set_of_weights),
      RIG_TEST_ANYWHERE(case_09_state_of_one_load_never_reaches_another),
      RIG_TEST_ANYWHERE(case_13_the_budget_is_part_of_the_identity),
      RIG_TEST(case_19_a_hundred_failed_loads_leave_nothing),
      RIG_TEST(case_21_another_device_from_a_fresh_thread),
      RIG_TEST_ANYWHERE(case_25_outside_the_profile_then_inside_again),
      RIG_TEST(case_29_memory_runs_out),
  };
  return RIG_RUN_TESTS(tests) ? 1 : 0;
}
