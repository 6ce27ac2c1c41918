"""`muster` as the first process of a container: PID 1 of a PID namespace.

    first_process_test.py MUSTER FAKE_NVML      the program, the stand-in for the driver's library
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

MUSTER, FAKE_NVML = "", ""
GPU = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
AS_FIRST = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class FirstProcess(unittest.TestCase):
    def setUp(self):
        if shutil.which("unshare") is None or subprocess.run([*AS_FIRST, "true"], capture_output=True).returncode:
            self.skipTest("no PID namespaces here (unshare)")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-first-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {"PATH": os.environ["PATH"], "MUSTER_RUNTIME_DIR": str(self.folder), "MUSTER_NVML_LIBRARY": FAKE_NVML,
                            "FAKE_NVML": f"version=550.54|uuid={GPU},name=Test GPU,total=8589934592,free=8589934592"}

    def start(self, *command):
        """The process as this namespace numbers it, and its standard error."""
        shell = subprocess.Popen(command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        self.addCleanup(shell.stderr.close)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)
        return shell

    def read_until(self, process, text):
        seen = ""
        while text not in seen:
            line = process.stderr.readline()
            self.assertTrue(line, f"ended without '{text}':\n{seen}")
            seen += line
        return seen

    def assert_sigterm_ends(self, shell):
        (first,) = children_of(shell.pid)
        os.kill(first, signal.SIGTERM)
        try:
            self.assertEqual(shell.wait(timeout=20), 128 + signal.SIGTERM)
        except subprocess.TimeoutExpired:
            os.kill(first, signal.SIGKILL)
            self.fail("SIGTERM did not end it")

    def test_sigterm_ends_one_that_waits_for_a_gpu(self):
        holder = self.start(MUSTER, "run", "--gpus", "0", "sh", "-c", "echo ready >&2; exec sleep 1000")
        self.read_until(holder, "ready")
        waiter = self.start(*AS_FIRST, MUSTER, "run", "--gpus", "0", "--wait", "true")
        self.read_until(waiter, "waiting for GPUs")
        self.assert_sigterm_ends(waiter)
        holder.terminate()
        self.assertEqual(holder.wait(timeout=20), 128 + signal.SIGTERM)

    def test_sigterm_ends_one_that_waits_for_another_host(self):
        with socket.socket() as held:  # bound and never listening
            held.bind(("127.0.0.1", 0))
            waiter = self.start(*AS_FIRST, MUSTER, "run", "--nnodes", "2", "--node-rank", "1", "--no-auth",
                                "--rdzv-endpoint", f"127.0.0.1:{held.getsockname()[1]}", "true")
            self.read_until(waiter, "waiting for the host")
            self.assert_sigterm_ends(waiter)

    def test_it_leaves_another_containers_file_alone(self):
        shared = self.folder / "shared"
        shared.mkdir()
        others = shared / "plan.json.tmp-1"
        others.write_text("half a plan")
        done = subprocess.run([*AS_FIRST, MUSTER, "run", "-q", "--run-dir", shared, "--nproc-per-node", "1", "true"],
                              cwd=self.folder, env={**self.environment, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((shared / "plan.json").exists())
        self.assertEqual(others.read_text(), "half a plan")


if __name__ == "__main__":
    MUSTER, FAKE_NVML = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
