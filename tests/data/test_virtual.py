"""Virtual data of noise and of untrained networks: recipes, determinism, separability."""

import hashlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, conv_transpose2d, interpolate, leaky_relu, pad

from fedcore.data import virtual
from fedcore.data.virtual import untrained_cnns, untrained_stylegan
from fedcore.seeds import module_stream, stream


@pytest.fixture(autouse=True)
def _one_thread():
    """A convolution's last bits depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def reference_image(generator, z, noise):
    """An 8 x 8 image with the weights written out: w * style, normalised per output, and noise with its first gain."""
    gain = 0.0  # as the published generator starts
    w = z / (z**2).mean().sqrt()
    w = leaky_relu(w @ generator._mapping, 0.2) * 2**0.5

    def modulated(name, weight, demodulate=True):
        weight = weight * (1 + w @ generator._styles[name])[None, :, None, None]
        return weight / (weight**2).sum((1, 2, 3), keepdim=True).sqrt() if demodulate else weight

    def activate(x):
        x = x + gain * noise(x.shape)
        return torch.where(x > 0, x, 0.2 * x) * 2**0.5

    row = torch.tensor([1.0, 3.0, 3.0, 1.0])
    kernel = (row[:, None] * row / row.sum() ** 2 * 4)[None, None]

    def blur(x, padding):
        return torch.cat([conv2d(pad(c[None], padding), kernel) for c in x])

    conv, out = generator._convs, generator._outs
    x = activate(conv2d(generator._start[0], modulated("4", conv["4"]), padding=1))
    image = conv2d(x, modulated("4/out", out["4"], False))
    grown = conv_transpose2d(x, modulated("8/up", conv["8/up"]).transpose(0, 1), stride=2)
    x = activate(blur(grown, (1, 1, 1, 1)))
    x = activate(conv2d(x, modulated("8/flat", conv["8/flat"]), padding=1))
    sparse = torch.zeros(3, 8, 8)
    sparse[:, ::2, ::2] = image
    return blur(sparse, (2, 1, 2, 1)) + conv2d(x, modulated("8/out", out["8"], False))


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_stylegan_is_the_reference_generator_whatever_the_mean_of_its_noise(mean):
    generator = untrained_stylegan.Generator(3, (3, 8, 8), 16, 12)
    z = torch.from_numpy(stream(1, "test").normal(size=16).astype(np.float32))
    drawn = stream(2, "test")

    def noise(shape):
        return torch.from_numpy(drawn.normal(mean, 0.1 / 7, size=shape).astype(np.float32))

    torch.testing.assert_close(generator(z[None])[0], reference_image(generator, z, noise), rtol=1e-4, atol=1e-4)


def test_stylegans_draws_have_the_stated_scale():
    generator = untrained_stylegan.Generator(0, (3, 8, 8), 64, 96)
    assert float(generator._mapping.std()) == pytest.approx(1 / 8, rel=0.05)
    assert float(generator._start.std()) == pytest.approx(1.0, rel=0.05)
    assert float(generator._convs["8/up"].std()) == pytest.approx(1 / (9 * 96) ** 0.5, rel=0.02)
    images, labels = virtual.stylegan((1, 8, 8), 2, 30, 0, width=16, spread=0.0)
    assert (images[labels == 0] == images[0]).all()


SMALL_CNN = {"latent": 8, "width": 4, "diversity_steps": 2, "diversity_batch": 4}
GENERATORS = {
    "noise": (virtual.noise, {}),
    "stylegan": (virtual.stylegan, {"width": 16, "latent": 8}),
    "cnn": (virtual.cnn, SMALL_CNN),
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_more_classes_or_examples_leave_the_others_as_they_are(generator):
    """Also across a chunk's end, where fewer images are computed together."""
    make, options = GENERATORS[generator]
    few, _ = make((2, 12, 10), 2, 3, seed=4, **options)
    many, labels = make((2, 12, 10), 3, 14, seed=4, **options)
    assert labels.tolist() == [0] * 14 + [1] * 14 + [2] * 14
    assert labels.dtype == np.int64
    for label in range(2):
        assert np.array_equal(few[3 * label : 3 * label + 3], many[14 * label : 14 * label + 3])
    again, _ = make((2, 12, 10), 3, 14, seed=4, **options)
    assert hashlib.sha256(many).hexdigest() == hashlib.sha256(again).hexdigest()
    assert not np.array_equal(many, make((2, 12, 10), 3, 14, seed=5, **options)[0])


@pytest.mark.parametrize("generator", GENERATORS)
def test_generators_leave_torchs_random_state_alone(generator):
    make, options = GENERATORS[generator]
    before = torch.random.get_rng_state()
    make((1, 8, 8), 2, 2, seed=0, **options)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (4, 40, 33)])
def test_cnns_of_any_shape_are_separable(shape):
    images, labels = virtual.cnn(shape, 5, 12, seed=0, **SMALL_CNN)
    assert images.shape == (60, *shape)
    assert images.dtype == np.uint8
    assert nearest_mean_accuracy(images, labels) > 0.65  # chance is 0.2, and 8 x 8 in grey is little
    assert len({image.tobytes() for image in images}) > 30  # small grey ones may be black all over
    assert 0.2 < (images == 0).mean() < 0.8  # what tanh puts below 0 is black


def test_the_network_has_the_stated_sizes():
    """8 -> 10 -> 20 -> 22 -> 44 -> 46 -> 48 by transposed convolutions, 44, 40, 36, 32 by plain ones."""
    network = untrained_cnns.generator(3, 64, 64)
    sizes, x = [], torch.zeros(2, 64)
    for layer in network:
        x = layer(x)
        if isinstance(layer, nn.ConvTranspose2d | nn.Upsample | nn.Conv2d):
            sizes.append((type(layer).__name__, x.shape[1], x.shape[2]))
    grow, up, shrink = "ConvTranspose2d", "Upsample", "Conv2d"
    expected = [(grow, 64, 10), (up, 64, 20), (grow, 64, 22), (up, 64, 44), (grow, 64, 46), (grow, 64, 48)]
    assert sizes == [*expected, *((shrink, 64, n) for n in (44, 40, 36)), (shrink, 3, 32)]
    assert isinstance(network[-1], nn.Tanh)
    assert network[0].out_features == 512
    norms = [m for m in network if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert len(norms) == sum(isinstance(m, nn.ReLU) for m in network) == 8


def test_likeness_by_hand():
    """Two images whose cells are e0 and (e0 + e1) / sqrt 2, times any factor.

    The products are 1.5 at (0, 0), 0.5 at (0, 1), (1, 0) and (1, 1): 2 * 0.5^2 / (2 - 1) over 64^2 pairs. A second
    channel of ones has 2 * 1/64 everywhere: (64^2 - 64) * (1/32)^2 over 64^2.
    """
    images = torch.zeros(2, 2, 8, 8)
    images[0, 0, 0, 0] = 7.0
    images[1, 0, 0, :2] = 0.3
    images[:, 1] = 2.0
    expected = 0.5 / 64**2 + (64**2 - 64) / 32**2 / 64**2
    assert float(untrained_cnns.likeness(images)) == pytest.approx(expected, rel=1e-5)


def test_diversity_steps_descend_along_the_gradient_of_likeness():
    codes = torch.from_numpy(stream(0, "test").standard_normal((16, 8), np.float32))
    with module_stream(0, "test"):
        network = untrained_cnns.generator(1, 8, 4)
    before = untrained_cnns.likeness(network(codes))
    first = next(network.parameters())
    (slope,) = torch.autograd.grad(before, [first])
    expected = first.detach() - slope
    untrained_cnns._diversify(network, codes, 1.0)
    torch.testing.assert_close(first.detach(), expected)
    for _ in range(4):
        untrained_cnns._diversify(network, codes, 1.0)
    assert float(untrained_cnns.likeness(network(codes)).detach()) < 0.97 * float(before.detach())


def test_diversity_steps_are_taken_and_may_be_left_out():
    plain, stepped, faster = (
        virtual.cnn((1, 8, 8), 1, 4, 0, 8, 4, steps, 8, lr)[0] for steps, lr in ((0, 0.01), (3, 0.01), (3, 1e3))
    )
    assert len({images.tobytes() for images in (plain, stepped, faster)}) == 3
    assert len({image.tobytes() for image in plain}) == 4


@pytest.mark.parametrize(("generator", "total"), [("stylegan", 3 * 2), ("cnn", 3 * (2 + 2))])
def test_slow_generators_say_how_far_they_are(generator, total):
    make, options = GENERATORS[generator]
    calls = []
    make((1, 8, 8), 3, 11, seed=0, on_progress=lambda done, of: calls.append((done, of)), **options)
    assert calls == [(n, total) for n in range(1, total + 1)]
