"""A group of clients on lanes: one round of local training, with every lane at its own client's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedcore.engine.compiled import Compiler, Loop, filled, flat
from fedcore.engine.gradients import by_transform
from fedcore.engine.lane_batches import LaneBatches
from fedcore.engine.lane_memory import LaneLimit
from fedcore.engine.lanes import Plan, enough_lanes, plan
from fedcore.engine.local import (
    Assignment,
    Examples,
    Job,
    Learning,
    LocalTraining,
    Outcome,
    batch_at,
    scaled,
    validation_batch,
)
from fedcore.engine.stack import Collected, rows, stacked, with_rows
from fedcore.methods.base import Phase
from fedcore.trees import Tree, tree_map, unstack
from fedcore.types import Batch, ClientInfo, View


class Group:
    """Some clients' local training, from their jobs to their outcomes.

    Attributes
    ----------
    lanes : int
        L of the phase under way; before the first one the number of clients C.
    """

    def __init__(
        self,
        training: LocalTraining,
        examples: Examples,
        compiler: Compiler | None,
        limit: LaneLimit,
        jobs: Sequence[Job],
        assignment: Assignment,
    ):
        self._training, self._examples, self._compiler, self._limit = training, examples, compiler, limit
        self._jobs, self._assignment = jobs, assignment
        self.lanes = len(jobs)

    def outcomes(self) -> list[Outcome]:
        """Train; return the outcomes in the order of the jobs."""
        training, jobs = self._training, self._jobs
        self._own, self._common = self._views()
        start, finish = (partial(_view, self._common, phase=phase) for phase in ("start", "finish"))
        states, buffers = stacked([job.state for job in jobs]), stacked([job.buffers for job in jobs])
        begin = vmap(lambda p, b, s, o: training.begin(p, b, s, start(o)))
        carry = tree_map(_of_each, begin(self._own["anchor"], buffers, states, self._own))
        loss = torch.zeros(len(jobs), device=self._examples.device, dtype=self._examples.dtype)
        for number, phase in enumerate(self._assignment.phases):
            after = self._phase(carry, number, phase)
            carry, loss = after["carry"], loss + after["loss"]
        end = vmap(lambda c, o: training.end(c, finish(o), self._assignment))
        uploads, states = end(carry, self._own)
        params, buffers = carry["params"], carry["buffers"]
        made = {"params": params, "buffers": buffers, "state": states, "upload": uploads, "loss": loss}
        return [
            Outcome(job.client, **{**own, "loss": own["loss"] / max(job.num_steps, 1)}, steps=job.num_steps)
            for job, own in zip(jobs, unstack(made, len(jobs)), strict=True)
        ]

    def _views(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what every client looks at: its own [C, ...], and what is the same for all."""
        jobs, assignment = self._jobs, self._assignment
        device, dtype = self._examples.device, self._examples.dtype
        own: dict[str, Any] = {
            "anchor": stacked([job.params for job in jobs]),
            "info": ClientInfo(*(torch.stack(values) for values in zip(*(job.info for job in jobs), strict=True))),
            "num_steps": torch.tensor([float(job.learning_steps) for job in jobs], device=device, dtype=dtype),
            "mass": torch.tensor([job.mass for job in jobs], device=device, dtype=dtype),
            "received": stacked([job.received for job in jobs]),
        }
        common: dict[str, Any] = {
            "server": assignment.server,
            "resources": assignment.resources,
            "validation": None,
            "round": assignment.round,
            "shared": assignment.shared,
        }
        if len({job.lr for job in jobs}) > 1:
            own["lr"] = torch.tensor([job.lr for job in jobs], device=device, dtype=dtype)
        else:
            common["lr"] = jobs[0].lr
        held = validation_batch(jobs, self._examples)
        if held is not None:
            own["validation"] = held
        return own, common

    def _phase(self, carry: Tree, number: int, phase: Phase) -> Tree:
        """Take all clients through a phase; return their ``carry`` and sums of losses, ``loss`` [C]."""
        training, device = self._training, self._examples.device
        learning = training.learning(carry["params"], phase)
        timetable, size = self._plan(carry, number, learning)
        batches = LaneBatches(self._jobs, number, timetable, self._examples)
        collected = Collected(len(self._jobs))
        on_lanes: Tree = {}
        own: Any = None

        def arriving(clients: Tensor) -> Tree:
            return {
                "carry": training.enter(rows(carry, clients), phase)[0],
                "loss": torch.zeros(len(clients), device=device, dtype=self._examples.dtype),
            }

        segments = timetable.segments
        indices = [(s.entering, s.onto, s.leaving, s.off) for s in segments]
        for segment, (entering, onto, leaving, off) in zip(segments, _on_device(indices, device), strict=True):
            if segment.begin == 0:
                on_lanes, own = arriving(entering), rows(self._own, entering)
            elif len(entering):
                on_lanes = with_rows(on_lanes, onto, arriving(entering))
                own = with_rows(own, onto, rows(self._own, entering))
            stretch = range(segment.begin, segment.end, size)
            new, losses = self._steps(on_lanes["carry"], own, batches, stretch, phase.name, learning)
            on_lanes = {"carry": new, "loss": on_lanes["loss"] + losses}
            collected.put(leaving, self._resting(rows(on_lanes, off)))
        return collected.tree

    def _plan(self, carry: Tree, number: int, learning: Learning) -> tuple[Plan, int]:
        """Return the places of all clients in a phase, and how many steps are taken at a time."""
        schedules = [job.schedules[number] for job in self._jobs]
        steps, width = [schedule.steps for schedule in schedules], schedules[0].positions.shape[1]
        wanted = self._limit.asked or enough_lanes(steps, halvings=self._compiler is not None)
        lanes = self.lanes = self._limit.bounded(min(wanted, len(steps)))
        if self._compiler is None:
            return plan(steps, lanes), 1
        params = sum(carry["params"][name][0].numel() for name in learning.names)
        size = self._compiler.backend.unrolled(params * lanes, width, self._training.net.has_convolutions)
        return plan(steps, lanes, size), size

    def _resting(self, lanes: Tree) -> Tree:
        """Return what of some clients' lanes goes on after the phase."""
        if self._training.train.keeps_momentum:
            return lanes
        return {**lanes, "carry": {**lanes["carry"], "momentum": {}}}

    def _steps(
        self, carry: Tree, own: Any, batches: LaneBatches, stretch: range, phase: str, learning: Learning
    ) -> tuple[Tree, Tensor]:
        """Return the carry of all lanes after a stretch of steps, and their sums of losses."""

        def several(carry: Tree, chunk: tuple[Batch, Tensor | None], views: Any, round: Any) -> tuple[Tree, Tensor]:
            own, common, scaling = views
            batches, active = chunk
            batches = batches._replace(x=scaled(batches.x, scaling))
            total: Tensor | float = 0.0
            for k in range(len(batches.y)):
                view = partial(_view, {**common, "round": round}, phase=phase)
                step = vmap(lambda c, b, o, v=view: self._training.step(c, b, v(o), learning, by_transform))
                new, losses = step(carry, batch_at(batches, k), own)
                if active is not None:
                    new = tree_map(lambda n, o, a=active[k]: torch.where(_lift(a, n), n, o), new, carry)
                    losses = torch.where(active[k], losses, 0.0)
                carry, total = new, total + losses
            assert isinstance(total, Tensor)
            return carry, total

        loss: Tensor | float = 0.0
        loop = self._loop(several, carry, own, batches, stretch, phase, learning)
        if loop is None:
            views = (own, self._common, self._examples.scaling)
            for k in range(stretch.start, stretch.stop):
                carry, losses = several(carry, batches.several(k, 1), views, self._assignment.round)
                loss = loss + losses
        else:
            leaves = flat(carry)[0]
            for k in stretch:
                leaves, losses = loop(leaves, flat(batches.several(k, stretch.step, masked=True))[0])
                loss = loss + losses
            carry = filled(carry, iter(leaves))
        assert isinstance(loss, Tensor)
        return carry, loss

    def _loop(
        self,
        several: Callable[..., tuple[Tree, Tensor]],
        carry: Tree,
        own: Any,
        batches: LaneBatches,
        stretch: range,
        phase: str,
        learning: Learning,
    ) -> Loop | None:
        """Return the compiled steps, where there is a compiler."""
        if self._compiler is None:
            return None
        common = {name: value for name, value in self._common.items() if name != "round"}
        if "lr" in common:
            # Made there: a number that is sent waits for the device.
            lr = torch.full((), common["lr"], dtype=self._examples.dtype, device=self._examples.device)
            common = {**common, "lr": lr}
        name, key = f"steps of phase '{phase}'", (phase, learning, stretch.step)
        chunk = batches.several(stretch.start, stretch.step, masked=True)
        arguments = (own, common, self._examples.scaling)
        return self._compiler.loop(name, key, several, self._assignment.round, carry, chunk, arguments)


def _of_each(leaf: Tensor) -> Tensor:
    """Return a leaf with memory of every client's own, where all clients start with the same one."""
    return leaf.clone() if any(n > 1 and s == 0 for n, s in zip(leaf.shape, leaf.stride(), strict=True)) else leaf


def _view(common: dict[str, Any], own: dict[str, Any], *, phase: str) -> View:
    return View(**{**common, **own}, phase=phase)


def _lift(active: Tensor, like: Tensor) -> Tensor:
    return active.reshape(-1, *[1] * (like.dim() - 1))


def _on_device(groups: Sequence[tuple[NDArray[np.int64], ...]], device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Return indices as tensors: one way to the device for all of them."""
    sizes = [len(index) for group in groups for index in group]
    together = torch.from_numpy(np.concatenate([index for group in groups for index in group])).to(device)
    parts = iter(torch.split(together, sizes))
    return (tuple(islice(parts, len(group))) for group in groups)
