"""From a run's history to the figures a comparison uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

VIEWS = ("global", "personal", "unseen")
# Means over clients of which papers report the best round's; the second's models are chosen on the test split too.
_CLIENT_MEANS = ("personal/test/client_mean", "best_on_test/test/client_mean")
Row = Mapping[str, float]


def best_row(history: Sequence[Row], metric: str) -> Row | None:
    """Return the first row with the largest value of `metric`, or None when no row has it."""
    rows = [row for row in history if metric in row]
    return max(rows, key=lambda row: row[metric]) if rows else None


def summarise(history: Sequence[Row], num_parameters: int) -> dict[str, float]:
    """Return the flat summary of a run.

    Plain keys are the last round's. ``selected/<view>/...`` is the round with the best validation accuracy of that
    view (the last round where there are no validation examples). ``best/<view>/...`` and ``top5/<view>/...`` are
    chosen on the test split, as the papers do, and are labelled so by their names. So are the means over clients,
    ``best/personal/test/client_mean`` and ``best/best_on_test/test/client_mean`` (see `fedcore.engine.snapshots`).
    """
    last = history[-1]
    summary: dict[str, float] = {**last, "model/parameters": num_parameters}
    for view in VIEWS:
        rows = [row for row in history if f"{view}/test/accuracy" in row]
        if not rows:
            continue
        selected = best_row(rows, f"{view}/val/accuracy") or rows[-1]
        summary[f"selected/{view}/round"] = selected["round"]
        summary.update({f"selected/{k}": v for k, v in selected.items() if k.startswith(f"{view}/")})
        best = max(rows, key=lambda row: row[f"{view}/test/accuracy"])
        summary[f"best/{view}/round"] = best["round"]
        summary[f"best/{view}/test/accuracy"] = best[f"{view}/test/accuracy"]
        top = sorted((row[f"{view}/test/accuracy"] for row in rows), reverse=True)[:5]
        summary[f"top5/{view}/test/accuracy"] = sum(top) / len(top)
    for key in _CLIENT_MEANS:
        values = [row[key] for row in history if key in row]
        if values:
            summary[f"best/{key}"] = max(values)
    return summary
