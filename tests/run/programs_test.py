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
import time
import unittest

from program_case import BUILD, DIGITS, MUSTER, PROBE, PYTHON, START_PROBE, TRAIN, ProgramTest, processes_of


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

    def test_a_resumed_run_writes_each_step_once(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        self.run_muster(*argv, "--epochs", "3")
        newest = max(os.listdir(f"{self.folder}/mine/checkpoints"), key=lambda name: int(name.split("-")[1]))
        shutil.rmtree(f"{self.folder}/mine/checkpoints/{newest}")  # killed before it was written
        resumed = self.run_muster(*argv, "--epochs", "4", "--resume")
        self.assertIn("metrics: 1 lines of later steps are in metrics.jsonl.replaced now", resumed.stderr)
        lines = [json.loads(line) for line in open(f"{self.folder}/mine/metrics.jsonl")]
        self.assertEqual([line["epoch"] for line in lines], [1, 2, 3, 4])

    def test_a_resumed_run_on_other_data_says_so(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--batch-size", "64")
        self.run_muster(*argv, "--epochs", "1")
        with gzip.open(DIGITS) as whole, gzip.open(f"{self.folder}/part.csv.gz", "wb") as part:
            part.writelines(whole.readlines()[:600])
        resumed = self.run_muster(*argv, "--epochs", "2", "--resume", "--digits", f"{self.folder}/part.csv.gz")
        self.assertRegex(resumed.stderr, r"resume: .*/step-\d+ was saved in training on \d+ samples, and the data set has \d+: epochs have")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)

    def test_a_loss_that_is_no_number_is_a_failure_unless_it_is_allowed(self):
        argv = ("--nproc-per-node", "2", TRAIN, "--run-dir", f"{self.folder}/mine", "--epochs", "1", "--lr", "1e30")
        self.assert_fails(self.run_muster(*argv), "loss: expected a finite number, got ", "lower the learning rate")
        allowed = self.run_muster(*argv, "--allow-nan")
        self.assertEqual(allowed.returncode, 0, allowed.stderr)

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
        self.assertEqual(done.stderr.count("the reactor is too hot"), 1, done.stderr)

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


def line_of(mark):
    """Where run_probe_lines.cc says so: `run_probe_lines.cc:12`."""
    lines = open(os.path.join(os.path.dirname(__file__), "run_probe_lines.cc"), encoding="utf-8").read().splitlines()
    return f"run_probe_lines.cc:{next(i for i, line in enumerate(lines, 1) if mark in line)}"


class Stacks(ProgramTest):
    def failing(self, what, ranks=2, **env):
        return self.run_muster("-q", "--nproc-per-node", str(ranks), PROBE, what, **env)

    def test_an_exception_says_where_it_was_thrown(self):
        done = self.failing("throw")
        self.assert_fails(done, "#0 overheat() at", line_of("thrown here"), "probe(", code=1)
        card = done.stderr[done.stderr.index("[muster] rank 1"):]
        self.assertNotIn("muster::run(", card, "what is outside of the user's function")

    def test_an_exception_of_libtorch_and_one_that_is_none(self):
        self.assert_fails(self.failing("torch error", 1), "c10::Error: mm: mat1 and mat2", "torchCheckFail", "calls in LibTorch", "probe(")
        done = self.failing("torch error", 1, TORCH_SHOW_CPP_STACKTRACES=1)
        self.assert_fails(done, "Exception raised from check_mm_shapes", "frame #0: c10::Error::Error")
        self.assert_fails(self.failing("number", 1), "no std::exception, of type int", "probe(")

    def test_the_program_may_have_any_name(self):
        os.symlink(PROBE, f"{self.folder}/probe")
        done = self.run_muster("-q", "--nproc-per-node", "1", "./probe", "number")
        self.assert_fails(done, "#0 (anonymous namespace)::probe(", code=1)

    def test_stacks_are_an_option(self):
        done = self.failing("throw", MUSTER_BACKTRACE=0)
        self.assert_fails(done, "the reactor is too hot", code=1)
        self.assertNotIn("stack\n", done.stderr)
        done = self.failing("null", MUSTER_BACKTRACE=0)
        self.assert_fails(done, code=128 + signal.SIGSEGV)
        self.assertNotIn("its stack", done.stderr)
        self.assert_fails(self.failing("throw", MUSTER_BACKTRACE=7), "MUSTER_BACKTRACE: expected 0 or 1, got 7")

    def test_a_signal_says_its_stack_and_ends_the_rank_all_the_same(self):
        done = self.failing("null")
        self.assert_fails(done, "[1] [rank 1] error: SIGSEGV; its stack", "[1]   #0 ", "run_probe(+0x",
                          "rank 1 failed first: killed by SIGSEGV (segmentation fault)",
                          "#0 write_nowhere() at", line_of("written here"), code=128 + signal.SIGSEGV)
        failure = json.load(open(f"{self.folder}/run/failure.json"))
        self.assertIn("write_nowhere()", failure["first"]["stack"])
        self.assertEqual(failure["first"]["signal"], "SIGSEGV")

    def test_abort_a_thread_and_a_stack_that_overflows(self):
        self.assert_fails(self.failing("abort"), "error: SIGABRT; its stack", "probe(", code=128 + signal.SIGABRT)
        self.assert_fails(self.failing("thread", 1), "error     std::runtime_error: the reactor is too cold", "probe(", code=128 + signal.SIGABRT)
        self.assert_fails(self.failing("deep", 1), "error: SIGSEGV; its stack", "depth_of(int)", code=128 + signal.SIGSEGV)

    def test_a_handler_of_the_program_stays(self):
        done = self.failing("own handler", 1)
        self.assert_fails(done, code=23)
        self.assertNotIn("its stack", done.stderr)

    def test_without_a_launcher_the_log_has_error_and_stack(self):
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            done = self.start(PROBE, "number", RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=held.getsockname()[1])
        self.assert_fails(done, "[rank 0] error: an exception that is no std::exception, of type int; thrown here", f"#0 {PROBE}(+0x", code=1)

    def test_an_error_is_said_once(self):
        for flags in ((), ("--redirects", "2")):
            with self.subTest(flags=flags):
                done = self.run_muster("-q", "--nproc-per-node", "2", *flags, PROBE, "throw")
                self.assertEqual(done.stderr.count("the reactor is too hot"), 1, done.stderr)
        with open(f"{self.folder}/run/logs/0/1.err", encoding="utf-8") as log:
            self.assertIn("the reactor is too hot", log.read(), "a file has it too")
        done = self.run_muster("-q", "--nproc-per-node", "2", "--max-restarts", "1", PROBE, "throw")
        self.assertEqual(done.stderr.count("the reactor is too hot"), 2, done.stderr)
        self.assertIn("rank 1 failed: exit code 1, std::runtime_error: the reactor is too hot; starting all ranks again", done.stderr)


class Waiting(ProgramTest):
    """Ranks that leave, or do not come, while others wait."""
    BACKENDS = ("shm", "gloo")

    def test_a_rank_that_returns_early_is_the_cause(self):
        for backend in self.BACKENDS:
            for what, call in (("early return", "all_reduce sum Float [4]"), ("early barrier", "barrier")):
                with self.subTest(backend=backend, what=what):
                    done = self.run_muster("-q", "--nproc-per-node", "3", PROBE, what, MUSTER_BACKEND=backend)
                    self.assert_fails(done, "rank 1 failed first: ",
                                      "error     invalid_argument: rank 1 returned from its function while others did not",
                                      f"got '{call}' on rank", code=1)
                    self.assertNotIn("'barrier' on rank 1", done.stderr)

    def test_a_rank_that_exits_with_0_is_the_cause(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "2", PROBE, "early exit", MUSTER_BACKEND=backend)
                self.assert_fails(done, "rank 1 ended first: exit code 0, while others waited for it",
                                  "error     rank 0: peer_failed: all_reduce #", code=1)
                failure = json.load(open(f"{self.folder}/run/failure.json"))
                self.assertEqual((failure["first"]["rank"], failure["exit_code"]), (1, 1))

    def test_a_rank_that_does_not_come_is_named_before_the_deadline(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "3", "--collective-timeout", "4s", PROBE, "late", MUSTER_BACKEND=backend)
                self.assert_fails(done, "timeout: ", "missing rank(s) 1", code=1)
                words = [line for line in done.stderr.splitlines() if "for rank(s) 1; rank(s) 0, 2 have come" in line]
                self.assertEqual(len(words), 2, done.stderr)  # after 1 s and 2 s, by one rank
                self.assertTrue(all("all_reduce" in word and "[rank 0] warning" in word for word in words), words)

    def test_a_rank_that_gives_no_gradients_is_named(self):
        for backend in self.BACKENDS:
            with self.subTest(backend=backend):
                done = self.run_muster("-q", "--nproc-per-node", "2", "--collective-timeout", "6s", PROBE, "late gradients", MUSTER_BACKEND=backend)
                self.assert_fails(done, "[rank 0] warning: ", "for rank(s) 1; rank(s) 0 have come", code=1)

    def test_the_deadline_is_a_variable_too(self):
        done = self.start(PROBE, "late", MUSTER_NPROC=2, MUSTER_COLLECTIVE_TIMEOUT="500ms")
        self.assert_fails(done, "timeout: all_reduce #", code=1)
        for wrong in ("soon", "0"):
            self.assert_fails(self.start(PROBE, "late", MUSTER_NPROC=2, MUSTER_COLLECTIVE_TIMEOUT=wrong), "MUSTER_COLLECTIVE_TIMEOUT: ", wrong)
            self.assert_fails(self.run_muster("--collective-timeout", wrong, PROBE), "--collective-timeout", wrong, code=2)


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
        self.assertEqual(sorted(re.findall(r"rank .*", launched.stdout)),
                         ["rank 0 of 2 tests", "rank 0 of 2 trains", "rank 1 of 2 tests", "rank 1 of 2 trains"])

    def test_a_rank_that_does_not_come_to_its_call_is_an_error(self):
        done = self.start(START_PROBE, "rounds")
        self.assertEqual(done.returncode, 1, done.stderr)  # of the two rounds
        self.assertIn("expected this rank to come to call 2 of muster::run", done.stderr)

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
            victim = next(pid for pid in ranks if b"RANK=1\0" in open(f"/proc/{pid}/environ", "rb").read().replace(b"GROUP_RANK", b""))
            os.kill(int(victim), signal.SIGKILL)
            _, rest = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 128 + signal.SIGKILL, rest)
        self.assertIn("rank 1 failed first", rest)
        self.assertEqual(processes_of(self.folder), [])

if __name__ == "__main__":
    unittest.main(argv=sys.argv)
