"""muster.Executor where something goes wrong: callers, tasks, processes and signals."""
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

from package import PackageCase
from spawn_test import script


class Futures(PackageCase):
    def test_those_who_wait_are_told_of_a_cancelled_one(self):
        self.must_print(script("""
            import concurrent.futures as cf
            def hold():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    first = pool.submit(hold)
                    second = pool.submit(hold, after=[first])
                    third = pool.submit(hold, after=[second])
                    print(second.cancel(), second.cancel(), len(cf.wait([second, third]).done), next(cf.as_completed([second])) is second)
                    print(third.exception())
                    fourth = pool.submit(hold, after=[first])
                    fifth = pool.submit(hold, after=[fourth])
                    pool.shutdown(wait=False, cancel_futures=True)
                    cf.wait([fourth, fifth])
                    pathlib.Path("go").touch()
                    print(fourth.cancelled(), fifth.done(), first.result())
            """), "True True 2 True\ntask 'hold' was skipped: it comes after one that failed (it was cancelled)\nTrue True None\n")

    def test_a_chain_is_skipped_and_callbacks_may_submit(self):
        code, out, err = self.run_script(script("""
            import threading
            def fail(): raise ValueError("no")
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    last = first = pool.submit(fail)
                    more = []
                    first.add_done_callback(lambda _: more.append(pool.submit(one)))
                    for _ in range(1500):
                        last = pool.submit(one, after=[last])
                    called = threading.Event()
                    last.add_done_callback(lambda _: (more.append(pool.submit(one)), called.set()))
                    called.wait()
                    print(type(last.exception()).__name__)
                print([future.result() for future in more])
                try:
                    pool.submit(one)
                except muster.FailedPrecondition as error:
                    print(error)
            """))
        self.assertEqual((code, out, err), (0, "TaskFailed\n[1, 1]\nmuster.Executor.submit: expected an executor in use, got one that was shut down; make another\n", ""))

    def test_many_wait_at_little_cost(self):
        self.must_print(script("""
            def hold():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    first = pool.submit(hold)
                    costs = []
                    for _ in range(2):
                        begin = time.process_time()
                        waiting = [pool.submit(hold) for _ in range(2000)]
                        costs.append(time.process_time() - begin)
                    pool.shutdown(wait=False, cancel_futures=True)
                    pathlib.Path("go").touch()
                print(costs[1] < 2 * costs[0])  # those that wait already cost nothing
            """), "True\n")

    def test_what_cannot_be_read_is_told(self):
        self.must_print(script("""
            class Bad:
                def __setstate__(self, state): sys.exit(3)
            def bad():
                result = Bad()
                result.x = 1
                return result
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(bad).exception(), pool.submit(one).result())
                try:
                    muster.spawn(bad, n=1, quiet=True)
                except TypeError as error:
                    print(str(error).partition(";")[0], repr(error.__cause__))
            """), """\
            task 'bad': expected a result that this process can make again, got SystemExit: 3; return numbers, arrays or tensors of the CPU, or a path 1
            muster.spawn: rank 0: expected a result that this process can make again, got SystemExit: 3 SystemExit(3)
            """)

    def test_a_forked_child_does_not_answer_for_its_parent(self):
        self.must_print(script("""
            def fork():
                if os.fork() == 0:
                    return "the child's"
                os.wait()
                return "the parent's"
            def fail():
                if os.fork() == 0:
                    raise ValueError("the child's")
                return os.waitstatus_to_exitcode(os.wait()[1])
            if __name__ == "__main__":
                for warm in False, True:
                    with muster.Executor(cpu_slots=1, warm=warm) as pool:
                        print(pool.submit(fork).result(), pool.submit(fail).result(), pool.submit(fork).result())
                print(muster.spawn(fork, n=1, quiet=True))
            """), "the parent's 1 the parent's\nthe parent's 1 the parent's\n[\"the parent's\"]\n")

    def test_an_exception_whose_init_has_other_arguments_comes_back(self):
        self.must_print(script("""
            class TooHot(Exception):
                def __init__(self, where, degrees):
                    super().__init__(f"{where}: {degrees} degrees")
                    self.degrees = degrees
            def burn(): raise TooHot("here", 90)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    error = pool.submit(burn).exception()
                    print(repr(error), error.degrees)
                try:
                    muster.spawn(burn, n=1, quiet=True)
                except muster.RanksFailed as failed:
                    print(repr(failed.__cause__), failed.__cause__.degrees)
            """), "TooHot('here: 90 degrees') 90\nTooHot('here: 90 degrees') 90\n")


class Values(PackageCase):
    def test_each_is_checked_before_anything_waits(self):
        code, out, err = self.run_script(script("""
            import concurrent.futures, datetime
            class Two:
                def __index__(self): return 2
            def ranks(): return muster.world_size()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    done = concurrent.futures.Future()
                    done.set_result(1)
                    for how in ({"ranks": 2.0}, {"ranks": True}, {"gpus": "1"}, {"gpus": float("nan")}, {"after": ["x"]}, {"after": done},
                                {"retries": None}, {"retries": "1"}, {"retries": -1}, {"time_limit": -5}, {"time_limit": 0},
                                {"time_limit": float("nan")}, {"time_limit": 1e12}, {"name": 5}):
                        try:
                            pool.submit(ranks, **how)
                            print("no error", how)
                        except muster.InvalidArgument as error:
                            if "expected" not in str(error): print(how, error)
                    future = pool.submit(ranks, ranks=Two(), after=[done], time_limit=datetime.timedelta(hours=1), name="n" * 300)
                    print(future.result(), len(os.path.basename(future.log)) < 120)
                    print(pool.submit(ranks, time_limit="1h30m", retries=Two()).result())
                for slots in ("2", 2.5):
                    try:
                        muster.Executor(cpu_slots=slots)
                    except muster.InvalidArgument as error:
                        print(error)
            """))
        self.assertEqual((code, out), (0, "2 True\n1\nmuster.Executor: expected cpu_slots of 1 or more, got '2'; correct it\n"
                                          "muster.Executor: expected cpu_slots of 1 or more, got 2.5; correct it\n"), err)

    def test_a_task_that_cannot_be_started_fails_alone(self):
        for warm in False, True:
            self.task_that_cannot_be_started_fails_alone(warm)

    def task_that_cannot_be_started_fails_alone(self, warm):
        self.must_print(script(f"""
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, run_dir="runs", warm={warm}) as pool:
                    here = os.getcwd()
                    os.mkdir("gone")
                    os.chdir("gone")
                    os.rmdir("../gone")
                    lost = pool._runner.add(lambda number: muster.executor.Task(number, "one", b"", muster._request.Need()), []).future
                    print("task 'one' could not be started: muster.Executor: expected a working folder" in str(lost.exception()))
                    os.chdir(here)
                    print(pool.submit(one).result())
            """), "True\n1\n")

    def test_what_cannot_be_an_argument_is_named(self):
        self.must_print(script("""
            def one(*args): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(one)
                    for value in (future, pool):
                        try:
                            pool.submit(one, value)
                        except muster.InvalidArgument as error:
                            print(error)
            """), """\
            muster.Executor.submit: expected arguments that can be pickled, got a future; give its result(), or after=[it] to come after it
            muster.Executor.submit: expected arguments that can be pickled, got an executor; make one in the function
            """)

    def test_a_managers_queue_is_an_argument(self):
        self.must_print(script("""
            import multiprocessing
            def put(queue): queue.put("a value")
            if __name__ == "__main__":
                with multiprocessing.Manager() as manager, muster.Executor(cpu_slots=1) as pool:
                    queue = manager.Queue()
                    pool.submit(put, queue).result()
                    print(queue.get())
            """), "a value\n")

    def test_a_long_folder_for_temporary_files(self):
        folder = self.folder / ("t" * 120)
        folder.mkdir()
        self.must_print(script("""
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(one).result())
            """), "1\n", TMPDIR=str(folder))

    def test_two_of_a_second_have_folders_of_their_own(self):
        self.must_print(script("""
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as a, muster.Executor(cpu_slots=1) as b:
                    print(a.submit(one).log != b.submit(one).log)
            """), "True\n")

    def test_two_in_one_folder_have_logs_of_their_own(self):
        self.must_print(script("""
            def tell(who): print("of", who)
            def die(who):
                if muster.attempt() == 0:
                    print("of", who, flush=True)
                os.kill(os.getpid(), 9)
            def run(*pools):
                told = [(pool.submit(tell, number), pool.submit(die, number, retries=1)) for number, pool in enumerate(pools)]
                for one, died in told:
                    one.result()
                    print(os.path.basename(one.log), repr(pathlib.Path(one.log).read_text()), "of " in str(died.exception()))
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, run_dir="runs/a") as a, muster.Executor(cpu_slots=1, run_dir="runs/a") as b:
                    run(a, b)
                with muster.Executor(cpu_slots=1, run_dir="runs/a") as later:
                    run(later)
            """), """\
            1-tell.log 'of 0\\n' False
            1-tell.2.log 'of 1\\n' False
            3-tell.log 'of 0\\n' False
            """)


class Processes(PackageCase):
    def test_an_end_without_a_result_is_told(self):
        self.must_print(script("""
            def leave(): sys.exit(0)
            class Wordless(Exception):
                def __str__(self): raise ValueError("no words")
            def fail(): raise Wordless()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(str(pool.submit(leave).exception()).splitlines()[0])
                    failed = pool.submit(fail)
                    print(type(failed.exception()).__name__, "Wordless, whose text" in str(pool.submit(leave, after=[failed]).exception()))
                try:
                    muster.spawn(fail, n=1, quiet=True)
                except muster.RanksFailed as failed:
                    print(type(failed.__cause__).__name__)
            """), """\
            task 'leave' failed: exit code 0 before it returned (os._exit or sys.exit in it?)
            Wordless True
            Wordless
            """)

    def test_a_result_counts_whatever_the_end_of_its_process_is(self):
        code, out, err = self.run_script(script("""
            import atexit
            def crash_at_the_end(x):
                atexit.register(os.kill, os.getpid(), 9)
                return x
            def leave_at_the_end(x):
                atexit.register(os._exit, 7)
                return x
            def die_by_a_signal_without_a_name(): os.kill(os.getpid(), 40)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    futures = [pool.submit(crash_at_the_end, 1, retries=1), pool.submit(leave_at_the_end, 2), pool.submit(die_by_a_signal_without_a_name)]
                    print(futures[0].result(), futures[0].attempts, futures[1].result())
                    print(str(futures[2].exception()).partition("\\n")[0])
            """))
        self.assertEqual((code, out), (0, "1 1 2\ntask 'die_by_a_signal_without_a_name' failed: killed by signal 40\n"), err)
        self.assertIn("warning: task 'crash_at_the_end' has returned, and its process was killed by SIGKILL after that; its result counts. See ", err)
        self.assertIn("warning: task 'leave_at_the_end' has returned, and its process ended with exit code 7 after that; its result counts. See ", err)

    def test_a_script_may_be_silent(self):
        """At a breakpoint of a debugger, and stopped by Ctrl-Z: the server counts the run as stopped from the beginning."""
        program = self.write("""\
            #!/bin/sh
            if [ "$2" = --serve ]; then tee said | "$REAL" "$@"; else exec "$REAL" "$@"; fi
            """, "program")
        program.chmod(0o755)
        self.must_print(script("""
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(muster.rank).result())
            """), "0\n", MUSTER_PROGRAM=str(program), REAL=os.environ["MUSTER_PROGRAM"])
        said = [json.loads(line) for line in (self.folder / "said").read_text().splitlines()]
        self.assertEqual([(message["muster"], message.get("signal")) for message in said],
                         [("hello", None), ("begin", None), ("signal", signal.SIGTSTP), ("start", None)])

    def test_what_nobody_can_read_ends_nothing(self):
        self.must_print(script("""
            import atexit
            class Gone:
                def write(self, text): raise BrokenPipeError("nobody reads")
                def flush(self): raise BrokenPipeError("nobody reads")
            def leave_at_the_end(x):
                atexit.register(os._exit, 7)
                return x
            def fail(stream):
                sys.stderr = stream
                raise ValueError("no")
            if __name__ == "__main__":
                for stream in Gone(), None:
                    sys.stderr = stream
                    with muster.Executor(cpu_slots=1) as pool:
                        print(pool.submit(leave_at_the_end, 1).result(), pool.submit(leave_at_the_end, 2).result(), repr(pool.submit(fail, stream).exception()))
                sys.stderr = sys.__stderr__
            """), "1 2 ValueError('no')\n1 2 ValueError('no')\n")

    def test_what_keeps_a_process_after_its_function_is_said(self):
        self.must_print(script("""
            import threading
            def wait():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            def leave_a_thread():
                threading.Thread(target=wait, name="uploader").start()
                return "returned"
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(leave_a_thread)
                    while "\\n" not in pathlib.Path(future.log).read_text(): time.sleep(0.1)
                    pathlib.Path("go").touch()
                    print(future.result())
                    print(pathlib.Path(future.log).read_text(), end="")
            """), """\
            returned
            [muster] info: the task has returned 10 s ago, and its process has not ended: it waits for thread 'uploader'; end that, or make the thread a daemon
            """)

    def test_code_that_is_edited_while_tasks_wait_is_told(self):
        self.write("def value(): return 1\n", "tools.py")
        code, out, err = self.run_script(script("""
            import tools
            def wait():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    first, later = pool.submit(wait), [pool.submit(tools.value) for _ in range(2)]
                    pathlib.Path("tools.py").write_text("def value(): return 22\\n")
                    pathlib.Path("go").touch()
                    print([future.result() for future in later])
            """))
        self.assertEqual((code, out), (0, "[22, 22]\n"), err)
        self.assertEqual(err.count("was written since task 'value' was submitted: it and later tasks run what stands there now"), 1, err)
        self.assertIn("tools.py' was", err)

    def test_a_task_has_the_environment_of_its_submit(self):
        self.environment["OLD"] = "old"
        self.must_print(script("""
            def see(): return os.environ.get("NEW"), os.environ.get("OLD")
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    futures = [pool.submit(see)]
                    os.environ["NEW"] = "a b"
                    futures.append(pool.submit(see))
                    del os.environ["OLD"], os.environ["NEW"]
                    print(*[future.result() for future in [*futures, pool.submit(see)]])
            """), "(None, 'old') ('a b', 'old') (None, None)\n")

    def test_a_full_disk_costs_the_log_alone(self):
        code, out, err = self.run_script(script("""
            import resource
            def say(): print("x" * 4096, flush=True)
            if __name__ == "__main__":
                pool = muster.Executor(cpu_slots=1)
                resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
                with pool:
                    print(pool.submit(say).result(), pool.submit(say).result())
            """))
        self.assertEqual((code, out), (0, "None None\n"), err)
        self.assertEqual(err.count("expected a log that can be written, got: [Errno 27] File too large"), 1, err)

    def test_a_warm_worker_that_cannot_start_fails_a_task(self):
        self.must_print(script("""
            def one(): return 1
            if __name__ == "__main__":
                sys.executable = "/bin/false"
                with muster.Executor(warm=True, cpu_slots=1) as pool:
                    failed = pool.submit(one).exception()
                    print(str(failed).splitlines()[0], failed.exit_code, failed.log.endswith("worker-2.log"))
            """), "task 'one' failed: exit code 1 1 True\n")

    def test_warm_workers_start_side_by_side(self):
        self.write("""
            import os, pathlib, time
            if "MUSTER_CALL_ID" in os.environ:  # a worker, which waits until both are on their way
                pathlib.Path(os.environ["MET"], os.environ["MUSTER_CALL_ID"]).touch()
                until = time.monotonic() + 60
                while len(os.listdir(os.environ["MET"])) < 2:
                    if time.monotonic() > until: os._exit(3)
                    time.sleep(0.01)
            """, "sitecustomize.py")
        (self.folder / "met").mkdir()
        self.must_print(script("""
            def one(_): return 1
            if __name__ == "__main__":
                with muster.Executor(warm=True, cpu_slots=3) as pool:
                    print(list(pool.map(one, range(2))))
                print(len(os.listdir("met")))
            """), "[1, 1]\n2\n", MET=str(self.folder / "met"), PYTHONPATH=f"{self.folder}:{self.environment['PYTHONPATH']}")

    def test_a_warm_task_that_fails_shows_its_own_lines(self):
        self.must_print(script("""
            def complain(): print("the first one's complaint")
            def leave():
                print("a last word", flush=True)
                os._exit(3)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, warm=True) as pool:
                    pool.submit(complain).result()
                    told = str(pool.submit(leave).exception())
                    print("the first one's complaint" in told, "a last word" in told)
            """), "False True\n")

    def test_a_warm_process_that_is_to_end_takes_no_more_tasks(self):
        self.must_print(script("""
            import atexit, signal
            def wait_for(name):
                while not pathlib.Path(name).exists(): time.sleep(0.01)
            def end_well():
                told = []
                signal.signal(signal.SIGTERM, lambda *_: told.append("told"))
                pathlib.Path("begun").touch()
                while not told: time.sleep(0.01)
                return told, os.getpid()
            def end_late():
                atexit.register(lambda: (pathlib.Path("ends").touch(), wait_for("may end")))
                pathlib.Path("late").touch()
                return os.getpid()
            def pid(): return os.getpid()
            def wait_for_late():
                wait_for("late")
                return os.getpid()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1, warm=True) as pool:
                    ended = pool.submit(end_well)
                    wait_for("begun")
                    pool.end_tasks(ended)
                    (told, first), second = ended.result(), pool.submit(pid).result()
                    print(told, second != first, pool.submit(pid).result() == second)
                with muster.Executor(cpu_slots=2, warm=True) as pool:
                    pids = [future.result() for future in [pool.submit(wait_for_late), pool.submit(end_late)]]
                    pool.submit(pid, time_limit=300).result()  # idle processes end for it
                    wait_for("ends")
                    last = pool.submit(pid)
                    pathlib.Path("may end").touch()
                    print(last.exception() or last.result() not in pids)
                with muster.Executor(cpu_slots=1, warm=True) as pool:
                    pool.submit(pid)
                    pool.end_tasks()  # while the process starts
                    print(pool.submit(pid).result() != second)
            """), "['told'] True True\nTrue\nTrue\n")

    def test_a_rank_that_ends_without_an_answer_fails_the_task(self):
        self.must_print(script("""
            def leave(which):
                if muster.rank() == which: os._exit(0)
                return muster.rank()
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    print(str(pool.submit(leave, 1, ranks=2).exception()).splitlines()[0])
                    print(pool.submit(leave, 2, ranks=2).result())
            """), "task 'leave' failed: exit code 0 before it returned on rank 1 (os._exit or sys.exit in it?)\n0\n")

    def test_an_exception_of_a_rank_counts_beside_a_result_of_rank_0(self):
        self.must_print(script("""
            import atexit
            def wait_for(name):
                while not pathlib.Path(name).exists(): time.sleep(0.01)
            def job():
                if muster.rank() == 1:
                    atexit.register(wait_for, "returned")
                    atexit.register(pathlib.Path("raised").touch)
                    raise ValueError("of rank 1")
                wait_for("raised")
                atexit.register(pathlib.Path("returned").touch)
                return "returned"
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    print(repr(pool.submit(job, ranks=2).exception()))
            """), "ValueError('of rank 1')\n")

    def test_a_warm_task_starts_again_and_its_log_is_complete(self):
        self.must_print(script("""
            def flaky():
                sys.stdout.write("attempt %d;" % muster.attempt())
                if muster.attempt() == 0: raise ValueError("not yet")
                return os.getpid()
            if __name__ == "__main__":
                with muster.Executor(warm=True, cpu_slots=1) as pool:
                    future = pool.submit(flaky, retries=1)
                    result = future.result()
                    text = open(future.log).read()
                    print("attempt 0;" in text and text.endswith("attempt 1;"), future.attempts, result == pool.submit(os.getpid).result())
            """), "True 2 True\n")

    def test_an_interpreters_flags_are_its_childrens(self):
        path = self.write(script("""
            def flags(): return sys.flags.optimize, sys.flags.utf8_mode, "error::UserWarning" in sys.warnoptions
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(flags).result(), muster.spawn(flags, n=1, quiet=True))
            """))
        done = subprocess.run([sys.executable, "-B", "-O", "-X", "utf8", "-W", "error::UserWarning", str(path)], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "(1, 1, True) [(1, 1, True)]\n"), done.stderr)


@unittest.skipUnless(importlib.util.find_spec("cloudpickle"), "no cloudpickle here")
class ByValue(PackageCase):
    """Programs whose main module no other process can run again."""

    PROGRAM = script("""
        import functools
        class TooHot(Exception): pass
        class Scale:
            def __init__(self, factor): self.factor = factor
        def times(scale, x): return scale.factor * x
        def burn(): raise TooHot("90 degrees")
        if __name__ == "__main__":
            with muster.Executor(cpu_slots=1) as pool:
                print(pool.submit(functools.partial(times, Scale(3)), 2).result(), pool.submit(times, Scale(4), 2).result())
                print(repr(pool.submit(burn).exception()), type(pool.submit(burn).exception()) is TooHot)
        """)

    def must_run(self, *command, **how):
        done = subprocess.run([sys.executable, "-B", *command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300,
                              check=False, **how)
        self.assertEqual((done.returncode, done.stdout), (0, "6 8\nTooHot('90 degrees') True\n"), done.stderr)

    def test_of_the_command_line(self):
        self.must_run("-c", self.PROGRAM)

    def test_of_standard_input(self):
        self.must_run("-", input=self.PROGRAM)

    def test_of_a_package(self):
        (self.folder / "package").mkdir()
        self.write("", "package/__init__.py")
        self.write(self.PROGRAM, "package/__main__.py")
        self.must_run("-m", "package")


class Forks(PackageCase):
    def test_a_childs_copies_keep_nothing_alive(self):
        self.must_print(script("""
            import multiprocessing
            def one(): return 1
            if __name__ == "__main__":
                here, there = multiprocessing.Pipe()
                with muster.Executor(cpu_slots=1) as pool:
                    child = multiprocessing.get_context("fork").Process(target=here.recv)
                    child.start()
                    print(pool.submit(one).result())
                print("ended")
                there.send(1)
                child.join()
            """), "1\nended\n")

    def test_a_child_that_ends_leaves_the_pool_alone(self):
        code, out, err = self.run_script(script("""
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(one)
                    child = os.fork()
                    if child == 0:
                        try:
                            pool.submit(one)
                        except muster.FailedPrecondition as error:
                            print(error, flush=True)
                        sys.exit(0)
                    print(os.waitpid(child, 0)[1], future.result(), pool.submit(one).result())
            """))
        self.assertEqual((code, out), (0, "muster.Executor.submit: expected an executor of this process, got one of the process that this one was "
                                          "forked from; make another\n0 1 1\n"), err)

    def test_nothing_outlives_a_killed_script_that_has_forked(self):
        process = self.start(script("""
            import multiprocessing
            if __name__ == "__main__":
                pool = muster.Executor(cpu_slots=1)
                multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,)).start()
                pool.submit(wait_for_ever).result()
            """))
        self.wait_for(lambda: len(self.pids_in()) == 1, "a task")
        process.kill()
        process.wait()
        self.wait_for_the_end_of(self.pids_in())


class Interrupts(PackageCase):
    def test_a_pause_before_another_start_is_ended(self):
        code, out, err = self.run_script(script("""
            def fail():
                note_pid()
                raise ValueError("no")
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(fail, retries=30)
                    after = pool.submit(fail, after=[pool.submit(fail, after=[future])])
                    future.add_done_callback(lambda _: print(future.exception(), future.attempts, flush=True))
                    while pool._runner._running or not pathlib.Path("pids").exists(): time.sleep(0.01)
                    raise KeyboardInterrupt
            """))
        self.assertEqual(out, "task 'fail' failed: it was ended with the others 1\n", err)
        self.assertNotIn("RuntimeError", err)

    def test_one_that_another_thread_takes_ends_every_wait(self):
        for waiting in "future.result()", "future.exception()", "pool.shutdown()", "muster.spawn(wait_for_ever, n=1, quiet=True)":
            with self.subTest(waiting):
                self.interrupt_that_another_thread_takes(waiting)

    def interrupt_that_another_thread_takes(self, waiting):
        shutil.rmtree(self.folder / "pids", ignore_errors=True)
        process = self.start(script(f"""
            import signal, threading
            def take():
                sys.stdin.readline()
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            if __name__ == "__main__":
                threading.Thread(target=take, daemon=True).start()
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(wait_for_ever) if "spawn" not in {waiting!r} else None
                    {waiting}
            """), stdin=subprocess.PIPE)
        self.wait_for(lambda: len(self.pids_in()) == 1, "a process")
        try:
            _, err = process.communicate("now\n", timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        self.assertIn("KeyboardInterrupt", err)
        self.wait_for_the_end_of(self.pids_in())

    def test_one_ends_the_tasks_of_an_executor_without_a_with(self):
        process = self.start(script("""
            if __name__ == "__main__":
                pool = muster.Executor(cpu_slots=1)
                pool.submit(wait_for_ever).result()
            """))
        self.wait_for(lambda: len(self.pids_in()) == 1, "a task")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", err)
        self.wait_for_the_end_of(self.pids_in())


if __name__ == "__main__":
    unittest.main()
