"""Sweeps examples/01_train over the GPUs of a machine that is not there, as docs/tasks.md shows it."""
import csv
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, MUSTER, ProgramTest

BOX = """
[[host]]
name = "box"
gpus = "4xA100-40GB"
cores = 16
"""


class Sweep(ProgramTest):
    def test_a_sweep_over_simulated_gpus_ends_in_a_table_of_accuracies(self):
        folder = pathlib.Path(self.folder)
        (folder / "box.toml").write_text(BOX)
        done = self.start(MUSTER, "tasks", "--inventory", "box.toml", "--sweep", "lr=0.05,0.000001", "--sweep", "seed=1..2",
                          "--run-dir", "run", "--csv", "results.csv", "--", f"{BUILD}/bin/train", "--lr", "{lr}", "--seed", "{seed}",
                          "--epochs", "2", "--run-dir", "trained-{lr}-{seed}")
        self.assertEqual(done.returncode, 0, done.stderr)
        header, *lines = done.stdout.splitlines()
        self.assertEqual(header.split(), ["task", "lr", "seed", "state", "restarts", "devices", "time", "test_accuracy"])
        self.assertEqual(len(lines), 4)
        rows = {row["name"]: row for row in csv.DictReader((folder / "results.csv").read_text().splitlines())}
        for seed in "12":
            learned, not_learned = (rows[f"lr={lr},seed={seed}"] for lr in ("0.05", "0.000001"))
            self.assertGreater(float(learned["test_accuracy"]), 0.8, "it has trained")
            self.assertLess(float(not_learned["test_accuracy"]), 0.5, "each has its own learning rate")
        self.assertEqual(len({row["devices"] for row in rows.values()}), 4, "a GPU each")
        for number, row in enumerate(rows.values()):
            log = (folder / "run/logs" / row["name"] / "0.log").read_text()
            self.assertIn(f"GPU {number}", log, "the rank has the GPU that the task was given")
            self.assertNotIn("[1]", log, "one rank a task")
            metrics = (folder / f"trained-{row['lr']}-{row['seed']}/metrics.jsonl").read_text().splitlines()
            self.assertEqual([json.loads(line)["epoch"] for line in metrics], [1, 2])


if __name__ == "__main__":
    unittest.main()
