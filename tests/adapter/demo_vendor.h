/* A vendor for the programs in tests/data: y = x * scale + bias, any shape, float32.
 *
 * Payload: "DEMO" | u32 version | f32 scale | f32 bias | u32 size | size bytes, or "DEMK" | key, the payload
 * then being the named data of that key. It counts, and it can be told to fail. Included by one test program
 * each, which is why its functions are static. */
#ifndef TANDEM_TESTS_DEMO_VENDOR_H
#define TANDEM_TESTS_DEMO_VENDOR_H

#include <tandem/vendor.h>

#include <stdint.h>
#include <string.h>

static struct {
  int builds, engines, contexts, named, runs;
  char refuse_build[128]; /* the next builds fail with this when set */
  enum tandem_status refuse_status;
  char style[32]; /* the vendor's own option at the last build */
} demo;

struct demo_engine {
  float scale, bias;
};

struct demo_context {
  struct demo_engine *engine;
  struct tandem_io input, output;
  int64_t runs; /* state */
};

static const struct tandem_host *demo_host;

static enum tandem_status demo_open(const struct tandem_host *host, struct tandem_vendor_library *library,
                                    struct tandem_error *error) {
  (void)error;
  demo_host = host;
  strcpy(library->version, "1");
  strcpy(library->path, "(built in)");
  return TANDEM_OK;
}

struct demo_state {
  const struct tandem_named_data *named_data;
  void *token;
};

static enum tandem_status demo_parse(const struct tandem_host *host, const void *bytes, size_t size,
                                     const struct tandem_named_data *named_data,
                                     struct tandem_payload *payload, struct tandem_error *error) {
  payload->engine = bytes;
  payload->engine_size = size;
  payload->state = NULL;
  if (size > 4 && size < 68 && memcmp(bytes, "DEMK", 4) == 0) {
    char key[65] = {0};
    memcpy(key, (const char *)bytes + 4, size - 4);
    if (!named_data)
      return host->fail(error, TANDEM_MISSING_DATA, "no data file has \"%s\"", key);
    struct demo_state *state = (struct demo_state *)host->allocate(sizeof(*state));
    if (!state)
      return host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory");
    enum tandem_status status =
        named_data->get(named_data->user, key, &payload->engine, &payload->engine_size, &state->token);
    if (status != TANDEM_OK) {
      host->release(state);
      return host->fail(error, status, "no data file has \"%s\"", key);
    }
    state->named_data = named_data;
    payload->state = state;
    demo.named++;
  }
  uint32_t version = 0;
  if (payload->engine_size >= 20)
    memcpy(&version, (const char *)payload->engine + 4, 4);
  if (payload->engine_size < 20 || memcmp(payload->engine, "DEMO", 4) != 0 || version != 1) {
    if (payload->state) {
      named_data->release(named_data->user, ((struct demo_state *)payload->state)->token);
      host->release(payload->state);
    }
    return host->fail(error, TANDEM_BAD_PROGRAM,
                      "payload: expected \"DEMO\" version 1, found %zu other bytes", payload->engine_size);
  }
  return TANDEM_OK;
}

static void demo_payload_destroy(struct tandem_payload *payload) {
  struct demo_state *state = (struct demo_state *)payload->state;
  if (!state)
    return;
  state->named_data->release(state->named_data->user, state->token);
  demo_host->release(state);
}

static enum tandem_status demo_resolve(const struct tandem_payload *payload, const char *const *options,
                                       struct tandem_resolution *resolution, struct tandem_error *error) {
  (void)payload;
  (void)error;
  strcpy(resolution->device, "CPU");
  strcpy(resolution->options, "style=");
  strncat(resolution->options, options[0], 32);
  return TANDEM_OK;
}

static enum tandem_status demo_build(const struct tandem_build_desc *desc, void **engine,
                                     struct tandem_engine_info *info, struct tandem_error *error) {
  if (demo.refuse_build[0])
    return demo_host->fail(error, demo.refuse_status, "%s", demo.refuse_build);
  struct demo_engine *made = (struct demo_engine *)demo_host->allocate(sizeof(*made));
  if (!made)
    return demo_host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory");
  memcpy(&made->scale, (const char *)desc->engine + 8, 4);
  memcpy(&made->bias, (const char *)desc->engine + 12, 4);
  strncpy(demo.style, desc->options[0], sizeof(demo.style) - 1);
  info->engine_bytes = desc->engine_size;
  info->effective_budget = -1;
  demo.builds++;
  demo.engines++;
  *engine = made;
  return TANDEM_OK;
}

static void demo_engine_destroy(void *engine) {
  demo.engines--;
  demo_host->release(engine);
}

static enum tandem_status demo_context_create(void *engine, const struct tandem_context_desc *desc,
                                              void **context, struct tandem_context_io *io,
                                              struct tandem_error *error) {
  (void)desc;
  struct demo_context *made = (struct demo_context *)demo_host->allocate(sizeof(*made));
  if (!made)
    return demo_host->fail(error, TANDEM_OUT_OF_MEMORY, "no memory");
  made->engine = (struct demo_engine *)engine;
  made->input.name = "x";
  made->output.name = "y";
  made->input.dtype = made->output.dtype = TANDEM_FLOAT32;
  made->input.rank = made->output.rank = -1;
  io->inputs = &made->input;
  io->outputs = &made->output;
  io->input_count = io->output_count = 1;
  demo.contexts++;
  *context = made;
  return TANDEM_OK;
}

static void demo_context_destroy(void *context) {
  demo.contexts--;
  demo_host->release(context);
}

static enum tandem_status demo_run(void *context, const struct tandem_run_desc *desc,
                                   struct tandem_error *error) {
  struct demo_context *self = (struct demo_context *)context;
  const struct tandem_tensor *x = &desc->inputs[0];
  struct tandem_tensor *y = &desc->outputs[0];
  bool same = y->rank == x->rank;
  size_t count = 1;
  for (int32_t d = 0; d < x->rank; d++) {
    same = same && y->shape[d] == x->shape[d];
    y->shape[d] = x->shape[d];
    count *= (size_t)x->shape[d];
  }
  y->rank = x->rank;
  if (!same || y->size < count * 4) {
    if (!desc->resize)
      return demo_host->fail(error, TANDEM_INVALID_ARGUMENT, "y has no room");
    enum tandem_status status = desc->resize(desc->resize_user, 0, y);
    if (status != TANDEM_OK)
      return demo_host->fail(error, status, "y could not be resized");
  }
  for (size_t i = 0; i < count; i++)
    ((float *)y->data)[i] = ((const float *)x->data)[i] * self->engine->scale + self->engine->bias;
  self->runs++;
  demo.runs++;
  return TANDEM_OK;
}

static int demo_resets;
static enum tandem_status demo_reset(void *context, struct tandem_error *error) {
  (void)error;
  ((struct demo_context *)context)->runs = 0;
  demo_resets++;
  return TANDEM_OK;
}

static const struct tandem_vendor_option demo_options[] = {
    {"style", TANDEM_OPTION_CHOICE, "plain|fancy", "plain"}};

static const struct tandem_vendor demo_vendor = {
    TANDEM_VENDOR_ABI,
    sizeof(struct tandem_vendor),
    "demo",
    "DemoBackend",
    TANDEM_VENDOR_SURVIVES_FORK,
    demo_options,
    1,
    demo_open,
    demo_parse,
    demo_payload_destroy,
    NULL,
    demo_resolve,
    demo_build,
    demo_engine_destroy,
    demo_context_create,
    demo_context_destroy,
    demo_run,
    demo_reset,
    NULL,
};

/* The path of a file in tests/data. */
static const char *data_path(const char *name) {
  static char path[4][4096];
  static int turn;
  char *out = path[turn++ % 4];
  strcpy(out, __FILE__);
  strcpy(strrchr(out, '/'), "/../data/");
  strcat(out, name);
  return out;
}

#endif
