"""Run folders written by code, in exactly the format a finished training leaves behind."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedcore.engine.summary import summarise

PARAMETERS = """\
experiment: {experiment}
dataset: {{name: digits}}
partition: {{scheme: dirichlet, alpha: 0.1, clients: {clients}, min_examples: 2}}
model: {{name: softmax_regression}}
train: {{rounds: {rounds}, lr: 0.05}}
methods: {{{methods}}}
compare: {{seeds: {seeds}, baseline: {baseline}, targets: {targets}}}
"""


def write_parameters(
    path: Path,
    methods: list[str],
    seeds: list[int],
    targets: list[float],
    clients: int = 4,
    rounds: int = 4,
    experiment: str = "digits",
) -> None:
    text = PARAMETERS.format(
        experiment=experiment,
        clients=clients,
        rounds=rounds,
        methods=", ".join(f"{label}: {{}}" for label in methods),
        seeds=seeds,
        baseline=methods[0],
        targets=targets,
    )
    path.write_text(text)


def write_run(
    root: Path,
    label: str,
    seed: int,
    views: dict[str, dict[str, list[float]]],
    rounds: list[int],
    client_accuracy: list[float],
    client_train: list[int] | None = None,
    bytes_per_round: float = 1000.0,
    unseen: list[bool] | None = None,
    experiment: str = "digits",
    add: dict[str, Any] | None = None,
) -> Path:
    """Write one run folder; `views` holds columns such as ``{"personal": {"test/accuracy": [...], ...}}``."""
    folder = root / f"{label}-{seed}"
    folder.mkdir(parents=True)
    history: dict[str, list[float]] = {"round": list(rounds), "train/loss": [1.0 / r for r in rounds]}
    for view, columns in views.items():
        history |= {f"{view}/{name}": values for name, values in columns.items()}
    history["cost/download_bytes"] = [bytes_per_round * r for r in rounds]
    history["cost/upload_bytes"] = [bytes_per_round * r for r in rounds]
    with (folder / "history.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(history)
        writer.writerows(["" if math.isnan(v) else v for v in row] for row in zip(*history.values(), strict=True))
    cells = [dict(zip(history, row, strict=True)) for row in zip(*history.values(), strict=True)]
    metrics = summarise([{n: v for n, v in row.items() if not math.isnan(v)} for row in cells], 650)
    (folder / "metrics.json").write_text(json.dumps(metrics, sort_keys=True, indent=2))
    config = {
        "experiment": experiment,
        "label": label,
        "seed": seed,
        "method": "fedavg" if add else label,
        "settings": {},
        "add": add or {},
        "views": list(views),
        "run_key": f"{seed:064x}",
    }
    (folder / "config.json").write_text(json.dumps(config, sort_keys=True, indent=2))
    number = len(client_accuracy)
    columns = {
        "client": np.arange(number),
        "unseen": np.array(unseen or [False] * number),
        "num_train": np.array(client_train or [10 * (i + 1) for i in range(number)]),
        "num_val": np.full(number, 2),
        "num_test": np.array([0 if math.isnan(a) else 5 for a in client_accuracy]),
        "participations": np.full(number, rounds[-1]),
        "test/accuracy": np.array(client_accuracy, dtype=np.float64),
        "selected/test/accuracy": np.array(client_accuracy, dtype=np.float64),
    }
    pq.write_table(pa.table(columns), folder / "clients.parquet")
    with (folder / "timing.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["round", "train_seconds", "aggregate_seconds", "evaluate_seconds", "total_seconds"])
        writer.writerows([r, 0.5 + 0.1 * seed, 0.01, 0.05, 0.56 + 0.1 * seed] for r in rounds)
    lineage = {
        "git_commit": "0" * 40,
        "device": "cpu",
        "executor": "serial",
        "threads": 2,
        "versions": {"python": "3.11", "torch": "2.9", "numpy": "2.4", "fedcore": "0.1.0"},
    }
    (folder / "lineage.json").write_text(json.dumps(lineage, sort_keys=True))
    return folder


def both(accuracy: list[float], validation: list[float] | None = None) -> dict[str, list[float]]:
    """Return the columns of one view: validation accuracy defaults to the test accuracy."""
    validation = accuracy if validation is None else validation
    return {"test/accuracy": accuracy, "test/loss": [1 - a for a in accuracy], "val/accuracy": validation}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three methods, two seeds, four rounds, four clients: numbers small enough for a pencil.

    Personal test accuracy per round (validation picks round 3 where it says so by a hump):

    fedavg  seed 0: .2 .4 .6 .5   validation .2 .4 .5 .9 -> round 4 -> .5
            seed 1: .2 .3 .5 .7   validation = test      -> round 4 -> .7
    ft      seed 0: .4 .6 .8 .7   validation = test      -> round 3 -> .8
            seed 1: .5 .7 .8 .9   validation = test      -> round 4 -> .9
    local   seed 0, 1: .5 .5 .5 .5 -> round 1 -> .5      no global view, nothing sent
    """
    personal = {
        ("fedavg", 0): both([0.2, 0.4, 0.6, 0.5], [0.2, 0.4, 0.5, 0.9]),
        ("fedavg", 1): both([0.2, 0.3, 0.5, 0.7]),
        ("ft", 0): both([0.4, 0.6, 0.8, 0.7]),
        ("ft", 1): both([0.5, 0.7, 0.8, 0.9]),
        ("local", 0): both([0.5] * 4),
        ("local", 1): both([0.5] * 4),
    }
    clients = {
        ("fedavg", 0): [0.5, 0.6, 0.2, math.nan],
        ("fedavg", 1): [0.7, 0.6, 0.4, math.nan],
        ("ft", 0): [0.6, 0.6, 0.5, math.nan],
        ("ft", 1): [0.8, 0.6, 0.5, math.nan],
        ("local", 0): [0.5, 0.5, 0.5, math.nan],
        ("local", 1): [0.5, 0.5, 0.5, math.nan],
    }
    for (label, seed), columns in personal.items():
        spread = {"test/client_std": [0.1] * 4, "test/worst_decile": [0.2] * 4, "test/client_mean": [0.5] * 4}
        views = {"personal": {**columns, **spread}}
        if label != "local":
            views["global"] = both([0.1, 0.2, 0.3, 0.4 + 0.1 * seed])
        sent = 0.0 if label == "local" else 1000.0
        write_run(tmp_path / "runs", label, seed, views, [1, 2, 3, 4], clients[label, seed], bytes_per_round=sent)
    write_parameters(tmp_path / "params.yaml", ["fedavg", "ft", "local"], [0, 1], [0.6, 0.95])
    return tmp_path


def write_lifelike(root: Path, methods: list[str], seeds: list[int], clients: int = 20, rounds: int = 60) -> None:
    """Write params, runs, data set and partition that look like a real comparison, for looking at the page."""
    from fedcore.data.dataset import Dataset, save
    from fedcore.data.partitions import PartitionTable
    from fedcore.data.partitions import save as save_partition

    numbers = np.random.Generator(np.random.PCG64(7))
    shares = numbers.dirichlet([0.25] * clients, size=10)
    labels = np.repeat(np.arange(10), 180)
    client = np.concatenate([numbers.choice(clients, 180, p=row) for row in shares]).astype(np.int32)
    split = numbers.choice([0, 1, 2], len(labels), p=[0.7, 0.22, 0.08]).astype(np.int8)
    inputs = numbers.integers(0, 17, (len(labels), 1, 8, 8)).astype(np.uint8)
    names = tuple(str(k) for k in range(10))
    dataset = Dataset("digits", inputs, labels.astype(np.int64), names, (8.0,), (0.125,), len(labels))
    save(dataset, root / "data/datasets/digits")
    scheme = json.dumps({"alpha": 0.1, "scheme": "dirichlet"}, sort_keys=True)
    save_partition(PartitionTable(client, split, clients, 0, scheme), root / "data/partitions/digits.npz")
    sizes = np.bincount(client[split == 0], minlength=clients).tolist()
    write_parameters(root / "params.yaml", methods, seeds, [0.6, 0.8], clients, rounds)
    numbered = list(range(1, rounds + 1))
    for index, label in enumerate(methods):
        for seed in seeds:
            noise = numbers.normal(0, 0.012, (4, rounds))
            rise = 1 - np.exp(-np.array(numbered) / (6 + 2 * index))
            level = np.clip((0.72 + 0.02 * (index * 5 % 7) + 0.004 * seed) * rise + 0.1 + noise[0], 0, 1)
            columns = both(np.clip(level + 0.03, 0, 1).tolist(), np.clip(level + noise[1], 0, 1).tolist())
            columns |= {
                "test/client_mean": level.tolist(),
                "test/client_std": (0.2 - 0.1 * level).tolist(),
                "test/worst_decile": (level * 0.7).tolist(),
            }
            views = {"personal": columns}
            if label != "local":
                shared = np.clip(level - 0.05 + noise[2], 0, 1)
                views = {"global": both(shared.tolist(), np.clip(shared + noise[3], 0, 1).tolist()), **views}
            accuracy = np.clip(level[-1] + numbers.normal(0, 0.12, clients), 0, 1).tolist()
            sent = 0.0 if label == "local" else 5.2e6 * (1 + index % 3)
            add = {"prox": {"mu": 0.01}} if label == "fedprox" else None
            write_run(root / "runs", label, seed, views, numbered, accuracy, sizes, sent, add=add)


@pytest.fixture
def lifelike() -> Callable[..., None]:
    return write_lifelike


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return write_run
