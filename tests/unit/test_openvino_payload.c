/* OpenVINO payloads without OpenVINO: what a blob says about itself, and that nothing that does not fit is
 * let through. Blobs are built here by hand after the format that vendors/openvino/payload.c states; that
 * OpenVINO writes this format is what tests/conformance/test_openvino_engine.c shows.
 */
#include "base.h"

#include "../../vendors/openvino/openvino.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOB_MAX = 512 };

struct blob {
  unsigned char bytes[BLOB_MAX];
  size_t size;
  size_t table; /* offset of the six numbers */
};

static void put(struct blob *blob, size_t at, uint64_t number, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i++)
    blob->bytes[at + i] = (unsigned char)(number >> (8 * i));
}

/* `text` NULL: the format without a name. */
static struct blob make_blob(const char *text) {
  struct blob blob = {.size = 0};
  if (text != NULL) {
    memcpy(blob.bytes, "RR_UPCVO", 8);
    put(&blob, 8, 1, 4);
    put(&blob, 12, strlen(text), 8);
    memcpy(blob.bytes + 20, text, strlen(text));
    blob.table = 20 + strlen(text);
  }
  const uint64_t numbers[6] = {48, 10, 58, 20, 78, 30};
  for (size_t i = 0; i < 6; i++)
    put(&blob, blob.table + 8 * i, numbers[i], 8);
  blob.size = blob.table + 108;
  for (size_t i = blob.table + 48; i < blob.size; i++)
    blob.bytes[i] = (unsigned char)i;
  return blob;
}

/* Parses a copy of exactly that size, so that the address sanitizer sees a read past it. */
static enum tandem_status parse(const void *bytes, size_t size, struct tandem_error *error) {
  struct tandem_payload payload = {0};
  unsigned char *copy = malloc(size > 0 ? size : 1);
  assert_non_null(copy);
  memcpy(copy, bytes, size);
  enum tandem_status status = td_vendor_openvino.parse(&td_host, copy, size, NULL, &payload, error);
  if (status == TANDEM_OK) {
    assert_ptr_equal(payload.engine, copy);
    assert_int_equal(payload.engine_size, size);
    td_vendor_openvino.payload_destroy(&payload);
  }
  free(copy);
  return status;
}

static void assert_refused(const struct blob *blob, enum tandem_status expected, const char *part) {
  struct tandem_error error = {0};
  assert_int_equal(parse(blob->bytes, blob->size, &error), expected);
  if (strstr(error.message, part) == NULL)
    fail_msg("\"%s\" does not say \"%s\"", error.message, part);
  assert_null(strchr(error.message, '\n'));
}

struct facts {
  char text[1024];
};

static void collect(void *user, const char *key, const char *value) {
  struct facts *facts = user;
  size_t used = strlen(facts->text);
  snprintf(facts->text + used, sizeof facts->text - used, "%s=%s\n", key, value);
}

static void a_named_blob_tells_version_and_instruction_set(void **state) {
  (void)state;
  struct blob blob = make_blob("meta=1.0;ov=2026.4.1;isa=Intel AVX2");
  struct facts facts = {""};
  struct tandem_error error;
  assert_int_equal(tandem_payload_describe("OpenvinoBackend", blob.bytes, blob.size, collect, &facts, &error),
                   TANDEM_OK);
  char expected[512];
  snprintf(expected, sizeof expected,
           "kind=openvino\nformat=RR_UPCVO\nopenvino_version=2026.4.1\ninstruction_set=Intel AVX2\n"
           "engine_offset=0\nengine_size=%zu\nweights_offset=%zu\nweights_size=20\nmodel_offset=%zu\n"
           "model_size=30\n",
           blob.size, blob.table + 58, blob.table + 78);
  assert_string_equal(facts.text, expected);
}

static void an_unnamed_blob_tells_sizes_only(void **state) {
  (void)state;
  struct blob blob = make_blob(NULL);
  struct facts facts = {""};
  struct tandem_error error;
  assert_int_equal(tandem_payload_describe("OpenvinoBackend", blob.bytes, blob.size, collect, &facts, &error),
                   TANDEM_OK);
  assert_string_equal(facts.text, "kind=openvino\nformat=unnamed\nengine_offset=0\nengine_size=108\n"
                                  "weights_offset=58\nweights_size=20\nmodel_offset=78\nmodel_size=30\n");
}

static void requirements_are_found_by_their_name_only(void **state) {
  (void)state;
  static const struct {
    const char *text, *version, *set;
  } cases[] = {
      {"ov=1;isa=2", "1", "2"},
      {"isa=2;ov=1", "1", "2"},
      {"xov=9;ov=1", "1", ""},
      {"ov;isa", "", ""},
      {"ov=;isa=", "", ""},
      {";;ov=1;", "1", ""},
      {"ov=2026\033[31m;isa=a\nb", "2026?[31m", "a?b"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct blob blob = make_blob(cases[i].text);
    struct td_openvino_blob read;
    assert_int_equal(td_openvino_read_blob(&td_host, blob.bytes, blob.size, &read, NULL), TANDEM_OK);
    assert_string_equal(read.version, cases[i].version);
    assert_string_equal(read.instruction_set, cases[i].set);
  }
}

static void long_requirements_are_cut_not_overrun(void **state) {
  (void)state;
  char text[301] = "ov=";
  memset(text + 3, '7', sizeof text - 4);
  struct blob blob = make_blob(text);
  struct td_openvino_blob read;
  assert_int_equal(td_openvino_read_blob(&td_host, blob.bytes, blob.size, &read, NULL), TANDEM_OK);
  assert_int_equal(strlen(read.version), sizeof read.version - 1);
}

static void every_shorter_payload_is_refused(void **state) {
  (void)state;
  static const char *const texts[] = {"meta=1.0;ov=2026.4.1;isa=x", NULL};
  for (size_t i = 0; i < 2; i++) {
    struct blob blob = make_blob(texts[i]);
    assert_int_equal(parse(blob.bytes, blob.size, NULL), TANDEM_OK);
    for (size_t size = 0; size < blob.size; size++) {
      struct tandem_error error = {0};
      if (parse(blob.bytes, size, &error) != TANDEM_BAD_PROGRAM || error.message[0] == '\0')
        fail_msg("%zu of %zu bytes: status %d, \"%s\"", size, blob.size, error.code, error.message);
    }
  }
}

static void bytes_after_the_model_are_allowed(void **state) {
  (void)state;
  struct blob blob = make_blob(NULL);
  assert_int_equal(parse(blob.bytes, blob.size + 7, NULL), TANDEM_OK);
}

static void sizes_that_would_wrap_are_refused(void **state) {
  (void)state;
  static const char *const texts[] = {"ov=1", NULL};
  static const uint64_t hostile[] = {
      UINT64_MAX, UINT64_MAX - 47, UINT64_MAX - 107, UINT64_MAX / 2, (uint64_t)1 << 63, (uint64_t)1 << 32, 0};
  for (size_t t = 0; t < 2; t++)
    for (size_t field = 0; field < 6; field++)
      for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct blob blob = make_blob(texts[t]);
        put(&blob, blob.table + 8 * field, hostile[i], 8);
        assert_refused(&blob, TANDEM_BAD_PROGRAM, "places custom data, weights and model at");
      }
  /* Offsets that agree with sizes modulo 2^64. */
  struct blob blob = make_blob(NULL);
  put(&blob, 24, UINT64_MAX - 9, 8);
  put(&blob, 32, 48, 8);
  put(&blob, 40, 60, 8);
  assert_refused(&blob, TANDEM_BAD_PROGRAM, "48+60");
}

static void a_hostile_length_of_the_requirements_is_refused(void **state) {
  (void)state;
  static const uint64_t hostile[] = {0, 1000, 65537, (uint64_t)1 << 32, UINT64_MAX, UINT64_MAX - 19};
  for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
    struct blob blob = make_blob("ov=2026.4.1");
    put(&blob, 12, hostile[i], 8);
    assert_refused(&blob, TANDEM_BAD_PROGRAM, "at offset 12");
  }
}

static void a_newer_header_is_unsupported_and_says_what_helps(void **state) {
  (void)state;
  struct blob blob = make_blob("ov=2027.0.0");
  put(&blob, 8, 2, 4);
  assert_refused(&blob, TANDEM_UNSUPPORTED, "header version 2");
  assert_refused(&blob, TANDEM_UNSUPPORTED, "export the program again");
}

static void something_else_is_refused_before_any_library_is_opened(void **state) {
  (void)state;
  static const char *const texts[] = {"", "RR_UPCVO", "<?xml version=\"1.0\"?><net name=\"m\"></net>"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    assert_int_equal(parse(texts[i], strlen(texts[i]), NULL), TANDEM_BAD_PROGRAM);
  unsigned char noise[256];
  uint32_t seed = 1;
  for (size_t round = 0; round < 1000; round++) {
    for (size_t i = 0; i < sizeof noise; i++)
      noise[i] = (unsigned char)((seed = seed * 1664525u + 1013904223u) >> 24);
    assert_int_equal(parse(noise, sizeof noise, NULL), TANDEM_BAD_PROGRAM);
  }
  assert_null(td_ov.core_create);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_named_blob_tells_version_and_instruction_set),
      cmocka_unit_test(an_unnamed_blob_tells_sizes_only),
      cmocka_unit_test(requirements_are_found_by_their_name_only),
      cmocka_unit_test(long_requirements_are_cut_not_overrun),
      cmocka_unit_test(every_shorter_payload_is_refused),
      cmocka_unit_test(bytes_after_the_model_are_allowed),
      cmocka_unit_test(sizes_that_would_wrap_are_refused),
      cmocka_unit_test(a_hostile_length_of_the_requirements_is_refused),
      cmocka_unit_test(a_newer_header_is_unsupported_and_says_what_helps),
      cmocka_unit_test(something_else_is_refused_before_any_library_is_opened),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
