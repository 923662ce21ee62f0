"""Statistics of a comparison: means and intervals over seeds, paired differences, rounds to a target.

Everything here is a pure function of plain numbers. Sums are exact (`math.fsum`), so the same runs give the same
bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
TOLERANCE = 1e-9  # of comparing differences of accuracies: those that cancel may leave a rest of rounding
# Above this the finite series gets long while two correction terms to the normal quantile are exact to 1e-12.
_SERIES_LIMIT = 10_000


@dataclass(frozen=True)
class Summary:
    """Mean of repeated measurements with its two-sided 95 % interval.

    ``std`` (sample standard deviation), ``low`` and ``high`` are None with a single measurement: nothing is known
    about the spread then, and a report says "one seed" instead of showing an interval.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    count: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class ClientDifference:
    """Paired difference over clients; ``wins``, ``losses`` and ``ties`` count clients, summing to ``summary.count``.

    A tie is a difference of at most `TOLERANCE`.
    """

    summary: Summary
    wins: int
    losses: int
    ties: int

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the summary's fields and the counts as one plain dictionary."""
        return {**self.summary.as_dict(), "wins": self.wins, "losses": self.losses, "ties": self.ties}


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution.

    The distribution function has a finite trigonometric series for whole degrees of freedom (Abramowitz and
    Stegun 26.7.3 and 26.7.4, with t = sqrt(degrees) * tan(theta)); it is inverted by bisection over theta, which
    lives in a bounded interval. No table, no scipy; right to about 1e-12.

    Parameters
    ----------
    probability : float, strictly between 0 and 1
        For example 0.975 for a two-sided 95 % interval.
    degrees : int, >= 1
        Degrees of freedom.

    Raises
    ------
    ValueError
        When an argument is out of range.

    Examples
    --------
    >>> round(student_quantile(0.975, 2), 4)
    4.3027
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie strictly between 0 and 1, got {probability}")
    if degrees < 1:
        raise ValueError(f"degrees of freedom must be >= 1, got {degrees}")
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    if degrees > _SERIES_LIMIT:
        z = NormalDist().inv_cdf(probability)
        return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    inside = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if _inside(middle, degrees) < inside:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _inside(theta: float, degrees: int) -> float:
    """Return P(|T| <= sqrt(degrees) * tan(theta))."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    if degrees == 1:
        return 2 * theta / math.pi
    term = cosine if odd else 1.0
    total = term
    for k in range(2 + odd, degrees - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total


def mean(values: Sequence[float]) -> float:
    """Return the exactly rounded arithmetic mean; raises ValueError when `values` is empty."""
    if not values:
        raise ValueError("the mean of no values does not exist")
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1 in the denominator), None with fewer than two values."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def summarise(values: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """Return mean, sample standard deviation and t interval of independent measurements, one per seed.

    Raises
    ------
    ValueError
        When `values` is empty or holds NaN or infinity.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"cannot summarise values that are not finite: {list(values)}")
    centre, std = mean(values), sample_std(values)
    if std is None:
        return Summary(centre, None, None, None, len(values))
    half = student_quantile((1 + confidence) / 2, len(values) - 1) * std / math.sqrt(len(values))
    return Summary(centre, std, centre - half, centre + half, len(values))


def paired_difference(method: Mapping[int, float], baseline: Mapping[int, float]) -> Summary | None:
    """Return the difference of a method to the baseline, paired by seed.

    Both methods start a seed from the same weights and cohorts, so the seed's luck cancels in the difference and
    the interval is narrower than the two methods' own intervals suggest.

    Parameters
    ----------
    method, baseline : mapping from seed to result
        Seeds that only one of them has are left out.

    Returns
    -------
    Summary or None
        Of ``method - baseline`` over the common seeds; None when there is none.
    """
    seeds = sorted(method.keys() & baseline.keys())
    return summarise([method[seed] - baseline[seed] for seed in seeds]) if seeds else None


def paired_client_difference(
    method: npt.NDArray[np.float64], baseline: npt.NDArray[np.float64]
) -> ClientDifference | None:
    """Return the difference of a method to the baseline, paired by client and seed, clustered by client.

    A client keeps its data across seeds, so its seeds are no independent evidence: (client, seed) pairs taken as
    independent would make the interval too narrow. Each client is therefore one observation, the mean of its
    paired differences over seeds, and the interval is Student's t over clients. A t interval rather than a
    percentile bootstrap over clients: with the few tens of clients usual here the bootstrap is too narrow, and it
    would need random numbers. Clients count equally, whatever their size, so the mean is the difference of
    ``client_mean``. The interval speaks about other clients like these under the same seeds; what another seed
    would change is the question `paired_difference` answers.

    Parameters
    ----------
    method, baseline : array [S, M], seeds by clients
        NaN where a client has no result; such a pair is left out, and so is a client with no pair at all.

    Returns
    -------
    ClientDifference or None
        None when no client has a pair.

    Raises
    ------
    ValueError
        When the shapes differ or are not two-dimensional.
    """
    if method.shape != baseline.shape or method.ndim != 2:
        raise ValueError(f"expected two arrays [seeds, clients] of one shape, got {method.shape} and {baseline.shape}")
    columns = (method - baseline).T
    means = [mean(column[np.isfinite(column)].tolist()) for column in columns if np.isfinite(column).any()]
    if not means:
        return None
    return ClientDifference(summarise(means), *wins_losses_ties(means))


def wins_losses_ties(differences: Sequence[float]) -> tuple[int, int, int]:
    """Return how many differences are above 0, below, and neither by more than `TOLERANCE`."""
    wins = sum(value > TOLERANCE for value in differences)
    losses = sum(value < -TOLERANCE for value in differences)
    return wins, losses, len(differences) - wins - losses


def rounds_to_target(rounds: Sequence[int], accuracies: Sequence[float], target: float) -> int | None:
    """Return the first evaluated round (1-based) whose accuracy is at least `target`; None if there is none.

    No smoothing. Only evaluated rounds can be returned, so the result is a multiple of the evaluation period.
    """
    for number, accuracy in zip(rounds, accuracies, strict=True):
        if accuracy >= target:
            return number
    return None


def speed_up(baseline_rounds: float | None, rounds: float | None) -> float | None:
    """Return ``baseline_rounds / rounds`` to one decimal; None when either never reached the target.

    Above 1 the method needs fewer rounds than the baseline.
    """
    return None if baseline_rounds is None or rounds is None else round(baseline_rounds / rounds, 1)


def top_mean(values: Sequence[float], count: int = 5) -> float:
    """Return the mean of the `count` largest values (of all, when there are fewer), not necessarily consecutive."""
    return mean(sorted(values)[-count:])


def band(curves: Sequence[Sequence[float]]) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Return mean, mean - std and mean + std per round over seeds.

    One standard deviation, not an interval: with few seeds a t interval per round hides every curve but one.

    Parameters
    ----------
    curves : S sequences of R values
        One per seed.

    Returns
    -------
    mean, low, high : lists of R values
        None at a round where any seed is not finite; with one seed the band has no width.
    """
    middle: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for values in zip(*curves, strict=True):
        if all(math.isfinite(value) for value in values):
            centre, std = mean(values), sample_std(values) or 0.0
            middle.append(centre)
            low.append(centre - std)
            high.append(centre + std)
        else:
            middle.append(None)
            low.append(None)
            high.append(None)
    return middle, low, high
