"""A sweep: a grid over hyper-parameters as labelled methods of its own, trained apart, chosen on validation data."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.files import atomic_path, read_json
from tasks.run_folder import Run, read_run

FOLDER = Path(".experiments")


@dataclass(frozen=True)
class Point:
    """A point of the grid: the label it is trained under, the method it varies, and its values by parameter."""

    label: str
    method: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What a point reached: means over seeds of the round chosen on validation; None where a run failed."""

    label: str
    method: str
    values: dict[str, Any]
    validation: float | None
    test: float | None
    failed: str = ""

    def cells(self) -> dict[str, Any]:
        """Return the row as a table shows it."""
        shown = {key.removeprefix(f"methods.{self.method}."): value for key, value in self.values.items()}
        scores = {"validation accuracy": self.validation, "test accuracy (not used)": self.test}
        return {"label": self.label, "method": self.method, **shown, **scores, "failed": self.failed}


def points(params: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], methods: Sequence[str] | None) -> list[Point]:
    """Return every combination of a grid, method by method.

    Parameters
    ----------
    params : mapping
        Content of params.yaml.
    grid : mapping from parameter to the values to try
        ``methods.<label>.<...>`` varies that method, ``train.<key>`` every method of the sweep.
    methods : sequence of labels or None
        The methods to vary; None: those that `grid` names, or all where it names none.

    Raises
    ------
    ValueError
        One line naming the parameter that cannot be varied or the method that does not exist.
    """
    from fedcore.config import nearest

    labels = list(params["methods"])
    named: list[str] = []
    for key, values in grid.items():
        parts = key.split(".")
        if len(parts) < (2 if parts[0] == "train" else 3) or parts[0] not in ("train", "methods"):
            raise ValueError(f"grid: '{key}' cannot be varied. Valid: methods.<label>.<parameter>, train.<parameter>")
        if not isinstance(values, list) or not values:
            raise ValueError(f"grid: '{key}' needs a list of values, got {values!r}")
        if parts[0] == "methods" and parts[1] not in named:
            named.append(parts[1])
    if not grid:
        raise ValueError("grid: nothing to vary; give for example {methods.fedprox.add.prox.mu: [0.01, 0.1]}")
    chosen = list(methods or named or labels)
    for label in [*chosen, *named]:
        if label not in labels:
            raise ValueError(f"'{label}' is not one of the methods{nearest(label, labels)}")
    found = []
    for label in chosen:
        own = {key: values for key, values in grid.items() if not key.startswith("methods.") or _of(key) == label}
        for number, combination in enumerate(itertools.product(*own.values()), start=1):
            found.append(Point(f"{label}-{number}", label, dict(zip(own, combination, strict=True))))
    return found


def parameters(
    params: Mapping[str, Any], chosen: Sequence[Point], seeds: Sequence[int] | None, name: str
) -> dict[str, Any]:
    """Return the content of the sweep's own params.yaml: a labelled method for every point."""
    made = copy.deepcopy(dict(params))
    made["experiment"] = f"{params['experiment']}-{name}"
    made["methods"] = {}
    for point in chosen:
        block = copy.deepcopy(params["methods"][point.method] or {})
        block.setdefault("method", point.method)
        for key, value in point.values.items():
            path = key.split(".")
            _set(block, path[2:] if path[0] == "methods" else path, value)
        made["methods"][point.label] = block
    made["compare"] = {**params["compare"], "baseline": chosen[0].label}
    if seeds is not None:
        made["compare"]["seeds"] = list(seeds)
    return made


def prepare(folder: Path, made: Mapping[str, Any]) -> Path:
    """Check and write the sweep's params.yaml; return where it is.

    Raises
    ------
    ValueError
        One line per value that is not valid, naming its key.
    """
    from ruamel.yaml import YAML

    from fedcore.compose import build_all
    from fedcore.config import validate

    build_all(validate(made))
    path = folder / "params.yaml"
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        YAML().dump(json.loads(json.dumps(made)), file)
    return path


def is_done(run: Path, plan: Path, dataset: Path, partition: Path) -> bool:
    """Return whether a run folder was made from this plan, data and code."""
    import numpy as np

    from tasks.lineage import engine_hash

    if not (run / "metrics.json").is_file():
        return False
    with np.load(partition, allow_pickle=False) as table:
        partition_hash = str(table["content_hash"])
    wanted = {
        "plan_hash": hashlib.sha256(json.dumps(read_json(plan), sort_keys=True).encode()).hexdigest(),
        "dataset_hash": read_json(dataset / "meta.json")["content_hash"],
        "partition_hash": partition_hash,
        "code_hash": engine_hash(),
    }
    return bool({key: read_json(run / "lineage.json").get(key) for key in wanted} == wanted)


def results(
    folder: Path, chosen: Sequence[Point], seeds: Sequence[int], experiment: str, view: str, failed: Mapping[str, str]
) -> list[Row]:
    """Return what every point reached, the best on validation first; points of which a run failed last."""
    rows = []
    for point in chosen:
        names = [f"{point.label}-{seed}" for seed in seeds]
        reason = "; ".join(f"{name}: {failed[name]}" for name in names if name in failed)
        if reason:
            rows.append(Row(point.label, point.method, point.values, None, None, reason))
            continue
        runs = [read_run(folder / "runs" / f"{point.label}-{seed}", point.label, seed, experiment) for seed in seeds]
        validation, test = (_mean(runs, f"selected/{view}/{split}/accuracy") for split in ("val", "test"))
        why = "" if validation is not None else f"it has no {view} accuracy on validation data"
        rows.append(Row(point.label, point.method, point.values, validation, test, why))
    return sorted(rows, key=lambda row: (row.validation is None, -(row.validation or 0.0)))


def as_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as plain JSON values."""
    return [asdict(row) for row in rows]


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    values = [float(run.metrics[metric]) for run in runs if math.isfinite(run.metrics.get(metric, math.nan))]
    return sum(values) / len(values) if len(values) == len(runs) else None


def _of(key: str) -> str:
    return key.split(".")[1]


def _set(block: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    for name in parents:
        inner = block.get(name)
        block[name] = dict(inner) if inner else {}
        block = block[name]
    block[last] = value
