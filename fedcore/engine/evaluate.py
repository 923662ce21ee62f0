"""Scores of models on clients' splits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
    """Scores models: forward passes in evaluation mode, nothing else.

    Rows go through the model in chunks of a fixed size, `workers` of them at a time; results do not depend on that.
    """

    def __init__(self, composition: Composition, net: Net, examples: Examples, federation: Federation, workers: int):
        self.workers = workers
        self.composition = composition
        self.net = net
        self.examples = examples
        self.federation = federation

    def shared(self, params: Params, buffers: Params, clients: Sequence[int], split: Split) -> Scores:
        """Score one model on the split of every one of `clients`, all rows in one sweep."""
        sizes = self.federation.sizes(split)[np.asarray(clients, np.int64)]
        return self._score(params, buffers, self.federation.rows_of(clients, split), sizes)

    def own(self, params: Params, buffers: Params, client: int) -> dict[Split, Scores]:
        """Score one client's own model on its own splits."""
        rows = [self.federation.rows(client, split) for split in SPLITS]
        both = self._score(params, buffers, np.concatenate(rows), np.array([len(r) for r in rows], np.int64))
        return {split: both.take(slice(i, i + 1)) for i, split in enumerate(SPLITS)}

    def _score(self, params: Params, buffers: Params, rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Scores:
        """Score one model on rows of several groups: the first ``sizes[0]`` rows, the next ``sizes[1]``, ..."""
        hits, loss = self._rows(params, buffers, rows)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        counted = {
            name: np.bincount(owner, weights=each, minlength=len(sizes)).astype(np.int64) for name, each in hits.items()
        }
        losses = np.bincount(owner, weights=loss, minlength=len(sizes)).astype(np.float64)
        return Scores(sizes, counted.pop(""), losses, counted)

    @torch.no_grad()
    def probabilities(self, params: Params, buffers: Params, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the softmax over the task's classes, [len(rows), Y]."""
        net, classes = self.net.bind(buffers, training=False), self.federation.dataset.num_classes
        parts = [np.empty((0, classes))]
        for begin in range(0, len(rows), _CHUNK):
            x, _ = self.examples.gather(rows[begin : begin + _CHUNK])
            logits = self.composition.forward(net, params, x).logits[:, :classes]
            parts.append(torch.softmax(logits.double(), 1).cpu().numpy())
        return np.concatenate(parts)

    @torch.no_grad()
    def protected(
        self, params: Params, buffers: Params, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
        """Return how strongly each protected attribute shows, the attributes, both [len(rows), P], and the features.

        None where no add-on measures it.
        """
        net = self.net.bind(buffers, training=False)
        x, _ = self.examples.gather(rows)
        features = self.composition.forward(net, params, x).features
        for addon in self.composition.addons.values():
            shown = addon.protected_scores(net, params, features)
            if shown is not None:
                attributes = self.examples.gather_protected(rows)
                scores, truth, seen = (t.double().cpu().numpy() for t in (shown, attributes, features))
                return scores, truth, seen
        return None

    def _rows(
        self, params: Params, buffers: Params, rows: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.float64]]:
        """Return which rows every reading of the logits gets right, and the losses; "" is the largest logit."""
        parts = [rows[begin : begin + _CHUNK] for begin in range(0, len(rows), _CHUNK)]
        if not parts:
            return {"": np.empty(0, bool)}, np.empty(0)
        params = {name: self.net.layout(p) for name, p in params.items()}
        if self.workers > 1 and len(parts) > 1:
            with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                found = list(pool.map(lambda part: self._chunk(params, buffers, part), parts))
        else:
            found = [self._chunk(params, buffers, part) for part in parts]
        hits = {name: np.concatenate([h[name] for h, _ in found]) for name in found[0][0]}
        return hits, np.concatenate([losses for _, losses in found])

    @torch.no_grad()
    def _chunk(
        self, params: Params, buffers: Params, rows: NDArray[np.int64]
    ) -> tuple[dict[str, NDArray[np.bool_]], NDArray[np.float64]]:
        net = self.net.bind(buffers, training=False)
        x, y = self.examples.gather(rows)
        logits = self.composition.forward(net, params, self.net.layout(x)).logits
        read = {"": logits.argmax(1), **self.composition.predictions(logits, self.federation.dataset.num_classes)}
        hits = {name: (classes == y).cpu().numpy() for name, classes in read.items()}
        return hits, cross_entropy(logits, y).double().cpu().numpy()


def concatenate(scores: Sequence[Scores]) -> Scores:
    """Return the scores of several groups of clients as one."""
    return Scores(
        np.concatenate([s.examples for s in scores]),
        np.concatenate([s.correct for s in scores]),
        np.concatenate([s.loss for s in scores]),
        {name: np.concatenate([s.readings[name] for s in scores]) for name in scores[0].readings},
    )
