#!/usr/bin/env bash
# Builds what run.sh runs and gathers it in build/carry-aoti, for a machine that has a GPU, torch with CUDA and a C
# compiler, and no network: programs and libraries, ExecuTorch and what it needs as wheels for that machine's Python.
#
#   bench/gpu/aotinductor/prepare.sh [PYTHON_VERSION]      (3.12)
#
# CUDA_PROGRAMS names a folder with programs of ExecuTorch's CudaBackend, their data and expected outputs
# (NAME.pte, NAME.aoti_cuda_blob.ptd, NAME.inN.npy, NAME.out0.npy); ../shared/data/cuda where that is there.
# recipes: export_cuda.py made them, models.py exports more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem
python=${1:-3.12} build=build/gpu-aoti carry=build/carry-aoti jobs=${TANDEM_JOBS:-$(nproc)}
wheels=(executorch==1.5.1 torchao==0.18.0 ruamel.yaml==0.18.16 torch_tensorrt_executorch_runtime==0.1.0)
mkdir -p build "$cache/wheels-$python"

newest() { { ls -td "$@" 2>/dev/null || true; } | head -n 1; }
executorch=${TANDEM_EXECUTORCH:-$(newest "$cache"/venv-test-*/lib/python3*/site-packages/executorch "$cache"/venv-demo-*/lib/python3*/site-packages/executorch)}
[[ -n $executorch ]] || { echo "prepare: no executorch package; run ./dev build, or name it in TANDEM_EXECUTORCH" >&2; exit 1; }
programs=${CUDA_PROGRAMS:-../shared/data/cuda}

# ---------------------------------------------------------------- build
cmake -S bench/gpu/aotinductor -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_PREFIX_PATH=$executorch" \
  >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
targets=(aoti_bench aoti_peers aoti_conformance tandem tandem_executorch tandem_cli)
cmake --build "$build" -j "$jobs" --target "${targets[@]}" >"$build.log" 2>&1 || { tail -n 50 "$build.log" >&2; exit 1; }

# ---------------------------------------------------------------- gather
rm -rf "$carry"
mkdir -p "$carry"/{bin,lib,whl,programs}
cp "$build"/aoti_{bench,peers,conformance} "$build/tandem/tandem" "$carry/bin/"
cp -L "$build/tandem/libtandem.so.0" "$build/tandem/libtandem_executorch.so.0" "$carry/lib/"
ldd "$carry"/bin/* "$carry/lib/libtandem.so.0" 2>/dev/null | awk '/lib(crypto|cjson|cmocka)\.so/ { print $3 }' | sort -u |
  xargs -I{} cp -L {} "$carry/lib/"
find "$carry" -type f \( -path "$carry/bin/*" -o -name '*.so*' \) -exec strip -g {} +
for wheel in "${wheels[@]}"; do
  pattern="${wheel/==/-}-*.whl"
  pattern=${pattern//_/?}
  file=$(find "$cache/wheels-$python" -name "$pattern")
  if [[ -z $file ]]; then
    platforms=()
    for libc in 17 27 28 34; do platforms+=(--platform "manylinux_2_${libc}_x86_64"); done
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$python" --implementation cp \
      "${platforms[@]}" --platform manylinux2014_x86_64 -d "$cache/wheels-$python" "$wheel" >&2
    file=$(find "$cache/wheels-$python" -name "$pattern")
  fi
  cp "$file" "$carry/whl/"
done
if compgen -G "$programs/*.pte" >/dev/null; then
  cp "$programs"/* "$carry/programs/"
else
  echo "prepare: no programs in $programs: that part is left out" >&2
fi
du -sh "$carry" >&2
