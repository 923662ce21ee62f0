"""Which rows a client trains on, step by step: decided on the host before a round, keyed by seed, round and client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcore.config import Train
from fedcore.methods.base import Phase
from fedcore.seeds import stream


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


def schedule(
    train: Train, phase: Phase, num_examples: int, seed: int, round: int, client: int, purpose: str
) -> Schedule:
    """Return a client's batches of one phase.

    Raises
    ------
    ValueError
        If the client has no batch: fewer examples than ``batch_size`` while ``last_batch`` is ``drop``.
    """
    size = train.batch_size * phase.batches
    limit = phase.steps or (train.local_steps if phase.epochs is None else None)
    if train.sampling == "replacement" and phase.epochs is None:
        assert limit is not None
        generator = stream(seed, f"{purpose}/replacement", round, client)
        drawn = generator.integers(0, num_examples, (limit, size))
        return Schedule(drawn, np.full(limit, size))
    last_batch = train.last_batch if phase.learns else "keep"
    if last_batch == "drop" and num_examples < size:
        raise ValueError(
            f"train.last_batch: 'drop' leaves client {client} without a batch ({num_examples} examples,"
            f" {size} rows a step); use keep or wrap, or a batch_size of at most {num_examples // phase.batches}"
        )
    epoch_batches = num_examples // size if last_batch == "drop" else -(-num_examples // size)
    epochs = phase.epochs or (-(-limit // epoch_batches) if limit else train.local_epochs)
    filled = -(-num_examples // size) * size
    rows, counts = [], []
    for epoch in range(phase.first_epoch, phase.first_epoch + epochs):
        order = stream(seed, f"{purpose}/{epoch}", round, client).permutation(num_examples)
        padded = (order if filled == num_examples else np.resize(order, filled)).reshape(-1, size)[:epoch_batches]
        lengths = np.full(epoch_batches, size)
        if last_batch == "keep" and phase.batches == 1:
            lengths[-1] = num_examples - (epoch_batches - 1) * size
            padded[-1, lengths[-1] :] = padded[-1, 0]
        rows.append(padded)
        counts.append(lengths)
    return Schedule(np.concatenate(rows)[:limit], np.concatenate(counts)[:limit])
