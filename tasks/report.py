"""Write the report: one HTML page that holds everything it shows and loads nothing."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.page_template import page_template
from tasks.parameters import run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore.config import Config
    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable


def render(
    comparison: dict[str, Any],
    config: Config,
    dataset: Dataset,
    table: PartitionTable,
    runs: Path,
    virtual: Path | None = None,
) -> str:
    """Return the page.

    Parameters
    ----------
    comparison : dict
        What `tasks.compare` wrote.
    runs : Path
        Folder of the run folders; only ``timing.csv`` and ``lineage.json`` are read, for the section on this machine.
    virtual : Path or None
        Folder of the virtual data, whose contact sheet is shown when there is one.
    """
    from markupsafe import Markup

    from fedcore.data import statistics
    from tasks import findings, leaderboard, report_figures

    filters: dict[str, Callable[..., Any]] = {
        "pct": _pct,
        "megabytes": _megabytes,
        "figure": _figure,
        "half": findings.half,
        "points": _points,
    }
    counts = _counts(comparison, dataset, table)
    facts = statistics.summary(table, counts)
    styles = report_figures.styles(comparison)
    timing = [_timing(label, comparison["seeds"], runs) for label in comparison["order"]]
    views = [v for v in report_figures.VIEW_NAMES if any(v in m["views"] for m in comparison["methods"].values())]
    return page_template("report.html.jinja", filters).render(
        comparison=comparison,
        config=config,
        dataset=dataset,
        table=table,
        facts=facts,
        views=views,
        view_names=report_figures.VIEW_NAMES,
        styles=styles,
        legend=report_figures.legend(comparison, styles),
        headline=findings.headline(comparison),
        shared=findings.shared_headline(comparison),
        excludes_zero=findings.excludes_zero,
        rows=leaderboard.rows(comparison),
        hardest=findings.hardest_clients(comparison, counts, dataset.class_names),
        figures={name: Markup(svg) for name, svg in report_figures.draw(comparison, counts, dataset, styles).items()},
        parts={label: _made_of(entry) for label, entry in comparison["methods"].items()},
        timing=timing,
        time_parts=list(dict.fromkeys(part for row in timing for part in row["parts"])),
        machine=_machine(comparison, runs),
        parameters=_parameters(config),
        contact_sheet=_data_uri(virtual / "contact.png") if virtual else None,
        used_rows=int((table.client >= 0).sum()),
        hidden_clients=int(counts.any(axis=1).sum()) - len(report_figures.shown(counts)),
        pair=list(dict.fromkeys([_leader(comparison), comparison["baseline"]])),
        against_baseline=_against_baseline(comparison),
        fallback=any(
            v["selected_on"] != "validation" for m in comparison["methods"].values() for v in m["views"].values()
        ),
        parameter_count=" or ".join(
            f"{n:,}" for n in sorted({m["parameters"] for m in comparison["methods"].values()})
        ),
    )


def _data_uri(picture: Path) -> str | None:
    """Return a picture as text a page can hold; None when there is none."""
    import base64

    if not picture.is_file():
        return None
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()


def _counts(comparison: dict[str, Any], dataset: Dataset, table: PartitionTable) -> np.ndarray:
    """Return examples per client and label, all splits together."""
    from fedcore.data import statistics

    if len(dataset) != len(table.client):
        raise ValueError(
            f"the partition has {len(table.client)} rows but the data set '{dataset.name}' has {len(dataset)};"
            " run `dvc repro partition`"
        )
    listed = comparison["clients"]["personal"]["client"]
    if listed and max(listed) >= table.num_total:
        raise ValueError(
            f"the comparison has client {max(listed)} but the partition's are 0..{table.num_total - 1};"
            " run `dvc repro compare`"
        )
    return statistics.label_counts(table, dataset.labels, dataset.num_classes)


def _leader(comparison: dict[str, Any]) -> str:
    return str(comparison["order"][0])


def _against_baseline(comparison: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for label in comparison["order"]:
        difference = comparison["methods"][label]["views"].get("personal", {}).get("difference") or {}
        if difference.get("clients"):
            found.append((label, difference["clients"]))
    return found


def _made_of(entry: dict[str, Any]) -> str:
    """Return method, add-ons and what is not at its default in one line, for example ``fedavg + prox (mu 0.1)``."""
    from fedcore import discovery

    def part(name: str, values: dict[str, Any], known: list[str], find: Callable[[str], Any]) -> str:
        # A method that has gone since it was trained shows all it was trained with.
        fields = dataclasses.fields(find(name)) if name in known else ()
        defaults = {field.name: field.default for field in fields}
        own = {k: v for k, v in sorted(values.items()) if _plain(v) != _plain(defaults.get(k))}
        return f"{name} ({', '.join(f'{k} {v}' for k, v in own.items())})" if own else name

    methods, addons = list(discovery.method_names()), list(discovery.addon_names())
    parts = [part(entry["method"], entry["settings"], methods, discovery.method_class)]
    for name, values in sorted(entry["add"].items()):
        parts.append(part(name, values, addons, discovery.addon_class))
    return " + ".join(parts)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _timing(label: str, seeds: list[int], runs: Path) -> dict[str, Any]:
    """Return the median seconds per round of every part that was timed, and the mean seconds of a whole run."""
    from statistics import median

    from tasks.run_folder import read_columns

    columns: dict[str, list[float]] = {}
    totals = []
    for seed in seeds:
        folder = runs / f"{label}-{seed}"
        try:
            found = read_columns(folder / "timing.csv")
            if "total_seconds" not in found:
                raise ValueError("timing.csv: column 'total_seconds' is missing")
        except ValueError as error:
            raise ValueError(f"{folder}: {error}; run `dvc repro train@{label}-{seed}`") from None
        for name, values in found.items():
            columns.setdefault(name, []).extend(v for v in values if math.isfinite(v))
        totals.append(math.fsum(v for v in found["total_seconds"] if math.isfinite(v)))
    del columns["round"]
    parts = {name.removesuffix("_seconds"): median(values) for name, values in columns.items() if values}
    total = parts.pop("total", None)
    return {"label": label, "total_seconds": total, "parts": parts, "run_seconds": math.fsum(totals) / len(totals)}


def _machine(comparison: dict[str, Any], runs: Path) -> str:
    """Return device, executor and versions of the runs; several are listed when the runs differ."""
    from tasks.files import read_json

    found: dict[str, set[str]] = {}
    for label in comparison["order"]:
        for seed in comparison["seeds"]:
            path = runs / f"{label}-{seed}" / "lineage.json"
            lineage = read_json(path) if path.is_file() else {}
            facts = {key: lineage.get(key) for key in ("device", "executor", "threads")} | lineage.get("versions", {})
            for key, value in facts.items():
                if value is not None:
                    found.setdefault(key, set()).add(str(value))
    return "; ".join(f"{key} {', '.join(sorted(values))}" for key, values in found.items())


def _parameters(config: Config) -> str:
    import io

    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(config.model_dump(mode="json"), text)
    return text.getvalue()


def _pct(value: float | None, digits: int = 1, signed: bool = False) -> str:
    """Return a share in per cent or points; a value that rounds to zero has no sign, a minus is a minus sign."""
    if value is None:
        return "–"
    rounded = round(100 * value, digits) or 0.0
    return f"{rounded:{'+' if signed and rounded else ''}.{digits}f}".replace("-", "−")


def _points(value: float) -> str:
    return f"{value:.1f}"


def _megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f}"


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Command line: write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comparison", type=Path, default=Path("reports/comparison.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--partition", type=Path, required=True, help="the partition's .npz")
    parser.add_argument("--dataset", type=Path, required=True, help="the prepared data set's folder")
    parser.add_argument("--virtual", type=Path, help="folder of the virtual data")
    parser.add_argument("--out", type=Path, default=Path("reports/index.html"))
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    arguments = parser.parse_args()
    from fedcore.data import dataset, partitions
    from tasks.files import atomic_write_text, read_json
    from tasks.parameters import read_config

    config = read_config(arguments.params)
    comparison = read_json(arguments.comparison)
    data, table = dataset.load(arguments.dataset), partitions.load(arguments.partition)
    page = render(comparison, config, data, table, arguments.runs, arguments.virtual)
    atomic_write_text(arguments.out, page)
    print(f"{arguments.out}: {len(page) / 1e6:.1f} MB, {len(comparison['order'])} methods")


if __name__ == "__main__":
    run_step(main)
