/* Stand-in libcuda, TESTS ONLY: memory.
 *
 * A device address is never given twice until its whole range was used, so a stale pointer is always found
 * out. The cap counts what the driver would: sizes rounded up to 512 bytes. A freed block that an operation
 * still uses is poisoned at once and its memory given back when that operation ends.
 */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

enum { GRANULE = 512, GAP = 4096 };
static const unsigned char poison_freed = 0xdd, poison_fresh = 0xcd;

static size_t find_place_locked(uint64_t address) {
  size_t low = 0, high = state.block_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (state.blocks[middle]->address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low; /* of the first block behind `address` */
}

struct block *find_block_locked(uint64_t address) {
  size_t place = find_place_locked(address);
  if (place == 0)
    return NULL;
  struct block *block = state.blocks[place - 1];
  return address - block->address < block->size || address == block->address ? block : NULL;
}

static bool insert_locked(struct block *block) {
  if (state.block_count == state.block_capacity) {
    size_t capacity = state.block_capacity ? 2 * state.block_capacity : 64;
    struct block **blocks = realloc(state.blocks, capacity * sizeof *blocks);
    if (!blocks)
      return false;
    state.blocks = blocks;
    state.block_capacity = capacity;
  }
  size_t place = find_place_locked(block->address);
  memmove(state.blocks + place + 1, state.blocks + place, (state.block_count - place) * sizeof *state.blocks);
  state.blocks[place] = block;
  state.block_count++;
  return true;
}

static uint64_t charged(const struct block *block) {
  uint64_t size = block->kind == BLOCK_DEVICE || block->kind == BLOCK_MANAGED ? block->size : 0;
  return (size + GRANULE - 1) / GRANULE * GRANULE;
}

/* A free piece of the device's addresses, never one that was used lately. */
static uint64_t take_address_locked(struct device *device, size_t size) {
  uint64_t needed = (size + GAP + GAP - 1) / GAP * GAP;
  if (needed > device->range_size)
    return 0;
  for (int round = 0; round < 2; round++) {
    while (device->range_next + needed <= device->range_size) {
      uint64_t address = device->range + device->range_next;
      size_t place = find_place_locked(address + needed - 1);
      const struct block *before = place ? state.blocks[place - 1] : NULL;
      bool taken = before && before->address + before->size > address;
      if (!taken) {
        device->range_next += needed;
        return address;
      }
      device->range_next = (before->address + before->size - device->range + GAP - 1) / GAP * GAP;
    }
    device->range_next = 0;
  }
  return 0;
}

static void free_block(struct block *block) {
  if (block->kind != BLOCK_REGISTERED)
    free(block->data);
  free(block);
}

int allocate_locked(struct context *context, size_t size, enum block_kind kind, uint64_t *address) {
  struct device *device = &state.devices[context->device];
  if (size == 0)
    return CU_INVALID_VALUE;
  struct block *block = calloc(1, sizeof *block);
  if (!block)
    return CU_OUT_OF_MEMORY;
  block->size = size;
  block->kind = kind;
  block->device = context->device;
  block->context = context;
  block->context_id = context->id;
  block->id = ++state.last_id;
  uint64_t charge = charged(block);
  bool fits = charge <= device->memory_size && device->memory_used <= device->memory_size - charge;
  if (fits && size < ((size_t)1 << 40))
    block->data = aligned_alloc(512, (size + 511) / 512 * 512);
  if (block->data) {
    memset(block->data, poison_fresh, size);
    block->address =
        kind == BLOCK_DEVICE ? take_address_locked(device, size) : (uint64_t)(uintptr_t)block->data;
  }
  if (!block->data || !block->address || !insert_locked(block)) {
    free_block(block);
    return CU_OUT_OF_MEMORY;
  }
  device->memory_used += charge;
  if (device->memory_used > device->memory_peak)
    device->memory_peak = device->memory_used;
  *address = block->address;
  return CU_OK;
}

void unpin_locked(struct block *block) {
  if (block && --block->pins == 0 && block->freed)
    free_block(block);
}

void drop_block_locked(struct block *block) {
  size_t place = find_place_locked(block->address) - 1;
  memmove(state.blocks + place, state.blocks + place + 1,
          (state.block_count - place - 1) * sizeof *state.blocks);
  state.block_count--;
  state.devices[block->device].memory_used -= charged(block);
  block->freed = true;
  if (block->pins)
    return; /* an operation reads it now: poisoning would be a race of ours */
  if (block->kind != BLOCK_REGISTERED)
    memset(block->data, poison_freed, block->size);
  free_block(block);
}

static bool is_device_address(uint64_t address) {
  for (int i = 0; i < state.device_count; i++)
    if (address - state.devices[i].range < state.devices[i].range_size)
      return true;
  return false;
}

bool is_pageable_locked(uint64_t address) {
  return !is_device_address(address) && !find_block_locked(address);
}

void *reach_locked(struct context *context, uint64_t address, uint64_t size, bool kernel, const char *who,
                   struct block **pinned) {
  struct block *block = find_block_locked(address);
  const struct device *device = &state.devices[context->device];
  *pinned = NULL;
  if (block) {
    if (size > block->size - (address - block->address)) {
      violate_locked(context, CU_ILLEGAL_ADDRESS,
                     "%s: %llu bytes at %#llx reach past the end of a block of %zu bytes at %#llx", who,
                     (unsigned long long)size, (unsigned long long)address, block->size,
                     (unsigned long long)block->address);
      return NULL;
    }
    bool other = block->kind == BLOCK_DEVICE && block->device != context->device;
    if (other && kernel && !(context->peers >> block->device & 1)) {
      violate_locked(context, CU_ILLEGAL_ADDRESS, "%s: memory of device %d used by a kernel on device %d",
                     who, block->device, context->device);
      return NULL;
    }
    block->pins++;
    *pinned = block;
    return block->data + (address - block->address);
  }
  if (is_device_address(address)) {
    violate_locked(context, CU_ILLEGAL_ADDRESS,
                   "%s: %llu bytes at %#llx: no memory there (freed, or never was)", who,
                   (unsigned long long)size, (unsigned long long)address);
    return NULL;
  }
  if (!address || (kernel && !device->attributes[88])) {
    violate_locked(context, CU_ILLEGAL_ADDRESS,
                   "%s: %llu bytes at %#llx: not memory that device %d can reach", who,
                   (unsigned long long)size, (unsigned long long)address, context->device);
    return NULL;
  }
  return (void *)(uintptr_t)address;
}

/* ---------------------------------------------------------------- allocation */

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  ENTER("cuMemGetInfo");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result) {
    const struct device *device = &state.devices[context->device];
    *total_bytes = device->memory_size;
    *free_bytes = device->memory_size > device->memory_used ? device->memory_size - device->memory_used : 0;
  }
  unlock();
  return result;
}

static int allocate_now(enum block_kind kind, size_t size, unsigned flags, uint64_t *address) {
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  if (!result)
    result = allocate_locked(context, size, kind, address);
  if (!result)
    find_block_locked(*address)->flags = flags;
  unlock();
  return result;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
  ENTER("cuMemAlloc");
  return allocate_now(BLOCK_DEVICE, size, 0, address);
}

EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
  ENTER("cuMemAllocManaged");
  return allocate_now(BLOCK_MANAGED, size, flags, address);
}

EXPORT int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  ENTER("cuMemHostAlloc");
  uint64_t address = 0;
  int result = allocate_now(BLOCK_HOST, size, flags, &address);
  if (!result)
    *memory = (void *)(uintptr_t)address;
  return result;
}

EXPORT int cuMemAllocHost_v2(void **memory, size_t size) {
  return cuMemHostAlloc(memory, size, 0);
}

/* Frees wait for the context, as cuMemFree does on a device. */
static int free_now(uint64_t address, bool host) {
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  struct block *block = result ? NULL : find_block_locked(address);
  if (!result) {
    bool fits = block && block->address == address && block->kind != BLOCK_REGISTERED &&
                (block->kind == BLOCK_HOST) == host;
    if (!fits) {
      violate_locked(NULL, 0, "free of %#llx, which is no block to free%s", (unsigned long long)address,
                     block ? "" : " (freed twice?)");
      result = CU_INVALID_VALUE;
    }
  }
  if (!result) {
    drain_context_locked(block->context);
    block = find_block_locked(address); /* another thread may have freed it meanwhile */
    if (block && block->address == address)
      drop_block_locked(block);
  }
  unlock();
  return result;
}

EXPORT int cuMemFree_v2(uint64_t address) {
  ENTER("cuMemFree");
  return address ? free_now(address, false) : CU_OK;
}

EXPORT int cuMemFreeHost(void *memory) {
  ENTER("cuMemFreeHost");
  return memory ? free_now((uint64_t)(uintptr_t)memory, true) : CU_OK;
}

EXPORT int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
  ENTER("cuMemHostRegister");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  uint64_t address = (uint64_t)(uintptr_t)memory;
  if (!result && (!memory || size == 0 || is_device_address(address)))
    result = CU_INVALID_VALUE;
  if (!result) {
    size_t place = find_place_locked(address + size - 1);
    const struct block *before = place ? state.blocks[place - 1] : NULL;
    if (before && before->address + before->size > address)
      result = CU_HOST_MEMORY_ALREADY_REGISTERED;
  }
  struct block *block = result ? NULL : calloc(1, sizeof *block);
  if (block) {
    *block = (struct block){.address = address,
                            .id = ++state.last_id,
                            .size = size,
                            .data = memory,
                            .kind = BLOCK_REGISTERED,
                            .device = context->device,
                            .context = context,
                            .context_id = context->id,
                            .flags = flags};
    if (!insert_locked(block)) {
      free(block);
      result = CU_OUT_OF_MEMORY;
    }
  }
  unlock();
  return result;
}

EXPORT int cuMemHostUnregister(void *memory) {
  ENTER("cuMemHostUnregister");
  lock();
  struct context *context;
  int result = current_locked(&context);
  if (!result)
    result = unsafe_call_locked();
  if (!result) {
    struct block *block = find_block_locked((uint64_t)(uintptr_t)memory);
    if (block && block->kind == BLOCK_REGISTERED && block->data == memory) {
      drain_context_locked(block->context);
      drop_block_locked(block);
    } else {
      result = CU_HOST_MEMORY_NOT_REGISTERED;
    }
  }
  unlock();
  return result;
}

EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags) {
  (void)flags;
  ENTER("cuMemHostGetDevicePointer");
  lock();
  struct block *block = find_block_locked((uint64_t)(uintptr_t)memory);
  int result = block && block->kind != BLOCK_DEVICE ? CU_OK : CU_INVALID_VALUE;
  unlock();
  *address = (uint64_t)(uintptr_t)memory;
  return result;
}

EXPORT int cuMemHostGetFlags(unsigned *flags, void *memory) {
  ENTER("cuMemHostGetFlags");
  lock();
  struct block *block = find_block_locked((uint64_t)(uintptr_t)memory);
  if (block)
    *flags = block->flags;
  unlock();
  return block ? CU_OK : CU_INVALID_VALUE;
}

EXPORT int cuMemAllocAsync(uint64_t *address, size_t size, void *handle) {
  ENTER("cuMemAllocAsync");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && stream->capture) {
    /* The driver would make a node of it; a graph that owns memory is more than is stood in for. */
    break_capture_locked(stream->capture);
    result = CU_NOT_SUPPORTED;
  }
  if (!result)
    result = allocate_locked(stream->context, size, BLOCK_DEVICE, address);
  unlock();
  return result;
}

EXPORT int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, void *pool, void *handle) {
  (void)pool;
  return cuMemAllocAsync(address, size, handle);
}

EXPORT int cuMemFreeAsync(uint64_t address, void *handle) {
  ENTER("cuMemFreeAsync");
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result) {
    struct block *block = find_block_locked(address);
    if (!block || block->address != address || block->kind != BLOCK_DEVICE) {
      violate_locked(NULL, 0, "cuMemFreeAsync of %#llx, which is no block to free",
                     (unsigned long long)address);
      result = CU_INVALID_VALUE;
    }
  }
  if (!result)
    result = submit_locked(stream, &(struct op){.kind = OP_FREE, .from = address});
  unlock();
  return result;
}

/* Pools: one a device, which holds nothing back. */
EXPORT int cuDeviceGetDefaultMemPool(void **pool, int device) {
  ENTER("cuDeviceGetDefaultMemPool");
  if (device < 0 || device >= state.device_count)
    return CU_INVALID_DEVICE;
  *pool = &state.devices[device].pool_threshold;
  return CU_OK;
}

EXPORT int cuDeviceGetMemPool(void **pool, int device) {
  return cuDeviceGetDefaultMemPool(pool, device);
}

EXPORT int cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
  ENTER("cuMemPoolSetAttribute");
  lock();
  if (attribute == 4)
    memcpy(pool, value, sizeof(uint64_t));
  unlock();
  return CU_OK;
}

EXPORT int cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
  ENTER("cuMemPoolGetAttribute");
  lock();
  memset(value, 0, sizeof(uint64_t));
  if (attribute == 4)
    memcpy(value, pool, sizeof(uint64_t));
  unlock();
  return CU_OK;
}

EXPORT int cuMemPoolTrimTo(void *pool, size_t keep) {
  (void)pool;
  (void)keep;
  ENTER("cuMemPoolTrimTo");
  return CU_OK;
}

/* ---------------------------------------------------------------- what a pointer is */

enum {
  ATTRIBUTE_CONTEXT = 1,
  ATTRIBUTE_MEMORY_TYPE = 2,
  ATTRIBUTE_DEVICE_POINTER = 3,
  ATTRIBUTE_HOST_POINTER = 4,
  ATTRIBUTE_BUFFER_ID = 7,
  ATTRIBUTE_IS_MANAGED = 8,
  ATTRIBUTE_DEVICE_ORDINAL = 9,
  ATTRIBUTE_RANGE_START = 11,
  ATTRIBUTE_RANGE_SIZE = 12,
  ATTRIBUTE_MAPPED = 13,
};

static int write_attribute(const struct block *block, uint64_t address, int attribute, void *value) {
  struct context *current = NULL;
  bool on_device = block->kind == BLOCK_DEVICE || block->kind == BLOCK_MANAGED;
  uint64_t wide = 0;
  size_t size = sizeof(uint64_t);
  switch (attribute) {
  case ATTRIBUTE_CONTEXT:
    wide = (uint64_t)(uintptr_t)block->context;
    break;
  case ATTRIBUTE_MEMORY_TYPE:
    wide = on_device ? 2 : 1;
    size = sizeof(uint32_t);
    break;
  case ATTRIBUTE_DEVICE_POINTER:
    /* Memory of another device has an address here only while it is mapped for this one (seen on two H200).
     */
    if (block->kind == BLOCK_DEVICE && current_locked(&current) == CU_OK &&
        block->device != current->device && !(current->peers >> block->device & 1))
      return CU_INVALID_VALUE;
    wide = address;
    break;
  case ATTRIBUTE_HOST_POINTER:
    if (block->kind == BLOCK_DEVICE)
      return CU_INVALID_VALUE;
    wide = address;
    break;
  case ATTRIBUTE_BUFFER_ID:
    wide = block->id;
    break;
  case ATTRIBUTE_IS_MANAGED:
    wide = block->kind == BLOCK_MANAGED;
    size = 1; /* a bool to some clients, an int to others that cleared it */
    break;
  case ATTRIBUTE_DEVICE_ORDINAL:
    wide = (uint64_t)block->device;
    size = sizeof(uint32_t);
    break;
  case ATTRIBUTE_RANGE_START:
    wide = block->address;
    break;
  case ATTRIBUTE_RANGE_SIZE:
    wide = block->size;
    break;
  case ATTRIBUTE_MAPPED:
    wide = 1;
    size = 1;
    break;
  default:
    return CU_INVALID_VALUE;
  }
  memcpy(value, &wide, size); /* little endian */
  return CU_OK;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  ENTER("cuPointerGetAttribute");
  lock();
  struct block *block = find_block_locked(address);
  int result = block && address < block->address + block->size
                   ? write_attribute(block, address, attribute, value)
                   : CU_INVALID_VALUE;
  unlock();
  return result;
}

/* Unknown memory is no error here: every value is zero then, and the device -2. */
EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **values, uint64_t address) {
  ENTER("cuPointerGetAttributes");
  lock();
  struct block *block = find_block_locked(address);
  for (unsigned i = 0; i < count; i++) {
    if (block && write_attribute(block, address, attributes[i], values[i]) == CU_OK)
      continue;
    switch (attributes[i]) {
    case ATTRIBUTE_MEMORY_TYPE:
      memset(values[i], 0, sizeof(uint32_t));
      break;
    case ATTRIBUTE_DEVICE_ORDINAL:
      memcpy(values[i], &(int){-2}, sizeof(int));
      break;
    case ATTRIBUTE_IS_MANAGED:
    case ATTRIBUTE_MAPPED:
      memset(values[i], 0, 1);
      break;
    default:
      memset(values[i], 0, sizeof(uint64_t));
    }
  }
  unlock();
  return CU_OK;
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  ENTER("cuMemGetAddressRange");
  lock();
  struct block *block = find_block_locked(address);
  if (block && base)
    *base = block->address;
  if (block && size)
    *size = block->size;
  unlock();
  return block ? CU_OK : CU_NOT_FOUND;
}

/* ---------------------------------------------------------------- copies and fills */

/* Pageable memory: what is read is read before the call returns, what is written is there when it returns. */
static int copy(uint64_t to, uint64_t from, size_t size, void *handle, bool wait, int direction) {
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && wait)
    result = unsafe_call_locked();
  if (!result && size) {
    bool from_pageable = direction <= 0 && is_pageable_locked(from);
    bool to_pageable = direction >= 0 && is_pageable_locked(to);
    if (stream->capture && (from_pageable || to_pageable)) {
      break_capture_locked(stream->capture);
      result = CU_STREAM_CAPTURE_UNSUPPORTED;
    } else {
      struct op op = {.kind = OP_COPY, .to = to, .from = from, .size = size};
      if (from_pageable && from && !to_pageable && (op.snapshot = malloc(size)))
        memcpy(op.snapshot, (const void *)(uintptr_t)from, size);
      struct context *context = stream->context;
      uint64_t id = stream->context_id;
      result = submit_locked(stream, &op);
      if (!result && (wait || to_pageable)) {
        drain_locked(stream, stream->submitted);
        result = context_status_locked(context, id);
      }
    }
  }
  unlock();
  return result;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  ENTER("cuMemcpyHtoD");
  return copy(to, (uint64_t)(uintptr_t)from, size, CU_LEGACY_STREAM, true, -1);
}

EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  ENTER("cuMemcpyDtoH");
  return copy((uint64_t)(uintptr_t)to, from, size, CU_LEGACY_STREAM, true, 1);
}

EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t size) {
  ENTER("cuMemcpyDtoD");
  return copy(to, from, size, CU_LEGACY_STREAM, true, 0);
}

EXPORT int cuMemcpy(uint64_t to, uint64_t from, size_t size) {
  ENTER("cuMemcpy");
  return copy(to, from, size, CU_LEGACY_STREAM, true, 0);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
  ENTER("cuMemcpyHtoDAsync");
  return copy(to, (uint64_t)(uintptr_t)from, size, stream, false, -1);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
  ENTER("cuMemcpyDtoHAsync");
  return copy((uint64_t)(uintptr_t)to, from, size, stream, false, 1);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
  ENTER("cuMemcpyDtoDAsync");
  return copy(to, from, size, stream, false, 0);
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
  ENTER("cuMemcpyAsync");
  return copy(to, from, size, stream, false, 0);
}

EXPORT int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t size,
                             void *stream) {
  (void)to_context;
  (void)from_context;
  ENTER("cuMemcpyPeerAsync");
  return copy(to, from, size, stream, false, 0);
}

static int set(uint64_t to, unsigned value, unsigned width, size_t count, void *handle, bool wait) {
  lock();
  struct stream *stream;
  int result = find_stream_locked(handle, &stream);
  if (!result && wait)
    result = unsafe_call_locked();
  if (!result && count)
    result = submit_locked(
        stream,
        &(struct op){.kind = OP_SET, .to = to, .size = count * width, .value = value, .width = width});
  if (!result && wait)
    drain_locked(stream, stream->submitted);
  unlock();
  return result;
}

EXPORT int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t count) {
  ENTER("cuMemsetD8");
  return set(to, value, 1, count, CU_LEGACY_STREAM, true);
}

EXPORT int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream) {
  ENTER("cuMemsetD8Async");
  return set(to, value, 1, count, stream, false);
}

EXPORT int cuMemsetD32_v2(uint64_t to, unsigned value, size_t count) {
  ENTER("cuMemsetD32");
  return set(to, value, 4, count, CU_LEGACY_STREAM, true);
}

EXPORT int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void *stream) {
  ENTER("cuMemsetD32Async");
  return set(to, value, 4, count, stream, false);
}
