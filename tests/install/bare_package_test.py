#!/usr/bin/env python3
"""The program's Debian package, installed by apt-get on a Debian that has nothing else, and used there: each command that
`muster help` names. Exits with 77 where no such system can be made. The build is told by MUSTER_TEST_* (CMakeLists.txt
beside this file)."""

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

# Of each command what can be run there. `bench` is no part of the package, and says so.
OF_COMMANDS = {
    "run": """
muster run --nproc-per-node 2 --run-dir /tmp/run sh -c 'echo rank $RANK of $WORLD_SIZE; exit $((RANK * 3))' || echo code $?
muster run -q --hosts localhost:2 sh -c 'echo over hosts $RANK'
muster run -q --nnodes 2 --rdzv-backend etcd --rdzv-endpoint 127.0.0.1:1 --rdzv-id x --rdzv-conf join_timeout=1 true || echo etcd ends with $?""",
    "plan": """
muster plan -n 1 --inventory /tmp/box.json
muster plan --hosts localhost:2""",
    "devices": "muster devices",
    "tasks": "muster tasks --sweep x=1,2 --cpus 2 --run-dir /tmp/tasks -- sh -c 'echo {x}'",
    "bench": "muster bench device || echo bench ends with $?",
    "checkpoint": """
printf '\\002\\000\\000\\000\\000\\000\\000\\000{}' >/tmp/none.safetensors
muster checkpoint show /tmp/none.safetensors""",
    "top": "muster top --once",
    "report": "muster report /tmp/run",
    "ps": "muster ps",
    "stop": "muster stop --all && wait $job || echo the job ends with $?",
    "doctor": "muster doctor || echo doctor ends with $?",
    "secret": "muster secret | wc -c",
    "completion": "muster completion bash | bash -n",
    "manual": "muster manual run | head -n 1",
}

USE = """
set -eu
rm -rf /root/muster
cd /tmp
apt-get install -y -qq --no-install-recommends /root/files/muster_*.deb >/dev/null
muster --version
muster help | sed -n '/^Subcommands:/,/^$/s/^  \\([a-z]*\\) .*/help names \\1/p'
muster devices --json >/tmp/box.json
muster run -q --run-dir /tmp/job sh -c 'echo up >/tmp/up; sleep 1000' & job=$!
until [ -e /tmp/up ]; do sleep 0.1; done
""" + "\n".join(OF_COMMANDS.values()) + """
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
                r"^note: .*libhwloc.*until then cores are as /sys tells of them$", r"\bover hosts 1$", r"^ +1 +localhost +1 +CPU slot ",
                r"libcurl4", r"^etcd ends with 1$", r"^bench ends with 1$", r"^path +/tmp/none.safetensors$", r"^/tmp/run/report.html$",
                r"^the job ends with 143$", r"^\w+ +/dev/shm", r"^65$", r"^\.TH muster-run 1 "]
    missing = [text for text in expected if not re.search(text, done.stdout, re.MULTILINE)]
    for text in missing:
        print(f"expected a line that matches {text!r}, got none")
    named = re.findall(r"^help names (\S+)$", done.stdout, re.MULTILINE)
    if set(named) != set(OF_COMMANDS):
        print(f"expected to use what help names, {named}, got {list(OF_COMMANDS)}; correct OF_COMMANDS")
    return 1 if missing or done.returncode != 0 or set(named) != set(OF_COMMANDS) else 0


if __name__ == "__main__":
    sys.exit(main())
