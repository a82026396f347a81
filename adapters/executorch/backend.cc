/* The delegate: tandem's backends as ExecuTorch sees them.
 *
 * Thin on purpose: every decision (sharing, options, waiting) is libtandem's. Here a delegate's init becomes
 * tandem_load_create, execute tandem_load_run, destroy tandem_load_destroy, and each status one ExecuTorch
 * error. No memory is allocated on the way to a run of up to direct_limit tensors, and no C++ exception
 * leaves.
 *
 * ExecuTorch hands a code up and no sentence, so the sentence of a failure is written to stderr here, unless
 * the call came through the C door, which gives it to its caller. It is written with write(2), never by
 * ET_LOG or a C++ stream: ExecuTorch's Python extension swaps the process's C++ streams around its calls, and
 * one line through them from a second thread crashed it. That extension keeps the interpreter lock meanwhile;
 * libtandem is told so, and bounds its waits.
 *
 * ExecuTorch's registry keeps the first backend of a name for ever. So a backend that was there before is an
 * error that says what to do, once, and everything else goes on. tandem's is then registered under another
 * name, which only the C door uses.
 */
#include "adapter.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace tandem {

namespace er = executorch::runtime;

/* ExecuTorch's buffer is the token. */
enum tandem_status get_named(void *user, const char *key, const void **data, size_t *size, void **token) {
  *data = nullptr;
  *size = 0;
  *token = nullptr;
  auto buffer = static_cast<const er::NamedDataMap *>(user)->get_data(key);
  if (!buffer.ok())
    return buffer.error() == er::Error::MemoryAllocationFailed ? TANDEM_OUT_OF_MEMORY : TANDEM_MISSING_DATA;
  auto address = buffer->data_safe();
  if (!address.ok())
    return TANDEM_MISSING_DATA;
  auto *kept = new (std::nothrow) er::FreeableBuffer(std::move(*buffer));
  if (!kept)
    return TANDEM_OUT_OF_MEMORY;
  *data = *address;
  *size = kept->size();
  *token = kept;
  return TANDEM_OK;
}

void release_named(void *, void *token) {
  delete static_cast<er::FreeableBuffer *>(token);
}

namespace {

constexpr size_t direct_limit = 48;  /* tensors of a run that are described on the stack */
constexpr size_t backend_limit = 16; /* what ExecuTorch's own table holds */
constexpr size_t name_size = 64;     /* bytes of a backend's name with its NUL, as in tandem_vendor_info */

thread_local Door *door_of_thread;

er::Error to_error(enum tandem_status status) {
  switch (status) {
#define ERROR_CASE(name, number, text, executorch, python)                                                   \
  case TANDEM_##name:                                                                                        \
    return er::Error::executorch;
    TANDEM_STATUS_TABLE(ERROR_CASE)
#undef ERROR_CASE
  }
  return er::Error::Internal;
}

/* Hands the sentence of a failure to the C door or, without one, to stderr. */
er::Error report(const struct tandem_error &error, const char *what, const char *method) {
  Door *door = current_door();
  if (!door)
    write_line("tandem: %s of method \"%s\": %s", what, method, error.message);
  else if (!door->failed) {
    door->failed = true;
    door->error = error;
  }
  return to_error(error.code);
}

bool python_runs() {
  auto is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized && is_initialized();
}

/* True when this thread holds Python's interpreter lock, as it does inside the stock extension. */
bool holds_interpreter_lock() {
  auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check && python_runs() && check();
}

/* An option of ExecuTorch as text; neither its key nor its text need end in a NUL. */
struct OptionText {
  char key[er::kMaxOptionKeyLength + 1];
  char value[er::kMaxOptionValueLength + 1];
};

void write_option(const er::BackendOption &option, OptionText *text) {
  size_t key_size = strnlen(option.key, sizeof(option.key));
  memcpy(text->key, option.key, key_size);
  text->key[key_size] = '\0';
  if (auto *flag = std::get_if<bool>(&option.value))
    snprintf(text->value, sizeof(text->value), "%s", *flag ? "true" : "false");
  else if (auto *number = std::get_if<int>(&option.value))
    snprintf(text->value, sizeof(text->value), "%d", *number);
  else if (auto *chars = std::get_if<std::array<char, er::kMaxOptionValueLength>>(&option.value)) {
    size_t size = strnlen(chars->data(), chars->size());
    memcpy(text->value, chars->data(), size);
    text->value[size] = '\0';
  } else
    text->value[0] = '\0';
}

struct Handle {
  struct tandem_load *load; /* owned */
  const struct tandem_io *inputs, *outputs;
  size_t input_count, output_count;
  size_t kept_count; /* outputs that update no input: what a program may give instead of all */
};

/* The tensors of one run. */
struct Binding {
  struct tandem_tensor tensor;
  int64_t strides[TANDEM_MAX_RANK];
};

struct Run {
  const Handle *handle;
  er::Span<er::EValue *> args;
};

/* Of the argument `index`; `kept`: outputs that update an input are left out. */
const char *tensor_name(const Handle *handle, size_t index, bool kept) {
  const struct tandem_io *io = handle->inputs + index;
  if (index >= handle->input_count) {
    size_t output = 0, skip = index - handle->input_count;
    while (kept && (handle->outputs[output].updates != 0 || skip-- > 0))
      output++;
    io = handle->outputs + (kept ? output : skip);
  }
  return io->name ? io->name : "?";
}

/* A layout other than the default goes on as strides: libtandem refuses it, naming the tensor. */
enum tandem_status bind(const Handle *handle, bool kept, const er::EValue *value, size_t index,
                        struct tandem_tensor *tensor, int64_t *strides, struct tandem_error *error) {
  const char *what = index < handle->input_count ? "input" : "output";
  if (!value || !value->isTensor())
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "%s \"%s\" (argument %zu) is not a tensor but of kind %d", what,
                       tensor_name(handle, index, kept), index, value ? static_cast<int>(value->tag) : -1);
  const executorch::aten::Tensor &source = value->toTensor();
  ssize_t rank = source.dim();
  if (rank > TANDEM_MAX_RANK)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "%s \"%s\" has rank %zd: expected at most %d", what,
                       tensor_name(handle, index, kept), rank, TANDEM_MAX_RANK);
  /* Planned memory lies where the program says, a damaged one too. */
  ssize_t element = source.element_size();
  if (element > 1 &&
      reinterpret_cast<uintptr_t>(source.const_data_ptr()) % static_cast<uintptr_t>(element) != 0)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "%s \"%s\" is at an address that is no multiple of %zd", what,
                       tensor_name(handle, index, kept), element);
  tensor->data = const_cast<void *>(source.const_data_ptr());
  tensor->size = source.nbytes();
  tensor->dtype = static_cast<int32_t>(source.scalar_type());
  tensor->rank = static_cast<int32_t>(rank);
  tensor->strides = nullptr;
  auto sizes = source.sizes();
  bool in_order = true;
  auto order = source.unsafeGetTensorImpl()->dim_order();
  for (ssize_t d = 0; d < rank; d++) {
    tensor->shape[d] = sizes[static_cast<size_t>(d)];
    in_order = in_order && (!order.data() || order[static_cast<size_t>(d)] == d);
  }
  if (in_order)
    return TANDEM_OK;
  int64_t stride = 1;
  for (ssize_t d = rank; d-- > 0;) {
    size_t dimension = order[static_cast<size_t>(d)];
    if (dimension >= static_cast<size_t>(rank))
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                         "%s \"%s\" has dimension %zu in its dim order: its rank is %zd", what,
                         tensor_name(handle, index, kept), dimension, rank);
    strides[dimension] = stride;
    stride *= tensor->shape[dimension] > 0 ? tensor->shape[dimension] : 1;
  }
  tensor->strides = strides;
  return TANDEM_OK;
}

enum tandem_status resize(void *user, size_t output, struct tandem_tensor *tensor) {
  auto *run = static_cast<Run *>(user);
  executorch::aten::Tensor &target = run->args[run->handle->input_count + output]->toTensor();
  /* The engine writes rows: another order of the dimensions that have extent would be read wrongly. */
  auto order = target.unsafeGetTensorImpl()->dim_order();
  int32_t before = 0;
  for (size_t d = 0; order.data() && d < order.size(); d++) {
    int32_t dimension = order[d];
    if (dimension >= tensor->rank || tensor->shape[dimension] <= 1)
      continue;
    if (dimension < before)
      return TANDEM_INVALID_ARGUMENT;
    before = dimension;
  }
  /* Exporters write a scalar where some engines have one element of rank 1. */
  bool scalar = target.dim() == 0 && tensor->rank == 1 && tensor->shape[0] == 1;
  executorch::aten::SizesType sizes[TANDEM_MAX_RANK];
  for (int32_t d = 0; d < tensor->rank; d++) {
    if (tensor->shape[d] < 0 || tensor->shape[d] > INT32_MAX)
      return TANDEM_INVALID_ARGUMENT;
    sizes[d] = static_cast<executorch::aten::SizesType>(tensor->shape[d]);
  }
  if (!scalar) {
    er::Error error = er::resize_tensor(
        target, er::ArrayRef<executorch::aten::SizesType>(sizes, static_cast<size_t>(tensor->rank)));
    if (error != er::Error::Ok)
      return error == er::Error::MemoryAllocationFailed ? TANDEM_OUT_OF_MEMORY : TANDEM_INVALID_ARGUMENT;
  }
  tensor->data = target.mutable_data_ptr();
  tensor->size = target.nbytes();
  return TANDEM_OK;
}

class Backend final : public er::BackendInterface {
public:
  const char *name = nullptr;      /* static storage of the vendor */
  char registered[name_size] = ""; /* in ExecuTorch's registry: `name`, or what stands in for it */

  bool is_available() const override {
    return true; /* a vendor library that is missing is told by init, with what mends it */
  }

  er::Result<er::DelegateHandle *> init(er::BackendInitContext &context, er::FreeableBuffer *processed,
                                        er::ArrayRef<er::CompileSpec> compile_specs) const override {
    const char *method = context.get_method_name() ? context.get_method_name() : "?";
    auto event = er::event_tracer_start_profiling_delegate(context.event_tracer(), "tandem load",
                                                           er::kUnsetDelegateDebugIntId);
    struct tandem_error error = {};
    Handle *handle = nullptr;
    enum tandem_status status = load(context, processed, compile_specs, method, &handle, &error);
    processed->Free();

    char text[160] = "failed";
    struct tandem_load_info info = {};
    info.struct_size = sizeof(info);
    if (status == TANDEM_OK && context.event_tracer() &&
        tandem_load_get_info(handle->load, &info, nullptr) == TANDEM_OK)
      snprintf(text, sizeof(text), "shared=%d users=%llu engine=%llu", info.shared,
               static_cast<unsigned long long>(info.users), static_cast<unsigned long long>(info.engine_id));
    er::event_tracer_end_profiling_delegate(context.event_tracer(), event, text, strlen(text) + 1);
    if (status != TANDEM_OK)
      return report(error, "load", method);
    return static_cast<er::DelegateHandle *>(handle);
  }

  er::Error execute(er::BackendExecutionContext &context, er::DelegateHandle *delegate,
                    er::Span<er::EValue *> args) const override {
    auto *handle = static_cast<Handle *>(delegate);
    auto event = er::event_tracer_start_profiling_delegate(context.event_tracer(), "tandem run",
                                                           er::kUnsetDelegateDebugIntId);
    struct tandem_error error;
    error.code = TANDEM_OK;
    error.message[0] = '\0';
    enum tandem_status status;
    if (args.size() <= direct_limit) {
      Binding bindings[direct_limit];
      struct tandem_tensor tensors[direct_limit];
      status = run(handle, args, bindings, tensors, &error);
    } else {
      auto *bindings = new (std::nothrow) Binding[args.size()];
      auto *tensors = new (std::nothrow) struct tandem_tensor[args.size()];
      status = bindings && tensors ? run(handle, args, bindings, tensors, &error)
                                   : tandem_fail(&error, TANDEM_OUT_OF_MEMORY,
                                                 "no memory to describe %zu tensors", args.size());
      delete[] bindings;
      delete[] tensors;
    }
    er::event_tracer_end_profiling_delegate(context.event_tracer(), event);
    if (status != TANDEM_OK)
      return report(error, "run", context.get_method_name() ? context.get_method_name() : "?");
    return er::Error::Ok;
  }

  void destroy(er::DelegateHandle *delegate) const override {
    auto *handle = static_cast<Handle *>(delegate);
    if (!handle)
      return;
    tandem_load_destroy(handle->load);
    delete handle;
  }

  /* All or nothing; names that tandem does not know belong to another backend of the span. */
  er::Error set_option(er::BackendOptionContext &, const er::Span<er::BackendOption> &options) override {
    struct tandem_error error = {};
    enum tandem_status status = TANDEM_OK;
    auto *texts = new (std::nothrow) OptionText[options.size()];
    auto *known = new (std::nothrow) struct tandem_option[options.size()];
    struct tandem_scope *scope = nullptr;
    size_t count = 0;
    if (!texts || !known)
      status = tandem_fail(&error, TANDEM_OUT_OF_MEMORY, "no memory for %zu options", options.size());
    for (size_t i = 0; status == TANDEM_OK && i < options.size(); i++) {
      write_option(options[i], &texts[i]);
      if (!knows(texts[i].key)) {
        note_unknown(texts[i].key);
        continue;
      }
      known[count].key = texts[i].key;
      known[count++].value = texts[i].value;
    }
    /* A scope checks every value and applies none to the process. */
    if (status == TANDEM_OK)
      status = tandem_scope_acquire(known, count, &scope, &error);
    tandem_scope_release(scope);
    for (size_t i = 0; status == TANDEM_OK && i < count; i++)
      status = tandem_set_option(name, known[i].key, known[i].value, &error);
    delete[] texts;
    delete[] known;
    if (status != TANDEM_OK)
      write_line("tandem: set_option of %s: %s", name, error.message);
    return to_error(status);
  }

  /* The value takes the type that the caller put there if it can, else the one it looks like. */
  er::Error get_option(er::BackendOptionContext &, er::Span<er::BackendOption> &options) override {
    for (er::BackendOption &option : options) {
      OptionText text;
      write_option(option, &text);
      struct tandem_error error = {};
      std::array<char, er::kMaxOptionValueLength> value{};
      enum tandem_status status = tandem_get_option(name, text.key, value.data(), value.size(), &error);
      if (status != TANDEM_OK) {
        write_line("tandem: get_option of %s: %s", name, error.message);
        return to_error(status);
      }
      int number = 0;
      char rest = 0;
      bool text_wanted = std::holds_alternative<std::array<char, er::kMaxOptionValueLength>>(option.value);
      if (!text_wanted && (strcmp(value.data(), "true") == 0 || strcmp(value.data(), "false") == 0))
        option.value = value[0] == 't';
      else if (!text_wanted && sscanf(value.data(), "%9d%c", &number, &rest) == 1)
        option.value = number;
      else
        option.value = value;
    }
    return er::Error::Ok;
  }

private:
  bool knows(const char *key) const {
    return tandem_option_known(name, key);
  }

  void note_unknown(const char *key) {
    static std::atomic<bool> noted;
    if (!noted.exchange(true))
      write_line("tandem: set_option of %s: \"%s\" is no option of tandem and is ignored, here and later; "
                 "docs/options.md lists them",
                 name, key);
  }

  enum tandem_status load(er::BackendInitContext &context, er::FreeableBuffer *processed,
                          er::ArrayRef<er::CompileSpec> compile_specs, const char *method, Handle **out,
                          struct tandem_error *error) const {
    enum tandem_status status = TANDEM_OK;
    er::Span<const er::BackendOption> specs = context.runtime_specs();
    auto *handle = new (std::nothrow) Handle();
    auto *texts = new (std::nothrow) OptionText[specs.size()];
    auto *options = new (std::nothrow) struct tandem_option[specs.size()];
    auto *compiled = new (std::nothrow) struct tandem_spec[compile_specs.size()];
    struct tandem_named_data named = {get_named, release_named,
                                      const_cast<er::NamedDataMap *>(context.get_named_data_map())};
    struct tandem_load_desc desc = {};
    auto payload = processed->data_safe();
    Door *door = current_door();
    if (!handle || !texts || !options || !compiled) {
      status = tandem_fail(error, TANDEM_OUT_OF_MEMORY, "no memory to describe the load");
      goto done;
    }
    if (!payload.ok()) {
      status = tandem_fail(error, TANDEM_UNSUPPORTED, "the payload is not in this processor's memory");
      goto done;
    }
    for (size_t i = 0; i < specs.size(); i++) {
      write_option(specs[i], &texts[i]);
      options[i].key = texts[i].key;
      options[i].value = texts[i].value;
    }
    for (size_t i = 0; i < compile_specs.size(); i++) {
      compiled[i].key = compile_specs[i].key;
      compiled[i].value = compile_specs[i].value.buffer;
      compiled[i].size = compile_specs[i].value.nbytes;
    }
    desc.struct_size = sizeof(desc);
    desc.backend = name;
    desc.payload = *payload;
    desc.payload_size = processed->size();
    desc.options = options;
    desc.option_count = specs.size();
    desc.compile_specs = compiled;
    desc.compile_spec_count = compile_specs.size();
    desc.named_data = named.user ? &named : nullptr;
    desc.label = method;
    desc.flags = holds_interpreter_lock() ? TANDEM_LOAD_CALLER_HOLDS_LOCK : 0;
    status = tandem_load_create(&desc, &handle->load, error);
    if (status != TANDEM_OK)
      goto done;
    tandem_load_io(handle->load, &handle->inputs, &handle->input_count, &handle->outputs,
                   &handle->output_count);
    for (size_t i = 0; i < handle->output_count; i++)
      handle->kept_count += handle->outputs[i].updates == 0;
    if (door) {
      try {
        door->loads.push_back(handle->load);
      } catch (...) {
        tandem_load_destroy(handle->load);
        status = tandem_fail(error, TANDEM_OUT_OF_MEMORY, "no memory to list the load");
        goto done;
      }
    }
    *out = handle;
    handle = nullptr;
  done:
    delete[] compiled;
    delete[] options;
    delete[] texts;
    delete handle;
    return status;
  }

  static enum tandem_status run(Handle *handle, er::Span<er::EValue *> args, Binding *bindings,
                                struct tandem_tensor *tensors, struct tandem_error *error) {
    /* Outputs that update an input in place may be no arguments, as long as another output is one. */
    bool kept = handle->kept_count > 0 && handle->kept_count < handle->output_count &&
                args.size() == handle->input_count + handle->kept_count;
    if (!kept && args.size() != handle->input_count + handle->output_count)
      return tandem_fail(
          error, TANDEM_INVALID_ARGUMENT,
          "%zu arguments: expected the engine's %zu inputs and %zu outputs, or %zu without the "
          "outputs that update an input",
          args.size(), handle->input_count, handle->output_count, handle->kept_count);
    for (size_t i = 0; i < args.size(); i++) {
      enum tandem_status status = bind(handle, kept, args[i], i, &tensors[i], bindings[i].strides, error);
      if (status != TANDEM_OK)
        return status;
    }
    Run user = {handle, args};
    struct tandem_run_desc desc = {};
    desc.struct_size = sizeof(desc);
    desc.inputs = tensors;
    desc.input_count = handle->input_count;
    desc.outputs = tensors + handle->input_count;
    desc.output_count = args.size() - handle->input_count;
    desc.resize = resize;
    desc.resize_user = &user;
    return tandem_load_run(handle->load, &desc, error);
  }
};

std::mutex &registration() {
  static std::mutex mutex;
  return mutex;
}

void lock_registration() {
  registration().lock();
}

void unlock_registration() {
  registration().unlock();
}

/* It is held over no wait for a thread, so a fork waits for it: else a child could find it held for ever. */
[[maybe_unused]] const bool guarded =
    pthread_atfork(lock_registration, unlock_registration, unlock_registration) == 0;

/* Never destroyed: ExecuTorch's table points here until the process ends. */
Backend *slots() {
  static Backend *array = new (std::nothrow) Backend[backend_limit]();
  return array;
}

Backend *find_slot(const char *backend) {
  Backend *array = slots();
  for (size_t i = 0; array && i < backend_limit; i++)
    if (array[i].name && strcmp(array[i].name, backend) == 0)
      return &array[i];
  return nullptr;
}

bool has_own_name(const Backend *slot) {
  return strcmp(slot->registered, slot->name) == 0;
}

Backend *free_slot() {
  Backend *array = slots();
  for (size_t i = 0; array && i < backend_limit; i++)
    if (!array[i].name)
      return &array[i];
  return nullptr;
}

/* "OpenvinoBackend" becomes "Openvino@tandem": as long, so that it fits where a program has the name. */
void replace_name(char *name) {
  const char *mark = "@tandem";
  size_t length = strlen(name);
  size_t replaced = length < strlen(mark) ? length : strlen(mark);
  for (size_t i = 0; i < replaced; i++)
    name[length - replaced + i] = mark[i];
}

enum tandem_status add(const char *backend, bool taken, struct tandem_error *error) {
  Backend *slot = free_slot();
  if (!slot)
    return tandem_fail(error, TANDEM_OUT_OF_MEMORY, "no room for backend %s: at most %zu can be registered",
                       backend, backend_limit);
  if (strlen(backend) >= name_size)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                       "backend %s has a name of %zu bytes: expected below %zu", backend, strlen(backend),
                       name_size);
  memcpy(slot->registered, backend, strlen(backend) + 1);
  if (taken)
    replace_name(slot->registered);
  er::Error result = er::register_backend({slot->registered, slot});
  if (result != er::Error::Ok)
    return tandem_fail(error, TANDEM_INTERNAL, "ExecuTorch refuses backend %s: %s", slot->registered,
                       er::to_string(result));
  slot->name = backend;
  return TANDEM_OK;
}

enum tandem_status register_one(const char *backend, struct tandem_error *error) {
  const Backend *slot = find_slot(backend);
  bool taken = slot ? !has_own_name(slot) : er::get_backend_class(backend) != nullptr;
  enum tandem_status status = slot ? TANDEM_OK : add(backend, taken, error);
  if (!taken)
    return status;
  return tandem_fail(
      error, TANDEM_INVALID_STATE,
      "another backend is registered as %s, so programs for it %s: load tandem before anything that brings "
      "ExecuTorch's own%s",
      backend,
      status == TANDEM_OK ? "share engines only when tandem's own interfaces load them"
                          : "do not share engines",
      python_runs()
          ? " (move \"import tandem\" before executorch.runtime)"
          : " (link tandem::executorch after ExecuTorch's libraries, or leave its backend's library out)");
}

} // namespace

void write_line(const char *format, ...) {
  char text[1536];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof(text) - 1, format, arguments);
  va_end(arguments);
  if (length < 0)
    return;
  size_t size =
      static_cast<size_t>(length) < sizeof(text) - 2 ? static_cast<size_t>(length) : sizeof(text) - 2;
  text[size++] = '\n';
  ssize_t written = write(STDERR_FILENO, text, size);
  (void)written; /* a process without stderr has nowhere to read it */
}

Door *current_door() {
  return door_of_thread;
}

void set_current_door(Door *door) {
  door_of_thread = door;
}

const char *registered_name(const char *backend) {
  std::lock_guard<std::mutex> lock(registration());
  const Backend *slot = find_slot(backend);
  return slot ? slot->registered : nullptr;
}

} // namespace tandem

namespace {

enum tandem_status register_all(struct tandem_error *error) {
  static bool warned;
  enum tandem_status status = TANDEM_OK;
  struct tandem_error first = {};
  try {
    std::lock_guard<std::mutex> lock(tandem::registration());
    for (size_t i = 0; i < tandem_vendor_count(); i++) {
      const char *backend = tandem_vendor_backend(i);
      struct tandem_error one = {};
      if (backend && tandem::register_one(backend, &one) != TANDEM_OK && status == TANDEM_OK) {
        status = one.code;
        first = one;
      }
    }
    if (status != TANDEM_OK && !warned) {
      warned = true;
      /* tandem's Python package sets it while it loads this library: it warns itself, as Python code does. */
      if (!getenv("TANDEM_REGISTER_SILENTLY"))
        tandem::write_line("tandem: warning: %s", first.message);
    }
  } catch (...) {
    return tandem_fail(error, TANDEM_INTERNAL, "the registry's lock failed");
  }
  if (error)
    *error = first;
  return status;
}

} // namespace

enum tandem_status tandem_executorch_register(struct tandem_error *error) {
  tandem::register_device_memory();
  return register_all(error);
}

bool tandem_executorch_active(const char *backend) {
  if (!backend)
    return false;
  try {
    std::lock_guard<std::mutex> lock(tandem::registration());
    const tandem::Backend *slot = tandem::find_slot(backend);
    return slot && tandem::has_own_name(slot);
  } catch (...) {
    return false;
  }
}

namespace {
/* Only inside Python is device memory offered unasked: device.cc tells why. */
[[maybe_unused]] const enum tandem_status registered =
    tandem::python_runs() ? tandem_executorch_register(nullptr) : register_all(nullptr);
} // namespace
