/* Programs: .pte files through ExecuTorch's own runtime, from plain C, without torch or Python.
 *
 * Provided by libtandem_executorch.so, which is also the plug-in that registers tandem's backends: loading
 * the library is enough for that, tandem_executorch_register tells how it went. A host that is linked calls
 * that, else the linker may drop the library. Delegated parts of a method
 * whose backend is tandem's share engines as tandem.h says; other parts run on ExecuTorch's kernels.
 *
 * Thread rule: ExecuTorch's Program and Method are not thread-safe. Calls on one tandem_method are
 * serialised by it; methods of one program may run on different threads. A method keeps its program alive.
 * Programs are opened with InternalConsistency verification.
 */
#ifndef TANDEM_PROGRAM_H
#define TANDEM_PROGRAM_H

#include <tandem/tandem.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Registers tandem's backends with ExecuTorch; done once when the library is loaded, idempotent. When
 * another backend has a name already, that one stays: INVALID_STATE, and the message says how to mend it.
 * tandem_program_create gives such programs to tandem all the same, then from a copy of their flatbuffer,
 * whose size is what it costs. */
TANDEM_API enum tandem_status tandem_executorch_register(struct tandem_error *error);

/* True when ExecuTorch's registry gives loads of `backend` to tandem, so that ExecuTorch's own interfaces
 * share engines too; methods of this header do either way. */
TANDEM_API bool tandem_executorch_active(const char *backend);

/* "1.5.1", and the path of the libexecutorch that is used. Static strings. */
TANDEM_API const char *tandem_executorch_version(void);
TANDEM_API const char *tandem_executorch_path(void);

/* The names that ExecuTorch's tables have now: backends, tandem's and others; operators with a kernel, one
 * that has several kernels several times. What ships beside the runtime comes in when a method needs it.
 * "Openvino@tandem" is tandem's where another OpenvinoBackend came first. Borrowed for the life of the
 * process; NULL past the end. */
TANDEM_API const char *tandem_executorch_backend(size_t index);
TANDEM_API const char *tandem_executorch_operator(size_t index);

struct tandem_program;

struct tandem_program_desc {
  size_t struct_size;
  const char *path;  /* either a file ... */
  const void *bytes; /* ... or bytes, at a multiple of 16, borrowed until the program and its
                        methods are destroyed */
  size_t size;
  const char *const *data_paths; /* .ptd files */
  size_t data_path_count;
  bool read; /* read the file instead of mapping it */
};

/* *program is owned. Errors: NOT_FOUND, BAD_PROGRAM, OUT_OF_MEMORY, INVALID_ARGUMENT. */
TANDEM_API enum tandem_status tandem_program_create(const struct tandem_program_desc *desc,
                                                    struct tandem_program **program,
                                                    struct tandem_error *error);
/* Methods that are still alive keep working. NULL is fine. */
TANDEM_API void tandem_program_destroy(struct tandem_program *program);

TANDEM_API size_t tandem_program_method_count(const struct tandem_program *program);
/* Borrowed for the life of the program; NULL past the end. */
TANDEM_API const char *tandem_program_method_name(const struct tandem_program *program, size_t index);

/* The inputs and outputs of a method that are tensors, without loading it. min == max == the planned shape
 * when the program does not say that a dimension is dynamic; the arrays are borrowed for the life of the
 * program. Any output pointer may be NULL. */
TANDEM_API enum tandem_status tandem_program_method_io(struct tandem_program *program, const char *method,
                                                       const struct tandem_io **inputs, size_t *input_count,
                                                       const struct tandem_io **outputs, size_t *output_count,
                                                       struct tandem_error *error);

/* The tensors that a method has by name, as the model does ("linear.weight"): buffers that it changes, where
 * the exporter was told to write their names, and what lies in a data file. Told and lent as those. */
TANDEM_API enum tandem_status tandem_program_method_attributes(struct tandem_program *program,
                                                               const char *method,
                                                               const struct tandem_io **attributes,
                                                               size_t *count, struct tandem_error *error);

enum tandem_constant_kind {
  TANDEM_CONSTANT_OTHER = 0, /* a text, a list */
  TANDEM_CONSTANT_NONE = 1,
  TANDEM_CONSTANT_BOOL = 2,
  TANDEM_CONSTANT_INT = 3,
  TANDEM_CONSTANT_DOUBLE = 4,
};

/* An input of a method that is no tensor: it was exported for this value, and runs with no other. */
struct tandem_constant {
  size_t position; /* among all inputs */
  int32_t kind;    /* enum tandem_constant_kind */
  int64_t integer; /* of BOOL and INT */
  double real;     /* of DOUBLE */
};

/* The inputs that tandem_program_method_io leaves out. Borrowed for the life of the program. */
TANDEM_API enum tandem_status tandem_program_method_constants(struct tandem_program *program,
                                                              const char *method,
                                                              const struct tandem_constant **constants,
                                                              size_t *count, struct tandem_error *error);

/* One delegate of a method, as the file has it. Pointers are borrowed for the life of the program. */
struct tandem_delegate {
  const char *backend;
  const void *payload; /* NULL when the bytes are not in the program */
  size_t payload_size;
  uint64_t file_offset; /* of the payload in the file */
  uint64_t alignment;   /* the largest power of two that divides file_offset, at most 4096 */
  bool in_segment;      /* else inline in the flatbuffer */
  const struct tandem_spec *compile_specs;
  size_t compile_spec_count;
};

TANDEM_API enum tandem_status tandem_program_delegates(struct tandem_program *program, const char *method,
                                                       const struct tandem_delegate **delegates,
                                                       size_t *count, struct tandem_error *error);

/* What the program keeps outside its payloads, in its own file and in its data files; borrowed, and what it
 * gives too, for the life of the program. Any thread may ask for it at any time. */
TANDEM_API const struct tandem_named_data *tandem_program_named_data(const struct tandem_program *program);

struct tandem_method;

/* Loads a method, with options for the loads of its delegates. *method is owned. Blocks as tandem_load_create
 * does. Errors: NOT_FOUND (method, kernel), and what the delegate's load said, message included. A damaged
 * payload of another backend may end the process: XNNPACK's reader trusts its own. */
TANDEM_API enum tandem_status tandem_method_create(struct tandem_program *program, const char *name,
                                                   const struct tandem_option *options, size_t option_count,
                                                   struct tandem_method **method, struct tandem_error *error);
TANDEM_API void tandem_method_destroy(struct tandem_method *method);

/* True when the method is one delegate of tandem's and nothing else. Its runs are then runs of that load:
 * stream, return_early and done are as for tandem_load_run, tensors may be in the device's memory, and are
 * bound themselves where another method copies. */
TANDEM_API bool tandem_method_direct(const struct tandem_method *method);

/* Runs the method with the caller's tensors: inputs are read in place. Outputs: data, size and dtype are
 * read, rank and shape written, the result is copied to data; with data NULL and no resize function the
 * output is borrowed from the method until its next run: set data to NULL again before it. All are
 * contiguous, also those that the program has in another order (channels last), which costs a copy; such an
 * input may have strides of that order instead. Blocks while another thread runs this method. Errors:
 * INVALID_ARGUMENT (the tensor is named), and what the delegate's run said. The kernels of a damaged program
 * may end the process: ExecuTorch verifies its structure, not its meaning. */
TANDEM_API enum tandem_status tandem_method_run(struct tandem_method *method,
                                                const struct tandem_run_desc *run,
                                                struct tandem_error *error);

/* Clears the state that delegates keep between runs. */
TANDEM_API enum tandem_status tandem_method_reset(struct tandem_method *method, struct tandem_error *error);

/* The loads that tandem made for this method's delegates, in the order of their delegates; borrowed for the
 * life of the method. NULL past the end. */
TANDEM_API struct tandem_load *tandem_method_load(struct tandem_method *method, size_t index);

#ifdef __cplusplus
}
#endif

#endif
