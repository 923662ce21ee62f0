"""A project folder with a prepared tracking database, and run folders as a finished training leaves them."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file

from tasks.parameters import run_step
from tasks.tracking_store import prepare_database

SHAPE, CLASSES = (1, 2, 2), 3
OFFSET, SCALE = 8.0, 0.125
ROUNDS = (1, 2, 3)

Run = Callable[..., tuple[int, list[str], list[str]]]
CommandLine = Callable[[ModuleType], Run]


@pytest.fixture(autouse=True)
def _own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MLFLOW_TRACKING_URI",
        "MLFLOW_REGISTRY_URI",
        "DVC_STAGE",
        "FEDCORE_FLOW_RUN",
        "FEDCORE_FLOW_RUN_NAME",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def _pyfunc() -> None:
    """Import MLflow's model code once: it warns about a type hint of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Any type hint is inferred as AnyType", category=UserWarning)
        import mlflow.pyfunc  # noqa: F401


@pytest.fixture(scope="session")
def prepared(_pyfunc: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for the session: building the schema takes seconds, copying it does not."""
    root = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        prepare_database(root)
    return root / "mlruns" / "mlflow.db"


@pytest.fixture
def root(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a prepared database; the current folder."""
    (tmp_path / "mlruns").mkdir()
    shutil.copy(prepared, tmp_path / "mlruns" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def client(root: Path) -> Iterator[Any]:
    from tasks.tracking_store import open_client

    return open_client(root)


def config_of(label: str = "fedavg", seed: int = 0, **changes: Any) -> dict[str, Any]:
    config = {
        "experiment": "digits",
        "label": label,
        "seed": seed,
        "method": "local" if label.startswith("local") else "fedavg",
        "settings": {},
        "add": {},
        "train": {"lr": 0.05, "rounds": len(ROUNDS)},
        "dataset": {"name": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": 0.1},
        "model": {"name": "softmax_regression"},
        "views": ["personal"] if label.startswith("local") else ["global", "personal"],
        "input": {"shape": list(SHAPE), "class_names": ["0", "1", "2"], "offset": [OFFSET], "scale": [SCALE]},
        **changes,
    }
    config["run_key"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return config


def lineage_of(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "git_commit": "c0ffee",
        "git_dirty": False,
        "dataset_hash": "d" * 64,
        "partition_hash": "e" * 64,
        "versions": {"torch": "2.15.0"},
        "seed": config["seed"],
        "run_key": config["run_key"],
    }


@dataclass
class Project:
    """Writes run folders and what lies around them."""

    root: Path
    runs: list[tuple[str, int]] = field(default_factory=list)

    def add(
        self,
        label: str,
        seed: int = 0,
        val: tuple[float, ...] = (0.5, 0.75, 0.625),
        test: tuple[float, ...] = (0.5, 0.5, 0.5),
        partition: str = "e" * 64,
        **changes: Any,
    ) -> Path:
        """Write the run folder; `val` and `test` are the accuracies of every view, per round."""
        config = config_of(label, seed, **changes)
        folder = self.root / "runs" / f"{label}-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [
            {"round": r, "train/loss": 1.0 / r}
            | {f"{view}/val/accuracy": val[i] for view in config["views"] if val}
            | {f"{view}/test/accuracy": test[i] for view in config["views"]}
            | {"cost/download_bytes": 100 * r, "cost/upload_bytes": 50 * r}
            for i, r in enumerate(ROUNDS)
        ]
        with (folder / "history.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        metrics: dict[str, Any] = {**rows[-1], "model/parameters": 15}
        for view in config["views"]:
            best = max(range(len(ROUNDS)), key=val.__getitem__) if val else len(ROUNDS) - 1
            metrics |= {f"selected/{view}/round": ROUNDS[best], f"selected/{view}/test/accuracy": test[best]}
            metrics |= {f"selected/{view}/val/accuracy": val[best]} if val else {}
            metrics[f"best/{view}/test/accuracy"] = max(test)
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "lineage.json").write_text(json.dumps(lineage_of(config) | {"partition_hash": partition}))
        (folder / "timing.csv").write_text("round,total_seconds\n1,0.5\n2,0.25\n3,0.25\n")
        self._write_clients(folder)
        self._write_models(folder, seed, own=config["method"] == "local")
        self.runs.append((label, seed))
        return folder

    def _write_clients(self, folder: Path) -> None:
        columns: dict[str, Any] = {"client": np.arange(2), "unseen": np.zeros(2, bool)}
        columns |= {name: np.full(2, 4) for name in ("num_train", "num_val", "num_test")}
        pq.write_table(pa.table({**columns, "test/accuracy": np.full(2, 0.5)}), folder / "clients.parquet")

    def _write_models(self, folder: Path, seed: int, own: bool) -> None:
        numbers = np.random.Generator(np.random.PCG64(seed))

        def draw(*lead: int) -> dict[str, np.ndarray]:
            weights = numbers.normal(size=(*lead, CLASSES, 4)), numbers.normal(size=(*lead, CLASSES))
            return dict(zip(("head.weight", "head.bias"), (w.astype(np.float32) for w in weights), strict=True))

        save_file(draw(), folder / "model.safetensors", {"format": "fedcore-1"})
        clients = np.array([3, 7] if own else [], np.int64)
        stacked = draw(len(clients)) if own else {}
        save_file(
            {"clients": clients, **{f"own/{n}": p for n, p in stacked.items()}},
            folder / "personal.safetensors",
            {"format": "fedcore-1"},
        )

    @property
    def dataset(self) -> Path:
        """The prepared data set's folder; only its examples are there."""
        folder = self.root / "data" / "datasets" / "digits"
        if not folder.exists():
            folder.mkdir(parents=True)
            np.save(folder / "inputs.npy", np.arange(24, dtype=np.uint8).reshape(6, *SHAPE) % 17)
        return folder

    def comparison(self) -> dict[str, Any]:
        """The comparison of what was added."""
        labels, seeds = {label for label, _ in self.runs}, sorted({seed for _, seed in self.runs})
        return {"experiment": "digits", "methods": {label: {} for label in sorted(labels)}, "seeds": seeds}

    def write_comparison(self) -> Path:
        path = self.root / "reports" / "comparison.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.comparison()))
        return path


@pytest.fixture
def project(root: Path) -> Project:
    return Project(root)


@pytest.fixture(scope="session")
def _registry(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    from tasks.register import register

    root = tmp_path_factory.mktemp("registry")
    (root / "mlruns").mkdir()
    shutil.copy(prepared, root / "mlruns" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        made = Project(root)
        made.add("fedavg", 0, val=(0.25, 0.5, 0.375))
        made.add("local", 0, val=(0.5, 0.75, 0.625))
        register(root, root / "runs", made.comparison(), made.dataset)
    return made


@pytest.fixture
def registry(_registry: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a global model from `fedavg` and a personal one from `local` for the clients 3 and 7.

    Several tests share it: they look, and write into the current folder, which is one of their own.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{_registry.root}/mlruns/mlflow.db")
    return _registry


def logits_by_hand(project: Project, clients: list[int | None], inputs: np.ndarray) -> np.ndarray:
    """(x - offset) * scale, one linear layer: that of the client, or the global one."""
    own = load_file(project.root / "runs" / "local-0" / "personal.safetensors")
    shared = load_file(project.root / "runs" / "fedavg-0" / "model.safetensors")
    rows = []
    for client, x in zip(clients, inputs, strict=True):
        row = {3: 0, 7: 1}.get(client)  # type: ignore[call-overload]
        weights = shared if row is None else {name: own[f"own/{name}"][row] for name in shared}
        rows.append(weights["head.weight"] @ ((x - OFFSET) * SCALE) + weights["head.bias"])
    return np.array(rows)


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Make a step's command: it returns the exit code and the lines of standard output and of standard error."""

    def command_of(step: ModuleType) -> Run:
        def command(*arguments: str) -> tuple[int, list[str], list[str]]:
            monkeypatch.setattr(sys, "argv", [step.__name__.rpartition(".")[2], *arguments])
            capsys.readouterr()
            code = 0
            try:
                run_step(step.main)
            except SystemExit as stop:
                code = int(stop.code or 0)
            captured = capsys.readouterr()
            return code, captured.out.splitlines(), captured.err.splitlines()

        return command

    return command_of


@pytest.fixture
def curve(client: Any) -> Callable[[str, str], list[tuple[int, float]]]:
    """Return (step, value) of every point of a metric, in order of step."""

    def read(run_id: str, name: str) -> list[tuple[int, float]]:
        return sorted((point.step, point.value) for point in client.get_metric_history(run_id, name))

    return read


def all_runs(client: Any) -> list[Any]:
    experiment = client.get_experiment_by_name("digits")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []
