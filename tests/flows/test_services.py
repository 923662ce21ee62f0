"""A service that ends is started again, not for ever; its log stays small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flows import logs, services
from flows.recovery import ServeError
from flows.services import Service, watch


def make(tmp_path: Path, code: str) -> Service:
    return Service("worker", [sys.executable, "-c", code], dict(os.environ), tmp_path / "worker.log", grace=2)


def test_a_service_that_ends_again_and_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(services, "POLL_SECONDS", 0.01)
    worker, done = make(tmp_path, "print('lost it')"), []
    worker.start()
    with pytest.raises(ServeError, match=r"the worker ended 3 times: lost it \(all of it: .*worker\.log\)"):
        watch(
            [worker],
            ready={"worker": lambda: done.append("ready")},
            mend={"worker": lambda: done.append("mend")},
            most_restarts=2,
        )
    worker.stop()
    assert done == ["mend", "ready"] * 2
    said = capsys.readouterr().out.splitlines()
    assert [line.split(" ", 2)[2] for line in said] == ["the worker ended (lost it); starting it again"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker.log", "worker.log.1", "worker.log.2"]


def test_a_killed_service_is_told_from_one_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(services, "POLL_SECONDS", 0.01)
    worker = make(tmp_path, "import os; print('busy', flush=True); os.kill(os.getpid(), 9)")
    worker.start()
    with pytest.raises(ServeError, match="killed by signal 9"):
        watch([worker], ready={}, mend={}, most_restarts=1)
    worker.stop()
    assert "the worker ended (killed by signal 9); starting it again" in capsys.readouterr().out


def test_a_full_log_is_kept_aside_and_its_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    with logs.open_log(path) as writer:
        for text in (b"one\n", b"two\n", b"three\n", b"four\n", b"five\n"):
            writer.write(text)
            writer.flush()
            logs.bound(path, limit_bytes=3)
    kept = {name.name: name.read_text() for name in tmp_path.iterdir()}
    expected = {"server.log": "", "server.log.1": "five\n", "server.log.2": "four\n", "server.log.3": "three\n"}
    assert kept == expected


def test_a_small_log_stays(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("one\n")
    logs.bound(path, limit_bytes=4)
    logs.bound(tmp_path / "absent.log")
    assert {name.name for name in tmp_path.iterdir()} == {"server.log"}


def test_the_last_line_is_one_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n\xffKeyError: 'x' \n\xe2\x95\xb0\xe2\x94\x80\xe2\x95\xaf\n  \n")
    assert logs.last_line(path).endswith("KeyError: 'x'")
    path.write_text("")
    assert logs.last_line(path) == "it said nothing"
