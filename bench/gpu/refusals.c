/* What a library says of plans that it cannot use, and what a hundred such loads leave behind. FILEs are
 * plans; a plan of nonsense and one of the stand-in come first. With the real libraries this is all that can
 * be had where no plan of theirs runs.
 */
#include "bench.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAILURES = 100, SETTLED = 2 };

static struct bytes read_file(const char *path) {
  struct bytes bytes = {0};
  FILE *file = fopen(path, "rbe");
  must(file && fseek(file, 0, SEEK_END) == 0 && ftell(file) > 0, "cannot read %s", path);
  bytes.size = (size_t)ftell(file);
  rewind(file);
  bytes.data = malloc(bytes.size);
  must(bytes.data && fread(bytes.data, 1, bytes.size, file) == bytes.size, "cannot read %s", path);
  fclose(file);
  return bytes;
}

static double private_bytes(void) {
  char line[256];
  double sum = 0;
  FILE *file = fopen("/proc/self/smaps_rollup", "re");
  while (file && fgets(line, sizeof line, file)) {
    long kib;
    if (sscanf(line, "Anonymous: %ld", &kib) == 1 || sscanf(line, "Swap: %ld", &kib) == 1)
      sum += (double)kib * 1024;
  }
  if (file)
    fclose(file);
  return sum;
}

static double open_files(void) {
  double count = 0;
  DIR *list = opendir("/proc/self/fd");
  while (list && readdir(list))
    count++;
  if (list)
    closedir(list);
  return count;
}

static enum tandem_status try_load(const struct bytes *payload, struct tandem_error *error) {
  struct tandem_load *load;
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "TensorRTBackend",
                                        .payload = payload->data,
                                        .payload_size = payload->size};
  enum tandem_status status = tandem_load_create(&desc, &load, error);
  tandem_load_destroy(load);
  return status;
}

static void try_plan(cJSON *document, const char *name, const void *plan, size_t plan_size) {
  struct bytes payload;
  struct tandem_error error = {0};
  double device[2] = {0}, host[2] = {0}, files[2] = {0}, left[3];
  payload.data = make_payload(plan, plan_size, 0, &payload.size);
  cJSON *entry = cJSON_CreateObject();
  enum tandem_status status = try_load(&payload, &error);
  cJSON_AddStringToObject(entry, "plan", name);
  cJSON_AddStringToObject(entry, "status", tandem_status_name(status));
  cJSON_AddStringToObject(entry, "message", error.message);
  if (status != TANDEM_OK) {
    for (int i = 1; i <= FAILURES; i++) {
      must(try_load(&payload, &error) == status, "load %d of %s ends otherwise: %s", i, name, error.message);
      if (i != SETTLED && i != FAILURES)
        continue;
      int at = i == FAILURES;
      device[at] = (double)used_memory(0);
      host[at] = private_bytes();
      files[at] = open_files();
    }
    left[0] = device[1] - device[0];
    left[1] = host[1] - host[0];
    left[2] = files[1] - files[0];
    add_numbers(entry, "left_by_98_failures_device_host_files", left, 3);
    char key[128];
    snprintf(key, sizeof key, "device_bytes_left_by_%s", name);
    judge(document, key, left[0], 0);
    snprintf(key, sizeof key, "host_bytes_left_by_%s", name);
    judge(document, key, left[1], MIB);
    snprintf(key, sizeof key, "files_left_by_%s", name);
    judge(document, key, left[2], 0);
  }
  cJSON_AddItemToArray(cJSON_GetObjectItem(document, "plans"), entry);
  free(payload.data);
}

cJSON *measure_refusals(int count, char **arguments) {
  cJSON *document = cJSON_CreateObject();
  struct model model;
  char nonsense[4096];
  memset(nonsense, 'A', sizeof nonsense);
  cJSON_AddArrayToObject(document, "plans");
  try_plan(document, "nonsense", nonsense, sizeof nonsense);
  make_model(&model, 1, 8, 0, 1, 0);
  try_plan(document, "standin", model.plan, model.plan_size);
  free_model(&model);
  for (int i = 0; i < count; i++) {
    if (strchr(arguments[i], '='))
      continue;
    const char *slash = strrchr(arguments[i], '/');
    struct bytes plan = read_file(arguments[i]);
    try_plan(document, slash ? slash + 1 : arguments[i], plan.data, plan.size);
    free(plan.data);
  }
  cJSON_AddNumberToObject(document, "engines", (double)stats_now().engines);
  return document;
}
