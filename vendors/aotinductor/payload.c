/* Reads tandem's own payload of an AOTInductor program: a header of 64 bytes, metadata in JSON, the compiled
 * library, its weights.
 *
 * Header, little-endian: magic "TDAOTI01", u32 metadata offset, u32 metadata size, u64 library offset, u64
 * library size, u64 weights offset (a multiple of 256), u64 weights size, 16 bytes of zeros. The parts lie in
 * this order. The bytes are whatever the file has: a field is compared with what is left before anything is
 * added to it, so that nothing can wrap, and all is refused before a library or a device sees it.
 *
 * The whole payload is the engine's identity, metadata included: it says which constants runs write to, and a
 * payload that lied about them would otherwise get another one's engine and write to weights that are shared.
 *
 * cJSON does the JSON. It notes where it failed in one variable of the process, so it runs under a lock.
 */
#include "aotinductor.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
  HEADER_SIZE = 64,
  METADATA_OFFSET = 8,
  METADATA_SIZE = 12,
  LIBRARY_OFFSET = 16,
  LIBRARY_SIZE = 24,
  WEIGHTS_OFFSET = 32,
  WEIGHTS_SIZE = 40,
  RESERVED = 48,
  ALIGNMENT = 256,
  ITEMS_MAX = 65536, /* of one list: models have thousands of constants */
};

static const char magic[] = "TDAOTI01", advice[] = "export the program again with tandem.export";

struct reader {
  const struct tandem_host *host;
  struct td_aoti_program *program;
  struct tandem_error *error;
};

/* ---------------------------------------------------------------- header */

static uint64_t read_number(const unsigned char *at, unsigned bytes) {
  uint64_t number = 0;
  for (unsigned i = bytes; i-- > 0;)
    number = number << 8 | at[i];
  return number;
}

/* A part of the payload from `begin` on, at or behind `least`. */
static enum tandem_status check_part(struct reader *reader, const char *name, int field, uint64_t begin,
                                     uint64_t length, uint64_t least, uint64_t size) {
  if (begin >= least && begin <= size && length <= size - begin)
    return TANDEM_OK;
  return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                            "the payload's %s (header at offset %d) has %" PRIu64 " bytes from %" PRIu64
                            " on, expected a place within %" PRIu64 " to %" PRIu64 "; %s",
                            name, field, length, begin, least, size, advice);
}

static enum tandem_status read_header(struct reader *reader, const unsigned char *bytes, uint64_t size,
                                      const char **metadata, size_t *metadata_size) {
  const struct tandem_host *host = reader->host;
  if (size < HEADER_SIZE)
    return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                      "the payload has %" PRIu64 " bytes, its header alone needs %d; %s", size, HEADER_SIZE,
                      advice);
  uint64_t text = read_number(bytes + METADATA_OFFSET, 4), text_size = read_number(bytes + METADATA_SIZE, 4);
  uint64_t so = read_number(bytes + LIBRARY_OFFSET, 8), so_size = read_number(bytes + LIBRARY_SIZE, 8);
  uint64_t weights = read_number(bytes + WEIGHTS_OFFSET, 8);
  uint64_t weights_size = read_number(bytes + WEIGHTS_SIZE, 8);
  enum tandem_status status;
  if ((status = check_part(reader, "metadata", METADATA_OFFSET, text, text_size, HEADER_SIZE, size)) !=
          TANDEM_OK ||
      (status = check_part(reader, "library", LIBRARY_OFFSET, so, so_size, text + text_size, size)) !=
          TANDEM_OK ||
      (status = check_part(reader, "weights", WEIGHTS_OFFSET, weights, weights_size, so + so_size, size)) !=
          TANDEM_OK)
    return status;
  if (weights % ALIGNMENT != 0)
    return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                      "the payload's weights begin at offset %" PRIu64 ", expected a multiple of %d; %s",
                      weights, ALIGNMENT, advice);
  for (int i = RESERVED; i < HEADER_SIZE; i++)
    if (bytes[i] != 0)
      return host->fail(reader->error, TANDEM_UNSUPPORTED,
                        "the payload's header has the byte %02x at offset %d, expected 0: a newer tandem "
                        "wrote it; update tandem or %s",
                        bytes[i], i, advice);
  *metadata = (const char *)bytes + text;
  *metadata_size = (size_t)text_size;
  reader->program->so = bytes + so;
  reader->program->so_size = (size_t)so_size;
  reader->program->weights = bytes + weights;
  reader->program->weights_size = (size_t)weights_size;
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- metadata */

static enum tandem_status refuse(struct reader *reader, const char *where, const char *key,
                                 const char *expected) {
  return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                            "%s%s%s of the payload's metadata is missing or wrong, expected %s; %s", where,
                            where[0] != '\0' ? "." : "", key, expected, advice);
}

/* Names are used in messages and log lines, which are one line each. */
static bool is_plain(const char *text) {
  while ((unsigned char)*text >= ' ')
    text++;
  return *text == '\0';
}

/* Borrowed from the document; "" when absent. */
static enum tandem_status read_text(struct reader *reader, const cJSON *object, const char *where,
                                    const char *key, bool required, const char **text) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  *text = "";
  if (item == NULL && !required)
    return TANDEM_OK;
  if (!cJSON_IsString(item) || (required && item->valuestring[0] == '\0'))
    return refuse(reader, where, key, "a text");
  if (!is_plain(item->valuestring))
    return refuse(reader, where, key, "a text without control characters");
  *text = item->valuestring;
  return TANDEM_OK;
}

/* The list `key`, NULL when absent. */
static enum tandem_status read_list(struct reader *reader, const cJSON *object, const char *key,
                                    const cJSON **list, size_t *count) {
  *list = cJSON_GetObjectItemCaseSensitive(object, key);
  *count = 0;
  if (*list == NULL)
    return TANDEM_OK;
  if (!cJSON_IsArray(*list))
    return refuse(reader, "", key, "a list");
  for (const cJSON *item = (*list)->child; item != NULL; item = item->next)
    if (++*count > ITEMS_MAX)
      return refuse(reader, "", key, "at most 65536 items");
  return TANDEM_OK;
}

static bool read_extent(const cJSON *item, int64_t *extent) {
  static const double largest = 9007199254740992.0; /* 2^53: whole numbers that a double holds */
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= largest))
    return false;
  *extent = (int64_t)item->valuedouble;
  return (double)*extent == item->valuedouble;
}

/* A size, or the least and the greatest one (null: not known): 2, [1, 16], [0, null]. */
static bool read_dimension(const cJSON *item, int64_t *min, int64_t *max) {
  const cJSON *least = item, *greatest = item;
  if (cJSON_IsArray(item)) {
    if (cJSON_GetArraySize(item) != 2)
      return false;
    least = item->child;
    greatest = least->next;
  }
  if (!read_extent(least, min))
    return false;
  if (greatest != least && cJSON_IsNull(greatest)) {
    *max = INT64_MAX;
    return true;
  }
  return read_extent(greatest, max) && *max >= *min;
}

static bool read_shape(const cJSON *list, struct tandem_io *io) {
  if (!cJSON_IsArray(list))
    return false;
  for (const cJSON *item = list->child; item != NULL; item = item->next, io->rank++)
    if (io->rank == TANDEM_MAX_RANK || !read_dimension(item, &io->min[io->rank], &io->max[io->rank]))
      return false;
  return true;
}

static int32_t find_dtype(const char *name) {
  for (int32_t dtype = 0; dtype <= TANDEM_UINT64; dtype++)
    if (tandem_dtype_size(dtype) > 0 && strcmp(tandem_dtype_name(dtype), name) == 0)
      return dtype;
  return -1;
}

static enum tandem_status read_ios(struct reader *reader, const cJSON *document, const char *key,
                                   struct tandem_io **ios, size_t *count) {
  const cJSON *list;
  size_t items;
  enum tandem_status status = read_list(reader, document, key, &list, &items);
  if (status != TANDEM_OK)
    return status;
  if (list == NULL)
    return refuse(reader, "", key, "a list");
  *ios = reader->host->allocate((items + 1) * sizeof **ios);
  if (*ios == NULL)
    return reader->host->fail(reader->error, TANDEM_OUT_OF_MEMORY, "no memory for %zu %s", items, key);
  for (const cJSON *item = list->child; item != NULL; item = item->next) {
    struct tandem_io *io = &(*ios)[*count];
    char where[48];
    const char *dtype;
    snprintf(where, sizeof where, "%s[%zu]", key, *count);
    if ((status = read_text(reader, item, where, "name", true, &io->name)) != TANDEM_OK ||
        (status = read_text(reader, item, where, "dtype", true, &dtype)) != TANDEM_OK)
      return status;
    io->dtype = find_dtype(dtype);
    if (io->dtype < 0)
      return refuse(reader, where, "dtype", "one of tandem's, such as float32");
    if (!read_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), io))
      return refuse(reader, where, "shape", "a list of sizes or [least, greatest] of at most 16 dimensions");
    ++*count;
  }
  return TANDEM_OK;
}

static enum tandem_status read_mutable(struct reader *reader, const cJSON *document) {
  struct td_aoti_program *program = reader->program;
  const cJSON *list;
  size_t count;
  enum tandem_status status = read_list(reader, document, "mutable", &list, &count);
  if (status != TANDEM_OK || list == NULL)
    return status; /* without the list it is not known */
  program->mutable_names = reader->host->allocate((count + 1) * sizeof *program->mutable_names);
  if (program->mutable_names == NULL)
    return reader->host->fail(reader->error, TANDEM_OUT_OF_MEMORY, "no memory for %zu names", count);
  program->state_known = true;
  for (const cJSON *item = list->child; item != NULL; item = item->next) {
    if (!cJSON_IsString(item) || !is_plain(item->valuestring))
      return refuse(reader, "", "mutable", "a list of names");
    program->mutable_names[program->mutable_count++] = item->valuestring;
  }
  return TANDEM_OK;
}

/* "9.0" */
static bool read_capability(const char *text, int32_t *capability) {
  unsigned major = 0, minor = 0;
  int end = 0;
  *capability = 0;
  if (text[0] == '\0')
    return true;
  if (sscanf(text, "%2u.%1u%n", &major, &minor, &end) != 2 || text[end] != '\0')
    return false;
  *capability = (int32_t)(major * 10 + minor);
  return true;
}

static enum tandem_status read_document(struct reader *reader, const cJSON *document) {
  struct td_aoti_program *program = reader->program;
  const char *device, *capability;
  enum tandem_status status;
  if ((status = read_text(reader, document, "", "torch", false, &program->torch_version)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "machine", false, &program->machine)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "features", false, &program->features)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "library_sha256", false, &program->so_sha256)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "capability", false, &capability)) != TANDEM_OK ||
      (status = read_text(reader, document, "", "device", true, &device)) != TANDEM_OK)
    return status;
  program->device_type = strcmp(device, "cuda") == 0 ? AOTI_DEVICE_CUDA : AOTI_DEVICE_CPU;
  if (program->device_type == AOTI_DEVICE_CPU && strcmp(device, "cpu") != 0)
    return refuse(reader, "", "device", "cpu or cuda");
  if (!read_capability(capability, &program->capability))
    return refuse(reader, "", "capability", "a compute capability such as 9.0");
  if ((status = read_ios(reader, document, "inputs", &program->inputs, &program->input_count)) != TANDEM_OK ||
      (status = read_ios(reader, document, "outputs", &program->outputs, &program->output_count)) !=
          TANDEM_OK)
    return status;
  return read_mutable(reader, document);
}

static enum tandem_status read_own(struct reader *reader, const unsigned char *bytes, size_t size) {
  static struct tandem_host_lock json_lock;
  const struct tandem_host *host = reader->host;
  const char *text = NULL, *end = NULL;
  size_t text_size = 0;
  enum tandem_status status = read_header(reader, bytes, size, &text, &text_size);
  if (status != TANDEM_OK)
    return status;
  host->lock_alone(&json_lock);
  cJSON *document = cJSON_ParseWithLengthOpts(text, text_size, &end, false);
  host->unlock(&json_lock);
  reader->program->document = document;
  if (!cJSON_IsObject(document))
    return host->fail(reader->error, TANDEM_BAD_PROGRAM,
                      "the payload's metadata of %zu bytes is no JSON object: it ends to make sense at byte "
                      "%zu; %s",
                      text_size, end != NULL && end >= text ? (size_t)(end - text) : 0, advice);
  return read_document(reader, document);
}

/* ---------------------------------------------------------------- both forms */

const struct td_aoti_program td_aoti_no_program = {
    .so_sha256 = "", .torch_version = "", .machine = "", .features = ""};

enum tandem_status td_aoti_read(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_part *parts, size_t part_count,
                                struct td_aoti_program *program, struct tandem_error *error) {
  struct reader reader = {.host = host, .program = program, .error = error};
  enum tandem_status status;
  *program = td_aoti_no_program;
  if (size >= sizeof magic - 1 && memcmp(bytes, magic, sizeof magic - 1) == 0)
    status = read_own(&reader, bytes, size);
  else
    status = td_aoti_cuda_read(host, bytes, size, parts, part_count, program, error);
  if (status != TANDEM_OK)
    td_aoti_program_fini(host, program);
  return status;
}

void td_aoti_program_fini(const struct tandem_host *host, struct td_aoti_program *program) {
  cJSON_Delete(program->document);
  host->release(program->constants);
  host->release(program->mutable_names);
  host->release(program->inputs);
  host->release(program->outputs);
  *program = td_aoti_no_program;
}

enum tandem_status td_aoti_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                 const struct tandem_named_data *named_data, struct tandem_payload *payload,
                                 struct tandem_error *error) {
  (void)named_data;
  td_aoti_set_host(host);
  *payload = (struct tandem_payload){.engine = bytes, .engine_size = size};
  const unsigned char *first = bytes;
  if (size < sizeof magic - 1 || memcmp(bytes, magic, sizeof magic - 1) != 0)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the payload of %zu bytes begins with %02x %02x, expected \"%s\"; %s", size,
                      size > 0 ? first[0] : 0, size > 1 ? first[1] : 0, magic, advice);
  struct td_aoti_program *program = host->allocate(sizeof *program);
  if (program == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory to read the payload");
  enum tandem_status status = td_aoti_read(host, bytes, size, NULL, 0, program, error);
  payload->state = program;
  if (status != TANDEM_OK)
    td_aoti_payload_destroy(payload);
  return status;
}

void td_aoti_payload_destroy(struct tandem_payload *payload) {
  const struct tandem_host *host = td_aoti_host();
  if (payload->state != NULL)
    td_aoti_program_fini(host, payload->state);
  host->release(payload->state);
  payload->state = NULL;
}

/* ---------------------------------------------------------------- describe */

static void tell_number(tandem_fact_fn fact, void *user, const char *key, uint64_t number) {
  char text[24];
  snprintf(text, sizeof text, "%" PRIu64, number);
  fact(user, key, text);
}

static void tell_text(tandem_fact_fn fact, void *user, const char *key, const char *text) {
  if (text[0] != '\0')
    fact(user, key, text);
}

static void tell_io(tandem_fact_fn fact, void *user, const char *side, size_t index,
                    const struct tandem_io *io) {
  char key[32], text[1024];
  snprintf(key, sizeof key, "%s %zu", side, index);
  size_t used = (size_t)snprintf(text, sizeof text, "%.200s %s [", io->name, tandem_dtype_name(io->dtype));
  for (int32_t i = 0; i < io->rank; i++) { /* 16 dimensions of two 64-bit numbers fit */
    const char *comma = i > 0 ? ", " : "";
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, comma, io->min[i]);
    if (io->max[i] == INT64_MAX)
      used += (size_t)snprintf(text + used, sizeof text - used, "..");
    else if (io->max[i] != io->min[i])
      used += (size_t)snprintf(text + used, sizeof text - used, "..%" PRId64, io->max[i]);
  }
  snprintf(text + used, sizeof text - used, "]");
  fact(user, key, text);
}

void td_aoti_describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {
  const struct td_aoti_program *program = payload->state;
  const char *begin = payload->engine;
  char text[24];
  fact(user, "kind", "aotinductor");
  fact(user, "format", magic);
  fact(user, "device", program->device_type == AOTI_DEVICE_CUDA ? "cuda" : "cpu");
  tell_text(fact, user, "torch_version", program->torch_version);
  tell_text(fact, user, "machine", program->machine);
  tell_text(fact, user, "features", program->features);
  snprintf(text, sizeof text, "%d.%d", program->capability / 10, program->capability % 10);
  tell_text(fact, user, "compute_capability", program->capability > 0 ? text : "");
  tell_number(fact, user, "engine_offset", (uint64_t)((const char *)program->so - begin));
  tell_number(fact, user, "engine_size", program->so_size);
  tell_number(fact, user, "weights_offset", (uint64_t)(program->weights - (const uint8_t *)begin));
  tell_number(fact, user, "weights_size", program->weights_size);
  for (size_t i = 0; i < program->input_count; i++)
    tell_io(fact, user, "input", i, &program->inputs[i]);
  for (size_t i = 0; i < program->output_count; i++)
    tell_io(fact, user, "output", i, &program->outputs[i]);
  if (!program->state_known)
    fact(user, "state", "not told: found when it is loaded");
  for (size_t i = 0; i < program->mutable_count; i++) {
    char key[32];
    snprintf(key, sizeof key, "state %zu", i);
    fact(user, key, program->mutable_names[i]);
  }
}
