/* Runs of AOTInductor engines on a GPU, as far as vendors/aotinductor/cuda.c goes: tensors, streams, captures
 * and recorded runs, over the stand-in driver and shims. The engine here is a few functions that copy their
 * input, on the stream that they are given, to device memory which stays: so its runs can be recorded. Whole
 * programs: test_cuda_backend.c. What compiled engines do is measured on a GPU by bench/gpu/aotinductor. */
#include "base.h"

#include "../../vendors/cuda/cuda.h"
#include "aoti.h"
#include "aotinductor.h"
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 8, SIZE = COUNT * sizeof(float) };

static struct driver cuda;
static const struct standin_cuda *standin;
static const struct standin_shims *shims;
/* Of the shims: the calling thread's own stream. */
static int32_t (*set_stream)(void *stream, int8_t device);
static void (*clear_stream)(int8_t device);
static struct tandem_error error;
static const struct tandem_resolution resolution = {.device = "cuda:0"};

/* ---------------------------------------------------------------- an engine */

static struct {
  uint64_t memory;  /* of the output */
  const void *read; /* the input of the last run */
  void *stream;     /* of the last run */
  int runs, refuse;
} engine;

static bool has_stream(void) {
  void *stream;
  return shims->current(0, &stream);
}

static int32_t run_engine(struct aoti_container *container, struct aoti_tensor **inputs, size_t input_count,
                          struct aoti_tensor **outputs, size_t output_count, void *stream, void *proxy) {
  (void)container, (void)proxy;
  assert_int_equal(input_count, 1);
  assert_int_equal(output_count, 1);
  struct aoti_tensor *in = inputs[0]; /* a run takes its inputs over */
  int64_t rank, *sizes, *strides;
  void *data;
  inputs[0] = NULL;
  td_aoti.tensor.tensor_data(in, &data);
  td_aoti.tensor.tensor_rank(in, &rank);
  td_aoti.tensor.tensor_sizes(in, &sizes);
  td_aoti.tensor.tensor_strides(in, &strides);
  engine.runs++;
  engine.stream = stream;
  engine.read = data;
  int32_t code = engine.refuse > 0 && engine.refuse-- > 0;
  size_t size = sizeof(float);
  for (int64_t d = 0; d < rank; d++)
    size *= (size_t)sizes[d];
  if (code == 0 && size > 0)
    code = cuda.copy_async(engine.memory, (uint64_t)(uintptr_t)data, size, stream);
  if (code == 0)
    code = td_aoti.tensor.create_tensor((void *)(uintptr_t)engine.memory, rank, sizes, strides, 0,
                                        TANDEM_FLOAT32, AOTI_DEVICE_CUDA, 0, &outputs[0], AOTI_LAYOUT_STRIDED,
                                        NULL, 0);
  td_aoti.tensor.delete_tensor(in);
  return code;
}

/* ---------------------------------------------------------------- its GPU code */

/* Loads two kernels in its first run, one of them from a file, as the code of compiled engines does. */
struct aoti_container {
  void *modules[2];
};

static bool unloads; /* what torch 2.13 compiles unloads with a container what that loaded, 2.11 nothing */
static struct {
  int32_t (*load_data)(void **module, const void *image);
  int32_t (*load)(void **module, const char *path);
  int32_t (*unload)(void *module);
} driver; /* as image.c binds an engine's library to it */
static const char image[] = "standin_gemm", image_path[] = "test_aoti_cuda.cubin";

static void bind_driver(void) {
  struct td_aoti_hook hooks[TD_AOTI_MODULE_HOOKS];
  td_aoti_module_hooks(hooks);
  for (int i = 0; i < TD_AOTI_MODULE_HOOKS; i++) {
    if (strcmp(hooks[i].name, "cuModuleLoadData") == 0)
      memcpy(&driver.load_data, &hooks[i].address, sizeof hooks[i].address);
    else if (strcmp(hooks[i].name, "cuModuleLoad") == 0)
      memcpy(&driver.load, &hooks[i].address, sizeof hooks[i].address);
    else if (strcmp(hooks[i].name, "cuModuleUnload") == 0)
      memcpy(&driver.unload, &hooks[i].address, sizeof hooks[i].address);
  }
  FILE *file = fopen(image_path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(image, sizeof image, 1, file), 1);
  fclose(file);
}

static int32_t create_container(struct aoti_container **container, size_t runners, const char *device,
                                const char *folder) {
  (void)runners, (void)device, (void)folder;
  *container = calloc(1, sizeof **container);
  return *container == NULL;
}

static int32_t destroy_container(struct aoti_container *container) {
  int32_t code = 0;
  for (int i = 0; i < 2 && unloads && code == 0; i++)
    code = container->modules[i] != NULL ? driver.unload(container->modules[i]) : 0;
  free(container);
  return code;
}

static int32_t run_kernels(struct aoti_container *container, struct aoti_tensor **inputs, size_t input_count,
                           struct aoti_tensor **outputs, size_t output_count, void *stream, void *proxy) {
  if (container->modules[0] == NULL && driver.load_data(&container->modules[0], image) != 0)
    return 1;
  if (container->modules[1] == NULL && driver.load(&container->modules[1], image_path) != 0)
    return 1;
  return run_engine(container, inputs, input_count, outputs, output_count, stream, proxy);
}

static int32_t count_one(struct aoti_container *container, size_t *count) {
  (void)container;
  *count = 1;
  return 0;
}

static int32_t give_name(struct aoti_container *container, size_t index, const char **name) {
  (void)container, (void)index;
  *name = "x";
  return 0;
}

/* ---------------------------------------------------------------- a context of it */

struct rig {
  struct td_aoti_engine engine;
  struct td_aoti_context context;
  struct tandem_io ios[2];
  struct aoti_tensor *handles[2];
};

static void enter(struct rig *rig) {
  assert_int_equal(td_aoti_cuda_enter(rig->engine.cuda, &error), TANDEM_OK);
}

static void open_rig(struct rig *rig, bool graph) {
  *rig =
      (struct rig){.engine = {.api = {.run = run_engine}, .device_type = AOTI_DEVICE_CUDA},
                   .ios = {{.name = "x", .dtype = -1, .rank = -1}, {.name = "y", .dtype = -1, .rank = -1}}};
  engine.runs = 0;
  assert_int_equal(td_aoti_cuda_acquire(&resolution, &rig->engine.cuda, &error), TANDEM_OK);
  rig->context = (struct td_aoti_context){.engine = &rig->engine,
                                          .ios = rig->ios,
                                          .input_count = 1,
                                          .output_count = 1,
                                          .handles = rig->handles,
                                          .share_scratch = true,
                                          .cuda_graph = graph};
  enter(rig);
  assert_int_equal(cuda.allocate(&engine.memory, SIZE), 0);
  assert_int_equal(td_aoti_cuda_context_init(&rig->context, &error), TANDEM_OK);
  td_aoti_cuda_leave(rig->engine.cuda);
}

static void close_rig(struct rig *rig) {
  struct standin_cuda_live live;
  enter(rig);
  assert_int_equal(td_aoti_cuda_settle(&rig->context, &error), TANDEM_OK);
  td_aoti_cuda_context_fini(&rig->context);
  cuda.release(engine.memory);
  td_aoti_cuda_leave(rig->engine.cuda);
  td_aoti_cuda_release(rig->engine.cuda);
  standin->live(&live);
  assert_int_equal(live.device_blocks, 0);
  assert_int_equal(live.streams + live.events + live.graphs + live.graph_instances, 0);
  assert_int_equal(live.primary_retains, 0);
  assert_int_equal(shims->tensors(), 0);
  assert_int_equal(standin->violations(), 0);
}

static struct tandem_tensor tensor_of(void *data, int64_t rows) {
  return (struct tandem_tensor){
      .data = data, .size = SIZE, .dtype = TANDEM_FLOAT32, .rank = 2, .shape = {rows, COUNT / 2}};
}

static enum tandem_status run_with(struct rig *rig, struct tandem_run_desc desc, void *in, void *out,
                                   int64_t rows) {
  struct tandem_tensor x = tensor_of(in, rows), y = tensor_of(out, rows);
  desc.struct_size = sizeof desc;
  desc.inputs = &x;
  desc.outputs = &y;
  desc.input_count = desc.output_count = 1;
  error = (struct tandem_error){0};
  enter(rig);
  enum tandem_status status = td_aoti_cuda_run(&rig->context, &desc, &error);
  td_aoti_cuda_leave(rig->engine.cuda);
  return status;
}

static void must_run(struct rig *rig, struct tandem_run_desc desc, void *in, void *out) {
  if (run_with(rig, desc, in, out, 2) != TANDEM_OK)
    fail_msg("%s", error.message);
}

static void *device_memory(struct rig *rig, const float *values) {
  uint64_t address;
  enter(rig);
  assert_int_equal(cuda.allocate(&address, 2 * SIZE), 0);
  if (values != NULL)
    assert_int_equal(cuda.copy_to(address, values, SIZE), 0);
  td_aoti_cuda_leave(rig->engine.cuda);
  return (void *)(uintptr_t)address;
}

static void put(struct rig *rig, void *to, const float *values) {
  enter(rig);
  assert_int_equal(cuda.copy_to((uint64_t)(uintptr_t)to, values, SIZE), 0);
  td_aoti_cuda_leave(rig->engine.cuda);
}

static void assert_holds(struct rig *rig, void *device, const float *values) {
  float found[COUNT];
  enter(rig);
  assert_int_equal(cuda.copy_from(found, (uint64_t)(uintptr_t)device, SIZE), 0);
  td_aoti_cuda_leave(rig->engine.cuda);
  assert_memory_equal(found, values, SIZE);
}

static void drop(struct rig *rig, void *device) {
  enter(rig);
  cuda.release((uint64_t)(uintptr_t)device);
  td_aoti_cuda_leave(rig->engine.cuda);
}

static const float ones[COUNT] = {1, 1, 1, 1, 2, 2, 2, 2}, others[COUNT] = {3, 4, 5, 6, 7, 8, 9, 10};
static const struct tandem_run_desc plainly;

/* ---------------------------------------------------------------- tests */

static void host_tensors_are_staged(void **state) {
  (void)state;
  struct rig rig;
  float in[COUNT], out[COUNT];
  open_rig(&rig, false);
  for (int i = 0; i < 3; i++) {
    memcpy(in, i == 1 ? others : ones, SIZE);
    memset(out, 0, SIZE);
    must_run(&rig, plainly, in, out);
    assert_memory_equal(out, in, SIZE);
    assert_ptr_not_equal(engine.read, in);
  }
  assert_int_equal(run_with(&rig, plainly, in, out, 0), TANDEM_OK); /* no elements */
  close_rig(&rig);
}

static void device_tensors_are_used_in_place_where_they_are_aligned(void **state) {
  (void)state;
  struct rig rig;
  open_rig(&rig, false);
  char *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL);
  must_run(&rig, plainly, in, out);
  assert_ptr_equal(engine.read, in);
  assert_holds(&rig, out, ones);
  put(&rig, in + 4, others);
  must_run(&rig, plainly, in + 4, out + 4);
  assert_int_equal((uintptr_t)engine.read % 16, 0);
  assert_holds(&rig, out + 4, others);
  drop(&rig, in);
  drop(&rig, out);
  close_rig(&rig);
}

static void pinned_inputs_are_used_in_place_where_they_are_aligned(void **state) {
  (void)state;
  struct rig rig;
  void *pinned;
  open_rig(&rig, false);
  char *out = device_memory(&rig, NULL);
  enter(&rig);
  assert_int_equal(cuda.host_allocate(&pinned, 2 * SIZE, 0), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  memcpy(pinned, ones, SIZE);
  must_run(&rig, plainly, pinned, out);
  assert_ptr_equal(engine.read, pinned);
  assert_holds(&rig, out, ones);
  char *odd = (char *)pinned + 4;
  memcpy(odd, others, SIZE);
  must_run(&rig, plainly, odd, out);
  assert_int_equal((uintptr_t)engine.read % 16, 0);
  assert_holds(&rig, out, others);
  enter(&rig);
  assert_int_equal(cuda.host_release(pinned), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  drop(&rig, out);
  close_rig(&rig);
}

static void outputs_are_freed_in_the_order_of_the_run_s_stream(void **state) {
  (void)state;
  struct rig rig;
  void *stream;
  float in[COUNT] = {0}, out[COUNT];
  open_rig(&rig, false);
  must_run(&rig, plainly, in, out);
  assert_non_null(engine.stream);
  assert_ptr_equal(shims->deleted_on(), engine.stream);
  enter(&rig);
  assert_int_equal(cuda.stream_create(&stream, 1), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  must_run(&rig, (struct tandem_run_desc){.stream = stream}, in, out);
  assert_ptr_equal(engine.stream, stream);
  assert_ptr_equal(shims->deleted_on(), stream);
  assert_false(has_stream());
  enter(&rig);
  cuda.stream_destroy(stream);
  td_aoti_cuda_leave(rig.engine.cuda);
  close_rig(&rig);
}

static enum tandem_status run_another(void *user, size_t output, struct tandem_tensor *tensor) {
  float in[COUNT] = {0}, out[COUNT];
  (void)output;
  must_run(user, plainly, in, out);
  tensor->size = SIZE;
  return TANDEM_OK;
}

static void a_run_inside_a_run_of_its_engine_leaves_no_stream_either(void **state) {
  (void)state;
  struct rig rig, other;
  float in[COUNT] = {0}, out[COUNT];
  open_rig(&rig, false);
  other = rig; /* a context of the same engine */
  other.context.ios = other.ios, other.context.handles = other.handles;
  enter(&rig);
  assert_int_equal(td_aoti_cuda_context_init(&other.context, &error), TANDEM_OK);
  td_aoti_cuda_leave(rig.engine.cuda);
  uint64_t streams = shims->streams();
  struct tandem_tensor x = tensor_of(in, 2), y = tensor_of(out, 1); /* of another shape than it gets */
  struct tandem_run_desc run = {.struct_size = sizeof run,
                                .inputs = &x,
                                .input_count = 1,
                                .outputs = &y,
                                .output_count = 1,
                                .resize = run_another,
                                .resize_user = &other};
  enter(&rig);
  assert_int_equal(td_aoti_cuda_run(&rig.context, &run, &error), TANDEM_OK);
  td_aoti_cuda_leave(rig.engine.cuda);
  assert_int_equal(engine.runs, 2);
  assert_int_equal(shims->streams(), streams);
  assert_false(has_stream());
  enter(&rig);
  td_aoti_cuda_context_fini(&other.context);
  td_aoti_cuda_leave(rig.engine.cuda);
  close_rig(&rig);
}

static void a_thread_that_runs_is_left_no_stream_and_keeps_the_one_that_it_has(void **state) {
  (void)state;
  struct rig rig;
  float in[COUNT] = {0}, out[COUNT];
  void *found;
  int own;
  open_rig(&rig, false);
  uint64_t streams = shims->streams();
  assert_false(has_stream());
  must_run(&rig, plainly, in, out);
  engine.refuse = 1;
  assert_int_equal(run_with(&rig, plainly, in, out, 2), TANDEM_DEVICE_ERROR);
  assert_int_equal(shims->streams(), streams);
  assert_false(has_stream());
  assert_int_equal(set_stream(&own, 0), 0);
  must_run(&rig, plainly, in, out);
  assert_ptr_equal(shims->deleted_on(), engine.stream);
  assert_true(shims->current(0, &found));
  assert_ptr_equal(found, &own);
  clear_stream(0);
  close_rig(&rig);
}

/* To the work of the engine itself, which here is another kind of copy. */
static void a_run_with_device_tensors_adds_nine_calls_of_the_driver(void **state) {
  (void)state;
  static const struct {
    const char *function;
    uint64_t calls;
  } expected[] = {{"cuCtxPushCurrent", 1},
                  {"cuCtxGetId", 1},
                  {"cuThreadExchangeStreamCaptureMode", 2},
                  {"cuPointerGetAttributes", 2},
                  {"cuStreamIsCapturing", 0},
                  {"cuMemcpyDtoDAsync", 1},
                  {"cuStreamSynchronize", 1},
                  {"cuCtxPopCurrent", 1},
                  {"cuMemAlloc", 0},
                  {"cuMemFree", 0},
                  {"cuEventRecord", 0},
                  {"cuEventSynchronize", 0},
                  {"cuStreamWaitEvent", 0},
                  {"cuMemGetInfo", 0}};
  struct rig rig;
  open_rig(&rig, false);
  void *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL);
  must_run(&rig, plainly, in, out); /* the first one does more */
  standin->reset();
  must_run(&rig, plainly, in, out);
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    if (standin->calls(expected[i].function) != expected[i].calls)
      fail_msg("%llu calls of %s, expected %llu", (unsigned long long)standin->calls(expected[i].function),
               expected[i].function, (unsigned long long)expected[i].calls);
  drop(&rig, in);
  drop(&rig, out);
  close_rig(&rig);
}

static void a_run_that_returns_early_ends_with_its_event(void **state) {
  (void)state;
  struct rig rig;
  void *stream, *done = NULL;
  open_rig(&rig, false);
  void *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL), *later = device_memory(&rig, NULL);
  enter(&rig);
  assert_int_equal(cuda.stream_create(&stream, 1), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  must_run(&rig, plainly, in, out); /* the first run waits for itself */
  put(&rig, in, others);
  must_run(&rig, (struct tandem_run_desc){.stream = stream, .return_early = true, .done = &done}, in, out);
  assert_non_null(done);
  must_run(&rig, plainly, in, later); /* after the one in flight, on another stream */
  enter(&rig);
  assert_int_equal(cuda.event_query(done), 0);
  cuda.stream_destroy(stream);
  td_aoti_cuda_leave(rig.engine.cuda);
  assert_holds(&rig, out, others);
  assert_holds(&rig, later, others);
  drop(&rig, in);
  drop(&rig, out);
  drop(&rig, later);
  close_rig(&rig);
}

static void a_run_that_repeats_is_recorded_and_replayed(void **state) {
  (void)state;
  struct rig rig;
  open_rig(&rig, true);
  void *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL);
  float host[COUNT];
  for (int i = 0; i < 6; i++) {
    put(&rig, in, i % 2 ? others : ones);
    must_run(&rig, plainly, in, out);
    assert_holds(&rig, out, i % 2 ? others : ones);
  }
  assert_int_equal(engine.runs, 3); /* the first one, one plain one, the recording */
  assert_int_equal(run_with(&rig, plainly, in, out, 1), TANDEM_OK); /* other shapes go plainly */
  assert_int_equal(engine.runs, 4);
  for (int i = 0; i < 5; i++)
    must_run(&rig, plainly, in, host); /* a host output goes through a buffer that the graph writes */
  assert_memory_equal(host, others, SIZE);
  drop(&rig, in);
  drop(&rig, out);
  close_rig(&rig);
}

static void engines_on_libtorch_are_not_recorded_or_captured(void **state) {
  (void)state;
  struct rig rig;
  void *stream, *graph = NULL;
  open_rig(&rig, false);
  void *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL);
  enter(&rig);
  td_aoti_cuda_context_fini(&rig.context);
  td_aoti.torch = rig.context.cuda_graph = true;
  assert_int_equal(td_aoti_cuda_context_init(&rig.context, &error), TANDEM_OK);
  td_aoti_cuda_leave(rig.engine.cuda);
  for (int i = 0; i < 5; i++)
    must_run(&rig, plainly, in, out);
  assert_int_equal(engine.runs, 5);
  enter(&rig);
  assert_int_equal(cuda.stream_create(&stream, 1), 0);
  assert_int_equal(cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  assert_int_equal(run_with(&rig, (struct tandem_run_desc){.stream = stream}, in, out, 2),
                   TANDEM_INVALID_STATE);
  assert_non_null(strstr(error.message, "libtorch"));
  td_aoti.torch = false;
  enter(&rig);
  assert_int_equal(cuda.capture_end(stream, &graph), 0);
  cuda.graph_destroy(graph);
  cuda.stream_destroy(stream);
  td_aoti_cuda_leave(rig.engine.cuda);
  drop(&rig, in);
  drop(&rig, out);
  close_rig(&rig);
}

static void a_warmed_up_run_is_captured_by_the_caller(void **state) {
  (void)state;
  struct rig rig;
  void *stream, *graph = NULL, *executable = NULL;
  float host[COUNT] = {0};
  open_rig(&rig, false);
  void *in = device_memory(&rig, ones), *out = device_memory(&rig, NULL);
  enter(&rig);
  assert_int_equal(cuda.stream_create(&stream, 1), 0);
  td_aoti_cuda_leave(rig.engine.cuda);
  const struct tandem_run_desc on_stream = {.stream = stream};
  for (int warm = 0; warm < 2; warm++) {
    enter(&rig);
    assert_int_equal(cuda.capture_begin(stream, CU_CAPTURE_THREAD_LOCAL), 0);
    td_aoti_cuda_leave(rig.engine.cuda);
    assert_int_equal(run_with(&rig, on_stream, host, out, 2), TANDEM_INVALID_STATE);
    assert_non_null(strstr(error.message, "host memory"));
    int runs = engine.runs;
    assert_int_equal(run_with(&rig, on_stream, in, host, 2), TANDEM_INVALID_STATE);
    assert_non_null(strstr(error.message, warm ? "host memory" : "first run"));
    assert_int_equal(engine.runs, runs); /* nothing of it is in the capture */
    enum tandem_status status = run_with(&rig, on_stream, in, out, 2);
    assert_int_equal(status, warm ? TANDEM_OK : TANDEM_INVALID_STATE);
    enter(&rig);
    assert_int_equal(cuda.capture_end(stream, &graph), 0);
    if (warm)
      assert_int_equal(cuda.graph_instantiate(&executable, graph, 0), 0);
    cuda.graph_destroy(graph);
    td_aoti_cuda_leave(rig.engine.cuda);
    if (!warm) {
      assert_non_null(strstr(error.message, "first run"));
      must_run(&rig, on_stream, in, out);
    }
  }
  put(&rig, in, others);
  enter(&rig);
  assert_int_equal(cuda.graph_launch(executable, stream), 0);
  assert_int_equal(cuda.stream_synchronize(stream), 0);
  cuda.graph_instance_destroy(executable);
  cuda.stream_destroy(stream);
  td_aoti_cuda_leave(rig.engine.cuda);
  assert_holds(&rig, out, others);
  drop(&rig, in);
  drop(&rig, out);
  close_rig(&rig);
}

static int locks_held, hooks_called, hooks_under_lock;

static void take_alone(struct tandem_host_lock *lock) {
  td_host.lock_alone(lock);
  locks_held++;
}

static void take_shared(struct tandem_host_lock *lock) {
  td_host.lock_shared(lock);
  locks_held++;
}

static void give_back(struct tandem_host_lock *lock) {
  locks_held--;
  td_host.unlock(lock);
}

static void note_hook(void *user) {
  (void)user;
  hooks_called++;
  hooks_under_lock += locks_held > 0;
}

static void the_wait_hooks_find_no_lock_held_in_a_first_run(void **state) {
  (void)state;
  struct tandem_host host = td_host;
  struct rig rig;
  float in[COUNT], out[COUNT];
  host.lock_alone = take_alone, host.lock_shared = take_shared, host.unlock = give_back;
  memcpy(in, ones, SIZE);
  open_rig(&rig, false);
  td_aoti_set_host(&host);
  td_cuda_set_host(&host);
  tandem_set_wait_hooks(note_hook, note_hook, NULL);
  locks_held = hooks_called = hooks_under_lock = 0;
  must_run(&rig, plainly, in, out);
  tandem_set_wait_hooks(NULL, NULL, NULL);
  td_aoti_set_host(&td_host);
  td_cuda_set_host(&td_host);
  assert_true(hooks_called >= 2 && locks_held == 0);
  assert_int_equal(hooks_under_lock, 0);
  close_rig(&rig);
}

static void what_cannot_run_is_told_and_the_next_run_works(void **state) {
  (void)state;
  struct rig rig;
  float in[COUNT], out[COUNT];
  open_rig(&rig, false);
  memcpy(in, ones, SIZE);
  engine.refuse = 1;
  assert_int_equal(run_with(&rig, plainly, in, out, 2), TANDEM_DEVICE_ERROR);
  assert_non_null(strstr(error.message, "run the program"));
  assert_int_equal(run_with(&rig, plainly, in, NULL, 2), TANDEM_INVALID_ARGUMENT); /* no address */
  standin->fail_at("cuMemAlloc", 1, CU_OUT_OF_MEMORY);
  must_run(&rig, plainly, in, out); /* its buffer is there already */
  standin->fail_at(NULL, 0, 0);
  assert_memory_equal(out, ones, SIZE);
  close_rig(&rig);
}

static void memory_of_another_device_is_refused_by_name(void **state) {
  (void)state;
  struct rig rig;
  void *second = NULL, *popped;
  uint64_t there;
  float out[COUNT];
  open_rig(&rig, false);
  assert_int_equal(cuda.primary_retain(&second, 1), 0);
  cuda.context_push(second);
  assert_int_equal(cuda.allocate(&there, SIZE), 0);
  cuda.context_pop(&popped);
  assert_int_equal(run_with(&rig, plainly, (void *)(uintptr_t)there, out, 2), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "input 0 (x) lies in memory of cuda:1"));
  cuda.context_push(second);
  cuda.release(there);
  cuda.context_pop(&popped);
  cuda.primary_release(1);
  close_rig(&rig);
}

static void only_a_primary_context_is_taken_and_only_a_gpu_that_is_new_enough(void **state) {
  (void)state;
  struct tandem_resolution found;
  void *own, *popped;
  assert_int_equal(td_aoti_cuda_resolve(0, 90, &found, &error), TANDEM_OK);
  assert_string_equal(found.device, "cuda:0");
  assert_int_equal(td_aoti_cuda_resolve(0, 100, &found, &error), TANDEM_UNSUPPORTED);
  assert_non_null(strstr(error.message, "compute capability 10.0, cuda:0"));
  assert_int_equal(td_aoti_cuda_resolve(7, 0, &found, &error), TANDEM_UNSUPPORTED);
  assert_int_equal(cuda.context_create(&own, 0, 0), 0); /* current from here on */
  assert_int_equal(td_aoti_cuda_resolve(0, 0, &found, &error), TANDEM_UNSUPPORTED);
  assert_non_null(strstr(error.message, "primary"));
  cuda.context_pop(&popped);
  cuda.context_destroy(own);
}

static void a_program_for_a_gpu_goes_to_the_one_that_the_option_names(void **state) {
  (void)state;
  static const struct {
    const char *device, *found; /* NULL: refused */
  } cases[] = {{"", "cuda:0"},   {"cuda", "cuda:0"}, {"cuda:0", "cuda:0"}, {"cuda:1", "cuda:1"},
               {"cuda:9", NULL}, {"cpu", NULL},      {"cuda:1x", NULL}};
  struct td_aoti_program program = {.device_type = AOTI_DEVICE_CUDA};
  struct tandem_payload payload = {.state = &program};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct tandem_resolution found;
    const char *options[TD_AOTI_OPTION_COUNT] = {[TD_AOTI_DEVICE] = cases[i].device};
    enum tandem_status status = td_aoti_resolve(&payload, options, &found, &error);
    assert_int_equal(status == TANDEM_OK, cases[i].found != NULL);
    if (status == TANDEM_OK)
      assert_string_equal(found.device, cases[i].found);
  }
}

/* As a context is whose engine is bound to libtorch. */
static void bind_to_libtorch(struct rig *rig) {
  enter(rig);
  td_aoti_cuda_context_fini(&rig->context);
  td_aoti.torch = true;
  assert_int_equal(td_aoti_cuda_context_init(&rig->context, &error), TANDEM_OK);
  td_aoti.torch = false;
  td_aoti_cuda_leave(rig->engine.cuda);
}

static void loads_on_libtorch_that_take_turns_run_on_one_stream(void **state) {
  (void)state;
  struct rig first, second;
  struct td_cuda_context *device;
  float in[COUNT], out[COUNT];
  void *leased;
  memcpy(in, ones, SIZE);
  open_rig(&first, false);
  uint64_t memory = engine.memory;
  open_rig(&second, false);
  bind_to_libtorch(&first);
  bind_to_libtorch(&second);
  assert_int_equal(td_cuda_acquire(0, resolution.context_id, &device, &error), TANDEM_OK);
  must_run(&first, plainly, in, out);
  void *shared = engine.stream;
  must_run(&second, plainly, in, out);
  assert_ptr_equal(engine.stream, shared);
  engine.refuse = 1;
  assert_int_not_equal(run_with(&second, plainly, in, out, 2), TANDEM_OK);
  must_run(&first, plainly, in, out);
  assert_ptr_equal(engine.stream, shared);

  /* Beside a run that has it. */
  enter(&first);
  assert_int_equal(td_stream_lease(device, &leased), 0);
  assert_ptr_equal(leased, shared);
  must_run(&second, plainly, in, out);
  assert_ptr_not_equal(engine.stream, shared);
  td_stream_return(device, leased, true);
  must_run(&second, plainly, in, out);
  assert_ptr_equal(engine.stream, shared);

  /* One that may still be at work goes to nobody. */
  assert_int_equal(td_stream_lease(device, &leased), 0);
  assert_ptr_equal(leased, shared);
  td_stream_return(device, leased, false);
  must_run(&second, plainly, in, out);
  assert_ptr_not_equal(engine.stream, shared);
  assert_memory_equal(out, in, SIZE);

  td_cuda_release(device);
  td_aoti_cuda_context_fini(&first.context);
  cuda.release(memory);
  td_aoti_cuda_leave(first.engine.cuda);
  td_aoti_cuda_release(first.engine.cuda);
  close_rig(&second);
}

static void weights_are_copied_whole_in_either_direction(void **state) {
  (void)state;
  struct rig rig;
  float back[COUNT];
  void *memory, *copy;
  open_rig(&rig, false);
  enter(&rig);
  assert_int_equal(td_aoti_cuda_allocate(rig.engine.cuda, SIZE, &memory, &error), TANDEM_OK);
  assert_int_equal(td_aoti_cuda_allocate(rig.engine.cuda, SIZE, &copy, &error), TANDEM_OK);
  assert_int_equal(td_aoti_cuda_copy(rig.engine.cuda, memory, others, SIZE, &error), TANDEM_OK);
  assert_int_equal(td_aoti_cuda_copy(rig.engine.cuda, copy, memory, SIZE, &error), TANDEM_OK);
  assert_int_equal(td_aoti_cuda_copy(rig.engine.cuda, back, copy, SIZE, &error), TANDEM_OK);
  assert_memory_equal(back, others, SIZE);
  td_aoti_cuda_free(rig.engine.cuda, copy);
  assert_int_equal(td_aoti_cuda_allocate(rig.engine.cuda, (size_t)1 << 60, &copy, &error),
                   TANDEM_OUT_OF_MEMORY);
  td_aoti_cuda_free(rig.engine.cuda, memory);
  td_aoti_cuda_leave(rig.engine.cuda);
  close_rig(&rig);
}

static struct td_aoti_engine *make_engine(void) {
  struct td_aoti_engine *made = td_host.allocate(sizeof *made);
  *made = (struct td_aoti_engine){.api = {.create = create_container,
                                          .destroy = destroy_container,
                                          .run = run_kernels,
                                          .input_count = count_one,
                                          .output_count = count_one,
                                          .input_name = give_name,
                                          .output_name = give_name},
                                  .device_type = AOTI_DEVICE_CUDA,
                                  .modules = td_aoti_modules_create()};
  assert_non_null(made->modules);
  assert_int_equal(td_aoti_cuda_acquire(&resolution, &made->cuda, &error), TANDEM_OK);
  return made;
}

static struct td_aoti_context *make_context(struct td_aoti_engine *of) {
  struct td_aoti_program program = {.device_type = AOTI_DEVICE_CUDA};
  struct tandem_payload payload = {.state = &program};
  struct tandem_context_desc desc = {.payload = &payload};
  struct tandem_context_io io;
  void *context;
  assert_int_equal(td_aoti_context_create(of, &desc, &context, &io, &error), TANDEM_OK);
  return context;
}

static enum tandem_status run_context(struct td_aoti_context *context) {
  float in[COUNT], out[COUNT] = {0};
  struct tandem_tensor x = tensor_of(in, 2), y = tensor_of(out, 2);
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = &x, .outputs = &y, .input_count = 1, .output_count = 1};
  memcpy(in, others, SIZE);
  enum tandem_status status = td_aoti_run(context, &desc, &error);
  if (status == TANDEM_OK)
    assert_memory_equal(out, others, SIZE);
  return status;
}

static void assert_modules(uint64_t loaded) {
  struct standin_cuda_live live;
  standin->live(&live);
  assert_int_equal(live.modules, loaded);
}

static void contexts_of_one_engine_share_its_gpu_code_which_goes_with_it(void **state) {
  (void)state;
  struct rig rig; /* holds the memory of the outputs */
  bind_driver();
  open_rig(&rig, false);
  for (int with = 0; with < 2; with++) {
    unloads = with;
    uint64_t none = td_memory_live(), live;
    struct td_aoti_engine *first = make_engine(), *second = make_engine();
    struct td_aoti_context *stays = make_context(first);
    assert_modules(0);
    assert_int_equal(run_context(stays), TANDEM_OK);
    live = td_memory_live(); /* with what the engine keeps of its first run */
    for (int i = 0; i < 20; i++) {
      struct td_aoti_context *context = make_context(first);
      assert_int_equal(run_context(context), TANDEM_OK);
      assert_int_equal(run_context(stays), TANDEM_OK);
      td_aoti_context_destroy(context);
      assert_modules(2);
      assert_int_equal(td_memory_live(), live);
    }
    struct td_aoti_context *other = make_context(second);
    assert_int_equal(run_context(other), TANDEM_OK);
    assert_modules(4);
    td_aoti_context_destroy(stays);
    td_aoti_engine_destroy(first);
    assert_modules(2);
    assert_int_equal(run_context(other), TANDEM_OK);
    td_aoti_context_destroy(other);
    td_aoti_engine_destroy(second);
    assert_modules(0);
    assert_int_equal(td_memory_live(), none);
  }
  remove(image_path);
  close_rig(&rig);
}

enum { THREADS = 4 };

struct loader {
  struct td_aoti_engine *engine;
  pthread_barrier_t *start;
  pthread_t thread;
  void *module;
  int32_t code;
};

static void *load_once(void *user) {
  struct loader *loader = user;
  struct td_aoti_watch watch = {.modules = loader->engine->modules};
  loader->code = td_aoti_cuda_enter(loader->engine->cuda, NULL) == TANDEM_OK ? 0 : 1;
  pthread_barrier_wait(loader->start);
  if (loader->code == 0) {
    td_aoti_watch(&watch);
    loader->code = driver.load_data(&loader->module, image);
    td_aoti_watch(NULL);
    td_aoti_cuda_leave(loader->engine->cuda);
  }
  return NULL;
}

static void threads_that_want_the_same_gpu_code_get_one_module(void **state) {
  (void)state;
  struct loader loaders[THREADS];
  pthread_barrier_t start;
  bind_driver();
  struct td_aoti_engine *made = make_engine();
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) {
    loaders[i] = (struct loader){.engine = made, .start = &start};
    assert_int_equal(pthread_create(&loaders[i].thread, NULL, load_once, &loaders[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(loaders[i].thread, NULL);
  pthread_barrier_destroy(&start);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(loaders[i].code, 0);
    assert_ptr_equal(loaders[i].module, loaders[0].module);
  }
  assert_modules(1);
  td_aoti_engine_destroy(made);
  assert_modules(0);
  remove(image_path);
}

static void gpu_code_that_does_not_load_is_asked_for_again(void **state) {
  (void)state;
  struct rig rig;
  bind_driver();
  open_rig(&rig, false);
  struct td_aoti_engine *made = make_engine();
  struct td_aoti_context *context = make_context(made);
  standin->fail_at("cuModuleLoadData", 2, CU_OUT_OF_MEMORY);
  assert_int_equal(run_context(context), TANDEM_DEVICE_ERROR);
  assert_modules(1);
  standin->fail_at(NULL, 0, 0);
  assert_int_equal(run_context(context), TANDEM_OK);
  assert_modules(2);
  td_aoti_context_destroy(context);
  td_aoti_engine_destroy(made);
  assert_modules(0);
  remove(image_path);
  close_rig(&rig);
}

static int (*pool_default)(void **pool, int device);
static int (*pool_get)(void *pool, int attribute, void *value);
static int (*pool_set)(void *pool, int attribute, void *value);

static uint64_t read_threshold(void *pool) {
  uint64_t threshold = 0;
  assert_int_equal(pool_get(pool, 4, &threshold), 0);
  return threshold;
}

static void the_pool_keeps_its_memory_while_there_is_an_engine(void **state) {
  (void)state;
  uint64_t before = 1 << 20, chosen = 77;
  void *pool;
  assert_int_equal(pool_default(&pool, 0), 0);
  assert_int_equal(pool_set(pool, 4, &before), 0);
  standin->reset();
  struct td_aoti_engine *first = make_engine(), *second = make_engine();
  assert_true(read_threshold(pool) > (uint64_t)1 << 60);
  td_aoti_engine_destroy(first);
  assert_true(read_threshold(pool) > (uint64_t)1 << 60);
  assert_int_equal(standin->calls("cuMemPoolTrimTo"), 0);
  enter(&(struct rig){.engine = *second});
  void *memory;
  assert_int_equal(td_aoti_cuda_allocate(second->cuda, (size_t)1 << 60, &memory, &error),
                   TANDEM_OUT_OF_MEMORY); /* only after what is idle there was given up */
  assert_int_equal(standin->calls("cuMemPoolTrimTo"), 1);
  td_aoti_cuda_make_room(second->cuda, 1);
  assert_int_equal(standin->calls("cuMemPoolTrimTo"), 1);
  td_aoti_cuda_make_room(second->cuda, (size_t)1 << 60);
  assert_int_equal(standin->calls("cuMemPoolTrimTo"), 2);
  td_aoti_cuda_leave(second->cuda);
  td_aoti_engine_destroy(second);
  assert_int_equal(standin->calls("cuMemPoolTrimTo"), 3);
  assert_int_equal(read_threshold(pool), before);
  first = make_engine();
  assert_int_equal(pool_set(pool, 4, &chosen), 0); /* by the application, which may */
  td_aoti_engine_destroy(first);
  assert_int_equal(read_threshold(pool), chosen);
  assert_int_equal(standin->violations(), 0);
}

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
static void find(void *library, const char *name, void *function) {
  void *address = dlsym(library, name);
  memcpy(function, &address, sizeof address);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(host_tensors_are_staged),
      cmocka_unit_test(device_tensors_are_used_in_place_where_they_are_aligned),
      cmocka_unit_test(pinned_inputs_are_used_in_place_where_they_are_aligned),
      cmocka_unit_test(outputs_are_freed_in_the_order_of_the_run_s_stream),
      cmocka_unit_test(a_thread_that_runs_is_left_no_stream_and_keeps_the_one_that_it_has),
      cmocka_unit_test(a_run_inside_a_run_of_its_engine_leaves_no_stream_either),
      cmocka_unit_test(a_run_with_device_tensors_adds_nine_calls_of_the_driver),
      cmocka_unit_test(a_run_that_returns_early_ends_with_its_event),
      cmocka_unit_test(a_run_that_repeats_is_recorded_and_replayed),
      cmocka_unit_test(engines_on_libtorch_are_not_recorded_or_captured),
      cmocka_unit_test(a_warmed_up_run_is_captured_by_the_caller),
      cmocka_unit_test(the_wait_hooks_find_no_lock_held_in_a_first_run),
      cmocka_unit_test(what_cannot_run_is_told_and_the_next_run_works),
      cmocka_unit_test(memory_of_another_device_is_refused_by_name),
      cmocka_unit_test(only_a_primary_context_is_taken_and_only_a_gpu_that_is_new_enough),
      cmocka_unit_test(a_program_for_a_gpu_goes_to_the_one_that_the_option_names),
      cmocka_unit_test(loads_on_libtorch_that_take_turns_run_on_one_stream),
      cmocka_unit_test(weights_are_copied_whole_in_either_direction),
      cmocka_unit_test(contexts_of_one_engine_share_its_gpu_code_which_goes_with_it),
      cmocka_unit_test(threads_that_want_the_same_gpu_code_get_one_module),
      cmocka_unit_test(gpu_code_that_does_not_load_is_asked_for_again),
      cmocka_unit_test(the_pool_keeps_its_memory_while_there_is_an_engine),
  };
  char why[256];
  struct tandem_vendor_library opened;
  td_cuda_set_host(&td_host);
  if (!standin_aoti_start(false, &standin, &shims) || !driver_open(&cuda, why, sizeof why) ||
      td_aoti_open(&td_host, &opened, &error) != TANDEM_OK)
    return fprintf(stderr, "no stand-in driver or shims\n"), 1;
  void *library = dlopen(getenv("TANDEM_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  find(library, "cuDeviceGetDefaultMemPool", &pool_default);
  find(library, "cuMemPoolGetAttribute", &pool_get);
  find(library, "cuMemPoolSetAttribute", &pool_set);
  find(td_aoti.handle, "_ZN10executorch8backends4cuda20setCurrentCUDAStreamEP11CUstream_sta", &set_stream);
  find(td_aoti.handle, "_ZN10executorch8backends4cuda22clearCurrentCUDAStreamEa", &clear_stream);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
