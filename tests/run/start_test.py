"""A program as users start it: alone, under muster run, torchrun and Slurm, a pod for each rank."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest

from program_case import BUILD, MUSTER, PROBE, PYTHON, START_PROBE, TRAIN, ProgramTest, processes_of
from long import long


class Start(ProgramTest):
    def test_alone(self):
        done = self.start(PROBE, "place", MUSTER_NPROC=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(3):
            self.assertIn(f"[{rank}] rank {rank} local {rank} of 3 on cpu reason 'no GPU: CPU slot {rank}' seed {100 + rank}", done.stdout)

    def test_environment_overrides_are_checked(self):
        for nproc in ("many", "zero", "0", "4294967297"):
            self.assert_fails(self.start(PROBE, MUSTER_NPROC=nproc), nproc, code=2)
        self.assert_fails(self.start(PROBE, MUSTER_NPROC="zero"), "MUSTER_NPROC")
        self.assert_fails(self.start(PROBE, MUSTER_POLICY="best"), "best", code=2)
        self.assert_fails(self.start(PROBE, MUSTER_SURPLUS="none"), "none", code=2)
        self.assert_fails(self.start(PROBE, MUSTER_COLLECTIVE_TIMEOUT="soon"), "soon", code=2)
        self.assert_fails(self.start(PROBE, MUSTER_BACKTRACE="2"), "MUSTER_BACKTRACE", code=2)

    def test_in_an_interactive_shell_of_slurm_it_is_alone(self):
        done = self.start(PROBE, "place", MUSTER_NPROC=2, SLURM_JOB_ID=7, SLURM_STEP_ID=4294967290, SLURM_PROCID=0, SLURM_LOCALID=0,
                          SLURM_STEP_NUM_TASKS=1, SLURM_NODEID=0, SLURM_STEP_NUM_NODES=1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 local 1 of 2", done.stdout)

    def test_with_flags_that_a_library_took_out_of_argv(self):
        done = self.start(START_PROBE, "flags", "--epochs=7", "", MUSTER_NPROC=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d epochs \d", done.stdout)), ["rank 0 epochs 7", "rank 1 epochs 7"])

    def test_a_job_after_the_other(self):
        done = self.start(START_PROBE, "twice")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank .*", done.stdout)), ["rank 0 of 1 tests", "rank 0 of 2 trains", "rank 1 of 2 trains"])
        failed = self.start(START_PROBE, "twice", "fails")
        self.assertEqual(failed.returncode, 0, failed.stderr)
        self.assertIn("rank 0 failed first: exit code 1", failed.stderr)
        self.assertIn("rank 0 of 1 tests what has failed", failed.stdout)
        launched = self.run_muster("--nproc-per-node", "2", START_PROBE, "twice")
        self.assertEqual(launched.returncode, 0, launched.stderr)
        self.assertEqual(launched.stderr.count("RunOptions::nproc_per_node is not used: muster has started the ranks"), 1, launched.stderr)
        self.assertNotIn("RunOptions::", done.stderr + failed.stderr)
        self.assertEqual(sorted(re.findall(r"rank .*", launched.stdout)),
                         ["rank 0 of 2 tests", "rank 0 of 2 trains", "rank 1 of 2 tests", "rank 1 of 2 trains"])

    def test_a_rank_that_does_not_come_to_its_call_is_an_error(self):
        done = self.start(START_PROBE, "rounds")
        self.assertEqual(done.returncode, 1, done.stderr)  # of the two rounds
        self.assertIn("expected this rank to reach call 2 of muster::run", done.stderr)

    def test_a_rank_of_a_later_call_may_end_as_it_likes(self):
        for first, second in (("exits", "tests"), ("trains", "exits")):
            done = self.start(START_PROBE, "twice", first, second)
            self.assertRegex(done.stderr, "rank . failed( first)?: exit code 3")
            self.assertNotIn("expected this rank to come", done.stderr)

    def test_tasks_in_processes_after_a_job(self):
        done = self.start(START_PROBE, "tasks")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "tasks gave 1 and 2")

    def test_with_a_title_over_its_arguments(self):
        done = self.start(START_PROBE, "title", "--epochs=3", MUSTER_NPROC=2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank .*", done.stdout)), ["rank 0 has 3 arguments", "rank 1 has 3 arguments"])

    def test_a_program_that_is_replaced_starts_itself(self):
        program = shutil.copy(START_PROBE, self.folder)
        done = self.start(program, "replaced", MUSTER_NPROC=2, LD_LIBRARY_PATH=f"{BUILD}/lib")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 is called start_probe", done.stdout)

    def test_under_muster_run(self):
        done = self.run_muster("--nproc-per-node", "2", PROBE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[1] rank 1 local 1 of 2 on cpu", done.stdout)

    def torchrun(self, ranks, *argv, **env):
        torchrun = os.path.join(os.path.dirname(PYTHON), "torchrun")
        if not os.path.exists(torchrun):
            self.skipTest(f"no torchrun beside '{PYTHON}'")
        return self.start(torchrun, "--no-python", "--nproc-per-node", str(ranks), PROBE, *argv, **env)

    def fleet(self, text):
        path = f"{self.folder}/fleet.toml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    @long
    def test_more_ranks_than_gpus_under_torchrun(self):
        two = self.fleet('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        self.assert_fails(self.torchrun(3, MUSTER_INVENTORY=two), "expected a GPU for local rank 2, got 2 visible GPUs", "MUSTER_SURPLUS=cpu, drop or share")
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="drop")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d local \d of \d", done.stdout)), ["rank 0 local 0 of 2", "rank 1 local 1 of 2"])
        self.assertIn("left out: no GPU for local rank 2", done.stderr)

    @long
    def test_more_ways_for_more_ranks_than_gpus_under_torchrun(self):
        two = self.fleet('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        self.assert_fails(self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="none"), "error, cpu, drop, share", "none")
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="cpu")
        self.assertIn("rank 2 local 2 of 3 on cpu reason 'CPU: surplus, 2 visible GPUs taken", done.stdout)
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="share")
        self.assertIn("rank 2 local 2 of 3 on cpu reason 'visible GPU of local rank 2", done.stdout)

    @long
    def test_where_nobody_has_a_gpu_nobody_is_left_out_under_torchrun(self):
        done = self.torchrun(2, MUSTER_SURPLUS="drop", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 local 1 of 2 on cpu reason 'CPU: no rank has a GPU", done.stdout)

    def ranks_of_which_the_first_is_left_out(self, *argv, **env):
        """Three ranks started by hand; rank 0, which serves the store, has no GPU. What each said, and its exit code."""
        two = self.fleet('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            ranks = []
            for rank in range(3):
                environment = self.environment(
                    RANK=rank, WORLD_SIZE=3, LOCAL_RANK=max(0, rank - 1), LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=held.getsockname()[1], MUSTER_SURPLUS="drop", CUDA_VISIBLE_DEVICES="", **env)
                if rank > 0:
                    environment["MUSTER_INVENTORY"] = two
                ranks.append(subprocess.Popen([PROBE, *argv], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                self.addCleanup(ranks[-1].kill)
            said = [rank.communicate(timeout=100) for rank in ranks]
        return said, [rank.returncode for rank in ranks]

    def test_a_rank_0_that_is_left_out_serves_until_the_others_are_done(self):
        said, codes = self.ranks_of_which_the_first_is_left_out("place")
        self.assertEqual(codes, [0, 0, 0], said)
        self.assertEqual(said[0][0], "")
        self.assertIn("rank 0 local 0 of 2", said[1][0])
        self.assertIn("rank 1 local 1 of 2", said[2][0])

    def test_a_rank_0_that_is_left_out_ends_when_the_others_fail(self):
        said, codes = self.ranks_of_which_the_first_is_left_out("throw")
        self.assertEqual(codes, [0, 1, 1], said)

    def ranks_without_a_local_rank(self, inventory, hosts, **env):
        """A rank on each of `hosts`, told its number and the master alone, as pods are. What each said, and its exit code."""
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            ranks = []
            for rank, host in enumerate(hosts):
                environment = self.environment(RANK=rank, WORLD_SIZE=len(hosts), MASTER_ADDR="127.0.0.1", MASTER_PORT=held.getsockname()[1],
                                               MUSTER_INVENTORY=inventory, MUSTER_HOST_ID=host, CUDA_VISIBLE_DEVICES="", **env)
                environment.pop("LOCAL_WORLD_SIZE", None)
                ranks.append(subprocess.Popen([PROBE, "place"], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
                self.addCleanup(ranks[-1].kill)
            said = [rank.communicate(timeout=100) for rank in ranks]
        return said, [rank.returncode for rank in ranks]

    def test_a_pod_for_each_rank(self):
        said, codes = self.ranks_without_a_local_rank(self.fleet('[[host]]\nname = "a"\ngpus = "1xA100-80GB"\n'), ["pod-0", "pod-1"])
        self.assertEqual(codes, [0, 0], said)
        self.assertIn("rank 1 local 0 of 2 on cpu reason 'visible GPU of local rank 0", said[1][0])

    def test_ranks_of_a_host_that_nobody_told_so(self):
        two = self.fleet('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        said, codes = self.ranks_without_a_local_rank(two, ["a", "b", "a"])
        self.assertEqual(codes, [0, 0, 0], said)
        self.assertIn("rank 1 local 0 of 3 on cpu reason 'visible GPU of local rank 0", said[1][0])
        self.assertIn("rank 2 local 1 of 3 on cpu reason 'visible GPU of local rank 1", said[2][0])

    def test_a_rank_too_many_on_a_host_is_an_error_on_all(self):
        one = self.fleet('[[host]]\nname = "a"\ngpus = "1xA100-80GB"\n')
        said, codes = self.ranks_without_a_local_rank(one, ["a", "a", "b"])
        self.assertEqual(codes, [1, 1, 1], said)
        self.assertIn("expected a GPU for local rank 1, got 1 visible GPU", said[1][1])
        self.assertIn("LOCAL_RANK", said[1][1])
        self.assertIn("rank 1: device: expected a GPU", said[2][1])
        said, codes = self.ranks_without_a_local_rank(one, ["a", "a", "b"], MUSTER_SURPLUS="drop")
        self.assertEqual(codes, [0, 0, 0], said)
        self.assertIn("rank 1 local 0 of 2", said[2][0])

    def test_sigterm_ends_a_first_process_that_waits_for_other_ranks(self):
        as_first = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork", "--mount-proc"]
        if not shutil.which("unshare") or subprocess.run([*as_first, "true"], capture_output=True).returncode:
            self.skipTest("no PID namespaces here (unshare)")
        environment = self.environment(RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, MASTER_ADDR="127.0.0.1", CUDA_VISIBLE_DEVICES="")
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            with subprocess.Popen([*as_first, PROBE], cwd=self.folder, env={**environment, "MASTER_PORT": str(port)}, stderr=subprocess.PIPE, text=True) as pod:
                self.addCleanup(pod.kill)
                self.assertIn("waiting for rank(s) 1", pod.stderr.readline())
                (first,) = subprocess.run(["pgrep", "-P", str(pod.pid)], capture_output=True, text=True).stdout.split()
                os.kill(int(first), signal.SIGTERM)
                try:
                    self.assertEqual(pod.wait(timeout=20), 128 + signal.SIGTERM)
                except subprocess.TimeoutExpired:
                    os.kill(int(first), signal.SIGKILL)
                    self.fail("SIGTERM did not end it")

    def test_under_torchrun(self):
        done = self.torchrun(2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 local 1 of 2 on cpu reason 'CPU: no visible GPU (torchrun assigns no device)'", done.stdout)
        done = self.torchrun(2, "throw")
        self.assert_fails(done, "the reactor is too hot")

    def test_a_killed_rank_ends_the_job(self):
        with subprocess.Popen([MUSTER, "run", "--run-dir", f"{self.folder}/run", "--nproc-per-node", "2", TRAIN, "--epochs", "100000"],
                              cwd=self.folder, env=self.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            seen = ""
            while "epoch 1/" not in seen:
                seen = job.stderr.readline()
                self.assertTrue(seen, "the job ended too early")
            ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
            victim = next(pid for pid in ranks if b"RANK=1\0" in pathlib.Path(f"/proc/{pid}/environ").read_bytes().replace(b"GROUP_RANK", b""))
            os.kill(int(victim), signal.SIGKILL)
            _, rest = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, rest)
        self.assertIn("rank 1 failed first", rest)
        self.assertEqual(processes_of(self.folder), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
