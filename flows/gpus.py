"""A share of a GPU per run: taken before training, given back by the kernel when the last process of the run has gone.

Every GPU has a folder of leases. A lease is a file, locked (flock) by whoever holds it; the lock is inherited by the
guard of what a run starts (`flows.processes`), so it lasts until the training has ended, and no longer, however that
ends. Its content says how many bytes of the GPU's memory the run may use: a run whose peak was measured before takes
that much, so that several share a GPU; one never measured takes a whole GPU. A machine without GPUs limits nothing.

Whoever may write in the folder takes part: what others may do with it, they may do with the lock in it.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

PEAK_COLUMN = "gpu_peak_bytes"  # of a run's timing.csv
CONTEXT_BYTES = 1 << 30  # what CUDA takes per process beside the tensors
MARGIN = 1.2  # of a measured peak: other seeds and later rounds may need a little more
USABLE = 0.95  # of a GPU's memory
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Gpu:
    """One GPU: its unique name, as CUDA_VISIBLE_DEVICES takes it, and its memory in bytes."""

    name: str
    memory: int


@dataclass(frozen=True)
class Lease:
    """A share of a GPU, held.

    Attributes
    ----------
    gpu
        Its name.
    file
        The open file whose lock is the lease; a process that inherits it shares the lease.
    """

    gpu: str
    file: IO[str]

    @property
    def environment(self) -> dict[str, str]:
        """What a process of the run needs to see this GPU only."""
        return {"CUDA_VISIBLE_DEVICES": self.gpu}


def visible_gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that a process started from here may use; none without the driver's `nvidia-smi`."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is not None and allowed.strip() in ("", "-1"):
        return []
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in listed.stdout.splitlines()]
    rows = [row for row in rows if len(row) == 3 and row[2].isdigit()] if listed.returncode == 0 else []
    chosen = None if allowed is None else [one.strip() for one in allowed.split(",")]
    return [
        Gpu(uuid, int(mebibytes) << 20)
        for index, uuid, mebibytes in rows
        if chosen is None or index in chosen or any(one and uuid.startswith(one) for one in chosen)
    ]


def is_visible() -> bool:
    """Return whether a process started from here would see an NVIDIA GPU."""
    return bool(visible_gpus())


def needed_bytes(runs: Path, label: str) -> int | None:
    """Return what a run of this method should reserve, from the largest peak of its earlier runs; None if unmeasured.

    Parameters
    ----------
    runs
        The folder of run folders, ``<label>-<seed>``.
    label
        The method's label.
    """
    peaks = [
        peak
        for path in runs.glob(f"{label}-*/timing.csv")
        if path.parent.name.rpartition("-")[0] == label
        for peak in _peaks(path)
    ]
    return int(max(peaks) * MARGIN) + CONTEXT_BYTES if peaks else None


def _peaks(path: Path) -> Iterator[float]:
    with contextlib.suppress(OSError, UnicodeDecodeError, csv.Error, ValueError), path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row.get(PEAK_COLUMN):
                yield float(row[PEAK_COLUMN])


@contextlib.contextmanager
def lease(
    folder: Path,
    gpus: Sequence[Gpu],
    wanted: int | None,
    *,
    holder: str = "",
    on_wait: Callable[[], None] = lambda: None,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[Lease | None]:
    """Hold a share of the GPU with most room meanwhile; wait until there is one. Without GPUs, yield None at once.

    Parameters
    ----------
    folder
        Where the leases are; the runs that share GPUs name the same one.
    gpus
        Those to choose from.
    wanted
        Bytes; None, or more than a GPU has, takes a whole GPU.
    holder
        Who holds it, for people.
    on_wait
        Called once when no GPU has room now.

    Raises
    ------
    PermissionError
        If the folder is another user's, who does not share it.
    """
    if not gpus:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    held = _take(folder, gpus, wanted, holder)
    if held is None:
        on_wait()
    while held is None:
        time.sleep(poll_seconds)
        held = _take(folder, gpus, wanted, holder)
    try:
        yield held
    finally:
        # Closed, not unlocked: a process of the run that is still ending keeps the lease with its own descriptor.
        held.file.close()


def held_bytes(folder: Path, gpu: str) -> dict[str, int]:
    """Return the leases of one GPU that somebody holds: bytes by holder."""
    return {f"{content['holder']} [{path.stem[-8:]}]": content["bytes"] for path, content in _held(folder, gpu)}


def _take(folder: Path, gpus: Sequence[Gpu], wanted: int | None, holder: str) -> Lease | None:
    with _mutex(folder) as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        room = {gpu: int(gpu.memory * USABLE) - _taken(folder, gpu) for gpu in gpus}
        gpu = max(gpus, key=lambda one: room[one])
        most = int(gpu.memory * USABLE)
        share = most if wanted is None else min(wanted, most)
        if room[gpu] < share:
            return None
        file = _created(folder / f"{gpu.name}.{uuid4().hex[:8]}.json", 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"holder": holder, "bytes": share}, file)
        file.flush()
        return Lease(gpu.name, file)


def _mutex(folder: Path) -> IO[str]:
    path = folder / "lock"
    try:
        # Not created if it is there: in a folder with sticky bit Linux refuses that for another user's file.
        with contextlib.suppress(FileExistsError):
            if not path.exists():
                return _created(path, 0o666)
        return path.open("r+")
    except PermissionError:
        share = f"chmod 1777 {folder} && chmod 666 {path}"
        raise PermissionError(f"{folder}: is another user's; to share it, its owner runs `{share}`") from None


def _created(path: Path, mode: int) -> IO[str]:
    """Create a file with those bits of `mode` that its folder has too, whatever the umask."""
    file = path.open("x")
    os.fchmod(file.fileno(), path.parent.stat().st_mode & mode)
    return file


def _taken(folder: Path, gpu: Gpu) -> int:
    """Return the bytes taken; removes the files of holders that have gone. The mutex must be held."""
    held = dict(_held(folder, gpu.name))
    for path in _files(folder, gpu.name):
        if path not in held:
            # Only its owner may remove a file from a folder with sticky bit.
            with contextlib.suppress(PermissionError):
                path.unlink(missing_ok=True)
    return sum(content["bytes"] for content in held.values())


def _held(folder: Path, gpu: str) -> Iterator[tuple[Path, Any]]:
    for path in _files(folder, gpu):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError), path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield path, json.load(file)


def _files(folder: Path, gpu: str) -> list[Path]:
    return sorted(folder.glob(f"{gpu}.*.json"))
