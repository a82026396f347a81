/* `tandem doctor`: what is here, what will be used, and for what is missing the one line that mends it.
 *
 * ExecuTorch and the vendors that tandem has are asked as a load would ask them, so what is shown is what a
 * load gets. Libraries of vendors that this build lacks are only opened and asked for their version. The
 * default path is ExecuTorch with OpenVINO: with it usable the exit status is 0, whatever else is missing.
 */
#include "cli.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: tandem doctor [--json]\n"
    "\n"
    "Tells which runtimes and vendor libraries are found, which of them will be used, and how\n"
    "to get what is missing. Exit status: 0 ExecuTorch and OpenVINO are usable, 1 they are not,\n"
    "2 called wrongly.\n";

struct finding {
  const char *key, *title;
  bool found;
  char version[128];
  char path[512];
  char use[256];
  char mend[1100]; /* "" when nothing is to be done */
};

static void find_executorch(struct finding *finding) {
  finding->found = true; /* this program could not have started without it */
  snprintf(finding->version, sizeof finding->version, "%s", tandem_executorch_version());
  snprintf(finding->path, sizeof finding->path, "%s", tandem_executorch_path());
  struct tandem_error error = {0};
  if (tandem_executorch_register(&error) == TANDEM_OK) {
    snprintf(finding->use, sizeof finding->use, "loads and runs programs");
  } else {
    snprintf(finding->use, sizeof finding->use, "runs programs, but its delegates go elsewhere");
    snprintf(finding->mend, sizeof finding->mend, "%s", error.message);
  }
}

/* The demo alone needs it, so its absence is no failure. */
static void find_flatc(struct finding *finding) {
  char path[1024];
  const char *runtime = tandem_executorch_path(), *slash = strrchr(runtime, '/');
  snprintf(path, sizeof path, "%.*s/../data/bin/flatc", slash ? (int)(slash - runtime) : 0, runtime);
  char *real = realpath(path, NULL);
  finding->found = real && access(real, X_OK) == 0;
  if (finding->found) {
    snprintf(finding->path, sizeof finding->path, "%s", real);
    snprintf(finding->use, sizeof finding->use, "writes the demo's program");
  } else {
    snprintf(finding->mend, sizeof finding->mend,
             "pip install executorch==1.5.1 (it has flatc; only 'tandem demo' needs it)");
  }
  free(real);
}

static bool find_vendor(struct finding *finding, const char *name) {
  struct tandem_vendor_info info;
  struct tandem_error error = {0};
  enum tandem_status status = td_vendor_lookup(name, &info, &error);
  if (status == TANDEM_NOT_FOUND)
    return false;
  finding->found = status == TANDEM_OK && info.available;
  snprintf(finding->version, sizeof finding->version, "%s", info.version);
  snprintf(finding->path, sizeof finding->path, "%s", info.path);
  if (!finding->found) {
    snprintf(finding->mend, sizeof finding->mend, "%s", status == TANDEM_OK ? info.reason : error.message);
    return true;
  }
  bool active = tandem_executorch_active(info.backend);
  snprintf(finding->use, sizeof finding->use,
           active ? "serves %s" : "not used for %s: another backend has the name", info.backend);
  return true;
}

/* Opens the first of `names` that is there and tells where it came from. */
static void *open_first(const char *const *names, size_t count, char *path, size_t size) {
  for (size_t i = 0; i < count; i++) {
    void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
      continue;
    struct link_map *map = NULL;
    bool known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name;
    snprintf(path, size, "%s", known ? map->l_name : names[i]);
    return library;
  }
  return NULL;
}

static void find_tensorrt(struct finding *finding, const char *const *names, size_t count, const char *mend) {
  void *library = open_first(names, count, finding->path, sizeof finding->path);
  finding->found = library;
  if (!library) {
    snprintf(finding->mend, sizeof finding->mend, "%s", mend);
    return;
  }
  int32_t (*get_version)(void) = NULL;
  void *symbol = dlsym(library, "getInferLibVersion");
  memcpy(&get_version, &symbol, sizeof symbol);
  if (get_version) {
    int32_t v = get_version();
    int32_t unit = v >= 10000 ? 10000 : 1000; /* up to 9.x a thousand was a major version */
    snprintf(finding->version, sizeof finding->version, "%d.%d.%d", v / unit, v % unit / 100, v % 100);
  }
  snprintf(finding->use, sizeof finding->use, "found, not used: this build of tandem has no TensorRT vendor");
}

static void find_cuda(struct finding *finding) {
  static const char *const names[] = {"libcuda.so.1"};
  void *library = open_first(names, 1, finding->path, sizeof finding->path);
  finding->found = library;
  int version = 0;
  int (*get_version)(int *) = NULL;
  void *symbol = library ? dlsym(library, "cuDriverGetVersion") : NULL;
  memcpy(&get_version, &symbol, sizeof symbol);
  if (get_version && get_version(&version) == 0)
    snprintf(finding->version, sizeof finding->version, "%d.%d", version / 1000, version % 1000 / 10);
  if (library)
    snprintf(finding->use, sizeof finding->use, "devices of GPU vendors");
  else
    snprintf(finding->mend, sizeof finding->mend,
             "install the NVIDIA driver (libcuda.so.1); only engines for NVIDIA GPUs need it");
}

static cJSON *finding_json(const struct finding *finding) {
  const struct {
    const char *key, *text;
  } texts[] = {
      {"version", finding->version}, {"path", finding->path}, {"use", finding->use}, {"mend", finding->mend}};
  cJSON *object = cJSON_CreateObject();
  cJSON_AddBoolToObject(object, "found", finding->found);
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (*texts[i].text)
      cJSON_AddStringToObject(object, texts[i].key, texts[i].text);
    else
      cJSON_AddNullToObject(object, texts[i].key);
  return object;
}

static void print_finding(const struct finding *finding) {
  printf("%-13s %s %s\n", finding->title, finding->found ? "found  " : "missing", finding->version);
  if (*finding->path)
    printf("              %s\n", finding->path);
  if (*finding->use)
    printf("              %s\n", finding->use);
  if (*finding->mend)
    printf("              to mend: %s\n", finding->mend);
}

int td_doctor_command(int count, char **arguments) {
  static const char *const full[] = {"libnvinfer.so.11", "libnvinfer.so.10"};
  static const char *const lean[] = {"libnvinfer_lean.so.11", "libnvinfer_lean.so.10"};
  static const char *const rtx[] = {"libtensorrt_rtx.so.1"};
  const struct td_usage usage = {"doctor", NULL, help};
  bool json = false;
  const struct td_flag flags[] = {{"--json", TD_FLAG_SWITCH, &json, 0, 0}};
  int result = td_args_parse(&usage, flags, 1, count, arguments, NULL);
  if (result != TD_ARGS_GO)
    return result;
  td_notes_init(false);

  enum { EXECUTORCH, FLATC, OPENVINO, TENSORRT, TENSORRT_LEAN, TENSORRT_RTX, CUDA, COUNT };
  struct finding findings[COUNT] = {
      [EXECUTORCH] = {.key = "executorch", .title = "ExecuTorch"},
      [FLATC] = {.key = "flatc", .title = "flatc"},
      [OPENVINO] = {.key = "openvino", .title = "OpenVINO"},
      [TENSORRT] = {.key = "tensorrt", .title = "TensorRT"},
      [TENSORRT_LEAN] = {.key = "tensorrt_lean", .title = "TensorRT lean"},
      [TENSORRT_RTX] = {.key = "tensorrt_rtx", .title = "TensorRT RTX"},
      [CUDA] = {.key = "cuda", .title = "CUDA driver"},
  };
  find_executorch(&findings[EXECUTORCH]);
  find_flatc(&findings[FLATC]);
  if (!find_vendor(&findings[OPENVINO], "openvino"))
    snprintf(findings[OPENVINO].mend, sizeof findings[OPENVINO].mend,
             "build tandem with its OpenVINO vendor");
  if (!find_vendor(&findings[TENSORRT], "tensorrt"))
    find_tensorrt(
        &findings[TENSORRT], full, 2,
        "pip install tensorrt-cu13 and name its folder in LD_LIBRARY_PATH (libnvinfer.so.10 or .11)");
  find_tensorrt(
      &findings[TENSORRT_LEAN], lean, 2,
      "pip install tensorrt-lean-cu13 and name its folder in LD_LIBRARY_PATH (libnvinfer_lean.so.10 or .11)");
  find_tensorrt(
      &findings[TENSORRT_RTX], rtx, 1,
      "pip install tensorrt-rtx-cu13 and name its folder in LD_LIBRARY_PATH (libtensorrt_rtx.so.1)");
  find_cuda(&findings[CUDA]);
  bool usable =
      findings[EXECUTORCH].found && findings[OPENVINO].found && tandem_executorch_active("OpenvinoBackend");

  bool good = true;
  if (json) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "tandem", tandem_version());
    for (size_t i = 0; i < COUNT; i++)
      cJSON_AddItemToObject(document, findings[i].key, finding_json(&findings[i]));
    cJSON_AddBoolToObject(document, "usable", usable);
    good = td_print_json(document);
  } else {
    printf("tandem %s\n\n", tandem_version());
    for (size_t i = 0; i < COUNT; i++)
      print_finding(&findings[i]);
    printf("\n%s\n", usable ? "Programs for OpenvinoBackend load here and share their engines."
                            : "Programs for OpenvinoBackend cannot be loaded here yet.");
    good = fflush(stdout) == 0;
  }
  td_notes_fini(false);
  if (!usable)
    td_complain("doctor: the default path, ExecuTorch with OpenVINO, is not usable: %s",
                *findings[OPENVINO].mend ? findings[OPENVINO].mend : findings[EXECUTORCH].mend);
  return usable && good ? TD_EXIT_DONE : TD_EXIT_FAILED;
}
