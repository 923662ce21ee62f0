"""FedAdam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from fedcore.methods.base import Method
from fedcore.models.net import Net
from fedcore.trees import add, zeros_like
from fedcore.types import Cohort, Params, Population, State


@dataclass(frozen=True)
class FedAdam(Method):
    """FedAdam: FedOpt with Adam on the server; the mean update d = sum_i p_i (y_i - x) stands in for the gradient.

    Local step:  as FedAvg
    Server:      m <- beta1 * m + (1 - beta1) * d;  v <- beta2 * v + (1 - beta2) * d^2
                 x <- x + server_lr * m / (sqrt(v) + tau)

    Parameters
    ----------
    server_lr : float, > 0, default 0.01
        eta_g; about how far a coordinate moves in a round.
    beta1 : float, 0 to 1 (exclusive), default 0.9
    beta2 : float, 0 to 1, default 0.99
        1 keeps v where it starts.
    tau : float, > 0, default 1e-3
        Degree of adaptivity; small ones adapt more.

    State
    -----
    server  m  like the model's shared parameters   starts at 0
    server  v  like the model's shared parameters   starts at tau^2

    Presets     ``paper``: beta1, beta2 and tau, as by default; it tunes both learning rates for each task.
    Costs       as FedAvg; two models more on the server.
    Differs     from the paper: the mean has the training section's weighting. As there, no bias correction. Buffers and
                what add-ons bring along get FedAvg's mean.
    Source      Reddi et al., ICLR 2021, Algorithm 2. https://arxiv.org/abs/2003.00295
    """

    server_lr: Annotated[float, Field(gt=0)] = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, le=1)] = 0.99
    tau: Annotated[float, Field(gt=0)] = 1e-3
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3},
    }

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start m at zero, v at tau^2."""
        travelling = {n: p for n, p in params.items() if n in net.initial_params and n not in net.stays_local}
        return {
            "m": zeros_like(travelling),
            "v": {n: torch.full_like(p, self.tau**2) for n, p in travelling.items()},
        }

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Take one step of Adam along the mean delta."""
        delta = mean["delta"]
        m = {n: self.beta1 * old + (1 - self.beta1) * delta[n] for n, old in server["m"].items()}
        v = {n: self.beta2 * old + (1 - self.beta2) * delta[n] ** 2 for n, old in server["v"].items()}
        moves = {n: self.server_lr * m[n] / (v[n].sqrt() + self.tau) for n in m}
        return add(shared, {**delta, **moves}), {"m": m, "v": v}
