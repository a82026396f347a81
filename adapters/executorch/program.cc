/* Programs: a file is opened, checked, described, and kept for its methods.
 *
 * A program's file is opened once and everything (ExecuTorch's parts, the facts for inspect) is read through
 * that one loader, so a file replaced meanwhile cannot be seen half old and half new. Data files are checked
 * before ExecuTorch follows what they say.
 *
 * Where another backend was first to take the name of one of tandem's, ExecuTorch is given a copy of the
 * program's flatbuffer in which the delegates name what tandem has registered instead: what loads through
 * this door shares whatever came first. Payloads in segments stay where they are.
 *
 * What callers are lent (names, inputs and outputs, delegates) never moves while the program lives.
 */
#include "door.h"

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/named_data_map/merged_data_map.h>

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem {

namespace {

using Segment = er::DataLoader::SegmentInfo;

constexpr size_t page_size = 4096;
constexpr const char *unread = "cannot be read"; /* until a reader says why */

/* The file, but with another flatbuffer in front. */
class RenamedLoader final : public er::DataLoader {
public:
  RenamedLoader(const er::DataLoader *file, Memory program, size_t size)
      : file_(file), program_(std::move(program)), size_(size) {}
  er::Result<er::FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo &info) const override {
    if (info.segment_type != SegmentInfo::Type::Program)
      return file_->load(offset, size, info);
    if (offset > size_ || size > size_ - offset)
      return er::Error::InvalidArgument;
    return er::FreeableBuffer(static_cast<const char *>(program_.get()) + offset, size, nullptr);
  }
  er::Error load_into(size_t offset, size_t size, const SegmentInfo &info, void *buffer) const override {
    return file_->load_into(offset, size, info, buffer);
  }
  er::Result<size_t> size() const override {
    return file_->size();
  }

private:
  const er::DataLoader *file_; /* borrowed from the program's state */
  Memory program_;
  size_t size_;
};

/* Of the data files, or of the program's own file. */
enum tandem_status get_program_data(void *user, const char *key, const void **data, size_t *size,
                                    void **token) {
  auto *state = static_cast<ProgramState *>(user);
  OpenDoor open; /* what ExecuTorch says of a key that it has not stays here */
  auto own = state->program->get_named_data_map();
  enum tandem_status status = TANDEM_MISSING_DATA;
  for (const er::NamedDataMap *map : {state->named_data, own.ok() ? *own : nullptr})
    if (map && status == TANDEM_MISSING_DATA)
      status = get_named(const_cast<er::NamedDataMap *>(map), key, data, size, token);
  return status;
}

/* Also gives a name to a tensor that has none in the program. */
std::vector<struct tandem_io> describe(std::vector<PlanTensor> *tensors, const char *kind) {
  std::vector<struct tandem_io> list(tensors->size());
  for (size_t i = 0; i < list.size(); i++) {
    PlanTensor &tensor = (*tensors)[i];
    if (tensor.name.empty())
      tensor.name = kind + std::to_string(i);
    list[i].name = tensor.name.c_str();
    list[i].dtype = tensor.dtype;
    list[i].rank = static_cast<int32_t>(tensor.sizes.size());
    for (size_t d = 0; d < tensor.sizes.size(); d++) {
      list[i].min[d] = tensor.shape == PlanTensor::fixed ? tensor.sizes[d] : 0;
      list[i].max[d] = tensor.shape == PlanTensor::unbounded ? INT64_MAX : tensor.sizes[d];
    }
  }
  return list;
}

template <typename Loader>
enum tandem_status keep_loader(er::Result<Loader> result, const char *path, const Door &door,
                               std::unique_ptr<er::DataLoader> *loader, struct tandem_error *error) {
  if (!result.ok())
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: cannot be read: %s (ExecuTorch: %s)", path,
                       door.log.c_str(), er::to_string(result.error()) + 7);
  *loader = std::make_unique<Loader>(std::move(*result));
  return TANDEM_OK;
}

/* The pages are not locked in memory: a payload is read once, in order, and given back. */
enum tandem_status open_file(const char *path, bool read, std::unique_ptr<er::DataLoader> *loader,
                             struct tandem_error *error) {
  struct stat info;
  if (!*path)
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "the path is empty: expected that of a file");
  if (stat(path, &info) != 0)
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode))
    return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "%s: not a regular file", path);
  if (access(path, R_OK) != 0)
    return tandem_fail(error, TANDEM_NOT_FOUND, "%s: %s", path, strerror(errno));
  if (info.st_size == 0)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: the file is empty", path);
  OpenDoor open; /* the reason is in ExecuTorch's log */
  if (read)
    return keep_loader(ex::FileDataLoader::from(path), path, open.door, loader, error);
  return keep_loader(ex::MmapDataLoader::from(path, ex::MmapDataLoader::MlockConfig::NoMlock), path,
                     open.door, loader, error);
}

/* The size of a file, and what `read` makes of its first bytes. */
template <typename Parts>
enum tandem_status read_head(const er::DataLoader &file, const char *origin,
                             bool (*read)(const void *, size_t, uint64_t, Parts *, std::string *),
                             uint64_t *file_size, Parts *parts, struct tandem_error *error) {
  std::string why = unread;
  auto size = file.size();
  if (size.ok()) {
    auto head = file.load(0, std::min(*size, head_size), Segment(Segment::Type::Program));
    *file_size = *size;
    if (head.ok() && read(head->data(), head->size(), *size, parts, &why))
      return TANDEM_OK;
  }
  return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", origin, why.c_str());
}

enum tandem_status open_data(ProgramState *state, const char *path, bool read, struct tandem_error *error) {
  std::unique_ptr<er::DataLoader> loader;
  enum tandem_status status = open_file(path, read, &loader, error);
  if (status != TANDEM_OK)
    return status;
  uint64_t file_size = 0;
  DataLayout layout = {};
  status = read_head(*loader, path, read_data_layout, &file_size, &layout, error);
  if (status != TANDEM_OK)
    return status;
  {
    std::string why = unread;
    auto buffer = loader->load(0, static_cast<size_t>(layout.buffer_size), Segment(Segment::Type::External));
    if (!buffer.ok() || !check_data(buffer->data(), layout, file_size, &state->untyped, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", path, why.c_str());
  }
  OpenDoor open;
  auto map = ex::FlatTensorDataMap::load(loader.get());
  if (!map.ok())
    return explain(open.door, map.error(), TANDEM_BAD_PROGRAM, "data file", path, error);
  state->data_maps.push_back(std::make_unique<ex::FlatTensorDataMap>(std::move(*map)));
  state->data_loaders.push_back(std::move(loader));
  return TANDEM_OK;
}

enum tandem_status merge_data(ProgramState *state, struct tandem_error *error) {
  if (state->data_maps.empty())
    return TANDEM_OK;
  state->named_data = state->data_maps[0].get();
  if (state->data_maps.size() == 1)
    return TANDEM_OK;
  std::vector<const er::NamedDataMap *> maps;
  for (const auto &map : state->data_maps)
    maps.push_back(map.get());
  using Merged = ex::merged_data_map::MergedDataMap;
  OpenDoor open;
  auto merged = Merged::load(er::Span<const er::NamedDataMap *>(maps.data(), maps.size()));
  if (!merged.ok())
    return explain(open.door, merged.error(), to_status(merged.error()), "data files of",
                   state->origin.c_str(), error);
  state->merged = std::make_unique<Merged>(std::move(*merged));
  state->named_data = state->merged.get();
  return TANDEM_OK;
}

/* Puts into a copy of the flatbuffer the names that ExecuTorch knows tandem's backends by, unless they are
 * the program's. The copy is checked as the file was, since names may lie over each other or over other data.
 */
enum tandem_status rename_delegates(ProgramState *state, const void *program, const Layout &layout,
                                    struct tandem_error *error) {
  Memory copy;
  size_t size = static_cast<size_t>(layout.program_size);
  for (Plan &plan : state->plans)
    for (PlanDelegate &delegate : plan.delegates) {
      const char *registered = registered_name(delegate.backend.c_str());
      if (!registered || delegate.backend == registered)
        continue;
      if (!copy) {
        void *memory = nullptr;
        /* Inline payloads keep their alignment. */
        if (posix_memalign(&memory, page_size, size) != 0)
          return tandem_fail(error, TANDEM_OUT_OF_MEMORY,
                             "%s: no memory for a copy of its %zu bytes of program, needed since tandem was "
                             "loaded after another backend %s",
                             state->origin.c_str(), size, delegate.backend.c_str());
        memcpy(memory, program, size);
        copy.reset(memory);
      }
      memcpy(static_cast<char *>(copy.get()) + delegate.name_offset, registered, delegate.backend.size());
      delegate.registered = registered;
    }
  if (!copy)
    return TANDEM_OK;
  std::vector<Plan> plans;
  std::string why;
  bool same =
      read_plans(copy.get(), layout, state->file_size, &plans, &why) && plans.size() == state->plans.size();
  for (size_t p = 0; same && p < plans.size(); p++) {
    const std::vector<PlanDelegate> &before = state->plans[p].delegates;
    std::vector<PlanDelegate> &after = plans[p].delegates;
    same = after.size() == before.size();
    for (size_t i = 0; same && i < after.size(); i++) {
      same = after[i].backend == before[i].registered;
      after[i].registered = before[i].registered;
      after[i].backend = before[i].backend;
    }
  }
  if (!same)
    return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: the names of its delegates lie over other data",
                       state->origin.c_str());
  state->plans = std::move(plans);
  state->renamed = std::make_unique<RenamedLoader>(state->loader.get(), std::move(copy), size);
  return TANDEM_OK;
}

enum tandem_status read_program(ProgramState *state, struct tandem_error *error) {
  const char *origin = state->origin.c_str();
  Layout layout = {};
  enum tandem_status status =
      read_head(*state->loader, origin, read_layout, &state->file_size, &layout, error);
  if (status != TANDEM_OK)
    return status;
  {
    std::string why;
    auto buffer =
        state->loader->load(0, static_cast<size_t>(layout.program_size), Segment(Segment::Type::Program));
    if (!buffer.ok())
      return tandem_fail(error,
                         to_status(buffer.error()) == TANDEM_OUT_OF_MEMORY ? TANDEM_OUT_OF_MEMORY
                                                                           : TANDEM_BAD_PROGRAM,
                         "%s: %llu bytes of program cannot be read", origin,
                         static_cast<unsigned long long>(layout.program_size));
    if (reinterpret_cast<uintptr_t>(buffer->data()) % 16 != 0)
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT,
                         "%s: the bytes of a program must begin at a multiple of 16", origin);
    if (!read_plans(buffer->data(), layout, state->file_size, &state->plans, &why))
      return tandem_fail(error, TANDEM_BAD_PROGRAM, "%s: %s", origin, why.c_str());
    status = rename_delegates(state, buffer->data(), layout, error);
    if (status != TANDEM_OK)
      return status;
  }
  OpenDoor open;
  er::DataLoader *loader = state->renamed ? state->renamed.get() : state->loader.get();
  auto program = er::Program::load(loader, er::Program::Verification::InternalConsistency);
  if (!program.ok()) {
    status = to_status(program.error());
    return explain(open.door, program.error(), status == TANDEM_OUT_OF_MEMORY ? status : TANDEM_BAD_PROGRAM,
                   "program", origin, error);
  }
  state->program.emplace(std::move(*program));
  for (Plan &plan : state->plans)
    state->io.push_back({describe(&plan.inputs, "input"), describe(&plan.outputs, "output"),
                         describe(&plan.attributes, "attribute")});
  state->delegates.resize(state->plans.size());
  return TANDEM_OK;
}

enum tandem_status create_program(const struct tandem_program_desc *desc, std::shared_ptr<ProgramState> *out,
                                  struct tandem_error *error) {
  prepare_runtime();
  auto state = std::make_shared<ProgramState>();
  enum tandem_status status = TANDEM_OK;
  if (desc->path) {
    state->origin = desc->path;
    status = open_file(desc->path, desc->read, &state->loader, error);
  } else {
    state->origin = "(bytes)";
    state->loader = std::make_unique<ex::BufferDataLoader>(desc->bytes, desc->size);
  }
  for (size_t i = 0; status == TANDEM_OK && i < desc->data_path_count; i++) {
    if (!desc->data_paths[i])
      return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "data_paths[%zu] is NULL", i);
    status = open_data(state.get(), desc->data_paths[i], desc->read, error);
  }
  if (status == TANDEM_OK)
    status = merge_data(state.get(), error);
  if (status == TANDEM_OK)
    status = read_program(state.get(), error);
  if (status == TANDEM_OK)
    *out = std::move(state);
  return status;
}

/* The payloads stay loaded with the program. */
enum tandem_status read_delegates(const ProgramState &state, const Plan &plan,
                                  std::unique_ptr<const DelegateList> *out, struct tandem_error *error) {
  auto list = std::make_unique<DelegateList>();
  for (const PlanDelegate &source : plan.delegates) {
    struct tandem_delegate entry = {};
    entry.backend = source.backend.c_str();
    entry.payload_size = static_cast<size_t>(source.size);
    entry.file_offset = source.file_offset;
    entry.alignment = page_size;
    while (source.file_offset % entry.alignment != 0)
      entry.alignment /= 2;
    entry.in_segment = source.in_segment;
    if (source.size > 0) {
      auto bytes = state.loader->load(static_cast<size_t>(source.file_offset), entry.payload_size,
                                      Segment(Segment::Type::Backend, 0, entry.backend));
      if (!bytes.ok())
        return tandem_fail(error, to_status(bytes.error()),
                           "%s: the %zu bytes of %s's payload at %llu cannot be read", state.origin.c_str(),
                           entry.payload_size, entry.backend,
                           static_cast<unsigned long long>(source.file_offset));
      list->payloads.push_back(std::move(*bytes));
      entry.payload = list->payloads.back().data();
    }
    std::vector<struct tandem_spec> specs;
    for (const auto &spec : source.specs)
      specs.push_back({spec.first.c_str(), spec.second.data(), spec.second.size()});
    entry.compile_specs = specs.data(); /* which moving the vector leaves where it is */
    entry.compile_spec_count = specs.size();
    list->specs.push_back(std::move(specs));
    list->delegates.push_back(entry);
  }
  *out = std::move(list);
  return TANDEM_OK;
}

/* Lends a list that the program keeps of a method: `find` gives it for the method's index. */
template <typename Item, typename Find>
enum tandem_status lend(struct tandem_program *program, const char *method, const Item **items, size_t *count,
                        struct tandem_error *error, Find find) {
  if (items)
    *items = nullptr;
  if (count)
    *count = 0;
  return guard(
      error, [&]() -> enum tandem_status {
        if (!program || !method)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program or method is NULL");
        size_t index = 0;
        const std::vector<Item> *list = nullptr;
        enum tandem_status status = find_plan(*program->state, method, &index, error);
        if (status == TANDEM_OK)
          status = find(program->state.get(), index, &list);
        if (status != TANDEM_OK)
          return status;
        if (items)
          *items = list->data();
        if (count)
          *count = list->size();
        return TANDEM_OK;
      });
}

/* Likewise one of those that were made with the program. */
enum tandem_status lend_io(struct tandem_program *program, const char *method,
                           std::vector<struct tandem_io> MethodIo::*list, const struct tandem_io **items,
                           size_t *count, struct tandem_error *error) {
  return lend(program, method, items, count, error,
              [list](ProgramState *state, size_t index, const std::vector<struct tandem_io> **found) {
                *found = &(state->io[index].*list);
                return TANDEM_OK;
              });
}

} // namespace

ProgramState::ProgramState() : source{get_program_data, release_named, this} {}

enum tandem_status find_plan(const ProgramState &state, const char *name, size_t *index,
                             struct tandem_error *error) {
  std::string names;
  for (size_t i = 0; i < state.plans.size(); i++) {
    if (state.plans[i].name == name) {
      *index = i;
      return TANDEM_OK;
    }
    names += (i ? ", \"" : "\"") + state.plans[i].name + "\"";
  }
  return tandem_fail(error, TANDEM_NOT_FOUND, "%s has no method \"%s\": it has %s", state.origin.c_str(),
                     name, names.empty() ? "none" : names.c_str());
}

} // namespace tandem

enum tandem_status tandem_program_create(const struct tandem_program_desc *desc,
                                         struct tandem_program **program, struct tandem_error *error) {
  return tandem::guard(
      error, [&]() -> enum tandem_status {
        if (!program)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "program is NULL");
        *program = nullptr;
        if (!desc || desc->struct_size != sizeof(*desc))
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "desc->struct_size is %zu: expected %zu",
                             desc ? desc->struct_size : 0, sizeof(*desc));
        if (!desc->path == !desc->bytes)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "expected either a path or bytes");
        if (desc->data_path_count && !desc->data_paths)
          return tandem_fail(error, TANDEM_INVALID_ARGUMENT, "data_paths is NULL");
        auto created = std::make_unique<struct tandem_program>();
        enum tandem_status status = tandem::create_program(desc, &created->state, error);
        if (status == TANDEM_OK)
          *program = created.release();
        return status;
      });
}

void tandem_program_destroy(struct tandem_program *program) {
  tandem::NoCancel no_cancel;
  delete program;
}

size_t tandem_program_method_count(const struct tandem_program *program) {
  return program ? program->state->plans.size() : 0;
}

const char *tandem_program_method_name(const struct tandem_program *program, size_t index) {
  return index < tandem_program_method_count(program) ? program->state->plans[index].name.c_str() : nullptr;
}

enum tandem_status tandem_program_method_io(struct tandem_program *program, const char *method,
                                            const struct tandem_io **inputs, size_t *input_count,
                                            const struct tandem_io **outputs, size_t *output_count,
                                            struct tandem_error *error) {
  using tandem::MethodIo;
  tandem::lend_io(program, method, &MethodIo::inputs, inputs, input_count, error);
  return tandem::lend_io(program, method, &MethodIo::outputs, outputs, output_count, error);
}

enum tandem_status tandem_program_method_attributes(struct tandem_program *program, const char *method,
                                                    const struct tandem_io **attributes, size_t *count,
                                                    struct tandem_error *error) {
  return tandem::lend_io(program, method, &tandem::MethodIo::attributes, attributes, count, error);
}

enum tandem_status tandem_program_method_constants(struct tandem_program *program, const char *method,
                                                   const struct tandem_constant **constants, size_t *count,
                                                   struct tandem_error *error) {
  return tandem::lend(program, method, constants, count, error,
                      [](tandem::ProgramState *state, size_t index, auto **found) {
                        *found = &state->plans[index].constants;
                        return TANDEM_OK;
                      });
}

enum tandem_status tandem_program_delegates(struct tandem_program *program, const char *method,
                                            const struct tandem_delegate **delegates, size_t *count,
                                            struct tandem_error *error) {
  return tandem::lend(program, method, delegates, count, error,
                      [error](tandem::ProgramState *state, size_t index, auto **found) {
                        tandem::Turn lock(state->lock);
                        enum tandem_status status = lock.check("this program", error);
                        auto &list = state->delegates[index];
                        if (status == TANDEM_OK && !list)
                          status = tandem::read_delegates(*state, state->plans[index], &list, error);
                        if (status == TANDEM_OK)
                          *found = &list->delegates;
                        return status;
                      });
}

const struct tandem_named_data *tandem_program_named_data(const struct tandem_program *program) {
  return program ? &program->state->source : nullptr;
}
