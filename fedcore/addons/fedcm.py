"""FedCM's client optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.trees import zeros_like
from fedcore.types import Cohort, Params, Population, State, View


@dataclass(frozen=True)
class Fedcm(Addon):
    """FedCM: every local step also goes the way that all clients went in the last round.

    Local step:  the method's, along  alpha * g_i(y) + (1 - alpha) * d
    Server:      d <- sum_i p_i (x - y_i) / mass_i,  mass_i = lr * K_i for plain SGD, p_i as of the model

    Parameters
    ----------
    alpha : float, 0 (exclusive) to 1, default 0.1
        Share of the client's own gradient; 1 is the method without it, bit for bit.

    State
    -----
    server  direction  d, like the model's shared parameters; starts at 0

    Costs       the shared parameters once more each way; no state on clients.
    Differs     from the paper: d is uploaded by itself, since clients may take different numbers of steps, where the
                server could make it of equally long ones' models. Weight decay and momentum come after the mixture, as
                with every add-on. Acts on the model's own parameters that travel; in the first round, when d is 0,
                gradients shrink by alpha, as there. FedBR's code skips the mixture until there is a direction, and adds
                mixup. With phases of several parts of a model K_i counts the steps of all of them. What a client trains
                before it is evaluated (fine-tuning) goes along the mixture too.
    Source      Xu et al., 2021, Algorithm 2. https://arxiv.org/abs/2106.10874
    """

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.1
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"train": {"lr": 0.1, "lr_decay": 0.998, "weight_decay": 1e-3, "local_epochs": 5}},
    }

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start d at zero."""
        names = sorted(population.shared & set(net.initial_params)) if self.alpha < 1 else []
        return {"direction": zeros_like({n: params[n] for n in names})}

    def broadcast(self, server: State) -> State:
        """Send d."""
        return server

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Mix the gradient with d."""
        d = view.server["direction"]
        return {n: self.alpha * g + (1 - self.alpha) * d[n] if n in d else g for n, g in gradient.items()}

    def damping(self, so_far: float) -> float:
        """Return alpha's share of what the gradient had."""
        return self.alpha * so_far

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send the mean direction of the client's steps."""
        names = [n for n in view.server["direction"] if n in view.shared]
        return {"direction": {n: (view.anchor[n] - params[n]) / view.mass for n in names}}, state

    def aggregate(self, server: State, mean: State, cohort: Cohort) -> State:
        """Take the mean of what was sent; what does not travel any more keeps its direction."""
        return {"direction": {**server["direction"], **mean["direction"]}}
