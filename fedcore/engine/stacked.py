"""A block of clients at once: parameters stacked on a leading axis, the same hooks under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedcore.engine.local import (
    Assignment,
    Examples,
    Job,
    LocalTraining,
    Outcome,
    as_tensors,
    batch_mask,
    validation_batch,
)
from fedcore.objective import Objective
from fedcore.trees import Tree, pick, stack, tree_map
from fedcore.types import Batch, ClientInfo, Params, View


class StackedExecutor:
    """Trains blocks of clients; ragged batches are masked, clients that ran out of steps idle.

    Parameters
    ----------
    block_size : int or None
        Clients per block; None takes the whole cohort.
    """

    name = "stacked"

    def __init__(self, training: LocalTraining, examples: Examples, block_size: int | None = None):
        self.training = training
        self.examples = examples
        self.block_size = block_size

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        queue = iter(jobs)
        while block := list(islice(queue, self.block_size)):
            yield from self._block(block, assignment)

    def _block(self, jobs: list[Job], assignment: Assignment) -> Iterator[Outcome]:
        training, device = self.training, self.examples.device
        params = stack([job.params for job in jobs])
        info = ClientInfo(*(torch.stack(values) for values in zip(*(job.info for job in jobs), strict=True)))
        num_steps = torch.tensor([float(job.learning_steps) for job in jobs], device=device, dtype=self.examples.dtype)
        mass = torch.tensor([job.mass for job in jobs], device=device, dtype=self.examples.dtype)

        def view(phase: str, own: dict[str, Any]) -> View:
            return View(
                server=assignment.server,
                resources=assignment.resources,
                round=assignment.round,
                phase=phase,
                **{"validation": None, "lr": jobs[0].lr, **own},
            )

        received = stack([job.received for job in jobs])
        own = {"anchor": params, "info": info, "num_steps": num_steps, "mass": mass, "received": received}
        if len({job.lr for job in jobs}) > 1:
            own["lr"] = torch.tensor([job.lr for job in jobs], device=device, dtype=self.examples.dtype)
        held = validation_batch(jobs, self.examples)
        if held is not None:
            own["validation"] = held
        states, buffers = stack([job.state for job in jobs]), stack([job.buffers for job in jobs])
        carry = vmap(lambda p, b, s, o: training.begin(p, b, s, view("start", o)))(params, buffers, states, own)
        loss = torch.zeros(len(jobs), device=device)
        for number, phase in enumerate(assignment.phases):
            carry, learning = training.enter(carry, phase)

            def step(carry: Tree, batch: Batch, own: Any, name: str = phase.name, learning: Any = learning) -> Any:
                return training.step(carry, batch, view(name, own), learning, differentiate)

            batched = vmap(step)
            for batch, active in self._batches(jobs, number):
                new, step_loss = batched(carry, batch, own)
                if active is None:
                    carry, loss = new, loss + step_loss
                else:
                    carry = tree_map(lambda n, o, a=active: torch.where(_lift(a, n), n, o), new, carry)
                    loss = loss + torch.where(active, step_loss, 0.0)
        uploads, states = vmap(lambda c, o: training.end(c, view("finish", o), assignment.shared))(carry, own)
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

    def _batches(self, jobs: list[Job], phase: int) -> Iterator[tuple[Batch, Tensor | None]]:
        """Yield one batch per step with a leading client axis, and who is active: None when everybody is."""
        device = self.examples.device
        schedules = [job.schedules[phase] for job in jobs]
        steps = np.array([schedule.steps for schedule in schedules])
        longest, size = int(steps.max()), schedules[0].positions.shape[1]
        rows = np.empty((longest, len(jobs), size), np.int64)
        lengths = np.empty((longest, len(jobs)), np.int64)
        for c, (job, schedule) in enumerate(zip(jobs, schedules, strict=True)):
            # Idle steps see the first batch again: real rows, so that nothing masked out is ever NaN.
            index = np.where(np.arange(longest) < schedule.steps, np.arange(longest), 0)
            rows[:, c] = job.rows[schedule.positions[index]]
            lengths[:, c] = schedule.lengths[index]
        masks = batch_mask(lengths, size, device)
        drawn = [as_tensors(job.draws[phase], device) for job in jobs]
        for k in range(longest):
            x, y = self.examples.gather(rows[k])
            draws = {
                name: torch.stack([d[name][k if k < s else 0] for d, s in zip(drawn, steps, strict=True)])
                for name in drawn[0]
            }
            active = None if k < steps.min() else torch.from_numpy(k < steps).to(device)
            yield Batch(x, y, masks[k], draws, protected=self.examples.gather_protected(rows[k])), active


def differentiate(objective: Objective, params: Params) -> tuple[Params, Tensor, Tree]:
    """Return gradient, loss and the rest by a functional transform, which vmap can batch."""
    gradient, (loss, rest) = grad_and_value(objective, has_aux=True)(params)
    return gradient, loss, rest


def _lift(active: Tensor, like: Tensor) -> Tensor:
    return active.reshape(-1, *[1] * (like.dim() - 1))
