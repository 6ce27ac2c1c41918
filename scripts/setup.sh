#!/usr/bin/env bash
# Installs what `make train` (setup.sh train), `make test` (test), `make bench` (bench) and fuzzing (fuzz) need, and says
# what.
# Distribution packages come through apt-get (sudo when not root); LibTorch comes from its PyPI wheel into .deps/.
set -euo pipefail
cd "$(dirname "$0")/.."
goal=${1:?usage: setup.sh train|test|bench|fuzz}

# The default LibTorch, and the two CUDA runtime packages its CPU library is linked against.
torch_version=2.15.0
torch_cpu_needs="nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86"

say() { printf 'setup: %s\n' "$*"; }

packages="g++ cmake ninja-build pkg-config python3 python3-venv ca-certificates
  libgloo-dev libhwloc-dev libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libtomlplusplus-dev
  libssl-dev libpugixml-dev libcurl4-openssl-dev libgtest-dev libgmock-dev libbenchmark-dev zlib1g-dev"
case $goal in
  train) ;;
  # The last two lines: what the tests of several hosts and of the backend over MPI are tested with.
  test | bench) packages="$packages clang-format clang-tidy
    iproute2 openssh-server munge slurmctld slurmd slurm-client etcd-server faketime
    openmpi-bin libopenmpi-dev mpich libmpich-dev"
    [ "$goal" = test ] || packages="$packages parallel task-spooler" ;;  # peers
  fuzz) packages="$packages clang libclang-rt-dev" ;;
  *) say "unknown goal '$goal': expected train, test, bench or fuzz"; exit 2 ;;
esac

missing=""
for p in $packages; do
  dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed' || missing="$missing $p"
done
if [ -n "$missing" ]; then
  say "installing distribution packages:$missing"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "not root and no sudo: ask an administrator for:$missing"; exit 1; }
    sudo=sudo
  fi
  log=$(mktemp)
  if ! { $sudo apt-get update -qq &&
         $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log"; say "apt-get failed (above); the packages wanted were:$missing"; exit 1
  fi
  rm -f "$log"
fi

if [ "$goal" = fuzz ]; then exit 0; fi  # the control plane alone

if [ -n "${TORCH:-}" ]; then
  say "LibTorch: TORCH=$TORCH, as asked"
  exit 0
fi

# With an NVIDIA driver, or for the tests (PyTorch itself is the oracle they compare with), the whole wheel;
# else only what C++ on CPU links against.
whole=0
[ "$goal" != train ] && whole=1
if [ -e /proc/driver/nvidia/version ] || ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then whole=1; fi

# The stamp is written last, so an interrupted installation is done again.
venv=.deps/torch-$torch_version
cpu_stamp=$venv/.muster-cpu
whole_stamp=$venv/.muster-whole
if [ -e $whole_stamp ] || { [ $whole = 0 ] && [ -e $cpu_stamp ]; }; then exit 0; fi
[ -x $venv/bin/pip ] || { rm -rf $venv; /usr/bin/python3 -m venv $venv; }
pip="$venv/bin/pip install --quiet --disable-pip-version-check"
if [ $whole = 1 ]; then
  say "installing LibTorch: torch==$torch_version, whole (5.5 GB, a minute or two), into $venv"
  $pip torch==$torch_version numpy safetensors setuptools
  touch $cpu_stamp $whole_stamp
else
  say "installing LibTorch: torch==$torch_version, CPU part (1.3 GB), into $venv"
  $pip --no-deps torch==$torch_version $torch_cpu_needs
  touch $cpu_stamp
fi
ln -sfn torch-$torch_version .deps/torch
