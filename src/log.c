/* Log lines, and the vendor calls that they come from.
 *
 * A vendor's line must never reach the sink from inside the vendor's call: the sink may take a lock that the
 * host holds elsewhere (Python's), or load a program. So lines are kept, bounded, with the load that they
 * belong to, and given to the sink when the load has nothing locked and its entry is published or gone.
 * A line from one of the vendor's own threads belongs to the load whose call is under way if there is just
 * one; otherwise it is kept in `pending` under the vendor's name and goes out with the next delivery.
 *
 * The list of calls also tells a forked child what it must not touch: locks that another thread held inside a
 * call, the vendor's own and the dynamic loader's, stay taken there for ever, and no handler can give them
 * back.
 *
 * The log's lock guards every field of td_lines, the list of calls, the sink and `pending`. It is never held
 * across a sink or an allocation.
 */
#include "base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_SIZE = 2048, LINES_MAX = 256, LABEL_SIZE = sizeof(((struct td_lines *)0)->label) };

struct td_line {
  struct td_line *next;
  enum tandem_log_level level;
  char text[];
};

static struct td_mutex log_lock;
static tandem_log_fn sink_function;           /* guarded by log_lock; NULL: stderr */
static void *sink_user;                       /* guarded by log_lock */
static struct td_call *calls;                 /* guarded by log_lock */
static struct td_lines pending;               /* guarded by log_lock */
static uint64_t dropped_total;                /* guarded by log_lock */
static _Thread_local struct td_call *current; /* the innermost vendor call of this thread */

/* Calls of other threads into vendors that do not survive fork. */
struct foreign_calls {
  uint64_t count;
  const struct tandem_vendor *vendor; /* of one of them */
};
static struct foreign_calls forking; /* guarded by log_lock; while this process forks */
static struct foreign_calls lost;    /* constant; those that this process was forked without */

static const char *level_name(enum tandem_log_level level) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  return level >= TANDEM_LOG_ERROR && level <= TANDEM_LOG_DEBUG ? names[level] : "debug";
}

/* One write a line, so that lines of several threads do not mix. */
static void write_stderr(enum tandem_log_level level, const char *text) {
  char buffer[LINE_MAX_SIZE + 64];
  int length = snprintf(buffer, sizeof buffer - 1, "tandem: %s: %s", level_name(level), text);
  if (length < 0)
    return;
  size_t size = (size_t)length < sizeof buffer - 1 ? (size_t)length : sizeof buffer - 2;
  buffer[size++] = '\n';
  for (size_t done = 0; done < size;) {
    ssize_t written = write(STDERR_FILENO, buffer + done, size - done);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return;
    done += (size_t)written;
  }
}

static bool write_directly(void) {
  const char *value = getenv("TANDEM_LOG_DIRECT");
  return value != NULL && strcmp(value, "1") == 0;
}

void tandem_set_log_sink(tandem_log_fn sink, void *user) {
  int cancel = td_cancel_disable();
  td_mutex_lock(&log_lock);
  sink_function = sink;
  sink_user = user;
  td_mutex_unlock(&log_lock);
  td_cancel_restore(cancel);
}

struct td_lines *td_lines_create(const char *label, enum tandem_log_level level) {
  struct td_lines *lines = td_alloc(sizeof *lines);
  if (lines == NULL)
    return NULL;
  snprintf(lines->label, sizeof lines->label, "%s", label);
  lines->level = level;
  lines->tail = &lines->head;
  return lines;
}

void td_lines_set_level(struct td_lines *lines, enum tandem_log_level level) {
  if (lines == NULL)
    return;
  td_mutex_lock(&log_lock);
  lines->level = level;
  td_mutex_unlock(&log_lock);
}

static struct td_line *make_line(enum tandem_log_level level, const char *origin, const char *text) {
  size_t origin_size = strlen(origin), text_size = strnlen(text, LINE_MAX_SIZE - LABEL_SIZE);
  struct td_line *line = td_alloc(sizeof *line + origin_size + text_size + 3);
  if (line == NULL)
    return NULL;
  line->level = level;
  snprintf(line->text, origin_size + text_size + 3, "%s%s%.*s", origin, *origin ? ": " : "", (int)text_size,
           text);
  for (char *c = line->text; *c != '\0'; c++) /* a sink's line is one line */
    if (*c == '\n' || *c == '\r')
      *c = c[1] == '\0' ? '\0' : ' ';
  return line;
}

/* Takes `line` (NULL counts as a drop); returns the line that had no room, for the caller to free. */
static struct td_line *append_locked(struct td_lines *lines, struct td_line *line) {
  if (line == NULL || lines->count >= LINES_MAX) {
    lines->dropped++;
    dropped_total++;
    return line;
  }
  if (lines->tail == NULL)
    lines->tail = &lines->head;
  *lines->tail = line;
  lines->tail = &line->next;
  lines->count++;
  return NULL;
}

void td_lines_add(struct td_lines *lines, enum tandem_log_level level, const char *format, ...) {
  char text[LINE_MAX_SIZE - LABEL_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (write_directly())
    write_stderr(level, text);
  if (lines == NULL)
    return;
  struct td_line *line = make_line(level, "", text);
  td_mutex_lock(&log_lock);
  line = append_locked(lines, line);
  td_mutex_unlock(&log_lock);
  td_free(line);
}

void td_lines_forgive(struct td_lines *lines) {
  if (lines == NULL)
    return;
  td_mutex_lock(&log_lock);
  for (struct td_line *line = lines->head; line != NULL; line = line->next)
    if (line->level == TANDEM_LOG_ERROR)
      line->level = TANDEM_LOG_WARNING;
  td_mutex_unlock(&log_lock);
}

static struct td_line *detach_locked(struct td_lines *lines, uint64_t *dropped) {
  struct td_line *head = lines->head;
  lines->head = NULL;
  lines->tail = &lines->head;
  lines->count = 0;
  *dropped = lines->dropped;
  lines->dropped = 0;
  return head;
}

void td_lines_move(struct td_lines *from, struct td_lines *to) {
  if (from == NULL)
    return;
  td_mutex_lock(&log_lock);
  memcpy(to->label, from->label, sizeof to->label);
  to->level = from->level;
  to->count = from->count;
  to->tail = from->head != NULL ? from->tail : NULL;
  to->head = detach_locked(from, &to->dropped);
  td_mutex_unlock(&log_lock);
}

struct sink {
  tandem_log_fn function;
  void *user;
  bool direct; /* the lines are on stderr already */
};

static void emit(const struct sink *sink, const char *label, enum tandem_log_level level, const char *text) {
  char line[LINE_MAX_SIZE + LABEL_SIZE];
  snprintf(line, sizeof line, "%s%s%s", label, *label ? ": " : "", text);
  if (sink->function != NULL)
    sink->function(sink->user, level, line);
  else if (!sink->direct)
    write_stderr(level, line);
}

static void emit_list(const struct sink *sink, const char *label, enum tandem_log_level level,
                      struct td_line *head, uint64_t dropped) {
  while (head != NULL) {
    struct td_line *line = head;
    head = line->next;
    if (line->level <= level)
      emit(sink, label, line->level, line->text);
    td_free(line);
  }
  if (dropped > 0 && level >= TANDEM_LOG_WARNING) {
    char text[96];
    snprintf(text, sizeof text, "%llu log lines of the vendor were dropped (at most %d are kept a call)",
             (unsigned long long)dropped, LINES_MAX);
    emit(sink, label, TANDEM_LOG_WARNING, text);
  }
}

void td_lines_deliver(struct td_lines *lines) {
  struct td_line *own = NULL, *strays = NULL;
  uint64_t own_dropped = 0, strays_dropped = 0;
  enum tandem_log_level level = TANDEM_LOG_WARNING;
  td_mutex_lock(&log_lock);
  struct sink sink = {sink_function, sink_user, false};
  if (lines != NULL) {
    own = detach_locked(lines, &own_dropped);
    level = lines->level;
  }
  strays = detach_locked(&pending, &strays_dropped);
  td_mutex_unlock(&log_lock);
  if (own == NULL && strays == NULL && own_dropped == 0 && strays_dropped == 0)
    return;
  sink.direct = write_directly();
  if (own != NULL || own_dropped > 0)
    emit_list(&sink, lines->label, level, own, own_dropped);
  if (strays != NULL || strays_dropped > 0)
    emit_list(&sink, "", td_options_log_level(), strays, strays_dropped);
}

void td_lines_destroy(struct td_lines *lines) {
  if (lines == NULL)
    return;
  td_lines_deliver(lines);
  td_free(lines);
}

void td_call_begin(struct td_call *call, const struct tandem_vendor *vendor, struct td_lines *lines) {
  *call = (struct td_call){.outer = current, .lines = lines, .vendor = vendor, .worst = TANDEM_OK};
  td_mutex_lock(&log_lock);
  call->next = calls;
  if (calls != NULL)
    calls->previous = call;
  calls = call;
  td_mutex_unlock(&log_lock);
  current = call;
}

/* What a failing call reports: memory first, since vendors go on to name a consequence of it. */
static enum tandem_status judge(const struct td_call *call, enum tandem_status status) {
  if (status == TANDEM_OUT_OF_MEMORY || call->worst == TANDEM_OUT_OF_MEMORY)
    return TANDEM_OUT_OF_MEMORY;
  return call->worst == TANDEM_DEVICE_LOST ? TANDEM_DEVICE_LOST : status;
}

enum tandem_status td_call_end(struct td_call *call, enum tandem_status status, const char *step,
                               struct tandem_error *error) {
  td_mutex_lock(&log_lock);
  if (call->previous != NULL)
    call->previous->next = call->next;
  else
    calls = call->next;
  if (call->next != NULL)
    call->next->previous = call->previous;
  td_mutex_unlock(&log_lock);
  current = call->outer;
  if (status == TANDEM_OK) {
    td_clear(error);
    return TANDEM_OK;
  }
  char own[sizeof error->message] = "";
  if (error != NULL && error->code != TANDEM_OK)
    snprintf(own, sizeof own, "%s", error->message);
  if ((unsigned)status > TANDEM_INTERNAL) /* of a callback's own invention */
    status = TANDEM_INTERNAL;
  status = judge(call, status);
  if (call->decisive[0] != '\0' && strstr(own, call->decisive) == NULL)
    return td_fail(error, status, "could not %s: %s%s%s", step, call->decisive, *own ? "; " : "", own);
  return td_fail(error, status, "could not %s: %s", step, *own ? own : tandem_status_text(status));
}

enum tandem_status td_call_check_fork(const struct tandem_vendor *vendor, struct tandem_error *error) {
  if (lost.count == 0 || vendor->flags & TANDEM_VENDOR_SURVIVES_FORK)
    return TANDEM_OK;
  return td_fail(
      error, TANDEM_DEVICE_LOST,
      "other threads had %llu call%s into vendors (%s) under way when process %ld was forked, and "
      "a load could wait for ever for what they had locked: fork while no program is loaded, run or "
      "unloaded, or start the child with exec (Python: multiprocessing's \"spawn\")",
      (unsigned long long)lost.count, lost.count == 1 ? "" : "s", lost.vendor->name, (long)getpid());
}

bool td_call_nested(void) {
  return current != NULL;
}

/* The one call of a vendor that is under way; NULL when there is none or more than one. By name: a vendor
 * tells its own table, a call the registry's copy. */
static struct td_call *only_call_locked(const struct tandem_vendor *vendor) {
  struct td_call *only = NULL;
  if (vendor == NULL || vendor->name == NULL)
    return NULL;
  for (struct td_call *call = calls; call != NULL; call = call->next)
    if (strcmp(call->vendor->name, vendor->name) == 0) {
      if (only != NULL)
        return NULL;
      only = call;
    }
  return only;
}

void td_log_vendor(const struct tandem_vendor *vendor, enum tandem_log_level level, enum tandem_status status,
                   const char *text) {
  if (text == NULL)
    return;
  const char *name = vendor != NULL && vendor->name != NULL ? vendor->name : "vendor";
  struct td_call *own = current;
  if (own != NULL) {
    if (status == TANDEM_OUT_OF_MEMORY || (status == TANDEM_DEVICE_LOST && own->worst == TANDEM_OK))
      own->worst = status;
    if (level == TANDEM_LOG_ERROR && own->decisive[0] == '\0')
      snprintf(own->decisive, sizeof own->decisive, "%s", text);
  }
  if (write_directly())
    write_stderr(level, text);
  struct td_line *line = make_line(level, name, text);
  td_mutex_lock(&log_lock);
  struct td_call *call = own != NULL ? own : only_call_locked(vendor);
  line = append_locked(call != NULL && call->lines != NULL ? call->lines : &pending, line);
  td_mutex_unlock(&log_lock);
  td_free(line);
}

uint64_t td_log_dropped(void) {
  td_mutex_lock(&log_lock);
  uint64_t count = dropped_total;
  td_mutex_unlock(&log_lock);
  return count;
}

static bool is_own_call(const struct td_call *call) {
  for (const struct td_call *own = current; own != NULL; own = own->outer)
    if (own == call)
      return true;
  return false;
}

/* Counts before the fork, since the calls lie on stacks of threads that the child does not have. */
void td_log_fork_lock(void) {
  td_mutex_lock(&log_lock);
  forking = (struct foreign_calls){0};
  for (const struct td_call *call = calls; call != NULL; call = call->next)
    if (!(call->vendor->flags & TANDEM_VENDOR_SURVIVES_FORK) && !is_own_call(call))
      forking = (struct foreign_calls){forking.count + 1, call->vendor};
}

void td_log_fork_unlock(void) {
  td_mutex_unlock(&log_lock);
}

/* The calls of other threads do not exist in the child. Gives the lock back. */
void td_log_fork_child(void) {
  if (forking.count > 0)
    lost = forking;
  calls = NULL;
  for (struct td_call *call = current; call != NULL; call = call->outer) {
    call->previous = NULL;
    call->next = calls;
    if (calls != NULL)
      calls->previous = call;
    calls = call;
  }
  td_mutex_unlock(&log_lock);
}
