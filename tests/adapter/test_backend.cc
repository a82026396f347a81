/* The delegate as ExecuTorch's own C++ hosts use it: Module, options, tracer, errors. */
#include <tandem/program.h>

#include "demo_vendor.h"

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <setjmp.h>
#include <stdarg.h>

extern "C" {
#include <cmocka.h>
}

namespace er = executorch::runtime;
namespace ex = executorch::extension;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

/* This program stands in for a host with a Python interpreter, and before tandem_load_create, to see what the
 * delegate gives it. */
static bool python_runs, lock_is_held;
static uint32_t flags_of_load;

extern "C" {
__attribute__((visibility("default"))) int Py_IsInitialized(void);
int Py_IsInitialized(void) {
  return python_runs;
}

__attribute__((visibility("default"))) int PyGILState_Check(void);
int PyGILState_Check(void) {
  return lock_is_held;
}

enum tandem_status tandem_load_create(const struct tandem_load_desc *desc, struct tandem_load **load,
                                      struct tandem_error *error) {
  static auto real = reinterpret_cast<decltype(&tandem_load_create)>(dlsym(RTLD_NEXT, "tandem_load_create"));
  flags_of_load = desc->flags;
  return real(desc, load, error);
}
}

namespace {

/* What is written to stderr while it lives. */
class Stderr {
public:
  Stderr() : kept_(dup(STDERR_FILENO)), file_(memfd_create("stderr", 0)) {
    dup2(file_, STDERR_FILENO);
  }
  ~Stderr() {
    give_back();
    close(file_);
  }
  std::string text() {
    give_back();
    std::string text(static_cast<size_t>(lseek(file_, 0, SEEK_END)), '\0');
    if (pread(file_, &text[0], text.size(), 0) != static_cast<ssize_t>(text.size()))
      text.clear();
    return text;
  }

private:
  void give_back() {
    if (kept_ < 0)
      return;
    dup2(kept_, STDERR_FILENO);
    close(kept_);
    kept_ = -1;
  }
  int kept_, file_;
};

size_t count_of(const std::string &text, const char *part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    count++;
  return count;
}

/* A 2 x 4 tensor of float32. */
struct Input {
  float data[8];
  TensorImpl::SizesType sizes[2] = {2, 4};
  TensorImpl::DimOrderType order[2] = {0, 1};
  TensorImpl::StridesType strides[2] = {4, 1};
  TensorImpl impl;
  Input() : impl(ScalarType::Float, 2, sizes, data, order, strides) {
    for (int i = 0; i < 8; i++)
      data[i] = static_cast<float>(i) - 3.5f;
  }
  er::EValue value() {
    return er::EValue(Tensor(&impl));
  }
};

void check_run(ex::Module *module) {
  Input x;
  auto result = module->forward(x.value());
  assert_int_equal(result.error(), er::Error::Ok);
  assert_int_equal(result->size(), 1);
  const Tensor &y = (*result)[0].toTensor();
  assert_int_equal(y.numel(), 8);
  for (int i = 0; i < 8; i++)
    assert_float_equal(y.const_data_ptr<float>()[i], x.data[i] * 2 + 3, 1e-6);
}

void two_modules_share_one_engine(void **) {
  int before = demo.builds;
  {
    ex::Module one(data_path("demo_affine.pte"), ex::Module::LoadMode::Mmap);
    ex::Module other(data_path("demo_affine.pte"), ex::Module::LoadMode::File);
    check_run(&one);
    check_run(&other);
    assert_int_equal(demo.builds - before, 1);
    assert_int_equal(demo.contexts, 2);
  }
  assert_int_equal(demo.contexts, 0);
  assert_int_equal(demo.engines, 0);
}

void data_files_of_a_module_are_found(void **) {
  int before = demo.named;
  ex::Module module(data_path("demo_named.pte"), std::string(data_path("demo_named.ptd")));
  check_run(&module);
  assert_int_equal(demo.named - before, 1);
}

void options_of_one_load_reach_it_alone(void **) {
  ex::Module module(data_path("demo_affine.pte")), plain(data_path("demo_affine.pte"));
  er::BackendOptions<3> options;
  options.set_option("style", "fancy");
  options.set_option("use_shared_engines", false);
  options.set_option("flight_timeout_ms", 5);
  er::LoadBackendOptionsMap map;
  assert_int_equal(map.set_options("DemoBackend", options.view()), er::Error::Ok);
  assert_int_equal(module.load(map), er::Error::Ok);
  int before = demo.builds;
  check_run(&module);
  assert_string_equal(demo.style, "fancy");
  check_run(&plain);
  assert_string_equal(demo.style, "plain");
  assert_int_equal(demo.builds - before, 2);
}

void a_wrong_option_of_a_load_is_refused(void **) {
  ex::Module module(data_path("demo_affine.pte"));
  er::BackendOptions<1> options;
  options.set_option("style", 7);
  er::LoadBackendOptionsMap map;
  assert_int_equal(map.set_options("DemoBackend", options.view()), er::Error::Ok);
  assert_int_equal(module.load(map), er::Error::Ok);
  Stderr lines;
  assert_int_equal(module.load_method("forward"), er::Error::InvalidType);
  assert_int_equal(count_of(lines.text(), "tandem: load of method \"forward\": "), 1);
}

void options_of_the_process_are_set_and_read_back(void **) {
  er::BackendOptions<3> options;
  options.set_option("style", "fancy");
  options.set_option("share_across_budgets", true);
  options.set_option("flight_timeout_ms", 77);
  assert_int_equal(er::set_option("DemoBackend", options.view()), er::Error::Ok);
  char value[64];
  assert_int_equal(tandem_get_option("DemoBackend", "style", value, sizeof(value), nullptr), TANDEM_OK);
  assert_string_equal(value, "fancy");

  er::BackendOption read[4];
  const char *keys[4] = {"style", "share_across_budgets", "flight_timeout_ms", "flight_timeout_ms"};
  for (int i = 0; i < 4; i++)
    strcpy(read[i].key, keys[i]);
  read[3].value = std::array<char, er::kMaxOptionValueLength>{};
  assert_int_equal(er::get_option("DemoBackend", er::Span<er::BackendOption>(read, 4)), er::Error::Ok);
  assert_string_equal((std::get<std::array<char, er::kMaxOptionValueLength>>(read[0].value).data()), "fancy");
  assert_true(std::get<bool>(read[1].value));
  assert_int_equal(std::get<int>(read[2].value), 77);
  assert_string_equal((std::get<std::array<char, er::kMaxOptionValueLength>>(read[3].value).data()), "77");

  ex::Module module(data_path("demo_affine.pte"));
  check_run(&module);
  assert_string_equal(demo.style, "fancy");
  for (const char *key : keys)
    tandem_set_option("DemoBackend", key, nullptr, nullptr);
}

void a_span_with_a_wrong_value_changes_nothing(void **) {
  char before[64], after[64];
  assert_int_equal(tandem_get_option("DemoBackend", "style", before, sizeof(before), nullptr), TANDEM_OK);
  er::BackendOptions<2> options;
  options.set_option("style", "fancy");
  options.set_option("flight_timeout_ms", "soon");
  Stderr lines;
  assert_int_equal(er::set_option("DemoBackend", options.view()), er::Error::InvalidType);
  assert_non_null(strstr(lines.text().c_str(), "flight_timeout_ms"));
  assert_int_equal(tandem_get_option("DemoBackend", "style", after, sizeof(after), nullptr), TANDEM_OK);
  assert_string_equal(before, after);
}

void sharing_is_switched_off_although_the_environment_is_malformed(void **) {
  for (const char *variable : {"TANDEM_OPT_USE_SHARED_ENGINES", "TANDEM_OPT_PROFILE"}) {
    er::BackendOptions<1> options;
    options.set_option("use_shared_engines", false);
    setenv(variable, "maybe", 1);
    Stderr lines;
    assert_int_equal(er::set_option("DemoBackend", options.view()), er::Error::Ok);
    assert_string_equal(lines.text().c_str(), "");
    unsetenv(variable);
    int before = demo.builds;
    ex::Module one(data_path("demo_affine.pte")), other(data_path("demo_affine.pte"));
    check_run(&one);
    check_run(&other);
    assert_int_equal(demo.builds - before, 2);
    tandem_set_option("DemoBackend", "use_shared_engines", nullptr, nullptr);
  }
}

void a_load_under_the_interpreter_s_lock_is_told_so(void **) {
  for (int i = 0; i < 4; i++) {
    python_runs = i & 1;
    lock_is_held = i & 2;
    flags_of_load = 0xffff;
    ex::Module module(data_path("demo_affine.pte"));
    er::Error error = module.load_method("forward");
    python_runs = lock_is_held = false;
    assert_int_equal(error, er::Error::Ok);
    assert_int_equal(flags_of_load, i == 3 ? TANDEM_LOAD_CALLER_HOLDS_LOCK : 0);
  }
}

void an_option_of_another_backend_is_ignored_and_said_once(void **) {
  er::BackendOptions<2> options;
  options.set_option("workspace_sharing", 2);
  options.set_option("style", "fancy");
  Stderr lines;
  assert_int_equal(er::set_option("DemoBackend", options.view()), er::Error::Ok);
  assert_int_equal(er::set_option("DemoBackend", options.view()), er::Error::Ok);
  assert_int_equal(count_of(lines.text(), "\"workspace_sharing\""), 1);
  char value[64];
  assert_int_equal(tandem_get_option("DemoBackend", "style", value, sizeof(value), nullptr), TANDEM_OK);
  assert_string_equal(value, "fancy");
  tandem_set_option("DemoBackend", "style", nullptr, nullptr);

  er::BackendOption unknown;
  strcpy(unknown.key, "workspace_sharing");
  assert_int_equal(er::get_option("DemoBackend", er::Span<er::BackendOption>(&unknown, 1)),
                   er::Error::InvalidType);
}

void each_status_is_one_error(void **) {
  const struct {
    enum tandem_status status;
    er::Error error;
  } table[] = {
#define ROW(name, number, text, executorch, python) {TANDEM_##name, er::Error::executorch},
      TANDEM_STATUS_TABLE(ROW)
#undef ROW
  };
  std::vector<er::Error> seen;
  for (const auto &row : table) {
    for (er::Error error : seen)
      assert_true(error != row.error);
    seen.push_back(row.error);
    if (row.status == TANDEM_OK || row.status == TANDEM_DEVICE_LOST)
      continue;
    snprintf(demo.refuse_build, sizeof(demo.refuse_build), "refused with %s", tandem_status_name(row.status));
    demo.refuse_status = row.status;
    ex::Module module(data_path("demo_affine.pte"));
    Stderr lines;
    er::Error error = module.load_method("forward");
    std::string text = lines.text();
    std::string said = demo.refuse_build;
    demo.refuse_build[0] = '\0';
    assert_int_equal(error, row.error);
    assert_int_equal(count_of(text, said.c_str()), 1);
    assert_int_equal(demo.contexts, 0);
    assert_int_equal(demo.engines, 0);
  }
}

/* Counts what ExecuTorch's buffers give back. */
int given_back;
class CountingLoader final : public er::DataLoader {
public:
  CountingLoader(const std::string &path) {
    FILE *file = fopen(path.c_str(), "rb");
    assert_non_null(file);
    size_ = fread(bytes_, 1, sizeof(bytes_), file);
    fclose(file);
  }
  er::Result<er::FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo &info) const override {
    er::FreeableBuffer::FreeFn free = [](void *, void *, size_t) { given_back++; };
    return er::FreeableBuffer(bytes_ + offset, size,
                              info.segment_type == SegmentInfo::Type::Backend ? free : nullptr);
  }
  er::Result<size_t> size() const override {
    return size_;
  }

private:
  alignas(64) unsigned char bytes_[4096];
  size_t size_;
};

void the_payload_is_given_back_by_the_load(void **) {
  for (int fails = 0; fails < 2; fails++) {
    ex::Module module(std::make_unique<CountingLoader>(data_path("demo_affine.pte")));
    Stderr lines;
    given_back = 0;
    demo.refuse_status = TANDEM_DEVICE_ERROR;
    strcpy(demo.refuse_build, fails ? "no" : "");
    er::Error error = module.load_method("forward");
    demo.refuse_build[0] = '\0';
    assert_int_equal(error, fails ? er::Error::AccessFailed : er::Error::Ok);
    assert_int_equal(given_back, 1);
  }
}

bool contains(const er::Span<const char> &bytes, const char *text) {
  for (size_t i = 0; i + strlen(text) <= bytes.size(); i++)
    if (memcmp(bytes.data() + i, text, strlen(text)) == 0)
      return true;
  return false;
}

void events_reach_the_tracer(void **) {
  auto tracer = std::make_unique<executorch::etdump::ETDumpGen>();
  executorch::etdump::ETDumpGen *dump = tracer.get();
  ex::Module module(data_path("demo_affine.pte"), ex::Module::LoadMode::File, std::move(tracer));
  check_run(&module);
  auto result = dump->get_etdump_data();
  assert_non_null(result.buf);
  er::Span<const char> bytes(static_cast<const char *>(result.buf), result.size);
  assert_true(contains(bytes, "tandem load"));
  assert_true(contains(bytes, "tandem run"));
  assert_true(contains(bytes, "shared=0 users=1"));
  assert_false(contains(bytes, "tandem nothing"));
  free(result.buf);
}

/* A load made and used by hand, for arguments that ExecuTorch's own programs never give. */
class Direct {
public:
  explicit Direct(const char *name = "DemoBackend") : backend_(er::get_backend_class(name)) {
    const float numbers[2] = {2.0f, 3.0f};
    memcpy(payload_, "DEMO\1\0\0\0", 8);
    memcpy(payload_ + 8, numbers, 8);
    memset(payload_ + 16, 0, 4);
    er::FreeableBuffer buffer(payload_, sizeof(payload_), nullptr);
    er::BackendInitContext context(nullptr, nullptr, "direct");
    auto result = backend_->init(context, &buffer, {});
    assert_int_equal(result.error(), er::Error::Ok);
    assert_int_equal(buffer.size(), 0);
    handle_ = *result;
  }
  ~Direct() {
    backend_->destroy(handle_);
  }
  er::Error run(std::vector<er::EValue *> args) {
    er::BackendExecutionContext context(nullptr, nullptr, "direct");
    return backend_->execute(context, handle_, er::Span<er::EValue *>(args.data(), args.size()));
  }

private:
  er::BackendInterface *backend_;
  char payload_[20];
  er::DelegateHandle *handle_;
};

void an_argument_that_is_no_tensor_is_refused_by_name(void **) {
  Direct direct;
  Input x;
  er::EValue number(static_cast<int64_t>(7)), tensor = x.value();
  Stderr lines;
  assert_int_equal(direct.run({&number, &tensor}), er::Error::InvalidArgument);
  assert_int_equal(direct.run({&tensor, &number}), er::Error::InvalidArgument);
  std::string text = lines.text();
  assert_int_equal(count_of(text, "input \"x\""), 1);
  assert_int_equal(count_of(text, "output \"y\""), 1);
}

void another_dim_order_is_refused_by_name(void **) {
  Direct direct;
  Input x, y;
  x.order[0] = 1;
  x.order[1] = 0;
  x.strides[0] = 1;
  x.strides[1] = 2;
  er::EValue in = x.value(), out = y.value();
  Stderr lines;
  assert_int_equal(direct.run({&in, &out}), er::Error::InvalidArgument);
  std::string text = lines.text();
  assert_int_equal(count_of(text, "tandem: run of method \"direct\""), 1);
  assert_true(text.find("x") != std::string::npos);
}

/* A tensor of up to three dimensions whose shape may change within its memory. */
struct Output {
  float data[16];
  TensorImpl::SizesType sizes[3];
  TensorImpl::DimOrderType order[3];
  TensorImpl::StridesType strides[3];
  std::unique_ptr<TensorImpl> impl;
  Output(std::vector<int> shape, std::vector<int> dim_order) {
    TensorImpl::StridesType stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      sizes[d] = shape[d];
      order[d] = static_cast<TensorImpl::DimOrderType>(dim_order[d]);
      strides[dim_order[d]] = stride;
      stride *= shape[static_cast<size_t>(dim_order[d])];
    }
    for (float &value : data)
      value = -77;
    impl = std::make_unique<TensorImpl>(ScalarType::Float, static_cast<ssize_t>(shape.size()), sizes, data,
                                        order, strides, executorch::aten::TensorShapeDynamism::DYNAMIC_BOUND);
  }
  er::EValue value() {
    return er::EValue(Tensor(impl.get()));
  }
};

void an_output_of_another_dim_order_is_refused_by_name_whether_it_is_resized_or_not(void **) {
  const struct {
    std::vector<int> in, room, order;
    bool runs;
  } cases[] = {
      {{2, 4}, {2, 4}, {0, 1}, true},           {{2, 4}, {2, 4}, {1, 0}, false},
      {{1, 4}, {2, 4}, {0, 1}, true},           {{2, 3}, {2, 4}, {1, 0}, false},
      {{1, 4}, {1, 4}, {1, 0}, true}, /* rows, however it is called */
      {{1, 2, 4}, {2, 1, 4}, {1, 0, 2}, true},  {{2, 1, 3}, {2, 1, 4}, {1, 0, 2}, true},
      {{2, 2, 3}, {4, 1, 4}, {1, 0, 2}, false}, /* rows before the resize, not after it */
      {{2, 2, 3}, {4, 1, 4}, {0, 1, 2}, true},
  };
  for (const auto &row : cases) {
    Direct direct;
    Output x(row.in, row.in.size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2});
    Output y(row.room, row.order);
    for (int i = 0; i < 16; i++)
      x.data[i] = static_cast<float>(i);
    er::EValue in = x.value(), out = y.value();
    int before = demo.runs;
    Stderr lines;
    er::Error error = direct.run({&in, &out});
    std::string text = lines.text();
    if (error != (row.runs ? er::Error::Ok : er::Error::InvalidArgument))
      fail_msg("case %zu: %s", static_cast<size_t>(&row - cases), text.c_str());
    if (row.runs) {
      assert_int_equal(y.impl->numel(), x.impl->numel());
      for (ssize_t i = 0; i < x.impl->numel(); i++)
        assert_float_equal(y.data[i], x.data[i] * 2 + 3, 1e-6);
    } else {
      assert_int_equal(demo.runs, before);
      assert_true(count_of(text, "output 0 (y)") + count_of(text, "y could not be resized") == 1);
      assert_float_equal(y.data[0], -77, 0);
    }
  }
}

void a_scalar_takes_one_element_of_rank_1(void **) {
  Direct direct;
  float in = 5, out = 0;
  TensorImpl::SizesType sizes[1] = {1};
  TensorImpl::DimOrderType order[1] = {0};
  TensorImpl::StridesType strides[1] = {1};
  TensorImpl x(ScalarType::Float, 1, sizes, &in, order, strides);
  TensorImpl y(ScalarType::Float, 0, nullptr, &out, nullptr, nullptr);
  er::EValue from((Tensor(&x))), to((Tensor(&y)));
  assert_int_equal(direct.run({&from, &to}), er::Error::Ok);
  assert_float_equal(out, 13, 1e-6);
  float two[2] = {5, 6};
  TensorImpl::SizesType two_sizes[1] = {2};
  TensorImpl longer(ScalarType::Float, 1, two_sizes, two, order, strides);
  er::EValue more((Tensor(&longer)));
  Stderr lines;
  assert_int_equal(direct.run({&more, &to}), er::Error::InvalidArgument);
}

/* y = 1 * x0 + 2 * x1 + ..., of `wide_count` inputs of one element. */
size_t wide_count;
struct tandem_io wide_inputs[200];

enum tandem_status create_wide(void *engine, const struct tandem_context_desc *desc, void **context,
                               struct tandem_context_io *io, struct tandem_error *error) {
  enum tandem_status status = demo_context_create(engine, desc, context, io, error);
  if (status != TANDEM_OK)
    return status;
  static char names[200][8];
  for (size_t i = 0; i < wide_count; i++) {
    snprintf(names[i], sizeof(names[i]), "x%zu", i);
    wide_inputs[i].name = names[i];
    wide_inputs[i].dtype = TANDEM_FLOAT32;
    wide_inputs[i].rank = -1;
  }
  io->inputs = wide_inputs;
  io->input_count = wide_count;
  return TANDEM_OK;
}

enum tandem_status run_wide(void *, const struct tandem_run_desc *desc, struct tandem_error *) {
  float sum = 0;
  for (size_t i = 0; i < desc->input_count; i++)
    sum += static_cast<float>(i + 1) * *static_cast<const float *>(desc->inputs[i].data);
  *static_cast<float *>(desc->outputs[0].data) = sum;
  return TANDEM_OK;
}

void any_number_of_tensors_runs(void **) {
  for (size_t count : {1, 47, 48, 49, 200}) {
    wide_count = count;
    Direct direct("WideBackend");
    std::vector<float> data(count);
    std::vector<TensorImpl> impls;
    std::vector<er::EValue> values;
    TensorImpl::SizesType sizes[1] = {1};
    TensorImpl::DimOrderType order[1] = {0};
    TensorImpl::StridesType strides[1] = {1};
    float y = 0, expected = 0;
    impls.reserve(count + 1);
    values.reserve(count + 1);
    std::vector<er::EValue *> args;
    for (size_t i = 0; i < count; i++) {
      data[i] = static_cast<float>(i % 5);
      expected += static_cast<float>(i + 1) * data[i];
    }
    for (size_t i = 0; i <= count; i++) {
      impls.emplace_back(ScalarType::Float, 1, sizes, i < count ? &data[i] : &y, order, strides);
      values.emplace_back(Tensor(&impls[i]));
      args.push_back(&values[i]);
    }
    assert_int_equal(direct.run(args), er::Error::Ok);
    assert_float_equal(y, expected, 0);
    er::EValue number(static_cast<int64_t>(7));
    args[count - 1] = &number; /* the last input is named, in whatever memory it is described */
    Stderr lines;
    assert_int_equal(direct.run(args), er::Error::InvalidArgument);
    std::string name = "input \"x" + std::to_string(count - 1) + "\"";
    assert_int_equal(count_of(lines.text(), name.c_str()), 1);
  }
}

void the_number_of_arguments_is_checked(void **) {
  Direct direct;
  Input x;
  er::EValue tensor = x.value();
  Stderr lines;
  assert_int_equal(direct.run({&tensor}), er::Error::InvalidArgument);
  assert_int_equal(direct.run(std::vector<er::EValue *>(100, &tensor)), er::Error::InvalidArgument);
  std::string text = lines.text();
  assert_int_equal(count_of(text, "1 arguments: expected the engine's 1 inputs and 1 outputs"), 1);
  assert_int_equal(count_of(text, "100 arguments"), 1);
}

void an_output_that_cannot_hold_the_result_is_an_error(void **) {
  Direct direct;
  Input x, y;
  er::EValue in = x.value();
  TensorImpl::SizesType small_sizes[2] = {1, 4};
  TensorImpl small(ScalarType::Float, 2, small_sizes, y.data, y.order, y.strides); /* static shape */
  er::EValue out((Tensor(&small)));
  Stderr lines;
  assert_int_equal(direct.run({&in, &out}), er::Error::InvalidArgument);
  er::EValue good = y.value();
  assert_int_equal(direct.run({&in, &good}), er::Error::Ok);
  for (int i = 0; i < 8; i++)
    assert_float_equal(y.data[i], x.data[i] * 2 + 3, 1e-6);
}

class Foreign final : public er::BackendInterface {
public:
  bool is_available() const override {
    return true;
  }
  er::Result<er::DelegateHandle *> init(er::BackendInitContext &, er::FreeableBuffer *,
                                        er::ArrayRef<er::CompileSpec>) const override {
    return er::Error::NotSupported;
  }
  er::Error execute(er::BackendExecutionContext &, er::DelegateHandle *,
                    er::Span<er::EValue *>) const override {
    return er::Error::NotSupported;
  }
};

void a_backend_that_was_there_first_stays_and_is_told_once(void **) {
  static Foreign foreign;
  static struct tandem_vendor taken = demo_vendor;
  taken.name = "taken";
  taken.backend = "TakenBackend";
  struct tandem_error error;
  assert_int_equal(er::register_backend({"TakenBackend", &foreign}), er::Error::Ok);
  assert_int_equal(tandem_vendor_register(&taken, &error), TANDEM_OK);
  Stderr lines;
  python_runs = true;
  assert_int_equal(tandem_executorch_register(&error), TANDEM_INVALID_STATE);
  python_runs = false;
  assert_non_null(strstr(error.message, "TakenBackend"));
  assert_non_null(strstr(error.message, "before executorch.runtime"));
  assert_int_equal(tandem_executorch_register(&error), TANDEM_INVALID_STATE);
  assert_int_equal(count_of(lines.text(), "tandem: warning: another backend is registered as TakenBackend"),
                   1);
  assert_false(tandem_executorch_active("TakenBackend"));
  assert_ptr_equal(er::get_backend_class("TakenBackend"), &foreign);
  assert_true(tandem_executorch_active("DemoBackend"));
  ex::Module module(data_path("demo_affine.pte"));
  check_run(&module);
}

/* The fixture with another backend's name, as long as its own, at a multiple of 16. */
std::vector<char> rename_program(const char *file, const char *from, const char *to) {
  std::vector<char> bytes(16 * 65536);
  FILE *source = fopen(data_path(file), "rb");
  assert_non_null(source);
  bytes.resize(fread(bytes.data(), 1, bytes.size(), source));
  fclose(source);
  size_t count = 0;
  for (size_t at = 0; at + strlen(from) <= bytes.size(); at++)
    if (memcmp(&bytes[at], from, strlen(from)) == 0) {
      memcpy(&bytes[at], to, strlen(to));
      count++;
    }
  assert_true(count > 0);
  return bytes;
}

struct tandem_method *open_door(const std::vector<char> &bytes, const struct tandem_option *options,
                                size_t count, struct tandem_error *error) {
  struct tandem_program *program = nullptr;
  struct tandem_method *method = nullptr;
  struct tandem_program_desc desc = {};
  desc.struct_size = sizeof(desc);
  desc.bytes = bytes.data();
  desc.size = bytes.size();
  const struct tandem_delegate *delegates;
  size_t delegate_count;
  if (tandem_program_create(&desc, &program, error) != TANDEM_OK)
    return nullptr;
  assert_int_equal(tandem_program_delegates(program, "forward", &delegates, &delegate_count, error),
                   TANDEM_OK);
  for (size_t i = 0; i < delegate_count; i++)
    assert_string_equal(delegates[i].backend, "LateBackend");
  if (tandem_method_create(program, "forward", options, count, &method, error) != TANDEM_OK)
    assert_null(method);
  tandem_program_destroy(program);
  return method;
}

void the_c_door_serves_programs_of_a_backend_whose_name_was_taken(void **) {
  static Foreign foreign;
  static struct tandem_vendor late = demo_vendor;
  late.name = "late";
  late.backend = "LateBackend";
  struct tandem_error error;
  assert_int_equal(er::register_backend({"LateBackend", &foreign}), er::Error::Ok);
  assert_int_equal(tandem_vendor_register(&late, &error), TANDEM_OK);
  assert_int_equal(tandem_executorch_register(&error), TANDEM_INVALID_STATE);
  assert_non_null(er::get_backend_class("Late@tandem"));
  for (const char *file : {"demo_affine.pte", "demo_mixed.pte"}) {
    std::vector<char> bytes = rename_program(file, "DemoBackend", "LateBackend");
    const std::vector<char> given = bytes;
    int before = demo.builds;
    struct tandem_method *arms[2];
    for (struct tandem_method *&arm : arms) {
      arm = open_door(bytes, nullptr, 0, &error);
      assert_non_null(arm);
      struct tandem_load_info info = {};
      info.struct_size = sizeof(info);
      assert_int_equal(tandem_load_get_info(tandem_method_load(arm, 0), &info, &error), TANDEM_OK);
      assert_string_equal(info.vendor, "late");
      float in[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8] = {};
      struct tandem_tensor x = {}, y = {};
      x.dtype = y.dtype = TANDEM_FLOAT32;
      x.rank = 2;
      x.shape[0] = 2;
      x.shape[1] = 4;
      x.data = in;
      y.data = out;
      x.size = y.size = sizeof(in);
      struct tandem_run_desc run = {};
      run.struct_size = sizeof(run);
      run.inputs = &x;
      run.outputs = &y;
      run.input_count = run.output_count = 1;
      assert_int_equal(tandem_method_run(arm, &run, &error), TANDEM_OK);
      if (strcmp(file, "demo_affine.pte") == 0)
        for (int i = 0; i < 8; i++)
          assert_float_equal(out[i], in[i] * 2 + 3, 1e-6);
    }
    assert_int_equal(demo.builds - before, strcmp(file, "demo_affine.pte") == 0 ? 1 : 2);
    assert_true(bytes == given);
    for (struct tandem_method *arm : arms)
      tandem_method_destroy(arm);
  }
  /* Options reach it by the name that the program has. */
  std::vector<char> bytes = rename_program("demo_affine.pte", "DemoBackend", "LateBackend");
  struct tandem_option option = {"style", "fancy"};
  struct tandem_method *method = open_door(bytes, &option, 1, &error);
  assert_non_null(method);
  assert_string_equal(demo.style, "fancy");
  tandem_method_destroy(method);
  option.value = "7";
  assert_null(open_door(bytes, &option, 1, &error));
  assert_int_equal(error.code, TANDEM_BAD_OPTION);
  /* ExecuTorch's own API goes on with whoever was first. */
  ex::Module module(std::make_unique<ex::BufferDataLoader>(bytes.data(), bytes.size()));
  assert_int_equal(module.load_method("forward"), er::Error::NotSupported);
}

void a_damaged_program_of_a_renamed_backend_is_answered(void **) {
  assert_non_null(er::get_backend_class("Late@tandem"));
  std::vector<char> bytes = rename_program("demo_affine.pte", "DemoBackend", "LateBackend");
  size_t opened = 0;
  for (char &byte : bytes) {
    struct tandem_program_desc desc = {};
    struct tandem_program *program = nullptr;
    struct tandem_method *method = nullptr;
    struct tandem_error error;
    desc.struct_size = sizeof(desc);
    desc.bytes = bytes.data();
    desc.size = bytes.size();
    byte = static_cast<char>(~byte);
    if (tandem_program_create(&desc, &program, &error) == TANDEM_OK)
      opened += tandem_method_create(program, "forward", nullptr, 0, &method, &error) == TANDEM_OK;
    tandem_method_destroy(method);
    tandem_program_destroy(program);
    byte = static_cast<char>(~byte);
  }
  assert_in_range(opened, 1, bytes.size() - 1);
  assert_int_equal(demo.contexts, 0);
}

int register_demo(void **) {
  static struct tandem_vendor wide = demo_vendor;
  wide.name = "wide";
  wide.backend = "WideBackend";
  wide.context_create = create_wide;
  wide.run = run_wide;
  struct tandem_error error;
  return tandem_vendor_register(&demo_vendor, &error) == TANDEM_OK &&
                 tandem_vendor_register(&wide, &error) == TANDEM_OK &&
                 tandem_executorch_register(&error) == TANDEM_OK
             ? 0
             : -1;
}

} // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_modules_share_one_engine),
      cmocka_unit_test(data_files_of_a_module_are_found),
      cmocka_unit_test(options_of_one_load_reach_it_alone),
      cmocka_unit_test(a_wrong_option_of_a_load_is_refused),
      cmocka_unit_test(options_of_the_process_are_set_and_read_back),
      cmocka_unit_test(a_span_with_a_wrong_value_changes_nothing),
      cmocka_unit_test(sharing_is_switched_off_although_the_environment_is_malformed),
      cmocka_unit_test(a_load_under_the_interpreter_s_lock_is_told_so),
      cmocka_unit_test(an_option_of_another_backend_is_ignored_and_said_once),
      cmocka_unit_test(each_status_is_one_error),
      cmocka_unit_test(the_payload_is_given_back_by_the_load),
      cmocka_unit_test(events_reach_the_tracer),
      cmocka_unit_test(an_argument_that_is_no_tensor_is_refused_by_name),
      cmocka_unit_test(another_dim_order_is_refused_by_name),
      cmocka_unit_test(an_output_of_another_dim_order_is_refused_by_name_whether_it_is_resized_or_not),
      cmocka_unit_test(a_scalar_takes_one_element_of_rank_1),
      cmocka_unit_test(any_number_of_tensors_runs),
      cmocka_unit_test(the_number_of_arguments_is_checked),
      cmocka_unit_test(an_output_that_cannot_hold_the_result_is_an_error),
      cmocka_unit_test(a_backend_that_was_there_first_stays_and_is_told_once),
      cmocka_unit_test(the_c_door_serves_programs_of_a_backend_whose_name_was_taken),
      cmocka_unit_test(a_damaged_program_of_a_renamed_backend_is_answered),
  };
  return cmocka_run_group_tests(tests, register_demo, nullptr);
}
