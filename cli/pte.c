/* A .pte file around one payload, without torch.
 *
 * The program is written as JSON and turned into a flatbuffer by the flatc and the schema that the executorch
 * wheel ships, so the format follows the wheel. ExecuTorch's extended header is then put after the
 * flatbuffer's identifier, which moves the root by its size, and the payload follows as a segment aligned to
 * 128 bytes. There is a constant segment of no bytes: without one the runtime takes the file for one of the
 * old kind. Inputs are not planned, so the runtime reads them where the caller has them; the output is.
 *
 * The file appears under its name only when it is whole and on disk.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEGMENT_ALIGNMENT = 128, HEADER_SIZE = 32, HEAD = 8, OUTPUT_ALIGNMENT = 16 };

extern char **environ;

/* ---------------------------------------------------------------- the program as JSON */

static const char *scalar_type(int32_t dtype) {
  switch (dtype) {
  case TANDEM_FLOAT32:
    return "FLOAT";
  case TANDEM_INT64:
    return "LONG";
  default:
    return NULL;
  }
}

/* What torch's pytree says of a method that takes or gives a flat tuple, as text inside a JSON string. */
static void print_tree(FILE *file, const char *key, size_t count, bool inputs) {
  static const char open[] =
      "{\\\"type\\\": \\\"builtins.tuple\\\", \\\"context\\\": \\\"null\\\", \\\"children_spec\\\": [";
  fprintf(file, "\"%s\": \"[1, %s%s", key, open, inputs ? open : "");
  for (size_t i = 0; i < count; i++)
    fprintf(file, "%s{\\\"type\\\": null, \\\"context\\\": null, \\\"children_spec\\\": []}", i ? ", " : "");
  if (inputs)
    fputs("]}, {\\\"type\\\": \\\"builtins.dict\\\", \\\"context\\\": \\\"[]\\\", \\\"children_spec\\\": []}",
          file);
  fputs("]}]\"", file);
}

static void print_numbers(FILE *file, const char *key, size_t first, size_t end) {
  fprintf(file, "\"%s\": [", key);
  for (size_t i = first; i < end; i++)
    fprintf(file, "%s%zu", i > first ? ", " : "", i);
  fputs("]", file);
}

static enum tandem_status write_program(const char *path, const char *backend, uint64_t payload_size,
                                        const struct tandem_io *io, size_t input_count, size_t io_count,
                                        struct tandem_error *error) {
  FILE *file = fopen(path, "we");
  if (!file)
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", path, strerror(errno));
  size_t planned = 0;
  bool good = true;
  fputs("{\"version\": 0, \"execution_plan\": [{\"name\": \"forward\", \"container_meta_type\": {", file);
  print_tree(file, "encoded_inp_str", input_count, true);
  fputs(", ", file);
  print_tree(file, "encoded_out_str", io_count - input_count, false);
  fputs("}, \"values\": [", file);
  for (size_t i = 0; good && i < io_count; i++) {
    const char *type = scalar_type(io[i].dtype);
    size_t size = 0;
    good = type && td_tensor_size(io[i].dtype, io[i].rank, io[i].max, &size);
    fprintf(file, "%s{\"val_type\": \"Tensor\", \"val\": {\"scalar_type\": \"%s\", \"sizes\": [",
            i ? ", " : "", type ? type : "");
    for (int32_t d = 0; d < io[i].rank; d++)
      fprintf(file, "%s%lld", d ? ", " : "", (long long)io[i].max[d]);
    fputs("], ", file);
    print_numbers(file, "dim_order", 0, (size_t)io[i].rank);
    if (i >= input_count) {
      fprintf(file, ", \"allocation_info\": {\"memory_id\": 1, \"memory_offset_low\": %zu}", planned);
      planned += (size + OUTPUT_ALIGNMENT - 1) / OUTPUT_ALIGNMENT * OUTPUT_ALIGNMENT;
    }
    fputs("}}", file);
  }
  fputs("], ", file);
  print_numbers(file, "inputs", 0, input_count);
  fputs(", ", file);
  print_numbers(file, "outputs", input_count, io_count);
  fputs(", \"chains\": [{\"inputs\": [], \"outputs\": [], \"instructions\": [{\"instr_args_type\": "
        "\"DelegateCall\","
        " \"instr_args\": {\"delegate_index\": 0, ",
        file);
  print_numbers(file, "args", 0, io_count);
  fprintf(
      file,
      "}}]}], \"operators\": [], \"delegates\": [{\"id\": \"%s\", \"processed\": {\"location\": \"SEGMENT\","
      " \"index\": 1}, \"compile_specs\": []}], \"non_const_buffer_sizes\": [0, %zu]}], \"constant_buffer\": "
      "[],"
      " \"backend_delegate_data\": [], \"segments\": [{\"offset\": 0, \"size\": 0}, {\"offset\": 0, "
      "\"size\": %llu}],"
      " \"constant_segment\": {\"segment_index\": 0, \"offsets\": [0]}}\n",
      backend, planned, (unsigned long long)payload_size);
  bool written = !ferror(file);
  written = fclose(file) == 0 && written;
  if (!good)
    return td_refuse(error, TANDEM_UNSUPPORTED,
                     "cannot describe the method's tensors: a type or size is not known");
  if (!written)
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", path, strerror(errno));
  return TANDEM_OK;
}

/* ---------------------------------------------------------------- the flatbuffer */

/* The folder of the executorch package, from the path of its runtime: <package>/lib/libexecutorch.so. */
static bool find_package(char *package, size_t size) {
  const char *path = tandem_executorch_path();
  const char *slash = path ? strrchr(path, '/') : NULL;
  if (!slash || (size_t)(slash - path) + sizeof "/.." > size)
    return false;
  memcpy(package, path, (size_t)(slash - path));
  strcpy(package + (slash - path), "/..");
  return true;
}

enum tandem_status td_run_tool(char *const *arguments, const char *log, struct tandem_error *error) {
  const char *tool = arguments[0];
  posix_spawn_file_actions_t actions;
  int code = posix_spawn_file_actions_init(&actions);
  if (code != 0)
    return td_refuse(error, TANDEM_OUT_OF_MEMORY, "cannot start %s: %s", tool, strerror(code));
  pid_t child = -1;
  code = posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (code == 0)
    code = posix_spawn_file_actions_adddup2(&actions, 1, 2);
  if (code == 0)
    code = posix_spawn(&child, tool, &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0)
    return td_refuse(error, TANDEM_UNAVAILABLE, "cannot start %s: %s", tool, strerror(code));
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0 && errno == EINTR)
    ;
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0)
    return TANDEM_OK;
  char words[512] = "";
  FILE *file = fopen(log, "re");
  if (file) { /* the end of it: a tool's last words say why */
    if (fseek(file, -(long)(sizeof words - 1), SEEK_END) != 0)
      rewind(file);
    words[fread(words, 1, sizeof words - 1, file)] = 0;
    fclose(file);
  }
  size_t length = strlen(words);
  while (length > 0 && words[length - 1] == '\n')
    words[--length] = 0;
  return td_refuse(error, TANDEM_INTERNAL, "%s failed: %s", tool, *words ? words : "it said nothing");
}

/* Runs flatc, its words going to `log`. */
static enum tandem_status run_flatc(const char *package, const char *directory, const char *log,
                                    struct tandem_error *error) {
  char flatc[PATH_MAX], schema[PATH_MAX], folder[PATH_MAX], input[PATH_MAX];
  if (snprintf(flatc, sizeof flatc, "%s/data/bin/flatc", package) >= PATH_MAX ||
      snprintf(folder, sizeof folder, "%s/schema", package) >= PATH_MAX ||
      snprintf(schema, sizeof schema, "%s/schema/program.fbs", package) >= PATH_MAX ||
      snprintf(input, sizeof input, "%s/program.json", directory) >= PATH_MAX)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "the path of executorch's flatc is too long: %s",
                     package);
  if (access(flatc, X_OK) != 0)
    return td_refuse(
        error, TANDEM_UNAVAILABLE,
        "cannot run executorch's schema compiler %s (%s): install the pip package executorch 1.5.1", flatc,
        strerror(errno));
  char *arguments[] = {flatc,  "--binary", "-I", folder, "-o", (char *)(uintptr_t)directory,
                       schema, input,      NULL};
  return td_run_tool(arguments, log, error);
}

static uint32_t read_u32(const unsigned char *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void write_number(unsigned char *bytes, int width, uint64_t value) {
  for (int i = 0; i < width; i++)
    bytes[i] = (unsigned char)(value >> (8 * i));
}

/* ---------------------------------------------------------------- the file */

static bool write_all(int fd, const void *bytes, size_t size) {
  const char *next = bytes;
  while (size) {
    ssize_t n = write(fd, next, size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return false;
    next += n;
    size -= (size_t)n;
  }
  return true;
}

static bool copy_file(int from, int to) {
  static char block[1 << 16];
  for (;;) {
    ssize_t n = read(from, block, sizeof block);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n == 0;
    if (!write_all(to, block, (size_t)n))
      return false;
  }
}

static enum tandem_status assemble(const char *path, const char *flatbuffer, int payload,
                                   uint64_t payload_size, struct tandem_error *error) {
  static const char zeros[SEGMENT_ALIGNMENT];
  unsigned char head[HEAD + HEADER_SIZE];
  struct stat stat = {0};
  enum tandem_status status = TANDEM_OK;
  int to = -1, from = open(flatbuffer, O_RDONLY | O_CLOEXEC);
  char partial[PATH_MAX];
  *partial = 0;
  if (from < 0 || fstat(from, &stat) != 0 || stat.st_size < HEAD || read(from, head, HEAD) != HEAD ||
      memcmp(head + 4, "ET", 2) != 0) {
    status = td_refuse(error, TANDEM_INTERNAL, "flatc left no program in %s", flatbuffer);
    goto done;
  }
  uint64_t program_size = (uint64_t)stat.st_size + HEADER_SIZE;
  uint64_t base = (program_size + SEGMENT_ALIGNMENT - 1) / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT;
  write_number(head, 4, (uint64_t)read_u32(head) + HEADER_SIZE);
  memcpy(head + HEAD, "eh00", 4);
  write_number(head + HEAD + 4, 4, HEADER_SIZE);
  write_number(head + HEAD + 8, 8, program_size);
  write_number(head + HEAD + 16, 8, base);
  write_number(head + HEAD + 24, 8, payload_size);
  if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial) {
    *partial = 0;
    status = td_refuse(error, TANDEM_INVALID_ARGUMENT, "the path is too long: %s", path);
    goto done;
  }
  to = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (to < 0 || !write_all(to, head, sizeof head) || !copy_file(from, to) ||
      !write_all(to, zeros, (size_t)(base - program_size)) || !copy_file(payload, to) || fsync(to) != 0 ||
      rename(partial, path) != 0) {
    status = td_refuse(error, TANDEM_INVALID_STATE, "cannot write %s: %s", path, strerror(errno));
    goto done;
  }
  *partial = 0;

done:
  if (*partial)
    unlink(partial);
  if (to >= 0)
    close(to);
  if (from >= 0)
    close(from);
  return status;
}

enum tandem_status td_pte_write(const char *path, const char *directory, const char *backend,
                                const char *payload, const struct tandem_io *io, size_t input_count,
                                size_t io_count, struct tandem_error *error) {
  char package[PATH_MAX], text[PATH_MAX], log[PATH_MAX], binary[PATH_MAX];
  struct stat stat = {0};
  if (!find_package(package, sizeof package))
    return td_refuse(error, TANDEM_UNAVAILABLE,
                     "cannot tell where executorch's package is: its runtime has no path");
  if (snprintf(text, sizeof text, "%s/program.json", directory) >= PATH_MAX ||
      snprintf(log, sizeof log, "%s/flatc.log", directory) >= PATH_MAX ||
      snprintf(binary, sizeof binary, "%s/program.pte", directory) >= PATH_MAX)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "the path is too long: %s", directory);
  int fd = open(payload, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &stat) != 0) {
    if (fd >= 0)
      close(fd);
    return td_refuse(error, TANDEM_INVALID_STATE, "cannot read %s: %s", payload, strerror(errno));
  }
  uint64_t size = (uint64_t)stat.st_size;
  enum tandem_status status = write_program(text, backend, size, io, input_count, io_count, error);
  if (status == TANDEM_OK)
    status = run_flatc(package, directory, log, error);
  if (status == TANDEM_OK)
    status = assemble(path, binary, fd, size, error);
  close(fd);
  unlink(text);
  unlink(log);
  unlink(binary);
  return status;
}
