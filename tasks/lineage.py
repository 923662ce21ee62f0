"""Where a run comes from: code, data, versions; and whether they stayed as they were while it ran."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedcore

_CODE = ("fedcore", "tasks", "flows", "pyproject.toml", "dvc.yaml")
_HASHED = 64 * 2**20  # bytes; a larger file is known by its size and time of change
_NOT_ENGINE = ("methods", "addons")  # a run's own method and add-ons are hashed in its plan


class Watch:
    """What a stage reads, as it was when the stage began.

    To be made before the stage imports or reads anything: what is edited later than that may or may not have reached
    the process, which nobody can tell afterwards.

    Parameters
    ----------
    inputs : paths of files and folders
        The package ``fedcore`` is always watched too.
    """

    def __init__(self, inputs: Iterable[Path]):
        self._places = [Path(fedcore.__file__).parent, *inputs]
        self._before = self._look()

    def verdict(self) -> dict[str, Any]:
        """Return ``{"clean": True, "why": ""}``, or False and which files were edited, added or removed since."""
        now = self._look()
        changed = sorted(path for path in self._before.keys() | now.keys() if self._before.get(path) != now.get(path))
        if not changed:
            return {"clean": True, "why": ""}
        named = ", ".join(map(_shown, changed[:3])) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        return {"clean": False, "why": f"changed while the run was training: {named}"}

    def _look(self) -> dict[Path, str]:
        found: dict[Path, str] = {}
        for place in self._places:
            files = sorted(place.rglob("*")) if place.is_dir() else [place]
            for file in files:
                if file.is_file() and "__pycache__" not in file.parts:
                    found[file] = _fingerprint(file)
        return found


def engine_hash() -> str:
    """Return the hash of the engine's source files, methods and add-ons apart."""
    root = Path(fedcore.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if relative.parts[0] in _NOT_ENGINE and path.name != "base.py":
            continue
        digest.update(relative.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def git_state() -> dict[str, Any]:
    """Return commit and whether code differs from it; nulls outside a git checkout."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", *_CODE)
    return {"git_commit": commit, "git_dirty": None if commit is None else bool(changed)}


def versions() -> dict[str, str]:
    """Return the versions that shape numbers."""
    packages = {name: version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), "fedcore": fedcore.__version__, **packages}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _fingerprint(file: Path) -> str:
    facts = file.stat()
    if facts.st_size > _HASHED:
        return f"{facts.st_size} {facts.st_mtime_ns}"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
