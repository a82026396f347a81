/* The GPU code of an engine: each image is loaded once, however many containers run it.
 *
 * A container loads the kernels that it comes by in a run, each from bytes in the engine's library. What
 * torch 2.11 compiled never unloads them: a thousand loads of one engine left 216 MiB on an H200. So the
 * library's calls of the driver come here (image.c). The first asks the driver, later ones get the same
 * module, a container's own unload does nothing, and all go with the engine.
 *
 * Containers can share them because nothing in such a module is written to: kernels get their inputs,
 * workspaces and counters as arguments, which each run allocates, and torch itself launches one module on any
 * number of streams. What a container sets of a function, its shared memory, is the same for all.
 *
 * The lock is held over the driver's loading, which who wants the same image has to wait for anyway; nothing
 * else is taken inside it.
 */
#include "aotinductor.h"

#include "../cuda/cuda.h"

#include <string.h>

struct module {
  struct module *next;
  const void *image; /* in the engine's library; NULL: from the file `path` */
  void *handle;      /* CUmodule of the engine's context; owned */
  char path[];
};

struct td_aoti_modules {
  struct tandem_host_lock lock;
  struct module *first; /* owned; guarded by lock */
};

struct td_aoti_modules *td_aoti_modules_create(void) {
  return td_aoti_host()->allocate(sizeof(struct td_aoti_modules));
}

void td_aoti_modules_destroy(struct td_aoti_modules *modules, bool forget) {
  const struct tandem_host *host = td_aoti_host();
  struct module *next;
  for (struct module *each = modules != NULL ? modules->first : NULL; each != NULL; each = next) {
    next = each->next;
    if (!forget)
      td_cuda.module_unload(each->handle);
    host->release(each);
  }
  host->release(modules);
}

static bool is_of(const struct module *module, const void *image, const char *path) {
  return module->image == image && strcmp(module->path, path) == 0;
}

/* From `image`, or where that is NULL from the file `path`. The driver's code. */
static int32_t load(void **handle, const void *image, const char *path) {
  const struct tandem_host *host = td_aoti_host();
  struct td_aoti_modules *modules = td_aoti_watched_modules();
  const char *name = path != NULL ? path : "";
  size_t size = strlen(name) + 1;
  int32_t code = TD_CUDA_OK;
  if (modules == NULL)
    return image != NULL ? td_cuda.module_load_data(handle, image) : td_cuda.module_load(handle, path);
  host->lock_alone(&modules->lock);
  struct module *found = modules->first;
  while (found != NULL && !is_of(found, image, name))
    found = found->next;
  if (found == NULL) {
    struct module *made = host->allocate(sizeof *made + size);
    code = made == NULL    ? TD_CUDA_OUT_OF_MEMORY
           : image != NULL ? td_cuda.module_load_data(&made->handle, image)
                           : td_cuda.module_load(&made->handle, path);
    if (code == TD_CUDA_OK) {
      made->image = image;
      memcpy(made->path, name, size);
      made->next = modules->first;
      modules->first = found = made;
    } else {
      host->release(made);
    }
  }
  if (found != NULL)
    *handle = found->handle;
  host->unlock(&modules->lock);
  return code;
}

static int32_t load_data(void **handle, const void *image) {
  return load(handle, image, NULL);
}

static int32_t load_file(void **handle, const char *path) {
  return load(handle, NULL, path);
}

static int32_t unload(void *handle) {
  struct td_aoti_modules *modules = td_aoti_watched_modules();
  bool kept = false;
  if (modules != NULL) {
    td_aoti_host()->lock_alone(&modules->lock);
    for (struct module *each = modules->first; each != NULL && !kept; each = each->next)
      kept = each->handle == handle;
    td_aoti_host()->unlock(&modules->lock);
  }
  return kept ? TD_CUDA_OK : td_cuda.module_unload(handle);
}

void td_aoti_module_hooks(struct td_aoti_hook hooks[TD_AOTI_MODULE_HOOKS]) {
  union {
    int32_t (*data)(void **, const void *);
    int32_t (*file)(void **, const char *);
    int32_t (*unload)(void *);
    void *address; /* POSIX gives functions and data pointers one representation */
  } of_data = {.data = load_data}, of_file = {.file = load_file}, of_unload = {.unload = unload};
  hooks[0] = (struct td_aoti_hook){"cuModuleLoadData", of_data.address};
  hooks[1] = (struct td_aoti_hook){"cuModuleLoad", of_file.address};
  hooks[2] = (struct td_aoti_hook){"cuModuleUnload", of_unload.address};
}
