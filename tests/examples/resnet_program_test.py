"""Starts examples/04_resnet as users do, small, and reads what it prints and leaves behind."""
import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, MUSTER, ProgramTest
from long import some_of

RESNET = f"{BUILD}/bin/resnet"
SMALL = ("--width", "6", "--batch-size", "64", "--ema", "0.9")


class ResNetTest(ProgramTest):
    def resnet(self, name, *argv, ranks=2):
        done = self.start(MUSTER, "run", "-n", str(ranks), "--run-dir", f"{self.folder}/{name}", RESNET, *SMALL, *argv)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def metrics(self, name):
        return [json.loads(line) for line in open(f"{self.folder}/{name}/metrics.jsonl")]

    def test_it_learns_and_goes_on_from_the_middle_of_an_epoch_with_the_same_bits(self):
        whole = self.resnet("one", "--epochs", "3")
        lines = self.metrics("one")
        self.assertEqual([line["step"] for line in lines], [23, 46, 69])
        self.assertGreater(lines[-1]["test_accuracy"], 0.6)
        folder = pathlib.Path(self.folder) / "one"
        self.assertEqual(len(list(folder.glob("events.out.tfevents.*"))), 1)
        model = (folder / "checkpoints/step-69/model.safetensors").read_bytes()
        shutil.rmtree(folder / "checkpoints/step-69")
        resumed = self.resnet("one", "--epochs", "3", "--resume")
        self.assertIn("step-66", resumed.stderr)
        self.assertEqual((folder / "checkpoints/step-69/model.safetensors").read_bytes(), model, "not the same bits as in one go")
        self.assertEqual(resumed.stdout, whole.stdout)

    def test_it_goes_on_with_other_ranks_at_the_same_place(self):
        self.resnet("two", "--epochs", "1")
        self.resnet("two", "--epochs", "2", "--resume", ranks=4)
        self.assertEqual([line["step"] for line in self.metrics("two")], [23, 46])
        done = self.start(MUSTER, "run", "-n", "3", RESNET, *SMALL, "--epochs", "1")
        self.assert_fails(done, "--batch-size: expected a multiple of 3 ranks, got 64")

    def test_precisions(self):
        for precision in some_of(("fp32", "fp16"), 1):  # bf16 is what the others have
            with self.subTest(precision=precision):
                self.resnet(precision, "--precision", precision, "--epochs", "1")
                self.assertEqual(len(self.metrics(precision)), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
