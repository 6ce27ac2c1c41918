"""muster.Executor, used as its users do."""
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from package import ROOT, PackageCase
from spawn_test import script


@unittest.skipUnless(os.environ.get("MUSTER_FAKE_NVML"), "no stand-in for NVML in this build")
class Gpus(PackageCase):
    """On a machine of two GPUs and one that MIG has split, which do not exist."""

    def setUp(self):
        super().setUp()
        (self.folder / "runtime").mkdir(mode=0o700)
        gpu = "total=8589934592,free=8589934592"
        self.environment.update(
            MUSTER_NVML_LIBRARY=os.environ["MUSTER_FAKE_NVML"], MUSTER_RUNTIME_DIR=str(self.folder / "runtime"),
            FAKE_NVML=f"version=550.54|uuid=GPU-a,name=A,{gpu},pci=0000:01:00.0|uuid=GPU-b,name=B,{gpu},pci=0000:02:00.0|"
                      f"uuid=GPU-c,name=B,{gpu},pci=0000:03:00.0,mig=1,migs=MIG-1:1g.5gb:4096:1:1;MIG-2:1g.5gb:4096:1:1")
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            self.environment.pop(name, None)

    def test_each_task_sees_its_own(self):
        self.must_print(script("""
            def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    futures = [pool.submit(see) for _ in range(8)]
                    print(all([future.result()] == future.devices for future in futures))
                    print(pool.submit(see, ranks=2).result(), pool.submit(see, gpus=0).result() == "")
                for gpus in ("1", ["GPU-a"]):
                    with muster.Executor(gpus=gpus) as pool:
                        print(pool.submit(see).result())
            """), "True\nGPU-a,GPU-b True\nGPU-b\nGPU-a\n")

    def test_a_number_of_gpus_is_told_to_be_one(self):
        told = "info: gpus=2 is GPU 2 alone; write gpus=[2] for it, and gpus='free:2' for as many that are free\n"
        for gpus, out, said in (("2", "MIG-1", True), ("'2'", "MIG-1", False), ("[1]", "GPU-b", False), ("1", "GPU-b", False)):
            code, seen, err = self.run_script(script(f"""
                def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
                if __name__ == "__main__":
                    with muster.Executor(gpus={gpus}) as pool:
                        print(pool.submit(see).result())
                """))
            self.assertEqual((code, seen, f"muster.Executor: {told}" in err), (0, f"{out}\n", said), err)

    def test_gpus_that_are_all_hidden_are_told(self):
        of_one_task = script("""
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    print(pool.submit(muster.rank).result())
            """)
        for visible, told in (("7", True), ("1", False), ("", False)):
            code, out, err = self.run_script(of_one_task, CUDA_VISIBLE_DEVICES=visible)
            self.assertEqual((code, out), (0, "0\n"), err)
            self.assertEqual("info: none of 3 GPUs can be used (hidden from muster by its environment): tasks have CPU slots; see CUDA_VISIBLE_DEVICES" in err,
                             told, err)

    def test_shares_and_memory(self):
        self.must_print(script("""
            def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    print(pool.submit(see, memory="6GiB").result())  # more than an instance of MIG has
                    try:
                        pool.submit(see, memory="9GiB")
                    except muster.InvalidArgument as error:
                        print(error)
            """), """\
            GPU-a
            muster.Executor.submit: expected at most 0 devices with 9GiB free, got 1; ask for fewer, or give the executor more (gpus, cpu_slots)
            """)

    def test_a_job_s_own_leases_are_no_obstacle_to_it(self):
        self.must_print(script("""
            def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
            def search():
                with muster.Executor() as pool:
                    seen = [pool.submit(see) for _ in range(2)]
                    return [future.result() for future in seen], muster.spawn(see, quiet=True)
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    print(pool.submit(search, gpus=2).result())
            """), "(['GPU-a', 'GPU-b'], ['GPU-a,GPU-b', 'GPU-a,GPU-b'])\n")
        path = self.write(script("""
            def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    print(pool.submit(see).result())
            """))
        done = subprocess.run([os.environ["MUSTER_PROGRAM"], "run", "-q", "-n", "1", sys.executable, str(path)], cwd=self.folder, env=self.environment, timeout=300,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "GPU-a\n"), done.stderr)

    def test_processes_of_multiprocessing_have_the_leases_of_their_job(self):
        path = self.write(script("""
            import multiprocessing
            def see(): return os.environ["CUDA_VISIBLE_DEVICES"]
            def search(told):
                with muster.Executor() as pool:
                    told.send((pool.submit(see).result(), muster.spawn(see, quiet=True) if "RANK" not in os.environ else None))
            def start(how, function, *arguments):
                here, there = multiprocessing.Pipe()
                child = multiprocessing.get_context(how).Process(target=function, args=(*arguments, there))
                child.start()
                told = here.recv() if here.poll(100) else "nothing"
                child.terminate() if told == "nothing" else child.join()
                return told
            def start_another(how, told): told.send(start(how, search))
            def start_all(): return start("spawn", search), start("forkserver", search), start("spawn", start_another, "spawn")
            if __name__ == "__main__":
                if "RANK" in os.environ:
                    print(start_all())
                    sys.exit()
                with muster.Executor() as pool:
                    print(pool.submit(start_all).result())
            """))
        for command, of_spawn in (([], ["GPU-a"]), ([os.environ["MUSTER_PROGRAM"], "run", "-q", "-n", "1"], None)):
            done = subprocess.run([*command, sys.executable, "-B", str(path)], cwd=self.folder, env=self.environment, timeout=500, capture_output=True, text=True,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout), (0, f"{(('GPU-a', of_spawn),) * 3}\n"), done.stderr)

    def test_other_jobs_have_their_leases(self):
        self.must_print(script("""
            def wait():
                pathlib.Path("runs_now").touch()
                while not pathlib.Path("go").exists(): time.sleep(0.01)
                return "first"
            def second(): return "second"
            if __name__ == "__main__":
                with muster.Executor(gpus="1") as pool, muster.Executor(gpus="1") as other:
                    a = pool.submit(wait)
                    while not pathlib.Path("runs_now").exists(): time.sleep(0.01)
                    b = other.submit(second)
                    print(b.done())
                    pathlib.Path("go").touch()
                    print(a.result(), b.result())
            """), "False\nfirst second\n")

    def test_a_forgotten_executor_leaves_its_devices(self):
        self.must_print(script("""
            if __name__ == "__main__":
                for _ in range(3):  # as a notebook's cell that is run again
                    pool = muster.Executor(gpus="1", warm=True)
                    print(pool.submit(os.getpid).result() != os.getpid())
            """), "True\nTrue\nTrue\n")

    def test_a_wait_for_other_jobs_is_told(self):
        process = self.start(script("""
            def wait():
                pathlib.Path("runs_now").touch()
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            if __name__ == "__main__":
                with muster.Executor(gpus="1") as pool, muster.Executor(gpus="1") as other:
                    a = pool.submit(wait)
                    while not pathlib.Path("runs_now").exists(): time.sleep(0.01)
                    other.submit(wait)
            """))
        self.addCleanup(process.stderr.close)
        told = self.read_line(process, process.stderr)
        (self.folder / "go").touch()
        self.assertEqual((process.communicate(timeout=300)[0], process.returncode), ("", 0))
        self.assertRegex(told, r"^muster.Executor: info: tasks wait for GPUs of other jobs: GPU-b held by .*pid \d+")


class Mistakes(PackageCase):
    def test_each_has_a_clear_error(self):
        for call, expected in (
                ("muster.Executor(cpu_slots=0)", "InvalidArgument: muster.Executor: expected cpu_slots of 1 or more, got 0; correct it"),
                ("muster.Executor(gpus=0, cpu_slots=2)", "InvalidArgument: muster.Executor: expected gpus or cpu_slots, got gpus=0 and cpu_slots=2"),
                ("muster.Executor(run_dir='/proc/x')", "Unavailable: muster.Executor: expected the program muster to run tasks here, got: "),
                ("muster.Executor(gpus='GPU-none')", "InvalidArgument: muster.Executor: gpus='GPU-none': expected hexadecimal digits"),
                ("muster.spawn(note_pid, n=0)", "InvalidArgument: muster.spawn: n: expected a number from 1"),
                ("muster.spawn(note_pid, n=1, max_restart=3)", "InvalidArgument: muster.spawn: expected a keyword of muster.spawn or a flag of muster run, got 'max_restart'; did you mean 'max_restarts'?")):
            code, out, err = self.run_script(script(f"if __name__ == '__main__': {call}\n"))
            self.assertEqual((code, out), (1, ""), call)
            self.assertIn(expected, err, call)
        self.assertEqual(self.pids_in(), [])


class Tasks(PackageCase):
    def test_results_come_in_their_futures(self):
        self.must_print(script("""
            def square(x, plus=0): return x * x + plus
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    future = pool.submit(square, 3, plus=1)
                    print(future.result(), future.devices, future.attempts)
                    print(list(pool.map(square, range(5))))
            """), "10 ['cpu:0'] 1\n[0, 1, 4, 9, 16]\n")

    def test_exceptions_come_with_their_traceback(self):
        self.must_print(script("""
            class TooHot(Exception): pass
            def burn(): raise TooHot("90 degrees")
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    future = pool.submit(burn)
                    print(repr(future.exception()))
                    print("in burn" in str(future.exception().__cause__))
            """), "TooHot('90 degrees')\nTrue\n")

    def test_an_exception_that_waits_for_tasks_is_told(self):
        process = self.start(script("""
            def hold():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    pool.submit(hold)
                    raise ValueError("of the script")
            """))
        self.addCleanup(process.stderr.close)
        told = self.read_line(process, process.stderr)
        (self.folder / "go").touch()
        _, err = process.communicate(timeout=300)
        self.assertIn("muster.Executor: info: the with block waits for its tasks before it raises ValueError: of the script; Ctrl-C ends them", told)
        self.assertIn("ValueError: of the script\n", err)

    def test_a_failure_that_nobody_asks_for_is_told(self):
        code, out, err = self.run_script(script("""
            import concurrent.futures as cf
            def fail(text): raise ValueError(text)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    pool.submit(fail, "nobody asks")
                    asked = pool.submit(fail, "asked for later")
                    skipped = pool.submit(fail, "not begun", after=[pool.submit(fail, "told by another")])
                    cf.wait([asked, skipped])
                    ended = pool.submit(wait_for_ever)
                    while not pathlib.Path("pids").exists(): time.sleep(0.01)
                    pool.end_tasks(ended)
                print(repr(asked.exception()), "(told by another)" in str(skipped.exception()))
            """))
        self.assertEqual((code, out), (0, "ValueError('asked for later') True\n"), err)
        self.assertEqual(err.count("nobody has asked"), 1, err)
        self.assertIn("muster.Executor: warning: nobody has asked for the result of a task that failed: ValueError: nobody asks; call result() of its", err)

    def test_failures_that_nobody_asks_for_are_counted(self):
        _, _, err = self.run_script(script("""
            import concurrent.futures as cf
            def fail(number): raise ValueError(f"of {number}")
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, warm=True) as pool:
                    cf.wait([pool.submit(fail, number) for number in range(5)])
                    print("of one", file=sys.stderr)
                print("of the executor", file=sys.stderr)
                with muster.Executor(cpu_slots=1, warm=True) as pool:
                    mapped = pool.map(fail, range(5))
                    kept = [pool.submit(fail, number) for number in range(5)]
                try:
                    list(mapped)
                except ValueError:
                    del mapped
                print("of the program", file=sys.stderr)
            """))
        one = "nobody has asked for the result of a task that failed: ValueError; call result() of its future."
        more = "nobody has asked for the results of {} more tasks that failed, the last: ValueError; call result() of their futures."
        told = [re.sub("ValueError: of .", "ValueError", line.partition(" See ")[0]).removeprefix("muster.Executor: warning: ") for line in err.splitlines()]
        self.assertEqual(told, [one, "of one", more.format(4), "of the executor", "of the program", one, more.format(8)], err)

    def test_failures_that_come_while_they_are_counted_disturb_nothing(self):
        self.must_print(script("""
            import threading
            from muster._task import TaskFuture
            from muster._unasked import Unasked
            sys.setswitchinterval(1e-6)
            unasked, kept, is_over = Unasked(), [], threading.Event()
            def fail():
                while not is_over.is_set():
                    kept.append(TaskFuture())
                    kept[-1].unasked, kept[-1].is_known = unasked, True
                    kept[-1].set_exception(ValueError())
            thread = threading.Thread(target=fail)
            thread.start()
            try:
                while len(kept) < 20000: unasked.note_all()
            finally:
                is_over.set()
                thread.join()
            print("all are counted")
            """), "all are counted\n")

    def test_a_start_that_died_before_it_had_its_folder_gets_one_of_its_own(self):
        """Another executor of the same run's folder has made one of that name meanwhile."""
        code, out, err = self.run_script(script("""
            def where(): return os.path.basename(os.environ["MUSTER_TASK_DIR"])
            if __name__ == "__main__":
                pathlib.Path("sitecustomize.py").write_text('\\n'.join([
                    "import os, pathlib",
                    "mkdir = os.mkdir",
                    "def of_another(path, *more):",
                    "    mkdir(path, *more)",
                    "    if path.endswith('-one') and not pathlib.Path('died').exists():",
                    "        pathlib.Path('died').touch()",
                    "        os._exit(1)",
                    "os.mkdir = of_another"]))
                os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
                with muster.Executor(cpu_slots=1, warm=True, run_dir="run") as pool:
                    print(pool.submit(where, name="one", retries=1).result(), pathlib.Path("died").exists())
            """))
        self.assertEqual((code, out), (0, "1-one.2 True\n"), err)

    def test_a_folder_that_could_not_be_made_is_nobody_s_to_remove(self):
        """Another executor of the same run's folder has made one of that name meanwhile, and the disk is full."""
        for ends in ("None", "TaskFailed"):
            code, out, err = self.run_script(script(f"""
                def end():
                    if {ends!r} != "None": os._exit(1)
                if __name__ == "__main__":
                    pathlib.Path("sitecustomize.py").write_text('\\n'.join([
                        "import os",
                        "mkdir = os.mkdir",
                        "def of_another(path, *more):",
                        "    mkdir(path, *more)",
                        "    if path.endswith('-one'): raise OSError(28, 'No space left on device')",
                        "os.mkdir = of_another"]))
                    os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
                    with muster.Executor(cpu_slots=1, warm=True, run_dir="run{ends}") as pool:
                        print(type(pool.submit(end, name="one").exception()).__name__)
                    print(os.path.isdir("run{ends}/1-one"))
                """))
            self.assertEqual((code, out.split()), (0, ["NoneType" if ends == "None" else ends, "True"]), err)

    def test_an_exception_that_cannot_be_made_again_is_told(self):
        self.must_print(script("""
            import threading
            class Bad(Exception):
                def __init__(self, code, why):
                    super().__init__(f"{code}: {why}")
                    self.lock = threading.Lock()
            def fail(): raise Bad(3, "no")
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    failed = pool.submit(fail).exception()
                    print(type(failed).__name__, failed)
                    print("in fail" in str(failed.__cause__))
            """), "TaskFailed task 'fail' failed: Bad: 3: no\nTrue\n")

    def test_a_task_may_have_an_executor_and_spawn(self):
        for how in ("script.py", "-m"):
            if how == "-m":
                self.environment["PYTHONPATH"] += f":{self.folder}"
            self.must_print(script("""
                def double(x): return 2 * x
                def nested():
                    with muster.Executor(cpu_slots=1) as pool:
                        return pool.submit(double, 5).result(), muster.spawn(double, args=(4,), n=2, quiet=True)
                if __name__ == "__main__":
                    with muster.Executor() as pool:
                        print(pool.submit(nested).result())
                """), "(10, [8, 8])\n", as_module=how == "-m")

    def test_a_failure_of_ranks_within_a_task_has_its_card(self):
        self.must_print(script("""
            def fail():
                if muster.rank() == 1:
                    raise ValueError("of rank 1")
                wait_for_ever()
            def nested():
                try:
                    muster.spawn(fail, n=2, quiet=True)
                except muster.RanksFailed as failed:
                    return failed.rank, repr(failed.__cause__), os.path.exists(os.path.join(failed.run_dir, "failure.json"))
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(nested).result())
            """), "(1, \"ValueError('of rank 1')\", True)\n")

    def test_a_task_may_have_threads_and_fork(self):
        self.must_print(script("""
            import threading
            def fork():
                done = threading.Event()
                thread = threading.Thread(target=done.wait)
                thread.start()
                child = os.fork()
                if child == 0:
                    os._exit(7)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                done.set()
                thread.join()
                return code
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    print(pool.submit(fork).result())
                print(muster.spawn(fork, n=2, quiet=True))
            """), "7\n[7, 7]\n")

    def test_a_process_that_dies_is_told(self):
        self.must_print(script("""
            import signal
            def die():
                print("the last line", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    future = pool.submit(die)
                    failed = future.exception()
                    print(type(failed).__name__, failed.exit_code, failed.signal)
                    print("the last line" in str(failed), open(future.log).read().strip())
            """), "TaskFailed 137 SIGKILL\nTrue the last line\n")

    def test_tasks_come_after_others(self):
        self.must_print(script("""
            def write(text):
                with open("order", "a") as file: file.write(text + " ")
            def fail(): raise ValueError("no")
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    a = pool.submit(write, "a")
                    b = pool.submit(write, "b", after=[a])
                    c = pool.submit(write, "c", after=[b])
                    d = pool.submit(fail)
                    e = pool.submit(write, "e", after=[c, d])
                    print(type(e.exception()).__name__, e.exception())
                print(open("order").read())
            """), "TaskFailed task 'write' was skipped: it comes after one that failed (no)\na b c \n")

    def test_tasks_start_again(self):
        self.must_print(script("""
            def flaky():
                with open("starts", "a") as file: file.write("x")
                if len(open("starts").read()) < 3: raise ValueError("not yet")
                return muster.attempt()
            def pause():
                with open("pauses", "a") as file: file.write("x")
                if len(open("pauses").read()) < 2: sys.exit(muster.STOPPED)
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    future, stopped = pool.submit(flaky, retries=2), pool.submit(pause)
                    print(future.result(), future.attempts)
                    print(stopped.result(), stopped.attempts)
            """), "2 3\nNone 2\n")

    @unittest.skipIf(os.geteuid(), "another user is needed, who has no process")
    def test_ranks_that_never_find_processes_are_a_failure(self):
        """The other user may read nothing of the tester's, and has copies."""
        shutil.copytree(ROOT / "python" / "muster", self.folder / "muster", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(os.environ["MUSTER_PROGRAM"], self.folder / "program")
        self.folder.chmod(0o777)
        path = self.write(script("""
            import muster._task_runner
            muster._task_runner._SHORTAGE_PATIENCE = 1.0
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=60, run_dir="run") as pool:  # whose threads take what there is
                    future = pool.submit(muster.rank, ranks=50)
                    print(str(future.exception()).partition(";")[0], future.attempts)
            """))
        user = str(100_000 + os.getpid() % 100_000)
        done = subprocess.run(["setpriv", "--reuid", user, "--regid", user, "--clear-groups", "prlimit", "--nproc=30", "python3", "-B", path.name],
                              cwd=self.folder, timeout=300, capture_output=True, text=True, check=False,
                              env={**self.environment, "PYTHONPATH": str(self.folder), "MUSTER_PROGRAM": str(self.folder / "program"), "HOME": str(self.folder)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("task 'rank' could not be started: no start found room for 1 s (", done.stdout)
        self.assertEqual(done.stderr.count("could not begin ("), 1, done.stderr)

    def test_a_time_limit_ends_a_task(self):
        self.must_print(script("""
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    failed = pool.submit(wait_for_ever, time_limit=0.3).exception()
                    print(str(failed).splitlines()[0])
            """), "task 'wait_for_ever' failed: its time limit of 0.3 s was over\n")

    def test_ranks_are_one_job(self):
        self.must_print(script("""
            def job():
                pathlib.Path(f"rank{muster.rank()}of{muster.world_size()}").touch()
                return muster.rank()
            if __name__ == "__main__":
                with muster.Executor() as pool:
                    future = pool.submit(job, ranks=3)
                    print(future.result(), future.devices)
                print(sorted(path.name for path in pathlib.Path().glob("rank*")))
            """), "0 ['cpu:0', 'cpu:1', 'cpu:2']\n['rank0of3', 'rank1of3', 'rank2of3']\n")

    def test_a_task_has_a_folder_that_stays_in_every_start(self):
        self.must_print(script("""
            def train(rate):
                saved = pathlib.Path(muster.run_dir(), "step.txt")
                step = int(saved.read_text()) + 1 if saved.exists() else 0
                muster.metrics(step, loss=rate)
                saved.write_text(str(step))
                if step == 0:
                    sys.exit(muster.STOPPED)
                return saved.parent, saved.parent == pathlib.Path(os.environ["MUSTER_TASK_DIR"])
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2, run_dir="runs/a") as pool:
                    for future in [pool.submit(train, rate) for rate in (1, 2)]:
                        folder, is_told = future.result()
                        print(os.path.relpath(folder), is_told, (folder / "metrics.jsonl").read_text().split())
                    pool.submit(note_pid).result()
                print(sorted(os.listdir("runs/a")))
            """), """\
            runs/a/1-train True ['{"step":0,"loss":1}', '{"step":1,"loss":1}']
            runs/a/2-train True ['{"step":0,"loss":2}', '{"step":1,"loss":2}']
            ['1-train', '2-train']
            """)

    def test_warm_tasks_have_folders_of_their_own_too(self):
        self.must_print(script("""
            def train(rate):
                folder = pathlib.Path(muster.run_dir())
                step = len(list(folder.glob("step-*")))
                muster.metrics(step, loss=rate)
                (folder / f"step-{step}").touch()
                if step == 0:
                    raise ValueError("starts again")
                return folder, os.environ["MUSTER_TASK_DIR"] == str(folder)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, warm=True, run_dir="runs/a") as pool:
                    futures = [pool.submit(train, rate, retries=1) for rate in (1, 2)]
                    for future in futures:
                        folder, is_told = future.result()
                        print(folder.parent == pathlib.Path("runs/a").resolve(), folder.name.partition("-")[2], is_told, (folder / "metrics.jsonl").read_text().split())
                    pool.submit(note_pid).result()
                names = [name for name in os.listdir("runs/a") if not name.startswith("worker-")]
                print(len(names), all(name.endswith("-train") for name in names))
            """), """\
            True train True ['{"step":0,"loss":1}', '{"step":1,"loss":1}']
            True train True ['{"step":0,"loss":2}', '{"step":1,"loss":2}']
            2 True
            """)

    def test_a_warm_task_s_folder_is_made_and_removed_by_its_process(self):
        """The program has one lock for all its workers, and a thread that waits for the disk with it held keeps all of them waiting."""
        self.must_print(script("""
            made = []
            def counting(call):
                def counted(path, *rest, **more):
                    made.append(os.path.basename(path))
                    return call(path, *rest, **more)
                return counted
            def has_one(): return os.path.isdir(os.environ["MUSTER_TASK_DIR"])
            if __name__ == "__main__":
                os.mkdir, os.rmdir = counting(os.mkdir), counting(os.rmdir)
                with muster.Executor(cpu_slots=2, warm=True, run_dir="runs/a") as pool:
                    print(all(future.result() for future in [pool.submit(has_one) for _ in range(20)]))
                    print([name for name in made if "has_one" in name], [name for name in os.listdir("runs/a") if "has_one" in name])
            """), "True\n[] []\n")

    def test_warm_tasks_of_two_executors_in_one_folder_share_none(self):
        self.must_print(script("""
            def train(who):
                folder = pathlib.Path(os.environ["MUSTER_TASK_DIR"])
                with open(folder / "starts", "a") as starts: starts.write(who)
                if muster.attempt() == 0: os.kill(os.getpid(), 9)
                return folder.name, (folder / "starts").read_text()
            def leave_nothing(): os.kill(os.getpid(), 9)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, warm=True, run_dir="runs/a") as a, muster.Executor(cpu_slots=1, warm=True, run_dir="runs/a") as b:
                    futures = [pool.submit(train, who, retries=1) for pool, who in ((a, "a"), (b, "b"))]
                    print(*(sorted(told) for told in zip(*(future.result() for future in futures))))
                    print(*(pool.submit(leave_nothing).exception().signal for pool in (a, b)))
                print(sorted(name for name in os.listdir("runs/a") if "-train" in name or "nothing" in name))
            """), """\
            ['1-train', '1-train.2'] ['aa', 'bb']
            SIGKILL SIGKILL
            ['1-train', '1-train.2']
            """)

    def test_a_warm_process_keeps_no_folder_of_a_task_before(self):
        self.must_print(script("""
            def write(step):
                muster.metrics(step, folder="shared", loss=1)
                return os.getpid()
            def hold():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
                return os.getpid()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2, warm=True) as pool:
                    first = pool.submit(write, 1).result()
                    held = pool.submit(hold)  # the same process
                    second = pool.submit(write, 2).result()
                    print(os.listdir("shared"))
                    pathlib.Path("go").touch()
                    print(first == held.result() != second, pathlib.Path("shared/metrics.jsonl").read_text().split())
            """), """\
            ['metrics.jsonl']
            True ['{"step":1,"loss":1}', '{"step":2,"loss":1}']
            """)

    def test_jobs_of_several_ranks_run_side_by_side_in_folders_of_their_own(self):
        self.must_print(script("""
            def meet_all():
                note_pid()
                while len(os.listdir("pids")) < 4: time.sleep(0.01)
                print("met")
                return muster.run_dir()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=4, run_dir="runs/a") as pool:
                    futures = [pool.submit(meet_all, ranks=2) for _ in range(2)]
                    for future in futures:
                        print(os.path.relpath(future.result()), os.path.relpath(future.log), pathlib.Path(future.log).read_text().count("met"))
                with muster.Executor(cpu_slots=4, run_dir="runs/a") as later:
                    print(os.path.relpath(later.submit(meet_all, ranks=2).result()))
            """), """\
            runs/a/1-meet_all runs/a/1-meet_all/task.log 2
            runs/a/2-meet_all runs/a/2-meet_all/task.log 2
            runs/a/3-meet_all
            """)

    def test_devices_are_not_shared_unless_asked(self):
        self.must_print(script("""
            import fcntl
            def alone(slots):
                # As many locks as there may be tasks at a time: one more would find none.
                for slot in range(slots):
                    file = open(f"slot{slot}", "w")
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        continue
                    time.sleep(0.05)
                    return True
                return False
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    print(all(pool.map(alone, [2] * 6)))
                with muster.Executor(cpu_slots=1) as pool:
                    futures = [pool.submit(alone, 2, gpus=0.5) for _ in range(4)]
                    print(all(future.result() for future in futures))
            """), "True\nTrue\n")

    def test_what_could_never_run_is_refused(self):
        self.must_print(script("""
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    for how in ({"gpus": 3}, {"gpus": 1.5}, {"ranks": 0}, {"memory": "8 apples"}, {"time_limit": "soon"}):
                        try:
                            pool.submit(note_pid, **how)
                        except muster.InvalidArgument as error:
                            print(error)
            """), """\
            muster.Executor.submit: expected at most 2 devices, got 3; ask for fewer, or give the executor more (gpus, cpu_slots)
            muster.Executor.submit: expected a whole number of GPUs or a fraction of one, and ranks of 1 or more, got gpus=1.5, ranks=1; correct them
            muster.Executor.submit: expected a whole number of GPUs or a fraction of one, and ranks of 1 or more, got gpus=None, ranks=0; correct them
            memory: expected a size such as 8GiB, got '8 apples'; correct it
            time_limit: expected a time such as 90m, got 'soon'; correct it
            """)

    def test_waiting_tasks_are_cancelled(self):
        self.must_print(script("""
            def short(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    first = pool.submit(short)
                    second = pool.submit(short, after=[first])
                    third = pool.submit(short, after=[second])
                    print(third.cancel(), second.result(), third.cancelled())
            """), "True 1 True\n")

    def test_one_task_is_ended_and_others_go_on(self):
        self.must_print(script("""
            import signal
            def double(x): return 2 * x
            def save_and_ask_again():
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(muster.STOPPED))
                wait_for_ever()
            def begin(pool, function):
                before = os.listdir("pids")
                future = pool.submit(function)
                while os.listdir("pids") == before: time.sleep(0.01)
                return future
            if __name__ == "__main__":
                os.mkdir("pids")
                for warm in False, True:
                    with muster.Executor(cpu_slots=1, warm=warm) as pool, muster.Executor(cpu_slots=1) as other:
                        first = begin(pool, wait_for_ever)
                        skipped, next_one = pool.submit(double, 1, after=[first]), pool.submit(double, 2)
                        try:
                            other.end_tasks([first])
                        except muster.InvalidArgument as error:
                            print(str(error).partition(",")[0])
                        pool.end_tasks(first)
                        print(str(first.exception()).partition("\\n")[0], "was skipped" in str(skipped.exception()), next_one.result())
                        again = begin(pool, save_and_ask_again)
                        waiting = pool.submit(double, 3)
                        pool.end_tasks([again, waiting, next_one])
                        print(str(again.exception()).partition("\\n")[0], waiting.cancelled(), pool.submit(double, 4).result())
            """), 2 * ("muster.Executor.end_tasks: expected futures of this executor\n"
                       "task 'wait_for_ever' failed: it was ended by end_tasks True 4\n"
                       "task 'save_and_ask_again' failed: it was ended by end_tasks True 8\n"))

    def test_map_has_the_keywords_of_submit(self):
        self.must_print(script("""
            def scale(x, by=1): return by * x, len(os.environ["SEEN_BY"])
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    os.environ["SEEN_BY"] = "all"
                    print(list(pool.map(scale, [1, 2], gpus=0.5, by=3)))
                    try:
                        pool.map(scale, [1], gpus=1.5)
                    except muster.InvalidArgument as error:
                        print("got gpus=1.5" in str(error))
            """), "[(3, 3), (6, 3)]\nTrue\n")

    def test_warm_workers_take_one_task_after_the_other(self):
        self.must_print(script("""
            def pid(): return os.getpid()
            def raise_it(): raise ValueError("no")
            def die(): os._exit(3)
            if __name__ == "__main__":
                with muster.Executor(warm=True, cpu_slots=2) as pool:
                    first = pool.submit(pid).result()
                    print(repr(pool.submit(raise_it).exception()))
                    print(len({future.result() for future in [pool.submit(pid) for _ in range(50)]} | {first}) <= 2)
                    print(pool.submit(die).exception().exit_code, pool.submit(pid).result() != os.getpid())
                    print(pool.submit(pid, ranks=2).result() not in (first, os.getpid()))
            """), "ValueError('no')\nTrue\n3 True\nTrue\n")

    def test_an_interrupt_ends_the_tasks(self):
        process = self.start(script("""
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    futures = [pool.submit(wait_for_ever) for _ in range(4)]
                    futures[0].result()
            """))
        self.wait_for(lambda: len(self.pids_in()) == 2, "two tasks")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        self.assertIn("KeyboardInterrupt", err)
        self.assertNotIn("nobody has asked", err)
        self.assertEqual(len(self.pids_in()), 2)
        self.wait_for_the_end_of(self.pids_in())

    def test_nothing_outlives_a_parent_that_is_killed(self):
        process = self.start(script("""
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    list(pool.map(lambda_free, range(2)))
            """).replace("def wait_for_ever", "def lambda_free(_): wait_for_ever()\n\ndef wait_for_ever"))
        self.wait_for(lambda: len(self.pids_in()) == 2, "two tasks")
        process.kill()
        process.communicate()
        self.wait_for_the_end_of(self.pids_in())

    def test_an_executor_that_is_not_shut_down_ends_with_the_program(self):
        self.must_print(script("""
            def late():
                time.sleep(0.2)
                print("done")
                return 1
            if __name__ == "__main__":
                pool = muster.Executor()
                future = pool.submit(late)
                future.add_done_callback(lambda done: print(done.result(), flush=True))
                muster.Executor().submit(late).add_done_callback(lambda done: print(done.result(), flush=True))
            """), "1\n1\n")


if __name__ == "__main__":
    unittest.main()
