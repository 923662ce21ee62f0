"""AG News: the topics of news texts, as token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore.config import AgNewsData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.download import missing
from fedcore.data.sources.parquet_files import first_null, metadata, opened, pick, whole_numbers

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
PADDING = 0


def read(config: AgNewsData) -> Dataset:
    """Return the texts, [127600, max_length] int32: rows of train_tokens.parquet, then of test_tokens.parquet.

    The files have the columns ``tokens`` (lists of ids, each text as long as it is) and ``label`` (0..3). Longer texts
    are cut at the end, shorter ones filled with id 0. The size of the vocabulary is ``vocab_size`` in the metadata of
    the train file's schema; without it, the highest id of both files says.

    Raises
    ------
    ConfigError
        When a file is missing.
    ValueError
        One line naming the file and the column or row.
    """
    folder = Path(config.root) / "agnews"
    files = [folder / "train_tokens.parquet", folder / "test_tokens.parquet"]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        raise missing(f"; put {' and '.join(absent)} into {folder}, or point dataset.root at a folder with agnews/")
    size = _vocabulary(files[0])
    (inputs, labels), test = (_part(path, config.max_length, size) for path in files)
    return Dataset(
        name=config.name,
        inputs=np.concatenate([inputs, test[0]]),
        labels=np.concatenate([labels, test[1]]),
        class_names=CLASSES,
        offset=(0.0,),
        scale=(1.0,),
        num_train_rows=len(labels),
        num_tokens=size or 1 + int(max(inputs.max(), test[0].max())),
    )


def _vocabulary(path: Path) -> int | None:
    with opened(path) as file:
        size = metadata(path, file, "vocab_size")
    if size is not None and (type(size) is not int or size < 1):
        raise ValueError(f"{path}: vocab_size in the schema's metadata must be a whole number >= 1, got {size!r}")
    return size


def _part(path: Path, max_length: int, size: int | None) -> tuple[np.ndarray, np.ndarray]:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    with opened(path) as file:
        if file.metadata.num_rows == 0:
            raise ValueError(f"{path}: there are no rows")
        labels = whole_numbers(path, file, "label", 0, len(CLASSES) - 1)
        name = pick(path, file.schema_arrow.names, ("tokens",))
        column = file.read([name], use_threads=False)[name]
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(kind.value_type):
        raise ValueError(f"{path}: column 'tokens' must hold lists of whole numbers, got {kind}")
    if column.null_count:
        raise ValueError(f"{path}: row {first_null(column)} has no value in column 'tokens'")
    lengths = pc.list_value_length(column).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    flat = pc.list_flatten(column)
    if flat.null_count:
        raise ValueError(f"{path}: row {rows[first_null(flat)]} of column 'tokens' holds a null")
    tokens = flat.to_numpy()
    wrong = np.flatnonzero((tokens < 0) | (tokens >= (size or np.iinfo(np.int32).max)))
    if len(wrong):
        expected = f"0..{size - 1}, the vocabulary" if size else "the whole numbers from 0 on"
        raise ValueError(f"{path}: token {tokens[wrong[0]]} in row {rows[wrong[0]]} is outside {expected}")
    position = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = position < max_length
    inputs = np.full((len(lengths), max_length), PADDING, np.int32)
    inputs[rows[kept], position[kept]] = tokens[kept]
    return inputs, labels
