"""The page that shows partitions side by side."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from tasks import partition_report
from tasks.parameters import run_step

PARAMETERS = """\
experiment: trial
dataset: {name: digits}
partition: {scheme: dirichlet, alpha: 0.5, clients: 6, unseen_clients: 1, test: 0.5}
model: {name: mlp}
train: {rounds: 1}
methods: {fedavg: {}}
compare: {seeds: [0]}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMETERS)
    Path("other.yaml").write_text(PARAMETERS.replace("trial", "other").replace("alpha: 0.5", "alpha: 5.0"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["partition_report", *arguments])
    run_step(partition_report.main)
    return Path("reports/partitions.html").read_text()


def test_files_and_changes_stand_side_by_side_on_a_page_that_loads_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = run(monkeypatch, "params.yaml", "other.yaml", "--partition", "{scheme: iid}")
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["trial", "trial {scheme: iid}", "other", "other {scheme: iid}"]
    assert "dirichlet, alpha 5.0" in page
    assert page.count("<svg ") == 4
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    assert "<script" not in page
    assert "url(" not in page
    assert page.count("clients from 5 on never train") == 4
    assert "-> reports/partitions.html (4 partitions" in capsys.readouterr().out
    assert page == run(monkeypatch, "params.yaml", "other.yaml", "--partition", "{scheme: iid}")


def test_a_change_keeps_what_it_does_not_name() -> None:
    changed = list(partition_report.make([Path("params.yaml")], ["{alpha: 100.0}", "{scheme: k_classes, seed: 2}"]))
    schemes = [YAML(typ="safe").load(column.table.scheme) for column in changed]
    assert [(s["scheme"], s["clients"], s["test"], s["seed"]) for s in schemes] == [
        ("dirichlet", 6, 0.5, 0),
        ("dirichlet", 6, 0.5, 0),
        ("k_classes", 6, 0.5, 2),
    ]
    assert schemes[1]["alpha"] == 100
    assert changed[0].dataset is changed[2].dataset  # read once
    assert (np.count_nonzero(changed[2].counts, axis=1) == 2).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{alpa: 1.0}", "partition.alpa: unknown key 'alpa'; did you mean 'alpha'"),
        ("{scheme: diri}", "partition.scheme: 'diri' does not exist; did you mean 'dirichlet'"),
        ("{scheme: natural}", "partition.scheme 'natural' needs a data set with clients of its own"),
        ("{min_examples: 400}", "partition.min_examples: 6 clients with at least 400 examples each need 2400"),
        ("[1", "not valid YAML"),
        ("3", "expected a mapping such as '{alpha: 1.0}'"),
    ],
)
def test_a_wrong_change_is_one_line_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "--partition", change)
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: --partition {change!r}: ")
    assert message in error
    assert error.count("\n") == 1
    assert not Path("reports").exists()


def test_a_wrong_file_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.yaml").write_text(PARAMETERS.replace("clients: 6", "clients: 600"))
    with pytest.raises(SystemExit):
        run(monkeypatch, "params.yaml", "other.yaml")
    assert capsys.readouterr().err.startswith("error: other.yaml:3: partition.min_examples: 600 clients with at least")
