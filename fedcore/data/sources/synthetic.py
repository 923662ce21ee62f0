"""Synthetic(alpha, beta) of the FedProx paper."""

from __future__ import annotations

import numpy as np

from fedcore import seeds
from fedcore.config import SyntheticData
from fedcore.data.dataset import Dataset

FEATURES = 60
CLASSES = 10


def read(config: SyntheticData) -> Dataset:
    """Draw Synthetic(alpha, beta): each client labels its own inputs with its own linear model.

    Differs from the original code in one thing: a client's draws depend on its id alone, so more clients leave the
    first ones as they are. The original's 90/10 split is left to the partition.

    As in the original, `alpha` moves all logits of a client by the same amount, so it does not change a label:
    clients differ because each draws its own weights, and in their features by `beta`.
    """
    drawn = [_client(config, client) for client in range(config.clients)]
    inputs = np.concatenate([inputs for inputs, _ in drawn])
    labels = np.concatenate([labels for _, labels in drawn])
    clients = np.repeat(np.arange(config.clients, dtype=np.int32), [len(labels) for _, labels in drawn])
    names = tuple(map(str, range(CLASSES)))
    return Dataset("synthetic", inputs, labels, names, (0.0,), (1.0,), len(labels), clients)


def _client(config: SyntheticData, client: int) -> tuple[np.ndarray, np.ndarray]:
    random = seeds.stream(config.seed, "data/synthetic", client=client)
    num_examples = int(random.lognormal(4.0, 2.0)) + 50
    model_mean = random.normal(0.0, config.alpha)
    input_mean_mean = random.normal(0.0, config.beta)
    weight = random.normal(model_mean, 1.0, (FEATURES, CLASSES))
    bias = random.normal(model_mean, 1.0, CLASSES)
    input_mean = random.normal(input_mean_mean, 1.0, FEATURES)
    # The covariance is diag(j**-1.2), so the standard deviation is j**-0.6.
    deviation = np.arange(1, FEATURES + 1) ** -0.6
    inputs = (input_mean + deviation * random.standard_normal((num_examples, FEATURES))).astype(np.float32)
    # Labels follow from the stored, rounded inputs, so they can be checked against them exactly.
    labels = (inputs.astype(np.float64) @ weight + bias).argmax(axis=1).astype(np.int64)
    return inputs, labels
