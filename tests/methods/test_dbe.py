"""DBE against plain loops in the released code's order of operations, and its goldens and identities."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.addons.dbe import Dbe
from fedcore.seeds import stream
from fedcore.types import Batch, ClientInfo, Output, View
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("momentum", "init_mean"), [(1.0, "last_batch"), (0.3, "last_batch"), (0.3, "full_pass")])
def test_equals_plain_loops(executor, momentum, init_mean):
    check_against_plain_loops(executor, momentum, init_mean, {}, "common")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("optimiser", ["common", "plain"])
def test_the_bias_can_have_an_optimiser_of_its_own(executor, optimiser):
    """Without momentum, weight decay and decay of the rate; or with all three, as the model."""
    train = {"momentum": 0.5, "weight_decay": 0.1, "lr_decay": 0.5}
    check_against_plain_loops(executor, 1.0, "last_batch", train, optimiser)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_where_the_section_is_plain_both_optimisers_are_one(executor):
    common, plain = (
        toys.run(toys.composition(add={"dbe": {"bias_optimiser": o}}), executor=executor) for o in ("common", "plain")
    )
    assert toys.equal(common.server.params, plain.server.params)
    assert all(toys.equal(common.store.get(i)["params"], plain.store.get(i)["params"]) for i in range(5))


def check_against_plain_loops(executor, momentum, init_mean, train, optimiser):
    kappa, own = 5.0, {"momentum": momentum, "init_mean": init_mean, "bias_optimiser": optimiser}
    work = toys.training(
        toys.composition(add={"dbe": {"kappa": kappa, **own}}),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
        **train,
    )
    rho, decay = train.get("momentum", 0.0), train.get("weight_decay", 0.0)
    x = {n: p.clone() for n, p in work.initial.items() if n != "dbe.bias"}
    bias = [torch.zeros(6, dtype=torch.float64) for _ in range(5)]
    consensus = None

    def local(i, round):
        w, b, running = twins.leaves(x), bias[i].clone().requires_grad_(), torch.zeros(6, dtype=torch.float64)
        lr, v = 0.1 * train.get("lr_decay", 1.0) ** max(round, 0), dict.fromkeys([*x, "b"], 0.0)
        for inputs, labels in twins.batches(work, i, round):
            z = twins.features(w, inputs)
            running = (1 - momentum) * running + momentum * z.mean(0)
            loss = cross_entropy(twins.classify(w, z if consensus is None else z + b), labels)
            if consensus is not None:
                loss = loss + kappa * torch.mean(0.5 * (running - consensus) ** 2)
            g = twins.slopes(loss, {**w, "b": b})
            v = {n: rho * v[n] + g[n] + decay * (b if n == "b" else w[n]).detach() for n in v}
            w = twins.leaves({n: w[n] - lr * v[n] for n in w})
            b = (b - (0.1 * g["b"] if optimiser == "plain" else lr * v["b"])).detach().requires_grad_()
            running = running.detach()
        if consensus is None and init_mean == "full_pass":
            inputs, _ = work.examples.gather(work.federation.rows(i, "train"))
            running = twins.features(w, inputs).mean(0).detach()
        return {n: p.detach() for n, p in w.items()}, b.detach(), running

    shares = [n / sum(toys.SIZES) for n in toys.SIZES]
    consensus = sum(s * local(i, -1)[2] for i, s in enumerate(shares))
    for round in range(3):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            model, bias[i], _ = local(i, round)
            models.append(model)
        x = twins.mean(models, cohort.weights)
    progress = work.run()
    assert toys.distance(progress.server.params, x) < 1e-10
    torch.testing.assert_close(progress.server.state["dbe"]["mean"], consensus, rtol=0, atol=1e-12)
    for i in range(5):
        torch.testing.assert_close(progress.store.get(i)["params"]["dbe.bias"], bias[i], rtol=0, atol=1e-10)


SET_UPS = {
    "prox": ("fedavg", {"prox": {"mu": 2.0}}, {}),
    "calibration": ("fedavg", {"calibration": {}}, {}),
    "mixup": ("fedavg", {"mixup": {"alpha": 1.0}}, {}),
    "restricted softmax": ("fedavg", {"restricted_softmax": {"alpha": 0.0}}, {}),
    "fedcm": ("fedavg", {"fedcm": {"alpha": 0.3}}, {}),
    "adversary": ("fedavg", {"adversary": {"strength": [0.2, 0.4], "hidden": [5]}}, {}),
    "fedbr": ("fedbr", {}, {"mixture": 1}),
    "pfedme": ("pfedme", {}, {}),
    "double softmax": ("lg_fedavg", {}, {"double_softmax": True, "update": "sequential"}),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("init_mean", ["last_batch", "full_pass"])
@pytest.mark.parametrize("name", SET_UPS)
def test_whatever_else_there_is_the_set_up_round_is_plain_sgd_on_the_cross_entropy(executor, init_mean, name):
    """In plain loops: of no other part's loss, of unmixed inputs, of clients with few and no examples of a class."""
    method, add, settings = SET_UPS[name]
    composed = toys.composition(method, {**add, "dbe": {"init_mean": init_mean}}, **settings)
    fed = toys.federation((20, 9, 2, 31, 1))
    work = toys.training(composed, fed, rounds=1, dtype=torch.float64, weighting="examples", executor=executor)
    means = []
    for i in range(5):
        w = twins.leaves({n: p for n, p in work.initial.items() if n in work.net.initial_params})
        for inputs, labels in twins.batches(work, i, -1):
            z = twins.features(w, inputs)
            g = twins.slopes(cross_entropy(twins.classify(w, z), labels), w)
            w = twins.leaves({n: w[n] - 0.1 * g[n] for n in w})
        means.append(twins.features(w, twins.rows(work, i)[0]).mean(0) if init_mean == "full_pass" else z.mean(0))
    expected = sum(n * m.detach() for n, m in zip((20, 9, 2, 31, 1), means, strict=True)) / 63
    torch.testing.assert_close(work.run().server.state["dbe"]["mean"], expected, rtol=0, atol=1e-12)


def test_moving_mean_goldens():
    """mu = .1, batch means (2, 0) then (1, 1), consensus (1, -1), kappa = 1, B = 2, D = 2.

    m = (.2, 0), then (.28, .1); R = ((-.8)^2 + 1) / 4 = .41, then ((-.72)^2 + 1.1^2) / 4 = .4321;
    dR/drow = mu (m - consensus) / (D B) = (-.02, .025), then (-.018, .0275).
    """
    addon = Dbe(kappa=1.0, momentum=0.1)
    one = torch.tensor(1.0)
    server = {"mean": torch.tensor([1.0, -1.0])}
    view = View({}, server, {}, {}, None, ClientInfo(one, one), one, one, 0.1, 0, "train")
    state = {"mean": torch.zeros(2)}
    for mean, expected, value, slope in (
        ([2.0, 0.0], [0.2, 0.0], 0.41, [-0.02, 0.025]),
        ([1.0, 1.0], [0.28, 0.1], 0.4321, [-0.018, 0.0275]),
    ):
        z = (torch.tensor([mean, mean]) + torch.tensor([[0.5], [-0.5]])).requires_grad_()
        batch = Batch(z, torch.tensor([0, 1]), torch.ones(2), {})
        term, state = addon.penalty(None, {}, state, batch, Output(z, z), None, view)
        (rows,) = torch.autograd.grad(term, z)
        assert state["mean"].tolist() == pytest.approx(expected)
        assert float(term.detach()) == pytest.approx(value)
        assert rows.tolist() == [pytest.approx(slope), pytest.approx(slope)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_its_parts_it_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor}
    plain = toys.run(**settings)
    off = toys.run(toys.composition(add={"dbe": {"kappa": 0.0, "prbm": False}}), **settings)
    assert toys.equal(plain.server.params, off.server.params)


def test_bias_gradient_is_the_head_biases_through_the_head():
    work = toys.training(toys.composition(add={"dbe": {"kappa": 0.0}}), batch_size=31, rounds=1, dtype=torch.float64)
    start = work.initial
    (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
    moved = {n: (start[n] - outcome.params[n]) / 0.1 for n in start}
    torch.testing.assert_close(moved["dbe.bias"], moved["head.bias"] @ start["head.weight"])


def _biased():
    """A model with a personal bias drawn at random, and inputs."""
    work = toys.training(toys.composition(add={"dbe": {"kappa": 0.0}}), dtype=torch.float64)
    generator = stream(4, "test")
    bias = torch.from_numpy(generator.normal(size=6))
    return work, {**work.initial, "dbe.bias": bias}, torch.from_numpy(generator.normal(size=(9, 5)))


def test_before_a_linear_head_the_bias_is_one_on_the_logits():
    """g(z + b) = g(z) + W b, in training and in evaluation."""
    work, params, x = _biased()
    shifted = params["head.weight"] @ params["dbe.bias"]
    plain = twins.classify(work.initial, twins.features(work.initial, x))
    found = work.composition.forward(work.net, params, x)
    torch.testing.assert_close(found.logits, plain + shifted)
    torch.testing.assert_close(found.features, twins.features(work.initial, x))  # those of the first level


def test_what_the_bias_gains_and_the_features_lose_changes_no_prediction():
    """With a body that ends linearly: its last bias less c, the personal one plus c."""
    work = toys.training(
        toys.composition(add={"dbe": {"kappa": 0.0, "layer": "hidden1"}}), None, toys.net(), dtype=torch.float64
    )
    bias = {"dbe.bias": torch.from_numpy(stream(5, "test").normal(size=16))}
    x, c = torch.from_numpy(stream(6, "test").uniform(size=(9, 5))), 0.25
    far = {**work.initial, "body.1.bias": work.initial["body.1.bias"] + 10.0, **bias}  # so that no rectifier cuts
    moved = {**far, "body.1.bias": far["body.1.bias"] - c, "dbe.bias": far["dbe.bias"] + c}
    one, other = (work.composition.forward(work.net, params, x).logits for params in (far, moved))
    assert one.std() > 0.01
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("momentum", "share"), [(1.0, 1.0), (0.0, 0.0)])
def test_the_ends_of_the_momentum(momentum, share):
    """1 is the mean of this batch, whatever came before; 0 stays at zero and has no gradient."""
    addon, one = Dbe(kappa=2.0, momentum=momentum), torch.tensor(1.0)
    view = View({}, {"mean": torch.ones(2)}, {}, {}, None, ClientInfo(one, one), one, one, 0.1, 0, "train")
    z = torch.tensor([[4.0, 1.0], [2.0, 3.0]], requires_grad=True)
    before = {"mean": torch.zeros(2) if momentum == 0 else torch.tensor([9.0, 9.0])}
    batch = Batch(z, torch.tensor([0, 1]), torch.ones(2), {})
    term, after = addon.penalty(None, {}, before, batch, Output(z, z), None, view)
    (slope,) = torch.autograd.grad(term, z)
    assert after["mean"].tolist() == [3.0 * share, 2.0 * share]
    assert float(term.detach()) == pytest.approx(2 * (0.5 * 4 + 0.5 * 1) / 2 if share else 2 * 0.5)
    assert slope.tolist() == [pytest.approx([2 * 2 / 4 * share, 2 * 1 / 4 * share])] * 2


def test_the_consensus_stays_and_an_absent_clients_bias_too():
    composed = toys.composition(add={"dbe": {"kappa": 1.0}})
    one, two = (toys.training(composed, participation=0.4, rounds=r) for r in (1, 2))
    first, last = one.run(), two.run()
    assert torch.equal(first.server.state["dbe"]["mean"], last.server.state["dbe"]["mean"])
    absent = set(one._cohort(0).clients) - set(two._cohort(1).clients)
    assert absent
    for client in sorted(absent):
        mine = [p.store.get(client)["params"]["dbe.bias"] for p in (first, last)]
        assert torch.equal(*mine)
        assert mine[0].abs().max() > 0


def test_the_bias_never_travels_and_evaluation_adds_it():
    progress = toys.run(toys.composition(add={"dbe": {"kappa": 1.0}}))
    assert "dbe.bias" not in progress.server.params
    plain = toys.run()
    # One set-up round for all five, the discarded models included, and the 6 scalars of the mean: up in it alone, down
    # in every round.
    assert progress.upload_bytes - plain.upload_bytes == 5 * (219 + 6) * 4
    assert progress.download_bytes - plain.download_bytes == 5 * (219 + 4 * 6) * 4
    row = progress.history[-1]
    assert row["personal/test/loss"] != row["global/test/loss"]


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_goes_on_top_of_other_methods(method):
    one, other = (
        toys.run(
            toys.composition(method, add={"dbe": {"kappa": 5.0}, "prox": {"mu": 0.1}}), executor=e, dtype=torch.float64
        )
        for e in EXECUTORS
    )
    assert toys.distance(one.server.params, other.server.params) < 1e-9
    assert toys.distance(one.store.get(2)["params"], other.store.get(2)["params"]) < 1e-9


@pytest.mark.parametrize("layer", ["conv1", "conv2"])
def test_splits_the_body_at_any_layer(layer):
    """The personal bias has the shape of the layer's output, and the split of a network changes nothing by itself."""
    federation = toys.federation(image=True)
    model = toys.net({"name": "cnn", "channels": [3, 4], "hidden": 5}, image=True)
    made = {
        e: toys.run(
            toys.composition(add={"dbe": {"kappa": 1.0, "layer": layer, "init_mean": "full_pass"}}),
            federation,
            model,
            executor=e,
            dtype=torch.float64,
        )
        for e in EXECUTORS
    }
    bias = made["serial"].store.get(0)["params"]["dbe.bias"]
    assert bias.shape == {"conv1": (3, 4, 4), "conv2": (4, 2, 2)}[layer]  # 8x8 images, halved by each pooling
    assert bias.abs().max() > 0
    assert toys.distance({"b": bias}, {"b": made["stacked"].store.get(0)["params"]["dbe.bias"]}) < 1e-9
    off = toys.run(toys.composition(add={"dbe": {"kappa": 0.0, "prbm": False, "layer": layer}}), federation, model)
    assert toys.equal(off.server.params, toys.run(None, federation, model).server.params)


def test_refuses_a_layer_that_does_not_exist():
    addon = Dbe(layer="conv3")
    with pytest.raises(ValueError, match=r"layer: the model has no layer 'conv3'; valid: hidden1"):
        addon.check(toys.net({"name": "mlp", "hidden": [4, 3]}), toys.training().train)


@pytest.mark.parametrize("name", ["moon", "fedbr"])
def test_a_bias_inside_the_body_is_refused_where_features_are_compared_with_those_of_other_models(name):
    """They have none of b_i. At the end of the body, without b_i and without the comparison nothing is in the way."""

    def check(mu, **dbe):
        own = {"mu": mu} if name == "fedbr" else {}
        add = {"dbe": dbe, **({} if own else {"moon": {"mu": mu}})}
        composed = toys.composition("fedbr" if own else "fedavg", add, **own)
        composed.check(toys.net(), toys.training().train)

    with pytest.raises(ValueError, match=rf"add\.dbe\.layer: 'hidden1' .* whose features {name} compares .* use null"):
        check(1.0, layer="hidden1")
    check(1.0)
    check(1.0, layer="hidden1", prbm=False)
    check(0.0, layer="hidden1")


@pytest.mark.parametrize(("form", "kept"), [("add", 1.0), ("mix", 0.2)])
def test_noise_changes_the_means_that_are_sent(form, kept):
    """q = .8: q e on top of the mean, or of a fifth of it."""
    one, info = torch.tensor(1.0), ClientInfo(torch.tensor(2.0), torch.ones(3))
    addon = Dbe(noise=0.8, noise_std=0.5, noise_form=form)
    drawn = addon.draws(toys.net(), stream(0, "test"), 4, 8, info)["dbe.noise"]
    assert drawn.shape == (4, 6)
    assert (drawn == drawn[0]).all()
    state = {"mean": torch.full((6,), 2.0), "noise": torch.tensor(drawn[0])}
    view = View({}, {}, {}, {}, None, info, one, one, 0.1, -1, "finish")
    upload, _ = addon.finish({}, state, view)
    torch.testing.assert_close(upload["mean"], 2.0 * kept + 0.8 * state["noise"])
    many = addon.draws(toys.net({"name": "mlp", "hidden": [4000]}), stream(0, "test"), 1, 8, info)["dbe.noise"]
    assert many.std() == pytest.approx(0.5, rel=0.05)  # the standard error of s is s / sqrt(8000), 1.1 %
    noisy, plain = (
        toys.run(toys.composition(add={"dbe": settings})) for settings in ({"noise": 0.8, "noise_form": form}, {})
    )
    assert not torch.equal(noisy.server.state["dbe"]["mean"], plain.server.state["dbe"]["mean"])
