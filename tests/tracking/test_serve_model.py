"""Scoring servers: a right question gets its client's answer, a wrong one a 4xx and a reason in one line."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks import serve_model
from tasks.serve_model import application, mistake, one_line
from tasks.served_version import opened_version
from tests.tracking.conftest import CommandLine, Project, logits_by_hand

X = [0, 1, 2, 16]  # whole numbers, as pixels are
JSON = "application/json"
PARQUET = "application/vnd.apache.parquet"


@dataclass(frozen=True)
class Client:
    """Asks a server on this machine."""

    port: int

    def ask(self, body: Any, content_type: str | None = JSON) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", "/invocations", data, {} if content_type is None else {"Content-Type": content_type})

    def send(self, verb: str, path: str, body: bytes | None = None, headers: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(verb, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read().strip() or b"null")
        finally:
            connection.close()


@contextlib.contextmanager
def listening(app: Any) -> Iterator[Client]:
    """Run a server in a thread, on a port that is free."""
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            client = Client(int(listener.getsockname()[1]))
            wait_until_ready(client, lambda: None if thread.is_alive() else "the server ended")
            yield client
        finally:
            server.should_exit = True
            thread.join(timeout=60)


def wait_until_ready(client: Client, reason_to_stop: Callable[[], str | None], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reason = reason_to_stop()
        assert reason is None, reason
        with contextlib.suppress(OSError):
            client.send("GET", "/ping")
            return
        time.sleep(0.05)
    pytest.fail(f"no answer on port {client.port} within {seconds} s")


def loaded(name: str) -> Any:
    import mlflow.pyfunc

    with opened_version(Path(), argparse.Namespace(model=name, kind="", version="")) as version:
        return mlflow.pyfunc.load_model(str(version.folder))


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Client]]:
    with contextlib.ExitStack() as stack:
        yield Servers(stack)


class Servers(dict[str, Client]):
    """Servers by name, started when they are first asked for."""

    def __init__(self, stack: contextlib.ExitStack):
        self._stack = stack

    def __missing__(self, name: str) -> Client:
        self[name] = self._stack.enter_context(listening(application(loaded(name))))
        return self[name]


@pytest.fixture
def server(registry: Project, servers: dict[str, Client]) -> Client:
    """A server of the personal model."""
    return servers["digits-personal"]


def records(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"dataframe_records": list(rows)}


def test_rows_are_routed_by_client(server: Client, registry: Project) -> None:
    clients = [7, 99, 3]
    status, answer = server.ask(
        {"dataframe_split": {"columns": ["client_id", "features"], "data": [[c, X] for c in clients]}}
        | {"params": {"logits": True}},
    )
    assert status == 200
    found = answer["predictions"]
    expected = logits_by_hand(registry, list(clients), np.array([X] * 3))
    assert np.allclose([row["logits"] for row in found], expected, atol=1e-5)
    assert [row["known_client"] for row in found] == [True, False, True]
    assert [row["label"] for row in found] == expected.argmax(axis=1).tolist()
    assert [row["class_name"] for row in found] == [str(label) for label in expected.argmax(axis=1)]
    nested = [[0.0, 1.0], [2.0, 16.0]]
    for features in (X, nested):
        status, answer = server.ask(records({"client_id": 3.0, "features": features}))
        assert (status, answer["predictions"][0]["probabilities"]) == (200, found[2]["probabilities"])
        assert "logits" not in answer["predictions"][0]
    assert server.send("GET", "/ping") == (200, None)


def test_the_global_model_needs_no_client(registry: Project, servers: dict[str, Client]) -> None:
    status, answer = servers["digits-global"].ask(records({"features": X}) | {"params": {"logits": True}})
    assert status == 200
    (row,) = answer["predictions"]
    assert np.allclose(row["logits"], logits_by_hand(registry, [None], np.array([X]))[0], atol=1e-5)
    assert "known_client" not in row


def test_parquet_is_taken(server: Client, tmp_path: Path) -> None:
    pd.DataFrame({"client_id": [3], "features": [X]}).to_parquet(tmp_path / "rows.parquet")
    status, answer = server.ask((tmp_path / "rows.parquet").read_bytes(), PARQUET)
    assert (status, len(answer["predictions"])) == (200, 1)


WRONG: dict[str, tuple[Any, str]] = {
    "no client": (records({"features": X}), "Model is missing inputs ['client_id']."),
    "no features": (records({"client_id": 3}), "Model is missing inputs ['features']."),
    "few features": (records({"client_id": 3, "features": X[:3]}), "row 0: 3 features, expected 4 (1 x 2 x 2)"),
    "null feature": (
        records({"client_id": 3, "features": X}, {"client_id": 3, "features": [None, *X[1:]]}),
        "row 1: feature 0 is nan, expected a finite number",
    ),
    "NaN": (
        b'{"dataframe_records": [{"client_id": 3, "features": [0, 1, NaN, 3]}]}',
        "row 0: feature 2 is nan, expected a finite number",
    ),
    "huge": (
        records({"client_id": 3, "features": [*X[:3], 1e300]}),
        "row 0: feature 3 is 1e+300, expected a finite number",
    ),
    "an integer beyond floating point": (
        records({"client_id": 3, "features": [*X[:3], 10**400]}),
        "row 0: a feature is an integer beyond floating point, expected finite numbers",
    ),
    "one number": (records({"client_id": 3, "features": 3}), "row 0: features are no list of numbers"),
    "null": (records({"client_id": 3, "features": None}), "row 0: features are no list of numbers"),
    "a text": (records({"client_id": 3, "features": "abc"}), "row 0: features are no list of numbers"),
    "texts": (records({"client_id": 3, "features": ["1"] * 4}), "row 0: features are no list of numbers"),
    "a text among numbers": (
        records({"client_id": 3, "features": [*X[:3], "1,5"]}),
        "row 0: features are no list of numbers",
    ),
    "a ragged list": (
        records({"client_id": 3, "features": [[0, 1], [2]]}),
        "row 0: features are no list of numbers",
    ),
    "fraction": (records({"client_id": 3.5, "features": X}), "row 0: client_id is 3.5, expected a whole number"),
    "truth": (records({"client_id": True, "features": X}), "row 0: client_id is True, expected a whole number"),
    "name": (records({"client_id": "ann", "features": X}), "row 0: client_id is 'ann', expected a whole number"),
    "no number": (records({"client_id": None, "features": X}), "row 0: client_id is None, expected a whole number"),
    "beyond 64 bits": (
        records({"client_id": 2**63, "features": X}),
        f"row 0: client_id is {2**63}, expected a whole number",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_value_is_named(server: Client, case: str) -> None:
    body, message = WRONG[case]
    assert server.ask(body) == (400, {"error": message})


BROKEN: dict[str, Any] = {
    "no JSON": b"{",
    "nothing": b"",
    "no UTF-8": b"\xff\xfe",
    "a list": [1],
    "a number": 3,
    "null": None,
    "no table": {"rows": []},
    "two tables": {"inputs": {}, "instances": []},
    "no rows": records(),
    "records of numbers": {"dataframe_records": [1, 2]},
    "a dictionary of records": {"dataframe_records": {"a": 1}},
    "null records": {"dataframe_records": None},
    "no data": {"dataframe_split": {"columns": ["a"]}},
    "null data": {"dataframe_split": {"columns": None, "data": None}},
    "ragged data": {"dataframe_split": {"columns": ["client_id"], "data": [[3, X]]}},
    "a column twice": {"dataframe_split": {"columns": ["client_id", "client_id", "features"], "data": [[3, 3, X]]}},
    "a list of inputs": {"inputs": [1, 2]},
    "null inputs": {"inputs": None},
    "a list of instances": {"instances": [[1]]},
    "a list as client": records({"client_id": [3], "features": X}),
    "a dictionary as client": records({"client_id": {"a": 3}, "features": X}),
    "a list of parameters": records({"client_id": 3, "features": X}) | {"params": [1]},
    "a parameter of another kind": records({"client_id": 3, "features": X}) | {"params": {"logits": "perhaps"}},
    "a chat": {"messages": [{"role": "user", "content": "x"}]},
}


@pytest.mark.parametrize("case", BROKEN)
def test_whatever_is_sent_the_answer_is_a_reason_in_one_line(server: Client, case: str) -> None:
    status, answer = server.ask(BROKEN[case])
    assert (status, list(answer)) == (400, ["error"])
    assert 10 < len(answer["error"]) < 400
    assert "\n" not in answer["error"]
    assert "Traceback" not in answer["error"]


UNREADABLE = {
    "nested": (b"[" * 3000 + b"]" * 3000, "the JSON is nested too deeply"),
    "nested further": (b'{"a":' * 100_000, "the JSON is nested too deeply"),
    "many digits": (
        b'{"dataframe_records": [{"client_id": ' + b"9" * 6000 + b"}]}",
        "Exceeds the limit (4300 digits) for integer string conversion: value has 6000 digits",
    ),
    "a list as column name": (
        json.dumps({"dataframe_split": {"columns": [["client_id"], "features"], "data": [[3, X]]}}).encode(),
        'column name ["client_id"] is no text',
    ),
    "a dictionary as column name": (
        json.dumps({"dataframe_split": {"columns": ["client_id", {}], "data": [[3, X]]}}).encode(),
        "column name {} is no text",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_json_that_mlflow_fails_on_is_the_senders_mistake(server: Client, case: str) -> None:
    body, message = UNREADABLE[case]
    assert server.ask(body) == (400, {"error": message})


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[1]",
        b"PAR1",
        b"\xff",
        b'{"dataframe_split": [1]}',
        b'{"dataframe_split": {"columns": 3}}',
        b'{"dataframe_split": {}}',
    ],
)
def test_a_failure_that_is_not_the_senders_stays_one(body: bytes) -> None:
    assert mistake(RuntimeError("out of threads"), body) is None


@pytest.mark.parametrize("content_type", [None, "text/csv", "application/x-www-form-urlencoded", ""])
def test_other_content_types_are_refused(server: Client, content_type: str | None) -> None:
    status, answer = server.ask(records({"client_id": 3, "features": X}), content_type)
    assert status == 415
    assert answer["error"] == (
        f"content type '{content_type or ''}', expected application/json or application/vnd.apache.parquet"
    )


def test_a_damaged_parquet_file(server: Client) -> None:
    status, answer = server.ask(b"PAR1", PARQUET)
    assert (status, "\n" in answer["error"]) == (400, False)


def test_other_addresses_and_verbs(server: Client) -> None:
    assert server.send("GET", "/invocations") == (405, {"error": "Method Not Allowed"})
    assert server.send("GET", "/nowhere") == (404, {"error": "Not Found"})


def test_mlflows_own_server_answers_400_too(registry: Project) -> None:
    """What `mlflow models serve` runs, without anything of ours around it."""
    from mlflow.pyfunc.scoring_server import init

    with listening(init(loaded("digits-personal"))) as client:
        for case, (body, message) in WRONG.items():
            status, answer = client.ask(body)
            assert status == 400, case
            assert message in answer["message"], case
        assert [client.ask(body)[0] for body in BROKEN.values()] == [400] * len(BROKEN)


def test_the_reason_is_cut_out_of_what_mlflow_says() -> None:
    said = "Failed to predict data '  a\n0  1'. \nError: Failed to enforce schema '  a\n0'. Error: Model lacks ['b']."
    assert one_line(json.dumps({"message": said}).encode()) == "Model lacks ['b']."
    said = "Invalid input. No JSON. Error: 'x'\nInput: \nb'{'\n"
    assert one_line(json.dumps({"message": said}).encode()) == "Invalid input. No JSON. Error: 'x'"
    assert one_line(b"Internal Server Error") == "Internal Server Error"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("port", ["99999", "0", "-1"])
def test_a_port_that_does_not_exist(project: Project, command_line: CommandLine, port: str) -> None:
    found = command_line(serve_model)("--model", "digits-personal", "--port", port)
    assert found == (1, [], [f"error: port {port} does not exist; expected 1 to 65535: PORT=5002"])


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_bothservers_as_processes(registry: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make serve-model` and `mlflow models serve`, which find the model by its alias."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    ports = free_port(), free_port()
    ours = [sys.executable, "-m", "tasks.serve_model", "--model", "digits-personal", "--port", str(ports[0])]
    theirs = ["mlflow", "models", "serve", "-m", "models:/digits-personal@champion", "--env-manager", "local"]
    with running(*ours) as own, running(*theirs, "-h", "127.0.0.1", "-p", str(ports[1])) as plain:
        expected = logits_by_hand(registry, [7, None], np.array([X] * 2))
        for process, client in zip((own, plain), map(Client, ports), strict=True):
            wait_until_ready(client, lambda p=process: None if p.poll() is None else p.communicate()[0])  # type: ignore[misc]
            rows = records({"client_id": 7, "features": X}, {"client_id": 8, "features": X})
            status, answer = client.ask(rows | {"params": {"logits": True}})
            assert status == 200
            assert np.allclose([row["logits"] for row in answer["predictions"]], expected, atol=1e-5)
            status, answer = client.ask(records({"client_id": 7, "features": X[:2]}))
            assert status == 400
            assert "row 0: 2 features, expected 4 (1 x 2 x 2)" in (answer.get("error"), answer.get("message"))
        taken = subprocess.run(ours, capture_output=True, text=True, check=False)
        assert taken.returncode == 1
        assert taken.stderr.splitlines()[-1].startswith(f"error: port {ports[0]} of 127.0.0.1 is not free")
