"""What an evaluation reports beside the views of every method, where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from fedcore.engine.ensemble import ensemble
from fedcore.engine.leakage import pooled_protected_metrics, protected_metrics, shares_adversary
from fedcore.engine.local import Outcome
from fedcore.engine.snapshots import Snapshots, snapshot_metrics
from fedcore.engine.views import Evaluation
from fedcore.types import Params

if TYPE_CHECKING:
    from fedcore.engine.rounds import Training


def further_views(
    training: Training,
    round: int,
    is_last: bool,
    result: Evaluation,
    server_model: tuple[Params, Params],
    own_models: Callable[[], Iterator[Outcome]],
) -> dict[str, float]:
    """Score ensembles, the clients' best models on their test splits, and what is told of protected attributes.

    Parameters
    ----------
    is_last : bool
        Whether this is the last round, of the training or of the newcomers.
    result : Evaluation
        Of the views of every method, in this round.
    server_model
        Parameters and buffers of the server's model; personal ones at their initial values.
    own_models
        Makes the training clients' own models.
    """
    metrics: dict[str, float] = {}
    train, scorer, clients = training.train, training.scorer, range(training.federation.num_clients)
    if train.ensemble_every and (is_last or (round + 1) % train.ensemble_every == 0):
        metrics.update(ensemble(scorer, own_models(), clients))
    if train.best_on_test and round < train.rounds:
        metrics.update(_best_on_test(training, round, result))
    if training.composition.measures_protected:
        metrics.update(protected_metrics(scorer, own_models(), training.seed, is_last))
        shared = training.progress.server.params
        if training.composition.method.has_global and shares_adversary(training.composition, training.net, shared):
            metrics.update(pooled_protected_metrics(scorer, server_model, clients, training.seed, is_last))
    return metrics


def _best_on_test(training: Training, round: int, result: Evaluation) -> dict[str, float]:
    """Take snapshots of the clients that were never as good on their test splits, and score all of them.

    There are none before the round from which on all stays with clients that ever will.
    """
    progress, method, number = training.progress, training.composition.method, training.federation.num_clients
    own = progress.store.initial
    if method.adapt_phases(training.train) or not (own["params"] or own["buffers"]):
        return {}
    names = [*own["params"], *own["buffers"], *progress.server.params, *progress.server.buffers]
    shared = (training.composition.shared_names(training.net, names, r) for r in (round, training.train.rounds - 1))
    if len({*shared}) > 1:  # what a client will keep still travels: such a model is nobody's own
        return {}
    progress.snapshots = progress.snapshots or Snapshots.none(number)
    accuracies = result.clients["test"].take(slice(0, number)).accuracies
    progress.snapshots.take(round, progress.server, progress.store, accuracies)
    return snapshot_metrics(
        training.scorer, progress.snapshots, progress.server, partial(method.personal, training.net)
    )
