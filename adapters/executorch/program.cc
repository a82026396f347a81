/* The C door to ExecuTorch's Program and Method, for hosts without torch or Python.
 *
 * A program's file is opened once and everything (ExecuTorch's parts, the facts for inspect) is read through
 * that one loader, so a file replaced meanwhile cannot be seen half old and half new. A method holds its
 * program's state by a shared pointer; destroying the program only drops the caller's share.
 *
 * Every input is checked by name before ExecuTorch sees it. What ExecuTorch's log says on a thread with an
 * open door becomes the sentence of the error: a caller gets one line, not a code and twenty lines on stderr.
 *
 * Kernels and backends that ExecuTorch ships beside its runtime are opened when a method needs one that is
 * not registered, no earlier: registering a kernel twice ends the process, and ExecuTorch's Python extension
 * brings the same files. Errors name what is still missing.
 *
 * A method that is one delegate of tandem's and nothing else is run past ExecuTorch, on the caller's tensors
 * themselves: that is what lets it take device memory and a stream, and saves a copy of each tensor. What is
 * checked, and what a caller sees, is the same.
 *
 * Where another backend was first to take the name of one of tandem's, ExecuTorch is given a copy of the
 * program's flatbuffer in which the delegates name what tandem has registered instead: what loads through
 * this door shares whatever came first. Payloads in segments stay where they are.
 *
 * Thread rule: a method's lock is held over its run and reset, a program's over filling what it caches; they
 * nest in nothing. No C++ exception leaves: each entry that may throw ends in a catch-all.
 */
#include "adapter.h"

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/named_data_map/merged_data_map.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/device_allocator.h>
#include <executorch/runtime/core/device_memory_buffer.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace er = executorch::runtime;
namespace ex = executorch::extension;

using tandem::Plan;
using tandem::PlanTensor;

/* ---------------------------------------------------------------- ExecuTorch's log and libraries */

namespace {

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
  OpenDoor() : door(), outer_(tandem::current_door()) {
    tandem::set_current_door(&door);
  }
  ~OpenDoor() {
    tandem::set_current_door(outer_);
  }
  tandem::Door door;

private:
  tandem::Door *outer_;
};

void clear(struct tandem_error *error) {
  if (error) {
    error->code = TANDEM_OK;
    error->message[0] = '\0';
  }
}

pal_emit_log_message_method emit_before;

/* Keeps the first error line of a thread with an open door: later ones only say what failed in consequence.
 * A fatal line is followed by abort, so it must get out. */
void catch_line(et_timestamp_t timestamp, et_pal_log_level_t level, const char *file, const char *function,
                size_t line, const char *message, size_t length) {
  tandem::Door *door = tandem::current_door();
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

/* The log is taken over from ExecuTorch's own default only; a host that set another one keeps it. */
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

/* The status that a caller can act on, for what ExecuTorch itself found. */
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

/* A delegate's own error goes on as it is; else ExecuTorch's first line and code. */
enum tandem_status explain(const tandem::Door &door, er::Error code, enum tandem_status status,
                           const char *what, const char *name, struct tandem_error *error) {
  if (door.failed) {
    if (error)
      *error = door.error; /* the thread's last reason is this one's whole */
    return door.error.code;
  }
  return tandem_fail(error, status, "%s \"%s\": %s (ExecuTorch: %s)", what, name,
                     door.log.empty() ? tandem_status_text(status) : door.log.c_str(),
                     er::to_string(code) + 7);
}

struct Place {
  std::string path, folder, version;
};

/* The libexecutorch in use and the version of the package around it. */
const Place &place() {
  static const Place found = [] {
    Place place;
    Dl_info info;
    char resolved[PATH_MAX];
    if (!dladdr(reinterpret_cast<void *>(&er::get_backend_class), &info) || !info.dli_fname)
      return place;
    place.path = realpath(info.dli_fname, resolved) ? resolved : info.dli_fname;
    size_t slash = place.path.rfind('/');
    place.folder = slash == std::string::npos ? "." : place.path.substr(0, slash);
    FILE *file = fopen((place.folder + "/../version.py").c_str(), "re");
    char line[256];
    char version[64];
    while (file && fgets(line, sizeof(line), file))
      if (sscanf(line, "__version__ = \"%63[0-9.]", version) == 1)
        place.version = version;
    if (file)
      fclose(file);
    if (place.version.empty())
      place.version = TANDEM_EXECUTORCH_BUILT;
    return place;
  }();
  return found;
}

/* A mutex that a forked child can tell to be lost: a thread held it that the child does not have, and what it
 * guards is half done. A fork waits for none, since a holder may need what the forking thread has. */
class Lock {
public:
  Lock() {
    std::lock_guard<std::mutex> guard(all_mutex);
    next_ = all;
    all = this;
  }
  ~Lock() {
    std::lock_guard<std::mutex> guard(all_mutex);
    Lock **place = &all;
    while (*place != this)
      place = &(*place)->next_;
    *place = next_;
  }
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

  static void before_fork() {
    all_mutex.lock();
    for (Lock *lock = all; lock; lock = lock->next_)
      lock->is_free_ = lock->mutex.try_lock();
  }
  static void after_fork() {
    for (Lock *lock = all; lock; lock = lock->next_)
      if (lock->is_free_)
        lock->mutex.unlock();
    all_mutex.unlock();
  }
  static void begin_child() {
    for (Lock *lock = all; lock; lock = lock->next_)
      lock->lost = !lock->is_free_;
    after_fork();
  }
};
std::mutex Lock::all_mutex;
Lock *Lock::all;
const bool Lock::guarded = pthread_atfork(before_fork, after_fork, begin_child) == 0;

/* Holds a lock that is not lost; a host that can give up a lock of its own meanwhile is told of the wait. */
class Turn {
public:
  explicit Turn(Lock &lock) : lock_(lock) {
    while (!lock_.lost && !lock_.mutex.try_lock()) {
      tandem_wait_begin();
      lock_.mutex.lock();
      lock_.mutex.unlock(); /* the hook after the wait may block in the host: not with the mutex held */
      tandem_wait_end();
    }
  }
  ~Turn() {
    if (!lock_.lost)
      lock_.mutex.unlock();
  }
  Turn(const Turn &) = delete;
  Turn &operator=(const Turn &) = delete;

  enum tandem_status check(const char *what, struct tandem_error *error) const {
    if (!lock_.lost)
      return TANDEM_OK;
    return tandem_fail(error, TANDEM_DEVICE_LOST,
                       "another thread was using %s when process %ld was forked: fork while no program is "
                       "loaded, run or unloaded, or start the child with exec (Python: multiprocessing's "
                       "\"spawn\")",
                       what, static_cast<long>(getpid()));
  }

private:
  Lock &lock_;
};

/* Guards opening libraries, whose initializers write to ExecuTorch's unguarded tables. */
Lock &libraries() {
  static auto *lock = new Lock; /* never destroyed: a thread may load until the process ends */
  return *lock;
}

/* Opens a library beside the runtime; false with `why` when it is not there or does not open. */
bool open_beside(const std::string &file, std::string *why) {
  std::string path = place().folder + "/" + file;
  if (access(path.c_str(), R_OK) != 0) {
    *why = path + " is not there";
    return false;
  }
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL))
    return true;
  const char *reason = dlerror();
  *why = reason ? reason : path + " does not open";
  return false;
}

bool has_kernel(const std::string &name) {
  for (const er::Kernel &kernel : er::get_registered_kernels())
    if (kernel.name_ && name == kernel.name_)
      return true;
  return false;
}

enum tandem_status need_kernels(const Plan &plan, struct tandem_error *error) {
  Turn lock(libraries());
  if (lock.check("ExecuTorch's tables", error) != TANDEM_OK)
    return TANDEM_DEVICE_LOST;
  std::string why;
  for (const std::string &name : plan.operators) {
    if (has_kernel(name))
      continue;
    /* Where one of the common kernels is registered, this library's are: opening it would register twice. */
    if (!has_kernel("aten::add.out"))
      open_beside("libexecutorch_kernels_optimized.so", &why);
    if (!has_kernel(name) && name.compare(0, 22, "quantized_decomposed::") == 0)
      open_beside("libexecutorch_kernels_quantized.so", &why);
    if (!has_kernel(name))
      return tandem_fail(
          error, TANDEM_NOT_FOUND,
          "method \"%s\" needs the operator %s, for which no kernel is registered%s%s: register it, or "
          "export the program without it",
          plan.name.c_str(), name.c_str(), why.empty() ? "" : "; ", why.c_str());
  }
  return TANDEM_OK;
}

/* "XnnpackBackend" is looked for in libexecutorch_backend_xnnpack.so. */
std::string library_of(const std::string &backend) {
  const std::string suffix = "Backend";
  if (backend.size() <= suffix.size() ||
      backend.compare(backend.size() - suffix.size(), suffix.size(), suffix) != 0)
    return std::string();
  std::string stem = backend.substr(0, backend.size() - suffix.size());
  for (char &letter : stem) {
    if (!isalnum(static_cast<unsigned char>(letter)))
      return std::string();
    letter = static_cast<char>(tolower(static_cast<unsigned char>(letter)));
  }
  return "libexecutorch_backend_" + stem + ".so";
}

enum tandem_status need_backends(const Plan &plan, struct tandem_error *error) {
  Turn lock(libraries());
  if (lock.check("ExecuTorch's tables", error) != TANDEM_OK)
    return TANDEM_DEVICE_LOST;
  for (const tandem::PlanDelegate &delegate : plan.delegates) {
    const char *name = delegate.backend.c_str();
    const char *registered = delegate.registered.c_str();
    std::string why;
    std::string file = library_of(delegate.backend);
    if (!er::get_backend_class(registered) && !file.empty())
      open_beside(file, &why);
    const er::BackendInterface *backend = er::get_backend_class(registered);
    if (!backend)
      return tandem_fail(
          error, TANDEM_NOT_FOUND,
          "method \"%s\" needs the backend %s, which is not registered%s%s: `tandem doctor` lists what is "
          "there",
          plan.name.c_str(), name, why.empty() ? "" : "; ", why.c_str());
    if (!backend->is_available())
      return tandem_fail(error, TANDEM_UNAVAILABLE,
                         "method \"%s\" needs the backend %s, which says it is not available",
                         plan.name.c_str(), name);
  }
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- programs */

constexpr size_t page_size = 4096;

struct MethodIo {
  std::vector<std::string> names; /* what the io's names point to */
  std::vector<struct tandem_io> inputs, outputs;
};

struct FreeMemory {
  void operator()(void *memory) const {
    free(memory);
  }
};

/* The file, but with another flatbuffer in front. */
class RenamedLoader final : public er::DataLoader {
public:
  RenamedLoader(const er::DataLoader *file, std::unique_ptr<void, FreeMemory> program, size_t size)
      : file_(file), program_(std::move(program)), size_(size) {}
  er::Result<er::FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo &info) const override {
    if (info.segment_type != SegmentInfo::Type::Program)
      return file_->load(offset, size, info);
    if (offset > size_ || size > size_ - offset)
      return er::Error::InvalidArgument;
    return er::FreeableBuffer(static_cast<const char *>(program_.get()) + offset, size, nullptr);
  }
  er::Error load_into(size_t offset, size_t size, const SegmentInfo &info, void *buffer) const override {
    return file_->load_into(offset, size, info, buffer);
  }
  er::Result<size_t> size() const override {
    return file_->size();
  }

private:
  const er::DataLoader *file_; /* borrowed from the program's state */
  std::unique_ptr<void, FreeMemory> program_;
  size_t size_;
};

enum tandem_status get_program_data(void *user, const char *key, const void **data, size_t *size,
                                    void **token);

struct ProgramState {
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
  const struct tandem_named_data source = {get_program_data, tandem::release_named,
                                           this}; /* lent to callers */
  std::vector<Plan> plans;
  std::vector<std::unique_ptr<MethodIo>> io; /* of each plan */

  Lock lock;
  std::vector<std::unique_ptr<er::FreeableBuffer>> payloads;  /* guarded by lock */
  std::vector<std::vector<struct tandem_delegate>> delegates; /* of each plan; guarded by lock */
  std::vector<std::vector<struct tandem_spec>> specs;         /* of delegates read; guarded by lock */
  std::vector<bool> delegates_read;                           /* guarded by lock */
};

/* Of the data files, or of the program's own file. */
enum tandem_status get_program_data(void *user, const char *key, const void **data, size_t *size,
                                    void **token) {
  auto *state = static_cast<ProgramState *>(user);
  OpenDoor open; /* what ExecuTorch says of a key that it has not stays here */
  auto own = state->program->get_named_data_map();
  enum tandem_status status = TANDEM_MISSING_DATA;
  for (const er::NamedDataMap *map : {state->named_data, own.ok() ? *own : nullptr})
    if (map && status == TANDEM_MISSING_DATA)
      status = tandem::get_named(const_cast<er::NamedDataMap *>(map), key, data, size, token);
  return status;
}

/* `io` has room for every name already: the pointers stay. */
bool describe_tensor(const PlanTensor &tensor, const char *kind, size_t index, MethodIo *io,
                     struct tandem_io *out) {
  io->names.push_back(tensor.name.empty() ? kind + std::to_string(index) : tensor.name);
  out->name = io->names.back().c_str();
  out->dtype = tensor.dtype;
  out->rank = static_cast<int32_t>(tensor.sizes.size());
  for (size_t d = 0; d < tensor.sizes.size(); d++) {
    out->min[d] = tensor.shape == PlanTensor::fixed ? tensor.sizes[d] : 0;
    out->max[d] = tensor.shape == PlanTensor::unbounded ? INT64_MAX : tensor.sizes[d];
  }
  return true;
}

std::unique_ptr<MethodIo> describe_plan(const Plan &plan) {
  auto io = std::make_unique<MethodIo>();
  io->names.reserve(plan.inputs.size() + plan.outputs.size());
  io->inputs.resize(plan.inputs.size());
  io->outputs.resize(plan.outputs.size());
  for (size_t i = 0; i < plan.inputs.size(); i++)
    describe_tensor(plan.inputs[i], "input", i, io.get(), &io->inputs[i]);
  for (size_t i = 0; i < plan.outputs.size(); i++)
    describe_tensor(plan.outputs[i], "output", i, io.get(), &io->outputs[i]);
  return io;
}

template <typename Loader>
enum tandem_status keep_loader(er::Result<Loader> result, const char *path,
                               std::unique_ptr<er::DataLoader> *loader, struct tandem_error *error) {
  if (!result.ok())
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: cannot be read (ExecuTorch: %s)", path,
                       er::to_string(result.error()) + 7);
  *loader = std::make_unique<Loader>(std::move(*result));
  return TANDEM_OK;
}

/* The pages are not locked in memory: a payload is read once, in order, and given back. */
enum tandem_status open_file(const char *path, bool read, std::unique_ptr<er::DataLoader> *loader,
                             struct tandem_error *error) {
  struct stat info;
  if (stat(path, &info) != 0)
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "%s: not a regular file", path);
  if (access(path, R_OK) != 0)
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: %s", path, strerror(errno));
  if (info.st_size == 0)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: the file is empty", path);
  if (read)
    return keep_loader(ex::FileDataLoader::from(path), path, loader, error);
  return keep_loader(ex::MmapDataLoader::from(path, ex::MmapDataLoader::MlockConfig::NoMlock), path, loader,
                     error);
}

enum tandem_status open_data(ProgramState *state, const char *path, bool read, struct tandem_error *error) {
  using Segment = er::DataLoader::SegmentInfo;
  std::unique_ptr<er::DataLoader> loader;
  enum tandem_status status = open_file(path, read, &loader, error);
  if (status != TANDEM_OK)
    return status;
  std::string why;
  tandem::DataLayout layout = {};
  auto size = loader->size();
  if (!size.ok() || *size < tandem::head_size)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %zu bytes: a data file has at least %zu", path,
                       size.ok() ? *size : 0, tandem::head_size);
  {
    auto head = loader->load(0, tandem::head_size, Segment(Segment::Type::External));
    if (!head.ok() || !tandem::read_data_layout(head->data(), head->size(), *size, &layout, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", path,
                         why.empty() ? "cannot be read" : why.c_str());
    auto buffer = loader->load(0, static_cast<size_t>(layout.buffer_size), Segment(Segment::Type::External));
    if (!buffer.ok() || !tandem::check_data(buffer->data(), layout, *size, &state->untyped, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", path,
                         why.empty() ? "cannot be read" : why.c_str());
  }
  OpenDoor open;
  auto map = ex::FlatTensorDataMap::load(loader.get());
  if (!map.ok())
    return explain(open.door, map.error(), TANDEM_BAD_PROGRAM, "data file", path, error);
  state->data_maps.push_back(std::make_unique<ex::FlatTensorDataMap>(std::move(*map)));
  state->data_loaders.push_back(std::move(loader));
  return TANDEM_OK;
}

enum tandem_status merge_data(ProgramState *state, struct tandem_error *error) {
  if (state->data_maps.empty())
    return TANDEM_OK;
  state->named_data = state->data_maps[0].get();
  if (state->data_maps.size() == 1)
    return TANDEM_OK;
  std::vector<const er::NamedDataMap *> maps;
  for (const auto &map : state->data_maps)
    maps.push_back(map.get());
  using Merged = ex::merged_data_map::MergedDataMap;
  OpenDoor open;
  auto merged = Merged::load(er::Span<const er::NamedDataMap *>(maps.data(), maps.size()));
  if (!merged.ok())
    return explain(open.door, merged.error(), to_status(merged.error()), "data files of",
                   state->origin.c_str(), error);
  state->merged = std::make_unique<Merged>(std::move(*merged));
  state->named_data = state->merged.get();
  return TANDEM_OK;
}

/* Puts into a copy of the flatbuffer the names that ExecuTorch knows tandem's backends by, unless they are
 * the program's. The copy is checked as the file was, since names may lie over each other or over other data.
 */
enum tandem_status rename_delegates(ProgramState *state, const void *program, const tandem::Layout &layout,
                                    struct tandem_error *error) {
  std::unique_ptr<void, FreeMemory> copy;
  size_t size = static_cast<size_t>(layout.program_size);
  for (Plan &plan : state->plans)
    for (tandem::PlanDelegate &delegate : plan.delegates) {
      const char *registered = tandem::registered_name(delegate.backend.c_str());
      if (!registered || delegate.backend == registered)
        continue;
      if (!copy) {
        void *memory = nullptr;
        /* Inline payloads keep their alignment. */
        if (posix_memalign(&memory, page_size, size) != 0)
          return tandem_fail(error, TANDEM_OUT_OF_MEMORY,
                             "%s: no memory for a copy of its %zu bytes of program, needed since tandem was "
                             "loaded after another backend %s",
                             state->origin.c_str(), size, delegate.backend.c_str());
        memcpy(memory, program, size);
        copy.reset(memory);
      }
      memcpy(static_cast<char *>(copy.get()) + delegate.name_offset, registered, delegate.backend.size());
      delegate.registered = registered;
    }
  if (!copy)
    return TANDEM_OK;
  std::vector<Plan> plans;
  std::string why;
  bool same = tandem::read_plans(copy.get(), layout, state->file_size, &plans, &why) &&
              plans.size() == state->plans.size();
  for (size_t p = 0; same && p < plans.size(); p++) {
    const std::vector<tandem::PlanDelegate> &before = state->plans[p].delegates;
    std::vector<tandem::PlanDelegate> &after = plans[p].delegates;
    same = after.size() == before.size();
    for (size_t i = 0; same && i < after.size(); i++) {
      same = after[i].backend == before[i].registered;
      after[i].registered = before[i].registered;
      after[i].backend = before[i].backend;
    }
  }
  if (!same)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: the names of its delegates lie over other data",
                       state->origin.c_str());
  state->plans = std::move(plans);
  state->renamed = std::make_unique<RenamedLoader>(state->loader.get(), std::move(copy), size);
  return TANDEM_OK;
}

enum tandem_status read_program(ProgramState *state, struct tandem_error *error) {
  using Segment = er::DataLoader::SegmentInfo;
  const char *origin = state->origin.c_str();
  std::string why;
  tandem::Layout layout = {};
  auto size = state->loader->size();
  if (!size.ok() || *size < tandem::head_size)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %zu bytes: a program has at least %zu", origin,
                       size.ok() ? *size : 0, tandem::head_size);
  state->file_size = *size;
  {
    auto head = state->loader->load(0, tandem::head_size, Segment(Segment::Type::Program));
    if (!head.ok() || !tandem::read_layout(head->data(), head->size(), state->file_size, &layout, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", origin,
                         why.empty() ? "cannot be read" : why.c_str());
    auto buffer =
        state->loader->load(0, static_cast<size_t>(layout.program_size), Segment(Segment::Type::Program));
    if (!buffer.ok())
      return tandem_fail(error,
                         to_status(buffer.error()) == TANDEM_OUT_OF_MEMORY ? TANDEM_OUT_OF_MEMORY
                                                                           : TANDEM_BAD_PROGRAM,
                         "%s: %llu bytes of program cannot be read", origin,
                         static_cast<unsigned long long>(layout.program_size));
    if (reinterpret_cast<uintptr_t>(buffer->data()) % 16 != 0)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                         "%s: the bytes of a program must begin at a multiple of 16", origin);
    if (!tandem::read_plans(buffer->data(), layout, state->file_size, &state->plans, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", origin, why.c_str());
    enum tandem_status status = rename_delegates(state, buffer->data(), layout, error);
    if (status != TANDEM_OK)
      return status;
  }
  OpenDoor open;
  er::DataLoader *loader = state->renamed ? state->renamed.get() : state->loader.get();
  auto program = er::Program::load(loader, er::Program::Verification::InternalConsistency);
  if (!program.ok()) {
    enum tandem_status status = to_status(program.error());
    return explain(open.door, program.error(), status == TANDEM_OUT_OF_MEMORY ? status : TANDEM_BAD_PROGRAM,
                   "program", origin, error);
  }
  state->program.emplace(std::move(*program));
  for (const Plan &plan : state->plans)
    state->io.push_back(describe_plan(plan));
  state->delegates.resize(state->plans.size());
  state->delegates_read.resize(state->plans.size());
  return TANDEM_OK;
}

enum tandem_status create_program(const struct tandem_program_desc *desc, std::shared_ptr<ProgramState> *out,
                                  struct tandem_error *error) {
  prepare_runtime();
  auto state = std::make_shared<ProgramState>();
  enum tandem_status status = TANDEM_OK;
  if (desc->path) {
    state->origin = desc->path;
    status = open_file(desc->path, desc->read, &state->loader, error);
  } else {
    state->origin = "(bytes)";
    state->loader = std::make_unique<ex::BufferDataLoader>(desc->bytes, desc->size);
  }
  for (size_t i = 0; status == TANDEM_OK && i < desc->data_path_count; i++) {
    if (!desc->data_paths[i])
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "data_paths[%zu] is NULL", i);
    status = open_data(state.get(), desc->data_paths[i], desc->read, error);
  }
  if (status == TANDEM_OK)
    status = merge_data(state.get(), error);
  if (status == TANDEM_OK)
    status = read_program(state.get(), error);
  if (status == TANDEM_OK)
    *out = std::move(state);
  return status;
}

enum tandem_status find_plan(const ProgramState &state, const char *name, size_t *index,
                             struct tandem_error *error) {
  std::string names;
  for (size_t i = 0; i < state.plans.size(); i++) {
    if (state.plans[i].name == name) {
      *index = i;
      return TANDEM_OK;
    }
    names += (i ? ", \"" : "\"") + state.plans[i].name + "\"";
  }
  return tandem_fail(error, TANDEM_NOT_FOUND, "%s has no method \"%s\": it has %s", state.origin.c_str(),
                     name, names.empty() ? "none" : names.c_str());
}

enum tandem_status read_delegates(ProgramState *state, size_t plan, struct tandem_error *error) {
  using Segment = er::DataLoader::SegmentInfo;
  std::vector<struct tandem_delegate> delegates;
  std::vector<std::unique_ptr<er::FreeableBuffer>> payloads;
  std::vector<std::vector<struct tandem_spec>> all_specs;
  for (const tandem::PlanDelegate &source : state->plans[plan].delegates) {
    struct tandem_delegate entry = {};
    entry.backend = source.backend.c_str();
    entry.payload_size = static_cast<size_t>(source.size);
    entry.file_offset = source.file_offset;
    entry.alignment = page_size;
    while (source.file_offset % entry.alignment != 0)
      entry.alignment /= 2;
    entry.in_segment = source.in_segment;
    if (source.size > 0) {
      auto bytes = state->loader->load(static_cast<size_t>(source.file_offset), entry.payload_size,
                                       Segment(Segment::Type::Backend, 0, entry.backend));
      if (!bytes.ok())
        return tandem_fail(error, to_status(bytes.error()),
                           "%s: the %zu bytes of %s's payload at %llu cannot be read", state->origin.c_str(),
                           entry.payload_size, entry.backend,
                           static_cast<unsigned long long>(source.file_offset));
      payloads.push_back(std::make_unique<er::FreeableBuffer>(std::move(*bytes)));
      entry.payload = payloads.back()->data();
    }
    std::vector<struct tandem_spec> specs;
    for (const auto &spec : source.specs)
      specs.push_back({spec.first.c_str(), spec.second.data(), spec.second.size()});
    all_specs.push_back(std::move(specs));
    entry.compile_specs = all_specs.back().data(); /* stays where it is when the vector around it moves */
    entry.compile_spec_count = all_specs.back().size();
    delegates.push_back(entry);
  }
  state->payloads.reserve(state->payloads.size() + payloads.size());
  for (auto &payload : payloads)
    state->payloads.push_back(std::move(payload));
  state->specs.reserve(state->specs.size() + all_specs.size());
  for (auto &specs : all_specs)
    state->specs.push_back(std::move(specs));
  state->delegates[plan] = std::move(delegates);
  state->delegates_read[plan] = true;
  return TANDEM_OK;
}

} // namespace

struct tandem_program {
  std::shared_ptr<ProgramState> state;
};

namespace {

/* Of a caller's arguments. */
enum tandem_status find_method(const struct tandem_program *program, const char *method, size_t *index,
                               struct tandem_error *error) {
  if (!program || !method)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program or method is NULL");
  return find_plan(*program->state, method, index, error);
}

/* ---------------------------------------------------------------- methods */

constexpr size_t planned_alignment = 64; /* a cache line; ExecuTorch asks for 16 */

struct MethodState {
  std::shared_ptr<ProgramState> program; /* shared */
  size_t plan = 0;
  /* ExecuTorch's method points into all of these, so they are declared before it. */
  std::vector<er::BackendOption> text_options, typed_options;
  er::LoadBackendOptionsMap option_map;
  ex::MallocMemoryAllocator method_memory, temporary_memory;
  std::vector<std::unique_ptr<void, FreeMemory>> buffers; /* planned memory, and outputs that have none */
  std::vector<er::DeviceMemoryBuffer> device_buffers;     /* planned memory on a device */
  std::vector<er::Span<uint8_t>> spans;
  std::optional<er::HierarchicalAllocator> planned;
  std::optional<er::MemoryManager> manager;
  std::optional<er::Method> method;
  std::vector<struct tandem_load *> loads;        /* borrowed from the delegates */
  std::vector<std::vector<uint8_t>> host_outputs; /* of outputs on a device; guarded by lock */
  Lock lock;                                      /* over run and reset */
  bool direct = false;                            /* runs are the one load's */
  /* Of a direct run: the load's tensors, and memory of outputs that are borrowed. Guarded by lock. */
  std::vector<struct tandem_tensor> load_inputs, load_outputs;
  std::vector<std::unique_ptr<void, FreeMemory>> lent;

  const Plan &get_plan() const {
    return program->plans[plan];
  }
  const MethodIo &get_io() const {
    return *program->io[plan];
  }
};

/* calloc keeps pages that are never touched out of memory. */
uint8_t *allocate_planned(MethodState *state, size_t size) {
  size_t whole;
  if (__builtin_add_overflow(size, planned_alignment, &whole))
    return nullptr;
  void *memory = calloc(1, whole);
  if (!memory)
    return nullptr;
  state->buffers.emplace_back(memory);
  uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint8_t *>(memory) +
         (planned_alignment - address % planned_alignment) % planned_alignment;
}

enum tandem_status plan_on_device(MethodState *state, size_t size, const er::etensor::Device &device,
                                  struct tandem_error *error) {
  const char *name = state->get_plan().name.c_str();
  OpenDoor open;
  tandem::register_device_memory();
  auto memory = er::DeviceMemoryBuffer::create(size, device.type(), device.index());
  if (!memory.ok())
    return explain(open.door, memory.error(), to_status(memory.error()), "device memory of method", name,
                   error);
  state->device_buffers.push_back(std::move(*memory));
  state->spans.push_back(state->device_buffers.back().as_span());
  return TANDEM_OK;
}

enum tandem_status plan_memory(MethodState *state, const er::MethodMeta &meta, struct tandem_error *error) {
  const char *name = state->get_plan().name.c_str();
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); i++) {
    auto size = meta.memory_planned_buffer_size(i);
    auto device = meta.memory_planned_buffer_device(i);
    if (!size.ok() || *size < 0 || !device.ok())
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "method \"%s\": planned buffer %zu has no valid size",
                         name, i);
    if (!device->is_cpu()) {
      enum tandem_status status = plan_on_device(state, static_cast<size_t>(*size), *device, error);
      if (status != TANDEM_OK)
        return status;
      continue;
    }
    uint8_t *memory = allocate_planned(state, static_cast<size_t>(*size));
    if (!memory)
      return tandem_fail(error, TANDEM_OUT_OF_MEMORY,
                         "method \"%s\": no memory for planned buffer %zu of %lld bytes", name, i,
                         static_cast<long long>(*size));
    state->spans.emplace_back(memory, static_cast<size_t>(*size));
  }
  state->planned.emplace(er::Span<er::Span<uint8_t>>(state->spans.data(), state->spans.size()));
  state->manager.emplace(&state->method_memory, &*state->planned, &state->temporary_memory);
  return TANDEM_OK;
}

/* ExecuTorch asks a data file for a tensor's layout without looking whether it has one. */
enum tandem_status check_externals(const MethodState &state, struct tandem_error *error) {
  const std::vector<std::string> &externals = state.get_plan().externals;
  if (!externals.empty() && !state.program->named_data)
    return tandem_fail(
        error, TANDEM_MISSING_DATA,
        "method \"%s\" needs %zu tensors that lie outside the program, \"%s\" first, and no data "
        "file was given: give the .ptd that was exported with it",
        state.get_plan().name.c_str(), externals.size(), externals[0].c_str());
  for (const std::string &name : externals)
    for (const std::string &untyped : state.program->untyped)
      if (name == untyped)
        return tandem_fail(error, TANDEM_BAD_PROGRAM,
                           "method \"%s\": \"%s\" is a tensor, in the data file it is none",
                           state.get_plan().name.c_str(), name.c_str());
  return TANDEM_OK;
}

/* ExecuTorch does not say which tensor it did not find. TANDEM_OK when that was not why a load failed. */
enum tandem_status name_missing(const MethodState &state, er::Error failure, struct tandem_error *error) {
  const er::NamedDataMap *data = state.program->named_data;
  auto count = data ? data->get_num_keys() : er::Result<uint32_t>(0);
  for (const std::string &name : state.get_plan().externals) {
    bool found = failure != er::Error::NotFound || !count.ok();
    for (uint32_t i = 0; !found && i < *count; i++) {
      auto key = data->get_key(i);
      found = key.ok() && name == *key;
    }
    if (!found)
      return tandem_fail(error, TANDEM_MISSING_DATA,
                         "method \"%s\" needs the tensor \"%s\" that lies outside the program, and the data "
                         "files given do not have it: give the .ptd that was exported with it",
                         state.get_plan().name.c_str(), name.c_str());
  }
  return TANDEM_OK;
}

enum tandem_status check_tensors(const MethodState &state, struct tandem_error *error) {
  const Plan &plan = state.get_plan();
  const MethodIo &io = state.get_io();
  for (size_t i = 0; i < plan.inputs.size() + plan.outputs.size(); i++) {
    bool input = i < plan.inputs.size();
    const PlanTensor &tensor = input ? plan.inputs[i] : plan.outputs[i - plan.inputs.size()];
    const struct tandem_io &facts = input ? io.inputs[i] : io.outputs[i - plan.inputs.size()];
    if (tandem_dtype_size(tensor.dtype) == 0)
      return tandem_fail(error, TANDEM_UNSUPPORTED,
                         "method \"%s\": %s \"%s\" has the element type %d, unknown to tandem",
                         plan.name.c_str(), input ? "input" : "output", facts.name, tensor.dtype);
    if (!tensor.in_order)
      return tandem_fail(
          error, TANDEM_UNSUPPORTED,
          "method \"%s\": %s \"%s\" is not laid out with its last dimension fastest: export it in "
          "contiguous format",
          plan.name.c_str(), input ? "input" : "output", facts.name);
  }
  return TANDEM_OK;
}

er::BackendOption make_option(const struct tandem_option &source, bool typed) {
  er::BackendOption option;
  int number = 0;
  char rest = 0;
  memcpy(option.key, source.key, strlen(source.key));
  if (typed && (strcmp(source.value, "true") == 0 || strcmp(source.value, "false") == 0))
    option.value = source.value[0] == 't';
  else if (typed && sscanf(source.value, "%9d%c", &number, &rest) == 1)
    option.value = number;
  else {
    std::array<char, er::kMaxOptionValueLength> text{};
    memcpy(text.data(), source.value, strlen(source.value));
    option.value = text;
  }
  return option;
}

/* tandem's backends get the text as it is, others the type it looks like. Without a delegate that could say
 * so, an option that nobody knows is refused here. */
enum tandem_status give_options(MethodState *state, const struct tandem_option *options, size_t count,
                                struct tandem_error *error) {
  const Plan &plan = state->get_plan();
  for (size_t i = 0; i < count; i++) {
    if (!options[i].key || !options[i].value)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "option %zu has no key or no value", i);
    if (strlen(options[i].key) >= er::kMaxOptionKeyLength ||
        strlen(options[i].value) >= er::kMaxOptionValueLength)
      return tandem_fail(error, TANDEM_BAD_OPTION,
                         "option \"%.80s\": expected a key below %zu and a value below %zu bytes",
                         options[i].key, er::kMaxOptionKeyLength, er::kMaxOptionValueLength);
    state->text_options.push_back(make_option(options[i], false));
    state->typed_options.push_back(make_option(options[i], true));
  }
  if (count == 0)
    return TANDEM_OK;
  for (const tandem::PlanDelegate &delegate : plan.delegates) {
    const char *name = delegate.registered.c_str();
    std::vector<er::BackendOption> &list =
        tandem::registered_name(delegate.backend.c_str()) ? state->text_options : state->typed_options;
    if (state->option_map.set_options(name, er::Span<er::BackendOption>(list.data(), list.size())) !=
        er::Error::Ok)
      return tandem_fail(error, TANDEM_UNSUPPORTED,
                         "method \"%s\" has too many backends to give options to: %s is one more",
                         plan.name.c_str(), delegate.backend.c_str());
  }
  if (!plan.delegates.empty())
    return TANDEM_OK;
  struct tandem_scope *scope = nullptr;
  enum tandem_status status = tandem_scope_acquire(options, count, &scope, error);
  tandem_scope_release(scope);
  return status;
}

/* Outputs that the exporter left without memory get some; inputs that are also outputs keep the caller's. */
enum tandem_status place_outputs(MethodState *state, const er::MethodMeta &meta, struct tandem_error *error) {
  const Plan &plan = state->get_plan();
  for (size_t i = 0; i < plan.outputs.size(); i++) {
    const PlanTensor &output = plan.outputs[i];
    bool is_input = false;
    for (const PlanTensor &input : plan.inputs)
      is_input = is_input || input.value == output.value;
    auto info = meta.output_tensor_meta(output.position);
    if (is_input || !info.ok() || info->is_memory_planned())
      continue;
    const er::EValue &value = state->method->get_output(output.position);
    if (!value.isTensor() || value.toTensor().const_data_ptr())
      continue;
    size_t size = info->nbytes();
    uint8_t *memory = allocate_planned(state, size);
    OpenDoor open;
    er::Error code = memory ? state->method->set_output_data_ptr(memory, size, output.position)
                            : er::Error::MemoryAllocationFailed;
    if (code != er::Error::Ok)
      return explain(open.door, code, to_status(code), "memory for output", state->get_io().outputs[i].name,
                     error);
  }
  return TANDEM_OK;
}

/* A value that is no tensor is part of the program: it is set to what the program says, since ExecuTorch
 * runs no method with an input that was never set. */
enum tandem_status set_constants(MethodState *state, struct tandem_error *error) {
  const Plan &plan = state->get_plan();
  size_t next = 0;
  for (size_t i = 0; i < plan.input_count; i++) {
    if (next < plan.inputs.size() && plan.inputs[next].position == i) {
      next++;
      continue;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    er::EValue value = state->method->get_input(i);
#pragma GCC diagnostic pop
    OpenDoor open;
    er::Error code = state->method->set_input(value, i);
    if (code != er::Error::Ok)
      return explain(open.door, code, TANDEM_UNSUPPORTED, "an input that is no tensor, of method",
                     plan.name.c_str(), error);
  }
  return TANDEM_OK;
}

/* Outputs that update an input may be no arguments of the call. */
void prepare_direct(MethodState *state) {
  const Plan &plan = state->get_plan();
  const struct tandem_io *outputs;
  size_t input_count;
  size_t output_count;
  if (plan.direct_outputs.empty() || state->loads.size() != 1)
    return;
  tandem_load_io(state->loads[0], nullptr, &input_count, &outputs, &output_count);
  size_t kept_count = 0;
  for (size_t i = 0; i < output_count; i++)
    kept_count += outputs[i].updates == 0;
  state->direct = input_count == plan.direct_inputs.size() &&
                  (output_count == plan.direct_outputs.size() || kept_count == plan.direct_outputs.size());
  state->load_inputs.resize(plan.direct_inputs.size());
  state->load_outputs.resize(plan.direct_outputs.size());
  state->lent.resize(plan.direct_outputs.size());
}

enum tandem_status create_method(const std::shared_ptr<ProgramState> &program, const char *name,
                                 const struct tandem_option *options, size_t option_count, MethodState *state,
                                 struct tandem_error *error) {
  enum tandem_status status = find_plan(*program, name, &state->plan, error);
  if (status != TANDEM_OK)
    return status;
  state->program = program;
  const Plan &plan = state->get_plan();
  OpenDoor open;
  auto meta = program->program->method_meta(plan.name.c_str());
  if (!meta.ok())
    return explain(open.door, meta.error(), TANDEM_BAD_PROGRAM, "method", name, error);
  if (meta->num_inputs() != plan.input_count || meta->num_outputs() != plan.output_count)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "method \"%s\": two methods have this name", name);
  status = check_tensors(*state, error);
  if (status == TANDEM_OK)
    status = check_externals(*state, error);
  if (status == TANDEM_OK)
    status = need_backends(plan, error);
  if (status == TANDEM_OK)
    status = need_kernels(plan, error);
  if (status == TANDEM_OK)
    status = give_options(state, options, option_count, error);
  if (status == TANDEM_OK)
    status = plan_memory(state, *meta, error);
  if (status != TANDEM_OK)
    return status;
  open.door.log.clear();
  auto method = program->program->load_method(plan.name.c_str(), &*state->manager, nullptr,
                                              program->named_data, &state->option_map);
  if (!method.ok()) {
    status = name_missing(*state, method.error(), error);
    return status != TANDEM_OK
               ? status
               : explain(open.door, method.error(), to_status(method.error()), "method", name, error);
  }
  state->method.emplace(std::move(*method));
  state->loads = std::move(open.door.loads);
  state->host_outputs.resize(plan.outputs.size());
  status = place_outputs(state, *meta, error);
  if (status == TANDEM_OK)
    status = set_constants(state, error);
  if (status == TANDEM_OK)
    prepare_direct(state);
  return status;
}

/* ---------------------------------------------------------------- runs */

std::string shape_text(const int64_t *shape, int32_t rank) {
  std::string text = "[";
  for (int32_t d = 0; d < rank; d++)
    text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string bounds_text(const struct tandem_io &io) {
  std::string text = "[";
  for (int32_t d = 0; d < io.rank; d++) {
    text += d ? ", " : "";
    if (io.min[d] != io.max[d])
      text += std::to_string(io.min[d]) + "..";
    text += io.max[d] == INT64_MAX ? "" : std::to_string(io.max[d]);
  }
  return text + "]";
}

/* Elements of a shape whose dimensions are not negative; false when the bytes do not fit in size_t. */
bool count_bytes(const struct tandem_tensor &tensor, size_t *bytes) {
  size_t count = tandem_dtype_size(tensor.dtype);
  bool fits = true;
  for (int32_t d = 0; d < tensor.rank; d++)
    fits = !__builtin_mul_overflow(count, static_cast<size_t>(tensor.shape[d]), &count) && fits;
  *bytes = count;
  return fits || count == 0;
}

bool is_contiguous(const struct tandem_tensor &tensor) {
  int64_t stride = 1;
  for (int32_t d = tensor.rank; tensor.strides && d-- > 0;) {
    if (tensor.shape[d] == 0)
      return true;
    if (tensor.shape[d] != 1 && tensor.strides[d] != stride)
      return false;
    if (__builtin_mul_overflow(stride, tensor.shape[d], &stride))
      return false;
  }
  return true;
}

enum tandem_status check_input(const struct tandem_io &io, const struct tandem_tensor &tensor,
                               struct tandem_error *error) {
  size_t bytes = 0;
  if (tensor.dtype != io.dtype)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "input \"%s\" is %s: expected %s", io.name,
                       tandem_dtype_name(tensor.dtype), tandem_dtype_name(io.dtype));
  if (tensor.rank != io.rank)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "input \"%s\" has rank %d: expected %d, shape %s",
                       io.name, tensor.rank, io.rank, bounds_text(io).c_str());
  for (int32_t d = 0; d < io.rank; d++)
    if (tensor.shape[d] < io.min[d] || tensor.shape[d] > io.max[d] || tensor.shape[d] > INT32_MAX)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "input \"%s\" has the shape %s: expected %s",
                         io.name, shape_text(tensor.shape, tensor.rank).c_str(), bounds_text(io).c_str());
  if (!is_contiguous(tensor))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "input \"%s\" is not contiguous: copy it first",
                       io.name);
  if (reinterpret_cast<uintptr_t>(tensor.data) % tandem_dtype_size(io.dtype) != 0)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "input \"%s\" is at an address that is no multiple of %zu", io.name,
                       tandem_dtype_size(io.dtype));
  if (!count_bytes(tensor, &bytes) || tensor.size < bytes || (bytes > 0 && !tensor.data))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "input \"%s\" has %zu bytes%s: shape %s of %s needs %zu", io.name, tensor.size,
                       tensor.data ? "" : " at NULL", shape_text(tensor.shape, tensor.rank).c_str(),
                       tandem_dtype_name(tensor.dtype), bytes);
  return TANDEM_OK;
}

/* The bytes of a tensor that the program has on a device, or whose memory a caller gave; either side may be
 * host memory. */
er::Error copy_device(const er::etensor::Device &device, void *to, const void *from, size_t size) {
  er::DeviceAllocator *allocator = er::get_device_allocator(device.type());
  return allocator ? allocator->copy_device_to_host(to, from, size, device.index()) : er::Error::NotFound;
}

/* ExecuTorch copies an input into planned memory as if all memory were the host's. Without an address it
 * copies nothing, so an input that is planned on a device is set that way and copied here. */
er::Error set_input(er::Method *method, const struct tandem_tensor &tensor, size_t position) {
  using executorch::aten::TensorImpl;
  static char nothing[16]; /* ExecuTorch wants an address for no elements too */
  TensorImpl::SizesType sizes[TANDEM_MAX_RANK] = {};
  TensorImpl::StridesType strides[TANDEM_MAX_RANK] = {};
  TensorImpl::DimOrderType order[TANDEM_MAX_RANK] = {};
  TensorImpl::StridesType stride = 1;
  for (int32_t d = tensor.rank; d-- > 0;) {
    sizes[d] = static_cast<TensorImpl::SizesType>(tensor.shape[d]);
    order[d] = static_cast<TensorImpl::DimOrderType>(d);
    strides[d] = stride;
    if (__builtin_mul_overflow(stride, sizes[d], &stride))
      stride = 0;
  }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const executorch::aten::Tensor &planned = method->get_input(position).toTensor();
#pragma GCC diagnostic pop
  bool on_device = !planned.device().is_cpu() && planned.const_data_ptr();
  void *data = tensor.data ? tensor.data : nothing;
  TensorImpl impl(static_cast<executorch::aten::ScalarType>(tensor.dtype), tensor.rank, sizes,
                  on_device ? nullptr : data, order, strides);
  er::Error code = method->set_input(er::EValue(executorch::aten::Tensor(&impl)), position);
  if (code == er::Error::Ok && on_device)
    code = copy_device(planned.device(), planned.mutable_data_ptr(), data, planned.nbytes());
  return code;
}

enum tandem_status take_output(MethodState *state, size_t index, const struct tandem_run_desc *run,
                               struct tandem_error *error) {
  const PlanTensor &planned = state->get_plan().outputs[index];
  const struct tandem_io &io = state->get_io().outputs[index];
  struct tandem_tensor *out = &run->outputs[index];
  const er::EValue &value = state->method->get_output(planned.position);
  if (!value.isTensor())
    return tandem_fail(error, TANDEM_INTERNAL, "output \"%s\" is not a tensor after the run", io.name);
  const executorch::aten::Tensor &tensor = value.toTensor();
  struct tandem_tensor real = *out;
  real.rank = static_cast<int32_t>(tensor.dim());
  real.strides = nullptr;
  bool same_shape = real.rank == out->rank;
  for (int32_t d = 0; d < real.rank && d < TANDEM_MAX_RANK; d++) {
    real.shape[d] = tensor.size(d);
    same_shape = same_shape && real.shape[d] == out->shape[d];
  }
  size_t bytes = tensor.nbytes();
  if (run->resize && (!same_shape || !out->data || out->size < bytes)) {
    enum tandem_status status = run->resize(run->resize_user, index, &real);
    if (status != TANDEM_OK)
      return tandem_fail(error, status, "output \"%s\" could not be resized to %s", io.name,
                         shape_text(real.shape, real.rank).c_str());
  }
  *out = real;
  if (!out->data && !run->resize) {
    out->data = const_cast<void *>(tensor.const_data_ptr());
    out->size = bytes;
    if (tensor.device().is_cpu() || bytes == 0)
      return TANDEM_OK;
    /* What the caller borrows is host memory, also of an output that the program leaves on a device. */
    std::vector<uint8_t> &host = state->host_outputs[index];
    host.resize(bytes);
    out->data = host.data();
  }
  if (out->size < bytes || (bytes > 0 && !out->data))
    return tandem_fail(
        error, TANDEM_INVALID_ARGUMENT, "output \"%s\" has room for %zu bytes: its shape %s of %s needs %zu",
        io.name, out->size, shape_text(real.shape, real.rank).c_str(), tandem_dtype_name(io.dtype), bytes);
  if (bytes > 0 && !tensor.device().is_cpu()) {
    OpenDoor open;
    er::Error code = copy_device(tensor.device(), out->data, tensor.const_data_ptr(), bytes);
    return code == er::Error::Ok ? TANDEM_OK
                                 : explain(open.door, code, to_status(code), "output", io.name, error);
  }
  if (bytes > 0)
    memcpy(out->data, tensor.const_data_ptr(), bytes);
  return TANDEM_OK;
}

struct DirectRun {
  MethodState *state;
  const struct tandem_run_desc *run;
};

/* Exporters write a scalar where some engines have one element of rank 1. */
bool is_scalar(const struct tandem_io &io, const struct tandem_tensor &tensor) {
  return io.rank == 0 && tensor.rank == 1 && tensor.shape[0] == 1;
}

/* `output` counts as the load does; the caller has the method's order, and without a resize function of its
 * own either room or a wish to borrow. */
enum tandem_status resize_direct(void *user, size_t output, struct tandem_tensor *tensor) {
  auto *direct = static_cast<DirectRun *>(user);
  MethodState *state = direct->state;
  size_t index = state->get_plan().direct_outputs[output];
  const struct tandem_tensor &given = direct->run->outputs[index];
  size_t bytes;
  if (!count_bytes(*tensor, &bytes))
    return TANDEM_OUT_OF_MEMORY;
  if (is_scalar(state->get_io().outputs[index], *tensor) && given.data)
    return TANDEM_OK;
  if (direct->run->resize)
    return direct->run->resize(direct->run->resize_user, index, tensor);
  if (given.data)
    return given.size >= bytes ? TANDEM_OK : TANDEM_INVALID_ARGUMENT;
  state->lent[output].reset(malloc(bytes > 0 ? bytes : 1));
  tensor->data = state->lent[output].get();
  tensor->size = bytes;
  return tensor->data ? TANDEM_OK : TANDEM_OUT_OF_MEMORY;
}

/* Where the shape is known before the run the load need not find out. */
enum tandem_status check_room(const struct tandem_io &io, const struct tandem_tensor &tensor,
                              tandem_resize_fn resize, struct tandem_error *error) {
  struct tandem_tensor real = {};
  size_t bytes;
  real.dtype = io.dtype;
  real.rank = io.rank;
  memcpy(real.shape, io.max, sizeof(real.shape));
  if (resize || !tensor.data || memcmp(io.min, io.max, sizeof(io.min)) != 0 || !count_bytes(real, &bytes) ||
      tensor.size >= bytes)
    return TANDEM_OK;
  return tandem_fail(
      error, TANDEM_INVALID_ARGUMENT, "output \"%s\" has room for %zu bytes: its shape %s of %s needs %zu",
      io.name, tensor.size, shape_text(real.shape, real.rank).c_str(), tandem_dtype_name(io.dtype), bytes);
}

bool overlap(const struct tandem_tensor &one, const struct tandem_tensor &other) {
  auto first = reinterpret_cast<uintptr_t>(one.data);
  auto second = reinterpret_cast<uintptr_t>(other.data);
  return first && second && first < second + other.size && second < first + one.size;
}

/* The later one of two outputs would be all that is left. */
enum tandem_status check_outputs(const MethodIo &io, const struct tandem_run_desc &run,
                                 struct tandem_error *error) {
  for (size_t i = 0; i < run.output_count; i++) {
    if (run.outputs[i].dtype != io.outputs[i].dtype)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "output \"%s\" is %s: expected %s",
                         io.outputs[i].name, tandem_dtype_name(run.outputs[i].dtype),
                         tandem_dtype_name(io.outputs[i].dtype));
    if (!is_contiguous(run.outputs[i]))
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                         "output \"%s\" is not contiguous: expected no strides", io.outputs[i].name);
    for (size_t j = 0; j < i; j++)
      if (overlap(run.outputs[i], run.outputs[j]))
        return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                           "output \"%s\" overlaps output \"%s\": expected memory of its own",
                           io.outputs[i].name, io.outputs[j].name);
  }
  return TANDEM_OK;
}

/* The engine would read what it has written already; only an output that updates an input lies there. */
enum tandem_status check_overlap(const MethodState &state, const struct tandem_run_desc &run,
                                 struct tandem_error *error) {
  const Plan &plan = state.get_plan();
  const MethodIo &io = state.get_io();
  const struct tandem_io *facts;
  size_t fact_count;
  tandem_load_io(state.loads[0], nullptr, nullptr, &facts, &fact_count);
  for (size_t o = 0; o < plan.direct_outputs.size(); o++) {
    const struct tandem_tensor &output = run.outputs[plan.direct_outputs[o]];
    int32_t updates = fact_count == plan.direct_outputs.size() ? facts[o].updates : 0;
    for (size_t i = 0; i < plan.direct_inputs.size(); i++)
      if (static_cast<size_t>(updates) != i + 1 && overlap(output, run.inputs[plan.direct_inputs[i]]))
        return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                           "output \"%s\" overlaps input \"%s\": expected memory of its own",
                           io.outputs[plan.direct_outputs[o]].name, io.inputs[plan.direct_inputs[i]].name);
  }
  return TANDEM_OK;
}

enum tandem_status run_direct(MethodState *state, const struct tandem_run_desc *run,
                              struct tandem_error *error) {
  const Plan &plan = state->get_plan();
  DirectRun direct = {state, run};
  struct tandem_run_desc desc = *run;
  enum tandem_status status = check_overlap(*state, *run, error);
  for (size_t i = 0; status == TANDEM_OK && i < run->output_count; i++)
    status = check_room(state->get_io().outputs[i], run->outputs[i], run->resize, error);
  if (status != TANDEM_OK)
    return status;
  for (size_t i = 0; i < plan.direct_inputs.size(); i++)
    state->load_inputs[i] = run->inputs[plan.direct_inputs[i]];
  for (size_t i = 0; i < plan.direct_outputs.size(); i++)
    state->load_outputs[i] = run->outputs[plan.direct_outputs[i]];
  desc.inputs = state->load_inputs.data();
  desc.input_count = state->load_inputs.size();
  desc.outputs = state->load_outputs.data();
  desc.output_count = state->load_outputs.size();
  desc.resize = resize_direct;
  desc.resize_user = &direct;
  status = tandem_load_run(state->loads[0], &desc, error);
  for (size_t i = 0; status == TANDEM_OK && i < plan.direct_outputs.size(); i++) {
    struct tandem_tensor *out = &run->outputs[plan.direct_outputs[i]];
    const struct tandem_tensor &written = state->load_outputs[i];
    bool scalar = is_scalar(state->get_io().outputs[plan.direct_outputs[i]], written);
    *out = written;
    out->strides = nullptr;
    out->rank = scalar ? 0 : written.rank;
  }
  return status;
}

enum tandem_status run_method(MethodState *state, const struct tandem_run_desc *run,
                              struct tandem_error *error) {
  const Plan &plan = state->get_plan();
  const MethodIo &io = state->get_io();
  if (run->input_count != io.inputs.size() || run->output_count != io.outputs.size())
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "%zu inputs and %zu outputs: method \"%s\" has %zu and %zu that are tensors",
                       run->input_count, run->output_count, plan.name.c_str(), io.inputs.size(),
                       io.outputs.size());
  if ((run->input_count && !run->inputs) || (run->output_count && !run->outputs))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "inputs or outputs is NULL");
  for (size_t i = 0; i < run->input_count; i++) {
    enum tandem_status status = check_input(io.inputs[i], run->inputs[i], error);
    if (status != TANDEM_OK)
      return status;
  }
  enum tandem_status checked = check_outputs(io, *run, error);
  if (checked != TANDEM_OK)
    return checked;
  Turn lock(state->lock);
  if (lock.check("this method", error) != TANDEM_OK)
    return TANDEM_DEVICE_LOST;
  if (state->direct)
    return run_direct(state, run, error);
  OpenDoor open;
  for (size_t i = 0; i < run->input_count; i++) {
    er::Error code = set_input(&*state->method, run->inputs[i], plan.inputs[i].position);
    if (code != er::Error::Ok)
      return explain(open.door, code, to_status(code), "input", io.inputs[i].name, error);
  }
  er::Error code = state->method->execute();
  if (code != er::Error::Ok)
    return explain(open.door, code, to_status(code), "run of method", plan.name.c_str(), error);
  for (size_t i = 0; i < run->output_count; i++) {
    enum tandem_status status = take_output(state, i, run, error);
    if (status != TANDEM_OK)
      return status;
  }
  return TANDEM_OK;
}

/* Runs `body`, which may throw, as the inside of an exported function. */
template <typename Body> enum tandem_status guard(struct tandem_error *error, Body body) {
  NoCancel no_cancel;
  clear(error);
  try {
    return body();
  } catch (const std::bad_alloc &) {
    return tandem_fail(error, TANDEM_OUT_OF_MEMORY, "no memory left for a description or a name");
  } catch (const std::exception &problem) {
    return tandem_fail(error, TANDEM_INTERNAL, "unexpected: %s", problem.what());
  } catch (...) {
    return tandem_fail(error, TANDEM_INTERNAL, "unexpected exception");
  }
}

} // namespace

struct tandem_method {
  MethodState state;
};

/* ---------------------------------------------------------------- what is exported */

const char *tandem_executorch_version(void) {
  try {
    return place().version.c_str();
  } catch (...) {
    return TANDEM_EXECUTORCH_BUILT;
  }
}

const char *tandem_executorch_path(void) {
  try {
    return place().path.c_str();
  } catch (...) {
    return "";
  }
}

const char *tandem_executorch_backend(size_t index) {
  NoCancel no_cancel;
  Turn lock(libraries());
  if (index >= er::get_num_registered_backends())
    return nullptr;
  auto name = er::get_backend_name(index);
  return name.ok() ? *name : nullptr;
}

const char *tandem_executorch_operator(size_t index) {
  NoCancel no_cancel;
  Turn lock(libraries());
  auto kernels = er::get_registered_kernels();
  return index < kernels.size() ? kernels[index].name_ : nullptr;
}

enum tandem_status tandem_program_create(const struct tandem_program_desc *desc,
                                         struct tandem_program **program, struct tandem_error *error) {
  return guard(
      error, [&]() -> enum tandem_status {
        if (!program)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program is NULL");
        *program = nullptr;
        if (!desc || desc->struct_size != sizeof(*desc))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "desc->struct_size is %zu: expected %zu",
                             desc ? desc->struct_size : 0, sizeof(*desc));
        if (!desc->path == !desc->bytes)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "expected either a path or bytes");
        if (desc->data_path_count && !desc->data_paths)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "data_paths is NULL");
        auto created = std::make_unique<struct tandem_program>();
        enum tandem_status status = create_program(desc, &created->state, error);
        if (status == TANDEM_OK)
          *program = created.release();
        return status;
      });
}

void tandem_program_destroy(struct tandem_program *program) {
  NoCancel no_cancel;
  delete program;
}

size_t tandem_program_method_count(const struct tandem_program *program) {
  return program ? program->state->plans.size() : 0;
}

const char *tandem_program_method_name(const struct tandem_program *program, size_t index) {
  return index < tandem_program_method_count(program) ? program->state->plans[index].name.c_str() : nullptr;
}

enum tandem_status tandem_program_method_io(struct tandem_program *program, const char *method,
                                            const struct tandem_io **inputs, size_t *input_count,
                                            const struct tandem_io **outputs, size_t *output_count,
                                            struct tandem_error *error) {
  if (inputs)
    *inputs = nullptr;
  if (input_count)
    *input_count = 0;
  if (outputs)
    *outputs = nullptr;
  if (output_count)
    *output_count = 0;
  return guard(
      error, [&]() -> enum tandem_status {
        size_t index = 0;
        enum tandem_status status = find_method(program, method, &index, error);
        if (status != TANDEM_OK)
          return status;
        const MethodIo &io = *program->state->io[index];
        if (inputs)
          *inputs = io.inputs.data();
        if (input_count)
          *input_count = io.inputs.size();
        if (outputs)
          *outputs = io.outputs.data();
        if (output_count)
          *output_count = io.outputs.size();
        return TANDEM_OK;
      });
}

enum tandem_status tandem_program_method_constants(struct tandem_program *program, const char *method,
                                                   const struct tandem_constant **constants, size_t *count,
                                                   struct tandem_error *error) {
  if (constants)
    *constants = nullptr;
  if (count)
    *count = 0;
  return guard(
      error, [&]() -> enum tandem_status {
        size_t index = 0;
        enum tandem_status status = find_method(program, method, &index, error);
        if (status != TANDEM_OK)
          return status;
        if (constants)
          *constants = program->state->plans[index].constants.data();
        if (count)
          *count = program->state->plans[index].constants.size();
        return TANDEM_OK;
      });
}

const struct tandem_named_data *tandem_program_named_data(const struct tandem_program *program) {
  return program ? &program->state->source : nullptr;
}

enum tandem_status tandem_program_delegates(struct tandem_program *program, const char *method,
                                            const struct tandem_delegate **delegates, size_t *count,
                                            struct tandem_error *error) {
  if (delegates)
    *delegates = nullptr;
  if (count)
    *count = 0;
  return guard(
      error, [&]() -> enum tandem_status {
        size_t index = 0;
        enum tandem_status status = find_method(program, method, &index, error);
        if (status != TANDEM_OK)
          return status;
        ProgramState *state = program->state.get();
        Turn lock(state->lock);
        status = lock.check("this program", error);
        if (status == TANDEM_OK && !state->delegates_read[index])
          status = read_delegates(state, index, error);
        if (status != TANDEM_OK)
          return status;
        if (delegates)
          *delegates = state->delegates[index].data();
        if (count)
          *count = state->delegates[index].size();
        return TANDEM_OK;
      });
}

enum tandem_status tandem_method_create(struct tandem_program *program, const char *name,
                                        const struct tandem_option *options, size_t option_count,
                                        struct tandem_method **method, struct tandem_error *error) {
  return guard(
      error, [&]() -> enum tandem_status {
        if (!method)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "method is NULL");
        *method = nullptr;
        if (!program || !name || (option_count && !options))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program, name or options is NULL");
        auto created = std::make_unique<struct tandem_method>();
        enum tandem_status status =
            create_method(program->state, name, options, option_count, &created->state, error);
        if (status == TANDEM_OK)
          *method = created.release();
        return status;
      });
}

void tandem_method_destroy(struct tandem_method *method) {
  NoCancel no_cancel;
  delete method;
}

enum tandem_status tandem_method_run(struct tandem_method *method, const struct tandem_run_desc *run,
                                     struct tandem_error *error) {
  return guard(
      error, [&]() -> enum tandem_status {
        if (!method || !run || run->struct_size != sizeof(*run))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                             "method is NULL, or run->struct_size is %zu: expected %zu",
                             run ? run->struct_size : 0, sizeof(*run));
        if ((run->stream || run->return_early || run->done) && !method->state.direct)
          return tandem_fail(
              error, TANDEM_INVALID_ARGUMENT,
              "stream, return_early or done is set: method \"%s\" is not one delegate of tandem's alone, and "
              "ExecuTorch has no asynchronous execute",
              method->state.get_plan().name.c_str());
        return run_method(&method->state, run, error);
      });
}

bool tandem_method_direct(const struct tandem_method *method) {
  return method && method->state.direct;
}

enum tandem_status tandem_method_reset(struct tandem_method *method, struct tandem_error *error) {
  return guard(
      error, [&]() -> enum tandem_status {
        if (!method)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "method is NULL");
        Turn lock(method->state.lock);
        if (lock.check("this method", error) != TANDEM_OK)
          return TANDEM_DEVICE_LOST;
        for (struct tandem_load *load : method->state.loads) {
          enum tandem_status status = tandem_load_reset(load, error);
          if (status != TANDEM_OK)
            return status;
        }
        return TANDEM_OK;
      });
}

struct tandem_load *tandem_method_load(struct tandem_method *method, size_t index) {
  return method && index < method->state.loads.size() ? method->state.loads[index] : nullptr;
}
