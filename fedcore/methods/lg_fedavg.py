"""LG-FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad

from fedcore.config import Train, nearest
from fedcore.methods.base import Fit, Local, Method, named
from fedcore.models import perceptron
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, Params, State, View, cross_entropy

_AUX = "aux."
_TURNS = "lg_fedavg.turns"


@dataclass(frozen=True)
class LgFedavg(Method):
    """LG-FedAvg: some layers are local representations that never travel, the others are averaged.

    Stage 1:     FedAvg with the whole model for `fedavg_rounds` rounds; every client then keeps its local layers.
    Stage 2:     f: local layers, g: global layers, a: auxiliary head on h = f(x), personal; per batch
                 L_g = F_i(y),  L_f = auxiliary_weight * auxiliary loss of a(h), in which g is constant
      joint:       one step of SGD on L_g + L_f
      sequential:  f <- f - lr * grad_f L_f,  then a <- a - lr * grad_a L_f,  then f <- f - lr * grad_f L_g,
                   then g <- g - lr * grad_g L_g, each with what the one before made
    Server:      uniform mean of the global layers over the cohort

    Parameters
    ----------
    global_layers : list of layer names, default ["head"]
        Layers that travel in stage 2, by name or by the beginning of one: "body" means "body.0", "body.3", ...
        An empty list is local training of the cohort.
    fedavg_rounds : int, >= 0, default 0
        Rounds of stage 1.
    auxiliary : {"none", "supervised", "autoencode", "rotation"}
        What a learns of h: the label; the normalised input (squared error, mean over its values); by how many quarter
        turns, drawn for every row and step, the image was turned before f saw it (square images).
    auxiliary_weight : float, >= 0, default 1.0
        0 is auxiliary "none", bit for bit.
    auxiliary_layer : str or None
        The layer whose output is h; None is the whole body's.
    auxiliary_hidden : int, >= 0, default 0
        Width of a's hidden layer; with 0 a is linear.
    update : {"joint", "sequential"}
    double_softmax : bool, default False
        The training loss takes the softmax of the logits for logits, as the released MNIST model does: bounded, slow.

    State
    -----
    client  aux.*   a, if there is an auxiliary; starts at the common initial one, learns in stage 2

    Costs       stage 1: FedAvg's; stage 2: the global layers each way. One set of local layers per client in the store.
                An auxiliary is one more pass through the body per step; "sequential" is two, and two more with one.
    Differs     from the paper: the mean is over the cohort, uniform as in the released code (the paper prints n_k / n,
                which is train.weighting: examples, and all clients). There is no global view in stage 2: the server's
                local layers stay at stage 1's last values. The released code keeps the convolutions of its CNN global
                and the fully connected layers local, the opposite of the text; it has no auxiliary and updates jointly,
                as here by default. The algorithm prints a(x) for a(h). What add-ons do to batch or features is not in
                L_f. With momentum the two lines of f move one velocity. "sequential" moves running statistics of batch
                normalisation, and what add-ons keep from batch to batch (DBE's moving mean), twice.
    Source      Liang et al., NeurIPS 2019 workshop on federated learning, eq. 16-19. https://arxiv.org/abs/2001.01523
    """

    global_layers: Annotated[tuple[str, ...], Field(strict=False)] = ("head",)
    fedavg_rounds: Annotated[int, Field(ge=0)] = 0
    auxiliary: Literal["none", "supervised", "autoencode", "rotation"] = "none"
    auxiliary_weight: Annotated[float, Field(ge=0)] = 1.0
    auxiliary_layer: str | None = None
    auxiliary_hidden: Annotated[int, Field(ge=0)] = 0
    update: Literal["joint", "sequential"] = "joint"
    double_softmax: bool = False
    weighting: ClassVar[str | None] = "uniform"
    has_global: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {  # its MNIST
            "double_softmax": True,
            "train": {"batch_size": 10, "lr": 0.05, "momentum": 0.5, "best_on_test": True},
        },
    }

    @property
    def has_auxiliary(self) -> bool:
        """Whether there is an auxiliary head."""
        return self.auxiliary != "none" and self.auxiliary_weight > 0

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring a, drawn as `torch.nn.Linear` draws."""
        if not self.has_auxiliary:
            return {}
        inputs = int(np.prod(net.layer_shape(self.auxiliary_layer)))
        values = int(np.prod(net.input_shape))
        outputs = {"supervised": net.num_classes, "autoencode": values, "rotation": 4}[self.auxiliary]
        widths = [inputs, *([self.auxiliary_hidden] if self.auxiliary_hidden else []), outputs]
        return perceptron.draw(net, _AUX, widths, generator)

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Share the whole model in stage 1, then the global layers; never a. Set-up rounds are as round 0."""
        return not name.startswith(_AUX) and (max(round, 0) < self.fedavg_rounds or self._is_global(name))

    def check(self, net: Net, train: Train) -> None:
        """Refuse layers the model does not have, no round of its own, and turning what is no square image."""
        names = [*net.initial_params, *net.initial_buffers]
        layers = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
        for layer in self.global_layers:
            if layer not in layers:
                raise ValueError(f"global_layers: the model has no layer '{layer}'" + nearest(layer, layers))
        net.check_layer(self.auxiliary_layer, "auxiliary_layer")
        if self.fedavg_rounds >= train.rounds:
            raise ValueError(
                f"fedavg_rounds: {self.fedavg_rounds} of {train.rounds} rounds leave none for LG-FedAvg;"
                f" use at most {train.rounds - 1}"
            )
        shape = net.input_shape
        if self.auxiliary == "rotation" and (len(shape) != 3 or shape[1] != shape[2]):
            raise ValueError(
                f"auxiliary: 'rotation' needs square images, got inputs of shape {shape};"
                " valid here: none, supervised, autoencode"
            )

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw quarter turns."""
        return {_TURNS: generator.integers(0, 4, (steps, batch_size))} if self.auxiliary == "rotation" else {}

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Take probabilities for logits, if asked to."""
        return torch.softmax(logits, -1) if self.double_softmax else logits

    def loss(self, fit: Fit, net: Net, params: Params, state: State, batch: Batch, view: View) -> tuple[Tensor, State]:
        """Add L_f to a joint step's loss."""
        total = fit(params, batch)
        if self.has_auxiliary and self.update == "joint" and self._is_stage_2(view):
            constant = {n: p.detach() for n, p in params.items() if self._is_global(n)}
            total = total + self._auxiliary_loss(net, {**params, **constant}, batch)
        return total, state

    def step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch, view: View
    ) -> tuple[Params, State]:
        """Take one step, or the lines of `sequential` one after another."""
        if self._is_stage_2(view) and self.update == "sequential":
            return self._sequential_step(local, net, params, state, batch)
        gradient, state = local.gradient(params, state, batch)
        if not self._is_stage_2(view):  # not even weight decay moves a there
            gradient = {n: g for n, g in gradient.items() if not n.startswith(_AUX)}
        return local.descend(params, gradient), state

    def _sequential_step(
        self, local: Local, net: Net, params: Params, state: State, batch: Batch
    ) -> tuple[Params, State]:
        if self.has_auxiliary:
            own = [n for n in net.initial_params if not self._is_global(n)]
            for names in (own, [n for n in params if n.startswith(_AUX)]):
                params = local.descend(params, self._auxiliary_gradient(net, params, names, batch))
        for in_turn in (False, True):
            gradient, state = local.gradient(params, state, batch)
            turn = {n: g for n, g in gradient.items() if self._is_global(n) == in_turn and not n.startswith(_AUX)}
            params = local.descend(params, turn)
        return params, state

    def _auxiliary_gradient(self, net: Net, params: Params, names: list[str], batch: Batch) -> Params:
        def of(some: Params) -> Tensor:
            return self._auxiliary_loss(net, {**params, **some}, batch)

        slopes: Params = grad(of)({n: params[n] for n in names}) if names else {}
        return slopes

    def _auxiliary_loss(self, net: Net, params: Params, batch: Batch) -> Tensor:
        net = net.bind(net.buffers, training=True)  # moves no running statistics a second time
        x, target = batch.x, batch.y
        if self.auxiliary == "rotation":
            target = batch.draws[_TURNS][: len(batch.y)]
            x = _turned(x, target)
        h = net.output(params, x, self.auxiliary_layer).flatten(1)
        said = perceptron.forward(named(params, _AUX), h)
        reconstructs = self.auxiliary == "autoencode"
        losses = (said - x.flatten(1)).pow(2).mean(-1) if reconstructs else cross_entropy(said, target)
        return self.auxiliary_weight * batch.mean(losses)

    def _is_global(self, name: str) -> bool:
        return any(name.startswith(f"{layer}.") for layer in self.global_layers)

    def _is_stage_2(self, view: View) -> bool:
        """Return whether this is local training of stage 2, and no phase of an add-on."""
        return view.phase == "train" and view.round >= self.fedavg_rounds


def _turned(images: Tensor, turns: Tensor) -> Tensor:
    """Return images [B, C, S, S] turned counter-clockwise by 0 to 3 quarters [B]."""
    copies = torch.stack([torch.rot90(images, quarters, (-2, -1)) for quarters in range(4)])
    return copies[turns, torch.arange(len(turns), device=turns.device)]
