/* `tandem _constant LIBRARY PROGRAM REQUESTS`: what OpenVINO alone leaves behind when all of it was unloaded.
 *
 * OpenVINO keeps threads, allocator pools and its plug-in for the life of the process. To tell that constant
 * from a leak of tandem's, this imports the program's payload through OpenVINO's own C interface, runs it and
 * frees everything, with no code of tandem between, and measures what stays. ExecuTorch is used to find the
 * payload before the first measurement, and not after.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

int td_constant_command(int count, char **arguments) {
  enum { REQUESTS_MAX = 64 };
  struct td_openvino api = {0};
  struct tandem_program *program = NULL;
  struct tandem_error error = {0};
  void *core = NULL, *compiled = NULL, *requests[REQUESTS_MAX] = {NULL};
  int result = TD_EXIT_FAILED, code = 0;
  long request_count = count == 3 ? strtol(arguments[2], NULL, 10) : 0;
  if (request_count < 1 || request_count > REQUESTS_MAX) {
    td_complain("_constant: takes libopenvino_c's path, a .pte and how many requests (1 to %d)",
                REQUESTS_MAX);
    return TD_EXIT_USAGE;
  }
  const struct tandem_program_desc desc = {.struct_size = sizeof desc, .path = arguments[1]};
  const struct tandem_delegate *delegates = NULL;
  size_t delegate_count = 0;
  enum tandem_status status = tandem_program_create(&desc, &program, &error);
  if (status == TANDEM_OK)
    status = tandem_program_delegates(program, tandem_program_method_name(program, 0), &delegates,
                                      &delegate_count, &error);
  if (status == TANDEM_OK && (!delegate_count || !delegates[0].payload))
    status = td_refuse(&error, TANDEM_BAD_PROGRAM, "%s has no payload", arguments[1]);
  if (status != TANDEM_OK) {
    td_complain("_constant: %s", error.message);
    goto done;
  }

  int64_t base = td_memory_private();
  if (td_openvino_open(arguments[0], &api, &error) != TANDEM_OK) {
    td_complain("_constant: %s", error.message);
    goto done;
  }
  code = api.core_create(&core);
  if (code == 0)
    code = api.import_model(core, delegates[0].payload, delegates[0].payload_size, "CPU", &compiled);
  for (long i = 0; i < request_count && code == 0; i++) {
    code = api.create_request(compiled, &requests[i]);
    for (int k = 0; k < 2 && code == 0; k++)
      code = api.infer(requests[i]);
  }
  int64_t loaded = td_memory_private();
  if (code != 0) {
    td_complain("_constant: OpenVINO: status %d: %s", code, api.last_message());
    goto done;
  }
  for (long i = 0; i < request_count; i++) {
    api.request_free(requests[i]);
    requests[i] = NULL;
  }
  api.compiled_free(compiled);
  compiled = NULL;
  api.core_free(core);
  core = NULL;
  int64_t after = td_memory_private();
  printf("{\"loaded_bytes\": %lld, \"constant_bytes\": %lld}\n", (long long)(loaded - base),
         (long long)(after - base));
  result = td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;

done:
  for (long i = 0; i < request_count; i++)
    if (requests[i])
      api.request_free(requests[i]);
  if (compiled)
    api.compiled_free(compiled);
  if (core)
    api.core_free(core);
  tandem_program_destroy(program);
  return result;
}
