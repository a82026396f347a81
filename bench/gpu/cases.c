/* The field cases that name a GPU, on one: each stands for a kind of fault that users reported. The tests
 * over the stand-in driver go further; here the memory, the contexts and the kernels are real. Cases 01, 09,
 * 13, 17, 19, 25, 29; case 21 needs two GPUs and is in check.c.
 */
#include "bench.h"
#include "standin.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES = 100, IO_MAX = 4 };

static const struct standin_nvinfer *library;

static void find_library(void) {
  const char *path = getenv("TANDEM_TENSORRT_LIBRARY");
  void *handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  void *symbol = handle ? dlsym(handle, "standin_nvinfer_control") : NULL;
  must(symbol, "TANDEM_TENSORRT_LIBRARY names no stand-in libnvinfer");
  const struct standin_nvinfer *(*get)(void);
  memcpy(&get, &symbol, sizeof get);
  library = get();
}

/* ---------------------------------------------------------------- loads and tensors of any plan */

static struct bytes wrap(void *plan, size_t size) {
  struct bytes payload;
  must(plan, "no memory for a plan");
  payload.data = make_payload(plan, size, 0, &payload.size);
  free(plan);
  return payload;
}

static struct bytes wrap_mlp(const struct standin_mlp *mlp) {
  size_t size;
  void *plan = standin_mlp_bytes(mlp, &size);
  return wrap(plan, size);
}

/* The status; the message says `words`. */
static enum tandem_status fail_load(const struct bytes *payload, const char *words, ...) {
  struct tandem_error error = {0};
  struct tandem_load *load;
  va_list pairs;
  va_start(pairs, words);
  enum tandem_status status = load_with(payload, &load, &error, pairs);
  va_end(pairs);
  must(status != TANDEM_OK && !load, "a load was made that has to fail with '%s'", words);
  must(strstr(error.message, words), "expected '%s' in: %s", words, error.message);
  return status;
}

static struct tandem_tensor tensor(void *data, int32_t rank, ...) {
  struct tandem_tensor made = {.data = data, .size = sizeof(float), .dtype = TANDEM_FLOAT32, .rank = rank};
  va_list extents;
  va_start(extents, rank);
  for (int32_t i = 0; i < rank; i++) {
    made.shape[i] = va_arg(extents, int);
    made.size *= (size_t)made.shape[i];
  }
  va_end(extents);
  return made;
}

static enum tandem_status try_run(struct tandem_load *load, const struct tandem_tensor *inputs,
                                  size_t input_count, struct tandem_tensor *outputs, size_t output_count,
                                  struct tandem_error *error) {
  const struct tandem_run_desc run = {.struct_size = sizeof run,
                                      .inputs = inputs,
                                      .input_count = input_count,
                                      .outputs = outputs,
                                      .output_count = output_count};
  return tandem_load_run(load, &run, error);
}

static void fill(float *values, size_t count, unsigned seed) {
  for (size_t i = 0; i < count; i++)
    values[i] = (float)((i * 37 + seed * 101 + 11) % 64) / 16.0f - 2.0f;
}

/* Runs an mlp of small weights with host tensors and compares bit by bit. */
static void expect_mlp(struct tandem_load *load, const struct standin_mlp *mlp, int rows, unsigned seed) {
  float x[512], y[512], expected[512];
  int64_t width = mlp->widths[0], depth = mlp->widths[mlp->layer_count];
  struct tandem_error error;
  must(rows * width <= 512 && rows * depth <= 512, "the case is too large");
  fill(x, (size_t)(rows * width), seed);
  struct tandem_tensor input = tensor(x, 2, rows, (int)width), output = tensor(y, 2, rows, (int)depth);
  must(try_run(load, &input, 1, &output, 1, &error) == TANDEM_OK, "%s", error.message);
  must(standin_mlp_expect(mlp, x, rows, expected), "no memory");
  must(memcmp(y, expected, (size_t)(rows * depth) * sizeof *y) == 0, "wrong numbers");
}

/* ---------------------------------------------------------------- cases */

static const int64_t small_widths[] = {8, 16, 4};

static struct standin_mlp small(uint32_t flags, int64_t scratch) {
  return (struct standin_mlp){.name = "case",
                              .seed = 2,
                              .flags = flags,
                              .relu = true,
                              .layer_count = 2,
                              .widths = small_widths,
                              .rows_min = 1,
                              .rows_opt = 4,
                              .rows_max = 8,
                              .scratch_base = scratch};
}

static void case_01_a_second_load_adds_no_second_set_of_weights(cJSON *facts) {
  struct model model;
  struct tensors tensors;
  make_model(&model, 32, 1448, 0, 1, 0); /* 256 MiB */
  must(model_weights(&model) >= 256 * (size_t)MIB, "%zu bytes of weights", model_weights(&model));
  make_tensors(&tensors, &model, -1, 1);
  struct bytes payload = wrap_model(&model, 0);
  tandem_load_destroy(load_payload(&payload, NULL));
  struct tandem_load *loads[3];
  float *outputs[3];
  double growths[3];
  for (int i = 0; i < 3; i++) {
    struct bytes copy = wrap_model(&model, 0);
    int64_t before = used_memory(0);
    loads[i] = load_payload(&copy, NULL);
    run_load(loads[i], &tensors, NULL);
    growths[i] = (double)(used_memory(0) - before);
    outputs[i] = read_output(&tensors);
    free(copy.data);
  }
  add_numbers(facts, "case_01_load_bytes", growths, 3);
  for (int i = 1; i < 3; i++) {
    must(growths[i] < 0.15 * (double)model_weights(&model), "load %d took %.0f bytes", i, growths[i]);
    must(memcmp(outputs[i], outputs[0], tensors.count * sizeof(float)) == 0, "outputs differ");
  }
  must(info_of(loads[0]).users == 3 && stats_now().engines == 1, "not one engine with three users");
  for (int i = 0; i < 3; i++) {
    tandem_load_destroy(loads[i]);
    free(outputs[i]);
  }
  free(payload.data);
  free_tensors(&tensors);
  free_model(&model);
}

enum { X = 8, CACHE = 32, Y = 16 };

static void step_cache(float *cache, const float *x) {
  for (int i = 0; i < CACHE; i++)
    cache[i] = cache[i] / 2 + x[i % X];
}

static enum tandem_status run_cache(struct tandem_load *load, float *x, void *cache, float *y, uint64_t out,
                                    struct tandem_error *error) {
  struct tandem_tensor inputs[] = {tensor(x, 1, X), tensor(cache, 2, 4, 8)};
  struct tandem_tensor outputs[] = {tensor(y, 2, 4, 4), tensor((void *)(uintptr_t)out, 2, 4, 8)};
  return try_run(load, inputs, 2, outputs, 2, error);
}

static void case_09_state_of_one_load_never_reaches_another(cJSON *facts) {
  (void)facts;
  size_t size;
  void *plan = standin_sample_bytes("cache", &size);
  struct bytes payload = wrap(plan, size);
  struct tandem_load *loads[2] = {load_payload(&payload, NULL), load_payload(&payload, NULL)};
  static const int order[] = {0, 0, 0, 1, 0};
  float x[X], y[Y], expected[2][CACHE] = {{0}}, found[CACHE];
  uint64_t caches[2];
  struct tandem_error error;
  for (int i = 0; i < 2; i++) {
    caches[i] = allocate_device(0, sizeof expected[i]);
    enter_device(0);
    must_cuda(cuda.copy_to(caches[i], expected[i], sizeof expected[i]), "cuMemcpyHtoD");
    leave_device();
  }
  for (unsigned k = 0; k < sizeof order / sizeof order[0]; k++) {
    int i = order[k];
    fill(x, X, k);
    step_cache(expected[i], x);
    /* The aliased output is the cache itself. */
    must(run_cache(loads[i], x, (void *)(uintptr_t)caches[i], y, caches[i], &error) == TANDEM_OK, "%s",
         error.message);
  }
  float host[CACHE] = {0};
  must(run_cache(loads[1], x, host, y, caches[1], &error) == TANDEM_INVALID_ARGUMENT,
       "a cache in host memory was taken");
  must(strstr(error.message, "cache"), "the cache is not named: %s", error.message);
  fill(x, X, 9);
  step_cache(expected[0], x);
  must(run_cache(loads[0], x, (void *)(uintptr_t)caches[0], y, caches[0], &error) == TANDEM_OK, "%s",
       error.message);
  for (int i = 0; i < 2; i++) {
    enter_device(0);
    must_cuda(cuda.copy_from(found, caches[i], sizeof found), "cuMemcpyDtoH");
    leave_device();
    must(memcmp(found, expected[i], sizeof found) == 0, "the cache of load %d is not its own", i);
    tandem_load_destroy(loads[i]);
    free_device(0, caches[i]);
  }
  free(payload.data);
}

static void case_13_the_budget_is_part_of_the_identity(cJSON *facts) {
  struct standin_mlp mlp = small(STANDIN_PLAN_STREAMABLE, 0);
  struct bytes payload = wrap_mlp(&mlp);
  const int64_t streamable = (8 * 16 + 16 + 16 * 4 + 4) * (int64_t)sizeof(float);
  char half[32], quarter[32], whole[32], ten[32];
  snprintf(half, sizeof half, "%lld", (long long)streamable / 2);
  snprintf(quarter, sizeof quarter, "%lld", (long long)streamable / 4);
  snprintf(whole, sizeof whole, "%lld", (long long)streamable);
  snprintf(ten, sizeof ten, "%lld", (long long)streamable * 10);
  const char *budgets[] = {half, half, quarter, NULL, ten, whole};
  enum { LOADS = sizeof budgets / sizeof budgets[0] };
  struct tandem_load *loads[LOADS];
  double effective[LOADS];
  for (int i = 0; i < LOADS; i++) {
    loads[i] = budgets[i] ? load_payload(&payload, "weight_streaming_budget", budgets[i], NULL)
                          : load_payload(&payload, NULL);
    effective[i] = (double)info_of(loads[i]).budget;
  }
  add_numbers(facts, "case_13_effective_budgets", effective, LOADS);
  must(info_of(loads[0]).engine_id == info_of(loads[1]).engine_id, "equal budgets do not share");
  must(info_of(loads[0]).engine_id != info_of(loads[2]).engine_id, "other budgets share");
  must(info_of(loads[4]).engine_id == info_of(loads[5]).engine_id,
       "ten times the size does not share with once");
  must(info_of(loads[5]).budget == streamable, "a budget was not clamped");
  for (int i = 0; i < LOADS; i++)
    expect_mlp(loads[i], &mlp, 3, (unsigned)i);
  for (int i = 0; i < LOADS; i++)
    tandem_load_destroy(loads[i]);
  free(payload.data);
}

static void case_17_a_plan_for_another_gpu_is_refused_with_both_named(cJSON *facts) {
  struct standin_mlp mlp = small(0, 0);
  size_t size;
  unsigned char *plan = standin_mlp_bytes(&mlp, &size);
  must(plan, "no memory");
  struct standin_plan_header header;
  memcpy(&header, plan, sizeof header);
  header.compute = 75;
  memcpy(plan, &header, sizeof header);
  struct bytes payload = wrap(plan, size);
  fail_load(&payload, "7.5", NULL);
  int64_t before = used_memory(0);
  char real[16];
  int major = 0, minor = 0;
  must_cuda(cuda.device_attribute(&major, 75, 0), "cuDeviceGetAttribute");
  must_cuda(cuda.device_attribute(&minor, 76, 0), "cuDeviceGetAttribute");
  snprintf(real, sizeof real, "%d.%d", major, minor);
  fail_load(&payload, real, NULL);
  must(used_memory(0) == before, "device memory was kept");
  char text[1024];
  tandem_last_reason(text, sizeof text);
  cJSON_AddStringToObject(facts, "case_17_message", text);
  free(payload.data);
}

/* Every load fails at `step`; a healthy load of the same bytes is unharmed. */
static void fail_hundred(const struct bytes *payload, enum standin_step step, const char *private) {
  for (int i = 0; i < FAILURES; i++) {
    library->fail_at(step, 1, STANDIN_FAIL_PLAIN);
    fail_load(payload, "", "use_shared_engines", private, NULL);
    library->fail_at(step, 0, STANDIN_FAIL_PLAIN);
  }
}

static void case_19_a_hundred_failed_loads_leave_nothing(cJSON *facts) {
  static const enum standin_step steps[] = {STANDIN_RUNTIME, STANDIN_DESERIALIZE, STANDIN_BUDGET,
                                            STANDIN_CONTEXT};
  struct standin_mlp mlp = small(STANDIN_PLAN_STREAMABLE, 0);
  struct bytes payload = wrap_mlp(&mlp), wrong = {0};
  static const char metadata[] =
      "{\"io_bindings\":[{\"name\":\"x\",\"is_input\":true},{\"name\":\"z\",\"is_input\":"
      "false}]}";
  size_t size;
  void *plan = standin_mlp_bytes(&mlp, &size);
  must(plan, "no memory");
  wrong.data = standin_payload_bytes(
      &(struct standin_payload){.plan = plan, .plan_size = size, .metadata = metadata}, &wrong.size);
  must(wrong.data, "no memory");
  free(plan);
  double grown[2];
  for (int healthy = 0; healthy < 2; healthy++) {
    struct tandem_load *load = healthy ? load_payload(&payload, NULL) : NULL;
    if (load)
      expect_mlp(load, &mlp, 2, 1);
    fail_load(&wrong, "z", NULL);
    int64_t before = used_memory(0);
    for (unsigned k = 0; k < sizeof steps / sizeof steps[0]; k++)
      fail_hundred(&payload, steps[k], healthy && steps[k] != STANDIN_CONTEXT ? "false" : "true");
    for (int i = 0; i < FAILURES; i++)
      fail_load(&wrong, "z", NULL);
    grown[healthy] = (double)(used_memory(0) - before);
    must(stats_now().engines == (uint64_t)healthy && stats_now().loads == (uint64_t)healthy,
         "loads are left");
    if (load) {
      must(info_of(load).users == 1, "the share count is wrong");
      expect_mlp(load, &mlp, 2, 1);
    }
    tandem_load_destroy(load);
  }
  add_numbers(facts, "case_19_device_bytes_left_alone_and_beside_a_load", grown, 2);
  must(grown[0] == 0 && grown[1] == 0, "device memory grew");
  struct tandem_load *good = load_payload(&payload, NULL);
  expect_mlp(good, &mlp, 2, 3);
  tandem_load_destroy(good);
  free(payload.data);
  free(wrong.data);
}

static void case_25_outside_the_profile_and_inside_again(cJSON *facts) {
  struct standin_mlp mlp = small(0, 1 << 16);
  struct bytes payload = wrap_mlp(&mlp);
  struct tandem_load *loads[2] = {load_payload(&payload, NULL), load_payload(&payload, NULL)};
  float x[72], y[36];
  struct tandem_error error;
  (void)facts;
  fill(x, 72, 1);
  memset(y, 0x55, sizeof y);
  for (int round = 0; round < 3; round++) {
    struct tandem_tensor nine = tensor(x, 2, 9, 8), flat = tensor(x, 1, 8), out = tensor(y, 2, 9, 4);
    must(try_run(loads[0], &nine, 1, &out, 1, &error) == TANDEM_INVALID_ARGUMENT, "nine rows were taken");
    must(strstr(error.message, "(x)") && strstr(error.message, "9") && strstr(error.message, "8"), "%s",
         error.message);
    expect_mlp(loads[1], &mlp, 5, (unsigned)round);
    must(try_run(loads[0], &flat, 1, &out, 1, &error) == TANDEM_INVALID_ARGUMENT, "a wrong rank was taken");
    must(strstr(error.message, "rank"), "%s", error.message);
    must(((unsigned char *)y)[0] == 0x55 && ((unsigned char *)y)[143] == 0x55,
         "a refused run wrote its output");
    expect_mlp(loads[0], &mlp, 8, (unsigned)round);
  }
  tandem_load_destroy(loads[0]);
  tandem_load_destroy(loads[1]);
  free(payload.data);
}

static void case_29_memory_runs_out(cJSON *facts) {
  struct standin_mlp mlp = small(0, 256 * (int64_t)MIB);
  struct bytes payload = wrap_mlp(&mlp);
  struct tandem_load *first = load_payload(&payload, "share_scratch", "false", NULL), *second = NULL;
  struct tandem_error error = {0};
  size_t free_bytes, total_bytes;
  expect_mlp(first, &mlp, 2, 1);
  enter_device(0);
  must_cuda(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  leave_device();
  uint64_t filler = allocate_device(0, free_bytes - 64 * (size_t)MIB);
  const struct tandem_option own = {"share_scratch", "false"};
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "TensorRTBackend",
                                        .payload = payload.data,
                                        .payload_size = payload.size,
                                        .options = &own,
                                        .option_count = 1};
  enum tandem_status status = tandem_load_create(&desc, &second, &error);
  if (status == TANDEM_OK) { /* scratch of its own may come with its first run */
    float x[16], y[8];
    fill(x, 16, 1);
    struct tandem_tensor input = tensor(x, 2, 2, 8), output = tensor(y, 2, 2, 4);
    status = try_run(second, &input, 1, &output, 1, &error);
  }
  must(status == TANDEM_OUT_OF_MEMORY, "expected OUT_OF_MEMORY, found %s: %s", tandem_status_name(status),
       error.message);
  cJSON_AddStringToObject(facts, "case_29_message", error.message);
  expect_mlp(first, &mlp, 2, 2);
  must(stats_now().engines == 1, "the engine count is %llu", (unsigned long long)stats_now().engines);
  free_device(0, filler);
  if (second)
    expect_mlp(second, &mlp, 2, 3);
  struct tandem_load *third = load_payload(&payload, "share_scratch", "false", NULL);
  expect_mlp(third, &mlp, 2, 4);
  must(info_of(third).engine_id == info_of(first).engine_id, "the later load does not share");
  tandem_load_destroy(second);
  tandem_load_destroy(third);
  tandem_load_destroy(first);
  free(payload.data);
}

cJSON *measure_cases(int count, char **arguments) {
  static const struct {
    const char *name;
    void (*run)(cJSON *facts);
  } cases[] = {
      {"01", case_01_a_second_load_adds_no_second_set_of_weights},
      {"09", case_09_state_of_one_load_never_reaches_another},
      {"13", case_13_the_budget_is_part_of_the_identity},
      {"17", case_17_a_plan_for_another_gpu_is_refused_with_both_named},
      {"19", case_19_a_hundred_failed_loads_leave_nothing},
      {"25", case_25_outside_the_profile_and_inside_again},
      {"29", case_29_memory_runs_out},
  };
  (void)count;
  (void)arguments;
  find_library();
  /* What a first load of a process costs, and its first failure, is no load's. */
  struct standin_mlp mlp = small(STANDIN_PLAN_STREAMABLE, 4096);
  struct bytes payload = wrap_mlp(&mlp);
  struct tandem_load *warm = load_payload(&payload, NULL);
  expect_mlp(warm, &mlp, 2, 1);
  tandem_load_destroy(warm);
  free(payload.data);
  cJSON *document = cJSON_CreateObject(), *passed = cJSON_AddArrayToObject(document, "passed");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    about(cases[i].name);
    cases[i].run(document);
    must(stats_now().engines == 0 && stats_now().loads == 0, "something is left");
    cJSON_AddItemToArray(passed, cJSON_CreateString(cases[i].name));
  }
  return document;
}
