/* The tables of abi.h against the list of slots: headers of 10.0.0, 10.1.0, 10.16.1 and 11.1, and what was
 * seen of 11.4.0 and RTX 1.7.1. A row of ours without a line of the list to hold it against fails. */
#include "base.h"
#include "tensorrt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINES_MAX = 4096, LINE_SIZE = 512 };

static struct line {
  char text[LINE_SIZE];
  const char *version, *class, *method, *signature;
  int slot;
} lines[LINES_MAX];
static size_t line_count;

static int read_list(void **state) {
  (void)state;
  FILE *file = fopen(TD_SLOTS, "r");
  assert_non_null(file);
  while (line_count < LINES_MAX && fgets(lines[line_count].text, LINE_SIZE, file)) {
    struct line *line = &lines[line_count];
    char *rest = line->text, *slot;
    line->text[strcspn(line->text, "\n")] = '\0';
    line->version = strsep(&rest, "\t");
    line->class = strsep(&rest, "\t");
    slot = strsep(&rest, "\t");
    line->method = strsep(&rest, "\t");
    line->signature = rest;
    if (rest == NULL || strcmp(line->version, "version") == 0)
      continue;
    line->slot = atoi(slot);
    line_count++;
  }
  fclose(file);
  assert_true(line_count > 2000 && line_count < LINES_MAX);
  return 0;
}

/* One row of the table. */
struct row {
  const char *member, *class, *method;
  int slot10, since10, slot11, rtx;
  const char *result, *parameters;
  int found10_0, found10_16, found11, found_rtx; /* in td_trt_slots, as the vendor chooses */
};

static struct td_trt_library ten, ten_newest, eleven, rtx17;

static struct row rows[] = {
#define ROW(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)              \
  {#member, #class, #method, slot10, since10, slot11, rtx, #result, #parameters, 0, 0, 0, 0},
    TD_TRT_METHODS(ROW, ROW)
#undef ROW
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static int choose(void **state) {
  struct tandem_error error = {0};
  size_t i = 0;
  assert_int_equal(td_trt_choose(&td_host, 100000, false, &ten, &error), TANDEM_OK);
  assert_int_equal(td_trt_choose(&td_host, 101601, false, &ten_newest, &error), TANDEM_OK);
  assert_int_equal(td_trt_choose(&td_host, 110400, false, &eleven, &error), TANDEM_OK);
  assert_int_equal(td_trt_choose(&td_host, 10701, false, &rtx17, &error), TANDEM_OK);
#define FILL(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)             \
  rows[i].found10_0 = ten.slots.member;                                                                      \
  rows[i].found10_16 = ten_newest.slots.member;                                                              \
  rows[i].found11 = eleven.slots.member;                                                                     \
  rows[i++].found_rtx = rtx17.slots.member;
  TD_TRT_METHODS(FILL, FILL)
#undef FILL
  return read_list(state);
}

/* What the Python interface calls a method in the lines that were seen. */
static const struct {
  const char *method, *seen;
} spellings[] = {
    {"deserializeCudaEngine", "deserialize_cuda_engine"},
    {"setDLACore", "DLA_core (set)"},
    {"getNbDLACores", "num_DLA_cores (get)"},
    {"getLogger", "logger (get)"},
    {"setEngineHostCodeAllowed", "engine_host_code_allowed (set)"},
    {"getEngineHostCodeAllowed", "engine_host_code_allowed (get)"},
    {"getEngineValidity", "get_engine_validity"},
    {"createExecutionContext", "create_execution_context"},
    {"isRefittable", "refittable (get)"},
    {"getName", "name (get)"},
    {"getNbOptimizationProfiles", "num_optimization_profiles (get)"},
    {"getTensorShape", "get_tensor_shape"},
    {"getTensorDataType", "get_tensor_dtype"},
    {"getTensorLocation", "get_tensor_location"},
    {"isShapeInferenceIO", "is_shape_inference_io"},
    {"getTensorIOMode", "get_tensor_mode"},
    {"getTensorFormat", "get_tensor_format"},
    {"getProfileShape", "get_tensor_profile_shape"},
    {"getNbIOTensors", "num_io_tensors (get)"},
    {"getIOTensorName", "get_tensor_name"},
    {"getHardwareCompatibilityLevel", "hardware_compatibility_level (get)"},
    {"getNbAuxStreams", "num_aux_streams (get)"},
    {"getStreamableWeightsSize", "streamable_weights_size (get)"},
    {"setWeightStreamingBudgetV2", "weight_streaming_budget_v2 (set)"},
    {"getWeightStreamingBudgetV2", "weight_streaming_budget_v2 (get)"},
    {"getWeightStreamingAutomaticBudget", "get_weight_streaming_automatic_budget"},
    {"getWeightStreamingScratchMemorySize", "weight_streaming_scratch_memory_size (get)"},
    {"getDeviceMemorySizeV2", "device_memory_size_v2 (get)"},
    {"getDeviceMemorySizeForProfileV2", "get_device_memory_size_for_profile_v2"},
    {"getEngineStat", "get_engine_stat"},
    {"getAliasedInputTensor", "get_aliased_input_tensor"},
    {"setName", "name (set)"},
    {"setDeviceMemory", "device_memory (set)"},
    {"getOptimizationProfile", "active_optimization_profile (get)"},
    {"setOptimizationProfileAsync", "set_optimization_profile_async"},
    {"setInputShape", "set_input_shape"},
    {"getTensorStrides", "get_tensor_strides"},
    {"setTensorAddress", "set_tensor_address"},
    {"getTensorAddress", "get_tensor_address"},
    {"setOutputAllocator", "set_output_allocator"},
    {"getMaxOutputSize", "get_max_output_size"},
    {"enqueueV3", "execute_async_v3"},
    {"setAuxStreams", "set_aux_streams"},
    {"updateDeviceMemorySizeForShapes", "update_device_memory_size_for_shapes"},
    {"setDeviceMemoryV2", "set_device_memory"},
    {"isStreamCapturable", "is_stream_capturable"},
};

static const char *seen_name(const char *method) {
  for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++)
    if (strcmp(spellings[i].method, method) == 0)
      return spellings[i].seen;
  return NULL;
}

/* The line of a method; of two overloads the one that takes memory. */
static const struct line *find_line(const char *version, const char *class, const char *method) {
  for (size_t i = 0; i < line_count; i++)
    if (strcmp(lines[i].version, version) == 0 && strcmp(lines[i].class, class) == 0 &&
        strcmp(lines[i].method, method) == 0 && strstr(lines[i].signature, "IStreamReader &") == NULL)
      return &lines[i];
  return NULL;
}

/* Whether a method was seen at `slot`; *known tells whether it was seen at all. */
static bool seen_at(const char *version, const char *class, const char *method, int slot, bool *known) {
  const char *name = seen_name(method);
  bool right = false;
  *known = false;
  for (size_t i = 0; name != NULL && i < line_count; i++)
    if (strcmp(lines[i].version, version) == 0 && strcmp(lines[i].class, class) == 0 &&
        strcmp(lines[i].method, name) == 0) {
      *known = true;
      right = right || lines[i].slot == slot;
    }
  return right;
}

static void assert_slot(const struct row *row, const char *version, int ours) {
  const struct line *line = find_line(version, row->class, row->method);
  int listed = line != NULL ? line->slot : -1;
  if (ours != listed)
    fail_msg("%s: slot %d for TensorRT %s, the list says %d", row->member, ours, version, listed);
}

static void every_slot_of_tensorrt_10_is_the_listed_one(void **state) {
  (void)state;
  for (size_t i = 0; i < ROW_COUNT; i++) {
    assert_slot(&rows[i], "10.16.1", rows[i].slot10);
    assert_slot(&rows[i], "10.16.1", rows[i].found10_16);
    assert_slot(&rows[i], "10.0.0", rows[i].found10_0);
    if (rows[i].since10 <= 1)
      assert_slot(&rows[i], "10.1.0", rows[i].slot10);
  }
}

/* The list has 10.0.0, 10.1.0 and 10.16.1; the minors between are stated in the facts beside it. */
static void a_slot_is_used_from_the_minor_version_that_brought_it(void **state) {
  (void)state;
  static const struct {
    const char *method;
    int since;
  } stated[] = {
      {"setWeightStreamingBudgetV2", 1}, {"getWeightStreamingBudgetV2", 1}, {"getDeviceMemorySizeV2", 1},
      {"setDeviceMemoryV2", 1},          {"getProfileTensorValuesV2", 11},  {"getEngineStat", 14},
      {"getAliasedInputTensor", 15},
  };
  for (size_t i = 0; i < ROW_COUNT; i++) {
    bool late = find_line("10.0.0", rows[i].class, rows[i].method) == NULL && rows[i].slot10 >= 0;
    if (late != (rows[i].since10 > 0))
      fail_msg("%s is marked as from 10.%d", rows[i].member, rows[i].since10);
    for (size_t k = 0; k < sizeof stated / sizeof stated[0]; k++)
      if (strcmp(stated[k].method, rows[i].method) == 0)
        assert_int_equal(rows[i].since10, stated[k].since);
  }
  struct td_trt_library library;
  struct tandem_error error;
  for (int32_t minor = 0; minor <= 16; minor++) {
    assert_int_equal(td_trt_choose(&td_host, 100000 + 100 * minor, true, &library, &error), TANDEM_OK);
    assert_int_equal(library.slots.engine_set_budget >= 0, minor >= 1);
    assert_int_equal(library.slots.engine_profile_values >= 0, minor >= 11);
    assert_int_equal(library.slots.engine_stat >= 0, minor >= 14);
    assert_int_equal(library.slots.engine_aliased_input >= 0, minor >= 15);
  }
}

static void every_slot_of_tensorrt_11_is_the_listed_one(void **state) {
  (void)state;
  size_t seen = 0;
  for (size_t i = 0; i < ROW_COUNT; i++) {
    bool known;
    assert_slot(&rows[i], "11.1", rows[i].slot11);
    assert_slot(&rows[i], "11.0", rows[i].slot11);
    assert_int_equal(rows[i].found11, rows[i].slot11);
    if (rows[i].slot11 < 0)
      continue;
    bool right = seen_at("11.4.0", rows[i].class, rows[i].method, rows[i].slot11, &known);
    if (known && !right)
      fail_msg("%s: slot %d for TensorRT 11.4.0, seen elsewhere", rows[i].member, rows[i].slot11);
    seen += known;
  }
  assert_true(seen >= 40);
}

static void every_slot_of_rtx_is_the_one_seen_or_that_of_11(void **state) {
  (void)state;
  size_t seen = 0;
  for (size_t i = 0; i < ROW_COUNT; i++) {
    bool known;
    assert_int_equal(rows[i].found_rtx, rows[i].rtx);
    if (rows[i].rtx < 0)
      continue;
    bool right = seen_at("rtx-1.7.1", rows[i].class, rows[i].method, rows[i].rtx, &known);
    if (known && !right)
      fail_msg("%s: slot %d for RTX 1.7.1, seen elsewhere", rows[i].member, rows[i].rtx);
    if (!known)
      assert_slot(&rows[i], "11.1", rows[i].rtx);
    seen += known;
  }
  assert_true(seen >= 42);
}

/* "int32_t VRuntime::getNbDLACores() const" -> "int32_t" in our words. */
static const char *our_type(const char *signature, const char *class) {
  static const char *const enums[] = {"DataType", "TensorLocation", "TensorIOMode", "TensorFormat",
                                      "HardwareCompatibilityLevel"};
  static char type[128];
  const char *end = strstr(signature, class);
  assert_non_null(end);
  snprintf(type, sizeof type, "%.*s", (int)(end - signature), signature);
  while (type[0] != '\0' && type[strlen(type) - 1] == ' ')
    type[strlen(type) - 1] = '\0';
  for (size_t i = 0; i < sizeof enums / sizeof enums[0]; i++)
    if (strcmp(type, enums[i]) == 0)
      return "int32_t";
  if (strcmp(type, "Dims") == 0)
    return "struct td_trt_dims";
  if (strcmp(type, "std::size_t") == 0)
    return "size_t";
  bool value = strncmp(type, "const char", 10) == 0 || strncmp(type, "const void", 10) == 0 ||
               strncmp(type, "const int64_t", 13) == 0;
  return strchr(type, '*') != NULL && !value ? "void *" : type;
}

static size_t count_arguments(const char *list) {
  size_t count = 1;
  const char *open = strchr(list, '(');
  if (open[1] == ')')
    return 0;
  for (const char *at = open; *at != '\0' && *at != ')'; at++)
    count += *at == ',';
  return count;
}

static void results_and_counts_of_arguments_are_those_of_the_headers(void **state) {
  (void)state;
  size_t compared = 0;
  for (size_t i = 0; i < ROW_COUNT; i++) {
    const struct row *row = &rows[i];
    const struct line *line = find_line(row->slot11 >= 0 ? "11.1" : "10.16.1", row->class, row->method);
    if (line == NULL)
      continue; /* RTX's alone have no header */
    char ours[64] = "", theirs[128] = "";
    for (const char *at = row->result; *at != '\0'; at++)
      if (*at != ' ')
        strncat(ours, at, 1);
    for (const char *at = our_type(line->signature, row->class); *at != '\0'; at++)
      if (*at != ' ')
        strncat(theirs, at, 1);
    if (strcmp(ours, theirs) != 0)
      fail_msg("%s returns %s, its header says %s", row->member, ours, line->signature);
    const char *list = strstr(line->signature, row->method);
    if (count_arguments(row->parameters) != count_arguments(list) + 1)
      fail_msg("%s has %s, its header says %s", row->member, row->parameters, line->signature);
    compared++;
  }
  assert_int_equal(compared, ROW_COUNT - 2);
}

/* ---------------------------------------------------------------- objects that the library calls */

static void **given_logger;
static char told[256];

static void *keep_logger(void *logger, int32_t version) {
  (void)version;
  given_logger = logger;
  return (void *)0x228;
}

static void tell(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level;
  snprintf(told, sizeof told, "%s", line);
}

static void the_logger_has_its_message_where_each_version_calls_it(void **state) {
  (void)state;
  static const struct {
    int32_t version;
    const char *list; /* that has ILogger */
  } cases[] = {{100000, "10.0.0"}, {101601, "10.16.1"}, {110100, "11.1"}, {110400, "11.1"}, {10701, "11.1"}};
  tandem_set_log_sink(tell, NULL);
  td_trt_set_host(&td_host);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct line *line = find_line(cases[i].list, "ILogger", "log");
    struct tandem_error error = {0};
    void *runtime;
    assert_non_null(line);
    assert_int_equal(td_trt_choose(&td_host, cases[i].version, false, &td_trt, &error), TANDEM_OK);
    td_trt.create_runtime = keep_logger;
    assert_int_equal(td_trt_create_runtime(&runtime, &error), TANDEM_UNAVAILABLE);
    assert_null(runtime); /* 0x228 is no object */
    void (*log)(void *, int32_t, const char *);
    memcpy(&log, &((void **)given_logger[0])[line->slot], sizeof log);
    told[0] = '\0';
    struct td_lines *collected = td_lines_create("test", TANDEM_LOG_WARNING);
    struct td_call call;
    td_call_begin(&call, &td_vendor_tensorrt, collected);
    log(given_logger, TD_TRT_ERROR, "two\nlines\n");
    td_call_end(&call, TANDEM_OK, "log", NULL);
    td_lines_destroy(collected);
    assert_non_null(strstr(told, "two lines"));
  }
  tandem_set_log_sink(NULL, NULL);
}

static void the_output_allocator_has_the_entries_of_each_product(void **state) {
  (void)state;
  struct td_trt_output_allocator allocator;
  struct tandem_error error;
  const char *const classes[] = {"reallocateOutput", "reallocateOutputAsync", "notifyShape"};
  const void *const *trt, *const *rtx;
  assert_int_equal(td_trt_choose(&td_host, 110400, false, &td_trt, &error), TANDEM_OK);
  td_trt_output_allocator_init(&allocator);
  trt = allocator.vtable;
  assert_int_equal(td_trt_choose(&td_host, 101601, false, &td_trt, &error), TANDEM_OK);
  td_trt_output_allocator_init(&allocator);
  assert_ptr_equal(allocator.vtable, trt);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(find_line("10.16.1", "IOutputAllocator", classes[i])->slot, 4 + i);
    assert_int_equal(find_line("11.1", "IOutputAllocator", classes[i])->slot, 4 + i);
  }
  assert_int_equal(td_trt_choose(&td_host, 10701, false, &td_trt, &error), TANDEM_OK);
  td_trt_output_allocator_init(&allocator);
  rtx = allocator.vtable;
  /* RTX has lost the synchronous entry: 4 is the asynchronous one, 5 the shape. */
  assert_ptr_equal(rtx[4], trt[5]);
  assert_ptr_equal(rtx[5], trt[6]);
  assert_ptr_not_equal(rtx[4], trt[4]);
}

/* ---------------------------------------------------------------- version gate */

static void known_versions_are_named(void **state) {
  (void)state;
  static const struct {
    int32_t version;
    bool lean;
    const char *name;
    enum td_trt_product product;
  } cases[] = {
      {100000, false, "TensorRT 10.0.0", TD_TRT_FULL},
      {101601, true, "TensorRT 10.16.1 (lean)", TD_TRT_LEAN},
      {110400, false, "TensorRT 11.4.0", TD_TRT_FULL},
      {110400, true, "TensorRT 11.4.0 (lean)", TD_TRT_LEAN},
      {10500, false, "TensorRT-RTX 1.5.0", TD_TRT_RTX},
      {10701, false, "TensorRT-RTX 1.7.1", TD_TRT_RTX},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct td_trt_library library = {0};
    struct tandem_error error = {0};
    assert_int_equal(td_trt_choose(&td_host, cases[i].version, cases[i].lean, &library, &error), TANDEM_OK);
    assert_string_equal(library.name, cases[i].name);
    assert_int_equal(library.product, cases[i].product);
  }
}

static void every_other_version_is_refused_in_a_line_that_names_it(void **state) {
  (void)state;
  static const struct {
    int32_t version;
    const char *named;
  } cases[] = {
      {8601, "TensorRT 8.6.1"},      {9200, "TensorRT 9.2.0"},    {120000, "TensorRT 12.0.0"},
      {10401, "TensorRT-RTX 1.4.1"}, {10000, "TensorRT-RTX 1.0"}, {20000, "TensorRT-RTX 2.0.0"},
      {0, "TensorRT 0.0.0"},         {-5, "version number -5"},   {INT32_MAX, "version number 2147483647"},
      {99999, "TensorRT-RTX 9."},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct td_trt_library library = {0};
    struct tandem_error error = {0};
    assert_int_equal(td_trt_choose(&td_host, cases[i].version, false, &library, &error), TANDEM_UNSUPPORTED);
    if (strstr(error.message, cases[i].named) == NULL || strstr(error.message, "TensorRT 11") == NULL ||
        strchr(error.message, '\n') != NULL)
      fail_msg("%d: \"%s\"", cases[i].version, error.message);
  }
}

static void lines_of_the_library_tell_what_kind_of_failure_it_is(void **state) {
  (void)state;
  assert_int_equal(td_trt_judge_line("Error Code 1: Cuda Runtime (out of memory)"), TANDEM_OUT_OF_MEMORY);
  assert_int_equal(td_trt_judge_line("Error Code 2: OutOfMemory (Requested size was 8 bytes.)"),
                   TANDEM_OUT_OF_MEMORY);
  assert_int_equal(td_trt_judge_line("Requested amount of GPU memory (8 bytes) could not be allocated."),
                   TANDEM_OUT_OF_MEMORY);
  assert_int_equal(td_trt_judge_line("Cuda Runtime (an illegal memory access was encountered)"),
                   TANDEM_DEVICE_LOST);
  assert_int_equal(td_trt_judge_line("Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed"),
                   TANDEM_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_slot_of_tensorrt_10_is_the_listed_one),
      cmocka_unit_test(a_slot_is_used_from_the_minor_version_that_brought_it),
      cmocka_unit_test(every_slot_of_tensorrt_11_is_the_listed_one),
      cmocka_unit_test(every_slot_of_rtx_is_the_one_seen_or_that_of_11),
      cmocka_unit_test(results_and_counts_of_arguments_are_those_of_the_headers),
      cmocka_unit_test(the_logger_has_its_message_where_each_version_calls_it),
      cmocka_unit_test(the_output_allocator_has_the_entries_of_each_product),
      cmocka_unit_test(known_versions_are_named),
      cmocka_unit_test(every_other_version_is_refused_in_a_line_that_names_it),
      cmocka_unit_test(lines_of_the_library_tell_what_kind_of_failure_it_is),
  };
  return cmocka_run_group_tests(tests, choose, NULL);
}
