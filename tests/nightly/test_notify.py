"""People are told by webhook and by mail; what goes wrong is said without the address or the password."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fedcore.config import Notify
from tasks.nightly import Night
from tasks.notify import notify

SECRET = "s3cret-token"


def night(*errors: str) -> Night:
    return Night("2027-01-31", "trial", errors=[*errors])


class Web:
    """A web server on this machine that keeps what it is sent."""

    def __init__(self, status: int = 200):
        web = self
        self.bodies: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                web.bodies.append(json.loads(body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/{SECRET}"


@contextlib.contextmanager
def web(status: int) -> Iterator[Web]:
    made = Web(status)
    thread = threading.Thread(target=made.server.handle_request)
    thread.start()
    yield made
    thread.join()
    made.server.server_close()


class Mail(socketserver.ThreadingTCPServer):
    """A mail server on this machine: enough of SMTP for one message, without encryption."""

    daemon_threads = False

    def __init__(self) -> None:
        self.lines: list[str] = []
        super().__init__(("127.0.0.1", 0), _Smtp)

    @property
    def address(self) -> str:
        return f"smtp://me:{SECRET}@127.0.0.1:{self.server_address[1]}?from=night@x.org&to=a@x.org&to=b@x.org"


class _Smtp(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Mail)
        answers = {"EHLO": "250-here\r\n250 AUTH PLAIN", "AUTH": "235 ok", "DATA": "354 go", "QUIT": "221 bye"}
        self.wfile.write(b"220 ready\r\n")
        in_data = False
        for raw in self.rfile:
            line = raw.decode().rstrip("\r\n")
            self.server.lines.append(line)
            if in_data and line != ".":
                continue
            verb = line.split(" ")[0].upper()
            in_data = verb == "DATA"
            self.wfile.write((answers.get(verb, "250 ok") + "\r\n").encode())
            if verb == "QUIT":
                return


@pytest.fixture
def mail() -> Iterator[Mail]:
    with Mail() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_webhook_gets_the_night() -> None:
    with web(204) as made:
        assert notify(night("the disk is full"), Notify(webhook="HOOK"), {"HOOK": made.url}.get) == []
    (body,) = made.bodies
    assert body["text"] == "trial, night 2027-01-31: failed. nothing was promoted: the disk is full"
    assert (body["status"], body["errors"]) == ("failed", ["the disk is full"])


def test_an_answer_that_is_no_success_is_a_problem() -> None:
    with web(503) as made:
        found = notify(night("x"), Notify(webhook="HOOK"), {"HOOK": made.url}.get)
    assert found == ["notify.webhook: nobody was told, the server answered 503"]


def test_a_mail_is_sent_to_everybody(mail: Mail) -> None:
    assert notify(night("the disk is full"), Notify(email="MAIL"), {"MAIL": mail.address}.get) == []
    assert "Subject: [trial] night 2027-01-31: failed" in mail.lines
    assert [line for line in mail.lines if line.lower().startswith("rcpt")] == [
        "rcpt TO:<a@x.org>",
        "rcpt TO:<b@x.org>",
    ]
    assert "- the disk is full" in mail.lines


@pytest.mark.parametrize(
    ("section", "value", "problem"),
    [
        ({"webhook": "HOOK"}, None, "'HOOK' is neither an environment variable nor a Secret block"),
        ({"webhook": "HOOK"}, f"ftp://{SECRET}", "the value is no http:// or https:// address"),
        ({"webhook": "HOOK"}, f"http://127.0.0.1:9/{SECRET}", "the server could not be reached"),
        ({"webhook": "HOOK"}, f"http://127.0.0.1:x/{SECRET}", "the server could not be reached"),
        ({"email": "HOOK"}, f"smtp://me:{SECRET}@127.0.0.1:9?from=a@x&to=b@x", "could not be reached or refused"),
        ({"email": "HOOK"}, f"smtp://me:{SECRET}@127.0.0.1:x?from=a@x&to=b@x", "could not be reached or refused"),
        ({"email": "HOOK"}, f"smtp://{SECRET}", "the value is not smtp://user:password@host:port?from=...&to=..."),
    ],
)
def test_what_goes_wrong_is_said_without_the_secret(section: dict[str, str], value: str | None, problem: str) -> None:
    (line,) = notify(night("x"), Notify.model_validate(section), lambda _: value)
    assert problem in line
    assert SECRET not in line
    assert "\n" not in line


def test_a_password_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch, mail: Mail) -> None:
    monkeypatch.setattr("tasks.notify._HERE", ())
    (line,) = notify(night("x"), Notify(email="MAIL"), {"MAIL": mail.address}.get)
    assert "a password is not sent in the clear" in line
    assert not [said for said in mail.lines if said.startswith("AUTH")]


def test_a_good_night_is_told_only_if_asked_for() -> None:
    def refuse(_: str) -> str:
        pytest.fail("looked up a secret")

    assert notify(night(), Notify(webhook="HOOK"), refuse) == []
    assert notify(night(), Notify(webhook="HOOK", when="always"), lambda _: None) != []
