/* Finds libopenvino_c and its symbols.
 *
 * The first library that opens is the one, whatever its version: a process that has an OpenVINO must not get
 * a second one, since two share symbols by accident.
 *
 * The C interface is stable from 2025.4 to 2026.4, which are tested. What is older is refused by name, what
 * is newer within 2026 is taken with a line in the log.
 */
#include "openvino.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "../search/search.h"

struct ov_api td_ov;
char td_openvino_version[128];

static const char stem[] = "libopenvino_c.so";
static const char remedy[] = "install it with: pip install 'openvino>=2025.4,<2027' "
                             "(or set TANDEM_OPENVINO_LIBRARY to the path of libopenvino_c.so)";

/* ---------------------------------------------------------------- places */

static bool try_folder(struct td_search *search, const char *folder) {
  return td_search_folder(search, folder, ".", stem);
}

static bool try_packages(struct td_search *search, const char *packages) {
  return td_search_folder(search, packages, "openvino/libs", stem);
}

/* Beside a library of OpenVINO's that has no C interface. */
static bool try_beside(struct td_search *search, const char *path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
  return try_folder(search, folder);
}

static bool try_system(struct td_search *search) {
  char name[sizeof stem + 40];
  if (td_search_library(search, stem))
    return true;
  for (int year = 26; year >= 25; year--)
    for (int minor = 4; minor >= (year == 25 ? 4 : 0); minor--)
      for (int patch = 3; patch >= 0; patch--) {
        snprintf(name, sizeof name, "%s.%d%d%d", stem, year, minor, patch);
        if (td_search_library(search, name))
          return true;
      }
  return false;
}

static bool search_places(struct td_search *search) {
  static const char *const variables[] = {"TANDEM_OPENVINO_LIBRARY", "OPENVINO_LIB_PATH", NULL};
  if (td_search_variable(search, variables) != NULL)
    return td_search_named(search, try_folder);
  return td_search_mapped(search, stem, td_search_library) ||
         td_search_mapped(search, "libopenvino.so", try_beside) || td_search_packages(search, try_packages) ||
         try_system(search);
}

/* ---------------------------------------------------------------- version and symbols */

static enum tandem_status check_version(const struct tandem_host *host, const char *version, const char *path,
                                        struct tandem_error *error) {
  int year = 0, minor = 0;
  if (*version < '0' || *version > '9' || sscanf(version, "%4d.%4d", &year, &minor) != 2)
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

static const char *find_symbols(const struct td_search *search, struct ov_api *api) {
#define TD_OPENVINO_FIND(member, symbol, result, parameters)                                                 \
  if (!td_search_symbol(search, #symbol, &api->member))                                                      \
    return #symbol;
  TD_OPENVINO_CALLS(TD_OPENVINO_FIND)
#undef TD_OPENVINO_FIND
  return NULL;
}

enum tandem_status td_openvino_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                    struct tandem_error *error) {
  struct td_search search = {.host = host};
  struct ov_api api;
  struct ov_version version = {0};
  td_openvino_set_host(host);
  if (!search_places(&search))
    return td_search_fail(&search, "OpenVINO", stem, remedy, error);
  const char *missing = find_symbols(&search, &api);
  if (missing != NULL)
    return host->fail(error, TANDEM_UNSUPPORTED, "%s lacks %s, it is no OpenVINO from 2025.4 on; %s",
                      search.path, missing, remedy);
  if (api.get_version(&version) != OV_OK || version.build_number == NULL)
    return host->fail(error, TANDEM_UNAVAILABLE, "%s does not tell its version; %s", search.path, remedy);
  enum tandem_status status = check_version(host, version.build_number, search.path, error);
  if (status == TANDEM_OK) {
    const char *build = strchr(version.build_number, '-');
    td_ov = api;
    snprintf(td_openvino_version, sizeof td_openvino_version, "%.*s", (int)strcspn(version.build_number, "-"),
             version.build_number);
    snprintf(library->version, sizeof library->version, "%s", version.build_number);
    snprintf(library->path, sizeof library->path, "%s", search.path);
    snprintf(library->build_id, sizeof library->build_id, "%s", build != NULL ? build + 1 : "");
  }
  api.version_free(&version);
  return status;
}
