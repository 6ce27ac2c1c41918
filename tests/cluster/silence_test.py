"""Hosts that cannot be heard for a while, or for good; connections that break; an agent that is started twice.

    silence_test.py MUSTER

Each rank writes down when it lives. The hosts have one clock, so the times say which ranks lived beside others.
"""

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from hosts import HostsCase, main, missing, wait_for
from long import long

MUSTER = ""

# FOLDER STUBBORN: writes the time until FOLDER/over is there. A stubborn rank does not end when it is asked to.
RANK = """
import os, pathlib, signal, sys, time
folder, stubborn = pathlib.Path(sys.argv[1]), sys.argv[2] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
name = "-".join((os.environ["MUSTER_ATTEMPT"], os.uname().nodename, str(os.getpid())))
with open(folder / name, "w") as file:
    while not (folder / "over").exists():
        print(time.monotonic(), file=file, flush=True)
        time.sleep(0.01)
"""


class Silence(HostsCase):
    NAMES = ("a", "b")

    def setUp(self):
        self.lives = self.world.folder / self.id()
        self.lives.mkdir()
        self.secret = self.world.folder / "secret"
        if not self.secret.exists():
            self.secret.touch(mode=0o600)
            self.secret.write_text(os.urandom(32).hex())
        self.addCleanup(self.world["b"].mend)

    def start(self, host, number, *flags, nnodes="2", silence=8, ranks="willing"):
        address = self.world["a"].address
        meet = ["--node-rank", str(number), "--master-addr", address, "--master-port", "29411"]
        if nnodes != "2":
            meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:29411"]
        return self.world[host].start_for(self, [
            MUSTER, "run", "-q", "-n", "1", "--nnodes", nnodes, *meet, "--secret-file", str(self.secret),
            "--run-dir", f"runs/{self.id()}-{host}",
            "--rdzv-conf", f"last_call_timeout=60,keep_alive_interval={silence},keep_alive_max_attempt=1", *flags,
            "python3", "-c", RANK, str(self.lives), ranks], seconds=150)

    def start_both(self, *flags, **more):
        both = [self.start(host, number, *flags, **more) for number, host in enumerate("ab")]
        self.wait_for_lives("0-a", "0-b")
        return both

    def wait_for_lives(self, *names):
        wait_for(lambda: all(list(self.lives.glob(f"{name}-*")) for name in names), 60)
        wait_for(lambda: all(path.stat().st_size > 0 for path in self.lives.iterdir()), 60)

    def times(self, name):
        """When the rank of this attempt and host lived."""
        paths = list(self.lives.glob(f"{name}-*"))
        self.assertEqual(len(paths), 1, f"one process was to be {name}")
        whole_lines = paths[0].read_text().split("\n")[:-1]
        return [float(line) for line in whole_lines]

    def live_on(self, name):
        """Waits until the rank has lived for a moment more."""
        last = self.times(name)[-1]
        wait_for(lambda: self.times(name)[-1] > last + 0.1, 60)

    def end_well(self, *agents):
        (self.lives / "over").touch()
        for agent in agents:
            out, err = agent.communicate(timeout=60)
            self.assertEqual(agent.returncode, 0, out + err)

    def outage(self, seconds):
        start = time.monotonic()
        self.world["b"].cut()
        time.sleep(max(0, start + seconds - time.monotonic()))
        self.world["b"].mend()

    def goes_on_after(self, part, silence):
        first, second = self.start_both(silence=silence)
        self.outage(part * silence)
        time.sleep(silence)  # whoever was wrongly given up is by now
        self.live_on("0-a"), self.live_on("0-b")
        self.end_well(first, second)

    def test_an_outage_of_a_third_of_the_silence_ends_nothing(self):
        self.goes_on_after(0.3, 8)

    def test_an_outage_of_three_quarters_of_the_silence_ends_nothing(self):
        self.goes_on_after(0.75, 8)

    @long
    def test_an_outage_a_little_shorter_than_the_silence_ends_nothing(self):
        self.goes_on_after(0.9, 15)
        self.goes_on_after_again()

    def goes_on_after_again(self):
        for path in self.lives.iterdir():
            path.unlink()
        self.goes_on_after(0.85, 4)

    def test_a_host_that_is_cut_off_has_ended_its_ranks_before_the_others_go_on(self):
        first, second = self.start_both("--shutdown-timeout", "1s", nnodes="1:2", silence=4, ranks="stubborn")
        self.world["b"].cut()
        begun = time.monotonic()
        self.wait_for_lives("1-a")
        self.assertGreater(self.times("1-a")[0], begun + 4, "it was given up too early")
        self.assertLess(self.times("0-b")[-1], self.times("1-a")[0])
        self.assertEqual(second.wait(timeout=60), 1)
        self.assertIn("no answer for", second.stderr.read())
        self.end_well(first)

    def test_the_same_where_it_hears_and_is_not_heard(self):
        first, second = self.start_both("--shutdown-timeout", "1s", nnodes="1:2", silence=4, ranks="stubborn")
        self.world["b"].run(["ip", "route", "add", "blackhole", f"{self.world['a'].address}/32"])
        try:
            self.wait_for_lives("1-a")
            self.assertLess(self.times("0-b")[-1], self.times("1-a")[0])
            self.assertEqual(second.wait(timeout=60), 1)
            self.end_well(first)
        finally:
            self.world["b"].run(["ip", "route", "del", "blackhole", f"{self.world['a'].address}/32"])

    def break_connections(self, host):
        code, out, err = self.world[host].run(["ss", "-K", "dst", self.world["a"].address])
        self.assertEqual(code, 0, err)
        return len(out.splitlines()) - 1

    def test_connections_that_break_end_nothing(self):
        first, second = self.start_both(silence=20)
        if self.break_connections("b") < 1:
            self.skipTest("this kernel does not break connections (ss -K)")
        self.live_on("0-a"), self.live_on("0-b")
        # The end of its process is noticed again, long before its silence would tell.
        wait_for(lambda: self.connections_of("b") >= 2, 60)
        begun = time.monotonic()
        second.kill()
        out, err = first.communicate(timeout=60)
        self.assertEqual(first.returncode, 1)
        self.assertIn("host b", err)
        self.assertLess(time.monotonic() - begun, 20)

    def connections_of(self, host):
        out = self.world[host].run(["ss", "-Htn", "state", "established", "dst", self.world["a"].address])[1]
        return len(out.splitlines())

    def test_an_agent_that_is_killed_is_noticed_at_once(self):
        first, second = self.start_both(nnodes="1:2", silence=60)
        second.kill()
        self.wait_for_lives("1-a")
        self.assertLess(self.times("0-b")[-1], self.times("1-a")[0])
        self.end_well(first)

    def test_an_agent_that_is_started_twice_is_refused_and_the_job_goes_on(self):
        first, second = self.start_both()
        again = self.start("b", 1)
        out, err = again.communicate(timeout=60)
        self.assertEqual(again.returncode, 1, out + err)
        self.assertIn("--node-rank: expected a different number on every host, got 1 on host b", err)
        self.live_on("0-a"), self.live_on("0-b")
        self.assertEqual(len(list(self.lives.iterdir())), 2, "no rank was started again")
        self.end_well(first, second)

    def test_an_agent_that_was_killed_may_be_started_again(self):
        first, second = self.start_both("--max-restarts", "1")
        second.kill()
        again = self.start("b", 1, "--max-restarts", "1")
        self.wait_for_lives("1-a", "1-b")
        for name in ("0-a", "0-b"):
            self.assertLess(self.times(name)[-1], self.times("1-a")[0])
        self.end_well(first, again)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    main(missing())
