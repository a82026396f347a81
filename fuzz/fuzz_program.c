/* Fuzz target of the C door's reader of programs, with ExecuTorch behind it: whatever the bytes, they are
 * refused in one line, or all that can be asked of a program without loading a method has an answer in them.
 */
#include "fuzz.h"

#include <tandem/program.h>

static void check_io(const struct tandem_io *ios, size_t count) {
  for (size_t i = 0; i < count; i++) {
    require(ios[i].name != NULL && ios[i].rank >= 0 && ios[i].rank <= TANDEM_MAX_RANK, "a bad rank");
    for (int32_t d = 0; d < ios[i].rank; d++)
      require(ios[i].min[d] >= 0 && ios[i].max[d] >= ios[i].min[d], "a bad dimension");
  }
}

static void ask(struct tandem_program *program, const char *method) {
  struct tandem_error error = {0};
  const struct tandem_delegate *delegates;
  const struct tandem_constant *constants;
  const struct tandem_io *inputs, *outputs;
  size_t count, input_count, output_count;
  require(method[0] != '\0', "a method without a name");
  if (tandem_program_method_io(program, method, &inputs, &input_count, &outputs, &output_count, &error) ==
      TANDEM_OK) {
    check_io(inputs, input_count);
    check_io(outputs, output_count);
  } else {
    require_line(error.message);
  }
  if (tandem_program_method_constants(program, method, &constants, &count, &error) != TANDEM_OK)
    require_line(error.message);
  if (tandem_program_delegates(program, method, &delegates, &count, &error) != TANDEM_OK) {
    require_line(error.message);
    return;
  }
  for (size_t i = 0; i < count; i++)
    if (delegates[i].payload)
      free(copy_bytes(delegates[i].payload, delegates[i].payload_size));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct tandem_program *program = NULL;
  uint8_t *exact = copy_bytes(bytes, size);
  struct tandem_program_desc desc = {.struct_size = sizeof desc, .bytes = exact, .size = size};
  enum tandem_status status = tandem_program_create(&desc, &program, &error);
  if (status != TANDEM_OK) {
    require(program == NULL && error.code == status, "something left of a failure");
    require_line(error.message);
  }
  for (size_t i = 0; i < tandem_program_method_count(program); i++)
    ask(program, tandem_program_method_name(program, i));
  tandem_program_destroy(program);
  free(exact);
  return 0;
}
