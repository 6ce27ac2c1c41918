"""`muster tasks --hosts` with a stand-in for ssh: leases of other jobs there, and hosts that are lost and come back.

    remote_tasks_test.py MUSTER FAKE_NVML      the program; a stand-in for the driver's library
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "cluster"))
from hosts import end_with, wait_for
from tasks_case import TasksCase, task

MUSTER = FAKE_NVML = ""


def processes_with(entry):
    """Process ids of those that were started with this in their environment, and their command lines."""
    found = {}
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and entry.encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended
    return {pid: line for pid, line in found.items() if line}


GPU = "needs = { gpus = 1 }"
HOLD = task("hold", "touch held; until [ -e release ]; do sleep 0.05; done", GPU)


class Remote(TasksCase, unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-remote-"))
        self.addCleanup(subprocess.run, ["rm", "-rf", str(self.folder)])
        self.addCleanup(self.kill_what_is_left)
        self.world = self.folder / "hosts"
        self.world.mkdir()
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700)
        ssh = f"{sys.executable} -B {pathlib.Path(__file__).with_name('stand_in_ssh.py')} {self.world} {FAKE_NVML}"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "MUSTER_RUNTIME_DIR": str(runtime),
                            "MUSTER_SSH": ssh}

    def kill_what_is_left(self):
        for pid in processes_with(str(self.folder)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def set(self, host, what, text=""):
        (self.world / host).mkdir(mode=0o700, exist_ok=True)
        (self.world / host / what).write_text(text)

    def connections(self, host):
        return [int(pid) for pid in (self.world / host / "connections").read_text().split()]

    def break_connection(self, host):
        os.kill(self.connections(host)[-1], signal.SIGKILL)

    def start(self, *args):
        process = subprocess.Popen([MUSTER, "tasks", *args], cwd=self.folder, env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end_with(self, process)
        return process

    def run_tasks(self, *args):
        process = self.start(*args)
        out, err = process.communicate()
        return process.returncode, out, err

    def touch(self, name):
        (self.folder / name).touch()

    def hear(self, process, *texts):
        """Its lines until each text has been in one."""
        said = []
        while line := process.stderr.readline():
            said.append(line)
            if all(any(text in each for each in said) for text in texts):
                return "".join(said)
        self.fail(f"it never said '{texts}':\n{''.join(said)}")

    def numbers(self, result):
        return [attempt["attempt"] for attempt in result["attempts"]]


class Answers(Remote):
    def test_a_host_that_is_slow_to_answer_is_named(self):
        ssh = self.folder / "slow_ssh"
        ssh.write_text("#!/bin/sh\nuntil [ -e go ]; do sleep 0.05; done\nexit 127\n")
        ssh.chmod(0o755)
        process = self.start("--hosts", "far-b", "--ssh", str(ssh), "--run-dir", "run", self.write(task("t", "true")))
        self.hear(process, "waiting for the answer of host far-b\n")
        self.touch("go")
        _, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("slow_ssh ended with exit code 127; muster is not at that path there (--remote-muster PATH names it), or the program is missing", err)


class Leases(Remote):
    def hold(self):
        """Another job, which has the GPU of b."""
        holder = self.start("--hosts", "far-b", "--run-dir", "other", self.write(HOLD, name="hold.toml"))
        self.there("held")
        return holder

    def refused(self):
        """A run whose task was sent to a GPU that another job had just taken, and that job."""
        spec = self.write(task("first", "touch up; until [ -e go ]; do sleep 0.05; done"),
                          task("t", 'echo "attempt $MUSTER_ATTEMPT"', GPU + "\nafter = ['first']"))
        process = self.start("--hosts", "far-b", "--run-dir", "run", "--json", "--csv", "t.csv", spec)
        self.there("up")
        holder = self.hold()
        self.touch("go")
        self.hear(process, "t could not begin (another job was faster to take its GPU), and starts again",
                  "some GPUs are held, and left to their holders: GPU 0 of far-b is held by job")
        return process, holder

    def the_first_start_that_began_is_the_first_attempt(self, code, out, err):
        self.assertEqual(code, 0, err)
        result = self.results(out)["t"]
        self.assertEqual((result["state"], self.numbers(result)), ("done", [0]))
        self.assertEqual(self.log("t"), "attempt 0\n")
        self.assertEqual(os.listdir(self.folder / "run" / "logs" / "t"), ["0.log"])

    def test_a_start_that_a_lease_refused_is_no_attempt(self):
        process, holder = self.refused()
        self.touch("release")
        out, err = process.communicate()
        self.the_first_start_that_began_is_the_first_attempt(process.returncode, out, err)
        row = (self.folder / "t.csv").read_text().splitlines()[2].split(",")
        self.assertEqual(row[:4], ["t", "done", "", "0"])
        holder.communicate()

    def test_nor_is_it_one_after_a_kill(self):
        process, holder = self.refused()
        wait_for(lambda: '"how":"refused"' in (self.folder / "run" / "journal").read_text())
        process.kill()
        self.touch("release")
        holder.communicate()
        self.the_first_start_that_began_is_the_first_attempt(*self.run_tasks("--resume", "run", "--json"))

    def test_what_is_held_elsewhere_counts_before_anything_starts(self):
        holder = self.hold()
        spec = self.write(task("t{x}", "true", GPU + "\neach = { x = '1..2' }"))
        hosts = ["--hosts", "far-b,far-c", spec]
        code, out, err = self.run_tasks("--dry-run", *hosts)
        self.assertEqual(code, 0, err)
        self.assertIn("of 2 tasks this one starts first; 1 waits\n", out)
        self.assertRegex(out, "(?m)^t1 +far-c +GPU 0")
        self.assertRegex(out, "(?m)^other jobs have GPUs: GPU 0 of far-b is held by job .*hold.*$")
        code, out, err = self.run_tasks("--explain", "t2", *hosts)
        self.assertEqual(code, 0, err)
        self.assertIn("GPU 0 of far-b is held by job", out)
        self.assertIn("GPU 0 of far-c has t1", out)
        code, out, err = self.run_tasks("--dry-run", "--no-lease", *hosts)
        self.assertIn("of 2 tasks these start first; 0 wait\n", out)
        self.assertNotIn("other jobs", out)
        self.touch("release")
        holder.communicate()

    def test_what_the_run_itself_holds_is_no_other_jobs(self):
        spec = self.write(HOLD, task("next", "true", GPU))
        process = self.start("--hosts", "far-b", "--run-dir", "run", spec)
        self.there("held")
        code, out, err = self.run_tasks("--resume", "run", "--explain", "next")
        self.assertEqual(code, 0, err)
        self.assertIn("GPU 0 has hold", out)
        self.touch("release")
        process.communicate()
        self.assertEqual(process.returncode, 0)


class Memory(Remote):
    """GPUs of 8 GiB, of which other programs use some."""

    def leave_free(self, host, mib):
        self.set(host, "new", f"version=550.54|uuid=GPU-{ord(host[-1]) % 10}0000000-0000-4000-8000-000000000000,name=Test GPU,"
                 f"total={8 << 30},free={mib << 20},cc=9.0,pci=00000000:01:00.0")
        os.replace(self.world / host / "new", self.world / host / "machine")

    def test_what_is_freed_while_a_task_has_the_gpu_is_seen_when_that_has_ended(self):
        self.leave_free("far-b", 1024)
        spec = self.write(HOLD, task("large", "true", "needs = { gpus = 1, memory = '6GiB' }"))
        process = self.start("--hosts", "far-b", "--run-dir", "run", "--wait", "20s", spec)
        self.there("held")
        self.leave_free("far-b", 8192)
        time.sleep(3)  # looked at every two seconds
        self.touch("release")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)

    def test_what_the_driver_has_is_no_other_job(self):
        self.leave_free("far-b", 7600)
        self.leave_free("far-c", 7600)
        spec = self.write(task("t", "touch up; sleep 1000", "needs = { gpus = 1, memory = '6GiB' }\non = 'far-b:0'"))
        process = self.start("--hosts", "far-b,far-c", "--run-dir", "run", "--wait", "1500ms", spec)
        self.there("up")
        self.set("far-b", "down")
        self.break_connection("far-b")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("expected hosts that can run the 1 task that wait, got none (far-b: ", err)
        self.assertNotIn("other jobs", err)


class Lost(Remote):
    """Hosts whose connections end; a `silent` one's server is told nothing, and goes on."""

    def tasks_left(self):
        return processes_with(f"MUSTER_RUN_DIR={self.folder}/run")

    def task_and_its_sleep_run(self):
        wait_for(lambda: sorted(line.startswith("sleep ") for line in self.tasks_left().values()) == [False, True])

    def children_of(self, pid):
        return {int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

    def test_a_host_that_is_back_is_used_again(self):
        spec = self.write(task(
            "t{x}", "touch up-$1-$MUSTER_ATTEMPT; until [ -e go-$1 ]; do sleep 0.05; done; echo $1 >>done",
            "needs = { cpus = 1 }\neach = { x = '1..6' }"))
        process = self.start("--hosts", "far-b:1,far-c:1", "--run-dir", "run", "--json", spec)
        self.there("up-1-0", "up-2-0")
        self.break_connection("far-b")
        said = self.hear(process, "host far-b is back", "started on the CPU of far-b, restart 1")
        self.assertEqual(said.count("far-b:"), 1, said)
        self.assertIn("host far-b: python3", said.replace(pathlib.Path(sys.executable).name, "python3"))
        self.assertIn("was killed by SIGKILL; it is set aside and tried again\n", said)
        self.break_connection("far-c")
        self.hear(process, "host far-c is back")
        ended = {pid for host in ("far-b", "far-c") for pid in self.connections(host)[:-1]}
        wait_for(lambda: not ended & self.children_of(process.pid))  # nobody's zombies
        for x in range(1, 7):
            self.touch(f"go-{x}")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        results = self.results(out)
        self.assertEqual([(each["state"], self.numbers(each)) for each in results.values()],
                         [("done", [0, 1])] * 2 + [("done", [0])] * 4)
        self.assertEqual({each["attempts"][-1]["host"] for each in results.values()}, {"far-b", "far-c"})
        self.assertEqual(sorted((self.folder / "done").read_text().split()), list("123456"))
        self.assertEqual(self.tasks_left(), {})

    # Of each start that finds one still running that was started before it.
    ALONE = ('for pid in $(cat pids 2>/dev/null); do kill -0 $pid 2>/dev/null && echo "$pid still runs"; done; '
             'echo $$ >>pids; touch up-$MUSTER_ATTEMPT; [ -e go ] || sleep 1000; echo end')

    def test_what_ran_there_has_ended_before_it_runs_again(self):
        self.set("far-b", "silent")
        process = self.start("--hosts", "far-b", "--run-dir", "run", self.write(task("t", self.ALONE, GPU)))
        self.there("up-0")
        self.task_and_its_sleep_run()
        self.break_connection("far-b")
        self.hear(process, "1 task can only run on hosts that were lost; one has 1m00s to come back")
        self.touch("go")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.log("t", 1), "end\n")
        self.assertEqual(self.tasks_left(), {})

    def test_a_run_that_is_killed_after_that_leaves_nothing(self):
        self.set("far-b", "silent")
        process = self.start("--hosts", "far-b", "--run-dir", "run", self.write(task("t", self.ALONE, GPU)))
        self.there("up-0")
        self.break_connection("far-b")
        self.there("up-1")
        self.task_and_its_sleep_run()
        process.send_signal(signal.SIGSTOP)  # both ends here at once, and the other hears of neither
        self.break_connection("far-b")
        process.kill()
        process.communicate()
        self.assertEqual(len(self.tasks_left()), 2, "its server has heard nothing of that")
        self.touch("go")
        code, out, err = self.run_tasks("--resume", "run", "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.numbers(self.results(out)["t"]), [0, 1, 2])
        self.assertEqual(self.log("t", 2), "end\n")
        self.assertEqual(self.tasks_left(), {})

    def test_a_host_with_other_gpus_is_not_used(self):
        spec = self.write(task("t", "touch up; [ -e go ] || sleep 1000; echo $CUDA_VISIBLE_DEVICES", GPU))
        self.set("far-b", "gpu", "7")
        process = self.start("--hosts", "far-b", "--run-dir", "run", spec)
        self.there("up")
        self.touch("go")
        self.set("far-b", "gpu", "8")
        self.break_connection("far-b")
        self.hear(process, "host far-b answers again, and stays set aside: expected GPU GPU-70000000-0000-4000-8000-000000000000 "
                  "there, as before, got GPU-80000000-0000-4000-8000-000000000000")
        self.set("far-b", "gpu", "7")
        said = self.hear(process, "host far-b is back")
        self.assertEqual(said.count("\n"), 1, said)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(self.log("t", 1), "GPU-70000000-0000-4000-8000-000000000000\n")

    def test_one_that_does_not_come_back_ends_a_run_that_can_do_nothing_else(self):
        spec = self.write(task("t{x}", "touch up-$1; sleep 1000", "needs = { cpus = 1 }\neach = { x = '1..2' }"))
        process = self.start("--hosts", "far-b", "--cpus", "2", "--run-dir", "run", "--wait", "1500ms", spec)
        self.there("up-1", "up-2")
        self.set("far-b", "down")
        self.break_connection("far-b")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertRegex(err, r"expected hosts that can run the 2 tasks that wait, got none \(far-b: .* was killed by SIGKILL; "
                         r"did not come back in 1.5s\); --resume goes on")
        self.assertNotIn("refused", err)
        self.assertEqual(len(self.connections("far-b")), 2, "it was tried once, after a second")
        self.assertEqual(self.tasks_left(), {})

    def test_one_that_was_stopped_there_is_left_alone(self):
        process = self.start("--hosts", "far-b", "--run-dir", "run",
                             self.write(task("t", "touch up; sleep 1000")))
        self.there("up")
        servers = [pid for pid, line in processes_with(f"MUSTER_RUNTIME_DIR={self.world}/far-b").items()
                   if line.startswith(MUSTER)]
        os.kill(min(servers), signal.SIGTERM)  # the others are its sentinel
        out, err = process.communicate()
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("host far-b: it was stopped there by SIGTERM; it is set aside\n", err)
        self.assertIn("got none (far-b: it was stopped there by SIGTERM); --resume goes on", err)
        self.assertEqual(len(self.connections("far-b")), 1)

    def test_a_run_that_is_ending_tries_no_more(self):
        spec = self.write(task("t{x}", "touch up-$1; sleep 2; echo end", "needs = { cpus = 1 }\neach = { x = '1..3' }"))
        process = self.start("--hosts", "far-b:1,far-c:1", "--run-dir", "run", "--json", spec)
        self.there("up-1", "up-2")
        process.send_signal(signal.SIGINT)
        self.hear(process, "muster starts no new task")
        self.break_connection("far-b")
        out, err = process.communicate()
        self.assertEqual(process.returncode, 128 + signal.SIGINT, err)
        self.assertEqual(sorted(each["state"] for each in self.results(out).values()), ["done", "skipped", "skipped"])
        self.assertEqual([len(self.connections(host)) for host in ("far-b", "far-c")], [1, 1])


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    unittest.main(verbosity=2)
