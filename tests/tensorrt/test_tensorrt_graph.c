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

/* A load of rig_dynamic, a stream, and tensors in device memory that it runs with on that stream. */
struct subject {
  struct rig_payload payload;
  struct tandem_load *load;
  void *stream;
  struct io io;
};

static void subject_init(struct subject *subject, int rows) {
  subject->payload = rig_mlp(&rig_dynamic, 0);
  subject->load = rig_load(&subject->payload, NULL);
  subject->stream = rig_stream(0);
  io_init(&subject->io, rows);
  subject->io.run.stream = subject->stream;
}

static void subject_fini(struct subject *subject) {
  tandem_load_destroy(subject->load);
  io_fini(&subject->io);
  rig_stream_free(0, subject->stream);
  rig_payload_free(&subject->payload);
}

static void subject_expect_run(struct subject *subject, unsigned seed) {
  expect_run(subject->load, &subject->io, seed);
}

/* Begins a capture and runs into it. */
static enum tandem_status run_captured(struct subject *subject, int mode, struct tandem_error *error) {
  begin_capture(subject->stream, mode);
  return tandem_load_run(subject->load, &subject->io.run, error);
}

/* The capture of a run that has to be taken. Owned. */
static void *capture(struct subject *subject) {
  struct tandem_error error;
  if (run_captured(subject, CU_CAPTURE_THREAD_LOCAL, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(is_capturing(subject->stream));
  return end_capture(subject->stream);
}

static void expect_replay(struct subject *subject, void *instance, unsigned seed) {
  io_fill(&subject->io, seed);
  replay(instance, subject->stream);
  io_expect(&subject->io, seed);
}

/* A capture that has to be refused with this text, with nothing queued, allocated, freed or waited for. */
static void expect_refusal(struct subject *subject, const char *text) {
  static const char *const calls[] = {"cuMemAlloc", "cuMemFree", "cuEventSynchronize", "cuStreamSynchronize"};
  uint64_t before[sizeof calls / sizeof *calls], enqueued = rig_library->calls(STANDIN_ENQUEUE);
  struct tandem_error error;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    before[i] = rig_calls(calls[i]);
  assert_int_equal(run_captured(subject, CU_CAPTURE_THREAD_LOCAL, &error), TANDEM_INVALID_STATE);
  if (strstr(error.message, text) == NULL)
    fail_msg("expected \"%s\" in: %s", text, error.message);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    if (rig_calls(calls[i]) != before[i])
      fail_msg("%s was called under the capture", calls[i]);
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), enqueued);
  assert_true(is_capturing(subject->stream));
  drop_capture(subject->stream);
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

/* Others may have the scratch just then, so the first capture may be refused, and no later one. */
static void capture_while_others_load_and_run(int mode) {
  struct subject subject;
  struct tandem_error error;
  pthread_t thread;
  subject_init(&subject, 3);
  subject_expect_run(&subject, 1);
  struct beside beside = {&subject.payload, 5};
  assert_int_equal(pthread_create(&thread, NULL, load_and_run, &beside), 0);
  if (run_captured(&subject, mode, &error) != TANDEM_OK) {
    assert_non_null(strstr(error.message, "no scratch of"));
    drop_capture(subject.stream);
    subject_expect_run(&subject, 2);
    if (run_captured(&subject, mode, &error) != TANDEM_OK)
      fail_msg("%s", error.message);
  }
  pthread_join(thread, NULL);
  assert_true(is_capturing(subject.stream));
  void *instance = end_capture(subject.stream);
  for (unsigned seed = 2; seed < 6; seed++)
    expect_replay(&subject, instance, seed);
  /* Other loads run meanwhile; what was captured has its own scratch, and so has a plain run. */
  beside.rounds = 2;
  load_and_run(&beside);
  subject_expect_run(&subject, 7);
  expect_replay(&subject, instance, 8);
  drop_instance(instance);
  subject_fini(&subject);
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
  struct subject captured, other;
  subject_init(&captured, 4);
  subject_init(&other, 4);
  subject_expect_run(&captured, 1);
  subject_expect_run(&other, 1);
  uint64_t one = rig_used(0);
  void *instance = capture(&captured);
  RIG_EXPECT_TOLD(rig_used(0), one);
  subject_expect_run(&other, 2); /* has to get scratch of its own now */
  uint64_t two = rig_used(0);
  RIG_EXPECT_TOLD(two > one, true);
  drop_instance(instance);
  subject_expect_run(&captured, 3);
  RIG_EXPECT_TOLD(rig_used(0), two);
  tandem_load_destroy(captured.load);
  captured.load = NULL;
  RIG_EXPECT_TOLD(rig_used(0), one);
  subject_expect_run(&other, 4);
  subject_fini(&captured);
  subject_fini(&other);
}

static void a_first_run_or_a_staged_tensor_under_capture_is_refused_and_breaks_nothing(void **state) {
  (void)state;
  struct subject subject;
  float x[FLOATS_IN], y[FLOATS_OUT];
  subject_init(&subject, 3);
  struct io io = subject.io;
  expect_refusal(&subject, "first run with these shapes");
  subject_expect_run(&subject, 1);
  rig_fill(x, FLOATS_IN, 1);
  subject.io.input = rig_tensor(x, TANDEM_FLOAT32, 2, 3, 8);
  expect_refusal(&subject, "host memory");
  subject.io.input = io.input;
  subject.io.output = rig_tensor(y, TANDEM_FLOAT32, 2, 3, 4);
  expect_refusal(&subject, "host memory");
  subject.io.input = rig_tensor(io.x, TANDEM_FLOAT32, 2, 5, 8);
  subject.io.output = rig_tensor(io.y, TANDEM_FLOAT32, 2, 5, 4);
  expect_refusal(&subject, "first run with these shapes");
  subject.io.input = io.input;
  subject.io.output = io.output;
  subject_expect_run(&subject, 2);
  subject_fini(&subject);
}

static void scratch_under_capture_is_what_is_idle_and_large_enough_and_never_new(void **state) {
  (void)state;
  struct subject subject, other;
  subject_init(&subject, 3);
  subject_init(&other, 3);
  struct tandem_load *third = rig_load(&subject.payload, NULL);
  subject_expect_run(&subject, 1);
  subject_expect_run(&other, 1);
  void *others = capture(&other); /* which keeps all the scratch there was */
  expect_refusal(&subject, "no scratch of");
  rig_expect_mlp(third, &rig_dynamic, 1, 1);
  expect_refusal(&subject, "no scratch of"); /* what there is now is too small */
  rig_expect_mlp(third, &rig_dynamic, 8, 1);
  uint64_t allocations = rig_calls("cuMemAlloc");
  void *instance = capture(&subject); /* what another load has left */
  RIG_EXPECT_TOLD(rig_calls("cuMemAlloc"), allocations);
  rig_expect_mlp(third, &rig_dynamic, 8, 2);
  expect_replay(&subject, instance, 2);
  expect_replay(&other, others, 3);
  subject_expect_run(&subject, 4);
  drop_instance(instance);
  drop_instance(others);
  tandem_load_destroy(third);
  subject_fini(&other);
  subject_fini(&subject);
}

/* Whatever others do: the run after a refusal keeps its scratch. */
static void a_load_that_was_refused_scratch_can_be_captured_after_its_next_run(void **state) {
  (void)state;
  struct subject subject, other;
  struct tandem_error error;
  void *done = NULL;
  subject_init(&subject, 3);
  subject_init(&other, 3);
  subject_expect_run(&subject, 1);
  other.io.run.return_early = true;
  other.io.run.done = &done;
  rig_hold(true);
  assert_int_equal(tandem_load_run(other.load, &other.io.run, NULL), TANDEM_OK);
  assert_true(rig_wait_held(1));
  expect_refusal(&subject, "no scratch of");
  rig_hold(false);
  rig_event_wait(done);
  subject_expect_run(&subject, 2);
  rig_hold(true);
  if (tandem_load_run(other.load, &other.io.run, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  assert_true(rig_wait_held(1));
  void *instance = capture(&subject);
  rig_hold(false);
  rig_event_wait(done);
  expect_replay(&subject, instance, 3);
  drop_instance(instance);
  subject_fini(&other);
  subject_fini(&subject);
}

static void scratch_that_was_given_up_is_refused_to_a_capture(void **state) {
  (void)state;
  struct rig_payload payload = rig_mlp(&rig_dynamic, 0);
  struct tandem_load *needy = rig_load(&payload, NULL);
  struct subject subject;
  struct tandem_error error;
  subject_init(&subject, 3);
  subject_expect_run(&subject, 1);
  /* Host tensors need buffers, which come from the idle scratch; the run's own scratch finds no memory. */
  float x[FLOATS_IN], y[FLOATS_OUT];
  rig_fill(x, FLOATS_IN, 1);
  struct tandem_tensor input = rig_tensor(x, TANDEM_FLOAT32, 2, 8, 8),
                       output = rig_tensor(y, TANDEM_FLOAT32, 2, 8, 4);
  struct tandem_run_desc run = {.inputs = &input, .input_count = 1, .outputs = &output, .output_count = 1};
  rig_device->set_memory(0, rig_used(0));
  assert_int_equal(rig_run(needy, &run, &error), TANDEM_OUT_OF_MEMORY);
  rig_device->set_memory(0, UINT64_C(1) << 34);
  expect_refusal(&subject, "it was given up");
  subject_expect_run(&subject, 2);
  void *instance = capture(&subject);
  expect_replay(&subject, instance, 3);
  drop_instance(instance);
  subject_fini(&subject);
  tandem_load_destroy(needy);
  rig_payload_free(&payload);
}

static void a_captured_run_does_not_go_through_a_buffer_of_the_load(void **state) {
  (void)state;
  struct subject subject;
  subject_init(&subject, 3);
  subject_expect_run(&subject, 1);
  struct tandem_tensor aligned = subject.io.input;
  subject.io.input = rig_tensor((unsigned char *)subject.io.x + 4, TANDEM_FLOAT32, 2, 3, 8);
  /* The load has the buffer now. */
  assert_int_equal(tandem_load_run(subject.load, &subject.io.run, NULL), TANDEM_OK);
  expect_refusal(&subject, "the address of input 0 (x) is not aligned to 16 bytes");
  subject.io.input = aligned;
  subject_expect_run(&subject, 2);
  subject_fini(&subject);
}

static void a_run_in_flight_keeps_its_load_from_being_captured(void **state) {
  (void)state;
  struct subject subject;
  void *done = NULL;
  subject_init(&subject, 3);
  subject_expect_run(&subject, 1);
  struct tandem_run_desc early = subject.io.run;
  early.return_early = true;
  early.done = &done;
  rig_hold(true);
  assert_int_equal(tandem_load_run(subject.load, &early, NULL), TANDEM_OK);
  expect_refusal(&subject, "still in flight");
  rig_hold(false);
  rig_event_wait(done);
  drop_instance(capture(&subject));
  subject_fini(&subject);
}

static void a_run_that_fails_under_capture_leaves_its_scratch_to_what_was_captured(void **state) {
  (void)state;
  struct subject subject, other;
  struct tandem_error error;
  subject_init(&subject, 4);
  subject_init(&other, 4);
  subject_expect_run(&subject, 1);
  subject_expect_run(&other, 1);
  uint64_t shared = rig_used(0);
  rig_library->fail_at(STANDIN_ENQUEUE, 1, STANDIN_FAIL_PLAIN);
  assert_int_not_equal(run_captured(&subject, CU_CAPTURE_THREAD_LOCAL, &error), TANDEM_OK);
  drop_capture(subject.stream);
  subject_expect_run(&other, 2);
  RIG_EXPECT_TOLD(rig_used(0) > shared, true);
  subject_expect_run(&subject, 3);
  subject_fini(&other);
  subject_fini(&subject);
}

static void a_capture_that_was_invalidated_is_told_from_one_that_goes_on(void **state) {
  (void)state;
  struct subject subject;
  struct tandem_error error;
  void *graph = NULL;
  uint64_t address;
  subject_init(&subject, 3);
  subject_expect_run(&subject, 1);
  rig_push(0);
  assert_int_equal(rig_cuda.capture_begin(subject.stream, CU_CAPTURE_GLOBAL), CU_OK);
  assert_int_not_equal(rig_cuda.allocate(&address, 64), CU_OK); /* not allowed meanwhile */
  assert_int_equal(tandem_load_run(subject.load, &subject.io.run, &error), TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "invalidated earlier"));
  assert_int_equal(rig_cuda.capture_end(subject.stream, &graph), CU_STREAM_CAPTURE_INVALIDATED);
  rig_pop(0);
  subject_expect_run(&subject, 2);
  subject_fini(&subject);
}

/* ---------------------------------------------------------------- option cuda_graph */

static uint64_t launches(void) {
  return rig_calls("cuGraphLaunch");
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
  RIG_EXPECT_TOLD(launches(), 0);
  for (unsigned i = 0; i < 3; i++)
    expect_run(recorded, &io, i);
  uint64_t enqueued = rig_library->calls(STANDIN_ENQUEUE), launched = launches();
  for (unsigned i = 0; i < 6; i++)
    expect_run(recorded, &io, i);
  assert_int_equal(rig_library->calls(STANDIN_ENQUEUE), enqueued);
  RIG_EXPECT_TOLD(launches(), launched + 6);
  /* On a caller's stream as well. */
  io.run.stream = rig_stream(0);
  expect_run(recorded, &io, 9);
  RIG_EXPECT_TOLD(launches(), launched + 7);
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
  RIG_EXPECT_TOLD(launches() > 0, true);
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
  if (rig_device) {
    rig_device->live(&live);
    assert_int_equal(live.graph_instances, 8);
    assert_int_equal(live.graphs, 0);
  }
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
  RIG_EXPECT_TOLD(launches(), 0);
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
  RIG_EXPECT_TOLD(launches(), 0);
  assert_int_equal(rig_lines("green context"), 1);
  io.run.stream = NULL;
  for (unsigned i = 0; i < 4; i++)
    expect_run(load, &io, i);
  RIG_EXPECT_TOLD(launches() > 0, true);
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
  RIG_EXPECT_TOLD(launches(), 0);
  uint64_t captures = rig_calls("cuStreamBeginCapture");
  assert_int_equal(captures, 3);
  expect_run(load, &io, 9);
  RIG_EXPECT_TOLD(rig_calls("cuStreamBeginCapture"), captures);
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
  RIG_EXPECT_TOLD(launches() > 0, true);
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
  RIG_EXPECT_TOLD(launches(), 0);
  rig_library->gate_open(STANDIN_DESERIALIZE);
  pthread_join(thread, NULL);
  expect_run(load, &io, 7);
  RIG_EXPECT_TOLD(launches(), 1);
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
  RIG_EXPECT_TOLD(launches(), 0);
  assert_int_equal(rig_lines("the driver is of CUDA 12.4, 12.5 or later is needed"), 1);
  tandem_load_destroy(load);
  rig_payload_free(&payload);
}

static int run_with_older_driver(int argc, char **argv) {
  const struct CMUnitTest tests[] = {RIG_TEST(drivers_below_12_5_record_nothing_and_say_so)};
  if (rig_on_real_driver())
    return RIG_RUN_TESTS(tests);
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("STANDIN_CUDA_DRIVER", "12040", 1);
    int failed = rig_start(argc, argv);
    failed = failed ? failed : RIG_RUN_TESTS(tests);
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
      RIG_TEST_ANYWHERE(a_warmed_up_load_is_captured_while_other_threads_load_and_run),
      RIG_TEST_ANYWHERE(not_even_a_global_capture_is_broken_by_other_threads),
      RIG_TEST_ANYWHERE(a_captured_loads_scratch_is_its_own_until_unload),
      RIG_TEST_ANYWHERE(a_first_run_or_a_staged_tensor_under_capture_is_refused_and_breaks_nothing),
      RIG_TEST_ANYWHERE(scratch_under_capture_is_what_is_idle_and_large_enough_and_never_new),
      RIG_TEST(a_load_that_was_refused_scratch_can_be_captured_after_its_next_run),
      RIG_TEST(scratch_that_was_given_up_is_refused_to_a_capture),
      RIG_TEST_ANYWHERE(runs_are_recorded_only_where_it_was_asked_for),
      RIG_TEST_ANYWHERE(host_tensors_are_staged_around_a_recorded_run),
      RIG_TEST_ANYWHERE(each_shape_set_has_its_graph_and_their_number_is_bounded),
      RIG_TEST_ANYWHERE(engines_that_cannot_be_recorded_run_plainly_and_say_why_once),
      RIG_TEST_ANYWHERE(outputs_whose_size_depends_on_the_data_are_not_recorded),
      RIG_TEST(streams_of_green_contexts_run_plainly),
      RIG_TEST(three_failed_recordings_end_it_and_every_run_is_right),
      RIG_TEST_ANYWHERE(a_failing_enqueue_under_recording_falls_back_to_a_plain_run),
      RIG_TEST_ANYWHERE(loads_record_while_others_are_made_and_torn_down),
      RIG_TEST_ANYWHERE(a_captured_run_does_not_go_through_a_buffer_of_the_load),
      RIG_TEST(a_run_in_flight_keeps_its_load_from_being_captured),
      RIG_TEST(a_run_that_fails_under_capture_leaves_its_scratch_to_what_was_captured),
      RIG_TEST(a_capture_that_was_invalidated_is_told_from_one_that_goes_on),
      RIG_TEST_ANYWHERE(a_run_that_would_be_recorded_goes_plainly_while_another_engine_is_built),
  };
  failed += RIG_RUN_TESTS(tests);
  return failed ? 1 : 0;
}
