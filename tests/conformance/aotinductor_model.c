/* Runs the reference libraries as their own interface says: a container with weights of its own for each
 * question, so that state is fresh. The interface is declared here and not taken from the vendor, which is
 * what is under test. torch is opened for nobody but the libraries, which name it as a dependency.
 */
#include "aotinductor_model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SCRIPT TD_TESTS "/aotinductor/make_models.py"

static char folder[1024];
static struct {
  int32_t (*from_blob)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t,
                       void **);
  int32_t (*delete_tensor)(void *);
  int32_t (*data)(void *, void **);
} torch;
struct calls {
  int32_t (*create)(void **, size_t, const char *, const char *);
  int32_t (*destroy)(void *);
  int32_t (*load)(void *, const uint8_t *);
  int32_t (*run)(void *, void **, size_t, void **, size_t, void *, void *);
};
enum { FLOAT32 = 6, CPU = 0 };

static bool find(void *library, const char *name, void *place) {
  void *address = dlsym(library, name);
  if (address == NULL)
    fprintf(stderr, "aotinductor: no %s: %s\n", name, dlerror());
  memcpy(place, &address, sizeof address);
  return address != NULL;
}

int aotinductor_skip_status(void) {
  const char *required = getenv("TANDEM_REQUIRE_AOTINDUCTOR");
  return required != NULL && strcmp(required, "1") == 0 ? 1 : 77;
}

const char *aotinductor_path(const char *name) {
  static char path[2048];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static bool make_models(void) {
  const char *ready = getenv("TANDEM_AOTINDUCTOR_MODELS"), *python = getenv("TANDEM_TEST_PYTHON");
  char command[2048];
  if (ready != NULL && *ready != '\0') {
    snprintf(folder, sizeof folder, "%s", ready);
    return true;
  }
  snprintf(command, sizeof command, "env -u LD_PRELOAD '%s' " SCRIPT, python != NULL ? python : "");
  FILE *output = python != NULL && *python != '\0' ? popen(command, "r") : NULL;
  if (output == NULL) {
    fprintf(stderr, "SKIPPED: TANDEM_TEST_PYTHON names no Python with torch\n");
    return false;
  }
  bool read = fgets(folder, sizeof folder, output) != NULL;
  int status = pclose(output);
  folder[strcspn(folder, "\n")] = '\0';
  if (read && WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return true;
  fprintf(stderr, "SKIPPED: %s made no models; its words are above\n", SCRIPT);
  return false;
}

bool aotinductor_start(void) {
  char path[1024] = "", file[1100];
  if (!make_models())
    return false;
  FILE *told = fopen(aotinductor_path("torch_library"), "r");
  if (told == NULL || fgets(path, sizeof path, told) == NULL) {
    fprintf(stderr, "aotinductor: %s names no torch\n", aotinductor_path("torch_library"));
    return false;
  }
  fclose(told);
  setenv("TANDEM_TORCH_LIBRARY", path, 1);
  snprintf(file, sizeof file, "%s/libtorch.so", path);
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "aotinductor: %s\n", dlerror());
    return false;
  }
  return find(library, "aoti_torch_create_tensor_from_blob", &torch.from_blob) &&
         find(library, "aoti_torch_delete_tensor_object", &torch.delete_tensor) &&
         find(library, "aoti_torch_get_data_ptr", &torch.data);
}

static void *read_file(const char *name, size_t *size) {
  const char *path = aotinductor_path(name);
  void *data = NULL;
  FILE *file = fopen(path, "rb");
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
    *size = (size_t)ftell(file);
    rewind(file);
    data = malloc(*size + 1);
    if (data != NULL && fread(data, 1, *size, file) != *size) {
      free(data);
      data = NULL;
    }
  }
  if (file != NULL)
    fclose(file);
  if (data == NULL)
    fprintf(stderr, "aotinductor: cannot read %s\n", path);
  return data;
}

bool aotinductor_model_init(struct aotinductor_model *model, const char *name, size_t columns,
                            size_t outputs_per_row, bool reference) {
  char file[64];
  size_t size;
  *model = (struct aotinductor_model){.columns = columns, .outputs_per_row = outputs_per_row};
  snprintf(file, sizeof file, "%s.payload", name);
  model->payload = read_file(file, &model->payload_size);
  if (model->payload == NULL || !reference)
    return model->payload != NULL;
  snprintf(file, sizeof file, "%s.blob", name);
  model->weights = read_file(file, &size);
  snprintf(file, sizeof file, "%s.so", name);
  model->library = dlopen(aotinductor_path(file), RTLD_NOW | RTLD_LOCAL);
  if (model->library == NULL)
    fprintf(stderr, "aotinductor: %s\n", dlerror());
  return model->weights != NULL && model->library != NULL;
}

bool aotinductor_model_init_twin(struct aotinductor_model *twin, const char *name, size_t columns,
                                 size_t outputs_per_row) {
  enum { WEIGHTS_OFFSET = 32, EXPONENT = 3, SIGN = 0x80 };
  uint64_t offset;
  if (!aotinductor_model_init(twin, name, columns, outputs_per_row, true))
    return false;
  memcpy(&offset, (char *)twin->payload + WEIGHTS_OFFSET, sizeof offset);
  ((unsigned char *)twin->payload)[offset + EXPONENT] ^= SIGN;
  ((unsigned char *)twin->weights)[EXPONENT] ^= SIGN;
  return true;
}

void aotinductor_model_fini(struct aotinductor_model *model) {
  free(model->payload);
  free(model->weights);
}

static bool step(const struct calls *calls, void *container, const struct aotinductor_model *model,
                 const float *x, int64_t rows, float *output) {
  int64_t sizes[] = {rows, (int64_t)model->columns}, strides[] = {(int64_t)model->columns, 1};
  void *input = NULL, *result = NULL, *data = NULL;
  if (torch.from_blob((void *)(uintptr_t)x, 2, sizes, strides, 0, FLOAT32, CPU, 0, &input) != 0 ||
      calls->run(container, &input, 1, &result, 1, NULL, NULL) != 0 || torch.data(result, &data) != 0)
    return false;
  memcpy(output, data, (size_t)rows * model->outputs_per_row * sizeof *output);
  return torch.delete_tensor(result) == 0;
}

bool aotinductor_model_infer(const struct aotinductor_model *model, const float *const *inputs, size_t steps,
                             int64_t rows, float *output) {
  struct calls calls;
  void *container = NULL;
  if (!find(model->library, "AOTInductorModelContainerCreateWithDevice", &calls.create) ||
      !find(model->library, "AOTInductorModelContainerDelete", &calls.destroy) ||
      !find(model->library, "AOTInductorModelUpdateConstantsFromBlob", &calls.load) ||
      !find(model->library, "AOTInductorModelContainerRun", &calls.run))
    return false;
  bool ok = calls.create(&container, 1, "cpu", NULL) == 0 && calls.load(container, model->weights) == 0;
  for (size_t i = 0; ok && i < steps; i++)
    ok = step(&calls, container, model, inputs[i], rows, output);
  if (container != NULL)
    calls.destroy(container);
  if (!ok)
    fprintf(stderr, "aotinductor: torch's own library failed\n");
  return ok;
}
