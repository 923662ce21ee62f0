"""Virtual and pseudo data: recipes, determinism, separability."""

import hashlib

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from fedcore.data import pseudo, virtual
from fedcore.seeds import stream
from tests import toys


def nearest_mean_accuracy(images, labels):
    """How often an image is nearest to its own class's mean image."""
    flat = images.reshape(len(images), -1).astype(float)
    means = np.stack([flat[labels == c].mean(0) for c in np.unique(labels)])
    distance = ((flat[:, None] - means[None]) ** 2).sum(-1)
    return float((distance.argmin(1) == labels).mean())


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (4, 17, 9)])
def test_noise_of_any_shape_is_separable(shape):
    images, labels = virtual.noise(shape, 10, 20, seed=0)
    assert images.shape == (200, *shape)
    assert images.dtype == np.uint8
    assert labels.tolist() == [c for c in range(10) for _ in range(20)]
    assert nearest_mean_accuracy(images, labels) > 0.99
    black = (images == 0).mean()
    assert 0.25 < black < 0.6  # half of the noise is below 0
    assert (images == 255).mean() > 0.02


def test_noise_follows_the_recipe():
    """Class mean N(0, I) of C x 8 x 8, examples mean + N(0, .5^2), bilinear without aligned corners, cut, bytes."""
    images, _ = virtual.noise((3, 32, 32), 2, 4, seed=5)
    mean = stream(5, "virtual/noise/mean", 1).normal(size=(3, 8, 8))
    example = mean + 0.5 * stream(5, "virtual/noise/examples", 1).normal(size=(4, 3, 8, 8))[2]
    # By hand at one pixel: output 13 of 32 lies at cell (13 + .5) / 4 - .5 = 2.875, so 1/8 of cell 2 and 7/8 of cell 3.
    cell = lambda a, b: float(example[1, a, b])  # noqa: E731
    value = (cell(2, 2) + 7 * cell(2, 3) + 7 * cell(3, 2) + 49 * cell(3, 3)) / 64
    assert int(images[6, 1, 13, 13]) == int(np.floor(np.clip(value, 0, 1) * 255 + 0.5))
    whole = interpolate(torch.from_numpy(example.astype(np.float32))[None], size=(32, 32), mode="bilinear")[0]
    expected = np.floor(np.clip(whole.numpy(), 0, 1) * np.float32(255) + np.float32(0.5))
    assert np.array_equal(images[6], expected.astype(np.uint8))


def test_noise_has_the_stated_spread():
    """A cell is black with the probability that N(mean, 0.5^2) is below 0."""
    images, labels = virtual.noise((1, 8, 8), 3, 2000, seed=1)
    mean = torch.from_numpy(stream(1, "virtual/noise/mean", 2).normal(size=(1, 8, 8)))
    black = torch.from_numpy((images[labels == 2] == 0).mean(0))
    torch.testing.assert_close(black, torch.special.ndtr(-mean / 0.5), rtol=0, atol=0.05)
    plain, _ = virtual.noise((1, 8, 8), 3, 5, seed=1, spread=0.0)
    assert np.array_equal(plain[0], plain[4])


def test_noise_depends_on_seed_and_class_alone():
    images, _ = virtual.noise((1, 8, 8), 4, 3, seed=0)
    fewer, _ = virtual.noise((1, 8, 8), 2, 3, seed=0)
    assert np.array_equal(images[:6], fewer)
    assert not np.array_equal(images, virtual.noise((1, 8, 8), 4, 3, seed=1)[0])
    assert hashlib.sha256(images).hexdigest() == hashlib.sha256(virtual.noise((1, 8, 8), 4, 3, 0)[0]).hexdigest()


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (2, 4, 7)])
def test_stylegan_of_any_shape_is_separable_and_reproducible(shape):
    images, labels = virtual.stylegan(shape, 5, 12, seed=0, width=24)
    assert images.shape == (60, *shape)
    assert images.dtype == np.uint8
    assert nearest_mean_accuracy(images, labels) > 0.75  # chance is 0.2
    assert len({image.tobytes() for image in images}) == 60
    again, _ = virtual.stylegan(shape, 3, 12, seed=0, width=24)
    assert np.array_equal(images[:36], again)
    assert not np.array_equal(images[:36], virtual.stylegan(shape, 3, 12, seed=1, width=24)[0])


def test_stylegan_is_the_reference_generator():
    """One 8 x 8 image against modulated weights written out: w * style, normalised per output, one image at a time."""
    generator = virtual._StyleGan(3, (3, 8, 8), 16, 12)
    z = torch.from_numpy(stream(1, "test").normal(size=16).astype(np.float32))
    w = z / (z**2).mean().sqrt()
    w = torch.nn.functional.leaky_relu(w @ generator._mapping, 0.2) * 2**0.5

    def modulated(name, weight, demodulate=True):
        weight = weight * (1 + w @ generator._styles[name])[None, :, None, None]
        return weight / (weight**2).sum((1, 2, 3), keepdim=True).sqrt() if demodulate else weight

    def activate(x):
        return torch.where(x > 0, x, 0.2 * x) * 2**0.5

    row = torch.tensor([1.0, 3.0, 3.0, 1.0])
    kernel = (row[:, None] * row / row.sum() ** 2 * 4)[None, None]

    def blur(x, padding):
        return torch.cat([torch.nn.functional.conv2d(torch.nn.functional.pad(c[None], padding), kernel) for c in x])

    conv, out = generator._convs, generator._outs
    x = activate(torch.nn.functional.conv2d(generator._start[0], modulated("4", conv["4"]), padding=1))
    image = torch.nn.functional.conv2d(x, modulated("4/out", out["4"], False))
    weight = modulated("8/up", conv["8/up"]).transpose(0, 1)
    grown = torch.nn.functional.conv_transpose2d(x, weight, stride=2)
    x = activate(blur(grown, (1, 1, 1, 1)))
    x = activate(torch.nn.functional.conv2d(x, modulated("8/flat", conv["8/flat"]), padding=1))
    sparse = torch.zeros(3, 8, 8)
    sparse[:, ::2, ::2] = image
    image = blur(sparse, (2, 1, 2, 1)) + torch.nn.functional.conv2d(x, modulated("8/out", out["8"], False))
    torch.testing.assert_close(generator(z[None])[0], image, rtol=1e-4, atol=1e-4)


def test_stylegans_draws_have_the_stated_scale():
    generator = virtual._StyleGan(0, (3, 8, 8), 64, 96)
    assert float(generator._mapping.std()) == pytest.approx(1 / 8, rel=0.05)
    assert float(generator._start.std()) == pytest.approx(1.0, rel=0.05)
    assert float(generator._convs["8/up"].std()) == pytest.approx(1 / (9 * 96) ** 0.5, rel=0.02)
    images, labels = virtual.stylegan((1, 8, 8), 2, 30, 0, width=16, spread=0.0)
    assert (images[labels == 0] == images[0]).all()


@pytest.mark.parametrize(("make", "balanced"), [(pseudo.rsm, False), (pseudo.rsm_balanced, True)])
@pytest.mark.parametrize("image", [False, True])
def test_pseudo_rows_are_means_of_one_clients_training_examples(make, balanced, image):
    fed = toys.federation(image=image)
    inputs, targets = make(fed, 16, seed=3)
    assert inputs.dtype == targets.dtype == np.float32
    assert inputs.shape == (16, *fed.dataset.input_shape)
    np.testing.assert_allclose(targets, 1 / 3)
    assert targets.shape == (16, 3)
    owners = set()
    for row in range(16):
        chosen = pseudo.chosen_rows(fed, row, 3, 10, balanced=balanced)
        assert len(chosen) == 10
        (owner,) = [c for c in range(5) if np.isin(chosen, fed.rows(c, "train")).all()]
        owners.add(owner)
        np.testing.assert_allclose(inputs[row], fed.dataset.inputs[chosen].mean(0), rtol=1e-5)
    assert len(owners) > 2


def test_balanced_rows_take_classes_alike():
    """A client with 60 examples of class 0 and 3 of class 1: about 1 in 20 against 1 in 2."""
    fed = toys.federation((60,), classes=2)
    own = fed.rows(0, "train")
    labels = fed.dataset.labels.copy()
    labels[own] = (np.arange(60) >= 57).astype(np.int64)
    object.__setattr__(fed.dataset, "labels", labels)

    def share(balanced):
        rows = [pseudo.chosen_rows(fed, r, 0, 10, balanced=balanced) for r in range(60)]
        return float((labels[np.concatenate(rows)] == 1).mean())

    assert share(balanced=False) < 0.1
    assert share(balanced=True) == pytest.approx(0.5, abs=0.07)


def test_pseudo_data_never_uses_unseen_clients_or_test_rows_and_is_constant_until_sent_again():
    fed = toys.federation(unseen=2)
    used = np.concatenate([pseudo.chosen_rows(fed, r, 0, 10) for r in range(40)])
    allowed = np.concatenate([fed.rows(c, "train") for c in range(3)])
    assert np.isin(used, allowed).all()
    once, again = pseudo.rsm(fed, 8, 0)[0], pseudo.rsm(fed, 8, 0)[0]
    assert np.array_equal(once, again)
    assert np.array_equal(once[:4], pseudo.rsm(fed, 4, 0)[0])
    assert not np.array_equal(once, pseudo.rsm(fed, 8, 0, transfer=1)[0])
