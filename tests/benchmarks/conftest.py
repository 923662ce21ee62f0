"""The workloads with data of random bytes, whole and tiny."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.images import Sources
from benchmarks.workloads import Workload, build

ROOT = Path(__file__).parents[2]
SOURCES = Sources(ROOT / "nowhere", ROOT / "benchmarks" / "w1_partition.npz", is_random=True)
TINY = {"w1": 0.004, "w2": 0.05, "w3": 0.05}


@pytest.fixture(scope="session")
def whole() -> dict[str, Workload]:
    return {name: build(name, SOURCES) for name in TINY}


@pytest.fixture(scope="session")
def tiny() -> dict[str, Workload]:
    return {name: build(name, SOURCES, scale) for name, scale in TINY.items()}
