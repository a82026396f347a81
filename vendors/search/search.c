/* The places where a vendor's library may lie, from the surest to the vaguest.
 *
 * What the user named is used or is an error: falling through to another library would run another version
 * than the one asked for. What the process has mapped comes next, since two copies of such a library in one
 * process disturb each other. Packages are looked for without starting Python: in the folders that mapped
 * libraries come from (a process that is a Python has some), then where the environment says that a Python
 * is, then around the program itself and the python3 on PATH, where the link counts as well as its target: a
 * virtual environment's python is a link to the system's. A library that is there and will not do is passed
 * over and told in the error.
 */
#include "search.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
bool td_search_symbol(const struct td_search *search, const char *name, void *function) {
  void *address = search->host->library_symbol(search->library, name);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

/* ---------------------------------------------------------------- files */

bool td_search_library(struct td_search *search, const char *name) {
  const struct tandem_host *host = search->host;
  struct tandem_error error = {0};
  search->library = host->library_open(name, search->path, sizeof search->path, &error);
  if (search->library == NULL) {
    if (error.code != TANDEM_NOT_FOUND && search->broken.code == TANDEM_OK)
      search->broken = error;
    return false;
  }
  if (search->path[0] == '\0')
    snprintf(search->path, sizeof search->path, "%s", name);
  if (search->accept == NULL || search->accept(search, &error))
    return true;
  if (search->broken.code == TANDEM_OK)
    host->fail(&search->broken, error.code, "%.300s: %.600s", search->path, error.message);
  return false;
}

/* The numbers after "<stem>." as one, four digits to a part, so that .10 counts for more than .8; -1 when
 * `name` is another file. */
static long long rank_name(const char *name, const char *stem) {
  size_t length = strlen(stem);
  if (strncmp(name, stem, length) != 0)
    return -1;
  long long rank = 0;
  const char *at = name + length;
  for (int part = 0; part < 4; part++) {
    long number = *at == '.' ? strtol(at + 1, (char **)&at, 10) : 0;
    rank = rank * 10000 + (number < 0 || number > 9999 ? 0 : number);
  }
  return *at == '\0' ? rank : -1;
}

bool td_search_folder(struct td_search *search, const char *folder, const char *below, const char *stem) {
  char path[PATH_MAX], best[NAME_MAX + 1] = "";
  for (long long limit = LLONG_MAX, highest; limit >= 0; limit = highest) {
    highest = -1;
    int length = snprintf(path, sizeof path, "%s/%s", folder, below);
    DIR *entries = length > 0 && (size_t)length < sizeof path ? opendir(path) : NULL;
    if (entries == NULL)
      return false;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
      long long rank = rank_name(entry->d_name, stem);
      if (rank > highest && rank < limit) {
        highest = rank;
        snprintf(best, sizeof best, "%s", entry->d_name);
      }
    }
    closedir(entries);
    length = snprintf(path, sizeof path, "%s/%s/%s", folder, below, best);
    if (highest >= 0 && (size_t)length < sizeof path && td_search_library(search, path))
      return true;
  }
  return false;
}

/* ---------------------------------------------------------------- what the user named */

const char *td_search_variable(struct td_search *search, const char *const *variables) {
  for (; search->named == NULL && *variables != NULL; variables++) {
    const char *value = getenv(*variables);
    search->variable = *variables;
    search->named = value != NULL && *value != '\0' ? value : NULL;
  }
  return search->named;
}

bool td_search_named(struct td_search *search, td_search_fn visit) {
  struct stat state;
  int failed = stat(search->named, &state) != 0 ? errno : 0;
  if (failed == 0 && S_ISDIR(state.st_mode))
    return visit(search, search->named);
  bool is_path = strchr(search->named, '/') != NULL, is_there = failed != ENOENT && failed != ENOTDIR;
  if ((is_there || !is_path) && td_search_library(search, search->named))
    return true;
  if (search->broken.code == TANDEM_OK)
    search->host->fail(&search->broken, TANDEM_UNAVAILABLE,
                       is_path ? "this path does not exist" : "the system's loader does not find it");
  return false;
}

/* ---------------------------------------------------------------- what the process has mapped */

/* Cuts a path below a folder of packages down to that folder. */
static bool cut_to_packages(char *path) {
  static const char *const kinds[] = {"/site-packages/", "/dist-packages/"};
  char *at = NULL;
  for (size_t i = 0; at == NULL && i < sizeof kinds / sizeof kinds[0]; i++)
    if ((at = strstr(path, kinds[i])) != NULL)
      at[strlen(kinds[i]) - 1] = '\0';
  return at != NULL;
}

bool td_search_mapped(struct td_search *search, const char *stem, td_search_fn visit) {
  char *line = NULL, last[PATH_MAX] = "";
  size_t capacity = 0;
  bool found = false;
  FILE *maps = fopen("/proc/self/maps", "re");
  while (maps != NULL && !found && getline(&line, &capacity, maps) > 0) {
    char *path = strchr(line, '/');
    if (path == NULL)
      continue;
    path[strcspn(path, "\n")] = '\0';
    bool fits = stem != NULL ? rank_name(strrchr(path, '/') + 1, stem) >= 0 : cut_to_packages(path);
    if (!fits || strcmp(path, last) == 0) /* a file has several lines */
      continue;
    snprintf(last, sizeof last, "%s", path);
    found = visit(search, path);
  }
  free(line);
  if (maps != NULL)
    fclose(maps);
  return found;
}

/* ---------------------------------------------------------------- folders of Python packages */

/* The packages of each Python 3 in <prefix>/<lib>; a prefix that is not set has none. */
static bool visit_prefix(struct td_search *search, const char *prefix, const char *lib, td_search_fn visit) {
  static const char *const kinds[] = {"site-packages", "dist-packages"};
  char folder[PATH_MAX];
  if (prefix == NULL || *prefix == '\0' ||
      snprintf(folder, sizeof folder, "%s/%s", prefix, lib) >= (int)sizeof folder)
    return false;
  bool found = false;
  DIR *entries = opendir(folder);
  for (struct dirent *entry; entries != NULL && !found && (entry = readdir(entries)) != NULL;)
    for (size_t i = 0; !found && strncmp(entry->d_name, "python3", 7) == 0 && i < 2; i++)
      found = snprintf(folder, sizeof folder, "%s/%s/%s/%s", prefix, lib, entry->d_name, kinds[i]) <
                  (int)sizeof folder &&
              visit(search, folder);
  if (entries != NULL)
    closedir(entries);
  return found;
}

/* The next folder of a list such as PATH. An empty one would be the current folder: passed over. */
static bool take_folder(const char **list, char folder[PATH_MAX]) {
  while (*list != NULL && **list != '\0') {
    const char *from = *list;
    size_t length = strcspn(from, ":");
    *list += length + (from[length] == ':');
    if (length > 0 && length < PATH_MAX) {
      snprintf(folder, PATH_MAX, "%.*s", (int)length, from);
      return true;
    }
  }
  return false;
}

/* The prefix of a program such as <prefix>/bin/python; cuts `program`. */
static bool visit_program(struct td_search *search, char *program, td_search_fn visit) {
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr(program, '/');
    if (slash == NULL)
      return false;
    *slash = '\0';
  }
  return visit_prefix(search, program, "lib", visit);
}

/* What was started as `name`: a path, or a file of PATH. */
static bool find_program(const char *name, char path[PATH_MAX]) {
  char folder[PATH_MAX];
  const char *list = getenv("PATH");
  if (strchr(name, '/') != NULL)
    return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
  while (*name != '\0' && take_folder(&list, folder))
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX && access(path, X_OK) == 0)
      return true;
  return false;
}

/* As it was started, and as the file that it is. */
static bool visit_running_program(struct td_search *search, td_search_fn visit) {
  char name[PATH_MAX], path[PATH_MAX];
  FILE *file = fopen("/proc/self/cmdline", "re");
  size_t size = file != NULL ? fread(name, 1, sizeof name - 1, file) : 0;
  if (file != NULL)
    fclose(file);
  name[size] = '\0';
  if (find_program(name, path) && visit_program(search, path, visit))
    return true;
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  path[length > 0 ? length : 0] = '\0';
  return visit_program(search, path, visit);
}

/* The environment of containers, which often put a Python first on PATH and set nothing else. A Python of the
 * system has its place after the user's packages. */
static bool visit_python_on_path(struct td_search *search, td_search_fn visit) {
  char path[PATH_MAX];
  return find_program("python3", path) && strncmp(path, "/usr/", 5) != 0 &&
         visit_program(search, path, visit);
}

static bool visit_list(struct td_search *search, const char *list, td_search_fn visit) {
  char folder[PATH_MAX];
  bool found = false;
  while (!found && take_folder(&list, folder))
    found = visit(search, folder);
  return found;
}

bool td_search_packages(struct td_search *search, td_search_fn visit) {
  return visit_list(search, getenv("TANDEM_PYTHON_PATH"), visit) || td_search_mapped(search, NULL, visit) ||
         visit_prefix(search, getenv("VIRTUAL_ENV"), "lib", visit) ||
         visit_prefix(search, getenv("CONDA_PREFIX"), "lib", visit) ||
         visit_list(search, getenv("PYTHONPATH"), visit) || visit_running_program(search, visit) ||
         visit_python_on_path(search, visit) || visit_prefix(search, getenv("HOME"), ".local/lib", visit) ||
         visit_prefix(search, "/usr/local", "lib", visit) || visit_prefix(search, "/usr", "lib", visit);
}

/* ---------------------------------------------------------------- nothing found */

enum tandem_status td_search_fail(const struct td_search *search, const char *what, const char *files,
                                  const char *remedy, struct tandem_error *error) {
  const struct tandem_host *host = search->host;
  const struct tandem_error *broken = &search->broken;
  enum tandem_status status = broken->code == TANDEM_UNSUPPORTED ? TANDEM_UNSUPPORTED : TANDEM_UNAVAILABLE;
  if (search->named != NULL && broken->code != TANDEM_OK)
    return host->fail(error, status, "%s=%.300s cannot be used: %s; correct or unset it", search->variable,
                      search->named, broken->message);
  if (search->named != NULL)
    return host->fail(error, status, "%s=%.300s cannot be used: there is no %s; correct or unset it",
                      search->variable, search->named, files);
  if (broken->code != TANDEM_OK)
    return host->fail(error, status, "%s cannot be used: %s; %s", what, broken->message, remedy);
  return host->fail(
      error, status,
      "%s was not found (looked for %s in the libraries of this process, the Python packages that "
      "they come from, those of VIRTUAL_ENV, CONDA_PREFIX, PYTHONPATH, this program, the python3 on PATH, "
      "the user and the system, and the system's libraries); %s",
      what, files, remedy);
}
