#!/bin/sh
# kubernetes_python.sh SCRIPT ARGUMENTS...: runs a Python script by the Python that reads manifests of Kubernetes. Where
# scripts/setup.sh test has not made that one, python3 runs the script, which then reports itself skipped.
python=$(dirname "$0")/../../.deps/kubernetes/bin/python
[ -x "$python" ] || python=python3
exec "$python" -B "$@"
