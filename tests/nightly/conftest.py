"""A small federation of two hospitals in a folder of its own, and files that arrive for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore import config as settings
from fedcore.data import accumulated, sources
from fedcore.data.dataset import Dataset
from tasks.accepted import Ledger
from tasks.intake import Intake, Taken

HEADER = "hospital,readmitted,age,dose"


class Hospital:
    """The data set ``visits.csv`` in the current folder; rows are written with growing ages, so all differ."""

    def __init__(self) -> None:
        self.source = settings.CsvData(name="csv", files=["visits.csv"], label="readmitted", client="hospital")
        self.incoming = settings.Incoming(quiet_seconds=0.0)
        self.age = 0
        self.write(Path("visits.csv"), ["north", "south"], 60)

    def write(self, path: Path, hospitals: list[str], rows: int, labels: tuple[str, ...] = ("no", "yes")) -> list[str]:
        """Write a file with new rows, return its lines without the header."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for row in range(rows):
            self.age += 1
            holder, label = hospitals[row % len(hospitals)], labels[row // len(hospitals) % len(labels)]
            lines.append(f"{holder},{label},{self.age},{(self.age * 7) % 11}.5")
        path.write_text("\n".join([HEADER, *lines]) + "\n")
        return lines

    def arrive(self, name: str, hospitals: list[str], rows: int = 12, **more: tuple[str, ...]) -> list[str]:
        """Let a file arrive."""
        return self.write(Path(self.incoming.folder) / name, hospitals, rows, **more)

    def put(self, name: str, lines: list[str], header: str = HEADER) -> None:
        """Let a file with these lines arrive."""
        path = Path(self.incoming.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *lines]) + "\n")

    def data(self) -> Dataset:
        """Return the data set as the stage `prepare` makes it."""
        base, ledger = sources.read(self.source), Ledger(self.source)
        ledger.check_base(base)
        return accumulated.append(base, ledger.read())

    def take_in(self) -> Taken:
        """Take in what has arrived."""
        return Intake(self.incoming, self.source, self.data()).run()


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    monkeypatch.chdir(tmp_path)
    return Hospital()


def image_files(folder: Path, classes: dict[str, int], size: int = 6) -> None:
    """Write random images, `classes` says how many of each."""
    from PIL import Image

    numbers = np.random.Generator(np.random.PCG64(len(list(folder.glob("*"))) + sum(classes.values())))
    for name, count in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(numbers.integers(0, 256, (size, size, 3)).astype(np.uint8)).save(
                folder / name / f"{number}.png"
            )
