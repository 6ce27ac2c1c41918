"""A training to which everything happens ends as one that was left in peace: the same loss in every step and the same weights, bit for
bit, every sample of every epoch once, and nothing left over.

MUSTER_CHAOS_SECONDS: how long test_chaos goes on (default 30). MUSTER_CHAOS_SEED: what happens when (default 7). MUSTER_KILLS: how
often test_kills_at_random kills (default 4), and test_kills_while_saving (ten times that).
"""
import collections
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from hosts import Hosts, missing

BUILD = pathlib.Path(os.environ["MUSTER_BUILD"]).resolve()
MUSTER = f"{BUILD}/bin/muster"
SECONDS = int(os.environ.get("MUSTER_CHAOS_SECONDS", "30"))
SEED = os.environ.get("MUSTER_CHAOS_SEED", "7")
KILLS = int(os.environ.get("MUSTER_KILLS", "4"))
SAMPLES, BATCH = 96, 12
A_TRAINING = 120  # seconds of chaos that happen to one training at most
WAYS = ("background", "zero", "full", "plain")


class Job:
    """A run of chaos_probe that goes on beside the test."""

    def __init__(self, folder, ranks, *argv, flags=(), run_dir=None, host=None, **env):
        self.folder = pathlib.Path(folder)
        self.runtime = self.folder / "runtime"
        self.runtime.mkdir(mode=0o700, exist_ok=True)
        env = {**os.environ, "MUSTER_RUNTIME_DIR": str(self.runtime), "OMP_NUM_THREADS": "1", **env}
        self.errors = open(self.folder / "errors", "a+", encoding="utf-8")
        command = [MUSTER, "run", "-n", str(ranks), "--cpu-slots", str(ranks), "--run-dir", run_dir or f"{folder}/run", *flags,
                   f"{BUILD}/tests/chaos_probe", *argv]
        self.process = subprocess.Popen(host.command(command) if host else command, cwd=folder, env=env, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, start_new_session=True)

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
        found = re.findall(r"weights (\S+ \S+)", out)
        self.assertEqual(len(found), 1, out)
        return found[0]

    def sum_of_weights(self, weights):
        """For other numbers of ranks, which add in another order."""
        return float.fromhex(weights.split()[0])

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
                calm_job = self.job(3, *argv)
                calm = self.weights(calm_job)
                self.check_samples(calm_job)
                job = self.job(3, *argv, flags=("--max-restarts", str(3 * KILLS)))
                for _ in range(KILLS):
                    job.wait_for_steps(self.random.randint(1, 12))
                    time.sleep(self.random.uniform(0, 0.01))  # somewhere in a step: no wait for anything
                    for rank in self.random.sample(job.ranks(), k=min(len(job.ranks()), self.random.choice((1, 1, 3)))):
                        job.send(signal.SIGKILL, rank)
                self.assertEqual(self.weights(job), calm)
                self.assertEqual(list(different_steps(self.losses(job)[0], self.losses(calm_job)[0])), [])
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
                calm = self.sum_of_weights(self.calm(4, "--steps", "48"))
                folder = f"{self.folder}/{'-'.join(ways)}"
                for ranks, until, way in zip((4, 2, 3), (13, 29, 48), ways):
                    job = self.job(ranks, "--way", way, "--steps", "48", "--until", str(until), "--resume", folder=folder)
                    weights = self.sum_of_weights(self.weights(job))
                self.assertAlmostEqual(weights, calm, delta=1e-4)
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
            flags = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{holder.getsockname()[1]}", "--rdzv-id", "cut", "--max-restarts", "9",
                     "--rdzv-conf", "last_call_timeout=0,keep_alive_interval=1,keep_alive_max_attempt=4")
            stays = self.job(1, *argv, flags=flags, folder=folder, MUSTER_HOST_ID="stays")
            stays.wait_for_steps(2)
            for cut in range(2):
                other = self.job(1, *argv, flags=flags, folder=f"{self.folder}/other-{cut}", run_dir=f"{folder}/run", MUSTER_HOST_ID="other",
                                 MUSTER_RUNTIME_DIR=f"{folder}/runtime")  # where the job's secret is
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
        weights = self.sum_of_weights(self.weights(rest))
        self.check_samples(rest)
        self.check_resumes(rest)
        self.check_nothing_left(rest)
        self.assertAlmostEqual(weights, self.sum_of_weights(self.calm(2, "--steps", str(done + 4))), delta=1e-3)

    def test_chaos(self):
        """Everything at random for a while, and then to the end in peace: with restarts and in place, on one host and on two."""
        in_place = ("--on-failure", "replace")
        kinds = [(OneHost, ()), (OneHost, in_place), (TwoHosts, in_place), (TwoHosts, ())]
        if SECONDS < A_TRAINING:
            kinds.pop()  # over two hosts the ranks start again in place, too: after a partition
        total, left_out = collections.Counter(), set()
        if why := missing():
            kinds = kinds[:2]
            left_out.add(f"cut and partition ({why})")
        trainings = -(-SECONDS // (len(kinds) * A_TRAINING))
        for number in range(trainings):
            for kind, (place, flags) in enumerate(kinds):
                name = f"{place.__name__}-{'in-place' if flags else 'restarts'}-{number}"
                with self.subTest(name, seed=SEED):
                    self.random = random.Random(f"{SEED} {name}")
                    way = WAYS[(number + number * kind) % len(WAYS)]  # the first of each kind is the first way
                    self.chaos(place, f"{self.folder}/{name}", way, flags, SECONDS / len(kinds) / trainings, total, left_out)
        print(report(total, left_out))

    def chaos(self, place, folder, way, flags, seconds, total, left_out):
        disk = SmallDisk(f"{folder}/run/checkpoints")
        self.addCleanup(disk.close)
        with place(self, folder, "--way", way, flags=flags) as training:
            events = training.events() | ({"full disk": lambda: disk.be_full(self.random)} if disk.is_there else {})
            if not disk.is_there:
                left_out.add("full disk (mounting needs root)")
            self.everything_happens(training, events, seconds, total)
            weights = training.end_in_peace()
            job = training.job
            curve, again = self.losses(job)
            calm_weights, calm_curve = training.calm("--way", way, "--steps", str(len(curve["losses-0"])))
            self.assertEqual(list(different_steps(curve, calm_curve)), [], "the loss is not the calm one's")
            self.assertEqual(weights, calm_weights)
            self.check_samples(job)
            self.check_resumes(job)
            self.check_nothing_left(job)
            total.update(training.happened(), steps=len(curve["losses-0"]), again=again, trainings=1)
        disk.close()
        self.check_nothing_of(folder, training)
        shutil.rmtree(folder)  # an hour of them is much

    def everything_happens(self, training, events, seconds, total):
        """Each event once at least, however slow the machine is."""
        end = time.monotonic() + seconds
        turn = []
        first_turn = True
        while first_turn or time.monotonic() < end:
            turn = turn or self.random.sample(list(events), k=len(events))
            training.job.wait_for_steps(self.random.randint(1, 10), time.monotonic() + 60)
            training.tend()
            what = turn.pop()
            events[what]()
            total[what] += 1
            first_turn = first_turn and bool(turn)

    def losses(self, job):
        """The loss of every step by rank, and how many steps rank 0 took again. One that is taken again has the same loss, in all bits."""
        curve, again = {}, 0
        for path in sorted((job.folder / "run").glob("losses-*")):
            of_step = curve[path.name] = {}
            for line in path.read_text().splitlines():
                step, loss = line.split()
                self.assertEqual(of_step.setdefault(int(step), loss), loss, f"{path.name}: step {step}, taken again")
                again += path.name == "losses-0"
            again -= len(of_step) if path.name == "losses-0" else 0
        self.assertEqual(len({tuple(sorted(of_step)) for of_step in curve.values()}), 1)
        return curve, again

    def check_resumes(self, job):
        """What was not saved is little: every other step is saved, one save at a time."""
        steps = steps_in(job.folder / "run/losses-0")
        back = [(before, step) for before, step in zip(steps, steps[1:]) if step < before - 12]
        self.assertEqual(back, [], "it began far before the step that it was in")

    def check_nothing_of(self, folder, training):
        """No process, no file of a running job, no mount, no namespace."""
        self.assertEqual(processes_in(folder), [])
        self.assertEqual([p for p in pathlib.Path(folder).glob("**/runtime/**/*") if not p.is_dir()], [])
        self.assertNotIn(folder, pathlib.Path("/proc/mounts").read_text())
        self.assertEqual(training.namespaces(), [])


def different_steps(curve, calm):
    """(file, step, loss, the calm one's) of each, and of steps that only one has."""
    for name in sorted(curve.keys() | calm.keys()):
        mine, other = curve.get(name, {}), calm.get(name, {})
        yield from ((name, step, mine.get(step), other.get(step)) for step in sorted(mine.keys() | other.keys())
                    if mine.get(step) != other.get(step))


def report(total, left_out):
    happened = ", ".join(f"{total[what]} {what}" for what in ("kill", "stop", "slow", "full disk", "cut", "partition") if total[what])
    return (f"chaos, seed {SEED}: {total['trainings']} trainings, {happened}; {total['steps']} steps, {total['again']} of them again; "
            f"{total['restarts']} restarts, {total['in place']} in place; left out: {', '.join(sorted(left_out)) or 'nothing'}")


def steps_in(losses):
    """The steps in the order in which they were taken."""
    return [int(line.split()[0]) for line in losses.read_text().splitlines()]


def processes_in(folder):
    """Command lines of those that work there."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(folder):
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            pass
    return found


class OneHost:
    """A training of three ranks that share memory, and what can happen to them."""

    def __init__(self, case, folder, *argv, flags):
        self.case, self.random, self.folder = case, case.random, folder
        self.argv = (*argv, "--pause", "60")
        self.flags = ("--max-restarts", "1000000", "--shutdown-timeout", "2", *flags)  # a rank that waits for a lost host cannot stop

    def __enter__(self):
        self.job = self.case.job(3, *self.argv, flags=self.flags, folder=self.folder)
        return self

    def __exit__(self, *_):
        pass

    def events(self):
        return {"kill": self.kill, "stop": self.stop, "slow": self.slow}

    def ranks(self):
        return self.job.ranks()

    def a_rank(self):
        ranks = []
        self.job.wait_until(lambda: ranks.extend(self.ranks()) or ranks, 120)
        return self.random.choice(sorted(ranks))

    def kill(self):
        self.job.send(signal.SIGKILL, self.a_rank())

    def stop(self):
        rank = self.a_rank()
        self.job.send(signal.SIGSTOP, rank)
        time.sleep(self.random.uniform(0.1, 1))
        self.job.send(signal.SIGCONT, rank)

    def slow(self):
        rank = self.a_rank()
        for _ in range(20):
            self.job.send(signal.SIGSTOP, rank)
            time.sleep(0.02)
            self.job.send(signal.SIGCONT, rank)
            time.sleep(0.02)

    def tend(self):
        self.case.assertIsNone(self.job.process.poll(), self.job.said()[-4000:])
        self.come_back()

    def come_back(self):
        """Nobody who could."""

    def end_in_peace(self):
        """Twenty steps more, which the ranks hear of in time. The weights."""
        run = self.job.folder / "run"
        (run / "last.new").write_text(str(max(steps_in(run / "losses-0")) + 20))
        (run / "last.new").rename(run / "last")
        end = time.monotonic() + 300
        while self.job.process.poll() is None and time.monotonic() < end:
            self.come_back()
            time.sleep(0.05)
        returncode, out = self.job.finish(timeout=1)
        self.case.assertEqual(returncode, 0, out + self.job.said()[-4000:])
        return re.findall(r"weights (\S+ \S+)", out)[-1]

    def calm(self, *argv):
        """Weights and losses of a training that was left in peace."""
        job = self.case.job(3, *argv)
        return self.case.weights(job), self.case.losses(job)[0]

    def happened(self):
        said = self.job.said()
        return {"restarts": len(re.findall(r"\(restart \d+ of", said)), "in place": len(re.findall(r"replacements? (?:is|are) started", said))}

    def namespaces(self):
        return []


class TwoHosts(OneHost):
    """The same over two hosts, of which the second can be cut off: two ranks on one, a third on the other."""

    def __enter__(self):
        self.hosts = Hosts(["a", "b"]).__enter__()
        self.case.addCleanup(self.hosts.__exit__)
        self.flags += ("--rdzv-conf", "keep_alive_interval=3,keep_alive_max_attempt=4")  # 12 s: a busy machine is not dead
        self.secret = self.hosts.folder / "secret"
        self.secret.write_text(os.urandom(32).hex())
        self.secret.chmod(0o600)
        self.agents = 0
        self.job = self.agent("a", self.folder, *self.argv, flags=self.flags)
        self.other = self.agent("b", self.folder, *self.argv, flags=self.flags)
        return self

    def __exit__(self, *_):
        self.hosts.__exit__()

    def agent(self, name, folder, *argv, flags=()):
        """On a, which serves the rendezvous, with the folder of the run; on b with one of its own beside it."""
        self.agents += 1
        flags = (*flags, "--nnodes", "2", "--node-rank", str("ab".index(name)), "--rdzv-endpoint", "10.77.0.1:29400", "--rdzv-id", "chaos",
                 "--secret-file", str(self.secret))
        own = folder if name == "a" else f"{folder}/b-{self.agents}"
        return self.case.job(2 if name == "a" else 1, *argv, flags=flags, folder=own, run_dir=f"{folder}/run", host=self.hosts[name])

    def events(self):
        return super().events() | {"cut": self.cut, "partition": self.partition}

    def ranks(self):
        return self.job.ranks() + self.other.ranks()

    def cut(self):
        """For less than the hosts wait for each other."""
        self.hosts["b"].cut()
        time.sleep(self.random.uniform(0.1, 1.5))
        self.hosts["b"].mend()

    def partition(self):
        """Until b has ended its ranks and a has given b up."""
        gone = self.job.said().count("is gone")
        self.hosts["b"].cut()
        self.other.process.wait(timeout=120)
        self.case.assertEqual(self.other.ranks(), [])
        self.job.wait_until(lambda: self.job.said().count("is gone") > gone)
        self.hosts["b"].mend()
        self.tend()

    def come_back(self):
        """A host that was given up comes back: one that is slow may be, too."""
        if self.other.process.poll():
            self.other.finish()
            self.other = self.agent("b", self.folder, *self.argv, flags=self.flags)

    def end_in_peace(self):
        weights = super().end_in_peace()
        returncode, out = self.other.finish()
        self.case.assertEqual(returncode, 0, out + self.other.said())
        return weights

    def calm(self, *argv):
        folder = f"{self.folder}/calm"
        patient = ("--rdzv-conf", "keep_alive_interval=10,keep_alive_max_attempt=6")
        both = self.agent("a", folder, *argv, flags=patient), self.agent("b", folder, *argv, flags=patient)
        weights = self.case.weights(both[0])
        self.case.assertEqual(both[1].finish()[0], 0, both[1].said())
        return weights, self.case.losses(both[0])[0]

    def namespaces(self):
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
        return [name for name in listed + os.listdir("/etc/netns") if name.startswith(self.hosts.prefix)]


class SmallDisk:
    """A disk of 4 MiB for the checkpoints, where mounting is allowed."""

    def __init__(self, path):
        os.makedirs(path)
        self.path = path
        self.is_there = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "muster-chaos", path], capture_output=True, check=False).returncode == 0

    def be_full(self, chance):
        with contextlib.suppress(OSError), open(f"{self.path}/junk", "wb") as junk:
            junk.write(b"x" * (8 << 20))
        time.sleep(chance.uniform(0.1, 1))
        os.unlink(f"{self.path}/junk")

    def close(self):
        if self.is_there:
            self.is_there = False
            subprocess.run(["umount", "-l", self.path], check=False)


if __name__ == "__main__":
    unittest.main()
