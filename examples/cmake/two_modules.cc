/* A host of ExecuTorch's own Module: two of them, one engine. Usage: two_modules PROGRAM.pte */
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <tandem/program.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace er = executorch::runtime;
namespace ex = executorch::extension;

namespace {

bool are_equal(const std::vector<er::EValue> &left, const std::vector<er::EValue> &right) {
  bool equal = left.size() == right.size();
  for (size_t i = 0; equal && i < left.size(); i++) {
    auto one = left[i].toTensor(), other = right[i].toTensor();
    equal = one.nbytes() == other.nbytes() &&
            memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
  }
  return equal;
}

/* Whether both give the same outputs for random inputs in the shapes that the program asks for. */
er::Result<bool> run(ex::Module &left, ex::Module &right) {
  auto method = ET_UNWRAP(left.method_meta("forward"));
  std::vector<ex::TensorPtr> inputs;
  for (size_t i = 0; i < method.num_inputs(); i++) {
    auto input = ET_UNWRAP(method.input_tensor_meta(i));
    inputs.push_back(ex::rand({input.sizes().begin(), input.sizes().end()}, input.scalar_type()));
  }
  std::vector<er::EValue> values(inputs.begin(), inputs.end());
  auto first = ET_UNWRAP(left.forward(values));
  auto second = ET_UNWRAP(right.forward(values));
  return are_equal(first, second);
}

int fail(const char *what, const char *message) {
  fprintf(stderr, "two_modules: %s: %s\n", what, message);
  return 1;
}

} // namespace

int main(int argc, char **argv) {
  /* Keeps the linker from dropping the plug-in, and tells whether another backend came first. */
  tandem_error error;
  if (tandem_executorch_register(&error) != TANDEM_OK)
    return fail("tandem", error.message);

  const char *path = argc > 1 ? argv[1] : "";
  ex::Module left(path), right(path);
  er::Result<bool> equal = run(left, right);
  if (!equal.ok())
    return fail(path, er::to_string(equal.error()));

  tandem_stats stats = {};
  stats.struct_size = sizeof(stats);
  if (tandem_stats_get(&stats, &error) != TANDEM_OK)
    return fail("tandem", error.message);
  printf("%d loads, %d engines, %d builds, outputs %s\n", (int)stats.loads, (int)stats.engines,
         (int)stats.builds, *equal ? "equal" : "differ");
  return !*equal;
}
