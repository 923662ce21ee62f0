"""Compare the methods of ``params.yaml`` over their seeds: ``comparison.json`` and ``leaderboard.csv``.

Nothing measured in seconds goes in here, so both files have the same bytes whenever the runs have.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.parameters import run_step

if TYPE_CHECKING:
    from fedcore.config import Compare
    from tasks.run_folder import Run

METRICS = ("accuracy", "loss", "client_mean", "client_std", "worst_decile")
# Beyond this many clients the per-client lists hold an even sample: the page cannot show more, the statistics use all.
CLIENTS_LISTED = 500


def compare(runs: dict[str, list[Run]], experiment: str, settings: Compare) -> dict[str, Any]:
    """Return the whole comparison as plain values.

    Parameters
    ----------
    runs : mapping from label to runs, one per seed, seeds in the same order
    experiment : str
    settings : Compare
        The baseline and the targets.
    """
    baseline = runs[settings.baseline]
    methods = {label: _method(members, baseline, settings) for label, members in runs.items()}
    return {
        "experiment": experiment,
        "baseline": settings.baseline,
        "seeds": settings.seeds,
        "targets": settings.targets,
        "average": settings.average,
        "confidence": 0.95,
        "band": "mean plus and minus one sample standard deviation over seeds",
        "order": sorted(methods, key=lambda label: (*_strength(methods[label]), label)),
        "clients": _clients(baseline[0]),
        "methods": methods,
    }


def _strength(method: dict[str, Any]) -> tuple[float, float]:
    """Return the sort key: best personal, then best global accuracy first, a missing view last."""
    found = [method["views"].get(view) for view in ("personal", "global")]
    personal, shared = (-view["selected"]["accuracy"]["mean"] if view else math.inf for view in found)
    return personal, shared


def _method(runs: list[Run], baseline: list[Run], settings: Compare) -> dict[str, Any]:
    first = runs[0]
    download, upload = ([run.history[f"cost/{way}_bytes"][-1] for run in runs] for way in ("download", "upload"))
    totals = [down + up for down, up in zip(download, upload, strict=True)]
    return {
        "method": first.config.get("method", first.label),
        "settings": first.config.get("settings", {}),
        "add": first.config.get("add", {}),
        "parameters": int(first.metrics["model/parameters"]),
        "rounds": first.rounds[-1],
        "communication": {
            "download_bytes": _summary(runs, download),
            "upload_bytes": _summary(runs, upload),
            "total_bytes": _summary(runs, totals),
        },
        "views": {view: _view(view, runs, baseline, settings) for view in first.views},
    }


def _view(view: str, runs: list[Run], baseline: list[Run], settings: Compare) -> dict[str, Any]:
    from fedcore.metrics.comparison import paired_difference, top_mean

    # Without a validation split there is nothing to select on, and the last round is the honest choice.
    prefix = "selected/" if all(_is_selected(view, run) for run in [*runs, *baseline]) else ""
    accuracy = f"{view}/test/accuracy"
    result: dict[str, Any] = {
        "selected_on": "validation" if prefix else "last round",
        "selected": _metrics(view, runs, prefix),
        "selected_round": _summary(
            runs, [run.metrics[f"{prefix}{view}/round"] if prefix else run.rounds[-1] for run in runs]
        ),
        "last": _metrics(view, runs, ""),
        "average": _average(view, runs, baseline, settings.average) if settings.average else None,
        "test_selected": {
            "best": _summary(runs, [max(run.history[accuracy]) for run in runs]),
            "top5": _summary(runs, [top_mean(run.history[accuracy]) for run in runs]),
        },
        "curve": _curve(view, runs),
        "difference": None,
        "targets": [_target(accuracy, runs, baseline, target) for target in settings.targets],
    }
    if runs is not baseline and view in baseline[0].views:
        pair = [{run.seed: run.metrics[f"{prefix}{accuracy}"] for run in members} for members in (runs, baseline)]
        over_seeds = paired_difference(*pair)
        result["difference"] = {"seeds": over_seeds.as_dict() if over_seeds else None, "clients": None}
        if view != "global":
            result["difference"]["clients"] = _client_difference(view, runs, baseline, prefix)
    if view != "global":
        result["client_accuracy"] = _client_accuracy(view, runs, prefix)
    return result


def _average(view: str, runs: list[Run], baseline: list[Run], count: int) -> dict[str, Any]:
    """Return the mean accuracy of the last `count` evaluated rounds, and the baseline's difference, paired by seed."""
    from fedcore.metrics.comparison import mean, paired_difference

    def tail(members: list[Run]) -> dict[int, float]:
        return {run.seed: mean(run.history[f"{view}/test/accuracy"][-count:]) for run in members}

    found = tail(runs)
    difference = None
    if runs is not baseline and view in baseline[0].views:
        difference = paired_difference(found, tail(baseline))
    return {
        "accuracy": _summary(runs, [found[run.seed] for run in runs]),
        "difference": difference.as_dict() if difference else None,
    }


def _is_selected(view: str, run: Run) -> bool:
    return view not in run.views or f"selected/{view}/val/accuracy" in run.metrics


def _metrics(view: str, runs: list[Run], prefix: str) -> dict[str, Any]:
    names = {metric: f"{prefix}{view}/test/{metric}" for metric in METRICS}
    return {
        metric: _summary(runs, [run.metrics[name] for run in runs])
        for metric, name in names.items()
        if all(name in run.metrics for run in runs)
    }


def _summary(runs: list[Run], values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return the summary over seeds with the value of each seed; None when a seed has no finite value."""
    from fedcore.metrics.comparison import summarise

    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < len(values):
        return None
    per_seed = {str(run.seed): value for run, value in zip(runs, finite, strict=True)}
    return {**summarise(finite).as_dict(), "per_seed": per_seed}


def _curve(view: str, runs: list[Run]) -> dict[str, Any]:
    from fedcore.metrics.comparison import band

    curve: dict[str, Any] = {"rounds": runs[0].rounds}
    for metric in ("accuracy", "loss"):
        name = f"{view}/test/{metric}"
        if all(name in run.history for run in runs):
            mean, low, high = band([run.history[name] for run in runs])
            curve[metric] = {"mean": mean, "low": low, "high": high}
    curve["bytes"] = band([_bytes(run) for run in runs])[0]
    return curve


def _bytes(run: Run) -> list[float]:
    """Return the bytes sent both ways, all clients, up to and with each evaluated round."""
    ways = zip(run.history["cost/download_bytes"], run.history["cost/upload_bytes"], strict=True)
    return [download + upload for download, upload in ways]


def _target(name: str, runs: list[Run], baseline: list[Run], target: float) -> dict[str, Any]:
    """Return rounds and bytes until `target`; means and speed-up only when every seed reached it."""
    from fedcore.metrics.comparison import mean, rounds_to_target, speed_up

    def reached(members: list[Run]) -> list[int | None]:
        if name not in members[0].history:
            return [None]
        return [rounds_to_target(run.rounds, run.history[name], target) for run in members]

    def average(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return mean(known) if len(known) == len(values) else None

    rounds = reached(runs)
    spent = [
        None if number is None else _bytes(run)[run.rounds.index(number)]
        for run, number in zip(runs, rounds, strict=True)
    ]
    return {
        "target": target,
        "rounds": {str(run.seed): number for run, number in zip(runs, rounds, strict=True)},
        "mean_rounds": average(rounds),
        "seeds_reached": sum(number is not None for number in rounds),
        "speed_up": speed_up(average(reached(baseline)), average(rounds)),
        "bytes": {str(run.seed): value for run, value in zip(runs, spent, strict=True)},
        "mean_bytes": average(spent),
    }


def _client_column(view: str, runs: list[Run], prefix: str) -> Any:
    """Return test accuracies [seeds, clients of the view] in float64, NaN where a client has no test example."""
    import numpy as np

    rows = []
    for run in runs:
        name = f"{prefix}test/accuracy"
        values = run.clients[name if name in run.clients else "test/accuracy"].astype(np.float64)
        rows.append(values[run.clients["unseen"].astype(bool) == (view == "unseen")])
    return np.stack(rows)


def _client_difference(view: str, runs: list[Run], baseline: list[Run], prefix: str) -> dict[str, Any] | None:
    from fedcore.metrics.comparison import paired_client_difference

    method, other = (_client_column(view, members, prefix) for members in (runs, baseline))
    if method.shape != other.shape:
        raise ValueError(f"{runs[0].folder}: has other clients than {baseline[0].folder}; run `dvc repro`")
    difference = paired_client_difference(method, other)
    return difference.as_dict() if difference else None


def _client_accuracy(view: str, runs: list[Run], prefix: str) -> list[float | None]:
    from fedcore.metrics.comparison import mean

    columns = _client_column(view, runs, prefix).T
    columns = columns[:: _step(len(columns))]
    return [mean(column.tolist()) if all(map(math.isfinite, column)) else None for column in columns]


def _clients(run: Run) -> dict[str, Any]:
    """Return who the per-client lists are about, per view."""
    result: dict[str, Any] = {}
    for view, unseen in (("personal", False), ("unseen", True)):
        mask = run.clients["unseen"].astype(bool) == unseen
        step = _step(int(mask.sum()))
        names = ("client", "num_train", "num_val", "num_test")
        listed = {name: [int(value) for value in run.clients[name][mask][::step]] for name in names}
        result[view] = {"count": int(mask.sum()), "every": step, **listed}
    return result


def _step(count: int) -> int:
    return max(1, math.ceil(count / CLIENTS_LISTED))


def main() -> None:
    """Command line: write the comparison, or print an existing leaderboard."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--out", type=Path, default=Path("reports/comparison.json"))
    parser.add_argument("--table", type=Path, default=Path("reports/leaderboard.csv"))
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("--print", action="store_true", help="only print the leaderboard that --table holds")
    arguments = parser.parse_args()
    from tasks import leaderboard

    if arguments.print:
        print(leaderboard.as_text(arguments.table))
        return
    from tasks.files import atomic_write_text, write_json
    from tasks.parameters import read_config
    from tasks.run_folder import read_runs

    config = read_config(arguments.params)
    runs = read_runs(arguments.runs, config.methods, config.compare.seeds, config.experiment)
    comparison = compare(runs, config.experiment, config.compare)
    table = leaderboard.to_csv(comparison)
    write_json(arguments.out, comparison)
    atomic_write_text(arguments.table, table)
    print(leaderboard.as_text(arguments.table))


if __name__ == "__main__":
    run_step(main)
