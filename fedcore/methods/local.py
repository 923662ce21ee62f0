"""Local training only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedcore.methods.base import Method
from fedcore.models.net import Net


@dataclass(frozen=True)
class Local(Method):
    """Local: every client trains alone, from the common initial model, in every round.

    The learning-rate schedule and the data order are FedAvg's, so that budgets match at full participation.
    There is no server model: nothing travels and no global view exists.

    Presets     no ``paper``: there is none.
    Costs       no traffic; one model per client in the store.
    Source      the usual baseline of personalised federated learning.
    """

    trains_all: ClassVar[bool] = True
    has_global: ClassVar[bool] = False

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Nothing travels."""
        return False
