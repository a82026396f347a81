/* The AOTInductor vendor: programs that torch compiled to a shared library, on the CPU and on CUDA devices.
 *
 * An engine is the opened library and one set of weights; a context is a container of its own that borrows
 * them, with copies of what runs write to. The device is the one option that changes an engine: what else
 * there is to decide the compiler decided, in the library.
 */
#include "aotinductor.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(const struct tandem_host *) the_host;

const struct tandem_host *td_aoti_host(void) {
  return atomic_load_explicit(&the_host, memory_order_acquire);
}

void td_aoti_set_host(const struct tandem_host *host) {
  atomic_store_explicit(&the_host, host, memory_order_release);
}

void td_aoti_say(enum tandem_log_level level, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  td_aoti_host()->log(&td_vendor_aotinductor, level, TANDEM_OK, line);
}

static const struct tandem_vendor_option options[TD_AOTI_OPTION_COUNT] = {
    [TD_AOTI_DEVICE] = {"device", TANDEM_OPTION_TEXT, NULL, ""},
};

const struct tandem_vendor td_vendor_aotinductor = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_vendor),
    .name = "aotinductor",
    .backend = "TandemAotiBackend",
    .flags = TANDEM_VENDOR_HAS_STREAMS,
    .options = options,
    .option_count = TD_AOTI_OPTION_COUNT,
    .open = td_aoti_open,
    .parse = td_aoti_parse,
    .payload_destroy = td_aoti_payload_destroy,
    .describe = td_aoti_describe,
    .resolve = td_aoti_resolve,
    .build = td_aoti_build,
    .engine_destroy = td_aoti_engine_destroy,
    .context_create = td_aoti_context_create,
    .context_destroy = td_aoti_context_destroy,
    .run = td_aoti_run,
    .reset = td_aoti_reset,
    .memory = td_aoti_memory,
};
