/* Runs: bindings, shapes, staging and direct memory, aliases, outputs whose size the run tells, streams. */
#include "rig.h"

#include "bound.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- plain runs */

static void host_tensors_are_staged_and_give_the_right_numbers(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  for (int rows = 1; rows <= 8; rows++)
    rig_expect_mlp(load, &rig_dynamic, rows, (unsigned)rows);
  assert_null(rig_current());
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void a_repeated_run_allocates_nothing_and_tells_the_library_nothing(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[4 * 8], y[4 * 4];
  rig_fill(x, 32, 1);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 4, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  uint64_t allocations = rig_calls("cuMemAlloc"), infers = rig_library->calls(STANDIN_INFER);
  uint64_t shapes = rig_library->calls(STANDIN_INPUT_SHAPE), addresses = rig_library->calls(STANDIN_ADDRESS);
  uint64_t scratch = rig_library->calls(STANDIN_SCRATCH), queries = rig_calls("cuPointerGetAttributes");
  uint64_t records = rig_calls("cuEventRecord");
  for (int i = 0; i < 10; i++)
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(rig_calls("cuMemAlloc"), allocations);
  assert_int_equal(rig_library->calls(STANDIN_INFER), infers);
  assert_int_equal(rig_library->calls(STANDIN_INPUT_SHAPE), shapes);
  assert_int_equal(rig_library->calls(STANDIN_ADDRESS), addresses);
  assert_int_equal(rig_library->calls(STANDIN_SCRATCH), scratch);
  RIG_EXPECT_TOLD(rig_calls("cuPointerGetAttributes"), queries + 20);
  RIG_EXPECT_TOLD(rig_calls("cuEventRecord"), records);
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), 11);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void device_memory_is_bound_in_place(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[16], y[8], expected[8];
  rig_fill(x, 16, 3);
  assert_true(standin_mlp_expect(&rig_plain, x, 2, expected));
  void *dx = rig_allocate(0, sizeof x), *dy = rig_allocate(0, sizeof y);
  rig_write(0, dx, x, sizeof x);
  uint64_t in = rig_calls("cuMemcpyHtoDAsync"), out = rig_calls("cuMemcpyDtoHAsync");
  uint64_t allocations = rig_calls("cuMemAlloc");
  struct tandem_tensor input = rig_tensor(dx, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(dy, TANDEM_FLOAT32, 2, 2, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  rig_read(0, y, dy, sizeof y);
  assert_memory_equal(y, expected, sizeof y);
  RIG_EXPECT_TOLD(rig_calls("cuMemcpyHtoDAsync"), in);
  RIG_EXPECT_TOLD(rig_calls("cuMemcpyDtoHAsync"), out);
  RIG_EXPECT_TOLD(rig_calls("cuMemAlloc"), allocations);
  rig_free(0, dx);
  rig_free(0, dy);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* Runs rig_plain's load with tensors at x and y, which the host reaches, and counts the copies. */
static void run_in_place(struct tandem_load *load, float *x, float *y, unsigned copies) {
  float expected[8];
  rig_fill(x, 16, 5);
  memset(y, 0, sizeof expected);
  assert_true(standin_mlp_expect(&rig_plain, x, 2, expected));
  uint64_t before = rig_calls("cuMemcpyHtoDAsync") + rig_calls("cuMemcpyDtoHAsync");
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 2, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_memory_equal(y, expected, sizeof expected);
  RIG_EXPECT_TOLD(rig_calls("cuMemcpyHtoDAsync") + rig_calls("cuMemcpyDtoHAsync"), before + copies);
}

static void pinned_managed_and_registered_memory_is_bound_in_place(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  void *pinned;
  uint64_t managed;
  float *pageable = aligned_alloc(4096, 8192);
  assert_non_null(pageable);
  rig_push(0);
  assert_int_equal(rig_cuda.host_allocate(&pinned, 4096, 0), CU_OK);
  assert_int_equal(rig_cuda.allocate_managed(&managed, 4096, 1), CU_OK);
  assert_int_equal(rig_cuda.host_register(pageable, 4096, 0), CU_OK);
  run_in_place(load, pinned, (float *)pinned + 512, 0);
  run_in_place(load, (float *)(uintptr_t)managed, (float *)(uintptr_t)managed + 512, 0);
  run_in_place(load, pageable, pageable + 512, 0);
  run_in_place(load, pageable, pageable + 1024, 1);    /* the output lies behind what is registered */
  run_in_place(load, pageable + 1016, pageable, 2);    /* the input begins inside and ends outside of it */
  run_in_place(load, pageable + 1, pageable + 512, 1); /* no kernel may read at this address */
  assert_int_equal(rig_cuda.host_unregister(pageable), CU_OK);
  run_in_place(load, pageable, pageable + 512, 2);
  assert_int_equal(rig_cuda.release(managed), CU_OK);
  assert_int_equal(rig_cuda.host_release(pinned), CU_OK);
  rig_pop(0);
  free(pageable);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void
pageable_memory_is_bound_only_when_the_device_reads_it_through_the_hosts_page_tables(void **state) {
  (void)state;
  enum { PAGEABLE = 88, TABLES = 100, INTEGRATED = 18 };
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  float *memory = aligned_alloc(4096, 4096);
  const struct {
    int pageable, tables, integrated;
    unsigned copies;
  } cases[] = {{0, 0, 1, 2}, {1, 0, 0, 2}, {0, 1, 0, 2}, {1, 1, 0, 0}};
  assert_non_null(memory);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rig_device->set_attribute(0, PAGEABLE, cases[i].pageable);
    rig_device->set_attribute(0, TABLES, cases[i].tables);
    rig_device->set_attribute(0, INTEGRATED, cases[i].integrated);
    struct tandem_load *load = rig_load(&payload, NULL);
    run_in_place(load, memory, memory + 512, cases[i].copies);
    tandem_load_destroy(load);
  }
  rig_device->set_attribute(0, PAGEABLE, 0);
  rig_device->set_attribute(0, TABLES, 0);
  rig_device->set_attribute(0, INTEGRATED, 0);
  free(memory);
  rig_payload_free(&payload);
}

static void memory_of_another_device_is_refused_by_name_unless_it_is_mapped(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  float y[8];
  void *foreign = rig_allocate(1, 64);
  struct tandem_tensor input = rig_tensor(foreign, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 2, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "input 0 (x)"));
  assert_non_null(strstr(error.message, "cuda:1"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), 0);
  rig_expect_mlp(load, &rig_plain, 2, 9);
  rig_free(1, foreign);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- aliases */

static float cache_after(const float *x, float value, size_t index) {
  return value / 2 + x[index % 8];
}

static void an_aliased_cache_is_updated_in_place_and_copied_to_an_output_that_asks_for_it(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("cache");
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[8], cache[32], copy[32], y[16], expected[32];
  rig_fill(x, 8, 1);
  rig_fill(cache, 32, 2);
  void *device = rig_allocate(0, sizeof cache);
  rig_write(0, device, cache, sizeof cache);
  for (size_t i = 0; i < 32; i++)
    expected[i] = cache_after(x, cache[i], i);
  struct tandem_tensor inputs[] = {rig_tensor(x, TANDEM_FLOAT32, 1, 8),
                                   rig_tensor(device, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor outputs[] = {rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4),
                                    rig_tensor(copy, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = outputs, .output_count = 2};
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  rig_read(0, cache, device, sizeof cache);
  assert_memory_equal(cache, expected, sizeof cache);
  assert_memory_equal(copy, expected, sizeof copy);
  /* The output may be the cache itself: nothing is copied then. */
  uint64_t within = rig_calls("cuMemcpyDtoDAsync");
  outputs[1].data = device;
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(rig_calls("cuMemcpyDtoDAsync"), within);
  rig_read(0, cache, device, sizeof cache);
  for (size_t i = 0; i < 32; i++)
    assert_true(cache[i] == cache_after(x, expected[i], i));
  /* In host memory it cannot be updated in place. */
  inputs[1].data = copy;
  uint64_t enqueued = rig_library->calls(STANDIN_ENQUEUE);
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "input 1 (cache)"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), enqueued);
  rig_free(0, device);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void outputs_that_update_an_input_may_be_left_out(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("cache");
  struct tandem_load *load = rig_load(&payload, NULL);
  const struct tandem_io *outputs_io;
  size_t count;
  float x[8], cache[32], y[16], expected[32];
  rig_fill(x, 8, 1);
  rig_fill(cache, 32, 2);
  void *device = rig_allocate(0, sizeof cache);
  rig_write(0, device, cache, sizeof cache);
  for (size_t i = 0; i < 32; i++)
    expected[i] = cache_after(x, cache[i], i);
  tandem_load_io(load, NULL, NULL, &outputs_io, &count);
  assert_int_equal(count, 2);
  assert_int_equal(outputs_io[0].updates, 0);
  assert_int_equal(outputs_io[1].updates, 2); /* input 1 */
  struct tandem_tensor inputs[] = {rig_tensor(x, TANDEM_FLOAT32, 1, 8),
                                   rig_tensor(device, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor output = rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4);
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  rig_read(0, cache, device, sizeof cache);
  assert_memory_equal(cache, expected, sizeof cache);
  run.output_count = 0;
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message,
                         "2 inputs and 0 outputs were given, the engine has 2 inputs and 2 outputs, or 1 "
                         "outputs without those that update an input"));
  rig_free(0, device);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static struct rig_payload wrap_aliased(const char *sample, const struct standin_alias *alias,
                                       const char *metadata) {
  size_t size;
  struct rig_payload payload;
  void *plan = standin_sample_bytes(sample, &size);
  assert_non_null(plan);
  payload.bytes = standin_payload_bytes(&(struct standin_payload){.plan = plan,
                                                                  .plan_size = size,
                                                                  .aliases = alias,
                                                                  .alias_count = alias != NULL,
                                                                  .metadata = metadata},
                                        &payload.size);
  assert_non_null(payload.bytes);
  free(plan);
  return payload;
}

static void expect_refused(struct rig_payload payload, enum tandem_status status, const char *text) {
  struct tandem_load *load = NULL;
  struct tandem_error error;
  enum tandem_status found = rig_try_load(&payload, &load, &error, NULL);
  if (found != status || strstr(error.message, text) == NULL)
    fail_msg("expected %s with \"%s\", found %s: %s", tandem_status_name(status), text,
             tandem_status_name(found), error.message);
  assert_null(load);
  rig_payload_free(&payload);
}

static void aliases_that_the_engine_does_not_have_are_refused(void **state) {
  (void)state;
  const struct standin_alias wrong_input = {"cache_out", "x", NULL}, no_alias = {"y", "cache", NULL};
  const struct standin_alias other_shape = {"y", "cache", "user"};
  expect_refused(wrap_aliased("cache", &wrong_input, NULL), TANDEM_BAD_PROGRAM,
                 "\"cache_out\" updates input \"x\"");
  expect_refused(wrap_aliased("cache", &no_alias, NULL), TANDEM_BAD_PROGRAM, "\"y\" updates input \"cache\"");
  expect_refused(wrap_aliased("cache", &other_shape, NULL), TANDEM_BAD_PROGRAM,
                 "float32 [4, 4] and float32 [4, 8]");
}

static void bindings_that_the_engine_does_not_have_are_refused(void **state) {
  (void)state;
#define BINDING(name, input) "{\"name\":\"" name "\",\"dtype\":\"\",\"shape\":[],\"is_input\":" input "}"
  expect_refused(wrap_aliased("mlp", NULL, "{\"io_bindings\":[" BINDING("x", "true") "]}"),
                 TANDEM_BAD_PROGRAM, "names 1 inputs and outputs, its engine has 2");
  expect_refused(
      wrap_aliased("mlp", NULL, "{\"io_bindings\":[" BINDING("x", "true") "," BINDING("z", "false") "]}"),
      TANDEM_BAD_PROGRAM, "\"z\"");
  expect_refused(
      wrap_aliased("mlp", NULL, "{\"io_bindings\":[" BINDING("x", "false") "," BINDING("y", "false") "]}"),
      TANDEM_BAD_PROGRAM, "\"x\" is an output, its engine has it as an input");
#undef BINDING
}

static void without_bindings_names_and_order_come_from_the_engine(void **state) {
  (void)state;
  struct rig_payload payload = wrap_aliased("mlp", NULL, "{}");
  struct tandem_load *load = rig_load(&payload, NULL);
  const struct tandem_io *inputs, *outputs;
  size_t input_count, output_count;
  tandem_load_io(load, &inputs, &input_count, &outputs, &output_count);
  assert_int_equal(input_count, 1);
  assert_int_equal(output_count, 1);
  assert_string_equal(inputs[0].name, "x");
  assert_string_equal(outputs[0].name, "y");
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- shapes and profiles */

static void bounds_are_those_of_the_chosen_profile(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("shapes");
  const struct {
    const char *profile;
    int64_t min, max;
  } cases[] = {{"0", 0, 16}, {"1", 17, 64}, {"auto", 0, 64}};
  struct tandem_load *loads[3];
  for (int i = 0; i < 3; i++) {
    const struct tandem_io *inputs;
    loads[i] = rig_load(&payload, "profile", cases[i].profile, NULL);
    tandem_load_io(loads[i], &inputs, NULL, NULL, NULL);
    assert_int_equal(inputs[0].min[0], cases[i].min);
    assert_int_equal(inputs[0].max[0], cases[i].max);
  }
  assert_int_equal(rig_stats().engines, 1); /* the profile is no part of the identity */
  struct tandem_load *refused = NULL;
  struct tandem_error error;
  assert_int_equal(rig_try_load(&payload, &refused, &error, "profile", "2", NULL), TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "2 optimization profiles"));
  for (int i = 0; i < 3; i++)
    tandem_load_destroy(loads[i]);
  rig_payload_free(&payload);
}

/* y is the first rows x columns of x [count]; *shape gets what the engine says of x. */
static enum tandem_status run_shapes(struct tandem_load *load, int count, int64_t rows, int64_t columns,
                                     int64_t *shape, struct tandem_tensor *y, struct tandem_error *error) {
  static float x[64];
  int64_t wanted[] = {rows, columns};
  rig_fill(x, 64, 1);
  struct tandem_tensor inputs[] = {rig_tensor(x, TANDEM_FLOAT32, 1, count),
                                   rig_tensor(wanted, TANDEM_INT64, 1, 2)};
  struct tandem_tensor outputs[] = {*y, rig_tensor(shape, TANDEM_INT64, 1, 1)};
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = outputs, .output_count = 2};
  enum tandem_status status = rig_run(load, &run, error);
  *y = outputs[0];
  return status;
}

static void shape_tensors_are_read_and_written_on_the_host_and_noticed_when_they_change(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("shapes");
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  float x[64], values[64];
  int64_t shape = -1;
  rig_fill(x, 64, 1);
  const int64_t grids[][2] = {{2, 3}, {4, 4}, {2, 3}, {1, 1}, {0, 3}};
  for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
    struct tandem_tensor y = {.data = values, .size = sizeof values, .dtype = TANDEM_FLOAT32};
    if (run_shapes(load, 16, grids[i][0], grids[i][1], &shape, &y, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    assert_int_equal(y.rank, 2);
    assert_int_equal(y.shape[0], grids[i][0]);
    assert_int_equal(y.shape[1], grids[i][1]);
    assert_memory_equal(values, x, (size_t)(grids[i][0] * grids[i][1]) * sizeof *values);
    assert_int_equal(shape, 16);
  }
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void profile_auto_switches_on_the_loads_own_context(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("shapes");
  struct tandem_load *any = rig_load(&payload, "profile", "auto", NULL),
                     *second = rig_load(&payload, "profile", "1", NULL);
  struct tandem_error error;
  float x[64], values[64];
  int64_t shape;
  rig_fill(x, 64, 1);
  const int counts[] = {4, 40, 16, 17, 64};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    struct tandem_tensor y = {.data = values, .size = sizeof values, .dtype = TANDEM_FLOAT32};
    if (run_shapes(any, counts[i], 2, 2, &shape, &y, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    assert_memory_equal(values, x, 4 * sizeof *values);
    assert_int_equal(shape, counts[i]);
    y = (struct tandem_tensor){.data = values, .size = sizeof values, .dtype = TANDEM_FLOAT32};
    assert_int_equal(run_shapes(second, 33, 5, 5, &shape, &y, NULL), TANDEM_OK);
    assert_int_equal(shape, 33);
  }
  struct tandem_tensor y = {.data = values, .size = sizeof values, .dtype = TANDEM_FLOAT32};
  assert_int_equal(run_shapes(second, 4, 2, 2, &shape, &y, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "expected 17 to 64"));
  tandem_load_destroy(any);
  tandem_load_destroy(second);
  rig_payload_free(&payload);
}

static void empty_tensors_run(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("shapes");
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  int64_t wanted[] = {0, 5}, shape = -1;
  struct tandem_tensor inputs[] = {rig_tensor(NULL, TANDEM_FLOAT32, 1, 0),
                                   rig_tensor(wanted, TANDEM_INT64, 1, 2)};
  struct tandem_tensor outputs[] = {rig_tensor(NULL, TANDEM_FLOAT32, 2, 0, 5),
                                    rig_tensor(&shape, TANDEM_INT64, 1, 1)};
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = outputs, .output_count = 2};
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_int_equal(shape, 0);
  assert_int_equal(outputs[0].shape[0], 0);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- outputs whose size the run tells */

struct growing {
  float *memory;
  unsigned calls;
};

static enum tandem_status grow(void *user, size_t output, struct tandem_tensor *tensor) {
  struct growing *growing = user;
  assert_int_equal(output, 0);
  growing->calls++;
  free(growing->memory);
  tensor->size = (tensor->rank ? (size_t)tensor->shape[0] : 1) * sizeof *growing->memory;
  growing->memory = malloc(tensor->size ? tensor->size : 1);
  tensor->data = growing->memory;
  return growing->memory ? TANDEM_OK : TANDEM_OUT_OF_MEMORY;
}

static void outputs_whose_size_depends_on_the_data_are_resized(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("positive");
  struct tandem_load *load = rig_load(&payload, NULL);
  struct tandem_error error;
  struct growing growing = {0};
  for (int count = 1; count <= 64; count += 9) {
    float x[64];
    int64_t positive = 0;
    rig_fill(x, 64, (unsigned)count);
    struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 1, count);
    struct tandem_tensor output = {.dtype = TANDEM_FLOAT32, .rank = 1};
    struct tandem_run_desc run = {.inputs = &input,
                                  .input_count = 1,
                                  .outputs = &output,
                                  .output_count = 1,
                                  .resize = grow,
                                  .resize_user = &growing};
    if (rig_run(load, &run, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    for (int i = 0; i < count; i++)
      if (x[i] > 0)
        assert_true(growing.memory[positive++] == x[i]);
    assert_int_equal(output.shape[0], positive);
  }
  assert_true(growing.calls > 0);
  free(growing.memory);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void an_output_without_room_is_refused_and_the_load_goes_on(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0), late = rig_sample("positive");
  struct tandem_load *load = rig_load(&payload, NULL), *other = rig_load(&late, NULL);
  float x[64], y[64];
  struct tandem_error error;
  rig_fill(x, 64, 1);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 8, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 7, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "output 0 (y) has shape [8, 4], 128 bytes"));
  output = (struct tandem_tensor){.dtype = TANDEM_FLOAT32};
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "no address"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), 0);
  rig_expect_mlp(load, &rig_dynamic, 8, 1);
  input = rig_tensor(x, TANDEM_FLOAT32, 1, 64);
  output = rig_tensor(y, TANDEM_FLOAT32, 1, 1);
  assert_int_equal(rig_run(other, &run, &error), TANDEM_INVALID_ARGUMENT);
  output = rig_tensor(y, TANDEM_FLOAT32, 1, 64);
  assert_int_equal(rig_run(other, &run, &error), TANDEM_OK);
  tandem_load_destroy(load);
  tandem_load_destroy(other);
  rig_payload_free(&payload);
  rig_payload_free(&late);
}

/* ---------------------------------------------------------------- streams */

struct device_io {
  void *x, *y;
  struct tandem_tensor input, output;
  float expected[8];
  struct tandem_run_desc run;
};

static void device_io_init(struct device_io *io, unsigned seed) {
  float x[16], zeros[8] = {0};
  io->x = rig_allocate(0, 64);
  io->y = rig_allocate(0, 32);
  rig_fill(x, 16, seed);
  rig_write(0, io->x, x, sizeof x);
  rig_write(0, io->y, zeros, sizeof zeros);
  assert_true(standin_mlp_expect(&rig_plain, x, 2, io->expected));
  io->input = rig_tensor(io->x, TANDEM_FLOAT32, 2, 2, 8);
  io->output = rig_tensor(io->y, TANDEM_FLOAT32, 2, 2, 4);
  io->run = (struct tandem_run_desc){.struct_size = sizeof io->run,
                                     .inputs = &io->input,
                                     .input_count = 1,
                                     .outputs = &io->output,
                                     .output_count = 1};
}

static void device_io_expect(struct device_io *io) {
  float y[8];
  rig_read(0, y, io->y, sizeof y);
  assert_memory_equal(y, io->expected, sizeof y);
}

static void device_io_fini(struct device_io *io) {
  rig_free(0, io->x);
  rig_free(0, io->y);
}

static void a_run_on_the_callers_stream_returns_when_it_is_done(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct device_io io;
  device_io_init(&io, 1);
  void *stream = rig_stream(0), *done = &io;
  io.run.stream = stream;
  io.run.done = &done;
  assert_int_equal(tandem_load_run(load, &io.run, NULL), TANDEM_OK);
  assert_true(rig_stream_is_done(stream));
  assert_null(done);
  device_io_expect(&io);
  rig_stream_free(0, stream);
  device_io_fini(&io);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void a_run_that_returns_early_hands_out_its_event(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct device_io io;
  device_io_init(&io, 1);
  void *stream = rig_stream(0), *done = NULL;
  io.run.stream = stream;
  io.run.return_early = true;
  io.run.done = &done;
  rig_hold(true);
  assert_int_equal(tandem_load_run(load, &io.run, NULL), TANDEM_OK);
  assert_non_null(done);
  assert_true(rig_wait_held(1));
  RIG_EXPECT_TOLD(rig_event_is_done(done), false);
  rig_hold(false);
  rig_event_wait(done);
  device_io_expect(&io);
  rig_stream_free(0, stream);
  device_io_fini(&io);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void runs_of_one_load_are_in_order_on_different_streams(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("cache");
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[8], cache[32] = {0}, expected[32] = {0};
  rig_fill(x, 8, 1);
  void *device = rig_allocate(0, sizeof cache), *y = rig_allocate(0, 64), *dx = rig_allocate(0, sizeof x);
  rig_write(0, device, cache, sizeof cache);
  rig_write(0, dx, x, sizeof x);
  void *streams[] = {rig_stream(0), rig_stream(0)};
  struct tandem_tensor inputs[] = {rig_tensor(dx, TANDEM_FLOAT32, 1, 8),
                                   rig_tensor(device, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor outputs[] = {rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4),
                                    rig_tensor(device, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_run_desc run = {
      .inputs = inputs, .input_count = 2, .outputs = outputs, .output_count = 2, .return_early = true};
  rig_hold(true);
  for (int i = 0; i < 6; i++) {
    run.stream = streams[i % 2];
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
    for (size_t k = 0; k < 32; k++)
      expected[k] = cache_after(x, expected[k], k);
  }
  rig_hold(false);
  run.stream = NULL;
  run.return_early = false;
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  rig_read(0, cache, device, sizeof cache);
  for (size_t k = 0; k < 32; k++)
    assert_true(cache[k] == cache_after(x, expected[k], k));
  rig_stream_free(0, streams[0]);
  rig_stream_free(0, streams[1]);
  rig_free(0, device);
  rig_free(0, y);
  rig_free(0, dx);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static uint64_t awaited_on_the_host(void) {
  return rig_calls("cuEventSynchronize");
}

static void a_buffer_of_the_load_is_replaced_after_the_run_that_uses_it(void **state) {
  (void)state;
  enum { WIDTH = 1024, ROWS = 4 };
  const int64_t widths[] = {WIDTH, 4};
  const struct standin_mlp wide = {.name = "wide",
                                   .seed = 1,
                                   .layer_count = 1,
                                   .widths = widths,
                                   .rows_min = 1,
                                   .rows_opt = 1,
                                   .rows_max = ROWS};
  static float x[ROWS * WIDTH];
  float y[ROWS * 4], expected[ROWS * 4];
  struct rig_payload payload = rig_mlp(&wide, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  void *device = rig_allocate(0, sizeof y), *stream = rig_stream(0);
  rig_fill(x, ROWS * WIDTH, 1);
  for (int rows = 1; rows <= ROWS; rows++) {
    struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, rows, WIDTH),
                         output = rig_tensor(device, TANDEM_FLOAT32, 2, rows, 4);
    struct tandem_run_desc run = {.inputs = &input,
                                  .input_count = 1,
                                  .outputs = &output,
                                  .output_count = 1,
                                  .stream = stream,
                                  .return_early = true};
    uint64_t before = awaited_on_the_host();
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
    RIG_EXPECT_TOLD(awaited_on_the_host(), before + (rows > 1));
  }
  tandem_load_destroy(load);
  assert_true(standin_mlp_expect(&wide, x, ROWS, expected));
  rig_read(0, y, device, sizeof y);
  assert_memory_equal(y, expected, sizeof y);
  rig_free(0, device);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void an_output_whose_size_the_run_tells_is_written_after_the_run_before(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("positive");
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[8] = {1, -1, 2, -2, 3, -3, 4, -4}, y[8];
  void *device = rig_allocate(0, sizeof y), *stream = rig_stream(0);
  for (int i = 0; i < 3; i++) {
    struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 1, 8),
                         output = rig_tensor(device, TANDEM_FLOAT32, 1, 8);
    struct tandem_run_desc run = {.inputs = &input,
                                  .input_count = 1,
                                  .outputs = &output,
                                  .output_count = 1,
                                  .stream = stream,
                                  .return_early = true};
    uint64_t before = awaited_on_the_host();
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
    assert_int_equal(output.shape[0], 4);
    /* The first run finds out what kind of output it is; it had nothing to wait for. */
    RIG_EXPECT_TOLD(awaited_on_the_host(), before + (i > 0));
  }
  tandem_load_destroy(load);
  rig_read(0, y, device, sizeof y);
  for (int i = 0; i < 4; i++)
    assert_true(y[i] == x[2 * i]);
  rig_free(0, device);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void a_run_with_an_output_on_the_host_returns_early_when_that_is_written(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("shapes");
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[16];
  int64_t wanted[] = {2, 4}, shape = 0;
  void *device = rig_allocate(0, sizeof x), *stream = rig_stream(0), *done = NULL;
  rig_fill(x, 16, 1);
  struct tandem_tensor inputs[] = {rig_tensor(x, TANDEM_FLOAT32, 1, 16),
                                   rig_tensor(wanted, TANDEM_INT64, 1, 2)};
  struct tandem_tensor outputs[] = {rig_tensor(device, TANDEM_FLOAT32, 2, 2, 4),
                                    rig_tensor(&shape, TANDEM_INT64, 1, 1)};
  struct tandem_run_desc run = {.inputs = inputs,
                                .input_count = 2,
                                .outputs = outputs,
                                .output_count = 2,
                                .stream = stream,
                                .return_early = true,
                                .done = &done};
  uint64_t before = rig_calls("cuStreamSynchronize");
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(rig_calls("cuStreamSynchronize"), before + 1);
  assert_int_equal(shape, 16);
  assert_non_null(done);
  tandem_load_destroy(load);
  rig_free(0, device);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void *destroy_load(void *load) {
  tandem_load_destroy(load);
  return NULL;
}

static void unloading_waits_for_its_own_work_only(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *first = rig_load(&payload, NULL), *second = rig_load(&payload, NULL);
  struct device_io io[2];
  void *streams[] = {rig_stream(0), rig_stream(0)}, *done[2];
  for (int i = 0; i < 2; i++) {
    device_io_init(&io[i], (unsigned)i);
    io[i].run.stream = streams[i];
    io[i].run.return_early = true;
    io[i].run.done = &done[i];
  }
  rig_hold(true);
  assert_int_equal(tandem_load_run(first, &io[0].run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(1));
  assert_int_equal(tandem_load_run(second, &io[1].run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(2));
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, destroy_load, first), 0);
  assert_false(rig_event_is_done(done[0]));
  /* One kernel passes: the first stream's or the second's, so both loads' ends are tried here in turn. */
  rig_hold(false);
  pthread_join(thread, NULL);
  rig_event_wait(done[1]);
  device_io_expect(&io[0]);
  device_io_expect(&io[1]);
  for (int i = 0; i < 2; i++) {
    device_io_fini(&io[i]);
    rig_stream_free(0, streams[i]);
  }
  tandem_load_destroy(second);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- what the shapes of a run have to keep */

/* A payload around a plan, which is freed. */
static struct rig_payload wrap_plan(struct standin_plan *plan, const struct standin_alias *aliases,
                                    size_t count) {
  struct rig_payload payload;
  size_t size;
  void *bytes = standin_plan_bytes(plan, &size);
  assert_non_null(bytes);
  payload.bytes = standin_payload_bytes(
      &(struct standin_payload){.plan = bytes, .plan_size = size, .aliases = aliases, .alias_count = count},
      &payload.size);
  assert_non_null(payload.bytes);
  free(bytes);
  standin_plan_destroy(plan);
  return payload;
}

static void a_run_whose_aliased_output_has_another_shape_than_its_input_is_refused(void **state) {
  (void)state;
  struct standin_plan *plan = standin_plan_create("user");
  const int64_t dynamic[2] = {-1, 8}, min[2] = {1, 8}, max[2] = {8, 8};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, dynamic);
  int32_t c = standin_plan_tensor(plan, "c", STANDIN_INPUT, STANDIN_FLOAT, 2, dynamic);
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dynamic);
  int32_t z = standin_plan_tensor(plan, "z", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dynamic);
  standin_plan_bounds(plan, 0, x, min, min, max);
  standin_plan_bounds(plan, 0, c, min, min, max);
  standin_plan_gemm(plan, x, y, 8, 8, STANDIN_NO_ACT, 1);
  standin_plan_layer(plan, STANDIN_COPY, c, -1, z);
  struct rig_payload payload = wrap_plan(plan, &(struct standin_alias){"y", "c", "user"}, 1);
  struct tandem_load *load = rig_load(&payload, NULL);
  void *dx = rig_allocate(0, 256), *dc = rig_allocate(0, 256), *dz = rig_allocate(0, 256);
  struct tandem_tensor inputs[] = {rig_tensor(dx, TANDEM_FLOAT32, 2, 8, 8),
                                   rig_tensor(dc, TANDEM_FLOAT32, 2, 1, 8)};
  struct tandem_tensor output = rig_tensor(dz, TANDEM_FLOAT32, 2, 8, 8);
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "output 0 (y) updates input 1 (c)"));
  assert_non_null(strstr(error.message, "[8, 8]"));
  assert_non_null(strstr(error.message, "[1, 8]"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), 0);
  inputs[1] = rig_tensor(dc, TANDEM_FLOAT32, 2, 8, 8);
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  rig_free(0, dx);
  rig_free(0, dc);
  rig_free(0, dz);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void two_outputs_that_update_one_input_are_refused(void **state) {
  (void)state;
  struct standin_plan *plan = standin_plan_create("two");
  const int64_t dims[2] = {2, 8};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, dims);
  standin_plan_tensor(plan, "c", STANDIN_INPUT, STANDIN_FLOAT, 2, dims);
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dims);
  int32_t z = standin_plan_tensor(plan, "z", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dims);
  standin_plan_gemm(plan, x, y, 8, 8, STANDIN_NO_ACT, 1);
  standin_plan_layer(plan, STANDIN_COPY, x, -1, z);
  const struct standin_alias aliases[] = {{"y", "c", "user"}, {"z", "c", "user"}};
  expect_refused(wrap_plan(plan, aliases, 2), TANDEM_BAD_PROGRAM, "\"y\" and \"z\" both update input \"c\"");
  /* One is the program's, the other the engine's own. */
  plan = standin_plan_create("engine");
  x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, dims);
  int32_t c = standin_plan_tensor(plan, "c", STANDIN_INPUT, STANDIN_FLOAT, 2, dims);
  y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dims);
  z = standin_plan_tensor(plan, "z", STANDIN_OUTPUT, STANDIN_FLOAT, 2, dims);
  standin_plan_tensor_record(plan, z)->alias = c;
  standin_plan_gemm(plan, x, y, 8, 8, STANDIN_NO_ACT, 1);
  standin_plan_layer(plan, STANDIN_CACHE, c, x, z);
  expect_refused(wrap_plan(plan, aliases, 1), TANDEM_BAD_PROGRAM, "\"y\" and \"z\" both update input \"c\"");
}

static void an_aliased_input_at_an_address_that_is_not_aligned_is_refused(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("cache");
  struct tandem_load *load = rig_load(&payload, NULL);
  unsigned char *device = rig_allocate(0, 256);
  float x[8], y[16];
  rig_fill(x, 8, 1);
  struct tandem_tensor inputs[] = {rig_tensor(x, TANDEM_FLOAT32, 1, 8),
                                   rig_tensor(device + 4, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor output = rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4);
  struct tandem_run_desc run = {.inputs = inputs, .input_count = 2, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  assert_int_equal(rig_run(load, &run, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "input 1 (cache) is not aligned to 16 bytes"));
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), 0);
  inputs[1] = rig_tensor(device + 16, TANDEM_FLOAT32, 2, 4, 8);
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  rig_free(0, device);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void an_output_that_leaves_registered_memory_is_copied_part_by_part(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  float *pages = aligned_alloc(4096, 8192), x[16], expected[8];
  assert_non_null(pages);
  rig_fill(x, 16, 5);
  assert_true(standin_mlp_expect(&rig_plain, x, 2, expected));
  rig_push(0);
  assert_int_equal(rig_cuda.host_register(pages, 4096, 0), CU_OK);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 2, 8),
                       output = rig_tensor(pages + 1020, TANDEM_FLOAT32, 2, 2, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  struct tandem_error error;
  if (rig_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_memory_equal(pages + 1020, expected, sizeof expected);
  assert_int_equal(rig_cuda.host_unregister(pages), CU_OK);
  rig_pop(0);
  free(pages);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- the run before */

static uint64_t awaited(void) {
  return rig_calls("cuStreamWaitEvent");
}

static void only_the_run_after_one_that_returned_early_waits_for_its_event(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct device_io io;
  device_io_init(&io, 1);
  void *stream = rig_stream(0);
  io.run.stream = stream;
  io.run.return_early = true;
  assert_int_equal(rig_run(load, &io.run, NULL), TANDEM_OK);
  io.run.return_early = false;
  uint64_t before = awaited();
  for (int i = 0; i < 3; i++)
    assert_int_equal(rig_run(load, &io.run, NULL), TANDEM_OK);
  RIG_EXPECT_TOLD(awaited(), before + 1);
  device_io_expect(&io);
  tandem_load_destroy(load);
  rig_stream_free(0, stream);
  device_io_fini(&io);
  rig_payload_free(&payload);
}

struct other_thread {
  struct tandem_load *load;
  struct tandem_run_desc *run;
  enum tandem_status status;
};

static void *run_there(void *argument) {
  struct other_thread *other = argument;
  rig_push(0);
  other->status = rig_run(other->load, other->run, NULL);
  rig_pop(0);
  return NULL;
}

static void runs_of_one_load_are_in_order_on_the_per_thread_streams_of_two_threads(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_plain, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct device_io io;
  void *done = NULL;
  device_io_init(&io, 1);
  io.run.stream = (void *)2; /* CU_STREAM_PER_THREAD: one handle, a stream for each thread */
  io.run.return_early = true;
  io.run.done = &done;
  rig_push(0);
  rig_hold(true);
  assert_int_equal(rig_run(load, &io.run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(1));
  uint64_t before = awaited();
  struct other_thread other = {load, &io.run, TANDEM_INTERNAL};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, run_there, &other), 0);
  pthread_join(thread, NULL);
  assert_int_equal(other.status, TANDEM_OK);
  RIG_EXPECT_TOLD(awaited(), before + 1);
  rig_hold(false);
  rig_event_wait(done);
  rig_pop(0);
  device_io_expect(&io);
  tandem_load_destroy(load);
  device_io_fini(&io);
  rig_payload_free(&payload);
}

/* x [rows, 8] -> y [rows, 4]: rows 1 to 2 by profile 0, 3 to 8 by profile 1. */
static struct rig_payload two_profiles(void) {
  struct standin_plan *plan = standin_plan_create("profiles");
  const int64_t in[2] = {-1, 8}, out[2] = {-1, 4};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, in);
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, out);
  standin_plan_bounds(plan, 0, x, (int64_t[]){1, 8}, (int64_t[]){1, 8}, (int64_t[]){2, 8});
  standin_plan_bounds(plan, 1, x, (int64_t[]){3, 8}, (int64_t[]){3, 8}, (int64_t[]){8, 8});
  standin_plan_gemm(plan, x, y, 8, 4, STANDIN_NO_ACT, 1);
  return wrap_plan(plan, NULL, 0);
}

static void
a_profile_is_switched_after_the_run_in_flight_which_a_failing_switch_does_not_forget(void **state) {
  (void)state;
  struct rig_payload payload = two_profiles();
  struct tandem_load *load = rig_load(&payload, "profile", "auto", NULL);
  void *x = rig_allocate(0, 256), *y = rig_allocate(0, 256), *streams[] = {rig_stream(0), rig_stream(0)};
  struct tandem_tensor in[] = {rig_tensor(x, TANDEM_FLOAT32, 2, 2, 8),
                               rig_tensor(x, TANDEM_FLOAT32, 2, 4, 8)};
  struct tandem_tensor out[] = {rig_tensor(y, TANDEM_FLOAT32, 2, 2, 4),
                                rig_tensor(y, TANDEM_FLOAT32, 2, 4, 4)};
  struct tandem_run_desc run = {.inputs = &in[0],
                                .input_count = 1,
                                .outputs = &out[0],
                                .output_count = 1,
                                .stream = streams[0],
                                .return_early = true};
  rig_hold(true);
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(1));
  struct tandem_run_desc other = run;
  other.inputs = &in[1];
  other.outputs = &out[1];
  other.stream = streams[1];
  /* A run that cannot be put after it switches nothing, and the one after that still waits for it. */
  uint64_t switches = rig_library->calls(STANDIN_PROFILE), before = awaited();
  rig_device->fail_at("cuStreamWaitEvent", 1, 999);
  assert_int_not_equal(rig_run(load, &other, NULL), TANDEM_OK);
  rig_device->fail_at(NULL, 0, 0);
  assert_int_equal(rig_library->calls(STANDIN_PROFILE), switches);
  assert_int_equal(rig_run(load, &other, NULL), TANDEM_OK);
  assert_int_equal(rig_library->calls(STANDIN_PROFILE), switches + 1);
  RIG_EXPECT_TOLD(awaited(), before + 2);
  /* A switch that the library refuses has waited for the run before, or has left that in flight. */
  rig_hold(false);
  rig_library->fail_at(STANDIN_PROFILE, 1, STANDIN_FAIL_PLAIN);
  assert_int_not_equal(rig_run(load, &run, NULL), TANDEM_OK);
  assert_true(rig_stream_is_done(streams[1]));
  assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
  tandem_load_destroy(load);
  rig_stream_free(0, streams[0]);
  rig_stream_free(0, streams[1]);
  rig_free(0, x);
  rig_free(0, y);
  rig_payload_free(&payload);
}

static void count_wait(void *user) {
  ++*(unsigned *)user;
}

static void choosing_the_first_profile_calls_the_wait_hooks(void **state) {
  (void)state;
  struct rig_payload payload = two_profiles();
  unsigned begun = 0;
  struct tandem_load *first = rig_load(&payload, "profile", "0", NULL);
  tandem_set_wait_hooks(count_wait, NULL, &begun);
  struct tandem_load *second = rig_load(&payload, "profile", "1", NULL);
  tandem_set_wait_hooks(NULL, NULL, NULL);
  assert_int_equal(begun, 1);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- failures */

static void a_failure_at_any_step_of_a_run_leaves_the_load_usable(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  const enum standin_step steps[] = {STANDIN_INPUT_SHAPE, STANDIN_INFER, STANDIN_ADDRESS, STANDIN_ENQUEUE};
  float x[64], y[32];
  struct tandem_error error;
  unsigned failed = 0;
  rig_fill(x, 64, 1);
  for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
    for (int how = STANDIN_FAIL_PLAIN; how <= STANDIN_FAIL_SILENT; how++) {
      int rows = 1 + (int)(i * 3 + (size_t)how) % 8;
      struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, rows, 8),
                           output = rig_tensor(y, TANDEM_FLOAT32, 2, rows, 4);
      struct tandem_run_desc run = {
          .inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
      uint64_t calls = rig_library->calls(steps[i]);
      rig_library->fail_at(steps[i], 1, (enum standin_failure)how);
      enum tandem_status status = rig_run(load, &run, &error);
      if (rig_library->calls(steps[i]) == calls) /* an address that is known already is not told again */
        assert_int_equal(status, TANDEM_OK);
      else
        assert_int_not_equal(status, TANDEM_OK);
      failed += status != TANDEM_OK;
      if (status != TANDEM_OK && how == STANDIN_FAIL_OUT_OF_MEMORY)
        assert_int_equal(status, TANDEM_OUT_OF_MEMORY);
      rig_library->fail_at(steps[i], 0, STANDIN_FAIL_PLAIN);
      rig_expect_mlp(load, &rig_dynamic, rows, 3);
    }
  assert_true(failed >= 9);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void an_address_that_is_not_taken_is_told_again_by_the_next_run(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  float x[64], y[32];
  rig_fill(x, 64, 1);
  for (unsigned nth = 1; nth <= 2; nth++) {
    struct tandem_load *load = rig_load(&payload, NULL);
    struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 3, 8),
                         output = rig_tensor(y, TANDEM_FLOAT32, 2, 3, 4);
    struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
    rig_library->fail_at(STANDIN_ADDRESS, nth, STANDIN_FAIL_PLAIN);
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_INVALID_ARGUMENT);
    rig_expect_mlp(load, &rig_dynamic, 3, 3);
    tandem_load_destroy(load);
  }
  rig_payload_free(&payload);
}

static void a_failing_driver_call_of_a_run_leaves_the_load_usable(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  const char *const calls[] = {"cuMemAlloc",          "cuMemcpyHtoDAsync",
                               "cuMemcpyDtoHAsync",   "cuStreamSynchronize",
                               "cuStreamIsCapturing", "cuMemsetD8Async",
                               "cuLaunchKernel",      "cuPointerGetAttributes",
                               "cuMemAlloc",          "cuThreadExchangeStreamCaptureMode"};
  float x[64], y[32];
  rig_fill(x, 64, 1);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    for (unsigned nth = 1; nth <= 3; nth++) {
      int rows = 1 + (int)(i + nth) % 8;
      struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, rows, 8),
                           output = rig_tensor(y, TANDEM_FLOAT32, 2, rows, 4);
      struct tandem_run_desc run = {
          .inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
      struct tandem_error error;
      rig_device->fail_at(calls[i], nth, CU_OUT_OF_MEMORY);
      enum tandem_status status = rig_run(load, &run, &error);
      rig_device->fail_at(NULL, 0, 0);
      if (status != TANDEM_OK)
        assert_int_equal(status, TANDEM_OUT_OF_MEMORY);
      rig_expect_mlp(load, &rig_dynamic, rows, 3);
    }
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void a_context_that_cannot_be_made_leaves_nothing(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *healthy = rig_load(&payload, NULL), *load = NULL;
  struct standin_cuda_live before, after;
  struct tandem_error error;
  rig_device->live(&before);
  for (int i = 0; i < 100; i++) {
    if (i % 2 == 0)
      rig_library->fail_at(STANDIN_CONTEXT, 1, STANDIN_FAIL_OUT_OF_MEMORY);
    else
      rig_device->fail_at("cuEventCreate", 1, CU_OUT_OF_MEMORY);
    assert_int_equal(rig_try_load(&payload, &load, &error, NULL), TANDEM_OUT_OF_MEMORY);
    rig_device->fail_at(NULL, 0, 0);
  }
  rig_device->live(&after);
  assert_memory_equal(&before, &after, sizeof before);
  assert_int_equal(rig_info(healthy).users, 1);
  rig_expect_mlp(healthy, &rig_dynamic, 3, 1);
  tandem_load_destroy(healthy);
  rig_payload_free(&payload);
}

static void a_load_that_goes_leaves_no_stream_or_event_while_another_has_the_engine(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *stays = rig_load(&payload, NULL);
  struct standin_cuda_live before, after;
  rig_device->live(&before);
  struct tandem_load *goes = rig_load(&payload, "cuda_graph", "true", NULL);
  rig_expect_mlp(goes, &rig_dynamic, 3, 1);
  rig_device->live(&after);
  assert_true(after.events > before.events);
  tandem_load_destroy(goes);
  rig_device->live(&after);
  assert_int_equal(after.events, before.events);
  assert_int_equal(after.streams, before.streams);
  tandem_load_destroy(stays);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- an older TensorRT, in a process of its own
 */

/* Below 10.15 the library does not tell what an engine updates in place. */
static void without_the_engines_word_a_cache_has_to_have_its_outputs_shape_and_type(void **state) {
  (void)state;
  const int64_t wide[2] = {8, 8}, narrow[2] = {1, 8};
  for (int fits = 0; fits < 2; fits++) {
    struct standin_plan *plan = standin_plan_create("cache");
    int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, wide);
    standin_plan_tensor(plan, "c", STANDIN_INPUT, STANDIN_FLOAT, 2, fits ? wide : narrow);
    int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, wide);
    standin_plan_gemm(plan, x, y, 8, 8, STANDIN_NO_ACT, 1);
    struct rig_payload payload = wrap_plan(plan, &(struct standin_alias){"y", "c", NULL}, 1);
    if (fits) {
      tandem_load_destroy(rig_load(&payload, NULL));
      rig_payload_free(&payload);
    } else {
      expect_refused(
          payload, TANDEM_BAD_PROGRAM,
          "output \"y\" updates input \"c\" (kv_cache_update), but their shapes are float32 [8, 8] "
          "and float32 [1, 8]");
    }
  }
}

static int run_with_older_library(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      RIG_TEST(without_the_engines_word_a_cache_has_to_have_its_outputs_shape_and_type)};
  if (argc < 2 || strcmp(argv[1], "10") != 0)
    return 0;
  if (rig_on_real_driver())
    return RIG_RUN_TESTS(tests);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("STANDIN_NVINFER_VERSION", "100000", 1);
    int failed = rig_start(argc, argv);
    failed = failed ? failed : RIG_RUN_TESTS(tests);
    bound_end_child(failed ? 1 : 0);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  int failed = run_with_older_library(argc, argv), status = rig_start(argc, argv);
  if (status)
    return status;
  const struct CMUnitTest tests[] = {
      RIG_TEST_ANYWHERE(host_tensors_are_staged_and_give_the_right_numbers),
      RIG_TEST_ANYWHERE(a_repeated_run_allocates_nothing_and_tells_the_library_nothing),
      RIG_TEST_ANYWHERE(device_memory_is_bound_in_place),
      RIG_TEST_ANYWHERE(pinned_managed_and_registered_memory_is_bound_in_place),
      RIG_TEST(pageable_memory_is_bound_only_when_the_device_reads_it_through_the_hosts_page_tables),
      RIG_TEST(memory_of_another_device_is_refused_by_name_unless_it_is_mapped),
      RIG_TEST_ANYWHERE(an_aliased_cache_is_updated_in_place_and_copied_to_an_output_that_asks_for_it),
      RIG_TEST_ANYWHERE(outputs_that_update_an_input_may_be_left_out),
      RIG_TEST_ANYWHERE(aliases_that_the_engine_does_not_have_are_refused),
      RIG_TEST_ANYWHERE(bindings_that_the_engine_does_not_have_are_refused),
      RIG_TEST_ANYWHERE(without_bindings_names_and_order_come_from_the_engine),
      RIG_TEST_ANYWHERE(bounds_are_those_of_the_chosen_profile),
      RIG_TEST_ANYWHERE(shape_tensors_are_read_and_written_on_the_host_and_noticed_when_they_change),
      RIG_TEST_ANYWHERE(profile_auto_switches_on_the_loads_own_context),
      RIG_TEST_ANYWHERE(empty_tensors_run),
      RIG_TEST_ANYWHERE(outputs_whose_size_depends_on_the_data_are_resized),
      RIG_TEST_ANYWHERE(an_output_without_room_is_refused_and_the_load_goes_on),
      RIG_TEST_ANYWHERE(a_run_on_the_callers_stream_returns_when_it_is_done),
      RIG_TEST_ANYWHERE(a_run_that_returns_early_hands_out_its_event),
      RIG_TEST_ANYWHERE(only_the_run_after_one_that_returned_early_waits_for_its_event),
      RIG_TEST_ANYWHERE(a_buffer_of_the_load_is_replaced_after_the_run_that_uses_it),
      RIG_TEST_ANYWHERE(an_output_whose_size_the_run_tells_is_written_after_the_run_before),
      RIG_TEST_ANYWHERE(a_run_with_an_output_on_the_host_returns_early_when_that_is_written),
      RIG_TEST_ANYWHERE(runs_of_one_load_are_in_order_on_different_streams),
      RIG_TEST(unloading_waits_for_its_own_work_only),
      RIG_TEST_ANYWHERE(a_failure_at_any_step_of_a_run_leaves_the_load_usable),
      RIG_TEST_ANYWHERE(an_address_that_is_not_taken_is_told_again_by_the_next_run),
      RIG_TEST(a_failing_driver_call_of_a_run_leaves_the_load_usable),
      RIG_TEST(a_context_that_cannot_be_made_leaves_nothing),
      RIG_TEST(a_load_that_goes_leaves_no_stream_or_event_while_another_has_the_engine),
      RIG_TEST_ANYWHERE(a_run_whose_aliased_output_has_another_shape_than_its_input_is_refused),
      RIG_TEST_ANYWHERE(two_outputs_that_update_one_input_are_refused),
      RIG_TEST_ANYWHERE(an_aliased_input_at_an_address_that_is_not_aligned_is_refused),
      RIG_TEST_ANYWHERE(an_output_that_leaves_registered_memory_is_copied_part_by_part),
      RIG_TEST_ANYWHERE(runs_of_one_load_are_in_order_on_the_per_thread_streams_of_two_threads),
      RIG_TEST(a_profile_is_switched_after_the_run_in_flight_which_a_failing_switch_does_not_forget),
      RIG_TEST_ANYWHERE(choosing_the_first_profile_calls_the_wait_hooks),
  };
  failed += RIG_RUN_TESTS(tests);
  return failed ? 1 : 0;
}
