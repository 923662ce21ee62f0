"""scikit-learn's digits."""

from __future__ import annotations

import numpy as np

from fedcore.data.dataset import Dataset


def read() -> Dataset:
    """Return the 1,797 digits, [n, 1, 8, 8], grey levels 0..16."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    inputs = bunch.images.astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    return Dataset("digits", inputs, labels, tuple(map(str, range(10))), (8.0,), (1 / 8,), len(labels))
