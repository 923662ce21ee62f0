"""The batches that were taken in for a data set: a folder each, and a ledger of what came when.

The folder only ever grows. Batches that the ledger does not name are leftovers of an interruption and are not read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.files import atomic_folder, read_json, write_json

if TYPE_CHECKING:
    from fedcore import config as settings
    from fedcore.data.dataset import Dataset

FOLDER = Path("data/accepted")
# What may change without changing what an example means.
_PLACES = {"files", "test_files", "root", "download", "standardise", "normalise"}


@dataclass(frozen=True)
class Batch:
    """A line of the ledger.

    Attributes
    ----------
    number : int, >= 1
        Its place; batches are read in this order.
    file, sha256 : str
        Name and hash of what came.
    taken_in : str
        When, ISO 8601 with the offset from UTC.
    rows, left_out : int
        Examples taken in, and those left out because they were there already.
    new_clients : list of str
        Names that had not occurred before.
    withdrawn : str
        Why and when it was withdrawn; empty for a batch that counts.
    """

    number: int
    file: str
    sha256: str
    taken_in: str
    rows: int
    left_out: int
    new_clients: list[str]
    withdrawn: str = ""

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.number:05d}-{self.sha256[:12]}"

    @property
    def archived(self) -> str:
        """Name under which the file that came is archived."""
        return f"{self.number:05d}-{self.file}"


@dataclass(frozen=True)
class Rejection:
    """A file that was not taken in: its name and hash, when, and why."""

    file: str
    sha256: str
    rejected: str
    reason: str


class Ledger:
    """The ledger of one data set.

    Parameters
    ----------
    config : the ``dataset`` section
    root : folder of all data sets' batches

    Raises
    ------
    ValueError
        When the ledger is damaged, or its batches mean something else than the section says now.
    """

    def __init__(self, config: settings.Dataset, root: Path = FOLDER):
        self.folder = root / config.name
        self.path = self.folder / "ledger.json"
        self._meaning = config.model_dump(mode="json", exclude=_PLACES)
        self.batches: list[Batch] = []
        self.rejections: list[Rejection] = []
        if not self.path.exists():
            return
        content = read_json(self.path)
        try:
            self.batches = [Batch(**line) for line in content["batches"]]
            self.rejections = [Rejection(**line) for line in content["rejections"]]
            before = dict(content["dataset"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self.path}: not a ledger of accepted batches ({error})") from None
        for key in sorted({*before, *self._meaning}):
            if before.get(key) != self._meaning.get(key):
                raise ValueError(
                    f"{self.path}: its batches were taken in with dataset.{key} {before.get(key)!r}, now it is"
                    f" {self._meaning.get(key)!r}; change that back, or move {self.folder} away to begin anew"
                )

    def begin(self, base: Dataset) -> None:
        """Remember what the data set begins with, before its first batch; `base` is then all that was prepared."""
        if not self.batches:
            self._remember(base)

    def check_base(self, base: Dataset) -> None:
        """Compare what the data set begins with to what it was when its batches came; an older ledger takes `base`.

        How it is scaled, and which of its rows are test rows, may change; everything may when no batch counts.

        Raises
        ------
        ValueError
            When batches count that came for other examples: they belong to another data set of the same kind.
        """
        if not self._counting:
            self._base.unlink(missing_ok=True)
            return
        if not self._base.exists():
            self._remember(base)
        elif read_json(self._base).get("sha256") != _rows_hash(base):
            raise ValueError(
                f"{self.folder}: its batches ({len(self._counting)}) were taken in for other examples than the section"
                f" `dataset` gives now; change that back, move {self.folder} away to begin anew, or remove"
                f" {self._base} to add them to these examples"
            )

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def find(self, sha256: str) -> Batch | None:
        """Return the batch that came as a file of this hash."""
        return next((batch for batch in self.batches if batch.sha256 == sha256), None)

    def add(self, batch: Batch, data: Dataset) -> None:
        """Write a batch, then its line; an interruption in between leaves the ledger as it was."""
        from fedcore.data.dataset import save

        with atomic_folder(self.folder / batch.folder) as folder:
            save(data, folder)
        self._write([*self.batches, batch], self.rejections)

    def note(self, rejection: Rejection) -> None:
        """Write down that a file was not taken in."""
        self._write(self.batches, [*self.rejections, rejection])

    def withdraw(self, number: int, why: str) -> None:
        """Let a batch count no longer; its folder and its line stay.

        Raises
        ------
        ValueError
            When there is no such batch, or it was withdrawn before.
        """
        there = [batch.number for batch in self.batches if not batch.withdrawn]
        if number not in there:
            valid = ", ".join(map(str, there)) or "none"
            raise ValueError(f"{self.path}: no batch {number} to withdraw. Valid: {valid}")
        note = f"{why} ({now()})"
        batches = [replace(one, withdrawn=note) if one.number == number else one for one in self.batches]
        self._write(batches, self.rejections)

    def _write(self, batches: list[Batch], rejections: list[Rejection]) -> None:
        lines = {"batches": [asdict(one) for one in batches], "rejections": [asdict(one) for one in rejections]}
        write_json(self.path, {"dataset": self._meaning, **lines})
        self.batches, self.rejections = batches, rejections

    def read(self) -> list[Dataset]:
        """Return the batches that count, in their order."""
        from fedcore.data.dataset import load

        return [load(self.folder / batch.folder) for batch in self._counting]

    @property
    def _counting(self) -> list[Batch]:
        return [batch for batch in self.batches if not batch.withdrawn]

    @property
    def _base(self) -> Path:
        # Not in the ledger: `prepare` writes it for a ledger that has none yet, which an intake may be adding to.
        return self.folder / "base.json"

    def _remember(self, base: Dataset) -> None:
        write_json(self._base, {"sha256": _rows_hash(base)})


def _rows_hash(base: Dataset) -> str:
    """Return SHA-256 over the examples of a data set, whatever their scaling and which of them are test rows."""
    channels = base.inputs.shape[1] if base.inputs.ndim > 2 else 1
    plain = replace(base, offset=(0.0,) * channels, scale=(1.0,) * channels, num_train_rows=len(base))
    return plain.content_hash


def now() -> str:
    """Return the time, ISO 8601 with the offset from UTC."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def sha256_of(path: Path) -> str:
    """Return the hash of a file, or of a folder's file names and contents (64 hex digits)."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as content:
                inner = hashlib.file_digest(content, "sha256").digest()
            if file == path:
                return inner.hex()
            digest.update(os.fsencode(file.relative_to(path).as_posix()) + b"\0" + inner)
    return digest.hexdigest()
