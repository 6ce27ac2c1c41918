#!/usr/bin/env bash
# clang-format over every source. `make format` rewrites them.
set -euo pipefail
cd "$(dirname "$0")/../.."
echo "clang-format: $(git ls-files '*.h' '*.cc' | wc -l) files"
git ls-files -z '*.h' '*.cc' | xargs -0 clang-format --dry-run -Werror
