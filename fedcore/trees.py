"""Arithmetic on trees: nested dictionaries whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]  # str -> Tensor or Tree


def tree_map(function: Callable[..., Any], tree: Mapping[str, Any], *rest: Mapping[str, Any]) -> Tree:
    """Apply `function` to the corresponding leaves of trees of the same structure."""
    result: Tree = {}
    for name, value in tree.items():
        others = [other[name] for other in rest]
        result[name] = tree_map(function, value, *others) if _is_tree(value) else function(value, *others)
    return result


def leaves(tree: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the leaves in order."""
    for value in tree.values():
        if _is_tree(value):
            yield from leaves(value)
        else:
            yield value


def zeros_like(tree: Mapping[str, Any]) -> Tree:
    """Return a tree of zeros of the same structure."""
    return tree_map(torch.zeros_like, tree)


def stack(trees: Sequence[Mapping[str, Any]]) -> Tree:
    """Stack C trees of the same structure on a new leading axis."""
    return tree_map(lambda *values: torch.stack(values), trees[0], *trees[1:])


def unstack(tree: Mapping[str, Any], count: int) -> list[Tree]:
    """Return the `count` rows of a stacked tree, as views; every leaf is asked once for all of them."""
    views = tree_map(torch.unbind, tree)
    return [tree_map(lambda of_leaf, c=c: of_leaf[c], views) for c in range(count)]


def add(tree: Mapping[str, Any], other: Mapping[str, Any], scale: float | Tensor = 1.0) -> Tree:
    """Return ``tree + scale * other``."""
    return tree_map(lambda a, b: a + scale * b, tree, other)


def subtract(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Tree:
    """Return ``tree - other``."""
    return tree_map(torch.sub, tree, other)


def accumulate(total: Tree | None, tree: Mapping[str, Any], weight: float) -> Tree:
    """Return ``total + weight * tree``, in place on `total`; ``None`` is an empty total."""
    if total is None:
        return tree_map(lambda value: value * weight, tree)
    for accumulated, value in zip(leaves(total), leaves(tree), strict=True):
        accumulated.add_(value, alpha=weight)
    return total


def count(tree: Mapping[str, Any]) -> int:
    """Return the number of scalars."""
    return sum(value.numel() for value in leaves(tree))


def num_bytes(tree: Mapping[str, Any]) -> int:
    """Return the number of bytes of the leaves."""
    return sum(value.nbytes for value in leaves(tree))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by path, joined with ``/``; empty branches vanish."""
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        if _is_tree(value):
            flat.update(flatten(value, f"{prefix}{name}/"))
        else:
            flat[prefix + name] = value
    return flat


def unflatten(flat: Mapping[str, Tensor], like: Mapping[str, Any], prefix: str = "") -> Tree:
    """Undo `flatten`: give the leaves the structure of `like`.

    Raises
    ------
    KeyError
        If a leaf of `like` is missing.
    """
    return {
        name: unflatten(flat, value, f"{prefix}{name}/") if _is_tree(value) else flat[prefix + name]
        for name, value in like.items()
    }


def _is_tree(value: object) -> bool:
    # Whether something is a mapping is slow to find out of what is none.
    return not isinstance(value, Tensor) and isinstance(value, Mapping)
