"""Which client trains next when several train at a time, and when its outcome is due."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import islice

from fedcore.engine.local import Job, Outcome

_AHEAD = 8  # jobs a worker that are begun or done before their turn: nobody waits, memory stays small


class Turns:
    """Hands out jobs, longest first so that workers end together, and gives back outcomes in the order of the jobs."""

    def __init__(self, jobs: Iterator[Job], workers: int):
        self._jobs = enumerate(jobs)
        self._ahead = _AHEAD * workers
        self._waiting: list[tuple[int, int, Job]] = []  # a heap: minus its steps, its number, the job
        self._done: dict[int, Outcome] = {}
        self._due = 0
        self._made = 0

    def take(self) -> tuple[int, Job] | None:
        """Return the job to begin next, and its number; None while there is none."""
        for number, job in islice(self._jobs, self._ahead - (self._made - self._due)):
            heappush(self._waiting, (-job.num_steps, number, job))
            self._made += 1
        if not self._waiting:
            return None
        _, number, job = heappop(self._waiting)
        return number, job

    def put(self, number: int, outcome: Outcome) -> None:
        """Keep what came of a job until its turn."""
        self._done[number] = outcome

    def due(self) -> Iterator[Outcome]:
        """Give the outcomes whose turn it is."""
        while self._due in self._done:
            self._due += 1
            yield self._done.pop(self._due - 1)
