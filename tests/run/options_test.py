"""RunOptions do what the flags of `muster run` do: the same plans, the same errors, the same jobs."""
import json
import os
import pathlib
import re
import socket
import subprocess
import unittest

from program_case import BUILD, MUSTER, OPTIONS_PROBE, SOURCE, ProgramTest

MACHINES = f"{SOURCE}/tests/data/machines"
DGX = f"{MACHINES}/dgx-h100.xml"
QUAD = f"{MACHINES}/quad-pcie-dual-socket.xml"
WORKSTATION = f"{MACHINES}/workstation.toml"
SCORES = f"{MACHINES}/workstation-scores.json"
MIG = f"{MACHINES}/mig-a100.xml"
# Options that ranks follow under every launcher, if that has not said it itself.
FOLLOWED = {"backend", "nccl", "collective_timeout", "backtrace", "mesh", "global_batch"}


def members():
    """The members of RunOptions, in their order."""
    text = pathlib.Path(f"{SOURCE}/muster/run/run_options.h").read_text(encoding="utf-8")
    struct = re.search(r"struct RunOptions \{(.*)\n\};", text, re.DOTALL).group(1)
    code = re.sub(r"//.*", "", struct)
    return re.findall(r"(\w+)(?: =[^;]*|\{[^;]*\})?;", code)


class Plans(ProgramTest):
    def by_options(self, *options, **env):
        return self.start(OPTIONS_PROBE, "dry_run=1", "json=1", *options, **env)

    def by_flags(self, *flags, **env):
        return self.start(MUSTER, "run", "--dry-run", "--json", *flags, **env)

    def assert_same(self, options, flags, **env):
        told, flagged = self.by_options(*options, **env), self.by_flags(*flags, **env)
        self.assertEqual(flagged.returncode, 0, flagged.stderr)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(json.loads(told.stdout), json.loads(flagged.stdout), options)
        return json.loads(told.stdout)

    def test_of_each_option(self):
        same = self.assert_same
        same(["nproc_per_node=3", f"inventory={DGX}"], ["-n", "3", "--inventory", DGX])
        same(["cpu_only=1", "cpu_slots=3"], ["-n", "cpu", "--cpu-slots", "3"])
        same(["gpu_only=1", "gpus=free:2,!0", f"inventory={DGX}"], ["-n", "gpu", "--gpus", "free:2,!0", "--inventory", DGX])
        same(["gpus_per_rank=2", "policy=topology", f"inventory={DGX}"],
             ["--gpus-per-rank", "2", "--policy", "topology", "--inventory", DGX])
        same(["map=3,1,0,2", f"inventory={QUAD}"], ["--map", "3,1,0,2", "--inventory", QUAD])
        same(["rank_memory=70GiB,15GiB,15GiB", "nproc_per_node=3", f"inventory={MIG}"],
             ["--rank-memory", "70GiB,15GiB,15GiB", "-n", "3", "--inventory", MIG])
        same(["mesh=dp=2,tp=-1", "nproc_per_node=4", "visibility=own-first", f"inventory={DGX}"],
             ["--mesh", "dp=2,tp=-1", "-n", "4", "--visibility", "own-first", "--inventory", DGX])
        same(["numa_binding=node", "surplus=share", "nproc_per_node=6", f"inventory={QUAD}"],
             ["--numa-binding", "node", "--surplus", "share", "-n", "6", "--inventory", QUAD])

    def test_of_scores_with_their_reasons(self):
        plan = self.assert_same(["policy=fastest", f"scores={SCORES}", "global_batch=128", f"inventory={WORKSTATION}"],
                                ["--policy", "fastest", "--scores", SCORES, "--global-batch", "128", "--inventory", WORKSTATION])
        self.assertEqual([rank["batch_share"] for rank in plan["ranks"]], [89, 39])
        self.assertIn("fastest: score 300, 1 of 2", plan["ranks"][0]["reason"])

    def test_of_a_plan_that_was_made_before(self):
        with open(f"{self.folder}/plan.json", "w", encoding="utf-8") as file:
            file.write(self.by_flags("--map", "2,0", "--inventory", QUAD).stdout)
        self.assert_same(["plan=plan.json", f"inventory={QUAD}"], ["--plan", "plan.json", "--inventory", QUAD])

    def test_of_a_function_over_the_machine(self):
        plan = json.loads(self.by_options("choose=last first", "nproc_per_node=3", f"inventory={DGX}").stdout)
        self.assertEqual([rank["device"]["index"] for rank in plan["ranks"]], [7, 6, 5])
        self.assertEqual(plan["policy"], "list")
        self.assert_fails(self.by_options("choose=short", "nproc_per_node=3", f"inventory={DGX}"), "expected 3 GPU indices", "got 2", code=2)
        self.assert_fails(self.by_options("choose=last first", "map=1,0", f"inventory={DGX}"), "expected a map or Request::choose, got both", code=2)
        self.assert_fails(self.by_options("choose=throws", "nproc_per_node=1", f"inventory={DGX}"), "no GPU is good enough")

    def test_the_table_is_the_same_too(self):
        told = self.start(OPTIONS_PROBE, "dry_run=1", f"inventory={DGX}")
        self.assertEqual(told.stdout, self.start(MUSTER, "plan", "--inventory", DGX).stdout)

    def assert_same_error(self, options, flags, **env):
        told, flagged = self.by_options(*options, **env), self.by_flags(*flags, **env)
        self.assertNotEqual(flagged.returncode, 0, flags)
        self.assertEqual(told.returncode, flagged.returncode, told.stderr + flagged.stderr)
        self.assertEqual(told.stdout, "")
        self.assertIn(flagged.stderr.removeprefix("muster run: ").strip(), told.stderr)

    def test_wrong_values_have_the_errors_of_the_flags(self):
        same = self.assert_same_error
        same(["nproc_per_node=9", f"inventory={DGX}"], ["-n", "9", "--inventory", DGX])
        same(["policy=best", f"inventory={DGX}"], ["--policy", "best", "--inventory", DGX])
        same(["gpus=0,x", f"inventory={DGX}"], ["--gpus", "0,x", "--inventory", DGX])
        same(["map=0,77", f"inventory={DGX}"], ["--map", "0,77", "--inventory", DGX])
        same([f"scores={SCORES}", "policy=numa", f"inventory={WORKSTATION}"],
             ["--scores", SCORES, "--policy", "numa", "--inventory", WORKSTATION])
        same(["rank_memory=900GiB", f"inventory={DGX}"], ["--rank-memory", "900GiB", "--inventory", DGX])
        same(["global_batch=3", f"inventory={DGX}"], ["--global-batch", "3", "--inventory", DGX])
        same(["mesh=dp=2,dp=2", f"inventory={DGX}"], ["--mesh", "dp=2,dp=2", "--inventory", DGX])
        same(["inventory=nowhere.json"], ["--inventory", "nowhere.json"])
        same(["max_restarts=-1"], ["--max-restarts", "-1"])
        same(["stopped_timeout=0"], ["--stopped-timeout", "0"])
        same(["collective_timeout=0"], ["--collective-timeout", "0"])
        same(["timeout=soon"], ["--timeout", "soon"])
        same(["wait=60000", "no_lease=1"], ["--wait=1m", "--no-lease"])
        same(["plan=plan.json", "gpus=0"], ["--plan", "plan.json", "--gpus", "0"])
        same(["env=RANK=7"], ["--env", "RANK=7"])
        same(["trace=all"], ["--trace=all"])
        same(["tee=9"], ["--tee", "9"])

    def test_wrong_values_that_no_flag_can_have(self):
        refused = lambda option, *parts: self.assert_fails(self.by_options(option), *parts, code=2)
        refused("nproc_per_node=0", "--nproc-per-node: expected at least 1 rank, got 0")
        refused("gpus_per_rank=0", "--gpus-per-rank")
        refused("global_batch=-1", "--global-batch: expected a number of samples, got -1")
        refused("cpu_slots=-1", "--cpu-slots: expected 1 or more, got -1")
        refused("signals_to_handle=15,9", "--signals-to-handle", "got '9'")
        refused("local_ranks_filter=-1", "--local-ranks-filter", "got '-1'")
        refused("shutdown_timeout=-1", "--shutdown-timeout")


class Jobs(ProgramTest):
    def job(self, *options, **env):
        return self.start(OPTIONS_PROBE, *options, **env)

    def assert_job(self, *options, **env):
        done = self.job(*options, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_what_the_ranks_have(self):
        os.mkdir(f"{self.folder}/below")
        done = self.assert_job("policy=fastest", f"scores={SCORES}", "global_batch=128", "mesh=dp=1,tp=2", f"inventory={WORKSTATION}",
                               "env=PROBE_VARIABLE=a=b", "env=PROBE_MESH=1", "workdir=below", "run_dir=here", "signals_to_handle=15,10",
                               "backend=gloo", "backtrace=0")
        self.assertIn("[0] rank 0 of 2 gpu 0 batch 89 mesh dp 0, tp 0 variable a=b signals SIGTERM,SIGUSR1 backend gloo in "
                      f"{self.folder}/below writes {self.folder}/here reason 'fastest: score 300, 1 of 2'", done.stdout)
        self.assertIn("[1] rank 1 of 2 gpu 1 batch 39 mesh dp 0, tp 1 ", done.stdout)
        self.assertIn("the machine above is simulated", done.stderr)
        self.assertTrue(os.path.exists(f"{self.folder}/here/plan.json"))

    def test_a_cpu_slot_is_no_gpu(self):
        done = self.assert_job("cpu_only=1", "nproc_per_node=2", "quiet=1")
        self.assertEqual(sorted(re.findall(r"rank \d of 2 gpu \w+ batch 0 mesh none", done.stdout)),
                         [f"rank {rank} of 2 gpu none batch 0 mesh none" for rank in range(2)])
        self.assertNotIn("CPU slot", done.stderr)  # quiet: no table

    def test_each_rank_has_the_gpu_that_the_function_chose(self):
        done = self.assert_job("choose=last first", "nproc_per_node=2", f"inventory={DGX}")
        self.assertIn("rank 0 of 2 gpu 7 ", done.stdout)
        self.assertIn("rank 1 of 2 gpu 6 ", done.stdout)
        self.assertIn("list: place 1 of what Request::choose gave", done.stderr)

    def test_restarts(self):
        self.assert_fails(self.job("nproc_per_node=2", "quiet=1", "fail once"), "as asked", code=1)
        again = self.assert_job("nproc_per_node=2", "max_restarts=1", "quiet=1", "fail once")
        self.assertEqual(sorted(re.findall(r"rank \d ends in attempt \d", again.stdout)),
                         ["rank 0 ends in attempt 1", "rank 1 ends in attempt 1"])

    def test_a_rank_is_replaced(self):
        done = self.assert_job("nproc_per_node=2", "on_failure=replace", "quiet=1", "fail once")
        self.assertIn("rank 1 ends in attempt 1", done.stdout)
        self.assertIn("a replacement is started, the others keep their processes (1 of 3 restarts)", done.stderr)

    def test_a_lost_rank_is_gone_on_without(self):
        done = self.assert_job("nproc_per_node=2", "on_failure=continue", "quiet=1", "lose one")
        self.assertIn("rank 0 goes on", done.stdout)
        self.assertIn("without 1 of its 2 ranks", done.stderr)
        # The environment comes before the options.
        self.assert_fails(self.job("nproc_per_node=2", "on_failure=continue", "quiet=1", "lose one", MUSTER_ON_FAILURE="end"), code=1)

    def test_time_limits(self):
        self.assert_fails(self.job("nproc_per_node=2", "timeout=2s", "quiet=1", "wait"), "the time limit of 2.0s (--timeout) is over", code=124)
        self.assert_fails(self.job("nproc_per_node=2", "collective_timeout=500", "quiet=1", "wait"), "rank 1", "500ms")
        self.assert_fails(self.job("nproc_per_node=2", "stopped_timeout=300", "quiet=1", "freeze"), "rank 1", "stopped for 300ms (--stopped-timeout)")

    def test_where_the_output_goes(self):
        done = self.assert_job("nproc_per_node=2", "run_dir=run", "redirects=1", "log_dir=logs", "quiet=1")
        self.assertEqual(done.stdout, "")
        files = {path.name: path for path in pathlib.Path(f"{self.folder}/logs").rglob("*.out")}
        self.assertEqual(sorted(files), ["0.out", "1.out"])
        self.assertIn("rank 1 of 2", files["1.out"].read_text(encoding="utf-8"))
        teed = self.assert_job("nproc_per_node=2", "run_dir=run2", "tee=1", "local_ranks_filter=1", "log_line_prefix_template=<${rank}> ", "quiet=1")
        self.assertRegex(teed.stdout, r"^<1> rank 1 of 2 [^\n]*\n$")
        self.assertEqual(len(list(pathlib.Path(f"{self.folder}/run2").rglob("*.out"))), 2)

    def test_a_trace(self):
        self.assert_job("nproc_per_node=2", "run_dir=run", "trace=1", "quiet=1")
        with open(f"{self.folder}/run/trace.json", encoding="utf-8") as file:
            self.assertTrue(json.load(file))


class OnGpus(ProgramTest):
    """Fake ones, which are this machine's as far as the launcher and LibTorch can see."""

    def gpus(self, cuda, **env):
        return {"MUSTER_NVML_LIBRARY": f"{BUILD}/lib/libfake_nvml.so", "FAKE_CUDA": cuda, "MUSTER_CUDA_LIBRARY": f"{BUILD}/lib/libfake_cuda.so",
                "FAKE_NVML": "version=570.1|uuid=GPU-a,name=A|uuid=GPU-b,name=B", "MUSTER_RUNTIME_DIR": self.folder, **env}

    def test_each_rank_sees_what_the_function_chose(self):
        done = self.start(OPTIONS_PROBE, "choose=last first", "nproc_per_node=2", "backend=gloo", **self.gpus("GPU-b,GPU-a"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 0 of 2 gpu 1 ", done.stdout)
        self.assertIn("rank 1 of 2 gpu 0 ", done.stdout)

    def test_leases(self):
        held = self.environment(**self.gpus("GPU-a"))
        with subprocess.Popen([MUSTER, "run", "-q", "--gpus", "0", "sh", "-c", "echo up; read end"], cwd=self.folder, env=held,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
            self.assertIn("up", job.stdout.readline())
            on_first = ["gpus=0", "backend=gloo", "quiet=1"]
            environment = self.environment(**self.gpus("GPU-a"))
            start = lambda *options: subprocess.run([OPTIONS_PROBE, *on_first, *options], cwd=self.folder, env=environment, capture_output=True,
                                                    text=True, timeout=120)
            self.assert_fails(start(), "GPU-a held by job", code=1)
            self.assert_fails(start("wait=100"), "GPU-a held by job", "100ms", code=1)
            shared = start("no_lease=1")
            self.assertEqual(shared.returncode, 0, shared.stderr)
            self.assertIn("rank 0 of 1 gpu 0 ", shared.stdout)
            job.communicate("\n", timeout=60)
        self.assertEqual(job.returncode, 0)

    def test_the_gpus_that_slurm_has_given(self):
        done = self.start(OPTIONS_PROBE, "dry_run=1", "json=1", **self.gpus("GPU-b", SLURM_STEP_GPUS=1))
        self.assertEqual([rank["device"]["index"] for rank in json.loads(done.stdout)["ranks"]], [1], done.stderr)
        self.assertIn("SLURM_STEP_GPUS='1' names fewer GPUs", done.stderr)


class UnderALauncher(ProgramTest):
    def test_its_flags_win_and_each_option_that_is_not_used_is_named(self):
        value = {"nproc_per_node": "3", "map": "0", "scores": SCORES, "rank_memory": "1GiB", "global_batch": "9", "mesh": "dp=3",
                 "surplus": "drop", "visibility": "all", "numa_binding": "node", "wait": "1", "env": "A=b", "timeout": "1s", "max_restarts": "1",
                 "on_failure": "replace", "collective_timeout": "600000", "stopped_timeout": "1", "shutdown_timeout": "1",
                 "signals_to_handle": "10", "redirects": "3", "tee": "3", "local_ranks_filter": "1", "gpus_per_rank": "2", "cpu_slots": "7",
                 "backend": "gloo"}
        options = [f"{name}={value.get(name, '1')}" for name in members()]
        done = self.run_muster("-n", "2", "--quiet", "--mesh", "dp=2", "--global-batch", "10", "--inventory", WORKSTATION, "--env", "PROBE_MESH=1",
                               OPTIONS_PROBE, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        warning = re.findall(r"warning: (RunOptions::.*) are not used: muster has started the ranks; give it the flags", done.stderr)
        self.assertEqual(len(warning), 1, done.stderr)
        named = [name.removeprefix("RunOptions::") for name in warning[0].split(", ")]
        self.assertEqual(sorted(named), sorted(set(members()) - FOLLOWED | {"mesh", "global_batch"}))
        self.assertIn("rank 0 of 2 gpu 0 batch 5 mesh dp 0 ", done.stdout)
        self.assertIn(" backend gloo ", done.stdout)

    def test_the_mesh_and_the_global_batch_hold_where_it_has_none(self):
        done = self.run_muster("-n", "2", "--quiet", "--inventory", WORKSTATION, "--env", "PROBE_MESH=1", OPTIONS_PROBE, "mesh=dp=1,tp=-1",
                               "global_batch=9", "nproc_per_node=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("RunOptions", done.stderr)
        self.assertIn("rank 0 of 2 gpu 0 batch 5 mesh dp 0, tp 0 ", done.stdout)
        self.assertIn("rank 1 of 2 gpu 1 batch 4 mesh dp 0, tp 1 ", done.stdout)
        self.assert_fails(self.run_muster("-n", "2", "--quiet", OPTIONS_PROBE, "mesh=dp=3"), "the 2 ranks there are", code=1)

    def test_a_launcher_without_a_plan(self):
        """As torchrun starts a rank."""
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # bound and never listening: rank 0 may listen there
            held.bind(("127.0.0.1", 0))
            done = self.start(OPTIONS_PROBE, "mesh=dp=-1", "global_batch=9", "surplus=cpu", "max_restarts=1", RANK=0, WORLD_SIZE=1, LOCAL_RANK=0,
                              LOCAL_WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=held.getsockname()[1], PROBE_MESH=1,
                              CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rank 0 of 1 gpu none batch 9 mesh dp 0 ", done.stdout)
        self.assertRegex(done.stderr, "warning: RunOptions::max_restarts is not used: .* has started the ranks")

    def test_a_wrong_time_is_an_error_in_a_rank_too(self):
        self.assert_fails(self.run_muster("-n", "1", "--quiet", OPTIONS_PROBE, "collective_timeout=0"),
                          "--collective-timeout: expected a time above 0")


class Names(ProgramTest):
    def test_the_probe_knows_every_option(self):
        done = self.start(OPTIONS_PROBE, "names")
        self.assertEqual(sorted(done.stdout.split()), sorted(members()))


if __name__ == "__main__":
    unittest.main()
