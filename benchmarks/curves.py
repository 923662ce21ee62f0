"""Draw the accuracy of the engine over that of the reference loop, round by round, from what `compare --json` wrote."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.options import run_command

OUT = Path(__file__).parent.parent / "docs" / "benchmark_curves.svg"


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m benchmarks.compare --json` wrote")
    parser.add_argument("--out", type=Path, default=OUT, help="an SVG file (docs/benchmark_curves.svg)")
    arguments = parser.parse_args()
    draw(_results(arguments.file), arguments.out)


def draw(results: list[dict[str, Any]], out: Path) -> None:
    """Draw a panel per measured workload; the same figures give the same bytes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "fedcore", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(4 * len(results), 3.4), layout="constrained")
        for axes, result in zip(figure.subplots(1, len(results), squeeze=False)[0], results, strict=True):
            rounds = range(1, len(result["accuracy"]) + 1)
            reference = [100 * value for value in result["reference_accuracy"]]
            ours = [100 * value for value in result["accuracy"]]
            axes.plot(rounds, reference, color="#b8bec8", linewidth=5, label="reference loop")
            axes.plot(rounds, ours, color="#0b63a5", linewidth=1.5, marker="o", markersize=3, label="engine")
            axes.set_title(
                f"{result['workload']}: {result['executor']}\ndiffer by {result['difference']:.0e} after a round",
                fontsize=10,
            )
            axes.set_xlabel("round")
            axes.set_ylabel("test accuracy, %")
            axes.grid(alpha=0.3)
            axes.legend(frameon=False, fontsize=9)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})


def _results(path: Path) -> list[dict[str, Any]]:
    """Return the measured workloads of a file.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not path.is_file():
        raise ValueError(f"{path}: does not exist; python -m benchmarks.compare --json {path} writes it")
    try:
        results: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    except (ValueError, KeyError, TypeError):
        results = []
    if not results:
        raise ValueError(f"{path}: not written by --json of benchmarks.compare")
    return results


if __name__ == "__main__":
    run_command(main)
