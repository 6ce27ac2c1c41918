"""Programs with a TaskSet: its tasks in child processes and in groups of ranks, and the GPUs that they lease."""
import os
import re
import subprocess
import sys
import time
import unittest

from program_case import BUILD, MUSTER, TASK_PROBE, ProgramTest, processes_of


class TaskSetTest(ProgramTest):
    """Programs with a TaskSet."""

    def probe(self, *what, **env):
        # All that it starts has the folder in its environment, by which `start` sees whether something is left.
        done = self.start(TASK_PROBE, *what, CUDA_VISIBLE_DEVICES="", MUSTER_RUNTIME_DIR=self.folder, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def on_gpus(self, cuda, what="gpus", **env):
        done = self.start(TASK_PROBE, *what.split(" ", 1), **self.two_gpus(cuda, **env))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def two_gpus(self, cuda="GPU-a,GPU-b", **env):
        return {"MUSTER_NVML_LIBRARY": f"{BUILD}/lib/libfake_nvml.so", "FAKE_CUDA": cuda, "MUSTER_CUDA_LIBRARY": f"{BUILD}/lib/libfake_cuda.so",
                "FAKE_NVML": "version=570.1|uuid=GPU-a,name=A|uuid=GPU-b,name=B", "MUSTER_RUNTIME_DIR": self.folder, "CUDA_VISIBLE_DEVICES": "0,1", **env}


class Tasks(TaskSetTest):
    """In child processes."""

    def test_results_come_back(self):
        lines = self.probe("results").splitlines()
        self.assertEqual(lines[0], "number 1.5 text 100002 apart 1 here 1")
        self.assertEqual(len(lines), 6, "no child comes further than its task")

    def test_a_failure_is_its_tasks_alone(self):
        said = self.probe("failures")
        self.assertIn("got 3 that failed", said)
        self.assertRegex(said, r"task 'throws' on CPU slot \d: .*no such file \(process \d+ on CPU slot \d\)")
        self.assertRegex(said, r"task 'crashes' on CPU slot \d: .*expected a result, got SIGSEGV \(process \d+")
        self.assertRegex(said, r"task 'leaves' on CPU slot \d: .*expected a result, got exit code 3 \(process \d+")
        self.assertIn("good 1", said)

    def test_a_thread_has_its_gpu_and_a_process_sees_its_own_alone(self):
        done = self.on_gpus("GPU-a,GPU-b", CUDA_VISIBLE_DEVICES="0,1")
        self.assertIn("cuda:1 of 0,1; cuda:0 of GPU-b; cpu of \n", done.stdout)
        self.assertIn("here on GPU 1: done", done.stdout)
        self.assertEqual(set(re.findall("current: .*", done.stderr)), {"current: cuda:1", "current: cuda:0"})

    def test_a_mask_changes_the_ordinal_and_not_the_name(self):
        self.assertIn("cuda:0 of 1,0; cuda:0 of GPU-b; cpu of \n",
                      self.on_gpus("GPU-a,GPU-b", CUDA_VISIBLE_DEVICES="1,0").stdout)
        self.assertIn("task 'here': ", self.on_gpus("GPU-a,GPU-b", CUDA_VISIBLE_DEVICES="0").stdout)

    def test_gpus_that_are_hidden_are_not_there(self):
        done = self.on_gpus("GPU-a,GPU-b", "results", CUDA_VISIBLE_DEVICES="")
        self.assertIn("here on CPU slot", done.stdout)
        self.assertIn("on the CPU: task 'number', 'text', 'nothing', 'pid', 'here': no visible GPU", done.stderr)

    def test_another_gpu_than_was_meant_is_an_error(self):
        self.assertIn("expected LibTorch to find GPU-b as cuda:0, got GPU-a",
                      self.on_gpus("GPU-b,GPU-a", CUDA_VISIBLE_DEVICES="1,0").stdout)

    def test_what_is_written_for_a_rank_runs_in_every_task(self):
        inventory = f"{self.folder}/two.toml"
        with open(inventory, "w", encoding="utf-8") as file:
            file.write('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        done = self.start(TASK_PROBE, "contexts", MUSTER_INVENTORY=inventory)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = re.search(r"thread (\S+) process (\S+) group (\S+) slot 1\n", done.stdout)
        self.assertIsNotNone(told, done.stdout)
        self.assertEqual(len(set(told.groups())), 1, told.groups())
        self.assertGreater(float.fromhex(told.group(1)), 1000)

    def test_a_child_is_asked_to_stop(self):
        self.assertIn("was asked to stop", self.probe("stop"))

    def test_a_child_that_comes_to_another_set_is_an_error(self):
        self.assertIn("expected the tasks parent's, got child's", self.probe("other"))

    def test_a_task_of_muster_tasks_may_have_tasks(self):
        self.assertIn("number 1.5", self.probe("results", MUSTER_TASK="train-0.1"))


class Groups(TaskSetTest):
    """As ranks of groups."""

    def test_groups_beside_threads_and_processes(self):
        said = self.probe("groups")
        self.assertIn("two 3 three 0 says 6 all 3 apart 1 here 1 late 1\n", said)
        for rank in range(3):
            self.assertIn(f"[three.{rank}] rank {rank} of 3 has 6\n", said)
        self.assertIn("three on CPU slot 0, CPU slot 1, CPU slot 2: done", said)

    def test_the_first_rank_that_fails_is_the_error_and_nothing_is_left(self):
        for how, why in (("throw", "std::runtime_error: the disk is full"), ("exit", "exit code 3"), ("kill", "killed by SIGKILL")):
            with self.subTest(how=how):
                said = self.probe("group-fails", how, MUSTER_CPU_SLOTS=2)
                self.assertIn("got 1 that failed", said)
                self.assertRegex(said, rf"task 'bad' on CPU slot 0, CPU slot 1: rank 1 on CPU slot 1: {why}.* \(process \d+\)\n")
                self.assertIn("good 1", said)

    def test_a_group_is_ended_where_the_set_fails_fast(self):
        said = self.probe("group-stop")
        self.assertIn("task 'bad' on CPU slot 2: std::runtime_error: broken", said)
        self.assertIn("task 'long' on CPU slot 0, CPU slot 1: its ranks were ended", said)

    def test_a_killed_program_takes_its_groups_along(self):
        environment = self.environment(MUSTER_RUNTIME_DIR=self.folder, CUDA_VISIBLE_DEVICES="", MUSTER_CPU_SLOTS=2)
        with subprocess.Popen([TASK_PROBE, "group-waits"], cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as program:
            end = time.monotonic() + 100
            while not os.path.exists(f"{self.folder}/up") and time.monotonic() < end:
                time.sleep(0.01)
            self.assertGreaterEqual(len(processes_of(self.folder)), 5, "the program, a launcher, two ranks, what one of them started")
            program.kill()
        while processes_of(self.folder) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(processes_of(self.folder), [])

    def test_a_groups_ranks_have_their_gpus(self):
        done = self.on_gpus("GPU-a,GPU-b", "group-gpus")
        self.assertIn("[where.0] rank 0 cuda:0 is GPU-b of GPU-b,GPU-a\n", done.stdout)
        self.assertIn("[where.1] rank 1 cuda:1 is GPU-a of GPU-b,GPU-a\n", done.stdout)
        self.assertIn("where on GPU 1, GPU 0: done", done.stdout)

    def test_a_group_with_too_few_gpus_goes_to_the_cpu_where_that_is_allowed(self):
        done = self.on_gpus("GPU-a,GPU-b", "group-gpus", CUDA_VISIBLE_DEVICES="0")
        self.assertIn("task 'where': device '1,0': expected the index of a GPU that can be used, got 1", done.stdout)
        done = self.on_gpus("GPU-a,GPU-b", "group-gpus or-cpu", CUDA_VISIBLE_DEVICES="0")
        self.assertIn("[where.1] rank 1 cpu is cpu:1 of \n", done.stdout)
        self.assertIn("on the CPU: task 'where': device '1,0'", done.stderr)


class Leases(TaskSetTest):
    """Of the GPUs that tasks use."""

    def test_gpus_are_leased_for_the_set_and_all_that_it_starts(self):
        asking = f"command {MUSTER} run -q --run-dir asked --gpus 0 true"
        self.assertIn("thread 1 process 0 rank 0\n", self.on_gpus("GPU-a,GPU-b", asking).stdout)
        self.assertIn("thread 0 process 0 rank 0\n", self.on_gpus("GPU-a,GPU-b", asking.replace("command", "share")).stdout)

    def holder(self):
        """A job that has GPU 0 until it is told to end."""
        job = subprocess.Popen([MUSTER, "run", "-q", "--run-dir", "holder", "--gpus", "0", "sh", "-c", "echo ready; while :; do sleep 0.05; done"],
                               cwd=self.folder, env=self.environment(**self.two_gpus()), stdout=subprocess.PIPE, text=True)
        self.addCleanup(job.wait)
        self.addCleanup(job.terminate)
        self.addCleanup(job.stdout.close)
        self.assertEqual(job.stdout.readline(), "ready\n")
        return job

    def tasks_beside(self, *argv):
        return subprocess.run(argv, cwd=self.folder, env=self.environment(**self.two_gpus()), capture_output=True, text=True, timeout=120)

    def test_a_gpu_of_another_job_is_not_used(self):
        self.holder()
        said = self.tasks_beside(TASK_PROBE, "command", "true").stdout
        self.assertRegex(said, r"^lease: expected free GPUs, got GPU-a held by job .*without them: task 'thread': .*TaskSetOptions::wait")
        self.assertNotIn("done", said)
        done = self.tasks_beside(TASK_PROBE, "any")
        self.assertIn("any on GPU 1: done\nfirst on CPU slot 0: done\n", done.stdout)
        self.assertRegex(done.stderr, "on the CPU: task 'first': .*GPU 0: held by job")
        self.assertIn("thread 0 process 0 rank 0", self.tasks_beside(TASK_PROBE, "share", "true").stdout)

    def test_a_gpu_of_another_job_is_waited_for(self):
        job = self.holder()
        with subprocess.Popen([TASK_PROBE, "wait", "true"], cwd=self.folder, env=self.environment(**self.two_gpus()),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
            self.assertIn("waiting for GPUs: GPU-a held by job", waiting.stderr.readline())
            job.terminate()
            said, _ = waiting.communicate(timeout=120)
        self.assertIn("thread 0 process 0 rank 0", said)

    def test_a_rank_has_its_launchers_leases(self):
        under = (MUSTER, "run", "-q", "--run-dir", "outer", "--gpus", "0")
        self.assertIn("thread 0 process 0 rank 0", self.tasks_beside(*under, TASK_PROBE, "command", "true").stdout)
        self.holder()
        self.assertIn("thread 0 process 0 rank 0", self.tasks_beside(*under, "--no-lease", TASK_PROBE, "command", "true").stdout)

if __name__ == "__main__":
    unittest.main(argv=sys.argv)
