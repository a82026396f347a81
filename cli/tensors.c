/* Tensors that commands give to methods and compare.
 *
 * Inputs without a file are seeded: the same shapes get the same numbers in every run and on every machine.
 * Floats lie in [-1, 1); whole numbers in 0..7, since they may be indices into a table whose size only the
 * model knows. A dynamic dimension gets its upper bound, or its lower one where none is known.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

bool td_tensor_size(int32_t dtype, int32_t rank, const int64_t *shape, size_t *size) {
  size_t total = tandem_dtype_size(dtype);
  if (!total || rank < 0 || rank > TANDEM_MAX_RANK)
    return false;
  bool empty = false;
  for (int32_t i = 0; i < rank; i++) {
    if (shape[i] < 0)
      return false;
    if (shape[i] == 0)
      empty = true;
    else if (__builtin_mul_overflow(total, (size_t)shape[i], &total))
      return false;
  }
  *size = empty ? 0 : total;
  return true;
}

void td_io_text(const struct tandem_io *io, char *text, size_t size) {
  size_t n = 0;
  n += (size_t)snprintf(text, size, "%s%s%s[", io->name ? io->name : "", io->name && *io->name ? " " : "",
                        tandem_dtype_name(io->dtype));
  for (int32_t i = 0; i < io->rank && n < size; i++) {
    const char *comma = i ? ", " : "";
    if (io->min[i] == io->max[i])
      n += (size_t)snprintf(text + n, size - n, "%s%lld", comma, (long long)io->max[i]);
    else if (io->max[i] == INT64_MAX)
      n += (size_t)snprintf(text + n, size - n, "%s%lld..", comma, (long long)io->min[i]);
    else
      n += (size_t)snprintf(text + n, size - n, "%s%lld..%lld", comma, (long long)io->min[i],
                            (long long)io->max[i]);
  }
  if (n < size)
    snprintf(text + n, size - n, io->rank < 0 ? "any]" : "]");
}

static cJSON *bounds_json(const struct tandem_io *io, const int64_t *bounds) {
  cJSON *array = cJSON_CreateArray();
  for (int32_t i = 0; i < io->rank; i++)
    cJSON_AddItemToArray(array,
                         bounds[i] == INT64_MAX ? cJSON_CreateNull() : cJSON_CreateNumber((double)bounds[i]));
  return array;
}

cJSON *td_io_json(const struct tandem_io *io) {
  cJSON *object = cJSON_CreateObject();
  if (io->name && *io->name)
    cJSON_AddStringToObject(object, "name", io->name);
  else
    cJSON_AddNullToObject(object, "name");
  cJSON_AddStringToObject(object, "dtype", tandem_dtype_name(io->dtype));
  cJSON_AddNumberToObject(object, "rank", io->rank);
  cJSON_AddItemToObject(object, "min", bounds_json(io, io->min));
  cJSON_AddItemToObject(object, "max", bounds_json(io, io->max));
  return object;
}

static uint64_t draw(uint64_t *state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return *state = x;
}

/* The nearest number of half the bits, for |value| < 1 that needs no rounding to infinity. */
static uint16_t half_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffff;
  if (exponent < 113)
    return (uint16_t)sign; /* below the normal range: zero is near enough for an input drawn at random */
  return (uint16_t)(sign | (exponent - 112) << 10 | fraction >> 13);
}

static void fill_seeded(struct tandem_tensor *tensor, uint64_t seed) {
  uint64_t state = 0x9E3779B97F4A7C15u * (seed + 1);
  size_t width = tandem_dtype_size(tensor->dtype), count = tensor->size / width;
  unsigned char *at = tensor->data;
  for (size_t i = 0; i < count; i++, at += width) {
    uint64_t bits = draw(&state);
    double real = (double)(bits >> 11) * 0x1p-52 - 1;
    float single = (float)(double)(int64_t)(real * 0x1p20) * 0x1p-20f;
    uint64_t whole = bits >> 61;
    switch (tensor->dtype) {
    case TANDEM_FLOAT64:
      memcpy(at, &real, width);
      break;
    case TANDEM_FLOAT32:
      memcpy(at, &single, width);
      break;
    case TANDEM_FLOAT16: {
      uint16_t half = half_bits(single);
      memcpy(at, &half, width);
      break;
    }
    case TANDEM_BFLOAT16: {
      uint32_t word;
      memcpy(&word, &single, sizeof word);
      uint16_t top = (uint16_t)(word >> 16);
      memcpy(at, &top, width);
      break;
    }
    case TANDEM_FLOAT8_E5M2:
    case TANDEM_FLOAT8_E4M3FN:
      *at = (unsigned char)(bits >> 56 & 0xb8); /* sign and some exponents: finite in both formats */
      break;
    case TANDEM_BOOL:
      *at = (unsigned char)(whole & 1);
      break;
    default: /* whole numbers, little endian */
      memset(at, 0, width);
      *at = (unsigned char)whole;
      break;
    }
  }
}

/* A tensor of the shape that `io` has at its upper bounds. */
static enum tandem_status make_seeded(const struct tandem_io *io, size_t index, struct tandem_tensor *tensor,
                                      struct tandem_error *error) {
  tensor->dtype = io->dtype;
  tensor->rank = io->rank < 0 ? 1 : io->rank;
  for (int32_t i = 0; i < tensor->rank; i++) {
    int64_t size = io->rank < 0 ? 1 : io->max[i];
    tensor->shape[i] = size == INT64_MAX ? (io->min[i] > 1 ? io->min[i] : 1) : size;
  }
  if (!td_tensor_size(tensor->dtype, tensor->rank, tensor->shape, &tensor->size))
    return td_refuse(error, TANDEM_UNSUPPORTED,
                     "input %zu: no numbers can be made for its type or size (%s): give it with --input",
                     index, tandem_dtype_name(io->dtype));
  tensor->data = malloc(tensor->size ? tensor->size : 1);
  if (!tensor->data)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "input %zu: no memory for its %zu bytes", index,
                     tensor->size);
  fill_seeded(tensor, index);
  return TANDEM_OK;
}

static enum tandem_status read_input(const struct tandem_io *io, size_t index, const char *path,
                                     struct tandem_tensor *tensor, struct tandem_error *error) {
  struct td_npy npy;
  enum tandem_status status = td_npy_read(path, &npy, &tensor->data, error);
  if (status != TANDEM_OK)
    return status;
  tensor->size = npy.data_size;
  tensor->dtype = npy.dtype;
  tensor->rank = npy.rank;
  memcpy(tensor->shape, npy.shape, sizeof npy.shape);
  /* NumPy has no name for these types: their bytes come as unsigned numbers. */
  bool raw =
      (npy.dtype == TANDEM_UINT16 && io->dtype == TANDEM_BFLOAT16) ||
      (npy.dtype == TANDEM_UINT8 && (io->dtype == TANDEM_FLOAT8_E5M2 || io->dtype == TANDEM_FLOAT8_E4M3FN));
  if (raw)
    tensor->dtype = io->dtype;
  if (tensor->dtype != io->dtype)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: input %zu is %s in the program, the file has %s",
                     path, index, tandem_dtype_name(io->dtype), tandem_dtype_name(npy.dtype));
  return TANDEM_OK;
}

enum tandem_status td_inputs_create(const struct tandem_io *inputs, size_t count,
                                    const struct td_text_list *files, struct tandem_tensor **tensors,
                                    struct tandem_error *error) {
  *tensors = NULL;
  if (files->count && files->count != count)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT,
                     "the method has %zu input%s, %zu --input given: give none or one for each, in order",
                     count, count == 1 ? "" : "s", files->count);
  struct tandem_tensor *made = calloc(count ? count : 1, sizeof *made);
  if (!made)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu inputs", count);
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; i < count && status == TANDEM_OK; i++)
    status = files->count ? read_input(&inputs[i], i, files->items[i], &made[i], error)
                          : make_seeded(&inputs[i], i, &made[i], error);
  if (status != TANDEM_OK) {
    td_inputs_destroy(made, count);
    return status;
  }
  *tensors = made;
  return TANDEM_OK;
}

void td_inputs_destroy(struct tandem_tensor *tensors, size_t count) {
  for (size_t i = 0; tensors && i < count; i++)
    free(tensors[i].data);
  free(tensors);
}

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  while (size) {
    uint64_t word = 0;
    size_t n = size < sizeof word ? size : sizeof word;
    memcpy(&word, at, n);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    at += n;
    size -= n;
  }
  return hash;
}

uint64_t td_outputs_hash(const struct tandem_tensor *outputs, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; i++) {
    size_t size = 0;
    if (!td_tensor_size(outputs[i].dtype, outputs[i].rank, outputs[i].shape, &size))
      size = 0;
    hash = mix(hash, &outputs[i].dtype, sizeof outputs[i].dtype);
    hash = mix(hash, outputs[i].shape, (size_t)outputs[i].rank * sizeof outputs[i].shape[0]);
    hash = mix(hash, outputs[i].data, size);
  }
  return hash;
}
