"""Programs on GPUs, with the fake ones of fake_gpu.cc: all that is done with tensors of GPUs, but on true ones."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from fake_gpus import two_gpus

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])
CPU = ("--nproc-per-node", "cpu", "--cpu-slots")
SHARED = ("--gpus", "0", "--surplus", "share", "--nproc-per-node")


class OnGpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-fake-gpus-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, *argv):
        env = {**os.environ, **two_gpus(BUILD), "MUSTER_RUNTIME_DIR": self.folder, "OMP_NUM_THREADS": "1"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(argv, cwd=self.folder, env=env, capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def run_muster(self, *argv):
        done = self.start(f"{BUILD}/bin/muster", "run", *argv)
        return done.stdout + done.stderr

    def losses(self, *where):
        folder = f"{self.folder}/{'_'.join(where)}"
        said = self.run_muster("--run-dir", folder, *where, f"{BUILD}/bin/train", "--epochs", "2")
        return said, [json.loads(line)["loss"] for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]

    def test_every_collective_of_ranks_that_share_a_gpu(self):
        self.assertIn("checks hold on 3 ranks over shm", self.run_muster(*SHARED, "3", f"{BUILD}/tests/conformance_ranks"))

    def test_every_collective_of_ranks_with_a_gpu_each(self):
        self.assertIn("checks hold on 2 ranks over nccl", self.run_muster(f"{BUILD}/tests/conformance_ranks"))

    def test_messages_between_hosts(self):
        # Gloo sends from memory of the host; its collectives with GPUs' tensors are in LibTorch's CUDA part.
        ranks = "MUSTER_HOST_ID=host$((RANK / 2)) exec " + f"{BUILD}/tests/conformance_ranks SendAndReceiveAroundTheRing"
        self.assertIn("1 checks hold on 3 ranks over shm+gloo", self.run_muster(*SHARED, "3", "sh", "-c", ranks))

    def test_training_has_the_same_losses_wherever_its_ranks_are(self):
        said, shared = self.losses(*SHARED, "2")
        self.assertIn("shared by 2 ranks", said)
        said, apart = self.losses("--gpus", "1,0")
        self.assertIn("2 ranks over nccl", said)
        self.assertEqual(shared, apart)
        _, on_cpu = self.losses(*CPU, "2")
        for gpu, cpu in zip(shared, on_cpu, strict=True):
            self.assertAlmostEqual(gpu, cpu, places=6)  # LibTorch's layers take other ways there
        rows = json.loads(self.start(f"{BUILD}/bin/muster", "top", "--json", f"{self.folder}/--gpus_1,0").stdout)["ranks"]
        self.assertEqual([row["step"] for row in rows], [rows[0]["step"]] * 2)
        for row in rows:
            self.assertGreater(row["loss"], 0)

    def test_a_rank_on_a_gpu_and_one_on_the_cpu_save_and_resume(self):
        mixed = "--run-dir", f"{self.folder}/mixed", "--gpus", "0", "--surplus", "cpu", "--nproc-per-node", "2"
        self.run_muster(*mixed, f"{BUILD}/bin/train", "--epochs", "1")
        self.run_muster(*mixed, f"{BUILD}/bin/train", "--epochs", "2", "--resume")
        losses = [json.loads(line)["loss"] for line in pathlib.Path(self.folder, "mixed/metrics.jsonl").read_text().splitlines()]
        _, on_cpu = self.losses(*CPU, "2")
        for one, other in zip(losses, on_cpu, strict=True):
            self.assertAlmostEqual(one, other, places=6)

    def test_a_program_that_seeds_before_it_has_its_gpus(self):
        # torch::manual_seed asks LibTorch for its CUDA part, and LibTorch asks once.
        table = self.start(f"{BUILD}/bin/three_models").stdout
        self.assertIn("softmax regression   GPU 0", table)
        self.assertIn("MLP                  GPU 1", table)

    def test_the_library_of_another_version_is_refused(self):
        environment = {**os.environ, **two_gpus(BUILD), "MUSTER_RUNTIME_DIR": self.folder, "FAKE_CUDA_VERSION": "0.0.1"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run([f"{BUILD}/bin/train", "--epochs", "1"], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=100)
        self.assertNotEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"cuda: expected the library muster_cuda of muster \d+\.\d+\.\d+, got '.*libfake_cuda.so' of 0.0.1; install both from one build")

    def test_what_goes_through_the_host_is_right_and_timed(self):
        what = "collectives", "-n", "3", "--backends", "shm", "--max", "4K", "--seconds", "0.01", "--json"
        rows = json.loads(self.start(f"{BUILD}/bin/muster", "bench", *what).stdout)["rows"]
        self.assertEqual([row["bytes"] for row in rows], [4, 16, 64, 256, 1024, 4096])
        self.assertEqual({row["wrong"] for row in rows}, {0})


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
