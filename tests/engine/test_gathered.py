"""What batches are made of, some steps at a time."""

import numpy as np
import pytest
import torch

from fedcore.engine import gathered
from fedcore.engine.gathered import Gathered
from fedcore.engine.local import Examples


class _Counting(Examples):
    gathers = 0

    def inputs_of(self, rows):
        self.gathers += bool(len(rows))
        return super().inputs_of(rows)


def _examples(shape, dtype=np.uint8):
    draw = np.random.default_rng(0)
    inputs = draw.integers(0, 256, (50, *shape)).astype(dtype)
    protected = draw.integers(0, 2, (50, 3)).astype(np.uint8)
    return _Counting(inputs, draw.integers(0, 9, 50), [0.0], [1.0], torch.device("cpu"), protected=protected)


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2)])
@pytest.mark.parametrize("lanes", [(), (3,)])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_every_step_gets_its_rows(monkeypatch, shape, lanes, steps):
    examples = _examples(shape)
    rows = torch.from_numpy(np.random.default_rng(1).integers(0, 50, (10, *lanes, 6)))
    step = rows[0].numel() * 4  # bytes
    monkeypatch.setattr(gathered, "_BYTES", 4 * step + 1)
    found = Gathered(examples, rows)
    assert torch.equal(found.labels, examples.labels[rows])
    assert torch.equal(found.protected, examples.protected[rows])
    for begin in range(0, 10, steps):
        assert torch.equal(found.inputs(begin, steps), examples.inputs[rows[begin : begin + steps]])
    # Four steps fit: all calls of one or two steps that do, and of five steps one call.
    assert examples.gathers == {1: 3, 2: 3, 5: 2}[steps]
    assert torch.equal(found.inputs(1, 2), examples.inputs[rows[1:3]])  # back again


def test_a_step_is_gathered_even_if_it_is_too_much(monkeypatch):
    monkeypatch.setattr(gathered, "_BYTES", 1)
    examples = _examples((4,), np.float32)
    rows = torch.arange(12).reshape(3, 4)
    found = Gathered(examples, rows)
    assert torch.equal(found.inputs(2, 1), examples.inputs[rows[2:]])
    assert examples.gathers == 1
