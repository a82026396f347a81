/* The parser of tandem's own AOTInductor payload: what it takes, what it refuses, and with which words; and
 * where either payload tells the sum of its library. CudaBackend's: tests/cuda/test_cuda_payload.c. */
#include "aotinductor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const struct tandem_host td_host;

/* Where the fields of the header lie, and where a payload has its parts unless a test moves them. */
enum {
  METADATA = 8,
  LIBRARY = 16,
  WEIGHTS = 32,
  RESERVED = 48,
  HEADER = 64,
  SO_SIZE = 16,
  WEIGHTS_SIZE = 32
};

static const char usual[] = "{\"torch\": \"2.13.0\", \"machine\": \"x86_64\", \"features\": \"avx2 fma\", "
                            "\"device\": \"cpu\", \"inputs\": "
                            "[{\"name\": \"x\", \"dtype\": \"bfloat16\", \"shape\": [[1, 16], 8, [0, "
                            "null]]}], \"outputs\": [{\"name\": "
                            "\"y\", \"dtype\": \"int64\", \"shape\": []}], \"mutable\": [\"keys\", "
                            "\"values\"], \"more\": {\"a\": 1}}";

struct sample {
  unsigned char *bytes;
  size_t size;
};

static void put(unsigned char *at, unsigned bytes, uint64_t number) {
  for (unsigned i = 0; i < bytes; i++)
    at[i] = (unsigned char)(number >> 8 * i);
}

static struct sample make(const char *metadata) {
  size_t length = strlen(metadata), so = HEADER + length, weights = (so + SO_SIZE + 255) / 256 * 256;
  struct sample sample = {.size = weights + WEIGHTS_SIZE};
  sample.bytes = calloc(1, sample.size);
  assert_non_null(sample.bytes);
  memcpy(sample.bytes, "TDAOTI01", 8);
  put(sample.bytes + METADATA, 4, HEADER);
  put(sample.bytes + METADATA + 4, 4, length);
  put(sample.bytes + LIBRARY, 8, so);
  put(sample.bytes + LIBRARY + 8, 8, SO_SIZE);
  put(sample.bytes + WEIGHTS, 8, weights);
  put(sample.bytes + WEIGHTS + 8, 8, WEIGHTS_SIZE);
  memcpy(sample.bytes + HEADER, metadata, length);
  return sample;
}

static enum tandem_status parse(const struct sample *sample, struct tandem_payload *payload,
                                struct tandem_error *error) {
  *error = (struct tandem_error){0};
  return td_aoti_parse(&td_host, sample->bytes, sample->size, NULL, payload, error);
}

static void assert_refused(const struct sample *sample, enum tandem_status status, const char *words) {
  struct tandem_payload payload;
  struct tandem_error error;
  assert_int_equal(parse(sample, &payload, &error), status);
  assert_null(payload.state);
  if (strstr(error.message, words) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", error.message, words);
}

static void all_of_a_payload_is_read(void **state) {
  (void)state;
  struct sample sample = make(usual);
  struct tandem_payload payload;
  struct tandem_error error;
  assert_int_equal(parse(&sample, &payload, &error), TANDEM_OK);
  const struct td_aoti_program *program = payload.state;
  assert_ptr_equal(payload.engine, sample.bytes);
  assert_int_equal(payload.engine_size, sample.size);
  assert_ptr_equal(program->so, sample.bytes + HEADER + strlen(usual));
  assert_int_equal(program->so_size, SO_SIZE);
  assert_ptr_equal(program->weights, sample.bytes + sample.size - WEIGHTS_SIZE);
  assert_int_equal(program->weights_size, WEIGHTS_SIZE);
  assert_string_equal(program->torch_version, "2.13.0");
  assert_string_equal(program->features, "avx2 fma");
  assert_int_equal(program->device_type, AOTI_DEVICE_CPU);
  assert_int_equal(program->input_count, 1);
  const struct tandem_io *x = &program->inputs[0];
  assert_string_equal(x->name, "x");
  assert_int_equal(x->dtype, TANDEM_BFLOAT16);
  assert_int_equal(x->rank, 3);
  assert_int_equal(x->min[0], 1);
  assert_int_equal(x->max[0], 16);
  assert_int_equal(x->min[1], 8);
  assert_int_equal(x->max[1], 8);
  assert_int_equal(x->min[2], 0);
  assert_true(x->max[2] == INT64_MAX);
  assert_int_equal(program->outputs[0].rank, 0);
  assert_true(program->state_known);
  assert_int_equal(program->mutable_count, 2);
  assert_string_equal(program->mutable_names[1], "values");
  td_aoti_payload_destroy(&payload);
  free(sample.bytes);
}

static void a_payload_that_tells_no_state_says_so(void **state) {
  (void)state;
  struct sample none =
      make("{\"device\": \"cuda\", \"capability\": \"12.0\", \"inputs\": [], \"outputs\": []}");
  struct tandem_payload payload;
  struct tandem_error error;
  assert_int_equal(parse(&none, &payload, &error), TANDEM_OK);
  const struct td_aoti_program *program = payload.state;
  assert_false(program->state_known);
  assert_int_equal(program->capability, 120);
  assert_int_equal(program->device_type, AOTI_DEVICE_CUDA);
  td_aoti_payload_destroy(&payload);
  free(none.bytes);
}

#define DIGITS         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define LISTED(length) "ETCUDAFQN3" length "\0\0\0"

/* Of programs that name their library so, as executorch 1.5.1 does. */
static void a_library_s_sum_is_read_from_its_key(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t size;
    const char *sum;
  } cases[] = {
#define CASE(bytes, sum) {bytes, sizeof bytes - 1, sum}
      CASE(LISTED("\x48") DIGITS "_so_blob\0\0\0\0", DIGITS),
      CASE(LISTED("\x49") DIGITS "0_so_blob\0\0\0\0", ""),
      CASE(LISTED("\x0f") "forward_so_blob\0\0\0\0", ""),
      CASE(DIGITS "_so_blob\n0b_weights_blob", DIGITS),
      CASE("0" DIGITS "_so_blob\n0b_weights_blob", ""),
      CASE("forward_so_blob\nforward_weights_blob", ""),
#undef CASE
  };
  static const struct tandem_part parts[] = {{"library", 7}, {"weights", 7}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct td_aoti_program program;
    struct tandem_error error;
    size_t count = memcmp(cases[i].bytes, "ET", 2) == 0 ? 1 : 2;
    if (td_aoti_read(&td_host, cases[i].bytes, cases[i].size, parts, count, &program, &error) != TANDEM_OK)
      fail_msg("%zu: %s", i, error.message);
    assert_int_equal(strncmp(program.so_sha256, cases[i].sum, sizeof DIGITS - 1), 0);
    td_aoti_program_fini(&td_host, &program);
  }
}

static void every_cut_is_refused(void **state) {
  (void)state;
  struct sample whole = make(usual);
  for (size_t size = 0; size < whole.size; size++) {
    struct sample cut = {.bytes = malloc(size + 1), .size = size}; /* exact, for sanitizers */
    memcpy(cut.bytes, whole.bytes, size);
    assert_refused(&cut, TANDEM_BAD_PROGRAM, "export the program again");
    free(cut.bytes);
  }
  free(whole.bytes);
}

static void parts_outside_the_payload_are_refused(void **state) {
  (void)state;
  static const struct {
    int field;
    unsigned bytes;
    uint64_t value;
    const char *words;
  } cases[] = {
      {METADATA, 4, 0, "metadata"},
      {METADATA, 4, UINT32_MAX, "metadata"},
      {METADATA + 4, 4, UINT32_MAX, "metadata"},
      {LIBRARY, 8, HEADER, "library"},
      {LIBRARY, 8, UINT64_MAX, "library"},
      {LIBRARY + 8, 8, UINT64_MAX, "library"},
      {LIBRARY + 8, 8, UINT64_MAX - 64, "library"},
      {WEIGHTS, 8, 256, "weights"},
      {WEIGHTS, 8, UINT64_MAX - 255, "weights"},
      {WEIGHTS + 8, 8, WEIGHTS_SIZE + 1, "weights"},
      {WEIGHTS + 8, 8, UINT64_MAX, "weights"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct sample sample = make(usual);
    put(sample.bytes + cases[i].field, cases[i].bytes, cases[i].value);
    assert_refused(&sample, TANDEM_BAD_PROGRAM, cases[i].words);
    free(sample.bytes);
  }
}

static void weights_off_their_alignment_are_refused(void **state) {
  (void)state;
  struct sample sample = make(usual);
  put(sample.bytes + WEIGHTS, 8, sample.size - 16);
  put(sample.bytes + WEIGHTS + 8, 8, 16);
  assert_refused(&sample, TANDEM_BAD_PROGRAM, "a multiple of 256");
  free(sample.bytes);
}

static void what_a_newer_writer_may_add_is_named_as_such(void **state) {
  (void)state;
  struct sample sample = make(usual);
  sample.bytes[RESERVED + 3] = 1;
  assert_refused(&sample, TANDEM_UNSUPPORTED, "a newer tandem");
  sample.bytes[7] = '2';
  assert_refused(&sample, TANDEM_BAD_PROGRAM, "TDAOTI01");
  free(sample.bytes);
}

static void wrong_metadata_is_named(void **state) {
  (void)state;
#define IOS "\"outputs\": [], \"inputs\": "
#define CPU "{\"device\": \"cpu\", "
  static const struct {
    const char *metadata, *words;
  } cases[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{\"device\": ", "no JSON object"},
      {"{" IOS "[]}", "device"},
      {"{\"device\": \"tpu\", " IOS "[]}", "cpu or cuda"},
      {"{\"device\": 1, " IOS "[]}", "device"},
      {CPU "\"outputs\": []}", "inputs"},
      {CPU IOS "{}}", "inputs"},
      {CPU IOS "[1]}", "inputs[0].name"},
      {CPU IOS "[{\"name\": \"\", \"dtype\": \"bool\", \"shape\": []}]}", "inputs[0].name"},
      {CPU IOS "[{\"name\": \"a\\nb\", \"dtype\": \"bool\", \"shape\": []}]}", "control"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"complex64\", \"shape\": []}]}", "inputs[0].dtype"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\"}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [-1]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [0.5]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [1e300]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [null]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [[4, 2]]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [[1, 2, 3]]}]}", "inputs[0].shape"},
      {CPU IOS "[{\"name\": \"a\", \"dtype\": \"bool\", \"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}",
       "at most 16"},
      {CPU IOS "[], \"mutable\": \"c\"}", "mutable"},
      {CPU IOS "[], \"mutable\": [1]}", "mutable"},
      {CPU IOS "[], \"mutable\": [\"a\\u0001\"]}", "mutable"},
      {CPU IOS "[], \"capability\": \"nine\"}", "capability"},
      {CPU IOS "[], \"torch\": 2}", "torch"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct sample sample = make(cases[i].metadata);
    assert_refused(&sample, TANDEM_BAD_PROGRAM, cases[i].words);
    free(sample.bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_of_a_payload_is_read),
      cmocka_unit_test(a_payload_that_tells_no_state_says_so),
      cmocka_unit_test(a_library_s_sum_is_read_from_its_key),
      cmocka_unit_test(every_cut_is_refused),
      cmocka_unit_test(parts_outside_the_payload_are_refused),
      cmocka_unit_test(weights_off_their_alignment_are_refused),
      cmocka_unit_test(what_a_newer_writer_may_add_is_named_as_such),
      cmocka_unit_test(wrong_metadata_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
