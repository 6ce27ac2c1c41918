"""Starts examples/02_gpt as users do, with a tiny model, and reads what it prints and leaves behind."""
import gzip
import json
import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, MUSTER, SOURCE, ProgramTest

GPT = f"{BUILD}/bin/gpt"
TEXT = f"{SOURCE}/data/shakespeare.txt.gz"
TINY = ("--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "8", "--lr", "0.01", "--warmup", "5",
        "--eval-every", "20", "--sample", "30")


class GptTest(ProgramTest):
    def gpt(self, name, *argv):
        return self.start(MUSTER, "run", "-n", "2", "--run-dir", f"{self.folder}/{name}", GPT, *TINY, *argv)

    def metrics(self, name):
        return [json.loads(line) for line in open(f"{self.folder}/{name}/metrics.jsonl")]

    def last_line(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip().splitlines()[-1]


class Learning(GptTest):
    def test_it_learns_and_the_same_seed_gives_the_same(self):
        done = self.gpt("one", "--steps", "40", "--prompt", "ROMEO:")
        last = self.last_line(done)
        characters = len(set(gzip.open(TEXT).read()))
        loss = json.loads(last.removeprefix("[0] "))["validation_loss"]
        self.assertLess(loss, math.log(characters) - 0.5, "no better than knowing next to nothing")
        self.assertIn("[0] ROMEO:", done.stdout)
        self.assertEqual([(line["step"], sorted(line)) for line in self.metrics("one")],
                         [(step, ["loss", "lr", "step", "tokens_per_second", "validation_loss"]) for step in (20, 40)])
        self.assertEqual(self.metrics("one")[-1]["validation_loss"], loss)

        self.assertEqual(self.gpt("two", "--steps", "40", "--prompt", "ROMEO:").stdout, done.stdout)
        self.assertNotEqual(self.last_line(self.gpt("three", "--steps", "40", "--seed", "2")), last)

    def test_resume_goes_on_where_it_stopped(self):
        self.last_line(self.gpt("mine", "--steps", "30"))
        whole = self.last_line(self.gpt("mine", "--steps", "30", "--resume"))
        self.assertEqual(len(self.metrics("mine")), 2, "nothing was left to train")
        (pathlib.Path(self.folder) / "mine/checkpoints/step-30/manifest.json").unlink()
        resumed = self.gpt("mine", "--steps", "30", "--resume")
        self.assertIn("resume: ", resumed.stderr)
        self.assertIn("step-20", resumed.stderr)
        self.assertEqual(self.last_line(resumed), whole, "not the same bits as in one go")


class Ways(GptTest):
    def losses(self, name, *flags):
        done = self.gpt(name, "--steps", "40", *flags)
        self.assertIn("validation_loss", self.last_line(done))
        self.assertTrue((pathlib.Path(self.folder) / name / "checkpoints/step-40/manifest.json").exists())
        return [value for line in self.metrics(name) for value in (line["loss"], line["validation_loss"])]

    def assert_near(self, losses, plain, bound):
        self.assertEqual(len(losses), len(plain))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(losses, plain)), bound)

    def test_divided_state_gives_the_same_losses(self):
        plain = self.losses("plain")
        self.assert_near(self.losses("zero1", "--shard", "zero1"), plain, 1e-4)
        self.assert_near(self.losses("zero2", "--shard", "zero2"), plain, 1e-4)
        self.assertNotEqual(self.losses("other", "--seed", "2"), plain)

    def test_ranks_that_train_alone_learn_as_much(self):
        plain = self.losses("plain")
        for every in ("1", "4"):
            local = self.losses("local" + every, "--local-sgd", every)
            self.assert_near(local[-1:], plain[-1:], 0.15)
            self.assertNotEqual(local, plain, "nothing was done differently")


class BadInput(GptTest):
    def assert_refused(self, *argv, says, code=2):
        done = self.start(GPT, *argv, "--run-dir", f"{self.folder}/mine", MUSTER_NPROC=2)
        self.assert_fails(done, *says, code=code)
        self.assertNotIn("CPU slot", done.stderr, "something was started")

    def test_texts(self):
        self.assert_refused("--text", f"{self.folder}/none.txt", says=("none.txt", "No such file"), code=1)
        self.assert_refused("--text", self.folder, says=("got a folder",), code=1)
        for name, content in (("empty", ""), ("short", "x" * 649)):
            path = pathlib.Path(self.folder) / name
            path.write_text(content)
            self.assert_refused("--text", str(path), says=(
                f"text: expected at least 650 characters in '{path}' for a context of 64, got {len(content)}; ",))
        cut = pathlib.Path(self.folder) / "cut.gz"
        cut.write_bytes(open(TEXT, "rb").read()[:9999])
        self.assert_refused("--text", str(cut), says=("cut.gz", "cut short"))

    def test_sizes_and_prompt(self):
        self.assert_refused("--width", "130", says=("gpt: expected a width that the heads divide, got width 130 and 4 heads; ",))
        self.assert_refused("--prompt", "100 %", says=("text: expected characters that it has, got '1' in '100 %'; ",))

    def test_options(self):
        for argv in (("--layers", "0"), ("--steps", "x"), ("--temperature", "0"), ("--no-such-flag",)):
            self.assert_refused(*argv, says=(argv[0],))

    def test_ways_that_do_not_go_together(self):
        self.assert_refused("--shard", "zero1", "--local-sgd", "4", says=("--local-sgd: expected no --shard",))
        self.assert_refused("--shard", "zero2", "--resume", says=("--resume: expected neither --shard", "got --shard zero2"))
        self.assert_refused("--local-sgd", "4", "--resume", says=("got --local-sgd",))
        self.assert_refused("--shard", "zero4", says=("--shard",))
        self.assert_refused("--local-sgd", "-1", says=("--local-sgd",))

    def test_a_checkpoint_of_another_text(self):
        for name, letters in (("one", "ab"), ("two", "ac")):
            (pathlib.Path(self.folder) / name).write_text(letters * 200)
        self.last_line(self.gpt("mine", "--steps", "1", "--text", f"{self.folder}/one"))
        self.assert_fails(self.gpt("mine", "--steps", "2", "--resume", "--text", f"{self.folder}/two"),
                          "--resume: expected the characters of the text that was trained on before")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
