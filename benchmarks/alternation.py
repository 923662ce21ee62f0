"""Rounds of the reference loop between the rounds of the engine, so that a machine's moods hit both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from benchmarks import processes
from benchmarks.engine import Spent, TimedExecutor
from benchmarks.reference import Reference
from fedcore.engine.rounds import Training


@dataclass
class Measured:
    """What an alternating run found; every list has one entry per round, the warm-up round first.

    Attributes
    ----------
    ours, ours_cpu : lists of float, seconds
        From the end of one reference round to the start of the next; CPU time is that of all processes.
    reference, reference_cpu : lists of float, seconds
        One entry more, as the reference loop goes first and last.
    parts : list of dict, seconds
        Of our rounds: what the engine's timing says, and the jobs and steps inside the executor.
    difference : list of float
        Largest absolute difference of the two global models.
    accuracy, reference_accuracy : lists of float, 0 to 1
        On all test rows.
    setup : float, seconds
        Of rounds before the first.
    """

    ours: list[float] = field(default_factory=list)
    ours_cpu: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    reference_cpu: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    difference: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    reference_accuracy: list[float] = field(default_factory=list)
    setup: float = 0.0


class Alternation:
    """A tracker that runs a round of the reference loop whenever the engine has finished one of its own."""

    def __init__(self, training: Training, reference: Reference):
        self.measured = Measured()
        self._training, self._reference = training, reference
        self._next = 0
        self._began = self._began_cpu = 0.0

    def start(self, rounds: int, resumed_at: int) -> None:
        """Let the reference loop go first."""
        self._run_reference()
        self._resume()

    def log(self, round: int, metrics: Mapping[str, float], seconds: float) -> None:
        """Note the engine's round, then run one of the reference loop."""
        ended, ended_cpu = time.perf_counter(), processes.cpu_seconds()
        found = self.measured
        spent = self._executor.take()
        if round < 1:
            found.setup += ended - self._began
            self._resume()
            return
        found.ours.append(ended - self._began)
        found.ours_cpu.append(ended_cpu - self._began_cpu)
        found.parts.append(self._parts(spent))
        found.accuracy.append(metrics.get("global/test/accuracy", float("nan")))
        found.difference.append(self._difference())
        self._run_reference()
        self._resume()

    def end(self, status: Literal["finished", "failed"]) -> None:
        """Do nothing."""

    @property
    def _executor(self) -> TimedExecutor:
        executor = self._training.executor
        assert isinstance(executor, TimedExecutor)
        return executor

    def _parts(self, spent: Spent) -> dict[str, float]:
        timing = self._training.progress.timing[-1]
        parts = {name.removesuffix("_seconds"): value for name, value in timing.items() if name.endswith("_seconds")}
        adapts = bool(self._training.composition.method.adapt_phases(self._training.train))
        if not adapts:  # else the executor also worked for the evaluation
            parts["jobs"], parts["steps"] = spent.jobs, spent.steps
            parts["aggregate"] = parts["train"] - spent.jobs - spent.steps
        return parts

    def _difference(self) -> float:
        server = self._training.progress.server
        mine = {**server.params, **server.buffers}
        pairs = [(mine[name], tensor) for name, tensor in self._reference.weights.items() if name in mine]
        return max(
            (float((a.cpu() - b.cpu()).abs().max()) for a, b in pairs if a.shape == b.shape), default=float("nan")
        )

    def _run_reference(self) -> None:
        self._reference.prepare(self._next)
        began = processes.cpu_seconds()
        result = self._reference.round()
        self.measured.reference.append(result.seconds)
        self.measured.reference_cpu.append(processes.cpu_seconds() - began)
        self.measured.reference_accuracy.append(result.accuracy)
        self._next += 1

    def _resume(self) -> None:
        self._began_cpu = processes.cpu_seconds()
        self._began = time.perf_counter()


def alternate(training: Training, reference: Reference) -> Measured:
    """Run a training to its end, the reference loop between its rounds."""
    tracker = Alternation(training, reference)
    training.run(tracker)
    return tracker.measured


def ratios(ours: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Return each of our rounds over the mean of the reference rounds just before and after it; one more of those."""
    neighbours = itertools.pairwise(reference)
    return [mine / ((before + after) / 2) for mine, (before, after) in zip(ours, neighbours, strict=True)]


def summary(measured: Measured) -> dict[str, Any]:
    """Return medians over the timed rounds: all but the first."""
    ours, reference = measured.ours[1:], measured.reference[1:]
    by_round = ratios(ours, reference)
    names = measured.parts[-1]
    return {
        "seconds": median(ours),
        "seconds_range": [min(ours), max(ours)],
        "reference_seconds": median(reference),
        "reference_range": [min(reference), max(reference)],
        "ratio": median(ours) / median(reference),
        "ratio_range": [min(by_round), max(by_round)],
        "cpu_seconds": median(measured.ours_cpu[1:]),
        "reference_cpu_seconds": median(measured.reference_cpu[1:]),
        "cpu_ratio": median(ratios(measured.ours_cpu[1:], measured.reference_cpu[1:])),
        "first_round": measured.ours[0],
        "reference_first_round": measured.reference[0],
        "setup": measured.setup,
        "parts": {name: median(parts[name] for parts in measured.parts[1:]) for name in names},
        "difference": measured.difference[0],
        "last_difference": measured.difference[-1],
        "accuracy": measured.accuracy,
        "reference_accuracy": measured.reference_accuracy[: len(measured.accuracy)],
    }
