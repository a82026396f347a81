/* Payloads of ExecuTorch's CudaBackend: they name their engine and weights, which lie in the program's named
 * data, in the .pte or in a .ptd beside it.
 *
 * Format, read from programs of executorch 1.5.1: "ETCUDAFQN3", then text (u32 length, bytes) with the key of
 * the .so, u32 count, and for each constant its name, the key of its storage, u64 bytes of the storage,
 * i32 dtype, i32 device (0 CPU, 1 CUDA), i64 offset in elements, u32 rank, i64 sizes and i64 strides.
 * The form before it is text: "<sha256>_so_blob\n<sha256>_weights_blob". Little-endian, unaligned.
 *
 * A key stands for nothing: two files with equal keys may hold other values. So the engine bytes are the
 * payload, and every named entry is one of their parts, which the digest covers: the .so first, then the
 * weights in the payload's order. But the exporter's key of the .so begins with its SHA-256, by which one
 * that was damaged is told before it is opened.
 *
 * Every size is checked against what is left before it is used, every view against its storage.
 */
#include "aotinductor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[10] = {'E', 'T', 'C', 'U', 'D', 'A', 'F', 'Q', 'N', '3'};

enum { KEYS_TEXT_MAX = 4096, ENTRY_MIN = 4 + 4 + 8 + 4 + 4 + 8 + 4 };

static const char advice[] = "export the program again with ExecuTorch 1.5.1's CudaPartitioner";

/* What a payload lists; all of it in one allocation that begins with the constants. */
struct listing {
  struct td_aoti_constant *constants; /* owned, with all else; of a blob none, but an address */
  const char **keys;                  /* of the .so, then of each storage or of the blob */
  size_t key_count;
};

struct reader {
  const struct tandem_host *host;
  const unsigned char *bytes;
  size_t size, at;
  char *text; /* room for what is left of the names, each with its NUL */
  struct tandem_error *error;
};

/* ---------------------------------------------------------------- read */

static enum tandem_status fail_short(struct reader *reader, const char *what) {
  return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                            "the CudaBackend payload of %zu bytes ends at offset %zu within %s; %s",
                            reader->size, reader->at, what, advice);
}

static bool take_number(struct reader *reader, unsigned bytes, uint64_t *number) {
  *number = 0;
  if (reader->size - reader->at < bytes)
    return false;
  for (unsigned i = bytes; i-- > 0;)
    *number = *number << 8 | reader->bytes[reader->at + i];
  reader->at += bytes;
  return true;
}

static enum tandem_status take_text(struct reader *reader, const char *what, const char **text) {
  uint64_t length;
  size_t begin = reader->at;
  if (!take_number(reader, 4, &length) || length > reader->size - reader->at)
    return fail_short(reader, what);
  const unsigned char *from = reader->bytes + reader->at;
  if (length == 0 || memchr(from, '\0', (size_t)length) != NULL)
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              "the CudaBackend payload has %s at offset %zu that is %s; %s", what, begin,
                              length == 0 ? "empty" : "no text", advice);
  *text = reader->text;
  memcpy(reader->text, from, (size_t)length);
  reader->text[length] = '\0';
  reader->text += length + 1; /* the length's own four bytes made room for the NUL */
  reader->at += (size_t)length;
  return TANDEM_OK;
}

/* Whether the view's elements lie in its storage. */
static bool fits_storage(const struct td_aoti_constant *constant, uint64_t storage) {
  uint64_t last = (uint64_t)constant->offset, reach;
  for (int32_t d = 0; d < constant->rank; d++) {
    if (constant->sizes[d] == 0)
      return true;
    if (__builtin_mul_overflow((uint64_t)constant->sizes[d] - 1, (uint64_t)constant->strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return !__builtin_add_overflow(last, 1, &last) &&
         !__builtin_mul_overflow(last, tandem_dtype_size(constant->dtype), &last) && last <= storage;
}

static enum tandem_status read_constant(struct reader *reader, struct td_aoti_constant *constant,
                                        const char **key) {
  uint64_t storage, dtype, device, offset, rank, number;
  size_t begin = reader->at;
  enum tandem_status status = take_text(reader, "a constant's name", &constant->fqn);
  if (status == TANDEM_OK)
    status = take_text(reader, "the key of a constant's bytes", key);
  if (status != TANDEM_OK)
    return status;
  if (!take_number(reader, 8, &storage) || !take_number(reader, 4, &dtype) ||
      !take_number(reader, 4, &device) || !take_number(reader, 8, &offset) || !take_number(reader, 4, &rank))
    return fail_short(reader, "a constant");
  constant->dtype = (int32_t)(uint32_t)dtype;
  constant->device_type = (int32_t)(uint32_t)device;
  constant->offset = (int64_t)offset;
  if (tandem_dtype_size(constant->dtype) == 0)
    return reader->host->fail(reader->error, TANDEM_UNSUPPORTED,
                              "constant \"%.200s\" of the CudaBackend payload has the element type %" PRId32
                              ", which ExecuTorch's tensors do not have; convert it in the model",
                              constant->fqn, constant->dtype);
  if (constant->device_type != AOTI_DEVICE_CPU && constant->device_type != AOTI_DEVICE_CUDA)
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              "constant \"%.200s\" of the CudaBackend payload is for device type %" PRId32
                              ", expected 0 (CPU) or 1 (CUDA); %s",
                              constant->fqn, constant->device_type, advice);
  if (rank > TANDEM_MAX_RANK)
    return reader->host->fail(reader->error, TANDEM_UNSUPPORTED,
                              "constant \"%.200s\" of the CudaBackend payload has %" PRIu64
                              " dimensions, at most %d are possible",
                              constant->fqn, rank, TANDEM_MAX_RANK);
  constant->rank = (int32_t)rank;
  bool sound = constant->offset >= 0;
  for (unsigned i = 0; i < 2 * (unsigned)rank; i++) {
    if (!take_number(reader, 8, &number))
      return fail_short(reader, "a constant's sizes and strides");
    int64_t *into = i < rank ? &constant->sizes[i] : &constant->strides[i - rank];
    *into = (int64_t)number;
    sound = sound && *into >= 0;
  }
  if (!sound || storage > SIZE_MAX || !fits_storage(constant, storage))
    return reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                              "constant \"%.200s\" at offset %zu of the CudaBackend payload has a shape that "
                              "does not lie in its %" PRIu64 " bytes; %s",
                              constant->fqn, begin, storage, advice);
  constant->layout = AOTI_LAYOUT_STRIDED;
  constant->size = (size_t)storage;
  return TANDEM_OK;
}

/* One allocation: constants, keys, text. */
static enum tandem_status make_listing(struct reader *reader, size_t count, size_t key_count, size_t text,
                                       struct listing *listing) {
  size_t constants, keys, whole;
  if (__builtin_mul_overflow(count, sizeof *listing->constants, &constants) ||
      __builtin_mul_overflow(key_count, sizeof *listing->keys, &keys) ||
      __builtin_add_overflow(constants, keys, &whole) || __builtin_add_overflow(whole, text, &whole) ||
      (listing->constants = reader->host->allocate(whole)) == NULL)
    return reader->host->fail(reader->error, TANDEM_OUT_OF_MEMORY,
                              "no host memory to list the %zu constants of a CudaBackend payload", count);
  unsigned char *memory = (unsigned char *)listing->constants;
  listing->keys = (const char **)(void *)(memory + constants);
  listing->key_count = key_count;
  reader->text = (char *)memory + constants + keys;
  return TANDEM_OK;
}

static enum tandem_status list_constants(struct reader *reader, struct listing *listing) {
  uint64_t length, count = 0;
  reader->at = sizeof magic;
  /* The count stands behind the key: it is looked up first, since it tells how much to allocate. */
  if (!take_number(reader, 4, &length) || length > reader->size - reader->at)
    return fail_short(reader, "the key of the .so");
  reader->at += (size_t)length;
  if (!take_number(reader, 4, &count) || count > (reader->size - reader->at) / ENTRY_MIN)
    return fail_short(reader, "the constants");
  enum tandem_status status = make_listing(reader, (size_t)count, (size_t)count + 1, reader->size, listing);
  reader->at = sizeof magic;
  if (status == TANDEM_OK)
    status = take_text(reader, "the key of the .so", &listing->keys[0]);
  reader->at += 4;
  for (size_t i = 0; status == TANDEM_OK && i < count; i++)
    status = read_constant(reader, &listing->constants[i], &listing->keys[i + 1]);
  if (status == TANDEM_OK && reader->at != reader->size)
    status = reader->host->fail(reader->error, TANDEM_BAD_PROGRAM,
                                "the CudaBackend payload has %zu bytes after its last constant; %s",
                                reader->size - reader->at, advice);
  return status;
}

static bool ends_in(const char *text, size_t size, const char *end) {
  size_t length = strlen(end);
  return size > length && memcmp(text + size - length, end, length) == 0;
}

static enum tandem_status list_blobs(struct reader *reader, struct listing *listing) {
  const char *text = (const char *)reader->bytes;
  const char *line = memchr(text, '\n', reader->size);
  size_t first = line != NULL ? (size_t)(line - text) : 0, second = reader->size - first - 1;
  if (line == NULL || reader->size > KEYS_TEXT_MAX || memchr(text, '\0', reader->size) != NULL ||
      !ends_in(text, first, "_so_blob") || !ends_in(line + 1, second, "_weights_blob"))
    return reader->host->fail(
        reader->error, TANDEM_BAD_PROGRAM,
        "the CudaBackend payload of %zu bytes is neither ETCUDAFQN3 nor two lines that end in _so_blob and "
        "_weights_blob; %s",
        reader->size, advice);
  enum tandem_status status = make_listing(reader, 0, 2, reader->size + 1, listing);
  if (status != TANDEM_OK)
    return status;
  memcpy(reader->text, text, reader->size);
  reader->text[first] = reader->text[reader->size] = '\0';
  listing->keys[0] = reader->text;
  listing->keys[1] = reader->text + first + 1;
  return TANDEM_OK;
}

static bool is_listed(const void *bytes, size_t size) {
  return size >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

/* On failure nothing is left. */
static enum tandem_status list(const struct tandem_host *host, const void *bytes, size_t size,
                               struct listing *listing, struct tandem_error *error) {
  struct reader reader = {.host = host, .bytes = bytes, .size = size, .error = error};
  *listing = (struct listing){0};
  if (bytes == NULL || size == 0)
    return host->fail(error, TANDEM_BAD_PROGRAM, "the CudaBackend payload is empty; %s", advice);
  if (size >= sizeof magic && memcmp(bytes, magic, sizeof magic - 1) == 0 && !is_listed(bytes, size)) {
    unsigned char version = reader.bytes[sizeof magic - 1];
    return host->fail(error, TANDEM_UNSUPPORTED,
                      "the CudaBackend payload has format ETCUDAFQN%c, this tandem reads ETCUDAFQN3; %s",
                      version > ' ' && version < 127 ? version : '?', advice);
  }
  enum tandem_status status =
      is_listed(bytes, size) ? list_constants(&reader, listing) : list_blobs(&reader, listing);
  if (status != TANDEM_OK) {
    host->release(listing->constants);
    *listing = (struct listing){0};
  }
  return status;
}

/* Where the payload has the .so's SHA-256, or "". */
static const char *find_sum(const struct listing *listing, const char *bytes, bool listed) {
  enum { DIGITS = 64 };
  const char *key = listing->keys[0];
  bool told = strspn(key, "0123456789abcdef") == DIGITS && strcmp(key + DIGITS, "_so_blob") == 0;
  return told ? bytes + (listed ? sizeof magic + 4 : 0) : "";
}

static enum tandem_status fill_program(const struct tandem_host *host, const void *bytes, size_t size,
                                       struct listing *listing, const struct tandem_part *parts,
                                       size_t part_count, struct td_aoti_program *program,
                                       struct tandem_error *error) {
  bool listed = is_listed(bytes, size);
  if (part_count != listing->key_count)
    return host->fail(error, TANDEM_INTERNAL, "%zu parts for the %zu keys of a CudaBackend payload",
                      part_count, listing->key_count);
  if (parts[0].size == 0)
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "the named data \"%.200s\" is empty, expected an engine's .so; %s", listing->keys[0],
                      advice);
  for (size_t i = 1; listed && i < part_count; i++) {
    struct td_aoti_constant *constant = &listing->constants[i - 1];
    if (parts[i].size != constant->size)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "the named data \"%.200s\" has %zu bytes, constant \"%.200s\" has %zu; give the .ptd "
                        "that was exported with this program",
                        listing->keys[i], parts[i].size, constant->fqn, constant->size);
    constant->data = parts[i].data;
  }
  program->so = parts[0].data;
  program->so_size = parts[0].size;
  program->so_sha256 = find_sum(listing, bytes, listed);
  if (!listed && parts[1].size > 0) {
    program->weights = parts[1].data;
    program->weights_size = parts[1].size;
  }
  return TANDEM_OK;
}

enum tandem_status td_aoti_cuda_read(const struct tandem_host *host, const void *bytes, size_t size,
                                     const struct tandem_part *parts, size_t part_count,
                                     struct td_aoti_program *program, struct tandem_error *error) {
  struct listing listing;
  *program = td_aoti_no_program;
  program->device_type = AOTI_DEVICE_CUDA;
  enum tandem_status status = list(host, bytes, size, &listing, error);
  if (status == TANDEM_OK && part_count > 0)
    status = fill_program(host, bytes, size, &listing, parts, part_count, program, error);
  if (status == TANDEM_OK && is_listed(bytes, size)) {
    program->constants = listing.constants;
    program->constant_count = listing.key_count - 1;
  } else {
    host->release(listing.constants);
  }
  return status;
}

/* ---------------------------------------------------------------- the vendor's entries */

/* What tandem_payload.state points to. */
struct state {
  struct td_aoti_program program; /* first: engine.c and context.c take a state for one */
  struct tandem_part *parts;      /* owned */
  void **tokens;                  /* owned: of the parts got so far */
  size_t token_count;
  struct tandem_named_data source; /* that the tokens go back to */
};

static enum tandem_status get_parts(const struct tandem_host *host, struct state *state,
                                    const struct listing *listing, struct tandem_error *error) {
  const struct tandem_named_data *source = &state->source;
  state->parts = host->allocate(listing->key_count * sizeof *state->parts);
  state->tokens = host->allocate(listing->key_count * sizeof *state->tokens);
  if (state->parts == NULL || state->tokens == NULL)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for the %zu parts of a program",
                      listing->key_count);
  for (size_t i = 0; i < listing->key_count; i++) {
    enum tandem_status status = source->get(source->user, listing->keys[i], &state->parts[i].data,
                                            &state->parts[i].size, &state->tokens[i]);
    if (status != TANDEM_OK)
      return host->fail(error, status,
                        "\"%.200s\" (part %zu of %zu) is neither in the program nor in a data file that was "
                        "given: give the .ptd that was exported with it",
                        listing->keys[i], i + 1, listing->key_count);
    state->token_count++;
  }
  return TANDEM_OK;
}

static enum tandem_status parse(const struct tandem_host *host, const void *bytes, size_t size,
                                const struct tandem_named_data *named_data, struct tandem_payload *payload,
                                struct tandem_error *error) {
  struct listing listing;
  td_aoti_set_host(host);
  *payload = (struct tandem_payload){0};
  enum tandem_status status = list(host, bytes, size, &listing, error);
  if (status != TANDEM_OK)
    return status;
  struct state *state = host->allocate(sizeof *state);
  if (state == NULL)
    status = host->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for a payload");
  payload->state = state;
  if (status == TANDEM_OK && named_data != NULL) {
    state->source = *named_data;
    status = get_parts(host, state, &listing, error);
  }
  host->release(listing.constants);
  /* Without named data the payload can be described; resolve refuses to load it. */
  if (status == TANDEM_OK)
    status = td_aoti_cuda_read(host, bytes, size, state->parts, state->token_count, &state->program, error);
  payload->engine = bytes;
  payload->engine_size = size;
  payload->parts = state != NULL ? state->parts : NULL;
  payload->part_count = state != NULL ? state->token_count : 0;
  if (status != TANDEM_OK)
    td_vendor_aotinductor_cuda.payload_destroy(payload);
  return status;
}

static void destroy_payload(struct tandem_payload *payload) {
  const struct tandem_host *host = td_aoti_host();
  struct state *state = payload->state;
  if (state != NULL) {
    for (size_t i = 0; i < state->token_count; i++)
      state->source.release(state->source.user, state->tokens[i]);
    td_aoti_program_fini(host, &state->program);
    host->release(state->parts);
    host->release(state->tokens);
    host->release(state);
  }
  *payload = (struct tandem_payload){0};
}

static void tell_number(tandem_fact_fn fact, void *user, const char *key, uint64_t value) {
  char number[24];
  snprintf(number, sizeof number, "%" PRIu64, value);
  fact(user, key, number);
}

static void describe(const struct tandem_payload *payload, tandem_fact_fn fact, void *user) {
  const struct state *state = payload->state;
  struct listing listing;
  uint64_t weights = state->program.weights_size;
  bool listed = is_listed(payload->engine, payload->engine_size);
  if (list(td_aoti_host(), payload->engine, payload->engine_size, &listing, NULL) != TANDEM_OK)
    return;
  fact(user, "kind", "aotinductor");
  fact(user, "format", listed ? "ETCUDAFQN3" : "so_blob, weights_blob");
  fact(user, "so_key", listing.keys[0]);
  if (state->program.so != NULL)
    tell_number(fact, user, "so_size", state->program.so_size);
  if (!listed)
    fact(user, "weights_key", listing.keys[1]);
  for (size_t i = 0; listed && i + 1 < listing.key_count; i++)
    weights += listing.constants[i].size;
  if (listed)
    tell_number(fact, user, "constants", listing.key_count - 1);
  if (listed || state->program.so != NULL)
    tell_number(fact, user, "weights_size", weights);
  td_aoti_host()->release(listing.constants);
}

/* ---------------------------------------------------------------- the vendor's table */

enum { TARGET_DEVICE, OPTION_COUNT };

/* The exporter's own compile spec. */
static const struct tandem_vendor_option options[OPTION_COUNT] = {
    [TARGET_DEVICE] = {"target_device", TANDEM_OPTION_TEXT, NULL, "cuda:0"},
};

static enum tandem_status resolve(const struct tandem_payload *payload, const char *const *values,
                                  struct tandem_resolution *resolution, struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  const struct state *state = payload->state;
  const char *device = values[TARGET_DEVICE];
  int index;
  if (state->program.so == NULL)
    return host->fail(error, TANDEM_MISSING_DATA,
                      "the program's engine lies in named data and none was given: load it with its program, "
                      "and give the .ptd that was exported with it");
  if (!td_aoti_cuda_index(device, &index))
    return host->fail(error, TANDEM_BAD_OPTION,
                      "target_device is \"%.40s\", expected cuda:0, cuda:1, ...: CudaBackend programs run on "
                      "CUDA devices only",
                      device);
  return td_aoti_cuda_resolve(index, state->program.capability, resolution, error);
}

const struct tandem_vendor td_vendor_aotinductor_cuda = {
    .abi_version = TANDEM_VENDOR_ABI,
    .struct_size = sizeof(struct tandem_vendor),
    .name = "aotinductor_cuda",
    .backend = "CudaBackend",
    .flags = TANDEM_VENDOR_HAS_STREAMS | TANDEM_VENDOR_HAS_EXPORTER_SPECS,
    .options = options,
    .option_count = OPTION_COUNT,
    .open = td_aoti_open,
    .parse = parse,
    .payload_destroy = destroy_payload,
    .describe = describe,
    .resolve = resolve,
    .build = td_aoti_build,
    .engine_destroy = td_aoti_engine_destroy,
    .context_create = td_aoti_context_create,
    .context_destroy = td_aoti_context_destroy,
    .run = td_aoti_run,
    .reset = td_aoti_reset,
    .memory = td_aoti_memory,
};
