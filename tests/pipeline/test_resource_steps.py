"""The steps `virtual` and `pseudo`: every generator leaves a folder that loads; what cannot be made leaves nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedcore.data import dataset, resources
from tasks import check, partition, plan, prepare, pseudo, virtual
from tests.pipeline.conftest import unchanged

VIRTUAL = ("--dataset", "data/set", "--out", "data/virtual")
PSEUDO = ("--dataset", "data/set", "--partition", "data/p.npz", "--out", "data/pseudo")
CPU = torch.device("cpu")


@pytest.fixture
def prepared(project, step):
    assert step(prepare.main, "--out", "data/set")[0] == 0
    arguments = ("--dataset", "data/set", "--out", "data/p.npz", "--picture", "data/p.png")
    assert step(partition.main, *arguments)[0] == 0
    return project


@pytest.fixture
def pictures(tmp_path):
    """Ten classes, a to j, of three small colour images each."""
    numbers = np.random.Generator(np.random.PCG64(0))
    for name in "abcdefghij":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for n in range(3):
            pixels = numbers.integers(0, 256, (5, 5, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{n}.png")
    return {"name": "image_folder", "root": "pictures"}


def meta(folder):
    return json.loads((folder / "meta.json").read_text())


SMALL = {
    "noise": {"spread": 0.2},
    "stylegan": {"width": 8, "latent": 4},
    "cnn": {"width": 4, "diversity_steps": 1, "diversity_batch": 4},
    "images": {"source": {"name": "digits"}},
}


@pytest.mark.parametrize("generator", SMALL)
def test_every_generator_of_virtual_data(prepared, step, generator):
    section = {"generator": generator, "per_class": 3, "seed": 7, **SMALL[generator]}
    prepared.edit("virtual", section)
    assert step(check.main, "--out", "check.json") == (0, [])
    assert step(virtual.main, *VIRTUAL) == (0, [])
    folder = prepared.folder / "data/virtual"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(first) == ["contact.png", "inputs.npy", "meta.json", "targets.npy"]
    facts = meta(folder)
    assert {key: facts[key] for key in section} == section
    assert facts["shape"] == [30, 1, 8, 8]
    assert len(facts["content_hash"]) == 64
    held = resources.load(folder, dataset.load(prepared.folder / "data/set"), CPU)
    assert held["x"].shape == (30, 1, 8, 8)
    assert held["y"].tolist() == [c for c in range(10) for _ in range(3)]
    # Three samples of a class side by side, enlarged four times and framed, behind the margin with its number.
    sheet = Image.open(folder / "contact.png")
    assert sheet.size == (30 + 3 * 34, 10 * 34)
    pixels = np.asarray(sheet)
    images = np.load(folder / "inputs.npy")
    for label, sample in ((0, 0), (9, 2)):
        left, above = 30 + 34 * sample + 1, 34 * label + 1
        shown = pixels[above : above + 32 : 4, left : left + 32 : 4, 1]
        assert np.array_equal(shown, images[3 * label + sample, 0])
    assert all((pixels[34 * c : 34 * c + 34, :30] < 128).any() for c in range(10))
    assert step(virtual.main, *VIRTUAL) == (0, [])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_images_of_a_folder_are_resized_and_their_classes_are_recorded(prepared, step, pictures):
    prepared.edit("virtual", {"generator": "images", "source": pictures, "classes": list("jihgfedcba"), "per_class": 2})
    assert step(virtual.main, *VIRTUAL) == (0, [])
    facts = meta(prepared.folder / "data/virtual")
    assert facts["chosen_classes"] == list("jihgfedcba")
    assert facts["source"]["root"] == "pictures"
    assert len(facts["source_hash"]) == 64
    assert facts["shape"] == [20, 1, 8, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 4}, "virtual.classes: 4 virtual classes do not map to the 10 labels of 'digits'. Valid: 10, null"),
        ({"classes": ["a", "b"]}, "virtual.classes: 2 virtual classes do not map to the 10 labels of 'digits'"),
        ({"classes": list("abcdefghik")}, "virtual.classes: 'image_folder' has no class 'k'"),
        ({"per_class": 4}, "virtual.per_class: 'image_folder' has 3 training images of class '"),
        (
            {"source": {"name": "mnist", "root": "none", "download": False}},
            "virtual.source.root: files are missing and",
        ),
    ],
)
def test_virtual_data_that_cannot_be_made_leave_the_old_ones(prepared, step, pictures, change, message):
    section = {"generator": "images", "source": pictures, "per_class": 2}
    prepared.edit("virtual", section)
    assert step(virtual.main, *VIRTUAL) == (0, [])
    prepared.edit("virtual", {**section, **change})
    with unchanged(prepared.folder / "data"):
        code, lines = step(virtual.main, *VIRTUAL)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("error: params.yaml:")
    assert message in lines[0]
    assert "dataset." not in lines[0]


@pytest.mark.parametrize("generator", ["noise", "images"])
def test_a_map_to_labels_allows_other_numbers_of_classes(prepared, step, generator):
    """Four classes instead of ten, where a method maps them; the plan refuses a method that does not."""
    section = {"generator": generator, "per_class": 2, "classes": 4, **SMALL[generator]}
    mapped = {"method": "fedavg", "add": {"vhl": {"labels": [0, 3, 3, 9]}}}
    prepared.parameters["methods"] = {"fedavg": {}, "other": {"method": "fedavg", "add": {"vhl": {}}}}
    prepared.edit("virtual", section)
    code, lines = step(virtual.main, *VIRTUAL)
    assert code == 1
    assert "virtual.classes: 4 virtual classes do not map to the 10 labels of 'digits'. Valid: 10, null, or" in lines[0]
    prepared.parameters["methods"]["vhl"] = mapped
    prepared.edit("virtual", section)
    assert step(virtual.main, *VIRTUAL) == (0, [])
    held = resources.load(prepared.folder / "data/virtual", dataset.load(prepared.folder / "data/set"), CPU)
    assert held["y"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.equal(resources.load_targets(prepared.folder / "data/virtual")["y"], held["y"])
    assert step(pseudo.main, *PSEUDO) == (0, [])
    resource_folders = ("--virtual", "data/virtual", "--pseudo", "data/pseudo")
    arguments = ("--dataset", "data/set", "--partition", "data/p.npz", *resource_folders, "--out", "data/plans")
    code, lines = step(plan.main, *arguments)
    assert code == 1
    assert len(lines) == 1
    assert "methods.other: add.vhl.labels: the virtual data has 4 classes, there are 10 labels; give each" in lines[0]
    assert not (prepared.folder / "data/plans").exists()
    prepared.parameters["methods"]["other"] = mapped
    prepared.edit("virtual", section)
    assert step(plan.main, *arguments) == (0, [])
    assert json.loads((prepared.folder / "data/plans/vhl.json").read_text())["add"]["vhl"]["labels"] == [0, 3, 3, 9]


def test_virtual_data_need_images(prepared, step):
    prepared.parameters["partition"] = {"scheme": "iid", "clients": 5}
    prepared.edit("dataset", {"name": "synthetic", "clients": 5})
    assert step(prepare.main, "--out", "data/set")[0] == 0
    prepared.parameters["dataset"] = {"name": "digits"}
    prepared.edit("virtual", {"generator": "noise"})
    code, lines = step(virtual.main, *VIRTUAL)
    assert code == 1
    assert "virtual: needs images, data set 'synthetic' has inputs of shape (60,)" in lines[0]
    assert not (prepared.folder / "data/virtual").exists()


@pytest.mark.parametrize("generator", ["rsm", "rsm_balanced", "mixture"])
def test_every_generator_of_pseudo_data(prepared, step, generator):
    section = {"generator": generator, "rows": 6, "examples": 4, "transfer": "every_round", "transfers": 3, "seed": 2}
    if generator == "mixture":
        section["proxy"] = {"name": "digits"}
    prepared.edit("pseudo", section)
    assert step(check.main, "--out", "check.json") == (0, [])
    assert step(pseudo.main, *PSEUDO) == (0, [])
    folder = prepared.folder / "data/pseudo"
    facts = meta(folder)
    assert {key: facts[key] for key in section} == section
    assert ("proxy_hash" in facts) == (generator == "mixture")
    held = resources.load(folder, dataset.load(prepared.folder / "data/set"), CPU)
    assert held["x"].shape == (3, 6, 1, 8, 8)
    assert held["y"].shape == (3, 6, 10)
    assert all(not torch.equal(held["x"][a], held["x"][b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    # Sent once: the first set alone, and the same whenever it is made.
    prepared.edit("pseudo", {**section, "transfer": "once", "transfers": 1})
    hashes = []
    for _ in range(2):
        assert step(pseudo.main, *PSEUDO) == (0, [])
        hashes.append(resources.content_hash(folder))
    once = resources.load(folder, dataset.load(prepared.folder / "data/set"), CPU)
    assert torch.equal(once["x"], held["x"][:1])
    assert hashes[0] == hashes[1]


def test_a_proxy_of_another_shape_is_refused_with_both_shapes(prepared, step, pictures):
    prepared.edit("pseudo", {"generator": "mixture", "proxy": pictures})
    code, lines = step(pseudo.main, *PSEUDO)
    assert code == 1
    expected = "pseudo.proxy: 'image_folder' has inputs of shape (3, 5, 5), data set 'digits' of shape (1, 8, 8)"
    assert len(lines) == 1
    assert expected in lines[0]
    assert lines[0].startswith("error: params.yaml:")
    assert not (prepared.folder / "data/pseudo").exists()


def test_a_proxy_that_is_not_there_is_named_where_it_stands(prepared, step):
    prepared.edit("pseudo", {"generator": "mixture", "proxy": {"name": "mnist", "root": "none", "download": False}})
    code, lines = step(pseudo.main, *PSEUDO)
    assert code == 1
    assert "pseudo.proxy.root: files are missing and pseudo.proxy.download is false" in lines[0]
