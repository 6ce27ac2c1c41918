#!/usr/bin/env bash
# packages.sh [FOLDER]: puts into FOLDER (build/packages) what is handed out:
#
#   muster_VERSION_ARCH.deb            the program; it depends on the C library alone
#   libmuster-dev_VERSION_ARCH.deb     the C++ library, for the LibTorch that `pip install torch` brings
#   muster-VERSION-py3-none-*.whl      for `pip install`: the program, and `import muster` over it, for every Python
#   muster_torch-VERSION-*.whl         for `pip install`: the backend for torch.distributed, for this Python and this torch
#   muster-VERSION.tar.gz              the sources of the last commit
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:-build/packages}")
build=build/install

python=${TORCH:-.deps/torch/bin/python}
[ -x "$python" ] && [ ! -d "$python" ] || { echo "packages: expected TORCH=<a python that imports torch>, got '$python'"; exit 2; }

scripts/build.sh $build muster_installed
[ -e $build/CPackConfig.cmake ] || { echo "packages: expected a LibTorch inside of the checkout (.deps/), which packages name no folder of, got '$python'; leave TORCH out"; exit 2; }
mkdir -p "$folder"
rm -f "$folder"/*muster*.{deb,whl,tar.gz}
(cd $build && cpack -G DEB -B "$folder" >package.log 2>&1) || { tail -n 20 $build/package.log; exit 1; }
rm -rf "$folder/_CPack_Packages"

for project in ./python ./python/torch; do
  MUSTER_PROGRAM=$PWD/$build/bin/muster "$python" -m pip wheel --quiet --disable-pip-version-check --no-index --no-build-isolation --no-deps \
    --wheel-dir "$folder" $project
done

version=$(sed -n 's/^project(muster VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
git archive --format=tar.gz --prefix="muster-$version/" -o "$folder/muster-$version.tar.gz" HEAD
(cd "$folder" && du -h -- *muster*.{deb,whl,tar.gz})
