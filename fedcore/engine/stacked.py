"""Clients side by side: parameters stacked on a leading axis, the same hooks under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import torch

from fedcore.engine.compiled import Compiler
from fedcore.engine.lane_group import Group
from fedcore.engine.lane_memory import LaneLimit, free_bytes, lane_bytes, release
from fedcore.engine.local import Assignment, Examples, Job, LocalTraining, Outcome
from fedcore.engine.precision import products


class StackedExecutor:
    """Trains clients on lanes that take their steps together; a lane whose client is through gets the next one.

    On a GPU there are no more lanes than its free memory should hold. Where it does not, half as many train the same
    clients again, and the later ones.

    Parameters
    ----------
    lanes : int or None
        Clients that train at a time; None takes as many as keep busy while the longest client trains.
    compiler : Compiler or None
        Makes functions of several steps; None takes the steps as they are.
    """

    def __init__(
        self,
        training: LocalTraining,
        examples: Examples,
        lanes: int | None = None,
        compiler: Compiler | None = None,
    ):
        self.training = training
        self.examples = examples
        self.compiler = compiler
        self.limit = LaneLimit(lanes)
        self._is_estimated = lanes is not None or examples.device.type != "cuda"

    @property
    def name(self) -> str:
        """What the lineage calls it."""
        return "stacked" if self.compiler is None else "stacked, compiled"

    @property
    def remarks(self) -> list[str]:
        """What ran slower than it could, and why."""
        return [*(self.compiler.remarks if self.compiler else []), *self.limit.remarks]

    def close(self) -> None:
        """Do nothing: all of it is in this process."""

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs.

        Raises
        ------
        ValueError
            If the memory of the device does not hold a single client.
        """
        queue = iter(jobs)
        waiting = list(islice(queue, 1))
        if waiting and not self._is_estimated:
            device = self.examples.device
            self.limit.estimate(free_bytes(device), *lane_bytes(waiting[0], self.training, self.examples))
            self._is_estimated = True
        while True:
            waiting += islice(queue, max(0, self.limit.group - len(waiting)))
            if not waiting:
                return
            outcomes = self._trained(waiting[: self.limit.group], assignment)
            del waiting[: len(outcomes)]
            yield from outcomes
            del outcomes

    def _trained(self, jobs: list[Job], assignment: Assignment) -> list[Outcome]:
        """Return the outcomes; none if memory ran out, with fewer lanes for the next attempt."""
        group = Group(self.training, self.examples, self.compiler, self.limit, jobs, assignment)
        try:
            with products(self.training.train.precision, self.examples.device):
                return group.outcomes()
        except torch.OutOfMemoryError:
            lanes = group.lanes
        # Only here, when the error and with it all that the attempt held has gone.
        del group
        if self.compiler is not None:
            self.compiler.forget()
        release(self.examples.device)
        if len(jobs) == 1:
            raise ValueError(
                f"train.block_size: the memory of '{self.examples.device}' does not hold client {jobs[0].client} alone;"
                f" lower train.batch_size ({self.training.train.batch_size}) or take a smaller model"
            )
        self.limit.halve(lanes)
        return []
