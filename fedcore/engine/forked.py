"""Clients on processes of this machine that were forked from this one: what many small steps need.

A small step is mostly Python, and threads take turns at that. Forked processes share the data set's memory, run side by
side, and give the same bits as one process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedcore.data.federation import Federation
from fedcore.engine.local import Assignment, Job, Outcome
from fedcore.engine.serial import SerialExecutor
from fedcore.engine.turns import Turns
from fedcore.engine.wire import (
    Header,
    Parcel,
    Returned,
    pack,
    pack_outcome,
    reduced,
    to_arrays,
    to_tensors,
    trees_of,
    unpack,
    unpack_outcome,
)
from fedcore.types import State

_SIGNAL_WHEN_THE_PARENT_ENDS = 1  # PR_SET_PDEATHSIG of Linux


@dataclass
class _Worker:
    """A process and this end of the pipe to it."""

    process: BaseProcess
    pipe: Connection
    job: int | None = None  # what it is at; one at a time, so that no two ends ever write to each other


class ForkedExecutor:
    """Trains clients as a `SerialExecutor` does, on `workers` processes; results do not depend on their number.

    The processes start with the executor, while this one has a single thread, and end with `close`, with this process,
    or when nothing refers to the executor any more.

    Parameters
    ----------
    inner : SerialExecutor
        Trains a client, in every process.
    """

    def __init__(self, inner: SerialExecutor, federation: Federation, workers: int):
        self.training = inner.training
        self.examples = inner.examples
        self.workers = workers
        self._resources: State | None = None
        self._round = 0
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, os.getpid(), inner, federation), daemon=True)
            process.start()
            there.close()
            self._workers.append(_Worker(process, here))
        self.name = inner.name
        self.remarks: list[str] = []

    def close(self) -> None:
        """End the processes, whatever they are at."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
        self._workers = []

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs.

        Raises
        ------
        ValueError
            If a process ends before its time.
        RuntimeError
            If the executor was closed.
        """
        if not self._workers:
            raise RuntimeError("this executor was closed")
        queue = iter(jobs)
        first = next(queue, None)
        if first is None:
            return
        common = self._send(first, assignment)
        turns = Turns(chain([first], queue), self.workers)
        packed = deque[tuple[int, Parcel]]()
        while True:
            for worker in self._workers:
                if worker.job is None and (packed or self._pack(turns, packed, common, 1)):
                    worker.job, parcel = packed.popleft()
                    self._tell(worker, parcel)
            self._pack(turns, packed, common, self.workers)  # while they work, so that none waits for a job to be made
            busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                number = worker.job
                assert number is not None
                turns.put(number, unpack_outcome(self._receive(worker), self.examples.device))
            yield from turns.due()

    def _pack(self, turns: Turns, packed: deque[tuple[int, Parcel]], common: dict[str, Any], most: int) -> bool:
        """Have up to `most` jobs packed; return whether there is one."""
        while len(packed) < most and (taken := turns.take()) is not None:
            number, job = taken
            packed.append((number, pack(job, common)))
        return bool(packed)

    def _send(self, first: Job, assignment: Assignment) -> dict[str, Any]:
        """Tell every worker what the round's jobs have in common; return that."""
        common = {**trees_of(first), "server": assignment.server}
        resources = None
        if assignment.resources is not self._resources:
            self._resources, resources = assignment.resources, to_arrays(assignment.resources)
        self._round += 1
        header = Header(self._round, replace(assignment, server={}, resources={}), to_arrays(common))
        for worker in self._workers:
            if worker.job is not None:  # of a round that was given up
                with suppress(ValueError, RuntimeError):
                    self._receive(worker)
            self._tell(worker, (header, resources))
        return common

    def _tell(self, worker: _Worker, message: Any) -> None:
        try:
            worker.pipe.send(message)
        except OSError:
            raise self._lost(worker) from None

    def _receive(self, worker: _Worker) -> Returned:
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._lost(worker) from None
        worker.job = None
        if isinstance(answer, Exception):
            raise answer
        result: Returned = answer
        return result

    def _lost(self, worker: _Worker) -> ValueError:
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return ValueError(
            f"process {worker.process.pid}, one of {self.workers} that train clients, {how} (out of memory?);"
            " run again to go on from the last checkpoint, with a smaller train.workers if it was memory"
        )


def _serve(pipe: Connection, parent: int, executor: SerialExecutor, federation: Federation) -> None:
    """Train what comes through the pipe, until the parent ends or ends this process."""
    ctypes.CDLL(None).prctl(_SIGNAL_WHEN_THE_PARENT_ENDS, signal.SIGKILL)  # also in the middle of a long client
    if os.getppid() != parent:  # it ended before that
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # first of all: threads that the parent may have had for sums are not in this process
    device = executor.examples.device
    resources: State = {}
    header, common = None, {}
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)  # without this process's copies of what the parent has open
        if isinstance(message, tuple):
            header, common = message[0], to_tensors(message[0].common, device)
            resources = resources if message[1] is None else to_tensors(message[1], device)
            continue
        assert header is not None
        train, validation = federation.rows(message.client, "train"), federation.fitting_rows(message.client)
        job = unpack(message, common, train, validation, device)
        assignment = replace(header.assignment, server=common["server"], resources=resources)
        try:
            (outcome,) = executor.train([job], assignment)
            answer: Any = pack_outcome(reduced(outcome, assignment))
        except ValueError as error:  # for people, in a line
            answer = ValueError(str(error))
        except Exception:  # not every exception can travel
            answer = RuntimeError(f"in a process that trains clients:\n{traceback.format_exc()}")
        try:
            pipe.send(answer)
        except OSError:
            os._exit(0)
