"""Show how far a data set's files have come: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from fedcore.data.sources import Progress

PATIENCE = 10.0  # seconds between two lines


class ProgressBar:
    """Call it with every `Progress`; on a terminal it draws a bar for each thing that is under way."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._bar: Any = None
        self._what = ""
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, progress: Progress) -> None:
        """Show one report."""
        if self._is_terminal:
            self._draw(progress)
        elif progress.done == progress.total or time.monotonic() - self._last > PATIENCE:
            self._last = time.monotonic()
            print(line(progress), flush=True)

    def _draw(self, progress: Progress) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if self._bar is None or progress.what != self._what:
            if self._bar is not None:
                self._bar.close()
            is_bytes = progress.unit == "bytes"
            unit = "B" if is_bytes else f" {progress.unit}"
            self._bar = tqdm(desc=progress.what, total=progress.total, unit=unit, unit_scale=True, dynamic_ncols=True)
            # What an earlier download left was not fetched now: it counts for the bar, not for the speed.
            self._bar.initial = self._bar.n = progress.done if is_bytes else 0
            self._what = progress.what
        self._bar.update(progress.done - self._bar.n)


def line(progress: Progress) -> str:
    """Return a report as one line."""
    if progress.unit == "bytes":
        done = f"{progress.done / 1e6:,.1f}"
        return (
            f"{progress.what}: {done} MB"
            if progress.total is None
            else (f"{progress.what}: {done} of {progress.total / 1e6:,.1f} MB")
        )
    return f"{progress.what}: {progress.done:,} of {progress.total:,} {progress.unit}"
