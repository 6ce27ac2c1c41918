"""What tests of programs share: where these are, a folder and an environment, and that nothing is left running."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

BUILD = os.environ["MUSTER_BUILD"]
SOURCE = os.environ["MUSTER_SOURCE"]
PYTHON = os.environ.get("MUSTER_TEST_PYTHON", "")
MUSTER = f"{BUILD}/bin/muster"
TRAIN = f"{BUILD}/bin/train"
OPTIONS_PROBE = f"{BUILD}/tests/options_probe"
PARALLEL_PROBE = f"{BUILD}/tests/parallel_probe"
PROBE = f"{BUILD}/tests/run_probe"
SERVER_PROBE = f"{BUILD}/tests/server_probe"
START_PROBE = f"{BUILD}/tests/start_probe"
TASK_PROBE = f"{BUILD}/tests/task_probe"
DIGITS = f"{SOURCE}/data/digits.csv.gz"
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")


def processes_of(folder):
    """Live processes whose environment or arguments name the folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = pathlib.Path(f"/proc/{pid}/environ").read_bytes() + pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if folder.encode() in text and state != "Z" and int(pid) != os.getpid():
            found.append(pid)
    return found


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="muster-programs-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def environment(self, **env):
        environment = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        environment.update({"OMP_NUM_THREADS": "1"}, **{k: str(v) for k, v in env.items()})
        return environment

    def start(self, *argv, **env):
        done = subprocess.run(argv, cwd=self.folder, env=self.environment(**env), capture_output=True, text=True, timeout=120)
        self.assertEqual(processes_of(self.folder), [], "processes left running")
        return done

    def run_muster(self, *argv, **env):
        return self.start(MUSTER, "run", "--run-dir", f"{self.folder}/run", *argv, **env)

    def assert_fails(self, done, *parts, code=None):
        text = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0, text)
        if code is not None:
            self.assertEqual(done.returncode, code, text)
        for part in parts:
            self.assertIn(part, text)
