/* Finds the tensor functions that engines are compiled against.
 *
 * Two libraries have them: libtorch, and ExecuTorch's libaoti_cuda_shims.so, which needs no torch and serves
 * CUDA engines only. A process cannot hold two libtorch (each registers its operators anew and ends the
 * process), so one that is there already is taken whatever else was asked for, with a line in the log, or is
 * the error. Of the packages of one folder torch comes first.
 *
 * Nothing is opened for the whole process to see: engines are bound to the library by address (engine.c).
 * libtorch_cuda.so is opened by the first CUDA engine, since it brings hundreds of megabytes.
 */
#include "aotinductor.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../search/search.h"

struct td_aoti_library td_aoti;

static const char torch_file[] = "libtorch_cpu.so", shims_file[] = "libaoti_cuda_shims.so";
static const char remedy[] =
    "install torch with: pip install torch, or set TANDEM_TORCH_LIBRARY to the path of "
    "libtorch_cpu.so";

struct search {
  struct td_search places;      /* first: what its functions are given */
  struct td_aoti_library found; /* once accepted */
};

/* The first mandatory function that the library lacks, NULL when it has all. */
static const char *find_functions(const struct td_search *places, struct aoti_tensor_api *api) {
#define FIND(member, symbol, parameters)                                                                     \
  if (!td_search_symbol(places, #symbol, &api->member))                                                      \
    return #symbol;
  TD_AOTI_TENSOR_CALLS(FIND)
#undef FIND
  return NULL;
}

static bool is_shims(const char *path) {
  const char *file = strrchr(path, '/');
  return strcmp(file != NULL ? file + 1 : path, shims_file) == 0;
}

static bool accept_library(struct td_search *places, struct tandem_error *error) {
  struct td_aoti_library *found = &((struct search *)places)->found;
  uint64_t (*abi_version)(void);
  const char *missing = find_functions(places, &found->tensor);
  if (missing != NULL) {
    places->host->fail(error, TANDEM_UNSUPPORTED, "it has no %s, so it is no libtorch 2.5 or newer", missing);
    return false;
  }
  found->torch = !is_shims(places->path);
  found->handle = places->library;
  snprintf(found->path, sizeof found->path, "%s", places->path);
  if (found->torch && td_search_symbol(places, "aoti_torch_abi_version", &abi_version)) {
    uint64_t version = abi_version(); /* a byte each from the top: major, minor, patch */
    snprintf(found->version, sizeof found->version, "%d.%d.%d", (int)(version >> 56),
             (int)(version >> 48 & 0xff), (int)(version >> 40 & 0xff));
  }
  return true;
}

/* ---------------------------------------------------------------- places */

/* What the shims need and do not say where it is: it lies beside them and in the packages of CUDA's runtime.
 */
static void open_beside(const struct tandem_host *host, const char *folder, size_t length) {
  static const char *const files[] = {"../nvidia/cu13/lib/libcudart.so.13",
                                      "../nvidia/cuda_runtime/lib/libcudart.so.13", "libextension_cuda.so"};
  char path[PATH_MAX];
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, files[i]) < (int)sizeof path &&
        access(path, F_OK) == 0)
      host->library_open(path, NULL, 0, NULL); /* a failure shows with the shims */
}

static bool try_torch(struct td_search *places, const char *folder) {
  return td_search_folder(places, folder, ".", torch_file);
}

static bool try_shims(struct td_search *places, const char *folder) {
  open_beside(places->host, folder, strlen(folder));
  return td_search_folder(places, folder, ".", shims_file);
}

static bool try_packages(struct td_search *places, const char *packages) {
  char folder[PATH_MAX];
  if (td_search_folder(places, packages, "torch/lib", torch_file))
    return true;
  return snprintf(folder, sizeof folder, "%s/torch_tensorrt_executorch_runtime", packages) <
             (int)sizeof folder &&
         try_shims(places, folder);
}

static bool try_named(struct td_search *places, bool shims) {
  if (is_shims(places->named) && strchr(places->named, '/') != NULL)
    open_beside(places->host, places->named, (size_t)(strrchr(places->named, '/') - places->named));
  return td_search_named(places, shims ? try_shims : try_torch);
}

/* ---------------------------------------------------------------- open */

static enum tandem_status open_alone(const struct tandem_host *host, struct tandem_error *error) {
  static const char *const variables[] = {"TANDEM_TORCH_LIBRARY", "TANDEM_AOTI_SHIMS_LIBRARY", NULL};
  struct search search = {.places = {.host = host, .accept = accept_library}};
  struct td_search *places = &search.places;
  const char *named = td_search_variable(places, variables), *files = torch_file;
  bool shims = named != NULL && places->variable == variables[1];
  bool found = td_search_mapped(places, torch_file, td_search_library);
  if (found && named != NULL && strncmp(places->path, named, strlen(named)) != 0) {
    td_aoti_say(TANDEM_LOG_WARNING, "%s=%s is passed over: the process has %s", places->variable, named,
                places->path);
  } else if (!found && places->broken.code != TANDEM_OK) {
    places->named = NULL; /* not what is wrong */
  } else if (!found && named != NULL) {
    files = shims ? shims_file : torch_file;
    found = try_named(places, shims);
  } else if (!found) {
    files = "libtorch_cpu.so or libaoti_cuda_shims.so";
    found = td_search_packages(places, try_packages) || td_search_library(places, torch_file) ||
            td_search_library(places, shims_file);
  }
  if (!found)
    return td_search_fail(places, "libtorch", files, remedy, error);
  td_aoti = search.found;
  return TANDEM_OK;
}

/* Two vendors come here, and engines of the first to come may be running when the second does. */
enum tandem_status td_aoti_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                struct tandem_error *error) {
  static struct tandem_host_lock lock;
  td_aoti_set_host(host);
  host->lock_alone(&lock);
  enum tandem_status status = td_aoti.handle == NULL ? open_alone(host, error) : TANDEM_OK;
  host->unlock(&lock);
  if (status != TANDEM_OK)
    return status;
  if (td_aoti.torch)
    snprintf(library->version, sizeof library->version, "torch %s",
             td_aoti.version[0] != '\0' ? td_aoti.version : "older than 2.9");
  else
    snprintf(library->version, sizeof library->version, "ExecuTorch's shims");
  snprintf(library->path, sizeof library->path, "%s", td_aoti.path);
  return TANDEM_OK;
}

enum tandem_status td_aoti_open_cuda(void **library, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  char path[PATH_MAX];
  *library = td_aoti.handle;
  if (!td_aoti.torch)
    return TANDEM_OK;
  const char *slash = strrchr(td_aoti.path, '/');
  int folder = slash != NULL ? (int)(slash - td_aoti.path) + 1 : 0;
  snprintf(path, sizeof path, "%.*slibtorch_cuda.so", folder, td_aoti.path);
  struct tandem_error reason = {0};
  *library = host->library_open(path, NULL, 0, &reason);
  if (*library == NULL)
    return host->fail(error, TANDEM_UNAVAILABLE,
                      "the program needs a torch with CUDA, %s has none: %.500s; install one, or set "
                      "TANDEM_AOTI_SHIMS_LIBRARY to ExecuTorch's %s",
                      td_aoti.path, reason.message, shims_file);
  return TANDEM_OK;
}
