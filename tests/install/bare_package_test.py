#!/usr/bin/env python3
"""The program's Debian package, installed by apt-get on a Debian that has nothing else, and used there. Exits with 77 where
no such system can be made. The build is told by MUSTER_TEST_* (CMakeLists.txt beside this file)."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["MUSTER_TEST_BUILD"])
VERSION = os.environ["MUSTER_TEST_VERSION"]

USE = """
set -eu
rm -rf /root/muster
cd /tmp
apt-get install -y -qq --no-install-recommends /root/files/muster_*.deb >/dev/null
muster --version
muster run --nproc-per-node 2 --run-dir /tmp/run sh -c 'echo rank $RANK of $WORLD_SIZE; exit $((RANK * 3))' || echo code $?
muster tasks --sweep x=1,2 --cpus 2 --run-dir /tmp/tasks -- sh -c 'echo {x}'
muster devices
muster devices --json >/tmp/box.json
muster plan -n 1 --inventory /tmp/box.json
apt-get remove -y -qq muster >/dev/null
[ ! -e /usr/bin/muster ]
"""


def release():
    """The code name of this system's Debian, for which the package is made; empty: it is another system."""
    lines = pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    found = [line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME=")]
    return found[0] if found and found[0] in ("bookworm", "trixie", "forky", "sid") else ""


def why_not():
    missing = [name for name in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file", "git") if not shutil.which(name)]
    if missing:
        return f"no {missing[0]} here"
    if not release():
        return "this is no Debian that scripts/bare.sh can make"
    if not (SOURCE / ".git").exists():
        return "this is no git checkout"
    return "" if (BUILD / "CPackConfig.cmake").is_file() else "this build makes no packages: its LibTorch lies outside of the checkout"


def main():
    if reason := why_not():
        print("skipped:", reason)
        return 77
    with tempfile.TemporaryDirectory(prefix="muster-package-") as scratch:
        subprocess.run(["cpack", "-G", "DEB", "-B", scratch, "-D", "CPACK_COMPONENTS_ALL=program"], cwd=BUILD, check=True, stdout=subprocess.DEVNULL)
        package, = pathlib.Path(scratch).glob(f"muster_{VERSION}_*.deb")
        done = subprocess.run([SOURCE / "scripts/bare.sh", release(), "sh", "-c", USE], env=os.environ | {"BARE_FILES": str(package)},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    if done.returncode == 125:
        print("skipped: no bare system can be made here (above)")
        return 77
    expected = [rf"^muster {re.escape(VERSION)}$", r"\brank 0 of 2$", r"\brank 1 of 2$", r"^code 3$", r"rank 1 failed first: exit code 3",
                r"^note: .*libhwloc.*until then cores are as /sys tells of them$"]
    missing = [text for text in expected if not re.search(text, done.stdout, re.MULTILINE)]
    for text in missing:
        print(f"expected a line that matches {text!r}, got none")
    return 1 if missing or done.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
