"""`muster tasks --hosts` with a stand-in for ssh: leases of other jobs there, and hosts that are lost and come back.

    remote_tasks_test.py MUSTER FAKE_NVML      the program; a stand-in for the driver's library
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

MUSTER = FAKE_NVML = ""


def wait_for(condition, seconds=60):
    """Its value as soon as that is true; raises when it never is."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen within {seconds} s")
        time.sleep(0.02)
    return value


def task(name, script, more="needs = { cpus = 1 }"):
    """A [[task]] whose command is a shell script; with `each`, $1 is x."""
    words = ", 'sh', '{x}'" if "each" in more else ""
    script = script.replace("{", "{{").replace("}", "}}")
    return f"[[task]]\nname = '{name}'\nargv = ['sh', '-c', '''{script}'''{words}]\n{more}\n"


GPU = "needs = { gpus = 1 }"
HOLD = task("hold", "touch held; until [ -e release ]; do sleep 0.05; done", GPU)


class Remote(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-remote-"))
        self.addCleanup(subprocess.run, ["rm", "-rf", str(self.folder)])
        self.world = self.folder / "hosts"
        self.world.mkdir()
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700)
        ssh = f"{sys.executable} -B {pathlib.Path(__file__).with_name('stand_in_ssh.py')} {self.world} {FAKE_NVML}"
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "XDG_RUNTIME_DIR": str(runtime),
                            "MUSTER_SSH": ssh}

    def start(self, *args):
        process = subprocess.Popen([MUSTER, "tasks", *args], cwd=self.folder, env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        timer = threading.Timer(100, process.kill)
        timer.start()

        def end():
            timer.cancel()
            process.kill()
            process.communicate()

        self.addCleanup(end)
        return process

    def run_tasks(self, *args):
        process = self.start(*args)
        out, err = process.communicate()
        return process.returncode, out, err

    def write(self, name, *tasks):
        (self.folder / name).write_text("\n".join(tasks), encoding="utf-8")
        return name

    def there(self, *names):
        for name in names:
            wait_for((self.folder / name).exists)

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

    def log(self, name, attempt=0):
        return (self.folder / "run" / "logs" / name / f"{attempt}.log").read_text()

    def results(self, out):
        return {each["name"]: each for each in json.loads(out)["tasks"]}

    def numbers(self, result):
        return [attempt["attempt"] for attempt in result["attempts"]]


class Leases(Remote):
    def hold(self):
        """Another job, which has the GPU of b."""
        holder = self.start("--hosts", "far-b", "--run-dir", "other", self.write("hold.toml", HOLD))
        self.there("held")
        return holder

    def refused(self):
        """A run whose task was sent to a GPU that another job had just taken, and that job."""
        spec = self.write("t.toml", task("first", "touch up; until [ -e go ]; do sleep 0.05; done"),
                          task("t", 'echo "attempt $MUSTER_ATTEMPT"', GPU + "\nafter = ['first']"))
        process = self.start("--hosts", "far-b", "--run-dir", "run", "--json", "--csv", "t.csv", spec)
        self.there("up")
        holder = self.hold()
        self.touch("go")
        self.hear(process, "t could not begin (another job was faster to take its GPU), and starts again",
                  "other jobs have GPUs that are waited for: GPU 0 of far-b is held by job")
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
        self.assertEqual(row[:4], ["t", "done", "", "1"])
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
        spec = self.write("t.toml", task("t{x}", "true", GPU + "\neach = { x = '1..2' }"))
        hosts = ["--hosts", "far-b,far-c", spec]
        code, out, err = self.run_tasks("--dry-run", *hosts)
        self.assertEqual(code, 0, err)
        self.assertIn("of 2 tasks these start first; 1 wait\n", out)
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
        spec = self.write("t.toml", HOLD, task("next", "true", GPU))
        process = self.start("--hosts", "far-b", "--run-dir", "run", spec)
        self.there("held")
        code, out, err = self.run_tasks("--resume", "run", "--explain", "next")
        self.assertEqual(code, 0, err)
        self.assertIn("GPU 0 has hold", out)
        self.touch("release")
        process.communicate()
        self.assertEqual(process.returncode, 0)


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    unittest.main(verbosity=2)
