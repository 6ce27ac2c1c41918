#!/usr/bin/env bash
# Runs the tests of a build folder. Tests that this machine cannot run (no GPU, say) report themselves skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: test.sh BUILD_FOLDER}
# The longest tests begin first, so that none of them runs alone at the end. ctest measures which those are; before its
# first run in a folder it has the seconds that they took on two cores.
costs=$build/Testing/Temporary/CTestCostData.txt
[ -e "$costs" ] || { mkdir -p "${costs%/*}" && cp tests/costs.txt "$costs"; }
# Four more than there are cores: many tests wait for a time limit or for a process's end.
exec ctest --test-dir "$build" --output-on-failure --parallel $(($(nproc) + 4)) --label-exclude long
