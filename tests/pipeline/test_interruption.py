"""The whole pipeline under DVC: killed at random moments it ends with the bytes of a run nobody touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.seeds import stream
from tests.pipeline.conftest import Project, copy_project

KILLS = 10
COMPARED = (
    "metrics.json",
    "history.csv",
    "model.safetensors",
    "personal.safetensors",
    "clients.parquet",
    "config.json",
)


def _dvc(project: Project, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "DVC_SITE_CACHE_DIR": str(project.folder / ".cache"),
        "MLFLOW_TRACKING_URI": "",
        "DO_NOT_TRACK": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=project.folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _finish(project: Project, *arguments: str) -> str:
    process = _dvc(project, *arguments)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def _project(folder: Path) -> Project:
    folder.mkdir()
    project = copy_project(folder)
    project.parameters["model"] = {"name": "cnn", "channels": [8, 16], "hidden": 32}
    project.parameters["train"] = {"rounds": 60, "batch_size": 10, "lr": 0.05, "checkpoint_every": 3, "workers": 2}
    project.parameters["methods"] = {"fedavg": {}, "ours": {"method": "scaffold", "add": {"dbe": {"kappa": 1.0}}}}
    project.write()
    return project


def _assert_same_bytes(reference: Project, project: Project) -> None:
    for run in ("fedavg-0", "ours-0"):
        for name in COMPARED:
            one, other = (p.folder / "runs" / run / name for p in (reference, project))
            assert one.read_bytes() == other.read_bytes(), f"{run}/{name}"


@pytest.mark.slow
def test_kill_nine_at_random_moments_changes_no_byte(tmp_path: Path) -> None:
    reference = _project(tmp_path / "reference")
    _finish(reference, "repro", "train")
    project = _project(tmp_path / "killed")
    random = stream(0, "kills")
    killed = starts = 0
    while killed < KILLS:
        starts += 1
        assert starts <= 4 * KILLS, "the runs end before they can be killed; give them more rounds"
        process = _dvc(project, "repro", "train")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=float(random.uniform(1.0, 14.0)))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            killed += 1
        else:
            _assert_same_bytes(reference, project)
            project = _project(tmp_path / f"killed-{starts}")  # it ended unkilled: go on with an untouched one
    _finish(project, "repro", "train")
    _assert_same_bytes(reference, project)


@pytest.mark.slow
def test_a_second_run_does_nothing_and_a_change_reruns_one_method(tmp_path: Path) -> None:
    project = _project(tmp_path / "project")
    project.parameters["train"]["rounds"] = 3
    project.write()
    _finish(project, "repro")
    assert "up to date" in _finish(project, "status")
    assert "Running stage" not in _finish(project, "repro")
    project.edit("methods.ours", {"method": "scaffold", "add": {"dbe": {"kappa": 2.0}}})
    ran = {line.split("'")[1] for line in _finish(project, "repro").splitlines() if line.startswith("Running stage")}
    assert ran == {"check", "plan", "train@ours-0", "compare", "report", "register"}


@pytest.mark.slow
@pytest.mark.parametrize(("section", "key"), [("gate", "confidense"), ("incoming", "folders"), ("notify", "webhok")])
def test_a_mistake_in_a_section_that_no_stage_reads_is_seen(tmp_path: Path, section: str, key: str) -> None:
    project = copy_project(tmp_path)
    _finish(project, "repro", "check")
    assert "Running stage" not in _finish(project, "repro", "check")
    project.edit(section, {key: "x"})
    process = _dvc(project, "repro", "check")
    output, _ = process.communicate()
    assert process.returncode != 0
    assert f"{section}.{key}: unknown key '{key}'" in output
