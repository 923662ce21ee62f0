"""`Method`: how clients exchange. The defaults are FedAvg; override the shallowest rung that says what a paper says.

A method is a frozen dataclass whose fields are its hyper-parameters. Hooks are pure functions of one client and
one batch: they return new values, never change their arguments, never branch on a tensor, never draw random numbers
(those arrive in ``batch.draws``), and take means over examples with ``batch.mean`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from torch import Tensor

from fedcore.config import Train
from fedcore.models.net import Net
from fedcore.trees import add, subtract
from fedcore.types import Batch, ClientInfo, Cohort, Output, Params, Population, State, View


class Fit(Protocol):
    """The composed training loss: the task's, with the add-ons' changes and terms."""

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Return the loss [] on a batch."""
        ...

    def slopes(self, function: Callable[[Params], Tensor], params: Params) -> Params:
        """Return the gradient of a function [] of parameters; it is a constant to the loss's own gradient."""
        ...

    def mix(self, batch: Batch) -> Batch:
        """Return the batch as the add-ons mix it; the loss does so by itself."""
        ...

    def joined(self, params: Params, batch: Batch, rows: Tensor) -> tuple[Tensor, Output, Output]:
        """Return the loss, and what the model says of the batch (mixed, where an add-on mixes) and of `rows`.

        The inputs `rows` [R, ...] join the batch in one forward pass; the loss does not see them.
        """
        ...


class Local(Protocol):
    """What a `Method.step` may use: gradients of the composed objective and the local optimiser."""

    def gradient(self, params: Params, state: State, batch: Batch) -> tuple[Params, State]:
        """Return the corrected gradient of the loss in this phase's trained leaves, and the new state."""
        ...

    def descend(self, params: Params, gradient: Params) -> Params:
        """Return the parameters after one step of local SGD along `gradient`."""
        ...


@dataclass(frozen=True)
class Phase:
    """A stretch of local training with one set of trained parameters.

    Attributes
    ----------
    name : str
        Seen by hooks as ``view.phase``.
    epochs : int or None
        Local epochs; None takes ``train.local_epochs`` or ``train.local_steps``.
    first_epoch : int
        Number of the first epoch in the client's data order of the round: two phases that both start at 0 see the
        same order.
    batches : int
        Batches a step gets, as one of ``batches * train.batch_size`` rows; `Batch.parts` takes it apart. With more than
        one, a last one that is not full is filled up, as no part may be short or empty.
    steps : int or None
        A fixed number of local steps instead of epochs.
    learns : bool
        Without it nothing is trained: the model is in evaluation mode, and every row is seen once an epoch.
    owner : str or None
        The add-on whose phase it is, set by the composition; None is the method's.
    plain : bool
        Plain steps on the add-ons' loss, whatever the method and `correct` make of it, as in add-ons' own phases.
    """

    name: str = "train"
    epochs: int | None = None
    first_epoch: int = 0
    batches: int = 1
    steps: int | None = None
    learns: bool = True
    owner: str | None = None
    plain: bool = False


@dataclass(frozen=True)
class Method:
    """FedAvg, and the base of every method."""

    setup_rounds: ClassVar[int] = 0  # rounds of full participation before round 0, whose model updates are discarded
    weighting: ClassVar[str | None] = (
        None  # aggregation weights of its paper, of train.weighting "auto"; None: examples
    )
    trains_all: ClassVar[bool] = False  # every client trains in every round, whatever the participation
    has_global: ClassVar[bool] = True  # there is a server model worth evaluating
    collects_uploads: ClassVar[bool] = False  # `aggregate` needs every upload, not only their mean
    needs_validation: ClassVar[bool] = False  # local training uses a client's `Federation.fitting_rows`
    # By name, the hyper-parameters a preset sets; `train` in it is the training section's. "clean" is the recommended
    # setting, "paper" what a paper states of the one of its numbers; a part without that has no "paper".
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"clean": {}}

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the resources it uses."""
        return ()

    @property
    def compares_features(self) -> bool:
        """Whether it compares the body's features with those of other models, without the changes of add-ons."""
        return False

    # --- 0 names: which parameters exist, travel, learn ---

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Return parameters beyond the model's."""
        return {}

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Return whether this parameter or buffer travels and is aggregated; if not it stays with the client.

        One that stops travelling in some round stays with every client at the server's last value.
        """
        return True

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Return whether this parameter learns in this phase."""
        return True

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Return the phases of local training."""
        return (Phase(),)

    def adapt_phases(self, train: Train) -> tuple[Phase, ...]:
        """Return the phases a client runs on a copy of its model before its personal evaluation."""
        return ()

    def check(self, net: Net, train: Train) -> None:
        """Raise ValueError if this method cannot run with this model or training section."""

    # --- 1 state: what is remembered ---

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Return the server's state beyond the shared parameters."""
        return {}

    def broadcast(self, server: State) -> State:
        """Return what of the server's state every client of the cohort receives besides the shared parameters."""
        return {}

    def download(self, server: State, client: int) -> State:
        """Return what one client receives that others do not; tensors of the same shapes for every client."""
        return {}

    def init_client(self, net: Net, params: Params) -> State:
        """Return the state of a client that never took part."""
        return {}

    def newcomer(self, net: Net, params: Params) -> Params:
        """Return the parameters of a client that joins after the training, where it starts from the server's.

        Parameters
        ----------
        params : Params
            The server's values; of what stays with clients its last ones, or initial ones of what never travelled.
        """
        return params

    def start(self, net: Net, params: Params, state: State, view: View) -> tuple[Params, State]:
        """Return what a client starts its local training with."""
        return params, state

    # --- 2 objective: what is minimised ---

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Return this client's random arrays of a phase, each with a leading axis of `steps`."""
        return {}

    def loss(self, fit: Fit, net: Net, params: Params, state: State, batch: Batch, view: View) -> tuple[Tensor, State]:
        """Return the loss [] on one batch and the new state."""
        return fit(params, batch), state

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Return the logits [B, Y] the training loss gets, before add-ons change them; evaluation never calls this."""
        return logits

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Return the gradient the optimiser gets."""
        return gradient

    # --- 3 step: the escape hatch for several gradients per batch ---

    def step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch, view: View
    ) -> tuple[Params, State]:
        """Return parameters and state after one local step."""
        gradient, state = local.gradient(params, state, batch)
        return local.descend(params, gradient), state

    # --- 4 exchange: what is sent, kept, merged, and used ---

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Return the upload and the state to keep.

        Parameters
        ----------
        shared : Params
            The shared ones of `params`, after local training.
        """
        return {"delta": subtract(shared, {n: view.anchor[n] for n in shared})}, state

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Return the new shared parameters and server state.

        Parameters
        ----------
        shared, server
            Before the round.
        mean : State
            Weighted mean of the uploads over the cohort.
        """
        return add(shared, mean["delta"]), server

    def personal(self, net: Net, params: Params) -> Params:
        """Return the parameters of a client's own model, which its personal evaluation and export use."""
        return params


def named(params: Mapping[str, Tensor], prefix: str) -> Params:
    """Return the parameters below `prefix`, without it."""
    return {name[len(prefix) :]: value for name, value in params.items() if name.startswith(prefix)}
