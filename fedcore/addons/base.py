"""`Addon`: what a client minimises beyond the task. Any number of add-ons go on top of any method.

The same laws hold as for methods: frozen dataclasses, pure hooks of one client and one batch. An add-on sees its own
state and its own share of the server's state only, and cannot replace the step or the aggregation of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedcore.config import Train
from fedcore.methods.base import Phase
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Cohort, Output, Params, Population, State, View


@dataclass(frozen=True)
class Addon:
    """Base of every add-on; the defaults change nothing."""

    setup_rounds: ClassVar[int] = 0
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"clean": {}}  # see `Method.presets`

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the resources it uses."""
        return ()

    @property
    def place(self) -> str | None:
        """The layer whose output it looks at and may change; None is the whole body's."""
        return None

    @property
    def changes_body(self) -> bool:
        """Whether its `features` change what goes on inside the body."""
        return False

    @property
    def compares_features(self) -> bool:
        """Whether it compares the body's features with those of other models, without the changes of add-ons."""
        return False

    def num_outputs(self, num_classes: int) -> int:
        """Return how many outputs it adds to the model's head."""
        return 0

    def check(self, net: Net, train: Train) -> None:
        """Raise ValueError if this add-on cannot run with this model or training section."""

    def check_resources(self, resources: State, num_classes: int) -> None:
        """Raise ValueError if what every client holds does not go with this add-on and `num_classes` labels.

        `resources` are those it `needs`, perhaps without their inputs ``x``.
        """

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Return parameters this add-on trains; name them with a prefix of its own."""
        return {}

    def is_shared(self, net: Net, name: str) -> bool:
        """Return whether this one of its extra parameters travels."""
        return True

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Return whether this one of its extra parameters learns in this phase."""
        return True

    def is_plain(self, name: str) -> bool:
        """Return whether this one of its extra parameters learns by plain SGD at the first round's rate.

        Momentum, weight decay and the decay of the learning rate then leave it alone.
        """
        return False

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Return phases of its own before the method's, in which its extra parameters alone learn."""
        return ()

    def setup_phases(self, train: Train) -> tuple[Phase, ...]:
        """Return phases after the training of a set-up round, to look at the data without learning."""
        return ()

    def prepare(self, net: Net, params: Params, resources: State, generator: np.random.Generator) -> Params:
        """Return the parameters that the training starts from."""
        return params

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

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Return its random arrays of a phase of a client, each with a leading axis of `steps`."""
        return {}

    def mix(self, batch: Batch, view: View) -> Batch:
        """Return the batch the training loss is taken on; with ``second`` set, on both labels by their shares."""
        return batch

    def features(self, params: Params, features: Tensor, view: View | None) -> Tensor:
        """Return what goes on in place of the features [B, D] (or its layer's output); in evaluation `view` is None."""
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
            Of the batch; its logits are those the cross-entropy got, as all parts made them.
        rows : Output or None
            Of its own `rows`.
        """
        return 0.0, state

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Return the gradient after its change, before momentum; cheap quadratic terms belong here."""
        return gradient

    def damping(self, so_far: float) -> float:
        """Return mu of a term ``mu * (params - anchor)`` that `correct` leaves in the gradient, for the step mass.

        Parameters
        ----------
        so_far : float
            The mu of the gradient that `correct` gets.
        """
        return so_far

    def predictions(self, logits: Tensor, num_classes: int) -> dict[str, Tensor]:
        """Return other readings of the logits [B, Y] of the global model, by name: classes [B] to score."""
        return {}

    def protected_scores(self, net: Net, params: Params, features: Tensor) -> Tensor | None:
        """Return how strongly each protected attribute shows [B, P] by this add-on's own measure, or None."""
        return None

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Return its upload and the state to keep."""
        return {}, state

    def aggregate(self, server: State, mean: State, cohort: Cohort) -> State:
        """Return its new server state; `mean` is the weighted mean of its uploads."""
        return server
