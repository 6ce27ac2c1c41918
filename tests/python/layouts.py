"""Tensors of any layout and type through torch.distributed's collectives; a part of collectives.py and hosts.py."""
import unittest.mock

import torch
import torch.distributed as dist

TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
         torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn)
SUMMED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64,
          torch.complex128)
ROOMS = (lambda rows, dtype: torch.zeros(rows, 6, dtype=dtype), lambda rows, dtype: torch.zeros(6, rows, dtype=dtype).t(),
         lambda rows, dtype: torch.zeros(rows, 12, dtype=dtype)[:, ::2])
COMPLEX = (torch.complex64, torch.complex128)
# Tensors that are conjugated or negated only when they are read, and the types that have them.
LAZY_ROOMS = ((lambda rows, dtype: torch.zeros(rows, 6, dtype=dtype).conj(), COMPLEX),
              (lambda rows, dtype: torch._neg_view(torch.zeros(rows, 6, dtype=dtype).conj()), COMPLEX),
              (lambda rows, dtype: torch._neg_view(torch.zeros(rows, 6, dtype=dtype)), SUMMED),
              (lambda rows, dtype: torch._neg_view(torch.zeros(rows, 12, dtype=dtype)[:, ::2]), SUMMED),
              (lambda rows, dtype: torch.zeros(rows, 6, dtype=dtype.to_complex()).conj().imag, (torch.float32, torch.float64)))


def bits(rank, rows, dtype):
    """Any bits, others for every rank."""
    count = (torch.arange(rows * 6 * dtype.itemsize) * 7 + 31 * rank + 3) % (2 if dtype == torch.bool else 251)
    return count.to(torch.uint8).view(dtype).view(rows, 6)


def numbers(rank, rows, dtype):
    small = (torch.arange(rows * 6) % 3 + rank % 3 + 1).view(rows, 6)
    return small.to(dtype) * (1 + 2j if dtype.is_complex else 1)


def placed(values, room):
    return room(values.shape[0], values.dtype).copy_(values)


def expect(got, expected, *what):
    assert got.resolve_conj().resolve_neg().contiguous().view(torch.uint8).equal(expected.contiguous().view(torch.uint8)), (*what, got, expected)


def moved(rank, size, dtype, read, room, values=bits):
    """`read` is the room of what calls only read, and `room` that of what they write into."""
    root = size - 1
    mine, every = (lambda: placed(values(rank, 4, dtype), read)), [values(r, 4, dtype) for r in range(size)]
    got = mine() if rank == root else placed(values(rank, 4, dtype), room)
    dist.broadcast(got, root)
    expect(got, every[root], "broadcast", dtype)
    parts = [room(4, dtype) for _ in range(size)]
    dist.all_gather(parts, mine())
    for part, expected in zip(parts, every):
        expect(part.view(dtype), expected, "all_gather", dtype)
    got = room(4 * size, dtype)
    dist.all_gather_into_tensor(got, mine())
    expect(got.contiguous().view(size, 4, 6), torch.stack(every), "all_gather_into_tensor", dtype)
    parts = [room(4, dtype) for _ in range(size)] if rank == root else None
    dist.gather(mine(), parts, root)
    for part, expected in zip(parts or (), every):
        expect(part, expected, "gather", dtype)
    got = room(4, dtype)
    dist.scatter(got, [placed(each, read) for each in every] if rank == root else None, root)
    expect(got, every[rank], "scatter", dtype)
    parts = [room(4, dtype) for _ in range(size)]
    dist.all_to_all(parts, [mine() for _ in range(size)])
    for part, expected in zip(parts, every):
        expect(part, expected, "all_to_all", dtype)
    got = room(2 * size, dtype)
    dist.all_to_all_single(got, placed(values(rank, 2 * size, dtype), read))
    for r in range(size):
        expect(got[2 * r:2 * r + 2], values(r, 2 * size, dtype)[2 * rank:2 * rank + 2], "all_to_all_single", dtype)
    got = room(4, dtype)
    sending = dist.isend(mine(), (rank + 1) % size)
    dist.recv(got, (rank - 1) % size)
    sending.wait()
    expect(got, every[rank - 1], "send and recv", dtype)


def summed(rank, size, dtype, read, room):
    rows = 2 * size
    mine, total = (lambda: placed(numbers(rank, rows, dtype), read)), sum(numbers(r, rows, dtype) for r in range(size)).to(dtype)
    got = placed(numbers(rank, rows, dtype), room)
    dist.all_reduce(got)
    expect(got, total, "all_reduce", dtype)
    got = placed(numbers(rank, rows, dtype), room) if rank == size - 1 else mine()
    dist.reduce(got, size - 1)
    if rank == size - 1:
        expect(got, total, "reduce", dtype)
    got = room(2, dtype)
    dist.reduce_scatter(got, [placed(part, read) for part in numbers(rank, rows, dtype).split(2)])
    expect(got, total[2 * rank:2 * rank + 2], "reduce_scatter", dtype)
    if not dtype.is_complex:  # of which PyTorch views a dimension more
        got = room(2, dtype)
        dist.reduce_scatter_tensor(got, mine())
        expect(got, total[2 * rank:2 * rank + 2], "reduce_scatter_tensor", dtype)


def check(rank, size):
    for room in ROOMS:
        for dtype in TYPES:
            moved(rank, size, dtype, room, room)
        for dtype in SUMMED:
            summed(rank, size, dtype, room, room)
    # Most Python calls give a backend pairs in place of complex tensors, and refuse conjugated ones, unlike PyTorch's calls in C++.
    # Into such tensors PyTorch writes with no backend: it gives a backend a copy, and drops that.
    with unittest.mock.patch.object(torch, "view_as_real", lambda tensor: tensor):
        for read, types in LAZY_ROOMS:
            for dtype in types:
                moved(rank, size, dtype, read, ROOMS[0], numbers)  # numbers, since negating may change the bits of a NaN
                summed(rank, size, dtype, read, ROOMS[0])
