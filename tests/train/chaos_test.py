"""A training to which everything happens ends as one that was left in peace: the same weights, bit for bit, and every sample of every epoch once.

MUSTER_CHAOS_SECONDS: how long test_chaos goes on (default 30). MUSTER_KILLS: how often test_kills_at_random kills (default 4), and
test_kills_while_saving (ten times that).
"""
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"])
MUSTER = f"{BUILD}/bin/muster"
SECONDS = int(os.environ.get("MUSTER_CHAOS_SECONDS", "30"))
KILLS = int(os.environ.get("MUSTER_KILLS", "4"))
SAMPLES, BATCH = 96, 12


class Job:
    """A run of chaos_probe that goes on beside the test."""

    def __init__(self, folder, ranks, *argv, flags=(), run_dir=None, **env):
        self.folder = pathlib.Path(folder)
        env = {**os.environ, "MUSTER_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1", **env}
        self.errors = open(self.folder / "errors", "a+", encoding="utf-8")
        self.process = subprocess.Popen(
            [MUSTER, "run", "-n", str(ranks), "--cpu-slots", str(ranks), "--run-dir", run_dir or f"{folder}/run", *flags,
             f"{BUILD}/tests/chaos_probe", *argv],
            cwd=folder, env=env, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)

    def ranks(self):
        """Process ids of the ranks that are there now."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"PPid:\t{self.process.pid}\n" in (entry / "status").read_text() and b"chaos_probe" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def steps(self):
        """How many steps have been taken, those taken again too."""
        path = self.folder / "run/steps"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_for_steps(self, more, end=float("inf")):
        wanted = self.steps() + more
        while self.steps() < wanted and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)

    def wait_until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("it did not happen: " + self.said()[-4000:])
            time.sleep(0.01)

    def send(self, which, to):
        try:
            os.kill(to, which)
        except ProcessLookupError:
            pass

    def finish(self, timeout=200):
        out, _ = self.process.communicate(timeout=timeout)
        self.errors.close()
        return self.process.returncode, out

    def said(self):
        return (self.folder / "errors").read_text()


class Chaos(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="muster-chaos-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.random = random.Random(7)
        self.jobs = 0

    def job(self, ranks, *argv, flags=(), folder=None, **more):
        if folder is None:
            self.jobs += 1
            folder = f"{self.folder}/{self.jobs}"
        os.makedirs(folder, exist_ok=True)
        job = Job(folder, ranks, *argv, flags=flags, **more)
        self.addCleanup(lambda: job.process.poll() is None and (job.process.kill(), job.process.wait()))
        return job

    def weights(self, job, code=0):
        returncode, out = job.finish()
        self.assertEqual(returncode, code, out + job.said())
        found = re.findall(r"weights (\S+)", out)
        self.assertEqual(len(found), 1, out)
        return found[0]

    def calm(self, ranks, *argv):
        job = self.job(ranks, *argv)
        weights = self.weights(job)
        self.check_samples(job)
        return weights

    def check_samples(self, job):
        """Every sample of each epoch once, by what the ranks said last of each step."""
        of_step = collections.defaultdict(dict)
        for path in sorted((job.folder / "run").glob("samples-*")):
            for line in path.read_text().splitlines():
                step, *samples = map(int, line.split())
                of_step[step][path.name] = samples
        steps = sorted(of_step)
        self.assertEqual(steps, list(range(1, steps[-1] + 1)))
        an_epoch = SAMPLES // BATCH
        for first in range(1, steps[-1] - an_epoch + 2, an_epoch):
            seen = collections.Counter()
            for step in range(first, first + an_epoch):
                in_step = [sample for samples in self.ranks_of_step(of_step[step]) for sample in samples]
                self.assertEqual(len(in_step), BATCH, f"step {step}")
                seen.update(in_step)
            self.assertEqual(seen, collections.Counter(range(SAMPLES)), f"the epoch from step {first}")

    def ranks_of_step(self, said):
        """With fewer ranks, files of the ranks that were left out hold an older word of a step."""
        total = next(len(samples) for samples in [said["samples-0"]])
        return [said[f"samples-{rank}"] for rank in range(BATCH // total)]

    def check_nothing_left(self, job):
        self.assertEqual([p for p in (job.folder / "run/checkpoints").iterdir() if ".tmp-" in p.name], [], "an unfinished save was left")
        self.assertEqual(job.ranks(), [])
        verified = subprocess.run([MUSTER, "checkpoint", "verify", f"{job.folder}/run"], capture_output=True, text=True, check=False)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def test_kills_at_random(self):
        steps = 24 * KILLS
        for way in ("plain", "background", "zero", "full"):
            with self.subTest(way):
                argv = ("--way", way, "--steps", str(steps), "--pause", "2")
                calm = self.calm(3, *argv)
                job = self.job(3, *argv, flags=("--max-restarts", str(3 * KILLS)))
                for _ in range(KILLS):
                    job.wait_for_steps(self.random.randint(1, 12))
                    time.sleep(self.random.uniform(0, 0.01))  # somewhere in a step: no wait for anything
                    for rank in self.random.sample(job.ranks(), k=min(len(job.ranks()), self.random.choice((1, 1, 3)))):
                        job.send(signal.SIGKILL, rank)
                self.assertEqual(self.weights(job), calm)
                self.assertGreaterEqual(job.said().count("restart"), KILLS // 2)
                self.check_samples(job)
                self.check_nothing_left(job)

    def test_kills_while_saving(self):
        """The launcher and all ranks die at once: as when a host loses its power, but for its disk."""
        for way in ("plain", "background", "full"):
            with self.subTest(way):
                folder = f"{self.folder}/saving-{way}"
                last = 0
                for kill in range(10 * KILLS // 3 + 1):
                    job = self.job(2, "--way", way, "--steps", "100000", "--resume", folder=folder)
                    job.wait_for_steps(self.random.randint(1, 8))
                    time.sleep(self.random.uniform(0, 0.02))
                    os.killpg(job.process.pid, signal.SIGSTOP)  # so that nobody tidies up
                    for rank in job.ranks():
                        job.send(signal.SIGKILL, rank)
                    os.killpg(job.process.pid, signal.SIGKILL)
                    job.finish()
                    listed = [line.split() for line in subprocess.run([MUSTER, "checkpoint", "ls", f"{folder}/run"], capture_output=True,
                                                                      text=True, check=True).stdout.splitlines()[1:]]
                    if not listed:
                        self.assertEqual(last, 0, f"kill {kill}: no checkpoint is left")
                        continue
                    self.assertTrue(all(row[-1] == "whole" for row in listed), listed)
                    newest = max(int(row[0]) for row in listed)
                    self.assertGreaterEqual(newest, last, f"kill {kill}")
                    last = newest
                    verified = subprocess.run([MUSTER, "checkpoint", "verify", f"{folder}/run"], capture_output=True, text=True, check=False)
                    self.assertEqual(verified.returncode, 0, verified.stdout)
                self.assertGreater(last, 0)

    def test_other_numbers_of_ranks(self):
        """4, then 2, then 3 ranks, and from divided state to a plain one: the samples of each step are those of one number of ranks."""
        for ways in (("plain",) * 3, ("full", "zero", "plain"), ("zero", "full", "background")):
            with self.subTest(ways=ways):
                calm = float.fromhex(self.calm(4, "--steps", "48"))
                folder = f"{self.folder}/{'-'.join(ways)}"
                for ranks, until, way in zip((4, 2, 3), (13, 29, 48), ways):
                    job = self.job(ranks, "--way", way, "--steps", "48", "--until", str(until), "--resume", folder=folder)
                    weights = float.fromhex(self.weights(job))
                self.assertAlmostEqual(weights, calm, delta=1e-4)  # other ranks add in another order
                self.check_samples(job)
                self.check_nothing_left(job)

    def test_a_host_is_cut_off(self):
        """Of two hosts one's agent is silent for longer than the other waits: that goes on alone, and the one that was silent finds itself given up.
        Then another comes in its place. The ranks of the host that was cut off live on meanwhile, and do no harm."""
        argv = ("--steps", "1000000", "--pause", "5")
        folder = f"{self.folder}/cut"
        with socket.socket() as holder:  # holds the port and never listens
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            flags = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{holder.getsockname()[1]}", "--max-restarts", "9",
                     "--rdzv-conf", "last_call_timeout=0,keep_alive_interval=1,keep_alive_max_attempt=4")
            stays = self.job(1, *argv, flags=flags, folder=folder, MUSTER_HOST_ID="stays")
            stays.wait_for_steps(2)
            for cut in range(2):
                other = self.job(1, *argv, flags=flags, folder=f"{self.folder}/other-{cut}", run_dir=f"{folder}/run", MUSTER_HOST_ID="other",
                                 MUSTER_RUNTIME_DIR=folder)  # where the job's secret is
                stays.wait_until(lambda: stays.said().count("has joined") > cut)
                stays.wait_for_steps(self.random.randint(2, 12))
                other.send(signal.SIGSTOP, other.process.pid)
                stays.wait_until(lambda: stays.said().count("is gone; going on without it") > cut)
                stays.wait_for_steps(2)
                other.send(signal.SIGCONT, other.process.pid)
                self.assertEqual(other.finish()[0], 1, other.said())
                self.assertEqual(other.ranks(), [])
            stays.send(signal.SIGTERM, stays.process.pid)
            self.assertEqual(stays.finish()[0], 75, stays.said())
        done = int((stays.folder / "run/samples-0").read_text().splitlines()[-1].split()[0])
        rest = self.job(1, "--steps", str(done + 4), "--resume", folder=folder)
        weights = float.fromhex(self.weights(rest))
        self.check_samples(rest)
        self.check_nothing_left(rest)
        self.assertAlmostEqual(weights, float.fromhex(self.calm(2, "--steps", str(done + 4))), delta=1e-3)  # two ranks add in another order

    def test_chaos(self):
        """Kills, stops, slowness and a full disk for a while, and then to the end in peace: half of the time each with restarts and in place."""
        for name, flags in (("restarts", ()), ("in place", ("--on-failure", "replace"))):
            with self.subTest(name):
                self.chaos(name, flags, SECONDS / 2)

    def chaos(self, name, flags, seconds):
        steps = int(10 * seconds) + 40
        argv = ("--way", "background", "--steps", str(steps), "--pause", "60")
        calm = self.calm(3, "--way", "background", "--steps", str(steps))
        folder = f"{self.folder}/chaos-{name.replace(' ', '-')}"
        disk = SmallDisk(f"{folder}/run/checkpoints")
        self.addCleanup(disk.close)
        job = self.job(3, *argv, flags=("--max-restarts", "1000000", *flags), folder=folder)
        happened = collections.Counter()
        end = time.monotonic() + seconds
        while time.monotonic() < end and job.process.poll() is None:
            what = self.random.choice(("kill", "stop", "slow", "disk") if disk.is_there else ("kill", "stop", "slow"))
            happened[what] += 1
            job.wait_for_steps(self.random.randint(1, 10), end)
            ranks = job.ranks()
            if what == "kill" and ranks:
                job.send(signal.SIGKILL, self.random.choice(ranks))
            elif what == "stop" and ranks:
                stopped = self.random.choice(ranks)
                job.send(signal.SIGSTOP, stopped)
                time.sleep(self.random.uniform(0.1, 1))
                job.send(signal.SIGCONT, stopped)
            elif what == "slow" and ranks:
                slow = self.random.choice(ranks)
                for _ in range(20):
                    job.send(signal.SIGSTOP, slow)
                    time.sleep(0.02)
                    job.send(signal.SIGCONT, slow)
                    time.sleep(0.02)
            elif what == "disk":
                disk.fill()
                time.sleep(self.random.uniform(0.1, 1))
                disk.free()
        print(f"chaos of {seconds} s, {name}: " + ", ".join(f"{count} times {what}" for what, count in sorted(happened.items())))
        self.assertIsNone(job.process.poll(), "it ended before the chaos did: more steps are needed\n" + job.said()[-2000:])
        self.assertEqual(self.weights_at_the_end(job), calm)
        self.check_samples(job)
        self.check_nothing_left(job)

    def weights_at_the_end(self, job):
        returncode, out = job.finish(timeout=600)
        self.assertEqual(returncode, 0, out + job.said()[-4000:])
        return re.findall(r"weights (\S+)", out)[-1]


class SmallDisk:
    """A disk of 4 MiB for the checkpoints, where mounting is allowed."""

    def __init__(self, path):
        os.makedirs(path)
        self.path = path
        self.is_there = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "muster-chaos", path], capture_output=True, check=False).returncode == 0

    def fill(self):
        try:
            with open(f"{self.path}/junk", "wb") as junk:
                junk.write(b"x" * (8 << 20))
        except OSError:
            pass

    def free(self):
        try:
            os.unlink(f"{self.path}/junk")
        except OSError:
            pass

    def close(self):
        if self.is_there:
            subprocess.run(["umount", "-l", self.path], check=False)


if __name__ == "__main__":
    unittest.main()
