"""Scores of models on clients' splits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.compose import Composition
from fedcore.data.federation import Federation
from fedcore.engine.local import Examples, Outcome
from fedcore.engine.stacked_scores import not_shared, score_rows
from fedcore.metrics.accuracy import Scores
from fedcore.models.net import Net
from fedcore.trees import num_bytes
from fedcore.types import Params, cross_entropy

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("val", "test")
_Found = tuple[dict[str, NDArray[np.bool_]], NDArray[np.float64]]  # right by reading, losses

_TOGETHER = 64  # clients' own models that are scored at a time
_BYTES = 2**28  # of all of them
_BYTES_ON_CPU = 2**26
_SMALL = 2**17  # bytes of a model; copying more of it takes a CPU longer than calling models one by one
_LONG = 2**22  # multiplications of a call that other threads may run beside
_CHUNK = 512  # rows per forward pass; fixed, so that results do not depend on memory


class Scorer:
    """Scores models: forward passes in evaluation mode, nothing else.

    Rows go through the model in chunks of a fixed size. Clients' own models are scored many at a time; on a CPU those
    that convolve, or have much that is not shared, go one by one, on the rows of several. There `workers` chunks, or
    groups of own models, are scored side by side; results do not depend on that.
    """

    def __init__(self, composition: Composition, net: Net, examples: Examples, federation: Federation, workers: int):
        self.workers = workers
        self._on_cpu = examples.device.type == "cpu"
        self._together = _TOGETHER
        self._bytes = _BYTES_ON_CPU if self._on_cpu else _BYTES
        self.composition = composition
        self.net = net
        self.examples = examples
        self.federation = federation

    def shared(self, params: Params, buffers: Params, clients: Sequence[int], split: Split) -> Scores:
        """Score one model on the split of every one of `clients`, all rows in one sweep."""
        sizes = self.federation.sizes(split)[np.asarray(clients, np.int64)]
        return _summed(*self._rows(params, buffers, self.federation.rows_of(clients, split), self.workers), sizes)

    def own(self, models: Iterable[Outcome]) -> dict[Split, Scores]:
        """Score every client's own model on its own splits; one entry per model."""
        queue = iter(models)
        first = list(islice(queue, 1))
        side_by_side = self._on_cpu and self.workers > 1 and bool(first) and self._gain_from_threads(first[0])
        queue = chain(first, queue)
        scores = concatenate(list(self._side_by_side(queue) if side_by_side else self._in_turn(queue)))
        return {split: scores.take(slice(i, None, len(SPLITS))) for i, split in enumerate(SPLITS)}

    def _in_turn(self, models: Iterable[Outcome]) -> Iterator[Scores]:
        """Score one group after the other; with half as many models in each once memory runs out."""
        queue, waiting = iter(models), list[Outcome]()
        while waiting or (waiting := list(islice(queue, 1))):
            together = self._fitting(waiting[0])
            waiting += islice(queue, max(0, together - len(waiting)))
            some = waiting[:together]
            try:
                found = self._own(some)
            except torch.OutOfMemoryError:
                if len(some) == 1:
                    raise
                self._together = len(some) // 2
                continue
            del waiting[: len(some)]
            yield found

    def _side_by_side(self, models: Iterable[Outcome]) -> Iterator[Scores]:
        """Score groups on threads; no more of them wait than there are threads, as each holds its models."""
        queue = iter(models)
        under_way: deque[Future[Scores]] = deque()
        with _threads(self.workers) as pool:
            for first in queue:
                group = [first, *islice(queue, self._fitting(first) - 1)]
                under_way.append(pool.submit(self._own, group))
                if len(under_way) > self.workers:
                    yield under_way.popleft().result()
            yield from (each.result() for each in under_way)

    def _is_long(self, params: Params, rows: int) -> bool:
        """Return whether a call of such a model on so many rows is long enough not to wait for the interpreter."""
        return self.net.has_convolutions or rows * sum(p.numel() for p in params.values()) >= _LONG

    def _gain_from_threads(self, model: Outcome) -> bool:
        """Return whether own models like this are scored faster on threads: small ones are called many at a time."""
        rows = sum(len(self.federation.rows(model.client, split)) for split in SPLITS)
        return num_bytes(model.params) <= _SMALL or self._is_long(model.params, rows)

    def _fitting(self, model: Outcome) -> int:
        """Return how many models of this size are held at a time."""
        size = num_bytes(model.params) + num_bytes(model.buffers)
        return max(1, min(self._together, self._bytes // max(size, 1)))

    def _own(self, models: Sequence[Outcome]) -> Scores:
        """Score some clients' own models; their splits one after another."""
        rows = [self.federation.rows(model.client, split) for model in models for split in SPLITS]
        sizes = np.array([len(r) for r in rows], np.int64)
        each = [np.concatenate(rows[begin : begin + len(SPLITS)]) for begin in range(0, len(rows), len(SPLITS))]
        copied = num_bytes(not_shared([(m.params | m.buffers) for m in models]))
        if len(models) == 1 or not sizes.any() or (self._on_cpu and (self.net.has_convolutions or copied > _SMALL)):
            pieces = [
                piece for m, r in zip(models, each, strict=True) for piece in self._pieces(m.params, m.buffers, r)
            ]
            return _summed(*self._joined([self._score(run) for run in _runs(pieces)]), sizes)
        hits, loss = score_rows(self._forward, self._read, self.examples, [(m.params, m.buffers) for m in models], each)
        return _summed(hits, loss, sizes)

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

    def _rows(self, params: Params, buffers: Params, rows: NDArray[np.int64], workers: int) -> _Found:
        """Return which rows every reading of the logits gets right, and the losses; "" is the largest logit."""
        runs = [[piece] for piece in self._pieces(params, buffers, rows)]
        if workers > 1 and len(runs) > 1 and self._is_long(params, _CHUNK):
            with _threads(workers) as pool:
                return self._joined(list(pool.map(self._score, runs)))
        return self._joined([self._score(run) for run in runs])

    def _pieces(self, params: Params, buffers: Params, rows: NDArray[np.int64]) -> list[_Piece]:
        params = {name: self.net.layout(p) for name, p in params.items()}
        return [_Piece(params, buffers, rows[begin : begin + _CHUNK]) for begin in range(0, len(rows), _CHUNK)]

    @torch.no_grad()
    def _score(self, run: Sequence[_Piece]) -> _Found:
        """Return what `_rows` does, of pieces that may be different models': all rows are read at once."""
        x, y = self.examples.gather(np.concatenate([piece.rows for piece in run]))
        parts = torch.split(x, [len(piece.rows) for piece in run])
        logits = [self._forward(p.params, p.buffers, self.net.layout(part)) for p, part in zip(run, parts, strict=True)]
        hits, loss = self._read(torch.cat(logits), y)
        return {name: each.cpu().numpy() for name, each in hits.items()}, loss.double().cpu().numpy()

    def _joined(self, found: Sequence[_Found]) -> _Found:
        if not found:  # no rows have the same readings
            width = self.composition.num_outputs(self.federation.dataset.num_classes)
            read, _ = self._read(torch.zeros(0, width), torch.zeros(0, dtype=torch.int64))
            return dict.fromkeys(read, np.empty(0, np.bool_)), np.empty(0)
        hits = {name: np.concatenate([h[name] for h, _ in found]) for name in found[0][0]}
        return hits, np.concatenate([losses for _, losses in found])

    def _forward(self, params: Params, buffers: Params, x: Tensor) -> Tensor:
        return self.composition.forward(self.net.bind(buffers, training=False), params, x).logits

    def _read(self, logits: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return by reading which labels are right, and the losses."""
        read = {"": logits.argmax(1), **self.composition.predictions(logits, self.federation.dataset.num_classes)}
        return {name: classes == labels for name, classes in read.items()}, cross_entropy(logits, labels)


class _Piece(NamedTuple):
    """Rows that go through a model in one pass."""

    params: Params
    buffers: Params
    rows: NDArray[np.int64]


def _runs(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Return pieces in their order, in groups of no more rows than the largest piece may have."""
    run: list[_Piece] = []
    taken = 0
    for piece in pieces:
        if taken + len(piece.rows) > _CHUNK:
            yield run
            run, taken = [], 0
        run.append(piece)
        taken += len(piece.rows)
    if run:
        yield run


def _threads(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


def _summed(hits: Mapping[str, NDArray[np.bool_]], loss: NDArray[np.float64], sizes: NDArray[np.int64]) -> Scores:
    """Return the scores of groups of rows: the first ``sizes[0]`` rows, the next ``sizes[1]``, ..."""
    owner, number = np.repeat(np.arange(len(sizes)), sizes), len(sizes)
    counted = {n: np.bincount(owner, weights=each, minlength=number).astype(np.int64) for n, each in hits.items()}
    losses = np.bincount(owner, weights=loss, minlength=number).astype(np.float64)
    return Scores(sizes, counted.pop(""), losses, counted)


def concatenate(scores: Sequence[Scores]) -> Scores:
    """Return the scores of several groups of clients as one."""
    return Scores(
        np.concatenate([s.examples for s in scores]),
        np.concatenate([s.correct for s in scores]),
        np.concatenate([s.loss for s in scores]),
        {name: np.concatenate([s.readings[name] for s in scores]) for name in scores[0].readings},
    )
