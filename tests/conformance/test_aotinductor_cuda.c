/* The AOTInductor vendor under the conformance suite on CUDA, over the stand-in driver and engines:
 * CudaBackend's programs, whose engines lie in named data, on the stand-in shims; with the argument "torch"
 * tandem's own programs, on the stand-in libtorch. Numbers are compared bit by bit with what the programs'
 * values give in double. */
#include "conformance.h"

#include "aoti.h"
#include "base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN, TWIN, DYNAMIC, STATEFUL, MODELS };

static struct standin_program programs[MODELS];

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  standin_program_expect(user, inputs, steps, rows, output);
  return true;
}

static struct conformance_model describe_model(const char *name, struct standin_program *program) {
  bool dynamic = program->engine == STANDIN_ROWS;
  return (struct conformance_model){.name = name,
                                    .rank = 2,
                                    .shape = {program->rows, STANDIN_COLUMNS},
                                    .rows_min = dynamic ? 1 : program->rows,
                                    .rows_max = program->rows,
                                    .outputs_per_row = STANDIN_OUTPUTS,
                                    .expect = expect,
                                    .user = program};
}

/* Of CudaBackend: nothing but the program's own text tells its tensors, and twins differ in their data alone.
 */
static int run(const char *backend, bool own) {
  static const char *const names[MODELS] = {"plain", "twin", "dynamic", "stateful"};
  struct conformance_model models[MODELS];
  struct tandem_named_data sources[MODELS];
  struct tandem_error error = {0};
  const struct tandem_vendor *vendor = NULL;
  if (td_vendor_find(backend, &vendor, &error) != TANDEM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  for (int i = 0; i < MODELS; i++) {
    models[i] = describe_model(names[i], &programs[i]);
    sources[i] = standin_named_data(&programs[i].named);
    models[i].payload = programs[i].payload.data;
    models[i].payload_size = programs[i].payload.size;
    models[i].named_data = own ? NULL : &sources[i];
    if (own && !(models[i].payload = standin_program_own_payload(&programs[i], &models[i].payload_size)))
      return 1;
  }
  struct conformance conformance = {.vendor = vendor,
                                    .plain = &models[PLAIN],
                                    .twin = &models[TWIN],
                                    .dynamic = &models[DYNAMIC],
                                    .stateful = &models[STATEFUL],
                                    .bounds_known = own,
                                    .tensors_unknown = !own,
                                    .rounds = 10};
  int failed = conformance_run(&conformance);
  for (int i = 0; i < MODELS; i++) {
    if (own)
      free((void *)(uintptr_t)models[i].payload);
    if (programs[i].named.held != 0) {
      fprintf(stderr, "%s: %d copies of named data of %s were not given back\n", backend,
              programs[i].named.held, names[i]);
      failed++;
    }
  }
  return failed;
}

int main(int argc, char **argv) {
  bool torch = argc > 1 && strcmp(argv[1], "torch") == 0;
  const struct standin_cuda *cuda;
  const struct standin_shims *shims;
  if (!standin_aoti_start(torch, &cuda, &shims) ||
      !standin_program_init(&programs[PLAIN], STANDIN_PLAIN, 1) ||
      !standin_program_init(&programs[TWIN], STANDIN_PLAIN, 1) ||
      !standin_program_init(&programs[DYNAMIC], STANDIN_ROWS, 2) ||
      !standin_program_init(&programs[STATEFUL], STANDIN_STATE, 3))
    return 1;
  programs[TWIN].weight[0] = -programs[TWIN].weight[0];
  int failed = torch ? run("TandemAotiBackend", true) : run("CudaBackend", false);
  failed += standin_aoti_left(cuda, shims) != 0;
  for (int i = 0; i < MODELS; i++)
    standin_program_fini(&programs[i]);
  return failed ? 1 : 0;
}
