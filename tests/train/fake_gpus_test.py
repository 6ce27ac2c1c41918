"""train_probe on two CPU ranks and on two fake GPUs (tests/cuda): the same numbers, to the last bit."""
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])
GPU = "uuid=GPU-{name},name={name},total=8589934592,free=8589934592,cc=9.0,pci=00000000:0{bus}:00.0"
TWO_GPUS = {
    "MUSTER_NVML_LIBRARY": f"{BUILD}/lib/libfake_nvml.so", "MUSTER_CUDA_LIBRARY": f"{BUILD}/lib/libfake_cuda.so", "FAKE_CUDA": "GPU-a,GPU-b",
    "FAKE_NVML": "|".join(["version=570.1", GPU.format(name="a", bus=1), GPU.format(name="b", bus=2)])}


class Training(unittest.TestCase):
    def numbers(self, *where):
        with tempfile.TemporaryDirectory(prefix="muster-train-probe-") as folder:
            env = {**os.environ, **TWO_GPUS, "MUSTER_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1"}
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
