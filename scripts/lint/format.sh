#!/usr/bin/env bash
# clang-format over every source. `make format` rewrites them. 77: clang-format is not installed, or not version 14
# (Debian 12), which says what the sources' form is.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v clang-format >/dev/null || { echo "clang-format: expected the program, got none; skipped"; exit 77; }
version=$(clang-format --version | sed -n 's/.*version \([0-9]*\)[.].*/\1/p')
[ "$version" = 14 ] || { echo "clang-format: expected version 14, got $version; skipped"; exit 77; }
echo "clang-format: $(git ls-files '*.h' '*.cc' | wc -l) files"
git ls-files -z '*.h' '*.cc' | xargs -0 clang-format --dry-run -Werror
