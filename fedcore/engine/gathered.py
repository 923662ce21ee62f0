"""What the batches of many steps are made of, gathered from a data set."""

from __future__ import annotations

from math import prod

from torch import Tensor

from fedcore.engine.local import Examples

_BYTES = 1 << 23  # of inputs that are gathered at once: what is around a call is paid seldom, and memory stays small


class Gathered:
    """Labels and protected attributes of all steps, and their raw inputs, some steps at a time as they are asked for.

    Parameters
    ----------
    rows : [K, ...] int64
        Of every step, on the examples' device.
    """

    def __init__(self, examples: Examples, rows: Tensor):
        self._examples = examples
        self.rows = rows
        self.labels = examples.labels.index_select(0, rows.flatten()).view(rows.shape)
        self.protected = examples.protected_of(rows)
        self._begin = 0
        self._inputs: Tensor | None = None  # of some steps, from `_begin` on
        step = prod([*rows.shape[1:], *examples.inputs.shape[1:], examples.inputs.element_size()])
        self._steps = _BYTES // max(step, 1)

    def inputs(self, begin: int, size: int) -> Tensor:
        """Return the raw inputs of `size` steps from `begin` on, [size, ..., *shape]; nobody may write to them."""
        first = begin - self._begin
        if self._inputs is None or first < 0 or first + size > len(self._inputs):
            count = max(1, self._steps // size) * size
            self._begin, first = begin, 0
            self._inputs = self._examples.inputs_of(self.rows[begin : begin + count])
        return self._inputs[first : first + size]

    def unfilled(self, size: int) -> Tensor:
        """Return memory of the form of the inputs of `size` steps, with anything in it."""
        inputs = self._examples.inputs
        return inputs.new_empty((size, *self.rows.shape[1:], *inputs.shape[1:]))
