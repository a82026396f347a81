#!/usr/bin/env bash
# Builds what run.sh runs and gathers it in build/carry, so that it also runs on a machine that has a driver and
# nothing else: programs and libraries (stripped), the stand-ins, and TensorRT's lean runtime, compressed.
#
#   bench/gpu/prepare.sh [--rtx]
#
# --rtx also puts TensorRT-RTX, compressed, into build/carry-rtx1 and build/carry-rtx2, two parts of one file, for ways
# to the other machine that take 64 MiB at a time: the first one beside build/carry, the second one alone. Libraries: TANDEM_TENSORRT_LEAN11 and TANDEM_TENSORRT_RTX name
# them, else the environment that `./dev test` makes has them; ExecuTorch (for the command) is found likewise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem
build=build/gpu carry=build/carry jobs=${TANDEM_JOBS:-$(nproc)}
say() { echo "prepare: $*" >&2; }
mkdir -p build

# newest PATTERN...: the newest path that there is, or nothing
newest() { ls -td "$@" 2>/dev/null | head -n 1; }

lean=${TANDEM_TENSORRT_LEAN11:-$(newest "$cache"/venv-tensorrt-*/lib/python3*/site-packages/tensorrt_lean_libs/libnvinfer_lean.so.11)}
rtx=${TANDEM_TENSORRT_RTX:-$(newest "$cache"/venv-tensorrt-*/lib/python3*/site-packages/tensorrt_rtx_libs/libtensorrt_rtx.so.1)}
executorch=${TANDEM_EXECUTORCH:-$(newest "$cache"/venv-demo-*/lib/python3*/site-packages/executorch "$cache"/venv-test-*/lib/python3*/site-packages/executorch)}

# ---------------------------------------------------------------- build
arguments=(-G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo)
[[ -n $executorch ]] && arguments+=("-DCMAKE_PREFIX_PATH=$executorch")
cmake -S bench/gpu -B "$build" "${arguments[@]}" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
# Those of the tests that run on a real driver; run.sh says which do not.
tests=(test_standin test_tensorrt test_tensorrt_{context,graph,scratch,cases,device})
targets=(gpu_bench tandem standin_nvinfer_lean "${tests[@]}")
[[ -n $executorch ]] && targets+=(tandem_cli)
cmake --build "$build" -j "$jobs" --target "${targets[@]}" >"$build.log" 2>&1 || { tail -n 50 "$build.log" >&2; exit 1; }

# The broken variant whose key ignores the device: on two GPUs the measurement `devices` has to see it.
mutant=build/gpu-mutant
rm -rf "$mutant/tree"
mkdir -p "$mutant/tree"
tar -c CMakeLists.txt cmake include src vendors | tar -x -C "$mutant/tree"
patch -s -p1 -d "$mutant/tree" <tests/mutants/key_ignores_device.patch
cmake -S "$mutant/tree" -B "$mutant/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_DISABLE_FIND_PACKAGE_executorch=ON >"$mutant/log" 2>&1 || { cat "$mutant/log" >&2; exit 1; }
cmake --build "$mutant/build" -j "$jobs" --target tandem >"$mutant/log" 2>&1 || { cat "$mutant/log" >&2; exit 1; }

# ---------------------------------------------------------------- gather
rm -rf "$carry"
mkdir -p "$carry"/{bin,lib,mutant,plans}
cp "$build/gpu_bench" "$carry/bin/"
for name in "${tests[@]}"; do
  cp "$(find "$build/tandem/tests" -type f -name "$name")" "$carry/bin/"
done
cp -L "$build/tandem/libtandem.so.0" "$carry/lib/"
cp -L "$mutant/build/libtandem.so.0" "$carry/mutant/"
cp -r "$build/tandem/tests/standin" "$carry/standin"
find "$carry/standin" -type f ! -name 'lib*.so.*' -delete
find "$carry/standin" -type d -empty -delete
realpath "$build/tandem/tests/standin" >"$carry/standin/built_at"
cp tests/data/rtx/*.engine "$carry/plans/"
if [[ -n $executorch ]]; then
  cp "$build/tandem/tandem" "$carry/bin/"
  cp -L "$build/tandem/libtandem_executorch.so.0" "$executorch/lib/libexecutorch.so" "$carry/lib/"
  mkdir -p "$carry/data/bin" "$carry/schema" # the command looks for its schema compiler beside the runtime
  cp "$executorch/data/bin/flatc" "$carry/data/bin/"
  cp "$executorch"/schema/*.fbs "$carry/schema/"
fi
# What a bare machine may lack of what they are linked with; glibc and the C++ library are there.
ldd "$carry"/bin/* "$carry/lib/libtandem.so.0" 2>/dev/null | awk '/lib(crypto|cjson|cmocka)\.so/ { print $3 }' | sort -u |
  xargs -I{} cp -L {} "$carry/lib/"
find "$carry" -type f \( -path "$carry/bin/*" -o -name '*.so*' \) -exec strip -g {} +
if [[ -n $lean ]]; then
  xz -3 -T "$jobs" -c "$lean" >"$carry/libnvinfer_lean.so.11.xz"
else
  say "no libnvinfer_lean.so.11: the real lean runtime is left out"
fi
if [[ ${1:-} == --rtx ]]; then
  [[ -n $rtx ]] || { say "no libtensorrt_rtx.so.1"; exit 1; }
  rm -rf build/carry-rtx1 build/carry-rtx2
  mkdir -p build/carry-rtx1 build/carry-rtx2
  xz -3 -T "$jobs" -c "$rtx" >build/carry-rtx1/all
  head -c 27M build/carry-rtx1/all >build/carry-rtx1/part0
  tail -c +$((27 * 1024 * 1024 + 1)) build/carry-rtx1/all >build/carry-rtx2/part1
  rm build/carry-rtx1/all
fi
du -sh build/carry* >&2
