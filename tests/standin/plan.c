/* Writes plans of the stand-in libnvinfer and payloads around them. TESTS ONLY.
 *
 * The writer keeps growing arrays of records and lays them out at the end, so a test says what it wants in
 * any order. A first error is kept and makes the result NULL: a test then checks one pointer.
 */
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROFILES_MAX = 8, TENSORS_MAX = 64 };

struct standin_plan {
  struct standin_plan_header header;
  struct standin_tensor_record tensors[TENSORS_MAX];
  struct standin_profile_record profiles[PROFILES_MAX][TENSORS_MAX];
  bool bounded[PROFILES_MAX][TENSORS_MAX];
  struct standin_layer_record *layers; /* owned */
  size_t layer_capacity;
  unsigned char *weights; /* owned */
  size_t weights_capacity;
  bool failed;
};

static uint64_t align_up(uint64_t size, uint64_t to) {
  return (size + to - 1) / to * to;
}

struct standin_plan *standin_plan_create(const char *name) {
  struct standin_plan *plan = calloc(1, sizeof *plan);
  if (!plan)
    return NULL;
  memcpy(plan->header.magic, STANDIN_PLAN_MAGIC, sizeof STANDIN_PLAN_MAGIC);
  plan->header.format = STANDIN_PLAN_FORMAT;
  if (strlen(name) >= sizeof plan->header.name)
    plan->failed = true;
  else
    memcpy(plan->header.name, name, strlen(name));
  return plan;
}

void standin_plan_destroy(struct standin_plan *plan) {
  if (!plan)
    return;
  free(plan->layers);
  free(plan->weights);
  free(plan);
}

struct standin_plan_header *standin_plan_header(struct standin_plan *plan) {
  return &plan->header;
}

int32_t standin_plan_tensor(struct standin_plan *plan, const char *name, enum standin_mode mode,
                            enum standin_dtype dtype, int32_t rank, const int64_t *dims) {
  bool fits = plan->header.tensor_count < TENSORS_MAX && strlen(name) < STANDIN_NAME_SIZE && rank >= 0 &&
              rank <= STANDIN_RANK_MAX && plan->header.temporary_count == 0;
  if (!fits) {
    plan->failed = true;
    return 0;
  }
  struct standin_tensor_record *tensor = &plan->tensors[plan->header.tensor_count];
  memcpy(tensor->name, name, strlen(name));
  tensor->dtype = (int32_t)dtype;
  tensor->mode = (int32_t)mode;
  tensor->rank = rank;
  tensor->alias = -1;
  for (int32_t i = 0; i < rank; i++)
    tensor->dims[i] = dims[i];
  return (int32_t)plan->header.tensor_count++;
}

struct standin_tensor_record *standin_plan_tensor_record(struct standin_plan *plan, int32_t tensor) {
  return &plan->tensors[tensor];
}

int32_t standin_plan_temporary(struct standin_plan *plan) {
  return (int32_t)(plan->header.tensor_count + plan->header.temporary_count++);
}

void standin_plan_bounds(struct standin_plan *plan, int32_t profile, int32_t tensor, const int64_t *min,
                         const int64_t *opt, const int64_t *max) {
  if (profile < 0 || profile >= PROFILES_MAX || tensor < 0 || (uint32_t)tensor >= plan->header.tensor_count) {
    plan->failed = true;
    return;
  }
  struct standin_profile_record *record = &plan->profiles[profile][tensor];
  for (int32_t i = 0; i < plan->tensors[tensor].rank; i++) {
    record->min[i] = min[i];
    record->opt[i] = opt[i];
    record->max[i] = max[i];
  }
  plan->bounded[profile][tensor] = true;
  if ((uint32_t)profile >= plan->header.profile_count)
    plan->header.profile_count = (uint32_t)profile + 1;
}

static struct standin_layer_record *add_layer(struct standin_plan *plan) {
  if (plan->header.layer_count == plan->layer_capacity) {
    size_t capacity = plan->layer_capacity ? 2 * plan->layer_capacity : 16;
    struct standin_layer_record *layers = realloc(plan->layers, capacity * sizeof *layers);
    if (!layers) {
      plan->failed = true;
      return NULL;
    }
    plan->layers = layers;
    plan->layer_capacity = capacity;
  }
  struct standin_layer_record *layer = &plan->layers[plan->header.layer_count++];
  memset(layer, 0, sizeof *layer);
  return layer;
}

static float scale_of(int64_t k) {
  float scale = 1.0f;
  for (int64_t i = 1; i < k; i *= 4)
    scale /= 2.0f;
  return scale;
}

static float unscaled_weight(uint32_t seed, uint64_t index) {
  uint32_t mixed = (seed + 1u) * 2654435761u ^ ((uint32_t)index + 1u) * 2246822519u;
  mixed ^= mixed >> 15;
  mixed *= 3266489917u;
  mixed ^= mixed >> 13;
  static const float values[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
  return values[mixed & 3u];
}

float standin_weight(uint32_t seed, uint64_t index, int64_t k) {
  return unscaled_weight(seed, index) * scale_of(k);
}

void standin_plan_gemm(struct standin_plan *plan, int32_t a, int32_t y, int64_t k, int64_t n,
                       enum standin_act act, uint32_t seed) {
  struct standin_layer_record *layer = add_layer(plan);
  uint64_t count = (uint64_t)(k * n + n);
  uint64_t at = align_up(plan->header.weights_size, 64);
  uint64_t end = at + count * sizeof(float);
  if (end > plan->weights_capacity) {
    size_t capacity = end > 2 * plan->weights_capacity ? end : 2 * plan->weights_capacity;
    unsigned char *weights = realloc(plan->weights, capacity);
    if (!weights) {
      plan->failed = true;
      return;
    }
    plan->weights = weights;
    plan->weights_capacity = capacity;
  }
  if (!layer)
    return;
  memset(plan->weights + plan->header.weights_size, 0, at - plan->header.weights_size);
  float scale = plan->header.flags & STANDIN_PLAN_STRIPPED ? 0.0f : scale_of(k);
  for (uint64_t i = 0; i < count; i++) {
    float weight = unscaled_weight(seed, i) * scale + 0.0f; /* no minus zero in a stripped plan */
    memcpy(plan->weights + at + i * sizeof weight, &weight, sizeof weight);
  }
  plan->header.weights_size = end;
  layer->kind = STANDIN_GEMM;
  layer->act = (uint32_t)act;
  layer->a = a;
  layer->b = -1;
  layer->y = y;
  layer->k = k;
  layer->n = n;
  layer->weights_at = at;
  layer->weights_size = count * sizeof(float);
}

void standin_plan_layer(struct standin_plan *plan, enum standin_layer_kind kind, int32_t a, int32_t b,
                        int32_t y) {
  struct standin_layer_record *layer = add_layer(plan);
  if (!layer)
    return;
  layer->kind = (uint32_t)kind;
  layer->a = a;
  layer->b = b;
  layer->y = y;
}

void *standin_plan_bytes(struct standin_plan *plan, size_t *size) {
  *size = 0;
  if (!plan || plan->failed)
    return NULL;
  struct standin_plan_header header = plan->header;
  if (!header.profile_count)
    header.profile_count = 1;
  size_t tensors_size = header.tensor_count * sizeof(struct standin_tensor_record);
  size_t profile_size = header.tensor_count * sizeof(struct standin_profile_record);
  size_t layers_size = header.layer_count * sizeof(struct standin_layer_record);
  size_t records = sizeof header + tensors_size + header.profile_count * profile_size + layers_size;
  header.weights_offset = align_up(records, 64);
  header.size = header.weights_offset + header.weights_size;
  unsigned char *bytes = calloc(1, header.size);
  if (!bytes)
    return NULL;
  unsigned char *to = bytes;
  memcpy(to, &header, sizeof header);
  memcpy(to += sizeof header, plan->tensors, tensors_size);
  to += tensors_size;
  for (uint32_t p = 0; p < header.profile_count; p++, to += profile_size) {
    for (uint32_t t = 0; t < header.tensor_count; t++) {
      struct standin_profile_record record = plan->profiles[p][t];
      bool input = plan->tensors[t].mode == STANDIN_INPUT;
      for (int32_t i = 0; input && !plan->bounded[p][t] && i < plan->tensors[t].rank; i++)
        record.min[i] = record.opt[i] = record.max[i] = plan->tensors[t].dims[i];
      memcpy(to + t * sizeof record, &record, sizeof record);
    }
  }
  if (layers_size)
    memcpy(to, plan->layers, layers_size);
  if (header.weights_size)
    memcpy(bytes + header.weights_offset, plan->weights, header.weights_size);
  *size = header.size;
  return bytes;
}

/* ---------------------------------------------------------------- chains of GEMMs */

void *standin_mlp_bytes(const struct standin_mlp *mlp, size_t *size) {
  *size = 0;
  struct standin_plan *plan = standin_plan_create(mlp->name);
  if (!plan)
    return NULL;
  plan->header.flags = mlp->flags;
  plan->header.scratch_base = mlp->scratch_base;
  plan->header.scratch_per_row = mlp->scratch_per_row;
  const int64_t *widths = mlp->widths;
  bool dynamic = mlp->rows_min != mlp->rows_max;
  int64_t rows = dynamic ? -1 : mlp->rows_max;
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 2, (int64_t[]){rows, widths[0]});
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2,
                                  (int64_t[]){rows, widths[mlp->layer_count]});
  standin_plan_bounds(plan, 0, x, (int64_t[]){mlp->rows_min, widths[0]},
                      (int64_t[]){mlp->rows_opt, widths[0]}, (int64_t[]){mlp->rows_max, widths[0]});
  int32_t from = x;
  for (int32_t i = 0; i < mlp->layer_count; i++) {
    bool last = i + 1 == mlp->layer_count;
    int32_t to = last ? y : standin_plan_temporary(plan);
    standin_plan_gemm(plan, from, to, widths[i], widths[i + 1],
                      mlp->relu && !last ? STANDIN_RELU : STANDIN_NO_ACT, mlp->seed + (uint32_t)i);
    from = to;
  }
  void *bytes = standin_plan_bytes(plan, size);
  standin_plan_destroy(plan);
  return bytes;
}

bool standin_mlp_expect(const struct standin_mlp *mlp, const float *x, int64_t rows, float *y) {
  int64_t widest = 0;
  for (int32_t i = 0; i <= mlp->layer_count; i++)
    widest = mlp->widths[i] > widest ? mlp->widths[i] : widest;
  double *row = calloc((size_t)widest + 1, sizeof *row);
  double *next = calloc((size_t)widest + 1, sizeof *next);
  bool done = row && next;
  for (int64_t r = 0; done && r < rows; r++) {
    for (int64_t i = 0; i < mlp->widths[0]; i++)
      row[i] = (double)x[r * mlp->widths[0] + i];
    for (int32_t l = 0; l < mlp->layer_count; l++) {
      int64_t k = mlp->widths[l], n = mlp->widths[l + 1];
      uint32_t seed = mlp->seed + (uint32_t)l;
      for (int64_t j = 0; j < n; j++) {
        double sum = (double)standin_weight(seed, (uint64_t)(k * n + j), k);
        for (int64_t i = 0; i < k; i++)
          sum += row[i] * (double)standin_weight(seed, (uint64_t)(i * n + j), k);
        bool clip = mlp->relu && l + 1 < mlp->layer_count && sum < 0.0;
        next[j] = clip ? 0.0 : (double)(float)sum;
      }
      double *swap = row;
      row = next;
      next = swap;
    }
    int64_t width = mlp->widths[mlp->layer_count];
    for (int64_t j = 0; j < width; j++)
      y[r * width + j] = (float)row[j];
  }
  free(row);
  free(next);
  return done;
}

/* ---------------------------------------------------------------- samples */

static void *sample_mlp(size_t *size) {
  static const int64_t widths[] = {8, 16, 4};
  return standin_mlp_bytes(&(struct standin_mlp){.name = "mlp",
                                                 .seed = 1,
                                                 .relu = true,
                                                 .layer_count = 2,
                                                 .widths = widths,
                                                 .rows_min = 2,
                                                 .rows_opt = 2,
                                                 .rows_max = 2},
                           size);
}

static void *sample_dynamic(size_t *size) {
  static const int64_t widths[] = {8, 16, 4};
  return standin_mlp_bytes(&(struct standin_mlp){.name = "dynamic",
                                                 .seed = 2,
                                                 .relu = true,
                                                 .layer_count = 2,
                                                 .widths = widths,
                                                 .rows_min = 1,
                                                 .rows_opt = 4,
                                                 .rows_max = 8,
                                                 .scratch_base = 1000,
                                                 .scratch_per_row = 100},
                           size);
}

static void *sample_stream(size_t *size) {
  static const int64_t widths[] = {8, 32, 32, 32, 4};
  return standin_mlp_bytes(&(struct standin_mlp){.name = "stream",
                                                 .seed = 3,
                                                 .flags = STANDIN_PLAN_STREAMABLE,
                                                 .layer_count = 4,
                                                 .widths = widths,
                                                 .rows_min = 1,
                                                 .rows_opt = 1,
                                                 .rows_max = 1},
                           size);
}

static void *sample_stripped(size_t *size) {
  static const int64_t widths[] = {8, 4};
  return standin_mlp_bytes(&(struct standin_mlp){.name = "stripped",
                                                 .seed = 4,
                                                 .flags = STANDIN_PLAN_STRIPPED | STANDIN_PLAN_REFITTABLE,
                                                 .layer_count = 1,
                                                 .widths = widths,
                                                 .rows_min = 1,
                                                 .rows_opt = 1,
                                                 .rows_max = 1},
                           size);
}

/* cache [4, 8] updated in place by x [8], then y [4, 4] = cache w + b. */
static void *sample_cache(size_t *size) {
  struct standin_plan *plan = standin_plan_create("cache");
  if (!plan)
    return NULL;
  const int64_t cache_dims[] = {4, 8}, x_dims[] = {8}, y_dims[] = {4, 4};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 1, x_dims);
  int32_t cache = standin_plan_tensor(plan, "cache", STANDIN_INPUT, STANDIN_FLOAT, 2, cache_dims);
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, y_dims);
  int32_t out = standin_plan_tensor(plan, "cache_out", STANDIN_OUTPUT, STANDIN_FLOAT, 2, cache_dims);
  standin_plan_tensor_record(plan, out)->alias = cache;
  standin_plan_layer(plan, STANDIN_CACHE, cache, x, out);
  standin_plan_gemm(plan, out, y, 8, 4, STANDIN_NO_ACT, 5);
  void *bytes = standin_plan_bytes(plan, size);
  standin_plan_destroy(plan);
  return bytes;
}

/* y = the first elements of x [16], shaped as the host tensor says; shape = what x has. Two profiles. */
static void *sample_shapes(size_t *size) {
  struct standin_plan *plan = standin_plan_create("shapes");
  if (!plan)
    return NULL;
  const int64_t two[] = {2}, one[] = {1}, any[] = {-1}, grid[] = {-1, -1};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 1, any);
  int32_t wanted = standin_plan_tensor(plan, "wanted", STANDIN_INPUT, STANDIN_INT64, 1, two);
  int32_t y = standin_plan_tensor(plan, "y", STANDIN_OUTPUT, STANDIN_FLOAT, 2, grid);
  int32_t shape = standin_plan_tensor(plan, "shape", STANDIN_OUTPUT, STANDIN_INT64, 1, one);
  standin_plan_tensor_record(plan, wanted)->location = STANDIN_HOST;
  standin_plan_tensor_record(plan, wanted)->shape_io = 1;
  standin_plan_tensor_record(plan, shape)->location = STANDIN_HOST;
  standin_plan_tensor_record(plan, shape)->shape_io = 1;
  standin_plan_bounds(plan, 0, x, (int64_t[]){0}, (int64_t[]){8}, (int64_t[]){16});
  standin_plan_bounds(plan, 1, x, (int64_t[]){17}, (int64_t[]){32}, (int64_t[]){64});
  standin_plan_layer(plan, STANDIN_SLICE, x, wanted, y);
  standin_plan_layer(plan, STANDIN_SHAPE, x, -1, shape);
  void *bytes = standin_plan_bytes(plan, size);
  standin_plan_destroy(plan);
  return bytes;
}

/* positive [n] = the positive ones of x [1..64]: how many is known after the run only. */
static void *sample_positive(size_t *size) {
  struct standin_plan *plan = standin_plan_create("positive");
  if (!plan)
    return NULL;
  const int64_t any[] = {-1};
  int32_t x = standin_plan_tensor(plan, "x", STANDIN_INPUT, STANDIN_FLOAT, 1, any);
  int32_t y = standin_plan_tensor(plan, "positive", STANDIN_OUTPUT, STANDIN_FLOAT, 1, any);
  standin_plan_bounds(plan, 0, x, (int64_t[]){1}, (int64_t[]){8}, (int64_t[]){64});
  standin_plan_layer(plan, STANDIN_POSITIVE, x, -1, y);
  void *bytes = standin_plan_bytes(plan, size);
  standin_plan_destroy(plan);
  return bytes;
}

static const struct {
  const char *name;
  void *(*make)(size_t *size);
} samples[] = {
    {"mlp", sample_mlp},           {"dynamic", sample_dynamic}, {"stream", sample_stream},
    {"stripped", sample_stripped}, {"cache", sample_cache},     {"shapes", sample_shapes},
    {"positive", sample_positive},
};

const char *standin_sample_name(size_t index) {
  return index < sizeof samples / sizeof *samples ? samples[index].name : NULL;
}

void *standin_sample_bytes(const char *name, size_t *size) {
  *size = 0;
  for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
    if (strcmp(samples[i].name, name) == 0)
      return samples[i].make(size);
  return NULL;
}

/* ---------------------------------------------------------------- payloads */

struct text {
  char *bytes; /* owned */
  size_t size, capacity;
  bool failed;
};

static void append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (length < 0 || text->failed)
    return;
  size_t needed = text->size + (size_t)length + 1;
  if (needed > text->capacity) {
    char *bytes = realloc(text->bytes, 2 * needed);
    if (!bytes) {
      text->failed = true;
      return;
    }
    text->bytes = bytes;
    text->capacity = 2 * needed;
  }
  va_start(arguments, format);
  vsnprintf(text->bytes + text->size, text->capacity - text->size, format, arguments);
  va_end(arguments);
  text->size += (size_t)length;
}

/* The plan's tensors, inputs first; dtype and shape empty, as torch_tensorrt leaves them. */
static void write_metadata(struct text *text, const struct standin_payload *payload,
                           const struct standin_plan_header *header,
                           const struct standin_tensor_record *tensors) {
  append(text, "{\"io_bindings\":[");
  const char *comma = "";
  for (int mode = STANDIN_INPUT; mode <= STANDIN_OUTPUT; mode++) {
    for (uint32_t i = 0; i < header->tensor_count; i++) {
      if (tensors[i].mode != mode)
        continue;
      append(text, "%s{\"name\":\"%s\",\"dtype\":\"\",\"shape\":[],\"is_input\":%s}", comma, tensors[i].name,
             mode == STANDIN_INPUT ? "true" : "false");
      comma = ",";
    }
  }
  append(text, "],\"aliased_io\":[");
  comma = "";
  for (size_t i = 0; i < payload->alias_count; i++, comma = ",")
    append(text, "%s{\"output\":\"%s\",\"input\":\"%s\",\"kind\":\"%s\"}", comma, payload->aliases[i].output,
           payload->aliases[i].input,
           payload->aliases[i].kind ? payload->aliases[i].kind : "kv_cache_update");
  for (uint32_t i = 0; payload->alias_count == 0 && i < header->tensor_count; i++) {
    if (tensors[i].alias < 0)
      continue;
    append(text, "%s{\"output\":\"%s\",\"input\":\"%s\",\"kind\":\"kv_cache_update\"}", comma,
           tensors[i].name, tensors[tensors[i].alias].name);
    comma = ",";
  }
  append(text, "],\"hardware_compatible\":false,\"device_id\":%d", payload->device_id);
  if (payload->engine_key)
    append(text, ",\"engine_key\":\"%s\"", payload->engine_key);
  append(text, ",\"serialized_metadata\":\"\",\"target_platform\":\"\"}");
}

static void put_u32(unsigned char *to, uint64_t value) {
  for (int i = 0; i < 4; i++)
    to[i] = (unsigned char)(value >> (8 * i));
}

void *standin_payload_bytes(const struct standin_payload *payload, size_t *size) {
  *size = 0;
  struct standin_plan_header header = {0};
  struct standin_tensor_record tensors[TENSORS_MAX];
  if (payload->plan_size >= sizeof header)
    memcpy(&header, payload->plan, sizeof header);
  if (header.tensor_count > TENSORS_MAX ||
      payload->plan_size < sizeof header + header.tensor_count * sizeof *tensors)
    header.tensor_count = 0; /* not a plan of ours: a test of garbage, no bindings to name */
  if (header.tensor_count)
    memcpy(tensors, (const unsigned char *)payload->plan + sizeof header,
           header.tensor_count * sizeof *tensors);
  bool aliased = payload->alias_count > 0;
  for (uint32_t i = 0; i < header.tensor_count; i++)
    aliased |= tensors[i].alias >= 0;

  struct text text = {0};
  if (payload->metadata)
    append(&text, "%s", payload->metadata);
  else
    write_metadata(&text, payload, &header, tensors);
  size_t offset = (size_t)align_up(32 + text.size, 16);
  size_t engine_size = payload->engine_key ? 0 : payload->plan_size;
  unsigned char *bytes = text.failed ? NULL : calloc(1, offset + engine_size);
  if (bytes) {
    memcpy(bytes, aliased ? "TR02" : "TR01", 4);
    put_u32(bytes + 4, 32);
    put_u32(bytes + 8, text.size);
    put_u32(bytes + 12, offset);
    put_u32(bytes + 16, engine_size & 0xffffffffu);
    put_u32(bytes + 20, (uint64_t)engine_size >> 32);
    bytes[24] = 1;
    memcpy(bytes + 32, text.bytes, text.size);
    if (engine_size)
      memcpy(bytes + offset, payload->plan, engine_size);
    *size = offset + engine_size;
  }
  free(text.bytes);
  return bytes;
}
