/* What a test turns on the fake vendor, and the watch over what tandem promises to vendors.
 *
 * Every entry of the table goes through enter and leave, which count, stop at gates, say lines and inject
 * faults, so fake.c knows nothing of tests. The order inside enter is fixed (count, gate, delay, call-back,
 * lines, fault) and a test may rely on it. No lock is held while anything of tandem or of the test is called.
 * Every wait is bounded: a gate that stays closed for 60 s is a violation with the entry's name, not a hang.
 *
 * The table's entries get no argument that tells the instance, so a macro makes one set of them a slot.
 */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOT_COUNT = 12, LINE_MAX_COUNT = 4, OBJECT_MAX = 4096 };

static const char *const entry_names[FAKE_ENTRY_COUNT] = {
    "open",           "parse",          "payload_destroy", "describe", "resolve", "build",
    "engine_destroy", "context_create", "context_destroy", "run",      "reset",   "memory"};

struct line {
  enum tandem_log_level level;
  enum tandem_status status;
  const char *text;
  unsigned times;
  bool own_thread;
};

struct watch {
  uint64_t count;
  unsigned inside, peak_inside;
  bool closed;
  unsigned passes;
  unsigned delay_ms;
  uint64_t fail_first, fail_last; /* counts of calls; 0: none */
  enum tandem_status fail_status;
  const char *fail_text;
  struct line lines[LINE_MAX_COUNT];
  unsigned line_count;
  unsigned call_backs;
  void (*call_back)(void *);
  void *call_back_user;
};

struct object {
  void *address;
  void *engine; /* of a context */
  uint64_t twin;
  unsigned contexts;
  bool busy;
};

struct fake_vendor {
  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  struct tandem_vendor table;
  char name[32], backend[64];
  const struct tandem_host *host;
  struct watch watches[FAKE_ENTRY_COUNT];
  uint64_t memory_size, memory_used;
  struct object *engines, *contexts;
  size_t engine_count, context_count;
  uint64_t payload_count;
  uint64_t peak_copies;
  uint64_t violations;
  char violation[160];
};

static struct fake_vendor slots[SLOT_COUNT];
static size_t slot_count;

static void complain_locked(struct fake_vendor *fake, const char *what) {
  if (fake->violations++ == 0)
    snprintf(fake->violation, sizeof fake->violation, "%s", what);
}

static struct timespec after_seconds(time_t seconds) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  at.tv_sec += seconds;
  return at;
}

/* ---------------------------------------------------------------- enter and leave */

struct say {
  struct fake_vendor *fake;
  struct line line;
};

static void *say_line(void *opaque) {
  struct say *say = opaque;
  for (unsigned i = 0; i < say->line.times; i++)
    say->fake->host->log(&say->fake->table, say->line.level, say->line.status, say->line.text);
  return NULL;
}

static void say_lines(struct fake_vendor *fake, const struct line *lines, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    struct say say = {fake, lines[i]};
    pthread_t thread;
    if (!lines[i].own_thread)
      say_line(&say);
    else if (pthread_create(&thread, NULL, say_line, &say) == 0)
      pthread_join(thread, NULL);
  }
}

static void wait_gate_locked(struct fake_vendor *fake, struct watch *watch, enum fake_entry entry) {
  struct timespec until = after_seconds(60);
  while (watch->closed && watch->passes == 0) {
    if (pthread_cond_timedwait(&fake->changed, &fake->mutex, &until) != 0) {
      char text[96];
      snprintf(text, sizeof text, "the test left the gate of %s closed for 60 s", entry_names[entry]);
      complain_locked(fake, text);
      return;
    }
  }
  if (watch->closed)
    watch->passes--;
}

/* True when the call is to fail with *status. */
static bool enter(struct fake_vendor *fake, enum fake_entry entry, enum tandem_status *status,
                  struct tandem_error *error) {
  struct watch *watch = &fake->watches[entry];
  pthread_mutex_lock(&fake->mutex);
  uint64_t number = ++watch->count;
  watch->inside++;
  if (watch->inside > watch->peak_inside)
    watch->peak_inside = watch->inside;
  pthread_cond_broadcast(&fake->changed);
  wait_gate_locked(fake, watch, entry);
  unsigned delay_ms = watch->delay_ms;
  void (*call_back)(void *) = NULL;
  void *call_back_user = watch->call_back_user;
  if (watch->call_backs) {
    watch->call_backs--;
    call_back = watch->call_back;
  }
  struct line lines[LINE_MAX_COUNT];
  unsigned line_count = watch->line_count;
  memcpy(lines, watch->lines, sizeof lines);
  bool fails = watch->fail_first && number >= watch->fail_first && number <= watch->fail_last;
  const char *text = watch->fail_text;
  *status = fails ? watch->fail_status : TANDEM_OK;
  pthread_mutex_unlock(&fake->mutex);

  if (delay_ms) {
    struct timespec pause = {.tv_sec = delay_ms / 1000, .tv_nsec = (long)(delay_ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
  }
  if (call_back)
    call_back(call_back_user);
  say_lines(fake, lines, line_count);
  if (fails && text && error)
    fake->host->fail(error, *status, "%s", text);
  return fails;
}

static void leave(struct fake_vendor *fake, enum fake_entry entry) {
  pthread_mutex_lock(&fake->mutex);
  fake->watches[entry].inside--;
  pthread_cond_broadcast(&fake->changed);
  pthread_mutex_unlock(&fake->mutex);
}

static enum tandem_status tell_memory(struct fake_vendor *fake, uint64_t *free_bytes, uint64_t *total_bytes) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t size = fake->memory_size ? fake->memory_size : (uint64_t)1 << 40;
  *total_bytes = size;
  *free_bytes = size > fake->memory_used ? size - fake->memory_used : 0;
  pthread_mutex_unlock(&fake->mutex);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- one set of entries a slot */

/* clang-format off */
#define FALLIBLE(fake, entry, error, call)                                                                   \
  enum tandem_status status;                                                                                 \
  if (!enter(fake, entry, &status, error))                                                                   \
    status = (call);                                                                                         \
  leave(fake, entry);                                                                                        \
  return status
#define INFALLIBLE(fake, entry, call)                                                                        \
  enum tandem_status status;                                                                                 \
  enter(fake, entry, &status, NULL);                                                                         \
  call;                                                                                                      \
  leave(fake, entry)

#define SLOT(n)                                                                                              \
  static enum tandem_status open_##n(const struct tandem_host *host, struct tandem_vendor_library *library,  \
                                     struct tandem_error *error) {                                           \
    note_host(&slots[n], host);                                                                              \
    FALLIBLE(&slots[n], FAKE_OPEN, error, fake_calls.open(&slots[n], host, library, error));                 \
  }                                                                                                          \
  static enum tandem_status parse_##n(const struct tandem_host *host, const void *bytes, size_t size,        \
                                      const struct tandem_named_data *named, struct tandem_payload *payload, \
                                      struct tandem_error *error) {                                          \
    note_host(&slots[n], host);                                                                              \
    FALLIBLE(&slots[n], FAKE_PARSE, error,                                                                   \
             fake_calls.parse(&slots[n], host, bytes, size, named, payload, error));                         \
  }                                                                                                          \
  static void payload_destroy_##n(struct tandem_payload *payload) {                                          \
    INFALLIBLE(&slots[n], FAKE_PAYLOAD_DESTROY, fake_calls.payload_destroy(&slots[n], payload));             \
  }                                                                                                          \
  static void describe_##n(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {          \
    INFALLIBLE(&slots[n], FAKE_DESCRIBE, fake_calls.describe(&slots[n], payload, fact, user));               \
  }                                                                                                          \
  static enum tandem_status resolve_##n(const struct tandem_payload *payload, const char *const *options,    \
                                        struct tandem_resolution *resolution, struct tandem_error *error) {  \
    FALLIBLE(&slots[n], FAKE_RESOLVE, error,                                                                 \
             fake_calls.resolve(&slots[n], payload, options, resolution, error));                            \
  }                                                                                                          \
  static enum tandem_status build_##n(const struct tandem_build_desc *desc, void **engine,                   \
                                      struct tandem_engine_info *info, struct tandem_error *error) {         \
    FALLIBLE(&slots[n], FAKE_BUILD, error, fake_calls.build(&slots[n], desc, engine, info, error));          \
  }                                                                                                          \
  static void engine_destroy_##n(void *engine) {                                                             \
    INFALLIBLE(&slots[n], FAKE_ENGINE_DESTROY, fake_calls.engine_destroy(&slots[n], engine));                \
  }                                                                                                          \
  static enum tandem_status context_create_##n(void *engine, const struct tandem_context_desc *desc,         \
                                               void **context, struct tandem_context_io *io,                 \
                                               struct tandem_error *error) {                                 \
    FALLIBLE(&slots[n], FAKE_CONTEXT_CREATE, error,                                                          \
             fake_calls.context_create(&slots[n], engine, desc, context, io, error));                        \
  }                                                                                                          \
  static void context_destroy_##n(void *context) {                                                           \
    INFALLIBLE(&slots[n], FAKE_CONTEXT_DESTROY, fake_calls.context_destroy(&slots[n], context));             \
  }                                                                                                          \
  static enum tandem_status run_##n(void *context, const struct tandem_run_desc *desc,                       \
                                    struct tandem_error *error) {                                            \
    FALLIBLE(&slots[n], FAKE_RUN, error, fake_calls.run(&slots[n], context, desc, error));                   \
  }                                                                                                          \
  static enum tandem_status reset_##n(void *context, struct tandem_error *error) {                           \
    FALLIBLE(&slots[n], FAKE_RESET, error, fake_calls.reset(&slots[n], context, error));                     \
  }                                                                                                          \
  static enum tandem_status memory_##n(const struct tandem_resolution *resolution, uint64_t *free_bytes,     \
                                       uint64_t *total_bytes, struct tandem_error *error) {                  \
    (void)resolution;                                                                                        \
    FALLIBLE(&slots[n], FAKE_MEMORY, error, tell_memory(&slots[n], free_bytes, total_bytes));                \
  }

#define SLOTS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static void note_host(struct fake_vendor *fake, const struct tandem_host *host) {
  pthread_mutex_lock(&fake->mutex);
  if (!fake->host)
    fake->host = host;
  pthread_mutex_unlock(&fake->mutex);
}

SLOTS(SLOT)

#define ENTRIES(n)                                                                                           \
  {.abi_version = TANDEM_VENDOR_ABI, .struct_size = sizeof(struct tandem_vendor), .options = fake_options,   \
   .open = open_##n, .parse = parse_##n, .payload_destroy = payload_destroy_##n, .describe = describe_##n,   \
   .resolve = resolve_##n, .build = build_##n, .engine_destroy = engine_destroy_##n,                         \
   .context_create = context_create_##n, .context_destroy = context_destroy_##n, .run = run_##n,             \
   .reset = reset_##n, .memory = memory_##n},

static const struct tandem_vendor tables[SLOT_COUNT] = {SLOTS(ENTRIES)};
/* clang-format on */

/* ---------------------------------------------------------------- instances */

static void init_changed(struct fake_vendor *fake) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&fake->changed, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* A thread at a gate wakes up whenever something changes: a fork must not find it with the mutex. */
static void lock_all(void) {
  for (size_t i = 0; i < slot_count; i++)
    pthread_mutex_lock(&slots[i].mutex);
}

static void unlock_all(void) {
  for (size_t i = 0; i < slot_count; i++)
    pthread_mutex_unlock(&slots[i].mutex);
}

/* Who waited in the parent is not here. */
static void unlock_child(void) {
  for (size_t i = 0; i < slot_count; i++)
    init_changed(&slots[i]);
  unlock_all();
}

struct fake_vendor *fake_vendor_create(const char *name, const char *backend, uint32_t flags) {
  if (slot_count == SLOT_COUNT)
    return NULL;
  struct fake_vendor *fake = &slots[slot_count];
  if (slot_count == 0 && pthread_atfork(lock_all, unlock_all, unlock_child) != 0)
    return NULL;
  pthread_mutex_init(&fake->mutex, NULL);
  init_changed(fake);
  fake->engines = calloc(OBJECT_MAX, sizeof *fake->engines);
  fake->contexts = calloc(OBJECT_MAX, sizeof *fake->contexts);
  snprintf(fake->name, sizeof fake->name, "%s", name);
  snprintf(fake->backend, sizeof fake->backend, "%s", backend);
  fake->table = tables[slot_count];
  fake->table.name = fake->name;
  fake->table.backend = fake->backend;
  fake->table.flags = flags;
  fake->table.option_count = fake_option_count;
  struct tandem_error error;
  if (!fake->engines || !fake->contexts || tandem_vendor_register(&fake->table, &error) != TANDEM_OK) {
    fprintf(stderr, "fake vendor %s: %s\n", name, error.message);
    free(fake->engines);
    free(fake->contexts);
    return NULL;
  }
  slot_count++;
  return fake;
}

const struct tandem_vendor *fake_vendor_table(struct fake_vendor *fake) {
  return &fake->table;
}

void fake_vendor_reset(struct fake_vendor *fake) {
  pthread_mutex_lock(&fake->mutex);
  for (int i = 0; i < FAKE_ENTRY_COUNT; i++) {
    unsigned inside = fake->watches[i].inside;
    fake->watches[i] = (struct watch){.inside = inside};
  }
  fake->memory_size = 0;
  fake->peak_copies = 0;
  fake->violations = 0;
  pthread_cond_broadcast(&fake->changed);
  pthread_mutex_unlock(&fake->mutex);
}

uint64_t fake_count(struct fake_vendor *fake, enum fake_entry entry) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t count = fake->watches[entry].count;
  pthread_mutex_unlock(&fake->mutex);
  return count;
}

void fake_gate_close(struct fake_vendor *fake, enum fake_entry entry) {
  pthread_mutex_lock(&fake->mutex);
  fake->watches[entry].closed = true;
  fake->watches[entry].passes = 0;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_gate_open(struct fake_vendor *fake, enum fake_entry entry) {
  pthread_mutex_lock(&fake->mutex);
  fake->watches[entry].closed = false;
  pthread_cond_broadcast(&fake->changed);
  pthread_mutex_unlock(&fake->mutex);
}

void fake_gate_pass(struct fake_vendor *fake, enum fake_entry entry, unsigned count) {
  pthread_mutex_lock(&fake->mutex);
  fake->watches[entry].passes += count;
  pthread_cond_broadcast(&fake->changed);
  pthread_mutex_unlock(&fake->mutex);
}

unsigned fake_peak_inside(struct fake_vendor *fake, enum fake_entry entry) {
  pthread_mutex_lock(&fake->mutex);
  unsigned peak = fake->watches[entry].peak_inside;
  pthread_mutex_unlock(&fake->mutex);
  return peak;
}

bool fake_wait_inside(struct fake_vendor *fake, enum fake_entry entry, unsigned count) {
  struct timespec until = after_seconds(20);
  pthread_mutex_lock(&fake->mutex);
  int late = 0;
  while (fake->watches[entry].inside < count && !late)
    late = pthread_cond_timedwait(&fake->changed, &fake->mutex, &until);
  bool there = fake->watches[entry].inside >= count;
  pthread_mutex_unlock(&fake->mutex);
  return there;
}

bool fake_wait_count(struct fake_vendor *fake, enum fake_entry entry, uint64_t count) {
  struct timespec until = after_seconds(20);
  pthread_mutex_lock(&fake->mutex);
  int late = 0;
  while (fake->watches[entry].count < count && !late)
    late = pthread_cond_timedwait(&fake->changed, &fake->mutex, &until);
  bool there = fake->watches[entry].count >= count;
  pthread_mutex_unlock(&fake->mutex);
  return there;
}

void fake_delay(struct fake_vendor *fake, enum fake_entry entry, unsigned milliseconds) {
  pthread_mutex_lock(&fake->mutex);
  fake->watches[entry].delay_ms = milliseconds;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_fail_at(struct fake_vendor *fake, enum fake_entry entry, uint64_t first, uint64_t times,
                  enum tandem_status status, const char *text) {
  pthread_mutex_lock(&fake->mutex);
  struct watch *watch = &fake->watches[entry];
  watch->fail_first = watch->count + first;
  watch->fail_last = times > UINT64_MAX - watch->fail_first ? UINT64_MAX : watch->fail_first + times - 1;
  if (times == 0)
    watch->fail_first = 0;
  watch->fail_status = status;
  watch->fail_text = text;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_say(struct fake_vendor *fake, enum fake_entry entry, enum tandem_log_level level,
              enum tandem_status status, const char *text, unsigned times, bool own_thread) {
  pthread_mutex_lock(&fake->mutex);
  struct watch *watch = &fake->watches[entry];
  if (watch->line_count < LINE_MAX_COUNT)
    watch->lines[watch->line_count++] = (struct line){level, status, text, times, own_thread};
  pthread_mutex_unlock(&fake->mutex);
}

void fake_call_back(struct fake_vendor *fake, enum fake_entry entry, unsigned times, void (*callback)(void *),
                    void *user) {
  pthread_mutex_lock(&fake->mutex);
  struct watch *watch = &fake->watches[entry];
  watch->call_backs = times;
  watch->call_back = callback;
  watch->call_back_user = user;
  pthread_mutex_unlock(&fake->mutex);
}

/* ---------------------------------------------------------------- the device */

void fake_set_memory(struct fake_vendor *fake, uint64_t bytes) {
  pthread_mutex_lock(&fake->mutex);
  fake->memory_size = bytes;
  pthread_mutex_unlock(&fake->mutex);
}

enum tandem_status fake_take(struct fake_vendor *fake, uint64_t bytes, const char *what,
                             struct tandem_error *error) {
  pthread_mutex_lock(&fake->mutex);
  bool fits = fake->memory_size == 0 ||
              (fake->memory_used <= fake->memory_size && bytes <= fake->memory_size - fake->memory_used);
  if (fits)
    fake->memory_used += bytes;
  pthread_mutex_unlock(&fake->mutex);
  if (fits)
    return TANDEM_OK;
  char line[128];
  snprintf(line, sizeof line, "fake device: cannot allocate %llu bytes for %s", (unsigned long long)bytes,
           what);
  fake->host->log(&fake->table, TANDEM_LOG_ERROR, TANDEM_OUT_OF_MEMORY, line);
  return fake->host->fail(error, TANDEM_OUT_OF_MEMORY, "%s does not fit: %llu bytes", what,
                          (unsigned long long)bytes);
}

void fake_give(struct fake_vendor *fake, uint64_t bytes) {
  pthread_mutex_lock(&fake->mutex);
  if (bytes > fake->memory_used)
    complain_locked(fake, "more device memory given back than taken");
  else
    fake->memory_used -= bytes;
  pthread_mutex_unlock(&fake->mutex);
}

static struct object *find_locked(struct object *objects, size_t count, const void *address) {
  for (size_t i = 0; i < count; i++)
    if (objects[i].address == address)
      return &objects[i];
  return NULL;
}

void fake_engine_born(struct fake_vendor *fake, void *engine, uint64_t twin) {
  pthread_mutex_lock(&fake->mutex);
  if (fake->engine_count < OBJECT_MAX) {
    fake->engines[fake->engine_count++] = (struct object){.address = engine, .twin = twin};
    uint64_t copies = 0;
    for (size_t i = 0; i < fake->engine_count; i++)
      copies += fake->engines[i].twin == twin;
    if (copies > fake->peak_copies)
      fake->peak_copies = copies;
  } else {
    complain_locked(fake, "the test keeps more engines than the fake vendor can watch");
  }
  pthread_mutex_unlock(&fake->mutex);
}

void fake_engine_died(struct fake_vendor *fake, void *engine) {
  pthread_mutex_lock(&fake->mutex);
  struct object *object = find_locked(fake->engines, fake->engine_count, engine);
  if (!object) {
    complain_locked(fake, "engine_destroy of something that is no live engine");
  } else {
    if (object->contexts)
      complain_locked(fake, "engine_destroy before the engine's contexts were destroyed");
    *object = fake->engines[--fake->engine_count];
  }
  pthread_mutex_unlock(&fake->mutex);
}

void fake_context_born(struct fake_vendor *fake, void *context, void *engine) {
  pthread_mutex_lock(&fake->mutex);
  struct object *object = find_locked(fake->engines, fake->engine_count, engine);
  if (!object)
    complain_locked(fake, "context_create with an engine that is not alive");
  else
    object->contexts++;
  if (fake->context_count < OBJECT_MAX)
    fake->contexts[fake->context_count++] = (struct object){.address = context, .engine = engine};
  else
    complain_locked(fake, "the test keeps more contexts than the fake vendor can watch");
  pthread_mutex_unlock(&fake->mutex);
}

void fake_context_died(struct fake_vendor *fake, void *context) {
  pthread_mutex_lock(&fake->mutex);
  struct object *object = find_locked(fake->contexts, fake->context_count, context);
  if (!object) {
    complain_locked(fake, "context_destroy of something that is no live context");
  } else {
    if (object->busy)
      complain_locked(fake, "context_destroy during a run of it");
    struct object *engine = find_locked(fake->engines, fake->engine_count, object->engine);
    if (!engine)
      complain_locked(fake, "context_destroy after its engine was destroyed");
    else
      engine->contexts--;
    *object = fake->contexts[--fake->context_count];
  }
  pthread_mutex_unlock(&fake->mutex);
}

void fake_context_busy(struct fake_vendor *fake, void *context, bool busy) {
  pthread_mutex_lock(&fake->mutex);
  struct object *object = find_locked(fake->contexts, fake->context_count, context);
  if (!object)
    complain_locked(fake, "run or reset of something that is no live context");
  else if (object->busy == busy)
    complain_locked(fake, "two calls with one context at once");
  else
    object->busy = busy;
  pthread_mutex_unlock(&fake->mutex);
}

static void count_payload(struct fake_vendor *fake, bool born) {
  pthread_mutex_lock(&fake->mutex);
  if (!born && fake->payload_count == 0)
    complain_locked(fake, "payload_destroy of a payload that was not parsed");
  else
    fake->payload_count = born ? fake->payload_count + 1 : fake->payload_count - 1;
  pthread_mutex_unlock(&fake->mutex);
}

void fake_payload_born(struct fake_vendor *fake) {
  count_payload(fake, true);
}

void fake_payload_died(struct fake_vendor *fake) {
  count_payload(fake, false);
}

static uint64_t read_number(struct fake_vendor *fake, const uint64_t *number) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t value = *number;
  pthread_mutex_unlock(&fake->mutex);
  return value;
}

uint64_t fake_memory_used(struct fake_vendor *fake) {
  return read_number(fake, &fake->memory_used);
}

uint64_t fake_live_engines(struct fake_vendor *fake) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t count = fake->engine_count;
  pthread_mutex_unlock(&fake->mutex);
  return count;
}

uint64_t fake_live_contexts(struct fake_vendor *fake) {
  pthread_mutex_lock(&fake->mutex);
  uint64_t count = fake->context_count;
  pthread_mutex_unlock(&fake->mutex);
  return count;
}

uint64_t fake_live_payloads(struct fake_vendor *fake) {
  return read_number(fake, &fake->payload_count);
}

uint64_t fake_peak_copies(struct fake_vendor *fake) {
  return read_number(fake, &fake->peak_copies);
}

uint64_t fake_violations(struct fake_vendor *fake, const char **what) {
  if (what)
    *what = fake->violation;
  return read_number(fake, &fake->violations);
}

const struct tandem_host *fake_host(struct fake_vendor *fake) {
  return fake->host;
}

bool fake_keeps_bytes(struct fake_vendor *fake) {
  return fake->table.flags & TANDEM_VENDOR_KEEPS_ENGINE_BYTES;
}

bool fake_has_budget(struct fake_vendor *fake) {
  return fake->table.flags & TANDEM_VENDOR_HAS_BUDGET;
}

const char *fake_name(struct fake_vendor *fake) {
  return fake->name;
}
