"""Ranks of a Python script, forked from one process that has imported torch: that takes longer than most of them do.

    forked.py RANKS SCRIPT [ARGUMENT...]   ends with the code of the first rank that fails, which ends the others
    forked.py                              runs the processes that each line of JSON names, and says how they have ended
"""
import gc
import json
import os
import runpy
import signal
import socket
import sys


class InChild(Exception):
    """Leaves whatever the parent was in the midst of: a rank ends as any interpreter does."""


def fork(argv, environment, folder=None, output=None):
    """The process number of `argv`, a script and its arguments."""
    if pid := os.fork():
        return pid
    become(argv, environment, folder, output)


def become(argv, environment, folder=None, output=None):
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    if output:
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = list(argv)
    raise InChild


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def places(ranks, port):
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            for rank in range(ranks)]


HELD = socket.socket()  # bound and never listening: rank 0 may listen there, also where it is this process


def run_ranks(ranks, argv):
    HELD.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    HELD.bind(("127.0.0.1", 0))
    environments = places(ranks, HELD.getsockname()[1])
    if ranks == 1:  # which may have a GPU: that of a process that forks is lost
        become(argv, environments[0])
    import_torch()
    alive = {fork(argv, environment) for environment in environments}
    while alive:
        pid, status = os.wait()
        alive.remove(pid)
        if code := os.waitstatus_to_exitcode(status):
            for other in alive:
                os.kill(other, signal.SIGKILL)
            return code if code > 0 else 128 - code
    return 0


def serve():
    import_torch()
    for line in sys.stdin:
        pids = [fork(**process) for process in json.loads(line)]
        print(json.dumps([ended(pid) for pid in pids]), flush=True)
    return 0


def import_torch():
    sys.modules["triton"] = None  # as where it is not installed: nothing here needs it, and it complains of being forked
    import torch._dynamo  # noqa: F401  PyTorch's optimizers and wrappers import it when they are first used
    import torch.distributed  # noqa: F401
    gc.collect()
    gc.freeze()  # a rank does not visit all that was imported when it ends


if __name__ == "__main__":
    try:
        sys.exit(run_ranks(int(sys.argv[1]), sys.argv[2:]) if sys.argv[1:] else serve())
    except InChild:
        pass
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
