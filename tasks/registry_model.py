"""The registered model: MLflow runs this file when a model version is loaded, wherever that is.

It stands on its own: MLflow stores it, and the `fedcore` package, beside the weights. The ``personal`` model routes
every row by ``client_id``; the ``global`` model treats all rows alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext

if TYPE_CHECKING:
    from fedcore.engine.serving import Answers


class InputError(MlflowException):
    """A mistake in what was sent, in one line: a scoring server answers 400 with it.

    The server puts the whole table before the message of an error; this one keeps its own.
    """

    def __init__(self, message: str):
        self._message = message
        super().__init__(message, error_code=INVALID_PARAMETER_VALUE)

    @property
    def message(self) -> str:
        """What is wrong, and where."""
        return self._message

    @message.setter
    def message(self, value: str) -> None:
        pass


class FederatedModel(PythonModel):
    """Classify examples in raw units, as the data set stores them.

    Input columns are ``features`` (the flattened example, row-major) and, for the personal model, ``client_id``. A
    client without a model of its own is served by the global one (of the best method that has one) and marked
    ``known_client = False``.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Open the weights; MLflow calls this once. Personal ones are read when a client's rows come."""
        from fedcore.engine.serving import load_service

        fallback = context.artifacts.get("fallback")
        is_personal = context.model_config["view"] == "personal"
        self._service = load_service(Path(context.artifacts["run"]), fallback and Path(fallback), is_personal)

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Return ``label``, ``class_name``, ``probability`` and ``probabilities`` per row.

        Also ``known_client`` if personal, and ``logits`` with the parameter ``logits=True``.

        Raises
        ------
        InputError
            When a row's features are too few, too many or not finite, or its client is no whole number.
        """
        service = self._service
        inputs = self._inputs(model_input["features"])
        answers = service.answer(inputs, _clients(model_input["client_id"]) if service.is_personal else None)
        return _table(answers, service.class_names, with_logits=bool(params and params.get("logits")))

    def _inputs(self, features: pd.Series) -> np.ndarray:
        service = self._service
        rows = [_numbers(row, number) for number, row in enumerate(features)]
        for number, row in enumerate(rows):
            if row.size != service.num_features:
                raise InputError(f"row {number}: {row.size} features, expected {service.expected}")
        stacked = np.stack(rows) if rows else np.zeros((0, service.num_features))
        try:
            return service.rows(stacked, lambda row, feature: f"row {row}: feature {feature}")
        except ValueError as error:
            raise InputError(str(error)) from None


def _numbers(value: Any, row: int) -> np.ndarray:
    try:
        found = np.asarray(value)
        # Numpy would read "1" as 1; an object may be a number or nothing among numbers.
        if found.ndim and found.dtype.kind in "iufO":
            return found.astype(np.float64).ravel()
    except OverflowError:
        raise InputError(f"row {row}: a feature is an integer beyond floating point, expected finite numbers") from None
    except (TypeError, ValueError):
        pass
    raise InputError(f"row {row}: features are no list of numbers")


def _clients(values: pd.Series) -> np.ndarray:
    clients = np.zeros(len(values), np.int64)
    for row, value in enumerate(values):
        # A number with a fraction must not be cut to another client's; True is no client 1.
        is_whole = not isinstance(value, bool | np.bool_) and isinstance(value, int | np.integer | float | np.floating)
        if not is_whole or value != value or value != np.floor(value) or abs(value) >= 2**63:
            raise InputError(f"row {row}: client_id is {value!r}, expected a whole number")
        clients[row] = int(value)
    return clients


def _table(answers: Answers, class_names: tuple[str, ...], with_logits: bool) -> pd.DataFrame:
    probabilities, labels = answers.probabilities, answers.labels
    columns: dict[str, Any] = {
        "label": labels,
        "class_name": [class_names[label] for label in labels],
        "probability": probabilities.max(axis=1),
        "probabilities": list(probabilities),
    }
    if with_logits:
        columns["logits"] = list(answers.logits)
    if answers.known is not None:
        columns["known_client"] = answers.known
    return pd.DataFrame(columns)


set_model(FederatedModel())
