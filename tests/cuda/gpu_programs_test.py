"""Programs on GPUs that train and fail: on the GPUs of this machine, or with `--fake` on those of fake_gpu.cc."""
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

for folder in ("cluster", "support"):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / folder))
from fake_gpus import num_true_gpus, two_gpus
from hosts import wait_for
from long import long, some_of

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])
DATA = pathlib.Path(os.environ["MUSTER_SOURCE"]) / "data"
FAKE = "--fake" in sys.argv
long_on_fake_gpus = long if FAKE else lambda case: case
SHARED = ("--gpus", "0", "--surplus", "share", "--nproc-per-node")  # ranks of one GPU: shared memory
ONE = ("--gpus", "0")  # one rank: NCCL
# Two ranks over NCCL: on two GPUs, fake or true; on one true GPU, where each says that it is on a host of its own.
TWO_GPUS = FAKE or num_true_gpus() > 1
needs_two_gpus = unittest.skipUnless(TWO_GPUS, "needs two GPUs")
APART = "MUSTER_HOST_ID=host$RANK NCCL_HOSTID=host$RANK NCCL_SOCKET_IFNAME=lo MUSTER_BACKEND=nccl exec \"$0\" \"$@\""
A_GPU_EACH = ("--gpus", "0,1")
OVER_NCCL = A_GPU_EACH if TWO_GPUS else (*SHARED, "2", "sh", "-c", APART)


def pids_on_gpus():
    """The processes that hold memory of a GPU."""
    if FAKE:
        return set()
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return set(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())


def knows_ends():
    """LibTorch 2.11 does not tell whether a stream is captured, and then no end of a collective is waited for."""
    version = subprocess.run([f"{BUILD}/tests/gpu_probe", "version"], capture_output=True, text=True, check=True).stdout
    return not version.startswith("2.11")


class OnGpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-gpus-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.env = {**os.environ, **(two_gpus(BUILD) if FAKE else {}), "MUSTER_RUNTIME_DIR": self.folder, "OMP_NUM_THREADS": "1",
                    "NVIDIA_TF32_OVERRIDE": "0"}
        self.env.pop("CUDA_VISIBLE_DEVICES", None)

    def start(self, *argv, **env):
        argv = [f"{BUILD}/bin/muster", "run", "--run-dir", f"{self.folder}/run", *argv]
        return subprocess.Popen(argv, cwd=self.folder, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def probe(self, where, what, code=0, **env):
        before = pids_on_gpus()
        process = self.start(*where, f"{BUILD}/tests/gpu_probe", what, **env)
        said, _ = process.communicate(timeout=120)
        if code == 0:
            self.assertEqual(process.returncode, 0, said)
        else:
            self.assertNotEqual(process.returncode, 0, said)
        self.assertEqual(pids_on_gpus() - before, set(), "processes left on the GPU")
        self.assertNotIn("makes a context on", said)  # the fake GPUs tell; on true ones it is memory of another rank's
        return said


class Training(OnGpus):
    def test_training_has_the_losses_of_cpu_ranks(self):
        def losses(name, *where):
            folder = f"{self.folder}/{name}"
            argv = [f"{BUILD}/bin/muster", "run", "--run-dir", folder, *where, f"{BUILD}/bin/train", "--epochs", "2", "--digits", DATA / "digits.csv.gz"]
            done = subprocess.run(argv, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return [json.loads(line)["loss"] for line in pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()]

        for ranks in (1, 3):
            on_gpu = losses(f"gpu{ranks}", *(ONE if ranks == 1 else (*SHARED, str(ranks))))
            on_cpu = losses(f"cpu{ranks}", "--nproc-per-node", "cpu", "--cpu-slots", str(ranks))
            print(f"{ranks} rank(s): losses on the GPU {on_gpu}, on the CPU {on_cpu}")
            for epoch, (gpu, cpu) in enumerate(zip(on_gpu, on_cpu, strict=True)):
                self.assertAlmostEqual(gpu, cpu, delta=1e-3 * 10**epoch)  # other kernels round otherwise, and rounding grows

    def check_divided(self, two_ranks, ways):
        """A GPT that two ranks train in several ways has the loss of one rank with all of the batch."""
        model = ("--text", f"{DATA}/shakespeare.txt.gz", "--layers", "2", "--heads", "2", "--width", "32", "--context", "16", "--lr", "0.003", "--warmup", "5",
                 "--sample", "5", "--steps", "20", "--eval-every", "20")

        def loss(name, where, batch, *way):
            done = self.start(*where, f"{BUILD}/bin/gpt", *model, "--batch", str(batch), *way)
            said, _ = done.communicate(timeout=120)
            self.assertEqual(done.returncode, 0, said)
            found = json.loads(pathlib.Path(self.folder, "run/metrics.jsonl").read_text().splitlines()[-1])["validation_loss"]
            shutil.rmtree(f"{self.folder}/run")
            print(f"{name}: {found}")
            return found

        alone = loss("one rank", ONE, 8)
        for batch, way in ways:
            with self.subTest(way):
                self.assertAlmostEqual(loss(way or "ddp", two_ranks, batch, *way.split()), alone, places=3)
        self.assertAlmostEqual(loss("bf16", ONE, 8, "--precision", "bf16"), alone, places=1)

    WAYS = ((4, ""), (4, "--shard zero1"), (4, "--shard full"), (8, "--mesh tp=2"), (8, "--mesh pp=2"))

    @long_on_fake_gpus
    def test_a_gpt_divided_over_ranks_that_share_a_gpu_has_the_losses_of_one(self):
        self.check_divided((*SHARED, "2"), some_of(self.WAYS, 2, 3, 4) if FAKE else self.WAYS)

    def test_a_gpt_divided_over_nccl_has_the_losses_of_one(self):
        self.check_divided(OVER_NCCL, some_of(self.WAYS, 0, 1, 4) if FAKE else self.WAYS)

    def test_a_sub_group_is_split_from_its_parent(self):
        two = A_GPU_EACH if TWO_GPUS else ONE
        said = self.probe(two, "split")
        self.assertIn("split holds", said)
        if FAKE:  # which tell what they are asked for
            self.assertIn("nccl: rank 0 of ranks 0, split, of the job's ranks 0", said)
            self.assertIn("nccl: stays out of a split", said)
            self.assertIn("nccl: rank 1 of world, of the job's ranks 0,1", said)
            self.assertIn("nccl: rank 0 of ranks 0, of the job's ranks 0", self.probe(two, "no split"))
            self.assertIn("nccl: rank 1 of world, high priority", self.probe(two, "high priority"))
        else:
            self.assertIn("high priority holds", self.probe(two, "high priority"))

    def test_a_group_that_goes_out_of_scope_finishes_its_sums(self):
        self.assertIn("drop groups holds", self.probe(OVER_NCCL, "drop groups"))

    def test_gradients_are_averaged_with_the_bits_of_dividing_first(self):
        self.assertIn("averages holds", self.probe(OVER_NCCL, "averages"))

    def test_hooks_end_on_another_stream_than_they_begin_on(self):
        self.assertIn("hooks beside holds", self.probe(OVER_NCCL, "hooks beside"))

    def test_a_step_does_not_wait_for_the_gpu(self):
        counting = ONE if FAKE else (*ONE, "env", f"LD_PRELOAD={BUILD}/lib/libcount_waits.so")
        said = self.probe(counting, "count waits of a small model")
        self.assertIn("TrainStep, muster::optim::AdamW: 0 waits a step", said)
        self.assertRegex(said, "TrainStep, torch::optim::AdamW: 1 waits a step")

    def test_steps_of_ranks_over_nccl_do_not_wait_for_the_gpu(self):
        counting = OVER_NCCL if FAKE else (*OVER_NCCL, "env", f"LD_PRELOAD={BUILD}/lib/libcount_waits.so")
        self.assertIn("count waits of ranks holds", self.probe(counting, "count waits of ranks"))

    def test_metrics_do_not_wait_for_the_gpu(self):
        counting = ONE if FAKE else (*ONE, "env", f"LD_PRELOAD={BUILD}/lib/libcount_waits.so")
        self.assertIn("metrics holds", self.probe(counting, "metrics"))

    def check_graphed(self, where, ranks):
        """Steps as CUDA graphs have the bits of steps without, and go on after faults."""
        said = self.probe(where, "graphed small")
        for rank in range(ranks):
            for optimizer in ("AdamW", "Adam", "SGD", "SyncBatchNorm"):
                self.assertRegex(said, f"graphed {optimizer}, rank {rank}: 17 replays; of 62 losses and norms 0 differ, of [0-9]+ parameters and averages 0")
        self.assertIn("graphed small holds", said)
        shutil.rmtree(f"{self.folder}/run")
        said = self.probe(where, "graphed faults")
        self.assertIn("graphed faults holds", said)
        return said

    def test_steps_as_cuda_graphs(self):
        said = self.check_graphed(ONE, 1)
        if FAKE:
            self.assertIn("fake GPU: operation not permitted when stream is capturing: the host waits for item", said)

    def test_steps_as_cuda_graphs_over_nccl(self):
        self.check_graphed(OVER_NCCL, 2)

    @unittest.skipUnless(FAKE, "on a true GPU the host is soon eight steps ahead, and waits for that reason")
    def test_a_step_as_a_cuda_graph_does_not_wait_for_the_gpu(self):
        self.assertRegex(self.probe(ONE, "graphed small"), r"GraphedStep [0-9.]+ ms \(0 waits a step\)")

    def test_ranks_that_share_a_gpu_through_memory_have_no_graphs(self):
        said = self.probe((*SHARED, "2"), "graphed small", code=1)
        self.assertIn("expected a model wrapped with what a graph can have, got the backend shm", said)

    @needs_two_gpus
    def test_a_save_in_the_background_takes_no_memory_of_another_ranks_gpu(self):
        self.assertIn("save beside holds", self.probe(A_GPU_EACH, "save beside"))

    def test_a_save_in_the_background_has_the_values_of_its_step(self):
        counting = ONE if FAKE else (*ONE, "env", f"LD_PRELOAD={BUILD}/lib/libcount_waits.so")
        self.assertIn("save beside holds", self.probe(counting, "save beside"))

    def test_synchronised_batch_norm(self):
        self.assertIn("sync batch norm holds", self.probe((*SHARED, "2"), "sync batch norm"))

    def test_synchronised_batch_norm_over_nccl_does_not_wait_for_the_gpu(self):
        self.assertIn("sync batch norm holds", self.probe(OVER_NCCL, "sync batch norm"))

    def test_a_fully_sharded_backward_ends_on_another_stream_than_its_hooks(self):
        self.assertIn("sharded beside holds", self.probe(OVER_NCCL, "sharded beside"))

    def test_a_call_is_waited_for_on_another_stream_than_it_began_on(self):
        self.assertIn("wait beside holds", self.probe(OVER_NCCL, "wait beside"))

    def test_the_stream_that_began_a_call_goes_on_where_another_waits(self):
        self.assertIn("go on beside holds", self.probe(OVER_NCCL, "go on beside"))

    def test_one_process_with_two_replicas(self):
        self.assertIn("data parallel holds", self.probe(ONE, "data parallel"))


class Faults(OnGpus):
    def test_reductions_that_nccl_has_not_are_refused(self):
        self.assertIn("refused reductions holds", self.probe(OVER_NCCL, "refused reductions"))

    def test_a_calls_own_limit_is_an_error_that_names_the_rank(self):
        said = self.probe(OVER_NCCL, "limit", code=1)
        self.assertRegex(said, r"rank 0 threw: all_reduce #1 on rank 0 of 2: Timed out waiting 3000ms; missing rank\(s\) 1")

    def test_a_calls_own_limit_is_an_error_too_while_a_graph_has_the_communicator(self):
        said = self.probe(OVER_NCCL, "graphed limit", code=1)
        self.assertRegex(said, r"rank 0 threw: all_reduce #[0-9]+ on rank 0 of 2: Timed out waiting 3000ms; missing rank\(s\) 1")

    def test_the_jobs_limit_names_the_rank_and_ends_the_job(self):
        said = self.probe(OVER_NCCL, "late", code=1, MUSTER_COLLECTIVE_TIMEOUT="5")
        self.assertRegex(said, r"all_reduce #1 on rank 0 of 2: timed out after 5.0s; missing rank\(s\) 1; NCCL's communicator is aborted")

    def check_hang(self, what, hangs, call):
        """A GPU hangs in what all ranks have come to: the job's limit ends the ranks, which name it."""
        said = self.probe((), what, code=1, FAKE_NCCL_HANGS=hangs, MUSTER_COLLECTIVE_TIMEOUT="5")
        self.assertRegex(said, call + " on rank [01] of 2: timed out after 5.0s; all ranks wait: a GPU or the network hangs; NCCL's communicator is aborted")

    @unittest.skipUnless(FAKE, "no true GPU hangs when told to")
    def test_a_gpu_that_hangs_in_a_sum_of_gradients_is_ended(self):
        self.check_hang("losses", "1 all_reduce 3", "all_reduce of gradients #3")

    @unittest.skipUnless(FAKE, "no true GPU hangs when told to")
    def test_a_gpu_that_hangs_in_a_broadcast_of_the_reducers_is_ended(self):
        self.check_hang("losses", "1 broadcast 1", "broadcast of a model")
        shutil.rmtree(f"{self.folder}/run")
        self.check_hang("losses", "1 broadcast 6", "broadcast of the order of gradients")

    @unittest.skipUnless(FAKE, "no true GPU hangs when told to")
    def test_a_gpu_that_hangs_in_a_replay_is_ended(self):
        self.check_hang("graphed for ever", "1 all_reduce 14", "replay #3")

    def test_a_step_with_bad_gradients_is_left_out_on_the_gpu(self):
        self.assertIn("leave out holds", self.probe(OVER_NCCL, "leave out"))

    def test_memory_that_runs_out_names_the_rank(self):
        said = self.probe((*SHARED, "2"), "out of memory", code=1, FAKE_CUDA_MEMORY=str(1 << 32))
        self.assertIn("rank 1 failed first", said)
        self.assertIn("out of memory", said)

    def test_a_rank_that_dies_is_named(self):
        said = self.probe((*SHARED, "3"), "dies", code=1)
        self.assertIn("rank 2 failed first: killed by SIGKILL", said)
        self.assertRegex(self.probe(ONE, "dies", code=1), "rank 0 .*killed by SIGKILL")

    @long_on_fake_gpus
    def test_a_rank_that_does_not_come_is_named(self):
        said = self.probe((*SHARED, "3"), "late", code=1, MUSTER_COLLECTIVE_TIMEOUT="5")
        self.assertRegex(said, r"all_reduce.* waited .* for rank\(s\) 2")

    def test_a_backward_that_hangs_is_shown(self):
        said = self.probe((*SHARED, "2"), "backward", code=1, MUSTER_COLLECTIVE_TIMEOUT="5")
        self.assertRegex(said, r"thread pt_autograd_0:\n(.*#.*\n)*.*hook_that_hangs", said)

    @needs_two_gpus
    def test_a_rank_over_nccl_that_dies_or_does_not_come_is_named(self):
        self.assertIn("rank 1 failed first: killed by SIGKILL", self.probe(A_GPU_EACH, "dies", code=1))
        said = self.probe(A_GPU_EACH, "late", code=1, MUSTER_COLLECTIVE_TIMEOUT="5")
        self.assertRegex(said, r"waited .* for rank\(s\) 1")

    @needs_two_gpus
    def test_without_a_launcher_a_rank_ends_that_waits_on_its_gpu_for_a_dead_one(self):
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(held.getsockname()[1]), "FAKE_NCCL_WAITS": "1"}
            ranks = [subprocess.Popen([f"{BUILD}/tests/gpu_probe", "waits"], cwd=self.folder, env={**self.env, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]
            for rank in ranks:
                self.addCleanup(rank.kill)
            said, _ = ranks[0].communicate(timeout=60)
            ranks[1].communicate(timeout=60)
        self.assertEqual((ranks[0].returncode, ranks[1].returncode), (1, -signal.SIGKILL), said)
        self.assertRegex(said, r"all_reduce.*: rank 1 \(process [0-9]+\) has ended; NCCL's communicator is aborted, and this rank ends")
        if FAKE:
            self.assertIn("nccl: aborted", said)

    @unittest.skipUnless(FAKE, "true GPUs are not told to wait")
    def test_a_call_over_nccl_is_under_way_until_the_gpu_has_done_it(self):
        if not knows_ends():
            self.skipTest("LibTorch 2.11")
        sums = ("all_reduce #1 f32[65536]", "all_reduce #0 f32[65536]")
        for what, doing, last_call in (("away", *sums), ("away from gradients", "all_reduce #1 f32[325]", "broadcast #3 i64[1]")):
            with self.subTest(what):
                process = self.start(f"{BUILD}/tests/gpu_probe", what, FAKE_NCCL_WAITS="1")
                self.addCleanup(process.communicate)
                self.addCleanup(process.kill)

                def waits():
                    said = subprocess.run([f"{BUILD}/bin/muster", "top", "--json", f"{self.folder}/run"], env=self.env, capture_output=True, text=True)
                    ranks = json.loads(said.stdout)["ranks"] if said.returncode == 0 else []
                    return ranks and (ranks[0]["doing"], ranks[0]["last_call"]) == (doing, last_call)

                wait_for(waits)
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)
                shutil.rmtree(f"{self.folder}/run")

    @unittest.skipUnless(FAKE, "true GPUs are not told to wait")
    def test_calls_over_nccl_that_are_over_are_recorded_so(self):
        if not knows_ends():
            self.skipTest("LibTorch 2.11")
        said = self.probe((), "sums", FAKE_NCCL_WAITS="1")
        self.assertIn("sums holds", said)
        done = subprocess.run([f"{BUILD}/tests/trace_probe", "read", f"{self.folder}/run"], capture_output=True, text=True, check=True)
        calls = [line for line in done.stdout.splitlines() if " call " in line]
        for rank in range(2):
            for call in ("[world] all_reduce #2 f32[65536]", "[world gradients] all_reduce #1 f32[325]"):
                self.assertEqual(len([line for line in calls if line.startswith(f"rank {rank} call {call}")]), 1, done.stdout)
        self.assertEqual([line for line in calls if not line.endswith(" ended")], [])

    def test_an_interrupt_ends_all(self):
        for where in (ONE, (*SHARED, "2")):
            before = pids_on_gpus()
            process = self.start(*where, f"{BUILD}/tests/gpu_probe", "forever")
            limit = threading.Timer(60, process.kill)
            limit.start()
            self.addCleanup(limit.cancel)
            for line in process.stdout:
                if re.search("rank 0 pid [0-9]+ trains", line):
                    break
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, said)
            self.assertEqual(pids_on_gpus() - before, set(), "processes left on the GPU")


if __name__ == "__main__":
    if not FAKE and subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode:
        print("skipped: no NVIDIA GPU on this machine (nvidia-smi -L fails)")
        sys.exit(77)
    unittest.main(argv=[argument for argument in sys.argv if argument != "--fake"], verbosity=2)
