"""FedBR against its Algorithm 1 in plain loops, the bounds and gradients of its contrast, and its ablations."""

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.methods.base import named
from fedcore.methods.fedbr import Fedbr
from fedcore.methods.parts import soft_cross_entropy, soft_labels
from fedcore.seeds import stream
from fedcore.types import Batch
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]


def project(theta, z):
    for layer in range(len(theta) // 2):
        z = torch.relu(z) if layer else z
        z = z @ theta[f"{layer}.weight"].T + theta[f"{layer}.bias"]
    return z


def contrast(theta, pseudo, natural, received, tau1=0.5, tau2=0.5):
    """L_con of eq. 5 as it is printed, row by row: -log of a softmax over two."""
    total = 0.0
    rows = zip(project(theta, pseudo), project(theta, natural), project(theta, received), strict=True)
    for a, b, g in rows:
        near = torch.exp((a @ g) / (a.norm() * g.norm()) / tau1)
        far = torch.exp((a @ b) / (a.norm() * b.norm()) / tau2)
        total = total - torch.log(near / (near + far))
    return total / len(pseudo)


def local_steps(work, start, i, round, pseudo_strength, mu, max_step, tau1, tau2, mixture=0, stale=False):
    """One client's round: what it uploads."""
    w, pseudo = twins.leaves(start), work.resources["pseudo"]
    steps, random = -(-toys.SIZES[i] // 8), stream(work.seed, "draws/method", round, i)
    held = {}  # of the first step, by pseudo row
    offsets, partners = random.integers(0, 2**62, steps), random.integers(0, 2**62, (steps, max(mixture, 1), 8))
    for step, ((inputs, labels), offset) in enumerate(zip(twins.batches(work, i, round), offsets, strict=True)):
        model = {n: p for n, p in w.items() if not n.startswith("disc.")}
        theta = {n: p.detach().requires_grad_() for n, p in named(w, "disc.").items()}
        rows = [int((offset + b) % 11) for b in range(len(labels))]
        assert len(set(rows)) == len(rows)
        number = round % len(pseudo["y"])
        x_p, y_p = pseudo["x"][number][rows], pseudo["y"][number][rows]
        seen = x_p
        if mixture:
            x_p, y_p, seen = x_p.clone(), y_p.clone(), x_p.clone()
            if stale and step == 0:
                for j in range(11):
                    place = int((j - int(offset % 11)) % 11) % len(labels)
                    held[j] = sum(inputs[int(partners[0, k, place] % len(labels))] for k in range(mixture))
            for b in range(len(labels)):
                chosen = [int(partners[step, k, b] % len(labels)) for k in range(mixture)]
                others = held[rows[b]] if stale else sum(inputs[j] for j in chosen)
                seen[b] = (seen[b] + others) / (mixture + 1)
                x_p[b] = torch.stack([x_p[b], *(inputs[j] for j in chosen)]).mean(0)
                y_p[b] = torch.stack([y_p[b], *(torch.eye(3).double()[labels[j]] for j in chosen)]).mean(0)
                assert float(y_p[b].sum()) == pytest.approx(1.0)
        frozen = twins.features(start, seen)
        z_p, z = twins.features(model, x_p), twins.features(model, inputs)
        if theta and max_step:
            slopes = twins.slopes(contrast(theta, z_p.detach(), z.detach(), frozen, tau1, tau2), theta)
            theta = {n: (p + 0.1 * slopes[n]).detach() for n, p in theta.items()}
        soft = -(y_p * torch.log_softmax(twins.classify(model, z_p), 1)).sum(1).mean()
        loss = cross_entropy(twins.classify(model, z), labels) + pseudo_strength * soft
        loss = loss + mu * contrast(theta, z_p, z, frozen, tau1, tau2)
        g = twins.slopes(loss, model)
        new = {n: p - 0.1 * g[n] for n, p in model.items()}
        w = twins.leaves({**new, **{f"disc.{n}": p for n, p in theta.items()}})
    return {n: p.detach() for n, p in w.items()}


CASES = {
    "paper": {},
    "weights": {"pseudo_strength": 0.3, "mu": 2.0, "tau1": 0.7, "tau2": 0.4},
    "component 1": {"mu": 0.0, "max_step": False},
    "component 2": {"pseudo_strength": 0.0},
    "no max step": {"max_step": False},
    "no projection": {"projection": False},
    "mixture": {"mixture": 1},
    "mixture of three": {"mixture": 2, "mu": 0.3},
    "stale features": {"mixture": 2, "mu": 2.0, "global_features": "stale"},
    "three layers": {"mu": 2.0, "projection_layers": 3},
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_papers_algorithm(executor, case):
    work = toys.training(
        toys.composition("fedbr", **CASES[case]), participation=0.6, executor=executor, dtype=torch.float64
    )
    used = {"pseudo_strength": 1.0, "mu": 0.5, "tau1": 0.5, "tau2": 0.5, "max_step": True, **CASES[case]}
    used.pop("projection", None), used.pop("projection_layers", None)
    used["stale"] = used.pop("global_features", "fresh") == "stale"
    x = {n: p.clone() for n, p in work.initial.items()}
    assert any(n.startswith("disc.") for n in x) == (case != "no projection")
    for round in range(3):
        clients = work._cohort(round).clients
        models = [local_steps(work, x, i, round, **used) for i in clients]
        x = twins.mean(models, [1 / len(clients)] * len(clients))
    assert toys.distance(work.run().server.params, x) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("mixture", [0, 1])
def test_the_received_model_keeps_its_running_statistics(executor, mixture):
    """A twin of modules: the received one stays in evaluation mode, as it was, while the local one's statistics move.

    With a mixture its features are `stale`: those of the first step's mixed rows, a single value a round.
    """
    composed = toys.composition("fedbr", mu=2.0, mixture=mixture, global_features="stale")
    work = toys.training(
        composed,
        toys.federation((40, 24), image=True),
        toys.net({"name": "cnn", "norm": "batch", "channels": [3, 4], "hidden": 5}, image=True),
        last_batch="wrap",  # which the whole batches of these sizes do not need
        executor=executor,
        dtype=torch.float64,
    )
    outcomes = work._local([0, 1], 0, work.composition.phases(work.train), "batches")
    for i, outcome in enumerate(outcomes):
        local = copy.deepcopy(work.net._modules.template).train()
        received = copy.deepcopy(local).eval()
        theta = {n: p.clone().requires_grad_() for n, p in named(work.initial, "disc.").items()}
        pseudo, random, steps = work.resources["pseudo"], stream(0, "draws/method", 0, i), (40, 24)[i] // 8
        offsets, partners = random.integers(0, 2**62, steps), random.integers(0, 2**62, (steps, 1, 8))
        held = {}
        for step, (inputs, labels) in enumerate(twins.batches(work, i, 0)):
            inputs, rows = (inputs - 128) / 32, [int((offsets[step] + b) % 11) for b in range(8)]
            x_p, y_p = pseudo["x"][0][rows], pseudo["y"][0][rows]
            frozen = received.body(x_p).detach()
            if mixture:
                chosen = partners[step, 0] % 8
                for j in range(11) if step == 0 else ():
                    place = int((j - int(offsets[0] % 11)) % 11) % 8
                    held[j] = received.body((pseudo["x"][0][[j]] + inputs[[chosen[place]]]) / 2).detach()[0]
                x_p = (x_p + inputs[chosen]) / 2
                y_p = (y_p + torch.eye(3).double()[labels[chosen]]) / 2
                frozen = torch.stack([held[j] for j in rows])
            z, z_p = local.body(torch.cat([inputs, x_p])).split(8)
            slopes = twins.slopes(contrast(theta, z_p.detach(), z.detach(), frozen), theta)
            theta = {n: (p + 0.1 * slopes[n]).detach().requires_grad_() for n, p in theta.items()}
            soft = -(y_p * torch.log_softmax(local.head(z_p), 1)).sum(1).mean()
            loss = cross_entropy(local.head(z), labels) + soft + 2 * contrast(theta, z_p, z, frozen)
            leaves = dict(local.named_parameters())
            slopes = twins.slopes(loss, leaves)
            with torch.no_grad():
                for n, p in leaves.items():
                    p -= 0.1 * slopes[n]
        expected = {**local.state_dict(), **{f"disc.{n}": p.detach() for n, p in theta.items()}}
        assert toys.distance({**outcome.params, **outcome.buffers}, expected) < 1e-10
        assert toys.distance(outcome.buffers, dict(received.named_buffers())) > 0.1


@pytest.mark.parametrize("executor", EXECUTORS)
def test_round_r_uses_set_r_modulo_the_number_of_sets(executor):
    generator = stream(1, "test")
    sets = {
        "x": torch.from_numpy(generator.normal(size=(2, 11, 5))),
        "y": torch.from_numpy(generator.dirichlet((1.0, 1.0, 1.0), size=(2, 11))),
    }
    work = toys.training(toys.composition("fedbr"), executor=executor, dtype=torch.float64, resources={"pseudo": sets})
    x = {n: p.clone() for n, p in work.initial.items()}
    for round in range(3):
        x = twins.mean([local_steps(work, x, i, round, 1.0, 0.5, True, 0.5, 0.5) for i in range(5)], [0.2] * 5)
    assert toys.distance(work.run().server.params, x) < 1e-10


@pytest.mark.parametrize("executor", EXECUTORS)
def test_mixture_takes_what_mixup_made_of_the_batch(executor):
    """With every share at 1 the mixed batch is the batch; otherwise pseudo rows hold mixed inputs and labels."""
    settings = {"executor": executor, "dtype": torch.float64, "rounds": 1}
    add = {"mixup": {"alpha": 0.4}}
    plain = toys.run(toys.composition("fedbr", mixture=1), **settings)
    mixed = toys.run(toys.composition("fedbr", add, mixture=1), **settings)
    assert toys.distance(plain.server.params, mixed.server.params) > 1e-4
    method = Fedbr(mixture=1)
    batch = Batch(
        torch.tensor([[2.0], [4.0]]),
        torch.tensor([0, 1]),
        torch.ones(2),
        {"fedbr.partners": torch.tensor([[1, 0]])},
        (torch.tensor([2, 1]), torch.tensor(0.75)),
    )
    sums, shares = method._partners(batch, torch.full((2, 3), 1 / 3))
    assert sums.tolist() == [[4.0], [2.0]]
    assert shares.tolist() == [[0.0, 1.0, 0.0], [0.75, 0.0, 0.25]]
    assert soft_labels(batch, shares).tolist() == [[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_stale_features_are_the_fresh_ones_where_nothing_is_mixed(executor):
    """Bit for bit; with a mixture they are the same at a round's first step and others from the second on."""
    settings = {"executor": executor, "participation": 0.6}
    fresh, stale = (toys.run(toys.composition("fedbr", global_features=g), **settings) for g in ("fresh", "stale"))
    assert toys.equal(fresh.server.params, stale.server.params)

    def trained(features, steps):
        composed = toys.composition("fedbr", mixture=1, mu=2.0, global_features=features)
        return toys.run(composed, executor=executor, local_steps=steps).server.params

    # One round after another: what a client keeps of a round does not reach the next.
    assert toys.equal(trained("fresh", 1), trained("stale", 1))
    assert toys.distance(trained("fresh", 2), trained("stale", 2)) > 1e-4


def test_the_released_projection_has_the_size_of_its_code():
    """d -> 2d -> 2d -> d at d = 512: 525,312 + 1,049,600 + 524,800 = 2.10 million."""
    for d, layers, size in ((6, 2, 2 * 6 * 7), (6, 3, 12 * 7 + 12 * 13 + 6 * 13)):
        method = Fedbr(projection_layers=layers)
        leaves = method.extra_params(toys.net(), stream(0, "test"))
        assert toys.net().feature_dim == d
        assert sum(p.numel() for p in leaves.values()) == size
    assert 1024 * 513 + 1024 * 1025 + 512 * 1025 == 2_099_712


@pytest.mark.parametrize("executor", EXECUTORS)
def test_with_both_weights_zero_it_is_fedavg_bit_for_bit(executor):
    settings = {"participation": 0.6, "executor": executor, "momentum": 0.9}
    plain = toys.run(weighting="uniform", **settings)
    off = toys.run(toys.composition("fedbr", pseudo_strength=0.0, mu=0.0), **settings)
    model = {n: p for n, p in off.server.params.items() if not n.startswith("disc.")}
    assert toys.equal(plain.server.params, model)
    assert plain.history[-1]["global/test/loss"] == off.history[-1]["global/test/loss"]


def _batch(size):
    one = torch.ones(size, dtype=torch.float64)
    return Batch(torch.zeros(size, 1), torch.zeros(size, dtype=torch.int64), one, {})


def test_golden_contrasts():
    """softplus((s2 - s1) / T), T = 1/2: s1 = 1, s2 = -1 gives softplus(-4); s1 = s2 log 2; 1 and 0 softplus(-2)."""
    method = Fedbr(projection=False)
    e1, e2 = torch.eye(2, dtype=torch.float64)
    for natural, received, expected in (
        (-e1, e1, 0.018150),
        (e1, -e1, 4.018150),
        (e2, e2, math.log(2)),
        (e2, e1, 0.126928),
        (5 * e2, 7 * e1, 0.126928),
    ):
        value = method._contrast({}, e1[None], natural[None], received[None], _batch(1))
        assert float(value) == pytest.approx(expected, abs=1e-6)


def test_without_projection_the_contrast_is_moons_with_other_roles():
    """-log of a softmax over two cosines: towards the received features of pseudo rows, away from the batch's."""
    generator = stream(2, "test")
    pseudo, natural, received = (torch.from_numpy(generator.normal(size=(7, 4))) for _ in range(3))
    method = Fedbr(projection=False, tau1=0.3, tau2=0.3)
    cosines = [torch.nn.functional.cosine_similarity(pseudo, z) for z in (received, natural)]
    expected = cross_entropy(torch.stack(cosines, 1) / 0.3, torch.zeros(7, dtype=torch.int64))
    assert float(method._contrast({}, pseudo, natural, received, _batch(7))) == pytest.approx(float(expected))


def test_a_label_of_two_parts_is_at_most_half_certain_and_a_half_of_chance():
    """K = 1: the largest share is (1 + 1 / C) / 2, and the shares sum to 1."""
    batch = _batch(5)._replace(draws={"fedbr.partners": torch.arange(5)[None]}, y=torch.tensor([0, 1, 2, 3, 0]))
    _, shares = Fedbr(mixture=1)._partners(batch, torch.full((5, 4), 0.25))
    mixed = (0.25 + shares) / 2
    assert mixed.sum(1).tolist() == [1.0] * 5
    assert mixed.max(1).values.tolist() == [(1 + 1 / 4) / 2] * 5


def test_low_temperatures_stay_finite():
    method = Fedbr(projection=False, tau1=1e-4, tau2=1e-4)
    e1 = torch.tensor([[1.0, 0.0]], requires_grad=True)
    value = method._contrast({}, e1, e1.detach(), -e1.detach(), _batch(1))
    assert float(value.detach()) == pytest.approx(2e4)


def test_the_max_step_raises_the_contrast_and_its_gradient_is_its_finite_difference():
    work = toys.training(toys.composition("fedbr"), dtype=torch.float64)
    theta = named(work.initial, "disc.")
    generator = stream(0, "test")
    a, b, g = (torch.from_numpy(abs(generator.normal(size=(7, 6)))) for _ in range(3))
    method, batch = Fedbr(), _batch(7)
    before = method._contrast(theta, a, b, g, batch)
    slopes = torch.func.grad(method._contrast)(theta, a, b, g, batch)
    after = method._contrast({n: p + 0.05 * slopes[n] for n, p in theta.items()}, a, b, g, batch)
    assert float(after) > float(before) + 1e-6
    names = list(theta)
    points = [theta[n].clone().requires_grad_() for n in names]
    features = [a.requires_grad_(), b.requires_grad_()]

    def of(pseudo, natural, *leaves):
        return method._contrast(dict(zip(names, leaves, strict=True)), pseudo, natural, g, batch)

    assert torch.autograd.gradcheck(of, [*features, *points])


def test_uniform_soft_labels_pull_towards_chance():
    """d/dlogits of the pseudo rows' cross-entropy is (softmax - 1/C) / B; appended outputs have target zero."""
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.1, 0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    targets = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    (slope,) = torch.autograd.grad(soft_cross_entropy(logits, targets).mean(), logits)
    torch.testing.assert_close(slope, (torch.softmax(logits.detach(), 1) - 1 / 3) / 2)
    wide = torch.cat([logits.detach(), torch.zeros(2, 2)], 1)
    padded = torch.cat([targets, torch.zeros(2, 2)], 1)
    expected = -(padded * torch.log_softmax(wide, 1)).sum(1)
    torch.testing.assert_close(soft_cross_entropy(wide, targets), expected)


def _outcome(**settings):
    work = toys.training(toys.composition("fedbr", **settings), rounds=1, batch_size=31, dtype=torch.float64)
    (outcome,) = work._local([3], 0, work.composition.phases(work.train), "batches")
    theta = {n: p for n, p in outcome.params.items() if n.startswith("disc.")}
    model = {n: p for n, p in outcome.params.items() if not n.startswith("disc.")}
    initial = {n: p for n, p in work.initial.items() if n.startswith("disc.")}
    return theta, model, initial


def test_the_min_step_leaves_the_projection_alone():
    theta, _, initial = _outcome(max_step=False)
    assert toys.equal(theta, initial)
    theta, _, initial = _outcome(mu=0.0)
    assert toys.equal(theta, initial)
    theta, _, initial = _outcome()
    assert toys.distance(theta, initial) > 1e-5


def test_on_the_first_step_the_received_and_the_local_features_are_the_same():
    """So s1 = 1 there, and the min step can only push the batch away: the loss is softplus(2 s2 - 2)."""
    work = toys.training(
        toys.composition("fedbr", pseudo_strength=0.0, mu=1.0, projection=False), batch_size=31, rounds=1
    )
    inputs, labels = (v.float() if v.is_floating_point() else v for v in twins.rows(work, 4))
    (outcome,) = work._local([4], 0, work.composition.phases(work.train), "batches")
    x = work.initial
    offset = stream(0, "draws/method", 0, 4).integers(0, 2**62, 1)[0]
    order = stream(0, "batches/0", 0, 4).permutation(3)
    z_p = twins.features(x, work.resources["pseudo"]["x"][0][[int((offset + b) % 11) for b in range(3)]])
    z = twins.features(x, inputs[order])
    s2 = torch.nn.functional.cosine_similarity(z_p, z)
    expected = cross_entropy(twins.classify(x, z), labels[order]) + torch.nn.functional.softplus(2 * s2 - 2).mean()
    torch.testing.assert_close(outcome.loss, expected)


def test_the_projection_travels_and_the_pseudo_data_is_sent_once():
    plain, ours = toys.run(), toys.run(toys.composition("fedbr"))
    disc = 2 * 6 * 7  # 2 d (d + 1)
    pseudo = 11 * (5 + 3)
    assert ours.upload_bytes - plain.upload_bytes == 3 * 5 * 4 * disc
    assert ours.download_bytes - plain.download_bytes == 5 * 4 * (3 * disc + pseudo)
    # d = 512 of the paper's VGG11: 525,312, which with its 9.2 million makes the 9.7 of Table 7.
    assert 2 * 512 * 513 == 525_312


@pytest.mark.parametrize(
    "add",
    [
        {"mixup": {"alpha": 0.4}},
        {"prox": {"mu": 0.1}, "calibration": {}},
        {"vhl": {"temperature": 0.5}},
        {"dbe": {"kappa": 1.0}},
    ],
)
def test_addons_go_on_top_of_it(add):
    one, other = (toys.run(toys.composition("fedbr", add), executor=e, dtype=torch.float64) for e in EXECUTORS)
    assert toys.distance(one.server.params, other.server.params) < 1e-9
    model = toys.net(classes=6) if "vhl" in add else None
    plain = toys.run(toys.composition("fedbr"), None, model, dtype=torch.float64)
    gap = {n: p for n, p in one.server.params.items() if n.startswith("body")}
    assert toys.distance(gap, {n: plain.server.params[n] for n in gap}) > 1e-4


def test_batches_longer_than_the_pseudo_data_take_its_rows_again():
    finite = toys.run(toys.composition("fedbr"), batch_size=31, executor="stacked", dtype=torch.float64)
    serial = toys.run(toys.composition("fedbr"), batch_size=31, dtype=torch.float64)
    assert toys.distance(finite.server.params, serial.server.params) < 1e-10


def test_threads_change_no_bit():
    one, two = (toys.run(toys.composition("fedbr"), workers=n) for n in (1, 2))
    assert toys.equal(one.server.params, two.server.params)


@pytest.mark.parametrize("settings", [{"tau1": 0.0}, {"mu": -0.1}, {"pseudo_strength": -1.0}])
def test_values_out_of_range_are_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"methods\.toy\.{name}"):
        toys.composition("fedbr", **settings)


def test_sets_for_every_round_are_counted_every_time_a_client_takes_part():
    """Three sets of 2 rows: 2 * (5 inputs + 3 targets) floats for every client in each of three rounds."""
    one = {"x": torch.zeros(1, 2, 5), "y": torch.full((1, 2, 3), 1 / 3)}
    three = {name: leaf.expand(3, *leaf.shape[1:]).clone() for name, leaf in one.items()}
    once, often = (toys.run(toys.composition("fedbr"), resources={"pseudo": sets}) for sets in (one, three))
    assert often.download_bytes - once.download_bytes == 2 * 5 * 2 * (5 + 3) * 4
