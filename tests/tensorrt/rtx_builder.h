/* A small real plan, built by TensorRT-RTX's own builder. TESTS ONLY: the product never builds plans. */
#ifndef TANDEM_TESTS_RTX_BUILDER_H
#define TANDEM_TESTS_RTX_BUILDER_H

#include <stddef.h>

/* y = relu(x W + b) for x float32 [2, 8], y [2, 4], for compute capabilities 8.0 and 12.0. Owned, free() it;
 * NULL with a reason on stderr. `path` is libtensorrt_rtx's. */
void *rtx_build_plan(const char *path, size_t *size);

#endif
