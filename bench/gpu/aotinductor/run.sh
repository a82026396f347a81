#!/usr/bin/env bash
# AOTInductor engines on a GPU, in one command on a machine with NVIDIA's driver, torch with CUDA, triton and a C
# compiler, no network:
#
#   bench/gpu/aotinductor/run.sh [main | programs | memcheck | two | timed | torch | stock | all]...      (main)
#
#   main      compiles a transformer of 770 MiB and a policy, exports the transformer through ExecuTorch's CudaPartitioner;
#             memory and seconds of loads, latency of 1, 2 and 4 at once, replayed runs, peers, storm, race
#   programs  the carried programs of ExecuTorch's CudaBackend with their expected outputs (also part of main)
#   memcheck  the carried programs and a small transformer under compute-sanitizer
#   two       two GPUs: the carried programs on the second one, loads of both
#   timed     the policy with kernels chosen by timing: many minutes to compile
#   torch     the policy with libtorch
#   stock     ExecuTorch's own Python runtime, with the torch of the folder that STOCK_TORCH names: the one which that
#             executorch was built with, or its tensors do not understand each other; then the loads are measured too
#   all       all but timed and torch, the most needed parts first
#
# Where there are two GPUs, the second one compiles while the first one measures; where there is one, all measurements
# wait for the compilers, since device memory is counted for the whole GPU.
#
# What prepare.sh gathered in build/carry-aoti is used. JSON lines, logs, tables and pictures go to $OUT
# (build/gpu-aoti-results). Every part has its own bound in time, all together GPU_BENCH_SECONDS (470, all: 560); a part that
# fails does not stop the rest. GPU_BENCH_SMALL=1 makes everything small, to try the script.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.." || exit
here=bench/gpu/aotinductor carry=$PWD/build/carry-aoti out=${OUT:-$PWD/build/gpu-aoti-results}
[[ -x $carry/bin/aoti_bench ]] || { echo "run: no build/carry-aoti; run $here/prepare.sh first" >&2; exit 1; }
mkdir -p "$out/logs"
work=${AOTI_WORK:-$(mktemp -d)} results=$out/results.jsonl
: >"$results"
small=${GPU_BENCH_SMALL:+small} failed=0
[[ " $* " == *" all "* ]] && budget=560 || budget=470
budget=${GPU_BENCH_SECONDS:-$budget}
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$work/cache
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer

# ---------------------------------------------------------------- set-up
site=$work/site
for wheel in "$carry"/whl/*.whl; do
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheel" \
    >>"$out/logs/pip.txt" 2>&1 || echo "run: not installed: $(basename "$wheel"): $(tail -n 1 "$out/logs/pip.txt")"
done
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
torch_lib=$(python3 -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
nvidia=$(dirname "$(dirname "$torch_lib")")/nvidia
shims=$site/torch_tensorrt_executorch_runtime
cudart=$(compgen -G "$nvidia/*/lib/libcudart.so.1[0-9]" | head -n 1)
[[ -n $cudart ]] || cudart=$(ldconfig -p | awk '/libcudart\.so\.1[0-9] / { print $NF; exit }')
libraries=$carry/lib:$site/executorch/lib:$shims:$(dirname "${cudart:-/usr/local/cuda/lib64/x}"):$(
  compgen -G "$nvidia/*/lib" | tr '\n' ':')
if [[ -z ${TANDEM_CUDA_LIBRARY:-} ]] && ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
  for file in /usr/local/nvidia/lib64/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1; do
    [[ -e $file ]] && export TANDEM_CUDA_LIBRARY=$file && libraries=$libraries:$(dirname "$file") && break
  done
fi
export TANDEM_EXECUTORCH_LIBRARY=$carry/lib/libtandem_executorch.so.0 AOTI_BENCH=$carry/bin/aoti_bench

# part NAME SECONDS COMMAND...: its stdout goes to NAME.out, its stderr to NAME.err; a JSON document is gathered
part() {
  local name=$1 seconds=$2 rc=0 start=$SECONDS left=$((budget - SECONDS))
  shift 2
  if ((left < 5)); then
    failed=$((failed + 1))
    printf '{"part":"%s","good":false,"status":"no time left"}\n' "$name" >>"$results"
    echo "$name: NOT RUN, the $budget s (GPU_BENCH_SECONDS) are used up"
    return 1
  fi
  ((left < seconds)) && seconds=$left
  LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout -k 5 "$seconds" "$@" \
    >"$out/logs/$name.out" 2>"$out/logs/$name.err" || rc=$?
  if [[ $(tail -n 1 "$out/logs/$name.out" | head -c 1) == '{' ]]; then
    tail -n 1 "$out/logs/$name.out" | sed "s/^{/{\"part\":\"$name\",/" >>"$results"
  fi
  if ((rc)); then
    failed=$((failed + 1))
    printf '{"part":"%s","good":false,"status":%d}\n' "$name" "$rc" >>"$results"
    echo "$name: status $rc after $((SECONDS - start)) s: $(tail -n 4 "$out/logs/$name.err" | tr '\n' ' ' | tail -c 700)"
  else
    echo "$name: $((SECONDS - start)) s"
  fi
  return "$rc"
}

# The library that engines are bound to.
shims_env=(env -u TANDEM_TORCH_LIBRARY "TANDEM_AOTI_SHIMS_LIBRARY=$shims/libaoti_cuda_shims.so")
torch_env=(env -u TANDEM_AOTI_SHIMS_LIBRARY "TANDEM_TORCH_LIBRARY=$torch_lib/libtorch_cpu.so")
stock_env=(env -u TANDEM_TORCH_LIBRARY -u TANDEM_AOTI_SHIMS_LIBRARY "PYTHONPATH=${STOCK_TORCH:+$STOCK_TORCH:}$PYTHONPATH")

machine() {
  uname -srm
  grep -m 1 'model name' /proc/cpuinfo
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem --format=csv 2>/dev/null
  python3 -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__, torch.cuda.device_count(), "GPUs")'
}

# ---------------------------------------------------------------- parts
declare -A compilers=()
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
compiling_gpu=()
((gpus > 1)) && compiling_gpu=(env CUDA_VISIBLE_DEVICES=1)

# launch SECONDS NAME...: compilers in the background, once each, since they mostly wait for one processor
launch() {
  local seconds=$1 name
  shift
  for name; do
    [[ ! -v compilers[$name] ]] || continue
    mkdir -p "$work/small"
    (
      folder=$work mode=$small what=$name
      [[ $name == small ]] && folder=$work/small mode=small what=transformer
      LD_LIBRARY_PATH=$libraries timeout -k 5 "$seconds" "${compiling_gpu[@]}" python3 $here/models.py "$folder" "$what" \
        $mode >"$out/logs/compile_$name.out" 2>"$out/logs/compile_$name.err"
    ) &
    compilers[$name]=$!
  done
}

running() { [[ -n ${compilers[$1]:-} ]] && kill -0 "${compilers[$1]}" 2>/dev/null; }

# await NAME...: until their compilers are done; says once how they ended
await() {
  local name rc
  for name; do
    [[ -n ${compilers[$name]:-} ]] || continue
    rc=0
    wait "${compilers[$name]}" || rc=$?
    compilers[$name]=
    if ((rc == 0)); then
      echo "compile_$name: $(tail -n 1 "$out/logs/compile_$name.out"), there after $SECONDS s"
      continue
    fi
    failed=$((failed + 1))
    printf '{"part":"compile_%s","good":false,"status":%d}\n' "$name" "$rc" >>"$results"
    echo "compile_$name: status $rc at $SECONDS s: $(tail -n 4 "$out/logs/compile_$name.err" | tr '\n' ' ' | tail -c 700)"
  done
}

await_on_one_gpu() { ((gpus > 1)) || await "${!compilers[@]}"; }

measure() { # measure NAME ENVIRONMENT FILES...: the program's memory and speed
  local name=$1 rounds=${small:+rounds=3 runs=3}
  local -n environment=$2
  [[ $name == policy* ]] && rounds=${rounds:-rounds=15 runs=2} # thousands of kernels a run
  shift 2
  await "$name"
  [[ -e $1 ]] || return
  part "${name}_memory" 90 "${environment[@]}" "$AOTI_BENCH" memory "$@"
  part "${name}_speed" 90 "${environment[@]}" "$AOTI_BENCH" speed "$@" $rounds
}

policy_measured=
measure_policy() { # measure_policy [wait]: once, when it is compiled
  [[ -n $policy_measured ]] || { [[ ${1:-} != wait ]] && running policy; } && return
  policy_measured=1
  measure policy shims_env "$work/policy.pte"
}

run_programs() {
  compgen -G "$carry/programs/*.pte" >/dev/null || { echo "programs: none carried"; return; }
  part programs_door 120 "${shims_env[@]}" python3 $here/programs.py "$carry/programs" "$work" door
  part programs_door_torch 120 "${torch_env[@]}" python3 $here/programs.py "$carry/programs" "$work" door
}

run_stock() {
  local name
  compgen -G "$carry/programs/*.pte" >/dev/null &&
    part programs_stock 120 "${stock_env[@]}" python3 $here/programs.py "$carry/programs" "$work" stock
  [[ -n ${STOCK_TORCH:-} ]] || return
  for name in transformer partitioner policy; do
    await "$name"
    [[ -e $work/$name.pte ]] || continue
    part "${name}_stock" 120 "${stock_env[@]}" python3 $here/stock.py "$work/$name.pte" \
      $(compgen -G "$work/$name.*.ptd")
  done
}

run_peers() {
  local shape=float16:1x128x2048
  [[ -n $small ]] && shape=float16:1x128x256
  [[ -e $work/engine.so ]] || return
  for kind in containers runners; do
    part "peers_$kind" 60 "$carry/bin/aoti_peers" "$kind" 4 "$work/engine.so" "$work/engine.blob" "$shape" \
      "${cudart:-libcudart.so.13}" "$shims/libextension_cuda.so" "$shims/libaoti_cuda_shims.so"
  done
  part peers_eager 60 python3 $here/models.py "$work" eager $small
}

run_conformance() {
  local counts
  await conformance
  [[ -e $work/stateful.payload ]] || return
  part conformance 120 "${shims_env[@]}" "$carry/bin/aoti_conformance" "$work" "${cudart:-libcudart.so.13}" \
    "$shims/libextension_cuda.so" "$shims/libaoti_cuda_shims.so"
  counts=$(awk '/\[  PASSED  \]/ { passed += $4 } / FAILED TEST\(S\)/ { failed += $1 }
    END { printf "%d passed, %d failed", passed, failed }' "$out/logs/conformance.out" "$out/logs/conformance.err")
  echo "conformance: $counts"
  printf '{"part":"conformance","tests":"%s"}\n' "$counts" >>"$results"
}

# What main and all begin with. The policy compiles longest, so it is launched first and measured when it is there.
begin_main() {
  launch 330 policy
  launch 240 transformer partitioner conformance
  run_programs
  await_on_one_gpu
  measure transformer shims_env "$work/transformer.pte" "engine=$work/engine.so" "weights=$work/engine.blob" \
    "libraries=${cudart:-libcudart.so.13}:$shims/libextension_cuda.so:$shims/libaoti_cuda_shims.so"
  measure_policy
  if [[ -e $work/transformer.pte ]]; then
    part storm 90 "${shims_env[@]}" "$AOTI_BENCH" storm "$work/transformer.pte" ${small:+cycles=20 builds=3}
    part race 60 "${shims_env[@]}" "$AOTI_BENCH" race "$work/transformer.pte"
  fi
  measure_policy
  measure partitioner shims_env "$work/partitioner.pte" "$work/partitioner.aoti_cuda_blob.ptd"
  measure_policy
}

end_main() {
  measure_policy wait
  run_peers
  run_conformance
  [[ -e $work/transformer.pte ]] &&
    part transformer_torch_memory 60 "${torch_env[@]}" "$AOTI_BENCH" memory "$work/transformer.pte" graph=0
}

run_memcheck() {
  local name summary
  command -v compute-sanitizer >/dev/null || { echo "memcheck: no compute-sanitizer here"; failed=$((failed + 1)); return; }
  launch 240 small
  local -A programs=([transformer]="$work/small/transformer.pte")
  for name in "$carry"/programs/*.pte; do
    [[ -e $name ]] && programs[$(basename "$name" .pte)]="$name ${name%.pte}.aoti_cuda_blob.ptd"
  done
  await small
  for name in "${!programs[@]}"; do
    [[ -e ${programs[$name]%% *} ]] || continue
    for kind in memory speed; do
      part "memcheck_${name}_$kind" 60 "${shims_env[@]}" compute-sanitizer --tool memcheck --error-exitcode 9 \
        --log-file "$out/logs/memcheck_${name}_$kind.txt" "$AOTI_BENCH" "$kind" ${programs[$name]} rounds=1 runs=2 loads=3
      summary=$(grep -hs 'ERROR SUMMARY' "$out/logs/memcheck_${name}_$kind.txt" | tail -n 1 | sed 's/^=* *//')
      echo "memcheck_${name}_$kind: ${summary:-NO ERROR SUMMARY}"
      printf '{"part":"memcheck_%s_%s","memcheck":"%s"}\n' "$name" "$kind" "${summary:-no error summary}" >>"$results"
    done
    measure_policy
  done
}

run_two() {
  local name
  await "${!compilers[@]}" # they are on the second GPU
  for name in "$carry"/programs/cuda_mlp_dyn.pte "$carry"/programs/cuda_cache.pte; do
    [[ -e $name ]] || continue
    part "two_$(basename "$name" .pte)" 60 "${shims_env[@]}" "$AOTI_BENCH" devices "$name" "${name%.pte}.aoti_cuda_blob.ptd"
    for device in cuda:0 cuda:1; do
      part "two_$(basename "$name" .pte)_${device/:/}" 60 "${shims_env[@]}" "$AOTI_BENCH" memory "$name" \
        "${name%.pte}.aoti_cuda_blob.ptd" target_device="$device"
    done
  done
  [[ ! -e $work/transformer.pte ]] || # tandem's own payload, whose option is named device
    part two_transformer 60 "${shims_env[@]}" "$AOTI_BENCH" devices "$work/transformer.pte" device_option=device
}

run_timed() { measure policy_timed shims_env "$work/policy_timed.pte"; }
run_torch() { measure policy_torch torch_env "$work/policy_torch.pte" graph=0; }

run_main() {
  begin_main
  end_main
}

# What a part needs beyond that is compiled from the start, for all parts together.
launch_for() {
  local name names=()
  case $1 in
  stock) [[ -z ${STOCK_TORCH:-} ]] || names=(policy transformer partitioner) ;;
  timed | torch) names=("policy_$1") ;;
  esac
  for name in "${names[@]}"; do
    [[ -e $work/$name.pte ]] || launch $((budget - 80)) "$name"
  done
}

run_all() {
  begin_main
  launch 240 small
  await_on_one_gpu
  run_memcheck
  measure_policy wait
  run_two
  end_main
  run_stock
}

machine | tee "$out/machine.txt"
for what in "${@:-main}"; do
  [[ $what =~ ^(main|programs|memcheck|two|timed|torch|stock|all)$ ]] ||
    { echo "usage: run.sh [main | programs | memcheck | two | timed | torch | stock | all]..." >&2; exit 2; }
  launch_for "$what"
done
await_on_one_gpu
for what in "${@:-main}"; do
  "run_$what"
done
python3 $here/report.py "$results" "$out" | tee "$out/report.md"
tar -C "$out" -czf "$out/logs.tar.gz" logs && rm -r "$out/logs"
(cd "$out" && compgen -G '*.svg' >/dev/null && tar -czf pictures.tar.gz *.svg && rm ./*.svg)
echo "$failed parts failed, $SECONDS s, results in $out"
((failed == 0))
