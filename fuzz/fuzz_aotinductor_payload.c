/* Fuzz target of the parser of tandem's own AOTInductor payload: whatever the bytes, it ends with an error of
 * one line or with parts that lie in the payload. */
#include "aotinductor.h"
#include "payload.h"

static void read_line(void *user, const char *key, const char *value) {
  require(strchr(value, '\n') == NULL, "a fact of two lines");
  read_fact(user, key, value);
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
static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size,
                          struct named *named) {
  (void)named;
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
  td_aoti_describe(payload, read_line, &seen);
  require(seen > 0, "no facts");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  return fuzz_parse(&td_vendor_aotinductor, bytes, size, check_payload);
}
