"""Synthetic(alpha, beta) of the FedProx paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedcore import seeds
from fedcore.config import SyntheticData
from fedcore.data.dataset import Dataset
from fedcore.data.rows import Rows
from fedcore.data.sources.progress import OnProgress, Progress

FEATURES = 60
CLASSES = 10


# Clients that lie in memory together when they are written to a file.
_BLOCK = 1_000
_DEVIATION = np.arange(1, FEATURES + 1) ** -0.6  # the covariance is diag(j**-1.2)


def read(config: SyntheticData, on_progress: OnProgress | None = None, path: Path | None = None) -> Dataset:
    """Draw Synthetic(alpha, beta): each client labels its own inputs with its own linear model.

    Differs from the original code in one thing: a client's draws depend on its id alone, so more clients leave the
    first ones as they are. The original's 90/10 split is left to the partition. With `examples_per_client` clients have
    the first so many of the examples that they would have had.

    As in the original, `alpha` moves all logits of a client by the same amount, so it does not change a label:
    clients differ because each draws its own weights, and in their features by `beta`.
    """
    labels, sizes = [], np.empty(config.clients, np.int64)
    with Rows(path) as rows:
        for start in range(0, config.clients, _BLOCK):
            stop = min(start + _BLOCK, config.clients)
            drawn = [_client(config, client) for client in range(start, stop)]
            rows.append(np.concatenate([inputs for inputs, _ in drawn]))
            labels.append(np.concatenate([found for _, found in drawn]))
            sizes[start:stop] = [len(found) for _, found in drawn]
            if on_progress is not None:
                on_progress(Progress("draw", "clients", stop, config.clients))
    clients = np.repeat(np.arange(config.clients, dtype=np.int32), sizes)
    names = tuple(map(str, range(CLASSES)))
    return Dataset("synthetic", rows.array(), np.concatenate(labels), names, (0.0,), (1.0,), len(clients), clients)


def _client(config: SyntheticData, client: int) -> tuple[np.ndarray, np.ndarray]:
    random = seeds.stream(config.seed, "data/synthetic", client=client)
    drawn = int(random.lognormal(4.0, 2.0)) + 50
    num_examples = drawn if config.examples_per_client is None else config.examples_per_client
    model_mean = random.normal(0.0, config.alpha)
    input_mean_mean = random.normal(0.0, config.beta)
    weight = random.normal(model_mean, 1.0, (FEATURES, CLASSES))
    bias = random.normal(model_mean, 1.0, CLASSES)
    input_mean = random.normal(input_mean_mean, 1.0, FEATURES)
    inputs = (input_mean + _DEVIATION * random.standard_normal((num_examples, FEATURES))).astype(np.float32)
    # Labels follow from the stored, rounded inputs, so they can be checked against them exactly.
    labels = (inputs.astype(np.float64) @ weight + bias).argmax(axis=1).astype(np.int64)
    return inputs, labels
