/* The memory of the host, which is the CPU's device memory: what the system could still give, and within a
 * control group what the group may still take, whichever is less.
 */
#include "openvino.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool read_meminfo(uint64_t *free_bytes, uint64_t *total_bytes) {
  char line[128];
  uint64_t kib;
  bool has_free = false, has_total = false;
  FILE *file = fopen("/proc/meminfo", "re");
  if (file == NULL)
    return false;
  while (fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1)
      *total_bytes = kib * 1024, has_total = true;
    else if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
      *free_bytes = kib * 1024, has_free = true;
  }
  fclose(file);
  return has_free && has_total;
}

/* False when the file is not there or says "max". */
static bool read_number(const char *folder, const char *name, uint64_t *number) {
  char path[512];
  int length = snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof path)
    return false;
  FILE *file = fopen(path, "re");
  if (file == NULL)
    return false;
  bool found = fscanf(file, "%" SCNu64, number) == 1;
  fclose(file);
  return found;
}

static void apply_group(uint64_t *free_bytes, uint64_t *total_bytes) {
  char folder[384] = "";
  uint64_t limit, used;
  FILE *file = fopen("/proc/self/cgroup", "re");
  if (file != NULL) {
    if (fscanf(file, "0::%383s", folder) != 1)
      folder[0] = '\0';
    fclose(file);
  }
  if (!read_number(folder, "memory.max", &limit) || !read_number(folder, "memory.current", &used)) {
    if (!read_number("/memory", "memory.limit_in_bytes", &limit) ||
        !read_number("/memory", "memory.usage_in_bytes", &used))
      return;
  }
  uint64_t rest = limit > used ? limit - used : 0;
  if (limit < *total_bytes)
    *total_bytes = limit;
  if (rest < *free_bytes)
    *free_bytes = rest;
}

enum tandem_status td_openvino_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                      uint64_t *total_bytes, struct tandem_error *error) {
  const struct tandem_host *host = td_openvino_host();
  *free_bytes = *total_bytes = 0;
  if (strncmp(resolution->device, "CPU", 3) != 0)
    return host->fail(error, TANDEM_UNSUPPORTED, "OpenVINO does not tell the memory of %s",
                      resolution->device);
  if (!read_meminfo(free_bytes, total_bytes)) {
    *free_bytes = *total_bytes = 0;
    return host->fail(error, TANDEM_UNSUPPORTED, "/proc/meminfo does not tell the memory of this machine");
  }
  apply_group(free_bytes, total_bytes);
  return TANDEM_OK;
}
