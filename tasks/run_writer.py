"""Write a finished run's folder: open formats, the same bytes for the same run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedcore.engine.evaluate import SPLITS
from fedcore.engine.export import model_bytes, personal_bytes
from fedcore.engine.summary import summarise
from fedcore.metrics.accuracy import Scores
from tasks.files import write_json

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from fedcore.engine.rounds import Progress, Training


def write_run(
    folder: Path, config: dict[str, Any], lineage: dict[str, Any], training: Training, progress: Progress
) -> None:
    """Write all files of a run into an existing folder."""
    write_json(folder / "config.json", config)
    write_json(folder / "lineage.json", lineage)
    num_parameters = sum(p.numel() for p in training.initial.values())
    write_json(folder / "metrics.json", summarise(progress.history, num_parameters))
    _write_csv(folder / "history.csv", progress.history)
    _write_csv(folder / "timing.csv", with_gpu_peak(progress.timing, training.examples.device))
    _write_clients(folder / "clients.parquet", training, progress)
    (folder / "model.safetensors").write_bytes(model_bytes(training))
    (folder / "personal.safetensors").write_bytes(personal_bytes(training))


def with_gpu_peak(timing: list[dict[str, float]], device: torch.device) -> list[dict[str, float]]:
    """Return the timing rows, the last with the largest memory that this process held on its GPU, in bytes.

    From it the next runs' share of a GPU is worked out (`flows.gpus`). On a CPU the rows stay as they are.
    """
    if device.type != "cuda" or not timing:
        return timing
    import torch

    return [*timing[:-1], {**timing[-1], "gpu_peak_bytes": float(torch.cuda.max_memory_reserved(device))}]


def _write_csv(path: Path, rows: list[dict[str, float]]) -> None:
    """Write rows; a figure that a row lacks is an empty cell."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_clients(path: Path, training: Training, progress: Progress) -> None:
    """Write one row per client.

    Columns that begin with ``selected/`` are of the round that the client's view selected, personal or unseen.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    federation = training.federation
    count = federation.num_total
    columns: dict[str, Any] = {
        "client": np.arange(count),
        "unseen": np.arange(count) >= federation.num_clients,
        **{f"num_{split}": federation.sizes(split) for split in ("train", "val", "test")},
        "participations": progress.participations,
    }
    for prefix, scores in (("", progress.last), ("selected/", progress.selected["personal"].clients)):
        for split in SPLITS:
            columns[f"{prefix}{split}/accuracy"] = _fill(scores[split], "accuracies", count)
            columns[f"{prefix}{split}/loss"] = _fill(scores[split], "losses", count)
    for split, late in progress.unseen.items():
        for name, values in (("accuracy", late.accuracies), ("loss", late.losses)):
            columns[f"selected/{split}/{name}"][federation.num_clients :] = values[federation.num_clients :]
    pq.write_table(pa.Table.from_arrays([_column(values) for values in columns.values()], names=list(columns)), path)


def _column(values: NDArray[Any]) -> pa.Array:
    """Return numbers or truths as they are; `pyarrow.array` imports pandas, which takes half a second."""
    import pyarrow as pa

    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def _fill(scores: Scores, name: str, count: int) -> Any:
    """Return a per-client column; clients a method has no model for are NaN."""
    column = np.full(count, np.nan)
    values = getattr(scores, name)
    column[: len(values)] = values
    return column
