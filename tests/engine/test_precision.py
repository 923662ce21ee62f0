"""How many bits the products of local training have."""

from contextlib import contextmanager

import pytest
import torch

from fedcore.engine import precision, rounds, serial, stacked
from fedcore.engine.checks import check_training
from fedcore.models.net import Net
from fedcore.trees import flatten
from tests import toys

CNN = {"name": "cnn", "channels": [4, 6], "hidden": 16}
GPU = torch.device("cuda", 0)  # its name is enough here
SWITCHES = {"products": torch.backends.cuda.matmul, "convolutions": torch.backends.cudnn.conv}


def _run(image=True, model=CNN, **train):
    return toys.run(None, toys.federation(image=image), toys.net(model, image=image), **{"rounds": 2, **train})


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_bfloat16_is_near_single_precision_and_not_the_same(executor):
    single = _run(executor=executor)
    reduced = _run(executor=executor, precision="bfloat16")
    moved = toys.distance(single.server.params, toys.net(CNN, image=True).initial_params)
    apart = toys.distance(single.server.params, reduced.server.params)
    # bfloat16 has 8 bits: a relative error of 0.4 % a product, of which a step takes a mean.
    assert 1e-4 * moved < apart < 0.1 * moved
    assert all(p.dtype == torch.float32 for p in reduced.server.params.values())
    assert reduced.history[-1]["train/loss"] == pytest.approx(single.history[-1]["train/loss"], rel=0.02)


def test_compiled_steps_take_it():
    """Rounding to 8 bits hides what kernels differ by, up to what falls on the other side of a half."""
    settings = {"rounds": 1, "local_steps": 1, "last_batch": "wrap"}
    plain, compiled, single = (
        _run(precision=precision, compile=compile, **settings).server.params
        for precision, compile in (("bfloat16", "never"), ("bfloat16", "always"), ("float32", "never"))
    )
    moved = toys.distance(single, toys.net(CNN, image=True).initial_params)
    assert toys.distance(plain, compiled) < 0.02 * moved
    assert toys.distance(single, compiled) > 1e-4 * moved


def test_single_precision_is_what_there_is_without_a_word():
    assert toys.equal(_run().server.params, _run(precision="float32").server.params)


@pytest.mark.parametrize("method", ["fedrep", "perfedavg", "fedgen", "lg_fedavg", "fedbr"])
@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_every_kind_of_step_takes_it(method, executor):
    composed = toys.composition(method)
    runs = [toys.run(composed, rounds=2, executor=executor, precision=p) for p in ("float32", "bfloat16")]
    single, reduced = (
        flatten({"server": r.server.params, **{str(c): r.store.get(c) for c in r.store.clients}}) for r in runs
    )
    assert {n: t.dtype for n, t in single.items()} == {n: t.dtype for n, t in reduced.items()}
    assert 0 < toys.distance(single, reduced) < 0.1


def test_evaluation_is_single():
    """The scores of a run are those of its weights in single precision."""
    reduced = toys.training(precision="bfloat16")
    progress = reduced.run()
    single = toys.training()
    single.progress.server = progress.server
    found = single._evaluate(2).metrics
    assert {name: progress.history[-1][name] for name in found} == found


def test_of_double_precision_nothing_is_reduced():
    double = _run(dtype=torch.float64, precision="bfloat16").server.params
    assert toys.equal(double, _run(dtype=torch.float64).server.params)


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(("chosen", "mode"), [("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "ieee")])
def test_a_gpus_products_are_as_chosen_and_then_as_before(name, chosen, mode):
    switch = SWITCHES[name]
    before = switch.fp32_precision
    within = []

    def fails():
        with precision.products(chosen, GPU):
            within.append(switch.fp32_precision)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert within == [mode]
    assert switch.fp32_precision == before
    with precision.products(chosen, torch.device("cpu")):
        assert switch.fp32_precision == before


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_clients_train_as_chosen_and_the_server_scores_in_single_precision(executor, monkeypatch):
    """Which of the nested choices is the innermost one, as if it were a GPU."""
    chosen, seen = [], []

    @contextmanager
    def recorded(choice, device):
        assert device.type == "cpu"
        chosen.append(choice)
        yield
        chosen.pop()

    for module in (rounds, serial, stacked):
        monkeypatch.setattr(module, "products", recorded)
    training = toys.training(precision="tf32", executor=executor, rounds=1)

    call = Net._call

    def watched(self, *arguments, **named):
        seen.append(("steps" if self._training else "scores", chosen[-1]))
        return call(self, *arguments, **named)

    monkeypatch.setattr(Net, "_call", watched)
    training.run()
    assert set(seen) == {("steps", "tf32"), ("scores", "float32")}
    assert not chosen


def test_tf32_is_refused_on_a_cpu():
    training = toys.training(precision="tf32")
    with pytest.raises(ValueError, match=r"^methods\.toy: train\.precision: 'tf32' is of NVIDIA GPUs, .*'cpu'; valid"):
        check_training("toy", training.composition, training.net, training.train, training.federation)
    assert precision.problem(training.train, GPU) is None
