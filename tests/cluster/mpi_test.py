"""`mpirun muster run` on two hosts, and what it says where that cannot work.

    mpi_test.py MUSTER      the program
"""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import HostsCase, main, missing

MUSTER = ""
SAY = 'echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK"'
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]


class Mpi(HostsCase):
    NAMES = ("a", "b")

    def test_open_mpi_starts_an_agent_a_host(self):
        code, out, err = self.world["a"].run(
            [*OPEN_MPI, "--host", "a,b", "--map-by", "ppr:1:node", "--mca", "plm_rsh_args",
             f"-F {self.world.folder}/ssh_config", MUSTER, "run", "-q", "-n", "2", "sh", "-c", SAY])
        self.assertEqual(code, 0, err)
        self.assertEqual(sorted(line.split("] ")[1] for line in out.splitlines()), [
            "0 of 4, local 0 of 2, host 0", "1 of 4, local 1 of 2, host 0", "2 of 4, local 0 of 2, host 1",
            "3 of 4, local 1 of 2, host 1"])
        self.assertEqual(list(self.world.folder.glob(".muster-*")), [], "what they met by is left over")

    def test_several_agents_on_a_host_are_refused(self):
        for launcher, advice in (OPEN_MPI, "ppr:1:node"), (["mpiexec.hydra"], "-ppn 1"):
            code, out, err = self.world["a"].run([*launcher, "-n", "2", MUSTER, "run", "-q", "true"])
            self.assertNotEqual(code, 0)
            self.assertIn(advice, out + err)

    def test_one_agent_is_a_job_of_its_own(self):
        for launcher in OPEN_MPI, ["mpiexec.hydra"]:
            code, out, err = self.world["a"].run([*launcher, "-n", "1", MUSTER, "run", "-q", "-n", "2", "sh", "-c", SAY])
            self.assertEqual(code, 0, err)
            self.assertIn("1 of 2, local 1 of 2, host 0", out)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    why = missing()
    for program in ("mpirun.openmpi", "mpiexec.hydra"):
        if not why and shutil.which(program) is None:
            why = f"no {program} (packages openmpi-bin and mpich)"
    main(why)
