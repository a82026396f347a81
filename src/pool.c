/* The pool: one engine an identity, however many loads race for it.
 *
 * The lock rule: `pool.lock` guards every field of `pool`, of the entries and of the leases, and is never
 * held across a vendor, a file, the log or a hook. So each step here is: decide under the lock, unlock, do
 * the slow thing, lock, publish. Counts are plain integers under the lock, since "is it zero?" and "somebody
 * wants it again" must be one decision.
 *
 * An entry's life: BUILDING -> READY -> CLOSING -> gone, or BUILDING -> gone. A waiter is linked into the
 * entry whose flight it waits for, and whoever ends the flight decides for it: it is granted a lease, given
 * the error, or told to look again. So an engine cannot vanish between its publication and a waiter's
 * awakening. Nobody keeps a pointer to an entry that is CLOSING: those who wait for a teardown look again.
 *
 * The weight-streaming budget is the part of the identity that only a build may reveal (its effect is clamped
 * to the streamable size), therefore racers with different budgets wait for the first flight, and an
 * automatic load may find after its build that its engine exists already.
 */
#include "base.h"

#ifdef TD_CHECKS
#undef NDEBUG /* the checks are for release builds of the tests too */
#endif
#include <assert.h>
#include <stdio.h>
#include <string.h>

#define NS_PER_MS    1000000u
#define WAIT_LINE_NS (10000u * (uint64_t)NS_PER_MS) /* a line every 10 s says what a load waits for */

enum td_entry_state { TD_ENTRY_BUILDING, TD_ENTRY_READY, TD_ENTRY_CLOSING };

enum waiter_state { WAITER_WAITS, WAITER_GRANTED, WAITER_FAILED, WAITER_LOOKS_AGAIN };

/* On the stack of a thread that waits for a flight. */
struct waiter {
  struct waiter *next;
  enum waiter_state state;
  const struct td_want *want;
  struct td_lease *lease;
  struct tandem_error error; /* of a flight that failed for everybody */
};

struct td_entry {
  struct td_entry *next;
  enum td_entry_state state;
  bool findable;  /* else private, or its file changed, or inherited */
  bool automatic; /* a load with an automatic budget got it */
  bool inherited; /* built before a fork by a vendor that does not survive one */
  uint64_t id;
  uint64_t users;  /* == leases that point here */
  uint64_t worker; /* the thread that builds or closes it */
  struct waiter *waiters;
  /* identity, constant */
  const struct tandem_vendor *vendor;
  const struct tandem_vendor_library *library;
  struct tandem_resolution resolution;
  char *trust_domain; /* owned */
  uint64_t size;
  struct td_digest digest;
  enum td_identity kind;
  int64_t wanted; /* budget asked for by the builder; -1 automatic */
  /* constant once READY */
  void *engine; /* owned */
  struct tandem_engine_info info;
  bool estimated;
  struct td_bytes bytes; /* owned */
};

static struct {
  struct td_mutex lock;
  struct td_cond changed; /* any entry changed its state, or `alone` was given back */
  struct td_entry *entries;
  struct td_lease *leases;
  bool alone; /* a waiter whose flight took too long builds for itself */
  uint64_t next_id;
  struct tandem_stats counts; /* of what happened since the start */
} pool;

/* ---------------------------------------------------------------- invariants */

/* users == leases that point to the entry; BUILDING: a worker, no engine; READY: an engine and users;
 * CLOSING: no users, cannot be found. */
static void check_locked(void) {
#ifdef TD_CHECKS
  for (const struct td_entry *entry = pool.entries; entry != NULL; entry = entry->next) {
    uint64_t users = 0;
    for (const struct td_lease *lease = pool.leases; lease != NULL; lease = lease->next)
      users += lease->entry == entry;
    assert(users == entry->users);
    assert(entry->state != TD_ENTRY_BUILDING || (entry->worker != 0 && entry->engine == NULL && users == 0));
    assert(entry->state != TD_ENTRY_READY || (entry->engine != NULL && users >= 1 && entry->waiters == NULL));
    assert(entry->state != TD_ENTRY_CLOSING || (users == 0 && entry->waiters == NULL));
  }
#endif
}

/* ---------------------------------------------------------------- entries and leases */

static struct td_entry *make_entry(const struct td_want *want) {
  struct td_entry *entry = td_alloc(sizeof *entry);
  if (entry == NULL)
    return NULL;
  entry->trust_domain = td_text_copy(want->key.trust_domain);
  if (entry->trust_domain == NULL) {
    td_free(entry);
    return NULL;
  }
  entry->state = TD_ENTRY_BUILDING;
  entry->worker = td_thread_id();
  entry->vendor = want->key.vendor;
  entry->library = want->key.library;
  entry->resolution = *want->key.resolution;
  entry->size = want->key.size;
  entry->digest = want->key.digest;
  entry->kind = want->key.kind;
  entry->wanted = want->budget;
  entry->bytes.fd = -1;
  return entry;
}

static void free_entry(struct td_entry *entry) {
  if (entry == NULL)
    return;
  td_free(entry->trust_domain);
  td_free(entry);
}

static void link_entry_locked(struct td_entry *entry) {
  entry->id = ++pool.next_id;
  entry->next = pool.entries;
  pool.entries = entry;
}

static void unlink_entry_locked(struct td_entry *entry) {
  struct td_entry **place = &pool.entries;
  while (*place != NULL && *place != entry)
    place = &(*place)->next;
  if (*place != NULL)
    *place = entry->next;
}

static void hold_locked(struct td_entry *entry, struct td_lease *lease) {
  lease->entry = entry;
  lease->previous = NULL;
  lease->next = pool.leases;
  if (pool.leases != NULL)
    pool.leases->previous = lease;
  pool.leases = lease;
  entry->users++;
}

static void let_go_locked(struct td_lease *lease) {
  if (lease->previous != NULL)
    lease->previous->next = lease->next;
  else
    pool.leases = lease->next;
  if (lease->next != NULL)
    lease->next->previous = lease->previous;
  lease->entry->users--;
  lease->entry = NULL;
  lease->next = lease->previous = NULL;
}

/* ---------------------------------------------------------------- identity */

/* Equal but for the budget. */
static bool same_bytes(const struct td_entry *entry, const struct td_key *key) {
  return entry->vendor == key->vendor && entry->library == key->library && entry->size == key->size &&
         entry->kind == key->kind && memcmp(&entry->digest, &key->digest, sizeof key->digest) == 0 &&
         entry->resolution.context_id == key->resolution->context_id &&
         strcmp(entry->resolution.device, key->resolution->device) == 0 &&
         strcmp(entry->resolution.options, key->resolution->options) == 0 &&
         strcmp(entry->trust_domain, key->trust_domain) == 0;
}

static int64_t clamp_budget(int64_t budget, int64_t streamable) {
  return budget > streamable ? streamable : budget;
}

/* A built engine (READY or CLOSING) is what `budget` asks for. */
static bool budget_fits(const struct td_entry *entry, int64_t budget) {
  if (!(entry->vendor->flags & TANDEM_VENDOR_HAS_BUDGET) || entry->info.streamable_size <= 0)
    return true;
  if (budget < 0)
    return entry->automatic;
  return clamp_budget(budget, entry->info.streamable_size) == entry->info.effective_budget;
}

/* The streamable size of these bytes as a live engine revealed it, -1 when none did. */
static int64_t streamable_locked(const struct td_key *key) {
  for (const struct td_entry *entry = pool.entries; entry != NULL; entry = entry->next)
    if (entry->state != TD_ENTRY_BUILDING && same_bytes(entry, key))
      return entry->info.streamable_size;
  return -1;
}

/* A flight is worth waiting for: nobody knows yet what budgets come to, or they come to the same. */
static bool flight_fits_locked(const struct td_entry *entry, const struct td_want *want) {
  int64_t streamable = streamable_locked(&want->key);
  if (streamable < 0 || entry->wanted == want->budget)
    return true;
  if (entry->wanted < 0 || want->budget < 0)
    return streamable == 0;
  return clamp_budget(entry->wanted, streamable) == clamp_budget(want->budget, streamable);
}

/* The best entry for a load: ready, else in flight, else closing; NULL: build. */
static struct td_entry *find_locked(const struct td_want *want) {
  struct td_entry *best = NULL;
  for (struct td_entry *entry = pool.entries; entry != NULL; entry = entry->next) {
    if (!entry->findable || !same_bytes(entry, &want->key))
      continue;
    bool fits = entry->state == TD_ENTRY_BUILDING ? flight_fits_locked(entry, want)
                                                  : budget_fits(entry, want->budget);
    if (!fits)
      continue;
    if (entry->state == TD_ENTRY_READY)
      return entry;
    if (best == NULL || entry->state == TD_ENTRY_BUILDING)
      best = entry;
  }
  return best;
}

/* ---------------------------------------------------------------- ends of a flight */

/* Everybody gets the same answer from these bytes; what else failed may work for the next one who tries. */
static bool fails_for_all(enum tandem_status status) {
  return status == TANDEM_BAD_PROGRAM || status == TANDEM_UNSUPPORTED || status == TANDEM_BAD_OPTION;
}

/* Of those who wait for one flight only the budgets differ, and it may be the builder's that was refused: bad
 * bytes alone are bad with every budget. */
static bool shares_failure(const struct td_entry *entry, const struct waiter *waiter,
                           enum tandem_status status) {
  return status == TANDEM_BAD_PROGRAM || waiter->want->budget == entry->wanted;
}

/* Decides for each waiter of `entry`: `ready` (NULL: none) is the engine that it may have, `error` (NULL:
 * none) what it has to take if it asked for the same. */
static void settle_locked(struct td_entry *entry, struct td_entry *ready, const struct tandem_error *error) {
  for (struct waiter *waiter = entry->waiters, *next; waiter != NULL; waiter = next) {
    next = waiter->next;
    waiter->next = NULL;
    if (ready != NULL && budget_fits(ready, waiter->want->budget)) {
      hold_locked(ready, waiter->lease);
      pool.counts.joined++;
      waiter->state = WAITER_GRANTED;
    } else if (error != NULL && shares_failure(entry, waiter, error->code)) {
      waiter->error = *error;
      waiter->state = WAITER_FAILED;
    } else {
      waiter->state = WAITER_LOOKS_AGAIN;
    }
  }
  entry->waiters = NULL;
}

static void destroy_engine(struct td_entry *entry, struct td_lines *lines) {
  if (!entry->inherited) {
    struct td_call call;
    td_call_begin(&call, entry->vendor, lines);
    entry->vendor->engine_destroy(entry->engine);
    td_call_end(&call, TANDEM_OK, "destroy the engine", NULL);
  }
  td_bytes_release(&entry->bytes);
}

/* ---------------------------------------------------------------- build */

void td_pool_explain_memory(const struct td_want *want, struct tandem_error *error) {
  char text[sizeof error->message];
  uint64_t free_bytes = 0, total_bytes = 0;
  struct tandem_error reason = {0};
  snprintf(text, sizeof text, "%s", error->message);
  if (want->key.vendor->memory(want->key.resolution, &free_bytes, &total_bytes, &reason) == TANDEM_OK)
    td_fail(error, TANDEM_OUT_OF_MEMORY,
            "%s; %s has %llu MiB free of %llu MiB, the engine's bytes are %llu MiB", text,
            want->key.resolution->device, (unsigned long long)(free_bytes >> 20),
            (unsigned long long)(total_bytes >> 20), (unsigned long long)(want->key.size >> 20));
  else
    td_fail(error, TANDEM_OUT_OF_MEMORY,
            "%s; how much memory is free is not known (%s), the engine's bytes are %llu MiB", text,
            reason.message, (unsigned long long)(want->key.size >> 20));
}

/* What a build makes, before it is the entry's: a BUILDING entry has no engine. */
struct built {
  void *engine;
  struct tandem_engine_info info;
  bool estimated;
  struct td_bytes bytes;
};

static enum tandem_status build_engine(const struct td_want *want, struct built *built, double *seconds,
                                       struct tandem_error *error) {
  const struct tandem_vendor *vendor = want->key.vendor;
  struct tandem_build_desc desc = {.engine = want->engine,
                                   .engine_size = (size_t)want->key.size,
                                   .parts = want->parts,
                                   .part_count = want->part_count,
                                   .options = want->option_values,
                                   .resolution = want->key.resolution,
                                   .budget = want->budget};
  if (vendor->flags & TANDEM_VENDOR_KEEPS_ENGINE_BYTES) {
    enum tandem_status status =
        td_bytes_keep(want->engine, (size_t)want->key.size, want->payload_copy, &built->bytes, error);
    if (status != TANDEM_OK)
      return status;
    desc.engine = built->bytes.data;
  }
  uint64_t begin = td_now_ns();
  struct td_call call;
  td_call_begin(&call, vendor, want->lines);
  enum tandem_status status = vendor->build(&desc, &built->engine, &built->info, error);
  status = td_call_end(&call, status, "deserialize the engine", error);
  *seconds += (double)(td_now_ns() - begin) * 1e-9;
  if (status == TANDEM_OUT_OF_MEMORY)
    td_pool_explain_memory(want, error);
  if (status != TANDEM_OK) {
    td_bytes_release(&built->bytes);
    return status;
  }
  if (built->engine == NULL) {
    td_bytes_release(&built->bytes);
    return td_fail(error, TANDEM_INTERNAL, "the vendor %s built no engine and gave no error", vendor->name);
  }
  built->estimated = built->info.engine_bytes == 0;
  if (built->estimated) {
    built->info.engine_bytes = want->key.size;
    for (size_t i = 0; i < want->part_count; i++)
      built->info.engine_bytes += want->parts[i].size;
  }
  return TANDEM_OK;
}

/* What a budget comes to may be what another load, which nobody could know of before, has got meanwhile. */
static struct td_entry *find_twin_locked(const struct td_entry *entry, const struct td_want *want) {
  if (!entry->findable || !(entry->vendor->flags & TANDEM_VENDOR_HAS_BUDGET))
    return NULL;
  for (struct td_entry *other = pool.entries; other != NULL; other = other->next)
    if (other != entry && other->state == TD_ENTRY_READY && other->findable &&
        same_bytes(other, &want->key) && other->info.effective_budget == entry->info.effective_budget)
      return other;
  return NULL;
}

/* Builds a linked entry's engine and ends the flight: publishes the engine, takes its twin instead, or
 * withdraws the entry. */
static enum tandem_status fly(const struct td_want *want, struct td_entry *entry, struct td_lease *lease,
                              struct td_got *got, struct tandem_error *error) {
  struct built built = {.info = {.effective_budget = -1}, .bytes = {.fd = -1}};
  struct td_entry *twin = NULL;
  enum tandem_status status = build_engine(want, &built, &got->build_seconds, error);
  /* Built from other bytes than the digest was taken of: it must not stand for those. */
  bool moved = td_watch_moved(want->watch);
  if (moved)
    td_lines_add(
        want->lines, TANDEM_LOG_WARNING,
        "the program's file changed while it was loaded: its engine is not shared; replace program files by "
        "rename");
  td_mutex_lock(&pool.lock);
  pool.counts.build_seconds += got->build_seconds;
  if (status != TANDEM_OK) {
    settle_locked(entry, NULL, fails_for_all(status) && !moved ? error : NULL);
    unlink_entry_locked(entry);
  } else {
    pool.counts.builds++;
    entry->findable = entry->findable && !moved;
    entry->engine = built.engine;
    entry->info = built.info;
    entry->estimated = built.estimated;
    entry->bytes = built.bytes;
    twin = find_twin_locked(entry, want);
    if (twin == NULL) {
      entry->state = TD_ENTRY_READY;
      entry->automatic = want->budget < 0;
    } else {
      twin->automatic = twin->automatic || want->budget < 0;
      unlink_entry_locked(entry);
    }
    hold_locked(twin != NULL ? twin : entry, lease);
    settle_locked(entry, moved ? NULL : lease->entry, NULL);
  }
  check_locked();
  td_cond_broadcast(&pool.changed);
  td_mutex_unlock(&pool.lock);
  if (twin != NULL) {
    td_lines_add(want->lines, TANDEM_LOG_INFO,
                 "the budget came to %lld bytes, which engine %llu has already: that one is used and the "
                 "new copy is freed",
                 (long long)twin->info.effective_budget, (unsigned long long)twin->id);
    destroy_engine(entry, want->lines);
    got->shared = true;
  }
  if (twin != NULL || status != TANDEM_OK)
    free_entry(entry);
  return status;
}

/* An engine that nobody else can find. */
static enum tandem_status build_private(const struct td_want *want, struct td_lease *lease,
                                        struct td_got *got, struct tandem_error *error) {
  struct td_entry *entry = make_entry(want);
  if (entry == NULL)
    return td_fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the pool's record of an engine");
  td_mutex_lock(&pool.lock);
  link_entry_locked(entry);
  td_mutex_unlock(&pool.lock);
  return fly(want, entry, lease, got, error);
}

/* ---------------------------------------------------------------- waits */

/* One thread's wait for a flight (`waiter` is linked into the entry) or for a teardown (`waiter` is NULL). */
struct wait {
  const struct td_want *want;
  struct td_entry *entry; /* not to be touched once the wait is over */
  struct waiter *waiter;
  uint64_t id;                         /* of the entry */
  uint64_t begin, deadline, next_line; /* td_now_ns; deadline 0: none */
};

static bool goes_on_locked(const struct wait *wait) {
  if (wait->waiter != NULL)
    return wait->waiter->state == WAITER_WAITS;
  for (const struct td_entry *entry = pool.entries; entry != NULL; entry = entry->next)
    if (entry->id == wait->id)
      return true;
  return false;
}

static void remove_waiter_locked(struct td_entry *entry, struct waiter *waiter) {
  struct waiter **place = &entry->waiters;
  while (*place != waiter)
    place = &(*place)->next;
  *place = waiter->next;
}

/* The turn to build for oneself because the wait takes too long: one thread at a time. */
static bool take_turn_locked(const struct wait *wait) {
  if (wait->deadline == 0 || td_now_ns() < wait->deadline || pool.alone)
    return false;
  if (wait->waiter != NULL)
    remove_waiter_locked(wait->entry, wait->waiter);
  pool.alone = true;
  return true;
}

/* Sleeps until something changed, the deadline passed, or a line is due. */
static void sleep_locked(const struct wait *wait) {
  bool before = wait->deadline != 0 && td_now_ns() < wait->deadline;
  td_cond_wait_until(&pool.changed, &pool.lock,
                     before && wait->deadline < wait->next_line ? wait->deadline : wait->next_line);
}

static void tell_wait(struct wait *wait) {
  const struct td_want *want = wait->want;
  wait->next_line += WAIT_LINE_NS;
  td_wait_end();
  td_lines_add(want->lines, TANDEM_LOG_WARNING, "has waited %.0f s for the %s of engine %llu (%s on %s)",
               (double)(td_now_ns() - wait->begin) * 1e-9, wait->waiter != NULL ? "build" : "teardown",
               (unsigned long long)wait->id, want->key.vendor->name, want->key.resolution->device);
  td_lines_deliver(want->lines);
  td_wait_begin();
}

/* Called with the lock held, returns without it. True: this thread has the turn to build for itself. */
static bool wait_for(struct td_entry *entry, struct waiter *waiter, const struct td_want *want,
                     struct td_got *got) {
  uint64_t begin = td_now_ns();
  struct wait wait = {.want = want, .entry = entry, .waiter = waiter, .id = entry->id, .begin = begin};
  if (want->flight_timeout_ms > 0 && want->flight_timeout_ms < (UINT64_MAX - begin) / NS_PER_MS)
    wait.deadline = begin + want->flight_timeout_ms * NS_PER_MS;
  wait.next_line = begin + WAIT_LINE_NS;
  td_mutex_unlock(&pool.lock);
  td_wait_begin();
  td_mutex_lock(&pool.lock);
  bool alone = false;
  while (goes_on_locked(&wait) && !(alone = take_turn_locked(&wait))) {
    sleep_locked(&wait);
    if (goes_on_locked(&wait) && td_now_ns() >= wait.next_line) {
      td_mutex_unlock(&pool.lock);
      tell_wait(&wait);
      td_mutex_lock(&pool.lock);
    }
  }
  td_mutex_unlock(&pool.lock);
  td_wait_end();
  got->wait_seconds += (double)(td_now_ns() - begin) * 1e-9;
  return alone;
}

/* ---------------------------------------------------------------- acquire */

/* A mapped engine whose file changed may compute from other bytes by now: nobody else may have it. True when
 * the lease was given up for that. */
static bool reject_moved(const struct td_want *want, struct td_lease *lease) {
  struct td_entry *entry = lease->entry;
  if (!td_bytes_moved(&entry->bytes))
    return false;
  td_mutex_lock(&pool.lock);
  entry->findable = false;
  pool.counts.hits--; /* this load is going to build */
  td_mutex_unlock(&pool.lock);
  td_lines_add(
      want->lines, TANDEM_LOG_WARNING,
      "engine %llu is mapped from a file that changed since: it is not shared, a new one is built; replace "
      "program files by rename",
      (unsigned long long)entry->id);
  td_pool_release(lease, want->lines);
  return true;
}

/* Builds outside the table because a flight or teardown takes too long; one thread at a time. */
static enum tandem_status build_alone(const struct td_want *want, struct td_lease *lease, struct td_got *got,
                                      struct tandem_error *error) {
  td_lines_add(want->lines, TANDEM_LOG_WARNING,
               "waited %llu ms (flight_timeout_ms) for another load's engine and builds one for itself",
               (unsigned long long)want->flight_timeout_ms);
  enum tandem_status status = build_private(want, lease, got, error);
  td_mutex_lock(&pool.lock);
  pool.alone = false;
  td_cond_broadcast(&pool.changed);
  td_mutex_unlock(&pool.lock);
  return status;
}

static void count_fallback(struct td_got *got) {
  got->fallback = true;
  td_mutex_lock(&pool.lock);
  pool.counts.fallbacks++;
  td_mutex_unlock(&pool.lock);
}

enum outcome { OUTCOME_DONE, OUTCOME_LOOK_AGAIN, OUTCOME_ALONE };

/* One look at the table: a lease, an error, a wait, or a flight of one's own. */
static enum outcome look(const struct td_want *want, struct td_entry **fresh, struct td_lease *lease,
                         struct td_got *got, enum tandem_status *status, struct tandem_error *error) {
  *status = TANDEM_OK;
  td_mutex_lock(&pool.lock);
  struct td_entry *entry = find_locked(want);
  if (entry == NULL) {
    entry = *fresh;
    *fresh = NULL;
    entry->findable = true;
    link_entry_locked(entry);
    check_locked();
    td_mutex_unlock(&pool.lock);
    *status = fly(want, entry, lease, got, error);
    return OUTCOME_DONE;
  }
  if (entry->state == TD_ENTRY_READY) {
    hold_locked(entry, lease);
    pool.counts.hits++;
    check_locked();
    td_mutex_unlock(&pool.lock);
    got->shared = true;
    return reject_moved(want, lease) ? OUTCOME_LOOK_AGAIN : OUTCOME_DONE;
  }
  struct waiter waiter = {.next = entry->waiters, .want = want, .lease = lease};
  bool closing = entry->state == TD_ENTRY_CLOSING;
  if (!closing)
    entry->waiters = &waiter;
  if (wait_for(entry, closing ? NULL : &waiter, want, got))
    return OUTCOME_ALONE;
  if (closing)
    return OUTCOME_LOOK_AGAIN;
  if (waiter.state == WAITER_GRANTED)
    got->shared = got->joined = true;
  if (waiter.state == WAITER_FAILED)
    *status = td_fail(error, waiter.error.code, "%s", waiter.error.message);
  return waiter.state == WAITER_LOOKS_AGAIN ? OUTCOME_LOOK_AGAIN : OUTCOME_DONE;
}

static enum tandem_status acquire_shared(const struct td_want *want, struct td_lease *lease,
                                         struct td_got *got, struct tandem_error *error) {
  struct td_entry *fresh = NULL;
  enum tandem_status status = TANDEM_OK;
  bool tried_alone = false;
  enum outcome outcome;
  do {
    if (fresh == NULL && (fresh = make_entry(want)) == NULL)
      return td_fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the pool's record of an engine");
    got->shared = got->joined = false;
    outcome = look(want, &fresh, lease, got, &status, error);
    if (outcome == OUTCOME_ALONE) {
      status = build_alone(want, lease, got, error);
      /* A second copy that does not fit is no reason to fail while the first one may be ready by now. */
      outcome = status == TANDEM_OUT_OF_MEMORY && !tried_alone ? OUTCOME_LOOK_AGAIN : OUTCOME_DONE;
      tried_alone = true;
    }
  } while (outcome == OUTCOME_LOOK_AGAIN);
  if (status == TANDEM_OK && tried_alone)
    count_fallback(got);
  if (status == TANDEM_OK && tried_alone && got->shared) {
    td_lines_forgive(want->lines);
    td_lines_add(want->lines, TANDEM_LOG_WARNING,
                 "a copy of its own did not fit, it shares engine %llu instead",
                 (unsigned long long)lease->entry->id);
  }
  free_entry(fresh);
  return status;
}

bool td_pool_acquire_other_budget(const struct td_want *want, struct td_lease *lease, struct td_got *got) {
  if (!want->share || !want->across_budgets)
    return false;
  td_mutex_lock(&pool.lock);
  struct td_entry *entry = pool.entries;
  while (entry != NULL &&
         !(entry->state == TD_ENTRY_READY && entry->findable && same_bytes(entry, &want->key)))
    entry = entry->next;
  if (entry != NULL) {
    hold_locked(entry, lease);
    pool.counts.hits++;
    check_locked();
  }
  td_mutex_unlock(&pool.lock);
  if (entry == NULL || reject_moved(want, lease))
    return false;
  got->shared = true;
  count_fallback(got);
  td_lines_forgive(want->lines);
  td_lines_add(
      want->lines, TANDEM_LOG_WARNING,
      "an engine with the budget asked for did not fit, it shares engine %llu with a budget of %lld bytes "
      "(share_across_budgets)",
      (unsigned long long)entry->id, (long long)entry->info.effective_budget);
  return true;
}

enum tandem_status td_pool_acquire(const struct td_want *want, struct td_lease *lease, struct td_got *got,
                                   struct tandem_error *error) {
  *got = (struct td_got){0};
  enum tandem_status status;
  /* Inside a vendor's call this thread may itself be what a flight or teardown waits for. */
  if (!want->share || td_call_nested())
    status = build_private(want, lease, got, error);
  else
    status = acquire_shared(want, lease, got, error);
  if (status == TANDEM_OUT_OF_MEMORY && td_pool_acquire_other_budget(want, lease, got)) {
    td_clear(error);
    status = TANDEM_OK;
  }
  return status;
}

void td_pool_release(struct td_lease *lease, struct td_lines *lines) {
  struct td_entry *entry = lease->entry;
  if (entry == NULL)
    return;
  td_mutex_lock(&pool.lock);
  let_go_locked(lease);
  bool last = entry->users == 0;
  if (last) {
    entry->state = TD_ENTRY_CLOSING;
    entry->worker = td_thread_id();
  }
  check_locked();
  td_mutex_unlock(&pool.lock);
  if (!last)
    return;
  destroy_engine(entry, lines);
  td_mutex_lock(&pool.lock);
  unlink_entry_locked(entry);
  td_cond_broadcast(&pool.changed);
  td_mutex_unlock(&pool.lock);
  free_entry(entry);
}

/* ---------------------------------------------------------------- views */

void td_pool_count(double digest_seconds, bool failed) {
  td_mutex_lock(&pool.lock);
  pool.counts.digest_seconds += digest_seconds;
  pool.counts.failures += failed;
  td_mutex_unlock(&pool.lock);
}

void td_pool_stats(struct tandem_stats *stats) {
  td_mutex_lock(&pool.lock);
  size_t size = stats->struct_size;
  *stats = pool.counts;
  stats->struct_size = size;
  for (const struct td_entry *entry = pool.entries; entry != NULL; entry = entry->next) {
    if (entry->state != TD_ENTRY_READY)
      continue;
    stats->engines++;
    stats->loads += entry->users;
    stats->bytes_held += entry->info.engine_bytes;
    stats->bytes_saved += entry->info.engine_bytes * (entry->users - 1);
    stats->bytes_estimated = stats->bytes_estimated || entry->estimated;
  }
  td_mutex_unlock(&pool.lock);
}

void *td_entry_engine(const struct td_entry *entry) {
  return entry->engine;
}

int64_t td_entry_streamable(const struct td_entry *entry) {
  return entry->info.streamable_size > 0 ? entry->info.streamable_size : 0;
}

bool td_entry_inherited(const struct td_entry *entry) {
  return entry->inherited;
}

void td_entry_get_info(const struct td_lease *lease, struct tandem_load_info *info) {
  const struct td_entry *entry = lease->entry;
  td_mutex_lock(&pool.lock);
  info->users = entry->users;
  td_mutex_unlock(&pool.lock);
  info->engine_id = entry->id;
  info->engine_bytes = entry->info.engine_bytes;
  info->engine_bytes_estimated = entry->estimated;
  info->device_bytes = entry->info.device_bytes;
  info->budget = entry->vendor->flags & TANDEM_VENDOR_HAS_BUDGET ? entry->info.effective_budget : -1;
  info->payload_bytes = (int32_t)entry->bytes.kind;
  info->payload_bytes_size = entry->bytes.kind == TANDEM_PAYLOAD_RELEASED ? 0 : entry->bytes.size;
  snprintf(info->vendor, sizeof info->vendor, "%s", entry->vendor->name);
  snprintf(info->vendor_version, sizeof info->vendor_version, "%s", entry->library->version);
  snprintf(info->device, sizeof info->device, "%s", entry->resolution.device);
  snprintf(info->options, sizeof info->options, "%s", entry->resolution.options);
}

/* ---------------------------------------------------------------- fork */

static void lock_all(void) {
  td_vendor_fork_lock();
  td_options_fork_lock();
  td_mutex_lock(&pool.lock);
  td_log_fork_lock();
}

static void unlock_all(void) {
  td_log_fork_unlock();
  td_mutex_unlock(&pool.lock);
  td_options_fork_unlock();
  td_vendor_fork_unlock();
}

/* Only the forking thread lives on in the child: other threads' flights, teardowns and waits are gone, and
 * what they were working on is left alone. The locks are this thread's own since lock_all, so they are given
 * back in the ordinary way; conditions and turns may have waiters that do not exist here and start anew. */
static void repair_child(void) {
  pool.changed = (struct td_cond){{0}};
  pool.alone = false;
  uint64_t self = td_thread_id();
  for (struct td_entry **place = &pool.entries; *place != NULL;) {
    struct td_entry *entry = *place;
    entry->waiters = NULL;
    if (entry->state != TD_ENTRY_READY && entry->worker != self) {
      *place = entry->next;
      continue;
    }
    if (!(entry->vendor->flags & TANDEM_VENDOR_SURVIVES_FORK)) {
      entry->inherited = true;
      entry->findable = false;
    }
    place = &entry->next;
  }
  for (struct td_lease *lease = pool.leases; lease != NULL; lease = lease->next)
    if (lease->turn != NULL)
      *lease->turn = (struct td_turn){.busy = false};
  td_log_fork_child();
  td_mutex_unlock(&pool.lock);
  td_options_fork_unlock();
  td_vendor_fork_child();
}

/* Before anything can fork with a lock taken, so when the library is loaded. */
__attribute__((constructor)) static void guard_fork(void) {
  td_fork_handlers(lock_all, unlock_all, repair_child);
}
