/* What the fuzz targets of the vendors' payload parsers have in common: a parse of a copy, and what holds of
 * its end, good or bad. */
#ifndef TANDEM_FUZZ_PAYLOAD_H
#define TANDEM_FUZZ_PAYLOAD_H

#include "fuzz.h"

#include <tandem/vendor.h>

extern const struct tandem_host td_host;

/* A tandem_fact_fn; `user` is a size_t. */
static void read_fact(void *user, const char *key, const char *value) {
  size_t *seen = user;
  require(key[0] != '\0', "a fact without a name");
  *seen += strlen(key) + strlen(value);
}

/* `check` is called with what was parsed of `bytes`. */
static int fuzz_parse(const struct tandem_vendor *vendor, const uint8_t *bytes, size_t size,
                      void (*check)(const struct tandem_payload *payload, const uint8_t *bytes,
                                    size_t size)) {
  struct tandem_error error = {0};
  struct tandem_payload payload = {0};
  uint8_t *exact = copy_bytes(bytes, size);
  enum tandem_status status = vendor->parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    check(&payload, exact, size);
    vendor->payload_destroy(&payload);
  } else {
    require(error.code == status, "an error without its status");
    require_line(error.message);
    require(payload.state == NULL, "something left of a failed parse");
  }
  free(exact);
  return 0;
}

#endif
