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

/* Named data that has whatever it is asked for, but keys that begin with "no"; the size is the one of `sizes`
 * in the order of the calls, else 64, and for keys that begin with "short" one less. */
enum { NAMED_MAX = 32, NAMED_SIZE_MAX = 65536 };
struct named {
  size_t sizes[NAMED_MAX];
  size_t size_count, get_count, held_count;
};

/* tandem_named_data.get; the block is as long as its bytes. */
static enum tandem_status get_named(void *user, const char *key, const void **data, size_t *size,
                                    void **token) {
  struct named *named = user;
  size_t index = named->get_count++;
  require(key[0] != '\0', "named data without a name is asked for");
  *size = index < named->size_count ? named->sizes[index] : 64;
  if (strncmp(key, "short", 5) == 0)
    *size -= *size > 0;
  if (index >= NAMED_MAX || *size > NAMED_SIZE_MAX || strncmp(key, "no", 2) == 0)
    return TANDEM_MISSING_DATA;
  *data = *token = calloc(1, *size ? *size : 1);
  named->held_count++;
  return TANDEM_OK;
}

/* tandem_named_data.release */
static void release_named(void *user, void *token) {
  struct named *named = user;
  named->held_count--;
  free(token);
}

static void require_failed(const struct tandem_payload *payload, enum tandem_status status,
                           const struct tandem_error *error) {
  require(error->code == status, "an error without its status");
  require_line(error->message);
  require(payload->state == NULL, "something left of a failed parse");
}

/* `check` is called with what was parsed of `bytes` without named data; it may say how long that has to be.
 */
static int fuzz_parse(const struct tandem_vendor *vendor, const uint8_t *bytes, size_t size,
                      void (*check)(const struct tandem_payload *payload, const uint8_t *bytes, size_t size,
                                    struct named *named)) {
  struct tandem_error error = {0};
  struct tandem_payload payload = {0};
  struct named named = {.size_count = 0};
  struct tandem_named_data source = {get_named, release_named, &named};
  size_t seen = 0;
  uint8_t *exact = copy_bytes(bytes, size);
  enum tandem_status status = vendor->parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    check(&payload, exact, size, &named);
    vendor->payload_destroy(&payload);
  } else {
    require_failed(&payload, status, &error);
  }
  status = vendor->parse(&td_host, exact, size, &source, &payload, &error);
  if (status == TANDEM_OK) {
    require(payload.engine != NULL && payload.engine_size > 0, "no engine with all that was asked for");
    free(copy_bytes(payload.engine, payload.engine_size));
    for (size_t i = 0; i < payload.part_count; i++)
      free(copy_bytes(payload.parts[i].data, payload.parts[i].size));
    vendor->describe(&payload, read_fact, &seen);
    vendor->payload_destroy(&payload);
  } else {
    require_failed(&payload, status, &error);
  }
  require(named.held_count == 0, "named data that was not given back");
  free(exact);
  return 0;
}

#endif
