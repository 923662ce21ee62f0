"""How long a description of labels is to someone who has the features: minimum description length (MDL), in nats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedcore.metrics.comparison import Summary, summarise
from fedcore.metrics.probes import Budget, Probes
from fedcore.seeds import stream

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
_SMALLEST = 10  # rows that a learning curve starts from
_BUDGET = Budget()


@dataclass(frozen=True)
class DescriptionLength:
    """Lengths of K descriptions, by the probes' initial values or by ordering, in nats.

    Attributes
    ----------
    lengths : [K]
    uniform : float
        Without features, every class alike; a probe that overfits may need more.
    sizes : tuple of I int
        Rows that the probes know, ascending.
    losses : [I, K]
        Mean per label of the validation rows, or of the next block.
    """

    lengths: NDArray[np.float64]
    uniform: float
    sizes: tuple[int, ...]
    losses: NDArray[np.float64]

    @property
    def bits(self) -> Summary:
        """Mean and spread of the lengths, in bits; raises ValueError where training diverged."""
        return summarise((self.lengths / math.log(2)).tolist())


def riemann(sizes: Sequence[int], losses: Sequence[float]) -> float:
    """Return sum_i (n_i - n_(i-1)) L_i in nats, n_0 = 0, of ascending sizes n_i > 0 and losses L_i in nats."""
    stretches = np.diff([0, *sizes])
    if len(sizes) != len(losses) or not len(sizes) or stretches.min() <= 0:
        raise ValueError(f"expected a loss for each of ascending sizes > 0, got {list(sizes)} and {list(losses)}")
    return math.fsum(stretch * loss for stretch, loss in zip(stretches.tolist(), losses, strict=True))


def mdl_reprieve(
    features: ArrayLike,
    labels: ArrayLike,
    seed: int,
    budget: Budget = _BUDGET,
    probes: int = 5,
    points: int = 10,
    device: torch.device | str = "cpu",
) -> DescriptionLength:
    """Return the area under the learning curve of probes, as the tool that DBE uses takes it; see `riemann`.

    Rows are shuffled once; the last tenth validates, probes train on the first 10 to all of the others, evenly in log.

    Parameters
    ----------
    features : [N, ...]
        Frozen; standardised here by one mean and deviation of all train rows.
    labels : [N]
        0 to Y - 1, the largest occurring.
    seed : int, >= 0
        Of the order, the initial values and the batches.
    probes : int, >= 1
        K, of different initial values at every size.
    points : int, >= 2
        Sizes, unless some round up to the same.

    Raises
    ------
    ValueError
        If there are fewer than 11 rows or not a label for each.

    Source      Whitney et al., 2020, https://arxiv.org/abs/2009.07368; Zhang et al., NeurIPS 2023 (DBE), Table 1.
    """
    x, y = _rows(features, labels, _SMALLEST + 1, device)
    train = len(x) - max(1, len(x) // 10)
    order = stream(seed, "description_length/order").permutation(len(x))
    sizes = _whole(np.geomspace(_SMALLEST, train, points))
    stacked = Probes(x, y, np.tile(order, (probes, 1)), sizes, [train] * len(sizes), seed, budget)
    stacked.train()
    losses = stacked.losses([slice(train, None)] * len(sizes)).cpu().numpy() / (len(x) - train)
    lengths = np.array([riemann(sizes, curve) for curve in losses.T.tolist()])
    return DescriptionLength(lengths, train * math.log(stacked.num_classes), sizes, losses)


def mdl_online(
    features: ArrayLike,
    labels: ArrayLike,
    seed: int,
    budget: Budget = _BUDGET,
    orderings: int = 5,
    fractions: Sequence[float] = FRACTIONS,
    device: torch.device | str = "cpu",
) -> DescriptionLength:
    """Return the length of an online (prequential) code: labels in blocks, each told by a probe of the blocks before.

    The first block costs the uniform code; a later one the cross-entropy of a probe trained from scratch on nine tenths
    of the rows before it, kept as it was when it told the other tenth best, and standardised by these rows alone.

    Parameters
    ----------
    features, labels, seed
        As in `mdl_reprieve`.
    orderings : int, >= 1
        K, of the rows.
    fractions : sequence of float
        Of the N rows, where blocks end, rounded up; the largest is 1.
        Fewer than two blocks or rows are a ValueError.

    Source      Voita and Titov, EMNLP 2020. https://arxiv.org/abs/2003.12298
    """
    x, y = _rows(features, labels, 2, device)
    orders = [stream(seed, "description_length/order", client=k).permutation(len(x)) for k in range(orderings)]
    ends = _whole(len(x) * np.asarray(fractions))
    if len(ends) < 2 or ends[0] < 1 or ends[-1] != len(x):
        raise ValueError(f"expected fractions above 0 to 1 that make at least two blocks, got {list(fractions)}")
    known, fits = ends[:-1], [max(1, n - max(1, n // 10)) for n in ends[:-1]]
    stacked = Probes(x, y, np.stack(orders), fits, known, seed, budget)
    stacked.train([slice(fit, n) for fit, n in zip(fits, known, strict=True)])
    nats = stacked.losses([slice(n, end) for n, end in zip(known, ends[1:], strict=True)]).cpu().numpy()
    label = math.log(stacked.num_classes)
    return DescriptionLength(ends[0] * label + nats.sum(0), len(x) * label, known, nats / np.diff(ends)[:, None])


def _rows(features: ArrayLike, labels: ArrayLike, least: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    z, y = np.asarray(features, np.float32), np.asarray(labels, np.int64)
    if len(z) < least or y.shape != z.shape[:1] or y.min() < 0:
        raise ValueError(f"expected {least} rows or more, a label >= 0 for each, got {z.shape} and {y.shape}")
    return torch.from_numpy(z.reshape(len(z), -1)).to(device), torch.from_numpy(y).to(device)


def _whole(points: NDArray[np.floating]) -> tuple[int, ...]:
    """Round up, but not for an error of the arithmetic, and leave out what repeats."""
    return tuple(np.unique(np.ceil(np.round(points, 6)).astype(int)).tolist())
