/* Options: the one table of tandem's own, and the one place where precedence is decided.
 *
 * A load's value is the one of the strongest source that gives it: load, scope of the thread, compile spec of
 * the program, process (for this backend over for all), environment, default. The sources are applied from
 * the weakest to the strongest, so a malformed value is refused even where a stronger one would hide it:
 * otherwise it would start to hurt on the day that the stronger one is taken away.
 * One exception, for operators: an explicit false of the process for a feature switch (TANDEM's OPERATOR
 * rows) also overrides a compile spec, so that a feature can be switched off without a new export.
 *
 * A vendor's options stand after tandem's own in the same numbering. A name that only another vendor knows is
 * fine where it was meant for all loads (scope, process, environment) and simply does not reach this load.
 * Values are kept in canonical text, so "1" and "true", "08" and "8" are one setting.
 *
 * The lock guards the process's settings and the names already reported, and nests in nothing: vendors are
 * looked up and messages written outside it. The scopes of a thread are reached by that thread alone.
 */
#include "base.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the table */

struct row {
  const char *name;
  const char *alias; /* upstream's spelling, or NULL */
  const char *fallback;
  enum tandem_option_kind kind;
  const char *choices;
  uint64_t max;      /* of a COUNT */
  bool or_auto;      /* a COUNT may be "auto" */
  bool or_nothing;   /* an empty value in a load's own options is ignored with a line */
  bool hex;          /* a TEXT of 64 hex digits, lower-cased */
  bool operator_off; /* the process's explicit false overrides a compile spec */
};

enum core_option {
  USE_SHARED_ENGINES,
  WEIGHT_STREAMING_BUDGET,
  SHARE_ACROSS_BUDGETS,
  SHARE_SCRATCH,
  CUDA_GRAPH,
  FLIGHT_TIMEOUT_MS,
  IDENTITY,
  PAYLOAD_BYTES,
  TRUST_DOMAIN,
  EXPECT_SHA256,
  PROFILE,
  LOG_LEVEL,
  CORE_COUNT,
};

/* So that a deadline in nanoseconds cannot overflow: 292 years. */
#define TIMEOUT_MAX_MS (UINT64_C(9223372036854775807) / 1000000)

static const struct row core[CORE_COUNT] = {
    [USE_SHARED_ENGINES] = {.name = "use_shared_engines",
                            .kind = TANDEM_OPTION_BOOL,
                            .fallback = "true",
                            .operator_off = true},
    [WEIGHT_STREAMING_BUDGET] = {.name = "weight_streaming_budget",
                                 .kind = TANDEM_OPTION_COUNT,
                                 .max = INT64_MAX,
                                 .or_auto = true,
                                 .or_nothing = true,
                                 .fallback = "auto"},
    [SHARE_ACROSS_BUDGETS] = {.name = "share_across_budgets",
                              .kind = TANDEM_OPTION_BOOL,
                              .fallback = "false"},
    [SHARE_SCRATCH] = {.name = "share_scratch",
                       .alias = "use_shared_activation_scratch",
                       .kind = TANDEM_OPTION_BOOL,
                       .fallback = "true",
                       .operator_off = true},
    [CUDA_GRAPH] = {.name = "cuda_graph",
                    .alias = "use_cuda_graphs",
                    .kind = TANDEM_OPTION_BOOL,
                    .fallback = "false",
                    .operator_off = true},
    [FLIGHT_TIMEOUT_MS] = {.name = "flight_timeout_ms",
                           .kind = TANDEM_OPTION_COUNT,
                           .max = TIMEOUT_MAX_MS,
                           .fallback = "0"},
    [IDENTITY] = {.name = "identity",
                  .kind = TANDEM_OPTION_CHOICE,
                  .choices = "keyed|fast",
                  .fallback = "keyed"},
    [PAYLOAD_BYTES] = {.name = "payload_bytes",
                       .kind = TANDEM_OPTION_CHOICE,
                       .choices = "map|copy",
                       .fallback = "map"},
    [TRUST_DOMAIN] = {.name = "trust_domain", .kind = TANDEM_OPTION_TEXT, .fallback = ""},
    [EXPECT_SHA256] = {.name = "expect_sha256", .kind = TANDEM_OPTION_TEXT, .hex = true, .fallback = ""},
    [PROFILE] =
        {.name = "profile", .kind = TANDEM_OPTION_COUNT, .max = INT32_MAX, .or_auto = true, .fallback = "0"},
    [LOG_LEVEL] = {.name = "log_level",
                   .kind = TANDEM_OPTION_CHOICE,
                   .choices = "error|warning|info|debug",
                   .fallback = "warning"},
};

enum { ROWS_MAX = CORE_COUNT + TD_VENDOR_OPTIONS_MAX, HEX_DIGITS = 64, NO_ROW = -1 };

/* `vendor` may be NULL: then there are only tandem's own. */
static int row_count(const struct tandem_vendor *vendor) {
  return CORE_COUNT + (vendor ? (int)vendor->option_count : 0);
}

static struct row row_at(const struct tandem_vendor *vendor, int index) {
  if (index < CORE_COUNT)
    return core[index];
  const struct tandem_vendor_option *option = &vendor->options[index - CORE_COUNT];
  return (struct row){.name = option->name,
                      .fallback = option->fallback ? option->fallback : "",
                      .kind = option->kind,
                      .choices = option->choices,
                      .max = INT32_MAX};
}

static int find_row(const struct tandem_vendor *vendor, const char *name) {
  for (int i = 0; i < row_count(vendor); i++) {
    struct row row = row_at(vendor, i);
    if (strcmp(row.name, name) == 0 || (row.alias && strcmp(row.alias, name) == 0))
      return i;
  }
  return NO_ROW;
}

/* ---------------------------------------------------------------- values */

static bool is_text(const char *value, size_t size, const char *text) {
  return strlen(text) == size && memcmp(text, value, size) == 0;
}

static bool is_choice(const char *choices, const char *value, size_t size) {
  for (const char *choice = choices; choice;) {
    size_t length = strcspn(choice, "|");
    if (length == size && memcmp(choice, value, size) == 0)
      return true;
    choice = choice[length] ? choice + length + 1 : NULL;
  }
  return false;
}

static bool parse_count(const char *value, size_t size, uint64_t max, uint64_t *count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < size; i++) {
    if (value[i] < '0' || value[i] > '9')
      return false;
    uint64_t digit = (uint64_t)(value[i] - '0');
    if (sum > (max - digit) / 10)
      return false;
    sum = sum * 10 + digit;
  }
  *count = sum;
  return size > 0;
}

static bool parse_hex(const char *value, size_t size, char canonical[TD_OPTION_VALUE_MAX]) {
  if (size != HEX_DIGITS)
    return false;
  for (size_t i = 0; i < size; i++) {
    if (!isxdigit((unsigned char)value[i]))
      return false;
    canonical[i] = (char)tolower((unsigned char)value[i]);
  }
  canonical[size] = '\0';
  return true;
}

/* Writes the value's canonical text; false when it is malformed. `value` need not end in NUL. */
static bool check_value(const struct row *row, const char *value, size_t size,
                        char canonical[TD_OPTION_VALUE_MAX]) {
  uint64_t count;
  if (size >= TD_OPTION_VALUE_MAX || (size > 0 && memchr(value, '\0', size)))
    return false;
  switch (row->kind) {
  case TANDEM_OPTION_BOOL:
    if (is_text(value, size, "true") || is_text(value, size, "1"))
      strcpy(canonical, "true");
    else if (is_text(value, size, "false") || is_text(value, size, "0"))
      strcpy(canonical, "false");
    else
      return false;
    return true;
  case TANDEM_OPTION_COUNT:
    if (row->or_auto && is_text(value, size, "auto"))
      strcpy(canonical, "auto");
    else if (parse_count(value, size, row->max, &count))
      snprintf(canonical, TD_OPTION_VALUE_MAX, "%" PRIu64, count);
    else
      return false;
    return true;
  case TANDEM_OPTION_CHOICE:
    if (!is_choice(row->choices, value, size))
      return false;
    break;
  case TANDEM_OPTION_TEXT:
    if (row->hex)
      return parse_hex(value, size, canonical);
    break;
  }
  if (size > 0)
    memcpy(canonical, value, size);
  canonical[size] = '\0';
  return true;
}

static void describe_values(const struct row *row, char *text, size_t size) {
  switch (row->kind) {
  case TANDEM_OPTION_BOOL:
    snprintf(text, size, "true, false, 1 or 0");
    return;
  case TANDEM_OPTION_COUNT:
    snprintf(text, size, "%sdecimal digits up to %" PRIu64, row->or_auto ? "auto or " : "", row->max);
    return;
  case TANDEM_OPTION_CHOICE:
    snprintf(text, size, "one of %s", row->choices);
    return;
  case TANDEM_OPTION_TEXT:
    break;
  }
  if (row->hex)
    snprintf(text, size, "%d hex digits", HEX_DIGITS);
  else
    snprintf(text, size, "text of at most %d bytes without NUL", TD_OPTION_VALUE_MAX - 1);
}

/* ---------------------------------------------------------------- errors */

/* From the weakest to the strongest. */
enum source {
  SOURCE_DEFAULT,
  SOURCE_ENVIRONMENT,
  SOURCE_PROCESS,
  SOURCE_SPEC,
  SOURCE_SCOPE,
  SOURCE_LOAD,
};

static const char *const source_words[] = {
    [SOURCE_DEFAULT] = "option",         [SOURCE_ENVIRONMENT] = "environment option",
    [SOURCE_PROCESS] = "process option", [SOURCE_SPEC] = "compile spec",
    [SOURCE_SCOPE] = "scope option",     [SOURCE_LOAD] = "load option",
};

enum { SPELLING_MAX = 128 };

/* The name as the source spells it: TANDEM_OPT_CUDA_GRAPH in the environment. */
static const char *spell(enum source source, const char *name, char text[SPELLING_MAX]) {
  if (source != SOURCE_ENVIRONMENT) {
    snprintf(text, SPELLING_MAX, "%s", name);
    return text;
  }
  snprintf(text, SPELLING_MAX, "TANDEM_OPT_%s", name);
  for (char *letter = text; *letter; letter++)
    *letter = (char)toupper((unsigned char)*letter);
  return text;
}

static enum tandem_status status_of(enum source source) {
  return source == SOURCE_SPEC ? TANDEM_BAD_PROGRAM : TANDEM_BAD_OPTION;
}

static enum tandem_status fail_value(struct tandem_error *error, enum source source, const struct row *row,
                                     const char *value, size_t size) {
  char expected[160], name[SPELLING_MAX];
  describe_values(row, expected, sizeof(expected));
  int shown = size < 64 ? (int)size : 64;
  return td_fail(error, status_of(source), "%s '%s': expected %s, found '%.*s'%s (%zu bytes)",
                 source_words[source], spell(source, row->name, name), expected, shown, shown ? value : "",
                 (size_t)shown < size ? "..." : "", size);
}

static enum tandem_status fail_twice(struct tandem_error *error, enum source source, const char *name,
                                     const char *spelling) {
  char first[SPELLING_MAX], again[SPELLING_MAX];
  bool alias = strcmp(name, spelling) != 0;
  return td_fail(error, status_of(source), "%s '%s' is given twice%s%s%s; give it once", source_words[source],
                 spell(source, name, first), alias ? ", one spelling is '" : "",
                 alias ? spell(source, spelling, again) : "", alias ? "'" : "");
}

static enum tandem_status fail_unknown(struct tandem_error *error, enum source source,
                                       const struct tandem_vendor *vendor, const char *name) {
  char known[640];
  size_t length = 0;
  for (int i = 0; i < row_count(vendor); i++) {
    int more =
        snprintf(known + length, sizeof(known) - length, "%s%s", i ? ", " : "", row_at(vendor, i).name);
    if (more < 0 || (size_t)more >= sizeof(known) - length)
      break;
    length += (size_t)more;
  }
  known[length] = '\0';
  return td_fail(error, status_of(source), "%s '%.128s' is unknown%s%s; known are %s%s%s",
                 source_words[source], name, vendor ? " to backend " : "", vendor ? vendor->backend : "",
                 known, vendor ? "" : " and the vendors' own (docs/options.md)",
                 source == SOURCE_ENVIRONMENT ? ", in capitals as in TANDEM_OPT_LOG_LEVEL" : "");
}

/* A setting that is to reach every backend that has it: some backend must know the name and accept the value.
 * *name is the constant that the table or the vendor spells it with. */
static enum tandem_status check_anywhere(enum source source, const char *key, const char *value,
                                         const char **name, struct tandem_error *error) {
  char canonical[TD_OPTION_VALUE_MAX];
  struct row refused = {.name = NULL};
  size_t size = value ? strlen(value) : 0;
  const struct tandem_vendor *vendor = NULL;
  for (size_t i = 0; !i || vendor; i++) {
    int index = find_row(vendor, key);
    if (index != NO_ROW) {
      struct row row = row_at(vendor, index);
      *name = row.name;
      if (!value || check_value(&row, value, size, canonical))
        return TANDEM_OK;
      refused = row;
    }
    vendor = td_vendor_at(i);
  }
  return refused.name ? fail_value(error, source, &refused, value, size)
                      : fail_unknown(error, source, NULL, key);
}

/* ---------------------------------------------------------------- the process's settings */

enum { SPECS_REPORTED_MAX = 64 };

struct setting {
  struct setting *next;
  const struct tandem_vendor *vendor; /* NULL: every backend */
  const char *name;                   /* borrowed from the table or the vendor, for the life of the process */
  char value[TD_OPTION_VALUE_MAX];
};

static struct td_mutex options_lock;
static struct setting *settings; /* owned; guarded by options_lock; at most one a backend and option */
static uint64_t specs_reported[SPECS_REPORTED_MAX]; /* hashes of names; guarded by options_lock */
static size_t specs_reported_count;                 /* guarded by options_lock */

static struct setting **find_setting_locked(const struct tandem_vendor *vendor, const char *name) {
  struct setting **place = &settings;
  while (*place && ((*place)->vendor != vendor || strcmp((*place)->name, name) != 0))
    place = &(*place)->next;
  return place;
}

static enum tandem_status set_option(const char *backend, const char *key, const char *value,
                                     struct tandem_error *error) {
  const struct tandem_vendor *vendor = NULL;
  struct setting *fresh = NULL, *unused;
  const char *name = NULL;
  if (!key)
    return td_fail(error, TANDEM_BAD_OPTION, "a process option has no name");
  enum tandem_status status = backend ? td_vendor_find(backend, &vendor, error) : TANDEM_OK;
  if (status != TANDEM_OK)
    return status;

  if (vendor) {
    int index = find_row(vendor, key);
    if (index == NO_ROW)
      return fail_unknown(error, SOURCE_PROCESS, vendor, key);
    struct row row = row_at(vendor, index);
    char canonical[TD_OPTION_VALUE_MAX];
    if (value && !check_value(&row, value, strlen(value), canonical))
      return fail_value(error, SOURCE_PROCESS, &row, value, strlen(value));
    name = row.name;
  } else {
    status = check_anywhere(SOURCE_PROCESS, key, value, &name, error);
    if (status != TANDEM_OK)
      return status;
  }

  if (value) {
    fresh = td_alloc(sizeof(*fresh));
    if (!fresh)
      return td_fail(error, TANDEM_OUT_OF_MEMORY, "out of host memory for the process option '%s'", name);
    fresh->vendor = vendor;
    fresh->name = name;
    snprintf(fresh->value, sizeof(fresh->value), "%s", value);
  }
  td_mutex_lock(&options_lock);
  struct setting **place = find_setting_locked(vendor, name);
  unused = *place;
  if (unused)
    *place = unused->next;
  if (fresh) {
    fresh->next = settings;
    settings = fresh;
  }
  td_mutex_unlock(&options_lock);
  td_free(unused);
  td_clear(error);
  return TANDEM_OK;
}

enum tandem_status tandem_set_option(const char *backend, const char *key, const char *value,
                                     struct tandem_error *error) {
  int state = td_cancel_disable();
  enum tandem_status status = set_option(backend, key, value, error);
  td_cancel_restore(state);
  return status;
}

void td_options_fork_lock(void) {
  td_mutex_lock(&options_lock);
}

void td_options_fork_unlock(void) {
  td_mutex_unlock(&options_lock);
}

/* ---------------------------------------------------------------- scopes */

struct scope_value {
  const char *name; /* as in struct setting */
  char value[TD_OPTION_VALUE_MAX];
};

struct tandem_scope {
  struct tandem_scope *outer;
  _Atomic bool released; /* by another thread; the owner frees it */
  size_t count;
  struct scope_value values[];
};

static _Thread_local struct tandem_scope *innermost;

/* A scope given back on another thread (a generator that a garbage collector closes) still hangs in its own
 * thread's list, which only that thread may touch: it is taken out here. */
static void drop_released(void) {
  for (struct tandem_scope **place = &innermost; *place;) {
    struct tandem_scope *scope = *place;
    if (atomic_load(&scope->released)) {
      *place = scope->outer;
      td_free(scope);
    } else {
      place = &scope->outer;
    }
  }
}

static enum tandem_status fill_scope(struct tandem_scope *scope, const struct tandem_option *options,
                                     size_t count, struct tandem_error *error) {
  for (size_t i = 0; i < count; i++) {
    struct scope_value *value = &scope->values[i];
    if (!options[i].key || !options[i].value)
      return td_fail(error, TANDEM_BAD_OPTION, "scope option %zu%s%s%s has no %s", i,
                     options[i].key ? " ('" : "", options[i].key ? options[i].key : "",
                     options[i].key ? "')" : "", options[i].key ? "value" : "name");
    enum tandem_status status =
        check_anywhere(SOURCE_SCOPE, options[i].key, options[i].value, &value->name, error);
    if (status != TANDEM_OK)
      return status;
    for (size_t k = 0; k < i; k++)
      if (strcmp(scope->values[k].name, value->name) == 0)
        return fail_twice(error, SOURCE_SCOPE, value->name, options[i].key);
    snprintf(value->value, sizeof(value->value), "%s", options[i].value);
  }
  return TANDEM_OK;
}

static enum tandem_status acquire_scope(const struct tandem_option *options, size_t count,
                                        struct tandem_scope **scope, struct tandem_error *error) {
  if (!scope)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "a scope has nowhere to go: scope is NULL");
  *scope = NULL;
  if (!options && count > 0)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "%zu scope options at NULL", count);
  struct tandem_scope *made = NULL;
  if (count <= (SIZE_MAX - sizeof(*made)) / sizeof(made->values[0]))
    made = td_alloc(sizeof(*made) + count * sizeof(made->values[0]));
  if (!made)
    return td_fail(error, TANDEM_OUT_OF_MEMORY, "out of host memory for %zu scope options", count);
  made->count = count;
  enum tandem_status status = fill_scope(made, options, count, error);
  if (status != TANDEM_OK) {
    td_free(made);
    return status;
  }
  drop_released();
  made->outer = innermost;
  innermost = made;
  *scope = made;
  td_clear(error);
  return TANDEM_OK;
}

enum tandem_status tandem_scope_acquire(const struct tandem_option *options, size_t count,
                                        struct tandem_scope **scope, struct tandem_error *error) {
  int state = td_cancel_disable();
  enum tandem_status status = acquire_scope(options, count, scope, error);
  td_cancel_restore(state);
  return status;
}

void tandem_scope_release(struct tandem_scope *scope) {
  if (!scope)
    return;
  int state = td_cancel_disable();
  struct tandem_scope **place = &innermost;
  while (*place && *place != scope)
    place = &(*place)->outer;
  if (*place) {
    *place = scope->outer;
    td_free(scope);
  } else {
    atomic_store(&scope->released, true);
  }
  td_cancel_restore(state);
}

/* ---------------------------------------------------------------- resolving */

struct value {
  char text[TD_OPTION_VALUE_MAX]; /* canonical, once its source has been applied */
  enum source source;
  bool for_backend; /* a process's value that was set for this backend alone */
  bool kept_off;    /* the process's explicit false: no compile spec changes it */
  bool in_spec, in_environment, in_load;
};

struct resolving {
  const struct tandem_vendor *vendor; /* NULL: tandem's own options only */
  struct value values[ROWS_MAX];
};

static enum tandem_status apply(struct resolving *resolving, enum source source, int index, const char *value,
                                size_t size, struct tandem_error *error) {
  char canonical[TD_OPTION_VALUE_MAX];
  struct value *target = &resolving->values[index];
  struct row row = row_at(resolving->vendor, index);
  if (!check_value(&row, value, size, canonical))
    return fail_value(error, source, &row, value, size);
  if (source == SOURCE_SPEC && target->kept_off)
    return TANDEM_OK;
  memcpy(target->text, canonical, sizeof(canonical));
  target->source = source;
  target->kept_off = source == SOURCE_PROCESS && row.operator_off && strcmp(canonical, "false") == 0;
  return TANDEM_OK;
}

static enum tandem_status apply_environment(struct resolving *resolving, struct tandem_error *error) {
  static const char prefix[] = "TANDEM_OPT_";
  for (char **entry = environ; entry && *entry; entry++) {
    if (strncmp(*entry, prefix, strlen(prefix)) != 0)
      continue;
    char name[64];
    const char *upper = *entry + strlen(prefix);
    size_t length = strcspn(upper, "=");
    bool shouted = length < sizeof(name);
    for (size_t i = 0; shouted && i < length; i++) {
      shouted = !islower((unsigned char)upper[i]);
      name[i] = (char)tolower((unsigned char)upper[i]);
    }
    name[shouted ? length : 0] = '\0';

    const char *known;
    int index = find_row(resolving->vendor, name);
    if (index == NO_ROW && check_anywhere(SOURCE_ENVIRONMENT, name, NULL, &known, NULL) != TANDEM_OK) {
      char shown[96];
      snprintf(shown, sizeof(shown), "TANDEM_OPT_%.*s", length < 80 ? (int)length : 80, upper);
      return fail_unknown(error, SOURCE_ENVIRONMENT, resolving->vendor, shown);
    }
    if (index == NO_ROW)
      continue;
    if (resolving->values[index].in_environment)
      return fail_twice(error, SOURCE_ENVIRONMENT, row_at(resolving->vendor, index).name, name);
    resolving->values[index].in_environment = true;
    const char *value = upper + length + (upper[length] == '=');
    enum tandem_status status = apply(resolving, SOURCE_ENVIRONMENT, index, value, strlen(value), error);
    if (status != TANDEM_OK)
      return status;
  }
  return TANDEM_OK;
}

static enum tandem_status apply_process(struct resolving *resolving, struct tandem_error *error) {
  /* Copied under the lock, checked outside it: a refusal writes a message. */
  struct {
    bool set, for_backend;
    char value[TD_OPTION_VALUE_MAX];
  } found[ROWS_MAX];
  for (int i = 0; i < ROWS_MAX; i++)
    found[i].set = found[i].for_backend = false;
  td_mutex_lock(&options_lock);
  for (const struct setting *setting = settings; setting; setting = setting->next) {
    if (setting->vendor && setting->vendor != resolving->vendor)
      continue;
    int index = find_row(resolving->vendor, setting->name);
    if (index == NO_ROW || found[index].for_backend)
      continue;
    found[index].set = true;
    found[index].for_backend = setting->vendor != NULL;
    memcpy(found[index].value, setting->value, sizeof(setting->value));
  }
  td_mutex_unlock(&options_lock);
  for (int i = 0; i < row_count(resolving->vendor); i++) {
    enum tandem_status status = TANDEM_OK;
    if (found[i].set)
      status = apply(resolving, SOURCE_PROCESS, i, found[i].value, strlen(found[i].value), error);
    if (status != TANDEM_OK)
      return status;
  }
  return TANDEM_OK;
}

/* True the first time in the process that `name` is seen, as long as there is room to remember it. */
static bool is_first_report(const char *name) {
  uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a */
  for (const char *byte = name; *byte; byte++)
    hash = (hash ^ (unsigned char)*byte) * UINT64_C(1099511628211);
  td_mutex_lock(&options_lock);
  bool first = specs_reported_count < SPECS_REPORTED_MAX;
  for (size_t i = 0; first && i < specs_reported_count; i++)
    first = specs_reported[i] != hash;
  if (first)
    specs_reported[specs_reported_count++] = hash;
  td_mutex_unlock(&options_lock);
  return first;
}

static enum tandem_status apply_specs(struct resolving *resolving, const struct tandem_load_desc *desc,
                                      struct td_lines *lines, struct tandem_error *error) {
  for (size_t i = 0; i < desc->compile_spec_count; i++) {
    const struct tandem_spec *spec = &desc->compile_specs[i];
    if (!spec->key || (!spec->value && spec->size > 0))
      return td_fail(error, TANDEM_BAD_PROGRAM, "compile spec %zu has no %s", i,
                     spec->key ? "value" : "name");
    int index = find_row(resolving->vendor, spec->key);
    if (index == NO_ROW) {
      bool usual = resolving->vendor->flags & TANDEM_VENDOR_HAS_EXPORTER_SPECS;
      if (lines && (usual || is_first_report(spec->key)))
        td_lines_add(lines, usual ? TANDEM_LOG_DEBUG : TANDEM_LOG_WARNING,
                     "compile spec '%.128s' is unknown to backend %s: ignored", spec->key,
                     resolving->vendor->backend);
      continue;
    }
    if (resolving->values[index].in_spec)
      return fail_twice(error, SOURCE_SPEC, row_at(resolving->vendor, index).name, spec->key);
    resolving->values[index].in_spec = true;
    const char *value = spec->value;
    size_t size = spec->size;
    if (size > 0 && value[size - 1] == '\0')
      size--;
    enum tandem_status status = apply(resolving, SOURCE_SPEC, index, value, size, error);
    if (status != TANDEM_OK)
      return status;
  }
  return TANDEM_OK;
}

static enum tandem_status apply_scopes(struct resolving *resolving, struct tandem_error *error) {
  drop_released();
  for (const struct tandem_scope *scope = innermost; scope; scope = scope->outer) {
    for (size_t i = 0; i < scope->count; i++) {
      int index = find_row(resolving->vendor, scope->values[i].name);
      if (index == NO_ROW || resolving->values[index].source == SOURCE_SCOPE)
        continue;
      const char *value = scope->values[i].value;
      enum tandem_status status = apply(resolving, SOURCE_SCOPE, index, value, strlen(value), error);
      if (status != TANDEM_OK)
        return status;
    }
  }
  return TANDEM_OK;
}

static enum tandem_status apply_load(struct resolving *resolving, const struct tandem_load_desc *desc,
                                     struct td_lines *lines, struct tandem_error *error) {
  for (size_t i = 0; i < desc->option_count; i++) {
    const struct tandem_option *option = &desc->options[i];
    if (!option->key || !option->value)
      return td_fail(error, TANDEM_BAD_OPTION, "load option %zu has no %s", i,
                     option->key ? "value" : "name");
    int index = find_row(resolving->vendor, option->key);
    if (index == NO_ROW)
      return fail_unknown(error, SOURCE_LOAD, resolving->vendor, option->key);
    struct row row = row_at(resolving->vendor, index);
    if (resolving->values[index].in_load)
      return fail_twice(error, SOURCE_LOAD, row.name, option->key);
    resolving->values[index].in_load = true;
    if (row.or_nothing && option->value[0] == '\0') {
      td_lines_add(lines, TANDEM_LOG_WARNING, "load option '%s' is empty: ignored", row.name);
      continue;
    }
    enum tandem_status status =
        apply(resolving, SOURCE_LOAD, index, option->value, strlen(option->value), error);
    if (status != TANDEM_OK)
      return status;
  }
  return TANDEM_OK;
}

/* `desc` may be NULL: a load without options and compile specs of its own. */
static enum tandem_status resolve(struct resolving *resolving, const struct tandem_load_desc *desc,
                                  struct td_lines *lines, struct tandem_error *error) {
  for (int i = 0; i < row_count(resolving->vendor); i++) {
    struct value *value = &resolving->values[i];
    *value = (struct value){.source = SOURCE_DEFAULT};
    snprintf(value->text, sizeof(value->text), "%s", row_at(resolving->vendor, i).fallback);
  }
  enum tandem_status status = apply_environment(resolving, error);
  if (status == TANDEM_OK)
    status = apply_process(resolving, error);
  if (status == TANDEM_OK && desc)
    status = apply_specs(resolving, desc, lines, error);
  if (status == TANDEM_OK)
    status = apply_scopes(resolving, error);
  if (status == TANDEM_OK && desc)
    status = apply_load(resolving, desc, lines, error);
  return status;
}

static bool as_bool(const struct resolving *resolving, enum core_option option) {
  return strcmp(resolving->values[option].text, "true") == 0;
}

/* -1: auto. The text is canonical, so it fits. */
static int64_t as_count(const struct resolving *resolving, enum core_option option) {
  const char *text = resolving->values[option].text;
  return strcmp(text, "auto") == 0 ? -1 : strtoll(text, NULL, 10);
}

static enum tandem_log_level as_level(const char *text) {
  switch (text[0]) {
  case 'e':
    return TANDEM_LOG_ERROR;
  case 'i':
    return TANDEM_LOG_INFO;
  case 'd':
    return TANDEM_LOG_DEBUG;
  default:
    return TANDEM_LOG_WARNING;
  }
}

enum tandem_status td_options_resolve(const struct tandem_vendor *vendor, const struct tandem_load_desc *desc,
                                      struct td_lines *lines, struct td_options *options,
                                      struct tandem_error *error) {
  memset(options, 0, sizeof(*options));
  if ((!desc->options && desc->option_count > 0) || (!desc->compile_specs && desc->compile_spec_count > 0))
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "%zu load options or %zu compile specs at NULL",
                   desc->option_count, desc->compile_spec_count);
  struct resolving *resolving = td_alloc(sizeof(*resolving));
  if (!resolving)
    return td_fail(error, TANDEM_OUT_OF_MEMORY, "out of host memory for a load's options");
  resolving->vendor = vendor;
  enum tandem_status status = resolve(resolving, desc, lines, error);
  if (status == TANDEM_OK) {
    const struct value *values = resolving->values;
    options->use_shared_engines = as_bool(resolving, USE_SHARED_ENGINES);
    options->weight_streaming_budget = as_count(resolving, WEIGHT_STREAMING_BUDGET);
    options->share_across_budgets = as_bool(resolving, SHARE_ACROSS_BUDGETS);
    options->share_scratch = as_bool(resolving, SHARE_SCRATCH);
    options->cuda_graph = as_bool(resolving, CUDA_GRAPH);
    options->flight_timeout_set = values[FLIGHT_TIMEOUT_MS].source != SOURCE_DEFAULT;
    options->flight_timeout_ms = (uint64_t)as_count(resolving, FLIGHT_TIMEOUT_MS);
    options->identity = values[IDENTITY].text[0] == 'f' ? TD_IDENTITY_FAST : TD_IDENTITY_KEYED;
    options->payload_copy = values[PAYLOAD_BYTES].text[0] == 'c';
    strcpy(options->trust_domain, values[TRUST_DOMAIN].text);
    snprintf(options->expect_sha256, sizeof(options->expect_sha256), "%.64s", values[EXPECT_SHA256].text);
    options->profile = (int32_t)as_count(resolving, PROFILE);
    options->log_level = as_level(values[LOG_LEVEL].text);
    for (size_t i = 0; i < vendor->option_count; i++) {
      strcpy(options->vendor_text[i], values[CORE_COUNT + i].text);
      options->vendor_values[i] = options->vendor_text[i];
    }
  }
  td_free(resolving);
  return status;
}

static enum tandem_status get_option(const char *backend, const char *key, char *value, size_t size,
                                     struct tandem_error *error) {
  if (!value || size == 0)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "the value of an option has nowhere to go");
  if (!key)
    return td_fail(error, TANDEM_BAD_OPTION, "an option without a name was asked for");
  const struct tandem_vendor *vendor = NULL;
  enum tandem_status status = backend ? td_vendor_find(backend, &vendor, error) : TANDEM_OK;
  if (status != TANDEM_OK)
    return status;
  int index = find_row(vendor, key);
  for (size_t i = 0; index == NO_ROW && !backend && (vendor = td_vendor_at(i)); i++)
    if (find_row(vendor, key) != NO_ROW)
      return td_fail(error, TANDEM_BAD_OPTION,
                     "option '%.128s' is a backend's own: say of which, for example %s", key,
                     vendor->backend);
  if (index == NO_ROW)
    return fail_unknown(error, SOURCE_DEFAULT, vendor, key);
  struct resolving *resolving = td_alloc(sizeof(*resolving));
  if (!resolving)
    return td_fail(error, TANDEM_OUT_OF_MEMORY, "out of host memory for the options");
  resolving->vendor = vendor;
  status = resolve(resolving, NULL, NULL, error);
  if (status == TANDEM_OK) {
    size_t length = strlen(resolving->values[index].text);
    if (length < size)
      memcpy(value, resolving->values[index].text, length + 1);
    else
      status = td_fail(error, TANDEM_INVALID_ARGUMENT,
                       "the value of option '%s' needs %zu bytes, %zu are given", key, length + 1, size);
  }
  td_free(resolving);
  if (status == TANDEM_OK)
    td_clear(error);
  return status;
}

enum tandem_status tandem_get_option(const char *backend, const char *key, char *value, size_t size,
                                     struct tandem_error *error) {
  int state = td_cancel_disable();
  if (value && size > 0)
    value[0] = '\0';
  struct td_load_hooked hooked;
  enum tandem_status status = td_load_begin(&hooked, error);
  if (status == TANDEM_OK) {
    status = get_option(backend, key, value, size, error);
    td_load_end(&hooked);
  }
  td_cancel_restore(state);
  return status;
}

enum tandem_log_level td_options_log_level(void) {
  const struct row *row = &core[LOG_LEVEL];
  for (const struct tandem_scope *scope = innermost; scope; scope = scope->outer)
    for (size_t i = 0; i < scope->count; i++)
      if (scope->values[i].name == row->name && !atomic_load(&scope->released))
        return as_level(scope->values[i].value);

  char value[TD_OPTION_VALUE_MAX];
  td_mutex_lock(&options_lock);
  const struct setting *setting = *find_setting_locked(NULL, row->name);
  snprintf(value, sizeof(value), "%s", setting ? setting->value : "");
  td_mutex_unlock(&options_lock);
  if (value[0])
    return as_level(value);
  const char *text = getenv("TANDEM_OPT_LOG_LEVEL");
  return as_level(text && check_value(row, text, strlen(text), value) ? value : row->fallback);
}

bool td_options_is_core(const char *name) {
  return find_row(NULL, name) != NO_ROW;
}

bool tandem_option_known(const char *backend, const char *key) {
  int cancel = td_cancel_disable();
  const struct tandem_vendor *vendor = NULL;
  bool known = backend != NULL && key != NULL && td_vendor_find(backend, &vendor, NULL) == TANDEM_OK &&
               find_row(vendor, key) != NO_ROW;
  td_cancel_restore(cancel);
  return known;
}
