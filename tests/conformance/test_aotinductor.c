/* The AOTInductor vendor under the conformance suite, on the CPU, with models that the torch found here has
 * compiled. Numbers are compared bit by bit with the same models as torch itself links them. */
#include "conformance.h"

#include "aotinductor_model.h"
#include "base.h"

#include <stdio.h>

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  return aotinductor_model_infer(user, inputs, steps, rows, output);
}

static struct conformance_model describe_model(const char *name, struct aotinductor_model *model,
                                               int64_t rows_min, int64_t rows_max) {
  return (struct conformance_model){.name = name,
                                    .payload = model->payload,
                                    .payload_size = model->payload_size,
                                    .rank = 2,
                                    .shape = {rows_max, (int64_t)model->columns},
                                    .rows_min = rows_min,
                                    .rows_max = rows_max,
                                    .outputs_per_row = model->outputs_per_row,
                                    .expect = expect,
                                    .user = model};
}

int main(void) {
  struct aotinductor_model models[4];
  struct tandem_error error = {0};
  const struct tandem_vendor *vendor = NULL;
  if (!aotinductor_start())
    return aotinductor_skip_status();
  if (td_vendor_find("aotinductor", &vendor, &error) != TANDEM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  if (!aotinductor_model_init(&models[0], "plain", 8, 4, true) ||
      !aotinductor_model_init_twin(&models[1], "plain", 8, 4) ||
      !aotinductor_model_init(&models[2], "dynamic", 8, 4, true) ||
      !aotinductor_model_init(&models[3], "stateful", 16, 16, true))
    return 1;
  struct conformance_model described[] = {
      describe_model("plain", &models[0], 2, 2), describe_model("twin", &models[1], 2, 2),
      describe_model("dynamic", &models[2], 1, 8), describe_model("stateful", &models[3], 1, 1)};
  struct conformance conformance = {.vendor = vendor,
                                    .plain = &described[0],
                                    .twin = &described[1],
                                    .dynamic = &described[2],
                                    .stateful = &described[3],
                                    .bounds_known = true,
                                    .rounds = 10};
  int failed = conformance_run(&conformance);
  for (int i = 0; i < 4; i++)
    aotinductor_model_fini(&models[i]);
  return failed ? 1 : 0;
}
