"""Values of other packages as those of Python."""
from __future__ import annotations

import numbers
import operator
import os
from typing import Any, Iterable, Mapping, Optional, Union


def index_of(value: Any) -> Optional[int]:
    """A whole number, also one of numpy, as an int; None for what is none. Arrays and tensors have __index__, which raises."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def path_text(path: Union[str, "os.PathLike[str]"]) -> str:
    """As text. A "~" at its beginning is the user's folder, as no shell has put that there."""
    return os.path.expanduser(os.fspath(path))


def plain_value(value: Any) -> Any:
    """A path as text, a number of numpy as one of Python, and what can be gone through as a list; others as they are."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (str, bytes, bool, Mapping)):
        return value
    index = index_of(value)
    if index is not None:
        return index
    if isinstance(value, numbers.Real):
        return float(value)
    return [plain_value(one) for one in value] if isinstance(value, Iterable) else value
