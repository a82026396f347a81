/* Fuzz target of what vendors' libraries say: whatever the text, an error stays one line, its status is the
 * call's or the one that the text tells, and what goes to the log are single lines. */
#include "aotinductor.h"
#include "base.h"
#include "fuzz.h"
#include "openvino.h"
#include "tensorrt.h"

static char *said;

static const char *tell_openvino(void) {
  return said;
}

static void keep_text(const char *text) {
  (void)text;
}

static int32_t tell_engine(const char **line) {
  *line = said;
  return 0;
}

static void (*const *logger)(void *self, int32_t severity, const char *message); /* its vtable */

static void *take_logger(void *given, int32_t version) {
  (void)version;
  memcpy(&logger, given, sizeof logger);
  return NULL;
}

static void check_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level;
  require(strpbrk(line, "\r\n") == NULL, "a line of the log that is two");
}

/* Ends a vendor's call, as the pool does. */
static void end_call(struct td_call *call, struct td_lines *lines, enum tandem_status status,
                     struct tandem_error *error) {
  require(status == TANDEM_DEVICE_ERROR || status == TANDEM_OUT_OF_MEMORY, "a status that nobody told");
  require_line(error->message);
  status = td_call_end(call, status, "do something", error);
  require(status == TANDEM_DEVICE_ERROR || status == TANDEM_OUT_OF_MEMORY || status == TANDEM_DEVICE_LOST,
          "another status than was told");
  require(error->code == status, "an error without its status");
  require_line(error->message);
  td_lines_destroy(lines);
}

static struct td_lines *begin_call(struct td_call *call, const struct tandem_vendor *vendor) {
  struct td_lines *lines = td_lines_create("fuzz", TANDEM_LOG_DEBUG);
  td_call_begin(call, vendor, lines);
  return lines;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct td_call call;
  struct td_aoti_engine engine = {.api.last_error = tell_engine};
  void *runtime;
  said = copy_text(bytes, size);
  tandem_set_log_sink(check_line, NULL);

  td_openvino_set_host(&td_host);
  td_ov.last_error = tell_openvino;
  td_ov.text_free = keep_text;
  struct td_lines *lines = begin_call(&call, &td_vendor_openvino);
  enum tandem_status status = td_openvino_fail(&error, TANDEM_DEVICE_ERROR, -1, "do something");
  end_call(&call, lines, status, &error);

  td_aoti_set_host(&td_host);
  lines = begin_call(&call, &td_vendor_aotinductor);
  status = td_aoti_fail(&engine, TANDEM_DEVICE_ERROR, &error, "do something");
  end_call(&call, lines, status, &error);

  td_trt_set_host(&td_host);
  td_trt.major = 10; /* its logger's first method is the one that takes lines */
  td_trt.create_runtime = take_logger;
  require(td_trt_create_runtime(&runtime, &error) == TANDEM_UNAVAILABLE, "a runtime that nobody made");
  lines = begin_call(&call, &td_vendor_tensorrt);
  td_trt_listen();
  for (int32_t severity = 0; severity < 5; severity++)
    logger[0](NULL, severity, said);
  status = td_host.fail(&error, TANDEM_DEVICE_ERROR, "causes %u", td_trt_said());
  end_call(&call, lines, status, &error);

  free(said);
  return 0;
}
