"""A job of which a rank is killed goes on by itself, from its last checkpoint, and ends with the numbers of one that was not."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class Resume(unittest.TestCase):
    def numbers(self, *argv):
        with tempfile.TemporaryDirectory(prefix="muster-resume-probe-") as folder:
            env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            done = subprocess.run([f"{BUILD}/bin/muster", "run", "--nproc-per-node", "2", "--max-restarts", "1", f"{BUILD}/tests/resume_probe", *argv],
                                  cwd=folder, env=env, capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return sorted(re.findall(r"rank \d weights .*", done.stdout)), done.stderr

    def test_killed_jobs_end_as_one_that_was_not(self):
        calm, _ = self.numbers()
        self.assertEqual(len(calm), 2)
        self.assertEqual(calm[0].split()[3], calm[1].split()[3], "the ranks have one model")
        self.assertNotEqual(calm[0].split()[-1], calm[1].split()[-1], "and random numbers of their own")
        for step in (1, 3, 7, 11):
            with self.subTest(killed_after=step):
                killed, said = self.numbers("--kill-at", str(step))
                self.assertEqual(killed, calm)
                self.assertIn(f"step-{step // 3 * 3}" if step >= 3 else "no checkpoint yet", said)


if __name__ == "__main__":
    unittest.main()
