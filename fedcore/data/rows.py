"""Rows of one array that come block by block: kept in memory, or written to a file as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

# What is looked at or written in one go, so that a set larger than memory can be.
BLOCK_BYTES = 1 << 26


class Rows:
    """An array that grows along its first axis; with a file its rows never lie in memory together.

    Parameters
    ----------
    path : Path, optional
        The ``.npy`` file to write, the same bytes as `numpy.save` would write; without it rows stay in memory.

    Examples
    --------
    >>> with Rows() as rows:
    ...     rows.append(np.zeros((2, 3)))
    ...     rows.append(np.ones((1, 3)))
    >>> rows.array().shape
    (3, 3)
    """

    def __init__(self, path: Path | None = None):
        self._path = path
        self._file: BinaryIO | None = None
        self._blocks: list[np.ndarray] = []
        self._kind: tuple[tuple[int, ...], np.dtype] | None = None
        self._count = 0

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            if kind is None:
                self._write_header()
            self._file.close()

    def __len__(self) -> int:
        return self._count

    def append(self, block: np.ndarray) -> None:
        """Add the rows [m, ...] of a block; all blocks have one type and one shape of a row.

        In memory the block itself is kept: it must not change any more.
        """
        kind = (block.shape[1:], block.dtype)
        if self._kind is None:
            self._kind = kind
            if self._file is not None:
                self._write_header()
        if kind != self._kind:
            raise ValueError(f"rows are {self._kind[1]} {list(self._kind[0])}, got {kind[1]} {list(kind[0])}")
        self._count += len(block)
        if self._file is None:
            self._blocks.append(block)
        else:
            self._file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)

    def array(self) -> np.ndarray:
        """Return all rows, after the ``with`` block: from memory, or memory-mapped and read-only.

        Raises
        ------
        ValueError
            When there are no rows.
        """
        if self._kind is None:
            raise ValueError("there are no rows")
        if self._path is not None:
            return np.asanyarray(np.load(self._path, mmap_mode="r", allow_pickle=False))
        return self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks)

    def _write_header(self) -> None:
        # numpy leaves room for more digits, so the header of the final count has the length of the first one.
        if self._file is not None and self._kind is not None:
            shape, dtype = self._kind
            self._file.seek(0)
            held = {"descr": dtype.str, "fortran_order": False, "shape": (self._count, *shape)}
            np.lib.format.write_array_header_1_0(self._file, held)


def blocks(array: np.ndarray, count: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, rows) of the first `count` rows of an array (default all), at most 64 MiB at a time.

    Of a memory-mapped file every block is mapped by itself, so that what was read does not stay in memory.
    """
    count = len(array) if count is None else count
    row = array[:1].nbytes
    step = max(1, BLOCK_BYTES // max(1, row))
    for start in range(0, count, step):
        stop = min(start + step, count)
        if isinstance(array, np.memmap) and is_whole_file(array):
            shape = (stop - start, *array.shape[1:])
            yield start, np.memmap(str(array.filename), array.dtype, "r", array.offset + start * row, shape)
        else:
            yield start, array[start:stop]


def is_whole_file(array: np.ndarray) -> bool:
    """Say whether an array is all that an ``.npy`` file holds, memory-mapped."""
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous:
        return False
    path = Path(str(array.filename))
    return path.is_file() and path.stat().st_size == array.offset + array.nbytes
