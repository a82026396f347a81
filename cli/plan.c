/* The demo's policy for TensorRT: a plan that TensorRT's own builder makes on this machine.
 *
 * A plan suits only the version and the GPU that it was built for, so none can be shipped. The builder comes
 * with the full TensorRT and with TensorRT-RTX; the lean runtime has none. It is called through its vtables,
 * like the runtime in vendors/tensorrt, whose abi.h tells how and which traps there are; the few slots needed
 * here are the same in all versions but for three of the builder's, and a test holds them against the list of
 * slots.
 *
 * The policy is a mixer: 36 patches of an image and the robot's state become tokens, each block mixes between
 * tokens and within each, and learned queries pick the chunk of actions. Everything is a matrix product, so
 * nearly all of the size asked for is weights.
 */
#include "cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PATCHES = 36, PATCH_SIZE = 768, STATE = 8, CHUNK = 16, ACTION = 7, DIMS_MAX = 8 };
static const int64_t mlp = 4; /* the width of a block's middle over that of its ends */

static const struct tandem_io plan_io[] = {
    {.name = "image",
     .dtype = TANDEM_FLOAT32,
     .rank = 2,
     .min = {PATCHES, PATCH_SIZE},
     .max = {PATCHES, PATCH_SIZE}},
    {.name = "state", .dtype = TANDEM_FLOAT32, .rank = 2, .min = {1, STATE}, .max = {1, STATE}},
    {.name = "action", .dtype = TANDEM_FLOAT32, .rank = 2, .min = {CHUNK, ACTION}, .max = {CHUNK, ACTION}},
};
enum { INPUT_COUNT = 2, IO_COUNT = sizeof plan_io / sizeof plan_io[0] };

size_t td_plan_io(const struct tandem_io **io, size_t *input_count) {
  *io = plan_io;
  *input_count = INPUT_COUNT;
  return IO_COUNT;
}

/* ---------------------------------------------------------------- TensorRT's builder */

typedef void (*any_fn)(void);

/* A public object; its methods are in the implementation's table and get the implementation. */
struct object {
  const any_fn *vtable;
  struct implementation {
    const any_fn *vtable;
  } * implementation;
};

struct dims {
  int32_t rank;
  int64_t d[DIMS_MAX];
};

struct weights { /* passed by value, which is on the stack in C as in C++ */
  int32_t dtype;
  const void *values;
  int64_t count;
};

/* Slots. Of the first three TensorRT 11 and RTX have the second number. */
enum {
  SLOT_CREATE_CONFIG_10 = 7,
  SLOT_CREATE_CONFIG_11 = 5,
  SLOT_CREATE_NETWORK_10 = 8,
  SLOT_CREATE_NETWORK_11 = 6,
  SLOT_BUILD_10 = 14,
  SLOT_BUILD_11 = 11,
  SLOT_ADD_INPUT = 2,
  SLOT_MARK_OUTPUT = 3,
  SLOT_ADD_ACTIVATION = 4,
  SLOT_ADD_ELEMENTWISE = 9,
  SLOT_ADD_MATRIX_MULTIPLY = 22,
  SLOT_ADD_CONSTANT = 23,
  SLOT_TENSOR_SET_NAME = 2,
  SLOT_LAYER_GET_OUTPUT = 8,
  SLOT_MEMORY_DATA = 2,
  SLOT_MEMORY_SIZE = 3,
};
enum { STRONGLY_TYPED_10 = 1 << 1, STRONGLY_TYPED_11 = 1 << 0 };
enum { FLOAT = 0, RELU = 0, SUM = 0, AS_IT_IS = 0 };
enum { SEVERITY_ERROR = 1, LOWEST_ADDRESS = 4096 };

#define METHOD(object, slot, type) ((type)(object)->implementation->vtable[slot])

static bool is_live(const struct object *object) {
  return (uintptr_t)object >= LOWEST_ADDRESS;
}

static void destroy(struct object *object) {
  if (is_live(object))
    ((void (*)(struct object *))object->vtable[1])(object);
}

/* ---------------------------------------------------------------- the logger */

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static char words[512]; /* the first error; guarded by words_lock */

static void take_line(void *logger, int32_t severity, const char *line) {
  (void)logger;
  if (severity > SEVERITY_ERROR)
    return;
  pthread_mutex_lock(&words_lock);
  if (!*words)
    snprintf(words, sizeof words, "%s", line);
  pthread_mutex_unlock(&words_lock);
}

struct interface_info {
  const char *kind;
  int32_t major, minor;
};

static int32_t get_language(void *logger) {
  (void)logger;
  return 0;
}

static struct interface_info get_info(void *logger) {
  (void)logger;
  return (struct interface_info){"ILogger", 1, 0};
}

static void do_nothing(void *logger) {
  (void)logger;
}

/* TensorRT 10 has the message first, later ones after the entries of a versioned interface. */
static const any_fn table_10[] = {(any_fn)take_line, (any_fn)do_nothing, (any_fn)do_nothing};
static const any_fn table_11[] = {(any_fn)get_language, (any_fn)get_info, (any_fn)do_nothing,
                                  (any_fn)do_nothing, (any_fn)take_line};
static const any_fn *const logger_10 = table_10, *const logger_11 =
                                                     table_11; /* objects: a pointer to a table */

/* ---------------------------------------------------------------- the network */

struct network {
  struct object *object; /* owned by build_plan */
  float **blocks;        /* owned: weights live until the plan is built */
  size_t block_count, block_room;
  uint64_t seed;
  const char *failed; /* what first went wrong */
};

/* SplitMix64: the same policy for the same size everywhere. */
static float draw(uint64_t *seed) {
  uint64_t z = *seed += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return (float)(int64_t)(z >> 40) / (float)(1 << 23) - 1.0f;
}

static struct object *fail(struct network *network, const char *what) {
  if (!network->failed)
    network->failed = what;
  return NULL;
}

static struct object *output_of(struct network *network, struct object *layer, const char *what) {
  if (!is_live(layer))
    return fail(network, what);
  typedef struct object *(*get_output_fn)(struct implementation *, int32_t);
  struct object *tensor = METHOD(layer, SLOT_LAYER_GET_OUTPUT, get_output_fn)(layer->implementation, 0);
  return is_live(tensor) ? tensor : fail(network, what);
}

static struct object *add_weights(struct network *network, int64_t rows, int64_t columns, double scale) {
  size_t count = (size_t)rows * (size_t)columns;
  if (network->failed)
    return NULL;
  if (network->block_count == network->block_room) {
    size_t room = network->block_room ? network->block_room * 2 : 64;
    float **blocks = realloc(network->blocks, room * sizeof *blocks);
    if (!blocks)
      return fail(network, "memory");
    network->blocks = blocks;
    network->block_room = room;
  }
  float *values = malloc(count * sizeof *values);
  if (!values)
    return fail(network, "memory");
  network->blocks[network->block_count++] = values;
  for (size_t i = 0; i < count; i++)
    values[i] = draw(&network->seed) * (float)scale;
  struct dims dims = {2, {rows, columns}};
  struct weights weights = {FLOAT, values, (int64_t)count};
  typedef struct object *(*add_constant_fn)(struct implementation *, const struct dims *, struct weights);
  struct object *layer = METHOD(network->object, SLOT_ADD_CONSTANT,
                                add_constant_fn)(network->object->implementation, &dims, weights);
  return output_of(network, layer, "addConstant");
}

static struct object *add_product(struct network *network, struct object *a, struct object *b) {
  if (network->failed)
    return NULL;
  typedef struct object *(*add_product_fn)(struct implementation *, struct object *, int32_t, struct object *,
                                           int32_t);
  struct object *layer = METHOD(network->object, SLOT_ADD_MATRIX_MULTIPLY,
                                add_product_fn)(network->object->implementation, a, AS_IT_IS, b, AS_IT_IS);
  return output_of(network, layer, "addMatrixMultiply");
}

static struct object *add_sum(struct network *network, struct object *a, struct object *b) {
  if (network->failed)
    return NULL;
  typedef struct object *(*add_sum_fn)(struct implementation *, struct object *, struct object *, int32_t);
  struct object *layer =
      METHOD(network->object, SLOT_ADD_ELEMENTWISE, add_sum_fn)(network->object->implementation, a, b, SUM);
  return output_of(network, layer, "addElementWise");
}

static struct object *add_relu(struct network *network, struct object *a) {
  if (network->failed)
    return NULL;
  typedef struct object *(*add_activation_fn)(struct implementation *, struct object *, int32_t);
  struct object *layer = METHOD(network->object, SLOT_ADD_ACTIVATION,
                                add_activation_fn)(network->object->implementation, a, RELU);
  return output_of(network, layer, "addActivation");
}

static struct object *add_input(struct network *network, const struct tandem_io *io) {
  struct dims dims = {io->rank, {io->max[0], io->max[1]}};
  typedef struct object *(*add_input_fn)(struct implementation *, const char *, int32_t, const struct dims *);
  struct object *tensor = METHOD(network->object, SLOT_ADD_INPUT,
                                 add_input_fn)(network->object->implementation, io->name, FLOAT, &dims);
  return is_live(tensor) ? tensor : fail(network, "addInput");
}

static double scale_of(int64_t inputs) {
  return 1.0 / sqrt((double)inputs);
}

static void add_policy(struct network *network, uint64_t size_mib) {
  int64_t width = size_mib < 16 ? 256 : 512;
  uint64_t block_bytes = (uint64_t)(2 * mlp * width * width + (int64_t)PATCHES * PATCHES) * sizeof(float);
  uint64_t rest_bytes =
      (uint64_t)((PATCH_SIZE + STATE + ACTION) * width + (int64_t)CHUNK * PATCHES) * sizeof(float);
  uint64_t block_count =
      ((size_mib << 20) - rest_bytes + block_bytes / 2) / block_bytes; /* 1 from 4 MiB on */
  struct object *image = add_input(network, &plan_io[0]), *state = add_input(network, &plan_io[1]);
  struct object *h =
      add_product(network, image, add_weights(network, PATCH_SIZE, width, scale_of(PATCH_SIZE)));
  h = add_sum(network, h, add_product(network, state, add_weights(network, STATE, width, scale_of(STATE))));
  for (uint64_t i = 0; i < block_count && !network->failed; i++) {
    h = add_sum(network, h,
                add_product(network, add_weights(network, PATCHES, PATCHES, 0.5 * scale_of(PATCHES)), h));
    struct object *u = add_product(network, h, add_weights(network, width, mlp * width, scale_of(width)));
    u = add_relu(network, u);
    u = add_product(network, u, add_weights(network, mlp * width, width, 0.5 * scale_of(mlp * width)));
    h = add_sum(network, h, u);
  }
  h = add_product(network, add_weights(network, CHUNK, PATCHES, scale_of(PATCHES)), h);
  h = add_product(network, h, add_weights(network, width, ACTION, scale_of(width)));
  if (network->failed)
    return;
  typedef void (*set_name_fn)(struct implementation *, const char *);
  typedef void (*mark_output_fn)(struct implementation *, struct object *);
  METHOD(h, SLOT_TENSOR_SET_NAME, set_name_fn)(h->implementation, plan_io[INPUT_COUNT].name);
  METHOD(network->object, SLOT_MARK_OUTPUT, mark_output_fn)(network->object->implementation, h);
}

/* ---------------------------------------------------------------- the payload */

static void put(unsigned char *bytes, int width, uint64_t value) {
  for (int i = 0; i < width; i++)
    bytes[i] = (unsigned char)(value >> (8 * i));
}

/* A TR01 payload: 32 bytes of header, the metadata, the plan at a multiple of 16. */
static bool write_payload(FILE *file, const void *plan, size_t plan_size) {
  char metadata[1024];
  unsigned char header[32] = {'T', 'R', '0', '1'};
  static const char zeros[16];
  size_t n = (size_t)snprintf(metadata, sizeof metadata, "{\"io_bindings\":[");
  for (size_t i = 0; i < IO_COUNT; i++)
    n += (size_t)snprintf(metadata + n, sizeof metadata - n,
                          "%s{\"name\":\"%s\",\"dtype\":\"float32\",\"shape\":[%lld,%lld],\"is_input\":%s}",
                          i ? "," : "", plan_io[i].name, (long long)plan_io[i].max[0],
                          (long long)plan_io[i].max[1], i < INPUT_COUNT ? "true" : "false");
  n += (size_t)snprintf(
      metadata + n, sizeof metadata - n,
      "],\"device_id\":0,\"hardware_compatible\":false,\"target_platform\":\"linux_x86_64\"}");
  size_t plan_at = (sizeof header + n + 15) / 16 * 16;
  put(header + 4, 4, sizeof header);
  put(header + 8, 4, n);
  put(header + 12, 4, plan_at);
  put(header + 16, 8, plan_size);
  header[24] = 1;
  return fwrite(header, 1, sizeof header, file) == sizeof header && fwrite(metadata, 1, n, file) == n &&
         fwrite(zeros, 1, plan_at - sizeof header - n, file) == plan_at - sizeof header - n &&
         fwrite(plan, 1, plan_size, file) == plan_size;
}

/* ---------------------------------------------------------------- build */

struct library {
  int32_t version;
  bool ten; /* TensorRT 10; 11 and RTX are alike here */
  struct object *(*create_builder)(const any_fn *const *logger, int32_t version);
};

static enum tandem_status open_library(const char *path, const char *version, struct library *library,
                                       struct tandem_error *error) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *reason = dlerror();
    return td_refuse(error, TANDEM_UNAVAILABLE, "cannot open %s: %s", path,
                     reason ? reason : "no reason given");
  }
  int32_t (*get_version)(void) = NULL;
  void *symbol = dlsym(handle, "getInferLibVersion"), *builder = dlsym(handle, "createInferBuilder_INTERNAL");
  memcpy(&get_version, &symbol, sizeof symbol);
  memcpy(&library->create_builder, &builder, sizeof builder);
  if (!get_version || !library->create_builder)
    return td_refuse(
        error, TANDEM_UNAVAILABLE,
        "%s at %s has no builder, so it cannot make the demo's policy: install the full TensorRT (pip "
        "install tensorrt-cu13), or TensorRT-RTX (pip install tensorrt-rtx-cu13) and set "
        "TANDEM_TENSORRT_RUNTIME=rtx",
        version, path);
  library->version = get_version();
  library->ten = library->version >= 100000 && library->version < 110000;
  return TANDEM_OK;
}

static enum tandem_status fail_build(const char *version, const char *what, struct tandem_error *error) {
  pthread_mutex_lock(&words_lock);
  td_refuse(error, TANDEM_UNSUPPORTED, "%s: %s failed while making the policy: %s", version, what,
            *words ? words : "it said nothing");
  pthread_mutex_unlock(&words_lock);
  return error->code;
}

enum tandem_status td_plan_export(const char *path, const char *version, uint64_t size_mib,
                                  const char *payload, struct tandem_error *error) {
  typedef struct object *(*create_config_fn)(struct implementation *);
  typedef struct object *(*create_network_fn)(struct implementation *, uint32_t);
  typedef struct object *(*build_fn)(struct implementation *, struct object *, struct object *);
  typedef const void *(*data_fn)(struct implementation *);
  typedef size_t (*size_fn)(struct implementation *);
  struct object *builder = NULL, *config = NULL, *memory = NULL;
  struct network network = {.seed = 1};
  struct library library = {0};
  FILE *file = NULL;
  enum tandem_status status = open_library(path, version, &library, error);
  if (status != TANDEM_OK)
    return status;
  bool ten = library.ten;
  builder = library.create_builder(ten ? &logger_10 : &logger_11, library.version);
  if (!is_live(builder)) {
    status = fail_build(version, "createInferBuilder", error);
    goto done;
  }
  config = METHOD(builder, ten ? SLOT_CREATE_CONFIG_10 : SLOT_CREATE_CONFIG_11,
                  create_config_fn)(builder->implementation);
  network.object = METHOD(builder, ten ? SLOT_CREATE_NETWORK_10 : SLOT_CREATE_NETWORK_11, create_network_fn)(
      builder->implementation, ten ? STRONGLY_TYPED_10 : STRONGLY_TYPED_11);
  if (!is_live(config) || !is_live(network.object)) {
    status = fail_build(version, is_live(config) ? "createNetworkV2" : "createBuilderConfig", error);
    goto done;
  }
  add_policy(&network, size_mib);
  if (network.failed) {
    status = fail_build(version, network.failed, error);
    goto done;
  }
  memory = METHOD(builder, ten ? SLOT_BUILD_10 : SLOT_BUILD_11, build_fn)(builder->implementation,
                                                                          network.object, config);
  if (!is_live(memory)) {
    status = fail_build(version, "buildSerializedNetwork", error);
    goto done;
  }
  file = fopen(payload, "wbe");
  bool good = file && write_payload(file, METHOD(memory, SLOT_MEMORY_DATA, data_fn)(memory->implementation),
                                    METHOD(memory, SLOT_MEMORY_SIZE, size_fn)(memory->implementation));
  if (file)
    good = fclose(file) == 0 && good;
  if (!good)
    status = td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", payload, strerror(errno));

done:
  destroy(memory);
  destroy(network.object);
  destroy(config);
  destroy(builder);
  for (size_t i = 0; i < network.block_count; i++)
    free(network.blocks[i]);
  free(network.blocks);
  return status;
}
