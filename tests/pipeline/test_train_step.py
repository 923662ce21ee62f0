"""What a training step leaves on disk."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks import partition, plan, prepare, pseudo, train, virtual
from tasks.run_writer import write_run
from tests import toys
from tests.pipeline.test_bad_input import PARTITION, PLAN


@pytest.fixture
def trained(project, step):
    def run(label="fedavg", out="runs/one"):
        assert step(prepare.main, "--out", "data/set")[0] == 0
        assert step(partition.main, *PARTITION)[0] == 0
        assert step(virtual.main, "--dataset", "data/set", "--out", "data/virtual")[0] == 0
        assert step(pseudo.main, "--dataset", "data/set", "--partition", "data/p.npz", "--out", "data/pseudo")[0] == 0
        assert step(plan.main, *PLAN)[0] == 0
        arguments = ("--plan", f"data/plans/{label}.json", "--seed", "0", "--dataset", "data/set", "--no-tracking")
        code, lines = step(train.main, *arguments, "--partition", "data/p.npz", "--out", out)
        assert code == 0, lines
        return project.folder / out

    return run


def test_files_agree_with_each_other(trained, project):
    folder = trained()
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["round", "1", "2", "3"]
    assert float(rows[-1][rows[0].index("global/test/accuracy")]) == metrics["global/test/accuracy"]
    clients = pq.read_table(folder / "clients.parquet").to_pydict()
    weights = np.array(clients["num_test"])
    pooled = float((np.array(clients["test/accuracy"]) * weights).sum() / weights.sum())
    assert pooled == pytest.approx(metrics["personal/test/accuracy"])
    assert clients["participations"] == [3] * 5
    assert not list(project.folder.rglob(".checkpoints/*"))


@pytest.mark.parametrize("method", ["fedavg", "fedavg_ft"])
def test_selected_scores_are_those_of_the_round_that_each_view_selects(tmp_path, method):
    """Clients that train and unseen ones select different rounds here; per client and over clients figures agree."""
    training = toys.training(toys.composition(method), toys.federation(unseen=2), rounds=7, lr=0.3, seed=2)
    write_run(tmp_path, {}, {}, training, training.run())
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["selected/personal/round"] != metrics["selected/unseen/round"]
    clients = {
        name: np.array(values) for name, values in pq.read_table(tmp_path / "clients.parquet").to_pydict().items()
    }
    for view, is_late in (("personal", False), ("unseen", True)):
        own = clients["unseen"] == is_late
        for split in ("val", "test"):
            mean = clients[f"selected/{split}/accuracy"][own].mean()
            assert mean == pytest.approx(metrics[f"selected/{view}/{split}/client_mean"])
            mean = np.average(clients[f"selected/{split}/loss"][own], weights=clients[f"num_{split}"][own])
            assert mean == pytest.approx(metrics[f"selected/{view}/{split}/loss"])


def test_the_same_run_is_the_same_bytes_but_for_times(trained):
    one, other = trained(out="runs/one"), trained(out="runs/other")
    for file in sorted(one.iterdir()):
        if file.name != "timing.csv":
            assert file.read_bytes() == (other / file.name).read_bytes(), file.name


def test_a_change_to_one_method_changes_its_plan_only(project, step, trained):
    trained()
    before = {p.name: p.read_bytes() for p in (project.folder / "data/plans").iterdir()}
    project.edit("methods.local", {"train": {"lr": 0.2}})
    assert step(plan.main, *PLAN)[0] == 0
    after = {p.name: p.read_bytes() for p in (project.folder / "data/plans").iterdir()}
    assert [name for name in sorted(after) if after[name] != before[name]] == ["local.json"]
