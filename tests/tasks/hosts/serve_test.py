"""`muster tasks --serve`, spoken to line by line: what it does, and what it makes of bad input.

    serve_test.py MUSTER      the program
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

MUSTER = ""


def gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


class Serve(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-serve-"))
        self.addCleanup(subprocess.run, ["rm", "-rf", str(self.folder)])
        self.version = subprocess.run([MUSTER, "--version"], capture_output=True, text=True).stdout.split()[-1]
        self.server = subprocess.Popen(
            [MUSTER, "tasks", "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.folder, env={"PATH": os.environ["PATH"], "MUSTER_RUNTIME_DIR": str(self.folder), "CUDA_VISIBLE_DEVICES": ""})
        timer = threading.Timer(60, self.server.kill)
        timer.start()
        self.addCleanup(timer.cancel)
        self.addCleanup(self.stop)

    def stop(self):
        self.server.kill()
        self.server.wait()
        for pipe in (self.server.stdin, self.server.stdout, self.server.stderr):
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def say(self, *messages):
        for message in messages:
            self.server.stdin.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        self.server.stdin.flush()

    def hear(self, kind):
        """The next message that is not `alive` must be of this kind; nothing at the end."""
        for line in self.server.stdout:
            message = json.loads(line)
            if message["muster"] == "alive":
                continue
            self.assertEqual(message["muster"], kind, message)
            return message
        self.assertEqual(kind, "nothing", "it ended")
        return None

    def begin(self):
        self.say(self.hello(), {"muster": "begin", "run_id": "r", "run_dir": str(self.folder / "run"), "mark": f"serve-test-{self.folder.name}",
                                "grace": 1000, "lease": True})
        return json.loads(self.hear("host")["inventory"])

    def hello(self, **more):
        return {"muster": "hello", "version": self.version, "name": "x", **more}

    def start(self, script, number=1, **more):
        return {"muster": "start", "id": number, "name": f"t{number}", "argv": ["sh", "-c", script.encode().decode("latin-1")], "ranks": 1, "attempt": 0,
                "units": 1000, "cpus": 1, "log": str(self.folder / "run/logs/t/0.log"), **more}

    def output_until_end(self):
        text = ""
        for line in self.server.stdout:
            message = json.loads(line)
            if message["muster"] == "alive":
                self.say(message)  # as a run does: or a slow server would end, having heard nothing
            text += message.get("bytes", "")
            if message["muster"] == "ended":
                return text, message
        self.fail("it ended before the task had")

    def refused(self, said, *messages):
        try:
            self.say(*messages)
        except BrokenPipeError:
            pass  # it had read enough
        self.assertIn(said, self.hear("cannot")["why"])
        self.hear("nothing")
        self.assertEqual(self.server.wait(), 1)

    def test_a_task(self):
        inventory = self.begin()
        self.assertEqual(len(inventory["hosts"]), 1)
        self.say(self.start("echo $MUSTER_TASK; echo é >&2; exit 3"))
        text, end = self.output_until_end()
        self.assertEqual(text.encode("latin-1").decode(), "t1\né\n")
        self.assertEqual((end["id"], end["exit_code"], end["signal"]), (1, 3, 0))
        self.server.stdin.close()
        self.assertEqual(self.server.wait(), 0)

    def test_a_task_is_asked_to_end(self):
        self.begin()
        self.say(self.start("trap 'echo asked; exit 7' TERM; echo up; while true; do sleep 0.05; done"))
        while "up" not in self.hear("output")["bytes"]:
            pass
        self.say({"muster": "end", "id": 1, "grace": 30000})
        text, end = self.output_until_end()
        self.assertEqual((text, end["exit_code"], end["sent_signal"]), ("asked\n", 7, signal.SIGTERM))

    def pids_of_a_task(self):
        self.begin()
        self.say(self.start("sleep 1000 & echo $! $$; wait"))
        return [int(pid) for pid in self.hear("output")["bytes"].split()]

    def all_gone(self, pids):
        until = time.monotonic() + 30
        while not all(gone(pid) for pid in pids):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def test_the_end_of_input_ends_its_tasks(self):
        pids = self.pids_of_a_task()
        self.server.stdin.close()
        self.assertEqual(self.server.wait(), 0)
        self.all_gone(pids)

    def test_an_end_in_the_middle_of_a_line_does_too(self):
        pids = self.pids_of_a_task()
        self.say(b'{"muster": "st')
        self.server.stdin.close()
        self.server.wait()
        self.all_gone(pids)

    def test_a_killed_server_takes_its_tasks_along(self):
        pids = self.pids_of_a_task()
        self.server.kill()
        self.all_gone(pids)

    def test_garbage_ends_its_tasks_and_is_told(self):
        pids = self.pids_of_a_task()
        self.refused("a line of the connection", b"\xff\x00 garbage\n")
        self.all_gone(pids)

    def test_sigterm_ends_its_tasks_and_is_told(self):
        pids = self.pids_of_a_task()
        self.server.terminate()
        self.assertIn("stopped there by SIGTERM", self.hear("cannot")["why"])
        self.all_gone(pids)

    def test_garbage_first(self):
        self.refused("a line of the connection", b"GET / HTTP/1.0\r\n\r\n")

    def test_a_line_that_never_ends(self):
        threading.Thread(target=self.write_much, daemon=True).start()
        self.assertIn("a longer one", self.hear("cannot")["why"])
        self.assertEqual(self.server.wait(), 1)

    def write_much(self):
        try:
            for _ in range(20):
                self.say(b"x" * (1 << 20))
        except (BrokenPipeError, ValueError):
            pass

    def test_another_version(self):
        self.refused("expected muster 9.9.9 there", self.hello(version="9.9.9"))

    def test_a_folder_that_is_not_there(self):
        self.refused("expected the folder '/no/such'", self.hello(folder="/no/such"))

    def test_a_start_before_begin(self):
        self.say(self.hello())
        self.hear("host")
        self.refused("expected a new task", self.start("true"))

    def test_a_number_twice(self):
        pids = self.pids_of_a_task()
        self.refused("expected a new task, got number 1", self.start("true"))
        self.all_gone(pids)

    def test_wrong_members(self):
        self.refused("name", self.hello(name=4))

    def test_a_mark_that_is_everybodys(self):
        self.say(self.hello())
        self.hear("host")
        self.refused("earlier", {"muster": "begin", "run_dir": "/tmp/x", "mark": "a", "earlier": [""], "grace": 0})

    def test_a_signal_that_is_none_of_a_runs(self):
        self.begin()
        self.refused("passed on to tasks", {"muster": "signal", "signal": 9})

    def test_a_gpu_that_is_not_there(self):
        self.begin()
        self.say(self.start("true", devices=["GPU-none"]))
        self.assertIn("GPU-none", self.hear("ended")["why_not"])

    def test_many_tasks_print_much_while_nobody_reads(self):
        self.begin()
        self.say(*(self.start("head -c 3000000 /dev/zero", number) for number in range(1, 9)))
        total, ended = 0, 0
        while ended < 8:
            text, _ = self.output_until_end()
            total += len(text)
            ended += 1
        self.assertEqual(total, 8 * 3000000)
        if os.environ.get("MUSTER_TEST_SANITIZE"):
            return  # a sanitizer has memory of its own
        peak = [line for line in pathlib.Path(f"/proc/{self.server.pid}/status").read_text().splitlines() if "VmHWM" in line]
        self.assertLess(int(peak[0].split()[1]), 100_000, "KiB of memory at most")


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
