"""muster.init() and what comes with it, in ranks that are started in each way that there is."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from module_test import BUILD, HERE, MODULE, PYTHON, ForkingTest, environment


class ContextTest(ForkingTest):
    def ranks(self, places, *argv):
        """What ranks say with these variables."""
        outputs = [f"{self.folder}/output.{rank}" for rank in range(len(places))]
        codes = self.server.run([{"argv": [str(HERE / "context.py"), *argv], "environment": place, "folder": self.folder, "output": output}
                                 for place, output in zip(places, outputs)])
        return codes, "".join(pathlib.Path(output).read_text() for output in outputs)

    def launch(self, *flags, argv, code=0, **more):
        done = subprocess.run([f"{BUILD}/bin/muster", "run", "--run-dir", f"{self.folder}/run", *flags, HERE / "context.py", *argv], cwd=self.folder,
                              env=environment(**more), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr


class Context(ContextTest):
    def test_alone_it_is_a_world_of_one(self):
        for what in "meet", "interrupt", "again":
            codes, said = self.ranks([{}], what)
            self.assertEqual(codes, [0], said)
            self.assert_all_ok(1, said)

    def test_ranks_that_somebody_started(self):
        codes, said = self.ranks(self.places(3), "meet")
        self.assertEqual(codes, [0, 0, 0], said)
        self.assert_all_ok(3, said)
        self.assertIn("local 2 of 3, muster, None", said)

    def test_ranks_that_are_told_no_local_rank_find_it(self):
        places = [{name: value for name, value in place.items() if name != "LOCAL_RANK"} for place in self.places(3)]
        for place, host in zip(places, "aba"):
            place["MUSTER_HOST_ID"] = host
        codes, said = self.ranks(places, "meet")
        self.assertEqual(codes, [0, 0, 0], said)
        for rank, local in enumerate(("0 of 2", "0 of 1", "1 of 2")):
            self.assertIn(f"rank {rank} of 3: ok, local {local}", said)

    def test_ranks_of_mpirun_meet_without_an_address(self):
        places = [{"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                   "PMIX_NAMESPACE": f"test-{os.getpid()}", "MUSTER_RUNTIME_DIR": self.folder} for rank in range(2)]
        codes, said = self.ranks(places, "meet")
        self.assertEqual(codes, [0, 0], said)
        self.assert_all_ok(2, said)

    def test_a_group_that_the_program_has_made_is_taken(self):
        codes, said = self.ranks(self.places(2), "taken")
        self.assertEqual(codes, [0, 0], said)
        self.assertIn("rank 1 of 2: ok, local 1 of 2, gloo", said)

    def test_what_a_group_does_not_have_is_refused(self):
        codes, said = self.ranks([{}], "ask others")
        self.assertEqual(codes, [0], said)
        self.assert_all_ok(1, said)

    def test_a_limit_holds_for_the_programs_own_groups(self):
        for how, more in ("init", {}), ("launcher", {"MUSTER_COLLECTIVE_TIMEOUT": "300ms"}):
            codes, said = self.ranks([{**place, **more} for place in self.places(2)], "limits", how)
            self.assertEqual(codes, [0, 0], said)
            self.assert_all_ok(2, said)

    def test_two_worlds_of_one_are_said(self):
        codes, said = self.ranks(self.places(2), "worlds of one")
        self.assertEqual(codes, [0, 0], said)
        for rank in range(2):
            self.assertIn(f"got rank 0 of 1 from the program and rank {rank} of 2 from torchrun; leave init_process_group out", said)
            self.assertIn(f"[rank {rank}] warning: process group: expected the 2 ranks that were started, got a group of 1;", said)

    def test_ranks_that_do_not_come_are_an_error(self):
        first = self.places(2)[0]
        _, said = self.ranks([first], "lonely")
        self.assertRegex(said, r"timeout: muster.init: expected 2 ranks to meet within 0:00:01, got: .*\(rank 0\); see whether all of them run")
        del first["MASTER_PORT"]
        _, said = self.ranks([first], "lonely")
        self.assertIn("failed_precondition: muster.init: expected MASTER_ADDR and MASTER_PORT for 2 ranks, got '127.0.0.1' and 0 (rank 0); set them", said)

    def test_all_stop_after_the_same_step_when_one_is_asked(self):
        codes, said = self.ranks(self.places(2), "stop")
        self.assertEqual(codes, [75, 75], said)
        steps = re.findall(r"rank \d: stops in step (\d+)", said)
        self.assertEqual((len(steps), len(set(steps))), (2, 1), said)
        self.assertEqual(said.count("[rank 0] info: SIGTERM: the ranks stop after this step"), 1, said)

    def test_ranks_close_and_begin_anew(self):
        codes, said = self.ranks(self.places(2), "rounds")
        self.assertEqual(codes, [0, 0], said)
        self.assert_all_ok(2, said)

    def test_names_that_differ_are_an_error_on_every_rank(self):
        codes, said = self.ranks(self.places(2), "mix")
        self.assertEqual(codes, [0, 0], said)
        self.assert_all_ok(2, said)

    def test_without_muster_torch_the_error_names_the_command(self):
        only = pathlib.Path(self.folder, "only")
        only.mkdir()
        for name in "muster", "_muster_autoload.py", *[path.name for path in pathlib.Path(MODULE).glob("muster-*.dist-info")]:
            (only / name).symlink_to(pathlib.Path(MODULE, name))
        done = subprocess.run([PYTHON, HERE / "context.py", "no backend"], cwd=self.folder, env=environment(PYTHONPATH=str(only)), capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("rank 0 of 1 on cpu> gloo", done.stdout)


class UnderTheLauncher(ContextTest):
    def test_ranks_of_torchrun(self):
        self.assert_all_ok(2, self.launched(PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", HERE / "context.py", "meet"))

    def test_a_simulated_machine_has_ranks_on_the_cpu(self):
        gpus = [{"index": index, "uuid": f"GPU-{index}", "model": "NVIDIA A100", "memory_total_bytes": 1 << 30} for index in range(2)]
        box = pathlib.Path(self.folder, "box.json")
        box.write_text(json.dumps({"schema": "muster.devices/1", "hosts": [{"name": "box", "gpus": gpus}]}))
        self.assert_all_ok(2, self.launch("--inventory", box, argv=["meet"]))

    def test_ranks_have_their_share_and_their_metrics(self):
        said = self.launch("-n", "2", "--global-batch", "5", argv=["meet"])
        self.assert_all_ok(2, said)
        self.assertIn("rank 0 of 2: ok, local 0 of 2, muster, 3", said)
        line, = [json.loads(line) for line in pathlib.Path(self.folder, "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual((line["step"], line["loss"], line["top1"]), (1, 0.5, 0.5))
        self.assertAlmostEqual(sum(share for name, share in line.items() if name.startswith("time/")), 1)

    def test_unequal_shares_are_parts_of_one_global_batch(self):
        self.assert_all_ok(2, self.launch("-n", "2", "--global-batch", "5", argv=["shares"]))

    def test_the_time_of_a_loader_is_seen(self):
        said = self.launch("-n", "1", argv=["load"])
        self.assertRegex(said, r"time of 25 steps on 1 rank: .*data [1-9]\d* %, checkpoint [1-9]\d* %")
        self.assertTrue(list(pathlib.Path(self.folder, "run").glob("events.out.tfevents.*")))

    def test_a_job_that_is_asked_to_stop_ends_with_75(self):
        job = subprocess.Popen([f"{BUILD}/bin/muster", "run", "--quiet", "-n", "2", HERE / "context.py", "wait"], cwd=self.folder, env=environment(), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with job:
            for _ in range(2):
                self.assertIn("ready", job.stdout.readline())
            job.send_signal(signal.SIGTERM)
            _, said = job.communicate(timeout=60)
        self.assertEqual(job.returncode, 75, said)

    def test_a_rank_that_is_slow_to_leave_has_stopped_too(self):
        self.launch("-n", "2", "--max-restarts", "1", argv=["stop slowly"], code=75)
        self.assertFalse(pathlib.Path(self.folder, "run/failure.json").exists())


if __name__ == "__main__":
    if not os.path.isdir(f"{MODULE}/muster"):
        print("skipped: the Python module was not built, see the test python.module")
        sys.exit(77)
    unittest.main()
