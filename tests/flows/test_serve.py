"""`make serve`: one at a time, on this machine only, with errors a person can act on."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows import serve as module
from flows.recovery import MARK, ServeError
from flows.server import address, is_healthy
from flows.services import Service

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("url", ["http://127.0.0.1:4200/api", "http://localhost:8080/api"])
def test_loopback_addresses(url: str) -> None:
    host, port = address(url)
    assert f"http://{host}:{port}/api" == url


@pytest.mark.parametrize("url", ["http://0.0.0.0:4200/api", "https://example.com/api", "http://127.0.0.1/api", "4200"])
def test_an_address_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"PREFECT_API_URL is .* this machine only"):
        address(url)


@pytest.fixture
def answering() -> Iterator[int]:
    """A web server that answers `true`, as a healthy Prefect server does; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/health" else 404)
            self.end_headers()
            self.wfile.write(b"true")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_health(answering: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # this machine is never asked for through a proxy
    assert is_healthy(f"http://127.0.0.1:{answering}/api")
    assert not is_healthy(f"http://127.0.0.1:{answering}/elsewhere")
    assert not is_healthy(f"http://127.0.0.1:{free_port()}/api")


def test_a_taken_port_is_named(answering: int) -> None:
    taken = rf"port {answering} is taken by .*\(process {os.getpid()}\); end it, or .*PREFECT_API_URL=http"
    with pytest.raises(ServeError, match=taken):
        module.require_free_port("127.0.0.1", answering)
    module.require_free_port("127.0.0.1", free_port())


def test_only_one_serves(tmp_path: Path) -> None:
    path = tmp_path / "serve.pid"
    with module.only_one(path):
        assert path.read_text() == f"{os.getpid()}\n"
        with (
            pytest.raises(ServeError, match=rf"already running \(process {os.getpid()}\)"),
            module.only_one(path),
        ):
            pass
    with module.only_one(path):
        pass


def test_a_pid_file_left_by_a_crash_does_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ".prefect" / "serve.pid"
    path.parent.mkdir()
    path.write_text("1\n")  # process 1 must not be signalled
    module.stop(tmp_path)
    assert capsys.readouterr().out == "not running\n"
    with module.only_one(path):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_pid_file_without_a_number_signals_nobody(tmp_path: Path) -> None:
    path = tmp_path / ".prefect" / "serve.pid"
    path.parent.mkdir()
    with module.only_one(path):
        path.write_text("half")
        with pytest.raises(ServeError, match=r"serve\.pid says 'half'"):
            module.stop(tmp_path)


def test_stop_kills_what_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 1.0)
    with holding_process(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        module.stop(tmp_path)
        assert process.wait(20) == -9
    out = capsys.readouterr().out
    assert out == f"recovered: process {process.pid} did not end within 1 s: killed\nstopped\n"


def test_stop_ends_the_serving_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holding_process(tmp_path, "") as process:
        module.stop(tmp_path)
        assert process.wait(20) != 0
    assert capsys.readouterr().out == "stopped\n"


@contextlib.contextmanager
def holding_process(tmp_path: Path, first: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock as `make serve` does."""
    (tmp_path / ".prefect").mkdir()
    code = f"""
import signal, time
from pathlib import Path
from flows.serve import only_one
{first}
with only_one(Path({str(tmp_path / ".prefect" / "serve.pid")!r})):
    print("ready", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def service(tmp_path: Path, code: str, name: str = "server") -> Service:
    command = [sys.executable, "-c", code]
    return Service(name, command, dict(os.environ), tmp_path / f"{name}.log", grace=2)


def test_a_server_that_dies_while_starting_is_reported(tmp_path: Path) -> None:
    server = service(tmp_path, "print('no answer')")
    server.start()
    with pytest.raises(ServeError, match="ended while starting: no answer"):
        module.wait_until_healthy(f"http://127.0.0.1:{free_port()}/api", server)
    server.stop()


def test_a_database_the_server_cannot_use_is_set_aside_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "prefect.db"
    database.touch()
    server = service(tmp_path, "print('(sqlite3.OperationalError) table flow already exists')")
    with pytest.raises(ServeError, match="table flow already exists"):
        module.start_server(server, f"http://127.0.0.1:{free_port()}/api", database)
    server.stop()
    assert not database.exists()
    assert [path.name.split("-")[0] for path in tmp_path.glob("prefect.db*")] == ["prefect.db.broken"]
    assert capsys.readouterr().out.startswith("recovered: prefect.db was unusable ((sqlite3.OperationalError) table")


def test_another_trouble_of_the_server_leaves_its_database(tmp_path: Path) -> None:
    database = tmp_path / "prefect.db"
    database.touch()
    server = service(tmp_path, "print('no module named uvicorn')")
    with pytest.raises(ServeError, match="no module named uvicorn"):
        module.start_server(server, f"http://127.0.0.1:{free_port()}/api", database)
    server.stop()
    assert database.exists()


def test_a_command_that_does_not_end_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEALTHY_SECONDS", 0.01)
    with (tmp_path / "deploy.log").open("w") as log:
        assert not module.command_succeeds(["version"], tmp_path, dict(os.environ), log)
    assert (tmp_path / "deploy.log").read_text().endswith("it did not end within 0 s\n")


def test_services_keep_their_state_in_the_project(tmp_path: Path) -> None:
    environment = module.service_environment(tmp_path, "http://127.0.0.1:1/api")
    assert environment["PREFECT_HOME"] == str(tmp_path / ".prefect")
    assert environment["FEDCORE_ROOT"] == environment[MARK] == str(tmp_path)
    assert environment["PATH"].startswith(str(Path(sys.executable).parent))


def test_prefect_yaml_names_what_serve_uses_and_no_machine() -> None:
    text = (ROOT / "prefect.yaml").read_text(encoding="utf-8")
    deployments = YAML(typ="safe").load(text)["deployments"]
    file, function = deployments[0]["entrypoint"].split(":")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.M)
    assert f"{function}/{deployments[0]['name']}" == module.DEPLOYMENT
    assert {deployment["work_pool"]["name"] for deployment in deployments} == {module.POOL}
    assert not re.search(r"[\"' ]/(home|Users|tmp|root|opt|work)\b", text)
