"""DBE: domain bias eliminator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.config import Train
from fedcore.methods.base import Phase
from fedcore.models.net import Net
from fedcore.trees import zeros_like
from fedcore.types import Batch, ClientInfo, Cohort, Output, Params, Population, State, View

_BIAS = "dbe.bias"
_LOOK = "look"  # the phase that sees every example once


@dataclass(frozen=True)
class Dbe(Addon):
    """DBE: a personal bias on the features, and features pulled to a consensus mean.

    Features:    z = f(x) + b_i                                   (PRBM; b_i personal and trained)
    Moving mean: m <- (1 - momentum) * m + momentum * mean_B f(x)  (starts at 0 in every round)
    Loss:        CE(g(z), y) + kappa * mean_d 1/2 (m - m_bar)^2    (mean regularisation)
    Set-up:      every client trains one round of plain cross-entropy from the initial model, whatever the method and
                 the other add-ons; m_bar is the mean of their final m, by examples unless train.weighting is uniform;
                 the trained weights are discarded.

    Parameters
    ----------
    kappa : float, >= 0, default 50.0
        Strength of the mean regularisation; 0 is PRBM alone.
    momentum : float, 0 to 1, default 1.0
        mu of the paper; 1.0 takes the last batch's mean.
    prbm : bool, default True
        Whether b_i exists; False is mean regularisation alone.
    layer : str or None
        Where the body is split: the layer whose output is f(x); what follows it is g. None: the whole body, as MOON and
        FedBR need it unless ``prbm`` is False.
    init_mean : {"last_batch", "full_pass"}
        A client's mean in the set-up round: the last moving mean, as in the code (the last batch's with ``momentum``
        1); or over all its examples under the trained weights, in evaluation mode, as in the paper's text.
    bias_optimiser : {"common", "plain"}
        b_i follows the training section like the model, or plain SGD at train.lr, without momentum, weight decay and
        decay of the rate, as in the code. The same where the section has none of these.
    noise, noise_std : float, >= 0, default 0.0, 1.0
        q and s: every client changes its set-up mean by e ~ N(0, s^2), one draw per element, before it is sent.
    noise_form : {"add", "mix"}
        mean + q * e, or (1 - q) * mean + q * e.

    State
    -----
    server  mean [D]   m_bar, constant after the set-up round
    client  mean [D]   m, scratch of a round
            total [D]  sum over the examples so far, scratch of the set-up round (``full_pass``)
            noise [D]  e (``noise`` above 0)

    Costs       the set-up round: every client receives the model and sends it back, which is discarded, with D scalars
                each way. D scalars down with every model after; D scalars per client in the store.
    Differs     from the released code: nothing in the default setting (its running means are not bias-corrected,
                only the current batch carries gradient, all as here) but, with weight decay, momentum or a decaying
                rate, in `bias_optimiser`. It drops a last batch that is not full, as preset ``paper`` does.
    Source      Zhang et al., NeurIPS 2023, eq. 5-8. https://arxiv.org/abs/2311.14975
    """

    kappa: Annotated[float, Field(ge=0)] = 50.0
    momentum: Annotated[float, Field(ge=0, le=1)] = 1.0
    prbm: bool = True
    layer: str | None = None
    init_mean: Literal["last_batch", "full_pass"] = "last_batch"
    bias_optimiser: Literal["common", "plain"] = "common"
    noise: Annotated[float, Field(ge=0)] = 0.0
    noise_std: Annotated[float, Field(ge=0)] = 1.0
    noise_form: Literal["add", "mix"] = "add"
    setup_rounds: ClassVar[int] = 1
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"bias_optimiser": "plain", "train": {"last_batch": "drop", "batch_size": 10, "lr": 0.005}},
    }

    @property
    def place(self) -> str | None:
        """Look at f(x)."""
        return self.layer

    @property
    def changes_body(self) -> bool:
        """Add b_i inside the body where there is a layer."""
        return self.prbm and self.layer is not None

    def check(self, net: Net, train: Train) -> None:
        """Refuse a layer the model does not have."""
        net.check_layer(self.layer)

    def setup_phases(self, train: Train) -> tuple[Phase, ...]:
        """Look at every example once."""
        return (Phase(_LOOK, epochs=1),) if self.init_mean == "full_pass" else ()

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring b_i, at zero."""
        return {_BIAS: self._zeros(net, net.initial_params)} if self.prbm else {}

    def is_shared(self, net: Net, name: str) -> bool:
        """Keep b_i with the client."""
        return False

    def is_plain(self, name: str) -> bool:
        """Let b_i have an optimiser of its own, if asked to."""
        return self.bias_optimiser == "plain"

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start the consensus mean at zero."""
        return {"mean": self._zeros(net, params)}

    def broadcast(self, server: State) -> State:
        """Send the consensus mean."""
        return server

    def init_client(self, net: Net, params: Params) -> State:
        """Start the moving mean at zero."""
        names = ["mean"] + ["total"] * (self.init_mean == "full_pass") + ["noise"] * (self.noise > 0)
        return {name: self._zeros(net, params) for name in names}

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw e once for all steps."""
        if not self.noise:
            return {}
        drawn = generator.normal(0.0, self.noise_std, net.layer_shape(self.layer))
        return {"dbe.noise": np.broadcast_to(drawn, (steps, *drawn.shape))}

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
        new = dict(state)
        if self.noise:
            new["noise"] = batch.draws["dbe.noise"]
        batch_mean = batch.mean(output.features)
        if view.phase == _LOOK:
            new["total"] = state["total"] + batch_mean.detach() * batch.mask.sum()
            return 0.0, new
        mean = (1 - self.momentum) * state["mean"] + self.momentum * batch_mean
        new["mean"] = mean.detach()
        if view.round < 0 or not self.kappa:
            return 0.0, new
        return self.kappa * (0.5 * (mean - view.server["mean"]) ** 2).mean(), new

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send the client's mean of the set-up round."""
        if view.round >= 0:
            return {}, state
        mean = state["total"] / view.info.num_examples if self.init_mean == "full_pass" else state["mean"]
        if self.noise:
            kept = 1.0 if self.noise_form == "add" else 1.0 - self.noise
            mean = kept * mean + self.noise * state["noise"]
        return {"mean": mean}, state

    def aggregate(self, server: State, mean: State, cohort: Cohort) -> State:
        """Take the consensus mean once."""
        return {"mean": mean["mean"]} if cohort.round < 0 else server

    def _zeros(self, net: Net, params: Params) -> Tensor:
        like = next(iter(params.values()))
        return torch.zeros(net.layer_shape(self.layer), dtype=like.dtype, device=like.device)
