# To be sourced. needs_torch PYTHON: ends with 77, which CTest shows as skipped, where that Python has no PyTorch. It is not
# imported, which takes seconds of each test.
needs_torch() {
  "$1" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null && return
  echo "skipped: no Python with this LibTorch's torch ('$1')"
  exit 77
}
