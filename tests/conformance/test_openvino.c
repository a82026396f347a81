/* The OpenVINO vendor under the conformance suite, with real blobs of the library that is found here. Numbers
 * are compared bit by bit with OpenVINO's own inference of the same blob. */
#include "conformance.h"

#include "base.h"
#include "openvino_model.h"

#include <stdio.h>

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  return openvino_model_infer(user, inputs, steps, rows, output);
}

static struct conformance_model describe_model(const char *name, struct openvino_model *model) {
  return (struct conformance_model){.name = name,
                                    .payload = model->blob,
                                    .payload_size = model->blob_size,
                                    .rank = 2,
                                    .shape = {model->rows_max, (int64_t)model->columns},
                                    .rows_min = model->rows_min,
                                    .rows_max = model->rows_max,
                                    .outputs_per_row = model->outputs_per_row,
                                    .expect = expect,
                                    .user = model};
}

int main(void) {
  struct openvino_model models[4];
  struct tandem_error error = {0};
  const struct tandem_vendor *vendor = NULL;
  if (!openvino_start())
    return openvino_skip_status();
  if (td_vendor_find("openvino", &vendor, &error) != TANDEM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  if (!openvino_model_init(&models[0], OPENVINO_MLP, 2, 2, 1) ||
      !openvino_model_init_twin(&models[1], &models[0]) ||
      !openvino_model_init(&models[2], OPENVINO_MLP, 1, 8, 2) ||
      !openvino_model_init(&models[3], OPENVINO_STATEFUL, 1, 1, 0))
    return 1;
  struct conformance_model described[] = {
      describe_model("plain", &models[0]), describe_model("twin", &models[1]),
      describe_model("dynamic", &models[2]), describe_model("stateful", &models[3])};
  struct conformance conformance = {.vendor = vendor,
                                    .plain = &described[0],
                                    .twin = &described[1],
                                    .dynamic = &described[2],
                                    .stateful = &described[3],
                                    .bounds_known = true,
                                    .rounds = 10};
  int failed = conformance_run(&conformance);
  for (int i = 0; i < 4; i++)
    openvino_model_fini(&models[i]);
  return failed ? 1 : 0;
}
