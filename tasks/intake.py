"""Take in new data: check what lies in the incoming folder, add what is right to the data set, set the rest aside."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.accepted import FOLDER, Batch, Ledger, Rejection, now, sha256_of
from tasks.files import atomic_write_text, write_json
from tasks.parameters import read_config, run_step

if TYPE_CHECKING:
    from fedcore import config as settings
    from fedcore.data.dataset import Dataset

LOCK = Path("data/.intake.lock")
_LONGEST_NAME = 200  # bytes; file systems take 255, and the archive and the reasons put something before or after it


class _UnusableError(Exception):
    """A delivery that could not be looked at: nothing is known about its content."""


@dataclass
class Taken:
    """What became of the files that had arrived."""

    accepted: list[Batch] = field(default_factory=list)
    rejected: list[dict[str, str]] = field(default_factory=list)  # file, reason; also what could not be looked at
    waiting: list[str] = field(default_factory=list)  # changed a moment ago

    @property
    def rows(self) -> int:
        """Examples taken in."""
        return sum(batch.rows for batch in self.accepted)

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "rows": self.rows}

    def lines(self) -> list[str]:
        """Return what happened, for people."""
        found = []
        for batch in self.accepted:
            known = f", {batch.left_out} left out (there already)" if batch.left_out else ""
            new = f", new clients: {', '.join(batch.new_clients)}" if batch.new_clients else ""
            found.append(f"accepted {batch.file}: {batch.rows} examples{known}{new}")
        found += [f"rejected {one['file']}: {one['reason']}" for one in self.rejected]
        found += [f"waiting  {name}: it changed a moment ago" for name in self.waiting]
        return found or ["nothing arrived"]


class Intake:
    """Takes deliveries in, one after another.

    Parameters
    ----------
    incoming : the ``incoming`` section
    source : the ``dataset`` section
    data : Dataset
        The prepared data set: what it began with and every batch of the ledger.
    root : Path
        Folder of all data sets' batches.
    """

    def __init__(self, incoming: settings.Incoming, source: settings.Dataset, data: Dataset, root: Path = FOLDER):
        from fedcore.data.accumulated import example_keys, names_of_clients

        self.incoming, self.source, self.data = incoming, source, data
        self.ledger = Ledger(source, root)
        self._known = set(example_keys(data)) if incoming.duplicates == "leave_out" else set()
        self._clients = set(names_of_clients(data))
        # The prepared data set may be older than the ledger, when an earlier run was interrupted.
        for batch in self.ledger.read():
            self._clients.update(names_of_clients(batch))
            if incoming.duplicates == "leave_out":
                self._known.update(example_keys(batch))

    def run(self) -> Taken:
        """Take in everything that has arrived: what was pulled, then the incoming folder, in the order of the names."""
        taken = Taken()
        pulled = Path(self.incoming.pull) if self.incoming.pull is not None else None
        if pulled is not None and not pulled.is_dir():
            raise ValueError(f"incoming.pull: {pulled} is no folder; `dvc pull` did not bring it")
        known = {batch.sha256 for batch in self.ledger} | {line.sha256 for line in self.ledger.rejections}
        folder = Path(self.incoming.folder)
        folder.mkdir(parents=True, exist_ok=True)
        deliveries = [(path, False) for path in _visible(pulled)] if pulled is not None else []
        for path, ours in [*deliveries, *((path, True) for path in _visible(folder))]:
            try:
                sha256 = self._identify(path, ours)
                if sha256 is None:
                    taken.waiting.append(path.name)
                elif ours or sha256 not in known:
                    self._judge(path, sha256, taken, ours)
            except _UnusableError as error:
                taken.rejected.append({"file": _shown(path.name), "reason": f"{error}; it stays where it is"})
        return taken

    def _identify(self, path: Path, ours: bool) -> str | None:
        """Return the hash of a delivery; None for one of `ours` that may still be being written."""
        name = os.fsencode(path.name)
        if len(name) > _LONGEST_NAME:
            raise _UnusableError(f"its name is {len(name)} bytes long, at most {_LONGEST_NAME} will do; rename it")
        if _shown(path.name) != path.name:
            raise _UnusableError("its name is not UTF-8; rename it")
        try:
            # A time in the future is a clock that is wrong; one that is a little ahead must not end the waiting.
            age = abs(time.time() - _last_change(path))
            return None if ours and age < self.incoming.quiet_seconds else sha256_of(path)
        except OSError as error:
            raise _UnusableError(f"{path}: it could not be read ({error.strerror or error})") from None

    def _judge(self, path: Path, sha256: str, taken: Taken, ours: bool) -> None:
        """Take one delivery in or reject it; it is moved out of the way if it is `ours` to move.

        Only what reading finds wrong with a delivery rejects it: an `OSError` while it is added, as of a full disk,
        ends the step, and the delivery stays as it came.
        """
        before = self.ledger.find(sha256)
        try:
            if before is None:
                batch, left_out = self._new_examples(path)
            # Else an earlier run was interrupted after the line in the ledger, and the file is still to be archived.
            elif not ours or self._archived(before).exists():
                raise ValueError(f"{path}: the same content came as '{before.file}' on {before.taken_in}")
        except (MemoryError, OSError) as error:
            why = "the memory does not suffice" if isinstance(error, MemoryError) else error.strerror or error
            raise _UnusableError(f"{path}: it could not be read ({why})") from None
        except ValueError as error:
            reason = _shown(" ".join(str(error).split())) or type(error).__name__
            if ours:
                self._set_aside(path, reason)
            self.ledger.note(Rejection(path.name, sha256, now(), reason))
            taken.rejected.append({"file": path.name, "reason": reason})
            return
        line = before or self._add(path.name, sha256, batch, left_out)
        taken.accepted.append(line)
        if ours:
            self._archived(line).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, self._archived(line))

    def _add(self, file: str, sha256: str, batch: Dataset, left_out: int) -> Batch:
        """Add a delivery's new examples to the data set."""
        names = _names_used(batch)
        line = Batch(
            number=len(self.ledger) + 1,
            file=file,
            sha256=sha256,
            taken_in=now(),
            rows=len(batch),
            left_out=left_out,
            new_clients=[name for name in names if name not in self._clients],
        )
        self.ledger.begin(self.data)
        self.ledger.add(line, batch)
        self._clients.update(names)
        return line

    def _new_examples(self, path: Path) -> tuple[Dataset, int]:
        """Return the examples that are not there yet, and how many were left out; ValueError says what is wrong."""
        import numpy as np

        from fedcore.data.accumulated import example_keys
        from fedcore.data.sources import deliveries

        batch = deliveries.read(self.source, self.data, path)
        if self.incoming.duplicates == "keep":
            return batch, 0
        rows: dict[bytes, int] = {}
        for row, key in enumerate(example_keys(batch)):
            if key not in self._known:
                rows.setdefault(key, row)
        if not rows:
            raise ValueError(f"{path}: all of its {len(batch)} examples are there already")
        new = batch.take(np.array(list(rows.values())))
        self._known.update(rows)
        return new, len(batch) - len(new)

    def _archived(self, batch: Batch) -> Path:
        return Path(self.incoming.archive) / batch.archived

    def _set_aside(self, path: Path, reason: str) -> None:
        folder = Path(self.incoming.rejected)
        folder.mkdir(parents=True, exist_ok=True)
        name, number = path.name, 1
        while (folder / name).exists():
            number += 1
            name = f"{number}-{path.name}"
        atomic_write_text(folder / f"{name}.reason.txt", f"{reason}\n")
        shutil.move(path, folder / name)


def _names_used(batch: Dataset) -> list[str]:
    """Return the names of the clients that hold rows, in the order of their first row."""
    import numpy as np

    from fedcore.data.accumulated import names_of_clients

    if batch.clients is None:
        return []
    used, first = np.unique(batch.clients, return_index=True)
    names = names_of_clients(batch)
    return [names[client] for client in used[np.argsort(first)]]


def _visible(folder: Path) -> list[Path]:
    """Return what lies in a folder by name, without hidden files and unfinished uploads."""
    found = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted((path for path in found if path.suffix not in (".part", ".tmp")), key=lambda path: path.name)


def _shown(text: str) -> str:
    """Return a text that can be written as UTF-8: bytes of a file name that are none as ``\\udcXX``."""
    return text.encode("utf-8", "backslashreplace").decode()


def _last_change(path: Path) -> float:
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return max(file.stat().st_mtime for file in files)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.intake", description=__doc__)
    parser.add_argument("--dataset", type=Path, help="folder of the prepared data set; default: data/datasets/<name>")
    parser.add_argument("--out", type=Path, default=Path("reports/intake.json"), help="what became of every file")
    parser.add_argument("--withdraw", type=int, metavar="BATCH", help="let a batch count no longer, instead")
    parser.add_argument("--reason", default="withdrawn by hand", help="of a withdrawal; stays in the ledger")
    arguments = parser.parse_args()
    from filelock import FileLock, Timeout

    from fedcore.data.dataset import load

    config = read_config()
    if config.incoming is None:
        raise ValueError("params.yaml has no section `incoming`, so no data are taken in; see docs/nightly.md")
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(LOCK, timeout=0):
            if arguments.withdraw is not None:
                Ledger(config.dataset).withdraw(arguments.withdraw, arguments.reason)
                print(f"batch {arguments.withdraw} counts no longer; the next `dvc repro` is without it")
                return
            data = load(arguments.dataset or Path("data/datasets") / config.dataset.name)
            taken = Intake(config.incoming, config.dataset, data).run()
    except Timeout:
        raise ValueError("data are being taken in by another process; wait until it is done") from None
    write_json(arguments.out, taken.as_dict())
    print("\n".join(taken.lines()))


if __name__ == "__main__":
    run_step(main)
