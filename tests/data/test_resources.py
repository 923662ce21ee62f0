"""Folders of virtual and pseudo data: what comes out is what went in, made model-ready; damage is named."""

import json

import numpy as np
import pytest
import torch

from fedcore.data import pseudo, resources
from tests import toys
from tests.data.test_pseudo import OWN, PROXY

CPU = torch.device("cpu")


def _virtual(labels=None):
    images = np.arange(12 * 64, dtype=np.uint64).reshape(12, 1, 8, 8) % 256
    return images.astype(np.uint8), np.repeat(np.arange(3), 4) if labels is None else np.asarray(labels)


def _pseudo(sets=2, rows=4):
    numbers = np.random.Generator(np.random.PCG64(0))
    inputs = numbers.uniform(0, 255, (sets, rows, 1, 8, 8)).astype(np.float32)
    return inputs, np.full((sets, rows, 3), 1 / 3, np.float32)


def test_virtual_images_become_minus_one_to_one(tmp_path):
    images, labels = _virtual()
    resources.save(tmp_path, images, labels, {"generator": "toy"})
    held = resources.load(tmp_path, toys.federation(image=True).dataset, CPU)
    assert held["x"].shape == (12, 1, 8, 8)
    assert held["x"].dtype == torch.float32
    assert (float(held["x"].min()), float(held["x"].max())) == (-1.0, 1.0)
    assert float(held["x"][0, 0, 6, 3]) == pytest.approx(51 / 127.5 - 1)
    assert held["y"].tolist() == labels.tolist()
    assert json.loads((tmp_path / "meta.json").read_text())["shape"] == [12, 1, 8, 8]


def test_pseudo_sets_are_normalised_like_the_data_set(tmp_path):
    inputs, targets = _pseudo()
    resources.save(tmp_path, inputs, targets, {})
    held = resources.load(tmp_path, toys.federation(image=True).dataset, CPU)
    assert held["x"].shape == (2, 4, 1, 8, 8)
    assert held["y"].shape == (2, 4, 3)
    np.testing.assert_allclose(held["x"], (inputs - 128) / 32, rtol=1e-5, atol=1e-5)


def test_every_channel_is_normalised_by_its_own_figures(tmp_path):
    inputs = np.full((2, 5, 3, 4, 4), 180, np.float32)
    resources.save(tmp_path, inputs, np.full((2, 5, 5), 0.2, np.float32), {})
    held = resources.load(tmp_path, PROXY, CPU)
    assert held["x"].shape == (2, 5, 3, 4, 4)
    # (180 - 120) / 60, (180 - 110) / 50, (180 - 100) / 40
    np.testing.assert_allclose(held["x"][1, 4, :, 3, 3], [1.0, 1.4, 2.0], rtol=1e-5)


def test_pseudo_vectors_too(tmp_path):
    fed = toys.federation()
    inputs, targets = pseudo.rsm(fed, 4, 0)
    resources.save(tmp_path, inputs[None], targets[None], {})
    held = resources.load(tmp_path, fed.dataset, CPU)
    assert held["x"].shape == (1, 4, 5)
    np.testing.assert_allclose(held["x"][0], inputs)


def test_the_model_sees_mixture_by_the_proxys_statistics(tmp_path):
    inputs, targets = pseudo.mixture(PROXY, OWN, 3, seed=2)
    resources.save(tmp_path, inputs[None], targets[None], {})
    seen = resources.load(tmp_path, OWN, CPU)["x"][0]
    for row in range(3):
        mean = PROXY.inputs[pseudo.proxy_rows(PROXY, row, 2, 10)].mean(0)
        expected = (mean - np.reshape((120, 110, 100), (3, 1, 1))) / np.reshape((60, 50, 40), (3, 1, 1))
        np.testing.assert_allclose(seen[row], expected, atol=1e-5)


def test_the_hash_knows_values_shapes_and_types(tmp_path):
    inputs, targets = _pseudo(2, 4)

    def digest(x, y):
        resources.save(tmp_path, x, y, {"generator": "toy"})
        return resources.content_hash(tmp_path)

    first = digest(inputs, targets)
    assert first == digest(inputs.copy(), targets.copy())
    assert first != digest(inputs.reshape(1, 8, 1, 8, 8), targets.reshape(1, 8, 3))
    assert first != digest(inputs + np.float32(1e-3), targets)
    images, labels = _virtual()
    assert digest(images, labels) != digest(images.view(np.int8), labels)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _virtual([0, 1, -1, 2] * 3), "virtual class -1 in row 2; valid: 0, 1, "),
        (lambda: _virtual(np.full(12, 0.5)), r"expected whole numbers \[M\], got float64 \[12\]"),
        (lambda: _virtual(np.zeros(11, np.int64)), r"shape \[11\] for inputs \[12, 1, 8, 8\]"),
        (lambda: (_virtual()[0][:, :, 1:], _virtual()[1]), r"examples have shape \(1, 7, 8\), the data set's"),
        (lambda: (_pseudo()[0], _pseudo()[1][:, :3]), r"shape \[2, 3, 3\] for inputs \[2, 4, 1, 8, 8\]"),
        (lambda: (_pseudo()[0][0], _pseudo()[1]), r"examples have shape \(8, 8\), the data set's \(1, 8, 8\)"),
        (
            lambda: (_pseudo()[0], np.full((2, 4, 4), 0.25, np.float32)),
            "soft labels over 4 classes, data set 'toy'",
        ),
    ],
)
def test_what_does_not_fit_the_data_set_is_refused_by_name(tmp_path, make, message):
    resources.save(tmp_path, *make(), {})
    with pytest.raises(ValueError, match=message):
        resources.load(tmp_path, toys.federation(image=True).dataset, CPU)


@pytest.mark.parametrize("row", [[0.5, 0.5, 0.1], [1.5, -0.5, 0.0], [np.nan, 0.5, 0.5]])
def test_soft_labels_sum_to_one(tmp_path, row):
    inputs, targets = _pseudo()
    targets[1, 2] = row
    resources.save(tmp_path, inputs, targets, {})
    with pytest.raises(ValueError, match=r"targets.npy: soft labels of set 1, row 2 must be >= 0 and sum to 1"):
        resources.load(tmp_path, toys.federation(image=True).dataset, CPU)


def test_changed_and_broken_arrays_are_named(tmp_path):
    images, labels = _virtual()
    resources.save(tmp_path, images, labels, {})
    np.save(tmp_path / "targets.npy", labels[::-1].copy())
    with pytest.raises(ValueError, match="its arrays are not those it was made with"):
        resources.load(tmp_path, toys.federation(image=True).dataset, CPU)
    (tmp_path / "targets.npy").write_bytes(b"")
    with pytest.raises(ValueError, match="not readable"):
        resources.load(tmp_path, toys.federation(image=True).dataset, CPU)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(ValueError, match=r"meta.json: not readable"):
        resources.content_hash(tmp_path)
