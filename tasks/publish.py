"""Bring MLflow up to date with the run folders: recreate what is missing there, complete what is incomplete.

The run folders are the truth. Whatever happened to ``mlruns/``, or wherever DVC took a result from, afterwards every
folder has its finished MLflow run and every method a summary run over its seeds. A second call changes nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import read_json
from tasks.parameters import run_step
from tasks.run_folder import Run, read_run
from tasks.tracking_runs import (
    KEY,
    KIND,
    SUPERSEDED,
    as_number,
    began,
    create_run,
    dataset_inputs,
    differs,
    folder_points,
    lineage_tags,
    log_params,
    log_points,
    log_tags,
    logged_points,
    summary_tags,
    training_seconds,
)
from tasks.tracking_store import ensure_experiment, open_client, readable_errors, tracking_lock

if TYPE_CHECKING:
    from mlflow.entities import Run as MlflowRun
    from mlflow.tracking import MlflowClient

PUBLISHED = "fedcore.published"  # digest of what was written; only there when all of it was
PARENT = "mlflow.parentRunId"
FILES = ("config.json", "metrics.json", "history.csv", "clients.parquet", "lineage.json", "timing.csv")
MODELS = ("model.safetensors", "personal.safetensors")
LARGEST_MODEL = 50 * 2**20  # bytes; a larger file stays in DVC's cache only


@dataclass
class Published:
    """What `publish` found and did: MLflow run ids by run key, how many runs it had to write, what was unreadable."""

    run_ids: dict[str, str]
    problems: list[str]
    runs_written: int = 0
    summaries: int = 0
    summaries_written: int = 0


def publish(root: Path, runs_folder: Path, experiment: str | None = None) -> Published:
    """Publish every run folder, of one experiment or of all.

    Parameters
    ----------
    root : Path
        The project's root folder; ``mlruns``, ``reports`` and ``data`` lie in it.
    runs_folder : Path
        Folder of the run folders.
    experiment : str or None
        Publish only runs of this experiment.

    Returns
    -------
    Published
        With one line in ``problems`` per run folder that is broken; the others are published all the same.
    """
    runs, problems = _read_all(runs_folder, experiment)
    published = Published({}, problems)
    if runs:
        client = open_client(root)
        for name in sorted({run.config["experiment"] for run in runs}):
            members = [run for run in runs if run.config["experiment"] == name]
            _publish_experiment(client, root, name, members, published)
    return published


def _read_all(folder: Path, experiment: str | None) -> tuple[list[Run], list[str]]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: does not exist; run `dvc repro`")
    runs, problems = [], []
    for path in sorted(folder.glob("[!.]*/config.json")):
        try:
            config = read_json(path)
            missing = [key for key in ("experiment", "label", "seed", "run_key") if key not in config]
            if missing:
                raise ValueError(f"{path}: '{missing[0]}' is missing; run `dvc repro`")
            if experiment in (None, config["experiment"]):
                runs.append(read_run(path.parent, config["label"], config["seed"], config["experiment"]))
        except ValueError as error:
            problems.append(str(error))
    return runs, problems


def _publish_experiment(client: MlflowClient, root: Path, name: str, runs: list[Run], published: Published) -> None:
    experiment = ensure_experiment(client, name, root)
    with tracking_lock(root):
        known = _known_runs(client, experiment)
        for run in runs:
            found, written = _publish_run(client, experiment, run, known.get(("run", run.config["run_key"])))
            known["run", run.config["run_key"]] = found
            published.run_ids[run.config["run_key"]] = found.info.run_id
            published.runs_written += written
        comparison = _comparison(root, name)
        attachments = _attachments(root, name, comparison is not None)
        for label in sorted({run.label for run in runs}):
            seeds = sorted((run for run in runs if run.label == label), key=lambda run: run.seed)
            if comparison is not None:
                seeds = [r for r in seeds if label in comparison["methods"] and r.seed in comparison["seeds"]]
            if seeds:
                published.summaries += 1
                published.summaries_written += _publish_summary(client, experiment, seeds, known, attachments)


def _known_runs(client: MlflowClient, experiment: str) -> dict[tuple[str, str], MlflowRun]:
    """Return the experiment's current runs by (kind, key), the newest of each."""
    known: dict[tuple[str, str], MlflowRun] = {}
    token: str | None = ""
    while token is not None:
        page = client.search_runs([experiment], order_by=["attributes.start_time DESC"], page_token=token or None)
        for run in page:
            tags = run.data.tags
            if KEY in tags and KIND in tags and (SUPERSEDED not in tags or tags[KIND] == "summary"):
                known.setdefault((tags[KIND], tags[KEY]), run)
        token = page.token or None
    return known


def _publish_run(client: MlflowClient, experiment: str, run: Run, found: MlflowRun | None) -> tuple[MlflowRun, bool]:
    """Return the MLflow run of a run folder and whether anything had to be written."""
    files = _files(run.folder)
    digest = _digest(files)
    points = folder_points(run)
    if found is not None and _is_complete(client, found, digest, {point[0] for point in points}, files):
        return found, False
    lineage = read_json(run.folder / "lineage.json")
    logged: dict[tuple[str, int], float] = {}
    if found is not None:
        logged = logged_points(client, found)
        if any(differs(point, logged) for point in points):
            # The folder was trained again with other digits: the old curve is not its curve.
            new = create_run(client, experiment, run.config, lineage, training_seconds(run))
            client.set_tag(found.info.run_id, SUPERSEDED, new)
            found, logged = client.get_run(new), {}
    if found is None:
        found = client.get_run(create_run(client, experiment, run.config, lineage, training_seconds(run)))
    run_id = found.info.run_id
    log_params(client, found, run.config)
    log_tags(client, run_id, lineage_tags(lineage))
    if not (found.inputs and found.inputs.dataset_inputs):
        client.log_inputs(run_id, dataset_inputs(run.config, lineage))
    log_points(client, run_id, (point for point in points if point[:2] not in logged))
    for file in files:
        client.log_artifact(run_id, str(file))
    if found.info.status != "FINISHED":
        client.set_terminated(run_id, "FINISHED")
    client.set_tag(run_id, PUBLISHED, digest)
    return client.get_run(run_id), True


def _publish_summary(
    client: MlflowClient,
    experiment: str,
    runs: list[Run],
    known: Mapping[tuple[str, str], MlflowRun],
    attachments: list[Path],
) -> bool:
    """Write one method's summary over seeds; its runs become the summary's children. Return whether it changed."""
    keys = [run.config["run_key"] for run in runs]
    key = hashlib.sha256("\n".join(["summary", *keys]).encode()).hexdigest()
    values = summarise_runs([run.metrics for run in runs])
    digest = _digest(attachments, json.dumps(values, sort_keys=True))
    found = known.get(("summary", key))
    if found is None:
        tags = {KIND: "summary", KEY: key, **summary_tags([run.config for run in runs])}
        start = began(math.fsum(training_seconds(run) for run in runs))
        found = client.create_run(experiment, start_time=start, tags=tags, run_name=runs[0].label)
    complete = _is_complete(client, found, digest, values, attachments)
    run_id = found.info.run_id
    if not complete:
        log_params(client, found, {name: value for name, value in runs[0].config.items() if name != "seed"})
        now = time.time_ns() // 1_000_000
        log_points(client, run_id, ((name, runs[0].rounds[-1], value, now) for name, value in values.items()))
        for file in attachments:
            client.log_artifact(run_id, str(file))
        client.set_terminated(run_id, "FINISHED")
        client.set_tag(run_id, PUBLISHED, digest)
    return _adopt(client, found, [known["run", child] for child in keys]) or not complete


def _adopt(client: MlflowClient, summary: MlflowRun, children: Iterable[MlflowRun]) -> bool:
    """Nest the children under the summary; a summary they are taken from is superseded by this one."""
    run_id, changed = summary.info.run_id, SUPERSEDED in summary.data.tags
    if changed:
        client.delete_tag(run_id, SUPERSEDED)
    for child in children:
        old = child.data.tags.get(PARENT)
        if old == run_id:
            continue
        client.set_tag(child.info.run_id, PARENT, run_id)
        changed = True
        if old is not None and _exists(client, old):
            client.set_tag(old, SUPERSEDED, run_id)
    return changed


def _exists(client: MlflowClient, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def summarise_runs(metrics: list[Mapping[str, float]]) -> dict[str, float]:
    """Return mean, sample standard deviation and 95 % interval over seeds of every metric that all seeds have.

    Parameters
    ----------
    metrics : one mapping per seed
        Content of each run's ``metrics.json``. Figures chosen on the test split (``best``, ``top5``, ``best_on_test``)
        are left out.

    Returns
    -------
    dict
        ``<name>/mean``, and with two seeds or more ``<name>/std``, ``<name>/low`` and ``<name>/high``.
    """
    from fedcore.metrics.comparison import summarise

    result: dict[str, float] = {}
    for name in sorted(metrics[0]):
        values = [as_number(one.get(name)) for one in metrics]
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if name == "round" or name.startswith(("best/", "top5/", "best_on_test/")) or len(numbers) < len(metrics):
            continue
        summary = summarise(numbers)
        figures = {"mean": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high}
        result |= {f"{name}/{figure}": value for figure, value in figures.items() if value is not None}
    return result


def _is_complete(
    client: MlflowClient, run: MlflowRun, digest: str, metrics: Iterable[str], files: Iterable[Path]
) -> bool:
    if run.info.status != "FINISHED" or run.data.tags.get(PUBLISHED) != digest:
        return False
    stored = {Path(artifact.path).name for artifact in client.list_artifacts(run.info.run_id)}
    return set(metrics) <= run.data.metrics.keys() and {file.name for file in files} <= stored


def _files(folder: Path) -> list[Path]:
    small = [name for name in MODELS if (folder / name).is_file() and (folder / name).stat().st_size < LARGEST_MODEL]
    return [folder / name for name in (*FILES, *small) if (folder / name).is_file()]


def _digest(files: Iterable[Path], text: str = "") -> str:
    total = hashlib.sha256(text.encode())
    for file in files:
        with file.open("rb") as stream:
            total.update(f"{file.name}:{hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _comparison(root: Path, experiment: str) -> dict[str, Any] | None:
    path = root / "reports" / "comparison.json"
    comparison = read_json(path) if path.is_file() else {}
    return comparison if comparison.get("experiment") == experiment else None


def _attachments(root: Path, experiment: str, with_reports: bool) -> list[Path]:
    """Return the pictures and reports that belong to the experiment as a whole, as far as they exist."""
    paths = [root / "data" / "partitions" / f"{experiment}.png"]
    if with_reports:
        paths += [root / "reports" / name for name in ("comparison.json", "leaderboard.csv", "index.html")]
    return [path for path in paths if path.is_file()]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.publish", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--experiment", help="publish only the runs of this experiment")
    arguments = parser.parse_args()
    with readable_errors():
        done = publish(Path.cwd(), arguments.runs, arguments.experiment)
    print(
        f"{len(done.run_ids)} runs ({done.runs_written} written),"
        f" {done.summaries} method summaries ({done.summaries_written} written)"
    )
    if done.problems:
        raise ValueError("\n".join(done.problems))


if __name__ == "__main__":
    run_step(main)
