"""How far the reading of a data set has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """One report: `done` of `total` units; `total` is None when a server does not say how long a file is."""

    what: str  # "decode", "download train-labels-idx1-ubyte.gz", ...
    unit: Literal["images", "clients", "bytes"]
    done: int
    total: int | None


OnProgress = Callable[[Progress], None]
