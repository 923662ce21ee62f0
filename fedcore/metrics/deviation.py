"""What label skew does to a client's model: deviation bounds and recall by class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

_SMALLEST = 1e-12  # up to this a denominator says nothing


class ClassGroups(NamedTuple):
    """Classes of one client, ascending; every class is in one group."""

    majority: tuple[int, ...]
    minority: tuple[int, ...]
    missing: tuple[int, ...]


def classes_by_count(counts: ArrayLike, factor: float = 2.0) -> ClassGroups:
    """Return which classes are majority, minority and missing on a client with these counts [Y] of train examples.

    Missing have no example, majority at least `factor` (> 0) times the mean count of those that have, minority are the
    rest. The threshold is ours, the paper gives none. Of two classes with examples none has twice their mean.
    """
    number = np.asarray(counts)
    present = number > 0
    threshold = factor * number[present].mean() if present.any() else np.inf
    majority = present & (number >= threshold)
    groups = (majority, present & ~majority, ~present)
    return ClassGroups(*(tuple(np.flatnonzero(group).tolist()) for group in groups))


def deviation_bound(
    features: ArrayLike, probabilities: ArrayLike, labels: ArrayLike, majority: int, minority: int
) -> float:
    """Return FedLC's deviation bound D_jr of majority class j and minority class r on one client.

    D_jr = (1 - p_r^(r)) ||h^(r)||^2 / (p_r^(j) <h^(r), h^(j)>)

    h^(c) and p_y^(c) are the means of the features and of the probability of class y over the client's examples of
    class c. Where n_j / n_r is far above a positive D_jr, local training pushes the head's row of r away from r.

    Parameters
    ----------
    features : [n, D]
        Inputs of the last layer, of the client's train examples.
    probabilities : [n, Y]
        Softmax of the logits; rows sum to one.
    labels : [n]
    majority, minority : int
        j and r.

    Returns
    -------
    float
        >= 0, whatever the features' scale. NaN where a class has no example, p_r^(j) is at most 1e-12, or the angle
        between the mean features has a cosine of at most 1e-12.

    Raises
    ------
    ValueError
        If rows do not go together, or a class is none of the Y.

    Source      Zhang et al., ICML 2022, Definition 3. https://arxiv.org/abs/2209.00189
    """
    return _bound(np.ones(np.shape(probabilities)[-1]), features, probabilities, labels, majority, minority)


def calibrated_deviation_bound(
    features: ArrayLike,
    logits: ArrayLike,
    labels: ArrayLike,
    counts: ArrayLike,
    majority: int,
    minority: int,
    tau: float = 1.0,
) -> float:
    """Return the deviation bound D_jr after FedLC's calibration; parameters and guards as of `deviation_bound`.

    D_jr = sum_{y != r} Delta(r, y) p_y^(r) ||h^(r)||^2 / (p_r^(j) <h^(r), h^(j)>)
    Delta(r, y) = tau (n_r^(-1/4) - n_y^(-1/4))

    p is the softmax of the logits [n, Y] less tau n_y^(-1/4), where n_y are the client's `counts` [Y] of train examples
    and tau >= 0. Missing classes are neither in the softmax nor in the sum. The bound is negative where r is not the
    rarest class and errs towards rarer ones, and 0 at tau 0: it does not contain Definition 3.

    Differs     from the paper, which prints p without the margin of its numerator, so that it is no softmax.
    Source      Zhang et al., ICML 2022, Theorem 3. https://arxiv.org/abs/2209.00189
    """
    f, number = np.asarray(logits, np.float64), np.asarray(counts, np.float64)
    if f.shape[1:] != number.shape:
        raise ValueError(f"expected a logit for each of {number.size} counted classes, got logits of shape {f.shape}")
    seen = number > 0
    margins = tau * np.where(seen, number, 1.0) ** -0.25
    probabilities = torch.softmax(torch.from_numpy(np.where(seen, f - margins, -np.inf)), 1).numpy()
    weights = np.where(seen, margins[minority] - margins, 0.0)
    return _bound(weights, features, probabilities, labels, majority, minority)


def _bound(
    weights: NDArray[np.float64],
    features: ArrayLike,
    probabilities: ArrayLike,
    labels: ArrayLike,
    majority: int,
    minority: int,
) -> float:
    """Return the sum over y != r of w_y p_y^(r) ||h^(r)||^2 / (p_r^(j) <h^(r), h^(j)>)."""
    h, p, y = np.asarray(features), np.asarray(probabilities), np.asarray(labels)
    if not len(h) == len(p) == len(y):
        raise ValueError(f"expected as many rows, got {len(h)}, {len(p)} and {len(y)}")
    if not {majority, minority} <= set(range(len(weights))):
        raise ValueError(f"expected classes of 0 to {len(weights) - 1}, got {majority} and {minority}")
    rare, frequent = y == minority, y == majority
    if not rare.any() or not frequent.any():
        return float("nan")
    h_rare, h_frequent = (h[rows].mean(0, dtype=np.float64) for rows in (rare, frequent))
    p_rare, p_frequent = (p[rows].mean(0, dtype=np.float64) for rows in (rare, frequent))
    confused, inner = float(p_frequent[minority]), float(h_rare @ h_frequent)
    # Relative to the lengths: whether there is a bound must not depend on the features' scale.
    lengths = float(np.linalg.norm(h_rare) * np.linalg.norm(h_frequent))
    if not (confused > _SMALLEST and inner > _SMALLEST * lengths):
        return float("nan")
    others = np.arange(len(weights)) != minority
    return float(weights[others] @ p_rare[others]) * float(h_rare @ h_rare) / (confused * inner)


def recall_by_class(predictions: ArrayLike, labels: ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """Return the share [num_classes] of each class's examples that are predicted as it; NaN without examples.

    FedLC's Figure 6 has the mean over clients of their models' recalls on the global test set before aggregation, and
    the aggregated model's after. A prediction beyond the classes is an error; ValueError if a label is.
    """
    predicted, true = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != true.shape:
        raise ValueError(f"expected as many predictions as labels, got {predicted.shape} and {true.shape}")
    outside = true[(true < 0) | (true >= num_classes)]
    if outside.size:
        raise ValueError(f"expected labels of 0 to {num_classes - 1}, got {outside[0]}")
    counts, correct = (np.bincount(true[rows], minlength=num_classes) for rows in (true >= 0, true == predicted))
    recalls: NDArray[np.float64] = np.full(num_classes, np.nan)
    return np.divide(correct, counts, out=recalls, where=counts > 0)
