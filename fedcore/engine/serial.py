"""One client at a time: the reference every other executor is compared with, and the one to debug in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import torch

from fedcore.engine.client_batches import ClientBatches
from fedcore.engine.compiled import Compiler
from fedcore.engine.compiled_steps import CompiledSteps
from fedcore.engine.gradients import by_autograd
from fedcore.engine.local import Assignment, Examples, Job, LocalTraining, Outcome, as_tensors, validation_batch
from fedcore.engine.precision import products
from fedcore.engine.turns import Turns
from fedcore.trees import tree_map
from fedcore.types import Batch, State, View


class SerialExecutor:
    """Trains clients one after another, or `workers` of them at a time in threads of one core each.

    Padding exists in compiled steps alone: elsewhere a short batch is short. Results do not depend on `workers`.

    Parameters
    ----------
    compiler : Compiler or None
        Makes functions of several steps; None takes the steps as they are.
    """

    def __init__(self, training: LocalTraining, examples: Examples, workers: int = 1, compiler: Compiler | None = None):
        self.training = training
        self.examples = examples
        self.workers = workers
        self.compiler = compiler
        self._resources: tuple[State, State] = ({}, {})  # as given, and laid out

    @property
    def name(self) -> str:
        """What the lineage calls it."""
        return "serial" if self.compiler is None else "serial, compiled"

    @property
    def remarks(self) -> list[str]:
        """What ran slower than it could, and why."""
        return [] if self.compiler is None else self.compiler.remarks

    def close(self) -> None:
        """Do nothing: all of it is in this process."""

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs."""
        layout = self.training.net.layout
        if assignment.resources is not self._resources[0]:
            self._resources = assignment.resources, tree_map(layout, assignment.resources)
        assignment = replace(assignment, server=tree_map(layout, assignment.server), resources=self._resources[1])
        if self.workers == 1:
            with _one_thread():
                for job in jobs:
                    with products(self.training.train.precision, self.examples.device):
                        outcome = self._client(job, assignment)
                    yield outcome
            return
        turns = Turns(iter(jobs), self.workers)
        done = SimpleQueue[tuple[int, Future[Outcome]]]()  # waited for without taking part in every future's lock
        under_way = 0
        with ThreadPoolExecutor(self.workers, initializer=self._enter_thread) as pool:
            while True:
                # One more for each worker than it can do, so that none waits for a job to be made.
                while under_way < 2 * self.workers and (taken := turns.take()) is not None:
                    number, job = taken
                    pool.submit(self._client, job, assignment).add_done_callback(partial(_put, done, number))
                    under_way += 1
                if not under_way:
                    return
                number, future = done.get()
                under_way -= 1
                turns.put(number, future.result())
                yield from turns.due()

    def _enter_thread(self) -> None:
        torch.set_num_threads(1)
        self.training.net.make_modules()

    def _client(self, job: Job, assignment: Assignment) -> Outcome:
        training, device, layout = self.training, self.examples.device, self.training.net.layout
        params = tree_map(layout, job.params)
        held = validation_batch([job], self.examples)
        view = View(
            anchor=params,
            server=assignment.server,
            received=tree_map(layout, job.received),
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
            shared=assignment.shared,
        )
        carry = training.begin(params, job.buffers, tree_map(layout, job.state), view)
        loss = torch.zeros((), device=device, dtype=self.examples.dtype)
        for phase, schedule, draws in zip(assignment.phases, job.schedules, job.draws, strict=True):
            view = view._replace(phase=phase.name)
            carry, learning = training.enter(carry, phase)
            batches = ClientBatches(self.examples, job.rows, schedule, as_tensors(draws, device))
            taken = 0
            if self.compiler is not None:
                compiled = CompiledSteps(self.compiler, training, batches, view, learning)
                carry, loss, taken = compiled.take(carry, loss)
            for k in range(taken, schedule.steps):
                batch = batches.one(k)
                batch = batch._replace(x=layout(self.examples.normalise(batch.x)))
                carry, step_loss = training.step(carry, batch, view, learning, by_autograd)
                loss += step_loss
        upload, state = training.end(carry, view._replace(phase="finish"), assignment)
        kept = tree_map(torch.Tensor.contiguous, {"params": carry["params"], "state": state, "upload": upload})
        steps = job.num_steps
        return Outcome(
            job.client, kept["params"], carry["buffers"], kept["state"], kept["upload"], loss / max(steps, 1), steps
        )


def _put(done: SimpleQueue[tuple[int, Future[Outcome]]], number: int, future: Future[Outcome]) -> None:
    done.put((number, future))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep a client's sums in one order, whatever the number of workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
