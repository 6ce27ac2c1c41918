#!/usr/bin/env bash
# build.sh FOLDER [TARGETS...]: configures (once, and again when TORCH changes) and builds; says how long it took.
# build/install is what gets installed: -O2, and no tests.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: build.sh FOLDER [TARGETS...]}
shift
start=$SECONDS
torch=${TORCH:-}
[ -e "$torch" ] && torch=$(realpath --no-symlinks "$torch")  # a python inside a virtual environment is a symbolic link
# `make train` may have installed LibTorch's CPU part and `make test` then the whole: another configuration.
torch_kind=$torch
[ -n "$torch" ] || { [ -e .deps/torch/.muster-whole ] && torch_kind=whole; } || true
kind=()
[ "${build##*/}" != install ] || kind=(-DMUSTER_OPTIMIZE=2 -DMUSTER_TESTS=OFF -DMUSTER_BENCHMARKS=OFF)
mkdir -p "$build"
if [ ! -e "$build/build.ninja" ] || [ "$(cat "$build/.torch" 2>/dev/null)" != "$torch_kind" ]; then
  echo "build: configuring $build"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTORCH="$torch" "${kind[@]}" >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log"
    exit 1
  }
  printf '%s' "$torch_kind" >"$build/.torch"
fi
cmake --build "$build" --parallel "$(nproc)" ${1:+--target "$@"}
[ $((SECONDS - start)) -lt 5 ] || echo "build: done in $((SECONDS - start)) s ($build)"
