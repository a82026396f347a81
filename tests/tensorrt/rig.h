/* What device tests of the TensorRT vendor stand on: the stand-in libraries, chosen by layout; plans as
 * payloads; loads, tensors and device memory; and the check that nothing is left and nothing was misused.
 *
 * The first argument of each test program is the layout, "10", "11" or "rtx" (default "11"); a process opens
 * one library. Helpers fail the test that calls them.
 *
 * STANDIN_TEST_DRIVER=real runs on a GPU's own driver (TANDEM_CUDA_LIBRARY, else libcuda.so.1), for a memory
 * checker: tests that need the stand-in one are skipped there by name, and nobody counts calls or bytes.
 */
#ifndef TANDEM_TESTS_TENSORRT_RIG_H
#define TANDEM_TESTS_TENSORRT_RIG_H

#include "driver.h"
#include "plan.h"
#include "standin.h"

#include <tandem/tandem.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

extern const struct standin_cuda *rig_device;     /* what the stand-in driver is told; NULL on a real one */
extern const struct standin_nvinfer *rig_library; /* and the stand-in TensorRT */
extern struct driver rig_cuda;                    /* the stand-in driver as a caller sees it */
extern const char *rig_layout;

/* Sets the environment and opens the libraries; the program's exit status when that fails, else 0. */
int rig_start(int argc, char **argv);
bool rig_on_real_driver(void); /* asked for; also before rig_start */
/* Test fixtures: faults, counters and the log are cleared; afterwards nothing may be left. Those of a test
 * that runs on a real driver too differ in nothing but their address, by which rig_run_tests knows it. */
int rig_setup(void **state);
int rig_setup_anywhere(void **state);
int rig_teardown(void **state);
#define RIG_TEST(test)          cmocka_unit_test_setup_teardown(test, rig_setup, rig_teardown)
#define RIG_TEST_ANYWHERE(test) cmocka_unit_test_setup_teardown(test, rig_setup_anywhere, rig_teardown)
/* Runs them; how many failed. */
int rig_run_tests(const char *name, const struct CMUnitTest *tests, size_t count);
#define RIG_RUN_TESTS(tests) rig_run_tests(#tests, tests, sizeof(tests) / sizeof *(tests))

/* What only the stand-in driver tells: on a real one calls and bytes are 0, and nothing is held. */
uint64_t rig_calls(const char *function);
uint64_t rig_used(int device);
void rig_hold(bool held);
bool rig_wait_held(unsigned count);
/* A claim about that; none on a real driver. */
#define RIG_EXPECT_TOLD(found, expected)                                                                     \
  do {                                                                                                       \
    if (rig_device)                                                                                          \
      assert_int_equal(found, expected);                                                                     \
  } while (0)

/* ---------------------------------------------------------------- payloads */

struct rig_payload {
  void *bytes; /* owned */
  size_t size;
};
/* Around a plan, which is freed. */
struct rig_payload rig_wrap(void *plan, size_t plan_size, int32_t device_id);
struct rig_payload rig_sample(const char *name); /* of plan.h, for device 0 */
struct rig_payload rig_mlp(const struct standin_mlp *mlp, int32_t device_id);
void rig_payload_free(struct rig_payload *payload);

/* x [rows, 8] -> y [rows, 4], rows from 1 to 8, which needs scratch; as rig_mlp. */
extern const struct standin_mlp rig_dynamic;
/* x [2, 8] -> y [2, 4] without scratch. */
extern const struct standin_mlp rig_plain;

/* ---------------------------------------------------------------- loads */

/* Pairs of option keys and values up to a NULL. */
struct tandem_load *rig_load(const struct rig_payload *payload, ...) __attribute__((sentinel));
enum tandem_status rig_try_load(const struct rig_payload *payload, struct tandem_load **load,
                                struct tandem_error *error, ...) __attribute__((sentinel));
struct tandem_load_info rig_info(const struct tandem_load *load);
struct tandem_stats rig_stats(void);

struct tandem_tensor rig_tensor(void *data, int32_t dtype, int32_t rank, ...); /* int dimensions */
enum tandem_status rig_run(struct tandem_load *load, struct tandem_run_desc *run, struct tandem_error *error);
/* Runs an mlp's load with host tensors and compares with what it has to give, bit by bit. */
void rig_expect_mlp(struct tandem_load *load, const struct standin_mlp *mlp, int64_t rows, unsigned seed);
void rig_fill(float *values, size_t count, unsigned seed);

/* ---------------------------------------------------------------- device memory */

/* Through the device's primary context, which is retained and pushed for the call alone; what is allocated
 * keeps it retained until it is freed. */
void *rig_allocate(int device, size_t size);
void rig_free(int device, void *memory);
void rig_write(int device, void *to, const void *from, size_t size);
void rig_read(int device, void *to, const void *from, size_t size);
/* A non-blocking stream of the primary context; it keeps that retained. */
void *rig_stream(int device);
void rig_stream_free(int device, void *stream);
/* Whether the work is done, and waiting for it: of a stream or an event of device 0. */
bool rig_stream_is_done(void *stream);
bool rig_event_is_done(void *event);
void rig_event_wait(void *event);
void rig_push(int device); /* retains and pushes the primary context */
void rig_pop(int device);
void *rig_current(void); /* the calling thread's context */

/* ---------------------------------------------------------------- log */

/* Lines that contain `text` since the test began. */
unsigned rig_lines(const char *text);

#endif
