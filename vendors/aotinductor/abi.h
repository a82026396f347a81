/* What tandem calls of an AOTInductor engine and of the tensor functions under it, declared here so that no
 * torch header is needed to build. Both are C interfaces: an engine is a shared library that exports
 * AOTInductor*, and it is compiled against aoti_torch_*, which libtorch and ExecuTorch's
 * libaoti_cuda_shims.so provide. Every function returns 0 for success unless a row says otherwise.
 */
#ifndef TANDEM_VENDORS_AOTINDUCTOR_ABI_H
#define TANDEM_VENDORS_AOTINDUCTOR_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aoti_container; /* one set of constants and the runners that use it */
struct aoti_tensor;    /* a tensor handle, freed by delete_tensor */

/* A constant by the name that the engine has for it. */
struct aoti_pair {
  const char *name;
  struct aoti_tensor *tensor;
};

/* Kinds of constants; engines of torch before 2.13 may say unknown for all. */
enum { AOTI_UNKNOWN = 0, AOTI_PARAMETER = 1, AOTI_BUFFER = 2, AOTI_TENSOR = 3, AOTI_FOLDED = 4 };

/* The engine's functions. R(member, symbol, parameters): every engine has it, result int32_t. O: may lack it,
 * NULL then. */
#define TD_AOTI_ENGINE_CALLS(R, O)                                                                           \
  R(create, AOTInductorModelContainerCreateWithDevice,                                                       \
    (struct aoti_container * *container, size_t runners, const char *device, const char *cubin_folder))      \
  R(destroy, AOTInductorModelContainerDelete, (struct aoti_container * container))                           \
  /* Takes the input handles over, clearing each; the outputs are the caller's. */                           \
  R(run, AOTInductorModelContainerRunSingleThreaded,                                                         \
    (struct aoti_container * container, struct aoti_tensor * *inputs, size_t input_count,                    \
     struct aoti_tensor * *outputs, size_t output_count, void *stream, void *proxy_executor))                \
  R(input_count, AOTInductorModelContainerGetNumInputs, (struct aoti_container * container, size_t * count)) \
  R(output_count, AOTInductorModelContainerGetNumOutputs,                                                    \
    (struct aoti_container * container, size_t * count))                                                     \
  R(input_name, AOTInductorModelContainerGetInputName,                                                       \
    (struct aoti_container * container, size_t index, const char **name))                                    \
  R(output_name, AOTInductorModelContainerGetOutputName,                                                     \
    (struct aoti_container * container, size_t index, const char **name))                                    \
  R(constant_count, AOTInductorModelContainerGetNumConstants,                                                \
    (struct aoti_container * container, size_t * count))                                                     \
  R(constant_name, AOTInductorModelContainerGetConstantName,                                                 \
    (struct aoti_container * container, size_t index, const char **name))                                    \
  R(constant_fqn, AOTInductorModelContainerGetConstantOriginalFQN,                                           \
    (struct aoti_container * container, size_t index, const char **name))                                    \
  R(constant_size, AOTInductorModelContainerGetConstantDataSize,                                             \
    (struct aoti_container * container, size_t index, size_t * size))                                        \
  R(constant_folded, AOTInductorModelContainerGetConstantFromFolded,                                         \
    (struct aoti_container * container, size_t index, bool *folded))                                         \
  R(set_constants, AOTInductorModelContainerUpdateUserManagedConstantBufferPairs,                            \
    (struct aoti_container * container, const struct aoti_pair *pairs, size_t count, bool inactive,          \
     bool full))                                                                                             \
  O(load_blob, AOTInductorModelUpdateConstantsFromBlob,                                                      \
    (struct aoti_container * container, const uint8_t *blob))                                                \
  O(constant_type, AOTInductorModelContainerGetConstantType,                                                 \
    (struct aoti_container * container, size_t index, int32_t * type))                                       \
  O(last_error, AOTInductorGetLastError, (const char **line))

struct aoti_engine_api {
#define TD_AOTI_MEMBER(member, symbol, parameters) int32_t(*member) parameters;
  TD_AOTI_ENGINE_CALLS(TD_AOTI_MEMBER, TD_AOTI_MEMBER)
#undef TD_AOTI_MEMBER
};

/* The tensor functions that tandem itself calls. Data, sizes and strides are borrowed by the handle's
 * getters; a tensor from a blob never frees the blob. */
#define TD_AOTI_TENSOR_CALLS(R)                                                                              \
  R(create_tensor, aoti_torch_create_tensor_from_blob_v2,                                                    \
    (void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int32_t dtype,  \
     int32_t device_type, int32_t device_index, struct aoti_tensor **tensor, int32_t layout,                 \
     const uint8_t *metadata, int64_t metadata_size))                                                        \
  R(delete_tensor, aoti_torch_delete_tensor_object, (struct aoti_tensor * tensor))                           \
  R(tensor_data, aoti_torch_get_data_ptr, (struct aoti_tensor * tensor, void **data))                        \
  R(tensor_rank, aoti_torch_get_dim, (struct aoti_tensor * tensor, int64_t * rank))                          \
  R(tensor_sizes, aoti_torch_get_sizes, (struct aoti_tensor * tensor, int64_t * *sizes))                     \
  R(tensor_strides, aoti_torch_get_strides, (struct aoti_tensor * tensor, int64_t * *strides))               \
  R(tensor_dtype, aoti_torch_get_dtype, (struct aoti_tensor * tensor, int32_t * dtype))                      \
  R(share_tensor, aoti_torch_new_tensor_handle, (struct aoti_tensor * tensor, struct aoti_tensor * *shared))

struct aoti_tensor_api {
#define TD_AOTI_MEMBER(member, symbol, parameters) int32_t(*member) parameters;
  TD_AOTI_TENSOR_CALLS(TD_AOTI_MEMBER)
#undef TD_AOTI_MEMBER
};

/* torch's numbers, the same in every version and in ExecuTorch's shims. dtypes are enum tandem_dtype's. */
enum { AOTI_DEVICE_CPU = 0, AOTI_DEVICE_CUDA = 1, AOTI_LAYOUT_STRIDED = 0 };

#endif
