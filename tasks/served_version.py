"""Find a registered model version and its files: ``<name>``, ``<name>@<alias>`` or ``<name>`` with a version number."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from tasks.parameters import read_config
from tasks.run_files import FALLBACK_TAG, FILE_TAG, file_hashes
from tasks.tracking_store import open_client, readable_errors

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from fedcore.engine.serving import Service

ALIAS = "champion"
KINDS = ("global", "personal")


@dataclass(frozen=True)
class ServedVersion:
    """A version of a registered model, its files on this machine."""

    name: str
    version: int
    folder: Path
    tags: dict[str, str]

    @property
    def is_personal(self) -> bool:
        """Whether it answers by client."""
        return self.tags.get("fedcore.view") == "personal"

    def __str__(self) -> str:
        """For messages: which version, of which run."""
        return f"{self.name} version {self.version} ({self.tags.get('fedcore.label')})"

    def service(self) -> Service:
        """Open its models."""
        from fedcore.engine.serving import load_service

        fallback = self.folder / "artifacts" / "fallback"
        return load_service(
            self.folder / "artifacts" / "run", fallback if fallback.is_dir() else None, self.is_personal
        )


def add_arguments(parser: argparse.ArgumentParser, kind: str = "personal") -> None:
    """Add ``--model``, ``--kind`` and ``--version`` to a command line; `kind` is the view asked by default."""
    parser.add_argument(
        "--model", default="", help="registered model, <name> or <name>@<alias>; default: <experiment>-<kind>@champion"
    )
    parser.add_argument(
        "--kind", default="", help=f"{' or '.join(KINDS)}, of the experiment in params.yaml; default: {kind}"
    )
    parser.add_argument("--version", default="", help="version number, instead of the alias")
    parser.set_defaults(usual_kind=kind)


@contextmanager
def opened_version(root: Path, arguments: argparse.Namespace) -> Iterator[ServedVersion]:
    """Yield the version that `arguments` name; its files stay for the block.

    Raises
    ------
    ValueError
        One line: there is no such model, version or alias, or its files are gone or not those that were registered.
    """
    model = arguments.model or _usual_model(root, arguments.kind or arguments.usual_kind)
    if arguments.model and arguments.kind:
        raise ValueError(f"model '{model}' says which kind, so kind '{arguments.kind}' is one too many")
    with readable_errors():
        client = open_client(root)
        found = _find(client, *_parsed(model, arguments.version))
        source = client.get_model_version_download_uri(found.name, found.version)
    with _local(source) as folder:
        if not (folder / "artifacts" / "run").is_dir():
            raise ValueError(
                f"{found.name} version {found.version}: its files are gone ({source}); run `dvc repro -f register`"
            )
        version = ServedVersion(found.name, int(found.version), folder, dict(found.tags))
        _require_registered_files(version, source)
        yield version


def _require_registered_files(version: ServedVersion, source: str) -> None:
    """Compare weights and settings with the hashes the version was registered with; every byte is read once.

    Only the personal model's own ``personal.safetensors`` is the run's; elsewhere it is an empty one.
    """
    shared = ("config.json", "model.safetensors")
    expected = {
        "run": (FILE_TAG, (*shared, "personal.safetensors") if version.is_personal else shared),
        "fallback": (FALLBACK_TAG, shared),
    }
    for part, (tag, names) in expected.items():
        found = file_hashes(version.folder / "artifacts" / part)
        for name in names:
            if version.tags.get(f"{tag}{name}", found.get(name)) != found.get(name):
                raise ValueError(
                    f"{version.name} version {version.version}: {part}/{name} is missing or not the file that was"
                    f" registered ({source}); put it back from a backup, or move that folder away and run"
                    " `dvc repro -f register`, which stores the present winner's files again"
                )


def _usual_model(root: Path, kind: str) -> str:
    from fedcore.config import nearest

    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}'{nearest(kind, KINDS)}")
    return f"{read_config(root / 'params.yaml').experiment}-{kind}"


def _parsed(model: str, version: str) -> tuple[str, str | None, int | None]:
    """Return name, alias and version number; one of the last two is None."""
    name, at, alias = model.removeprefix("models:/").partition("@")
    if at and version:
        raise ValueError(f"model '{model}' names an alias, so version '{version}' is one too many; give one of them")
    if "/" in name and not at and not version:
        name, _, version = name.rpartition("/")
    if version:
        if not version.isdecimal():
            raise ValueError(f"version '{version}' is no number; expected 1, 2, ...")
        return name, None, int(version)
    return name, alias or ALIAS, None


def _find(client: MlflowClient, name: str, alias: str | None, version: int | None) -> Any:
    """Return MLflow's model version."""
    from fedcore.config import nearest

    models = {model.name: model for model in client.search_registered_models()}
    if name not in models:
        if not models:
            raise ValueError(f"there is no registered model '{name}', and no other; run `dvc repro register`")
        raise ValueError(f"there is no registered model '{name}'{nearest(name, models)}")
    aliases = models[name].aliases
    if alias is not None:
        if alias not in aliases:
            raise ValueError(f"model '{name}' has no alias '{alias}'{nearest(alias, aliases)}")
        version = int(aliases[alias])
    numbers = sorted(int(found.version) for found in client.search_model_versions(f"name = '{name}'"))
    if version not in numbers:
        raise ValueError(f"model '{name}' has no version {version}; valid: {', '.join(map(str, numbers))}")
    return client.get_model_version(name, str(version))


@contextmanager
def _local(source: str) -> Iterator[Path]:
    """Yield the folder of a version's files; those of a server or object store are downloaded for the block."""
    parts = urlparse(source)
    if parts.scheme in ("", "file"):
        yield Path(unquote(parts.path))
        return
    from mlflow.artifacts import download_artifacts

    with tempfile.TemporaryDirectory() as folder, readable_errors():
        local = download_artifacts(artifact_uri=source, dst_path=folder)
        yield Path(local)
