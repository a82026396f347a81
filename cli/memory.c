/* What this process alone pays for, in bytes.
 *
 * Anonymous + Swap of smaps_rollup: pages that belong to no file. Private_Dirty would count the page cache of
 * a file just written, RSS the pages of a mapped program that all its readers share. Reading takes no memory
 * of its own, so that measuring does not show in what is measured.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kilobytes of the line that begins with `name`, -1 when there is none. */
static int64_t find_kilobytes(const char *text, const char *name) {
  size_t size = strlen(name);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, name, size) == 0)
      return strtoll(line + size, NULL, 10);
  }
  return -1;
}

int64_t td_memory_private(void) {
  char text[4096];
  size_t size = 0;
  int fd = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return -1;
  for (;;) {
    ssize_t n = read(fd, text + size, sizeof text - 1 - size);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      break;
    size += (size_t)n;
  }
  close(fd);
  text[size] = 0;
  int64_t anonymous = find_kilobytes(text, "Anonymous:"), swap = find_kilobytes(text, "Swap:");
  return anonymous < 0 ? -1 : (anonymous + (swap > 0 ? swap : 0)) * 1024;
}
