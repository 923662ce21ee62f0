"""What the engine tells the world: three calls, no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol


class Tracker(Protocol):
    """Hears about a run while it trains. Nothing it does can change training."""

    def start(self, rounds: int, resumed_at: int) -> None:
        """Hear that a run of `rounds` rounds starts, of which `resumed_at` were done before."""
        ...

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Hear the seconds that round `round` (1-based) took, and its metrics; none where it was not evaluated."""
        ...

    def end(self, status: Literal["finished", "failed"]) -> None:
        """Hear that the run is over."""
        ...


class NullTracker:
    """Hears and does nothing."""

    def start(self, rounds: int, resumed_at: int) -> None:
        """Do nothing."""

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Do nothing."""

    def end(self, status: Literal["finished", "failed"]) -> None:
        """Do nothing."""
