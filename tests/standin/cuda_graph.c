/* Stand-in libcuda, TESTS ONLY: stream capture and graphs.
 *
 * What a capture forbids follows the driver's rule: a call that might break a capture is refused to a thread
 * in global mode while it captures itself (not in relaxed mode) or any thread captures in global mode, to a
 * thread in thread-local mode while it captures itself, to one in relaxed mode never; and a refused call
 * breaks the captures that forbade it. A graph keeps its operations in the order they were captured in, which
 * is one order that the dependencies allow.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

void release_capture_locked(struct capture *capture) {
  if (capture && --capture->refs == 0)
    free(capture);
}

void break_capture_locked(struct capture *capture) {
  if (capture->graph)
    capture->invalid = true;
}

int unsafe_call_locked(void) {
  struct thread *thread = this_thread();
  if (thread->capture_mode == CU_CAPTURE_RELAXED)
    return CU_OK;
  int result = CU_OK;
  for (struct stream *stream = state.streams; stream; stream = stream->next) {
    struct capture *capture = stream->capture;
    if (!capture || capture->mode == CU_CAPTURE_RELAXED)
      continue;
    bool own = capture->thread == thread;
    bool everyones = capture->mode == CU_CAPTURE_GLOBAL && thread->capture_mode == CU_CAPTURE_GLOBAL;
    if (own || everyones) {
      break_capture_locked(capture);
      result = CU_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

void copy_op_locked(struct op *to, const struct op *from) {
  *to = *from;
  to->next = NULL;
  if (from->snapshot) {
    to->snapshot = malloc(from->size);
    if (to->snapshot)
      memcpy(to->snapshot, from->snapshot, from->size);
  }
  if (to->event)
    to->event->refs++;
  if (to->stream)
    to->stream->refs++;
}

int capture_locked(struct stream *stream, const struct op *op) {
  struct capture *capture = stream->capture;
  if (capture->invalid)
    return CU_STREAM_CAPTURE_INVALIDATED;
  struct graph *graph = capture->graph;
  if (graph->count == graph->capacity) {
    size_t capacity = graph->capacity ? 2 * graph->capacity : 16;
    struct op *ops = realloc(graph->ops, capacity * sizeof *ops);
    if (!ops)
      return CU_OUT_OF_MEMORY;
    graph->ops = ops;
    graph->capacity = capacity;
  }
  graph->ops[graph->count++] = *op;
  stream->capture_position = graph->count;
  return CU_OK;
}

static struct graph *make_graph_locked(bool instance) {
  struct graph *graph = calloc(1, sizeof *graph);
  if (!graph)
    return NULL;
  graph->is_instance = instance;
  graph->next = state.graphs;
  state.graphs = graph;
  return graph;
}

static void destroy_graph_locked(struct graph *graph) {
  struct graph **link = &state.graphs;
  while (*link && *link != graph)
    link = &(*link)->next;
  if (*link)
    *link = graph->next;
  for (size_t i = 0; i < graph->count; i++)
    release_op_locked(&graph->ops[i]);
  free(graph->ops);
  free(graph);
}

static struct graph *find_graph_locked(const void *handle, bool instance) {
  for (struct graph *graph = state.graphs; graph; graph = graph->next)
    if (graph == handle && graph->is_instance == instance)
      return graph;
  violate_locked(NULL, 0, "no graph %p", handle);
  return NULL;
}

EXPORT int cuStreamBeginCapture_v2(void *handle, int mode) {
  ENTER("cuStreamBeginCapture");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && stream->is_legacy)
    result = CU_STREAM_CAPTURE_UNSUPPORTED;
  if (!result && stream->capture) {
    break_capture_locked(stream->capture);
    result = CU_ILLEGAL_STATE;
  }
  if (!result && (mode < CU_CAPTURE_GLOBAL || mode > CU_CAPTURE_RELAXED))
    result = CU_INVALID_VALUE;
  struct capture *capture = result ? NULL : calloc(1, sizeof *capture);
  if (capture && (capture->graph = make_graph_locked(false))) {
    capture->graph->context = stream->context;
    capture->origin = stream;
    capture->thread = this_thread();
    capture->mode = mode;
    capture->refs = 1;
    stream->capture = capture;
    stream->capture_position = 0;
  } else if (!result) {
    free(capture);
    result = CU_OUT_OF_MEMORY;
  }
  unlock();
  return result;
}

EXPORT int cuStreamEndCapture(void *handle, void **graph) {
  ENTER("cuStreamEndCapture");
  *graph = NULL;
  lock();
  struct stream *stream;
  struct capture *capture = NULL;
  int result = find_stream_locked(handle, &stream);
  if (!result && !(capture = stream->capture))
    result = CU_ILLEGAL_STATE;
  if (!result && capture->origin != stream) {
    break_capture_locked(capture);
    result = CU_STREAM_CAPTURE_UNMATCHED;
  }
  if (!result && capture->mode != CU_CAPTURE_RELAXED && capture->thread != this_thread()) {
    break_capture_locked(capture);
    result = CU_STREAM_CAPTURE_WRONG_THREAD;
  }
  if (!result) {
    capture->refs++; /* until its streams have left it */
    for (struct stream *other = state.streams; other; other = other->next) {
      if (other->capture != capture)
        continue;
      if (other != stream && other->capture_position > other->joined_position)
        result = CU_STREAM_CAPTURE_UNJOINED;
      other->capture = NULL;
      release_capture_locked(capture);
    }
    if (capture->invalid)
      result = CU_STREAM_CAPTURE_INVALIDATED;
    if (result)
      destroy_graph_locked(capture->graph);
    else
      *graph = capture->graph;
    capture->graph = NULL;
    release_capture_locked(capture);
  }
  unlock();
  return result;
}

EXPORT int cuStreamIsCapturing(void *handle, int *status) {
  ENTER("cuStreamIsCapturing");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && stream->is_legacy) {
    *status = CU_CAPTURE_STATUS_NONE;
    for (struct stream *other = state.streams; other; other = other->next)
      if (other->context == stream->context && !(other->flags & 1) && other->capture)
        result = CU_STREAM_CAPTURE_IMPLICIT;
  } else if (!result) {
    *status = !stream->capture           ? CU_CAPTURE_STATUS_NONE
              : stream->capture->invalid ? CU_CAPTURE_STATUS_INVALIDATED
                                         : CU_CAPTURE_STATUS_ACTIVE;
  }
  unlock();
  return result;
}

EXPORT int cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, void **graph,
                                     const void ***dependencies, size_t *count) {
  int result = cuStreamIsCapturing(handle, status);
  lock();
  struct stream *stream;
  if (!result && !(result = find_stream_locked(handle, &stream))) {
    if (id)
      *id = stream->capture ? (uint64_t)(uintptr_t)stream->capture : 0;
    if (graph)
      *graph = stream->capture ? stream->capture->graph : NULL;
    if (dependencies)
      *dependencies = NULL;
    if (count)
      *count = 0;
  }
  unlock();
  return result;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER("cuThreadExchangeStreamCaptureMode");
  if (*mode < CU_CAPTURE_GLOBAL || *mode > CU_CAPTURE_RELAXED)
    return CU_INVALID_VALUE;
  struct thread *thread = this_thread();
  lock();
  int before = thread->capture_mode;
  thread->capture_mode = *mode;
  unlock();
  *mode = before;
  return CU_OK;
}

EXPORT int cuGraphInstantiateWithFlags(void **instance, void *handle, unsigned long long flags) {
  (void)flags;
  ENTER("cuGraphInstantiate");
  lock();
  struct context *context;
  int result = current_locked(&context);
  struct graph *graph = result ? NULL : find_graph_locked(handle, false);
  if (!result && !graph)
    result = CU_INVALID_VALUE;
  struct graph *made = result ? NULL : make_graph_locked(true);
  if (made) {
    made->context = graph->context;
    made->ops = calloc(graph->count + 1, sizeof *made->ops);
    for (size_t i = 0; made->ops && i < graph->count; i++, made->count++)
      copy_op_locked(&made->ops[i], &graph->ops[i]);
    *instance = made;
  } else if (!result) {
    result = CU_OUT_OF_MEMORY;
  }
  unlock();
  return result;
}

EXPORT int cuGraphLaunch(void *handle, void *stream_handle) {
  ENTER("cuGraphLaunch");
  lock();
  struct stream *stream;
  int result = find_stream_locked(stream_handle, &stream);
  struct graph *graph = result ? NULL : find_graph_locked(handle, true);
  if (!result && !graph)
    result = CU_INVALID_VALUE;
  if (!result && (graph->context != stream->context || stream->is_green))
    result = CU_INVALID_CONTEXT;
  for (size_t i = 0; !result && i < graph->count; i++) {
    struct op op;
    copy_op_locked(&op, &graph->ops[i]);
    result = submit_locked(stream, &op);
  }
  unlock();
  return result;
}

EXPORT int cuGraphGetNodes(void *handle, void **nodes, size_t *count) {
  ENTER("cuGraphGetNodes");
  lock();
  struct graph *graph = find_graph_locked(handle, false);
  for (size_t i = 0; graph && nodes && i < *count && i < graph->count; i++)
    nodes[i] = &graph->ops[i];
  if (graph && (!nodes || *count > graph->count))
    *count = graph->count;
  unlock();
  return graph ? CU_OK : CU_INVALID_VALUE;
}

EXPORT int cuGraphDestroy(void *handle) {
  ENTER("cuGraphDestroy");
  lock();
  struct graph *graph = find_graph_locked(handle, false);
  if (graph)
    destroy_graph_locked(graph);
  unlock();
  return graph ? CU_OK : CU_INVALID_VALUE;
}

EXPORT int cuGraphExecDestroy(void *handle) {
  ENTER("cuGraphExecDestroy");
  lock();
  struct graph *graph = find_graph_locked(handle, true);
  if (graph)
    destroy_graph_locked(graph);
  unlock();
  return graph ? CU_OK : CU_INVALID_VALUE;
}
