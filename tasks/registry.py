"""Who is champion: the aliases of a registered model, and the journal of how they came about.

A registered model carries one tag ``promotion.<number>`` per change of champion, so that repeated rollbacks go further
back and the history outlives the versions. Every change happens under a lock and is checked after it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tasks.tracking_runs import person
from tasks.tracking_store import tracking_uri

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel
    from mlflow.tracking import MlflowClient

KINDS = ("global", "personal")
ALIASES = CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
SEED_RUNS = "fedcore.seed_runs"  # tag of a version: run id by seed, for every seed its method was trained with
ROLLED_BACK = "promotion.rolled_back"
_JOURNAL = "promotion."
_LONGEST_WHY = 300  # characters; a tag of the registry holds 5000 at most

How = Literal["first version", "gate", "forced", "rollback", "by hand"]


@dataclass(frozen=True)
class Change:
    """One change of champion: ``came_from`` and ``to`` are version numbers, `came_from` None for the first.

    ``batch`` is shared by the changes of one command, which a rollback undoes together.
    """

    how: How
    came_from: str | None
    to: str
    who: str
    why: str
    when: str
    batch: str


class RaceError(ValueError):
    """Another promotion came in between; what was decided was decided against a champion that no longer is one."""


def model_name(experiment: str, kind: str) -> str:
    """Return the registered model of an experiment and a kind, ``global`` or ``personal``."""
    return f"{experiment}-{kind}"


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def registry_lock(root: Path) -> Iterator[None]:
    """Hold the lock of the registry: beside an SQLite database, so that all its projects share it, else the project's.

    A registry on a server is shared with other machines, which no file can lock out; there the checks of
    `make_champion` before and after it writes name the one that came second.
    """
    from filelock import FileLock

    uri = tracking_uri(root)
    database = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else root / "mlruns" / "server"
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(database.parent / f".{database.name}.registry.lock"):
        yield


def find_model(client: MlflowClient, name: str) -> RegisteredModel | None:
    """Return the registered model, None where there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def find_version(client: MlflowClient, name: str, number: str) -> ModelVersion | None:
    """Return a version, None where it was deleted or never was."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_model_version(name, number)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        return None


def aliases(model: RegisteredModel) -> dict[str, str]:
    """Return version numbers by alias, as text."""
    return {name: str(number) for name, number in model.aliases.items()}


def journal(model: RegisteredModel) -> list[Change]:
    """Return the model's changes of champion, oldest first."""
    numbered = {int(tag[len(_JOURNAL) :]): value for tag, value in model.tags.items() if _is_entry(tag)}
    return [Change(**json.loads(numbered[number])) for number in sorted(numbered)]


def standing(model: RegisteredModel) -> list[Change]:
    """Return the changes that were not rolled back, oldest first; the last one made the present champion."""
    stack: list[Change] = []
    for change in journal(model):
        if change.how == "rollback":
            stack.pop()
            while stack and stack[-1].to != change.to:
                stack.pop()
        if change.how != "rollback" or not stack:
            stack.append(change)
    return stack


def make_champion(
    client: MlflowClient, name: str, number: str, how: How, why: str, batch: str, expected: str | None
) -> Change:
    """Make a version champion and the champion `previous`; to be called under `registry_lock`.

    Whatever a kill leaves is completed by the next call: aliases first, then the version's tags, then the journal.

    Parameters
    ----------
    expected : str or None
        The champion the decision was made against, None for no champion.

    Raises
    ------
    RaceError
        When the champion is another one by now, before or after the change was written.
    """
    model, _ = _settled(client, name)
    old = aliases(model).get(CHAMPION)
    if old != expected:
        raise RaceError(f"{name}: the champion is version {old or 'none'} by now, not {expected or 'none'}; try again")
    change = Change(how, old, number, person(), _short(why), now(), batch)
    if old == number:
        return change
    if old is not None:
        client.set_registered_model_alias(name, PREVIOUS, old)
    client.set_registered_model_alias(name, CHAMPION, number)
    if aliases(model).get(CHALLENGER) == number:
        client.delete_registered_model_alias(name, CHALLENGER)
    _unmark(client, name, number)
    _record(client, name, change)
    return change


def roll_back(client: MlflowClient, name: str, why: str, batch: str) -> Change:
    """Make `previous` champion again; `previous` becomes who was champion before that one.

    To be called under `registry_lock`. Repeated calls go further back, never forward to what was rolled back. The mark
    of the version that goes comes first, then the aliases, the tags and the journal: a call after a kill finishes the
    rollback that was killed, and goes no further back.

    Raises
    ------
    ValueError
        When there is nothing to roll back to.
    """
    model, finished = _settled(client, name)
    if finished is not None:
        return finished
    found, stack = aliases(model), standing(model)
    champion, target = found.get(CHAMPION), found.get(PREVIOUS)
    if champion is None:
        raise ValueError(f"{name}: has no champion; `make models` shows the versions")
    if target in (None, champion) or not _can_return(client, name, target):
        older = _older(client, name, stack)
        target = older[-1] if older else None
    if target is None:
        raise ValueError(f"{name}: version {champion} is the first champion; there is nothing to roll back to")
    change = Change("rollback", champion, target, person(), _short(why), now(), batch)
    client.set_model_version_tag(name, champion, ROLLED_BACK, f"{change.when} by {change.who}: {change.why}")
    client.set_registered_model_alias(name, CHAMPION, target)
    _end_rollback(client, name, change, stack)
    return change


def latest_batch(client: MlflowClient, name: str) -> str | None:
    """Return the batch of the change that a rollback would undo, or finish undoing; None where there is none."""
    model = find_model(client, name)
    if model is None or CHAMPION not in model.aliases:
        return None
    champion, stack = aliases(model)[CHAMPION], standing(model)
    is_known = bool(stack) and (stack[-1].to == champion or _half_rollback(client, name, champion, stack) is not None)
    if len(stack) < 2 and PREVIOUS not in model.aliases and (is_known or not stack):
        return None
    return stack[-1].batch if is_known else now()


def _half_rollback(client: MlflowClient, name: str, champion: str, stack: list[Change]) -> Change | None:
    """Return the rollback that was killed after it had moved the champion; None where there was none.

    The mark that a rollback writes before all else tells it from an alias set by hand.
    """
    if not stack or champion == stack[-1].to or champion not in {change.to for change in stack[:-1]}:
        return None
    version = find_version(client, name, stack[-1].to)
    if version is None or ROLLED_BACK not in version.tags:
        return None
    when, _, rest = version.tags[ROLLED_BACK].partition(" by ")
    who, _, why = rest.partition(": ")
    return Change("rollback", stack[-1].to, champion, who, why, when, when)


def _end_rollback(client: MlflowClient, name: str, change: Change, stack: list[Change]) -> None:
    """Write what follows the champion's alias: `previous` and the journal."""
    older = _older(client, name, stack)
    before = older[: len(older) - 1 - older[::-1].index(change.to)] if change.to in older else []
    before = [number for number in before if number != change.to]
    if before:
        client.set_registered_model_alias(name, PREVIOUS, before[-1])
    else:
        client.delete_registered_model_alias(name, PREVIOUS)
    _record(client, name, change)


def _older(client: MlflowClient, name: str, stack: list[Change]) -> list[str]:
    """Return the former champions that may become champion again, oldest first."""
    numbers = (change.to for change in stack[:-1] if change.to != stack[-1].to)
    return [number for number in numbers if _can_return(client, name, number)]


def _can_return(client: MlflowClient, name: str, number: str) -> bool:
    version = find_version(client, name, number)
    return version is not None and ROLLED_BACK not in version.tags


def _record(client: MlflowClient, name: str, change: Change) -> None:
    """Write the change to the version's tags and the journal, then see that nobody came in between."""
    tags = {
        "promotion.how": change.how,
        "promotion.who": change.who,
        "promotion.why": change.why,
        "promotion.from": change.came_from or "none",
        "promotion.to": change.to,
        "promotion.when": change.when,
    }
    for tag, value in tags.items():
        client.set_model_version_tag(name, change.to, tag, value)
    model = client.get_registered_model(name)
    number = max((int(tag[len(_JOURNAL) :]) for tag in model.tags if _is_entry(tag)), default=0) + 1
    client.set_registered_model_tag(name, f"{_JOURNAL}{number:06d}", json.dumps(asdict(change), sort_keys=True))
    champion = aliases(client.get_registered_model(name)).get(CHAMPION)
    if champion != change.to:
        raise RaceError(f"{name}: another promotion came at the same time; the champion is version {champion}")


def _settled(client: MlflowClient, name: str) -> tuple[RegisteredModel, Change | None]:
    """Return the model, its champion in the journal, and the killed rollback that had to be finished for it.

    A champion that the journal does not know of otherwise was set by hand, or by a promotion that was killed.
    """
    model = find_model(client, name)
    if model is None:
        raise ValueError(f"no registered model '{name}'; run `dvc repro register`")
    champion, stack = aliases(model).get(CHAMPION), standing(model)
    if champion is None or (stack and stack[-1].to == champion):
        return model, None
    half = _half_rollback(client, name, champion, stack)
    if half is not None:
        _end_rollback(client, name, half, stack)
        return client.get_registered_model(name), half
    came_from = stack[-1].to if stack else aliases(model).get(PREVIOUS)
    if came_from == champion:
        came_from = None
    _unmark(client, name, champion)
    _record(client, name, Change("by hand", came_from, champion, "unknown", "found as champion", now(), now()))
    return client.get_registered_model(name), None


def _unmark(client: MlflowClient, name: str, number: str) -> None:
    """Let a version that became champion again no longer count as rolled back."""
    if ROLLED_BACK in client.get_model_version(name, number).tags:
        client.delete_model_version_tag(name, number, ROLLED_BACK)


def _is_entry(tag: str) -> bool:
    return tag.startswith(_JOURNAL) and tag[len(_JOURNAL) :].isdigit()


def _short(why: str) -> str:
    text = " ".join(why.split())
    return text if len(text) <= _LONGEST_WHY else f"{text[: _LONGEST_WHY - 1]}…"
