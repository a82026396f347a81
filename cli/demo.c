/* `tandem demo`: one policy, two arms, without sharing and with.
 *
 * Three children of this very program do the work: one makes the policy, one measures two private loads, one
 * two shared ones. So each measurement starts from a clean process, and neither the policy's making nor the
 * other measurement shows in it. Everything temporary lies in one folder under TMPDIR, which goes whatever
 * happens: on a signal the child is ended first, then the folder is removed, then the signal takes its
 * course.
 */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char help[] =
    "usage: tandem demo [--vendor NAME] [--size MIB] [--keep FILE] [--json]\n"
    "\n"
    "Makes a policy (a small vision-language-action model with random weights), loads it twice without\n"
    "sharing and twice with, and tells what the second load cost. Needs the executorch wheel and OpenVINO,\n"
    "torch with a C++ compiler (aotinductor), or TensorRT with its builder and a GPU.\n"
    "\n"
    "  --vendor NAME  openvino, aotinductor or tensorrt: what makes and runs the policy (openvino)\n"
    "  --size MIB     weights of the policy, in MiB of float32 (160)\n"
    "  --keep FILE    leave the policy's .pte there\n"
    "  --json         one JSON document on stdout: {\"unshared\": ..., \"shared\": ...}, as 'tandem run "
    "--json'\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 called wrongly.\n";

/* ---------------------------------------------------------------- children */

static volatile sig_atomic_t caught;    /* the signal that ends the demo, 0 while there is none */
static volatile sig_atomic_t child_pid; /* 0: none */

static void end_child(int number) {
  caught = number;
  if (child_pid > 0)
    kill((pid_t)child_pid, SIGKILL);
}

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};
enum { SIGNAL_COUNT = sizeof ending_signals / sizeof ending_signals[0] };

/* Runs this program with `arguments`. Its stdout goes to *output (owned), or to stderr when that is NULL. The
 * result is the child's exit status; a child that did not come so far is told in a line. */
static int run_self(char *const *arguments, char **output) {
  int ends[2] = {-1, -1};
  char *text = NULL;
  size_t size = 0, room = 0;
  int result = TD_EXIT_FAILED;
  if (output && pipe(ends) != 0) {
    td_complain("demo: no pipe for a child: %s", strerror(errno));
    return TD_EXIT_FAILED;
  }
  /* Signals are held back until the child's id is known, so that none finds it unknown. */
  sigset_t held, before;
  sigemptyset(&held);
  for (int i = 0; i < SIGNAL_COUNT; i++)
    sigaddset(&held, ending_signals[i]);
  sigprocmask(SIG_BLOCK, &held, &before);
  pid_t parent = getpid(), pid = caught ? -1 : fork();
  if (pid == 0) {
    for (int i = 0; i < SIGNAL_COUNT; i++)
      signal(ending_signals[i], SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(output ? ends[1] : STDERR_FILENO, STDOUT_FILENO) < 0)
      _exit(TD_EXIT_FAILED);
    if (output) {
      close(ends[0]);
      close(ends[1]);
    }
    execv("/proc/self/exe", arguments);
    dprintf(STDERR_FILENO, "tandem: demo: cannot start itself again: %s\n", strerror(errno));
    _exit(TD_EXIT_FAILED);
  }
  int reason = errno;
  child_pid = pid > 0 ? pid : 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (pid < 0) {
    if (!caught)
      td_complain("demo: cannot start a child: %s", strerror(reason));
    goto done;
  }
  if (output) {
    close(ends[1]);
    ends[1] = -1;
  }
  while (output) {
    if (room - size < 4096) {
      char *more = realloc(text, room + 16384);
      if (!more)
        break;
      text = more;
      room += 16384;
    }
    ssize_t n = read(ends[0], text + size, room - size - 1);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      break;
    size += (size_t)n;
    text[size] = 0;
  }
  if (output) {
    close(ends[0]);
    ends[0] = -1;
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  child_pid = 0;
  if (WIFEXITED(status))
    result = WEXITSTATUS(status);
  else if (!caught)
    td_complain("demo: '%s' was ended by signal %d (%s)", arguments[1], WTERMSIG(status),
                strsignal(WTERMSIG(status)));

done:
  for (int i = 0; i < 2; i++)
    if (ends[i] >= 0)
      close(ends[i]);
  if (output)
    *output = text;
  return caught ? TD_EXIT_FAILED : result;
}

/* ---------------------------------------------------------------- the policy's child */

int td_policy_command(int count, char **arguments) {
  if (count != 4) {
    td_complain("_policy: takes a vendor, a folder, a size in MiB and a .pte");
    return TD_EXIT_USAGE;
  }
  const char *directory = arguments[1], *path = arguments[3];
  bool tensorrt = strcmp(arguments[0], "tensorrt") == 0;
  bool aotinductor = strcmp(arguments[0], "aotinductor") == 0;
  struct tandem_vendor_info vendor;
  struct tandem_error error = {0};
  char blob[PATH_MAX];
  const struct tandem_io *io;
  size_t input_count, io_count = tensorrt ? td_plan_io(&io, &input_count) : td_policy_io(&io, &input_count);
  uint64_t size_mib = strtoull(arguments[2], NULL, 10);
  td_notes_init(false);
  td_progress_begin("making the policy", 2);
  enum tandem_status status = td_vendor_lookup(arguments[0], &vendor, &error);
  if (status == TANDEM_OK && !vendor.available)
    status = td_refuse(&error, TANDEM_UNAVAILABLE, "%s", vendor.reason);
  if (status == TANDEM_OK && snprintf(blob, sizeof blob, "%s/policy.blob", directory) >= PATH_MAX)
    status = td_refuse(&error, TANDEM_INVALID_ARGUMENT, "the path is too long: %s", directory);
  if (status == TANDEM_OK && tensorrt)
    status = td_plan_export(vendor.path, vendor.version, size_mib, blob, &error);
  else if (status == TANDEM_OK && aotinductor)
    status = td_aoti_export(vendor.path, directory, size_mib, blob, &error);
  else if (status == TANDEM_OK)
    status = td_policy_export(vendor.path, directory, size_mib, blob, &error);
  if (status == TANDEM_OK) {
    td_progress_step("writing the policy");
    status = td_pte_write(path, directory, vendor.backend, blob, io, input_count, io_count, &error);
    unlink(blob);
  }
  td_progress_end();
  if (status != TANDEM_OK)
    td_complain("demo: %s", error.message);
  return status == TANDEM_OK ? TD_EXIT_DONE : TD_EXIT_FAILED;
}

/* ---------------------------------------------------------------- the temporary folder */

static bool make_folder(char *folder, size_t size) {
  const char *where = getenv("TMPDIR");
  if (!where || !*where)
    where = "/tmp";
  if (snprintf(folder, size, "%s/tandem-demo-XXXXXX", where) < (int)size && mkdtemp(folder))
    return true;
  td_complain("demo: cannot make a folder in %s (TMPDIR): %s", where, strerror(errno));
  *folder = 0;
  return false;
}

/* The folder is flat: the children make files in it and nothing else. */
static void remove_folder(const char *folder) {
  DIR *list = opendir(folder);
  struct dirent *entry;
  while (list && (entry = readdir(list)))
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      unlinkat(dirfd(list), entry->d_name, 0);
  if (list)
    closedir(list);
  rmdir(folder);
}

/* ---------------------------------------------------------------- the two measurements */

/* `tandem run` whose progress says which of the two measurements it is. */
int td_measure_command(int count, char **arguments) {
  if (count < 1) {
    td_complain("_measure: takes a label and the arguments of 'tandem run'");
    return TD_EXIT_USAGE;
  }
  td_progress_prefix(arguments[0]);
  return td_run_command(count - 1, arguments + 1);
}

static int measure(const char *pte, bool shared, cJSON **measurement) {
  char *arguments[] = {"tandem",
                       "_measure",
                       shared ? "shared" : "unshared",
                       "--json",
                       "--option",
                       shared ? "use_shared_engines=true" : "use_shared_engines=false",
                       "--",
                       (char *)(uintptr_t)pte,
                       NULL};
  char *text = NULL;
  int result = run_self(arguments, &text);
  if (result == TD_EXIT_DONE) {
    *measurement = cJSON_Parse(text ? text : "");
    if (!*measurement) {
      td_complain("demo: the measurement gave no JSON");
      result = TD_EXIT_FAILED;
    }
  }
  free(text);
  return result;
}

static const cJSON *second_load(const cJSON *measurement) {
  return cJSON_GetArrayItem(cJSON_GetObjectItem(measurement, "loads"), 1);
}

static void print_demo(const cJSON *unshared, const cJSON *shared, uint64_t size_mib) {
  double a = td_largest_growth(unshared), b = td_largest_growth(shared), scale = a > b ? a : b;
  const char *key = td_growth_key(shared);
  const cJSON *equal = cJSON_GetObjectItem(shared, "outputs_equal");
  printf("A policy with %llu MiB of weights, loaded twice; %s %s on %s.\n\n", (unsigned long long)size_mib,
         td_text(shared, "vendor"), td_text(shared, "vendor_version"), td_text(shared, "device"));
  td_print_loads_head(shared, true);
  td_print_loads(unshared, "unshared", scale);
  td_print_loads(shared, "shared", scale);
  const cJSON *without = second_load(unshared), *with = second_load(shared);
  printf(
      "\nWith sharing the second load took %.1f MiB of %s memory instead of %.1f MiB and %.3f s instead of "
      "%.3f s%s.\n",
      td_number(with, key) / 1048576, key[0] == 'd' ? "device" : "private", td_number(without, key) / 1048576,
      td_number(with, "seconds"), td_number(without, "seconds"),
      cJSON_IsTrue(equal) ? "; outputs are equal bit for bit" : "");
}

/* False after one line when the vendor is none of the demo's, or cannot run here whatever is installed. */
static bool check_vendor(const char *vendor, int *result) {
  struct td_gpus gpus;
  struct tandem_error error = {0};
  if (strcmp(vendor, "openvino") == 0 || strcmp(vendor, "aotinductor") == 0)
    return true;
  if (strcmp(vendor, "tensorrt") != 0) {
    td_complain("demo: --vendor takes openvino, aotinductor or tensorrt, not '%s'; see 'tandem demo --help'",
                vendor);
    *result = TD_EXIT_USAGE;
    return false;
  }
  if (td_gpus_find(&gpus, &error) == TANDEM_OK)
    return true;
  td_complain("demo: TensorRT runs on a GPU: %s", error.message);
  *result = TD_EXIT_FAILED;
  return false;
}

int td_demo_command(int count, char **arguments) {
  const struct td_usage usage = {"demo", NULL, help};
  uint64_t size_mib = 160;
  const char *keep = NULL, *vendor = "openvino";
  bool json = false;
  const struct td_flag flags[] = {
      {"--vendor", TD_FLAG_TEXT, &vendor, 0, 0},
      {"--size", TD_FLAG_COUNT, &size_mib, TD_POLICY_MIN_MIB, TD_POLICY_MAX_MIB},
      {"--keep", TD_FLAG_TEXT, &keep, 0, 0},
      {"--json", TD_FLAG_SWITCH, &json, 0, 0},
  };
  cJSON *unshared = NULL, *shared = NULL;
  char folder[PATH_MAX - 64], pte[PATH_MAX], partial[PATH_MAX], size[32];
  int result = td_args_parse(&usage, flags, sizeof flags / sizeof flags[0], count, arguments, NULL);
  if (result != TD_ARGS_GO || !check_vendor(vendor, &result))
    return result;
  if (keep && strlen(keep) + sizeof ".partial" > PATH_MAX) {
    td_complain("demo: the path is too long: %s", keep);
    return TD_EXIT_FAILED;
  }
  struct sigaction action = {.sa_handler = end_child}, former[SIGNAL_COUNT];
  for (int i = 0; i < SIGNAL_COUNT; i++)
    sigaction(ending_signals[i], &action, &former[i]);
  result = TD_EXIT_FAILED;
  if (!make_folder(folder, sizeof folder))
    goto done;
  if (keep)
    snprintf(pte, sizeof pte, "%s", keep);
  else
    snprintf(pte, sizeof pte, "%s/policy.pte", folder);
  snprintf(size, sizeof size, "%llu", (unsigned long long)size_mib);
  result =
      run_self((char *[]){"tandem", "_policy", (char *)(uintptr_t)vendor, folder, size, pte, NULL}, NULL);
  if (result == TD_EXIT_DONE)
    result = measure(pte, false, &unshared);
  if (result == TD_EXIT_DONE)
    result = measure(pte, true, &shared);
  if (result != TD_EXIT_DONE)
    goto done;
  bool sharing = cJSON_IsTrue(cJSON_GetObjectItem(second_load(shared), "shared"));
  if (json) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddItemToObject(document, "unshared", unshared);
    cJSON_AddItemToObject(document, "shared", shared);
    unshared = shared = NULL;
    result = td_print_json(document) ? TD_EXIT_DONE : TD_EXIT_FAILED;
  } else {
    print_demo(unshared, shared, size_mib);
    result = td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;
  }
  if (!sharing) {
    td_complain("demo: the second load did not share the first one's engine");
    result = TD_EXIT_FAILED;
  }

done:
  cJSON_Delete(unshared);
  cJSON_Delete(shared);
  if (*folder)
    remove_folder(folder);
  if (keep && result != TD_EXIT_DONE) {
    snprintf(partial, sizeof partial, "%s.partial", keep);
    unlink(partial);
  }
  for (int i = 0; i < SIGNAL_COUNT; i++)
    sigaction(ending_signals[i], &former[i], NULL);
  if (caught)
    raise((int)caught);
  return result;
}
