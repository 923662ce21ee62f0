"""Columns of a user's own tables -> numbers, or whole numbers and strings; every mistake names file, column and row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.data.sources.numbering import Values
from fedcore.data.sources.parquet_files import first_null

# A float32 holds no larger number.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Column:
    """Rows of one column of one file, as arrow has them; strings if the file has no types of its own (CSV)."""

    path: Path
    name: str
    values: Any
    first_row: int = 0  # of the file, where these rows begin

    @property
    def where(self) -> str:
        """File and column, for the messages."""
        return f"{self.path}: column '{self.name}'"


class Kinds:
    """Which columns of a file hold numbers, found out as its rows come by."""

    def __init__(self) -> None:
        self._numeric: dict[str, bool] = {}
        self._others: dict[str, tuple[int, str]] = {}  # first value that is no number, and its row

    def see(self, column: Column) -> None:
        """Look at the next rows of a column; by its type it is numeric or not, without types by its values.

        Raises
        ------
        ValueError
            When some values are numbers and others are not: one line naming the first that is not.
        """
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.compute as pc  # type: ignore[import-untyped]

        name, kind = column.name, column.values.type
        if not pa.types.is_string(kind):
            self._numeric[name] = bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_flag(kind))
            return
        if len(column.values) == 0:
            return
        found = {True}
        if _parsed(column.values) is None:
            numeric = {text: _is_number(text) for text in pc.unique(column.values).to_pylist()}
            found = set(numeric.values())
            if name not in self._others:
                texts = column.values.to_pylist()
                row = next(row for row, text in enumerate(texts) if not numeric[text])
                self._others[name] = (column.first_row + row, texts[row])
        if len(found | {self._numeric.setdefault(name, True in found)}) > 1:
            row, text = self._others[name]
            shown = f"'{text}'" if text else "nothing"
            raise ValueError(
                f"{column.where} holds numbers, but {shown} in row {row};"
                " correct that, or list the columns that are features in dataset.features"
            )

    def numeric(self) -> list[str]:
        """Return the names of the numeric columns, in the order of the file."""
        return [name for name, is_numeric in self._numeric.items() if is_numeric]


def _is_flag(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_boolean(kind))


def numbers(column: Column) -> np.ndarray:
    """Return a feature [n] float32; every row must have a finite number."""
    import pyarrow as pa

    values, kind = column.values, column.values.type
    if values.null_count:
        raise ValueError(
            f"{column.where} has no value in row {column.first_row + first_null(values)}, expected a number"
        )
    if pa.types.is_string(kind):
        parsed = _parsed(values)
        if parsed is None:
            texts = values.to_pylist()
            row = next(row for row, text in enumerate(texts) if not _is_number(text))
            found = f"holds '{texts[row]}'" if texts[row] else "has no value"
            raise ValueError(f"{column.where} {found} in row {column.first_row + row}, expected a number")
        values = parsed
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_flag(kind)):
        raise ValueError(f"{column.where} must hold numbers, got {kind}")
    found64: np.ndarray = values.to_numpy().astype(np.float64)
    valid = np.abs(found64) <= _LARGEST
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(
            f"{column.where} holds {found64[row]} in row {column.first_row + row}, expected a finite number"
        )
    result: np.ndarray = found64.astype(np.float32)
    return result


def whole_numbers_or_strings(column: Column) -> Values:
    """Return a column of labels, clients or protected values; without types, strings that all are whole numbers count.

    Raises
    ------
    ValueError
        When a row has no value, or a number with a fraction.
    """
    import pyarrow as pa

    values = column.values
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count:
        raise _absent(column, first_null(values))
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return Values(column.path, column.name, values.to_numpy().astype(np.int64))
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        texts = [text.strip() for text in values.to_pylist()]
        if "" in texts:
            raise _absent(column, texts.index(""))
        return _from_texts(column, texts)
    if pa.types.is_floating(kind):
        found = values.to_numpy()
        if np.isnan(found).any():
            raise _absent(column, int(np.isnan(found).argmax()))
        raise ValueError(
            f"{column.where} must hold whole numbers or strings, got {kind} ({found[0]} in row {column.first_row})"
        )
    raise ValueError(f"{column.where} must hold whole numbers or strings, got {kind}")


def _from_texts(column: Column, texts: list[str]) -> Values:
    try:
        return Values(column.path, column.name, np.array([int(text) for text in texts], np.int64))
    except (ValueError, OverflowError):
        pass
    for row, text in enumerate(texts):
        if _is_number(text) and not text.lstrip("+-").isdecimal():
            raise ValueError(
                f"{column.where} holds {text} in row {column.first_row + row}, expected a whole number or a name"
            )
    return Values(column.path, column.name, texts)


def _absent(column: Column, row: int) -> ValueError:
    row += column.first_row
    return ValueError(f"{column.where} has no value in row {row}, expected a whole number or a string")


def _parsed(values: Any) -> Any | None:
    """Return strings as numbers; None when one of them is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(pc.utf8_trim_whitespace(values), pa.float64())
    except pa.ArrowInvalid:
        return None


def _is_number(text: str) -> bool:
    import pyarrow as pa

    return _parsed(pa.array([text])) is not None
