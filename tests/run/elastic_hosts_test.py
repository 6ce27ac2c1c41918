"""The same on several hosts, which are agents on this machine whose ranks take themselves to be on hosts of their own (MUSTER_HOST_ID): ranks
that are killed, hosts that are lost, and hosts that join, while the others keep their processes."""
import collections
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import types
import unittest

from elastic_test import ELASTIC_DIVIDED_PROBE, ELASTIC_PROBE, Elastic
from program_case import BUILD, MUSTER, processes_of
from long import long, some_of

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cuda"))
from fake_gpus import two_gpus

# A host that is only slow is not given up: connections tell of those that die.
PATIENT = "keep_alive_interval=60,keep_alive_max_attempt=10"


class OnHosts(Elastic):
    PROBE = ELASTIC_PROBE

    def setUp(self):
        super().setUp()
        holder = socket.socket()  # holds the port, and never listens
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.addCleanup(holder.close)
        self.endpoint = f"127.0.0.1:{holder.getsockname()[1]}"
        self.agents = []
        self.jobs = 0

    def agent(self, number, *argv, nnodes="2", nproc=2, replace=True, last_call=0, flags=(), **env):
        """Host `number`'s muster run, its output in files, so that nobody waits for a reader."""
        elastic = ":" in nnodes
        place = ["--rdzv-backend", "c10d", "--rdzv-conf", f"last_call_timeout={last_call},{PATIENT}"] if elastic else ["--node-rank", str(number)]
        on_failure = ["--on-failure", "replace"] if replace else []
        name = f"{self.folder}/{self.jobs}.{number}"
        with open(f"{name}.out", "w") as out, open(f"{name}.err", "w") as err:
            agent = subprocess.Popen([MUSTER, "run", "-q", "--run-dir", f"{self.folder}/run{self.jobs}", "--nnodes", nnodes, *place, "-n", str(nproc),
                                      "--rdzv-id", f"job{self.jobs}",
                                      "--rdzv-endpoint", self.endpoint, "--shutdown-timeout", "2", *on_failure, *flags, self.PROBE, *argv],
                                     cwd=self.folder, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                     env=self.environment(MUSTER_HOST_ID=f"host{number}", MUSTER_RUNTIME_DIR=self.folder, **env))
        agent.files = [f"{name}.out", f"{name}.err"]
        self.agents.append(agent)
        self.addCleanup(agent.wait)
        self.addCleanup(agent.kill)
        return agent

    def said(self):
        return types.SimpleNamespace(**{stream: "".join(pathlib.Path(agent.files[i]).read_text() for agent in self.agents)
                                        for i, stream in enumerate(("stdout", "stderr"))})

    def wait_until_said(self, pattern, seconds=60):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, (said := self.said()).stdout + said.stderr):
            self.assertLess(time.monotonic(), deadline, said.stdout + said.stderr)
            time.sleep(0.02)

    def finish(self, seconds=100):
        deadline = time.monotonic() + seconds
        codes = []
        for agent in self.agents:
            try:
                codes.append(agent.wait(max(0.1, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                said = self.said()
                self.fail(f"{agent.args}: no end in {seconds} s\n{said.stdout}\n{said.stderr}")
        while (left := processes_of(self.folder)) and time.monotonic() < deadline:
            time.sleep(0.02)  # of an agent that was killed
        self.assertEqual(left, [], "processes left running")
        done = self.said()
        done.codes = codes
        self.agents = []
        self.jobs += 1
        return done

    def train(self, *argv, hosts=2, **more):
        for number in range(hosts):
            self.agent(number, *argv, **more)
        return self.finish()

    def calm(self, **more):
        """How the ranks of two hosts end where nobody dies: trained once for all cases."""
        how = tuple(more.items())
        if how not in self.calm_ends:
            self.calm_ends[how] = self.ends(self.train(**more))
        return self.calm_ends[how]

    def ends(self, done, lost=0):
        """The last line of each rank; all agents but so many that were killed have ended well."""
        self.assertEqual(sorted(done.codes), [-9] * lost + [0] * (len(done.codes) - lost), done.stdout + done.stderr)
        return sorted(set(re.findall(r"end rank \d .*", done.stdout)))

    def tell_time(self, done, what):
        left = pathlib.Path(self.folder, "killed")  # of a host that was killed
        said = done.stdout + (left.read_text() if left.exists() else "")
        killed = max(float(at) for at in re.findall(r"killed at ([\d.]+)", said))
        after = [float(at) for at in re.findall(r"step \d+ at ([\d.]+)", done.stdout) if float(at) > killed]
        print(f"{what}: from the kill to the next step {min(after) - killed:.2f} s")

    def assert_kept(self, done, ranks, killed, generations=1):
        """Of all processes that the job had, those of other ranks than `killed` were kept through the generations."""
        calls = collections.defaultdict(list)
        for rank, pid, generation in re.findall(r"begin rank (\d) pid (\d+) generation (\d+)", done.stdout):
            calls[int(pid)].append((int(generation), int(rank)))
        first = {calls[pid][0][1]: calls[pid] for pid in calls if min(calls[pid])[0] == 0}
        self.assertEqual(sorted(first), list(range(ranks)))
        for rank, came in first.items():
            if rank not in killed:
                self.assertEqual([generation for generation, _ in sorted(came)], list(range(generations + 1)), (rank, done.stdout, done.stderr))
        self.assertNotIn("starting all ranks again", done.stderr)
        return first


class Hosts(OnHosts):
    def test_a_rank_dies_on_any_host(self):
        table = ("0@4", "3@5:backward", "2@4", "1@3:keep")
        for backend, some in (("auto", (0, 3)), ("gloo", (1, 2))):
            calm = self.calm(MUSTER_BACKEND=backend)
            self.assertEqual(len(calm), 4)
            for kill in some_of(table, *some):
                with self.subTest(backend=backend, kill=kill):
                    done = self.train("--kill", kill, MUSTER_BACKEND=backend)
                    self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
                    self.assert_kept(done, 4, {int(kill[0])})
                    self.assertRegex(done.stderr, r"rank \d: killed by SIGKILL.*; a replacement is started, "
                                                  r"the others keep their processes \(1 of 3 restarts\)")
                    self.tell_time(done, f"2 hosts of 2 ranks, {backend}, {kill}")

    def test_a_rank_over_nccl_dies_on_any_host(self):
        gpus = {"flags": ("--no-lease",), **two_gpus(BUILD)}  # on each host, and NCCL's stand-in between all ranks
        calm = self.calm(**gpus)
        self.assertEqual(len(calm), 4)
        done = self.train("--kill", "3@5:backward", "--kill", "0@8/1", **gpus)
        self.assertIn("nccl: rank 3 of world", done.stderr)
        self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
        self.assert_kept(done, 4, {0, 3}, generations=2)

    def test_ranks_of_both_hosts_die_together(self):
        calm = self.calm(MUSTER_BACKEND="auto")
        done = self.train("--kill", "1@5", "--kill", "3@5")
        self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
        self.assertIn("the others keep their processes (1 of 3 restarts)", done.stderr)
        self.assertNotIn("starting all ranks again", done.stderr)

    def test_a_rank_dies_while_the_others_come_together_again(self):
        calm = self.calm(MUSTER_BACKEND="auto")
        for second, killed in (("2@0/1:restore", {1, 2}), ("0@0/1:restore", {0, 1})):
            with self.subTest(second=second):
                done = self.train("--kill", "1@4", "--kill", second)
                self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
                self.assert_kept(done, 4, killed, generations=2)

    def test_hosts_of_one_rank_each(self):
        calm = self.ends(self.train(nproc=1, hosts=3, nnodes="3"))
        done = self.train("--kill", "1@4", nproc=1, hosts=3, nnodes="3")
        self.assertEqual(self.ends(done), calm, done.stdout + done.stderr)
        self.assert_kept(done, 3, {1})

    def test_the_budget_is_used_up(self):
        done = self.train("--kill", "1@4", "--kill", "3@6/1", flags=("--max-restarts", "1"))
        self.assertEqual(done.codes, [137, 137], done.stdout + done.stderr)
        self.assertIn("rank 3 failed first: killed by SIGKILL", done.stderr)

    @long
    def test_a_bug_on_a_rank_does_not_loop(self):
        done = self.train("--throw", "3@3/*")
        self.assertEqual(done.codes, [1, 1], done.stdout + done.stderr)
        self.assertIn("a bug of its own", done.stderr)
        self.assertIn("(3 of 3 restarts)", done.stderr)


class ElasticHosts(OnHosts):
    def elastic(self, *argv, node_ranks=(0, 1), nnodes="1:2", last_call=60, flags=(), **more):
        """The first agent serves the rendezvous."""
        for number, node_rank in enumerate(node_ranks):
            self.agent(number, *argv, nnodes=nnodes, last_call=last_call, flags=("--node-rank", str(node_rank), *flags), **more)
            if number == 0:
                self.wait_for_server()

    def wait_for_server(self, seconds=30):
        host, port = self.endpoint.split(":")
        deadline = time.monotonic() + seconds
        while True:
            try:
                return socket.create_connection((host, int(port)), 1).close()
            except OSError:
                self.assertLess(time.monotonic(), deadline, self.said().stderr)

    def train_with_a_spare(self, *argv, waits, spare_argv=(), **more):
        """A spare host comes while the ranks wait after step 2; then they go on, and a host is killed."""
        self.elastic(*argv, *waits, MUSTER_LOG_LEVEL="debug", **more)
        self.wait_until_said("step 2 at")
        self.agent(2, *spare_argv, nnodes="1:2")
        self.wait_until_said('(?s)(report [0-9]+: join.*){3}')
        go = pathlib.Path(self.folder, "go")
        go.touch()
        done = self.finish()
        go.unlink()
        return done


class ComingAndGoing(ElasticHosts):
    """Against restarts from a checkpoint of every step: the same numbers, by processes that live."""
    def test_a_host_is_lost_and_the_others_go_on_with_fewer_ranks(self):
        for node_ranks, kill in (((0, 1), "2@5"), ((1, 0), "0@5")):
            with self.subTest(kill=kill):
                self.elastic("--every", "1", "--kill-host", kill, node_ranks=node_ranks, replace=False)
                restarted = self.ends(self.finish(), lost=1)
                self.assertEqual(len(restarted), 2)
                self.elastic("--kill-host", kill, node_ranks=node_ranks)
                done = self.finish()
                self.assertEqual(self.ends(done, lost=1), restarted, done.stdout + done.stderr)
                lost = int(kill[0])
                self.assert_kept(done, 4, {lost, lost + 1})
                self.assertIn("is gone; the others keep their processes: 2 ranks go on in place of 4", done.stderr)
                self.assertIn("resume: step 4 in memory of 4 ranks", done.stderr)
                self.tell_time(done, f"a host of 2 ranks is killed, {kill}")

    def test_fewer_ranks_train_on_every_sample_of_an_epoch_once(self):
        """With the global batch that was asked for, or else one batch less for each rank that has gone."""
        for flags, batches in (((), [16] * 6 + [8] * 6), (("--global-batch", "16"), [16] * 12)):
            with self.subTest(flags=flags):
                folder = self.samples_folder()
                self.elastic("--samples", folder, "--kill-host", "2@7", flags=flags)  # in the midst of an epoch
                self.ends(self.finish(), lost=1)
                by_step = collections.defaultdict(list)
                for (step, _), samples in self.trained_samples(folder).items():
                    by_step[step] += samples
                self.assertEqual([len(by_step[step]) for step in sorted(by_step)], batches)
                trained = [sample for step in sorted(by_step) for sample in by_step[step]]
                for epoch in range(len(trained) // 64):
                    self.assertEqual(sorted(trained[64 * epoch:64 * (epoch + 1)]), list(range(64)))

    def test_a_spare_host_takes_the_place_of_one_that_is_lost(self):
        self.elastic()
        calm = self.ends(self.finish())
        for node_ranks, kill in some_of((((0, 1), "2@5"), ((1, 0), "1@5")), 1):
            with self.subTest(kill=kill):
                done = self.train_with_a_spare("--kill-host", kill, waits=("--stay", "all@2/0:go"), node_ranks=node_ranks)
                self.assertEqual(self.ends(done, lost=1), calm, done.stdout + done.stderr)
                self.assertIn("is gone; the others keep their processes: 4 ranks go on in place of 4", done.stderr)
                self.tell_time(done, f"a host of 2 ranks is killed, and a spare host takes its place, {kill}")

    def test_a_host_joins_and_the_others_keep_their_processes(self):
        ends = []
        for replace in (False, True):
            argv = ("--stay", "all@5", *(() if replace else ("--every", "1")))
            self.elastic(*argv, node_ranks=(0,), last_call=0, replace=replace)
            self.wait_until_said("step 5 at")
            self.agent(1, *argv, nnodes="1:2", flags=("--node-rank", "1"), replace=replace)
            done = self.finish()
            ends.append(self.ends(done))
        self.assertEqual(len(ends[0]), 4)
        self.assertEqual(ends[1], ends[0], done.stdout + done.stderr)
        self.assert_kept(done, 2, set())
        self.assertIn("has joined; the others keep their processes: 4 ranks go on in place of 2", done.stderr)
        self.assertIn("resume: step 5 in memory of 2 ranks, from rank 0 to ranks 2, 3", done.stderr)

    def test_all_hosts_are_asked_to_stop(self):
        for replace in (True, False):
            self.elastic("--steps", "1000000", replace=replace, flags=("--shutdown-timeout", "100"))  # they save first
            self.wait_until_said("step 5 at")
            for agent in self.agents:
                agent.terminate()
            done = self.finish()
            self.assertEqual(done.codes, [75, 75], done.stdout + done.stderr)
            self.assertEqual(len(re.findall("stopped after step", done.stderr)), 1)
            self.assertNotIn("replacement", done.stderr)

    def test_all_hosts_are_asked_to_stop_while_the_ranks_are_apart(self):
        self.elastic("--steps", "1000000", "--kill", "3@4", flags=("--shutdown-timeout", "1000"))
        self.wait_until_said("a replacement is started")
        for agent in self.agents:
            agent.terminate()
        done = self.finish()
        self.assertEqual(done.codes, [75, 75], done.stdout + done.stderr)
        self.assertRegex(done.stderr, "resume: step [0-9]+ in memory")
        self.assertRegex(done.stderr, "stopped after step [0-9]+, which is saved")

    def test_hosts_of_one_rank_each_are_asked_to_stop_while_it_is_replaced(self):
        for nnodes in ("2", "1:2"):
            with self.subTest(nnodes=nnodes):
                argv = ("--steps", "1000000", "--kill", "1@4", "--kill", "1@5/1")  # before the second replacement there is a pause
                if nnodes == "2":
                    for number in range(2):
                        self.agent(number, *argv, nproc=1, flags=("--shutdown-timeout", "1000"))
                else:
                    self.elastic(*argv, nproc=1, flags=("--shutdown-timeout", "1000"))
                self.wait_until_said(r"a replacement is started.*\(2 of 3 restarts\)")
                for agent in self.agents:
                    agent.terminate()
                done = self.finish()
                self.assertEqual(done.codes, [75, 75], done.stdout + done.stderr)
                self.assertRegex(done.stderr, "(?s)resume: step [0-9]+ in memory.*resume: step [0-9]+ in memory")
                self.assertRegex(done.stderr, "stopped after step [0-9]+, which is saved")

    def processes_of_generations(self):
        """By generation and rank."""
        return {(int(generation), int(rank)): int(pid) for rank, pid, generation
                in re.findall(r"begin rank (\d) pid (\d+) generation (\d+)", self.said().stdout)}

    def test_a_host_leaves_and_all_ranks_stop_as_they_ask(self):
        self.elastic("--steps", "1000000", flags=("--shutdown-timeout", "100"))  # they save first
        self.wait_until_said("step 5 at")
        self.agents[1].terminate()
        self.wait_until_said(r"begin rank 1 pid \d+ generation [1-9]")
        self.wait_until_said(r"(?s)generation [1-9].*step \d+ at")
        processes = self.processes_of_generations()
        self.agents[0].terminate()
        done = self.finish()
        self.assertEqual(done.codes, [75, 75], done.stdout + done.stderr)
        self.assertEqual(sorted(processes)[:4], [(0, rank) for rank in range(4)])
        self.assertEqual({rank for generation, rank in processes if generation > 0}, {0, 1})
        kept = {pid for (generation, _), pid in processes.items() if generation == 0} & \
               {pid for (generation, _), pid in processes.items() if generation > 0}
        self.assertEqual(kept, set(), "the ranks of the host that stays have stopped too")
        stopped = re.findall(r"stopped after step (\d+), which is saved", done.stderr)
        self.assertEqual(len(stopped), 2, done.stderr)
        self.assertRegex(done.stderr, rf"resume: .*/step-{stopped[0]}\n")
        self.assertIn("this host has left the job", done.stderr)

    def test_a_host_leaves_while_the_others_pause(self):
        """Its rank can save only with the one that is to be replaced there."""
        kills = [word for generation in range(4) for word in ("--kill", f"0@5/{generation}")]
        self.elastic("--steps", "1000000", *kills, nproc=1,
                     flags=("--shutdown-timeout", "1000", "--max-restarts", "9", "--max-host-failures", "9"))
        self.wait_until_said(r"a replacement is started in .*\(4 of 9 restarts\)")
        self.agents[1].terminate()
        self.assertEqual(self.agents[1].wait(100), 75, self.said().stderr)
        self.wait_until_said(r"(?s)begin rank 0 pid \d+ generation [5-9].*step \d+ at")  # it hears the signal now
        self.agents[0].terminate()
        done = self.finish()
        self.assertEqual(done.codes, [75, 75], done.stdout + done.stderr)
        self.assertRegex(done.stderr, "resume: step 4 in memory, from rank 1 to rank 0")
        self.assertIn("this host has left the job", done.stderr)

    def test_a_host_leaves_whose_ranks_do_not_ask(self):
        self.elastic("--deaf", "--stay", "all@5")
        self.wait_until_said("step 5 at")
        self.agents[1].terminate()
        done = self.finish()
        self.assertEqual(done.codes, [0, 128 + signal.SIGTERM], done.stdout + done.stderr)
        self.assert_kept(done, 4, {2, 3})
        self.assertRegex(done.stderr, "host .* leaves; the others keep their processes: 2 ranks go on in place of 4")
        self.assertIn("resume: step 5 in memory of 4 ranks", done.stderr)
        self.assertEqual(len(set(re.findall(r"end rank \d .*", done.stdout))), 2)

    def test_too_few_hosts_are_left(self):
        self.elastic("--kill-host", "2@5", nnodes="2:3", last_call=0)
        self.wait_until_said("the others do not go on in place: expected 2 hosts at least")
        self.agent(2, nnodes="2:3")
        done = self.finish()
        self.assertEqual(len(self.ends(done, lost=1)), 4)


class DividedComingAndGoing(ElasticHosts):
    """The state of the host that is lost lies in the memory of its neighbours on the other."""
    PROBE = ELASTIC_DIVIDED_PROBE
    LOST = (((0, 1), "2@8"), ((1, 0), "0@8"))  # the disk has step 5 by then

    def test_a_spare_host_takes_the_place_of_one_that_is_lost(self):
        ways = [(way, *lost) for way in ("full", "zero") for lost in self.LOST]
        for way, node_ranks, kill in some_of(ways, 1):
            with self.subTest(way=way, kill=kill):
                self.elastic(way)
                calm = self.ends(self.finish())
                self.assertEqual(len(calm), 4)
                done = self.train_with_a_spare(way, "--in-memory", "--kill-host", kill, waits=("--wait-for-go", "2"), spare_argv=(way, "--in-memory"), node_ranks=node_ranks)
                self.assertEqual(self.ends(done, lost=1), calm, done.stdout + done.stderr)
                self.assertIn("is gone; the others keep their processes: 4 ranks go on in place of 4", done.stderr)
                self.assertIn("resume: step 7 in memory, each rank its part", done.stderr)
                self.assertNotIn("/step-", done.stderr, "nothing was read from the disk")
                kept = [pid for pid, count in collections.Counter(re.findall(r"begin rank \d pid (\d+)", done.stdout)).items() if count > 1]
                self.assertEqual(len(kept), 2, done.stdout)

    def test_without_a_spare_the_others_go_on_from_the_disk(self):
        for way, (node_ranks, kill) in some_of([(way, lost) for way in ("full", "zero") for lost in self.LOST], 0):
            with self.subTest(way=way, kill=kill):
                self.elastic(way, "--kill-host", kill, node_ranks=node_ranks, replace=False)
                restarted = self.ends(self.finish(), lost=1)
                self.assertEqual(len(restarted), 2)
                self.elastic(way, "--in-memory", "--kill-host", kill, node_ranks=node_ranks)
                done = self.finish()
                self.assertEqual(self.ends(done, lost=1), restarted, done.stdout + done.stderr)
                lost = int(kill[0])
                self.assert_kept(done, 4, {lost, lost + 1})
                self.assertIn("the parts of the model in memory are those of 4 ranks, and there are 2 now; "
                              "all go on from the newest checkpoint on the disk", done.stderr)
                self.assertRegex(done.stderr, "resume: .*/step-5\n")


if __name__ == "__main__":
    unittest.main()
