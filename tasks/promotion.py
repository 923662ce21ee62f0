"""Promote the challenger through the gate, roll back, list the versions: ``make promote|rollback|models``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import registry
from tasks.decisions import decide, leave_evidence
from tasks.files import write_json
from tasks.parameters import run_step
from tasks.registry import CHALLENGER, CHAMPION, KINDS, Change, RaceError
from tasks.tracking_store import open_client, readable_errors

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

    from fedcore.config import Gate
    from fedcore.metrics.gate import Decision

_TRIES = 3  # a promotion that came in between is judged against; more of them are nobody's ordinary night


@dataclass(frozen=True)
class Outcome:
    """What became of a challenger.

    Attributes
    ----------
    model : str
        The registered model.
    challenger, champion : str or None
        Version numbers as they were before; `challenger` is None when nothing asked to be promoted.
    decision : Decision or None
        The gate's; None without a challenger.
    change : Change or None
        How the champion changed; None when it was kept.
    """

    model: str
    challenger: str | None
    champion: str | None
    decision: Decision | None
    change: Change | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "model": self.model,
            "challenger": self.challenger,
            "champion": self.champion,
            "promoted": self.change is not None,
            "how": self.change.how if self.change else None,
            "decision": self.decision.as_dict() if self.decision else None,
        }

    def lines(self) -> list[str]:
        """Return what happened, for people."""
        if self.challenger is None or self.decision is None:
            return [f"{self.model}: no challenger; version {self.champion or 'none'} is champion"]
        versus = f"version {self.challenger} against version {self.champion}"
        if self.change is None:
            head = f"{self.model}: kept version {self.champion or 'none'}; {versus if self.champion else 'no champion'}"
        else:
            head = f"{self.model}: version {self.challenger} is champion ({self.change.how}); before: {self.champion}"
        return [head, *(f"  {reason}" for reason in self.decision.reasons)]


@dataclass(frozen=True)
class Rollback:
    """What a rollback changed, by registered model, and one line per model that has nothing to go back to."""

    changes: dict[str, Change]
    problems: list[str]


def promote(
    root: Path,
    experiment: str,
    kind: str,
    gate: Gate,
    dataset: Path,
    partition: Path,
    *,
    version: str | None = None,
    force: str | None = None,
    batch: str | None = None,
) -> Outcome:
    """Take the challenger of one kind through the gate; make it champion if it passes.

    The gate's decision and evidence become tags of the challenger and files of its run, under ``gate/``.

    Parameters
    ----------
    root : Path
        The project's root folder.
    experiment : str
    kind : {"global", "personal"}
    gate : Gate
        The rule.
    dataset, partition : Path
        Today's prepared data set and partition, whose validation split both versions are evaluated on.
    version : str or None
        The version to promote; None: the alias ``challenger``.
    force : str or None
        Why to promote whatever the gate says; None: the gate decides.
    batch : str or None
        Promotions of one batch are undone by one rollback.

    Raises
    ------
    ValueError
        When the model, the version or files are missing. Nothing has changed then.
    RaceError
        When other promotions came in between again and again.
    """
    client = open_client(root)
    batch = batch or registry.now()
    for attempt in range(_TRIES):
        challenger, champion = _contenders(client, experiment, kind, version)
        name = registry.model_name(experiment, kind)
        if challenger is None or (champion is not None and champion.version == challenger.version):
            return Outcome(name, None, str(champion.version) if champion else None, None, None)
        number, standing = str(challenger.version), str(champion.version) if champion else None
        decision = decide(client, kind, gate, challenger, champion, dataset, partition)
        leave_evidence(client, challenger, standing, decision, force)
        if decision.verdict == "keep" and force is None:
            return Outcome(name, number, standing, decision, None)
        why = f"forced: {force}" if force is not None else "; ".join(decision.reasons)
        try:
            with registry.registry_lock(root):
                how: registry.How = "gate" if force is None else "forced"
                change = registry.make_champion(client, name, number, how, why, batch, standing)
            return Outcome(name, number, standing, decision, change)
        except RaceError:
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable")


def roll_back(root: Path, experiment: str, kinds: Sequence[str] | None, why: str) -> Rollback:
    """Make `previous` champion again.

    Parameters
    ----------
    kinds : sequence of {"global", "personal"} or None
        None: undo the latest promotion, of the kinds that it promoted together.

    Raises
    ------
    ValueError
        When nothing can be rolled back.
    """
    client = open_client(root)
    with registry.registry_lock(root):
        chosen = [registry.model_name(experiment, kind) for kind in (kinds or _latest(client, experiment))]
        batch = registry.now()
        done = Rollback({}, [])
        for name in chosen:
            try:
                done.changes[name] = registry.roll_back(client, name, why, batch)
            except ValueError as error:
                done.problems.append(str(error))
    if not done.changes:
        raise ValueError("\n".join(done.problems))
    return done


def _latest(client: MlflowClient, experiment: str) -> list[str]:
    """Return the kinds of the newest promotion that can be undone; all kinds where there is none."""
    found = {kind: registry.latest_batch(client, registry.model_name(experiment, kind)) for kind in KINDS}
    newest = {kind: batch for kind, batch in found.items() if batch is not None}
    return [kind for kind, batch in newest.items() if batch == max(newest.values())] or list(KINDS)


def _contenders(
    client: MlflowClient, experiment: str, kind: str, version: str | None
) -> tuple[ModelVersion | None, ModelVersion | None]:
    name = registry.model_name(experiment, kind)
    model = registry.find_model(client, name)
    if model is None:
        raise ValueError(f"no registered model '{name}'; run `dvc repro register`")
    found = registry.aliases(model)
    wanted = version or found.get(CHALLENGER)
    challenger = registry.find_version(client, name, wanted) if wanted else None
    if version and challenger is None:
        raise ValueError(f"{name}: there is no version {version}; `make models` shows them")
    champion = registry.find_version(client, name, found[CHAMPION]) if CHAMPION in found else None
    return challenger, champion


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.promotion", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{promote,rollback,models}")
    for name, run, text in (
        ("promote", _promote_command, "take the challenger through the gate"),
        ("rollback", _rollback_command, "make the previous champion champion again"),
        ("models", _models_command, "list versions: aliases, who, when, why, accuracies"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--experiment", help="default: the one of params.yaml")
        command.add_argument("--kind", choices=[*KINDS, "both"], help="default: both; rollback: the latest promotion's")
        command.set_defaults(run=run)
        if name != "models":
            command.add_argument("--reason", default="", help="why, in words; stays with the version")
    promoting = commands.choices["promote"]
    promoting.add_argument("--version", help="a version instead of the challenger; needs --kind")
    promoting.add_argument("--force", action="store_true", help="promote whatever the gate says; needs --reason")
    promoting.add_argument(
        "--dataset", type=Path, help="folder of the prepared data set; default: data/datasets/<name>"
    )
    promoting.add_argument("--partition", type=Path, help="partition file; default: data/partitions/<experiment>.npz")
    promoting.add_argument("--out", type=Path, default=Path("reports/promotion.json"))
    arguments = parser.parse_args()
    run_command: Callable[[argparse.Namespace], None] = arguments.run
    with readable_errors():
        run_command(arguments)


def _promote_command(arguments: argparse.Namespace) -> None:
    from tasks.parameters import read_config

    config = read_config()
    experiment = arguments.experiment or config.experiment
    kinds = _kinds(arguments.kind)
    reason = arguments.reason.strip()
    if arguments.force and not reason:
        raise ValueError('--force needs a reason: make promote FORCE=yes REASON="why"')
    if reason and not arguments.force:
        raise ValueError("a reason is given with --force only; without it the gate's reasons are recorded")
    if arguments.version and len(kinds) > 1:
        raise ValueError("--version needs --kind: the two models count their versions separately")
    dataset = arguments.dataset or Path("data/datasets") / config.dataset.name
    partition = arguments.partition or Path("data/partitions") / f"{experiment}.npz"
    batch, outcomes = registry.now(), []
    for kind in kinds:
        outcome = promote(
            Path.cwd(),
            experiment,
            kind,
            config.gate,
            dataset,
            partition,
            version=arguments.version,
            force=reason or None,
            batch=batch,
        )
        outcomes.append(outcome)
        print("\n".join(outcome.lines()))
    write_json(arguments.out, [outcome.as_dict() for outcome in outcomes])


def _rollback_command(arguments: argparse.Namespace) -> None:
    kinds = _kinds(arguments.kind) if arguments.kind else None
    reason = arguments.reason.strip() or "rolled back by hand"
    done = roll_back(Path.cwd(), _experiment(arguments), kinds, reason)
    for name, change in done.changes.items():
        print(f"{name}: version {change.to} is champion again; before: version {change.came_from}")
    for problem in done.problems:
        print(f"unchanged: {problem}")


def _models_command(arguments: argparse.Namespace) -> None:
    from tasks.model_list import show

    names = [registry.model_name(_experiment(arguments), kind) for kind in _kinds(arguments.kind)]
    print("\n".join(show(open_client(Path.cwd()), names)))


def _kinds(choice: str | None) -> tuple[str, ...]:
    return KINDS if choice in (None, "both") else (str(choice),)


def _experiment(arguments: argparse.Namespace) -> str:
    if arguments.experiment:
        return str(arguments.experiment)
    from tasks.parameters import read_config

    return read_config().experiment


if __name__ == "__main__":
    run_step(main)
