/* Captures by the caller, and option cuda_graph. */
#include "rig.h"

#include "bound.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FLOATS_IN = 64, FLOATS_OUT = 32 };

struct io {
  void *x, *y;
  struct tandem_tensor input, output;
  struct tandem_run_desc run;
  int rows;
};

static void io_init(struct io *io, int rows) {
  io->rows = rows;
  io->x = rig_allocate(0, FLOATS_IN * sizeof(float));
  io->y = rig_allocate(0, FLOATS_OUT * sizeof(float));
  io->input = rig_tensor(io->x, TANDEM_FLOAT32, 2, rows, 8);
  io->output = rig_tensor(io->y, TANDEM_FLOAT32, 2, rows, 4);
  io->run = (struct tandem_run_desc){.struct_size = sizeof io->run,
                                     .inputs = &io->input,
                                     .input_count = 1,
                                     .outputs = &io->output,
                                     .output_count = 1};
}

static void io_fill(struct io *io, unsigned seed) {
  float x[FLOATS_IN];
  rig_fill(x, FLOATS_IN, seed);
  rig_write(0, io->x, x, sizeof x);
}

static void io_expect(struct io *io, unsigned seed) {
  float x[FLOATS_IN], y[FLOATS_OUT], expected[FLOATS_OUT];
  rig_fill(x, FLOATS_IN, seed);
  assert_true(standin_mlp_expect(&rig_dynamic, x, io->rows, expected));
  rig_read(0, y, io->y, sizeof y);
  assert_memory_equal(y, expected, (size_t)io->rows * 16);
}

static void io_fini(struct io *io) {
  rig_free(0, io->x);
  rig_free(0, io->y);
}

static void expect_run(struct tandem_load *load, struct io *io, unsigned seed) {
  struct tandem_error error;
  io_fill(io, seed);
  if (tandem_load_run(load, &io->run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  io_expect(io, seed);
}

/* ---------------------------------------------------------------- captures by the caller */

static void begin_capture(void *stream, int mode) {
  rig_push(0);
  assert_int_equal(rig_cuda.capture_begin(stream, mode), CU_OK);
  rig_pop(0);
}

static bool is_capturing(void *stream) {
  int status = -1;
  rig_push(0);
  assert_int_equal(rig_cuda.stream_capturing(stream, &status), CU_OK);
  rig_pop(0);
  return status == CU_CAPTURE_STATUS_ACTIVE;
}

/* Owned. */
static void *end_capture(void *stream) {
  void *graph = NULL, *instance = NULL;
  rig_push(0);
  assert_int_equal(rig_cuda.capture_end(stream, &graph), CU_OK);
  assert_int_equal(rig_cuda.graph_instantiate(&instance, graph, 0), CU_OK);
  assert_int_equal(rig_cuda.graph_destroy(graph), CU_OK);
  rig_pop(0);
  return instance;
}

static void drop_capture(void *stream) {
  void *graph = NULL;
  rig_push(0);
  assert_int_equal(rig_cuda.capture_end(stream, &graph), CU_OK);
  if (graph)
    assert_int_equal(rig_cuda.graph_destroy(graph), CU_OK);
  rig_pop(0);
}

static void replay(void *instance, void *stream) {
  rig_push(0);
  assert_int_equal(rig_cuda.graph_launch(instance, stream), CU_OK);
  assert_int_equal(rig_cuda.stream_synchronize(stream), CU_OK);
  rig_pop(0);
}

static void drop_instance(void *instance) {
  rig_push(0);
  assert_int_equal(rig_cuda.graph_instance_destroy(instance), CU_OK);
  rig_pop(0);
}

struct beside {
  const struct rig_payload *payload;
  int rounds;
};

static void *load_and_run(void *argument) {
  const struct beside *beside = argument;
  for (int i = 0; i < beside->rounds; i++) {
    struct tandem_load *load = rig_load(beside->payload, NULL);
    rig_expect_mlp(load, &rig_dynamic, 1 + i % 8, (unsigned)i);
    tandem_load_destroy(load);
  }
  return NULL;
}

static void capture_while_others_load_and_run(int mode) {
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct io io;
  void *stream = rig_stream(0);
  io_init(&io, 3);
  io.run.stream = stream;
  expect_run(load, &io, 1);
  begin_capture(stream, mode);
  struct beside beside = {&payload, 5};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, load_and_run, &beside), 0);
  struct tandem_error error;
  if (tandem_load_run(load, &io.run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  pthread_join(thread, NULL);
  assert_true(is_capturing(stream));
  void *instance = end_capture(stream);
  for (unsigned seed = 2; seed < 6; seed++) {
    io_fill(&io, seed);
    replay(instance, stream);
    io_expect(&io, seed);
  }
  /* Other loads run meanwhile; what was captured has its own scratch, and so has a plain run. */
  beside.rounds = 2;
  load_and_run(&beside);
  expect_run(load, &io, 7);
  io_fill(&io, 8);
  replay(instance, stream);
  io_expect(&io, 8);
  drop_instance(instance);
  io_fini(&io);
  rig_stream_free(0, stream);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void a_warmed_up_load_is_captured_while_other_threads_load_and_run(void **state) {
  (void)state;
  capture_while_others_load_and_run(CU_CAPTURE_THREAD_LOCAL);
}

static void not_even_a_global_capture_is_broken_by_other_threads(void **state) {
  (void)state;
  capture_while_others_load_and_run(CU_CAPTURE_GLOBAL);
}

static void a_captured_loads_scratch_is_its_own_until_unload(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *captured = rig_load(&payload, NULL), *other = rig_load(&payload, NULL);
  struct io io;
  void *stream = rig_stream(0);
  io_init(&io, 4);
  io.run.stream = stream;
  expect_run(captured, &io, 1);
  expect_run(other, &io, 1);
  uint64_t one = rig_device->memory_used(0);
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(tandem_load_run(captured, &io.run, NULL), TANDEM_OK);
  void *instance = end_capture(stream);
  assert_int_equal(rig_device->memory_used(0), one);
  expect_run(other, &io, 2); /* has to get scratch of its own now */
  uint64_t two = rig_device->memory_used(0);
  assert_true(two > one);
  drop_instance(instance);
  expect_run(captured, &io, 3);
  assert_int_equal(rig_device->memory_used(0), two);
  tandem_load_destroy(captured);
  assert_int_equal(rig_device->memory_used(0), one);
  expect_run(other, &io, 4);
  tandem_load_destroy(other);
  io_fini(&io);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void a_first_run_or_an_allocation_under_capture_is_refused_and_breaks_nothing(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  float x[FLOATS_IN], y[FLOATS_OUT];
  struct io io;
  struct tandem_error error;
  void *stream = rig_stream(0);
  io_init(&io, 3);
  io.run.stream = stream;
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(tandem_load_run(load, &io.run, &error), TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "first run with these shapes"));
  assert_true(is_capturing(stream));
  drop_capture(stream);
  expect_run(load, &io, 1);
  rig_fill(x, FLOATS_IN, 1);
  struct tandem_tensor host = rig_tensor(x, TANDEM_FLOAT32, 2, 3, 8),
                       out = rig_tensor(y, TANDEM_FLOAT32, 2, 3, 4);
  struct tandem_run_desc staged = io.run, copied = io.run, larger = io.run;
  struct tandem_tensor more = rig_tensor(io.x, TANDEM_FLOAT32, 2, 5, 8),
                       most = rig_tensor(io.y, TANDEM_FLOAT32, 2, 5, 4);
  staged.inputs = &host;
  copied.outputs = &out;
  larger.inputs = &more;
  larger.outputs = &most;
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(tandem_load_run(load, &staged, &error), TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "host memory"));
  assert_int_equal(tandem_load_run(load, &copied, &error), TANDEM_INVALID_STATE);
  assert_int_equal(tandem_load_run(load, &larger, &error), TANDEM_INVALID_STATE);
  assert_true(is_capturing(stream));
  drop_capture(stream);
  expect_run(load, &io, 2);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void a_capture_does_not_depend_on_who_has_the_scratch(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL), *other = rig_load(&payload, NULL);
  struct io io, early;
  struct tandem_error error;
  void *stream = rig_stream(0), *elsewhere = rig_stream(0);
  io_init(&io, 3);
  io_init(&early, 3);
  io.run.stream = stream;
  early.run.stream = elsewhere;
  early.run.return_early = true;
  expect_run(load, &io, 1);
  rig_device->hold(true);
  assert_int_equal(tandem_load_run(other, &early.run, NULL), TANDEM_OK);
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  if (tandem_load_run(load, &io.run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(is_capturing(stream));
  void *instance = end_capture(stream);
  rig_device->hold(false);
  io_fill(&io, 2);
  replay(instance, stream);
  io_expect(&io, 2);
  drop_instance(instance);
  expect_run(load, &io, 3);
  tandem_load_destroy(other);
  tandem_load_destroy(load);
  io_fini(&early);
  io_fini(&io);
  rig_stream_free(0, elsewhere);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void a_captured_run_does_not_go_through_a_buffer_of_the_load(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct io io;
  struct tandem_error error;
  void *stream = rig_stream(0);
  io_init(&io, 3);
  io.run.stream = stream;
  expect_run(load, &io, 1);
  struct tandem_tensor aligned = io.input;
  io.input = rig_tensor((unsigned char *)io.x + 4, TANDEM_FLOAT32, 2, 3, 8);
  assert_int_equal(tandem_load_run(load, &io.run, NULL), TANDEM_OK); /* the load has the buffer now */
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(tandem_load_run(load, &io.run, &error), TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "the address of input 0 (x) is not aligned to 16 bytes"));
  assert_true(is_capturing(stream));
  drop_capture(stream);
  io.input = aligned;
  expect_run(load, &io, 2);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

static void a_run_in_flight_keeps_its_load_from_being_captured(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, NULL);
  struct io io;
  struct tandem_error error;
  void *stream = rig_stream(0), *done = NULL;
  io_init(&io, 3);
  io.run.stream = stream;
  expect_run(load, &io, 1);
  io.run.return_early = true;
  io.run.done = &done;
  rig_device->hold(true);
  assert_int_equal(tandem_load_run(load, &io.run, NULL), TANDEM_OK);
  io.run.return_early = false;
  io.run.done = NULL;
  begin_capture(stream, CU_CAPTURE_THREAD_LOCAL);
  assert_int_equal(tandem_load_run(load, &io.run, &error), TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "still in flight"));
  rig_device->hold(false);
  rig_event_wait(done);
  if (tandem_load_run(load, &io.run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(is_capturing(stream));
  drop_capture(stream);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_stream_free(0, stream);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- option cuda_graph */

static uint64_t launches(void) {
  return rig_device->calls("cuGraphLaunch");
}

static void runs_are_recorded_only_where_it_was_asked_for(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *plain = rig_load(&payload, NULL),
                     *recorded = rig_load(&payload, "cuda_graph", "true", NULL);
  struct io io;
  io_init(&io, 3);
  assert_int_equal(rig_stats().engines, 1);
  for (unsigned i = 0; i < 6; i++)
    expect_run(plain, &io, i);
  assert_int_equal(launches(), 0);
  for (unsigned i = 0; i < 3; i++)
    expect_run(recorded, &io, i);
  uint64_t enqueued = rig_library->calls(STANDIN_ENQUEUE), launched = launches();
  for (unsigned i = 0; i < 6; i++)
    expect_run(recorded, &io, i);
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), enqueued);
  assert_int_equal(launches(), launched + 6);
  /* On a caller's stream as well. */
  io.run.stream = rig_stream(0);
  expect_run(recorded, &io, 9);
  assert_int_equal(launches(), launched + 7);
  rig_stream_free(0, io.run.stream);
  tandem_load_destroy(plain);
  tandem_load_destroy(recorded);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void host_tensors_are_staged_around_a_recorded_run(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "1", NULL);
  for (unsigned i = 0; i < 6; i++)
    rig_expect_mlp(load, &rig_dynamic, 2, i);
  assert_true(launches() > 0);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void each_shape_set_has_its_graph_and_their_number_is_bounded(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  struct io io[12];
  struct standin_cuda_live live;
  for (int i = 0; i < 12; i++)
    io_init(&io[i], 1 + i % 8);
  for (int round = 0; round < 3; round++)
    for (int i = 0; i < 12; i++)
      for (unsigned seed = 0; seed < 4; seed++)
        expect_run(load, &io[i], seed);
  rig_device->live(&live);
  assert_int_equal(live.graph_instances, 8);
  assert_int_equal(live.graphs, 0);
  tandem_load_destroy(load);
  for (int i = 0; i < 12; i++)
    io_fini(&io[i]);
  rig_payload_free(&payload);
}

static void expect_plain(const char *sample, const char *line) {
  struct rig_payload payload = rig_sample(sample);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  assert_int_equal(rig_lines(line), 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void engines_that_cannot_be_recorded_run_plainly_and_say_why_once(void **state) {
  (void)state;
  expect_plain("cache", "cuda_graph: runs are not recorded: an output is aliased");
  expect_plain("shapes", "cuda_graph: runs are not recorded: a shape tensor");
}

static void outputs_whose_size_depends_on_the_data_are_not_recorded(void **state) {
  (void)state;
  struct rig_payload payload = rig_sample("positive");
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  float x[16], y[16];
  for (unsigned i = 0; i < 5; i++) {
    size_t positive = 0;
    rig_fill(x, 16, i);
    struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 1, 16),
                         output = rig_tensor(y, TANDEM_FLOAT32, 1, 16);
    struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
    assert_int_equal(rig_run(load, &run, NULL), TANDEM_OK);
    for (size_t k = 0; k < 16; k++)
      if (x[k] > 0)
        assert_true(y[positive++] == x[k]);
    assert_int_equal(output.shape[0], positive);
  }
  assert_int_equal(launches(), 0);
  assert_int_equal(rig_lines("depends on the data"), 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static void streams_of_green_contexts_run_plainly(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  struct io io;
  io_init(&io, 2);
  void *stream = rig_stream(0);
  rig_push(0);
  rig_device->make_green(stream);
  rig_pop(0);
  io.run.stream = stream;
  for (unsigned i = 0; i < 5; i++)
    expect_run(load, &io, i);
  assert_int_equal(launches(), 0);
  assert_int_equal(rig_lines("green context"), 1);
  io.run.stream = NULL;
  for (unsigned i = 0; i < 4; i++)
    expect_run(load, &io, i);
  assert_true(launches() > 0);
  rig_stream_free(0, stream);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void three_failed_recordings_end_it_and_every_run_is_right(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  struct io io;
  io_init(&io, 2);
  expect_run(load, &io, 0);
  expect_run(load, &io, 0);
  for (unsigned i = 0; i < 8; i++) {
    rig_device->fail_at("cuGraphInstantiate", 1, CU_NOT_SUPPORTED);
    expect_run(load, &io, i);
  }
  rig_device->fail_at(NULL, 0, 0);
  assert_int_equal(rig_lines("3 recordings failed"), 1);
  assert_int_equal(launches(), 0);
  uint64_t captures = rig_device->calls("cuStreamBeginCapture");
  assert_int_equal(captures, 3);
  expect_run(load, &io, 9);
  assert_int_equal(rig_device->calls("cuStreamBeginCapture"), captures);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_payload_free(&payload);
}

static void a_failing_enqueue_under_recording_falls_back_to_a_plain_run(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  struct io io;
  io_init(&io, 2);
  expect_run(load, &io, 0);
  expect_run(load, &io, 1);
  rig_library->fail_at(STANDIN_ENQUEUE, 1, STANDIN_FAIL_PLAIN);
  expect_run(load, &io, 2);
  expect_run(load, &io, 3);
  assert_true(launches() > 0);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_payload_free(&payload);
}

struct loading {
  const struct rig_payload *payload;
  struct tandem_load *load;
};

static void *load_there(void *argument) {
  struct loading *loading = argument;
  loading->load = rig_load(loading->payload, NULL);
  return NULL;
}

/* Ends only because the run does not wait for the build, which ends after it. */
static void a_run_that_would_be_recorded_goes_plainly_while_another_engine_is_built(void **state) {
  (void)state;
  const struct standin_mlp another = {.name = "another",
                                      .seed = 9,
                                      .layer_count = 1,
                                      .widths = (const int64_t[]){8, 4},
                                      .rows_min = 2,
                                      .rows_opt = 2,
                                      .rows_max = 2};
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0), slow = rig_mlp(&another, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  struct loading loading = {.payload = &slow};
  struct io io;
  pthread_t thread;
  io_init(&io, 2);
  expect_run(load, &io, 0);
  expect_run(load, &io, 1);
  rig_library->gate_close(STANDIN_DESERIALIZE);
  assert_int_equal(pthread_create(&thread, NULL, load_there, &loading), 0);
  assert_true(rig_library->wait_inside(STANDIN_DESERIALIZE, 1));
  for (unsigned i = 2; i < 7; i++)
    expect_run(load, &io, i);
  assert_int_equal(launches(), 0);
  rig_library->gate_open(STANDIN_DESERIALIZE);
  pthread_join(thread, NULL);
  expect_run(load, &io, 7);
  assert_int_equal(launches(), 1);
  assert_int_equal(rig_lines("recordings failed"), 0);
  tandem_load_destroy(loading.load);
  tandem_load_destroy(load);
  io_fini(&io);
  rig_payload_free(&slow);
  rig_payload_free(&payload);
}

static void *record_many(void *argument) {
  const struct beside *beside = argument;
  for (int i = 0; i < beside->rounds; i++) {
    struct tandem_load *load = rig_load(beside->payload, "cuda_graph", "true", NULL);
    for (unsigned k = 0; k < 5; k++)
      rig_expect_mlp(load, &rig_dynamic, 1 + i % 8, k);
    tandem_load_destroy(load);
  }
  return NULL;
}

static void loads_record_while_others_are_made_and_torn_down(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct beside beside = {&payload, 15};
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, i % 2 ? record_many : load_and_run, &beside), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(rig_lines("recordings failed"), 0);
  rig_payload_free(&payload);
}

/* ---------------------------------------------------------------- an older driver, in a process of its own
 */

static void drivers_below_12_5_record_nothing_and_say_so(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *load = rig_load(&payload, "cuda_graph", "true", NULL);
  for (unsigned i = 0; i < 5; i++)
    rig_expect_mlp(load, &rig_dynamic, 2, i);
  assert_int_equal(launches(), 0);
  assert_int_equal(rig_lines("the driver is of CUDA 12.4, 12.5 or later is needed"), 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static int run_with_older_driver(int argc, char **argv) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    const struct CMUnitTest tests[] = {RIG_TEST(drivers_below_12_5_record_nothing_and_say_so)};
    setenv("STANDIN_CUDA_DRIVER", "12040", 1);
    int failed = rig_start(argc, argv);
    failed = failed ? failed : cmocka_run_group_tests(tests, NULL, NULL);
    bound_end_child(failed ? 1 : 0);
  }
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
  int failed = run_with_older_driver(argc, argv);
  int status = rig_start(argc, argv);
  if (status)
    return status;
  const struct CMUnitTest tests[] = {
      RIG_TEST(a_warmed_up_load_is_captured_while_other_threads_load_and_run),
      RIG_TEST(not_even_a_global_capture_is_broken_by_other_threads),
      RIG_TEST(a_captured_loads_scratch_is_its_own_until_unload),
      RIG_TEST(a_first_run_or_an_allocation_under_capture_is_refused_and_breaks_nothing),
      RIG_TEST(a_capture_does_not_depend_on_who_has_the_scratch),
      RIG_TEST(runs_are_recorded_only_where_it_was_asked_for),
      RIG_TEST(host_tensors_are_staged_around_a_recorded_run),
      RIG_TEST(each_shape_set_has_its_graph_and_their_number_is_bounded),
      RIG_TEST(engines_that_cannot_be_recorded_run_plainly_and_say_why_once),
      RIG_TEST(outputs_whose_size_depends_on_the_data_are_not_recorded),
      RIG_TEST(streams_of_green_contexts_run_plainly),
      RIG_TEST(three_failed_recordings_end_it_and_every_run_is_right),
      RIG_TEST(a_failing_enqueue_under_recording_falls_back_to_a_plain_run),
      RIG_TEST(loads_record_while_others_are_made_and_torn_down),
      RIG_TEST(a_captured_run_does_not_go_through_a_buffer_of_the_load),
      RIG_TEST(a_run_in_flight_keeps_its_load_from_being_captured),
      RIG_TEST(a_run_that_would_be_recorded_goes_plainly_while_another_engine_is_built),
  };
  failed += cmocka_run_group_tests(tests, NULL, NULL);
  return failed ? 1 : 0;
}
