"""The picture of both accuracy curves."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import curves
from benchmarks.options import run_command
from tests.benchmarks.conftest import ROOT

RESULT = {
    "workload": "w1",
    "executor": "serial, compiled",
    "difference": 7e-8,
    "accuracy": [0.1, 0.5, 0.6, 0.7],
    "reference_accuracy": [0.1, 0.5, 0.6, 0.6],
}


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["curves", *options])
    run_command(curves.main)


def paths(picture: str, colour: str) -> list[list[tuple[float, float]]]:
    """Return the points of every line of a colour."""
    lines = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: none; stroke: {colour};', picture)
    return [[tuple(map(float, p.split()[1:])) for p in line.strip().splitlines()] for line in lines]


def shape(line: list[tuple[float, float]]) -> list[float]:
    """Return the heights of a line's points as shares of its own height: the same wherever fonts leave it."""
    heights = [y for _, y in line]
    low, high = min(heights), max(heights)
    return [(y - low) / ((high - low) or 1) for y in heights]


def test_both_curves_are_drawn_and_lie_where_the_figures_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, out = tmp_path / "figures.json", tmp_path / "docs" / "curves.svg"
    figures.write_text(json.dumps({"results": [RESULT, {**RESULT, "workload": "w2"}]}))
    run(monkeypatch, str(figures), "--out", str(out))
    picture = out.read_text()
    assert "w1: serial, compiled" in picture
    assert "w2: serial, compiled" in picture
    assert picture.count("differ by 7e-08 after a round") == 2
    ours = [line for line in paths(picture, "#0b63a5") if len(line) == 4]
    reference = [line for line in paths(picture, "#b8bec8") if len(line) == 4]
    assert len(ours) == len(reference) == 2
    assert ours[0][:3] == reference[0][:3]
    assert ours[0][3][1] < reference[0][3][1]  # upwards is less
    run(monkeypatch, str(figures), "--out", str(out))
    assert out.read_text() == picture


@pytest.mark.parametrize("text", ["[1]", '{"results": []}', "{"])
def test_files_without_curves_are_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    figures.write_text(text)
    with pytest.raises(SystemExit):
        run(monkeypatch, str(figures), "--out", str(tmp_path / "curves.svg"))
    assert capsys.readouterr().err == f"error: {figures}: not written by --json of benchmarks.compare\n"
    assert not (tmp_path / "curves.svg").exists()


def test_the_committed_picture_is_made_of_the_committed_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "curves.svg"
    run(monkeypatch, str(ROOT / "benchmarks" / "results" / "cpu.json"), "--out", str(out))
    committed = (ROOT / "docs" / "benchmark_curves.svg").read_text()
    for colour in ("#0b63a5", "#b8bec8"):
        made, kept = ([shape(line) for line in paths(picture, colour)] for picture in (out.read_text(), committed))
        assert len(made) == len(kept)
        assert made == [pytest.approx(heights, abs=1e-3) for heights in kept]
