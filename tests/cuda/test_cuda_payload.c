/* Payloads of ExecuTorch's CudaBackend: what real ones say, which bytes count for an engine's identity, and
 * that nothing that does not fit is let through. The real ones are in fuzz/corpus/cuda_payload, as
 * executorch 1.5.1 wrote them. */
#include "base.h"

#include "aoti.h"
#include "aotinductor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct tandem_vendor *const vendor = &td_vendor_aotinductor_cuda;
static struct tandem_error error;

static const struct standin_constant weight = {
    "w", "cuda_fqn_weight:cuda:w", 64, TANDEM_FLOAT32, 1, 0, 2, {2, 8}, {8, 1}};

/* A copy of exactly that size, so that the address sanitizer sees a read past it. */
static enum tandem_status parse(const struct standin_bytes *bytes, struct standin_named *named,
                                struct tandem_payload *payload) {
  static unsigned char *copy;
  free(copy);
  copy = malloc(bytes->size > 0 ? bytes->size : 1);
  assert_non_null(copy);
  memcpy(copy, bytes->data, bytes->size);
  error = (struct tandem_error){0};
  struct tandem_named_data source = standin_named_data(named);
  return vendor->parse(&td_host, copy, bytes->size, named != NULL ? &source : NULL, payload, &error);
}

static void assert_refused(const struct standin_bytes *bytes, struct standin_named *named,
                           enum tandem_status expected, const char *part) {
  struct tandem_payload payload;
  assert_int_equal(parse(bytes, named, &payload), expected);
  assert_null(payload.state);
  if (strstr(error.message, part) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", error.message, part);
  assert_null(strchr(error.message, '\n'));
  if (named != NULL)
    assert_int_equal(named->held, 0);
}

/* ---------------------------------------------------------------- facts */

struct facts {
  char text[2048];
};

static void collect(void *user, const char *key, const char *value) {
  struct facts *facts = user;
  size_t used = strlen(facts->text);
  snprintf(facts->text + used, sizeof facts->text - used, "%s=%s\n", key, value);
}

static struct standin_bytes read_corpus(const char *name) {
  struct standin_bytes bytes = {.size = 0};
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", CUDA_PAYLOADS, name);
  FILE *file = fopen(path, "rb");
  if (file == NULL)
    fail_msg("%s is not there", path);
  bytes.size = fread(bytes.data, 1, sizeof bytes.data, file);
  fclose(file);
  return bytes;
}

static void real_payloads_tell_their_engine_and_constants(void **state) {
  (void)state;
  static const struct {
    const char *name, *constants, *weights_size;
  } programs[] = {{"linear", "constants=1\n", "weights_size=256\n"},
                  {"cache", "constants=2\n", "weights_size=384\n"},
                  {"mlp_dyn", "constants=4\n", "weights_size=33280\n"},
                  {"mlp_bf16", "constants=6\n", "weights_size=99072\n"}};
  for (size_t i = 0; i < sizeof programs / sizeof programs[0]; i++) {
    struct standin_bytes bytes = read_corpus(programs[i].name);
    struct tandem_payload payload;
    struct facts facts = {""};
    assert_int_equal(parse(&bytes, NULL, &payload), TANDEM_OK);
    vendor->describe(&payload, collect, &facts);
    assert_non_null(strstr(facts.text, "kind=aotinductor\nformat=ETCUDAFQN3\nso_key="));
    if (strstr(facts.text, programs[i].constants) == NULL ||
        strstr(facts.text, programs[i].weights_size) == NULL)
      fail_msg("%s: %s", programs[i].name, facts.text);
    vendor->payload_destroy(&payload);
  }
}

static void the_engine_is_the_payload_its_library_and_its_weights(void **state) {
  (void)state;
  static const char so[] = "library";
  static const float values[16] = {1, 2};
  struct standin_named named = {{{STANDIN_SO_KEY, so, sizeof so}, {weight.key, values, sizeof values}}, 0};
  struct standin_bytes bytes = standin_cuda_payload(&weight, 1);
  struct tandem_payload payload;
  assert_int_equal(parse(&bytes, &named, &payload), TANDEM_OK);
  assert_int_equal(payload.engine_size, bytes.size);
  assert_int_equal(payload.part_count, 2);
  assert_memory_equal(payload.parts[0].data, so, sizeof so);
  assert_memory_equal(payload.parts[1].data, values, sizeof values);
  assert_int_equal(payload.parts[1].size, sizeof values);
  assert_int_equal(named.held, 2);
  struct td_aoti_program program;
  assert_int_equal(td_aoti_cuda_read(&td_host, payload.engine, payload.engine_size, payload.parts,
                                     payload.part_count, &program, &error),
                   TANDEM_OK);
  assert_int_equal(program.device_type, AOTI_DEVICE_CUDA);
  assert_ptr_equal(program.so, payload.parts[0].data);
  assert_int_equal(program.constant_count, 1);
  assert_string_equal(program.constants[0].fqn, "w");
  assert_ptr_equal(program.constants[0].data, payload.parts[1].data);
  assert_int_equal(program.constants[0].rank, 2);
  assert_int_equal(program.constants[0].sizes[1], 8);
  assert_int_equal(program.constants[0].strides[0], 8);
  td_aoti_program_fini(&td_host, &program);
  vendor->payload_destroy(&payload);
  assert_int_equal(named.held, 0);
}

static void the_older_form_names_two_blobs(void **state) {
  (void)state;
  struct standin_named named = {{{STANDIN_SO_KEY, "so", 2}, {"0b_weights_blob", "values", 6}}, 0};
  struct standin_bytes bytes = {.size = 26};
  memcpy(bytes.data, "0a_so_blob\n0b_weights_blob", 26);
  struct tandem_payload payload;
  assert_int_equal(parse(&bytes, &named, &payload), TANDEM_OK);
  assert_int_equal(payload.part_count, 2);
  assert_memory_equal(payload.parts[1].data, "values", 6);
  const struct td_aoti_program *program = payload.state;
  assert_null(program->constants);
  assert_int_equal(program->weights_size, 6);
  vendor->payload_destroy(&payload);
  assert_int_equal(named.held, 0);
}

static void data_that_is_missing_or_another_s_is_told_by_its_key(void **state) {
  (void)state;
  struct standin_bytes bytes = standin_cuda_payload(&weight, 1);
  struct standin_named named = {{{STANDIN_SO_KEY, "so", 2}}, 0};
  assert_refused(&bytes, &named, TANDEM_MISSING_DATA, "\"cuda_fqn_weight:cuda:w\" (part 2 of 2)");
  named.entries[1].key = weight.key;
  named.entries[1].data = "short";
  named.entries[1].size = 5;
  assert_refused(&bytes, &named, TANDEM_BAD_PROGRAM, "has 5 bytes, constant \"w\" has 64");
  named.entries[0].size = 0;
  assert_refused(&bytes, &named, TANDEM_BAD_PROGRAM, "\"0a_so_blob\" is empty");
}

static void without_named_data_a_payload_is_described_and_not_loaded(void **state) {
  (void)state;
  const char *const values[] = {"cuda:0"};
  struct standin_bytes bytes = standin_cuda_payload(&weight, 1);
  struct tandem_payload payload;
  struct tandem_resolution resolution;
  assert_int_equal(parse(&bytes, NULL, &payload), TANDEM_OK);
  assert_int_equal(payload.part_count, 0);
  assert_int_equal(vendor->resolve(&payload, values, &resolution, &error), TANDEM_MISSING_DATA);
  vendor->payload_destroy(&payload);
}

static void only_cuda_devices_are_targets(void **state) {
  (void)state;
  static const char *const wrong[] = {"cpu", "cuda:", "cuda:-1", "cuda:0x", "cuda:1 ", "gpu:0", ""};
  struct standin_named named = {{{STANDIN_SO_KEY, "so", 2}}, 0};
  struct standin_bytes bytes = standin_cuda_payload(NULL, 0);
  struct tandem_payload payload;
  struct tandem_resolution resolution;
  assert_int_equal(parse(&bytes, &named, &payload), TANDEM_OK);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    assert_int_equal(vendor->resolve(&payload, &wrong[i], &resolution, &error), TANDEM_BAD_OPTION);
    assert_non_null(strstr(error.message, "expected cuda:0"));
  }
  vendor->payload_destroy(&payload);
}

static void what_does_not_fit_is_refused_with_its_place(void **state) {
  (void)state;
  struct {
    struct standin_constant entry;
    enum tandem_status status;
    const char *part;
  } cases[12];
  for (size_t i = 0; i < 12; i++)
    cases[i].entry = weight;
  size_t n = 0;
#define CASE(field, value, expected, words)                                                                  \
  cases[n].entry.field = (value);                                                                            \
  cases[n].status = (expected);                                                                              \
  cases[n++].part = (words);
  CASE(fqn, "", TANDEM_BAD_PROGRAM, "a constant's name at offset 28 that is empty")
  CASE(key, "", TANDEM_BAD_PROGRAM, "the key of a constant's bytes")
  CASE(storage, 63, TANDEM_BAD_PROGRAM, "does not lie in its 63 bytes")
  CASE(dtype, 9, TANDEM_UNSUPPORTED, "element type 9")
  CASE(dtype, -1, TANDEM_UNSUPPORTED, "element type -1")
  CASE(device, 2, TANDEM_BAD_PROGRAM, "device type 2")
  CASE(offset, -1, TANDEM_BAD_PROGRAM, "does not lie in its 64 bytes")
  CASE(offset, INT64_MAX, TANDEM_BAD_PROGRAM, "does not lie in its 64 bytes")
  CASE(rank, TANDEM_MAX_RANK + 1, TANDEM_UNSUPPORTED, "17 dimensions")
  CASE(sizes[0], -2, TANDEM_BAD_PROGRAM, "does not lie in its 64 bytes")
  CASE(strides[0], -8, TANDEM_BAD_PROGRAM, "does not lie in its 64 bytes")
  CASE(strides[0], INT64_MAX, TANDEM_BAD_PROGRAM, "does not lie in its 64 bytes")
#undef CASE
  for (size_t i = 0; i < n; i++) {
    struct standin_bytes bytes = standin_cuda_payload(&cases[i].entry, 1);
    assert_refused(&bytes, NULL, cases[i].status, cases[i].part);
  }
  struct standin_constant empty = weight;
  empty.sizes[0] = 0;
  empty.storage = 0;
  struct standin_bytes bytes = standin_cuda_payload(&empty, 1);
  struct tandem_payload payload;
  assert_int_equal(parse(&bytes, NULL, &payload), TANDEM_OK); /* no elements need no bytes */
  vendor->payload_destroy(&payload);
}

static void every_beginning_of_a_payload_is_refused(void **state) {
  (void)state;
  struct standin_bytes whole = standin_cuda_payload((struct standin_constant[]){weight, weight}, 2);
  for (size_t size = 0; size < whole.size; size++) {
    struct standin_bytes part = whole;
    part.size = size;
    assert_refused(&part, NULL, TANDEM_BAD_PROGRAM, "CudaBackend payload");
  }
  whole.data[whole.size++] = 0;
  assert_refused(&whole, NULL, TANDEM_BAD_PROGRAM, "has 1 bytes after its last constant");
}

static void another_version_is_told(void **state) {
  (void)state;
  struct standin_bytes bytes = standin_cuda_payload(&weight, 1);
  bytes.data[9] = '4';
  assert_refused(&bytes, NULL, TANDEM_UNSUPPORTED, "format ETCUDAFQN4");
  bytes.data[9] = '\n';
  assert_refused(&bytes, NULL, TANDEM_UNSUPPORTED, "format ETCUDAFQN?");
}

static void counts_beyond_the_bytes_allocate_nothing(void **state) {
  (void)state;
  struct standin_bytes bytes = standin_cuda_payload(NULL, 0);
  memset(bytes.data + bytes.size - 4, 0xff, 4);
  assert_refused(&bytes, NULL, TANDEM_BAD_PROGRAM, "within the constants");
  memset(bytes.data + 10, 0xff, 4);
  assert_refused(&bytes, NULL, TANDEM_BAD_PROGRAM, "within the key of the .so");
}

static void a_library_needs_the_gpu_that_each_of_its_kernels_has_code_for(void **state) {
  (void)state;
  struct standin_bytes so = {.size = 3};
  assert_int_equal(td_aoti_cuda_capability(so.data, so.size), 0);
  standin_put_fat(&so, (uint32_t[]){80, 90}, 2);
  assert_int_equal(td_aoti_cuda_capability(so.data, so.size), 80);
  standin_put_fat(&so, (uint32_t[]){90}, 1);
  assert_int_equal(td_aoti_cuda_capability(so.data, so.size), 90);
  for (size_t size = 0; size < so.size; size++) { /* cut anywhere, nothing past the end is read */
    unsigned char *cut = malloc(size + 1);
    memcpy(cut, so.data, size);
    assert_true(td_aoti_cuda_capability(cut, size) <= 90);
    free(cut);
  }
  so.data[so.size - 72 - 16 + 8] = 0xff; /* a size beyond the library */
  so.data[so.size - 72 - 16 + 15] = 0xff;
  assert_int_equal(td_aoti_cuda_capability(so.data, so.size), 80);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(real_payloads_tell_their_engine_and_constants),
      cmocka_unit_test(the_engine_is_the_payload_its_library_and_its_weights),
      cmocka_unit_test(the_older_form_names_two_blobs),
      cmocka_unit_test(data_that_is_missing_or_another_s_is_told_by_its_key),
      cmocka_unit_test(without_named_data_a_payload_is_described_and_not_loaded),
      cmocka_unit_test(only_cuda_devices_are_targets),
      cmocka_unit_test(what_does_not_fit_is_refused_with_its_place),
      cmocka_unit_test(every_beginning_of_a_payload_is_refused),
      cmocka_unit_test(another_version_is_told),
      cmocka_unit_test(a_library_needs_the_gpu_that_each_of_its_kernels_has_code_for),
      cmocka_unit_test(counts_beyond_the_bytes_allocate_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
