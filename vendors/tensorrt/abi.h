/* TensorRT's binary interface as far as tandem calls it: TensorRT 10, TensorRT 11, their lean runtimes and
 * TensorRT-RTX from 1.5, on x86-64 and AArch64 Linux. Numbers and names only, so that no SDK is needed.
 *
 * How an object is called: a public object is {vtable, implementation}; the method is slot k of the
 * *implementation's* vtable and gets the implementation, not the object. How it ends: slot 1 of the public
 * object's own vtable gets the object. Arguments that are references in C++ are public objects.
 *
 * Traps, each of which was met in a real library:
 *  - A failed creation of a runtime returns 0x228, a null implementation moved to its public part:
 * TD_TRT_LIVE.
 *  - The logger has its message in slot 0 of its vtable in TensorRT 10 and in slot 4 in TensorRT 11 and RTX;
 *    the wrong one crashes on the first message or loses every one.
 *  - Deprecated slots are gone in TensorRT 11, so that everything after them moved: two tables.
 *  - A slot past the end of an older table calls whatever comes next: the first minor version is noted.
 *  - IOutputAllocator has lost its synchronous entry in RTX, which moved the others.
 *  - Dims is returned through a hidden pointer, and passed by a pointer: struct returns and `const *` do
 * both.
 *  - bool comes back in one byte, the rest of the register is rubbish: the type must be _Bool, never int.
 *  - Builder flags and network flags were renumbered from 10 to 11; the runtime side, used here, was not.
 */
#ifndef TANDEM_VENDORS_TENSORRT_ABI_H
#define TANDEM_VENDORS_TENSORRT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------- plain values */

enum { TD_TRT_MAX_RANK = 8 };

struct td_trt_dims {
  int32_t rank;               /* -1: not known */
  int64_t d[TD_TRT_MAX_RANK]; /* -1: dynamic */
};
_Static_assert(sizeof(struct td_trt_dims) == 72 && offsetof(struct td_trt_dims, d) == 8,
               "Dims of TensorRT 10");

struct td_trt_interface_info {
  const char *kind;
  int32_t major;
  int32_t minor;
};
_Static_assert(sizeof(struct td_trt_interface_info) == 16 &&
                   offsetof(struct td_trt_interface_info, major) == 8 &&
                   offsetof(struct td_trt_interface_info, minor) == 12,
               "InterfaceInfo is returned in two registers");
_Static_assert(sizeof(bool) == 1 && sizeof(void *) == 8, "the layouts below are those of 64-bit Linux");

/* A public object: vtable first, then the implementation. */
struct td_trt_object {
  void **vtable;
  struct td_trt_implementation {
    void **vtable;
  } * implementation;
};
_Static_assert(offsetof(struct td_trt_object, implementation) == 8, "mImpl is the second word");

/* Pointers below this are a null implementation moved to its public part. */
enum { TD_TRT_LOWEST_ADDRESS = 4096 };
#define TD_TRT_LIVE(pointer) ((uintptr_t)(pointer) >= TD_TRT_LOWEST_ADDRESS)

enum td_trt_severity {
  TD_TRT_INTERNAL_ERROR = 0,
  TD_TRT_ERROR = 1,
  TD_TRT_WARNING = 2,
  TD_TRT_INFO = 3,
  TD_TRT_VERBOSE = 4,
};

enum td_trt_dtype {
  TD_TRT_FLOAT = 0,
  TD_TRT_HALF = 1,
  TD_TRT_INT8 = 2,
  TD_TRT_INT32 = 3,
  TD_TRT_BOOL = 4,
  TD_TRT_UINT8 = 5,
  TD_TRT_FP8 = 6,
  TD_TRT_BF16 = 7,
  TD_TRT_INT64 = 8,
  TD_TRT_INT4 = 9,
  TD_TRT_FP4 = 10,
  TD_TRT_E8M0 = 11,
};

enum { TD_TRT_MODE_NONE = 0, TD_TRT_MODE_INPUT = 1, TD_TRT_MODE_OUTPUT = 2 };
enum { TD_TRT_ON_DEVICE = 0, TD_TRT_ON_HOST = 1 };
enum { TD_TRT_LINEAR = 0 }; /* TensorFormat */
enum { TD_TRT_PROFILE_MIN = 0, TD_TRT_PROFILE_OPT = 1, TD_TRT_PROFILE_MAX = 2 };
enum { TD_TRT_SCRATCH_STATIC = 0, TD_TRT_SCRATCH_ON_PROFILE_CHANGE = 1, TD_TRT_SCRATCH_OF_USER = 2 };
enum { TD_TRT_TOTAL_WEIGHTS = 0, TD_TRT_STRIPPED_WEIGHTS = 1 }; /* EngineStat; bytes, -1: does not apply */
enum { TD_TRT_COMPATIBLE_NONE = 0, TD_TRT_COMPATIBLE_AMPERE_PLUS = 1, TD_TRT_COMPATIBLE_SAME_CC = 2 };
/* EngineValidity of RTX and the bits of its diagnosis. */
enum { TD_TRT_VALID = 0, TD_TRT_SUBOPTIMAL = 1, TD_TRT_INVALID = 2 };
enum {
  TD_TRT_WHY_VERSION = 1,
  TD_TRT_WHY_CAPABILITY = 2,
  TD_TRT_WHY_DRIVER = 4,
  TD_TRT_WHY_RUNTIME = 8,
  TD_TRT_WHY_MEMORY = 16,
  TD_TRT_WHY_MALFORMED = 32,
  TD_TRT_WHY_CUDA = 64,
};

/* ---------------------------------------------------------------- exported C functions */

typedef int32_t (*td_trt_version_fn)(void);
/* The logger object and the version the caller was made for, which the library does not check. */
typedef void *(*td_trt_create_runtime_fn)(void *logger, int32_t version);

/* ---------------------------------------------------------------- methods */

/* One row a method: X has a result, V has none.
 * X(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)
 *   slot10   TensorRT 10, from minor version since10 on; -1: not there
 *   slot11   TensorRT 11, from 11.0 on; -1: not there
 *   rtx      TensorRT-RTX, from 1.5 on; the same as slot11 where both have it
 * tests/tensorrt/test_slots.c holds every number against the list of slots. */
#define TD_TRT_METHODS(X, V)                                                                                 \
  X(runtime_deserialize, VRuntime, deserializeCudaEngine, 3, 0, 3, 3, void *,                                \
    (void *object, const void *plan, size_t size), (self, plan, size))                                       \
  V(runtime_set_dla_core, VRuntime, setDLACore, 5, 0, 4, 4, void, (void *object, int32_t core),              \
    (self, core))                                                                                            \
  X(runtime_dla_core_count, VRuntime, getNbDLACores, 7, 0, 6, 6, int32_t, (void *object), (self))            \
  X(runtime_logger, VRuntime, getLogger, 11, 0, 10, 10, void *, (void *object), (self))                      \
  V(runtime_set_host_code, VRuntime, setEngineHostCodeAllowed, 21, 0, 20, 20, void,                          \
    (void *object, bool allowed), (self, allowed))                                                           \
  X(runtime_host_code, VRuntime, getEngineHostCodeAllowed, 22, 0, 21, 21, bool, (void *object), (self))      \
  X(runtime_validity, VRuntime, getEngineValidity, -1, 0, -1, 24, int32_t,                                   \
    (void *object, const void *plan, int64_t size, uint64_t *diagnosis), (self, plan, size, diagnosis))      \
                                                                                                             \
  X(engine_create_context, VCudaEngine, createExecutionContext, 5, 0, 5, 5, void *,                          \
    (void *object, int32_t strategy), (self, strategy))                                                      \
  X(engine_refittable, VCudaEngine, isRefittable, 8, 0, 6, 6, bool, (void *object), (self))                  \
  X(engine_name, VCudaEngine, getName, 9, 0, 7, 7, const char *, (void *object), (self))                     \
  X(engine_profile_count, VCudaEngine, getNbOptimizationProfiles, 10, 0, 8, 8, int32_t, (void *object),      \
    (self))                                                                                                  \
  X(engine_shape, VCudaEngine, getTensorShape, 19, 0, 15, 15, struct td_trt_dims,                            \
    (void *object, const char *name), (self, name))                                                          \
  X(engine_dtype, VCudaEngine, getTensorDataType, 20, 0, 16, 16, int32_t, (void *object, const char *name),  \
    (self, name))                                                                                            \
  X(engine_location, VCudaEngine, getTensorLocation, 21, 0, 17, 17, int32_t,                                 \
    (void *object, const char *name), (self, name))                                                          \
  X(engine_is_shape_tensor, VCudaEngine, isShapeInferenceIO, 22, 0, 18, 18, bool,                            \
    (void *object, const char *name), (self, name))                                                          \
  X(engine_mode, VCudaEngine, getTensorIOMode, 23, 0, 19, 19, int32_t, (void *object, const char *name),     \
    (self, name))                                                                                            \
  X(engine_format, VCudaEngine, getTensorFormat, 26, 0, 22, 22, int32_t, (void *object, const char *name),   \
    (self, name))                                                                                            \
  X(engine_profile_shape, VCudaEngine, getProfileShape, 29, 0, 25, 25, struct td_trt_dims,                   \
    (void *object, const char *name, int32_t profile, int32_t selector), (self, name, profile, selector))    \
  X(engine_io_count, VCudaEngine, getNbIOTensors, 30, 0, 26, 26, int32_t, (void *object), (self))            \
  X(engine_io_name, VCudaEngine, getIOTensorName, 31, 0, 27, 27, const char *,                               \
    (void *object, int32_t index), (self, index))                                                            \
  X(engine_compatibility, VCudaEngine, getHardwareCompatibilityLevel, 32, 0, 28, 28, int32_t,                \
    (void *object), (self))                                                                                  \
  X(engine_aux_stream_count, VCudaEngine, getNbAuxStreams, 33, 0, 29, 29, int32_t, (void *object), (self))   \
  X(engine_streamable_size, VCudaEngine, getStreamableWeightsSize, 46, 0, 38, 38, int64_t, (void *object),   \
    (self))                                                                                                  \
  X(engine_set_budget, VCudaEngine, setWeightStreamingBudgetV2, 48, 1, 40, 40, bool,                         \
    (void *object, int64_t budget), (self, budget))                                                          \
  X(engine_budget, VCudaEngine, getWeightStreamingBudgetV2, 49, 1, 41, 41, int64_t, (void *object), (self))  \
  X(engine_automatic_budget, VCudaEngine, getWeightStreamingAutomaticBudget, 50, 1, 42, 42, int64_t,         \
    (void *object), (self))                                                                                  \
  X(engine_streaming_scratch, VCudaEngine, getWeightStreamingScratchMemorySize, 51, 1, 43, 43, int64_t,      \
    (void *object), (self))                                                                                  \
  X(engine_scratch_v1, VCudaEngine, getDeviceMemorySize, 7, 0, -1, -1, size_t, (void *object), (self))       \
  X(engine_scratch, VCudaEngine, getDeviceMemorySizeV2, 52, 1, 44, 44, int64_t, (void *object), (self))      \
  X(engine_profile_scratch_v1, VCudaEngine, getDeviceMemorySizeForProfile, 41, 0, -1, -1, size_t,            \
    (void *object, int32_t profile), (self, profile))                                                        \
  X(engine_profile_scratch, VCudaEngine, getDeviceMemorySizeForProfileV2, 53, 1, 45, 45, int64_t,            \
    (void *object, int32_t profile), (self, profile))                                                        \
  X(engine_profile_values, VCudaEngine, getProfileTensorValuesV2, 54, 11, 46, 46, const int64_t *,           \
    (void *object, const char *name, int32_t profile, int32_t selector), (self, name, profile, selector))    \
  X(engine_stat, VCudaEngine, getEngineStat, 57, 14, 49, 49, int64_t, (void *object, int32_t stat),          \
    (self, stat))                                                                                            \
  X(engine_aliased_input, VCudaEngine, getAliasedInputTensor, 58, 15, 50, 50, const char *,                  \
    (void *object, const char *output), (self, output))                                                      \
                                                                                                             \
  V(context_set_name, VExecutionContext, setName, 8, 0, 8, 8, void, (void *object, const char *name),        \
    (self, name))                                                                                            \
  V(context_set_scratch_v1, VExecutionContext, setDeviceMemory, 10, 0, 10, 10, void,                         \
    (void *object, void *memory), (self, memory))                                                            \
  X(context_profile, VExecutionContext, getOptimizationProfile, 11, 0, 11, 11, int32_t, (void *object),      \
    (self))                                                                                                  \
  X(context_set_profile, VExecutionContext, setOptimizationProfileAsync, 17, 0, 16, 16, bool,                \
    (void *object, int32_t profile, void *stream), (self, profile, stream))                                  \
  X(context_set_input_shape, VExecutionContext, setInputShape, 21, 0, 20, 20, bool,                          \
    (void *object, const char *name, const struct td_trt_dims *dims), (self, name, dims))                    \
  X(context_shape, VExecutionContext, getTensorShape, 22, 0, 21, 21, struct td_trt_dims,                     \
    (void *object, const char *name), (self, name))                                                          \
  X(context_strides, VExecutionContext, getTensorStrides, 23, 0, 22, 22, struct td_trt_dims,                 \
    (void *object, const char *name), (self, name))                                                          \
  X(context_set_address, VExecutionContext, setTensorAddress, 24, 0, 23, 23, bool,                           \
    (void *object, const char *name, void *data), (self, name, data))                                        \
  X(context_address, VExecutionContext, getTensorAddress, 25, 0, 24, 24, const void *,                       \
    (void *object, const char *name), (self, name))                                                          \
  X(context_set_input_address, VExecutionContext, setInputTensorAddress, 26, 0, 25, 25, bool,                \
    (void *object, const char *name, const void *data), (self, name, data))                                  \
  X(context_set_output_address, VExecutionContext, setOutputTensorAddress, 27, 0, 26, 26, bool,              \
    (void *object, const char *name, void *data), (self, name, data))                                        \
  X(context_infer_shapes, VExecutionContext, inferShapes, 28, 0, 27, 27, int32_t,                            \
    (void *object, int32_t count, const char **names), (self, count, names))                                 \
  X(context_set_allocator, VExecutionContext, setOutputAllocator, 32, 0, 31, 31, bool,                       \
    (void *object, const char *name, struct td_trt_output_allocator *allocator), (self, name, allocator))    \
  X(context_max_output_size, VExecutionContext, getMaxOutputSize, 34, 0, 33, 33, int64_t,                    \
    (void *object, const char *name), (self, name))                                                          \
  X(context_enqueue, VExecutionContext, enqueueV3, 37, 0, 36, 36, bool, (void *object, void *stream),        \
    (self, stream))                                                                                          \
  V(context_set_aux_streams, VExecutionContext, setAuxStreams, 42, 0, 41, 41, void,                          \
    (void *object, void **streams, int32_t count), (self, streams, count))                                   \
  X(context_update_scratch, VExecutionContext, updateDeviceMemorySizeForShapes, 48, 0, 47, 47, size_t,       \
    (void *object), (self))                                                                                  \
  V(context_set_scratch, VExecutionContext, setDeviceMemoryV2, 49, 1, 48, 48, void,                          \
    (void *object, void *memory, int64_t size), (self, memory, size))                                        \
  X(context_capturable, VExecutionContext, isStreamCapturable, -1, 0, -1, 52, bool,                          \
    (void *object, void *stream), (self, stream))

/* The slots of the library that was opened; -1 where its version lacks the method. */
struct td_trt_slots {
#define TD_TRT_MEMBER(member, class, method, slot10, since10, slot11, rtx, result, parameters, arguments)    \
  int member;
  TD_TRT_METHODS(TD_TRT_MEMBER, TD_TRT_MEMBER)
#undef TD_TRT_MEMBER
};

/* ---------------------------------------------------------------- objects that the library calls */

/* Begins with its vtable, whose layout td_trt_output_allocator_init chooses; put it first in a struct. */
struct td_trt_output_allocator {
  const void *vtable;
};

#endif
