"""One line per method and add-on: what the battery runs it with. A new file without a line here fails the battery."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A composition with small hyper-parameters."""

    method: str = "fedavg"
    add: Mapping[str, Any] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})


METHODS = {
    "fedavg": Case(),
    "fedavg_ft": Case("fedavg_ft", settings={"epochs": 2}),
    "fednova": Case("fednova"),
    "local": Case("local"),
    "scaffold": Case("scaffold", settings={"global_step": 0.9}),
}

ADDONS = {
    "calibration": Case(add={"calibration": {"tau": 0.5}}),
    "dbe": Case(add={"dbe": {"kappa": 2.0, "momentum": 0.5}}),
    "prox": Case(add={"prox": {"mu": 0.1}}),
    "restricted_softmax": Case(add={"restricted_softmax": {"alpha": 0.5}}),
}

COMBINATIONS = {
    f"{method}+{addon}": Case(method, ADDONS[addon].add, METHODS[method].settings)
    for method in ("scaffold", "fednova")
    for addon in ("dbe", "calibration", "prox")
}

CASES = {**METHODS, **ADDONS, **COMBINATIONS}
