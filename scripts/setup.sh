#!/usr/bin/env bash
# Installs what `make train` (setup.sh train), `make test` (test), the tests labelled long (long), `make lint` (lint),
# `make bench` (bench), `make image` (image), `make packages` (packages), fuzzing (fuzz), `make docs` (docs), an edited
# checkout (dev), and the control plane's build and tests, without LibTorch (control), need, and says what.
# Distribution packages come through apt-get (sudo when not root); LibTorch comes from its PyPI wheel into .deps/.
set -euo pipefail
cd "$(dirname "$0")/.."
goal=${1:?usage: setup.sh train|test|dev|control|long|lint|bench|image|packages|fuzz|docs}

# The default LibTorch, and the two CUDA runtime packages its CPU library is linked against.
torch_version=2.15.0
torch_cpu_needs="nvidia-cuda-runtime==13.2.86 nvidia-cuda-cupti==13.2.86"
# Its reader of event files, with which a test reads what muster::Metrics has written.
tensorboard_version=2.21.0
# Judges the manifests of examples/kubernetes by the schemas of Kubernetes, without a cluster.
kubernetes_packages="kubernetes-validate==1.37.0"
# A kernel in which a test runs the Python package as a notebook does.
notebook_packages="nbclient==0.11.0 ipykernel==7.4.0 cloudpickle==3.1.3"

say() { printf 'setup: %s\n' "$*"; }

# libzstd-dev: what the archive of OpenSSL 3.5 needs.
control="pkg-config python3 python3-venv ca-certificates libhwloc-dev libcli11-dev libfmt-dev libspdlog-dev
  nlohmann-json3-dev libtomlplusplus-dev libssl-dev libpugixml-dev libcurl4-openssl-dev libgtest-dev libgmock-dev
  zlib1g-dev libzstd-dev"
needed="g++ cmake ninja-build $control libgloo-dev libbenchmark-dev libjpeg-dev libpng-dev libarchive-dev"
optional=""
# In an emulated arm64 (scripts/bare.sh) compiler and build are programs of this, the machine's own architecture.
own=${BARE_OWN_ARCH:-}
case $goal in
  train) optional="mold" ;;
  test | dev | long | lint | bench)
    needed="$needed python3-dev"  # Python.h, which the Python module includes
    optional="mold python3-markdown-it doxygen dpkg-dev e2fsprogs faketime file
      iproute2 openssh-server munge slurmctld slurmd slurm-client etcd-server
      openmpi-bin libopenmpi-dev mpich libmpich-dev"
    [ "$goal" != dev ] || optional="$optional ccache"
    [ "$goal" != long ] || optional="$optional chromium debootstrap podman crun runc"
    [ "$goal" != bench ] || optional="$optional parallel task-spooler" ;;
  control)
    needed="g++ cmake ninja-build $control"
    optional="mold e2fsprogs faketime file iproute2"
    if [ -n "$own" ]; then
      needed="cmake:$own ninja-build:$own binutils-aarch64-linux-gnu:$own libisl23:$own libmpc3:$own libmpfr6:$own
        libstdc++-12-dev-arm64-cross $control"
      optional="mold:$own ${optional#mold }"
    fi ;;
  packages) needed="$needed python3-dev dpkg-dev file" ;;
  fuzz)
    suffix=""
    [ "$(. /etc/os-release; echo "${VERSION_CODENAME:-}")" != bookworm ] || suffix=-16  # its clang is 14
    needed="$needed clang$suffix libclang-rt$suffix-dev" ;;
  image) needed="debootstrap python3" ;;
  docs) needed="doxygen python3 python3-markdown-it" ;;
  *) say "unknown goal '$goal': expected train, test, dev, control, long, lint, bench, image, packages, fuzz or docs"; exit 2 ;;
esac

# What there is not without an optional package; the tests among it report themselves skipped.
used_by() {
  case $1 in
    ccache) echo "what keeps the compiler's results" ;;
    mold*) echo "the fast linker" ;;
    chromium) echo "the test of the report in a browser" ;;
    python3-markdown-it) echo "the check of the documentation's links" ;;
    doxygen) echo "the check of the API reference" ;;
    debootstrap | podman | crun | runc) echo "the test of pods in containers" ;;
    dpkg-dev | file) echo "the test of the packages" ;;
    e2fsprogs) echo "row 9 of the fault table" ;;
    faketime) echo "row 39 of the fault table" ;;
    iproute2 | openssh-server) echo "tests of several hosts" ;;
    munge | slurm*) echo "tests under Slurm" ;;
    etcd-server) echo "tests with etcd" ;;
    openmpi-bin | libopenmpi-dev) echo "tests over Open MPI" ;;
    mpich | libmpich-dev) echo "tests over MPICH" ;;
    *) echo "a peer in make bench" ;;
  esac
}

not_installed() {
  local package
  for package; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf ' %s' "$package"
  done
}

# Leaves in `missing` what apt's lists offer. An optional package that they do not have is said; a needed one is the end.
keep_what_is_offered() {
  local package wanted=$missing
  missing=""
  for package in $wanted; do
    if [[ $(LC_ALL=C apt-cache policy "$package") == *"Candidate: "[!\(]* ]]; then
      missing="$missing $package"
    elif [[ " $(echo $optional) " == *" $package "* ]]; then
      say "no package $package on this system: without $(used_by "$package")"
    else
      say "expected the package $package, which $(. /etc/os-release; echo "$PRETTY_NAME") does not offer; on Ubuntu, enable universe"
      exit 1
    fi
  done
}

# --- LibTorch -------------------------------------------------------------------------------------------------------
# With an NVIDIA driver, or for the tests (PyTorch itself is the oracle they compare with), the whole wheel;
# else only what C++ on CPU links against.
whole=0
[ "$goal" != train ] && whole=1
if [ -e /proc/driver/nvidia/version ] || [[ $(ldconfig -p 2>/dev/null) == *libcuda.so.1* ]]; then whole=1; fi

# The stamp is written last, so an interrupted installation is done again.
venv=.deps/torch-$torch_version
cpu_stamp=$venv/.muster-cpu
whole_stamp=$venv/.muster-whole
pip="$venv/bin/pip install --quiet --disable-pip-version-check"

# Some goals need no LibTorch, and TORCH names another one.
needs_torch() {
  [[ " control docs fuzz image " != *" $goal "* ]] && [ -z "${TORCH:-}" ] && [ ! -e $whole_stamp ] &&
    { [ $whole = 1 ] || [ ! -e $cpu_stamp ]; }
}

install_torch() {
  [ -x $venv/bin/pip ] || { rm -rf $venv; /usr/bin/python3 -m venv $venv; }
  if [ $whole = 1 ]; then
    $pip torch==$torch_version numpy safetensors setuptools
    touch $cpu_stamp $whole_stamp
  else
    $pip --no-deps torch==$torch_version $torch_cpu_needs
    touch $cpu_stamp
  fi
  ln -sfn torch-$torch_version .deps/torch
}

# Beside apt-get, which takes as long.
torch_job=
begin_torch() {
  needs_torch || return 0
  if [ $whole = 1 ]; then
    say "installing LibTorch: torch==$torch_version, whole (5.5 GB, a minute or two), into $venv"
  else
    say "installing LibTorch: torch==$torch_version, CPU part (1.3 GB), into $venv"
  fi
  set -m  # in a process group of its own, so that it can be ended whole
  install_torch &
  set +m
  torch_job=$!
  trap 'kill -- -$torch_job' EXIT  # where apt-get fails
}

end_torch() {
  [ -n "$torch_job" ] || return 0
  trap - EXIT
  wait "$torch_job" || { say "LibTorch could not be installed (above)"; exit 1; }
}

add_tensorboard() {
  [ "$goal" = test ] || [ "$goal" = long ] || return 0
  [ ! -d "$(echo $venv/lib/python3*/site-packages/tensorboard-$tensorboard_version.dist-info)" ] || return 0
  say "installing tensorboard==$tensorboard_version, for its reader of event files (80 MB), into $venv"
  $pip tensorboard==$tensorboard_version || say "pip failed (above): the test of event files uses its own reader"
}

add_notebook() {
  [ "$goal" = test ] || [ "$goal" = long ] || [ "$goal" = dev ] || return 0
  ! $venv/bin/python -c "import nbclient, ipykernel, cloudpickle" 2>/dev/null || return 0
  say "installing $notebook_packages, for a test of notebooks (30 MB), into $venv"
  $pip $notebook_packages || say "pip failed (above): the test of notebooks will be skipped"
}

add_kubernetes() {
  local venv=.deps/kubernetes stamp
  [ "$goal" = test ] || [ "$goal" = long ] || [ "$goal" = dev ] || return 0
  stamp=$venv/.muster-$kubernetes_packages
  [ ! -e "$stamp" ] || return 0
  say "installing $kubernetes_packages, which judges manifests for Kubernetes (140 MB), into $venv"
  rm -rf $venv
  /usr/bin/python3 -m venv $venv
  if $venv/bin/pip install --quiet --disable-pip-version-check $kubernetes_packages; then
    touch "$stamp"
  else
    rm -rf $venv
    say "pip failed (above): the tests of manifests will be skipped"
  fi
}

# --- distribution packages ------------------------------------------------------------------------------------------
command -v apt-get >/dev/null || {
  say "expected Debian or Ubuntu, got a system without apt-get; install by hand what these packages have:" $needed
  exit 1
}

apt_install() {
  [ $# -gt 0 ] || return 0
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1 || {
    tail -n 20 "$log"; say "apt-get failed (above); the packages wanted were: $*"; exit 1
  }
}

missing=$(not_installed $needed $optional)
lists=$(find /var/lib/apt/lists -name '*Packages*' -print -quit 2>/dev/null)
[ -n "$(not_installed $needed)" ] || [ -z "$lists" ] || keep_what_is_offered  # old lists will do for what is optional
sudo=""
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "not root and no sudo: ask an administrator for:$missing"; exit 1; }
    sudo=sudo
  fi
  log=$(mktemp)
  [ -z "$own" ] || $sudo dpkg --add-architecture "$own"
  $sudo apt-get update -qq >"$log" 2>&1 || { tail -n 20 "$log"; say "apt-get update failed (above)"; exit 1; }
  keep_what_is_offered
  say "installing distribution packages:$missing"
  if needs_torch; then apt_install $(not_installed python3 python3-venv ca-certificates); fi
  begin_torch
  apt_install $missing
  rm -f "$log"
else
  begin_torch
fi
end_torch

# apt does not install these: they depend on packages for any architecture, which it takes for the emulated one's.
add_cross_compiler() {
  [ "$goal" = control ] && [ -n "$own" ] || return 0
  ! command -v aarch64-linux-gnu-g++ >/dev/null || return 0
  say "unpacking the compiler of $own for arm64"
  local folder package
  folder=$(mktemp -d)
  (cd "$folder" && apt-get download -qq {cpp,gcc,g++}-12-aarch64-linux-gnu:"$own")
  for package in "$folder"/*.deb; do $sudo dpkg-deb --extract "$package" /; done
  rm -r "$folder"
  for package in gcc g++; do $sudo ln -s aarch64-linux-gnu-$package-12 /usr/bin/aarch64-linux-gnu-$package; done
  $sudo ln -s /usr/bin/aarch64-linux-gnu-readelf /usr/local/bin/readelf
}
add_cross_compiler

# --- what else the goal needs ---------------------------------------------------------------------------------------
if [[ " control docs fuzz image " == *" $goal "* ]]; then exit 0; fi

if [ "$goal" = lint ] && ! cmp -s scripts/lint/requirements.txt .deps/lint/installed.txt; then
  say "installing for make lint, into .deps/lint:" $(grep -v '^#' scripts/lint/requirements.txt)
  rm -rf .deps/lint
  /usr/bin/python3 -m venv .deps/lint
  .deps/lint/bin/pip install --quiet --disable-pip-version-check -r scripts/lint/requirements.txt
  cp scripts/lint/requirements.txt .deps/lint/installed.txt
fi

# Commit messages are looked at in a checkout, unless it has hooks of its own.
if [ -e .git ] && command -v git >/dev/null && [ -z "$(git config core.hooksPath || true)" ]; then
  git config core.hooksPath scripts/hooks 2>/dev/null && say "git looks at commit messages by scripts/hooks (core.hooksPath)" || true
fi

if [ -n "${TORCH:-}" ]; then
  say "LibTorch: TORCH=$TORCH, as asked"
  exit 0
fi
add_tensorboard
add_notebook
add_kubernetes
