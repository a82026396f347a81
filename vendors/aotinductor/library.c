/* Finds the tensor functions that engines are compiled against.
 *
 * Two libraries have them: libtorch, and ExecuTorch's libaoti_cuda_shims.so, which needs no torch and serves
 * CUDA engines only. A process cannot hold two libtorch (each registers its operators anew and ends the
 * process), so one that is there already is taken whatever else was asked for, with a line in the log; then
 * what the user named (TANDEM_TORCH_LIBRARY, TANDEM_AOTI_SHIMS_LIBRARY), which is used or is an error; then
 * the pip packages of the Python that runs or is near: torch, else the shims.
 *
 * Nothing is opened for the whole process to see: engines are bound to the library by address (engine.c).
 * libtorch_cuda.so is opened by the first CUDA engine, since it brings hundreds of megabytes.
 */
#include "aotinductor.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct td_aoti_library td_aoti;

static const char torch_file[] = "libtorch_cpu.so", shims_file[] = "libaoti_cuda_shims.so";
static const char remedy[] =
    "install torch with: pip install torch, or set TANDEM_TORCH_LIBRARY to the path of "
    "libtorch_cpu.so";

struct search {
  const struct tandem_host *host;
  struct td_aoti_library found;
  bool done;
  struct tandem_error broken; /* the first library that is there and cannot be used */
};

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
static bool find_symbol(const struct tandem_host *host, void *library, const char *name, void *member) {
  void *address = host->library_symbol(library, name);
  memcpy(member, &address, sizeof address);
  return address != NULL;
}

/* The first mandatory function that the library lacks, NULL when it has all. */
static const char *find_functions(const struct tandem_host *host, void *library,
                                  struct aoti_tensor_api *api) {
#define FIND(member, symbol, parameters)                                                                     \
  if (!find_symbol(host, library, #symbol, &api->member))                                                    \
    return #symbol;
  TD_AOTI_TENSOR_CALLS(FIND)
#undef FIND
  return NULL;
}

static bool is_shims(const char *path) {
  const char *file = strrchr(path, '/');
  return strcmp(file != NULL ? file + 1 : path, shims_file) == 0;
}

static void inspect_library(struct search *search, void *library, const char *path) {
  const struct tandem_host *host = search->host;
  struct td_aoti_library *found = &search->found;
  uint64_t (*abi_version)(void);
  const char *missing = find_functions(host, library, &found->tensor);
  if (missing != NULL) {
    host->fail(&search->broken, TANDEM_UNSUPPORTED, "%.300s has no %s: it is no libtorch 2.5 or newer", path,
               missing);
    return;
  }
  found->torch = !is_shims(path);
  found->handle = library;
  snprintf(found->path, sizeof found->path, "%s", path);
  if (found->torch && find_symbol(host, library, "aoti_torch_abi_version", &abi_version)) {
    uint64_t version = abi_version(); /* a byte each from the top: major, minor, patch */
    snprintf(found->version, sizeof found->version, "%d.%d.%d", (int)(version >> 56),
             (int)(version >> 48 & 0xff), (int)(version >> 40 & 0xff));
  }
  search->done = true;
}

/* What the shims need and do not say where it is: it lies beside them and in the packages of CUDA's runtime.
 */
static void open_beside(const struct tandem_host *host, const char *shims) {
  static const char *const files[] = {"/../nvidia/cu13/lib/libcudart.so.13",
                                      "/../nvidia/cuda_runtime/lib/libcudart.so.13", "/libextension_cuda.so"};
  const char *slash = strrchr(shims, '/');
  char path[PATH_MAX];
  for (size_t i = 0; slash != NULL && i < sizeof files / sizeof files[0]; i++)
    if (snprintf(path, sizeof path, "%.*s%s", (int)(slash - shims), shims, files[i]) < (int)sizeof path &&
        access(path, F_OK) == 0)
      host->library_open(path, NULL, 0, NULL); /* a failure shows with the shims */
}

static void try_library(struct search *search, const char *name) {
  struct tandem_error error = {0};
  if (is_shims(name))
    open_beside(search->host, name);
  char path[sizeof search->found.path] = "";
  void *library = search->host->library_open(name, path, sizeof path, &error);
  if (library != NULL)
    inspect_library(search, library, path[0] != '\0' ? path : name);
  else if (error.code != TANDEM_NOT_FOUND && search->broken.code == TANDEM_OK)
    search->broken = error;
}

/* A file of a folder, when it is there. */
static void try_file(struct search *search, const char *folder, const char *file) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%s/%s", folder, file);
  if (!search->done && length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0)
    try_library(search, path);
}

/* What the user named: a file, or the folder that has it. */
static enum tandem_status try_named(struct search *search, const char *variable, const char *file,
                                    struct tandem_error *error) {
  const char *value = getenv(variable);
  struct stat state;
  if (search->done || value == NULL || *value == '\0')
    return TANDEM_OK;
  if (stat(value, &state) == 0 && S_ISDIR(state.st_mode))
    try_file(search, value, file);
  else
    try_library(search, value);
  if (search->done)
    return TANDEM_OK;
  return search->host->fail(
      error, TANDEM_UNAVAILABLE, "%s=%.300s cannot be used: %.500s; set it to the path of %s, or unset it",
      variable, value, search->broken.code != TANDEM_OK ? search->broken.message : "no such library", file);
}

/* ---------------------------------------------------------------- pip packages */

static void try_packages(struct search *search, const char *packages) {
  char folder[PATH_MAX];
  if (snprintf(folder, sizeof folder, "%s/torch/lib", packages) < (int)sizeof folder)
    try_file(search, folder, torch_file);
  if (snprintf(folder, sizeof folder, "%s/torch_tensorrt_executorch_runtime", packages) < (int)sizeof folder)
    try_file(search, folder, shims_file);
}

/* <prefix>/lib/python3*'s site-packages. */
static void try_prefix(struct search *search, const char *prefix) {
  char folder[PATH_MAX], packages[PATH_MAX];
  if (snprintf(folder, sizeof folder, "%s/lib", prefix) >= (int)sizeof folder)
    return;
  DIR *entries = opendir(folder);
  if (entries == NULL)
    return;
  for (struct dirent *entry; !search->done && (entry = readdir(entries)) != NULL;)
    if (strncmp(entry->d_name, "python3", 7) == 0 &&
        snprintf(packages, sizeof packages, "%s/%s/site-packages", folder, entry->d_name) <
            (int)sizeof packages)
      try_packages(search, packages);
  closedir(entries);
}

/* <prefix>/bin/python: the link itself counts, since a virtual environment's python links to the system's. */
static void try_running_program(struct search *search) {
  char program[PATH_MAX];
  FILE *file = fopen("/proc/self/cmdline", "re");
  size_t size = file != NULL ? fread(program, 1, sizeof program - 1, file) : 0;
  if (file != NULL)
    fclose(file);
  program[size] = '\0';
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr(program, '/');
    if (slash == NULL)
      return;
    *slash = '\0';
  }
  try_prefix(search, program);
}

/* The process's own libtorch, or (`packages`) the site-packages that anything of it comes from. */
static void visit_mapped(struct search *search, bool packages) {
  static const char folder[] = "/site-packages/";
  char *line = NULL, last[PATH_MAX] = "";
  size_t capacity = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps != NULL && !search->done && getline(&line, &capacity, maps) > 0) {
    char *path = strchr(line, '/');
    if (path == NULL)
      continue;
    path[strcspn(path, "\n")] = '\0';
    char *at = strstr(path, folder);
    if (!packages && strcmp(strrchr(path, '/') + 1, torch_file) == 0) {
      try_library(search, path);
    } else if (packages && at != NULL) {
      at[sizeof folder - 2] = '\0';
      if (strcmp(last, path) != 0)
        try_packages(search, path);
      snprintf(last, sizeof last, "%s", path);
    }
  }
  free(line);
  if (maps != NULL)
    fclose(maps);
}

/* ---------------------------------------------------------------- open */

static enum tandem_status open_alone(const struct tandem_host *host, struct tandem_error *error) {
  struct search search = {.host = host};
  const char *named = getenv("TANDEM_TORCH_LIBRARY"), *environment = getenv("VIRTUAL_ENV");
  visit_mapped(&search, false);
  if (search.done && named != NULL && *named != '\0' && strncmp(search.found.path, named, strlen(named)) != 0)
    td_aoti_say(TANDEM_LOG_WARNING, "TANDEM_TORCH_LIBRARY=%s is passed over: the process has %s", named,
                search.found.path);
  enum tandem_status status = try_named(&search, "TANDEM_TORCH_LIBRARY", torch_file, error);
  if (status == TANDEM_OK)
    status = try_named(&search, "TANDEM_AOTI_SHIMS_LIBRARY", shims_file, error);
  if (status != TANDEM_OK)
    return status;
  visit_mapped(&search, true);
  if (environment != NULL && *environment != '\0')
    try_prefix(&search, environment);
  try_running_program(&search);
  if (!search.done)
    try_library(&search, torch_file);
  if (!search.done)
    try_library(&search, shims_file);
  if (!search.done && search.broken.code != TANDEM_OK)
    return host->fail(error, TANDEM_UNAVAILABLE, "no usable libtorch: %.700s; %s", search.broken.message,
                      remedy);
  if (!search.done)
    return host->fail(error, TANDEM_UNAVAILABLE,
                      "no libtorch was found in the process, the Python packages near it or the system; %s",
                      remedy);
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
  snprintf(library->version, sizeof library->version, "%s %s", td_aoti.torch ? "torch" : "ExecuTorch's shims",
           td_aoti.torch && td_aoti.version[0] == '\0' ? "older than 2.9" : td_aoti.version);
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
