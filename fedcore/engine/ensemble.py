"""What all clients' models say together of an example whose client is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.engine.evaluate import SPLITS, Scorer
from fedcore.engine.local import Outcome
from fedcore.types import Params


def ensemble(scorer: Scorer, models: Iterable[Outcome], clients: Sequence[int]) -> dict[str, float]:
    """Score the clients' models on all clients' examples pooled.

    Returns
    -------
    dict
        ``ensemble/<split>/accuracy`` of the mean of the models' probabilities, ``.../accuracy_majority`` of their
        votes (the lowest class wins a tie), ``.../accuracy_geometric`` of the mean of the logarithms of their
        probabilities, ``.../accuracy_weights`` of the one model that has the uniform mean of
        their weights. The "new test" of LG-FedAvg (Liang et al., 2019, section 5).
    """
    rows = {s: np.concatenate([scorer.federation.rows(c, s) for c in clients]) for s in SPLITS}
    used = np.concatenate(list(rows.values()))
    labels = scorer.federation.dataset.labels[used]
    probabilities: NDArray[np.float64] = np.zeros((len(used), scorer.federation.dataset.num_classes))
    votes, logarithms = np.zeros_like(probabilities), np.zeros_like(probabilities)
    params: Params = {}
    buffers: Params = {}
    count = 0
    for model in models:
        found = scorer.probabilities(model.params, model.buffers, used)
        probabilities += found
        logarithms += np.log(np.maximum(found, np.finfo(np.float64).tiny))
        votes[np.arange(len(used)), found.argmax(1)] += 1
        count += 1
        params, buffers = _added(params, model.params), _added(buffers, model.buffers)
    mean = scorer.probabilities(_over(params, count), _over(buffers, count), used)
    readings = {"": probabilities, "_majority": votes, "_weights": mean, "_geometric": logarithms}
    result: dict[str, float] = {}
    begin = 0
    for split, own in rows.items():
        part = slice(begin, begin + len(own))
        begin += len(own)
        for name, values in readings.items():
            if len(own):
                hits = values[part].argmax(1) == labels[part]
                result[f"ensemble/{split}/accuracy{name}"] = float(hits.mean())
    return result


def _added(total: Params, more: Mapping[str, torch.Tensor]) -> Params:
    return {n: total[n] + p if total else p for n, p in more.items()}


def _over(total: Params, count: int) -> Params:
    return {n: p / count for n, p in total.items()}
