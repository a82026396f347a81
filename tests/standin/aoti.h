/* AOTInductor on the stand-in driver, and programs for it. TESTS ONLY.
 *
 * libaoti_cuda_shims.so (aoti_shims.c) has the functions of ExecuTorch's library of that name, as far as
 * engines and tandem call them; libtorch_cpu.so and libtorch_cuda.so have them as libtorch does. The engines
 * (aoti_engine.c) have the interface of what torch compiles for CUDA, one library for each enum
 * standin_engine; no real library runs them. aoti.c writes payloads around them, the data beside those, and
 * what a program computes.
 */
#ifndef TANDEM_STANDIN_AOTI_H
#define TANDEM_STANDIN_AOTI_H

#include <tandem/vendor.h>

#include "data_file.h"
#include "standin.h"

/* ---------------------------------------------------------------- the libraries */

/* dlsym(handle, "standin_shims_control") of each gives a function that returns this. */
struct standin_shims {
  size_t struct_size;
  int64_t (*tensors)(void);  /* handles alive */
  uint64_t (*streams)(void); /* made for threads that had none, of which nobody takes any away */
  /* The calling thread's current stream on a device; false: it has none. */
  bool (*current)(int8_t device, void **stream);
  /* The stream of cuda:0 that was current when the last tensor was deleted; NULL: none. */
  void *(*deleted_on)(void);
};

/* Names the stand-in driver and shims, or libtorch, to tandem and opens them for the test. False with a line
 * on stderr. */
bool standin_aoti_start(bool torch, const struct standin_cuda **cuda, const struct standin_shims **shims);
/* What is alive of both, and violations so far: 0 when there is no load. Else it is printed. */
size_t standin_aoti_left(const struct standin_cuda *cuda, const struct standin_shims *shims);

/* ---------------------------------------------------------------- payloads of CudaBackend */

enum { STANDIN_BYTES_MAX = 1024, STANDIN_ENTRIES_MAX = 6 };

struct standin_bytes {
  unsigned char data[STANDIN_BYTES_MAX];
  size_t size;
};
/* Little-endian; more than there is room for ends the program. */
void standin_put_number(struct standin_bytes *bytes, uint64_t number, unsigned width);

struct standin_constant {
  const char *fqn, *key;
  uint64_t storage;
  int32_t dtype, device;
  int64_t offset;
  uint32_t rank;
  int64_t sizes[TANDEM_MAX_RANK + 1], strides[TANDEM_MAX_RANK + 1];
};
struct standin_bytes standin_cuda_payload(const struct standin_constant *constants, uint32_t count);
/* The key that such a payload has for its library. */
#define STANDIN_SO_KEY "0a_so_blob"

/* A fat binary with entries for these architectures, as nvcc lays it out. */
void standin_put_fat(struct standin_bytes *bytes, const uint32_t *architectures, size_t count);

/* Named data. What is asked for is given as a copy, which is overwritten and freed when it is given back. */
struct standin_named {
  struct standin_entry entries[STANDIN_ENTRIES_MAX]; /* up to the first key that is NULL */
  _Atomic int held;                                  /* copies not given back */
};
struct tandem_named_data standin_named_data(struct standin_named *named);

/* ---------------------------------------------------------------- programs */

enum standin_engine {
  STANDIN_PLAIN,       /* x [2, 8] -> y [2, 4] = x w + b */
  STANDIN_ROWS,        /* x [n, 8] -> y [n, 4] = relu(x w + 2 b): 2 b is folded, and a number on the CPU says
                          whether there is a relu */
  STANDIN_STATE,       /* x [3, 8] -> y [3, 4] = cache w + b, where a run first makes cache / 2 + x of it */
  STANDIN_HOST_BUFFER, /* as PLAIN with relu, but the number is a buffer, as if runs could write to it */
  STANDIN_ENGINE_COUNT
};
enum { STANDIN_COLUMNS = 8, STANDIN_OUTPUTS = 4, STANDIN_ROWS_MAX = 8 };

struct standin_program {
  enum standin_engine engine;
  int64_t rows; /* the most of x */
  void *so;     /* owned */
  size_t so_size;
  void *blob; /* owned; of the older form */
  float weight[STANDIN_COLUMNS * STANDIN_OUTPUTS];
  float bias[2 * STANDIN_OUTPUTS]; /* from the middle on */
  float cache[STANDIN_ROWS_MAX * STANDIN_COLUMNS];
  int64_t relu;
  struct standin_constant constants[STANDIN_ENTRIES_MAX];
  uint32_t constant_count;
  struct standin_bytes payload; /* of CudaBackend */
  struct standin_named named;   /* what that names: points into the program, which therefore stays in place */
};
/* Values by `seed`. False with a line on stderr. */
bool standin_program_init(struct standin_program *program, enum standin_engine engine, uint32_t seed);
void standin_program_fini(struct standin_program *program);
/* Makes it CudaBackend's older form: two lines, and the values as they are now in one blob. False without
 * memory. */
bool standin_program_make_old(struct standin_program *program);
/* As a payload of TandemAotiBackend. Owned, free() it. */
void *standin_program_own_payload(const struct standin_program *program, size_t *size);
/* The output of the last of `steps` runs of a fresh load, by another route. */
void standin_program_expect(const struct standin_program *program, const float *const *inputs, size_t steps,
                            int64_t rows, float *output);

#endif
