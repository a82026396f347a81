/* Fuzz target of the editor of engines' libraries: whatever ELF file a program has, it is refused in one line
 * or handed to the loader whole. The loader is not asked: what it opens may run, that is what it is for. */
#include "aotinductor.h"
#include "base.h"
#include "fuzz.h"

#include <sys/stat.h>

static size_t expected_size;

/* tandem_host.library_open */
static void *see_copy(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  struct stat state;
  (void)path, (void)path_size;
  require(stat(name, &state) == 0, "a path that leads nowhere");
  require((size_t)state.st_size == expected_size, "a copy that is not whole");
  td_host.fail(error, TANDEM_UNAVAILABLE, "not opened");
  return NULL;
}

/* tandem_host.library_symbol: some functions are there and some are not. */
static void *find_some(void *library, const char *name) {
  return strlen(name) % 4 == 3 ? NULL : library;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  static int library;
  static const struct td_aoti_hook hooks[] = {{"cuModuleLoadData", &library}, {"cuModuleUnload", NULL}};
  struct tandem_error error = {0};
  struct tandem_host host = td_host;
  void *opened = &library;
  host.library_open = see_copy;
  host.library_symbol = find_some;
  td_aoti_set_host(&host);
  uint8_t *exact = copy_bytes(bytes, size);
  expected_size = size;
  enum tandem_status status = td_aoti_open_image(exact, size, &library, hooks, 2, &opened, &error);
  require(status == TANDEM_UNSUPPORTED || status == TANDEM_BAD_PROGRAM, "a status that is not the program's");
  require(error.code == status && opened == NULL, "something left of a failure");
  require_line(error.message);
  require(size == 0 || memcmp(exact, bytes, size) == 0, "the program's own bytes were edited");
  td_aoti_set_host(&td_host);
  free(exact);
  return 0;
}
