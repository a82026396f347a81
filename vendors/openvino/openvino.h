/* What the sources of the OpenVINO vendor share. */
#ifndef TANDEM_VENDORS_OPENVINO_OPENVINO_H
#define TANDEM_VENDORS_OPENVINO_OPENVINO_H

#include <tandem/vendor.h>

#include "abi.h"

/* The order of the values that tandem hands over; td_openvino_options has them in this order. */
enum {
  TD_OPENVINO_DEVICE,
  TD_OPENVINO_PRECISION,
  TD_OPENVINO_STREAMS,
  TD_OPENVINO_THREADS,
  TD_OPENVINO_HINT,
  TD_OPENVINO_PINNING,
  TD_OPENVINO_OPTION_COUNT,
};

/* ---------------------------------------------------------------- openvino.c */

extern const struct tandem_vendor td_vendor_openvino __attribute__((visibility("hidden")));

/* The host given to open and parse; set before anything below is used. */
const struct tandem_host *td_openvino_host(void);
void td_openvino_set_host(const struct tandem_host *host);

/* OpenVINO's last error as one line without the source positions; "" when `code` leaves none. */
void td_openvino_reason(int code, char *line, size_t size);
/* The error of a call of OpenVINO that returned `code`: OUT_OF_MEMORY when its text says so, else `status`.
 * `step` says what was tried ("read output 0"). */
enum tandem_status td_openvino_fail(struct tandem_error *error, enum tandem_status status, int code,
                                    const char *step);

/* ---------------------------------------------------------------- library.c */

/* Filled when td_openvino_open has succeeded, constant after that. */
extern struct ov_api td_ov;
extern char td_openvino_version[128];

enum tandem_status td_openvino_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                    struct tandem_error *error);

/* ---------------------------------------------------------------- payload.c */

enum td_openvino_format {
  TD_OPENVINO_UNNAMED = 0, /* sizes only: 2025, names neither version nor instruction set */
  TD_OPENVINO_NAMED = 1,   /* RR_UPCVO */
};

/* What a payload says about itself, checked against its size. */
struct td_openvino_blob {
  enum td_openvino_format format;
  char version[64];          /* "2026.4.1"; "" when not named */
  char instruction_set[128]; /* likewise */
  uint64_t header_size;      /* bytes before the model's own parts, of which the next fields tell */
  uint64_t custom_size;
  uint64_t weights_offset; /* from the start of the payload */
  uint64_t weights_size;
  uint64_t model_offset;
  uint64_t model_size;
};

/* Errors: BAD_PROGRAM, UNSUPPORTED (a newer header). */
enum tandem_status td_openvino_read_blob(const struct tandem_host *host, const void *bytes, size_t size,
                                         struct td_openvino_blob *blob, struct tandem_error *error);
enum tandem_status td_openvino_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                     const struct tandem_named_data *named_data,
                                     struct tandem_payload *payload, struct tandem_error *error);
void td_openvino_payload_destroy(struct tandem_payload *payload);
void td_openvino_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user);
/* Copies the value of `key` in a "key=value;key=value" text; "" when it is not there. */
void td_openvino_find_value(const char *text, size_t text_size, const char *key, char *value, size_t size);

/* ---------------------------------------------------------------- engine.c */

enum tandem_status td_openvino_resolve(const struct tandem_payload *payload, const char *const *options,
                                       struct tandem_resolution *resolution, struct tandem_error *error);
enum tandem_status td_openvino_build(const struct tandem_build_desc *desc, void **engine,
                                     struct tandem_engine_info *info, struct tandem_error *error);
void td_openvino_engine_destroy(void *engine);
struct ov_compiled_model *td_openvino_model(void *engine);

/* ---------------------------------------------------------------- context.c */

enum tandem_status td_openvino_context_create(void *engine, const struct tandem_context_desc *desc,
                                              void **context, struct tandem_context_io *io,
                                              struct tandem_error *error);
void td_openvino_context_destroy(void *context);
enum tandem_status td_openvino_run(void *context, const struct tandem_run_desc *desc,
                                   struct tandem_error *error);
enum tandem_status td_openvino_reset(void *context, struct tandem_error *error);

/* ---------------------------------------------------------------- memory.c */

enum tandem_status td_openvino_memory(const struct tandem_resolution *resolution, uint64_t *free_bytes,
                                      uint64_t *total_bytes, struct tandem_error *error);

#endif
