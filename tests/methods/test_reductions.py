"""Every method with its extras off is FedAvg bit for bit, on a model with batch normalisation and on one without."""

import pytest

from tests import toys

# name -> method, settings, add-ons; each with nothing of its own left to do.
OFF = {
    "fedbr": ("fedbr", {"pseudo_strength": 0.0, "mu": 0.0}, {}),
    "fedlc": ("fedavg", {}, {"calibration": {"tau": 0.0}}),
    "fedrs": ("fedavg", {}, {"restricted_softmax": {"alpha": 1.0}}),
    "dbe": ("fedavg", {}, {"dbe": {"kappa": 0.0, "prbm": False}}),
    "vhl": ("fedavg", {}, {"vhl": {"virtual_batch": 0, "contrast": 0.0, "contrast_virtual": 0.0}}),
    "vftl": ("fedavg", {}, {"vhl": {"variant": "vftl", "pretrain_steps": 0}}),
    "lg_fedavg": ("lg_fedavg", {"global_layers": ["body", "head"]}, {}),
    "lg_fedavg in stage 1": ("lg_fedavg", {"fedavg_rounds": 3}, {}),
    "fedcm": ("fedavg", {}, {"fedcm": {"alpha": 1.0}}),
    "moon": ("fedavg", {}, {"moon": {"mu": 0.0}}),
    "mixup": ("fedavg", {}, {"mixup": {"alpha": 0.0}}),
    "prox": ("fedavg", {}, {"prox": {"mu": 0.0}}),
}


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", OFF)
def test_with_its_extras_off_it_is_fedavg(name, norm):
    method, own, add = OFF[name]
    model = toys.net({"name": "cnn", "channels": [3, 4], "hidden": 5, "norm": norm}, image=True)
    shared = {"participation": 0.6, "momentum": 0.5, "last_batch": "wrap", "weighting": "uniform"}
    fed = toys.federation(image=True)
    plain = toys.run(None, fed, model, **shared)
    off = toys.run(toys.composition(method, add, **own), fed, model, **shared)
    assert bool(plain.server.buffers) == (norm == "batch")
    assert toys.equal(plain.server.buffers, off.server.buffers)
    assert toys.equal(plain.server.params, {n: off.server.params[n] for n in plain.server.params})
    assert plain.history[-1]["personal/test/loss"] == off.history[-1]["personal/test/loss"]
