#!/usr/bin/env bash
# clang-format over every source, then clang-tidy over everything that the build compiles. The first time takes
# long (LibTorch's headers are large); later only what changed is looked at.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: lint.sh BUILD_FOLDER}
status=0
echo "clang-format: $(git ls-files '*.h' '*.cc' | wc -l) files"
git ls-files -z '*.h' '*.cc' | xargs -0 clang-format --dry-run -Werror || status=1  # make format mends
python3 scripts/lint/tidy.py "$build" || status=1
exit $status
