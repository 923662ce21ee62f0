"""Augmentation: what it does to an image, that its draws are its own, and that every executor sees the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import vmap

from fedcore.config import Augment, ConfigError, train_for, validate
from fedcore.engine import augment
from fedcore.engine.augment import Augmentation
from fedcore.engine.checks import check_training
from fedcore.methods.base import Phase
from fedcore.types import Batch
from tests import toys

ALL = {"crop": 2, "flip": True, "cutout": 3}
BLACK = torch.tensor([[[-1.0]], [[-2.0]]])  # two channels


def batch(x: torch.Tensor, **drawn: Any) -> Batch:
    draws = {f"augment.{name}": torch.tensor(values) for name, values in drawn.items()}
    return Batch(x, torch.zeros(len(x), dtype=torch.int64), torch.ones(len(x)), draws)


def draws(settings: dict[str, Any], **changes: Any) -> dict[str, np.ndarray]:
    asked: dict[str, Any] = {
        "phase": Phase(),
        "seed": 0,
        "round": 0,
        "client": 0,
        "purpose": "batches",
        "size": (4, 6),
        "input_shape": (1, 8, 10),
    }
    return augment.draws(Augment(**settings), **{**asked, **changes})


# --- what it does ----------------------------------------------------------------------------------------------------


def test_a_crop_shifts_and_its_border_is_black() -> None:
    """Draw (2, 0) at crop 1: the window starts one row below and one column left of the image."""
    x = torch.arange(1.0, 19.0).reshape(1, 2, 3, 3)
    moved = Augmentation(Augment(crop=1), BLACK)(batch(x, crop=[[2, 0]])).x
    assert moved[0, 0].tolist() == [[-1, 4, 5], [-1, 7, 8], [-1, -1, -1]]
    assert moved[0, 1].tolist() == [[-2, 13, 14], [-2, 16, 17], [-2, -2, -2]]
    same = Augmentation(Augment(crop=1), BLACK)(batch(x, crop=[[1, 1]])).x
    assert torch.equal(same, x)


def test_a_flip_mirrors_left_and_right_where_it_is_drawn() -> None:
    x = torch.arange(12.0).reshape(2, 1, 2, 3)
    flipped = Augmentation(Augment(flip=True), BLACK[:1])(batch(x, flip=[0, 1])).x
    assert torch.equal(flipped[0], x[0])
    assert flipped[1, 0].tolist() == [[8, 7, 6], [11, 10, 9]]


@pytest.mark.parametrize(
    ("side", "middle", "expected"),
    [
        (2, [1, 1], ["0011", "0011", "1111", "1111"]),
        (3, [0, 3], ["1100", "1100", "1111", "1111"]),  # partly outside
        (1, [2, 0], ["1111", "1111", "0111", "1111"]),
        (4, [2, 2], ["0000", "0000", "0000", "0000"]),
    ],
)
def test_a_square_is_cut_out(side: int, middle: list[int], expected: list[str]) -> None:
    x = torch.ones(1, 2, 4, 4)
    cut = Augmentation(Augment(cutout=side), BLACK)(batch(x, cutout=[middle])).x
    for channel in cut[0].int().tolist():
        assert ["".join(map(str, row)) for row in channel] == expected


def test_together_they_are_a_padded_crop_then_a_flip_then_a_hole() -> None:
    """Against numpy's pad, slices and assignments, on images that are not square."""
    settings, generator = Augment(**ALL), torch.Generator().manual_seed(0)
    x = torch.randn(6, 2, 8, 10, generator=generator)
    drawn = {name.removeprefix("augment."): values[0] for name, values in draws(ALL).items()}
    result = Augmentation(settings, BLACK)(batch(x, **drawn)).x
    for b, image in enumerate(x.numpy()):
        padded = np.stack([np.pad(c, 2, constant_values=v) for c, v in zip(image, (-1.0, -2.0), strict=True)])
        top, left = drawn["crop"][b]
        expected = padded[:, top : top + 8, left : left + 10]
        expected = (expected[:, :, ::-1] if drawn["flip"][b] else expected).copy()
        row, column = drawn["cutout"][b] - 1
        expected[:, max(row, 0) : row + 3, max(column, 0) : column + 3] = 0
        np.testing.assert_array_equal(result[b].numpy(), expected)


def test_stacked_clients_get_what_they_get_alone() -> None:
    settings, x = Augmentation(Augment(**ALL), BLACK), torch.randn(3, 6, 2, 8, 10)
    drawn = [{name: torch.from_numpy(v[0]) for name, v in draws(ALL, client=c).items()} for c in range(3)]
    alone = [settings(batch(x[c])._replace(draws=drawn[c])).x for c in range(3)]
    together = {name: torch.stack([d[name] for d in drawn]) for name in drawn[0]}
    stacked = vmap(lambda x, d: settings(batch(x)._replace(draws=d)).x)(x, together)
    assert torch.equal(stacked, torch.stack(alone))


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_draws_cover_their_ranges_evenly() -> None:
    found = draws(ALL, size=(300, 10))
    assert {name: values.shape[2:] for name, values in found.items()} == {
        "augment.crop": (2,),
        "augment.flip": (),
        "augment.cutout": (2,),
    }
    for values, high in ((found["augment.crop"], 5), (found["augment.flip"], 2), (found["augment.cutout"][..., 0], 8)):
        counts = np.bincount(values.ravel(), minlength=high)
        assert len(counts) == high
        # Six standard deviations of a binomial count.
        mean = values.size / high
        assert abs(counts - mean).max() < 6 * np.sqrt(mean)
    assert found["augment.cutout"][..., 1].max() == 9


def test_a_kind_of_change_draws_the_same_with_and_without_the_others() -> None:
    together = draws(ALL)
    for name in ALL:
        alone = draws({name: ALL[name]})
        assert list(alone) == [f"augment.{name}"]
        np.testing.assert_array_equal(alone[f"augment.{name}"], together[f"augment.{name}"])


@pytest.mark.parametrize("change", [{"seed": 1}, {"round": 1}, {"client": 1}, {"purpose": "adapt"}])
def test_seed_round_client_and_purpose_have_draws_of_their_own(change: dict[str, Any]) -> None:
    one, other = draws(ALL), draws(ALL, **change)
    assert all((one[name] != other[name]).any() for name in one)


def test_phases_that_only_look_see_the_images_as_they_are() -> None:
    assert draws(ALL, phase=Phase(learns=False)) == {}
    assert draws({}) == {}
    plain = batch(torch.ones(2, 1, 4, 4))
    assert Augmentation(Augment(**ALL), BLACK)(plain) is plain


# --- in a training ---------------------------------------------------------------------------------------------------


def work(composed: Any = None, **train: Any) -> Any:
    fed = toys.federation(image=True)
    model = toys.net({"name": "cnn", "channels": [4, 6], "hidden": 16}, image=True)
    return toys.training(composed, fed, model, **{"rounds": 2, "augment": ALL, **train})


def test_switched_off_it_is_the_training_without_it_bit_for_bit() -> None:
    off = {"crop": 0, "flip": False, "cutout": 0}
    without, switched_off, on = work(augment={}).run(), work(augment=off).run(), work().run()
    assert toys.equal(without.server.params, switched_off.server.params)
    assert without.history == switched_off.history
    assert toys.distance(without.server.params, on.server.params) > 1e-3


@pytest.mark.parametrize(
    "composed", [{}, {"name": "fedavg_ft"}, {"add": {"mixup": {"alpha": 0.3}}}], ids=["fedavg", "fedavg_ft", "mixup"]
)
def test_serial_and_stacked_agree(composed: dict[str, Any]) -> None:
    one = work(toys.composition(**composed), dtype=torch.float64).run()
    other = work(toys.composition(**composed), dtype=torch.float64, executor="stacked", block_size=3).run()
    assert toys.distance(one.server.params, other.server.params) < 1e-10
    assert one.history[-1]["personal/test/accuracy"] == pytest.approx(other.history[-1]["personal/test/accuracy"])


def test_workers_change_nothing() -> None:
    assert toys.equal(work().run().server.params, work(workers=2).run().server.params)


def test_batches_are_the_same_rows_with_and_without_and_change_in_every_step() -> None:
    def seen(settings: dict[str, Any]) -> list[Batch]:
        training = work(augment=settings, local_epochs=2)
        found: list[Batch] = []

        class Spy:
            def __getattr__(self, name: str) -> Any:
                return getattr(training.composition, name)

            def loss(self, net: Any, params: Any, state: Any, batch: Batch, *more: Any) -> Any:
                found.append(batch)
                return training.composition.loss(net, params, state, batch, *more)

        training.executor.training.composition = Spy()
        list(training._local([0], 0, training.composition.phases(training.train), "batches"))
        return found

    plain, changed = seen({}), seen({"flip": True})
    assert len(plain) == len(changed) == 6
    assert all(torch.equal(a.y, b.y) for a, b in zip(plain, changed, strict=True))
    mirrored = []
    for a, b in zip(plain, changed, strict=True):
        same = (a.x == b.x).flatten(1).all(1)
        assert torch.equal(b.x[~same], a.x[~same].flip(3))
        mirrored.append(tuple(same.tolist()))
    assert len(set(mirrored)) > 3


# --- settings --------------------------------------------------------------------------------------------------------


def values(**changes: Any) -> dict[str, Any]:
    return {
        "experiment": "trial",
        "dataset": {"name": "digits"},
        "partition": {"scheme": "iid"},
        "model": {"name": "mlp"},
        "train": {"rounds": 1, "augment": {"crop": 1, "flip": True}},
        "methods": {"fedavg": {}, "plain": {"method": "fedavg", "train": {"augment": {}}}},
        "compare": {},
        **changes,
    }


def test_a_method_may_override_it_as_a_whole() -> None:
    config = validate(values())
    assert train_for(config, "fedavg").augment == Augment(crop=1, flip=True)
    assert not train_for(config, "plain").augment.is_on


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": {"name": "adult"}}, r"train\.augment is for images; 'adult' has feature vectors\. Valid: \{\}$"),
        (
            {
                "dataset": {"name": "adult"},
                "train": {},
                "methods": {"fedavg": {"train": {"augment": {"flip": True}}}},
            },
            r"^methods\.fedavg\.train\.augment: is for images; 'adult' has feature vectors",
        ),
        ({"train": {"augment": {"crops": 4}}}, r"train\.augment\.crops: unknown key 'crops'; did you mean 'crop'"),
        ({"train": {"augment": {"cutout": -1}}}, r"train\.augment\.cutout: input should be greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(values(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop": 8}, "crop 8 leaves nothing of 8x8 images; use at most 7"),
        ({"cutout": 9}, "cutout 9 leaves nothing of 8x8 images; use at most 8"),
    ],
)
def test_changes_larger_than_the_images_are_refused(settings: dict[str, Any], message: str) -> None:
    training = work(augment={})
    train = training.train.model_copy(update={"augment": Augment(**settings)})
    with pytest.raises(ValueError, match=rf"^methods\.trial: train\.augment: {message}$"):
        check_training("trial", training.composition, training.net, train, training.federation)


def test_only_images_can_be_augmented() -> None:
    assert augment.problem(Augment(flip=True), (5,)) == "only images can be augmented; an input has shape [5]"
    assert augment.problem(Augment(), (5,)) is None
