/* Fuzz target of the C door's reader of programs, with ExecuTorch behind it: whatever the bytes, they are
 * refused in one line, or all that can be asked of a program has an answer in them, and each method of
 * tandem's backends loads or is refused in one line. Nothing is run: ExecuTorch's kernels may end the process
 * of an unsound program. */
#include "fuzz.h"

#include <tandem/program.h>

#include <demo_vendor.h>

/* A hostile program may ask for any size: the allocator's answer is NULL. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=2048";
}

static void drop_line(void *user, enum tandem_log_level level, const char *line) {
  (void)user, (void)level, (void)line;
}

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
  bool own = true; /* other backends trust their payloads: XNNPACK's reader follows what it finds there */
  for (size_t i = 0; i < count; i++) {
    own = own && tandem_executorch_active(delegates[i].backend);
    if (delegates[i].payload)
      free(copy_bytes(delegates[i].payload, delegates[i].payload_size));
  }
  struct tandem_method *loaded = NULL;
  if (own && tandem_method_create(program, method, NULL, 0, &loaded, &error) != TANDEM_OK) {
    require(loaded == NULL, "something left of a failed load");
    require_line(error.message);
  }
  tandem_method_destroy(loaded);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static bool ready;
  struct tandem_error error = {0};
  struct tandem_program *program = NULL;
  if (!ready) {
    ready = tandem_vendor_register(&demo_vendor, &error) == TANDEM_OK &&
            tandem_executorch_register(&error) == TANDEM_OK;
    require(ready, error.message);
    tandem_set_log_sink(drop_line, NULL);
  }
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
