/* One short pass over everything that reaches the GPU: for a memory checker, and before any figure is
 * believed. And two GPUs: the same bytes on both.
 */
#include "bench.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void expect(const struct model *model, const struct tensors *tensors, unsigned seed,
                   const char *what) {
  size_t size = tensors->count * sizeof(float);
  float *x = malloc(size), *expected = malloc(size), *found = read_output(tensors);
  must(x && expected, "no memory");
  for (size_t i = 0; i < tensors->count; i++)
    x[i] = (float)((i * 37 + seed * 101 + 11) % 64) / 16.0f - 2.0f;
  must(standin_mlp_expect(&model->mlp, x, ROWS, expected), "no memory");
  must(memcmp(found, expected, size) == 0, "wrong numbers: %s", what);
  free(x);
  free(expected);
  free(found);
}

static void clear_output(struct tensors *tensors) {
  size_t size = tensors->count * sizeof(float);
  if (tensors->device < 0) {
    memset(tensors->y.data, 0xff, size);
    return;
  }
  enter_device(tensors->device);
  must_cuda(cuda.set_async((uint64_t)(uintptr_t)tensors->y.data, 0xff, size, NULL), "cuMemsetD8Async");
  must_cuda(cuda.context_synchronize(), "cuCtxSynchronize");
  leave_device();
}

static void check_load(struct tandem_load *load, const struct model *model, int device, void *stream,
                       const char *what) {
  for (int place = -1; place <= 0; place++)
    for (unsigned seed = 1; seed <= 3; seed++) {
      struct tensors tensors;
      make_tensors(&tensors, model, place < 0 ? -1 : device, seed);
      clear_output(&tensors);
      run_load(load, &tensors, stream);
      expect(model, &tensors, seed, what);
      free_tensors(&tensors);
    }
}

static void check_early_return(struct tandem_load *load, const struct model *model, void *stream) {
  struct tensors tensors;
  struct tandem_error error;
  void *done = NULL;
  make_tensors(&tensors, model, 0, 4);
  clear_output(&tensors);
  const struct tandem_run_desc run = {.struct_size = sizeof run,
                                      .inputs = &tensors.x,
                                      .input_count = 1,
                                      .outputs = &tensors.y,
                                      .output_count = 1,
                                      .stream = stream,
                                      .return_early = true,
                                      .done = &done};
  must(tandem_load_run(load, &run, &error) == TANDEM_OK, "%s", error.message);
  enter_device(0);
  must_cuda(cuda.event_synchronize(done), "cuEventSynchronize");
  leave_device();
  expect(model, &tensors, 4, "a run that returned early");
  free_tensors(&tensors);
}

struct worker {
  struct tandem_load *load;
  const struct model *model;
  pthread_t thread;
};

static void *work(void *argument_of_thread) {
  struct worker *worker = argument_of_thread;
  check_load(worker->load, worker->model, 0, NULL, "one of four threads");
  return NULL;
}

cJSON *measure_check(int count, char **arguments) {
  static const char *const options[][2] = {{"share_scratch", "true"},
                                           {"share_scratch", "false"},
                                           {"cuda_graph", "true"},
                                           {"use_shared_engines", "false"},
                                           {"weight_streaming_budget", "4096"}};
  enum { OPTIONS = sizeof options / sizeof options[0] };
  struct model model;
  struct tandem_load *loads[OPTIONS];
  struct worker workers[OPTIONS];
  (void)count;
  (void)arguments;
  /* Few layers and powers of two: sums are exact, so the host's numbers are the GPU's. */
  make_model(&model, 3, 64, 4096, 5, STANDIN_PLAN_STREAMABLE);
  struct bytes payload = wrap_model(&model, 0);
  void *stream = make_stream(0);
  for (int i = 0; i < OPTIONS; i++) {
    loads[i] = load_payload(&payload, options[i][0], options[i][1], NULL);
    check_load(loads[i], &model, 0, NULL, options[i][0]);
    check_load(loads[i], &model, 0, stream, options[i][0]);
    check_early_return(loads[i], &model, stream);
  }
  for (int i = 0; i < OPTIONS; i++) {
    workers[i] = (struct worker){.load = loads[i], .model = &model};
    must(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
  }
  for (int i = 0; i < OPTIONS; i++)
    pthread_join(workers[i].thread, NULL);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "engines", (double)stats_now().engines);
  must(stats_now().engines == 3, "%llu engines, expected 3", (unsigned long long)stats_now().engines);
  for (int i = 0; i < OPTIONS; i++)
    tandem_load_destroy(loads[i]);
  enter_device(0);
  must_cuda(cuda.stream_destroy(stream), "cuStreamDestroy");
  leave_device();

  /* A refused plan, and the next load as if nothing had been. */
  struct tandem_load *load;
  struct tandem_error error;
  struct bytes broken = {0};
  broken.data = make_payload(model.plan, model.plan_size / 2, 0, &broken.size);
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "TensorRTBackend",
                                        .payload = broken.data,
                                        .payload_size = broken.size};
  must(tandem_load_create(&desc, &load, &error) != TANDEM_OK, "half a plan was taken");
  load = load_payload(&payload, NULL);
  check_load(load, &model, 0, NULL, "after a refused plan");
  tandem_load_destroy(load);
  must(stats_now().engines == 0 && stats_now().loads == 0, "something is left");
  free(broken.data);
  free(payload.data);
  free_model(&model);
  return document;
}

/* ---------------------------------------------------------------- two devices */

struct visit {
  const struct model *model;
  const struct bytes *payloads; /* one a device */
  uint64_t engines;
  int failures; /* the caller's context changed, an engine is not the device's, or its numbers are others */
};

static void count_if(struct visit *visit, bool wrong) {
  visit->failures += wrong;
}

static bool has_context(void) {
  void *context = NULL;
  must_cuda(cuda.context_get(&context), "cuCtxGetCurrent");
  return context != NULL;
}

/* On a fresh thread, which has no context and has to end without one. */
static void *visit_devices(void *argument_of_thread) {
  struct visit *visit = argument_of_thread;
  struct tandem_load *loads[2 * DEVICES_USED];
  for (int i = 0; i < 2 * DEVICES_USED; i++) {
    int64_t before = used_memory(i % 2);
    loads[i] = load_payload(&visit->payloads[i % 2], NULL);
    int64_t grown = used_memory(i % 2) - before;
    count_if(visit, has_context());
    count_if(visit, i < 2 && grown < (int64_t)model_weights(visit->model));
    count_if(visit, i >= 2 && grown > 4 * MIB);
    count_if(visit, strcmp(info_of(loads[i]).device, i % 2 ? "cuda:1" : "cuda:0") != 0);
  }
  visit->engines = stats_now().engines;
  float *expected = NULL;
  for (int i = 0; visit->engines == DEVICES_USED && i < 2 * DEVICES_USED; i++) {
    struct tensors tensors;
    make_tensors(&tensors, visit->model, i % 2, 1);
    clear_output(&tensors);
    run_load(loads[i], &tensors, NULL);
    float *found = read_output(&tensors);
    count_if(visit, expected && memcmp(found, expected, tensors.count * sizeof *found) != 0);
    count_if(visit, has_context());
    if (expected)
      free(found);
    else
      expected = found;
    free_tensors(&tensors);
  }
  free(expected);
  for (int i = 0; i < 2 * DEVICES_USED; i++) {
    tandem_load_destroy(loads[i]);
    count_if(visit, has_context());
  }
  return NULL;
}

cJSON *measure_devices(int count, char **arguments) {
  struct model model;
  struct bytes payloads[DEVICES_USED];
  int device_count = 0;
  must_cuda(cuda.device_count(&device_count), "cuDeviceGetCount");
  must(device_count >= DEVICES_USED, "%d devices, expected two", device_count);
  open_device(1);
  make_model(&model, (int32_t)argument(count, arguments, "layers", 4),
             argument(count, arguments, "width", 2048), MIB, 1, 0);
  for (int i = 0; i < DEVICES_USED; i++) {
    payloads[i] = wrap_model(&model, i);
    tandem_load_destroy(
        load_payload(&payloads[i], NULL)); /* what a first load of a process costs is not this one's */
  }
  struct visit visit = {.model = &model, .payloads = payloads};
  pthread_t thread;
  must(pthread_create(&thread, NULL, visit_devices, &visit) == 0, "no thread");
  pthread_join(thread, NULL);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "engines_of_the_same_bytes_on_two_devices", (double)visit.engines);
  judge(document, "engines_missing", DEVICES_USED - (double)visit.engines, 0);
  judge(document, "wrong_contexts_devices_growths_or_numbers", visit.failures, 0);
  for (int i = 0; i < DEVICES_USED; i++)
    free(payloads[i].data);
  free_model(&model);
  return document;
}
