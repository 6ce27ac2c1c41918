#!/usr/bin/env bash
# Spelling of pages, comments and messages: codespell over all that is written by hand. 77: codespell is not installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v codespell >/dev/null || { echo "spelling: expected codespell, got no such program; skipped"; exit 77; }
# Names in code, and mistakes that tests make on purpose.
known=contniue,fro,kown,nce,nd,ot,statics,ue,upto,wieght
git ls-files -z | grep -zvE '^(data|tests/data|tests/fuzz/corpus)/|^LICENSE$|\.(svg|png)$' |
  xargs -0 codespell --quiet-level 3 --ignore-words-list "$known"
