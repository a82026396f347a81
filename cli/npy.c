/* NumPy's .npy files, versions 1 to 3: what a tensor is, then its bytes.
 *
 * A file comes from anywhere, so the header is read by a cursor that knows where it ends, every size is
 * checked before it is used, and one sentence says what was expected, what was found and at which byte. Only
 * what a tensor here can be is taken: little endian, C order, a known type. bfloat16 and float8 have no name
 * in NumPy and are written as the bytes they are (uint16, uint8).
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
  const char *text;
  int32_t dtype;
} names[] = {
    {"|u1", TANDEM_UINT8}, {"|i1", TANDEM_INT8},    {"<i2", TANDEM_INT16},   {"<i4", TANDEM_INT32},
    {"<i8", TANDEM_INT64}, {"<f2", TANDEM_FLOAT16}, {"<f4", TANDEM_FLOAT32}, {"<f8", TANDEM_FLOAT64},
    {"|b1", TANDEM_BOOL},  {"<u2", TANDEM_UINT16},  {"<u4", TANDEM_UINT32},  {"<u8", TANDEM_UINT64},
};

struct cursor {
  const char *origin;
  const unsigned char *start, *next, *end; /* of the header's text; start is of the file */
  struct tandem_error *error;
  enum tandem_status status;
};

/* The one failure exit of the parser: the first failure stays. */
static bool refuse(struct cursor *cursor, const char *expected, const char *found) {
  if (cursor->status == TANDEM_OK)
    cursor->status = td_refuse(cursor->error, TANDEM_INVALID_ARGUMENT,
                               "%s: not a .npy file that can be read: at byte %zu expected %s, found %s",
                               cursor->origin, (size_t)(cursor->next - cursor->start), expected, found);
  return false;
}

/* What was found is the character that comes next. */
static bool fail(struct cursor *cursor, const char *expected) {
  char found[24] = "the end of the header";
  if (cursor->next < cursor->end) {
    unsigned char c = *cursor->next;
    snprintf(found, sizeof found, c >= 32 && c < 127 ? "'%c'" : "byte 0x%02x", c);
  }
  return refuse(cursor, expected, found);
}

static void skip_spaces(struct cursor *cursor) {
  while (cursor->next < cursor->end && (*cursor->next == ' ' || *cursor->next == '\n'))
    cursor->next++;
}

/* The next character that is not a space is `c`, and is taken. */
static bool accept(struct cursor *cursor, char c) {
  skip_spaces(cursor);
  if (cursor->next == cursor->end || *cursor->next != (unsigned char)c)
    return false;
  cursor->next++;
  return true;
}

static bool expect(struct cursor *cursor, char c) {
  char what[4] = {'\'', c, '\'', 0};
  return accept(cursor, c) || fail(cursor, what);
}

static bool take_text(struct cursor *cursor, char *text, size_t size) {
  char quote = accept(cursor, '\'') ? '\'' : accept(cursor, '"') ? '"' : 0;
  if (!quote)
    return fail(cursor, "a quoted text");
  size_t n = 0;
  while (cursor->next < cursor->end && *cursor->next != (unsigned char)quote) {
    if (n + 1 == size)
      return fail(cursor, "a shorter text");
    text[n++] = (char)*cursor->next++;
  }
  text[n] = 0;
  return cursor->next < cursor->end ? (cursor->next++, true) : fail(cursor, "the closing quote");
}

static bool take_word(struct cursor *cursor, const char *word) {
  size_t size = strlen(word);
  skip_spaces(cursor);
  if ((size_t)(cursor->end - cursor->next) < size || memcmp(cursor->next, word, size) != 0)
    return false;
  cursor->next += size;
  return true;
}

static bool take_number(struct cursor *cursor, int64_t *value) {
  skip_spaces(cursor);
  if (cursor->next == cursor->end || *cursor->next < '0' || *cursor->next > '9')
    return fail(cursor, "a digit");
  int64_t number = 0;
  while (cursor->next < cursor->end && *cursor->next >= '0' && *cursor->next <= '9') {
    int digit = *cursor->next - '0';
    if (number > (INT64_MAX - digit) / 10)
      return fail(cursor, "a dimension within 63 bits");
    number = number * 10 + digit;
    cursor->next++;
  }
  *value = number;
  return true;
}

static bool take_shape(struct cursor *cursor, struct td_npy *npy) {
  if (!expect(cursor, '('))
    return false;
  while (!accept(cursor, ')')) {
    if (npy->rank == TANDEM_MAX_RANK)
      return fail(cursor, "at most 16 dimensions");
    if (!take_number(cursor, &npy->shape[npy->rank]))
      return false;
    npy->rank++;
    if (!accept(cursor, ',')) {
      if (!expect(cursor, ')'))
        return false;
      break;
    }
  }
  return true;
}

static bool take_dtype(struct cursor *cursor, struct td_npy *npy) {
  char text[16];
  skip_spaces(cursor);
  const unsigned char *at = cursor->next;
  if (!take_text(cursor, text, sizeof text))
    return false;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(text, names[i].text) == 0) {
      npy->dtype = names[i].dtype;
      return true;
    }
  cursor->next = at;
  char found[sizeof text + 2];
  snprintf(found, sizeof found, "'%s'", text);
  return refuse(cursor, "a little-endian type out of bool, (u)int8-64, float16-64", td_show(found));
}

/* A Python dictionary with the three keys, each once, in any order. */
static bool take_header(struct cursor *cursor, struct td_npy *npy) {
  enum { DTYPE = 1, ORDER = 2, SHAPE = 4, ALL = 7 };
  int seen = 0;
  if (!expect(cursor, '{'))
    return false;
  while (!accept(cursor, '}')) {
    char key[32];
    skip_spaces(cursor);
    const unsigned char *at = cursor->next;
    if (!take_text(cursor, key, sizeof key))
      return false;
    int which = strcmp(key, "descr") == 0           ? DTYPE
                : strcmp(key, "fortran_order") == 0 ? ORDER
                : strcmp(key, "shape") == 0         ? SHAPE
                                                    : 0;
    if (!which || seen & which) {
      cursor->next = at;
      return fail(cursor, "'descr', 'fortran_order' and 'shape', each once");
    }
    seen |= which;
    if (!expect(cursor, ':'))
      return false;
    if (which == DTYPE && !take_dtype(cursor, npy))
      return false;
    if (which == ORDER && !take_word(cursor, "False"))
      return fail(cursor, "False (C order; save numpy.ascontiguousarray of it)");
    if (which == SHAPE && !take_shape(cursor, npy))
      return false;
    if (!accept(cursor, ',')) {
      if (!expect(cursor, '}'))
        return false;
      break;
    }
  }
  if (seen != ALL)
    return fail(cursor, "'descr', 'fortran_order' and 'shape'");
  skip_spaces(cursor);
  return cursor->next == cursor->end || fail(cursor, "nothing after the dictionary");
}

enum tandem_status td_npy_parse(const void *bytes, size_t size, const char *origin, struct td_npy *npy,
                                struct tandem_error *error) {
  const unsigned char *file = bytes;
  *npy = (struct td_npy){0};
  if (size < 10 || memcmp(file, "\x93NUMPY", 6) != 0)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT,
                     "%s: not a .npy file: it does not begin with NumPy's mark (save it with numpy.save)",
                     origin);
  unsigned major = file[6];
  size_t head = major == 1 ? 10 : 12;
  if (major < 1 || major > 3)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: .npy version %u is not known, 1 to 3 are", origin,
                     major);
  if (size < head)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: cut: it ends within its first %zu bytes", origin,
                     head);
  size_t length = (size_t)file[8] | (size_t)file[9] << 8;
  if (major > 1)
    length |= (size_t)file[10] << 16 | (size_t)file[11] << 24;
  if (length > size - head)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: cut: its header has %zu bytes, %zu are there",
                     origin, length, size - head);

  struct cursor cursor = {
      .origin = origin, .start = file, .next = file + head, .end = file + head + length, .error = error};
  if (!take_header(&cursor, npy))
    return cursor.status;
  npy->data_offset = head + length;
  if (!td_tensor_size(npy->dtype, npy->rank, npy->shape, &npy->data_size))
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: its shape has more bytes than can be addressed",
                     origin);
  if (npy->data_size != size - npy->data_offset)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "%s: its shape needs %zu bytes of data, %zu are there",
                     origin, npy->data_size, size - npy->data_offset);
  return TANDEM_OK;
}

enum tandem_status td_npy_read(const char *path, struct td_npy *npy, void **data,
                               struct tandem_error *error) {
  enum tandem_status status = TANDEM_OK;
  unsigned char *bytes = NULL;
  struct stat stat;
  *data = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &stat) != 0) {
    status = td_refuse(error, TANDEM_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
    goto done;
  }
  if (!S_ISREG(stat.st_mode)) {
    status = td_refuse(error, TANDEM_INVALID_ARGUMENT, "cannot read %s: it is not a regular file", path);
    goto done;
  }
  size_t size = (size_t)stat.st_size, have = 0;
  bytes = malloc(size ? size : 1);
  if (!bytes) {
    status = td_refuse(error, TANDEM_OUT_OF_MEMORY, "%s: no memory for its %zu bytes", path, size);
    goto done;
  }
  while (have < size) {
    ssize_t n = read(fd, bytes + have, size - have);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      break;
    have += (size_t)n;
  }
  status = td_npy_parse(bytes, have, path, npy, error);
  if (status != TANDEM_OK)
    goto done;
  memmove(bytes, bytes + npy->data_offset, npy->data_size);
  *data = bytes;
  bytes = NULL;

done:
  free(bytes);
  if (fd >= 0)
    close(fd);
  return status;
}

/* The type's name in NumPy, or that of unsigned numbers of its size. */
static const char *type_text(int32_t dtype) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (names[i].dtype == dtype)
      return names[i].text;
  return tandem_dtype_size(dtype) == 2 ? "<u2" : "|u1";
}

enum tandem_status td_npy_write(const char *path, const struct tandem_tensor *tensor,
                                struct tandem_error *error) {
  char header[640];
  size_t data_size;
  if (!td_tensor_size(tensor->dtype, tensor->rank, tensor->shape, &data_size))
    return td_refuse(error, TANDEM_INTERNAL, "%s: an output of a type or size that is not known", path);
  int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                   type_text(tensor->dtype));
  for (int32_t i = 0; i < tensor->rank; i++)
    n += snprintf(header + n, sizeof header - (size_t)n, "%lld,%s", (long long)tensor->shape[i],
                  i + 1 < tensor->rank ? " " : "");
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  int length = (10 + n + 1 + 63) / 64 * 64 - 10; /* the data begins at a multiple of 64 bytes */
  unsigned char head[10] = {
      0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
  FILE *file = fopen(path, "we");
  if (!file)
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", path, strerror(errno));
  fwrite(head, 1, sizeof head, file);
  fprintf(file, "%s%*s\n", header, length - n - 1, "");
  if (data_size)
    fwrite(tensor->data, 1, data_size, file);
  bool good = !ferror(file);
  if (fclose(file) != 0 || !good)
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", path, strerror(errno));
  return TANDEM_OK;
}
