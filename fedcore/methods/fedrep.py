"""FedRep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from fedcore.config import Train
from fedcore.methods.base import Method, Phase
from fedcore.models.net import Net


@dataclass(frozen=True)
class FedRep(Method):
    """FedRep: a shared body and personal heads, trained one after the other.

    Local step:  phase head:  h_i <- h_i - lr * grad_h F_i(phi, h_i)    head_epochs, phi as received
                 phase body:  phi <- phi - lr * grad_phi F_i(phi, h_i)  body_epochs, h_i as it has become
    Server:      phi <- phi + sum_i p_i (phi_i - phi)

    Parameters
    ----------
    head_epochs : int, >= 1, default 10
    body_epochs : int, >= 1, default 1
        Both instead of the training section's epochs or steps; the body sees the epochs of data order after the head's.

    State
    -----
    client  h_i   the head   starts at the common initial one, kept while the client is absent

    Presets     ``paper``: its CIFAR; the epochs of head and body are the defaults. Its last tuning of heads is not
                offered.
    Costs       the body each way; one head per client in the store.
    Differs     from the paper: the training section's weighting. Batch normalisation of the body is in training mode in
                both phases, so its running statistics move in the head phase too (as in the released code).
    Source      Collins et al., ICML 2021, Algorithm 1. https://arxiv.org/abs/2102.07078
    """

    head_epochs: Annotated[int, Field(ge=1)] = 10
    body_epochs: Annotated[int, Field(ge=1)] = 1
    has_global: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"head_epochs": 10, "body_epochs": 1, "train": {"batch_size": 10, "lr": 0.01, "momentum": 0.5}},
    }

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Keep the head."""
        return not name.startswith("head.")

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Train the head in its phase, everything else in the body's; all at once in add-ons' set-up rounds."""
        return phase == "train" or name.startswith("head.") == (phase == "head")

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Train the head, then the body."""
        return Phase("head", self.head_epochs), Phase("body", self.body_epochs, first_epoch=self.head_epochs)
