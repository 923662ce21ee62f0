"""Arrays that grow row by row, in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedcore.data import rows as module
from fedcore.data.dataset import Dataset, load, save
from fedcore.data.rows import Rows, blocks

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)


def grow(path: Path | None, *parts: np.ndarray) -> np.ndarray:
    with Rows(path) as rows:
        for part in parts:
            rows.append(part)
        assert len(rows) == sum(map(len, parts))
    return rows.array()


def test_rows_of_a_file_are_what_numpy_would_have_saved(tmp_path: Path) -> None:
    array = grow(tmp_path / "a.npy", TABLE[:1], TABLE[1:1], TABLE[1:])
    np.save(tmp_path / "b.npy", TABLE)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable


def test_rows_without_a_file_stay_in_memory() -> None:
    array = grow(None, TABLE[:7], TABLE[7:])
    np.testing.assert_array_equal(array, TABLE)
    assert not isinstance(array, np.memmap)


@pytest.mark.parametrize("other", [TABLE.astype(np.float64), TABLE[:, :4]])
def test_rows_of_another_kind_are_refused(tmp_path: Path, other: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"rows are float32 \[5\], got float"):
        grow(tmp_path / "a.npy", TABLE, other)


def test_without_rows_there_is_no_array(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no rows"):
        grow(None)


def test_blocks_cover_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 5 * 20)
    mapped = grow(tmp_path / "a.npy", TABLE)
    for array in (TABLE, mapped, mapped[3:], TABLE[:, ::2]):
        found = list(blocks(array))
        np.testing.assert_array_equal(np.concatenate([block for _, block in found]), array)
        assert [start for start, _ in found] == [0, *np.cumsum([len(block) for _, block in found])[:-1]]
        assert max(block.nbytes for _, block in found) <= 100


def test_a_block_of_a_mapped_file_is_a_mapping_of_its_own(tmp_path: Path) -> None:
    mapped = grow(tmp_path / "a.npy", TABLE)
    assert not any(np.may_share_memory(block, mapped) for _, block in blocks(mapped))


def test_inputs_that_lie_in_the_folder_are_not_written_again(tmp_path: Path) -> None:
    inputs = grow(tmp_path / "inputs.npy", TABLE)
    (tmp_path / "inputs.npy").chmod(0o444)
    before = (tmp_path / "inputs.npy").stat()
    data = Dataset("own", inputs, np.zeros(12, np.int64), ("a",), (0.0,), (1.0,), 12)
    save(data, tmp_path)
    after = (tmp_path / "inputs.npy").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert load(tmp_path).content_hash == data.content_hash
    save(load(tmp_path), tmp_path / "copy")
    assert (tmp_path / "copy" / "inputs.npy").read_bytes() == (tmp_path / "inputs.npy").read_bytes()
