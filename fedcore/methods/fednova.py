"""FedNova."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedcore.methods.base import Method
from fedcore.trees import add
from fedcore.types import Cohort, Params, State, View


@dataclass(frozen=True)
class FedNova(Method):
    """FedNova: average normalised updates, so that clients with more local steps do not pull the model to themselves.

    Upload:    d_i = (y - x) / mass_i  and  mass_i,  mass_i = lr * ||a_i||_1
    Server:    x <- x + (sum_i p_i mass_i) * sum_i p_i d_i

    Presets     ``paper``: batch 32 and momentum 0.9, one of its local solvers. Its clients draw 2 to 5 epochs anew in
                every round, which is not offered.
    Costs       as FedAvg, and one scalar up.
    Differs     the step mass comes from the optimiser itself: momentum, that of earlier rounds too where it is kept,
                and a proximal term. tau_eff is the mean of the masses for every local solver. Buffers get FedAvg's
                mean.
    Source      Wang et al., NeurIPS 2020, eq. 9. https://arxiv.org/abs/2007.07481
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"train": {"batch_size": 32, "momentum": 0.9}},
    }

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send the normalised delta and the mass."""
        return {"direction": {n: (p - view.anchor[n]) / view.mass for n, p in shared.items()}, "mass": view.mass}, state

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Move along the mean direction by the mean mass."""
        return add(shared, mean["direction"], mean["mass"]), server
