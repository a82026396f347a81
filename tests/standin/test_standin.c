/* The stand-in libnvinfer, driven through raw slots: test_standin 10 | 11 | rtx. TESTS ONLY.
 *
 * The slot numbers are written here by hand from the interface's description, apart from slots.tsv, so that
 * the generated tables are checked and not repeated. STANDIN_TEST_DRIVER=real runs on a GPU's own driver:
 * what needs the stand-in driver skips there.
 */
#include "driver.h"
#include "plan.h"
#include "standin.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct dims {
  int32_t rank;
  int64_t d[8];
};

static struct slots {
  int deserialize, host_code, profile_shape, tensor_count, tensor_name, dtype, refittable, stat, alias,
      streamable, set_budget, get_budget, automatic, create_context, most_scratch, set_profile, set_shape,
      get_shape, set_address, infer, set_allocator, update_scratch, set_scratch, enqueue;
} slots;

static const struct slots slots_10 = {3,  21, 29, 30, 31, 20, 8,  57, 58, 46, 48, 49,
                                      50, 5,  52, 17, 21, 22, 24, 28, 32, 48, 49, 37};
static const struct slots slots_11 = {3,  20, 25, 26, 27, 16, 6,  49, 50, 38, 40, 41,
                                      42, 5,  44, 16, 20, 21, 23, 27, 31, 47, 48, 36};

static const struct standin_nvinfer *control;
static const struct standin_cuda *cuda_control; /* NULL on a real driver */
static struct driver cuda;
static void *runtime, *stream;
static int product;
static char lines[4096];

static void keep_line(void *self, int32_t severity, const char *line) {
  (void)self;
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  size_t used = strlen(lines);
  snprintf(lines + used, sizeof lines - used, "%d %s\n", severity, line);
  pthread_mutex_unlock(&lock);
}

static int32_t say_language(void *self) {
  (void)self;
  return 0;
}

typedef void entry(void);
static entry *const logger_10[] = {(entry *)keep_line, NULL, NULL};
static entry *const logger_11[] = {(entry *)say_language, NULL, NULL, NULL, (entry *)keep_line};
static struct { entry *const *vptr; } logger;

static entry *slot(void *face, int number) {
  return (*(entry ***)((void **)face)[1])[number];
}

/* CALL(result type, object, slot, types...)(impl, arguments...), and ASK for methods without arguments. */
#define CALL(type, face, number, ...) ((type(*)(void *, __VA_ARGS__))slot(face, number))
#define ASK(type, face, number)       ((type(*)(void *))slot(face, number))

static void *impl(void *face) {
  return ((void **)face)[1];
}

static void destroy(void *face) {
  ((void (*)(void *))(*(entry ***)face)[1])(face);
}

static void *deserialize(const void *bytes, size_t size) {
  lines[0] = '\0';
  return CALL(void *, runtime, slots.deserialize, const void *, size_t)(impl(runtime), bytes, size);
}

static void *sample(const char *name) {
  size_t size;
  void *bytes = standin_sample_bytes(name, &size);
  void *engine = deserialize(bytes, size);
  free(bytes);
  if (!engine)
    print_error("%s", lines);
  assert_non_null(engine);
  return engine;
}

static void *make_context(void *engine, int32_t strategy) {
  void *context = CALL(void *, engine, slots.create_context, int32_t)(impl(engine), strategy);
  assert_non_null(context);
  return context;
}

static bool set_address(void *context, const char *name, uint64_t address) {
  return CALL(_Bool, context, slots.set_address, const char *, void *)(impl(context), name,
                                                                       (void *)(uintptr_t)address);
}

static bool set_shape(void *context, const char *name, struct dims dims) {
  return CALL(_Bool, context, slots.set_shape, const char *, const struct dims *)(impl(context), name, &dims);
}

static bool enqueue(void *context) {
  return CALL(_Bool, context, slots.enqueue, void *)(impl(context), stream);
}

static uint64_t allocate(size_t size) {
  uint64_t address = 0;
  assert_int_equal(cuda.allocate(&address, size), 0);
  return address;
}

static void fill(float *x, size_t count) {
  for (size_t i = 0; i < count; i++)
    x[i] = (float)((int)(i * 7 % 11) - 5);
}

static bool is_close(const float *a, const float *b, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!(fabsf(a[i] - b[i]) <= 1e-4f * (1.0f + fabsf(b[i]))))
      return false;
  return true;
}

static const int64_t widths[] = {8, 16, 4};
static const struct standin_mlp mlp = {.name = "mlp",
                                       .seed = 1,
                                       .relu = true,
                                       .layer_count = 2,
                                       .widths = widths,
                                       .rows_min = 2,
                                       .rows_opt = 2,
                                       .rows_max = 2};

/* ---------------------------------------------------------------- tests */

static void a_plan_runs_later_on_its_stream(void **state) {
  (void)state;
  void *engine = sample("mlp");
  assert_int_equal(ASK(int32_t, engine, slots.tensor_count)(impl(engine)), 2);
  assert_string_equal(CALL(const char *, engine, slots.tensor_name, int32_t)(impl(engine), 1), "y");
  void *context = make_context(engine, 0);
  float x[16], y[8] = {0}, expected[8];
  fill(x, 16);
  uint64_t in = allocate(sizeof x), out = allocate(sizeof y);
  cuda.copy_to(in, x, sizeof x);
  assert_true(set_address(context, "x", in));
  assert_true(set_address(context, "y", out));
  if (cuda_control)
    cuda_control->hold(true);
  assert_true(enqueue(context));
  if (cuda_control) {
    assert_true(cuda_control->wait_held(1));
    assert_int_equal(cuda.stream_query(stream), CU_NOT_READY);
    cuda_control->hold(false);
  }
  assert_int_equal(cuda.stream_synchronize(stream), 0);
  cuda.copy_from(y, out, sizeof y);
  assert_true(standin_mlp_expect(&mlp, x, 2, expected));
  assert_memory_equal(y, expected, sizeof y);
  cuda.release(in);
  cuda.release(out);
  destroy(context);
  destroy(engine);
}

static void every_byte_of_the_weights_shows(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = standin_sample_bytes("mlp", &size);
  struct standin_plan_header header;
  memcpy(&header, bytes, sizeof header);
  float x[16], before[8], after[8];
  for (int i = 0; i < 16; i++)
    x[i] = 1.0f + 0.25f * (float)i;
  uint64_t in = allocate(sizeof x), out = allocate(sizeof before);
  cuda.copy_to(in, x, sizeof x);
  /* The last bias: no RELU behind it hides a change. */
  for (int round = 0; round < 2; round++) {
    void *engine = deserialize(bytes, size);
    assert_non_null(engine);
    void *context = make_context(engine, 0);
    set_address(context, "x", in);
    set_address(context, "y", out);
    assert_true(enqueue(context));
    cuda.stream_synchronize(stream);
    cuda.copy_from(round ? after : before, out, sizeof before);
    destroy(context);
    destroy(engine);
    bytes[size - 1] ^= 0x80;
  }
  assert_memory_not_equal(before, after, sizeof before);
  cuda.release(in);
  cuda.release(out);
  free(bytes);
}

static void shapes_and_scratch_follow_the_input(void **state) {
  (void)state;
  void *engine = sample("dynamic");
  struct dims bounds =
      CALL(struct dims, engine, slots.profile_shape, const char *, int32_t, int32_t)(impl(engine), "x", 0, 2);
  assert_int_equal(bounds.rank, 2);
  assert_int_equal(bounds.d[0], 8);
  void *context = make_context(engine, 2);
  struct dims shape = CALL(struct dims, context, slots.get_shape, const char *)(impl(context), "y");
  assert_int_equal(shape.d[0], -1);
  lines[0] = '\0';
  assert_false(set_shape(context, "x", (struct dims){2, {9, 8}}));
  assert_non_null(strstr(lines, "[1..8]"));
  assert_false(set_shape(context, "x", (struct dims){2, {4, 7}}));
  assert_true(set_shape(context, "x", (struct dims){2, {3, 8}}));
  shape = CALL(struct dims, context, slots.get_shape, const char *)(impl(context), "y");
  assert_int_equal(shape.d[0], 3);
  assert_int_equal(shape.d[1], 4);
  size_t need = ASK(size_t, context, slots.update_scratch)(impl(context));
  assert_true(need >= 1300);
  assert_true((int64_t)need <= ASK(int64_t, engine, slots.most_scratch)(impl(engine)));
  float x[24], y[12], expected[12];
  fill(x, 24);
  uint64_t in = allocate(sizeof x), out = allocate(sizeof y), scratch = allocate(need);
  cuda.copy_to(in, x, sizeof x);
  set_address(context, "x", in);
  set_address(context, "y", out);
  assert_false(enqueue(context));
  CALL(void, context, slots.set_scratch, void *, int64_t)
  (impl(context), (void *)(uintptr_t)scratch, (int64_t)need - 1);
  assert_false(enqueue(context));
  CALL(void, context, slots.set_scratch, void *, int64_t)
  (impl(context), (void *)(uintptr_t)scratch, (int64_t)need);
  assert_true(enqueue(context));
  assert_int_equal(cuda.stream_synchronize(stream), 0);
  cuda.copy_from(y, out, sizeof y);
  struct standin_mlp dynamic = mlp;
  dynamic.seed = 2;
  assert_true(standin_mlp_expect(&dynamic, x, 3, expected));
  assert_true(is_close(y, expected, 12));
  cuda.release(in);
  cuda.release(out);
  cuda.release(scratch);
  destroy(context);
  destroy(engine);
}

static void streamed_weights_give_the_same_numbers(void **state) {
  (void)state;
  float x[8], results[3][4];
  fill(x, 8);
  uint64_t in = allocate(sizeof x), out = allocate(sizeof *results);
  cuda.copy_to(in, x, sizeof x);
  for (int round = 0; round < 3; round++) {
    void *engine = sample("stream");
    int64_t streamable = ASK(int64_t, engine, slots.streamable)(impl(engine));
    assert_true(streamable > 0);
    uint64_t before = cuda_control ? cuda_control->memory_used(0) : 0;
    int64_t budget = streamable * round / 2;
    assert_true(CALL(_Bool, engine, slots.set_budget, int64_t)(impl(engine), budget));
    assert_int_equal(ASK(int64_t, engine, slots.get_budget)(impl(engine)), budget);
    if (cuda_control)
      assert_true(cuda_control->memory_used(0) <= before + (uint64_t)budget + 512);
    void *context = make_context(engine, 0);
    assert_false(CALL(_Bool, engine, slots.set_budget, int64_t)(impl(engine), streamable));
    set_address(context, "x", in);
    set_address(context, "y", out);
    assert_true(enqueue(context));
    assert_int_equal(cuda.stream_synchronize(stream), 0);
    cuda.copy_from(results[round], out, sizeof *results);
    destroy(context);
    destroy(engine);
  }
  assert_memory_equal(results[0], results[1], sizeof *results);
  assert_memory_equal(results[0], results[2], sizeof *results);
  cuda.release(in);
  cuda.release(out);
}

static void a_cache_is_updated_in_place(void **state) {
  (void)state;
  void *engine = sample("cache");
  assert_string_equal(CALL(const char *, engine, slots.alias, const char *)(impl(engine), "cache_out"),
                      "cache");
  assert_null(CALL(const char *, engine, slots.alias, const char *)(impl(engine), "y"));
  void *context = make_context(engine, 0);
  float x[8], cache[32] = {0};
  fill(x, 8);
  uint64_t in = allocate(sizeof x), state_at = allocate(sizeof cache), out = allocate(64);
  cuda.copy_to(in, x, sizeof x);
  cuda.copy_to(state_at, cache, sizeof cache);
  set_address(context, "x", in);
  set_address(context, "cache", state_at);
  set_address(context, "y", out);
  set_address(context, "cache_out", out);
  assert_false(enqueue(context));
  set_address(context, "cache_out", state_at);
  for (int step = 0; step < 2; step++)
    assert_true(enqueue(context));
  cuda.stream_synchronize(stream);
  cuda.copy_from(cache, state_at, sizeof cache);
  for (int i = 0; i < 32; i++)
    assert_true(cache[i] == x[i % 8] * 1.5f);
  cuda.release(in);
  cuda.release(out);
  cuda.release(state_at);
  destroy(context);
  destroy(engine);
}

static void a_host_tensor_says_the_shape(void **state) {
  (void)state;
  void *engine = sample("shapes");
  void *context = make_context(engine, 0);
  int64_t wanted[2] = {2, 3}, shape[1] = {0};
  float x[20], y[6];
  fill(x, 20);
  uint64_t in = allocate(sizeof x), out = allocate(sizeof y);
  cuda.copy_to(in, x, sizeof x);
  assert_false(set_shape(context, "x", (struct dims){1, {20}}));
  assert_true(CALL(_Bool, context, slots.set_profile, int32_t, void *)(impl(context), 1, stream));
  assert_true(set_shape(context, "x", (struct dims){1, {20}}));
  const char *names[4];
  assert_int_equal(CALL(int32_t, context, slots.infer, int32_t, const char **)(impl(context), 4, names), 1);
  assert_string_equal(names[0], "wanted");
  set_address(context, "x", in);
  set_address(context, "y", out);
  set_address(context, "wanted", (uint64_t)(uintptr_t)wanted);
  set_address(context, "shape", (uint64_t)(uintptr_t)shape);
  assert_int_equal(CALL(int32_t, context, slots.infer, int32_t, const char **)(impl(context), 4, names), 0);
  struct dims found = CALL(struct dims, context, slots.get_shape, const char *)(impl(context), "y");
  assert_int_equal(found.d[0], 2);
  assert_int_equal(found.d[1], 3);
  assert_true(enqueue(context));
  cuda.stream_synchronize(stream);
  cuda.copy_from(y, out, sizeof y);
  assert_memory_equal(x, y, sizeof y);
  assert_int_equal(shape[0], 20);
  cuda.release(in);
  cuda.release(out);
  destroy(context);
  destroy(engine);
}

static struct {
  entry *const *vptr;
  uint64_t memory;
  uint64_t size;
  struct dims told;
} allocator;

static void *give_output(void *self, const char *name, void *current, uint64_t size, uint64_t alignment,
                         void *on) {
  (void)self;
  (void)name;
  (void)current;
  (void)alignment;
  (void)on;
  allocator.size = size;
  return (void *)(uintptr_t)allocator.memory;
}

static void keep_shape(void *self, const char *name, const struct dims *dims) {
  (void)self;
  (void)name;
  allocator.told = *dims;
}

static entry *const allocator_trt[] = {(entry *)say_language, NULL, NULL, NULL, NULL, (entry *)give_output,
                                       (entry *)keep_shape};
static entry *const allocator_rtx[] = {(entry *)say_language, NULL, NULL, NULL, (entry *)give_output,
                                       (entry *)keep_shape};

static void the_allocator_learns_what_the_data_decided(void **state) {
  (void)state;
  void *engine = sample("positive");
  void *context = make_context(engine, 0);
  float x[6] = {1, -2, 3, 0, -1, 5}, y[3];
  uint64_t in = allocate(sizeof x);
  allocator.memory = allocate(64 * 4);
  allocator.vptr = product == 1 ? allocator_rtx : allocator_trt;
  cuda.copy_to(in, x, sizeof x);
  set_shape(context, "x", (struct dims){1, {6}});
  set_address(context, "x", in);
  assert_true(
      CALL(_Bool, context, slots.set_allocator, const char *, void *)(impl(context), "positive", &allocator));
  assert_true(enqueue(context));
  cuda.stream_synchronize(stream);
  assert_int_equal(allocator.told.rank, 1);
  assert_int_equal(allocator.told.d[0], 3);
  assert_int_equal(allocator.size, 12);
  cuda.copy_from(y, allocator.memory, sizeof y);
  assert_memory_equal(y, ((float[]){1, 3, 5}), sizeof y);
  cuda.release(in);
  cuda.release(allocator.memory);
  destroy(context);
  destroy(engine);
}

static void bad_plans_are_refused_with_a_reason(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = standin_sample_bytes("mlp", &size);
  assert_null(deserialize(bytes, 3));
  assert_null(deserialize(NULL, 0));
  bytes[0] ^= 1;
  assert_null(deserialize(bytes, size));
  assert_non_null(strstr(lines, "header.magicTag == kEXPECTED_MAGIC_TAG"));
  bytes[0] ^= 1;
  assert_null(deserialize(bytes, size - 1));
  struct standin_plan_header header;
  memcpy(&header, bytes, sizeof header);
  header.compute = 75;
  memcpy(bytes, &header, sizeof header);
  assert_null(deserialize(bytes, size));
  assert_non_null(strstr(lines, "7.5"));
  header.compute = 0;
  header.flags = STANDIN_PLAN_HOST_CODE;
  memcpy(bytes, &header, sizeof header);
  assert_null(deserialize(bytes, size));
  CALL(void, runtime, slots.host_code, _Bool)(impl(runtime), true);
  void *engine = deserialize(bytes, size);
  assert_non_null(engine);
  destroy(engine);
  CALL(void, runtime, slots.host_code, _Bool)(impl(runtime), false);
  free(bytes);
}

static void a_plan_without_weights_says_so(void **state) {
  (void)state;
  void *engine = sample("stripped");
  assert_true(CALL(int64_t, engine, slots.stat, int32_t)(impl(engine), 1) >= 0);
  assert_true(ASK(_Bool, engine, slots.refittable)(impl(engine)));
  destroy(engine);
  engine = sample("mlp");
  assert_int_equal(CALL(int64_t, engine, slots.stat, int32_t)(impl(engine), 1), -1);
  assert_false(ASK(_Bool, engine, slots.refittable)(impl(engine)));
  destroy(engine);
}

static void ordered_failures_come_at_their_call(void **state) {
  (void)state;
  size_t size;
  void *bytes = standin_sample_bytes("mlp", &size);
  control->fail_at(STANDIN_DESERIALIZE, 2, STANDIN_FAIL_OUT_OF_MEMORY);
  control->say(STANDIN_DESERIALIZE, 2, "from elsewhere", true);
  void *engine = deserialize(bytes, size);
  assert_non_null(engine);
  assert_non_null(strstr(lines, "2 from elsewhere"));
  assert_null(deserialize(bytes, size));
  assert_non_null(strstr(lines, "OutOfMemory"));
  control->say(STANDIN_DESERIALIZE, 0, NULL, false);
  control->fail_at(STANDIN_CONTEXT, 1, STANDIN_FAIL_PLAIN);
  assert_null(CALL(void *, engine, slots.create_context, int32_t)(impl(engine), 2));
  destroy(engine);
  free(bytes);
}

static void a_full_device_is_told_and_left_clean(void **state) {
  (void)state;
  if (!cuda_control)
    skip();
  uint64_t used = cuda_control->memory_used(0);
  cuda_control->set_memory(0, used + 512);
  size_t size;
  void *bytes = standin_sample_bytes("mlp", &size);
  assert_null(deserialize(bytes, size));
  assert_non_null(strstr(lines, "out of memory"));
  assert_int_equal(cuda_control->memory_used(0), used);
  cuda_control->set_memory(0, (uint64_t)16 << 30);
  void *engine = deserialize(bytes, size);
  assert_non_null(engine);
  destroy(engine);
  free(bytes);
}

static void a_captured_run_replays(void **state) {
  (void)state;
  void *engine = sample("mlp");
  void *context = make_context(engine, 0);
  float x[16], y[8], expected[8];
  fill(x, 16);
  uint64_t in = allocate(sizeof x), out = allocate(sizeof y);
  set_address(context, "x", in);
  set_address(context, "y", out);
  void *graph, *instance;
  assert_int_equal(cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL), 0);
  assert_true(enqueue(context));
  assert_int_equal(cuda.capture_end(stream, &graph), 0);
  assert_int_equal(cuda.graph_instantiate(&instance, graph, 0), 0);
  cuda.copy_to(in, x, sizeof x);
  assert_int_equal(cuda.graph_launch(instance, stream), 0);
  assert_int_equal(cuda.stream_synchronize(stream), 0);
  cuda.copy_from(y, out, sizeof y);
  standin_mlp_expect(&mlp, x, 2, expected);
  assert_memory_equal(y, expected, sizeof y);
  cuda.graph_instance_destroy(instance);
  cuda.graph_destroy(graph);
  cuda.release(in);
  cuda.release(out);
  destroy(context);
  destroy(engine);
}

struct runner {
  void *engine;
  float x[16], y[8];
  bool done;
};

static void *run_many(void *argument) {
  struct runner *runner = argument;
  void *cuda_context, *own_stream;
  if (cuda.primary_retain(&cuda_context, 0) || cuda.context_push(cuda_context) ||
      cuda.stream_create(&own_stream, 1))
    return NULL;
  void *context = CALL(void *, runner->engine, slots.create_context, int32_t)(impl(runner->engine), 0);
  uint64_t in = 0, out = 0;
  runner->done = context && !cuda.allocate(&in, sizeof runner->x) && !cuda.allocate(&out, sizeof runner->y) &&
                 !cuda.copy_to(in, runner->x, sizeof runner->x) && set_address(context, "x", in) &&
                 set_address(context, "y", out);
  for (int i = 0; i < 50 && runner->done; i++)
    runner->done = CALL(_Bool, context, slots.enqueue, void *)(impl(context), own_stream) &&
                   !cuda.stream_synchronize(own_stream);
  cuda.copy_from(runner->y, out, sizeof runner->y);
  cuda.release(in);
  cuda.release(out);
  if (context)
    destroy(context);
  cuda.stream_destroy(own_stream);
  cuda.context_pop(NULL);
  cuda.primary_release(0);
  return NULL;
}

static void contexts_of_one_engine_run_at_once(void **state) {
  (void)state;
  enum { RUNNERS = 4 };
  struct runner runners[RUNNERS] = {0};
  pthread_t threads[RUNNERS];
  void *engine = sample("mlp");
  for (int i = 0; i < RUNNERS; i++) {
    runners[i].engine = engine;
    fill(runners[i].x, 16);
    runners[i].x[i] += 3.0f;
    assert_int_equal(pthread_create(&threads[i], NULL, run_many, &runners[i]), 0);
  }
  for (int i = 0; i < RUNNERS; i++) {
    float expected[8];
    pthread_join(threads[i], NULL);
    assert_true(runners[i].done);
    standin_mlp_expect(&mlp, runners[i].x, 2, expected);
    assert_memory_equal(runners[i].y, expected, sizeof expected);
  }
  destroy(engine);
}

static void wrong_order_of_destruction_is_noticed(void **state) {
  (void)state;
  void *engine = sample("mlp"), *other = NULL;
  struct standin_counts before, after;
  control->counts(&before);
  cuda.context_create(&other, 0, 0);
  assert_null(CALL(void *, engine, slots.create_context, int32_t)(impl(engine), 0));
  cuda.context_destroy(other);
  control->counts(&after);
  assert_int_equal(after.misuses, before.misuses + 1);
  destroy(engine);
  control->reset();
}

static void a_missing_slot_is_named(void **state) {
  (void)state;
  struct standin_counts before, after;
  control->counts(&before);
  ASK(void, runtime, 79)(impl(runtime));
  control->counts(&after);
  assert_int_equal(after.traps, before.traps + 1);
}

static void a_failed_runtime_is_no_null(void **state) {
  (void)state;
  void *library = *state;
  void *(*create)(void *, int32_t);
  *(void **)&create = dlsym(library, "createInferRuntime_INTERNAL");
  assert_ptr_equal(create(NULL, 0), (void *)0x228);
  control->fail_at(STANDIN_RUNTIME, 1, STANDIN_FAIL_PLAIN);
  assert_ptr_equal(create(&logger, 0), (void *)0x228);
}

static void nothing_is_left(void **state) {
  (void)state;
  struct standin_counts counts;
  control->counts(&counts);
  assert_int_equal(counts.engines, 0);
  assert_int_equal(counts.contexts, 0);
  assert_int_equal(counts.misuses, 0);
  if (cuda_control) {
    struct standin_cuda_live live;
    cuda_control->live(&live);
    assert_int_equal(live.device_blocks, 0);
    assert_int_equal(live.host_blocks, 0);
    assert_int_equal(live.modules, 0);
    assert_int_equal(live.graphs + live.graph_instances, 0);
    assert_int_equal(cuda_control->violations(), 0);
  }
}

/* ---------------------------------------------------------------- start */

static bool find_libraries(const char *which, bool real, void **library) {
  product = strcmp(which, "10") == 0 ? 10 : strcmp(which, "11") == 0 ? 11 : 1;
  slots = product == 10 ? slots_10 : slots_11;
  logger.vptr = product == 10 ? logger_10 : logger_11;
  const char *path = product == 10   ? TANDEM_STANDIN_DIR "/10/libnvinfer.so.10"
                     : product == 11 ? TANDEM_STANDIN_DIR "/11/libnvinfer.so.11"
                                     : TANDEM_STANDIN_DIR "/rtx/libtensorrt_rtx.so.1";
  if (!real)
    setenv("TANDEM_CUDA_LIBRARY", TANDEM_STANDIN_DIR "/cuda/libcuda.so.1", 0);
  *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*library) {
    fprintf(stderr, "test_standin: %s\n", dlerror());
    return false;
  }
  const struct standin_nvinfer *(*get)(void);
  *(void **)&get = dlsym(*library, "standin_nvinfer_control");
  control = get();
  void *(*create)(void *, int32_t);
  *(void **)&create = dlsym(*library, "createInferRuntime_INTERNAL");
  lines[0] = '\0';
  runtime = create(&logger, 0);
  return true;
}

static bool start(bool real) {
  char why[256];
  if (!driver_open(&cuda, why, sizeof why)) {
    fprintf(stderr, "test_standin: %s\n", why);
    return false;
  }
  if (!real) {
    const struct standin_cuda *(*get_cuda)(void);
    *(void **)&get_cuda = dlsym(dlopen(getenv("TANDEM_CUDA_LIBRARY"), RTLD_NOW), "standin_cuda_control");
    cuda_control = get_cuda();
  }
  void *context;
  return (uintptr_t)runtime > 4096 && cuda.primary_retain(&context, 0) == 0 &&
         cuda.context_push(context) == 0 && cuda.stream_create(&stream, 1) == 0;
}

/* TANDEM_CUDA_LIBRARY names nothing: as the real libraries, TensorRT makes no runtime, RTX makes one. */
static bool goes_as_far_as_without_a_driver(void) {
  size_t size;
  if (product != 1)
    return runtime == (void *)0x228 && strstr(lines, "CUDA initialization failure with error: 35");
  void *bytes = standin_sample_bytes("mlp", &size);
  bool refused =
      !deserialize(bytes, size) && strstr(lines, "cudaError 35") && strstr(lines, "catchCudaError");
  free(bytes);
  destroy(runtime);
  return refused;
}

/* STANDIN_FAIL=deserialize:2:out_of_memory STANDIN_SAY=deserialize STANDIN_CUDA_FAIL=cuMemAlloc:2:2 */
static bool follows_orders_of_the_environment(void) {
  size_t size;
  void *bytes = standin_sample_bytes("mlp", &size);
  void *engine = deserialize(bytes, size);
  bool followed = engine && strstr(lines, "a line from a thread of the library");
  followed &= !deserialize(bytes, size) && strstr(lines, "OutOfMemory (Requested size was 1048576 bytes");
  followed &= !deserialize(bytes, size) && strstr(lines, "OutOfMemory (Requested size was ");
  if (engine)
    destroy(engine);
  engine = deserialize(bytes, size);
  followed &= engine != NULL;
  if (engine)
    destroy(engine);
  free(bytes);
  return followed;
}

int main(int argc, char **argv) {
  void *library;
  bool real = getenv("STANDIN_TEST_DRIVER") && strcmp(getenv("STANDIN_TEST_DRIVER"), "real") == 0;
  if (argc < 2 || !find_libraries(argv[1], real, &library)) {
    fprintf(stderr, "test_standin: expected 10, 11 or rtx\n");
    return 1;
  }
  if (argc > 2 && strcmp(argv[2], "no-driver") == 0)
    return !goes_as_far_as_without_a_driver();
  if (!start(real))
    return 1;
  if (argc > 2)
    return !follows_orders_of_the_environment();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_plan_runs_later_on_its_stream),
      cmocka_unit_test(every_byte_of_the_weights_shows),
      cmocka_unit_test(shapes_and_scratch_follow_the_input),
      cmocka_unit_test(streamed_weights_give_the_same_numbers),
      cmocka_unit_test(a_cache_is_updated_in_place),
      cmocka_unit_test(a_host_tensor_says_the_shape),
      cmocka_unit_test(the_allocator_learns_what_the_data_decided),
      cmocka_unit_test(bad_plans_are_refused_with_a_reason),
      cmocka_unit_test(a_plan_without_weights_says_so),
      cmocka_unit_test(ordered_failures_come_at_their_call),
      cmocka_unit_test(a_full_device_is_told_and_left_clean),
      cmocka_unit_test(a_captured_run_replays),
      cmocka_unit_test(contexts_of_one_engine_run_at_once),
      cmocka_unit_test(wrong_order_of_destruction_is_noticed),
      cmocka_unit_test(a_missing_slot_is_named),
      cmocka_unit_test_prestate(a_failed_runtime_is_no_null, library),
      cmocka_unit_test(nothing_is_left),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  destroy(runtime);
  cuda.stream_destroy(stream);
  cuda.context_pop(NULL);
  cuda.primary_release(0);
  return failed != 0;
}
