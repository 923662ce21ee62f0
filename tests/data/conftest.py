from __future__ import annotations

import gzip
import hashlib
import re
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedcore.data.dataset import Dataset


def toy_dataset(labels: np.ndarray, num_classes: int | None = None, clients: np.ndarray | None = None) -> Dataset:
    """Return a data set whose one feature is the row number."""
    labels = np.asarray(labels, dtype=np.int64)
    names = tuple(f"class {k}" for k in range(num_classes or int(labels.max()) + 1))
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    return Dataset("toy", inputs, labels, names, (0.0,), (1.0,), len(labels), clients)


@pytest.fixture
def toy() -> Callable[..., Dataset]:
    return toy_dataset


@pytest.fixture
def skewed() -> Dataset:
    """1,200 rows, 6 classes of unequal size, in no order."""
    labels = np.repeat(np.arange(6), [400, 300, 200, 150, 100, 50])
    return toy_dataset(np.random.Generator(np.random.PCG64(3)).permutation(labels))


def one_line(call: Callable[[], object], start: str, *parts: str, error: type[ValueError] = ValueError) -> str:
    with pytest.raises(error, match=f"^{re.escape(start)}") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == []
    return message


class IdxFiles:
    """Official-looking MNIST files with few, small images, and the table of checksums torchvision would hold."""

    def __init__(self) -> None:
        numbers = np.random.Generator(np.random.PCG64(5))
        self.arrays = {
            "train-images-idx3-ubyte": numbers.integers(0, 256, (12, 4, 4)).astype(np.uint8),
            "train-labels-idx1-ubyte": np.arange(12, dtype=np.uint8) % 10,
            "t10k-images-idx3-ubyte": numbers.integers(0, 256, (5, 4, 4)).astype(np.uint8),
            "t10k-labels-idx1-ubyte": np.arange(5, dtype=np.uint8),
        }
        self.plain = {name: idx(array) for name, array in self.arrays.items()}
        self.packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in self.plain.items()}
        self.resources = [(name, hashlib.md5(content).hexdigest()) for name, content in self.packed.items()]

    def write(self, folder: Path, *names: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names or self.packed:
            (folder / name).write_bytes({**self.plain, **self.packed}[name])
        return folder


def idx(array: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format: magic number, big-endian shape, content."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def idx_files(monkeypatch: pytest.MonkeyPatch) -> IdxFiles:
    from torchvision import datasets

    files = IdxFiles()
    for official in (datasets.MNIST, datasets.FashionMNIST):
        monkeypatch.setattr(official, "resources", files.resources)
    return files


class FileServer:
    """A server of files on this machine that can break off, forget what a range is, or hide lengths.

    Attributes
    ----------
    files : content by path, without the slash
    requests : (path, value of the header Range or "") of every request, in order
    cuts : bytes of the body after which the next connections break off, one entry each
    ranges : whether the server knows what a range is
    lengths : whether it says how long an answer is
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.cuts: list[int] = []
        self.ranges = True
        self.lengths = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        name, wanted = request.path[1:], request.headers.get("Range", "")
        self.requests.append((name, wanted))
        if name not in self.files:
            request.send_error(404)
            return
        content, start = self.files[name], 0
        if wanted and self.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            request.send_response(200)
        if self.lengths:
            request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        body = content[start:]
        request.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)


@pytest.fixture
def server() -> Iterator[FileServer]:
    running = FileServer()
    yield running
    running.stop()


@pytest.fixture
def nowhere() -> str:
    """Return an address where nobody answers."""
    stopped = FileServer()
    stopped.stop()
    return stopped.url
