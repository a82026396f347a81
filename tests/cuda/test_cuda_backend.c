/* Programs of ExecuTorch's CudaBackend from payload to numbers, over the stand-in driver, engines, and shims
 * or, with the argument "torch", libtorch: what is particular to them. What every vendor passes they pass in
 * tests/conformance/test_aotinductor_cuda.c. After each test nothing may be left on the device, in the shims,
 * or of tandem's own. */
#include "base.h"

#include "aoti.h"
#include "driver.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FLOATS_MAX = STANDIN_ROWS_MAX * STANDIN_COLUMNS };

static struct driver cuda;
static int (*reset_device)(int device);
static const struct standin_cuda *standin;
static const struct standin_shims *shims;
static struct tandem_error error;
static bool torch;

/* ---------------------------------------------------------------- loads and runs */

static void open_program(struct standin_program *program, enum standin_engine engine, bool old) {
  assert_true(standin_program_init(program, engine, 7));
  assert_true(!old || standin_program_make_old(program));
}

static enum tandem_status try_load(struct standin_program *program, struct tandem_load_desc desc,
                                   struct tandem_load **load) {
  struct tandem_named_data source = standin_named_data(&program->named);
  desc.struct_size = sizeof desc;
  desc.backend = "CudaBackend";
  desc.payload = program->payload.data;
  desc.payload_size = program->payload.size;
  desc.named_data = &source;
  error = (struct tandem_error){0};
  *load = NULL;
  enum tandem_status status = tandem_load_create(&desc, load, &error);
  assert_int_equal(program->named.held, 0);
  assert_int_equal(status == TANDEM_OK, *load != NULL);
  return status;
}

static struct tandem_load *must_load_with(struct standin_program *program, struct tandem_load_desc desc) {
  struct tandem_load *load;
  if (try_load(program, desc, &load) != TANDEM_OK)
    fail_msg("%s", error.message);
  return load;
}

static struct tandem_load *must_load(struct standin_program *program) {
  return must_load_with(program, (struct tandem_load_desc){0});
}

static struct tandem_load_info info_of(const struct tandem_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(load, &info, &error), TANDEM_OK);
  return info;
}

static void assert_engines(uint64_t count) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  assert_int_equal(tandem_stats_get(&stats, &error), TANDEM_OK);
  assert_int_equal(stats.engines, count);
}

static void fill(float *x, unsigned seed) {
  for (size_t i = 0; i < FLOATS_MAX; i++)
    x[i] = (float)((i * 37 + seed * 101 + 11) % 128) / 64.0f - 1.0f;
}

static enum tandem_status run_with(struct tandem_load *load, struct tandem_run_desc desc, void *x, void *y,
                                   int64_t rows) {
  struct tandem_tensor in = {.data = x,
                             .size = (size_t)rows * STANDIN_COLUMNS * sizeof(float),
                             .dtype = TANDEM_FLOAT32,
                             .rank = 2,
                             .shape = {rows, STANDIN_COLUMNS}};
  struct tandem_tensor out = {.data = y, .size = FLOATS_MAX * sizeof(float), .dtype = TANDEM_FLOAT32};
  desc.struct_size = sizeof desc;
  desc.inputs = &in;
  desc.outputs = &out;
  desc.input_count = desc.output_count = 1;
  error = (struct tandem_error){0};
  return tandem_load_run(load, &desc, &error);
}

/* The next step of a load that has made `steps`; without state any step is the first. */
static void assert_steps(struct tandem_load *load, const struct standin_program *program, size_t steps) {
  float inputs[8][FLOATS_MAX], y[FLOATS_MAX], expected[FLOATS_MAX];
  const float *list[8];
  assert_true(steps < 8);
  for (size_t i = 0; i <= steps; i++) {
    fill(inputs[i], (unsigned)i);
    list[i] = inputs[i];
  }
  for (size_t i = 0; i < FLOATS_MAX; i++)
    y[i] = NAN;
  if (run_with(load, (struct tandem_run_desc){0}, inputs[steps], y, program->rows) != TANDEM_OK)
    fail_msg("%s", error.message);
  standin_program_expect(program, list, steps + 1, program->rows, expected);
  assert_memory_equal(y, expected, (size_t)program->rows * STANDIN_OUTPUTS * sizeof *y);
}

static void assert_runs(struct tandem_load *load, const struct standin_program *program) {
  assert_steps(load, program, 0);
}

/* ---------------------------------------------------------------- what is left */

static uint64_t live_before;
static size_t libraries_before;

/* Segments of engines' libraries in this process. */
static size_t count_libraries(void) {
  char line[1024];
  size_t count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  while (fgets(line, sizeof line, maps))
    count += strstr(line, "tandem-engine") != NULL;
  fclose(maps);
  return count;
}

static int begin(void **state) {
  (void)state;
  standin->reset();
  live_before = td_memory_live();
  libraries_before = count_libraries();
  return 0;
}

static void assert_nothing_is_left(void) {
  void *stream;
  assert_engines(0);
  assert_int_equal(td_memory_live(), live_before);
  assert_int_equal(count_libraries(), libraries_before);
  assert_int_equal(standin_aoti_left(standin, shims), 0);
  assert_false(shims->current(0, &stream) || shims->current(1, &stream));
}

static int end(void **state) {
  (void)state;
  standin->reset();
  assert_nothing_is_left();
  return 0;
}

/* ---------------------------------------------------------------- what counts for sharing */

static void both_forms_give_the_same_numbers(void **state) {
  (void)state;
  for (enum standin_engine engine = STANDIN_PLAIN; engine <= STANDIN_STATE; engine++) {
    struct standin_program listed, old;
    open_program(&listed, engine, false);
    open_program(&old, engine, true);
    struct tandem_load *first = must_load(&listed), *second = must_load(&old), *third = must_load(&old);
    assert_int_not_equal(info_of(first).engine_id, info_of(second).engine_id);
    assert_int_equal(info_of(second).engine_id, info_of(third).engine_id);
    assert_non_null(strstr(info_of(third).vendor_version, torch ? "torch 2.13.0" : "ExecuTorch's shims"));
    assert_runs(first, &listed);
    assert_runs(second, &old);
    assert_runs(third, &old);
    tandem_load_destroy(first);
    tandem_load_destroy(second);
    tandem_load_destroy(third);
    standin_program_fini(&listed);
    standin_program_fini(&old);
  }
}

static void equal_keys_share_where_their_data_is_equal(void **state) {
  (void)state;
  for (int old = 0; old < 2; old++) {
    struct standin_program program, same, other;
    assert_true(standin_program_init(&program, STANDIN_ROWS, 7));
    assert_true(standin_program_init(&same, STANDIN_ROWS, 7));
    assert_true(standin_program_init(&other, STANDIN_ROWS, 7));
    other.relu = 0;
    if (old)
      assert_true(standin_program_make_old(&program) && standin_program_make_old(&same) &&
                  standin_program_make_old(&other));
    assert_memory_equal(program.payload.data, other.payload.data, program.payload.size);
    struct tandem_load *first = must_load(&program), *second = must_load(&other), *third = must_load(&same);
    assert_engines(2);
    assert_int_equal(info_of(first).engine_id, info_of(third).engine_id);
    assert_int_not_equal(info_of(first).engine_id, info_of(second).engine_id);
    assert_runs(first, &program);
    assert_runs(second, &other);
    assert_runs(third, &same);
    tandem_load_destroy(first);
    assert_runs(third, &same);
    assert_runs(second, &other);
    tandem_load_destroy(second);
    tandem_load_destroy(third);
    standin_program_fini(&program);
    standin_program_fini(&same);
    standin_program_fini(&other);
  }
}

static void loads_share_the_weights_and_the_gpu_code_and_step_apart(void **state) {
  (void)state;
  enum { ROOM = 512 }; /* of the cache and a bias that might be state as well, 256 each */
  for (int old = 0; old < 2; old++) {
    struct standin_program program;
    struct standin_cuda_live live;
    open_program(&program, STANDIN_STATE, old);
    struct tandem_load *first = must_load(&program);
    uint64_t used = standin->memory_used(0);
    struct tandem_load *second = must_load(&program);
    assert_int_equal(standin->memory_used(0) - used, ROOM);
    for (size_t step = 0; step < 4; step++)
      assert_steps(first, &program, step);
    assert_steps(second, &program, 0);
    assert_steps(first, &program, 4);
    assert_int_equal(tandem_load_reset(first, &error), TANDEM_OK);
    assert_steps(second, &program, 1);
    assert_steps(first, &program, 0);
    standin->live(&live);
    assert_int_equal(live.modules, 1);
    tandem_load_destroy(first);
    assert_steps(second, &program, 2);
    tandem_load_destroy(second);
    standin_program_fini(&program);
  }
}

/* ---------------------------------------------------------------- devices */

static void a_program_goes_to_the_device_that_its_spec_or_an_option_names(void **state) {
  (void)state;
  struct standin_program program;
  struct tandem_load *load;
  const struct tandem_spec second = {"target_device", "cuda:1", 6}, third = {"target_device", "cuda:2", 6};
  const struct tandem_option first = {"target_device", "cuda:0"};
  const struct tandem_load_desc to_second = {.compile_specs = &second, .compile_spec_count = 1};
  const struct tandem_load_desc to_third = {.compile_specs = &third, .compile_spec_count = 1};
  struct tandem_load_desc to_first = to_second;
  to_first.options = &first;
  to_first.option_count = 1;
  open_program(&program, STANDIN_ROWS, false);
  struct tandem_load *there = must_load_with(&program, to_second);
  assert_string_equal(info_of(there).device, "cuda:1");
  assert_runs(there, &program);
  assert_int_equal(standin->memory_used(0), 0);
  assert_true(standin->memory_used(1) > 0);
  struct tandem_load *here = must_load_with(&program, to_first);
  assert_string_equal(info_of(here).device, "cuda:0");
  assert_true(standin->memory_used(0) > 0);
  assert_engines(2);
  assert_runs(here, &program);
  assert_runs(there, &program);
  assert_int_equal(try_load(&program, to_third, &load), TANDEM_UNSUPPORTED);
  assert_non_null(strstr(error.message, "asks for CUDA device 2, this machine has the devices 0 to 1"));
  tandem_load_destroy(there);
  tandem_load_destroy(here);
  standin_program_fini(&program);
}

/* ---------------------------------------------------------------- runs */

static void a_run_that_returns_early_is_done_when_its_event_says_so(void **state) {
  (void)state;
  struct standin_program program;
  void *primary, *popped, *stream, *done = NULL;
  float x[FLOATS_MAX], y[FLOATS_MAX] = {NAN}, expected[FLOATS_MAX];
  const float *inputs[] = {x};
  uint64_t in, out;
  open_program(&program, STANDIN_ROWS, false);
  struct tandem_load *load = must_load(&program);
  assert_runs(load, &program); /* the first run waits for itself */
  fill(x, 3);
  standin_program_expect(&program, inputs, 1, program.rows, expected);
  assert_int_equal(cuda.primary_retain(&primary, 0), 0);
  assert_int_equal(cuda.context_push(primary), 0);
  assert_int_equal(cuda.stream_create(&stream, 1), 0);
  assert_int_equal(cuda.allocate(&in, sizeof x), 0);
  assert_int_equal(cuda.allocate(&out, sizeof y), 0);
  assert_int_equal(cuda.copy_to(in, x, sizeof x), 0);
  standin->hold(true);
  if (run_with(load, (struct tandem_run_desc){.stream = stream, .return_early = true, .done = &done},
               (void *)(uintptr_t)in, (void *)(uintptr_t)out, program.rows) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(standin->wait_held(1));
  assert_int_equal(cuda.event_query(done), CU_NOT_READY);
  standin->hold(false);
  assert_int_equal(cuda.event_synchronize(done), 0);
  assert_int_equal(cuda.copy_from(y, out, sizeof y), 0);
  assert_memory_equal(y, expected, (size_t)program.rows * STANDIN_OUTPUTS * sizeof *y);
  tandem_load_destroy(load);
  cuda.release(in);
  cuda.release(out);
  cuda.stream_destroy(stream);
  cuda.context_pop(&popped);
  cuda.primary_release(0);
  standin_program_fini(&program);
}

/* An engine allocates in its run, which the stand-in driver cannot record, and from libtorch nothing is. */
static void a_run_that_cannot_be_recorded_goes_plainly(void **state) {
  (void)state;
  struct standin_program program;
  const struct tandem_option graph = {"cuda_graph", "true"};
  open_program(&program, STANDIN_PLAIN, false);
  struct tandem_load *load =
      must_load_with(&program, (struct tandem_load_desc){.options = &graph, .option_count = 1});
  for (int i = 0; i < 8; i++)
    assert_runs(load, &program);
  assert_int_equal(standin->calls("cuStreamBeginCapture") > 0, !torch);
  assert_int_equal(standin->calls("cuGraphLaunch"), 0);
  tandem_load_destroy(load);
  standin_program_fini(&program);
}

/* What libtorch's allocator keeps for a stream it gives to no other. */
static void loads_that_take_turns_share_a_stream_of_libtorch_unless_told_not_to(void **state) {
  (void)state;
  static const struct tandem_option alone = {"share_scratch", "false"};
  struct standin_program program;
  void *streams[2];
  open_program(&program, STANDIN_ROWS, false);
  for (size_t option = 0; option < 2; option++) {
    struct tandem_load *loads[2];
    for (int i = 0; i < 2; i++)
      loads[i] =
          must_load_with(&program, (struct tandem_load_desc){.options = &alone, .option_count = option});
    for (int i = 0; i < 4; i++) {
      assert_runs(loads[i % 2], &program);
      streams[i % 2] = shims->deleted_on();
      assert_non_null(streams[i % 2]);
    }
    assert_int_equal(streams[0] == streams[1], torch && option == 0);
    tandem_load_destroy(loads[0]);
    tandem_load_destroy(loads[1]);
  }
  standin_program_fini(&program);
}

static void what_the_engine_refuses_is_told_in_its_words(void **state) {
  (void)state;
  struct standin_program program;
  float x[FLOATS_MAX] = {0}, y[FLOATS_MAX];
  open_program(&program, STANDIN_PLAIN, false);
  struct tandem_load *load = must_load(&program);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(run_with(load, (struct tandem_run_desc){0}, x, y, program.rows + 1),
                     TANDEM_DEVICE_ERROR);
    assert_non_null(strstr(error.message, "run the program: input 0 has another dtype or shape"));
    assert_runs(load, &program);
  }
  tandem_load_destroy(load);
  standin_program_fini(&program);
}

/* ---------------------------------------------------------------- refusals */

static void assert_one_line(void) {
  assert_true(error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
}

static void rename_in(struct standin_program *program, const char *name, const char *other) {
  size_t size = strlen(name) + 1;
  assert_int_equal(strlen(other) + 1, size);
  char *at = memmem(program->so, program->so_size, name, size);
  assert_non_null(at);
  do
    memcpy(at, other, size);
  while ((at = memmem(program->so, program->so_size, name, size)) != NULL);
}

static void forget_bias(struct standin_program *program) {
  program->payload = standin_cuda_payload(program->constants, 1);
}

static void rename_bias(struct standin_program *program) {
  program->constants[1].fqn = "layer.bios";
  program->payload = standin_cuda_payload(program->constants, 2);
}

static void widen_weight(struct standin_program *program) {
  program->constants[0].sizes[0]++;
  program->payload = standin_cuda_payload(program->constants, 2);
}

static void lose_weight(struct standin_program *program) {
  program->named.entries[1].key = "another";
}

static void lose_library(struct standin_program *program) {
  program->named.entries[0].key = "another";
}

static void shorten_weight(struct standin_program *program) {
  program->named.entries[1].size -= sizeof(float);
}

static void empty_weights(struct standin_program *program) {
  program->named.entries[1].size = 0;
}

static void need_unknown_function(struct standin_program *program) {
  rename_in(program, "aoti_torch_get_sizes", "aoti_torch_get_sizex");
}

static void lack_entry_point(struct standin_program *program) {
  rename_in(program, "AOTInductorModelContainerGetNumInputs", "AOTInductorModelContainerGetNumInputx");
}

static void write_text(struct standin_program *program) {
  memset(program->so, 'x', program->so_size);
}

static void cut_library(struct standin_program *program) {
  program->named.entries[0].size /= 2;
}

static void need_newer_gpu(struct standin_program *program) {
  struct standin_bytes code = {.size = 0};
  standin_put_fat(&code, (uint32_t[]){120}, 1);
  program->so = realloc(program->so, program->so_size + code.size);
  assert_non_null(program->so);
  memcpy((char *)program->so + program->so_size, code.data, code.size);
  program->named.entries[0].data = program->so;
  program->named.entries[0].size = program->so_size + code.size;
}

static void leave_as_it_is(struct standin_program *program) {
  (void)program;
}

static void what_does_not_fit_is_told_in_a_line_and_leaves_nothing(void **state) {
  (void)state;
  static const struct {
    enum standin_engine engine;
    bool old;
    void (*change)(struct standin_program *program);
    enum tandem_status status;
    const char *words;
  } cases[] = {
      {STANDIN_PLAIN, false, forget_bias, TANDEM_BAD_PROGRAM, "needs the constant layer.bias"},
      {STANDIN_PLAIN, false, rename_bias, TANDEM_BAD_PROGRAM, "needs the constant layer.bias"},
      {STANDIN_PLAIN, false, widen_weight, TANDEM_BAD_PROGRAM, "does not lie in its 128 bytes"},
      {STANDIN_PLAIN, false, lose_weight, TANDEM_MISSING_DATA, "layer.weight\" (part 2 of 3)"},
      {STANDIN_PLAIN, true, lose_weight, TANDEM_MISSING_DATA, "\"0b_weights_blob\" (part 2 of 2)"},
      {STANDIN_PLAIN, false, lose_library, TANDEM_MISSING_DATA, "\"" STANDIN_SO_KEY "\" (part 1 of 3)"},
      {STANDIN_PLAIN, false, shorten_weight, TANDEM_BAD_PROGRAM,
       "has 124 bytes, constant \"layer.weight\" has 128"},
      {STANDIN_PLAIN, true, shorten_weight, TANDEM_BAD_PROGRAM,
       "has 140 bytes of weights, its library reads 144"},
      {STANDIN_PLAIN, true, empty_weights, TANDEM_BAD_PROGRAM,
       "has 0 bytes of weights, its library reads 144"},
      {STANDIN_PLAIN, false, need_unknown_function, TANDEM_UNSUPPORTED,
       "needs the function aoti_torch_get_sizex (one of 1 such), which "},
      {STANDIN_PLAIN, false, lack_entry_point, TANDEM_UNSUPPORTED,
       "has no AOTInductorModelContainerGetNumInputs: torch 2.9 or newer"},
      {STANDIN_PLAIN, false, write_text, TANDEM_UNSUPPORTED, "it is no shared library"},
      {STANDIN_PLAIN, false, cut_library, TANDEM_UNSUPPORTED, "its table of sections does not lie in it"},
      {STANDIN_PLAIN, false, need_newer_gpu, TANDEM_UNSUPPORTED, "compute capability 12.0, cuda:0"},
      {STANDIN_HOST_BUFFER, false, leave_as_it_is, TANDEM_UNSUPPORTED, "keeps the buffer relu on the CPU"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct standin_program program;
    struct tandem_load *load;
    open_program(&program, cases[i].engine, cases[i].old);
    cases[i].change(&program);
    enum tandem_status status = try_load(&program, (struct tandem_load_desc){0}, &load);
    if (status != cases[i].status || strstr(error.message, cases[i].words) == NULL)
      fail_msg("case %zu: %s: \"%s\" does not say \"%s\"", i, tandem_status_name(status), error.message,
               cases[i].words);
    assert_one_line();
    assert_nothing_is_left();
    standin_program_fini(&program);
  }
}

/* ---------------------------------------------------------------- a driver that fails */

/* One load and one run of it: what the first of them that failed said. A load whose run failed runs again. */
static enum tandem_status load_and_run(struct standin_program *program) {
  struct tandem_load *load;
  float x[FLOATS_MAX] = {0}, y[FLOATS_MAX];
  enum tandem_status status = try_load(program, (struct tandem_load_desc){0}, &load);
  if (status == TANDEM_OK)
    status = run_with(load, (struct tandem_run_desc){0}, x, y, program->rows);
  if (status != TANDEM_OK)
    assert_one_line();
  if (load != NULL && status != TANDEM_OK) {
    if (run_with(load, (struct tandem_run_desc){0}, x, y, program->rows) != TANDEM_OK)
      fail_msg("the run after the one that failed: %s", error.message);
    assert_int_equal(tandem_load_reset(load, &error), TANDEM_OK);
    assert_runs(load, program);
  }
  tandem_load_destroy(load);
  return status;
}

/* What loads hold of the device and the process. Buffers and streams that lie idle there may become fewer. */
struct held {
  struct standin_cuda_live live;
  int64_t tensors;
  uint64_t memory;
  size_t libraries;
};

static struct held read_held(void) {
  struct held held = {
      .tensors = shims->tensors(), .memory = td_memory_live(), .libraries = count_libraries()};
  standin->live(&held.live);
  return held;
}

static bool is_held(const struct held *before, const struct held *now) {
  const struct standin_cuda_live *was = &before->live, *is = &now->live;
  return is->device_blocks <= was->device_blocks && is->device_bytes <= was->device_bytes &&
         is->streams <= was->streams && is->events <= was->events && is->modules <= was->modules &&
         is->primary_retains == was->primary_retains && now->tensors == before->tensors &&
         now->memory == before->memory && now->libraries == before->libraries && standin->violations() == 0;
}

/* Each call of `function` in turn returns `code`; how many loads or runs failed. `told`: with a status that
 * says why, where memory is short. */
static unsigned fail_each_call(struct standin_program *program, const struct held *before,
                               const char *function, int code, bool told) {
  unsigned failures = 0;
  for (unsigned n = 1, reached = 1; reached; n++) {
    standin->reset();
    standin->fail_at(function, n, code);
    enum tandem_status status = load_and_run(program);
    failures += status != TANDEM_OK;
    if (told && code == CU_OUT_OF_MEMORY && status != TANDEM_OK && status != TANDEM_OUT_OF_MEMORY)
      fail_msg("no memory in call %u of %s is told as %s: %s", n, function, tandem_status_name(status),
               error.message);
    reached = standin->calls(function) >= n;
    standin->fail_at(NULL, 0, 0);
    struct held now = read_held();
    if (!is_held(before, &now)) {
      standin->report();
      fail_msg(
          "call %u of %s that fails with %d leaves %lld blocks of tandem's, %lld tensors, %zu segments of "
          "libraries, and of the above more than %llu blocks, %llu streams, %llu events or %llu modules",
          n, function, code, (long long)(now.memory - before->memory),
          (long long)(now.tensors - before->tensors), now.libraries - before->libraries,
          (unsigned long long)before->live.device_blocks, (unsigned long long)before->live.streams,
          (unsigned long long)before->live.events, (unsigned long long)before->live.modules);
    }
  }
  return failures;
}

static void every_call_of_the_driver_that_fails_leaves_nothing(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bool told; /* a pointer of which the driver does not tell is no memory problem */
  } functions[] = {
      {"cuDevicePrimaryCtxRetain", true}, {"cuEventCreate", true},       {"cuEventRecord", true},
      {"cuLaunchKernel", true},           {"cuMemAlloc", true},          {"cuMemAllocAsync", true},
      {"cuMemcpyDtoDAsync", true},        {"cuMemcpyDtoHAsync", true},   {"cuMemcpyHtoD", true},
      {"cuMemcpyHtoDAsync", true},        {"cuModuleGetFunction", true}, {"cuModuleLoadData", true},
      {"cuPointerGetAttributes", false},  {"cuStreamCreate", true},      {"cuStreamSynchronize", true}};
  enum { FUNCTIONS = sizeof functions / sizeof functions[0] };
  for (unsigned kind = torch ? 4 : 0; kind < 8; kind++) { /* torch differs where a device's streams stay */
    struct standin_program program, other;
    open_program(&program, kind & 1 ? STANDIN_STATE : STANDIN_ROWS, kind & 2);
    open_program(&other, STANDIN_PLAIN, false);
    struct tandem_load *stays = kind & 4 ? must_load(&other) : NULL; /* and with it the device's context */
    assert_int_equal(load_and_run(&program), TANDEM_OK);             /* leaves buffers that lie idle */
    struct held before = read_held();
    int code = (kind ^ kind >> 2) & 1 ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
    unsigned failures = 0;
    for (size_t i = 0; i < FUNCTIONS; i++)
      failures += fail_each_call(&program, &before, functions[i].name, code, functions[i].told);
    assert_true(failures > FUNCTIONS);
    if (stays != NULL)
      assert_runs(stays, &other);
    tandem_load_destroy(stays);
    standin_program_fini(&other);
    standin_program_fini(&program);
  }
}

/* Of a lost device nothing is released, an engine's container not either: that is no leak of tandem's. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static void of_a_device_that_was_reset_everything_is_forgotten(void **state) {
  (void)state;
  static const char *const released[] = {"cuMemFree", "cuMemFreeAsync", "cuEventDestroy", "cuStreamDestroy",
                                         "cuModuleUnload"};
  struct standin_program program;
  float x[FLOATS_MAX] = {0}, y[FLOATS_MAX];
  open_program(&program, STANDIN_PLAIN, false);
  if (__lsan_disable)
    __lsan_disable();
  struct tandem_load *one = must_load(&program), *two = must_load(&program);
  if (__lsan_enable)
    __lsan_enable();
  assert_runs(one, &program);
  assert_int_equal(reset_device(0), 0);
  assert_int_equal(run_with(one, (struct tandem_run_desc){0}, x, y, program.rows), TANDEM_DEVICE_LOST);
  assert_int_equal(run_with(two, (struct tandem_run_desc){0}, x, y, program.rows), TANDEM_DEVICE_LOST);
  struct tandem_load *fresh = must_load(&program);
  assert_runs(fresh, &program);
  assert_engines(2);
  standin->reset();
  tandem_load_destroy(one);
  tandem_load_destroy(two);
  for (size_t i = 0; i < sizeof released / sizeof released[0]; i++)
    assert_int_equal(standin->calls(released[i]), 0);
  assert_runs(fresh, &program);
  tandem_load_destroy(fresh);
  standin_program_fini(&program);
  assert_true(count_libraries() > libraries_before); /* whose code may be called by what was forgotten */
  libraries_before = count_libraries();
}

static int warm_up(void **state) {
  (void)state;
  struct standin_program program; /* what is made once in a process is there afterwards */
  open_program(&program, STANDIN_STATE, false);
  for (int device = 0; device < 2; device++) {
    const struct tandem_option option = {"target_device", device ? "cuda:1" : "cuda:0"};
    struct tandem_load *load =
        must_load_with(&program, (struct tandem_load_desc){.options = &option, .option_count = 1});
    assert_runs(load, &program);
    tandem_load_destroy(load);
  }
  standin_program_fini(&program);
  return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(int argc, char **argv) {
  torch = argc > 1 && strcmp(argv[1], "torch") == 0;
  const struct CMUnitTest tests[] = {
      TEST(both_forms_give_the_same_numbers),
      TEST(equal_keys_share_where_their_data_is_equal),
      TEST(loads_share_the_weights_and_the_gpu_code_and_step_apart),
      TEST(a_program_goes_to_the_device_that_its_spec_or_an_option_names),
      TEST(a_run_that_returns_early_is_done_when_its_event_says_so),
      TEST(a_run_that_cannot_be_recorded_goes_plainly),
      TEST(loads_that_take_turns_share_a_stream_of_libtorch_unless_told_not_to),
      TEST(what_the_engine_refuses_is_told_in_its_words),
      TEST(what_does_not_fit_is_told_in_a_line_and_leaves_nothing),
      TEST(every_call_of_the_driver_that_fails_leaves_nothing),
      TEST(of_a_device_that_was_reset_everything_is_forgotten),
  };
  char why[256];
  if (!standin_aoti_start(torch, &standin, &shims) || !driver_open(&cuda, why, sizeof why))
    return fprintf(stderr, "no stand-in driver or shims\n"), 1;
  void *address =
      dlsym(dlopen(getenv("TANDEM_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL), "cuDevicePrimaryCtxReset_v2");
  memcpy(&reset_device, &address, sizeof address);
  return cmocka_run_group_tests(tests, warm_up, NULL);
}
