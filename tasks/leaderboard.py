"""The leaderboard: one row per method, as CSV and as a plain-text table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

VIEWS = ("personal", "global", "unseen")


def rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one tidy row per method, best first; None where a method has no such figure.

    Accuracies are shares in 0..1, of the round that ``_selected_on`` names (chosen on validation where there is any);
    ``_low`` and ``_high`` bound the 95 % interval over seeds.
    ``_average`` is the mean of the last ``averaged`` evaluated rounds, None without ``compare.average``.
    """
    views = [v for v in VIEWS if any(v in m["views"] for m in comparison["methods"].values())]
    return [_row(rank, label, comparison, views) for rank, label in enumerate(comparison["order"], start=1)]


def _row(rank: int, label: str, comparison: dict[str, Any], views: list[str]) -> dict[str, Any]:
    entry = comparison["methods"][label]
    row: dict[str, Any] = {"rank": rank, "label": label, "method": entry["method"], "seeds": len(comparison["seeds"])}
    row["averaged"] = comparison["average"]
    for view in views:
        found = entry["views"].get(view, {})
        selected, difference = found.get("selected", {}), found.get("difference") or {}
        row |= _interval(f"{view}_accuracy", selected.get("accuracy"))
        row[f"{view}_selected_on"] = found.get("selected_on")
        if view != "global":
            for metric in ("worst_decile", "client_std"):
                row[f"{view}_{metric}"] = (selected.get(metric) or {}).get("mean")
        row |= _interval(f"{view}_difference", difference.get("seeds"))
        average = found.get("average") or {}
        row |= _interval(f"{view}_average", average.get("accuracy"))
        row |= _interval(f"{view}_average_difference", average.get("difference"))
        for index, target in enumerate(comparison["targets"]):
            reached = found["targets"][index] if found else {}
            row[f"{view}_rounds_to_{target}"] = reached.get("mean_rounds")
            row[f"{view}_speed_up_{target}"] = reached.get("speed_up")
    for way in ("download", "upload", "total"):
        row[f"{way}_bytes"] = (entry["communication"][f"{way}_bytes"] or {}).get("mean")
    row["parameters"] = entry["parameters"]
    return row


def _interval(name: str, summary: dict[str, Any] | None) -> dict[str, Any]:
    summary = summary or {}
    return {name: summary.get("mean"), f"{name}_low": summary.get("low"), f"{name}_high": summary.get("high")}


def to_csv(comparison: dict[str, Any]) -> str:
    """Return the rows as CSV text; a missing figure is an empty cell."""
    table = rows(comparison)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def as_text(path: Path) -> str:
    """Return the CSV at `path` as an aligned table for a terminal.

    Raises
    ------
    ValueError
        When the file is missing or is no leaderboard.
    """
    if not path.is_file():
        raise ValueError(f"{path}: does not exist; run `dvc repro compare`")
    with path.open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    try:
        body = [_cells(row) for row in table]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: not a leaderboard; run `dvc repro compare`") from None
    if not body:
        raise ValueError(f"{path}: holds no method; run `dvc repro compare`")
    header = list(body[0])
    lines = [header, *[list(row.values()) for row in body]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for line in lines:
        cells = [c.ljust(w) if i == 1 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        text.append("  ".join(cells).rstrip())
    return "\n".join([*text, "", _caption(table)])


def _caption(table: list[dict[str, str]]) -> str:
    seeds = int(table[0]["seeds"])
    chosen = {row[name] for row in table for name in row if name.endswith("_selected_on") and row[name]}
    when = "round chosen on validation"
    if "last round" in chosen:
        when = "at the last round, for want of a validation split"
    interval = f"± is the 95 % interval over {seeds} seeds" if seeds > 1 else "one seed, so no interval"
    last = table[0]["averaged"]
    mean = f"; last {last}: mean of the last {last} evaluated rounds" if last else ""
    return f"Test accuracy in %, {when}{mean}; {interval}."


def _cells(row: dict[str, str]) -> dict[str, str]:
    views = ("personal", "global") if row["averaged"] else ()
    averages = {f"{view}, last {row['averaged']}": _percent(row, f"{view}_average") for view in views}
    return {
        "#": row["rank"],
        "method": row["label"],
        "personal": _percent(row, "personal_accuracy"),
        "global": _percent(row, "global_accuracy"),
        **averages,
        "worst decile": _percent(row, "personal_worst_decile"),
        "vs baseline": _percent(row, "personal_difference", signed=True),
        "MB sent": f"{float(row['total_bytes']) / 1e6:.1f}" if row["total_bytes"] else "-",
    }


def _percent(row: dict[str, str], name: str, signed: bool = False) -> str:
    if not row.get(name):
        return "-"
    text = f"{100 * float(row[name]):{'+' if signed else ''}.1f}"
    if row.get(f"{name}_high"):
        text += f" ± {100 * (float(row[f'{name}_high']) - float(row[name])):.1f}"
    return text
