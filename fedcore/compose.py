"""A method and its add-ons, as the one thing the engine runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from fedcore import discovery
from fedcore.addons.base import Addon
from fedcore.config import Config, ConfigError, MethodBlock, Problem, Train, nearest, train_for
from fedcore.discovery import Part
from fedcore.methods.base import Method, Phase
from fedcore.models.net import Net
from fedcore.objective import METHOD, ComposedLoss, Differentiate, part_view
from fedcore.seeds import stream
from fedcore.types import Batch, ClientInfo, Cohort, Output, Params, Population, State, View


@dataclass(frozen=True)
class Composition:
    """One method, and add-ons by name in the order they apply.

    Every state tree has one branch per part, ``method`` and the add-ons' names, and each part sees its own alone.
    """

    name: str  # the method's
    method: Method
    addons: Mapping[str, Addon]
    presets: Mapping[str, str] = field(default_factory=dict)  # the preset a part was built from, by part
    preset_train: Mapping[str, Any] = field(default_factory=dict)  # what the presets set of the training section

    # --- names ---

    @property
    def setup_rounds(self) -> int:
        """Number of set-up rounds: the longest any part asks for."""
        return max([self.method.setup_rounds, *(a.setup_rounds for a in self.addons.values())])

    @property
    def damping(self) -> float:
        """Strength of the proximal terms in a step's gradient; see `Addon.damping`."""
        strength = 0.0
        for addon in self.addons.values():
            strength = addon.damping(strength)
        return strength

    def check(self, net: Net, train: Train) -> None:
        """Raise ValueError if a part cannot run with this model or training section."""
        for _, part in self._parts():
            part.check(net, train)
        comparing = [
            self.name if part is self.method else name for name, part in self._parts() if part.compares_features
        ]
        for name, addon in self.addons.items():
            if addon.changes_body and comparing:
                raise ValueError(
                    f"add.{name}.layer: '{addon.place}' is inside the body, whose features {comparing[0]} compares with"
                    " those of other models, which have no such change; use null, the whole body"
                )

    def check_resources(self, resources: State, num_classes: int) -> None:
        """Raise ValueError if what every client holds does not go with an add-on and the labels."""
        for addon in self.addons.values():
            addon.check_resources(resources, num_classes)

    def extra_params(self, net: Net, seed: int) -> Params:
        """Return the parameters the parts add to the model's; each part draws from a stream of its own."""
        params: Params = {}
        for name, part in self._parts():
            params.update(part.extra_params(net, stream(seed, f"extra_params/{name}")))
        return params

    def is_trained(self, net: Net, name: str, phase: Phase) -> bool:
        """Return whether this parameter learns in this phase."""
        if not phase.learns:
            return False
        owner = self._owners(net).get(name)
        if owner is not None:
            in_turn = phase.owner is None or owner is self.addons[phase.owner]
            return in_turn and owner.is_trained(net, name, phase.name)
        return phase.owner is None and self.method.is_trained(net, name, phase.name)

    def plain_names(self, net: Net) -> frozenset[str]:
        """Return which parameters of add-ons learn by plain SGD; see `Addon.is_plain`."""
        return frozenset(name for name, addon in self._owners(net).items() if addon.is_plain(name))

    @property
    def needs(self) -> frozenset[str]:
        """Names of the resources the parts use."""
        return frozenset(name for _, part in self._parts() for name in part.needs)

    def num_outputs(self, num_classes: int) -> int:
        """Return the number of outputs of the model's head."""
        return num_classes + sum(addon.num_outputs(num_classes) for addon in self.addons.values())

    def shared_names(self, net: Net, names: Iterable[str], round: int) -> frozenset[str]:
        """Return which of these parameters and buffers travel in this round."""
        owners = self._owners(net)

        def travels(name: str) -> bool:
            if name in net.stays_local:
                return False
            owner = owners.get(name)
            return owner.is_shared(net, name) if owner else self.method.is_shared(net, name, round)

        return frozenset(filter(travels, names))

    def _owners(self, net: Net) -> dict[str, Addon]:
        """Return which add-on brought which parameter."""
        return {
            name: addon
            for addon in self.addons.values()
            for name in addon.extra_params(net, stream(0, "names"))  # for their names; the values do not matter
        }

    # --- state ---

    def prepare(self, net: Net, params: Params, resources: State, seed: int) -> Params:
        """Return the parameters that the training starts from."""
        for name, addon in self.addons.items():
            params = addon.prepare(net, params, resources, stream(seed, f"prepare/{name}"))
        return params

    def init_server(self, net: Net, params: Params, population: Population) -> State:
        """Return the server's state of every part."""
        return {name: part.init_server(net, params, population) for name, part in self._parts()}

    def broadcast(self, server: State) -> State:
        """Return what of the server's state travels to the cohort."""
        return {name: part.broadcast(server[name]) for name, part in self._parts()}

    def init_client(self, net: Net, params: Params) -> State:
        """Return the state of a client that never took part."""
        return {name: part.init_client(net, params) for name, part in self._parts()}

    def start(self, net: Net, params: Params, state: State, view: View) -> tuple[Params, State]:
        """Return parameters and state at the start of local training."""
        params, own = self.method.start(net, params, state[METHOD], part_view(view, METHOD))
        new = {METHOD: own}
        for name, addon in self.addons.items():
            new[name] = addon.start(net, params, state[name], part_view(view, name))
        return params, new

    # --- objective ---

    def active(self, round: int) -> dict[str, Method | Addon]:
        """Return the parts that may change the loss of a round: in a set-up round those that asked for it."""
        if not self.setup_rounds:  # so that steps do not depend on the round
            return dict(self._parts())
        return {name: part for name, part in self._parts() if round >= -part.setup_rounds}

    def draws(
        self, net: Net, seed: int, phase: Phase, round: int, client: int, steps: int, batch_size: int, info: ClientInfo
    ) -> dict[str, Any]:
        """Return one client's random arrays of a phase; each part draws from a stream of its own."""
        suffix = "" if phase.name == "train" else f"/{phase.name}"
        arrays: dict[str, Any] = {}
        for name, part in self._parts():
            if type(part).draws not in (Method.draws, Addon.draws):
                arrays.update(
                    part.draws(net, stream(seed, f"draws/{name}{suffix}", round, client), steps, batch_size, info)
                )
        return arrays

    def forward(self, net: Net, params: Params, x: Tensor, view: View | None = None) -> Output:
        """Return features and logits of inputs [B, ...]; without a view, as in evaluation and export."""
        seen: dict[str, Tensor] = {}

        def changed(z: Tensor, place: str | None) -> Tensor:
            for name, addon in self.addons.items():
                if addon.place == place:
                    z = addon.features(params, z, view and part_view(view, name))
            return z

        def change(z: Tensor, place: str) -> Tensor:
            seen[place] = z
            return changed(z, place)

        places = {addon.place for addon in self.addons.values() if addon.place is not None}
        features = net.features(params, x, {place: partial(change, place=place) for place in places})
        return Output(features, net.classify(params, changed(features, None)), seen)

    def loss(
        self, net: Net, params: Params, state: State, batch: Batch, view: View, differentiate: Differentiate
    ) -> tuple[Tensor, State]:
        """Return the training loss [] and the new state of every part."""
        fit = ComposedLoss(self, net, state, view, differentiate)
        total, own = self.method.loss(fit, net, params, state[METHOD], batch, part_view(view, METHOD))
        return total, {**fit.state, METHOD: own}

    def plain_loss(
        self, net: Net, params: Params, state: State, batch: Batch, view: View, differentiate: Differentiate
    ) -> tuple[Tensor, State]:
        """Return the task's loss [] with the add-ons' terms alone, and the new state of every part."""
        fit = ComposedLoss(self, net, state, view, differentiate)
        return fit(params, batch), fit.state

    def correct(self, net: Net, gradient: Params, params: Params, state: State, view: View) -> Params:
        """Return the gradient after every part's change."""
        for name, part in self._parts():
            gradient = part.correct(net, gradient, params, state[name], part_view(view, name))
        return gradient

    def predictions(self, logits: Tensor, num_classes: int) -> dict[str, Tensor]:
        """Return other readings of the logits, by name."""
        return {n: p for addon in self.addons.values() for n, p in addon.predictions(logits, num_classes).items()}

    @property
    def measures_protected(self) -> bool:
        """Whether an add-on measures how protected attributes show."""
        return any(type(addon).protected_scores is not Addon.protected_scores for addon in self.addons.values())

    # --- exchange ---

    def finish(self, shared: Params, params: Params, state: State, view: View) -> tuple[State, State]:
        """Return uploads and states to keep, by part."""
        uploads, new = {}, {}
        uploads[METHOD], new[METHOD] = self.method.finish(shared, params, state[METHOD], part_view(view, METHOD))
        for name, addon in self.addons.items():
            uploads[name], new[name] = addon.finish(params, state[name], part_view(view, name))
        return uploads, new

    def aggregate(self, shared: Params, server: State, mean: State, cohort: Cohort) -> tuple[Params, State]:
        """Return the new shared parameters and server state.

        In a set-up round only the parts that asked for it take what they were sent; the model stays as it was.
        """
        new = dict(server)
        set_up = cohort.round < 0
        if not set_up or -cohort.round <= self.method.setup_rounds:
            updated, new[METHOD] = self.method.aggregate(shared, server[METHOD], mean[METHOD], cohort)
            shared = shared if set_up else updated
        for name, addon in self.addons.items():
            if not set_up or -cohort.round <= addon.setup_rounds:
                new[name] = addon.aggregate(server[name], mean[name], cohort)
        return shared, new

    # --- step ---

    def phases(self, train: Train) -> tuple[Phase, ...]:
        """Return the phases of local training: the add-ons' own, then the method's."""
        own = [replace(p, owner=name) for name, addon in self.addons.items() for p in addon.phases(train)]
        return (*own, *self.method.phases(train))

    def setup_phases(self, train: Train) -> tuple[Phase, ...]:
        """Return the phases of a set-up round: plain training, then what the add-ons look at.

        A method that asks for set-up rounds trains in them as it always does.
        """
        looks = [replace(p, owner=name, learns=False) for name, a in self.addons.items() for p in a.setup_phases(train)]
        return (Phase(plain=not self.method.setup_rounds), *looks)

    def _parts(self) -> list[tuple[str, Method | Addon]]:
        return [(METHOD, self.method), *self.addons.items()]


def build(label: str, block: MethodBlock) -> Composition:
    """Build the composition one line of ``methods`` describes.

    Raises
    ------
    ConfigError
        If the method, an add-on or a hyper-parameter does not exist or is out of range.
    """
    path = ("methods", label)
    known = discovery.method_names()
    name = block.method
    if name is None:
        name = label if label in known else "fedavg"
        if label not in known and not block.add:
            message = f"'{label}' is no method and names neither 'method' nor 'add'" + nearest(label, known)
            raise ConfigError([Problem(path, message)])
    if name not in known:
        raise ConfigError([Problem((*path, "method"), f"'{name}' does not exist" + nearest(name, known))])
    problems: list[Problem] = []
    addons: dict[str, Addon] = {}
    method = Method()
    presets: dict[str, str] = {}
    train: dict[str, Any] = {}

    def made(cls: type[Part], settings: Mapping[str, Any], path: tuple[str, ...], part: str) -> Part:
        own, own_train, preset = discovery.with_preset(cls, settings, path)
        train.update(own_train)
        if preset is not None:
            presets[part] = preset
        return discovery.build(cls, own, path)

    try:
        method = made(discovery.method_class(name), block.settings, path, METHOD)
    except ConfigError as error:
        problems += error.problems
    for addon, settings in block.add.items():
        where = (*path, "add", addon)
        if addon not in discovery.addon_names():
            problems.append(Problem(where, f"'{addon}' does not exist" + nearest(addon, discovery.addon_names())))
            continue
        try:
            addons[addon] = made(discovery.addon_class(addon), settings, where, addon)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return Composition(name, method, addons, presets, train)


def build_all(config: Config) -> dict[str, tuple[Composition, Train]]:
    """Build every line of ``methods``, with its training section.

    Raises
    ------
    ConfigError
        With the problems of all lines together.
    """
    built: dict[str, tuple[Composition, Train]] = {}
    problems: list[Problem] = []
    for label, block in config.methods.items():
        try:
            composition = build(label, block)
            built[label] = (composition, train_for(config, label, composition.preset_train))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return built
