"""The training loss of a method with its add-ons, on one batch of one client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.types import Batch, Output, Params, State, View, cross_entropy

if TYPE_CHECKING:
    from fedcore.compose import Composition

Objective = Callable[[Params], tuple[Tensor, State]]
Differentiate = Callable[[Objective, Params], tuple[Params, Tensor, State]]  # -> gradient, loss, what else came out

METHOD = "method"  # the method's name in state trees; add-ons go by their own


class ComposedLoss:
    """What a `Method.loss` sees as `fit` (see `fedcore.methods.base.Fit`).

    Lives for one step and remembers the add-ons' new states. In a set-up round only the parts that asked for it change
    the task's loss.
    """

    def __init__(self, composition: Composition, net: Net, state: State, view: View, differentiate: Differentiate):
        self._differentiate = differentiate
        self._composition = composition
        self._net = net
        self._before = state
        self._view = view
        self._active = composition.active(view.round)
        self._addons = {name: addon for name, addon in composition.addons.items() if name in self._active}
        self.state: State = dict(state)

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Return the loss [] on a batch."""
        return self._evaluate(params, batch, {})[0]

    def slopes(self, function: Callable[[Params], Tensor], params: Params) -> Params:
        """Return the gradient of a function [] of parameters."""
        return self._differentiate(lambda leaves: (function(leaves), {}), params)[0]

    def mix(self, batch: Batch) -> Batch:
        """Return the batch as the add-ons mix it."""
        for name, addon in self._addons.items():
            batch = addon.mix(batch, part_view(self._view, name))
        return batch

    def joined(self, params: Params, batch: Batch, rows: Tensor) -> tuple[Tensor, Output, Output]:
        """Return the loss, and what the model says of the batch and of `rows`, in one forward pass."""
        total, output, others = self._evaluate(params, batch, {METHOD: rows})
        return total, output, others[METHOD]

    def _evaluate(
        self, params: Params, batch: Batch, joined: Mapping[str, Tensor]
    ) -> tuple[Tensor, Output, dict[str, Output]]:
        """Return the loss, and what the model says of the batch and of every part's rows."""
        parts = [(name, addon, part_view(self._view, name)) for name, addon in self._addons.items()]
        batch = self.mix(batch)
        extra = {name: addon.rows(batch, view) for name, addon, view in parts}
        joined = {**{name: rows for name, rows in extra.items() if rows is not None}, **joined}
        sizes = [len(batch.x), *map(len, joined.values())]
        x = torch.cat([batch.x, *joined.values()]) if joined else batch.x
        output, *others = _split(self._composition.forward(self._net, params, x, self._view), sizes)
        rows = dict(zip(joined, others, strict=True))
        logits = output.logits
        if METHOD in self._active:
            logits = self._composition.method.logits(logits, part_view(self._view, METHOD))
        for _, addon, view in parts:
            logits = addon.logits(logits, view)
        total = batch.mean(task_losses(logits, batch))
        for name, addon, view in parts:
            if type(addon).penalty is Addon.penalty:
                continue
            before = self._before[name]
            seen, also = _at(output, addon.place)._replace(logits=logits), rows.get(name)
            also = also and _at(also, addon.place)
            term, self.state[name] = addon.penalty(self._net, params, before, batch, seen, also, view)
            total = total + term
        return total, output, rows


def task_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy [B] of a batch's rows, of both labels where they are mixed."""
    losses = cross_entropy(logits, batch.y)
    if batch.second:
        labels, share = batch.second
        losses = share * losses + (1 - share) * cross_entropy(logits, labels)
    return losses


def _split(output: Output, sizes: list[int]) -> list[Output]:
    features, logits = torch.split(output.features, sizes), torch.split(output.logits, sizes)
    layers = {name: torch.split(z, sizes) for name, z in output.layers.items()}
    return [
        Output(features[i], logits[i], {name: parts[i] for name, parts in layers.items()}) for i in range(len(sizes))
    ]


def _at(output: Output, place: str | None) -> Output:
    return output if place is None else output._replace(features=output.layers[place])


def part_view(view: View, part: str) -> View:
    """Return the view as one part may see it: with its own share of the server's state."""
    return view._replace(server=view.server[part])
