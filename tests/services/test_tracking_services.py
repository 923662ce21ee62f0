"""Tracking and registry on PostgreSQL and an S3-compatible store, and the DVC remote on the same store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks.tracking_store import artifact_location, open_client, prepare_database
from tests.services.conftest import BUCKET, ESCAPED, PASSWORD, SECRET_KEY, Postgresql, Store
from tests.tracking.conftest import OFFSET, SCALE, Project

pytestmark = pytest.mark.services

ROOT = Path(__file__).parent.parent.parent
PREDICT = """
import json, sys
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model("models:/digits-personal@champion")
inputs = json.loads(sys.argv[1])
table = pd.DataFrame({"client_id": [3] * len(inputs), "features": [[float(x) for x in row] for row in inputs]})
answer = model.predict(table)
print(json.dumps(answer.to_dict("list"), default=lambda value: value.tolist()))
"""


@pytest.fixture
def services(postgresql: Postgresql, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Set the environment as docs/operations.md says; the current folder is an empty project."""
    settings = {
        "MLFLOW_TRACKING_URI": postgresql.url("psycopg2"),
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": f"s3://{BUCKET}/mlflow",
        **store.environment,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_REGISTRY_URI", "DVC_STAGE", "FEDCORE_FLOW_RUN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return settings


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_models_are_registered_and_loaded(services: dict[str, str], postgresql: Postgresql, store: Store) -> None:
    project = Project(Path.cwd())
    project.add("local", 0, val=(0.5, 0.75, 0.625))
    project.add("fedavg", 0, val=(0.25, 0.5, 0.375))
    arguments = ["--comparison", str(project.write_comparison()), "--runs", "runs", "--dataset", str(project.dataset)]
    done = python("-m", "tasks.register", *arguments, "--out", "registered.json", cwd=project.root)
    assert done.returncode == 0, done.stderr
    versions = postgresql.query("select name, version from model_versions order by name")
    assert versions == [("digits-global", 1), ("digits-personal", 1)]
    assert [name for name in store.names() if name.startswith("mlflow/") and name.endswith("MLmodel")]
    assert not (project.root / "mlruns" / "mlflow.db").exists()

    example = np.arange(4) % 17
    done = python("-c", PREDICT, json.dumps([example.tolist()]), cwd=project.root)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    weights = load_file(project.root / "runs" / "local-0" / "personal.safetensors")
    row = weights["clients"].tolist().index(3)
    logits = weights["own/head.weight"][row] @ ((example - OFFSET) * SCALE) + weights["own/head.bias"][row]
    np.testing.assert_allclose(answer["probabilities"][0], np.exp(logits) / np.exp(logits).sum(), atol=1e-5)


def test_the_schema_is_built_and_kept(services: dict[str, str], postgresql: Postgresql) -> None:
    postgresql.query("create database fresh")
    os.environ["MLFLOW_TRACKING_URI"] = postgresql.url("psycopg2", "fresh")
    prepare_database(Path.cwd())
    first = postgresql.query("select version_num from alembic_version", "fresh")
    prepare_database(Path.cwd())
    assert postgresql.query("select version_num from alembic_version", "fresh") == first
    assert len(first) == 1


def test_an_older_schema_is_upgraded(services: dict[str, str], postgresql: Postgresql) -> None:
    postgresql.query("create database older")
    url = postgresql.url("psycopg2", "older")
    os.environ["MLFLOW_TRACKING_URI"] = url
    prepare_database(Path.cwd())
    newest = postgresql.query("select version_num from alembic_version", "older")
    code = (
        "import sys; from alembic import command; from mlflow.store.db.utils import _get_alembic_config;"
        "config = _get_alembic_config(sys.argv[1]); command.downgrade(config, '-1')"
    )
    done = python("-c", code, url, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr[-2000:]
    assert postgresql.query("select version_num from alembic_version", "older") != newest
    prepare_database(Path.cwd())
    assert postgresql.query("select version_num from alembic_version", "older") == newest


@pytest.mark.parametrize(("wrong", "reason"), [("password", "password authentication failed"), ("port", "refused")])
def test_a_server_that_refuses_is_one_line_without_the_password(
    services: dict[str, str], postgresql: Postgresql, wrong: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = services["MLFLOW_TRACKING_URI"].replace(f":{postgresql.port}/", ":1/")
    url = postgresql.url("psycopg2", password="a-wrong-secret") if wrong == "password" else refused
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    with pytest.raises(ValueError, match=reason) as caught:
        prepare_database(Path.cwd())
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert "MLFLOW_TRACKING_URI" in message
    for secret in (PASSWORD, ESCAPED, "a-wrong-secret"):
        assert secret not in message


def test_an_experiment_keeps_its_files_in_the_store(services: dict[str, str]) -> None:
    from tasks.tracking_store import ensure_experiment

    client: Any = open_client(Path.cwd())
    identifier = ensure_experiment(client, "elsewhere", Path.cwd())
    assert artifact_location(Path.cwd()) == f"s3://{BUCKET}/mlflow"
    assert client.get_experiment(identifier).artifact_location.startswith(f"s3://{BUCKET}/mlflow")
    assert ensure_experiment(client, "elsewhere", Path.cwd()) == identifier


def test_dvc_pushes_and_pulls(services: dict[str, str], store: Store) -> None:
    root = Path.cwd()

    def dvc(*arguments: str) -> str:
        done = python("-m", "dvc", *arguments, cwd=root)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    (root / "data").mkdir()
    (root / "data" / "values.csv").write_text("client,value\n0,1\n")
    dvc("init", "--no-scm", "-q")
    dvc("add", "-q", "data")
    dvc("remote", "add", "-q", "-d", "store", f"s3://{BUCKET}/dvc")
    dvc("remote", "modify", "store", "endpointurl", store.address)
    dvc("push")
    assert [name for name in store.names() if name.startswith("dvc/files/md5/")]
    for folder in (root / ".dvc" / "cache", root / "data"):
        subprocess.run(["rm", "-r", str(folder)], check=True)
    dvc("pull")
    assert (root / "data" / "values.csv").read_text() == "client,value\n0,1\n"
    assert SECRET_KEY not in (root / ".dvc" / "config").read_text()
