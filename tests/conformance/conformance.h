/* What every vendor passes: the promises of tandem/vendor.h and of the pool, through tandem's public calls.
 *
 * A vendor describes itself and brings four models. Each has one float32 input and one float32 output; the
 * expected numbers come from the vendor's own library, never from tandem. conformance_run is a cmocka group;
 * its result is the program's exit status.
 */
#ifndef TANDEM_TESTS_CONFORMANCE_H
#define TANDEM_TESTS_CONFORMANCE_H

#include <tandem/vendor.h>

enum { CONFORMANCE_FLOATS_MAX = 4096, CONFORMANCE_STEPS_MAX = 8 };

struct conformance_model {
  const char *name;
  const void *payload; /* borrowed while the suite runs; the suite gives copies of it to tandem */
  size_t payload_size;
  const struct tandem_named_data *named_data; /* borrowed; NULL: the payload needs none */
  int32_t rank;
  int64_t shape[TANDEM_MAX_RANK]; /* of the input; the suite varies dimension 0 of a dynamic model */
  int64_t rows_min, rows_max;     /* of dimension 0; equal to shape[0] when the model is not dynamic */
  size_t outputs_per_row;         /* floats of the output for one index of dimension 0 */
  /* Writes what the last of `steps` runs of a fresh context gives: inputs[i] is the i-th run's input, `rows`
   * the size of dimension 0. False: the vendor's library failed; it has printed why. */
  bool (*expect)(void *user, const float *const *inputs, size_t steps, int64_t rows, float *output);
  void *user;
};

struct conformance {
  const struct tandem_vendor *vendor;
  const struct conformance_model *plain;
  const struct conformance_model *twin; /* as plain, but one byte of the engine differs: wherever it lies */
  const struct conformance_model *dynamic;  /* dimension 0 from rows_min to rows_max */
  const struct conformance_model *stateful; /* NULL: engines of this vendor keep no state */
  bool bounds_known;                        /* the vendor knows rows_max, so tandem can refuse more rows */
  bool tensors_unknown; /* nor dtypes and shapes: which of them run is for the engine to say */
  unsigned rounds;      /* of the racing tests; fewer for vendors whose builds take long */
};

int conformance_run(const struct conformance *conformance);

#endif
