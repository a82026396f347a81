/* `tandem run`: loads a method N times, runs each load, and tells what each one cost.
 *
 * A load here is what an application does for one arm: open the program, load the method. What it costs is
 * the growth of private memory around that and around its first runs, after every stream of the loads already
 * there has run: a stream takes its activations when it first works, and that must not be laid at a later
 * load's door. Loads made on several threads at once cannot be told apart by the process's memory, so only
 * their sum is given.
 *
 * Outputs are compared by a digest of each run's bytes, run for run with the first load, from a reset on, so
 * that models with state compare too. A vendor may not repeat itself from one run to the next; then equality
 * means nothing and is given as null. That is found out last, by 50 runs of one request of a private engine,
 * because that engine would show in the memory measured; it is no load that was asked for, so a log that was
 * asked for tells of it only what is wrong.
 */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOADS_MAX = 4096, REPEAT_MAX = 1000000, REPEAT_DEFAULT = 10, DETERMINISM_RUNS = 50 };

static const char help[] =
    "usage: tandem run PROGRAM [OPTIONS]\n"
    "\n"
    "Loads a method N times, runs each load, compares their outputs and tells what each load cost.\n"
    "\n"
    "  --data FILE.ptd      data that the program keeps outside; may be given again\n"
    "  --method M           the method to load (forward, or the program's only one)\n"
    "  --loads N            how many loads (2)\n"
    "  --threads T          make and run the loads on T threads at once (1)\n"
    "  --repeat K           timed runs of each load (10)\n"
    "  --input FILE.npy     an input; once for each input, in order (seeded numbers)\n"
    "  --output-dir DIR     write the outputs of every load there, as loadN.outM.npy\n"
    "  --option KEY=VALUE   an option for every load; may be given again\n"
    "  --json               one JSON document on stdout\n"
    "\n"
    "Memory is the growth, by the load and its first runs, of this process's private memory\n"
    "(Anonymous + Swap in smaps_rollup), or of the used device memory of the GPU that the program\n"
    "names. Exit status: 0 done, 1 failed or the outputs differ, 2 called wrongly.\n";

struct arm {
  struct tandem_program *program; /* owned */
  struct tandem_method *method;   /* owned */
  struct tandem_tensor *outputs;  /* owned; data is the method's own */
  uint64_t *hashes;               /* owned; one for each timed run */
  uint64_t *times_ns;             /* owned; likewise */
  double method_seconds;
  int64_t growth;        /* of private memory, bytes; -1: not known */
  int64_t device_growth; /* of the used memory of the watched GPU, likewise */
  enum tandem_status status;
  struct tandem_error error;
};

struct session {
  const char *path, *method;
  struct td_text_list data;            /* owned: .ptd files */
  const struct tandem_option *options; /* borrowed */
  size_t option_count;
  struct tandem_program *program; /* owned; for what the program says, not for loads */
  const struct tandem_io *io;     /* outputs; borrowed from program */
  struct tandem_tensor *inputs;   /* owned */
  size_t input_count, output_count;
  struct arm *arms; /* owned */
  size_t arm_count, thread_count, repeat;
  struct td_gpu_watch gpu; /* owned */
};

/* ---------------------------------------------------------------- one arm */

static struct tandem_program_desc describe_program(const struct session *session) {
  return (struct tandem_program_desc){.struct_size = sizeof(struct tandem_program_desc),
                                      .path = session->path,
                                      .data_paths = session->data.items,
                                      .data_path_count = session->data.count};
}

static enum tandem_status load_arm(const struct session *session, struct arm *arm,
                                   const struct tandem_option *options, size_t option_count) {
  const struct tandem_program_desc desc = describe_program(session);
  uint64_t began = td_clock_ns();
  arm->status = tandem_program_create(&desc, &arm->program, &arm->error);
  if (arm->status == TANDEM_OK)
    arm->status =
        tandem_method_create(arm->program, session->method, options, option_count, &arm->method, &arm->error);
  arm->method_seconds = (double)(td_clock_ns() - began) * 1e-9;
  return arm->status;
}

static void unload_arm(struct arm *arm) {
  tandem_method_destroy(arm->method);
  tandem_program_destroy(arm->program);
  arm->method = NULL;
  arm->program = NULL;
}

static enum tandem_status run_arm(const struct session *session, struct arm *arm, uint64_t *time_ns) {
  for (size_t i = 0; i < session->output_count; i++)
    arm->outputs[i] = (struct tandem_tensor){.dtype = session->io[i].dtype};
  const struct tandem_run_desc desc = {.struct_size = sizeof desc,
                                       .inputs = session->inputs,
                                       .input_count = session->input_count,
                                       .outputs = arm->outputs,
                                       .output_count = session->output_count};
  uint64_t began = td_clock_ns();
  arm->status = tandem_method_run(arm->method, &desc, &arm->error);
  if (time_ns)
    *time_ns = td_clock_ns() - began;
  return arm->status;
}

static enum tandem_status warm_arm(const struct session *session, struct arm *arm, size_t times) {
  for (size_t i = 0; i < times && arm->status == TANDEM_OK; i++)
    run_arm(session, arm, NULL);
  return arm->status;
}

/* The timed runs, from a reset on. */
static void repeat_arm(const struct session *session, struct arm *arm) {
  arm->status = tandem_method_reset(arm->method, &arm->error);
  for (size_t k = 0; k < session->repeat && arm->status == TANDEM_OK; k++) {
    if (run_arm(session, arm, &arm->times_ns[k]) == TANDEM_OK)
      arm->hashes[k] = td_outputs_hash(arm->outputs, session->output_count);
    td_progress_step("running");
  }
}

/* ---------------------------------------------------------------- all arms, on one thread or several */

/* Threads wait at it until all of them are there, or one could not be started. */
struct gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum { GATE_SHUT, GATE_OPEN, GATE_ABANDONED } state; /* guarded by lock */
};

typedef void (*arm_work_fn)(const struct session *session, struct arm *arm);

struct worker {
  struct session *session;
  struct gate *gate;
  size_t first; /* the worker's arms: first, first + thread_count, ... */
  arm_work_fn work;
  pthread_t thread;
};

static void work_on_arms(struct session *session, size_t first, arm_work_fn work) {
  for (size_t i = first; i < session->arm_count; i += session->thread_count)
    work(session, &session->arms[i]);
}

static void *begin_worker(void *argument) {
  struct worker *worker = argument;
  pthread_mutex_lock(&worker->gate->lock);
  while (worker->gate->state == GATE_SHUT)
    pthread_cond_wait(&worker->gate->changed, &worker->gate->lock);
  bool go = worker->gate->state == GATE_OPEN;
  pthread_mutex_unlock(&worker->gate->lock);
  if (go)
    work_on_arms(worker->session, worker->first, worker->work);
  return NULL;
}

static enum tandem_status first_failure(const struct session *session, struct tandem_error *error) {
  for (size_t i = 0; i < session->arm_count; i++)
    if (session->arms[i].status != TANDEM_OK) {
      *error = session->arms[i].error;
      return session->arms[i].status;
    }
  return TANDEM_OK;
}

static enum tandem_status on_all_arms(struct session *session, arm_work_fn work, struct tandem_error *error) {
  size_t count = session->thread_count, started = 0;
  if (count == 1) {
    work_on_arms(session, 0, work);
    return first_failure(session, error);
  }
  struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, GATE_SHUT};
  struct worker *workers = calloc(count, sizeof *workers);
  if (!workers)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu threads", count);
  int code = 0;
  while (started < count && code == 0) {
    workers[started] = (struct worker){.session = session, .gate = &gate, .first = started, .work = work};
    code = pthread_create(&workers[started].thread, NULL, begin_worker, &workers[started]);
    started += code == 0;
  }
  pthread_mutex_lock(&gate.lock);
  gate.state = code == 0 ? GATE_OPEN : GATE_ABANDONED;
  pthread_cond_broadcast(&gate.changed);
  pthread_mutex_unlock(&gate.lock);
  for (size_t i = 0; i < started; i++)
    pthread_join(workers[i].thread, NULL);
  free(workers);
  pthread_cond_destroy(&gate.changed);
  pthread_mutex_destroy(&gate.lock);
  if (code != 0)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "cannot start thread %zu of %zu: %s", started + 1, count,
                     strerror(code));
  return first_failure(session, error);
}

/* ---------------------------------------------------------------- the phases */

/* How many streams the engine of a load has, from its effective options; 1 where they name none. */
static size_t count_streams(struct tandem_method *method) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  struct tandem_load *load = tandem_method_load(method, 0);
  if (!load || tandem_load_get_info(load, &info, NULL) != TANDEM_OK)
    return 1;
  const char *at = strcasestr(info.options, "num_streams=");
  if (!at)
    return 1;
  at += strlen("num_streams=");
  long count = isdigit((unsigned char)*at) ? strtol(at, NULL, 10)
               : *at == ';' || !*at        ? 1
                                           : sysconf(_SC_NPROCESSORS_ONLN);
  return count < 1 ? 1 : count > 1024 ? 1024 : (size_t)count;
}

/* Runs enough for each stream to have worked: which stream takes a run is the vendor's choice. */
static size_t warm_runs(size_t streams) {
  return streams == 1 ? 2 : 8 * streams;
}

static void load_and_warm(const struct session *session, struct arm *arm) {
  if (load_arm(session, arm, session->options, session->option_count) == TANDEM_OK)
    warm_arm(session, arm, warm_runs(count_streams(arm->method)));
  td_progress_step("loading");
}

static void warm_again(const struct session *session, struct arm *arm) {
  if (arm->method && arm->status == TANDEM_OK)
    warm_arm(session, arm, warm_runs(count_streams(arm->method)));
}

static int64_t growth_of(int64_t before, int64_t after) {
  return before < 0 || after < 0 ? -1 : after > before ? after - before : 0;
}

/* With one stream a load is warm after its own runs; with more, the loads there run at once, so that streams
 * which a single load cannot reach work too. */
static enum tandem_status load_one_by_one(struct session *session, struct tandem_error *error) {
  size_t all = session->arm_count;
  for (size_t i = 0; i < all; i++) {
    if (i > 1 && count_streams(session->arms[0].method) > 1) {
      session->arm_count = session->thread_count = i;
      enum tandem_status status = on_all_arms(session, warm_again, error);
      session->arm_count = all;
      session->thread_count = 1;
      if (status != TANDEM_OK)
        return status;
    }
    int64_t before = td_memory_private(), device_before = td_gpu_used(&session->gpu);
    load_and_warm(session, &session->arms[i]);
    session->arms[i].growth = growth_of(before, td_memory_private());
    session->arms[i].device_growth = growth_of(device_before, td_gpu_used(&session->gpu));
    if (session->arms[i].status != TANDEM_OK)
      return first_failure(session, error);
  }
  return TANDEM_OK;
}

/* NULL where there are no runs to tell from, or they say that the vendor does not repeat itself. */
static cJSON *compare_outputs(const struct session *session, const cJSON *deterministic) {
  if (cJSON_IsFalse(deterministic))
    return cJSON_CreateNull();
  for (size_t i = 1; i < session->arm_count; i++)
    if (memcmp(session->arms[i].hashes, session->arms[0].hashes, session->repeat * sizeof(uint64_t)) != 0)
      return cJSON_CreateFalse();
  return cJSON_CreateTrue();
}

/* The options of the repeat check's load, which is private and quiet; `options` has room for two more. */
static size_t private_options(const struct session *session, struct tandem_option *options) {
  size_t count = 0;
  const char *level = NULL;
  for (size_t i = 0; i < session->option_count; i++) {
    if (strcmp(session->options[i].key, "log_level") == 0)
      level = session->options[i].value;
    else if (strcmp(session->options[i].key, "use_shared_engines") != 0)
      options[count++] = session->options[i];
  }
  options[count++] = (struct tandem_option){"use_shared_engines", "false"};
  if (level)
    options[count++] = (struct tandem_option){"log_level", strcmp(level, "error") == 0 ? level : "warning"};
  return count;
}

/* 50 runs of one private request, each from a reset on. */
static enum tandem_status find_determinism(const struct session *session, cJSON **answer,
                                           struct tandem_error *error) {
  struct arm arm = {.outputs = session->arms[0].outputs};
  struct tandem_option *options = calloc(session->option_count + 2, sizeof *options);
  uint64_t first = 0;
  bool same = true;
  if (!options)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu options", session->option_count + 2);
  load_arm(session, &arm, options, private_options(session, options));
  for (size_t k = 0; k < DETERMINISM_RUNS && arm.status == TANDEM_OK; k++) {
    arm.status = tandem_method_reset(arm.method, &arm.error);
    if (arm.status == TANDEM_OK && run_arm(session, &arm, NULL) == TANDEM_OK) {
      uint64_t hash = td_outputs_hash(arm.outputs, session->output_count);
      first = k ? first : hash;
      same = same && hash == first;
    }
    td_progress_step("looking whether the vendor repeats itself");
  }
  unload_arm(&arm);
  free(options);
  if (arm.status != TANDEM_OK) {
    *error = arm.error;
    return arm.status;
  }
  *answer = cJSON_CreateBool(same);
  return TANDEM_OK;
}

static enum tandem_status write_outputs(const struct session *session, const char *directory,
                                        struct tandem_error *error) {
  if (mkdir(directory, 0777) != 0 && errno != EEXIST)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "cannot make the folder %s: %s", directory,
                     strerror(errno));
  for (size_t i = 0; i < session->arm_count; i++)
    for (size_t k = 0; k < session->output_count; k++) {
      char path[4096];
      if (snprintf(path, sizeof path, "%s/load%zu.out%zu.npy", directory, i, k) >= (int)sizeof path)
        return td_refuse(error, TANDEM_INVALID_ARGUMENT, "the path is too long: %s", directory);
      enum tandem_status status = td_npy_write(path, &session->arms[i].outputs[k], error);
      if (status != TANDEM_OK)
        return status;
    }
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- the document */

static const char *payload_text(int32_t kind) {
  return kind == TANDEM_PAYLOAD_MAPPED ? "mapped" : kind == TANDEM_PAYLOAD_COPIED ? "copied" : "released";
}

static void add_bytes_or_null(cJSON *object, const char *key, int64_t bytes) {
  if (bytes < 0)
    cJSON_AddNullToObject(object, key);
  else
    cJSON_AddNumberToObject(object, key, (double)bytes);
}

static void add_text_or_null(cJSON *object, const char *key, const char *text) {
  if (text && *text)
    cJSON_AddStringToObject(object, key, text);
  else
    cJSON_AddNullToObject(object, key);
}

/* A method may have several delegates: seconds and bytes are sums over them, `shared` holds for all of them.
 */
static cJSON *describe_arm(const struct arm *arm, size_t index, struct tandem_load_info *first) {
  struct tandem_load_info sum = {0};
  uint64_t device_bytes = 0, kept = 0, users = 0, engine_bytes = 0;
  double seconds = 0, digest = 0, build = 0;
  int64_t budget = -1;
  bool shared = true;
  size_t count = 0;
  for (struct tandem_load *load; (load = tandem_method_load(arm->method, count)); count++) {
    struct tandem_load_info info = {.struct_size = sizeof info};
    if (tandem_load_get_info(load, &info, NULL) != TANDEM_OK)
      break;
    sum = count ? sum : info;
    shared = shared && info.shared;
    users = count && users < info.users ? users : info.users;
    seconds += info.seconds;
    digest += info.digest_seconds;
    build += info.build_seconds;
    device_bytes += info.device_bytes;
    engine_bytes += info.engine_bytes;
    kept += info.payload_bytes_size;
    if (info.budget >= 0)
      budget = (budget < 0 ? 0 : budget) + info.budget;
  }
  sum.engine_bytes = engine_bytes;
  *first = sum;
  cJSON *object = cJSON_CreateObject();
  cJSON_AddNumberToObject(object, "index", (double)index);
  cJSON_AddBoolToObject(object, "shared", count && shared);
  cJSON_AddNumberToObject(object, "users", (double)users);
  cJSON_AddNumberToObject(object, "seconds", count ? seconds : arm->method_seconds);
  cJSON_AddNumberToObject(object, "digest_seconds", digest);
  cJSON_AddNumberToObject(object, "build_seconds", build);
  add_bytes_or_null(object, "budget", budget);
  add_bytes_or_null(object, "host_private_bytes", arm->growth);
  add_bytes_or_null(object, "device_memory_bytes", arm->device_growth);
  cJSON_AddNumberToObject(object, "device_bytes", (double)device_bytes);
  add_text_or_null(object, "payload_bytes", count ? payload_text(sum.payload_bytes) : NULL);
  cJSON_AddNumberToObject(object, "payload_bytes_size", (double)kept);
  cJSON_AddNumberToObject(object, "method_seconds", arm->method_seconds);
  return object;
}

static int order_times(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The nearest rank: the smallest time that `percent` of all times do not exceed. */
static double percentile_ms(const uint64_t *times, size_t count, size_t percent) {
  size_t rank = (count * percent + 99) / 100;
  return (double)times[rank ? rank - 1 : 0] * 1e-6;
}

static enum tandem_status describe_times(const struct session *session, cJSON *document,
                                         struct tandem_error *error) {
  size_t count = session->arm_count * session->repeat;
  uint64_t *times = malloc(count * sizeof *times);
  if (!times)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu times", count);
  for (size_t i = 0; i < session->arm_count; i++)
    memcpy(times + i * session->repeat, session->arms[i].times_ns, session->repeat * sizeof *times);
  qsort(times, count, sizeof *times, order_times);
  cJSON *run = cJSON_AddObjectToObject(document, "run");
  cJSON_AddNumberToObject(run, "count", (double)count);
  cJSON_AddNumberToObject(run, "p50_ms", percentile_ms(times, count, 50));
  cJSON_AddNumberToObject(run, "p99_ms", percentile_ms(times, count, 99));
  cJSON_AddNumberToObject(run, "max_ms", (double)times[count - 1] * 1e-6);
  free(times);
  return TANDEM_OK;
}

/* The backend id that the first load's vendor serves; the first delegate's where tandem made no load. */
static const char *find_backend(const struct session *session, const char *vendor, char *text, size_t size) {
  for (size_t i = 0; *vendor && i < tandem_vendor_count(); i++) {
    struct tandem_vendor_info info = {.struct_size = sizeof info};
    if (tandem_vendor_get_info(i, &info, NULL) == TANDEM_OK && strcmp(info.name, vendor) == 0) {
      snprintf(text, size, "%s", info.backend);
      return text;
    }
  }
  const struct tandem_delegate *delegates;
  size_t count;
  struct tandem_error error;
  if (tandem_program_delegates(session->program, session->method, &delegates, &count, &error) == TANDEM_OK &&
      count)
    return delegates[0].backend;
  return "";
}

static cJSON *describe_loads(const struct session *session, const struct tandem_stats *stats) {
  cJSON *document = cJSON_CreateObject();
  struct tandem_load_info info = {0}, other;
  char backend[64];
  cJSON *loads = cJSON_CreateArray();
  for (size_t i = 0; i < session->arm_count; i++)
    cJSON_AddItemToArray(loads, describe_arm(&session->arms[i], i, i ? &other : &info));
  cJSON_AddStringToObject(document, "program", session->path);
  cJSON_AddStringToObject(document, "method", session->method);
  add_text_or_null(document, "backend", find_backend(session, info.vendor, backend, sizeof backend));
  add_text_or_null(document, "vendor", info.vendor);
  add_text_or_null(document, "vendor_version", info.vendor_version);
  add_text_or_null(document, "device", info.device);
  add_text_or_null(document, "options", info.options);
  cJSON_AddItemToObject(document, "loads", loads);
  cJSON_AddNumberToObject(document, "engines", (double)stats->engines);
  cJSON_AddNumberToObject(document, "builds", (double)stats->builds);
  cJSON_AddNumberToObject(document, "joined", (double)stats->joined);
  cJSON_AddNumberToObject(document, "engine_bytes", (double)info.engine_bytes);
  cJSON_AddNumberToObject(document, "bytes_saved", (double)stats->bytes_saved);
  cJSON_AddBoolToObject(document, "bytes_estimated", stats->bytes_estimated);
  return document;
}

static void print_session(cJSON *document) {
  td_show_all(document);
  const char *vendor = td_text(document, "vendor");
  const char *backend = td_text(document, "backend");
  printf("%s, method %s", td_text(document, "program"), td_text(document, "method"));
  if (*vendor)
    printf(", %s %s on %s\n\n", vendor, td_text(document, "vendor_version"), td_text(document, "device"));
  else
    printf(", %s%s\n\n", *backend ? "delegate " : "no delegate", backend);
  td_print_loads_head(document, false);
  td_print_loads(document, NULL, td_largest_growth(document));
  printf("\n");
  if (*vendor) {
    bool saved = td_number(document, "bytes_saved") > 0;
    const char *about = cJSON_IsTrue(cJSON_GetObjectItem(document, "bytes_estimated")) ? "about " : "";
    const char *why = *about ? " (estimated from the payload's size)" : "";
    printf("engines %.0f, builds %.0f, joined %.0f, engine %s%.1f MiB", td_number(document, "engines"),
           td_number(document, "builds"), td_number(document, "joined"), about,
           td_number(document, "engine_bytes") / 1048576);
    if (saved)
      printf(", saved %s%.1f MiB%s\n", about, td_number(document, "bytes_saved") / 1048576, why);
    else
      printf("%s: nothing was shared\n", why);
  } else {
    printf("nothing was shared: no part of this method belongs to a backend of tandem\n");
  }
  const cJSON *run = cJSON_GetObjectItem(document, "run"),
              *equal = cJSON_GetObjectItem(document, "outputs_equal");
  printf("runs %.0f: p50 %.3f ms, p99 %.3f ms, max %.3f ms\n", td_number(run, "count"),
         td_number(run, "p50_ms"), td_number(run, "p99_ms"), td_number(run, "max_ms"));
  printf("outputs %s\n", cJSON_IsTrue(equal)    ? "equal, bit for bit"
                         : cJSON_IsFalse(equal) ? "differ"
                                                : "not compared: the vendor does not repeat itself");
}

/* ---------------------------------------------------------------- the command */

/* The method asked for, or "forward", or the only one. */
static enum tandem_status choose_method(struct session *session, struct tandem_error *error) {
  size_t count = tandem_program_method_count(session->program);
  const char *wanted = session->method ? session->method : "forward";
  char known[512] = "";
  for (size_t i = 0; i < count; i++) {
    const char *name = tandem_program_method_name(session->program, i);
    if (strcmp(name, wanted) == 0 || (!session->method && count == 1)) {
      session->method = name;
      return TANDEM_OK;
    }
    size_t n = strlen(known);
    snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", name);
  }
  return td_refuse(error, TANDEM_NOT_FOUND, "%s has no method '%s'; it has: %s", session->path, wanted,
                   known);
}

static enum tandem_status make_arms(struct session *session, struct tandem_error *error) {
  session->arms = calloc(session->arm_count, sizeof *session->arms);
  bool good = session->arms;
  for (size_t i = 0; good && i < session->arm_count; i++) {
    struct arm *arm = &session->arms[i];
    arm->growth = arm->device_growth = -1;
    arm->outputs = calloc(session->output_count + 1, sizeof *arm->outputs);
    arm->hashes = calloc(session->repeat, sizeof *arm->hashes);
    arm->times_ns = calloc(session->repeat, sizeof *arm->times_ns);
    good = arm->outputs && arm->hashes && arm->times_ns;
    /* touched now, so that they do not count as what a load costs */
    for (size_t k = 0; good && k < session->repeat; k++)
      arm->hashes[k] = arm->times_ns[k] = ~(uint64_t)0;
  }
  return good ? TANDEM_OK
              : td_refuse(error, TANDEM_OUT_OF_MEMORY, "no memory for %zu loads of %zu runs",
                          session->arm_count, session->repeat);
}

static void unload_all(struct session *session) {
  for (size_t i = 0; session->arms && i < session->arm_count; i++)
    unload_arm(&session->arms[i]);
}

/* The device of the first payload that names one: a GPU whose memory tells what loads cost. */
static void take_device(void *user, const char *key, const char *value) {
  int *index = user;
  if (*index < 0 && strcmp(key, "device_id") == 0)
    *index = (int)strtol(value, NULL, 10);
}

static void watch_gpu(struct session *session) {
  const struct tandem_delegate *delegates;
  size_t count;
  struct tandem_error error;
  int index = -1;
  if (tandem_program_delegates(session->program, session->method, &delegates, &count, &error) != TANDEM_OK)
    return;
  for (size_t i = 0; i < count && index < 0; i++)
    if (delegates[i].payload)
      tandem_payload_describe(delegates[i].backend, delegates[i].payload, delegates[i].payload_size,
                              take_device, &index, &error);
  if (index >= 0)
    td_gpu_watch(index, &session->gpu);
}

/* What no load can check when no part of the program is tandem's. */
static enum tandem_status check_options(const struct session *session, struct tandem_error *error) {
  struct tandem_scope *scope = NULL;
  enum tandem_status status = tandem_scope_acquire(session->options, session->option_count, &scope, error);
  tandem_scope_release(scope);
  if (status == TANDEM_OK)
    return status;
  char text[sizeof error->message];
  static const char scope_word[] = "scope ";
  snprintf(text, sizeof text, "%s", error->message);
  bool named = strncmp(text, scope_word, strlen(scope_word)) == 0;
  return td_refuse(error, status, "--option: %s", named ? text + strlen(scope_word) : text);
}

static enum tandem_status prepare(struct session *session, const struct td_text_list *files,
                                  struct tandem_error *error) {
  const struct tandem_program_desc desc = describe_program(session);
  const struct tandem_io *inputs;
  enum tandem_status status = check_options(session, error);
  if (status == TANDEM_OK)
    status = tandem_program_create(&desc, &session->program, error);
  if (status == TANDEM_OK)
    status = choose_method(session, error);
  if (status == TANDEM_OK)
    status = tandem_program_method_io(session->program, session->method, &inputs, &session->input_count,
                                      &session->io, &session->output_count, error);
  if (status == TANDEM_OK)
    status = td_inputs_create(inputs, session->input_count, files, &session->inputs, error);
  if (status == TANDEM_OK)
    status = make_arms(session, error);
  if (status == TANDEM_OK)
    watch_gpu(session);
  return status;
}

/* Loads, runs and unloads; *document is owned. */
static enum tandem_status measure(struct session *session, const char *output_dir, cJSON **document,
                                  struct tandem_error *error) {
  size_t threads = session->thread_count;
  struct tandem_stats stats = {.struct_size = sizeof stats};
  cJSON *deterministic = NULL;
  int64_t base = td_memory_private(), device_base = td_gpu_used(&session->gpu);
  enum tandem_status status =
      threads == 1 ? load_one_by_one(session, error) : on_all_arms(session, load_and_warm, error);
  int64_t loaded = td_memory_private(), device_loaded = td_gpu_used(&session->gpu);
  if (status == TANDEM_OK)
    status = on_all_arms(session, repeat_arm, error);
  if (status == TANDEM_OK)
    status = tandem_stats_get(&stats, error);
  if (status == TANDEM_OK && output_dir)
    status = write_outputs(session, output_dir, error);
  if (status != TANDEM_OK)
    return status;

  *document = describe_loads(session, &stats);
  bool delegated = tandem_method_load(session->arms[0].method, 0);
  unload_all(session);
  int64_t unloaded = td_memory_private(), device_unloaded = td_gpu_used(&session->gpu);
  status = tandem_stats_get(&stats, error);
  if (status == TANDEM_OK && delegated)
    status = find_determinism(session, &deterministic, error);
  if (status != TANDEM_OK)
    return status;
  cJSON_AddItemToObject(*document, "outputs_equal", compare_outputs(session, deterministic));
  cJSON_AddItemToObject(*document, "vendor_deterministic",
                        deterministic ? deterministic : cJSON_CreateNull());
  status = describe_times(session, *document, error);
  cJSON_AddNumberToObject(*document, "host_private_bytes",
                          base < 0 || loaded < base ? 0 : (double)(loaded - base));
  add_bytes_or_null(*document, "device_memory_bytes", growth_of(device_base, device_loaded));
  cJSON *after = cJSON_AddObjectToObject(*document, "after_unload");
  cJSON_AddNumberToObject(after, "engines", (double)stats.engines);
  cJSON_AddNumberToObject(after, "loads", (double)stats.loads);
  cJSON_AddNumberToObject(after, "host_private_bytes",
                          base < 0 || unloaded < base ? 0 : (double)(unloaded - base));
  add_bytes_or_null(after, "device_memory_bytes", growth_of(device_base, device_unloaded));
  return status;
}

/* Splits "KEY=VALUE" texts; keys are owned copies. False: the exit status is in *result. */
static bool split_options(const struct td_text_list *list, struct tandem_option *options, int *result) {
  for (size_t i = 0; i < list->count; i++) {
    const char *sign = strchr(list->items[i], '=');
    if (!sign || sign == list->items[i]) {
      td_complain("run: --option takes KEY=VALUE, not '%s'; see 'tandem run --help'", list->items[i]);
      *result = TD_EXIT_USAGE;
      return false;
    }
    options[i].key = strndup(list->items[i], (size_t)(sign - list->items[i]));
    options[i].value = sign + 1;
    if (!options[i].key) {
      td_complain("out of memory while reading the command line");
      *result = TD_EXIT_FAILED;
      return false;
    }
  }
  return true;
}

static bool asks_for_log(const struct tandem_option *options, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(options[i].key, "log_level") == 0)
      return true;
  return false;
}

int td_run_command(int count, char **arguments) {
  const struct td_usage usage = {"run", "PROGRAM", help};
  struct session session = {0};
  struct td_text_list files = {0}, texts = {0};
  struct tandem_option *options = NULL;
  const char *output_dir = NULL;
  uint64_t loads = 2, threads = 1, repeat = REPEAT_DEFAULT;
  bool json = false;
  const struct td_flag flags[] = {
      {"--data", TD_FLAG_LIST, &session.data, 0, 0},
      {"--method", TD_FLAG_TEXT, &session.method, 0, 0},
      {"--loads", TD_FLAG_COUNT, &loads, 1, LOADS_MAX},
      {"--threads", TD_FLAG_COUNT, &threads, 1, LOADS_MAX},
      {"--repeat", TD_FLAG_COUNT, &repeat, 1, REPEAT_MAX},
      {"--input", TD_FLAG_LIST, &files, 0, 0},
      {"--output-dir", TD_FLAG_TEXT, &output_dir, 0, 0},
      {"--option", TD_FLAG_LIST, &texts, 0, 0},
      {"--json", TD_FLAG_SWITCH, &json, 0, 0},
  };
  cJSON *document = NULL;
  struct tandem_error error = {0};
  int result = td_args_parse(&usage, flags, sizeof flags / sizeof flags[0], count, arguments, &session.path);
  if (result != TD_ARGS_GO)
    goto done;
  result = TD_EXIT_FAILED;
  options = calloc(texts.count + 1, sizeof *options);
  if (!options) {
    td_complain("out of memory while reading the command line");
    goto done;
  }
  if (!split_options(&texts, options, &result))
    goto done;
  session.options = options;
  session.option_count = texts.count;
  session.arm_count = (size_t)loads;
  session.thread_count = (size_t)(threads < loads ? threads : loads);
  session.repeat = (size_t)repeat;

  td_notes_init(asks_for_log(options, texts.count));
  enum tandem_status status = prepare(&session, &files, &error);
  if (status == TANDEM_OK) {
    td_progress_begin("loading", loads + loads * repeat + DETERMINISM_RUNS);
    status = measure(&session, output_dir, &document, &error);
    td_progress_end();
  }
  if (status != TANDEM_OK) {
    td_complain("%s", error.message);
    result = status == TANDEM_BAD_OPTION ? TD_EXIT_USAGE : TD_EXIT_FAILED;
    goto done;
  }
  bool differ = cJSON_IsFalse(cJSON_GetObjectItem(document, "outputs_equal"));
  td_notes_fini(true);
  if (json) {
    result = td_print_json(document) ? TD_EXIT_DONE : TD_EXIT_FAILED;
    document = NULL;
  } else {
    print_session(document);
    result = td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;
  }
  if (differ) {
    td_complain("the outputs of the loads differ, though the vendor repeats itself");
    result = TD_EXIT_FAILED;
  }

done:
  td_notes_fini(false);
  cJSON_Delete(document);
  unload_all(&session);
  for (size_t i = 0; session.arms && i < session.arm_count; i++) {
    free(session.arms[i].outputs);
    free(session.arms[i].hashes);
    free(session.arms[i].times_ns);
  }
  free(session.arms);
  td_gpu_unwatch(&session.gpu);
  td_inputs_destroy(session.inputs, session.input_count);
  tandem_program_destroy(session.program);
  for (size_t i = 0; options && i < texts.count; i++)
    free((char *)(uintptr_t)options[i].key);
  free(options);
  td_text_list_fini(&session.data);
  td_text_list_fini(&files);
  td_text_list_fini(&texts);
  return result;
}
