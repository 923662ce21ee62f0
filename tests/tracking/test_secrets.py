"""What is in the environment stays there: no file, tag, parameter or message of the pipeline has a secret."""

from __future__ import annotations

import pytest

from tasks.register import register
from tests.tracking.conftest import Project

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-store",
    "MLFLOW_TRACKING_PASSWORD": "s3cret-of-tracking",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL": "postgresql+asyncpg://me:s3cret-of-prefect@127.0.0.1/prefect",
    "FEDCORE_WEBHOOK": "https://example.com/s3cret-of-the-webhook",
}


def test_nothing_written_has_a_secret(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    project.add("fedavg", 0)
    project.add("local", 0)
    register(project.root, project.root / "runs", project.comparison(), project.dataset)
    files = [path for path in project.root.rglob("*") if path.is_file()]
    assert [path for path in files if path.name == "mlflow.db"]
    assert [path for path in files if path.name == "MLmodel"]
    assert [path for path in files if b"s3cret" in path.read_bytes()] == []
    output = capfd.readouterr()
    assert "s3cret" not in output.out + output.err
