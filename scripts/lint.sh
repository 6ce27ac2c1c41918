#!/usr/bin/env bash
# Spelling, the style of the pages, clang-format over every source, then clang-tidy over everything that is compiled. The
# first time takes long (LibTorch's headers are large); later only what changed is looked at. Needs no build, only its
# configuration, in which each source is compiled by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
scripts/lint/spelling.sh || [ $? = 77 ] || status=1
python3 scripts/lint/style.py || status=1
echo "clang-format: $(git ls-files '*.h' '*.cc' | wc -l) files"
git ls-files -z '*.h' '*.cc' | xargs -0 clang-format --dry-run -Werror || status=1  # make format mends
cmake -S . -B build/lint -G Ninja -DMUSTER_UNITY=OFF -DTORCH="${TORCH:-}" >/dev/null
python3 scripts/lint/tidy.py build/lint || status=1
exit $status
