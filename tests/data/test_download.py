"""Downloads from a server on this machine: interrupted, continued, wrong, and by two at a time."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedcore.config import ConfigError, SvhnData
from fedcore.data import sources
from fedcore.data.sources.download import CHUNK_BYTES, Remote, fetch
from fedcore.data.sources.progress import Progress
from tests.data.conftest import FileServer

CONTENT = np.random.Generator(np.random.PCG64(7)).bytes(3 * CHUNK_BYTES + 17)
MD5 = hashlib.md5(CONTENT).hexdigest()
PART = ".set.gz.part"


def run(folder: Path, *urls: str, seen: list[Progress] | None = None) -> None:
    on_progress = None if seen is None else seen.append
    fetch(folder, [Remote("set.gz", MD5, urls)], "put set.gz there", True, on_progress)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def url(server: FileServer) -> str:
    server.files["set.gz"] = CONTENT
    return server.url + "set.gz"


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_appears_whole_and_progress_is_in_bytes(
    tmp_path: Path, server: FileServer, url: str, lengths: bool
) -> None:
    server.lengths = lengths
    seen: list[Progress] = []
    run(tmp_path / "new", url, seen=seen)
    assert contents(tmp_path / "new") == {"set.gz": CONTENT}
    assert seen[-1] == Progress("download set.gz", "bytes", len(CONTENT), len(CONTENT) if lengths else None)
    assert [report.done for report in seen] == sorted({report.done for report in seen})


def test_a_broken_connection_is_followed_by_another_where_it_ended(
    tmp_path: Path, server: FileServer, url: str
) -> None:
    server.cuts = [1000, 500]
    run(tmp_path, url)
    assert server.requests == [("set.gz", ""), ("set.gz", "bytes=1000-"), ("set.gz", "bytes=1500-")]
    assert contents(tmp_path) == {"set.gz": CONTENT}


def test_a_connection_that_brings_nothing_ends_it_and_the_next_run_goes_on(
    tmp_path: Path, server: FileServer, url: str
) -> None:
    server.cuts = [1000, 0]
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, url)
    assert "the download failed; put set.gz there (" in str(caught.value)
    assert "1,000 bytes of set.gz are kept, run again to go on" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == {PART: CONTENT[:1000]}
    seen: list[Progress] = []
    run(tmp_path, url, seen=seen)
    assert server.requests[-1] == ("set.gz", "bytes=1000-")
    assert seen[0].done > 1000
    assert seen[0].total == len(CONTENT)
    assert contents(tmp_path) == {"set.gz": CONTENT}


def test_a_killed_download_goes_on_from_what_it_wrote(tmp_path: Path, server: FileServer, url: str) -> None:
    def kill(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path, [Remote("set.gz", MD5, (url,))], "", True, kill)
    kept = (tmp_path / PART).stat().st_size
    assert 0 < kept < len(CONTENT)
    run(tmp_path, url)
    assert server.requests[1:] == [("set.gz", f"bytes={kept}-")]
    assert contents(tmp_path) == {"set.gz": CONTENT}


@pytest.mark.parametrize(
    "kept",
    [b"of another file", CONTENT + b"too long", CONTENT[:-1] + b"?"],
    ids=["other", "longer", "changed"],
)
def test_a_wrong_beginning_is_thrown_away(tmp_path: Path, url: str, kept: bytes) -> None:
    (tmp_path / PART).write_bytes(kept)
    run(tmp_path, url)
    assert contents(tmp_path) == {"set.gz": CONTENT}


def test_a_whole_part_is_only_checked(tmp_path: Path, server: FileServer, url: str) -> None:
    (tmp_path / PART).write_bytes(CONTENT)
    run(tmp_path, url)
    assert server.requests == [("set.gz", f"bytes={len(CONTENT)}-")]
    assert contents(tmp_path) == {"set.gz": CONTENT}


def test_a_server_without_ranges_sends_all_again(tmp_path: Path, server: FileServer, url: str) -> None:
    server.ranges = False
    (tmp_path / PART).write_bytes(CONTENT[:1000])
    run(tmp_path, url)
    assert contents(tmp_path) == {"set.gz": CONTENT}


def test_a_server_without_ranges_that_always_breaks_off_is_given_up(
    tmp_path: Path, server: FileServer, url: str
) -> None:
    server.ranges = False
    server.cuts = [1000] * 9
    with pytest.raises(ConfigError, match=r"1,000 bytes of set\.gz are kept"):
        run(tmp_path, url)
    assert len(server.requests) == 2


def test_the_next_mirror_goes_on_where_the_first_broke_off(tmp_path: Path, server: FileServer, url: str) -> None:
    server.files["mirror/set.gz"] = CONTENT
    server.cuts = [2000, 0]
    run(tmp_path, url, server.url + "mirror/set.gz")
    assert server.requests[-1] == ("mirror/set.gz", "bytes=2000-")
    assert contents(tmp_path) == {"set.gz": CONTENT}


@pytest.mark.parametrize("content", [CONTENT[:-1], b"<html>not found</html>", b""])
def test_a_wrong_checksum_is_named_and_nothing_stays(tmp_path: Path, server: FileServer, content: bytes) -> None:
    server.files["set.gz"] = content
    with pytest.raises(ConfigError, match=f"set.gz came with MD5 [0-9a-f]{{32}}, the official one is {MD5}"):
        run(tmp_path, server.url + "set.gz")
    assert contents(tmp_path) == {}


def test_an_offline_machine_gets_one_line(tmp_path: Path, nowhere: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, nowhere + "set.gz")
    message = str(caught.value)
    assert message.startswith(
        "dataset.root: files are missing and the download failed; put set.gz there (<urlopen error"
    )
    assert "\n" not in message
    assert contents(tmp_path) == {}


def test_an_answer_that_is_an_error_is_told(tmp_path: Path, server: FileServer) -> None:
    with pytest.raises(ConfigError, match=r"\(HTTP Error 404: Not Found\)$"):
        run(tmp_path, server.url + "set.gz")
    assert contents(tmp_path) == {}


def test_two_processes_do_not_write_into_one_file(tmp_path: Path, server: FileServer, url: str) -> None:
    with (tmp_path / PART).open("ab") as other:
        other.write(CONTENT[:5])
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"another process is downloading set\.gz; wait for it"):
            run(tmp_path, url)
        assert contents(tmp_path) == {PART: CONTENT[:5]}
    assert server.requests == []


def test_what_another_process_has_just_finished_is_left_alone(tmp_path: Path, server: FileServer, url: str) -> None:
    (tmp_path / "set.gz").write_bytes(CONTENT)
    run(tmp_path, url)
    assert (contents(tmp_path), server.requests) == ({"set.gz": CONTENT}, [])


def test_svhn_is_downloaded_from_its_own_address(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.data.test_svhn_and_femnist import PIXELS, write_svhn

    official = {}
    for part in ("train", "test"):
        content = write_svhn(tmp_path / "official", part).read_bytes()
        name = f"{part}_32x32.mat"
        server.files[name] = content
        official[part] = (server.url + name, name, hashlib.md5(content).hexdigest())
    monkeypatch.setattr("torchvision.datasets.SVHN.split_list", official)
    data = sources.read(SvhnData(name="svhn", root=str(tmp_path)))
    np.testing.assert_array_equal(data.inputs[:3], PIXELS.transpose(3, 2, 0, 1))
    assert contents(tmp_path / "svhn") == server.files
