"""muster.init() in Python scripts that srun and mpirun start by themselves, on one host and on two.

    python_test.py MUSTER LIBRARY PYTHON      the program, libmuster.so.0, and a Python that imports torch
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import main, wait_for
from mpi_test import OPEN_MPI
from slurm_test import SlurmCase, missing_for_slurm

ROOT = pathlib.Path(__file__).resolve().parents[2]
MUSTER = LIBRARY = PYTHON = ""
SUM = """
import torch
import torch.distributed as dist
import muster
ctx = muster.init()
total = torch.tensor([float(ctx.rank)])
dist.all_reduce(total) if ctx.world_size > 1 else None
print(f"rank {ctx.rank} of {ctx.world_size}, local {ctx.local_rank} of {ctx.local_world_size}: sum {total.item():.0f}", flush=True)
"""
WAIT = """
import pathlib, sys, threading
import muster
ctx = muster.init()
ctx.should_stop()
pathlib.Path(f"ready-{ctx.rank}").touch()
while not ctx.should_stop():
    threading.Event().wait(0.01)
pathlib.Path(f"saved-{ctx.rank}").touch()
sys.exit(muster.STOPPED)
"""


class Python(SlurmCase):
    def setUp(self):
        self.environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1",
                            "MUSTER_PROGRAM": MUSTER, "MUSTER_LIBRARY": LIBRARY}

    def script(self, name, text):
        path = self.world.folder / name
        path.write_text(text)
        return str(path)

    def assert_ranks_say(self, expected, *command):
        """That the ranks of this command meet, and know their places."""
        code, out, err = self.world["a"].run(list(command), 250, env=self.environment)
        self.assertEqual(code, 0, out + err)
        self.assertEqual(sorted(line for line in out.splitlines() if line.startswith("rank")), expected, out + err)

    def test_srun(self):
        script = self.script("sum.py", SUM)
        self.assert_ranks_say([f"rank {rank} of 2, local {rank} of 2: sum 1" for rank in range(2)], "srun", "-N1", "-n2", PYTHON, script)
        self.assert_ranks_say([f"rank {rank} of 2, local 0 of 1: sum 1" for rank in range(2)],
                              "srun", "-N2", "--ntasks-per-node=1", PYTHON, script)
        self.assertEqual(list(self.world.folder.glob(".muster-*")), [], "what they met by is left over")

    def test_a_batch_script_is_a_world_of_one(self):
        job = self.script("job.sh", f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1 -o job.out\n{PYTHON} {self.script('sum.py', SUM)}\n")
        code, out, err = self.world["a"].run(["sbatch", "--wait", job], 250, env=self.environment)
        self.assertEqual(code, 0, out + err)
        self.assertIn("rank 0 of 1, local 0 of 1: sum 0", (self.world.folder / "job.out").read_text())

    def test_all_ranks_save_when_slurm_asks_them_to_stop(self):
        process = self.world["a"].start_for(self, ["srun", "-J", "stops", "-N2", "--ntasks-per-node=1", PYTHON, self.script("wait.py", WAIT)], 250,
                                            env=self.environment)
        wait_for(lambda: len(list(self.world.folder.glob("ready-*"))) == 2 or process.poll() is not None, 200)
        self.assertIsNone(process.poll(), "the ranks did not meet")
        code, out, err = self.world["a"].run(["scancel", "--signal=TERM", "--name=stops"])
        self.assertEqual(code, 0, out + err)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 75, out + err)
        self.assertEqual(sorted(path.name for path in self.world.folder.glob("saved-*")), ["saved-0", "saved-1"], out + err)

    def test_mpirun(self):
        script = self.script("sum.py", SUM)
        on_one = [f"rank {rank} of 2, local {rank} of 2: sum 1" for rank in range(2)]
        self.assert_ranks_say(on_one, *OPEN_MPI, "-n", "2", PYTHON, script)
        self.assert_ranks_say(on_one, "mpiexec.hydra", "-n", "2", PYTHON, script)
        passed = [word for name in self.environment for word in ("-x", name)]
        self.assert_ranks_say([f"rank {rank} of 2, local 0 of 1: sum 1" for rank in range(2)], *OPEN_MPI, "--host", "a,b", "--map-by", "ppr:1:node",
                              "--mca", "plm_rsh_args", f"-F {self.world.folder}/ssh_config", *passed, PYTHON, script)
        self.assertEqual(list(self.world.folder.glob(".muster-*")), [], "what they met by is left over")


if __name__ == "__main__":
    MUSTER, LIBRARY, PYTHON = (str(pathlib.Path(sys.argv.pop(1)).absolute()) for _ in range(3))
    main(missing_for_slurm("mpirun.openmpi", "mpiexec.hydra"))
