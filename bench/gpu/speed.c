/* Times of runs: a shared load beside a private one, tandem beside the library's own enqueue loop, and two
 * loads at once.
 *
 * Paired: each pair runs one of either, the order changing from pair to pair, so that what drifts (clocks,
 * other users of the machine) meets both alike. The loop is what a program without tandem does for the same
 * work: enqueue on a stream and wait for it, addresses set once.
 */
#include "abi.h"
#include "bench.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_RUNS = 20, PAIRS_MAX = 100000, ROUNDS_MAX = 1000 };

/* ---------------------------------------------------------------- the library by itself */

typedef void (*any_fn)(void);
enum { TD_SLOT_DUMMY };
#define SLOT(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)             \
  SLOT_##member = (slot11),
enum { TD_TRT_METHODS(SLOT, SLOT) };
#undef SLOT

static int32_t get_language(void *logger) {
  (void)logger;
  return 0;
}

static struct td_trt_interface_info get_info(void *logger) {
  (void)logger;
  return (struct td_trt_interface_info){"ILogger", 1, 0};
}

static void do_nothing(void *logger) {
  (void)logger;
}

static void take_line(void *logger, int32_t severity, const char *line) {
  (void)logger;
  if (severity <= TD_TRT_ERROR)
    stop("the library says: %s", line);
}

static const any_fn logger_table[] = {(any_fn)get_language, (any_fn)get_info, (any_fn)do_nothing,
                                      (any_fn)do_nothing, (any_fn)take_line};
static const any_fn *logger = logger_table;

static any_fn method(void *object, int slot) {
  const struct td_trt_object *face = object;
  any_fn function;
  memcpy(&function, &face->implementation->vtable[slot], sizeof function);
  return function;
}

#define SELF(object) ((void *)((struct td_trt_object *)(object))->implementation)

static void destroy(void *object) {
  void (*delete)(void *);
  memcpy(&delete, &((struct td_trt_object *)object)->vtable[1], sizeof delete);
  delete (object);
}

struct loop {
  void *runtime, *engine, *context;
};

static void open_loop(struct loop *loop, const struct model *model, struct tensors *tensors) {
  const char *path = getenv("TANDEM_TENSORRT_LIBRARY");
  must(path, "TANDEM_TENSORRT_LIBRARY names no stand-in libnvinfer.so.11");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, "createInferRuntime_INTERNAL") : NULL;
  must(symbol, "%s is no libnvinfer", path);
  td_trt_create_runtime_fn create;
  memcpy(&create, &symbol, sizeof symbol);
  enter_device(0);
  loop->runtime = create(&logger, 110400);
  must(TD_TRT_LIVE(loop->runtime), "no runtime");
  loop->engine = ((void *(*)(void *, const void *, size_t))method(loop->runtime, SLOT_runtime_deserialize))(
      SELF(loop->runtime), model->plan, model->plan_size);
  must(TD_TRT_LIVE(loop->engine), "no engine");
  loop->context = ((void *(*)(void *, int32_t))method(loop->engine, SLOT_engine_create_context))(
      SELF(loop->engine), TD_TRT_SCRATCH_STATIC);
  must(TD_TRT_LIVE(loop->context), "no context");
  typedef bool (*set_address_fn)(void *, const char *, void *);
  set_address_fn set_address = (set_address_fn)method(loop->context, SLOT_context_set_address);
  must(set_address(SELF(loop->context), "x", tensors->x.data) &&
           set_address(SELF(loop->context), "y", tensors->y.data),
       "addresses refused");
  leave_device();
}

static void close_loop(struct loop *loop) {
  enter_device(0);
  destroy(loop->context);
  destroy(loop->engine);
  destroy(loop->runtime);
  leave_device();
}

/* ---------------------------------------------------------------- pairs */

struct side {
  struct tandem_load *load; /* NULL: the loop */
  struct loop *loop;
  struct tensors *tensors;
  void *stream; /* NULL: the load's own, the loop's is the thread's */
};

static double time_side(const struct side *side) {
  double began = now_s();
  if (side->load) {
    run_load(side->load, side->tensors, side->stream);
    return now_s() - began;
  }
  void *stream = side->stream ? side->stream : CU_PER_THREAD_STREAM;
  bool good = ((bool (*)(void *, void *))method(side->loop->context, SLOT_context_enqueue))(
      SELF(side->loop->context), stream);
  must(good, "enqueueV3 failed");
  must_cuda(cuda.stream_synchronize(stream), "cuStreamSynchronize");
  return now_s() - began;
}

/* The context is current throughout, as in a program that runs such a loop. */
static void compare(cJSON *document, const char *key, const struct side *one, const struct side *other,
                    size_t pairs) {
  double *a = malloc(pairs * sizeof *a), *b = malloc(pairs * sizeof *b),
         *ratios = malloc(pairs * sizeof *ratios);
  must(a && b && ratios, "no memory");
  enter_device(0);
  for (int i = 0; i < WARM_RUNS; i++) {
    time_side(one);
    time_side(other);
  }
  for (size_t i = 0; i < pairs; i++) {
    bool first = i % 2 == 0;
    if (first)
      a[i] = time_side(one);
    b[i] = time_side(other);
    if (!first)
      a[i] = time_side(one);
    ratios[i] = a[i] / b[i];
  }
  leave_device();
  cJSON *object = cJSON_AddObjectToObject(cJSON_GetObjectItem(document, "comparisons"), key);
  cJSON_AddNumberToObject(object, "pairs", (double)pairs);
  double median_a = percentile(a, pairs, 50), median_b = percentile(b, pairs, 50);
  cJSON_AddNumberToObject(object, "median_ms", median_a * 1e3);
  cJSON_AddNumberToObject(object, "other_median_ms", median_b * 1e3);
  cJSON_AddNumberToObject(object, "p10_ms", percentile(a, pairs, 10) * 1e3);
  cJSON_AddNumberToObject(object, "p90_ms", percentile(a, pairs, 90) * 1e3);
  cJSON_AddNumberToObject(object, "ratio_of_medians", median_a / median_b);
  double middle = percentile(ratios, pairs, 50);
  cJSON_AddNumberToObject(object, "median_of_ratios", middle);
  cJSON_AddNumberToObject(object, "ratio_p10", percentile(ratios, pairs, 10));
  cJSON_AddNumberToObject(object, "ratio_p90", percentile(ratios, pairs, 90));
  judge(document, key, middle, 1.01);
  free(a);
  free(b);
  free(ratios);
}

cJSON *measure_speed(int count, char **arguments) {
  struct model model;
  struct tensors tensors;
  struct loop loop;
  make_model(&model, (int32_t)argument(count, arguments, "layers", 400),
             argument(count, arguments, "width", 724), argument(count, arguments, "scratch_mib", 32) * MIB, 1,
             0);
  size_t pairs = (size_t)argument(count, arguments, "pairs", 300);
  must(pairs > 0 && pairs <= PAIRS_MAX, "pairs=%zu", pairs);
  struct bytes payload = wrap_model(&model, 0);
  make_tensors(&tensors, &model, 0, 1);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "weights_bytes", (double)model_weights(&model));
  cJSON_AddNumberToObject(document, "layers", model.layer_count);
  cJSON_AddObjectToObject(document, "comparisons");

  struct tandem_load *first = load_payload(&payload, NULL), *shared = load_payload(&payload, NULL);
  struct tandem_load *private = load_payload(&payload, "use_shared_engines", "false", NULL);
  must(info_of(shared).shared && !info_of(private).shared, "the loads are not what they should be");
  open_loop(&loop, &model, &tensors);
  void *stream = make_stream(0);
  for (int caller = 0; caller < 2; caller++) {
    void *on = caller ? stream : NULL;
    const struct side with = {.load = shared, .tensors = &tensors, .stream = on};
    const struct side without = {.load = private, .tensors = &tensors, .stream = on};
    const struct side bare = {.loop = &loop, .tensors = &tensors, .stream = on};
    compare(document, caller ? "shared_over_private_callers_stream" : "shared_over_private", &with, &without,
            pairs);
    compare(document, caller ? "tandem_over_loop_callers_stream" : "tandem_over_loop", &with, &bare, pairs);
  }
  enter_device(0);
  must_cuda(cuda.stream_destroy(stream), "cuStreamDestroy");
  leave_device();
  close_loop(&loop);
  tandem_load_destroy(first);
  tandem_load_destroy(shared);
  tandem_load_destroy(private);
  free_tensors(&tensors);
  free(payload.data);
  free_model(&model);
  return document;
}

/* ---------------------------------------------------------------- two loads at once */

struct runner {
  struct tandem_load *load;
  struct tensors tensors;
  void *stream;
  int64_t runs;
  pthread_barrier_t *start;
  pthread_t thread;
};

static void *run_many(void *argument_of_thread) {
  struct runner *runner = argument_of_thread;
  pthread_barrier_wait(runner->start);
  for (int64_t i = 0; i < runner->runs; i++)
    run_load(runner->load, &runner->tensors, runner->stream);
  return NULL;
}

static double run_pair(struct runner *runners) {
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, 3);
  for (int i = 0; i < 2; i++) {
    runners[i].start = &start;
    must(pthread_create(&runners[i].thread, NULL, run_many, &runners[i]) == 0, "no thread");
  }
  pthread_barrier_wait(&start);
  double began = now_s();
  for (int i = 0; i < 2; i++)
    pthread_join(runners[i].thread, NULL);
  double seconds = now_s() - began;
  pthread_barrier_destroy(&start);
  return seconds;
}

/* Each load's output against that of its input alone on a private engine. */
static void check_outputs(struct runner *runners, struct tandem_load *private, const char *what) {
  for (int i = 0; i < 2; i++) {
    float *found = read_output(&runners[i].tensors);
    run_load(private, &runners[i].tensors, NULL);
    float *expected = read_output(&runners[i].tensors);
    must(memcmp(found, expected, runners[i].tensors.count * sizeof *found) == 0, "wrong output of %s load %d",
         what, i);
    free(found);
    free(expected);
  }
}

cJSON *measure_streams(int count, char **arguments) {
  struct model model;
  make_model(&model, (int32_t)argument(count, arguments, "layers", 400),
             argument(count, arguments, "width", 724), argument(count, arguments, "scratch_mib", 32) * MIB, 1,
             0);
  size_t rounds = (size_t)argument(count, arguments, "rounds", 21);
  must(rounds > 0 && rounds <= ROUNDS_MAX, "rounds=%zu", rounds);
  int64_t runs = argument(count, arguments, "runs", 40);
  struct bytes payload = wrap_model(&model, 0);
  struct tandem_load *loads[4];
  struct runner shared[2], alone[2];
  for (int i = 0; i < 4; i++)
    loads[i] = load_payload(&payload, "use_shared_engines", i < 2 ? "true" : "false", NULL);
  must(info_of(loads[0]).engine_id == info_of(loads[1]).engine_id, "two engines");
  for (int i = 0; i < 2; i++) {
    shared[i] = (struct runner){.load = loads[i], .stream = make_stream(0), .runs = runs};
    make_tensors(&shared[i].tensors, &model, 0, (unsigned)i + 1);
    alone[i] = shared[i];
    alone[i].load = loads[2 + i];
  }
  double a[ROUNDS_MAX], b[ROUNDS_MAX], ratios[ROUNDS_MAX];
  run_pair(shared);
  check_outputs(shared, loads[2], "a shared");
  run_pair(alone);
  check_outputs(alone, loads[2], "a private");
  for (size_t i = 0; i < rounds; i++) {
    bool first = i % 2 == 0;
    if (first)
      a[i] = run_pair(shared);
    b[i] = run_pair(alone);
    if (!first)
      a[i] = run_pair(shared);
    ratios[i] = a[i] / b[i];
  }
  check_outputs(shared, loads[2], "a shared");
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "rounds", (double)rounds);
  cJSON_AddNumberToObject(document, "runs_of_each_load", (double)runs);
  cJSON_AddNumberToObject(document, "shared_pair_ms_per_run", percentile(a, rounds, 50) * 1e3 / (double)runs);
  cJSON_AddNumberToObject(document, "private_pair_ms_per_run",
                          percentile(b, rounds, 50) * 1e3 / (double)runs);
  double middle = percentile(ratios, rounds, 50);
  cJSON_AddNumberToObject(document, "ratio_p10", percentile(ratios, rounds, 10));
  cJSON_AddNumberToObject(document, "ratio_p90", percentile(ratios, rounds, 90));
  judge(document, "two_shared_loads_over_two_private_engines", middle, 1.01);
  enter_device(0);
  for (int i = 0; i < 2; i++)
    must_cuda(cuda.stream_destroy(shared[i].stream), "cuStreamDestroy");
  leave_device();
  for (int i = 0; i < 4; i++)
    tandem_load_destroy(loads[i]);
  for (int i = 0; i < 2; i++)
    free_tensors(&shared[i].tensors);
  free(payload.data);
  free_model(&model);
  return document;
}
