"""Trainings as tasks of a Ray cluster of two processes: side by side, in the project's folder, failures kept apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flows import experiment as module

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's and Prefect's own, in their processes

# Stands for DVC: notes which target it was asked for, in which process's child, and fails one of them.
_DVC = """
import os, pathlib, sys
target = sys.argv[-1]
pathlib.Path("asked").mkdir(exist_ok=True)
pathlib.Path("asked", target).write_text(str(os.getppid()))
if target == "train@local-1":
    print("ERROR: no luck")
    sys.exit(3)
"""


def test_trainings_run_on_the_cluster_and_one_failure_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray
    from prefect.testing.utilities import prefect_test_harness

    from fedcore.engine import ray_pool

    (tmp_path / "dvc").mkdir()
    (tmp_path / "dvc" / "__init__.py").touch()
    (tmp_path / "dvc" / "__main__.py").write_text(_DVC)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert ray_pool.connect(None, 2)
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module.train, "retries", 0)
        runs = [(label, seed) for label in ("fedavg", "local") for seed in (0, 1)]
        with prefect_test_harness(server_startup_timeout=120):
            states = module.train_on_ray(ray.get_runtime_context().gcs_address, runs, on_gpu=False)
    finally:
        ray.shutdown()
    messages = {name: state.message for name, state in states.items()}
    assert {name: state.is_completed() for name, state in states.items()} == {
        "fedavg-0": True,
        "fedavg-1": True,
        "local-0": True,
        "local-1": False,
    }, messages
    assert "no luck" in str(states["local-1"].message)
    asked = {path.name: int(path.read_text()) for path in (tmp_path / "asked").iterdir()}
    assert sorted(asked) == [f"train@{label}-{seed}" for label, seed in runs]
    assert os.getpid() not in asked.values()


def test_without_prefect_ray_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(module.StageError, match=r"^ray_address needs .* `pip install fedcore\[ray\]`$"):
        module.train_on_ray("127.0.0.1:1", [], on_gpu=False)
