"""ONNX files give the logits of PyTorch, from raw inputs, for every model and what add-ons change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import save_file

from fedcore import config, models
from fedcore.compose import build
from fedcore.config import MethodBlock
from fedcore.engine.export import Predictor, load_predictor
from fedcore.seeds import stream
from tasks import export_onnx as step
from tasks.export_onnx import onnx_bytes, session
from tests.tracking.conftest import CommandLine, Project, Run, logits_by_hand

IMAGE, COLOUR = (1, 8, 8), (3, 8, 8)
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "softmax_regression": ({}, (5,)),
    "mlp": ({"hidden": [6, 4]}, IMAGE),
    "cnn": ({"channels": [2, 3], "hidden": 4, "norm": "batch"}, IMAGE),
    "lenet": ({}, COLOUR),
    "group_cnn": ({}, IMAGE),
    "vgg11": ({"width": 2}, (3, 32, 32)),
    "resnet": ({"depth": 10, "width": 4}, COLOUR),
    "cct": ({"layers": 1, "heads": 2, "width": 8}, COLOUR),
    "fast_text": ({"vocabulary": 11, "width": 4}, (6,)),
    "har_cnn": ({"channels": [2, 3], "hidden": [8, 6]}, (9, 128)),
}
# An export takes seconds: with buffers, and with token ids; the others run with the slow tests.
QUICK = ("cnn", "fast_text")
OFFSET, SCALE = 8.0, 0.125


def saved(folder: Path, model: dict[str, Any], shape: tuple[int, ...], add: dict[str, Any] | None = None) -> Predictor:
    """A run's files with random weights: client 3 has leaves of its own, all of them."""
    add = add or {}
    composed = build("toy", MethodBlock(method="local", add=add))
    parsed: Any = TypeAdapter(config.Model).validate_python(model)
    net = models.build(parsed, shape, composed.num_outputs(3), seed=0)
    generator = stream(0, "test/onnx")
    leaves = {**net.initial_params, **composed.extra_params(net, 0)}

    def drawn(like: torch.Tensor) -> torch.Tensor:
        return like + 0.1 * torch.from_numpy(generator.normal(size=tuple(like.shape))).float()

    # Running means near 0 and variances near 1: drawn means would silence whole layers.
    buffers = {name: drawn(leaf).abs() for name, leaf in net.initial_buffers.items()}
    server = {name: drawn(leaf) for name, leaf in leaves.items()}
    own = {f"own/{name}": drawn(leaf)[None] for name, leaf in leaves.items()}
    save_file({**server, **buffers}, folder / "model.safetensors")
    shared = {f"shared/{name}": leaf for name, leaf in buffers.items()}
    save_file({"clients": torch.tensor([3]), **own, **shared}, folder / "personal.safetensors")
    tokens = model["name"] == "fast_text"
    facts: dict[str, Any] = {"shape": list(shape), "class_names": ["a", "b", "ç"]}
    facts |= {"offset": [0.0], "scale": [1.0], "num_tokens": 11} if tokens else {"offset": [OFFSET], "scale": [SCALE]}
    if len(shape) > 1:
        facts |= {key: facts[key] * shape[0] for key in ("offset", "scale")}
    content = {"label": "toy", "method": "local", "settings": {}, "add": add, "model": model, "input": facts}
    (folder / "config.json").write_text(json.dumps(content))
    return load_predictor(folder)


def agrees(predictor: Predictor, client: int | None, data: bytes) -> None:
    """Compare on inputs that the export has not seen."""
    generator, shape = stream(1, "test/onnx/inputs"), (7, *predictor.input_shape)
    if predictor.num_tokens is not None:
        inputs = generator.integers(0, predictor.num_tokens, shape)
    else:
        inputs = generator.integers(0, 17, shape).astype(np.float32)
    logits, probabilities = session(data).run(None, {"inputs": inputs})
    expected = predictor.logits(inputs, client)
    assert np.ptp(expected, axis=0).max() > 1e-3, "answers that hardly differ would prove nothing"
    assert np.abs(logits - expected).max() < 1e-4
    powers = np.exp(expected)
    assert np.allclose(probabilities, powers / powers.sum(axis=1, keepdims=True), atol=1e-5)


def test_every_model_has_a_case() -> None:
    sections = get_args(get_args(config.Model)[0])
    assert set(MODELS) == {name for section in sections for name in get_args(section.model_fields["name"].annotation)}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MODELS])
def test_every_model_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    settings, shape = MODELS[name]
    predictor = saved(tmp_path, {"name": name, **settings}, shape)
    agrees(predictor, None, onnx_bytes(predictor, None, {}))


@pytest.mark.parametrize(
    "add",
    [
        pytest.param({"dbe": {}}, id="dbe", marks=pytest.mark.slow),
        pytest.param({"dbe": {"layer": "conv1"}}, id="dbe inside"),
        pytest.param({"vhl": {}}, id="vhl", marks=pytest.mark.slow),
    ],
)
def test_what_add_ons_change_is_in_the_graph(add: dict[str, Any], tmp_path: Path) -> None:
    predictor = saved(tmp_path, {"name": "cnn", "channels": [2, 3], "hidden": 4}, IMAGE, add)
    data = onnx_bytes(predictor, 3, {})
    agrees(predictor, 3, data)
    inputs = np.ones((1, *IMAGE), np.float32)
    own = session(data).run(["logits"], {"inputs": inputs})[0]
    assert own.shape == (1, 3)
    assert np.abs(own - predictor.logits(inputs)).max() > 1e-3


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    predictor = saved(tmp_path, {"name": "mlp", "hidden": [6]}, IMAGE)
    assert onnx_bytes(predictor, None, {"a": "b"}) == onnx_bytes(predictor, None, {"a": "b"})


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    predictor = saved(tmp_path, {"name": "mlp", "hidden": [6]}, IMAGE)
    data = onnx_bytes(predictor, None, {"fedcore.version": "4"})
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.key: entry.value for entry in model.metadata_props} == {
        "classes": '["a", "b", "\\u00e7"]',
        "fedcore.version": "4",
    }
    runtime = session(data)
    assert [(entry.name, entry.shape, entry.type) for entry in runtime.get_inputs()] == [
        ("inputs", ["batch", 1, 8, 8], "tensor(float)")
    ]
    assert [(entry.name, entry.shape) for entry in runtime.get_outputs()] == [
        ("logits", ["batch", 3]),
        ("probabilities", ["batch", 3]),
    ]


def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = saved(tmp_path, {"name": "softmax_regression"}, (5,))
    logits = Predictor.logits
    monkeypatch.setattr(Predictor, "logits", lambda *arguments: logits(*arguments) + 0.01)
    with pytest.raises(ValueError, match=r"ONNX Runtime and PyTorch differ by .* of the largest logit"):
        onnx_bytes(predictor, None, {})


@pytest.fixture
def run(command_line: CommandLine) -> Run:
    return command_line(step)


@pytest.mark.parametrize("client", [pytest.param(None, marks=pytest.mark.slow), 7])
def test_the_command_exports_registered_models(registry: Project, run: Run, client: int | None) -> None:
    kind = "global" if client is None else "personal"
    more = () if client is None else ("--client", str(client))
    code, out, err = run("out/model.onnx", "--model", f"digits-{kind}", *more)
    assert (code, err) == (0, [])
    assert out[0].startswith(f"out/model.onnx: digits-{kind} version 1 (")
    inputs = np.arange(8, dtype=np.float32).reshape(2, 1, 2, 2)
    data = Path("out/model.onnx").read_bytes()
    found = session(data).run(["logits"], {"inputs": inputs})[0]
    assert np.allclose(found, logits_by_hand(registry, [client, client], inputs.reshape(2, 4)), atol=1e-5)
    facts = {entry.key: entry.value for entry in onnx.load_from_string(data).metadata_props}
    assert facts["lineage.partition_hash"] == "e" * 64
    assert (facts["fedcore.model"], facts["fedcore.version"]) == (f"digits-{kind}", "1")
    assert facts["fedcore.client"] == ("none" if client is None else "7")
    assert facts["git_commit"] == "c0ffee"


ARGUMENTS = {
    "another ending": (("model.pt", "--model", "digits-global"), "model.pt: expected a file ending in .onnx"),
    "personal without a client": (
        ("model.onnx", "--model", "digits-personal"),
        "digits-personal version 1 (local) is one model per client; give one: CLIENT=3",
    ),
    "global with a client": (
        ("model.onnx", "--model", "digits-global", "--client", "3"),
        "digits-global version 1 (fedavg) is a global model; it is the same for all; leave out the client,"
        " or KIND=personal",
    ),
    "stranger": (
        ("model.onnx", "--model", "digits-personal", "--client", "4"),
        "client 4 has no model of its own; valid: 3, 7",
    ),
    "client that is no number": (
        ("model.onnx", "--model", "digits-personal", "--client", "three"),
        "client 'three' is no number; expected 0, 1, ...",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(registry: Project, run: Run, case: str) -> None:
    arguments, message = ARGUMENTS[case]
    assert run(*arguments) == (1, [], [f"error: {message}"])
    assert list(Path().iterdir()) == []
