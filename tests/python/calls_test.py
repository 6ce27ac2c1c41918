"""What users give muster.spawn and muster.Executor to call, and how: odd functions, odd values, and the end of the program."""
import subprocess
import sys
import unittest

from package import TORCH_PYTHON, PackageCase
from spawn_test import script


class Functions(PackageCase):
    def test_a_function_whose_call_only_begins_is_refused_at_once(self):
        self.must_print(script("""
            import functools
            async def wait(x): return x
            def count(): yield 1
            async def both(): yield 1
            class Model:
                async def __call__(self): pass
                def batches(self): yield 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    for function in (wait, functools.partial(wait, 1), count, both, Model(), Model().batches):
                        try:
                            pool.submit(function)
                        except muster.InvalidArgument as error:
                            print(str(error).partition("result, ")[2])
                    print(type(pool.submit(Model).result()).__name__)
                try:
                    muster.spawn(wait, args=(1,))
                except muster.InvalidArgument as error:
                    print(error)
            """), """\
            got an async function, 'wait'; give a function that returns asyncio.run(wait(...))
            got an async function, 'wait'; give a function that returns asyncio.run(wait(...))
            got a generator, 'count'; give a function that returns list(count(...))
            got an async generator, 'both'; give a function that collects its values
            got an async function, 'Model'; give a function that returns asyncio.run(Model(...))
            got a generator, 'batches'; give a function that returns list(batches(...))
            Model
            muster.spawn: expected a function that returns its result, got an async function, 'wait'; give a function that returns asyncio.run(wait(...))
            """)

    def test_what_cannot_be_sent_is_told_by_what_it_is(self):
        self.must_print(script("""
            import threading
            def one(*args): return 1
            if __name__ == "__main__":
                sys.modules["cloudpickle"] = None
                with muster.Executor(cpu_slots=1) as pool:
                    future = pool.submit(one)
                    for value in ([future], {"pool": pool}, threading.Lock()):
                        try:
                            pool.submit(one, value)
                        except muster.InvalidArgument as error:
                            print(str(error).partition(": ")[2])
            """), """\
            expected arguments that can be pickled, got a future; give its result(), or after=[it] to come after it
            expected arguments that can be pickled, got an executor; make one in the function
            expected a function and arguments that can be pickled, got 'one' with arguments of which one cannot (cannot pickle '_thread.lock' object); leave out what belongs to this process: open files, locks, tensors on a device
            """)

    def test_a_keyword_that_the_executor_and_the_function_take_is_refused(self):
        self.must_print(script("""
            import functools
            def fit(path, name="none", ranks=1): return path, name, ranks
            def train(x, gpus=8, memory=8, ranks=8, after=8, retries=8, time_limit=8, name=8): return x
            @functools.wraps(fit)
            def wrapped(*args, **kwargs): return fit(*args, **kwargs)
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    for function in (fit, wrapped, functools.partial(fit, "a", ranks=1)):
                        try:
                            pool.submit(function, name="resnet", ranks=1)
                        except muster.InvalidArgument as error:
                            print(error)
                    for default in {"gpus": None}, {"memory": None}, {"ranks": 1}, {"after": ()}, {"retries": 0}, {"time_limit": None}, {"name": None}:
                        print(pool.submit(abs, -1, **default).result(), end=" ")
                        try:
                            pool.submit(train, 3, **default)
                        except muster.InvalidArgument as error:
                            print(str(error).partition(", got ")[2].partition(",")[0])
                    print(pool.submit(fit, "a", "b", name="of the task").result())
                    print(pool.submit(functools.partial(fit, name="b"), "a", name="of the task").result())
            """), """\
            muster.Executor.submit: expected keywords of its own, got ranks=1, name='resnet', which 'fit' takes too; give the function's as functools.partial(fit, ranks=1, name='resnet'), and leave it out here unless the task's is meant as well
            muster.Executor.submit: expected keywords of its own, got ranks=1, name='resnet', which 'fit' takes too; give the function's as functools.partial(fit, ranks=1, name='resnet'), and leave it out here unless the task's is meant as well
            muster.Executor.submit: expected keywords of its own, got name='resnet', which 'fit' takes too; give the function's as functools.partial(fit, name='resnet'), and leave it out here unless the task's is meant as well
            1 gpus=None
            1 memory=None
            1 ranks=1
            1 after=()
            1 retries=0
            1 time_limit=None
            1 name=None
            ('a', 'b', 1)
            ('a', 'b', 1)
            """)

    def test_arguments_that_do_not_fit_are_told_at_once(self):
        self.must_print(script("""
            import functools
            def train(rank, epochs): return rank, epochs
            def inject(function):
                @functools.wraps(function)
                def inner(*args): return function("injected", *args)
                return inner
            @inject
            def configured(config, x): return config, x
            class Model:
                def fit(self, x): return x
            def told(call, *args, **kwargs):
                try:
                    print(call(*args, **kwargs).result())
                except muster.InvalidArgument as error:
                    print(str(error).partition(": expected the ")[2])
            if __name__ == "__main__":
                told(muster.spawn, train, args=(3,), n=1)
                with muster.Executor(cpu_slots=1) as pool:
                    told(pool.submit, Model().fit)
                    told(pool.submit, functools.partial(train, 1, epochs=2), epoch=3)
                    told(pool.submit, configured, 3)
                    told(pool.submit, dict, a=3)
            """), """\
            arguments (rank, epochs) of 'train', got 1 by place: missing a required argument: 'epochs'; correct them (the function gets no rank: muster.rank() has it)
            arguments (x) of 'fit', got 0 by place: missing a required argument: 'x'; correct them
            arguments (epochs) of 'train', got 0 by place, epoch: got an unexpected keyword argument 'epoch'; correct them
            ('injected', 3)
            {'a': 3}
            """)

    def test_what_is_really_called_counts_and_not_what_a_decorator_shows(self):
        self.must_print(script("""
            import functools, inspect
            def shown_as(shown):
                def decorate(function):
                    function.__signature__ = inspect.signature(shown)
                    return function
                return decorate
            @shown_as(lambda path: 0)
            def fit(path, rate=0.5, name="none"): return path, rate, name
            def passes_on(function):
                @functools.wraps(function)  # which takes the signature over
                def wrapper(*args, **kwargs): return function(*args, **kwargs)
                return wrapper
            def gives_a_name(function):
                @functools.wraps(function)
                def wrapper(path): return function(path, name="its own")
                return wrapper
            @passes_on
            @shown_as(lambda path: 0)
            def wrapped(path, rate=0.5, name="none"): return path, rate, name
            @gives_a_name
            def named(path, rate=0.5, name="none"): return path, rate, name
            @shown_as(lambda *args, **kwargs: 0)
            def strict(path): return path
            class Model:
                @shown_as(lambda self: 0)
                def fit(self, path): return path
            def told(call, *args, **kwargs):
                try:
                    print(call(*args, **kwargs).result())
                except muster.InvalidArgument as error:
                    print(str(error).partition(": expected ")[2].partition(";")[0])
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=2) as pool:
                    told(pool.submit, fit, "a", 0.1)
                    told(pool.submit, wrapped, "a", rate=0.2)
                    told(pool.submit, functools.partial(wrapped, "a"), 0.3)
                    told(pool.submit, Model().fit, "a")
                    told(pool.submit, named, "a", name="the task's")
                    told(pool.submit, fit, "a", name="whose")
                    told(pool.submit, wrapped, "a", name="whose")
                    told(pool.submit, strict, "a", "b")
                print(muster.spawn(wrapped, args=("a", 0.4), n=1, quiet=True))
            """), """\
            ('a', 0.1, 'none')
            ('a', 0.2, 'none')
            ('a', 0.3, 'none')
            a
            ('a', 0.5, 'its own')
            keywords of its own, got name='whose', which 'fit' takes too
            keywords of its own, got name='whose', which 'wrapped' takes too
            the arguments (path) of 'strict', got 2 by place: too many positional arguments
            [('a', 0.4, 'none')]
            """)

    def test_a_program_without_a_file_is_named(self):
        text = "import sys; sys.modules['cloudpickle'] = None\nimport muster\ndef one(): return 1\nmuster.spawn(one, n=1)\n"
        done = subprocess.run([sys.executable, "-c", text], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False)
        self.assertIn("got 'one' of a main module that no other process can run again (python -c, standard input, a __main__.py); move the", done.stderr)

    def test_a_result_that_cannot_be_sent_shows_no_frames_of_muster(self):
        self.must_print(script("""
            def values(): return {"all": (i for i in range(2))}
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print("muster/_" in str(pool.submit(values).exception().__cause__))
                try:
                    muster.spawn(values, n=1, quiet=True)
                except muster.RanksFailed as failed:
                    print("muster/_" in failed.card, "got dict (cannot pickle 'generator' object)" in failed.card)
            """), "False\nFalse True\n")

    def test_tensors_of_a_gpu_come_back_on_the_cpu(self):
        (self.folder / "torch").mkdir()
        self.write("""
            import types
            class UntypedStorage:
                def __init__(self, device): self.device = types.SimpleNamespace(type=device)
                def cpu(self): return UntypedStorage("cpu")
                def __reduce__(self): return UntypedStorage, (self.device.type,)
            class Tensor:
                def __init__(self, storage): self.storage = storage
            cuda = types.SimpleNamespace(is_initialized=lambda: True)
            storage = types.SimpleNamespace(TypedStorage=UntypedStorage)
            """, "torch/__init__.py")
        self.must_print(script("""
            import torch
            def loss(): return {"loss": torch.Tensor(torch.UntypedStorage("cuda")), "step": torch.UntypedStorage("cpu")}
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    print(pool.submit(loss).result()["loss"].storage.device.type)
                    if muster.spawn(loss, n=1, quiet=True)[0]["loss"].storage.device.type == "cpu":
                        print("cpu")
            """), "cpu\ncpu\n")

    def test_a_timeout_is_told(self):
        self.must_print(script("""
            if __name__ == "__main__":
                try:
                    muster.spawn(wait_for_ever, n=1, timeout=0.5, quiet=True)
                except muster.RanksFailed as failed:
                    print(failed, failed.exit_code)
            """), "muster.spawn: the job of 'wait_for_ever' was stopped: exit code 124; its timeout was over 124\n")


class Callbacks(PackageCase):
    def test_one_that_leaves_the_program_leaves_the_executor(self):
        code, out, err = self.run_script(script("""
            import threading
            def one(): return 1
            if __name__ == "__main__":
                with muster.Executor(cpu_slots=1) as pool:
                    called = threading.Event()
                    def leave(_):
                        called.set()
                        sys.exit(3)
                    pool.submit(one).add_done_callback(leave)
                    called.wait()
                    print(pool.submit(one).result())
            """))
        self.assertEqual((code, out), (0, "1\n"), err)
        self.assertIn("SystemExit: 3", err)

    def test_one_that_waits_is_told(self):
        self.must_print(script("""
            import threading
            def one(): return 1
            def hold():
                while not pathlib.Path("go").exists(): time.sleep(0.01)
                pathlib.Path("go").unlink()
                return 1
            if __name__ == "__main__":
                for warm in False, True:
                    with muster.Executor(cpu_slots=1, warm=warm) as pool, muster.Executor(cpu_slots=1) as other:
                        called = threading.Event()
                        def wait(done):
                            try:
                                pool.submit(one, after=[last]).result()
                            except muster.FailedPrecondition as error:
                                print(error)
                            print(done.result(), other.submit(one).result())
                            called.set()
                        first = pool.submit(hold)
                        last = pool.submit(one, after=[first])
                        first.add_done_callback(wait)
                        pathlib.Path("go").touch()
                        called.wait()
            """), """\
            future.result: expected a future that is done, got a wait in a callback, which keeps the executor waiting; add a callback to that one, submit with after=[...], or wait in another thread
            1 1
            future.result: expected a future that is done, got a wait in a callback, which keeps the executor waiting; add a callback to that one, submit with after=[...], or wait in another thread
            1 1
            """)

    def test_asyncio_waits_for_futures(self):
        self.must_print(script("""
            import asyncio
            def double(x): return 2 * x
            def fail(): raise ValueError("no")
            async def main():
                with muster.Executor(cpu_slots=2) as pool:
                    print(await asyncio.get_running_loop().run_in_executor(pool, double, 1))
                    print(await asyncio.gather(*(asyncio.wrap_future(pool.submit(double, i)) for i in range(3))))
                    try:
                        await asyncio.wrap_future(pool.submit(fail))
                    except ValueError as error:
                        print(error)
            if __name__ == "__main__":
                asyncio.run(main())
            """), "2\n[0, 2, 4]\nno\n")


@unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
class Forks(PackageCase):
    def test_a_child_of_a_rank_meets_nobody(self):
        self.must_print(script("""
            import torch.distributed as dist
            if __name__ == "__main__":
                ctx = muster.init()
                child = os.fork()
                if child == 0:
                    for call in muster.init, lambda: muster.metrics(1, loss=1), ctx.should_stop:
                        try:
                            call()
                        except muster.FailedPrecondition as error:
                            print(error, flush=True)
                    sys.exit(0)  # which leaves the group to the parent
                print(os.waitpid(child, 0)[1], muster.metrics(1, loss=1), dist.is_initialized())
            """), """\
            muster.init: expected the process that has called muster.init, got one that was forked from rank 0; call it in that one
            metrics: expected the process that has called muster.init, got one that was forked from rank 0; call it in that one
            should_stop: expected the process that has called muster.init, got one that was forked from rank 0; call it in that one
            0 {'loss': 1.0} True
            """, python=TORCH_PYTHON)


    def test_a_child_of_a_rank_whose_group_is_the_program_s_own_meets_nobody(self):
        self.must_print(script("""
            import torch.distributed as dist
            def meet(name): dist.init_process_group("gloo", init_method=f"file://{pathlib.Path(name).resolve()}", rank=0, world_size=1)
            if __name__ == "__main__":
                meet("parents")
                child = os.fork()
                if child == 0:
                    for call in muster.init, lambda: muster.metrics(1, loss=1):
                        try:
                            call()
                        except muster.FailedPrecondition as error:
                            print(error, flush=True)
                    dist.group.WORLD = None  # as a child does that meets others
                    meet("of_children")
                    print(muster.metrics(2, loss=2), flush=True)
                    os._exit(0)
                print(os.waitpid(child, 0)[1], muster.metrics(1, loss=1))
            """), """\
            muster.init: expected the process that has joined the group, got one that was forked from it; call it in that one
            metrics: expected the process that has joined the group, got one that was forked from it; call it in that one
            {'loss': 2.0}
            0 {'loss': 1.0}
            """, python=TORCH_PYTHON)


class TheEnd(PackageCase):
    def test_tasks_go_on_where_python_starts_no_more_threads(self):
        """As Python 3.12, once the main module has ended."""
        for warm in False, True:
            self.must_print(script(f"""
                import atexit, threading
                def slow(value):
                    time.sleep(0.3)
                    return value
                def flaky():
                    if muster.attempt() == 0: raise ValueError("not yet")
                    return "again"
                def no_more(self): raise RuntimeError("can't create new thread at interpreter shutdown")
                def say(future): print(str(future.exception() or future.result()).splitlines()[0], flush=True)
                if __name__ == "__main__":
                    pool = muster.Executor(cpu_slots=1, warm={warm})
                    first = pool.submit(slow, "first")
                    second = pool.submit(flaky, retries=1, after=[first])
                    third = pool.submit(wait_for_ever, time_limit=0.3, after=[second])
                    fourth = pool.submit(muster.world_size, ranks=3, gpus=0, after=[second])
                    for future in (first, second, third, pool.submit(muster.rank, after=[fourth])): future.add_done_callback(say)
                    atexit.register(setattr, threading.Thread, "start", no_more)
                """), "first\nagain\ntask 'wait_for_ever' failed: its time limit of 0.3 s was over\n0\n")


if __name__ == "__main__":
    unittest.main()
