"""UCI HAR: the raw signals of a smartphone at the waist of 30 people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import HarData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import missing
from fedcore.data.sources.parquet_files import first_null, opened, pick, whole_numbers
from fedcore.data.sources.scaling import standard

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
CLASSES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
SAMPLES = 128  # 2.56 s at 50 Hz
SUBJECTS = 30


def read(config: HarData) -> Dataset:
    """Return the windows, [10299, 9, 128] float32, in g and rad/s: rows of train.parquet, then of test.parquet.

    The files have the columns ``subject`` (1..30), ``label`` (0..5) and, for each channel, lists of 128 numbers.
    Client i is subject i + 1; the official test rows are those of 9 subjects, so every client's rows are all in one
    part. Offset and scale standardise each channel with mean and deviation of all samples of the train rows.

    Raises
    ------
    ConfigError
        When a file is missing.
    ValueError
        One line naming the file and the column or row.
    """
    folder = Path(config.root) / "har"
    files = [folder / "train.parquet", folder / "test.parquet"]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise missing(f"; put {' and '.join(absent)} into {folder}, or point dataset.root at a folder with har/")
    (inputs, labels, clients), test = map(_part, files)
    offset, scale = standard(inputs, len(inputs))
    return Dataset(
        name=config.name,
        inputs=np.concatenate([inputs, test[0]]),
        labels=np.concatenate([labels, test[1]]),
        class_names=CLASSES,
        offset=offset,
        scale=scale,
        num_train_rows=len(labels),
        clients=np.concatenate([clients, test[2]]),
    )


def _part(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with opened(path) as file:
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path}: there are no rows")
        labels = whole_numbers(path, file, "label", 0, len(CLASSES) - 1)
        clients = whole_numbers(path, file, "subject", 1, SUBJECTS) - 1
        inputs = np.empty((len(labels), len(CHANNELS), SAMPLES), np.float32)
        for channel, name in enumerate(CHANNELS):
            pick(path, file.schema_arrow.names, (name,))
            inputs[:, channel] = _windows(path, name, file.read([name], use_threads=False)[name])
    return inputs, labels, clients.astype(np.int32)


def _windows(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_floating(kind.value_type):
        raise ValueError(f"{path}: column '{name}' must hold lists of {SAMPLES} floats, got {kind}")
    if column.null_count:
        raise ValueError(f"{path}: row {first_null(column)} has no value in column '{name}'")
    lengths = pc.list_value_length(column).to_numpy()
    wrong = np.flatnonzero(lengths != SAMPLES)
    if len(wrong):
        raise ValueError(
            f"{path}: row {wrong[0]} of column '{name}' has {lengths[wrong[0]]} samples, expected {SAMPLES}"
        )
    # A missing sample becomes NaN, which the next check finds.
    windows: np.ndarray = pc.list_flatten(column).to_numpy().astype(np.float32).reshape(-1, SAMPLES)
    finite = np.isfinite(windows).all(axis=1)
    if not finite.all():
        raise ValueError(f"{path}: row {np.argmin(finite)} of column '{name}' holds a value that is not finite")
    return windows
