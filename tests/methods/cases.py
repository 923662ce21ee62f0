"""One line per method and add-on: what the battery runs it with. A new file without a line here fails the battery."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A composition with small hyper-parameters."""

    method: str = "fedavg"
    add: Mapping[str, Any] = MappingProxyType({})
    settings: Mapping[str, Any] = MappingProxyType({})
    sends_own_model: bool = False  # the method's clients upload what is personal, by definition


METHODS = {
    "ditto": Case("ditto", settings={"strength": 0.5}),
    "fedadam": Case("fedadam", settings={"server_lr": 0.05, "tau": 0.01}),
    "fedavg": Case(),
    "fedavg_ft": Case("fedavg_ft", settings={"epochs": 2}),
    "fedbn": Case("fedbn"),
    "fedbr": Case("fedbr", settings={"pseudo_strength": 0.2, "mu": 0.2}),
    "fedfomo": Case("fedfomo", settings={"models": 3}, sends_own_model=True),
    "fedgen": Case("fedgen", settings={"alpha": 0.1, "beta": 0.1, "noise": 4, "hidden": 8, "server_steps": 5}),
    "fednova": Case("fednova"),
    "fedrep": Case("fedrep", settings={"head_epochs": 2}),
    "lg_fedavg": Case("lg_fedavg", settings={"global_layers": ["body.3", "head"]}),
    "local": Case("local"),
    "perfedavg": Case("perfedavg", settings={"alpha": 0.1, "variant": "hessian_free"}),
    "pfedme": Case("pfedme", settings={"strength": 5.0, "inner_lr": 0.1}),
    "scaffold": Case("scaffold", settings={"global_step": 0.9}),
}

ADDONS = {
    "adversary": Case(add={"adversary": {"strength": [0.2, 0.4], "hidden": [5]}}),
    "calibration": Case(add={"calibration": {"tau": 0.5}}),
    "dbe": Case(add={"dbe": {"kappa": 2.0, "momentum": 0.5}}),
    "fedcm": Case(add={"fedcm": {"alpha": 0.4}}),
    "mixup": Case(add={"mixup": {"alpha": 1.0}}),
    "moon": Case(add={"moon": {"mu": 0.5}}),
    "prox": Case(add={"prox": {"mu": 0.1}}),
    "restricted_softmax": Case(add={"restricted_softmax": {"alpha": 0.5}}),
    "vhl": Case(add={"vhl": {"alpha": 0.3, "contrast": 0.1, "temperature": 0.5, "virtual_batch": 5}}),
}

COMBINATIONS = {
    f"{method}+{addon}": Case(method, ADDONS[addon].add, METHODS[method].settings)
    for method in ("scaffold", "fednova")
    for addon in ("dbe", "calibration", "prox")
}

COMBINATIONS["moon+dbe"] = Case(add={**ADDONS["moon"].add, **ADDONS["dbe"].add})
COMBINATIONS["scaffold+vhl"] = Case("scaffold", ADDONS["vhl"].add)
COMBINATIONS["fednova+vhl"] = Case("fednova", ADDONS["vhl"].add)
COMBINATIONS["prox+vhl"] = Case(add={**ADDONS["prox"].add, **ADDONS["vhl"].add})
COMBINATIONS["prox+calibration"] = Case(add={**ADDONS["prox"].add, **ADDONS["calibration"].add})
COMBINATIONS["prox+dbe"] = Case(add={**ADDONS["prox"].add, **ADDONS["dbe"].add})
COMBINATIONS["fedgen+dbe"] = Case("fedgen", ADDONS["dbe"].add, METHODS["fedgen"].settings)
COMBINATIONS["fedrep+mr"] = Case("fedrep", {"dbe": {"kappa": 1.0, "prbm": False}}, METHODS["fedrep"].settings)
COMBINATIONS["ditto+mr"] = Case("ditto", {"dbe": {"kappa": 1.0, "prbm": False}}, METHODS["ditto"].settings)
COMBINATIONS["ditto+dbe"] = Case("ditto", ADDONS["dbe"].add, METHODS["ditto"].settings)
COMBINATIONS["pfedme+dbe"] = Case("pfedme", ADDONS["dbe"].add, METHODS["pfedme"].settings)
COMBINATIONS["vhl+calibration"] = Case(add={**ADDONS["vhl"].add, **ADDONS["calibration"].add})
COMBINATIONS["vhl+restricted_softmax"] = Case(add={**ADDONS["vhl"].add, **ADDONS["restricted_softmax"].add})
COMBINATIONS["vhl+labels"] = Case(add={"vhl": {**ADDONS["vhl"].add["vhl"], "labels": [0, 1, 2], "std": 0.25}})
COMBINATIONS["fedbr+mixup"] = Case("fedbr", ADDONS["mixup"].add, METHODS["fedbr"].settings)
COMBINATIONS["fedbr+fedcm"] = Case("fedbr", ADDONS["fedcm"].add, METHODS["fedbr"].settings)
COMBINATIONS["lg_fedavg+fedcm"] = Case("lg_fedavg", ADDONS["fedcm"].add, METHODS["lg_fedavg"].settings)
COMBINATIONS["fedbr+mixture"] = Case(
    "fedbr", settings={"pseudo_strength": 0.2, "mu": 0.2, "mixture": 1, "global_features": "stale"}
)
COMBINATIONS["lg_fedavg+auxiliary"] = Case(
    "lg_fedavg", settings={"auxiliary": "autoencode", "auxiliary_layer": "hidden1", "auxiliary_weight": 0.2}
)
COMBINATIONS["lg_fedavg+sequential"] = Case(
    "lg_fedavg", settings={"auxiliary": "supervised", "auxiliary_hidden": 4, "update": "sequential"}
)
COMBINATIONS["lg_fedavg+adversary"] = Case(
    "lg_fedavg", {"adversary": {"strength": 0.2, "shared": True}}, METHODS["lg_fedavg"].settings
)
COMBINATIONS["dbe+plain"] = Case(add={"dbe": {**ADDONS["dbe"].add["dbe"], "bias_optimiser": "plain"}})
COMBINATIONS["lg_fedavg+dbe"] = Case("lg_fedavg", ADDONS["dbe"].add, {"update": "sequential"})
COMBINATIONS["adversary+dbe"] = Case(
    add={"adversary": {"strength": 0.2, "objective": "confusion"}, **ADDONS["dbe"].add}
)

CASES = {**METHODS, **ADDONS, **COMBINATIONS}
