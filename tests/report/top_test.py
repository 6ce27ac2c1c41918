"""`muster top`: the ranks of running and of ended jobs, as a table, JSON, Prometheus' text, and on a terminal.

    top_test.py MUSTER REPORT_EXAMPLE FAKE_NVML
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

MUSTER = ""
EXAMPLE = ""
NVML = ""
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


class Top(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name).resolve()
        (self.folder / "runtime").mkdir(mode=0o700)
        self.env = dict(os.environ, MUSTER_RUNTIME_DIR=str(self.folder / "runtime"), CUDA_VISIBLE_DEVICES="", TERM="xterm")

    def muster(self, *arguments, code=0):
        done = subprocess.run([MUSTER, *arguments], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def start(self, script, ranks=2, run_dir="run"):
        job = subprocess.Popen([MUSTER, "run", "-q", "-n", str(ranks), "--run-dir", run_dir, "sh", "-c", script],
                               cwd=self.folder, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(job.wait)
        self.addCleanup(lambda: job.poll() is None and job.terminate())
        return job

    def sample(self, *target):
        return json.loads(self.muster("top", *target, "--json").stdout)

    def wait_for(self, condition, *target):
        """The first sample that the condition holds of."""
        deadline = time.monotonic() + 40
        while True:
            if self.sample_exists(*target):
                view = self.sample(*target)
                if condition(view):
                    return view
            self.assertLess(time.monotonic(), deadline, "it never came to that")

    def sample_exists(self, *target):
        done = subprocess.run([MUSTER, "top", *target, "--json"], cwd=self.folder, env=self.env, capture_output=True, check=False)
        return done.returncode == 0

    @staticmethod
    def states(view):
        return [rank["state"] for rank in view["ranks"]]

    def test_a_running_job(self):
        job = self.start(f'if [ $RANK = 0 ]; then {UNTIL_GO}; else until [ -e go ]; do :; done; fi; exit $((RANK * 3))')
        view = self.wait_for(lambda view: self.states(view) == ["running", "running"])
        self.assertEqual((view["schema"], view["run_dir"], view["running"]),
                         ("muster.top/1", str(self.folder / "run"), True))
        busy = self.wait_for(lambda view: view["ranks"][1]["cpu_percent"] > 10 > view["ranks"][0]["cpu_percent"])
        self.assertGreater(busy["ranks"][1]["memory_bytes"], 1 << 16)
        os.kill(view["ranks"][0]["pid"], signal.SIGSTOP)
        self.wait_for(lambda view: self.states(view) == ["stopped", "running"], view["id"][:6])
        os.kill(view["ranks"][0]["pid"], signal.SIGCONT)
        table = self.muster("top", "--once", "run").stdout
        self.assertRegex(table.splitlines()[1], r"^rank +host +device +state +CPU +memory$")
        self.assertRegex(table.splitlines()[3], r"^ +1 +\S+ +cpu:1 +running +\d+% +")
        (self.folder / "go").touch()
        self.assertEqual(job.wait(timeout=60), 3)
        ended = self.sample("run")
        self.assertEqual((ended["running"], ended["outcome"]), (False, "failed"))
        self.assertEqual(ended["ranks"][1]["state"], "failed")
        self.assertIn("none; muster top RUN_DIR shows how one ended", self.muster("top", code=1).stderr)

    def test_it_ends_with_the_job(self):
        self.start(UNTIL_GO)
        self.wait_for(lambda view: self.states(view) == ["running", "running"])
        watcher = subprocess.Popen([MUSTER, "top", "--interval", "100ms"], cwd=self.folder, env=self.env,
                                   stdout=subprocess.PIPE, text=True)
        self.assertIn("2 ranks, for", watcher.stdout.readline())
        (self.folder / "go").touch()
        said, _ = watcher.communicate(timeout=60)
        self.assertEqual(watcher.returncode, 0)
        self.assertIn(": done, took", said)
        self.assertEqual(re.findall(r"cpu:\d +(\w+)$", said, re.MULTILINE)[-2:], ["ended", "ended"])

    def on_terminal(self, react):
        """What `muster top` says on a terminal, its exit code, and whether the terminal is as it was."""
        master, slave = pty.openpty()
        before = termios.tcgetattr(slave)
        process = subprocess.Popen([MUSTER, "top", "--interval", "100ms"], stdin=slave, stdout=slave, stderr=slave,
                                   cwd=self.folder, env=self.env, start_new_session=True)
        seen = ""
        reacted = False
        while process.poll() is None:
            if not select.select([master], [], [], 0.05)[0]:
                continue
            seen += os.read(master, 65536).decode(errors="replace")
            if "q: quit" in seen and not reacted:
                reacted = True
                self.assertFalse(termios.tcgetattr(slave)[3] & termios.ECHO)
                react(process, master)
        self.assertEqual(termios.tcgetattr(slave), before)
        while select.select([master], [], [], 0)[0]:
            seen += os.read(master, 65536).decode(errors="replace")
        os.close(master)
        os.close(slave)
        self.assertEqual(process.returncode, 0, seen)
        self.assertEqual((seen.count("\033[?1049h"), seen.count("\033[?1049l")), (1, 1), "the other screen")
        self.assertIn("2 ranks", seen.split("\033[?1049l")[1], "the last table stays")
        return seen

    def test_on_a_terminal(self):
        self.start(UNTIL_GO)
        self.wait_for(lambda view: self.states(view) == ["running", "running"])
        self.on_terminal(lambda process, master: os.write(master, b"xq"))
        self.on_terminal(lambda process, master: os.write(master, b"\x03") and process.send_signal(signal.SIGINT))
        self.on_terminal(lambda process, master: process.terminate())
        seen = self.on_terminal(lambda process, master: (self.folder / "go").touch())
        self.assertIn(": done, took", seen.split("\033[?1049l")[1])

    def test_what_the_ranks_have_written(self):
        subprocess.run([EXAMPLE, self.folder / "run", "fails"], check=True)
        view = self.sample("run")
        rank = view["ranks"][4]
        self.assertEqual((rank["step"], rank["state"], rank["device"]), (5000, "ended by muster", "GPU 0"))
        self.assertAlmostEqual(rank["seconds_per_step"], 0.08)
        self.assertEqual(rank["doing"], "step > backward > all_gather #3000 f32[512, 1024]")
        self.assertEqual(rank["last_call"], "all_reduce #2999 f32[512, 1024]")
        self.assertEqual(view["ranks"][5]["state"], "failed")
        table = self.muster("top", "run").stdout
        self.assertIn("step > backward > all_gather #3000", table)
        self.assertNotIn("GPU memory", table, "columns that say nothing are left out")
        for number in range(4, 8):
            (self.folder / f"run/activity/2/{number}").unlink()
        (self.folder / "run/run.json").unlink()
        self.assertIn("the ranks of n1 cannot be seen from here", self.muster("top", "run").stdout)
        self.assertEqual(self.sample("run")["unseen_hosts"], ["n1"])

    def test_prometheus(self):
        subprocess.run([EXAMPLE, self.folder / "run"], check=True)
        plan = self.folder / "run/plan.json"
        plan.write_text(plan.read_text(encoding="utf-8").replace('"host":"n1"', '"host":"a\\"b\\\\c"'), encoding="utf-8")
        text = self.muster("top", "run", "--prometheus").stdout
        names = set()
        for line in text.splitlines():
            if line.startswith("#"):
                self.assertRegex(line, r"^# (HELP|TYPE) muster_rank_\w+ .")
                continue
            self.assertRegex(line, r'^muster_rank_[a-z_]+\{(\w+="([^"\\\n]|\\["\\])*",?)+\} -?[0-9.e+-]+$')
            names.add(line.split("{")[0])
        self.assertLessEqual({"muster_rank_up", "muster_rank_step", "muster_rank_samples_per_second"}, names)
        self.assertIn('muster_rank_step{run="4f2a-example",rank="4",host="a\\"b\\\\c",device="GPU 0"} 5000', text)

    def test_gpus(self):
        del self.env["CUDA_VISIBLE_DEVICES"]
        self.env.update(MUSTER_NVML_LIBRARY=NVML, FAKE_NVML="version=570.1|uuid=GPU-0a,name=Test GPU,pci=00000000:01:00.0,"
                        f"total={80 << 30},free={60 << 30},util=37|uuid=GPU-0b,name=NVIDIA GB10,pci=00000000:02:00.0,"
                        "util=0")
        self.start(UNTIL_GO)
        view = self.wait_for(lambda view: self.states(view) == ["running", "running"])
        self.assertEqual([rank["gpu_percent"] for rank in view["ranks"]], [37, 0])
        self.assertEqual(view["ranks"][0]["gpu_used_bytes"], 20 << 30)
        self.assertIsNone(view["ranks"][1]["gpu_total_bytes"])  # the driver does not tell it
        self.assertRegex(self.muster("top", "--once").stdout, r"GPU 0 +running +37% +20.0 GiB / 80.0 GiB")
        (self.folder / "go").touch()

    def test_what_is_no_job_is_one_line(self):
        (self.folder / "empty").mkdir()
        for arguments, why, code in ((("empty",), "expected a job's id, or the folder of one, got 'empty'", 2),
                                     (("abc",), "expected a running job's id", 2),
                                     (("--interval", "1ms"), "expected 100ms or more", 2)):
            said = self.muster("top", *arguments, code=code).stderr
            self.assertEqual(said.count("\n"), 1)
            self.assertIn(why, said)


if __name__ == "__main__":
    NVML = str(pathlib.Path(sys.argv.pop(3)).resolve())
    EXAMPLE = str(pathlib.Path(sys.argv.pop(2)).resolve())
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
