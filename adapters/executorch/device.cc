/* Device memory for programs that plan some: what ExecuTorch's wheel lacks to run CudaBackend programs.
 *
 * Its runtime plans memory on a device and its kernels et_copy::_h2d_copy and _d2h_copy bring tensors there
 * and back, all through the allocator that is registered for the device's type. The wheel brings none for
 * CUDA; this is one, over the driver's interface, opened when a program first needs it.
 *
 * ExecuTorch ends the process when a second allocator is registered for a type, and another library may bring
 * its own later. So this one is registered where it is needed and none is there: by the C door's first
 * program with device memory, by tandem_executorch_register when a host asks, and with the library inside a
 * Python process, whose stock extension has none and plans memory before it loads delegates.
 *
 * Memory is of the device's primary context, which engines of CudaBackend run in. Each allocation keeps that
 * context, each copy waits for itself on a stream of the thread's own, and the thread's current context and
 * capture mode are as before. A forked child gets none of it: CUDA does not live on there.
 */
#include "adapter.h"

#include <executorch/runtime/core/device_allocator.h>

#include <dlfcn.h>
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

namespace {

/* CUresult is int, handles are void *, addresses uint64_t. */
#define DRIVER_ENTRIES(F)                                                                                    \
  F(init, cuInit, (unsigned flags))                                                                          \
  F(device_get, cuDeviceGet, (int *device, int ordinal))                                                     \
  F(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                                  \
  F(primary_release, cuDevicePrimaryCtxRelease_v2, (int device))                                             \
  F(context_push, cuCtxPushCurrent_v2, (void *context))                                                      \
  F(context_pop, cuCtxPopCurrent_v2, (void **context))                                                       \
  F(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                            \
  F(allocate, cuMemAlloc_v2, (uint64_t * address, size_t size))                                              \
  F(release, cuMemFree_v2, (uint64_t address))                                                               \
  F(copy, cuMemcpyAsync, (uint64_t to, uint64_t from, size_t size, void *stream))                            \
  F(stream_wait, cuStreamSynchronize, (void *stream))

struct Driver {
#define DRIVER_MEMBER(member, symbol, parameters) int(*member) parameters;
  DRIVER_ENTRIES(DRIVER_MEMBER)
#undef DRIVER_MEMBER
};

constexpr int out_of_memory = 2;
constexpr int relaxed = 2;
void *const stream_per_thread = reinterpret_cast<void *>(2);

/* Hands the sentence up as a delegate's failure does. */
er::Error complain(er::Error code, enum tandem_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
er::Error complain(er::Error code, enum tandem_status status, const char *format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  Door *door = current_door();
  if (!door) {
    write_line("tandem: %s", text);
  } else if (!door->failed) {
    door->failed = true;
    tandem_fail(&door->error, status, "%s", text);
  }
  return code;
}

std::atomic<long> driver_process; /* that opens the driver or has opened it; 0: none */

/* Asked before any lock: another thread of the parent may have held one at the fork. */
bool is_inherited() {
  long process = driver_process;
  return process != 0 && process != static_cast<long>(getpid());
}

/* A failure is not remembered: the driver may be there the next time. `inherited`: the error in a child. */
const Driver *open_driver(enum tandem_status inherited) {
  static std::mutex mutex;
  static Driver driver;
  static bool opened;
  if (is_inherited()) {
    complain(
        er::Error::NotSupported, inherited,
        "CUDA was started by process %ld and does not work in process %ld, which was forked from it; load "
        "after the fork, or start workers with exec (Python: spawn)",
        driver_process.load(), static_cast<long>(getpid()));
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (opened)
    return &driver;
  driver_process = static_cast<long>(getpid());
  const char *name = getenv("TANDEM_CUDA_LIBRARY");
  if (!name || !*name)
    name = "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  const char *missing = nullptr;
  if (!library) {
    const char *reason = dlerror();
    complain(er::Error::NotSupported, TANDEM_UNAVAILABLE,
             "the program plans memory on a CUDA device and there is no CUDA driver: %s (install NVIDIA's "
             "driver, or name its library in TANDEM_CUDA_LIBRARY)",
             reason ? reason : name);
    driver_process = 0;
    return nullptr;
  }
  Driver found = {};
#define DRIVER_FIND(member, symbol, parameters)                                                              \
  found.member = reinterpret_cast<int(*) parameters>(dlsym(library, #symbol));                               \
  if (!found.member)                                                                                         \
    missing = #symbol;
  DRIVER_ENTRIES(DRIVER_FIND)
#undef DRIVER_FIND
  int code = missing ? 0 : found.init(0);
  if (missing || code) {
    complain(er::Error::NotSupported, TANDEM_UNAVAILABLE,
             "the program plans memory on a CUDA device and the driver %s %s (%s %d)", name,
             missing ? "is too old" : "does not start", missing ? missing : "error", code);
    driver_process = 0;
    return nullptr;
  }
  driver = found;
  opened = true;
  return &driver;
}

/* The device's primary context, kept and current while it lives. */
class Entered {
public:
  Entered(const Driver *driver, int index) : driver_(driver) {
    void *context = nullptr;
    code = driver->device_get(&device_, index);
    if (code == 0)
      code = driver->primary_retain(&context, device_);
    if (code != 0)
      return;
    code = driver->context_push(context);
    if (code != 0) {
      driver->primary_release(device_);
      return;
    }
    inside_ = true;
    mode_ = relaxed;
    driver->capture_mode(&mode_);
  }
  ~Entered() {
    void *popped;
    if (!inside_)
      return;
    driver_->capture_mode(&mode_);
    driver_->context_pop(&popped);
    if (!keep)
      driver_->primary_release(device_);
  }
  Entered(const Entered &) = delete;
  Entered &operator=(const Entered &) = delete;
  /* Takes back a `keep` of an earlier one. */
  void forget() {
    driver_->primary_release(device_);
  }
  int code;
  bool keep = false; /* the context stays retained */

private:
  const Driver *driver_;
  int device_ = 0;
  int mode_ = relaxed;
  bool inside_ = false;
};

class CudaMemory final : public er::DeviceAllocator {
public:
  er::Result<void *> allocate(size_t nbytes, er::etensor::DeviceIndex index, size_t) override {
    const Driver *driver = open_driver(TANDEM_UNAVAILABLE);
    if (!driver)
      return er::Error::NotSupported;
    Entered entered(driver, index);
    uint64_t address = 0;
    int code = entered.code ? entered.code : driver->allocate(&address, nbytes > 0 ? nbytes : 1);
    if (code == out_of_memory)
      return complain(er::Error::MemoryAllocationFailed, TANDEM_OUT_OF_MEMORY,
                      "cuda:%d has no room for the %zu bytes that the program plans there", index, nbytes);
    if (code)
      return complain(er::Error::AccessFailed, TANDEM_DEVICE_ERROR,
                      "cannot allocate the %zu bytes that the program plans on cuda:%d: CUDA error %d%s",
                      nbytes, index, code, code == 101 ? ", there is no such device" : "");
    entered.keep = true;
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address));
  }

  void deallocate(void *ptr, er::etensor::DeviceIndex index) override {
    const Driver *driver = ptr && !is_inherited() ? open_driver(TANDEM_DEVICE_LOST) : nullptr;
    if (!driver)
      return;
    Entered entered(driver, index);
    if (entered.code)
      return; /* the device is lost, and its memory with it */
    driver->release(static_cast<uint64_t>(reinterpret_cast<uintptr_t>(ptr)));
    entered.forget();
  }

  er::Error copy_host_to_device(void *dst, const void *src, size_t nbytes,
                                er::etensor::DeviceIndex index) override {
    return copy(dst, src, nbytes, index, "to");
  }

  er::Error copy_device_to_host(void *dst, const void *src, size_t nbytes,
                                er::etensor::DeviceIndex index) override {
    return copy(dst, src, nbytes, index, "from");
  }

  er::etensor::DeviceType device_type() const override {
    return er::etensor::DeviceType::CUDA;
  }

private:
  /* What either pointer is comes from the driver. */
  er::Error copy(void *dst, const void *src, size_t nbytes, int index, const char *way) {
    const Driver *driver = open_driver(TANDEM_DEVICE_LOST);
    if (!driver)
      return er::Error::NotSupported;
    if (nbytes == 0)
      return er::Error::Ok;
    Entered entered(driver, index);
    int code = entered.code;
    if (!code)
      code = driver->copy(reinterpret_cast<uintptr_t>(dst), reinterpret_cast<uintptr_t>(src), nbytes,
                          stream_per_thread);
    if (!entered.code) {
      int waited = driver->stream_wait(stream_per_thread);
      code = code ? code : waited;
    }
    if (code)
      return complain(er::Error::AccessFailed, TANDEM_DEVICE_ERROR,
                      "cannot copy %zu bytes %s cuda:%d: CUDA error %d", nbytes, way, index, code);
    return er::Error::Ok;
  }
};

} // namespace

void register_device_memory() {
  static std::mutex mutex;
  static auto *memory = new (std::nothrow) CudaMemory; /* never destroyed: programs may outlive main */
  std::lock_guard<std::mutex> lock(mutex);
  if (memory && !er::get_device_allocator(er::etensor::DeviceType::CUDA))
    er::register_device_allocator(memory);
}

} // namespace tandem
