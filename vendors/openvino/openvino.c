/* The OpenVINO vendor: ExecuTorch's OpenvinoBackend on any CPU, over OpenVINO's C interface.
 *
 * An engine is one compiled model imported from the payload, a context one infer request of it. Every option
 * of the table below changes what is imported, so all belong to the identity. 2026's import goes on reading
 * the payload's bytes, so tandem keeps them; 2025's copies them, and keeping them costs address space only
 * while they are mapped.
 *
 * OpenVINO keeps one last error for the whole process: when two calls fail at once, one may read the other's
 * text. Only the text of a message and the out-of-memory status can be touched by that, never a result.
 */
#include "openvino.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static _Atomic(const struct tandem_host *) the_host;

const struct tandem_host *td_openvino_host(void) {
  return atomic_load_explicit(&the_host, memory_order_acquire);
}

void td_openvino_set_host(const struct tandem_host *host) {
  atomic_store_explicit(&the_host, host, memory_order_release);
}

/* ---------------------------------------------------------------- OpenVINO's errors */

/* OpenVINO's texts begin with lines that name its source files; what a user can use comes after them. */
static bool names_a_source(const char *line, size_t size) {
  static const char exception[] = "Exception from ", check[] = "Check '";
  if (size >= sizeof exception - 1 && memcmp(line, exception, sizeof exception - 1) == 0)
    return true;
  return size >= sizeof check - 1 && memcmp(line, check, sizeof check - 1) == 0;
}

static void join_lines(const char *text, bool skip_sources, char *line, size_t size) {
  size_t used = 0;
  line[0] = '\0';
  for (const char *at = text; *at != '\0';) {
    size_t length = strcspn(at, "\n");
    const char *next = at[length] == '\n' ? at + length + 1 : at + length;
    while (length > 0 && (*at == ' ' || *at == '\t'))
      at++, length--;
    if (length > 0 && !(skip_sources && names_a_source(at, length))) {
      int written = snprintf(line + used, size - used, "%s%.*s", used > 0 ? " " : "", (int)length, at);
      if (written < 0 || (size_t)written >= size - used)
        return;
      used += (size_t)written;
    }
    at = next;
  }
}

void td_openvino_reason(int code, char *line, size_t size) {
  line[0] = '\0';
  if (code >= OV_OK || code < OV_LAST_STATUS_WITH_TEXT)
    return;
  const char *text = td_ov.last_error();
  if (text == NULL)
    return;
  join_lines(text, true, line, size);
  if (line[0] == '\0')
    join_lines(text, false, line, size);
  td_ov.text_free(text);
}

static bool says_out_of_memory(const char *line) {
  static const char *const signs[] = {"bad_alloc",         "Cannot allocate memory", "out of memory",
                                      "Out of memory",     "not enough memory",      "failed to allocate",
                                      "Failed to allocate"};
  for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
    if (strstr(line, signs[i]) != NULL)
      return true;
  return false;
}

enum tandem_status td_openvino_fail(struct tandem_error *error, enum tandem_status status, int code,
                                    const char *step) {
  const struct tandem_host *host = td_openvino_host();
  char line[640];
  td_openvino_reason(code, line, sizeof line);
  if (says_out_of_memory(line)) {
    status = TANDEM_OUT_OF_MEMORY;
    host->log(&td_vendor_openvino, TANDEM_LOG_ERROR, status, line);
  }
  if (line[0] == '\0')
    return host->fail(error, status, "%s: OpenVINO %s returned status %d without a reason", step,
                      td_openvino_version, code);
  return host->fail(error, status, "%s: OpenVINO %s: %s", step, td_openvino_version, line);
}

/* ---------------------------------------------------------------- the table */

/* "auto" and 0 leave it to OpenVINO. */
static const struct tandem_vendor_option options[TD_OPENVINO_OPTION_COUNT] = {
    [TD_OPENVINO_DEVICE] = {"device", TANDEM_OPTION_TEXT, NULL, "CPU"},
    [TD_OPENVINO_PRECISION] = {"precision", TANDEM_OPTION_CHOICE, "auto|f32|bf16|f16", "auto"},
    [TD_OPENVINO_STREAMS] = {"num_streams", TANDEM_OPTION_COUNT, NULL, "0"},
    [TD_OPENVINO_THREADS] = {"num_threads", TANDEM_OPTION_COUNT, NULL, "0"},
    [TD_OPENVINO_HINT] = {"performance_hint", TANDEM_OPTION_CHOICE,
                          "auto|latency|throughput|cumulative_throughput", "auto"},
    [TD_OPENVINO_PINNING] = {"cpu_pinning", TANDEM_OPTION_CHOICE, "auto|true|false", "auto"},
};

const struct tandem_vendor td_vendor_openvino = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_vendor),
    .name = "openvino",
    .backend = "OpenvinoBackend",
    .flags = TANDEM_VENDOR_KEEPS_ENGINE_BYTES,
    .options = options,
    .option_count = TD_OPENVINO_OPTION_COUNT,
    .open = td_openvino_open,
    .parse = td_openvino_parse,
    .payload_destroy = td_openvino_payload_destroy,
    .describe = td_openvino_describe,
    .resolve = td_openvino_resolve,
    .build = td_openvino_build,
    .engine_destroy = td_openvino_engine_destroy,
    .context_create = td_openvino_context_create,
    .context_destroy = td_openvino_context_destroy,
    .run = td_openvino_run,
    .reset = td_openvino_reset,
    .memory = td_openvino_memory,
};
