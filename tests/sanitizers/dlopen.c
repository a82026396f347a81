/* For the tests under a sanitizer only: opens libraries without RTLD_DEEPBIND.
 *
 * OpenVINO's TBB opens libtbbbind with that flag, which would bind its allocations past the sanitizer's, so
 * the sanitizers end the program. A program's own dlopen comes before theirs; this one clears the flag and
 * calls on.
 */
#include <dlfcn.h>

__attribute__((visibility("default"))) void *dlopen(const char *name, int flags) {
  void *(*next)(const char *, int);
  *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
  return next(name, flags & ~RTLD_DEEPBIND);
}
