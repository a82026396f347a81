/* Fuzz target of options, from every source at once: whatever they are, each vendor's load is refused in one
 * line that blames an option, or gets values that are within their bounds.
 *
 * An input is lines; the first byte of a line says where the rest of it stands: e(nvironment), p(rocess),
 * b(ackend: the process's for one), s(pec of the program), c (scope), else the load itself. */
#include "aotinductor.h"
#include "base.h"
#include "fuzz.h"
#include "openvino.h"

#include <strings.h>
#include <unistd.h>

enum { LINES_MAX = 16 };

struct options {
  struct tandem_option load[LINES_MAX], scope[LINES_MAX], process[LINES_MAX];
  const char *backends[LINES_MAX]; /* of `process`; NULL: all */
  struct tandem_spec specs[LINES_MAX];
  char *environment[LINES_MAX + 1];
  size_t load_count, scope_count, process_count, spec_count, environment_count;
  char *texts[LINES_MAX]; /* owned */
  size_t text_count;
};

static void check_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level;
  require(strpbrk(line, "\r\n") == NULL, "a line of the log that is two");
}

static void take_line(struct options *options, const uint8_t *line, size_t size) {
  char *text = copy_text(line + 1, size - 1);
  char *sign = memchr(text, '=', size - 1);
  char *value = sign ? sign + 1 : NULL;
  options->texts[options->text_count++] = text;
  if (line[0] == 'e') {
    options->environment[options->environment_count++] = text;
    return;
  }
  if (sign)
    *sign = '\0';
  struct tandem_option option = {text, value};
  switch (line[0]) {
  case 'p':
  case 'b':
    options->backends[options->process_count] =
        line[0] == 'b' ? tandem_vendor_backend(size % tandem_vendor_count()) : NULL;
    options->process[options->process_count++] = option;
    return;
  case 's':
    options->specs[options->spec_count++] =
        (struct tandem_spec){text, value, value ? size - 1 - (size_t)(value - text) : 0};
    return;
  case 'c':
    options->scope[options->scope_count++] = option;
    return;
  default:
    options->load[options->load_count++] = option;
  }
}

static void require_refusal(enum tandem_status status, const struct tandem_error *error) {
  require(status == TANDEM_BAD_OPTION || status == TANDEM_BAD_PROGRAM, "a status that blames no option");
  require(error->code == status, "an error without its status");
  require_line(error->message);
}

/* What a vendor makes of its values without its library. */
static void resolve(const struct tandem_vendor *vendor, const struct td_options *resolved) {
  struct tandem_error error = {0};
  struct tandem_resolution resolution;
  struct td_aoti_program program = {.device_type = AOTI_DEVICE_CPU};
  struct tandem_payload payload = {.state = &program};
  if (vendor != &td_vendor_aotinductor &&
      !(vendor == &td_vendor_openvino && strcasecmp(resolved->vendor_values[TD_OPENVINO_DEVICE], "CPU") == 0))
    return;
  td_aoti_set_host(&td_host);
  td_openvino_set_host(&td_host);
  enum tandem_status status = vendor->resolve(&payload, resolved->vendor_values, &resolution, &error);
  if (status != TANDEM_OK)
    require_refusal(status, &error);
  else
    require(strcmp(resolution.device, "CPU") == 0 && strlen(resolution.options) < 300,
            "a resolution too long");
}

static void check_load(const struct tandem_vendor *vendor, const struct options *options) {
  struct tandem_error error = {0};
  struct td_options resolved;
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .options = options->load,
                                  .option_count = options->load_count,
                                  .compile_specs = options->specs,
                                  .compile_spec_count = options->spec_count};
  struct td_lines *lines = td_lines_create("fuzz", TANDEM_LOG_DEBUG);
  enum tandem_status status = td_options_resolve(vendor, &desc, lines, &resolved, &error);
  td_lines_destroy(lines);
  if (status != TANDEM_OK) {
    require_refusal(status, &error);
    return;
  }
  require(resolved.weight_streaming_budget >= -1 && resolved.profile >= -1, "a count below its least");
  require(resolved.log_level <= TANDEM_LOG_DEBUG, "a level that is none");
  require(resolved.expect_sha256[0] == '\0' ||
              strspn(resolved.expect_sha256, "0123456789abcdef") == sizeof resolved.expect_sha256 - 1,
          "a SHA-256 that is none");
  for (size_t i = 0; i < vendor->option_count; i++)
    require(strlen(resolved.vendor_values[i]) < TD_OPTION_VALUE_MAX, "a value that is too long");
  resolve(vendor, &resolved);
}

static void check_get(const char *backend, const char *key) {
  struct tandem_error error = {0};
  char *value = malloc(TD_OPTION_VALUE_MAX);
  require(value != NULL, "no memory");
  enum tandem_status status = tandem_get_option(backend, key, value, TD_OPTION_VALUE_MAX, &error);
  if (status != TANDEM_OK)
    require_refusal(status, &error);
  else
    require(strlen(value) < TD_OPTION_VALUE_MAX && (!backend || tandem_option_known(backend, key)),
            "the value of an option that is none");
  free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct options options = {0};
  struct tandem_error error = {0};
  struct tandem_scope *scope = NULL;
  char **environment = environ;
  tandem_set_log_sink(check_line, NULL);
  for (size_t at = 0; at < size && options.text_count < LINES_MAX;) {
    const uint8_t *end = memchr(bytes + at, '\n', size - at);
    size_t length = end ? (size_t)(end - bytes) - at : size - at;
    if (length > 0)
      take_line(&options, bytes + at, length);
    at += length + 1;
  }
  environ = options.environment;
  for (size_t i = 0; i < options.process_count; i++) {
    enum tandem_status status =
        tandem_set_option(options.backends[i], options.process[i].key, options.process[i].value, &error);
    if (status != TANDEM_OK)
      require_refusal(status, &error);
  }
  enum tandem_status status = tandem_scope_acquire(options.scope, options.scope_count, &scope, &error);
  if (status != TANDEM_OK)
    require_refusal(status, &error);
  const struct tandem_vendor *vendor;
  for (size_t i = 0; (vendor = td_vendor_at(i)) != NULL; i++)
    check_load(vendor, &options);
  for (size_t i = 0; i < options.load_count; i++)
    check_get(size & 1 ? tandem_vendor_backend(size % tandem_vendor_count()) : NULL, options.load[i].key);
  require(td_options_log_level() <= TANDEM_LOG_DEBUG, "a level that is none");
  tandem_scope_release(scope);
  for (size_t i = 0; i < options.process_count; i++)
    tandem_set_option(options.backends[i], options.process[i].key, NULL, &error);
  environ = environment;
  for (size_t i = 0; i < options.text_count; i++)
    free(options.texts[i]);
  return 0;
}
