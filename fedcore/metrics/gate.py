"""The gate of promotion: does a challenger stand up to the champion on the same validation examples?

Pure functions of accuracies per seed and client. Each client is one observation, the mean of its paired differences
over seeds, as in `fedcore.metrics.comparison.paired_client_difference`; here clients may also count by their examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedcore.config import Gate
from fedcore.metrics.comparison import TOLERANCE, mean, student_quantile, wins_losses_ties

Array = npt.NDArray[np.float64]
Verdict = Literal["promote", "keep"]


@dataclass(frozen=True)
class Standing:
    """Validation accuracies of a version and of the other seeds of its method.

    Attributes
    ----------
    seeds : S seeds
    accuracies : array [S, M]
        By seed and client, 0 to 1; NaN where a client has no validation example.
    """

    seeds: tuple[int, ...]
    accuracies: Array

    def of(self, seeds: Sequence[int]) -> Array:
        """Return the rows of some seeds, in their order."""
        return self.accuracies[[self.seeds.index(seed) for seed in seeds]]


@dataclass(frozen=True)
class Evidence:
    """What a decision rests on; accuracies from 0 to 1, differences are challenger minus champion.

    ``low`` and ``high`` are None with a single client: nothing is known about the spread then.
    """

    metric: str
    confidence: float
    seeds: tuple[int, ...]
    num_clients: int
    num_examples: int
    challenger: float
    champion: float
    difference: float
    low: float | None
    high: float | None
    wins: int
    losses: int
    ties: int
    by_seed: tuple[float, ...]
    worst_decile_challenger: float
    worst_decile_champion: float

    @property
    def worst_decile_difference(self) -> float:
        """How far the worst decile of clients rose."""
        return self.worst_decile_challenger - self.worst_decile_champion


@dataclass(frozen=True)
class Decision:
    """Promote or keep, the reasons in words (those that speak against come first), and the evidence if there is any."""

    verdict: Verdict
    reasons: tuple[str, ...]
    evidence: Evidence | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        evidence = None
        if self.evidence is not None:
            difference = self.evidence.worst_decile_difference
            evidence = {**asdict(self.evidence), "worst_decile_difference": difference}
        return {"verdict": self.verdict, "reasons": list(self.reasons), "evidence": evidence}


def without_champion(gate: Gate) -> Decision:
    """Return what a challenger becomes where there is no champion."""
    return Decision(gate.no_champion, (f"there is no champion, and gate.no_champion is '{gate.no_champion}'",))


def judge(gate: Gate, view: str, challenger: Standing, champion: Standing, examples: npt.NDArray[np.int64]) -> Decision:
    """Decide between two versions.

    Parameters
    ----------
    view : {"global", "personal"}
        Chooses the metric.
    challenger, champion : Standing
        Over the same clients; only seeds that both have are used.
    examples : array [M] int
        Validation examples of each client; a client without any does not count.

    Raises
    ------
    ValueError
        When the shapes differ, or a client with examples has an accuracy that is not finite.
    """
    shapes = {challenger.accuracies.shape[1:], champion.accuracies.shape[1:], examples.shape}
    if len(shapes) != 1:
        raise ValueError(f"challenger, champion and examples must be about the same clients, got shapes {shapes}")
    seeds = tuple(sorted(set(challenger.seeds) & set(champion.seeds)))
    if len(seeds) < gate.min_seeds:
        return Decision("keep", (_too_few_seeds(gate, seeds, challenger, champion),))
    counted = examples > 0
    if not counted.any():
        return Decision("keep", ("no client has a validation example; set partition.validation above 0",))
    evidence = gather(
        gate, view, seeds, challenger.of(seeds)[:, counted], champion.of(seeds)[:, counted], examples[counted]
    )
    failed: list[str] = []
    passed: list[str] = []
    for holds, reason in _tests(gate, evidence):
        (passed if holds else failed).append(reason)
    return Decision("keep" if failed else "promote", (*failed, *passed), evidence)


def gather(
    gate: Gate, view: str, seeds: tuple[int, ...], new: Array, old: Array, examples: npt.NDArray[np.int64]
) -> Evidence:
    """Return the evidence from accuracies [S, M] of both and examples [M], all >= 1.

    The mean weighs clients by `examples` (metric ``accuracy``: every example counts the same) or alike
    (``client_mean``). Its interval is Student's t with M - 1 degrees of freedom around the weighted mean d of the
    clients' differences d_c, with the jackknife's variance: leaving out client c moves the mean by
    w_c * (d_c - d) / (1 - w_c) for weights w_c that sum to 1, and the variance is (M - 1) / M times the sum of these
    squares; with equal weights that is the usual s**2 / M. Of very unequal clients the interval is still too narrow
    (docs/registry.md has figures).
    """
    if not (np.isfinite(new).all() and np.isfinite(old).all()):
        raise ValueError("a client with validation examples has an accuracy that is not finite")
    metric = gate.global_metric if view == "global" else gate.personal_metric
    counts = examples.astype(np.float64) if metric == "accuracy" else np.ones(len(examples))
    weights = counts / counts.sum()
    by_client = [mean(column) for column in (new - old).T.tolist()]
    difference = _weighted(weights, by_client)
    low = high = None
    if len(by_client) > 1:
        moves = [w * (d - difference) / (1 - w) for w, d in zip(weights.tolist(), by_client, strict=True)]
        error = math.sqrt(math.fsum(move**2 for move in moves) * (len(by_client) - 1) / len(by_client))
        half = student_quantile((1 + gate.confidence) / 2, len(by_client) - 1) * error
        low, high = difference - half, difference + half
    wins, losses, ties = wins_losses_ties(by_client)
    return Evidence(
        metric=metric,
        confidence=gate.confidence,
        seeds=seeds,
        num_clients=len(by_client),
        num_examples=int(examples.sum()),
        challenger=mean([_weighted(weights, row) for row in new.tolist()]),
        champion=mean([_weighted(weights, row) for row in old.tolist()]),
        difference=difference,
        low=low,
        high=high,
        wins=wins,
        losses=losses,
        ties=ties,
        by_seed=tuple(_weighted(weights, row) for row in (new - old).tolist()),
        worst_decile_challenger=mean([worst_decile(row) for row in new]),
        worst_decile_champion=mean([worst_decile(row) for row in old]),
    )


def worst_decile(accuracies: Array) -> float:
    """Return the mean over the ceil(m / 10) lowest of m accuracies."""
    ordered = np.sort(accuracies)
    return mean(ordered[: -(-len(ordered) // 10)].tolist())


def _weighted(weights: Array, values: Sequence[float]) -> float:
    return math.fsum(w * v for w, v in zip(weights.tolist(), values, strict=True))


def _tests(gate: Gate, found: Evidence) -> list[tuple[bool, str]]:
    """Return what must hold, each with its reason in words."""
    rose, name = found.worst_decile_difference, f"{found.metric} {_points(found.difference)} points"
    tests = [
        (
            _reaches(found.difference, gate.least_difference),
            f"{name}, at least {_points(gate.least_difference)} needed",
        ),
        (
            _reaches(rose, -gate.worst_decile_margin),
            f"worst decile {_points(rose)} points, at least {_points(-gate.worst_decile_margin)} needed",
        ),
    ]
    if found.low is None or found.high is None:
        return [(False, "one client with validation examples: no interval can be given"), *tests]
    interval = f"{found.confidence:.0%} interval {_points(found.low)} to {_points(found.high)} points"
    lower = (
        _reaches(found.low, gate.lowest_difference),
        f"{interval}, lower end at least {_points(gate.lowest_difference)} needed",
    )
    return [tests[0], lower, tests[1]]


def _reaches(value: float, bound: float) -> bool:
    return value >= bound - TOLERANCE


def _too_few_seeds(gate: Gate, seeds: Sequence[int], challenger: Standing, champion: Standing) -> str:
    return (
        f"{len(seeds)} seeds in common, gate.min_seeds is {gate.min_seeds}"
        f" (challenger {list(challenger.seeds)}, champion {list(champion.seeds)})"
    )


def _points(value: float) -> str:
    """Return a difference of accuracies in percentage points."""
    return f"{100 * value:+.2f}"
