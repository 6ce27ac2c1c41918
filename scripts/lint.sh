#!/usr/bin/env bash
# lint.sh [--quick] [PREFIX...]: what judges the sources, and says nothing to a user: spelling, the style of the pages,
# clang-format over every source, how dense the lines of muster/ are, that each source includes what it uses, the types of the
# Python package, then clang-tidy over everything that is compiled (or what begins with PREFIX). The first time takes long
# (LibTorch's headers are large); later only what changed is looked at. --quick leaves out clang-tidy. The tools are those of
# scripts/lint/requirements.txt, which scripts/setup.sh lint installs. Needs no build.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.deps/lint/bin:$PATH
status=0
scripts/lint/spelling.sh || status=1
python3 -B scripts/lint/style.py || status=1
scripts/lint/format.sh || status=1
python3 -B scripts/lint/includes.py || status=1
python3 -B scripts/lint/own_includes.py || status=1
.deps/lint/bin/python -B scripts/lint/density.py || status=1
(cd python && mypy --no-error-summary --cache-dir ../build/mypy) || status=1
if [ "${1:-}" != --quick ]; then
  cmake -S . -B build/lint -G Ninja -DMUSTER_UNITY=ON -DTORCH="${TORCH:-}" >/dev/null
  python3 -B scripts/lint/tidy.py build/lint "$@" || status=1
fi
[ $status = 0 ] && echo "lint: nothing found" || echo "lint: something was found (above)"
exit $status
