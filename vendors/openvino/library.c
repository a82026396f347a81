/* Finds libopenvino_c and its symbols.
 *
 * A name that the user gave (TANDEM_OPENVINO_LIBRARY, OPENVINO_LIB_PATH) is used or is an error: falling
 * through to another library would run another version than the one asked for. Then comes the library that
 * the process has already, since two OpenVINOs in one process share symbols by accident; then the pip
 * package of the Python that is running or near it; then the system's loader.
 *
 * The C interface is stable from 2025.4 to 2026.4, which are tested. What is older is refused by name, what
 * is newer within 2026 is taken with a line in the log.
 */
#include "openvino.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ov_api td_ov;
char td_openvino_version[128];

static const char stem[] = "libopenvino_c.so";
static const char remedy[] = "install it with: pip install 'openvino>=2025.4,<2027' "
                             "(or set TANDEM_OPENVINO_LIBRARY to the path of libopenvino_c.so)";

/* A search under way. */
struct search {
  const struct tandem_host *host;
  void *library; /* what was opened, owned by the process; NULL: go on */
  char path[512];
  char seen[8][PATH_MAX]; /* folders that were looked into, each once */
  size_t seen_count;
  char trail[1024];           /* what was searched, for the error */
  struct tandem_error broken; /* a library that is there and cannot be opened */
};

static void note(struct search *search, const char *place) {
  size_t used = strlen(search->trail);
  snprintf(search->trail + used, sizeof search->trail - used, "%s%s", used > 0 ? ", " : "", place);
}

static bool try_library(struct search *search, const char *name) {
  struct tandem_error error = {0};
  search->library = search->host->library_open(name, search->path, sizeof search->path, &error);
  if (search->library == NULL && error.code != TANDEM_NOT_FOUND && search->broken.code == TANDEM_OK)
    search->broken = error;
  return search->library != NULL;
}

/* The newest libopenvino_c.so* of a folder. False when it has none. */
static bool find_in_folder(const char *folder, char *path, size_t size) {
  DIR *entries = opendir(folder);
  if (entries == NULL)
    return false;
  char best[NAME_MAX + 1] = "";
  for (struct dirent *entry; (entry = readdir(entries)) != NULL;)
    if (strncmp(entry->d_name, stem, sizeof stem - 1) == 0 && strcmp(entry->d_name, best) > 0)
      snprintf(best, sizeof best, "%s", entry->d_name);
  closedir(entries);
  int length = snprintf(path, size, "%s/%s", folder, best);
  return best[0] != '\0' && length > 0 && (size_t)length < size;
}

static bool try_folder(struct search *search, const char *folder) {
  char path[PATH_MAX];
  for (size_t i = 0; i < search->seen_count; i++)
    if (strcmp(search->seen[i], folder) == 0)
      return false;
  if (search->seen_count < sizeof search->seen / sizeof search->seen[0])
    snprintf(search->seen[search->seen_count++], PATH_MAX, "%s", folder);
  return find_in_folder(folder, path, sizeof path) && try_library(search, path);
}

static bool try_packages(struct search *search, const char *packages, size_t length) {
  char folder[PATH_MAX];
  int written = snprintf(folder, sizeof folder, "%.*s/openvino/libs", (int)length, packages);
  return written > 0 && (size_t)written < sizeof folder && try_folder(search, folder);
}

/* The site-packages and dist-packages of each Python 3 below <prefix>/lib. */
static bool try_prefix(struct search *search, const char *prefix) {
  static const char *const kinds[] = {"site-packages", "dist-packages"};
  char folder[PATH_MAX], packages[PATH_MAX];
  int length = snprintf(folder, sizeof folder, "%s/lib", prefix);
  if (length < 0 || (size_t)length >= sizeof folder)
    return false;
  DIR *entries = opendir(folder);
  if (entries == NULL)
    return false;
  bool found = false;
  for (struct dirent *entry; !found && (entry = readdir(entries)) != NULL;) {
    if (strncmp(entry->d_name, "python3", 7) != 0)
      continue;
    for (size_t i = 0; !found && i < sizeof kinds / sizeof kinds[0]; i++) {
      length = snprintf(packages, sizeof packages, "%s/%s/%s", folder, entry->d_name, kinds[i]);
      if (length > 0 && (size_t)length < sizeof packages)
        found = try_packages(search, packages, (size_t)length);
    }
  }
  closedir(entries);
  return found;
}

/* ---------------------------------------------------------------- places */

/* The libraries that the process has mapped: OpenVINO itself, or anything of a Python's packages. */
static bool try_mapped(struct search *search, bool packages) {
  static const char *const kinds[] = {"/site-packages/", "/dist-packages/"};
  FILE *maps = fopen("/proc/self/maps", "re");
  if (maps == NULL)
    return false;
  bool found = false;
  char *line = NULL;
  size_t capacity = 0;
  while (!found && getline(&line, &capacity, maps) > 0) {
    char *path = strchr(line, '/');
    if (path == NULL)
      continue;
    path[strcspn(path, "\n")] = '\0';
    char *name = strrchr(path, '/') + 1;
    if (!packages && strncmp(name, stem, sizeof stem - 1) == 0) {
      found = try_library(search, path);
    } else if (!packages && strncmp(name, "libopenvino.so", 14) == 0) {
      name[-1] = '\0';
      found = try_folder(search, path);
    }
    for (size_t i = 0; packages && !found && i < sizeof kinds / sizeof kinds[0]; i++) {
      char *at = strstr(path, kinds[i]);
      if (at != NULL)
        found = try_packages(search, path, (size_t)(at - path) + strlen(kinds[i]) - 1);
    }
  }
  free(line);
  fclose(maps);
  return found;
}

/* The environment that a program such as <prefix>/bin/python belongs to; the link itself counts, since a
 * virtual environment's python is a link to the system's. */
static bool try_program(struct search *search, const char *program) {
  char prefix[PATH_MAX];
  int length = snprintf(prefix, sizeof prefix, "%s", program);
  if (length < 0 || (size_t)length >= sizeof prefix)
    return false;
  for (int i = 0; i < 2; i++) {
    char *slash = strrchr(prefix, '/');
    if (slash == NULL)
      return false;
    *slash = '\0';
  }
  return try_prefix(search, prefix);
}

/* A program that was started by its name alone. */
static bool try_command(struct search *search, const char *name) {
  char program[PATH_MAX];
  const char *list = getenv("PATH");
  while (*name != '\0' && list != NULL && *list != '\0') {
    size_t folder = strcspn(list, ":");
    int length = snprintf(program, sizeof program, "%.*s/%s", (int)folder, list, name);
    if (folder > 0 && length > 0 && (size_t)length < sizeof program && access(program, X_OK) == 0)
      return try_program(search, program);
    list += folder + (list[folder] == ':');
  }
  return false;
}

static bool try_running_program(struct search *search) {
  char program[PATH_MAX];
  FILE *file = fopen("/proc/self/cmdline", "re");
  size_t size = file != NULL ? fread(program, 1, sizeof program - 1, file) : 0;
  if (file != NULL)
    fclose(file);
  program[size] = '\0';
  if (strchr(program, '/') != NULL ? try_program(search, program) : try_command(search, program))
    return true;
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0)
    return false;
  program[length] = '\0';
  return try_program(search, program);
}

static bool try_python_path(struct search *search) {
  const char *list = getenv("PYTHONPATH");
  while (list != NULL && *list != '\0') {
    size_t length = strcspn(list, ":");
    if (length > 0 && try_packages(search, list, length))
      return true;
    list += length + (list[length] == ':');
  }
  return false;
}

static bool try_system(struct search *search) {
  char name[sizeof stem + 40];
  if (try_library(search, stem))
    return true;
  for (int year = 26; year >= 25; year--)
    for (int minor = 4; minor >= (year == 25 ? 4 : 0); minor--)
      for (int patch = 3; patch >= 0; patch--) {
        snprintf(name, sizeof name, "%s.%d%d%d", stem, year, minor, patch);
        if (try_library(search, name))
          return true;
      }
  return false;
}

static bool search_everywhere(struct search *search) {
  static const char *const prefixes[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
  char home[PATH_MAX];
  note(search, "the libraries of this process");
  if (try_mapped(search, false) || try_mapped(search, true))
    return true;
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
    const char *prefix = getenv(prefixes[i]);
    note(search, prefixes[i]);
    if (prefix != NULL && *prefix != '\0' && try_prefix(search, prefix))
      return true;
  }
  note(search, "PYTHONPATH");
  if (try_python_path(search))
    return true;
  note(search, "the Python packages near this program, of the user and of the system");
  if (try_running_program(search))
    return true;
  const char *user = getenv("HOME");
  if (user != NULL && snprintf(home, sizeof home, "%s/.local", user) < (int)sizeof home &&
      try_prefix(search, home))
    return true;
  if (try_prefix(search, "/usr/local") || try_prefix(search, "/usr"))
    return true;
  note(search, "the system's libraries");
  return try_system(search);
}

/* A file, a folder that has one, or a name for the loader. */
static bool try_named(struct search *search, const char *variable, const char *value) {
  struct stat state;
  note(search, variable);
  if (stat(value, &state) == 0 && S_ISDIR(state.st_mode))
    return try_folder(search, value);
  return try_library(search, value);
}

/* ---------------------------------------------------------------- version and symbols */

static enum tandem_status check_version(const struct tandem_host *host, const char *version, const char *path,
                                        struct tandem_error *error) {
  int year = 0, minor = 0;
  if (sscanf(version, "%d.%d", &year, &minor) != 2)
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "%s says its version is \"%s\", expected one like 2026.4.1; %s", path, version, remedy);
  if (year < 2025 || (year == 2025 && minor < 4) || year > 2026)
    return host->fail(error, TANDEM_UNSUPPORTED, "%s is OpenVINO %s, tandem works with 2025.4 to 2026: %s",
                      path, version, remedy);
  if (minor != 4) {
    char line[256];
    snprintf(line, sizeof line, "OpenVINO %.64s was not tested with tandem, 2025.4.1 and 2026.4.1 were",
             version);
    host->log(&td_vendor_openvino, TANDEM_LOG_INFO, TANDEM_OK, line);
  }
  return TANDEM_OK;
}

/* POSIX gives functions and data pointers one representation; C has no cast for it. */
static bool find_symbol(struct search *search, const char *name, void *member) {
  void *address = search->host->library_symbol(search->library, name);
  memcpy(member, &address, sizeof address);
  return address != NULL;
}

static const char *find_symbols(struct search *search, struct ov_api *api) {
#define TD_OPENVINO_FIND(member, symbol, result, parameters)                                                 \
  if (!find_symbol(search, #symbol, &api->member))                                                           \
    return #symbol;
  TD_OPENVINO_CALLS(TD_OPENVINO_FIND)
#undef TD_OPENVINO_FIND
  return NULL;
}

enum tandem_status td_openvino_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                    struct tandem_error *error) {
  static const char *const variables[] = {"TANDEM_OPENVINO_LIBRARY", "OPENVINO_LIB_PATH"};
  td_openvino_set_host(host);
  enum tandem_status status;
  struct ov_api api;
  struct ov_version version = {0};
  struct search *search = host->allocate(sizeof *search);
  if (search == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory for the search of OpenVINO");
  search->host = host;

  const char *variable = NULL, *value = NULL;
  for (size_t i = 0; value == NULL && i < sizeof variables / sizeof variables[0]; i++) {
    variable = variables[i];
    value = getenv(variable);
    if (value != NULL && *value == '\0')
      value = NULL;
  }
  bool found = value != NULL ? try_named(search, variable, value) : search_everywhere(search);
  if (!found) {
    if (value != NULL)
      status = host->fail(error, TANDEM_UNAVAILABLE, "%s=%s: %s; correct or unset it", variable, value,
                          search->broken.code != TANDEM_OK ? search->broken.message
                                                           : "there is no libopenvino_c.so");
    else if (search->broken.code != TANDEM_OK)
      status = host->fail(error, TANDEM_UNAVAILABLE, "OpenVINO cannot be used: %s; %s",
                          search->broken.message, remedy);
    else
      status = host->fail(error, TANDEM_UNAVAILABLE, "OpenVINO was not found (searched: %s); %s",
                          search->trail, remedy);
    goto done;
  }
  const char *missing = find_symbols(search, &api);
  if (missing != NULL) {
    status = host->fail(error, TANDEM_UNSUPPORTED, "%s lacks %s, it is no OpenVINO from 2025.4 on; %s",
                        search->path, missing, remedy);
    goto done;
  }
  if (api.get_version(&version) != OV_OK || version.build_number == NULL) {
    status = host->fail(error, TANDEM_UNAVAILABLE, "%s does not tell its version; %s", search->path, remedy);
    goto done;
  }
  status = check_version(host, version.build_number, search->path, error);
  if (status == TANDEM_OK) {
    const char *build = strchr(version.build_number, '-');
    td_ov = api;
    snprintf(td_openvino_version, sizeof td_openvino_version, "%.*s", (int)strcspn(version.build_number, "-"),
             version.build_number);
    snprintf(library->version, sizeof library->version, "%s", version.build_number);
    snprintf(library->path, sizeof library->path, "%s", search->path);
    snprintf(library->build_id, sizeof library->build_id, "%s", build != NULL ? build + 1 : "");
  }
  api.version_free(&version);
done:
  host->release(search);
  return status;
}
