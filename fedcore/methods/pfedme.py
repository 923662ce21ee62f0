"""pFedMe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from fedcore.config import Train
from fedcore.methods.base import Local, Method, named
from fedcore.models.net import Net
from fedcore.trees import add
from fedcore.types import Batch, Cohort, Params, State, View

_OWN = "own."


@dataclass(frozen=True)
class PFedMe(Method):
    """pFedMe: personal models from Moreau envelopes; the shared one follows the envelopes' gradient.

    Local step:  theta <- theta - inner_lr * (g_i(theta) + lambda * (theta - w))   inner_steps times on one batch
                 w <- w - lr * lambda * (w - theta)
    Server:      x <- x + beta * mean(w_i - x)

    Parameters
    ----------
    strength : float, > 0, default 15.0
        lambda; times train.lr it must not exceed 1, beyond which w overshoots theta.
    inner_steps : int, >= 1, default 5
        K.
    inner_lr : float, > 0, default 0.01
        eta_p, the learning rate of theta; train.lr is eta.
    beta : float, > 0, default 1.0

    State
    -----
    client  theta_i  like the model  starts each round at the received model, then goes on from step to step; kept
                     while the client is absent

    Presets     ``paper``: its MNIST, R = 20 as local steps; lambda and K are the defaults, beta is tuned there.
    Costs       FedAvg's traffic; inner_steps gradients per step; one model per client in the store.
    Differs     from the paper's pseudo-code, which leaves open where theta starts. The training section's momentum and
                weight decay act on the step of w. theta is the personal view; a training client that has not taken
                part yet has the initial model, an unseen client uses x. Running statistics are those of theta.
                Parameters of add-ons take one step of train.lr per batch, along their gradient in the last inner step.
    Source      T Dinh et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2006.08848
    """

    strength: Annotated[float, Field(gt=0)] = 15.0
    inner_steps: Annotated[int, Field(ge=1)] = 5
    inner_lr: Annotated[float, Field(gt=0)] = 0.01
    beta: Annotated[float, Field(gt=0)] = 1.0
    weighting: ClassVar[str | None] = "uniform"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {
            "strength": 15.0,
            "inner_steps": 5,
            "inner_lr": 0.1,
            "train": {"batch_size": 20, "lr": 0.005, "local_steps": 20},
        },
    }

    def check(self, net: Net, train: Train) -> None:
        """Refuse steps of w that overshoot."""
        step = self.strength * train.lr
        if step > 1:
            raise ValueError(
                f"strength * train.lr is {step:g}, expected at most 1; use strength {1 / train.lr:g} or a smaller lr"
            )

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring theta, at the initial model."""
        return {_OWN + n: p.clone() for n, p in net.initial_params.items()}

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Keep theta with the client."""
        return not name.startswith(_OWN)

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Take gradients by the model's names, under which `step` puts theta."""
        return not name.startswith(_OWN)

    def start(self, net: Net, params: Params, state: State, view: View) -> tuple[Params, State]:
        """Start theta at w."""
        return {n: params[n.removeprefix(_OWN)] if n.startswith(_OWN) else p for n, p in params.items()}, state

    def step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch, view: View
    ) -> tuple[Params, State]:
        """Approach the envelope's minimiser, then move w towards it."""
        theta = named(params, _OWN)
        gradient: Params = {}
        for _ in range(self.inner_steps):
            gradient, state = local.gradient({**params, **theta}, state, batch)
            theta = {n: p - self.inner_lr * (gradient[n] + self.strength * (p - params[n])) for n, p in theta.items()}
        addons = {n: g for n, g in gradient.items() if n not in theta}
        new = local.descend(params, {**addons, **{n: self.strength * (params[n] - p) for n, p in theta.items()}})
        return {**new, **{_OWN + n: p for n, p in theta.items()}}, state

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Move x by beta times the mean delta."""
        return add(shared, mean["delta"], self.beta), server

    def personal(self, net: Net, params: Params) -> Params:
        """Put theta in the model's place."""
        return {**params, **named(params, _OWN)}
