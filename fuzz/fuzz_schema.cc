/* Fuzz target of what is read of programs' flatbuffers: whatever the bytes, they are refused with a reason,
 * or every plan lies in the file and says of itself what holds. */
#include "adapter.h"
#include "fuzz.h"

using tandem::Plan;

static void check_plan(const Plan &plan, uint64_t file_size) {
  require(!plan.name.empty(), "a method without a name");
  require(plan.inputs.size() + plan.constants.size() == plan.input_count, "inputs that do not add up");
  require(plan.outputs.size() <= plan.output_count, "outputs that do not add up");
  for (const std::vector<tandem::PlanTensor> *tensors : {&plan.inputs, &plan.outputs})
    for (const tandem::PlanTensor &tensor : *tensors) {
      require(tensor.sizes.size() <= TANDEM_MAX_RANK, "a rank out of bounds");
      for (int32_t size : tensor.sizes)
        require(size >= 0, "a negative size");
    }
  for (const tandem::PlanDelegate &delegate : plan.delegates) {
    require(!delegate.backend.empty(), "a delegate without a name");
    require(delegate.file_offset <= file_size && delegate.size <= file_size - delegate.file_offset,
            "a payload outside the file");
  }
  for (size_t index : plan.direct_inputs)
    require(index < plan.inputs.size(), "a direct input that is none");
  for (size_t index : plan.direct_outputs)
    require(index < plan.outputs.size(), "a direct output that is none");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  std::string why;
  std::vector<Plan> plans;
  tandem::Layout layout = {};
  uint8_t *exact = copy_bytes(bytes, size);
  bool good = tandem::read_layout(exact, size, size, &layout, &why);
  if (good) {
    /* The flatbuffer is all that is to be read, whatever follows it. */
    require(layout.program_size <= size, "a program that is longer than its file");
    uint8_t *program = copy_bytes(exact, static_cast<size_t>(layout.program_size));
    good = tandem::read_plans(program, layout, size, &plans, &why);
    free(program);
  }
  require(good || !why.empty(), "refused without a reason");
  for (const Plan &plan : plans)
    if (good)
      check_plan(plan, size);
  free(exact);
  return 0;
}
