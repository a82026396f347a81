/* Reads the payload of the TensorRT delegate: a header of 32 bytes, metadata in JSON, a plan.
 *
 * Header, little-endian: magic "TR01" ("TR02" with aliased inputs), u32 metadata offset, u32 metadata size,
 * u32 engine offset, u64 engine size, 8 reserved bytes that are ignored. The bytes are whatever the file has:
 * a field is compared with what is left before anything is added to it, so that nothing can wrap, and all is
 * refused before a library or a device sees it. Metadata that Python's reader and ours would understand
 * differently (a key twice, a zero character, text that is not UTF-8) is refused too: two readers that
 * disagree about a binding run two different programs.
 *
 * cJSON does the JSON. It notes where it failed in one variable of the process, so it runs under a lock.
 */
#include "tensorrt.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
  HEADER_SIZE = 32,
  METADATA_OFFSET = 4,
  METADATA_SIZE = 8,
  ENGINE_OFFSET = 12,
  ENGINE_SIZE = 16,
  ENGINE_ALIGNMENT = 16,
  /* Of one list; engines have tens of bindings. Names are compared pairwise. */
  ITEMS_MAX = 4096,
};

static const char advice[] = "export the program again";
static const double largest_exact = 9007199254740992.0; /* 2^53: whole numbers that a double holds */

/* A payload that is being read. `base.release` and what else parse returns on success is in `payload`. */
struct reader {
  const struct tandem_host *host;
  struct td_trt_payload *payload;
  struct td_trt_binding *bindings; /* owned by the payload */
  struct td_trt_alias *aliases;    /* likewise */
  struct tandem_error *error;
};

/* ---------------------------------------------------------------- header */

static uint64_t read_number(const unsigned char *at, unsigned bytes) {
  uint64_t number = 0;
  for (unsigned i = bytes; i-- > 0;)
    number = number << 8 | at[i];
  return number;
}

static enum tandem_status read_header(struct reader *reader, const unsigned char *bytes, uint64_t size) {
  const struct tandem_host *host = reader->host;
  struct tandem_error *error = reader->error;
  struct td_trt_payload *payload = reader->payload;
  if (size < HEADER_SIZE)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the TensorRT payload has %" PRIu64 " bytes, its header alone needs %d; %s", size,
                      HEADER_SIZE, advice);
  if (memcmp(bytes, "TR0", 3) != 0 || (bytes[3] != '1' && bytes[3] != '2'))
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the TensorRT payload begins with the bytes %02x %02x %02x %02x, expected \"TR01\" or "
                      "\"TR02\"; %s",
                      bytes[0], bytes[1], bytes[2], bytes[3], advice);
  payload->format = bytes[3] - '0';
  payload->metadata_offset = (uint32_t)read_number(bytes + METADATA_OFFSET, 4);
  payload->metadata_size = (uint32_t)read_number(bytes + METADATA_SIZE, 4);
  payload->engine_offset = (uint32_t)read_number(bytes + ENGINE_OFFSET, 4);
  payload->engine_size = read_number(bytes + ENGINE_SIZE, 8);
  if (payload->metadata_offset < HEADER_SIZE || payload->metadata_offset > size)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "metadata_offset is %" PRIu32 " (at offset %d), expected %d to %" PRIu64
                      ", the payload's size; %s",
                      payload->metadata_offset, METADATA_OFFSET, HEADER_SIZE, size, advice);
  if (payload->engine_offset % ENGINE_ALIGNMENT != 0 || payload->engine_offset > size)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "engine_offset is %" PRIu32 " (at offset %d), expected a multiple of %d up to %" PRIu64
                      ", the payload's size; %s",
                      payload->engine_offset, ENGINE_OFFSET, ENGINE_ALIGNMENT, size, advice);
  if (payload->engine_offset < payload->metadata_offset ||
      payload->metadata_size > payload->engine_offset - payload->metadata_offset)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "metadata_size is %" PRIu32 " (at offset %d) from %" PRIu32
                      " on, expected an end at or before engine_offset %" PRIu32 "; %s",
                      payload->metadata_size, METADATA_SIZE, payload->metadata_offset, payload->engine_offset,
                      advice);
  if (payload->engine_size > size - payload->engine_offset)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "engine_size is %" PRIu64 " (at offset %d), but %" PRIu64
                      " bytes follow engine_offset %" PRIu32 "; %s",
                      payload->engine_size, ENGINE_SIZE, size - payload->engine_offset,
                      payload->engine_offset, advice);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- text of the metadata */

/* Bytes of the UTF-8 character at `at`, 0 when it is none. Rejects surrogates and overlong forms. */
static size_t measure_character(const unsigned char *at, size_t left) {
  static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t length = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : at[0] >= 0xc0 ? 2 : 0;
  if (length <= 1 || length > left)
    return length > left ? 0 : length;
  uint32_t code = at[0] & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80)
      return 0;
    code = code << 6 | (at[i] & 0x3fu);
  }
  bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < lowest[length] || code > 0x10ffff || surrogate || at[0] > 0xf4 ? 0 : length;
}

static size_t count_digits(const unsigned char *text, size_t size) {
  size_t count = 0;
  while (count < size && text[count] >= '0' && text[count] <= '9')
    count++;
  return count;
}

/* The length of the number that begins here, 0 when JSON has none such ("00", "1.", "1e"). */
static size_t measure_number(const unsigned char *text, size_t size) {
  size_t at = text[0] == '-' ? 1 : 0, digits = count_digits(text + at, size - at);
  if (digits == 0 || (digits > 1 && text[at] == '0'))
    return 0;
  at += digits;
  if (at < size && text[at] == '.') {
    digits = count_digits(text + at + 1, size - at - 1);
    if (digits == 0)
      return 0;
    at += 1 + digits;
  }
  if (at < size && (text[at] == 'e' || text[at] == 'E')) {
    at += at + 1 < size && (text[at + 1] == '+' || text[at + 1] == '-') ? 2 : 1;
    digits = count_digits(text + at, size - at);
    if (digits == 0)
      return 0;
    at += digits;
  }
  return at;
}

/* What cJSON takes and JSON does not, or what it would cut: the offset of the first such byte, or `size`. */
static size_t find_foreign_byte(const unsigned char *text, size_t size) {
  bool quoted = false;
  for (size_t i = 0; i < size;) {
    unsigned char byte = text[i];
    size_t length = measure_character(text + i, size - i);
    if (length == 0 || (byte < ' ' && (quoted || (byte != '\t' && byte != '\n' && byte != '\r'))))
      return i;
    if (!quoted && (byte == '-' || (byte >= '0' && byte <= '9'))) {
      length = measure_number(text + i, size - i);
      if (length == 0)
        return i;
    }
    if (byte == '"')
      quoted = !quoted;
    if (quoted && byte == '\\') {
      if (size - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
        return i;
      length = 2;
    }
    i += length;
  }
  return size;
}

static enum tandem_status read_document(struct reader *reader, const unsigned char *bytes) {
  static struct tandem_host_lock json_lock;
  const struct tandem_host *host = reader->host;
  struct td_trt_payload *payload = reader->payload;
  const char *text = (const char *)bytes + payload->metadata_offset, *end = text;
  size_t size = payload->metadata_size;
  size_t foreign = find_foreign_byte((const unsigned char *)text, size);
  if (foreign < size)
    return host->fail(
        reader->error, TANDEM_BAD_PROGRAM,
        "the metadata has a byte, escape or number at offset %zu that JSON text cannot have; %s",
        payload->metadata_offset + foreign, advice);
  host->lock_alone(&json_lock);
  cJSON *document = cJSON_ParseWithLengthOpts(text, size, &end, false);
  host->unlock(&json_lock);
  size_t at = end != NULL ? (size_t)(end - text) : 0;
  if (document != NULL)
    while (at < size && strchr(" \t\r\n", text[at]) != NULL)
      at++;
  payload->document = document;
  if (document != NULL && at == size && cJSON_IsObject(document))
    return TANDEM_OK;
  return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                    "the metadata of %zu bytes is no JSON object: it ends to make sense at offset %zu; %s",
                    size, payload->metadata_offset + (at < size ? at : size), advice);
}

/* ---------------------------------------------------------------- members */

/* The member `key` of an object, NULL when absent. `where` names the object ("io_bindings[3]"). */
static enum tandem_status find_member(struct reader *reader, const cJSON *object, const char *where,
                                      const char *key, const cJSON **member) {
  const cJSON *item;
  *member = NULL;
  cJSON_ArrayForEach(item, object) {
    if (strcmp(item->string, key) != 0)
      continue;
    if (*member != NULL)
      return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM, "the metadata gives %s%s twice; %s", where,
                                key, advice);
    *member = item;
  }
  return TANDEM_OK;
}

static enum tandem_status fail_member(struct reader *reader, const char *where, const char *key,
                                      const cJSON *member, const char *expected) {
  char found[64] = "another kind of value";
  if (cJSON_IsNumber(member))
    snprintf(found, sizeof found, "%.17g", member->valuedouble);
  else if (cJSON_IsString(member))
    snprintf(found, sizeof found, "\"%.40s\"", member->valuestring);
  else if (member == NULL || cJSON_IsNull(member))
    snprintf(found, sizeof found, member == NULL ? "absent" : "null");
  return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM, "%s%s is %s in the metadata, expected %s; %s",
                            where, key, found, expected, advice);
}

/* *value keeps what it was when the member is absent. */
static enum tandem_status read_text(struct reader *reader, const cJSON *object, const char *where,
                                    const char *key, const char **value) {
  const cJSON *member;
  enum tandem_status status = find_member(reader, object, where, key, &member);
  if (status != TANDEM_OK || member == NULL)
    return status;
  if (!cJSON_IsString(member))
    return fail_member(reader, where, key, member, "text");
  *value = member->valuestring;
  return TANDEM_OK;
}

static enum tandem_status read_bool(struct reader *reader, const cJSON *object, const char *where,
                                    const char *key, bool *value) {
  const cJSON *member;
  enum tandem_status status = find_member(reader, object, where, key, &member);
  if (status != TANDEM_OK || member == NULL)
    return status;
  if (!cJSON_IsBool(member))
    return fail_member(reader, where, key, member, "true or false");
  *value = cJSON_IsTrue(member);
  return TANDEM_OK;
}

static bool is_whole(const cJSON *number, double least, double most) {
  return cJSON_IsNumber(number) && number->valuedouble >= least && number->valuedouble <= most &&
         (double)(int64_t)number->valuedouble == number->valuedouble;
}

/* A list of objects, NULL when absent. */
static enum tandem_status find_list(struct reader *reader, const char *key, const cJSON **list,
                                    size_t *count) {
  enum tandem_status status = find_member(reader, reader->payload->document, "", key, list);
  *count = 0;
  if (status != TANDEM_OK || *list == NULL)
    return status;
  if (!cJSON_IsArray(*list))
    return fail_member(reader, "", key, *list, "a list");
  const cJSON *item;
  cJSON_ArrayForEach(item, *list) {
    if (!cJSON_IsObject(item))
      return fail_member(reader, "an item of ", key, item, "an object");
    ++*count;
  }
  if (*count > ITEMS_MAX)
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              "%s has %zu items in the metadata, at most %d are possible; %s", key, *count,
                              ITEMS_MAX, advice);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- bindings and aliases */

static enum tandem_status read_shape(struct reader *reader, const cJSON *object, const char *where,
                                     struct td_trt_binding *binding) {
  const cJSON *shape, *extent;
  enum tandem_status status = find_member(reader, object, where, "shape", &shape);
  binding->rank = -1;
  if (status != TANDEM_OK || shape == NULL)
    return status;
  if (!cJSON_IsArray(shape))
    return fail_member(reader, where, "shape", shape, "a list");
  binding->rank = 0;
  cJSON_ArrayForEach(extent, shape) {
    if (binding->rank == TD_TRT_MAX_RANK)
      return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                                "%sshape has more than the %d dimensions that TensorRT knows; %s", where,
                                TD_TRT_MAX_RANK, advice);
    if (!is_whole(extent, -1, largest_exact))
      return fail_member(reader, where, "shape", extent, "whole numbers, -1 for a dynamic dimension");
    binding->shape[binding->rank++] = (int64_t)extent->valuedouble;
  }
  return TANDEM_OK;
}

static enum tandem_status read_bindings(struct reader *reader) {
  struct td_trt_payload *payload = reader->payload;
  const cJSON *list, *item;
  size_t count, index = 0;
  enum tandem_status status = find_list(reader, "io_bindings", &list, &count);
  if (status != TANDEM_OK || count == 0)
    return status;
  reader->bindings = reader->host->allocate(count * sizeof *reader->bindings);
  payload->bindings = reader->bindings;
  if (reader->bindings == NULL)
    return reader->host->fail(reader->error, TANDEM_OUT_OF_MEMORY, "no host memory for %zu bindings", count);
  payload->binding_count = count;
  cJSON_ArrayForEach(item, list) {
    struct td_trt_binding *binding = &reader->bindings[index];
    char where[40];
    snprintf(where, sizeof where, "io_bindings[%zu].", index++);
    *binding = (struct td_trt_binding){.name = "", .dtype = "", .is_input = true};
    if ((status = read_text(reader, item, where, "name", &binding->name)) != TANDEM_OK ||
        (status = read_text(reader, item, where, "dtype", &binding->dtype)) != TANDEM_OK ||
        (status = read_bool(reader, item, where, "is_input", &binding->is_input)) != TANDEM_OK ||
        (status = read_shape(reader, item, where, binding)) != TANDEM_OK)
      return status;
    if (binding->name[0] == '\0')
      return fail_member(reader, where, "name", NULL, "a name");
    for (const struct td_trt_binding *other = reader->bindings; other < binding; other++)
      if (strcmp(other->name, binding->name) == 0)
        return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                                  "io_bindings[%td] and io_bindings[%zu] are both named \"%.200s\", expected "
                                  "each name once; %s",
                                  other - reader->bindings, index - 1, binding->name, advice);
  }
  return TANDEM_OK;
}

/* True also when the payload has no bindings: the engine knows then. */
static bool has_binding(const struct td_trt_payload *payload, const char *name, bool is_input) {
  for (size_t i = 0; i < payload->binding_count; i++)
    if (payload->bindings[i].is_input == is_input && strcmp(payload->bindings[i].name, name) == 0)
      return true;
  return payload->binding_count == 0;
}

static enum tandem_status read_aliases(struct reader *reader) {
  const struct tandem_host *host = reader->host;
  struct td_trt_payload *payload = reader->payload;
  const cJSON *list, *item;
  size_t count, index = 0;
  enum tandem_status status = find_list(reader, "aliased_io", &list, &count);
  if (status != TANDEM_OK || count == 0)
    return status;
  reader->aliases = host->allocate(count * sizeof *reader->aliases);
  payload->aliases = reader->aliases;
  if (reader->aliases == NULL)
    return host->fail(reader->error, TANDEM_OUT_OF_MEMORY, "no host memory for %zu aliases", count);
  payload->alias_count = count;
  cJSON_ArrayForEach(item, list) {
    struct td_trt_alias *alias = &reader->aliases[index];
    const char *kind = "kv_cache_update";
    char where[40];
    snprintf(where, sizeof where, "aliased_io[%zu].", index++);
    *alias = (struct td_trt_alias){.output = "", .input = ""};
    if ((status = read_text(reader, item, where, "output", &alias->output)) != TANDEM_OK ||
        (status = read_text(reader, item, where, "input", &alias->input)) != TANDEM_OK ||
        (status = read_text(reader, item, where, "kind", &kind)) != TANDEM_OK)
      return status;
    if (alias->output[0] == '\0' || alias->input[0] == '\0')
      return fail_member(reader, where, alias->output[0] == '\0' ? "output" : "input", NULL, "a name");
    if (strcmp(kind, "kv_cache_update") != 0 && strcmp(kind, "user") != 0)
      return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                        "%skind is \"%.40s\" in the metadata, expected \"kv_cache_update\" or \"user\"; %s",
                        where, kind, advice);
    alias->kind = kind[0] == 'u' ? TD_TRT_ALIAS_USER : TD_TRT_ALIAS_CACHE;
    if (!has_binding(payload, alias->output, false) || !has_binding(payload, alias->input, true))
      return host->fail(
          reader->error, TANDEM_BAD_PROGRAM,
          "%s says that output \"%.100s\" updates input \"%.100s\", but io_bindings has no such "
          "%s; %s",
          where, alias->output, alias->input, has_binding(payload, alias->output, false) ? "input" : "output",
          advice);
    for (const struct td_trt_alias *other = reader->aliases; other < alias; other++)
      if (strcmp(other->output, alias->output) == 0)
        return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                          "aliased_io has output \"%.200s\" twice, expected each output once; %s",
                          alias->output, advice);
      else if (strcmp(other->input, alias->input) == 0)
        return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                          "aliased_io says that outputs \"%.100s\" and \"%.100s\" both update input "
                          "\"%.100s\", expected one output for an input; %s",
                          other->output, alias->output, alias->input, advice);
  }
  return TANDEM_OK;
}

static enum tandem_status read_metadata(struct reader *reader, const unsigned char *bytes) {
  struct td_trt_payload *payload = reader->payload;
  const cJSON *member = NULL;
  enum tandem_status status = read_document(reader, bytes);
  if (status != TANDEM_OK || (status = read_bindings(reader)) != TANDEM_OK ||
      (status = read_aliases(reader)) != TANDEM_OK)
    return status;
  const cJSON *document = payload->document;
  if ((status = find_member(reader, document, "", "device_id", &member)) != TANDEM_OK)
    return status;
  if (member != NULL && !is_whole(member, 0, INT32_MAX))
    return fail_member(reader, "", "device_id", member, "the index of a CUDA device, 0 to 2147483647");
  payload->device_id = member != NULL ? (int32_t)member->valuedouble : 0;
  if ((status = read_bool(reader, document, "", "hardware_compatible", &payload->hardware_compatible)) !=
          TANDEM_OK ||
      (status = read_text(reader, document, "", "target_platform", &payload->target_platform)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "serialized_metadata", &payload->serialized_metadata)) !=
          TANDEM_OK ||
      (status = read_text(reader, document, "", "engine_key", &payload->engine_key)) != TANDEM_OK)
    return status;
  bool key = payload->engine_key[0] != '\0', embedded = payload->engine_size > 0;
  if (key == embedded)
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              key ? "engine_size is %" PRIu64 " though the metadata names the engine by "
                                    "engine_key, expected 0; %s"
                                  : "engine_size is %" PRIu64
                                    " and the metadata has no engine_key, expected an "
                                    "engine in one place; %s",
                              payload->engine_size, advice);
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- the vendor's entries */

static enum tandem_status get_named(struct reader *reader, const struct tandem_named_data *named_data,
                                    struct tandem_payload *payload) {
  struct td_trt_payload *state = reader->payload;
  const char *key = state->engine_key;
  const void *data = NULL;
  size_t size = 0;
  void *token = NULL;
  enum tandem_status status = named_data->get(named_data->user, key, &data, &size, &token);
  if (status != TANDEM_OK)
    return reader->host->fail(reader->error, status,
                              "engine_key names \"%.200s\", which is neither in the program's named data nor "
                              "in an external data file; give the .ptd file that the program was exported "
                              "with",
                              key);
  state->release = named_data->release;
  state->release_user = named_data->user;
  state->token = token;
  payload->engine = data;
  payload->engine_size = size;
  if (data == NULL || size == 0)
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              "the named data \"%.200s\" of engine_key is empty, expected a plan; %s", key,
                              advice);
  return TANDEM_OK;
}

enum tandem_status td_trt_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_named_data *named_data, struct tandem_payload *payload,
                                struct tandem_error *error) {
  td_trt_set_host(host);
  *payload = (struct tandem_payload){0};
  struct td_trt_payload *state = host->allocate(sizeof *state);
  if (state == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a payload's metadata");
  payload->state = state;
  state->target_platform = state->serialized_metadata = state->engine_key = "";
  struct reader reader = {.host = host, .payload = state, .error = error};
  enum tandem_status status = read_header(&reader, bytes, size);
  if (status == TANDEM_OK)
    status = read_metadata(&reader, bytes);
  if (status == TANDEM_OK && state->engine_size > 0) {
    payload->engine = (const unsigned char *)bytes + state->engine_offset;
    payload->engine_size = (size_t)state->engine_size;
  } else if (status == TANDEM_OK && named_data != NULL) {
    /* Without named data the payload can be described; resolve refuses to load it. */
    status = get_named(&reader, named_data, payload);
  }
  if (status != TANDEM_OK)
    td_trt_payload_destroy(payload);
  return status;
}

void td_trt_payload_destroy(struct tandem_payload *payload) {
  const struct tandem_host *host = td_trt_host();
  struct td_trt_payload *state = payload->state;
  if (state == NULL)
    return;
  if (state->release != NULL)
    state->release(state->release_user, state->token);
  cJSON_Delete(state->document);
  host->release((void *)(uintptr_t)state->bindings);
  host->release((void *)(uintptr_t)state->aliases);
  host->release(state);
  *payload = (struct tandem_payload){0};
}

/* ---------------------------------------------------------------- describe */

static void tell_number(tandem_fact_fn fact, void *user, const char *key, uint64_t value) {
  char number[24];
  snprintf(number, sizeof number, "%" PRIu64, value);
  fact(user, key, number);
}

static void tell_binding(tandem_fact_fn fact, void *user, const struct td_trt_binding *binding,
                         size_t index) {
  char key[48], value[512];
  snprintf(key, sizeof key, "%s %zu", binding->is_input ? "binding input" : "binding output", index);
  size_t used = (size_t)snprintf(value, sizeof value, "%.200s%s%.32s", binding->name,
                                 binding->dtype[0] != '\0' ? " " : "", binding->dtype);
  for (int32_t d = 0; d < binding->rank; d++)
    used += (size_t)snprintf(value + used, sizeof value - used, "%s%" PRId64, d == 0 ? " [" : ", ",
                             binding->shape[d]);
  if (binding->rank >= 0)
    snprintf(value + used, sizeof value - used, binding->rank == 0 ? " []" : "]");
  fact(user, key, value);
}

void td_trt_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {
  const struct td_trt_payload *state = payload->state;
  char text[512], magic[] = {'T', 'R', '0', (char)('0' + state->format), '\0'};
  struct td_trt_plan plan;
  fact(user, "kind", "tensorrt");
  fact(user, "format", magic);
  tell_number(fact, user, "metadata_offset", state->metadata_offset);
  tell_number(fact, user, "metadata_size", state->metadata_size);
  tell_number(fact, user, "engine_offset", state->engine_offset);
  tell_number(fact, user, "engine_size", state->engine_size);
  if (state->engine_key[0] != '\0')
    fact(user, "engine_key", state->engine_key);
  if (td_trt_read_plan(payload->engine, payload->engine_size, &plan))
    fact(user, "plan", plan.name);
  tell_number(fact, user, "device_id", (uint64_t)state->device_id);
  fact(user, "hardware_compatible", state->hardware_compatible ? "true" : "false");
  if (state->target_platform[0] != '\0')
    fact(user, "target_platform", state->target_platform);
  if (state->serialized_metadata[0] != '\0')
    tell_number(fact, user, "serialized_metadata_size", strlen(state->serialized_metadata));
  if (state->binding_count == 0)
    fact(user, "bindings", "as the engine lists them");
  for (size_t i = 0; i < state->binding_count; i++)
    tell_binding(fact, user, &state->bindings[i], i);
  for (size_t i = 0; i < state->alias_count; i++) {
    char key[32];
    snprintf(key, sizeof key, "alias %zu", i);
    snprintf(text, sizeof text, "output %.200s updates input %.200s (%s)", state->aliases[i].output,
             state->aliases[i].input,
             state->aliases[i].kind == TD_TRT_ALIAS_USER ? "user" : "kv_cache_update");
    fact(user, key, text);
  }
}
