"""The clients' own models in a ``personal.safetensors``, read from the disk one client at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from safetensors import safe_open
from torch import Tensor

from fedcore.types import Params

_OWN, _SHARED = "own/", "shared/"


class PersonalFile:
    """An open file of clients' own models.

    Opening reads the header and the clients' numbers; a client's leaves are read when they are asked for, so neither
    time nor memory grows with the number of clients.

    Parameters
    ----------
    path : Path
        What `personal_bytes` made.

    Attributes
    ----------
    clients : frozenset of int
        Clients that have a model of their own.

    Raises
    ------
    OSError, safetensors.SafetensorError
        If the file is missing or not readable.
    ValueError
        If a leaf has no row, or more than one, for each client.
    """

    def __init__(self, path: Path):
        self._file = cast(Any, safe_open(path, framework="pt"))  # safetensors has no types
        names = list(self._file.keys())
        self._rows = {int(client): row for row, client in enumerate(self._file.get_tensor("clients"))}
        self._own = [name for name in names if name.startswith(_OWN)]
        self._shared = [name for name in names if name.startswith(_SHARED)]
        self.clients = frozenset(self._rows)
        for name in self._own:
            shape = self._file.get_slice(name).get_shape()
            if shape[:1] != [len(self._rows)]:
                raise ValueError(f"{path.name}: {name} has shape {shape}, expected {len(self._rows)} rows")

    def leaves(self, client: int) -> Params:
        """Return parameters and buffers of one client's model; KeyError if it has none."""
        row = self._rows[client]
        own = {name.removeprefix(_OWN): self._file.get_slice(name)[row] for name in self._own}
        shared = {name.removeprefix(_SHARED): self._file.get_tensor(name) for name in self._shared}
        return {name: _in_memory(leaf) for name, leaf in {**shared, **own}.items()}


def _in_memory(leaf: Tensor) -> Tensor:
    """Return a copy: the last bits of a product depend on where its operands lie, and the file may be replaced."""
    return leaf.clone()
