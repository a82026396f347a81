/* A load's own part: what is refused before any work, information, named data, runs and their checks. */
#include "base.h"
#include "bound.h"
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fake_vendor *fake, *streams;
static struct fake_model model = {.rank = 1, .min = {4}, .max = {4}, .cost = 10, .seed = 1};
static struct fake_model cube = {
    .rank = 3, .min = {0, 2, 1}, .max = {4, 2, INT64_MAX}, .cost = 10, .seed = 2};
static struct fake_model scalar = {.rank = 0, .cost = 10, .seed = 3};
static struct fake_model named = {
    .rank = 1, .min = {4}, .max = {4}, .cost = 10, .seed = 1, .flags = FAKE_MODEL_NAMED};
static void *payload;
static size_t size;

static int begin(void **state) {
  (void)state;
  fake_vendor_reset(fake);
  fake_vendor_reset(streams);
  scene_watch_log(NULL, NULL);
  scene_watch_waits(NULL, NULL);
  return 0;
}

static int end(void **state) {
  (void)state;
  bound_set("", 0);
  const char *what = "";
  if (fake_violations(fake, &what))
    print_error("%s\n", what);
  return fake_violations(fake, NULL) || scene_stats().engines || fake_live_payloads(fake) ? -1 : 0;
}

static struct scene_load made(struct scene_load load) {
  scene_make(&load);
  if (load.status != TANDEM_OK)
    fail_msg("%s", load.error.message);
  return load;
}

static void a_malformed_description_is_refused_before_any_vendor_call(void **state) {
  (void)state;
  struct tandem_load_desc good = {
      .struct_size = sizeof good, .backend = "FakeBackend", .payload = payload, .payload_size = size};
  struct tandem_load_desc desc = good;
  struct tandem_load *load = (struct tandem_load *)1;
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_create(NULL, &load, &error), TANDEM_INVALID_ARGUMENT);
  assert_null(load);
  assert_int_equal(tandem_load_create(&good, NULL, &error), TANDEM_INVALID_ARGUMENT);
  desc.struct_size = 5;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "5"));
  desc = good, desc.backend = NULL;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "backend"));
  desc = good, desc.backend = "nobody";
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_NOT_FOUND);
  assert_non_null(strstr(error.message, "nobody"));
  desc = good, desc.payload = NULL;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "payload"));
  desc = good, desc.option_count = 1;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  desc = good, desc.compile_spec_count = 1;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  desc = good, desc.flags = TANDEM_LOAD_CALLER_HOLDS_LOCK | 0x40;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "flags"));
  struct tandem_option unknown = {"no_such_option", "1"};
  desc = good, desc.options = &unknown, desc.option_count = 1;
  assert_int_equal(tandem_load_create(&desc, &load, NULL), TANDEM_BAD_OPTION);
  assert_null(load);
  for (int entry = 0; entry < FAKE_ENTRY_COUNT; entry++)
    assert_int_equal(fake_count(fake, (enum fake_entry)entry), 0);
}

static void an_error_is_cleared_by_the_next_success(void **state) {
  (void)state;
  struct tandem_error error = {.code = TANDEM_INTERNAL, .message = "old"};
  struct tandem_load_desc desc = {
      .struct_size = sizeof desc, .backend = "fake", .payload = payload, .payload_size = size};
  struct tandem_load *load = NULL;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_OK);
  assert_int_equal(error.code, TANDEM_OK);
  assert_string_equal(error.message, "");
  tandem_load_destroy(load);
  tandem_load_destroy(NULL);
}

static void information_is_complete(void **state) {
  (void)state;
  struct scene_load load = made(scene_load(fake, payload, size, "precision", "f16", NULL));
  struct tandem_load_info info = scene_info(&load);
  assert_true(info.id > 0 && info.engine_id > 0);
  assert_true(info.seconds > 0 && info.seconds < 20);
  assert_true(info.digest_seconds > 0);
  assert_true(info.seconds >= info.digest_seconds + info.build_seconds);
  assert_int_equal(info.users, 1);
  assert_int_equal(info.budget, -1);
  assert_string_equal(info.vendor, "fake");
  assert_string_equal(info.vendor_version, "1.0-fake");
  assert_string_equal(info.device, "fake:0");
  assert_non_null(strstr(info.options, "precision=f16"));
  struct tandem_error error = {0};
  info.struct_size = 9;
  assert_int_equal(tandem_load_get_info(load.load, &info, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_load_get_info(load.load, NULL, &error), TANDEM_INVALID_ARGUMENT);
  info.struct_size = sizeof info;
  assert_int_equal(tandem_load_get_info(NULL, &info, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_load_get_info(NULL, &info, NULL), TANDEM_INVALID_ARGUMENT);
  scene_destroy(&load);
  load = made(scene_load(streams, payload, size, NULL));
  assert_int_equal(scene_info(&load).budget, 0); /* nothing streams */
  scene_destroy(&load);
}

static void an_unknown_compile_spec_is_told_once_and_ignored(void **state) {
  (void)state;
  struct tandem_spec specs[] = {{"exporters_own", "x", 1}};
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "fake",
                                  .payload = payload,
                                  .payload_size = size,
                                  .compile_specs = specs,
                                  .compile_spec_count = 1};
  struct tandem_load *load = NULL;
  struct tandem_option debug = {"log_level", "debug"};
  desc.options = &debug;
  desc.option_count = 1;
  assert_int_equal(tandem_load_create(&desc, &load, NULL), TANDEM_OK);
  assert_true(scene_find_line("exporters_own", 0) >= 0);
  tandem_load_destroy(load);
}

/* ---------------------------------------------------------------- named data */

struct store {
  void *bytes;
  size_t size;
  int given, taken;
  enum tandem_status answer;
};

static enum tandem_status get_data(void *user, const char *key, const void **data, size_t *data_size,
                                   void **token) {
  struct store *store = user;
  if (store->answer != TANDEM_OK || strcmp(key, "weights") != 0)
    return store->answer != TANDEM_OK ? store->answer : TANDEM_MISSING_DATA;
  store->given++;
  *data = store->bytes;
  *data_size = store->size;
  *token = store;
  return TANDEM_OK;
}

static void release_data(void *user, void *token) {
  struct store *store = user;
  assert_ptr_equal(token, store);
  store->taken++;
}

static void named_data_is_read_once_given_back_and_shares_with_embedded_bytes(void **state) {
  (void)state;
  BOUND(20);
  size_t named_size;
  void *named_payload = fake_payload_create(&named, &named_size);
  /* The same engine bytes as `payload` has: those say nothing of being named. */
  struct store store = {.bytes = (char *)payload + FAKE_ENGINE_OFFSET, .size = size - FAKE_ENGINE_OFFSET};
  struct tandem_named_data data = {get_data, release_data, &store};
  struct scene_load embedded = made(scene_load(fake, payload, size, NULL));
  struct scene_load load = scene_load(fake, named_payload, named_size, NULL);
  load.named_data = &data;
  load = made(load);
  assert_int_equal(store.given, 1);
  assert_int_equal(store.taken, 1); /* before create returned */
  assert_int_equal(scene_info(&load).engine_id, scene_info(&embedded).engine_id);
  assert_true(scene_runs(&load, &model, 0));
  scene_destroy(&embedded);
  scene_destroy(&load);

  fake_fail_at(fake, FAKE_BUILD, 1, 1, TANDEM_DEVICE_ERROR, "no");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_DEVICE_ERROR);
  assert_int_equal(store.given, store.taken);
  store.answer = TANDEM_MISSING_DATA;
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_MISSING_DATA);
  assert_non_null(strstr(load.error.message, "weights"));
  load.named_data = NULL;
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_MISSING_DATA);
  free(named_payload);
}

static void a_status_that_named_data_invents_is_an_internal_error(void **state) {
  (void)state;
  size_t named_size;
  void *named_payload = fake_payload_create(&named, &named_size);
  static const int invented[] = {TANDEM_INTERNAL + 1, 4711, -1};
  for (int i = 0; i < 3; i++) {
    struct store store = {.answer = (enum tandem_status)invented[i]};
    struct tandem_named_data data = {get_data, release_data, &store};
    struct scene_load load = scene_load(fake, named_payload, named_size, NULL);
    load.named_data = &data;
    scene_make(&load);
    assert_int_equal(load.status, TANDEM_INTERNAL);
    assert_int_equal(load.error.code, TANDEM_INTERNAL);
    assert_non_null(strstr(load.error.message, "weights"));
  }
  free(named_payload);
}

static void no_load_has_no_inputs_and_outputs(void **state) {
  (void)state;
  static const struct tandem_io io;
  const struct tandem_io *inputs = &io, *outputs = &io;
  size_t input_count = 7, output_count = 7;
  tandem_load_io(NULL, &inputs, &input_count, &outputs, &output_count);
  assert_null(inputs);
  assert_null(outputs);
  assert_int_equal(input_count, 0);
  assert_int_equal(output_count, 0);
  tandem_load_io(NULL, NULL, NULL, NULL, NULL);
}

/* ---------------------------------------------------------------- runs */

static enum tandem_status run_shape(struct tandem_load *load, int32_t rank, const int64_t *shape,
                                    const int64_t *strides, size_t bytes, struct tandem_error *error) {
  static float x[64], y[64];
  struct tandem_tensor in = {
      .data = x, .size = bytes, .dtype = TANDEM_FLOAT32, .rank = rank, .strides = strides};
  memcpy(in.shape, shape, (size_t)rank * sizeof *shape);
  struct tandem_tensor out = {.data = y, .size = sizeof y, .dtype = TANDEM_FLOAT32};
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  return tandem_load_run(load, &desc, error);
}

static void shapes_that_overflow_are_refused_with_and_without_strides(void **state) {
  (void)state;
  BOUND(20);
  size_t cube_size;
  void *cube_payload = fake_payload_create(&cube, &cube_size);
  struct scene_load load = made(scene_load(fake, cube_payload, cube_size, NULL));
  struct tandem_error error = {0};
  int64_t fits[] = {4, 2, 8}, wraps[] = {4, 2, INT64_MAX / 2}, nearly[] = {1, 2, INT64_MAX / 16};
  int64_t strides[] = {16, 8, 1}, near_strides[] = {INT64_MAX / 8, INT64_MAX / 16, 1};
  assert_int_equal(run_shape(load.load, 3, fits, NULL, 256, &error), TANDEM_OK);
  assert_int_equal(run_shape(load.load, 3, fits, strides, 256, &error), TANDEM_OK);
  assert_int_equal(run_shape(load.load, 3, wraps, NULL, 256, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "overflow"));
  assert_int_equal(run_shape(load.load, 3, wraps, strides, 256, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(run_shape(load.load, 3, nearly, near_strides, 256, &error), TANDEM_INVALID_ARGUMENT);
  int64_t negative[] = {16, -8, 1};
  assert_int_equal(run_shape(load.load, 3, fits, negative, 256, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "stride"));
  scene_destroy(&load);
  free(cube_payload);
}

static void an_input_of_one_byte_too_few_is_refused(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  struct tandem_error error = {0};
  int64_t shape[] = {4};
  assert_int_equal(run_shape(load.load, 1, shape, NULL, 15, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "15"));
  assert_int_equal(fake_count(fake, FAKE_RUN), 0);
  assert_int_equal(run_shape(load.load, 1, shape, NULL, 16, &error), TANDEM_OK);
  scene_destroy(&load);
}

static void an_output_that_is_not_contiguous_is_refused_by_name(void **state) {
  (void)state;
  BOUND(20);
  size_t cube_size;
  void *cube_payload = fake_payload_create(&cube, &cube_size);
  struct scene_load load = made(scene_load(fake, cube_payload, cube_size, NULL));
  float x[24] = {0}, y[24];
  struct tandem_tensor in = {
      .data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 3, .shape = {4, 2, 3}};
  int64_t last_first[] = {6, 1, 2}, padded[] = {8, 4, 1}, rows[] = {6, 3, 1};
  const struct {
    const int64_t *strides;
    int32_t rank;
    const char *word; /* NULL: runs */
  } cases[] = {{last_first, 3, "stride"}, {padded, 3, "stride"}, {rows, TANDEM_MAX_RANK + 1, "rank"},
               {rows, INT32_MAX, "rank"}, {rows, -1, "rank"},    {rows, 3, NULL}};
  uint64_t runs = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tandem_tensor out = in;
    out.data = y;
    out.rank = cases[i].rank;
    out.strides = cases[i].strides;
    struct tandem_run_desc desc = {
        .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
    struct tandem_error error = {0};
    enum tandem_status status = tandem_load_run(load.load, &desc, &error);
    runs += cases[i].word == NULL;
    assert_int_equal(status, cases[i].word ? TANDEM_INVALID_ARGUMENT : TANDEM_OK);
    assert_int_equal(fake_count(fake, FAKE_RUN), runs);
    if (cases[i].word && (!strstr(error.message, "output 0 (y)") || !strstr(error.message, cases[i].word)))
      fail_msg("\"%s\" does not name output 0 (y) and %s", error.message, cases[i].word);
  }
  scene_destroy(&load);
  free(cube_payload);
}

static void empty_tensors_run_when_the_bounds_allow_them(void **state) {
  (void)state;
  BOUND(20);
  size_t cube_size;
  void *cube_payload = fake_payload_create(&cube, &cube_size);
  struct scene_load load = made(scene_load(fake, cube_payload, cube_size, NULL));
  struct tandem_tensor in = {.dtype = TANDEM_FLOAT32, .rank = 3, .shape = {0, 2, 5}}, out = in;
  int64_t odd[] = {77, 5, 1}; /* of nothing, strides say nothing */
  in.strides = odd;
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  struct tandem_error error = {0};
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_OK);
  assert_int_equal(out.rank, 3);
  assert_int_equal(out.shape[0], 0);
  scene_destroy(&load);
  free(cube_payload);
}

static void a_scalar_runs(void **state) {
  (void)state;
  BOUND(20);
  size_t scalar_size;
  void *scalar_payload = fake_payload_create(&scalar, &scalar_size);
  struct scene_load load = made(scene_load(fake, scalar_payload, scalar_size, NULL));
  assert_true(scene_runs(&load, &scalar, 0));
  scene_destroy(&load);
  free(scalar_payload);
}

static void a_dimension_of_one_may_have_any_stride(void **state) {
  (void)state;
  BOUND(20);
  size_t cube_size;
  void *cube_payload = fake_payload_create(&cube, &cube_size);
  struct scene_load load = made(scene_load(fake, cube_payload, cube_size, NULL));
  struct tandem_error error = {0};
  int64_t shape[] = {1, 2, 3}, strides[] = {1234, 3, 1};
  assert_int_equal(run_shape(load.load, 3, shape, strides, 256, &error), TANDEM_OK);
  scene_destroy(&load);
  free(cube_payload);
}

static void a_malformed_run_is_refused(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  struct tandem_error error = {0};
  struct tandem_run_desc desc = {.struct_size = sizeof desc, .input_count = 1, .output_count = 1};
  assert_int_equal(tandem_load_run(NULL, &desc, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_load_run(load.load, NULL, &error), TANDEM_INVALID_ARGUMENT);
  void *done = &load;
  desc.done = &done;
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_INVALID_ARGUMENT); /* NULL arrays */
  assert_null(done);
  desc.struct_size = 1;
  assert_int_equal(tandem_load_run(load.load, &desc, NULL), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_load_reset(NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_load_reset(NULL, NULL), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(fake_count(fake, FAKE_RUN) + fake_count(fake, FAKE_RESET), 0);
  assert_true(scene_runs(&load, &model, 0));
  scene_destroy(&load);
}

static void streams_are_refused_for_a_vendor_without_them(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  float x[4] = {0}, y[4];
  struct tandem_tensor in = {.data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 1, .shape = {4}};
  struct tandem_tensor out = in;
  out.data = y;
  struct tandem_run_desc good = {
      .struct_size = sizeof good, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  struct tandem_run_desc desc = good;
  struct tandem_error error = {0};
  desc.stream = &desc;
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "stream"));
  desc = good, desc.return_early = true;
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(fake_count(fake, FAKE_RUN), 0);
  assert_int_equal(tandem_load_run(load.load, &good, &error), TANDEM_OK);
  scene_destroy(&load);

  static struct fake_vendor *flows; /* says that it has streams: what is left to check is tandem's */
  flows = fake_vendor_create("fake-streams", "FakeStreamsBackend", TANDEM_VENDOR_HAS_STREAMS);
  assert_non_null(flows);
  load = made(scene_load(flows, payload, size, NULL));
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "return_early"));
  desc.stream = &desc;
  assert_int_equal(tandem_load_run(load.load, &desc, &error), TANDEM_OK);
  scene_destroy(&load);
}

static void a_failing_run_or_reset_leaves_the_load_usable(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  struct tandem_error error = {0};
  int64_t shape[] = {4};
  static const enum tandem_status statuses[] = {TANDEM_OUT_OF_MEMORY, TANDEM_DEVICE_ERROR, TANDEM_INTERNAL};
  for (int i = 0; i < 3; i++) {
    fake_fail_at(fake, FAKE_RUN, 1, 1, statuses[i], "a bad moment");
    assert_int_equal(run_shape(load.load, 1, shape, NULL, 16, &error), statuses[i]);
    assert_non_null(strstr(error.message, "a bad moment"));
    fake_fail_at(fake, FAKE_RESET, 1, 1, statuses[i], "a bad moment");
    assert_int_equal(tandem_load_reset(load.load, &error), statuses[i]);
    assert_true(scene_runs(&load, &model, 0));
  }
  scene_destroy(&load);
}

/* Makes room for an output, and does what a caller had better not do there. */
struct visit {
  struct tandem_load *own, *other;
  enum tandem_status answer, own_run, own_reset, other_run;
  struct tandem_error error;
  float room[8];
};

static enum tandem_status visit_loads(void *user, size_t index, struct tandem_tensor *tensor) {
  struct visit *visit = user;
  int64_t shape[] = {4};
  assert_int_equal(index, 0);
  if (visit->own) {
    visit->own_reset = tandem_load_reset(visit->own, NULL);
    visit->own_run = run_shape(visit->own, 1, shape, NULL, 16, &visit->error);
    visit->other_run = run_shape(visit->other, 1, shape, NULL, 16, NULL);
  }
  tensor->data = visit->room;
  tensor->size = sizeof visit->room;
  return visit->answer;
}

static enum tandem_status run_with(struct tandem_load *load, struct visit *visit,
                                   struct tandem_error *error) {
  static float x[4] = {1, 2, 3, 4};
  struct tandem_tensor in = {.data = x, .size = sizeof x, .dtype = TANDEM_FLOAT32, .rank = 1, .shape = {4}};
  struct tandem_tensor out = {.dtype = TANDEM_FLOAT32};
  struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                 .inputs = &in,
                                 .input_count = 1,
                                 .outputs = &out,
                                 .output_count = 1,
                                 .resize = visit_loads,
                                 .resize_user = visit};
  enum tandem_status status = tandem_load_run(load, &desc, error);
  float expected[4];
  fake_expect(&model, x, 4, 0, expected);
  if (status == TANDEM_OK)
    assert_memory_equal(visit->room, expected, sizeof expected);
  return status;
}

static void a_run_from_a_callback_of_its_own_run_is_refused_and_no_hang(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  struct scene_load other = made(scene_load(fake, payload, size, NULL));
  struct visit visit = {.own = load.load, .other = other.load};
  struct tandem_error error = {0};
  assert_int_equal(run_with(load.load, &visit, &error), TANDEM_OK);
  assert_int_equal(visit.own_run, TANDEM_INVALID_STATE);
  assert_non_null(strstr(visit.error.message, "callback"));
  assert_int_equal(visit.own_reset, TANDEM_INVALID_STATE);
  assert_int_equal(visit.other_run, TANDEM_OK);
  assert_true(scene_runs(&load, &model, 0)); /* the turn was given back */
  scene_destroy(&load);
  scene_destroy(&other);
}

static void a_status_that_a_callback_invents_is_an_internal_error(void **state) {
  (void)state;
  BOUND(20);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  static const int invented[] = {TANDEM_INTERNAL + 1, 4711, -1};
  for (int i = 0; i < 3; i++) {
    struct visit visit = {.answer = (enum tandem_status)invented[i]};
    struct tandem_error error = {0};
    assert_int_equal(run_with(load.load, &visit, &error), TANDEM_INTERNAL);
    assert_int_equal(error.code, TANDEM_INTERNAL);
    assert_non_null(strstr(error.message, "output y"));
  }
  struct visit refuses = {.answer = TANDEM_OUT_OF_MEMORY}; /* one that exists goes through as it is */
  assert_int_equal(run_with(load.load, &refuses, NULL), TANDEM_OUT_OF_MEMORY);
  scene_destroy(&load);
}

struct meddler {
  struct scene_load *load;
  bool passed;
};

static void *run_once(void *user) {
  struct meddler *meddler = user;
  meddler->passed = scene_runs(meddler->load, &model, 0);
  return NULL;
}

static void a_run_that_waits_for_its_turn_ends_before_the_load_is_destroyed(void **state) {
  (void)state;
  BOUND(30);
  for (int round = 0; round < 20; round++) {
    struct scene_load load = made(scene_load(fake, payload, size, NULL)), gone = load;
    struct meddler meddlers[3];
    pthread_t threads[3];
    scene_watch_waits(NULL, NULL);
    fake_gate_close(fake, FAKE_RUN);
    uint64_t destroyed = fake_count(fake, FAKE_CONTEXT_DESTROY);
    for (int i = 0; i < 3; i++) {
      meddlers[i] = (struct meddler){&load, false};
      assert_int_equal(pthread_create(&threads[i], NULL, run_once, &meddlers[i]), 0);
    }
    assert_true(fake_wait_inside(fake, FAKE_RUN, 1));
    assert_true(scene_wait_waiting(2));
    scene_start_destroy(&gone);
    assert_true(scene_wait_waiting(3));
    assert_int_equal(fake_count(fake, FAKE_CONTEXT_DESTROY), destroyed);
    fake_gate_open(fake, FAKE_RUN);
    for (int i = 0; i < 3; i++) {
      pthread_join(threads[i], NULL);
      assert_true(meddlers[i].passed);
    }
    scene_join(&gone);
  }
}

/* ---- load hooks */

struct hooked_host {
  struct tandem_option option; /* of the scope that begin acquires */
  enum tandem_status refusal;
  const char *reason;
  struct hooked_host *next; /* set as the hooks' host by begin */
  int begun, ended;
  bool matched; /* end got what begin left */
  struct tandem_scope *scope;
};

static void end_load(void *user, void *token) {
  struct hooked_host *host = user;
  host->ended++;
  host->matched = token == host->scope;
  tandem_scope_release(token);
  tandem_stats_get(&(struct tandem_stats){.struct_size = sizeof(struct tandem_stats)}, NULL);
}

static enum tandem_status begin_load(void *user, void **token, struct tandem_error *error) {
  struct hooked_host *host = user;
  host->begun++;
  if (*token != NULL)
    return tandem_fail(error, TANDEM_INTERNAL, "the token was not cleared");
  if (host->next != NULL)
    tandem_set_load_hooks(begin_load, end_load, host->next);
  if (host->refusal != TANDEM_OK)
    return host->reason ? tandem_fail(error, host->refusal, "%s", host->reason) : host->refusal;
  enum tandem_status status = tandem_scope_acquire(&host->option, 1, &host->scope, error);
  *token = host->scope;
  return status;
}

static void a_scope_of_the_load_hooks_is_that_load_s(void **state) {
  (void)state;
  struct hooked_host host = {.option = {"use_shared_engines", "false"}};
  struct scene_load first = made(scene_load(fake, payload, size, NULL));
  tandem_set_load_hooks(begin_load, end_load, &host);
  struct scene_load alone = made(scene_load(fake, payload, size, NULL));
  assert_int_equal(host.begun, 1);
  assert_int_equal(host.ended, 1);
  assert_true(host.matched && host.scope != NULL);
  assert_int_equal(fake_count(fake, FAKE_BUILD), 2);
  struct scene_load own = made(scene_load(fake, payload, size, "use_shared_engines", "true", NULL));
  assert_true(scene_info(&own).shared);
  char value[8];
  assert_int_equal(tandem_get_option("fake", "use_shared_engines", value, sizeof value, NULL), TANDEM_OK);
  assert_string_equal(value, "false");
  assert_int_equal(host.begun, 3);
  assert_int_equal(host.ended, 3);
  tandem_set_load_hooks(NULL, NULL, NULL);
  struct scene_load later = made(scene_load(fake, payload, size, NULL));
  assert_true(scene_info(&later).shared);
  assert_int_equal(tandem_get_option("fake", "use_shared_engines", value, sizeof value, NULL), TANDEM_OK);
  assert_string_equal(value, "true");
  assert_int_equal(host.begun, 3);
  scene_destroy(&first);
  scene_destroy(&alone);
  scene_destroy(&own);
  scene_destroy(&later);
}

static void a_load_ends_with_the_hooks_it_began_with(void **state) {
  (void)state;
  struct hooked_host second = {.option = {"profile", "1"}},
                     first = {.option = {"profile", "1"}, .next = &second};
  tandem_set_load_hooks(begin_load, end_load, &first);
  struct scene_load load = made(scene_load(fake, payload, size, NULL));
  assert_int_equal(first.begun, 1);
  assert_int_equal(first.ended, 1);
  assert_true(first.matched);
  assert_int_equal(second.begun + second.ended, 0);
  tandem_set_load_hooks(NULL, NULL, NULL);
  scene_destroy(&load);
}

static void a_failed_load_ends_its_hooks(void **state) {
  (void)state;
  struct hooked_host host = {.option = {"profile", "0"}};
  tandem_set_load_hooks(begin_load, end_load, &host);
  struct scene_load load = scene_load(fake, "no payload", 10, NULL);
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_BAD_PROGRAM);
  assert_int_equal(tandem_load_create(NULL, NULL, NULL), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(host.begun, 2);
  assert_int_equal(host.ended, 2);
  tandem_set_load_hooks(NULL, NULL, NULL);
}

static void a_load_hook_that_refuses_fails_the_load_with_its_words(void **state) {
  (void)state;
  static const struct {
    enum tandem_status refusal, status;
    const char *reason, *message;
  } cases[] = {
      {TANDEM_OUT_OF_MEMORY, TANDEM_OUT_OF_MEMORY, "no room for a scope", "no room for a scope"},
      {TANDEM_BAD_OPTION, TANDEM_BAD_OPTION, NULL, "load hook"},
      {(enum tandem_status)77, TANDEM_INTERNAL, NULL, "load hook"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct hooked_host host = {.refusal = cases[i].refusal, .reason = cases[i].reason};
    uint64_t failures = scene_stats().failures;
    char value[8] = "old";
    struct tandem_error error;
    tandem_set_load_hooks(begin_load, end_load, &host);
    struct scene_load load = scene_load(fake, payload, size, NULL);
    scene_make(&load);
    assert_int_equal(load.status, cases[i].status);
    assert_null(load.load);
    assert_non_null(strstr(load.error.message, cases[i].message));
    assert_int_equal(tandem_get_option("fake", "profile", value, sizeof value, &error), cases[i].status);
    assert_string_equal(value, "");
    assert_non_null(strstr(error.message, cases[i].message));
    assert_int_equal(host.begun, 2);
    assert_int_equal(host.ended, 0);
    assert_int_equal(scene_stats().failures, failures + 1);
    assert_int_equal(fake_count(fake, FAKE_PARSE), 0);
    tandem_set_load_hooks(NULL, NULL, NULL);
  }
}

static void load_inside(void *user) {
  struct scene_load *inner = user;
  scene_make(inner);
}

static void a_load_inside_a_load_has_its_own_pair_of_hooks(void **state) {
  (void)state;
  struct hooked_host host = {.option = {"profile", "0"}};
  struct scene_load inner = scene_load(fake, payload, size, NULL);
  tandem_set_load_hooks(begin_load, end_load, &host);
  fake_call_back(fake, FAKE_BUILD, 1, load_inside, &inner);
  struct scene_load outer = made(scene_load(fake, payload, size, NULL));
  tandem_set_load_hooks(NULL, NULL, NULL);
  assert_int_equal(inner.status, TANDEM_OK);
  assert_int_equal(host.begun, 2);
  assert_int_equal(host.ended, 2);
  scene_destroy(&inner);
  scene_destroy(&outer);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  fake = fake_vendor_create("fake", "FakeBackend", 0);
  streams = fake_vendor_create("fake-budget", "FakeBudgetBackend", TANDEM_VENDOR_HAS_BUDGET);
  payload = fake_payload_create(&model, &size);
  if (!fake || !streams || !payload)
    return 1;
  const struct CMUnitTest tests[] = {
      TEST(a_malformed_description_is_refused_before_any_vendor_call),
      TEST(an_error_is_cleared_by_the_next_success),
      TEST(information_is_complete),
      TEST(an_unknown_compile_spec_is_told_once_and_ignored),
      TEST(named_data_is_read_once_given_back_and_shares_with_embedded_bytes),
      TEST(a_status_that_named_data_invents_is_an_internal_error),
      TEST(no_load_has_no_inputs_and_outputs),
      TEST(shapes_that_overflow_are_refused_with_and_without_strides),
      TEST(an_input_of_one_byte_too_few_is_refused),
      TEST(an_output_that_is_not_contiguous_is_refused_by_name),
      TEST(empty_tensors_run_when_the_bounds_allow_them),
      TEST(a_scalar_runs),
      TEST(a_dimension_of_one_may_have_any_stride),
      TEST(a_malformed_run_is_refused),
      TEST(streams_are_refused_for_a_vendor_without_them),
      TEST(a_failing_run_or_reset_leaves_the_load_usable),
      TEST(a_run_from_a_callback_of_its_own_run_is_refused_and_no_hang),
      TEST(a_status_that_a_callback_invents_is_an_internal_error),
      TEST(a_run_that_waits_for_its_turn_ends_before_the_load_is_destroyed),
      TEST(a_scope_of_the_load_hooks_is_that_load_s),
      TEST(a_load_ends_with_the_hooks_it_began_with),
      TEST(a_failed_load_ends_its_hooks),
      TEST(a_load_hook_that_refuses_fails_the_load_with_its_words),
      TEST(a_load_inside_a_load_has_its_own_pair_of_hooks),
  };
  int failed = cmocka_run_group_tests_name("load", tests, NULL, NULL);
  scene_clear_log();
  free(payload);
  return failed ? 1 : 0;
}
