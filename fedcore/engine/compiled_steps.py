"""One client's steps of a phase by compiled functions."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedcore.engine.client_batches import ClientBatches
from fedcore.engine.compiled import Compiler, Loop, filled, flat
from fedcore.engine.example_space import ExampleSpace, Places, is_worthwhile, layer, padded
from fedcore.engine.gradients import by_transform
from fedcore.engine.local import Learning, LocalTraining, Scaling, scaled
from fedcore.trees import Tree
from fedcore.types import Batch, View


class CompiledSteps:
    """Takes as many steps as there are functions for, the longest functions first.

    Where a layer sees the inputs themselves, and it saves work, a function is made of its coordinates in the space of
    the client's examples (`example_space`). Which functions serve a client depends on its number of examples and steps
    alone, so that the last bits of a result do not depend on who trained before.
    """

    def __init__(
        self, compiler: Compiler, training: LocalTraining, batches: ClientBatches, view: View, learning: Learning
    ):
        self._compiler = compiler
        self._training = training
        self._batches = batches
        self._learning = learning
        self._view = view
        examples = batches.examples
        lr = torch.full((), float(view.lr), dtype=examples.dtype, device=examples.device)
        self._constants = (view._replace(round=0, lr=lr), examples.scaling)

    def take(self, carry: Tree, loss: Tensor) -> tuple[Tree, Tensor, int]:
        """Return the carry after the steps that were taken, the loss with theirs, and their number."""
        batches, total, taken = self._batches, self._batches.schedule.steps, 0
        refused: set[str | None] = set()
        for size, exchanged in self._ways(carry):
            begins = range(taken, total - size + 1, size)
            if not begins or exchanged in refused:
                continue
            places = None if exchanged is None else self._places(carry, exchanged, len(begins) * size)
            if places is None and exchanged is not None:
                continue
            taking = partial(batches.several, size=size, with_inputs=places is None)
            loop = self._loop(carry, taking(taken), size, places)
            if loop is None:
                refused.add(exchanged)
                continue
            leaves = flat(carry)[0]
            space = None if places is None else ExampleSpace(batches.all_inputs(), leaves, places)
            leaves = leaves if space is None else space.enter(leaves)
            for begin in begins:
                given = flat(taking(begin))[0]
                given = given if space is None else space.given(given, batches.positions(begin, size))
                leaves, losses = loop(leaves, given)
                loss = loss + losses
            carry = filled(carry, iter(leaves if space is None else space.leave(leaves)))
            taken = begins[-1] + size
        return carry, loss, taken

    def _ways(self, carry: Tree) -> list[tuple[int, str | None]]:
        """Return steps per function, and the weight that is exchanged in it, in the order of preference."""
        params, width = carry["params"], self._batches.width
        learning = sum(params[n].numel() for n in self._learning.names)
        unrolled = partial(self._compiler.backend.unrolled, rows=width, convolves=self._training.net.has_convolutions)
        size = unrolled(learning)
        shape = self._batches.examples.inputs.shape[1:]
        ways: list[tuple[int, str | None]] = [(size, None), (1, None)]
        exchanged = layer(params, self._learning.names, shape.numel())
        if exchanged is not None:
            weight = params[exchanged]
            fewer = learning - weight.numel() + padded(self._batches.num_examples) * len(weight)
            ways = [(unrolled(fewer), exchanged), (size, exchanged), *ways]
        return ways

    def _places(self, carry: Tree, name: str, steps: int) -> Places | None:
        """Return where a weight is exchanged if that saves work."""
        weight, batches = carry["params"][name], self._batches
        if not is_worthwhile(batches.num_examples, steps, batches.width, weight):
            return None
        leaves = flat(carry)[0]
        at = next(i for i, leaf in enumerate(leaves) if leaf is weight)
        return Places(at, len(leaves), padded(batches.num_examples))

    def _loop(self, carry: Tree, batches: Batch, size: int, places: Places | None) -> Loop | None:
        def steps(carry: Tree, chunk: Batch, own: tuple[View, Scaling], round: Any) -> tuple[Tree, Tensor]:
            view, scaling = own
            chunk = chunk._replace(x=scaled(chunk.x, scaling))
            return self._training.steps(carry, chunk, view._replace(round=round), self._learning, by_transform)

        name, key = f"steps of phase '{self._view.phase}'", (self._learning, size)
        name += "" if places is None else " in the space of examples"
        return self._compiler.loop(name, key, steps, self._view.round, carry, batches, self._constants, places)
