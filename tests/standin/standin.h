/* What a test turns on the stand-in libraries. TESTS ONLY.
 *
 * Both libraries export one function that gives a table: dlsym(handle, "standin_cuda_control") of the libcuda
 * stand-in, dlsym(handle, "standin_nvinfer_control") of each libnvinfer stand-in. A library opened twice is
 * one library, so a test finds the same one that tandem opened. The most wanted are exported by name as well,
 * for ctypes: standin_cuda_<entry>, standin_<entry>.
 *
 * Environment, read at the first call:
 *   STANDIN_CUDA_DEVICES     number of devices, 0..8 (2)
 *   STANDIN_CUDA_MEMORY      bytes of memory of each device (16 GiB)
 *   STANDIN_CUDA_ADDRESSES   bytes of addresses of each device (64 GiB), of which qemu-user records each page
 *   STANDIN_CUDA_COMPUTE     compute capability, "90"
 *   STANDIN_CUDA_DRIVER      cuDriverGetVersion, 13000
 *   STANDIN_CUDA_ATTRIBUTES  "88=1,100=1": device attributes by their number
 *   STANDIN_CUDA_FAIL        "cuMemAlloc:3:2": the 3rd call from the start returns 2; several with commas
 *   STANDIN_CUDA_REPORT      1: what is alive is printed when the process ends
 *   STANDIN_NVINFER_VERSION  what getInferLibVersion returns; slots that came later are not there
 *   STANDIN_FAIL             "deserialize:2:out_of_memory": steps of enum standin_step by name; failures
 * plain, out_of_memory, exactly as standin_nvinfer.fail_at; several with commas STANDIN_SAY "deserialize":
 * each call of that step first writes a line from another thread STANDIN_DLA_CORES        getNbDLACores, 0
 *   STANDIN_AUTOMATIC_BUDGET bytes; default: the smaller of streamable size and half of the free memory
 */
#ifndef TANDEM_STANDIN_H
#define TANDEM_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- libcuda */

struct standin_cuda_live {
  uint64_t device_blocks, device_bytes; /* cuMemAlloc and its kind */
  uint64_t host_blocks, host_bytes;     /* cuMemHostAlloc, registered and managed memory */
  uint64_t contexts, primary_retains, streams, events, modules, graphs, graph_instances;
};

struct standin_cuda {
  size_t struct_size;
  /* While held, every kernel stops just before it runs: work in flight, for as long as a test wants. */
  void (*hold)(bool held);
  /* Waits until `count` kernels stop there; false after 20 s. */
  bool (*wait_held)(unsigned count);
  /* Lets `count` kernels of those that stop there, or come, pass. */
  void (*pass)(unsigned count);
  /* The `nth` call (1: the next one) of a function, named without _v2, returns `result`; its effect does not
   * happen. NULL forgets all such orders. */
  void (*fail_at)(const char *function, unsigned nth, int result);
  /* Calls since the last reset. */
  uint64_t (*calls)(const char *function);
  /* Every context of a device, also those made later, returns `error` from now on; 0 mends it. */
  void (*lose_device)(int device, int error);
  /* Prints what is alive to stderr, returns how many things. Legacy and per-thread streams do not count. */
  size_t (*report)(void);
  void (*live)(struct standin_cuda_live *live);
  /* Accesses to memory that is not there or not reachable, frees of nothing...: each is printed, and counted.
   */
  uint64_t (*violations)(void);
  void (*set_memory)(int device, uint64_t size); /* the cap; what is allocated stays */
  uint64_t (*memory_used)(int device);
  uint64_t (*memory_peak)(int device); /* since the last reset */
  void (*set_attribute)(int device, int attribute, int value);
  void (*set_driver_version)(int version);
  /* Counters, faults, peaks, violations; opens the hold. What is alive stays. */
  void (*reset)(void);
  /* A stream of a green context: cuStreamGetCtx_v2 tells. */
  void (*make_green)(void *stream);
};

const struct standin_cuda *standin_cuda_control(void);

/* ---------------------------------------------------------------- libnvinfer */

enum standin_step {
  STANDIN_RUNTIME,          /* createInferRuntime */
  STANDIN_DESERIALIZE,      /* deserializeCudaEngine, V2 */
  STANDIN_AUTOMATIC_BUDGET, /* getWeightStreamingAutomaticBudget */
  STANDIN_BUDGET,           /* setWeightStreamingBudgetV2 */
  STANDIN_CONTEXT,          /* createExecutionContext */
  STANDIN_PROFILE,          /* setOptimizationProfileAsync */
  STANDIN_INPUT_SHAPE,      /* setInputShape */
  STANDIN_INFER,            /* inferShapes */
  STANDIN_ADDRESS,          /* setTensorAddress, setInputTensorAddress, setOutputTensorAddress */
  STANDIN_SCRATCH,          /* updateDeviceMemorySizeForShapes */
  STANDIN_ENQUEUE,          /* enqueueV3 */
  STANDIN_STEP_COUNT,
};

enum standin_failure {
  STANDIN_FAIL_PLAIN,         /* one line with the step's name */
  STANDIN_FAIL_OUT_OF_MEMORY, /* the library's lines for it, the last of them about something else */
  STANDIN_FAIL_SILENT,        /* no line at all */
};

struct standin_counts {
  int64_t runtimes, engines, contexts; /* alive */
  int64_t engines_peak, contexts_peak; /* most at one time since the reset */
  uint64_t builds;                     /* engines made since the reset */
  uint64_t enqueues;
  uint64_t traps;       /* slots called that are not there: each is printed */
  uint64_t misuses;     /* wrong order of destruction, one context on two threads, ...: each is printed */
  int64_t scratch_told; /* the size that the last setDeviceMemoryV2 gave */
  uint64_t lines;       /* log lines given to loggers */
};

struct standin_nvinfer {
  size_t struct_size;
  int32_t version;
  /* The `nth` call from now on (1: the next one) of a step fails. nth 0: forget what was ordered for the
   * step. */
  void (*fail_at)(enum standin_step step, unsigned nth, enum standin_failure how);
  /* While closed, calls of the step stop before they do anything. */
  void (*gate_close)(enum standin_step step);
  void (*gate_open)(enum standin_step step);
  /* Waits until `count` calls of the step are under way; false after 20 s. */
  bool (*wait_inside)(enum standin_step step, unsigned count);
  /* The step first logs this line; severity 0..4. `other_thread`: from a thread of the library's own. NULL:
   * no longer. The text is copied. */
  void (*say)(enum standin_step step, int severity, const char *line, bool other_thread);
  uint64_t (*calls)(enum standin_step step); /* since the reset */
  void (*counts)(struct standin_counts *counts);
  /* Counters and faults; opens gates. What is alive stays. */
  void (*reset)(void);
};

const struct standin_nvinfer *standin_nvinfer_control(void);

#ifdef __cplusplus
}
#endif

#endif
