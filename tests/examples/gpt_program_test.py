"""Starts examples/02_gpt as users do, with a tiny model, and reads what it prints and leaves behind."""
import gzip
import json
import math
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "run"))
from program_case import BUILD, MUSTER, SOURCE, ProgramTest
from long import long, some_of

GPT = f"{BUILD}/bin/gpt"
TEXT = f"{SOURCE}/data/shakespeare.txt.gz"
TINY = ("--layers", "1", "--heads", "2", "--width", "32", "--context", "16", "--batch", "8", "--lr", "0.01", "--warmup", "5",
        "--eval-every", "20", "--sample", "30")


# Of four layers, and a rate at which rounding does not grow.
FOUR = ("--layers", "4", "--heads", "4", "--width", "32", "--context", "16", "--lr", "0.003", "--warmup", "5", "--eval-every", "20",
        "--sample", "10", "--steps", "40")


class GptTest(ProgramTest):
    def ranks(self, number, name, *argv):
        return self.start(MUSTER, "run", "-n", str(number), "--cpu-slots", str(number), "--run-dir", f"{self.folder}/{name}", GPT, *argv)

    def gpt(self, name, *argv):
        return self.ranks(2, name, *TINY, *argv)

    def metrics(self, name):
        return [json.loads(line) for line in pathlib.Path(f"{self.folder}/{name}/metrics.jsonl").read_text().splitlines()]

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
        self.assertEqual([(line["step"], sorted(name for name in line if not name.startswith("time/"))) for line in self.metrics("one")],
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


class WaysTest(GptTest):
    def values(self, name, done):
        self.assertIn("validation_loss", self.last_line(done))
        self.assertTrue((pathlib.Path(self.folder) / name / "checkpoints/step-40/manifest.json").exists())
        return [value for line in self.metrics(name) for value in (line["loss"], line["validation_loss"])]

    def losses(self, name, *flags):
        return self.values(name, self.gpt(name, "--steps", "40", *flags))

    # Of 16 windows a step, which the data-parallel ranks share out.
    def losses_of_four_layers(self, name, ranks, replicas, *flags):
        batch = ("--batch", str(16 // replicas))
        return self.values(name, self.ranks(ranks, name, *FOUR, *batch, *flags))

    def assert_near(self, losses, plain, bound):
        self.assertEqual(len(losses), len(plain))
        self.assertLessEqual(max(abs(a - b) for a, b in zip(losses, plain)), bound)

    def assert_all_near(self, plain, bound, ways, *flags):
        for ranks, replicas, way in ways:
            with self.subTest(way, ranks=ranks):
                name = f"{ranks} {way}".replace(" ", "_")
                losses = self.losses_of_four_layers(name, ranks, replicas, *flags, *way.split())
                print(f"{ranks} ranks {way}: {max(abs(a - b) for a, b in zip(losses, plain)):.1e}")
                self.assert_near(losses, plain, bound)


class Ways(WaysTest):
    def test_divided_state_gives_the_losses_of_one_process(self):
        plain = self.losses_of_four_layers("plain", 1, 1)
        self.assert_all_near(plain, 1e-4, some_of(((2, 2, ""), (2, 2, "--shard zero1"), (2, 2, "--shard zero2"), (2, 2, "--shard full"), (4, 4, "--shard full")), 0, 2, 4))
        self.assertGreater(abs(self.losses_of_four_layers("other", 1, 1, "--seed", "2")[0] - plain[0]), 1e-3)

    # A checkpoint of each way that divides the optimizer's state is a plain run's: another number of ranks goes on.
    def test_a_run_goes_on_in_another_way(self):
        plain = self.losses_of_four_layers("mine", 2, 2)
        for ranks, way in some_of(((2, "zero1"), (2, "zero2"), (4, "full"), (2, "full"), (1, "none")), 0, 2):
            (pathlib.Path(self.folder) / "mine/checkpoints/step-40/manifest.json").unlink()
            (pathlib.Path(self.folder) / "mine/metrics.jsonl").unlink()
            done = self.ranks(ranks, "mine", *FOUR, "--batch", str(16 // ranks), "--shard", way, "--resume")
            self.assertIn("step-20", done.stderr)
            self.assert_near(self.values("mine", done), plain[2:], 1e-4)

    def test_ranks_that_train_alone_learn_as_much(self):
        plain = self.losses("plain")
        for every in ("1", "4"):
            local = self.losses("local" + every, "--local-sgd", every)
            self.assert_near(local[-1:], plain[-1:], 0.15)
            self.assertNotEqual(local, plain, "nothing was done differently")

    # On as many ranks with each rank's own model and AdamW; on others, and by other ways, with the mean of them.
    def test_ranks_that_train_alone_go_on(self):
        whole = self.losses_of_four_layers("mine", 2, 2, "--local-sgd", "8")
        self.assertEqual(self.goes_on("2 ranks", 2, "--local-sgd", "8"), whole[2:], "not the same bits as in one go")
        for ranks, way in some_of(((1, "--local-sgd 8"), (4, "--local-sgd 8"), (2, "--shard zero1"), (2, "")), 1, 2):
            self.assert_near(self.goes_on("mean", ranks, *way.split()), whole[2:], 0.1)

    def goes_on(self, begins_with, ranks, *way):
        shutil.rmtree(pathlib.Path(self.folder) / "mine/checkpoints/step-40")
        (pathlib.Path(self.folder) / "mine/metrics.jsonl").unlink()
        done = self.ranks(ranks, "mine", *FOUR, "--batch", str(16 // ranks), *way, "--resume")
        self.assertIn("step-20", done.stderr)
        says = f"resume: 2 ranks had their own model and optimizer; the {ranks} that go on begin with their mean"
        self.assertEqual(says in done.stderr, begins_with == "mean", done.stderr)
        return self.values("mine", done)


class Meshes(WaysTest):
    def test_divided_layers_and_stages_give_the_losses_of_one_process(self):
        self.assert_all_near(self.losses_of_four_layers("plain", 1, 1), 1e-4, some_of((
            (2, 1, "--mesh tp=2"), (4, 2, "--mesh dp=2,tp=2 --sequence"),
            (2, 1, "--mesh pp=2 --pipeline-schedule gpipe"), (2, 1, "--mesh pp=2 --pipeline-schedule interleaved --micro-batches 8"),
            (4, 2, "--mesh dp=2,pp=2 --pipeline-schedule zero-bubble"), (8, 2, "--mesh dp=2,pp=2,tp=2")), 3, 5))

    def test_tied_weights_and_half_numbers(self):
        for flags, bound in some_of((("--tied", 1e-4), ("--precision bf16", 2e-3), ("--precision fp16", 2e-3)), 0):
            plain = self.losses_of_four_layers("plain" + flags[-4:], 1, 1, *flags.split())
            ways = ((2, 2, f"--shard full {flags}"), (2, 1, f"--mesh tp=2 {flags}"), (4, 1, f"--mesh pp=2,tp=2 {flags}"))
            self.assert_all_near(plain, bound, some_of(ways, 0, 2))

    # Two batches of 8 a step are one of 16.
    @long
    def test_batches_of_a_step_add_up_in_a_pipeline(self):
        plain = self.losses_of_four_layers("plain", 1, 1)[1::2]  # the losses of a step's batches are means over other texts
        for ranks, replicas, way in ((2, 1, "--mesh pp=2"), (4, 2, "--mesh dp=2,pp=2 --tied")):
            expected = plain if "--tied" not in way else self.losses_of_four_layers("tied", 1, 1, "--tied")[1::2]
            flags = (*way.split(), "--accumulate", "2", "--batch", str(8 // replicas))
            self.assert_near(self.values("added" + str(ranks), self.ranks(ranks, "added" + str(ranks), *FOUR, *flags))[1::2], expected, 1e-4)

    # What one way has saved, every other goes on from, with the optimizer's state; and back.
    def test_a_run_goes_on_divided_otherwise(self):
        plain = self.losses_of_four_layers("mine", 4, 4, "--shard", "full")
        table = ((2, 1, "--mesh tp=2"), (4, 2, "--mesh dp=2,pp=2 --pipeline-schedule interleaved"), (4, 1, "--mesh pp=2,tp=2 --sequence"),
                 (2, 2, "--shard zero1"), (1, 1, ""), (8, 2, "--mesh dp=2,pp=2,tp=2"))
        for ranks, replicas, way in some_of(table, 1, 2):
            with self.subTest(way):
                shutil.rmtree(pathlib.Path(self.folder) / "mine/checkpoints/step-40")
                done = self.ranks(ranks, "mine", *FOUR, "--batch", str(16 // replicas), *way.split(), "--resume")
                self.assertIn("step-20", done.stderr)
                self.assert_near(self.values("mine", done), plain, 1e-4)

    # A checkpoint holds the whole model, however it was divided.
    @long
    def test_a_checkpoint_of_a_mesh_holds_the_model(self):
        self.losses_of_four_layers("plain", 1, 1)
        self.losses_of_four_layers("mesh", 4, 1, "--mesh", "pp=2,tp=2")
        self.assertEqual(self.tensors("mesh"), self.tensors("plain"))

    def tensors(self, name):
        """Names and shapes of the model in the last checkpoint, whichever rank has written them."""
        file = f"{self.folder}/{name}.safetensors"
        self.assertEqual(self.start(MUSTER, "checkpoint", "export", f"{self.folder}/{name}/checkpoints/step-40", file).returncode, 0)
        content = pathlib.Path(file).read_bytes()
        header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
        return {key: value["shape"] for key, value in header.items() if key != "__metadata__"}


class Hosts(WaysTest):
    """The ranks take themselves to be on two hosts: memory inside each, Gloo between them."""

    def ranks(self, number, name, *argv):
        of_two_hosts = f'export MUSTER_HOST_ID="host $((RANK * 2 / WORLD_SIZE))"; exec {GPT} "$@"'
        done = self.start(MUSTER, "run", "-n", str(number), "--cpu-slots", str(number), "--run-dir", f"{self.folder}/{name}",
                          "sh", "-c", of_two_hosts, "gpt", *argv)
        if number > 1:
            self.assertIn("ranks over shm+gloo", done.stderr)
        return done

    def test_every_way_gives_the_losses_of_one_process(self):
        self.assert_all_near(self.losses_of_four_layers("plain", 1, 1), 1e-4, some_of((
            (4, 4, ""), (4, 4, "--shard zero2"), (4, 4, "--shard full"), (4, 2, "--mesh dp=2,tp=2"), (4, 2, "--mesh dp=2,pp=2")), 1, 3, 4))


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
        self.assert_refused("--prompt", "100 %", says=("text: expected only characters of the text, got '1' in '100 %'; ",))

    def test_options(self):
        for argv in (("--layers", "0"), ("--steps", "x"), ("--temperature", "0"), ("--no-such-flag",)):
            self.assert_refused(*argv, says=(argv[0],))

    def test_ways_that_do_not_go_together(self):
        self.assert_refused("--shard", "zero1", "--local-sgd", "4", says=("--local-sgd: expected no --shard",))
        self.assert_refused("--shard", "zero4", says=("--shard",))
        self.assert_refused("--local-sgd", "-1", says=("--local-sgd",))

    def test_meshes_that_do_not_fit(self):
        for argv, says in (
                ("--mesh dp=2,tp=4", "--mesh: expected sizes whose product is the 2 ranks there are, got dp=2,tp=4, which are 8; "),
                ("--mesh ep=2", "--mesh: expected axes out of dp, pp and tp, got ep; rename it"),
                ("--mesh tp", "--mesh: expected NAME=SIZE for each axis, got 'tp'; "),
                ("--mesh tp=2 --heads 3 --width 33", "--heads: expected a number that the 2 ranks of tp divide, got 3; "),
                ("--mesh tp=2 --sequence --context 17", "--context: expected a length that the 2 ranks of tp divide with --sequence, got 17; "),
                ("--sequence", "--sequence: expected a --mesh with tp beside it, got none; "),
                ("--mesh tp=2 --shard full", "--shard: expected no --mesh with pp or tp beside it, got --mesh tp=2; "),
                ("--mesh pp=2 --local-sgd 2", "--local-sgd: expected no --mesh with pp or tp beside it, got --mesh pp=2; ")):
            with self.subTest(argv):
                self.assert_refused(*argv.split(), says=(says,))

    def test_pipelines_that_do_not_fit(self):
        for argv, says in (
                ("--mesh pp=2 --layers 3", "--layers: expected a number that the pipeline's 2 stages divide, got 3; "),
                ("--mesh pp=2 --layers 6 --pipeline-schedule interleaved", "the pipeline's 4 stages divide, got 6; "),
                ("--mesh pp=2 --micro-batches 3", "--micro-batches: expected a number that divides the batch of 16, got 3; "),
                ("--mesh pp=2 --micro-batches 1 --pipeline-schedule interleaved", "--micro-batches: expected a number that 2 ranks divide, "),
                ("--pipeline-schedule gpipe", "--pipeline-schedule: expected a --mesh with pp beside it, got none; add --mesh pp=2"),
                ("--micro-batches 2 --mesh tp=2", "--micro-batches: expected a --mesh with pp beside it, got tp=2; "),
                ("--mesh pp=2 --pipeline-schedule fast", "--pipeline-schedule: fast not in {gpipe")):
            with self.subTest(argv):
                self.assert_refused(*argv.split(), says=(says,))

    def test_a_checkpoint_of_another_text(self):
        for name, letters in (("one", "ab"), ("two", "ac")):
            (pathlib.Path(self.folder) / name).write_text(letters * 200)
        self.last_line(self.gpt("mine", "--steps", "1", "--text", f"{self.folder}/one"))
        self.assert_fails(self.gpt("mine", "--steps", "2", "--resume", "--text", f"{self.folder}/two"),
                          "--resume: expected the characters of the text that was trained on before")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
