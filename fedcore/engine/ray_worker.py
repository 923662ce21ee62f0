"""A worker of the ray executor: holds some clients' examples, and trains those clients."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import fedcore
from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.engine.augment import Augmentation
from fedcore.engine.backends import make_compiler
from fedcore.engine.local import Examples, Folded, Folding, LocalTraining, Outcome
from fedcore.engine.serial import SerialExecutor
from fedcore.engine.server import upload
from fedcore.engine.shares import Share
from fedcore.engine.stacked import StackedExecutor
from fedcore.engine.wire import Header, Parcel, Returned, pack_outcome, reduced, to_tensors, unpack
from fedcore.models.net import Net
from fedcore.trees import Tree, accumulate, num_bytes
from fedcore.types import State


@dataclass(frozen=True)
class Setup:
    """What every worker of a training is started with."""

    composition: Composition
    net: Net
    train: Train
    offset: list[float]
    scale: list[float]
    dtype: torch.dtype
    device: str
    inside: str  # serial or stacked
    compiles: bool
    folds: bool  # adds up the uploads of the clients it gets in one call


class Worker:
    """Lives in a process of its own; every call is answered before the next one is looked at."""

    def __init__(self, setup: Setup, share: Share):
        torch.set_num_threads(1)  # sums in one order, as in the serial executor
        self._setup, self._share = setup, share
        self._device = torch.device(setup.device)
        self._net = setup.net.to(self._device, setup.dtype)
        self._compiler = make_compiler(self._device) if setup.compiles else None
        self._header: tuple[int, Tree] = (-1, {})
        self._resources: tuple[int, State] = (-1, {})
        self._executor = self._made()

    def facts(self) -> dict[str, str]:
        """Return the versions there."""
        return self.versions()

    @staticmethod
    def versions() -> dict[str, str]:
        """Return the versions that shape numbers."""
        found = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        return {**found, "fedcore": fedcore.__version__}

    def take(self, share: Share) -> None:
        """Hold the clients of a lost worker as well."""
        self._share = self._share.joined(share)
        self._executor = self._made()

    def train(self, header: Header, resources: tuple[int, Tree], parcels: Sequence[Parcel]) -> list[Returned]:
        """Train some clients; return what they made, in their order."""
        if header.number != self._header[0]:
            self._header = header.number, to_tensors(header.common, self._device)
        if resources[0] != self._resources[0]:
            self._resources = resources[0], to_tensors(resources[1], self._device)
        common = self._header[1]
        jobs = (unpack(parcel, common, *self._share.rows(parcel.client), self._device) for parcel in parcels)
        assignment = replace(header.assignment, server=common["server"], resources=self._resources[1])
        outcomes = self._executor.train(jobs, assignment)
        if self._setup.folds and assignment.folding is not None:
            outcomes = _folded(outcomes, assignment.folding, parcels[-1].client)
        return [pack_outcome(reduced(outcome, assignment)) for outcome in outcomes]

    def _made(self) -> SerialExecutor | StackedExecutor:
        setup, share = self._setup, self._share
        examples = Examples(
            share.inputs, share.labels, setup.offset, setup.scale, self._device, setup.dtype, share.protected
        )
        augmentation = Augmentation(setup.train.augment, examples.black) if setup.train.augment.is_on else None
        training = LocalTraining(setup.composition, self._net, setup.train, augmentation)
        if setup.inside == "stacked":
            return StackedExecutor(training, examples, setup.train.block_size, self._compiler)
        return SerialExecutor(training, examples, 1, self._compiler)


def _folded(outcomes: Iterator[Outcome], folding: Folding, last: int) -> Iterator[Outcome]:
    """Add the uploads up, in their order; the last client's outcome brings the sum."""
    total: Tree | None = None
    for outcome in outcomes:
        sent = upload(outcome, folding.buffers)
        total = accumulate(total, sent, folding.weights[outcome.client])
        folded = Folded(total if outcome.client == last else None, num_bytes(sent))
        kept = {n: b for n, b in outcome.buffers.items() if n not in folding.buffers}
        yield replace(outcome, upload={}, buffers=kept, folded=folded)
