"""How much features or scores tell of protected attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from fedcore.seeds import module_stream, stream

_CHUNK = 4096  # rows per forward pass


@dataclass(frozen=True)
class Budget:
    """How an adversary is trained from scratch.

    Attributes
    ----------
    hidden : tuple of int
        Widths of its layers, with rectifiers.
    steps, batch_size, lr
        Of Adam; batches are drawn with replacement.
    """

    hidden: tuple[int, ...] = (32, 32, 32)
    steps: int = 300
    batch_size: int = 128
    lr: float = 3e-3


_BUDGET = Budget()


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the ROC curve: how often a positive scores above a negative, a tie counting half.

    Parameters
    ----------
    scores : [n]
    labels : [n]
        0 or 1.

    Returns
    -------
    float
        0 to 1; 0.5 is chance, which constant scores are. NaN without positives, without negatives, or where a score
        is NaN.
    """
    values, positive = np.asarray(scores), np.asarray(labels) == 1
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives or np.isnan(values).any():
        return float("nan")
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    midranks = np.cumsum(sizes) - (sizes - 1) / 2
    above = midranks[group][positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def macro_auc(scores: ArrayLike, attributes: ArrayLike) -> float:
    """Return the mean `auc` over the attributes that occur with both values; NaN if none does.

    Parameters
    ----------
    scores, attributes : [n, P]
    """
    pairs = zip(np.asarray(scores).T, np.asarray(attributes).T, strict=True)
    areas = [auc(score, attribute) for score, attribute in pairs if len(np.unique(attribute)) == 2]
    return float(np.mean(areas)) if areas else float("nan")


def leakage(
    features_train: NDArray[np.floating],
    attributes_train: ArrayLike,
    features_test: NDArray[np.floating],
    attributes_test: ArrayLike,
    seed: int,
    budget: Budget = _BUDGET,
) -> float:
    """Return the `macro_auc`, on the test rows, of an adversary trained from scratch on frozen features.

    An adversary that the features were trained against may have lost to them and still leave the attributes for a
    fresh one to read; this is the figure to report.

    Parameters
    ----------
    features_train, features_test : [n, D], [m, D]
        Standardised here by the train rows.
    attributes_train, attributes_test : [n, P], [m, P]
        0 or 1.
    seed : int, >= 0
        Of the adversary's initial values and batches.
    budget : Budget

    Raises
    ------
    ValueError
        If there is no train row, or rows, features or attributes do not go together.
    """
    scores = retrained_scores(features_train, attributes_train, features_test, seed, budget)
    return macro_auc(scores, attributes_test)


def retrained_scores(
    features_train: NDArray[np.floating],
    attributes_train: ArrayLike,
    features_test: NDArray[np.floating],
    seed: int,
    budget: Budget = _BUDGET,
) -> NDArray[np.float32]:
    """Return the logits [m, P] of the adversary of `leakage` on the test rows; see there."""
    frozen = Frozen(np.asarray(features_train), np.asarray(attributes_train), np.asarray(features_test))
    return scores_side_by_side([frozen], seed, budget)[0]


class Frozen(NamedTuple):
    """What one adversary of `leakage` is trained and tested on; see there."""

    features_train: NDArray[np.floating]
    attributes_train: NDArray[np.generic]
    features_test: NDArray[np.floating]


def scores_side_by_side(tasks: Sequence[Frozen], seed: int, budget: Budget = _BUDGET) -> list[NDArray[np.float32]]:
    """Return what `retrained_scores` does for several adversaries, each of which sees its own features alone.

    They take their steps together, as products of stacks of matrices: a step of one is too small to keep a core
    busy. D and P are the same for all.
    """
    x, y, z = zip(*(_standardised(task) for task in tasks), strict=True)
    with module_stream(seed, "leakage"):
        adversary = _adversary(x[0].shape[1], budget.hidden, y[0].shape[1])
    layers = [module for module in adversary if isinstance(module, nn.Linear)]
    weights = [_stacked(layer.weight.T, len(tasks)) for layer in layers]
    biases = [_stacked(layer.bias[None], len(tasks)) for layer in layers]
    optimiser = torch.optim.Adam([*weights, *biases], budget.lr)
    drawn, first = [], 0
    for own in x:
        rows = stream(seed, "leakage/batches").integers(0, len(own), (budget.steps, budget.batch_size))
        drawn.append(torch.from_numpy(first + rows))
        first += len(own)
    features, attributes = torch.cat(x), torch.cat(y)
    for rows in torch.stack(drawn, 1):  # [adversaries, batch_size]
        optimiser.zero_grad()
        logits = _logits(features[rows], weights, biases)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, attributes[rows], reduction="none")
        torch.autograd.backward(loss.mean((1, 2)).sum())
        optimiser.step()
    scores = []
    with torch.no_grad():
        for k, own in enumerate(z):
            own_weights, own_biases = ([t[k : k + 1] for t in tensors] for tensors in (weights, biases))
            parts = [_logits(part[None], own_weights, own_biases)[0] for part in torch.split(own, _CHUNK)]
            scores.append(torch.cat(parts).numpy())
    return scores


def _standardised(task: Frozen) -> tuple[Tensor, Tensor, Tensor]:
    train, attributes, test = task
    if not len(train) or len(train) != len(attributes) or train.shape[1:] != test.shape[1:]:
        raise ValueError(
            "features and attributes must have as many rows, at least one, and train and test as many features:"
            f" got {train.shape}, {attributes.shape} and {test.shape}"
        )
    center, spread = train.mean(0), train.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    x, z = (torch.from_numpy(((rows - center) / spread).astype(np.float32)) for rows in (train, test))
    return x, torch.from_numpy(attributes.astype(np.float32)), z


def _stacked(initial: Tensor, times: int) -> Tensor:
    return initial.detach().expand(times, -1, -1).contiguous().requires_grad_()


def _logits(h: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Return the logits [A, m, P] of features [A, m, D], each by its own adversary of A."""
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        h = torch.baddbmm(bias, h, weight).relu()
    return torch.baddbmm(biases[-1], h, weights[-1])


def _adversary(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
