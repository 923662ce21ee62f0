"""The registered model: MLflow runs this file when a model version is loaded, wherever that is.

It stands on its own: MLflow stores it, and the `fedcore` package, beside the weights. The ``personal`` model routes
every row by ``client_id``; the ``global`` model treats all rows alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext


class FederatedModel(PythonModel):
    """Classify examples in raw units, as the data set stores them.

    Input columns are ``features`` (the flattened example, row-major) and, for the personal model, ``client_id``. A
    client without a model of its own is served by the global one (of the best method that has one) and marked
    ``known_client = False``.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Read the weights; MLflow calls this once."""
        from fedcore.engine.export import load_predictor

        self._predictor = load_predictor(Path(context.artifacts["run"]))
        fallback = context.artifacts.get("fallback")
        self._shared = load_predictor(Path(fallback)) if fallback else self._predictor
        self._is_personal = context.model_config["view"] == "personal"

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return ``label``, ``probability`` and ``probabilities`` per row, and ``known_client`` if personal.

        Raises
        ------
        ValueError
            When a row's features have the wrong length or are not finite.
        """
        inputs = self._inputs(model_input["features"])
        logits = np.zeros((len(inputs), self._predictor.num_classes))
        if not self._is_personal:
            if len(inputs):
                logits[:] = self._predictor.logits(inputs, None)
            return _table(logits)
        clients = model_input["client_id"].to_numpy(np.int64)
        known = np.isin(clients, sorted(self._predictor.clients))
        for client in np.unique(clients[known]):
            rows = clients == client
            logits[rows] = self._predictor.logits(inputs[rows], int(client))
        if not known.all():
            logits[~known] = self._shared.logits(inputs[~known], None)
        return _table(logits).assign(known_client=known)

    def _inputs(self, features: pd.Series) -> np.ndarray:
        shape = self._predictor.input_shape
        size = int(np.prod(shape))
        rows = [np.asarray(row, dtype=np.float32).ravel() for row in features]
        for number, row in enumerate(rows):
            if row.size != size:
                expected = " x ".join(map(str, shape))
                raise ValueError(f"features of row {number} hold {row.size} values, expected {size} ({expected})")
            if not np.isfinite(row).all():
                raise ValueError(f"features of row {number} hold a value that is not finite")
        return np.stack(rows).reshape(-1, *shape) if rows else np.zeros((0, *shape), np.float32)


def _table(logits: np.ndarray) -> pd.DataFrame:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    return pd.DataFrame(
        {
            "label": probabilities.argmax(axis=1).astype(np.int64),
            "probability": probabilities.max(axis=1),
            "probabilities": list(probabilities),
        }
    )


set_model(FederatedModel())
