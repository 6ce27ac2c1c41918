"""Values of other packages as those of Python."""
from __future__ import annotations

import numbers
import operator
import os
from typing import Any, Iterable, Mapping


def plain_value(value: Any) -> Any:
    """A path as text, a number of numpy as one of Python, and what can be gone through as a list; others as they are."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (str, bytes, bool, Mapping)):
        return value
    if hasattr(value, "__index__"):
        return operator.index(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return [plain_value(one) for one in value] if isinstance(value, Iterable) else value
