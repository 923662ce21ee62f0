"""A first layer's steps in the space of a client's examples: a coordinate for each example, not for each input.

With plain steps a layer that sees the inputs themselves never leaves ``W_k = W_0 + D_k^T X``: X [N, I] are the
client's examples, D [N, O] is 0 at first, and a step on rows b with slopes s of the layer's outputs adds ``-lr * s`` to
D[b]. Its outputs are ``X[b] W_k^T = (X W_0^T)[b] + (X X^T)[b] D_k``: two large products for a client and small ones for
each step, instead of two large ones for each step. A client that sees its few examples five times does a third of the
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fedcore.types import Params

_aten = torch.ops.aten
_SCALING = (_aten._to_copy.default, _aten.sub.Tensor, _aten.sub_.Tensor, _aten.mul.Tensor, _aten.mul_.Tensor)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
_PRODUCTS = (_aten.addmm.default, _aten.mm.default)
_WORTH = 0.6  # of the multiplications, at most


@dataclass(frozen=True)
class Places:
    """Where a function of steps has what is exchanged, among its tensors, and for how many examples.

    Attributes
    ----------
    weight, inputs : int
        The layer's weight, which D takes the place of, and the batches' raw inputs. H, G and R take theirs: X W_0^T
        [N, O], X X^T [N, N], and which examples the rows are, [steps, B] int64.
    num_examples : int
        N.
    """

    weight: int
    inputs: int
    num_examples: int


def padded(num_examples: int) -> int:
    """Return for how many examples functions are made that serve a client: few different ones serve all clients."""
    return max(16, 1 << (num_examples - 1).bit_length())


def layer(params: Params, names: tuple[str, ...], num_inputs: int) -> str | None:
    """Return the first learning weight that could be of a layer that sees the inputs; None without one."""
    return next((n for n in names if params[n].dim() == 2 and params[n].shape[1] == num_inputs), None)


def is_worthwhile(num_examples: int, steps: int, rows: int, weight: Tensor) -> bool:
    """Return whether steps on so many rows multiply less in the space of these examples."""
    outputs, inputs = weight.shape
    n = padded(num_examples)
    once = n * inputs * (2 * outputs + n)
    each = 2 * rows * n * outputs
    return once + steps * each < _WORTH * steps * 2 * rows * inputs * outputs


class ExampleSpace:
    """One client's examples, and its layer among them.

    Parameters
    ----------
    inputs : [N, I]
        Its examples, scaled.
    carry : list of Tensor
        What steps start from, W_0 among it.
    """

    def __init__(self, inputs: Tensor, carry: list[Tensor], places: Places):
        self._places = places
        self._weight = carry[places.weight]
        self._inputs = torch.nn.functional.pad(inputs, (0, 0, 0, places.num_examples - len(inputs)))
        self._inputs = self._inputs.type_as(self._weight)
        self._outputs = self._inputs @ self._weight.t()
        self._products = self._inputs @ self._inputs.t()

    def enter(self, carry: list[Tensor]) -> list[Tensor]:
        """Return the carry with D in place of W."""
        return self._with(carry, torch.zeros_like(self._outputs))

    def leave(self, carry: list[Tensor]) -> list[Tensor]:
        """Return the carry with W in place of D."""
        return self._with(carry, torch.addmm(self._weight, carry[self._places.weight].t(), self._inputs))

    def given(self, batches: list[Tensor], rows: Tensor) -> list[Tensor]:
        """Return batches with H, G and R in place of the inputs; `rows` [steps, B] are among the examples."""
        return [self._outputs, self._products, rows, *batches[1:]]

    def _with(self, carry: list[Tensor], tensor: Tensor) -> list[Tensor]:
        at = self._places.weight
        return [*carry[:at], tensor, *carry[at + 1 :]]


def exchanged(tensors: list[Tensor], places: Places) -> list[Tensor]:
    """Return the arguments of rewritten steps, with values of no meaning, for those of steps as they were."""
    weight, inputs, n = tensors[places.weight], tensors[places.inputs], places.num_examples
    new = list(tensors)
    outputs, products = weight.new_zeros(n, len(weight)), weight.new_zeros(n, n)
    new[places.weight] = outputs
    new[places.inputs : places.inputs + 1] = outputs, products, inputs.new_zeros(inputs.shape[:2], dtype=torch.int64)
    return new


def rewrite(graph: GraphModule, places: Places) -> bool:
    """Exchange a weight for its coordinates in traced steps; return whether that could be done.

    It can where the weight is used for nothing but products with the inputs and plain steps on them (after
    `fuse_updates`), and the inputs for nothing else, so that what an add-on or method does beside keeps steps as they
    are.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    inputs = placeholders[places.inputs]
    scaling = _scaling(inputs, placeholders[-2:])
    batches = _batches(scaling[-1]) if scaling else {}
    steps = _steps(placeholders[places.weight], batches)
    if not steps or not _is_kept(steps[-1][1], places.weight):
        return False
    with graph.graph.inserting_before(inputs):
        taken = [graph.graph.placeholder(f"{inputs.name}_{name}") for name in ("h", "g", "r")]
    shown = exchanged([node.meta["val"] for node in placeholders], places)
    placeholders[places.inputs : places.inputs + 1] = taken
    for node, value in zip(placeholders, shown, strict=True):
        node.meta = {"val": value}
    outputs, products, rows = taken
    coordinates: Node = placeholders[places.weight]
    call = graph.graph.call_function
    with graph.graph.inserting_before(steps[0][0]):
        numbers = call(_aten.arange.default, (places.num_examples,), {"device": shown[places.weight].device})
        numbers = call(_aten.unsqueeze.default, (numbers, 1))
    for forward, update in steps:
        with graph.graph.inserting_before(forward):
            own = call(_aten.select.int, (rows, 0, batches[forward.args[-2]]))
            h, g = (call(_aten.index_select.default, (t, 0, own)) for t in (outputs, products))
            new = call(_aten.addmm.default, (h, g, coordinates))
            if len(forward.args) == 3:
                new = call(_aten.add.Tensor, (new, forward.args[0]))
        forward.replace_all_uses_with(new)
        with graph.graph.inserting_before(update):
            slopes = call(_aten.t.default, (update.args[1],))
            belongs = call(_aten.eq.Tensor, (numbers, own))  # [N, B]
            belongs = call(_aten._to_copy.default, (belongs,), {"dtype": shown[places.weight].dtype})
            coordinates = call(_aten.addmm.default, (coordinates, belongs, slopes))
    steps[-1][1].replace_all_uses_with(coordinates)
    # Scaling in place counts as an effect, and is none where nobody reads the inputs.
    graph.graph.eliminate_dead_code(lambda node: node.is_impure() and node not in scaling)
    graph.recompile()
    return True


def _scaling(inputs: Node, scaling: list[Node]) -> list[Node]:
    """Return the nodes that make model inputs of raw ones; empty if that is not all that happens to them at first."""
    chain: list[Node] = [inputs]
    offset_and_scale: list[Any] = []
    while len(chain[-1].users) == 1 and (user := next(iter(chain[-1].users))).target in _SCALING:
        chain.append(user)
        offset_and_scale += user.args[1:]
    return chain if offset_and_scale == scaling else []


def _batches(scaled: Node) -> dict[Any, Any]:
    """Return the step of every batch of inputs, [B, I]; empty if the inputs are used in another way."""
    found: dict[Any, Any] = {}
    for batch in scaled.users:
        if batch.target is not _aten.select.int or batch.args[1] != 0:
            return {}
        index = batch.args[2]
        while len(batch.users) == 1 and (user := next(iter(batch.users))).target in _VIEWS:
            batch = user
        found[batch] = index
    return found


def _steps(weight: Node, batches: dict[Any, Any]) -> list[tuple[Node, Node]]:
    """Return the product with the weight and the update of it, step by step; empty if there is anything else."""
    steps: list[tuple[Node, Node]] = []
    while True:
        users = list(weight.users)
        if [user.op for user in users] == ["output"]:
            seen = {node for step in steps for node in (step[0].args[-2], step[1].args[-1])}
            return steps if seen == set(batches) and all(len(batch.users) == 2 for batch in batches) else []
        updates = [u for u in users if u.target is _aten.addmm.default and u.args[0] is weight and u.args[2] in batches]
        turned = [user for user in users if user.target is _aten.t.default and len(user.users) == 1]
        if len(users) != 2 or len(updates) != 1 or len(turned) != 1:
            return []
        forward = next(iter(turned[0].users))
        if forward.target not in _PRODUCTS or forward.args[-2:] != (updates[0].args[2], turned[0]):
            return []
        if forward.kwargs or updates[0].kwargs:
            return []
        steps.append((forward, updates[0]))
        weight = updates[0]


def _is_kept(weight: Node, index: int) -> bool:
    """Return whether a weight is what its place in the carry becomes, and nothing else."""
    (returned,) = next(iter(weight.users)).args
    assert isinstance(returned, list | tuple)
    return [i for i, node in enumerate(returned) if node is weight] == [index]
