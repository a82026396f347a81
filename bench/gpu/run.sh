#!/usr/bin/env bash
# Everything of docs/measurements.md that needs a GPU, in one command on any machine with NVIDIA's driver:
#
#   bench/gpu/run.sh [main | memcheck | two | rtx | lean | all]      (main)
#
#   main      one GPU: real lean runtime, memory, speed, streams, storm, race, field cases; under 8 minutes
#   memcheck  one GPU: the TensorRT tests, stand-in engine on the real driver, under compute-sanitizer; under 8 minutes
#   two       two GPUs: the same bytes on both, and the broken variant that takes them for one
#   rtx       real TensorRT-RTX: from build/carry-rtx1 and -rtx2, or TANDEM_TENSORRT_RTX
#
# What prepare.sh gathered in build/carry is used; without that it is built here first. JSON lines, logs and a table
# go to $OUT (build/gpu-results). Every part has its own bound in time, all together GPU_BENCH_SECONDS (470); a part
# that fails does not stop the rest.
# GPU_BENCH_SMALL=1 makes everything small, to try the script itself over the stand-in driver.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
carry=$PWD/build/carry out=${OUT:-$PWD/build/gpu-results}
mkdir -p "$out"
[[ -x $carry/bin/gpu_bench ]] || bench/gpu/prepare.sh || exit 1
small=${GPU_BENCH_SMALL:-} budget=${GPU_BENCH_SECONDS:-470}
failed=0
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer

# The tests have the place of the stand-ins compiled in.
built_at=$(<"$carry/standin/built_at")
[[ -e $built_at ]] || { mkdir -p "$(dirname "$built_at")" && ln -s "$carry/standin" "$built_at"; }

if [[ -z ${TANDEM_CUDA_LIBRARY:-} ]] && ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
  for file in /usr/local/nvidia/lib64/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib/wsl/lib/libcuda.so.1; do
    [[ -e $file ]] && export TANDEM_CUDA_LIBRARY=$file && break
  done
fi
standin=$carry/standin/11/libnvinfer.so.11

# part NAME SECONDS COMMAND...: its stdout goes to NAME.out, its stderr to NAME.err; JSON documents are gathered
part() {
  local name=$1 seconds=$2 rc=0 start=$SECONDS left=$((budget - SECONDS))
  shift 2
  if ((left < 5)); then
    failed=$((failed + 1))
    printf '{"part":"%s","good":false,"status":"no time left"}\n' "$name" >>"$results"
    echo "$name: NOT RUN, the $budget s (GPU_BENCH_SECONDS) are used up"
    return
  fi
  ((left < seconds)) && seconds=$left
  LD_LIBRARY_PATH="${libraries:-$carry/lib}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    timeout "$seconds" "$@" >"$work/$name.out" 2>"$work/$name.err" || rc=$?
  local took=$((SECONDS - start))
  if [[ $(head -c 1 "$work/$name.out") == '{' ]]; then
    sed "s/^{/{\"part\":\"$name\",/" "$work/$name.out" | head -n 1 >>"$results"
  fi
  if ((rc)); then
    failed=$((failed + 1))
    printf '{"part":"%s","good":false,"status":%d}\n' "$name" "$rc" >>"$results"
    echo "$name: status $rc after $took s: $(tail -n 3 "$work/$name.err" | tr '\n' ' ')"
  else
    echo "$name: $took s"
  fi
}

bench() { # bench NAME SECONDS MEASUREMENT ARGUMENTS...
  local name=$1 seconds=$2
  shift 2
  TANDEM_TENSORRT_LIBRARY=$standin part "$name" "$seconds" "$carry/bin/gpu_bench" "$@"
}

real() { # real LABEL LIBRARY: doctor, refusals
  TANDEM_TENSORRT_LIBRARY=$2 part "$1_refusals" 90 "$carry/bin/gpu_bench" refusals "$carry"/plans/*.engine
  if [[ -x $carry/bin/tandem ]]; then
    # OpenVINO is not here, so the doctor's status is 1; what it says of TensorRT and the driver is what is wanted.
    TANDEM_TENSORRT_LIBRARY=$2 part "$1_doctor" 60 bash -c '"$0" doctor || true' "$carry/bin/tandem"
    cat "$work/$1_doctor.out"
  fi
}

machine() {
  uname -srm
  grep -m 1 'model name' /proc/cpuinfo
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem --format=csv 2>/dev/null
}

run_main() {
  local size=() speed=() race=() storm=()
  if [[ -n $small ]]; then
    size=(layers=6 width=128 scratch_mib=1) speed=(pairs=5) race=(rounds=3) storm=(runner_layers=2 storm_layers=3 seconds=1)
  fi
  bench check 60 check
  bench cases 90 cases
  bench memory 120 memory "${size[@]}"
  bench speed 120 speed "${size[@]}" "${speed[@]}"
  bench streams 90 streams "${size[@]}" ${small:+rounds=3 runs=3}
  bench storm 60 storm ${small:+width=64} "${storm[@]}"
  bench race 120 race ${small:+layers=6 width=128} "${race[@]}"
  local product
  for product in 10 11 rtx; do
    STANDIN_TEST_DRIVER=real part "standin_$product" 60 "$carry/bin/test_standin" "$product"
  done
  run_lean
}

# memcheck NAME SECONDS COMMAND...: no error, and the program did what it does without the checker
memcheck() {
  local name=memcheck_$1 before=$failed summary counts
  STANDIN_TEST_DRIVER=real TANDEM_CUDA_LIBRARY=${TANDEM_CUDA_LIBRARY:-libcuda.so.1} part "$name" "$2" \
    compute-sanitizer --tool memcheck --error-exitcode 9 --log-file "$work/$name.txt" "${@:3}"
  [[ -e $work/$name.err ]] || return # not run
  summary=$(grep -hs 'ERROR SUMMARY' "$work/$name.txt" | tail -n 1 | sed 's/^=* *//')
  # What cmocka counts, of each of a program's groups; nothing for programs without it.
  counts=$(awk '/\[  PASSED  \]/ { passed += $4 } / SKIPPED TEST\(S\)/ { skipped += $1 } / FAILED TEST\(S\)/ { failed += $1 }
    END { printf "%d passed, %d skipped, %d failed", passed, skipped, failed }' "$work/$name.out" "$work/$name.err")
  echo "$name: ${summary:-NO ERROR SUMMARY}; tests: $counts"
  printf '{"part":"%s","memcheck":"%s","tests":"%s"}\n' "$name" "${summary:-no error summary}" "$counts" >>"$results"
  [[ $summary == 'ERROR SUMMARY: 0 errors' ]] && ((failed == before)) && return
  ((failed > before)) || failed=$((failed + 1))
  grep -hE '\[  (FAILED|ERROR)  *\]|\[   LINE' "$work/$name.out" "$work/$name.err" | head -n 20
  head -n 40 "$work/$name.txt" 2>/dev/null
}

# Each program skips by name what needs the stand-in driver: faults, a memory cap, work held back, several devices,
# counted calls. Programs that need it for everything are not here: test_tensorrt_race (the memory cap; `race` and
# `devices` of gpu_bench do the same on a GPU), test_engine, test_standin_cuda (which is the stand-in driver's own).
run_memcheck() {
  local name layout
  if ! command -v compute-sanitizer >/dev/null; then
    echo "memcheck: no compute-sanitizer here"
    failed=$((failed + 1))
    return
  fi
  TANDEM_TENSORRT_LIBRARY=$standin memcheck check 120 "$carry/bin/gpu_bench" check
  for layout in ${GPU_BENCH_LAYOUTS:-11}; do # of 10, 11, rtx
    memcheck "standin_$layout" 90 "$carry/bin/test_standin" "$layout"
    for name in context graph scratch cases device; do
      memcheck "${name}_$layout" 120 "$carry/bin/test_tensorrt_$name" "$layout"
    done
    memcheck "conformance_$layout" 180 "$carry/bin/test_tensorrt" "$layout"
  done
}

run_lean() {
  local library=${TANDEM_TENSORRT_LEAN11:-$work/libnvinfer_lean.so.11}
  if [[ -z ${TANDEM_TENSORRT_LEAN11:-} ]]; then
    [[ -e $carry/libnvinfer_lean.so.11.xz ]] || { echo "lean: not carried"; return; }
    xz -dc "$carry/libnvinfer_lean.so.11.xz" >"$library" || python3 -c \
      'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
      "$carry/libnvinfer_lean.so.11.xz" "$library"
  fi
  real lean "$library"
}

run_rtx() {
  local library=${TANDEM_TENSORRT_RTX:-$work/libtensorrt_rtx.so.1}
  if [[ -z ${TANDEM_TENSORRT_RTX:-} ]]; then
    [[ -e build/carry-rtx1/part0 && -e build/carry-rtx2/part1 ]] || { echo "rtx: not carried"; return; }
    cat build/carry-rtx1/part0 build/carry-rtx2/part1 >"$work/rtx.xz"
    xz -dc "$work/rtx.xz" >"$library" || python3 -c \
      'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$work/rtx.xz" "$library"
  fi
  real rtx "$library"
  if [[ -x $carry/bin/tandem ]]; then
    # The demo: RTX builds a plan for this GPU and runs it, or says why not, which is a result too.
    TANDEM_TENSORRT_LIBRARY=$library part rtx_demo 120 bash -c \
      '"$0" demo --vendor tensorrt --size 8; echo "status $?"' "$carry/bin/tandem"
    cat "$work/rtx_demo.out" "$work/rtx_demo.err"
  fi
}

run_two() {
  bench two_devices 90 devices ${small:+width=1024}
  libraries=$carry/mutant:$carry/lib bench two_devices_broken 90 devices ${small:+width=1024}
  # The broken variant must be seen; a part that could not run proves nothing.
  if grep '"part":"two_devices_broken"' "$results" | grep -q '"engines_missing":{"value":1'; then
    echo "two_devices_broken: seen, as it has to be"
  else
    echo "two_devices_broken: NOT SEEN"
    failed=$((failed + 1))
  fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
what=${1:-main}
results=$out/$what.jsonl
: >"$results"
{
  machine
  case $what in
  main | memcheck | two | rtx | lean) "run_$what" ;;
  all) run_main; run_memcheck; run_rtx; run_two ;;
  *) echo "run.sh: expected main, memcheck, two, rtx, lean or all"; exit 2 ;;
  esac
  echo "$failed parts failed"
} 2>&1 | tee "$out/$what.log"
failed=$(tail -n 1 "$out/$what.log" | cut -d' ' -f1)
(cd "$work" && cat ./*.err >"$out/$what.err" 2>/dev/null)
# What the checker wrote, and each test by name, also those that were skipped.
rm -f "$out/$what.memcheck.txt"
compgen -G "$work/memcheck_*" >/dev/null && tail -n +1 "$work"/memcheck_*.{txt,out,err} >"$out/$what.memcheck.txt" 2>/dev/null
command -v python3 >/dev/null && python3 bench/gpu/report.py "$results" | tee "$out/$what.txt"
[[ $failed == 0 ]]
