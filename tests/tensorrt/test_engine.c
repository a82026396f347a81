/* Engines of the TensorRT vendor over the stand-in libraries: what makes two loads share, why a plan is
 * refused, and that a failure at any step leaves nothing. usage: test_engine 10.0|10.16|11.4|rtx (one library
 * a process). TANDEM_CUDA_LIBRARY and TANDEM_TENSORRT_LIBRARY are set by CTest. */
#include "base.h"
#include "plan.h"
#include "standin.h"
#include "tensorrt.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *product; /* as in the arguments */
static const struct standin_cuda *cuda;
static const struct standin_nvinfer *nvinfer;

static char told[32768]; /* lines since the last load, one after the other */

static void keep_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level;
  size_t used = strlen(told);
  snprintf(told + used, sizeof told - used, "%s\n", line);
}

static bool is(const char *name) {
  return strcmp(product, name) == 0;
}

/* ---------------------------------------------------------------- plans and loads */

static const int64_t widths[] = {16, 64, 64, 8};

static struct standin_mlp mlp(uint32_t flags, uint32_t seed) {
  return (struct standin_mlp){.name = "mlp",
                              .seed = seed,
                              .flags = flags,
                              .relu = true,
                              .layer_count = 3,
                              .widths = widths,
                              .rows_min = 1,
                              .rows_opt = 2,
                              .rows_max = 4};
}

struct plan {
  struct standin_plan_header *bytes; /* owned; the header may be edited */
  size_t size;
};

static struct plan make_plan(uint32_t flags, uint32_t seed) {
  struct standin_mlp model = mlp(flags, seed);
  struct plan plan;
  plan.bytes = standin_mlp_bytes(&model, &plan.size);
  assert_non_null(plan.bytes);
  return plan;
}

static int64_t weights_of(struct plan plan) {
  return (int64_t)plan.bytes->weights_size;
}

/* A load, or NULL with `error` filled. */
static struct tandem_load *load_payload(const struct standin_payload *wanted, const char *key,
                                        const char *value, const struct tandem_named_data *named,
                                        enum tandem_status *status, struct tandem_error *error) {
  size_t size = 0;
  void *payload = standin_payload_bytes(wanted, &size);
  struct tandem_option option = {key, value};
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "TensorRTBackend",
                                  .payload = payload,
                                  .payload_size = size,
                                  .options = &option,
                                  .option_count = key != NULL,
                                  .named_data = named};
  struct tandem_load *load = NULL;
  assert_non_null(payload);
  told[0] = '\0';
  *status = tandem_load_create(&desc, &load, error);
  free(payload);
  return load;
}

static struct tandem_load *load(struct plan plan, const char *key, const char *value) {
  struct standin_payload wanted = {.plan = plan.bytes, .plan_size = plan.size};
  struct tandem_error error = {0};
  enum tandem_status status;
  struct tandem_load *made = load_payload(&wanted, key, value, NULL, &status, &error);
  if (made == NULL)
    fail_msg("%s: %s", tandem_status_name(status), error.message);
  return made;
}

static const char *refuse(struct plan plan, const char *key, const char *value, enum tandem_status expected) {
  static struct tandem_error error;
  struct standin_payload wanted = {.plan = plan.bytes, .plan_size = plan.size};
  enum tandem_status status;
  struct tandem_load *made = load_payload(&wanted, key, value, NULL, &status, &error);
  assert_null(made);
  if (status != expected || strchr(error.message, '\n') != NULL)
    fail_msg("%s, expected %s: \"%s\"", tandem_status_name(status), tandem_status_name(expected),
             error.message);
  return error.message;
}

static struct tandem_load_info info_of(const struct tandem_load *made) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(made, &info, NULL), TANDEM_OK);
  return info;
}

static uint64_t engine_count(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(tandem_stats_get(&stats, NULL), TANDEM_OK);
  return stats.engines;
}

static void assert_says(const char *message, const char *words) {
  if (strstr(message, words) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", message, words);
}

static void assert_nothing_left(void) {
  struct standin_counts counts;
  struct standin_cuda_live live;
  nvinfer->counts(&counts);
  cuda->live(&live);
  assert_int_equal(engine_count(), 0);
  assert_int_equal(counts.runtimes, 0);
  assert_int_equal(counts.engines, 0);
  assert_int_equal(counts.contexts, 0);
  assert_int_equal(counts.traps, 0);
  assert_int_equal(counts.misuses, 0);
  assert_int_equal(live.device_blocks, 0);
  assert_int_equal(live.streams, 0);
  assert_int_equal(live.events, 0);
  assert_int_equal(live.primary_retains, 0);
  assert_int_equal(cuda->violations(), 0);
}

static int begin(void **state) {
  (void)state;
  nvinfer->reset();
  cuda->reset();
  return 0;
}

static int end(void **state) {
  (void)state;
  assert_nothing_left();
  return 0;
}

/* ---------------------------------------------------------------- budgets */

static const char *number(int64_t value) {
  static char texts[8][24];
  static unsigned next;
  char *text = texts[next++ % 8];
  snprintf(text, sizeof texts[0], "%lld", (long long)value);
  return text;
}

static void the_effective_budget_is_part_of_the_identity(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_STREAMABLE, 1);
  int64_t size = weights_of(plan);
  static const char key[] = "weight_streaming_budget";
  struct tandem_load *loads[8] = {
      load(plan, key, number(size / 2)),
      load(plan, key, number(size / 2)),
      load(plan, key, number(size / 4)),
      load(plan, key, number(size * 10)),
      load(plan, key, number(size)),
      load(plan, key, "0"),
      load(plan, NULL, NULL),
      load(plan, NULL, NULL),
  };
  struct tandem_load_info infos[8];
  for (int i = 0; i < 8; i++)
    infos[i] = info_of(loads[i]);
  assert_int_equal(infos[0].engine_id, infos[1].engine_id);
  assert_int_not_equal(infos[0].engine_id, infos[2].engine_id);
  assert_int_equal(infos[3].engine_id, infos[4].engine_id);
  assert_int_equal(infos[3].budget, size);
  assert_int_equal(infos[0].budget, size / 2);
  assert_int_equal(infos[2].budget, size / 4);
  assert_int_equal(infos[5].budget, 0);
  assert_int_equal(infos[6].engine_id, infos[7].engine_id);
  if (!infos[3].engine_bytes_estimated) {
    /* What one engine costs is all its weights; what of it lies on the device depends on the budget. */
    assert_int_equal(infos[5].engine_bytes, infos[3].engine_bytes);
    assert_int_equal(infos[3].device_bytes - infos[0].device_bytes, size - size / 2);
    assert_int_equal(infos[3].device_bytes - infos[5].device_bytes, size);
  }
  for (int i = 0; i < 8; i++)
    tandem_load_destroy(loads[i]);
  free(plan.bytes);
}

static void every_budget_shares_where_nothing_streams(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 2);
  struct tandem_load *automatic = load(plan, NULL, NULL);
  struct tandem_load *some = load(plan, "weight_streaming_budget", "1000");
  assert_int_equal(engine_count(), 1);
  assert_says(told, "weight_streaming_budget=1000 is ignored");
  assert_int_equal(info_of(some).budget, info_of(automatic).budget);
  tandem_load_destroy(automatic);
  tandem_load_destroy(some);
  struct tandem_load *first = load(plan, "weight_streaming_budget", "7");
  tandem_load_destroy(first);
  free(plan.bytes);
}

static void an_automatic_budget_that_fails_is_zero(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_STREAMABLE, 3);
  nvinfer->fail_at(STANDIN_AUTOMATIC_BUDGET, 1, STANDIN_FAIL_PLAIN);
  struct tandem_load *made = load(plan, NULL, NULL);
  assert_int_equal(info_of(made).budget, 0);
  tandem_load_destroy(made);
  free(plan.bytes);
}

static void tensorrt_10_0_keeps_all_weights_resident(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_STREAMABLE, 4);
  struct tandem_load *made = load(plan, NULL, NULL);
  assert_int_equal(info_of(made).budget, weights_of(plan));
  tandem_load_destroy(made);
  assert_says(refuse(plan, "weight_streaming_budget", "100", TANDEM_UNSUPPORTED), "needs TensorRT 10.1");
  free(plan.bytes);
}

/* ---------------------------------------------------------------- plans that are refused */

static void a_plan_without_its_weights_is_refused_by_every_load(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_STRIPPED | STANDIN_PLAN_REFITTABLE, 5);
  for (int i = 0; i < 2; i++) {
    const char *message = refuse(plan, "use_shared_engines", i == 0 ? "true" : "false", TANDEM_BAD_PROGRAM);
    assert_says(message, "of its weights");
    assert_says(message, "STRIP_PLAN");
  }
  free(plan.bytes);
  plan = make_plan(STANDIN_PLAN_REFITTABLE, 5); /* refitted and whole */
  struct tandem_load *made = load(plan, NULL, NULL);
  assert_null(strstr(told, "refittable"));
  tandem_load_destroy(made);
  free(plan.bytes);
}

static void tensorrt_10_0_warns_that_weights_could_not_be_checked(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_REFITTABLE, 6);
  struct tandem_load *made = load(plan, NULL, NULL);
  assert_says(told, "the plan is refittable and TensorRT 10.0.0 cannot tell");
  tandem_load_destroy(made);
  free(plan.bytes);
}

/* Case 17: built for X, device i is Y, whether a compatible build would help. */
static void a_plan_for_another_gpu_is_refused_with_both_sides_named(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 7);
  for (int compatible = 0; compatible < 2; compatible++) {
    struct standin_payload wanted = {
        .plan = plan.bytes,
        .plan_size = plan.size,
        .metadata = compatible ? "{\"hardware_compatible\":true}"
                               : "{\"hardware_compatible\":false,\"target_platform\":\"linux_x86_64\"}"};
    struct tandem_error error = {0};
    enum tandem_status status;
    plan.bytes->compute = 86;
    assert_null(load_payload(&wanted, NULL, NULL, NULL, &status, &error));
    assert_int_equal(status, TANDEM_UNSUPPORTED);
    assert_says(error.message, "8.6");          /* what it was built for, in the library's words */
    assert_says(error.message, "device 0 is "); /* and what is here */
    assert_says(error.message, "compute capability 9.0");
    assert_says(error.message, "CUDA driver 13.0");
    assert_says(error.message, compatible ? "hardware_compatible=true" : "hardware_compatible=false");
    if (!compatible)
      assert_says(error.message, "linux_x86_64");
    assert_says(error.message, is("rtx") ? "compute capability 9.0 among its targets would help"
                               : compatible
                                   ? "hardware-compatible already"
                                   : "a hardware-compatible plan (Ampere and newer) built by the same "
                                     "TensorRT would help");
  }
  free(plan.bytes);
}

static void a_plan_of_another_version_is_refused_with_both_named(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 8);
  plan.bytes->library = 90100;
  const char *message = refuse(plan, NULL, NULL, TANDEM_UNSUPPORTED);
  assert_says(message, "90100");
  assert_says(message, td_trt.name);
  assert_says(message, "use the version that built it");
  free(plan.bytes);
}

static void a_plan_of_another_product_is_refused(void **state) {
  (void)state;
  unsigned char real[256] = {'v', 't', 'r', 't', 0, 0, 0, 0, 2};
  real[24] = 1;
  real[25] = 7;
  real[26] = 1;
  struct standin_payload wanted = {.plan = real, .plan_size = sizeof real, .metadata = "{}"};
  struct tandem_error error = {0};
  enum tandem_status status;
  assert_null(load_payload(&wanted, NULL, NULL, NULL, &status, &error));
  assert_says(error.message, "agic");
  assert_says(error.message, "built by TensorRT-RTX 1.7.1");
  if (!is("rtx"))
    assert_says(error.message, "use the TensorRT that built it");
  assert_int_equal(status, is("rtx") ? TANDEM_BAD_PROGRAM : TANDEM_UNSUPPORTED);
}

static void a_cut_plan_is_a_bad_program_of_a_plans_size(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 9);
  char words[64];
  plan.size -= 64;
  snprintf(words, sizeof words, "the plan of %zu bytes", plan.size);
  struct standin_payload wanted = {.plan = plan.bytes, .plan_size = plan.size, .metadata = "{}"};
  struct tandem_error error = {0};
  enum tandem_status status;
  assert_null(load_payload(&wanted, NULL, NULL, NULL, &status, &error));
  assert_int_equal(status, TANDEM_BAD_PROGRAM);
  assert_says(error.message, words);
  free(plan.bytes);
}

/* ---------------------------------------------------------------- options of the vendor */

static void host_code_runs_only_where_it_is_allowed(void **state) {
  (void)state;
  struct plan plan = make_plan(STANDIN_PLAN_HOST_CODE, 10);
  assert_says(refuse(plan, NULL, NULL, TANDEM_BAD_PROGRAM), "set host_code_allowed=true if you trust it");
  struct tandem_load *made = load(plan, "host_code_allowed", "true");
  assert_says(info_of(made).options, "host_code_allowed=true");
  tandem_load_destroy(made);
  free(plan.bytes);
  plan = make_plan(0, 10);
  struct tandem_load *plain = load(plan, NULL, NULL), *allowed = load(plan, "host_code_allowed", "true");
  assert_int_equal(engine_count(), 2);
  tandem_load_destroy(plain);
  tandem_load_destroy(allowed);
  free(plan.bytes);
}

static void a_dla_core_is_checked_and_part_of_the_identity(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 11);
  const char *message = refuse(plan, "dla_core", "2", TANDEM_BAD_OPTION);
  assert_says(message, "dla_core=2");
  assert_says(message, "2 DLA cores on cuda:0");
  struct tandem_load *first = load(plan, "dla_core", "0"), *second = load(plan, "dla_core", "1"),
                     *gpu = load(plan, NULL, NULL), *again = load(plan, "dla_core", "1");
  assert_int_equal(engine_count(), 3);
  assert_int_equal(info_of(second).engine_id, info_of(again).engine_id);
  assert_says(info_of(second).options, "dla_core=1");
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  tandem_load_destroy(gpu);
  tandem_load_destroy(again);
  free(plan.bytes);
}

static void a_device_that_is_not_there_is_named_with_those_that_are(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 12);
  struct standin_payload wanted = {.plan = plan.bytes, .plan_size = plan.size, .device_id = 5};
  struct tandem_error error = {0};
  enum tandem_status status;
  assert_null(load_payload(&wanted, NULL, NULL, NULL, &status, &error));
  assert_int_equal(status, TANDEM_UNSUPPORTED);
  assert_says(error.message, "CUDA device 5");
  assert_says(error.message, "devices 0 to 1");
  free(plan.bytes);
}

/* ---------------------------------------------------------------- named data */

static struct plan named_plan;
static int named_got, named_back;

static enum tandem_status get_plan(void *user, const char *key, const void **data, size_t *size,
                                   void **token) {
  (void)user;
  assert_string_equal(key, "engine");
  *data = named_plan.bytes;
  *size = named_plan.size;
  *token = &named_got;
  named_got++;
  return TANDEM_OK;
}

static void release_plan(void *user, void *token) {
  (void)user;
  assert_ptr_equal(token, &named_got);
  named_back++;
}

static void an_engine_in_named_data_shares_with_the_same_bytes_embedded(void **state) {
  (void)state;
  const struct tandem_named_data named = {get_plan, release_plan, NULL};
  named_plan = make_plan(0, 13);
  struct standin_payload wanted = {
      .plan = named_plan.bytes, .plan_size = named_plan.size, .engine_key = "engine"};
  struct tandem_error error = {0};
  enum tandem_status status;
  struct tandem_load *embedded = load(named_plan, NULL, NULL);
  struct tandem_load *external = load_payload(&wanted, NULL, NULL, &named, &status, &error);
  if (external == NULL)
    fail_msg("%s", error.message);
  assert_int_equal(engine_count(), 1);
  assert_int_equal(named_got, 1);
  assert_int_equal(named_back, 1); /* before the load was handed out */
  tandem_load_destroy(embedded);
  tandem_load_destroy(external);
  free(named_plan.bytes);
}

/* ---------------------------------------------------------------- failures */

static void a_failure_at_any_step_leaves_nothing(void **state) {
  (void)state;
  static const enum standin_step steps[] = {STANDIN_RUNTIME, STANDIN_DESERIALIZE, STANDIN_BUDGET,
                                            STANDIN_CONTEXT};
  struct plan plan = make_plan(STANDIN_PLAN_STREAMABLE, 14);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    if (steps[i] == STANDIN_BUDGET && is("10.0"))
      continue; /* has none */
    for (int round = 0; round < 100; round++) {
      struct standin_payload wanted = {.plan = plan.bytes, .plan_size = plan.size};
      struct tandem_error error = {0};
      enum tandem_status status;
      nvinfer->fail_at(steps[i], 1, (enum standin_failure)(round % 3));
      struct tandem_load *made = load_payload(&wanted, NULL, NULL, NULL, &status, &error);
      assert_null(made);
      assert_int_equal(status == TANDEM_OUT_OF_MEMORY, round % 3 == STANDIN_FAIL_OUT_OF_MEMORY);
      assert_true(strlen(error.message) > 20);
      assert_nothing_left();
    }
  }
  struct tandem_load *made = load(plan, NULL, NULL);
  tandem_load_destroy(made);
  free(plan.bytes);
}

static void out_of_memory_tells_free_and_total_memory(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 15);
  nvinfer->fail_at(STANDIN_DESERIALIZE, 1, STANDIN_FAIL_OUT_OF_MEMORY);
  const char *message = refuse(plan, NULL, NULL, TANDEM_OUT_OF_MEMORY);
  assert_says(message, "free");
  free(plan.bytes);
}

static void lines_of_the_librarys_own_threads_reach_the_log(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 16);
  nvinfer->say(STANDIN_DESERIALIZE, TD_TRT_WARNING, "from a thread of the library", true);
  struct tandem_load *made = load(plan, NULL, NULL);
  assert_says(told, "from a thread of the library");
  nvinfer->say(STANDIN_DESERIALIZE, 0, NULL, false);
  tandem_load_destroy(made);
  free(plan.bytes);
}

static void an_error_line_of_a_load_that_worked_fails_nothing(void **state) {
  (void)state;
  struct plan plan = make_plan(0, 17);
  nvinfer->say(STANDIN_DESERIALIZE, TD_TRT_ERROR,
               "Requested amount of GPU memory (8 bytes) could not be allocated", false);
  struct tandem_load *made = load(plan, NULL, NULL);
  nvinfer->say(STANDIN_DESERIALIZE, 0, NULL, false);
  tandem_load_destroy(made);
  free(plan.bytes);
}

/* ---------------------------------------------------------------- main */

static void *open_control(const char *variable, const char *symbol) {
  const char *path = getenv(variable);
  void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL)
    fprintf(stderr, "%s: %s\n", variable, path != NULL ? dlerror() : "not set");
  void *symbol_address = library != NULL ? dlsym(library, symbol) : NULL;
  return symbol_address;
}

int main(int count, char **arguments) {
#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)
  const struct CMUnitTest tests[] = {
      CASE(every_budget_shares_where_nothing_streams),
      CASE(a_plan_for_another_gpu_is_refused_with_both_sides_named),
      CASE(a_plan_of_another_version_is_refused_with_both_named),
      CASE(a_plan_of_another_product_is_refused),
      CASE(a_cut_plan_is_a_bad_program_of_a_plans_size),
      CASE(host_code_runs_only_where_it_is_allowed),
      CASE(a_dla_core_is_checked_and_part_of_the_identity),
      CASE(a_device_that_is_not_there_is_named_with_those_that_are),
      CASE(an_engine_in_named_data_shares_with_the_same_bytes_embedded),
      CASE(a_failure_at_any_step_leaves_nothing),
      CASE(out_of_memory_tells_free_and_total_memory),
      CASE(lines_of_the_librarys_own_threads_reach_the_log),
      CASE(an_error_line_of_a_load_that_worked_fails_nothing),
  };
  const struct CMUnitTest newer[] = {
      CASE(the_effective_budget_is_part_of_the_identity),
      CASE(an_automatic_budget_that_fails_is_zero),
      CASE(a_plan_without_its_weights_is_refused_by_every_load),
  };
  const struct CMUnitTest oldest[] = {
      CASE(tensorrt_10_0_keeps_all_weights_resident),
      CASE(tensorrt_10_0_warns_that_weights_could_not_be_checked),
  };
  product = count == 2 ? arguments[1] : "";
  setenv("STANDIN_DLA_CORES", "2", 1);
  setenv("STANDIN_CUDA_DRIVER", "13000", 1);
  if (is("10.0"))
    setenv("STANDIN_NVINFER_VERSION", "100000", 1);
  const struct standin_cuda *(*get_cuda)(void);
  const struct standin_nvinfer *(*get_nvinfer)(void);
  void *address = open_control("TANDEM_CUDA_LIBRARY", "standin_cuda_control");
  memcpy(&get_cuda, &address, sizeof address);
  address = open_control("TANDEM_TENSORRT_LIBRARY", "standin_nvinfer_control");
  memcpy(&get_nvinfer, &address, sizeof address);
  if (get_cuda == NULL || get_nvinfer == NULL)
    return 1;
  cuda = get_cuda();
  nvinfer = get_nvinfer();
  tandem_set_log_sink(keep_line, NULL);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (is("10.0"))
    failed += cmocka_run_group_tests(oldest, NULL, NULL);
  else
    failed += cmocka_run_group_tests(newer, NULL, NULL);
  return failed;
}
