"""Starts examples/03_three_models as users do, without a GPU, and reads what it prints."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, ProgramTest


class ThreeModels(ProgramTest):
    def test_all_three_learn_on_devices_of_their_own(self):
        done = self.start(f"{BUILD}/bin/three_models", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("on the CPU: task 'CNN': ", done.stderr)
        lines = done.stdout.splitlines()
        accuracies = json.loads(lines[-1])
        self.assertEqual(list(accuracies), ["softmax_regression", "mlp", "cnn"])
        for name, accuracy in accuracies.items():
            self.assertGreater(accuracy, 0.9, name)
        for slot, line in enumerate(lines[1:4]):
            self.assertIn(f"CPU slot {slot} ", line)


if __name__ == "__main__":
    unittest.main()
