"""Writes the C source of tandem._native: tandem.h and program.h as cffi needs them.

The declarations are the headers' own, through the C preprocessor, so nothing is declared a second time. Used by
CMake: python native.py COMPILER OUTPUT HEADERS.
"""

import pathlib
import re
import subprocess
import sys

import cffi

# What Python gives to C as a callback; static functions, since the limited interface has no closures.
CALLBACKS = """
extern "Python" {
void tandem_python_log(void *user, enum tandem_log_level level, const char *line);
enum tandem_status tandem_python_load_begin(void *user, void **token, struct tandem_error *error);
void tandem_python_load_end(void *user, void *token);
}
void tandem_gate_log(bool on);
bool tandem_gate_hook_loads(void);
void tandem_gate_close(void);
void tandem_gate_forget(void);
void tandem_gate_interrupt(void);
"""

# The tensors that other libraries hand over, as DLPack's dlpack.h lays them out.
DLPACK = """
struct dl_tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct dl_managed {
  struct dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *);
};
struct dl_versioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_versioned *);
  uint64_t flags;
  struct dl_tensor tensor;
};
"""

# python/dlpack.h: tensors that tandem hands over.
EXPORTS = """
struct dl_memory;
struct dl_memory *tandem_dlpack_hold(uint64_t address, void *context, void *push, void *pop,
                                     void *exchange_capture_mode, void *memory_free);
void tandem_dlpack_drop(struct dl_memory *memory);
struct dl_managed *tandem_dlpack_export(struct dl_memory *memory, int32_t device_id, uint8_t code, uint8_t bits,
                                        int32_t rank, const int64_t *shape);
const char *tandem_dlpack_name(void);
void *tandem_dlpack_destructor(void);
"""

# What the headers have as macros only; static, for this module alone.
TABLES = """
#define TANDEM_PYTHON_CLASS(name, number, text, executorch, python) #python,
static const char *const tandem_python_classes[] = {TANDEM_STATUS_TABLE(TANDEM_PYTHON_CLASS)};
"""
TABLE_DECLARATIONS = """
extern const char *const tandem_python_classes[...];
"""


def read_declarations(compiler: str, headers: list[str]) -> str:
    """The headers' declarations without macros, includes and attributes, and the numbers that they define."""
    text = "".join(pathlib.Path(header).read_text() for header in headers)
    numbers = re.findall(r"^#define (TANDEM_\w+) (?:\d|\(1u)", text, re.MULTILINE)
    source = re.sub(r"^#include .*$", "", text, flags=re.MULTILINE)
    command = [compiler, "-E", "-P", "-undef", "-D__attribute__(x)=", "-x", "c", "-"]
    plain = subprocess.run(command, input=source, stdout=subprocess.PIPE, check=True, text=True).stdout
    return plain + "".join(f"#define {name} ...\n" for name in numbers)


def main() -> None:
    compiler, output, *headers = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.cdef(read_declarations(compiler, headers) + CALLBACKS + DLPACK + EXPORTS + TABLE_DECLARATIONS)
    source = "#include <tandem/program.h>\n#include <gate.h>\n" + DLPACK + "#include <dlpack.h>\n" + TABLES
    ffi.set_source("tandem._native", source, py_limited_api=True)
    ffi.emit_c_code(output)


if __name__ == "__main__":
    main()
