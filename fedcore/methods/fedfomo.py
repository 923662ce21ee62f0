"""FedFomo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedcore.config import Train
from fedcore.methods.base import Method
from fedcore.models.net import Net
from fedcore.trees import stack
from fedcore.types import Cohort, Params, Population, State, View, cross_entropy

_MAX_BANK = 4_000_000_000  # parameters: 16 GB in single precision
_MAX_CLIENTS = 20_000  # the server ranks every client for every client: 28 bytes a pair, 11 GB


@dataclass(frozen=True)
class FedFomo(Method):
    """FedFomo: every client mixes the models of those clients that help it on half its validation split.

    Download:    M of the models last uploaded, theta_n
    Start:       w_n = max(0, (L_i(old_i) - L_i(theta_n)) / ||theta_n - old_i||),  L_i: mean validation loss (below)
                 theta_i <- sum_n w_n theta_n / sum_n w_n, or as it was if no w_n is positive;  old_i <- theta_i
    Local step:  theta_i <- theta_i - lr * g_i(theta_i)
    Server:      keeps theta_i;  P[i, n] <- P[i, n] + w_n.  The next M for client i are the largest of P[i], ties by
                 lot, or with probability epsilon * epsilon_decay^round any M

    Parameters
    ----------
    models : int, >= 1, default 5
        M; no more than there are clients.
    epsilon : float, 0 to 1, default 0.3
    epsilon_decay : float, 0 to 1, default 0.95
        Exploration per round.

    State
    -----
    server  bank [N, ...]  like the model      starts at the initial model
    server  affinity [N, N]                    P; starts at the identity, so that a client's own model is among its M
    server  picks [N, M]                       who gets whose models next
    client  old                                old_i, like the model; starts at the initial one
    client  weights [M]                        w, scratch of a round

    Presets     ``paper``: M and epsilon, as by default; its validation split is a fifth (`partition.validation`).
    Costs       M models down, one model and M scalars up; two models per client in the store, N models and N^2 scalars
                on the server, M forward passes over half the validation split. At most 20,000 clients, no newcomers.
    Differs     from the paper: written as a mean of models, to which normalised weights make it equal. Nothing is
                averaged, so there are no global and unseen views. A client without validation examples trains alone.
                Candidates are scored by cross-entropy, with the client's own buffers. What the weights are fitted to
                measures nothing: L_i takes the 1st, 3rd, ... validation row of a client, the ``val`` metrics of this
                method and the choice of its round the others; of a single row L_i takes that, and the client is not in
                ``val``. The gate between registered versions scores all validation rows, so it flatters FedFomo.
                What prox and MOON take for the received model is theta_i before it is mixed.
    Source      Zhang et al., ICLR 2021, eq. 3-4, Algorithm 1. https://arxiv.org/abs/2012.08565
    """

    models: Annotated[int, Field(ge=1)] = 5
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.3
    epsilon_decay: Annotated[float, Field(ge=0, le=1)] = 0.95
    has_global: ClassVar[bool] = False
    collects_uploads: ClassVar[bool] = True
    needs_validation: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "clean": {},
        "paper": {"models": 5, "epsilon": 0.3},
    }

    def check(self, net: Net, train: Train) -> None:
        """Refuse newcomers: the server's models and rankings are those of the clients there are from the start."""
        if train.newcomer_rounds:
            raise ValueError(
                f"train.newcomer_rounds is {train.newcomer_rounds}, but fedfomo ranks the clients it starts with and"
                " takes no newcomers; use 0, or another method"
            )

    def is_shared(self, net: Net, name: str, round: int) -> bool:
        """Average nothing."""
        return False

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Fill the bank with the initial model; pick each client's own and the next ones."""
        total, size = population.num_clients, sum(p.numel() for p in net.initial_params.values())
        if total > _MAX_CLIENTS:
            raise ValueError(
                f"fedfomo ranks every client for every other: {total} clients are more than it can; use at most"
                f" {_MAX_CLIENTS} clients or another method"
            )
        if total * size > _MAX_BANK:
            raise ValueError(
                f"fedfomo keeps every client's model on the server: {total} clients x {size} parameters are more than"
                f" {_MAX_BANK}; use at most {_MAX_BANK // size} clients or a smaller model"
            )
        bank = {n: params[n].expand(total, *params[n].shape).clone() for n in net.initial_params}
        affinity = torch.eye(total, device=population.class_counts.device, dtype=population.class_counts.dtype)
        ids = torch.arange(total, device=affinity.device)
        picks = (ids[:, None] + ids[: self.models]) % total
        return {"bank": bank, "affinity": affinity, "picks": picks}

    def download(self, server: State, client: int) -> State:
        """Send the picked models."""
        return {"models": {n: p[server["picks"][client]] for n, p in server["bank"].items()}}

    def init_client(self, net: Net, params: Params) -> State:
        """Start old_i at the initial model."""
        old = {n: params[n] for n in net.initial_params}
        return {"old": old, "weights": next(iter(old.values())).new_zeros(self.models)}

    def start(self, net: Net, params: Params, state: State, view: View) -> tuple[Params, State]:
        """Weigh the received models and mix them."""
        models, old = view.received["models"], state["old"]
        before = self._loss(net, params, old, view)
        weights = torch.stack(
            [
                ((before - self._loss(net, params, theta, view)) / (_distance(theta, old) + 1e-5)).clamp(min=0)
                for theta in _rows(models)
            ]
        )
        weights = weights.nan_to_num(0.0)
        total = weights.sum()
        mixed = {
            n: torch.where(total > 0, torch.tensordot(weights / total, p, 1), params[n]) for n, p in models.items()
        }
        unused = self.models - len(weights)  # with fewer clients than M
        return {**params, **mixed}, {"old": mixed, "weights": torch.nn.functional.pad(weights, (0, unused))}

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Send theta_i and w."""
        received = len(_rows(view.received["models"]))
        return {"model": {n: params[n] for n in state["old"]}, "weights": state["weights"][:received]}, state

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Keep the models, add the weights, pick the next ones."""
        uploads, affinity = stack(list(cohort.uploads)), server["affinity"]
        clients = torch.as_tensor(cohort.clients, device=affinity.device)
        bank = {n: p.index_copy(0, clients, uploads["model"][n]) for n, p in server["bank"].items()}
        rows = affinity[clients].scatter_add(1, server["picks"][clients], uploads["weights"])
        affinity = affinity.index_copy(0, clients, rows)
        return shared, {"bank": bank, "affinity": affinity, "picks": self._picks(affinity, cohort)}

    def _picks(self, affinity: Tensor, cohort: Cohort) -> Tensor:
        total = cohort.num_clients
        lots = torch.as_tensor(cohort.generator.random((total, total)), device=affinity.device)
        coins = torch.as_tensor(cohort.generator.random((total, 1)), device=affinity.device)
        anyone = lots.argsort(1)
        best = anyone.gather(1, affinity.gather(1, anyone).argsort(dim=1, descending=True, stable=True))
        explores = coins < self.epsilon * self.epsilon_decay**cohort.round
        return torch.where(explores, anyone, best)[:, : self.models]

    def _loss(self, net: Net, params: Params, model: Params, view: View) -> Tensor:
        rows = view.validation
        assert rows is not None
        logits = net.classify({**params, **model}, net.features({**params, **model}, rows.x))
        return rows.mean(cross_entropy(logits, rows.y))


def _rows(models: Params) -> list[Params]:
    count = len(next(iter(models.values())))
    return [{n: p[k] for n, p in models.items()} for k in range(count)]


def _distance(one: Params, other: Params) -> Tensor:
    return torch.stack([((one[n] - other[n]) ** 2).sum() for n in other]).sum().sqrt()
