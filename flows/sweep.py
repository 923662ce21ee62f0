"""A sweep over hyper-parameters: every point of a grid with every seed, the best one chosen on validation data.

It runs beside the comparison: own folder, own tracking experiment, params.yaml and the registry untouched. Nothing is
trained twice: a point that is done for the same data and code is taken as it is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from ruamel.yaml import YAML

from flows.experiment import BEFORE, reproduce
from flows.nightly import command
from tasks import sweep as sweeps
from tasks.files import write_json
from tasks.parameters import read_config


@task(cache_policy=NO_CACHE, task_run_name="train {label}-{seed}", retries=1, retry_delay_seconds=5)
def train_point(folder: str, label: str, seed: int, dataset: str, partition: str) -> None:
    """Train one point with one seed, unless that is done; a retry goes on from the last checkpoint."""
    plan, out = Path(folder) / "plans" / f"{label}.json", Path(folder) / "runs" / f"{label}-{seed}"
    if sweeps.is_done(out, plan, Path(dataset), Path(partition)):
        get_run_logger().info("%s is done", out)
        return
    data = ["--dataset", dataset, "--partition", partition]
    _python("tasks.train", "--plan", str(plan), "--seed", str(seed), *data, "--out", str(out))


@flow(name="sweep")
def sweep(
    grid: dict[str, list[Any]],
    seeds: list[int] | None = None,
    methods: list[str] | None = None,
    view: Literal["personal", "global"] = "personal",
    name: str = "sweep",
) -> State[Any]:
    """Try every combination of a grid and say which is best.

    Parameters
    ----------
    grid
        Values to try by parameter: ``methods.<label>.<...>`` varies that method, ``train.<key>`` every one.
    seeds
        None: those of params.yaml.
    methods
        The methods to vary; None: those that `grid` names, or all where it names none.
    view
        Whose validation accuracy decides.
    name
        Of the folder .experiments/<name>, the tables reports/sweeps/<name> and the tracking experiment.
    """
    config = read_config()
    params = YAML(typ="safe").load(Path("params.yaml"))
    chosen = sweeps.points(params, grid, methods)
    made = sweeps.parameters(params, chosen, seeds, name)
    folder = sweeps.FOLDER / name
    file = sweeps.prepare(folder, made)
    used = list(made["compare"]["seeds"])

    for stage in BEFORE:
        reproduce(stage)
    dataset, partition = f"data/datasets/{config.dataset.name}", f"data/partitions/{config.experiment}.npz"
    shared = [f for kind in ("virtual", "pseudo") for f in (f"--{kind}", f"data/{kind}/{config.experiment}")]
    data = ["--dataset", dataset, "--partition", partition]
    _python("tasks.plan", "--params", str(file), *data, *shared, "--out", str(folder / "plans"))
    failed = {}
    for point in chosen:
        for seed in used:
            state = train_point(str(folder), point.label, seed, dataset, partition, return_state=True)
            if not state.is_completed():
                failed[f"{point.label}-{seed}"] = " ".join((state.message or "failed").split())
    _python("tasks.publish", "--runs", str(folder / "runs"), "--experiment", made["experiment"])
    rows = sweeps.results(folder, chosen, used, made["experiment"], view, failed)
    return show(rows, view, name)


def show(rows: list[sweeps.Row], view: str, name: str) -> State[Any]:
    """Attach the table, write it to reports/sweeps, and return the state that says which point is best."""
    write_json(Path("reports/sweeps") / f"{name}.json", {"view": view, "rows": sweeps.as_dicts(rows)})
    create_table_artifact(
        key="sweep", table=[row.cells() for row in rows], description=f"Chosen on the {view} validation accuracy."
    )
    best, wrong = rows[0], [row.label for row in rows if row.failed]
    if best.validation is None:
        return Failed(message=f"no point has a {view} validation accuracy: {best.failed}")
    values = ", ".join(f"{key} = {value}" for key, value in best.values.items())
    message = (
        f"best: {values} ({best.label}, {view} validation accuracy {best.validation:.4f}; reports/sweeps/{name}.json)"
    )
    if wrong:
        return Completed(message=f"{message}; failed: {', '.join(wrong)}", name="CompletedWithWarnings")
    return Completed(message=message)


def _python(module: str, *arguments: str) -> None:
    command([sys.executable, "-m", module, *arguments])
