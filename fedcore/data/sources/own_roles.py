"""Whose rows are whose, and the protected attributes, from columns of a user's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedcore.config import CsvData, ParquetData, TableData
from fedcore.data.sources.columns import Column, whole_numbers_or_strings
from fedcore.data.sources.numbering import number_clients, number_protected


@dataclass(frozen=True)
class Roles:
    """Clients [n] int32, protected attributes [n, P] uint8, and the names of both; None and empty without columns.

    Fields are called as those of `Dataset`, which takes them as ``**vars(roles)``.
    """

    clients: np.ndarray | None
    client_names: tuple[str, ...]
    protected: np.ndarray | None
    protected_names: tuple[str, ...]


def read_roles(config: CsvData | TableData | ParquetData, parts: Callable[[str], list[Column]]) -> Roles:
    """Number the columns that `config` names; `parts` returns a column of all files.

    Raises
    ------
    ValueError
        One line naming the file, the column, the row if there is one, and what was expected.
    """
    clients: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    if config.client is not None:
        clients, client_names = number_clients([whole_numbers_or_strings(part) for part in parts(config.client)])
    found = [number_protected([whole_numbers_or_strings(part) for part in parts(name)]) for name in config.protected]
    protected = np.stack([values for values, _ in found], axis=1) if found else None
    return Roles(clients, client_names, protected, tuple(name for _, name in found))
