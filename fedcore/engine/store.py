"""What stays with the clients between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedcore.trees import Tree, accumulate, flatten, leaves, tree_map, unflatten


class ClientStore:
    """Per-client trees by client id; a client that never took part costs nothing and has the initial tree.

    Parameters
    ----------
    initial : Tree
        What every client starts with: personal parameters, personal buffers and state.
    """

    def __init__(self, initial: Tree):
        self.initial = initial
        self._is_empty = next(leaves(initial), None) is None
        self._trees: dict[int, Tree] = {}

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def clients(self) -> list[int]:
        """Ids of the clients with a tree of their own, ascending."""
        return sorted(self._trees)

    def get(self, client: int) -> Tree:
        """Return a client's tree."""
        return self._trees.get(client, self.initial)

    def put(self, client: int, tree: Tree) -> None:
        """Keep a client's tree; leaves are copied, so that views of larger tensors do not keep those alive."""
        if not self._is_empty:
            self._trees[client] = tree_map(lambda leaf: leaf.detach().clone(), tree)

    def copy(self) -> ClientStore:
        """Return a store that later `put` calls to this one do not reach; the trees themselves are shared."""
        other = ClientStore(self.initial)
        other._trees = dict(self._trees)
        return other

    def empty(self, initial: Tree) -> ClientStore:
        """Return a store of the same kind without any client's tree."""
        return ClientStore(initial)

    def held(self) -> ClientStore | None:
        """Return what must stay alive for a checkpoint of this store to stay usable; None here: it holds a copy."""
        return None

    def keep_in(self, path: Path) -> None:
        """Use this file for what is kept on the disk; nothing here."""

    def sync(self) -> None:
        """Have all trees where a checkpoint expects them; nothing here."""

    def restaged(self, initial: Tree) -> ClientStore:
        """Return a store with another initial tree; clients keep what they have of its leaves and get the rest."""
        other = self.empty(initial)
        for client in self.clients:
            tree = self.get(client)
            kept = {
                group: {n: tree[group].get(n, leaf) for n, leaf in initial[group].items()}
                for group in ("params", "buffers")
            }
            other.put(client, {**kept, "state": tree["state"]})
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """Return all leaves by ``<client>/<path>``."""
        return {f"{c}/{path}": leaf for c, tree in self._trees.items() for path, leaf in flatten(tree).items()}

    def load_state_dict(self, leaves_by_path: Mapping[str, Tensor]) -> None:
        """Undo `state_dict`."""
        by_client: dict[int, dict[str, Tensor]] = {}
        for key, leaf in leaves_by_path.items():
            client, path = key.split("/", 1)
            by_client.setdefault(int(client), {})[path] = leaf
        self._trees = {c: grown(flat, self.initial["state"]) for c, flat in sorted(by_client.items())}


def first_tree(store: ClientStore, initial: Mapping[str, Mapping[str, Tensor]], others: Sequence[int] | None) -> Tree:
    """Return what a client that joins late starts with, of what stays with clients; its state is the initial one.

    Parameters
    ----------
    initial : ``params`` and ``buffers``
        Of the whole model before the first round.
    others : sequence of int, or None
        The clients whose uniform mean it is; None: the initial values.
    """
    own: Tree = {group: store.initial[group] for group in ("params", "buffers")}
    if others is None:
        return {**{g: {n: initial[g][n] for n in tree} for g, tree in own.items()}, "state": store.initial["state"]}
    mean: Tree | None = None
    for client in others:
        tree = store.get(client)
        mean = accumulate(mean, {group: tree[group] for group in own}, 1 / len(others))
    assert mean is not None
    return {**mean, "state": store.initial["state"]}


def grown(flat: Mapping[str, Tensor], state: Tree) -> Tree:
    """Return the tree of parameters, buffers and state that `flatten` made `flat` of; `state` gives its structure."""
    tree: Tree = {"params": {}, "buffers": {}, "state": {}}
    for path, leaf in flat.items():
        group, name = path.split("/", 1)
        tree[group][name] = leaf
    tree["state"] = unflatten(tree["state"], state)
    return tree
