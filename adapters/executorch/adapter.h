/* What backend.cc, device.cc, schema.cc and the C door's files (door.h) share. Nothing here is exported.
 *
 * A *door* is open on a thread while the C door loads or runs a method there: the delegate then hands its
 * loads and its error up through it, and writes no line of its own. */
#ifndef TANDEM_ADAPTERS_EXECUTORCH_ADAPTER_H
#define TANDEM_ADAPTERS_EXECUTORCH_ADAPTER_H

#include <tandem/program.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

/* One line on stderr by write(2): ET_LOG and C++ streams are not safe inside the stock Python extension. */
void write_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Door {
  std::vector<struct tandem_load *> loads; /* borrowed from the delegates, in their order */
  struct tandem_error error;               /* of the first delegate that failed */
  bool failed;
  std::string log; /* error lines of ExecuTorch itself */
};

/* The calling thread's door, NULL when the call came from another host. */
Door *current_door();
void set_current_door(Door *door);

/* The functions of a tandem_named_data whose user is ExecuTorch's NamedDataMap. */
enum tandem_status get_named(void *user, const char *key, const void **data, size_t *size, void **token);
void release_named(void *user, void *token);

/* What ExecuTorch's registry calls tandem's backend for programs that name `backend`: another name of the
 * same length where another backend had this one first; NULL when tandem serves none of that name. Static. */
const char *registered_name(const char *backend);

/* ---------------------------------------------------------------- device.cc */

/* From here on programs may plan memory on CUDA devices, unless another library saw to that already. */
void register_device_memory();

/* ---------------------------------------------------------------- schema.cc */

struct PlanTensor {
  std::string name; /* "" when the program has none */
  size_t position;  /* among all inputs or outputs of the method, or its attributes */
  int32_t value;    /* index in the plan's values */
  int32_t dtype;
  std::vector<int32_t> sizes;
  std::vector<uint8_t> order; /* its dimensions, the slowest first; empty: the last is the fastest */
  bool on_device = false;     /* its memory is planned on another device than the CPU */
  enum { fixed, bounded, unbounded } shape;
};

struct PlanDelegate {
  std::string backend;                                             /* as the file has it */
  std::string registered;                                          /* the name that ExecuTorch is asked for */
  size_t name_offset;                                              /* of the name in the flatbuffer */
  std::vector<std::pair<std::string, std::vector<uint8_t>>> specs; /* compile specs: key and value */
  bool in_segment;
  uint64_t file_offset;
  uint64_t size;
};

struct Plan {
  std::string name;
  size_t input_count, output_count; /* tensors and others */
  std::vector<PlanTensor> inputs, outputs;
  std::vector<PlanTensor> attributes;            /* tensors with a name, wherever the method uses them */
  std::vector<struct tandem_constant> constants; /* the other inputs */
  std::vector<std::string> operators;
  std::vector<std::string> externals; /* keys of tensors that a data file has to bring */
  std::vector<PlanDelegate> delegates;
  /* When the method is one call of one delegate, on nothing but its inputs and with nothing but its outputs:
   * the input, then the output, that each argument of the call is. Else both are empty. */
  std::vector<size_t> direct_inputs, direct_outputs;
};

/* Where the parts of a program lie, from its first bytes (at least head_size of them, or the whole file). */
constexpr size_t head_size = 64;
struct Layout {
  uint64_t program_size; /* of the flatbuffer, from offset 0 */
  uint64_t segment_base; /* 0: no segments */
};
bool read_layout(const void *head, size_t size, uint64_t file_size, Layout *layout, std::string *why);

/* Verifies the flatbuffer, then copies what the C door needs. False with `why` for a bad program. */
bool read_plans(const void *program, const Layout &layout, uint64_t file_size, std::vector<Plan> *plans,
                std::string *why);

/* Likewise for a data file (.ptd): where its flatbuffer ends, which starts at offset 0. */
struct DataLayout {
  uint64_t buffer_size;
  uint64_t segment_base;
};
bool read_data_layout(const void *head, size_t size, uint64_t file_size, DataLayout *layout,
                      std::string *why);
/* Verifies a data file's flatbuffer and all that ExecuTorch will follow in it, and lists the keys that are
 * no tensors: ExecuTorch must not be asked for such a tensor. */
bool check_data(const void *buffer, const DataLayout &layout, uint64_t file_size,
                std::vector<std::string> *untyped, std::string *why);

} // namespace tandem

#endif
