#!/usr/bin/env bash
# docs.sh [FOLDER]: the documentation as a site in FOLDER (build/docs): the pages, and the API reference from the headers in
# FOLDER/reference. A warning of Doxygen's is an error, and so is a link that leads nowhere.
# docs.sh pages|reference [FOLDER]: one of the two.
set -euo pipefail
cd "$(dirname "$0")/.."
part=all
case ${1:-} in pages | reference) part=$1; shift ;; esac
folder=${1:-build/docs}

need() {
  "${@:2}" >/dev/null 2>&1 || { echo "docs: expected $1, got none; make docs installs it"; exit 77; }
}

if [ $part != reference ]; then
  need "the Python package markdown-it" /usr/bin/python3 -c "import markdown_it"
  /usr/bin/python3 -B scripts/docs/site.py "$folder"
fi
if [ $part != pages ]; then
  need doxygen doxygen --version
  headers=$({ sed -n 's/^#include "\(.*\)"$/\1/p' muster/muster.h; sed '/^#/d' cmake/other_public_headers.txt; } | tr '\n' ' ')
  mkdir -p "$folder/reference"
  { cat Doxyfile; echo "INPUT = scripts/docs/reference.md muster/muster.h $headers"; echo "OUTPUT_DIRECTORY = $folder/reference"; } | doxygen -
  echo "docs: the API reference is $folder/reference/index.html"
fi
