/* Fuzz target of the parser of OpenVINO's exported models: whatever the bytes, it ends with an error of one
 * line or with parts that lie in the payload, the last of them ending where it does or before. */
#include "openvino.h"
#include "payload.h"

static void check_payload(const struct tandem_payload *payload, const uint8_t *bytes, size_t size,
                          struct named *named) {
  (void)named;
  struct tandem_error error = {0};
  struct td_openvino_blob blob;
  size_t seen = 0;
  require(payload->engine == bytes && payload->engine_size == size, "an identity of less than the payload");
  require(td_openvino_read_blob(&td_host, bytes, size, &blob, &error) == TANDEM_OK,
          "parsed once and not again");
  require(blob.header_size <= size && blob.custom_size <= size - blob.header_size,
          "custom data outside the payload");
  require(blob.weights_offset == blob.header_size + blob.custom_size, "a gap before the weights");
  require(blob.weights_size <= size - blob.weights_offset, "weights outside the payload");
  require(blob.model_offset == blob.weights_offset + blob.weights_size, "a gap before the model");
  require(blob.model_size > 0 && blob.model_size <= size - blob.model_offset, "a model outside the payload");
  if (blob.version[0] != '\0')
    require_line(blob.version);
  td_vendor_openvino.describe(payload, read_fact, &seen);
  require(seen > 0, "no facts");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  return fuzz_parse(&td_vendor_openvino, bytes, size, check_payload);
}
