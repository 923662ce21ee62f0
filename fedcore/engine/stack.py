"""Trees of several clients: stacked on a leading axis, and how single clients get on and off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedcore.engine.compiled import filled, flat, in_order
from fedcore.trees import Tree, tree_map


def stacked(trees: Sequence[Mapping[str, Any]]) -> Tree:
    """Stack C trees on a new leading axis; a leaf that is one and the same tensor in all of them is not copied."""
    return tree_map(_together, trees[0], *trees[1:])


def rows(tree: Any, index: Tensor) -> Any:
    """Return rows `index` of a stacked tree of mappings and tuples, in memory of their own."""
    return filled(tree, iter([leaf.index_select(0, index) for leaf in flat(tree)[0]]))


def with_rows(tree: Any, index: Tensor, new: Any) -> Any:
    """Return a stacked tree with other rows `index`; the tree itself stays as it is."""
    pairs = zip(flat(tree)[0], flat(in_order(new, tree))[0], strict=True)
    return filled(tree, iter([old.index_copy(0, index, leaf) for old, leaf in pairs]))


class Collected:
    """Rows that come one after another and make a stacked tree of `count`."""

    def __init__(self, count: int):
        self._count = count
        self._tree: Tree | None = None

    def put(self, index: Tensor, tree: Tree) -> None:
        """Take these rows; the first ones tell the structure."""
        if self._tree is None:
            empty = [leaf.new_empty((self._count, *leaf.shape[1:])) for leaf in flat(tree)[0]]
            self._tree = filled(tree, iter(empty))
        assert self._tree is not None
        for all_rows, leaf in zip(flat(self._tree)[0], flat(in_order(tree, self._tree))[0], strict=True):
            all_rows.index_copy_(0, index, leaf)

    @property
    def tree(self) -> Tree:
        """All rows, when each was put."""
        assert self._tree is not None
        return self._tree


def _together(*values: Tensor) -> Tensor:
    first = values[0]
    if all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack(values)
