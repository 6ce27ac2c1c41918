"""`srun muster run`, and a batch script, under a real slurmctld and two slurmds on hosts of their own.

    slurm_test.py MUSTER      the program
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import HostsCase, main, missing, wait_for

MUSTER = ""
SAY = 'echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK, $MASTER_ADDR"'
DAEMONS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")


class Slurm:
    """Its daemons, one slurmd a host, and munge."""

    def __init__(self, world):
        self.world, self.folder = world, world.folder / "slurm"
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        nodes = "".join(f"NodeName={h.name} NodeAddr={h.address} CPUs=2 State=UNKNOWN\n" for h in world)
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost=a(10.77.0.1)\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n"
            f"AuthInfo=socket={self.folder}/munge.socket\nCryptoType=crypto/munge\nStateSaveLocation={self.folder}/state\n"
            f"SlurmdSpoolDir={self.folder}/spool-%n\nSlurmctldPidFile={self.folder}/ctld.pid\n"
            f"SlurmdPidFile={self.folder}/d-%n.pid\nSlurmctldLogFile={self.folder}/ctld.log\n"
            f"SlurmdLogFile={self.folder}/d-%n.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            "SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nSchedulerType=sched/builtin\n"
            "SelectType=select/cons_tres\nAccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n"
            f"SchedulerParameters=batch_sched_delay=0,sched_interval=1\n{nodes}"
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
        # No control groups: whoever runs this may not be allowed to make any.
        (self.folder / "cgroup").mkdir()
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={self.folder}/cgroup\n")
        world.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        self.start_munge()
        first = next(iter(world))
        self.spawn(first, ["slurmctld", "-D"])
        for host in world:
            (self.folder / f"spool-{host.name}").mkdir()
            self.spawn(host, ["slurmd", "-D"])
        wait_for(lambda: first.run(["sinfo", "-h", "-t", "idle", "-o", "%D"])[1].strip() == "2", 100)

    def start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        for path in (self.folder, self.world.folder):
            path.chmod(0o755)
        command = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                   f"--pid-file={self.folder}/munge.pid", f"--log-file={self.folder}/munge.log",
                   f"--seed-file={self.folder}/munge.seed", "--num-threads=1"]
        self.world.servers.append(subprocess.Popen(command, env=self.world.environment, stdout=subprocess.DEVNULL,
                                                   stderr=subprocess.DEVNULL))
        wait_for(lambda: (self.folder / "munge.socket").exists(), 60)

    def spawn(self, host, command):
        self.world.servers.append(host.start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def missing_for_slurm(*more):
    """Why there can be no Slurm here, or none of the programs `more`; empty when there can."""
    why = missing()
    for program in (*DAEMONS, *more):
        if not why and shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            why = f"no {program} (packages slurmctld, slurmd, slurm-client and munge)" if program in DAEMONS \
                else f"no {program}"
    return why


class SlurmCase(HostsCase):
    """Two hosts, a and b, that are a Slurm cluster. For the tests of other programs too."""

    NAMES = ("a", "b")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.slurm = Slurm(cls.world)
        except BaseException:
            for log in (cls.world.folder / "slurm").glob("*.log"):
                print(log, log.read_text()[-1500:])
            raise


class SlurmTest(SlurmCase):
    def on_a(self, *command, timeout=100):
        return self.world["a"].run(list(command), timeout)

    def test_srun_muster_run(self):
        code, out, err = self.on_a("srun", "-N2", "--ntasks-per-node=1", MUSTER, "run", "-q", "-n", "2", "sh", "-c", SAY)
        self.assertEqual(code, 0, err)
        lines = sorted(line.split("] ")[1] for line in out.splitlines())
        self.assertEqual([line.rsplit(",", 1)[0] for line in lines], [
            "0 of 4, local 0 of 2, host 0", "1 of 4, local 1 of 2, host 0", "2 of 4, local 0 of 2, host 1",
            "3 of 4, local 1 of 2, host 1"])
        self.assertEqual(list(self.world.folder.glob(".muster-srun-*")), [], "what they met by is left over")

    def test_a_failure_under_srun_is_the_exit_code(self):
        code, out, err = self.on_a("srun", "-N2", "--ntasks-per-node=1", MUSTER, "run", "-q", "-n", "1", "sh", "-c",
                                   "[ $RANK = 1 ] && exit 7; sleep 60")
        self.assertEqual(code, 7, err)
        self.assertIn("rank 1 failed first: exit code 7", err)

    def test_several_agents_on_a_host_are_refused(self):
        code, out, err = self.on_a("srun", "-N2", "--ntasks-per-node=2", MUSTER, "run", "-q", "true")
        self.assertNotEqual(code, 0)
        self.assertIn("srun --ntasks-per-node=1", err)

    def test_a_batch_script_without_srun_runs_on_its_host_and_says_so(self):
        (self.world.folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1 -o job.out\n{MUSTER} run -q -n 2 sh -c '{SAY}'\n")
        code, out, err = self.on_a("sbatch", "--wait", "job.sh")
        self.assertEqual(code, 0, err)
        said = (self.world.folder / "job.out").read_text()
        self.assertIn("0 of 2, local 0 of 2", said)
        self.assertIn("this Slurm job has 2 nodes, of which this uses one", said)

    def test_a_batch_script_with_srun(self):
        (self.world.folder / "job2.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1 -o job2.out\nsrun {MUSTER} run -q -n 1 sh -c '{SAY}'\n")
        code, out, err = self.on_a("sbatch", "--wait", "job2.sh")
        self.assertEqual(code, 0, err)
        said = (self.world.folder / "job2.out").read_text()
        self.assertIn("0 of 2, local 0 of 1, host 0", said)
        self.assertIn("1 of 2, local 0 of 1, host 1", said)

    def test_a_job_that_has_stopped_is_requeued_and_resumes(self):
        """The script of docs/how/slurm.md."""
        folder = self.world.folder / "requeued"
        folder.mkdir()
        rank = folder / "rank.sh"
        rank.write_text(f"if [ -e {folder}/saved-$RANK ]; then echo rank $RANK resumes; exit 0; fi\n"
                        f"trap 'touch {folder}/saved-$RANK; exit 75' TERM\nwhile :; do sleep 0.05; done\n")
        (folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=1 --requeue --open-mode=append -o {folder}/out\n"
            f"srun {MUSTER} run -q -n 1 --timeout 3s --run-dir {folder}/run sh {rank}\ncode=$?\n"
            "[ $code = 75 ] && scontrol requeue $SLURM_JOB_ID\nexit $code\n")
        code, out, err = self.on_a("sbatch", "--parsable", str(folder / "job.sh"))
        self.assertEqual(code, 0, err)
        job = out.strip()
        wait_for(lambda: re.search(r"JobState=PENDING .*Restarts=1 ", self.on_a("scontrol", "show", "job", job)[1], re.DOTALL), 60)
        # Slurm itself waits two minutes; and a slurmd refuses a start in the second in which the last one has ended.
        wait_for(lambda: self.on_a("scontrol", "update", f"JobId={job}", "StartTime=now+2")[0] == 0, 30)
        wait_for(lambda: self.on_a("squeue", "-h")[1].strip() == "", 180)
        said = (folder / "out").read_text()
        self.assertIn("rank 0 resumes", said)
        self.assertIn("rank 1 resumes", said)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    main(missing_for_slurm())
