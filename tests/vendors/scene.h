/* What tests of the pool play with: loads on threads of their own, latches, the waits that tandem tells its
 * host, and the lines that it logs. Nothing here waits longer than 20 s. */
#ifndef TANDEM_TESTS_SCENE_H
#define TANDEM_TESTS_SCENE_H

#include "fake.h"

#include <pthread.h>

/* One load to be made. Fill the first part; the second is the result. */
struct scene_load {
  const char *backend;
  const void *payload;
  size_t payload_size;
  struct tandem_option options[6];
  size_t option_count;
  const struct tandem_named_data *named_data;
  const char *label;
  uint32_t flags;

  struct tandem_load *load;
  enum tandem_status status;
  struct tandem_error error;
  pthread_t thread;
};

/* A load of `fake` with pairs of option keys and values up to a NULL. `payload` is borrowed. */
struct scene_load scene_load(struct fake_vendor *fake, const void *payload, size_t size, ...);
void scene_make(struct scene_load *load);  /* on this thread */
void scene_start(struct scene_load *load); /* on another one */
void scene_join(struct scene_load *load);
struct tandem_load_info scene_info(const struct scene_load *load);
struct tandem_stats scene_stats(void);
/* Destroys the load on another thread; scene_join waits for it. */
void scene_start_destroy(struct scene_load *load);
void scene_destroy(struct scene_load *load);
/* Runs with `count` floats as the last dimension; true when y is what `model` with `state` gives. */
bool scene_runs(const struct scene_load *load, const struct fake_model *model, float state);

/* A thing that threads wait for, once. Static zeroed storage is not enough: scene_latch_init. */
struct scene_latch {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool open;
};
void scene_latch_init(struct scene_latch *latch);
void scene_latch_open(struct scene_latch *latch);
void scene_latch_wait(void *latch); /* fit for fake_call_back */

/* Counts tandem's waits by its hooks; each hook also calls `also` (NULL: nothing). */
void scene_watch_waits(void (*also)(void *), void *user);
unsigned scene_waits_begun(void);
unsigned scene_waits_ended(void);
/* Waits until `count` threads are in a wait of tandem; false after 20 s. */
bool scene_wait_waiting(unsigned count);

/* Keeps tandem's log lines, up to 1024; `also` is called for each of them first (NULL: nothing). */
void scene_watch_log(void (*also)(void *user, enum tandem_log_level level, const char *line), void *user);
void scene_clear_log(void);
size_t scene_line_count(void);
/* The index of the first line that has `text`, from `from` on; -1: none. */
int scene_find_line(const char *text, int from);
enum tandem_log_level scene_line_level(int index);
const char *scene_line(int index); /* valid until scene_clear_log */

/* Whether the system gives a second mapping of the same pages, as the kernel does and qemu-user does not,
 * which refuses an old size of 0. Without it tandem copies engine bytes. */
bool scene_maps_twice(void);

#endif
