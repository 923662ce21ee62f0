"""Scores of models on clients' splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.compose import Composition
from fedcore.data.federation import Federation
from fedcore.engine.local import Examples
from fedcore.metrics.accuracy import Scores
from fedcore.models.net import Net
from fedcore.types import Params, cross_entropy

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("val", "test")
_CHUNK = 512  # rows per forward pass; fixed, so that results do not depend on memory


class Scorer:
    """Scores models: forward passes in evaluation mode, nothing else."""

    def __init__(self, composition: Composition, net: Net, examples: Examples, federation: Federation):
        self.composition = composition
        self.net = net
        self.examples = examples
        self.federation = federation

    def shared(self, params: Params, buffers: Params, clients: Sequence[int], split: Split) -> Scores:
        """Score one model on the split of every one of `clients`, all rows in one sweep."""
        rows = [self.federation.rows(client, split) for client in clients]
        return self._score(params, buffers, rows)

    def own(self, params: Params, buffers: Params, client: int) -> dict[Split, Scores]:
        """Score one client's own model on its own splits."""
        rows = [self.federation.rows(client, split) for split in SPLITS]
        both = self._score(params, buffers, rows)
        return {split: both.take(slice(i, i + 1)) for i, split in enumerate(SPLITS)}

    def _score(self, params: Params, buffers: Params, rows: Sequence[NDArray[np.int64]]) -> Scores:
        sizes = np.array([len(r) for r in rows], np.int64)
        correct, loss = self._rows(params, buffers, np.concatenate(rows) if rows else np.empty(0, np.int64))
        owner = np.repeat(np.arange(len(rows)), sizes)
        hits = np.bincount(owner, weights=correct, minlength=len(rows)).astype(np.int64)
        return Scores(sizes, hits, np.bincount(owner, weights=loss, minlength=len(rows)).astype(np.float64))

    @torch.no_grad()
    def _rows(
        self, params: Params, buffers: Params, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        net = self.net.bind(buffers, training=False)
        hits, losses = [], []
        for begin in range(0, len(rows), _CHUNK):
            x, y = self.examples.gather(rows[begin : begin + _CHUNK])
            logits = self.composition.forward(net, params, x).logits
            hits.append(logits.argmax(1) == y)
            losses.append(cross_entropy(logits, y).double())
        if not hits:
            return np.empty(0, bool), np.empty(0)
        return torch.cat(hits).cpu().numpy(), torch.cat(losses).cpu().numpy()


def concatenate(scores: Sequence[Scores]) -> Scores:
    """Return the scores of several groups of clients as one."""
    return Scores(
        np.concatenate([s.examples for s in scores]),
        np.concatenate([s.correct for s in scores]),
        np.concatenate([s.loss for s in scores]),
    )
