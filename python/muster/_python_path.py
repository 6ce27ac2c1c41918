"""Where a started process finds this package."""
from __future__ import annotations

import os


def python_path() -> str:
    """PYTHONPATH with this package first; sys.path comes with its call."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    earlier = os.environ.get("PYTHONPATH", "")
    return f"{package}{os.pathsep}{earlier}" if earlier else package
