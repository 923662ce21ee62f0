"""Clients' models of the rounds that were best on their test splits, as LG-FedAvg's released code scores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.engine.evaluate import Scorer
from fedcore.engine.local import Outcome
from fedcore.engine.server import Server
from fedcore.engine.store import ClientStore
from fedcore.trees import Tree, accumulate
from fedcore.types import Params

_GROUPS = ("params", "buffers")


@dataclass
class Snapshots:
    """For every client the round in which its own model was best on its own test split, and that model.

    What is shared is kept once a round. It all lies in memory.

    Attributes
    ----------
    accuracies : [N] float64
        Of the snapshots; -1 before there is one.
    rounds : [N] int64
    own, shared : dict of trees
        What stays with a client, by client; what the server had, by round.
    """

    accuracies: NDArray[np.float64]
    rounds: NDArray[np.int64]
    own: dict[int, Tree] = field(default_factory=dict)
    shared: dict[int, Tree] = field(default_factory=dict)

    @classmethod
    def none(cls, num_clients: int) -> Snapshots:
        """Return those of a training that is about to start."""
        return cls(np.full(num_clients, -1.0), np.full(num_clients, -1))

    def take(self, round: int, server: Server, store: ClientStore, accuracies: NDArray[np.float64]) -> None:
        """Take a snapshot of every client whose test accuracy [N] is above that of its last one.

        A client without test examples keeps its first.
        """
        present = np.nan_to_num(accuracies, nan=0.0)
        better = np.flatnonzero(present > self.accuracies)
        self.accuracies[better], self.rounds[better] = present[better], round
        for client in map(int, better):
            tree = store.get(client)
            self.own[client] = {group: tree[group] for group in _GROUPS}
        self.shared[round] = {"params": server.params, "buffers": server.buffers}
        self.shared = {r: tree for r, tree in self.shared.items() if r in self.rounds}

    def models(self, names: Mapping[str, Sequence[str]]) -> list[Tree]:
        """Return every client's snapshot, with the uniform mean over all snapshots in place of what is shared.

        Parameters
        ----------
        names : mapping of sequences of str
            What is shared by now, of ``params`` and ``buffers``.
        """
        whole = [
            {group: {**self.shared[int(r)][group], **self.own[client][group]} for group in _GROUPS}
            for client, r in enumerate(self.rounds)
        ]
        mean: Tree | None = None
        for model in whole:
            part = {group: {n: model[group][n] for n in names[group]} for group in _GROUPS}
            mean = accumulate(mean, part, 1 / len(whole))
        assert mean is not None
        return [{group: {**model[group], **mean[group]} for group in _GROUPS} for model in whole]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint keeps of them, by path."""
        found = {"accuracies": torch.from_numpy(self.accuracies), "rounds": torch.from_numpy(self.rounds)}
        for kind, trees in (("own", self.own), ("shared", self.shared)):
            for number, tree in trees.items():
                found.update({f"{kind}/{number}/{g}/{n}": leaf for g in _GROUPS for n, leaf in tree[g].items()})
        return found

    @classmethod
    def from_tensors(cls, found: Mapping[str, torch.Tensor]) -> Snapshots:
        """Undo `tensors`."""
        snapshots = cls(found["accuracies"].cpu().numpy(), found["rounds"].cpu().numpy())
        for client in np.flatnonzero(snapshots.rounds >= 0):
            snapshots.own[int(client)] = {group: {} for group in _GROUPS}
        for round in set(snapshots.rounds.tolist()) - {-1}:
            snapshots.shared[round] = {group: {} for group in _GROUPS}
        for path, leaf in found.items():
            if "/" in path:
                kind, number, group, name = path.split("/", 3)
                getattr(snapshots, kind)[int(number)][group][name] = leaf
        return snapshots


def snapshot_metrics(
    scorer: Scorer, snapshots: Snapshots, server: Server, personal: Callable[[Params], Params]
) -> dict[str, float]:
    """Score the snapshots, what is shared averaged, on every client's own test split.

    Returns
    -------
    dict
        ``best_on_test/test/...`` as of the personal view. Models and their rounds were chosen on that very split, so it
        says more than the models will keep; the paper's figures are of this kind (Liang et al., 2019).
    """
    names = {"params": list(server.params), "buffers": list(server.buffers)}
    models = (
        Outcome(client, personal(model["params"]), model["buffers"], {}, {}, torch.zeros(()), 0)
        for client, model in enumerate(snapshots.models(names))
    )
    return {f"best_on_test/test/{name}": value for name, value in scorer.own(models)["test"].spread().items()}
