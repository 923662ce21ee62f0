"""`make status` is a few lines for a person, whatever answers at the address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.status import status


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A healthy Prefect server that knows no pool of this project; gives its API address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            known = self.path == "/api/health"
            self.answer(*((200, b"true") if known else (404, b"{}")))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(404, b'{"detail": "Work pool not found."}')

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api"
    server.shutdown()
    server.server_close()


def test_a_server_without_the_pool_is_not_up(tmp_path: Path, elsewhere: str) -> None:
    with temporary_settings({PREFECT_API_URL: elsewhere}):
        lines, is_up = status(tmp_path)
    assert not is_up
    assert lines[0] == "serving  no, yet a server answers: `make stop`, then `make serve`"
    assert lines[1].startswith(f"server   {elsewhere.removesuffix('/api')} answers, but not with what `make serve`")
    assert "no pool 'fedcore'" in lines[1]
    assert len(lines) == 2
