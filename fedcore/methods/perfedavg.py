"""Per-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedcore.config import Train
from fedcore.methods.base import Local, Method, Phase
from fedcore.models.net import Net
from fedcore.trees import add, subtract
from fedcore.types import Batch, Params, State, View


@dataclass(frozen=True)
class PerFedAvg(Method):
    """Per-FedAvg: learn a model that one gradient step makes good for a client.

    Local step:  u = g_i(w - alpha * g_i(w; D); D')
                 first-order:   w <- w - lr * u
                 Hessian-free:  w <- w - lr * (u - alpha * h),
                                h = (g_i(w + delta * u; D'') - g_i(w - delta * u; D'')) / (2 * delta)
    Server:      x <- x + mean(w_i - x)
    Evaluation:  every client takes `adapt_steps` steps of rate alpha from x on its train split, on a copy

    Parameters
    ----------
    alpha : float, >= 0, default 0.01
        Rate of the inner step; train.lr is beta.
    variant : {"first_order", "hessian_free"}
    delta : float, > 0, default 1e-3
        Width of the Hessian-free variant's finite difference.
    adapt_steps : int, >= 1, default 1

    Presets     ``paper``: alpha, as by default, beta and the number of local steps.
    Costs       FedAvg's traffic; two gradients per step, or four; each evaluation takes adapt_steps steps per client.
    Differs     D, D' and D'' are the parts of one batch of two or three times train.batch_size, so an epoch has fewer
                steps and the examples of one of FedAvg's; a last batch that is not full is filled up with the client's
                own examples. The global view is x before adaptation, the personal and unseen views are after it.
    Source      Fallah et al., NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2002.07948
    """

    alpha: Annotated[float, Field(ge=0)] = 0.01
    variant: Literal["first_order", "hessian_free"] = "first_order"
    delta: Annotated[float, Field(gt=0)] = 1e-3
    adapt_steps: Annotated[int, Field(ge=1)] = 1
    weighting: ClassVar[str | None] = "uniform"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"alpha": 0.01, "train": {"lr": 0.001, "local_steps": 10}},
    }

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Give a step two or three batches."""
        return (Phase(batches=2 if self.variant == "first_order" else 3),)

    def adapt_phases(self, train: Train) -> tuple[Phase, ...]:
        """Take a few steps."""
        return (Phase("adapt", steps=self.adapt_steps),)

    def step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch, view: View
    ) -> tuple[Params, State]:
        """Take a meta-step; an inner step when adapting."""
        if view.phase == "adapt":
            gradient, state = local.gradient(params, state, batch)
            return _moved(params, gradient, -self.alpha), state
        first, second, *third = batch.parts(2 if self.variant == "first_order" else 3)
        gradient, state = local.gradient(params, state, first)
        u, state = local.gradient(_moved(params, gradient, -self.alpha), state, second)
        meta = u
        for part in third:
            above, state = local.gradient(_moved(params, u, self.delta), state, part)
            below, state = local.gradient(_moved(params, u, -self.delta), state, part)
            meta = add(meta, subtract(above, below), -self.alpha / (2 * self.delta))
        return local.descend(params, meta), state


def _moved(params: Params, direction: Params, distance: float) -> Params:
    return {**params, **{n: params[n] + distance * d for n, d in direction.items()}}
