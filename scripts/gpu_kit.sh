#!/usr/bin/env bash
# gpu_kit.sh [make]     makes build/gpu-kit/kit: a folder that tests and measures muster on a machine with
#                       an NVIDIA GPU, no network and no packages: glibc 2.36 or newer, and a Python 3.12 with torch 2.11.
#                       There: ./run [MINUTES]; ./run --help
# gpu_kit.sh prove      runs the kit in a Debian without a network, with such a Python: all but the GPU's parts must pass.
#
#   PYTHON     the Python 3.12 with torch 2.11 that the kit is built against (default: made in .deps/ with python3.12)
set -euo pipefail
cd "$(dirname "$0")/.."

torch=2.11.0
work=build/gpu-kit
kit=$work/kit
most_mib=70
programs="muster_cli muster_bench muster_cuda muster train gpt resnet comm_test conformance_ranks ddp_programs train_programs
  run_probes gpu_probe gpu_bench data_test fake_cuda fake_nvml count_waits trace_probe"

say() { echo "gpu-kit: $*"; }
fail() { say "$*" >&2; exit 1; }

# Leaves in `python` one that imports torch.
find_python() {
  python=${PYTHON:-.deps/torch-$torch-kit/bin/python}
  if [ -z "${PYTHON:-}" ] && [ ! -e "${python%/bin/python}/.whole" ]; then
    command -v python3.12 >/dev/null || fail "expected python3.12, got no such program; give PYTHON=<a Python 3.12 with torch $torch>"
    say "installing torch==$torch, whole (5 GB), into ${python%/bin/python}"
    rm -rf "${python%/bin/python}"
    python3.12 -m venv "${python%/bin/python}"
    "$python" -m pip install --quiet --disable-pip-version-check torch==$torch numpy safetensors "setuptools>=70.1"
    touch "${python%/bin/python}/.whole"
  fi
  local found
  found=$("$python" -c 'import sys, torch; print("%d.%d" % sys.version_info[:2], torch.__version__.split("+")[0])')
  [ "$found" = "3.12 $torch" ] || fail "expected Python 3.12 with torch $torch, got $found ($python)"
}

# The libraries that programs need, but LibTorch and every Linux do not have.
libraries_of() {
  ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|ld-linux[^/]*)\.so|/site-packages/|/build/' || true
}

make_kit() {
  find_python
  cmake -S . -B $work/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTORCH="$(realpath -s "$python")" -DMUSTER_CUDA=ON \
    ${CMAKE_CXX_COMPILER_LAUNCHER:+-DCMAKE_CXX_COMPILER_LAUNCHER=$CMAKE_CXX_COMPILER_LAUNCHER} >$work.log 2>&1 ||
    { tail -n 20 $work.log; fail "the configuration failed (above)"; }
  # shellcheck disable=SC2086
  cmake --build $work/build --target $programs muster_c
  MUSTER_PROGRAM=$PWD/$work/build/bin/muster python3 -B tests/python/build_module.py "$python" "$PWD" $work/module

  rm -rf $kit
  mkdir -p $kit/build/{bin,lib,libexec/muster,tests,benchmarks} $kit/lib $kit/python $kit/source/{scripts,tests,data,benchmarks}
  local folder name files
  for folder in bin lib libexec/muster tests benchmarks; do
    files=()
    for name in "$work/build/$folder"/*; do
      [ -f "$name" ] && [[ $name != *mpi* ]] || continue
      case $name in *.cmake | *.txt | *.json | *.suites) continue ;; esac
      files+=("$name")
    done
    cp --preserve=links "${files[@]}" "$kit/build/$folder/"  # programs of tests share a binary
  done
  # A test looks for a function of gpu_probe in a stack.
  find $kit/build -type f ! -name '*.py' ! -name gpu_probe -exec strip --strip-unneeded {} + 2>/dev/null || true
  # Libraries in the wheels' folders are found by LD_LIBRARY_PATH there.
  # shellcheck disable=SC2046
  cp $(libraries_of $kit/build/bin/* $kit/build/lib/* $kit/build/tests/* $kit/build/benchmarks/*) $kit/lib/
  cp -r $work/module/muster $work/module/muster_torch $work/module/_muster_autoload.py $work/module/*.dist-info $kit/python/
  cp -r scripts/gpu_kit $kit/source/scripts/
  git ls-files -z tests/ddp tests/train tests/cuda tests/cluster/hosts.py tests/device tests/support tests/python tests/run benchmarks/gpu_step.py | grep -zE '\.(py|sh)$' |
    xargs -0 cp --parents -t $kit/source
  cp data/digits.csv.gz data/shakespeare.txt.gz $kit/source/data/
  git describe --always --dirty >$kit/version
  cat >$kit/run <<'END'
#!/bin/sh
exec "${PYTHON:-python3}" -B "$(dirname "$0")/source/scripts/gpu_kit/run_parts.py" "$@"
END
  chmod +x $kit/run
  local mib
  mib=$(du -sm $kit | cut -f1)
  [ "$mib" -le $most_mib ] || { du -m $kit | sort -n | tail -n 12; fail "expected at most $most_mib MiB, got $mib"; }
  say "$kit: $mib MiB, against torch $torch; on the machine with a GPU: ./run [MINUTES]"
}

# In a Debian of its own, without a network: this machine's Python and the kit are seen there, and nothing else of it.
prove() {
  [ -x $kit/run ] || make_kit
  find_python
  [ "$(id -u)" = 0 ] || fail "not root: mounts cannot be made"
  command -v debootstrap >/dev/null || fail "expected debootstrap, got no such program; apt-get install debootstrap"
  local root=$work/root home mirror
  home=$(dirname "$(dirname "$(realpath "$python")")")
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' 2>/dev/null | sed -n 1p)
  if [ ! -e $root/.made ]; then
    rm -rf --one-file-system $root
    # What a Python that was built from source needs, and the tests' tools.
    # shellcheck disable=SC2086
    debootstrap --variant=minbase --include=libffi8,libssl3,zlib1g,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,libuuid1,libncursesw6,libexpat1,procps \
      bookworm $root $mirror >$work/debootstrap.log 2>&1 || { tail -n 5 $work/debootstrap.log; fail "no Debian could be made (above)"; }
    echo "127.0.0.1 localhost" >$root/etc/hosts
    touch $root/.made
  fi
  rm -rf $root/kit
  cp -r $kit $root/kit
  # shellcheck disable=SC2016
  unshare --mount --propagation private --pid --fork --net --kill-child bash -c '
    set -e
    root=$1 venv=$2 home=$3
    shift 3
    for folder in "$venv" "$home"; do
      mkdir -p "$root$folder"
      mount --bind -o ro "$folder" "$root$folder"
    done
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    ip link set lo up 2>/dev/null || true
    exec chroot "$root" /usr/bin/env -i HOME=/root PATH="$venv/bin:/usr/bin:/bin:/usr/sbin:/sbin" LANG=C.UTF-8 OUT=/kit/out \
      PYTHON="$venv/bin/python" /kit/run "$@"
  ' bash "$root" "$(realpath "$(dirname "$(dirname "$python")")")" "$home" "$@"
}

mkdir -p $work
case ${1:-make} in
  make) make_kit ;;
  prove) shift; prove "$@" ;;
  *) fail "expected make or prove, got '$1'" ;;
esac
