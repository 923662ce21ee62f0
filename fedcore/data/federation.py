"""The federation: every client's rows per split, in one layout that fits a million clients."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Literal

import numpy as np

from fedcore.data import noise, rotation
from fedcore.data.dataset import Dataset
from fedcore.data.partitions import TEST, TRAIN, VALIDATION, PartitionTable

Split = Literal["train", "val", "test"]
_CODES: dict[str, int] = {"train": TRAIN, "test": TEST, "val": VALIDATION}


class Federation:
    """A data set dealt to clients; immutable, holds row numbers only.

    Parameters
    ----------
    dataset : Dataset
    table : PartitionTable
        Made for this data set.

    Attributes
    ----------
    dataset : Dataset
    num_clients, num_unseen, num_total : int
        Clients that train (ids 0..num_clients-1), clients that never do (the ids after), and both.
    num_examples : array [num_total] int64
        Train examples of each client.
    rotation : array [num_total] float32
        Degrees by which each client's images are turned, counter-clockwise; all 0 without that feature shift.
    noise : array [num_total] float32
        Standard deviation of the noise on each client's images, 1 is the range of a pixel; all 0 without that shift.

    Raises
    ------
    ValueError
        When the partition was made for another number of rows, or changes inputs as only images can be.
    """

    def __init__(self, dataset: Dataset, table: PartitionTable):
        if len(dataset) != len(table.client):
            raise ValueError(
                f"the partition has {len(table.client)} rows, data set '{dataset.name}' has {len(dataset)};"
                " run `dvc repro partition`"
            )
        wrong = rotation.problem(table.rotation, dataset.input_shape)
        if wrong is not None:
            raise ValueError(f"the partition turns the images of its clients, but of data set '{dataset.name}' {wrong}")
        wrong = noise.problem(table.noise, dataset.input_shape)
        if wrong is not None:
            raise ValueError(f"the partition puts noise on images, but of data set '{dataset.name}' {wrong}")
        self.dataset = dataset
        self.rotation, self.noise, self._noise_seed = table.rotation, table.noise, table.noise_seed
        self.num_clients = table.num_clients
        self.num_unseen = table.num_unseen
        self.num_total = table.num_total
        # Rows sorted by (client, split, row); cell c * 3 + s holds _order[_offsets[cell] : _offsets[cell + 1]].
        used = np.flatnonzero(table.client >= 0)
        cell = table.client[used].astype(np.int64) * len(_CODES) + table.split[used]
        self._order = _frozen(used[np.argsort(cell, kind="stable")])
        counts = np.bincount(cell, minlength=self.num_total * len(_CODES))
        self._offsets = _frozen(np.concatenate([[0], np.cumsum(counts)]))
        self._sizes = _frozen(counts.reshape(self.num_total, len(_CODES)))
        self.num_examples = self.sizes("train")

    def rows(self, client: int, split: Split) -> np.ndarray:
        """Return the ascending row numbers [m] int64 of one client's split (a read-only view)."""
        if not 0 <= client < self.num_total:
            raise ValueError(f"client {client} does not exist; valid: 0 to {self.num_total - 1}")
        cell = client * len(_CODES) + _code(split)
        return self._order[self._offsets[cell] : self._offsets[cell + 1]]

    def rows_of(self, clients: Sequence[int], split: Split) -> np.ndarray:
        """Return the rows of several clients' split, one client after the other, [m] int64; `rows` for many at once."""
        cells = np.asarray(clients, np.int64) * len(_CODES) + _code(split)
        begins, sizes = self._offsets[cells], self._offsets[cells + 1] - self._offsets[cells]
        # Counting up by one, and at the first row of a client from the end of the one before to its own begin.
        total = int(sizes.sum())
        shift = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
        return np.asarray(self._order[np.arange(total) + shift])

    def fitting_rows(self, client: int) -> np.ndarray:
        """Return the validation rows that local training may fit to: every other one, the first among them."""
        return self.rows(client, "val")[::2]

    def held_out(self) -> Federation:
        """Return this federation without all clients' `fitting_rows`; where there was one row, there is none."""
        cell = np.repeat(np.arange(self._sizes.size), self._sizes.ravel())
        place = np.arange(len(self._order)) - self._offsets[cell]
        kept = (cell % len(_CODES) != VALIDATION) | (place % 2 == 1)
        counts = np.bincount(cell[kept], minlength=self._sizes.size)
        other = copy(self)
        other._order = _frozen(self._order[kept])
        other._offsets = _frozen(np.concatenate([[0], np.cumsum(counts)]))
        other._sizes = _frozen(counts.reshape(self._sizes.shape))
        return other

    def sizes(self, split: Split) -> np.ndarray:
        """Return the number of examples of every client in `split`, [num_total] int64."""
        return _frozen(np.ascontiguousarray(self._sizes[:, _code(split)]))

    def inputs(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the data set's inputs as the clients see them: turned by the client's angle, with noise of its level.

        Without feature shift and `rows` this is the data set's own array, which may lie on disk; otherwise a copy, made
        at every call. Rows that nobody holds stay as they are.

        Parameters
        ----------
        rows : array [m] int, optional
            The rows that are wanted, in this order; default all.

        Returns
        -------
        array [n, ...] or [m, ...] of the data set's type
        """
        inputs = self.dataset.inputs if rows is None else np.asarray(self.dataset.inputs[rows])
        if self.rotation.any():
            inputs = rotation.rotate_rows(inputs, self._by_row(self.rotation, rows))
        if self.noise.any():
            numbers = np.arange(len(self.dataset)) if rows is None else np.asarray(rows)
            inputs = noise.add_rows(inputs, self._by_row(self.noise, rows), numbers, self._noise_seed)
        return inputs

    def _by_row(self, per_client: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
        """Return the client's value for `rows`, or all; 0 for rows that nobody holds."""
        client = self._client if rows is None else self._client[rows]
        return np.where(client >= 0, per_client[client], 0)

    @cached_property
    def _client(self) -> np.ndarray:
        client = np.full(len(self.dataset), -1, np.int32)
        client[self._order] = np.repeat(np.arange(self.num_total), self._sizes.sum(axis=1))
        return _frozen(client)

    @cached_property
    def class_counts(self) -> np.ndarray:
        """Train examples of every client by class, [num_total, K] int64."""
        classes = self.dataset.num_classes
        owner = np.repeat(np.arange(self.num_total * len(_CODES)), np.diff(self._offsets))
        train = owner % len(_CODES) == TRAIN
        cell = owner[train] // len(_CODES) * classes + self.dataset.labels[self._order[train]]
        return _frozen(np.bincount(cell, minlength=self.num_total * classes).reshape(self.num_total, classes))


def _code(split: str) -> int:
    if split not in _CODES:
        raise ValueError(f"split '{split}' does not exist; valid: {', '.join(_CODES)}")
    return _CODES[split]


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
