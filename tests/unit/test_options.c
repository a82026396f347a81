/* Options: one table, one precedence; what is refused names itself and changes nothing. */
#include "base.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- two vendors of which only the options matter */

static enum tandem_status open_nothing(const struct tandem_host *host, struct tandem_vendor_library *library,
                                       struct tandem_error *error) {
  (void)library;
  return (host->fail)(error, TANDEM_UNAVAILABLE, "has no library");
}

static enum tandem_status parse_nothing(const struct tandem_host *host, const void *bytes, size_t size,
                                        const struct tandem_named_data *named_data,
                                        struct tandem_payload *payload, struct tandem_error *error) {
  (void)bytes, (void)size, (void)named_data, (void)payload;
  return (host->fail)(error, TANDEM_UNSUPPORTED, "reads no payload");
}

static void destroy_payload(struct tandem_payload *payload) {
  (void)payload;
}

static enum tandem_status resolve_nothing(const struct tandem_payload *payload, const char *const *options,
                                          struct tandem_resolution *resolution, struct tandem_error *error) {
  (void)payload, (void)options, (void)resolution, (void)error;
  return TANDEM_UNSUPPORTED;
}

static enum tandem_status build_nothing(const struct tandem_build_desc *desc, void **engine,
                                        struct tandem_engine_info *info, struct tandem_error *error) {
  (void)desc, (void)engine, (void)info, (void)error;
  return TANDEM_UNSUPPORTED;
}

static void destroy(void *unused) {
  (void)unused;
}

static enum tandem_status create_nothing(void *engine, const struct tandem_context_desc *desc, void **context,
                                         struct tandem_context_io *io, struct tandem_error *error) {
  (void)engine, (void)desc, (void)context, (void)io, (void)error;
  return TANDEM_UNSUPPORTED;
}

static enum tandem_status run_nothing(void *context, const struct tandem_run_desc *desc,
                                      struct tandem_error *error) {
  (void)context, (void)desc, (void)error;
  return TANDEM_UNSUPPORTED;
}

static const struct tandem_vendor_option north_options[] = {
    {.name = "north_text", .kind = TANDEM_OPTION_TEXT, .fallback = "plain"},
    {.name = "north_flag", .kind = TANDEM_OPTION_BOOL, .fallback = "false"},
    {.name = "north_count", .kind = TANDEM_OPTION_COUNT, .fallback = ""},
    {.name = "north_mode", .kind = TANDEM_OPTION_CHOICE, .choices = "slow|fast|", .fallback = "slow"},
    {.name = "level", .kind = TANDEM_OPTION_COUNT, .fallback = "3"},
    {.name = "bare", .kind = TANDEM_OPTION_TEXT},
};
enum { NORTH_TEXT, NORTH_FLAG, NORTH_COUNT, NORTH_MODE, NORTH_LEVEL, NORTH_BARE };

static const struct tandem_vendor_option south_options[] = {
    {.name = "south_text", .kind = TANDEM_OPTION_TEXT, .fallback = ""},
    {.name = "level", .kind = TANDEM_OPTION_CHOICE, .choices = "low|high", .fallback = "low"},
};
enum { SOUTH_TEXT, SOUTH_LEVEL };

static const struct tandem_vendor north_table = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_vendor),
    .name = "north",
    .backend = "NorthBackend",
    .options = north_options,
    .option_count = COUNT(north_options),
    .open = open_nothing,
    .parse = parse_nothing,
    .payload_destroy = destroy_payload,
    .resolve = resolve_nothing,
    .build = build_nothing,
    .engine_destroy = destroy,
    .context_create = create_nothing,
    .context_destroy = destroy,
    .run = run_nothing,
};
static struct tandem_vendor south_table;
static const struct tandem_vendor *north, *south;

/* ---- the lines of a load */

static char seen[1 << 14];
static int seen_count;
static enum tandem_log_level seen_level; /* of the last line */

static void see_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  seen_level = level;
  seen_count++;
  strncat(seen, line, sizeof(seen) - strlen(seen) - 2);
  strcat(seen, "\n");
}

static void forget_lines(void) {
  seen[0] = '\0';
  seen_count = 0;
}

/* ---- loads */

struct request {
  const struct tandem_vendor *vendor;
  struct tandem_option options[4];
  size_t option_count;
  struct tandem_spec specs[4];
  size_t spec_count;
};

static enum tandem_status resolve_into(const struct request *request, struct td_options *options,
                                       struct tandem_error *error) {
  struct tandem_load_desc desc = {
      .struct_size = sizeof(desc),
      .options = request->options,
      .option_count = request->option_count,
      .compile_specs = request->specs,
      .compile_spec_count = request->spec_count,
  };
  const struct tandem_vendor *vendor = request->vendor ? request->vendor : north;
  struct td_lines *lines = td_lines_create("load under test", TANDEM_LOG_DEBUG);
  enum tandem_status status = td_options_resolve(vendor, &desc, lines, options, error);
  td_lines_destroy(lines);
  return status;
}

static struct td_options resolved(const struct request *request) {
  struct td_options options;
  struct tandem_error error = {.message = ""};
  enum tandem_status status = resolve_into(request, &options, &error);
  if (status != TANDEM_OK)
    print_error("%s\n", error.message);
  assert_int_equal(status, TANDEM_OK);
  return options;
}

/* The load is refused with `status` and a message that holds each of the words. */
static void expect_refused(const struct request *request, enum tandem_status status, const char *word,
                           const char *other_word) {
  struct td_options options;
  struct tandem_error error = {.message = ""};
  assert_int_equal(resolve_into(request, &options, &error), status);
  assert_int_equal(error.code, status);
  if (!strstr(error.message, word) || !strstr(error.message, other_word))
    print_error("'%s' or '%s' missing in: %s\n", word, other_word, error.message);
  assert_non_null(strstr(error.message, word));
  assert_non_null(strstr(error.message, other_word));
}

static struct request with_option(const char *key, const char *value) {
  return (struct request){.options = {{key, value}}, .option_count = 1};
}

static struct request with_spec(const char *key, const char *value) {
  return (struct request){.specs = {{key, value, strlen(value)}}, .spec_count = 1};
}

static void set_process(const char *backend, const char *key, const char *value) {
  struct tandem_error error = {.code = TANDEM_INTERNAL};
  assert_int_equal(tandem_set_option(backend, key, value, &error), TANDEM_OK);
  assert_int_equal(error.code, TANDEM_OK);
}

static void expect_process_refused(const char *backend, const char *key, const char *value,
                                   enum tandem_status status, const char *word) {
  struct tandem_error error = {.message = ""};
  uint64_t live = td_memory_live();
  assert_int_equal(tandem_set_option(backend, key, value, &error), status);
  assert_int_equal(error.code, status);
  assert_non_null(strstr(error.message, word));
  assert_int_equal(td_memory_live(), live);
}

static void expect_read(const char *backend, const char *key, const char *expected) {
  char value[TD_OPTION_VALUE_MAX];
  struct tandem_error error = {.message = ""};
  enum tandem_status status = tandem_get_option(backend, key, value, sizeof(value), &error);
  if (status != TANDEM_OK)
    print_error("%s\n", error.message);
  assert_int_equal(status, TANDEM_OK);
  assert_string_equal(value, expected);
}

static struct tandem_scope *enter(const char *key, const char *value) {
  struct tandem_option option = {key, value};
  struct tandem_scope *scope = NULL;
  assert_int_equal(tandem_scope_acquire(&option, 1, &scope, NULL), TANDEM_OK);
  assert_non_null(scope);
  return scope;
}

static void expect_scope_refused(const struct tandem_option *options, size_t count, enum tandem_status status,
                                 const char *word) {
  struct tandem_error error = {.message = ""};
  struct tandem_scope *scope = (struct tandem_scope *)&error;
  uint64_t live = td_memory_live();
  assert_int_equal(tandem_scope_acquire(options, count, &scope, &error), status);
  assert_null(scope);
  assert_int_equal(error.code, status);
  assert_non_null(strstr(error.message, word));
  assert_int_equal(td_memory_live(), live);
}

/* ---- the table, as text */

static const char *as_text(const struct td_options *options, const char *name, char text[256]) {
  static const char *const levels[] = {"error", "warning", "info", "debug"};
  snprintf(text, 256, "?");
  if (!strcmp(name, "use_shared_engines"))
    return options->use_shared_engines ? "true" : "false";
  if (!strcmp(name, "share_across_budgets"))
    return options->share_across_budgets ? "true" : "false";
  if (!strcmp(name, "share_scratch"))
    return options->share_scratch ? "true" : "false";
  if (!strcmp(name, "cuda_graph"))
    return options->cuda_graph ? "true" : "false";
  if (!strcmp(name, "identity"))
    return options->identity == TD_IDENTITY_FAST ? "fast" : "keyed";
  if (!strcmp(name, "payload_bytes"))
    return options->payload_copy ? "copy" : "map";
  if (!strcmp(name, "trust_domain"))
    return options->trust_domain;
  if (!strcmp(name, "expect_sha256"))
    return options->expect_sha256;
  if (!strcmp(name, "log_level"))
    return levels[options->log_level];
  if (!strcmp(name, "weight_streaming_budget"))
    snprintf(text, 256, "%lld", (long long)options->weight_streaming_budget);
  else if (!strcmp(name, "flight_timeout_ms"))
    snprintf(text, 256, "%llu", (unsigned long long)options->flight_timeout_ms);
  else if (!strcmp(name, "profile"))
    snprintf(text, 256, "%d", options->profile);
  else
    for (size_t i = 0; i < COUNT(north_options); i++)
      if (!strcmp(name, north_options[i].name))
        return options->vendor_text[i];
  return !strcmp(text, "-1") ? "auto" : text;
}

#define HEX_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define HEX_B "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"

/* Two values of every option, neither the other; `fallback` its default. */
static const struct {
  const char *name, *fallback, *one, *other, *malformed;
} table[] = {
    {"use_shared_engines", "true", "false", "true", "yes"},
    {"weight_streaming_budget", "auto", "7", "9223372036854775807", "-1"},
    {"share_across_budgets", "false", "true", "false", "TRUE"},
    {"share_scratch", "true", "false", "true", "on"},
    {"cuda_graph", "false", "true", "false", "2"},
    {"flight_timeout_ms", "0", "10000", "0", "1.5"},
    {"identity", "keyed", "fast", "keyed", "sha256"},
    {"payload_bytes", "map", "copy", "map", "mapped"},
    {"trust_domain", "", "tenant", "other", NULL},
    {"expect_sha256", "", HEX_A, HEX_B, "00"},
    {"profile", "0", "auto", "2147483647", "2147483648"},
    {"log_level", "warning", "debug", "error", "verbose"},
    {"north_text", "plain", "a b", "", NULL},
    {"north_flag", "false", "true", "false", ""},
    {"north_count", "", "4", "2147483647", "2147483648"},
    {"north_mode", "slow", "fast", "", "slo"},
    {"level", "3", "1", "2", "low"},
};

static void without_any_source_every_option_has_its_default(void **state) {
  (void)state;
  char text[256];
  struct td_options options = resolved(&(struct request){0});
  for (size_t i = 0; i < COUNT(table); i++) {
    assert_string_equal(as_text(&options, table[i].name, text), table[i].fallback);
    expect_read("north", table[i].name, table[i].fallback);
    expect_read("NorthBackend", table[i].name, table[i].fallback);
  }
  assert_false(options.flight_timeout_set);
  assert_int_equal(resolve_into(&(struct request){0}, &options, NULL), TANDEM_OK);
  for (size_t i = 0; i < COUNT(north_options); i++)
    assert_ptr_equal(options.vendor_values[i], options.vendor_text[i]);
  assert_string_equal(options.vendor_values[NORTH_BARE], "");
  expect_read(NULL, "identity", "keyed");
}

static void name_variable(const char *name, char variable[64]) {
  snprintf(variable, 64, "TANDEM_OPT_%s", name);
  for (char *letter = variable; *letter; letter++)
    *letter = (char)toupper((unsigned char)*letter);
}

enum source { ENVIRONMENT, PROCESS, PROCESS_BACKEND, SPEC, OUTER_SCOPE, INNER_SCOPE, LOAD, SOURCES };

/* A load for which `weaker` gives value one and `stronger` value other. */
static void expect_stronger_wins(size_t row, enum source weaker, enum source stronger) {
  char text[256], variable[64];
  struct request request = {.vendor = north};
  struct tandem_scope *scopes[2] = {NULL, NULL};
  name_variable(table[row].name, variable);
  for (enum source source = ENVIRONMENT; source < SOURCES; source++) {
    const char *value = source == weaker ? table[row].one : table[row].other;
    if (source != weaker && source != stronger)
      continue;
    switch (source) {
    case ENVIRONMENT:
      setenv(variable, value, 1);
      break;
    case PROCESS:
      set_process(NULL, table[row].name, value);
      break;
    case PROCESS_BACKEND:
      set_process("north", table[row].name, value);
      break;
    case SPEC:
      request.specs[0] = (struct tandem_spec){table[row].name, value, strlen(value)};
      request.spec_count = 1;
      break;
    case OUTER_SCOPE:
    case INNER_SCOPE:
      scopes[source == INNER_SCOPE] = enter(table[row].name, value);
      break;
    default:
      request.options[0] = (struct tandem_option){table[row].name, value};
      request.option_count = 1;
    }
  }
  struct td_options options = resolved(&request);
  if (strcmp(as_text(&options, table[row].name, text), table[row].other) != 0)
    print_error("%s: source %d does not win over %d\n", table[row].name, (int)stronger, (int)weaker);
  assert_string_equal(as_text(&options, table[row].name, text), table[row].other);
  if (strcmp(table[row].name, "flight_timeout_ms") == 0)
    assert_true(options.flight_timeout_set);
  tandem_scope_release(scopes[1]);
  tandem_scope_release(scopes[0]);
  set_process(NULL, table[row].name, NULL);
  set_process("north", table[row].name, NULL);
  unsetenv(variable);
  options = resolved(&(struct request){0});
  assert_string_equal(as_text(&options, table[row].name, text), table[row].fallback);
}

static bool is_switch(const char *name) {
  return !strcmp(name, "use_shared_engines") || !strcmp(name, "share_scratch") || !strcmp(name, "cuda_graph");
}

static void the_stronger_source_wins_for_every_option(void **state) {
  (void)state;
  for (size_t row = 0; row < COUNT(table); row++)
    for (enum source weaker = ENVIRONMENT; weaker < SOURCES; weaker++)
      for (enum source stronger = weaker + 1; stronger < SOURCES; stronger++) {
        /* The operator's false is stronger than a compile spec: a test of its own. */
        bool operator_off = is_switch(table[row].name) && strcmp(table[row].one, "false") == 0 &&
                            (weaker == PROCESS || weaker == PROCESS_BACKEND) && stronger == SPEC;
        if (!operator_off)
          expect_stronger_wins(row, weaker, stronger);
      }
}

static void an_explicit_false_of_the_process_overrides_a_compile_spec(void **state) {
  (void)state;
  char text[256];
  for (size_t row = 0; row < COUNT(table); row++) {
    if (strcmp(table[row].one, "true") != 0 && strcmp(table[row].one, "false") != 0)
      continue;
    const char *name = table[row].name;
    struct request spec = with_spec(name, "1"), both = with_spec(name, "1");
    both.options[0] = (struct tandem_option){name, "true"};
    both.option_count = 1;
    for (int way = 0; way < 3; way++) {
      bool off = is_switch(name) && way < 2;
      if (way == 2) /* this backend's true hides the false for all */
        set_process("NorthBackend", name, "true");
      set_process(way == 1 ? "north" : NULL, name, "false");
      struct td_options options = resolved(&spec);
      assert_string_equal(as_text(&options, name, text), off ? "false" : "true");
      options = resolved(&both);
      assert_string_equal(as_text(&options, name, text), "true");
      struct tandem_scope *scope = enter(name, "true");
      options = resolved(&spec);
      assert_string_equal(as_text(&options, name, text), "true");
      tandem_scope_release(scope);
      set_process(NULL, name, NULL);
      set_process("north", name, NULL);
    }
  }
  /* The environment is no operator's word of that kind, and the spec stays checked. */
  setenv("TANDEM_OPT_CUDA_GRAPH", "false", 1);
  struct request spec = with_spec("cuda_graph", "1"), malformed = with_spec("cuda_graph", "maybe");
  assert_true(resolved(&spec).cuda_graph);
  unsetenv("TANDEM_OPT_CUDA_GRAPH");
  set_process(NULL, "cuda_graph", "false");
  expect_refused(&malformed, TANDEM_BAD_PROGRAM, "cuda_graph", "maybe");
  set_process(NULL, "cuda_graph", NULL);
}

static void upstream_s_spellings_are_the_same_options(void **state) {
  (void)state;
  static const struct {
    const char *alias, *name, *variable;
  } spellings[] = {
      {"use_shared_activation_scratch", "share_scratch", "TANDEM_OPT_USE_SHARED_ACTIVATION_SCRATCH"},
      {"use_cuda_graphs", "cuda_graph", "TANDEM_OPT_USE_CUDA_GRAPHS"}};
  for (size_t i = 0; i < COUNT(spellings); i++) {
    const char *alias = spellings[i].alias, *name = spellings[i].name;
    char text[256];
    for (int on = 0; on < 2; on++) {
      const char *value = on ? "1" : "0", *expected = on ? "true" : "false";
      struct request spec = with_spec(alias, value), load = with_option(alias, value);
      struct td_options options = resolved(&spec);
      assert_string_equal(as_text(&options, name, text), expected);
      options = resolved(&load);
      assert_string_equal(as_text(&options, name, text), expected);
      set_process(NULL, alias, value);
      expect_read("north", name, expected);
      expect_read("north", alias, expected);
      set_process(NULL, name, NULL);
      struct tandem_scope *scope = enter(alias, value);
      expect_read("north", name, expected);
      tandem_scope_release(scope);
      setenv(spellings[i].variable, value, 1);
      expect_read("north", name, expected);
      unsetenv(spellings[i].variable);
    }
    struct request twice = with_option(alias, "1");
    twice.options[1] = (struct tandem_option){name, "1"};
    twice.option_count = 2;
    expect_refused(&twice, TANDEM_BAD_OPTION, "twice", name);
    twice.options[0] = (struct tandem_option){name, "1"};
    twice.options[1] = (struct tandem_option){alias, "1"};
    expect_refused(&twice, TANDEM_BAD_OPTION, alias, name);
  }
}

static void malformed_values_are_refused_wherever_they_are_given(void **state) {
  (void)state;
  for (size_t row = 0; row < COUNT(table); row++) {
    const char *name = table[row].name, *value = table[row].malformed;
    char variable[64];
    if (!value)
      continue;
    name_variable(name, variable);
    struct request load = with_option(name, value), spec = with_spec(name, value), none = {0};
    expect_refused(&load, TANDEM_BAD_OPTION, name, value);
    expect_refused(&spec, TANDEM_BAD_PROGRAM, name, value);
    setenv(variable, value, 1);
    expect_refused(&none, TANDEM_BAD_OPTION, variable, value);
    unsetenv(variable);
    expect_process_refused("north", name, value, TANDEM_BAD_OPTION, name);
    if (strcmp(name, "level") == 0) /* south knows it too, and takes this value */
      continue;
    expect_process_refused(NULL, name, value, TANDEM_BAD_OPTION, name);
    expect_scope_refused(&load.options[0], 1, TANDEM_BAD_OPTION, name);
    expect_read("north", name, table[row].fallback);
  }
}

static void a_weaker_malformed_value_is_refused_although_a_stronger_one_hides_it(void **state) {
  (void)state;
  struct request load = with_option("identity", "fast");
  setenv("TANDEM_OPT_IDENTITY", "quick", 1);
  expect_refused(&load, TANDEM_BAD_OPTION, "TANDEM_OPT_IDENTITY", "quick");
  unsetenv("TANDEM_OPT_IDENTITY");
}

static void unknown_names_are_refused_where_tandem_is_asked(void **state) {
  (void)state;
  struct request load = with_option("cuda_grpah", "1"), none = {0};
  expect_refused(&load, TANDEM_BAD_OPTION, "cuda_grpah", "cuda_graph");
  expect_refused(&load, TANDEM_BAD_OPTION, "load option", "north_text");
  expect_scope_refused(&load.options[0], 1, TANDEM_BAD_OPTION, "cuda_grpah");
  expect_process_refused(NULL, "cuda_grpah", "1", TANDEM_BAD_OPTION, "cuda_grpah");
  expect_process_refused(NULL, "cuda_grpah", NULL, TANDEM_BAD_OPTION, "cuda_grpah");
  expect_process_refused("north", "cuda_grpah", "1", TANDEM_BAD_OPTION, "NorthBackend");
  setenv("TANDEM_OPT_CUDA_GRPAH", "1", 1);
  expect_refused(&none, TANDEM_BAD_OPTION, "TANDEM_OPT_CUDA_GRPAH", "cuda_graph");
  unsetenv("TANDEM_OPT_CUDA_GRPAH");
  resolved(&none);
}

static void an_option_without_name_or_value_is_refused(void **state) {
  (void)state;
  struct request no_name = with_option(NULL, "1"), no_value = with_option("cuda_graph", NULL);
  expect_refused(&no_name, TANDEM_BAD_OPTION, "0", "name");
  expect_refused(&no_value, TANDEM_BAD_OPTION, "0", "value");
  expect_scope_refused(&no_name.options[0], 1, TANDEM_BAD_OPTION, "name");
  expect_scope_refused(&no_value.options[0], 1, TANDEM_BAD_OPTION, "cuda_graph");
  expect_process_refused(NULL, NULL, "1", TANDEM_BAD_OPTION, "name");
}

static void a_name_given_twice_is_refused(void **state) {
  (void)state;
  struct request load = with_option("profile", "1"), spec = with_spec("profile", "1"), none = {0};
  load.options[1] = load.options[0];
  load.option_count = 2;
  expect_refused(&load, TANDEM_BAD_OPTION, "profile", "twice");
  expect_scope_refused(load.options, 2, TANDEM_BAD_OPTION, "profile");
  spec.specs[1] = spec.specs[0];
  spec.spec_count = 2;
  expect_refused(&spec, TANDEM_BAD_PROGRAM, "profile", "twice");
  setenv("TANDEM_OPT_SHARE_SCRATCH", "1", 1);
  setenv("TANDEM_OPT_USE_SHARED_ACTIVATION_SCRATCH", "1", 1);
  expect_refused(&none, TANDEM_BAD_OPTION, "TANDEM_OPT_SHARE_SCRATCH",
                 "TANDEM_OPT_USE_SHARED_ACTIVATION_SCRATCH");
  unsetenv("TANDEM_OPT_USE_SHARED_ACTIVATION_SCRATCH");
  unsetenv("TANDEM_OPT_SHARE_SCRATCH");
}

static void arrays_that_are_not_there_are_refused(void **state) {
  (void)state;
  struct td_options options;
  struct tandem_error error;
  struct tandem_load_desc desc = {.option_count = 1};
  assert_int_equal(td_options_resolve(north, &desc, NULL, &options, &error), TANDEM_INVALID_ARGUMENT);
  desc = (struct tandem_load_desc){.compile_spec_count = 1};
  assert_int_equal(td_options_resolve(north, &desc, NULL, &options, &error), TANDEM_INVALID_ARGUMENT);
  expect_scope_refused(NULL, 1, TANDEM_INVALID_ARGUMENT, "NULL");
  struct tandem_option option = {"profile", "1"};
  expect_scope_refused(&option, SIZE_MAX / 8, TANDEM_OUT_OF_MEMORY, "memory");
  assert_int_equal(tandem_scope_acquire(NULL, 0, NULL, &error), TANDEM_INVALID_ARGUMENT);
}

/* ---- the environment */

static void the_environment_is_read_as_it_stands(void **state) {
  (void)state;
  static char bare[] = "TANDEM_OPT_NORTH_TEXT", lower[] = "TANDEM_OPT_profile=1",
              nameless[] = "TANDEM_OPT_=1",
              longer[] =
                  "TANDEM_OPT_AN_OPTION_WITH_A_NAME_FAR_LONGER_THAN_ANY_THAT_TANDEM_OR_A_VENDOR_WOULD_HAVE=1",
              text[] = "TANDEM_OPT_NORTH_TEXT=a=b";
  static const struct {
    char *entry;
    const char *word;
  } refused[] = {
      {lower, "in capitals as in TANDEM_OPT_"}, {nameless, "TANDEM_OPT_"}, {longer, "TANDEM_OPT_AN_OPTION"}};
  char **before = environ;
  struct request none = {0};
  for (size_t i = 0; i < COUNT(refused); i++) {
    char *entries[] = {refused[i].entry, NULL};
    environ = entries;
    expect_refused(&none, TANDEM_BAD_OPTION, refused[i].word, "unknown");
  }
  char *twice[] = {text, text, NULL}, *once[] = {text, NULL}, *empty[] = {bare, NULL};
  environ = twice;
  expect_refused(&none, TANDEM_BAD_OPTION, "TANDEM_OPT_NORTH_TEXT", "twice");
  environ = once;
  expect_read("north", "north_text", "a=b");
  environ = empty;
  expect_read("north", "north_text", "");
  environ = NULL;
  expect_read("north", "north_text", "plain");
  environ = before;
}

/* ---- vendors' options */

static void another_vendor_s_option_is_an_error_of_a_load_only(void **state) {
  (void)state;
  struct request load = with_option("south_text", "warm"), none = {0};
  expect_refused(&load, TANDEM_BAD_OPTION, "south_text", "NorthBackend");
  struct tandem_scope *scope = enter("south_text", "warm");
  set_process(NULL, "south_text", "mild");
  setenv("TANDEM_OPT_SOUTH_TEXT", "hot", 1);
  resolved(&none);
  expect_read("south", "south_text", "warm");
  tandem_scope_release(scope);
  expect_read("south", "south_text", "mild");
  set_process(NULL, "south_text", NULL);
  expect_read("south", "south_text", "hot");
  unsetenv("TANDEM_OPT_SOUTH_TEXT");
  expect_process_refused("north", "south_text", "mild", TANDEM_BAD_OPTION, "south_text");
}

static void a_name_that_two_vendors_share_is_checked_by_each(void **state) {
  (void)state;
  struct request of_north = {.vendor = north}, of_south = {.vendor = south};
  set_process(NULL, "level", "high");
  assert_string_equal(resolved(&of_south).vendor_text[SOUTH_LEVEL], "high");
  expect_refused(&of_north, TANDEM_BAD_OPTION, "process option 'level'", "high");
  set_process("north", "level", "0008");
  assert_string_equal(resolved(&of_north).vendor_text[NORTH_LEVEL], "8");
  assert_string_equal(resolved(&of_south).vendor_text[SOUTH_LEVEL], "high");
  set_process("north", "level", NULL);
  set_process(NULL, "level", NULL);
  struct tandem_scope *scope = enter("level", "high");
  expect_refused(&of_north, TANDEM_BAD_OPTION, "scope option 'level'", "high");
  tandem_scope_release(scope);
  struct tandem_option neither = {"level", "middle"};
  expect_scope_refused(&neither, 1, TANDEM_BAD_OPTION, "level");
}

static void a_vendor_gets_its_values_in_its_order_and_in_one_form(void **state) {
  (void)state;
  struct request request = {
      .options = {{"north_flag", "1"}, {"north_count", "007"}, {"north_mode", "fast"}, {"north_text", "x"}},
      .option_count = 4};
  struct td_options options = resolved(&request);
  assert_string_equal(options.vendor_text[NORTH_TEXT], "x");
  assert_string_equal(options.vendor_text[NORTH_FLAG], "true");
  assert_string_equal(options.vendor_text[NORTH_COUNT], "7");
  assert_string_equal(options.vendor_text[NORTH_MODE], "fast");
}

/* ---- values */

static void numbers_are_decimal_digits_within_their_range(void **state) {
  (void)state;
  static const struct {
    const char *name, *value;
    bool fine;
  } cases[] = {
      {"weight_streaming_budget", "auto", true},
      {"weight_streaming_budget", "0", true},
      {"weight_streaming_budget", "00000000000000000000000000000009", true},
      {"weight_streaming_budget", "9223372036854775807", true},
      {"weight_streaming_budget", "9223372036854775808", false},
      {"weight_streaming_budget", "18446744073709551616", false},
      {"weight_streaming_budget", "99999999999999999999999999", false},
      {"weight_streaming_budget", "-1", false},
      {"weight_streaming_budget", "+1", false},
      {"weight_streaming_budget", " 1", false},
      {"weight_streaming_budget", "1 ", false},
      {"weight_streaming_budget", "1k", false},
      {"weight_streaming_budget", "0x10", false},
      {"weight_streaming_budget", "Auto", false},
      {"flight_timeout_ms", "9223372036854", true},
      {"flight_timeout_ms", "9223372036855", false},
      {"flight_timeout_ms", "auto", false},
      {"flight_timeout_ms", "", false},
      {"profile", "2147483647", true},
      {"profile", "2147483648", false},
      {"north_count", "auto", false},
      {"expect_sha256", HEX_A "0", false},
      {"expect_sha256", "g0112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", false},
      {"expect_sha256", "", false},
  };
  for (size_t i = 0; i < COUNT(cases); i++) {
    struct request load = with_option(cases[i].name, cases[i].value),
                   spec = with_spec(cases[i].name, cases[i].value);
    if (cases[i].fine) {
      resolved(&load);
      resolved(&spec);
    } else {
      expect_refused(&load, TANDEM_BAD_OPTION, cases[i].name, "expected");
      expect_refused(&spec, TANDEM_BAD_PROGRAM, cases[i].name, "expected");
    }
  }
  struct request upper =
      with_option("expect_sha256", "AABBCCDDEEFF00112233445566778899AABBCCDDEEFF00112233445566778899");
  assert_string_equal(resolved(&upper).expect_sha256,
                      "aabbccddeeff00112233445566778899aabbccddeeff00112233445566778899");
}

static void a_text_has_room_for_255_bytes(void **state) {
  (void)state;
  char text[TD_OPTION_VALUE_MAX + 1];
  memset(text, 't', sizeof(text));
  text[TD_OPTION_VALUE_MAX] = '\0';
  struct request load = with_option("trust_domain", text);
  expect_refused(&load, TANDEM_BAD_OPTION, "trust_domain", "255");
  expect_process_refused(NULL, "trust_domain", text, TANDEM_BAD_OPTION, "trust_domain");
  text[TD_OPTION_VALUE_MAX - 1] = '\0';
  assert_string_equal(resolved(&load).trust_domain, text);
}

static void every_log_level_has_its_word(void **state) {
  (void)state;
  static const char *const words[] = {"error", "warning", "info", "debug"};
  for (int i = 0; i < 4; i++) {
    struct request load = with_option("log_level", words[i]);
    assert_int_equal(resolved(&load).log_level, i);
  }
}

/* ---- compile specs */

static void a_compile_spec_need_not_end_in_nul(void **state) {
  (void)state;
  struct request request = {
      .specs = {{"profile", "12garbage", 2}, {"north_text", "abc", 4}, {"trust_domain", NULL, 0}},
      .spec_count = 3};
  struct td_options options = resolved(&request);
  assert_int_equal(options.profile, 12);
  assert_string_equal(options.vendor_text[NORTH_TEXT], "abc");
  assert_string_equal(options.trust_domain, "");
  struct request embedded = {.specs = {{"north_text", "a\0b", 3}}, .spec_count = 1};
  expect_refused(&embedded, TANDEM_BAD_PROGRAM, "north_text", "NUL");
}

static void a_malformed_compile_spec_is_a_bad_program(void **state) {
  (void)state;
  struct request empty = with_spec("weight_streaming_budget", ""),
                 nul = {.specs = {{"weight_streaming_budget", "", 1}}, .spec_count = 1},
                 no_name = {.specs = {{NULL, "1", 1}}, .spec_count = 1},
                 no_value = {.specs = {{"profile", NULL, 1}}, .spec_count = 1};
  expect_refused(&empty, TANDEM_BAD_PROGRAM, "compile spec 'weight_streaming_budget'", "expected");
  expect_refused(&nul, TANDEM_BAD_PROGRAM, "compile spec 'weight_streaming_budget'", "expected");
  expect_refused(&no_name, TANDEM_BAD_PROGRAM, "compile spec 0", "name");
  expect_refused(&no_value, TANDEM_BAD_PROGRAM, "compile spec 0", "value");
}

static void an_empty_budget_of_a_load_is_ignored_with_a_line(void **state) {
  (void)state;
  struct request request = with_option("weight_streaming_budget", "");
  forget_lines();
  assert_int_equal(resolved(&request).weight_streaming_budget, -1);
  assert_int_equal(seen_count, 1);
  assert_non_null(strstr(seen, "weight_streaming_budget"));
  request.specs[0] = (struct tandem_spec){"weight_streaming_budget", "5", 1};
  request.spec_count = 1;
  assert_int_equal(resolved(&request).weight_streaming_budget, 5);
  request.options[1] = (struct tandem_option){"weight_streaming_budget", "6"};
  request.option_count = 2;
  expect_refused(&request, TANDEM_BAD_OPTION, "weight_streaming_budget", "twice");
  expect_process_refused(NULL, "weight_streaming_budget", "", TANDEM_BAD_OPTION, "weight_streaming_budget");
}

static void an_unknown_compile_spec_is_reported_once_and_ignored(void **state) {
  (void)state;
  struct request request = {.specs = {{"method_name", "forward", 7},
                                      {"method_name", "x", 1},
                                      {"partition", "y", 1},
                                      {"south_text", "z", 1}},
                            .spec_count = 4};
  struct td_options options;
  struct tandem_load_desc desc = {.compile_specs = request.specs, .compile_spec_count = 4};
  forget_lines();
  /* Where no line can be taken, none is used up. */
  assert_int_equal(td_options_resolve(north, &desc, NULL, &options, NULL), TANDEM_OK);
  assert_int_equal(seen_count, 0);
  resolved(&request);
  assert_int_equal(seen_count, 3);
  assert_int_equal(seen_level, TANDEM_LOG_WARNING);
  assert_non_null(strstr(seen, "method_name"));
  assert_non_null(strstr(seen, "partition"));
  assert_non_null(strstr(seen, "south_text"));
  resolved(&request);
  assert_int_equal(seen_count, 3);
}

static void an_exporter_s_own_compile_spec_is_no_warning(void **state) {
  (void)state;
  struct request request = with_spec("exporter_s_own", "forward");
  forget_lines();
  request.vendor = south;
  resolved(&request);
  assert_int_equal(seen_count, 1);
  assert_int_equal(seen_level, TANDEM_LOG_DEBUG);
  assert_non_null(strstr(seen, "exporter_s_own"));
  request.vendor = north; /* to which it is as unknown as before */
  resolved(&request);
  assert_int_equal(seen_count, 2);
  assert_int_equal(seen_level, TANDEM_LOG_WARNING);
}

static void reports_of_unknown_compile_specs_are_bounded(void **state) {
  (void)state;
  forget_lines();
  uint64_t live = td_memory_live();
  for (int i = 0; i < 500; i++) {
    char name[16];
    snprintf(name, sizeof(name), "spec_%d", i);
    struct request request = with_spec(name, "1");
    resolved(&request);
  }
  assert_true(seen_count > 10);
  assert_true(seen_count <= 64);
  assert_int_equal(td_memory_live(), live);
}

/* ---- the process */

static void a_backend_s_setting_hides_the_one_for_all(void **state) {
  (void)state;
  set_process("north", "trust_domain", "n");
  set_process(NULL, "trust_domain", "all");
  expect_read("north", "trust_domain", "n");
  expect_read("south", "trust_domain", "all");
  expect_read(NULL, "trust_domain", "all");
  set_process("NorthBackend", "trust_domain", NULL);
  expect_read("north", "trust_domain", "all");
  set_process("south", "trust_domain", "s");
  expect_read("south", "trust_domain", "s");
  expect_read("north", "trust_domain", "all");
  set_process("south", "trust_domain", NULL);
  set_process(NULL, "trust_domain", NULL);
  expect_read("south", "trust_domain", "");
}

static void settings_do_not_grow_with_use(void **state) {
  (void)state;
  set_process(NULL, "profile", "1");
  set_process("north", "profile", "2");
  uint64_t live = td_memory_live();
  for (int i = 0; i < 100; i++) {
    set_process(NULL, "profile", i % 2 ? "3" : "4");
    set_process("north", "profile", "5");
  }
  assert_int_equal(td_memory_live(), live);
  expect_read("south", "profile", "3");
  set_process(NULL, "profile", NULL);
  set_process("north", "profile", NULL);
  set_process("north", "profile", NULL);
  assert_int_equal(td_memory_live(), live - 2);
}

static void settings_without_memory_change_nothing(void **state) {
  (void)state;
  set_process(NULL, "profile", "1");
  td_memory_fail_at(1);
  expect_process_refused(NULL, "profile", "2", TANDEM_OUT_OF_MEMORY, "profile");
  td_memory_fail_at(0);
  expect_read("north", "profile", "1");
  set_process(NULL, "profile", NULL);
}

static void a_name_is_known_or_not_whatever_the_environment_says(void **state) {
  (void)state;
  for (int malformed = 0; malformed < 2; malformed++) {
    if (malformed) {
      setenv("TANDEM_OPT_USE_SHARED_ENGINES", "maybe", 1);
      setenv("TANDEM_OPT_PROFILE", "x", 1);
    }
    assert_true(tandem_option_known("north", "use_shared_engines"));
    assert_true(tandem_option_known("north", "use_cuda_graphs")); /* upstream's spelling */
    assert_true(tandem_option_known("NorthBackend", "north_text"));
    assert_false(tandem_option_known("south", "north_text"));
    assert_false(tandem_option_known("north", "nonsense"));
    assert_false(tandem_option_known("north", ""));
    assert_false(tandem_option_known("WestBackend", "profile"));
    assert_false(tandem_option_known(NULL, "profile"));
    assert_false(tandem_option_known("north", NULL));
  }
  unsetenv("TANDEM_OPT_USE_SHARED_ENGINES");
  unsetenv("TANDEM_OPT_PROFILE");
}

static void a_value_with_line_breaks_is_refused_in_one_line(void **state) {
  (void)state;
  struct tandem_error error;
  assert_int_equal(tandem_set_option("north", "profile", "1\nforged: all is well\r\n", &error),
                   TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "forged"));
  assert_null(strpbrk(error.message, "\r\n"));
  assert_int_equal(tandem_set_option("north", "no\nsense", "1", &error), TANDEM_BAD_OPTION);
  assert_null(strpbrk(error.message, "\r\n"));
}

static void an_unknown_backend_is_not_found(void **state) {
  (void)state;
  char value[8];
  struct tandem_error error;
  expect_process_refused("WestBackend", "profile", "1", TANDEM_NOT_FOUND, "WestBackend");
  assert_int_equal(tandem_get_option("WestBackend", "profile", value, sizeof(value), &error),
                   TANDEM_NOT_FOUND);
}

static void a_value_is_read_whole_or_not_at_all(void **state) {
  (void)state;
  char value[8] = "old";
  struct tandem_error error;
  assert_int_equal(tandem_get_option("north", "north_text", value, 6, &error), TANDEM_OK);
  assert_string_equal(value, "plain");
  assert_int_equal(tandem_get_option("north", "north_text", value, 5, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "6"));
  assert_string_equal(value, "");
  assert_int_equal(tandem_get_option("north", "north_text", value, 0, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_get_option("north", "north_text", NULL, 8, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_get_option("north", NULL, value, 8, &error), TANDEM_BAD_OPTION);
  assert_int_equal(tandem_get_option("north", "nonsense", value, 8, &error), TANDEM_BAD_OPTION);
  assert_int_equal(tandem_get_option(NULL, "nonsense", value, 8, &error), TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "docs/options.md"));
  assert_int_equal(tandem_get_option(NULL, "north_text", value, 8, &error), TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "'north_text' is a backend's own: say of which, for example North"));
  td_memory_fail_at(1);
  assert_int_equal(tandem_get_option("north", "profile", value, 8, &error), TANDEM_OUT_OF_MEMORY);
  td_memory_fail_at(0);
  setenv("TANDEM_OPT_PROFILE", "x", 1);
  assert_int_equal(tandem_get_option("north", "identity", value, 8, &error), TANDEM_BAD_OPTION);
  assert_non_null(strstr(error.message, "TANDEM_OPT_PROFILE"));
  unsetenv("TANDEM_OPT_PROFILE");
}

static void a_load_without_memory_is_refused(void **state) {
  (void)state;
  struct td_options options;
  struct tandem_load_desc desc = {.struct_size = sizeof(desc)};
  uint64_t live = td_memory_live();
  td_memory_fail_at(1);
  assert_int_equal(td_options_resolve(north, &desc, NULL, &options, NULL), TANDEM_OUT_OF_MEMORY);
  td_memory_fail_at(0);
  assert_int_equal(td_memory_live(), live);
}

/* ---- scopes */

static void the_inner_scope_wins_until_it_is_released(void **state) {
  (void)state;
  char key[] = "north_text", text[] = "outer";
  struct tandem_option options[] = {{key, text}, {"profile", "7"}};
  struct tandem_scope *outer, *empty;
  uint64_t live = td_memory_live();
  assert_int_equal(tandem_scope_acquire(options, 2, &outer, NULL), TANDEM_OK);
  memset(text, 'x', 5); /* the scope has its own copy */
  key[0] = 'x';
  assert_int_equal(tandem_scope_acquire(NULL, 0, &empty, NULL), TANDEM_OK);
  struct tandem_scope *inner = enter("north_text", "inner");
  expect_read("north", "north_text", "inner");
  expect_read("north", "profile", "7");
  tandem_scope_release(inner);
  expect_read("north", "north_text", "outer");
  tandem_scope_release(empty);
  tandem_scope_release(outer);
  tandem_scope_release(NULL);
  expect_read("north", "north_text", "plain");
  assert_int_equal(td_memory_live(), live);
}

static void scopes_released_in_the_wrong_order_do_no_harm(void **state) {
  (void)state;
  uint64_t live = td_memory_live();
  struct tandem_scope *outer = enter("profile", "1"), *inner = enter("identity", "fast");
  tandem_scope_release(outer);
  expect_read("north", "profile", "0");
  expect_read("north", "identity", "fast");
  tandem_scope_release(inner);
  expect_read("north", "identity", "keyed");
  assert_int_equal(td_memory_live(), live);
}

static void release_elsewhere(void *scope) {
  tandem_scope_release(scope);
}

static void a_scope_released_on_another_thread_ends_too(void **state) {
  (void)state;
  uint64_t live = td_memory_live();
  struct tandem_scope *outer = enter("profile", "1"), *inner = enter("log_level", "debug"),
                      *innermost = enter("identity", "fast");
  struct td_thread thread;
  assert_true(td_thread_start(&thread, release_elsewhere, inner));
  td_thread_join(&thread);
  assert_int_equal(td_options_log_level(), TANDEM_LOG_WARNING);
  expect_read("north", "log_level", "warning");
  expect_read("north", "identity", "fast");
  expect_read("north", "profile", "1");
  assert_true(td_thread_start(&thread, release_elsewhere, innermost));
  td_thread_join(&thread);
  struct tandem_scope *next = enter("north_text", "next");
  expect_read("north", "identity", "keyed");
  tandem_scope_release(next);
  tandem_scope_release(outer);
  assert_int_equal(td_memory_live(), live);
}

static void read_profile(void *value) {
  tandem_get_option("north", "profile", value, 8, NULL);
}

static void a_scope_is_its_thread_s_alone(void **state) {
  (void)state;
  char value[8] = "";
  struct tandem_scope *scope = enter("profile", "1");
  struct td_thread thread;
  assert_true(td_thread_start(&thread, read_profile, value));
  td_thread_join(&thread);
  assert_string_equal(value, "0");
  tandem_scope_release(scope);
}

static void a_scope_that_is_refused_applies_nothing(void **state) {
  (void)state;
  struct tandem_option options[] = {{"profile", "1"}, {"identity", "quick"}};
  expect_scope_refused(options, 2, TANDEM_BAD_OPTION, "identity");
  expect_read("north", "profile", "0");
  td_memory_fail_at(1);
  expect_scope_refused(options, 1, TANDEM_OUT_OF_MEMORY, "memory");
  td_memory_fail_at(0);
  expect_read("north", "profile", "0");
}

/* ---- the level of lines that belong to no load */

static void the_level_of_other_lines_follows_the_sources(void **state) {
  (void)state;
  assert_int_equal(td_options_log_level(), TANDEM_LOG_WARNING);
  setenv("TANDEM_OPT_LOG_LEVEL", "loud", 1);
  assert_int_equal(td_options_log_level(), TANDEM_LOG_WARNING);
  setenv("TANDEM_OPT_LOG_LEVEL", "info", 1);
  assert_int_equal(td_options_log_level(), TANDEM_LOG_INFO);
  set_process("north", "log_level", "debug");
  assert_int_equal(td_options_log_level(), TANDEM_LOG_INFO);
  set_process(NULL, "log_level", "error");
  assert_int_equal(td_options_log_level(), TANDEM_LOG_ERROR);
  struct tandem_scope *scope = enter("log_level", "debug"), *other = enter("profile", "1");
  assert_int_equal(td_options_log_level(), TANDEM_LOG_DEBUG);
  tandem_scope_release(other);
  tandem_scope_release(scope);
  set_process(NULL, "log_level", NULL);
  set_process("north", "log_level", NULL);
  unsetenv("TANDEM_OPT_LOG_LEVEL");
}

/* ---- threads and fork */

static _Atomic bool stop;
static _Atomic int wrong;

static void set_for_ever(void *unused) {
  (void)unused;
  for (int i = 0; !atomic_load(&stop); i++)
    if (tandem_set_option(i % 2 ? "north" : NULL, "trust_domain",
                          i % 3 ? "aaaaaaaaaaaaaaaa" : "bbbbbbbbbbbbbbbb", NULL) != TANDEM_OK)
      atomic_fetch_add(&wrong, 1);
}

static void a_value_is_never_torn(void **state) {
  (void)state;
  struct td_thread threads[2];
  atomic_store(&stop, false);
  set_process(NULL, "trust_domain", "aaaaaaaaaaaaaaaa");
  for (int i = 0; i < 2; i++)
    assert_true(td_thread_start(&threads[i], set_for_ever, NULL));
  for (int i = 0; i < 2000; i++) {
    struct td_options options = resolved(&(struct request){0});
    assert_true(strcmp(options.trust_domain, "aaaaaaaaaaaaaaaa") == 0 ||
                strcmp(options.trust_domain, "bbbbbbbbbbbbbbbb") == 0);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++)
    td_thread_join(&threads[i]);
  assert_int_equal(atomic_load(&wrong), 0);
  set_process(NULL, "trust_domain", NULL);
  set_process("north", "trust_domain", NULL);
}

/* As the pool does it: looking a backend up takes the registry's lock. */
static void lock_both(void) {
  td_vendor_fork_lock();
  td_options_fork_lock();
}

static void unlock_both(void) {
  td_options_fork_unlock();
  td_vendor_fork_unlock();
}

static void a_child_finds_the_options_usable(void **state) {
  (void)state;
  struct td_thread thread;
  td_fork_handlers(lock_both, unlock_both, unlock_both);
  set_process(NULL, "profile", "9");
  atomic_store(&stop, false);
  assert_true(td_thread_start(&thread, set_for_ever, NULL));
  for (int round = 0; round < 50; round++) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
      char value[8];
      alarm(60);
      _exit(tandem_get_option("north", "profile", value, sizeof(value), NULL) == TANDEM_OK &&
                    strcmp(value, "9") == 0
                ? 0
                : 1);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
  atomic_store(&stop, true);
  td_thread_join(&thread);
  for (int i = 0; i < 2; i++) {
    set_process(i ? "north" : NULL, "trust_domain", NULL);
    set_process(NULL, "profile", NULL);
  }
}

static int register_vendors(void **state) {
  (void)state;
  south_table = north_table;
  south_table.name = "south";
  south_table.backend = "SouthBackend";
  south_table.options = south_options;
  south_table.option_count = COUNT(south_options);
  south_table.flags = TANDEM_VENDOR_HAS_EXPORTER_SPECS;
  tandem_set_log_sink(see_line, NULL);
  return tandem_vendor_register(&north_table, NULL) || tandem_vendor_register(&south_table, NULL) ||
         td_vendor_find("north", &north, NULL) || td_vendor_find("south", &south, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_any_source_every_option_has_its_default),
      cmocka_unit_test(the_stronger_source_wins_for_every_option),
      cmocka_unit_test(an_explicit_false_of_the_process_overrides_a_compile_spec),
      cmocka_unit_test(upstream_s_spellings_are_the_same_options),
      cmocka_unit_test(malformed_values_are_refused_wherever_they_are_given),
      cmocka_unit_test(a_weaker_malformed_value_is_refused_although_a_stronger_one_hides_it),
      cmocka_unit_test(unknown_names_are_refused_where_tandem_is_asked),
      cmocka_unit_test(an_option_without_name_or_value_is_refused),
      cmocka_unit_test(a_name_given_twice_is_refused),
      cmocka_unit_test(arrays_that_are_not_there_are_refused),
      cmocka_unit_test(the_environment_is_read_as_it_stands),
      cmocka_unit_test(another_vendor_s_option_is_an_error_of_a_load_only),
      cmocka_unit_test(a_name_that_two_vendors_share_is_checked_by_each),
      cmocka_unit_test(a_vendor_gets_its_values_in_its_order_and_in_one_form),
      cmocka_unit_test(numbers_are_decimal_digits_within_their_range),
      cmocka_unit_test(a_text_has_room_for_255_bytes),
      cmocka_unit_test(every_log_level_has_its_word),
      cmocka_unit_test(a_compile_spec_need_not_end_in_nul),
      cmocka_unit_test(a_malformed_compile_spec_is_a_bad_program),
      cmocka_unit_test(an_empty_budget_of_a_load_is_ignored_with_a_line),
      cmocka_unit_test(an_unknown_compile_spec_is_reported_once_and_ignored),
      cmocka_unit_test(an_exporter_s_own_compile_spec_is_no_warning),
      cmocka_unit_test(reports_of_unknown_compile_specs_are_bounded),
      cmocka_unit_test(a_backend_s_setting_hides_the_one_for_all),
      cmocka_unit_test(settings_do_not_grow_with_use),
      cmocka_unit_test(settings_without_memory_change_nothing),
      cmocka_unit_test(a_name_is_known_or_not_whatever_the_environment_says),
      cmocka_unit_test(a_value_with_line_breaks_is_refused_in_one_line),
      cmocka_unit_test(an_unknown_backend_is_not_found),
      cmocka_unit_test(a_value_is_read_whole_or_not_at_all),
      cmocka_unit_test(a_load_without_memory_is_refused),
      cmocka_unit_test(the_inner_scope_wins_until_it_is_released),
      cmocka_unit_test(scopes_released_in_the_wrong_order_do_no_harm),
      cmocka_unit_test(a_scope_released_on_another_thread_ends_too),
      cmocka_unit_test(a_scope_is_its_thread_s_alone),
      cmocka_unit_test(a_scope_that_is_refused_applies_nothing),
      cmocka_unit_test(the_level_of_other_lines_follows_the_sources),
      cmocka_unit_test(a_value_is_never_torn),
      cmocka_unit_test(a_child_finds_the_options_usable),
  };
  return cmocka_run_group_tests(tests, register_vendors, NULL) ? 1 : 0;
}
