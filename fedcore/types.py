"""What hooks see and return.

Shape letters: N clients, C clients in a block, K local steps, B batch rows, D feature width, Y classes.
Method and add-on code sees ONE client and ONE batch: no C axis, no loop; the engine adds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]  # name -> leaf; names of the model's parameters, plus a method's extra ones
State = dict[str, Any]  # a tree a method or add-on remembers; keeps its keys and shapes

_NONE = torch.empty(0)


class Batch(NamedTuple):
    """Rows of one client's train split.

    Attributes
    ----------
    x : [B, ...] float
        Model inputs, normalised.
    y : [B] int64
        Labels.
    mask : [B] float
        1 for an example, 0 for padding. Padding rows are copies of real rows.
    draws : dict of tensors
        This step's random numbers, drawn by the ``draws`` hooks.
    second : () or (labels [B] int64, share [])
        Of mixed inputs: the other labels, and the share of ``y``; see `Addon.mix`.
    protected : [B, P] float
        Protected attributes, 0 or 1; P is 0 where the data set has none.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    draws: dict[str, Tensor]
    second: tuple[Tensor, ...] = ()
    protected: Tensor = _NONE

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``values`` [B, ...] over the examples; padding never counts."""
        mask = self.mask.reshape(-1, *[1] * (values.dim() - 1))
        return (values * mask).sum(0) / self.mask.sum()

    def parts(self, count: int) -> list[Batch]:
        """Return `count` batches of equal numbers of rows; see `Phase.batches`.

        A part of nothing but padding gets the mask of copies of real rows, so that no mean is ever empty.
        """
        size = len(self.mask) // count
        parts = []
        for begin in range(0, count * size, size):
            cut = slice(begin, begin + size)
            mask = self.mask[cut]
            mask = torch.where(mask.sum() > 0, mask, torch.ones_like(mask))
            parts.append(self._replace(x=self.x[cut], y=self.y[cut], mask=mask, protected=self.protected[cut]))
        return parts


class ClientInfo(NamedTuple):
    """Facts of one client, counted on its train split."""

    num_examples: Tensor  # [] float
    class_counts: Tensor  # [Y] float


class Population(NamedTuple):
    """Facts of all training clients together, known to the server."""

    num_clients: int
    class_counts: Tensor  # [Y] float, over the train splits
    generator: np.random.Generator  # the server's random stream before the first round
    shared: frozenset[str] = frozenset()  # parameters and buffers that travel in the first round


class View(NamedTuple):
    """All one client may look at in a round besides its parameters and state; read-only."""

    anchor: Params  # parameters the client starts the round with: shared as received, and its own
    server: State  # this part's share of what the server sent to everybody
    received: State  # what the method sent to this client alone; see `Method.download`
    resources: State  # data every client holds a copy of, by name: virtual data, pseudo data
    validation: Batch | None  # those of this client's validation rows that methods may fit to
    info: ClientInfo
    num_steps: Tensor  # [] local steps this client takes this round, over all phases
    mass: Tensor  # [] sum of the steps' learning rates, momentum included: lr * num_steps for plain SGD
    lr: float | Tensor  # this client's learning rate; [] where clients of a block have different ones
    round: int  # 0, 1, ...; negative in a set-up round; see `fedcore.engine.observed`
    phase: str
    shared: frozenset[str] = frozenset()  # parameters that travel in this round


class Output(NamedTuple):
    """What a model says about B rows."""

    features: Tensor  # [B, D] what the body makes; of an add-on with a `layer`, [B, ...] what that layer makes
    logits: Tensor  # [B, Y]
    layers: Mapping[str, Tensor] = {}  # the layers that add-ons look at, by name


class Cohort(NamedTuple):
    """What the server knows of one round's uploads besides their mean."""

    clients: tuple[int, ...]
    weights: tuple[float, ...]  # sum to one
    num_clients: int  # N
    round: int
    generator: np.random.Generator  # the server's random stream of this round
    resources: State  # as in `View`
    uploads: tuple[State, ...] = ()  # every client's, for methods that ask for them
    share: float = (
        1.0  # its weights before they were made to sum to one, over all clients'; uniform ones: its size over N
    )


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy [B] of logits [B, Y] against labels [B]."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
