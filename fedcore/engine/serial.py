"""One client at a time: the reference every other executor is compared with, and the one to debug in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

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
from fedcore.trees import Tree, tree_map
from fedcore.types import Batch, Params, View


class SerialExecutor:
    """Trains clients one after another, or `workers` of them at a time in threads of one core each.

    Padding never exists here: a short batch is short. Results do not depend on `workers`.
    """

    name = "serial"

    def __init__(self, training: LocalTraining, examples: Examples, workers: int = 1):
        self.training = training
        self.examples = examples
        self.workers = workers

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        if self.workers == 1:
            with _one_thread():
                for job in jobs:
                    yield self._client(job, assignment)
            return
        queue = iter(jobs)
        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            # A few jobs ahead of the yielded one: workers stay busy, memory stays small, order is kept.
            pending: list[Future[Outcome]] = [
                pool.submit(self._client, job, assignment) for job in islice(queue, 2 * self.workers)
            ]
            while pending:
                outcome = pending.pop(0).result()
                pending += [pool.submit(self._client, job, assignment) for job in islice(queue, 1)]
                yield outcome

    def _client(self, job: Job, assignment: Assignment) -> Outcome:
        training, device = self.training, self.examples.device
        held = validation_batch([job], self.examples)
        view = View(
            anchor=job.params,
            server=assignment.server,
            received=job.received,
            resources=assignment.resources,
            validation=None
            if held is None
            else Batch(held.x[0], held.y[0], held.mask[0], {}, protected=held.protected[0]),
            info=job.info,
            num_steps=torch.tensor(float(job.learning_steps), device=device, dtype=self.examples.dtype),
            mass=torch.tensor(job.mass, device=device, dtype=self.examples.dtype),
            lr=job.lr,
            round=assignment.round,
            phase="start",
        )
        x, y = self.examples.gather(job.rows)
        protected = self.examples.gather_protected(job.rows)
        carry = training.begin(job.params, job.buffers, job.state, view)
        loss = torch.zeros((), device=device)
        for phase, schedule, draws in zip(assignment.phases, job.schedules, job.draws, strict=True):
            view = view._replace(phase=phase.name)
            carry, learning = training.enter(carry, phase)
            positions = torch.from_numpy(schedule.positions).to(device)
            masks = batch_mask(schedule.lengths, schedule.positions.shape[1], device)
            drawn = as_tensors(draws, device)
            for k, length in enumerate(schedule.lengths):
                rows = positions[k, :length]
                draw = {name: d[k] for name, d in drawn.items()}
                batch = Batch(x[rows], y[rows], masks[k, :length], draw, protected=protected[rows])
                carry, step_loss = training.step(carry, batch, view, learning, differentiate)
                loss += step_loss
        upload, state = training.end(carry, view._replace(phase="finish"), assignment.shared)
        steps = job.num_steps
        return Outcome(job.client, carry["params"], carry["buffers"], state, upload, loss / max(steps, 1), steps)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep a client's sums in one order, whatever the number of workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def differentiate(objective: Objective, params: Params) -> tuple[Params, Tensor, Tree]:
    """Return gradient, loss and the rest by reverse-mode differentiation."""
    inputs = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        loss, rest = objective(inputs)
        slopes = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(inputs, slopes, strict=True)), loss.detach(), tree_map(torch.Tensor.detach, rest)
