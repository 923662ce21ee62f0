"""FedRS's restricted softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedcore.addons.base import Addon
from fedcore.types import View


@dataclass(frozen=True)
class RestrictedSoftmax(Addon):
    """FedRS: scale down the logits of classes a client has no example of.

    Loss:      cross-entropy of s_c * f_c,  s_c = 1 for a class the client has, alpha for one it misses

    Parameters
    ----------
    alpha : float, 0 to 1, default 0.5
        1 is the method without it; 0 makes a missing class's logit 0, which does not take it out of the softmax.

    Presets     ``paper``: alpha, as by default.
    Costs       none.
    Differs     scales the whole logit, bias included; training only, evaluation uses plain logits.
    Source      Li and Zhan, KDD 2021. https://doi.org/10.1145/3447548.3467254
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"alpha": 0.5},
    }

    def logits(self, logits: Tensor, view: View) -> Tensor:
        """Scale the logits of missing classes."""
        factors = torch.where(view.info.class_counts > 0, 1.0, self.alpha)
        # Outputs beyond the task's classes (virtual ones) are never missing.
        return logits * torch.nn.functional.pad(factors, (0, logits.shape[-1] - factors.shape[-1]), value=1.0)
