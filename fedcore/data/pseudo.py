"""Pseudo data: inputs that look like nobody's, means of clients' training examples. See the method `fedbr`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.data.federation import Federation
from fedcore.seeds import stream


def rsm(
    federation: Federation, num_rows: int, seed: int, examples: int = 10, transfer: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return random-sample means: each row is the mean of training examples of one client.

    The client is drawn uniformly, its examples uniformly with replacement.

    Parameters
    ----------
    federation : Federation
    num_rows : int, >= 1
        Rows of pseudo data; the paper takes the batch size.
    seed : int, >= 0
    examples : int, >= 1, default 10
        Examples in a mean, M of the paper.
    transfer : int, >= 0, default 0
        Number of the transfer: 0 for data that is sent once, the round for data that is sent in every round.

    Returns
    -------
    inputs : [num_rows, ...] float32
        In the data set's raw units (pixels as stored), not rounded.
    targets : [num_rows, Y] float32
        Soft labels, all 1 / Y.

    References
    ----------
    Guo et al., ICML 2023. https://arxiv.org/abs/2205.13462
    """
    rows = [chosen_rows(federation, row, seed, examples, transfer) for row in range(num_rows)]
    return _means(federation, rows)


def rsm_balanced(
    federation: Federation, num_rows: int, seed: int, examples: int = 10, transfer: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return means of examples drawn by class: for each, a class its client has, then an example of it.

    As `rsm` otherwise, so a rare class of a client weighs as much as a frequent one.
    """
    rows = [chosen_rows(federation, row, seed, examples, transfer, balanced=True) for row in range(num_rows)]
    return _means(federation, rows)


def chosen_rows(
    federation: Federation, row: int, seed: int, examples: int, transfer: int = 0, *, balanced: bool = False
) -> NDArray[np.int64]:
    """Return the data set's rows [examples] that one row of pseudo data is the mean of."""
    generator = stream(seed, f"pseudo/{row}", transfer)
    filled = np.flatnonzero(federation.num_examples[: federation.num_clients])
    own = federation.rows(int(generator.choice(filled)), "train")
    if not balanced:
        return np.asarray(own[generator.integers(0, len(own), examples)])
    labels = federation.dataset.labels[own]
    classes = generator.choice(np.unique(labels), examples)
    return np.array([generator.choice(own[labels == c]) for c in classes])


def _means(federation: Federation, rows: list[NDArray[np.int64]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    data = federation.dataset
    means = np.stack([np.asarray(data.inputs[r]).mean(0, dtype=np.float64) for r in rows])
    targets = np.full((len(rows), data.num_classes), 1 / data.num_classes, np.float32)
    return means.astype(np.float32), targets
