"""Trainings on a GPU beside the same on the host: `make test-gpu`, on a machine that has one."""

import os

import pytest
import torch

from fedcore.engine.checkpoint import Checkpoint
from fedcore.engine.export import model_bytes, personal_bytes
from fedcore.engine.lane_group import Group
from fedcore.trees import flatten
from tests import toys
from tests.engine.test_resume import assert_resumes
from tests.methods.cases import CASES

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda", 0)
EVERY = pytest.mark.parametrize("name", CASES)
EXECUTORS = pytest.mark.parametrize("executor", ["stacked", "serial"])
CNN = {"name": "cnn", "channels": [4, 6], "hidden": 16}


@pytest.fixture(autouse=True)
def _as_in_a_training():
    """Deterministic operators alone, as `tasks.train` has them."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def _work(name="fedavg", device=GPU, **settings):
    case = CASES[name]
    composed = toys.composition(case.method, case.add, **case.settings)
    return toys.training(composed, device=device, **{"participation": 0.6, "executor": "stacked", **settings})


def _images(device=GPU, **settings):
    fed, net = toys.federation(image=True), toys.net(CNN, image=True)
    return toys.training(None, fed, net, device=device, **{"executor": "stacked", **settings})


def _assert_close(one, other, tolerance):
    mine, others = ({n: p.cpu() for n, p in work.progress.server.params.items()} for work in (one, other))
    assert toys.distance(mine, others) < tolerance
    assert one.progress.store.clients == other.progress.store.clients
    for client in one.progress.store.clients:
        mine, others = (
            {n: t.cpu() for n, t in flatten(work.progress.store.get(client)).items()} for work in (one, other)
        )
        assert toys.distance(mine, others) < tolerance


@EXECUTORS
@EVERY
def test_it_agrees_with_the_host(name, executor):
    works = [_work(name, device, executor=executor, dtype=torch.float64) for device in (GPU, toys.CPU)]
    for work in works:
        work.run()
    _assert_close(*works, 1e-8)
    rows = [work.progress.history[-1] for work in works]
    assert rows[0] == pytest.approx(rows[1], abs=1e-8)


@EXECUTORS
@EVERY
def test_the_same_run_gives_the_same_bytes(name, executor):
    one, other = _work(name, executor=executor), _work(name, executor=executor)
    one.run(), other.run()
    assert model_bytes(one) == model_bytes(other)
    assert personal_bytes(one) == personal_bytes(other)
    assert one.progress.history == other.progress.history


@EVERY
def test_steps_do_not_wait_for_the_device(name, monkeypatch):
    steps = Group._steps

    def watched(*arguments):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return steps(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Group, "_steps", watched)
    _work(name).run()


@EVERY
def test_recorded_steps_agree(name):
    plain, recorded = (_work(name, dtype=torch.float64, compile=compile) for compile in ("never", "always"))
    plain.run(), recorded.run()
    assert recorded.executor.remarks == []
    _assert_close(plain, recorded, 1e-8)


@pytest.mark.parametrize("changes", [{"convolutions": "products"}, {"compile": "always"}, {"block_size": 2}], ids=str)
def test_convolutions_agree_with_the_host(changes):
    works = [_images(dtype=torch.float64, **changes), _images(toys.CPU, dtype=torch.float64)]
    for work in works:
        work.run()
    _assert_close(*works, 1e-8)


@pytest.mark.parametrize(
    ("precision", "at_least", "at_most"), [("float32", 0.0, 1e-5), ("tf32", 1e-6, 1e-2), ("bfloat16", 1e-5, 1e-1)]
)
def test_precision_is_as_asked(precision, at_least, at_most):
    """Beside a training in double precision; single precision would be TF32 by PyTorch's default."""
    exact, found = _images(toys.CPU, dtype=torch.float64), _images(precision=precision)
    exact.run(), found.run()
    far = toys.distance(
        {n: p.cpu().double() for n, p in found.progress.server.params.items()}, dict(exact.progress.server.params)
    )
    assert at_least <= far < at_most


def test_a_run_resumes_exactly(tmp_path):
    settings = {"rounds": 7, "checkpoint_every": 2, "momentum": 0.5, "momentum_state": "kept"}
    assert_resumes(lambda: _work("scaffold", **settings), Checkpoint(tmp_path / "run.safetensors", "key"))


def test_a_client_too_many_halves_the_lanes(monkeypatch):
    """The memory of this process is made so small that eight clients of a wide model do not fit, and one does."""
    fed = toys.federation((16,) * 8)
    wide = {"name": "mlp", "hidden": [4096, 4096]}  # 67 MB of parameters

    def work():
        return toys.training(None, fed, toys.net(wide), device=GPU, executor="stacked", rounds=1)

    whole = work()
    whole.run()
    torch.cuda.empty_cache()
    scarce = work()
    scarce.executor._is_estimated = True  # what the estimate would have avoided
    total = torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated(GPU) + 2**31) / total, GPU)
    try:
        scarce.run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert "trained at a time" in scarce.executor.remarks[0]
    _assert_close(whole, scarce, 1e-5)
