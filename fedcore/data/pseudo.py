"""Pseudo data: inputs that look like nobody's, means of clients' or of public examples. See the method `fedbr`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcore.config import ConfigError, Problem
from fedcore.data.dataset import Dataset
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
        Number of the set: 0 for data that is sent once; 0, 1, ... for data that is sent in every round.

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


def mixture(
    proxy: Dataset, dataset: Dataset, num_rows: int, seed: int, examples: int = 10, transfer: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the server's part of Mixture: each row is the mean of training examples of a public data set.

    They are drawn uniformly with replacement. The model sees them normalised by the proxy's own statistics, which is
    why they are stored as what the data set's normalisation turns into that. Mixing them with a client's batch is the
    method's part.

    Parameters
    ----------
    proxy : Dataset
        The public data set; its labels are not used.
    dataset : Dataset
        The clients' data set.
    num_rows, seed, examples, transfer
        As in `rsm`.

    Returns
    -------
    inputs : [num_rows, ...] float32
        In the raw units of `dataset`; ``(inputs - dataset.offset) * dataset.scale`` is
        ``(mean - proxy.offset) * proxy.scale``.
    targets : [num_rows, Y] float32
        Soft labels, all 1 / Y, Y the classes of `dataset`.

    Raises
    ------
    ConfigError
        If the two data sets have inputs of different shapes.

    References
    ----------
    Guo et al., ICML 2023, "Mixture". https://arxiv.org/abs/2205.13462
    """
    if proxy.input_shape != dataset.input_shape:
        message = (
            f"'{proxy.name}' has inputs of shape {proxy.input_shape}, data set '{dataset.name}' of shape"
            f" {dataset.input_shape}; they must be the same"
        )
        raise ConfigError([Problem(("pseudo", "proxy"), message)])
    rows = [proxy_rows(proxy, row, seed, examples, transfer) for row in range(num_rows)]
    means = np.stack([np.asarray(proxy.inputs[r]).mean(0, dtype=np.float64) for r in rows])
    per_channel = (-1, *[1] * (len(proxy.input_shape) - 1))
    offset, scale, own_offset, own_scale = (
        np.reshape(v, per_channel) for v in (proxy.offset, proxy.scale, dataset.offset, dataset.scale)
    )
    inputs = (means - offset) * scale / own_scale + own_offset
    return inputs.astype(np.float32), _uniform(num_rows, dataset)


def proxy_rows(proxy: Dataset, row: int, seed: int, examples: int, transfer: int = 0) -> NDArray[np.int64]:
    """Return the proxy's rows [examples] that one row of pseudo data is the mean of."""
    return stream(seed, f"pseudo/proxy/{row}", transfer).integers(0, proxy.num_train_rows, examples)


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
    means = np.stack([federation.inputs(r).mean(0, dtype=np.float64) for r in rows])
    return means.astype(np.float32), _uniform(len(rows), federation.dataset)


def _uniform(num_rows: int, dataset: Dataset) -> NDArray[np.float32]:
    return np.full((num_rows, dataset.num_classes), 1 / dataset.num_classes, np.float32)
