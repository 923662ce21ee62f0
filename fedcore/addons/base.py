"""`Addon`: what a client minimises beyond the task. Any number of add-ons go on top of any method.

The same laws hold as for methods: frozen dataclasses, pure hooks of one client and one batch. An add-on sees its own
state and its own share of the server's state only, and cannot replace the step or the aggregation of the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedcore.config import Train
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Cohort, Output, Params, Population, State, View


@dataclass(frozen=True)
class Addon:
    """Base of every add-on; the defaults change nothing."""

    setup_rounds: ClassVar[int] = 0
    needs: ClassVar[tuple[str, ...]] = ()  # names of the resources it uses

    def num_outputs(self, num_classes: int) -> int:
        """Return how many outputs it adds to the model's head."""
        return 0

    def check(self, net: Net, train: Train) -> None:
        """Raise ValueError if this add-on cannot run with this model or training section."""

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Return parameters this add-on trains; name them with a prefix of its own."""
        return {}

    def is_shared(self, net: Net, name: str) -> bool:
        """Return whether this one of its extra parameters travels."""
        return True

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Return its state on the server."""
        return {}

    def broadcast(self, server: State) -> State:
        """Return what of its server state every client of the cohort receives."""
        return {}

    def init_client(self, net: Net, params: Params) -> State:
        """Return its state on a client that never took part."""
        return {}

    def start(self, net: Net, params: Params, state: State, view: View) -> State:
        """Return its state at the start of a client's local training."""
        return state

    def draws(self, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo) -> dict[str, Any]:
        """Return its random arrays of a client's round, each with a leading axis of `steps`."""
        return {}

    def mix(self, batch: Batch, view: View) -> Batch:
        """Return the batch the training loss is taken on; with ``second`` set, on both labels by their shares."""
        return batch

    def features(self, params: Params, features: Tensor, view: View | None) -> Tensor:
        """Return the features [B, D] the head gets; in evaluation `view` is None."""
        return features

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Return the logits [B, Y] the training loss gets; evaluation never calls this."""
        return logits

    def rows(self, batch: Batch, view: View) -> Tensor | None:
        """Return inputs [R, ...] that join the batch in one forward pass, or None."""
        return None

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Return a term [] added to the training loss, and its new state.

        Parameters
        ----------
        output : Output
            Of the batch.
        rows : Output or None
            Of its own `rows`.
        """
        return 0.0, state

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Return the gradient after its change, before momentum; cheap quadratic terms belong here."""
        return gradient

    def damping(self) -> float:
        """Return mu if `correct` adds ``mu * (params - anchor)``; the step mass accounts for it."""
        return 0.0

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Return its upload and the state to keep."""
        return {}, state

    def aggregate(self, server: State, mean: State, cohort: Cohort) -> State:
        """Return its new server state; `mean` is the weighted mean of its uploads."""
        return server
