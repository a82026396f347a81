/* Plans of the stand-in libnvinfer, and delegate payloads around them. TESTS ONLY; no real library reads
 * them.
 *
 * A plan is a header, tensors, profiles (one record a tensor each), layers, weights; all little endian, all
 * records of fixed size. plan.py writes the same bytes. Two loads of equal bytes are meant to be equal, so
 * nothing here depends on time, addresses or order of hashing.
 */
#ifndef TANDEM_STANDIN_PLAN_H
#define TANDEM_STANDIN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STANDIN_RANK_MAX = 8, STANDIN_NAME_SIZE = 64 };

/* TensorRT's own numbers. */
enum standin_dtype {
  STANDIN_FLOAT = 0,
  STANDIN_HALF = 1,
  STANDIN_INT8 = 2,
  STANDIN_INT32 = 3,
  STANDIN_BOOL = 4,
  STANDIN_UINT8 = 5,
  STANDIN_BF16 = 7,
  STANDIN_INT64 = 8,
};
enum standin_mode { STANDIN_INPUT = 1, STANDIN_OUTPUT = 2 };
enum standin_location { STANDIN_DEVICE = 0, STANDIN_HOST = 1 };

enum standin_layer_kind {
  STANDIN_GEMM = 1,     /* y[r][n] = act(sum_k a[r][k] w[k][n] + b[n]); rows are all but a's last dimension */
  STANDIN_COPY = 2,     /* y = a, any dtype */
  STANDIN_ADD = 3,      /* y = a + b, FLOAT, one shape */
  STANDIN_CACHE = 4,    /* y is a, in place: a[i] = a[i] / 2 + b[i % count of b]; y is aliased to a, FLOAT */
  STANDIN_SLICE = 5,    /* y = the first elements of a; its shape is what the host tensor b says (INT64) */
  STANDIN_SHAPE = 6,    /* y = the shape of a; a host tensor of INT64 */
  STANDIN_POSITIVE = 7, /* y = the positive elements of a, in order, FLOAT; how many is known after the run */
};
enum standin_act { STANDIN_NO_ACT = 0, STANDIN_RELU = 1 };

#define STANDIN_PLAN_MAGIC "STANDIN"
enum { STANDIN_PLAN_FORMAT = 1 };
#define STANDIN_PLAN_REFITTABLE (1u << 0)
#define STANDIN_PLAN_STRIPPED   (1u << 1) /* says so and has zeros for weights */
#define STANDIN_PLAN_STREAMABLE (1u << 2)
#define STANDIN_PLAN_HOST_CODE  (1u << 3) /* refused unless setEngineHostCodeAllowed(true) */

struct standin_plan_header {
  char magic[8];
  uint32_t format;
  uint32_t flags;
  uint64_t size;
  uint32_t compute; /* built for this compute capability (90), 0: any */
  uint32_t library; /* built by this library version (110400), 0: any */
  uint32_t tensor_count, profile_count, layer_count, temporary_count;
  int64_t scratch_base;    /* bytes every run needs */
  int64_t scratch_per_row; /* and for each of dimension 0 of the first input */
  uint64_t weights_offset; /* multiple of 64 */
  uint64_t weights_size;
  uint32_t hardware; /* HardwareCompatibilityLevel */
  uint32_t reserved;
  char name[40];
};

struct standin_tensor_record {
  char name[STANDIN_NAME_SIZE];
  int32_t dtype, mode, location, format;
  int32_t rank;
  int32_t alias; /* an output that getAliasedInputTensor names an input for: its index, else -1 */
  int32_t shape_io;
  int32_t reserved;
  int64_t dims[STANDIN_RANK_MAX]; /* -1: dynamic */
};

struct standin_profile_record {
  int64_t min[STANDIN_RANK_MAX], opt[STANDIN_RANK_MAX], max[STANDIN_RANK_MAX];
};

/* Indices from tensor_count on are temporaries: FLOAT, and used by the next two layers at most. */
struct standin_layer_record {
  uint32_t kind, act;
  int32_t a, b, y, reserved;
  int64_t k, n;        /* of a GEMM */
  uint64_t weights_at; /* from weights_offset: w[k][n], then b[n] */
  uint64_t weights_size;
  uint64_t unused;
};

_Static_assert(sizeof(struct standin_plan_header) == 128, "written by plan.py too");
_Static_assert(sizeof(struct standin_tensor_record) == 160, "written by plan.py too");
_Static_assert(sizeof(struct standin_profile_record) == 192, "written by plan.py too");
_Static_assert(sizeof(struct standin_layer_record) == 64, "written by plan.py too");

/* ---------------------------------------------------------------- writer */

/* Errors (memory, too many dimensions, a name too long) are kept and come out of standin_plan_bytes as NULL.
 */
struct standin_plan;
struct standin_plan *standin_plan_create(const char *name);
void standin_plan_destroy(struct standin_plan *plan);
/* Everything but the counts, sizes and offsets may be set. */
struct standin_plan_header *standin_plan_header(struct standin_plan *plan);
/* The index of the new tensor. */
int32_t standin_plan_tensor(struct standin_plan *plan, const char *name, enum standin_mode mode,
                            enum standin_dtype dtype, int32_t rank, const int64_t *dims);
/* Fields such as location, format, shape_io and alias may be set; valid until the next tensor. */
struct standin_tensor_record *standin_plan_tensor_record(struct standin_plan *plan, int32_t tensor);
/* Temporaries come after all tensors. */
int32_t standin_plan_temporary(struct standin_plan *plan);
/* Bounds of one input in profile `profile`; profiles that lack one get the tensor's own dimensions. */
void standin_plan_bounds(struct standin_plan *plan, int32_t profile, int32_t tensor, const int64_t *min,
                         const int64_t *opt, const int64_t *max);
/* Weights by standin_weight(seed, index, k). */
void standin_plan_gemm(struct standin_plan *plan, int32_t a, int32_t y, int64_t k, int64_t n,
                       enum standin_act act, uint32_t seed);
void standin_plan_layer(struct standin_plan *plan, enum standin_layer_kind kind, int32_t a, int32_t b,
                        int32_t y);
/* Owned, free() it; NULL when a call before failed. */
void *standin_plan_bytes(struct standin_plan *plan, size_t *size);

/* Weight `index` of a GEMM of `k` rows (bias from k * n on): one of -2..2 but 0, times a power of two small
 * enough that chains neither grow nor vanish. Sums of a few layers are exact in float in any order. */
float standin_weight(uint32_t seed, uint64_t index, int64_t k);

/* ---------------------------------------------------------------- a chain of GEMMs */

/* x [rows, widths[0]] -> y [rows, widths[layer_count]]; RELU after each layer but the last where `relu`.
 * rows_min < rows_max makes rows dynamic. Layer i has seed + i. */
struct standin_mlp {
  const char *name;
  uint32_t seed;
  uint32_t flags; /* STANDIN_PLAN_* */
  bool relu;
  int32_t layer_count;
  const int64_t *widths;
  int64_t rows_min, rows_opt, rows_max;
  int64_t scratch_base, scratch_per_row;
};
void *standin_mlp_bytes(const struct standin_mlp *mlp, size_t *size);
/* What the stand-in computes, by another route. False without memory. */
bool standin_mlp_expect(const struct standin_mlp *mlp, const float *x, int64_t rows, float *y);

/* Plans that plan.py has too, for tests of the two writers and for tests that want "some plan". NULL for an
 * unknown name; standin_sample_name(i) is NULL past the end. */
const char *standin_sample_name(size_t index);
void *standin_sample_bytes(const char *name, size_t *size);

/* ---------------------------------------------------------------- payloads */

struct standin_alias {
  const char *output, *input;
  const char *kind; /* NULL: "kv_cache_update" */
};

struct standin_payload {
  const void *plan;
  size_t plan_size;
  const char *metadata; /* JSON; NULL: made from the plan's tensors, in the manner of torch_tensorrt */
  const struct standin_alias *aliases;
  size_t alias_count; /* > 0 makes it TR02; without any the plan's own aliases are told */
  int32_t device_id;
  const char *engine_key; /* not NULL: the plan is named data of this key, not in the payload */
};
/* Owned, free() it; NULL without memory or for a plan that cannot be read. */
void *standin_payload_bytes(const struct standin_payload *payload, size_t *size);

#endif
