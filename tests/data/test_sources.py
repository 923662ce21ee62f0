from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fedcore import seeds
from fedcore.config import ConfigError, DigitsData, MnistData, SyntheticData
from fedcore.data import sources
from fedcore.data.dataset import Dataset
from tests.data.conftest import FileServer, IdxFiles, idx


def test_digits_are_the_packaged_images() -> None:
    digits = sources.read(DigitsData(name="digits"))
    assert (len(digits), digits.num_train_rows, digits.input_shape, digits.num_classes) == (1797, 1797, (1, 8, 8), 10)
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits.inputs[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    scaled = (digits.inputs - digits.offset[0]) * digits.scale[0]
    assert (scaled.min(), scaled.max()) == (-1.0, 1.0)
    assert digits.clients is None


# --- MNIST and Fashion-MNIST -----------------------------------------------------------------------------------------


def mnist(root: Path, download: bool = False, name: str = "mnist") -> Dataset:
    return sources.read(MnistData(name=name, root=str(root), download=download))


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_archives_are_read_in_official_order_and_their_folder_is_left_alone(
    tmp_path: Path, idx_files: IdxFiles, name: str, folder: str
) -> None:
    raw = idx_files.write(tmp_path / folder / "raw")
    raw.chmod(0o555)
    dataset = mnist(tmp_path, name=name)
    assert sorted(path.name for path in raw.iterdir()) == sorted(idx_files.packed)
    expected = np.concatenate([idx_files.arrays["train-images-idx3-ubyte"], idx_files.arrays["t10k-images-idx3-ubyte"]])
    np.testing.assert_array_equal(dataset.inputs[:, 0], expected)
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 0, 1, 2, 3, 4]
    assert (dataset.name, dataset.num_train_rows, dataset.inputs.dtype) == (name, 12, np.uint8)
    assert (dataset.offset, dataset.scale) == ((127.5,), (1 / 127.5,))
    assert dataset.class_names[0] == {"mnist": "0", "fashion_mnist": "T-shirt/top"}[name]


def test_mnist_can_be_normalised_officially_too(tmp_path: Path, idx_files: IdxFiles) -> None:
    idx_files.write(tmp_path / "MNIST" / "raw")
    data = sources.read(MnistData(name="mnist", root=str(tmp_path), download=False, normalise="official"))
    assert (255 * 0.4388 - data.offset[0]) * data.scale[0] == pytest.approx(1)  # 0.1307 + 0.3081


def test_unpacked_files_do_as_well(tmp_path: Path, idx_files: IdxFiles) -> None:
    idx_files.write(tmp_path / "MNIST" / "raw", *idx_files.plain)
    assert len(mnist(tmp_path)) == 17


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_archive_is_named(tmp_path: Path, idx_files: IdxFiles, damage: str) -> None:
    file = idx_files.write(tmp_path / "MNIST" / "raw") / "t10k-images-idx3-ubyte.gz"
    content = file.read_bytes()
    file.write_bytes(content[:-20] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: damaged or not the official file") as caught:
        mnist(tmp_path, download=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 20])
def test_a_truncated_unpacked_file_is_named(tmp_path: Path, idx_files: IdxFiles, keep: int) -> None:
    file = idx_files.write(tmp_path / "MNIST" / "raw", *idx_files.plain) / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file))}: damaged or not an idx file") as caught:
        mnist(tmp_path)
    assert "\n" not in str(caught.value)


def test_images_and_labels_of_different_length_are_refused(tmp_path: Path, idx_files: IdxFiles) -> None:
    raw = idx_files.write(tmp_path / "MNIST" / "raw", *idx_files.plain)
    (raw / "train-labels-idx1-ubyte").write_bytes(idx_files.plain["t10k-labels-idx1-ubyte"])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte has 12 rows, train-labels-idx1-ubyte has 5"):
        mnist(tmp_path)


def test_missing_files_without_download_say_what_goes_where(tmp_path: Path, idx_files: IdxFiles) -> None:
    names = list(idx_files.packed)
    idx_files.write(tmp_path / "MNIST" / "raw", *names[1:])
    with pytest.raises(ConfigError) as caught:
        mnist(tmp_path)
    (problem,) = caught.value.problems
    assert problem.path == ("dataset", "root")
    assert f"put {names[0]} into {tmp_path / 'MNIST' / 'raw'}" in problem.message
    assert names[1] not in problem.message


def test_an_offline_machine_gets_one_line_and_keeps_its_files(
    tmp_path: Path, idx_files: IdxFiles, monkeypatch: pytest.MonkeyPatch, nowhere: str
) -> None:
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [nowhere])
    names = list(idx_files.packed)
    raw = idx_files.write(tmp_path / "MNIST" / "raw", names[0])
    with pytest.raises(ConfigError) as caught:
        mnist(tmp_path, download=True)
    message = str(caught.value)
    assert message.startswith(
        f"dataset.root: files are missing and the download failed; put {', '.join(names[1:])} into {raw}, or point"
    )
    assert "Connection refused" in message
    assert "\n" not in message
    assert [path.name for path in raw.iterdir()] == [names[0]]


def test_only_missing_files_are_downloaded_from_the_first_mirror_that_has_them(
    tmp_path: Path, idx_files: IdxFiles, monkeypatch: pytest.MonkeyPatch, server: FileServer, nowhere: str
) -> None:
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [nowhere, server.url + "no/", server.url])
    server.files.update(idx_files.packed)
    names = list(idx_files.packed)
    raw = idx_files.write(tmp_path / "MNIST" / "raw", names[0])
    dataset = mnist(tmp_path, download=True)
    assert len(dataset) == 17
    assert [name for name, _ in server.requests if not name.startswith("no/")] == names[1:]
    assert {path.name: path.read_bytes() for path in raw.iterdir()} == idx_files.packed
    assert mnist(tmp_path, download=False).content_hash == dataset.content_hash


def test_a_download_with_the_wrong_checksum_leaves_nothing_behind(
    tmp_path: Path, idx_files: IdxFiles, monkeypatch: pytest.MonkeyPatch, server: FileServer
) -> None:
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", [server.url])
    server.files.update(dict.fromkeys(idx_files.packed, b"<html>"))
    with pytest.raises(ConfigError, match=r"the download failed.*came with MD5"):
        mnist(tmp_path, download=True)
    assert list((tmp_path / "MNIST" / "raw").iterdir()) == []


def test_a_label_outside_the_classes_is_named_with_its_file(tmp_path: Path, idx_files: IdxFiles) -> None:
    raw = idx_files.write(tmp_path / "MNIST" / "raw", *idx_files.plain)
    (raw / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([0, 1, 10, 3, 4], np.uint8)))
    with pytest.raises(ValueError, match=r"raw/t10k-labels-idx1-ubyte: label 10 in row 2 is outside 0\.\.9$"):
        mnist(tmp_path)


def test_a_root_that_cannot_be_written_is_said_before_the_download(tmp_path: Path, idx_files: IdxFiles) -> None:
    (tmp_path / "MNIST").write_text("a file, not a folder")
    with pytest.raises(ConfigError, match=r"dataset\.root: files are missing and .*MNIST/raw cannot be written"):
        mnist(tmp_path, download=True)


# --- synthetic -------------------------------------------------------------------------------------------------------


def synthetic(alpha: float = 0.5, beta: float = 0.5, clients: int = 8, seed: int = 0) -> Dataset:
    return sources.read(SyntheticData(name="synthetic", alpha=alpha, beta=beta, clients=clients, seed=seed))


def test_synthetic_has_the_papers_shape() -> None:
    data = synthetic(clients=12)
    sizes = np.bincount(data.clients)
    assert (data.input_shape, data.inputs.dtype, data.num_classes) == ((60,), np.float32, 10)
    assert len(sizes) == 12
    assert sizes.min() >= 50
    assert data.num_train_rows == len(data) == sizes.sum()
    assert (np.diff(data.clients) >= 0).all()


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 0.5)])
def test_synthetic_equals_a_plain_loop_over_the_formulas(alpha: float, beta: float) -> None:
    data = synthetic(alpha, beta, clients=3, seed=7)
    for client in range(3):
        draw = seeds.stream(7, "data/synthetic", client=client)
        size = int(np.exp(4 + 2 * draw.standard_normal())) + 50
        u = alpha * draw.standard_normal()
        b_mean = beta * draw.standard_normal()
        weight = np.array([[u + draw.standard_normal() for _ in range(10)] for _ in range(60)])
        bias = np.array([u + draw.standard_normal() for _ in range(10)])
        v = np.array([b_mean + draw.standard_normal() for _ in range(60)])
        rows = np.flatnonzero(data.clients == client)
        assert len(rows) == size
        for row in rows[:40]:
            x = np.array([v[j] + (j + 1) ** -0.6 * draw.standard_normal() for j in range(60)])
            np.testing.assert_allclose(data.inputs[row], x, rtol=1e-5, atol=1e-6)
            logits = [sum(weight[j, k] * float(data.inputs[row, j]) for j in range(60)) + bias[k] for k in range(10)]
            assert data.labels[row] == int(np.argmax(logits))


def test_synthetic_features_have_the_stated_variance() -> None:
    data = synthetic(clients=40)
    sizes = np.bincount(data.clients)
    client = int(sizes.argmax())
    assert sizes[client] > 2000
    variance = data.inputs[data.clients == client].var(axis=0)
    np.testing.assert_allclose(variance, np.arange(1, 61) ** -1.2, rtol=0.15)


def test_alpha_and_beta_are_standard_deviations_between_clients() -> None:
    data = synthetic(alpha=0.0, beta=3.0, clients=60)
    means = np.array([data.inputs[data.clients == client].mean() for client in range(60)])
    assert 2.2 < means.std() < 3.8
    means = [synthetic(beta=0.0).inputs[synthetic(beta=0.0).clients == client].mean() for client in range(8)]
    assert np.std(means) < 0.5


def test_alpha_moves_all_logits_alike_as_in_the_original_so_labels_stay() -> None:
    np.testing.assert_array_equal(synthetic(alpha=0.0).labels, synthetic(alpha=1.0).labels)
    assert len(np.unique(synthetic(alpha=0.0).labels)) >= 5


def test_clients_of_one_size_have_the_first_of_their_examples(tmp_path: Path) -> None:
    whole = synthetic(clients=6)
    config = SyntheticData(name="synthetic", alpha=0.5, beta=0.5, clients=6, examples_per_client=7)
    data = sources.read(config)
    assert whole.clients is not None
    assert data.clients is not None
    assert data.clients.tolist() == [client for client in range(6) for _ in range(7)]
    first = np.concatenate([np.flatnonzero(whole.clients == client)[:7] for client in range(6)])
    np.testing.assert_array_equal(data.inputs, whole.inputs[first])
    np.testing.assert_array_equal(data.labels, whole.labels[first])


def test_many_synthetic_clients_are_written_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedcore.data.sources.synthetic._BLOCK", 4)
    config = SyntheticData(name="synthetic", clients=10)
    seen: list[sources.Progress] = []
    data = sources.read(config, seen.append, tmp_path)
    assert [(report.done, report.total) for report in seen] == [(4, 10), (8, 10), (10, 10)]
    assert isinstance(data.inputs, np.memmap)
    monkeypatch.undo()
    assert data.content_hash == sources.read(config).content_hash


def test_a_synthetic_client_depends_on_its_seed_and_id_only() -> None:
    few, many = synthetic(clients=3), synthetic(clients=6)
    np.testing.assert_array_equal(many.inputs[: len(few)], few.inputs)
    np.testing.assert_array_equal(many.labels[: len(few)], few.labels)
    assert synthetic(seed=1).content_hash != synthetic(seed=0).content_hash
    assert synthetic(seed=1).content_hash == synthetic(seed=1).content_hash
