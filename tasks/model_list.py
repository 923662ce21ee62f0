"""The versions of registered models as a table, and how the champions followed each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlflow.entities.model_registry import ModelVersion, RegisteredModel
    from mlflow.tracking import MlflowClient

_COLUMNS = ("version", "alias", "run", "val", "gate", "who", "when", "why")
_LAST = 10  # changes of champion that are listed
_WHY = 70  # characters


def show(client: MlflowClient, names: Sequence[str]) -> list[str]:
    """Return the lines of the tables of some models; a model that does not exist is one line."""
    lines: list[str] = []
    for name in names:
        model = registry.find_model(client, name)
        lines += ["", *_model(client, model)] if model else ["", f"{name}: not registered; run `dvc repro register`"]
    return lines[1:]


def _model(client: MlflowClient, model: RegisteredModel) -> list[str]:
    found = registry.aliases(model)
    by_version: dict[str, list[str]] = {}
    for alias, number in sorted(found.items()):
        by_version.setdefault(number, []).append(alias)
    versions = sorted(client.search_model_versions(f"name = '{model.name}'"), key=lambda v: -int(v.version))
    rows = [_row(version, by_version.get(str(version.version), [])) for version in versions]
    lines = [model.name, *_table(_COLUMNS, rows)]
    changes = registry.journal(model)
    if changes:
        lines += ["changes of champion, newest first:"]
        lines += [
            f"  {change.when}  {change.came_from or 'none'} -> {change.to}  {change.how}, {change.who}: {change.why}"
            for change in changes[: -_LAST - 1 : -1]
        ]
        if len(changes) > _LAST:
            lines += [f"  and {len(changes) - _LAST} earlier"]
    return lines


def _row(version: ModelVersion, aliases: Sequence[str]) -> list[str]:
    tags = version.tags
    score = tags.get("fedcore.val_score")
    decided = "promotion.when" in tags
    why = tags.get("promotion.why" if decided else "gate.reasons", "")
    if registry.ROLLED_BACK in tags:
        why = f"rolled back {tags[registry.ROLLED_BACK]}"
    return [
        str(version.version),
        ", ".join(aliases) or "-",
        f"{tags.get('fedcore.label', '?')}-{tags.get('fedcore.seed', '?')}",
        f"{100 * float(score):.2f}" if score else "-",
        tags.get("gate.verdict", "-"),
        tags.get("promotion.who", "-"),
        tags.get("promotion.when" if decided else "gate.when", "-"),
        why if len(why) <= _WHY else f"{why[: _WHY - 1]}…",
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    every = [columns, *rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
