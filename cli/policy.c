/* The demo's policy: a vision-language-action transformer with seeded random weights.
 *
 * An image is cut into patches, words are looked up in an embedding, the robot's state becomes one token
 * more, and learned queries become the chunk of actions. The model is written as OpenVINO IR (XML and a file
 * of weights), read, compiled for the CPU and exported through OpenVINO's own C API, which is opened at run
 * time: an exported blob suits only the version and the instruction set that wrote it, so none can be
 * shipped.
 *
 * 64 tokens and 8 heads: with 16 tokens and 16 heads OpenVINO's CPU plug-in does not repeat itself bit for
 * bit, and a demo that compares outputs needs a model that does. The size asked for is met by the number of
 * layers and by the width of their MLP, so that nearly all of it lies in matrices that OpenVINO repacks at
 * import: the part of an engine that only sharing saves. Weights stream into their file; memory holds one
 * block of them.
 */
#include "cli.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  IMAGE = 96,
  PATCH = 16,
  GRID = IMAGE / PATCH,
  PATCHES = GRID * GRID,
  WORDS = 11,
  STATE = 8,
  CHUNK = 16,
  ACTION = 7,
  TOKENS = PATCHES + WORDS + 1 + CHUNK,
  VOCABULARY = 1024,
  CHANNELS = 3,
};

static const struct tandem_io policy_io[] = {
    {.name = "image",
     .dtype = TANDEM_FLOAT32,
     .rank = 4,
     .min = {1, CHANNELS, IMAGE, IMAGE},
     .max = {1, CHANNELS, IMAGE, IMAGE}},
    {.name = "tokens", .dtype = TANDEM_INT64, .rank = 2, .min = {1, WORDS}, .max = {1, WORDS}},
    {.name = "state", .dtype = TANDEM_FLOAT32, .rank = 2, .min = {1, STATE}, .max = {1, STATE}},
    {.name = "action",
     .dtype = TANDEM_FLOAT32,
     .rank = 3,
     .min = {1, CHUNK, ACTION},
     .max = {1, CHUNK, ACTION}},
};

size_t td_policy_io(const struct tandem_io **io, size_t *input_count) {
  *io = policy_io;
  *input_count = 3;
  return sizeof policy_io / sizeof policy_io[0];
}

/* ---------------------------------------------------------------- the model as IR */

struct model {
  FILE *layers, *edges, *weights;
  int next;        /* id of the next layer */
  uint64_t offset; /* in the weights */
  uint64_t random; /* state of splitmix64 */
  int64_t dim, heads;
};

/* The output of a layer. In IR it has the port after the layer's inputs. */
struct node {
  int id, port;
};

enum { MAX_RANK = 4 };

struct shape {
  int rank;
  int64_t dims[MAX_RANK];
};

static uint64_t draw(struct model *model) {
  uint64_t z = model->random += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/* Declares a constant whose `size` bytes the caller writes to the weights next. */
static struct node begin_constant(struct model *model, const char *type, const char *precision,
                                  struct shape shape, uint64_t size) {
  static const char zeros[64];
  uint64_t pad = (64 - model->offset % 64) % 64;
  fwrite(zeros, 1, pad, model->weights);
  model->offset += pad;
  int id = model->next++;
  fprintf(model->layers,
          "<layer id=\"%d\" name=\"constant%d\" type=\"Const\" version=\"opset1\">"
          "<data element_type=\"%s\" shape=\"",
          id, id, type);
  for (int i = 0; i < shape.rank; i++)
    fprintf(model->layers, "%s%lld", i ? ", " : "", (long long)shape.dims[i]);
  fprintf(model->layers, "\" offset=\"%llu\" size=\"%llu\"/><output><port id=\"0\" precision=\"%s\">",
          (unsigned long long)model->offset, (unsigned long long)size, precision);
  for (int i = 0; i < shape.rank; i++)
    fprintf(model->layers, "<dim>%lld</dim>", (long long)shape.dims[i]);
  fputs("</port></output></layer>\n", model->layers);
  model->offset += size;
  return (struct node){id, 0};
}

/* Uniform in centre +- spread. */
static struct node add_weights(struct model *model, struct shape shape, double centre, double spread) {
  uint64_t count = 1;
  for (int i = 0; i < shape.rank; i++)
    count *= (uint64_t)shape.dims[i];
  struct node node = begin_constant(model, "f32", "FP32", shape, count * sizeof(float));
  float block[4096];
  while (count) {
    size_t n = count < 4096 ? (size_t)count : 4096;
    for (size_t i = 0; i < n; i++) {
      double unit = (double)(draw(model) >> 11) * 0x1p-53;
      block[i] = (float)(centre + spread * (2 * unit - 1));
    }
    fwrite(block, sizeof(float), n, model->weights);
    count -= n;
  }
  return node;
}

static struct node add_numbers(struct model *model, int count, const int64_t *values) {
  struct node node =
      begin_constant(model, "i64", "I64", (struct shape){1, {count}}, (uint64_t)count * sizeof *values);
  fwrite(values, sizeof *values, (size_t)count, model->weights);
  return node;
}

static struct node add_number(struct model *model, int64_t value) {
  return add_numbers(model, 1, &value);
}

static struct node add_input(struct model *model, const struct tandem_io *io) {
  bool whole = io->dtype == TANDEM_INT64;
  int id = model->next++;
  fprintf(model->layers, "<layer id=\"%d\" name=\"%s\" type=\"Parameter\" version=\"opset1\"><data shape=\"",
          id, io->name);
  for (int i = 0; i < io->rank; i++)
    fprintf(model->layers, "%s%lld", i ? "," : "", (long long)io->max[i]);
  fprintf(model->layers, "\" element_type=\"%s\"/><output><port id=\"0\" precision=\"%s\" names=\"%s\">",
          whole ? "i64" : "f32", whole ? "I64" : "FP32", io->name);
  for (int i = 0; i < io->rank; i++)
    fprintf(model->layers, "<dim>%lld</dim>", (long long)io->max[i]);
  fputs("</port></output></layer>\n", model->layers);
  return (struct node){id, 0};
}

/* OpenVINO infers the shapes of a layer's outputs when it reads the model, so none is written. */
static struct node add_layer(struct model *model, const char *type, const char *opset, const char *data,
                             int input_count, const struct node *inputs) {
  int id = model->next++;
  fprintf(model->layers, "<layer id=\"%d\" name=\"%s%d\" type=\"%s\" version=\"%s\">", id, type, id, type,
          opset);
  if (*data)
    fprintf(model->layers, "<data %s/>", data);
  fputs("<input>", model->layers);
  for (int i = 0; i < input_count; i++) {
    fprintf(model->layers, "<port id=\"%d\"/>", i);
    fprintf(model->edges, "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"%d\"/>\n",
            inputs[i].id, inputs[i].port, id, i);
  }
  fprintf(model->layers, "</input><output><port id=\"%d\" precision=\"FP32\"/></output></layer>\n",
          input_count);
  return (struct node){id, input_count};
}

static struct node add_sum(struct model *model, struct node a, struct node b) {
  return add_layer(model, "Add", "opset1", "auto_broadcast=\"numpy\"", 2, (struct node[]){a, b});
}

/* Weights that keep the variance of what they multiply, and a bias. The matrix has a row for each output, as
 * torch exports it, so that OpenVINO need not turn it and an engine costs what a real policy's would. */
static struct node add_linear(struct model *model, struct node x, int64_t inputs, int64_t outputs) {
  struct node weights =
      add_weights(model, (struct shape){2, {outputs, inputs}}, 0, sqrt(3.0 / (double)inputs));
  struct node product = add_layer(model, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", 2,
                                  (struct node[]){x, weights});
  return add_sum(model, product, add_weights(model, (struct shape){1, {outputs}}, 0, 0.05));
}

static struct node add_norm(struct model *model, struct node x) {
  struct node normal = add_layer(model, "MVN", "opset6",
                                 "eps=\"0.00001\" normalize_variance=\"true\" eps_mode=\"INSIDE_SQRT\"", 2,
                                 (struct node[]){x, add_number(model, -1)});
  struct node gain = add_weights(model, (struct shape){1, {model->dim}}, 1, 0.1);
  struct node scaled =
      add_layer(model, "Multiply", "opset1", "auto_broadcast=\"numpy\"", 2, (struct node[]){normal, gain});
  return add_sum(model, scaled, add_weights(model, (struct shape){1, {model->dim}}, 0, 0.05));
}

static struct node add_reshape(struct model *model, struct node x, int rank, const int64_t *dims) {
  return add_layer(model, "Reshape", "opset1", "special_zero=\"false\"", 2,
                   (struct node[]){x, add_numbers(model, rank, dims)});
}

static struct node add_transpose(struct model *model, struct node x, int rank, const int64_t *order) {
  return add_layer(model, "Transpose", "opset1", "", 2, (struct node[]){x, add_numbers(model, rank, order)});
}

static struct node add_heads(struct model *model, struct node x) {
  struct node linear = add_linear(model, x, model->dim, model->dim);
  struct node split =
      add_reshape(model, linear, 4, (int64_t[]){1, TOKENS, model->heads, model->dim / model->heads});
  return add_transpose(model, split, 4, (int64_t[]){0, 2, 1, 3});
}

static struct node add_attention(struct model *model, struct node x) {
  struct node query = add_heads(model, x), key = add_heads(model, x), value = add_heads(model, x);
  struct node mixed = add_layer(model, "ScaledDotProductAttention", "opset13", "causal=\"false\"", 3,
                                (struct node[]){query, key, value});
  struct node turned = add_transpose(model, mixed, 4, (int64_t[]){0, 2, 1, 3});
  struct node flat = add_reshape(model, turned, 3, (int64_t[]){1, TOKENS, model->dim});
  return add_linear(model, flat, model->dim, model->dim);
}

static struct node add_block(struct model *model, struct node x, int64_t hidden) {
  x = add_sum(model, x, add_attention(model, add_norm(model, x)));
  struct node wide = add_linear(model, add_norm(model, x), model->dim, hidden);
  struct node bent = add_layer(model, "Gelu", "opset7", "approximation_mode=\"ERF\"", 1, &wide);
  return add_sum(model, x, add_linear(model, bent, hidden, model->dim));
}

/* [1, TOKENS, dim]: what is seen, what is said, where the robot is, and a query for each action. */
static struct node add_embedding(struct model *model) {
  int64_t dim = model->dim;
  struct node image = add_input(model, &policy_io[0]);
  struct node words = add_input(model, &policy_io[1]);
  struct node state = add_input(model, &policy_io[2]);

  struct node filters = add_weights(model, (struct shape){4, {dim, CHANNELS, PATCH, PATCH}}, 0,
                                    sqrt(3.0 / (CHANNELS * PATCH * PATCH)));
  char data[160];
  snprintf(
      data, sizeof data,
      "strides=\"%d, %d\" dilations=\"1, 1\" pads_begin=\"0, 0\" pads_end=\"0, 0\" auto_pad=\"explicit\"",
      PATCH, PATCH);
  struct node patches = add_layer(model, "Convolution", "opset1", data, 2, (struct node[]){image, filters});
  struct node seen = add_transpose(model, add_reshape(model, patches, 3, (int64_t[]){1, dim, PATCHES}), 3,
                                   (int64_t[]){0, 2, 1});

  struct node table = add_weights(model, (struct shape){2, {VOCABULARY, dim}}, 0, 1);
  struct node said = add_layer(model, "Gather", "opset8", "batch_dims=\"0\"", 3,
                               (struct node[]){table, words, add_number(model, 0)});
  struct node felt = add_reshape(model, add_linear(model, state, STATE, dim), 3, (int64_t[]){1, 1, dim});
  struct node asked = add_weights(model, (struct shape){3, {1, CHUNK, dim}}, 0, 1);

  struct node all =
      add_layer(model, "Concat", "opset1", "axis=\"1\"", 4, (struct node[]){seen, said, felt, asked});
  return add_sum(model, all, add_weights(model, (struct shape){3, {1, TOKENS, dim}}, 0, 0.3));
}

static void add_policy(struct model *model, int layer_count, int64_t hidden) {
  struct node x = add_embedding(model);
  for (int i = 0; i < layer_count; i++)
    x = add_block(model, x, hidden);
  x = add_layer(model, "Slice", "opset8", "", 5,
                (struct node[]){x, add_number(model, TOKENS - CHUNK), add_number(model, TOKENS),
                                add_number(model, 1), add_number(model, 1)});
  x = add_linear(model, add_norm(model, x), model->dim, ACTION);
  int id = model->next++;
  fprintf(model->layers,
          "<layer id=\"%d\" name=\"action\" type=\"Result\" version=\"opset1\" output_names=\"action\">"
          "<input><port id=\"0\"/></input></layer>\n",
          id);
  fprintf(model->edges, "<edge from-layer=\"%d\" from-port=\"%d\" to-layer=\"%d\" to-port=\"0\"/>\n", x.id,
          x.port, id);
}

/* How many layers, and how wide their MLP, for `size` bytes of weights. */
static void choose_dimensions(uint64_t size, struct model *model, int *layer_count, int64_t *hidden) {
  model->dim = size < (uint64_t)32 << 20 ? 256 : 512;
  model->heads = model->dim / 64;
  double dim = (double)model->dim, numbers = (double)size / sizeof(float);
  double fixed = dim * (CHANNELS * PATCH * PATCH + VOCABULARY + TOKENS + CHUNK + STATE + ACTION + 3);
  double attention = 4 * dim * dim + 9 * dim; /* with the biases and the two norms of a block */
  double block = attention + 8 * dim * dim;
  double rest = numbers - fixed;
  *layer_count = rest < block ? 1 : (int)(rest / block + 0.5);
  double width = (rest / *layer_count - attention) / (2 * dim + 1);
  *hidden = width < 16 ? 16 : (int64_t)(width / 16 + 0.5) * 16;
}

static bool close_file(FILE *file) {
  bool good = !ferror(file);
  return fclose(file) == 0 && good;
}

static bool copy_text(FILE *from, FILE *to) {
  char block[4096];
  size_t n;
  rewind(from);
  while ((n = fread(block, 1, sizeof block, from)) > 0)
    fwrite(block, 1, n, to);
  return !ferror(from) && !ferror(to);
}

static enum tandem_status write_model(const char *xml_path, const char *bin_path, uint64_t size_mib,
                                      struct tandem_error *error) {
  struct model model = {.random = 20260801};
  FILE *xml = fopen(xml_path, "we");
  bool good = false;
  model.weights = fopen(bin_path, "we");
  model.layers = tmpfile();
  model.edges = tmpfile();
  if (!xml || !model.weights || !model.layers || !model.edges)
    goto done;
  int layer_count;
  int64_t hidden;
  choose_dimensions(size_mib << 20, &model, &layer_count, &hidden);
  add_policy(&model, layer_count, hidden);
  fputs("<?xml version=\"1.0\"?>\n<net name=\"policy\" version=\"11\"><layers>\n", xml);
  good = copy_text(model.layers, xml);
  fputs("</layers><edges>\n", xml);
  good = good && copy_text(model.edges, xml);
  fputs("</edges></net>\n", xml);

done:;
  int reason = errno;
  FILE *files[] = {model.weights, model.layers, model.edges, xml};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (files[i] && !close_file(files[i])) {
      reason = errno;
      good = false;
    }
  if (!good)
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot write the policy's model to %s: %s", xml_path,
                     strerror(reason));
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- OpenVINO */

enum tandem_status td_openvino_open(const char *path, struct td_openvino *api, struct tandem_error *error) {
  const struct {
    const char *name;
    void *slot;
  } symbols[] = {
      {"ov_core_create", &api->core_create},
      {"ov_core_free", &api->core_free},
      {"ov_core_read_model", &api->read_model},
      {"ov_model_free", &api->model_free},
      {"ov_core_compile_model", &api->compile_model},
      {"ov_core_import_model", &api->import_model},
      {"ov_compiled_model_free", &api->compiled_free},
      {"ov_compiled_model_export_model", &api->export_model},
      {"ov_compiled_model_create_infer_request", &api->create_request},
      {"ov_infer_request_free", &api->request_free},
      {"ov_infer_request_infer", &api->infer},
      {"ov_get_last_err_msg", &api->last_message},
  };
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return td_refuse(error, TANDEM_UNAVAILABLE, "cannot open OpenVINO: %s", dlerror());
  for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address)
      return td_refuse(error, TANDEM_UNAVAILABLE, "%s has no %s: it is not OpenVINO's C library, or too old",
                       path, symbols[i].name);
    memcpy(symbols[i].slot, &address, sizeof address);
  }
  return TANDEM_OK;
}

enum tandem_status td_policy_export(const char *library, const char *directory, uint64_t size_mib,
                                    const char *blob, struct tandem_error *error) {
  char xml[4096], bin[4096];
  struct td_openvino api = {0};
  void *core = NULL, *model = NULL, *compiled = NULL;
  snprintf(xml, sizeof xml, "%s/policy.xml", directory);
  snprintf(bin, sizeof bin, "%s/policy.bin", directory);
  enum tandem_status status = td_openvino_open(library, &api, error);
  if (status == TANDEM_OK)
    status = write_model(xml, bin, size_mib, error);
  if (status != TANDEM_OK)
    goto done;
  const char *step = "start OpenVINO";
  int code = api.core_create(&core);
  if (code == 0) {
    step = "read the policy's model";
    code = api.read_model(core, xml, bin, &model);
  }
  if (code == 0) {
    step = "compile the policy for the CPU";
    code = api.compile_model(core, model, "CPU", 0, &compiled);
  }
  if (code == 0) {
    step = "export the policy";
    code = api.export_model(compiled, blob);
  }
  if (code != 0) {
    const char *message = api.last_message();
    status = td_refuse(error, TANDEM_INTERNAL, "OpenVINO could not %s (status %d): %s", step, code,
                       message ? message : "no message");
  }

done:
  if (compiled)
    api.compiled_free(compiled);
  if (model)
    api.model_free(model);
  if (core)
    api.core_free(core);
  unlink(xml);
  unlink(bin);
  return status;
}
