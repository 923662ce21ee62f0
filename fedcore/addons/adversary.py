"""An adversary that reads protected attributes off the features, and a body that hides them from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedcore.addons.base import Addon
from fedcore.config import Train
from fedcore.methods.base import Phase, named
from fedcore.models import perceptron
from fedcore.models.net import Net
from fedcore.types import Batch, Output, Params, State, View

_PREFIX = "adversary."
_PHASE = "adversary"
_Strength = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Adversary(Addon):
    """Adversary: features that do not tell protected attributes.

    Adversary:  r: features -> hidden widths with rectifiers -> one logit s_j per protected attribute p_j
    Phase 1:    r <- r - lr * rate * grad_r mean_B mean_j BCE(s_j, p_j)     adversary_epochs, features constant
    Phase 2:    the method's local training, r constant, of F_i(y) plus
                negative:   - mean_B mean_j strength_j * BCE(s_j, p_j)      (the paper's)
                confusion:  + mean_B mean_j strength_j * (BCE(s_j, 1/2) - log 2)
                flip:       + mean_B mean_j strength_j * BCE(s_j, 1 - p_j)

    Parameters
    ----------
    strength : float or list of one per attribute, >= 0, default 30.0
        lambda. With 0 the method is as without it while r still learns to measure what the features tell.
    attributes : int, >= 1, default 2
        Number P of protected attributes; the data set must have as many.
    hidden : list of int, >= 1, default [32, 32, 32]
        Widths of r.
    shared : bool, default False
        Whether r is averaged with the model (the paper's FedAvg) or stays with the client (its LG-FedAvg).
    adversary_epochs : int, >= 1, default 1
        Epochs of phase 1 in every round, besides the method's own.
    rate : float, > 0, default 1.0
        Factor on the learning rate of phase 1.
    objective : {"negative", "confusion", "flip"}
        "negative" has no lower bound: a body can win without end against an r that does not keep up, most of all at
        high strengths. "confusion" pulls r's outputs to 1/2, "flip" to the other value; they are never negative.

    Costs       adversary_epochs more epochs of forward passes per round, with a backward pass through r alone. r per
                client in the store or, shared, each way per round.
    Differs     from the released code, which does not run: features are constant in phase 1; phase 1 has no lambda on
                its loss (with plain SGD, `rate` 30 makes the steps of its strengths of 30). Its "combined epoch", a
                pass of r and then one batch of the body, is train.local_steps: 1. It trains the local models and then r
                alone for 10 epochs each before round 0. The attributes of a mixed batch (mixup) are mixed like its
                inputs. Running statistics of batch normalisation move in phase 1 too. Set-up rounds have neither phase
                1 nor a strength.
    Source      Liang et al., NeurIPS 2019 workshop on federated learning. https://arxiv.org/abs/2001.01523
    """

    strength: _Strength | Annotated[tuple[_Strength, ...], Field(strict=False)] = 30.0
    attributes: Annotated[int, Field(ge=1)] = 2
    hidden: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)] = (32, 32, 32)
    shared: bool = False
    adversary_epochs: Annotated[int, Field(ge=1)] = 1
    rate: Annotated[float, Field(gt=0)] = 1.0
    objective: Literal["negative", "confusion", "flip"] = "negative"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"rate": 30.0, "train": {"batch_size": 32, "lr": 0.1, "local_steps": 1}},
    }

    @property
    def strengths(self) -> tuple[float, ...]:
        """One strength per attribute."""
        return self.strength if isinstance(self.strength, tuple) else (self.strength,) * self.attributes

    def check(self, net: Net, train: Train) -> None:
        """Refuse strengths that do not go with the attributes."""
        if len(self.strengths) != self.attributes:
            raise ValueError(
                f"add.adversary.strength: {len(self.strengths)} numbers for {self.attributes} protected attributes"
                " (add.adversary.attributes); give one number, or one per attribute"
            )

    def extra_params(self, net: Net, generator: np.random.Generator) -> Params:
        """Bring r, drawn as `torch.nn.Linear` draws."""
        return perceptron.draw(net, _PREFIX, [net.feature_dim, *self.hidden, self.attributes], generator)

    def is_shared(self, net: Net, name: str) -> bool:
        """Share r if asked to."""
        return self.shared

    def is_trained(self, net: Net, name: str, phase: str) -> bool:
        """Train r in its own phase alone."""
        return phase == _PHASE

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Let r learn first."""
        return (Phase(_PHASE, epochs=self.adversary_epochs),)

    def penalty(
        self, net: Net, params: Params, state: State, batch: Batch, output: Output, rows: Output | None, view: View
    ) -> tuple[Tensor | float, State]:
        """Return r's own loss in its phase; what hides the attributes from it elsewhere."""
        if view.phase == _PHASE:
            losses = _cross_entropies(_logits(params, output.features.detach()), batch.protected)
            return self.rate * batch.mean(losses).mean(), state
        if not any(self.strengths):
            return 0.0, state
        constant = {n: p.detach() for n, p in params.items() if n.startswith(_PREFIX)}
        logits = _logits(constant, output.features)
        if self.objective == "confusion":
            terms = _cross_entropies(logits, torch.full_like(batch.protected, 0.5)) - math.log(2)
        elif self.objective == "flip":
            terms = _cross_entropies(logits, 1 - batch.protected)
        else:
            terms = -_cross_entropies(logits, batch.protected)
        weighted = [strength * term for strength, term in zip(self.strengths, batch.mean(terms), strict=True)]
        return torch.stack(weighted).mean(), state

    def protected_scores(self, net: Net, params: Params, features: Tensor) -> Tensor | None:
        """Return r's outputs [B, P], between 0 and 1; None where `params` has no r."""
        if not any(n.startswith(_PREFIX) for n in params):
            return None
        return torch.sigmoid(_logits(params, features))


def _logits(params: Params, features: Tensor) -> Tensor:
    return perceptron.forward(named(params, _PREFIX), features)


def _cross_entropies(logits: Tensor, attributes: Tensor) -> Tensor:
    return binary_cross_entropy_with_logits(logits, attributes, reduction="none")
