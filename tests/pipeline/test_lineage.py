"""Edits while a stage runs are noticed, and a recorded run writes its parameters again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fedcore.config import validate
from tasks import lineage, plan, train
from tasks.lineage import Watch
from tasks.reproduce import Row, compare, parameters, table, usable_commit
from tests.pipeline.test_bad_input import PLAN
from tests.pipeline.test_train_step import trained  # noqa: F401


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of inputs; `fedcore` itself is replaced by a folder of one module."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    monkeypatch.setattr(lineage.fedcore, "__file__", str(tmp_path / "package" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.npy").write_bytes(b"one")
    return folder


def test_what_stays_as_it_is_is_clean(inputs: Path) -> None:
    watch = Watch([inputs])
    os.utime(inputs / "a.npy", (1, 1))
    (inputs.parent / "package" / "__pycache__").mkdir()
    (inputs.parent / "package" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert watch.verdict() == {"clean": True, "why": ""}


def test_edits_additions_and_removals_are_named(inputs: Path) -> None:
    watch = Watch([inputs])
    (inputs / "a.npy").write_bytes(b"two")
    assert watch.verdict() == {"clean": False, "why": "changed while the run was training: data/a.npy"}
    (inputs / "a.npy").unlink()
    (inputs.parent / "package" / "new.py").write_text("")
    why = watch.verdict()["why"]
    assert why == "changed while the run was training: data/a.npy, package/new.py"


def test_a_large_file_is_known_by_its_time(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "_HASHED", 2)
    watch = Watch([inputs])
    assert watch.verdict()["clean"]
    os.utime(inputs / "a.npy", (1, 1))
    assert not watch.verdict()["clean"]


def test_a_run_is_marked_when_its_plan_is_edited_meanwhile(project, trained, step, monkeypatch) -> None:  # noqa: F811
    folder = trained()
    assert json.loads((folder / "lineage.json").read_text())["clean"] is True
    make = train.make_training

    def slowly(plan, *rest):
        path = project.folder / "data/plans/fedavg.json"
        path.write_text(path.read_text() + "\n")
        return make(plan, *rest)

    monkeypatch.setattr(train, "make_training", slowly)
    arguments = ("--plan", "data/plans/fedavg.json", "--seed", "0", "--dataset", "data/set", "--no-tracking")
    code, lines = step(train.main, *arguments, "--partition", "data/p.npz", "--out", "runs/marked")
    assert code == 0
    assert any("marked as not clean" in line and "dvc repro -f train@fedavg-0" in line for line in lines)
    marked = json.loads((project.folder / "runs/marked/lineage.json").read_text())
    assert (marked["clean"], marked["why"]) == (False, "changed while the run was training: data/plans/fedavg.json")


def test_a_recorded_run_gives_back_its_plan(project, trained, step) -> None:  # noqa: F811
    """What `make reproduce` writes as params.yaml makes the same plan, byte for byte."""
    project.edit("methods.ours", {"method": "fedavg", "add": {"prox": {"mu": 0.01}}, "train": {"lr": 0.2}})
    folder = trained("ours", "runs/ours-0")
    before = (project.folder / "data/plans/ours.json").read_bytes()
    written = parameters(json.loads((folder / "config.json").read_text()))
    validate(json.loads(json.dumps(written)))
    assert list(written["methods"]) == ["ours"]
    (project.folder / "params.yaml").write_text(json.dumps(written))
    shutil.rmtree(project.folder / "data/plans")
    assert step(plan.main, *PLAN)[0] == 0
    assert (project.folder / "data/plans/ours.json").read_bytes() == before


def test_the_comparison_names_what_differs(tmp_path: Path) -> None:
    (tmp_path / "lineage.json").write_text(json.dumps({"seed": 0, "versions": {"torch": "2"}, "code_hash": "a"}))
    (tmp_path / "metrics.json").write_text("{}")
    tags = {"lineage.seed": "0", "lineage.code_hash": "b", "lineage.versions.torch": "2", "file.metrics.json": "0" * 64}
    rows = {row.what: row for row in compare(tags, tmp_path)}
    assert rows["seed"].equal
    assert rows["versions.torch"].equal
    assert not rows["code_hash"].equal
    assert not rows["metrics.json"].equal
    lines = table([Row("seed", "0", "0"), Row("code_hash", "b", "a")])
    assert [line.split()[-1] for line in lines[1:]] == ["equal", "DIFFERENT"]


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ({"lineage.git_commit": "null"}, "was made outside git"),
        ({"lineage.git_commit": "c0ffee", "lineage.git_dirty": "true"}, "its code differed from commit c0ffee"),
        (
            {"lineage.git_commit": "c0ffee", "lineage.git_dirty": "false", "lineage.clean": "false"},
            "its run is marked as not clean",
        ),
    ],
)
def test_a_version_without_a_clean_commit_is_refused(tags: dict[str, str], reason: str) -> None:
    from types import SimpleNamespace

    version = SimpleNamespace(name="digits-global", version="1", tags=tags)
    with pytest.raises(ValueError, match=f"digits-global/1: {reason}"):
        usable_commit(version)
