/* Fuzz target of the TensorRT payload parser: whatever the bytes, it ends with an error of one line or with
 * parts that lie in the payload. With -fsanitize=fuzzer it searches; fuzz/replay.c runs it over the corpus as
 * an ordinary test. */
#include "tensorrt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

extern const struct tandem_host td_host;

static void require(bool holds, const char *what) {
  if (holds)
    return;
  fprintf(stderr, "fuzz_tensorrt_payload: %s\n", what);
  abort();
}

static void read_fact(void *user, const char *key, const char *value) {
  size_t *seen = user;
  require(key[0] != '\0', "a fact without a name");
  *seen += strlen(key) + strlen(value);
}

/* What can be asked of a payload that was taken. */
static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size) {
  const struct td_trt_payload *state = payload->state;
  const uint8_t *engine = payload->engine;
  size_t seen = 0;
  if (state->engine_key[0] != '\0')
    require(engine == NULL && payload->engine_size == 0, "a key and bytes");
  else
    require(engine >= bytes + 32 && payload->engine_size > 0 && payload->engine_size <= size &&
                engine <= bytes + (size - payload->engine_size),
            "an engine outside the payload");
  require(state->device_id >= 0, "a negative device");
  for (size_t i = 0; i < state->binding_count; i++) {
    const struct td_trt_binding *binding = &state->bindings[i];
    require(binding->name[0] != '\0' && binding->rank >= -1 && binding->rank <= TD_TRT_MAX_RANK,
            "a bad binding");
    for (int32_t d = 0; d < binding->rank; d++)
      require(binding->shape[d] >= -1, "a bad extent");
    for (size_t k = 0; k < i; k++)
      require(strcmp(state->bindings[k].name, binding->name) != 0, "a name twice");
  }
  for (size_t i = 0; i < state->alias_count; i++)
    require(state->aliases[i].output[0] != '\0' && state->aliases[i].input[0] != '\0', "a bad alias");
  td_trt_describe(payload, read_fact, &seen);
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
  enum tandem_status status = td_trt_parse(&td_host, exact, size, NULL, &payload, &error);
  if (status == TANDEM_OK) {
    check_payload(&payload, exact, size);
    td_trt_payload_destroy(&payload);
  } else {
    require(error.code == status && error.message[0] != '\0' && !strchr(error.message, '\n'),
            "an error not of one line");
    require(payload.state == NULL, "something left of a failed parse");
  }
  free(exact);
  return 0;
}
