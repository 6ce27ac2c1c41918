"""train_probe on two CPU ranks and on two fake GPUs (tests/cuda): the same numbers, to the last bit."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cuda"))
from fake_gpus import two_gpus  # noqa: E402

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])


class Training(unittest.TestCase):
    def numbers(self, *where):
        with tempfile.TemporaryDirectory(prefix="muster-train-probe-") as folder:
            env = {**os.environ, **two_gpus(BUILD), "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
            env.pop("CUDA_VISIBLE_DEVICES", None)
            done = subprocess.run([f"{BUILD}/bin/muster", "run", "--quiet", *where, f"{BUILD}/tests/train_probe"], cwd=folder, env=env,
                                  capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def test_gpus_and_cpus_train_the_same(self):
        on_cpus, on_gpus = self.numbers("--nproc-per-node", "cpu", "--cpu-slots", "2"), self.numbers()
        self.assertEqual(len(on_cpus), 3 * 13)
        self.assertEqual(len(set(on_cpus)), 3 * 13, "each step has numbers of its own")
        for cpu, gpu in zip(on_cpus, on_gpus, strict=True):
            print(cpu if cpu == gpu else f"CPUs {cpu}\nGPUs {gpu}")
        self.assertEqual(on_cpus, on_gpus)


if __name__ == "__main__":
    unittest.main()
