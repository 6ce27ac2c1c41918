#!/bin/sh
# Runs a command on a machine with NVIDIA GPUs; elsewhere says why not and ends with 77, which CTest shows as skipped.
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no NVIDIA GPU on this machine (nvidia-smi -L fails)"
  exit 77
fi
exec "$@"
