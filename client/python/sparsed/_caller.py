"""Where warnings point to."""

from __future__ import annotations

import sys


def callers_level() -> int:
    """The `stacklevel` of the program's line that led here, not of this package's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    return level


def _is_ours(module: str) -> bool:
    return module == "sparsed" or module.startswith("sparsed.")
