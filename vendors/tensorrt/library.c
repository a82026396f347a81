/* Finds a TensorRT runtime, chooses its layout, and calls it.
 *
 * A library that the user named (TANDEM_TENSORRT_LIBRARY) is used or is an error. Otherwise the full library
 * is looked for before the lean one before RTX, each in the libraries of this process, the pip packages of
 * the Python that runs or is near, and the system; TANDEM_TENSORRT_RUNTIME=full|lean|rtx looks for that one
 * only. The version is read through getInferLibVersion, which is safe in every version, before anything else
 * is called: the libraries do not check who calls them, and a wrong layout is silent until it crashes. A
 * library whose layout is not known is passed over and told in the error.
 *
 * The logger is one object for the process, since the library keeps the pointer and its threads may log at
 * any time. What an error line says of its cause is also kept by thread, for the errors of engine.c.
 */
#include "tensorrt.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct td_trt_library td_trt;

static const struct {
  const char *word;     /* in TANDEM_TENSORRT_RUNTIME */
  const char *stem;     /* of the file */
  const char *package;  /* pip's folder in site-packages */
  const char *names[3]; /* for the loader */
} products[] = {
    [TD_TRT_FULL] = {"full", "libnvinfer.so", "tensorrt_libs", {"libnvinfer.so.11", "libnvinfer.so.10"}},
    [TD_TRT_LEAN] = {"lean",
                     "libnvinfer_lean.so",
                     "tensorrt_lean_libs",
                     {"libnvinfer_lean.so.11", "libnvinfer_lean.so.10"}},
    [TD_TRT_RTX] = {"rtx", "libtensorrt_rtx.so", "tensorrt_rtx_libs", {"libtensorrt_rtx.so.1"}},
};
enum { PRODUCT_COUNT = sizeof products / sizeof products[0] };

static const char remedy[] = "install one with: pip install tensorrt-cu13 (or tensorrt-lean-cu13, "
                             "tensorrt-rtx-cu13), or set TANDEM_TENSORRT_LIBRARY to its path";
static const char supported[] = "TensorRT 10, TensorRT 11 and TensorRT-RTX 1.5 to 1.x";

/* ---------------------------------------------------------------- version gate */

static int pick_slot(const struct td_trt_library *library, int slot10, int since10, int slot11, int rtx) {
  if (library->product == TD_TRT_RTX)
    return rtx;
  if (library->major != 10)
    return slot11;
  return library->minor >= since10 ? slot10 : -1;
}

static void choose_slots(const struct td_trt_library *library, struct td_trt_slots *slots) {
#define CHOOSE(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)           \
  slots->member = pick_slot(library, slot10, since10, slot11, rtx);
  TD_TRT_METHODS(CHOOSE, CHOOSE)
#undef CHOOSE
}

enum tandem_status td_trt_choose(const struct tandem_host *host, int32_t version, bool lean,
                                 struct td_trt_library *library, struct tandem_error *error) {
  bool rtx = version >= 10000 && version < 100000;
  int32_t unit = version >= 10000 ? 10000 : 1000; /* up to TensorRT 9 the major version counts thousands */
  bool known = rtx ? version >= 10500 && version < 20000 : version >= 100000 && version < 120000;
  library->version = version;
  library->major = version / unit;
  library->minor = version % unit / 100;
  library->patch = version % 100;
  library->product = rtx ? TD_TRT_RTX : lean ? TD_TRT_LEAN : TD_TRT_FULL;
  snprintf(library->name, sizeof library->name, "TensorRT%s %d.%d.%d%s", rtx ? "-RTX" : "", library->major,
           library->minor, library->patch, !rtx && lean ? " (lean)" : "");
  if (!known)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "it is %s (version number %d), tandem knows the layouts of %s", library->name, version,
                      supported);
  choose_slots(library, &library->slots);
  return TANDEM_OK;
}

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
static bool find_symbol(const struct tandem_host *host, void *library, const char *name, void *function) {
  void *address = host->library_symbol(library, name);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

/* ---------------------------------------------------------------- search */

enum { PACKAGES_MAX = 24 };

struct search {
  const struct tandem_host *host;
  bool wanted[PRODUCT_COUNT];
  struct td_trt_library found; /* once `done` */
  char version[128];           /* with the build number */
  bool done;
  char packages[PACKAGES_MAX][PATH_MAX]; /* folders of Python packages, each once */
  size_t package_count;
  struct tandem_error broken; /* the first library that is there and cannot be used */
};

/* The library's version, checked, and what is called by name. */
static enum tandem_status inspect_library(struct search *search, void *library, struct tandem_error *error) {
  const struct tandem_host *host = search->host;
  struct td_trt_library *found = &search->found;
  td_trt_version_fn read_version, read_build;
  void *builder;
  if (!find_symbol(host, library, "getInferLibVersion", &read_version))
    return host->fail(error, TANDEM_UNSUPPORTED, "it has no getInferLibVersion, so it is no TensorRT");
  bool lean = !find_symbol(host, library, "createInferBuilder_INTERNAL", &builder);
  enum tandem_status status = td_trt_choose(host, read_version(), lean, found, error);
  if (status != TANDEM_OK)
    return status;
  if (!find_symbol(host, library, "createInferRuntime_INTERNAL", &found->create_runtime))
    return host->fail(error, TANDEM_UNSUPPORTED, "%s has no createInferRuntime_INTERNAL", found->name);
  if (!search->wanted[found->product])
    return host->fail(error, TANDEM_UNSUPPORTED, "it is %s, TANDEM_TENSORRT_RUNTIME asks for another product",
                      found->name);
  if (find_symbol(host, library, "getInferLibBuildVersion", &read_build))
    snprintf(search->version, sizeof search->version, "%.80s, build %d", found->name, read_build());
  else
    snprintf(search->version, sizeof search->version, "%.80s", found->name);
  return TANDEM_OK;
}

static void try_library(struct search *search, const char *name) {
  const struct tandem_host *host = search->host;
  struct tandem_error error = {0};
  char path[sizeof search->found.path] = "";
  void *library = host->library_open(name, path, sizeof path, &error);
  if (library != NULL) {
    search->done = inspect_library(search, library, &error) == TANDEM_OK;
    snprintf(search->found.path, sizeof search->found.path, "%s", path[0] != '\0' ? path : name);
  }
  if (!search->done && error.code != TANDEM_NOT_FOUND && search->broken.code == TANDEM_OK)
    host->fail(&search->broken, error.code, "%.300s: %.600s", library != NULL ? search->found.path : name,
               error.message);
}

/* The number after "libnvinfer.so." with two digits to a part, so that .10 counts for more than .8; -1 when
 * `name` is another file. */
static long rank_name(const char *name, const char *stem) {
  size_t length = strlen(stem);
  long rank = 0;
  if (strncmp(name, stem, length) != 0 || (name[length] != '.' && name[length] != '\0'))
    return -1;
  const char *at = name + length;
  for (int part = 0; part < 4; part++) {
    long number = *at == '.' ? strtol(at + 1, (char **)&at, 10) : 0;
    rank = rank * 1000 + (number < 0 || number > 999 ? 0 : number);
  }
  return rank;
}

/* Every file of a product in a folder, newest first, until one can be used. */
static void try_folder(struct search *search, const char *folder, enum td_trt_product product) {
  long below = LONG_MAX;
  char path[PATH_MAX], best[NAME_MAX + 1];
  while (!search->done) {
    long highest = -1;
    DIR *entries = opendir(folder);
    if (entries == NULL)
      return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
      long rank = rank_name(entry->d_name, products[product].stem);
      if (rank > highest && rank < below) {
        highest = rank;
        snprintf(best, sizeof best, "%s", entry->d_name);
      }
    }
    closedir(entries);
    int length = snprintf(path, sizeof path, "%s/%s", folder, highest >= 0 ? best : "");
    if (highest < 0 || length < 0 || (size_t)length >= sizeof path)
      return;
    below = highest;
    try_library(search, path);
  }
}

static void add_packages(struct search *search, const char *folder, size_t length) {
  if (length == 0 || length >= PATH_MAX || search->package_count == PACKAGES_MAX)
    return;
  char *place = search->packages[search->package_count];
  memcpy(place, folder, length);
  place[length] = '\0';
  for (size_t i = 0; i < search->package_count; i++)
    if (strcmp(search->packages[i], place) == 0)
      return;
  search->package_count++;
}

/* <prefix>/lib/python3*'s site-packages and dist-packages. */
static void add_prefix(struct search *search, const char *prefix) {
  static const char *const kinds[] = {"site-packages", "dist-packages"};
  char folder[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s/lib", prefix);
  DIR *entries = length > 0 && (size_t)length < sizeof folder ? opendir(folder) : NULL;
  if (entries == NULL)
    return;
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
    for (size_t i = 0; strncmp(entry->d_name, "python3", 7) == 0 && i < sizeof kinds / sizeof kinds[0]; i++) {
      length = snprintf(folder, sizeof folder, "%s/lib/%s/%s", prefix, entry->d_name, kinds[i]);
      if (length > 0 && (size_t)length < sizeof folder)
        add_packages(search, folder, (size_t)length);
    }
  closedir(entries);
}

/* The environment of a program such as <prefix>/bin/python. The link itself counts: a virtual environment's
 * python is a link to the system's. */
static void add_program(struct search *search, char *program) {
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr(program, '/');
    if (slash == NULL)
      return;
    *slash = '\0';
  }
  add_prefix(search, program);
}

static void add_running_program(struct search *search) {
  char program[PATH_MAX];
  FILE *file = fopen("/proc/self/cmdline", "re");
  size_t size = file != NULL ? fread(program, 1, sizeof program - 1, file) : 0;
  if (file != NULL)
    fclose(file);
  program[size] = '\0';
  add_program(search, program);
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0)
    return;
  program[length] = '\0';
  add_program(search, program);
}

/* With `product` the libraries of that kind that the process has mapped; without (-1) the packages that
 * anything of it comes from. */
static void visit_mapped(struct search *search, int product) {
  static const char *const kinds[] = {"/site-packages/", "/dist-packages/"};
  FILE *maps = fopen("/proc/self/maps", "re");
  char *line = NULL;
  size_t capacity = 0;
  while (maps != NULL && !search->done && getline(&line, &capacity, maps) > 0) {
    char *path = strchr(line, '/');
    if (path == NULL)
      continue;
    path[strcspn(path, "\n")] = '\0';
    if (product >= 0 && rank_name(strrchr(path, '/') + 1, products[product].stem) >= 0)
      try_library(search, path);
    for (size_t i = 0; product < 0 && i < sizeof kinds / sizeof kinds[0]; i++) {
      const char *at = strstr(path, kinds[i]);
      if (at != NULL)
        add_packages(search, path, (size_t)(at - path) + strlen(kinds[i]) - 1);
    }
  }
  free(line);
  if (maps != NULL)
    fclose(maps);
}

static void gather_packages(struct search *search) {
  static const char *const prefixes[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
  char home[PATH_MAX];
  const char *user = getenv("HOME");
  visit_mapped(search, -1);
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
    const char *prefix = getenv(prefixes[i]);
    if (prefix != NULL && *prefix != '\0')
      add_prefix(search, prefix);
  }
  for (const char *list = getenv("PYTHONPATH"); list != NULL && *list != '\0';) {
    size_t length = strcspn(list, ":");
    add_packages(search, list, length);
    list += length + (list[length] == ':');
  }
  add_running_program(search);
  if (user != NULL && snprintf(home, sizeof home, "%s/.local", user) < (int)sizeof home)
    add_prefix(search, home);
  add_prefix(search, "/usr/local");
  add_prefix(search, "/usr");
}

static void search_product(struct search *search, enum td_trt_product product) {
  char folder[PATH_MAX];
  visit_mapped(search, (int)product);
  for (size_t i = 0; !search->done && i < search->package_count; i++)
    if (snprintf(folder, sizeof folder, "%s/%s", search->packages[i], products[product].package) <
        (int)sizeof folder)
      try_folder(search, folder, product);
  for (size_t i = 0; !search->done && products[product].names[i] != NULL; i++)
    try_library(search, products[product].names[i]);
  if (!search->done)
    try_library(search, products[product].stem);
}

/* A file, a folder that has one, or a name for the loader. */
static void search_named(struct search *search, const char *name) {
  struct stat state;
  int failed = stat(name, &state) != 0 ? errno : 0;
  if ((failed == ENOENT || failed == ENOTDIR) && strchr(name, '/') != NULL) {
    search->host->fail(&search->broken, TANDEM_UNAVAILABLE, "this path does not exist");
    return;
  }
  if (failed != 0 || !S_ISDIR(state.st_mode)) {
    try_library(search, name);
    return;
  }
  for (int product = 0; !search->done && product < PRODUCT_COUNT; product++)
    if (search->wanted[product])
      try_folder(search, name, (enum td_trt_product)product);
}

static enum tandem_status read_wanted(struct search *search, const char **forced,
                                      struct tandem_error *error) {
  const char *value = getenv("TANDEM_TENSORRT_RUNTIME");
  *forced = value != NULL && *value != '\0' ? value : NULL;
  bool any = false;
  for (int product = 0; product < PRODUCT_COUNT; product++) {
    search->wanted[product] = *forced == NULL || strcmp(*forced, products[product].word) == 0;
    any = any || search->wanted[product];
  }
  return any ? TANDEM_OK
             : search->host->fail(
                   error, TANDEM_UNAVAILABLE,
                   "TANDEM_TENSORRT_RUNTIME=%s, expected full, lean or rtx; correct or unset it", *forced);
}

/* A newer minor version appends to the tables, as every one so far did; nothing of it was tried. */
static void tell_untested(const struct td_trt_library *found) {
  int32_t newest = found->product == TD_TRT_RTX ? 7 : found->major == 10 ? 16 : 4;
  if (found->minor > newest)
    td_trt_say(TANDEM_LOG_INFO, "%s was not tested with tandem, whose newest known one is %d.%d", found->name,
               found->major, newest);
}

enum tandem_status td_trt_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                               struct tandem_error *error) {
  td_trt_set_host(host);
  const char *forced = NULL, *named = getenv("TANDEM_TENSORRT_LIBRARY");
  struct search *search = host->allocate(sizeof *search);
  if (search == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the search of TensorRT");
  search->host = host;
  enum tandem_status status = read_wanted(search, &forced, error);
  if (status != TANDEM_OK)
    goto done;
  if (named != NULL && *named != '\0') {
    search_named(search, named);
  } else {
    named = NULL;
    gather_packages(search);
    for (int product = 0; !search->done && product < PRODUCT_COUNT; product++)
      if (search->wanted[product])
        search_product(search, (enum td_trt_product)product);
  }
  if (search->done) {
    td_trt = search->found;
    snprintf(library->version, sizeof library->version, "%s", search->version);
    snprintf(library->path, sizeof library->path, "%s", td_trt.path);
    tell_untested(&td_trt);
  } else if (named != NULL) {
    status =
        host->fail(error, search->broken.code == TANDEM_UNSUPPORTED ? TANDEM_UNSUPPORTED : TANDEM_UNAVAILABLE,
                   "TANDEM_TENSORRT_LIBRARY=%s: %s; correct or unset it", named,
                   search->broken.code != TANDEM_OK
                       ? search->broken.message
                       : "there is no libnvinfer.so, libnvinfer_lean.so or libtensorrt_rtx.so");
  } else if (search->broken.code != TANDEM_OK) {
    status =
        host->fail(error, search->broken.code == TANDEM_UNSUPPORTED ? TANDEM_UNSUPPORTED : TANDEM_UNAVAILABLE,
                   "TensorRT cannot be used: %s; %s", search->broken.message, remedy);
  } else {
    status =
        host->fail(error, TANDEM_UNAVAILABLE,
                   "TensorRT was not found (looked for %s%s in the libraries of this process, %zu folders "
                   "of Python packages and the system's libraries); %s",
                   forced != NULL ? "the runtime " : "the full, the lean and the RTX runtime",
                   forced != NULL ? forced : "", search->package_count, remedy);
  }
done:
  host->release(search);
  return status;
}

/* ---------------------------------------------------------------- logger */

enum tandem_status td_trt_judge_line(const char *line) {
  static const struct {
    const char *sign;
    enum tandem_status status;
  } signs[] = {
      {"out of memory", TANDEM_OUT_OF_MEMORY},
      {"Out of memory", TANDEM_OUT_OF_MEMORY},
      {"OutOfMemory", TANDEM_OUT_OF_MEMORY},
      {"OUT_OF_MEMORY", TANDEM_OUT_OF_MEMORY},
      {"cudaErrorMemoryAllocation", TANDEM_OUT_OF_MEMORY},
      {"bad_alloc", TANDEM_OUT_OF_MEMORY},
      {"could not be allocated", TANDEM_OUT_OF_MEMORY},
      {"ailed to allocate", TANDEM_OUT_OF_MEMORY},
      {"FAILED_ALLOCATION", TANDEM_OUT_OF_MEMORY},
      {"not enough memory", TANDEM_OUT_OF_MEMORY},
      {"illegal memory access", TANDEM_DEVICE_LOST},
      {"cudaErrorIllegalAddress", TANDEM_DEVICE_LOST},
      {"ILLEGAL_ADDRESS", TANDEM_DEVICE_LOST},
      {"unspecified launch failure", TANDEM_DEVICE_LOST},
      {"LAUNCH_FAILED", TANDEM_DEVICE_LOST},
      {"uncorrectable ECC", TANDEM_DEVICE_LOST},
      {"ontext is destroyed", TANDEM_DEVICE_LOST},
  };
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
    if (strstr(line, signs[i].sign) != NULL)
      return signs[i].status;
  return TANDEM_OK;
}

static _Thread_local unsigned said;

void td_trt_listen(void) {
  said = 0;
}

unsigned td_trt_said(void) {
  return said;
}

static unsigned find_causes(const char *line) {
  static const struct {
    const char *sign;
    unsigned cause;
  } signs[] = {
      {"compute capability", TD_TRT_SAID_CAPABILITY},
      {"incompatible device", TD_TRT_SAID_CAPABILITY},
      {"Target GPU SM", TD_TRT_SAID_CAPABILITY},
      {"cannot run on this GPU", TD_TRT_SAID_CAPABILITY},
      {"magicTag", TD_TRT_SAID_MAGIC},
      {"magic tag", TD_TRT_SAID_MAGIC},
      {"ersion tag does not match", TD_TRT_SAID_VERSION},
      {"different version of TensorRT", TD_TRT_SAID_VERSION},
      {"not compatible with this version of TensorRT", TD_TRT_SAID_VERSION},
      {"kSERIALIZATION_VERSION", TD_TRT_SAID_VERSION},
      {"host code", TD_TRT_SAID_HOST_CODE},
      {"HostCode", TD_TRT_SAID_HOST_CODE},
  };
  unsigned causes = 0;
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
    if (strstr(line, signs[i].sign) != NULL)
      causes |= signs[i].cause;
  return causes;
}

static void log_line(void *self, int32_t severity, const char *message) {
  (void)self;
  char line[2048];
  enum tandem_log_level level = severity <= TD_TRT_ERROR     ? TANDEM_LOG_ERROR
                                : severity == TD_TRT_WARNING ? TANDEM_LOG_WARNING
                                : severity == TD_TRT_INFO    ? TANDEM_LOG_INFO
                                                             : TANDEM_LOG_DEBUG;
  if (message == NULL)
    return;
  size_t length = 0;
  for (; length < sizeof line - 1 && message[length] != '\0'; length++)
    line[length] = message[length] == '\n' || message[length] == '\t' ? ' ' : message[length];
  while (length > 0 && line[length - 1] == ' ')
    length--;
  line[length] = '\0';
  bool serious = level <= TANDEM_LOG_WARNING;
  if (serious)
    said |= find_causes(line);
  td_trt_host()->log(&td_vendor_tensorrt, level, serious ? td_trt_judge_line(line) : TANDEM_OK, line);
}

static int32_t tell_language(void *self) {
  (void)self;
  return 0; /* C++ */
}

static struct td_trt_interface_info tell_logger(void *self) {
  (void)self;
  return (struct td_trt_interface_info){"ILogger", 1, 0};
}

/* Never called for an object that the library does not own; there so that no slot is empty. */
static void destroy_nothing(void *self) {
  (void)self;
}

/* A vtable's slots are functions of several types. */
typedef void (*slot_fn)(void);
#define SLOT(function) ((slot_fn)(function))

static const slot_fn logger10[] = {SLOT(log_line), SLOT(destroy_nothing), SLOT(destroy_nothing)};
static const slot_fn logger11[] = {SLOT(tell_language), SLOT(tell_logger), SLOT(destroy_nothing),
                                   SLOT(destroy_nothing), SLOT(log_line)};

static const struct logger { const slot_fn *vtable; } loggers[] = {{logger10}, {logger11}};

enum tandem_status td_trt_create_runtime(void **runtime, struct tandem_error *error) {
  bool ten = td_trt.product != TD_TRT_RTX && td_trt.major == 10;
  const struct logger *logger = &loggers[ten ? 0 : 1];
  void *created = td_trt.create_runtime((void *)(uintptr_t)logger, td_trt.version);
  *runtime = TD_TRT_LIVE(created) ? created : NULL;
  if (*runtime != NULL)
    return TANDEM_OK;
  return td_trt_host()->fail(error, TANDEM_UNAVAILABLE, "%s created no runtime", td_trt.name);
}

void td_trt_delete(void *object) {
  if (!TD_TRT_LIVE(object))
    return;
  void (*destroy)(void *);
  memcpy(&destroy, &((struct td_trt_object *)object)->vtable[1], sizeof destroy);
  destroy(object);
}

/* ---------------------------------------------------------------- output allocator */

static struct td_trt_interface_info tell_allocator(void *self) {
  (void)self;
  return (struct td_trt_interface_info){"IOutputAllocator", 1, 0};
}

static void *reallocate_output(void *self, const char *name, void *current, uint64_t size,
                               uint64_t alignment) {
  return td_trt_output_reallocate(self, name, current, size, alignment, NULL);
}

static void *reallocate_output_async(void *self, const char *name, void *current, uint64_t size,
                                     uint64_t alignment, void *stream) {
  return td_trt_output_reallocate(self, name, current, size, alignment, stream);
}

static void notify_shape(void *self, const char *name, const struct td_trt_dims *dims) {
  td_trt_output_shape(self, name, dims);
}

static const slot_fn allocator_trt[] = {
    SLOT(tell_language),     SLOT(tell_allocator),          SLOT(destroy_nothing), SLOT(destroy_nothing),
    SLOT(reallocate_output), SLOT(reallocate_output_async), SLOT(notify_shape)};
static const slot_fn allocator_rtx[] = {SLOT(tell_language),           SLOT(tell_allocator),
                                        SLOT(destroy_nothing),         SLOT(destroy_nothing),
                                        SLOT(reallocate_output_async), SLOT(notify_shape)};

void td_trt_output_allocator_init(struct td_trt_output_allocator *allocator) {
  allocator->vtable = td_trt.product == TD_TRT_RTX ? (const void *)allocator_rtx : allocator_trt;
}

/* ---------------------------------------------------------------- methods */

/* The implementation that a method of `object` gets; the method itself is copied out. */
static void *find_method(void *object, int slot, void *method) {
  struct td_trt_implementation *implementation = ((struct td_trt_object *)object)->implementation;
  memcpy(method, &implementation->vtable[slot], sizeof(void *));
  return implementation;
}

#define DEFINE(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)           \
  result td_trt_##member parameters {                                                                        \
    result(*call) parameters;                                                                                \
    if (td_trt.slots.member < 0)                                                                             \
      return (result){0};                                                                                    \
    void *self = find_method(object, td_trt.slots.member, &call);                                            \
    return call arguments;                                                                                   \
  }
#define DEFINE_VOID(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)      \
  void td_trt_##member parameters {                                                                          \
    void(*call) parameters;                                                                                  \
    if (td_trt.slots.member < 0)                                                                             \
      return;                                                                                                \
    void *self = find_method(object, td_trt.slots.member, &call);                                            \
    call arguments;                                                                                          \
  }
TD_TRT_METHODS(DEFINE, DEFINE_VOID)
#undef DEFINE
#undef DEFINE_VOID

/* ---------------------------------------------------------------- types of elements */

static const struct {
  const char *name;
  int32_t dtype;
} dtypes[] = {
    [TD_TRT_FLOAT] = {"float32", TANDEM_FLOAT32},
    [TD_TRT_HALF] = {"float16", TANDEM_FLOAT16},
    [TD_TRT_INT8] = {"int8", TANDEM_INT8},
    [TD_TRT_INT32] = {"int32", TANDEM_INT32},
    [TD_TRT_BOOL] = {"bool", TANDEM_BOOL},
    [TD_TRT_UINT8] = {"uint8", TANDEM_UINT8},
    [TD_TRT_FP8] = {"float8", TANDEM_FLOAT8_E4M3FN},
    [TD_TRT_BF16] = {"bfloat16", TANDEM_BFLOAT16},
    [TD_TRT_INT64] = {"int64", TANDEM_INT64},
    [TD_TRT_INT4] = {"int4", -1},
    [TD_TRT_FP4] = {"float4", -1},
    [TD_TRT_E8M0] = {"float8_e8m0", -1},
};
enum { DTYPE_COUNT = sizeof dtypes / sizeof dtypes[0] };

int32_t td_trt_dtype(int32_t dtype) {
  return dtype >= 0 && dtype < DTYPE_COUNT ? dtypes[dtype].dtype : -1;
}

const char *td_trt_dtype_name(int32_t dtype) {
  return dtype >= 0 && dtype < DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}
