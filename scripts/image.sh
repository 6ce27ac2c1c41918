#!/usr/bin/env bash
# image.sh [FILE]: writes an OCI image (build/image/muster.tar) with muster as its entry point. `podman load -i` and
# `docker load -i` take it; no registry is needed. It has what `make install` makes, on a Debian that debootstrap makes:
# the release of this machine, because programs that are built here need its C library. Ends with 125 where such a
# system cannot be made, and says why.
#
#   IMAGE_BUILD        the build that is installed (default: build/install, which `make image` builds)
#   IMAGE_COMPONENTS   what of it (default: all, "program development bench libtorch"); "program" is the launcher alone
#   IMAGE_PROGRAMS     programs of yours, which it has in /usr/local/bin, with the packages that they need: "./train ./eval"
#   IMAGE_BASE         the folder that keeps the Debian system for the next time (default: build/image)
set -euo pipefail
programs=
[ -z "${IMAGE_PROGRAMS:-}" ] || programs=$(realpath -e $IMAGE_PROGRAMS) || {
  echo "image: expected the files of programs in IMAGE_PROGRAMS, got a name that is none (above); give paths from $PWD" >&2
  exit 2
}
cd "$(dirname "$0")/.."
cannot() { echo "image: $*" >&2; exit 125; }
out=$(realpath -m "${1:-build/image/muster.tar}")
build=${IMAGE_BUILD:-build/install}
base=${IMAGE_BASE:-build/image}
release=$(. /etc/os-release; echo "${VERSION_CODENAME:-}")
version=$(sed -n 's/^project(muster VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

[ -e "$build/cmake_install.cmake" ] || { echo "image: expected a build in $build, got none; make install builds one" >&2; exit 2; }
[ -n "$release" ] || cannot "/etc/os-release names no release (VERSION_CODENAME)"
[ "$(id -u)" = 0 ] || cannot "not root: debootstrap needs it"
command -v debootstrap >/dev/null || cannot "no debootstrap (apt-get install debootstrap)"

mkdir -p "$base" "$(dirname "$out")"
work=$(mktemp -d "$base/work-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT

# --- what make install makes ----------------------------------------------------------------------------------------
for component in ${IMAGE_COMPONENTS:-program development bench libtorch}; do
  cmake --install "$build" --prefix "$work/muster/usr/local" --component "$component" >>"$work/install.log" || {
    tail -n 20 "$work/install.log" >&2
    exit 1
  }
done

# --- a Debian with the libraries that this needs ---------------------------------------------------------------------
# The libraries that programs are linked with, and those that muster loads where they are.
libraries() {
  find "$work/muster" $programs -type f \( -perm -u+x -o -name '*.so*' \) -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
  ldconfig -p | awk '/libhwloc\.so\.15|libarchive\.so\.13/ {print $NF}'
}
# A file may be known by its place before /lib became a link to /usr/lib.
package_of() {
  local path=$1 owner
  [[ $path = /* ]] || return 0  # "not", of "not found"
  owner=$(dpkg -S "$path" 2>/dev/null || dpkg -S "${path#/usr}" 2>/dev/null || dpkg -S "/usr$path" 2>/dev/null) || return 0
  echo "${owner%%:*}"
}
# A library of a program that no package has, and muster neither: the program starts only where somebody mounts it.
for program in $programs; do
  while read -r name _ path _; do
    [ -n "$(find "$work/muster" -name "$name")" ] || [ -n "$(package_of "$path")" ] ||
      echo "image: $program needs $name, which no package has; mount it in the container, or leave it out of the link" >&2
  done < <(ldd "$program" 2>/dev/null | grep '=>')
done
packages=$(libraries | sort -u | grep -v "^$work" | while read -r path; do package_of "$path"; done | sort -u | paste -sd,)
system=$base/debian-$release-$(echo "$packages" | sha256sum | cut -c 1-12).tar
if [ ! -e "$system" ]; then
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' 2>/dev/null | sed -n 1p)
  echo "image: making a Debian $release with ${packages:-nothing more} (a minute)"
  debootstrap --variant=minbase ${packages:+--include="$packages"} "$release" "$work/debian" $mirror >"$work/debootstrap.log" 2>&1 || {
    tail -n 5 "$work/debootstrap.log" >&2
    cannot "debootstrap could not make a Debian $release (above)"
  }
  # Not for an image: names of this machine, packages that apt keeps, logs.
  rm -rf "$work/debian"/var/cache/{apt,debconf,ldconfig} "$work/debian"/var/lib/apt/lists "$work/debian"/var/log/*
  rm -f "$work/debian"/etc/{resolv.conf,hostname,machine-id}
  rm -rf "$work/debian"/{dev,proc,sys}/*
  echo 'muster:x:1000:1000::/tmp:/usr/sbin/nologin' >>"$work/debian/etc/passwd"
  echo 'muster:x:1000:' >>"$work/debian/etc/group"
  tar --sort=name --mtime=@0 --numeric-owner -C "$work/debian" -cf "$system.new" .
  mv "$system.new" "$system"
fi

# --- these as layers of an image --------------------------------------------------------------------------------------
layer_of() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/$1" -cf "$work/$1.tar" .; }
layers="$system $work/muster.tar"
layer_of muster
rm -rf "$work/muster"  # with LibTorch it is some GB
if [ -n "$programs" ]; then
  install -D -m 755 -t "$work/programs/usr/local/bin" $programs
  layer_of programs
  layers="$layers $work/programs.tar"
fi
cat >"$work/config.json" <<END
{"Entrypoint": ["/usr/local/bin/muster"], "Cmd": ["help"], "User": "1000:1000", "WorkingDir": "/tmp",
 "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LANG=C.UTF-8",
         "LD_LIBRARY_PATH=/usr/local/lib:/usr/local/lib/muster/libtorch/torch/lib"],
 "Labels": {"org.opencontainers.image.title": "muster", "org.opencontainers.image.version": "$version"}}
END
python3 scripts/oci_image.py "$out" "muster:$version" "$work/config.json" $layers
echo "image: $out (muster:$version, $(du -h "$out" | cut -f 1)); podman load -i $out"
