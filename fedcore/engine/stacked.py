"""A block of clients at once: parameters stacked on a leading axis, the same hooks under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedcore.engine.compiled import Compiler, Loop, filled, flat, unrolled
from fedcore.engine.gradients import by_transform
from fedcore.engine.local import (
    Assignment,
    Examples,
    Job,
    Learning,
    LocalTraining,
    Outcome,
    as_tensors,
    batch_at,
    batch_mask,
    scaled,
    validation_batch,
)
from fedcore.trees import Tree, pick, stack, tree_map
from fedcore.types import Batch, ClientInfo, View


class StackedExecutor:
    """Trains blocks of clients; ragged batches are masked, clients that ran out of steps idle.

    Parameters
    ----------
    block_size : int or None
        Clients per block; None takes the whole cohort.
    compiler : Compiler or None
        Makes functions of several steps; None takes the steps as they are.
    """

    def __init__(
        self,
        training: LocalTraining,
        examples: Examples,
        block_size: int | None = None,
        compiler: Compiler | None = None,
    ):
        self.training = training
        self.examples = examples
        self.block_size = block_size
        self.compiler = compiler

    @property
    def name(self) -> str:
        """What the lineage calls it."""
        return "stacked" if self.compiler is None else "stacked, compiled"

    @property
    def uncompiled(self) -> dict[str, str]:
        """What was to be compiled and could not be, and why."""
        return {} if self.compiler is None else self.compiler.reasons

    def close(self) -> None:
        """Do nothing: all of it is in this process."""

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        queue = iter(jobs)
        while block := list(islice(queue, self.block_size)):
            yield from self._block(block, assignment)

    def _block(self, jobs: list[Job], assignment: Assignment) -> Iterator[Outcome]:
        training, device, dtype = self.training, self.examples.device, self.examples.dtype
        params = stack([job.params for job in jobs])
        info = ClientInfo(*(torch.stack(values) for values in zip(*(job.info for job in jobs), strict=True)))
        own = {
            "anchor": params,
            "info": info,
            "num_steps": torch.tensor([float(job.learning_steps) for job in jobs], device=device, dtype=dtype),
            "mass": torch.tensor([job.mass for job in jobs], device=device, dtype=dtype),
            "received": stack([job.received for job in jobs]),
        }
        common: dict[str, Any] = {"server": assignment.server, "resources": assignment.resources, "validation": None}
        common["shared"] = assignment.shared
        if len({job.lr for job in jobs}) > 1:
            own["lr"] = torch.tensor([job.lr for job in jobs], device=device, dtype=dtype)
        else:
            common["lr"] = jobs[0].lr
        held = validation_batch(jobs, self.examples)
        if held is not None:
            own["validation"] = held
        start, finish = (partial(_view, common, round=assignment.round, phase=phase) for phase in ("start", "finish"))
        states, buffers = stack([job.state for job in jobs]), stack([job.buffers for job in jobs])
        carry = vmap(lambda p, b, s, o: training.begin(p, b, s, start(o)))(params, buffers, states, own)
        carry = tree_map(_of_each, carry)
        loss = torch.zeros(len(jobs), device=device)
        for number, phase in enumerate(assignment.phases):
            carry, learning = training.enter(carry, phase)
            batches = _Batches(jobs, number, self.examples)
            carry, losses = self._phase(carry, batches, own, common, assignment.round, phase.name, learning)
            loss = loss + losses
        uploads, states = vmap(lambda c, o: training.end(c, finish(o), assignment.shared))(carry, own)
        for c, job in enumerate(jobs):
            yield Outcome(
                job.client,
                pick(carry["params"], c),
                pick(carry["buffers"], c),
                pick(states, c),
                pick(uploads, c),
                loss[c] / max(job.num_steps, 1),
                job.num_steps,
            )

    def _phase(
        self, carry: Tree, batches: _Batches, own: Any, common: Any, round: int, phase: str, learning: Learning
    ) -> tuple[Tree, Tensor]:
        """Return the carry after all steps of a phase, and every client's sum of losses."""

        def steps(carry: Tree, chunk: tuple[Batch, Tensor | None], views: Any, round: Any) -> tuple[Tree, Tensor]:
            own, common, scaling = views
            several, active = chunk
            several = several._replace(x=scaled(several.x, scaling, several.mask.dtype))
            total: Tensor | float = 0.0
            for k in range(len(several.y)):
                view = partial(_view, common, round=round, phase=phase)
                step = vmap(lambda c, b, o, v=view: self.training.step(c, b, v(o), learning, by_transform))
                new, losses = step(carry, batch_at(several, k), own)
                if active is not None:
                    new = tree_map(lambda n, o, a=active[k]: torch.where(_lift(a, n), n, o), new, carry)
                    losses = torch.where(active[k], losses, 0.0)
                carry, total = new, total + losses
            assert isinstance(total, Tensor)
            return carry, total

        loss = torch.zeros(batches.num_clients, device=self.examples.device)
        loop, size = self._loop(carry, batches, own, common, round, phase, learning, steps)
        if loop is None:
            views = (own, common, self.examples.scaling)
            for k in range(batches.longest):
                carry, losses = steps(carry, batches.several(k, 1, ragged=k >= batches.shortest), views, round)
                loss = loss + losses
            return carry, loss
        leaves = flat(carry)[0]
        for k in range(0, batches.longest, size):
            leaves, losses = loop(leaves, flat(batches.several(k, size, ragged=True))[0])
            loss = loss + losses
        return filled(carry, iter(leaves)), loss

    def _loop(
        self,
        carry: Tree,
        batches: _Batches,
        own: Any,
        common: Any,
        round: int,
        phase: str,
        learning: Learning,
        steps: Any,
    ) -> tuple[Loop | None, int]:
        """Return the compiled steps and how many they are, where there is a compiler."""
        if self.compiler is None:
            return None, 1
        if "lr" in common:
            lr = torch.as_tensor(common["lr"], dtype=self.examples.dtype, device=self.examples.device)
            common = {**common, "lr": lr}
        size = unrolled(sum(carry["params"][n].numel() for n in learning.names), batches.width)
        name, key = f"steps of phase '{phase}'", (phase, learning, size)
        chunk = batches.several(0, size, ragged=True)
        return self.compiler.loop(name, key, steps, round, carry, chunk, (own, common, self.examples.scaling)), size


class _Batches:
    """A block's batches of one phase; steps that a client does not take see its first batch and are not active."""

    def __init__(self, jobs: list[Job], phase: int, examples: Examples):
        self._examples = examples
        schedules = [job.schedules[phase] for job in jobs]
        self._steps = np.array([schedule.steps for schedule in schedules])
        self.shortest, self.longest = int(self._steps.min()), int(self._steps.max())
        self.num_clients, self.width = len(jobs), schedules[0].positions.shape[1]
        self._rows = np.empty((self.longest, len(jobs), self.width), np.int64)
        lengths = np.empty((self.longest, len(jobs)), np.int64)
        indices = [np.where(np.arange(self.longest) < steps, np.arange(self.longest), 0) for steps in self._steps]
        for c, (job, schedule, index) in enumerate(zip(jobs, schedules, indices, strict=True)):
            # Idle steps see real rows, so that nothing masked out is ever NaN.
            self._rows[:, c] = job.rows[schedule.positions[index]]
            lengths[:, c] = schedule.lengths[index]
        self._masks = batch_mask(lengths, self.width, examples.device)
        drawn = [
            {name: d[torch.from_numpy(index)] for name, d in as_tensors(job.draws[phase], examples.device).items()}
            for job, index in zip(jobs, indices, strict=True)
        ]
        self._draws = {name: torch.stack([d[name] for d in drawn], 1) for name in drawn[0]}

    def several(self, begin: int, size: int, *, ragged: bool) -> tuple[Batch, Tensor | None]:
        """Return `size` steps' batches [size, C, B, ...], and who takes them [size, C]; None when everybody does."""
        wanted = np.arange(begin, begin + size)
        index = np.where(wanted < self.longest, wanted, 0)
        cut = torch.from_numpy(index).to(self._examples.device)
        rows = self._rows[index]
        index_of_rows = torch.from_numpy(rows).to(self._examples.device)
        x, y = self._examples.inputs[index_of_rows], self._examples.labels[index_of_rows]
        protected = self._examples.protected_of(index_of_rows)
        batches = Batch(x, y, self._masks[cut], {n: d[cut] for n, d in self._draws.items()}, protected=protected)
        if not ragged:
            return batches, None
        return batches, torch.from_numpy(wanted[:, None] < self._steps).to(self._examples.device)


def _view(common: dict[str, Any], own: dict[str, Any], *, round: Any, phase: str) -> View:
    return View(**{**common, **own}, round=round, phase=phase)


def _of_each(leaf: Tensor) -> Tensor:
    """Return a leaf with memory of every client's own, where all clients start with the same one."""
    return leaf.clone() if any(n > 1 and s == 0 for n, s in zip(leaf.shape, leaf.stride(), strict=True)) else leaf


def _lift(active: Tensor, like: Tensor) -> Tensor:
    return active.reshape(-1, *[1] * (like.dim() - 1))
