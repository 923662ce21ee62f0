"""FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from fedcore.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """FedAvg: average the clients' models.

    Local step:  y <- y - lr * g_i(y)
    Server:      x <- x + sum_i p_i (y_i - x),  p_i = n_i / sum of n over the cohort

    Presets     no ``paper``: it varies epochs and batches over a grid and tunes the learning rate for each.
    Costs       the model each way per client of the cohort.
    Differs     from the paper: written with deltas, so that server optimisers reduce to it exactly.
    Source      McMahan et al., AISTATS 2017, Algorithm 1. https://arxiv.org/abs/1602.05629
    """
