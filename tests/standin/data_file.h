/* Writes data files (.ptd) for tests. */
#ifndef TANDEM_STANDIN_DATA_FILE_H
#define TANDEM_STANDIN_DATA_FILE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct standin_entry {
  const char *key;
  const void *data;
  size_t size;
};

/* As ExecuTorch's serializer writes entries that are no tensors. False: the file cannot be written. */
bool standin_write_data_file(const char *path, const struct standin_entry *entries, size_t count);

#ifdef __cplusplus
}
#endif

#endif
