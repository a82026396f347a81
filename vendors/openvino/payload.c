/* A payload is what CompiledModel.export_model() of OpenVINO's CPU plugin writes, byte for byte.
 *
 * Format, read from blobs of both versions: 2026.4 begins with "RR_UPCVO", a u32 header version (1), a u64
 * size and that many bytes of text "meta=1.0;ov=2026.4.1;isa=..."; 2025.4 has nothing of this. Then, in both,
 * six u64: offset and size of the custom data (XML), of the constants and of the model's (scrambled) XML,
 * offsets counted from these six. The three parts follow each other without a gap. Little-endian, unaligned.
 *
 * The bytes are whatever the file has, so every size is checked against what is left before it is used, and
 * what does not fit is refused before OpenVINO, whose own reader trusts more, sees it.
 */
#include "openvino.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = {'R', 'R', '_', 'U', 'P', 'C', 'V', 'O'};

enum { HEADER_VERSION = 1, NAMED_PREFIX = 8 + 4 + 8, SIZES = 6 * 8, TEXT_MAX = 65536 };

static uint64_t read_number(const unsigned char *at, unsigned bytes) {
  uint64_t number = 0;
  for (unsigned i = bytes; i-- > 0;)
    number = number << 8 | at[i];
  return number;
}

void td_openvino_find_value(const char *text, size_t text_size, const char *key, char *value, size_t size) {
  size_t key_size = strlen(key);
  value[0] = '\0';
  for (size_t at = 0; at < text_size;) {
    const char *end = memchr(text + at, ';', text_size - at);
    size_t item = end != NULL ? (size_t)(end - text) - at : text_size - at;
    if (item > key_size && text[at + key_size] == '=' && memcmp(text + at, key, key_size) == 0) {
      size_t length = item - key_size - 1;
      if (length >= size)
        length = size - 1;
      memcpy(value, text + at + key_size + 1, length);
      value[length] = '\0';
      /* The text goes into messages and on terminals. */
      for (size_t i = 0; i < length; i++)
        if (value[i] < ' ' || value[i] > '~')
          value[i] = '?';
      return;
    }
    at += item + 1;
  }
}

enum tandem_status td_openvino_read_blob(const struct tandem_host *host, const void *bytes, size_t size,
                                         struct td_openvino_blob *blob, struct tandem_error *error) {
  static const char *const advice = "export the program again";
  const unsigned char *at = bytes;
  uint64_t left = size, start = 0;
  memset(blob, 0, sizeof *blob);
  if (bytes == NULL || size == 0)
    return host->fail(error, TANDEM_BAD_PROGRAM, "the OpenVINO payload is empty; %s", advice);
  if (size >= sizeof magic && memcmp(at, magic, sizeof magic) == 0) {
    blob->format = TD_OPENVINO_NAMED;
    if (left < NAMED_PREFIX)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "the OpenVINO payload has %zu bytes, its RR_UPCVO header alone needs %d; %s", size,
                        NAMED_PREFIX, advice);
    uint64_t version = read_number(at + 8, 4);
    if (version != HEADER_VERSION)
      return host->fail(error, TANDEM_UNSUPPORTED,
                        "the OpenVINO payload has header version %" PRIu64
                        " at offset 8, this tandem reads version %d; export the program again with an "
                        "OpenVINO from 2025.4 to 2026.4, or use a newer tandem",
                        version, HEADER_VERSION);
    uint64_t text_size = read_number(at + 12, 8);
    if (text_size == 0 || text_size > TEXT_MAX || text_size > left - NAMED_PREFIX)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "the OpenVINO payload gives its requirements %" PRIu64
                        " bytes at offset 12, 1 to %" PRIu64 " are possible; %s",
                        text_size, left - NAMED_PREFIX < TEXT_MAX ? left - NAMED_PREFIX : TEXT_MAX, advice);
    const char *text = (const char *)at + NAMED_PREFIX;
    td_openvino_find_value(text, (size_t)text_size, "ov", blob->version, sizeof blob->version);
    td_openvino_find_value(text, (size_t)text_size, "isa", blob->instruction_set,
                           sizeof blob->instruction_set);
    start = NAMED_PREFIX + text_size;
    left -= start;
    at += start;
  }
  if (left < SIZES)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the OpenVINO payload ends %" PRIu64 " bytes after offset %" PRIu64
                      ", where a table of %d bytes is expected; %s",
                      left, start, SIZES, advice);
  uint64_t custom_offset = read_number(at, 8), custom_size = read_number(at + 8, 8);
  uint64_t weights_offset = read_number(at + 16, 8), weights_size = read_number(at + 24, 8);
  uint64_t model_offset = read_number(at + 32, 8), model_size = read_number(at + 40, 8);
  /* Each part begins where the one before ends, so three subtractions from what is left check all six. */
  if (custom_offset != SIZES || custom_size > left - SIZES || weights_offset != SIZES + custom_size ||
      weights_size > left - weights_offset || model_offset != weights_offset + weights_size ||
      model_size > left - model_offset || model_size == 0)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the payload is no export of OpenVINO's CPU plugin: the table at offset %" PRIu64
                      " places custom data, weights and model at %" PRIu64 "+%" PRIu64 ", %" PRIu64
                      "+%" PRIu64 ", %" PRIu64 "+%" PRIu64
                      ", expected parts without a gap from %d within %" PRIu64 " bytes; %s",
                      start, custom_offset, custom_size, weights_offset, weights_size, model_offset,
                      model_size, SIZES, left, advice);
  blob->header_size = start + SIZES;
  blob->custom_size = custom_size;
  blob->weights_offset = start + weights_offset;
  blob->weights_size = weights_size;
  blob->model_offset = start + model_offset;
  blob->model_size = model_size;
  return TANDEM_OK;
}

enum tandem_status td_openvino_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                     const struct tandem_named_data *named_data,
                                     struct tandem_payload *payload, struct tandem_error *error) {
  (void)named_data;
  td_openvino_set_host(host);
  struct td_openvino_blob blob;
  enum tandem_status status = td_openvino_read_blob(host, bytes, size, &blob, error);
  if (status != TANDEM_OK)
    return status;
  *payload = (struct tandem_payload){.engine = bytes, .engine_size = size, .state = NULL};
  return TANDEM_OK;
}

void td_openvino_payload_destroy(struct tandem_payload *payload) {
  *payload = (struct tandem_payload){0};
}

void td_openvino_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {
  struct td_openvino_blob blob;
  char number[24];
  const struct tandem_host *host = td_openvino_host();
  if (td_openvino_read_blob(host, payload->engine, payload->engine_size, &blob, NULL) != TANDEM_OK)
    return;
  fact(user, "kind", "openvino");
  fact(user, "format", blob.format == TD_OPENVINO_NAMED ? "RR_UPCVO" : "unnamed");
  if (blob.version[0] != '\0')
    fact(user, "openvino_version", blob.version);
  if (blob.instruction_set[0] != '\0')
    fact(user, "instruction_set", blob.instruction_set);
  const struct {
    const char *key;
    uint64_t value;
  } numbers[] = {
      {"engine_offset", 0},
      {"engine_size", payload->engine_size},
      {"weights_offset", blob.weights_offset},
      {"weights_size", blob.weights_size},
      {"model_offset", blob.model_offset},
      {"model_size", blob.model_size},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    snprintf(number, sizeof number, "%" PRIu64, numbers[i].value);
    fact(user, numbers[i].key, number);
  }
}
