"""Open parquet files and pick their columns; every mistake in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import nearest

_BUFFER_BYTES = 1 << 20


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a parquet file; ValueError names it when it is damaged, whenever that shows."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        # As it comes, arrow keeps every row group it has read until the file is closed.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: damaged or not a parquet file ({reason})") from None


def pick(path: Path, present: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the first of the `wanted` names that is there, once."""
    for name in wanted:
        if present.count(name) == 1:
            return name
    if wanted[0] in present:
        raise ValueError(f"{path}: there are {present.count(wanted[0])} columns '{wanted[0]}', expected one")
    raise ValueError(f"{path}: there is no column '{wanted[0]}'{nearest(wanted[0], present)}")


def whole_numbers(path: Path, file: Any, name: str, low: int, high: int) -> np.ndarray:
    """Return a column of whole numbers `low`..`high`, [n] int64."""
    import pyarrow as pa

    values = file.read([pick(path, file.schema_arrow.names, (name,))], use_threads=False)[name]
    if not pa.types.is_integer(values.type):
        raise ValueError(f"{path}: column '{name}' must hold whole numbers, got {values.type}")
    if values.null_count:
        raise ValueError(f"{path}: row {first_null(values)} has no value in column '{name}'")
    numbers: np.ndarray = values.to_numpy().astype(np.int64)
    wrong = np.flatnonzero((numbers < low) | (numbers > high))
    if len(wrong):
        raise ValueError(f"{path}: {name} {numbers[wrong[0]]} in row {wrong[0]} is outside {low}..{high}")
    return numbers


def first_null(values: Any) -> int:
    """Return the first row without a value."""
    return int(values.is_null().to_numpy().argmax())


def metadata(path: Path, file: Any, key: str) -> Any:
    """Return what the schema's metadata hold under `key`, as JSON; None without it."""
    found = (file.schema_arrow.metadata or {}).get(key.encode())
    try:
        return None if found is None else json.loads(found)
    except ValueError:
        raise ValueError(f"{path}: '{key}' in the schema's metadata is not readable as JSON") from None
