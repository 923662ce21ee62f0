"""FedAvg with fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from fedcore.config import Train
from fedcore.methods.base import Method, Phase


@dataclass(frozen=True)
class FedAvgFineTuned(Method):
    """FedAvg-FT: FedAvg whose model every client fine-tunes, on a copy, before its personal evaluation.

    The global view is the model before fine-tuning, the personal and unseen views are after it; training never
    sees the fine-tuned copies.

    Parameters
    ----------
    epochs : int, >= 0, default 1
        Epochs of fine-tuning, with the training section's learning rate of the round; 0 is FedAvg.

    Presets     no ``paper``: there is none.
    Costs       as FedAvg; each evaluation trains every client for `epochs`.
    Source      the usual baseline of personalised federated learning.
    """

    epochs: Annotated[int, Field(ge=0)] = 1

    def adapt_phases(self, train: Train) -> tuple[Phase, ...]:
        """Fine-tune all parameters."""
        return (Phase("fine_tune", self.epochs),) if self.epochs else ()
