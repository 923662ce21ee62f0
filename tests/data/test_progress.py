"""How progress is shown: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from fedcore.data.sources import Progress
from tasks import progress
from tasks.progress import ProgressBar, line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_for_each_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar() as show:
        show(Progress("download a.gz", "bytes", 4_000_000, 8_000_000))
        show(Progress("download a.gz", "bytes", 8_000_000, 8_000_000))
        show(Progress("decode", "images", 5_000, 5_000))
    first, second = (part.split("\r")[-1] for part in terminal.getvalue().rstrip("\n").split("\n"))
    assert first.startswith("download a.gz: 100%")
    assert "8.00M/8.00M" in first
    assert second.startswith("decode: 100%")
    assert "5.00k/5.00k" in second


def test_a_log_gets_a_line_at_the_end_and_one_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with ProgressBar() as show:
        for seconds, done in ((9.0, 1), (11.0, 2), (12.0, 3), (13.0, 4)):
            now[0] = seconds
            show(Progress("decode", "images", done * 1000, 4000))
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["decode: 2,000 of 4,000 images", "decode: 4,000 of 4,000 images"]
    assert captured.err == ""


def test_bytes_are_shown_in_megabytes() -> None:
    assert line(Progress("download a", "bytes", 1_250_000, 2_000_000)) == "download a: 1.2 of 2.0 MB"
    assert line(Progress("download a", "bytes", 1_250_000, None)) == "download a: 1.2 MB"
