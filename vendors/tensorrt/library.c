/* Finds a TensorRT runtime, chooses its layout, and calls it.
 *
 * Unless the user named a library, the full one is looked for before the lean one before RTX, each in every
 * place; TANDEM_TENSORRT_RUNTIME=full|lean|rtx looks for that one only. The version is read through
 * getInferLibVersion, which is safe in every version, before anything else is called: the libraries do not
 * check who calls them, and a wrong layout is silent until it crashes. A library whose layout is not known is
 * passed over and told in the error.
 *
 * The logger is one object for the process, since the library keeps the pointer and its threads may log at
 * any time. What an error line says of its cause is also kept by thread, for the errors of engine.c.
 */
#include "tensorrt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../search/search.h"

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

/* ---------------------------------------------------------------- search */

struct search {
  struct td_search places; /* first: what its functions are given */
  bool wanted[PRODUCT_COUNT];
  enum td_trt_product product; /* that is looked for */
  struct td_trt_library found; /* of the library accepted */
  char version[128];           /* likewise, with the build number */
};

/* The library's version, checked, and what is called by name. */
static bool accept_library(struct td_search *places, struct tandem_error *error) {
  struct search *search = (struct search *)places;
  const struct tandem_host *host = places->host;
  struct td_trt_library *found = &search->found;
  td_trt_version_fn read_version, read_build;
  void *builder;
  if (!td_search_symbol(places, "getInferLibVersion", &read_version)) {
    host->fail(error, TANDEM_UNSUPPORTED, "it has no getInferLibVersion, so it is no TensorRT");
    return false;
  }
  bool lean = !td_search_symbol(places, "createInferBuilder_INTERNAL", &builder);
  if (td_trt_choose(host, read_version(), lean, found, error) != TANDEM_OK)
    return false;
  if (!td_search_symbol(places, "createInferRuntime_INTERNAL", &found->create_runtime)) {
    host->fail(error, TANDEM_UNSUPPORTED, "%s has no createInferRuntime_INTERNAL", found->name);
    return false;
  }
  if (!search->wanted[found->product]) {
    host->fail(error, TANDEM_UNSUPPORTED, "it is %s, TANDEM_TENSORRT_RUNTIME asks for another product",
               found->name);
    return false;
  }
  snprintf(found->path, sizeof found->path, "%s", places->path);
  if (td_search_symbol(places, "getInferLibBuildVersion", &read_build))
    snprintf(search->version, sizeof search->version, "%.80s, build %d", found->name, read_build());
  else
    snprintf(search->version, sizeof search->version, "%.80s", found->name);
  return true;
}

static bool try_folder(struct td_search *places, const char *folder) {
  const struct search *search = (const struct search *)places;
  for (int product = 0; product < PRODUCT_COUNT; product++)
    if (search->wanted[product] && td_search_folder(places, folder, ".", products[product].stem))
      return true;
  return false;
}

static bool try_packages(struct td_search *places, const char *packages) {
  const struct search *search = (const struct search *)places;
  return td_search_folder(places, packages, products[search->product].package,
                          products[search->product].stem);
}

static bool search_product(struct search *search, enum td_trt_product product) {
  struct td_search *places = &search->places;
  search->product = product;
  if (td_search_mapped(places, products[product].stem, td_search_library) ||
      td_search_packages(places, try_packages))
    return true;
  for (size_t i = 0; products[product].names[i] != NULL; i++)
    if (td_search_library(places, products[product].names[i]))
      return true;
  return td_search_library(places, products[product].stem);
}

static enum tandem_status read_wanted(struct search *search, struct tandem_error *error) {
  const char *forced = getenv("TANDEM_TENSORRT_RUNTIME");
  bool any = false;
  for (int product = 0; product < PRODUCT_COUNT; product++) {
    search->wanted[product] =
        forced == NULL || *forced == '\0' || strcmp(forced, products[product].word) == 0;
    any = any || search->wanted[product];
  }
  return any ? TANDEM_OK
             : search->places.host->fail(
                   error, TANDEM_UNAVAILABLE,
                   "TANDEM_TENSORRT_RUNTIME=%s, expected full, lean or rtx; correct or unset it", forced);
}

static bool search_places(struct search *search) {
  static const char *const variables[] = {"TANDEM_TENSORRT_LIBRARY", NULL};
  if (td_search_variable(&search->places, variables) != NULL)
    return td_search_named(&search->places, try_folder);
  for (int product = 0; product < PRODUCT_COUNT; product++)
    if (search->wanted[product] && search_product(search, (enum td_trt_product)product))
      return true;
  return false;
}

/* The error names the files of each product that was looked for. */
static enum tandem_status fail_search(const struct search *search, struct tandem_error *error) {
  char files[96] = "";
  for (int product = 0; product < PRODUCT_COUNT; product++) {
    size_t used = strlen(files);
    if (search->wanted[product])
      snprintf(files + used, sizeof files - used, "%s%s", used > 0 ? ", " : "", products[product].stem);
  }
  return td_search_fail(&search->places, "TensorRT", files, remedy, error);
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
  struct search search = {.places = {.host = host, .accept = accept_library}};
  td_trt_set_host(host);
  enum tandem_status status = read_wanted(&search, error);
  if (status == TANDEM_OK && !search_places(&search))
    status = fail_search(&search, error);
  if (status != TANDEM_OK)
    return status;
  td_trt = search.found;
  snprintf(library->version, sizeof library->version, "%s", search.version);
  snprintf(library->path, sizeof library->path, "%s", td_trt.path);
  tell_untested(&td_trt);
  return TANDEM_OK;
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
