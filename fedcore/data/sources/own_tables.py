"""The user's own feature vectors: CSV or parquet files with a column per feature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.config import CsvData, TableData
from fedcore.data.dataset import Dataset
from fedcore.data.rows import Rows
from fedcore.data.sources.columns import Column, Kinds, numbers, whole_numbers_or_strings
from fedcore.data.sources.numbering import number_classes
from fedcore.data.sources.own_files import own_files
from fedcore.data.sources.own_roles import read_roles
from fedcore.data.sources.parquet_files import opened, pick
from fedcore.data.sources.scaling import UNSCALED, standard

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 1 << 24


def read(config: CsvData | TableData, path: Path | None = None) -> Dataset:
    """Return the rows of ``files``, then those of ``test_files``, [n, F] float32, features in the order of the columns.

    Classes are the values of the label column: whole numbers in ascending order, strings in alphabetical order.
    Clients are numbered from 0 without gaps: whole numbers in ascending order, strings in order of appearance. Rows
    in messages count from 0 in each file, without the line that names the columns. Files are read twice, first for
    the columns that are no features, so that the features need never lie in memory together.

    Raises
    ------
    ConfigError
        When a file does not exist.
    ValueError
        One line naming the file, the column, the row if there is one, and what was expected.
    """
    files = own_files(config)
    kinds = None if config.features is not None else Kinds()
    # The first file says which columns are features.
    tables = [_roles(file, config, kinds if number == 0 else None) for number, file in enumerate(files)]

    def parts(name: str) -> list[Column]:
        return [Column(file, name, table[name]) for file, table in zip(files, tables, strict=True)]

    labels, names = number_classes([whole_numbers_or_strings(part) for part in parts(config.label)])
    roles = read_roles(config, parts)
    features = config.features or _numeric(files[0], config, kinds)
    with Rows(path) as rows:
        for file in files:
            for first, batch in _batches(file, config, features):
                block = np.empty((batch.num_rows, len(features)), np.float32)
                for position, name in enumerate(features):
                    block[:, position] = numbers(Column(file, name, batch[name], first))
                rows.append(block)
    inputs = rows.array()
    num_train = sum(table.num_rows for table in tables[: len(config.files)])
    scaling = standard(inputs, num_train) if config.standardise else UNSCALED
    return Dataset(config.name, inputs, labels, names, *scaling, num_train, **vars(roles))


def feature_names(config: CsvData | TableData) -> list[str]:
    """Return the columns that are features, in their order; as ``features`` says, or as the first file has them.

    Raises
    ------
    ConfigError, ValueError
        As `read` does.
    """
    if config.features is not None:
        return list(config.features)
    file, kinds = own_files(config)[0], Kinds()
    _roles(file, config, kinds)
    return _numeric(file, config, kinds)


def _special(config: CsvData | TableData) -> list[str]:
    """Return the columns that are no features."""
    return [config.label, *([] if config.client is None else [config.client]), *config.protected]


def _roles(file: Path, config: CsvData | TableData, kinds: Kinds | None) -> Any:
    """Return a file's columns that are no features, as one table; tell `kinds` about all others."""
    import pyarrow as pa  # type: ignore[import-untyped]

    special = _special(config)
    if kinds is not None and isinstance(config, TableData):
        _see_types(file, special, kinds)
        kinds = None
    kept = []
    for first, batch in _batches(file, config, special if kinds is None else None):
        if kinds is not None:
            for name in batch.column_names:
                if name not in special:
                    kinds.see(Column(file, name, batch[pick(file, batch.column_names, (name,))], first))
        kept.append(batch.select(special))
    if sum(batch.num_rows for batch in kept) == 0:
        raise ValueError(f"{file}: there are no rows")
    return pa.concat_tables(kept)


def _see_types(file: Path, special: list[str], kinds: Kinds) -> None:
    """Tell `kinds` about the columns of a parquet file, whose types say what they hold."""
    with opened(file) as content:
        empty = content.schema_arrow.empty_table()
        for name in empty.column_names:
            if name not in special:
                kinds.see(Column(file, name, empty[pick(file, empty.column_names, (name,))]))


def _numeric(file: Path, config: CsvData | TableData, kinds: Kinds | None) -> list[str]:
    found = kinds.numeric() if kinds is not None else []
    if not found:
        others = ", ".join(_special(config))
        raise ValueError(f"{file}: no column beside {others} holds numbers, so there are no features")
    return found


def _batches(file: Path, config: CsvData | TableData, names: list[str] | None) -> Iterator[tuple[int, Any]]:
    """Yield (first row, rows) of some columns, or of all; one that is missing or there twice is named."""
    first = 0
    needed = [*_special(config), *(config.features or ())]
    reader = _csv(file, config, needed, names) if isinstance(config, CsvData) else _parquet(file, needed, names)
    for batch in reader:
        yield first, batch
        first += batch.num_rows


def _parquet(file: Path, needed: list[str], names: list[str] | None) -> Iterator[Any]:
    import pyarrow as pa

    with opened(file) as content:
        for name in (*needed, *(names or ())):
            pick(file, content.schema_arrow.names, (name,))
        for batch in content.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            yield pa.Table.from_batches([batch])


def _csv(file: Path, config: CsvData, needed: list[str], names: list[str] | None) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.csv as pc  # type: ignore[import-untyped]

    parse = pc.ParseOptions(delimiter=config.delimiter)
    reading = pc.ReadOptions(use_threads=False, block_size=_BATCH_BYTES)
    try:
        with pc.open_csv(file, reading, parse) as content:
            present = content.schema.names
        for name in (*needed, *(names or ())):
            pick(file, present, (name,))
        # Guessed types would lose what was written: 007 and 7 are two clients.
        kinds = dict.fromkeys(present, pa.string())
        convert = pc.ConvertOptions(column_types=kinds, include_columns=names)
        with pc.open_csv(file, reading, parse, convert) as content:
            for batch in content:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{file}: not readable as CSV with '{config.delimiter}' between fields ({reason})") from None
