/* The registry: what it takes and refuses, libraries that are opened once, by one thread, and tried again. */
#include "base.h"
#include "bound.h"
#include "scene.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct fake_vendor *fake;
static struct fake_model model = {.rank = 1, .min = {4}, .max = {4}, .cost = 10, .seed = 1};
static void *payload;
static size_t size;

static int begin(void **state) {
  (void)state;
  if (fake)
    fake_vendor_reset(fake);
  scene_watch_log(NULL, NULL);
  scene_watch_waits(NULL, NULL);
  return 0;
}

static int end(void **state) {
  (void)state;
  bound_set("", 0);
  return scene_stats().engines == 0 ? 0 : -1;
}

static void assert_refused(const struct tandem_vendor *vendor, enum tandem_status status, const char *named) {
  struct tandem_error error = {0};
  size_t count = tandem_vendor_count();
  assert_int_equal(tandem_vendor_register(vendor, &error), status);
  if (!strstr(error.message, named))
    fail_msg("\"%s\" does not name %s", error.message, named);
  assert_int_equal(tandem_vendor_count(), count);
}

static void a_table_that_lacks_something_is_refused_by_name(void **state) {
  (void)state;
  const struct tandem_vendor whole = *fake_vendor_table(fake);
  struct tandem_vendor vendor = whole;
  vendor.name = "another";
  vendor.backend = "AnotherBackend";
#define LACKS(field)                                                                                         \
  do {                                                                                                       \
    struct tandem_vendor lacking = vendor;                                                                   \
    lacking.field = NULL;                                                                                    \
    assert_refused(&lacking, TANDEM_INVALID_ARGUMENT, #field);                                               \
  } while (0)
  LACKS(name);
  LACKS(backend);
  LACKS(open);
  LACKS(parse);
  LACKS(payload_destroy);
  LACKS(resolve);
  LACKS(build);
  LACKS(engine_destroy);
  LACKS(context_create);
  LACKS(context_destroy);
  LACKS(run);
  assert_refused(NULL, TANDEM_INVALID_ARGUMENT, "vendor");
  struct tandem_vendor strange = vendor;
  strange.abi_version = 7;
  assert_refused(&strange, TANDEM_INVALID_ARGUMENT, "7");
  strange = vendor;
  strange.struct_size = 8;
  assert_refused(&strange, TANDEM_INVALID_ARGUMENT, "8");
  strange = vendor;
  strange.name = "";
  assert_refused(&strange, TANDEM_INVALID_ARGUMENT, "name");
  strange = vendor;
  strange.options = NULL;
  assert_refused(&strange, TANDEM_INVALID_ARGUMENT, "options");
  strange = vendor;
  strange.option_count = TD_VENDOR_OPTIONS_MAX + 1;
  assert_refused(&strange, TANDEM_INVALID_ARGUMENT, "options");
}

static void an_option_that_would_mislead_is_refused_by_name(void **state) {
  (void)state;
  struct tandem_vendor vendor = *fake_vendor_table(fake);
  vendor.name = "another";
  vendor.backend = "AnotherBackend";
  vendor.option_count = 2;
  static const struct {
    struct tandem_vendor_option option;
    const char *words[2];
  } cases[] = {
      {{.name = NULL}, {"option 1", "no name"}},
      {{.name = ""}, {"option 1", "no name"}},
      {{.name = "knob", .kind = (enum tandem_option_kind)(TANDEM_OPTION_CHOICE + 1)}, {"knob", "kind 4"}},
      {{.name = "knob", .kind = (enum tandem_option_kind) - 1}, {"knob", "kind -1"}},
      {{.name = "knob", .kind = TANDEM_OPTION_CHOICE}, {"knob", "without choices"}},
      {{.name = "knob", .kind = TANDEM_OPTION_CHOICE, .choices = ""}, {"knob", "without choices"}},
      {{.name = "use_shared_engines", .kind = TANDEM_OPTION_BOOL}, {"use_shared_engines", "rename"}},
      {{.name = "trust_domain"}, {"trust_domain", "rename"}},
      {{.name = "use_cuda_graphs"}, {"use_cuda_graphs", "rename"}}, /* upstream's spelling */
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct tandem_vendor_option rows[] = {{.name = "good", .kind = TANDEM_OPTION_COUNT}, cases[i].option};
    vendor.options = rows;
    for (int k = 0; k < 2; k++)
      assert_refused(&vendor, TANDEM_INVALID_ARGUMENT, cases[i].words[k]);
    assert_refused(&vendor, TANDEM_INVALID_ARGUMENT, "another");
  }
}

static void a_name_or_backend_is_taken_once(void **state) {
  (void)state;
  struct tandem_vendor vendor = *fake_vendor_table(fake);
  assert_refused(&vendor, TANDEM_INVALID_STATE, vendor.name);
  vendor.name = "another";
  assert_refused(&vendor, TANDEM_INVALID_STATE, vendor.backend);
  vendor.name = fake_vendor_table(fake)->name;
  vendor.backend = "AnotherBackend";
  assert_refused(&vendor, TANDEM_INVALID_STATE, vendor.name);
  vendor.name = "openvino"; /* built in */
  assert_refused(&vendor, TANDEM_INVALID_STATE, "openvino");
}

static void a_vendor_is_found_by_name_and_by_backend(void **state) {
  (void)state;
  const struct tandem_vendor *by_name, *by_backend, *none = (const void *)1;
  struct tandem_error error = {0};
  assert_int_equal(td_vendor_find("fake", &by_name, &error), TANDEM_OK);
  assert_int_equal(td_vendor_find("FakeBackend", &by_backend, &error), TANDEM_OK);
  assert_ptr_equal(by_name, by_backend);
  assert_int_equal(td_vendor_find("nobody", &none, &error), TANDEM_NOT_FOUND);
  assert_null(none);
  assert_non_null(strstr(error.message, "nobody"));
  assert_non_null(strstr(error.message, "OpenvinoBackend, TensorRTBackend, "));
  assert_non_null(strstr(error.message, "FakeBackend"));
}

static size_t index_of(const char *name) {
  struct tandem_vendor_info info = {.struct_size = sizeof info};
  for (size_t i = 0; i < tandem_vendor_count(); i++)
    if (strcmp(td_vendor_at(i)->name, name) == 0)
      return i;
  fail_msg("%s is not registered", name);
  (void)info;
  return 0;
}

static void a_library_that_failed_to_start_is_tried_again(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *fresh = fake_vendor_create("fresh", "FreshBackend", 0);
  assert_non_null(fresh);
  fake_fail_at(fresh, FAKE_OPEN, 1, 2, TANDEM_UNAVAILABLE, "libfresh.so is not there; install it");
  struct scene_load load = scene_load(fresh, payload, size, NULL);
  struct tandem_vendor_info info = {.struct_size = sizeof info};
  struct tandem_error error = {0};
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_UNAVAILABLE);
  assert_non_null(strstr(load.error.message, "install it"));
  assert_int_equal(tandem_vendor_get_info(index_of("fresh"), &info, &error), TANDEM_OK);
  assert_false(info.available);
  assert_non_null(strstr(info.reason, "install it"));
  assert_string_equal(info.name, "fresh");
  assert_string_equal(info.backend, "FreshBackend");
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OK);
  assert_int_equal(tandem_vendor_get_info(index_of("fresh"), &info, &error), TANDEM_OK);
  assert_true(info.available);
  assert_string_equal(info.version, "1.0-fake");
  assert_string_equal(info.reason, "");
  assert_int_equal(fake_count(fresh, FAKE_OPEN), 3); /* and not once more after it succeeded */
  struct tandem_load_info load_info = scene_info(&load);
  assert_string_equal(load_info.vendor, "fresh");
  assert_string_equal(load_info.vendor_version, "1.0-fake");
  assert_string_equal(load_info.device, "fake:0");
  scene_destroy(&load);
}

static void open_runs_alone_and_others_wait_with_hooks(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *slow = fake_vendor_create("slow", "SlowBackend", 0);
  assert_non_null(slow);
  fake_gate_close(slow, FAKE_OPEN);
  struct scene_load loads[3];
  for (int i = 0; i < 3; i++) {
    loads[i] = scene_load(slow, payload, size, NULL);
    scene_start(&loads[i]);
  }
  assert_true(fake_wait_inside(slow, FAKE_OPEN, 1));
  assert_true(scene_wait_waiting(2));
  fake_gate_open(slow, FAKE_OPEN);
  for (int i = 0; i < 3; i++) {
    scene_join(&loads[i]);
    assert_int_equal(loads[i].status, TANDEM_OK);
  }
  assert_int_equal(fake_count(slow, FAKE_OPEN), 1);
  for (int i = 0; i < 3; i++)
    scene_destroy(&loads[i]);
}

static void after_a_failed_open_the_waiters_try_one_at_a_time(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *shaky = fake_vendor_create("shaky", "ShakyBackend", 0);
  assert_non_null(shaky);
  fake_gate_close(shaky, FAKE_OPEN);
  fake_fail_at(shaky, FAKE_OPEN, 1, 1, TANDEM_UNAVAILABLE, "not yet");
  struct scene_load loads[3];
  for (int i = 0; i < 3; i++) {
    loads[i] = scene_load(shaky, payload, size, NULL);
    scene_start(&loads[i]);
  }
  assert_true(fake_wait_inside(shaky, FAKE_OPEN, 1));
  assert_true(scene_wait_waiting(2));
  fake_gate_open(shaky, FAKE_OPEN);
  int failed = 0;
  for (int i = 0; i < 3; i++) {
    scene_join(&loads[i]);
    failed += loads[i].status != TANDEM_OK;
    scene_destroy(&loads[i]);
  }
  assert_int_equal(failed, 1);
  assert_int_equal(fake_peak_inside(shaky, FAKE_OPEN), 1);
  assert_int_equal(fake_count(shaky, FAKE_OPEN), 2);
}

static void a_forked_child_opens_what_another_thread_was_opening(void **state) {
  (void)state;
  BOUND(30);
  struct fake_vendor *midway = fake_vendor_create("midway", "MidwayBackend", TANDEM_VENDOR_SURVIVES_FORK);
  assert_non_null(midway);
  struct scene_load load = scene_load(midway, payload, size, NULL);
  fake_gate_close(midway, FAKE_OPEN);
  scene_start(&load);
  assert_true(fake_wait_inside(midway, FAKE_OPEN, 1));
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    bound_set("the child of a_forked_child_opens_what_another_thread_was_opening", 5);
    fake_vendor_reset(midway);
    struct scene_load mine = scene_load(midway, payload, size, NULL);
    scene_make(&mine);
    bool runs = mine.status == TANDEM_OK && scene_runs(&mine, &model, 0);
    scene_destroy(&mine);
    bound_end_child(runs ? 0 : 1);
  }
  int status = -1;
  assert_true(child > 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  fake_gate_open(midway, FAKE_OPEN);
  scene_join(&load);
  assert_int_equal(load.status, TANDEM_OK);
  scene_destroy(&load);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct inner {
  struct scene_load load;
};

static void load_inside(void *user) {
  scene_make(&((struct inner *)user)->load);
}

static void a_load_inside_open_of_its_vendor_is_an_error_and_no_hang(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *inward = fake_vendor_create("inward", "InwardBackend", 0);
  assert_non_null(inward);
  struct inner inner = {.load = scene_load(inward, payload, size, NULL)};
  fake_call_back(inward, FAKE_OPEN, 1, load_inside, &inner);
  struct scene_load load = scene_load(inward, payload, size, NULL);
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OK);
  assert_int_equal(inner.load.status, TANDEM_INVALID_STATE);
  assert_non_null(strstr(inner.load.error.message, "inward"));
  scene_destroy(&load);
}

static void a_vendor_without_optional_entries_works(void **state) {
  (void)state;
  BOUND(20);
  static char name[] = "bare", backend[] = "BareBackend";
  static struct tandem_vendor vendor;
  struct fake_vendor *base = fake_vendor_create("base", "BaseBackend", 0);
  assert_non_null(base);
  vendor = *fake_vendor_table(base);
  vendor.name = name;
  vendor.backend = backend;
  vendor.describe = NULL;
  vendor.reset = NULL;
  vendor.memory = NULL;
  assert_int_equal(tandem_vendor_register(&vendor, NULL), TANDEM_OK);
  struct scene_load load = scene_load(base, payload, size, NULL);
  load.backend = backend;
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OK);
  assert_int_equal(tandem_load_reset(load.load, NULL), TANDEM_OK);
  assert_true(scene_runs(&load, &model, 0));
  scene_destroy(&load);
  fake_set_memory(base, 1);
  scene_make(&load);
  assert_int_equal(load.status, TANDEM_OUT_OF_MEMORY);
  assert_non_null(strstr(load.error.message, "not known"));
  size_t facts = 0;
  assert_int_equal(tandem_payload_describe("bare", payload, size, (tandem_fact_fn)abort, &facts, NULL),
                   TANDEM_OK);
}

static uint64_t empty_builds;

static enum tandem_status build_nothing(const struct tandem_build_desc *desc, void **engine,
                                        struct tandem_engine_info *info, struct tandem_error *error) {
  (void)desc, (void)engine, (void)info, (void)error;
  empty_builds++;
  return TANDEM_OK;
}

static void a_build_without_an_engine_is_an_internal_error_and_leaves_nothing(void **state) {
  (void)state;
  BOUND(20);
  static struct tandem_vendor vendor; /* keeps bytes, which are to go too */
  struct fake_vendor *base = fake_vendor_create("hollow base", "HollowBaseBackend", 0);
  assert_non_null(base);
  vendor = *fake_vendor_table(base);
  vendor.name = "hollow";
  vendor.backend = "HollowBackend";
  vendor.flags = TANDEM_VENDOR_KEEPS_ENGINE_BYTES;
  vendor.build = build_nothing;
  assert_int_equal(tandem_vendor_register(&vendor, NULL), TANDEM_OK);
  uint64_t live = 0;
  for (uint64_t i = 0; i < 3; i++) {
    struct scene_load load =
        scene_load(base, payload, size, "use_shared_engines", i == 2 ? "false" : "true", NULL);
    load.backend = vendor.backend;
    scene_make(&load);
    assert_int_equal(load.status, TANDEM_INTERNAL);
    assert_null(load.load);
    assert_non_null(strstr(load.error.message, "hollow"));
    assert_non_null(strstr(load.error.message, "no engine"));
    assert_int_equal(empty_builds, i + 1); /* no entry is left to find */
    assert_int_equal(fake_count(base, FAKE_CONTEXT_CREATE) + fake_count(base, FAKE_ENGINE_DESTROY), 0);
    assert_int_equal(fake_live_payloads(base), 0);
    assert_int_equal(scene_stats().engines, 0);
    if (i == 0)
      live = td_memory_live();
    assert_int_equal(td_memory_live(), live);
  }
}

static void keep_fact(void *user, const char *key, const char *value) {
  char *text = user;
  size_t used = strlen(text);
  snprintf(text + used, 256 - used, "%s=%s;", key, value);
}

static void describing_a_payload_opens_no_library(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *shut = fake_vendor_create("shut", "ShutBackend", 0);
  assert_non_null(shut);
  char text[256] = "";
  struct tandem_error error = {0};
  assert_int_equal(tandem_payload_describe("ShutBackend", payload, size, keep_fact, text, &error), TANDEM_OK);
  assert_non_null(strstr(text, "kind=fake engine;"));
  assert_int_equal(fake_count(shut, FAKE_OPEN), 0);
  assert_int_equal(fake_live_payloads(shut), 0);
  assert_int_equal(tandem_payload_describe("ShutBackend", payload, 5, keep_fact, text, &error),
                   TANDEM_BAD_PROGRAM);
  assert_true(error.message[0] != 0);
  assert_int_equal(tandem_payload_describe("nobody", payload, size, keep_fact, text, &error),
                   TANDEM_NOT_FOUND);
  assert_int_equal(tandem_payload_describe(NULL, payload, size, keep_fact, text, &error),
                   TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_payload_describe("shut", NULL, 3, keep_fact, text, &error),
                   TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_payload_describe("shut", payload, size, NULL, text, &error),
                   TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_payload_describe("shut", payload, 5, keep_fact, text, NULL), TANDEM_BAD_PROGRAM);
}

static void a_load_expects_the_sha256_that_a_payload_tells(void **state) {
  (void)state;
  BOUND(20);
  struct fake_vendor *told = fake_vendor_create("told", "ToldBackend", 0);
  assert_non_null(told);
  char hex[65] = "";
  struct tandem_error error = {0};
  assert_int_equal(tandem_payload_sha256("ToldBackend", payload, size, NULL, hex, &error), TANDEM_OK);
  assert_int_equal(strlen(hex), 64);
  assert_int_equal(fake_count(told, FAKE_OPEN), 0);
  assert_int_equal(fake_live_payloads(told), 0);
  char wrong[65];
  snprintf(wrong, sizeof wrong, "%064d", 0);
  for (int right = 0; right < 2; right++) {
    const struct tandem_option option = {"expect_sha256", right ? hex : wrong};
    const struct tandem_load_desc desc = {.struct_size = sizeof desc,
                                          .backend = "ToldBackend",
                                          .payload = payload,
                                          .payload_size = size,
                                          .options = &option,
                                          .option_count = 1};
    struct tandem_load *load = NULL;
    assert_int_equal(tandem_load_create(&desc, &load, &error), right ? TANDEM_OK : TANDEM_BAD_PROGRAM);
    tandem_load_destroy(load);
  }
  assert_int_equal(tandem_payload_sha256("told", payload, 5, NULL, hex, &error), TANDEM_BAD_PROGRAM);
  assert_int_equal(tandem_payload_sha256("nobody", payload, size, NULL, hex, &error), TANDEM_NOT_FOUND);
  assert_int_equal(tandem_payload_sha256(NULL, payload, size, NULL, hex, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_payload_sha256("told", NULL, 3, NULL, hex, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_payload_sha256("told", payload, size, NULL, NULL, &error), TANDEM_INVALID_ARGUMENT);
}

static void information_of_no_vendor_is_refused(void **state) {
  (void)state;
  struct tandem_vendor_info info = {.struct_size = sizeof info};
  struct tandem_error error = {0};
  assert_int_equal(tandem_vendor_get_info(10000, &info, &error), TANDEM_INVALID_ARGUMENT);
  assert_non_null(strstr(error.message, "10000"));
  info.struct_size = 1;
  assert_int_equal(tandem_vendor_get_info(0, &info, &error), TANDEM_INVALID_ARGUMENT);
  assert_int_equal(tandem_vendor_get_info(0, NULL, &error), TANDEM_INVALID_ARGUMENT);
  assert_null(td_vendor_at(10000));
  assert_null(tandem_vendor_backend(10000));
  assert_string_equal(tandem_vendor_backend(index_of("fake")), "FakeBackend");
}

static void libraries_are_opened_with_their_path_and_missing_ones_told_apart(void **state) {
  (void)state;
  char path[512] = "x", short_path[4];
  struct tandem_error error = {0};
  void *library = td_host.library_open("libm.so.6", path, sizeof path, &error);
  assert_non_null(library);
  assert_int_equal(path[0], '/');
  assert_non_null(td_host.library_symbol(library, "cos"));
  assert_null(td_host.library_symbol(library, "no_such_symbol"));
  assert_non_null(td_host.library_open("libm.so.6", short_path, sizeof short_path, &error));
  assert_int_equal(strlen(short_path), sizeof short_path - 1);
  assert_non_null(td_host.library_open("libm.so.6", NULL, 0, NULL));
  assert_null(td_host.library_open("/no/such/library.so", path, sizeof path, &error));
  assert_int_equal(error.code, TANDEM_NOT_FOUND);
  assert_string_equal(path, "");
  char broken[] = "/tmp/tandem-broken-XXXXXX";
  int file = mkstemp(broken);
  assert_true(file >= 0);
  assert_int_equal(write(file, "no library", 10), 10);
  close(file);
  assert_null(td_host.library_open(broken, path, sizeof path, &error));
  assert_int_equal(error.code, TANDEM_UNAVAILABLE);
  assert_non_null(strstr(error.message, broken));
  unlink(broken);
}

static void the_host_allocates_zeroed_memory(void **state) {
  (void)state;
  unsigned char *memory = td_host.allocate(100);
  assert_non_null(memory);
  for (int i = 0; i < 100; i++)
    assert_int_equal(memory[i], 0);
  td_host.release(memory);
  td_host.release(NULL);
  struct tandem_error error = {0}; /* in parentheses below: cmocka has a macro of that name */
  assert_int_equal((td_host.fail)(&error, TANDEM_BAD_PROGRAM, "%s %d", "field", 7), TANDEM_BAD_PROGRAM);
  assert_string_equal(error.message, "field 7");
  assert_int_equal((td_host.fail)(NULL, TANDEM_INTERNAL, "nobody listens"), TANDEM_INTERNAL);
}

static struct tandem_host_lock host_lock;

static void *lock_alone_there(void *user) {
  td_host.lock_alone(&host_lock);
  *(bool *)user = true;
  td_host.unlock(&host_lock);
  return NULL;
}

static void *lock_shared_there(void *user) {
  td_host.lock_shared(&host_lock);
  *(bool *)user = true;
  td_host.unlock(&host_lock);
  return NULL;
}

static void a_lock_of_the_host_is_shared_or_alone_and_its_waits_are_told(void **state) {
  (void)state;
  BOUND(20);
  pthread_t thread;
  bool had = false;
  td_host.lock_shared(&host_lock);
  assert_int_equal(pthread_create(&thread, NULL, lock_shared_there, &had), 0);
  pthread_join(thread, NULL); /* at once with ours */
  assert_true(had);
  assert_int_equal(scene_waits_begun(), 0);
  had = false;
  assert_int_equal(pthread_create(&thread, NULL, lock_alone_there, &had), 0);
  assert_true(scene_wait_waiting(1));
  td_host.unlock(&host_lock);
  pthread_join(thread, NULL);
  assert_true(had);
  td_host.lock_alone(&host_lock);
  scene_watch_waits(NULL, NULL);
  had = false;
  assert_int_equal(pthread_create(&thread, NULL, lock_shared_there, &had), 0);
  assert_true(scene_wait_waiting(1));
  td_host.unlock(&host_lock);
  pthread_join(thread, NULL);
  assert_true(had);
  td_host.wait_begin();
  td_host.wait_end();
  assert_int_equal(scene_waits_begun(), scene_waits_ended());
}

/* Last: it fills the registry. */
static void a_full_registry_says_so(void **state) {
  (void)state;
  static struct tandem_vendor vendors[64];
  static char names[64][16];
  struct tandem_error error = {0};
  enum tandem_status status = TANDEM_OK;
  for (size_t i = 0; i < 64 && status == TANDEM_OK; i++) {
    snprintf(names[i], sizeof names[i], "filler %zu", i);
    vendors[i] = *fake_vendor_table(fake);
    vendors[i].name = vendors[i].backend = names[i];
    status = tandem_vendor_register(&vendors[i], &error);
  }
  assert_int_equal(status, TANDEM_INVALID_STATE);
  assert_true(error.message[0] != 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
  fake = fake_vendor_create("fake", "FakeBackend", 0);
  payload = fake_payload_create(&model, &size);
  if (!fake || !payload)
    return 1;
  const struct CMUnitTest tests[] = {
      TEST(a_table_that_lacks_something_is_refused_by_name),
      TEST(an_option_that_would_mislead_is_refused_by_name),
      TEST(a_name_or_backend_is_taken_once),
      TEST(a_vendor_is_found_by_name_and_by_backend),
      TEST(a_library_that_failed_to_start_is_tried_again),
      TEST(open_runs_alone_and_others_wait_with_hooks),
      TEST(after_a_failed_open_the_waiters_try_one_at_a_time),
      TEST(a_forked_child_opens_what_another_thread_was_opening),
      TEST(a_load_inside_open_of_its_vendor_is_an_error_and_no_hang),
      TEST(a_vendor_without_optional_entries_works),
      TEST(a_build_without_an_engine_is_an_internal_error_and_leaves_nothing),
      TEST(describing_a_payload_opens_no_library),
      TEST(a_load_expects_the_sha256_that_a_payload_tells),
      TEST(information_of_no_vendor_is_refused),
      TEST(libraries_are_opened_with_their_path_and_missing_ones_told_apart),
      TEST(the_host_allocates_zeroed_memory),
      TEST(a_lock_of_the_host_is_shared_or_alone_and_its_waits_are_told),
      TEST(a_full_registry_says_so),
  };
  int failed = cmocka_run_group_tests_name("vendor", tests, NULL, NULL);
  scene_clear_log();
  free(payload);
  return failed ? 1 : 0;
}
