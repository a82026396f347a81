/* Engine bytes that outlive the payload they came in, for a vendor whose engine goes on reading them.
 *
 * A program's segment is a shared read-only mapping of its file. mremap with an old size of 0 makes a second
 * mapping of the same pages: it costs no memory, needs no path and survives the first one's unmap and the
 * file's unlink. It inherits the host's mlock, which would pin the pages for the engine's life, so that is
 * undone. Everything else is copied: private mappings (the kernel refuses them, and they may hold pages that
 * differ from the file), anonymous and writable memory, bytes that lie in two mappings.
 *
 * Only the mapping itself tells which file it is of, and the pointer is all that a delegate gets; so the
 * mapping is looked up by address: by an ioctl where the kernel has it (6.11), which takes a microsecond
 * whatever else the process maps, else in the text of /proc/self/maps.
 *
 * A mapping follows its file. The stat data kept with it tells of a rewrite in place: a hint that can only
 * say "changed". Replacing or removing the file moves the change time but takes a link away, and the pages
 * stay, so that counts as unchanged. Without a descriptor (a deleted file, a memfd) nothing is known.
 */
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Of the kernel's linux/fs.h since 6.11, which older systems' headers lack. */
struct map_query {
  uint64_t size;
  uint64_t query_flags; /* 0: the mapping that holds query_addr */
  uint64_t query_addr;
  uint64_t start;
  uint64_t end;
  uint64_t flags; /* MAP_QUERY_* */
  uint64_t page_size;
  uint64_t offset;
  uint64_t inode;
  uint32_t device_major;
  uint32_t device_minor;
  uint32_t name_size;
  uint32_t build_id_size;
  uint64_t name_address;
  uint64_t build_id_address;
};
#define MAP_QUERY          _IOWR('f', 17, struct map_query)
#define MAP_QUERY_READABLE UINT64_C(1)
#define MAP_QUERY_WRITABLE UINT64_C(2)
#define MAP_QUERY_SHARED   UINT64_C(8)

struct mapping {
  uintptr_t start, end;
  uint64_t offset; /* of start in the file */
  bool read_only, shared;
  uint64_t inode; /* 0: no file */
  uint32_t device_major, device_minor;
  char path[PATH_MAX]; /* "" when it has none or it is too long */
};

enum { STAMP_DEVICE, STAMP_INODE, STAMP_SIZE, STAMP_MTIME, STAMP_CTIME, STAMP_LINKS };

static bool query_mapping(int maps, uintptr_t address, struct mapping *mapping) {
  struct map_query query = {
      .size = sizeof(query),
      .query_addr = address,
      .name_size = sizeof(mapping->path),
      .name_address = (uintptr_t)mapping->path,
  };
  if (ioctl(maps, MAP_QUERY, &query) != 0)
    return false;
  if (query.name_size == 0)
    mapping->path[0] = '\0';
  mapping->start = (uintptr_t)query.start;
  mapping->end = (uintptr_t)query.end;
  mapping->offset = query.offset;
  mapping->read_only = (query.flags & (MAP_QUERY_READABLE | MAP_QUERY_WRITABLE)) == MAP_QUERY_READABLE;
  mapping->shared = (query.flags & MAP_QUERY_SHARED) != 0;
  mapping->inode = query.inode;
  mapping->device_major = query.device_major;
  mapping->device_minor = query.device_minor;
  return true;
}

/* "7f5e8c000000-7f5e8c021000 r--s 00001000 fd:00 1234   /path"; false when the line is of no such form. */
static bool parse_mapping(const char *line, struct mapping *mapping) {
  char mode[5];
  int path = 0;
  unsigned long start, end, offset, inode;
  if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %n", &start, &end, mode, &offset, &mapping->device_major,
             &mapping->device_minor, &inode, &path) < 7)
    return false;
  mapping->start = start;
  mapping->end = end;
  mapping->offset = offset;
  mapping->inode = inode;
  mapping->read_only = mode[0] == 'r' && mode[1] == '-';
  mapping->shared = mode[3] == 's';
  size_t length = strlen(line + path);
  if (length >= sizeof(mapping->path))
    length = 0;
  memcpy(mapping->path, line + path, length);
  mapping->path[length] = '\0';
  return true;
}

static bool read_mapping(int maps, uintptr_t address, struct mapping *mapping) {
  /* Room for a line with the longest path; a longer line ends the search, and the bytes are copied. */
  char text[PATH_MAX + 256];
  size_t held = 0;
  for (;;) {
    ssize_t got = read(maps, text + held, sizeof(text) - 1 - held);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    held += (size_t)got;
    text[held] = '\0';
    char *line = text, *newline;
    while ((newline = strchr(line, '\n')) != NULL) {
      *newline = '\0';
      if (parse_mapping(line, mapping) && mapping->start <= address && address < mapping->end)
        return true;
      line = newline + 1;
    }
    held -= (size_t)(line - text);
    memmove(text, line, held);
  }
}

static bool find_part(uintptr_t address, struct mapping *mapping) {
  int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0)
    return false;
  bool found = query_mapping(maps, address, mapping) || read_mapping(maps, address, mapping);
  close(maps);
  return found;
}

static bool follows(const struct mapping *next, const struct mapping *mapping) {
  return next->start == mapping->end && next->offset == mapping->offset + (mapping->end - mapping->start) &&
         next->inode == mapping->inode && next->device_major == mapping->device_major &&
         next->device_minor == mapping->device_minor && next->shared == mapping->shared &&
         next->read_only == mapping->read_only;
}

/* The mapping of all from `address` to `end`. The kernel splits one where only a part is locked, and
 * ExecuTorch locks a segment's size from the page that it begins in, which may leave out its last page: parts
 * that follow each other in memory and in the file are one mapping. */
static bool find_mapping(uintptr_t address, uintptr_t end, struct mapping *mapping) {
  struct mapping part;
  bool found = find_part(address, mapping);
  while (found && mapping->end < end) {
    found = find_part(mapping->end, &part) && follows(&part, mapping);
    if (found)
      mapping->end = part.end;
  }
  return found;
}

static uint64_t as_ns(struct timespec time) {
  return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

static void stamp_file(const struct stat *file, uint64_t stamp[6]) {
  stamp[STAMP_DEVICE] = file->st_dev;
  stamp[STAMP_INODE] = file->st_ino;
  stamp[STAMP_SIZE] = (uint64_t)file->st_size;
  stamp[STAMP_MTIME] = as_ns(file->st_mtim);
  stamp[STAMP_CTIME] = as_ns(file->st_ctim);
  stamp[STAMP_LINKS] = file->st_nlink;
}

/* A descriptor of the mapped file for its stat data, or -1: the path may lead to another file by now.
 * O_PATH needs no permission to read, breaks no lease and opens no device. */
static int open_mapped(const struct mapping *mapping, uint64_t stamp[6]) {
  int fd = open(mapping->path, O_PATH | O_CLOEXEC);
  if (fd < 0)
    return -1;
  struct stat file;
  if (fstat(fd, &file) == 0 && file.st_ino == mapping->inode && major(file.st_dev) == mapping->device_major &&
      minor(file.st_dev) == mapping->device_minor) {
    stamp_file(&file, stamp);
    return fd;
  }
  close(fd);
  return -1;
}

static void watch_file(const struct mapping *mapping, struct td_bytes *bytes) {
  bytes->fd = open_mapped(mapping, bytes->stamp);
  bytes->watched = bytes->fd >= 0;
}

/* The file mapping that holds all the bytes, and the pages that they lie in. */
static bool find_file(const void *data, size_t size, struct mapping *mapping, uintptr_t *start,
                      size_t *length) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uintptr_t address = (uintptr_t)data;
  *start = address & ~(page - 1);
  if (size == 0 || address > UINTPTR_MAX - size || address + size > UINTPTR_MAX - (page - 1))
    return false;
  *length = ((address + size + (page - 1)) & ~(page - 1)) - *start;
  /* Shared anonymous memory has an inode too; it is the memory of whoever made it. */
  return find_mapping(address, *start + *length, mapping) && mapping->inode != 0 &&
         strncmp(mapping->path, "/dev/zero", strlen("/dev/zero")) != 0;
}

static bool map_again(const void *data, size_t size, struct td_bytes *bytes) {
  struct mapping mapping;
  uintptr_t start;
  size_t length;
  if (!find_file(data, size, &mapping, &start, &length) || !mapping.shared || !mapping.read_only)
    return false;
  void *base = mremap((void *)start, 0, length, MREMAP_MAYMOVE);
  if (base == MAP_FAILED)
    return false;
  munlock(base, length);
  bytes->kind = TANDEM_PAYLOAD_MAPPED;
  bytes->data = (const char *)base + ((uintptr_t)data - start);
  bytes->size = size;
  bytes->base = base;
  bytes->base_size = length;
  watch_file(&mapping, bytes);
  return true;
}

static enum tandem_status copy_bytes(const void *data, size_t size, struct td_bytes *bytes,
                                     struct tandem_error *error) {
  /* The copy lies as the original does within its page: a vendor that checked the alignment of one finds
   * the same in the other. */
  const uintptr_t page = 4096;
  char *base = size > SIZE_MAX - page ? NULL : td_alloc(size + page);
  if (!base)
    return td_fail(error, TANDEM_OUT_OF_MEMORY,
                   "cannot copy the %zu engine bytes that the engine goes on reading: out of host memory; "
                   "bytes that a program maps from its file are shared instead of copied (payload_bytes=map)",
                   size);
  char *place = base + (((uintptr_t)data - (uintptr_t)base) & (page - 1));
  if (size > 0)
    memcpy(place, data, size);
  bytes->kind = TANDEM_PAYLOAD_COPIED;
  bytes->data = place;
  bytes->size = size;
  bytes->base = base;
  bytes->base_size = size + page;
  return TANDEM_OK;
}

enum tandem_status td_bytes_keep(const void *data, size_t size, bool copy_only, struct td_bytes *bytes,
                                 struct tandem_error *error) {
  *bytes = (struct td_bytes){.fd = -1};
  if (!copy_only && map_again(data, size, bytes))
    return TANDEM_OK;
  return copy_bytes(data, size, bytes, error);
}

void td_bytes_release(struct td_bytes *bytes) {
  if (bytes->watched)
    close(bytes->fd);
  if (bytes->kind == TANDEM_PAYLOAD_MAPPED) {
    munmap(bytes->base, bytes->base_size);
  } else if (bytes->kind == TANDEM_PAYLOAD_COPIED) {
    td_free(bytes->base);
  }
  *bytes = (struct td_bytes){.fd = -1};
}

bool td_bytes_moved(const struct td_bytes *bytes) {
  if (!bytes->watched)
    return false;
  struct stat file;
  uint64_t now[6];
  if (fstat(bytes->fd, &file) != 0)
    return true;
  stamp_file(&file, now);
  return now[STAMP_SIZE] != bytes->stamp[STAMP_SIZE] || now[STAMP_MTIME] != bytes->stamp[STAMP_MTIME] ||
         (now[STAMP_CTIME] != bytes->stamp[STAMP_CTIME] && now[STAMP_LINKS] == bytes->stamp[STAMP_LINKS]);
}

/* ---------------------------------------------------------------- watch */

struct td_watch {
  size_t count;
  struct td_bytes files[]; /* `count` of them, each file once; they keep no bytes */
};

static bool is_watched(const struct td_watch *watch, const struct td_bytes *file) {
  for (size_t i = 0; i < watch->count; i++)
    if (watch->files[i].stamp[STAMP_DEVICE] == file->stamp[STAMP_DEVICE] &&
        watch->files[i].stamp[STAMP_INODE] == file->stamp[STAMP_INODE])
      return true;
  return false;
}

struct td_watch *td_watch_create(const struct tandem_part *parts, size_t count) {
  struct td_watch *watch = td_alloc(sizeof *watch + count * sizeof watch->files[0]);
  struct mapping last = {0};
  for (size_t i = 0; watch != NULL && i < count; i++) {
    struct td_bytes file = {.fd = -1};
    struct mapping mapping;
    uintptr_t start, address = (uintptr_t)parts[i].data;
    size_t length;
    if (address >= last.start && address < last.end && parts[i].size <= last.end - address)
      continue; /* most parts lie beside each other; on older kernels a look-up reads all of the process's
                   mappings */
    if (find_file(parts[i].data, parts[i].size, &mapping, &start, &length)) {
      watch_file(&mapping, &file);
      last = mapping;
    }
    if (file.watched && !is_watched(watch, &file))
      watch->files[watch->count++] = file;
    else
      td_bytes_release(&file);
  }
  return watch;
}

void td_watch_destroy(struct td_watch *watch) {
  for (size_t i = 0; watch != NULL && i < watch->count; i++)
    td_bytes_release(&watch->files[i]);
  td_free(watch);
}

bool td_watch_moved(const struct td_watch *watch) {
  for (size_t i = 0; watch != NULL && i < watch->count; i++)
    if (td_bytes_moved(&watch->files[i]))
      return true;
  return false;
}
