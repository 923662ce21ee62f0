"""FedBN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from fedcore.methods.base import Method
from fedcore.models.net import Net

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class FedBN(Method):
    """FedBN: share everything but batch normalisation.

    Local step:  as FedAvg
    Server:      as FedAvg, over what travels; scales, shifts and running statistics of batch normalisation stay with
                 the client, from the common initial ones

    State
    -----
    client  its batch-normalisation parameters and buffers

    Presets     ``paper``: its digits of five domains.
    Costs       FedAvg's traffic less batch normalisation, which the store keeps per client.
    Differs     layers are told by their type, whatever their names. Without batch normalisation it is FedAvg. The
                server has no normalisation of its own to evaluate, so there are no global and unseen views.
    Source      Li et al., ICLR 2021, Algorithm 1. https://arxiv.org/abs/2102.07623
    """

    has_global: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"train": {"batch_size": 32, "lr": 0.01, "local_epochs": 1}},
    }

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Keep batch normalisation."""
        return not issubclass(net.module_types.get(name, object), _NORMS)
