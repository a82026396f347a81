/* What runs write to: the mutable constants, of which each context has its own copy.
 *
 * The engine's set keeps the initial values: no container that runs ever has the mutable ones of it. So a new
 * context and a reset copy from it, on the device, and need the program no more.
 */
#include "aotinductor.h"

#include <string.h>

/* A size that would wrap has no room: SIZE_MAX, at which the sum of any block overflows. */
size_t td_aoti_room(const struct td_aoti_constant *constant) {
  if (constant->size > SIZE_MAX - TD_AOTI_ALIGNMENT)
    return SIZE_MAX;
  return (constant->size + TD_AOTI_ALIGNMENT - 1) / TD_AOTI_ALIGNMENT * TD_AOTI_ALIGNMENT;
}

enum tandem_status td_aoti_allocate(struct td_aoti_cuda *cuda, size_t size, void **memory,
                                    struct tandem_error *error) {
  if (cuda != NULL)
    return td_aoti_cuda_allocate(cuda, size, memory, error);
  *memory = td_aoti_host()->allocate(size);
  if (*memory == NULL)
    return td_aoti_host()->fail(error, TANDEM_OUT_OF_MEMORY, "no host memory for %zu bytes of constants",
                                size);
  return TANDEM_OK;
}

void td_aoti_free(struct td_aoti_cuda *cuda, void *memory) {
  if (memory == NULL)
    return;
  if (cuda != NULL)
    td_aoti_cuda_free(cuda, memory);
  else
    td_aoti_host()->release(memory);
}

enum tandem_status td_aoti_copy(struct td_aoti_cuda *cuda, void *to, const void *from, size_t size,
                                struct tandem_error *error) {
  if (cuda != NULL && size > 0)
    return td_aoti_cuda_copy(cuda, to, from, size, error);
  if (size > 0)
    memcpy(to, from, size);
  return TANDEM_OK;
}

enum tandem_status td_aoti_state_init(const struct td_aoti_engine *engine, struct td_aoti_state *state,
                                      struct tandem_error *error) {
  size_t size = 0;
  void *memory = NULL;
  for (size_t i = 0; i < engine->constant_count; i++)
    if (engine->constants[i].mutable &&
        __builtin_add_overflow(size, td_aoti_room(&engine->constants[i]), &size))
      return td_aoti_host()->fail(error, TANDEM_OUT_OF_MEMORY,
                                  "the program's buffers have more bytes than there are");
  if (size == 0)
    return TANDEM_OK;
  enum tandem_status status = td_aoti_allocate(engine->cuda, size, &memory, error);
  state->memory = memory;
  return status == TANDEM_OK ? td_aoti_state_clear(engine, state, error) : status;
}

enum tandem_status td_aoti_state_clear(const struct td_aoti_engine *engine, struct td_aoti_state *state,
                                       struct tandem_error *error) {
  enum tandem_status status = TANDEM_OK;
  char *at = state->memory;
  for (size_t i = 0; status == TANDEM_OK && i < engine->constant_count; i++) {
    const struct td_aoti_constant *constant = &engine->constants[i];
    if (!constant->mutable)
      continue;
    status = td_aoti_copy(engine->cuda, at, constant->data, constant->size, error);
    at += td_aoti_room(constant);
  }
  return status;
}

void td_aoti_state_fini(const struct td_aoti_engine *engine, struct td_aoti_state *state) {
  td_aoti_free(engine->cuda, state->memory);
  state->memory = NULL;
}
