/* What the files of the C door share; adapter.h has what they share with the delegate. Nothing here is
 * exported.
 *
 *   program.cc    opens programs and describes them        run.cc      checks and moves the tensors of a run
 *   method.cc     loads methods                            direct.cc   runs past ExecuTorch
 *   libraries.cc  ExecuTorch's tables and what fills them  errors.cc   one sentence for what went wrong
 *   lock.cc       locks that a forked child can judge
 *
 * A method holds its program's state by a shared pointer; destroying the program only drops the caller's
 * share.
 *
 * Thread rule: a method's lock is held over its run and reset, a program's over filling what it caches; they
 * nest in nothing. No C++ exception leaves: each entry that may throw is a body of `guard`.
 */
#ifndef TANDEM_ADAPTERS_EXECUTORCH_DOOR_H
#define TANDEM_ADAPTERS_EXECUTORCH_DOOR_H

#include "adapter.h"

#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/executor/program.h>

#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

namespace er = executorch::runtime;
namespace ex = executorch::extension;

struct FreeMemory {
  void operator()(void *memory) const {
    free(memory);
  }
};
using Memory = std::unique_ptr<void, FreeMemory>;

/* ---------------------------------------------------------------- entering */

/* pthread cancellation would unwind through ExecuTorch; it is acted on after the call. */
class NoCancel {
public:
  NoCancel() {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_);
  }
  ~NoCancel() {
    pthread_setcancelstate(state_, nullptr);
  }

private:
  int state_ = 0;
};

class OpenDoor {
public:
  OpenDoor() : door(), outer_(current_door()) {
    set_current_door(&door);
  }
  ~OpenDoor() {
    set_current_door(outer_);
  }
  Door door;

private:
  Door *outer_;
};

/* ---------------------------------------------------------------- errors.cc */

/* To be called before anything of ExecuTorch's: its log goes to the thread's door from then on. */
void prepare_runtime();

/* The status that a caller can act on, for what ExecuTorch itself found. */
enum tandem_status to_status(er::Error error);

/* A delegate's own error goes on as it is; else ExecuTorch's first line and code. */
enum tandem_status explain(const Door &door, er::Error code, enum tandem_status status, const char *what,
                           const char *name, struct tandem_error *error);

/* To be called while an exception is handled. */
enum tandem_status explain_exception(struct tandem_error *error);

/* Runs `body`, which may throw, as the inside of an exported function. */
template <typename Body> enum tandem_status guard(struct tandem_error *error, Body body) {
  NoCancel no_cancel;
  if (error) {
    error->code = TANDEM_OK;
    error->message[0] = '\0';
  }
  try {
    return body();
  } catch (...) {
    return explain_exception(error);
  }
}

/* ---------------------------------------------------------------- lock.cc */

/* A mutex that a forked child can tell to be lost: a thread held it that the child does not have, and what it
 * guards is half done. A fork waits for none, since a holder may need what the forking thread has. */
class Lock {
public:
  Lock();
  ~Lock();
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;

  std::mutex mutex;
  bool lost = false; /* constant once a child runs */

private:
  Lock *next_;
  bool is_free_ = false; /* at the fork */

  static std::mutex all_mutex; /* guards the list; held for no more than that */
  static Lock *all;
  static const bool guarded;

  static void before_fork();
  static void after_fork();
  static void begin_child();
};

/* Holds a lock that is not lost; a host that can give up a lock of its own meanwhile is told of the wait. */
class Turn {
public:
  explicit Turn(Lock &lock);
  ~Turn();
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;

  enum tandem_status check(const char *what, struct tandem_error *error) const;

private:
  Lock &lock_;
};

/* ---------------------------------------------------------------- libraries.cc */

/* Opens what ships beside the runtime where the method needs it; names the backend or kernel that is missing.
 */
enum tandem_status open_libraries(const Plan &plan, struct tandem_error *error);

/* ---------------------------------------------------------------- program.cc */

/* What callers are lent of one method; names are the plan's. */
struct MethodIo {
  std::vector<struct tandem_io> inputs, outputs, attributes;
};

/* Likewise of its delegates, with what their pointers point to. */
struct DelegateList {
  std::vector<struct tandem_delegate> delegates;
  std::vector<er::FreeableBuffer> payloads;
  std::vector<std::vector<struct tandem_spec>> specs;
};

struct ProgramState {
  ProgramState();
  std::string origin; /* the path, or "(bytes)" */
  std::unique_ptr<er::DataLoader> loader;
  std::unique_ptr<er::DataLoader>
      renamed; /* what ExecuTorch reads through instead; NULL: nothing is renamed */
  uint64_t file_size = 0;
  std::vector<std::unique_ptr<er::DataLoader>> data_loaders;
  std::vector<std::unique_ptr<ex::FlatTensorDataMap>> data_maps;
  std::vector<std::string> untyped; /* keys of the data files that are no tensors */
  std::unique_ptr<er::NamedDataMap> merged;
  const er::NamedDataMap *named_data = nullptr; /* one of the above */
  std::optional<er::Program> program;
  const struct tandem_named_data source; /* lent to callers */
  std::vector<Plan> plans;
  std::vector<MethodIo> io; /* of each plan */

  Lock lock;
  std::vector<std::unique_ptr<const DelegateList>>
      delegates; /* of each plan, NULL until asked for; guarded by lock */
};

enum tandem_status find_plan(const ProgramState &state, const char *name, size_t *index,
                             struct tandem_error *error);

/* ---------------------------------------------------------------- method.cc */

struct MethodState {
  std::shared_ptr<ProgramState> program; /* shared */
  size_t plan = 0;
  /* ExecuTorch's method points into all of these, so they are declared before it. */
  std::vector<er::BackendOption> text_options, typed_options;
  er::LoadBackendOptionsMap option_map;
  ex::MallocMemoryAllocator method_memory, temporary_memory;
  std::vector<Memory> buffers;                        /* planned memory, and outputs that have none */
  std::vector<er::DeviceMemoryBuffer> device_buffers; /* planned memory on a device */
  std::vector<er::Span<uint8_t>> spans;
  std::optional<er::HierarchicalAllocator> planned;
  std::optional<er::MemoryManager> manager;
  std::optional<er::Method> method;
  std::vector<struct tandem_load *> loads; /* borrowed from the delegates */
  Lock lock;                               /* over run and reset */
  /* Inputs in the program's order, and what is lent of outputs on a device or in another order. Guarded by
   * lock. */
  std::vector<std::vector<uint8_t>> ordered_inputs, host_outputs;
  bool direct = false; /* runs are the one load's */
  /* Of a direct run: the load's tensors, and memory of outputs that are borrowed. Guarded by lock. */
  std::vector<struct tandem_tensor> load_inputs, load_outputs;
  std::vector<Memory> lent;

  const Plan &get_plan() const {
    return program->plans[plan];
  }
  const MethodIo &get_io() const {
    return program->io[plan];
  }
};

/* ---------------------------------------------------------------- run.cc */

/* Bytes of a shape whose dimensions are not negative; false when they do not fit in size_t. */
bool count_bytes(const struct tandem_tensor &tensor, size_t *bytes);
bool overlap(const struct tandem_tensor &one, const struct tandem_tensor &other);
enum tandem_status fail_room(const struct tandem_io &io, const struct tandem_tensor &output,
                             const int64_t *shape, int32_t rank, size_t bytes, struct tandem_error *error);

/* ---------------------------------------------------------------- direct.cc */

/* Finds out whether a method that was just loaded can be run so. */
void prepare_direct(MethodState *state);
/* With tensors that run.cc has checked, under the method's lock. */
enum tandem_status run_direct(MethodState *state, const struct tandem_run_desc *run,
                              struct tandem_error *error);

} // namespace tandem

/* What callers have. */
struct tandem_program {
  std::shared_ptr<tandem::ProgramState> state;
};
struct tandem_method final : tandem::MethodState {};

#endif
