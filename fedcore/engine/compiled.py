"""Local steps as functions of tensors: several of them unrolled into one, once for every structure of their arguments.

A function is traced with the tensors' shapes alone and handed to a backend: PyTorch's compiler on a CPU (`inductor`),
CUDA graphs on a GPU (`cuda_graphs`). Whatever cannot be traced or made into one runs as it is, with the reason kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedcore.engine.example_space import Places
from fedcore.engine.observed import Observed
from fedcore.trees import Tree

Steps = Callable[[Tree, Any, Any, Any], tuple[Tree, Tensor]]  # carry, batches, view's tensors, round -> carry, loss
Function = Callable[..., list[Tensor]]

_MOST_ROUNDS = 4  # functions of one structure that differ in what they made of the round's number


class Backend(Protocol):
    """Makes functions of traced steps."""

    @property
    def rules(self) -> dict[Any, Any]:
        """What the tracer makes of operators, by operator."""
        ...

    def unrolled(self, num_params: int, rows: int, convolves: bool) -> int:
        """Return how many steps make one function."""
        ...

    def made(self, graph: GraphModule, examples: list[Tensor], places: Places | None) -> Function | None:
        """Return the function; None if the exchange at `places` cannot be made, in these steps or at all."""
        ...


@dataclass
class _Rounds:
    """The functions of one structure."""

    functions: list[tuple[Observed, Function | None]] = field(default_factory=list)
    gave_up: bool = False


class Loop:
    """One compiled function and the arguments that stay the same while a client trains."""

    def __init__(self, function: Function, constants: list[Tensor]):
        self._function = function
        self._constants = constants

    def __call__(self, carry: list[Tensor], batches: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the carry's tensors and the sum of the losses after the steps on these batches; see `flat`."""
        with torch.no_grad():
            *new, loss = self._function(*carry, *batches, *self._constants)
        return new, loss


class Compiler:
    """Makes functions of local steps and keeps them.

    Attributes
    ----------
    reasons : dict of str to str
        What runs uncompiled, and why, in one line.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._by_structure: dict[Any, _Rounds] = {}
        self._lock = threading.Lock()
        self.reasons: dict[str, str] = {}

    @property
    def remarks(self) -> list[str]:
        """What runs uncompiled, in a line each."""
        return [f"{what} ran uncompiled: {why}" for what, why in self.reasons.items()]

    def forget(self) -> None:
        """Let go of all functions, and of the memory they hold; they are made anew when they are asked for."""
        with self._lock:
            self._by_structure.clear()

    def loop(
        self,
        name: str,
        key: Any,
        steps: Steps,
        round: int,
        carry: Tree,
        batches: Any,
        view: Any,
        places: Places | None = None,
    ) -> Loop | None:
        """Return the compiled steps for arguments of this structure; None where they run as they are.

        Parameters
        ----------
        name : str
            What `reasons` calls the function.
        key : hashable
            What `steps` depends on besides its arguments.
        round : int
            What `steps` sees of it is remembered, so that a function serves all rounds that look the same to it; what
            it makes of it with tensors is computed in the function.
        view : tree
            Arguments that stay as they are over calls: tensors, and plain values that are built in.
        places : Places or None
            Where to exchange a weight for its coordinates in the space of a client's examples; None is returned if
            these steps do not allow it.
        """
        changing, plain = flat((carry, batches))
        # Between what changes with every call and the view: backends count from either end.
        number = changing[0].new_full((), float(round))
        constants, plain_constants = flat((number, view))
        tensors = [*changing, *constants]
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in tensors)
        with self._lock:
            entry = self._by_structure.setdefault((key, places, *plain, *plain_constants, shapes), _Rounds())
            function = self._function(entry, name, steps, round, (carry, batches, number, view), tensors, places)
        return None if function is None else Loop(function, constants)

    def _function(
        self,
        entry: _Rounds,
        name: str,
        steps: Steps,
        round: int,
        arguments: Any,
        tensors: list[Tensor],
        places: Places | None,
    ) -> Function | None:
        for observed, function in entry.functions:
            if observed.looks_like(round):
                return function
        if entry.gave_up or len(entry.functions) == _MOST_ROUNDS:
            if not entry.gave_up:
                self.reasons[name] = "its steps depend on the number of the round"
                entry.gave_up = True
            return None
        observed = Observed(round)
        try:
            # A tracer tells arguments apart by identity, and a client's parameters are also its anchor.
            examples = [tensor.clone() for tensor in tensors]
            graph = _traced(steps, observed, arguments, examples, self.backend.rules)
            function = self.backend.made(graph, examples, places)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a method's own code makes of being traced
            self.reasons[name] = f"{type(error).__name__}: {(str(error).splitlines() or ['without a reason'])[0]}"
            entry.gave_up = True
            return None
        entry.functions.append((observed, function))
        return function


def _traced(
    steps: Steps, round: Observed, arguments: Any, examples: list[Tensor], rules: dict[Any, Any]
) -> GraphModule:
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(*given: Tensor) -> list[Tensor]:
        carry, batches, round.traced, view = filled(arguments, iter(given))
        new, loss = steps(carry, batches, view, round)
        # Kept as it came in, so that the next call finds what this one was made for.
        after = flat(in_order(new, carry))[0]
        return [*map(_like, after, flat(carry)[0]), loss]

    _start_autograd()
    graph = make_fx(function, decomposition_table=rules, tracing_mode="fake")(*examples)
    graph.graph = fx_graph_cse(graph.graph)  # a gradient looks at the patches that the output was made of
    return graph


def _start_autograd() -> None:
    """Let autograd count the devices at its first use: the tracer adds one, and with its thread no process can fork."""
    with torch.enable_grad():
        zero = torch.zeros((), requires_grad=True)
        torch.autograd.grad(zero + 0, zero)


def flat(tree: Any) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors of a tree of mappings and tuples, and what else there is: keys, types, plain values."""
    tensors: list[Tensor] = []
    plain: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, Tensor):
            tensors.append(node)
        elif isinstance(node, dict):
            plain.append(tuple(node))
            for value in node.values():
                visit(value)
        elif isinstance(node, tuple):
            plain.append(type(node))
            for value in node:
                visit(value)
        else:
            plain.append(node)

    visit(tree)
    return tensors, plain


def filled(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a tree with other tensors, in the order of `flat`."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, dict):
        return {name: filled(value, tensors) for name, value in tree.items()}
    if isinstance(tree, tuple):
        values = [filled(value, tensors) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return tree


def in_order(tree: Any, like: Any) -> Any:
    """Return a tree with the branches of its mappings in the order of `like`."""
    if isinstance(like, dict):
        return {name: in_order(tree[name], value) for name, value in like.items()}
    return tree


def _like(tensor: Tensor, before: Tensor) -> Tensor:
    if tensor.shape != before.shape or tensor.dtype != before.dtype:
        raise TypeError(f"a step turns {before.dtype} {list(before.shape)} into {tensor.dtype} {list(tensor.shape)}")
    if tensor.stride() == before.stride():
        return tensor
    return torch.empty_strided(before.shape, before.stride(), dtype=before.dtype).copy_(tensor)
