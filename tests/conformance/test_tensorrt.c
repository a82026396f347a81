/* The TensorRT vendor under the conformance suite, over the stand-in libraries of one layout ("10", "11" or
 * "rtx", the first argument). Numbers are compared bit by bit with what the plan's layers give in double. */
#include "conformance.h"

#include "base.h"
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool expect(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output) {
  return standin_mlp_expect(user, inputs[steps - 1], rows, output);
}

static bool describe_model(struct conformance_model *model, const char *name, struct standin_mlp *mlp) {
  size_t plan_size;
  void *plan = standin_mlp_bytes(mlp, &plan_size);
  *model = (struct conformance_model){.name = name,
                                      .rank = 2,
                                      .shape = {mlp->rows_max, mlp->widths[0]},
                                      .rows_min = mlp->rows_min,
                                      .rows_max = mlp->rows_max,
                                      .outputs_per_row = (size_t)mlp->widths[mlp->layer_count],
                                      .expect = expect,
                                      .user = mlp};
  if (plan != NULL)
    model->payload = standin_payload_bytes(&(struct standin_payload){.plan = plan, .plan_size = plan_size},
                                           &model->payload_size);
  free(plan);
  return model->payload != NULL;
}

int main(int argc, char **argv) {
  const char *layout = argc > 1 ? argv[1] : "11", *file;
  if (strcmp(layout, "10") == 0)
    file = TANDEM_STANDIN_DIR "/10/libnvinfer.so.10";
  else if (strcmp(layout, "rtx") == 0)
    file = TANDEM_STANDIN_DIR "/rtx/libtensorrt_rtx.so.1";
  else
    file = TANDEM_STANDIN_DIR "/11/libnvinfer.so.11";
  /* Unless somebody names others: the stand-in TensorRT runs on a real driver, too. */
  setenv("TANDEM_CUDA_LIBRARY", TANDEM_STANDIN_DIR "/cuda/libcuda.so.1", 0);
  setenv("TANDEM_TENSORRT_LIBRARY", file, 0);
  static const int64_t widths[] = {8, 16, 4};
  struct standin_mlp mlps[] = {{.name = "plain",
                                .seed = 1,
                                .relu = true,
                                .layer_count = 2,
                                .widths = widths,
                                .rows_min = 4,
                                .rows_opt = 4,
                                .rows_max = 4,
                                .scratch_base = 512},
                               {.name = "plain",
                                .seed = 2,
                                .relu = true,
                                .layer_count = 2,
                                .widths = widths,
                                .rows_min = 4,
                                .rows_opt = 4,
                                .rows_max = 4,
                                .scratch_base = 512},
                               {.name = "dynamic",
                                .seed = 3,
                                .relu = true,
                                .layer_count = 2,
                                .widths = widths,
                                .rows_min = 1,
                                .rows_opt = 4,
                                .rows_max = 8,
                                .scratch_per_row = 1000,
                                .flags = STANDIN_PLAN_STREAMABLE}};
  struct conformance_model models[3];
  struct tandem_error error = {0};
  const struct tandem_vendor *vendor = NULL;
  if (td_vendor_find("tensorrt", &vendor, &error) != TANDEM_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  if (!describe_model(&models[0], "plain", &mlps[0]) || !describe_model(&models[1], "twin", &mlps[1]) ||
      !describe_model(&models[2], "dynamic", &mlps[2]))
    return 1;
  struct conformance conformance = {.vendor = vendor,
                                    .plain = &models[0],
                                    .twin = &models[1],
                                    .dynamic = &models[2],
                                    .bounds_known = true,
                                    .rounds = 20};
  int failed = conformance_run(&conformance);
  for (int i = 0; i < 3; i++)
    free((void *)(uintptr_t)models[i].payload);
  return failed ? 1 : 0;
}
