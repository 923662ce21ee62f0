"""A flow uses the server that is there, also a slow one, and a temporary one only where there is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import server as module


@pytest.fixture
def slow() -> Iterator[tuple[str, threading.Event]]:
    """A server that does not answer before the event is set, and its API address."""
    may_answer = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            may_answer.wait(30)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/api", may_answer
    may_answer.set()
    thread.join()
    server.server_close()


def test_a_busy_server_is_waited_for(slow: tuple[str, threading.Event], monkeypatch: pytest.MonkeyPatch) -> None:
    url, may_answer = slow
    asked = module.is_healthy

    def is_healthy(address: str, timeout: float = 2.0) -> bool:
        assert timeout > 30, "a server that is only busy would be passed over"
        may_answer.set()
        return asked(address, timeout)

    monkeypatch.setattr(module, "is_healthy", is_healthy)
    with temporary_settings({PREFECT_API_URL: url}), module.with_or_without_server():
        assert PREFECT_API_URL.value() == url


def test_a_server_that_does_not_answer_in_time_is_not_healthy(slow: tuple[str, threading.Event]) -> None:
    assert not module.is_healthy(slow[0], timeout=0.05)


def test_without_a_server_there_is_a_temporary_one() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}), module.with_or_without_server():
            assert PREFECT_API_URL.value() is None
