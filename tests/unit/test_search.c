/* Where vendors look for their libraries, for each vendor that does. Every search runs in a process of its
 * own, since what one process has opened it finds again; that process is this program, started with a
 * vendor's name. The libraries are copies of a stand-in that opens and does nothing. */
#include "base.h"
#include "bound.h"

#include <dlfcn.h>
#include <limits.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern const struct tandem_vendor td_vendor_aotinductor, td_vendor_openvino, td_vendor_tensorrt;
extern char **environ;

struct subject {
  const struct tandem_vendor *vendor;
  const char *variable;
  const char *package; /* below a folder of packages */
  const char *file;
};
static const struct subject subjects[] = {
    {&td_vendor_openvino, "TANDEM_OPENVINO_LIBRARY", "openvino/libs", "libopenvino_c.so.2641"},
    {&td_vendor_tensorrt, "TANDEM_TENSORRT_LIBRARY", "tensorrt_lean_libs", "libnvinfer_lean.so.11"},
    {&td_vendor_aotinductor, "TANDEM_TORCH_LIBRARY", "torch/lib", "libtorch_cpu.so"},
};
enum { SUBJECT_COUNT = sizeof subjects / sizeof subjects[0] };
static const struct subject *const openvino = &subjects[0], *const torch = &subjects[2];

#define PACKAGES "lib/python3.11/site-packages"

static const char *search_path; /* PATH as it was */
static char root[] = "/tmp/tandem-search-XXXXXX", program[PATH_MAX];
static char answer[2048]; /* of the last search: a path below root, or the error */

/* ---------------------------------------------------------------- the process that searches */

/* argv: a vendor's name, then libraries that the process has before it searches. */
static int search_alone(int argc, char **argv) {
  struct tandem_vendor_library library = {.path = ""};
  struct tandem_error error = {0};
  for (int i = 2; i < argc; i++)
    if (dlopen(argv[i], RTLD_NOW) == NULL) {
      printf("%s\n", dlerror());
      return 1;
    }
  for (size_t i = 0; i < SUBJECT_COUNT; i++)
    if (strcmp(subjects[i].vendor->name, argv[1]) == 0)
      subjects[i].vendor->open(&td_host, &library, &error);
  printf("%s\n", error.code == TANDEM_OK ? library.path : error.message);
  return error.code != TANDEM_OK;
}

/* ---------------------------------------------------------------- rig */

static void run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *format, ...) {
  char command[2 * PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  assert_true(vsnprintf(command, sizeof command, format, arguments) < (int)sizeof command);
  va_end(arguments);
  assert_int_equal(system(command), 0);
}

/* A path below root; the last 32 stay. */
static const char *under(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *under(const char *format, ...) {
  static char paths[32][512];
  static unsigned turn;
  char *path = paths[turn++ % 32];
  int used = snprintf(path, sizeof paths[0], "%s/", root);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(path + used, sizeof paths[0] - (size_t)used, format, arguments);
  va_end(arguments);
  return path;
}

static void place(const char *path) {
  run("mkdir -p \"$(dirname '%s')\" && cp '%s/found/libfound.so' '%s'", path, TANDEM_STANDIN_DIR, path);
}

/* Searches in a process that was started as `name` and has `first` and `second` (NULL: none); whether a
 * library was found. */
static bool search(const struct subject *subject, const char *name, const char *first, const char *second) {
  char *arguments[] = {(char *)name, (char *)subject->vendor->name, (char *)(first ? first : second),
                       (char *)(first ? second : NULL), NULL};
  posix_spawn_file_actions_t actions;
  int ends[2], status;
  pid_t child;
  assert_int_equal(pipe(ends), 0);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  int failed = posix_spawn(&child, program, &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  assert_int_equal(failed, 0);
  size_t size = 0;
  for (ssize_t more; (more = read(ends[0], answer + size, sizeof answer - 1 - size)) > 0;)
    size += (size_t)more;
  close(ends[0]);
  answer[size] = '\0';
  answer[strcspn(answer, "\n")] = '\0';
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    skip(); /* in an emulator, which starts none of the programs that it emulates */
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status) == 0;
}

static void assert_found(const struct subject *subject, bool found, const char *path) {
  if (!found || strcmp(answer, path) != 0)
    fail_msg("%s: \"%s\", expected %s", subject->vendor->name, answer, path);
}

static void assert_says(const struct subject *subject, bool found, const char *words) {
  if (found || strstr(answer, words) == NULL)
    fail_msg("%s: \"%s\" does not say \"%s\"", subject->vendor->name, answer, words);
}

/* Whether the machine has a library of its own where tests cannot put one before it. */
static bool found_on_machine(void) {
  return strncmp(answer, root, strlen(root)) != 0 && answer[0] == '/';
}

/* Nothing of the machine's environment leads to a library. */
static int begin(void **state) {
  static const char *const cleared[] = {"OPENVINO_LIB_PATH",
                                        "TANDEM_AOTI_SHIMS_LIBRARY",
                                        "TANDEM_TENSORRT_RUNTIME",
                                        "VIRTUAL_ENV",
                                        "CONDA_PREFIX",
                                        "PYTHONPATH",
                                        "LD_LIBRARY_PATH"};
  (void)state;
  BOUND(240);
  for (size_t i = 0; i < sizeof cleared / sizeof cleared[0]; i++)
    unsetenv(cleared[i]);
  for (size_t i = 0; i < SUBJECT_COUNT; i++)
    unsetenv(subjects[i].variable);
  setenv("HOME", under("home"), 1);
  setenv("PATH", search_path, 1);
  return 0;
}

static int end(void **state) {
  (void)state;
  run("find '%s' -mindepth 1 -maxdepth 1 ! -name program -exec rm -r '{}' +", root);
  run("rm -rf '%s'", under("program/lib"));
  bound_set("", 0);
  return 0;
}

static void set_list(const char *variable, const char *first, const char *second, const char *third) {
  char list[2 * PATH_MAX];
  snprintf(list, sizeof list, "%s:%s:%s", first, second, third);
  setenv(variable, list, 1);
}

/* ---------------------------------------------------------------- tests */

static void the_places_are_searched_in_their_order(void **state) {
  static const struct {
    const char *folder;
    bool has_packages;
  } places[] = {
      {"named", false},
      {"mapped", false},
      {"python", true},
      {"mapped/" PACKAGES, true},
      {"venv/" PACKAGES, true},
      {"conda/" PACKAGES, true},
      {"list", true},
      {"link/" PACKAGES, true},
      {"program/lib/python3/dist-packages", true},
      {"path/" PACKAGES, true},
      {"home/.local/" PACKAGES, true},
      {"system", false},
  };
  enum { PLACE_COUNT = sizeof places / sizeof places[0] };
  const struct subject *subject = *state;
  const char *paths[PLACE_COUNT];
  for (size_t i = 0; i < PLACE_COUNT; i++) {
    size_t at = subject == torch && i < 2 ? 1 - i : i; /* there cannot be two libtorch in a process */
    paths[i] =
        under("%s/%s/%s", places[at].folder, places[at].has_packages ? subject->package : ".", subject->file);
    place(paths[i]);
  }
  const char *other = under("mapped/" PACKAGES "/other/any.so"), *mapped = under("mapped/%s", subject->file);
  place(other);
  run("mkdir '%s' && ln -s '%s' '%s'", under("link/bin"), program, under("link/bin/search"));
  run("mkdir '%s' && ln -s '%s' '%s'", under("path/bin"), program, under("path/bin/python3"));
  setenv(subject->variable, under("named"), 1);
  setenv("VIRTUAL_ENV", under("venv"), 1);
  setenv("CONDA_PREFIX", under("conda"), 1);
  set_list("TANDEM_PYTHON_PATH", "/nowhere:", under("python"), "");
  set_list("PYTHONPATH", "/nowhere:", under("list"), "");
  set_list("PATH", under("link/bin"), under("path/bin"), search_path);
  setenv("LD_LIBRARY_PATH", under("system"), 1);

  for (size_t i = 0; i < PLACE_COUNT; i++) {
    char real[PATH_MAX];
    assert_non_null(realpath(paths[i], real));
    bool found = search(subject, "search", access(mapped, F_OK) == 0 ? mapped : NULL, other);
    if (i + 1 == PLACE_COUNT && found_on_machine())
      break;
    assert_found(subject, found, real);
    assert_int_equal(unlink(real), 0);
    if (strstr(real, "/named/") != NULL)
      unsetenv(subject->variable);
  }
}

static void a_program_is_known_by_the_path_that_it_was_started_with(void **state) {
  const struct subject *subject = *state;
  const char *path = under("link/" PACKAGES "/%s/%s", subject->package, subject->file);
  place(path);
  run("mkdir '%s' && ln -s '%s' '%s'", under("link/bin"), program, under("link/bin/search"));
  bool found = search(subject, under("link/bin/search"), NULL, NULL);
  assert_found(subject, found, path);
  if (!search(subject, "search", NULL, NULL))
    return;
  assert_true(found_on_machine());
}

static void a_name_is_a_file_a_folder_or_one_for_the_loader(void **state) {
  const struct subject *subject = *state;
  const char *path = under("named/%s", subject->file);
  const char *const names[] = {path, under("named"), subject->file};
  place(path);
  setenv("LD_LIBRARY_PATH", under("named"), 1);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    setenv(subject->variable, names[i], 1);
    assert_found(subject, search(subject, "search", NULL, NULL), path);
  }
}

static void what_is_named_is_used_or_is_the_error(void **state) {
  const struct subject *subject = *state;
  const char *rubbish = under("rubbish/%s", subject->file);
  char words[1200];
  place(under("list/%s/%s", subject->package, subject->file));
  setenv("PYTHONPATH", under("list"), 1);
  run("mkdir '%s' '%s' && echo rubbish > '%s'", under("rubbish"), under("empty"), rubbish);
  const struct {
    const char *value, *reason;
  } cases[] = {{under("nowhere/%s", subject->file), "this path does not exist; correct or unset it"},
               {under("empty"), "there is no lib"},
               {"libnowhere.so", "the system's loader does not find it"},
               {rubbish, "cannot open the library"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    setenv(subject->variable, cases[i].value, 1);
    snprintf(words, sizeof words, "%s=%s cannot be used: %s", subject->variable, cases[i].value,
             cases[i].reason);
    assert_says(subject, search(subject, "search", NULL, NULL), words);
  }
}

static void what_cannot_be_used_is_passed_over_and_told(void **state) {
  const struct subject *subject = *state;
  const char *path = under("list/%s/%s", subject->package, subject->file);
  const char *rubbish = under("venv/" PACKAGES "/%s/%s", subject->package, subject->file);
  place(path);
  place(rubbish);
  run("echo rubbish > '%s'", rubbish);
  setenv("VIRTUAL_ENV", under("venv"), 1);
  setenv("PYTHONPATH", under("list"), 1);
  assert_found(subject, search(subject, "search", NULL, NULL), path);
  unlink(path);
  bool found = search(subject, "search", NULL, NULL);
  if (!found_on_machine())
    assert_says(subject, found, rubbish);
}

static void the_places_are_told_where_nothing_is(void **state) {
  static const char *const told[] = {
      "VIRTUAL_ENV",         "CONDA_PREFIX",           "PYTHONPATH", "this process", "this program",
      "the python3 on PATH", "the system's libraries", "install "};
  const struct subject *subject = *state;
  bool found = search(subject, "search", NULL, NULL);
  if (found_on_machine())
    skip();
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
    assert_says(subject, found, told[i]);
  char stem[64];
  snprintf(stem, sizeof stem, "%.*s", (int)(strstr(subject->file, ".so") + 3 - subject->file), subject->file);
  assert_says(subject, found, stem);
}

static void openvino_without_its_c_interface_leads_to_it(void **state) {
  (void)state;
  place(under("mapped/libopenvino.so.2641"));
  place(under("mapped/libopenvino_c.so.2641"));
  assert_found(openvino, search(openvino, "search", under("mapped/libopenvino.so.2641"), NULL),
               under("mapped/libopenvino_c.so.2641"));
}

static void a_torch_of_the_process_that_cannot_be_used_is_the_error(void **state) {
  (void)state;
  const char *old = under("mapped/libtorch_cpu.so"), *named = under("named/libtorch_cpu.so");
  place(named);
  run("mkdir '%s' && cp '%s/cuda/libcuda.so.1' '%s'", under("mapped"), TANDEM_STANDIN_DIR, old);
  setenv("TANDEM_TORCH_LIBRARY", named, 1);
  bool found = search(torch, "search", old, NULL);
  assert_says(torch, found, old);
  assert_says(torch, found, "no libtorch 2.5 or newer");
  assert_null(strstr(answer, named));
}

static void the_shims_come_after_the_torch_of_their_folder(void **state) {
  (void)state;
  const char *shims = under("list/torch_tensorrt_executorch_runtime/libaoti_cuda_shims.so");
  const char *beside = under("list/torch/lib/libtorch_cpu.so");
  place(shims);
  place(beside);
  place(under("home/.local/" PACKAGES "/torch/lib/libtorch_cpu.so"));
  setenv("PYTHONPATH", under("list"), 1);
  assert_found(torch, search(torch, "search", NULL, NULL), beside);
  unlink(beside);
  assert_found(torch, search(torch, "search", NULL, NULL), shims);
  place(beside);
  setenv("TANDEM_AOTI_SHIMS_LIBRARY", under("list/torch_tensorrt_executorch_runtime"), 1);
  assert_found(torch, search(torch, "search", NULL, NULL), shims);
  assert_found(torch, search(torch, "search", beside, NULL), beside);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    CMUnitTestFunction function;
  } each[] = {
#define EACH(function) {#function, function}
      EACH(the_places_are_searched_in_their_order),
      EACH(a_program_is_known_by_the_path_that_it_was_started_with),
      EACH(a_name_is_a_file_a_folder_or_one_for_the_loader),
      EACH(what_is_named_is_used_or_is_the_error),
      EACH(what_cannot_be_used_is_passed_over_and_told),
      EACH(the_places_are_told_where_nothing_is),
  };
  enum { EACH_COUNT = sizeof each / sizeof each[0] };
  if (argc > 1)
    return search_alone(argc, argv);
  const char *path = getenv("PATH");
  search_path = strdup(path != NULL ? path : "/usr/bin:/bin");
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0 || search_path == NULL || mkdtemp(root) == NULL)
    return 1;
  program[length] = '\0';
  run("mkdir -p '%s' && cp '%s' '%s'", under("program/bin"), program, under("program/bin/search"));
  snprintf(program, sizeof program, "%s", under("program/bin/search"));

  char names[SUBJECT_COUNT * EACH_COUNT][128];
  struct CMUnitTest tests[SUBJECT_COUNT * EACH_COUNT + 3];
  size_t count = 0;
  for (size_t i = 0; i < SUBJECT_COUNT; i++)
    for (size_t k = 0; k < EACH_COUNT; k++, count++) {
      snprintf(names[count], sizeof names[0], "%s: %s", subjects[i].vendor->name, each[k].name);
      tests[count] =
          (struct CMUnitTest){names[count], each[k].function, begin, end, (void *)(uintptr_t)&subjects[i]};
    }
  const struct CMUnitTest more[] = {
      cmocka_unit_test_setup_teardown(openvino_without_its_c_interface_leads_to_it, begin, end),
      cmocka_unit_test_setup_teardown(a_torch_of_the_process_that_cannot_be_used_is_the_error, begin, end),
      cmocka_unit_test_setup_teardown(the_shims_come_after_the_torch_of_their_folder, begin, end),
  };
  memcpy(tests + count, more, sizeof more);
  int failed = cmocka_run_group_tests_name("search", tests, NULL, NULL);
  run("rm -r '%s'", root);
  return failed != 0;
}
