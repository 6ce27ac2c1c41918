"""`muster bench`: what it prints and leaves behind."""
import json
import os
import subprocess
import sys
import unittest

from program_case import MUSTER, PYTHON, ProgramTest
from long import long


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
        self.assertIn("measuring", self.bench("--cpu", "--again", "--dtype", "bfloat16").stderr)

    @long
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
        spec = f"{self.folder}/t.toml"
        with open(spec, "w", encoding="utf-8") as file:
            file.write('[[task]]\nname = "on"\nargv = ["true"]\nneeds = { gpus = 1 }\non = "fastest:1"\n')
        tasks = [MUSTER, "tasks", "--dry-run", "--json", "--inventory", inventory]
        self.assert_fails(self.start(*tasks, spec, XDG_CACHE_HOME=f"{self.folder}/none"), "muster bench device")
        for more in ([spec], ["--gpus", "fastest:1", "--need-gpus", "1", "--sweep", "x=1", "--", "true", "{x}"]):
            first = json.loads(self.start(*tasks, *more, XDG_CACHE_HOME=self.folder).stdout)
            self.assertEqual([task["gpus"] for task in first["starts"]], [[1]], more)

    def test_collectives_are_timed_and_right(self):
        done = self.start(MUSTER, "bench", "collectives", "--op", "all_to_all", "--min", "64", "--max", "64K", "--factor", "1024",
                          "--seconds", "0.01", "--json", "--svg", f"{self.folder}/all_to_all.svg")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = json.loads(done.stdout)
        self.assertEqual(table["schema"], "muster.bench_collectives/1")
        self.assertEqual([(row["backend"], row["bytes"], row["wrong"]) for row in table["rows"]],
                         [(backend, size, 0) for size in (64, 65536) for backend in ("gloo", "shm", "shm-in-place")])
        self.assertTrue(all(row["us"] > 0 and row["busbw"] > 0 for row in table["rows"]))
        with open(f"{self.folder}/all_to_all.svg", encoding="utf-8") as svg:
            self.assertIn("shm-in-place</text>", svg.read())
        shown = self.start(MUSTER, "bench", "collectives", "--backends", "shm", "--max", "4", "--seconds", "0.01")
        self.assertRegex(shown.stdout, r"bytes +count +type +backend +us +algbw +busbw +wrong")
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--op", "all_reduse"), "got 'all_reduse'", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--backends", "tcp"), "got 'tcp'", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--min", "1M", "--max", "4"), "--min", code=2)

    def test_a_training_step_is_timed(self):
        done = self.start(MUSTER, "bench", "ddp", "--batch", "1", "--steps", "1", "--rounds", "1", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["schema"], "muster.bench_ddp/2")
        self.assertEqual(sorted(found["ms"]), ["gloo", "gloo-copied", "none", "shm", "shm-copied"])
        self.assertTrue(all(ms > 0 for ms in found["ms"].values()))
        for ratios in (found["ratios"], found["processor_ratios"]):
            self.assertEqual(sorted(ratios), ["gloo", "gloo-copied", "shm", "shm-copied"])
            for ratio in ratios.values():
                self.assertEqual(ratio["to"], "none")
                self.assertTrue(0 < ratio["low"] <= ratio["median"] <= ratio["high"], ratio)
        self.assert_fails(self.start(MUSTER, "bench", "ddp", "--model", "vgg"), "got 'vgg'", code=2)

    def test_ratios_of_a_step_are_those_of_turns(self):
        done = self.start(MUSTER, "bench", "ddp", "--batch", "1", "--steps", "2", "--rounds", "1", "--kinds", "shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("kinds take turns step by step", done.stdout)
        self.assertRegex(done.stdout, r"none +[\d.]+\n")
        self.assertRegex(done.stdout, r"shm +[\d.]+ +-?[\d.]+( +[\d.]+ \([\d.]+-[\d.]+\)){2}\n$")
        self.assert_fails(self.start(MUSTER, "bench", "ddp", "--kinds", "shmem"), "got 'shmem'", "shm-copied", code=2)
        for kind in "shm:inf", "shm:nan", "shm:1e300", "shm:0", "shm:-4":
            self.assert_fails(self.start(MUSTER, "bench", "ddp", "--kinds", kind), f"got '{kind}'", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "collectives", "--seconds", "nan"), "--seconds: Value nan not in range [0.001 - 600]", code=2)

    @long
    def test_a_step_by_pythons_ddp_is_timed_beside(self):
        if not PYTHON:
            self.skipTest("no Python with this LibTorch's torch")
        done = self.start(MUSTER, "bench", "ddp", "--batch", "1", "--steps", "1", "--rounds", "1", "--python", PYTHON, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertLessEqual({"python-none", "python-gloo", "python-gloo-copied", "none", "shm"}, set(found["ms"]))
        self.assertEqual(found["ratios"]["python-gloo"]["to"], "python-none")
        self.assertEqual(found["ratios"]["shm"]["to"], "none")

    def test_wrong_input(self):
        self.assert_fails(self.start(MUSTER, "bench"), "expected device, collectives or ddp, got none", code=2)
        self.assert_fails(self.start(MUSTER, "bench", "devise"), "got 'devise'; did you mean 'device'?", code=2)
        self.assert_fails(self.bench("--dtype", "int8", "--cpu"), "int8", "bfloat16", code=2)
        self.assert_fails(self.bench("--gpus", "0", CUDA_VISIBLE_DEVICES=""), "GPU", code=1)
        self.assert_fails(self.bench("--cpuslots", "1"), "got '--cpuslots'; did you mean '--cpu-slots'?", code=2)
        self.assert_fails(self.bench("--gpus", "0-"), "0-", code=2)

if __name__ == "__main__":
    unittest.main(argv=sys.argv)
