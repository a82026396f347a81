/* ExecuTorch's tables of kernels and backends, and the libraries beside it that fill them.
 *
 * What ExecuTorch ships beside its runtime is opened when a method needs something that is not registered, no
 * earlier: registering a kernel twice ends the process, and ExecuTorch's Python extension brings the same
 * files. Errors name what is still missing.
 *
 * The tables have no lock of their own. Opening a library, whose initializers write to them, and every look
 * into them from here is under `libraries()`.
 */
#include "door.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cctype>
#include <climits>
#include <cstdio>

namespace tandem {

namespace {

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

enum tandem_status need_kernels(const Plan &plan, struct tandem_error *error) {
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

enum tandem_status need_backends(const Plan &plan, struct tandem_error *error) {
  for (const PlanDelegate &delegate : plan.delegates) {
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

} // namespace

enum tandem_status open_libraries(const Plan &plan, struct tandem_error *error) {
  Turn lock(libraries());
  enum tandem_status status = lock.check("ExecuTorch's tables", error);
  if (status == TANDEM_OK)
    status = need_backends(plan, error);
  if (status == TANDEM_OK)
    status = need_kernels(plan, error);
  return status;
}

} // namespace tandem

const char *tandem_executorch_version(void) {
  try {
    return tandem::place().version.c_str();
  } catch (...) {
    return TANDEM_EXECUTORCH_BUILT;
  }
}

const char *tandem_executorch_path(void) {
  try {
    return tandem::place().path.c_str();
  } catch (...) {
    return "";
  }
}

const char *tandem_executorch_backend(size_t index) {
  tandem::NoCancel no_cancel;
  tandem::Turn lock(tandem::libraries());
  if (index >= tandem::er::get_num_registered_backends())
    return nullptr;
  auto name = tandem::er::get_backend_name(index);
  return name.ok() ? *name : nullptr;
}

const char *tandem_executorch_operator(size_t index) {
  tandem::NoCancel no_cancel;
  tandem::Turn lock(tandem::libraries());
  auto kernels = tandem::er::get_registered_kernels();
  return index < kernels.size() ? kernels[index].name_ : nullptr;
}
