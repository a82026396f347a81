/* A stand-in for an engine that torch compiled for CUDA, TESTS ONLY: its interface, and its way to call the
 * tensor functions and the driver. A run takes its inputs over, computes on the stream that it is given, in
 * kernels that its first run loads, and hands out tensors whose memory was allocated on that stream. What is
 * computed: enum standin_engine in aoti.h.
 *
 * Compile definitions, all of them optional:
 *   ENGINE_ROWS    the dimension 0 of x that it was compiled for; else any
 *   ENGINE_CACHE   has state
 *   ENGINE_FOLDED  has a constant that the first run computes
 *   ENGINE_BESIDE  has a number in host memory, a constant of this kind (enum in abi.h)
 *   ENGINE_TIDY    unloads its GPU code and frees the handles that it was given, as some versions of torch do
 */
#include "abi.h"
#include "aoti.h"

#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ENGINE_ROWS
#define ENGINE_ROWS -1
#endif
#ifdef ENGINE_CACHE
#define BIAS_KIND AOTI_BUFFER /* which no run writes to: nothing tells it from the cache */
#else
#define BIAS_KIND AOTI_PARAMETER
#endif

enum { OUT_OF_MEMORY = 2, TEXT_MAX = 256 };

/* ---------------------------------------------------------------- what it is linked with by the loader */

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_size, void *stream, void **parameters,
                   void **extra);
int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemFree_v2(uint64_t address);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuModuleLoadData(void **module, const void *image);
int cuModuleUnload(void *module);

#define DECLARE(member, symbol, parameters) int32_t symbol parameters;
TD_AOTI_TENSOR_CALLS(DECLARE)
TD_AOTI_ENGINE_CALLS(DECLARE, DECLARE)
#undef DECLARE
int32_t aoti_torch_create_cuda_stream_guard(void *stream, int32_t device_index, void **guard);
int32_t aoti_torch_delete_cuda_stream_guard(void *guard);
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                 int32_t device_type, int32_t device_index, struct aoti_tensor **tensor);

/* ---------------------------------------------------------------- constants */

static const struct constant {
  const char *name, *fqn;
  int32_t dtype, device_type, kind;
  int64_t rank, sizes[2];
} constants[] = {
#ifdef ENGINE_FOLDED
    {"_FOLDED_CONST_0",
     "_FOLDED_CONST_0",
     TANDEM_FLOAT32,
     AOTI_DEVICE_CUDA,
     AOTI_FOLDED,
     1,
     {STANDIN_OUTPUTS}},
#endif
    {"layer_weight",
     "layer.weight",
     TANDEM_FLOAT32,
     AOTI_DEVICE_CUDA,
     AOTI_PARAMETER,
     2,
     {STANDIN_COLUMNS, STANDIN_OUTPUTS}},
#ifdef ENGINE_BESIDE
    {"relu", "relu", TANDEM_INT64, AOTI_DEVICE_CPU, ENGINE_BESIDE, 0, {0}},
#endif
#ifdef ENGINE_CACHE
    {"cache", "cache", TANDEM_FLOAT32, AOTI_DEVICE_CUDA, AOTI_BUFFER, 2, {ENGINE_ROWS, STANDIN_COLUMNS}},
#endif
    {"layer_bias", "layer.bias", TANDEM_FLOAT32, AOTI_DEVICE_CUDA, BIAS_KIND, 1, {STANDIN_OUTPUTS}},
};

enum { CONSTANTS = sizeof constants / sizeof constants[0] };
enum { GEMM, ADD, CACHE, KERNELS };

struct aoti_container {
  int32_t device;
  struct aoti_tensor *tensors[CONSTANTS];
  uint64_t memory[CONSTANTS]; /* owned: of constants that came in a blob */
  bool given;                 /* the constants are somebody else's */
  bool folded;
  void *module, *kernels[KERNELS]; /* of the first run */
};

static size_t size_of(const struct constant *constant) {
  size_t size = constant->dtype == TANDEM_INT64 ? sizeof(int64_t) : sizeof(float);
  for (int64_t d = 0; d < constant->rank; d++)
    size *= (size_t)constant->sizes[d];
  return size;
}

static int find_constant(const char *fqn) {
  for (int i = 0; i < CONSTANTS; i++)
    if (strcmp(constants[i].fqn, fqn) == 0)
      return i;
  return -1;
}

/* ---------------------------------------------------------------- errors */

static _Thread_local char last_error[TEXT_MAX];

static int32_t fail(const char *text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  return 1;
}

static int32_t check_driver(int code) {
  char text[TEXT_MAX];
  if (code == 0)
    return 0;
  snprintf(text, sizeof text, "CUDA driver error: %s (%d)",
           code == OUT_OF_MEMORY ? "out of memory" : "it failed", code);
  return fail(text);
}

int32_t AOTInductorGetLastError(const char **line) {
  *line = last_error;
  return 0;
}

/* ---------------------------------------------------------------- a container */

int32_t AOTInductorModelContainerCreateWithDevice(struct aoti_container **container, size_t runners,
                                                  const char *device, const char *cubin_folder) {
  int32_t index = 0;
  if (runners != 1 || cubin_folder || sscanf(device, "cuda:%d", &index) != 1)
    return fail("the stand-in engine has one runner, on a CUDA device");
  *container = calloc(1, sizeof **container);
  if (!*container)
    return fail("std::bad_alloc");
  (*container)->device = index;
  return 0;
}

static void drop_constant(struct aoti_container *self, int i) {
  bool folded = constants[i].kind == AOTI_FOLDED;
  bool own = folded || !self->given;
#ifdef ENGINE_TIDY
  own = true;
#endif
  if (self->tensors[i] && own)
    aoti_torch_delete_tensor_object(self->tensors[i]);
  if (self->memory[i] && constants[i].device_type == AOTI_DEVICE_CUDA)
    cuMemFree_v2(self->memory[i]);
  else
    free((void *)(uintptr_t)self->memory[i]);
}

int32_t AOTInductorModelContainerDelete(struct aoti_container *self) {
  int32_t code = 0;
  for (int i = 0; i < CONSTANTS; i++)
    drop_constant(self, i);
#ifdef ENGINE_TIDY
  if (self->module)
    code = check_driver(cuModuleUnload(self->module));
#endif
  free(self);
  return code;
}

static void fill_strides(int64_t rank, const int64_t *sizes, int64_t *strides) {
  for (int64_t d = rank - 1, stride = 1; d >= 0; stride *= sizes[d--])
    strides[d] = stride;
}

/* One constant of a blob, in memory of its device. */
static int32_t load_constant(struct aoti_container *self, int i, const uint8_t *from) {
  const struct constant *constant = &constants[i];
  size_t size = size_of(constant);
  int64_t strides[2];
  bool beside = constant->device_type == AOTI_DEVICE_CPU;
  if (beside && (self->memory[i] = (uint64_t)(uintptr_t)malloc(size)) != 0)
    memcpy((void *)(uintptr_t)self->memory[i], from, size);
  else if (beside)
    return fail("std::bad_alloc");
  else if (check_driver(cuMemAlloc_v2(&self->memory[i], size)) != 0 ||
           check_driver(cuMemcpyHtoD_v2(self->memory[i], from, size)) != 0)
    return 1;
  fill_strides(constant->rank, constant->sizes, strides);
  return aoti_torch_create_tensor_from_blob_v2(
      (void *)(uintptr_t)self->memory[i], constant->rank, constant->sizes, strides, 0, constant->dtype,
      constant->device_type, beside ? 0 : self->device, &self->tensors[i], AOTI_LAYOUT_STRIDED, NULL, 0);
}

int32_t AOTInductorModelUpdateConstantsFromBlob(struct aoti_container *self, const uint8_t *blob) {
  for (int i = 0; i < CONSTANTS; i++) {
    if (constants[i].kind == AOTI_FOLDED)
      continue;
    if (load_constant(self, i, blob) != 0)
      return 1;
    blob += size_of(&constants[i]);
  }
  return 0;
}

int32_t AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(struct aoti_container *self,
                                                                      const struct aoti_pair *pairs,
                                                                      size_t count, bool inactive,
                                                                      bool full) {
  self->given = true;
  for (int i = 0; i < CONSTANTS; i++) {
    size_t at = 0;
    while (at < count && strcmp(pairs[at].name, constants[i].name) != 0)
      at++;
    if (at < count && aoti_torch_new_tensor_handle(pairs[at].tensor, &self->tensors[i]) != 0)
      return fail("a constant cannot be shared");
    if (at == count && constants[i].kind != AOTI_FOLDED && full)
      return fail("a constant is missing in the update");
  }
  return inactive ? fail("the stand-in engine has one set of constants") : 0;
}

/* ---------------------------------------------------------------- what it tells */

int32_t AOTInductorModelContainerGetNumInputs(struct aoti_container *self, size_t *count) {
  (void)self;
  *count = 1;
  return 0;
}

int32_t AOTInductorModelContainerGetNumOutputs(struct aoti_container *self, size_t *count) {
  (void)self;
  *count = 1;
  return 0;
}

int32_t AOTInductorModelContainerGetInputName(struct aoti_container *self, size_t index, const char **name) {
  (void)self, (void)index;
  *name = "x";
  return 0;
}

int32_t AOTInductorModelContainerGetOutputName(struct aoti_container *self, size_t index, const char **name) {
  (void)self, (void)index;
  *name = "output_0";
  return 0;
}

int32_t AOTInductorModelContainerGetNumConstants(struct aoti_container *self, size_t *count) {
  (void)self;
  *count = CONSTANTS;
  return 0;
}

/* GETTER(symbol, type of the answer, answer): of constant `index`. */
#define GETTER(symbol, type, answer)                                                                         \
  int32_t symbol(struct aoti_container *self, size_t index, type *told) {                                    \
    (void)self;                                                                                              \
    if (index >= CONSTANTS)                                                                                  \
      return fail("there is no such constant");                                                              \
    *told = answer;                                                                                          \
    return 0;                                                                                                \
  }
GETTER(AOTInductorModelContainerGetConstantName, const char *, constants[index].name)
GETTER(AOTInductorModelContainerGetConstantOriginalFQN, const char *, constants[index].fqn)
GETTER(AOTInductorModelContainerGetConstantDtype, int32_t, constants[index].dtype)
GETTER(AOTInductorModelContainerGetConstantDataSize, size_t, size_of(&constants[index]))
GETTER(AOTInductorModelContainerGetConstantFromFolded, bool, constants[index].kind == AOTI_FOLDED)
GETTER(AOTInductorModelContainerGetConstantType, int32_t, constants[index].kind)

/* ---------------------------------------------------------------- a run */

static uint64_t address_of(struct aoti_tensor *tensor) {
  void *data = NULL;
  aoti_torch_get_data_ptr(tensor, &data);
  return (uint64_t)(uintptr_t)data;
}

static int32_t load_kernels(struct aoti_container *self) {
  static const char *const names[KERNELS] = {"standin_gemm", "standin_add", "standin_cache"};
  if (!self->module && check_driver(cuModuleLoadData(&self->module, standin_ptx)) != 0) {
    self->module = NULL;
    return 1;
  }
  for (int i = 0; i < KERNELS; i++)
    if (!self->kernels[i] &&
        check_driver(cuModuleGetFunction(&self->kernels[i], self->module, names[i])) != 0) {
      self->kernels[i] = NULL;
      return 1;
    }
  return 0;
}

/* The bias that runs add: where that is folded, twice the one given. */
static int32_t find_bias(struct aoti_container *self, void *stream, uint64_t *bias) {
  int to = find_constant("_FOLDED_CONST_0");
  long long count = STANDIN_OUTPUTS;
  *bias = address_of(self->tensors[find_constant("layer.bias")]);
  if (to < 0)
    return 0;
  if (!self->folded) {
    const int64_t sizes[] = {STANDIN_OUTPUTS}, strides[] = {1};
    if (!self->tensors[to] && aoti_torch_empty_strided(1, sizes, strides, TANDEM_FLOAT32, AOTI_DEVICE_CUDA,
                                                       self->device, &self->tensors[to]) != 0)
      return fail("aoti_torch_empty_strided() API call failed");
    uint64_t sum = address_of(self->tensors[to]);
    if (check_driver(cuLaunchKernel(self->kernels[ADD], 1, 1, 1, 256, 1, 1, 0, stream,
                                    (void *[]){bias, bias, &sum, &count}, NULL)) != 0)
      return 1;
    self->folded = true;
  }
  *bias = address_of(self->tensors[to]);
  return 0;
}

/* What is multiplied: x, or the cache after this run's step. */
static int32_t find_rows(struct aoti_container *self, int64_t rows, void *stream, uint64_t *x) {
  int i = find_constant("cache");
  if (i < 0)
    return 0;
  uint64_t cache = address_of(self->tensors[i]);
  long long count = rows * STANDIN_COLUMNS;
  if (check_driver(cuLaunchKernel(self->kernels[CACHE], 1, 1, 1, 256, 1, 1, 0, stream,
                                  (void *[]){&cache, x, &count, &count}, NULL)) != 0)
    return 1;
  *x = cache;
  return 0;
}

static int32_t multiply(struct aoti_container *self, int64_t rows, uint64_t x, uint64_t y, void *stream) {
  uint64_t weight = address_of(self->tensors[find_constant("layer.weight")]), bias;
  int beside = find_constant("relu"), k = STANDIN_COLUMNS, n = STANDIN_OUTPUTS, relu = 0;
  int64_t number = 0;
  if (beside >= 0)
    memcpy(&number, (void *)(uintptr_t)address_of(self->tensors[beside]), sizeof number);
  relu = number != 0;
  if (find_bias(self, stream, &bias) != 0 || find_rows(self, rows, stream, &x) != 0)
    return 1;
  return check_driver(cuLaunchKernel(self->kernels[GEMM], 1, (unsigned)rows, 1, 32, 8, 1, 0, stream,
                                     (void *[]){&x, &weight, &bias, &y, &k, &n, &relu}, NULL));
}

static int32_t check_input(struct aoti_tensor *x, int64_t *rows) {
  int64_t rank = 0, *sizes = NULL;
  int32_t dtype = -1;
  aoti_torch_get_dim(x, &rank);
  aoti_torch_get_sizes(x, &sizes);
  aoti_torch_get_dtype(x, &dtype);
  if (dtype != TANDEM_FLOAT32 || rank != 2 || sizes[1] != STANDIN_COLUMNS ||
      (ENGINE_ROWS >= 0 && sizes[0] != ENGINE_ROWS))
    return fail("input 0 has another dtype or shape than the stand-in engine was made for");
  *rows = sizes[0];
  return 0;
}

static int32_t run(struct aoti_container *self, struct aoti_tensor *x, struct aoti_tensor **y, void *stream) {
  int64_t rows = 0;
  if (check_input(x, &rows) != 0 || load_kernels(self) != 0)
    return 1;
  const int64_t sizes[] = {rows, STANDIN_OUTPUTS}, strides[] = {STANDIN_OUTPUTS, 1};
  if (aoti_torch_empty_strided(2, sizes, strides, TANDEM_FLOAT32, AOTI_DEVICE_CUDA, self->device, y) != 0)
    return fail("aoti_torch_empty_strided() API call failed");
  if (rows == 0 || multiply(self, rows, address_of(x), address_of(*y), stream) == 0)
    return 0;
  aoti_torch_delete_tensor_object(*y);
  *y = NULL;
  return 1;
}

int32_t AOTInductorModelContainerRunSingleThreaded(struct aoti_container *self, struct aoti_tensor **inputs,
                                                   size_t input_count, struct aoti_tensor **outputs,
                                                   size_t output_count, void *stream, void *proxy_executor) {
  void *guard;
  (void)proxy_executor;
  if (input_count != 1 || output_count != 1)
    return fail("the stand-in engine has one input and one output");
  struct aoti_tensor *x = inputs[0];
  inputs[0] = NULL;
  int32_t code = aoti_torch_create_cuda_stream_guard(stream, self->device, &guard);
  if (code == 0) {
    code = run(self, x, &outputs[0], stream);
    aoti_torch_delete_tensor_object(x);
    aoti_torch_delete_cuda_stream_guard(guard);
    return code;
  }
  aoti_torch_delete_tensor_object(x);
  return fail("no stream guard");
}
