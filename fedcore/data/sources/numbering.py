"""Labels, clients and protected values of a user's own data, whole numbers or strings -> numbers from 0 on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Values:
    """One column of one file, without gaps: [n] int64, or n strings."""

    path: Path
    column: str
    values: np.ndarray | list[str]


def number_classes(parts: Sequence[Values]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels [n] int64 and class names: every value that occurs is a class, in ascending order."""
    names = sorted(_distinct(parts))
    return _numbered(parts, names), tuple(map(str, names))


def number_clients(parts: Sequence[Values]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return clients [n] int32 without gaps, and their names: numbers ascending, strings in order of appearance."""
    found = _distinct(parts)
    order = list(found) if isinstance(parts[0].values, list) else sorted(found)
    return _numbered(parts, order).astype(np.int32), tuple(map(str, order))


def number_protected(parts: Sequence[Values]) -> tuple[np.ndarray, str]:
    """Return the attribute [n] uint8 and its name: ``column`` where it holds 0 and 1, else ``column=value`` for the 1.

    Of two other values the second in ascending order is the 1.
    """
    column, found = parts[0].column, sorted(_distinct(parts))
    if set(map(str, found)) <= {"0", "1"}:
        return np.concatenate([np.asarray(part.values) for part in parts]).astype(np.uint8), column
    if len(found) == 1:
        raise ValueError(f"{parts[0].path}: protected column '{column}' holds nothing but '{found[0]}', expected two")
    if len(found) > 2:
        first = list(_distinct(parts))[:2]
        for part in parts:
            for row, value in enumerate(part.values):
                if value not in first:
                    raise ValueError(
                        f"{part.path}: row {row} of protected column '{column}' holds '{value}' beside"
                        f" '{first[0]}' and '{first[1]}'; expected two values, such as 0 and 1"
                    )
    return _numbered(parts, found).astype(np.uint8), f"{column}={found[1]}"


def _distinct(parts: Sequence[Values]) -> dict[int | str, None]:
    """Return the values that occur, in order of appearance."""
    texts = [isinstance(part.values, list) for part in parts]
    if any(texts) and not all(texts):
        odd, other = parts[texts.index(False)], parts[texts.index(True)]
        raise ValueError(f"{odd.path}: column '{odd.column}' holds whole numbers, in {other.path} strings")
    found: dict[int | str, None] = {}
    for part in parts:
        if isinstance(part.values, list):
            found.update(dict.fromkeys(part.values))
        else:
            values, first = np.unique(part.values, return_index=True)
            found.update(dict.fromkeys(values[np.argsort(first)].tolist()))
    return found


def _numbered(parts: Sequence[Values], order: Sequence[int | str] | dict[int | str, None]) -> np.ndarray:
    numbers = {value: number for number, value in enumerate(order)}
    rows = []
    for part in parts:
        if isinstance(part.values, list):
            rows.append(np.array([numbers[value] for value in part.values], np.int64))
        else:
            values, inverse = np.unique(part.values, return_inverse=True)
            rows.append(np.array([numbers[value] for value in values.tolist()], np.int64)[inverse])
    return np.concatenate(rows)
