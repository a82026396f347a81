/* Status, errors and the names of element types.
 *
 * One table (TANDEM_STATUS_TABLE) makes the enum, its names and its texts, so none can be forgotten.
 *
 * An error has two homes: the caller's struct tandem_error, which holds 1,023 bytes, and the thread's last
 * reason, which holds the whole message. Only a message longer than that needs memory, so the usual error
 * costs no allocation and reports fully when memory is gone; if memory is missing for a long one, both homes
 * get the same cut text. A message is formatted aside first: its arguments may point into the very error
 * that it goes to ("step: <what the error said before>").
 *
 * The block of a long message is freed by the thread's next error or when the thread ends.
 */
#include "base.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE_SIZE = sizeof(((struct tandem_error *)0)->message) };

static _Thread_local struct {
  char text[MESSAGE_SIZE]; /* the message, or what fits of it */
  char *whole;             /* owned; NULL when text holds all of it */
  size_t length;           /* of the message that can be read back */
} reason;

const char *tandem_status_name(enum tandem_status status) {
  switch (status) {
#define NAME_CASE(name, number, text, executorch, python)                                                    \
  case TANDEM_##name:                                                                                        \
    return #name;
    TANDEM_STATUS_TABLE(NAME_CASE)
#undef NAME_CASE
  }
  return "UNKNOWN";
}

const char *tandem_status_text(enum tandem_status status) {
  switch (status) {
#define TEXT_CASE(name, number, text, executorch, python)                                                    \
  case TANDEM_##name:                                                                                        \
    return text;
    TANDEM_STATUS_TABLE(TEXT_CASE)
#undef TEXT_CASE
  }
  return "unknown status";
}

static void free_whole(void) {
  td_free(reason.whole);
  reason.whole = NULL;
}

/* Ends a text that was cut at MESSAGE_SIZE in "...", not inside a UTF-8 sequence. */
static void mark_cut(char text[MESSAGE_SIZE]) {
  size_t end = MESSAGE_SIZE - sizeof("...");
  while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
    end--;
  memcpy(text + end, "...", sizeof("..."));
}

/* An error is one line that a terminal can show, whatever a value that it quotes holds. */
static void keep_one_line(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < ' ' || *text == 0x7f)
      *text = ' ';
}

enum tandem_status td_fail_list(struct tandem_error *error, enum tandem_status status, const char *format,
                                va_list arguments) {
  char text[MESSAGE_SIZE];
  char *whole = NULL;
  va_list again;
  va_copy(again, arguments);
  int written = vsnprintf(text, sizeof(text), format, arguments);
  if (written < 0)
    written = snprintf(text, sizeof(text), "%s", tandem_status_text(status));
  size_t length = (size_t)written;

  if (length >= sizeof(text)) {
    if (td_thread_at_exit(free_whole))
      whole = td_alloc(length + 1);
    if (whole)
      vsnprintf(whole, length + 1, format, again);
    mark_cut(text);
    if (!whole)
      length = strlen(text);
  }
  va_end(again);
  keep_one_line(text);
  if (whole)
    keep_one_line(whole);

  free_whole();
  reason.whole = whole;
  reason.length = length;
  size_t size = strlen(text) + 1;
  memcpy(reason.text, text, size);
  if (error) {
    error->code = status;
    memcpy(error->message, text, size);
  }
  return status;
}

enum tandem_status td_fail(struct tandem_error *error, enum tandem_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  td_fail_list(error, status, format, arguments);
  va_end(arguments);
  return status;
}

enum tandem_status tandem_fail(struct tandem_error *error, enum tandem_status status, const char *format,
                               ...) {
  int cancel = td_cancel_disable();
  va_list arguments;
  va_start(arguments, format);
  td_fail_list(error, status, format, arguments);
  va_end(arguments);
  td_cancel_restore(cancel);
  return status;
}

void td_clear(struct tandem_error *error) {
  if (!error)
    return;
  error->code = TANDEM_OK;
  error->message[0] = '\0';
}

size_t tandem_last_reason(char *buffer, size_t size) {
  if (buffer && size > 0) {
    size_t count = reason.length < size ? reason.length : size - 1;
    memcpy(buffer, reason.whole ? reason.whole : reason.text, count);
    buffer[count] = '\0';
  }
  return reason.length;
}

const char *tandem_version(void) {
  return TANDEM_VERSION;
}

static const struct {
  int32_t dtype;
  uint8_t size; /* bytes of one element */
  const char *name;
} dtypes[] = {
    {TANDEM_UINT8, 1, "uint8"},
    {TANDEM_INT8, 1, "int8"},
    {TANDEM_INT16, 2, "int16"},
    {TANDEM_INT32, 4, "int32"},
    {TANDEM_INT64, 8, "int64"},
    {TANDEM_FLOAT16, 2, "float16"},
    {TANDEM_FLOAT32, 4, "float32"},
    {TANDEM_FLOAT64, 8, "float64"},
    {TANDEM_BOOL, 1, "bool"},
    {TANDEM_BFLOAT16, 2, "bfloat16"},
    {TANDEM_FLOAT8_E5M2, 1, "float8_e5m2"},
    {TANDEM_FLOAT8_E4M3FN, 1, "float8_e4m3fn"},
    {TANDEM_UINT16, 2, "uint16"},
    {TANDEM_UINT32, 4, "uint32"},
    {TANDEM_UINT64, 8, "uint64"},
};

enum { DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0]) };

size_t tandem_dtype_size(int32_t dtype) {
  for (size_t i = 0; i < DTYPE_COUNT; i++)
    if (dtypes[i].dtype == dtype)
      return dtypes[i].size;
  return 0;
}

const char *tandem_dtype_name(int32_t dtype) {
  for (size_t i = 0; i < DTYPE_COUNT; i++)
    if (dtypes[i].dtype == dtype)
      return dtypes[i].name;
  return "unknown";
}
