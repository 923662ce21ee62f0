"""What a run costs by the papers' formulas: parameters communicated and samples processed.

What a run of ours really sends is counted by the engine in bytes; these formulas put it beside published tables.
"""

from __future__ import annotations

from typing import Literal

Accounting = Literal["one_way_per_client", "down_all_up_selected", "down_selected_up_selected"]


def communicated(
    accounting: Accounting, parameters: int, rounds: int, clients: int, cohort: int, one_off: int = 0
) -> int:
    """Return the number of parameters sent in `rounds` rounds; of stages with different models, add the stages.

    Parameters
    ----------
    accounting : str
        ``one_way_per_client``: what one client that takes part in every round receives (or sends); clients and
        cohort do not count (FedBR, Table 7).
        ``down_all_up_selected``: all clients receive each round's model, the cohort answers (LG-FedAvg, Table 1).
        ``down_selected_up_selected``: only the cohort receives and answers.
    parameters : int, >= 0
        That travel in one direction between the server and one client in one round.
    rounds : int, >= 0
    clients, cohort : int
        N, and how many of them train in a round: 0 <= cohort <= N.
    one_off : int, >= 0
        What each of the N clients exchanges once beside the rounds (virtual data, pseudo data, feature means), in
        parameters and both ways together; of ``one_way_per_client`` the one way.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    if min(parameters, rounds, clients, cohort, one_off) < 0 or cohort > clients:
        raise ValueError(
            "expected counts >= 0 and a cohort of at most all clients, got"
            f" {parameters=}, {rounds=}, {clients=}, {cohort=}, {one_off=}"
        )
    if accounting == "one_way_per_client":
        return parameters * rounds + one_off
    receivers = clients if accounting == "down_all_up_selected" else cohort
    return parameters * rounds * (receivers + cohort) + one_off * clients


def processed_samples(rounds: int, share: float, epochs: float, virtual_ratio: float = 0.0) -> float:
    """Return the samples that all clients' local training has gone through, in units of the whole train set.

    rounds * share * epochs * (1 + virtual_ratio)

    Parameters
    ----------
    rounds : int, >= 0
        For example to a target accuracy.
    share : float, in [0, 1]
        Cohort size over number of clients.
    epochs : float, >= 0
        Local epochs per round.
    virtual_ratio : float, >= 0
        Virtual rows beside each natural row of a batch, B_v / B; 0 without virtual data.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Source      Tang et al., ICML 2022 (VHL), processed samples. https://arxiv.org/abs/2206.02465
    """
    if min(rounds, epochs, virtual_ratio) < 0 or not 0 <= share <= 1:
        raise ValueError(
            f"expected a share in [0, 1] and the others >= 0, got {rounds=}, {share=}, {epochs=}, {virtual_ratio=}"
        )
    return rounds * share * epochs * (1 + virtual_ratio)
