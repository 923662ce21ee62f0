"""The evaluation views: the same names for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from fedcore.engine.evaluate import SPLITS, Scorer, Split, concatenate
from fedcore.engine.local import Outcome
from fedcore.metrics.accuracy import Scores
from fedcore.types import Params

ClientModels = Callable[[Sequence[int]], Iterator[Outcome]]  # clients -> their models, adapted where the method adapts


_GROUP = 1000  # clients whose scores become one array


class Evaluation(NamedTuple):
    """What one evaluation found."""

    metrics: dict[str, float]  # <view>/<split>/<metric>
    clients: dict[Split, Scores]  # the personal and unseen views' scores, one entry per client


def evaluate(
    scorer: Scorer,
    server_model: tuple[Params, Params],
    client_models: ClientModels | None,
    has_global: bool,
    adapts: bool = False,
    newcomers: bool = False,
) -> Evaluation:
    """Score the server's model and every client's.

    Parameters
    ----------
    server_model
        Parameters and buffers of the server's model; personal ones at their initial values.
    client_models
        Makes the clients' own models; None when every client uses the server's.
    has_global
        Whether the server's model is worth a view, and a model for unseen clients.
    adapts
        Whether clients' own models are adapted to their data, unseen clients' too; if not, those use the server's.
    newcomers
        Whether the clients that were unseen take part by now: their view is ``newcomer`` then, and their own models'.
    """
    federation = scorer.federation
    seen, unseen = range(federation.num_clients), range(federation.num_clients, federation.num_total)
    metrics: dict[str, float] = {}
    pooled: dict[Split, Scores] = {}
    clients: dict[Split, Scores] = {}
    if has_global or client_models is None:
        everyone = range(federation.num_total)
        pooled = {split: scorer.shared(*server_model, everyone, split) for split in SPLITS}
        for split in SPLITS:
            metrics.update(_named("global", split, pooled[split].take(slice(0, len(seen))).pooled()))
    if client_models is None:
        clients = pooled
    else:
        have_own = newcomers or (has_global and adapts)
        clients = _own_scores(scorer, client_models([*seen, *unseen] if have_own else seen))
        if has_global and not have_own:
            late = slice(len(seen), None)
            clients = {split: concatenate([clients[split], pooled[split].take(late)]) for split in SPLITS}
    for split in SPLITS:
        metrics.update(_named("personal", split, clients[split].take(slice(0, len(seen))).spread()))
        others = clients[split].take(slice(len(seen), None)).spread()
        metrics.update(_named("newcomer" if newcomers else "unseen", split, others))
    return Evaluation(metrics, clients)


def _own_scores(scorer: Scorer, models: Iterator[Outcome]) -> dict[Split, Scores]:
    """Score clients on their own models; memory of a few numbers for each."""
    parts: dict[Split, list[Scores]] = {split: [] for split in SPLITS}
    for first in models:
        some = scorer.own(chain([first], islice(models, _GROUP - 1)))
        for split in SPLITS:
            parts[split].append(some[split])
    return {split: concatenate(scores) for split, scores in parts.items()}


def _named(view: str, split: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{view}/{split}/{name}": value for name, value in values.items()}
