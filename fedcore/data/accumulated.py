"""A data set that grows: what it began with, then every batch that was taken in, in that order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedcore.data.dataset import Dataset
from fedcore.data.stable import row_bytes


def append(base: Dataset, batches: Sequence[Dataset]) -> Dataset:
    """Return `base` with the rows of `batches` after its own.

    Classes and scaling are those of `base`. Clients are matched by name; a name that is new gets the next number, so
    that no client's number changes when more batches follow.

    Raises
    ------
    ValueError
        One line naming the first batch that does not fit: its shape, classes, clients or protected attributes differ.
    """
    for number, batch in enumerate(batches):
        wrong = problem(base, batch)
        if wrong is not None:
            raise ValueError(f"batch {number} does not fit data set '{base.name}': {wrong}")
    if not batches:
        return base
    parts = [base, *batches]
    changes: dict[str, Any] = {"inputs": np.concatenate([part.inputs for part in parts])}
    changes["labels"] = np.concatenate([part.labels for part in parts])
    if base.protected is not None:
        changes["protected"] = np.concatenate([np.asarray(part.protected) for part in parts])
    if base.clients is None:
        return dataclasses.replace(base, **changes)
    numbers: dict[str, int] = {}
    clients = []
    for part in parts:
        own = names_of_clients(part)
        # Names in the order of their first row, but those of the base as it numbered them.
        used, first = np.unique(np.asarray(part.clients), return_index=True)
        order = range(len(own)) if part is base else used[np.argsort(first)].tolist()
        for position in order:
            numbers.setdefault(own[position], len(numbers))
        clients.append(np.array([numbers.get(name, 0) for name in own], np.int32)[part.clients])
    changes["clients"] = np.concatenate(clients)
    return dataclasses.replace(base, **changes, client_names=tuple(numbers))


def problem(base: Dataset, batch: Dataset) -> str | None:
    """Return why `batch` cannot be appended to `base`; None when it can."""
    if batch.inputs.dtype != base.inputs.dtype or batch.input_shape != base.input_shape:
        found, expected = (f"{data.inputs.dtype} {list(data.input_shape)}" for data in (batch, base))
        return f"an example is {found}, expected {expected}"
    if batch.class_names != base.class_names:
        return f"its classes are {', '.join(batch.class_names)}, expected {', '.join(base.class_names)}"
    if (batch.clients is None) != (base.clients is None):
        return "it names clients, the data set has none" if base.clients is None else "it does not say who holds what"
    if batch.protected_names != base.protected_names:
        found, expected = (", ".join(data.protected_names) or "none" for data in (batch, base))
        return f"its protected attributes are {found}, expected {expected}"
    return None


def names_of_clients(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of a data set's own clients; their numbers where it has no names, empty without clients."""
    if dataset.clients is None:
        return ()
    return dataset.client_names or tuple(map(str, range(int(dataset.clients.max()) + 1)))


def example_keys(dataset: Dataset) -> list[bytes]:
    """Return a key per row, SHA-256 over input, class and client: equal for the same example, whatever its place."""
    names = names_of_clients(dataset)
    keys = []
    for row in range(len(dataset)):
        client = names[dataset.clients[row]] if dataset.clients is not None else ""
        digest = hashlib.sha256(f"{dataset.class_names[dataset.labels[row]]}\0{client}\0".encode())
        digest.update(row_bytes(np.asarray(dataset.inputs[row])))
        keys.append(digest.digest())
    return keys
