"""A rank that muster.init() has joined to the others; what it does, its argument says."""
import os
import signal
import sys
import threading

import muster

if sys.argv[1:] == ["no backend"]:  # before torch: the order in which a formatter sorts them
    import torch
    import torch.distributed as dist
    for make in (lambda: muster.init(backend="muster"), lambda: dist.init_process_group("muster", store=dist.HashStore(), rank=0, world_size=1)):
        try:
            make()
            sys.exit("no error")
        except muster.Unavailable as error:
            assert "muster-torch" in str(error) and "pip install" in str(error), error
    print(muster.init(), dist.get_backend())
    sys.exit(0)

import torch
import torch.distributed as dist

if sys.argv[1:] == ["lonely"]:  # the others never come
    from datetime import timedelta

    from muster import _join
    _join._INIT_TIMEOUT = timedelta(seconds=1)
    try:
        muster.init()
    except muster.Error as error:
        print(f"{error.code}: {error}")
    sys.exit(0)
if sys.argv[1:] == ["worlds of one"]:  # a program that takes its place from variables that another launcher has set
    dist.init_process_group("muster", store=dist.HashStore(), rank=0, world_size=1)
    try:
        muster.init()
    except muster.InvalidArgument as error:
        print(error)
    sys.exit(0)
if sys.argv[1:] == ["taken"]:  # a program that knows torch.distributed alone, and adds a line
    dist.init_process_group("gloo")
    sys.argv[1:] = ["meet"]


def must_refuse(words, **asked):
    try:
        muster.init(**asked)
    except muster.Error as error:
        assert words in str(error), error
        return
    sys.exit(f"no error: {asked}")


if sys.argv[1:] == ["ask others"]:
    from datetime import timedelta
    must_refuse("muster.init: expected a timeout above 0, in seconds or as a timedelta, got '60'; correct it", timeout="60")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    must_refuse("expected backend as the program's own group has it (cpu:gloo,cuda:gloo), got 'muster' (rank 0); give it to init_process_group", backend="muster")
    muster.init(backend="gloo", timeout=60)
    must_refuse("expected timeout as the program's own group has it (0:01:00), got 90 (rank 0); give it to init_process_group", timeout=90)
    muster.init().close()
    dist.destroy_process_group()
    ctx = muster.init(timeout=90)
    for same in ({}, {"backend": "muster"}, {"backend": "cpu:muster"}, {"timeout": timedelta(seconds=90)}, {"surplus": "error"}):
        assert muster.init(**same) is ctx, same
    must_refuse("expected backend as its first call has set it (cpu:muster), got 'gloo' (rank 0); leave it out, or call ctx.close() before", backend="gloo")
    must_refuse("expected timeout as its first call has set it (0:01:30), got 60 (rank 0)", timeout=60)
    must_refuse("expected surplus as its first call has set it (error), got 'share' (rank 0)", surplus="share")
    print("rank 0 of 1: ok")
    sys.exit(0)
if sys.argv[1:2] == ["limits"]:  # of groups that the program has made; rank 1 does not come to the barriers
    from datetime import timedelta
    dist.init_process_group("muster", timeout=timedelta(hours=1))
    store = dist.distributed_c10d._get_default_store()
    if sys.argv[2:] == ["init"]:
        muster.init(timeout=0.3)
    groups = [dist.group.WORLD] if sys.argv[2:] == ["init"] else [dist.group.WORLD, dist.new_group()]
    for group in groups if dist.get_rank() == 0 else []:
        try:
            dist.barrier(group=group)
            sys.exit("no error")
        except dist.DistBackendError as error:
            assert "Timed out waiting 300ms" in str(error), error
    for done in ("seen 0", "seen 1"):  # rank 0 has the store, so it goes last
        store.set(done, "") if done.endswith(str(dist.get_rank())) else store.wait([done])
    print(f"rank {dist.get_rank()} of 2: ok", flush=True)
    os._exit(0)  # the barrier that failed has ended the group
if sys.argv[1:] == ["stop slowly"]:  # rank 0 is still on its way out when the launcher ends it
    import atexit

    from muster import _stops

    def until_the_launcher_asks():
        while os.environ["RANK"] == "0" and _stops.seen() == 0:
            threading.Event().wait(0.01)
    atexit.register(until_the_launcher_asks)  # before muster's own handler, so after it
ctx = muster.init()
assert muster.init() is ctx
others = "" if ctx.world_size == 1 else f" of {ctx.local_world_size}"


def summed():
    values = torch.full((3,), float(ctx.rank), device=ctx.device)
    dist.all_reduce(values)
    return values[0].item()


def meet():
    assert summed() == sum(range(ctx.world_size))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).to(ctx.device))
    model(torch.ones(1, 2)).sum().backward()
    means = muster.metrics(1, loss=ctx.rank, top1=(torch.tensor([1.0, 0.0]), ctx.rank))
    assert means["loss"] == (ctx.world_size - 1) / 2, means
    assert ctx.world_size == 1 or means["top1"] == 0.5, means
    assert not ctx.should_stop() and not ctx.stops
    print(f"rank {ctx.rank} of {ctx.world_size}: ok, local {ctx.local_rank}{others}, {dist.get_backend()}, {muster.batch_share()}", flush=True)


def stop():
    """Rank 1 alone is asked, and all end after the same step."""
    ctx.should_stop()
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    for step in range(1000):
        ctx.note(step=step, samples=1, loss=torch.tensor(0.5))
        if ctx.should_stop():
            print(f"rank {ctx.rank}: stops in step {step}", flush=True)
            sys.exit(muster.STOPPED)


def wait():
    """Until somebody asks."""
    ctx.should_stop()
    print("ready", flush=True)
    while not ctx.should_stop():
        threading.Event().wait(0.01)
    sys.exit(muster.STOPPED)


def interrupt():
    assert not ctx.should_stop()
    signal.raise_signal(signal.SIGINT)
    assert ctx.should_stop() and ctx.stops
    try:
        signal.raise_signal(signal.SIGINT)
        sys.exit("no interrupt")
    except KeyboardInterrupt:
        print(f"rank {ctx.rank} of 1: ok")


def again():
    """A notebook closes, and begins anew."""
    assert not ctx.should_stop()
    signal.raise_signal(signal.SIGUSR1)
    assert ctx.should_stop()
    ctx.close()
    child = os.fork()  # which the signal ends again
    if child == 0:
        signal.raise_signal(signal.SIGUSR1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGUSR1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not dist.is_initialized()
    assert muster.init() is not ctx and not muster.init().should_stop()
    assert summed() == 0
    print(f"rank {ctx.rank} of 1: ok")


def rounds():
    """All close and begin anew. Rank 0 closes when the other already does begin."""
    global ctx
    for again in range(3):
        assert summed() == sum(range(ctx.world_size))
        while ctx.is_main and not os.path.exists(f"begins.{again}"):
            threading.Event().wait(0.01)
        rank = ctx.rank
        ctx.close()
        if rank == 1:
            open(f"begins.{again}", "w").close()
        ctx = muster.init()
    print(f"rank {ctx.rank} of {ctx.world_size}: ok")


def load():
    """Most of the time goes to the loader."""
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 25

        def __getitem__(self, index):
            threading.Event().wait(0.01)
            return index

    for step, _ in enumerate(torch.utils.data.DataLoader(Slow())):
        ctx.note(step=step, samples=1, loss=0.5)
    with muster.span("save", "checkpoint"):
        threading.Event().wait(0.05)
    muster.metrics(25, loss=1, tensorboard=True)


def mix():
    """The ranks pass metrics of different names, and of different steps: one has left one out."""
    for told, step, name in (("the same names on all ranks, got 'loss0' on rank 0 and 'loss1' on rank 1", 1, f"loss{ctx.rank}"),
                             ("the same step on all ranks, got 'step 3' on rank 0 and 'step 4' on rank 1", 3 + ctx.rank, "loss")):
        try:
            muster.metrics(step, **{name: 1})
            sys.exit(f"no error: {told}")
        except muster.InvalidArgument as error:
            assert f"metrics: expected {told} (rank {ctx.rank}); pass" in str(error), error
    assert muster.metrics(5, loss=ctx.rank) == {"loss": 0.5}
    print(f"rank {ctx.rank} of {ctx.world_size}: ok")


def shares():
    """Each rank has its share of each global batch, and the weighted gradients are those of the whole one."""
    from torch.utils.data import DataLoader, DistributedSampler
    data = torch.arange(13.0)[:, None]
    mine = muster.batch_share()
    net = torch.nn.Linear(1, 1)
    model = torch.nn.parallel.DistributedDataParallel(net)

    def gradient(rows, weight=1.0):
        net.zero_grad()
        (model(data[rows]).square().mean() * weight).backward()
        return net.weight.grad.clone()

    sampler = muster.DistributedSampler(data, seed=3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        order = torch.randperm(13, generator=torch.Generator().manual_seed(3 + epoch)).split(5)
        batches = list(DataLoader(range(13), batch_size=mine, sampler=sampler))
        assert len(batches) == 3 and [len(batch) for batch in batches[:2]] == [mine, mine]
        for number, (batch, whole) in enumerate(zip(batches, order)):
            assert torch.allclose(gradient(batch, sampler.weight(number)), gradient(whole)), (epoch, number)
    for words, loader in (("expected batches of this rank's share", DataLoader(range(13), batch_size=4, sampler=sampler)),
                          ("drop_last of the sampler alone", DataLoader(range(13), batch_size=mine, sampler=sampler, drop_last=True)),
                          ("expected muster.DistributedSampler with a batch size of", DataLoader(range(13), batch_size=mine, sampler=DistributedSampler(range(13))))):
        try:
            list(loader)
            sys.exit(f"no error: {words}")
        except muster.FailedPrecondition as error:
            assert words in str(error), error
        with torch.no_grad():
            list(loader)
    assert len(list(DataLoader(range(13), batch_size=4, sampler=muster.DistributedSampler(13, shares=())))) == 2

    class OwnBatches:
        sampler = DistributedSampler(range(13))

        def __iter__(self):
            return iter([[0, 1, 2], [3]])

    assert len(list(DataLoader(range(13), batch_sampler=OwnBatches()))) == 2
    print(f"rank {ctx.rank} of {ctx.world_size}: ok")


{"meet": meet, "stop": stop, "stop slowly": stop, "wait": wait, "interrupt": interrupt, "again": again, "rounds": rounds, "load": load, "mix": mix, "shares": shares}[sys.argv[1]]()
