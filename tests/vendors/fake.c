/* A vendor in one file: copy it, replace what computes, keep the order of things.
 *
 * What it keeps true, as every vendor must: a payload is checked field by field before anything is taken
 * from it, with no sum that can wrap; an engine is immutable after build, so that any number of contexts may
 * run it at once; whatever a run changes lies in its context; a failing entry frees what it took, in reverse
 * order, and says what it found. Memory comes from the host, so that tandem's tests can make it fail.
 *
 * The payload: a 64-byte header (magic, flags, engine size), then the engine bytes, or none when they are
 * named data. The engine bytes: a header (magic, shape, sizes), then `pair_count` pairs of scale and bias.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct payload_header {
  char magic[8];
  uint32_t flags;
  uint32_t reserved;
  uint64_t engine_size;
  char unused[40];
};

struct engine_header {
  char magic[8];
  uint32_t flags;
  int32_t rank;
  int64_t min[FAKE_MODEL_RANK_MAX];
  int64_t max[FAKE_MODEL_RANK_MAX];
  int64_t streamable_size;
  uint64_t cost;
  uint32_t seed;
  uint32_t pair_count;
};

static const char payload_magic[8] = "FAKEPAY";
static const char engine_magic[8] = "FAKEENG";

struct engine {
  struct engine_header header;
  const unsigned char
      *weights; /* floats at any address: in the bytes that tandem keeps (borrowed), or `owned` */
  unsigned char *owned;
  uint64_t memory; /* bytes taken from the device */
};

struct context {
  const struct engine *engine; /* borrowed; outlives the context */
  struct tandem_io input, output;
  float state;
};

/* ---------------------------------------------------------------- making payloads, for tests */

static uint32_t pairs_of(const struct fake_model *model) {
  return model->pair_count ? model->pair_count : 4;
}

static float weight_at(const struct fake_model *model, uint32_t index) {
  uint32_t mixed = (model->seed + 1u) * 2654435761u ^ (index + 1u) * 40503u;
  float weight = (float)((mixed >> 7) % 2048u + 1u) / 256.0f; /* never 0, exact in few bits */
  bool last = index + 1 == 2 * pairs_of(model);
  return last && model->flags & FAKE_MODEL_LAST_NEGATED ? -weight : weight;
}

static void write_engine(const struct fake_model *model, unsigned char *to) {
  struct engine_header header = {.flags = model->flags & ~FAKE_MODEL_LAST_NEGATED,
                                 .rank = model->rank,
                                 .streamable_size = model->streamable_size,
                                 .cost = model->cost,
                                 .seed = model->seed,
                                 .pair_count = pairs_of(model)};
  memcpy(header.magic, engine_magic, sizeof header.magic);
  memcpy(header.min, model->min, sizeof header.min);
  memcpy(header.max, model->max, sizeof header.max);
  memcpy(to, &header, sizeof header);
  for (uint32_t i = 0; i < 2 * header.pair_count; i++) {
    float weight = weight_at(model, i);
    memcpy(to + sizeof header + i * sizeof weight, &weight, sizeof weight);
  }
}

void *fake_engine_bytes_create(const struct fake_model *model, size_t *size) {
  *size = sizeof(struct engine_header) + 2 * (size_t)pairs_of(model) * sizeof(float);
  unsigned char *bytes = calloc(1, *size);
  if (bytes)
    write_engine(model, bytes);
  return bytes;
}

void *fake_payload_create(const struct fake_model *model, size_t *size) {
  size_t engine_size = sizeof(struct engine_header) + 2 * (size_t)pairs_of(model) * sizeof(float);
  bool named = model->flags & FAKE_MODEL_NAMED;
  struct payload_header header = {.flags = model->flags & ~FAKE_MODEL_LAST_NEGATED,
                                  .engine_size = named ? 0 : engine_size};
  memcpy(header.magic, payload_magic, sizeof header.magic);
  *size = sizeof header + (named ? 0 : engine_size);
  unsigned char *bytes = calloc(1, *size);
  if (!bytes)
    return NULL;
  memcpy(bytes, &header, sizeof header);
  if (!named)
    write_engine(model, bytes + sizeof header);
  return bytes;
}

void fake_expect(const struct fake_model *model, const float *x, size_t count, float state, float *y) {
  uint32_t pairs = pairs_of(model);
  for (size_t i = 0; i < count; i++) {
    uint32_t pair = (uint32_t)(i % pairs);
    y[i] = x[i] * weight_at(model, 2 * pair) + weight_at(model, 2 * pair + 1) + state;
  }
}

/* ---------------------------------------------------------------- the vendor */

const struct tandem_vendor_option fake_options[] = {
    {.name = "device", .kind = TANDEM_OPTION_TEXT, .fallback = "fake:0"},
    {.name = "precision", .kind = TANDEM_OPTION_CHOICE, .choices = "f32|f16", .fallback = "f32"},
    {.name = "num_threads", .kind = TANDEM_OPTION_COUNT, .fallback = ""},
};
const size_t fake_option_count = sizeof fake_options / sizeof *fake_options;
enum { OPTION_DEVICE, OPTION_PRECISION, OPTION_NUM_THREADS };

static enum tandem_status open_library(struct fake_vendor *fake, const struct tandem_host *host,
                                       struct tandem_vendor_library *library, struct tandem_error *error) {
  (void)host;
  (void)error;
  /* A real vendor: host->library_open, then host->library_symbol for all it needs, UNAVAILABLE otherwise. */
  snprintf(library->version, sizeof library->version, "1.0-fake");
  snprintf(library->path, sizeof library->path, "/nowhere/%s", fake_name(fake));
  return TANDEM_OK;
}

struct named_token {
  const struct tandem_host *host;
  struct tandem_named_data source;
  void *token;
};

static enum tandem_status parse_payload(struct fake_vendor *fake, const struct tandem_host *host,
                                        const void *bytes, size_t size,
                                        const struct tandem_named_data *named_data,
                                        struct tandem_payload *payload, struct tandem_error *error) {
  struct payload_header header;
  if (size < sizeof header)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake payload: %zu bytes, its header alone has %zu", size,
                      sizeof header);
  memcpy(&header, bytes, sizeof header); /* the payload may lie at any address */
  if (memcmp(header.magic, payload_magic, sizeof header.magic) != 0)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake payload, offset 0: magic is not \"FAKEPAY\"");
  if (header.flags & FAKE_MODEL_NAMED) {
    if (!named_data)
      return host->fail(error, TANDEM_MISSING_DATA,
                        "fake payload: its engine is the named data \"weights\" and the program has none");
    struct named_token *token = host->allocate(sizeof *token);
    if (!token)
      return host->fail(error, TANDEM_OUT_OF_MEMORY, "fake payload: no memory for a token");
    token->host = host;
    token->source = *named_data;
    enum tandem_status status =
        named_data->get(named_data->user, "weights", &payload->engine, &payload->engine_size, &token->token);
    if (status != TANDEM_OK) {
      host->release(token);
      return host->fail(error, status, "fake payload: named data \"weights\" is missing");
    }
    payload->state = token;
  } else {
    if (header.engine_size > size - sizeof header)
      return host->fail(error, TANDEM_BAD_PROGRAM,
                        "fake payload, offset 16: engine_size %llu, only %zu bytes follow the header",
                        (unsigned long long)header.engine_size, size - sizeof header);
    payload->engine = (const unsigned char *)bytes + sizeof header;
    payload->engine_size = (size_t)header.engine_size;
  }
  fake_payload_born(fake);
  return TANDEM_OK;
}

static void destroy_payload(struct fake_vendor *fake, struct tandem_payload *payload) {
  struct named_token *token = payload->state;
  if (token) {
    token->source.release(token->source.user, token->token);
    token->host->release(token);
  }
  fake_payload_died(fake);
}

static void describe_payload(struct fake_vendor *fake, const struct tandem_payload *payload,
                             tandem_fact_fn fact, void *user) {
  (void)fake;
  char text[32];
  fact(user, "kind", "fake engine");
  snprintf(text, sizeof text, "%zu", payload->engine_size);
  fact(user, "engine_size", text);
}

static enum tandem_status resolve_options(struct fake_vendor *fake, const struct tandem_payload *payload,
                                          const char *const *options, struct tandem_resolution *resolution,
                                          struct tandem_error *error) {
  (void)payload;
  const char *device = options[OPTION_DEVICE];
  if (strcmp(device, "fake:0") != 0 && strcmp(device, "fake:1") != 0)
    return fake_host(fake)->fail(error, TANDEM_BAD_OPTION,
                                 "device: \"%s\", this machine has fake:0 and fake:1", device);
  snprintf(resolution->device, sizeof resolution->device, "%s", device);
  snprintf(resolution->options, sizeof resolution->options, "precision=%s;num_threads=%s",
           options[OPTION_PRECISION], options[OPTION_NUM_THREADS]);
  return TANDEM_OK;
}

static uint64_t twin_number(const struct tandem_build_desc *desc) {
  uint64_t hash = 1469598103934665603u;
  const unsigned char *bytes = desc->engine;
  for (size_t i = 0; i < desc->engine_size; i++)
    hash = (hash ^ bytes[i]) * 1099511628211u;
  for (const char *at = desc->resolution->options; *at; at++)
    hash = (hash ^ (unsigned char)*at) * 1099511628211u;
  for (const char *at = desc->resolution->device; *at; at++)
    hash = (hash ^ (unsigned char)*at) * 1099511628211u;
  return hash;
}

static enum tandem_status check_engine(const struct tandem_host *host, const struct tandem_build_desc *desc,
                                       struct engine_header *header, struct tandem_error *error) {
  if (desc->engine_size < sizeof *header)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake engine: %zu bytes, its header alone has %zu",
                      desc->engine_size, sizeof *header);
  memcpy(header, desc->engine, sizeof *header);
  if (memcmp(header->magic, engine_magic, sizeof header->magic) != 0)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake engine, offset 0: magic is not \"FAKEENG\"");
  if (header->rank < 0 || header->rank > FAKE_MODEL_RANK_MAX)
    return host->fail(error, TANDEM_UNSUPPORTED, "fake engine: rank %d, 0 to %d can run", header->rank,
                      FAKE_MODEL_RANK_MAX);
  size_t room = (desc->engine_size - sizeof *header) / (2 * sizeof(float));
  if (header->pair_count == 0 || header->pair_count > room)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake engine: %u weight pairs, its bytes hold %zu",
                      header->pair_count, room);
  if (header->streamable_size < 0 || header->cost > INT64_MAX)
    return host->fail(error, TANDEM_BAD_PROGRAM, "fake engine: streamable_size or cost beyond 2^63-1 bytes");
  return TANDEM_OK;
}

static enum tandem_status build_engine(struct fake_vendor *fake, const struct tandem_build_desc *desc,
                                       void **out, struct tandem_engine_info *info,
                                       struct tandem_error *error) {
  const struct tandem_host *host = fake_host(fake);
  struct engine *engine = host->allocate(sizeof *engine);
  if (!engine)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "fake engine: no memory for %zu bytes", sizeof *engine);
  struct engine_header *header = &engine->header;
  enum tandem_status status = check_engine(host, desc, header, error);
  if (status != TANDEM_OK)
    goto failed;

  int64_t streamable = fake_has_budget(fake) ? header->streamable_size : 0;
  int64_t budget = desc->budget < 0 ? streamable / 2 : desc->budget; /* automatic: half of it */
  if (budget > streamable)
    budget = streamable;
  engine->memory = header->cost + (uint64_t)budget;
  status = fake_take(fake, engine->memory, "an engine", error);
  if (status != TANDEM_OK) {
    engine->memory = 0;
    goto failed;
  }
  const unsigned char *weights = (const unsigned char *)desc->engine + sizeof *header;
  size_t weights_size = 2 * (size_t)header->pair_count * sizeof(float);
  if (fake_keeps_bytes(fake)) {
    engine->weights = weights;
  } else {
    engine->owned = host->allocate(weights_size);
    if (!engine->owned) {
      status = host->fail(error, TANDEM_OUT_OF_MEMORY, "fake engine: no memory for %zu bytes", weights_size);
      goto failed;
    }
    memcpy(engine->owned, weights, weights_size);
    engine->weights = engine->owned;
  }
  info->engine_bytes = header->flags & FAKE_MODEL_UNKNOWN_SIZE ? 0 : weights_size + engine->memory;
  info->device_bytes = engine->memory;
  info->streamable_size = streamable;
  info->effective_budget = fake_has_budget(fake) ? budget : -1;
  fake_engine_born(fake, engine, twin_number(desc));
  *out = engine;
  return TANDEM_OK;

failed:
  fake_give(fake, engine->memory);
  host->release(engine);
  return status;
}

static void destroy_engine(struct fake_vendor *fake, void *opaque) {
  struct engine *engine = opaque;
  fake_engine_died(fake, engine);
  fake_give(fake, engine->memory);
  fake_host(fake)->release(engine->owned);
  fake_host(fake)->release(engine);
}

static void fill_io(struct tandem_io *io, const char *name, const struct engine_header *header) {
  io->name = name;
  io->dtype = TANDEM_FLOAT32;
  io->rank = header->rank;
  memcpy(io->min, header->min, sizeof header->min);
  memcpy(io->max, header->max, sizeof header->max);
}

static enum tandem_status create_context(struct fake_vendor *fake, void *opaque,
                                         const struct tandem_context_desc *desc, void **out,
                                         struct tandem_context_io *io, struct tandem_error *error) {
  (void)desc;
  struct engine *engine = opaque;
  const struct tandem_host *host = fake_host(fake);
  struct context *context = host->allocate(sizeof *context);
  if (!context)
    return host->fail(error, TANDEM_OUT_OF_MEMORY, "fake context: no memory for %zu bytes", sizeof *context);
  enum tandem_status status = fake_take(fake, FAKE_CONTEXT_COST, "a context", error);
  if (status != TANDEM_OK) {
    host->release(context);
    return status;
  }
  context->engine = engine;
  fill_io(&context->input, "x", &engine->header);
  fill_io(&context->output, "y", &engine->header);
  io->inputs = &context->input;
  io->input_count = 1;
  io->outputs = &context->output;
  io->output_count = 1;
  fake_context_born(fake, context, engine);
  *out = context;
  return TANDEM_OK;
}

static void destroy_context(struct fake_vendor *fake, void *opaque) {
  fake_context_died(fake, opaque);
  fake_give(fake, FAKE_CONTEXT_COST);
  fake_host(fake)->release(opaque);
}

static bool same_shape(const struct tandem_tensor *a, const struct tandem_tensor *b) {
  return a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

static enum tandem_status run_context(struct fake_vendor *fake, void *opaque,
                                      const struct tandem_run_desc *desc, struct tandem_error *error) {
  struct context *context = opaque;
  const struct engine *engine = context->engine;
  const struct tandem_tensor *x = &desc->inputs[0];
  struct tandem_tensor *y = &desc->outputs[0];
  size_t count = 1;
  for (int32_t i = 0; i < x->rank; i++)
    count *= (size_t)x->shape[i]; /* tandem checked shape against size */
  bool differs = !same_shape(x, y);
  y->rank = x->rank;
  memcpy(y->shape, x->shape, sizeof y->shape);
  if (desc->resize && (differs || y->size < count * sizeof(float))) {
    enum tandem_status status = desc->resize(desc->resize_user, 0, y);
    if (status != TANDEM_OK)
      return fake_host(fake)->fail(error, status, "output y: the caller could not make room for it");
  }
  if (y->size < count * sizeof(float))
    return fake_host(fake)->fail(error, TANDEM_INVALID_ARGUMENT, "output y: %zu bytes, needs %zu", y->size,
                                 count * sizeof(float));
  fake_context_busy(fake, context, true);
  const float *from = x->data;
  float *to = y->data;
  for (size_t i = 0; i < count; i++) {
    float pair[2];
    memcpy(pair, engine->weights + i % engine->header.pair_count * sizeof pair, sizeof pair);
    to[i] = from[i] * pair[0] + pair[1] + context->state;
  }
  if (engine->header.flags & FAKE_MODEL_STATEFUL && count)
    context->state += from[0];
  fake_context_busy(fake, context, false);
  return TANDEM_OK;
}

static enum tandem_status reset_context(struct fake_vendor *fake, void *opaque, struct tandem_error *error) {
  (void)error;
  struct context *context = opaque;
  fake_context_busy(fake, context, true);
  context->state = 0;
  fake_context_busy(fake, context, false);
  return TANDEM_OK;
}

const struct fake_calls fake_calls = {
    .open = open_library,
    .parse = parse_payload,
    .payload_destroy = destroy_payload,
    .describe = describe_payload,
    .resolve = resolve_options,
    .build = build_engine,
    .engine_destroy = destroy_engine,
    .context_create = create_context,
    .context_destroy = destroy_context,
    .run = run_context,
    .reset = reset_context,
};
