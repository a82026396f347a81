/* The TensorRT vendor: ExecuTorch's TensorRTBackend on TensorRT 10, TensorRT 11, the lean runtime and
 * TensorRT-RTX, from plain C and without an SDK.
 *
 * An engine is one deserialized plan with its runtime and its hold on a CUDA context; a context is one
 * execution context with its buffers. What changes an engine beside its bytes, device and budget is the table
 * of options below: the DLA core that it runs on, and whether its plan may bring host code.
 */
#include "tensorrt.h"

#include <stdarg.h>
#include <stdio.h>

const struct tandem_host *td_trt_host(void) {
  return td_cuda_host();
}

void td_trt_set_host(const struct tandem_host *host) {
  td_cuda_set_host(host);
}

void td_trt_say(enum tandem_log_level level, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  td_trt_host()->log(&td_vendor_tensorrt, level, TANDEM_OK, line);
}

static const struct tandem_vendor_option options[TD_TRT_OPTION_COUNT] = {
    [TD_TRT_DLA_CORE] = {"dla_core", TANDEM_OPTION_COUNT, NULL, ""},
    [TD_TRT_HOST_CODE] = {"host_code_allowed", TANDEM_OPTION_BOOL, NULL, "false"},
};

const struct tandem_vendor td_vendor_tensorrt = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_vendor),
    .name = "tensorrt",
    .backend = "TensorRTBackend",
    .flags = TANDEM_VENDOR_HAS_BUDGET | TANDEM_VENDOR_HAS_STREAMS,
    .options = options,
    .option_count = TD_TRT_OPTION_COUNT,
    .open = td_trt_open,
    .parse = td_trt_parse,
    .payload_destroy = td_trt_payload_destroy,
    .describe = td_trt_describe,
    .resolve = td_trt_resolve,
    .build = td_trt_build,
    .engine_destroy = td_trt_engine_destroy,
    .context_create = td_trt_context_create,
    .context_destroy = td_trt_context_destroy,
    .run = td_trt_run,
    .memory = td_cuda_memory,
};
