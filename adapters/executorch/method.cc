/* Methods: memory, options and inputs that are no tensors are ready before a method's first run.
 *
 * What a method needs is checked in the order in which it costs: tensors and data files, backends, kernels,
 * options, memory, then the load itself, which builds engines. Each failure names what is missing and to
 * whom. Whatever ExecuTorch's method points into lives as long as it does, in one MethodState.
 */
#include "door.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

namespace tandem {

namespace {

constexpr size_t planned_alignment = 64; /* a cache line; ExecuTorch asks for 16 */

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
  register_device_memory();
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

/* Engines take and give contiguous tensors. A delegate refuses others when it runs; where it is all that the
 * method is, or copies to its device are what is left, they are refused here. */
enum tandem_status check_tensors(const MethodState &state, struct tandem_error *error) {
  const Plan &plan = state.get_plan();
  const MethodIo &io = state.get_io();
  bool engine_alone = !plan.direct_outputs.empty() && registered_name(plan.delegates[0].backend.c_str());
  for (size_t i = 0; i < plan.inputs.size() + plan.outputs.size(); i++) {
    bool input = i < plan.inputs.size();
    const PlanTensor &tensor = input ? plan.inputs[i] : plan.outputs[i - plan.inputs.size()];
    const struct tandem_io &facts = input ? io.inputs[i] : io.outputs[i - plan.inputs.size()];
    if (tandem_dtype_size(tensor.dtype) == 0)
      return tandem_fail(error, TANDEM_UNSUPPORTED,
                         "method \"%s\": %s \"%s\" has the element type %d, unknown to tandem",
                         plan.name.c_str(), input ? "input" : "output", facts.name, tensor.dtype);
    if (!tensor.order.empty() && (engine_alone || tensor.on_device))
      return tandem_fail(error, TANDEM_UNSUPPORTED,
                         "method \"%s\": %s \"%s\" is not laid out with its last dimension fastest, and an "
                         "engine would get it: export it in contiguous format",
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
  for (const PlanDelegate &delegate : plan.delegates) {
    const char *name = delegate.registered.c_str();
    std::vector<er::BackendOption> &list =
        registered_name(delegate.backend.c_str()) ? state->text_options : state->typed_options;
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
    status = open_libraries(plan, error);
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
  state->ordered_inputs.resize(plan.inputs.size());
  state->host_outputs.resize(plan.outputs.size());
  status = place_outputs(state, *meta, error);
  if (status == TANDEM_OK)
    status = set_constants(state, error);
  if (status == TANDEM_OK)
    prepare_direct(state);
  return status;
}

} // namespace

} // namespace tandem

enum tandem_status tandem_method_create(struct tandem_program *program, const char *name,
                                        const struct tandem_option *options, size_t option_count,
                                        struct tandem_method **method, struct tandem_error *error) {
  return tandem::guard(
      error, [&]() -> enum tandem_status {
        if (!method)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "method is NULL");
        *method = nullptr;
        if (!program || !name || (option_count && !options))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program, name or options is NULL");
        auto created = std::make_unique<struct tandem_method>();
        enum tandem_status status =
            tandem::create_method(program->state, name, options, option_count, created.get(), error);
        if (status == TANDEM_OK)
          *method = created.release();
        return status;
      });
}

void tandem_method_destroy(struct tandem_method *method) {
  tandem::NoCancel no_cancel;
  delete method;
}

bool tandem_method_direct(const struct tandem_method *method) {
  return method && method->direct;
}

struct tandem_load *tandem_method_load(struct tandem_method *method, size_t index) {
  return method && index < method->loads.size() ? method->loads[index] : nullptr;
}
