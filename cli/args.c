/* Command lines: one table of flags a command, "--flag value" or "--flag=value", "--" ends the flags.
 *
 * Whatever is wrong is told in one line that names it and the command's help, and ends with status 2, so a
 * script can tell a wrong call from work that failed.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static int misuse(const struct td_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int misuse(const struct td_usage *usage, const char *format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  td_complain("%s: %s; see 'tandem %s --help'", usage->command, message, usage->command);
  return TD_EXIT_USAGE;
}

/* `text` begins with the name of `flag`, alone or before a '='. */
static bool names_flag(const struct td_flag *flag, const char *text) {
  size_t size = strlen(flag->name);
  return strncmp(flag->name, text, size) == 0 && (text[size] == 0 || text[size] == '=');
}

static bool parse_count(const char *text, uint64_t *value) {
  if (!*text || strspn(text, "0123456789") != strlen(text))
    return false;
  errno = 0;
  *value = strtoull(text, NULL, 10);
  return errno == 0;
}

static int take_value(const struct td_usage *usage, const struct td_flag *flag, const char *text) {
  switch (flag->kind) {
  case TD_FLAG_SWITCH:
    break;
  case TD_FLAG_TEXT:
    *(const char **)flag->value = text;
    break;
  case TD_FLAG_COUNT: {
    uint64_t number;
    if (!parse_count(text, &number) || number < flag->minimum || number > flag->maximum)
      return misuse(usage, "%s takes a whole number from %" PRIu64 " to %" PRIu64 ", not '%s'", flag->name,
                    flag->minimum, flag->maximum, text);
    *(uint64_t *)flag->value = number;
    break;
  }
  case TD_FLAG_LIST: {
    struct td_text_list *list = flag->value;
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items) {
      td_complain("out of memory while reading the command line");
      return TD_EXIT_FAILED;
    }
    items[list->count++] = text;
    list->items = items;
    break;
  }
  }
  return TD_ARGS_GO;
}

void td_text_list_fini(struct td_text_list *list) {
  free(list->items);
  *list = (struct td_text_list){0};
}

int td_args_parse(const struct td_usage *usage, const struct td_flag *flags, size_t flag_count, int count,
                  char **arguments, const char **positional) {
  bool literal = false;
  const char *found = NULL;
  for (int i = 0; i < count; i++) {
    char *text = arguments[i];
    if (literal || text[0] != '-' || text[1] == 0) {
      if (!usage->positional || found)
        return misuse(usage, "'%s' is one argument too many", text);
      found = text;
      continue;
    }
    if (strcmp(text, "--") == 0) {
      literal = true;
      continue;
    }
    if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
      fputs(usage->help, stdout);
      return td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;
    }
    const struct td_flag *flag = NULL;
    for (size_t k = 0; k < flag_count && !flag; k++)
      flag = names_flag(&flags[k], text) ? &flags[k] : NULL;
    if (!flag)
      return misuse(usage, "there is no option '%s'", text);
    char *value = strchr(text, '=');
    if (flag->kind == TD_FLAG_SWITCH) {
      if (value)
        return misuse(usage, "%s takes no value", flag->name);
      *(bool *)flag->value = true;
      continue;
    }
    if (value)
      value++;
    else if (i + 1 < count)
      value = arguments[++i];
    else
      return misuse(usage, "%s needs a value", flag->name);
    int result = take_value(usage, flag, value);
    if (result != TD_ARGS_GO)
      return result;
  }
  if (usage->positional && !found)
    return misuse(usage, "%s is missing", usage->positional);
  if (positional)
    *positional = found;
  return TD_ARGS_GO;
}
