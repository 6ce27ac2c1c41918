"""Where a job's secret is not: in arguments, environments, files, logs, other users' sight, or memory that a core
file would have.

    secrets_test.py MUSTER      the program
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

MUSTER = ""


def memory_of_core(pid):
    """What a core file of the process would hold: its private writable memory, without what is marked not to dump."""
    held = b""
    smaps = pathlib.Path(f"/proc/{pid}/smaps").read_text()
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for region in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.MULTILINE)[1:]:
            start, end = (int(x, 16) for x in region.split(" ", 1)[0].split("-"))
            flags = re.search(r"VmFlags: (.*)", region).group(1).split()
            if "rw" not in region.split("\n")[0].split()[1] or "dd" in flags:
                continue
            try:
                memory.seek(start)
                held += memory.read(end - start)
            except (OSError, OverflowError, ValueError):
                pass
    return held


def parts_in(held, secret):
    """Which parts of the secret are there: memory that was given back has been written over here and there."""
    size = max(6, len(secret) // 5)
    return [part for part in (secret[at:at + size] for at in range(len(secret) - size + 1)) if part in held]


class Secrets(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-secrets-"))
        (self.folder / "runtime").mkdir(mode=0o700)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "MUSTER_RUNTIME_DIR": str(self.folder / "runtime"),
               "CUDA_VISIBLE_DEVICES": "", "MUSTER_LOG_LEVEL": "debug"}
        # No exec: a process in the middle of one has no environment to read.
        stay = "echo $$ up; while :; do sleep 1000; done"
        command = [MUSTER, "run", "-n", "2", "--tee", "3", "--run-dir", "run", "sh", "-c", stay]
        with open(self.folder / "launcher.err", "w", encoding="utf-8") as err:
            self.job = subprocess.Popen(command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stderr=err,
                                        stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.ranks = [int(self.job.stdout.readline().split()[1]) for _ in range(2)]
        rank = self.ranks[0]
        variables = pathlib.Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
        fd = next(v for v in variables if v.startswith(b"MUSTER_SECRET_FD=")).split(b"=")[1].decode()
        self.hex = pathlib.Path(f"/proc/{rank}/fd/{fd}").read_bytes().strip()
        self.assertEqual(len(self.hex), 64)
        self.fd = f"/proc/{rank}/fd/{fd}"

    def tearDown(self):
        self.job.send_signal(signal.SIGTERM)
        self.job.communicate(timeout=30)
        shutil.rmtree(self.folder)

    def processes(self):
        group = subprocess.run(["ps", "-o", "pid=", "--sid", str(self.job.pid)], capture_output=True, text=True).stdout
        return [self.job.pid, *self.ranks, *map(int, group.split())]

    def test_not_in_arguments_or_environments(self):
        for pid in self.processes():
            for name in ("cmdline", "environ"):
                try:
                    self.assertNotIn(self.hex, pathlib.Path(f"/proc/{pid}/{name}").read_bytes())
                except FileNotFoundError:
                    pass

    def test_not_in_files_or_logs(self):
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(self.hex, path.read_bytes(), path)

    def test_ranks_can_read_it_but_not_change_it(self):
        with self.assertRaises(OSError):
            with open(self.fd, "r+b", 0) as secret:
                secret.write(b"0" * 64)

    def test_not_in_memory_that_would_be_dumped(self):
        held = memory_of_core(self.job.pid)
        self.assertGreater(len(held), 1 << 16, "memory could be read")
        self.assertEqual(parts_in(held, bytes.fromhex(self.hex.decode())), [])
        self.assertEqual(parts_in(held, self.hex), [])

    @unittest.skipUnless(os.geteuid() == 0, "needs root to be another user")
    def test_not_in_other_users_sight(self):
        def as_nobody(*command):
            return subprocess.run(command, capture_output=True, user=65534, group=65534, extra_groups=[]).returncode
        self.assertNotEqual(as_nobody("cat", self.fd), 0)
        self.assertNotEqual(as_nobody("ls", str(self.folder / "runtime" / f"muster-{os.geteuid()}")), 0)
        self.assertNotEqual(as_nobody("cat", f"/proc/{self.ranks[0]}/environ"), 0)


STAND_IN_SSH = """#!/bin/sh
case " $* " in *" -G "*) echo hostname 127.0.0.1; exit;; esac
for command; do :; done
IFS= read -r line
printf '%s\\n' "$line" >spec
printf '%s\\n' "$line" | sh -c "$command"
"""


class SecretsOfHosts(unittest.TestCase):
    """What `muster run --hosts` gives its agents, for which a stand-in plays ssh."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-secrets-"))
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "runtime").mkdir(mode=0o700)
        stand_in = self.folder / "stand_in"
        stand_in.write_text(STAND_IN_SSH)
        stand_in.chmod(0o755)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "MUSTER_RUNTIME_DIR": str(self.folder / "runtime"),
               "CUDA_VISIBLE_DEVICES": ""}
        command = [MUSTER, "run", "--hosts", "far,farther,farthest", "--ssh", str(stand_in), "-n", "1", "--run-dir", "run",
                   "sh", "-c", "echo $PPID up; while :; do sleep 1000; done"]
        self.job = subprocess.Popen(command, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    text=True, start_new_session=True)
        self.addCleanup(self.end)
        self.agent = int(self.job.stdout.readline().split()[-2])
        self.hex = re.search(rb"\b[0-9a-f]{64}\b", (self.folder / "spec").read_bytes()).group()

    def end(self):
        self.job.send_signal(signal.SIGTERM)
        self.job.communicate(timeout=30)

    def test_not_in_memory_that_would_be_dumped(self):
        for pid in (self.job.pid, self.agent):
            held = memory_of_core(pid)
            self.assertGreater(len(held), 1 << 16, "memory could be read")
            for secret in (self.hex, bytes.fromhex(self.hex.decode())):
                self.assertEqual(parts_in(held, secret), [], pid)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
