"""All that changes from round to round, and how a checkpoint keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.compose import Composition
from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.evaluate import SPLITS, Split
from fedcore.engine.local import Outcome
from fedcore.engine.server import Server
from fedcore.engine.snapshots import Snapshots
from fedcore.engine.store import ClientStore, grown
from fedcore.engine.summary import best_row
from fedcore.engine.views import Evaluation
from fedcore.metrics.accuracy import Scores
from fedcore.models.net import Net
from fedcore.trees import Tree, flatten

_FACTS = ("next_round", "download_bytes", "upload_bytes", "history", "timing")


@dataclass(frozen=True)
class Selection:
    """The models of the round that a view's validation accuracy chose."""

    accuracy: float
    round: int
    server: Server
    store: ClientStore
    participations: NDArray[np.int64]  # as of that round: learning rates of adaptation depend on them
    clients: dict[Split, Scores]

    def restored(self, progress: Progress) -> Progress:
        """Return `progress` with all that models of the chosen round were made of."""
        return replace(progress, server=self.server, store=self.store, participations=self.participations)


@dataclass
class Progress:
    """All that changes from round to round; what a checkpoint holds."""

    server: Server
    store: ClientStore
    participations: NDArray[np.int64]
    velocities: NDArray[np.float64]  # where clients keep momentum: of a scalar whose gradient always was one
    next_round: int
    download_bytes: int = 0
    upload_bytes: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    timing: list[dict[str, float]] = field(default_factory=list)
    last: dict[Split, Scores] = field(default_factory=dict)
    selected: dict[str, Selection] = field(default_factory=dict)  # by view, "global" and "personal"
    unseen: dict[Split, Scores] = field(default_factory=dict)  # all clients', in the round that the unseen view selects
    snapshots: Snapshots | None = None  # for methods with something of the clients' own, where asked for
    held: list[ClientStore | None] = field(default_factory=list)  # of the last checkpoint

    def keep(self, outcome: Outcome) -> None:
        """Store what stays with a client after its local training, and count that it took part."""
        own = self.store.initial
        kept: Tree = {
            "params": {n: outcome.params[n] for n in own["params"]},
            "buffers": {n: outcome.buffers[n] for n in own["buffers"]},
            "state": outcome.state,
        }
        self.store.put(outcome.client, kept)
        self.participations[outcome.client] += 1

    def restage(self, composition: Composition, net: Net, round: int) -> None:
        """Let the leaves that stop travelling in this round stay with the clients, at the server's values."""
        server, initial = self.server, self.store.initial
        params = {**initial["params"], **server.params}
        buffers = {**initial["buffers"], **server.buffers}
        shared = composition.shared_names(net, [*params, *buffers], round)
        if shared == {*server.params, *server.buffers}:
            return
        own: Tree = {
            "params": {n: p for n, p in params.items() if n not in shared},
            "buffers": {n: b for n, b in buffers.items() if n not in shared},
            "state": initial["state"],
        }
        self.store = self.store.restaged(own)
        self.server = replace(
            server,
            params={n: p for n, p in params.items() if n in shared},
            buffers={n: b for n, b in buffers.items() if n in shared},
        )

    def select(self, result: Evaluation, round: int) -> None:
        """Note a round's evaluation; select its models for every view with the best validation accuracy so far."""
        self.last = result.clients
        for view in ("global", "personal"):
            # Without validation examples the last round is chosen.
            accuracy = result.metrics.get(f"{view}/val/accuracy", float(round))
            best = self.selected.get(view)
            if f"{view}/test/accuracy" in result.metrics and (best is None or accuracy > best.accuracy):
                models = self.server, self.store.copy(), self.participations.copy()
                self.selected[view] = Selection(accuracy, round, *models, result.clients)
        best_unseen = best_row([*self.history, result.metrics], "unseen/val/accuracy") or result.metrics
        if "unseen/test/accuracy" in result.metrics and best_unseen is result.metrics:
            self.unseen = result.clients


def save(progress: Progress, checkpoint: Checkpoint) -> None:
    """Write a checkpoint."""
    progress.store.sync()
    tensors = _models_out("", progress.server, progress.store)
    tensors["participations"] = torch.from_numpy(progress.participations)
    tensors["velocities"] = torch.from_numpy(progress.velocities)
    tensors.update(_scores_out("last", progress.last))
    tensors.update(_scores_out("unseen", progress.unseen))
    for view, chosen in progress.selected.items():
        at = f"selected/{view}"
        tensors.update(_models_out(f"{at}/", chosen.server, chosen.store))
        tensors[f"{at}/participations"] = torch.from_numpy(chosen.participations)
        tensors.update(_scores_out(f"{at}/scores", chosen.clients))
    if progress.snapshots:
        tensors.update({f"snapshots/{path}": leaf for path, leaf in progress.snapshots.tensors().items()})
    facts = {name: getattr(progress, name) for name in _FACTS}
    checkpoint.save(tensors, {**facts, "chosen": {v: [s.accuracy, s.round] for v, s in progress.selected.items()}})
    _hold(progress)


def resume(progress: Progress, checkpoint: Checkpoint, device: torch.device) -> None:
    """Take up a checkpoint, if there is one of this run; `progress` is that of a run about to start."""
    loaded = checkpoint.load(device)
    if loaded is None:
        return
    tensors, facts = loaded
    start = progress.store

    def below(prefix: str) -> dict[str, torch.Tensor]:
        return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}

    def models(at: str) -> tuple[Server, ClientStore]:
        # Which leaves travel may differ from the first round's: their groups are the file's, not the start's.
        server = Server(**grown(below(f"{at}server/"), progress.server.state))
        store = start.empty(grown(below(f"{at}initial/"), progress.store.initial["state"]))
        store.load_state_dict(below(f"{at}client/"))
        return server, store

    for view, (accuracy, round) in facts["chosen"].items():
        at = f"selected/{view}/"
        scores = _scores_in(below(f"{at}scores/"))
        participations = tensors[f"{at}participations"].cpu().numpy()
        progress.selected[view] = Selection(accuracy, round, *models(at), participations, scores)
    progress.server, progress.store = models("")
    progress.participations = tensors["participations"].cpu().numpy()
    progress.velocities = tensors["velocities"].cpu().numpy()
    progress.last = _scores_in(below("last/"))
    progress.unseen = _scores_in(below("unseen/"))
    kept = below("snapshots/")
    progress.snapshots = Snapshots.from_tensors(kept) if kept else None
    for name in _FACTS:
        setattr(progress, name, facts[name])
    _hold(progress)


def _hold(progress: Progress) -> None:
    """Keep what the checkpoint on the disk speaks of until there is another one."""
    progress.held = [store.held() for store in (progress.store, *(s.store for s in progress.selected.values()))]


def _models_out(prefix: str, server: Server, store: ClientStore) -> dict[str, torch.Tensor]:
    return {
        **{f"{prefix}server/{k}": v for k, v in flatten(server.tree()).items()},
        **{f"{prefix}initial/{k}": v for k, v in flatten(store.initial).items()},
        **{f"{prefix}client/{k}": v for k, v in store.state_dict().items()},
    }


def _scores_out(prefix: str, scores: Mapping[Split, Scores]) -> dict[str, torch.Tensor]:
    return {
        f"{prefix}/{split}/{name}": torch.from_numpy(getattr(s, name))
        for split, s in scores.items()
        for name in ("examples", "correct", "loss")
    }


def _scores_in(leaves: Mapping[str, torch.Tensor]) -> dict[Split, Scores]:
    found: dict[Split, Scores] = {}
    for split in SPLITS:
        if f"{split}/loss" in leaves:
            examples, correct, loss = (leaves[f"{split}/{n}"].cpu().numpy() for n in ("examples", "correct", "loss"))
            found[split] = Scores(examples, correct, loss)
    return found
