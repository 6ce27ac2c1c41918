#!/usr/bin/env python3
"""The package muster without torch, from its sources: MUSTER_PROGRAM and MUSTER_LIBRARY are the build's."""
import contextlib
import datetime
import doctest
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "python"
PROGRAM = os.environ["MUSTER_PROGRAM"]
LAUNCHERS = re.compile(r"RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC_.*|MUSTER_(?!PROGRAM|LIBRARY).*|SLURM_.*|OMPI_.*|PMI_.*")
for name in [name for name in os.environ if LAUNCHERS.fullmatch(name)]:
    del os.environ[name]
os.environ.update(PYTHONPATH=str(PACKAGE), PYTHONDONTWRITEBYTECODE="1", PYTHON_EXEC=sys.executable)
sys.path.insert(0, str(PACKAGE))

import muster  # noqa: E402
from muster import _flags, _keywords, _request, _run_flags, _task  # noqa: E402
from muster._tensorboard import EventFile  # noqa: E402
from muster.metrics import _mean_and_count, _means  # noqa: E402

BOX = {"schema": "muster.devices/1", "hosts": [{"name": "box", "gpus": [
    {"index": index, "uuid": f"GPU-{index}0", "model": "NVIDIA A100", "memory_total_bytes": 40 << 30, "memory_free_bytes": (40 - 10 * index) << 30,
     "numa_node": index // 2, "health": "ok" if index != 3 else "GPU is lost", "processes": [{"pid": 7, "used_memory_bytes": 1}] if index == 1 else []}
    for index in range(4)]}]}


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-package-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.box = str(self.folder / "box.json")
        (self.folder / "box.json").write_text(json.dumps(BOX))

    def python(self, script, *, code=0, given="", **more):
        """What a script prints, and what it says."""
        done = subprocess.run([sys.executable, "-c", script], cwd=self.folder, env={**os.environ, **more}, input=given, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout, done.stderr

    def under_the_launcher(self, script, *flags, code=0):
        """The folder of the run, and what it said."""
        (self.folder / "rank.py").write_text(script)
        done = subprocess.run([PROGRAM, "run", "--run-dir", "run", *flags, "rank.py"], cwd=self.folder, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return self.folder / "run", done.stdout + done.stderr


class Package(PackageTest):
    def test_its_import_brings_neither_torch_nor_numpy(self):
        out, _ = self.python("import sys, muster; print([name for name in ('torch', 'numpy', 'subprocess', 'concurrent.futures', 'multiprocessing', 'socket') if name in sys.modules])")
        self.assertEqual(out, "[]\n")

    def test_the_version_is_that_of_the_sources(self):
        version = re.search(r"project\(muster VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(muster.__version__, version)

    def test_the_module_is_the_program(self):
        done = subprocess.run([sys.executable, "-m", "muster", "--version"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, f"muster {muster.__version__}\n"))
        self.assertEqual(subprocess.run([sys.executable, "-m", "muster", "run", "--flag"], capture_output=True).returncode, 2)

    def test_what_is_missing_is_said(self):
        _, said = self.python("import muster; muster.devices()", code=1, MUSTER_LIBRARY="/nowhere/libmuster.so.0")
        self.assertIn("muster.errors.Unavailable: muster: expected the library /nowhere/libmuster.so.0, got: ", said)
        _, said = self.python("from muster._program import program; program()", code=1, MUSTER_PROGRAM="/nowhere/muster")
        self.assertIn("MUSTER_PROGRAM: expected the program muster, got '/nowhere/muster', which cannot be run", said)

    def test_every_name_that_it_offers_is_there_and_documented(self):
        for name in muster.__all__:
            self.assertTrue(hasattr(muster, name), name)
            if callable(getattr(muster, name)):
                self.assertTrue(getattr(muster, name).__doc__, name)

    def test_the_examples_of_its_helpers_are_right(self):
        for module, least in (_flags, 4), (_keywords, 2), (_run_flags, 1), (_task, 2):
            failed, tried = doctest.testmod(module)
            self.assertEqual((failed, tried >= least), (0, True), module.__name__)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy here")
    def test_its_types_are_right(self):
        done = subprocess.run([sys.executable, "-m", "mypy", "--cache-dir", self.folder / "mypy"], cwd=PACKAGE, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "no mypy here")
    def test_those_of_a_users_program_are_known(self):
        path = pathlib.Path(self.folder, "script.py")
        path.write_text(textwrap.dedent("""\
            from typing import List
            import muster
            def train(epochs: int) -> float:
                return float(epochs * muster.batch_share(32))
            def main() -> None:
                with muster.Executor() as pool:
                    future: muster.TaskFuture[float] = pool.submit(train, 3, gpus=0.5)
                    losses: List[float] = [future.result(), *pool.map(train, [1, 2], gpus=0.5), *muster.spawn(train, (3,))]
                    wrong: str = future.result()
                    print(losses, wrong)
            """), encoding="utf-8")
        done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", self.folder / "mypy", path], cwd=self.folder,
                              env={**os.environ, "MYPYPATH": str(PACKAGE)}, capture_output=True, text=True)
        self.assertIn("script.py:9: error: Incompatible types in assignment", done.stdout)
        self.assertIn("Found 1 error in 1 file", done.stdout)

    def test_the_program_gets_the_leases_of_its_job_alone(self):
        runtime = self.folder.resolve() / f"muster-{os.geteuid()}"
        runtime.mkdir()
        paths = [runtime / "gpu-3", runtime / "mig-gpu-3_1_0", runtime / "taking", self.folder / "gpu-3"]
        out, _ = self.python(textwrap.dedent("""\
            import os, sys
            from muster import _leases
            for number, path in enumerate(sys.stdin.read().split(), 50):
                os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
            os.dup2(os.pipe()[0], 70)
            os.environ["MUSTER_LEASE_FD"] = ",".join(["", "x", "\N{SUPERSCRIPT TWO}", *map(str, [*range(50, 56), 70, 71])])
            print(*[os.readlink(f"/proc/self/fd/{fd}") for fd in _leases.lease_descriptors()])
            """), given="\n".join(map(str, paths)))
        self.assertEqual(out.split(), [str(path) for path in paths[:2]])


class Devices(PackageTest):
    def test_those_of_a_file(self):
        devices = muster.devices(inventory=self.box)
        self.assertEqual([device.index for device in devices], [0, 1, 2, 3])
        second = devices[1]
        self.assertEqual((second.uuid, second.model, second.numa, second.health), ("GPU-10", "NVIDIA A100", 0, "ok"))
        self.assertEqual((second.memory >> 30, second.free >> 30, second.used >> 30), (40, 30, 10))
        self.assertEqual([process.pid for process in second.processes], [7])
        self.assertEqual(str(second), "GPU 1, NVIDIA A100, GPU-10, 10.0 of 40.0 GiB used")
        self.assertIn("GPU is lost", str(devices[3]))

    def test_those_of_this_machine_are_the_programs(self):
        told = json.loads(subprocess.run([PROGRAM, "devices", "--json"], capture_output=True, text=True, check=True).stdout)
        self.assertEqual([device.uuid for device in muster.devices()], [gpu["uuid"] for gpu in told["hosts"][0]["gpus"]])

    def test_a_file_that_is_not_there(self):
        with self.assertRaisesRegex(muster.Error, "/nowhere") as raised:
            muster.devices(inventory="/nowhere")
        self.assertEqual(raised.exception.code, "io")


class Plans(PackageTest):
    def indices(self, *args, **request):
        return [rank.device.index for rank in muster.plan(*args, inventory=self.box, **request)]

    def test_ranks_with_devices_and_reasons(self):
        plan = muster.plan(n=2, inventory=self.box)
        self.assertEqual((len(plan), plan.policy, plan[1].rank, plan[1].device.index), (2, "sequential", 1, 1))
        self.assertEqual(plan[1].reason, "sequential: 2 of 3 GPUs")
        self.assertEqual((plan[1].device.memory >> 30, plan[1].device.ordinal), (40, 1))
        self.assertIn("rank  host  local  device", str(plan))
        self.assertEqual([rank.rank for rank in plan[0:2]], [0, 1])

    def test_a_plan_is_read_back(self):
        plan = muster.plan(n=2, inventory=self.box, global_batch=9)
        again = muster.Plan.from_json(plan.to_json())
        self.assertEqual(plan, again)
        self.assertEqual([rank.batch_share for rank in again], [5, 4])
        with self.assertRaises(muster.InvalidArgument):
            muster.Plan.from_json("{}")

    def test_selections(self):
        self.assertEqual(self.indices(gpus=[2, 0]), [2, 0])
        self.assertEqual(self.indices(gpus="!1"), [0, 2])
        self.assertEqual(self.indices(gpus=muster.devices(inventory=self.box)[1]), [1])
        self.assertEqual(self.indices(2, scores={0: 100, 1: 90, 2: 110}), [2, 0])
        self.assertEqual(len(self.indices(mesh={"dp": 1, "tp": 2})), 2)
        self.assertEqual(self.indices(1, rank_memory="35GiB"), [0])

    def test_a_map_is_a_list_or_a_function(self):
        self.assertEqual(self.indices(3, map=[2, 1, 0]), [2, 1, 0])
        self.assertEqual(self.indices(3, map=["GPU-2", 1, "GPU-00"]), [2, 1, 0])
        self.assertEqual(self.indices(4, surplus="share", map=lambda rank, devices: devices[rank // 2]), [0, 0, 1, 1])
        self.assertEqual(self.indices(2, gpus="2,0", map=lambda rank, devices: devices[rank].uuid), [2, 0])
        self.assertEqual(self.indices(map=lambda rank, devices: len(devices) - 1 - rank), [2, 1, 0])
        self.assertEqual(self.indices(2, map={0: 2, 1: "GPU-0"}), [2, 0])
        for wrong in ({1: 2, 2: 1}, {"a": 1}, {}, []):
            with self.assertRaisesRegex(muster.InvalidArgument, "^map: expected the .*local rank.*, got "):
                self.indices(2, map=wrong)
        with self.assertRaisesRegex(muster.InvalidArgument, "map: expected an index, a UUID or a Device of GPUs 0, 1, 2, got 'GPU-x' .rank 1.; correct it"):
            self.indices(2, map=lambda rank, devices: "GPU-x" if rank else 0)

    def test_a_map_without_gpus_is_an_error_of_the_map(self):
        box = self.folder / "none.json"
        box.write_text(json.dumps({"schema": "muster.devices/1", "hosts": [{"name": "box", "gpus": []}]}), encoding="utf-8")
        for which in (lambda rank, devices: devices[rank]), ["GPU-0"]:
            with self.assertRaisesRegex(muster.Unavailable, "^map: expected a GPU that can be used, got none: host box"):
                muster.plan(n=1, inventory=str(box), map=which)

    def test_errors_are_exceptions_by_what_to_do(self):
        for wrong in ({"n": 0}, {"gpus": "9"}, {"policy": "none"}, {"n": 9}, {"gpus": [1.5]}, {"gpus": 1.0}, {"gpus": []}, {"gpus": ""}):
            with self.assertRaises(ValueError) as raised:
                muster.plan(inventory=self.box, **wrong)
            self.assertEqual(raised.exception.code, "invalid_argument")


    def test_errors_name_keywords(self):
        """And not the flags of the program, which the caller has not written."""
        for wrong, expected in (
                ({"n": 2, "scores": {0: 100, 1: 90}},
                 'policy="fastest": expected a score for each GPU, got none for GPU 2 of host box.*; give scores= with all of them, or select those '
                 "that have one by gpus="),
                ({"n": 9}, 'n: expected at most 3 ranks on host box .*, got 9; give n=3 or less, or say what the others get: surplus="cpu", "drop" or "share"'),
                ({"n": 0}, "n: expected a number from 1, 'auto', 'cpu' or 'gpu', got 0"),
                ({"gpus": "8"}, r"gpus=8: expected the index of a GPU.*\n  gpus:  8\n         \^"),
                ({"gpus": "GPU-zzz"}, "gpus='GPU-zzz': expected hexadecimal digits"),
                ({"n": 2, "policy": "memory", "scores": {0: 1}}, 'scores: expected policy fastest, gpus="fastest:N" or global_batch, which go by them'),
                ({"n": 2, "map": [0, 0]}, 'policy="list": expected a GPU of its own for each rank, .*; surplus="share" allows it'),
                ({"n": 2, "rank_memory": "40 apples"}, "rank_memory: expected a number with B, KB"),
                ({"n": 2, "policy": ""}, "policy: expected a value, got ''; give one, or leave it out")):
            with self.assertRaisesRegex(muster.InvalidArgument, f"^{expected}") as raised:
                muster.plan(inventory=self.box, **wrong)
            self.assertNotIn("--", str(raised.exception))
        with self.assertRaisesRegex(muster.InvalidArgument, "^muster.spawn: gpus='GPU-zzz': expected .*\n  gpus:  GPU-zzz\n"):
            muster.spawn(print, inventory=self.box, gpus="GPU-zzz")


class Values(PackageTest):
    class Two:
        def __index__(self):
            return 2

    def test_of_other_packages_are_taken(self):
        box, two = pathlib.Path(self.box), self.Two()
        self.assertEqual(len(muster.devices(inventory=box)), 4)
        self.assertEqual([rank.device.index for rank in muster.plan(n=two, inventory=box, map=[two, 0])], [2, 0])
        self.assertEqual([rank.device.index for rank in muster.plan(n=two, inventory=box, gpus=[two, 1])], [2, 1])
        self.assertEqual(_run_flags.run_flags({"n": two, "run_dir": pathlib.Path("a"), "quiet": 1, "no_lease": 0, "wait": "5m"}, "/tmp"),
                         ["-n", "2", "--run-dir", "a", "--quiet", "--wait=5m"])
        minute = datetime.timedelta(minutes=1)
        self.assertEqual(_run_flags.run_flags({"timeout": minute, "wait": minute}, "/tmp"), ["--timeout", "60.0", "--wait=60.0"])

    def test_a_path_may_begin_with_a_tilde(self):
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            for box in "~/box.json", pathlib.Path("~/box.json"):
                self.assertEqual(len(muster.devices(inventory=box)), 4)
                self.assertEqual(len(muster.plan(n=2, inventory=box, map=lambda rank, devices: rank)), 2)
                muster.metrics(1, folder=box.parent if isinstance(box, pathlib.Path) else "~", loss=1)
            self.assertEqual(muster.continue_metrics(0, folder="~"), 2)
            flags = ("config", "hostfile", "inventory", "log_dir", "plan", "run_dir", "scores", "secret_file", "topology", "workdir")
            given = _run_flags.run_flags({**dict.fromkeys(flags, "~/a"), "map": "@~/a", "role": "~/a"}, "/tmp")
            self.assertEqual(given[1::2], [f"{self.folder}/a"] * len(flags) + [f"@{self.folder}/a", "~/a"])
        out, _ = self.python("import muster; print(muster.Executor(cpu_slots=1, run_dir='~/runs/a').submit(muster.run_dir).result())", HOME=str(self.folder))
        self.assertEqual(out, f"{self.folder}/runs/a/1-run_dir\n")

    def test_arrays_are_lists(self):
        def array(values):
            """As those of numpy and torch: with __index__, which raises where there are dimensions."""
            class Array:
                ndim = 1 if isinstance(values, list) else 0
                def __index__(self):
                    if self.ndim:
                        raise TypeError("only integer scalar arrays can be converted to a scalar index")
                    return values
                def __iter__(self):
                    if not self.ndim:
                        raise TypeError("iteration over a 0-d array")
                    return map(array, values)
            return Array()
        for gpus, expected in ((array([2, 1]), [2, 1]), (array(2), [2]), ([array(2), array(0)], [2, 0])):
            self.assertEqual([rank.device.index for rank in muster.plan(inventory=self.box, gpus=gpus)], expected)
        self.assertEqual([rank.device.index for rank in muster.plan(n=2, inventory=self.box, map=array([2, 0]))], [2, 0])
        with self.assertRaisesRegex(muster.InvalidArgument, "^gpus: expected an index, a UUID or a Device, got "):
            muster.plan(inventory=self.box, gpus=array([[2, 1]]))
        for keyword in "ranks", "retries":
            with self.assertRaisesRegex(muster.InvalidArgument, f"^muster.Executor.submit: expected .*{keyword}.* got .*; correct"):
                _request.request_of(**{keyword: array([1, 2])})
        for gpus, told in ((array([2, 4]), ""), (array([2]), ""), (array(2), "muster.spawn: info: gpus=2 is GPU 2 alone; ")):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                _flags.tell_of_one_gpu("muster.spawn", gpus)
            self.assertEqual(said.getvalue().partition("write")[0], told)

    def test_memory_has_a_unit(self):
        for few in 40, "40", "1KiB":
            with self.assertRaisesRegex(muster.InvalidArgument, "^memory: expected 1MiB or more, got .*, which is .* bytes; write the unit, as in memory='8GiB'"):
                _request.request_of(memory=few)
        self.assertEqual([_request.request_of(memory=memory).need.memory for memory in (0, 2**20, "8GiB")], [0, 2**20, 2**33])
        for plan in (lambda few: muster.plan(n=1, inventory=self.box, rank_memory=few)), (lambda few: _run_flags.run_flags({"rank_memory": few}, "/tmp")):
            for few in 40, [2**30, 40], self.Two():
                with self.assertRaisesRegex(muster.InvalidArgument, "^rank_memory: expected 1MiB or more, got "):
                    plan(few)
        self.assertEqual([rank.device.index for rank in muster.plan(n=1, inventory=self.box, rank_memory=[35 * 2**30])], [0])
        self.assertEqual(_run_flags.run_flags({"rank_memory": [2**30, "20GiB"]}, "/tmp"), ["--rank-memory", "1073741824B,20GiB"])

    def test_wrong_ones_are_named(self):
        for wrong in ({"map": 1}, {"scores": [1, 2]}, {"scores": {1: float("nan")}}, {"mesh": [2, 2]}, {"rank_memory": 1.5}, {"n": True}):
            with self.assertRaisesRegex(muster.InvalidArgument, f"^{list(wrong)[0]}: expected .*, got .*; "):
                muster.plan(**{"n": 2, "inventory": self.box, **wrong})
        self.assertRaisesRegex(muster.InvalidArgument, "expected a text, got bytes", muster.Plan.from_json, b"{}")
        for wrong in ({"quiet": "x"}, {"n": True}, {"tee": True}, {"max_restarts": True}, {"dry_run": True}, {"help": True}, {"nprocs": 2}, {"num_processes": 2}, {"devices": 2}, {"num_nodes": 2}, {"join": False}, {"daemon": True},
                      {"start_method": "fork"}, {"env": ["A=1"]},
                      {"env": {"A": None}}, {"env": {"A=B": "c"}}, {"n": 1, "nproc_per_node": 2}, {"hosts": {}}):
            with self.assertRaisesRegex(muster.InvalidArgument, f"{list(wrong)[0]}.*, got |, got {list(wrong)[0]}="):
                _run_flags.run_flags(wrong, "/tmp")
        self.assertRaisesRegex(muster.InvalidArgument, "write kwargs=", muster.spawn, print, (), [1])


class Ranks(PackageTest):
    FACTS = "import muster; print(muster.rank(), muster.world_size(), muster.local_rank(), muster.is_main(), muster.run_dir(), muster.attempt(), muster.batch_share(7))"

    def test_alone(self):
        self.assertEqual(self.python(self.FACTS)[0], "0 1 0 True None 0 7\n")

    def test_of_another_launcher(self):
        self.assertEqual(self.python(self.FACTS, RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", TORCHELASTIC_RESTART_COUNT="2")[0], "3 4 1 False None 2 7\n")

    def test_of_muster_run(self):
        folder, said = self.under_the_launcher(self.FACTS, "-n", "2", "--global-batch", "5")
        self.assertIn(f"0 2 0 True {folder} 0 3\n", said)
        self.assertIn(f"1 2 1 False {folder} 0 2\n", said)

    def test_an_environment_that_contradicts_itself(self):
        self.assertIn("RANK is set but WORLD_SIZE is not", self.python(self.FACTS, code=1, RANK="1")[1])

    def test_where_its_time_goes_is_seen(self):
        script = """
import muster, time
from muster import _abi
for step in range(25):
    with muster.span("load", "data"):
        time.sleep(0.004)
    with muster.span("step", "compute"):
        time.sleep(0.004)
    _abi.library().muster_note_step(step)
"""
        _, said = self.under_the_launcher(script, "-n", "2", "--trace")
        self.assertRegex(said, r"time of 25 steps on 2 ranks: compute [1-9]\d* %, communication 0 %, data [1-9]\d* %")
        names = {event.get("name") for event in json.loads((self.folder / "run/trace.json").read_text())["traceEvents"]}
        self.assertTrue({"load", "step"} <= names, names)

    def test_a_span_costs_nothing_where_nobody_looks(self):
        @muster.span("work")
        def work(value):
            return value + 1
        with muster.span("outer"):
            self.assertEqual(work(1), 2)
        self.assertEqual(work.__name__, "work")
        with self.assertRaisesRegex(ValueError, "span: expected a category of other, compute"):
            muster.span("work", "sleep")
        with self.assertRaisesRegex(muster.InvalidArgument, "span: expected a text as its name, got 3; "):
            muster.span(3)

    def test_a_span_of_a_function_that_only_begins_is_refused(self):
        async def later(): pass
        def values(): yield 1
        for function in later, values:
            with self.assertRaisesRegex(muster.InvalidArgument, f"generator '{function.__name__}', whose call only begins it; write `with muster.span"):
                muster.span("work")(function)

    def test_what_a_rank_notes_is_a_number(self):
        script = """
import muster
from types import SimpleNamespace
note = lambda **told: muster.Context.note(SimpleNamespace(_counts=True, _note_loss=None), **told)
with muster.span("odd \\udcff\\0"):
    note(step=3, samples=2.0)
for wrong in {"step": 2**70}, {"step": float("nan")}, {"samples": "many"}:
    try:
        note(**wrong)
    except muster.InvalidArgument as error:
        print(error)
"""
        _, said = self.under_the_launcher(script, "-n", "1")
        for part in "step, got 1180591620717411303424", "step, got nan", "samples, got 'many'":
            self.assertIn(f"ctx.note: expected one number as {part}; correct it", said)


class Backends(PackageTest):
    def test_the_backend_follows_the_device_and_what_is_installed(self):
        from types import SimpleNamespace

        from muster._join import _backend_name
        cpu, cuda = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")
        for has, asked, told, device, own, expected in (
                (True, None, "auto", cpu, False, "muster"), (False, None, "auto", cpu, False, "gloo"),
                (True, None, "auto", cuda, True, "cpu:muster,cuda:nccl"), (False, None, "auto", cuda, True, "cpu:gloo,cuda:nccl"),
                (True, None, "auto", cuda, False, "cpu:muster,cuda:gloo"), (True, "muster", "auto", cuda, True, "cpu:muster,cuda:nccl"),
                (True, "gloo", "auto", cuda, True, "gloo"), (True, None, "gloo", cpu, False, "gloo"),
                (True, "gloo", "shm", cpu, False, "muster"), (True, "nccl", "auto", cuda, True, "nccl")):
            with mock.patch("muster._torch.has_backend", lambda has=has: has), mock.patch.dict(os.environ, MUSTER_BACKEND=told):
                self.assertEqual(_backend_name(asked, device, own), expected)
        with self.assertRaisesRegex(muster.InvalidArgument, "backend: expected a GPU for nccl, got cpu"):
            _backend_name("nccl", cpu, False)
        with mock.patch.dict(os.environ, MUSTER_BACKEND="mpi"), self.assertRaisesRegex(muster.InvalidArgument, "got 'mpi'"):
            _backend_name(None, cpu, False)


class Metrics(PackageTest):
    def lines(self):
        return (self.folder / "metrics.jsonl").read_text().splitlines()

    def test_lines_are_those_of_the_library(self):
        means = muster.metrics(3, folder=str(self.folder), loss=0.25, samples=8.0, top1=(0.5, 4), none=(float("nan"), 0), lost=float("inf"))
        self.assertEqual(means, {"loss": 0.25, "samples": 8.0, "top1": 0.5, "lost": float("inf")})
        self.assertEqual(self.lines(), ['{"step":3,"loss":0.25,"samples":8,"top1":0.5,"lost":null}'])

    def test_steps_that_are_taken_again_are_in_the_file_once(self):
        (self.folder / "metrics.jsonl").write_text('{"step":1}\n{"step":2}\n{"step":3}\n{"ste')
        script = f"import muster; muster.metrics(2, folder={str(self.folder)!r}, loss=1)"
        _, said = self.python(script, MUSTER_ATTEMPT="1", RANK="0", WORLD_SIZE="1")
        self.assertEqual(self.lines(), ['{"step":1}', '{"step":2,"loss":1}'])
        self.assertEqual((self.folder / "metrics.jsonl.replaced").read_text(), '{"step":2}\n{"step":3}\n{"ste\n')
        self.assertIn("metrics: 3 lines from step 2 on moved to", said)

    def test_parts_of_steps_before_a_restart_stay(self):
        def steps_after(attempt, *steps):
            script = f"import muster\nfor step in {steps}: muster.metrics(step, folder={str(self.folder)!r}, loss=1)"
            self.python(script, MUSTER_ATTEMPT=str(attempt), RANK="0", WORLD_SIZE="1")
            return [json.loads(line)["step"] for line in self.lines()]
        steps_after(0, 0.5, 1.5, 2.5)
        steps_after(0, 0.5, 1, 1.5, 2.5, 3.3, 3.4, 3.6)
        self.assertEqual(steps_after(1, 3.4), [0.5, 1.5, 2.5, 0.5, 1, 1.5, 2.5, 3.3, 3.4])
        self.assertEqual(steps_after(2, 3), [0.5, 1.5, 2.5, 0.5, 1, 1.5, 2.5, 3])
        self.assertEqual(steps_after(3, 1), [0.5, 1.5, 2.5, 0.5, 1], "the earlier training's stay")
        self.assertEqual(steps_after(4, 0.5), [0.5], "from the beginning")

    def test_a_resumed_training_says_where_it_goes_on(self):
        (self.folder / "metrics.jsonl").write_text('{"step":1}\n{"step":1}\n{"step":2}\n{"step":2.5}\n{"step":3}\n')
        script = f"import muster; print(muster.continue_metrics(2, folder={str(self.folder)!r})); muster.metrics(3, folder={str(self.folder)!r}, loss=1)"
        for attempt in "0", "1":
            printed, said = self.python(script, MUSTER_ATTEMPT=attempt, RANK="0", WORLD_SIZE="1")
            self.assertEqual(self.lines(), ['{"step":1}', '{"step":1}', '{"step":2}', '{"step":3,"loss":1}'])
            self.assertEqual(printed, "2\n" if attempt == "0" else "1\n")
            self.assertRegex(said, r"metrics: (2 lines|1 line) after step 2 moved to")
        other, _ = self.python(script, RANK="1", WORLD_SIZE="2", code=1)  # the group is missing, for metrics alone
        self.assertEqual((other, len(self.lines())), ("0\n", 4))
        printed, _ = self.python("import muster; print(muster.continue_metrics(2))")
        self.assertEqual(printed, "0\n", "no folder")
        for wrong in "2", None:
            with self.assertRaisesRegex(muster.InvalidArgument, "^metrics: expected the number of a step, got "):
                muster.continue_metrics(wrong, folder=self.folder)

    def test_a_program_goes_back(self):
        for step in 1, 2, 3:
            muster.metrics(step, folder=self.folder, tensorboard=True, loss=0.5)
        self.assertEqual(muster.continue_metrics(1, folder=self.folder), 2)
        self.assertEqual(muster.continue_metrics(1, folder=self.folder), 0)
        muster.metrics(2, folder=self.folder, tensorboard=True, loss=0.25)
        self.assertEqual(self.lines(), ['{"step":1,"loss":0.5}', '{"step":2,"loss":0.25}'])
        events, = self.folder.glob("events.*")
        self.assertIn(b"\x10\x02\x3a\x02\x08\x01", events.read_bytes())  # step 2, session_log: start

    def test_tensorboard_has_whole_steps(self):
        with self.assertRaisesRegex(muster.InvalidArgument, "^metrics: expected a whole step of 64 bits for TensorBoard, got 2.5; "):
            muster.metrics(2.5, folder=self.folder, tensorboard=True, loss=1)
        with self.assertRaisesRegex(muster.InvalidArgument, "whole step of 64 bits for TensorBoard, got 9223372036854775808; "):
            muster.metrics(2**63, folder=self.folder, tensorboard=True, loss=1)
        muster.metrics(2.0, folder=self.folder, tensorboard=True, loss=1)
        self.assertEqual(self.lines(), ['{"step":2,"loss":1}'])

    def test_a_folder_is_one_process_s_at_a_time(self):
        script = f"import muster, sys; muster.metrics(1, folder={str(self.folder)!r}, loss=1); print('wrote', flush=True); sys.stdin.read()"
        first = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.assertEqual(first.stdout.readline(), "wrote\n")
        with self.assertRaisesRegex(muster.FailedPrecondition, rf"expected no job that still writes there, got one \(process {first.pid} on "):
            muster.metrics(2, folder=self.folder, loss=2)
        first.kill()
        first.wait()
        muster.metrics(2, folder=self.folder, loss=2)
        muster.metrics(3, folder=self.folder / ".", loss=3)
        self.assertEqual(self.lines(), ['{"step":1,"loss":1}', '{"step":2,"loss":2}', '{"step":3,"loss":3}'])

    def test_a_folder_stays_locked_when_its_files_are_copied(self):
        script = f"""
import muster, os, pathlib, signal
muster.metrics(1, folder={str(self.folder)!r}, loss=1)
pathlib.Path({str(self.folder)!r}, ".metrics.jsonl.lock").read_bytes()
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()"""
        first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        self.addCleanup(first.stdout.close)
        self.addCleanup(first.wait)
        self.addCleanup(first.kill)
        self.addCleanup(os.kill, int(first.stdout.readline()), signal.SIGKILL)
        with self.assertRaisesRegex(muster.FailedPrecondition, "expected no job that still writes there"):
            muster.metrics(2, folder=self.folder, loss=2)
        first.kill()
        first.wait()
        muster.metrics(2, folder=self.folder, loss=2)  # the child that goes on does not have it

    def test_a_later_attempt_of_a_launch_shares_its_folder(self):
        script = f"import muster, sys; muster.metrics(1, folder={str(self.folder)!r}, loss=1); print('wrote', flush=True); sys.stdin.read()"
        of_rank = {"MUSTER_LAUNCH": "a", "RANK": "0", "WORLD_SIZE": "1"}
        first = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, **of_rank, "MUSTER_ATTEMPT": "0"})
        self.addCleanup(first.communicate)
        self.addCleanup(first.kill)
        self.assertEqual(first.stdout.readline(), "wrote\n")
        self.python(script, code=1, **of_rank, MUSTER_ATTEMPT="0")
        self.python(script, **of_rank, MUSTER_ATTEMPT="1")
        self.assertTrue((self.folder / ".metrics.jsonl.lock").exists(), "the first one's still")
        first.communicate()
        self.assertEqual([path.name for path in self.folder.glob(".*")], [])

    def test_wrong_names_and_counts(self):
        for values in ({"time/data": 1}, {"": 1}, {"lo\nss": 1}, {"\ud800": 1}, {"loss": (1.0, -1)}, {"loss": (1.0, 1e300)}, {"loss": 10**400}):
            with self.assertRaises(muster.InvalidArgument):
                muster.metrics(1, **values)
        for step in 10**400, float("nan"):
            with self.assertRaisesRegex(muster.InvalidArgument, "^metrics: expected the number of a step, got "):
                muster.metrics(step, loss=1)

    def test_a_folder_that_cannot_be_made_is_named(self):
        (self.folder / "file").touch()
        with self.assertRaisesRegex(muster.Unavailable, "^metrics: expected a folder that can be made, got '.*/file': File exists"):
            muster.metrics(1, folder=self.folder / "file", loss=1)

    def test_a_mean_of_numbers_whose_sum_is_none(self):
        most = sys.float_info.max
        self.assertEqual(_means(["loss"], [{"loss": (most, 1.0)}, {"loss": (most, 3.0)}, {"loss": (0.0, 0.0)}]), {"loss": most})
        self.assertEqual(muster.metrics(1, folder=self.folder, loss=(most, 8)), {"loss": most})
        self.assertEqual(_means(["loss"], [{"loss": (math.inf, 1.0)}, {"loss": (1.0, 1.0)}]), {"loss": math.inf})

    def test_arrays_and_what_is_no_number(self):
        class Array:  # as numpy's
            def __init__(self, *values): self.values, self.ndim, self.shape = values, 1, (len(values),)
            def mean(self): return sum(self.values) / len(self.values)
        class Halves(Array):  # whose sum in its own type is infinite
            def mean(self): return math.inf
            def astype(self, kind): return Array(*map(kind, self.values))
        class Complex(Array):
            dtype = "complex64"
        class Step:
            def __index__(self): return 3
        self.assertEqual(muster.metrics(Step(), folder=self.folder, loss=Array(1.0, 2.0), none=Array()), {"loss": 1.5})
        self.assertEqual(self.lines(), ['{"step":3,"loss":1.5}'])
        self.assertEqual(_mean_and_count("loss", Array(1.0, 2.0, 6.0)), (3.0, 3.0), "each element counts, as in C++")
        self.assertEqual(_mean_and_count("loss", Halves(60000, 60000)), (60000.0, 2.0))
        self.assertEqual(_mean_and_count("loss", (Array(1.0, 2.0, 6.0), 5)), (3.0, 5.0), "a pair says how many")
        for wrong in None, "x", [1, 2], (1, 2, 3), 1j, Complex(1.0), "1":
            with self.assertRaisesRegex(muster.InvalidArgument, "^metrics: expected a number, a tensor or an array, .* for 'loss'; correct it"):
                muster.metrics(1, loss=wrong)
        with self.assertRaisesRegex(muster.InvalidArgument, "^metrics: expected the number of a step, got '1'; "):
            muster.metrics("1", loss=1)

    def test_an_event_file_comes_after_one_of_the_future(self):
        before = self.folder / f"events.out.tfevents.{int(time.time()) + 3600}.host.1.0"  # then the clock was set back
        before.touch()
        self.assertGreater(EventFile(str(self.folder)).path, str(before))

    def test_an_event_file_is_one_of_tensorboard(self):
        events = EventFile(str(self.folder))
        events.write(1, {"loss": 0.5, "huge": 1e300})
        events.write(2, {"loss": 0.25})
        data = pathlib.Path(events.path).read_bytes()
        self.assertEqual(data[12:12 + data[0]].count(b"brain.Event:2"), 1)
        if importlib.util.find_spec("tensorboard") is None:
            return
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        read = EventAccumulator(str(self.folder))
        read.Reload()
        self.assertEqual([(event.step, event.value) for event in read.Scalars("loss")], [(1, 0.5), (2, 0.25)])


if __name__ == "__main__":
    unittest.main()
