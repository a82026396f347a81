/* Loads that race, and loads that come and go beside a load that runs 200 times a second.
 */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------- a storm of loads beside a runner */

enum { PERIOD_NS = 5000000, SAMPLES_MAX = 1 << 16 };

enum storm { STORM_NONE, STORM_FIRST_LOADS, STORM_SHARED_LOADS };

struct stormer {
  const struct bytes *payload;
  _Atomic bool end;
  uint64_t loads;
};

static void *storm(void *argument_of_thread) {
  struct stormer *stormer = argument_of_thread;
  while (!atomic_load(&stormer->end)) {
    tandem_load_destroy(load_payload(stormer->payload, NULL));
    stormer->loads++;
  }
  return NULL;
}

static void run_phase(cJSON *document, enum storm kind, struct tandem_load *runner, struct tensors *tensors,
                      const struct bytes *payload, double seconds, double *p99) {
  static const char *const names[] = {"none", "first_loads", "shared_loads"};
  static double times[SAMPLES_MAX];
  struct stormer stormer = {.payload = payload};
  struct tandem_load *keeper = kind == STORM_SHARED_LOADS ? load_payload(payload, NULL) : NULL;
  pthread_t thread;
  if (kind != STORM_NONE)
    must(pthread_create(&thread, NULL, storm, &stormer) == 0, "no thread");
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  size_t samples = 0;
  double began = now_s();
  while (now_s() - began < seconds && samples < SAMPLES_MAX) {
    next.tv_nsec += PERIOD_NS;
    next.tv_sec += next.tv_nsec / 1000000000;
    next.tv_nsec %= 1000000000;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    double from = now_s();
    run_load(runner, tensors, NULL);
    times[samples++] = now_s() - from;
  }
  double lasted = now_s() - began;
  atomic_store(&stormer.end, true);
  if (kind != STORM_NONE)
    pthread_join(thread, NULL);
  tandem_load_destroy(keeper);
  cJSON *phase = cJSON_CreateObject();
  *p99 = percentile(times, samples, 99) * 1e3;
  cJSON_AddStringToObject(phase, "storm", names[kind]);
  cJSON_AddNumberToObject(phase, "runs", (double)samples);
  cJSON_AddNumberToObject(phase, "loads_per_s", (double)stormer.loads / lasted);
  cJSON_AddNumberToObject(phase, "p50_ms", percentile(times, samples, 50) * 1e3);
  cJSON_AddNumberToObject(phase, "p99_ms", *p99);
  cJSON_AddNumberToObject(phase, "max_ms", times[samples - 1] * 1e3);
  cJSON_AddItemToArray(cJSON_GetObjectItem(document, "phases"), phase);
}

cJSON *measure_storm(int count, char **arguments) {
  struct model runs, comes;
  struct tensors tensors;
  double p99[3];
  make_model(&runs, (int32_t)argument(count, arguments, "runner_layers", 40),
             argument(count, arguments, "width", 724), MIB, 7, 0);
  make_model(&comes, (int32_t)argument(count, arguments, "storm_layers", 64),
             argument(count, arguments, "width", 724), MIB, 8, 0);
  double seconds = (double)argument(count, arguments, "seconds", 6);
  struct bytes runner_payload = wrap_model(&runs, 0), storm_payload = wrap_model(&comes, 0);
  struct tandem_load *runner = load_payload(&runner_payload, NULL);
  make_tensors(&tensors, &runs, 0, 1);
  for (int i = 0; i < 20; i++)
    run_load(runner, &tensors, NULL);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "storm_weights_bytes", (double)model_weights(&comes));
  cJSON_AddArrayToObject(document, "phases");
  for (int kind = STORM_NONE; kind <= STORM_SHARED_LOADS; kind++)
    run_phase(document, (enum storm)kind, runner, &tensors, &storm_payload, seconds, &p99[kind]);
  tandem_load_destroy(runner);
  free_tensors(&tensors);
  free(runner_payload.data);
  free(storm_payload.data);
  free_model(&runs);
  free_model(&comes);
  return document;
}

/* ---------------------------------------------------------------- a race under a cap */

enum { RACERS = 8 };

struct racer {
  const struct bytes *payload;
  pthread_barrier_t *start;
  pthread_t thread;
  struct tandem_load *load;
  struct tandem_error error;
  enum tandem_status status;
};

static void *race(void *argument_of_thread) {
  struct racer *racer = argument_of_thread;
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "TensorRTBackend",
                                        .payload = racer->payload->data,
                                        .payload_size = racer->payload->size};
  pthread_barrier_wait(racer->start);
  racer->status = tandem_load_create(&desc, &racer->load, &racer->error);
  return NULL;
}

cJSON *measure_race(int count, char **arguments) {
  struct model model;
  struct tensors tensors;
  make_model(&model, (int32_t)argument(count, arguments, "layers", 400),
             argument(count, arguments, "width", 724), 4096, 1, 0);
  int64_t rounds = argument(count, arguments, "rounds", 20), failures = 0, wrong = 0;
  struct bytes payload = wrap_model(&model, 0);
  make_tensors(&tensors, &model, -1, 1);
  struct tandem_load *warm = load_payload(&payload, NULL);
  run_load(warm, &tensors, NULL);
  float *expected = read_output(&tensors);
  tandem_load_destroy(warm);

  size_t copy = model_weights(&model), free_bytes, total_bytes;
  enter_device(0);
  must_cuda(cuda.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  leave_device();
  must(free_bytes > 2 * copy, "%zu MiB are free, which is no cap for a copy of %zu MiB", free_bytes / MIB,
       copy / MIB);
  uint64_t ballast = allocate_device(0, free_bytes - copy - copy / 2);
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "weights_bytes", (double)copy);
  cJSON_AddNumberToObject(document, "room_bytes", (double)(copy + copy / 2));
  cJSON_AddNumberToObject(document, "rounds", (double)rounds);
  char first_failure[1024] = "";
  uint64_t most_builds = 0;
  for (int64_t round = 0; round < rounds; round++) {
    struct racer racers[RACERS];
    pthread_barrier_t start;
    uint64_t builds = stats_now().builds;
    pthread_barrier_init(&start, NULL, RACERS);
    for (int i = 0; i < RACERS; i++) {
      racers[i] = (struct racer){.payload = &payload, .start = &start};
      must(pthread_create(&racers[i].thread, NULL, race, &racers[i]) == 0, "no thread");
    }
    for (int i = 0; i < RACERS; i++) {
      pthread_join(racers[i].thread, NULL);
      if (racers[i].status == TANDEM_OK)
        continue;
      failures++;
      if (!*first_failure)
        memcpy(first_failure, racers[i].error.message, sizeof first_failure);
    }
    builds = stats_now().builds - builds;
    most_builds = builds > most_builds ? builds : most_builds;
    struct tandem_load *load = racers[round % RACERS].load;
    if (load) {
      run_load(load, &tensors, NULL);
      float *found = read_output(&tensors);
      wrong += memcmp(found, expected, tensors.count * sizeof *found) != 0;
      free(found);
    }
    for (int i = 0; i < RACERS; i++)
      tandem_load_destroy(racers[i].load);
    pthread_barrier_destroy(&start);
  }
  free_device(0, ballast);
  cJSON_AddStringToObject(document, "first_failure", first_failure);
  judge(document, "failed_loads", (double)failures, 0);
  judge(document, "most_builds_in_a_round", (double)most_builds, 1);
  judge(document, "wrong_outputs", (double)wrong, 0);
  free(expected);
  free_tensors(&tensors);
  free(payload.data);
  free_model(&model);
  return document;
}
