"""Starts the example and a probe program as users do, and reads what they print and leave behind."""
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ["MUSTER_BUILD"]
SOURCE = os.environ["MUSTER_SOURCE"]
PYTHON = os.environ.get("MUSTER_TEST_PYTHON", "")
MUSTER = f"{BUILD}/bin/muster"
TRAIN = f"{BUILD}/bin/train"
PROBE = f"{BUILD}/tests/run_probe"
TASK_PROBE = f"{BUILD}/tests/task_probe"
DIGITS = f"{SOURCE}/data/digits.csv.gz"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")


def processes_of(folder):
    """Live processes whose environment or arguments name the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{pid}/environ", "rb").read() + open(f"/proc/{pid}/cmdline", "rb").read()
            state = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if folder.encode() in text and state != "Z" and int(pid) != os.getpid():
            found.append(pid)
    return found


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="muster-programs-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def environment(self, **env):
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        environment.update({"OMP_NUM_THREADS": "1"}, **{k: str(v) for k, v in env.items()})
        return environment

    def start(self, *argv, **env):
        done = subprocess.run(argv, cwd=self.folder, env=self.environment(**env), capture_output=True, text=True, timeout=120)
        self.assertEqual(processes_of(self.folder), [], "processes left running")
        return done

    def run_muster(self, *argv, **env):
        return self.start(MUSTER, "run", "--run-dir", f"{self.folder}/run", *argv, **env)

    def assert_fails(self, done, *parts, code=None):
        text = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0, text)
        if code is not None:
            self.assertEqual(done.returncode, code, text)
        for part in parts:
            self.assertIn(part, text)


class Train(ProgramTest):
    def accuracy(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1].split("] ", 1)[-1])["test_accuracy"]

    def test_accuracy_whatever_the_number_of_ranks(self):
        for ranks in (1, 2, 4):
            with self.subTest(ranks=ranks):
                done = self.start(MUSTER, "run", "--run-dir", f"{self.folder}/{ranks}", "--nproc-per-node", str(ranks), TRAIN,
                                  "--epochs", "12", "--batch-size", str(32 // ranks))
                self.assertGreaterEqual(self.accuracy(done), 0.97)
                lines = [json.loads(line) for line in open(f"{self.folder}/{ranks}/metrics.jsonl")]
                self.assertEqual([line["epoch"] for line in lines], list(range(1, 13)))
                self.assertIn("epoch 12/12 [####################]", done.stderr)

    def test_accumulation_and_the_default_length(self):
        done = self.run_muster("--nproc-per-node", "2", TRAIN, "--accumulate", "2", "--batch-size", "8")
        self.assertGreaterEqual(self.accuracy(done), 0.97)

    def test_started_alone_it_starts_its_ranks(self):
        done = self.start(TRAIN, "--epochs", "1", "--run-dir", f"{self.folder}/mine", MUSTER_NPROC=2)
        self.accuracy(done)
        self.assertIn("CPU slot 1", done.stderr)
        self.assertTrue(os.path.exists(f"{self.folder}/mine/metrics.jsonl"))

    def test_resume_goes_on_where_it_stopped(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        whole = self.run_muster(*argv, "--epochs", "4")
        expected = open(f"{self.folder}/mine/metrics.jsonl").read().splitlines()[-1]
        shutil.rmtree(f"{self.folder}/mine")
        self.run_muster(*argv, "--epochs", "2")
        resumed = self.run_muster(*argv, "--epochs", "4", "--resume")
        self.assertIn("step-", resumed.stderr)
        got = open(f"{self.folder}/mine/metrics.jsonl").read().splitlines()
        self.assertEqual(len(got), 4)
        last, wanted = json.loads(got[-1]), json.loads(expected)
        self.assertEqual((last["loss"], last["step"]), (wanted["loss"], wanted["step"]), "not the same bits as in one go")
        self.accuracy(whole)

    def test_mnist_files(self):
        rows, count = 28, 64
        for part, n in (("train", count), ("t10k", 16)):
            with gzip.open(f"{self.folder}/{part}-images-idx3-ubyte.gz", "wb") as f:
                f.write(b"\0\0\x08\x03" + n.to_bytes(4, "big") + rows.to_bytes(4, "big") * 2 + bytes(i % 251 for i in range(n * rows * rows)))
            with open(f"{self.folder}/{part}-labels-idx1-ubyte", "wb") as f:
                f.write(b"\0\0\x08\x01" + n.to_bytes(4, "big") + bytes(i % 10 for i in range(n)))
        done = self.run_muster("--nproc-per-node", "2", TRAIN, "--mnist", self.folder, "--epochs", "1", "--batch-size", "8")
        self.accuracy(done)


class BadInput(ProgramTest):
    def test_data_cut_short(self):
        with open(f"{self.folder}/cut.csv.gz", "wb") as f:
            f.write(open(DIGITS, "rb").read()[:20000])
        self.assert_fails(self.run_muster("--nproc-per-node", "2", TRAIN, "--digits", f"{self.folder}/cut.csv.gz"), "cut.csv.gz")

    def test_data_of_the_wrong_kind(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", TRAIN, "--digits", TRAIN), "train'")
        self.assert_fails(self.run_muster("--nproc-per-node", "1", TRAIN, "--mnist", self.folder), "train-images")

    def test_checkpoint_cut_short(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--epochs", "1")
        self.assertEqual(self.run_muster(*argv).returncode, 0)
        checkpoints = f"{self.folder}/mine/checkpoints"
        (step,) = [name for name in os.listdir(checkpoints) if name.startswith("step-")]
        model = f"{checkpoints}/{step}/model.safetensors"
        os.truncate(model, os.path.getsize(model) // 2)
        self.assert_fails(self.run_muster(*argv, "--resume"), step, "model.safetensors")

    def test_different_models_name_the_first_difference(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "models"), "weight: Float [4, 4]", "weight: Float [5, 4]")

    def test_different_shapes_show_both(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "shapes"), "Float [4]", "Float [5]")

    def test_different_samplers(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "2", PROBE, "samplers"), "length")

    def test_exception_is_on_the_card(self):
        done = self.run_muster("--nproc-per-node", "3", PROBE, "throw")
        self.assert_fails(done, "rank 1 failed first", "the reactor is too hot", "std::runtime_error", code=1)
        failure = json.load(open(f"{self.folder}/run/failure.json"))
        self.assertEqual(failure["schema"], "muster.failure/1")

    def test_rank_beyond_the_world(self):
        done = self.start(PROBE, RANK=4, WORLD_SIZE=4, MASTER_ADDR="127.0.0.1", MASTER_PORT=1)
        self.assert_fails(done, "RANK=4", "WORLD_SIZE=4")

    def test_master_that_does_not_resolve(self):
        started = time.monotonic()
        done = self.start(PROBE, RANK=1, WORLD_SIZE=2, MASTER_ADDR="no-such-host.invalid", MASTER_PORT=29500)
        self.assert_fails(done, "no-such-host.invalid")
        self.assertLess(time.monotonic() - started, 60)

    def test_port_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.start(PROBE, RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            self.assert_fails(done, str(port))
            self.assert_fails(self.run_muster("--nproc-per-node", "1", "--master-port", str(port), PROBE), str(port))

    def test_cuda_where_there_is_none(self):
        if shutil.which("nvidia-smi"):
            self.skipTest("this machine may have a GPU")
        self.assert_fails(self.run_muster("--gpus", "0", PROBE), "GPU")
        self.assert_fails(self.run_muster("--nproc-per-node", "gpu", PROBE), "GPU")

    def test_zero_devices_and_unknown_program(self):
        self.assert_fails(self.run_muster("--nproc-per-node", "0", PROBE), "0")
        self.assert_fails(self.run_muster(f"{self.folder}/no-such-program"), "no-such-program", code=127)

    def test_train_options(self):
        for argv in (("--epochs", "0"), ("--lr", "x"), ("--no-such-flag",)):
            self.assert_fails(self.start(TRAIN, *argv), argv[0], code=2)


class TaskSetTest(ProgramTest):
    """Programs with a TaskSet."""

    def probe(self, *what, **env):
        # All that it starts has the folder in its environment, by which `start` sees whether something is left.
        done = self.start(TASK_PROBE, *what, CUDA_VISIBLE_DEVICES="", XDG_RUNTIME_DIR=self.folder, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def on_gpus(self, cuda, what="gpus", **env):
        done = self.start(TASK_PROBE, *what.split(" ", 1), **self.two_gpus(cuda, **env))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def two_gpus(self, cuda="GPU-a,GPU-b", **env):
        return {"MUSTER_NVML_LIBRARY": f"{BUILD}/lib/libfake_nvml.so", "FAKE_CUDA": cuda, "MUSTER_CUDA_LIBRARY": f"{BUILD}/lib/libfake_cuda.so",
                "FAKE_NVML": "version=570.1|uuid=GPU-a,name=A|uuid=GPU-b,name=B", "XDG_RUNTIME_DIR": self.folder, "CUDA_VISIBLE_DEVICES": "0,1", **env}


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
        environment = self.environment(XDG_RUNTIME_DIR=self.folder, CUDA_VISIBLE_DEVICES="", MUSTER_CPU_SLOTS=2)
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


class Bench(ProgramTest):
    def bench(self, *argv, **env):
        return self.start(MUSTER, "bench", "device", "--seconds", "0.02", "--cache", f"{self.folder}/cache/scores.json", *argv, **env)

    def test_scores_are_measured_once_and_remembered(self):
        first = self.bench("--cpu")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertRegex(first.stdout, r"cpu +\d+ of \d+ cores +[1-9]\d* +\d+ +100 %")
        self.assertIn("measuring", first.stderr)
        again = self.bench("--cpu")
        self.assertEqual(again.stdout, first.stdout)
        self.assertIn("measured before", again.stderr)
        self.assertIn("measuring", self.bench("--cpu", "--again").stderr)
        self.assertIn("measuring", self.bench("--cpu", "--dtype", "bfloat16").stderr)

    def test_json_is_what_scores_takes(self):
        done = self.bench("--cpu", "--json")
        self.assertGreater(json.loads(done.stdout)["cpu"], 0)
        with open(f"{self.folder}/scores.json", "w", encoding="utf-8") as file:
            file.write(done.stdout)
        plan = self.start(MUSTER, "plan", "-n", "2", "--global-batch", "9", "--scores", f"{self.folder}/scores.json", "--json", CUDA_VISIBLE_DEVICES="")
        self.assertEqual([rank["batch_share"] for rank in json.loads(plan.stdout)["ranks"]], [5, 4])

    def test_remembered_scores_decide_the_policy_fastest(self):
        inventory = f"{self.folder}/fleet.toml"
        with open(inventory, "w", encoding="utf-8") as file:
            file.write('[[host]]\nname = "a"\ngpus = "1xA100-80GB, 1xH100-80GB"\n')
        self.assert_fails(self.start(MUSTER, "plan", "--policy", "fastest", "--inventory", inventory, XDG_CACHE_HOME=self.folder), "muster bench device")
        gpus = json.loads(self.start(MUSTER, "devices", "--json", "--inventory", inventory).stdout)["hosts"][0]["gpus"]
        os.mkdir(f"{self.folder}/muster")
        with open(f"{self.folder}/muster/scores.json", "w", encoding="utf-8") as file:
            json.dump({"schema": "muster.scores/1", "devices": [
                {"device": gpu["uuid"], "host": "a", "model": gpu["model"], "driver": "", "dtype": "float32", "score": 100.0 + 200 * i,
                 "batch_size": 1, "since_seconds": 0} for i, gpu in enumerate(gpus)]}, file)
        plan = json.loads(self.start(MUSTER, "plan", "--policy", "fastest", "--global-batch", "40", "--inventory", inventory, "--json",
                                     XDG_CACHE_HOME=self.folder).stdout)
        self.assertEqual([rank["device"]["index"] for rank in plan["ranks"]], [1, 0])
        self.assertEqual([rank["batch_share"] for rank in plan["ranks"]], [30, 10])

    def test_collectives_are_timed_and_right(self):
        for op in ("all_to_all",):
            done = self.start(MUSTER, "bench", "collectives", "--op", op, "--min", "64", "--max", "64K", "--factor", "1024",
                              "--seconds", "0.01", "--json", "--svg", f"{self.folder}/{op}.svg")
            self.assertEqual(done.returncode, 0, done.stderr)
            table = json.loads(done.stdout)
            self.assertEqual([(row["backend"], row["bytes"], row["wrong"]) for row in table["rows"]],
                             [(backend, size, 0) for size in (64, 65536) for backend in ("gloo", "shm", "shm-in-place")])
            self.assertTrue(all(row["us"] > 0 and row["busbw"] > 0 for row in table["rows"]))
            with open(f"{self.folder}/{op}.svg", encoding="utf-8") as svg:
                self.assertIn("shm-in-place</text>", svg.read())
        shown = self.start(MUSTER, "bench", "collectives", "--backends", "shm", "--max", "4", "--seconds", "0.01")
        self.assertRegex(shown.stdout, r"bytes +count +type +backend +us +algbw +busbw +wrong")
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--op", "all_reduse"), "got 'all_reduse'", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--backends", "tcp"), "got 'tcp'", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--min", "1M", "--max", "4"), "--min", code=2)

    def test_a_training_step_is_timed(self):
        done = self.start(MUSTER, "bench", "ddp", "--batch", "1", "--steps", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        times = json.loads(done.stdout)["ms"]
        self.assertEqual(sorted(times), ["gloo", "gloo, copied", "none", "shm", "shm, copied"])
        self.assertTrue(all(ms > 0 for ms in times.values()))
        self.assert_fails(self.start(MUSTER, "bench", "ddp", "--model", "vgg"), "got 'vgg'", code=2)

    def test_wrong_input(self):
        self.assert_fails(self.start(MUSTER, "bench"), "subcommand", code=2)
        self.assert_fails(self.bench("--dtype", "int8", "--cpu"), "int8", "bfloat16", code=2)
        self.assert_fails(self.bench("--gpus", "0", CUDA_VISIBLE_DEVICES=""), "GPU", code=1)
        self.assert_fails(self.bench("--gpus", "0-"), "0-", code=2)


class Start(ProgramTest):
    def test_alone(self):
        done = self.start(PROBE, "place", MUSTER_NPROC=3)
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(3):
            self.assertIn(f"[{rank}] rank {rank} local {rank} of 3 on cpu reason 'no GPU: CPU slot {rank}' seed {100 + rank}", done.stdout)

    def test_environment_overrides_are_checked(self):
        self.assert_fails(self.start(PROBE, MUSTER_NPROC="many"), "MUSTER_NPROC", "many")
        self.assert_fails(self.start(PROBE, MUSTER_POLICY="best"), "best")

    def test_under_muster_run(self):
        done = self.run_muster("--nproc-per-node", "2", PROBE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("[1] rank 1 local 1 of 2 on cpu", done.stdout)

    def torchrun(self, ranks, *argv, **env):
        torchrun = os.path.join(os.path.dirname(PYTHON), "torchrun")
        if not os.path.exists(torchrun) or subprocess.run([PYTHON, "-c", "import torch.distributed"], capture_output=True).returncode:
            self.skipTest(f"no torchrun beside '{PYTHON}'")
        return self.start(torchrun, "--no-python", "--nproc-per-node", str(ranks), PROBE, *argv, **env)

    def fleet(self, text):
        path = f"{self.folder}/fleet.toml"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_more_ranks_than_gpus_under_torchrun(self):
        two = self.fleet('[[host]]\nname = "a"\ngpus = "2xA100-80GB"\n')
        self.assert_fails(self.torchrun(3, MUSTER_INVENTORY=two), "expected a GPU for local rank 2, got 2 visible GPUs", "MUSTER_SURPLUS=cpu, drop or share")
        self.assert_fails(self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="none"), "error, cpu, drop, share", "none")
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="drop")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d local \d of \d", done.stdout)), ["rank 0 local 0 of 2", "rank 1 local 1 of 2"])
        self.assertIn("left out: no GPU for local rank 2", done.stderr)
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="cpu")
        self.assertIn("rank 2 local 2 of 3 on cpu reason 'CPU: surplus, 2 visible GPUs taken", done.stdout)
        done = self.torchrun(3, MUSTER_INVENTORY=two, MUSTER_SURPLUS="share")
        self.assertIn("rank 2 local 2 of 3 on cpu reason 'visible GPU of local rank 2", done.stdout)

    def test_where_nobody_has_a_gpu_nobody_is_left_out(self):
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
                environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
                environment.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(max(0, rank - 1)), LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                   MASTER_PORT=str(held.getsockname()[1]), MUSTER_SURPLUS="drop", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", **env)
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

    def test_under_torchrun(self):
        done = self.torchrun(2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 1 local 1 of 2 on cpu reason 'CPU: no visible GPU (torchrun assigns no device)'", done.stdout)
        done = self.torchrun(2, "throw")
        self.assert_fails(done, "the reactor is too hot")

    def test_a_killed_rank_ends_the_job(self):
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        with subprocess.Popen([MUSTER, "run", "--run-dir", f"{self.folder}/run", "--nproc-per-node", "2", TRAIN, "--epochs", "100000"],
                              cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
            seen = ""
            while "epoch 1/" not in seen:
                seen = job.stderr.readline()
                self.assertTrue(seen, "the job ended too early")
            ranks = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
            victim = next(pid for pid in ranks if b"RANK=1\0" in open(f"/proc/{pid}/environ", "rb").read().replace(b"GROUP_RANK", b""))
            os.kill(int(victim), signal.SIGKILL)
            _, rest = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, rest)
        self.assertIn("rank 1 failed first", rest)
        self.assertEqual(processes_of(self.folder), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
