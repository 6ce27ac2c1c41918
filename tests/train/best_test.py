"""A job of which a rank is killed goes on, and has the same best checkpoint and stops at the same step as one that was not."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class Best(unittest.TestCase):
    def numbers(self, *argv):
        with tempfile.TemporaryDirectory(prefix="muster-best-probe-") as folder:
            env = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            done = subprocess.run([f"{BUILD}/bin/muster", "run", "--nproc-per-node", "2", "--max-restarts", "1", "--run-dir", f"{folder}/run",
                                   f"{BUILD}/tests/best_probe", *argv],
                                  cwd=folder, env=env, capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            listed = json.loads(subprocess.run([f"{BUILD}/bin/muster", "checkpoint", "ls", "--json", f"{folder}/run"],
                                               capture_output=True, text=True, check=True).stdout)["checkpoints"]
            lines = [json.loads(line) for line in pathlib.Path(folder, "run/metrics.jsonl").read_text().splitlines()]
        ranks = sorted(re.findall(r"rank \d stopped after .*", done.stdout))
        self.assertEqual(len(ranks), 2, done.stdout + done.stderr)
        kept = [(row["step"], row["best"], (row["metric"] or {}).get("value")) for row in listed]
        scores = [(line["step"], line["test_loss"], line["top1"]) for line in lines]
        return ranks, kept, scores

    def test_killed_jobs_have_the_best_of_one_that_was_not(self):
        ranks, kept, scores = self.numbers()
        stopped, step = map(int, re.search(r"stopped after (\d+) best step (\d+)", ranks[0]).groups())
        self.assertLess(stopped, 60, "it stops early")
        self.assertEqual([best_step for best_step, best, _ in kept if best], [step], "muster checkpoint ls names the same")
        self.assertEqual(max(scores, key=lambda score: score[2])[0], step, "the first of the largest values")
        self.assertEqual({score[0]: score[2] for score in scores}[step], next(value for _, best, value in kept if best))
        for kill_at in (1, step, step + 1, stopped - 1):
            with self.subTest(killed_after=kill_at):
                self.assertEqual(self.numbers("--kill-at", str(kill_at)), (ranks, kept, scores))


if __name__ == "__main__":
    unittest.main()
