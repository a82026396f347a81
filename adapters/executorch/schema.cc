/* What a program and its data files say about themselves, read from their flatbuffers.
 *
 * The headers are generated from the schemas of the ExecuTorch that tandem is built against, into namespaces
 * of their own: libexecutorch exports functions of the same classes compiled with another FlatBuffers, and
 * two layouts under one name would be a silent disaster.
 *
 * Nothing is read before FlatBuffers' verifier has passed the whole buffer. The verifier says nothing of
 * meaning, so every index is checked here. Everything is copied out, with limits: a small hostile file can
 * name one long string a hundred thousand times.
 *
 * ExecuTorch verifies programs but not data files (.ptd), which it then follows without a check; check_data
 * closes that gap before ExecuTorch sees them.
 */
#include "adapter.h"

#include "flat_tensor_generated.h"
#include "program_generated.h"

#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>

#include <tandem/tandem.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace tandem {

namespace {

namespace er = executorch::runtime;
namespace pte = tandem_pte;
namespace ptd = tandem_ptd;

constexpr size_t name_limit = 255;
constexpr size_t list_limit = 65536; /* delegates, operators, inputs or outputs of one method */
constexpr uint64_t magic_offset = 8; /* of an extended header: after the root offset and the identifier */

template <typename Number> Number read_number(const void *bytes, size_t offset) {
  Number number;
  memcpy(&number, static_cast<const char *>(bytes) + offset, sizeof(number));
  return number;
}

bool refuse(std::string *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool refuse(std::string *why, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  *why = text;
  return false;
}

template <typename Vector> size_t count_of(const Vector *vector) {
  return vector ? vector->size() : 0;
}

bool fits(uint64_t base, uint64_t offset, uint64_t size, uint64_t limit) {
  uint64_t start;
  uint64_t end;
  return !__builtin_add_overflow(base, offset, &start) && !__builtin_add_overflow(start, size, &end) &&
         end <= limit;
}

std::string copy_text(const flatbuffers::String *text) {
  if (!text)
    return std::string();
  return std::string(text->c_str(), strnlen(text->c_str(), name_limit));
}

/* An identifier, which must be whole to mean anything. */
bool copy_name(const flatbuffers::String *text, const char *what, std::string *name, std::string *why) {
  if (!text || text->size() == 0)
    return refuse(why, "%s has no name", what);
  if (text->size() > name_limit || strlen(text->c_str()) != text->size())
    return refuse(why, "%s has a name of %u bytes: expected at most %zu without a NUL", what, text->size(),
                  name_limit);
  *name = text->str();
  return true;
}

/* Leaves `order` empty when the dimensions are in their own; a program that says nothing is ExecuTorch's to
 * refuse. */
bool copy_order(const flatbuffers::Vector<uint8_t> *source, size_t rank, std::vector<uint8_t> *order) {
  bool in_order = true;
  bool seen[TANDEM_MAX_RANK] = {};
  if (source && source->size() != rank)
    return false;
  for (size_t d = 0; d < count_of(source); d++) {
    uint8_t dimension = source->Get(static_cast<flatbuffers::uoffset_t>(d));
    if (dimension >= rank || seen[dimension])
      return false;
    seen[dimension] = true;
    in_order = in_order && dimension == d;
  }
  if (!in_order)
    order->assign(source->begin(), source->end());
  return true;
}

/* `what` and `index` name it in a refusal. */
bool read_tensor(const pte::Tensor *tensor, const char *what, size_t index, PlanTensor *out,
                 std::string *why) {
  size_t rank = count_of(tensor->sizes());
  if (rank > TANDEM_MAX_RANK)
    return refuse(why, "%s %zu has rank %zu: expected at most %d", what, index, rank, TANDEM_MAX_RANK);
  out->position = index;
  out->dtype = static_cast<int32_t>(tensor->scalar_type());
  if (const pte::ExtraTensorInfo *extra = tensor->extra_tensor_info()) {
    out->name = copy_text(extra->fully_qualified_name());
    out->on_device = extra->device_type() != pte::DeviceType_CPU;
  }
  for (size_t d = 0; d < rank; d++) {
    int32_t size = tensor->sizes()->Get(static_cast<flatbuffers::uoffset_t>(d));
    if (size < 0)
      return refuse(why, "%s %zu has the size %d in dimension %zu", what, index, size, d);
    out->sizes.push_back(size);
  }
  if (!copy_order(tensor->dim_order(), rank, &out->order))
    return refuse(why, "%s %zu has a dim order that does not have each of its %zu dimensions once", what,
                  index, rank);
  switch (tensor->shape_dynamism()) {
  case pte::TensorShapeDynamism_STATIC:
    out->shape = PlanTensor::fixed;
    return true;
  case pte::TensorShapeDynamism_DYNAMIC_BOUND:
    out->shape = PlanTensor::bounded;
    return true;
  case pte::TensorShapeDynamism_DYNAMIC_UNBOUND:
    out->shape = PlanTensor::unbounded;
    return true;
  }
  return refuse(why, "%s %zu has the unknown shape dynamism %d", what, index,
                static_cast<int>(tensor->shape_dynamism()));
}

bool read_tensors(const pte::ExecutionPlan *plan, const flatbuffers::Vector<int32_t> *indices,
                  const char *what, std::vector<PlanTensor> *tensors, std::string *why) {
  size_t value_count = count_of(plan->values());
  size_t count = count_of(indices);
  if (count > list_limit)
    return refuse(why, "%zu %ss: expected at most %zu", count, what, list_limit);
  for (size_t i = 0; i < count; i++) {
    int32_t index = indices->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (index < 0 || static_cast<size_t>(index) >= value_count)
      return refuse(why, "%s %zu is value %d of %zu", what, i, index, value_count);
    const pte::EValue *value = plan->values()->Get(static_cast<flatbuffers::uoffset_t>(index));
    const pte::Tensor *tensor = value ? value->val_as_Tensor() : nullptr;
    if (!tensor)
      continue;
    PlanTensor entry;
    entry.value = index;
    if (!read_tensor(tensor, what, i, &entry, why))
      return false;
    tensors->push_back(std::move(entry));
  }
  return true;
}

/* The inputs that are no tensors; read_tensors has checked the indices. */
void read_constants(const pte::ExecutionPlan *plan, std::vector<struct tandem_constant> *constants) {
  for (size_t i = 0; i < count_of(plan->inputs()); i++) {
    int32_t index = plan->inputs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    const pte::EValue *value = plan->values()->Get(static_cast<flatbuffers::uoffset_t>(index));
    if (value && value->val_as_Tensor())
      continue;
    struct tandem_constant entry = {};
    entry.position = i;
    if (value && value->val_as_Null()) {
      entry.kind = TANDEM_CONSTANT_NONE;
    } else if (value && value->val_as_Bool()) {
      entry.kind = TANDEM_CONSTANT_BOOL;
      entry.integer = value->val_as_Bool()->bool_val();
    } else if (value && value->val_as_Int()) {
      entry.kind = TANDEM_CONSTANT_INT;
      entry.integer = value->val_as_Int()->int_val();
    } else if (value && value->val_as_Double()) {
      entry.kind = TANDEM_CONSTANT_DOUBLE;
      entry.real = value->val_as_Double()->double_val();
    }
    constants->push_back(entry);
  }
}

/* The tensors with a name, and the names of those that a data file has to bring. */
bool read_attributes(const pte::ExecutionPlan *plan, std::vector<PlanTensor> *attributes,
                     std::vector<std::string> *externals, std::string *why) {
  for (size_t i = 0; i < count_of(plan->values()); i++) {
    const pte::EValue *value = plan->values()->Get(static_cast<flatbuffers::uoffset_t>(i));
    const pte::Tensor *tensor = value ? value->val_as_Tensor() : nullptr;
    const pte::ExtraTensorInfo *extra = tensor ? tensor->extra_tensor_info() : nullptr;
    bool external = extra && extra->location() == pte::TensorDataLocation_EXTERNAL;
    if (!extra || (!extra->fully_qualified_name() && !external))
      continue;
    if (attributes->size() >= list_limit || !extra->fully_qualified_name())
      return refuse(why, "value %zu, a tensor in a data file or with a name, has no name or is one too many",
                    i);
    PlanTensor entry;
    entry.value = static_cast<int32_t>(i);
    if (!read_tensor(tensor, "attribute", attributes->size(), &entry, why))
      return false;
    if (external)
      externals->push_back(entry.name);
    attributes->push_back(std::move(entry));
  }
  return true;
}

bool read_delegate(const pte::Program *program, const pte::BackendDelegate *delegate, const char *base,
                   const Layout &layout, uint64_t file_size, PlanDelegate *out, std::string *why) {
  if (!delegate || !copy_name(delegate->id(), "a delegate", &out->backend, why))
    return delegate ? false : refuse(why, "a delegate is missing");
  out->registered = out->backend;
  out->name_offset = static_cast<size_t>(delegate->id()->c_str() - base);
  /* ExecuTorch follows these without a look. */
  for (size_t i = 0; i < count_of(delegate->compile_specs()); i++) {
    const pte::CompileSpec *spec = delegate->compile_specs()->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (!spec || !spec->key() || !spec->value())
      return refuse(why, "compile spec %zu of %s has no key or no value", i, out->backend.c_str());
    out->specs.emplace_back(copy_text(spec->key()),
                            std::vector<uint8_t>(spec->value()->begin(), spec->value()->end()));
  }
  const pte::BackendDelegateDataReference *reference = delegate->processed();
  if (!reference)
    return refuse(why, "the delegate for %s has no payload", out->backend.c_str());
  uint32_t index = reference->index();
  if (reference->location() == pte::DataLocation_SEGMENT) {
    if (index >= count_of(program->segments()) || !program->segments()->Get(index))
      return refuse(why, "the delegate for %s is in segment %u of %zu", out->backend.c_str(), index,
                    count_of(program->segments()));
    const pte::DataSegment *segment = program->segments()->Get(index);
    if (layout.segment_base == 0 || !fits(layout.segment_base, segment->offset(), segment->size(), file_size))
      return refuse(
          why,
          "segment %u, the payload of %s, has offset %llu and size %llu after %llu: expected to end "
          "within the file's %llu bytes; the file may be cut short",
          index, out->backend.c_str(), static_cast<unsigned long long>(segment->offset()),
          static_cast<unsigned long long>(segment->size()),
          static_cast<unsigned long long>(layout.segment_base), static_cast<unsigned long long>(file_size));
    out->in_segment = true;
    out->file_offset = layout.segment_base + segment->offset();
    out->size = segment->size();
    return true;
  }
  if (reference->location() != pte::DataLocation_INLINE)
    return refuse(why, "the delegate for %s is at the unknown location %d", out->backend.c_str(),
                  static_cast<int>(reference->location()));
  if (index >= count_of(program->backend_delegate_data()) || !program->backend_delegate_data()->Get(index) ||
      !program->backend_delegate_data()->Get(index)->data())
    return refuse(why, "the delegate for %s is inline data %u of %zu", out->backend.c_str(), index,
                  count_of(program->backend_delegate_data()));
  const flatbuffers::Vector<uint8_t> *data = program->backend_delegate_data()->Get(index)->data();
  out->in_segment = false;
  out->file_offset = static_cast<uint64_t>(reinterpret_cast<const char *>(data->Data()) - base);
  out->size = data->size();
  return true;
}

size_t find_value(const std::vector<PlanTensor> &tensors, int32_t value) {
  size_t index = 0;
  while (index < tensors.size() && tensors[index].value != value)
    index++;
  return index;
}

/* The source and the target of a copy between host and device ("_h2d_copy", "_d2h_copy"). */
bool read_copy(const pte::ExecutionPlan *source, const pte::Instruction *instruction, const char *name,
               int32_t *from, int32_t *to) {
  const pte::KernelCall *call = instruction ? instruction->instr_args_as_KernelCall() : nullptr;
  if (!call || !call->args() || call->args()->size() < 2 || call->op_index() < 0 ||
      static_cast<size_t>(call->op_index()) >= count_of(source->operators()))
    return false;
  const pte::Operator *op = source->operators()->Get(static_cast<flatbuffers::uoffset_t>(call->op_index()));
  *from = call->args()->Get(0);
  *to = call->args()->Get(1);
  return op && op->name() && copy_text(op->name()) == std::string("et_copy::") + name;
}

/* Fills direct_inputs and direct_outputs, or leaves them empty. Copies between the method's own tensors and a
 * device are left out: the load takes the caller's tensors wherever they are. */
void read_direct(const pte::ExecutionPlan *source, Plan *plan) {
  const pte::Chain *chain = count_of(source->chains()) == 1 ? source->chains()->Get(0) : nullptr;
  size_t count = chain ? count_of(chain->instructions()) : 0;
  auto at = [chain](size_t i) { return chain->instructions()->Get(static_cast<flatbuffers::uoffset_t>(i)); };
  std::vector<std::pair<int32_t, int32_t>> copies; /* what the call has, and what the method has for it */
  int32_t from;
  int32_t to;
  size_t next = 0;
  if (count > 2 * list_limit)
    return;
  for (; next < count && read_copy(source, at(next), "_h2d_copy", &from, &to); next++)
    copies.emplace_back(to, from);
  const pte::Instruction *instruction = next < count ? at(next++) : nullptr;
  const pte::DelegateCall *call = instruction ? instruction->instr_args_as_DelegateCall() : nullptr;
  for (; next < count && read_copy(source, at(next), "_d2h_copy", &from, &to); next++)
    copies.emplace_back(from, to);
  if (!call || next != count || !call->args() || plan->delegates.size() != 1 || call->delegate_index() != 0 ||
      plan->outputs.empty() || plan->outputs.size() != plan->output_count ||
      call->args()->size() > 2 * list_limit)
    return;
  std::vector<size_t> inputs;
  std::vector<size_t> outputs;
  std::vector<bool> written(plan->outputs.size());
  for (int32_t value : *call->args()) {
    for (const auto &copy : copies)
      if (copy.first == value) {
        value = copy.second;
        break;
      }
    size_t input = find_value(plan->inputs, value);
    size_t output = find_value(plan->outputs, value);
    bool is_input = input < plan->inputs.size();
    bool is_output = output < plan->outputs.size();
    if (is_input == is_output || (is_input && !outputs.empty()) || (is_output && written[output]))
      return;
    if (is_input) {
      inputs.push_back(input);
      continue;
    }
    written[output] = true;
    outputs.push_back(output);
  }
  if (outputs.size() != plan->outputs.size())
    return;
  plan->direct_inputs = std::move(inputs);
  plan->direct_outputs = std::move(outputs);
}

bool read_plan(const pte::Program *program, const pte::ExecutionPlan *source, const char *base,
               const Layout &layout, uint64_t file_size, Plan *plan, std::string *why) {
  if (!copy_name(source->name(), "a method", &plan->name, why))
    return false;
  plan->input_count = count_of(source->inputs());
  plan->output_count = count_of(source->outputs());
  if (!read_tensors(source, source->inputs(), "input", &plan->inputs, why) ||
      !read_tensors(source, source->outputs(), "output", &plan->outputs, why) ||
      !read_attributes(source, &plan->attributes, &plan->externals, why))
    return false;
  read_constants(source, &plan->constants);
  if (count_of(source->operators()) > list_limit || count_of(source->delegates()) > list_limit)
    return refuse(why, "%zu operators and %zu delegates: expected at most %zu of each",
                  count_of(source->operators()), count_of(source->delegates()), list_limit);
  for (size_t i = 0; i < count_of(source->operators()); i++) {
    const pte::Operator *op = source->operators()->Get(static_cast<flatbuffers::uoffset_t>(i));
    std::string name;
    if (!op || !copy_name(op->name(), "an operator", &name, why))
      return op ? false : refuse(why, "an operator is missing");
    if (op->overload() && op->overload()->size() > 0)
      name += "." + copy_text(op->overload());
    plan->operators.push_back(std::move(name));
  }
  for (size_t i = 0; i < count_of(source->delegates()); i++) {
    PlanDelegate delegate;
    if (!read_delegate(program, source->delegates()->Get(static_cast<flatbuffers::uoffset_t>(i)), base,
                       layout, file_size, &delegate, why))
      return false;
    plan->delegates.push_back(std::move(delegate));
  }
  read_direct(source, plan);
  return true;
}

/* ExecuTorch takes the bytes of a tensor to be as many as its layout says. */
bool has_layout(const ptd::TensorLayout *tensor, uint64_t segment_size) {
  auto type = static_cast<executorch::aten::ScalarType>(tensor->scalar_type());
  if (!er::isValid(type))
    return false;
  uint64_t bytes = er::elementSize(type);
  size_t rank = count_of(tensor->sizes());
  if (!tensor->sizes() || !tensor->dim_order() || rank > TANDEM_MAX_RANK ||
      tensor->dim_order()->size() != rank)
    return false;
  for (int32_t size : *tensor->sizes())
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes))
      return false;
  for (uint8_t dimension : *tensor->dim_order())
    if (dimension >= rank)
      return false;
  return bytes <= segment_size;
}

} // namespace

bool read_layout(const void *head, size_t size, uint64_t file_size, Layout *layout, std::string *why) {
  if (size < head_size || file_size < head_size)
    return refuse(why, "%llu bytes: a program has at least %zu", static_cast<unsigned long long>(file_size),
                  head_size);
  if (memcmp(static_cast<const char *>(head) + 4, "ET12", 4) != 0)
    return refuse(why, "bytes 4 to 7 are not \"ET12\": not an ExecuTorch program");
  layout->program_size = file_size;
  layout->segment_base = 0;
  if (memcmp(static_cast<const char *>(head) + magic_offset, "eh00", 4) != 0)
    return true;
  uint32_t length = read_number<uint32_t>(head, magic_offset + 4);
  if (length < 24)
    return refuse(why, "the extended header has %u bytes: expected at least 24", length);
  layout->program_size = read_number<uint64_t>(head, magic_offset + 8);
  layout->segment_base = read_number<uint64_t>(head, magic_offset + 16);
  if (layout->program_size < head_size || layout->program_size > file_size ||
      layout->segment_base > file_size)
    return refuse(why,
                  "the header tells of %llu bytes of program and segments from %llu on: expected both within "
                  "the file's %llu bytes; the file may be cut short",
                  static_cast<unsigned long long>(layout->program_size),
                  static_cast<unsigned long long>(layout->segment_base),
                  static_cast<unsigned long long>(file_size));
  return true;
}

bool read_plans(const void *bytes, const Layout &layout, uint64_t file_size, std::vector<Plan> *plans,
                std::string *why) {
  size_t size = static_cast<size_t>(layout.program_size);
  if (size >= FLATBUFFERS_MAX_BUFFER_SIZE)
    return refuse(why, "%zu bytes of program: expected less than %zu", size,
                  static_cast<size_t>(FLATBUFFERS_MAX_BUFFER_SIZE));
  flatbuffers::Verifier verifier(static_cast<const uint8_t *>(bytes), size);
  if (!pte::VerifyProgramBuffer(verifier))
    return refuse(why, "the program's flatbuffer is not consistent; the file may be damaged or cut short");
  const pte::Program *program = pte::GetProgram(bytes);
  if (count_of(program->execution_plan()) > list_limit)
    return refuse(why, "%zu methods: expected at most %zu", count_of(program->execution_plan()), list_limit);
  for (size_t i = 0; i < count_of(program->execution_plan()); i++) {
    Plan plan;
    const pte::ExecutionPlan *source = program->execution_plan()->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (!source ||
        !read_plan(program, source, static_cast<const char *>(bytes), layout, file_size, &plan, why))
      return source ? false : refuse(why, "method %zu is missing", i);
    plans->push_back(std::move(plan));
  }
  return true;
}

bool read_data_layout(const void *head, size_t size, uint64_t file_size, DataLayout *layout,
                      std::string *why) {
  if (size < head_size || file_size < head_size)
    return refuse(why, "%llu bytes: a data file has at least %zu", static_cast<unsigned long long>(file_size),
                  head_size);
  if (memcmp(static_cast<const char *>(head) + magic_offset, "FH01", 4) != 0)
    return refuse(why, "bytes 8 to 11 are not \"FH01\": not an ExecuTorch data file");
  uint64_t offset = read_number<uint64_t>(head, magic_offset + 8);
  uint64_t length = read_number<uint64_t>(head, magic_offset + 16);
  layout->segment_base = read_number<uint64_t>(head, magic_offset + 24);
  /* The header was put into the flatbuffer behind its first bytes: the buffer starts where the file does. */
  if (__builtin_add_overflow(offset, length, &layout->buffer_size) || layout->buffer_size > file_size ||
      layout->buffer_size < head_size || layout->buffer_size >= FLATBUFFERS_MAX_BUFFER_SIZE ||
      layout->segment_base > file_size)
    return refuse(why,
                  "the header tells of %llu bytes at %llu and segments from %llu on: expected all within the "
                  "file's %llu bytes; the file may be cut short",
                  static_cast<unsigned long long>(length), static_cast<unsigned long long>(offset),
                  static_cast<unsigned long long>(layout->segment_base),
                  static_cast<unsigned long long>(file_size));
  return true;
}

bool check_data(const void *buffer, const DataLayout &layout, uint64_t file_size,
                std::vector<std::string> *untyped, std::string *why) {
  flatbuffers::Verifier verifier(static_cast<const uint8_t *>(buffer),
                                 static_cast<size_t>(layout.buffer_size));
  if (!ptd::VerifyFlatTensorBuffer(verifier))
    return refuse(why, "the data file's flatbuffer is not consistent; the file may be damaged or cut short");
  const ptd::FlatTensor *file = ptd::GetFlatTensor(buffer);
  if (!file->segments() || !file->named_data())
    return refuse(why, "the data file has no segments or no names");
  for (const ptd::DataSegment *segment : *file->segments())
    if (!fits(layout.segment_base, segment->offset(), segment->size(), file_size))
      return refuse(why, "a segment of %llu bytes at %llu ends beyond the file's %llu bytes",
                    static_cast<unsigned long long>(segment->size()),
                    static_cast<unsigned long long>(segment->offset()),
                    static_cast<unsigned long long>(file_size));
  for (const ptd::NamedData *entry : *file->named_data()) {
    if (!entry->key() || entry->segment_index() >= file->segments()->size())
      return refuse(why, "\"%s\" is in segment %u of %u", copy_text(entry->key()).c_str(),
                    entry->segment_index(), file->segments()->size());
    const ptd::TensorLayout *tensor = entry->tensor_layout();
    if (!tensor && untyped->size() >= list_limit)
      return refuse(why, "more than %zu entries that are no tensors", list_limit);
    if (!tensor)
      untyped->push_back(copy_text(entry->key()));
    if (tensor && !has_layout(tensor, file->segments()->Get(entry->segment_index())->size()))
      return refuse(why,
                    "\"%s\" has no valid element type, sizes and dim order, or fewer bytes than they need",
                    copy_text(entry->key()).c_str());
  }
  return true;
}

} // namespace tandem
