"""A job on two hosts that have no folder in common: seen from the first, while it runs and afterwards.

    telemetry_test.py MUSTER TRACE_PROBE
"""

import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import HostsCase, main, missing, wait_for

MUSTER = PROBE = ""


class Telemetry(HostsCase):
    NAMES = ("a", "b")

    def setUp(self):
        self.secret = self.world.folder / "secret"
        self.secret.write_text(os.urandom(32).hex())
        self.secret.chmod(0o600)
        for host in self.world:
            self.folder_of(host.name).mkdir(parents=True)
            (self.world.folder / f"runtime-{host.name}").mkdir(mode=0o700, exist_ok=True)

    def folder_of(self, name):
        """Each host has its own."""
        return self.world.folder / self.id().rsplit(".", 1)[-1] / name

    def start(self, *argv):
        """An agent on each host."""
        return [host.start_for(self, [MUSTER, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(number),
                                      "--rdzv-endpoint", "10.77.0.1:29450", "--secret-file", str(self.secret),
                                      "--run-dir", "run", *argv],
                               cwd=self.folder_of(host.name),
                               env={"OMP_NUM_THREADS": "1",
                                    "MUSTER_RUNTIME_DIR": str(self.world.folder / f"runtime-{host.name}")})
                for number, host in enumerate(self.world)]

    def ended(self, agents):
        said = []
        for agent in agents:
            _, err = agent.communicate(timeout=100)
            said.append((agent.returncode, err))
        self.nothing_is_left()
        return said

    def top(self, name, *flags):
        code, out, err = self.world[name].run(
            [MUSTER, "top", *flags], cwd=self.folder_of(name),
            env={"MUSTER_RUNTIME_DIR": str(self.world.folder / f"runtime-{name}")})
        self.assertEqual(code, 0, err)
        return out

    def view(self):
        return json.loads(self.top("a", "--json", "run"))

    def test_top_of_the_first_host_shows_the_ranks_of_all(self):
        agents = self.start(PROBE, "walk")
        wait_for(lambda: (self.folder_of("b") / "run/activity/0/1").exists())

        def both_step():
            rows = self.view()["ranks"]
            return len(rows) == 2 and all(row["step"] and row["state"] == "running" for row in rows)

        wait_for(both_step)
        view = self.view()
        self.assertEqual((view["unseen_hosts"], view["problems"]), ([], []))
        self.assertEqual([row["host"] for row in view["ranks"]], ["a", "b"])
        for row in view["ranks"]:
            self.assertGreater(row["memory_bytes"], 1 << 20)
            self.assertIsNotNone(row["cpu_percent"])
            self.assertTrue(row["doing"] or row["last_call"])
        self.assertIsNone(view["ranks"][1]["pid"], "it is no process of this host")
        wait_for(lambda: self.view()["ranks"][1]["step"] > view["ranks"][1]["step"])  # it goes on
        self.assertNotIn("cannot be seen", self.top("a", "--once", "run"))
        self.assertIn("the ranks of a cannot be seen from here; `muster top` on a shows them", self.top("b", "--once", "run"))
        agents[0].send_signal(signal.SIGTERM)
        for code, err in self.ended(agents):
            self.assertIn(code, (75, 128 + signal.SIGTERM), err)
        left = sorted(path.name for path in (self.folder_of("a") / "run/hosts").iterdir())
        self.assertEqual(left, ["activity"], "samples are of use while the job runs")

    def test_the_end_is_told_of_all_ranks(self):
        (code, err), (other_code, _) = self.ended(self.start("--trace", PROBE, "slow"))
        self.assertEqual((code, other_code), (0, 0), err)
        self.assertIn("time of 25 steps on 2 ranks", err)
        self.assertRegex(err, r"the others wait for rank 1 \(host b, cpu:0\)")
        self.assertRegex(err, r"info:    1  b     cpu:0 ")
        self.assertRegex(err, r"trace: \S+/a/run/trace.json, \d+ events of 2 ranks")
        run = self.folder_of("a") / "run"
        self.assertEqual([rank["host"] for rank in json.loads((run / "breakdown.json").read_text())["ranks"]], ["a", "b"])
        pids = {event["pid"] for event in json.loads((run / "trace.json").read_text())["traceEvents"]}
        self.assertEqual(pids, {0, 1})
        report = json.loads(self.world["a"].run([MUSTER, "report", "--json", "run"], cwd=self.folder_of("a"))[1])
        self.assertEqual([rank["host"] for rank in report["ranks"]], ["a", "b"])

    def test_who_left_the_others_is_told_of_all_ranks(self):
        (code, err), _ = self.ended(self.start("--collective-timeout", "3s", PROBE, "stay away"))
        self.assertNotEqual(code, 0)
        self.assertRegex(err, r"apart +rank 1\b")


if __name__ == "__main__":
    MUSTER, PROBE = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    main(missing())
