"""Classify the rows of a table with a registered model.

The table's columns are described in `tasks.question_files`. Every row gets ``label`` (the class's number),
``class_name`` and ``probability``; a personal model also repeats ``client_id`` and says in ``known_client`` whether the
client's own model answered.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.engine.serving import Answers, Service
from tasks.files import atomic_path
from tasks.parameters import run_step
from tasks.question_files import ENDINGS, Questions, read_questions
from tasks.served_version import add_arguments, opened_version

# How many strangers the summary names.
_NAMED = 5


@dataclass
class Summary:
    """What was answered."""

    rows: int = 0
    strangers: int = 0  # rows of clients without a model of their own
    clients: list[int] = field(default_factory=list)  # the first of them

    def count(self, questions: Questions, answers: Answers) -> None:
        """Add some rows."""
        self.rows += len(answers.logits)
        if answers.known is None or questions.clients is None:
            return
        strangers = questions.clients[~answers.known]
        self.strangers += len(strangers)
        new = sorted(set(strangers.tolist()) - set(self.clients))
        self.clients += new[: _NAMED - len(self.clients)]

    def lines(self, path: Path) -> list[str]:
        """Return it for people."""
        lines = [f"{path}: {self.rows:,} rows"]
        if self.strangers:
            named = ", ".join(map(str, self.clients))
            lines.append(
                f"{self.strangers:,} rows are of clients without a model of their own (such as {named}):"
                " answered by the global model, known_client is false"
            )
        return lines


def predict(service: Service, source: Path, target: Path, columns: list[str], with_logits: bool) -> Summary:
    """Write the predictions of a table's rows, all of them or nothing.

    Raises
    ------
    ValueError
        One line naming the file, and the column and row if they are to blame.
    """
    if target.suffix.lower() not in ENDINGS:
        raise ValueError(f"{target}: expected a file ending in {' or '.join(ENDINGS)}")
    if target.resolve() == source.resolve():
        raise ValueError(f"{target}: is the input; the output needs another name")
    summary = Summary()
    with atomic_path(target) as temporary, _writer(temporary, service, with_logits) as write:
        for questions in read_questions(source, service, columns):
            answers = service.answer(questions.inputs, questions.clients)
            write(_columns(service, questions, answers, with_logits))
            summary.count(questions, answers)
    return summary


def _columns(service: Service, questions: Questions, answers: Answers, with_logits: bool) -> dict[str, Any]:
    labels = answers.labels
    columns: dict[str, Any] = {}
    if answers.known is not None:
        columns |= {"client_id": questions.clients, "known_client": answers.known}
    columns["label"] = labels
    columns["class_name"] = [service.class_names[label] for label in labels]
    columns["probability"] = answers.probabilities.max(axis=1)
    if with_logits:
        columns |= {f"logit_{number}": np.ascontiguousarray(row) for number, row in enumerate(answers.logits.T)}
    return columns


@contextmanager
def _writer(path: Path, service: Service, with_logits: bool) -> Iterator[Any]:
    """Yield a function that appends columns to a CSV or parquet file."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.csv as pc  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    fields = [("client_id", pa.int64()), ("known_client", pa.bool_())] if service.is_personal else []
    fields += [("label", pa.int64()), ("class_name", pa.string()), ("probability", pa.float64())]
    if with_logits:
        fields += [(f"logit_{number}", pa.float32()) for number in range(len(service.class_names))]
    schema = pa.schema(fields)
    opened = pq.ParquetWriter(path, schema) if path.suffix.lower() == ".parquet" else pc.CSVWriter(path, schema)
    with opened as file:
        yield lambda columns: file.write_table(pa.table(columns, schema=schema))


@contextmanager
def _cleaned_up_after_sigterm() -> Iterator[None]:
    """Let the block's `finally` clauses run when the process is asked to end."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.predict", description=__doc__.splitlines()[0])
    parser.add_argument("input", type=Path, help="table, .csv or .parquet")
    parser.add_argument("output", type=Path, help="predictions, .csv or .parquet")
    add_arguments(parser)
    parser.add_argument("--columns", default="", help="names of the feature columns, in order; default: x0,x1,...")
    parser.add_argument("--logits", action="store_true", help="also write logit_0, logit_1, ...")
    arguments = parser.parse_args()
    columns = [name for name in arguments.columns.split(",") if name]
    with _cleaned_up_after_sigterm(), opened_version(Path.cwd(), arguments) as version:
        summary = predict(version.service(), arguments.input, arguments.output, columns, arguments.logits)
        print(f"{version} answered")
    print("\n".join(summary.lines(arguments.output)))


if __name__ == "__main__":
    run_step(main)
