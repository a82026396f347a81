/* What the sources of the `tandem` command share. One section a source; the source's comment tells its
 * reasons.
 *
 * Results go to stdout, progress and errors to stderr. Every command returns the process's exit status: 0
 * done, 1 it failed, 2 it was called wrongly. Whatever fails is told in one line, written by td_complain.
 */
#ifndef TANDEM_CLI_H
#define TANDEM_CLI_H

#include <tandem/program.h>

#include <cjson/cJSON.h>
#include <stdio.h>

enum { TD_EXIT_DONE = 0, TD_EXIT_FAILED = 1, TD_EXIT_USAGE = 2 };

/* ---------------------------------------------------------------- main.c */

int td_run_command(int count, char **arguments);
int td_inspect_command(int count, char **arguments);
int td_doctor_command(int count, char **arguments);
int td_demo_command(int count, char **arguments);
int td_policy_command(int count, char **arguments);   /* hidden, in demo.c: the child that makes the policy */
int td_measure_command(int count, char **arguments);  /* hidden, in demo.c: a child that measures loads */
int td_constant_command(int count, char **arguments); /* hidden, in constant.c: what OpenVINO alone leaves */

/* ---------------------------------------------------------------- args.c */

enum td_flag_kind { TD_FLAG_SWITCH, TD_FLAG_TEXT, TD_FLAG_COUNT, TD_FLAG_LIST };

/* A list keeps borrowed pointers into argv. */
struct td_text_list {
  const char **items; /* owned */
  size_t count;
};

struct td_flag {
  const char *name; /* "--loads" */
  enum td_flag_kind kind;
  void *value; /* bool, const char *, uint64_t or struct td_text_list */
  uint64_t minimum, maximum;
};

struct td_usage {
  const char *command;    /* "run" */
  const char *positional; /* "PROGRAM"; NULL: none */
  const char *help;       /* the whole text of --help */
};

/* TD_ARGS_GO, or the exit status to end with: help was printed, or the one line of what was wrong. */
enum { TD_ARGS_GO = -1 };
int td_args_parse(const struct td_usage *usage, const struct td_flag *flags, size_t flag_count, int count,
                  char **arguments, const char **positional);
void td_text_list_fini(struct td_text_list *list);

/* ---------------------------------------------------------------- report.c */

/* Control characters become '?': what a program or a library names must not steer a terminal. Returns text.
 */
char *td_show(char *text);
/* td_show of every text in a document that is to be printed for people; JSON has escapes for them. */
void td_show_all(cJSON *document);
/* "tandem: <message>" on stderr; newlines in it become spaces, other control characters '?'. */
void td_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Fills `error` and returns `status`. */
enum tandem_status td_refuse(struct tandem_error *error, enum tandem_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* True when stdout shows UTF-8 on a terminal. */
bool td_fancy(void);
/* `fraction` of `width` cells as text; static per thread until the next call. */
const char *td_bar(double fraction, int width);
/* Writes out what was printed; false, and a line, when some of it could not be written. */
bool td_end_output(void);
/* Prints one JSON document and frees it; false when it could not be written. NULL is out of memory. */
bool td_print_json(cJSON *document);

/* Steps on stderr, one piece of work at a time: a bar on a terminal, else plain lines; nothing for work that
 * ends within a second. Steps may come from any thread; `what` NULL keeps the text. A prefix, borrowed,
 * stands before every text: several processes of one command may work in turn. */
void td_progress_prefix(const char *prefix);
void td_progress_begin(const char *what, uint64_t total);
void td_progress_step(const char *what);
void td_progress_end(void);
uint64_t td_clock_ns(void);

/* tandem's warnings, kept until the command knows how it ended; `direct`: all its lines at once instead. */
void td_notes_init(bool direct);
void td_notes_fini(bool show);

/* 0 and "" when there is none. */
double td_number(const cJSON *object, const char *key);
const char *td_text(const cJSON *object, const char *key);

/* What a load costs: "device_memory_bytes" where its engine is on a GPU, else "host_private_bytes". */
const char *td_growth_key(const cJSON *measurement);
/* The lines of the loads of a measurement (what `run --json` prints), with `label` before each unless it is
 * NULL. `scale` is the memory of a full bar, bytes. */
void td_print_loads_head(const cJSON *measurement, bool labelled);
void td_print_loads(const cJSON *measurement, const char *label, double scale);
double td_largest_growth(const cJSON *measurement);

/* ---------------------------------------------------------------- memory.c */

/* Anonymous + Swap of this process in bytes; -1 when the kernel does not tell. */
int64_t td_memory_private(void);

/* ---------------------------------------------------------------- gpu.c */

enum { TD_GPUS_MAX = 64 };
struct td_gpu {
  char name[128];
  int major, minor; /* compute capability */
  uint64_t memory;  /* bytes */
};
struct td_gpus {
  char path[512];   /* of the driver; "": there is none */
  char version[32]; /* of CUDA that the driver has, "13.0" */
  struct td_gpu gpus[TD_GPUS_MAX];
  size_t count;
};
/* UNAVAILABLE, DEVICE_ERROR: no driver, none that starts, or no GPU; what was found until then is filled. */
enum tandem_status td_gpus_find(struct td_gpus *gpus, struct tandem_error *error);

/* Holds a GPU's primary context, so that its memory can be read. False when that is not possible; a watch
 * that failed may be read (-1) and ended. */
struct td_gpu_watch {
  void *context; /* owned; NULL: nothing is watched */
  int device;
};
bool td_gpu_watch(int index, struct td_gpu_watch *watch);
/* Bytes used by all processes; -1 when not known. */
int64_t td_gpu_used(const struct td_gpu_watch *watch);
void td_gpu_unwatch(struct td_gpu_watch *watch);

/* ---------------------------------------------------------------- npy.c */

struct td_npy {
  int32_t dtype; /* enum tandem_dtype */
  int32_t rank;
  int64_t shape[TANDEM_MAX_RANK];
  size_t data_offset, data_size; /* bytes, inside the file */
};
/* Checks a whole .npy file of `size` bytes; `origin` names it in errors. */
enum tandem_status td_npy_parse(const void *bytes, size_t size, const char *origin, struct td_npy *npy,
                                struct tandem_error *error);
/* *data is owned (free). */
enum tandem_status td_npy_read(const char *path, struct td_npy *npy, void **data, struct tandem_error *error);
enum tandem_status td_npy_write(const char *path, const struct tandem_tensor *tensor,
                                struct tandem_error *error);

/* ---------------------------------------------------------------- tensors.c */

/* Bytes of a tensor of this shape; false when they do not fit. */
bool td_tensor_size(int32_t dtype, int32_t rank, const int64_t *shape, size_t *size);
/* "float32[1, 3, 96, 96]" */
void td_io_text(const struct tandem_io *io, char *text, size_t size);
cJSON *td_io_json(const struct tandem_io *io);
/* Inputs for a method: from .npy files, or seeded when there are none. The data of each is owned. */
enum tandem_status td_inputs_create(const struct tandem_io *inputs, size_t count,
                                    const struct td_text_list *files, struct tandem_tensor **tensors,
                                    struct tandem_error *error);
void td_inputs_destroy(struct tandem_tensor *tensors, size_t count);
/* A digest of the outputs' shapes and bytes, to compare runs with. */
uint64_t td_outputs_hash(const struct tandem_tensor *outputs, size_t count);

/* ---------------------------------------------------------------- vendors.c */

/* What tandem knows of the vendor named. Errors: NOT_FOUND. */
enum tandem_status td_vendor_lookup(const char *name, struct tandem_vendor_info *info,
                                    struct tandem_error *error);

/* ---------------------------------------------------------------- policy.c */

/* What the command uses of OpenVINO's own C interface; its types are opaque here. */
struct td_openvino {
  int (*core_create)(void **core);
  void (*core_free)(void *core);
  int (*read_model)(const void *core, const char *model, const char *weights, void **result);
  void (*model_free)(void *model);
  int (*compile_model)(const void *core, const void *model, const char *device, size_t property_count,
                       void **compiled, ...);
  int (*import_model)(const void *core, const char *content, size_t size, const char *device,
                      void **compiled);
  void (*compiled_free)(void *compiled);
  int (*export_model)(const void *compiled, const char *path);
  int (*create_request)(const void *compiled, void **request);
  void (*request_free)(void *request);
  int (*infer)(void *request);
  const char *(*last_message)(void);
};
/* The library at `path`, open for the rest of the process. Errors: UNAVAILABLE. */
enum tandem_status td_openvino_open(const char *path, struct td_openvino *api, struct tandem_error *error);

enum { TD_POLICY_MIN_MIB = 4, TD_POLICY_MAX_MIB = 16384 };
/* Makes the model in `directory` and writes what OpenVINO exports of it to `blob`. `library`: libopenvino_c.
 */
enum tandem_status td_policy_export(const char *library, const char *directory, uint64_t size_mib,
                                    const char *blob, struct tandem_error *error);
/* The policy's inputs and outputs, as its program declares them. */
size_t td_policy_io(const struct tandem_io **io, size_t *input_count);

/* ---------------------------------------------------------------- plan.c */

/* The policy as a payload for TensorRTBackend, its plan made by the library at `path`; `version` names that
 * in errors. UNAVAILABLE: it has no builder. */
enum tandem_status td_plan_export(const char *path, const char *version, uint64_t size_mib,
                                  const char *payload, struct tandem_error *error);
/* As td_policy_io. */
size_t td_plan_io(const struct tandem_io **io, size_t *input_count);

/* ---------------------------------------------------------------- aoti.c */

/* The policy as a payload for TandemAotiBackend, compiled for the CPU by the torch whose library is at
 * `library`. `directory` takes temporary files. UNAVAILABLE: no Python belongs to that torch, or no
 * tandem.export to this program. */
enum tandem_status td_aoti_export(const char *library, const char *directory, uint64_t size_mib,
                                  const char *payload, struct tandem_error *error);

/* ---------------------------------------------------------------- pte.c */

/* Runs a program (arguments[0], a path) to its end, its words going to the file `log`; the last of them are
 * in the error when it fails. */
enum tandem_status td_run_tool(char *const *arguments, const char *log, struct tandem_error *error);

/* Wraps one payload for `backend` as the method "forward" of a .pte file. `directory` takes temporary files.
 */
enum tandem_status td_pte_write(const char *path, const char *directory, const char *backend,
                                const char *payload, const struct tandem_io *io, size_t input_count,
                                size_t io_count, struct tandem_error *error);

#endif
