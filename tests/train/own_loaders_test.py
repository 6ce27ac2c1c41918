"""Loaders that a program makes by hand inside muster::run, in a real job of two ranks: what `ctx.loader` would have done right."""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class OwnLoaders(unittest.TestCase):
    def train(self, what, ranks=2):
        with tempfile.TemporaryDirectory(prefix="muster-own-loaders-") as folder:
            env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            return subprocess.run([f"{BUILD}/bin/muster", "run", "-q", "--nproc-per-node", str(ranks), f"{BUILD}/tests/train_probe", what],
                                  cwd=folder, env=env, capture_output=True, text=True, timeout=100)

    def test_what_differs_between_ranks_is_an_error(self):
        for what, said in (("seed", "the same seed on every rank, got 0 on rank 0 and 1 on rank 1"),
                           ("uneven", "as many batches on every rank, got 4 on some and 3 on others")):
            with self.subTest(what):
                done = self.train(what)
                self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(said, done.stderr)
                self.assertNotIn("steps", done.stdout)

    def test_a_loader_of_everything_on_every_rank_is_said_once(self):
        done = self.train("undivided")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count(".undivided = true where each rank has data of its own"), 1, done.stderr)

    def test_what_is_meant_or_of_one_rank_is_right(self):
        for what, ranks in (("own", 2), ("seed", 1), ("uneven", 1), ("undivided", 1)):
            with self.subTest(what):
                done = self.train(what, ranks)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertEqual(done.stdout.count("steps "), ranks)
                self.assertNotIn("warning", done.stderr)


if __name__ == "__main__":
    unittest.main()
