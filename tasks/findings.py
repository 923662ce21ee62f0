"""What a comparison says, in sentences made from its numbers, and no more than the numbers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def headline(comparison: dict[str, Any]) -> str:
    """Return who leads on personal accuracy (on global, when no method has a personal view) and how surely."""
    view = next((v for v in ("personal", "global") if _ranked(comparison, v)), None)
    if view is None:
        return "No method has an accuracy to compare."
    ranked = _ranked(comparison, view)
    best, summary = ranked[0], _accuracy(comparison, ranked[0], view)
    sentences = [f"{best} has the highest {view} accuracy: {number(summary)}{_over(comparison)}."]
    sentences += _against_baseline(comparison, best, view)
    if len(ranked) > 1:
        sentences.append(_against_next(comparison, best, ranked[1], view))
    return " ".join(sentences)


def shared_headline(comparison: dict[str, Any]) -> str | None:
    """Return the same for the best single model shared by all clients; None where no method has a global view."""
    ranked = _ranked(comparison, "global")
    if not ranked or not _ranked(comparison, "personal"):
        return None
    best = ranked[0]
    accuracy = number(_accuracy(comparison, best, "global"))
    text = f"Of the single models shared by all clients, {best} is best: {accuracy}."
    text = " ".join([text, *_against_baseline(comparison, best, "global")])
    return text if len(ranked) == 1 else f"{text} {_against_next(comparison, best, ranked[1], 'global')}"


def number(summary: dict[str, Any]) -> str:
    """Return a share as ``93.1 % ± 0.4``; with one seed no interval."""
    return f"{100 * summary['mean']:.1f} %" + (f" ± {half(summary):.1f}" if summary["low"] is not None else "")


def half(summary: dict[str, Any]) -> float:
    """Return half the width of the interval, in points."""
    return float(100 * (summary["high"] - summary["low"]) / 2)


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool | None:
    """Return whether two intervals share a point; None when one of them has a single seed."""
    if one["low"] is None or other["low"] is None:
        return None
    return bool(one["low"] <= other["high"] and other["low"] <= one["high"])


def excludes_zero(summary: dict[str, Any] | None) -> bool | None:
    """Return whether a difference's interval leaves out zero; None without an interval."""
    if not summary or summary["low"] is None:
        return None
    return bool(summary["low"] > 0 or summary["high"] < 0)


def hardest_clients(comparison: dict[str, Any], counts: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the five clients on which the methods do worst on average, with what is known about their data.

    Parameters
    ----------
    counts : array [N, K]
        Examples per client and label, over all splits.
    names : label names
    """
    methods = _ranked(comparison, "personal")
    listed = comparison["clients"]["personal"]
    found = []
    for index, client in enumerate(listed["client"]):
        values = {m: comparison["methods"][m]["views"]["personal"]["client_accuracy"][index] for m in methods}
        known = [value for value in values.values() if value is not None]
        if not known:
            continue
        row = counts[client].tolist()
        main = sorted(((n, k) for k, n in enumerate(row) if n), key=lambda pair: (-pair[0], pair[1]))
        mixture = ", ".join(f"{names[k]} ({100 * n / sum(row):.0f} %)" for n, k in main[:3])
        more = len(main) - 3
        found.append(
            {
                "client": client,
                "train": listed["num_train"][index],
                "test": listed["num_test"][index],
                "labels": mixture + (f" and {more} more" if more > 0 else ""),
                "mean": sum(known) / len(known),
                "best": max((m for m in methods if values[m] is not None), key=lambda m: values[m]),
                "values": values,
            }
        )
    return sorted(found, key=lambda row: (row["mean"], row["client"]))[:5]


def _against_baseline(comparison: dict[str, Any], best: str, view: str) -> list[str]:
    baseline = comparison["baseline"]
    if best == baseline:
        return ["That is the baseline: no other method is ahead of it."] if len(comparison["order"]) > 1 else []
    difference = (comparison["methods"][best]["views"][view]["difference"] or {}).get("seeds")
    if difference is None:
        return []
    text = f"That is {_signed(difference['mean'])} points on {baseline}"
    sure = excludes_zero(difference)
    if sure is None:
        return [f"{text}, from one seed: its chance is unknown."]
    bounds = f"paired 95 % interval {_signed(difference['low'])} to {_signed(difference['high'])}"
    if sure:
        return [f"{text} ({bounds})."]
    return [f"{text}, but the {bounds} includes zero: these seeds do not settle it."]


def _against_next(comparison: dict[str, Any], best: str, second: str, view: str) -> str:
    """Say whether first and second are told apart: by the paired difference, mentioning overlapping intervals."""
    from fedcore.metrics.comparison import paired_difference

    first, other = (_accuracy(comparison, label, view) for label in (best, second))
    gap = paired_difference(first["per_seed"], other["per_seed"])
    text = f"Next is {second} with {number(other)}"
    if gap is not None and first["per_seed"] == other["per_seed"]:
        return f"{second} is level with it in every seed."
    touching = overlap(first, other)
    if gap is None or touching is None:
        return f"{text}; with one seed the order is not evidence."
    if not touching:
        return f"{text}; the two intervals do not overlap."
    if gap.low is not None and gap.low > 0:
        return f"{text}; the two intervals overlap, yet paired by seed the lead holds."
    return f"{text}; the two intervals overlap and the paired difference includes zero, so their order is open."


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _over(comparison: dict[str, Any]) -> str:
    count = len(comparison["seeds"])
    return f" (95 % interval over {count} seeds)" if count > 1 else " (one seed, so no interval)"


def _ranked(comparison: dict[str, Any], view: str) -> list[str]:
    """Return the methods that have the view, best first; ties by name."""
    found = [label for label in comparison["order"] if view in comparison["methods"][label]["views"]]
    return sorted(found, key=lambda label: (-_accuracy(comparison, label, view)["mean"], label))


def _accuracy(comparison: dict[str, Any], label: str, view: str) -> dict[str, Any]:
    summary: dict[str, Any] = comparison["methods"][label]["views"][view]["selected"]["accuracy"]
    return summary
