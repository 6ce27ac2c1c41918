#!/usr/bin/env bash
# Spelling of pages, comments and messages: codespell over all that is written by hand.
set -euo pipefail
cd "$(dirname "$0")/../.."
# Names in code, and mistakes that tests make on purpose.
known=abd,caf,contniue,fro,kown,maschine,nce,nd,ot,ownloaders,statics,ue,upto,wieght
git ls-files -z | grep -zvE '^(data|tests/data|tests/fuzz/corpus)/|^LICENSE$|\.(svg|png)$' |
  xargs -0 codespell --quiet-level 3 --ignore-words-list "$known"
