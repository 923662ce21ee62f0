"""The tables of the page are made of the measured figures; the sweep's shares are what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import methods, table
from benchmarks.options import run_command
from fedcore import discovery
from tests.benchmarks.conftest import ROOT

PAGE = "".join(
    f"before\n{table.BEGIN.format(name)}old {name}\n{table.END.format(name)}\nafter\n" for name in table.TABLES
)
MACHINE = {"commit": "c0ffee", "changed": False, "date": "2026-11-21"}


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["table", *options])
    run_command(table.main)


def test_a_table_replaces_the_old_one_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, figures = tmp_path / "page.md", tmp_path / "costs.json"
    page.write_text(PAGE)
    cost = {"what": "a checkpoint", "seconds": 0.016, "share": "1.6 %"}
    figures.write_text(json.dumps({"machine": MACHINE, "costs": [cost]}))
    for _ in range(2):  # the second time nothing changes
        run(monkeypatch, str(figures), "--page", str(page))
        text = page.read_text()
        assert "| a checkpoint | 16 ms | 1.6 % | c0ffee, 2026-11-21 ([figures]" in text
        assert "old costs" not in text
        assert [name for name in table.TABLES if f"old {name}" in text] == ["rounds", "where", "methods"]
        assert text.count("after") == text.count("before") == len(table.TABLES)


def test_files_that_are_no_figures_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(SystemExit):
        run(monkeypatch, str(tmp_path / "other.json"), "--page", str(page))
    assert capsys.readouterr().err == f"error: {tmp_path / 'other.json'}: not written by --json of a benchmark\n"
    assert page.read_text() == PAGE


def test_the_committed_page_is_made_of_the_committed_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, copy = ROOT / "docs" / "benchmarks.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    run(monkeypatch, *map(str, sorted((ROOT / "benchmarks" / "results").glob("*.json"))), "--page", str(copy))
    assert copy.read_text() == page.read_text()


def test_what_a_method_keeps_by_hand() -> None:
    baseline = {"plain_ratio": 2.0, "fast_ratio": 0.5, "plain_cpu_ratio": 2.0, "fast_cpu_ratio": 1.0}
    row = {"plain_ratio": 6.0, "fast_ratio": 2.0, "plain_cpu_ratio": 6.0, "fast_cpu_ratio": 3.0}
    methods.compare(row, baseline)
    # 3 x FedAvg; 6 / 2 = 3 against 2 / 0.5 = 4; of CPU seconds 2 against 2.
    assert (row["cost"], row["speed_up"], row["kept"], row["kept_cpu"]) == (3.0, 3.0, 0.75, 1.0)


def test_every_method_and_addon_is_in_the_sweep() -> None:
    assert set(methods.known()) == {*discovery.method_names(), *discovery.addon_names()}
    assert methods.block("prox") == {"method": "fedavg", "add": {"prox": {"mu": 0.01}}}
    assert methods.block("ditto") == {"method": "ditto", "strength": 0.1}
