"""Ditto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from fedcore.config import Train
from fedcore.methods.base import Fit, Method, Phase, named
from fedcore.models.net import Net
from fedcore.types import Batch, Params, State, View

_OWN = "own."


@dataclass(frozen=True)
class Ditto(Method):
    """Ditto: FedAvg, and beside it a model of each client's own that is held near the received one.

    Local step:  phase train:  y <- y - lr * g_i(y)
                 phase own:    v_i <- v_i - lr * (g_i(v_i) + lambda * (v_i - x)),  x as received
    Server:      as FedAvg, over y

    Parameters
    ----------
    strength : float, >= 0
        lambda, the strength of the hold; 0 is Local beside FedAvg.
    own_epochs : int, >= 1, or None, default None
        Epochs of the own model; None takes the training section's epochs or steps. Both phases see the same data
        order.

    State
    -----
    client  v_i  like the model  starts at the initial model, kept while the client is absent

    Presets     no ``paper``: every client chooses its own lambda there, of six.
    Costs       FedAvg's traffic; twice its steps; one model per client in the store.
    Differs     from the paper: one lambda and one learning rate for all clients and both models. The own model is the
                personal view; a training client that has not taken part yet has the initial one, an unseen client uses
                x, and a newcomer starts v_i there (``newcomer_start: server``). Loss terms of add-ons act on both.
                Parameters that an add-on brings exist once, for both models, and learn in both phases; lambda does not
                act on them.
    Source      Li et al., ICML 2021, Algorithm 1. https://arxiv.org/abs/2012.04221
    """

    strength: Annotated[float, Field(ge=0)]
    own_epochs: Annotated[int, Field(ge=1)] | None = None

    def check(self, net: Net, train: Train) -> None:
        """Refuse batch normalisation, whose running statistics exist once and not per model."""
        if net.has_batch_norm:
            raise ValueError("ditto trains two models per client with one set of buffers; use model.norm: group")

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring v_i, at the initial model."""
        return {_OWN + n: p.clone() for n, p in net.initial_params.items()}

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Keep v_i with the client."""
        return not name.startswith(_OWN)

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Train v_i in its phase, everything else in the other."""
        return name.startswith(_OWN) == (phase == "own")

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Train y, then v_i, on the same data order."""
        return Phase(), Phase("own", self.own_epochs)

    def newcomer(self, net: Net, params: Params) -> Params:
        """Start v_i at x."""
        return {**params, **{_OWN + n: params[n] for n in net.initial_params}}

    def loss(self, fit: Fit, net: Net, params: Params, state: State, batch: Batch, view: View) -> tuple[Tensor, State]:
        """Return the loss of the phase's model."""
        return fit(self.personal(net, params) if view.phase == "own" else params, batch), state

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Add lambda * (v_i - x)."""
        return {
            n: g + self.strength * (params[n] - view.anchor[n.removeprefix(_OWN)]) if n.startswith(_OWN) else g
            for n, g in gradient.items()
        }

    def personal(self, net: Net, params: Params) -> Params:
        """Put v_i in the model's place."""
        return {**params, **named(params, _OWN)}
