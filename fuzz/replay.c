/* Runs a fuzz target over a corpus as an ordinary test: each file, each of its beginnings, and each of its
 * bytes replaced by four others, which differ from byte to byte. usage: fuzz_NAME FOLDER; 77 when the folder
 * has no file. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void try_edits(uint8_t *bytes, size_t size) {
  enum { EDITS = 4 };
  static const uint8_t others[] = {0, 1, ' ', '\'', '(', ')', ',', '9', 0x7f, 0x80, 0xff};
  for (size_t i = 0; i <= size; i++)
    LLVMFuzzerTestOneInput(bytes, i);
  for (size_t i = 0; i < size; i++) {
    uint8_t kept = bytes[i];
    for (size_t k = 0; k < EDITS; k++) {
      bytes[i] = others[(i * EDITS + k) % sizeof others];
      LLVMFuzzerTestOneInput(bytes, size);
    }
    bytes[i] = kept;
  }
}

int main(int count, char **arguments) {
  static uint8_t bytes[FILE_MAX];
  DIR *folder = count == 2 ? opendir(arguments[1]) : NULL;
  struct dirent *entry;
  size_t files = 0;
  if (!folder) {
    fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 1;
  }
  while ((entry = readdir(folder))) {
    char path[4096];
    if (entry->d_name[0] == '.' ||
        snprintf(path, sizeof path, "%s/%s", arguments[1], entry->d_name) >= (int)sizeof path)
      continue;
    FILE *file = fopen(path, "rb");
    if (!file) {
      perror(path);
      closedir(folder);
      return 1;
    }
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    try_edits(bytes, size);
    files++;
  }
  closedir(folder);
  printf("%zu files\n", files);
  return files ? 0 : 77;
}
