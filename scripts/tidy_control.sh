#!/usr/bin/env bash
# clang-format holds for all sources, and clang-tidy for the folders that all others stand on: one of the tests, so
# without the other folders and clang-tidy's slow checks, which `make lint` adds. Returns 77 (skipped) without the tools, or with
# others than version 14.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tidy_control.sh BUILD_FOLDER}
folders="muster/base/ muster/store/ muster/draw/ muster/device/ muster/placement/"
for tool in clang-format clang-tidy python3; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
# What the sources' form is, version 14 (Debian 12) says: another one lays them out and warns differently.
for tool in clang-format clang-tidy; do
  version=$($tool --version | sed -n 's/.*version \([0-9]*\)[.].*/\1/p')
  [ "$version" = 14 ] || { echo "skipped: expected $tool 14, got $version"; exit 77; }
done
status=0
find muster -name '*.h' -o -name '*.cc' | sort | xargs clang-format --dry-run -Werror || status=1
# A configuration in which each source is compiled by itself.
cmake -S . -B "$build/lint" -G Ninja -DMUSTER_UNITY=OFF -DMUSTER_LIBTORCH=OFF -DCMAKE_BUILD_TYPE=Release >/dev/null
python3 scripts/lint/tidy.py --quick "$build/lint" $folders || status=1
exit $status
