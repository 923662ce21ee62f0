"""Who takes part in a round."""

from __future__ import annotations

import numpy as np

from fedcore.config import Train
from fedcore.data.federation import Federation
from fedcore.methods.base import Method
from fedcore.seeds import stream
from fedcore.types import Cohort, State


def draw_cohort(
    method: Method, train: Train, federation: Federation, seed: int, round: int, resources: State
) -> Cohort:
    """Draw a round's clients, ascending, and their aggregation weights.

    Set-up rounds have every client, and weights by examples unless the parameters say otherwise: they look at data,
    whatever the method makes of models. After ``train.rounds`` come the rounds of newcomers: the clients never trained
    on take part in all of them, and of the others a share of ``train.newcomer_participation``.
    """
    total = federation.num_clients
    share, late = train.participation, train.newcomer_rounds > 0 and round >= train.rounds
    if late:
        share = train.newcomer_participation
    if round < 0 or (method.trains_all and not late):
        clients = np.arange(total)
    else:
        size = int(share * total + 0.5)
        size = size if late else max(1, size)
        clients = np.sort(stream(seed, "participation", round).choice(total, size, replace=False))
    if late:
        clients = np.concatenate([clients, np.arange(total, federation.num_total)])
    own = None if round < 0 else method.weighting
    weighting = (own or "examples") if train.weighting == "auto" else train.weighting
    everybody = federation.num_examples[: federation.num_total if late else total].astype(float)
    if weighting == "uniform":
        everybody = np.ones_like(everybody)
    weights = everybody[clients]
    return Cohort(
        tuple(map(int, clients)),
        tuple(map(float, weights / weights.sum())),
        total,
        round,
        stream(seed, "server", round),
        resources,
        share=float(weights.sum() / everybody.sum()),
    )
