"""Answers of a registered model: every row by its client's own model, strangers by the global one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.engine.export import Predictor, load_predictor

# Rows that go through a network together: activations of more would take a lot of memory.
_ROWS = 512
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Answers:
    """What a model says of n rows.

    Attributes
    ----------
    logits : array [n, Y] float32
    known : array [n] bool or None
        Which rows were answered by their client's own model; None for a global model.
    """

    logits: NDArray[np.float32]
    known: NDArray[np.bool_] | None

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Softmax of the logits, [n, Y]."""
        logits = self.logits.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        result: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return result

    @property
    def labels(self) -> NDArray[np.int64]:
        """The most probable class of every row, [n]; of equals the first."""
        labels: NDArray[np.int64] = self.logits.argmax(axis=1).astype(np.int64)
        return labels


class Service:
    """A run's models behind one question: what is this row, which client is it from?

    Parameters
    ----------
    predictor : Predictor
    fallback : Predictor or None
        Whose global model answers for clients without a model of their own; None: `predictor`'s.
    is_personal : bool
        Whether rows are routed by client; if not, the global model answers all.

    Raises
    ------
    ValueError
        If the fallback takes other inputs or knows other classes.
    """

    def __init__(self, predictor: Predictor, fallback: Predictor | None, is_personal: bool):
        self._predictor = predictor
        self._shared = predictor if fallback is None else fallback
        facts = [(p.input_shape, p.class_names, p.num_tokens) for p in (predictor, self._shared)]
        if facts[0] != facts[1]:
            raise ValueError("the fallback model takes other inputs or knows other classes than the model")
        self._clients = np.array(sorted(predictor.clients), np.int64)
        self.is_personal = is_personal
        self.class_names = predictor.class_names
        self.input_shape = predictor.input_shape
        self.num_features = int(np.prod(predictor.input_shape))

    def answer(self, inputs: NDArray[Any], clients: NDArray[np.int64] | None) -> Answers:
        """Return the answers to raw rows.

        Parameters
        ----------
        inputs : array [n, *input_shape]
            As checked by `rows`.
        clients : array [n] int64, or None for a global model
        """
        logits = np.zeros((len(inputs), len(self.class_names)), np.float32)
        if not self.is_personal or clients is None:
            _fill(logits, np.arange(len(inputs)), inputs, self._shared, None)
            return Answers(logits, None)
        known = np.isin(clients, self._clients)
        for client, rows in _by_client(clients, np.flatnonzero(known)):
            _fill(logits, rows, inputs, self._predictor, client)
        _fill(logits, np.flatnonzero(~known), inputs, self._shared, None)
        return Answers(logits, known)

    def rows(self, features: NDArray[Any], where: Callable[[int, int], str]) -> NDArray[np.float32]:
        """Return flat features [n, F] as raw inputs [n, *input_shape] float32.

        Parameters
        ----------
        where : function of (row, feature), both counted from 0
            Names a value in the message.

        Raises
        ------
        ValueError
            If there are more or fewer features than the model takes, or a value is not finite, or no token id where
            the model takes those.
        """
        if features.shape[1] != self.num_features:
            raise ValueError(f"{features.shape[1]} features, expected {self.expected}")
        valid = np.abs(features) <= _LARGEST
        expected = "a finite number"
        if self._predictor.num_tokens is not None:
            valid &= (features == np.floor(features)) & (features >= 0) & (features < self._predictor.num_tokens)
            expected = f"a token id 0..{self._predictor.num_tokens - 1}"
        if not valid.all():
            row, feature = map(int, np.argwhere(~valid)[0])
            raise ValueError(f"{where(row, feature)} is {features[row, feature]}, expected {expected}")
        return features.astype(np.float32).reshape(-1, *self.input_shape)

    @property
    def expected(self) -> str:
        """The number of features, and their arrangement if they have one: ``64 (1 x 8 x 8)``."""
        shape = " x ".join(map(str, self.input_shape))
        return f"{self.num_features} ({shape})" if len(self.input_shape) > 1 else shape


def load_service(folder: Path, fallback: Path | None, is_personal: bool) -> Service:
    """Read the models of a run folder, and of the one whose global model serves strangers.

    Raises
    ------
    ValueError
        If a file is missing or not readable.
    """
    return Service(load_predictor(folder), None if fallback is None else load_predictor(fallback), is_personal)


def _by_client(clients: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the clients of some rows, each with its rows."""
    order = rows[np.argsort(clients[rows], kind="stable")]
    values, starts = np.unique(clients[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, starts[1:]), strict=False)


def _fill(
    logits: NDArray[np.float32], rows: NDArray[np.int64], inputs: NDArray[Any], predictor: Predictor, client: int | None
) -> None:
    """Write the logits of some rows, a stretch of them at a time."""
    for start in range(0, len(rows), _ROWS):
        stretch = rows[start : start + _ROWS]
        logits[stretch] = predictor.logits(inputs[stretch], client)
