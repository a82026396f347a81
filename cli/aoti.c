/* The demo's policy compiled by AOTInductor, in the Python that the torch found belongs to.
 *
 * Only torch's own Python can compile, so a script is run there; it uses tandem.export, from the package that
 * this program came in or the tree that it was built in. The torch is the one that loads will use, so the
 * program fits.
 */
#include "cli.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* argv: folder of export.py, MiB, payload. Two wide layers of a transformer, since compiling takes its time
 * for each layer; kernels are optimised, what calls them need not be. Weights are random but the same each
 * time. */
static const char script[] =
    "import math, pathlib, sys\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "import torch, export\n"
    "width = max(32, round(math.sqrt(int(sys.argv[2]) * 2**20 / 4 / 24) / 32) * 32)\n"
    "class Policy(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.eyes = torch.nn.Conv2d(3, width, 16, stride=16)\n"
    "        self.words = torch.nn.Embedding(1024, width)\n"
    "        self.body = torch.nn.Linear(8, width)\n"
    "        self.queries = torch.nn.Parameter(torch.randn(1, 16, width))\n"
    "        make = lambda: torch.nn.ModuleDict({'norm': torch.nn.LayerNorm(width),\n"
    "            'qkv': torch.nn.Linear(width, 3 * width), 'out': torch.nn.Linear(width, width),\n"
    "            'wide': torch.nn.Linear(width, 4 * width), 'narrow': torch.nn.Linear(4 * width, width)})\n"
    "        self.layers = torch.nn.ModuleList(make() for _ in range(2))\n"
    "        self.hand = torch.nn.Linear(width, 7)\n"
    "    def forward(self, image, tokens, state):\n"
    "        x = torch.cat([self.eyes(image).flatten(2).transpose(1, 2), self.words(tokens),\n"
    "                       self.body(state).unsqueeze(1), self.queries], dim=1)\n"
    "        for layer in self.layers:\n"
    "            q, k, v = layer['qkv'](layer['norm'](x)).chunk(3, dim=-1)\n"
    "            x = x + layer['out'](torch.softmax(q @ k.transpose(1, 2) * width ** -0.5, dim=-1) @ v)\n"
    "            x = x + layer['narrow'](torch.nn.functional.gelu(layer['wide'](x)))\n"
    "        return torch.tanh(self.hand(x[:, -16:]))\n"
    "torch.manual_seed(0)\n"
    "args = torch.rand(1, 3, 96, 96), torch.zeros(1, 11, dtype=torch.int64), torch.rand(1, 8)\n"
    "quick = {'aot_inductor.compile_wrapper_opt_level': 'O0'}\n"
    "pathlib.Path(sys.argv[3]).write_bytes(export.to_payload(Policy().eval(), args, options=quick))\n";

/* <prefix>/bin/python3 of <prefix>/lib/python3.*'s torch. */
static bool find_python(const char *library, char *python, size_t size) {
  const char *at = strstr(library, "/lib/python3");
  return at && snprintf(python, size, "%.*s/bin/python3", (int)(at - library), library) < (int)size &&
         access(python, X_OK) == 0;
}

/* The folder of export.py: tandem/ for tandem/bin/tandem, python/tandem/ for build/NAME/tandem. */
static bool find_export(char *folder, size_t size) {
  static const char *const places[] = {"/..", "/../../python/tandem", "/../../../python/tandem"};
  char program[PATH_MAX], file[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0)
    return false;
  program[length] = 0;
  *strrchr(program, '/') = 0;
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
    if (snprintf(folder, size, "%s%s", program, places[i]) < (int)size &&
        snprintf(file, sizeof file, "%s/export.py", folder) < (int)sizeof file && access(file, R_OK) == 0)
      return true;
  return false;
}

enum tandem_status td_aoti_export(const char *library, const char *directory, uint64_t size_mib,
                                  const char *payload, struct tandem_error *error) {
  char python[PATH_MAX], folder[PATH_MAX], log[PATH_MAX], size[32];
  if (!find_python(library, python, sizeof python))
    return td_refuse(error, TANDEM_UNAVAILABLE,
                     "no Python belongs to %s, and only torch's Python compiles a policy: install torch in a "
                     "virtual environment and set TANDEM_TORCH_LIBRARY to its libtorch_cpu.so",
                     library);
  if (!find_export(folder, sizeof folder))
    return td_refuse(
        error, TANDEM_UNAVAILABLE,
        "tandem's export.py, which compiles the policy, is not near this program: run the tandem of "
        "the pip package or of the source tree");
  if (snprintf(log, sizeof log, "%s/export.log", directory) >= PATH_MAX)
    return td_refuse(error, TANDEM_INVALID_ARGUMENT, "the path is too long: %s", directory);
  snprintf(size, sizeof size, "%" PRIu64, size_mib);
  char *arguments[] = {python, "-c", (char *)(uintptr_t)script, folder, size, (char *)(uintptr_t)payload,
                       NULL};
  enum tandem_status status = td_run_tool(arguments, log, error);
  unlink(log);
  return status;
}
