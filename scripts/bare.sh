#!/usr/bin/env bash
# bare.sh [--arch ARCHITECTURE] [RELEASE] COMMAND...: runs COMMAND in a Debian (RELEASE: its code name, default bookworm)
# that has only git, make and certificates, in a clone of the committed tree. So nothing that this machine has installed
# hides a missing step. Ends with COMMAND's exit code; with 125 where such a system cannot be made, and says why. Needs
# root and debootstrap (which it installs by apt-get where it is missing). COMMAND's standard input is empty.
#
# ARCHITECTURE is arm64 or amd64. Another than this machine's is emulated by qemu (package qemu-user-static), some ten
# times as slowly. Meanwhile the kernel starts programs of that architecture by it, on the whole machine.
#
# Mounts are made in a mount namespace of their own, and processes in a process namespace: both end with this script,
# however it ends, and no mount is ever seen from outside. After a SIGKILL the files stay, until the next run.
#
#   BARE_OWN_ARCH in COMMAND's environment: the machine's own architecture, where the system is emulated; programs of it are
#                 as fast as outside, with the packages of `dpkg --add-architecture`
#   BARE_FOLDER   where the system is put while it runs (default: /var/tmp; about 15 GB for `make test`)
#   BARE_FILES    files, separated by blanks, that COMMAND finds in /root/files
set -euo pipefail
cd "$(dirname "$0")/.."

cannot() { echo "bare: $*" >&2; exit 125; }
usage="usage: bare.sh [--arch ARCHITECTURE] [RELEASE] COMMAND..."

[ "$(uname -m)" = aarch64 ] && own_arch=arm64 || own_arch=amd64
arch=$own_arch
if [ "${1:-}" = --arch ]; then
  arch=${2:-}
  shift 2 || { echo "$usage" >&2; exit 2; }
fi
# The head of an ELF file of the architecture, whose machine is the byte after the type.
case $arch in
  arm64) cpu=aarch64 machine='\xb7' ;;
  amd64) cpu=x86_64 machine='\x3e' ;;
  *) echo "bare: --arch: expected arm64 or amd64, got '$arch'" >&2; exit 2 ;;
esac
release=bookworm
case ${1:-} in bookworm | trixie | forky | sid) release=$1; shift ;; esac
[ $# -gt 0 ] || { echo "$usage" >&2; exit 2; }
command -v "$1" >/dev/null || {
  echo "bare: '$1' is neither a release (bookworm, trixie, forky, sid) nor a command" >&2
  exit 2
}

[ "$(id -u)" = 0 ] || cannot "not root: mounts cannot be made"
unshare --mount --pid --fork mount -t tmpfs none /mnt 2>/dev/null || cannot "mounts cannot be made here"
# needs PROGRAM PACKAGE
needs() {
  ! command -v "$1" >/dev/null || return 0
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2"; } \
    >/dev/null 2>&1 || cannot "$2 is not installed, and apt-get cannot install it"
}
needs debootstrap debootstrap
[ "$arch" = "$own_arch" ] || needs "qemu-$cpu-static" qemu-user-static

# What an earlier run left that was killed with SIGKILL, if nobody holds it any more.
folder=${BARE_FOLDER:-/var/tmp}
find "$folder" -maxdepth 1 -name 'muster-bare-??????' -mmin +1 -exec flock --nonblock {} rm -rf --one-file-system {} \;
root=$(mktemp -d "$folder/muster-bare-XXXXXX")
exec 9<"$root"
flock 9
system=
emulator=
take_down() {
  local code=$?
  trap - EXIT INT TERM HUP
  [ -z "$emulator" ] || kill "$emulator" 2>/dev/null || true
  # The namespaces' first process dies with `unshare`, and with it all others and every mount.
  [ -z "$system" ] || { kill -KILL "$system"; wait "$system"; } 2>/dev/null || true
  if grep -q " $root" /proc/self/mountinfo; then
    echo "bare: something is still mounted under $root: left as it is" >&2
  else
    rm -rf --one-file-system "$root"
  fi
  exit $code
}
trap take_down EXIT
set -o errtrace
trap 'cannot "the system could not be made (line $LINENO)"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# In the background and waited for: a signal is then acted upon at once. `set -m` leaves SIGINT as it is for COMMAND.
in_namespaces() {
  set -m
  setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child "$@" </dev/null 8<&- 9<&- &
  system=$!
  set +m
  local code=0
  wait "$system" || code=$?
  system=
  return $code
}

# --- another architecture -------------------------------------------------------------------------------------------
# Flag F: the kernel keeps the emulator open, so that the new system need not have it. A process holds the list of formats
# mounted, since newer kernels forget the format with the mount; older ones have to be told.
if [ "$arch" != "$own_arch" ]; then
  head='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00'$machine'\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  format=":muster-bare-$$:M::$head:$mask:$(command -v "qemu-$cpu-static"):F"
  exec 8< <(exec setpriv --pdeathsig TERM unshare --mount sh -c '
    set -e
    mount -t binfmt_misc none /mnt
    printf "%s" "$1" >/mnt/register
    trap "echo -1 >/mnt/$2; kill \$!; exit" TERM
    echo registered
    sleep infinity &
    wait' sh "$format" "muster-bare-$$" 9<&- 2>&1)
  emulator=$!
  read -r answer <&8
  [ "$answer" = registered ] || cannot "the kernel does not take programs of $arch: $answer"
fi

# --- the base system -----------------------------------------------------------------------------------------------
# From the mirror that this machine's apt has for Debian, else from debootstrap's own.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' 2>/dev/null | sed -n 1p)
log=$(mktemp)
start=$SECONDS
chmod 755 "$root"
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"  # not synced to the disk: it lives for an hour
in_namespaces debootstrap --arch="$arch" --variant=minbase --include=git,make,ca-certificates "$release" "$root" $mirror \
  >"$log" 2>&1 || {
  code=$?
  tail -n 5 "$log" >&2
  rm -f "$log"
  [ $code -lt 128 ] || exit $code
  cannot "debootstrap could not make a Debian $release (above)"
}
rm -f "$log"

# --- how this machine reaches the network --------------------------------------------------------------------------
# apt's way of fetching (not its hooks), pip's configuration, names, certificates; then the variables for them.
copy() {
  local path
  for path; do
    [ -e "$path" ] || continue
    mkdir -p "$root${path%/*}"
    cp -aL "$path" "$root${path%/*}/"
  done
}
apt-config dump | grep '^Acquire::' | grep -v IndexTargets >"$root/etc/apt/apt.conf.d/00bare"
copy /etc/apt/auth.conf /etc/apt/auth.conf.d /etc/resolv.conf /etc/hosts /etc/pip.conf /usr/local/share/ca-certificates \
  /etc/ssl/certs/ca-certificates.crt
for file in "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf"; do
  [ ! -e "$file" ] || install -D -m 600 "$file" "$root/root/${file#"$HOME"/}"
done
for folder in ${PIP_FIND_LINKS:-}; do copy "$folder"; done
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"  # no package starts a service
chmod +x "$root/usr/sbin/policy-rc.d"
[ "$arch" = "$own_arch" ] && own= || own=$own_arch
variables=(BARE_OWN_ARCH="$own" HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}")
while IFS= read -r -d '' entry; do
  case ${entry%%=*} in
    *_proxy | *_PROXY | PIP_* | SSL_CERT_* | *_CA_BUNDLE | GIT_SSL_CAINFO | OPENBLAS_* | CI) variables+=("$entry") ;;
  esac
done < <(env -0)

# --- the committed tree, and COMMAND in it --------------------------------------------------------------------------
[ -z "$(git status --porcelain 2>/dev/null)" ] || echo "bare: changes that are not committed are left out"
git -c safe.directory='*' clone --quiet --depth 1 "file://$PWD" "$root/root/muster"
mkdir "$root/root/files"
for file in ${BARE_FILES:-}; do cp "$file" "$root/root/files/"; done
echo "bare: Debian $release ($arch) made in $((SECONDS - start)) s; $* runs there"

# The root is a mount of its own and becomes the namespace's root, as on a machine: namespaces can be made in it. The
# first process waits for COMMAND, so it also reaps whatever loses its parent.
trap - ERR
code=0
in_namespaces bash -c '
  set -e
  root=$1
  shift
  mount --bind "$root" "$root"
  cd "$root"
  mount -t proc proc proc
  mount --rbind /sys sys
  mount --rbind /dev dev
  mount -t tmpfs -o mode=1777 tmpfs dev/shm
  mount -t tmpfs -o mode=755 tmpfs run
  mkdir -p run/lock run/outside
  pivot_root . run/outside
  exec chroot . /usr/bin/env -i "$@"
' bash "$root" "${variables[@]}" bash -c '
  umount -l /run/outside && rmdir /run/outside
  cd /root/muster
  "$@"
  exit $?
' bash "$@" || code=$?
exit $code
