"""A service answers with the training's own logits, routes by client, and reads no more than it needs."""

from __future__ import annotations

import json
import math
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedcore.engine.export import load_predictor, model_bytes, personal_bytes
from fedcore.engine.rounds import Training
from fedcore.engine.serving import Service, load_service
from tests import toys

ADD_ONS = {
    "fedavg": ("fedavg", {}),
    "local": ("local", {}),
    "fedavg_ft": ("fedavg_ft", {}),
    "fedrep": ("fedrep", {}),
    "dbe": ("fedavg", {"dbe": {"kappa": 1.0, "momentum": 0.5}}),
    "dbe inside": ("fedavg", {"dbe": {"kappa": 1.0, "layer": "conv1"}}),
    "vhl": ("fedavg", {"vhl": {}}),
}
MODEL = {"name": "cnn", "channels": [2, 3], "hidden": 4, "norm": "batch"}


def trained(case: str) -> Training:
    name, add = ADD_ONS[case]
    composed = toys.composition(name, add=add)
    fed = toys.federation(image=True)
    net = toys.net(MODEL, image=True, classes=composed.num_outputs(fed.dataset.num_classes))
    work = toys.training(composed, fed, net, rounds=2)
    work.run()
    return work


def write(folder: Path, work: Training, case: str) -> Path:
    name, add = ADD_ONS[case]
    data = work.federation.dataset
    facts = {"shape": list(data.input_shape), "class_names": list(data.class_names)}
    facts |= {"offset": list(data.offset), "scale": list(data.scale)}
    config = {"label": "toy", "method": name, "settings": {}, "add": add, "model": MODEL, "input": facts}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(model_bytes(work))
    (folder / "personal.safetensors").write_bytes(personal_bytes(work))
    return folder


def engine_logits(work: Training, params: Any, buffers: Any, rows: np.ndarray) -> np.ndarray:
    """What the training process computes when it evaluates a model."""
    x, _ = work.examples.gather(rows)
    with torch.no_grad():
        net = work.net.bind(buffers, training=False)
        return work.composition.forward(net, params, x).logits.numpy()[:, : work.federation.dataset.num_classes]


@pytest.mark.parametrize("case", ADD_ONS)
def test_logits_are_those_of_the_training_process(case: str, tmp_path: Path) -> None:
    work = trained(case)
    service = load_service(write(tmp_path, work, case), None, is_personal=True)
    rows = np.arange(0, len(work.federation.dataset), 3)
    flat = np.asarray(work.federation.dataset.inputs)[rows].reshape(len(rows), -1).astype(float)
    inputs = service.rows(flat, lambda row, feature: "nowhere")
    chosen = work.progress.selected
    server = chosen.get("global", chosen["personal"]).server
    initial = work.progress.store.initial
    shared = engine_logits(work, {**initial["params"], **server.params}, {**initial["buffers"], **server.buffers}, rows)
    own = {model.client: engine_logits(work, model.params, model.buffers, rows) for model in work.chosen_models()}
    assert sorted(own) == ([] if case in ("fedavg", "vhl") else [0, 1, 2, 3, 4])

    clients = np.resize(np.array([2, 0, 99, 4]), len(rows))
    answers = service.answer(inputs, clients)
    expected = np.stack([own.get(int(client), shared)[row] for row, client in enumerate(clients)])
    assert np.abs(answers.logits - expected).max() < 1e-5
    assert answers.known is not None
    assert answers.known.tolist() == [int(client) in own for client in clients]
    assert np.abs(load_service(tmp_path, None, is_personal=False).answer(inputs, None).logits - shared).max() < 1e-5
    if own:
        assert np.abs(own[2] - shared).max() > 1e-4, "clients that hardly differ would prove nothing"


def test_probabilities_and_labels_by_hand() -> None:
    from fedcore.engine.serving import Answers

    answers = Answers(np.array([[0.0, math.log(3.0)], [1000.0, 1000.0]], np.float32), None)
    assert np.allclose(answers.probabilities, [[0.25, 0.75], [0.5, 0.5]])
    assert answers.labels.tolist() == [1, 0]


def test_one_of_ten_thousand_clients_is_read_alone(tmp_path: Path) -> None:
    """An 8 GB file of holes: who reads it all needs 8 GB and many seconds."""
    count, hidden = 10_000, 25_000
    shapes = {"body.1.weight": (hidden, 4), "body.1.bias": (hidden,), "head.weight": (3, hidden), "head.bias": (3,)}
    header: dict[str, Any] = {"clients": {"dtype": "I64", "shape": [count], "data_offsets": [0, 8 * count]}}
    end = 8 * count
    for name, shape in shapes.items():
        begin, end = end, end + 4 * count * math.prod(shape)
        header[f"own/{name}"] = {"dtype": "F32", "shape": [count, *shape], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (tmp_path / "personal.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + np.arange(count).tobytes())
        file.truncate(8 + len(text) + end)
        # Client 9,998's model: the first hidden unit is the sum of the features, class 2 is twice that.
        for name, position, value in (("body.1.weight", 0, [1.0] * 4), ("head.weight", 2 * hidden, [2.0])):
            begin = header[f"own/{name}"]["data_offsets"][0] + 4 * (9_998 * math.prod(shapes[name]) + position)
            file.seek(8 + len(text) + begin)
            file.write(np.array(value, np.float32).tobytes())
    save_file({"head.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    facts = {"shape": [4], "class_names": ["a", "b", "c"], "offset": [0.0], "scale": [1.0]}
    config = {"label": "local", "method": "local", "settings": {}, "add": {}, "input": facts}
    (tmp_path / "config.json").write_text(json.dumps({**config, "model": {"name": "mlp", "hidden": [hidden]}}))
    load_predictor(tmp_path)  # what is imported on first use is not what is timed

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, start = resident(), time.process_time()
    logits = load_predictor(tmp_path).logits(np.array([[1.0, 2.0, 3.0, 4.0]], np.float32), 9_998)
    assert time.process_time() - start < 1.0
    assert resident() - before < 200e6
    assert logits.tolist() == [[0.0, 0.0, 20.0]]


def test_a_fallback_of_something_else_is_refused(tmp_path: Path) -> None:
    folders = []
    for name, classes in (("one", ["a", "b", "c"]), ("two", ["a", "b", "d"])):
        (tmp_path / name).mkdir()
        folder = write(tmp_path / name, trained("fedavg"), "fedavg")
        config = json.loads((folder / "config.json").read_text())
        config["input"]["class_names"] = classes
        (folder / "config.json").write_text(json.dumps(config))
        folders.append(load_predictor(folder))
    with pytest.raises(ValueError, match="takes other inputs or knows other classes"):
        Service(folders[0], folders[1], is_personal=True)


@pytest.mark.parametrize("name", ["personal.safetensors", "model.safetensors", "config.json"])
@pytest.mark.parametrize("content", [None, b"", b"[]", b"\x10\0\0\0\0\0\0\0{}"])
def test_a_missing_or_broken_file_is_one_line(name: str, content: bytes | None, tmp_path: Path) -> None:
    write(tmp_path, trained("fedavg"), "fedavg")
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"not a complete run folder \(.+\)$"):
        load_predictor(tmp_path)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_leaf_needs_a_row_for_every_client(tmp_path: Path, rows: int) -> None:
    write(tmp_path, trained("fedavg"), "fedavg")
    leaves = {"clients": torch.tensor([3, 5, 8]), "own/head.bias": torch.zeros(rows, 3)}
    save_file(leaves, tmp_path / "personal.safetensors")
    message = rf"personal.safetensors: own/head.bias has shape \[{rows}, 3\], expected 3 rows"
    with pytest.raises(ValueError, match=message):
        load_predictor(tmp_path)
