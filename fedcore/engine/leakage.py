"""What the clients' models, and the server's, tell of protected attributes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fedcore.addons.base import Addon
from fedcore.compose import Composition
from fedcore.engine.evaluate import Scorer, Split
from fedcore.engine.local import Outcome
from fedcore.metrics.fairness import Frozen, auc, leakage, macro_auc, scores_side_by_side
from fedcore.models.net import Net
from fedcore.seeds import stream
from fedcore.types import Params

_SIDE_BY_SIDE = 16  # adversaries that are trained together; more gain nothing
_MOST_ROWS = 1 << 17  # of features that wait for it


def protected_metrics(scorer: Scorer, models: Iterable[Outcome], seed: int, retrain: bool) -> dict[str, float]:
    """Score every client's own model on its own test split.

    Parameters
    ----------
    retrain : bool
        Whether to train an adversary from scratch on the frozen features of every client's train split; the one the
        features were trained against may have lost to them, and a fresh one may still read the attributes.

    Returns
    -------
    dict
        Areas under ROC curves, 0.5 is chance. ``personal/test/adversary_auc``: of the add-on's own adversary, and
        ``personal/test/leakage_auc``: of the retrained one, both macro over attributes, mean over clients by test
        examples; ``personal/test/class_auc``: of the second class's probability, all clients' examples pooled, for
        two classes. Empty where no add-on measures attributes.
    """
    federation = scorer.federation
    fresh = _FreshAdversaries(seed)
    found: dict[str, list[float]] = {"adversary_auc": [], "leakage_auc": fresh.areas}
    weights, chances, labels = [], [], []
    for model in models:
        test = federation.rows(model.client, "test")
        shown = scorer.protected(model.params, model.buffers, test) if len(test) else None
        if shown is None:
            continue
        weights.append(len(test))
        found["adversary_auc"].append(macro_auc(*shown[:2]))
        if retrain:
            train = scorer.protected(model.params, model.buffers, federation.rows(model.client, "train"))
            assert train is not None
            fresh.add(Frozen(train[2], train[1], shown[2]), shown[1])
        if federation.dataset.num_classes == 2:
            chances.append(scorer.probabilities(model.params, model.buffers, test)[:, -1])
            labels.append(federation.dataset.labels[test])
    fresh.train()
    metrics = {
        f"personal/test/{name}": _mean(np.array(values), np.array(weights)) for name, values in found.items() if values
    }
    if chances:
        metrics["personal/test/class_auc"] = auc(np.concatenate(chances), np.concatenate(labels))
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def pooled_protected_metrics(
    scorer: Scorer, model: tuple[Params, Params], clients: Sequence[int], seed: int, retrain: bool
) -> dict[str, float]:
    """Score the server's model, and the one adversary that all clients share, on the clients' test splits pooled.

    Parameters
    ----------
    model
        Parameters, the adversary's among them, and buffers.
    retrain : bool
        As of `protected_metrics`; the fresh adversary learns on the clients' train splits pooled.

    Returns
    -------
    dict
        ``global/test/adversary_auc``, ``.../leakage_auc`` and ``.../class_auc``, as of `protected_metrics`.
    """
    test = scorer.federation.rows_of(clients, "test")
    shown = _gathered(scorer, model, clients, "test")
    if shown is None or not len(test):
        return {}
    metrics = {"adversary_auc": macro_auc(*shown[:2])}
    if retrain:
        train = _gathered(scorer, model, clients, "train")
        assert train is not None
        metrics["leakage_auc"] = leakage(train[2], train[1], shown[2], shown[1], seed)
    if scorer.federation.dataset.num_classes == 2:
        metrics["class_auc"] = auc(scorer.probabilities(*model, test)[:, -1], scorer.federation.dataset.labels[test])
    return {f"global/test/{name}": value for name, value in metrics.items() if np.isfinite(value)}


class _FreshAdversaries:
    """Trains the clients' adversaries some at a time, and keeps no more clients' features than those of them.

    Attributes
    ----------
    areas : list
        Of the clients in their order, up to the last that was trained.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self.areas: list[float] = []
        self._waiting: list[tuple[Frozen, np.ndarray]] = []

    def add(self, frozen: Frozen, attributes_test: np.ndarray) -> None:
        """Take a client."""
        self._waiting.append((frozen, attributes_test))
        rows = sum(len(waiting.features_train) for waiting, _ in self._waiting)
        if len(self._waiting) == _SIDE_BY_SIDE or rows >= _MOST_ROWS:
            self.train()

    def train(self) -> None:
        """Train those of the clients that wait."""
        if self._waiting:
            tasks, attributes = zip(*self._waiting, strict=True)
            self.areas += map(macro_auc, scores_side_by_side(tasks, self._seed), attributes)
            self._waiting.clear()


def shares_adversary(composition: Composition, net: Net, shared: Collection[str]) -> bool:
    """Return whether what an add-on measures protected attributes with is among the `shared` parameters."""
    measuring = [a for a in composition.addons.values() if type(a).protected_scores is not Addon.protected_scores]
    names = [list(addon.extra_params(net, stream(0, "names"))) for addon in measuring]
    return any(own and all(n in shared for n in own) for own in names)


def _gathered(
    scorer: Scorer, model: tuple[Params, Params], clients: Sequence[int], split: Split
) -> tuple[np.ndarray, ...] | None:
    """Return scores, attributes and features of all clients' rows, client by client; None where nothing measures."""
    parts = [scorer.protected(*model, rows) for c in clients if len(rows := scorer.federation.rows(c, split))]
    found = [part for part in parts if part is not None]
    return tuple(np.concatenate(arrays) for arrays in zip(*found, strict=True)) if found else None


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    known = np.isfinite(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")
