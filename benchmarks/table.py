"""Turn measured figures into the tables of docs/benchmarks.md.

`python -m benchmarks.table benchmarks/results/*.json` replaces them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.options import run_command
from benchmarks.report import megabytes, method_name, seconds

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- begin: {} -->\n", "<!-- end: {} -->"
# Seconds per round over those of the same reference loop, one thread, of the fastest other simulator: FedJAX each time,
# measured on another day on a machine of the same kind.
OTHERS = {"w1": 0.70, "w2": 0.67, "w3": 0.63}


def main() -> None:
    """Replace the tables between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="what --json of the other commands wrote")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    files = [(path, _read(path)) for path in arguments.files]
    text = arguments.page.read_text()
    for name, rows in (
        ("rounds", rounds_table),
        ("where", where_table),
        ("methods", methods_table),
        ("costs", costs_table),
    ):
        text = replaced(text, name, rows(files))
    arguments.page.write_text(text)


def replaced(text: str, name: str, table: str) -> str:
    """Return a page with the table between its marks exchanged; an empty one leaves the old table.

    Raises
    ------
    ValueError
        If the page has no such marks.
    """
    begin, end = BEGIN.format(name), END.format(name)
    if begin not in text or end not in text:
        raise ValueError(f"the page has no marks '{begin.strip()}' and '{end}'")
    if not table:
        return text
    head, _, rest = text.partition(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.partition(end)[2]}"


def rounds_table(files: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    """Return a row per workload and executor: seconds, ratio, memory, agreement."""
    head = [
        *("workload", "method", "executor", "R0", "ours", "ratio (by round)", "CPU ratio", "best other"),
        *("first round", "GFLOP/s", "of torch.mm", "memory (R0)", "difference", "commit"),
    ]
    rows = []
    for path, file in files:
        for result in file.get("results", []):
            low, high = result["ratio_range"]
            memory = result["memory"]
            other = OTHERS.get(result["workload"]) if result["scale"] == 1 and result["device"] == "cpu" else None
            rows.append(
                [
                    result["workload"] + (f" x {result['scale']:g}" if result["scale"] != 1 else ""),
                    method_name(result),
                    f"{result['executor']}, {result['workers']} workers, {result['device']}",
                    seconds(result["reference_seconds"]),
                    seconds(result["seconds"]),
                    f"**{result['ratio']:.2f}** ({low:.2f} to {high:.2f})",
                    f"{result['cpu_ratio']:.2f}",
                    "" if other is None else f"{other:.2f}",
                    seconds(result["first_round"]),
                    f"{result['gflops']:.3g}",
                    ", ".join(f"{100 * share:.3g} % ({name})" for name, share in result["of_peak"].items()),
                    f"{megabytes(memory['ours']['host'])} ({megabytes(memory['reference']['host'])})" if memory else "",
                    f"{result['difference']:.0e}" if not result["method"] else "",
                    _commit(path, file),
                ]
            )
    return _table(head, rows)


def where_table(files: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    """Return a row per workload and executor: where a round's time goes, in shares."""
    results = [result for _, file in files for result in file.get("results", [])]
    names = list(
        dict.fromkeys(name for result in results for name in result["parts"] if name not in ("total", "train"))
    )
    rows = []
    for result in results:
        shares = [result["parts"].get(name) for name in names]
        cells = ["" if share is None else f"{100 * share / result['seconds']:.1f} %" for share in shares]
        rows.append([result["workload"], f"{result['executor']}, {result['workers']} workers", *cells])
    return _table(["workload", "executor", *names], rows)


def methods_table(files: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    """Return a row per method: what of FedAvg's speed-up it keeps on every workload."""
    found: dict[str, dict[str, str]] = {}
    names: list[str] = []
    for _, file in files:
        for row in file.get("methods", []):
            part = "" if row["scale"] == 1 else f", {100 * row['scale']:.0f} % of its rows"
            column = f"{row['workload']}{part} ({row['fast']})"
            names += [column] * (column not in names)
            found.setdefault(row["method"], {})[column] = (
                row["reason"]
                if row.get("reason")
                else f"{row['cost']:.2f}x FedAvg, {row['speed_up']:.2f}x, keeps {100 * row['kept']:.0f} %"
                f" ({100 * row['kept_cpu']:.0f} %)"
            )
    return _table(
        ["method", *names], [[f"`{m}`", *(cells.get(name, "") for name in names)] for m, cells in found.items()]
    )


def costs_table(files: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    """Return a row per cost beside the training."""
    rows = [
        [row["what"], seconds(row["seconds"]), row.get("share", ""), _commit(path, file)]
        for path, file in files
        for row in file.get("costs", [])
    ]
    return _table(["what", "seconds", "of a round of 100 ms", "commit"], rows)


TABLES = {"rounds": rounds_table, "where": where_table, "methods": methods_table, "costs": costs_table}


def _commit(path: Path, file: dict[str, Any]) -> str:
    facts = file["machine"]
    changed = ", changed" if facts["changed"] else ""
    return f"{facts['commit'] or 'unknown'}{changed}, {facts['date']} ([figures](../benchmarks/results/{path.name}))"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: does not exist") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: no JSON ({error})") from None
    if not isinstance(content, dict) or "machine" not in content:
        raise ValueError(f"{path}: not written by --json of a benchmark")
    return content


if __name__ == "__main__":
    run_command(main)
