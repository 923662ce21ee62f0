"""Mixup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedcore.addons.base import Addon
from fedcore.models.net import Net
from fedcore.types import Batch, ClientInfo, View


@dataclass(frozen=True)
class Mixup(Addon):
    """Mixup: train on convex combinations of pairs of a batch's rows.

    Inputs:    x' = s * x + (1 - s) * x_pi     s ~ Beta(alpha, alpha), one per step; pi permutes the batch
    Loss:      s * CE(f(x'), y) + (1 - s) * CE(f(x'), y_pi)

    Parameters
    ----------
    alpha : float, >= 0, default 0.2
        0 is the method without it, bit for bit.

    Presets     ``paper``: its CIFAR-10, a central training, of which the training section takes nothing.
    Costs       a second cross-entropy on the same logits.
    Differs     nothing: two cross-entropies are soft labels, and stay finite where an add-on masks a logit.
                Terms of other add-ons that look at labels see y alone.
    Source      Zhang et al., ICLR 2018, https://arxiv.org/abs/1710.09412; alpha and the one s per batch as in FedBR
                (Guo et al., ICML 2023).
    """

    alpha: Annotated[float, Field(ge=0)] = 0.2
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"alpha": 1.0},
    }

    def draws(
        self, net: Net, generator: np.random.Generator, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Draw shares, and ranks that order the rows."""
        if self.alpha == 0:
            return {}
        ranks = generator.permuted(np.tile(np.arange(batch_size), (steps, 1)), axis=1)
        return {"mixup.ranks": ranks, "mixup.share": generator.beta(self.alpha, self.alpha, steps)}

    def mix(self, batch: Batch, view: View) -> Batch:
        """Mix every example with another of its batch; padding stays with padding."""
        if self.alpha == 0:
            return batch
        size = len(batch.mask)
        padding = (batch.mask == 0).long()
        # By rank, padding last: the order of the real rows is then a permutation of them.
        order = torch.argsort(batch.draws["mixup.ranks"][:size] + padding * (1 + batch.draws["mixup.ranks"].max()))
        share = batch.draws["mixup.share"].type_as(batch.x)
        protected = batch.protected
        if protected.dim() > 1:
            protected = share * protected + (1 - share) * protected[order]
        return batch._replace(
            x=share * batch.x + (1 - share) * batch.x[order], second=(batch.y[order], share), protected=protected
        )
