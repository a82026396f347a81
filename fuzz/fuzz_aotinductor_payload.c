/* Fuzz target of the parser of tandem's own AOTInductor payload: whatever the bytes, it ends with an error of
 * one line or with parts that lie in the payload. With -fsanitize=fuzzer it searches; fuzz/replay.c runs it
 * over the corpus as an ordinary test. */
#include "aotinductor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

extern const struct tandem_host td_host;

static void require(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "fuzz_aotinductor_payload: %s\n", what);
  abort();
}

static void read_fact(void *user, const char *key, const char *value) {
  size_t *seen = user;
  require(key[0] != '\0' && strchr(value, '\n') == NULL, "a fact without a name or of two lines");
  *seen += strlen(key) + strlen(value);
}

static void check_ios(const struct tandem_io *ios, size_t count) {
  for (size_t i = 0; i < count; i++) {
    require(ios[i].name[0] != '\0' && tandem_dtype_size(ios[i].dtype) > 0,
            "an input or output without a type");
    require(ios[i].rank >= 0 && ios[i].rank <= TANDEM_MAX_RANK, "a bad rank");
    for (int32_t d = 0; d < ios[i].rank; d++)
      require(ios[i].min[d] >= 0 && ios[i].max[d] >= ios[i].min[d], "a bad dimension");
  }
}

/* What can be asked of a payload that was taken. */
static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size) {
  const struct td_aoti_program *program = payload->state;
  const uint8_t *so = program->so, *end = bytes + size;
  size_t seen = 0;
  require(payload->engine == bytes && payload->engine_size == size, "an identity of less than the payload");
  require(so >= bytes && so <= end && program->so_size <= (size_t)(end - so),
          "a library outside the payload");
  require(program->weights >= so + program->so_size && program->weights <= end &&
              program->weights_size <= (size_t)(end - program->weights),
          "weights outside the payload");
  require((program->weights - bytes) % 256 == 0, "weights that are not aligned");
  check_ios(program->inputs, program->input_count);
  check_ios(program->outputs, program->output_count);
  td_aoti_describe(payload, read_fact, &seen);
  require(seen > 0, "no facts");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  struct tandem_error error = {0};
  struct tandem_payload payload;
  uint8_t *exact = malloc(size ? size : 1); /* so that a sanitizer sees one byte too many */
  if (!exact)
    return 0;
  if (size)
    memcpy(exact, bytes, size);
  enum tandem_status status = td_aoti_parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    check_payload(&payload, exact, size);
    td_aoti_payload_destroy(&payload);
  } else {
    require(error.code == status && error.message[0] != '\0' && !strchr(error.message, '\n'),
            "an error not of one line");
    require(payload.state == NULL, "something left of a failed parse");
  }
  free(exact);
  return 0;
}
