"""Clients on the processes of a Ray cluster: this machine's, or many machines'.

Every client has a home, the worker that holds its rows, from the first round to the last. Outcomes come back in the
order of the jobs, so what the server makes of them depends neither on the number of workers nor on who was quick, and
a worker that is lost changes nothing either: another process gets its rows and does its work again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from fedcore.data.federation import Federation
from fedcore.engine.lane_memory import group_size
from fedcore.engine.local import Assignment, Examples, Job, LocalTraining, Outcome
from fedcore.engine.ray_pool import Pool
from fedcore.engine.ray_worker import Setup
from fedcore.engine.wire import Header, Parcel, Returned, pack, to_arrays, trees_of, unpack_outcome
from fedcore.trees import Tree
from fedcore.types import State

_CALL = 4  # jobs in one call of a worker: what a call costs is spread over them
_FOLD = 64  # uploads that are added up into one
_WAVES = 3  # groups of calls under way, two calls for each worker in a group


@dataclass
class _Call:
    """Some jobs of one home, under way or done."""

    home: int
    parcels: list[Parcel]
    worker: Any = None  # who was asked
    answer: Any = None
    outcomes: dict[int, Returned] = field(default_factory=dict)  # by client, once they are here


@dataclass(frozen=True)
class _Wave:
    """Jobs that were handed out together."""

    calls: list[_Call]
    of_client: dict[int, _Call]  # in the order of the jobs


@dataclass(frozen=True)
class _Sent:
    """What all calls of a round are given: references to objects of the cluster."""

    header: Any
    resources: Any
    common: Tree  # the header's, as tensors of this process


class RayExecutor:
    """Trains clients on workers of a Ray cluster, ``train.workers`` of them.

    Nothing is started before the first job; `close` ends what was.

    Parameters
    ----------
    compiles : bool
        Whether the workers compile their steps.

    Raises
    ------
    ValueError
        If Ray is not installed.
    """

    def __init__(self, training: LocalTraining, examples: Examples, federation: Federation, compiles: bool):
        self.training, self.examples, self.federation = training, examples, federation
        settings = training.train.ray
        gpu = training.train.device != "cpu" and examples.device.type == "cuda"
        self.inside = settings.inside if settings.inside != "auto" else ("stacked" if gpu else "serial")
        self._folds = settings.aggregation == "tree"
        self._setup = Setup(
            training.composition,
            training.net,
            training.train,
            examples.offset.flatten().tolist(),
            examples.scale.flatten().tolist(),
            examples.dtype,
            examples.device.type,
            self.inside,
            compiles,
            self._folds,
        )
        self._pool = Pool(self._setup, examples, federation)
        self._resources: tuple[State | None, int, Any] = (None, 0, None)
        self._rounds = 0

    @property
    def name(self) -> str:
        """What the lineage calls it."""
        parts = ["ray", self.inside, *["compiled"] * self._setup.compiles, *["tree"] * self._folds]
        return ", ".join(parts)

    @property
    def remarks(self) -> list[str]:
        """Empty: what slowed the workers down is known to them alone."""
        return []

    def close(self) -> None:
        """End the workers, and the cluster if it is this run's own."""
        self._resources = (None, 0, None)
        self._pool.close()

    def train(self, jobs: Iterable[Job], assignment: Assignment) -> Iterator[Outcome]:
        """Train every job's client; yield the outcomes in the order of the jobs.

        Raises
        ------
        ValueError
            If there is no cluster, or a worker is lost again and again.
        """
        queue = iter(jobs)
        first = next(queue, None)
        if first is None:
            return
        self._pool.open()
        sent = self._send(first, assignment)
        size = self._call_size(assignment)
        wave = None if size is None else 2 * size * self._pool.size
        jobs = chain([first], queue)
        # How jobs are grouped follows from their order alone, so that sums are the same in every run.
        waves = (self._started(group, sent, size) for group in iter(lambda: list(islice(jobs, wave)), []))
        under_way = deque(islice(waves, _WAVES))
        while under_way:
            yield from self._outcomes(under_way, sent)
            under_way.popleft()
            under_way.extend(islice(waves, 1))

    def _call_size(self, assignment: Assignment) -> int | None:
        """Return how many jobs make a call; None: all of a worker's."""
        if self._folds and assignment.folding is not None:
            return _FOLD
        lanes = self.training.train.block_size
        if self.inside == "stacked":
            return None if lanes is None else group_size(lanes)
        return _CALL

    def _send(self, first: Job, assignment: Assignment) -> _Sent:
        """Put what all jobs have in common where every worker can read it."""
        if assignment.resources is not self._resources[0] or self._resources[2] is None:
            number = self._resources[1] + 1
            ref = self._pool.put((number, to_arrays(assignment.resources)))
            self._resources = assignment.resources, number, ref
        self._rounds += 1
        common = {**trees_of(first), "server": assignment.server}
        bare = replace(assignment, server={}, resources={})
        header = Header(self._rounds, bare, to_arrays(common))
        return _Sent(self._pool.put(header), self._resources[2], common)

    def _started(self, jobs: list[Job], sent: _Sent, size: int | None) -> _Wave:
        """Hand some jobs to their homes, in calls of `size`."""
        calls: list[_Call] = []
        open_calls: dict[int, _Call] = {}
        of_client: dict[int, _Call] = {}
        for job in jobs:
            home = self._pool.home(job.client)
            call = open_calls.get(home)
            if call is None or len(call.parcels) == size:
                call = open_calls[home] = _Call(home, [])
                calls.append(call)
            call.parcels.append(pack(job, sent.common))
            of_client[job.client] = call
        for call in calls:
            self._ask(call, sent)
        return _Wave(calls, of_client)

    def _ask(self, call: _Call, sent: _Sent) -> None:
        call.worker = self._pool.worker(call.home)
        call.answer = call.worker.train.remote(sent.header, sent.resources, call.parcels)

    def _outcomes(self, waves: deque[_Wave], sent: _Sent) -> Iterator[Outcome]:
        """Yield the outcomes of the first wave in the order of its jobs; who is lost meanwhile is replaced."""
        for client, call in waves[0].of_client.items():
            while client not in call.outcomes:
                found = self._pool.answer(call.answer, call.home)
                if found is not None:
                    call.outcomes = {returned.client: returned for returned in found}
                    call.parcels, call.answer = [], None
                    continue
                if self._pool.worker(call.home) is call.worker:
                    self._pool.replace(call.home)
                for other in (c for wave in waves for c in wave.calls):
                    if not other.outcomes and self._pool.worker(other.home) is not other.worker:
                        self._ask(other, sent)
            yield unpack_outcome(call.outcomes.pop(client), self.examples.device)
