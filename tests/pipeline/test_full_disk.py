"""A full disk is one line, changes nothing, and once there is room the same command ends in the same files.

A limit on the size of files stands for the disk: writing over it fails as on a full disk, in this process only.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks import partition, plan, prepare, pseudo, train, virtual
from tasks.files import atomic_folder, atomic_write_bytes
from tests.pipeline.conftest import Project, unchanged
from tests.pipeline.test_bad_input import PARTITION, PLAN

Step = Callable[..., tuple[int, list[str]]]
AGAIN = "Make room and run the same command again; a training goes on from its checkpoint"
# Larger than a run's small files, smaller than its weights and checkpoint.
LIMIT = 4096


@contextmanager
def full_disk(size: int = LIMIT) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_inputs(step: Step) -> None:
    """Run all steps that a training needs."""
    where = ("--dataset", "data/set")
    for main, *given in (
        (prepare.main, "--out", "data/set"),
        (partition.main, *PARTITION),
        (virtual.main, *where, "--out", "data/virtual"),
        (pseudo.main, *where, "--partition", "data/p.npz", "--out", "data/pseudo"),
        (plan.main, *PLAN),
    ):
        assert step(main, *given)[0] == 0


@pytest.fixture
def prepared(project: Project, step: Step) -> Project:
    """A project with everything that a training needs."""
    project.edit("train.checkpoint_every", 1)
    make_inputs(step)
    return project


def arguments(out: str, checkpoints: str = ".checkpoints") -> list[str]:
    where = ["--plan", "data/plans/fedavg.json", "--dataset", "data/set", "--partition", "data/p.npz"]
    return [*where, "--seed", "0", "--out", out, "--checkpoints", checkpoints, "--no-tracking"]


def test_a_checkpoint_that_does_not_fit(prepared: Project, step: Step) -> None:
    with full_disk():
        code, said = step(train.main, *arguments("runs/a"))
    assert code == 1
    assert len(said) == 1 or said[:-1] == [line for line in said[:-1] if line.startswith("fedavg seed 0")]
    assert said[-1].startswith("error: .checkpoints/fedavg-0-")
    assert said[-1].endswith(f"File too large. {AGAIN}")
    assert list((prepared.folder / ".checkpoints").iterdir()) == []
    assert not (prepared.folder / "runs").exists()


def test_the_checkpoint_before_stays_and_the_run_ends_as_if_nothing_had_been(
    prepared: Project, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedcore.engine.checkpoint import Checkpoint

    assert step(train.main, *arguments("runs/untouched", "elsewhere"))[0] == 0
    save, calls = Checkpoint.save, []

    def fill_up(self: Checkpoint, *given: object) -> None:
        calls.append(1)
        with full_disk() if len(calls) == 2 else full_disk(1 << 40):
            save(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", fill_up)
        assert step(train.main, *arguments("runs/a"))[0] == 1
    assert [path.suffix for path in (prepared.folder / ".checkpoints").iterdir()] == [".safetensors"]
    assert step(train.main, *arguments("runs/a"))[0] == 0
    for name in ("metrics.json", "history.csv", "model.safetensors", "personal.safetensors"):
        there = (prepared.folder / "runs" / "a" / name).read_bytes()
        assert there == (prepared.folder / "runs" / "untouched" / name).read_bytes(), name


def test_a_run_folder_that_does_not_fit(prepared: Project, step: Step) -> None:
    assert step(train.main, *arguments("runs/a"))[0] == 0
    prepared.edit("train.checkpoint_every", 100)
    assert step(plan.main, *PLAN)[0] == 0
    with full_disk(), unchanged(prepared.folder / "runs"):
        code, said = step(train.main, *arguments("runs/a"))
    assert code == 1
    assert said[-1] == f"error: runs/a: File too large. {AGAIN}"
    assert [path.name for path in (prepared.folder / "runs").iterdir()] == ["a"]


def test_a_file_that_does_not_fit_leaves_the_one_before(tmp_path: Path) -> None:
    atomic_write_bytes(tmp_path / "a.json", b"before")
    with full_disk(), pytest.raises(OSError, match=rf"File too large: '{tmp_path}/a\.json'"):
        atomic_write_bytes(tmp_path / "a.json", b"x" * 10_000)
    with pytest.raises(OSError, match="no room"), atomic_folder(tmp_path / "b"):
        raise OSError("no room")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.json": b"before"}
