"""Rebuild the run behind a registered version in a clean clone at its commit, and compare hashes."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.files import read_json, write_json
from tasks.parameters import run_step
from tasks.run_files import FILE_TAG, file_hashes
from tasks.tracking_runs import lineage_tags
from tasks.tracking_store import open_client, readable_errors

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

# What must be equal; the device and the executor explain a difference of the others.
_LINEAGE = ("dataset_hash", "partition_hash", "plan_hash", "code_hash", "seed", "device", "executor", "threads")
_SHOWN = 16  # characters of a hash


@dataclass(frozen=True)
class Row:
    """One line of the comparison."""

    what: str
    recorded: str
    rebuilt: str

    @property
    def equal(self) -> bool:
        """Whether both are the same."""
        return self.recorded == self.rebuilt


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.reproduce", description=__doc__)
    parser.add_argument(
        "version", metavar="MODEL/VERSION", help="for example digits-global/1 or digits-global@champion"
    )
    parser.add_argument("--keep", action="store_true", help="leave the clone where it is, to look into it")
    arguments = parser.parse_args()
    with readable_errors():
        client = open_client(Path.cwd())
        version = find_version(client, arguments.version)
        config = recorded_config(client, version)
    commit = usable_commit(version)
    folder = Path(tempfile.mkdtemp(prefix="reproduce-"))
    try:
        rebuilt = rebuild(Path.cwd(), folder / "clone", commit, config)
        rows = compare(version.tags, rebuilt)
    finally:
        if arguments.keep:
            print(f"the clone is kept: {folder / 'clone'}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(table(rows)))
    different = [row.what for row in rows if not row.equal]
    if different:
        raise ValueError(f"{arguments.version}: not reproduced; different: {', '.join(different)}")
    print(f"{arguments.version}: reproduced at commit {commit[:12]}, every file equal")


def find_version(client: MlflowClient, text: str) -> ModelVersion:
    """Return the version that ``model/number`` or ``model@alias`` names.

    Raises
    ------
    ValueError
        When it is neither, or does not exist.
    """
    from mlflow.exceptions import MlflowException

    for mark, find in (("/", client.get_model_version), ("@", client.get_model_version_by_alias)):
        name, found, which = text.removeprefix("models:/").rpartition(mark)
        if found and name and which:
            try:
                return find(name, which)
            except MlflowException:
                raise ValueError(f"'{text}' is not registered; `make models` lists the versions") from None
    raise ValueError(f"'{text}' is no version; expected MODEL/VERSION, for example VERSION=digits-global/1")


def usable_commit(version: ModelVersion) -> str:
    """Return the commit a version was made at.

    Raises
    ------
    ValueError
        When there is none, or the code differed from it: no clone can hold that code then.
    """
    tags, name = version.tags, f"{version.name}/{version.version}"
    commit = tags.get("lineage.git_commit")
    if commit in (None, "null"):
        raise ValueError(f"{name}: was made outside git, so its code is not known")
    if tags.get("lineage.git_dirty") != "false":
        raise ValueError(
            f"{name}: its code differed from commit {str(commit)[:12]} (git_dirty); commit before you train"
        )
    if tags.get("lineage.clean", "true") != "true":
        raise ValueError(f"{name}: its run is marked as not clean, {tags.get('lineage.why')}")
    return str(commit)


def recorded_config(client: MlflowClient, version: ModelVersion) -> dict[str, Any]:
    """Return the resolved configuration of a version's run."""
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(str(version.run_id), "config.json", folder)
        config: dict[str, Any] = read_json(path)
    if "params" not in config:
        raise ValueError(f"{version.name}/{version.version}: was trained before parameters were recorded with a run")
    return config


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``params.yaml`` that holds this one run and nothing else."""
    recorded, label = config["params"], config["label"]
    return {
        "experiment": config["experiment"],
        "dataset": recorded["dataset"],
        "partition": config["partition"],
        "virtual": recorded.get("virtual"),
        "pseudo": recorded.get("pseudo"),
        "model": config["model"],
        "train": config["train"],
        "methods": {label: recorded["method"]},
        "compare": {"seeds": [config["seed"]], "baseline": label, "targets": []},
    }


def rebuild(root: Path, clone: Path, commit: str, config: Mapping[str, Any]) -> Path:
    """Clone the repository at a commit, run the stages up to the training, return the run folder.

    The clone has a DVC cache and a tracking database of its own, so nothing is taken from an earlier run. Files the
    parameters name by a relative path, and downloads under ``data/raw``, are linked from `root`.

    Raises
    ------
    ValueError
        When git or a stage fails; its last line of output is named.
    """
    _run(["git", "clone", "--quiet", "--shared", "--no-checkout", str(root.resolve()), str(clone)], root)
    _run(["git", "checkout", "--quiet", "--detach", commit], clone)
    values = parameters(config)
    write_json(clone / "params.yaml", values)
    (clone / "dvc.lock").unlink(missing_ok=True)
    for path in {"data/raw", *_relative_paths(values)}:
        if (root / path).exists() and not (clone / path).exists():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            (clone / path).symlink_to((root / path).resolve())
    name = f"{config['label']}-{config['seed']}"
    print(f"training {name} again at commit {commit[:12]}; this takes as long as the first time", flush=True)
    _run([sys.executable, "-m", "dvc", "repro", "--no-run-cache", f"train@{name}"], clone)
    return clone / "runs" / name


def compare(tags: Mapping[str, str], run: Path) -> list[Row]:
    """Return what was recorded beside what was rebuilt: lineage, versions, files."""
    lineage = lineage_tags(read_json(run / "lineage.json"))
    keys = [f"lineage.{key}" for key in _LINEAGE]
    keys += sorted(key for key in tags if key.startswith("lineage.versions."))
    rows = [Row(key.removeprefix("lineage."), tags.get(key, "-"), lineage.get(key, "-")) for key in keys]
    rebuilt = file_hashes(run)
    names = sorted(tag.removeprefix(FILE_TAG) for tag in tags if tag.startswith(FILE_TAG))
    return rows + [Row(name, tags[f"{FILE_TAG}{name}"], rebuilt.get(name, "-")) for name in names]


def table(rows: list[Row]) -> list[str]:
    """Return the comparison as lines of text."""
    width = max(len(row.what) for row in rows)
    lines = [f"{'':{width}}  {'recorded':{_SHOWN}}  {'rebuilt':{_SHOWN}}"]
    return lines + [
        f"{row.what:{width}}  {row.recorded[:_SHOWN]:{_SHOWN}}  {row.rebuilt[:_SHOWN]:{_SHOWN}}"
        f"  {'equal' if row.equal else 'DIFFERENT'}"
        for row in rows
    ]


def _relative_paths(value: Any) -> Iterator[str]:
    """Yield every text among parameters that may be a path inside the project."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _relative_paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _relative_paths(inner)
    elif isinstance(value, str) and value not in ("", ".") and not {"/", ".."} & set(Path(value).parts):
        yield value


def _run(command: list[str], folder: Path) -> None:
    """Run a command in `folder` with the environment of a project of its own."""
    own = {"MLFLOW_TRACKING_URI": f"sqlite:///{folder.resolve()}/mlruns/mlflow.db", "PYTHONPATH": str(folder.resolve())}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **own, "PATH": path, "DVC_SITE_CACHE_DIR": str(folder.resolve() / ".cache" / "dvc")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "fatal"))] or lines[-1:]
        shown = " ".join(command[:3] if command[0] == "git" else command[2:])
        raise ValueError(f"`{shown}` failed in the clone: {'; '.join(errors) or f'exit code {done.returncode}'}")


if __name__ == "__main__":
    run_step(main)
