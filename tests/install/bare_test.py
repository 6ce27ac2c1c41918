#!/usr/bin/env python3
"""scripts/bare.sh takes down what it has set up, however it ends, and .ci/run goes without it where it must. The system is
not a real one: a stand-in for debootstrap copies a shell. Exits with 77 where mounts cannot be made."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = "bash", "sh", "env", "umount", "rmdir", "sleep", "cat", "pwd", "ls", "chroot"
DEBOOTSTRAP = f"""#!/bin/bash
set -e
for last; do :; done
[ -z "$SLOW" ] || sleep 1000
[ -z "$BROKEN" ] || {{ echo "E: no such mirror"; exit 1; }}
for argument; do [ ! -d "$argument" ] || root=$argument; done
mkdir -p "$root"/{{proc,sys,dev,run,tmp,root,usr/sbin,usr/bin,etc/apt/apt.conf.d}}
for name in {' '.join(PROGRAMS)}; do
  path=$(type -P $name)
  cp -L $path "$root/usr/bin/"
  for library in $(ldd $path | grep -o '/[^ ]*'); do cp -L --parents $library "$root"; done
done
ln -s usr/bin "$root/bin"
"""


def why_not():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"],
                                           capture_output=True).returncode != 0:
        return "mounts cannot be made here"
    return "" if (SOURCE / ".git").exists() and shutil.which("git") else "this is no git checkout"


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.02)


class BareTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="muster-bare-test-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "bin").mkdir()
        (self.folder / "roots").mkdir()
        self.stand_in("debootstrap", DEBOOTSTRAP)
        self.environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "HIDDEN": "1", "SLOW": "",
                                         "BARE_FOLDER": f"{self.folder}/roots", "BROKEN": "", "CI": "true"}

    def stand_in(self, name, text):
        (self.folder / "bin" / name).write_text(text, encoding="utf-8")
        (self.folder / "bin" / name).chmod(0o755)

    def start(self, *command, program="scripts/bare.sh", **environment):
        return subprocess.Popen([SOURCE / program, *command], env=self.environment | environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run_bare(self, *command, **more):
        job = self.start(*command, **more)
        out, _ = job.communicate(timeout=100)
        return job.returncode, out

    def roots(self):
        return list((self.folder / "roots").iterdir())

    def processes(self):
        """Those that have anything to do with the roots."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if str(self.folder).encode() in (entry / "cmdline").read_bytes():
                    found.append(entry.name)
            except OSError:
                pass
        return found

    def nothing_left(self):
        self.assertNotIn(str(self.folder), pathlib.Path("/proc/self/mountinfo").read_text())
        wait_for(lambda: not self.processes())
        self.assertEqual(self.roots(), [])

    def test_the_command_runs_there_and_its_exit_code_is_kept(self):
        code, out = self.run_bare("sh", "-c", "pwd; ls; echo path $PATH hidden $HIDDEN ci $CI; cat; exit 7")
        self.assertEqual(code, 7, out)
        self.assertIn("\n/root/muster\n", out)
        self.assertIn("\nMakefile\n", out)
        self.assertRegex(out, r"path /usr/local/sbin:\S* hidden ci true\n$")
        self.nothing_left()

    def test_it_is_a_system_of_its_own(self):
        _, out = self.run_bare("trixie", "bash", "-c", "cat /proc/self/mountinfo; echo >/dev/shm/left; ls /run; echo fds: /proc/$$/fd/*")
        self.assertRegex(out, r"Debian trixie \(\w+\) made")
        points = [line.split()[4] for line in out.splitlines() if " - " in line]
        self.assertEqual(points[0], "/")  # a mount, as on a machine
        self.assertTrue({"/proc", "/sys", "/dev", "/dev/shm", "/run"} < set(points), points)
        self.assertRegex(out, r"fds: (/proc/\d+/fd/([0123]|255) ?)+\n")  # none but its own
        self.assertNotIn("\noutside\n", out)  # and this machine's root is not to be seen
        self.assertFalse(pathlib.Path("/dev/shm/left").exists())
        self.nothing_left()

    def test_files_that_are_given_are_there(self):
        (self.folder / "gift").write_text("a gift\n", encoding="utf-8")
        code, out = self.run_bare("cat", "/root/files/gift", BARE_FILES=str(self.folder / "gift"))
        self.assertEqual((code, out.splitlines()[-1]), (0, "a gift"), out)
        self.nothing_left()

    def test_a_signal_takes_everything_down(self):
        for number in signal.SIGINT, signal.SIGTERM:
            job = self.start("sh", "-c", "echo runs; sleep 1000 & sleep 1000")
            while job.stdout.readline() != "runs\n":
                self.assertIsNone(job.poll())
            job.send_signal(number)
            job.communicate(timeout=60)
            self.assertEqual(job.returncode, 128 + number)
            self.nothing_left()

    def test_a_signal_while_the_system_is_made(self):
        job = self.start("true", SLOW="1")
        wait_for(lambda: any(b"--variant" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.processes()))
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=60)
        self.assertEqual(job.returncode, 130)
        self.nothing_left()

    def test_killed_it_leaves_files_but_neither_mounts_nor_processes(self):
        job = self.start("sh", "-c", "echo runs; sleep 1000 & sleep 1000")
        while job.stdout.readline() != "runs\n":
            self.assertIsNone(job.poll())
        job.kill()
        job.communicate(timeout=60)
        wait_for(lambda: not self.processes())
        self.assertNotIn(str(self.folder), pathlib.Path("/proc/self/mountinfo").read_text())
        left, = self.roots()
        os.utime(left, (1, 1))
        self.assertEqual(self.run_bare("sh", "-c", "exit 3")[0], 3)
        self.nothing_left()

    def test_two_at_once_leave_each_other_alone(self):
        job = self.start("sh", "-c", "echo runs; sleep 1000")
        while job.stdout.readline() != "runs\n":
            self.assertIsNone(job.poll())
        other, = self.roots()
        os.utime(other, (1, 1))
        self.assertEqual(self.run_bare("sh", "-c", "exit 3")[0], 3)
        self.assertEqual(self.roots(), [other])
        job.terminate()
        job.communicate(timeout=60)
        self.nothing_left()

    def test_an_architecture_is_one_that_it_knows(self):
        self.assertEqual(self.run_bare("--arch", "riscv", "true"), (2, "bare: --arch: expected arm64 or amd64, got 'riscv'\n"))
        self.assertEqual(self.run_bare("--arch")[0], 2)
        own = "arm64" if os.uname().machine == "aarch64" else "amd64"
        code, out = self.run_bare("--arch", own, "sh", "-c", "exit 7")
        self.assertEqual(code, 7, out)
        self.assertIn(f"Debian bookworm ({own}) made", out)

    def test_where_no_system_can_be_made_it_says_so(self):
        code, out = self.run_bare("true", BROKEN="1")
        self.assertEqual(code, 125, out)
        self.assertIn("E: no such mirror\nbare: debootstrap could not make a Debian bookworm (above)\n", out)
        self.nothing_left()

    def test_continuous_integration_goes_without_it(self):
        says = "ci: they run on this machine as it is, not on a bare system\n"
        for fails, made in (("test", "made test\n"), ("lint", "made test\nmade lint ARGS=--quick\n"), ("", "made test\nmade lint ARGS=--quick\n")):
            self.stand_in("make", f'#!/bin/sh\necho made $*; [ "$1" != "{fails}" ] || exit 9\n')
            code, out = self.run_bare(program=".ci/run", BROKEN="1")
            self.assertEqual(code, 9 if fails else 0, out)
            self.assertRegex(out, r"^ci: make test and make lint on a bare Debian (bookworm|trixie) \(commit ")
            self.assertTrue(out.endswith(says + made), out)

    def test_continuous_integration_keeps_the_exit_code(self):
        code, out = self.run_bare(program=".ci/run")  # there is no make in this stand-in
        self.assertEqual(code, 127, out)
        self.assertNotIn("as it is", out)


if __name__ == "__main__":
    if why := why_not():
        print("skipped:", why)
        sys.exit(77)
    unittest.main(verbosity=2)
