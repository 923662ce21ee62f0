"""What a kill leaves of a folder that was being written, and who removes it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tasks.files import atomic_folder

PROJECT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.files import atomic_folder
with atomic_folder(Path(sys.argv[1])) as folder:
    (folder / "config.json").write_text("{")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_a_writer(target: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(target)], cwd=PROJECT).returncode == -signal.SIGKILL


def write(target: Path, text: str) -> None:
    with atomic_folder(target) as folder:
        (folder / "config.json").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_write_of_the_folder_removes_what_kills_left_of_it(tmp_path: Path) -> None:
    target = tmp_path / "fedavg-0"
    write(target, "old")
    for _ in range(2):
        kill_a_writer(target)
    kill_a_writer(tmp_path / "fedavg-0.5-0")
    assert (target / "config.json").read_text() == "old"
    (other,) = (name for name in names(tmp_path) if name.startswith(".fedavg-0.5-0."))
    assert len(names(tmp_path)) == 4
    write(target, "new")
    assert names(tmp_path) == [other, "fedavg-0"]
    assert names(target) == ["config.json"]
    assert (target / "config.json").read_text() == "new"


def test_a_folder_that_is_being_written_stays(tmp_path: Path) -> None:
    target = tmp_path / "fedavg-0"
    with atomic_folder(target) as folder:
        (folder / "config.json").write_text("second")
        write(target, "first")
        assert (target / "config.json").read_text() == "first"
    assert (target / "config.json").read_text() == "second"
    assert names(tmp_path) == ["fedavg-0"]
