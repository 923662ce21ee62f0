"""Evaluate registered versions on today's validation split: their accuracies by seed and client, for the gate."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import numpy as np

from fedcore.data import dataset as datasets
from fedcore.data import partitions
from fedcore.data.federation import Federation
from fedcore.engine.export import Predictor, load_predictor
from fedcore.metrics.gate import Standing
from tasks import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

    from fedcore.data.federation import Split

MODEL_FILES = ("config.json", "model.safetensors", "personal.safetensors")
_ROWS = 2048  # rows per forward pass


@dataclass(frozen=True)
class Contender:
    """A version with the models of every seed its method was trained with.

    Parameters
    ----------
    name : str
        For messages.
    seeds : mapping from seed to Predictor
    fallback : Predictor or None
        Serves clients without a model of their own; None: the seed's own global model.
    """

    name: str
    seeds: Mapping[int, Predictor]
    fallback: Predictor | None = None

    def difference(self, federation: Federation) -> str | None:
        """Return why this cannot be evaluated on the data, None when it can."""
        data = federation.dataset
        for predictor in self.seeds.values():
            if predictor.input_shape != data.input_shape:
                ours, theirs = (" x ".join(map(str, shape)) for shape in (predictor.input_shape, data.input_shape))
                return f"{self.name} takes examples of shape {ours}, data set '{data.name}' has {theirs}"
            if predictor.class_names != data.class_names:
                return f"{self.name} knows other classes than data set '{data.name}'"
        return None

    def standing(self, federation: Federation, view: str) -> Standing:
        """Return the validation accuracies [S, M] of the clients that train."""
        rows = [client_accuracies(p, federation, view, "val", self.fallback) for p in self.seeds.values()]
        return Standing(tuple(self.seeds), np.stack(rows))


def read_federation(dataset: Path, partition: Path) -> tuple[Federation, str]:
    """Return the data as the clients hold it, and the partition's content hash."""
    table = partitions.load(partition)
    return Federation(datasets.load(dataset), table), table.content_hash


def contender(client: MlflowClient, version: ModelVersion) -> Contender:
    """Read a version's models, and those of its method's other seeds from their runs.

    A seed whose run or files are gone is left out; the version's own seed is always there.

    Raises
    ------
    ValueError
        When the version's own files are gone or not readable.
    """
    name = f"{version.name} version {version.version}"
    own_seed = int(version.tags["fedcore.seed"])
    with tempfile.TemporaryDirectory() as folder:
        files = _model_folder(client, version, Path(folder))
        if not (files / "artifacts" / "run").is_dir():
            raise ValueError(f"{name}: its files are gone; run `dvc repro -f register` for the version of today's runs")
        fallback = files / "artifacts" / "fallback"
        seeds = {own_seed: load_predictor(files / "artifacts" / "run")}
        for seed, run in sorted(json.loads(version.tags.get(registry.SEED_RUNS, "{}")).items()):
            target = Path(folder) / f"seed-{seed}"
            if int(seed) != own_seed and _fetch_run(client, run, target):
                seeds[int(seed)] = load_predictor(target)
        return Contender(name, dict(sorted(seeds.items())), load_predictor(fallback) if fallback.is_dir() else None)


def client_accuracies(
    predictor: Predictor, federation: Federation, view: str, split: Split, fallback: Predictor | None = None
) -> npt.NDArray[np.float64]:
    """Return the accuracy of every client that trains on its own examples, [num_clients]; NaN without any.

    Parameters
    ----------
    view : {"global", "personal"}
        The one global model, or each client's own.
    fallback : Predictor or None
        Answers for clients that have no model of their own; None: `predictor`'s global model.
    """
    found = np.full(federation.num_clients, np.nan)
    labels = federation.dataset.labels
    for client in range(federation.num_clients):
        rows = federation.rows(client, split)
        if len(rows):
            own = view == "personal" and client in predictor.clients
            model = predictor if own or fallback is None or view == "global" else fallback
            found[client] = np.mean(_classes(model, federation, rows, client if own else None) == labels[rows])
    return found


def _classes(
    predictor: Predictor, federation: Federation, rows: npt.NDArray[np.int64], client: int | None
) -> npt.NDArray[np.int64]:
    parts = [rows[begin : begin + _ROWS] for begin in range(0, len(rows), _ROWS)]
    return np.concatenate([predictor.logits(federation.inputs(part), client).argmax(axis=1) for part in parts])


def _model_folder(client: MlflowClient, version: ModelVersion, target: Path) -> Path:
    """Return the version's files: where they lie, or downloaded from another machine."""
    address = str(version.source)
    if address.startswith("file://"):
        return Path(unquote(urlsplit(address).path))
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(artifact_uri=address, dst_path=str(target), tracking_uri=client.tracking_uri))


def _fetch_run(client: MlflowClient, run: str, target: Path) -> bool:
    from mlflow.exceptions import MlflowException

    target.mkdir()
    try:
        for name in MODEL_FILES:
            client.download_artifacts(run, name, str(target))
    except (MlflowException, OSError):
        return False
    return True
