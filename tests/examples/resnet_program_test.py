"""Starts examples/04_resnet as users do, small, and reads what it prints and leaves behind."""
import json
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from program_case import BUILD, MUSTER, ProgramTest
from published import publish, tensors_of
from long import long, some_of

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

    @long
    def test_precisions(self):
        for precision in some_of(("fp32", "fp16"), 1):  # bf16 is what the others have
            with self.subTest(precision=precision):
                self.resnet(precision, "--precision", precision, "--epochs", "1")
                self.assertEqual(len(self.metrics(precision)), 1)


class PublishedTest(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.files = publish(cls)

    def resnet(self, weights, *argv):
        return self.start(MUSTER, "run", "-n", "2", "--run-dir", f"{self.folder}/{weights}", RESNET, "--weights",
                          f"{self.files}/{weights}", "--epochs", "1", "--precision", "fp32", *argv)

    def test_it_begins_with_published_weights(self):
        # At such a rate the weights stay as they are.
        done = self.resnet("resnet18.pth", "--side", "32", "--lr", "1e-9")
        self.assertEqual(done.returncode, 0, done.stderr)
        published = tensors_of(f"{self.files}/resnet18.safetensors", "layer4.1.conv2.weight")
        model = f"{self.folder}/resnet18.pth/checkpoints/step-23/model.safetensors"
        trained = tensors_of(model, "layer4.1.conv2.weight", "fc.weight")
        (shape, before), (trained_shape, after) = published["layer4.1.conv2.weight"], trained["layer4.1.conv2.weight"]
        self.assertEqual(trained_shape, shape)
        self.assertLess(max(abs(a - b) for a, b in zip(before, after, strict=True)), 1e-5)
        self.assertEqual(trained["fc.weight"][0], [10, 64], "the head is for these pictures' classes")

        done = self.resnet("vit.safetensors", "--lr", "0.02")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = pathlib.Path(f"{self.folder}/vit.safetensors/metrics.jsonl").read_text().splitlines()
        self.assertGreater(json.loads(lines[-1])["test_accuracy"], 0.15)

    def test_what_does_not_fit_is_refused(self):
        self.assert_fails(self.resnet("gpt2.pth"), "expected weights of torchvision's resnet18 or resnet34")
        self.assert_fails(self.resnet("resnet18.pth", "--depth", "3"), "--depth: expected none with --weights")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
