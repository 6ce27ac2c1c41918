"""Ranks over NCCL that are killed in a training under `muster run --on-failure replace`: the others keep their processes, and the job
ends with the bits of one in which nobody died. On three GPUs of this machine, or one, or with `--fake` on those of fake_gpu.cc. KILLS:
how many kills at random moments are tried beside the others [2]."""
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

from fake_gpus import num_true_gpus, some_gpus

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])
FAKE = "--fake" in sys.argv
KILLS = int(os.environ.get("KILLS", "2"))
RANKS, STEPS = 3, 12
# NCCL takes ranks that share a GPU where each says that it is on a host of its own.
APART = "MUSTER_HOST_ID=host$RANK NCCL_HOSTID=host$RANK NCCL_SOCKET_IFNAME=lo MUSTER_BACKEND=nccl exec \"$0\" \"$@\""
WHERE = ("-n", str(RANKS)) if FAKE or num_true_gpus() >= RANKS else ("--gpus", "0", "--surplus", "share", "--nproc-per-node", str(RANKS), "sh", "-c", APART)


class InPlace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-in-place-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def train(self, *kills, program=("elastic_probe", "--steps", str(STEPS))):
        env = {**os.environ, **(some_gpus(BUILD, RANKS) if FAKE else {}), "MUSTER_RUNTIME_DIR": self.folder, "OMP_NUM_THREADS": "1"}
        env.pop("CUDA_VISIBLE_DEVICES", None)
        flags = ("-q", "--on-failure", "replace", "--max-restarts", "3", "--collective-timeout", "20", "--run-dir", tempfile.mkdtemp(dir=self.folder))
        argv = [f"{BUILD}/bin/muster", "run", *flags, *WHERE, f"{BUILD}/tests/{program[0]}", *program[1:]]
        done = subprocess.run([*map(str, argv), *(word for kill in kills for word in ("--kill", kill))], cwd=self.folder, env=env,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def ends(self, done):
        ends = sorted(re.findall(r"end rank \d .*", done.stdout))
        self.assertEqual(len(ends), RANKS, done.stdout + done.stderr)
        return ends

    def check(self, calm, *kills, **how):
        done = self.train(*kills, **how)
        self.assertEqual(self.ends(done), calm, f"{kills}\n{done.stdout}{done.stderr}")
        generations = {int(kill.partition("/")[2].partition(":")[0] or 0) for kill in kills}
        self.assertIn(f"the others keep their processes ({len(generations)} of 3 restarts)", done.stderr)
        self.assertNotIn("starting all ranks again", done.stderr)
        self.assertNotIn("has not come back", done.stderr)

    def test_kills_end_with_the_bits_of_a_calm_run(self):
        calm = self.ends(self.train())
        table = [("1@4",), ("0@5",), ("2@4:backward",), ("1@3:keep",), ("1@7", "2@7"), ("0@3", "2@8/1")]
        chance = random.Random(11)
        places = ("step", "backward", "keep", "save")
        for _ in range(KILLS):
            table.append((f"{chance.randrange(RANKS)}@{chance.randrange(1, STEPS)}:{chance.choice(places)}",))
        for kills in table:
            with self.subTest(kills=kills):
                self.check(calm, *kills)
        print(f"{len(table)} trainings with kills end with the bits of a calm one")

    def test_a_rank_dies_while_the_others_connect_again(self):
        calm = self.ends(self.train())
        for second in ("1@0/1:join", "2@0/1:restore", "0@0/1:restore"):
            with self.subTest(second=second):
                self.check(calm, "1@4", second)

    def test_ranks_whose_host_runs_ahead_of_the_gpu_are_replaced(self):
        # No step waits for the GPU, but each third one is kept.
        program = ("elastic_probe", "--steps", str(STEPS), "--optimizer", "muster", "--keep", "3")
        calm = self.ends(self.train(program=program))
        for kills in (("1@5",), ("0@8:backward",), ("2@6:keep",), ("0@4", "1@10/1")):
            with self.subTest(kills=kills):
                self.check(calm, *kills, program=program)

    def test_a_rank_of_a_divided_model_is_replaced(self):
        # The part of the rank that has gone is on the disk, and in the memory of a neighbour.
        for program in (("elastic_divided_probe", "full"), ("elastic_divided_probe", "full", "--in-memory"), ("elastic_divided_probe", "zero", "--in-memory")):
            calm = self.ends(self.train(program=program))
            with self.subTest(program=program):
                self.check(calm, "1@7", program=program)


if __name__ == "__main__":
    unittest.main(argv=[word for word in sys.argv if word != "--fake"])
