"""The Python module as its users have it: ranks started by muster run, by torchrun and by hand."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

BUILD = os.environ["MUSTER_BUILD"]
PYTHON = os.environ["MUSTER_TEST_PYTHON"]
MODULE = os.environ["MUSTER_TEST_MODULE"]  # the folder that it was installed into
HERE = pathlib.Path(__file__).resolve().parent
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": MODULE, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": PYTHON, **more}


def told_at(text):
    """The moment that faults.py wrote down; a warning of LibTorch's may be before it."""
    return float(re.search(r"^at (\d+\.\d+)$", text, re.MULTILINE).group(1))


class ForkServer:
    """Starts ranks that need not import torch: those of support/forked.py."""
    def __init__(self):
        script = HERE.parent / "support/forked.py"
        self.process = subprocess.Popen([PYTHON, script], env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

    def run(self, processes):
        """How each has ended."""
        limit = threading.Timer(120, self.kill)
        limit.start()
        try:
            print(json.dumps(processes), file=self.process.stdin, flush=True)
            if not (codes := self.process.stdout.readline()):
                raise AssertionError(f"no end in 120 s: {[process['argv'] for process in processes]}")
            return json.loads(codes)
        finally:
            limit.cancel()

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)

    def end(self):
        with self.process:
            self.process.stdin.close()


class ModuleTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="muster-python-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def places(self, ranks):
        """The variables of each rank."""
        held = socket.socket()
        self.addCleanup(held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        return [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                for rank in range(ranks)]

    def by_hand(self, ranks, script, *argv, **env):
        """Every rank's exit code and what it said. They share one import of torch."""
        outputs = [f"{self.folder}/output.{rank}" for rank in range(ranks)]
        codes = self.server.run([{"argv": [str(HERE / script), *argv], "environment": {**place, **env}, "folder": self.folder, "output": output}
                                 for place, output in zip(self.places(ranks), outputs)])
        return [(code, pathlib.Path(output).read_text()) for code, output in zip(codes, outputs)]

    def launched(self, *argv, **env):
        done = subprocess.run(argv, cwd=self.folder, env=environment(**env), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def muster_run(self, ranks, script, **env):
        return self.launched(f"{BUILD}/bin/muster", "run", "--quiet", "--run-dir", f"{self.folder}/run", "--nproc-per-node", str(ranks), HERE / script, **env)

    def assert_all_ok(self, ranks, text):
        self.assertEqual(sorted(re.findall(r"rank (\d) of (\d): ok", text)), [(str(rank), str(ranks)) for rank in range(ranks)], text)


class ForkingTest(ModuleTest):
    @classmethod
    def setUpClass(cls):
        cls.server = ForkServer()
        cls.addClassCleanup(cls.server.end)


class Collectives(ForkingTest):
    def test_under_muster_run(self):
        self.assert_all_ok(2, self.muster_run(2, "collectives.py"))

    def test_started_by_hand(self):
        ranks = self.by_hand(3, "collectives.py", TEST_BACKEND="cpu:muster")
        self.assert_all_ok(3, "".join(text for _, text in ranks))

    def test_under_torchrun(self):
        torchrun = PYTHON, "-m", "torch.distributed.run"  # the script beside PYTHON names the folder that it was installed into
        self.assert_all_ok(2, self.launched(*torchrun, "--nproc-per-node", "2", HERE / "collectives.py"))

    def test_over_gloo_alone(self):
        for hosts in ("aa", "abc"):
            ranks = self.by_hand(len(hosts), "hosts.py", TEST_HOSTS=hosts, MUSTER_BACKEND="gloo")
            self.assert_all_ok(len(hosts), "".join(text for _, text in ranks))

    def test_on_two_hosts(self):
        for hosts in ("aabb", "abb", "abc"):  # what the ranks take themselves to be on
            ranks = self.by_hand(len(hosts), "hosts.py", TEST_HOSTS=hosts)
            self.assert_all_ok(len(hosts), "".join(text for _, text in ranks))

    def test_a_profiler_sees_the_whole_time_of_an_operation(self):
        self.assert_all_ok(2, "".join(text for _, text in self.by_hand(2, "profiler_events.py")))
        self.assert_all_ok(3, "".join(text for _, text in self.by_hand(3, "profiler_events.py", TEST_HOSTS="aab")))

    def test_fsdp_loses_what_one_process_loses(self):
        self.assert_all_ok(2, "".join(text for _, text in self.by_hand(2, "fsdp.py")))

    def test_the_environment_chooses_and_that_is_said_once(self):
        for backend in ("shm", "gloo"):
            text = "".join(text for _, text in self.by_hand(2, "fsdp.py", MUSTER_BACKEND=backend))
            self.assert_all_ok(2, text)
            self.assertEqual(text.count("process group: "), 1, text)
            self.assertIn(f"process group: 2 ranks over {backend}\n", text)
        for code, text in self.by_hand(2, "fsdp.py", MUSTER_BACKEND="mpi"):
            self.assertEqual(code, 1, text)
            self.assertIn("MUSTER_BACKEND: expected auto, shm, shm+gloo, gloo for a Python program, got 'mpi'", text)


class Training(ModuleTest):
    def test_ddp_has_the_bits_that_it_has_with_gloo(self):
        self.assert_all_ok(2, self.muster_run(2, "ddp.py"))


class Faults(ForkingTest):
    def test_a_killed_rank_is_named_at_once(self):
        (code, told), (killed, last_words) = self.by_hand(2, "faults.py", "killed")
        self.assertEqual((code, killed), (0, -9), told + last_words)
        self.assertLess(told_at(told) - told_at(last_words), 20, told)  # a moment; not the half hour of a collective's own deadline
        self.assertRegex(told, r"rank(\(s\))? 1\b")
        self.assertIn("DistBackendError: ", told)

    def test_a_killed_rank_ends_those_of_another_host(self):
        *others, (killed, last_words) = self.by_hand(3, "faults.py", "killed", TEST_HOSTS="aab")
        self.assertEqual(killed, -9, last_words)
        for code, told in others:
            self.assertEqual(code, 0, told)
            self.assertLess(told_at(told) - told_at(last_words), 20, told)

    def test_forked_children_do_no_harm(self):
        for hosts in ("aa", "aab", "abc"):
            *others, (killed, last_words) = self.by_hand(len(hosts), "faults.py", "forked", TEST_HOSTS=hosts)
            self.assertEqual(killed, -9, last_words)
            for code, told in others:
                self.assertEqual(code, 0, told)
                self.assertLess(told_at(told) - told_at(last_words), 20, told)

    def test_a_late_rank_is_shown_where_it_is(self):
        done = subprocess.run([f"{BUILD}/bin/muster", "run", "--quiet", "--run-dir", f"{self.folder}/run", "--nproc-per-node", "2", HERE / "late.py"],
                              cwd=self.folder, env=environment(), capture_output=True, text=True, timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"warning: rank 1: in nothing that muster knows of; last all_reduce #1 f32\[1000\], ended \d\.\d+s ago; its stack")
        self.assertRegex(done.stderr, r'File ".*late\.py", line 14 in')

    def test_the_longest_timeout_is_a_long_time(self):
        for code, text in self.by_hand(2, "faults.py", "long"):
            self.assertEqual(code, 0, text)
            self.assertIn("ok\n", text)

    def test_a_late_rank_is_named(self):
        for code, text in self.by_hand(3, "faults.py", "late"):
            self.assertEqual(code, 0, text)
            if "skipped: " in text:
                self.skipTest(text)
            self.assertIn("ok\n", text)


if __name__ == "__main__":
    if not os.path.isdir(f"{MODULE}/muster"):
        print("skipped: the Python module was not built, see the test python.module")
        sys.exit(77)
    unittest.main()
