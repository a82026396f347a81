/* Option cuda_graph: a run that repeats is recorded once and replayed.
 *
 * A graph holds addresses, so it belongs to one load and stands for one set of shapes, addresses and scratch,
 * the key. A key is recorded when a second run in a row has it: callers with new buffers each time never pay
 * for a recording, and the first run has warmed the shapes up. A bounded number of graphs is kept, the one
 * unused for longest goes.
 *
 * Recording is in thread-local mode on a stream of our own, so no call on another thread can break it or be
 * broken by it as far as the driver is concerned; what a vendor's library does on other threads is not ours
 * to know, so the calls of it that may do more than enqueue share a lock that a recording has alone (cuda.h).
 *
 * A stream of another CUDA context or of a green one cannot take the graph of ours; only drivers from 12.5 on
 * tell, so older ones record nothing. A recording that fails costs nothing but time: the run goes plainly,
 * and after three failures every later one does. A recording that would have to wait for another load's build
 * is left to a later run.
 */
#include "cuda.h"

#include <string.h>

enum { GRAPHS_MAX = 8, FAILURES_MAX = 3, DRIVER_MIN = 12050 };

struct entry {
  void *executable; /* owned; NULL: empty */
  uint64_t *key;    /* owned */
  size_t key_count;
  uint64_t used; /* the clock at its last launch */
};

struct td_graphs {
  const struct tandem_vendor *vendor; /* whose lines these are */
  void *stream;                       /* owned */
  struct entry entries[GRAPHS_MAX];
  uint64_t *candidate; /* owned: the key of the last run that no entry has */
  size_t candidate_count, candidate_room;
  uint64_t clock;
  unsigned failures;
  bool told_stream; /* why a stream's runs go plainly was said */
};

static struct tandem_host_lock capture_lock; /* one for all vendors: a device has one driver */

void td_cuda_capture_lock_shared(void) {
  td_cuda_host()->lock_shared(&capture_lock);
}

void td_cuda_capture_unlock(void) {
  td_cuda_host()->unlock(&capture_lock);
}

struct td_graphs *td_graphs_create(struct td_cuda_context *cuda, const struct tandem_vendor *vendor,
                                   const char *reason) {
  int32_t driver = td_cuda_driver_version();
  if (reason != NULL) {
    td_cuda_say(vendor, TANDEM_LOG_WARNING, "cuda_graph: runs are not recorded: %s", reason);
    return NULL;
  }
  if (driver < DRIVER_MIN || td_cuda.stream_context == NULL) {
    td_cuda_say(vendor, TANDEM_LOG_WARNING,
                "cuda_graph: runs are not recorded: the driver is of CUDA %d.%d, 12.5 or later is needed",
                driver / 1000, driver % 1000 / 10);
    return NULL;
  }
  struct td_graphs *graphs = td_cuda_host()->allocate(sizeof *graphs);
  if (graphs != NULL && td_cuda.stream_create(&graphs->stream, TD_CUDA_STREAM_NON_BLOCKING) != TD_CUDA_OK) {
    td_cuda_host()->release(graphs);
    graphs = NULL;
  }
  if (graphs == NULL)
    td_cuda_say(vendor, TANDEM_LOG_WARNING, "cuda_graph: runs are not recorded: no memory or stream for it");
  if (graphs != NULL)
    graphs->vendor = vendor;
  (void)cuda;
  return graphs;
}

static void clear_entry(struct entry *entry, bool forget) {
  if (entry->executable != NULL && !forget)
    td_cuda.graph_exec_destroy(entry->executable);
  td_cuda_host()->release(entry->key);
  memset(entry, 0, sizeof *entry);
}

void td_graphs_destroy(struct td_graphs *graphs, struct td_cuda_context *cuda) {
  if (graphs == NULL)
    return;
  bool forget = td_cuda_lost(cuda);
  for (size_t i = 0; i < GRAPHS_MAX; i++)
    clear_entry(&graphs->entries[i], forget);
  if (!forget)
    td_cuda.stream_destroy(graphs->stream);
  td_cuda_host()->release(graphs->candidate);
  td_cuda_host()->release(graphs);
}

/* Whether the run's stream takes graphs of our context. */
static bool takes_graphs(struct td_graphs *graphs, struct td_cuda_context *cuda,
                         const struct td_graph_request *request) {
  void *context = NULL, *green = NULL;
  if (!request->foreign)
    return true;
  int32_t code = td_cuda.stream_context(request->stream, &context, &green);
  bool ours = code == TD_CUDA_OK && green == NULL && context == cuda->handle;
  if (!ours && !graphs->told_stream) {
    graphs->told_stream = true;
    td_cuda_say(graphs->vendor, TANDEM_LOG_WARNING,
                "cuda_graph: runs on the caller's stream go plainly: it %s",
                code != TD_CUDA_OK ? "does not tell its CUDA context"
                : green != NULL    ? "belongs to a green context"
                                   : "belongs to another CUDA context than the engine");
  }
  return ours;
}

static bool same_key(const uint64_t *key, size_t count, const struct td_graph_request *request) {
  return key != NULL && count == request->key_count && memcmp(key, request->key, count * sizeof *key) == 0;
}

static struct entry *find_entry(struct td_graphs *graphs, const struct td_graph_request *request) {
  for (size_t i = 0; i < GRAPHS_MAX; i++)
    if (graphs->entries[i].executable != NULL &&
        same_key(graphs->entries[i].key, graphs->entries[i].key_count, request))
      return &graphs->entries[i];
  return NULL;
}

static void note_candidate(struct td_graphs *graphs, const struct td_graph_request *request) {
  if (graphs->candidate_room < request->key_count) {
    td_cuda_host()->release(graphs->candidate);
    graphs->candidate = td_cuda_host()->allocate(request->key_count * sizeof *graphs->candidate);
    graphs->candidate_room = graphs->candidate != NULL ? request->key_count : 0;
  }
  graphs->candidate_count = graphs->candidate != NULL ? request->key_count : 0;
  if (graphs->candidate != NULL)
    memcpy(graphs->candidate, request->key, request->key_count * sizeof *request->key);
}

/* Records a run into an executable graph, which the run's stream can launch; NULL when that fails. *busy: it
 * was not tried, the lock is with others. */
static void *record(struct td_graphs *graphs, const struct td_graph_request *request, bool *busy) {
  void *graph = NULL, *executable = NULL;
  bool recorded = false;
  *busy = !td_cuda_host()->try_lock_alone(&capture_lock);
  if (*busy)
    return NULL;
  bool capturable = request->capturable == NULL || request->capturable(request->context, graphs->stream);
  /* What must not be in a capture has to fail, not to be left out of it. */
  int32_t mode = td_cuda_capture_mode(TD_CUDA_CAPTURE_THREAD_LOCAL);
  if (capturable && td_cuda.capture_begin(graphs->stream, TD_CUDA_CAPTURE_THREAD_LOCAL) == TD_CUDA_OK) {
    recorded = request->enqueue(request->context, graphs->stream);
    /* Also after a failure: the stream stays unusable until its capture has ended. */
    recorded = td_cuda.capture_end(graphs->stream, &graph) == TD_CUDA_OK && recorded;
  }
  td_cuda_capture_mode(mode);
  if (recorded && graph != NULL && td_cuda.graph_instantiate(&executable, graph, 0) != TD_CUDA_OK)
    executable = NULL;
  if (graph != NULL)
    td_cuda.graph_destroy(graph);
  td_cuda_host()->unlock(&capture_lock);
  return executable;
}

static struct entry *oldest(struct td_graphs *graphs) {
  struct entry *found = &graphs->entries[0];
  for (size_t i = 1; i < GRAPHS_MAX && found->executable != NULL; i++)
    if (graphs->entries[i].executable == NULL || graphs->entries[i].used < found->used)
      found = &graphs->entries[i];
  return found;
}

static enum td_graph_result launch(struct td_graphs *graphs, struct entry *entry,
                                   const struct td_graph_request *request, enum td_graph_result result,
                                   int32_t *code) {
  entry->used = ++graphs->clock;
  *code = td_cuda.graph_launch(entry->executable, request->stream);
  return *code == TD_CUDA_OK ? result : TD_GRAPH_FAILED;
}

enum td_graph_result td_graphs_run(struct td_graphs *graphs, struct td_cuda_context *cuda,
                                   const struct td_graph_request *request, int32_t *code) {
  *code = TD_CUDA_OK;
  if (graphs == NULL || graphs->failures >= FAILURES_MAX || !takes_graphs(graphs, cuda, request))
    return TD_GRAPH_PLAIN;
  struct entry *entry = find_entry(graphs, request);
  if (entry != NULL)
    return launch(graphs, entry, request, TD_GRAPH_LAUNCHED, code);
  if (!same_key(graphs->candidate, graphs->candidate_count, request)) {
    note_candidate(graphs, request);
    return TD_GRAPH_PLAIN;
  }
  uint64_t *key = td_cuda_host()->allocate(request->key_count * sizeof *key);
  bool busy = false;
  void *executable = key != NULL ? record(graphs, request, &busy) : NULL;
  if (executable == NULL) {
    td_cuda_host()->release(key);
    if (!busy && ++graphs->failures == FAILURES_MAX)
      td_cuda_say(
          graphs->vendor, TANDEM_LOG_WARNING,
          "cuda_graph: runs go plainly from now on: %d recordings failed, this engine cannot be captured",
          FAILURES_MAX);
    return TD_GRAPH_PLAIN;
  }
  memcpy(key, request->key, request->key_count * sizeof *key);
  entry = oldest(graphs);
  if (entry->executable != NULL && request->flight != NULL)
    td_cuda_wait_event(request->flight);
  clear_entry(entry, td_cuda_lost(cuda));
  *entry = (struct entry){.executable = executable, .key = key, .key_count = request->key_count};
  return launch(graphs, entry, request, TD_GRAPH_RECORDED, code);
}
