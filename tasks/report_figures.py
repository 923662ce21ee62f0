"""Turn a comparison into the report's charts: which numbers, in which colours."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tasks.figures import Interval, Series, interval_chart, line_chart, scatter_chart, strip_chart
from tasks.heat_map import heat_map

if TYPE_CHECKING:
    import numpy as np

    from fedcore.data.dataset import Dataset

# Colours that can be told apart; further methods are drawn in the colour of "other methods".
COLOURS = 11
HEAT_MAP_CLIENTS = 60
VIEW_NAMES = {"personal": "Personal", "global": "Global", "unseen": "Unseen-client"}


def styles(comparison: dict[str, Any]) -> dict[str, str]:
    """Return a CSS class per method: the baseline neutral, the best of the others coloured, in order of label."""
    others = [label for label in comparison["order"] if label != comparison["baseline"]][:COLOURS]
    styles = dict.fromkeys(comparison["order"], "other")
    styles |= {label: f"s{index}" for index, label in enumerate(sorted(others))}
    return styles | {comparison["baseline"]: "base"}


def legend(comparison: dict[str, Any], styles: dict[str, str]) -> list[dict[str, str]]:
    """Return label and CSS class of every method with a colour of its own, best first, then one for the rest."""
    named = [{"label": label, "style": styles[label]} for label in comparison["order"] if styles[label] != "other"]
    return named + ([{"label": "other methods", "style": "other"}] if "other" in styles.values() else [])


def draw(comparison: dict[str, Any], counts: np.ndarray, dataset: Dataset, styles: dict[str, str]) -> dict[str, str]:
    """Return every chart of the page by name, for example ``personal_rounds``.

    Parameters
    ----------
    comparison : dict
        What `tasks.compare` wrote.
    counts : array [N, K]
        Examples per client and label.
    styles : mapping from label to CSS class
    """
    from fedcore.data import statistics

    methods = comparison["methods"]
    figures = {}
    for view in VIEW_NAMES:
        labels = [label for label in comparison["order"] if view in methods[label]["views"]]
        if not labels:
            continue
        name = VIEW_NAMES[view].lower()
        for axis, x_label in (("rounds", "round"), ("megabytes", "MB sent by and to all clients")):
            lines = [_line(label, methods[label]["views"][view]["curve"], "accuracy", axis, styles) for label in labels]
            title = f"{VIEW_NAMES[view]} test accuracy of every method against {x_label}"
            figures[f"{view}_{axis}"] = line_chart(lines, title, x_label, "test accuracy")
        lines = [_line(label, methods[label]["views"][view]["curve"], "loss", "rounds", styles) for label in labels]
        figures[f"{view}_loss"] = line_chart(lines, f"{VIEW_NAMES[view]} test loss", "round", "test loss", share=False)
        intervals = [
            _interval(label, methods[label]["views"][view]["selected"]["accuracy"], styles) for label in labels
        ]
        figures[f"{view}_intervals"] = interval_chart(intervals, f"{name} accuracy with intervals", "test accuracy")
        found = {label: (methods[label]["views"][view]["difference"] or {}).get("seeds") for label in labels}
        differences = [_interval(label, summary, styles) for label, summary in found.items() if summary]
        figures[f"{view}_differences"] = interval_chart(
            differences, f"{name} accuracy minus the baseline's", f"points above {comparison['baseline']}", zero=True
        )
    clients = shown(counts)
    distances = statistics.earth_movers_distance(counts)[clients].tolist()
    title = "Examples per label and client"
    figures["partition"] = heat_map(counts[clients].T.tolist(), dataset.class_names, clients, title, distances)
    return figures | _client_figures(comparison, counts, styles)


def shown(counts: np.ndarray) -> list[int]:
    """Return the clients of the heat map: all that have examples, or an even sample of more than fit."""
    import numpy as np

    clients: list[int] = np.flatnonzero(counts.any(axis=1)).tolist()
    return clients[:: max(1, math.ceil(len(clients) / HEAT_MAP_CLIENTS))]


def _client_figures(comparison: dict[str, Any], counts: np.ndarray, styles: dict[str, str]) -> dict[str, str]:
    methods, listed = comparison["methods"], comparison["clients"]["personal"]
    labels = [label for label in comparison["order"] if "personal" in methods[label]["views"]]
    strips = []
    for label in labels:
        values = methods[label]["views"]["personal"]["client_accuracy"]
        notes = [
            f"{label}, client {c}: {100 * v:.1f} % ({n} train examples)" if v is not None else ""
            for c, v, n in zip(listed["client"], values, listed["num_train"], strict=True)
        ]
        strips.append(Series(label, styles[label], y=values, notes=notes))
    if not strips:
        return {}
    figures = {"clients": strip_chart(strips, "Test accuracy of every client, by method", "client's test accuracy")}
    pair = [s for s in strips if s.label == comparison["baseline"] or s is strips[0]]
    skew = [_effective_labels(row) for row in counts[listed["client"]].tolist()]
    sizes = [float(n) if n else None for n in listed["num_train"]]
    for name, x, x_label, log in (
        ("size", sizes, "train examples (log scale)", True),
        ("skew", skew, "effective number of labels", False),
    ):
        dots = [Series(s.label, s.style, x, s.y, notes=s.notes) for s in pair]
        figures[name] = scatter_chart(dots, f"Client's test accuracy against {x_label}", x_label, "accuracy", log)
    return figures


def _effective_labels(row: list[int]) -> float | None:
    """Return exp(entropy) of the label shares: 1 for a single label, K for K equal ones."""
    total = sum(row)
    return math.exp(-math.fsum(n / total * math.log(n / total) for n in row if n)) if total else None


def _line(label: str, curve: dict[str, Any], metric: str, axis: str, styles: dict[str, str]) -> Series:
    megabytes = [None if b is None else b / 1e6 for b in curve["bytes"]]
    values = curve.get(metric, {"mean": (), "low": (), "high": ()})
    x = (curve["rounds"] if axis == "rounds" else megabytes)[: len(values["mean"])]
    return Series(label, styles[label], x, values["mean"], values["low"], values["high"])


def _interval(label: str, summary: dict[str, Any], styles: dict[str, str]) -> Interval:
    points = list(summary.get("per_seed", {}).values())
    return Interval(label, styles[label], summary["mean"], summary["low"], summary["high"], points)
