#!/usr/bin/env python3
"""libmuster.so.0 as C programs have it: examples/c, compiled by a C compiler, and a program that asks each function."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ["MUSTER_PROGRAM"]
LIBRARY = os.environ["MUSTER_LIBRARY"]
COMPILER = os.environ["MUSTER_C_COMPILER"]
HEADER = SOURCE / "muster/c_api.h"
LAUNCHERS = re.compile(r"RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC_.*|MUSTER_(?!PROGRAM).*|SLURM_.*|OMPI_.*|PMI_.*")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not LAUNCHERS.fullmatch(name)}

# Asks the function that it is told with the argument that follows, and prints the code, and the answer or the error.
ASK = r"""
#include <muster/c_api.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  const char* argument = argc > 2 ? argv[2] : NULL;
  char* answer = NULL;
  int code = -1;
  if (strcmp(argv[1], "devices") == 0) code = muster_devices(argument, &answer);
  if (strcmp(argv[1], "plan") == 0) code = muster_plan(argument, &answer);
  if (strcmp(argv[1], "table") == 0) code = muster_plan_table(argument, &answer);
  if (strcmp(argv[1], "rank") == 0) code = muster_rank(&answer);
  if (strcmp(argv[1], "device") == 0) code = muster_rank_device(argument, &answer);
  if (strcmp(argv[1], "nowhere") == 0) code = muster_plan(argument, NULL);
  if (strcmp(argv[1], "version") == 0) printf("%d %s\n", muster_c_api_version(), muster_version());
  printf("%d\n%s\n", code, code == MUSTER_OK ? answer : muster_last_error());
  muster_free(answer);
  return 0;
}
"""
# Two GPUs of a driver that there is none of: tests/device/fake_nvml.cc.
FAKE_GPUS = {"MUSTER_NVML_LIBRARY": os.environ["MUSTER_FAKE_NVML"],
             "FAKE_NVML": "version=550.54|uuid=GPU-a,name=A,total=8589934592,free=8589934592,pci=0000:01:00.0,procs=7:100|"
                          "uuid=GPU-b,name=B,total=8589934592,free=1073741824,pci=0000:02:00.0"}
BOX = {"schema": "muster.devices/1", "hosts": [{"name": "box", "gpus": [
    {"index": index, "uuid": f"GPU-{index}", "model": "NVIDIA A100", "memory_total_bytes": 40 << 30} for index in range(4)]}]}


class CApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-c-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "ask.c").write_text(ASK)
        (cls.folder / "box.json").write_text(json.dumps(BOX))
        cls.compile(cls.folder / "ask.c", "ask")
        cls.compile(SOURCE / "examples/c/rank.c", "rank")

    @classmethod
    def compile(cls, source, name):
        done = subprocess.run([COMPILER, "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{SOURCE}", source, LIBRARY,
                               f"-Wl,-rpath,{os.path.dirname(LIBRARY)}", "-o", cls.folder / name], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def ask(self, *argv, **more):
        done = subprocess.run([self.folder / "ask", *argv], env={**ENVIRONMENT, **more}, capture_output=True, text=True, check=True)
        code, _, answer = done.stdout.partition("\n")
        return int(code), answer.rstrip("\n")

    def asked(self, *argv, **more):
        code, answer = self.ask(*argv, **more)
        self.assertEqual(code, 0, answer)
        return json.loads(answer)

    def box(self, **request):
        return json.dumps({"inventory": str(self.folder / "box.json"), **request})

    def test_versions(self):
        version = re.search(r"project\(muster VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        number = re.search(r"MUSTER_C_API_VERSION (\d+)", HEADER.read_text()).group(1)
        done = subprocess.run([self.folder / "ask", "version"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.splitlines()[0], f"{number} {version}")

    def test_devices_are_those_of_the_program(self):
        told = self.asked("devices", self.box())
        self.assertEqual([gpu["uuid"] for gpu in told["hosts"][0]["gpus"]], ["GPU-0", "GPU-1", "GPU-2", "GPU-3"])
        here = subprocess.run([PROGRAM, "devices", "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        self.assertEqual([gpu["uuid"] for gpu in self.asked("devices")["hosts"][0]["gpus"]], [gpu["uuid"] for gpu in json.loads(here)["hosts"][0]["gpus"]])

    def test_a_plan_is_that_of_the_program(self):
        told = self.asked("plan", self.box(n=3, gpus="1-3", scores={"3": 9, "1": 2, "2": 5}))
        (self.folder / "scores.json").write_text(json.dumps({"3": 9, "1": 2, "2": 5}))
        dry = [PROGRAM, "run", "--dry-run", "--inventory", self.folder / "box.json", "-n", "3", "--gpus", "1-3", "--scores", self.folder / "scores.json"]
        self.assertEqual(told["plan"], json.loads(subprocess.run([*dry, "--json"], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout))
        table = subprocess.run(dry, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
        self.assertTrue(table.startswith(told["table"]), table)
        self.assertEqual(self.ask("table", json.dumps(told["plan"])), (0, told["table"].rstrip("\n")))
        self.assertEqual([rank["device"]["index"] for rank in told["plan"]["ranks"]], [3, 2, 1])

    def test_what_a_request_may_have(self):
        mapped = self.asked("plan", self.box(n=4, map=[3, 1, 0, 2], global_batch=10, visibility="own"))["plan"]
        self.assertEqual([rank["device"]["index"] for rank in mapped["ranks"]], [3, 1, 0, 2])
        self.assertEqual(sum(rank["batch_share"] for rank in mapped["ranks"]), 10)
        self.assertEqual(mapped["visibility"], "own")
        shared = self.asked("plan", self.box(n=5, surplus="share", rank_memory=["1GiB"]))["plan"]
        self.assertEqual(len(shared["ranks"]), 5)
        self.assertEqual(len(self.asked("plan", self.box(mesh="dp=2,tp=2"))["plan"]["ranks"]), 4)

    def test_wrong_requests_have_a_code_and_a_text(self):
        for request, expected in (("{", "plan"), ("[]", "expected a JSON object, got array"), (self.box(n=0), "expected a number from 1"),
                                  (self.box(ranks=3), "ranks"), (self.box(scores=3), "expected an object of numbers"),
                                  (self.box(map=["a"]), "expected GPU indices"), (self.box(surplus="x"), "expected")):
            code, text = self.ask("plan", request)
            self.assertEqual(code, 1, text)
            self.assertIn(expected, text)
        self.assertEqual(self.ask("plan", self.box(gpus="7"))[0], 1)
        self.assertEqual(self.ask("devices", json.dumps({"inventory": "/nowhere"}))[0], 7)
        code, text = self.ask("nowhere", "{}")
        self.assertEqual(code, 1, text)
        self.assertIn("expected a place for the text, got NULL", text)

    def test_a_rank_by_every_launcher(self):
        alone = self.asked("rank")
        self.assertEqual((alone["source"], alone["rank"], alone["world_size"]), ("", 0, 1))
        for source, variables in (("torchrun", {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}),
                                  ("Open MPI", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}),
                                  ("Slurm", {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"})):
            told = self.asked("rank", **variables)
            self.assertEqual((told["source"], told["rank"], told["world_size"]), (source, 1, 2))
        code, text = self.ask("rank", RANK="1")
        self.assertEqual(code, 1, text)
        self.assertIn("RANK is set but WORLD_SIZE is not", text)

    def test_the_device_of_a_rank(self):
        box = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "MUSTER_INVENTORY": str(self.folder / "box.json")}
        told = self.asked("device", **box)
        self.assertEqual(told["assignment"]["device"]["uuid"], "GPU-2")
        self.assertIsNone(told["ordinal"])  # the machine is a file
        many = {**box, "LOCAL_RANK": "5", "RANK": "5", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "6"}
        self.assertEqual(self.ask("device", **many)[0], 3)
        self.assertEqual(self.asked("device", '{"surplus": "share"}', **many)["assignment"]["device"]["uuid"], "GPU-1")
        self.assertFalse(self.asked("device", '{"surplus": "drop"}', **many)["takes_part"])

    def test_gpus_of_this_machine(self):
        gpus = self.asked("devices", **FAKE_GPUS)["hosts"][0]["gpus"]
        self.assertEqual([(gpu["uuid"], gpu["memory_free_bytes"] >> 30, len(gpu["processes"])) for gpu in gpus], [("GPU-a", 8, 1), ("GPU-b", 1, 0)])
        fastest = self.asked("plan", '{"gpus": "fastest:1", "scores": {"0": 1, "1": 2}}', **FAKE_GPUS)["plan"]
        self.assertEqual([rank["device"]["uuid"] for rank in fastest["ranks"]], ["GPU-b"])

    def test_ordinals_of_a_rank_follow_what_it_sees(self):
        second = {**FAKE_GPUS, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        told = self.asked("device", **second)
        self.assertEqual((told["ordinal"], told["assignment"]["device"]["uuid"], told["all_own_gpus"], told["visible"]), (1, "GPU-b", True, ["GPU-a", "GPU-b"]))
        swapped = self.asked("device", **second, CUDA_VISIBLE_DEVICES="1,0")
        self.assertEqual((swapped["ordinal"], swapped["assignment"]["device"]["uuid"]), (1, "GPU-a"))
        alone = self.asked("device", **second, CUDA_VISIBLE_DEVICES="1")  # a mask of its own, as a scheduler gives it
        self.assertEqual((alone["ordinal"], alone["assignment"]["device"]["uuid"]), (0, "GPU-b"))
        hidden = self.asked("device", **second, CUDA_VISIBLE_DEVICES="")
        self.assertEqual((hidden["ordinal"], hidden["all_own_gpus"]), (None, False))

    def test_a_rank_of_the_launcher_has_what_its_plan_says(self):
        run = [PROGRAM, "run", "--quiet", "--no-lease", "--run-dir", self.folder / "planned"]
        environment = {**ENVIRONMENT, **FAKE_GPUS, "MUSTER_RUNTIME_DIR": str(self.folder)}

        def told(*flags):
            done = subprocess.run([*run, *flags, "--no-collapse", "--log-line-prefix-template", "${rank}|", self.folder / "ask", "device"], cwd=self.folder, env=environment,
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [json.loads(line) for line in sorted(re.findall(r"\{.*\}", done.stdout))]
        own = told("-n", "2")
        self.assertEqual([(one["ordinal"], one["all_own_gpus"]) for one in own], [(0, True), (1, True)])
        shared = told("-n", "2", "--gpus", "1", "--surplus", "share")
        self.assertEqual([(one["ordinal"], one["all_own_gpus"]) for one in shared], [(0, False), (0, False)])

    def test_the_example_runs_alone_and_under_the_launcher(self):
        alone = subprocess.run([self.folder / "rank"], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        self.assertIn('"world_size":1', alone.stdout)
        run = subprocess.run([PROGRAM, "run", "--nproc-per-node", "2", "--run-dir", self.folder / "run", self.folder / "rank"], cwd=self.folder, env=ENVIRONMENT,
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, r"time of 20 steps on 2 ranks: compute [1-9]\d* %")

    def test_only_its_functions_are_to_be_seen(self):
        shown = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        names = {line.split()[-1].split("@")[0] for line in shown.splitlines()} - {"MUSTER_1"}
        declared = set(re.findall(r"MUSTER_C_API [^;(]*?(muster_\w+)\(", HEADER.read_text()))
        self.assertEqual(names, declared)

    def test_it_needs_the_c_library_alone(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout)
        self.assertFalse([name for name in needed if not re.match(r"(libc|libm|ld-linux.*|libdl|libpthread)\.so", name)], needed)


if __name__ == "__main__":
    unittest.main()
