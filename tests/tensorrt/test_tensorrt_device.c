/* Contexts of the driver: who has which, what is left of the caller's, and what happens when one is lost. */
#include "rig.h"

#include "bound.h"
#include "tensorrt.h"

#include "base.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the caller's context */

static void *load_run_unload(void *argument) {
  const struct rig_payload *payload = argument;
  assert_null(rig_current());
  struct tandem_load *load = rig_load(payload, NULL);
  assert_null(rig_current());
  rig_expect_mlp(load, &rig_dynamic, 3, 1);
  assert_null(rig_current());
  tandem_load_destroy(load);
  assert_null(rig_current());
  return NULL;
}

static void a_thread_without_a_context_ends_without_one(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, load_run_unload, &payload), 0);
  pthread_join(thread, NULL);
  struct tandem_load *load = NULL;
  for (unsigned nth = 1; nth < 40; nth++) { /* nor after a load that fails, wherever it does */
    static const char *const calls[] = {"cuMemAlloc", "cuEventCreate", "cuDevicePrimaryCtxRetain",
                                        "cuModuleLoadData"};
    rig_device->fail_at(calls[nth % 4], 1 + nth / 4, CU_OUT_OF_MEMORY);
    if (rig_try_load(&payload, &load, NULL, NULL) == TANDEM_OK)
      tandem_load_destroy(load);
    rig_device->fail_at(NULL, 0, 0);
    assert_null(rig_current());
  }
  rig_payload_free(&payload);
}

static void a_primary_context_that_is_current_shares_with_none(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *first = rig_load(&payload, NULL);
  rig_push(0);
  void *mine = rig_current();
  struct tandem_load *second = rig_load(&payload, NULL);
  assert_ptr_equal(rig_current(), mine);
  rig_expect_mlp(second, &rig_dynamic, 2, 1);
  assert_ptr_equal(rig_current(), mine);
  rig_pop(0);
  rig_push(1); /* of another device */
  struct tandem_load *third = rig_load(&payload, NULL);
  rig_pop(1);
  assert_int_equal(rig_stats().engines, 1);
  assert_int_equal(rig_info(first).users, 3);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  tandem_load_destroy(third);
  rig_payload_free(&payload);
}

static void the_callers_own_context_is_used_and_part_of_the_identity(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  void *contexts[2], *popped;
  struct tandem_load *primary = rig_load(&payload, NULL), *own[3];
  for (int i = 0; i < 2; i++) {
    assert_int_equal(rig_cuda.context_create(&contexts[i], 0, 0), CU_OK);
    assert_int_equal(rig_cuda.context_pop(&popped), CU_OK);
  }
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rig_cuda.context_push(contexts[i / 2]), CU_OK);
    own[i] = rig_load(&payload, NULL);
    assert_ptr_equal(rig_current(), contexts[i / 2]);
    assert_int_equal(rig_cuda.context_pop(&popped), CU_OK);
  }
  assert_int_equal(rig_stats().engines, 3);
  assert_int_equal(rig_info(own[0]).engine_id, rig_info(own[1]).engine_id);
  assert_int_not_equal(rig_info(own[0]).engine_id, rig_info(own[2]).engine_id);
  for (int i = 0; i < 3; i++)
    rig_expect_mlp(own[i], &rig_dynamic, 1 + i, (unsigned)i); /* on a thread that has none of them */
  rig_expect_mlp(primary, &rig_dynamic, 4, 1);
  assert_null(rig_current());
  for (int i = 0; i < 3; i++)
    tandem_load_destroy(own[i]);
  tandem_load_destroy(primary);
  for (int i = 0; i < 2; i++)
    assert_int_equal(rig_cuda.context_destroy(contexts[i]), CU_OK);
  rig_payload_free(&payload);
}

static void the_primary_context_is_retained_by_the_engine_alone(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct standin_cuda_live live;
  struct tandem_load *first = rig_load(&payload, NULL), *second = rig_load(&payload, NULL);
  rig_device->live(&live);
  assert_int_equal(live.primary_retains, 1);
  tandem_load_destroy(first);
  rig_expect_mlp(second, &rig_dynamic, 3, 1);
  rig_device->live(&live);
  assert_int_equal(live.primary_retains, 1);
  tandem_load_destroy(second);
  rig_device->live(&live);
  assert_int_equal(live.primary_retains, 0);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- devices */

static void a_device_that_is_not_there_is_named(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 7);
  struct tandem_load *load = NULL;
  struct tandem_error error;
  assert_int_equal(rig_try_load(&payload, &load, &error, NULL), TANDEM_UNSUPPORTED);
  assert_non_null(strstr(error.message, "CUDA device 7"));
  assert_non_null(strstr(error.message, "0 to 1"));
  rig_payload_free(&payload);
}

static void the_memory_of_a_device_is_told_also_when_none_is_left(void **state) {
  (void)state;
  uint64_t free_bytes = 0, total_bytes = 0;
  struct tandem_error error = {0};
  struct tandem_resolution resolution = {.device = "cuda:1"};
  rig_device->set_memory(1, 1 << 20);
  td_trt_set_host(&td_host);
  if (td_cuda_memory(&resolution, &free_bytes, &total_bytes, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_int_equal(total_bytes, 1 << 20);
  assert_int_equal(free_bytes, 1 << 20);
  rig_device->set_memory(1, 0);
  assert_int_equal(td_cuda_memory(&resolution, &free_bytes, &total_bytes, &error), TANDEM_OK);
  assert_int_equal(free_bytes, 0);
  rig_device->set_memory(1, UINT64_C(1) << 34);
  assert_null(rig_current());
}

static void buffers_lie_idle_for_the_next_load_and_go_with_the_last_engine(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *keeper = rig_load(&payload, NULL);
  rig_expect_mlp(keeper, &rig_dynamic, 8, 1);
  for (int i = 0; i < 3; i++) {
    struct tandem_load *load = rig_load(&payload, NULL);
    rig_expect_mlp(load, &rig_dynamic, 8, 1);
    tandem_load_destroy(load);
  }
  uint64_t allocations = rig_calls("cuMemAlloc"), frees = rig_calls("cuMemFree");
  for (int i = 0; i < 20; i++) {
    struct tandem_load *load = rig_load(&payload, NULL);
    rig_expect_mlp(load, &rig_dynamic, 8, 1);
    tandem_load_destroy(load);
  }
  RIG_EXPECT_TOLD(rig_calls("cuMemAlloc"), allocations);
  RIG_EXPECT_TOLD(rig_calls("cuMemFree"), frees);
  tandem_load_destroy(keeper);
  RIG_EXPECT_TOLD(rig_used(0), 0);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- fork */

static void a_forked_child_is_told_to_load_after_the_fork(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    struct tandem_load *inherited = load, *fresh = NULL;
    struct tandem_error error = {0};
    struct tandem_run_desc run = {.struct_size = sizeof run};
    bool refused = tandem_load_run(inherited, &run, &error) == TANDEM_DEVICE_LOST;
    enum tandem_status status = rig_try_load(&payload, &fresh, &error, NULL);
    bool told = status != TANDEM_OK && strstr(error.message, "forked") != NULL;
    tandem_load_destroy(inherited);
    if (!refused || !told)
      fprintf(stderr, "in the child: %s: %s\n", tandem_status_name(status), error.message);
    bound_end_child(refused && told ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  rig_expect_mlp(load, &rig_dynamic, 3, 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- lost contexts, each in a process of its
 * own */

static enum tandem_status try_run(struct tandem_load *load, struct tandem_error *error) {
  float x[16] = {0}, y[8];
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 2, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  return rig_run(load, &run, error);
}

/* No call that would release something into a context that is gone. */
static void destroy_forgotten(struct tandem_load *load) {
  uint64_t frees = rig_calls("cuMemFree"), events = rig_calls("cuEventDestroy");
  tandem_load_destroy(load);
  RIG_EXPECT_TOLD(rig_calls("cuMemFree"), frees);
  RIG_EXPECT_TOLD(rig_calls("cuEventDestroy"), events);
  assert_int_equal(rig_device->violations(), 0);
}

static void a_sticky_error_is_device_lost_and_release_forgets(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL), *other = rig_load(&payload, NULL), *refused = NULL;
  struct tandem_error error;
  rig_expect_mlp(load, &rig_dynamic, 2, 1);
  rig_device->lose_device(0, CU_ILLEGAL_ADDRESS);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  assert_non_null(strstr(error.message, "lost"));
  assert_int_equal(try_run(other, &error), TANDEM_DEVICE_LOST);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  assert_int_not_equal(rig_try_load(&payload, &refused, &error, NULL), TANDEM_OK);
  destroy_forgotten(load);
  destroy_forgotten(other);
  assert_int_equal(rig_stats().engines, 0);
  assert_null(rig_current());
  rig_payload_free(&payload);
}

static void a_device_that_was_reset_is_lost_and_a_new_load_is_right(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  int (*reset)(int);
  void *library = td_host.library_open(getenv("TANDEM_CUDA_LIBRARY"), NULL, 0, NULL);
  void *symbol = td_host.library_symbol(library, "cuDevicePrimaryCtxReset_v2");
  if (!symbol)
    symbol = td_host.library_symbol(library, "cuDevicePrimaryCtxReset");
  assert_non_null(symbol);
  memcpy(&reset, &symbol, sizeof symbol);
  rig_expect_mlp(load, &rig_dynamic, 2, 1);
  assert_int_equal(reset(0), CU_OK);
  /* Somebody retains it again: the handle is the old one, the memory is not. */
  rig_push(0);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  struct tandem_load *fresh = rig_load(&payload, NULL); /* while the old one is still there */
  rig_expect_mlp(fresh, &rig_dynamic, 3, 2);
  assert_int_equal(rig_stats().engines, 2);
  destroy_forgotten(load);
  rig_expect_mlp(fresh, &rig_dynamic, 4, 3);
  tandem_load_destroy(fresh);
  rig_pop(0);
  assert_int_equal(rig_stats().engines, 0);
  rig_payload_free(&payload);
}

struct losing_build {
  struct rig_payload payload;
  struct tandem_load *load;
  enum tandem_status status;
  struct tandem_error error;
};

static void *build_and_lose(void *argument) {
  struct losing_build *build = argument;
  build->status = rig_try_load(&build->payload, &build->load, &build->error, NULL);
  return NULL;
}

static void a_device_lost_during_a_build_is_told_and_its_objects_forgotten(void **state) {
  (void)state;
  struct losing_build build = {.payload = rig_mlp(&rig_dynamic, 0)};
  struct standin_counts counts;
  pthread_t thread;
  rig_library->fail_at(STANDIN_DESERIALIZE, 1, STANDIN_FAIL_SILENT);
  rig_library->gate_close(STANDIN_DESERIALIZE);
  assert_int_equal(pthread_create(&thread, NULL, build_and_lose, &build), 0);
  assert_true(rig_library->wait_inside(STANDIN_DESERIALIZE, 1));
  rig_device->lose_device(0, CU_ILLEGAL_ADDRESS);
  rig_library->gate_open(STANDIN_DESERIALIZE);
  assert_int_equal(pthread_join(thread, NULL), 0);
  assert_int_equal(build.status, TANDEM_DEVICE_LOST);
  assert_non_null(strstr(build.error.message, "lost"));
  rig_library->counts(&counts);
  assert_int_equal(counts.runtimes, 1); /* never called again */
  assert_int_equal(rig_stats().engines, 0);
  rig_payload_free(&build.payload);
}

static void a_driver_that_has_shut_down_lets_loads_be_destroyed(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  rig_expect_mlp(load, &rig_dynamic, 2, 1);
  rig_device->fail_at("cuCtxPushCurrent", 1, CU_DEINITIALIZED);
  destroy_forgotten(load);
  load = rig_load(&payload, NULL);
  rig_device->fail_at("cuCtxPushCurrent", 1, CU_DEINITIALIZED);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  assert_non_null(strstr(error.message, "shutting down"));
  destroy_forgotten(load);
  assert_int_equal(rig_lines("rror"), 0);
  rig_payload_free(&payload);
}

static void work_that_fails_on_the_device_fails_its_run(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  rig_expect_mlp(load, &rig_dynamic, 2, 1);
  rig_device->fail_at("cuStreamSynchronize", 1, CU_LAUNCH_FAILED);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  assert_non_null(strstr(error.message, "719"));
  destroy_forgotten(load);
  rig_payload_free(&payload);
}

static void what_the_library_refuses_on_a_lost_device_is_the_devices_fault(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  rig_library->fail_at(STANDIN_INFER, 1, STANDIN_FAIL_SILENT);
  rig_device->fail_at("cuMemGetInfo", 1, CU_ILLEGAL_ADDRESS);
  assert_int_equal(try_run(load, &error), TANDEM_DEVICE_LOST);
  assert_non_null(strstr(error.message, "700"));
  destroy_forgotten(load);
  rig_payload_free(&payload);
}

static void a_driver_that_is_not_found_is_looked_for_again(void **state) {
  (void)state;
  char library[512];
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = NULL;
  struct tandem_error error;
  snprintf(library, sizeof library, "%s", getenv("TANDEM_CUDA_LIBRARY"));
  setenv("TANDEM_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  assert_int_equal(rig_try_load(&payload, &load, &error, NULL), TANDEM_UNAVAILABLE);
  assert_non_null(strstr(error.message, "/nowhere/libcuda.so.1"));
  assert_int_equal(td_cuda_driver_version(), 0);
  setenv("TANDEM_CUDA_LIBRARY", library, 1);
  assert_int_equal(rig_try_load(&payload, &load, &error, NULL), TANDEM_OK);
  rig_expect_mlp(load, &rig_dynamic, 2, 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static int in_a_process_of_its_own(int argc, char **argv, const struct CMUnitTest *test) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    struct CMUnitTest tests[] = {*test};
    int failed = rig_start(argc, argv);
    failed = failed ? failed : RIG_RUN_TESTS(tests);
    bound_end_child(failed ? 1 : 0);
  }
  int status = -1;
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
    return 0;
  fprintf(stderr, "%s failed in its process (%d)\n", test->name, status);
  return 1;
}

int main(int argc, char **argv) {
  /* What they lose stays lost, so they leave things behind: no teardown. */
  const struct CMUnitTest losing[] = {
      cmocka_unit_test_setup(a_sticky_error_is_device_lost_and_release_forgets, rig_setup),
      cmocka_unit_test_setup(a_device_that_was_reset_is_lost_and_a_new_load_is_right, rig_setup),
      cmocka_unit_test_setup(a_device_lost_during_a_build_is_told_and_its_objects_forgotten, rig_setup),
      cmocka_unit_test_setup(a_driver_that_has_shut_down_lets_loads_be_destroyed, rig_setup),
      cmocka_unit_test_setup(work_that_fails_on_the_device_fails_its_run, rig_setup),
      cmocka_unit_test_setup(what_the_library_refuses_on_a_lost_device_is_the_devices_fault, rig_setup),
      cmocka_unit_test_setup(a_driver_that_is_not_found_is_looked_for_again, rig_setup),
  };
  int failed = rig_on_real_driver() ? RIG_RUN_TESTS(losing) : 0;
  for (size_t i = 0; !rig_on_real_driver() && i < sizeof losing / sizeof *losing; i++)
    failed += in_a_process_of_its_own(argc, argv, &losing[i]);
  int status = rig_start(argc, argv);
  if (status)
    return status;
  const struct CMUnitTest tests[] = {
      RIG_TEST(a_thread_without_a_context_ends_without_one),
      RIG_TEST(a_primary_context_that_is_current_shares_with_none),
      RIG_TEST_ANYWHERE(the_callers_own_context_is_used_and_part_of_the_identity),
      RIG_TEST(the_primary_context_is_retained_by_the_engine_alone),
      RIG_TEST(a_device_that_is_not_there_is_named),
      RIG_TEST(the_memory_of_a_device_is_told_also_when_none_is_left),
      RIG_TEST_ANYWHERE(buffers_lie_idle_for_the_next_load_and_go_with_the_last_engine),
      RIG_TEST(a_forked_child_is_told_to_load_after_the_fork),
  };
  failed += RIG_RUN_TESTS(tests);
  return failed ? 1 : 0;
}
