/* Fuzz target of the TensorRT payload parser: whatever the bytes, it ends with an error of one line or with
 * parts that lie in the payload. */
#include "payload.h"
#include "tensorrt.h"

/* What can be asked of a payload that was taken. */
static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size,
                          struct named *named) {
  (void)named;
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
  return fuzz_parse(&td_vendor_tensorrt, bytes, size, check_payload);
}
