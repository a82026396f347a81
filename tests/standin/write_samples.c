/* Writes every sample plan as NAME.plan and a payload around it as NAME.payload: standin_plan FOLDER. TESTS
 * ONLY. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>

static int write_file(const char *folder, const char *name, const char *ending, const void *bytes,
                      size_t size) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s.%s", folder, name, ending);
  FILE *file = bytes ? fopen(path, "wb") : NULL;
  size_t written = file ? fwrite(bytes, 1, size, file) : 0;
  int closed = file ? fclose(file) : -1;
  if (closed || written != size)
    fprintf(stderr, "standin_plan: cannot write %s\n", path);
  return closed || written != size;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "standin_plan: expected a folder\n");
    return 1;
  }
  int failed = 0;
  const char *name;
  for (size_t i = 0; (name = standin_sample_name(i)) != NULL; i++) {
    size_t size, payload_size;
    void *plan = standin_sample_bytes(name, &size);
    void *payload =
        standin_payload_bytes(&(struct standin_payload){.plan = plan, .plan_size = size}, &payload_size);
    failed |= write_file(argv[1], name, "plan", plan, size);
    failed |= write_file(argv[1], name, "payload", payload, payload_size);
    free(payload);
    free(plan);
  }
  return failed;
}
