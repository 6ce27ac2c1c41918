"""Messages that are not as their receiver expects; a part of collectives.py and hosts.py."""
import torch
import torch.distributed as dist


def check(rank, size):
    """Are the receiver's error, which shows both sides; the sender goes on, and the next message is whole."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    for sent, wanted in ((torch.ones(6), torch.ones(6, dtype=torch.int32)), (torch.ones(6), torch.ones(4)), (torch.ones(4), torch.ones(6)),
                         (torch.ones(50_000), torch.ones(50_000, dtype=torch.int32)), (torch.ones(50_000), torch.ones(4))):
        work = dist.isend(sent, following, tag=5)
        try:
            dist.recv(wanted, previous, tag=5)
        except RuntimeError as error:
            names = {torch.float32: "Float", torch.int32: "Int"}
            says = f"expected {wanted.numel()} × {names[wanted.dtype]} from rank {previous} with tag 5, got {sent.numel()} × Float"
            assert says in str(error), error
        else:
            raise AssertionError(f"no error of {sent.numel()} × {sent.dtype} for {wanted.numel()} × {wanted.dtype}")
        work.wait()
    got = torch.zeros(1)
    work = dist.isend(torch.full((1,), float(rank)), following, tag=5)
    dist.recv(got, previous, tag=5)
    work.wait()
    assert got.item() == previous, got
