"""Ranks that are killed in a training under `muster run --on-failure replace`: the others keep their processes, and the job ends with the
bits of one in which nobody died."""
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import unittest

import program_case
from program_case import BUILD, MUSTER, PYTHON, ProgramTest
from long import long, some_of

ELASTIC_PROBE = f"{BUILD}/tests/elastic_probe"
ELASTIC_DIVIDED_PROBE = f"{BUILD}/tests/elastic_divided_probe"
RANKS = 3


class Elastic(ProgramTest):
    def train(self, *argv, flags=(), ranks=RANKS, **env):
        return self.run_muster("-q", "-n", str(ranks), "--on-failure", "replace", "--shutdown-timeout", "5", *flags, ELASTIC_PROBE, *argv, **env)

    def ends(self, done):
        """The last line of each rank."""
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return sorted(re.findall(r"end rank \d .*", done.stdout))

    @classmethod
    def setUpClass(cls):
        cls.calm_ends = {}

    def calm(self, *argv, **env):
        """How the ranks end where nobody dies: trained once for all cases."""
        how = (argv, tuple(env.items()))
        if how not in self.calm_ends:
            ends = self.ends(self.train(*argv, **env))
            self.assertEqual(len(ends), RANKS)
            self.calm_ends[how] = ends
        return self.calm_ends[how]

    def processes(self, done):
        """By rank, the process of each call of its function, in order of the generations."""
        found = collections.defaultdict(list)
        for rank, pid, generation in re.findall(r"begin rank (\d) pid (\d+) generation (\d+)", done.stdout):
            found[int(rank)].append((int(generation), int(pid)))
        return {rank: [pid for _, pid in sorted(calls)] for rank, calls in found.items()}

    def kills(self, *kills):
        return [word for kill in kills for word in ("--kill", kill)]

    def samples_folder(self):
        return tempfile.mkdtemp(prefix="samples-", dir=self.folder)

    @staticmethod
    def trained_samples(folder):
        """By step and rank. A step that was lost and done again counts once: what is in the weights is its last time."""
        last, trained = collections.Counter(), collections.defaultdict(list)
        for file in pathlib.Path(folder).iterdir():
            for line in file.read_text().splitlines():
                generation, step, sample = map(int, line.split())
                last[step] = max(last[step], generation)
                trained[generation, step, int(file.name)].append(sample)
        return {(step, rank): samples for (generation, step, rank), samples in trained.items() if generation == last[step]}


class InPlace(Elastic):
    def check(self, calm, kills, killed, *argv, restarts=1, flags=(), **env):
        """`killed`: the ranks of which a process was lost."""
        done = self.train(*argv, *self.kills(*kills), flags=flags, **env)
        self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
        processes = self.processes(done)
        for rank in range(RANKS):
            if rank in killed:
                self.assertGreater(len(set(processes[rank])), 1, done.stdout)
            else:
                self.assertEqual(len(set(processes[rank])), 1, done.stdout)
                self.assertGreater(len(processes[rank]), 1, "its function was called again")
        self.assertIn(f"the others keep their processes ({restarts} of ", done.stderr)
        self.assertNotIn("starting all ranks again", done.stderr)
        return done

    def test_kills_of_all_kinds_end_with_the_bits_of_a_calm_run(self):
        table = ((("1@4",), {1}), (("0@5",), {0}), (("2@4:backward",), {2}), (("0@6:backward",), {0}), (("1@3:keep",), {1}),
                 (("0@1",), {0}), (("1@7", "2@7"), {1, 2}), (("0@5:backward", "2@5:backward"), {0, 2}))
        for backend, some in (("shm", (2, 4, 6)), ("gloo", (1, 5, 7))):
            calm = self.calm(MUSTER_BACKEND=backend)
            for kills, killed in some_of(table, *some):
                with self.subTest(backend=backend, kills=kills):
                    done = self.check(calm, kills, killed, MUSTER_BACKEND=backend)
                    self.assertRegex(done.stderr, r"rank \d: killed by SIGKILL.*; (a replacement is|replacements are) started, "
                                                  r"the others keep their processes \(1 of 3 restarts\)")

    @long
    def test_random_kills_one_after_the_other(self):
        chance = random.Random(7)
        for backend in ("shm", "gloo"):
            calm = self.calm("--steps", "20", MUSTER_BACKEND=backend)
            steps = sorted(chance.sample(range(1, 20), 2))
            ranks = chance.sample(range(RANKS), 2)
            kills = [f"{rank}@{step}/{generation}" for generation, (rank, step) in enumerate(zip(ranks, steps))]
            with self.subTest(backend=backend, kills=kills):
                self.check(calm, kills, set(ranks), "--steps", "20", restarts=2, MUSTER_BACKEND=backend)

    def test_a_rank_dies_while_the_others_come_together_again(self):
        table = (("2@0/1:restore", {1, 2}), ("1@0/1:join", {1}), ("0@0/1:restore", {0, 1}))
        for backend, some in (("shm", 1), ("gloo", 2)):
            calm = self.calm(MUSTER_BACKEND=backend)
            for second, killed in some_of(table, some):
                with self.subTest(backend=backend, second=second):
                    self.check(calm, ("1@4", second), killed, restarts=2, MUSTER_BACKEND=backend)

    def test_a_rank_dies_while_a_checkpoint_is_written(self):
        calm = self.calm("--every", "2")
        table = [(kill, rank, background) for kill, rank in (("0@4:save", 0), ("1@4:save", 1), ("1@4:keep", 1))
                 for background in ((), ("--background",))]
        for kill, rank, background in some_of(table, 0, 3):
            with self.subTest(kill=kill, background=background):
                self.check(calm, (kill,), {rank}, "--every", "2", *background)

    @long
    def test_every_sample_is_trained_on_once(self):
        def samples(*kills, **env):
            folder = self.samples_folder()
            self.ends(self.train("--samples", folder, *self.kills(*kills), **env))
            return self.trained_samples(folder)
        calm = samples()
        self.assertEqual(sorted(calm), [(step, rank) for step in range(1, 13) for rank in range(RANKS)])
        self.assertEqual(samples("1@4"), calm)
        self.assertEqual(samples("0@6:backward", "2@9/1"), calm)

    def test_without_a_state_in_memory_it_goes_on_from_the_disk(self):
        calm = self.calm("--every", "3")
        done = self.check(calm, ("1@7",), {1}, "--every", "3", "--keep", "0")
        self.assertIn("/step-6", done.stderr)
        done = self.check(calm, ("1@8",), {1}, "--every", "3", "--keep", "1")
        self.assertIn("resume: step 7 in memory, from rank 0 to rank 1", done.stderr)
        done = self.check(calm, ("0@8",), {0}, "--every", "3", "--keep", "5")
        self.assertIn("resume: step 6 in memory, from rank 1 to rank 0", done.stderr)

    def test_a_divided_model_goes_on_from_the_disk(self):
        calm = self.calm("--every", "3", "--divided")
        done = self.check(calm, ("1@8",), {1}, "--every", "3", "--divided", "--background")
        self.assertIn("a model that is divided over ranks is not kept in memory", done.stderr)
        self.assertRegex(done.stderr, "resume: .*/step-[36]\n", "the last one may not have been written by then")

    @long
    def test_a_rank_that_does_not_come_back_is_replaced_too(self):
        calm = self.calm()
        done = self.check(calm, ("2@4",), {1, 2}, "--hang", "1@4", restarts=2, flags=("--collective-timeout", "3"))
        self.assertIn("rank 1 has not come back to the others within 3.0s; ending it", done.stderr)
        self.assertIn("rank 1: ended by muster (SIGKILL): it had not come back to the others within 3.0s; a replacement is started", done.stderr)

    @long
    def test_a_rank_that_saves_for_long_is_waited_for(self):
        calm = self.calm()
        done = self.check(calm, ("1@4:keep",), {1}, "--slow", "0@4", flags=("--collective-timeout", "3"))
        self.assertIn("rank 0 is saving a checkpoint; the others wait for it", done.stderr)

    def test_the_stack_of_a_replaced_rank_is_kept(self):
        done = self.train("--crash", "1@4")
        self.assertEqual(len(self.ends(done)), RANKS)
        record = json.loads(pathlib.Path(self.folder, "run/run.json").read_text())
        exit = record["launches"][0]["attempts"][0]["exits"][0]
        self.assertEqual((exit["rank"], exit["signal"]), (1, "SIGSEGV"))
        self.assertIn("crash()", exit["stack"])
        page = subprocess.run([MUSTER, "report", f"{self.folder}/run", "--out", f"{self.folder}/page.html"], capture_output=True, text=True, check=False)
        self.assertEqual(page.returncode, 0, page.stderr)
        self.assertIn("crash()", pathlib.Path(self.folder, "page.html").read_text())
        failed = self.train("--crash", "1@4", "--crash", "2@6/1", flags=("--max-restarts", "1"))
        self.assert_fails(failed, "rank 2 failed first: killed by SIGSEGV", code=139)
        failure = json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())
        self.assertEqual(failure["first"]["rank"], 2)
        self.assertIn("crash()", failure["earlier"][0]["failed"][0]["stack"])
        self.assertEqual(failure["earlier"][0]["failed"][0]["rank"], 1)

    def test_the_run_folder_tells_of_it(self):
        self.train(*self.kills("1@4", "0@6/1"))
        record = json.loads(pathlib.Path(self.folder, "run/run.json").read_text())
        attempts = record["launches"][0]["attempts"]
        self.assertEqual([attempt["in_place"] for attempt in attempts], [False, True, True])
        self.assertEqual([[exit["rank"] for exit in attempt["exits"]] for attempt in attempts[:2]], [[1], [0]])
        self.assertEqual(record["launches"][0]["outcome"], "done")
        for generation in range(3):
            self.assertEqual(sorted(os.listdir(f"{self.folder}/run/activity/{generation}")), ["0", "1", "2"])


class DividedInPlace(Elastic):
    """Of a model, or an optimizer's state, that is divided over the ranks, a neighbour keeps each rank's part too."""
    def train(self, *argv, flags=(), ranks=RANKS, **env):
        return self.run_muster("-q", "-n", str(ranks), "--on-failure", "replace", *flags, ELASTIC_DIVIDED_PROBE, *argv, **env)

    def test_a_lost_ranks_part_comes_from_its_neighbour(self):
        table = (("--kill", "1@4"), ("--kill", "0@7"), ("--kill-keeping", "2@6"), ("--kill", "1@4", "--kill", "2@6/1"))
        ways = [(way, backend) for way in ("full", "zero") for backend in ("shm", "gloo")]
        for way, backend in some_of(ways, 0, 3):
            calm = self.calm(way, MUSTER_BACKEND=backend)
            for kills in some_of(table, 2, 3):
                with self.subTest(way=way, backend=backend, kills=kills):
                    done = self.train(way, "--in-memory", *kills, MUSTER_BACKEND=backend)
                    self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
                    self.assertRegex(done.stderr, r"resume: step \d in memory, each rank its part")
                    self.assertNotIn("/step-", done.stderr)
                    self.assertNotIn("starting all ranks again", done.stderr)

    def test_where_a_rank_and_its_neighbour_are_lost_all_go_on_from_the_disk(self):
        calm = self.calm("full")
        done = self.train("full", "--in-memory", "--kill", "0@8", "--kill", "1@8")
        self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
        self.assertIn("only lost ranks had a part of the model in memory; all go on from the newest checkpoint on the disk", done.stderr)
        self.assertRegex(done.stderr, "resume: .*/step-5\n")


class Stopped(Elastic):
    def stop(self, when, *argv):
        """SIGTERM as soon as the launcher has said `when`; the exit code and the output. The grace is longer than the wait."""
        with open(f"{self.folder}/out", "w+") as out:
            job = subprocess.Popen([MUSTER, "run", "-q", "--run-dir", f"{self.folder}/run", "-n", str(RANKS), "--on-failure", "replace",
                                    "--shutdown-timeout", "1000", ELASTIC_PROBE, "--steps", "100000", *argv], cwd=self.folder, env=self.environment(), stdout=out, stderr=subprocess.PIPE, text=True)
            said = ""
            for line in job.stderr:
                said += line
                if when in line:
                    job.send_signal(signal.SIGTERM)
                    break
            said += job.communicate(timeout=100)[1]
            out.seek(0)
            return job.returncode, out.read(), said

    def test_while_ranks_come_together_again_all_stop_after_one_step_which_is_saved(self):
        for when, kills in (("a replacement is started, the others", ("1@4",)), ("a replacement is started in 1.0s, the others", ("1@4", "0@6/1"))):
            with self.subTest(when):
                code, out, said = self.stop(when, *self.kills(*kills))
                self.assertEqual(code, 75, said)
                self.assertRegex(said, r"stopped after step \d+, which is saved")
                self.assertRegex(said, r"resume: step \d+ in memory")


class NotInPlace(Elastic):
    def test_a_rank_dies_when_the_others_have_done_their_work(self):
        calm = self.calm("--every", "3")
        done = self.train("--every", "3", *self.kills("1@0:exit"))
        ends = self.ends(done)
        self.assertEqual(len(ends), 2 * RANKS, done.stdout + done.stderr)
        self.assertEqual(set(ends[:2]), {calm[0]}, "rank 0, before and after")
        self.assertRegex(done.stderr, r"not replaced in place: rank [02] had ended already")
        self.assertIn("starting all ranks again in 1.0s (restart 2 of 3)", done.stderr)

    def test_the_budget_is_used_up(self):
        done = self.train(*self.kills("1@4", "2@6/1"), flags=("--max-restarts", "1"))
        self.assert_fails(done, "(1 of 1 restarts)", "rank 2 failed first: killed by SIGKILL", "restart 1 of 1", code=137)
        self.assertNotIn("end rank", done.stdout)
        self.assertEqual(json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())["first"]["rank"], 2)

    def test_a_bug_on_every_rank_does_not_loop(self):
        for throws in ("all@3/*", "1@3/*"):
            done = self.train("--throw", throws)
            self.assert_fails(done, "a bug of its own", "restart 3 of 3", code=1)

    def test_a_program_without_muster_run_is_started_again_whole(self):
        script = pathlib.Path(self.folder, "train.py")
        script.write_text("import os, signal, sys, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
                          "for step in range(4):\n"
                          "    if step == 2 and dist.get_rank() == 1 and os.environ['MUSTER_ATTEMPT'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
                          "    dist.all_reduce(torch.ones(1))\n"
                          "print('whole', os.environ['MUSTER_ATTEMPT'], flush=True)\ndist.destroy_process_group()\n")
        done = self.run_muster("-q", "-n", "2", "--on-failure", "replace", PYTHON, str(script))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(done.stdout.count("whole"), 2, done.stdout + done.stderr)
        self.assertIn("not replaced in place: rank 0 ended because it had lost another; only programs of muster::run keep their processes", done.stderr)
        self.assertIn("starting all ranks again", done.stderr)

    def test_what_the_loss_of_a_replaced_rank_ends_is_not_the_cause(self):
        # Rank 0 fails of the loss when rank 1 has been replaced already.
        script = "if [ $RANK = 0 ]; then while [ ! -e replaced ]; do sleep 0.02; done; " \
                 "echo '[gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]:7' >&2; exit 1; fi; " \
                 "[ $MUSTER_ATTEMPT = 0 ] && exit 3; touch replaced; exec sleep 1000"
        done = self.run_muster("-q", "-n", "2", "--on-failure", "replace", "--max-restarts", "1", "sh", "-c", script)
        self.assert_fails(done, "(1 of 1 restarts)", "rank 1 failed first: exit code 3", code=3)
        self.assertEqual(json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())["first"]["rank"], 1)

    def test_a_job_that_is_asked_to_stop_saves_and_stops(self):
        job = subprocess.Popen([MUSTER, "run", "--run-dir", f"{self.folder}/run", "-q", "-n", str(RANKS), "--on-failure", "replace",
                                "--shutdown-timeout", "100", ELASTIC_PROBE, "--hang", "0@3", "--steps", "1000"],
                               cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        while "step 2 at" not in said:  # rank 0 goes no further than the next one
            line = job.stdout.readline()
            self.assertTrue(line, said)
            said += line
        job.terminate()
        out, err = job.communicate(timeout=120)
        self.assertEqual(job.returncode, 75, said + out + err)
        self.assertIn("stopped after step 3, which is saved", err)
        self.assertIn("all ranks have stopped, as they were asked to", err)
        self.assertNotIn("replace", err)

    def test_what_it_is_not_for_is_refused(self):
        self.assert_fails(self.train(flags=("--on-failure", "continue", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "localhost:1")),
                          "--on-failure continue: expected a job on one host, got one on several; leave it out", code=2)
        self.assert_fails(self.start(ELASTIC_PROBE, RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, MASTER_ADDR="localhost", MASTER_PORT=1,
                                     MUSTER_ON_FAILURE="replace"), "MUSTER_ON_FAILURE=replace: expected a rank of muster run")


if __name__ == "__main__":
    unittest.main()
