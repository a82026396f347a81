/* Drives RTX's builder through its vtables, as the vendor drives the runtime. Slots from the list beside the
 * stand-ins, 11.1's where RTX was not seen; a builder needs no GPU. */
#include "rtx_builder.h"
#include "abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  BUILDER_CREATE_CONFIG = 5,
  BUILDER_CREATE_NETWORK = 6,
  BUILDER_BUILD = 11,
  CONFIG_SET_CAPABILITY_COUNT = 55,
  CONFIG_SET_CAPABILITY = 57,
  NETWORK_ADD_INPUT = 2,
  NETWORK_MARK_OUTPUT = 3,
  NETWORK_ADD_ACTIVATION = 4,
  NETWORK_ADD_ELEMENTWISE = 9,
  NETWORK_ADD_MATRIX_MULTIPLY = 22,
  NETWORK_ADD_CONSTANT = 23,
  TENSOR_SET_NAME = 2,
  LAYER_OUTPUT = 8,
  MEMORY_DATA = 2,
  MEMORY_SIZE = 3,
  STRONGLY_TYPED = 1 << 0, /* TensorRT 11's and RTX's number; TensorRT 10 has 1 << 1 */
  RELU = 0,
  SUM = 0,
};

struct weights {
  int32_t dtype;
  const void *values;
  int64_t count;
};

static void write_line(void *self, int32_t severity, const char *line) {
  (void)self;
  if (severity <= TD_TRT_WARNING)
    fprintf(stderr, "rtx: %s\n", line);
}

static int32_t tell_language(void *self) {
  (void)self;
  return 0;
}

static struct td_trt_interface_info tell_logger(void *self) {
  (void)self;
  return (struct td_trt_interface_info){"ILogger", 1, 0};
}

static void ignore(void *self) {
  (void)self;
}

static void (*const logger_slots[])(void) = {(void (*)(void))tell_language, (void (*)(void))tell_logger,
                                             (void (*)(void))ignore, (void (*)(void))ignore,
                                             (void (*)(void))write_line};
static void (*const *logger)(void) = logger_slots;

static void *self_of(void *object) {
  return ((struct td_trt_object *)object)->implementation;
}

/* CALL(type, object, slot, arguments of the type, arguments) */
#define CALL(result, object, slot, types, ...)                                                               \
  (((result(*) types)(uintptr_t)((struct td_trt_object *)(object))->implementation->vtable[slot])(           \
      self_of(object), __VA_ARGS__))
#define CALL0(result, object, slot)                                                                          \
  (((result(*)(void *))(uintptr_t)((struct td_trt_object *)(object))->implementation->vtable[slot])(         \
      self_of(object)))

static void destroy(void *object) {
  if (TD_TRT_LIVE(object))
    ((void (*)(void *))(uintptr_t)((struct td_trt_object *)object)->vtable[1])(object);
}

static void *output_of(void *layer) {
  return TD_TRT_LIVE(layer) ? CALL(void *, layer, LAYER_OUTPUT, (void *, int32_t), 0) : NULL;
}

/* False when the builder refuses a layer. */
static bool add_layers(void *network) {
  static float matrix[32], bias[4]; /* read until the plan is built */
  const struct td_trt_dims x_dims = {2, {2, 8}}, matrix_dims = {2, {8, 4}}, bias_dims = {2, {1, 4}};
  for (int i = 0; i < 32; i++)
    matrix[i] = (float)(i - 16) / 8;
  for (int i = 0; i < 4; i++)
    bias[i] = (float)i / 2;
  void *x = CALL(void *, network, NETWORK_ADD_INPUT,
                 (void *, const char *, int32_t, const struct td_trt_dims *), "x", TD_TRT_FLOAT, &x_dims);
  void *w = output_of(CALL(void *, network, NETWORK_ADD_CONSTANT,
                           (void *, const struct td_trt_dims *, struct weights), &matrix_dims,
                           ((struct weights){TD_TRT_FLOAT, matrix, 32})));
  void *b = output_of(CALL(void *, network, NETWORK_ADD_CONSTANT,
                           (void *, const struct td_trt_dims *, struct weights), &bias_dims,
                           ((struct weights){TD_TRT_FLOAT, bias, 4})));
  if (x == NULL || w == NULL || b == NULL)
    return false;
  void *product = output_of(CALL(void *, network, NETWORK_ADD_MATRIX_MULTIPLY,
                                 (void *, void *, int32_t, void *, int32_t), x, 0, w, 0));
  void *sum = product == NULL ? NULL
                              : output_of(CALL(void *, network, NETWORK_ADD_ELEMENTWISE,
                                               (void *, void *, void *, int32_t), product, b, SUM));
  void *y =
      sum == NULL
          ? NULL
          : output_of(CALL(void *, network, NETWORK_ADD_ACTIVATION, (void *, void *, int32_t), sum, RELU));
  if (y == NULL)
    return false;
  CALL(void, y, TENSOR_SET_NAME, (void *, const char *), "y");
  CALL(void, network, NETWORK_MARK_OUTPUT, (void *, void *), y);
  return true;
}

void *rtx_build_plan(const char *path, size_t *size) {
  static const int32_t capabilities[] = {80, 120};
  void *config = NULL, *network = NULL, *plan = NULL, *copy = NULL;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void *(*create)(void *, int32_t) = NULL;
  int32_t (*read_version)(void) = NULL;
  if (library != NULL) {
    create = (void *(*)(void *, int32_t))(uintptr_t)dlsym(library, "createInferBuilder_INTERNAL");
    read_version = (int32_t(*)(void))(uintptr_t)dlsym(library, "getInferLibVersion");
  }
  void *builder = create != NULL && read_version != NULL ? create((void *)&logger, read_version()) : NULL;
  if (!TD_TRT_LIVE(builder)) {
    fprintf(stderr, "rtx_build_plan: no builder in %s\n", path);
    return NULL;
  }
  config = CALL0(void *, builder, BUILDER_CREATE_CONFIG);
  network = CALL(void *, builder, BUILDER_CREATE_NETWORK, (void *, uint32_t), STRONGLY_TYPED);
  if (config == NULL || network == NULL || !add_layers(network))
    goto done;
  /* The count comes before the capabilities. */
  if (!CALL(bool, config, CONFIG_SET_CAPABILITY_COUNT, (void *, int32_t), 2))
    goto done;
  for (int i = 0; i < 2; i++)
    if (!CALL(bool, config, CONFIG_SET_CAPABILITY, (void *, int32_t, int32_t), capabilities[i], i))
      goto done;
  plan = CALL(void *, builder, BUILDER_BUILD, (void *, void *, void *), network, config);
  if (!TD_TRT_LIVE(plan))
    goto done;
  *size = CALL0(size_t, plan, MEMORY_SIZE);
  copy = malloc(*size);
  if (copy != NULL)
    memcpy(copy, CALL0(const void *, plan, MEMORY_DATA), *size);
done:
  destroy(plan);
  destroy(network);
  destroy(config);
  destroy(builder);
  if (copy == NULL)
    fprintf(stderr, "rtx_build_plan: the builder of %s built nothing\n", path);
  return copy;
}
