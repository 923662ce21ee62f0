"""What the clients' models tell of protected attributes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedcore.engine.evaluate import Scorer
from fedcore.engine.local import Outcome
from fedcore.metrics.fairness import auc, leakage, macro_auc


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
    found: dict[str, list[float]] = {"adversary_auc": [], "leakage_auc": []}
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
            found["leakage_auc"].append(leakage(train[2], train[1], shown[2], shown[1], seed))
        chances.append(scorer.probabilities(model.params, model.buffers, test)[:, -1])
        labels.append(federation.dataset.labels[test])
    metrics = {
        f"personal/test/{name}": _mean(np.array(values), np.array(weights)) for name, values in found.items() if values
    }
    if metrics and federation.dataset.num_classes == 2:
        metrics["personal/test/class_auc"] = auc(np.concatenate(chances), np.concatenate(labels))
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    known = np.isfinite(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")
