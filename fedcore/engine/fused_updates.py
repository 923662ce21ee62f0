"""A layer's gradient and its step as one matrix product, in a traced graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def fuse_updates(graph: GraphModule) -> int:
    """Turn every ``weight - rate * (a @ b)`` into one product that starts from the weight; return how many there were.

    The gradient is then never in memory by itself, which for a large layer and a small batch is a third of the traffic.
    Rounding differs in the last bit, as the rate comes into `a`. Steps that do more with a gradient (momentum, weight
    decay, a control variate) stay as they are.
    """
    found = 0
    for node in list(graph.graph.nodes):
        parts = _update(node)
        if parts is None:
            continue
        weight, rate, a, b = parts
        with graph.graph.inserting_before(node):
            scaled = _times(graph, a, graph.graph.call_function(_aten.neg.default, (rate,)))
            fused = graph.graph.call_function(_aten.addmm.default, (weight, scaled, b))
        fused.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(fused)
        graph.graph.erase_node(node)
        found += 1
    if found:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return found


def _update(node: Any) -> tuple[Node, Node, Any, Any] | None:
    """Return weight, rate and both factors of the gradient if a node is such an update."""
    if node.target is not _aten.sub.Tensor or node.kwargs:
        return None
    weight, step = node.args
    if not isinstance(weight, Node) or not _only_here(step, _aten.mul.Tensor):
        return None
    rate, gradient = step.args
    turns = 0
    while _only_here(gradient, _aten.t.default):
        gradient, turns = gradient.args[0], turns + 1
    if turns % 2 or not _only_here(gradient, _aten.mm.default) or not isinstance(rate, Node):
        return None
    if rate.meta["val"].dim() or not weight.meta["val"].is_contiguous():
        return None
    a, b = gradient.args
    return weight, rate, a, b


def _only_here(node: Any, target: object) -> bool:
    """Return whether a node calls `target`, and nothing but what was asked about uses it."""
    return isinstance(node, Node) and node.target is target and len(node.users) == 1


def _times(graph: GraphModule, a: Any, rate: Node) -> Node:
    """Return ``a * rate``; of a transposed tensor the tensor itself is scaled, so that it stays transposed."""
    if a.target is not _aten.t.default:
        return graph.graph.call_function(_aten.mul.Tensor, (a, rate))
    scaled = graph.graph.call_function(_aten.mul.Tensor, (a.args[0], rate))
    return graph.graph.call_function(_aten.t.default, (scaled,))
