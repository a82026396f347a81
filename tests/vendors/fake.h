/* The fake vendor: a whole vendor without a library or a device, for tests, and the skeleton to copy.
 *
 * fake.c is the vendor: a payload format, engines, contexts, runs. control.c is what a test turns: gates,
 * delays, counters, faults, log lines, the device's memory, and the checks that tandem keeps what vendor.h
 * promises. A vendor author copies fake.c and leaves control.c.
 *
 * An engine computes y[i] = x[i] * scale[i % n] + bias[i % n] + state from weights that lie in the engine
 * bytes, so wrong bytes give wrong numbers.
 */
#ifndef TANDEM_TESTS_FAKE_H
#define TANDEM_TESTS_FAKE_H

#include <tandem/vendor.h>

/* ---------------------------------------------------------------- payloads */

#define FAKE_MODEL_STATEFUL     (1u << 0) /* state += x[0] after each run of a context */
#define FAKE_MODEL_UNKNOWN_SIZE (1u << 1) /* the engine does not report what it costs */
#define FAKE_MODEL_LAST_NEGATED (1u << 3) /* the last bias is negated: one byte, the last one, differs */
#define FAKE_MODEL_NAMED        (1u << 2) /* the engine bytes are named data, key "weights" */

enum { FAKE_MODEL_RANK_MAX = 4 };

struct fake_model {
  uint32_t flags; /* FAKE_MODEL_* */
  int32_t rank;   /* 0: scalar */
  int64_t min[FAKE_MODEL_RANK_MAX];
  int64_t max[FAKE_MODEL_RANK_MAX];
  int64_t streamable_size; /* bytes */
  uint64_t cost;           /* bytes of device memory beyond the streamable ones */
  uint32_t seed;           /* of the weights */
  uint32_t pair_count;     /* n above; 0 is taken as 4 */
};

/* Owned, free() it. With FAKE_MODEL_NAMED the payload has no engine bytes; fake_engine_bytes gives them. */
void *fake_payload_create(const struct fake_model *model, size_t *size);
void *fake_engine_bytes_create(const struct fake_model *model, size_t *size);
/* Where the engine bytes begin in a payload. */
enum { FAKE_ENGINE_OFFSET = 64 };
/* The expected y of `count` elements; `state` as the runs before left it. */
void fake_expect(const struct fake_model *model, const float *x, size_t count, float state, float *y);

/* ---------------------------------------------------------------- instances */

struct fake_vendor;

/* Makes a vendor of its own name and registers it; lives as long as the process, as vendors do. NULL when
 * registration failed or all slots are taken. `flags` as in struct tandem_vendor. */
struct fake_vendor *fake_vendor_create(const char *name, const char *backend, uint32_t flags);
const struct tandem_vendor *fake_vendor_table(struct fake_vendor *fake);
/* Gates open, no faults, delays, lines, callbacks or cap, counters zero. */
void fake_vendor_reset(struct fake_vendor *fake);

enum fake_entry {
  FAKE_OPEN,
  FAKE_PARSE,
  FAKE_PAYLOAD_DESTROY,
  FAKE_DESCRIBE,
  FAKE_RESOLVE,
  FAKE_BUILD,
  FAKE_ENGINE_DESTROY,
  FAKE_CONTEXT_CREATE,
  FAKE_CONTEXT_DESTROY,
  FAKE_RUN,
  FAKE_RESET,
  FAKE_MEMORY,
  FAKE_ENTRY_COUNT,
};

/* Calls begun since the last reset. */
uint64_t fake_count(struct fake_vendor *fake, enum fake_entry entry);

/* While the gate of an entry is closed, calls of it stop before they do anything. */
void fake_gate_close(struct fake_vendor *fake, enum fake_entry entry);
void fake_gate_open(struct fake_vendor *fake, enum fake_entry entry);
/* Lets `count` of the calls that stand before a closed gate, or come to it, pass. */
void fake_gate_pass(struct fake_vendor *fake, enum fake_entry entry, unsigned count);
/* Waits until `count` calls of the entry are under way; false after 20 s. */
bool fake_wait_inside(struct fake_vendor *fake, enum fake_entry entry, unsigned count);
/* The most calls of the entry that were under way at one time since the reset. */
unsigned fake_peak_inside(struct fake_vendor *fake, enum fake_entry entry);
/* Waits until `count` calls of the entry have begun since the reset; false after 20 s. */
bool fake_wait_count(struct fake_vendor *fake, enum fake_entry entry, uint64_t count);

void fake_delay(struct fake_vendor *fake, enum fake_entry entry, unsigned milliseconds);

/* The calls `first` .. `first + times - 1` from now (1 = the next) end with `status` before they do anything.
 * `text` NULL: the vendor says nothing. */
void fake_fail_at(struct fake_vendor *fake, enum fake_entry entry, uint64_t first, uint64_t times,
                  enum tandem_status status, const char *text);

/* Each call of the entry logs this line, `times` times, from the calling thread or from one of its own.
 * Adds up to 4 a call of the entry. `text` is borrowed until the next reset. */
void fake_say(struct fake_vendor *fake, enum fake_entry entry, enum tandem_log_level level,
              enum tandem_status status, const char *text, unsigned times, bool own_thread);

/* Called inside the next `times` calls of the entry, after the gate. */
void fake_call_back(struct fake_vendor *fake, enum fake_entry entry, unsigned times, void (*callback)(void *),
                    void *user);

/* ---------------------------------------------------------------- the device */

/* Bytes of device memory; 0: no limit. A build or context that does not fit is OUT_OF_MEMORY with a line. */
void fake_set_memory(struct fake_vendor *fake, uint64_t bytes);
uint64_t fake_memory_used(struct fake_vendor *fake);
uint64_t fake_live_engines(struct fake_vendor *fake);
uint64_t fake_live_contexts(struct fake_vendor *fake);
uint64_t fake_live_payloads(struct fake_vendor *fake);
/* The most engines of equal bytes and options that were alive at one time since the reset. */
uint64_t fake_peak_copies(struct fake_vendor *fake);
/* What a context costs, bytes. */
enum { FAKE_CONTEXT_COST = 64 };

/* Promises of vendor.h that were seen broken since the reset; *what (may be NULL) is the first one's text. */
uint64_t fake_violations(struct fake_vendor *fake, const char **what);

/* ---------------------------------------------------------------- between fake.c and control.c */

/* The vendor proper: entries as in struct tandem_vendor, with the instance in front because one process has
 * several. A vendor of your own has no such argument. */
struct fake_calls {
  enum tandem_status (*open)(struct fake_vendor *, const struct tandem_host *, struct tandem_vendor_library *,
                             struct tandem_error *);
  enum tandem_status (*parse)(struct fake_vendor *, const struct tandem_host *, const void *, size_t,
                              const struct tandem_named_data *, struct tandem_payload *,
                              struct tandem_error *);
  void (*payload_destroy)(struct fake_vendor *, struct tandem_payload *);
  void (*describe)(struct fake_vendor *, const struct tandem_payload *, tandem_fact_fn, void *);
  enum tandem_status (*resolve)(struct fake_vendor *, const struct tandem_payload *, const char *const *,
                                struct tandem_resolution *, struct tandem_error *);
  enum tandem_status (*build)(struct fake_vendor *, const struct tandem_build_desc *, void **,
                              struct tandem_engine_info *, struct tandem_error *);
  void (*engine_destroy)(struct fake_vendor *, void *);
  enum tandem_status (*context_create)(struct fake_vendor *, void *, const struct tandem_context_desc *,
                                       void **, struct tandem_context_io *, struct tandem_error *);
  void (*context_destroy)(struct fake_vendor *, void *);
  enum tandem_status (*run)(struct fake_vendor *, void *, const struct tandem_run_desc *,
                            struct tandem_error *);
  enum tandem_status (*reset)(struct fake_vendor *, void *, struct tandem_error *);
};
extern const struct fake_calls fake_calls;
extern const struct tandem_vendor_option fake_options[];
extern const size_t fake_option_count;

const struct tandem_host *fake_host(struct fake_vendor *fake);
bool fake_keeps_bytes(struct fake_vendor *fake);
bool fake_has_budget(struct fake_vendor *fake);
const char *fake_name(struct fake_vendor *fake);
/* Takes device memory; a refusal logs a line, fills the error and returns OUT_OF_MEMORY. */
enum tandem_status fake_take(struct fake_vendor *fake, uint64_t bytes, const char *what,
                             struct tandem_error *error);
void fake_give(struct fake_vendor *fake, uint64_t bytes);
/* Books of live objects, for the counts above and to see misuse. `twin` is equal for equal engines. */
void fake_engine_born(struct fake_vendor *fake, void *engine, uint64_t twin);
void fake_engine_died(struct fake_vendor *fake, void *engine);
void fake_context_born(struct fake_vendor *fake, void *context, void *engine);
void fake_context_died(struct fake_vendor *fake, void *context);
void fake_payload_born(struct fake_vendor *fake);
void fake_payload_died(struct fake_vendor *fake);
void fake_context_busy(struct fake_vendor *fake, void *context, bool busy);

#endif
