"""SCAFFOLD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedcore.methods.base import Method
from fedcore.models.net import Net
from fedcore.trees import add, subtract, zeros_like
from fedcore.types import Cohort, Params, Population, State, View


@dataclass(frozen=True)
class Scaffold(Method):
    """SCAFFOLD: correct client drift with control variates (option II).

    Local step:    y <- y - lr * (g_i(y) + c - c_i)
    After K steps: c_i <- c_i - c + (x - y) / (K * lr)
    Server:        x <- x + eta_g * mean(dy);  c <- c + s * mean(dc),  s the cohort's share

    Parameters
    ----------
    global_step : float, > 0, default 1.0
        eta_g.
    control_step : {"share", "whole"}
        s: the cohort's share of all clients' weight, m / N where they weigh alike, so that c stays the mean of all
        c_i; or 1, as in VHL's code.

    State
    -----
    server  c    like the shared parameters   starts at 0
    client  c_i  like the shared parameters   starts at 0, kept while the client is absent

    Presets     ``paper``: eta_g = 1, as by default, and plain SGD; learning rates are tuned there.
    Costs       twice FedAvg's traffic each way; one model per client in the store.
    Differs     from the paper with momentum: the divisor is the step mass lr * ||a||_1 instead of K * lr, with what the
                momentum has from earlier rounds where it is kept; without it control variates grow too large and
                diverge. Equal for plain SGD. Buffers and personal parameters
                have no control variate. Both means are uniform over the cohort, as in the paper. c is not made smaller
                when newcomers join, whose c_i is 0.
    Source      Karimireddy et al., ICML 2020, Algorithm 1. https://arxiv.org/abs/1910.06378
    """

    global_step: Annotated[float, Field(gt=0)] = 1.0
    control_step: Literal["share", "whole"] = "share"
    weighting: ClassVar[str | None] = "uniform"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"global_step": 1.0, "train": {"momentum": 0.0}},
    }

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Start c at zero."""
        return {"c": self._controlled(net, zeros_like(params))}

    def broadcast(self, server: State) -> State:
        """Send c."""
        return {"c": server["c"]}

    def init_client(self, net: Net, params: Params) -> State:
        """Start c_i at zero."""
        return {"c": self._controlled(net, zeros_like(params))}

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Add c - c_i."""
        server, own = view.server["c"], state["c"]
        return {n: g + server[n] - own[n] if n in own else g for n, g in gradient.items()}

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send dy and dc, keep c_i."""
        moved = {n: params[n] - view.anchor[n] for n in state["c"]}
        change = {n: -view.server["c"][n] - d / view.mass for n, d in moved.items()}
        delta = subtract(shared, {n: view.anchor[n] for n in shared})
        return {"delta": delta, "dc": change}, {"c": add(state["c"], change)}

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Move x by the mean delta, c by the cohort's share of the mean change."""
        step = cohort.share if self.control_step == "share" else 1.0
        return add(shared, mean["delta"], self.global_step), {"c": add(server["c"], mean["dc"], step)}

    def _controlled(self, net: Net, params: Params) -> Params:
        return {n: p for n, p in params.items() if n in net.initial_params and n not in net.stays_local}
