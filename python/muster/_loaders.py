"""What torch's DataLoader does in the place of muster's: the time in which a rank waits for it is a span, and its epochs are
made known to the sampler that needs to know of them."""
from __future__ import annotations

import functools
import sys
from typing import Any

from muster import spans

_shown = False
_is_told = False


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
        begins = getattr(getattr(batches, "sampler", None), "begin_batches", None)
        if begins:
            begins(getattr(batches, "batch_size", None) or 1, getattr(batches, "drop_last", False))
        return begin(self)

    DataLoader.__iter__ = begin_epoch
