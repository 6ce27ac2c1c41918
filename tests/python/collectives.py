"""A rank: torch.distributed's collectives over the backend "muster", against what they must give."""
import os

import torch
import torch.distributed as dist

import layouts
import muster  # registers the backend
import unlike_messages

dist.init_process_group(os.environ.get("TEST_BACKEND", "muster"))
rank, size = dist.get_rank(), dist.get_world_size()
following, previous = (rank + 1) % size, (rank - 1) % size


def row(r, n=6, dtype=torch.float32):
    """What rank r has."""
    return (torch.arange(n) % 5 + 1 + r).to(dtype)


def rows(n=6, dtype=torch.float32):
    return torch.stack([row(r, n, dtype) for r in range(size)])


def expect(got, expected, **tolerance):
    torch.testing.assert_close(got, expected, **tolerance or {"rtol": 0, "atol": 0})


def expect_error(call, *parts):
    try:
        call()
    except RuntimeError as error:
        for part in parts:
            assert part in str(error) and "\n" not in str(error), error
    else:
        raise AssertionError(f"expected an error that says {parts}")


def all_reduce():
    for n in (1, 3_000, 150_000):  # in slots and in stages
        for op, expected in ((dist.ReduceOp.SUM, rows(n).sum(0)), (dist.ReduceOp.AVG, rows(n).mean(0)),
                             (dist.ReduceOp.MAX, rows(n).amax(0)), (dist.ReduceOp.MIN, rows(n).amin(0)), (dist.ReduceOp.PRODUCT, rows(n).prod(0))):
            got = row(rank, n)
            dist.all_reduce(got, op)
            expect(got, expected, rtol=1e-6, atol=0)
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex64):
        got = row(rank, dtype=dtype)
        dist.all_reduce(got)
        expect(got, rows(dtype=dtype).sum(0).to(dtype))
    bits = torch.tensor([1 << rank, 3])
    dist.all_reduce(bits, dist.ReduceOp.BOR)
    expect(bits, torch.tensor([(1 << size) - 1, 3]))
    both = [row(rank), row(rank, 2)]
    dist.all_reduce_coalesced(both)
    expect(both[1], rows(2).sum(0))
    empty = torch.empty(0)
    dist.all_reduce(empty)


def asynchronous():
    tensors = [row(rank, n) for n in (6, 300_000, 3, 50_000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in reversed(list(zip(works, tensors))):
        assert work.wait()
        expect(tensor, rows(tensor.numel()).sum(0))
    work = dist.all_reduce(row(rank), async_op=True)
    expect(work.get_future().then(lambda done: done.value()[0] + 1).wait(), rows().sum(0) + 1)
    assert work.is_completed()


def rooted():
    for root in range(size):
        got = row(rank)
        dist.broadcast(got, root)
        expect(got, row(root))
        got = row(rank)
        dist.reduce(got, root)
        if rank == root:
            expect(got, rows().sum(0))
        parts = [torch.empty(6) for _ in range(size)] if rank == root else None
        dist.gather(row(rank), parts, root)
        if rank == root:
            expect(torch.stack(parts), rows())
        got = torch.empty(6)
        dist.scatter(got, list(rows()) if rank == root else None, root)
        expect(got, row(rank))


def gathering():
    for n in (6, 150_000):
        parts = [torch.empty(n) for _ in range(size)]
        dist.all_gather(parts, row(rank, n))
        expect(torch.stack(parts), rows(n))
        got = torch.empty(size * n)
        dist.all_gather_into_tensor(got, row(rank, n))
        expect(got, rows(n).flatten())
        got = torch.empty(n)
        dist.reduce_scatter(got, [row(rank, n) + part for part in range(size)])
        expect(got, rows(n).sum(0) + size * rank)
        for op, factor in ((dist.ReduceOp.SUM, size), (dist.ReduceOp.AVG, 1)):
            dist.reduce_scatter_tensor(got, torch.full((size * n,), float(rank)), op)
            expect(got, torch.full((n,), factor * (size - 1) / 2))


def all_to_all():
    got = torch.empty(size * 2)
    dist.all_to_all_single(got, torch.arange(size * 2.0) + 100 * rank)
    expect(got, torch.cat([torch.tensor([2.0 * rank, 2.0 * rank + 1]) + 100 * r for r in range(size)]))
    # Rank r sends r + 1 rows to rank 0, r + 2 to rank 1 and so on.
    sent, received = [rank + 1 + r for r in range(size)], [r + 1 + rank for r in range(size)]
    got = torch.empty(sum(received), 3)
    dist.all_to_all_single(got, torch.full((sum(sent), 3), float(rank)), received, sent)
    expect(got, torch.cat([torch.full((count, 3), float(r)) for r, count in enumerate(received)]))
    parts = [torch.empty(count) for count in received]
    dist.all_to_all(parts, [torch.full((count,), float(rank)) for count in sent])
    expect(torch.cat(parts), torch.cat([torch.full((count,), float(r)) for r, count in enumerate(received)]))


def messages():
    for n in (5, 200_000):
        got = torch.empty(n)
        if rank == 0:
            dist.send(row(0, n), following)
            dist.recv(got, previous)
        else:
            dist.recv(got, previous)
            dist.send(row(rank, n), following)
        expect(got, row(previous, n))
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, row(rank, n), following), dist.P2POp(dist.irecv, got, previous)])
        for work in works:
            work.wait()
        expect(got, row(previous, n))
    if rank > 0:
        dist.send(row(rank), 0, tag=7)
    else:
        sources = []
        for _ in range(size - 1):
            got = torch.empty(6)
            sources.append(dist.recv(got, tag=7))  # from anybody
            expect(got, row(sources[-1]))
        assert sorted(sources) == list(range(1, size)), sources


def objects():
    got = [None] * size
    dist.all_gather_object(got, {"rank": rank, "text": "x" * (10 + 1_000 * rank)})
    assert [g["rank"] for g in got] == list(range(size)) and len(got[-1]["text"]) == 10 + 1_000 * (size - 1)
    got = ["a", {"b": 2}, None] if rank == 0 else [None] * 3
    dist.broadcast_object_list(got, 0)
    assert got == ["a", {"b": 2}, None]
    got = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
    assert got == [f"for {rank}"]
    dist.barrier()


def groups():
    for members in ([0], [size - 1, 0], list(range(1, size))):
        group = dist.new_group(members)
        if rank in members:
            got = row(rank)
            dist.all_reduce(got, group=group)
            expect(got, torch.stack([row(r) for r in members]).sum(0))
            dist.broadcast(got, members[-1], group=group)
            dist.destroy_process_group(group)


def errors():
    expect_error(lambda: dist.all_reduce(torch.ones(4, 3 + (rank == 1))), "all_reduce", "[4, 3]", "[4, 4]", "rank 1")
    work = dist.all_reduce(torch.ones(2 + (rank == 1)), async_op=True)
    expect_error(work.wait, "[2]", "[3]")
    expect_error(lambda: dist.broadcast(torch.ones(3, dtype=torch.int32 if rank else torch.float32), 0), "Int", "Float")
    gaps = torch.ones(4, 6)  # not contiguous: what lies between is left alone
    dist.all_reduce(gaps[:, ::2])
    assert gaps.equal(torch.tensor([float(dist.get_world_size()), 1.0]).repeat(4, 3)), gaps
    rooted()  # the group goes on


def every_layout():
    layouts.check(rank, size)
    unlike_messages.check(rank, size)


for test in (every_layout, all_reduce, asynchronous, rooted, gathering, all_to_all, messages, objects, groups, errors):
    test()
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
