"""One client's local training, written once for every executor."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedcore.compose import Composition
from fedcore.config import Train
from fedcore.engine.augment import Augmentation
from fedcore.engine.optim import descend
from fedcore.engine.schedule import Schedule
from fedcore.methods.base import Method, Phase
from fedcore.models.net import Net
from fedcore.objective import Differentiate
from fedcore.trees import Tree, zeros_like
from fedcore.types import Batch, ClientInfo, Params, State, View

_PLAIN = Method()
_OPTIMISER = "optimiser"  # its branch of a client's state, beside the parts'


@dataclass(frozen=True)
class Job:
    """One client's work in one round, or its adaptation before an evaluation."""

    client: int
    rows: NDArray[np.int64]  # its train split
    params: Params  # shared and personal
    buffers: Params
    state: State
    info: ClientInfo
    schedules: tuple[Schedule, ...]  # one per phase
    draws: tuple[dict[str, Any], ...]  # one per phase
    learning_steps: int  # those of the method's own phases
    lr: float
    mass: float
    received: State  # what the server sent to this client alone
    validation: NDArray[np.int64] | None  # those that the method may fit to, where it does

    @property
    def num_steps(self) -> int:
        """Steps over all phases."""
        return sum(schedule.steps for schedule in self.schedules)


def at_rest(state: State) -> State:
    """Return a client's state without the momentum it keeps from its rounds."""
    return {**state, _OPTIMISER: zeros_like(state[_OPTIMISER])} if _OPTIMISER in state else state


@dataclass(frozen=True)
class Folded:
    """A client's upload that was added to those of others where it was made."""

    total: Tree | None  # weighted sum of a group's uploads, on the group's last client; see `Reduction`
    bytes: int  # of this client's upload


@dataclass(frozen=True)
class Outcome:
    """What one client's local training left."""

    client: int
    params: Params
    buffers: Params
    state: State
    upload: State
    loss: Tensor  # [] mean training loss over its steps
    steps: int
    folded: Folded | None = None  # instead of the upload


@dataclass(frozen=True)
class Folding:
    """What it takes to add up uploads where clients train."""

    weights: Mapping[int, float]  # by client
    buffers: frozenset[str]  # names of those that travel


@dataclass(frozen=True)
class Assignment:
    """What is common to the jobs of one round."""

    phases: tuple[Phase, ...]
    server: State  # the broadcast part of the server's state
    resources: State
    shared: frozenset[str]  # names of the parameters that travel
    round: int
    returned: frozenset[str] | None = None  # parameters whose values are wanted back at least; None: all
    folding: Folding | None = None  # where uploads may be added up before they come back; None: nowhere
    finishes: bool = True  # whether clients make uploads, and states to keep; an adaptation is for the models alone


class Learning(NamedTuple):
    """What learns in a phase, and how."""

    names: tuple[str, ...]
    is_plain: bool  # plain steps on the loss without the method's part in it, whatever the method makes of a step


class LocalTraining:
    """The hooks of a composition, called in order for one client."""

    def __init__(self, composition: Composition, net: Net, train: Train, augmentation: Augmentation | None = None):
        self.composition = composition
        reduced = net.reduced(torch.bfloat16) if train.precision == "bfloat16" else net
        self.net = reduced.convolving_by_products() if train.convolutions == "products" else reduced
        self.train = train
        self._augmentation = augmentation
        self.plain = composition.plain_names(net)
        self.plain_train = train.model_copy(update={"momentum": 0.0, "weight_decay": 0.0})
        self._learning: dict[Phase, Learning] = {}  # by phase: clients do not differ in it

    def init_client(self, params: Params) -> State:
        """Return the state of a client that never took part."""
        state = self.composition.init_client(self.net, params)
        return {**state, _OPTIMISER: zeros_like(params)} if self.train.keeps_momentum else state

    def begin(self, params: Params, buffers: Params, state: State, view: View) -> Tree:
        """Return what a client carries through its steps."""
        net = self.net.bind(buffers, training=False)
        momentum = state.get(_OPTIMISER, {})
        params, state = self.composition.start(net, params, state, view)
        return {"params": params, "buffers": buffers, "state": state, "momentum": momentum}

    def learning(self, params: Params, phase: Phase) -> Learning:
        """Return what of these parameters learns in a phase, and how."""
        learning = self._learning.get(phase)
        if learning is None:
            names = tuple(n for n in params if self.composition.is_trained(self.net, n, phase))
            learning = self._learning[phase] = Learning(names, phase.plain or phase.owner is not None)
        return learning

    def enter(self, carry: Tree, phase: Phase) -> tuple[Tree, Learning]:
        """Return the carry at the start of a phase, with fresh or kept momentum, and what learns in it."""
        learning = self.learning(carry["params"], phase)
        if self.train.keeps_momentum:
            return carry, learning
        momentum = zeros_like({n: carry["params"][n] for n in learning.names}) if self.train.momentum else {}
        return {**carry, "momentum": momentum}, learning

    def step(
        self, carry: Tree, batch: Batch, view: View, learning: Learning, differentiate: Differentiate
    ) -> tuple[Tree, Tensor]:
        """Return the carry after one local step, and the step's loss."""
        if self._augmentation is not None:
            batch = self._augmentation(batch)
        local = _Local(self, carry, view, learning, differentiate)
        method = _PLAIN if learning.is_plain else self.composition.method
        own = view._replace(server=view.server["method"])
        net = self.net.bind(carry["buffers"], training=False)
        params, state = method.step(local, net, carry["params"], carry["state"]["method"], batch, own)
        new = {
            "params": params,
            "buffers": local.buffers,
            "state": {**local.state, "method": state},
            "momentum": local.momentum,
        }
        return new, local.loss

    def steps(
        self, carry: Tree, batches: Batch, view: View, learning: Learning, differentiate: Differentiate
    ) -> tuple[Tree, Tensor]:
        """Return the carry after one local step on each of some batches (a leading axis), and the sum of the losses."""
        total = torch.zeros((), dtype=batches.mask.dtype, device=batches.mask.device)
        for k in range(len(batches.y)):
            batch = batch_at(batches, k)
            batch = batch._replace(x=self.net.layout(batch.x))
            carry, loss = self.step(carry, batch, view, learning, differentiate)
            total = total + loss
        return carry, total

    def end(self, carry: Tree, view: View, assignment: Assignment) -> tuple[State, State]:
        """Return the upload and the state to keep; neither has anything in it if nobody is to finish."""
        if not assignment.finishes:
            return {}, {}
        params = carry["params"]
        travelling = {n: p for n, p in params.items() if n in assignment.shared}
        upload, state = self.composition.finish(travelling, params, carry["state"], view)
        if self.train.keeps_momentum:
            state = {**state, _OPTIMISER: carry["momentum"]}
        return upload, state


class _Local:
    """What a `Method.step` sees as `local`; lives for one step."""

    def __init__(
        self, training: LocalTraining, carry: Tree, view: View, learning: Learning, differentiate: Differentiate
    ):
        self._training = training
        self._view = view
        self._trained = learning.names
        self._is_plain = learning.is_plain
        self._differentiate = differentiate
        self.buffers: Params = carry["buffers"]
        self.momentum: Params = carry["momentum"]
        self.state: State = carry["state"]
        self.loss = torch.zeros(())

    def gradient(self, params: Params, state: State, batch: Batch) -> tuple[Params, State]:
        composition, net = self._training.composition, self._training.net
        before = {**self.state, "method": state}

        def objective(trained: Params) -> tuple[Tensor, Tree]:
            bound = net.bind(self.buffers, training=bool(self._trained))
            loss_of = composition.plain_loss if self._is_plain else composition.loss
            loss, after = loss_of(bound, {**params, **trained}, before, batch, self._view, self._differentiate)
            return loss, {"state": after, "buffers": bound.buffers}

        if not self._trained:  # a phase that only looks
            with torch.no_grad():
                self.loss, rest = objective({})
            self.state, self.buffers = rest["state"], rest["buffers"]
            return {}, self.state["method"]
        gradient, self.loss, rest = self._differentiate(objective, {n: params[n] for n in self._trained})
        self.state, self.buffers = rest["state"], rest["buffers"]
        if not self._is_plain:
            gradient = composition.correct(net, gradient, params, self.state, self._view)
        return gradient, self.state["method"]

    def descend(self, params: Params, gradient: Params) -> Params:
        training = self._training
        if own := {n: g for n, g in gradient.items() if n in training.plain}:
            gradient = {n: g for n, g in gradient.items() if n not in own}
            params, _ = descend(params, own, {}, training.train.lr, training.plain_train)
        new, self.momentum = descend(params, gradient, self.momentum, self._view.lr, training.train)
        return new


class Examples:
    """A data set on a device: gathers rows and normalises them there.

    Parameters
    ----------
    inputs : [n, ...]
        Raw inputs, kept as they are; int32 or int64 are token ids, which are never scaled.
    labels : [n] int64
    offset, scale : sequence of float, one per channel
        Model inputs are ``(x - offset) * scale``.
    device, dtype
        Where the data set lives, and the floating-point type of model inputs.
    protected : [n, P] uint8 or None
        Protected attributes.
    """

    def __init__(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        offset: Any,
        scale: Any,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        protected: NDArray[np.uint8] | None = None,
    ):
        self.device, self.dtype = device, dtype
        # On a CPU the caller's own array, which may lie on disk: a data set is in memory once, or not at all.
        self.inputs = _shared(inputs).to(device)
        self.are_tokens = self.inputs.dtype in (torch.int32, torch.int64)
        self.labels = torch.from_numpy(np.array(labels)).to(device)
        if protected is None:
            protected = np.empty((len(labels), 0), np.uint8)
        self.protected = torch.from_numpy(np.array(protected)).to(device, dtype)
        shape = (-1, *[1] * (self.inputs.dim() - 2)) if self.inputs.dim() > 2 else (-1,)
        self.offset = torch.tensor(offset, dtype=dtype, device=device).reshape(shape)
        self.scale = torch.tensor(scale, dtype=dtype, device=device).reshape(shape)

    def gather(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return normalised inputs and labels of rows; both get the shape of `rows` in front."""
        index = torch.tensor(rows, device=self.device)
        return self.normalise(self.inputs_of(index)), self.labels[index]

    def inputs_of(self, rows: Tensor) -> Tensor:
        """Return the raw inputs of rows, [..., *shape]: whole rows are copied, where indexing would go by elements."""
        return self.inputs.index_select(0, rows.flatten()).view(*rows.shape, *self.inputs.shape[1:])

    def gather_protected(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the protected attributes of rows, [..., P]."""
        return self.protected_of(torch.tensor(rows, device=self.device))

    def protected_of(self, rows: Tensor) -> Tensor:
        """Return the protected attributes of rows, [..., P]."""
        if not self.protected.shape[1]:
            return self.protected.new_empty((*rows.shape, 0))
        return self.protected[rows]

    @property
    def black(self) -> Tensor:
        """What a raw 0 is as a model input, per channel."""
        return -self.offset * self.scale

    def normalise(self, inputs: Tensor) -> Tensor:
        """Return model inputs of raw ones; token ids as int64."""
        return scaled(inputs, self.scaling)

    def raw(self, x: Tensor) -> Tensor:
        """Return the raw inputs that `normalise` makes `x` of, up to rounding."""
        return x / self.scale + self.offset

    @property
    def scaling(self) -> Scaling:
        """What `scaled` needs."""
        return Scaling(self.offset, self.scale, self.are_tokens)


class Scaling(NamedTuple):
    """How raw inputs become model inputs."""

    offset: Tensor
    scale: Tensor
    are_tokens: bool


def scaled(inputs: Tensor, scaling: Scaling) -> Tensor:
    """Return model inputs of raw ones; token ids as int64."""
    if scaling.are_tokens:
        return inputs.long()
    dtype = scaling.scale.dtype
    if inputs.dtype == dtype:
        return (inputs - scaling.offset) * scaling.scale
    return inputs.to(dtype).sub_(scaling.offset).mul_(scaling.scale)  # without memory for what is between


def _shared(array: NDArray[Any]) -> Tensor:
    """Return a tensor of an array's own memory; nobody writes to it, so it may be read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not writable", UserWarning)
        return torch.from_numpy(array)


def batch_at(batches: Batch, k: int) -> Batch:
    """Return batch `k` of batches with a leading axis."""
    draws = {name: d[k] for name, d in batches.draws.items()}
    return Batch(batches.x[k], batches.y[k], batches.mask[k], draws, protected=batches.protected[k])


def validation_batch(jobs: Sequence[Job], examples: Examples) -> Batch | None:
    """Return the clients' validation rows [C, R, ...], padded to the longest with copies of real rows."""
    rows = [job.validation for job in jobs if job.validation is not None]
    if not rows:
        return None
    longest = max(map(len, rows))
    padded = np.stack([np.resize(r, longest) for r in rows])
    x, y = examples.gather(padded)
    mask = batch_mask(np.array([len(r) for r in rows]), longest, examples.device)
    return Batch(x, y, mask, {}, protected=examples.gather_protected(padded))


def batch_mask(lengths: NDArray[np.int64], size: int, device: torch.device) -> Tensor:
    """Return 1 for examples and 0 for padding: [..., B] of lengths [...]."""
    mask = np.arange(size) < lengths[..., None]
    return torch.from_numpy(mask.astype(np.float32)).to(device)


def as_tensors(draws: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    """Return drawn arrays as tensors; floats in single precision."""
    return {
        name: torch.from_numpy(a.astype(np.float32) if a.dtype == np.float64 else a).to(device)
        for name, a in ((name, np.asarray(value)) for name, value in draws.items())
    }
