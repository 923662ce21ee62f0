"""Answer HTTP requests with a registered model: MLflow's scoring server, with every mistake as one line.

``mlflow models serve`` does the same; beyond it, this server says what is wrong in one line, and answers 4xx instead of
500 to a request without a content type and to JSON that Python cannot read.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.parameters import run_step
from tasks.served_version import add_arguments, opened_version

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

HOST = "127.0.0.1"
# Not text/csv, which MLflow offers: it has no lists, so no features. `tasks.predict` reads CSV.
CONTENT_TYPES = ("application/json", "application/vnd.apache.parquet")
_SHOWN = 40  # characters of a wrong value in a message


class PlainErrors:
    """An ASGI application around another one: error answers become ``{"error": <one line>}``."""

    def __init__(self, app: App):
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "POST":
            given = dict(scope["headers"]).get(b"content-type", b"").decode(errors="replace")
            if given.split(";")[0].strip().lower() not in CONTENT_TYPES:
                valid = " or ".join(CONTENT_TYPES)
                await _answer(send, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"content type '{given}', expected {valid}")
                return
        started: Message = {}
        body = b""
        asked = bytearray()

        async def kept() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def shortened(message: Message) -> None:
            nonlocal started, body
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                started = message
            elif not started:
                await send(message)
            else:
                body += message.get("body", b"")

        try:
            await self._app(scope, kept, shortened)
        except Exception as error:
            reason = mistake(error, asked)
            if started and reason is not None:
                await _answer(send, HTTPStatus.BAD_REQUEST, reason)
                return
            if started:
                await _answer(send, HTTPStatus.INTERNAL_SERVER_ERROR, one_line(body))
            raise
        if started:
            await _answer(send, HTTPStatus(started["status"]), one_line(body))


def mistake(error: Exception, body: bytes | bytearray) -> str | None:
    """Return what is wrong with the JSON of a request that MLflow failed on; None if the request is not to blame."""
    if isinstance(error, RecursionError):
        return "the JSON is nested too deeply"
    try:
        table = json.loads(body)["dataframe_split"]
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, RecursionError):
        return None
    except ValueError as unreadable:
        # An integer of too many digits; the message goes on with the setting that lets Python read more.
        return str(unreadable).split(";")[0]
    columns = table.get("columns") if isinstance(table, dict) else None
    for name in columns if isinstance(columns, list) else []:
        if isinstance(name, list | dict):
            return f"column name {json.dumps(name)[:_SHOWN]} is no text"
    return None


def one_line(body: bytes) -> str:
    """Return what MLflow's error answer says, without the data and the stack that it repeats."""
    text = body.decode(errors="replace")
    try:
        said = json.loads(text)
    except ValueError:
        said = text
    if isinstance(said, dict):
        said = said.get("message") or said.get("detail") or text
    reason = str(said).split("\nInput:")[0].split(" IMPORTANT:")[0]
    if reason.startswith("Failed to predict data"):
        # The table that was sent, once or twice, comes before the reason.
        reason = reason.rsplit("Error: ", 1)[-1]
    return " ".join(reason.split())


async def _answer(send: Send, status: HTTPStatus, message: str) -> None:
    body = json.dumps({"error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def application(model: PyFuncModel) -> App:
    """Return the server's application: ``POST /invocations``, ``GET /ping``, ``GET /version``."""
    from mlflow.pyfunc.scoring_server import init

    return PlainErrors(init(model))


def _require_free(port: int) -> None:
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} does not exist; expected 1 to 65535: PORT=5002")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(f"port {port} of {HOST} is not free ({error.strerror}); give another: PORT=5002") from None


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.serve_model", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=5001)
    arguments = parser.parse_args()
    _require_free(arguments.port)
    with opened_version(Path.cwd(), arguments) as version:
        import mlflow.pyfunc
        import uvicorn

        model = mlflow.pyfunc.load_model(str(version.folder))
        print(f"{version} answers on http://{HOST}:{arguments.port}/invocations; Ctrl-C ends it", flush=True)
        uvicorn.run(application(model), host=HOST, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    run_step(main)
