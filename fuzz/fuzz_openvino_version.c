/* Fuzz target of the version that an OpenVINO library tells: whatever text, the library is refused in one
 * line or its version is one that tandem works with. */
#include "base.h"
#include "fuzz.h"
#include "openvino.h"

static char *told;

static int tell_version(struct ov_version *version) {
  version->build_number = told;
  return OV_OK;
}

static void free_version(struct ov_version *version) {
  (void)version;
}

/* tandem_host.library_open */
static void *open_anything(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  (void)error;
  snprintf(path, path_size, "%s", name);
  return &told;
}

/* tandem_host.library_symbol */
static void *find_anything(void *library, const char *name) {
  int (*get)(struct ov_version *) = tell_version;
  void (*give_back)(struct ov_version *) = free_version;
  void *address = library;
  if (strcmp(name, "ov_get_openvino_version") == 0)
    memcpy(&address, &get, sizeof address);
  else if (strcmp(name, "ov_version_free") == 0)
    memcpy(&address, &give_back, sizeof address);
  return address;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct tandem_vendor_library library = {.version = ""};
  struct tandem_host host = td_host;
  host.library_open = open_anything;
  host.library_symbol = find_anything;
  setenv("TANDEM_OPENVINO_LIBRARY", "/dev/null", 1);
  told = copy_text(bytes, size);
  enum tandem_status status = td_openvino_open(&host, &library, &error);
  if (status == TANDEM_OK) {
    require(strncmp(told, "2025.", 5) == 0 || strncmp(told, "2026.", 5) == 0,
            "a version that tandem does not work with");
    require(strchr(td_openvino_version, '-') == NULL, "a version with its build");
  } else {
    require(status == TANDEM_UNSUPPORTED && error.code == status, "an error without its status");
    require_line(error.message);
  }
  td_openvino_set_host(&td_host);
  free(told);
  return 0;
}
