/* What each load costs of device memory: eight loads of one engine, shared and private, with scratch that
 * loads share and scratch of their own.
 *
 * The driver hands memory out in pieces of 2 MiB, so one load's cost is only known to that; what is judged is
 * the mean of loads 2 to 8, and the second load alone to a piece.
 */
#include "bench.h"

#include <stdlib.h>

enum { LOADS = 8 };

static void measure_mode(cJSON *document, const struct bytes *payload, struct tensors *tensors, bool shared,
                         bool share_scratch, double *costs) {
  struct tandem_load *loads[LOADS];
  double load_seconds[LOADS];
  int64_t before = used_memory(0), base = before;
  for (int i = 0; i < LOADS; i++) {
    loads[i] = load_payload(payload, "use_shared_engines", shared ? "true" : "false", "share_scratch",
                            share_scratch ? "true" : "false", NULL);
    run_load(loads[i], tensors, NULL);
    int64_t after = used_memory(0);
    costs[i] = (double)(after - before);
    load_seconds[i] = info_of(loads[i]).seconds;
    before = after;
  }
  struct tandem_stats stats = stats_now();
  cJSON *mode = cJSON_CreateObject();
  cJSON_AddBoolToObject(mode, "shared", shared);
  cJSON_AddBoolToObject(mode, "share_scratch", share_scratch);
  add_numbers(mode, "load_bytes", costs, LOADS);
  add_numbers(mode, "load_seconds", load_seconds, LOADS);
  cJSON_AddNumberToObject(mode, "engines", (double)stats.engines);
  cJSON_AddNumberToObject(mode, "bytes_saved", (double)stats.bytes_saved);
  must(stats.engines == (shared ? 1 : LOADS), "%llu engines for %d loads", (unsigned long long)stats.engines,
       LOADS);
  for (int i = 0; i < LOADS; i++)
    tandem_load_destroy(loads[i]);
  cJSON_AddNumberToObject(mode, "left_bytes", (double)(used_memory(0) - base));
  cJSON_AddItemToArray(cJSON_GetObjectItem(document, "modes"), mode);
}

static double mean_of_later(const double *costs) {
  double sum = 0;
  for (int i = 1; i < LOADS; i++)
    sum += costs[i];
  return sum / (LOADS - 1);
}

/* The stand-in adds the layers' temporaries to the scratch that a plan names; with room for them the whole is
 * a multiple of the 2 MiB that the driver hands out. */
enum { TEMPORARIES = 256 << 10 };

cJSON *measure_memory(int count, char **arguments) {
  struct model model;
  int64_t scratch_size = argument(count, arguments, "scratch_mib", 32) * MIB;
  struct tensors tensors;
  make_model(&model, (int32_t)argument(count, arguments, "layers", 400),
             argument(count, arguments, "width", 724), scratch_size - TEMPORARIES, 1, 0);
  struct bytes payload = wrap_model(&model, 0);
  make_tensors(&tensors, &model, -1, 1);
  cJSON *document = cJSON_CreateObject();
  double io = (double)model_io(&model), scratch = (double)scratch_size;
  cJSON_AddNumberToObject(document, "weights_bytes", (double)model_weights(&model));
  cJSON_AddNumberToObject(document, "layers", model.layer_count);
  cJSON_AddNumberToObject(document, "scratch_bytes", scratch);
  cJSON_AddNumberToObject(document, "io_bytes", io);
  cJSON_AddArrayToObject(document, "modes");
  struct tandem_load *warm = load_payload(&payload, NULL);
  run_load(warm, &tensors, NULL);
  tandem_load_destroy(warm);

  double with[LOADS], own[LOADS], alone[LOADS];
  measure_mode(document, &payload, &tensors, true, true, with);
  measure_mode(document, &payload, &tensors, true, false, own);
  measure_mode(document, &payload, &tensors, false, true, alone);
  judge(document, "mean_of_shared_loads_2_to_8_sharing_scratch", mean_of_later(with), io + MIB);
  judge(document, "mean_of_shared_loads_2_to_8_own_scratch", mean_of_later(own), scratch + io + MIB);
  judge(document, "second_shared_load_sharing_scratch", with[1], io + MIB);
  judge(document, "second_shared_load_own_scratch", own[1], scratch + io + MIB);
  judge(document, "weights_over_private_second_load", (double)model_weights(&model) / (alone[1] + 1), 1);
  free_tensors(&tensors);
  free(payload.data);
  free_model(&model);
  return document;
}
