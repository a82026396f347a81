/* Threads, latches and records for tests. Every wait has a limit, so that a fault of tandem shows as a false
 * or a message and not as a hang. The records have locks of their own, since tandem calls hooks and the sink
 * from any thread.
 */
#include "scene.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 20, LINES_MAX = 1024, FLOATS_MAX = 256 };

static struct timespec limit(void) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_sec += LIMIT_S;
  return at;
}

/* ---------------------------------------------------------------- loads */

struct scene_load scene_load(struct fake_vendor *fake, const void *payload, size_t size, ...) {
  struct scene_load load = {
      .backend = fake_vendor_table(fake)->backend, .payload = payload, .payload_size = size};
  va_list list;
  va_start(list, size);
  for (const char *key; (key = va_arg(list, const char *)) != NULL;)
    load.options[load.option_count++] = (struct tandem_option){key, va_arg(list, const char *)};
  va_end(list);
  return load;
}

void scene_make(struct scene_load *load) {
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = load->backend,
                                  .payload = load->payload,
                                  .payload_size = load->payload_size,
                                  .options = load->options,
                                  .option_count = load->option_count,
                                  .named_data = load->named_data,
                                  .label = load->label,
                                  .flags = load->flags};
  load->status = tandem_load_create(&desc, &load->load, &load->error);
}

static void *make_there(void *load) {
  scene_make(load);
  return NULL;
}

static void start(struct scene_load *load, void *(*function)(void *)) {
  if (pthread_create(&load->thread, NULL, function, load) != 0) {
    fprintf(stderr, "no thread for a test\n");
    exit(1);
  }
}

void scene_start(struct scene_load *load) {
  start(load, make_there);
}

void scene_join(struct scene_load *load) {
  pthread_join(load->thread, NULL);
}

static void *destroy_there(void *load) {
  scene_destroy(load);
  return NULL;
}

void scene_start_destroy(struct scene_load *load) {
  start(load, destroy_there);
}

void scene_destroy(struct scene_load *load) {
  tandem_load_destroy(load->load);
  load->load = NULL;
}

struct tandem_load_info scene_info(const struct scene_load *load) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  if (!load->load || tandem_load_get_info(load->load, &info, NULL) != TANDEM_OK)
    fprintf(stderr, "no information of a load: %s\n", load->error.message);
  return info;
}

struct tandem_stats scene_stats(void) {
  struct tandem_stats stats = {.struct_size = sizeof stats};
  if (tandem_stats_get(&stats, NULL) != TANDEM_OK)
    fprintf(stderr, "no statistics\n");
  return stats;
}

bool scene_runs(const struct scene_load *load, const struct fake_model *model, float state) {
  float x[FLOATS_MAX], y[FLOATS_MAX], expected[FLOATS_MAX];
  size_t count = 1;
  struct tandem_tensor in = {.data = x, .dtype = TANDEM_FLOAT32, .rank = model->rank};
  for (int32_t i = 0; i < model->rank; i++) {
    in.shape[i] = model->max[i];
    count *= (size_t)model->max[i];
  }
  for (size_t i = 0; i < count; i++) {
    x[i] = (float)(i % 7) + 1.0f;
    y[i] = NAN;
  }
  in.size = count * sizeof *x;
  struct tandem_tensor out = in;
  out.data = y;
  struct tandem_run_desc desc = {
      .struct_size = sizeof desc, .inputs = &in, .input_count = 1, .outputs = &out, .output_count = 1};
  struct tandem_error error = {0};
  if (!load->load || tandem_load_run(load->load, &desc, &error) != TANDEM_OK) {
    fprintf(stderr, "run: %s\n", load->load ? error.message : load->error.message);
    return false;
  }
  fake_expect(model, x, count, state, expected);
  return memcmp(y, expected, count * sizeof *y) == 0;
}

/* ---------------------------------------------------------------- latches */

void scene_latch_init(struct scene_latch *latch) {
  pthread_mutex_init(&latch->mutex, NULL);
  pthread_cond_init(&latch->changed, NULL);
  latch->open = false;
}

void scene_latch_open(struct scene_latch *latch) {
  pthread_mutex_lock(&latch->mutex);
  latch->open = true;
  pthread_cond_broadcast(&latch->changed);
  pthread_mutex_unlock(&latch->mutex);
}

void scene_latch_wait(void *opaque) {
  struct scene_latch *latch = opaque;
  struct timespec until = limit();
  pthread_mutex_lock(&latch->mutex);
  int late = 0;
  while (!latch->open && !late)
    late = pthread_cond_timedwait(&latch->changed, &latch->mutex, &until);
  pthread_mutex_unlock(&latch->mutex);
  if (late)
    fprintf(stderr, "a test left a latch closed for %d s\n", LIMIT_S);
}

/* ---------------------------------------------------------------- waits */

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  unsigned begun, ended;
  void (*also)(void *);
  void *user;
} waits = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void begin_wait(void *user) {
  (void)user;
  if (waits.also)
    waits.also(waits.user);
  pthread_mutex_lock(&waits.mutex);
  waits.begun++;
  pthread_cond_broadcast(&waits.changed);
  pthread_mutex_unlock(&waits.mutex);
}

static void end_wait(void *user) {
  (void)user;
  pthread_mutex_lock(&waits.mutex);
  waits.ended++;
  pthread_cond_broadcast(&waits.changed);
  pthread_mutex_unlock(&waits.mutex);
  if (waits.also)
    waits.also(waits.user);
}

void scene_watch_waits(void (*also)(void *), void *user) {
  pthread_mutex_lock(&waits.mutex);
  waits.begun = waits.ended = 0;
  waits.also = also;
  waits.user = user;
  pthread_mutex_unlock(&waits.mutex);
  tandem_set_wait_hooks(begin_wait, end_wait, NULL);
}

static unsigned read_count(const unsigned *count) {
  pthread_mutex_lock(&waits.mutex);
  unsigned value = *count;
  pthread_mutex_unlock(&waits.mutex);
  return value;
}

unsigned scene_waits_begun(void) {
  return read_count(&waits.begun);
}

unsigned scene_waits_ended(void) {
  return read_count(&waits.ended);
}

bool scene_wait_waiting(unsigned count) {
  struct timespec until = limit();
  pthread_mutex_lock(&waits.mutex);
  int late = 0;
  while (waits.begun - waits.ended < count && !late)
    late = pthread_cond_timedwait(&waits.changed, &waits.mutex, &until);
  bool there = waits.begun - waits.ended >= count;
  pthread_mutex_unlock(&waits.mutex);
  return there;
}

/* ---------------------------------------------------------------- log */

static struct {
  pthread_mutex_t mutex;
  enum tandem_log_level levels[LINES_MAX];
  char *lines[LINES_MAX];
  size_t count;
  void (*also)(void *, enum tandem_log_level, const char *);
  void *user;
} kept = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void keep_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user;
  if (kept.also)
    kept.also(kept.user, level, line);
  pthread_mutex_lock(&kept.mutex);
  if (kept.count < LINES_MAX && (kept.lines[kept.count] = strdup(line)) != NULL)
    kept.levels[kept.count++] = level;
  pthread_mutex_unlock(&kept.mutex);
}

void scene_watch_log(void (*also)(void *, enum tandem_log_level, const char *), void *user) {
  scene_clear_log();
  kept.also = also;
  kept.user = user;
  tandem_set_log_sink(keep_line, NULL);
}

void scene_clear_log(void) {
  pthread_mutex_lock(&kept.mutex);
  while (kept.count > 0)
    free(kept.lines[--kept.count]);
  pthread_mutex_unlock(&kept.mutex);
}

size_t scene_line_count(void) {
  pthread_mutex_lock(&kept.mutex);
  size_t count = kept.count;
  pthread_mutex_unlock(&kept.mutex);
  return count;
}

int scene_find_line(const char *text, int from) {
  int found = -1;
  pthread_mutex_lock(&kept.mutex);
  for (int i = from; i < (int)kept.count && found < 0; i++)
    if (strstr(kept.lines[i], text))
      found = i;
  pthread_mutex_unlock(&kept.mutex);
  return found;
}

enum tandem_log_level scene_line_level(int index) {
  pthread_mutex_lock(&kept.mutex);
  enum tandem_log_level level = kept.levels[index];
  pthread_mutex_unlock(&kept.mutex);
  return level;
}

const char *scene_line(int index) {
  pthread_mutex_lock(&kept.mutex);
  const char *line = kept.lines[index];
  pthread_mutex_unlock(&kept.mutex);
  return line;
}

/* ---------------------------------------------------------------- fork */

static void lock_records(void) {
  pthread_mutex_lock(&waits.mutex);
  pthread_mutex_lock(&kept.mutex);
}

static void unlock_records(void) {
  pthread_mutex_unlock(&kept.mutex);
  pthread_mutex_unlock(&waits.mutex);
}

static void unlock_records_of_child(void) {
  pthread_cond_init(&waits.changed, NULL); /* who waited in the parent is not here */
  unlock_records();
}

__attribute__((constructor)) static void guard_fork(void) {
  pthread_atfork(lock_records, unlock_records, unlock_records_of_child);
}

/* ---------------------------------------------------------------- the system */

bool scene_maps_twice(void) {
  size_t size = (size_t)sysconf(_SC_PAGESIZE);
  void *map = mmap(NULL, size, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void *again = map != MAP_FAILED ? mremap(map, 0, size, MREMAP_MAYMOVE) : MAP_FAILED;
  if (map != MAP_FAILED)
    munmap(map, size);
  return again != MAP_FAILED && munmap(again, size) == 0;
}
