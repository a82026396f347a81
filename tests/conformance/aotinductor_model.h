/* Models for tests of the AOTInductor vendor, compiled by tests/aotinductor/make_models.py and run here
 * through libraries that torch itself linked, so that expected numbers owe nothing to tandem. */
#ifndef TANDEM_TESTS_AOTINDUCTOR_MODEL_H
#define TANDEM_TESTS_AOTINDUCTOR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct aotinductor_model {
  void *payload; /* owned */
  size_t payload_size;
  size_t columns, outputs_per_row;
  void *library; /* torch's own; NULL: none was asked for */
  void *weights; /* owned: of the library */
};

/* Has the models compiled, which takes minutes the first time, and opens torch: TANDEM_TEST_PYTHON names the
 * Python that has it, or TANDEM_AOTINDUCTOR_MODELS a folder that the script made. TANDEM_TORCH_LIBRARY is set
 * to that torch. False with a line on stderr when there is none; then aotinductor_skip_status is what the
 * test program exits with. */
bool aotinductor_start(void);
int aotinductor_skip_status(void);
/* A file of the models' folder: static storage. */
const char *aotinductor_path(const char *name);

/* Reads NAME.payload, and with `reference` NAME.so and NAME.blob. False with a line on stderr. */
bool aotinductor_model_init(struct aotinductor_model *model, const char *name, size_t columns,
                            size_t outputs_per_row, bool reference);
/* The same model but for one byte: a bit of the first weight. */
bool aotinductor_model_init_twin(struct aotinductor_model *twin, const char *name, size_t columns,
                                 size_t outputs_per_row);
void aotinductor_model_fini(struct aotinductor_model *model);

/* The output of the last of `steps` runs of a fresh container. False with a line on stderr. */
bool aotinductor_model_infer(const struct aotinductor_model *model, const float *const *inputs, size_t steps,
                             int64_t rows, float *output);

#endif
