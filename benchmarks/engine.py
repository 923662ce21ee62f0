"""Our engine on a workload, put together as the training step of the pipeline does it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import Workload
from fedcore import models
from fedcore.compose import Composition
from fedcore.compose import build as build_composition
from fedcore.config import MethodBlock, Train, validate_section
from fedcore.data import resources
from fedcore.data.pseudo import rsm
from fedcore.data.virtual import noise
from fedcore.engine.checks import check_training
from fedcore.engine.executors import make_executor, resolve_device
from fedcore.engine.local import Assignment, Examples, Job, Outcome
from fedcore.engine.rounds import Executor, Training
from fedcore.types import State


def composition(method: Mapping[str, Any], label: str = "fedavg") -> Composition:
    """Build one line of ``methods``."""
    return build_composition(label, MethodBlock(**method))


def make_train(workload: Workload, **settings: Any) -> Train:
    """Return the ``train`` section: the workload's, with `settings` over it.

    Raises
    ------
    ConfigError
        One problem per key that does not exist or is out of range.
    """
    section: Train = validate_section(Train, {**workload.train, **settings}, ("train",))  # type: ignore[assignment]
    return section


def make_training(workload: Workload, composed: Composition, train: Train, seed: int = 0) -> Training:
    """Build the training whose rounds are measured; its executor is a `TimedExecutor`."""
    federation, data = workload.federation, workload.federation.dataset
    device = resolve_device(train.device)
    outputs = composed.num_outputs(data.num_classes)
    net = models.build(workload.model_config, data.input_shape, outputs, seed).to(device)
    check_training(workload.name, composed, net, train, federation, frozenset({"virtual", "pseudo"}))
    examples = Examples(federation.inputs(), data.labels, data.offset, data.scale, device, protected=data.protected)
    executor = TimedExecutor(make_executor(composed, net, train, examples, federation))
    held = _resources(workload, composed.needs, device)
    return Training(composed, net, federation, train, seed, executor, examples, held)


def _resources(workload: Workload, needs: frozenset[str], device: torch.device) -> State:
    federation, data = workload.federation, workload.federation.dataset
    held: State = {}
    for name in sorted(needs):
        if name == "virtual" and len(data.input_shape) != 3:
            raise ValueError(f"{workload.name}: virtual data are images, its examples are not")
        with tempfile.TemporaryDirectory() as folder:
            if name == "virtual":
                shape = (data.input_shape[0], data.input_shape[1], data.input_shape[2])
                inputs, targets = noise(shape, data.num_classes, workload.per_class, seed=0)
                resources.save(Path(folder), inputs, targets, {})
            else:
                means, soft = rsm(federation, workload.pseudo_rows, seed=0)
                resources.save(Path(folder), means[None], soft[None], {})
            held[name] = resources.load(Path(folder), data, device)
    return held


@dataclass
class Spent:
    """Seconds of one round inside the executor: making jobs, and training them."""

    jobs: float = 0.0
    steps: float = 0.0


class TimedExecutor:
    """An executor that says where its time went; everything else is the inner one's."""

    def __init__(self, inner: Executor):
        self._inner = inner
        self.name = inner.name
        self.spent = Spent()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def train(self, jobs: Iterator[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        outcomes = iter(self._inner.train(self._made(jobs), assignment))
        while True:
            before, began = self.spent.jobs, time.perf_counter()
            outcome = next(outcomes, None)
            self.spent.steps += time.perf_counter() - began - (self.spent.jobs - before)
            if outcome is None:
                return
            yield outcome

    def _made(self, jobs: Iterator[Job]) -> Iterator[Job]:
        while True:
            began = time.perf_counter()
            job = next(jobs, None)
            self.spent.jobs += time.perf_counter() - began
            if job is None:
                return
            yield job

    def take(self) -> Spent:
        """Return what was spent since the last call."""
        spent, self.spent = self.spent, Spent()
        return spent
