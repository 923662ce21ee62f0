"""Presets: named settings of a method or add-on, and of the training section with it."""

import pytest

from fedcore import discovery
from fedcore.compose import build, build_all
from fedcore.config import ConfigError, MethodBlock, validate
from tests.pipeline.conftest import SMALL

PARTS = [("method", n) for n in discovery.method_names()] + [("addon", n) for n in discovery.addon_names()]


@pytest.mark.parametrize(("kind", "name"), PARTS)
@pytest.mark.parametrize("preset", ["clean", "paper"])
def test_every_method_has_both(kind, name, preset):
    """They build, and what they set of the training section is valid."""
    required = {"ditto": {"strength": 1.0}, "prox": {"mu": 0.1}}.get(name, {})
    settings = {"preset": preset, **required}
    block = MethodBlock(method=name, **settings) if kind == "method" else MethodBlock(add={name: settings})
    composed = build("toy", block)
    assert composed.presets == {("method" if kind == "method" else name): preset}
    config = validate(
        {**SMALL, "methods": {"fedavg": {}, "toy": {"method": "fedavg", "train": dict(composed.preset_train)}}}
    )
    assert config.methods["toy"].train == composed.preset_train


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
