"""FedBN against its Algorithm 1 in plain loops over a convolutional model, and its reduction to FedAvg."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedcore.seeds import stream
from tests import toys

EXECUTORS = ["serial", "stacked"]
NORMALISED = {"name": "cnn", "channels": [4, 6], "hidden": 8, "norm": "batch"}
NORMS = ("body.1.", "body.5.")


def _training(name="fedbn", **settings):
    return toys.training(
        toys.composition(name),
        toys.federation(image=True),
        toys.net(NORMALISED, image=True),
        last_batch="wrap",
        participation=0.6,
        **settings,
    )


def _twin(work):
    """Modules of torch, one copy per client whose normalisation is never overwritten."""
    body = nn.Sequential(
        nn.Conv2d(1, 4, 5, padding=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 5, padding=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 8),
        nn.ReLU(),
    )
    model = nn.Module()
    model.body, model.head = body, nn.Linear(8, 3)
    model.double()
    model.load_state_dict({**model.state_dict(), **work.initial})
    models = [copy.deepcopy(model) for _ in range(5)]
    x = {n: p.clone() for n, p in work.initial.items() if not n.startswith(NORMS)}
    data = work.federation.dataset
    for round in range(3):
        cohort = work._cohort(round)
        for i in cohort.clients:
            models[i].load_state_dict({**models[i].state_dict(), **x})
            optimizer = torch.optim.SGD(models[i].parameters(), 0.1)
            rows = work.federation.rows(i, "train")
            order = stream(0, "batches/0", round, i).permutation(len(rows))
            for picked in np.resize(order, -(-len(rows) // 8) * 8).reshape(-1, 8):
                inputs = (torch.from_numpy(np.array(data.inputs[rows[picked]])).double() - 128) / 32
                loss = cross_entropy(
                    models[i].head(models[i].body(inputs)), torch.from_numpy(data.labels[rows[picked]])
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        local = [models[i].state_dict() for i in cohort.clients]
        x = {n: sum(w * s[n] for w, s in zip(cohort.weights, local, strict=True)) for n in x}
    return x, [m.state_dict() for m in models]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_equals_the_papers_algorithm(executor):
    work = _training(executor=executor, dtype=torch.float64)
    x, models = _twin(work)
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    for i in range(5):
        kept = progress.store.get(i)
        own = {**kept["params"], **kept["buffers"]}
        assert len(own) == 8
        assert toys.distance(own, {n: models[i][n] for n in own}) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_batch_normalisation_it_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor}
    ours, plain = toys.run(toys.composition("fedbn"), **settings), toys.run(**settings)
    assert toys.equal(ours.server.params, plain.server.params)
    assert not ours.store.clients


def test_normalisation_stays_with_the_client():
    """Two layers of 4 and 6 channels: 20 parameters and 20 running statistics less each way, per client and round."""
    ours, plain = _training().run(), _training("fedavg").run()
    assert not [n for n in (*ours.server.params, *ours.server.buffers) if n.startswith(NORMS)]
    assert plain.upload_bytes - ours.upload_bytes == plain.download_bytes - ours.download_bytes == 3 * 3 * 40 * 4
    assert not any(name.startswith("global") for name in ours.history[-1])
    one, other = (ours.store.get(c)["params"]["body.1.weight"] for c in ours.store.clients[:2])
    assert not torch.equal(one, other)


def test_an_absent_clients_normalisation_stays_as_it_was():
    work = _training(rounds=1)
    seen = work._cohort(0).clients
    progress = work.run()
    assert progress.store.clients == list(seen)
    for i in set(range(5)) - set(seen):
        assert torch.equal(progress.store.get(i)["params"]["body.1.weight"], torch.ones(4))
