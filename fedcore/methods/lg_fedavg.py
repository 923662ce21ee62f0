"""LG-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedcore.config import Train, nearest
from fedcore.methods.base import Method
from fedcore.models.net import Net


@dataclass(frozen=True)
class LgFedavg(Method):
    """LG-FedAvg: some layers are local representations that never travel, the others are averaged.

    Stage 1:     FedAvg with the whole model for `fedavg_rounds` rounds; every client then keeps its local layers.
    Stage 2:     one SGD step per batch on local and global layers together; only global layers travel.
    Server:      uniform mean of the global layers over the cohort

    Parameters
    ----------
    global_layers : list of layer names, default ["head"]
        Layers that travel in stage 2, by name or by the beginning of one: "body" means "body.0", "body.3", ...
        An empty list is local training of the cohort.
    fedavg_rounds : int, >= 0, default 0
        Rounds of stage 1.

    Costs       stage 1: FedAvg's; stage 2: the global layers each way. One set of local layers per client in the store.
    Differs     from the paper: no auxiliary objective for the local layers (its tables use none), so one joint step;
                the mean is over the cohort, uniform as in the released code (the paper prints n_k / n and all
                clients). There is no global view in stage 2: the server's local layers stay at stage 1's last values.
                The released code keeps the convolutions of its CNN global and the fully connected layers local, the
                opposite of the text.
    Source      Liang et al., NeurIPS 2019 workshop on federated learning. https://arxiv.org/abs/2001.01523
    """

    global_layers: Annotated[tuple[str, ...], Field(strict=False)] = ("head",)
    fedavg_rounds: Annotated[int, Field(ge=0)] = 0
    weighting: ClassVar[str | None] = "uniform"
    has_global: ClassVar[bool] = False

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Share everything in stage 1, then the global layers."""
        return round < self.fedavg_rounds or any(_is_within(name, layer) for layer in self.global_layers)

    def check(self, net: Net, train: Train) -> None:
        """Refuse layers the model does not have."""
        names = [*net.initial_params, *net.initial_buffers]
        layers = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)}
        for layer in self.global_layers:
            if layer not in layers:
                raise ValueError(f"global_layers: the model has no layer '{layer}'" + nearest(layer, layers))


def _is_within(name: str, layer: str) -> bool:
    return name.startswith(f"{layer}.")
