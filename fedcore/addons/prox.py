"""The proximal term of FedProx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.types import Params, State, View


@dataclass(frozen=True)
class Prox(Addon):
    """FedProx: keep local models near the received one.

    Loss:      F_i(y) + mu/2 * ||y - x||^2, so the gradient gains mu * (y - x)

    Parameters
    ----------
    mu : float, >= 0
        0 is the method without it, bit for bit.

    Presets     no ``paper``: it tunes mu for each data set.
    Costs       none.
    Differs     added to the gradient before momentum (exact, and cheaper than through the loss); acts on the
                model's own parameters, shared and personal alike, anchored at what the client started the round with;
                never on buffers or on parameters that methods and add-ons bring along.
    Source      Li et al., MLSys 2020, eq. 2. https://arxiv.org/abs/1812.06127
    """

    mu: Annotated[float, Field(ge=0)]

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Add mu * (y - x)."""
        return {
            n: g + self.mu * (params[n] - view.anchor[n]) if n in net.initial_params else g for n, g in gradient.items()
        }

    def damping(self, so_far: float) -> float:
        """Return what came before, and mu."""
        return so_far + self.mu
