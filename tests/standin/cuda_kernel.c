/* Stand-in libcuda, TESTS ONLY: modules, launches, and the stand-in libnvinfer's kernels on the host.
 *
 * A module image is taken by the name of its first kernel; its code is not run. What runs is the same
 * arithmetic in the same order as kernels.cu, and before it every range that the kernel would touch is
 * checked.
 */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kernel {
  KERNEL_GEMM,
  KERNEL_ADD,
  KERNEL_COPY,
  KERNEL_CACHE,
  KERNEL_COUNT,
  KERNEL_POSITIVE,
  KERNEL_KINDS
};

static const struct {
  const char *name;
  unsigned char sizes[PARAMETERS_MAX]; /* of the parameters, 0 ends */
} kernels[KERNEL_KINDS] = {
    [KERNEL_GEMM] = {"standin_gemm", {8, 8, 8, 8, 4, 4, 4}},
    [KERNEL_ADD] = {"standin_add", {8, 8, 8, 8}},
    [KERNEL_COPY] = {"standin_copy", {8, 8, 8}},
    [KERNEL_CACHE] = {"standin_cache", {8, 8, 8, 8}},
    [KERNEL_COUNT] = {"standin_count", {8, 8, 8}},
    [KERNEL_POSITIVE] = {"standin_positive", {8, 8, 8, 8}},
};

const char *kernel_name(int kernel) {
  return kernels[kernel].name;
}

EXPORT int cuModuleLoadDataEx(void **handle, const void *image, unsigned count, void *options,
                              void **values) {
  (void)count;
  (void)options;
  (void)values;
  ENTER("cuModuleLoadData");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  if (!result && !strstr(image, "standin_gemm"))
    result = CU_INVALID_IMAGE;
  struct module *module = result ? NULL : calloc(1, sizeof *module);
  if (module) {
    module->context = context;
    module->context_id = context->id;
    module->next = state.modules;
    state.modules = module;
    *handle = module;
  } else if (!result) {
    result = CU_OUT_OF_MEMORY;
  }
  unlock();
  return result;
}

EXPORT int cuModuleLoadData(void **module, const void *image) {
  return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

EXPORT int cuModuleLoad(void **module, const char *path) {
  char image[4096] = "";
  FILE *file = fopen(path, "rb");
  if (!file)
    return CU_NOT_FOUND;
  size_t size = fread(image, 1, sizeof image - 1, file);
  fclose(file);
  image[size] = '\0';
  return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

static struct module **find_module_locked(const void *handle) {
  struct module **link = &state.modules;
  while (*link && *link != handle)
    link = &(*link)->next;
  if (!*link)
    violate_locked(NULL, 0, "no module %p", handle);
  return *link ? link : NULL;
}

EXPORT int cuModuleUnload(void *handle) {
  ENTER("cuModuleUnload");
  lock();
  struct context *context;
  int result = current_locked(&context);
  struct module **link = result ? NULL : find_module_locked(handle);
  if (!result && !link)
    result = CU_INVALID_HANDLE;
  if (!result)
    result = unsafe_call_locked();
  if (!result) {
    struct module *module = *link;
    *link = module->next;
    free(module);
  }
  unlock();
  return result;
}

/* A function is a module and a kernel: few enough to be told by an address. */
static char functions[KERNEL_KINDS];

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
  ENTER("cuModuleGetFunction");
  lock();
  int result = find_module_locked(module) ? CU_NOT_FOUND : CU_INVALID_HANDLE;
  for (int i = 0; result == CU_NOT_FOUND && i < KERNEL_KINDS; i++) {
    if (strcmp(kernels[i].name, name) == 0) {
      *function = &functions[i];
      result = CU_OK;
    }
  }
  unlock();
  return result;
}

EXPORT int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_size, void *handle,
                          void **parameters, void **extra) {
  (void)shared_size;
  ENTER("cuLaunchKernel");
  ptrdiff_t kernel = (char *)function - functions;
  if ((uintptr_t)function - (uintptr_t)functions >= sizeof functions)
    return CU_INVALID_HANDLE;
  if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || grid_y > 65535 || grid_z > 65535 ||
      block_x * block_y * block_z > 1024 || extra || !parameters)
    return CU_INVALID_VALUE;
  lock();
  struct stream *stream;
  struct context *context;
  int result = find_stream_locked(handle, &stream);
  if (!result && !current_locked(&context) && context != stream->context)
    result = CU_INVALID_HANDLE;
  if (!result) {
    struct op op = {.kind = OP_KERNEL, .kernel = (int)kernel, .grid = {grid_x, grid_y}};
    for (int i = 0; i < PARAMETERS_MAX && kernels[kernel].sizes[i]; i++)
      memcpy(&op.parameters[i], parameters[i], kernels[kernel].sizes[i]); /* little endian */
    result = submit_locked(stream, &op);
  }
  unlock();
  return result;
}

/* ---------------------------------------------------------------- the kernels */

static void gemm(const float *a, const float *w, const float *b, float *y, uint64_t rows, uint64_t k,
                 uint64_t n, bool relu) {
  for (uint64_t r = 0; r < rows; r++) {
    for (uint64_t j = 0; j < n; j++) {
      float part[8] = {0};
      for (uint64_t i = 0; i < k; i++)
        part[i % 8] += a[r * k + i] * w[i * n + j];
      float total = b[j];
      for (int i = 0; i < 8; i++)
        total += part[i];
      y[r * n + j] = relu && total < 0.0f ? 0.0f : total;
    }
  }
}

struct use {
  uint64_t address, size;
};

/* Which memory a launch touches; 0 bytes: none. */
static int list_uses(const struct op *op, struct use *uses) {
  const uint64_t *p = op->parameters;
  uint64_t rows = op->grid[1];
  switch (op->kernel) {
  case KERNEL_GEMM:
    uses[0] = (struct use){p[0], rows * p[4] * 4};
    uses[1] = (struct use){p[1], p[4] * p[5] * 4};
    uses[2] = (struct use){p[2], p[5] * 4};
    uses[3] = (struct use){p[3], rows * p[5] * 4};
    return 4;
  case KERNEL_ADD:
    uses[0] = (struct use){p[0], p[3] * 4};
    uses[1] = (struct use){p[1], p[3] * 4};
    uses[2] = (struct use){p[2], p[3] * 4};
    return 3;
  case KERNEL_COPY:
    uses[0] = (struct use){p[0], p[2]};
    uses[1] = (struct use){p[1], p[2]};
    return 2;
  case KERNEL_CACHE:
    uses[0] = (struct use){p[0], p[2] * 4};
    uses[1] = (struct use){p[1], p[3] * 4};
    return 2;
  case KERNEL_COUNT:
    uses[0] = (struct use){p[0], p[2] * 4};
    uses[1] = (struct use){p[1], 8};
    return 2;
  default:
    uses[0] = (struct use){p[0], p[2] * 4};
    uses[1] = (struct use){p[1], p[3] * 4};
    return 2;
  }
}

static void run(const struct op *op, void *const *m) {
  const uint64_t *p = op->parameters;
  switch (op->kernel) {
  case KERNEL_GEMM:
    gemm(m[0], m[1], m[2], m[3], op->grid[1], p[4], p[5], p[6] != 0);
    break;
  case KERNEL_ADD:
    for (uint64_t i = 0; i < p[3]; i++)
      ((float *)m[2])[i] = ((const float *)m[0])[i] + ((const float *)m[1])[i];
    break;
  case KERNEL_COPY:
    memmove(m[1], m[0], p[2]);
    break;
  case KERNEL_CACHE:
    for (uint64_t i = 0; i < p[2]; i++)
      ((float *)m[0])[i] = ((float *)m[0])[i] * 0.5f + ((const float *)m[1])[i % p[3]];
    break;
  case KERNEL_COUNT: {
    int64_t found = 0;
    for (uint64_t i = 0; i < p[2]; i++)
      found += ((const float *)m[0])[i] > 0.0f;
    memcpy(m[1], &found, sizeof found);
    break;
  }
  default: {
    uint64_t found = 0;
    for (uint64_t i = 0; i < p[2] && found < p[3]; i++)
      if (((const float *)m[0])[i] > 0.0f)
        ((float *)m[1])[found++] = ((const float *)m[0])[i];
  }
  }
}

void run_kernel(struct context *context, const struct op *op) {
  struct use uses[4];
  struct block *blocks[4] = {0};
  void *memory[4] = {0};
  int count = list_uses(op, uses);
  bool reached = true;
  lock();
  for (int i = 0; i < count && reached; i++) {
    if (uses[i].size == 0)
      continue;
    memory[i] =
        reach_locked(context, uses[i].address, uses[i].size, true, kernels[op->kernel].name, &blocks[i]);
    reached = memory[i] != NULL;
  }
  unlock();
  if (reached)
    run(op, memory);
  lock();
  for (int i = 0; i < count; i++)
    unpin_locked(blocks[i]);
  unlock();
}
