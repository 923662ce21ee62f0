"""Presets: named settings of a method or add-on, and of the training section with it."""

import pytest

from fedcore import discovery
from fedcore.compose import build, build_all
from fedcore.config import ConfigError, MethodBlock, validate
from tests.pipeline.conftest import SMALL

METHODS, ADDONS = discovery.method_names(), discovery.addon_names()
# Those of the five papers' pages, whose presets stand there.
PAGES = ["adversary", "calibration", "dbe", "fedbr", "lg_fedavg", "vhl"]
# What the other papers state: hyper-parameters, and of the training section.
PAPERS = {
    "scaffold": ({"global_step": 1.0}, {"momentum": 0.0}),
    "fednova": ({}, {"batch_size": 32, "momentum": 0.9}),
    "fedadam": ({"beta1": 0.9, "beta2": 0.99, "tau": 0.001}, {}),
    "fedbn": ({}, {"lr": 0.01, "batch_size": 32, "local_epochs": 1}),
    "fedrep": ({"head_epochs": 10, "body_epochs": 1}, {"lr": 0.01, "momentum": 0.5, "batch_size": 10}),
    "pfedme": (
        {"strength": 15.0, "inner_steps": 5, "inner_lr": 0.1},
        {"lr": 0.005, "local_steps": 20, "batch_size": 20},
    ),
    "perfedavg": ({"alpha": 0.01}, {"lr": 0.001, "local_steps": 10}),
    "fedfomo": ({"models": 5, "epsilon": 0.3}, {}),
    "restricted_softmax": ({"alpha": 0.5}, {}),
    "moon": (
        {"mu": 5.0, "temperature": 0.5},
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 64, "local_epochs": 10},
    ),
    "fedcm": ({"alpha": 0.1}, {"lr": 0.1, "lr_decay": 0.998, "weight_decay": 0.001, "local_epochs": 5}),
    "mixup": ({"alpha": 1.0}, {}),
}
# No paper, or one that varies or tunes what it has, or one not followed.
WITHOUT = ["ditto", "fedavg", "fedavg_ft", "fedgen", "local", "prox"]
REQUIRED = {"ditto": {"strength": 1.0}, "prox": {"mu": 0.1}}


def line(name, preset):
    """A line of `methods` with this preset."""
    settings = {"preset": preset, **REQUIRED.get(name, {})}
    return {"method": name, **settings} if name in METHODS else {"add": {name: settings}}


def built(name, preset):
    composed, train = build_all(validate({**SMALL, "methods": {"fedavg": {}, "toy": line(name, preset)}}))["toy"]
    assert composed.presets == {("method" if name in METHODS else name): preset}
    return composed.method if name in METHODS else composed.addons[name], train


def test_every_part_is_in_one_list():
    assert sorted([*PAGES, *PAPERS, *WITHOUT]) == sorted([*METHODS, *ADDONS])


@pytest.mark.parametrize("name", [*METHODS, *ADDONS])
def test_clean_is_the_defaults(name):
    part, train = built(name, "clean")
    assert part == type(part)(**REQUIRED.get(name, {}))
    assert train == validate(SMALL).train


@pytest.mark.parametrize("name", PAGES)
def test_a_part_with_a_page_has_a_setting_of_its_paper(name):
    part, train = built(name, "paper")
    assert (part, train) != (type(part)(), validate(SMALL).train)


@pytest.mark.parametrize("name", PAPERS)
def test_paper_is_what_the_paper_states(name):
    hyper, section = PAPERS[name]
    part, train = built(name, "paper")
    assert part == type(part)(**hyper)
    assert train == validate(SMALL).train.model_copy(update=section)


@pytest.mark.parametrize("name", WITHOUT)
def test_a_part_without_a_setting_of_a_paper_refuses_it(name):
    with pytest.raises(ConfigError) as error:
        build("toy", MethodBlock(**line(name, "paper")))
    (problem,) = error.value.problems
    assert problem.path[-1] == "preset"
    assert problem.message == "'paper' is no preset. Valid: clean"


def test_explicit_settings_win_over_the_presets_and_those_over_the_training_section():
    parameters = {
        **SMALL,
        "train": {**SMALL["train"], "lr": 0.3, "batch_size": 7, "local_epochs": 2},
        "methods": {
            "fedavg": {},
            "printed": {
                "method": "fedavg",
                "add": {"calibration": {"preset": "paper", "tau": 0.2}},
                "train": {"batch_size": 9},
            },
        },
    }
    composed, train = build_all(validate(parameters))["printed"]
    calibration = composed.addons["calibration"]
    assert (calibration.denominator, calibration.tau) == ("others", 0.2)
    assert (train.batch_size, train.lr, train.local_epochs) == (9, 0.01, 5)
    assert build_all(validate(parameters))["fedavg"][1].lr == 0.3


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        build("mine", MethodBlock(add={"dbe": {"preset": "papr"}}))
    (problem,) = error.value.problems
    assert problem.path == ("methods", "mine", "add", "dbe", "preset")
    assert "'papr' is no preset" in problem.message
    assert "paper" in problem.message
