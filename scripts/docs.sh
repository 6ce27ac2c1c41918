#!/usr/bin/env bash
# docs.sh [FOLDER]: the API reference as a site in FOLDER (build/docs), from the headers; a warning of Doxygen's is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/docs}
command -v doxygen >/dev/null || { echo "docs: expected doxygen, got no such program; make docs installs it"; exit 77; }
headers=$(sed -n 's/^#include "\(.*\)"$/\1/p' muster/muster.h | tr '\n' ' ')
mkdir -p "$folder"
{ cat Doxyfile; echo "INPUT = scripts/docs/reference.md muster/muster.h $headers"; echo "OUTPUT_DIRECTORY = $folder"; } | doxygen -
echo "docs: $folder/index.html"
