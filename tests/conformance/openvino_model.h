/* Models for tests of the OpenVINO vendor, made and run by OpenVINO itself through its C interface, so that
 * expected numbers owe nothing to tandem. */
#ifndef TANDEM_TESTS_OPENVINO_MODEL_H
#define TANDEM_TESTS_OPENVINO_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum openvino_kind {
  OPENVINO_MLP,      /* (rows, 8) -> (rows, 4): two matrix products and a bias between */
  OPENVINO_STATEFUL, /* (1, 8) -> (1, 8): 3 x the sum of all inputs since the request was made */
};

struct openvino_model {
  void *blob; /* owned: what CompiledModel.export_model writes, as ExecuTorch's payload has it */
  size_t blob_size;
  int64_t rows_min, rows_max;
  size_t columns, outputs_per_row;
  float last_weights[4]; /* as they lie in the blob */
  void *compiled;        /* owned: OpenVINO's own import of the blob */
};

/* Finds the library: TANDEM_OPENVINO_LIBRARY, else a pip package of Pythons near. False with a line on stderr
 * when there is none; then openvino_skip_status is what the test program exits with. */
bool openvino_start(void);
int openvino_skip_status(void);

/* `rows_min` < `rows_max` makes dimension 0 dynamic within these bounds. False with a line on stderr. */
bool openvino_model_init(struct openvino_model *model, enum openvino_kind kind, int64_t rows_min,
                         int64_t rows_max, unsigned seed);
/* The same blob but for one byte: the sign of the last weight. */
bool openvino_model_init_twin(struct openvino_model *twin, const struct openvino_model *model);
void openvino_model_fini(struct openvino_model *model);

/* The output of the last of `steps` inferences of a fresh request. False with a line on stderr. */
bool openvino_model_infer(const struct openvino_model *model, const float *const *inputs, size_t steps,
                          int64_t rows, float *output);

#endif
