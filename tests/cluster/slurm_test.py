"""`srun muster run`, and the recipes of docs/how/slurm.md, under a real slurmctld and two slurmds on hosts of their own.

    slurm_test.py MUSTER FAKE_NVML      the program; a stand-in for the driver's library
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "support")]
import time_limit
from hosts import HostsCase, main, missing, wait_for

MUSTER = FAKE_NVML = ""
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/how/slurm.md"
SAY = 'echo "$RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, host $GROUP_RANK, $MASTER_ADDR"'
DAEMONS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")

# Its lines become variables of each task.
PROLOG = """#!/bin/sh
[ -n "{library}" ] || exit 0
host=$(hostname)
mkdir -p -m 700 {folder}/runtime-$host
echo "export MUSTER_NVML_LIBRARY={library}"
echo "export MUSTER_RUNTIME_DIR={folder}/runtime-$host"
gpu() {{ printf '|uuid=GPU-%s-%s,name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=00000000:0%s:00.0' $host $1 $1; }}
echo "export FAKE_NVML=version=550.54$(gpu 0)$(gpu 1)"
"""


class Slurm:
    """Its daemons, one slurmd a host, and munge."""

    def __init__(self, world, gpus=0):
        self.world, self.folder = world, world.folder / "slurm"
        self.folder.mkdir()
        (self.folder / "state").mkdir()
        has = f"Gres=gpu:{gpus} " if gpus else ""
        nodes = "".join(f"NodeName={h.name} NodeAddr={h.address} CPUs=2 {has}State=UNKNOWN\n" for h in world)
        if gpus:
            nodes = f"GresTypes=gpu\n{nodes}"
            for gpu in range(gpus):
                os.mknod(self.folder / f"nvidia{gpu}", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # Slurm wants a device for each
            (self.folder / "gres.conf").write_text(f"Name=gpu Flags=nvidia_gpu_env File={self.folder}/nvidia[0-{gpus - 1}]\n")
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost=a(10.77.0.1)\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n"
            f"AuthInfo=socket={self.folder}/munge.socket\nCryptoType=crypto/munge\nStateSaveLocation={self.folder}/state\n"
            f"SlurmdSpoolDir={self.folder}/spool-%n\nSlurmctldPidFile={self.folder}/ctld.pid\n"
            f"SlurmdPidFile={self.folder}/d-%n.pid\nSlurmctldLogFile={self.folder}/ctld.log\n"
            f"SlurmdLogFile={self.folder}/d-%n.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            "SwitchType=switch/none\nMpiDefault=none\nReturnToService=2\nSchedulerType=sched/backfill\n"
            f"TaskProlog={self.folder}/prolog.sh\n"
            "SelectType=select/cons_tres\nAccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n"
            f"SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1\n{nodes}"
            "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
        # What each task finds on its node: the GPUs, and leases that are this node's.
        prolog = self.folder / "prolog.sh"
        prolog.write_text(PROLOG.format(folder=self.folder, library=FAKE_NVML if gpus else ""))
        prolog.chmod(0o755)
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
    GPUS = 0  # of each host

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            cls.slurm = Slurm(cls.world, cls.GPUS)
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



class RecipesTest(SlurmCase):
    """The scripts of docs/how/slurm.md, on two nodes with two GPUs each; ./train says where it is."""

    GPUS = 2
    SMALLER = {"--nodes=4": "--nodes=2", "--gpus-per-node=8": "--gpus-per-node=2", "--gpus-per-node=4": "--gpus-per-node=2",
               "--gpus-per-task=8": "--gpus-per-task=2", "--cpus-per-task=64": "--cpus-per-task=2", "--array=0-9": "--array=0-1"}
    TRAIN = ('#!/bin/sh\necho "$(hostname): rank $RANK of $WORLD_SIZE, $(echo $CUDA_VISIBLE_DEVICES | cut -d, -f$((LOCAL_RANK + 1)))'
             ' of $CUDA_VISIBLE_DEVICES: $*" | tee -a places\n')
    FOUR = ["a: rank 0 of 4, GPU-a-0 of GPU-a-0,GPU-a-1", "a: rank 1 of 4, GPU-a-1 of GPU-a-0,GPU-a-1", "b: rank 2 of 4, GPU-b-0 of GPU-b-0,GPU-b-1", "b: rank 3 of 4, GPU-b-1 of GPU-b-0,GPU-b-1"]
    page = PAGE.read_text(encoding="utf-8")

    def setUp(self):
        self.folder = self.world.folder / self._testMethodName
        self.folder.mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "bin/muster").symlink_to(MUSTER)
        self.put("train", self.TRAIN)

    def put(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def recipe(self, title, number=0, changed=()):
        """A block below this title, for two nodes; `changed` has more that is written otherwise."""
        section = self.page.split(f"## {title}\n")[1].split("\n## ")[0]
        block = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[number]
        for here, there in changed:
            self.assertIn(here, block)
            block = block.replace(here, there)
        for here, there in self.SMALLER.items():
            block = block.replace(here, there)
        return block

    def run_here(self, *command):
        path = f"{self.folder}/bin:{self.world.environment['PATH']}"
        return self.world["a"].run(list(command), cwd=self.folder, env={"PATH": path})

    def submit(self, script, code=0):
        self.put("job.sh", script.replace("#!/bin/bash\n", "#!/bin/bash\n#SBATCH --output=out --open-mode=append\n"))
        done, _, err = self.run_here("sbatch", "--wait", "job.sh")
        self.assertEqual(done, code, err + self.said())

    def said(self):
        return (self.folder / "out").read_text() if (self.folder / "out").exists() else "no output"

    def places(self):
        """Where ranks were, without what they were told."""
        return sorted(line.split(": --")[0].rstrip(": ") for line in (self.folder / "places").read_text().splitlines())

    def test_a_job_on_several_nodes(self):
        self.submit(self.recipe("A job on several nodes"))
        self.assertEqual(self.places(), self.FOUR, self.said())

    def test_a_shell_of_salloc(self):
        salloc, *lines = self.recipe("In a shell of salloc").splitlines()
        code, _, err = self.run_here(*salloc.split(), "bash", "-c", " && ".join(lines))
        self.assertEqual(code, 0, err)
        self.assertEqual(self.places(), sorted(self.FOUR * 2))
        code, out, err = self.run_here(*salloc.split(), "muster", "run", "-n", "1", "./train")
        self.assertEqual((code, err.count("this Slurm job has 2 nodes, of which this uses one")), (0, 1), err)

    def test_gpus_by_task(self):
        self.submit(self.recipe("Which GPUs a task gets", 0))
        self.assertEqual(self.places(), self.FOUR, self.said())

    def test_gpus_that_are_not_bound(self):
        for unset in ("", "env -u CUDA_VISIBLE_DEVICES "):
            with self.subTest(unset):
                (self.folder / "places").unlink(missing_ok=True)
                command = self.recipe("Which GPUs a task gets", 1).replace("muster run", f"{unset}muster run")
                code, _, err = self.run_here(*command.split())
                self.assertEqual(code, 0, err)
                # Slurm takes the other node while the first still ends what ran before.
                self.assertIn(self.places(), [[f"{node}: rank 0 of 1, GPU-{node}-0 of GPU-{node}-0"] for node in self.NAMES], err)
                self.assertEqual("SLURM_STEP_GPUS='0' names fewer GPUs than this process sees" in err, bool(unset), err)

    def test_whole_nodes(self):
        self.submit(self.recipe("A node for yourself alone"))
        self.assertEqual(self.places(), self.FOUR, self.said())

    def test_a_heterogeneous_job(self):
        script = self.recipe("Nodes of different kinds", changed=[("--nodes=1 --ntasks-per-node=1 --gpus-per-node=8", "--nodes=1 --ntasks-per-node=1 --gpus-per-node=1"),
                                                                  ("#SBATCH --nodes=4", "#SBATCH --nodes=1")])
        self.submit(script)
        self.assertEqual(self.places(), ["a: rank 0 of 3, GPU-a-0 of GPU-a-0", "b: rank 1 of 3, GPU-b-0 of GPU-b-0,GPU-b-1", "b: rank 2 of 3, GPU-b-1 of GPU-b-0,GPU-b-1"], self.said())

    def test_tasks_use_all_components_of_a_heterogeneous_job(self):
        script = self.recipe("Nodes of different kinds", changed=[("#SBATCH --nodes=4", "#SBATCH --nodes=1"),
                             ("srun --het-group=0,1 muster run ./train", "muster tasks --sweep i=1..4 -- sh -c 'hostname >>nodes; until [ $(wc -l <nodes) = 4 ]; do sleep 0.1; done'")])
        self.submit(script)
        self.assertEqual(sorted((self.folder / "nodes").read_text().split()), ["a", "a", "b", "b"], self.said())

    def test_tasks_in_an_allocation(self):
        (self.folder / "sweep.toml").write_text('[[task]]\nname = "{i}"\nargv = ["./train", "--i={i}"]\neach = { i = "1..8" }\nneeds = { gpus = 1 }\n')
        # Slurm 22.05 does not say when the job ends, as the page says.
        script = self.recipe("Many experiments in an allocation", changed=[("muster tasks", "export SLURM_JOB_END_TIME=$(($(date +%s) + 600))\nmuster tasks")])
        self.submit(script)
        told = [line.rsplit(" --i=", 1)[1] for line in (self.folder / "places").read_text().splitlines()]
        self.assertEqual(sorted(told), sorted("12345678"), self.said())

    def test_an_array_of_sweeps(self):
        self.submit(self.recipe("An array of sweeps"))
        told = sorted(line.split(": --")[1] for line in (self.folder / "places").read_text().splitlines())
        self.assertEqual(told, ["fold 0 --lr 0.01", "fold 0 --lr 0.1", "fold 1 --lr 0.01", "fold 1 --lr 0.1"], self.said())
        for fold in range(2):
            self.assertEqual((self.folder / f"fold-{fold}.csv").read_text().count(",done,"), 2)

    def limited_job(self, seconds):
        """A job that trains before its time limit, in place of one of hours. This Slurm does not say when a job ends."""
        for mark in [*self.folder.glob("up-*"), *self.folder.glob("saved-*")]:
            mark.unlink()
        limit = ("--timeout slurm", f"--timeout {seconds}s")
        script = self.recipe("A job that takes longer than its time limit", changed=[limit, ("--open-mode=append", "")])
        self.put("job.sh", script.replace("#!/bin/bash\n", "#!/bin/bash\n#SBATCH --output=out --open-mode=append\n"))
        code, out, err = self.run_here("sbatch", "--parsable", "job.sh")
        self.assertEqual(code, 0, err)
        trains = lambda: len(list(self.folder.glob("up-*"))) == 4
        wait_for(lambda: trains() or self.run_here("squeue", "-h")[1].strip() == "", 100)
        return out.strip() if trains() else None

    def test_a_job_that_has_stopped_is_requeued_and_resumes(self):
        self.put("train", "#!/bin/sh\nif [ -e saved-$RANK ]; then echo rank $RANK resumes; exit 0; fi\n"
                          "trap 'touch saved-$RANK up-$RANK; exit 75' TERM\ntouch up-$RANK\nwhile :; do sleep 0.05; done\n")
        job = time_limit.after(self.limited_job)
        wait_for(lambda: re.search(r"JobState=PENDING .*Restarts=1 ", self.run_here("scontrol", "show", "job", job)[1], re.DOTALL), 60)
        # Slurm itself waits two minutes; and a slurmd refuses a start in the second in which the last one has ended.
        wait_for(lambda: self.run_here("scontrol", "update", f"JobId={job}", "StartTime=now+2")[0] == 0, 30)
        wait_for(lambda: self.run_here("squeue", "-h")[1].strip() == "", 180)
        for rank in range(4):
            self.assertIn(f"rank {rank} resumes", self.said())

    def test_every_script_of_the_page_is_run(self):
        source = pathlib.Path(__file__).read_text(encoding="utf-8")
        asked = {self.recipe(title, int(number or 0)) for title, number in re.findall(r'recipe\("([^"]+)"(?:, (\d))?', source)}
        blocks = re.findall(r"^```sh\n(.*?)^```", self.page, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(asked), len(blocks))


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    main(missing_for_slurm())
