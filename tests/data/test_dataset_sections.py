"""The ``dataset`` section as it stands in params.yaml: what is valid, and how a mistake reads."""

from __future__ import annotations

from typing import Any

import pytest

from fedcore.config import Config, ConfigError, validate


def check(dataset: dict[str, Any], **sections: Any) -> Config:
    return validate(
        {
            "experiment": "trial",
            "dataset": dataset,
            "partition": {"scheme": "iid"},
            "model": {"name": "mlp"},
            "train": {"rounds": 1},
            "methods": {"fedavg": {}},
            "compare": {"seeds": [0]},
            **sections,
        }
    )


@pytest.mark.parametrize(
    "dataset",
    [
        {"name": "digits"},
        {"name": "mnist", "normalise": "official"},
        {"name": "cifar10", "root": "x", "download": False},
        {"name": "cifar100", "labels": "coarse"},
        {"name": "tiny_imagenet", "folder": "tiny200"},
        {"name": "image_folder", "root": "mine", "size": 32, "channels": 1},
        {"name": "parquet", "files": ["a.parquet"], "test_files": ["b.parquet"], "image": "x", "label": "y"},
    ],
    ids=lambda section: section["name"],
)
def test_image_sets_go_with_a_convolutional_model_and_virtual_data(dataset: dict[str, Any]) -> None:
    config = check(dataset, model={"name": "cnn"}, virtual={"generator": "noise"})
    assert config.dataset.is_image
    assert config.dataset.model_dump(include=set(dataset)) == dataset


@pytest.mark.parametrize("name", ["adult", "synthetic"])
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"name": "cnn"}}, "model.name 'cnn' needs images; '{name}' has feature vectors."),
        ({"virtual": {"generator": "noise"}}, "virtual data are images; '{name}' has feature vectors. Valid: null"),
    ],
)
def test_feature_vectors_do_not(name: str, sections: dict[str, Any], message: str) -> None:
    assert not check({"name": name}).dataset.is_image
    with pytest.raises(ConfigError) as caught:
        check({"name": name}, **sections)
    assert message.format(name=name) in str(caught.value)


def test_adult_has_no_clients_of_its_own() -> None:
    with pytest.raises(ConfigError, match="'natural' needs a data set with clients of its own; 'adult' has none"):
        check({"name": "adult"}, partition={"scheme": "natural"})


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"name": "cifar"}, "dataset.name: 'cifar' does not exist; did you mean 'cifar10'?"),
        ({"name": "cifar100", "labels": "corse"}, "dataset.labels: 'corse' is not valid; did you mean 'coarse'?"),
        ({"name": "cifar10", "labels": "fine"}, "dataset.labels: unknown key 'labels'. Valid: download, name,"),
        ({"name": "cifar10", "normalise": "none"}, "dataset.normalise: 'none' is not valid. Valid: half, official"),
        ({"name": "image_folder"}, "dataset.root: missing; it is required"),
        ({"name": "image_folder", "root": "x", "size": 0}, "dataset.size: input should be greater than or equal to 1"),
        ({"name": "image_folder", "root": "x", "channels": 4}, "dataset.channels: 4 is not valid. Valid: 1, 3"),
        ({"name": "parquet", "files": []}, "dataset.files: list should have at least 1 item"),
        ({"name": "parquet", "files": "a.parquet"}, "dataset.files: input should be a valid list, got 'a.parquet'"),
        ({"name": "adult", "test_flie": True}, "dataset.test_flie: unknown key 'test_flie'; did you mean 'test_file'?"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_is_one_line_with_the_key(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(dataset)
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(message)
