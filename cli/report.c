/* What people see: errors, progress, tables, bars, JSON.
 *
 * stdout belongs to results; everything else goes to stderr. Work under a second shows nothing; longer work
 * shows a bar on a terminal and a plain line now and then elsewhere. A thread draws it, so one long step is
 * seen to go on, and it takes no memory from the heap, since commands measure that. Block characters are used
 * where stdout is a terminal with UTF-8, plain ones elsewhere, so that what is piped or logged stays
 * readable. tandem's warnings wait until the command has ended well; a command that fails says one line and
 * no other.
 */
#include "cli.h"

#include <errno.h>
#include <langinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

uint64_t td_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------- errors */

char *td_show(char *text) {
  for (char *at = text; *at; at++)
    if ((unsigned char)*at < ' ' || *at == 0x7f)
      *at = '?';
  return text;
}

void td_show_all(cJSON *document) {
  cJSON *item;
  if (cJSON_IsString(document))
    td_show(document->valuestring);
  if (document && document->string && !(document->type & cJSON_StringIsConst))
    td_show(document->string);
  cJSON_ArrayForEach(item, document) td_show_all(item);
}

void td_complain(const char *format, ...) {
  char message[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  for (char *at = message; *at; at++)
    if (*at == '\n' || *at == '\r')
      *at = ' ';
  fprintf(stderr, "tandem: %s\n", td_show(message));
}

enum tandem_status td_refuse(struct tandem_error *error, enum tandem_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int n = vsnprintf(error->message, sizeof error->message, format, arguments);
  va_end(arguments);
  if (n >= (int)sizeof error->message)
    memcpy(error->message + sizeof error->message - 4, "...", 4);
  error->code = status;
  return status;
}

/* ---------------------------------------------------------------- tandem's log lines */

enum { NOTES_MAX = 16, NOTE_SIZE = 512 };

static pthread_mutex_t notes_lock = PTHREAD_MUTEX_INITIALIZER;
static char notes[NOTES_MAX][NOTE_SIZE]; /* guarded by notes_lock */
static size_t note_count;                /* likewise; counts those dropped too */

static void take_note(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  if (level != TANDEM_LOG_WARNING)
    return; /* errors come back as the error of the call that failed */
  pthread_mutex_lock(&notes_lock);
  if (note_count < NOTES_MAX)
    snprintf(notes[note_count], NOTE_SIZE, "%s", line);
  note_count++;
  pthread_mutex_unlock(&notes_lock);
}

void td_notes_init(bool direct) {
  tandem_set_log_sink(direct ? NULL : take_note, NULL);
}

void td_notes_fini(bool show) {
  pthread_mutex_lock(&notes_lock);
  for (size_t i = 0; show && i < note_count && i < NOTES_MAX; i++)
    fprintf(stderr, "warning: %s\n", td_show(notes[i]));
  if (show && note_count > NOTES_MAX)
    fprintf(stderr, "warning: %zu more lines\n", note_count - NOTES_MAX);
  note_count = 0;
  pthread_mutex_unlock(&notes_lock);
}

/* ---------------------------------------------------------------- progress */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  bool running, stop, terminal;
  char what[128];
  const char *prefix; /* borrowed; NULL: none */
  uint64_t done, total, began_ns;
  bool shown;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void draw_locked(uint64_t seconds) {
  char line[256], what[192];
  int n;
  snprintf(what, sizeof what, "%.40s%s%s", progress.prefix ? progress.prefix : "",
           progress.prefix ? ": " : "", progress.what);
  if (progress.terminal) {
    int cells = progress.total ? (int)(20 * progress.done / progress.total) : 0;
    n = snprintf(line, sizeof line, "\r[%.*s%.*s] %s %llu s\x1b[K", cells, "####################", 20 - cells,
                 "....................", what, (unsigned long long)seconds);
  } else {
    /* The step under way; after the last one there is work left that is no step. */
    uint64_t step = progress.done < progress.total ? progress.done + 1 : progress.total;
    n = snprintf(line, sizeof line, "%s: step %llu of %llu, %llu s\n", what, (unsigned long long)step,
                 (unsigned long long)progress.total, (unsigned long long)seconds);
  }
  if (n > 0 && write(STDERR_FILENO, line, (size_t)n) > 0)
    progress.shown = true;
}

static void *draw_progress(void *unused) {
  (void)unused;
  uint64_t wait_ms = 1000;
  pthread_mutex_lock(&progress.lock);
  uint64_t next = progress.began_ns;
  while (!progress.stop) {
    next += wait_ms * 1000000u;
    struct timespec until = {(time_t)(next / 1000000000u), (long)(next % 1000000000u)};
    while (!progress.stop && td_clock_ns() < next)
      pthread_cond_timedwait(&progress.changed, &progress.lock, &until);
    if (!progress.stop)
      draw_locked((td_clock_ns() - progress.began_ns) / 1000000000u);
    wait_ms = progress.terminal ? 200 : 5000;
  }
  pthread_mutex_unlock(&progress.lock);
  return NULL;
}

void td_progress_prefix(const char *prefix) {
  progress.prefix = prefix;
}

void td_progress_begin(const char *what, uint64_t total) {
  pthread_condattr_t attributes;
  progress.terminal = isatty(STDERR_FILENO);
  progress.total = total;
  progress.done = 0;
  progress.stop = progress.shown = false;
  progress.began_ns = td_clock_ns();
  snprintf(progress.what, sizeof progress.what, "%s", what);
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&progress.changed, &attributes);
  pthread_condattr_destroy(&attributes);
  progress.running = pthread_create(&progress.thread, NULL, draw_progress, NULL) == 0;
}

void td_progress_step(const char *what) {
  pthread_mutex_lock(&progress.lock);
  if (progress.done < progress.total)
    progress.done++;
  if (what)
    snprintf(progress.what, sizeof progress.what, "%s", what);
  pthread_mutex_unlock(&progress.lock);
}

void td_progress_end(void) {
  if (progress.running) {
    pthread_mutex_lock(&progress.lock);
    progress.stop = true;
    pthread_cond_broadcast(&progress.changed);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    pthread_cond_destroy(&progress.changed);
    progress.running = false;
  }
  if (progress.shown && progress.terminal)
    fputs("\r\x1b[K", stderr);
  progress.shown = false;
}

/* ---------------------------------------------------------------- tables */

bool td_fancy(void) {
  return isatty(STDOUT_FILENO) && strcasecmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

const char *td_bar(double fraction, int width) {
  static _Thread_local char text[256];
  static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!(fraction > 0))
    fraction = 0;
  if (fraction > 1)
    fraction = 1;
  size_t n = 0;
  *text = 0;
  if (td_fancy()) {
    int parts = (int)(fraction * width * 8 + 0.5);
    for (int i = 0; i < parts / 8 && n + 4 < sizeof text; i++)
      n += (size_t)snprintf(text + n, sizeof text - n, "█");
    snprintf(text + n, sizeof text - n, "%s", eighths[parts % 8]);
  } else {
    for (int i = 0; i < (int)(fraction * width + 0.5) && n + 1 < sizeof text; i++)
      n += (size_t)snprintf(text + n, sizeof text - n, "#");
  }
  return text;
}

/* Length of the UTF-8 sequence at `text`, 0 when there is none. */
static size_t sequence_length(const unsigned char *text) {
  size_t length = text[0] < 0x80                      ? 1
                  : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
                  : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
                  : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                                      : 0;
  for (size_t i = 1; i < length; i++)
    if ((text[i] & 0xc0) != 0x80)
      return 0;
  /* Longer than need be, a surrogate, or past the last character. */
  bool wrong = length > 2 && ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] >= 0xa0) ||
                              (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] >= 0x90));
  return wrong ? 0 : length;
}

/* Names of files and payloads may hold any byte; JSON is UTF-8, so what is none becomes '?'. */
static void make_utf8(char *text) {
  while (text && *text) {
    size_t length = sequence_length((const unsigned char *)text);
    if (length == 0)
      *text = '?';
    text += length ? length : 1;
  }
}

bool td_end_output(void) {
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout))
    return true;
  td_complain("cannot write to stdout%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
  return false;
}

bool td_print_json(cJSON *document) {
  char *text = document ? cJSON_Print(document) : NULL;
  make_utf8(text);
  cJSON_Delete(document);
  if (!text) {
    td_complain("out of memory while writing JSON");
    return false;
  }
  puts(text);
  free(text);
  return td_end_output();
}

double td_number(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItem(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const char *td_text(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItem(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

const char *td_growth_key(const cJSON *measurement) {
  return cJSON_IsNumber(cJSON_GetObjectItem(measurement, "device_memory_bytes")) ? "device_memory_bytes"
                                                                                 : "host_private_bytes";
}

void td_print_loads_head(const cJSON *measurement, bool labelled) {
  printf("%s load  engine   seconds   digest    build   %s memory\n", labelled ? "           " : "",
         td_growth_key(measurement)[0] == 'd' ? "device" : "private");
}

void td_print_loads(const cJSON *measurement, const char *label, double scale) {
  const cJSON *load;
  cJSON_ArrayForEach(load, cJSON_GetObjectItem(measurement, "loads")) {
    const cJSON *growth = cJSON_GetObjectItem(load, td_growth_key(measurement));
    double build = td_number(load, "build_seconds");
    const char *engine = cJSON_IsTrue(cJSON_GetObjectItem(load, "shared")) ? "shared"
                         : build > 0                                       ? "built"
                                                                           : "none";
    if (label)
      printf("%-10s ", label);
    printf(" %4.0f  %-6s  %8.3f %8.3f ", td_number(load, "index"), engine, td_number(load, "seconds"),
           td_number(load, "digest_seconds"));
    if (build > 0)
      printf("%8.3f ", build);
    else
      printf("%8s ", "-");
    if (cJSON_IsNumber(growth))
      printf("%8.1f MiB  %s\n", growth->valuedouble / 1048576,
             td_bar(scale > 0 ? growth->valuedouble / scale : 0, 24));
    else
      printf("%12s\n", "-");
  }
}

double td_largest_growth(const cJSON *measurement) {
  double largest = 0;
  const cJSON *load;
  cJSON_ArrayForEach(load, cJSON_GetObjectItem(measurement, "loads")) {
    double growth = td_number(load, td_growth_key(measurement));
    largest = growth > largest ? growth : largest;
  }
  return largest;
}
