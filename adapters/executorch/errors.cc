/* One status and one sentence for whatever goes wrong behind the C door.
 *
 * ExecuTorch hands a code up, and lines to its log. What the log says on a thread with an open door becomes
 * the sentence of the error: a caller gets one line, not a code and twenty lines on stderr. A delegate of
 * tandem's leaves its own sentence in the door, which then is the caller's.
 *
 * The log is taken over from ExecuTorch's own default only: a host that set another one keeps it.
 */
#include "door.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <dlfcn.h>

#include <exception>
#include <new>

namespace tandem {

namespace {

pal_emit_log_message_method emit_before;

/* Keeps the first error line of a thread with an open door: later ones only say what failed in consequence.
 * A fatal line is followed by abort, so it must get out. */
void catch_line(et_timestamp_t timestamp, et_pal_log_level_t level, const char *file, const char *function,
                size_t line, const char *message, size_t length) {
  Door *door = current_door();
  if (!door || level == kFatal) {
    emit_before(timestamp, level, file, function, line, message, length);
    return;
  }
  if (level != kError || !door->log.empty())
    return;
  try {
    door->log.assign(message, length);
  } catch (...) {
  }
}

bool same_library(const void *one, const void *other) {
  Dl_info first;
  Dl_info second;
  return dladdr(one, &first) && dladdr(other, &second) && first.dli_fbase == second.dli_fbase;
}

} // namespace

void prepare_runtime() {
  static std::once_flag once;
  std::call_once(once, [] {
    er::runtime_init();
    emit_before = er::get_pal_impl()->emit_log_message;
    if (emit_before &&
        same_library(reinterpret_cast<void *>(emit_before), reinterpret_cast<void *>(&er::get_backend_class)))
      er::register_pal(er::PalImpl::create(catch_line, "tandem"));
  });
}

enum tandem_status to_status(er::Error error) {
  switch (error) {
  case er::Error::Ok:
    return TANDEM_OK;
  case er::Error::InvalidProgram:
    return TANDEM_BAD_PROGRAM;
  case er::Error::InvalidExternalData:
    return TANDEM_MISSING_DATA;
  case er::Error::MemoryAllocationFailed:
  case er::Error::DelegateMemoryAllocationFailed:
  case er::Error::OutOfResources:
    return TANDEM_OUT_OF_MEMORY;
  case er::Error::NotFound:
  case er::Error::OperatorMissing:
    return TANDEM_NOT_FOUND;
  case er::Error::NotSupported:
  case er::Error::NotImplemented:
  case er::Error::DelegateInvalidCompatibility:
    return TANDEM_UNSUPPORTED;
  case er::Error::InvalidArgument:
  case er::Error::InvalidType:
    return TANDEM_INVALID_ARGUMENT;
  case er::Error::InvalidState:
    return TANDEM_INVALID_STATE;
  case er::Error::AccessFailed:
    return TANDEM_DEVICE_ERROR;
  default:
    return TANDEM_INTERNAL;
  }
}

enum tandem_status explain(const Door &door, er::Error code, enum tandem_status status, const char *what,
                           const char *name, struct tandem_error *error) {
  if (door.failed) {
    if (error)
      *error = door.error; /* the thread's last reason is this one's whole */
    return door.error.code;
  }
  return tandem_fail(error, status, "%s \"%s\": %s (ExecuTorch: %s)", what, name,
                     door.log.empty() ? tandem_status_text(status) : door.log.c_str(),
                     er::to_string(code) + 7);
}

enum tandem_status explain_exception(struct tandem_error *error) {
  try {
    throw;
  } catch (const std::bad_alloc &) {
    return tandem_fail(error, TANDEM_OUT_OF_MEMORY, "no memory left for a description or a name");
  } catch (const std::exception &problem) {
    return tandem_fail(error, TANDEM_INTERNAL, "unexpected: %s", problem.what());
  } catch (...) {
    return tandem_fail(error, TANDEM_INTERNAL, "unexpected exception");
  }
}

} // namespace tandem
