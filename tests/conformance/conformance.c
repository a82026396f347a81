/* The suite proper. Outputs are filled with NaN before each run, so an output that was not written never
 * equals what is expected. Payloads are given to tandem as copies that are overwritten and freed as soon as
 * the load is made: a vendor, or tandem, that goes on reading them gives wrong numbers, or a report under a
 * sanitizer. Every test is bounded, so a hang ends with the test's name. Equal means equal bit by bit.
 */
#include "conformance.h"

#include "base.h"
#include "bound.h"
#include "scene.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 8 };

static const struct conformance *suite; /* of the program; set before any test runs */

/* ---------------------------------------------------------------- loads and runs */

static struct tandem_stats stats_now(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  struct tandem_error error = {0};
  assert_int_equal(tandem_stats_get(&stats, &error), TANDEM_OK);
  return stats;
}

static struct tandem_load_info info_of(const struct tandem_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_get_info(load, &info, &error), TANDEM_OK);
  return info;
}

/* `payload`: the model's, or what a test made of it. */
static enum tandem_status create_with(const struct conformance_model *model, const void *payload, size_t size,
                                      const struct tandem_option *options, size_t option_count,
                                      struct tandem_load **load, struct tandem_error *error) {
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = suite->vendor->backend,
                                  .payload = payload,
                                  .payload_size = size,
                                  .named_data = model->named_data,
                                  .options = options,
                                  .option_count = option_count};
  return tandem_load_create(&desc, load, error);
}

/* Pages of their own, so that a payload lies as it would in a program's segment. */
static void *copy_payload(const struct conformance_model *model) {
  void *copy = NULL;
  assert_int_equal(posix_memalign(&copy, 4096, model->payload_size), 0);
  memcpy(copy, model->payload, model->payload_size);
  return copy;
}

static enum tandem_status try_load(const struct conformance_model *model, struct tandem_load **load,
                                   struct tandem_error *error) {
  void *copy = copy_payload(model);
  enum tandem_status status = create_with(model, copy, model->payload_size, NULL, 0, load, error);
  memset(copy, 0xA5, model->payload_size);
  free(copy);
  return status;
}

static struct tandem_load *load_model(const struct conformance_model *model) {
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  if (try_load(model, &load, &error) != TANDEM_OK)
    fail_msg("%s: %s", model->name, error.message);
  assert_non_null(load);
  return load;
}

static struct tandem_load *load_private(const struct conformance_model *model) {
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  const struct tandem_option off = {"use_shared_engines", "false"};
  void *copy = copy_payload(model);
  if (create_with(model, copy, model->payload_size, &off, 1, &load, &error) != TANDEM_OK)
    fail_msg("%s: %s", model->name, error.message);
  memset(copy, 0xA5, model->payload_size);
  free(copy);
  return load;
}

static size_t floats_per_row(const struct conformance_model *model) {
  size_t count = 1;
  for (int32_t i = 1; i < model->rank; i++)
    count *= (size_t)model->shape[i];
  return count;
}

static int64_t usual_rows(const struct conformance_model *model) {
  return model->rows_min == model->rows_max ? model->shape[0] : (model->rows_min + model->rows_max + 1) / 2;
}

static void fill_input(const struct conformance_model *model, int64_t rows, unsigned seed, float *x) {
  size_t count = floats_per_row(model) * (size_t)rows;
  assert_true(count <= CONFORMANCE_FLOATS_MAX);
  for (size_t i = 0; i < count; i++)
    x[i] = (float)((i * 37 + seed * 101 + 11) % 128) / 64.0f - 1.0f;
}

static struct tandem_tensor input_tensor(const struct conformance_model *model, int64_t rows, float *x) {
  struct tandem_tensor tensor = {.data = x,
                                 .size = floats_per_row(model) * (size_t)rows * sizeof *x,
                                 .dtype = TANDEM_FLOAT32,
                                 .rank = model->rank};
  memcpy(tensor.shape, model->shape, sizeof tensor.shape);
  tensor.shape[0] = rows;
  return tensor;
}

static void fill_nan(float *y) {
  for (size_t i = 0; i < CONFORMANCE_FLOATS_MAX; i++)
    y[i] = NAN;
}

/* An output with room to spare and the rank and shape of the usual rows. */
static struct tandem_tensor output_tensor(const struct tandem_load *load, float *y) {
  const struct tandem_io *outputs;
  size_t count;
  tandem_load_io(load, NULL, NULL, &outputs, &count);
  struct tandem_tensor tensor = {
      .data = y, .size = CONFORMANCE_FLOATS_MAX * sizeof *y, .dtype = TANDEM_FLOAT32};
  if (count == 1 && outputs[0].rank > 0) {
    tensor.rank = outputs[0].rank;
    memcpy(tensor.shape, outputs[0].min, sizeof tensor.shape);
  }
  return tensor;
}

static enum tandem_status run_tensors(struct tandem_load *load, const struct tandem_tensor *x,
                                      struct tandem_tensor *y, struct tandem_error *error) {
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = x, .input_count = 1, .outputs = y, .output_count = 1};
  return tandem_load_run(load, &desc, error);
}

/* True when the run succeeded and every output float equals `expected`; usable on any thread. */
static bool run_equals(struct tandem_load *load, const struct conformance_model *model, float *x,
                       int64_t rows, const float *expected) {
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  if (!y)
    return false;
  fill_nan(y);
  struct tandem_tensor in = input_tensor(model, rows, x), out = output_tensor(load, y);
  struct tandem_error error = {0};
  enum tandem_status status = run_tensors(load, &in, &out, &error);
  size_t count = model->outputs_per_row * (size_t)rows;
  bool equal = status == TANDEM_OK && memcmp(y, expected, count * sizeof *y) == 0 && isnan(y[count]);
  if (status != TANDEM_OK)
    print_error("%s: %s\n", model->name, error.message);
  else if (!equal)
    for (size_t i = 0; i <= count; i++)
      if (i == count || memcmp(&y[i], &expected[i], sizeof *y) != 0) {
        print_error("%s: output %zu of %zu: expected %.9g, found %.9g\n", model->name, i, count,
                    i == count ? (double)NAN : (double)expected[i], (double)y[i]);
        break;
      }
  free(y);
  return equal;
}

struct sample {
  int64_t rows;
  float x[CONFORMANCE_FLOATS_MAX];
  float y[CONFORMANCE_FLOATS_MAX];
};

/* An input and what a fresh context gives for it. Owned, free() it. */
static struct sample *make_sample(const struct conformance_model *model, int64_t rows, unsigned seed) {
  struct sample *sample = malloc(sizeof *sample);
  assert_non_null(sample);
  sample->rows = rows;
  fill_input(model, rows, seed, sample->x);
  fill_nan(sample->y);
  const float *inputs[] = {sample->x};
  assert_true(model->outputs_per_row * (size_t)rows < CONFORMANCE_FLOATS_MAX);
  assert_true(model->expect(model->user, inputs, 1, rows, sample->y));
  return sample;
}

static void assert_runs(struct tandem_load *load, const struct conformance_model *model,
                        struct sample *sample) {
  assert_true(run_equals(load, model, sample->x, sample->rows, sample->y));
}

static int descriptor_count(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  assert_non_null(folder);
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

static int begin_clean(void **state) {
  (void)state;
  struct tandem_stats stats = stats_now();
  assert_int_equal(stats.loads, 0);
  assert_int_equal(stats.engines, 0);
  return 0;
}

static int end_clean(void **state) {
  td_memory_fail_at(0);
  begin_clean(state);
  bound_set("", 0);
  return 0;
}

/* ---------------------------------------------------------------- the table */

static void the_table_is_complete(void **state) {
  (void)state;
  const struct tandem_vendor *vendor = suite->vendor;
  assert_int_equal(vendor->abi_version, TANDEM_VENDOR_ABI);
  assert_int_equal(vendor->struct_size, sizeof *vendor);
  assert_true(vendor->name && *vendor->name && vendor->backend && *vendor->backend);
  assert_true(vendor->open && vendor->parse && vendor->payload_destroy && vendor->resolve && vendor->build &&
              vendor->engine_destroy && vendor->context_create && vendor->context_destroy && vendor->run);
  assert_true(vendor->option_count <= TD_VENDOR_OPTIONS_MAX);
  for (size_t i = 0; i < vendor->option_count; i++) {
    assert_non_null(vendor->options[i].name);
    assert_non_null(vendor->options[i].fallback);
    for (size_t j = 0; j < i; j++)
      assert_string_not_equal(vendor->options[i].name, vendor->options[j].name);
  }
}

static void count_fact(void *user, const char *key, const char *value) {
  assert_true(key && *key && value);
  ++*(size_t *)user;
}

static void a_payload_is_described_without_a_load(void **state) {
  (void)state;
  BOUND(20);
  size_t facts = 0;
  struct tandem_error error = {0};
  assert_int_equal(tandem_payload_describe(suite->vendor->name, suite->plain->payload,
                                           suite->plain->payload_size, count_fact, &facts, &error),
                   TANDEM_OK);
  assert_true(facts > 0);
}

static void a_cut_payload_is_refused(void **state) {
  (void)state;
  BOUND(60);
  size_t sizes[] = {0, 1, 7, 8, 15, 31, suite->plain->payload_size / 2, suite->plain->payload_size - 1};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    void *cut = malloc(sizes[i] ? sizes[i] : 1); /* of this size, so that a sanitizer sees a read past it */
    assert_non_null(cut);
    memcpy(cut, suite->plain->payload, sizes[i]);
    struct tandem_load *load = NULL;
    struct tandem_error error = {0};
    enum tandem_status status = create_with(suite->plain, cut, sizes[i], NULL, 0, &load, &error);
    free(cut);
    assert_null(load);
    if (status != TANDEM_BAD_PROGRAM && status != TANDEM_UNSUPPORTED && status != TANDEM_INVALID_ARGUMENT)
      fail_msg("cut to %zu bytes: %s (%s)", sizes[i], tandem_status_name(status), error.message);
    assert_true(error.message[0] != 0);
  }
}

/* ---------------------------------------------------------------- numbers */

static void outputs_are_the_vendors_own(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *models[] = {suite->plain, suite->twin, suite->dynamic};
  for (size_t i = 0; i < 3; i++) {
    struct sample *sample = make_sample(models[i], usual_rows(models[i]), 3);
    struct tandem_load *load = load_model(models[i]);
    for (int repeat = 0; repeat < 50; repeat++)
      assert_runs(load, models[i], sample);
    tandem_load_destroy(load);
    free(sample);
  }
}

static void inputs_and_outputs_are_described(void **state) {
  (void)state;
  BOUND(20);
  const struct conformance_model *model = suite->dynamic;
  struct tandem_load *load = load_model(model);
  const struct tandem_io *inputs, *outputs;
  size_t input_count, output_count;
  tandem_load_io(load, &inputs, &input_count, &outputs, &output_count);
  assert_int_equal(input_count, 1);
  assert_int_equal(output_count, 1);
  if (suite->tensors_unknown) {
    assert_true(inputs[0].rank < 0 && inputs[0].dtype < 0);
    assert_true(outputs[0].rank < 0 && outputs[0].dtype < 0);
    tandem_load_destroy(load);
    return;
  }
  assert_int_equal(inputs[0].rank, model->rank);
  assert_int_equal(inputs[0].dtype, TANDEM_FLOAT32);
  assert_int_equal(outputs[0].dtype, TANDEM_FLOAT32);
  assert_true(inputs[0].min[0] < inputs[0].max[0]);
  for (int32_t i = 1; i < model->rank; i++) {
    assert_int_equal(inputs[0].min[i], model->shape[i]);
    assert_int_equal(inputs[0].max[i], model->shape[i]);
  }
  tandem_load_io(load, NULL, NULL, NULL, NULL);
  tandem_load_destroy(load);
}

struct room {
  float *data;
  size_t size;
  int64_t rows;
  unsigned calls;
  enum tandem_status answer;
};

static enum tandem_status make_room(void *user, size_t output, struct tandem_tensor *tensor) {
  struct room *room = user;
  room->calls++;
  if (output != 0 || room->answer != TANDEM_OK)
    return room->answer;
  room->rows = tensor->rank > 0 ? tensor->shape[0] : -1;
  tensor->data = room->data;
  tensor->size = room->size;
  return TANDEM_OK;
}

static void a_dynamic_output_gets_its_real_shape(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *model = suite->dynamic;
  struct tandem_load *load = load_model(model);
  for (int64_t rows = model->rows_min > 0 ? model->rows_min : 1; rows <= model->rows_max; rows++) {
    struct sample *sample = make_sample(model, rows, (unsigned)rows);
    float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
    assert_non_null(y);
    fill_nan(y);
    struct room room = {.data = y, .size = CONFORMANCE_FLOATS_MAX * sizeof *y, .answer = TANDEM_OK};
    struct tandem_tensor in = input_tensor(model, rows, sample->x), out = output_tensor(load, NULL);
    out.size = 0; /* nothing fits: the vendor has to ask for room */
    struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                   .inputs = &in,
                                   .input_count = 1,
                                   .outputs = &out,
                                   .output_count = 1,
                                   .resize = make_room,
                                   .resize_user = &room};
    struct tandem_error error = {0};
    if (tandem_load_run(load, &desc, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
    assert_int_equal(room.calls, 1);
    assert_int_equal(room.rows, rows);
    assert_int_equal(out.shape[0], rows);
    assert_memory_equal(y, sample->y, model->outputs_per_row * (size_t)rows * sizeof *y);
    free(y);
    free(sample);
  }
  tandem_load_destroy(load);
}

static void a_refused_resize_ends_the_run_and_not_the_load(void **state) {
  (void)state;
  BOUND(20);
  const struct conformance_model *model = suite->dynamic;
  struct tandem_load *load = load_model(model);
  struct sample *sample = make_sample(model, usual_rows(model), 5);
  struct room room = {.answer = TANDEM_OUT_OF_MEMORY};
  struct tandem_tensor in = input_tensor(model, sample->rows, sample->x), out = output_tensor(load, NULL);
  out.size = 0;
  struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                 .inputs = &in,
                                 .input_count = 1,
                                 .outputs = &out,
                                 .output_count = 1,
                                 .resize = make_room,
                                 .resize_user = &room};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_run(load, &desc, &error), TANDEM_OUT_OF_MEMORY);
  assert_true(error.message[0] != 0);
  assert_runs(load, model, sample);
  free(sample);
  tandem_load_destroy(load);
}

/* ---------------------------------------------------------------- bytes and their lifetime */

static void a_mapped_payload_may_be_unmapped_and_unlinked(void **state) {
  (void)state;
  BOUND(20);
  const struct conformance_model *model = suite->plain;
  char path[] = "/tmp/tandem-conformance-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, model->payload, model->payload_size), (ssize_t)model->payload_size);
  void *map = mmap(NULL, model->payload_size, PROT_READ, MAP_SHARED, file, 0);
  assert_true(map != MAP_FAILED);
  close(file);
  struct tandem_load *load = NULL;
  struct tandem_error error = {0};
  if (create_with(model, map, model->payload_size, NULL, 0, &load, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  struct tandem_load_info info = info_of(load);
  munmap(map, model->payload_size);
  unlink(path);
  if (suite->vendor->flags & TANDEM_VENDOR_KEEPS_ENGINE_BYTES) {
    assert_int_equal(info.payload_bytes, scene_maps_twice() ? TANDEM_PAYLOAD_MAPPED : TANDEM_PAYLOAD_COPIED);
    assert_true(info.payload_bytes_size > 0);
  } else {
    assert_int_equal(info.payload_bytes, TANDEM_PAYLOAD_RELEASED);
    assert_int_equal(info.payload_bytes_size, 0);
  }
  struct sample *sample = make_sample(model, usual_rows(model), 1);
  assert_runs(load, model, sample);
  free(sample);
  tandem_load_destroy(load);
}

/* ---------------------------------------------------------------- sharing */

static void a_second_load_shares_the_engine(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *model = suite->plain;
  struct tandem_stats before = stats_now();
  struct tandem_load *first = load_model(model), *second = load_model(model);
  struct tandem_load *alone = load_private(model);
  struct tandem_stats after = stats_now();
  struct tandem_load_info info = info_of(second);
  assert_true(info.shared);
  assert_int_equal(info.users, 2);
  assert_int_equal(info.engine_id, info_of(first).engine_id);
  assert_int_not_equal(info.engine_id, info_of(alone).engine_id);
  assert_false(info_of(alone).shared);
  assert_int_equal(after.builds - before.builds, 2);
  assert_int_equal(after.hits - before.hits, 1);
  assert_int_equal(after.engines, 2);
  assert_int_equal(after.loads, 3);
  struct sample *sample = make_sample(model, usual_rows(model), 1);
  assert_runs(second, model, sample);
  assert_runs(first, model, sample);
  assert_runs(alone, model, sample);
  free(sample);
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  tandem_load_destroy(alone);
}

static void loads_go_in_any_order(void **state) {
  (void)state;
  BOUND(60);
  static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const struct conformance_model *model = suite->plain;
  struct sample *sample = make_sample(model, usual_rows(model), 2);
  for (int order = 0; order < 6; order++) {
    struct tandem_load *loads[3];
    for (int i = 0; i < 3; i++)
      loads[i] = load_model(model);
    for (int gone = 0; gone < 3; gone++) {
      tandem_load_destroy(loads[orders[order][gone]]);
      loads[orders[order][gone]] = NULL;
      assert_int_equal(stats_now().engines, gone < 2);
      for (int repeat = 0; repeat < 100; repeat++)
        for (int i = 0; i < 3; i++)
          if (loads[i])
            assert_runs(loads[i], model, sample);
    }
  }
  free(sample);
}

static void one_byte_makes_another_engine(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *models[] = {suite->plain, suite->twin};
  assert_int_equal(models[0]->payload_size, models[1]->payload_size);
  struct sample *samples[2];
  for (int i = 0; i < 2; i++)
    samples[i] = make_sample(models[i], usual_rows(models[i]), 6);
  assert_memory_not_equal(samples[0]->y, samples[1]->y, sizeof(float) * models[0]->outputs_per_row);
  for (int order = 0; order < 2; order++) {
    struct tandem_load *first = load_model(models[order]), *second = load_model(models[1 - order]);
    assert_int_equal(stats_now().engines, 2);
    assert_runs(first, models[order], samples[order]);
    assert_runs(second, models[1 - order], samples[1 - order]);
    tandem_load_destroy(first);
    assert_runs(second, models[1 - order], samples[1 - order]);
    tandem_load_destroy(second);
  }
  free(samples[0]);
  free(samples[1]);
}

/* ---------------------------------------------------------------- threads */

struct worker {
  const struct conformance_model *model;
  pthread_barrier_t *barrier;
  struct tandem_load *load; /* given, or made by the worker */
  struct sample *sample;
  unsigned runs;
  bool loads;
  bool passed;
};

static void *work(void *opaque) {
  struct worker *worker = opaque;
  struct tandem_error error = {0};
  pthread_barrier_wait(worker->barrier);
  if (worker->loads && try_load(worker->model, &worker->load, &error) != TANDEM_OK) {
    print_error("%s\n", error.message);
    return NULL;
  }
  worker->passed = true;
  for (unsigned i = 0; i < worker->runs && worker->passed; i++)
    worker->passed =
        run_equals(worker->load, worker->model, worker->sample->x, worker->sample->rows, worker->sample->y);
  return NULL;
}

static void work_together(struct worker *workers, unsigned count) {
  pthread_barrier_t barrier;
  pthread_t threads[2 * THREADS];
  pthread_barrier_init(&barrier, NULL, count);
  for (unsigned i = 0; i < count; i++) {
    workers[i].barrier = &barrier;
    assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (unsigned i = 0; i < count; i++)
    pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
  for (unsigned i = 0; i < count; i++)
    assert_true(workers[i].passed);
}

static void racing_loads_make_one_engine(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *model = suite->plain;
  struct sample *samples[2 * THREADS];
  for (unsigned i = 0; i < 2 * THREADS; i++)
    samples[i] = make_sample(model, usual_rows(model), i);
  for (unsigned round = 0; round < suite->rounds; round++) {
    struct worker workers[2 * THREADS] = {0};
    uint64_t builds = stats_now().builds;
    for (unsigned i = 0; i < 2 * THREADS; i++)
      workers[i] = (struct worker){.model = model, .sample = samples[i], .runs = 1, .loads = true};
    work_together(workers, 2 * THREADS);
    assert_int_equal(stats_now().builds, builds + 1);
    assert_int_equal(stats_now().engines, 1);
    for (unsigned i = 0; i < 2 * THREADS; i++)
      tandem_load_destroy(workers[i].load);
    assert_int_equal(stats_now().engines, 0);
  }
  for (unsigned i = 0; i < 2 * THREADS; i++)
    free(samples[i]);
}

static void two_contexts_run_at_once_as_private_engines_do(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *model = suite->plain;
  struct tandem_load *alone = load_private(model);
  struct worker workers[2];
  for (unsigned i = 0; i < 2; i++) {
    struct sample *sample = make_sample(model, usual_rows(model), 20 + i);
    float *y = malloc(sizeof sample->y);
    assert_non_null(y);
    for (int repeat = 0; repeat < 50;
         repeat++) { /* the private engine repeats itself, so equality means something */
      struct tandem_error error = {0};
      fill_nan(y);
      struct tandem_tensor in = input_tensor(model, sample->rows, sample->x), out = output_tensor(alone, y);
      assert_int_equal(run_tensors(alone, &in, &out, &error), TANDEM_OK);
      if (repeat > 0)
        assert_memory_equal(y, sample->y, sizeof sample->y);
      memcpy(sample->y, y, sizeof sample->y);
    }
    free(y);
    workers[i] = (struct worker){
        .model = model, .load = load_model(model), .sample = sample, .runs = 20 * suite->rounds};
  }
  assert_int_equal(info_of(workers[0].load).engine_id, info_of(workers[1].load).engine_id);
  work_together(workers, 2);
  for (unsigned i = 0; i < 2; i++) {
    tandem_load_destroy(workers[i].load);
    free(workers[i].sample);
  }
  tandem_load_destroy(alone);
}

static void one_load_serves_eight_threads(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *models[] = {suite->plain, suite->dynamic};
  for (int kind = 0; kind < 2; kind++) {
    const struct conformance_model *model = models[kind];
    struct tandem_load *load = load_model(model);
    struct worker workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
      int64_t rows = kind ? model->rows_max - (int64_t)i % model->rows_max : usual_rows(model);
      workers[i] = (struct worker){
          .model = model, .load = load, .sample = make_sample(model, rows, i), .runs = 10 * suite->rounds};
    }
    work_together(workers, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
      free(workers[i].sample);
    tandem_load_destroy(load);
  }
}

/* ---------------------------------------------------------------- state */

static bool step_equals(struct tandem_load *load, const struct conformance_model *model,
                        float (*inputs)[CONFORMANCE_FLOATS_MAX], size_t steps) {
  const float *list[CONFORMANCE_STEPS_MAX];
  for (size_t i = 0; i < steps; i++)
    list[i] = inputs[i];
  float *expected = malloc(CONFORMANCE_FLOATS_MAX * sizeof *expected);
  assert_non_null(expected);
  assert_true(model->expect(model->user, list, steps, usual_rows(model), expected));
  bool equal = run_equals(load, model, inputs[steps - 1], usual_rows(model), expected);
  free(expected);
  return equal;
}

static void state_stays_in_its_load_and_reset_clears_it(void **state) {
  (void)state;
  const struct conformance_model *model = suite->stateful;
  if (!model)
    skip();
  BOUND(30);
  static float inputs[4][CONFORMANCE_FLOATS_MAX];
  for (unsigned i = 0; i < 4; i++)
    fill_input(model, usual_rows(model), 40 + i, inputs[i]);
  struct tandem_load *one = load_model(model), *two = load_model(model);
  assert_int_equal(info_of(one).engine_id, info_of(two).engine_id);
  for (size_t steps = 1; steps <= 3; steps++)
    assert_true(step_equals(one, model, inputs, steps));
  assert_true(step_equals(two, model, inputs, 1));
  assert_true(step_equals(one, model, inputs, 4));
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_reset(one, &error), TANDEM_OK);
  assert_true(step_equals(two, model, inputs, 2));
  assert_true(step_equals(one, model, inputs, 1));
  tandem_load_destroy(one);
  assert_true(step_equals(two, model, inputs, 3));
  tandem_load_destroy(two);
}

static void reset_of_a_stateless_model_is_harmless(void **state) {
  (void)state;
  BOUND(20);
  struct tandem_load *load = load_model(suite->plain);
  struct sample *sample = make_sample(suite->plain, usual_rows(suite->plain), 8);
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_reset(load, &error), TANDEM_OK);
  assert_runs(load, suite->plain, sample);
  assert_int_equal(tandem_load_reset(load, &error), TANDEM_OK);
  assert_runs(load, suite->plain, sample);
  free(sample);
  tandem_load_destroy(load);
}

/* ---------------------------------------------------------------- errors */

static void assert_refused(struct tandem_load *load, const struct tandem_tensor *x, size_t input_count,
                           struct tandem_tensor *y, size_t output_count, const char *named) {
  struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                 .inputs = x,
                                 .input_count = input_count,
                                 .outputs = y,
                                 .output_count = output_count};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_run(load, &desc, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(error.code, TANDEM_INVALID_ARGUMENT);
  if (!strstr(error.message, named))
    fail_msg("\"%s\" does not name %s", error.message, named);
}

static void wrong_tensors_are_named_and_leave_the_load_usable(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *model = suite->plain;
  struct tandem_load *load = load_model(model);
  struct sample *sample = make_sample(model, usual_rows(model), 4);
  const struct tandem_io *inputs, *outputs;
  tandem_load_io(load, &inputs, NULL, &outputs, NULL);
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  assert_non_null(y);
  fill_nan(y);
  struct tandem_tensor good = input_tensor(model, sample->rows, sample->x), out = output_tensor(load, y);
  struct tandem_tensor bad[2] = {good, good};

  assert_refused(load, &good, 0, &out, 1, "input");
  assert_refused(load, bad, 2, &out, 1, "input");
  assert_refused(load, &good, 1, &out, 0, "output");
  if (!suite->tensors_unknown) {
    bad[0].rank--;
    assert_refused(load, bad, 1, &out, 1, inputs[0].name);
    bad[0] = good;
    bad[0].dtype = TANDEM_INT32;
    assert_refused(load, bad, 1, &out, 1, inputs[0].name);
    bad[0] = good;
  }
  bad[0].rank = TANDEM_MAX_RANK + 1;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].rank = -1;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].dtype = 99;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].shape[0]++;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].shape[0] = -1;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].shape[0] = INT64_MAX; /* the product wraps */
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].size -= sizeof(float);
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  bad[0] = good;
  bad[0].data = NULL;
  assert_refused(load, bad, 1, &out, 1, inputs[0].name);
  out.size = model->outputs_per_row * (size_t)sample->rows * sizeof *y - 1;
  assert_refused(load, &good, 1, &out, 1, outputs[0].name);
  out = output_tensor(load, y);
  out.dtype = TANDEM_FLOAT64;
  assert_refused(load, &good, 1, &out, 1, outputs[0].name);
  out = output_tensor(load, NULL);
  assert_refused(load, &good, 1, &out, 1, outputs[0].name);
  for (size_t i = 0; i < CONFORMANCE_FLOATS_MAX; i++)
    assert_true(isnan(y[i]));

  assert_runs(load, model, sample);
  free(y);
  free(sample);
  tandem_load_destroy(load);
}

/* Field case 23: right numbers, or an error that names the input and says that the layout is the reason. */
static void run_layout(struct tandem_load *load, const struct conformance_model *model, struct sample *sample,
                       struct tandem_tensor *in, const float *expected) {
  const struct tandem_io *inputs;
  tandem_load_io(load, &inputs, NULL, NULL, NULL);
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  assert_non_null(y);
  fill_nan(y);
  struct tandem_tensor out = output_tensor(load, y);
  struct tandem_error error = {0};
  enum tandem_status status = run_tensors(load, in, &out, &error);
  if (status == TANDEM_OK) {
    assert_memory_equal(y, expected, model->outputs_per_row * (size_t)sample->rows * sizeof *y);
  } else {
    assert_int_equal(status, TANDEM_INVALID_ARGUMENT);
    if (!strstr(error.message, inputs[0].name) || !strstr(error.message, "stride"))
      fail_msg("\"%s\" names neither the input nor its strides", error.message);
  }
  free(y);
  assert_runs(load, model, sample);
}

static void layouts_give_right_numbers_or_an_error(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *model = suite->dynamic; /* rank >= 2 */
  assert_true(model->rank >= 2);
  struct tandem_load *load = load_model(model);
  struct sample *sample = make_sample(model, usual_rows(model), 9);
  size_t columns = floats_per_row(model), rows = (size_t)sample->rows;
  float *space = calloc(2 * CONFORMANCE_FLOATS_MAX, sizeof *space);
  assert_non_null(space);

  int64_t plain[TANDEM_MAX_RANK];
  plain[model->rank - 1] = 1;
  for (int32_t i = model->rank - 1; i > 0; i--)
    plain[i - 1] = plain[i] * model->shape[i];
  struct tandem_tensor in = input_tensor(model, sample->rows, sample->x);
  in.strides = plain;
  struct tandem_error error = {0};
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  assert_non_null(y);
  struct tandem_tensor out = output_tensor(load, y);
  assert_int_equal(run_tensors(load, &in, &out, &error), TANDEM_OK); /* strides that say contiguous */
  assert_memory_equal(y, sample->y, model->outputs_per_row * rows * sizeof *y);
  free(y);

  /* dimension 0 fastest: the layout that a transposed view has */
  int64_t turned[TANDEM_MAX_RANK];
  memcpy(turned, plain, sizeof turned);
  turned[0] = 1;
  for (int32_t i = 1; i < model->rank; i++)
    turned[i] = plain[i] * (int64_t)rows;
  for (size_t r = 0; r < rows; r++)
    for (size_t c = 0; c < columns; c++)
      space[c * rows + r] = sample->x[r * columns + c];
  in = input_tensor(model, sample->rows, space);
  in.strides = turned;
  run_layout(load, model, sample, &in, sample->y);

  /* rows of a wider tensor, from an offset */
  int64_t sliced[TANDEM_MAX_RANK];
  memcpy(sliced, plain, sizeof sliced);
  sliced[0] = 2 * plain[0];
  for (size_t r = 0; r < rows; r++)
    memcpy(space + 3 + 2 * r * columns, sample->x + r * columns, columns * sizeof *space);
  in = input_tensor(model, sample->rows, space + 3);
  in.size = ((2 * rows - 1) * columns) * sizeof *space;
  in.strides = sliced;
  run_layout(load, model, sample, &in, sample->y);

  /* one row repeated: stride 0 */
  struct sample *same = make_sample(model, sample->rows, 9);
  for (size_t r = 1; r < rows; r++)
    memcpy(same->x + r * columns, same->x, columns * sizeof *same->x);
  const float *list[] = {same->x};
  assert_true(model->expect(model->user, list, 1, same->rows, same->y));
  int64_t expanded[TANDEM_MAX_RANK];
  memcpy(expanded, plain, sizeof expanded);
  expanded[0] = 0;
  in = input_tensor(model, sample->rows, same->x);
  in.size = columns * sizeof *space;
  in.strides = expanded;
  run_layout(load, model, sample, &in, same->y);

  free(same);
  free(space);
  free(sample);
  tandem_load_destroy(load);
}

static void rows_outside_the_bounds_are_refused_and_rows_inside_run_after(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *model = suite->dynamic;
  struct tandem_load *one = load_model(model), *two = load_model(model);
  struct sample *most = make_sample(model, model->rows_max, 12),
                *few = make_sample(model, model->rows_min, 13);
  const struct tandem_io *inputs;
  tandem_load_io(one, &inputs, NULL, NULL, NULL);
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  assert_non_null(y);
  fill_nan(y);
  struct tandem_tensor out = output_tensor(one, y);
  struct tandem_tensor in = input_tensor(model, model->rows_max, most->x);
  if (suite->bounds_known) {
    assert_int_equal(inputs[0].max[0], model->rows_max);
    float *more = calloc(CONFORMANCE_FLOATS_MAX, sizeof *more);
    assert_non_null(more);
    in = input_tensor(model, model->rows_max + 1, more);
    assert_refused(one, &in, 1, &out, 1, inputs[0].name);
    char rows[32];
    snprintf(rows, sizeof rows, "%lld", (long long)model->rows_max + 1);
    assert_refused(one, &in, 1, &out, 1, rows);
    free(more);
  }
  assert_runs(two, model, few);
  in = input_tensor(model, model->rows_max, most->x);
  in.rank++;
  in.shape[model->rank] = 1;
  if (!suite->tensors_unknown)
    assert_refused(one, &in, 1, &out, 1, inputs[0].name);
  in = input_tensor(model, model->rows_max, most->x);
  in.shape[model->rank - 1]++;
  assert_refused(one, &in, 1, &out, 1, inputs[0].name);
  for (size_t i = 0; i < CONFORMANCE_FLOATS_MAX; i++)
    assert_true(isnan(y[i]));
  assert_runs(one, model, most);
  assert_runs(two, model, few);
  assert_runs(one, model, few);
  free(y);
  free(most);
  free(few);
  tandem_load_destroy(one);
  tandem_load_destroy(two);
}

static void hundred_failed_loads_leave_nothing(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *model = suite->plain;
  struct sample *sample = make_sample(model, usual_rows(model), 14);
  struct tandem_load *healthy = NULL;
  const struct tandem_option wrong = {"no_such_option", "1"};
  /* a digest that no bytes have: refused after parsing, before any build */
  const struct tandem_option other = {"expect_sha256",
                                      "0000000000000000000000000000000000000000000000000000000000000000"};
  for (int round = 0; round < 2; round++) {
    uint64_t live = 0;
    int descriptors = 0;
    struct tandem_stats before = stats_now();
    for (int i = 0; i < 100; i++) {
      struct tandem_load *load = (struct tandem_load *)1;
      struct tandem_error error = {0};
      assert_int_not_equal(
          create_with(model, model->payload, model->payload_size / 2, NULL, 0, &load, &error), TANDEM_OK);
      assert_null(load);
      assert_int_equal(create_with(model, model->payload, model->payload_size, &wrong, 1, &load, &error),
                       TANDEM_BAD_OPTION);
      assert_int_not_equal(create_with(model, model->payload, model->payload_size, &other, 1, &load, &error),
                           TANDEM_OK);
      if (i == 1) {
        live = td_memory_live();
        descriptors = descriptor_count();
      }
    }
    assert_int_equal(td_memory_live(), live);
    assert_int_equal(descriptor_count(), descriptors);
    assert_int_equal(stats_now().failures - before.failures, 300);
    assert_int_equal(stats_now().loads, before.loads);
    if (!healthy)
      healthy = load_model(model);
    assert_int_equal(info_of(healthy).users, 1);
    assert_runs(healthy, model, sample);
  }
  free(sample);
  tandem_load_destroy(healthy);
}

static void every_failing_allocation_leaves_nothing(void **state) {
  (void)state;
  BOUND(120);
  const struct conformance_model *models[] = {suite->plain, suite->dynamic};
  for (int shared = 0; shared < 2; shared++) {
    for (size_t kind = 0; kind < 2; kind++) {
      const struct conformance_model *model = models[kind];
      struct sample *sample = make_sample(model, usual_rows(model), 15);
      tandem_load_destroy(load_model(model)); /* what is allocated once in a process is there now */
      struct tandem_load *healthy = shared ? load_model(model) : NULL;
      if (healthy)
        assert_runs(healthy, model, sample); /* what an engine keeps of its first run is there now */
      uint64_t live = td_memory_live();
      uint64_t refusals = 0;
      for (uint64_t n = 1;; n++) {
        struct tandem_load *load = NULL;
        struct tandem_error error = {0};
        td_memory_fail_at(n);
        enum tandem_status status = try_load(model, &load, &error);
        bool reached = td_memory_count() >= n;
        td_memory_fail_at(0);
        if (status == TANDEM_OK) {
          assert_runs(load, model, sample);
          tandem_load_destroy(load);
        } else {
          refusals++;
          assert_null(load);
          if (status != TANDEM_OUT_OF_MEMORY)
            fail_msg("allocation %llu: %s: %s", (unsigned long long)n, tandem_status_name(status),
                     error.message);
          assert_true(error.message[0] != 0);
        }
        if (td_memory_live() != live)
          fail_msg("allocation %llu (%s) left %lld blocks", (unsigned long long)n, tandem_status_name(status),
                   (long long)(td_memory_live() - live));
        if (!reached)
          break;
        assert_true(n < 10000);
      }
      assert_true(refusals > 0);
      if (healthy)
        assert_runs(healthy, model, sample);
      tandem_load_destroy(healthy);
      free(sample);
    }
  }
}

static void every_failing_allocation_of_a_run_leaves_the_load_usable(void **state) {
  (void)state;
  BOUND(60);
  const struct conformance_model *model = suite->dynamic;
  struct tandem_load *load = load_model(model);
  struct sample *sample = make_sample(model, usual_rows(model), 16);
  assert_runs(load, model, sample);
  float *y = malloc(CONFORMANCE_FLOATS_MAX * sizeof *y);
  assert_non_null(y);
  for (uint64_t n = 1;; n++) {
    struct tandem_tensor in = input_tensor(model, sample->rows, sample->x), out = output_tensor(load, y);
    struct tandem_error error = {0};
    td_memory_fail_at(n);
    enum tandem_status status = run_tensors(load, &in, &out, &error);
    bool reached = td_memory_count() >= n;
    td_memory_fail_at(0);
    assert_true(status == TANDEM_OK || status == TANDEM_OUT_OF_MEMORY);
    assert_runs(load, model, sample);
    if (!reached)
      break;
    assert_true(n < 1000);
  }
  free(y);
  free(sample);
  tandem_load_destroy(load);
}

/* ---------------------------------------------------------------- fork */

static void a_forked_child_runs_or_gets_a_clear_error(void **state) {
  (void)state;
  BOUND(30);
  const struct conformance_model *model = suite->plain;
  struct tandem_load *load = load_model(model);
  struct sample *sample = make_sample(model, usual_rows(model), 17);
  assert_runs(load, model, sample);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the forked child of a_forked_child_runs_or_gets_a_clear_error", 5);
    float y[CONFORMANCE_FLOATS_MAX];
    struct tandem_tensor in = input_tensor(model, sample->rows, sample->x), out = output_tensor(load, y);
    struct tandem_error error = {0};
    enum tandem_status status = run_tensors(load, &in, &out, &error);
    bool right = status == TANDEM_OK &&
                 memcmp(y, sample->y, model->outputs_per_row * (size_t)sample->rows * sizeof *y) == 0;
    bool refused = status == TANDEM_DEVICE_LOST && error.message[0] &&
                   !(suite->vendor->flags & TANDEM_VENDOR_SURVIVES_FORK);
    tandem_load_destroy(load);
    bound_end_child(right || refused ? 0 : 1);
  }
  assert_true(child > 0);
  int end = -1;
  assert_int_equal(waitpid(child, &end, 0), child);
  assert_true(WIFEXITED(end));
  assert_int_equal(WEXITSTATUS(end), 0);
  assert_runs(load, model, sample);
  free(sample);
  tandem_load_destroy(load);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_clean, end_clean)

int conformance_run(const struct conformance *conformance) {
  suite = conformance;
  const struct CMUnitTest tests[] = {
      TEST(the_table_is_complete),
      TEST(a_payload_is_described_without_a_load),
      TEST(a_cut_payload_is_refused),
      TEST(outputs_are_the_vendors_own),
      TEST(inputs_and_outputs_are_described),
      TEST(a_dynamic_output_gets_its_real_shape),
      TEST(a_refused_resize_ends_the_run_and_not_the_load),
      TEST(a_mapped_payload_may_be_unmapped_and_unlinked),
      TEST(a_second_load_shares_the_engine),
      TEST(loads_go_in_any_order),
      TEST(one_byte_makes_another_engine),
      TEST(racing_loads_make_one_engine),
      TEST(two_contexts_run_at_once_as_private_engines_do),
      TEST(one_load_serves_eight_threads),
      TEST(state_stays_in_its_load_and_reset_clears_it),
      TEST(reset_of_a_stateless_model_is_harmless),
      TEST(wrong_tensors_are_named_and_leave_the_load_usable),
      TEST(layouts_give_right_numbers_or_an_error),
      TEST(rows_outside_the_bounds_are_refused_and_rows_inside_run_after),
      TEST(hundred_failed_loads_leave_nothing),
      TEST(every_failing_allocation_leaves_nothing),
      TEST(every_failing_allocation_of_a_run_leaves_the_load_usable),
      TEST(a_forked_child_runs_or_gets_a_clear_error),
  };
  return cmocka_run_group_tests_name(conformance->vendor->name, tests, NULL, NULL);
}
