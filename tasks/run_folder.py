"""Read finished run folders; a missing or broken one is one line that names it and the stage to run again."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

CLIENT_COLUMNS = ("client", "unseen", "num_train", "num_val", "num_test", "test/accuracy")


@dataclass(frozen=True)
class Run:
    """One finished run: a method (by its label) under one seed."""

    folder: Path
    label: str
    seed: int
    config: dict[str, Any]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    clients: dict[str, np.ndarray]

    @property
    def rounds(self) -> list[int]:
        """The evaluated rounds, 1-based."""
        return [int(number) for number in self.history["round"]]

    @property
    def views(self) -> tuple[str, ...]:
        """The evaluation views the method has, for example ``("global", "personal")``."""
        return tuple(self.config["views"])


def read_runs(root: Path, labels: Iterable[str], seeds: Sequence[int], experiment: str) -> dict[str, list[Run]]:
    """Read every run of a comparison, seeds in the order given.

    Raises
    ------
    ValueError
        With one line per run that is missing, broken or of another experiment.
    """
    runs: dict[str, list[Run]] = {}
    problems = []
    for label in labels:
        for seed in seeds:
            try:
                runs.setdefault(label, []).append(read_run(root / f"{label}-{seed}", label, seed, experiment))
            except ValueError as error:
                problems.append(str(error))
    if not problems:
        problems = [line for members in runs.values() for line in _disagreements(members)]
    if problems:
        raise ValueError("\n".join(problems))
    return runs


def read_run(folder: Path, label: str, seed: int, experiment: str) -> Run:
    """Read one run folder and check that its files belong together.

    Raises
    ------
    ValueError
        One line naming the folder, what is wrong and the stage to run again.
    """
    try:
        if not folder.is_dir():
            raise ValueError("does not exist")
        config = _read_object(folder / "config.json")
        found = (config.get("experiment"), config.get("label"), config.get("seed"))
        if found != (experiment, label, seed):
            raise ValueError(f"config.json is of experiment, label, seed {found}, not {(experiment, label, seed)}")
        if not config.get("views"):
            raise ValueError("config.json: 'views' is missing or empty")
        metrics = _read_object(folder / "metrics.json")
        history = read_columns(folder / "history.csv")
        _check(config["views"], metrics, history)
        return Run(folder, label, seed, config, metrics, history, _read_clients(folder / "clients.parquet"))
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder}: {reason}; run `dvc repro train@{label}-{seed}`") from None


def read_columns(path: Path) -> dict[str, list[float]]:
    """Read a CSV file of numbers, such as ``history.csv`` or ``timing.csv``; an empty cell is NaN."""
    if not path.is_file():
        raise ValueError(f"{path.name} does not exist")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if len(rows) < 2 or "round" not in rows[0]:
        raise ValueError(f"{path.name}: expected a header with 'round' and at least one row")
    header = rows[0]
    columns: dict[str, list[float]] = {name: [] for name in header}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ValueError(f"{path.name}: line {number} has {len(row)} cells, expected {len(header)}")
        for name, cell in zip(header, row, strict=True):
            try:
                columns[name].append(float(cell) if cell else math.nan)
            except ValueError:
                raise ValueError(f"{path.name}: line {number}: {name} is {cell!r}, expected a number") from None
    return columns


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path.name} does not exist")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path.name}: not readable as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name}: expected an object, got {type(value).__name__}")
    return value


def _check(views: Iterable[str], metrics: dict[str, float], history: dict[str, list[float]]) -> None:
    rounds = history["round"]
    if any(not number.is_integer() for number in rounds) or sorted(set(rounds)) != rounds or rounds[0] < 1:
        raise ValueError("history.csv: 'round' must be whole numbers from 1, each larger than the one before")
    needed = [f"{view}/test/accuracy" for view in views]
    for name in [*needed, "cost/download_bytes", "cost/upload_bytes"]:
        if name not in history:
            raise ValueError(f"history.csv: column '{name}' is missing")
        if any(not math.isfinite(value) for value in history[name]):
            raise ValueError(f"history.csv: column '{name}' has a cell that is empty or not finite")
    for name in [*needed, "model/parameters"]:
        if not isinstance(metrics.get(name), int | float):
            raise ValueError(f"metrics.json: '{name}' is missing or no number")


def _read_clients(path: Path) -> dict[str, np.ndarray]:
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise ValueError(f"{path.name} does not exist")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path.name}: not readable as parquet ({error})") from None
    missing = [name for name in CLIENT_COLUMNS if name not in table.column_names]
    if missing:
        raise ValueError(f"{path.name}: column '{missing[0]}' is missing")
    return {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}


def _disagreements(runs: Sequence[Run]) -> list[str]:
    """Return one line per run that cannot be averaged with the first of its method."""
    first, lines = runs[0], []
    for run in runs[1:]:
        if run.rounds != first.rounds:
            what = f"history.csv has other evaluated rounds than {first.folder}"
        elif run.views != first.views:
            what = f"config.json has other views than {first.folder}"
        elif run.clients["client"].tolist() != first.clients["client"].tolist():
            what = f"clients.parquet has other clients than {first.folder}"
        else:
            continue
        lines.append(f"{run.folder}: {what}; run `dvc repro train@{run.label}-{run.seed}`")
    return lines
