"""The kit for machines with a GPU (scripts/gpu_kit.sh): what its runner makes of parts, and that its parts are there."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["MUSTER_SOURCE"])
PYTHON = os.environ.get("MUSTER_TEST_PYTHON", "")
KIT = SOURCE / "scripts/gpu_kit"
PARTS = '''
from real_parts import Part
PARTS = [
    Part("passes", "echo it holds", 20, "it holds", gpu=False),
    Part("says too little", "echo it", 20, "it holds", gpu=False),
    Part("fails", "echo why; exit 3", 20, gpu=False),
    Part("is not for this machine", "exit 77", 20, gpu=False),
    Part("hangs", "echo begun; exec sleep 600", 1, gpu=False),
    Part("measures", "seq 5", 20, gpu=False, shows=2),
    Part("needs a GPU", "echo on it", 20),
]
'''


def real_parts():
    spec = importlib.util.spec_from_file_location("parts", KIT / "parts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["parts"] = module
    spec.loader.exec_module(module)
    return module.PARTS


class Runner(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="muster-kit-")
        self.addCleanup(folder.cleanup)
        self.kit = pathlib.Path(folder.name)
        scripts = self.kit / "source/scripts/gpu_kit"
        shutil.copytree(KIT, scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "parts.py").rename(scripts / "real_parts.py")
        (scripts / "parts.py").write_text(PARTS)
        (self.kit / "lib").mkdir()

    def run_kit(self, *argv):
        env = {**os.environ, "PYTHON": PYTHON, "PATH": f"{self.kit}:/usr/bin:/bin"}
        env.pop("OUT", None)
        (self.kit / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")  # no GPU, whatever this machine has
        (self.kit / "nvidia-smi").chmod(0o755)
        return subprocess.run([sys.executable, "-B", self.kit / "source/scripts/gpu_kit/run_parts.py", *argv], env=env, capture_output=True,
                              text=True, timeout=100)

    @unittest.skipUnless(PYTHON, "no Python with torch")
    def test_each_part_has_a_line_and_what_came_of_it(self):
        done = self.run_kit()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        states = {result["part"]: result["state"] for result in json.loads((self.kit / "out/results.json").read_text())}
        self.assertEqual(states, {"passes": "passed", "says too little": "failed (no 'it holds')", "fails": "failed (3)",
                                  "is not for this machine": "skipped", "hangs": "timed out", "measures": "passed", "needs a GPU": "skipped (no GPU)"})
        self.assertIn("    4\n    5\n", done.stdout)
        self.assertIn("    why\n", done.stdout)
        self.assertIn("2 passed, 3 failed, 2 skipped, 0 not reached", done.stdout)
        self.assertIn("===== fails: echo why", (self.kit / "out/log").read_text())

    @unittest.skipUnless(PYTHON, "no Python with torch")
    def test_time_that_runs_out_is_said(self):
        done = self.run_kit("0.1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, "not reached .* passes")

    def test_a_text_that_no_part_has_is_an_error(self):
        done = self.run_kit("--only", "no such part")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr, "kit: expected parts whose names have 'no such part', got none; --list names them\n")

    def test_only_some(self):
        done = self.run_kit("--list")
        self.assertIn("GPU  needs a GPU", done.stdout)
        done = self.run_kit("--help")
        self.assertIn("--only TEXT", done.stdout)


class Parts(unittest.TestCase):
    def test_what_they_run_is_in_the_kit(self):
        script = (SOURCE / "scripts/gpu_kit.sh").read_text()
        programs = set(re.search('^programs="([^"]*)"', script, re.MULTILINE)[1].split())
        named = {"muster": "muster_cli", "muster-bench": "muster_bench"}
        for lists in (SOURCE / "tests").glob("*/CMakeLists.txt"):
            for shared in re.findall(r"^muster_test_programs\(([^)]*)\)", lists.read_text(), re.MULTILINE):
                binary, *names = shared.split()
                named.update({name: binary for name in names})
        for part in real_parts():
            for path in re.findall(r"\$SOURCE/([\w/.]+)", part.command):
                self.assertTrue((SOURCE / path).exists(), f"{part.name}: {path}")
            for program in re.findall(r"\$BUILD/(?:bin|tests|benchmarks)/(\w+)", part.command):
                self.assertIn(named.get(program, program), programs, part.name)

    def test_each_has_a_name_of_its_own_and_all_end_within_100_minutes(self):
        parts = real_parts()
        self.assertEqual(len({part.name for part in parts}), len(parts))
        self.assertLess(sum(part.limit for part in parts), 6000)

    def test_the_most_telling_come_first(self):
        self.assertEqual([part.name for part in real_parts()[:7]],
                         ["machine", "devices", "conformance over NCCL", "conformance over NCCL, three ranks on one GPU", "groups that end, over NCCL",
                          "losses as Python's, bit for bit", "a rank that dies, over NCCL"])


if __name__ == "__main__":
    unittest.main()
