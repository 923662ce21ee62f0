"""What a training asks of a device that is not the host, seen on one that holds shapes alone."""

from unittest import mock

import pytest
import torch
from pydantic import TypeAdapter
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from fedcore import models
from fedcore.compose import Composition
from fedcore.config import Model as ModelConfig
from fedcore.engine.compiled import Compiler
from fedcore.engine.compiled_steps import CompiledSteps
from fedcore.engine.cuda_graphs import CudaGraphs
from fedcore.engine.lane_group import Group
from fedcore.engine.local import LocalTraining
from fedcore.engine.rounds import Training
from tests import toys
from tests.methods.cases import CASES
from tests.models.test_published_models import SMALL
from tests.pretended import META, Pretended
from tests.tape import record

# https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html: a GPU refuses them.
REFUSED = {
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "_ctc_loss_backward",
    "_embedding_bag_backward",
    "adaptive_max_pool2d_backward",
    "avg_pool3d_backward",
    "bincount",
    "fractional_max_pool2d_backward",
    "grid_sampler_2d_backward",
    "histc",
    "max_unpool2d",
    "median",
    "nll_loss2d_forward",
    "put",
    "put_",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "scatter_reduce",
    "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward",
    "upsample_linear1d_backward",
}
FEW = toys.federation((9, 3))  # two steps and one: a lane idles, a batch is padded
MODELS = {
    **SMALL,
    "softmax_regression": ({"name": "softmax_regression"}, (6,)),
    "mlp": ({"name": "mlp", "hidden": [5]}, (6,)),
    "cnn": ({"name": "cnn", "channels": [4, 6], "hidden": 16}, (1, 28, 28)),
    "cnn, batch": ({"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": "batch"}, (3, 32, 32)),
    "lenet": ({"name": "lenet"}, (3, 32, 32)),
    "group_cnn": ({"name": "group_cnn"}, (1, 28, 28)),
}


def _trained(*arguments, **settings):
    """Train two rounds; return the device, and what crossed in every call that takes steps."""
    device, within = Pretended(), []

    def watched(call):
        def watch(*arguments):
            with device.alone() as crossings:
                result = call(*arguments)
            within.append(crossings)
            return result

        return watch

    checks = mock.patch.object(Composition, "check_resources")  # they look at values
    steps = mock.patch.object(LocalTraining, "step", watched(LocalTraining.step))
    stretches = mock.patch.object(Group, "_steps", watched(Group._steps))
    functions = mock.patch.object(CompiledSteps, "take", watched(CompiledSteps.take))
    with device, checks, steps, stretches, functions:
        toys.run(*arguments, device=META, rounds=2, **settings)
    return device, within


@pytest.mark.parametrize("executor", ["stacked", "serial"])
@pytest.mark.parametrize("name", CASES)
def test_steps_stay_on_the_device(name, executor):
    case = CASES[name]
    composed = toys.composition(case.method, case.add, **case.settings)
    device, within = _trained(composed, FEW, executor=executor)
    assert not any(within)
    assert not device.operators & REFUSED


def _round(sizes):
    """Return what crosses in a stacked round of so many examples a client, and how many calls the device gets."""
    device, within, train_round = Pretended(), [], Training._train_round

    def watch(*arguments):
        before = device.calls
        with device.alone() as crossings:
            loss = train_round(*arguments)
        within.append((crossings, device.calls - before))
        return loss

    rounds = mock.patch.object(Training, "_train_round", watch)
    with device, mock.patch.object(Composition, "check_resources"), rounds:
        toys.run(None, toys.federation(sizes), device=META, rounds=1, executor="stacked")
    return within[0]


def test_a_round_of_more_clients_does_not_cross_more_often():
    few, more = _round((9, 3))[0], _round((9, 3, 9, 3, 5, 7))[0]
    assert more == few
    assert [crossing.direction for crossing in few].count("to the host") == 1


def test_a_client_more_costs_the_host_a_sum_for_every_tensor_and_a_mean_loss():
    tensors = len(toys.net().initial_params)
    assert _round((9,) * 30)[1] - _round((9,) * 10)[1] == 20 * (tensors + 1)


@pytest.mark.parametrize("executor", ["stacked", "serial"])
def test_recorded_steps_stay_on_the_device_once_they_were_checked(executor, monkeypatch):
    monkeypatch.setattr("fedcore.engine.executors.make_compiler", lambda device: Compiler(CudaGraphs(record)))
    _, within = _trained(None, FEW, executor=executor, compile="always")
    checks = [crossing for call in within for crossing in call]
    assert checks
    assert all("cuda_graphs.py" in crossing.where for crossing in checks)
    assert not within[-1]


@pytest.mark.parametrize("name", MODELS)
def test_a_gpu_refuses_no_gradient_of_a_model(name):
    section, shape = MODELS[name]
    net = models.build(TypeAdapter(ModelConfig).validate_python(section), shape, 3, 0).to(META)
    kind = torch.int64 if name == "fast_text" else torch.float32
    x, y = torch.zeros(2, 4, *shape, dtype=kind, device=META), torch.zeros(2, 4, dtype=torch.int64, device=META)

    def loss(params, buffers, x, y):
        bound = net.bind(buffers, training=True)
        return cross_entropy(bound.classify(params, bound.features(params, x)), y)

    of_each = [{n: torch.stack([t, t]) for n, t in tree.items()} for tree in (net.initial_params, net.initial_buffers)]
    with Pretended() as device:
        gradients = vmap(grad(loss))(*of_each, x, y)
    assert gradients.keys() == net.initial_params.keys()
    assert not device.crossings
    assert not device.operators & REFUSED


def test_what_a_gpu_refuses_is_known_here_by_the_same_names():
    known = {name.removeprefix("aten::").split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert known >= REFUSED
    x = torch.zeros(1, 1, 4, 4, device=META, requires_grad=True)
    with Pretended() as device:
        torch.nn.functional.interpolate(x, size=8, mode="bilinear").sum().backward()
    assert device.operators & REFUSED == {"upsample_bilinear2d_backward"}


def test_what_crosses_is_seen():
    with Pretended() as device:
        x = torch.zeros(3).to(META)
        x[:2].cpu()
        x.sum().item()
        with pytest.raises(RuntimeError):
            x + torch.zeros(3)
    assert [crossing.direction for crossing in device.crossings] == ["to the device", "to the host", "to the host"]
