"""Tables of examples to classify, CSV or parquet, read in parts so that memory does not grow with the file.

An example is a row. Its features are in columns ``x0``, ``x1``, ... (or columns that the caller names), in a list
column ``features`` (parquet), or in a column ``image``: paths relative to the table, or encoded images (parquet). Rows
in messages count from 0, without the line that names the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.sources.columns import Column, numbers
from fedcore.data.sources.parquet_files import first_null, opened, pick
from fedcore.data.sources.pixels import decode_all
from fedcore.engine.serving import Service

CLIENT, FEATURES, IMAGE = "client_id", "features", "image"
ENDINGS = (".csv", ".parquet")
# About how much of a table is in memory at once: bytes of a CSV, values of a parquet file.
_BYTES, _VALUES = 1 << 22, 1 << 21


@dataclass(frozen=True)
class Questions:
    """Consecutive rows of a table: raw inputs [n, *input_shape], and clients [n] int64 if the model is personal."""

    inputs: np.ndarray
    clients: np.ndarray | None


@dataclass(frozen=True)
class _Table:
    """A file opened for reading in parts."""

    path: Path
    names: list[str]
    parts: Iterator[Any]  # arrow record batches


def read_questions(path: Path, service: Service, columns: Sequence[str] = ()) -> Iterator[Questions]:
    """Yield the rows of a table as a model takes them, in order; nothing if there are none.

    Parameters
    ----------
    columns : sequence of str
        The columns of the features, in their order; empty: ``x0``, ``x1``, ..., or ``features``, or ``image``.

    Raises
    ------
    ValueError
        One line naming the file, and the column and row if they are to blame.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

    with _opened(path, service.num_features) as table:
        client = pick(path, table.names, (CLIENT,)) if service.is_personal and _has_client(table) else None
        kind, names = _features(table, service, columns)
        first_row = 0
        for batch in table.parts:
            part = pa.Table.from_batches([batch])
            read = [Column(path, name, part.column(name), first_row) for name in names]
            if kind == IMAGE:
                features = _images(read[0], service)
            elif kind == FEATURES:
                features = _lists(read[0], service)
            else:
                features = np.stack([numbers(column).astype(np.float64) for column in read], axis=1)
            where = _Where(path, names if kind not in (IMAGE, FEATURES) else None, first_row)
            inputs = service.rows(features, where)
            clients = None if client is None else _clients(Column(path, client, part.column(client), first_row))
            yield Questions(inputs, clients)
            first_row += part.num_rows


@dataclass(frozen=True)
class _Where:
    """Names a value of a part."""

    path: Path
    names: Sequence[str] | None
    first_row: int

    def __call__(self, row: int, feature: int) -> str:
        column = f"column '{self.names[feature]}'" if self.names is not None else f"feature {feature}"
        return f"{self.path}: {column} in row {self.first_row + row}"


@contextmanager
def _opened(path: Path, num_features: int) -> Iterator[_Table]:
    if not path.is_file():
        raise ValueError(f"{path}: does not exist")
    if path.suffix.lower() == ".parquet":
        with opened(path) as file:
            rows = max(1, min(1 << 16, _VALUES // num_features))
            yield _Table(path, list(file.schema_arrow.names), file.iter_batches(rows, use_threads=False))
        return
    if path.suffix.lower() != ".csv":
        raise ValueError(f"{path}: expected a file ending in {' or '.join(ENDINGS)}")
    import pyarrow as pa
    import pyarrow.csv as pc  # type: ignore[import-untyped]

    # A row must fit into a block, whatever its numbers look like.
    reading = pc.ReadOptions(use_threads=False, block_size=max(_BYTES, 64 * num_features))
    try:
        with pc.open_csv(path, reading) as file:
            names = file.schema.names
        # Guessed types could change from one part to the next.
        convert = pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        with pc.open_csv(path, reading, convert_options=convert) as file:
            yield _Table(path, list(names), file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"{path}: not readable as CSV ({reason})") from None


def _has_client(table: _Table) -> bool:
    if CLIENT in table.names:
        return True
    message = f"{table.path}: there is no column '{CLIENT}', which says whose model answers"
    raise ValueError(f"{message}; add it, or ask the global model: MODEL=<experiment>-global")


def _features(table: _Table, service: Service, columns: Sequence[str]) -> tuple[str, list[str]]:
    """Return how the features are stored, and in which columns."""
    count = service.num_features
    if columns:
        if len(columns) != count:
            raise ValueError(f"{len(columns)} columns are named, expected {service.expected}")
        return "", [pick(table.path, table.names, (name,)) for name in columns]
    wanted = [f"x{number}" for number in range(count)]
    if not set(wanted) & set(table.names):
        for name in (FEATURES, IMAGE):
            if name in table.names:
                return name, [pick(table.path, table.names, (name,))]
    absent = [name for name in wanted if name not in table.names]
    takes = f"the model takes {service.expected} features in columns x0 to x{count - 1}, or a column 'image'"
    if absent:
        raise ValueError(f"{table.path}: there is no column '{absent[0]}'; {takes}")
    if f"x{count}" in table.names:
        raise ValueError(f"{table.path}: column 'x{count}' is one too many; {takes}")
    return "", [pick(table.path, table.names, (name,)) for name in wanted]


def _clients(column: Column) -> np.ndarray:
    import pyarrow as pa

    values = column.values
    if values.null_count:
        row = column.first_row + first_null(values)
        raise ValueError(f"{column.where} has no value in row {row}, expected a whole number")
    if pa.types.is_integer(values.type):
        return np.asarray(values.to_numpy().astype(np.int64))
    clients = [_whole(value) for value in values.to_pylist()]
    if None in clients:
        row = clients.index(None)
        found = f"holds '{values[row]}'" if str(values[row]).strip() else "has no value"
        raise ValueError(f"{column.where} {found} in row {column.first_row + row}, expected a whole number")
    return np.array(clients, np.int64)


def _whole(value: Any) -> int | None:
    """Return a value as a whole number; None if it is none. Some programs write 3 as 3.0 where a column has gaps."""
    try:
        number = int(value) if isinstance(value, str) and value.strip().lstrip("+-").isdecimal() else float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if not isinstance(value, bool) and number == number // 1 and abs(number) < 2**63 else None


def _lists(column: Column, service: Service) -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    values, kind = column.values.combine_chunks(), column.values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ValueError(f"{column.where} must hold lists of numbers, got {kind}; in a CSV use x0, x1, ...")
    if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        raise ValueError(f"{column.where} must hold lists of numbers, got lists of {kind.value_type}")
    for row, size in enumerate(pc.list_value_length(values).to_pylist()):
        if size != service.num_features:
            found = "no value" if size is None else f"{size} features"
            row += column.first_row
            raise ValueError(f"{column.where} has {found} in row {row}, expected {service.expected}")
    flat: np.ndarray = values.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False)
    return flat.reshape(len(values), service.num_features)


def _images(column: Column, service: Service) -> np.ndarray:
    shape = service.input_shape
    if len(shape) != 3:
        raise ValueError(f"{column.where}: the model takes {service.expected} features, no images")
    pixels = np.zeros((len(column.values), *shape), np.uint8)
    for row, value in enumerate(column.values.to_pylist()):
        where = f"{column.where} in row {column.first_row + row}"
        if not value or not isinstance(value, str | bytes):
            raise ValueError(f"{where}: expected the path of an image, or an image, got {value!r}")
        encoded = value if isinstance(value, bytes) else column.path.parent / value
        image = decode_all([(where, encoded)], 1, channels=shape[0])[0]
        if image.shape != shape:
            found, expected = (" x ".join(map(str, s[1:])) for s in (image.shape, shape))
            raise ValueError(f"{where}: the image is {found} pixels (height x width), expected {expected}")
        pixels[row] = image
    return pixels.reshape(len(pixels), -1)
