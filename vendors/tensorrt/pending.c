/* Weak stand-ins until device.c, context.c, scratch.c and graph.c are there. */
#include "tensorrt.h"
#define WEAK __attribute__((weak))
WEAK enum tandem_status td_cuda_open(struct tandem_error *error) {
  return td_trt_host()->fail(error, TANDEM_UNAVAILABLE, "no CUDA driver was found");
}
WEAK int32_t td_cuda_driver_version(void) { return 0; }
WEAK bool td_cuda_describe(int32_t device_id, struct td_cuda_facts *facts) { (void)device_id; (void)facts; return false; }
WEAK enum tandem_status td_cuda_resolve(int32_t device_id, uint64_t *context_id, struct tandem_error *error) { (void)device_id; *context_id = 0; return td_cuda_open(error); }
WEAK enum tandem_status td_cuda_acquire(int32_t device_id, uint64_t context_id, struct td_cuda_context **context, struct tandem_error *error) { (void)device_id; (void)context_id; *context = NULL; return td_cuda_open(error); }
WEAK void td_cuda_release(struct td_cuda_context *context) { (void)context; }
WEAK enum tandem_status td_cuda_enter(struct td_cuda_context *context, struct tandem_error *error) { (void)context; return td_cuda_open(error); }
WEAK void td_cuda_leave(struct td_cuda_context *context) { (void)context; }
WEAK bool td_cuda_lost(struct td_cuda_context *context) { (void)context; return false; }
WEAK enum tandem_status td_cuda_memory(const struct tandem_resolution *r, uint64_t *f, uint64_t *t, struct tandem_error *error) { (void)r; *f = *t = 0; return td_cuda_open(error); }
WEAK enum tandem_status td_trt_context_create(void *engine, const struct tandem_context_desc *desc, void **context, struct tandem_context_io *io, struct tandem_error *error) { (void)engine; (void)desc; (void)context; (void)io; return td_cuda_open(error); }
WEAK void td_trt_context_destroy(void *context) { (void)context; }
WEAK enum tandem_status td_trt_run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error) { (void)context; (void)desc; return td_cuda_open(error); }
WEAK void *td_trt_output_reallocate(struct td_trt_output_allocator *a, const char *n, void *c, uint64_t s, uint64_t al, void *st) { (void)a; (void)n; (void)c; (void)s; (void)al; (void)st; return NULL; }
WEAK void td_trt_output_shape(struct td_trt_output_allocator *a, const char *n, const struct td_trt_dims *d) { (void)a; (void)n; (void)d; }
WEAK void td_trt_capture_lock_shared(void) {}
WEAK void td_trt_capture_unlock(void) {}
