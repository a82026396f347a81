/* Opens an engine's compiled library from bytes: a private copy in a memfd, bound by address.
 *
 * The library calls tensor functions that it does not name a library for: its exporter leaves them to
 * whatever the process has loaded for everyone. tandem loads nothing for everyone, and beside a torch that
 * Python imported (which is local) such a library would not even open. So the copy's symbol table is edited
 * before it is opened: each such function becomes an absolute address, in the library that was found or,
 * where the vendor wants to see the call, in the vendor; and whatever the copy defines, its entry points
 * apart, becomes hidden, so that it binds to itself. The loader then looks none of these names up: other
 * libraries of the process cannot come between, nothing of this copy is seen by them, and since no name of it
 * is unique in the process (STB_GNU_UNIQUE, from C++ linked in) closing the copy really frees it. glibc 2.28
 * and newer take an absolute symbol as it is.
 *
 * torch's exporter links its constants from an object that does not say whether it needs an executable stack,
 * so the linker marks the library as one that does (seen with torch 2.13). glibc would make the stacks of the
 * process executable for it, and from 2.41 on does not open it. The copy asks for none: no code runs on a
 * stack there.
 *
 * The loader takes a library of a name that is open already for the same one, and numbers of files are used
 * again. So every copy is opened under a path of its own: the way to it has a different pattern of slashes
 * and dots each time, which the kernel skips.
 */
#include "aotinductor.h"

#include <elf.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { MACHINE = EM_AARCH64 };
#else
enum { MACHINE = EM_NONE };
#endif

static const char advice[] = "export the program again on a machine like this one";

/* The copy, while it is edited. Offsets come from the file, so every access is checked and unaligned. */
struct image {
  unsigned char *bytes; /* a mapping of the memfd */
  size_t size;
  void *library; /* that has the functions */
  const struct td_aoti_hook *hooks;
  size_t hook_count;
  size_t missing_count;
  char missing[128]; /* the first function that the library lacks */
};

static bool read_at(const struct image *image, uint64_t offset, void *to, size_t size) {
  if (offset > image->size || size > image->size - offset)
    return false;
  memcpy(to, image->bytes + offset, size);
  return true;
}

static bool begins_with(const char *name, const char *prefix) {
  return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* The address of an undefined function. *bound is false when the loader is to find it. */
static void *find_function(struct image *image, const char *name, bool *bound) {
  *bound = true;
  for (size_t i = 0; i < image->hook_count; i++)
    if (strcmp(image->hooks[i].name, name) == 0)
      return image->hooks[i].address;
  *bound = begins_with(name, "aoti_") || begins_with(name, "torch_") || begins_with(name, "cuda");
  return *bound ? td_aoti_host()->library_symbol(image->library, name) : NULL;
}

/* The symbol as it will stand in the copy. */
static void edit_symbol(struct image *image, const char *name, Elf64_Sym *symbol) {
  if (symbol->st_shndx != SHN_UNDEF) {
    if (!begins_with(name, "AOTInductor"))
      symbol->st_other = STV_HIDDEN;
    return;
  }
  bool bound;
  void *function = find_function(image, name, &bound);
  if (function != NULL) {
    symbol->st_shndx = SHN_ABS;
    symbol->st_value = (Elf64_Addr)(uintptr_t)function;
    symbol->st_other = STV_HIDDEN;
  } else if (bound && ELF64_ST_BIND(symbol->st_info) != STB_WEAK && image->missing_count++ == 0) {
    snprintf(image->missing, sizeof image->missing, "%s", name);
  }
}

/* A header that does not lie in the file is left for the loader to tell. */
static void deny_stack_code(struct image *image, const Elf64_Ehdr *header) {
  Elf64_Phdr segment;
  if (header->e_phentsize != sizeof segment || header->e_phoff > image->size)
    return;
  for (uint64_t i = 0; i < header->e_phnum; i++) {
    uint64_t at = header->e_phoff + i * sizeof segment;
    if (!read_at(image, at, &segment, sizeof segment))
      return;
    if (segment.p_type == PT_GNU_STACK) {
      segment.p_flags &= ~(Elf64_Word)PF_X;
      memcpy(image->bytes + at, &segment, sizeof segment);
    }
  }
}

/* What is wrong with the file, NULL when it was edited. */
static const char *edit(struct image *image) {
  Elf64_Ehdr header;
  Elf64_Shdr table = {0}, names;
  if (!read_at(image, 0, &header, sizeof header) || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_type != ET_DYN)
    return "it is no shared library of a 64-bit little-endian machine";
  if (header.e_machine != MACHINE)
    return "it was compiled for another kind of processor";
  deny_stack_code(image, &header);
  if (header.e_shentsize != sizeof table)
    return "it has no table of sections";
  for (uint64_t i = 0; i < header.e_shnum && table.sh_type != SHT_DYNSYM; i++)
    if (header.e_shoff > image->size ||
        !read_at(image, header.e_shoff + i * sizeof table, &table, sizeof table))
      return "its table of sections does not lie in it";
  if (table.sh_type != SHT_DYNSYM || table.sh_link >= header.e_shnum ||
      !read_at(image, header.e_shoff + table.sh_link * sizeof names, &names, sizeof names))
    return "it has no table of symbols";
  if (table.sh_offset > image->size || table.sh_size > image->size - table.sh_offset ||
      names.sh_offset > image->size || names.sh_size > image->size - names.sh_offset || names.sh_size == 0 ||
      image->bytes[names.sh_offset + names.sh_size - 1] != '\0')
    return "its table of symbols does not lie in it";
  for (uint64_t at = 0; table.sh_size - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol;
    memcpy(&symbol, image->bytes + table.sh_offset + at, sizeof symbol);
    if (symbol.st_name >= names.sh_size)
      return "a symbol's name does not lie in it";
    edit_symbol(image, (const char *)image->bytes + names.sh_offset + symbol.st_name, &symbol);
    memcpy(image->bytes + table.sh_offset + at, &symbol, sizeof symbol);
  }
  return NULL;
}

static int create_file(void) {
#ifdef MFD_EXEC
  int file = memfd_create("tandem-engine", MFD_CLOEXEC | MFD_EXEC);
  if (file >= 0 || errno != EINVAL)
    return file;
#endif
  return memfd_create("tandem-engine", MFD_CLOEXEC);
}

static void write_path(int file, char path[160]) {
  static _Atomic uint64_t count;
  char *at = path + sprintf(path, "/proc/self/fd");
  for (uint64_t number = atomic_fetch_add(&count, 1) + 1; number != 0; number >>= 1)
    at += sprintf(at, number & 1 ? "/." : "/");
  sprintf(at, "/%d", file);
}

static enum tandem_status fail_system(struct tandem_error *error, const char *what, size_t size) {
  return td_aoti_host()->fail(error, errno == ENOMEM ? TANDEM_OUT_OF_MEMORY : TANDEM_INTERNAL,
                              "%s for the %zu bytes of the engine's library: %s", what, size,
                              strerror(errno));
}

enum tandem_status td_aoti_open_image(const void *so, size_t size, void *library,
                                      const struct td_aoti_hook *hooks, size_t hook_count, void **opened,
                                      struct tandem_error *error) {
  const struct tandem_host *host = td_aoti_host();
  struct image image = {
      .bytes = MAP_FAILED, .size = size, .library = library, .hooks = hooks, .hook_count = hook_count};
  enum tandem_status status = TANDEM_OK;
  struct tandem_error reason = {0};
  char path[160];
  *opened = NULL;
  if (size == 0)
    return host->fail(error, TANDEM_BAD_PROGRAM, "the program's library is empty; %s", advice);
  int file = create_file();
  if (file < 0)
    return fail_system(error, "no anonymous file", size);
  if (ftruncate(file, (off_t)size) == 0)
    image.bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (image.bytes == MAP_FAILED) {
    status = fail_system(error, "no memory", size);
    goto done;
  }
  memcpy(image.bytes, so, size);
  const char *wrong = edit(&image);
  if (wrong != NULL) {
    status =
        host->fail(error, TANDEM_UNSUPPORTED, "the program's library cannot be used: %s; %s", wrong, advice);
    goto done;
  }
  if (image.missing_count > 0 && strcmp(image.missing, "aoti_torch_proxy_executor_call_function") == 0) {
    status =
        host->fail(error, TANDEM_UNSUPPORTED,
                   "the program calls operators that are not torch's own, which only Python can run for it: "
                   "export the model without them");
    goto done;
  }
  if (image.missing_count > 0) {
    status =
        host->fail(error, TANDEM_UNSUPPORTED,
                   "the program needs the function %s (one of %zu such), which %s%s%s at %s lacks: use the "
                   "torch that it was exported with, or export it again with this one",
                   image.missing, image.missing_count, td_aoti.torch ? "torch" : "ExecuTorch's shims",
                   td_aoti.version[0] != '\0' ? " " : "", td_aoti.version, td_aoti.path);
    goto done;
  }
  munmap(image.bytes, size); /* a mapping that may be written would be one page cache entry more to account */
  image.bytes = MAP_FAILED;
  write_path(file, path);
  *opened = host->library_open(path, NULL, 0, &reason);
  if (*opened == NULL)
    status = host->fail(error, TANDEM_UNSUPPORTED, "the program's library does not open: %s; %s",
                        reason.message, advice);
done:
  if (image.bytes != MAP_FAILED)
    munmap(image.bytes, size);
  close(file);
  return status;
}
