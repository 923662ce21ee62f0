"""VHL against plain loops, the contrast's goldens and gradients, and what reduces to FedAvg."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedcore.addons.parts import supcon
from fedcore.seeds import stream
from fedcore.types import Batch, ClientInfo, Output, View
from tests import toys
from tests.methods import twins

EXECUTORS = ["serial", "stacked"]
ROWS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 0, 1])
ONES = torch.ones(4, dtype=torch.float64)


def contrast_in_loops(z, labels, temperature):
    """The definition, anchor by anchor."""
    z = [row / row.norm() for row in z]
    total = 0.0
    for i, anchor in enumerate(z):
        others = [j for j in range(len(z)) if j != i]
        positives = [j for j in others if labels[j] == labels[i]]
        if positives:
            s = {j: (anchor * z[j]).sum() / temperature for j in others}
            log_sum = torch.log(sum(torch.exp(v) for v in s.values()))
            total = total - sum(s[j] - log_sum for j in positives) / len(positives)
    return total / len(z)


def reference(work, alpha=1.0, contrast=1.0, contrast_virtual=0.1, temperature=0.5, size=5, rounds=3, tie=None):
    """Three rounds of FedAvg on natural and virtual batches, row by row where the paper sums over rows."""
    x = {n: p.clone() for n, p in work.initial.items()}
    images, classes = work.resources["virtual"]["x"], work.resources["virtual"]["y"]
    for round in range(rounds):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            w = twins.leaves(x)
            steps = -(-toys.SIZES[i] // 8)
            drawn = stream(work.seed, "draws/vhl", round, i).integers(0, 2**62, (steps, size)) % len(classes)
            for (inputs, labels), rows in zip(twins.batches(work, i, round), drawn, strict=True):
                z, virtual = twins.features(w, inputs), twins.features(w, images[rows])
                v = classes[rows]
                loss = cross_entropy(twins.classify(w, z), labels)
                loss = loss + alpha * cross_entropy(twins.classify(w, virtual), 3 + v)
                same = v if tie is None else torch.tensor([tie[int(c)] for c in v])
                both, tied = torch.cat([z, virtual.detach()]), torch.cat([labels, same])
                loss = loss + contrast * contrast_in_loops(both, tied, temperature)
                loss = loss + contrast_virtual * contrast_in_loops(virtual, v, temperature)
                g = twins.slopes(loss, w)
                w = twins.leaves({n: w[n] - 0.1 * g[n] for n in w})
            models.append({n: p.detach() for n, p in w.items()})
        x = twins.mean(models, cohort.weights)
    return x


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", ["full", "naive"])
def test_equals_plain_loops(executor, variant):
    settings = {"temperature": 0.5, "virtual_batch": 5, "variant": variant}
    work = toys.training(
        toys.composition(add={"vhl": settings}), participation=0.6, executor=executor, dtype=torch.float64
    )
    off = {"contrast": 0.0, "contrast_virtual": 0.0} if variant == "naive" else {}
    assert toys.distance(work.run().server.params, reference(work, **off)) < 1e-10


def _virtual(classes, dtype=torch.float64, shape=(5,), per_class=3):
    """Virtual data of so many classes, beside the toy's pseudo data."""
    generator = stream(7, "test")
    x = torch.from_numpy(generator.normal(size=(classes * per_class, *shape))).to(dtype)
    return {**toys.shared_data(toys.federation()), "virtual": {"x": x, "y": torch.arange(len(x)) // per_class}}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("tie", [(0, 2, 1, 2, 0), (2, 1)])
def test_virtual_classes_go_with_the_labels_they_are_given(executor, tie):
    """More classes than labels, and fewer: C + V outputs, and the calibration alone goes by the labels."""
    composed = toys.composition(add={"vhl": {"temperature": 0.5, "virtual_batch": 5, "labels": list(tie)}})
    assert composed.num_outputs(3) == 3 + len(tie)
    held = _virtual(len(tie))
    work = toys.training(composed, participation=0.6, executor=executor, dtype=torch.float64, resources=held)
    work.composition.check(work.net, work.train)
    assert toys.distance(work.run().server.params, reference(work, tie=tie)) < 1e-10


def test_every_label_for_itself_is_the_default_bit_for_bit():
    plain, named = (
        toys.run(toys.composition(add={"vhl": {"temperature": 0.5, "labels": labels}})) for labels in (None, [0, 1, 2])
    )
    assert toys.equal(plain.server.params, named.server.params)


def test_virtual_classes_that_do_not_map_to_labels_are_refused_before_anything_trains():
    five = _virtual(5, torch.float32)
    message = r"add\.vhl\.labels: the virtual data has 5 classes, {} labels; give each virtual class a label, 0 to 2"
    for labels, found in ((None, "there are 3"), ([0, 1, 2, 0], "the list has 4")):
        with pytest.raises(ValueError, match=message.format(found)):
            toys.training(toys.composition(add={"vhl": {"labels": labels}}), resources=five)
    work = toys.training(toys.composition(add={"vhl": {"labels": [0, 1, 2, 3, 0]}}), resources=five)
    message = r"add\.vhl\.labels: virtual class 3 goes with label 3, which does not exist; valid: 0 to 2"
    with pytest.raises(ValueError, match=message):
        work.composition.check(work.net, work.train)
    with pytest.raises(ValueError, match=message):
        toys.composition(add={"vhl": {"labels": [0, 1, 2, 3], "variant": "vftl"}}).check(toys.net(), work.train)
    for labels in ([], [-1], ["a"]):
        with pytest.raises(ValueError, match=r"methods\.toy\.add\.vhl\.labels"):
            toys.composition(add={"vhl": {"labels": labels}})


def test_virtual_images_are_cropped_flipped_and_scaled():
    """Row by row: a border of black, -1 before the scaling, and a window of it; then mirrored."""
    settings = {"virtual_batch": 6, "crop": 2, "flip": True, "std": 0.25}
    fed = toys.federation(image=True)
    model = toys.net({"name": "cnn", "channels": [3, 4], "hidden": 5}, image=True, classes=6)
    work = toys.training(toys.composition(add={"vhl": settings}), fed, model)
    addon, images = work.composition.addons["vhl"], work.resources["virtual"]["x"]
    (job,) = work._jobs([3], 0, work.composition.phases(work.train), "batches")
    drawn = {name: torch.from_numpy(values) for name, values in job.draws[0].items()}
    assert {name: tuple(values.shape) for name, values in drawn.items()} == {
        "vhl.rows": (4, 6),
        "vhl.crop": (4, 6, 2),
        "vhl.flip": (4, 6),
    }
    assert set(drawn["vhl.crop"].flatten().tolist()) <= set(range(-2, 3))
    batch = Batch(images[:1], images[:1, 0, 0, 0].long(), torch.ones(1), {n: d[1] for n, d in drawn.items()})
    view = View({}, {}, {}, work.resources, None, job.info, job.info.num_examples, job.info.num_examples, 0.1, 0, "t")
    seen = addon.rows(batch, view)
    flips = 0
    for row in range(6):
        bordered = np.full((12, 12), -1.0, np.float32)
        bordered[2:10, 2:10] = images[drawn["vhl.rows"][1, row] % 12, 0].numpy()
        above, left = (2 + drawn["vhl.crop"][1, row]).tolist()
        window = bordered[above : above + 8, left : left + 8]
        flip = int(drawn["vhl.flip"][1, row])
        flips += flip
        assert np.array_equal(seen[row, 0].numpy(), 2 * (window[:, ::-1] if flip else window))
    assert 0 < flips < 6
    plain = toys.training(toys.composition(add={"vhl": {"virtual_batch": 6}}), fed, model)
    same = next(plain._jobs([3], 0, work.composition.phases(work.train), "batches")).draws[0]["vhl.rows"]
    assert np.array_equal(same, drawn["vhl.rows"])  # which rows are drawn does not depend on what is done to them
    with pytest.raises(
        ValueError, match=r"add\.vhl\.crop: 8 leaves nothing of inputs of shape \(1, 8, 8\); use at most 7"
    ):
        toys.composition(add={"vhl": {"crop": 8}}).check(model, work.train)


def test_twice_the_scale_is_twice_the_virtual_data_bit_for_bit():
    held = _virtual(3, torch.float32)
    double = {**held, "virtual": {**held["virtual"], "x": 2 * held["virtual"]["x"]}}
    one = toys.run(toys.composition(add={"vhl": {"std": 0.25}}), resources=held)
    other = toys.run(toys.composition(add={"vhl": {}}), resources=double)
    assert toys.equal(one.server.params, other.server.params)


@pytest.mark.parametrize(
    ("rows", "labels", "temperature", "expected"),
    [
        (ROWS, LABELS, 0.07, 0.282234),
        (ROWS, LABELS, 0.5, 0.636671),
        (ROWS, torch.arange(4), 0.5, 0.0),
        (ROWS[:1].expand(4, 2), torch.zeros(4), 0.07, math.log(3)),
    ],
)
def test_golden_contrasts(rows, labels, temperature, expected):
    """The last: n identical rows of one class have n - 1 equal others each, so log(n - 1)."""
    assert float(supcon(rows, labels, ONES, temperature)) == pytest.approx(expected, abs=1e-6)
    scaled = rows * torch.tensor([[0.1], [3.0], [70.0], [1.0]])
    assert float(supcon(scaled, labels, ONES, temperature)) == pytest.approx(expected, abs=1e-6)


def test_padding_is_neither_anchor_nor_other():
    torch.manual_seed(0)
    rows, labels = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 2, 0, 1])
    mask = torch.tensor([1.0, 1, 1, 1, 1, 0, 0], dtype=torch.float64)
    padded = supcon(rows.requires_grad_(), labels, mask, 0.5)
    assert float(padded.detach()) == pytest.approx(float(contrast_in_loops(rows[:5], labels[:5], 0.5).detach()))
    (slope,) = torch.autograd.grad(padded, rows)
    assert slope[5:].abs().max() == 0
    assert slope[:5].abs().max() > 0.01


@pytest.mark.parametrize("real", [1, 2])
def test_a_row_alone_costs_nothing_and_has_no_gradient(real):
    rows = ROWS.clone().requires_grad_()
    mask = (torch.arange(4) < real).double()
    loss = supcon(rows, LABELS, mask, 0.07)
    (slope,) = torch.autograd.grad(loss, rows)
    assert float(loss.detach()) == 0.0
    assert torch.equal(slope, torch.zeros_like(slope))


def test_the_contrasts_gradient_is_its_finite_difference():
    torch.manual_seed(1)
    rows = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    labels, mask = torch.tensor([0, 1, 0, 1, 2, 0]), torch.tensor([1.0, 1, 1, 1, 1, 0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: supcon(z, labels, mask, 0.5), rows)


def _terms(**settings):
    """A penalty of one batch, with the features it was computed from."""
    addon = toys.composition(add={"vhl": {"virtual_batch": 6, "temperature": 0.5, **settings}}).addons["vhl"]
    fed = toys.federation()
    generator = stream(0, "test")
    one = torch.tensor(1.0)
    view = View({}, {}, {}, toys.shared_data(fed), None, ClientInfo(one, torch.ones(3)), one, one, 0.1, 0, "train")
    z, virtual = (torch.from_numpy(generator.normal(size=(n, 4))).requires_grad_() for n in (3, 6))
    batch = Batch(z, torch.tensor([0, 1, 1]), torch.ones(3), {"vhl.rows": torch.arange(6)})
    rows = Output(virtual, torch.cat([virtual, virtual[:, :2]], 1))
    term, _ = addon.penalty(None, {}, {}, batch, Output(z, z), rows, view)
    return torch.autograd.grad(term, [z, virtual], allow_unused=True, materialize_grads=True)


def test_the_calibration_moves_natural_features_alone():
    natural, virtual = _terms(alpha=0.0, contrast_virtual=0.0)
    assert natural.abs().max() > 0.01
    assert virtual.abs().max() == 0
    natural, virtual = _terms(alpha=0.0, contrast=0.0)
    assert natural.abs().max() == 0
    assert virtual.abs().max() > 0.001


@pytest.mark.parametrize("executor", EXECUTORS)
def test_naive_is_without_the_contrasts_bit_for_bit(executor):
    one, other = (
        toys.run(toys.composition(add={"vhl": s}), executor=executor, participation=0.6)
        for s in ({"variant": "naive"}, {"contrast": 0.0, "contrast_virtual": 0.0})
    )
    assert toys.equal(one.server.params, other.server.params)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_without_virtual_rows_the_extra_outputs_alone_differ_from_fedavg(executor):
    """With a head of C outputs it is FedAvg bit for bit; with C + V the natural softmax has V more terms."""
    settings = {"participation": 0.6, "executor": executor}
    off = toys.composition(add={"vhl": {"virtual_batch": 0, "contrast": 0.0, "contrast_virtual": 0.0}})
    plain, reduced = toys.run(**settings), toys.run(off, None, toys.net(classes=3), **settings)
    assert toys.equal(plain.server.params, reduced.server.params)
    wide = toys.run(off, **settings)
    assert wide.server.params["head.weight"].shape == (6, 6)
    assert toys.distance({"b": plain.server.params["body.1.bias"]}, {"b": wide.server.params["body.1.bias"]}) > 1e-4


def test_a_virtual_forward_alone_changes_batch_normalisation_and_nothing_else():
    fed = toys.federation(image=True)
    zero = {"vhl": {"alpha": 0.0, "contrast": 0.0, "contrast_virtual": 0.0}}
    settings = {"last_batch": "wrap", "rounds": 1, "dtype": torch.float64}
    gaps = {}
    for norm in ("group", "batch"):
        model = toys.net({"name": "cnn", "channels": [4, 6], "hidden": 16, "norm": norm}, image=True, classes=3)
        plain, virtual = (toys.run(toys.composition(add=a), fed, model, **settings) for a in ({}, zero))
        gaps[norm] = toys.distance(plain.server.params, virtual.server.params)
    assert gaps["group"] < 1e-12
    assert gaps["batch"] > 1e-4


def test_virtual_rows_never_touch_the_clients_data_order():
    """Another virtual batch size leaves the natural batches and the cohort as they were."""
    work = [toys.training(toys.composition(add={"vhl": {"virtual_batch": b}})) for b in (2, 7)]
    jobs = [next(w._jobs([3], 0, w.composition.phases(w.train), "batches")) for w in work]
    assert np.array_equal(jobs[0].schedules[0].positions, jobs[1].schedules[0].positions)
    assert [j.draws[0]["vhl.rows"].shape for j in jobs] == [(4, 2), (4, 7)]


def test_the_virtual_data_is_sent_once_to_a_client():
    plain = toys.run(None, None, toys.net(classes=6))
    progress = toys.run(toys.composition(add={"vhl": {}}))
    size = 12 * (5 * 4 + 8)  # rows of 5 floats and a label
    assert progress.download_bytes - plain.download_bytes == 5 * size
    assert progress.upload_bytes == plain.upload_bytes


@pytest.mark.parametrize("method", ["scaffold", "fednova"])
def test_goes_on_top_of_other_methods(method):
    add = {"vhl": {"temperature": 0.5}, "prox": {"mu": 0.1}, "dbe": {"kappa": 1.0}}
    one, other = (toys.run(toys.composition(method, add), executor=e, dtype=torch.float64) for e in EXECUTORS)
    assert toys.distance(one.server.params, other.server.params) < 1e-9


@pytest.mark.parametrize(
    "settings", [{"contrast": -1.0}, {"temperature": 0.0}, {"variant": "vfx"}, {"virtual_batch": -1}]
)
def test_values_out_of_range_are_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=rf"add\.vhl\.{name}"):
        toys.composition(add={"vhl": settings})


@pytest.mark.parametrize("executor", EXECUTORS)
def test_alignment_with_random_features_equals_plain_loops(executor):
    """C = 3 classes, B = 8: 8 // 3 + 1 = 3 draws of each class per step."""
    work = toys.training(
        toys.composition(add={"vhl": {"variant": "vfa", "temperature": 0.5, "anchor_std": 0.2, "contrast": 0.7}}),
        None,
        toys.net(),
        participation=0.6,
        executor=executor,
        dtype=torch.float64,
    )
    x = {n: p.clone() for n, p in work.initial.items()}
    anchors = torch.from_numpy(stream(0, "server/start").random((3, 6)))
    for round in range(3):
        cohort = work._cohort(round)
        models = []
        for i in cohort.clients:
            w = twins.leaves(x)
            steps = -(-toys.SIZES[i] // 8)
            noise = stream(0, "draws/vhl", round, i).standard_normal((steps, 3, 3, 6)).astype(np.float32)
            for (inputs, labels), drawn in zip(twins.batches(work, i, round), noise, strict=True):
                z = twins.features(w, inputs)
                others = [anchors[c] + 0.2 * torch.from_numpy(drawn[k, c]) for k in range(3) for c in range(3)]
                tied = torch.cat([labels, torch.tensor([0, 1, 2] * 3)])
                loss = cross_entropy(twins.classify(w, z), labels)
                loss = loss + 0.7 * contrast_in_loops(torch.cat([z, torch.stack(others)]), tied, 0.5)
                g = twins.slopes(loss, w)
                w = twins.leaves({n: w[n] - 0.1 * g[n] for n in w})
            models.append({n: p.detach() for n, p in w.items()})
        x = twins.mean(models, cohort.weights)
    assert toys.distance(work.run().server.params, x) < 1e-10


@pytest.mark.parametrize("tie", [None, (0, 2, 1, 2)])
def test_transfer_learning_trains_the_body_alone_before_round_one(tie):
    add = {"vhl": {"variant": "vftl", "pretrain_steps": 3, "pretrain_batch": 4, "pretrain_lr": 0.2, "labels": tie}}
    held = _virtual(4) if tie else None
    work = toys.training(toys.composition(add=add), None, toys.net(), dtype=torch.float64, resources=held)
    images, labels = work.resources["virtual"]["x"], work.resources["virtual"]["y"]
    labels = torch.tensor([tie[int(c)] for c in labels]) if tie else labels
    w = twins.leaves(work.net.initial_params)
    for rows in stream(0, "prepare/vhl").integers(0, len(labels), (3, 4)):
        g = twins.slopes(cross_entropy(twins.classify(w, twins.features(w, images[rows])), labels[rows]), w)
        w = twins.leaves({n: w[n] - 0.2 * g[n] for n in w})
    expected = {n: p.detach() for n, p in w.items() if n.startswith("body.")}
    head = {n: p for n, p in work.net.initial_params.items() if n.startswith("head.")}
    assert toys.distance(work.initial, {**expected, **head}) < 1e-12
    off = toys.composition(add={"vhl": {"variant": "vftl", "pretrain_steps": 0}})
    assert toys.equal(toys.run(off, None, toys.net()).server.params, toys.run().server.params)


@pytest.mark.parametrize("variant", ["full", "vfa"])
def test_looks_at_any_layer(variant):
    fed, layer = toys.federation(image=True), {"vhl": {"layer": "conv1", "temperature": 0.5, "variant": variant}}
    classes = 6 if variant == "full" else 3
    model = toys.net({"name": "cnn", "channels": [3, 4], "hidden": 5}, image=True, classes=classes)
    one, other = (toys.run(toys.composition(add=layer), fed, model, executor=e, dtype=torch.float64) for e in EXECUTORS)
    assert toys.distance(one.server.params, other.server.params) < 1e-9
    whole = toys.run(toys.composition(add={"vhl": {**layer["vhl"], "layer": None}}), fed, model, dtype=torch.float64)
    assert toys.distance(one.server.params, whole.server.params) > 1e-6
    with pytest.raises(ValueError, match=r"layer: the model has no layer 'conv9'; valid: conv1, conv2"):
        toys.composition(add={"vhl": {"layer": "conv9"}}).check(model, toys.training().train)


def test_reads_virtual_outputs_three_ways():
    """Two classes: outputs 0, 1 natural, 2, 3 virtual. Virtual 3 is class 1; without virtual outputs 0 wins."""
    logits = torch.tensor([[2.0, 1.0, 0.0, 3.0], [0.0, 4.0, 1.0, 2.0], [0.0, 0.5, 9.0, 0.0]])
    found = toys.composition(add={"vhl": {}}).addons["vhl"].predictions(logits, 2)
    assert found["natural"].tolist() == [0, 1, 1]
    assert found["shifted"].tolist() == [1, 1, 0]
    named = toys.composition(add={"vhl": {"labels": [1, 0, 1]}}).addons["vhl"]
    wide = torch.cat([logits, torch.tensor([[0.0], [0.0], [10.0]])], 1)  # the third now says virtual class 2
    assert named.predictions(wide, 2)["shifted"].tolist() == [0, 1, 1]
