/* Runs: the caller's tensors are checked, brought to ExecuTorch's method, and its outputs to the caller.
 *
 * Every tensor is checked by name before ExecuTorch or a load sees it: type, rank, shape within its bounds,
 * layout, alignment and room, for both kinds of run. An error leaves the method usable.
 *
 * ExecuTorch keeps planned memory, on a host or a device, and a run through it copies: inputs into that
 * memory, outputs out of it, or it lends what lies there. Runs of one method take turns.
 *
 * A program may have a tensor in another order of its dimensions (channels last). Callers need not know: what
 * they give and get is contiguous and is put into the other order here, since ExecuTorch takes an input's
 * bytes for the program's order without a look. An input that lies in the program's order already is taken as
 * it is.
 */
#include "door.h"

#include <executorch/runtime/core/device_allocator.h>

#include <cstring>

namespace tandem {

namespace {

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

/* As PlanTensor has it. */
using Order = std::vector<uint8_t>;
const Order contiguous;

/* 0 beyond a dimension without extent, and beyond what fits. */
template <typename Stride>
void write_strides(const struct tandem_tensor &tensor, const Order &order, Stride *strides) {
  Stride stride = 1;
  for (size_t i = static_cast<size_t>(tensor.rank); i-- > 0;) {
    size_t d = order.empty() ? i : order[i];
    strides[d] = stride;
    if (__builtin_mul_overflow(stride, tensor.shape[d], &stride))
      stride = 0;
  }
}

bool lies_in(const Order &order, const struct tandem_tensor &tensor) {
  int64_t strides[TANDEM_MAX_RANK];
  bool same = true;
  if (!tensor.strides)
    return order.empty();
  if (tensor.rank < 0 || tensor.rank > TANDEM_MAX_RANK) /* of an output: what a caller left there */
    return false;
  write_strides(tensor, order, strides);
  for (int32_t d = 0; d < tensor.rank; d++) {
    if (tensor.shape[d] == 0)
      return true;
    same = same && (tensor.shape[d] == 1 || tensor.strides[d] == strides[d]);
  }
  return same;
}

template <size_t element>
void copy_elements(const int64_t *shape, int32_t rank, char *to, const int64_t *to_strides, const char *from,
                   const int64_t *from_strides) {
  for (int64_t i = 0; i < *shape; i++) {
    if (rank > 1)
      copy_elements<element>(shape + 1, rank - 1, to, to_strides + 1, from, from_strides + 1);
    else
      memcpy(to, from, element);
    to += static_cast<size_t>(*to_strides) * element;
    from += static_cast<size_t>(*from_strides) * element;
  }
}

/* Copies a tensor that has elements, and more than one dimension. */
void reorder(const struct tandem_tensor &tensor, void *to, const Order &to_order, const void *from,
             const Order &from_order) {
  int64_t to_strides[TANDEM_MAX_RANK];
  int64_t from_strides[TANDEM_MAX_RANK];
  write_strides(tensor, to_order, to_strides);
  write_strides(tensor, from_order, from_strides);
  auto copy = copy_elements<8>;
  switch (tandem_dtype_size(tensor.dtype)) {
  case 1:
    copy = copy_elements<1>;
    break;
  case 2:
    copy = copy_elements<2>;
    break;
  case 4:
    copy = copy_elements<4>;
    break;
  }
  copy(tensor.shape, tensor.rank, static_cast<char *>(to), to_strides, static_cast<const char *>(from),
       from_strides);
}

enum tandem_status check_input(const struct tandem_io &io, const Order &order,
                               const struct tandem_tensor &tensor, struct tandem_error *error) {
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
  if (!lies_in(contiguous, tensor) && !lies_in(order, tensor))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "input \"%s\" is not contiguous%s: copy it first",
                       io.name, order.empty() ? "" : ", nor laid out as the program has it");
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
er::Error set_input(er::Method *method, const PlanTensor &input, const struct tandem_tensor &tensor) {
  using executorch::aten::TensorImpl;
  static char nothing[16]; /* ExecuTorch wants an address for no elements too */
  TensorImpl::SizesType sizes[TANDEM_MAX_RANK] = {};
  TensorImpl::StridesType strides[TANDEM_MAX_RANK] = {};
  TensorImpl::DimOrderType order[TANDEM_MAX_RANK] = {};
  for (size_t d = 0; d < static_cast<size_t>(tensor.rank); d++) {
    sizes[d] = static_cast<TensorImpl::SizesType>(tensor.shape[d]);
    order[d] = input.order.empty() ? static_cast<TensorImpl::DimOrderType>(d) : input.order[d];
  }
  write_strides(tensor, input.order, strides);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const executorch::aten::Tensor &planned = method->get_input(input.position).toTensor();
#pragma GCC diagnostic pop
  bool on_device = !planned.device().is_cpu() && planned.const_data_ptr();
  void *data = tensor.data ? tensor.data : nothing;
  TensorImpl impl(static_cast<executorch::aten::ScalarType>(tensor.dtype), tensor.rank, sizes,
                  on_device ? nullptr : data, order, strides);
  er::Error code = method->set_input(er::EValue(executorch::aten::Tensor(&impl)), input.position);
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
    if ((tensor.device().is_cpu() && planned.order.empty()) || bytes == 0)
      return TANDEM_OK;
    /* What the caller borrows is contiguous host memory, wherever and however the program leaves it. */
    std::vector<uint8_t> &host = state->host_outputs[index];
    host.resize(bytes);
    out->data = host.data();
  }
  if (out->size < bytes || (bytes > 0 && !out->data))
    return fail_room(io, *out, real.shape, real.rank, bytes, error);
  if (bytes == 0)
    return TANDEM_OK;
  if (!tensor.device().is_cpu()) {
    OpenDoor open;
    er::Error code = copy_device(tensor.device(), out->data, tensor.const_data_ptr(), bytes);
    return code == er::Error::Ok ? TANDEM_OK
                                 : explain(open.door, code, to_status(code), "output", io.name, error);
  }
  if (planned.order.empty())
    memcpy(out->data, tensor.const_data_ptr(), bytes);
  else
    reorder(real, out->data, contiguous, tensor.const_data_ptr(), planned.order);
  return TANDEM_OK;
}

/* The later one of two outputs would be all that is left. */
enum tandem_status check_outputs(const MethodIo &io, const struct tandem_run_desc &run,
                                 struct tandem_error *error) {
  for (size_t i = 0; i < run.output_count; i++) {
    if (run.outputs[i].dtype != io.outputs[i].dtype)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "output \"%s\" is %s: expected %s",
                         io.outputs[i].name, tandem_dtype_name(run.outputs[i].dtype),
                         tandem_dtype_name(io.outputs[i].dtype));
    if (!lies_in(contiguous, run.outputs[i]))
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
    enum tandem_status status = check_input(io.inputs[i], plan.inputs[i].order, run->inputs[i], error);
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
    const Order &order = plan.inputs[i].order;
    struct tandem_tensor tensor = run->inputs[i];
    size_t bytes;
    if (!lies_in(order, tensor) && count_bytes(tensor, &bytes) && bytes > 0) {
      std::vector<uint8_t> &ordered = state->ordered_inputs[i];
      ordered.resize(bytes);
      reorder(tensor, ordered.data(), order, tensor.data, contiguous);
      tensor.data = ordered.data();
    }
    er::Error code = set_input(&*state->method, plan.inputs[i], tensor);
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

} // namespace

bool count_bytes(const struct tandem_tensor &tensor, size_t *bytes) {
  size_t count = tandem_dtype_size(tensor.dtype);
  bool fits = true;
  for (int32_t d = 0; d < tensor.rank; d++)
    fits = !__builtin_mul_overflow(count, static_cast<size_t>(tensor.shape[d]), &count) && fits;
  *bytes = count;
  return fits || count == 0;
}

bool overlap(const struct tandem_tensor &one, const struct tandem_tensor &other) {
  auto first = reinterpret_cast<uintptr_t>(one.data);
  auto second = reinterpret_cast<uintptr_t>(other.data);
  return first && second && first < second + other.size && second < first + one.size;
}

enum tandem_status fail_room(const struct tandem_io &io, const struct tandem_tensor &output,
                             const int64_t *shape, int32_t rank, size_t bytes, struct tandem_error *error) {
  return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                     "output \"%s\" has room for %zu bytes: its shape %s of %s needs %zu", io.name,
                     output.size, shape_text(shape, rank).c_str(), tandem_dtype_name(io.dtype), bytes);
}

} // namespace tandem

enum tandem_status tandem_method_run(struct tandem_method *method, const struct tandem_run_desc *run,
                                     struct tandem_error *error) {
  return tandem::guard(
      error, [&]() -> enum tandem_status {
        if (!method || !run || run->struct_size != sizeof(*run))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                             "method is NULL, or run->struct_size is %zu: expected %zu",
                             run ? run->struct_size : 0, sizeof(*run));
        if (run->done)
          *run->done = nullptr;
        if ((run->stream || run->return_early || run->done) && !method->direct)
          return tandem_fail(
              error, TANDEM_INVALID_ARGUMENT,
              "stream, return_early or done is set: method \"%s\" is not one delegate of tandem's alone, and "
              "ExecuTorch has no asynchronous execute",
              method->get_plan().name.c_str());
        return tandem::run_method(method, run, error);
      });
}

enum tandem_status tandem_method_reset(struct tandem_method *method, struct tandem_error *error) {
  return tandem::guard(
      error, [&]() -> enum tandem_status {
        if (!method)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "method is NULL");
        tandem::Turn lock(method->lock);
        if (lock.check("this method", error) != TANDEM_OK)
          return TANDEM_DEVICE_LOST;
        for (struct tandem_load *load : method->loads) {
          enum tandem_status status = tandem_load_reset(load, error);
          if (status != TANDEM_OK)
            return status;
        }
        return TANDEM_OK;
      });
}
