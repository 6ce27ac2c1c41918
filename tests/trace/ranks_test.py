"""What activity files say of ranks that run: trained, killed, hanging; over each backend."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "run"))
from program_case import BUILD, ProgramTest

TRACE_PROBE = f"{BUILD}/tests/trace_probe"


class Activity(ProgramTest):
    def facts(self):
        done = subprocess.run([TRACE_PROBE, "read", f"{self.folder}/run"], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    def calls(self, rank):
        return [line.split(" call ", 1)[1] for line in self.facts() if line.startswith(f"rank {rank} call ")]

    def times(self, rank):
        return {category: int(ns) for category, ns in re.findall(rf"^rank {rank} time (\w+) (\d+)$", "\n".join(self.facts()), re.M)}

    def test_training_is_told(self):
        done = self.run_muster("-q", "--nproc-per-node", "2", TRACE_PROBE, "train", MUSTER_BACKEND="shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        facts = self.facts()
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 step 8 samples 32 has loss closed", facts)
            times = self.times(rank)
            for category in ("compute", "communication", "data", "checkpoint"):
                self.assertGreater(times[category], 0, category)
            calls = self.calls(rank)
            buckets = [call for call in calls if " all_reduce " in call and "f32[18]" in call]
            self.assertGreaterEqual(len(buckets), 8, calls)  # DistributedDataParallel's
            self.assertTrue(all(call.startswith("[world] ") and call.endswith(" f32[18] bytes 72 ended") for call in buckets), buckets)
        self.assertEqual(self.calls(0), self.calls(1))
        launch = json.loads(pathlib.Path(self.folder, "run/run.json").read_text())["launches"][-1]
        self.assertRegex(launch["libtorch"], r"^2\.\d+\.\d+")
        self.assertEqual((launch["backend"], len(launch["device_names"])), ("shm", 1))

    def test_buckets_over_gloo_are_told(self):
        done = self.run_muster("-q", "--nproc-per-node", "2", TRACE_PROBE, "train", MUSTER_BACKEND="gloo")
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank in range(2):
            buckets = [call for call in self.calls(rank) if "[world gradients]" in call]
            self.assertEqual(buckets, [f"[world gradients] all_reduce #{step} f32[18] bytes 72 ended" for step in range(1, 9)])

    def test_a_killed_rank_has_said_what_it_was_in(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                done = self.run_muster("-q", "--nproc-per-node", "3", "--collective-timeout", "2s", TRACE_PROBE, "stay away", MUSTER_BACKEND=backend)
                self.assertNotEqual(done.returncode, 0)
                facts = self.facts()
                self.assertIn("rank 2 in tokenize", facts)
                first = 1 if backend == "shm" else 0
                self.assertRegex(self.calls(2)[-1], rf"^\[world\] all_reduce #{first + 1} f32\[1000\] bytes 4000 ended$")
                self.assertRegex(self.calls(0)[-1], rf"^\[world\] all_reduce #{first + 2} f32\[1000\] bytes 4000 failed$")

    def test_a_late_rank_is_described_with_its_stack(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                done = self.run_muster("-q", "--nproc-per-node", "3", "--collective-timeout", "12s", TRACE_PROBE, "stay away", MUSTER_BACKEND=backend)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, r"\[rank 0\] warning: rank 2: in tokenize for 3\.\d+s; last all_reduce #[12] f32\[1000\], ended 3\.\d+s ago; "
                                              r"its stack, innermost call first:")
                self.assertEqual(done.stderr.count("rank 2: in tokenize"), 1, done.stderr)  # once a wait
                self.assertRegex(done.stderr, r"  apart     rank 2 left the common path first: it never began all_reduce #[23] f32\[1000\] of world, "
                                              r"which rank\(s\) 0, 1 began; it was in tokenize; last all_reduce #[12] f32\[1000\]\n")
                failure = json.loads(pathlib.Path(self.folder, "run/failure.json").read_text())
                self.assertEqual([(d["kind"], d["ranks"], d["others"]) for d in failure["divergences"]], [("never_began", [2], [0, 1])])
                stack = done.stderr.split("innermost call first:\n", 1)[1]
                self.assertIn("stay_away(muster::Context&)", stack)
                self.assertRegex(stack, r"#\d+ muster::run\(.*\n.*#\d+ main \(trace_probe\+0x\w+\)\n")

    def test_a_rank_of_another_program_gets_no_signal(self):
        """Its handler is its own: nothing is sent, and it lives."""
        done = self.run_muster("-q", "--nproc-per-node", "2", "--collective-timeout", "4s", TRACE_PROBE, "stay away", MUSTER_BACKEND="shm", MUSTER_BACKTRACE=0)
        self.assertIn("rank 1: in tokenize for ", done.stderr)
        self.assertNotIn("its stack", done.stderr)
        self.assertIn("missing rank(s) 1", done.stderr)

    def test_messages_and_groups_of_some_ranks(self):
        for backend in ("shm", "gloo"):
            with self.subTest(backend):
                done = self.run_muster("-q", "--nproc-per-node", "3", TRACE_PROBE, "messages", MUSTER_BACKEND=backend)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("[ranks 0,1] send to 1 tag 7 f32[2, 3] bytes 24 ended", self.calls(0))
                self.assertIn("[ranks 0,1] recv from 0 tag 7 f32[2, 3] bytes 24 ended", self.calls(1))
                self.assertIn(f"[ranks 0,1] all_reduce #{1 if backend == 'shm' else 0} f32[2, 3] bytes 24 ended", self.calls(1))
                self.assertFalse(any("[ranks 0,1]" in call for call in self.calls(2)))

    def test_a_disk_without_room_is_said_once_and_no_error(self):
        blocked = pathlib.Path(self.folder, "run", "activity")
        blocked.parent.mkdir()
        blocked.write_text("in the way")
        done = self.run_muster("-q", "--nproc-per-node", "2", TRACE_PROBE, "messages", MUSTER_BACKEND="shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("goes on without telling what it does"), 2, done.stderr)


class Breakdown(ProgramTest):
    def test_the_slow_rank_is_named_at_the_end(self):
        done = self.run_muster("--nproc-per-node", "3", "--cpu-slots", "3", TRACE_PROBE, "slow", MUSTER_BACKEND="shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"info: time of 25 steps on 3 ranks: compute \d+ %, communication \d+ %, data 0 %, checkpoint 0 %, other \d+ %")
        self.assertRegex(done.stderr, r"info: the others wait for rank 1 \(host \S+, cpu:1\): [\d.]+ ?ms a step longer than the median rank, computing")
        table = [line.split("info: ")[-1].split() for line in done.stderr.splitlines() if re.search(r"info: +(rank  host|\d+  )", line)]
        self.assertEqual([row[0] for row in table], ["rank", "1", *sorted(["0", "2"], key=[row[0] for row in table].index)], done.stderr)
        numbers = json.loads(pathlib.Path(self.folder, "run/breakdown.json").read_text())
        self.assertEqual((numbers["straggler"]["rank"], numbers["straggler"]["in"], len(numbers["ranks"])), (1, "compute", 3))
        self.assertAlmostEqual(sum(numbers["shares"].values()), 1)
        lines = [json.loads(line) for line in pathlib.Path(self.folder, "run/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line.pop("step") for line in lines], [5, 10, 15, 20])
        for line in lines:  # rank 1 computes, the others wait for it: for 7 of 8 ms
            self.assertEqual(set(line), {f"time/{category}" for category in numbers["shares"]})
            self.assertAlmostEqual(sum(line.values()), 1)
            self.assertGreater(line["time/communication"], line["time/data"])
            self.assertGreater(line["time/compute"], 0)
        events = next(pathlib.Path(self.folder, "run").glob("events.out.tfevents.*")).read_bytes()
        self.assertEqual(events.count(b"time/compute"), 4)

    def test_a_job_of_few_steps_says_nothing(self):
        done = self.run_muster("--nproc-per-node", "2", TRACE_PROBE, "steps", MUSTER_BACKEND="shm")
        self.assertNotIn("time of", done.stderr)
        self.assertFalse(pathlib.Path(self.folder, "run/breakdown.json").exists())


class Trace(ProgramTest):
    def traced(self, *argv, what="steps", **env):
        done = self.run_muster("-q", "--nproc-per-node", "3", *argv, TRACE_PROBE, what, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads(pathlib.Path(self.folder, "run/trace.json").read_text())
        self.assertFalse(pathlib.Path(self.folder, "run/trace").exists(), "the ranks' own files are in it")
        return done, trace["traceEvents"]

    def spans(self, events, rank, name):
        return [event for event in events if event["ph"] == "X" and event["pid"] == rank and event["name"] == name]

    def test_all_ranks_on_one_clock(self):
        done, events = self.traced("--trace", MUSTER_BACKEND="shm")
        self.assertRegex(done.stderr, r"trace: \S+/run/trace\.json, \d+ events of 3 ranks; open it at ui\.perfetto\.dev")
        self.assertEqual({event["pid"] for event in events}, {0, 1, 2})
        for rank in range(3):
            self.assertEqual(len(self.spans(events, rank, "step")), 10)
        # Every rank is within the sum of all, at one time: they leave no step before the last has come to it.
        for steps in zip(*(self.spans(events, rank, "step") for rank in range(3))):
            self.assertLess(max(step["ts"] for step in steps), min(step["ts"] + step["dur"] for step in steps))
        begins = [event for event in events if event["ph"] == "b" and event["name"] == "all_reduce" and event["args"]["what"].startswith("f32[4] #")]
        ends = {(event["pid"], event["id2"]["local"]): event["ts"] for event in events if event["ph"] == "e"}
        self.assertEqual(len(begins), 30)
        self.assertTrue(all(ends[event["pid"], event["id2"]["local"]] >= event["ts"] for event in begins))

    def test_training_has_its_parts(self):
        _, events = self.traced("--trace=operators", what="train", MUSTER_BACKEND="gloo")
        for rank in range(3):
            names = {event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank}
            self.assertLessEqual({"step", "forward", "backward", "gradients", "optimizer", "data wait", "checkpoint", "aten::addmm"}, names)
            self.assertEqual(len(self.spans(events, rank, "tokenize")), len(self.spans(events, rank, "step")), "the program's own")
            buckets = [event for event in events if event["ph"] == "b" and event["pid"] == rank and event["args"]["what"].endswith(" world gradients")]
            self.assertEqual(len(buckets), len(self.spans(events, rank, "step")))
            steps = len(self.spans(events, rank, "step"))
            self.assertEqual(len(self.spans(events, rank, "aten::cross_entropy_loss")), steps - 2)  # there are fewer than 7

    def test_a_program_begins_it_when_it_likes(self):
        for backend in ("shm", "gloo"):
            _, events = self.traced(what="trace later", MUSTER_BACKEND=backend)
            self.assertEqual([len(self.spans(events, rank, "step")) for rank in range(3)], [5, 5, 5])
        done = self.run_muster("-q", "--nproc-per-node", "2", "sh", "-c", f"env -u MUSTER_RUN_DIR {TRACE_PROBE} 'trace later'")
        self.assert_fails(done, "trace: expected a run folder to write to, got none", "muster run")

    def test_other_hosts_clocks_are_measured(self):
        os.symlink(TRACE_PROBE, f"{self.folder}/probe")
        done = self.run_muster("-q", "--nproc-per-node", "3", "--trace", "sh", "-c", "MUSTER_HOST_ID=host$((RANK / 2)) exec ./probe steps")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"3 ranks; clocks of other hosts to within [\d.]+(us|µs|ms|ns)")

    def test_without_the_flag_there_is_none(self):
        done = self.run_muster("-q", "--nproc-per-node", "2", TRACE_PROBE, "steps")
        self.assertNotIn("trace:", done.stderr)
        self.assertFalse(pathlib.Path(self.folder, "run/trace.json").exists())

    def test_wrong_words_are_refused(self):
        self.assert_fails(self.run_muster("--trace=all", TRACE_PROBE, "steps"), "--trace", "operators", "all", code=2)
        self.assert_fails(self.run_muster(TRACE_PROBE, "steps", MUSTER_TRACE="all"), "MUSTER_TRACE", "operators", "all", code=2)


if __name__ == "__main__":
    unittest.main()
