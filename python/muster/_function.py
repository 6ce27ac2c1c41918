"""A function and its arguments as bytes, for a process that is not there yet."""
from __future__ import annotations

import concurrent.futures
import functools
import inspect
import io
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import socket
import sys
import threading
import types
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Type

from muster._environment import FIRST_FOLDER, folder_of_now
from muster._python_path import working_folder
from muster.errors import FailedPrecondition, InvalidArgument, text_of

# Set while a started process runs the program's main module again, to find the functions in it.
_importing_main = False
FUTURE_IS_NO_ARGUMENT = "expected arguments that can be pickled, got a future; give its result(), or after=[it] to come after it"
EXECUTOR_IS_NO_ARGUMENT = "expected arguments that can be pickled, got an executor; make one in the function"
_OF_A_PROCESS = "what belongs to this process: open files, locks, tensors on a device"
# The main module, and its name in a process that another one has started.
_MAIN_NAMES = ("__main__", "__mp_main__")


def refuse_while_importing(what: str) -> None:
    """A script without `if __name__ == "__main__":` would start itself again and again."""
    if _importing_main:
        raise FailedPrecondition(
            f"{what}: expected to be called by the program itself, got a call while a started process imports its main module; "
            'put the call under `if __name__ == "__main__":`')


def pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], what: str, stays: bool = False) -> bytes:
    """The call as bytes. Functions of importable modules and of the main script go by name; those of notebooks, lambdas and
    functions within functions go by value, which needs cloudpickle. The call is made in the folder of now; one that `stays` is
    made in that of its process."""
    working_folder(what)
    if not callable(function):
        raise InvalidArgument(f"{what}: expected a function, got {function!r}; give a function, and its arguments beside it")
    _refuse_what_only_begins(function, what)
    body = _body((function, tuple(args), dict(kwargs)), function, what)
    preparation = _preparation(needs_main=any(name.encode() in body for name in _MAIN_NAMES))
    if stays:
        preparation.pop("dir", None)
    if b"multiprocessing.managers" in body:  # its queues and others are reached with this key
        preparation["authkey"] = bytes(multiprocessing.process.current_process().authkey)
    return pickle.dumps((preparation, body), protocol=4)


# What a call of such a function gives, which cannot be sent, and what gives the values.
_BEGINNINGS = ((inspect.iscoroutinefunction, "an async function", "a function that returns asyncio.run({name}(...))"),
               (inspect.isasyncgenfunction, "an async generator", "a function that collects its values"),
               (inspect.isgeneratorfunction, "a generator", "a function that returns list({name}(...))"))


def _refuse_what_only_begins(function: Callable[..., Any], what: str) -> None:
    name = name_of(function)
    for is_one, kind, instead in _BEGINNINGS:
        if is_one(function) or (not isinstance(function, type) and is_one(getattr(function, "__call__", None))):
            raise InvalidArgument(f"{what}: expected a function that returns its result, got {kind}, '{name}'; give {instead.format(name=name)}")


def call_packed(packed: bytes) -> Any:
    """Makes the place as it was where `pack` was called, and calls."""
    preparation, body = pickle.loads(packed)
    _prepare(preparation)
    function, args, kwargs = pickle.loads(body)
    return function(*args, **kwargs)


def _main_file() -> Optional[str]:
    """The script that runs, where another process can run it again."""
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:  # python -m; of a package or a folder it is __main__.py, which multiprocessing does not run again
        return None if name.rpartition(".")[2] == "__main__" else str(main.__spec__.origin)  # type: ignore[union-attr]
    path = getattr(main, "__file__", None)
    return path if path and os.path.isfile(path) and not hasattr(sys, "ps1") and "ipykernel" not in path else None


def sources_of(function: Callable[..., Any]) -> Dict[str, int]:
    """When the files were written that a started process reads for this function: the script, and the function's module."""
    while isinstance(function, functools.partial):
        function = function.func
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    paths = (_main_file(), getattr(module, "__file__", None))
    return {path: written for path in paths if path and (written := written_at(path))}


def written_at(path: str) -> int:
    """In nanoseconds; 0: it is not there."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _body(call: Any, function: Callable[..., Any], what: str) -> bytes:
    """By name where another process finds all of it by name."""
    try:
        body = pickle.dumps(call, protocol=4)
    except InvalidArgument as error:  # of a future or an executor, which says what to do
        raise InvalidArgument(f"{what}: {error}") from None
    except Exception as error:  # an argument's own __reduce__ may raise anything
        return _by_value(call, function, what, error)
    return _by_value(call, function, what) if b"__main__" in body and _main_file() is None else body


def _by_value(call: Any, function: Callable[..., Any], what: str, first: Optional[Exception] = None) -> bytes:
    name = getattr(function, "__qualname__", repr(function))
    _refuse_futures(call, what)
    try:
        import cloudpickle
    except ImportError:
        raise InvalidArgument(f"{what}: expected a function and arguments that can be pickled, got '{name}'"
                              f"{_why_not(function, first)}") from first
    try:
        return bytes(cloudpickle.dumps(call, protocol=4))
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None
    except Exception as error:
        raise InvalidArgument(f"{what}: expected a function and arguments that can be pickled, got '{name}' ({error}); leave out "
                              f"{_OF_A_PROCESS}") from error


def _refuse_futures(call: Any, what: str) -> None:
    """Those of other executors too. They cannot be sent, and what is meant is clear."""
    _, args, kwargs = call
    for value in (*args, *kwargs.values()):
        if isinstance(value, concurrent.futures.Future):
            raise InvalidArgument(f"{what}: {FUTURE_IS_NO_ARGUMENT}")
        if isinstance(value, concurrent.futures.Executor):
            raise InvalidArgument(f"{what}: {EXECUTOR_IS_NO_ARGUMENT}")


def _why_not(function: Callable[..., Any], first: Optional[Exception]) -> str:
    """What pickle minds, and what to do, where there is no cloudpickle."""
    if first is None:
        return (" of a main module that no other process can run again (python -c, standard input, a __main__.py); move the function to "
                "a module, or install cloudpickle, which sends it as it is")
    try:
        pickle.dumps(function)
    except Exception:
        return f" ({first}); move the function to the top of a module, or install cloudpickle, which sends functions of notebooks and lambdas"
    return f" with arguments of which one cannot ({first}); leave out {_OF_A_PROCESS}"


def _preparation(needs_main: bool) -> dict[str, Any]:
    """What multiprocessing's spawn tells a child of the place: sys.path, sys.argv, the folder, and the main module. Relative entries
    of sys.path count from the program's first folder too."""
    vars(sys.modules["__main__"]).setdefault("__spec__", None)  # a debugger leaves it out, and multiprocessing asks for it
    data: dict[str, Any] = multiprocessing.spawn.get_preparation_data("muster")
    for key in ("authkey", "log_to_stderr", "log_level", "start_method", "name"):
        data.pop(key, None)
    data["orig_dir"] = FIRST_FOLDER
    if FIRST_FOLDER is not None:
        data["sys_path"] = [path for entry in data["sys_path"] for path in dict.fromkeys((entry, os.path.join(FIRST_FOLDER, entry)))]
    if not needs_main or _main_file() is None:
        data.pop("init_main_from_name", None)
        data.pop("init_main_from_path", None)
    return data


def _go_to(folder: Optional[str]) -> None:
    if folder is not None and os.path.isdir(folder):
        os.chdir(folder)


def _prepare(data: dict[str, Any]) -> None:
    """The main module is imported where it was at first, as it may go to another folder itself."""
    global _importing_main
    folder = data.pop("dir", None)
    if folder is not None and not os.path.isdir(folder):
        raise FailedPrecondition(f"muster: expected '{folder}' to be there, the working folder of the call, got none on {socket.gethostname()}; "
                                 "keep it until the function has begun, or change to another before the call")
    here = folder or folder_of_now()
    _go_to(folder)
    _go_to(data["orig_dir"])
    _importing_main = True
    try:
        multiprocessing.spawn.prepare(data)
    finally:
        _importing_main = False
    _go_to(here)
    sys.modules["__main__"] = sys.modules.get("__mp_main__", sys.modules["__main__"])


def pack_result(result: Any, what: str) -> bytes:
    """A result as bytes, or TypeError with its type."""
    try:
        return _dumps(result)
    except Exception as error:
        reason = str(error)
    try:
        return _dumps_by_value(result)
    except Exception:
        raise TypeError(f"{what}: expected a result that can be pickled, got {type(result).__name__} ({reason}); return numbers, "
                        "arrays or tensors of the CPU, or a path") from None


def unpack_result(packed: bytes, what: str) -> Any:
    """The result, or TypeError with what keeps it from being made here."""
    try:
        return pickle.loads(packed)
    except BaseException as error:  # a class's own __setstate__ may raise anything
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        raise TypeError(f"{what}: expected a result that this process can make again, got {type(error).__name__}: {text_of(error)}; return numbers, "
                        "arrays or tensors of the CPU, or a path") from error


def pack_exception(error: BaseException) -> Optional[bytes]:
    """An exception as bytes; None where it cannot be pickled, or not be made again."""
    stripped = error.with_traceback(None)
    ways = ((stripped, _dumps), (stripped, _dumps_by_value), (_WithoutInit(stripped), _dumps), (_WithoutInit(stripped), _dumps_by_value))
    return next((packed for packed in (_that_can_be_made_again(value, dumps) for value, dumps in ways) if packed), None)


def _that_can_be_made_again(value: Any, dumps: Callable[[Any], bytes]) -> Optional[bytes]:
    try:
        packed = dumps(value)
        pickle.loads(packed)
        return packed
    except Exception:
        return None


class _WithoutInit:
    """Pickled in an exception's place, whose __init__ has other arguments than those that it kept."""

    def __init__(self, error: BaseException) -> None:
        self._made_of = type(error), error.args, error.__dict__

    def __reduce__(self) -> Any:
        return _made_without_init, self._made_of


def _made_without_init(kind: Type[BaseException], args: Any, members: Mapping[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(members)
    return error


def _dumps(value: Any) -> bytes:
    return _pickled(value, pickle.Pickler)


def _dumps_by_value(value: Any) -> bytes:
    """For classes of notebooks and of functions. The caller's own class comes back."""
    import cloudpickle
    return _pickled(value, cloudpickle.Pickler)


def _pickled(value: Any, kind: Type[Any]) -> bytes:
    """Tensors of a GPU as those of the CPU: that GPU is this process's own, and the caller sees others, or none. A tensor is pickled
    as what it shows of a storage."""
    torch: Any = sys.modules.get("torch")
    has_gpu = hasattr(torch, "cuda") and torch.cuda.is_initialized()
    storages = (torch.UntypedStorage, torch.storage.TypedStorage) if has_gpu else ()

    class Pickler(kind):  # type: ignore[misc]
        def reducer_override(self, one: Any) -> Any:
            if isinstance(one, storages):
                return _on_the_cpu(one).__reduce__()
            return kind.reducer_override(self, one) if hasattr(kind, "reducer_override") else NotImplemented

    stream = io.BytesIO()
    (Pickler if has_gpu else kind)(stream, protocol=4).dump(value)
    return stream.getvalue()


def _on_the_cpu(storage: Any) -> Any:
    untyped = getattr(storage, "_untyped_storage", storage)  # torch warns of what else a typed one has
    if untyped.device.type in ("cpu", "meta"):
        return storage
    return untyped.cpu() if untyped is storage else type(storage)(wrap_storage=untyped.cpu(), dtype=storage.dtype, _internal=True)


def unpack_exception(packed: Optional[bytes]) -> Optional[BaseException]:
    """The exception, or None where this process does not know its type."""
    if packed is None:
        return None
    try:
        error = pickle.loads(packed)
    except BaseException:  # a class's own __setstate__ may raise anything
        return None
    return error if isinstance(error, BaseException) else None


def name_of(function: Callable[..., Any]) -> str:
    """A name for logs and tables."""
    while hasattr(function, "func") and not isinstance(function, types.FunctionType):
        function = function.func  # functools.partial
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")
