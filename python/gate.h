/* The gate between tandem's callbacks and Python.
 *
 * A thread that asks an interpreter that has ended for its lock is ended by it (before Python 3.14), which
 * unwinds ExecuTorch's C++ frames and aborts the process. So callbacks are counted, and before the
 * interpreter ends (atexit) the gate closes: nobody enters any more, and who is inside gets out. Included by
 * the module that native.py writes; the functions tandem_python_* are cffi's, which ask for the lock.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static void tandem_python_log(void *user, enum tandem_log_level level, const char *line);
static enum tandem_status tandem_python_load_begin(void *user, void **token, struct tandem_error *error);
static void tandem_python_load_end(void *user, void *token);

static atomic_long gate_inside;
static atomic_bool gate_closed;
static atomic_bool gate_interrupted;

/* Python handles signals at the next line of Python, which here is a callback's, where nothing that is raised
 * gets further. A KeyboardInterrupt is put off: it comes when the call into C is over. */
static void handle_signals(void) {
  PyGILState_STATE state = PyGILState_Ensure();
  if (PyErr_CheckSignals() != 0) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
      PyErr_Clear();
      atomic_store(&gate_interrupted, true);
    } else {
      PyErr_WriteUnraisable(NULL);
    }
  }
  PyGILState_Release(state);
}

static bool enter_gate(void) {
  atomic_fetch_add(&gate_inside, 1);
  if (!atomic_load(&gate_closed)) {
    handle_signals();
    return true;
  }
  atomic_fetch_sub(&gate_inside, 1);
  return false;
}

static void leave_gate(void) {
  if (atomic_exchange(&gate_interrupted, false))
    PyErr_SetInterrupt();
  atomic_fetch_sub(&gate_inside, 1);
}

/* For callbacks that an interrupt came into. */
static void tandem_gate_interrupt(void) {
  atomic_store(&gate_interrupted, true);
}

static void gate_log(void *user, enum tandem_log_level level, const char *line) {
  if (!enter_gate()) {
    fprintf(stderr, "tandem: %s\n", line);
    return;
  }
  tandem_python_log(user, level, line);
  leave_gate();
}

static enum tandem_status gate_load_begin(void *user, void **token, struct tandem_error *error) {
  if (!enter_gate())
    return tandem_fail(error, TANDEM_INVALID_STATE,
                       "the interpreter is ending, and this load may have options from it");
  enum tandem_status status = tandem_python_load_begin(user, token, error);
  if (status == TANDEM_INTERNAL && !(error && error->message[0])) /* it raised, which cffi reports */
    status =
        tandem_fail(error, status, "the options of this load could not be read: see the exception above");
  leave_gate();
  return status;
}

/* A scope that is left open at the end of the process harms nobody: it is this thread's. */
static void gate_load_end(void *user, void *token) {
  if (token == NULL || !enter_gate())
    return;
  tandem_python_load_end(user, token);
  leave_gate();
}

static void tandem_gate_log(bool on) {
  tandem_set_log_sink(on ? gate_log : NULL, NULL);
}

/* False when the gate is closed. */
static bool tandem_gate_hook_loads(void) {
  if (atomic_load(&gate_closed))
    return false;
  tandem_set_load_hooks(gate_load_begin, gate_load_end, NULL);
  return true;
}

/* Waits at most 10 s for callbacks under way, without the interpreter lock, which they may want. */
static void tandem_gate_close(void) {
  const struct timespec step = {.tv_nsec = 1000000};
  tandem_set_log_sink(NULL, NULL);
  tandem_set_load_hooks(NULL, NULL, NULL);
  atomic_store(&gate_closed, true);
  for (int i = 0; i < 10000 && atomic_load(&gate_inside) > 0; i++)
    nanosleep(&step, NULL);
}

/* In a forked child: the callbacks of other threads are gone. */
static void tandem_gate_forget(void) {
  atomic_store(&gate_inside, 0);
}
