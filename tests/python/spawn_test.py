"""muster.spawn, called as users call it."""
import os
import signal
import subprocess
import sys
import unittest

from package import ROOT, TORCH_PYTHON, PackageCase

DEFINE = """
    import os, pathlib, sys, time
    import muster

    def note_pid():
        pathlib.Path("pids").mkdir(exist_ok=True)
        pathlib.Path("pids", str(os.getpid())).touch()

    def wait_for_ever():
        note_pid()
        while True:
            time.sleep(0.1)
"""


def script(body):
    import textwrap
    return textwrap.dedent(DEFINE) + textwrap.dedent(body)


class Spawn(PackageCase):
    def test_returns_what_every_rank_returned(self):
        self.must_print(script("""
            def square(x, plus=0):
                return muster.rank(), muster.world_size(), x * x + plus
            if __name__ == "__main__":
                print(muster.spawn(square, args=(3,), kwargs={"plus": 1}, n=3, quiet=True))
            """), "[(0, 3, 10), (1, 3, 10), (2, 3, 10)]\n")

    def test_functions_of_modules_need_no_guard(self):
        self.write("def double(x): return 2 * x\n", "tools.py")
        self.must_print("import muster, tools\nprint(muster.spawn(tools.double, args=(4,), n=2, quiet=True))\n", "[8, 8]\n")

    def test_a_failure_has_card_cause_and_exception(self):
        self.must_print(script("""
            class TooHot(Exception):
                pass
            def train():
                if muster.rank() == 1:
                    raise TooHot("90 degrees")
                wait_for_ever()
            if __name__ == "__main__":
                try:
                    muster.spawn(train, n=2, quiet=True)
                except muster.RanksFailed as failed:
                    print(failed.rank, failed.exit_code, failed.cause)
                    print(repr(failed.__cause__))
                    print(str(failed).splitlines()[0])
                    print("TooHot: 90 degrees" in failed.card, 'raise TooHot("90 degrees")' in failed.card, "_rank_main" in failed.card)
                    print(pathlib.Path(failed.run_dir, "failure.json").is_file())
            """), """\
            1 1 exit code 1
            TooHot('90 degrees')
            rank 1 failed first: exit code 1
            True True False
            True
            """)

    def test_under_a_debugger(self):
        self.write(script("""
            if __name__ == "__main__":
                print(muster.spawn(muster.rank, n=2, quiet=True))
            """), "debugged.py")
        done = subprocess.run([sys.executable, "-B", "-m", "pdb", "-c", "continue", "-c", "quit", "debugged.py"], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
        self.assertIn("[0, 1]\n", done.stdout, done.stderr)

    def test_closed_standard_descriptors_do_no_harm(self):
        for closed in "02", "12", "012":
            code, _, err = self.run_script(script("""
                if __name__ == "__main__":
                    for number in map(int, os.environ["CLOSED"]):
                        os.close(number)
                    with muster.Executor() as pool:
                        told = muster.spawn(muster.rank, n=2, quiet=True), pool.submit(muster.rank).result()
                    pathlib.Path("told").write_text(repr(told))
                """), CLOSED=closed)
            self.assertEqual(code, 0, err)
            self.assertEqual((self.folder / "told").read_text(), "([0, 1], 0)", closed)
            (self.folder / "told").unlink()

    def test_a_working_folder_that_is_gone_is_named(self):
        self.must_print(script("""
            def says(call):
                try:
                    call()
                except muster.Error as error:
                    print(type(error).__name__, str(error).partition(",")[0])
            if __name__ == "__main__":
                pool = muster.Executor(cpu_slots=1)
                here = os.getcwd()
                os.mkdir("there")
                os.chdir("there")
                os.rmdir("../there")
                for call in lambda: muster.spawn(muster.rank, n=1), muster.Executor, lambda: pool.submit(muster.rank):
                    says(call)
                os.chdir(here)
                print(pool.submit(muster.rank).result())
            """), """\
            FailedPrecondition muster.spawn: expected a working folder
            FailedPrecondition muster.Executor: expected a working folder
            FailedPrecondition muster.Executor.submit: expected a working folder
            0
            """)

    def test_a_program_may_have_changed_its_folder(self):
        (self.folder / "parts").mkdir()
        (self.folder / "parts/part.py").write_text("NUMBER = 42\n")
        (self.folder / "there").mkdir()
        self.must_print(script("""
            sys.path.insert(0, "parts")
            import part
            os.chdir("there")
            def train():
                return os.path.basename(os.getcwd()), part.NUMBER
            if __name__ == "__main__":
                os.mkdir("further")
                os.chdir("further")
                print(muster.spawn(train, n=1, quiet=True))
                for warm in False, True:
                    with muster.Executor(cpu_slots=1, warm=warm) as pool:
                        print(pool.submit(train).result())
            """), """\
            [('further', 42)]
            ('further', 42)
            ('further', 42)
            """)

    def test_a_killed_rank_is_named(self):
        self.must_print(script("""
            import signal
            def train():
                if muster.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                wait_for_ever()
            if __name__ == "__main__":
                try:
                    muster.spawn(train, n=2, quiet=True)
                except muster.RanksFailed as failed:
                    print(failed.rank, failed.exit_code, failed.cause[:17], failed.__cause__)
                try:
                    muster.spawn(train, n=2, quiet=True, tee=3)
                except muster.RanksFailed as failed:
                    [log] = [path for path in failed.logs if path.endswith("logs/0/1.err")]
                    print(f"  log       {log}" in failed.card.splitlines())
            """), "1 137 killed by SIGKILL None\nTrue\n")

    def test_ranks_start_again(self):
        self.must_print(script("""
            def train():
                if muster.attempt() == 0:
                    raise RuntimeError("the first time")
                return muster.attempt()
            if __name__ == "__main__":
                print(muster.spawn(train, n=2, quiet=True, max_restarts=1))
            """), "[1, 1]\n")

    def test_arguments_that_are_no_tuple_are_named(self):
        self.must_print(script("""
            def train(epochs): pass
            if __name__ == "__main__":
                for args in (3, "ab"):
                    try:
                        muster.spawn(train, args=args, n=2)
                    except muster.InvalidArgument as error:
                        print(error)
            """), """\
            muster.spawn: expected a tuple of arguments, got args=3; write args=(3,)
            muster.spawn: expected a tuple of arguments, got args='ab'; write args=('ab',)
            """)

    def test_what_cannot_be_sent_is_named(self):
        code, _, err = self.run_script(script("""
            def train(lock): pass
            if __name__ == "__main__":
                import threading
                muster.spawn(train, args=(threading.Lock(),), n=2)
            """))
        self.assertEqual(code, 1)
        self.assertIn("InvalidArgument: muster.spawn: expected a function and arguments that can be pickled, got 'train'", err)
        code, _, err = self.run_script(script("""
            if __name__ == "__main__":
                muster.spawn(lambda: 1, n=1)
            """), PYTHONNOUSERSITE="1")
        if "cloudpickle" in err:
            self.assertEqual(code, 1)
            self.assertIn("got '<lambda>'", err)

    def test_a_result_that_cannot_be_sent_is_named(self):
        code, _, err = self.run_script(script("""
            def train():
                import threading
                return threading.Lock()
            if __name__ == "__main__":
                muster.spawn(train, n=1, quiet=True)
            """))
        self.assertEqual(code, 1)
        self.assertIn("rank 0: expected a result that can be pickled, got lock", err)

    def test_a_forgotten_guard_is_named(self):
        code, _, err = self.run_script(script("""
            def train(): pass
            muster.spawn(train, n=2, quiet=True)
            """))
        self.assertEqual(code, 1)
        self.assertIn('put the call under `if __name__ == "__main__":`', err)

    def test_a_rank_does_not_spawn(self):
        code, _, err = self.run_script(script("""
            def inner(): pass
            def train(): muster.spawn(inner, n=2)
            if __name__ == "__main__":
                muster.spawn(train, n=1, quiet=True)
            """))
        self.assertEqual(code, 1)
        self.assertIn("muster.spawn: expected a process that is not yet a rank, got rank 0 of 1; call the function itself", err)

    def test_a_rank_that_ends_without_a_result_is_named(self):
        code, _, err = self.run_script(script("""
            def train(): os._exit(0)
            if __name__ == "__main__":
                muster.spawn(train, n=2, quiet=True)
            """))
        self.assertEqual(code, 1)
        self.assertIn("expected a result of every rank, got none of rank 0, 1", err)

    def test_an_interrupt_ends_the_ranks(self):
        process = self.start(script("""
            if __name__ == "__main__":
                muster.spawn(wait_for_ever, n=2, quiet=True)
            """))
        self.wait_for(lambda: len(self.pids_in()) == 2, "two ranks")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        self.assertIn("KeyboardInterrupt", err)
        self.wait_for_the_end_of(self.pids_in())

    def test_nothing_outlives_a_parent_that_is_killed(self):
        process = self.start(script("""
            if __name__ == "__main__":
                muster.spawn(wait_for_ever, n=2, quiet=True)
            """))
        self.wait_for(lambda: len(self.pids_in()) == 2, "two ranks")
        process.kill()
        process.communicate()
        self.wait_for_the_end_of(self.pids_in())

    def test_an_exception_of_a_handler_ends_the_ranks(self):
        code, out, err = self.run_script(script("""
            import signal, threading
            def leave(number, frame): sys.exit(4)
            def when_started():
                while not list(pathlib.Path("pids").glob("*")): time.sleep(0.01)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
            if __name__ == "__main__":
                signal.signal(signal.SIGALRM, leave)
                threading.Thread(target=when_started).start()
                try:
                    muster.spawn(wait_for_ever, n=1, quiet=True)
                finally:
                    [rank] = os.listdir("pids")
                    print(os.path.exists(f"/proc/{rank}"))
            """))
        self.assertEqual((code, out), (4, "False\n"), err)

    def test_a_fork_of_the_script_keeps_no_rank_alive(self):
        process = self.start(script("""
            import threading
            def fork():
                while not list(pathlib.Path("pids").glob("*")): time.sleep(0.01)
                child = os.fork()
                pathlib.Path("forked", str(child)).touch()
                if child == 0: time.sleep(100)
            if __name__ == "__main__":
                pathlib.Path("forked").mkdir()
                threading.Thread(target=fork).start()
                muster.spawn(wait_for_ever, n=1, quiet=True)
            """))
        self.wait_for(lambda: any(self.pids_in("forked")), "a fork")
        process.kill()
        process.wait()
        self.wait_for_the_end_of(self.pids_in())
        for pid in filter(None, self.pids_in("forked")):
            os.kill(pid, signal.SIGKILL)
        process.communicate()

    def test_output_goes_on_where_nobody_takes_it(self):
        self.must_print(script("""
            class Tee:
                def write(self, text): pass
            def say():
                for _ in range(100): print("x" * 4000)
            if __name__ == "__main__":
                print("first")
                for stream in (Tee(), open(os.devnull, "w"), None):
                    if stream is not None and not isinstance(stream, Tee): stream.close()
                    sys.stdout = stream
                    muster.spawn(say, n=1, quiet=True)
                sys.stdout = sys.__stdout__
                print("last")
            """), "first\nlast\n")

    def test_what_was_printed_before_comes_before(self):
        self.must_print(script("""
            def say(): print("a rank")
            if __name__ == "__main__":
                print("first")
                muster.spawn(say, n=1, quiet=True)
                print("last")
            """), "first\na rank\nlast\n", PYTHONUNBUFFERED="")

    def test_a_failure_that_the_others_survive_has_its_exception(self):
        self.must_print(script("""
            def train():
                if muster.rank() == 1:
                    raise ValueError("no")
            if __name__ == "__main__":
                try:
                    muster.spawn(train, n=2, quiet=True, on_failure="continue")
                except muster.RanksFailed as failed:
                    print(failed.rank, failed.exit_code, repr(failed.__cause__), str(failed).splitlines()[0])
            """), "1 1 ValueError('no') muster.spawn: expected a result of every rank, got an exception of rank 1\n")

    def test_a_failure_may_name_a_file_that_is_no_utf8(self):
        self.must_print(script("""
            def read(): raise ValueError("cannot read " + os.fsdecode(b"caf\\xe9.txt"))
            if __name__ == "__main__":
                try:
                    muster.spawn(read, n=1, quiet=True)
                except muster.RanksFailed as failed:
                    print(failed.failure["first"]["message"])
            """), "ValueError: cannot read caf\\udce9.txt\n")

    def test_a_failure_has_what_was_returned(self):
        self.must_print(script("""
            import atexit, copy, pickle
            def return_then_die():
                if muster.rank() == 1:
                    atexit.register(os.kill, os.getpid(), 9)
                return 10 * muster.rank()
            if __name__ == "__main__":
                try:
                    muster.spawn(return_then_die, n=2, quiet=True)
                except muster.RanksFailed as failed:
                    print(failed.rank, failed.results[1], pickle.loads(pickle.dumps(failed)).results == failed.results)
            """), "1 10 True\n")

    def test_ranks_work_in_their_workdir(self):
        self.must_print(script("""
            def folder(): return os.path.basename(os.getcwd())
            if __name__ == "__main__":
                os.mkdir("there")
                print(muster.spawn(folder, n=2, quiet=True, workdir="there"))
            """), "['there', 'there']\n")

    def test_a_thread_may_spawn(self):
        self.must_print(script("""
            import threading
            def rank(): return muster.rank()
            if __name__ == "__main__":
                results = []
                threads = [threading.Thread(target=lambda: results.append(muster.spawn(rank, n=2, quiet=True))) for _ in range(2)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                print(results)
            """), "[[0, 1], [0, 1]]\n")

    def test_flags_of_muster_run_are_keywords(self):
        self.must_print(script("""
            def show(): return os.environ["NAME"], os.path.basename(muster.run_dir())
            if __name__ == "__main__":
                print(muster.spawn(show, n=1, quiet=True, run_dir="here", env={"NAME": "a b"}))
            """), "[('a b', 'here')]\n")
        code, _, err = self.run_script(script("""
            if __name__ == "__main__":
                muster.spawn(note_pid, n=1, max_restart=3)
            """))
        self.assertEqual(code, 1)
        self.assertIn("--max-restart", err)
        self.assertIn("--max-restarts", err)

    def test_a_function_assigns_devices(self):
        machine = str(ROOT / "tests/data/machines/dgx2-v100.toml")
        self.must_print(script(f"""
            def device(): return os.environ["MUSTER_DEVICE"]
            def pick(rank, devices): return devices[3 - rank]
            if __name__ == "__main__":
                expected = [rank.device.uuid for rank in muster.plan(n=2, inventory={machine!r}, map=[3, 2])]
                print(muster.spawn(device, n=2, quiet=True, inventory={machine!r}, map=pick) == expected)
                among = muster.spawn(device, nproc_per_node=2, quiet=True, inventory={machine!r}, gpus=[0, 9, 2, 3], map=pick)
                print(among == expected)
            """), "True\nTrue\n")

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_mp_spawn_in_a_rank_is_refused(self):
        done = self.run_script(script("""
            import torch.multiprocessing as mp
            import muster.context
            def main(rank, size): pass
            if __name__ == "__main__":
                import muster._torch
                muster._torch.meet_torch()
                mp.spawn(main, args=(2,), nprocs=2)
            """), python=TORCH_PYTHON, RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
        self.assertEqual(done[0], 1)
        self.assertIn("got rank 1 of 2: the launcher has started the ranks already; replace mp.spawn(main, ...) by "
                      "main(int(os.environ['LOCAL_RANK']), ...)", done[2])

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_mp_spawn_under_muster_run_is_told_by_the_card(self):
        path = self.write("""
            import os, time, torch.distributed as dist, torch.multiprocessing as mp
            def main(rank, size):
                dist.init_process_group("gloo", rank=rank, world_size=size)
                time.sleep(1000)
            if __name__ == "__main__":
                mp.spawn(main, args=(2,), nprocs=2)
            """)
        done = subprocess.run([os.environ["MUSTER_PROGRAM"], "run", "-q", "-n", "2", TORCH_PYTHON, "-B", str(path)], cwd=self.folder,
                              env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("the script starts its own processes (mp.spawn), in ranks that muster has started already", done.stderr)
        self.assertIn("replace mp.spawn(f, ...) by f(int(os.environ['LOCAL_RANK']), ...)", done.stderr)

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_two_worlds_of_one_under_muster_run_are_said(self):
        path = self.write("""
            import os, sys, torch.distributed as dist
            import muster
            rank, size = (int(os.environ.get(name, other)) for name, other in (("SLURM_PROCID", 0), ("SLURM_NTASKS", 1)))
            if sys.argv[1:] == ["right"]: rank, size = muster.rank(), muster.world_size()
            store = dist.FileStore(f"store-{muster.rank() if size == 1 else 'all'}", size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            dist.barrier()  # Gloo fails in a rank that still connects to one that has gone
            dist.destroy_process_group()
            """)
        for how, warned in ((), 2), (("right",), 0):
            self.must_warn_of_worlds(path, how, warned)

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_a_program_without_muster_is_told_of_two_worlds_of_one(self):
        self.install_entry_point()
        path = self.write("""
            import os, sys, torch.distributed as dist
            rank, size = (int(os.environ.get(name, other)) for name, other in (("SLURM_PROCID", 0), ("SLURM_NTASKS", 1)))
            if sys.argv[1:] == ["right"]: rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            if sys.argv[1:] == ["later"]: import muster
            store = dist.FileStore(f"store-{os.environ['RANK'] if size == 1 else 'all'}", size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
            dist.barrier()
            dist.destroy_process_group()
            """)
        for how, warned in ((), 2), (("right",), 0), (("later",), 2):
            self.must_warn_of_worlds(path, how, warned)

    def install_entry_point(self):
        """What `pip install` leaves beside the package, so that the import of torch finds it."""
        folder = self.folder / "site/muster-0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: muster\nVersion: 0\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text("[torch.backends]\nmuster = _muster_autoload:register\n", encoding="utf-8")
        self.environment["PYTHONPATH"] = os.pathsep.join([str(folder.parent), self.environment["PYTHONPATH"]])

    def run_two_ranks(self, path, *arguments):
        environment = {name: value for name, value in self.environment.items() if not name.startswith("SLURM_")}
        return subprocess.run([os.environ["MUSTER_PROGRAM"], "run", "-q", "-n", "2", TORCH_PYTHON, "-B", str(path), *arguments],
                              cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300, check=False)

    def must_warn_of_worlds(self, path, arguments, times):
        done = self.run_two_ranks(path, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = "warning: process group: expected the 2 ranks that were started, got a group of 1; give"
        self.assertEqual(done.stderr.count(said), times, done.stderr)

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_ranks_join_and_train(self):
        code, out, err = self.run_script(script("""
            def train(steps):
                import torch
                from torch.nn.parallel import DistributedDataParallel
                ctx = muster.init()
                torch.manual_seed(0)
                model = DistributedDataParallel(torch.nn.Linear(4, 1))
                optimizer = torch.optim.SGD(model.parameters(), 0.1)
                for step in range(steps):
                    loss = model(torch.full((2, 4), float(ctx.rank + 1))).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    ctx.note(step=step, samples=2, loss=loss)
                return [float(weight) for weight in model.module.weight.detach().flatten()]
            if __name__ == "__main__":
                a, b = muster.spawn(train, args=(3,), n=2, quiet=True)
                print(a == b, len(a))
            """), python=TORCH_PYTHON)
        self.assertEqual((code, out), (0, "True 4\n"), err)

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_a_call_that_one_rank_makes_alone_is_told(self):
        self.must_print(script("""
            def one_alone(call):
                ctx = muster.init("gloo")
                told, before = pathlib.Path(call), pathlib.Path(f"{call} now")
                if ctx.is_main:
                    from muster import _collective
                    _collective._TELL_AFTER, _collective._LOOK_EVERY = 0, 0.01
                    _collective.say = lambda text: (before.write_text(text), before.rename(told))
                while not ctx.is_main and not told.exists(): time.sleep(0.01)
                muster.metrics(1, loss=1) if call == "metrics" else ctx.should_stop()
                return told.read_text()
            if __name__ == "__main__":
                for call in "metrics", "should_stop":
                    print(muster.spawn(one_alone, args=(call,), n=2, quiet=True)[0])
            """), """\
            [rank 0] info: metrics: has waited 0 s for other ranks: one is late, or the main rank alone calls it; call it on all
            [rank 0] info: should_stop: has waited 0 s for other ranks: one is late, or the main rank alone calls it; call it on all
            """, python=TORCH_PYTHON)

    def test_large_arguments_and_results(self):
        size = int(os.environ.get("MUSTER_TEST_BYTES", str(64 << 20)))
        self.must_print(script(f"""
            def back(data): return data
            if __name__ == "__main__":
                data = bytes(8) * ({size} // 8)
                print(muster.spawn(back, args=(data,), n=1, quiet=True)[0] == data)
            """), "True\n")


if __name__ == "__main__":
    unittest.main()
