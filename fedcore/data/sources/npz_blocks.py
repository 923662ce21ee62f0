"""Arrays of an ``.npz`` file: small ones whole, a large one block by block."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from fedcore.config import nearest
from fedcore.data.rows import BLOCK_BYTES

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def small_arrays(
    path: Path, names: Sequence[str], large: str
) -> tuple[dict[str, np.ndarray], tuple[int, ...], np.dtype]:
    """Return those arrays of `names` that the file has, and the shape and type of the array `large`.

    Raises
    ------
    ValueError
        One line naming the file when it is damaged, holds pickled objects, or lacks `large` or the first of `names`.
    """
    with _opened(path) as archive:
        present = archive.files
        for name in (large, names[0]):
            if name not in present:
                raise _AbsentError(f"{path}: there is no array '{name}'{nearest(name, present)}")
        for name in {large, *names}.intersection(present):
            _check_size(archive, name)
        with _member(archive, large) as file:
            shape, _, dtype = _header(file)
        return {name: archive[name] for name in names if name in present}, shape, dtype


def read(path: Path, name: str) -> Iterator[np.ndarray]:
    """Yield the rows of an array, at most 64 MiB at a time."""
    with _opened(path) as archive:
        with _member(archive, name) as file:
            shape, fortran_order, dtype = _header(file)
            if not fortran_order:
                row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
                step = max(1, BLOCK_BYTES // max(1, row))
                for start in range(0, shape[0], step):
                    count = min(step, shape[0] - start)
                    content = file.read(count * row)
                    if len(content) < count * row:
                        raise ValueError(f"array '{name}' ends in row {start + len(content) // max(1, row)}")
                    yield np.frombuffer(content, dtype).reshape(count, *shape[1:])
                file.read()  # the end, where the checksum is compared
                return
        yield archive[name]


class _AbsentError(ValueError):
    pass


@contextmanager
def _opened(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            with archive:
                yield archive
    except _AbsentError as error:
        raise ValueError(str(error)) from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: not readable as an .npz of plain arrays ({reason})") from None


def _member(archive: np.lib.npyio.NpzFile, name: str) -> IO[bytes]:
    assert archive.zip is not None
    return archive.zip.open(f"{name}.npy")


def _check_size(archive: np.lib.npyio.NpzFile, name: str) -> None:
    """Refuse an array whose header says more than the file holds, before memory is taken for it."""
    assert archive.zip is not None
    with _member(archive, name) as file:
        shape, _, dtype = _header(file)
        held = archive.zip.getinfo(f"{name}.npy").file_size - file.tell()
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded")
    if math.prod(shape) * dtype.itemsize > held:
        raise ValueError(
            f"array '{name}' of shape {list(shape)} takes {math.prod(shape) * dtype.itemsize} bytes, {held} are there"
        )


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran_order, dtype = _HEADERS[version](file)
    return tuple(shape), bool(fortran_order), dtype
