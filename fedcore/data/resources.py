"""Data that every client gets a copy of, as folders of plain arrays: virtual data (VHL) and pseudo data (FedBR)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.data.dataset import Dataset
from fedcore.trees import num_bytes

INPUTS, TARGETS, META = "inputs.npy", "targets.npy", "meta.json"


def save(folder: Path, inputs: NDArray[Any], targets: NDArray[Any], meta: dict[str, Any]) -> None:
    """Write a resource into an existing folder.

    Parameters
    ----------
    inputs : [M, ...] or [S, R, ...]
        Virtual data: M examples. Pseudo data: S sets of R rows; round r uses set r modulo S.
        uint8 images (0 to 255), or float32 in the data set's raw units.
    targets : [M] int64 labels, or [S, R, Y] float32 soft labels
    meta : dict
        What it was made by; JSON types.
    """
    np.save(folder / INPUTS, inputs, allow_pickle=False)
    np.save(folder / TARGETS, targets, allow_pickle=False)
    facts = {**meta, "shape": list(inputs.shape), "content_hash": _digest(inputs, targets)}
    (folder / META).write_text(json.dumps(facts, sort_keys=True, indent=2) + "\n")


def content_hash(folder: Path) -> str | None:
    """Return the hash of a resource's arrays; None for a folder that holds none.

    Raises
    ------
    ValueError
        If the folder is not readable.
    """
    try:
        found = json.loads((folder / META).read_text()).get("content_hash")
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder / META}: not readable ({error}); run `dvc repro`") from None
    return None if found is None else str(found)


def load(folder: Path, dataset: Dataset, device: torch.device) -> dict[str, Tensor]:
    """Return a resource on a device: model-ready inputs ``x`` float32 and targets ``y``.

    Virtual data are ``x`` [M, ...] and labels ``y`` [M]; pseudo data ``x`` [S, R, ...] and soft labels ``y`` [S, R, Y].
    uint8 images become -1 to 1; raw floats are normalised like the data set.

    Raises
    ------
    ValueError
        If the folder is damaged, its inputs have another shape than the data set's, virtual classes are no numbers from
        0 on, or soft labels do not sum to 1.
    """
    inputs, targets = (_read(folder, name) for name in (INPUTS, TARGETS))
    if _digest(inputs, targets) != content_hash(folder):
        raise ValueError(f"{folder}: its arrays are not those it was made with; run `dvc repro`")
    leading = 2 if targets.ndim == 3 else 1
    shape = tuple(inputs.shape[leading:])
    if shape != tuple(dataset.input_shape):
        raise ValueError(f"{folder / INPUTS}: examples have shape {shape}, the data set's {dataset.input_shape}")
    if targets.shape[:leading] != inputs.shape[:leading]:
        raise ValueError(f"{folder / TARGETS}: shape {list(targets.shape)} for inputs {list(inputs.shape)}")
    if leading == 2:
        _check_soft_labels(folder / TARGETS, targets, dataset)
    else:
        _check_labels(folder / TARGETS, targets)
    return {"x": _model_ready(inputs, leading, dataset).to(device), "y": torch.from_numpy(targets).to(device)}


def load_targets(folder: Path) -> dict[str, Tensor]:
    """Return a resource's targets ``y`` alone, to see whether a method can do with it.

    Raises
    ------
    ValueError
        If they are not readable.
    """
    return {"y": torch.from_numpy(_read(folder, TARGETS))}


def bytes_sent(resource: dict[str, Tensor], *, first: bool) -> int:
    """Return what a client receives of a resource in a round.

    Everything once, the first time it takes part; of pseudo data in several sets one set in every round.
    """
    size = num_bytes(resource)
    sets = len(resource["y"]) if resource["y"].dim() == 3 else 1
    return size // sets if first or sets > 1 else 0


def _read(folder: Path, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(folder / name, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{folder}: not readable ({error}); run `dvc repro`") from None
    return array


def _model_ready(inputs: NDArray[Any], leading: int, dataset: Dataset) -> Tensor:
    if inputs.dtype == np.uint8:
        return torch.from_numpy(inputs).to(torch.float32) / 127.5 - 1.0
    per_channel = (-1, *[1] * (inputs.ndim - leading - 1))
    offset, scale = (torch.tensor(v, dtype=torch.float32).reshape(per_channel) for v in (dataset.offset, dataset.scale))
    return (torch.from_numpy(inputs) - offset) * scale


def _check_labels(path: Path, labels: NDArray[Any]) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{path}: expected whole numbers [M], got {labels.dtype} {list(labels.shape)}")
    wrong = np.flatnonzero(labels < 0)
    if len(wrong):
        raise ValueError(f"{path}: virtual class {labels[wrong[0]]} in row {wrong[0]}; valid: 0, 1, ...")


def _check_soft_labels(path: Path, targets: NDArray[Any], dataset: Dataset) -> None:
    if targets.shape[2] != dataset.num_classes:
        raise ValueError(
            f"{path}: soft labels over {targets.shape[2]} classes, data set '{dataset.name}' has {dataset.num_classes}"
        )
    sums = targets.sum(2, dtype=np.float64)
    fine = (np.abs(sums - 1) < 1e-5) & (targets >= 0).all(2)  # false for NaN too
    if not fine.all():
        s, row = np.argwhere(~fine)[0]
        raise ValueError(
            f"{path}: soft labels of set {s}, row {row} must be >= 0 and sum to 1, they sum to {sums[s, row]:g}"
        )


def _digest(inputs: NDArray[Any], targets: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in (inputs, targets):
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).data)
    return digest.hexdigest()
