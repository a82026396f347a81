/* What the AOTInductor vendor promises beyond the conformance suite, on the CPU with real engines: state of
 * two loads apart, refusals that say what to do, what a second load costs, engines beside one another.
 */
#include "aotinductor_model.h"
#include "base.h"

#include <dirent.h>
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WIDTH = 16, LIBRARY = 16 };

static enum tandem_status try_load(const void *payload, size_t size, const struct tandem_option *options,
                                   size_t option_count, struct tandem_load **load,
                                   struct tandem_error *error) {
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "TandemAotiBackend",
                                  .payload = payload,
                                  .payload_size = size,
                                  .options = options,
                                  .option_count = option_count};
  return tandem_load_create(&desc, load, error);
}

static struct tandem_load *load_bytes(const void *payload, size_t size) {
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  if (try_load(payload, size, NULL, 0, &load, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  return load;
}

static struct aotinductor_model read_model(const char *name) {
  struct aotinductor_model model;
  assert_true(aotinductor_model_init(&model, name, 0, 0, false));
  return model;
}

static struct tandem_load_info info_of(const struct tandem_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(load, &info, NULL), TANDEM_OK);
  return info;
}

static void assert_message(const struct tandem_error *error, const char *words) {
  if (strstr(error->message, words) == NULL || strchr(error->message, '\n') != NULL)
    fail_msg("\"%s\" does not say \"%s\" in one line", error->message, words);
}

/* ---------------------------------------------------------------- a key-value cache */

static void step(struct tandem_load *load, int64_t at, float seed, float *y) {
  float x[WIDTH];
  struct tandem_error error = {0};
  for (size_t i = 0; i < WIDTH; i++)
    x[i] = seed + (float)i / WIDTH;
  struct tandem_tensor inputs[] = {
      {.data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, WIDTH}},
      {.data = &at, .size = sizeof at, .dtype = TANDEM_INT64, .rank = 1, .shape = {1}}};
  struct tandem_tensor output = {
      .data = y, .size = WIDTH * sizeof *y, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, WIDTH}};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = inputs, .input_count = 2, .outputs = &output, .output_count = 1};
  memset(y, 0xff, WIDTH * sizeof *y);
  if (tandem_load_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
}

/* What `count` steps of a load of its own give, one after the other. */
static void step_alone(const struct aotinductor_model *model, float seed, size_t count, float (*y)[WIDTH]) {
  struct tandem_load *load = load_bytes(model->payload, model->payload_size);
  for (size_t i = 0; i < count; i++)
    step(load, (int64_t)i, seed + (float)i, y[i]);
  tandem_load_destroy(load);
}

static void two_loads_of_a_cache_step_apart(void **state) {
  (void)state;
  enum { STEPS = 6 };
  struct aotinductor_model model = read_model("cache");
  float first[STEPS][WIDTH], second[STEPS][WIDTH], y[WIDTH];
  step_alone(&model, 0.25f, STEPS, first);
  step_alone(&model, -1.5f, STEPS, second);
  assert_memory_not_equal(first[STEPS - 1], second[STEPS - 1], sizeof y);
  struct tandem_load *a = load_bytes(model.payload, model.payload_size);
  struct tandem_load *b = load_bytes(model.payload, model.payload_size);
  assert_int_equal(info_of(a).engine_id, info_of(b).engine_id);
  /* b lags two steps, so that nothing of the two is ever equal. */
  for (size_t i = 0; i < STEPS + 2; i++) {
    if (i < STEPS) {
      step(a, (int64_t)i, 0.25f + (float)i, y);
      assert_memory_equal(y, first[i], sizeof y);
    }
    if (i >= 2) {
      step(b, (int64_t)i - 2, -1.5f + (float)(i - 2), y);
      assert_memory_equal(y, second[i - 2], sizeof y);
    }
  }
  assert_int_equal(tandem_load_reset(a, NULL), TANDEM_OK);
  step(a, 0, 0.25f, y);
  assert_memory_equal(y, first[0], sizeof y);
  step(b, STEPS, -1.5f + STEPS, y); /* the other's reset took nothing from it */
  struct tandem_load *fresh = load_bytes(model.payload, model.payload_size);
  step(fresh, 0, 0.25f, y);
  assert_memory_equal(y, first[0], sizeof y);
  tandem_load_destroy(a);
  tandem_load_destroy(fresh);
  tandem_load_destroy(b);
  aotinductor_model_fini(&model);
}

/* ---------------------------------------------------------------- fork */

static void a_child_of_a_process_that_ran_is_refused_its_loads(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("cache");
  float y[1][WIDTH];
  step_alone(&model, 0.25f, 1, y);
  pid_t child = fork();
  if (child == 0) {
    struct tandem_load *load = NULL;
    struct tandem_error error = {0};
    alarm(20); /* instead of waiting for ever */
    enum tandem_status status = try_load(model.payload, model.payload_size, NULL, 0, &load, &error);
    _exit(status == TANDEM_UNAVAILABLE && strstr(error.message, "was forked from process") != NULL ? 0 : 1);
  }
  assert_true(child > 0);
  int end = -1;
  assert_int_equal(waitpid(child, &end, 0), child);
  assert_int_equal(end, 0);
  step_alone(&model, 0.25f, 1, y);
  aotinductor_model_fini(&model);
}

/* ---------------------------------------------------------------- payloads that are changed */

/* Puts `text` in place of as many bytes of the metadata, which begin with `key`. */
static void edit(struct aotinductor_model *model, const char *key, const char *text) {
  char *at = memmem(model->payload, model->payload_size, key, strlen(key));
  assert_non_null(at);
  memcpy(at, text, strlen(text));
}

static void assert_refused(const struct aotinductor_model *model, enum tandem_status status,
                           const char *words) {
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  assert_int_equal(try_load(model->payload, model->payload_size, NULL, 0, &load, &error), status);
  assert_null(load);
  assert_message(&error, words);
}

static void a_program_that_does_not_tell_its_state_has_all_buffers_copied(void **state) {
  (void)state;
  float first[2][WIDTH], second[2][WIDTH], y[WIDTH];
  struct aotinductor_model model = read_model("cache");
  step_alone(&model, 0.5f, 2, first);
  step_alone(&model, -2.0f, 2, second);
  edit(&model, "\"mutable\"", "\"nothing\"");
  struct tandem_load *a = load_bytes(model.payload, model.payload_size);
  struct tandem_load *b = load_bytes(model.payload, model.payload_size);
  for (int64_t i = 0; i < 2; i++) {
    step(a, i, 0.5f + (float)i, y);
    assert_memory_equal(y, first[i], sizeof y);
    step(b, i, -2.0f + (float)i, y);
    assert_memory_equal(y, second[i], sizeof y);
  }
  assert_true(info_of(b).shared);
  tandem_load_destroy(a);
  tandem_load_destroy(b);
  aotinductor_model_fini(&model);
}

static void state_that_the_library_does_not_have_is_refused(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("cache");
  edit(&model, "\"keys\"", "\"kexs\"");
  assert_refused(&model, TANDEM_BAD_PROGRAM, "runs write to 2 of its constants");
  aotinductor_model_fini(&model);
}

static void a_program_of_a_newer_torch_or_another_processor_is_refused(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("plain");
  edit(&model, "\"torch\": \"2", "\"torch\": \"9");
  assert_refused(&model, TANDEM_UNSUPPORTED, "was compiled by torch 9.");
  aotinductor_model_fini(&model);
  model = read_model("plain");
  edit(&model, "\"features\": \"", "\"features\": \"Q");
  assert_refused(&model, TANDEM_UNSUPPORTED, "which this one lacks");
  aotinductor_model_fini(&model);
}

/* The file's offset of the library in a payload. */
static char *library_of(const struct aotinductor_model *model) {
  uint64_t offset;
  memcpy(&offset, (char *)model->payload + LIBRARY, sizeof offset);
  return (char *)model->payload + offset;
}

/* A library that was compiled like this, rather than damaged: the program does not tell its sum. */
static struct aotinductor_model read_model_to_edit(const char *name) {
  struct aotinductor_model model = read_model(name);
  edit(&model, "\"library_sha256\"", "\"library_sha25x\"");
  return model;
}

static void a_library_that_was_damaged_is_not_opened(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("plain");
  edit(&model, "aoti_torch_get_data_ptr", "aoti_torch_get_datX_ptr");
  assert_refused(&model, TANDEM_BAD_PROGRAM, "the program is damaged");
  aotinductor_model_fini(&model);
}

static void a_function_that_torch_lacks_is_named(void **state) {
  (void)state;
  struct aotinductor_model model = read_model_to_edit("plain");
  edit(&model, "aoti_torch_get_data_ptr", "aoti_torch_get_datX_ptr");
  assert_refused(&model, TANDEM_UNSUPPORTED, "needs the function aoti_torch_get_datX_ptr");
  aotinductor_model_fini(&model);
}

static void an_entry_point_that_the_library_lacks_is_named(void **state) {
  (void)state;
  struct aotinductor_model model = read_model_to_edit("plain");
  edit(&model, "AOTInductorModelContainerRunSingleThreaded", "AOTInductorModelContainerRunSingleThreadeX");
  assert_refused(&model, TANDEM_UNSUPPORTED, "has no AOTInductorModelContainerRunSingleThreaded");
  aotinductor_model_fini(&model);
}

static void libraries_that_are_none_are_refused(void **state) {
  (void)state;
  static const struct {
    size_t at;
    unsigned char byte;
    const char *words;
  } cases[] = {
      {0, 'X', "no shared library"},
      {EI_CLASS, ELFCLASS32, "no shared library"},
      {offsetof(Elf64_Ehdr, e_machine), 0xfe, "another kind of processor"},
      {offsetof(Elf64_Ehdr, e_shentsize), 1, "no table of sections"},
      {offsetof(Elf64_Ehdr, e_shoff) + 6, 0xff, "does not lie in it"},
      {offsetof(Elf64_Ehdr, e_shnum), 1, "no table of symbols"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct aotinductor_model model = read_model_to_edit("plain");
    library_of(&model)[cases[i].at] = (char)cases[i].byte;
    assert_refused(&model, TANDEM_UNSUPPORTED, cases[i].words);
    aotinductor_model_fini(&model);
  }
}

static void weights_that_are_too_few_are_refused(void **state) {
  (void)state;
  enum { WEIGHTS_SIZE = 40 };
  struct aotinductor_model model = read_model("plain");
  uint64_t size;
  memcpy(&size, (char *)model.payload + WEIGHTS_SIZE, sizeof size);
  size -= 1;
  memcpy((char *)model.payload + WEIGHTS_SIZE, &size, sizeof size);
  assert_refused(&model, TANDEM_BAD_PROGRAM, "bytes of weights");
  aotinductor_model_fini(&model);
}

/* ---------------------------------------------------------------- options */

static void keep_line(void *user, enum tandem_log_level level, const char *line) {
  char *kept = user;
  (void)level;
  if (strstr(line, "weight_streaming_budget") != NULL)
    snprintf(kept, 256, "%s", line);
}

static void a_budget_is_ignored_by_name(void **state) {
  (void)state;
  char line[256] = "";
  struct aotinductor_model model = read_model("plain");
  struct tandem_load *load = NULL, *other = load_bytes(model.payload, model.payload_size);
  const struct tandem_option options[] = {{"weight_streaming_budget", "1000"}, {"log_level", "info"}};
  tandem_set_log_sink(keep_line, line);
  assert_int_equal(try_load(model.payload, model.payload_size, options, 2, &load, NULL), TANDEM_OK);
  tandem_set_log_sink(NULL, NULL);
  assert_non_null(strstr(line, "ignored"));
  assert_true(info_of(load).shared);
  assert_int_equal(info_of(load).budget, -1);
  tandem_load_destroy(load);
  tandem_load_destroy(other);
  aotinductor_model_fini(&model);
}

static void options_of_other_vendors_are_refused(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("plain");
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  const struct tandem_option option = {"num_streams", "2"};
  assert_int_equal(try_load(model.payload, model.payload_size, &option, 1, &load, &error), TANDEM_BAD_OPTION);
  assert_message(&error, "num_streams");
  aotinductor_model_fini(&model);
}

static void a_device_that_the_program_is_not_for_is_refused(void **state) {
  (void)state;
  static const char *const devices[] = {"cuda", "cuda:1", "CPU", "cpu:0", "gpu"};
  struct aotinductor_model model = read_model("plain");
  struct tandem_error error = {0};
  struct tandem_load *load = NULL;
  for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
    const struct tandem_option option = {"device", devices[i]};
    assert_int_equal(try_load(model.payload, model.payload_size, &option, 1, &load, &error),
                     TANDEM_BAD_OPTION);
    assert_message(&error, "was compiled for cpu");
  }
  const struct tandem_option own = {"device", "cpu"};
  assert_int_equal(try_load(model.payload, model.payload_size, &own, 1, &load, &error), TANDEM_OK);
  struct tandem_load *other = load_bytes(model.payload, model.payload_size);
  assert_int_equal(info_of(load).engine_id, info_of(other).engine_id);
  tandem_load_destroy(load);
  tandem_load_destroy(other);
  aotinductor_model_fini(&model);
}

/* ---------------------------------------------------------------- what loads cost */

/* Bytes of private memory of this process. */
static long private_bytes(void) {
  char line[256];
  long anonymous = 0, number;
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "Anonymous: %ld kB", &number) == 1)
      anonymous = number * 1024;
  fclose(file);
  return anonymous;
}

static void run_large(struct tandem_load *load, float *y) {
  static float x[2048];
  struct tandem_error error = {0};
  for (size_t i = 0; i < 2048; i++)
    x[i] = (float)(i % 17) / 8.0f - 1.0f;
  struct tandem_tensor input = {
      .data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, 2048}};
  struct tandem_tensor output = {
      .data = y, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, 2048}};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  if (tandem_load_run(load, &run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
}

static void a_second_load_costs_no_weights(void **state) {
  (void)state;
  enum { LOADS = 4, MIB = 1 << 20 };
  static float first[2048], y[2048];
  struct aotinductor_model model = read_model("large");
  long before = private_bytes();
  struct tandem_load *loads[LOADS] = {load_bytes(model.payload, model.payload_size)};
  run_large(loads[0], first);
  long one = private_bytes() - before;
  assert_true(one > 60L * MIB); /* the weights are 64 MiB */
  before = private_bytes();
  for (size_t i = 1; i < LOADS; i++) {
    loads[i] = load_bytes(model.payload, model.payload_size);
    run_large(loads[i], y);
    assert_memory_equal(y, first, sizeof y);
  }
  long more = private_bytes() - before;
  print_message("first load %.1f MiB, %d more loads %.2f MiB together\n", (double)one / MIB, LOADS - 1,
                (double)more / MIB);
#ifndef __SANITIZE_ADDRESS__ /* whose quarantine keeps what was freed */
  assert_true(more < 4L * MIB);
#endif
  struct tandem_load_info info = info_of(loads[3]);
  assert_true(info.shared && !info.engine_bytes_estimated);
  assert_true(info.engine_bytes > 64u * MIB && info.engine_bytes < 72u * MIB);
  assert_int_equal(info.device_bytes, 0);
  for (size_t i = 0; i < LOADS; i++)
    tandem_load_destroy(loads[i]);
  aotinductor_model_fini(&model);
}

/* Mappings of engines' libraries in this process. */
static int mapped_engines(void) {
  char line[4096];
  int count = 0;
  FILE *file = fopen("/proc/self/maps", "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file) != NULL)
    count += strstr(line, "tandem-engine") != NULL;
  fclose(file);
  return count;
}

static int open_files(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder) != NULL)
    count++;
  closedir(folder);
  return count;
}

static void the_last_load_unmaps_the_library(void **state) {
  (void)state;
  struct aotinductor_model models[] = {read_model("plain"), read_model("dynamic")};
  int before = mapped_engines(), files = open_files();
  for (int round = 0; round < 20; round++) {
    struct tandem_load *a = load_bytes(models[0].payload, models[0].payload_size);
    int one = mapped_engines();
    assert_true(one > before);
    struct tandem_load *b = load_bytes(models[1].payload, models[1].payload_size);
    assert_true(info_of(a).engine_id != info_of(b).engine_id);
    assert_true(mapped_engines() > one); /* a library of its own, though files have one number */
    assert_int_equal(open_files(), files);
    tandem_load_destroy(round % 2 ? a : b);
    tandem_load_destroy(round % 2 ? b : a);
  }
  assert_int_equal(mapped_engines(), before);
  aotinductor_model_fini(&models[0]);
  aotinductor_model_fini(&models[1]);
}

/* ---------------------------------------------------------------- tensors */

static void dtypes_and_passed_inputs_come_out_right(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("tables");
  struct tandem_load *load = load_bytes(model.payload, model.payload_size);
  float a[2][3] = {{1, 2, 3}, {4, 5, 6}}, turned[3][2], same[2][3];
  int64_t b[4] = {1, -2, INT64_MAX - 1, 0}, more[4];
  uint16_t c[2] = {0x3f80, 0};
  struct tandem_tensor inputs[] = {
      {.data = a, .size = sizeof a, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 3}},
      {.data = b, .size = sizeof b, .dtype = TANDEM_INT64, .rank = 1, .shape = {4}},
      {.data = c, .size = sizeof c, .dtype = TANDEM_BFLOAT16, .rank = 1, .shape = {2}}};
  struct tandem_tensor outputs[] = {
      {.data = turned, .size = sizeof turned, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {3, 2}},
      {.data = more, .size = sizeof more, .dtype = TANDEM_INT64, .rank = 1, .shape = {4}},
      {.data = same, .size = sizeof same, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 3}}};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = inputs, .input_count = 3, .outputs = outputs, .output_count = 3};
  struct tandem_error error = {0};
  for (int round = 0; round < 2; round++) {
    memset(turned, 0, sizeof turned);
    if (tandem_load_run(load, &run, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    for (int i = 0; i < 2; i++)
      for (int k = 0; k < 3; k++)
        assert_true(turned[k][i] == a[i][k]);
    for (int i = 0; i < 4; i++)
      assert_true(more[i] == b[i] + 1);
    assert_memory_equal(same, a, sizeof a);
  }
  tandem_load_destroy(load);
  aotinductor_model_fini(&model);
}

static void an_output_with_gaps_is_refused_and_says_what_to_export(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("turned");
  struct tandem_load *load = load_bytes(model.payload, model.payload_size);
  float x[2][3] = {{1, 2, 3}, {4, 5, 6}}, y[3][2];
  struct tandem_tensor input = {
      .data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {2, 3}};
  struct tandem_tensor output = {
      .data = y, .size = sizeof y, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {3, 2}};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  for (int round = 0; round < 2; round++) {
    struct tandem_error error = {0};
    assert_int_equal(tandem_load_run(load, &run, &error), TANDEM_UNSUPPORTED);
    assert_message(&error, "output 0");
    assert_message(&error, "is not contiguous: let the model return .contiguous() of it");
  }
  tandem_load_destroy(load);
  aotinductor_model_fini(&model);
}

static void a_run_that_fails_in_the_program_says_why_and_leaves_the_load_usable(void **state) {
  (void)state;
  struct aotinductor_model model = read_model("cache");
  struct tandem_load *load = load_bytes(model.payload, model.payload_size);
  float x[WIDTH] = {0}, y[WIDTH], fresh[1][WIDTH];
  int64_t at = 1000;
  struct tandem_tensor inputs[] = {
      {.data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, WIDTH}},
      {.data = &at, .size = sizeof at, .dtype = TANDEM_INT64, .rank = 1, .shape = {1}}};
  struct tandem_tensor output = {
      .data = y, .size = sizeof y, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {1, WIDTH}};
  struct tandem_run_desc run = {
      .struct_size = sizeof run, .inputs = inputs, .input_count = 2, .outputs = &output, .output_count = 1};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_run(load, &run, &error), TANDEM_DEVICE_ERROR);
  assert_message(&error, "index out of bounds");
  assert_int_equal(tandem_load_reset(load, NULL), TANDEM_OK);
  step_alone(&model, 2.0f, 1, fresh);
  step(load, 0, 2.0f, y);
  assert_memory_equal(y, fresh[0], sizeof y);
  tandem_load_destroy(load);
  aotinductor_model_fini(&model);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_loads_of_a_cache_step_apart),
      cmocka_unit_test(a_child_of_a_process_that_ran_is_refused_its_loads),
      cmocka_unit_test(a_program_that_does_not_tell_its_state_has_all_buffers_copied),
      cmocka_unit_test(state_that_the_library_does_not_have_is_refused),
      cmocka_unit_test(a_program_of_a_newer_torch_or_another_processor_is_refused),
      cmocka_unit_test(a_library_that_was_damaged_is_not_opened),
      cmocka_unit_test(a_function_that_torch_lacks_is_named),
      cmocka_unit_test(an_entry_point_that_the_library_lacks_is_named),
      cmocka_unit_test(libraries_that_are_none_are_refused),
      cmocka_unit_test(weights_that_are_too_few_are_refused),
      cmocka_unit_test(a_budget_is_ignored_by_name),
      cmocka_unit_test(options_of_other_vendors_are_refused),
      cmocka_unit_test(a_device_that_the_program_is_not_for_is_refused),
      cmocka_unit_test(a_second_load_costs_no_weights),
      cmocka_unit_test(the_last_load_unmaps_the_library),
      cmocka_unit_test(dtypes_and_passed_inputs_come_out_right),
      cmocka_unit_test(an_output_with_gaps_is_refused_and_says_what_to_export),
      cmocka_unit_test(a_run_that_fails_in_the_program_says_why_and_leaves_the_load_usable),
  };
  if (!aotinductor_start())
    return aotinductor_skip_status();
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
