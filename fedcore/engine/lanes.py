"""Which client is on which lane of a stack and when: decided on the host before the first step.

A stack takes all its lanes one step further at a time. A client sits on one lane from its first step to its last; then
the next one takes the lane over, so that short clients do not idle until the longest has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SLACK = 1.05  # a lane is worth its work if without it a round took this much longer than its longest client


@dataclass(frozen=True)
class Segment:
    """A stretch of steps between two changes of clients.

    Attributes
    ----------
    begin, end : int
        Steps of the stack: begin..end - 1.
    entering, onto : [E] int64
        Clients that start at `begin`, and their lanes.
    leaving, off : [F] int64
        Clients that are through at `end`, and their lanes.
    """

    begin: int
    end: int
    entering: NDArray[np.int64]
    onto: NDArray[np.int64]
    leaving: NDArray[np.int64]
    off: NDArray[np.int64]


class Stay(NamedTuple):
    """A client on its lane: from `begin`, its own until `end`, left over until `until`, when the next one comes."""

    client: int
    lane: int
    begin: int
    until: int
    end: int


@dataclass(frozen=True)
class Plan:
    """All clients' places on the lanes.

    Attributes
    ----------
    lanes : int
        L
    steps : [C] int64
        Local steps of every client.
    lane, begin, end : [C] int64
        Its lane, and the steps of the stack it sits there: begin..end - 1. A client idles between its last step and
        `end`, which ends a call.
    """

    lanes: int
    steps: NDArray[np.int64]
    lane: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def length(self) -> int:
        """Steps of the stack until all are through."""
        return int(self.end.max(initial=0))

    @property
    def segments(self) -> list[Segment]:
        """The stretches in their order; every change of clients ends one."""
        borders = np.unique(np.concatenate([[0], self.end])).tolist()
        found = []
        for begin, end in pairwise(borders):
            entering = np.flatnonzero(self.begin == begin)
            leaving = np.flatnonzero(self.end == end)
            found.append(Segment(begin, end, entering, self.lane[entering], leaving, self.lane[leaving]))
        return found

    @property
    def stays(self) -> list[Stay]:
        """What every lane sees from the first step of the stack to the last; after its last client, that one's rows."""
        found = []
        following = np.full(self.lanes, self.length)
        for client in np.argsort(-self.begin, kind="stable"):
            lane, begin = int(self.lane[client]), int(self.begin[client])
            found.append(Stay(int(client), lane, begin, int(following[lane]), int(self.end[client])))
            following[lane] = begin
        return found


def plan(steps: Sequence[int], lanes: int, call: int = 1) -> Plan:
    """Place clients on lanes, longest first, each on the lane that is free first.

    Parameters
    ----------
    steps : sequence of int
        Local steps of every client, at least 1.
    lanes : int
        At least 1; more than there are clients are left out.
    call : int
        Steps that are taken at a time: clients change between calls only.
    """
    wanted = np.asarray(steps, np.int64)
    seats = -(-wanted // call) * call
    lane, begin = np.zeros_like(wanted), np.zeros_like(wanted)
    lanes = min(lanes, len(wanted))
    free = [(0, number) for number in range(lanes)]
    for client in np.argsort(-seats, kind="stable"):
        begin[client], lane[client] = free[0]
        heapq.heapreplace(free, (free[0][0] + int(seats[client]), free[0][1]))
    # The first clients sit in their order, so that they need not be moved about.
    place = np.empty(lanes, np.int64)
    place[lane[np.flatnonzero(begin == 0)]] = np.arange(lanes)
    return Plan(lanes, wanted, place[lane], begin, begin + seats)


def enough_lanes(steps: Sequence[int], call: int = 1, *, halvings: bool = False) -> int:
    """Return the fewest lanes on which clients take about as long as the longest of them alone.

    Parameters
    ----------
    halvings : bool
        Choose among the number of clients, half of it, a quarter, ... alone: for functions that are made anew for
        every number of lanes.
    """
    clients = len(steps)
    bound = _SLACK * plan(steps, clients, call).length
    if halvings:
        number = clients
        while number > 1 and plan(steps, -(-number // 2), call).length <= bound:
            number = -(-number // 2)
        return number
    seats = [-(-each // call) * call for each in steps]
    number = max(1, min(clients, int(sum(seats) // max(bound, 1))))
    while number < clients and plan(steps, number, call).length > bound:
        number += 1
    return number
