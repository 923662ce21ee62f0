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

INPUTS, TARGETS, META = "inputs.npy", "targets.npy", "meta.json"


def save(folder: Path, inputs: NDArray[Any], targets: NDArray[Any], meta: dict[str, Any]) -> None:
    """Write a resource into an existing folder.

    Parameters
    ----------
    inputs : [M, ...]
        uint8 images (0 to 255), or float32 in the data set's raw units.
    targets : [M] int64 labels or [M, Y] float32 soft labels
    meta : dict
        What it was made by; JSON types.
    """
    np.save(folder / INPUTS, inputs, allow_pickle=False)
    np.save(folder / TARGETS, targets, allow_pickle=False)
    digest = hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest()
    facts = {**meta, "rows": len(inputs), "content_hash": digest}
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
    """Return model-ready inputs ``x`` [M, ...] float32 and targets ``y`` on a device.

    uint8 images become -1 to 1; raw floats are normalised like the data set.

    Raises
    ------
    ValueError
        If the folder is damaged, or its inputs have another shape than the data set's.
    """
    try:
        inputs = np.load(folder / INPUTS, allow_pickle=False)
        targets = np.load(folder / TARGETS, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: not readable ({error}); run `dvc repro`") from None
    if tuple(inputs.shape[1:]) != tuple(dataset.input_shape):
        raise ValueError(
            f"{folder / INPUTS}: examples have shape {tuple(inputs.shape[1:])}, the data set's {dataset.input_shape}"
        )
    if hashlib.sha256(inputs.tobytes() + targets.tobytes()).hexdigest() != content_hash(folder):
        raise ValueError(f"{folder}: its arrays are not those it was made with; run `dvc repro`")
    if inputs.dtype == np.uint8:
        x = torch.from_numpy(inputs).to(torch.float32) / 127.5 - 1.0
    else:
        channels = (-1, *[1] * (inputs.ndim - 2)) if inputs.ndim > 2 else (-1,)
        offset, scale = (
            torch.tensor(v, dtype=torch.float32).reshape(channels) for v in (dataset.offset, dataset.scale)
        )
        x = (torch.from_numpy(inputs) - offset) * scale
    return {"x": x.to(device), "y": torch.from_numpy(targets).to(device)}
