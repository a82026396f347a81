/* What test_peer.py and test_program.py cannot do in Python: read a payload with the vendor's parser, write
 * one with the tests' own writer, build a plan with RTX's builder.
 *
 *   payload_tool read PAYLOAD         every field as JSON, or "refused: ..." and exit status 1
 *   payload_tool sample NAME PAYLOAD  a stand-in's plan in a payload; `payload_tool samples` lists the names
 *   payload_tool build LIBRARY PLAN   y = relu(x W + b), by RTX
 */
#include "plan.h"
#include "rtx_builder.h"
#include "tensorrt.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct tandem_host td_host;

static unsigned char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  unsigned char *bytes = NULL;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
    *size = (size_t)ftell(file);
    rewind(file);
    bytes = malloc(*size + 1);
    if (bytes != NULL && fread(bytes, 1, *size, file) != *size)
      *size = 0;
  }
  if (file != NULL)
    fclose(file);
  return bytes;
}

static int write_file(const char *path, const void *bytes, size_t size) {
  FILE *file = bytes != NULL ? fopen(path, "wb") : NULL;
  bool whole = file != NULL && fwrite(bytes, 1, size, file) == size;
  whole = (file == NULL || fclose(file) == 0) && whole;
  return whole ? 0 : 1;
}

static void add_binding(cJSON *list, const struct td_trt_binding *binding) {
  cJSON *item = cJSON_CreateObject();
  cJSON_AddStringToObject(item, "name", binding->name);
  cJSON_AddStringToObject(item, "dtype", binding->dtype);
  cJSON_AddBoolToObject(item, "is_input", binding->is_input);
  if (binding->rank >= 0) {
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    for (int32_t d = 0; d < binding->rank; d++) {
      char digits[24]; /* cJSON writes 15 of them */
      snprintf(digits, sizeof digits, "%" PRId64, binding->shape[d]);
      cJSON_AddItemToArray(shape, cJSON_CreateRaw(digits));
    }
  }
  cJSON_AddItemToArray(list, item);
}

static int read_payload(const char *path) {
  size_t size = 0;
  unsigned char *bytes = read_file(path, &size);
  struct tandem_payload payload;
  struct tandem_error error = {0};
  if (bytes == NULL || td_trt_parse(&td_host, bytes, size, NULL, &payload, &error) != TANDEM_OK) {
    printf("refused: %s\n", error.message);
    free(bytes);
    return 1;
  }
  const struct td_trt_payload *state = payload.state;
  cJSON *document = cJSON_CreateObject();
  cJSON_AddNumberToObject(document, "format", state->format);
  cJSON_AddNumberToObject(document, "metadata_offset", state->metadata_offset);
  cJSON_AddNumberToObject(document, "metadata_size", state->metadata_size);
  cJSON_AddNumberToObject(document, "engine_offset", state->engine_offset);
  cJSON_AddNumberToObject(document, "engine_size", (double)state->engine_size);
  cJSON_AddNumberToObject(document, "device_id", state->device_id);
  cJSON_AddBoolToObject(document, "hardware_compatible", state->hardware_compatible);
  cJSON_AddStringToObject(document, "target_platform", state->target_platform);
  cJSON_AddStringToObject(document, "serialized_metadata", state->serialized_metadata);
  cJSON *list = cJSON_AddArrayToObject(document, "io_bindings");
  for (size_t i = 0; i < state->binding_count; i++)
    add_binding(list, &state->bindings[i]);
  list = cJSON_AddArrayToObject(document, "aliased_io");
  for (size_t i = 0; i < state->alias_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "output", state->aliases[i].output);
    cJSON_AddStringToObject(item, "input", state->aliases[i].input);
    cJSON_AddStringToObject(item, "kind",
                            state->aliases[i].kind == TD_TRT_ALIAS_USER ? "user" : "kv_cache_update");
    cJSON_AddItemToArray(list, item);
  }
  char *text = cJSON_Print(document);
  puts(text);
  cJSON_free(text);
  cJSON_Delete(document);
  td_trt_payload_destroy(&payload);
  free(bytes);
  return 0;
}

static int write_sample(const char *name, const char *path) {
  struct standin_payload wanted = {.device_id = 2};
  size_t size = 0;
  void *plan = standin_sample_bytes(name, &wanted.plan_size);
  wanted.plan = plan;
  void *payload = plan != NULL ? standin_payload_bytes(&wanted, &size) : NULL;
  int result = write_file(path, payload, size);
  free(payload);
  free(plan);
  return result;
}

int main(int count, char **arguments) {
  const char *command = count > 1 ? arguments[1] : "";
  const char *name;
  size_t size = 0;
  if (strcmp(command, "read") == 0 && count == 3)
    return read_payload(arguments[2]);
  if (strcmp(command, "sample") == 0 && count == 4)
    return write_sample(arguments[2], arguments[3]);
  if (strcmp(command, "samples") == 0) {
    for (size_t i = 0; (name = standin_sample_name(i)) != NULL; i++)
      puts(name);
    return 0;
  }
  if (strcmp(command, "build") == 0 && count == 4) {
    void *plan = rtx_build_plan(arguments[2], &size);
    int result = write_file(arguments[3], plan, size);
    free(plan);
    return result;
  }
  fprintf(stderr, "usage: %s read PAYLOAD | samples | sample NAME PAYLOAD | build LIBRARY PLAN\n",
          arguments[0]);
  return 2;
}
