"""Turns PTX text into kernels.h of the stand-in libnvinfer: python3 make_kernels.py kernels.ptx > kernels.h

The version is lowered to the first that knows sm_80, so that drivers older than the compiler take it.
"""

import re
import sys

print("// clang-format off\n/* Made from kernels.cu; see there for the commands. */")
print("static const char standin_ptx[] = {")
with open(sys.argv[1], encoding="ascii") as source:
    text = "".join(line for line in source if line.strip() and not line.startswith("//"))
data = re.sub(r"^\.version .*$", ".version 7.0", text, count=1, flags=re.M).encode("ascii") + b"\0"
for start in range(0, len(data), 24):
    print("    " + ", ".join(str(byte) for byte in data[start : start + 24]) + ",")
print("};")
