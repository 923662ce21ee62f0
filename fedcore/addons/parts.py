"""Terms that several add-ons share."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad
from torch.nn.functional import normalize

from fedcore.models.net import Net
from fedcore.types import Params, cross_entropy


def supcon(features: Tensor, labels: Tensor, mask: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss [] of features: rows of the same label attract, all others repel.

    With s_ia the cosine of rows i and a over `temperature`, the loss of anchor i is the mean over its positives p
    (other rows of its label) of ``-s_ip + log sum_{a != i} exp(s_ia)``; 0 without positives. The mean is over all
    anchors, those without positives included.

    Parameters
    ----------
    features : [R, D]
        Any scale: rows are normalised.
    labels : [R] int64
    mask : [R] float
        1 for a row that counts, 0 for padding, which is neither anchor nor positive nor among the others.
    temperature : float, > 0
    """
    z = normalize(features, dim=-1)
    similarity = z @ z.T / temperature
    others = (mask > 0) & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positives = others & (labels[:, None] == labels)
    count = positives.sum(-1)
    alone = count == 0
    # An anchor without positives sums over every row, so that what is thrown away below is never infinite.
    normaliser = torch.logsumexp(similarity.masked_fill(~(others | alone[:, None]), -torch.inf), -1)
    attraction = (similarity * positives).sum(-1) / count.clamp(min=1)
    losses = torch.where(alone, 0.0, normaliser - attraction)
    return (losses * mask).sum() / mask.sum()


def trained_on(net: Net, params: Params, inputs: Tensor, labels: Tensor, draws: NDArray[np.int64], lr: float) -> Params:
    """Return the model's parameters after plain SGD on the cross-entropy of data that the server has.

    Parameters
    ----------
    inputs, labels : [M, ...], [M] int64
    draws : [steps, batch]
        Rows of every step.
    """

    def loss(leaves: Params, x: Tensor, y: Tensor) -> Tensor:
        bound = net.bind(net.initial_buffers, training=True)
        return cross_entropy(bound.classify(leaves, bound.features(leaves, x)), y).mean()

    for drawn in draws:
        rows = labels.new_tensor(drawn)
        slopes = grad(loss)(params, inputs[rows], labels[rows])
        params = {n: p - lr * slopes[n] for n, p in params.items()}
    return params
