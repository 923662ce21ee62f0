"""Pseudo data: rows are the means they say they are, of training rows only."""

import numpy as np
import pytest

from fedcore.config import ConfigError
from fedcore.data import pseudo
from fedcore.data.dataset import Dataset
from tests import toys


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


def _image_set(name, offset, scale, size=4, channels=3, seed=0):
    numbers = np.random.Generator(np.random.PCG64(seed))
    inputs = numbers.integers(0, 256, (30, channels, size, size)).astype(np.uint8)
    inputs[20:] = 255  # official test rows
    return Dataset(name, inputs, np.arange(30) % 5, tuple("abcde"), offset, scale, 20)


PROXY = _image_set("proxy", (120.0, 110.0, 100.0), (1 / 60, 1 / 50, 1 / 40), seed=1)
OWN = _image_set("own", (127.5,) * 3, (1 / 127.5,) * 3)


def test_mixture_rows_are_means_of_proxy_images_normalised_by_the_proxys_statistics():
    inputs, targets = pseudo.mixture(PROXY, OWN, 6, seed=2, examples=10)
    assert inputs.shape == (6, 3, 4, 4)
    assert inputs.dtype == targets.dtype == np.float32
    np.testing.assert_allclose(targets, np.full((6, 5), 0.2), rtol=1e-6)
    for row in range(6):
        chosen = pseudo.proxy_rows(PROXY, row, 2, 10)
        assert chosen.shape == (10,)
        assert chosen.max() < 20  # never test rows
        seen = (inputs[row] - 127.5) / 127.5  # by the model
        for channel, (offset, scale) in enumerate(zip((120, 110, 100), (60, 50, 40), strict=True)):
            mean = sum(PROXY.inputs[r, channel].astype(float) for r in chosen) / 10
            np.testing.assert_allclose(seen[channel], (mean - offset) / scale, atol=1e-5)


def test_mixture_sets_differ_and_rows_stay():
    one, other = (pseudo.mixture(PROXY, OWN, 6, seed=2, transfer=t)[0] for t in (0, 1))
    assert not np.array_equal(one, other)
    assert np.array_equal(one[:4], pseudo.mixture(PROXY, OWN, 4, seed=2)[0])
    assert not np.array_equal(one, pseudo.mixture(PROXY, OWN, 6, seed=3)[0])


def test_a_proxy_of_another_shape_is_refused_with_both_shapes():
    small = _image_set("small", (8.0,), (1 / 8,), size=3, channels=1)
    expected = r"pseudo.proxy: 'small' has inputs of shape \(1, 3, 3\), data set 'own' of shape \(3, 4, 4\)"
    with pytest.raises(ConfigError, match=expected):
        pseudo.mixture(small, OWN, 4, seed=0)
