"""Which worker holds which clients, and the rows it needs for them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federation import Federation
from fedcore.engine.local import Examples


def homes(sizes: NDArray[np.int64], workers: int) -> NDArray[np.int64]:
    """Return the worker of every client: the largest first, each to the worker with the fewest examples so far.

    Parameters
    ----------
    sizes : [N] int
        Examples of every client.

    Returns
    -------
    [N] int64, 0..workers-1
    """
    home = np.empty(len(sizes), np.int64)
    loads = [(0, worker) for worker in range(workers)]
    for client in np.argsort(-sizes, kind="stable").tolist():
        load, worker = loads[0]
        home[client] = worker
        heapq.heapreplace(loads, (load + int(sizes[client]), worker))
    return home


@dataclass(frozen=True)
class Share:
    """The rows of some clients: for each its train rows, then its validation rows if they are used.

    Attributes
    ----------
    clients : [m] int64, ascending
    starts, num_train, num_validation : [m] int64
        Where a client's rows begin, and how many there are.
    inputs, labels, protected : arrays [r, ...]
        Raw, as in `Examples`.
    """

    clients: NDArray[np.int64]
    starts: NDArray[np.int64]
    num_train: NDArray[np.int64]
    num_validation: NDArray[np.int64]
    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    protected: NDArray[np.uint8]

    def rows(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the train and the validation rows of a client lie; KeyError if it is not here."""
        at = int(np.searchsorted(self.clients, client))
        if at == len(self.clients) or self.clients[at] != client:
            raise KeyError(client)
        begin, train, validation = int(self.starts[at]), int(self.num_train[at]), int(self.num_validation[at])
        return np.arange(begin, begin + train), np.arange(begin + train, begin + train + validation)

    def joined(self, other: Share) -> Share:
        """Return this share with the clients of another one that are not here yet."""
        missing = ~np.isin(other.clients, self.clients)
        clients = np.concatenate([self.clients, other.clients[missing]])
        order = np.argsort(clients, kind="stable")

        def both(mine: NDArray[np.int64], theirs: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.concatenate([mine, theirs[missing]])[order]

        return Share(
            clients[order],
            both(self.starts, other.starts + len(self.labels)),
            both(self.num_train, other.num_train),
            both(self.num_validation, other.num_validation),
            np.concatenate([self.inputs, other.inputs]),
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.protected, other.protected]),
        )


def share_of(examples: Examples, federation: Federation, clients: Sequence[int], *, with_validation: bool) -> Share:
    """Return the share of some clients, ascending, as a copy."""
    nothing = np.empty(0, np.int64)
    train = [federation.rows(client, "train") for client in clients]
    held = [federation.fitting_rows(client) if with_validation else nothing for client in clients]
    rows = np.concatenate([nothing, *(part for pair in zip(train, held, strict=True) for part in pair)])
    num_train, num_held = np.array([*map(len, train)], np.int64), np.array([*map(len, held)], np.int64)
    sizes = num_train + num_held
    return Share(
        np.asarray(clients, np.int64),
        np.cumsum(sizes) - sizes,
        num_train,
        num_held,
        examples.inputs[rows].cpu().numpy(),
        examples.labels[rows].cpu().numpy(),
        examples.protected[rows].cpu().numpy().astype(np.uint8),
    )
