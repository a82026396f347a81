/* `tandem doctor`: what is here, what will be used, and for what is missing the one line that mends it.
 *
 * ExecuTorch and the vendors are asked as a load would ask them, so what is shown is what a load gets;
 * TensorRT's products are shown beside the one that is used. The default path is ExecuTorch with OpenVINO:
 * with it usable the exit status is 0, whatever else is missing. A reason may be long, since it names every
 * place that was looked at: it goes to the JSON, the text has what to do.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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
  char mend[768];    /* "" when nothing is to be done */
  char reason[1100]; /* why it is not there; "" when it is */
  bool skipped;      /* not looked at, as `reason` says */
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
    snprintf(finding->reason, sizeof finding->reason, "%s", error.message);
    snprintf(finding->mend, sizeof finding->mend, "load tandem before whatever else registers its backends");
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

/* A library that a variable names is used or is an error, so then the variable is what to mend. */
static void advise(struct finding *finding, const char *variable, const char *otherwise) {
  const char *named = getenv(variable);
  if (named && *named)
    snprintf(finding->mend, sizeof finding->mend, "correct or unset %s=%.512s", variable, named);
  else
    snprintf(finding->mend, sizeof finding->mend, "%s, or set %s", otherwise, variable);
}

static void advise_tensorrt(struct finding *finding) {
  static const struct {
    const char *runtime, *install;
  } products[] = {{"full", "pip install tensorrt-cu13"},
                  {"lean", "pip install tensorrt-lean-cu13"},
                  {"rtx", "pip install tensorrt-rtx-cu13"}};
  const char *runtime = getenv("TANDEM_TENSORRT_RUNTIME");
  if (!runtime || !*runtime)
    runtime = "full";
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
    if (strcmp(runtime, products[i].runtime) == 0) {
      advise(finding, "TANDEM_TENSORRT_LIBRARY", products[i].install);
      return;
    }
  snprintf(finding->mend, sizeof finding->mend, "correct or unset TANDEM_TENSORRT_RUNTIME=%.512s", runtime);
}

/* The one that the vendor heeds: OPENVINO_LIB_PATH counts where tandem's own is not set. */
static const char *openvino_variable(void) {
  const char *own = getenv("TANDEM_OPENVINO_LIBRARY"), *other = getenv("OPENVINO_LIB_PATH");
  return (!own || !*own) && other && *other ? "OPENVINO_LIB_PATH" : "TANDEM_OPENVINO_LIBRARY";
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
    snprintf(finding->reason, sizeof finding->reason, "%s",
             status == TANDEM_OK ? info.reason : error.message);
    return true;
  }
  bool active = tandem_executorch_active(info.backend);
  snprintf(finding->use, sizeof finding->use,
           active ? "serves %s" : "not used for %s: another backend has the name", info.backend);
  return true;
}

/* One library serves both of AOTInductor's backends. */
static void find_aotinductor(struct finding *finding, const char *name) {
  if (!find_vendor(finding, name))
    snprintf(finding->mend, sizeof finding->mend, "build tandem with its AOTInductor vendor");
  else if (!finding->found)
    advise(finding, "TANDEM_TORCH_LIBRARY", "pip install torch");
}

/* What a load would get if only one of TensorRT's products were looked for. The vendor keeps the library that
 * it opened first, so a child asks, before this process opens any. */
static void find_product(struct finding *finding, const char *product, const char *install) {
  int ends[2];
  snprintf(finding->mend, sizeof finding->mend, "%s", install);
  if (pipe(ends) != 0) {
    snprintf(finding->reason, sizeof finding->reason, "no pipe for a child: %s", strerror(errno));
    return;
  }
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    setenv("TANDEM_TENSORRT_RUNTIME", product, 1);
    struct finding answer = {0};
    find_vendor(&answer, "tensorrt");
    _exit(write(ends[1], &answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1);
  }
  close(ends[1]);
  struct finding answer = {0};
  size_t size = 0;
  ssize_t n = 1;
  while (child > 0 && size < sizeof answer && n > 0) {
    n = read(ends[0], (char *)&answer + size, sizeof answer - size);
    if (n < 0 && errno == EINTR)
      n = 1;
    else if (n > 0)
      size += (size_t)n;
  }
  close(ends[0]);
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    ;
  if (size < sizeof answer) {
    snprintf(finding->reason, sizeof finding->reason,
             "the library ended the process that asked for its version (status %#x)", (unsigned)status);
    return;
  }
  answer.key = finding->key;
  answer.title = finding->title;
  if (!answer.found)
    snprintf(answer.mend, sizeof answer.mend, "%s", install);
  *finding = answer;
}

/* With a library named there is no search, so the row of a product is that library or was not looked at. */
static void take_named(struct finding *product, const struct finding *used, bool same) {
  struct finding answer = {.skipped = true};
  if (used->found && same)
    answer = *used;
  else
    snprintf(answer.reason, sizeof answer.reason, "not looked at: TANDEM_TENSORRT_LIBRARY is set");
  answer.key = product->key;
  answer.title = product->title;
  *product = answer;
}

/* `product` is `used`, what the vendor took, or there beside it. */
static void tell_product(struct finding *product, const struct finding *used, const char *word) {
  if (!product->found)
    return;
  if (used->found && strcmp(used->path, product->path) == 0)
    snprintf(product->use, sizeof product->use, "%.200s", used->use);
  else
    snprintf(product->use, sizeof product->use,
             "found, not used: %s; TANDEM_TENSORRT_RUNTIME=%s takes this one",
             used->found ? "another one comes first" : "what is named cannot be used", word);
}

static void find_cuda(struct finding *finding, struct td_gpus *gpus) {
  struct tandem_error error = {0};
  finding->found = td_gpus_find(gpus, &error) == TANDEM_OK;
  snprintf(finding->version, sizeof finding->version, "%s", gpus->version);
  snprintf(finding->path, sizeof finding->path, "%s", gpus->path);
  if (finding->found)
    snprintf(finding->use, sizeof finding->use, "%zu GPU%s", gpus->count, gpus->count == 1 ? "" : "s");
  else {
    snprintf(finding->reason, sizeof finding->reason, "%s", error.message);
    if (*finding->path)
      snprintf(finding->mend, sizeof finding->mend,
               "let this process reach a GPU with a driver that knows it");
    else
      advise(finding, "TANDEM_CUDA_LIBRARY", "install the NVIDIA driver");
  }
}

static void tell_no_gpu(struct finding *finding) {
  size_t used = strlen(finding->use);
  if (finding->found)
    snprintf(finding->use + used, sizeof finding->use - used, ", but there is no GPU to load them on");
}

static cJSON *gpus_json(const struct td_gpus *gpus) {
  cJSON *list = cJSON_CreateArray();
  for (size_t i = 0; i < gpus->count; i++) {
    char capability[32];
    const struct td_gpu *gpu = &gpus->gpus[i];
    cJSON *object = cJSON_CreateObject();
    snprintf(capability, sizeof capability, "%d.%d", gpu->major, gpu->minor);
    cJSON_AddNumberToObject(object, "index", (double)i);
    cJSON_AddStringToObject(object, "name", gpu->name);
    cJSON_AddStringToObject(object, "compute_capability", capability);
    cJSON_AddNumberToObject(object, "memory_bytes", (double)gpu->memory);
    cJSON_AddItemToArray(list, object);
  }
  return list;
}

static void print_gpus(const struct td_gpus *gpus) {
  for (size_t i = 0; i < gpus->count; i++)
    printf("              cuda:%zu %s, compute capability %d.%d, %.1f GiB\n", i, gpus->gpus[i].name,
           gpus->gpus[i].major, gpus->gpus[i].minor, (double)gpus->gpus[i].memory / (1 << 30));
}

static cJSON *finding_json(const struct finding *finding) {
  const struct {
    const char *key, *text;
  } texts[] = {
      {"version", finding->version}, {"path", finding->path},     {"use", finding->use},
      {"mend", finding->mend},       {"reason", finding->reason},
  };
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
  if (finding->skipped)
    printf("%-13s %s\n", finding->title, finding->reason);
  else if (finding->found && *finding->version)
    printf("%-13s found   %s\n", finding->title, finding->version);
  else
    printf("%-13s %s\n", finding->title, finding->found ? "found" : "missing");
  if (*finding->path)
    printf("              %s\n", finding->path);
  if (*finding->use)
    printf("              %s\n", finding->use);
  if (*finding->mend)
    printf("              to mend: %s\n", finding->mend);
}

int td_doctor_command(int count, char **arguments) {
  const struct td_usage usage = {"doctor", NULL, help};
  bool json = false;
  const struct td_flag flags[] = {{"--json", TD_FLAG_SWITCH, &json, 0, 0}};
  int result = td_args_parse(&usage, flags, 1, count, arguments, NULL);
  if (result != TD_ARGS_GO)
    return result;
  td_notes_init(false);

  enum {
    EXECUTORCH,
    FLATC,
    OPENVINO,
    TENSORRT,
    TENSORRT_LEAN,
    TENSORRT_RTX,
    AOTINDUCTOR,
    CUDA_BACKEND,
    CUDA,
    COUNT
  };
  struct finding findings[COUNT] = {
      [EXECUTORCH] = {.key = "executorch", .title = "ExecuTorch"},
      [FLATC] = {.key = "flatc", .title = "flatc"},
      [OPENVINO] = {.key = "openvino", .title = "OpenVINO"},
      [TENSORRT] = {.key = "tensorrt", .title = "TensorRT"},
      [TENSORRT_LEAN] = {.key = "tensorrt_lean", .title = "TensorRT lean"},
      [TENSORRT_RTX] = {.key = "tensorrt_rtx", .title = "TensorRT RTX"},
      [AOTINDUCTOR] = {.key = "aotinductor", .title = "AOTInductor"},
      [CUDA_BACKEND] = {.key = "cuda_backend", .title = "CudaBackend"},
      [CUDA] = {.key = "cuda", .title = "CUDA driver"},
  };
  struct td_gpus gpus = {0};
  const char *named = getenv("TANDEM_TENSORRT_LIBRARY");
  if (!named || !*named) {
    find_product(&findings[TENSORRT_LEAN], "lean", "pip install tensorrt-lean-cu13");
    find_product(&findings[TENSORRT_RTX], "rtx", "pip install tensorrt-rtx-cu13");
  }
  find_executorch(&findings[EXECUTORCH]);
  find_flatc(&findings[FLATC]);
  if (!find_vendor(&findings[OPENVINO], "openvino"))
    snprintf(findings[OPENVINO].mend, sizeof findings[OPENVINO].mend,
             "build tandem with its OpenVINO vendor");
  else if (!findings[OPENVINO].found)
    advise(&findings[OPENVINO], openvino_variable(), "pip install 'openvino>=2025.4,<2027'");
  if (!find_vendor(&findings[TENSORRT], "tensorrt"))
    snprintf(findings[TENSORRT].mend, sizeof findings[TENSORRT].mend,
             "build tandem with its TensorRT vendor");
  else if (!findings[TENSORRT].found)
    advise_tensorrt(&findings[TENSORRT]);
  find_aotinductor(&findings[AOTINDUCTOR], "aotinductor");
  find_aotinductor(&findings[CUDA_BACKEND], "aotinductor_cuda");
  find_cuda(&findings[CUDA], &gpus);
  if (!findings[CUDA].found) {
    tell_no_gpu(&findings[TENSORRT]);
    tell_no_gpu(&findings[CUDA_BACKEND]);
  }
  if (named && *named) {
    take_named(&findings[TENSORRT_LEAN], &findings[TENSORRT], strstr(findings[TENSORRT].version, "(lean)"));
    take_named(&findings[TENSORRT_RTX], &findings[TENSORRT], strstr(findings[TENSORRT].version, "-RTX"));
  } else {
    tell_product(&findings[TENSORRT_LEAN], &findings[TENSORRT], "lean");
    tell_product(&findings[TENSORRT_RTX], &findings[TENSORRT], "rtx");
  }
  bool usable =
      findings[EXECUTORCH].found && findings[OPENVINO].found && tandem_executorch_active("OpenvinoBackend");

  bool good = true;
  if (json) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "tandem", tandem_version());
    for (size_t i = 0; i < COUNT; i++)
      cJSON_AddItemToObject(document, findings[i].key, finding_json(&findings[i]));
    cJSON_AddItemToObject(cJSON_GetObjectItem(document, "cuda"), "devices", gpus_json(&gpus));
    cJSON_AddBoolToObject(document, "usable", usable);
    good = td_print_json(document);
  } else {
    printf("tandem %s\n\n", tandem_version());
    for (size_t i = 0; i < COUNT; i++)
      print_finding(&findings[i]);
    print_gpus(&gpus);
    printf("\n%s\n", usable ? "Programs for OpenvinoBackend load here and share their engines."
                            : "Programs for OpenvinoBackend cannot be loaded here yet.");
    good = td_end_output();
  }
  td_notes_fini(false);
  if (!usable)
    td_complain("doctor: the default path, ExecuTorch with OpenVINO, is not usable: %s",
                *findings[OPENVINO].mend ? findings[OPENVINO].mend : findings[EXECUTORCH].mend);
  return usable && good ? TD_EXIT_DONE : TD_EXIT_FAILED;
}
