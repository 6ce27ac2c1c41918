"""Tasks as job arrays of a real Slurm, with its daemons on hosts of their own.

    slurm_tasks_test.py PROGRAM       slurm_example
"""

import json
import os
import pathlib
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from hosts import SKIPPED, Hosts, missing, wait_for
from slurm_test import DAEMONS, Slurm

PROGRAM = ""
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


class SlurmTasksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = Hosts(["a", "b"]).__enter__()
        try:
            cls.slurm = Slurm(cls.world)
        except BaseException:
            cls.world.__exit__()
            raise

    @classmethod
    def tearDownClass(cls):
        cls.world.__exit__()

    def test_a_spec_as_job_arrays(self):
        folder = self.world.folder / "work dir"
        folder.mkdir()
        (self.world.folder / "t.toml").write_text(SPEC.replace("DIR", str(folder)), encoding="utf-8")
        code, out, err = self.world["a"].run([PROGRAM, "submit", "t.toml", str(folder / "run")])
        self.assertEqual(code, 0, err)
        jobs = json.loads((folder / "run/slurm/jobs.json").read_text())["jobs"]
        self.assertEqual([job["job"] for job in jobs], out.split())
        sets = [set(job["tasks"].values()) for job in jobs]
        self.assertEqual(sets[0], {"train-one", "train-$HOME it's", "fails"})
        self.assertIn({"eval-one", "eval-$HOME it's", "never"}, sets, "each is after the same element of that array")
        wait_for(lambda: self.world["a"].run(["squeue", "-h"])[1].strip() == "", 120)
        self.assertEqual((folder / "one.out").read_text(), "trained a b one\n")
        self.assertEqual((folder / "report").read_text(), "trained a b $HOME it's\ntrained a b one\n")
        self.assertEqual((folder / "attempts").read_text(), "0\n1\n2\n")
        self.assertFalse((folder / "never").exists(), "it is after one that failed")

    def test_a_request_that_slurm_refuses(self):
        (self.world.folder / "g.toml").write_text("[[task]]\nname = 'g'\nargv = ['true']\nneeds = { gpus = 1 }\n")
        code, _, err = self.world["a"].run([PROGRAM, "submit", "g.toml", str(self.world.folder / "g")])
        self.assertEqual(code, 1)
        self.assertIn("sbatch: expected the number of a job, got exit code 1", err)


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    why = missing()
    for daemon in DAEMONS:
        if not why and shutil.which(daemon, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            why = f"no {daemon} (packages slurmctld, slurmd, slurm-client and munge)"
    if why:
        print("skipped:", why)
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
