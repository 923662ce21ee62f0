"""DBE: domain bias eliminator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.trees import zeros_like
from fedcore.types import Batch, Cohort, Output, Params, Population, State, View

_BIAS = "dbe.bias"


@dataclass(frozen=True)
class Dbe(Addon):
    """DBE: a personal bias on the features, and features pulled to a consensus mean.

    Features:    z = f(x) + b_i                                   (PRBM; b_i personal and trained)
    Moving mean: m <- (1 - momentum) * m + momentum * mean_B f(x)  (starts at 0 in every round)
    Loss:        CE(g(z), y) + kappa * mean_d 1/2 (m - m_bar)^2    (mean regularisation)
    Set-up:      every client trains one plain round from the initial model; m_bar is the mean of their final m,
                 weighted by examples; the trained weights are discarded.

    Parameters
    ----------
    kappa : float, >= 0, default 50.0
        Strength of the mean regularisation; 0 is PRBM alone.
    momentum : float, 0 to 1, default 1.0
        mu of the paper; 1.0 takes the last batch's mean.
    prbm : bool, default True
        Whether b_i exists; False is mean regularisation alone.

    State
    -----
    server  mean [D]  m_bar, constant after the set-up round
    client  mean [D]  m, scratch of a round

    Costs       D scalars each way once, then as the method below it; D scalars per client in the store.
    Differs     from the released code: nothing in the default setting (its running means are not bias-corrected,
                only the current batch carries gradient, all as here). b_i gets no weight decay there; here it follows
                the training section's.
    Source      Zhang et al., NeurIPS 2023, eq. 5-8. https://arxiv.org/abs/2311.14975
    """

    kappa: Annotated[float, Field(ge=0)] = 50.0
    momentum: Annotated[float, Field(ge=0, le=1)] = 1.0
    prbm: bool = True
    setup_rounds: ClassVar[int] = 1

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring b_i, at zero."""
        like = next(iter(net.initial_params.values()))
        return {_BIAS: torch.zeros(net.feature_dim, dtype=like.dtype, device=like.device)} if self.prbm else {}

    def is_shared(self, net: Net, name: str) -> bool:
        """Keep b_i with the client."""
        return False

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start the consensus mean at zero."""
        return {"mean": self._zeros(net, params)}

    def broadcast(self, server: State) -> State:
        """Send the consensus mean."""
        return server

    def init_client(self, net: Net, params: Params) -> State:
        """Start the moving mean at zero."""
        return {"mean": self._zeros(net, params)}

    def start(self, net: Net, params: Params, state: State, view: View) -> State:
        """Forget the last round's moving mean."""
        return zeros_like(state)

    def features(self, params: Params, features: Tensor, view: View | None) -> Tensor:
        """Add b_i, except in the set-up round."""
        if not self.prbm or (view is not None and view.round < 0):
            return features
        return features + params[_BIAS]

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Move the mean; pull it to the consensus."""
        mean = (1 - self.momentum) * state["mean"] + self.momentum * batch.mean(output.features)
        term: Tensor | float = 0.0
        if view.round >= 0 and self.kappa:
            term = self.kappa * (0.5 * (mean - view.server["mean"]) ** 2).mean()
        return term, {"mean": mean.detach()}

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send the final mean of the set-up round."""
        return ({"mean": state["mean"]} if view.round < 0 else {}), state

    def aggregate(self, server: State, mean: State, cohort: Cohort) -> State:
        """Take the consensus mean once."""
        return {"mean": mean["mean"]} if cohort.round < 0 else server

    def _zeros(self, net: Net, params: Params) -> Tensor:
        like = next(iter(params.values()))
        return torch.zeros(net.feature_dim, dtype=like.dtype, device=like.device)
