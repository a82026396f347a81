/* What the GPU measurements share. One process measures one thing and prints one JSON document; run.sh calls
 * them.
 *
 * Engines are the stand-in libnvinfer's: real kernels on the real driver around plans of
 * tests/standin/plan.h, so that memory and time are a GPU's, while the library between is a stand-in. What
 * was measured on real libraries says so.
 */
#ifndef TANDEM_BENCH_GPU_BENCH_H
#define TANDEM_BENCH_GPU_BENCH_H

#include "driver.h"
#include "plan.h"

#include <tandem/tandem.h>

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern struct driver cuda;

enum { MIB = 1 << 20, DEVICES_USED = 2 };

/* Ends the process with status 1 after one line. */
_Noreturn void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What is being done, for the line of stop. */
void about(const char *what);
/* Stops unless `good`, naming what was wanted. */
void must(bool good, const char *format, ...) __attribute__((format(printf, 2, 3)));
void must_cuda(int code, const char *call);

double now_s(void);
/* Sorts; the nearest rank. */
double percentile(double *values, size_t count, double percent);

/* ---------------------------------------------------------------- the device */

/* The primary context of a device, retained for the life of the process. */
void open_device(int device);
/* Between them the device's context is the calling thread's. */
void enter_device(int device);
void leave_device(void);
int64_t used_memory(int device);
uint64_t allocate_device(int device, size_t size);
void free_device(int device, uint64_t address);
void *make_stream(int device);
/* Adds name, compute capability, driver, tandem and library. */
void describe_machine(cJSON *document);

/* ---------------------------------------------------------------- engines */

struct model {
  int32_t layer_count;
  int64_t width;
  int64_t scratch; /* bytes */
  uint32_t seed;
  struct standin_mlp mlp; /* points into `widths` */
  int64_t *widths;        /* owned */
  void *plan;             /* owned */
  size_t plan_size;
};
enum { ROWS = 2 };

/* x [ROWS, width] -> y [ROWS, width] by `layer_count` matrices of width x width. */
void make_model(struct model *model, int32_t layer_count, int64_t width, int64_t scratch, uint32_t seed,
                uint32_t flags);
void free_model(struct model *model);
size_t model_weights(const struct model *model); /* bytes */
size_t model_io(const struct model *model);      /* bytes of one input and one output */
/* Owned, free(). */
void *make_payload(const void *plan, size_t plan_size, int device, size_t *size);

struct bytes {
  void *data;
  size_t size;
};
struct bytes wrap_model(const struct model *model, int device);

/* Options are pairs of keys and values up to a NULL. */
enum tandem_status load_with(const struct bytes *payload, struct tandem_load **load,
                             struct tandem_error *error, va_list pairs);
/* The same; stops on failure. */
struct tandem_load *load_payload(const struct bytes *payload, ...) __attribute__((sentinel));
struct tandem_load_info info_of(const struct tandem_load *load);
struct tandem_stats stats_now(void);

/* Tensors of one load of a model: in device memory, or on the host where `device` is negative. */
struct tensors {
  int device;
  size_t count; /* elements of each */
  struct tandem_tensor x, y;
};
void make_tensors(struct tensors *tensors, const struct model *model, int device, unsigned seed);
void free_tensors(struct tensors *tensors);
/* Copies y to the host; owned. */
float *read_output(const struct tensors *tensors);
/* On `stream`, or on one of the load's own; stops on failure. */
void run_load(struct tandem_load *load, struct tensors *tensors, void *stream);

/* ---------------------------------------------------------------- measurements */

cJSON *measure_memory(int count, char **arguments);
cJSON *measure_speed(int count, char **arguments);
cJSON *measure_streams(int count, char **arguments);
cJSON *measure_storm(int count, char **arguments);
cJSON *measure_race(int count, char **arguments);
cJSON *measure_refusals(int count, char **arguments);
cJSON *measure_devices(int count, char **arguments);
cJSON *measure_check(int count, char **arguments);
cJSON *measure_cases(int count, char **arguments);

/* A number among "name=value" arguments. */
int64_t argument(int count, char **arguments, const char *name, int64_t fallback);
cJSON *add_numbers(cJSON *object, const char *key, const double *values, size_t count);
/* Adds {limit, value, good} under `key` and clears document.good when value > limit. */
void judge(cJSON *document, const char *key, double value, double limit);

#endif
