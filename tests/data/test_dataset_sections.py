"""The ``dataset`` section as it stands in params.yaml: what is valid, and how a mistake reads."""

from __future__ import annotations

from pathlib import Path
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
        {"name": "svhn", "normalise": "official"},
        {"name": "emnist", "split": "letters"},
        {"name": "imagenet", "classes": ["n1", "n2"], "test_folder": "imagenet/val"},
        {"name": "npz", "files": ["a.npz"], "images": True},
        {"name": "image_folder", "root": "mine", "size": 32, "channels": 1},
        {"name": "parquet", "files": ["a.parquet"], "test_files": ["b.parquet"], "image": "x", "label": "y"},
    ],
    ids=lambda section: section["name"],
)
def test_image_sets_go_with_a_convolutional_model_and_virtual_data(dataset: dict[str, Any]) -> None:
    config = check(dataset, model={"name": "cnn"}, virtual={"generator": "noise"})
    assert config.dataset.is_image
    assert config.dataset.model_dump(include=set(dataset)) == dataset


OTHER = [
    ({"name": "adult"}, "feature vectors"),
    ({"name": "synthetic"}, "feature vectors"),
    ({"name": "csv", "files": ["a.csv"]}, "feature vectors"),
    ({"name": "table", "files": ["a.parquet"]}, "feature vectors"),
    ({"name": "npz", "files": ["a.npz"]}, "feature vectors"),
    ({"name": "har"}, "signals"),
    ({"name": "ag_news"}, "token ids"),
]


@pytest.mark.parametrize(("dataset", "kind"), OTHER, ids=lambda value: value["name"] if isinstance(value, dict) else "")
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"name": "cnn"}}, "model.name 'cnn' needs images; '{name}' has {kind}."),
        ({"virtual": {"generator": "noise"}}, "virtual data are images; '{name}' has {kind}. Valid: null"),
        ({"partition": {"scheme": "iid", "rotation": 9.0}}, "partition.rotation turns images; '{name}' has {kind}."),
        ({"virtual": {"generator": "images", "source": None}}, "needs images; '{name}' has {kind}"),
        (
            {"pseudo": {"generator": "mixture", "proxy": {"name": "digits"}}},
            "pseudo data are means of examples; '{name}' has token ids. Valid: null",
        ),
    ],
    ids=["model", "virtual", "rotation", "source", "pseudo"],
)
def test_what_needs_images_takes_nothing_else(
    dataset: dict[str, Any], kind: str, sections: dict[str, Any], message: str
) -> None:
    name = dataset["name"]
    if "source" in sections.get("virtual", {}):
        sections = {"virtual": {"generator": "images", "source": dataset}}
        dataset = {"name": "digits"}
    if "pseudo" in sections and kind != "token ids":
        message = "pseudo.proxy 'digits' has images, dataset '{name}' {kind}; they need one shape"
    with pytest.raises(ConfigError) as caught:
        check(dataset, **sections)
    assert message.format(name=name, kind=kind) in str(caught.value)


@pytest.mark.parametrize(
    "dataset",
    [
        {"name": "har"},
        {"name": "femnist"},
        {"name": "csv", "files": ["a.csv"], "client": "who"},
        {"name": "parquet", "files": ["a.parquet"], "client": "who"},
        {"name": "image_folder", "root": "mine", "clients": True},
    ],
    ids=lambda section: section["name"],
)
def test_sets_with_clients_of_their_own_are_not_dealt_by_label(dataset: dict[str, Any]) -> None:
    assert check(dataset, partition={"scheme": "natural"}).dataset.own_clients
    with pytest.raises(ConfigError, match=f"'dirichlet' would mix the clients of '{dataset['name']}'. Valid: file,"):
        check(dataset, partition={"scheme": "dirichlet"})


@pytest.mark.parametrize("name", ["csv", "table"])
def test_a_table_without_a_client_column_has_no_clients(name: str) -> None:
    dataset = {"name": name, "files": ["a"]}
    check(dataset, partition={"scheme": "dirichlet"})
    with pytest.raises(ConfigError, match=f"'natural' needs a data set with clients of its own; '{name}' has none"):
        check(dataset, partition={"scheme": "natural"})


@pytest.mark.parametrize("scheme", ["natural", "dirichlet"])
def test_whether_arrays_have_clients_only_the_files_tell(scheme: str) -> None:
    check({"name": "npz", "files": ["a.npz"]}, partition={"scheme": scheme})


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
        ({"name": "emnist", "split": "leters"}, "dataset.split: 'leters' is not valid; did you mean 'letters'?"),
        ({"name": "image_folder"}, "dataset.root: missing; it is required"),
        ({"name": "image_folder", "root": "x", "size": 0}, "dataset.size: input should be greater than or equal to 1"),
        ({"name": "image_folder", "root": "x", "channels": 4}, "dataset.channels: 4 is not valid. Valid: 1, 3"),
        ({"name": "parquet", "files": []}, "dataset.files: list should have at least 1 item"),
        ({"name": "parquet", "files": "a.parquet"}, "dataset.files: input should be a valid list, got 'a.parquet'"),
        ({"name": "csv"}, "dataset.files: missing; it is required"),
        (
            {"name": "csv", "files": ["a"], "delimiter": ""},
            "dataset.delimiter: string should have at least 1 character",
        ),
        ({"name": "csv", "files": ["a"], "features": []}, "dataset.features: list should have at least 1 item"),
        (
            {"name": "csv", "files": ["a"], "client": "who", "features": ["x", "who"]},
            "dataset: features.1: column 'who' is already client; a column has one role",
        ),
        (
            {"name": "parquet", "files": ["a"], "image": "x", "client": "x"},
            "dataset: image: column 'x' is already client; a column has one role",
        ),
        ({"name": "ag_news", "max_length": 0}, "dataset.max_length: input should be greater than or equal to 1"),
        ({"name": "adult", "test_flie": True}, "dataset.test_flie: unknown key 'test_flie'; did you mean 'test_file'?"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_mistake_is_one_line_with_the_key(dataset: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(dataset)
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("dataset", "partition", "message"),
    [
        (
            {"name": "digits"},
            {"scheme": "iid"},
            r"incoming needs partition\.scheme 'stable': 'iid' deals all examples anew",
        ),
        ({"name": "har"}, {"scheme": "stable"}, "incoming takes images and feature vectors; 'har' has signals"),
    ],
)
def test_data_that_grow_need_a_partition_that_keeps_its_past(
    dataset: dict[str, Any], partition: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(
            dataset, partition=partition, incoming={}, model={"name": "har_cnn" if dataset["name"] == "har" else "mlp"}
        )
    assert check({"name": "digits"}, partition={"scheme": "stable", "clients": 5}, incoming={}).incoming is not None


@pytest.mark.parametrize("files", [["visits/a.csv"], ["./other/../visits/a.csv"]])
def test_the_data_set_itself_is_no_delivery(files: list[str]) -> None:
    dataset = {"name": "csv", "files": files, "label": "y"}
    partition = {"scheme": "stable", "clients": 5}
    with pytest.raises(ConfigError, match=r"incoming\.folder 'visits' holds '.*visits/a\.csv' of the data set itself"):
        check(dataset, partition=partition, incoming={"folder": "visits"})
    assert check(dataset, partition=partition, incoming={"folder": "visits/new"}).incoming


@pytest.mark.parametrize(
    ("incoming", "message"),
    [
        ({"folder": "data"}, "folder 'data' and archive 'data/archive' are one folder, or one lies in the other"),
        ({"folder": "data", "archive": "a", "rejected": "b"}, "folder 'data' is, holds or lies in data/accepted"),
        ({"folder": "."}, "folder '.' and archive"),
        ({"folder": "", "archive": "../a", "rejected": "../b"}, "folder '' is, holds or lies in data/accepted"),
        ({"folder": "runs/fedavg-0"}, "folder 'runs/fedavg-0' is, holds or lies in runs, which the project keeps"),
        ({"folder": "x/../mlruns"}, "folder 'x/../mlruns' is, holds or lies in mlruns"),
        ({"folder": "tasks"}, "folder 'tasks' is, holds or lies in tasks"),
        ({"archive": "data/incoming/old"}, "folder 'data/incoming' and archive 'data/incoming/old' are one folder"),
        ({"rejected": "./data/incoming"}, "folder 'data/incoming' and rejected './data/incoming' are one folder"),
        ({"archive": "data/kept", "rejected": "data/kept/bad"}, "archive 'data/kept' and rejected 'data/kept/bad'"),
        ({"archive": "data/datasets"}, "archive 'data/datasets' is, holds or lies in data/datasets"),
        ({"pull": "data/incoming"}, "folder 'data/incoming' and pull 'data/incoming' are one folder"),
    ],
)
def test_what_the_project_keeps_is_no_delivery(
    incoming: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parameters = {"partition": {"scheme": "stable", "clients": 5}, "incoming": incoming}
    with pytest.raises(ConfigError) as caught:
        check({"name": "digits"}, **parameters)
    assert str(caught.value).startswith(f"incoming: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "incoming", [{}, {"folder": "inbox"}, {"folder": "/srv/in", "archive": "/srv/in-archive"}, {"pull": "deliveries"}]
)
def test_deliveries_may_come_anywhere_else(
    incoming: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far").mkdir()
    (tmp_path / "data").symlink_to("far")
    assert check({"name": "digits"}, partition={"scheme": "stable", "clients": 5}, incoming=incoming).incoming


def test_a_link_to_what_the_project_keeps_is_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox").symlink_to("runs")
    with pytest.raises(ConfigError, match="incoming: folder 'inbox' is, holds or lies in runs"):
        check({"name": "digits"}, partition={"scheme": "stable", "clients": 5}, incoming={"folder": "inbox"})
