"""What an MLflow run of a training holds: its name, parameters, tags, data-set inputs and metric points."""

from __future__ import annotations

import getpass
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tasks.run_folder import Run as RunFolder
from tasks.run_folder import read_columns

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Run
    from mlflow.tracking import MlflowClient

Point = tuple[str, int, float, int]  # metric name, step (the round), value, time in ms since 1970

KEY = "fedcore.run_key"
KIND = "fedcore.kind"
SUPERSEDED = "fedcore.superseded_by"
ROUND_SECONDS = "time/round_seconds"

_LONGEST = 500  # characters of a parameter or tag, the least of what the tracking stores take
_BATCH_POINTS, _BATCH_NAMES = 1000, 100  # MLflow's limits per call


def find_run(client: MlflowClient, experiment: str, run_key: str, kind: str = "run") -> Run | None:
    """Return the newest run of the experiment with this key that was not superseded."""
    found = client.search_runs(
        [experiment],
        f"tags.`{KEY}` = '{run_key}' AND tags.`{KIND}` = '{kind}'",
        order_by=["attributes.start_time DESC"],
    )
    return next((run for run in found if SUPERSEDED not in run.data.tags), None)


def create_run(
    client: MlflowClient,
    experiment: str,
    config: Mapping[str, Any],
    lineage: Mapping[str, Any],
    seconds: float = 0.0,
) -> str:
    """Create the run of one training with its parameters, tags and data-set inputs; return its id.

    `seconds` is how long ago it began.
    """
    tags = {
        KIND: "run",
        KEY: config["run_key"],
        **_method_tags(config),
        "fedcore.seed": str(config["seed"]),
        **lineage_tags(lineage),
        **_origin_tags(),
    }
    name = f"{config['label']}-{config['seed']}"
    run = client.create_run(experiment, start_time=began(seconds), tags=tags, run_name=name)
    log_params(client, run, config)
    client.log_inputs(run.info.run_id, dataset_inputs(config, lineage))
    return str(run.info.run_id)


def began(seconds: float) -> int:
    """Return the moment so many seconds ago, as MLflow counts: ms since 1970."""
    return time.time_ns() // 1_000_000 - round(1000 * seconds)


def log_params(client: MlflowClient, run: Run, config: Mapping[str, Any]) -> None:
    """Log the flattened config; parameters the run has already stay, for MLflow forbids changing them.

    An empty section is left out: compared with a run that has one, it would look like another value of it. So are the
    parameters as they were written; what they came to is there.
    """
    from mlflow.entities import Param

    known = {*run.data.params, "run_key"}
    missing = [
        Param(name, value)
        for name, value in flatten(config)
        if name not in known and value != "{}" and not name.startswith("params.")
    ]
    for batch in _batches(missing, _BATCH_NAMES):
        client.log_batch(run.info.run_id, params=batch)


def log_points(client: MlflowClient, run_id: str, points: Iterable[Point]) -> None:
    """Log metric points in as few calls as MLflow allows."""
    from mlflow.entities import Metric

    metrics = (Metric(name, value, when, step) for name, step, value, when in points)
    for batch in _batches(metrics, _BATCH_POINTS):
        client.log_batch(run_id, metrics=batch)


def log_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags in as few calls as MLflow allows."""
    from mlflow.entities import RunTag

    for batch in _batches((RunTag(name, value) for name, value in tags.items()), _BATCH_NAMES):
        client.log_batch(run_id, tags=batch)


def logged_points(client: MlflowClient, run: Run) -> dict[tuple[str, int], float]:
    """Return every (metric, step) the run has, with its value."""
    return {
        (name, point.step): point.value
        for name in run.data.metrics
        for point in client.get_metric_history(run.info.run_id, name)
    }


def folder_points(run: RunFolder) -> list[Point]:
    """Return every metric point of a run folder: the curves, then the summary figures at the last round."""
    now, last = time.time_ns() // 1_000_000, run.rounds[-1]
    columns = [(name, run.rounds, values) for name, values in run.history.items() if name != "round"]
    if (run.folder / "timing.csv").is_file():
        timing = read_columns(run.folder / "timing.csv")
        columns.append((ROUND_SECONDS, [int(number) for number in timing["round"]], timing.get("total_seconds", [])))
    points = [
        (name, step, value, now)
        for name, steps, values in columns
        for step, value in zip(steps, values, strict=False)
        if not math.isnan(value)
    ]
    known = {point[:2] for point in points}
    for name, raw in sorted(run.metrics.items()):
        value = as_number(raw)
        if value is not None and name != "round" and (name, last) not in known:
            points.append((name, last, value, now))
    return points


def training_seconds(run: RunFolder) -> float:
    """Return how long the rounds of a run took; 0 where that was not kept."""
    file = run.folder / "timing.csv"
    return math.fsum(read_columns(file).get("total_seconds", [])) if file.is_file() else 0.0


def as_number(value: object) -> float | None:
    """Return a JSON value as a float; None when it is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def differs(point: Point, logged: Mapping[tuple[str, int], float]) -> bool:
    """Say whether the point was logged with another value; seconds always differ and prove nothing."""
    name, step, value, _ = point
    if name == ROUND_SECONDS or (name, step) not in logged or math.isinf(value):
        return False
    return not math.isclose(logged[name, step], value, rel_tol=1e-6, abs_tol=1e-9)


def dataset_inputs(config: Mapping[str, Any], lineage: Mapping[str, Any]) -> list[DatasetInput]:
    """Return the data set and the partition as MLflow inputs: name, digest and where they lie, no data."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    name, experiment = config.get("dataset", {}).get("name", "dataset"), config["experiment"]
    parts = (
        ("dataset", name, f"data/datasets/{name}", "dataset_hash"),
        ("partition", f"{experiment}-partition", f"data/partitions/{experiment}.npz", "partition_hash"),
    )
    inputs = []
    for context, title, path, key in parts:
        if digest := str(lineage.get(key) or ""):
            # MLflow takes 36 characters of digest; the whole hash is a tag.
            dataset = Dataset(title, digest[:36], source_type="local", source=json.dumps({"uri": path}))
            tags = [InputTag("mlflow.data.context", context), InputTag(f"fedcore.{key}", digest)]
            inputs.append(DatasetInput(dataset, tags))
    return inputs


def lineage_tags(lineage: Mapping[str, Any]) -> dict[str, str]:
    """Return the lineage as tags ``lineage.<key>``, and the commit also where MLflow's pages look for it."""
    tags = {f"lineage.{name}": value for name, value in flatten(lineage) if name != "run_key" and value}
    if commit := lineage.get("git_commit"):
        tags |= {"git_commit": str(commit), "mlflow.source.git.commit": str(commit)}
    return tags


def summary_tags(configs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tags of a summary over runs of one method that differ in their seed."""
    return {
        **_method_tags(configs[0]),
        "fedcore.seeds": ", ".join(str(config["seed"]) for config in configs),
        **_origin_tags("tasks.publish"),
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested keys joined by dots with their values as text of at most 500 characters."""
    for key in sorted(values):
        value, name = values[key], f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
            continue
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        yield name, text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def person() -> str:
    """Return the user's name, or "unknown" where the system has none for this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _method_tags(config: Mapping[str, Any]) -> dict[str, str]:
    return {"fedcore.label": config["label"], "fedcore.method": config.get("method") or config["label"]}


def _origin_tags(source: str = "tasks.train") -> dict[str, str]:
    """Return who or what started this: the DVC stage and the Prefect flow run reach a step by its environment."""
    known = {
        "mlflow.user": person(),
        "mlflow.source.type": "PROJECT",
        "mlflow.source.name": source,
        "dvc.stage": os.environ.get("DVC_STAGE"),
        "prefect.flow_run": os.environ.get("FEDCORE_FLOW_RUN"),
        "prefect.flow_run_name": os.environ.get("FEDCORE_FLOW_RUN_NAME"),
    }
    return {name: value for name, value in known.items() if value}


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
