"""The same hooks under different executors, blocks, workers and client orders."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.engine.gradients import by_autograd
from fedcore.engine.local import Examples
from fedcore.trees import flatten
from tests import toys

MODELS = {
    "softmax_regression": ({"name": "softmax_regression"}, False, {}),
    "mlp": ({"name": "mlp", "hidden": [16, 6]}, False, {}),
    "cnn": ({"name": "cnn", "channels": [4, 6], "hidden": 16}, True, {}),
    "cnn-group": ({"name": "cnn", "channels": [8, 8], "hidden": 16, "norm": "group"}, True, {}),
    "cnn-batch": ({"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": "batch"}, True, {"last_batch": "wrap"}),
}


def _train(model, **train):
    section, image, extra = MODELS[model]
    fed = toys.federation(image=image)
    return toys.training(None, fed, toys.net(section, image=image), **extra, **train)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_serial_and_stacked_agree_after_a_round(model, dtype, tolerance):
    one = _train(model, rounds=1, dtype=dtype, participation=0.6, momentum=0.5, weight_decay=0.01).run()
    other = _train(
        model, rounds=1, dtype=dtype, participation=0.6, momentum=0.5, weight_decay=0.01, executor="stacked"
    ).run()
    assert toys.distance(one.server.params, other.server.params) < tolerance
    assert one.server.params.keys()
    assert all(v.dtype == dtype for v in other.server.params.values())
    if one.server.buffers:
        assert toys.distance(one.server.buffers, other.server.buffers) < tolerance
    assert one.history[0]["train/loss"] == pytest.approx(other.history[0]["train/loss"], abs=1e-5)


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_block_size_changes_last_digits_only(block_size):
    one = toys.run(executor="stacked", dtype=torch.float64, rounds=1)
    other = toys.run(executor="stacked", dtype=torch.float64, rounds=1, block_size=block_size)
    assert toys.distance(one.server.params, other.server.params) < 1e-10


@pytest.mark.parametrize("lanes", [2, 3])
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_a_lane_forgets_its_last_client(method, lanes):
    """Kept momentum, rates of their own, and two phases, of clients that follow others on their lanes."""
    settings = {
        "rounds": 4,
        "participation": 0.8,
        "momentum": 0.9,
        "momentum_state": "kept",
        "lr_decay": 0.7,
        "lr_decay_by": "participation",
        "dtype": torch.float64,
    }
    composed = toys.composition(method)
    one = toys.run(composed, **settings)
    other = toys.run(composed, executor="stacked", block_size=lanes, **settings)
    assert toys.distance(one.server.params, other.server.params) < 1e-10
    for client in one.store.clients:
        assert toys.distance(flatten(one.store.get(client)), flatten(other.store.get(client))) < 1e-10
    losses = [[row["train/loss"] for row in progress.history] for progress in (one, other)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_workers_change_nothing():
    one = _train("cnn", rounds=2).run()
    other = _train("cnn", rounds=2, workers=2).run()
    assert toys.equal(one.server.params, other.server.params)
    assert one.history == other.history


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_client_does_not_depend_on_the_others_or_their_order(executor):
    """Client 3 trained alone, and among others in another order, ends with the same model (last digits apart)."""
    work = toys.training(executor=executor, dtype=torch.float64)
    phases = work.composition.phases(work.train)
    alone = next(iter(work._local([3], 0, phases, "batches")))
    among = {o.client: o for o in work._local([4, 3, 0], 0, phases, "batches")}
    assert toys.distance(alone.params, among[3].params) < 1e-12
    assert alone.steps == among[3].steps == 4


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_padding_and_idle_steps_leave_no_trace(executor):
    """FedAvg written as plain loops with torch.optim: short batches are short, a client without a batch stops.

    The toy clients have 20, 9, 8, 31 and 3 examples at batch size 8: last batches of 4, 1, 8, 7 and 3 rows, and
    2 to 4 steps an epoch, so a block pads in every way. Without the mask or the idle-step guard this is off by 1e-2.
    """
    work = toys.training(executor=executor, dtype=torch.float64, local_epochs=2, momentum=0.9, weight_decay=0.01)
    expected = _loops(work)
    progress = work.run()
    assert toys.distance(progress.server.params, expected) < 1e-10


def _loops(work):
    import numpy as np

    from fedcore.seeds import stream

    section = work.train
    data = work.federation.dataset
    mlp = torch.nn.Sequential(
        torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)
    ).double()
    names = ["body.1.weight", "body.1.bias", "body.3.weight", "body.3.bias", "head.weight", "head.bias"]
    world = [work.initial[n].clone() for n in names]
    sizes = work.federation.num_examples
    for round in range(section.rounds):
        total = [torch.zeros_like(w) for w in world]
        for client in range(work.federation.num_clients):
            rows = work.federation.rows(client, "train")
            x = torch.from_numpy(np.array(data.inputs[rows])).double()
            y = torch.from_numpy(np.array(data.labels[rows]))
            with torch.no_grad():
                for p, w in zip(mlp.parameters(), world, strict=True):
                    p.copy_(w)
            optimizer = torch.optim.SGD(mlp.parameters(), section.lr, momentum=0.9, weight_decay=0.01)
            for epoch in range(2):
                order = stream(work.seed, f"batches/{epoch}", round, client).permutation(len(rows))
                for start in range(0, len(rows), 8):
                    picked = order[start : start + 8]
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(mlp(x[picked]), y[picked]).backward()
                    optimizer.step()
            for t, p in zip(total, mlp.parameters(), strict=True):
                t += p.detach() * float(sizes[client] / sizes.sum())
        world = total
    return dict(zip(names, world, strict=True))


def test_short_batches_are_really_short_in_the_reference():
    work = toys.training()
    seen = []
    original = work.composition.loss

    class Spy:
        def __getattr__(self, name):
            return getattr(work.composition, name)

        def loss(self, net, params, state, batch, view, differentiate):
            seen.append(len(batch.y))
            return original(net, params, state, batch, view, differentiate)

    work.executor.training.composition = Spy()
    list(work._local([1], 0, work.composition.phases(work.train), "batches"))
    assert seen == [8, 1]


def test_gradient_of_an_unused_leaf_is_zero():
    slopes, loss, rest = by_autograd(
        lambda p: ((p["used"] ** 2).sum(), {"kept": p["used"] * 2}),
        {"used": torch.tensor([3.0]), "unused": torch.tensor([1.0])},
    )
    assert slopes["used"].tolist() == [6.0]
    assert slopes["unused"].tolist() == [0.0]
    assert float(loss) == 9.0
    assert not rest["kept"].requires_grad


def test_threads_never_share_a_module():
    """Functional calls lend a module their tensors; two threads in one module would train each other's weights."""
    from concurrent.futures import ThreadPoolExecutor

    model = toys.net()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(lambda: model._modules.by_mode).result()
    for mode, ours in model._modules.by_mode.items():
        assert theirs[mode] is not ours
        assert ours.training is theirs[mode].training is mode


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_scaling_leaves_the_callers_inputs_alone(dtype):
    given = torch.tensor([[2, 6], [4, 8]], dtype=dtype)
    before = given.clone()
    examples = Examples(given.numpy(), np.zeros(2, np.int64), (2.0,), (0.5,), torch.device("cpu"))
    made = examples.normalise(given)
    assert made.tolist() == [[0, 2], [1, 3]]
    assert made.dtype == torch.float32
    assert torch.equal(given, before)
    assert examples.gather(np.array([[1], [0]]))[0].tolist() == [[[1, 3]], [[0, 2]]]


def test_inputs_on_disk_stay_there(tmp_path):
    """A data set larger than memory is read where it lies, by the rows that are needed."""
    rows = np.arange(12, dtype=np.uint8).reshape(4, 3)
    np.save(tmp_path / "inputs.npy", rows)
    examples = Examples(
        np.load(tmp_path / "inputs.npy", mmap_mode="r"), np.zeros(4, np.int64), (0.0,), (1.0,), toys.CPU
    )
    assert str(tmp_path / "inputs.npy") in Path("/proc/self/maps").read_text()
    x, _ = examples.gather(np.array([3, 1]))
    assert x.tolist() == [[9.0, 10.0, 11.0], [3.0, 4.0, 5.0]]
