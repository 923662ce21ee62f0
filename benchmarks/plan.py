"""Which client trains on which rows in which order: what the engine would do in a round, for a loop of one's own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.engine.cohorts import draw_cohort
from fedcore.engine.optim import learning_rate
from fedcore.engine.schedule import schedule
from fedcore.methods.base import Method, Phase
from fedcore.seeds import Streams


class ClientPlan(NamedTuple):
    """One client's round.

    Attributes
    ----------
    share : float
        Its weight in the mean; those of a round sum to 1.
    batches : list of [B] int64
        Positions in its train split, one array per local step.
    """

    client: int
    share: float
    batches: list[NDArray[np.int64]]

    @property
    def examples(self) -> int:
        """Examples it trains on, each as often as it is seen."""
        return sum(map(len, self.batches))


def plan_round(train: Train, federation: Federation, seed: int, round: int) -> list[ClientPlan]:
    """Return what FedAvg's cohort does in a round (counted from 0)."""
    cohort = draw_cohort(Method(), train, federation, seed, round, {})
    plans, streams = [], Streams(seed, round)
    for client, share in zip(cohort.clients, cohort.weights, strict=True):
        order = schedule(train, Phase(), int(federation.num_examples[client]), streams, client, "batches")
        batches = [row[:length] for row, length in zip(order.positions, order.lengths, strict=True)]
        plans.append(ClientPlan(client, share, batches))
    return plans


def round_lr(train: Train, round: int) -> float:
    """Return the learning rate of a round."""
    return learning_rate(train, round, 0)
