/* `tandem inspect`: what a .pte holds, as the file has it. No vendor library is opened.
 *
 * A payload that tandem knows tells its facts; one that it does not know has sizes and a digest all the same.
 * A payload of ours that is broken is shown with what is wrong with it, and the command fails after showing
 * all.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] =
    "usage: tandem inspect PROGRAM [--data FILE.ptd ...] [--json]\n"
    "\n"
    "Tells the methods of a .pte program, their inputs and outputs, and for each delegate its\n"
    "backend, size, offset, alignment, SHA-256, compile specs and what its payload says of itself;\n"
    "the engine's SHA-256 is what the option expect_sha256 allows. --data gives what the program keeps\n"
    "in data files.\n"
    "No vendor library is needed. Exit status: 0 done, 1 failed, 2 called wrongly.\n";

static void add_fact(void *user, const char *key, const char *value) {
  cJSON_AddStringToObject(user, key, value);
}

/* A value of text as it is, others by their size alone. */
static void add_spec(cJSON *list, const struct tandem_spec *spec) {
  cJSON *object = cJSON_CreateObject();
  const char *bytes = spec->value;
  bool text = true;
  for (size_t i = 0; i < spec->size; i++)
    text = text && bytes[i] >= ' ' && bytes[i] <= '~';
  char *copy = text ? strndup(spec->size ? bytes : "", spec->size) : NULL;
  cJSON_AddStringToObject(object, "key", spec->key);
  if (copy)
    cJSON_AddStringToObject(object, "value", copy);
  else
    cJSON_AddNullToObject(object, "value");
  cJSON_AddNumberToObject(object, "size", (double)spec->size);
  cJSON_AddItemToArray(list, object);
  free(copy);
}

/* Adds what is known of one delegate; the message of a broken payload goes to `error`. */
static enum tandem_status describe_delegate(const struct tandem_program *program,
                                            const struct tandem_delegate *delegate, size_t index,
                                            cJSON *object, struct tandem_error *error) {
  char hex[65];
  cJSON_AddNumberToObject(object, "index", (double)index);
  cJSON_AddStringToObject(object, "backend", delegate->backend);
  cJSON_AddNumberToObject(object, "payload_size", (double)delegate->payload_size);
  cJSON_AddBoolToObject(object, "in_segment", delegate->in_segment);
  cJSON_AddNumberToObject(object, "file_offset", (double)delegate->file_offset);
  cJSON_AddNumberToObject(object, "alignment", (double)delegate->alignment);
  if (!delegate->payload || tandem_sha256(delegate->payload, delegate->payload_size, hex, error) != TANDEM_OK)
    cJSON_AddNullToObject(object, "sha256");
  else
    cJSON_AddStringToObject(object, "sha256", hex);
  if (!delegate->payload ||
      tandem_payload_sha256(delegate->backend, delegate->payload, delegate->payload_size,
                            tandem_program_named_data(program), hex, error) != TANDEM_OK)
    cJSON_AddNullToObject(object, "engine_sha256");
  else
    cJSON_AddStringToObject(object, "engine_sha256", hex);
  cJSON *specs = cJSON_AddArrayToObject(object, "compile_specs");
  for (size_t i = 0; i < delegate->compile_spec_count; i++)
    add_spec(specs, &delegate->compile_specs[i]);
  cJSON *facts = cJSON_AddObjectToObject(object, "facts");
  if (!facts || !delegate->payload)
    return TANDEM_OK;
  enum tandem_status status = tandem_payload_describe(delegate->backend, delegate->payload,
                                                      delegate->payload_size, add_fact, facts, error);
  cJSON_AddBoolToObject(object, "known", status != TANDEM_NOT_FOUND);
  if (status != TANDEM_OK && status != TANDEM_NOT_FOUND) {
    cJSON_AddStringToObject(object, "problem", error->message);
    return status;
  }
  return TANDEM_OK;
}

/* Errors of the program end it; a broken payload is kept as `problem` and the first one returned at the end.
 */
static enum tandem_status describe_method(struct tandem_program *program, const char *name, cJSON *method,
                                          struct tandem_error *problem, struct tandem_error *error) {
  const struct tandem_io *inputs, *outputs;
  const struct tandem_delegate *delegates;
  size_t input_count, output_count, count;
  enum tandem_status status =
      tandem_program_method_io(program, name, &inputs, &input_count, &outputs, &output_count, error);
  if (status == TANDEM_OK)
    status = tandem_program_delegates(program, name, &delegates, &count, error);
  if (status != TANDEM_OK)
    return status;
  cJSON_AddStringToObject(method, "name", name);
  cJSON *list = cJSON_AddArrayToObject(method, "inputs");
  for (size_t i = 0; i < input_count; i++)
    cJSON_AddItemToArray(list, td_io_json(&inputs[i]));
  list = cJSON_AddArrayToObject(method, "outputs");
  for (size_t i = 0; i < output_count; i++)
    cJSON_AddItemToArray(list, td_io_json(&outputs[i]));
  list = cJSON_AddArrayToObject(method, "delegates");
  for (size_t i = 0; i < count; i++) {
    struct tandem_error broken = {0};
    cJSON *object = cJSON_CreateObject();
    if (describe_delegate(program, &delegates[i], i, object, &broken) != TANDEM_OK &&
        problem->code == TANDEM_OK)
      *problem = broken;
    cJSON_AddItemToArray(list, object);
  }
  return TANDEM_OK;
}

static void print_ios(const cJSON *list, const char *what) {
  size_t index = 0;
  const cJSON *io;
  cJSON_ArrayForEach(io, list) {
    const cJSON *min = cJSON_GetObjectItem(io, "min"), *max = cJSON_GetObjectItem(io, "max");
    const char *name = td_text(io, "name");
    printf("  %s %zu: %s%s%s[", what, index++, name, *name ? " " : "", td_text(io, "dtype"));
    for (int i = 0; i < cJSON_GetArraySize(max); i++) {
      double low = cJSON_GetArrayItem(min, i)->valuedouble;
      const cJSON *high = cJSON_GetArrayItem(max, i);
      printf("%s%.0f", i ? ", " : "", low);
      if (cJSON_IsNull(high))
        printf("..");
      else if (high->valuedouble > low)
        printf("..%.0f", high->valuedouble);
    }
    printf("]\n");
  }
}

static void print_program(cJSON *document) {
  const cJSON *method, *delegate, *fact, *spec;
  td_show_all(document);
  printf("%s, %.0f bytes\n", td_text(document, "program"), td_number(document, "size"));
  cJSON_ArrayForEach(method, cJSON_GetObjectItem(document, "methods")) {
    printf("\nmethod %s\n", td_text(method, "name"));
    print_ios(cJSON_GetObjectItem(method, "inputs"), "input");
    print_ios(cJSON_GetObjectItem(method, "outputs"), "output");
    cJSON_ArrayForEach(delegate, cJSON_GetObjectItem(method, "delegates")) {
      printf("  delegate %.0f: %s, %.0f bytes %s at offset %.0f, aligned to %.0f\n",
             td_number(delegate, "index"), td_text(delegate, "backend"), td_number(delegate, "payload_size"),
             cJSON_IsTrue(cJSON_GetObjectItem(delegate, "in_segment")) ? "in a segment" : "inline",
             td_number(delegate, "file_offset"), td_number(delegate, "alignment"));
      printf("    sha256: %s\n", td_text(delegate, "sha256"));
      if (cJSON_IsString(cJSON_GetObjectItem(delegate, "engine_sha256")))
        printf("    engine sha256: %s\n", td_text(delegate, "engine_sha256"));
      else if (cJSON_IsTrue(cJSON_GetObjectItem(delegate, "known")) && !*td_text(delegate, "problem"))
        printf("    engine sha256: not known without the program's data file: give it by --data\n");
      cJSON_ArrayForEach(fact, cJSON_GetObjectItem(delegate, "facts")) {
        printf("    %s: %s\n", fact->string, fact->valuestring);
      }
      cJSON_ArrayForEach(spec, cJSON_GetObjectItem(delegate, "compile_specs")) {
        if (cJSON_IsString(cJSON_GetObjectItem(spec, "value")))
          printf("    compile spec %s: %s\n", td_text(spec, "key"), td_text(spec, "value"));
        else
          printf("    compile spec %s: %.0f bytes\n", td_text(spec, "key"), td_number(spec, "size"));
      }
      if (cJSON_IsFalse(cJSON_GetObjectItem(delegate, "known")))
        printf("    not a backend of tandem: nothing of it is shared\n");
      if (*td_text(delegate, "problem"))
        printf("    problem: %s\n", td_text(delegate, "problem"));
    }
    if (!cJSON_GetArraySize(cJSON_GetObjectItem(method, "delegates")))
      printf("  no delegates\n");
  }
}

int td_inspect_command(int count, char **arguments) {
  const struct td_usage usage = {"inspect", "PROGRAM", help};
  const char *path = NULL;
  bool json = false;
  struct td_text_list data = {0};
  const struct td_flag flags[] = {{"--data", TD_FLAG_LIST, &data, 0, 0},
                                  {"--json", TD_FLAG_SWITCH, &json, 0, 0}};
  struct tandem_program *program = NULL;
  struct tandem_error error = {0}, problem = {0};
  cJSON *document = NULL;
  struct stat stat_buffer;
  int result = td_args_parse(&usage, flags, sizeof flags / sizeof flags[0], count, arguments, &path);
  if (result != TD_ARGS_GO)
    goto parsed;
  result = TD_EXIT_FAILED;
  td_notes_init(false);
  const struct tandem_program_desc desc = {
      .struct_size = sizeof desc, .path = path, .data_paths = data.items, .data_path_count = data.count};
  enum tandem_status status = tandem_program_create(&desc, &program, &error);
  document = cJSON_CreateObject();
  cJSON_AddStringToObject(document, "program", path);
  cJSON_AddNumberToObject(document, "size", stat(path, &stat_buffer) == 0 ? (double)stat_buffer.st_size : 0);
  cJSON *methods = cJSON_AddArrayToObject(document, "methods");
  for (size_t i = 0; status == TANDEM_OK && i < tandem_program_method_count(program); i++) {
    cJSON *method = cJSON_CreateObject();
    cJSON_AddItemToArray(methods, method);
    status = describe_method(program, tandem_program_method_name(program, i), method, &problem, &error);
  }
  if (status != TANDEM_OK) {
    td_complain("%s", error.message);
    goto done;
  }
  if (json) {
    result = td_print_json(document) ? TD_EXIT_DONE : TD_EXIT_FAILED;
    document = NULL;
  } else {
    print_program(document);
    result = td_end_output() ? TD_EXIT_DONE : TD_EXIT_FAILED;
  }
  if (problem.code != TANDEM_OK) {
    td_complain("%s", problem.message);
    result = TD_EXIT_FAILED;
  }

done:
  td_notes_fini(result == TD_EXIT_DONE);
  cJSON_Delete(document);
  tandem_program_destroy(program);
parsed:
  td_text_list_fini(&data);
  return result;
}
