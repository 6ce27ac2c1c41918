"""Real LibTorch programs on several hosts: trained over ssh, and started by srun and mpirun alone.

    programs_test.py MUSTER HELLO TRAIN [PYTHON]      the program; examples/00_hello and 01_train; one with PyTorch
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import main
from mpi_test import OPEN_MPI
from slurm_test import SlurmCase, missing_for_slurm

MUSTER = HELLO = TRAIN = PYTHON = ""


class Programs(SlurmCase):
    def run_on_a(self, *command, timeout=110):
        code, out, err = self.world["a"].run(list(command), timeout, env={"OMP_NUM_THREADS": "1"})
        self.assertEqual(code, 0, out + err)
        return out

    def assert_sums(self, out, ranks):
        """Every rank of the example said the right sum, and on which device."""
        total = ranks * (ranks - 1) // 2
        said = sorted(line[line.index("rank"):] for line in out.splitlines() if "rank" in line)
        self.assertEqual(said, [f"rank {rank} of {ranks} on cpu: sum {total}" for rank in range(ranks)])

    def test_training_on_two_hosts_over_ssh(self):
        out = self.run_on_a(MUSTER, "run", "-q", "--hosts", "a:1,b:2", "--run-dir", "trained", TRAIN, "--epochs", "6")
        accuracy = json.loads(out.splitlines()[-1].split("] ")[-1])["test_accuracy"]
        self.assertGreaterEqual(accuracy, 0.95)
        plan = json.loads((self.world.folder / "trained" / "plan.json").read_text())
        self.assertEqual([rank["host"] for rank in plan["ranks"]], ["a", "b", "b"])

    def test_muster_under_srun(self):
        self.assert_sums(self.run_on_a("srun", "-N2", "--ntasks-per-node=1", MUSTER, "run", "-q", "-n", "2", HELLO), 4)

    def test_srun_alone(self):
        self.assert_sums(self.run_on_a("srun", "-N2", "--ntasks-per-node=2", HELLO), 4)
        self.assert_sums(self.run_on_a("srun", "-N1", "-n2", HELLO), 2)

    def test_torchrun_under_srun(self):
        if not PYTHON:
            self.skipTest("no Python with PyTorch")
        self.assert_sums(self.run_on_a(
            "srun", "-N2", "--ntasks-per-node=1", PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node",
            "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29411", "--rdzv-id", "s", "--no-python", HELLO), 4)

    def test_mpirun_inside_an_allocation(self):
        (self.world.folder / "mpi.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 -o mpi.out\n{' '.join(OPEN_MPI)} --mca plm rsh --mca ras ^slurm "
            f"-n 2 {HELLO}\n{' '.join(OPEN_MPI)} --mca plm rsh --mca ras ^slurm -n 1 {MUSTER} run -q -n 2 {HELLO}\n")
        self.run_on_a("sbatch", "--wait", "mpi.sh")
        said = (self.world.folder / "mpi.out").read_text()
        self.assertEqual(said.count("rank 1 of 2 on cpu: sum 1"), 2, said)

    def test_mpirun_alone(self):
        self.assert_sums(self.run_on_a(*OPEN_MPI, "-n", "2", HELLO), 2)
        self.assert_sums(self.run_on_a("mpiexec.hydra", "-n", "2", HELLO), 2)
        self.assert_sums(self.run_on_a(*OPEN_MPI, "--host", "a,b", "--map-by", "ppr:1:node", "--mca", "plm_rsh_args",
                                       f"-F {self.world.folder}/ssh_config", HELLO), 2)
        self.assertEqual(list(self.world.folder.glob(".muster-*")), [], "what they met by is left over")


if __name__ == "__main__":
    MUSTER, HELLO, TRAIN = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(3))
    PYTHON = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ""
    main(missing_for_slurm("mpirun.openmpi", "mpiexec.hydra"))
