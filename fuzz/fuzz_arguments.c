/* Fuzz target of command lines: whatever the words, they are refused with one complaint or every value is
 * within its bounds and a word of the line. An input is words, each ended by a NUL. */
#include "cli.h"
#include "fuzz.h"

#include <stdarg.h>

enum { WORDS_MAX = 64 };

static size_t complaints;

/* In place of report.c's, which write. */
bool td_end_output(void) {
  return true;
}

void td_complain(const char *format, ...) {
  char message[1024];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  require(length > 0 && (size_t)length < sizeof message, "a complaint that is too long");
  complaints++;
}

static void require_word(char **words, int count, const char *text) {
  bool found = text == NULL;
  for (int i = 0; i < count && !found; i++)
    found = text >= words[i] && text <= words[i] + strlen(words[i]);
  require(found, "a value that is no word of the line");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static const struct td_usage usages[] = {{"run", "PROGRAM", ""}, {"demo", NULL, ""}};
  bool json = false;
  const char *output = NULL, *positional = NULL;
  uint64_t loads = 2;
  struct td_text_list list = {0};
  const struct td_flag flags[] = {{.name = "--json", .kind = TD_FLAG_SWITCH, .value = &json},
                                  {.name = "--output", .kind = TD_FLAG_TEXT, .value = &output},
                                  {"--loads", TD_FLAG_COUNT, &loads, 1, 64},
                                  {.name = "--option", .kind = TD_FLAG_LIST, .value = &list}};
  char *text = copy_text(bytes, size), *words[WORDS_MAX];
  int count = 0;
  for (size_t at = 0; at < size && count < WORDS_MAX; at += strlen(text + at) + 1)
    words[count++] = text + at;
  complaints = 0;
  const struct td_usage *usage = &usages[size & 1];
  int result = td_args_parse(usage, flags, sizeof flags / sizeof flags[0], count, words, &positional);
  require(result == TD_ARGS_GO || result == TD_EXIT_DONE || result == TD_EXIT_USAGE, "another exit status");
  require(complaints == (result == TD_EXIT_USAGE), "not one complaint about one mistake");
  require(loads >= 1 && loads <= 64, "a count out of its bounds");
  require(result != TD_ARGS_GO || (positional != NULL) == (usage->positional != NULL), "no program, or one");
  require_word(words, count, positional);
  require_word(words, count, output);
  for (size_t i = 0; i < list.count; i++)
    require_word(words, count, list.items[i]);
  td_text_list_fini(&list);
  free(text);
  return 0;
}
