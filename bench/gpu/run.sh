#!/usr/bin/env bash
# Everything of docs/measurements.md that needs a GPU, in one command on any machine with NVIDIA's driver:
#
#   bench/gpu/run.sh [main | two | rtx | lean | all]      (main)
#
#   main  one GPU: real lean runtime, memory, speed, streams, storm, race, field cases, memory checker; under 8 minutes
#   two   two GPUs: the same bytes on both, and the broken variant that takes them for one
#   rtx   real TensorRT-RTX: from build/carry-rtx1 and -rtx2, or TANDEM_TENSORRT_RTX
#
# What prepare.sh gathered in build/carry is used; without that it is built here first. JSON lines, logs and a table
# go to $OUT (build/gpu-results). Every part has its own bound in time, all together GPU_BENCH_SECONDS (470); a part
# that fails does not stop the rest.
# GPU_BENCH_SMALL=1 makes everything small, to try the script itself over the stand-in driver.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD carry=$PWD/build/carry out=${OUT:-$PWD/build/gpu-results}
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
  ((left < seconds)) && seconds=$((left > 1 ? left : 1))
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
  if command -v compute-sanitizer >/dev/null; then
    # memcheck NAME COMMAND: no error, and the program did what it does without the checker
    local name
    TANDEM_TENSORRT_LIBRARY=$standin part memcheck_check 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
      --log-file "$work/memcheck_check.txt" "$carry/bin/gpu_bench" check
    STANDIN_TEST_DRIVER=real part memcheck_standin_11 120 compute-sanitizer --tool memcheck --error-exitcode 9 \
      --log-file "$work/memcheck_standin_11.txt" "$carry/bin/test_standin" 11
    for name in memcheck_check memcheck_standin_11; do
      echo "$name: $(grep -h 'ERROR SUMMARY' "$work/$name.txt" | tail -n 1)"
      grep -q 'ERROR SUMMARY: 0 errors' "$work/$name.txt" || failed=$((failed + 1))
    done
  else
    echo "memcheck: no compute-sanitizer here"
  fi
  run_lean
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
  main | two | rtx | lean) "run_$what" ;;
  all) run_main && run_rtx && run_two ;;
  *) echo "run.sh: expected main, two, rtx, lean or all"; exit 2 ;;
  esac
  echo "$failed parts failed"
} 2>&1 | tee "$out/$what.log"
failed=$(tail -n 1 "$out/$what.log" | cut -d' ' -f1)
(cd "$work" && cat ./*.err >"$out/$what.err" 2>/dev/null)
command -v python3 >/dev/null && python3 bench/gpu/report.py "$results" | tee "$out/$what.txt"
[[ $failed == 0 ]]
