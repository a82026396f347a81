/* Engine bytes that lie outside the payload count for the identity: by value, part by part, wherever they
 * lie. The vendor here makes its engine of the payload and of two named entries. */
#include "base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* What a program keeps outside: the keys are the same in every one. */
struct outside {
  const char *first, *second;
};

struct state {
  const struct tandem_host *host;
  struct tandem_part parts[2];
};

static unsigned builds;
static struct state built_of; /* by the last build */
static int rewritten = -1;    /* a file that the next build rewrites, as somebody else might just then */

static enum tandem_status open_nothing(const struct tandem_host *host, struct tandem_vendor_library *library,
                                       struct tandem_error *error) {
  (void)host, (void)library, (void)error;
  return TANDEM_OK;
}

static enum tandem_status parse(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_named_data *named, struct tandem_payload *payload,
                                struct tandem_error *error) {
  static const char *const keys[] = {"first", "second"};
  struct state *state = host->allocate(sizeof *state);
  void *token;
  if (state == NULL)
    return (host->fail)(error, TANDEM_OUT_OF_MEMORY, "no memory");
  state->host = host;
  for (size_t i = 0; i < 2; i++)
    if (named->get(named->user, keys[i], &state->parts[i].data, &state->parts[i].size, &token) != TANDEM_OK) {
      host->release(state);
      return (host->fail)(error, TANDEM_MISSING_DATA, "the program lacks %s", keys[i]);
    }
  *payload = (struct tandem_payload){
      .engine = bytes, .engine_size = size, .parts = state->parts, .part_count = 2, .state = state};
  return TANDEM_OK;
}

static void destroy_payload(struct tandem_payload *payload) {
  struct state *state = payload->state;
  state->host->release(state);
}

static enum tandem_status resolve(const struct tandem_payload *payload, const char *const *options,
                                  struct tandem_resolution *resolution, struct tandem_error *error) {
  (void)payload, (void)options, (void)error;
  *resolution = (struct tandem_resolution){.device = "CPU"};
  return TANDEM_OK;
}

static enum tandem_status build(const struct tandem_build_desc *desc, void **engine,
                                struct tandem_engine_info *info, struct tandem_error *error) {
  (void)error;
  assert_int_equal(desc->part_count, 2);
  memcpy(built_of.parts, desc->parts, sizeof built_of.parts);
  builds++;
  if (rewritten >= 0) {
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}}; /* coarse clocks */
    assert_int_equal(pwrite(rewritten, "W", 1, 0), 1);
    assert_int_equal(futimens(rewritten, times), 0);
    rewritten = -1;
  }
  *info = (struct tandem_engine_info){.effective_budget = -1};
  *engine = &builds;
  return TANDEM_OK;
}

static void destroy(void *any) {
  (void)any;
}

static enum tandem_status create_context(void *engine, const struct tandem_context_desc *desc, void **context,
                                         struct tandem_context_io *io, struct tandem_error *error) {
  (void)desc, (void)error;
  *io = (struct tandem_context_io){0};
  *context = engine;
  return TANDEM_OK;
}

static enum tandem_status run(void *context, const struct tandem_run_desc *desc, struct tandem_error *error) {
  (void)context, (void)desc, (void)error;
  return TANDEM_OK;
}

static const struct tandem_vendor vendor = {.abi_version = TANDEM_VENDOR_ABI,
                                            .struct_size = sizeof(struct tandem_vendor),
                                            .name = "parts",
                                            .backend = "PartsBackend",
                                            .open = open_nothing,
                                            .parse = parse,
                                            .payload_destroy = destroy_payload,
                                            .resolve = resolve,
                                            .build = build,
                                            .engine_destroy = destroy,
                                            .context_create = create_context,
                                            .context_destroy = destroy,
                                            .run = run};

static enum tandem_status get(void *user, const char *key, const void **data, size_t *size, void **token) {
  const struct outside *outside = user;
  const char *text = strcmp(key, "first") == 0 ? outside->first : outside->second;
  *token = NULL;
  *data = text;
  *size = text != NULL ? strlen(text) : 0;
  return text != NULL ? TANDEM_OK : TANDEM_MISSING_DATA;
}

static void release(void *user, void *token) {
  (void)user, (void)token;
}

static enum tandem_status load(const struct outside *outside, const struct tandem_option *option,
                               struct tandem_load **made, struct tandem_error *error) {
  struct outside copy = *outside;
  const struct tandem_named_data named = {.get = get, .release = release, .user = &copy};
  const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                        .backend = "PartsBackend",
                                        .payload = "keys",
                                        .payload_size = 4,
                                        .named_data = &named,
                                        .options = option,
                                        .option_count = option != NULL};
  return tandem_load_create(&desc, made, error);
}

static uint64_t engine_of(const struct tandem_load *made) {
  struct tandem_load_info info = {.struct_size = sizeof info};
  assert_int_equal(tandem_load_get_info(made, &info, NULL), TANDEM_OK);
  return info.engine_id;
}

static void equal_keys_with_other_values_give_two_engines(void **state) {
  (void)state;
  const struct outside values[] = {{"weights", "biases"}, {"weights", "biased"}, {"Weights", "biases"},
                                   {"weight", "sbiases"}, {"biases", "weights"}, {"weightsbiases", ""}};
  enum { VALUES = sizeof values / sizeof values[0] };
  struct tandem_load *loads[VALUES], *again;
  builds = 0;
  for (size_t i = 0; i < VALUES; i++) {
    assert_int_equal(load(&values[i], NULL, &loads[i], NULL), TANDEM_OK);
    assert_int_equal(builds, i + 1);
    assert_memory_equal(built_of.parts[0].data, values[i].first, built_of.parts[0].size);
    assert_int_equal(built_of.parts[1].size, strlen(values[i].second));
    for (size_t k = 0; k < i; k++)
      assert_true(engine_of(loads[i]) != engine_of(loads[k]));
  }
  for (size_t i = 0; i < VALUES; i++) {
    assert_int_equal(load(&values[i], NULL, &again, NULL), TANDEM_OK);
    assert_int_equal(engine_of(again), engine_of(loads[i]));
    tandem_load_destroy(again);
  }
  assert_int_equal(builds, VALUES);
  for (size_t i = 0; i < VALUES; i++)
    tandem_load_destroy(loads[i]);
}

static void an_approved_sum_covers_the_parts(void **state) {
  (void)state;
  const struct outside good = {"weights", "biases"}, bad = {"weights", "biased"};
  struct tandem_load *made = NULL;
  struct tandem_error error = {0};
  char sum[65];
  assert_int_equal(tandem_sha256("keysweightsbiases", 17, sum, NULL), TANDEM_OK);
  const struct tandem_option option = {"expect_sha256", sum};
  assert_int_equal(load(&bad, &option, &made, &error), TANDEM_BAD_PROGRAM);
  assert_non_null(strstr(error.message, "expect_sha256"));
  assert_int_equal(load(&good, &option, &made, NULL), TANDEM_OK);
  tandem_load_destroy(made);
}

static void an_engine_whose_part_was_rewritten_is_not_shared(void **state) {
  (void)state;
  char path[] = "/tmp/tandem-part-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  assert_int_equal(write(file, "weights", 8), 8);
  const char *map = mmap(NULL, 8, PROT_READ, MAP_SHARED, file, 0);
  assert_ptr_not_equal(map, MAP_FAILED);
  const struct outside mapped = {map, "biases"}, same = {"weights", "biases"};
  struct tandem_load *first = NULL, *second = NULL;
  rewritten = file;
  assert_int_equal(load(&mapped, NULL, &first, NULL), TANDEM_OK);
  assert_int_equal(load(&same, NULL, &second, NULL), TANDEM_OK);
  assert_true(engine_of(first) != engine_of(second));
  tandem_load_destroy(first);
  tandem_load_destroy(second);
  munmap((void *)map, 8);
  close(file);
  unlink(path);
}

static void what_an_engine_costs_is_estimated_with_its_parts(void **state) {
  (void)state;
  const struct outside values = {"weights", "biases"};
  struct tandem_load_info info = {.struct_size = sizeof info};
  struct tandem_load *made = NULL;
  assert_int_equal(load(&values, NULL, &made, NULL), TANDEM_OK);
  assert_int_equal(tandem_load_get_info(made, &info, NULL), TANDEM_OK);
  assert_true(info.engine_bytes_estimated);
  assert_int_equal(info.engine_bytes, 4 + 7 + 6);
  tandem_load_destroy(made);
}

static void a_part_that_is_not_there_is_told(void **state) {
  (void)state;
  const struct outside values = {"weights", NULL};
  struct tandem_load *made = NULL;
  struct tandem_error error = {0};
  assert_int_equal(load(&values, NULL, &made, &error), TANDEM_MISSING_DATA);
  assert_non_null(strstr(error.message, "second"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_keys_with_other_values_give_two_engines),
      cmocka_unit_test(an_approved_sum_covers_the_parts),
      cmocka_unit_test(an_engine_whose_part_was_rewritten_is_not_shared),
      cmocka_unit_test(what_an_engine_costs_is_estimated_with_its_parts),
      cmocka_unit_test(a_part_that_is_not_there_is_told),
  };
  if (tandem_vendor_register(&vendor, NULL) != TANDEM_OK)
    return 1;
  return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
