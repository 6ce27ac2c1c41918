"""What torch's DataLoader does in the place of muster's: the time in which a rank waits for it is a span, and its epochs are
made known to the sampler that needs to know of them."""
from __future__ import annotations

import functools
import sys
from typing import Any, Sequence

from muster import spans
from muster.errors import FailedPrecondition

_shown = False
_is_told = False
_shares: Sequence[int] = ()  # the launcher's, where they are unequal


def show_waits() -> None:
    """From now on every batch that a DataLoader hands out is waited for in a span of the category "data"."""
    global _shown
    module = sys.modules.get("torch.utils.data.dataloader")
    if _shown or module is None or not spans.is_open():
        return
    _shown = True
    iterator = module._BaseDataLoaderIter
    following = iterator.__next__

    @functools.wraps(following)
    def next_batch(self: Any) -> Any:
        with spans.span("loader", "data"):
            return following(self)

    iterator.__next__ = next_batch


def guard_shares(shares: Sequence[int]) -> None:
    """From now on PyTorch's sampler, which gives all ranks as many samples, is refused with batches of these unequal shares: ranks
    with smaller ones would have more of them in an epoch, and train on while others are in the next one."""
    global _shares
    _shares = shares
    if shares and "torch.utils.data" in sys.modules:
        tell_samplers()


def tell_samplers() -> None:
    """From now on an epoch that a DataLoader begins calls `begin_batches(batch_size, drop_last)` of a sampler that has it."""
    global _is_told
    if _is_told:
        return
    _is_told = True
    from torch.utils.data import DataLoader
    begin = DataLoader.__iter__

    @functools.wraps(begin)
    def begin_epoch(self: Any) -> Any:
        batches = self if self.batch_sampler is None else self.batch_sampler  # without batches, each sample is one
        batch_size: int = 1 if batches is self else getattr(batches, "batch_size", None) or 0
        sampler = getattr(batches, "sampler", None) if batch_size else None  # a program's own batches may have any size
        begins = getattr(sampler, "begin_batches", None)
        if begins:
            begins(batch_size, getattr(batches, "drop_last", False))
        elif _shares:
            _refuse_equal_parts(sampler, batch_size)
        return begin(self)

    DataLoader.__iter__ = begin_epoch


def _refuse_equal_parts(sampler: Any, batch_size: int) -> None:
    import torch
    from torch.utils.data import DistributedSampler
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != len(_shares) or not torch.is_grad_enabled():
        return
    batches = [-(-len(sampler) // share) for share in _shares]
    if batch_size == _shares[sampler.rank] and min(batches) != max(batches):
        raise FailedPrecondition(
            f"DataLoader: expected muster.DistributedSampler with a batch size of {batch_size} that is this rank's share of "
            f"[{', '.join(map(str, _shares))}], got PyTorch's, with which an epoch has {min(batches)} batches on some ranks and {max(batches)} "
            f"on others (rank {sampler.rank}); give muster.DistributedSampler(data), which divides by the shares; put torch.no_grad() around the loop of an evaluation")
