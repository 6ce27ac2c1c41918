"""A training step over a model that nobody wrapped, in a job of two ranks and of one."""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class BareModel(unittest.TestCase):
    def run_probe(self, ranks, what):
        with tempfile.TemporaryDirectory(prefix="muster-bare-model-") as folder:
            env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            return subprocess.run([f"{BUILD}/bin/muster", "run", "-q", "--nproc-per-node", str(ranks), f"{BUILD}/tests/train_probe", what],
                                  cwd=folder, env=env, capture_output=True, text=True, timeout=100)

    def test_is_refused_on_two_ranks(self):
        done = self.run_probe(2, "bare")
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("train step: expected gradients that are averaged over the 2 ranks, got 'fc1.weight'", done.stderr)

    def test_trains_on_one_rank_or_when_it_is_meant(self):
        for ranks, what in ((1, "bare"), (2, "unreduced")):
            done = self.run_probe(ranks, what)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("steps 1"), ranks)


if __name__ == "__main__":
    unittest.main()
