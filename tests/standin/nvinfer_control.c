/* Stand-in libnvinfer, TESTS ONLY: log lines, the orders that tests give, counters.
 *
 * Everything a test may turn is by one lock, which is never held while a logger or another library runs.
 */
#include "nvinfer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct standin_counts counts; /* by lock */

enum { STEP_LINE_SIZE = 256 };

static const char *const step_names[STANDIN_STEP_COUNT] = {
    "runtime",     "deserialize", "automatic_budget", "budget",  "context", "profile",
    "input_shape", "infer",       "address",          "scratch", "enqueue"};

static struct step {
  uint64_t calls;
  bool closed;
  unsigned inside;
  unsigned fail_in; /* calls; 0: never */
  enum standin_failure how;
  bool says, other_thread;
  int severity;
  char line[STEP_LINE_SIZE];
} steps[STANDIN_STEP_COUNT]; /* by lock */

void count(enum counter counter, int change) {
  pthread_mutex_lock(&lock);
  switch (counter) {
  case COUNTER_RUNTIMES:
    counts.runtimes += change;
    break;
  case COUNTER_ENGINES:
    counts.engines += change;
    if (counts.engines > counts.engines_peak)
      counts.engines_peak = counts.engines;
    break;
  case COUNTER_CONTEXTS:
    counts.contexts += change;
    if (counts.contexts > counts.contexts_peak)
      counts.contexts_peak = counts.contexts;
    break;
  case COUNTER_BUILDS:
    counts.builds++;
    break;
  case COUNTER_ENQUEUES:
    counts.enqueues++;
    break;
  case COUNTER_TRAPS:
    counts.traps++;
    break;
  }
  pthread_mutex_unlock(&lock);
}

void note_scratch(int64_t size) {
  pthread_mutex_lock(&lock);
  counts.scratch_told = size;
  pthread_mutex_unlock(&lock);
}

uint64_t truth(bool value) {
  return UINT64_C(0xfedcba9876543200) | (value ? 1u : 0u);
}

void misuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char text[256];
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "stand-in nvinfer: misuse: %s\n", text);
  pthread_mutex_lock(&lock);
  counts.misuses++;
  pthread_mutex_unlock(&lock);
}

static void write_line(void *logger, int severity, char *line) {
  if (!logger)
    return;
  entry *const *table = *(entry *const **)logger;
  void (*log)(void *, int32_t, const char *);
  memcpy(&log, &table[LOGGER_SLOT], sizeof log);
  log(logger, severity, line);
  memset(line, '#', strlen(line)); /* the text is the library's own, and it is gone now */
  pthread_mutex_lock(&lock);
  counts.lines++;
  pthread_mutex_unlock(&lock);
}

void say(void *logger, int severity, const char *format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  write_line(logger, severity, line);
}

struct other_line {
  void *logger;
  int severity;
  char text[STEP_LINE_SIZE];
};

static void *write_other(void *argument) {
  struct other_line *line = argument;
  write_line(line->logger, line->severity, line->text);
  return NULL;
}

static void say_from_thread(void *logger, int severity, const char *text) {
  struct other_line line = {.logger = logger, .severity = severity};
  snprintf(line.text, sizeof line.text, "%s", text);
  pthread_t thread;
  if (pthread_create(&thread, NULL, write_other, &line) == 0)
    pthread_join(thread, NULL);
}

/* ---------------------------------------------------------------- steps: gates, failures, lines */

bool begin(enum standin_step which, void *logger) {
  struct step *step = &steps[which];
  pthread_mutex_lock(&lock);
  step->calls++;
  step->inside++;
  pthread_cond_broadcast(&changed);
  while (step->closed)
    pthread_cond_wait(&changed, &lock);
  bool fails = step->fail_in && --step->fail_in == 0;
  struct step now = *step;
  pthread_mutex_unlock(&lock);
  if (now.says && now.other_thread)
    say_from_thread(logger, now.severity, now.line);
  else if (now.says)
    say(logger, now.severity, "%s", now.line);
  if (!fails)
    return true;
  if (now.how == STANDIN_FAIL_OUT_OF_MEMORY) {
    say(logger, ERROR, "[defaultAllocator.cpp::allocate::58] Error Code 1: Cuda Runtime (out of memory)");
    say(logger, WARNING, "Requested amount of GPU memory (1048576 bytes) could not be allocated.");
    say(logger, ERROR, "Error Code 2: OutOfMemory (Requested size was 1048576 bytes.)");
    say(logger, ERROR, "Error Code 10: Internal Error (stand-in: %s could not go on.)", step_names[which]);
  } else if (now.how == STANDIN_FAIL_PLAIN) {
    say(logger, ERROR, "Error Code 2: Internal Error (stand-in: %s was told to fail.)", step_names[which]);
  }
  pthread_mutex_lock(&lock);
  step->inside--;
  pthread_mutex_unlock(&lock);
  return false;
}

void end(enum standin_step which) {
  pthread_mutex_lock(&lock);
  steps[which].inside--;
  pthread_mutex_unlock(&lock);
}

/* ---------------------------------------------------------------- what tests turn */

static void fail_at(enum standin_step step, unsigned nth, enum standin_failure how) {
  pthread_mutex_lock(&lock);
  steps[step].fail_in = nth;
  steps[step].how = how;
  pthread_mutex_unlock(&lock);
}

static void set_gate(enum standin_step step, bool closed) {
  pthread_mutex_lock(&lock);
  steps[step].closed = closed;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void gate_close(enum standin_step step) {
  set_gate(step, true);
}

static void gate_open(enum standin_step step) {
  set_gate(step, false);
}

static bool wait_inside(enum standin_step step, unsigned number) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  pthread_mutex_lock(&lock);
  int waited = 0;
  while (steps[step].inside < number && !waited)
    waited = pthread_cond_timedwait(&changed, &lock, &until);
  bool reached = steps[step].inside >= number;
  pthread_mutex_unlock(&lock);
  return reached;
}

static void order_line(enum standin_step step, int severity, const char *line, bool other_thread) {
  pthread_mutex_lock(&lock);
  steps[step].says = line != NULL;
  steps[step].severity = severity;
  steps[step].other_thread = other_thread;
  snprintf(steps[step].line, sizeof steps[step].line, "%s", line ? line : "");
  pthread_mutex_unlock(&lock);
}

static uint64_t count_calls(enum standin_step step) {
  pthread_mutex_lock(&lock);
  uint64_t calls = steps[step].calls;
  pthread_mutex_unlock(&lock);
  return calls;
}

static void get_counts(struct standin_counts *to) {
  pthread_mutex_lock(&lock);
  *to = counts;
  pthread_mutex_unlock(&lock);
}

static void reset(void) {
  prepare();
  pthread_mutex_lock(&lock);
  for (int i = 0; i < STANDIN_STEP_COUNT; i++) {
    unsigned inside = steps[i].inside;
    memset(&steps[i], 0, sizeof steps[i]);
    steps[i].inside = inside;
  }
  struct standin_counts fresh = {.runtimes = counts.runtimes,
                                 .engines = counts.engines,
                                 .contexts = counts.contexts,
                                 .engines_peak = counts.engines,
                                 .contexts_peak = counts.contexts};
  counts = fresh;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static int find_step(const char *name) {
  for (int i = 0; i < STANDIN_STEP_COUNT; i++)
    if (strcmp(step_names[i], name) == 0)
      return i;
  fprintf(stderr, "stand-in nvinfer: no step '%s'\n", name);
  return -1;
}

void read_orders(void) {
  char text[512];
  snprintf(text, sizeof text, "%s", getenv("STANDIN_FAIL") ? getenv("STANDIN_FAIL") : "");
  char *rest = NULL;
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    char name[64], how[32] = "plain";
    unsigned nth = 1;
    sscanf(part, "%63[^:]:%u:%31s", name, &nth, how);
    int step = find_step(name);
    if (step >= 0)
      fail_at((enum standin_step)step, nth,
              strcmp(how, "out_of_memory") == 0 ? STANDIN_FAIL_OUT_OF_MEMORY
              : strcmp(how, "silent") == 0      ? STANDIN_FAIL_SILENT
                                                : STANDIN_FAIL_PLAIN);
  }
  snprintf(text, sizeof text, "%s", getenv("STANDIN_SAY") ? getenv("STANDIN_SAY") : "");
  for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
    int step = find_step(part);
    if (step >= 0)
      order_line((enum standin_step)step, INFO, "stand-in: a line from a thread of the library", true);
  }
}

EXPORT const struct standin_nvinfer *standin_nvinfer_control(void) {
  static const struct standin_nvinfer control = {
      .struct_size = sizeof control,
      .version = BUILT_VERSION,
      .fail_at = fail_at,
      .gate_close = gate_close,
      .gate_open = gate_open,
      .wait_inside = wait_inside,
      .say = order_line,
      .calls = count_calls,
      .counts = get_counts,
      .reset = reset,
  };
  prepare();
  return &control;
}

/* For ctypes. */
EXPORT int standin_fail_at(const char *step, unsigned nth, int how);
EXPORT uint64_t standin_builds(void);
EXPORT int64_t standin_engines(void);
EXPORT uint64_t standin_misuses(void);

EXPORT int standin_fail_at(const char *name, unsigned nth, int how) {
  int step = find_step(name);
  prepare();
  if (step >= 0)
    fail_at((enum standin_step)step, nth, (enum standin_failure)how);
  return step < 0;
}

EXPORT uint64_t standin_builds(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.builds;
}

EXPORT int64_t standin_engines(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.engines;
}

EXPORT uint64_t standin_misuses(void) {
  struct standin_counts now;
  get_counts(&now);
  return now.misuses + now.traps;
}
