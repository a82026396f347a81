/* Fuzz target of the search for vendors' libraries: whatever the environment and the names of files, each
 * place that is visited is a path of its own within bounds, and a search that finds nothing ends in one line.
 *
 * An input is lines: what the user named, PYTHONPATH, VIRTUAL_ENV, PATH, and the name of a file in the folder
 * that is looked through. */
#include "base.h"
#include "fuzz.h"
#include "search/search.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMED, PYTHON_PATH, ENVIRONMENT, PATH_LIST, FILE_NAME, LINE_COUNT };

static char folder[64]; /* made once */

static void remove_folder(void) {
  rmdir(folder);
}

static bool pass_by(struct td_search *search, const char *path) {
  (void)search;
  require(path[0] != '\0' && strlen(path) < PATH_MAX, "a path without bounds");
  return false;
}

/* tandem_host.library_open: every other file is broken. */
static void *open_nothing(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  (void)path, (void)path_size;
  require(name[0] != '\0', "a library without a name");
  td_host.fail(error, strlen(name) % 2 ? TANDEM_NOT_FOUND : TANDEM_UNAVAILABLE, "%s: not opened", name);
  return NULL;
}

/* The folder with one file more, when the system takes that name. */
static void look_through(struct td_search *search, const char *name) {
  char path[PATH_MAX];
  if (!folder[0]) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.32s/tandem-fuzz-XXXXXX", parent && *parent ? parent : "/tmp");
    require(mkdtemp(folder) != NULL && atexit(remove_folder) == 0, "no folder for files");
  }
  bool made = false;
  if (name && snprintf(path, sizeof path, "%s/libx.so%s", folder, name) < (int)sizeof path &&
      strchr(name, '/') == NULL) {
    int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    made = file >= 0;
    if (made)
      close(file);
  }
  require(!td_search_folder(search, folder, ".", "libx.so"), "a library that nobody opened");
  if (made)
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static const char *const names[] = {"TANDEM_FUZZ_LIBRARY", "PYTHONPATH", "VIRTUAL_ENV", "PATH"};
  static const char *const variables[] = {"TANDEM_FUZZ_OTHER", "TANDEM_FUZZ_LIBRARY", NULL};
  struct tandem_error error = {0};
  struct tandem_host host = td_host;
  struct td_search search = {.host = &host};
  host.library_open = open_nothing;
  char *text = copy_text(bytes, size), *lines[LINE_COUNT] = {text};
  for (size_t i = 1; i < LINE_COUNT && lines[i - 1]; i++) {
    lines[i] = strchr(lines[i - 1], '\n');
    if (lines[i])
      *lines[i]++ = '\0';
  }
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    setenv(names[i], lines[i] ? lines[i] : "", 1);
  if (td_search_variable(&search, variables) != NULL)
    require(!td_search_named(&search, pass_by), "a library that nobody opened");
  look_through(&search, lines[FILE_NAME]);
  require(!td_search_packages(&search, pass_by), "a search that ended at a place passed by");
  enum tandem_status status = td_search_fail(&search, "Nothing", "libx.so", "find it", &error);
  require(status == TANDEM_UNAVAILABLE && error.code == status, "an error without its status");
  require_line(error.message);
  free(text);
  return 0;
}
