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
        self._begin, self._inputs = 0, examples.inputs_of(rows[:0])
        step = prod([*rows.shape[1:], *self._inputs.shape[rows.dim() :], self._inputs.element_size()])
        self._steps = _BYTES // max(step, 1)

    def inputs(self, begin: int, size: int) -> Tensor:
        """Return the raw inputs of `size` steps from `begin` on, [size, ..., *shape]; nobody may write to them."""
        first = begin - self._begin
        if first < 0 or first + size > len(self._inputs):
            count = max(1, self._steps // size) * size
            self._begin, first = begin, 0
            self._inputs = self._examples.inputs_of(self.rows[begin : begin + count])
        return self._inputs[first : first + size]
