/* Stand-in libcuda, TESTS ONLY: streams and events.
 *
 * Every stream runs its operations in order on a thread of its own, later than the call that asked for them;
 * so code that forgets to wait reads what was there before. A blocking stream and the legacy stream of its
 * context wait for each other. After an error of the context what is queued is dropped, as on a device.
 */
#include "cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NON_BLOCKING = 1 };

void release_event_locked(struct event *event) {
  if (!event || --event->refs)
    return;
  release_capture_locked(event->capture);
  free(event);
}

void release_stream_locked(struct stream *stream) {
  if (--stream->refs)
    return;
  struct stream **link = &state.streams;
  while (*link && *link != stream)
    link = &(*link)->next;
  if (*link)
    *link = stream->next;
  free(stream);
}

void release_op_locked(struct op *op) {
  free(op->snapshot);
  release_event_locked(op->event);
  if (op->stream)
    release_stream_locked(op->stream);
}

/* ---------------------------------------------------------------- the thread of a stream */

static bool is_dead_locked(const struct stream *stream) {
  return context_status_locked(stream->context, stream->context_id) != CU_OK;
}

static void wait_at_gate_locked(const struct stream *stream) {
  if (!state.held)
    return;
  state.held_kernels++;
  pthread_cond_broadcast(&state.changed);
  while (state.held && state.passes == 0 && !is_dead_locked(stream))
    pthread_cond_wait(&state.changed, &state.lock);
  if (state.held && state.passes)
    state.passes--;
  state.held_kernels--;
}

static void run_copy(struct stream *stream, struct op *op) {
  struct block *to_block = NULL, *from_block = NULL;
  lock();
  void *to = reach_locked(stream->context, op->to, op->size, false, "copy to", &to_block);
  const void *from = op->snapshot;
  if (to && !from)
    from = reach_locked(stream->context, op->from, op->size, false, "copy from", &from_block);
  unlock();
  if (to && from)
    memmove(to, from, op->size);
  lock();
  unpin_locked(to_block);
  unpin_locked(from_block);
  unlock();
}

static void run_set(struct stream *stream, struct op *op) {
  struct block *block = NULL;
  lock();
  unsigned char *to = reach_locked(stream->context, op->to, op->size, true, "fill", &block);
  unlock();
  for (uint64_t i = 0; to && i < op->size; i++)
    to[i] = (unsigned char)(op->value >> (8 * (i % op->width)));
  lock();
  unpin_locked(block);
  unlock();
}

static void execute_locked(struct stream *stream, struct op *op) {
  switch (op->kind) {
  case OP_RECORD:
    if (op->generation > op->event->completed)
      op->event->completed = op->generation;
    op->event->time_ns = clock_ns();
    return;
  case OP_WAIT_EVENT:
    while (op->event->completed < op->generation && !is_dead_locked(stream))
      pthread_cond_wait(&state.changed, &state.lock);
    return;
  case OP_WAIT_STREAM:
    while (op->stream->completed < op->generation && !is_dead_locked(stream))
      pthread_cond_wait(&state.changed, &state.lock);
    return;
  case OP_FREE: {
    struct block *block = find_block_locked(op->from);
    if (block && block->address == op->from)
      drop_block_locked(block);
    else
      violate_locked(stream->context, CU_INVALID_VALUE, "freed twice: %#llx", (unsigned long long)op->from);
    return;
  }
  case OP_KERNEL:
    wait_at_gate_locked(stream);
    break;
  default:
    break;
  }
  if (is_dead_locked(stream))
    return;
  unlock();
  if (op->kind == OP_COPY)
    run_copy(stream, op);
  else if (op->kind == OP_SET)
    run_set(stream, op);
  else if (op->kind == OP_KERNEL)
    run_kernel(stream->context, op);
  else
    op->host(op->argument);
  lock();
}

static void *run_stream(void *argument) {
  struct stream *stream = argument;
  lock();
  for (;;) {
    while (!stream->first && !stream->destroyed)
      pthread_cond_wait(&state.changed, &state.lock);
    struct op *op = stream->first;
    if (!op)
      break;
    if (!is_dead_locked(stream) || op->kind == OP_RECORD)
      execute_locked(stream, op);
    stream->first = op->next;
    if (!stream->first)
      stream->last = NULL;
    stream->completed++;
    release_op_locked(op);
    free(op);
    pthread_cond_broadcast(&state.changed);
  }
  stream->running = false;
  release_stream_locked(stream);
  unlock();
  return NULL;
}

/* ---------------------------------------------------------------- queueing */

static struct stream *make_stream_locked(struct context *context, unsigned flags, int priority) {
  struct stream *stream = calloc(1, sizeof *stream);
  if (!stream)
    return NULL;
  stream->context = context;
  stream->context_id = context->id;
  stream->id = ++state.last_id;
  stream->flags = flags;
  stream->priority = priority;
  stream->refs = 1;
  stream->next = state.streams;
  state.streams = stream;
  return stream;
}

static int legacy_locked(struct context *context, struct stream **stream) {
  if (!context->legacy && (context->legacy = make_stream_locked(context, 0, 0)))
    context->legacy->is_legacy = true;
  *stream = context->legacy;
  return *stream ? CU_OK : CU_OUT_OF_MEMORY;
}

static int per_thread_locked(struct context *context, struct stream **found) {
  struct thread *thread = this_thread();
  unsigned free_place = thread->per_thread_count;
  for (unsigned i = 0; i < thread->per_thread_count; i++) {
    struct stream *stream = thread->per_thread[i];
    if (stream->context == context && stream->context_id == context->id && !stream->destroyed) {
      *found = stream;
      return CU_OK;
    }
    if (stream->destroyed)
      free_place = i;
  }
  if (free_place == sizeof thread->per_thread / sizeof *thread->per_thread)
    return CU_OUT_OF_MEMORY;
  struct stream *stream = make_stream_locked(context, 0, 0);
  if (!stream)
    return CU_OUT_OF_MEMORY;
  stream->is_per_thread = true;
  stream->refs++; /* the thread's list */
  if (free_place < thread->per_thread_count)
    release_stream_locked(thread->per_thread[free_place]);
  else
    thread->per_thread_count++;
  thread->per_thread[free_place] = stream;
  *found = stream;
  return CU_OK;
}

int find_stream_locked(void *handle, struct stream **found) {
  if (handle == NULL || handle == CU_LEGACY_STREAM || handle == CU_PER_THREAD_STREAM) {
    struct context *context;
    int result = current_locked(&context);
    if (result)
      return result;
    return handle == CU_PER_THREAD_STREAM ? per_thread_locked(context, found) : legacy_locked(context, found);
  }
  for (struct stream *stream = state.streams; stream; stream = stream->next) {
    if (stream != handle || stream->destroyed)
      continue;
    *found = stream;
    struct context *context;
    int result = current_locked(&context);
    return result ? result : context_status_locked(stream->context, stream->context_id);
  }
  violate_locked(NULL, 0, "no stream %p", handle);
  return CU_INVALID_HANDLE;
}

static int queue_locked(struct stream *stream, const struct op *op) {
  struct op *queued = malloc(sizeof *queued);
  if (!queued)
    return CU_OUT_OF_MEMORY;
  if (!stream->running) {
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &detached, run_stream, stream) == 0;
    pthread_attr_destroy(&detached);
    if (!started) {
      free(queued);
      return CU_OUT_OF_MEMORY;
    }
    stream->running = true;
    stream->refs++;
  }
  *queued = *op;
  queued->next = NULL;
  if (stream->last)
    stream->last->next = queued;
  else
    stream->first = queued;
  stream->last = queued;
  stream->submitted++;
  pthread_cond_broadcast(&state.changed);
  return CU_OK;
}

static void wait_for_stream_locked(struct stream *stream, struct stream *other) {
  if (other->completed == other->submitted)
    return;
  other->refs++;
  struct op wait = {.kind = OP_WAIT_STREAM, .stream = other, .generation = other->submitted};
  if (queue_locked(stream, &wait))
    release_op_locked(&wait);
}

int submit_locked(struct stream *stream, const struct op *op) {
  struct op kept = *op;
  int result = CU_OK;
  if (stream->capture) {
    result = capture_locked(stream, op);
    if (result)
      release_op_locked(&kept);
    return result;
  }
  struct stream *next;
  for (struct stream *other = state.streams; other && stream->is_legacy && !result; other = next) {
    next = other->next;
    bool blocking = other->context == stream->context && other != stream && !(other->flags & NON_BLOCKING);
    if (!blocking)
      continue;
    if (other->capture) {
      break_capture_locked(other->capture);
      result = CU_STREAM_CAPTURE_IMPLICIT;
    } else {
      wait_for_stream_locked(stream, other);
    }
  }
  struct stream *legacy = stream->context->legacy;
  if (!stream->is_legacy && !(stream->flags & NON_BLOCKING) && legacy)
    wait_for_stream_locked(stream, legacy);
  if (!result)
    result = queue_locked(stream, op);
  if (result)
    release_op_locked(&kept);
  return result;
}

void drain_locked(struct stream *stream, uint64_t sequence) {
  stream->refs++;
  while (stream->completed < sequence)
    pthread_cond_wait(&state.changed, &state.lock);
  release_stream_locked(stream);
}

void drain_context_locked(struct context *context) {
  uint64_t id = context->id;
  for (struct stream *stream = state.streams; stream;) {
    bool busy =
        stream->context == context && stream->context_id == id && stream->completed < stream->submitted;
    if (!busy) {
      stream = stream->next;
      continue;
    }
    drain_locked(stream, stream->submitted);
    stream = state.streams; /* the list changed while unlocked */
  }
}

void destroy_stream_locked(struct stream *stream) {
  if (stream->destroyed)
    return;
  stream->destroyed = true;
  if (stream->capture) {
    break_capture_locked(stream->capture);
    release_capture_locked(stream->capture);
    stream->capture = NULL;
  }
  if (stream->context->legacy == stream)
    stream->context->legacy = NULL;
  pthread_cond_broadcast(&state.changed);
  release_stream_locked(stream);
}

/* ---------------------------------------------------------------- streams */

EXPORT int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  ENTER("cuStreamCreate");
  if (flags > NON_BLOCKING)
    return CU_INVALID_VALUE;
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result && !(*stream = make_stream_locked(context, flags, priority)))
    result = CU_OUT_OF_MEMORY;
  unlock();
  return result;
}

EXPORT int cuStreamCreate(void **stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT int cuStreamDestroy_v2(void *handle) {
  ENTER("cuStreamDestroy");
  lock();
  struct stream *stream = NULL;
  int result = handle == NULL || handle == CU_LEGACY_STREAM || handle == CU_PER_THREAD_STREAM
                   ? CU_INVALID_HANDLE
                   : find_stream_locked(handle, &stream);
  if (stream && !stream->destroyed)
    destroy_stream_locked(stream);
  unlock();
  return result;
}

EXPORT int cuStreamSynchronize(void *handle) {
  ENTER("cuStreamSynchronize");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && stream->capture) {
    break_capture_locked(stream->capture);
    result = CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!result) {
    struct context *context = stream->context;
    uint64_t id = stream->context_id;
    if (stream->is_legacy) {
      struct stream *next;
      for (struct stream *other = state.streams; other; other = next) {
        next = other->next;
        if (other->context == context && other != stream && !(other->flags & NON_BLOCKING) && !other->capture)
          wait_for_stream_locked(stream, other);
      }
    }
    drain_locked(stream, stream->submitted);
    result = context_status_locked(context, id);
  }
  unlock();
  return result;
}

EXPORT int cuStreamQuery(void *handle) {
  ENTER("cuStreamQuery");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && stream->capture) {
    break_capture_locked(stream->capture);
    result = CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!result)
    result = unsafe_call_locked();
  if (!result && stream->completed < stream->submitted)
    result = CU_NOT_READY;
  unlock();
  return result;
}

EXPORT int cuStreamGetCtx_v2(void *handle, void **context, void **green) {
  ENTER("cuStreamGetCtx");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result) {
    *context = stream->is_green ? NULL : stream->context;
    if (green)
      *green = stream->is_green ? stream : NULL;
  }
  unlock();
  return result;
}

EXPORT int cuStreamGetCtx(void *handle, void **context) {
  ENTER("cuStreamGetCtx");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    *context = stream->context;
  unlock();
  return result;
}

EXPORT int cuStreamGetGreenCtx(void *handle, void **green) {
  ENTER("cuStreamGetGreenCtx");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    *green = stream->is_green ? stream : NULL;
  unlock();
  return result;
}

EXPORT int cuStreamGetId(void *handle, unsigned long long *id) {
  ENTER("cuStreamGetId");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    *id = stream->id;
  unlock();
  return result;
}

EXPORT int cuStreamGetFlags(void *handle, unsigned *flags) {
  ENTER("cuStreamGetFlags");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    *flags = stream->flags;
  unlock();
  return result;
}

EXPORT int cuStreamGetPriority(void *handle, int *priority) {
  ENTER("cuStreamGetPriority");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    *priority = stream->priority;
  unlock();
  return result;
}

EXPORT int cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
  ENTER("cuLaunchHostFunc");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result)
    result = submit_locked(stream, &(struct op){.kind = OP_HOST, .host = function, .argument = argument});
  unlock();
  return result;
}

/* ---------------------------------------------------------------- events */

static int find_event_locked(void *handle, struct event **found) {
  for (struct event *event = state.events; event; event = event->next) {
    if (event == handle && !event->destroyed) {
      *found = event;
      return context_status_locked(event->context, event->context_id);
    }
  }
  violate_locked(NULL, 0, "no event %p", handle);
  return CU_INVALID_HANDLE;
}

EXPORT int cuEventCreate(void **handle, unsigned flags) {
  ENTER("cuEventCreate");
  lock();
  struct context *context;
  int result = current_locked(&context);
  struct event *event = result ? NULL : calloc(1, sizeof *event);
  if (event) {
    event->context = context;
    event->context_id = context->id;
    event->flags = flags;
    event->refs = 1;
    event->next = state.events;
    state.events = event;
    *handle = event;
  } else if (!result) {
    result = CU_OUT_OF_MEMORY;
  }
  unlock();
  return result;
}

void destroy_event_locked(struct event *event) {
  struct event **link = &state.events;
  while (*link && *link != event)
    link = &(*link)->next;
  if (*link)
    *link = event->next;
  event->destroyed = true;
  release_event_locked(event);
}

EXPORT int cuEventDestroy_v2(void *handle) {
  ENTER("cuEventDestroy");
  lock();
  struct event *event = NULL;
  int result = find_event_locked(handle, &event);
  if (event)
    destroy_event_locked(event);
  unlock();
  return result;
}

EXPORT int cuEventRecord(void *handle, void *stream_handle) {
  ENTER("cuEventRecord");
  lock();
  struct event *event;
  struct stream *stream;
  int result = find_event_locked(handle, &event);
  if (!result)
    result = find_stream_locked(stream_handle, &stream);
  if (!result && (event->context != stream->context || event->context_id != stream->context_id))
    result = CU_INVALID_HANDLE;
  if (!result) {
    release_capture_locked(event->capture);
    event->capture = NULL;
  }
  if (!result && stream->capture) {
    if (stream->capture->invalid) {
      result = CU_STREAM_CAPTURE_INVALIDATED;
    } else {
      event->capture = stream->capture;
      event->capture->refs++;
      event->capture_stream = stream;
      event->capture_position = stream->capture_position;
    }
  } else if (!result) {
    event->recorded++;
    event->refs++;
    result =
        submit_locked(stream, &(struct op){.kind = OP_RECORD, .event = event, .generation = event->recorded});
  }
  unlock();
  return result;
}

EXPORT int cuEventRecordWithFlags(void *event, void *stream, unsigned flags) {
  (void)flags;
  return cuEventRecord(event, stream);
}

EXPORT int cuEventQuery(void *handle) {
  ENTER("cuEventQuery");
  lock();
  struct event *event;
  int result = find_event_locked(handle, &event);
  if (!result && event->capture) {
    break_capture_locked(event->capture);
    result = CU_CAPTURED_EVENT;
  }
  if (!result)
    result = unsafe_call_locked();
  if (!result && event->completed < event->recorded)
    result = CU_NOT_READY;
  unlock();
  return result;
}

EXPORT int cuEventSynchronize(void *handle) {
  ENTER("cuEventSynchronize");
  lock();
  struct event *event;
  int result = find_event_locked(handle, &event);
  if (!result && event->capture) {
    break_capture_locked(event->capture);
    result = CU_CAPTURED_EVENT;
  }
  if (!result) {
    uint64_t generation = event->recorded;
    event->refs++;
    while (event->completed < generation &&
           !(result = context_status_locked(event->context, event->context_id)))
      pthread_cond_wait(&state.changed, &state.lock);
    if (!result)
      result = context_status_locked(event->context, event->context_id);
    release_event_locked(event);
  }
  unlock();
  return result;
}

EXPORT int cuEventElapsedTime_v2(float *milliseconds, void *first, void *second) {
  ENTER("cuEventElapsedTime");
  lock();
  struct event *from, *to;
  int result = find_event_locked(first, &from);
  if (!result)
    result = find_event_locked(second, &to);
  if (!result && (!from->recorded || !to->recorded))
    result = CU_INVALID_HANDLE;
  if (!result && (from->completed < from->recorded || to->completed < to->recorded))
    result = CU_NOT_READY;
  if (!result)
    *milliseconds = (float)((double)(int64_t)(to->time_ns - from->time_ns) / 1e6);
  unlock();
  return result;
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *first, void *second) {
  return cuEventElapsedTime_v2(milliseconds, first, second);
}

/* An event recorded in a capture pulls the waiting stream into it, or joins it again. */
static int wait_in_capture_locked(struct stream *stream, struct event *event) {
  struct capture *capture = event->capture;
  if (!capture) {
    if (stream->capture) { /* an event from outside */
      break_capture_locked(stream->capture);
      return CU_STREAM_CAPTURE_ISOLATION;
    }
    return CU_OK;
  }
  if (!capture->graph)
    return CU_INVALID_VALUE; /* that capture has ended */
  if (stream->capture && stream->capture != capture) {
    break_capture_locked(stream->capture);
    break_capture_locked(capture);
    return CU_STREAM_CAPTURE_MERGE;
  }
  if (!stream->capture) {
    if (stream->is_legacy) {
      break_capture_locked(capture);
      return CU_STREAM_CAPTURE_IMPLICIT;
    }
    stream->capture = capture;
    capture->refs++;
    stream->joined_position = 0;
  }
  for (struct stream *other = state.streams; other; other = other->next)
    if (other == event->capture_stream && other->capture == capture)
      other->joined_position = event->capture_position;
  stream->capture_position = capture->graph->count + 1;
  return CU_OK;
}

EXPORT int cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags) {
  (void)flags;
  ENTER("cuStreamWaitEvent");
  lock();
  struct event *event;
  struct stream *stream;
  int result = find_event_locked(handle, &event);
  if (!result)
    result = find_stream_locked(stream_handle, &stream);
  if (!result && (event->capture || stream->capture)) {
    result = wait_in_capture_locked(stream, event);
  } else if (!result && event->completed < event->recorded) {
    event->refs++;
    result = submit_locked(
        stream, &(struct op){.kind = OP_WAIT_EVENT, .event = event, .generation = event->recorded});
  }
  unlock();
  return result;
}
