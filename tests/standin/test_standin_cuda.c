/* The stand-in libcuda by itself: what tests of tandem rely on it to find out. TESTS ONLY. */
#include "driver.h"
#include "plan.h"
#include "standin.h"

#include "kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct driver cuda;
static const struct standin_cuda *control;
static void *context, *module, *copy_kernel;

static int launch_copy(uint64_t from, uint64_t to, long long size, void *stream) {
  return cuda.launch(copy_kernel, 1, 1, 1, 256, 1, 1, 0, stream, (void *[]){&from, &to, &size}, NULL);
}

static uint64_t allocate(size_t size) {
  uint64_t address = 0;
  assert_int_equal(cuda.allocate(&address, size), CU_OK);
  return address;
}

static void work_waits_for_its_turn(void **state) {
  (void)state;
  void *stream, *event;
  char text[16] = "first", found[16] = "";
  uint64_t a = allocate(16), b = allocate(16);
  assert_int_equal(cuda.stream_create(&stream, 1), CU_OK);
  assert_int_equal(cuda.event_create(&event, 2), CU_OK);
  assert_int_equal(cuda.copy_to(a, text, 16), CU_OK);
  control->hold(true);
  assert_int_equal(launch_copy(a, b, 16, stream), CU_OK);
  assert_int_equal(cuda.event_record(event, stream), CU_OK);
  assert_true(control->wait_held(1));
  assert_int_equal(cuda.event_query(event), CU_NOT_READY);
  assert_int_equal(cuda.stream_query(stream), CU_NOT_READY);
  control->hold(false);
  assert_int_equal(cuda.event_synchronize(event), CU_OK);
  assert_int_equal(cuda.copy_from(found, b, 16), CU_OK);
  assert_string_equal(found, "first");
  cuda.event_destroy(event);
  cuda.stream_destroy(stream);
  cuda.release(a);
  cuda.release(b);
}

static void an_event_orders_two_streams(void **state) {
  (void)state;
  void *first, *second, *event;
  uint64_t a = allocate(8), b = allocate(8), c = allocate(8);
  char found[8] = "";
  cuda.stream_create(&first, 1);
  cuda.stream_create(&second, 1);
  cuda.event_create(&event, 0);
  cuda.copy_to(a, "ordered", 8);
  control->hold(true);
  launch_copy(a, b, 8, first);
  cuda.event_record(event, first);
  assert_int_equal(cuda.stream_wait(second, event, 0), CU_OK);
  launch_copy(b, c, 8, second);
  assert_true(control->wait_held(1));
  assert_false(control->wait_held(0) && cuda.stream_query(second) == CU_OK);
  control->hold(false);
  assert_int_equal(cuda.stream_synchronize(second), CU_OK);
  cuda.copy_from(found, c, 8);
  assert_string_equal(found, "ordered");
  cuda.event_destroy(event);
  cuda.stream_destroy(first);
  cuda.stream_destroy(second);
  cuda.release(a);
  cuda.release(b);
  cuda.release(c);
}

static void freed_memory_is_found_out(void **state) {
  (void)state;
  void *other;
  assert_int_equal(cuda.context_create(&other, 0, 0), CU_OK);
  uint64_t a = allocate(64), b = allocate(64);
  void *own_module, *kernel, *own_stream;
  assert_int_equal(cuda.module_load(&own_module, standin_ptx), CU_OK);
  assert_int_equal(cuda.module_function(&kernel, own_module, "standin_copy"), CU_OK);
  cuda.stream_create(&own_stream, 1);
  cuda.release(b);
  uint64_t before = control->violations();
  long long size = 64;
  cuda.launch(kernel, 1, 1, 1, 256, 1, 1, 0, own_stream, (void *[]){&a, &b, &size}, NULL);
  assert_int_equal(cuda.stream_synchronize(own_stream), CU_ILLEGAL_ADDRESS);
  assert_int_equal(control->violations(), before + 1);
  /* The error stays with its context, and with it alone. */
  assert_int_equal(cuda.allocate(&b, 64), CU_ILLEGAL_ADDRESS);
  assert_int_equal(cuda.context_destroy(other), CU_OK);
  a = allocate(64);
  assert_int_equal(cuda.release(a), CU_OK);
  assert_int_equal(cuda.release(a), CU_INVALID_VALUE);
  control->reset();
}

static void memory_past_a_block_is_found_out(void **state) {
  (void)state;
  void *other, *stream;
  cuda.context_create(&other, 0, 0);
  uint64_t a = allocate(64);
  cuda.stream_create(&stream, 1);
  cuda.set_async(a, 0, 65, stream);
  assert_int_equal(cuda.stream_synchronize(stream), CU_ILLEGAL_ADDRESS);
  cuda.context_destroy(other);
  control->reset();
}

static void a_cap_holds(void **state) {
  (void)state;
  size_t free_bytes, total;
  control->set_memory(0, 1 << 20);
  uint64_t a = allocate(1000 << 10), b = 0;
  assert_int_equal(cuda.allocate(&b, 100 << 10), CU_OUT_OF_MEMORY);
  cuda.memory_info(&free_bytes, &total);
  assert_int_equal(total, 1 << 20);
  assert_int_equal(free_bytes, 24 << 10);
  cuda.release(a);
  b = allocate(100 << 10);
  cuda.release(b);
  control->set_memory(0, (uint64_t)16 << 30);
}

static void devices_are_apart(void **state) {
  (void)state;
  void *second;
  int device = -1;
  assert_int_equal(cuda.primary_retain(&second, 1), CU_OK);
  uint64_t here = allocate(32);
  assert_int_equal(cuda.context_push(second), CU_OK);
  cuda.context_device(&device);
  assert_int_equal(device, 1);
  uint64_t there = allocate(32);
  int type = 0, ordinal = -1;
  assert_int_equal(cuda.pointer_attribute(&type, 2, there), CU_OK);
  assert_int_equal(cuda.pointer_attribute(&ordinal, 9, there), CU_OK);
  assert_int_equal(type, 2);
  assert_int_equal(ordinal, 1);
  assert_int_equal(cuda.pointer_attribute(&type, 2, (uint64_t)(uintptr_t)&type), CU_INVALID_VALUE);
  /* A fill on device 1 of memory that device 0 has. */
  void *stream;
  cuda.stream_create(&stream, 1);
  cuda.set_async(here, 0, 32, stream);
  assert_int_equal(cuda.stream_synchronize(stream), CU_ILLEGAL_ADDRESS);
  cuda.context_pop(NULL);
  cuda.primary_release(1);
  cuda.release(here);
  control->reset();
}

static void a_primary_context_comes_back_with_another_id(void **state) {
  (void)state;
  void *first, *again;
  unsigned long long first_id, again_id;
  cuda.primary_retain(&first, 1);
  cuda.context_id(first, &first_id);
  cuda.primary_release(1);
  assert_int_equal(cuda.context_push(first), CU_CONTEXT_IS_DESTROYED);
  cuda.primary_retain(&again, 1);
  cuda.context_id(again, &again_id);
  assert_ptr_equal(first, again);
  assert_true(first_id != again_id);
  cuda.primary_release(1);
}

static void a_lost_device_fails_everything(void **state) {
  (void)state;
  uint64_t a = 0;
  control->lose_device(0, CU_LAUNCH_FAILED);
  assert_int_equal(cuda.allocate(&a, 8), CU_LAUNCH_FAILED);
  assert_int_equal(cuda.context_synchronize(), CU_LAUNCH_FAILED);
  control->lose_device(0, 0);
  a = allocate(8);
  cuda.release(a);
}

static void *allocate_elsewhere(void *mode) {
  int now = *(int *)mode;
  uint64_t address = 0;
  cuda.context_push(context);
  cuda.capture_mode(&now);
  int result = cuda.allocate(&address, 64);
  if (!result)
    cuda.release(address);
  cuda.context_pop(NULL);
  return (void *)(intptr_t)result;
}

static int allocate_from_thread(int mode) {
  pthread_t thread;
  void *result;
  pthread_create(&thread, NULL, allocate_elsewhere, &mode);
  pthread_join(thread, &result);
  return (int)(intptr_t)result;
}

static void captures_are_broken_by_whom_the_modes_say(void **state) {
  (void)state;
  static const struct {
    int capture, thread, result;
  } cases[] = {
      {CU_CAPTURE_GLOBAL, CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_UNSUPPORTED},
      {CU_CAPTURE_GLOBAL, CU_CAPTURE_THREAD_LOCAL, CU_OK},
      {CU_CAPTURE_GLOBAL, CU_CAPTURE_RELAXED, CU_OK},
      {CU_CAPTURE_THREAD_LOCAL, CU_CAPTURE_GLOBAL, CU_OK},
      {CU_CAPTURE_THREAD_LOCAL, CU_CAPTURE_RELAXED, CU_OK},
      {CU_CAPTURE_RELAXED, CU_CAPTURE_GLOBAL, CU_OK},
  };
  void *stream, *graph;
  cuda.stream_create(&stream, 1);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(cuda.capture_begin(stream, cases[i].capture), CU_OK);
    assert_int_equal(allocate_from_thread(cases[i].thread), cases[i].result);
    int ended = cuda.capture_end(stream, &graph);
    assert_int_equal(ended, cases[i].result ? CU_STREAM_CAPTURE_INVALIDATED : CU_OK);
    if (!ended)
      cuda.graph_destroy(graph);
  }
  /* Its own thread breaks a thread-local capture, but not in relaxed mode. */
  for (int mode = CU_CAPTURE_THREAD_LOCAL; mode <= CU_CAPTURE_RELAXED; mode++) {
    uint64_t address = 0;
    int now = mode;
    assert_int_equal(cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL), CU_OK);
    cuda.capture_mode(&now);
    int result = cuda.allocate(&address, 64);
    cuda.capture_mode(&now);
    assert_int_equal(result, mode == CU_CAPTURE_RELAXED ? CU_OK : CU_STREAM_CAPTURE_UNSUPPORTED);
    int ended = cuda.capture_end(stream, &graph);
    assert_int_equal(ended, mode == CU_CAPTURE_RELAXED ? CU_OK : CU_STREAM_CAPTURE_INVALIDATED);
    if (!ended)
      cuda.graph_destroy(graph);
    cuda.release(address);
  }
  cuda.stream_destroy(stream);
}

static void waiting_in_a_capture_breaks_it(void **state) {
  (void)state;
  void *stream, *event, *graph;
  int status = -1;
  uint64_t a = allocate(8);
  cuda.stream_create(&stream, 1);
  cuda.event_create(&event, 0);
  cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(cuda.stream_synchronize(stream), CU_STREAM_CAPTURE_UNSUPPORTED);
  cuda.stream_capturing(stream, &status);
  assert_int_equal(status, CU_CAPTURE_STATUS_INVALIDATED);
  assert_int_equal(cuda.set_async(a, 1, 8, stream), CU_STREAM_CAPTURE_INVALIDATED);
  assert_int_equal(cuda.capture_end(stream, &graph), CU_STREAM_CAPTURE_INVALIDATED);
  cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL);
  cuda.event_record(event, stream);
  assert_int_equal(cuda.event_query(event), CU_CAPTURED_EVENT);
  cuda.capture_end(stream, &graph);
  cuda.event_destroy(event);
  cuda.stream_destroy(stream);
  cuda.release(a);
}

static void a_fork_in_a_capture_must_come_back(void **state) {
  (void)state;
  void *origin, *side, *out, *back, *graph, *instance;
  uint64_t a = allocate(8), b = allocate(8);
  char found[8] = "";
  cuda.stream_create(&origin, 1);
  cuda.stream_create(&side, 1);
  cuda.event_create(&out, 0);
  cuda.event_create(&back, 0);
  for (int joined = 0; joined < 2; joined++) {
    assert_int_equal(cuda.capture_begin(origin, CU_CAPTURE_THREAD_LOCAL), CU_OK);
    cuda.event_record(out, origin);
    assert_int_equal(cuda.stream_wait(side, out, 0), CU_OK);
    assert_int_equal(launch_copy(a, b, 8, side), CU_OK);
    if (joined) {
      cuda.event_record(back, side);
      cuda.stream_wait(origin, back, 0);
    }
    assert_int_equal(cuda.capture_end(origin, &graph), joined ? CU_OK : CU_STREAM_CAPTURE_UNJOINED);
  }
  assert_int_equal(cuda.graph_instantiate(&instance, graph, 0), CU_OK);
  assert_int_equal(cuda.graph_destroy(graph), CU_OK);
  cuda.copy_to(a, "graphed", 8);
  for (int i = 0; i < 3; i++)
    assert_int_equal(cuda.graph_launch(instance, origin), CU_OK);
  assert_int_equal(cuda.stream_synchronize(origin), CU_OK);
  cuda.copy_from(found, b, 8);
  assert_string_equal(found, "graphed");
  cuda.graph_instance_destroy(instance);
  cuda.event_destroy(out);
  cuda.event_destroy(back);
  cuda.stream_destroy(origin);
  cuda.stream_destroy(side);
  cuda.release(a);
  cuda.release(b);
}

static void *run_on_own_stream(void *argument) {
  uint64_t *pair = argument;
  cuda.context_push(context);
  for (int i = 0; i < 50; i++) {
    launch_copy(pair[0], pair[1], 64, CU_PER_THREAD_STREAM);
    cuda.stream_synchronize(CU_PER_THREAD_STREAM);
  }
  cuda.context_pop(NULL);
  return NULL;
}

static void threads_have_streams_of_their_own(void **state) {
  (void)state;
  pthread_t threads[4];
  uint64_t pairs[4][2];
  for (int i = 0; i < 4; i++) {
    pairs[i][0] = allocate(64);
    pairs[i][1] = allocate(64);
    pthread_create(&threads[i], NULL, run_on_own_stream, pairs[i]);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    cuda.release(pairs[i][0]);
    cuda.release(pairs[i][1]);
  }
}

static void ordered_failures_come_at_their_call(void **state) {
  (void)state;
  uint64_t a = 0;
  control->fail_at("cuMemAlloc", 2, CU_OUT_OF_MEMORY);
  a = allocate(8);
  cuda.release(a);
  assert_int_equal(cuda.allocate(&a, 8), CU_OUT_OF_MEMORY);
  a = allocate(8);
  cuda.release(a);
}

static void a_forked_child_has_no_driver(void **state) {
  (void)state;
  pid_t child = fork();
  if (child == 0) {
    uint64_t address;
    _exit(cuda.allocate(&address, 8) == CU_NOT_INITIALIZED ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  assert_int_equal(status, 0);
}

static void pinned_and_managed_memory_is_told_apart(void **state) {
  (void)state;
  void *pinned;
  uint64_t managed;
  int type = 0;
  unsigned char is_managed = 9;
  char own[64];
  assert_int_equal(cuda.host_allocate(&pinned, 64, 0), CU_OK);
  assert_int_equal(cuda.allocate_managed(&managed, 64, 1), CU_OK);
  assert_int_equal(cuda.host_register(own, sizeof own, 0), CU_OK);
  assert_int_equal(cuda.host_register(own, sizeof own, 0), CU_HOST_MEMORY_ALREADY_REGISTERED);
  cuda.pointer_attribute(&type, 2, (uint64_t)(uintptr_t)pinned + 63);
  assert_int_equal(type, 1);
  cuda.pointer_attribute(&type, 2, (uint64_t)(uintptr_t)own);
  assert_int_equal(type, 1);
  cuda.pointer_attribute(&is_managed, 8, managed);
  assert_int_equal(is_managed, 1);
  memcpy(pinned, "straight", 8);
  void *stream;
  cuda.stream_create(&stream, 1);
  launch_copy((uint64_t)(uintptr_t)pinned, managed, 8, stream);
  launch_copy(managed, (uint64_t)(uintptr_t)own, 8, stream);
  assert_int_equal(cuda.stream_synchronize(stream), CU_OK);
  assert_memory_equal(own, "straight", 8);
  cuda.stream_destroy(stream);
  assert_int_equal(cuda.host_unregister(own), CU_OK);
  assert_int_equal(cuda.host_unregister(own), CU_HOST_MEMORY_NOT_REGISTERED);
  cuda.host_release(pinned);
  cuda.release(managed);
}

static void what_is_alive_is_told(void **state) {
  (void)state;
  struct standin_cuda_live live;
  uint64_t a = allocate(100);
  control->live(&live);
  assert_int_equal(live.device_blocks, 1);
  assert_int_equal(live.device_bytes, 100);
  assert_true(control->report() > 0);
  cuda.release(a);
  control->live(&live);
  assert_int_equal(live.device_blocks + live.host_blocks + live.streams + live.events, 0);
  assert_int_equal(control->violations(), 0);
}

int main(void) {
  setenv("TANDEM_CUDA_LIBRARY", TANDEM_STANDIN_DIR "/cuda/libcuda.so.1", 1);
  char why[256];
  if (!driver_open(&cuda, why, sizeof why)) {
    fprintf(stderr, "test_standin_cuda: %s\n", why);
    return 1;
  }
  const struct standin_cuda *(*get)(void);
  *(void **)&get = dlsym(dlopen(getenv("TANDEM_CUDA_LIBRARY"), RTLD_NOW), "standin_cuda_control");
  control = get();
  bool started = cuda.primary_retain(&context, 0) == CU_OK && cuda.context_push(context) == CU_OK &&
                 cuda.module_load(&module, standin_ptx) == CU_OK &&
                 cuda.module_function(&copy_kernel, module, "standin_copy") == CU_OK;
  if (!started)
    return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(work_waits_for_its_turn),
      cmocka_unit_test(an_event_orders_two_streams),
      cmocka_unit_test(freed_memory_is_found_out),
      cmocka_unit_test(memory_past_a_block_is_found_out),
      cmocka_unit_test(a_cap_holds),
      cmocka_unit_test(devices_are_apart),
      cmocka_unit_test(a_primary_context_comes_back_with_another_id),
      cmocka_unit_test(a_lost_device_fails_everything),
      cmocka_unit_test(captures_are_broken_by_whom_the_modes_say),
      cmocka_unit_test(waiting_in_a_capture_breaks_it),
      cmocka_unit_test(a_fork_in_a_capture_must_come_back),
      cmocka_unit_test(threads_have_streams_of_their_own),
      cmocka_unit_test(ordered_failures_come_at_their_call),
      cmocka_unit_test(a_forked_child_has_no_driver),
      cmocka_unit_test(pinned_and_managed_memory_is_told_apart),
      cmocka_unit_test(what_is_alive_is_told),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  cuda.module_unload(module);
  cuda.context_pop(NULL);
  cuda.primary_release(0);
  return failed != 0;
}
