#!/usr/bin/env bash
# lint.sh [--quick]: spelling, the style of the pages, clang-format over every source, then clang-tidy over everything that
# is compiled. The first time takes long (LibTorch's headers are large); later only what changed is looked at. --quick
# leaves out clang-tidy's slow checks. Needs no build, only its configuration, in which each source is compiled by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
scripts/lint/spelling.sh || [ $? = 77 ] || status=1
python3 scripts/lint/style.py || status=1
scripts/lint/format.sh || status=1
cmake -S . -B build/lint -G Ninja -DMUSTER_UNITY=OFF -DTORCH="${TORCH:-}" >/dev/null
python3 scripts/lint/tidy.py "$@" build/lint || status=1
exit $status
