"""Runs the programs of docs/programs as users do: on two ranks, resumed, and as one process with the same global batch."""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, MUSTER, SOURCE, ProgramTest


class Programs(ProgramTest):
    def setUp(self):
        super().setUp()
        self.home = pathlib.Path(self.folder)
        subprocess.run([sys.executable, "-B", f"{SOURCE}/examples/programs/make_data.py", self.home], check=True)

    def command(self, program, *flags, ranks=2):
        return [MUSTER, "run", "-q", "-n", str(ranks), *flags, f"{BUILD}/bin/programs/{program}"]

    def run_program(self, program, *flags, ranks=2):
        done = self.start(*self.command(program, *flags, ranks=ranks))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def lines(self, run):
        return [json.loads(line) for line in (self.home / "runs" / run / "metrics.jsonl").read_text().splitlines()]

    def steps(self, run):
        found = [int(path.name.split("-")[1]) for path in (self.home / "runs" / run).glob("step-*")]
        return sorted(found)

    def numbers(self, run, names):
        return [[line["step"], *(line[name] for name in names)] for line in self.lines(run)]

    def check_resumes(self, program, names, run=""):
        """As if the job had been killed after the last checkpoint but one."""
        run = run or program
        self.check_ranks_draw_other_numbers(run)
        whole, last = self.numbers(run, names), self.steps(run)[-1]
        before = self.steps(run)[-2]
        expected = self.home / f"expected_{run}"
        shutil.copytree(self.home / "runs" / run / f"step-{last}", expected)
        shutil.rmtree(self.home / "runs" / run / f"step-{last}")
        resumed = self.run_program(program)
        self.assertIn(f"step-{before}", resumed.stderr)
        self.assertEqual(self.steps(run)[-1], last)
        self.check_same_bits(expected, self.home / "runs" / run / f"step-{last}")
        self.assertEqual(self.numbers(run, names), whole)

    def check_same_bits(self, expected, got):
        done = self.start(MUSTER, "checkpoint", "diff", str(expected), str(got))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def check_ranks_draw_other_numbers(self, run):
        """Two ranks with one generator's state would drop out the same places, and draw the same noise."""
        saved = (self.home / "runs" / run / f"step-{self.steps(run)[-1]}" / "parts.safetensors").read_bytes()
        head_bytes = int.from_bytes(saved[:8], "little")
        kind = json.loads(saved[8:8 + head_bytes])["tensors/generators/cpu"]
        begin, end = (8 + head_bytes + offset for offset in kind["data_offsets"])
        self.assertEqual(kind["shape"][0], 2)
        middle = (begin + end) // 2
        self.assertTrue(saved[begin:middle] != saved[middle:end], f"{run}: both ranks draw the same numbers")

    def check_one_process(self, program, names, batch, run="", lines=5):
        """The first lines, within rounding: later ones drift apart."""
        run = run or program
        of_two = self.numbers(run, names)[:lines]
        shutil.rmtree(self.home / "runs" / run)
        self.run_program(program, "--global-batch", str(batch), ranks=1)
        of_one = self.numbers(run, names)[:lines]
        self.assertEqual([line[0] for line in of_one], [line[0] for line in of_two])
        for one, two in zip(of_one, of_two, strict=True):
            for name, a, b in zip(names, one[1:], two[1:], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3 * max(1, abs(b)), msg=f"{name}, step {one[0]}")


class Pictures(Programs):
    def test_training_fine_tuning_evaluation_and_predictions(self):
        trained = self.run_program("classifier").stdout
        self.assertGreater(float(trained.split()[-1]), 0.85)
        self.check_resumes("classifier", ["loss", "lr"])

        evaluated = self.run_program("evaluate").stdout
        self.assertIn(f"top1 {trained.split()[-1]} ", evaluated)
        self.check_evaluations(self.run_program("evaluate", ranks=1).stdout, evaluated.replace("[0] ", ""))

        self.run_program("predict")
        of_two = (self.home / "predictions.csv").read_text()
        self.check_predictions(of_two, float(trained.split()[-1]))
        self.run_program("predict", ranks=1)
        self.assertEqual((self.home / "predictions.csv").read_text(), of_two)

        tuned = self.run_program("fine_tune").stdout
        self.assertGreater(float(tuned.split()[-1]), 0.75)
        self.check_resumes("fine_tune", ["loss", "lr"])
        self.check_one_process("fine_tune", ["loss", "lr"], 32)
        self.check_one_process("classifier", ["loss", "lr"], 32)

    def check_evaluations(self, of_one, of_two):
        self.assertEqual(of_one.split("top1")[1], of_two.split("top1")[1])
        losses = [float(text.split()[1]) for text in (of_one, of_two)]
        self.assertAlmostEqual(losses[0], losses[1], places=4)

    def check_predictions(self, text, top1):
        lines = [line.split(",") for line in text.splitlines()]
        files = sorted((self.home / "pictures/test").rglob("*.png"))
        self.assertEqual([path for path, _ in lines], [str(path.relative_to(self.home)) for path in files])
        right = sum(pathlib.Path(path).parent.name == label for path, label in lines)
        self.assertAlmostEqual(right / len(lines), top1, places=4)


class Text(Programs):
    def test_a_language_model(self):
        self.run_program("language_model")
        losses = [line["loss"] for line in self.lines("language_model")]
        self.assertLess(losses[-1], losses[0] - 1)
        self.check_resumes("language_model", ["loss", "lr"])
        self.check_one_process("language_model", ["loss", "lr"], 16)


class Tables(Programs):
    def test_a_table_stops_early_and_keeps_its_best(self):
        said = self.run_program("table").stdout
        self.assertLess(float(said.split()[-1]), 20)
        errors = [line["error"] for line in self.lines("table")]
        self.assertAlmostEqual(min(errors), float(said.split()[-1]), places=3)
        self.assertEqual(errors.index(min(errors)), len(errors) - 4, "three epochs after the best")
        best = 50 * len(errors) - 150
        self.assertIn(best // 2, self.steps("table"))
        self.check_resumes("table", ["error", "loss"])
        self.check_one_process("table", ["error", "loss"], 64)

    def test_folds(self):
        said = self.run_program("k_folds").stdout
        self.assertGreater(float(said.split()[-3]), 0.9)
        self.check_ranks_draw_other_numbers("k_folds/4")
        shutil.rmtree(self.home / "runs/k_folds/4")
        shutil.copytree(self.home / "runs/k_folds/3/step-100", self.home / "expected")
        shutil.rmtree(self.home / "runs/k_folds/3/step-100")
        resumed = self.run_program("k_folds")
        self.assertEqual(resumed.stdout, said)
        self.assertIn("k_folds/3/step-50", resumed.stderr)
        self.check_same_bits(self.home / "expected", self.home / "runs/k_folds/3/step-100")
        self.check_one_process("k_folds", ["loss"], 64, run="k_folds/0")


class Shards(Programs):
    def test_shards(self):
        self.run_program("shards")
        self.assertGreater(self.lines("shards")[-1]["top1"], 0.85)
        self.check_resumes("shards", ["loss", "top1", "lr"])


class Games(Programs):
    def test_a_pole_is_balanced(self):
        self.run_program("reinforcement")
        turns = [line["turns"] for line in self.lines("pole")]
        self.assertGreater(turns[-1], turns[0] + 20)
        self.check_resumes("reinforcement", ["turns", "lr"], run="pole")


class Gan(Programs):
    def test_a_gan(self):
        self.run_program("gan")
        self.check_resumes("gan", ["judge", "maker"])
        self.check_one_process("gan", ["judge", "maker"], 64)


class Stopped(Programs):
    def test_a_job_that_is_asked_to_stop_saves_and_goes_on_with_the_same_bits(self):
        run = self.home / "runs/language_model"
        job = subprocess.Popen(self.command("language_model"), cwd=self.home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (run / "step-30").exists() and job.poll() is None:
            time.sleep(0.005)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(), 75)
        stopped_at = self.steps("language_model")[-1]
        self.assertGreaterEqual(stopped_at, 30)
        self.assertLess(stopped_at, 120)
        self.run_program("language_model")
        run.rename(self.home / "stopped")
        self.run_program("language_model")
        self.check_same_bits(run / "step-120", self.home / "stopped/step-120")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
