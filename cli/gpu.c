/* The NVIDIA GPUs here, through the driver opened at run time: which there are, and how much of their memory
 * is used.
 *
 * Used memory is read in the device's primary context, which stays retained while it is watched: a context's
 * own memory is there from the start and belongs to no load. TANDEM_CUDA_LIBRARY names the driver, as for
 * tandem itself.
 */
#include "cli.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CUdevice_attribute */

static struct {
  int (*init)(unsigned flags);
  int (*driver_version)(int *version);
  int (*device_count)(int *count);
  int (*device_get)(int *device, int ordinal);
  int (*device_name)(char *name, int size, int device);
  int (*device_attribute)(int *value, int attribute, int device);
  int (*device_memory)(size_t *size, int device);
  int (*primary_retain)(void **context, int device);
  int (*primary_release)(int device);
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*memory_info)(size_t *free_size, size_t *total_size);
  int (*error_name)(int code, const char **name);
} cuda;

static const struct {
  const char *symbol;
  void *place; /* of a function pointer */
} entries[] = {
    {"cuInit", &cuda.init},
    {"cuDriverGetVersion", &cuda.driver_version},
    {"cuDeviceGetCount", &cuda.device_count},
    {"cuDeviceGet", &cuda.device_get},
    {"cuDeviceGetName", &cuda.device_name},
    {"cuDeviceGetAttribute", &cuda.device_attribute},
    {"cuDeviceTotalMem_v2", &cuda.device_memory},
    {"cuDevicePrimaryCtxRetain", &cuda.primary_retain},
    {"cuDevicePrimaryCtxRelease_v2", &cuda.primary_release},
    {"cuCtxPushCurrent_v2", &cuda.push},
    {"cuCtxPopCurrent_v2", &cuda.pop},
    {"cuMemGetInfo_v2", &cuda.memory_info},
    {"cuGetErrorName", &cuda.error_name},
};

static enum tandem_status fail_call(const char *call, int code, struct tandem_error *error) {
  const char *name = NULL;
  if (!cuda.error_name || cuda.error_name(code, &name) != 0 || !name)
    name = "an error";
  return td_refuse(error, TANDEM_DEVICE_ERROR, "the CUDA driver's %s says %s (%d)", call, name, code);
}

/* Opens and starts the driver; what was found of it stays in `gpus`, also after a failure. */
static enum tandem_status open_driver(struct td_gpus *gpus, struct tandem_error *error) {
  const char *named = getenv("TANDEM_CUDA_LIBRARY");
  const char *name = named && *named ? named : "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    return td_refuse(error, TANDEM_UNAVAILABLE,
                     "there is no CUDA driver (%s): install the NVIDIA driver, or name its library in "
                     "TANDEM_CUDA_LIBRARY",
                     reason ? reason : name);
  }
  struct link_map *map = NULL;
  bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name;
  snprintf(gpus->path, sizeof gpus->path, "%s", known ? map->l_name : name);
  for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
    void *symbol = dlsym(library, entries[i].symbol);
    memcpy(entries[i].place, &symbol, sizeof symbol);
    if (!symbol)
      return td_refuse(error, TANDEM_UNAVAILABLE, "the CUDA driver %s has no %s: it is too old", gpus->path,
                       entries[i].symbol);
  }
  int version = 0;
  if (cuda.driver_version(&version) == 0)
    snprintf(gpus->version, sizeof gpus->version, "%d.%d", version / 1000, version % 1000 / 10);
  int code = cuda.init(0);
  return code == 0 ? TANDEM_OK : fail_call("cuInit", code, error);
}

enum tandem_status td_gpus_find(struct td_gpus *gpus, struct tandem_error *error) {
  *gpus = (struct td_gpus){0};
  enum tandem_status status = open_driver(gpus, error);
  if (status != TANDEM_OK)
    return status;
  int count = 0, code = cuda.device_count(&count);
  if (code != 0)
    return fail_call("cuDeviceGetCount", code, error);
  if (count < 1)
    return td_refuse(error, TANDEM_UNAVAILABLE, "the CUDA driver %s finds no GPU", gpus->version);
  for (int i = 0; i < count && i < TD_GPUS_MAX; i++) {
    struct td_gpu *gpu = &gpus->gpus[i];
    size_t size = 0;
    int device;
    if ((code = cuda.device_get(&device, i)) != 0)
      return fail_call("cuDeviceGet", code, error);
    if ((code = cuda.device_name(gpu->name, sizeof gpu->name, device)) != 0)
      return fail_call("cuDeviceGetName", code, error);
    if ((code = cuda.device_attribute(&gpu->major, CAPABILITY_MAJOR, device)) != 0 ||
        (code = cuda.device_attribute(&gpu->minor, CAPABILITY_MINOR, device)) != 0)
      return fail_call("cuDeviceGetAttribute", code, error);
    if ((code = cuda.device_memory(&size, device)) != 0)
      return fail_call("cuDeviceTotalMem", code, error);
    gpu->memory = size;
    gpus->count = (size_t)i + 1;
  }
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- memory */

bool td_gpu_watch(int index, struct td_gpu_watch *watch) {
  struct td_gpus gpus;
  struct tandem_error error;
  *watch = (struct td_gpu_watch){.device = -1};
  if (td_gpus_find(&gpus, &error) != TANDEM_OK || cuda.device_get(&watch->device, index) != 0 ||
      cuda.primary_retain(&watch->context, watch->device) != 0) {
    watch->context = NULL;
    return false;
  }
  return true;
}

int64_t td_gpu_used(const struct td_gpu_watch *watch) {
  size_t free_size = 0, total_size = 0;
  void *popped;
  if (!watch->context || cuda.push(watch->context) != 0)
    return -1;
  bool good = cuda.memory_info(&free_size, &total_size) == 0;
  good = cuda.pop(&popped) == 0 && good;
  return good && total_size >= free_size ? (int64_t)(total_size - free_size) : -1;
}

void td_gpu_unwatch(struct td_gpu_watch *watch) {
  if (watch->context)
    cuda.primary_release(watch->device);
  watch->context = NULL;
}
