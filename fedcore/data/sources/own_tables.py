"""The user's own feature vectors: CSV or parquet files with a column per feature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import CsvData, TableData
from fedcore.data.dataset import Dataset
from fedcore.data.sources.columns import Column, is_numeric, numbers, whole_numbers_or_strings
from fedcore.data.sources.numbering import number_classes, number_clients, number_protected
from fedcore.data.sources.own_files import own_files
from fedcore.data.sources.parquet_files import opened, pick
from fedcore.data.sources.scaling import UNSCALED, standard


def read(config: CsvData | TableData) -> Dataset:
    """Return the rows of ``files``, then those of ``test_files``, [n, F] float32, features in the order of the columns.

    Classes are the values of the label column: whole numbers in ascending order, strings in alphabetical order.
    Clients are numbered from 0 without gaps: whole numbers in ascending order, strings in order of appearance. Rows
    in messages count from 0 in each file, without the line that names the columns.

    Raises
    ------
    ConfigError
        When a file does not exist.
    ValueError
        One line naming the file, the column, the row if there is one, and what was expected.
    """
    files = own_files(config)
    tables = [_csv(path, config) if isinstance(config, CsvData) else _parquet(path, config) for path in files]
    special = [config.label, *([] if config.client is None else [config.client]), *config.protected]
    features = config.features or _numeric(files[0], tables[0], special)

    def parts(name: str) -> list[Column]:
        return [Column(path, name, _column(path, table, name)) for path, table in zip(files, tables, strict=True)]

    # Every role is checked before the features are gathered: those may be many.
    labels, names = number_classes([whole_numbers_or_strings(part) for part in parts(config.label)])
    clients = None
    if config.client is not None:
        clients = number_clients([whole_numbers_or_strings(part) for part in parts(config.client)])
    protected = [
        number_protected([whole_numbers_or_strings(part) for part in parts(name)]) for name in config.protected
    ]
    inputs = np.empty((len(labels), len(features)), np.float32)
    for position, name in enumerate(features):
        inputs[:, position] = np.concatenate([numbers(part) for part in parts(name)])
    num_train = sum(table.num_rows for table in tables[: len(config.files)])
    offset, scale = standard(inputs[:num_train]) if config.standardise else UNSCALED
    return Dataset(
        name=config.name,
        inputs=inputs,
        labels=labels,
        class_names=names,
        offset=offset,
        scale=scale,
        num_train_rows=num_train,
        clients=clients,
        protected=np.stack([values for values, _ in protected], axis=1) if protected else None,
        protected_names=tuple(name for _, name in protected),
    )


def _numeric(path: Path, table: Any, special: Sequence[str]) -> list[str]:
    columns = [Column(path, name, _column(path, table, name)) for name in table.column_names if name not in special]
    found = [column.name for column in columns if is_numeric(column)]
    if not found:
        raise ValueError(f"{path}: no column beside {', '.join(special)} holds numbers, so there are no features")
    return found


def _column(path: Path, table: Any, name: str) -> Any:
    return table[pick(path, table.column_names, (name,))]


def _wanted(config: CsvData | TableData) -> list[str] | None:
    """Return the columns to read; None: all."""
    if config.features is None:
        return None
    return [config.label, *([] if config.client is None else [config.client]), *config.protected, *config.features]


def _parquet(path: Path, config: TableData) -> Any:
    with opened(path) as file:
        present = file.schema_arrow.names
        for name in _wanted(config) or ():
            pick(path, present, (name,))
        return _filled(path, file.read(_wanted(config), use_threads=False))


def _csv(path: Path, config: CsvData) -> Any:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.csv as pc  # type: ignore[import-untyped]

    parse = pc.ParseOptions(delimiter=config.delimiter)
    reading = pc.ReadOptions(use_threads=False)
    try:
        with pc.open_csv(path, reading, parse) as file:
            present = file.schema.names
        # Guessed types would lose what was written: 007 and 7 are two clients.
        kinds = dict.fromkeys(present, pa.string())
        for name in _wanted(config) or ():
            pick(path, present, (name,))
        convert = pc.ConvertOptions(column_types=kinds, include_columns=_wanted(config))
        return _filled(path, pc.read_csv(path, reading, parse, convert))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not readable as CSV with '{config.delimiter}' between fields ({reason})") from None


def _filled(path: Path, table: Any) -> Any:
    if table.num_rows == 0:
        raise ValueError(f"{path}: there are no rows")
    return table
