/* Engine bytes beyond their payload: what is mapped again, what is copied, and what a file's change shows. */
#include "base.h"
#include "scene.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the system, with faults: these definitions stand before libc's */

static bool no_ioctl, no_maps, no_mremap, no_fstat;
static int reads_interrupted;
static bool read_garbage, no_read;
static size_t read_at_most;

int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void *argument = va_arg(arguments, void *);
  va_end(arguments);
  if (no_ioctl) {
    errno = ENOTTY;
    return -1;
  }
  return (int)syscall(SYS_ioctl, fd, request, argument);
}

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (no_maps && strcmp(path, "/proc/self/maps") == 0) {
    errno = EACCES;
    return -1;
  }
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t read(int fd, void *buffer, size_t size) {
  if (reads_interrupted > 0) {
    reads_interrupted--;
    errno = EINTR;
    return -1;
  }
  if (no_read) {
    errno = EIO;
    return -1;
  }
  if (read_garbage) {
    read_garbage = false;
    memcpy(buffer, "no mapping\n", 11);
    return 11;
  }
  return syscall(SYS_read, fd, buffer, read_at_most && size > read_at_most ? read_at_most : size);
}

void *mremap(void *old, size_t old_size, size_t size, int flags, ...) {
  if (no_mremap && old_size == 0) {
    errno = EAGAIN;
    return MAP_FAILED;
  }
  return (void *)syscall(SYS_mremap, old, old_size, size, flags, NULL);
}

int fstat(int fd, struct stat *file) {
  if (no_fstat) {
    errno = EIO;
    return -1;
  }
  return (int)syscall(SYS_newfstatat, fd, "", file, AT_EMPTY_PATH);
}

/* ---- a file of a program */

/* A multiple of every page that Linux has, 4, 16 or 64 KiB; copies keep the place within the smallest. */
enum { PAGE = 65536, PAGE_MIN = 4096, PAGES = 6, SIZE = PAGE * PAGES };

static char folder[] = "/tmp/tandem-bytes-XXXXXX";
static char path[64], other_path[64];
static unsigned char pattern[SIZE];

struct file {
  int fd;
  unsigned char *map;
};

static void write_file(const char *to, const unsigned char *bytes) {
  int fd = open(to, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, SIZE), SIZE);
  close(fd);
}

static struct file map_file(int protection, int flags) {
  write_file(path, pattern);
  struct file file = {.fd = open(path, O_RDWR | O_CLOEXEC)};
  assert_true(file.fd >= 0);
  file.map = mmap(NULL, SIZE, protection, flags, file.fd, 0);
  assert_ptr_not_equal(file.map, MAP_FAILED);
  return file;
}

static void unmap_file(struct file *file) {
  munmap(file->map, SIZE);
  close(file->fd);
}

static int count_descriptors(void) {
  int count = 0;
  DIR *descriptors = opendir("/proc/self/fd");
  assert_non_null(descriptors);
  while (readdir(descriptors))
    count++;
  closedir(descriptors);
  return count;
}

/* Mappings of anything in our folder or of a memfd; of all mappings the allocator's own come and go. */
static int count_mappings(void) {
  char line[8192];
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  assert_non_null(maps);
  while (fgets(line, sizeof(line), maps))
    count += strstr(line, folder) != NULL || strstr(line, "/memfd:") != NULL;
  fclose(maps);
  return count;
}

static void expect_kept(const struct td_bytes *bytes, enum tandem_payload_bytes kind, size_t from,
                        size_t size) {
  assert_int_equal(bytes->kind, kind);
  assert_int_equal(bytes->size, size);
  assert_memory_equal(bytes->data, pattern + from, size);
  assert_int_equal((uintptr_t)bytes->data % PAGE_MIN, from % PAGE_MIN);
}

/* Keeps [from, from + size) of a file mapped so, and looks at it after the payload is gone. */
static void expect_kind(int protection, int flags, size_t from, size_t size, bool copy_only,
                        enum tandem_payload_bytes kind) {
  int descriptors = count_descriptors(), mappings = count_mappings();
  uint64_t live = td_memory_live();
  struct td_bytes bytes;
  struct file file = map_file(protection, flags);
  assert_int_equal(td_bytes_keep(file.map + from, size, copy_only, &bytes, NULL), TANDEM_OK);
  assert_ptr_not_equal(bytes.data, file.map + from);
  unmap_file(&file);
  expect_kept(&bytes, kind, from, size);
  assert_int_equal(count_mappings() - mappings, kind == TANDEM_PAYLOAD_MAPPED);
  td_bytes_release(&bytes);
  assert_null(bytes.data);
  td_bytes_release(&bytes);
  assert_int_equal(count_descriptors(), descriptors);
  assert_int_equal(count_mappings(), mappings);
  assert_int_equal(td_memory_live(), live);
}

/* ---- what is mapped, what is copied */

static void a_shared_file_mapping_is_mapped_again(void **state) {
  (void)state;
  expect_kind(PROT_READ, MAP_SHARED, 0, SIZE, false, TANDEM_PAYLOAD_MAPPED);
}

static void bytes_inside_a_page_keep_their_place_in_it(void **state) {
  (void)state;
  expect_kind(PROT_READ, MAP_SHARED, 128, PAGE, false, TANDEM_PAYLOAD_MAPPED);
  expect_kind(PROT_READ, MAP_SHARED, PAGE + 17, 1, false, TANDEM_PAYLOAD_MAPPED);
  expect_kind(PROT_READ, MAP_SHARED, 2 * PAGE - 1, 2, false, TANDEM_PAYLOAD_MAPPED);
  expect_kind(PROT_READ, MAP_SHARED, SIZE - 1, 1, false, TANDEM_PAYLOAD_MAPPED);
  expect_kind(PROT_READ, MAP_PRIVATE, 128, PAGE, false, TANDEM_PAYLOAD_COPIED);
}

static void a_private_or_writable_mapping_is_copied(void **state) {
  (void)state;
  expect_kind(PROT_READ, MAP_PRIVATE, 0, SIZE, false, TANDEM_PAYLOAD_COPIED);
  expect_kind(PROT_READ | PROT_WRITE, MAP_PRIVATE, 0, SIZE, false, TANDEM_PAYLOAD_COPIED);
  expect_kind(PROT_READ | PROT_WRITE, MAP_SHARED, 0, SIZE, false, TANDEM_PAYLOAD_COPIED);
}

static void copying_can_be_asked_for(void **state) {
  (void)state;
  expect_kind(PROT_READ, MAP_SHARED, 5, SIZE - 10, true, TANDEM_PAYLOAD_COPIED);
}

static void heap_and_anonymous_memory_are_copied(void **state) {
  (void)state;
  struct td_bytes bytes;
  unsigned char *heap = malloc(SIZE);
  assert_non_null(heap);
  memcpy(heap, pattern, SIZE);
  assert_int_equal(td_bytes_keep(heap, SIZE, false, &bytes, NULL), TANDEM_OK);
  memset(heap, 0, SIZE);
  assert_int_equal(bytes.kind, TANDEM_PAYLOAD_COPIED);
  assert_memory_equal(bytes.data, pattern, SIZE);
  assert_int_equal(((uintptr_t)bytes.data - (uintptr_t)heap) % PAGE_MIN, 0);
  td_bytes_release(&bytes);
  free(heap);

  unsigned char *shared = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(shared, MAP_FAILED);
  memcpy(shared, pattern, SIZE);
  assert_int_equal(mprotect(shared, SIZE, PROT_READ), 0);
  assert_int_equal(td_bytes_keep(shared, SIZE, false, &bytes, NULL), TANDEM_OK);
  munmap(shared, SIZE);
  expect_kept(&bytes, TANDEM_PAYLOAD_COPIED, 0, SIZE);
  td_bytes_release(&bytes);
}

static void bytes_in_two_mappings_are_copied(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(mprotect(file.map + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  expect_kept(&bytes, TANDEM_PAYLOAD_COPIED, 0, SIZE);
  td_bytes_release(&bytes);
  assert_int_equal(td_bytes_keep(file.map + 2 * PAGE + 5, PAGE, false, &bytes, NULL), TANDEM_OK);
  expect_kept(&bytes, TANDEM_PAYLOAD_COPIED, 2 * PAGE + 5, PAGE);
  td_bytes_release(&bytes);
  assert_int_equal(td_bytes_keep(file.map, 3 * PAGE, false, &bytes, NULL), TANDEM_OK);
  expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 0, 3 * PAGE);
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void a_mapping_that_the_kernel_split_is_mapped_again(void **state) {
  (void)state;
  for (int text = 0; text < 2; text++) {
    struct td_bytes bytes;
    struct file file = map_file(PROT_READ, MAP_SHARED);
    /* Splits it as mlock of a part does, which may not be permitted here. */
    assert_int_equal(madvise(file.map + 3 * PAGE, PAGE, MADV_RANDOM), 0);
    no_ioctl = text;
    assert_int_equal(td_bytes_keep(file.map + 128, SIZE - 256, false, &bytes, NULL), TANDEM_OK);
    no_ioctl = false;
    unmap_file(&file);
    expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 128, SIZE - 256);
    td_bytes_release(&bytes);
  }
}

static void neighbours_that_do_not_follow_in_the_file_are_copied(void **state) {
  (void)state;
  for (int text = 0; text < 2; text++) {
    struct td_bytes bytes;
    struct file file = map_file(PROT_READ, MAP_SHARED);
    /* The second page of the file once more, where the fourth was. */
    assert_ptr_equal(mmap(file.map + 3 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, file.fd, PAGE),
                     file.map + 3 * PAGE);
    no_ioctl = text;
    assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
    no_ioctl = false;
    assert_int_equal(bytes.kind, TANDEM_PAYLOAD_COPIED);
    assert_memory_equal(bytes.data, file.map, SIZE);
    td_bytes_release(&bytes);
    unmap_file(&file);
  }
}

static void no_bytes_are_kept_as_none(void **state) {
  (void)state;
  struct td_bytes bytes;
  assert_int_equal(td_bytes_keep(NULL, 0, false, &bytes, NULL), TANDEM_OK);
  assert_int_equal(bytes.size, 0);
  assert_non_null(bytes.data);
  td_bytes_release(&bytes);
}

static void a_released_or_zeroed_record_owns_nothing(void **state) {
  (void)state;
  struct td_bytes bytes = {.kind = TANDEM_PAYLOAD_RELEASED};
  int descriptors = count_descriptors();
  assert_false(td_bytes_moved(&bytes));
  td_bytes_release(&bytes);
  assert_int_equal(count_descriptors(), descriptors);
}

static void sizes_that_cannot_be_are_refused(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct tandem_error error;
  assert_int_equal(td_bytes_keep(pattern, SIZE_MAX, false, &bytes, &error), TANDEM_OUT_OF_MEMORY);
  assert_int_equal(error.code, TANDEM_OUT_OF_MEMORY);
  uintptr_t last_page = UINTPTR_MAX - 100;
  assert_int_equal(td_bytes_keep((const void *)last_page, SIZE_MAX - 100, false, &bytes, &error),
                   TANDEM_OUT_OF_MEMORY);
}

static void without_memory_nothing_is_left(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct tandem_error error;
  uint64_t live = td_memory_live();
  td_memory_fail_at(1);
  assert_int_equal(td_bytes_keep(pattern, SIZE, true, &bytes, &error), TANDEM_OUT_OF_MEMORY);
  td_memory_fail_at(0);
  assert_non_null(strstr(error.message, "393216"));
  assert_int_equal(bytes.kind, TANDEM_PAYLOAD_RELEASED);
  assert_int_equal(td_memory_live(), live);
}

/* ---- how the mapping is found */

static void the_text_of_the_maps_finds_the_same_mapping(void **state) {
  (void)state;
  no_ioctl = true;
  expect_kind(PROT_READ, MAP_SHARED, 100, 2 * PAGE, false, TANDEM_PAYLOAD_MAPPED);
  expect_kind(PROT_READ, MAP_PRIVATE, 100, 2 * PAGE, false, TANDEM_PAYLOAD_COPIED);
  expect_kind(PROT_READ | PROT_WRITE, MAP_SHARED, 100, 2 * PAGE, false, TANDEM_PAYLOAD_COPIED);
  reads_interrupted = 2;
  expect_kind(PROT_READ, MAP_SHARED, 100, 2 * PAGE, false, TANDEM_PAYLOAD_MAPPED);
  for (read_at_most = 7; read_at_most < 4096; read_at_most = read_at_most * 5 + 1)
    expect_kind(PROT_READ, MAP_SHARED, 100, 2 * PAGE, false, TANDEM_PAYLOAD_MAPPED);
  read_at_most = 0;

  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_true(bytes.fd >= 0);
  td_bytes_release(&bytes);
  unmap_file(&file);
  no_ioctl = false;
}

static void both_ways_agree_on_the_descriptor(void **state) {
  (void)state;
  struct td_bytes by_ioctl, by_text;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &by_ioctl, NULL), TANDEM_OK);
  no_ioctl = true;
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &by_text, NULL), TANDEM_OK);
  no_ioctl = false;
  assert_true(by_ioctl.fd >= 0);
  assert_true(by_text.fd >= 0);
  assert_memory_equal(by_ioctl.stamp, by_text.stamp, sizeof(by_text.stamp));
  td_bytes_release(&by_ioctl);
  td_bytes_release(&by_text);
  unmap_file(&file);
}

/* Keeps a file's bytes in nested folders, reached step by step: the kernel shows the whole path. */
static void expect_at_depth(int depth, enum tandem_payload_bytes kind) {
  char name[201], program[121], home[PATH_MAX];
  memset(name, 'd', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  memset(program, 'p', sizeof(program) - 1);
  program[sizeof(program) - 1] = '\0';
  assert_non_null(getcwd(home, sizeof(home)));
  assert_int_equal(chdir(folder), 0);
  for (int i = 0; i < depth; i++) {
    assert_int_equal(mkdir(name, 0700), 0);
    assert_int_equal(chdir(name), 0);
  }
  write_file(program, pattern);
  int fd = open(program, O_RDONLY | O_CLOEXEC);
  unsigned char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
  assert_ptr_not_equal(map, MAP_FAILED);
  struct td_bytes bytes;
  assert_int_equal(td_bytes_keep(map, SIZE, false, &bytes, NULL), TANDEM_OK);
  expect_kept(&bytes, kind, 0, SIZE);
  assert_int_equal(bytes.fd, -1);
  assert_false(td_bytes_moved(&bytes));
  td_bytes_release(&bytes);
  munmap(map, SIZE);
  close(fd);
  assert_int_equal(unlink(program), 0);
  for (int i = 0; i < depth; i++) {
    assert_int_equal(chdir(".."), 0);
    assert_int_equal(rmdir(name), 0);
  }
  assert_int_equal(chdir(home), 0);
}

static void a_path_too_long_to_open_is_done_without(void **state) {
  (void)state;
  expect_at_depth(20, TANDEM_PAYLOAD_MAPPED); /* about 4,170 bytes */
}

static void a_path_longer_than_the_room_for_a_line_means_a_copy(void **state) {
  (void)state;
  expect_at_depth(22, TANDEM_PAYLOAD_COPIED); /* about 4,570 bytes */
}

static void what_cannot_be_found_or_mapped_is_copied(void **state) {
  (void)state;
  no_maps = true;
  expect_kind(PROT_READ, MAP_SHARED, 0, SIZE, false, TANDEM_PAYLOAD_COPIED);
  no_maps = false;
  no_mremap = true;
  expect_kind(PROT_READ, MAP_SHARED, 0, SIZE, false, TANDEM_PAYLOAD_COPIED);
  no_mremap = false;
  no_ioctl = no_read = true;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  no_read = false;
  expect_kept(&bytes, TANDEM_PAYLOAD_COPIED, 0, SIZE);
  td_bytes_release(&bytes);
  read_garbage = true;
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_false(read_garbage);
  expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 0, SIZE);
  td_bytes_release(&bytes);
  unmap_file(&file);
  no_ioctl = false;
}

/* ---- what becomes of the file */

static void unlinking_the_file_changes_nothing(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  unmap_file(&file);
  assert_int_equal(unlink(path), 0);
  assert_false(td_bytes_moved(&bytes));
  expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 0, SIZE);
  td_bytes_release(&bytes);
}

static void replacing_the_file_by_rename_changes_nothing(void **state) {
  (void)state;
  static unsigned char other[SIZE];
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  write_file(other_path, other);
  assert_int_equal(rename(other_path, path), 0);
  assert_false(td_bytes_moved(&bytes));
  expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 0, SIZE);
  /* The path leads to another file by now, the mapping does not. */
  struct td_bytes again;
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &again, NULL), TANDEM_OK);
  assert_int_equal(again.kind, TANDEM_PAYLOAD_MAPPED);
  assert_int_equal(again.fd, -1);
  assert_false(td_bytes_moved(&again));
  td_bytes_release(&again);
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void a_path_that_leads_to_another_file_is_not_trusted(void **state) {
  (void)state;
  struct td_bytes bytes;
  char deleted[80];
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(unlink(path), 0);
  /* The kernel shows a deleted file under this name; here another file has it. */
  snprintf(deleted, sizeof(deleted), "%s (deleted)", path);
  write_file(deleted, pattern);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_int_equal(bytes.kind, TANDEM_PAYLOAD_MAPPED);
  assert_int_equal(bytes.fd, -1);
  td_bytes_release(&bytes);
  unlink(deleted);
  unmap_file(&file);
}

static void a_rewrite_in_place_is_seen(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_false(td_bytes_moved(&bytes));

  /* Times set apart, so that a coarse clock cannot hide the write. */
  struct stat before;
  assert_int_equal(fstat(file.fd, &before), 0);
  struct timespec times[2] = {before.st_atim, {before.st_mtim.tv_sec + 10, 0}};
  assert_int_equal(pwrite(file.fd, "x", 1, 0), 1);
  assert_int_equal(futimens(file.fd, times), 0);
  assert_true(td_bytes_moved(&bytes));

  /* Unlinking afterwards does not excuse it. */
  assert_int_equal(unlink(path), 0);
  assert_true(td_bytes_moved(&bytes));
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void a_rewrite_with_its_time_put_back_is_seen(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  struct stat before, after;
  assert_int_equal(fstat(file.fd, &before), 0);
  struct timespec times[2] = {before.st_atim, before.st_mtim};
  uint64_t deadline = td_now_ns() + UINT64_C(10000000000);
  do { /* until the file system's clock has moved on */
    assert_int_equal(pwrite(file.fd, "x", 1, 0), 1);
    assert_int_equal(futimens(file.fd, times), 0);
    assert_int_equal(fstat(file.fd, &after), 0);
    assert_true(td_now_ns() < deadline);
  } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec && after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
  assert_int_equal(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  assert_true(td_bytes_moved(&bytes));
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void a_changed_size_is_seen(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_int_equal(ftruncate(file.fd, SIZE + 1), 0);
  assert_true(td_bytes_moved(&bytes));
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void rewrite(const struct file *file) {
  struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}}; /* whatever the clock's tick */
  assert_int_equal(pwrite(file->fd, "x", 1, 0), 1);
  assert_int_equal(futimens(file->fd, times), 0);
}

static void a_watched_file_is_seen_to_change_and_its_bytes_are_not_kept(void **state) {
  (void)state;
  static const struct {
    int protection, flags;
    size_t from, size;
  } ways[] = {{PROT_READ, MAP_SHARED, 0, SIZE},
              {PROT_READ, MAP_PRIVATE, 0, SIZE},
              {PROT_READ | PROT_WRITE, MAP_SHARED, 0, SIZE},
              {PROT_READ, MAP_SHARED, PAGE + 77, PAGE}};
  for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
    struct file file = map_file(ways[i].protection, ways[i].flags);
    int descriptors = count_descriptors(), mappings = count_mappings();
    uint64_t live = td_memory_live();
    struct tandem_part part = {file.map + ways[i].from, ways[i].size};
    struct td_watch *watch = td_watch_create(&part, 1);
    assert_non_null(watch);
    assert_int_equal(count_mappings(), mappings);
    assert_int_equal(count_descriptors(), descriptors + 1);
    assert_false(td_watch_moved(watch));
    rewrite(&file);
    assert_true(td_watch_moved(watch));
    td_watch_destroy(watch);
    assert_int_equal(td_memory_live(), live);
    assert_int_equal(count_descriptors(), descriptors);
    unmap_file(&file);
  }
}

static void each_file_of_several_parts_is_watched_once(void **state) {
  (void)state;
  for (int changed = 0; changed < 2; changed++) {
    struct file files[2] = {map_file(PROT_READ, MAP_SHARED)};
    assert_int_equal(rename(path, other_path), 0);
    files[1] = map_file(PROT_READ, MAP_SHARED);
    const struct tandem_part parts[] = {{files[0].map, PAGE},
                                        {files[0].map + PAGE, PAGE},
                                        {pattern, SIZE},
                                        {files[1].map, SIZE},
                                        {files[0].map, SIZE}};
    int descriptors = count_descriptors();
    struct td_watch *watch = td_watch_create(parts, 5);
    assert_non_null(watch);
    assert_int_equal(count_descriptors(), descriptors + 2);
    assert_false(td_watch_moved(watch));
    rewrite(&files[changed]);
    assert_true(td_watch_moved(watch));
    td_watch_destroy(watch);
    assert_int_equal(count_descriptors(), descriptors);
    unmap_file(&files[0]);
    unmap_file(&files[1]);
    assert_int_equal(unlink(other_path), 0);
  }
}

static void memory_that_is_no_file_cannot_change(void **state) {
  (void)state;
  unsigned char *heap = malloc(SIZE);
  void *anonymous = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_non_null(heap);
  assert_ptr_not_equal(anonymous, MAP_FAILED);
  int descriptors = count_descriptors();
  const struct tandem_part parts[] = {{heap, SIZE}, {anonymous, SIZE}, {NULL, 0}};
  struct td_watch *watch = td_watch_create(parts, 3);
  assert_non_null(watch);
  assert_int_equal(count_descriptors(), descriptors);
  assert_false(td_watch_moved(watch));
  td_watch_destroy(watch);
  assert_false(td_watch_moved(NULL));
  munmap(anonymous, SIZE);
  free(heap);
}

static void a_file_whose_stat_data_fails_counts_as_changed(void **state) {
  (void)state;
  struct td_bytes bytes, blind;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  no_fstat = true;
  assert_true(td_bytes_moved(&bytes));
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &blind, NULL), TANDEM_OK);
  no_fstat = false;
  assert_int_equal(blind.kind, TANDEM_PAYLOAD_MAPPED);
  assert_int_equal(blind.fd, -1);
  td_bytes_release(&blind);
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static void a_memfd_is_mapped_without_a_descriptor(void **state) {
  (void)state;
  for (int way = 0; way < 2; way++) {
    no_ioctl = way == 1;
    int fd = memfd_create("program", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, pattern, SIZE), SIZE);
    unsigned char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    struct td_bytes bytes;
    assert_int_equal(td_bytes_keep(map, SIZE, false, &bytes, NULL), TANDEM_OK);
    munmap(map, SIZE);
    close(fd);
    expect_kept(&bytes, TANDEM_PAYLOAD_MAPPED, 0, SIZE);
    assert_int_equal(bytes.fd, -1);
    assert_false(td_bytes_moved(&bytes));
    td_bytes_release(&bytes);
  }
  no_ioctl = false;
}

/* 1 when the mapping at `address` is locked, 0 when not, -1 when there is none. */
static int is_locked(const void *address) {
  char line[8192];
  unsigned long start, end;
  int locked = -1;
  bool inside = false;
  FILE *maps = fopen("/proc/self/smaps", "r");
  assert_non_null(maps);
  while (fgets(line, sizeof(line), maps)) {
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
      inside = start <= (uintptr_t)address && (uintptr_t)address < end;
    if (inside && strncmp(line, "VmFlags:", strlen("VmFlags:")) == 0)
      locked = strstr(line, " lo") != NULL;
  }
  fclose(maps);
  return locked;
}

static void the_host_s_mlock_is_not_inherited(void **state) {
  (void)state;
  struct td_bytes bytes;
  struct file file = map_file(PROT_READ, MAP_SHARED);
  /* Not permitted, or a sanitizer's mlock that does nothing. */
  if (mlock(file.map, SIZE) != 0 || is_locked(file.map) != 1) {
    unmap_file(&file);
    skip();
  }
  assert_int_equal(td_bytes_keep(file.map, SIZE, false, &bytes, NULL), TANDEM_OK);
  assert_int_equal(bytes.kind, TANDEM_PAYLOAD_MAPPED);
  assert_int_equal(is_locked(bytes.data), 0);
  td_bytes_release(&bytes);
  unmap_file(&file);
}

static int make_folder(void **state) {
  (void)state;
  strcpy(folder + strlen(folder) - 6, "XXXXXX");
  for (int i = 0; i < SIZE; i++)
    pattern[i] = (unsigned char)(i * 7 + i / 251);
  if (!mkdtemp(folder))
    return 1;
  snprintf(path, sizeof(path), "%s/program.pte", folder);
  snprintf(other_path, sizeof(other_path), "%s/next.pte", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  unlink(path);
  unlink(other_path);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_private_or_writable_mapping_is_copied),
      cmocka_unit_test(copying_can_be_asked_for),
      cmocka_unit_test(heap_and_anonymous_memory_are_copied),
      cmocka_unit_test(neighbours_that_do_not_follow_in_the_file_are_copied),
      cmocka_unit_test(no_bytes_are_kept_as_none),
      cmocka_unit_test(a_released_or_zeroed_record_owns_nothing),
      cmocka_unit_test(sizes_that_cannot_be_are_refused),
      cmocka_unit_test(without_memory_nothing_is_left),
      cmocka_unit_test(a_path_longer_than_the_room_for_a_line_means_a_copy),
      cmocka_unit_test(a_watched_file_is_seen_to_change_and_its_bytes_are_not_kept),
      cmocka_unit_test(each_file_of_several_parts_is_watched_once),
      cmocka_unit_test(memory_that_is_no_file_cannot_change),
  };
  const struct CMUnitTest mapping[] = {
      cmocka_unit_test(a_shared_file_mapping_is_mapped_again),
      cmocka_unit_test(bytes_inside_a_page_keep_their_place_in_it),
      cmocka_unit_test(bytes_in_two_mappings_are_copied),
      cmocka_unit_test(a_mapping_that_the_kernel_split_is_mapped_again),
      cmocka_unit_test(the_text_of_the_maps_finds_the_same_mapping),
      cmocka_unit_test(both_ways_agree_on_the_descriptor),
      cmocka_unit_test(a_path_too_long_to_open_is_done_without),
      cmocka_unit_test(what_cannot_be_found_or_mapped_is_copied),
      cmocka_unit_test(unlinking_the_file_changes_nothing),
      cmocka_unit_test(replacing_the_file_by_rename_changes_nothing),
      cmocka_unit_test(a_path_that_leads_to_another_file_is_not_trusted),
      cmocka_unit_test(a_rewrite_in_place_is_seen),
      cmocka_unit_test(a_rewrite_with_its_time_put_back_is_seen),
      cmocka_unit_test(a_changed_size_is_seen),
      cmocka_unit_test(a_file_whose_stat_data_fails_counts_as_changed),
      cmocka_unit_test(a_memfd_is_mapped_without_a_descriptor),
      cmocka_unit_test(the_host_s_mlock_is_not_inherited),
  };
  int failed = cmocka_run_group_tests(tests, make_folder, remove_folder);
  if (scene_maps_twice())
    failed += cmocka_run_group_tests(mapping, make_folder, remove_folder);
  else
    print_message("SKIPPED: %zu tests: the system gives no second mapping of the same pages\n",
                  sizeof(mapping) / sizeof(mapping[0]));
  return failed ? 1 : 0;
}
