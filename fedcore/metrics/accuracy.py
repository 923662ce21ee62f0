"""Per-client scores and what is reported of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scores:
    """Sums over one split of each of m clients; they add up, so pooling is exact.

    Attributes
    ----------
    examples, correct : [m] int64
    loss : [m] float64
        Sum of the cross-entropy, in nats.
    readings : dict of [m] int64
        What is correct in other readings of the same logits, by name.
    """

    examples: NDArray[np.int64]
    correct: NDArray[np.int64]
    loss: NDArray[np.float64]
    readings: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def accuracies(self) -> NDArray[np.float64]:
        """Accuracy of each client; NaN where it has no example."""
        return _ratio(self.correct, self.examples)

    @property
    def losses(self) -> NDArray[np.float64]:
        """Mean loss of each client; NaN where it has no example."""
        return _ratio(self.loss, self.examples)

    def take(self, clients: NDArray[np.int64] | slice) -> Scores:
        """Return the scores of some clients."""
        readings = {name: correct[clients] for name, correct in self.readings.items()}
        return Scores(self.examples[clients], self.correct[clients], self.loss[clients], readings)

    def pooled(self) -> dict[str, float]:
        """Return accuracy and loss over all examples together; empty without examples."""
        total = int(self.examples.sum())
        if total == 0:
            return {}
        readings = {f"accuracy_{name}": int(correct.sum()) / total for name, correct in self.readings.items()}
        return {"accuracy": int(self.correct.sum()) / total, **readings, "loss": math.fsum(self.loss) / total}

    def spread(self) -> dict[str, float]:
        """Return `pooled` and how accuracy spreads over the clients that have examples.

        ``client_mean`` and ``client_std`` weigh clients equally (population standard deviation);
        ``worst_decile`` is the mean over the ceil(m / 10) clients with the lowest accuracy.
        """
        accuracies = np.sort(self.accuracies[self.examples > 0])
        if not len(accuracies):
            return {}
        worst = accuracies[: -(-len(accuracies) // 10)]
        return {
            **self.pooled(),
            "client_mean": float(accuracies.mean()),
            "client_std": float(accuracies.std()),
            "worst_decile": float(worst.mean()),
        }


def _ratio(values: NDArray[np.generic], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    result = np.full(len(counts), np.nan)
    np.divide(values, counts, out=result, where=counts > 0)
    return result
