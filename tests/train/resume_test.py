"""A job of which a rank is killed goes on by itself, from its last checkpoint, and ends with the numbers of one that was not."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import time_limit

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class Resume(unittest.TestCase):
    def start(self, folder, *argv, flags=()):
        env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
        return subprocess.run([f"{BUILD}/bin/muster", "run", "--nproc-per-node", "2", *flags, f"{BUILD}/tests/resume_probe", *argv],
                              cwd=folder, env=env, capture_output=True, text=True, timeout=200)

    def states(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return sorted(re.findall(r"rank \d state .*", done.stdout))

    def numbers(self, *argv):
        with tempfile.TemporaryDirectory(prefix="muster-resume-probe-") as folder:
            done = self.start(folder, *argv, flags=("--max-restarts", "1"))
            written = [json.loads(line) for path in pathlib.Path(folder).rglob("metrics.jsonl") for line in path.read_text().splitlines()]
        self.losses = [(line["step"], line["loss"]) for line in written]
        return self.states(done), done.stderr

    def test_a_job_that_is_asked_to_stop_saves_first(self):
        calm, _ = self.numbers()
        for stop, step, flags in ((signal.SIGTERM, 4, ()), (signal.SIGUSR1, 6, ("--max-restarts", "3")), (signal.SIGINT, 11, ())):
            with self.subTest(signal=stop.name), tempfile.TemporaryDirectory(prefix="muster-stop-probe-") as folder:
                flags = (*flags, "--run-dir", f"{folder}/run")
                stopped = self.start(folder, "--stop-at", str(step), str(int(stop)), flags=flags)
                self.assertEqual(stopped.returncode, 75, stopped.stdout + stopped.stderr)
                self.assertIn(f"{stop.name}: the ranks stop after this step", stopped.stderr)
                self.assertIn(f"stopped after step {step}, which is saved", stopped.stderr)
                self.assertIn("all ranks have stopped, as they were asked to", stopped.stderr)
                self.assertNotIn("failed", stopped.stderr)
                self.assertNotIn("state ", stopped.stdout)
                self.assertEqual(self.states(self.start(folder, "--resume", flags=flags)), calm)

    def test_a_time_limit_saves_first(self):
        with tempfile.TemporaryDirectory(prefix="muster-limit-probe-") as folder:
            # Rank 1 waits for a signal that only the time limit sends.
            def begin(limit):
                done = self.start(folder, "--stop-at", "5", "0", flags=("--run-dir", f"{folder}/run", "--timeout", str(limit)))
                return done if "rank 1 waits" in done.stdout else None

            stopped = time_limit.after(begin)
            self.assertEqual(stopped.returncode, 75, stopped.stdout + stopped.stderr)
            self.assertIn("stopped after step 5, which is saved", stopped.stderr)

    def test_killed_jobs_end_as_one_that_was_not(self):
        calm, _ = self.numbers()
        losses = self.losses
        self.assertEqual(len(calm), 2)
        self.assertEqual(calm[0].split()[3], calm[1].split()[3], "the ranks have one model")
        self.assertNotEqual(calm[0].split()[-1], calm[1].split()[-1], "and random numbers of their own")
        for step in (1, 3, 7, 11):
            with self.subTest(killed_after=step):
                killed, said = self.numbers("--kill-at", str(step))
                self.assertEqual(killed, calm)
                self.assertEqual([step for step, _ in self.losses], [5, 10])
                for (_, loss), (_, wanted) in zip(self.losses, losses, strict=True):
                    self.assertAlmostEqual(loss, wanted, places=12)  # of steps on both sides of the kill
                self.assertIn(f"step-{step // 3 * 3}" if step >= 3 else "no checkpoint yet", said)

    def test_a_folder_of_checkpoints_is_one_jobs_at_a_time(self):
        with tempfile.TemporaryDirectory(prefix="muster-shared-probe-") as folder:
            shared, gate = pathlib.Path(folder, "shared"), f"{folder}/gate"
            command = [f"{BUILD}/bin/muster", "run", "--nproc-per-node", "2", f"{BUILD}/tests/resume_probe", "--in", shared, gate]
            env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as first:
                try:
                    while "waits" not in (line := first.stdout.readline()):
                        self.assertTrue(line)
                    self.others_beside_a_job_that_saves(folder, shared, gate)
                finally:
                    first.kill()  # its ranks end by themselves, and the lock with them
                third = self.start(folder, "--again-in", str(shared))
                self.assertEqual(third.returncode, 0, third.stdout + third.stderr)
                self.assertIn(f"resume: {shared}/step-6", third.stderr)
                self.assertNotIn("interrupted", third.stderr)
            self.assertEqual(sorted(path.name for path in shared.iterdir()), ["step-12", "step-6", "step-9"])

    def others_beside_a_job_that_saves(self, folder, shared, gate):
        there = sorted(path.name for path in shared.iterdir())
        second = self.start(folder, "--in", str(shared), gate)
        self.assertNotEqual(second.returncode, 0)
        self.assertRegex(second.stderr, rf"the folder '{shared}': expected no job that still writes there, got one "
                         rf"\(process \d+ on {re.escape(os.uname().nodename)}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)")
        self.assertNotIn("trains", second.stdout)  # it is refused before that
        loads = self.start(folder, "--load", str(shared))
        self.assertEqual(loads.returncode, 0, loads.stderr)
        self.assertIn(f"{shared}/step-6", loads.stderr)
        self.assertRegex(loads.stderr, r"another job saves into .*, and is refused when it saves")
        self.assertEqual(sorted(path.name for path in shared.iterdir()), there)

    def test_a_restarted_job_has_its_folder_again(self):
        with tempfile.TemporaryDirectory(prefix="muster-own-probe-") as folder:
            for flags in (("--max-restarts", "1"), ("--on-failure", "replace", "--max-restarts", "1")):
                with self.subTest(flags=flags):
                    done = self.start(folder, "--kill-at", "4", flags=flags)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertNotIn("no job that still writes there", done.stderr)


if __name__ == "__main__":
    unittest.main()
