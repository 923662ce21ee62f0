"""Aliases and journal of registered models: promotions, rollbacks, races."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tasks import promotion, registry
from tasks.model_list import show
from tests.tracking.conftest import Project

NAME = "digits-personal"
# Two of these run at once: each promotes its version against the champion it finds, and tries again after a race.
RACER = """
import sys
from pathlib import Path
from tasks import registry
from tasks.tracking_store import open_client
root, number = Path(sys.argv[1]), sys.argv[2]
client = open_client(root)
model = registry.find_model(client, "digits-personal")
print("ready", flush=True)
sys.stdin.readline()
tries = 0
for turn in range(10):
    expected = registry.aliases(registry.find_model(client, "digits-personal"))["champion"]
    if turn == 0:
        expected = "1"
    tries += 1
    try:
        with registry.registry_lock(root):
            change = registry.make_champion(client, "digits-personal", number, "gate", "race", number, expected)
        print(tries, change.came_from)
        break
    except registry.RaceError as error:
        pass
"""


def versions(client: Any, number: int, name: str = NAME) -> None:
    client.create_registered_model(name)
    for _ in range(number):
        client.create_model_version(name, source="file:///nowhere", tags={"fedcore.label": "fedavg"})


def aliases(client: Any, name: str = NAME) -> dict[str, str]:
    return registry.aliases(client.get_registered_model(name))


def promote(root: Path, client: Any, number: int, batch: str = "b", name: str = NAME) -> registry.Change:
    with registry.registry_lock(root):
        old = aliases(client, name).get("champion")
        return registry.make_champion(client, name, str(number), "gate", f"reason {number}", batch, old)


@contextmanager
def racer(root: Path, number: str) -> Iterator[Any]:
    command = [sys.executable, "-c", RACER, str(root), number]
    project = Path(registry.__file__).parents[1]
    with subprocess.Popen(command, cwd=project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_promotion_moves_the_aliases_and_says_who_why_from_to_when(root: Path, client: Any) -> None:
    versions(client, 2)
    promote(root, client, 1)
    client.set_registered_model_alias(NAME, "challenger", "2")
    promote(root, client, 2)
    assert aliases(client) == {"champion": "2", "previous": "1"}
    tags = client.get_model_version(NAME, "2").tags
    assert (tags["promotion.from"], tags["promotion.to"], tags["promotion.how"]) == ("1", "2", "gate")
    assert tags["promotion.why"] == "reason 2"
    assert tags["promotion.who"]
    assert tags["promotion.when"].endswith("+00:00")
    assert [(c.came_from, c.to) for c in registry.journal(client.get_registered_model(NAME))] == [
        (None, "1"),
        ("1", "2"),
    ]


def test_repeated_rollbacks_go_further_back_and_never_forward(root: Path, client: Any) -> None:
    versions(client, 4)
    for number in (1, 2, 3):
        promote(root, client, number)
    assert promotion.roll_back(root, "digits", ["personal"], "bad").changes[NAME].to == "2"
    assert aliases(client) == {"champion": "2", "previous": "1"}
    assert "bad" in client.get_model_version(NAME, "3").tags[registry.ROLLED_BACK]
    promote(root, client, 4)
    assert aliases(client) == {"champion": "4", "previous": "2"}
    assert [promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to for _ in range(2)] == ["2", "1"]
    assert aliases(client) == {"champion": "1"}
    with pytest.raises(ValueError, match="version 1 is the first champion; there is nothing to roll back to"):
        promotion.roll_back(root, "digits", ["personal"], "")
    promote(root, client, 3)
    assert registry.ROLLED_BACK not in client.get_model_version(NAME, "3").tags


def test_an_older_version_made_champion_again_leads_back_the_way_it_came(root: Path, client: Any) -> None:
    versions(client, 2)
    for number in (1, 2, 1):
        promote(root, client, number)
    assert promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to == "2"
    assert aliases(client) == {"champion": "2"}


def test_a_deleted_version_is_passed_over(root: Path, client: Any) -> None:
    versions(client, 3)
    for number in (1, 2, 3):
        promote(root, client, number)
    client.delete_registered_model_alias(NAME, "previous")
    client.delete_model_version(NAME, "2")
    assert promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to == "1"


def test_a_champion_set_by_hand_or_before_a_kill_is_entered_first(root: Path, client: Any) -> None:
    versions(client, 3)
    promote(root, client, 1)
    client.set_registered_model_alias(NAME, "champion", "2")
    promote(root, client, 3)
    changes = registry.journal(client.get_registered_model(NAME))
    assert [(c.how, c.came_from, c.to) for c in changes] == [
        ("gate", None, "1"),
        ("by hand", "1", "2"),
        ("gate", "2", "3"),
    ]
    assert promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to == "2"
    assert aliases(client) == {"champion": "2", "previous": "1"}


class Killed(BaseException):
    """Stands for SIGKILL: no `except Exception` of ours stops it."""


class Mortal:
    """A client whose process is killed right after its n-th write."""

    def __init__(self, client: Any, writes: int):
        self.client, self.left = client, writes

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)
        if not name.startswith(("set_", "delete_")):
            return call

        def write(*arguments: Any) -> None:
            call(*arguments)
            self.left -= 1
            if self.left == 0:
                raise Killed

        return write


def killed_after_every_write(root: Path, client: Any, work: Callable[[Any], Any]) -> Iterator[int]:
    """Yield after each n = 1, 2, ...: `work` began where the registry is now and was killed after its n-th write."""
    with closing(sqlite3.connect(root / "mlruns" / "mlflow.db")) as live, closing(sqlite3.connect(":memory:")) as kept:
        live.backup(kept)
        for writes in count(1):
            kept.backup(live)
            try:
                work(Mortal(client, writes))
            except Killed:
                yield writes
            else:
                break
        kept.backup(live)


def champions(client: Any) -> dict[str, str]:
    return {name: aliases(client, name)["champion"] for name in ("digits-global", NAME)}


def test_a_killed_rollback_is_finished_and_never_goes_forward(
    root: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every write: version 3 of both models was promoted at once and is undone, whatever had been done."""
    for name in ("digits-global", NAME):
        versions(client, 4, name)
        for number in (1, 2, 3):
            promote(root, client, number, f"2026-01-0{number}", name)

    def rollback(by: Any) -> promotion.Rollback:
        monkeypatch.setattr(promotion, "open_client", lambda _: by)
        return promotion.roll_back(root, "digits", None, "bad: slow")

    written = [(None, "1"), ("1", "2"), ("2", "3"), ("3", "2")]
    kills = 0
    for kills in killed_after_every_write(root, client, rollback):
        if kills < 20:  # the twentieth is the last entry of the journal
            rollback(client)
        for name in ("digits-global", NAME):
            assert aliases(client, name) == {"champion": "2", "previous": "1"}, kills
            entries = registry.journal(client.get_registered_model(name))
            assert [(entry.came_from, entry.to) for entry in entries] == written, kills
            assert (entries[-1].how, entries[-1].why) == ("rollback", "bad: slow")
            assert entries[-1].who == entries[0].who
        rollback(client)
        assert champions(client) == {"digits-global": "1", NAME: "1"}
    assert kills == 20


def test_a_version_whose_rollback_was_killed_is_not_gone_back_to(root: Path, client: Any) -> None:
    versions(client, 4)
    for number in (1, 2, 3):
        promote(root, client, number)
    for kills in killed_after_every_write(root, client, lambda by: registry.roll_back(by, NAME, "bad", "c")):
        promote(root, client, 4)
        assert promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to == "2", kills
        assert promotion.roll_back(root, "digits", ["personal"], "").changes[NAME].to == "1", kills


def test_a_killed_promotion_alone_is_undone(root: Path, client: Any) -> None:
    """Version 3 was rolled back once, and is promoted again by force; its second write moves the champion."""
    for name in ("digits-global", NAME):
        versions(client, 3, name)
        for number in (1, 2):
            promote(root, client, number, f"2026-01-0{number}", name)
    promote(root, client, 3)
    promotion.roll_back(root, "digits", ["personal"], "bad")

    def force(by: Any) -> registry.Change:
        return registry.make_champion(by, NAME, "3", "forced", "", "2026-01-03", "2")

    for kills in killed_after_every_write(root, client, force):
        promotion.roll_back(root, "digits", None, "")
        expected = {"digits-global": "1", NAME: "1"} if kills == 1 else {"digits-global": "2", NAME: "2"}
        assert champions(client) == expected, kills


def test_a_decision_against_a_former_champion_is_refused(root: Path, client: Any) -> None:
    versions(client, 3)
    promote(root, client, 1)
    promote(root, client, 2)
    with (
        registry.registry_lock(root),
        pytest.raises(registry.RaceError, match="the champion is version 2 by now, not 1"),
    ):
        registry.make_champion(client, NAME, "3", "gate", "", "b", "1")
    assert aliases(client) == {"champion": "2", "previous": "1"}


def test_a_second_machine_that_comes_in_between_is_noticed_after_writing(
    root: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a common lock, as on a server: the other's alias is written right after ours."""
    versions(client, 3)
    promote(root, client, 1)
    tag = type(client).set_model_version_tag

    def late(self: Any, *arguments: Any) -> None:
        self.set_registered_model_alias(NAME, "champion", "3")
        tag(self, *arguments)

    monkeypatch.setattr(type(client), "set_model_version_tag", late)
    with pytest.raises(registry.RaceError, match="the champion is version 3"):
        promote(root, client, 2)


def test_two_processes_leave_one_champion_and_one_story(root: Path, client: Any) -> None:
    versions(client, 3)
    promote(root, client, 1)
    with ExitStack() as stack:
        racers = [stack.enter_context(racer(root, number)) for number in ("2", "3")]
        for process in racers:
            assert process.stdout.readline() == "ready\n"
        for process in racers:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=60)[0].split() for process in racers]
    found = aliases(client)
    first, second = sorted(("2", "3"), key=lambda number: int(answers[int(number) - 2][0]))
    assert answers[int(first) - 2] == ["1", "1"]
    assert answers[int(second) - 2][1] == first
    assert found == {"champion": second, "previous": first}
    assert [c.to for c in registry.journal(client.get_registered_model(NAME))] == ["1", first, second]


def test_a_rollback_undoes_the_latest_promotion_of_both_kinds_or_one(root: Path, client: Any) -> None:
    for name in ("digits-global", NAME):
        versions(client, 3, name)
        for number, batch in ((1, "2026-01-01"), (2, "2026-01-02")):
            promote(root, client, number, batch, name)
    promote(root, client, 3, "2026-01-03")
    assert set(promotion.roll_back(root, "digits", None, "").changes) == {NAME}
    assert set(promotion.roll_back(root, "digits", None, "").changes) == {"digits-global", NAME}
    assert aliases(client, "digits-global") == {"champion": "1"}
    with pytest.raises(ValueError, match="nothing to roll back to"):
        promotion.roll_back(root, "digits", None, "")


def test_the_table_shows_versions_and_changes(root: Path, client: Any) -> None:
    versions(client, 2)
    promote(root, client, 1)
    promote(root, client, 2)
    promotion.roll_back(root, "digits", ["personal"], "too slow")
    lines = show(client, [NAME, "digits-global"])
    assert lines[0] == NAME
    assert lines[2].split()[:3] == ["2", "-", "fedavg-?"]
    assert "too slow" in lines[2]
    assert lines[3].split()[:2] == ["1", "champion"]
    assert "2 -> 1  rollback" in lines[5]
    assert lines[-1] == "digits-global: not registered; run `dvc repro register`"


def test_a_model_that_is_not_there_is_one_line(root: Path) -> None:
    with pytest.raises(ValueError, match="no registered model 'digits-personal'; run `dvc repro register`"):
        promotion.roll_back(root, "digits", ["personal"], "")


def test_the_lock_lies_beside_the_database(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/elsewhere/shared.db")
    with registry.registry_lock(project.root):
        assert (tmp_path / "elsewhere" / ".shared.db.registry.lock").exists()
