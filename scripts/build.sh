#!/usr/bin/env bash
# Configures (once) and builds into the folder given; says how long it took when it took long.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: build.sh BUILD_FOLDER}
start=$SECONDS
mkdir -p "$build"
if [ ! -e "$build/build.ninja" ] || [ "$(cat "$build/.torch" 2>/dev/null)" != "${TORCH:-}" ]; then
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release ${TORCH:+-DTORCH="$TORCH"} >"$build.log" 2>&1 || {
    cat "$build.log"; exit 1; }
  mv "$build.log" "$build/configure.log"
  printf '%s' "${TORCH:-}" >"$build/.torch"
fi
cmake --build "$build" -- --quiet
[ $((SECONDS - start)) -lt 5 ] || echo "build: done in $((SECONDS - start)) s ($build)"
