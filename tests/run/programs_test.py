"""The example and wrong input, as users start them: what they print and leave behind."""
import gzip
import json
import os
import shutil
import socket
import sys
import time
import unittest

from program_case import DIGITS, MUSTER, PROBE, TRAIN, ProgramTest
from long import long, some_of


class Train(ProgramTest):
    def accuracy(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1].split("] ", 1)[-1])["test_accuracy"]

    def test_accuracy_whatever_the_number_of_ranks(self):
        for ranks in some_of((1, 2, 4), 2):
            with self.subTest(ranks=ranks):
                done = self.start(MUSTER, "run", "--run-dir", f"{self.folder}/{ranks}", "--nproc-per-node", str(ranks), TRAIN,
                                  "--epochs", "12", "--batch-size", str(32 // ranks))
                self.assertGreaterEqual(self.accuracy(done), 0.97)
                lines = [json.loads(line) for line in open(f"{self.folder}/{ranks}/metrics.jsonl")]
                self.assertEqual([line["epoch"] for line in lines], list(range(1, 13)))
                self.assertIn("epoch 12/12 [####################]", done.stderr)

    @long
    def test_accumulation_and_the_default_length(self):
        done = self.run_muster("--nproc-per-node", "2", TRAIN, "--accumulate", "2", "--batch-size", "8")
        self.assertGreaterEqual(self.accuracy(done), 0.97)

    def test_started_alone_it_starts_its_ranks(self):
        done = self.start(TRAIN, "--epochs", "1", "--run-dir", f"{self.folder}/mine", MUSTER_NPROC=2)
        self.accuracy(done)
        self.assertIn("CPU slot 1", done.stderr)
        self.assertTrue(os.path.exists(f"{self.folder}/mine/metrics.jsonl"))

    def test_resume_goes_on_where_it_stopped(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        whole = self.run_muster(*argv, "--epochs", "4")
        expected = open(f"{self.folder}/mine/metrics.jsonl").read().splitlines()[-1]
        shutil.rmtree(f"{self.folder}/mine")
        self.run_muster(*argv, "--epochs", "2")
        resumed = self.run_muster(*argv, "--epochs", "4", "--resume")
        self.assertIn("step-", resumed.stderr)
        got = open(f"{self.folder}/mine/metrics.jsonl").read().splitlines()
        self.assertEqual(len(got), 4)
        last, wanted = json.loads(got[-1]), json.loads(expected)
        self.assertEqual((last["loss"], last["step"]), (wanted["loss"], wanted["step"]), "not the same bits as in one go")
        self.accuracy(whole)

    def test_a_resumed_run_writes_each_step_once(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        self.run_muster(*argv, "--epochs", "3")
        newest = max(os.listdir(f"{self.folder}/mine/checkpoints"), key=lambda name: int(name.split("-")[1]))
        shutil.rmtree(f"{self.folder}/mine/checkpoints/{newest}")  # killed before it was written
        resumed = self.run_muster(*argv, "--epochs", "4", "--resume")
        self.assertEqual(len(open(f"{self.folder}/mine/metrics.jsonl.replaced").readlines()), 1)
        lines = [json.loads(line) for line in open(f"{self.folder}/mine/metrics.jsonl")]
        self.assertEqual([line["epoch"] for line in lines], [1, 2, 3, 4])

    def test_a_resumed_run_on_other_data_says_so(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        self.run_muster(*argv, "--epochs", "1")
        with gzip.open(DIGITS) as whole, gzip.open(f"{self.folder}/part.csv.gz", "wb") as part:
            part.writelines(whole.readlines()[:600])
        resumed = self.run_muster(*argv, "--epochs", "2", "--resume", "--digits", f"{self.folder}/part.csv.gz")
        self.assertRegex(resumed.stderr, r"data loader: training began on \d+ samples, and the data set now has \d+: epochs have other")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)

    def test_a_loss_that_is_no_number_is_a_failure_unless_it_is_allowed(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--epochs", "1", "--lr", "1e30")
        self.assert_fails(self.run_muster(*argv), "train step: expected finite gradients, got NaN or an infinity in ", "lower the learning rate")
        allowed = self.run_muster(*argv, "--allow-nan")
        self.assertEqual(allowed.returncode, 0, allowed.stderr)

    def test_mnist_files(self):
        rows, count = 28, 64
        for part, n in (("train", count), ("t10k", 16)):
            with gzip.open(f"{self.folder}/{part}-images-idx3-ubyte.gz", "wb") as f:
                f.write(b"\0\0\x08\x03" + n.to_bytes(4, "big") + rows.to_bytes(4, "big") * 2 + bytes(i % 251 for i in range(n * rows * rows)))
            with open(f"{self.folder}/{part}-labels-idx1-ubyte", "wb") as f:
                f.write(b"\0\0\x08\x01" + n.to_bytes(4, "big") + bytes(i % 10 for i in range(n)))
        done = self.run_muster("--nproc-per-node", "2", TRAIN, "--mnist", self.folder, "--epochs", "1", "--batch-size", "8")
        self.accuracy(done)


class BadInput(ProgramTest):
    def test_data_cut_short(self):
        with open(f"{self.folder}/cut.csv.gz", "wb") as f:
            f.write(open(DIGITS, "rb").read()[:20000])
        self.assert_fails(self.run_muster("--nproc-per-node", "2", TRAIN, "--digits", f"{self.folder}/cut.csv.gz"), "cut.csv.gz")

    def test_data_of_the_wrong_kind(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", TRAIN, "--digits", TRAIN), "train'")
        self.assert_fails(self.run_muster("--nproc-per-node", "1", TRAIN, "--mnist", self.folder), "train-images")

    def test_checkpoint_cut_short(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--epochs", "1")
        self.assertEqual(self.run_muster(*argv).returncode, 0)
        checkpoints = f"{self.folder}/mine/checkpoints"
        (step,) = [name for name in os.listdir(checkpoints) if name.startswith("step-")]
        model = f"{checkpoints}/{step}/model.safetensors"
        os.truncate(model, os.path.getsize(model) // 2)
        self.assert_fails(self.run_muster(*argv, "--resume"), step, "model.safetensors")

    def test_different_models_name_the_first_difference(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "models"), "weight: Float [4, 4]", "weight: Float [5, 4]")

    def test_different_shapes_show_both(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "shapes"), "Float [4]", "Float [5]")

    def test_different_samplers(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "samplers"), "length")

    def test_exception_is_on_the_card(self):
        done = self.run_muster("--nproc-per-node", "3", PROBE, "throw")
        self.assert_fails(done, "rank 1 failed first", "the reactor is too hot", "std::runtime_error", code=1)
        failure = json.load(open(f"{self.folder}/run/failure.json"))
        self.assertEqual(failure["schema"], "muster.failure/1")
        self.assertEqual(done.stderr.count("the reactor is too hot"), 1, done.stderr)

    def test_rank_beyond_the_world(self):
        done = self.start(PROBE, RANK=4, WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=1)
        self.assert_fails(done, "RANK=4", "WORLD_SIZE=4")

    def test_master_that_does_not_resolve(self):
        started = time.monotonic()
        done = self.start(PROBE, RANK=1, WORLD_SIZE=2, MASTER_ADDR="no-such-host.invalid", MASTER_PORT=29500)
        self.assert_fails(done, "no-such-host.invalid")
        self.assertLess(time.monotonic() - started, 60)

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.start(PROBE, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            self.assert_fails(done, str(port))
            self.assert_fails(self.run_muster("--nproc-per-node", "1", "--master-port", str(port), PROBE), str(port))

    def test_cuda_where_there_is_none(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("this machine may have a GPU")
        self.assert_fails(self.run_muster("--gpus", "0", PROBE), "GPU")
        self.assert_fails(self.run_muster("--nproc-per-node", "gpu", PROBE), "GPU")

    def test_zero_devices_and_unknown_program(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "0", PROBE), "0")
        self.assert_fails(self.run_muster(f"{self.folder}/no-such-program"), "no-such-program", code=127)

    def test_train_options(self):
        for argv in (("--epochs", "0"), ("--lr", "x"), ("--no-such-flag",)):
            self.assert_fails(self.start(TRAIN, *argv), argv[0], code=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
