"""Wrong parameters and impossible data: one clear line each, exit code 1, earlier results untouched."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest

from tasks import check, partition, plan, prepare, pseudo, train, virtual
from tests.pipeline.conftest import ROOT, unchanged

PARTITION = ("--dataset", "data/set", "--out", "data/p.npz", "--picture", "data/p.png")
SHARED = ("--virtual", "data/virtual", "--pseudo", "data/pseudo")
PLAN = ("--dataset", "data/set", "--partition", "data/p.npz", *SHARED, "--out", "data/plans")
IMAGES = {"generator": "images", "source": {"name": "digits"}}

WRONG = [
    ("train.roundz", 3, "params.yaml:*: train.roundz: unknown key 'roundz'; did you mean 'rounds'?"),
    ("train.lr", -1, "train.lr: input should be greater than 0, got -1"),
    ("train.lr", 1e39, "train.lr: input should be less than or equal to 1000000, got 1e+39"),
    ("train.weight_decay", 1e39, "train.weight_decay: input should be less than or equal to 1000000, got 1e+39"),
    ("train.lr", "fast", "train.lr: input should be a valid number, got 'fast'"),
    ("train.executor", "stak", "train.executor: 'stak' is not valid; did you mean 'stacked'?"),
    ("train.evaluate_every", 9, "train: evaluate_every (9) must not exceed rounds (3)"),
    ("train.sampling", "replacement", "train: sampling: replacement has no epochs; set local_steps"),
    ("dataset.name", "minst", "dataset.name: 'minst' does not exist; did you mean 'mnist'?"),
    ("partition.alhpa", 1.0, "partition.alhpa: unknown key 'alhpa'; did you mean 'alpha'?"),
    ("partition", {"scheme": "natural"}, "partition.scheme 'natural' needs a data set with clients of its own"),
    ("partition.scheme", ..., "partition.scheme: missing; it is required"),
    ("model.hidden", [16, 10**11], "model.hidden.1: input should be less than or equal to 1000000, got 100000000000"),
    ("model.hidden", [], "model.hidden: list should have at least 1 item"),
    ("methods.fedagv", {}, "methods.fedagv: 'fedagv' is no method and names neither 'method' nor 'add'; did you mean"),
    ("methods.new", {"method": "fedagv"}, "methods.new.method: 'fedagv' does not exist; did you mean 'fedavg'?"),
    ("methods.new", {"add": {"proxx": {}}}, "methods.new.add.proxx: 'proxx' does not exist; did you mean 'prox'?"),
    ("methods.new", {"add": {"prox": {"mu": -1}}}, "methods.new.add.prox.mu: input should be greater than or equal"),
    ("methods.new", {"add": {"prox": {}}}, "methods.new.add.prox.mu: missing; it is required"),
    (
        "methods.new",
        {"method": "fedavg_ft", "epoch": 2},
        "new.epoch: unknown key 'epoch'; did you mean 'epochs'",
    ),
    (
        "methods.new",
        {"method": "fedavg", "train": {"lrr": 1}},
        "new.train.lrr: unknown key 'lrr'; did you mean",
    ),
    (
        "methods.new",
        {"method": "fedavg", "add": {"dbe": {"bias_optimiser": "comon"}}},
        "methods.new.add.dbe.bias_optimiser: 'comon' is not valid; did you mean 'common'? Valid: common, plain",
    ),
    (
        "methods.new",
        {"method": "fedavg", "add": {"vhl": {"labels": 3}}},
        "methods.new.add.vhl.labels: input should be a list, got 3",
    ),
    (
        "methods.new",
        {"method": "fedavg", "add": {"vhl": {"labels": [0, -1]}}},
        "methods.new.add.vhl.labels.1: input should be greater than or equal to 0, got -1",
    ),
    ("methods.Bad Name", {}, "methods.Bad Name: 'Bad Name': use lower-case letters"),
    ("compare.baseline", "fedagv", "compare.baseline 'fedagv' is not one of the methods; did you mean 'fedavg'?"),
    ("compare.seeds", [0, 0], "compare: seeds must differ"),
    ("compare.average", 1, "compare.average: input should be greater than or equal to 2"),
    ("compare.average", 1000, "compare.average: is 1000, but 'fedavg' is evaluated "),
    (
        "virtual",
        {"generator": "noize"},
        "virtual.generator: 'noize' does not exist; did you mean 'noise'? Valid: cnn, ",
    ),
    ("virtual", {"per_class": 3}, "virtual.generator: missing; it is required"),
    ("virtual", {"generator": "noise", "sprd": 1}, "virtual.sprd: unknown key 'sprd'; did you mean 'spread'?"),
    ("virtual", {"generator": "noise", "width": 8}, "virtual.width: unknown key 'width'"),
    ("virtual", {"generator": "cnn", "diversity_batch": 1}, "virtual.diversity_batch: input should be greater than or"),
    ("virtual", {"generator": "images"}, "virtual.source: missing; it is required"),
    ("virtual", IMAGES | {"source": {"name": "digitz"}}, "virtual.source.name: 'digitz' does not exist; did you mean"),
    ("virtual", IMAGES | {"source": {"name": "digits", "rot": 1}}, "virtual.source.rot: unknown key 'rot'"),
    ("virtual", IMAGES | {"source": {"name": "synthetic"}}, "virtual.source: needs images; 'synthetic' has feature"),
    ("virtual", IMAGES | {"classes": 0}, "virtual.classes: expected a number of classes, a list of the source's"),
    ("virtual", IMAGES | {"classes": ["1", "1"]}, "virtual.classes: classes must differ, got ['1', '1']"),
    ("pseudo", {"generator": "mixture"}, "pseudo.proxy: missing; it is required"),
    ("pseudo", {"generator": "rsm", "proxy": {"name": "digits"}}, "pseudo.proxy: unknown key 'proxy'"),
    ("pseudo", {"generator": "rsm", "transfers": 3}, "pseudo: transfers: 3 sets cannot be sent once; set 1, or"),
    ("pseudo", {"generator": "rsm", "transfer": "every_round"}, "pseudo: transfers: transfer 'every_round' needs at"),
    (
        "pseudo",
        {"generator": "rsm", "transfer": "each_round"},
        "'each_round' is not valid; did you mean 'every_round'?",
    ),
    (
        "pseudo",
        {"generator": "mixture", "proxy": {"name": "synthetic"}},
        "pseudo.proxy 'synthetic' has feature vectors, dataset 'digits' images; they need one shape",
    ),
    ("train", ..., "params.yaml:1: train: missing; it is required"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=[f"{p}={v}" for p, v, _ in WRONG])
def test_wrong_parameters_stop_the_first_stage(project, step, path, value, message):
    assert step(check.main, "--out", "check.json") == (0, [])
    project.edit(path, value)
    with unchanged(project.folder):
        code, lines = step(check.main, "--out", "check.json")
    assert code == 1
    first, _, rest = message.partition("*")
    assert any(first in line and rest in line for line in lines), lines
    assert all(line.startswith("error: params.yaml:") for line in lines)


def test_every_mistake_is_named_with_its_line(project, step):
    project.edit("train.lr", -1)
    project.edit("compare.seeds", ["one"])
    text = (project.folder / "params.yaml").read_text().splitlines()
    code, lines = step(check.main, "--out", "check.json")
    numbers = [1 + next(i for i, line in enumerate(text) if line.strip().startswith(key)) for key in ("lr:", "- one")]
    assert code == 1
    assert [line.split(":")[2] for line in lines] == [str(n) for n in numbers]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"train: [1,", "params.yaml:1: "),
        (b"train: 1\ntrain: 2\n", "params.yaml:2: "),
        (b"\xff\xfe\x00", "params.yaml"),
        (b"- 1\n", "params.yaml:1: params: expected a mapping of sections"),
        (b"", "params.yaml:1: params: expected a mapping of sections"),
        (b"a: " + b"[" * 2000 + b"]" * 2000, "params.yaml: nested too deeply"),
    ],
)
def test_a_broken_file_is_one_line(project, step, content, message):
    (project.folder / "params.yaml").write_bytes(content)
    code, lines = step(check.main, "--out", "check.json")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {message}")


def test_a_missing_file_is_one_line(project, step):
    (project.folder / "params.yaml").unlink()
    expected = "error: params.yaml: does not exist; run from the project's root folder"
    assert step(check.main, "--out", "check.json") == (1, [expected])


def test_more_than_the_memory_holds_is_one_line(project, step):
    assert step(prepare.main, "--out", "data/set")[0] == 0
    project.edit("virtual", {"generator": "noise", "per_class": 10**12})
    with unchanged(project.folder):
        code, lines = step(virtual.main, "--dataset", "data/set", "--out", "data/virtual")
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("error: not enough memory (Unable to allocate ")


TORCH = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"


@pytest.mark.parametrize("error", [RuntimeError(f"{TORCH} allocate 4e12 bytes.\nframe #0: x"), MemoryError()])
def test_a_lack_of_memory_is_one_line(step, error):
    def main():
        raise error

    code, lines = step(main)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("error: not enough memory (")


def test_another_error_keeps_its_traceback(step):
    def main():
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        step(main)


@pytest.fixture
def prepared(project, step):
    assert step(prepare.main, "--out", "data/set")[0] == 0
    assert step(partition.main, *PARTITION)[0] == 0
    assert step(virtual.main, "--dataset", "data/set", "--out", "data/virtual")[0] == 0
    assert step(pseudo.main, "--dataset", "data/set", "--partition", "data/p.npz", "--out", "data/pseudo")[0] == 0
    assert step(plan.main, *PLAN)[0] == 0
    return project


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("partition.clients", 5000, "partition"),
        ("partition.min_examples", 358, "partition.min_examples"),
        ("partition.unseen_clients", 5, "partition.unseen_clients"),
    ],
)
def test_an_impossible_partition_leaves_the_old_one(prepared, step, path, value, message):
    prepared.edit(path, value)
    with unchanged(prepared.folder / "data"):
        code, lines = step(partition.main, *PARTITION)
    assert code == 1
    assert len(lines) == 1
    assert message in lines[0]


def test_a_client_smaller_than_a_dropped_batch_is_refused_before_training(prepared, step):
    prepared.edit("train.last_batch", "drop")
    prepared.edit("train.batch_size", 500)
    with unchanged(prepared.folder / "data"):
        code, lines = step(plan.main, *PLAN)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("error: methods.fedavg: train.last_batch 'drop' leaves client ")


def test_a_class_absent_from_training_is_refused(prepared, step):
    rows = len(np.load("data/set/labels.npy"))
    labels = np.load("data/set/labels.npy")
    client = np.where(labels == 7, -1, np.arange(rows) % 5)
    np.savez("mine.npz", client=client, split=np.where(np.arange(rows) % 4 == 0, 1, 0))
    prepared.parameters["partition"] = {"scheme": "file", "path": "mine.npz"}
    prepared.write()
    assert step(partition.main, *PARTITION)[0] == 0
    code, lines = step(plan.main, *PLAN)
    assert code == 1
    assert lines[0].startswith("error: partition: no client has a training example of class '7'")


def test_batch_norm_needs_full_batches(prepared, step):
    prepared.parameters["model"] = {"name": "cnn", "norm": "batch"}
    prepared.write()
    code, lines = step(plan.main, *PLAN)
    assert code == 1
    assert "train.last_batch 'keep' makes short batches" in lines[0]
    prepared.edit("train.last_batch", "wrap")
    assert step(plan.main, *PLAN) == (0, [])


def test_a_corrupt_data_file_is_named_and_the_old_run_stays(prepared, step):
    arguments = ("--plan", "data/plans/fedavg.json", "--seed", "0", "--dataset", "data/set", "--no-tracking")
    arguments += ("--partition", "data/p.npz", "--out", "runs/fedavg-0")
    assert step(train.main, *arguments)[0] == 0
    labels = prepared.folder / "data/set/labels.npy"
    labels.write_bytes(labels.read_bytes()[:-8])
    with unchanged(prepared.folder / "runs"):
        code, lines = step(train.main, *arguments)
    assert code == 1
    assert "labels.npy" in lines[0]


def test_a_device_that_is_not_there_is_one_line(prepared, step):
    prepared.edit("train.device", "tpu9")
    code, lines = step(plan.main, *PLAN)
    assert code == 1
    assert lines[0].startswith("error: train.device: 'tpu9' is no device. Valid: auto, cpu")


def test_a_preset_that_overrules_the_training_section_says_so(project, step):
    dbe = {"method": "fedavg", "add": {"dbe": {"preset": "paper"}}}
    project.parameters["methods"]["dbe"] = dbe
    project.edit("train.lr", 0.1)
    code, lines = step(check.main, "--out", "data/check.json")
    assert code == 0
    assert lines == [
        "note: methods.dbe: its preset sets train.batch_size to 10, not 32; methods.dbe.train.batch_size would win",
        "note: methods.dbe: its preset sets train.lr to 0.005, not 0.1; methods.dbe.train.lr would win",
    ]
    project.parameters["train"]["batch_size"] = 10
    project.edit("methods.dbe", {**dbe, "train": {"lr": 0.1}})
    assert step(check.main, "--out", "data/check.json") == (0, [])


@pytest.mark.parametrize("name", ["a?b", "a b", "a#b", "a%20b", "ü'b"])
def test_a_path_that_no_databases_address_can_hold_is_refused(tmp_path, monkeypatch, name):
    from sqlalchemy.engine import make_url

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHON", sys.executable)
    folder = tmp_path / name
    folder.mkdir()
    for file in ("env.sh", "dvc.yaml"):
        shutil.copy(ROOT / file, folder)
    command = ["sh", "-c", '. ./env.sh && echo "$MLFLOW_TRACKING_URI"']
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "?" in name:
        assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
        assert found.stderr.startswith(f"error: {folder}: the project's path has a '?'")
    else:
        assert make_url(found.stdout.strip()).database == f"{folder}/mlruns/mlflow.db"
