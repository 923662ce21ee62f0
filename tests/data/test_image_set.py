"""An image set as virtual data: which classes and rows, which size, which channels."""

import numpy as np
import pytest

from fedcore.config import ConfigError
from fedcore.data import virtual
from fedcore.data.dataset import Dataset
from tests import toys


def image_set(channels=3, size=6, classes=7, rows=12, brightest=255, test_rows=14):
    """Each class a colour of its own, with a little noise; the test rows, which must not show, are zero."""
    numbers = np.random.Generator(np.random.PCG64(3))
    labels = np.concatenate([np.repeat(np.arange(classes), rows), np.arange(test_rows) % classes])
    colours = numbers.uniform(0.3, 0.9, (classes, channels, 1, 1))
    values = colours[labels] + numbers.uniform(-0.1, 0.1, (len(labels), channels, size, size))
    inputs = np.round(values * brightest).astype(np.uint8)
    inputs[0, 0, 0, 0] = brightest
    inputs[-test_rows:] = 0
    names = tuple(f"kind {c}" for c in range(classes))
    return Dataset("pictures", inputs, labels, names, (0.0,) * channels, (1 / 255,) * channels, classes * rows)


def test_the_images_are_training_rows_of_the_drawn_classes():
    source = image_set()
    images, labels = virtual.images(source, (3, 6, 6), 4, 5, seed=1)
    assert images.shape == (20, 3, 6, 6)
    assert images.dtype == np.uint8
    assert labels.tolist() == [c for c in range(4) for _ in range(5)]
    chosen = virtual.chosen_classes(source, 4, 1)
    assert len(set(chosen)) == 4
    for label, own in enumerate(chosen):
        held = {image.tobytes() for image in source.inputs[:84][source.labels[:84] == own]}
        shown = [image.tobytes() for image in images[labels == label]]
        assert len(set(shown)) == 5
        assert set(shown) <= held
    assert {tuple(virtual.chosen_classes(source, 4, s)) for s in range(9)} != {tuple(chosen)}


def test_more_labels_or_images_leave_the_others_as_they_are():
    few, _ = virtual.images(image_set(), (3, 6, 6), 2, 3, seed=1)
    many, _ = virtual.images(image_set(), (3, 6, 6), 6, 9, seed=1)
    assert np.array_equal(few[:3], many[:3])
    assert np.array_equal(few[3:], many[9:12])


def test_named_classes_stand_for_the_labels_in_their_order():
    source = image_set()
    images, labels = virtual.images(source, (3, 6, 6), 3, 12, 0, ["kind 5", "kind 0", "kind 2"])
    for label, own in enumerate((5, 0, 2)):
        held = source.inputs[:84][source.labels[:84] == own]
        assert sorted(i.tobytes() for i in images[labels == label]) == sorted(i.tobytes() for i in held)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 3, 3), (2, 4, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_get_the_data_sets_size_and_channels(shape, channels):
    images, _ = virtual.images(image_set(channels), shape, 4, 5, seed=1)
    assert images.shape == (20, *shape)
    plain, _ = virtual.images(image_set(channels), (channels, 6, 6), 4, 5, seed=1)
    if channels == 1:
        assert abs(float(images.mean()) - float(plain.mean())) < 4
    assert images.std() > 10


def test_grey_is_luma_and_colours_of_grey_are_alike():
    """0.299 * 200 + 0.587 * 100 + 0.114 * 50 = 124.2."""
    inputs = np.zeros((4, 3, 2, 2), np.uint8)
    inputs[:] = np.array([200, 100, 50], np.uint8)[:, None, None]
    inputs[0] = 255
    source = Dataset("one", inputs, np.zeros(4, np.int64), ("a",), (0.0,) * 3, (1.0,) * 3, 4)
    grey, _ = virtual.images(source, (1, 2, 2), 1, 4, seed=0)
    assert sorted(grey[:, 0, 0, 0].tolist()) == [124, 124, 124, 255]
    colours, _ = virtual.images(image_set(channels=1), (3, 6, 6), 2, 3, seed=0)
    assert np.array_equal(colours[:, 0], colours[:, 2])


def test_shrinking_averages():
    """4 rows to 1 by a triangle of half-width 4 around the middle: weights 5, 7, 7, 5 of 24. 255 * 5 / 24 = 53.1."""
    inputs = np.zeros((1, 1, 4, 4), np.uint8)
    inputs[0, 0, 0] = 255
    source = Dataset("edge", inputs, np.zeros(1, np.int64), ("a",), (0.0,), (1.0,), 1)
    small, _ = virtual.images(source, (1, 1, 1), 1, 1, seed=0)
    assert small.item() == 53


def test_few_grey_levels_are_stretched_to_all():
    """As in digits, whose pixels are 0 to 16: 16 becomes 255, and 4 becomes 64 (63.75)."""
    inputs = np.array([0, 4, 8, 16], np.uint8).reshape(1, 1, 2, 2)
    source = Dataset("dim", inputs, np.zeros(1, np.int64), ("a",), (8.0,), (1 / 8,), 1)
    bright, _ = virtual.images(source, (1, 2, 2), 1, 1, seed=0)
    assert bright.reshape(-1).tolist() == [0, 64, 128, 255]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((8, 5), "virtual.source: 'pictures' has 7 classes for 8 labels"),
        ((4, 13), "virtual.per_class: 'pictures' has 12 training images of class 'kind [0-6]', got 13"),
        ((3, 5, 0, ["kind 1"]), "virtual.classes: 1 virtual classes do not map to 3 labels; name one for each"),
        ((1, 5, 0, ["kind_1"]), "virtual.classes: 'pictures' has no class 'kind_1'; did you mean 'kind 1'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(asked, message):
    num_classes, per_class, seed, classes = (*asked, 0, None)[:4] if len(asked) == 2 else asked
    with pytest.raises(ConfigError, match=message):
        virtual.images(image_set(), (3, 6, 6), num_classes, per_class, seed, classes)


def test_a_source_without_images_is_refused():
    vectors = toys.federation().dataset
    with pytest.raises(ConfigError, match=r"virtual.source: needs images, 'toy' has inputs of shape \(5,\)"):
        virtual.images(vectors, (1, 8, 8), 2, 2, seed=0)
