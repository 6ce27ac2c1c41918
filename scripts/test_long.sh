#!/usr/bin/env bash
# What takes longer than `make test` may: the tests labelled long, the sanitizers, fuzzing, the second LibTorch, clang,
# `make lint`, all tests on a busy machine, and `make train` and `make test`, and the packages, on bare systems, and the
# control plane on arm64. Says each step and stops at the first that fails. `test_long.sh STEP...` runs only these: long asan
# tsan fuzz torch clang lint busy bare packages arm64.
set -euo pipefail
cd "$(dirname "$0")/.."

second_torch=2.11.0
jobs=$(nproc)
supports=$PWD/tests/support

step() { printf '\n== test-long: %s\n' "$*"; }

# build_preset NAME ARGUMENTS...: with the asked-for LibTorch where TORCH names one.
build_preset() {
  cmake --preset "$1" ${TORCH:+-DTORCH="$TORCH"} "${@:2}"
  cmake --build --preset "$1"
}

# Those that read the sources only (label: sources) and the long ones have been run on the plain build.
tests_of() { ctest --test-dir "$1" --output-on-failure --parallel "$jobs" "${@:2}"; }

# The stress test of shared memory in a build, for ten minutes (STRESS_SECONDS: of each of its two parts).
stress() { MUSTER_STRESS_SECONDS=${STRESS_SECONDS:-300} "$1"/tests/shm_test --gtest_filter='Stress*'; }

run_long() {
  step "the tests labelled long, the report in a browser, and stress (build/release)"
  scripts/setup.sh long
  scripts/build.sh build/release all benchmarks
  tests_of build/release --label-regex '^long$' --no-tests=ignore
  tests_of build/release --tests-regex '^report.browser$'
  stress build/release
}

run_asan() {
  step "everything under the address and undefined-behaviour sanitizers (build/asan)"
  build_preset asan
  ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 \
  LSAN_OPTIONS=suppressions=$supports/lsan.supp:print_suppressions=0 \
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    tests_of build/asan --label-exclude '^(sources|long)$'
  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 stress build/asan
}

run_tsan() {
  step "the control plane under the thread sanitizer (build/tsan)"
  build_preset tsan -DMUSTER_LIBTORCH=OFF
  TSAN_OPTIONS=suppressions=$supports/tsan.supp:halt_on_error=1:second_deadlock_stack=1 \
    tests_of build/tsan --label-exclude '^(sources|long)$'
  TSAN_OPTIONS=suppressions=$supports/tsan.supp:halt_on_error=1 stress build/tsan
}

# What setup.sh fuzz installs: Debian 12's clang++ is 14, and muster needs 16.
own_clang() { command -v clang++-16 || echo clang++; }

run_fuzz() {
  local seconds=${FUZZ_SECONDS:-60} build=build/fuzz
  step "each parser of foreign files, and the --gpus grammar, fed with anything for $seconds s ($build)"
  scripts/setup.sh fuzz
  cmake -S . -B $build -G Ninja -DCMAKE_CXX_COMPILER="$(own_clang)" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DMUSTER_LIBTORCH=OFF \
    -DMUSTER_BENCHMARKS=OFF -DMUSTER_FUZZ=ON -DMUSTER_SANITIZE=fuzzer-no-link,address,undefined
  cmake --build $build --target fuzz
  local corpus name
  for corpus in tests/fuzz/corpus/*; do
    name=${corpus##*/}
    echo "-- $name"
    mkdir -p $build/found/"$name"
    # What it finds new goes to build/, what breaks a parser too: crash-<hash>, to be added to the corpus when mended.
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $build/fuzz/fuzz_"$name" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=3000 -max_len=16384 -print_final_stats=1 -verbosity=0 -artifact_prefix=$build/found/ \
      $build/found/"$name" "$corpus"
  done
}

run_torch() {
  step "the tests again with LibTorch $second_torch (build/torch-${second_torch%.*})"
  local venv=.deps/torch-$second_torch build=build/torch-${second_torch%.*}
  if [ ! -e $venv/.muster-whole ]; then
    echo "installing torch==$second_torch, whole (5.5 GB), into $venv"
    rm -rf $venv
    /usr/bin/python3 -m venv $venv
    $venv/bin/pip install --quiet --disable-pip-version-check torch==$second_torch numpy safetensors "setuptools>=70.1"
    touch $venv/.muster-whole
  fi
  TORCH=$PWD/$venv/bin/python scripts/build.sh "$build" all benchmarks
  tests_of "$build" --label-exclude '^(sources|long)$'
}

run_clang() {
  step "everything built by clang++, and the tests (build/clang)"
  scripts/setup.sh fuzz
  cmake -S . -B build/clang -G Ninja -DCMAKE_CXX_COMPILER="$(own_clang)" -DCMAKE_BUILD_TYPE=Release -DTORCH="${TORCH:-}"
  cmake --build build/clang --target all benchmarks
  tests_of build/clang --label-exclude '^(sources|long)$'
}

run_lint() {
  step "spelling, style, clang-format and clang-tidy over everything (build/lint)"
  scripts/setup.sh lint
  scripts/lint.sh
}

# beside_busy_loops CPUS COMMAND...: COMMAND and four loops that never rest, all on these CPUs.
beside_busy_loops() {
  local cpus=$1 loops=() code=0 i
  shift
  for i in 1 2 3 4; do
    taskset -c "$cpus" setpriv --pdeathsig KILL sh -c 'while :; do :; done' &
    loops+=($!)
  done
  taskset -c "$cpus" "$@" || code=$?
  kill "${loops[@]}"
  wait "${loops[@]}" 2>/dev/null || true
  return $code
}

# BUSY_TIMES: how often beside the busy loops.
run_busy() {
  local i
  scripts/setup.sh test
  scripts/build.sh build/release
  for ((i = 1; i <= ${BUSY_TIMES:-5}; ++i)); do
    step "make test's tests beside four busy loops on two CPUs, $i of ${BUSY_TIMES:-5}"
    beside_busy_loops 0,1 scripts/test.sh build/release
  done
  step "make test's tests on one CPU"
  taskset -c 0 scripts/test.sh build/release
}

# RELEASES: code names of Debian; sid is a look ahead, at the next compilers.
run_bare() {
  local release
  for release in ${RELEASES:-bookworm trixie sid}; do
    step "make train, make test and make install on a bare Debian $release; then the examples, without the checkout"
    scripts/bare.sh "$release" bash -euxc '
      make train
      make test
      make install PREFIX=/opt/muster
      cd /
      rm -rf /root/muster
      cmake -S /opt/muster/share/doc/muster/examples -B /tmp/examples -DCMAKE_PREFIX_PATH=/opt/muster
      cmake --build /tmp/examples --parallel
      /opt/muster/bin/muster run /tmp/examples/train --epochs 1'
  done
}

run_packages() {
  step "the packages, installed on a Debian that has neither a compiler nor LibTorch"
  scripts/setup.sh packages
  scripts/packages.sh build/packages
  local torch
  torch=$(.deps/torch/bin/python -c 'import torch; print(torch.__version__.split("+")[0])')
  # Packages and wheel are for the Debian, and its interpreter, that made them.
  . /etc/os-release
  BARE_FILES=$(echo build/packages/*.deb build/packages/*.whl) scripts/bare.sh "$VERSION_CODENAME" bash -euxc '
    rm -rf /root/muster
    cd /root/files
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends ./muster_*.deb
    muster run -n 2 sh -c "echo rank \$RANK"
    apt-get install -y -qq --no-install-recommends ./libmuster-dev_*.deb cmake g++ python3-venv
    python3 -m venv /root/venv
    . /root/venv/bin/activate
    pip install --quiet torch=='"$torch"' ./muster-*.whl ./muster_torch-*.whl
    cmake -S /usr/share/doc/muster/examples/00_hello -B /root/hello
    cmake --build /root/hello
    /root/hello/hello
    python -c "import muster, torch.distributed, muster_torch._compiled; print(muster.plan(n=2))"'
}

# Where this machine is another one, qemu runs the tests; the compiler is a program of this machine's. qemu notes each page of
# the addresses that shared memory takes, which takes long, so the tests have few.
run_arm64() {
  local code=0
  step "the control plane, shared memory and the Python package on Debian arm64"
  scripts/bare.sh --arch arm64 bash -euc '
    scripts/setup.sh control
    cmake --preset control ${BARE_OWN_ARCH:+--toolchain cmake/aarch64.cmake} -DMUSTER_BENCHMARKS=OFF
    cmake --build --preset control
    ulimit -v 8000000
    ctest --preset control --label-exclude "^(sources|long)$" --parallel "$(nproc)"' || code=$?
  [ $code != 125 ] || outcome="skipped (why: above)"
  [ $code = 125 ] || return $code
}

[ $# -gt 0 ] || set -- long asan tsan fuzz torch clang lint busy bare packages arm64
for name in "$@"; do
  case $name in
    long | asan | tsan | fuzz | torch | clang | lint | busy | bare | packages | arm64) ;;
    *) echo "test-long: expected long, asan, tsan, fuzz, torch, clang, lint, busy, bare, packages or arm64, got '$name'"; exit 2 ;;
  esac
done
for name in "$@"; do
  start=$SECONDS
  current=$name
  outcome=passed
  trap 'echo; echo "test-long: FAILED in step $current after $((SECONDS - start)) s" >&2' EXIT
  "run_$name"
  trap - EXIT
  echo "== test-long: $name $outcome in $((SECONDS - start)) s"
done
