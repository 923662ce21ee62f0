"""What the server holds between rounds, and how uploads become it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedcore.compose import Composition
from fedcore.engine.local import Folded, Outcome
from fedcore.models.net import Net
from fedcore.trees import Tree, accumulate, num_bytes
from fedcore.types import Cohort, Params, Population, State


@dataclass(frozen=True)
class Server:
    """The shared model and the server's state of every part; a new one each round."""

    params: Params
    buffers: Params
    state: State

    @classmethod
    def initial(cls, composition: Composition, net: Net, params: Params, population: Population) -> Server:
        """Return the server before the first round; `params` are all parameters, personal ones included."""
        shared = composition.shared_names(net, [*params, *net.initial_buffers], -composition.setup_rounds)
        return cls(
            {n: p for n, p in params.items() if n in shared},
            {n: b for n, b in net.initial_buffers.items() if n in shared},
            composition.init_server(net, params, population._replace(shared=shared)),
        )

    def tree(self) -> Tree:
        """Return all of it as one tree; ``Server(**tree)`` undoes this."""
        return {"params": self.params, "buffers": self.buffers, "state": self.state}

    def model(self, own: Tree) -> tuple[Params, Params]:
        """Return the parameters and buffers of a client with these of its own."""
        return {**self.params, **own["params"]}, {**self.buffers, **own["buffers"]}

    def download(self, composition: Composition) -> Tree:
        """Return what every client of a cohort receives."""
        return {"params": self.params, "buffers": self.buffers, "state": composition.broadcast(self.state)}

    def upload(self, outcome: Outcome) -> Tree:
        """Return what a client sends after its local training."""
        return upload(outcome, self.buffers)

    def merge(self, composition: Composition, mean: Tree, cohort: Cohort) -> Server:
        """Return the server after a round with this weighted mean of uploads."""
        params, state = composition.aggregate(self.params, self.state, mean["parts"], cohort)
        return Server(params, self.buffers if cohort.round < 0 else mean["buffers"], state)


def upload(outcome: Outcome, buffers: Iterable[str]) -> Tree:
    """Return what a client sends after its local training; `buffers` are the names of those that travel."""
    return {"parts": outcome.upload, "buffers": {n: outcome.buffers[n] for n in buffers}}


class Reduction:
    """The weighted mean of uploads, summed in the order they come: memory of one upload, whatever the cohort."""

    def __init__(self, weights: Iterable[float]):
        self._weights = iter(weights)
        self._bytes_each = 0
        self.mean: Tree | None = None
        self.bytes = 0

    def add(self, upload: Tree) -> None:
        """Take the next client's upload; all are of one form."""
        if self.mean is None:
            self._bytes_each = num_bytes(upload)
        self.bytes += self._bytes_each
        self.mean = accumulate(self.mean, upload, next(self._weights))

    def add_folded(self, folded: Folded) -> None:
        """Take the next client's upload, which others' were added to; the last of them brings the sum."""
        self.bytes += folded.bytes
        next(self._weights)
        if folded.total is not None:
            self.mean = accumulate(self.mean, folded.total, 1.0)
