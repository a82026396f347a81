/* Runs past ExecuTorch: a method that is one delegate of tandem's and nothing else is a run of its load.
 *
 * The load gets the caller's tensors themselves: that is what lets such a method take device memory and a
 * stream, and saves a copy of each tensor. What is checked, and what a caller sees, is the same as through
 * ExecuTorch. The load counts its tensors in the payload's order; the caller has the method's.
 */
#include "door.h"

#include <cstring>

namespace tandem {

namespace {

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
  return fail_room(io, tensor, real.shape, real.rank, bytes, error);
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

} // namespace

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
  for (size_t i = 0; i < plan.direct_outputs.size(); i++) {
    state->load_outputs[i] = run->outputs[plan.direct_outputs[i]];
    if (!state->load_outputs[i].data) /* of one that was borrowed before, the size is still there */
      state->load_outputs[i].size = 0;
  }
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

} // namespace tandem
