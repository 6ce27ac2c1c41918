"""The time in which a rank waits for torch's DataLoader, as a span."""
from __future__ import annotations

import functools
import sys
from typing import Any

from muster import spans

_shown = False


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
