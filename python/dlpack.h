/* Device memory that tandem hands to other libraries, by DLPack.
 *
 * The memory belongs to a count: the array in Python holds it, and so does each tensor that was exported. The
 * last of them frees it, on whatever thread and without Python, for a library may drop its tensor when the
 * interpreter has ended. Included by the module that native.py writes, after the structs of DLPack.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The driver's functions come from Python, which opened it. Statuses are not looked at: at exit the driver
 * may be gone, and the memory with it. */
struct dl_memory {
  atomic_long users;
  uint64_t address;
  void *context;
  int (*context_push)(void *);
  int (*context_pop)(void **);
  int (*exchange_capture_mode)(int *);
  int (*memory_free)(uint64_t);
};

struct dl_export {
  struct dl_managed managed;
  struct dl_memory *memory; /* shared */
  int64_t shape[TANDEM_MAX_RANK];
};

static struct dl_memory *tandem_dlpack_hold(uint64_t address, void *context, void *push, void *pop,
                                            void *exchange_capture_mode, void *memory_free) {
  struct dl_memory *memory = malloc(sizeof *memory);
  if (memory == NULL)
    return NULL;
  atomic_init(&memory->users, 1);
  memory->address = address;
  memory->context = context;
  memcpy(&memory->context_push, &push, sizeof push);
  memcpy(&memory->context_pop, &pop, sizeof pop);
  memcpy(&memory->exchange_capture_mode, &exchange_capture_mode, sizeof exchange_capture_mode);
  memcpy(&memory->memory_free, &memory_free, sizeof memory_free);
  return memory;
}

/* A free on a thread that records a graph breaks the recording unless its mode is relaxed (2). */
static void tandem_dlpack_drop(struct dl_memory *memory) {
  if (atomic_fetch_sub(&memory->users, 1) != 1)
    return;
  int mode = 2;
  if (memory->context_push(memory->context) == 0) {
    memory->exchange_capture_mode(&mode);
    memory->memory_free(memory->address);
    memory->exchange_capture_mode(&mode);
    memory->context_pop(&memory->context);
  }
  free(memory);
}

static void delete_export(struct dl_managed *managed) {
  struct dl_export *self = managed->context;
  tandem_dlpack_drop(self->memory);
  free(self);
}

/* Owned: its deleter frees it. NULL: no memory. */
static struct dl_managed *tandem_dlpack_export(struct dl_memory *memory, int32_t device_id, uint8_t code,
                                               uint8_t bits, int32_t rank, const int64_t *shape) {
  struct dl_export *self = calloc(1, sizeof *self);
  if (self == NULL || rank > TANDEM_MAX_RANK) {
    free(self);
    return NULL;
  }
  atomic_fetch_add(&memory->users, 1);
  self->memory = memory;
  for (int32_t d = 0; d < rank; d++)
    self->shape[d] = shape[d];
  self->managed.tensor.data = (void *)(uintptr_t)memory->address;
  self->managed.tensor.device_type = 2; /* kDLCUDA */
  self->managed.tensor.device_id = device_id;
  self->managed.tensor.rank = rank;
  self->managed.tensor.code = code;
  self->managed.tensor.bits = bits;
  self->managed.tensor.lanes = 1;
  self->managed.tensor.shape = self->shape;
  self->managed.context = self;
  self->managed.deleter = delete_export;
  return &self->managed;
}

/* A capsule keeps the pointer. */
static const char *tandem_dlpack_name(void) {
  return "dltensor";
}

/* A capsule that nobody took still owns its tensor. */
static void end_capsule(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor"))
    return;
  struct dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
  if (managed != NULL)
    managed->deleter(managed);
}

/* For PyCapsule_New. */
static void *tandem_dlpack_destructor(void) {
  void (*destructor)(PyObject *) = end_capsule;
  void *address;
  memcpy(&address, &destructor, sizeof address);
  return address;
}
