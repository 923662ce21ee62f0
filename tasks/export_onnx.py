"""Write a registered model as ONNX: raw inputs in, logits and probabilities out, normalisation inside.

The global model, or one client's own with ``--kind personal --client 3``. Before the file is written, ONNX Runtime must
give the logits that PyTorch gives.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.engine.export import Predictor, load_predictor
from fedcore.seeds import stream
from tasks.files import atomic_write_bytes
from tasks.parameters import run_step
from tasks.served_version import ServedVersion, add_arguments, opened_version

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Of the logits, relative to the largest: other kernels add in another order.
TOLERANCE = 1e-4
# Several sizes of a batch, one of them 1, which a graph may have burnt in.
_BATCHES = (1, 5, 2)


class _WithProbabilities(nn.Module):
    """Raw inputs [n, *input_shape] -> logits [n, Y] and their softmax."""

    def __init__(self, classifier: nn.Module):
        super().__init__()
        self.classifier = classifier

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities."""
        logits: Tensor = self.classifier(inputs)
        return logits, logits.softmax(-1)


def onnx_bytes(predictor: Predictor, client: int | None, facts: Mapping[str, str]) -> bytes:
    """Return a model as an ONNX file.

    Input ``inputs`` [batch, *input_shape], float32 in raw units or int64 token ids; outputs ``logits`` and
    ``probabilities`` [batch, Y].

    Parameters
    ----------
    client : int or None
        Whose model; None is the server's.
    facts : mapping of str to str
        What to keep in the file's metadata besides the classes.

    Raises
    ------
    ValueError
        If the client has no model of its own, or ONNX Runtime and PyTorch disagree.
    """
    if client is not None and client not in predictor.clients:
        known = sorted(predictor.clients)
        valid = f"valid: {', '.join(map(str, known[:10]))}{', ...' if len(known) > 10 else ''}" if known else "none has"
        raise ValueError(f"client {client} has no model of its own; {valid}")
    model = _WithProbabilities(predictor.classifier(client)).eval()
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings(), torch.no_grad():
        # The exporter trips over deprecations of its own.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (torch.from_numpy(_examples(predictor, 3)),),
            dynamo=True,
            input_names=["inputs"],
            output_names=["logits", "probabilities"],
            dynamic_shapes={"inputs": {0: batch}},
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    del proto.metadata_props[:]
    for key, value in sorted({**facts, "classes": json.dumps(list(predictor.class_names))}.items()):
        proto.metadata_props.add(key=key, value=value)
    data: bytes = proto.SerializeToString(deterministic=True)
    _check(predictor, client, data)
    return data


def session(data: bytes) -> InferenceSession:
    """Return an ONNX Runtime session on one thread of the processor."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _examples(predictor: Predictor, count: int) -> np.ndarray:
    """Return raw inputs that look like real ones: ids of the vocabulary, or numbers spread as the scaling expects."""
    generator, shape = stream(0, "onnx/examples"), (count, *predictor.input_shape)
    if predictor.num_tokens is not None:
        return generator.integers(0, predictor.num_tokens, shape)
    return predictor.raw(torch.from_numpy(generator.normal(size=shape).astype(np.float32))).numpy()


def _check(predictor: Predictor, client: int | None, data: bytes) -> None:
    runtime = session(data)
    for count in _BATCHES:
        inputs = _examples(predictor, count)
        expected = predictor.logits(inputs, client)
        found = np.asarray(runtime.run(["logits"], {"inputs": inputs})[0])
        worst = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
        if not worst <= TOLERANCE:
            raise ValueError(
                f"ONNX Runtime and PyTorch differ by {worst:.1e} of the largest logit, more than {TOLERANCE}"
            )


def facts_of(version: ServedVersion, client: int | None) -> dict[str, str]:
    """Return a version's identity and lineage, for the metadata of the file."""
    kept = {key: value for key, value in version.tags.items() if key.startswith(("lineage.", "git_", "fedcore."))}
    return {
        **kept,
        "fedcore.model": version.name,
        "fedcore.version": str(version.version),
        "fedcore.client": "none" if client is None else str(client),
    }


def export(version: ServedVersion, client: int | None, target: Path) -> int:
    """Write a version's model, or one client's; return the size in bytes.

    Raises
    ------
    ValueError
        If the version is a personal one and no client is given, or the other way round.
    """
    if version.is_personal != (client is not None):
        needs = (
            "give one: CLIENT=3" if client is None else "it is the same for all; leave out the client, or KIND=personal"
        )
        raise ValueError(f"{version} is {'one model per client' if client is None else 'a global model'}; {needs}")
    data = onnx_bytes(load_predictor(version.folder / "artifacts" / "run"), client, facts_of(version, client))
    atomic_write_bytes(target, data)
    return len(data)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.export_onnx", description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="the file to write, .onnx")
    parser.add_argument("--client", default="", help="number of the client whose own model is wanted")
    add_arguments(parser, kind="global")
    arguments = parser.parse_args()
    if arguments.output.suffix.lower() != ".onnx":
        raise ValueError(f"{arguments.output}: expected a file ending in .onnx")
    client = _client(arguments.client)
    if client is not None and not arguments.model and not arguments.kind:
        arguments.kind = "personal"
    with opened_version(Path.cwd(), arguments) as version:
        size = export(version, client, arguments.output)
        whose = "" if client is None else f", client {client}"
        print(f"{arguments.output}: {version}{whose}, {size / 1e6:.1f} MB, agrees with PyTorch")


def _client(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"client '{text}' is no number; expected 0, 1, ...")
    return int(text)


if __name__ == "__main__":
    run_step(main)
