"""MOON's model-contrastive term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.types import Batch, Output, Params, State, View, cross_entropy


@dataclass(frozen=True)
class Moon(Addon):
    """MOON: pull features to the received model's and away from the client's previous model's.

    Loss:      F_i(y) + mu * mean_B -log( e^(s_g / T) / (e^(s_g / T) + e^(s_p / T)) )
               s_g = cos(z, z_received),  s_p = cos(z, z_previous),  z = f(x) of the body

    Parameters
    ----------
    mu : float, >= 0, default 1.0
        0 is the method without it, bit for bit.
    temperature : float, > 0, default 0.5
        T.

    State
    -----
    client  previous  the body after the client's last local training; the received one at its first participation
    client  seen []   whether there was one

    Presets     ``paper``: its CIFAR-10; mu is 1 for its CIFAR-100.
    Costs       no traffic; two more forward passes per step; one body per client in the store.
    Differs     from the paper: contrasts the features themselves, without a projection head, which would change the
                model the others are compared with. The reference bodies are in evaluation mode, both with the present
                running statistics of the trained one. A feature of zeros has similarity 0.
    Source      Li et al., CVPR 2021, eq. 3, Algorithm 1. https://arxiv.org/abs/2103.16257
    """

    mu: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 0.5
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {
            "mu": 5.0,
            "temperature": 0.5,
            "train": {"batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "local_epochs": 10},
        },
    }

    @property
    def compares_features(self) -> bool:
        """Compare with the received and the previous model's."""
        return self.mu > 0

    def init_client(self, net: Net, params: Params) -> State:
        """Have seen nothing."""
        seen = next(iter(params.values())).new_zeros(())
        return {"previous": _body(net, params), "seen": seen}

    def start(self, net: Net, params: Params, state: State, view: View) -> State:
        """Take the received body for the previous one where there is none."""
        has = state["seen"] > 0
        previous = {n: torch.where(has, p, view.anchor[n]) for n, p in state["previous"].items()}
        return {"previous": previous, "seen": state["seen"]}

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Contrast the batch's features."""
        if self.mu == 0:
            return 0.0, state
        frozen = net.bind(net.buffers, training=False)
        unit = _unit(output.features)
        references = [_unit(frozen.features(p, batch.x).detach()) for p in (view.anchor, state["previous"])]
        similarities = torch.stack([(unit * reference).sum(-1) for reference in references], -1)
        first = torch.zeros_like(batch.y)
        return self.mu * batch.mean(cross_entropy(similarities / self.temperature, first)), state

    def finish(self, params: Params, state: State, view: View) -> tuple[State, State]:
        """Keep the body."""
        return {}, {"previous": {n: params[n] for n in state["previous"]}, "seen": torch.ones_like(state["seen"])}


def _body(net: Net, params: Params) -> Params:
    return {n: params[n] for n in net.initial_params if n.startswith("body.")}


def _unit(features: Tensor) -> Tensor:
    # Not `cosine_similarity`: its slope at a feature of zeros is 1e8.
    norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    return features / torch.where(norm > 0, norm, 1.0)
