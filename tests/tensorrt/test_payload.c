/* Payloads of the TensorRT delegate: every field read, every lie about an offset refused before a library or
 * a device is touched, named data taken and given back once. */
#include "base.h"
#include "plan.h"
#include "tensorrt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char plan[40] = "these forty bytes stand for an engine...";

#define BINDINGS                                                                                             \
  "\"io_bindings\":[{\"name\":\"x\",\"dtype\":\"float32\",\"shape\":[-1,8],\"is_input\":true},"              \
  "{\"name\":\"cache\",\"dtype\":\"float16\",\"shape\":[4],\"is_input\":true},"                              \
  "{\"name\":\"y\",\"dtype\":\"int64\",\"shape\":[],\"is_input\":false},"                                    \
  "{\"name\":\"kept\",\"is_input\":false}]"

/* A payload under edit, in a block of exactly its size so that a sanitizer sees one byte too many. */
struct made {
  unsigned char *bytes;
  size_t size;
};

static void put(unsigned char *at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++)
    at[i] = (unsigned char)(value >> (8 * i));
}

static struct made make(const char *metadata, size_t metadata_size, const char *engine, size_t engine_size) {
  size_t offset = (32 + metadata_size + 15) & ~(size_t)15;
  struct made made = {calloc(1, offset + engine_size), offset + engine_size};
  assert_non_null(made.bytes);
  memcpy(made.bytes, "TR01", 4);
  put(made.bytes + 4, 32, 4);
  put(made.bytes + 8, metadata_size, 4);
  put(made.bytes + 12, offset, 4);
  put(made.bytes + 16, engine_size, 8);
  made.bytes[24] = 1;
  memcpy(made.bytes + 32, metadata, metadata_size);
  if (engine_size > 0)
    memcpy(made.bytes + offset, engine, engine_size);
  return made;
}

static struct made make_text(const char *metadata) {
  return make(metadata, strlen(metadata), plan, sizeof plan);
}

static enum tandem_status parse(struct made made, struct tandem_payload *payload,
                                struct tandem_error *error) {
  *error = (struct tandem_error){0};
  return td_trt_parse(&td_host, made.bytes, made.size, NULL, payload, error);
}

static void assert_refusal(struct made made, enum tandem_status expected, const char *named) {
  struct tandem_payload payload;
  struct tandem_error error;
  enum tandem_status status = parse(made, &payload, &error);
  if (status != expected || strstr(error.message, named) == NULL || strchr(error.message, '\n') != NULL)
    fail_msg("expected %s naming %s, got %s: \"%s\"", tandem_status_name(expected), named,
             tandem_status_name(status), error.message);
  assert_null(payload.state);
}

/* Refuses `metadata`, naming `named`. */
static void refuse(const char *metadata, const char *named) {
  struct made made = make_text(metadata);
  assert_refusal(made, TANDEM_BAD_PROGRAM, named);
  free(made.bytes);
}

static struct td_trt_payload *accept(struct made made, struct tandem_payload *payload) {
  struct tandem_error error;
  if (parse(made, payload, &error) != TANDEM_OK)
    fail_msg("%s", error.message);
  return payload->state;
}

/* ---------------------------------------------------------------- what is read */

static void every_field_is_read(void **state) {
  (void)state;
  struct made made =
      make_text("{" BINDINGS ",\"aliased_io\":[{\"output\":\"kept\",\"input\":\"cache\",\"kind\":\"user\"},"
                "{\"output\":\"y\",\"input\":\"x\"}],\"hardware_compatible\":true,\"device_id\":3,"
                "\"serialized_metadata\":\"gAR9\",\"target_platform\":\"linux_x86_64\",\"of_later\":[1,{}]}");
  struct tandem_payload payload;
  made.bytes[3] = '2';
  const struct td_trt_payload *read = accept(made, &payload);
  assert_int_equal(read->format, 2);
  assert_int_equal(payload.engine_size, sizeof plan);
  assert_memory_equal(payload.engine, plan, sizeof plan);
  assert_ptr_equal(payload.engine, made.bytes + made.size - sizeof plan);
  assert_int_equal(read->binding_count, 4);
  assert_string_equal(read->bindings[0].name, "x");
  assert_string_equal(read->bindings[0].dtype, "float32");
  assert_true(read->bindings[0].is_input);
  assert_int_equal(read->bindings[0].rank, 2);
  assert_int_equal(read->bindings[0].shape[0], -1);
  assert_int_equal(read->bindings[0].shape[1], 8);
  assert_false(read->bindings[2].is_input);
  assert_int_equal(read->bindings[2].rank, 0);
  assert_string_equal(read->bindings[3].dtype, "");
  assert_int_equal(read->bindings[3].rank, -1);
  assert_int_equal(read->alias_count, 2);
  assert_string_equal(read->aliases[0].output, "kept");
  assert_string_equal(read->aliases[0].input, "cache");
  assert_int_equal(read->aliases[0].kind, TD_TRT_ALIAS_USER);
  assert_int_equal(read->aliases[1].kind, TD_TRT_ALIAS_CACHE);
  assert_true(read->hardware_compatible);
  assert_int_equal(read->device_id, 3);
  assert_string_equal(read->serialized_metadata, "gAR9");
  assert_string_equal(read->target_platform, "linux_x86_64");
  td_trt_payload_destroy(&payload);
  assert_null(payload.state);
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void an_empty_object_leaves_names_and_order_to_the_engine(void **state) {
  (void)state;
  static const char *const texts[] = {"{}", " { } \r\n\t", "{\"io_bindings\":[],\"aliased_io\":[]}"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    struct made made = make_text(texts[i]);
    struct tandem_payload payload;
    const struct td_trt_payload *read = accept(made, &payload);
    assert_null(read->bindings);
    assert_int_equal(read->binding_count, 0);
    assert_int_equal(read->alias_count, 0);
    assert_int_equal(read->device_id, 0);
    assert_false(read->hardware_compatible);
    assert_string_equal(read->engine_key, "");
    td_trt_payload_destroy(&payload);
    free(made.bytes);
  }
}

static void the_stand_ins_payloads_are_read(void **state) {
  (void)state;
  const char *name;
  size_t read = 0;
  for (size_t i = 0; (name = standin_sample_name(i)) != NULL; i++) {
    struct standin_payload wanted = {.device_id = 1};
    struct made made;
    struct tandem_payload payload;
    void *bytes = standin_sample_bytes(name, &wanted.plan_size);
    assert_non_null(bytes);
    wanted.plan = bytes;
    made.bytes = standin_payload_bytes(&wanted, &made.size);
    assert_non_null(made.bytes);
    const struct td_trt_payload *found = accept(made, &payload);
    assert_int_equal(payload.engine_size, wanted.plan_size);
    assert_memory_equal(payload.engine, bytes, wanted.plan_size);
    assert_int_equal(found->device_id, 1);
    assert_true(found->binding_count >= 2);
    td_trt_payload_destroy(&payload);
    free(made.bytes);
    free(bytes);
    read++;
  }
  assert_true(read > 0);
}

/* ---------------------------------------------------------------- header arithmetic */

static void sizes_and_offsets_that_lie_or_wrap_are_refused_by_name(void **state) {
  (void)state;
  static const char text[] = "{\"device_id\":0}";
  enum { END = 32 + 16 + 40 }; /* of the payload that is made of it */
  const struct {
    int at, bytes;
    uint64_t value;
    const char *named;
  } cases[] = {
      {16, 8, UINT64_MAX - 15, "engine_size is 18446744073709551600"},
      {16, 8, 0 - (uint64_t)48, "engine_size is 18446744073709551568"}, /* wraps to the payload's start */
      {16, 8, 41, "engine_size is 41"},
      {16, 8, UINT64_MAX, "engine_size is 18446744073709551615"},
      {16, 8, (uint64_t)1 << 63, "engine_size is 9223372036854775808"},
      {4, 4, 31, "metadata_offset is 31"},
      {4, 4, 0, "metadata_offset is 0"},
      {4, 4, UINT32_MAX, "metadata_offset is 4294967295"},
      {4, 4, END + 1, "metadata_offset is 89"},
      {8, 4, UINT32_MAX, "metadata_size is 4294967295"},
      {8, 4, 17, "metadata_size is 17"},                      /* over the engine by one byte */
      {8, 4, UINT32_MAX - 31, "metadata_size is 4294967264"}, /* wraps to 0 */
      {12, 4, 32, "metadata_size is 15"},                     /* the engine over the metadata */
      {12, 4, 16, "metadata_size is 15"},
      {12, 4, 0, "metadata_size is 15"},
      {12, 4, 96, "engine_offset is 96"},
      {12, 4, UINT32_MAX - 15, "engine_offset is 4294967280"},
      {12, 4, 64, "engine_size is 40"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct made made = make_text(text);
    assert_int_equal(made.size, END);
    put(made.bytes + cases[i].at, cases[i].value, cases[i].bytes);
    assert_refusal(made, TANDEM_BAD_PROGRAM, cases[i].named);
    free(made.bytes);
  }
  for (unsigned odd = 1; odd <= 15; odd++) {
    struct made made = make_text(text);
    put(made.bytes + 12, 48 + odd, 4);
    put(made.bytes + 16, 16, 8);
    assert_refusal(made, TANDEM_BAD_PROGRAM, "a multiple of 16");
    free(made.bytes);
  }
}

static void metadata_may_end_where_the_engine_begins(void **state) {
  (void)state;
  struct tandem_payload payload;
  struct made made = make("{\"device_id\":0} ", 16, plan, sizeof plan);
  accept(made, &payload);
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void a_payload_cut_anywhere_is_refused(void **state) {
  (void)state;
  struct made whole = make_text("{" BINDINGS ",\"device_id\":0}");
  for (size_t size = 0; size < whole.size; size++) {
    struct made cut = {malloc(size > 0 ? size : 1), size};
    char expected[64] = "export the program again";
    memcpy(cut.bytes, whole.bytes, size);
    if (size < 32)
      snprintf(expected, sizeof expected, "has %zu bytes, its header", size);
    assert_refusal(cut, TANDEM_BAD_PROGRAM, expected);
    free(cut.bytes);
  }
  assert_refusal((struct made){NULL, 0}, TANDEM_BAD_PROGRAM, "0 bytes");
  free(whole.bytes);
}

static void other_magics_are_refused_and_reserved_bytes_ignored(void **state) {
  (void)state;
  static const char *const magics[] = {"TR00", "TR03", "tr01", "TR1\0", "PK\3\4"};
  for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++) {
    struct made made = make_text("{}");
    memcpy(made.bytes, magics[i], 4);
    assert_refusal(made, TANDEM_BAD_PROGRAM, "expected \"TR01\"");
    free(made.bytes);
  }
  for (int i = 24; i < 32; i++) {
    struct made made = make_text("{}");
    struct tandem_payload payload;
    made.bytes[i] ^= 0xff;
    accept(made, &payload);
    td_trt_payload_destroy(&payload);
    free(made.bytes);
  }
}

/* ---------------------------------------------------------------- metadata */

static void a_device_id_is_a_whole_number_of_int32(void **state) {
  (void)state;
  refuse("{\"device_id\":99999999999}", "device_id is 99999999999");
  refuse("{\"device_id\":2147483648}", "device_id is 2147483648");
  refuse("{\"device_id\":-1}", "device_id is -1");
  refuse("{\"device_id\":1.5}", "device_id is 1.5");
  refuse("{\"device_id\":1e999}", "device_id is inf");
  refuse("{\"device_id\":2147483648}", "expected the index of a CUDA device, 0 to 2147483647");
  refuse("{\"device_id\":\"0\"}", "device_id is \"0\"");
  refuse("{\"device_id\":null}", "device_id is null");
  refuse("{\"device_id\":0,\"device_id\":1}", "device_id twice");
  struct made made = make_text("{\"device_id\":2147483647}");
  struct tandem_payload payload;
  assert_int_equal(accept(made, &payload)->device_id, INT32_MAX);
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void numbers_are_those_of_json(void **state) {
  (void)state;
  static const char *const numbers[] = {"00", "01", "-01", "1.",    "1.e2", "1e",  "1e+",
                                        "-",  "+1", ".5",  "1.0.0", "0x1",  "1-1", "-.5"};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    char text[64];
    snprintf(text, sizeof text, "{\"device_id\":0,\"other\":[%s]}", numbers[i]);
    refuse(text, "at offset 5"); /* where the number begins or stops to be one */
  }
  struct made made = make_text("{\"other\":[0,-0,10,0.5,-1.25e+3,1E-2,2e7],\"text\":\"00 1. -\"}");
  struct tandem_payload payload;
  accept(made, &payload);
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void bindings_are_checked_by_name(void **state) {
  (void)state;
  refuse("{\"io_bindings\":[{\"name\":\"a\"},{\"name\":\"b\"},{\"name\":\"a\",\"is_input\":false}]}",
         "io_bindings[0] and io_bindings[2] are both named \"a\"");
  refuse("{\"io_bindings\":[{\"name\":\"\"}]}", "io_bindings[0].name is absent");
  refuse("{\"io_bindings\":[{\"dtype\":\"float32\"}]}", "io_bindings[0].name");
  refuse("{\"io_bindings\":[{\"name\":7}]}", "io_bindings[0].name is 7");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"name\":\"b\"}]}", "io_bindings[0].name twice");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"is_input\":1}]}", "io_bindings[0].is_input is 1");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"dtype\":4}]}", "io_bindings[0].dtype is 4");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"shape\":4}]}", "io_bindings[0].shape is 4");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"shape\":[2,-2]}]}", "io_bindings[0].shape is -2");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"shape\":[2.5]}]}", "io_bindings[0].shape is 2.5");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"shape\":[1e30]}]}", "io_bindings[0].shape is 1");
  refuse("{\"io_bindings\":[{\"name\":\"a\",\"shape\":[1,1,1,1,1,1,1,1,1]}]}", "more than the 8 dimensions");
  refuse("{\"io_bindings\":[\"a\"]}", "an item of io_bindings");
  refuse("{\"io_bindings\":{}}", "io_bindings is another kind of value");
  refuse("{\"hardware_compatible\":\"yes\"}", "hardware_compatible is \"yes\"");
  refuse("{\"target_platform\":[]}", "target_platform");
}

static void aliases_name_known_bindings_and_each_output_once(void **state) {
  (void)state;
  refuse("{" BINDINGS ",\"aliased_io\":[{\"output\":\"z\",\"input\":\"x\"}]}", "no such output");
  refuse("{" BINDINGS ",\"aliased_io\":[{\"output\":\"y\",\"input\":\"z\"}]}", "no such input");
  refuse("{" BINDINGS ",\"aliased_io\":[{\"output\":\"x\",\"input\":\"cache\"}]}", "no such output");
  refuse("{" BINDINGS
         ",\"aliased_io\":[{\"output\":\"y\",\"input\":\"x\"},{\"output\":\"y\",\"input\":\"cache\"}]}",
         "output \"y\" twice");
  refuse("{" BINDINGS ",\"aliased_io\":[{\"output\":\"y\"}]}", "aliased_io[0].input is absent");
  refuse("{" BINDINGS ",\"aliased_io\":[{\"input\":\"x\"}]}", "aliased_io[0].output is absent");
  refuse("{" BINDINGS ",\"aliased_io\":[{\"output\":\"y\",\"input\":\"x\",\"kind\":\"copy\"}]}",
         "aliased_io[0].kind is \"copy\"");
  /* Without bindings the engine knows the names. */
  struct made made = make_text("{\"aliased_io\":[{\"output\":\"y\",\"input\":\"x\"}]}");
  struct tandem_payload payload;
  assert_int_equal(accept(made, &payload)->alias_count, 1);
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void text_that_two_readers_could_take_for_two_things_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t size;
  } cases[] = {
#define TEXT(text) {text, sizeof text - 1}
      TEXT(""),
      TEXT("[]"),
      TEXT("{"),
      TEXT("{} x"),
      TEXT("{}{}"),
      TEXT("{\"device_id\":0}\0"),
      TEXT("{\"io_bindings\":[{\"name\":\"a\\u0000b\"}]}"),
      TEXT("{\"io_bindings\":[{\"name\":\"a\0b\"}]}"),
      TEXT("{\"io_bindings\":[{\"name\":\"a\nb\"}]}"),
      TEXT("{\"io_bindings\":[{\"name\":\"\xff\"}]}"),
      TEXT("{\"io_bindings\":[{\"name\":\"\xc0\xaf\"}]}"),         /* overlong */
      TEXT("{\"io_bindings\":[{\"name\":\"\xed\xa0\x80\"}]}"),     /* surrogate */
      TEXT("{\"io_bindings\":[{\"name\":\"\xf4\x90\x80\x80\"}]}"), /* beyond the last one */
      TEXT("{\"io_bindings\":[{\"name\":\"a\xe2\x82"),
      TEXT("{\"target_platform\":\"\\q\"}"),
#undef TEXT
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct made made = make(cases[i].text, cases[i].size, plan, sizeof plan);
    assert_refusal(made, TANDEM_BAD_PROGRAM, "the metadata");
    free(made.bytes);
  }
  char *deep = malloc(100000);
  memset(deep, '[', 100000);
  struct made made = make(deep, 100000, plan, sizeof plan);
  assert_refusal(made, TANDEM_BAD_PROGRAM, "no JSON object");
  free(made.bytes);
  free(deep);
  struct tandem_payload payload;
  made =
      make_text("{\"io_bindings\":[{\"name\":\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \\\\u0000 \\u00e9\"}]}");
  assert_string_equal(accept(made, &payload)->bindings[0].name,
                      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \\u0000 \xc3\xa9");
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

/* ---------------------------------------------------------------- named data */

static struct named {
  const char *key;
  const void *data;
  size_t size;
  int got, given_back;
} named;

static enum tandem_status get_named(void *user, const char *key, const void **data, size_t *size,
                                    void **token) {
  struct named *entry = user;
  entry->got++;
  if (strcmp(key, entry->key) != 0)
    return TANDEM_MISSING_DATA;
  *data = entry->data;
  *size = entry->size;
  *token = entry;
  return TANDEM_OK;
}

static void release_named(void *user, void *token) {
  assert_ptr_equal(user, token);
  ((struct named *)user)->given_back++;
}

static const struct tandem_named_data named_data = {get_named, release_named, &named};

static void an_engine_in_named_data_is_read_once_and_given_back(void **state) {
  (void)state;
  struct made made = make("{\"engine_key\":\"w0\"}", 19, NULL, 0);
  struct tandem_payload payload;
  struct tandem_error error;
  named = (struct named){"w0", plan, sizeof plan, 0, 0};
  assert_int_equal(td_trt_parse(&td_host, made.bytes, made.size, &named_data, &payload, &error), TANDEM_OK);
  assert_ptr_equal(payload.engine, plan);
  assert_int_equal(payload.engine_size, sizeof plan);
  assert_int_equal(named.got, 1);
  assert_int_equal(named.given_back, 0);
  td_trt_payload_destroy(&payload);
  assert_int_equal(named.given_back, 1);
  free(made.bytes);
}

static void named_data_that_is_missing_is_an_error_of_its_own(void **state) {
  (void)state;
  struct made made = make("{\"engine_key\":\"w0\"}", 19, NULL, 0);
  struct tandem_payload payload;
  struct tandem_error error = {0};
  named = (struct named){"other", plan, sizeof plan, 0, 0};
  assert_int_equal(td_trt_parse(&td_host, made.bytes, made.size, &named_data, &payload, &error),
                   TANDEM_MISSING_DATA);
  assert_non_null(strstr(error.message, "\"w0\""));
  assert_int_equal(named.given_back, 0);
  named = (struct named){"w0", plan, 0, 0, 0};
  assert_int_equal(td_trt_parse(&td_host, made.bytes, made.size, &named_data, &payload, &error),
                   TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "\"w0\""));
  assert_int_equal(named.given_back, 1);
  /* Without named data it can be described, not loaded. */
  assert_int_equal(td_trt_parse(&td_host, made.bytes, made.size, NULL, &payload, &error), TANDEM_OK);
  struct tandem_resolution resolution;
  const char *const options[TD_TRT_OPTION_COUNT] = {"", "false"};
  assert_int_equal(td_trt_resolve(&payload, options, &resolution, &error), TANDEM_MISSING_DATA);
  assert_non_null(strstr(error.message, "\"w0\""));
  td_trt_payload_destroy(&payload);
  free(made.bytes);
}

static void an_engine_is_in_one_place(void **state) {
  (void)state;
  refuse("{\"engine_key\":\"w0\"}", "engine_size is 40 though");
  refuse("{\"engine_key\":7}", "engine_key is 7");
  struct made made = make("{}", 2, NULL, 0);
  assert_refusal(made, TANDEM_BAD_PROGRAM, "no engine_key");
  free(made.bytes);
}

/* ---------------------------------------------------------------- as a load sees it */

static void a_bad_payload_is_refused_before_a_library_is_looked_for(void **state) {
  (void)state;
  struct made made = make_text("{\"device_id\":-1}");
  struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                  .backend = "TensorRTBackend",
                                  .payload = made.bytes,
                                  .payload_size = made.size};
  struct tandem_load *load;
  struct tandem_error error;
  assert_int_equal(setenv("TANDEM_TENSORRT_LIBRARY", "/nowhere/libnvinfer.so", 1), 0);
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "device_id is -1"));
  free(made.bytes);
  made = make_text("{}");
  desc.payload = made.bytes;
  desc.payload_size = made.size;
  assert_int_equal(tandem_load_create(&desc, &load, &error), TANDEM_UNAVAILABLE);
  assert_non_null(strstr(error.message, "TANDEM_TENSORRT_LIBRARY=/nowhere/libnvinfer.so"));
  unsetenv("TANDEM_TENSORRT_LIBRARY");
  free(made.bytes);
}

static void an_unknown_runtime_is_named(void **state) {
  (void)state;
  struct tandem_vendor_library library = {0};
  struct tandem_error error;
  setenv("TANDEM_TENSORRT_RUNTIME", "fat", 1);
  assert_int_equal(td_trt_open(&td_host, &library, &error), TANDEM_UNAVAILABLE);
  assert_non_null(strstr(error.message, "TANDEM_TENSORRT_RUNTIME=fat, expected full, lean or rtx"));
  unsetenv("TANDEM_TENSORRT_RUNTIME");
}

static void collect(void *user, const char *key, const char *value) {
  char *text = user;
  size_t used = strlen(text);
  snprintf(text + used, 4096 - used, "%s: %s\n", key, value);
}

static void facts_are_told_without_a_library(void **state) {
  (void)state;
  struct made made = make_text("{" BINDINGS ",\"aliased_io\":[{\"output\":\"kept\",\"input\":\"cache\"}],"
                               "\"hardware_compatible\":true,\"device_id\":1,\"target_platform\":\"linux\"}");
  char text[4096] = "";
  struct tandem_error error;
  made.bytes[3] = '2';
  assert_int_equal(tandem_payload_describe("TensorRTBackend", made.bytes, made.size, collect, text, &error),
                   TANDEM_OK);
  static const char *const expected[] = {
      "kind: tensorrt\n",
      "format: TR02\n",
      "engine_size: 40\n",
      "device_id: 1\n",
      "hardware_compatible: true\n",
      "target_platform: linux\n",
      "binding input 0: x float32 [-1, 8]\n",
      "binding output 2: y int64 []\n",
      "binding output 3: kept\n",
      "alias 0: output kept updates input cache (kv_cache_update)\n",
  };
  for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
    if (strstr(text, expected[i]) == NULL)
      fail_msg("no \"%s\" in:\n%s", expected[i], text);
  free(made.bytes);
}

static void no_allocation_that_fails_leaves_anything(void **state) {
  (void)state;
  struct made made =
      make("{\"engine_key\":\"w0\"," BINDINGS ",\"aliased_io\":[{\"output\":\"y\",\"input\":\"x\"}]}",
           strlen("{\"engine_key\":\"w0\"," BINDINGS ",\"aliased_io\":[{\"output\":\"y\",\"input\":\"x\"}]}"),
           NULL, 0);
  struct tandem_payload payload;
  struct tandem_error error;
  enum tandem_status status = TANDEM_OUT_OF_MEMORY;
  uint64_t live = td_memory_live(), n;
  named = (struct named){"w0", plan, sizeof plan, 0, 0};
  for (n = 1; status != TANDEM_OK; n++) {
    td_memory_fail_at(n);
    status = td_trt_parse(&td_host, made.bytes, made.size, &named_data, &payload, &error);
    td_memory_fail_at(0);
    if (status != TANDEM_OK) {
      assert_int_equal(status, TANDEM_OUT_OF_MEMORY);
      assert_int_equal(td_memory_live(), live);
      assert_int_equal(named.got, named.given_back);
    }
  }
  assert_true(n > 3); /* state, bindings, aliases */
  td_trt_payload_destroy(&payload);
  assert_int_equal(td_memory_live(), live);
  free(made.bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_field_is_read),
      cmocka_unit_test(an_empty_object_leaves_names_and_order_to_the_engine),
      cmocka_unit_test(the_stand_ins_payloads_are_read),
      cmocka_unit_test(sizes_and_offsets_that_lie_or_wrap_are_refused_by_name),
      cmocka_unit_test(metadata_may_end_where_the_engine_begins),
      cmocka_unit_test(a_payload_cut_anywhere_is_refused),
      cmocka_unit_test(other_magics_are_refused_and_reserved_bytes_ignored),
      cmocka_unit_test(a_device_id_is_a_whole_number_of_int32),
      cmocka_unit_test(numbers_are_those_of_json),
      cmocka_unit_test(bindings_are_checked_by_name),
      cmocka_unit_test(aliases_name_known_bindings_and_each_output_once),
      cmocka_unit_test(text_that_two_readers_could_take_for_two_things_is_refused),
      cmocka_unit_test(an_engine_in_named_data_is_read_once_and_given_back),
      cmocka_unit_test(named_data_that_is_missing_is_an_error_of_its_own),
      cmocka_unit_test(an_engine_is_in_one_place),
      cmocka_unit_test(a_bad_payload_is_refused_before_a_library_is_looked_for),
      cmocka_unit_test(an_unknown_runtime_is_named),
      cmocka_unit_test(facts_are_told_without_a_library),
      cmocka_unit_test(no_allocation_that_fails_leaves_anything),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
