"""A copy of the project in a temporary folder, with small parameters, and ways to run its steps."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.parameters import run_step

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "experiment": "digits",
    "dataset": {"name": "digits"},
    "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 5, "min_examples": 20},
    "virtual": None,
    "pseudo": None,
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"rounds": 3, "batch_size": 32, "lr": 0.1},
    "methods": {"fedavg": {}, "local": {}},
    "compare": {"seeds": [0], "baseline": "fedavg"},
}


class Project:
    """A project folder and its parameters."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.parameters: dict[str, Any] = YAML(typ="safe").load(_as_yaml(SMALL))

    def write(self) -> None:
        """Write ``params.yaml``."""
        (self.folder / "params.yaml").write_text(_as_yaml(self.parameters))

    def edit(self, path: str, value: Any) -> None:
        """Set one parameter, by its dotted path, and write the file; ``...`` removes it."""
        *parents, last = path.split(".")
        section = self.parameters
        for name in parents:
            section = section[name]
        if value is ...:
            del section[last]
        else:
            section[last] = value
        self.write()


def _as_yaml(value: Any) -> str:
    import io

    text = io.StringIO()
    YAML().dump(value, text)
    return text.getvalue()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An empty folder with a ``params.yaml``, made the current one."""
    monkeypatch.chdir(tmp_path)
    made = Project(tmp_path)
    made.write()
    return made


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """Run a step as its command line would; return the exit code and the lines of standard error."""

    def run(main: Callable[[], None], *arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["step", *arguments])
        capsys.readouterr()
        code = 0
        try:
            run_step(main)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, capsys.readouterr().err.splitlines()

    return run


@contextlib.contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Check that no file below a folder appears, vanishes or changes inside the block."""
    before = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    yield
    after = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert after == before


def copy_project(target: Path) -> Project:
    """Copy what a clone would hold: code, pipeline, settings."""
    for name in ("fedcore", "tasks", "flows"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, target / name)
    (target / ".dvc").mkdir()
    (target / "data" / "accepted").mkdir(parents=True)
    (target / "data" / "accepted" / ".gitkeep").touch()
    (target / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    made = Project(target)
    made.write()
    return made
