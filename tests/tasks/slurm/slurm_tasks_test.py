"""`muster tasks` in a real Slurm, with its daemons on hosts of their own: handed over as job arrays, and run over
the nodes of an allocation.

    slurm_tasks_test.py MUSTER      the program
"""

import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cluster"))
from hosts import cmdline, main, wait_for
from slurm_test import SlurmCase, missing_for_slurm

MUSTER = ""
SPEC = """
[defaults]
needs = { cpus = 1 }

[[task]]
name = "train-{x}"
argv = ["sh", "-c", 'echo "trained $KEY $1" >"$1.out"', "sh", "{x}"]
env = { KEY = "a b" }
dir = "DIR"
each = { x = ["one", "$HOME it's"] }

[[task]]
name = "eval-{x}"
argv = ["sh", "-c", 'cat "$1.out" >"$1.eval"', "sh", "{x}"]
dir = "DIR"
each = { x = ["one", "$HOME it's"] }
after = ["train-{x}"]

[[task]]
name = "again"
argv = ["sh", "-c", 'echo "$MUSTER_ATTEMPT" >>attempts; [ "$MUSTER_ATTEMPT" = 2 ]']
dir = "DIR"
retries = 3
back_off = "0s"

[[task]]
name = "fails"
argv = ["false"]

[[task]]
name = "never"
argv = ["touch", "DIR/never"]
after = ["fails"]

[[task]]
name = "report"
argv = ["sh", "-c", "cat *.eval >report"]
dir = "DIR"
after = ["eval-*"]
"""


class SlurmTasksTest(SlurmCase):
    def test_a_spec_as_job_arrays(self):
        folder = self.world.folder / "work dir"
        folder.mkdir()
        (self.world.folder / "t.toml").write_text(SPEC.replace("DIR", str(folder)), encoding="utf-8")
        code, out, err = self.world["a"].run(
            [MUSTER, "tasks", "--submit", "slurm", "--run-dir", str(folder / "run"), "t.toml"])
        self.assertEqual(code, 0, err)
        jobs = json.loads((folder / "run/slurm/jobs.json").read_text())["jobs"]
        self.assertRegex(out, f"submitted 8 tasks as {len(jobs)} jobs: ")
        self.assertEqual([job["job"] for job in jobs], re.findall(r"[0-9]+", out.split("jobs: ")[1].split(";")[0]))
        sets = [set(job["tasks"].values()) for job in jobs]
        self.assertEqual(sets[0], {"train-one", "train-$HOME it's", "fails"})
        self.assertIn({"eval-one", "eval-$HOME it's", "never"}, sets, "each is after the same element of that array")
        wait_for(lambda: self.world["a"].run(["squeue", "-h"])[1].strip() == "", 120)
        self.assertEqual((folder / "one.out").read_text(), "trained a b one\n")
        self.assertEqual((folder / "report").read_text(), "trained a b $HOME it's\ntrained a b one\n")
        self.assertEqual((folder / "attempts").read_text(), "0\n1\n2\n")
        self.assertFalse((folder / "never").exists(), "it is after one that failed")

    def test_an_element_that_has_stopped_is_requeued(self):
        folder = self.world.folder / "stopped"
        folder.mkdir()
        (self.world.folder / "q.toml").write_text(
            "[[task]]\nname = 'saves'\nneeds = { cpus = 1 }\n"
            f"argv = ['sh', '-c', 'echo $MUSTER_ATTEMPT >>{folder}/attempts; [ $MUSTER_ATTEMPT = 1 ] || exit 75']\n"
            f"[[task]]\nname = 'after it'\nneeds = {{ cpus = 1 }}\nafter = ['saves']\nargv = ['touch', '{folder}/after']\n")
        code, _, err = self.world["a"].run([MUSTER, "tasks", "--submit", "slurm", "--run-dir", str(folder / "run"), "q.toml"])
        self.assertEqual(code, 0, err)
        job = json.loads((folder / "run/slurm/jobs.json").read_text())["jobs"][0]["job"]
        wait_for(lambda: re.search(r"JobState=PENDING .*Restarts=1 ", self.world["a"].run(["scontrol", "show", "job", f"{job}_0"])[1],
                                   re.DOTALL), 60)
        # Slurm itself waits two minutes. A slurmd refuses a job that starts in the very second in which its last start
        # has ended ("Job credential revoked").
        wait_for(lambda: self.world["a"].run(["scontrol", "update", f"JobId={job}_0", "StartTime=now+2"])[0] == 0, 30)
        wait_for(lambda: self.world["a"].run(["squeue", "-h"])[1].strip() == "", 180)
        self.assertEqual((folder / "attempts").read_text(), "0\n1\n")
        self.assertTrue((folder / "after").exists())

    def test_a_job_ends_before_slurm_ends_it(self):
        folder = self.world.folder / "limited"
        folder.mkdir()
        (folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH --time=1 -o job.out -e job.err\n"
            "export SLURM_JOB_END_TIME=$(date -d $(squeue -h -j $SLURM_JOB_ID -o %e) +%s)\n"
            f"{MUSTER} run -q -n 1 --timeout slurm-55s sh -c \"trap 'echo saved; exit 75' TERM; while :; do sleep 0.05; done\"\n")
        self.assertEqual(self.world["a"].run(["sbatch", "--wait", "job.sh"], cwd=folder)[0], 75, (folder / "job.err").read_text())
        self.assertEqual((folder / "job.out").read_text().splitlines()[-1], "saved")

    def asked_to_end(self, name, *flags):
        """Tasks whose script stays, and what scancel with these flags makes of them."""
        folder = self.world.folder / name
        folder.mkdir()
        script = f"cd {folder}; trap 'sleep 0.3; echo >asked-$RANK$1; exit 0' TERM; touch up-$RANK$1; while :; do sleep 0.01; done"
        (self.world.folder / "c.toml").write_text(
            f"[[task]]\nname = 'ranks'\nargv = ['sh', '-c', '''{script}''']\nranks = 2\nneeds = {{ cpus = 2 }}\n"
            f"[[task]]\nname = 'again'\nargv = ['sh', '-c', '''{script}''', 'sh', 'again']\nretries = 1\nneeds = {{ cpus = 1 }}\n")
        code, out, err = self.world["a"].run([MUSTER, "tasks", "--submit", "slurm", "--run-dir", str(folder / "run"), "c.toml"])
        self.assertEqual(code, 0, err)
        all_have = lambda what: all((folder / f"{what}-{who}").exists() for who in ("0", "1", "again"))
        wait_for(lambda: all_have("up"), 60)
        jobs = json.loads((folder / "run/slurm/jobs.json").read_text())["jobs"]
        self.world["a"].run(["scancel", *flags, *(job["job"] for job in jobs)])
        wait_for(lambda: all_have("asked"), 30)
        wait_for(lambda: self.world["a"].run(["squeue", "-h"])[1].strip() == "", 60)

    def test_tasks_of_a_job_that_is_cancelled_are_asked_to_end(self):
        self.asked_to_end("cancelled")

    def test_a_signal_to_the_script_alone_is_the_tasks_too(self):
        self.asked_to_end("signalled", "--batch", "--signal=TERM")

    def test_a_request_that_slurm_refuses(self):
        (self.world.folder / "g.toml").write_text("[[task]]\nname = 'g'\nargv = ['true']\nneeds = { gpus = 1 }\n")
        code, _, err = self.world["a"].run([MUSTER, "tasks", "--submit", "slurm", "--run-dir", "g", "g.toml"])
        self.assertEqual(code, 1)
        self.assertIn("sbatch: expected the number of a job, got exit code 1", err)


class AllocationTest(SlurmCase):
    """`--cpus 2` is said where a node must run two tasks at a time: the machine of the test may have one CPU."""

    def setUp(self):
        self.folder = self.world.folder / self.id().rsplit(".", 1)[1]
        self.folder.mkdir()

    def write(self, script, count, needs="cpus = 1"):
        (self.folder / "t.toml").write_text(
            f"[[task]]\nname = 't{{x}}'\nargv = ['sh', '-c', '''{script}''', 'sh', '{{x}}']\neach = {{ x = '1..{count}' }}\n"
            f"needs = {{ {needs} }}\n")

    def batch(self, flags, command):
        """A batch script with one command, to its end: what it printed."""
        (self.folder / "job.sh").write_text(f"#!/bin/sh\n#SBATCH {flags} -o job.out -e job.err\n{command}\n")
        code, out, err = self.world["a"].run(["sbatch", "--wait", "job.sh"], cwd=self.folder)
        said = (self.folder / "job.err").read_text() if (self.folder / "job.err").exists() else ""
        self.assertEqual(code, 0, err + said)
        return (self.folder / "job.out").read_text(), said

    def hosts_of(self, out):
        return [task["attempts"][-1]["host"] for task in json.loads(out)["tasks"]]

    def log(self, task):
        return (self.folder / "run/logs" / task / "0.log").read_text()

    def nothing_is_left(self, seconds=60):
        left = lambda: [pid for host in self.world for pid in host.processes()
                        if b"--serve" in cmdline(pid) or b"sleep" in cmdline(pid)]
        wait_for(lambda: not left(), seconds)

    def test_a_batch_script_has_the_tasks_on_all_its_nodes(self):
        # Each waits for the three others: they run at one time, two on each node.
        self.write("hostname >at-$1; until [ $(ls at-* | wc -l) = 4 ]; do sleep 0.05; done; hostname; env", 4)
        out, err = self.batch("-N2 --ntasks-per-node=2", f"{MUSTER} tasks --cpus 2 --json --run-dir run t.toml")
        self.assertEqual(sorted(self.hosts_of(out)), ["a", "a", "b", "b"], err)
        for number, host in enumerate(self.hosts_of(out), 1):
            said = self.log(f"t{number}")
            self.assertEqual(said.splitlines()[0], host)
            self.assertNotIn("SLURM_STEP_ID=", said)
            self.assertIn("SLURM_JOB_ID=", said)
        self.nothing_is_left()

    def test_a_shell_of_salloc_has_them_too(self):
        self.write("hostname", 8)
        code, out, err = self.world["a"].run(["salloc", "-N2", "--ntasks-per-node=2", MUSTER, "tasks", "--json", "t.toml"],
                                             cwd=self.folder)
        self.assertEqual(code, 0, err)
        self.assertEqual(set(self.hosts_of(out)), {"a", "b"})

    def test_standalone_is_this_node_alone(self):
        self.write("hostname", 6)
        out, err = self.batch("-N2 --ntasks-per-node=1", f"{MUSTER} tasks --standalone --json t.toml")
        self.assertEqual(len(set(self.hosts_of(out))), 1)

    def test_one_node_has_the_cpus_of_its_allocation(self):
        self.write("mkdir lock || exit 9; sleep 0.05; rmdir lock", 6)
        self.batch("-N1 -n1 -c1", f"{MUSTER} tasks t.toml")

    def test_a_run_that_is_killed_leaves_nothing_on_other_nodes(self):
        self.write("touch up-$1; [ -e go ] || sleep 1000", 4)
        (self.folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 -o job.out -e job.err\n{MUSTER} tasks --cpus 2 --run-dir run t.toml &\n"
            f"echo $! >pid\nwait $!\ntouch go\n{MUSTER} tasks --resume run --json >again\n")
        process = self.world["a"].start_for(self, ["sbatch", "--wait", "job.sh"], cwd=self.folder)
        wait_for(lambda: all((self.folder / f"up-{x}").exists() for x in range(1, 5)), 60)
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        out, err = process.communicate(timeout=90)
        self.assertEqual(process.returncode, 0, (self.folder / "job.err").read_text())
        self.assertEqual([len(task["attempts"]) for task in json.loads((self.folder / "again").read_text())["tasks"]], [2] * 4)
        self.nothing_is_left()

    def test_a_job_that_is_cancelled_leaves_nothing(self):
        self.write("touch up-$1; sleep 1000", 4)
        (self.folder / "job.sh").write_text(
            f"#!/bin/sh\n#SBATCH -N2 --ntasks-per-node=2 -o job.out -e job.err\nexec {MUSTER} tasks --cpus 2 t.toml\n")
        code, out, err = self.world["a"].run(["sbatch", "--parsable", "job.sh"], cwd=self.folder)
        self.assertEqual(code, 0, err)
        wait_for(lambda: all((self.folder / f"up-{x}").exists() for x in range(1, 5)), 60)
        self.world["a"].run(["scancel", out.strip()])
        self.nothing_is_left()

    def test_srun_in_front_is_warned_of(self):
        self.write("true", 1)
        out, err = self.batch("-N2 --ntasks-per-node=1", f"srun -N2 {MUSTER} tasks --json t.toml")
        self.assertIn("start it once, without srun", err)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    main(missing_for_slurm("salloc"))
