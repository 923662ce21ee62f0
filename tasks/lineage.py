"""Where a run comes from: code, data, versions."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedcore

_CODE = ("fedcore", "tasks", "flows", "pyproject.toml", "dvc.yaml")
_NOT_ENGINE = ("methods", "addons")  # a run's own method and add-ons are hashed in its plan


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
