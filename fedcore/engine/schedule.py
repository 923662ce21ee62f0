"""Which rows a client trains on, step by step: decided on the host before a round, keyed by seed, round and client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.config import Train
from fedcore.methods.base import Phase
from fedcore.seeds import Streams


@dataclass(frozen=True)
class Schedule:
    """One client's batches in one phase.

    Attributes
    ----------
    positions : [K, B] int64
        Positions in the client's train split. Entries past a batch's length repeat its first row.
    lengths : [K] int64
        Examples per batch, 1..B.
    """

    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Number of local steps K."""
        return len(self.lengths)


def schedule(train: Train, phase: Phase, num_examples: int, streams: Streams, client: int, purpose: str) -> Schedule:
    """Return a client's batches of one phase.

    Raises
    ------
    ValueError
        If the client has no batch: fewer examples than ``batch_size`` while ``last_batch`` is ``drop``.
    """
    size, limit = _size(train, phase), _limit(train, phase)
    names = stream_names(train, phase, num_examples, purpose)
    if _is_drawn(train, phase):
        assert limit is not None
        drawn = streams.of(names[0], client).integers(0, num_examples, (limit, size))
        return Schedule(drawn, np.full(limit, size))
    if _last_batch(train, phase) == "drop" and num_examples < size:
        raise ValueError(
            f"train.last_batch: 'drop' leaves client {client} without a batch ({num_examples} examples,"
            f" {size} rows a step); use keep or wrap, or a batch_size of at most {num_examples // phase.batches}"
        )
    orders = np.empty((len(names), -(-num_examples // size) * size), np.int64)
    for number, name in enumerate(names):
        orders[number, :num_examples] = streams.of(name, client).permutation(num_examples)
    for begin in range(num_examples, orders.shape[1], num_examples):  # the last batch is filled up with the first rows
        rest = orders[:, begin:]
        rest[:, :num_examples] = orders[:, : min(num_examples, rest.shape[1])]
    batches = _epoch_batches(train, phase, num_examples)
    positions = orders.reshape(len(names), -1, size)[:, :batches]
    lengths = np.full((len(names), batches), size)
    if _last_batch(train, phase) == "keep" and phase.batches == 1:
        length = num_examples - (batches - 1) * size
        lengths[:, -1] = length
        positions[:, -1, length:] = positions[:, -1, :1]
    return Schedule(positions.reshape(-1, size)[:limit], lengths.reshape(-1)[:limit])


def num_steps(train: Train, phase: Phase, num_examples: int) -> int:
    """Return how many steps `schedule` gives a client of so many examples."""
    limit = _limit(train, phase)
    if _is_drawn(train, phase):
        assert limit is not None
        return limit
    steps = len(_epochs(train, phase, num_examples)) * _epoch_batches(train, phase, num_examples)
    return steps if limit is None else min(steps, limit)


def stream_names(train: Train, phase: Phase, num_examples: int, purpose: str) -> list[str]:
    """Return what `schedule` draws from: a stream for every epoch, or one for all draws with replacement."""
    if _is_drawn(train, phase):
        return [f"{purpose}/replacement"]
    return [f"{purpose}/{epoch}" for epoch in _epochs(train, phase, num_examples)]


def _epochs(train: Train, phase: Phase, num_examples: int) -> range:
    """Return the numbers of a phase's epochs."""
    limit = _limit(train, phase)
    # A client without a batch is for `schedule` to refuse.
    needed = limit and -(-limit // max(1, _epoch_batches(train, phase, num_examples)))
    epochs = phase.epochs or needed or train.local_epochs
    return range(phase.first_epoch, phase.first_epoch + epochs)


def _size(train: Train, phase: Phase) -> int:
    return train.batch_size * phase.batches


def _limit(train: Train, phase: Phase) -> int | None:
    """Return the most steps of a phase; None where epochs count."""
    return phase.steps or (train.local_steps if phase.epochs is None else None)


def _is_drawn(train: Train, phase: Phase) -> bool:
    """Return whether rows are drawn with replacement instead of in epochs."""
    return train.sampling == "replacement" and phase.epochs is None


def _last_batch(train: Train, phase: Phase) -> str:
    return train.last_batch if phase.learns else "keep"


def _epoch_batches(train: Train, phase: Phase, num_examples: int) -> int:
    size = _size(train, phase)
    return num_examples // size if _last_batch(train, phase) == "drop" else -(-num_examples // size)
