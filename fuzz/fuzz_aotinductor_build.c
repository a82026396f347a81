/* Fuzz target of what is compared before an engine's library is opened: whatever a program says of the torch
 * and the processor that it was compiled for, its build is refused in one line. The loader is not asked. */
#include "aotinductor.h"
#include "base.h"
#include "fuzz.h"

/* tandem_host.library_open */
static void *open_nothing(const char *name, char *path, size_t path_size, struct tandem_error *error) {
  (void)name, (void)path, (void)path_size;
  td_host.fail(error, TANDEM_UNAVAILABLE, "not opened");
  return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct tandem_host host = td_host;
  struct tandem_payload payload = {.engine = NULL};
  uint8_t *exact = copy_bytes(bytes, size);
  host.library_open = open_nothing;
  enum tandem_status status = td_vendor_aotinductor.parse(&host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK && ((struct td_aoti_program *)payload.state)->device_type == AOTI_DEVICE_CPU) {
    struct tandem_resolution resolution = {.device = "CPU"};
    struct tandem_build_desc desc = {.engine = exact, .engine_size = size, .resolution = &resolution};
    struct tandem_engine_info info;
    void *engine = &host;
    td_aoti.torch = true;
    snprintf(td_aoti.version, sizeof td_aoti.version, "2.10.0");
    status = td_vendor_aotinductor.build(&desc, &engine, &info, &error);
    require(status == TANDEM_UNSUPPORTED || status == TANDEM_BAD_PROGRAM,
            "a status that is not the program's");
    require(engine == NULL && error.code == status, "something left of a failure");
    require_line(error.message);
  }
  if (payload.state != NULL)
    td_vendor_aotinductor.payload_destroy(&payload);
  td_aoti_set_host(&td_host);
  free(exact);
  return 0;
}
