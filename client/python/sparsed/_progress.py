"""Progress of long work: a value for callbacks, and a bar for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far it is.

    Attributes:
        stage: "upload", whose unit is bytes, or what the preparation does; "" between stages.
        done: so much of it.
        total: of so much; 0 if that is not known.
        state: of the matrix: "queued", "preparing", "ready", "failed"; "" during an upload.
        message: what the server says about it; often empty.
    """

    stage: str
    done: int
    total: int
    state: str = ""
    message: str = ""


class Bar:
    """One line on stderr, rewritten no more than ten times a second."""

    _WIDTH = 30

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown = 0.0
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._shown < 0.1 and (progress.done < progress.total or progress.total == 0):
            return
        self._shown = now
        share = progress.done / progress.total if progress.total > 0 else 0.0
        filled = round(self._WIDTH * min(share, 1.0))
        bar = "#" * filled + "-" * (self._WIDTH - filled)
        line = f"{self._title}: {progress.stage or progress.state:<20.20} [{bar}] {share:4.0%}"
        self._width = max(self._width, len(line))
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\n")
            sys.stderr.flush()


Listener = bool | Callable[[Progress], object] | None


def listener(
    progress: Listener, title: str
) -> tuple[Callable[[Progress], object] | None, Bar | None]:
    """What to call for `progress=`: nothing, a bar of our own, or the caller's function."""
    if progress is None or progress is False:
        return None, None
    if progress is True:
        bar = Bar(title)
        return bar, bar
    if not callable(progress):
        raise TypeError("progress is neither True nor a function of a sparsed.Progress")
    return progress, None
