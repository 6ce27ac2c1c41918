"""A rank that meets what goes wrong, and says what it was told: `faults.py killed`."""
import datetime
import inspect
import os
import re
import signal
import sys
import time

import torch
import torch.distributed as dist

import muster


def killed():
    """The last rank dies; the others are told so when they need it."""
    join()
    dist.barrier()
    die_last()


def join():
    if "TEST_HOSTS" in os.environ:
        os.environ["MUSTER_HOST_ID"] = os.environ["TEST_HOSTS"][int(os.environ["RANK"])]
    dist.init_process_group("muster")


def die_last():
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f"at {time.monotonic()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1000))


def forked():
    """Children that each rank forks end, whatever they do about the group, and the parents' watch over each other goes on."""
    join()
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    for end in (dist.destroy_process_group, lambda: None, use_in_child):
        if (child := os.fork()) == 0:
            signal.alarm(60)  # ends it where it hangs
            end()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0, end
    total = torch.ones(1000)
    dist.all_reduce(total)
    assert total.eq(size).all(), total
    die_last()


def use_in_child():
    expect_error(lambda: dist.all_reduce(torch.ones(3)), "all_reduce: expected the process that made the group, got a child")
    expect_error(lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(), "a child that it has forked")
    expect_error(lambda: dist.barrier(), "barrier: expected the process that made the group, got a child")
    expect_error(lambda: dist.broadcast(torch.ones(3), 0), "broadcast: expected the process that made the group")
    expect_error(lambda: dist.send(torch.ones(3), (dist.get_rank() + 1) % dist.get_world_size()), "send: expected the process")


def knows_monitored_barriers():
    """PyTorch 2.11 has them for Gloo alone."""
    return "only implemented for GLOO" not in inspect.getsource(dist.monitored_barrier)


def long():
    """datetime.timedelta.max is a long time."""
    dist.init_process_group("muster")
    limit = datetime.timedelta.max
    group = dist.new_group(timeout=limit)
    if knows_monitored_barriers():
        dist.monitored_barrier(timeout=limit)
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    assert work.wait(limit)
    dist.barrier(group=group)
    store = dist.distributed_c10d._get_default_store()
    got = torch.empty(3)
    if dist.get_rank() == 0:
        work = dist.irecv(got, 1, group=group)
        store.set("begun", "")
        assert work.wait(limit)
        assert got.eq(1).all()
    elif dist.get_rank() == 1:
        store.wait(["begun"])
        dist.send(torch.ones(3), 0, group=group)
    dist.barrier()
    print("ok")


def late():
    """The last rank comes neither to a barrier that is monitored, after which the group goes on, nor to one that is not."""
    if not knows_monitored_barriers():
        return print("skipped: this PyTorch has monitored barriers for Gloo alone")
    dist.init_process_group("muster")
    rank, size = dist.get_rank(), dist.get_world_size()
    limit = datetime.timedelta(milliseconds=200)
    for everybody in (False, True):
        dist.monitored_barrier(wait_all_ranks=everybody)
        if rank < size - 1:
            expect_error(lambda: dist.monitored_barrier(timeout=limit, wait_all_ranks=everybody),
                         rf"Rank {size - 1} failed to pass monitoredBarrier in 200 ms" if rank == 0 else
                         rf"Rank {rank} successfully reached monitoredBarrier, but .* rank 0")
        else:  # too late: nobody is there
            dist.distributed_c10d._get_default_store().wait([f"{everybody}/{other}" for other in range(size - 1)])
            expect_error(lambda: dist.monitored_barrier(timeout=limit), rf"Rank {rank} successfully reached .* rank 0")
        dist.distributed_c10d._get_default_store().set(f"{everybody}/{rank}", "")
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.eq(size).all(), total
    if rank < size - 1:
        dist.distributed_c10d._set_pg_timeout(limit)
        expect_error(dist.barrier, rf"Timed out waiting 200ms; missing rank\(s\) .*{size - 1}|rank 0 failed before")
    dist.distributed_c10d._get_default_store().add("left", 1)
    while dist.distributed_c10d._get_default_store().add("left", 0) < size:  # rank 0 serves the store
        pass
    print("ok")


def expect_error(call, expression):
    try:
        call()
    except RuntimeError as error:
        assert re.search(expression, str(error)), error
    else:
        raise AssertionError(f"expected an error: {expression}")


try:
    {"killed": killed, "forked": forked, "late": late, "long": long}[sys.argv[1]]()
except RuntimeError as error:
    print(f"at {time.monotonic()}\n{type(error).__name__}: {error}")
