"""The gate's arithmetic and verdicts, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedcore.config import ConfigError, Gate, validate_section
from fedcore.metrics.gate import Decision, Standing, judge, without_champion, worst_decile

SURE = Gate(lowest_difference=0.0)


def standing(*rows: list[float], seeds: tuple[int, ...] | None = None) -> Standing:
    return Standing(seeds or tuple(range(len(rows))), np.array(rows))


def verdict(gate: Gate, new: list[float], old: list[float]) -> Decision:
    return judge(gate, "personal", standing(new), standing(old), np.full(len(new), 10))


def test_clients_that_count_alike_give_the_usual_t_interval() -> None:
    """Differences 0.1, 0.2, 0.3: mean 0.2, s = 0.1; t(0.975, 2) = 4.302653, half width 4.302653 * 0.1 / sqrt(3)."""
    found = verdict(Gate(), [0.5, 0.6, 0.7], [0.4, 0.4, 0.4]).evidence
    assert found is not None
    assert found.metric == "client_mean"
    assert found.difference == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.2 - 0.248414, abs=1e-6), pytest.approx(0.448414, abs=1e-6))
    assert (found.challenger, found.champion) == (pytest.approx(0.6), pytest.approx(0.4))
    assert (found.wins, found.losses, found.ties) == (3, 0, 0)


def test_clients_that_count_by_examples_are_weighted() -> None:
    """Weights 3/4 and 1/4, differences 0.2 and -0.2: mean 0.1.

    Without the first client it is -0.2, without the second 0.2: they move it by 0.3 and 0.1. Jackknife variance
    1/2 * (0.3^2 + 0.1^2) = 0.05, t(0.975, 1) = 12.706205: half width 12.706205 * sqrt(0.05) = 2.841194.
    """
    new, old = standing([0.7, 0.3]), standing([0.5, 0.5])
    found = judge(Gate(), "global", new, old, np.array([30, 10])).evidence
    assert found is not None
    assert (found.metric, found.num_examples) == ("accuracy", 40)
    assert found.difference == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1 + 2.841194, abs=1e-6)


def test_the_interval_holds_the_truth_with_very_unequal_clients() -> None:
    """Sizes fall as 1 / rank^2, the true difference is 0: of nominally 95 % of intervals 86 % hold it.

    Without the jackknife's 1 / (1 - w_c) only 66 % did: the largest client, 63 % of the examples, draws the mean to
    its own difference and so hides how far off it is.
    """
    numbers = np.random.Generator(np.random.PCG64(0))
    examples = np.maximum(1253 / np.arange(1, 21) ** 2, 1).astype(np.int64)
    champion, held = standing([0.0] * 20), 0
    for _ in range(400):
        differences = numbers.normal(0, np.sqrt(0.05**2 + 0.3 / examples))
        found = judge(Gate(), "global", standing(differences.tolist()), champion, examples).evidence
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert held / 400 > 0.8


def test_a_clients_seeds_are_one_observation_and_only_common_seeds_count() -> None:
    """Seeds 1 and 2 are common: client 0 differs by 0.1 and 0.3, client 1 by 0.2 and 0.2: both 0.2, no spread."""
    new = standing([0.9, 0.9], [0.5, 0.6], [0.7, 0.6], seeds=(0, 1, 2))
    old = standing([0.4, 0.4], [0.4, 0.4], [0.0, 0.0], seeds=(1, 2, 3))
    found = judge(SURE, "personal", new, old, np.array([5, 5])).evidence
    assert found is not None
    assert found.seeds == (1, 2)
    assert found.by_seed == (pytest.approx(0.15), pytest.approx(0.25))
    assert (found.difference, found.low) == (pytest.approx(0.2), pytest.approx(0.2))


def test_a_tie_over_seeds_is_a_tie() -> None:
    """Tenths 4, 5, 2 against 3, 3, 5, both 11; as floats the differences do not sum to 0."""
    new, old = standing([0.4], [0.5], [0.2]), standing([0.3], [0.3], [0.5])
    found = judge(Gate(), "personal", new, old, np.array([10])).evidence
    assert found is not None
    assert (found.wins, found.losses, found.ties) == (0, 0, 1)


def test_clients_without_examples_do_not_count() -> None:
    new, old = standing([0.6, math.nan, 0.6]), standing([0.5, math.nan, 0.5])
    found = judge(Gate(), "personal", new, old, np.array([5, 0, 5])).evidence
    assert found is not None
    assert found.num_clients == 2
    with pytest.raises(ValueError, match="not finite"):
        judge(Gate(), "personal", new, old, np.array([5, 5, 5]))
    nothing = judge(Gate(), "personal", new, old, np.zeros(3, int))
    assert (nothing.verdict, nothing.evidence) == ("keep", None)
    assert "partition.validation" in nothing.reasons[0]


def test_an_equal_challenger_passes_and_rounding_does_not_decide() -> None:
    """0.7 - 0.6 and 0.3 - 0.4 cancel but for the last digit."""
    gate = Gate(lowest_difference=-0.99, worst_decile_margin=0.5)
    assert verdict(gate, [0.5, 0.5], [0.5, 0.5]).verdict == "promote"
    assert (0.7 - 0.6) + (0.3 - 0.4) < 0
    assert verdict(gate, [0.7, 0.3] * 2, [0.6, 0.4] * 2).verdict == "promote"


@pytest.mark.parametrize(
    ("gate", "new", "reason"),
    [
        (Gate(least_difference=0.02), [0.61] * 10, "client_mean +1.00 points, at least +2.00 needed"),
        (Gate(), [0.59] * 10, "client_mean -1.00 points, at least +0.00 needed"),
        (SURE, [0.8, 0.5] * 5, "95% interval"),
        (Gate(lowest_difference=-0.2), [0.5] + [0.7] * 9, "worst decile -10.00 points, at least -5.00 needed"),
    ],
    ids=["least difference", "worse", "unsure", "worst decile"],
)
def test_each_test_alone_keeps_the_champion(gate: Gate, new: list[float], reason: str) -> None:
    found = verdict(gate, new, [0.6] * 10)
    assert found.verdict == "keep"
    assert found.reasons[0].startswith(reason)
    assert len(found.reasons) == 3


def test_a_worst_decile_that_falls_by_the_margin_passes() -> None:
    found = verdict(Gate(lowest_difference=-0.2), [0.55] + [0.7] * 9, [0.6] * 10)
    assert found.verdict == "promote"
    assert worst_decile(np.array([0.9, 0.1, 0.3, *[0.5] * 8])) == pytest.approx(0.2)  # 11 clients: the lowest two


def test_too_few_common_seeds_and_a_single_client_keep() -> None:
    few = judge(Gate(min_seeds=2), "personal", standing([0.9, 0.9]), standing([0.1, 0.1]), np.array([1, 1]))
    assert few.verdict == "keep"
    assert few.reasons == ("1 seeds in common, gate.min_seeds is 2 (challenger [0], champion [0])",)
    alone = verdict(Gate(), [0.9], [0.1])
    assert alone.verdict == "keep"
    assert alone.reasons[0].startswith("one client")


def test_no_champion_is_a_matter_of_the_rule() -> None:
    assert without_champion(Gate()).verdict == "promote"
    assert without_champion(Gate(no_champion="keep")).verdict == "keep"


def test_other_clients_are_refused() -> None:
    with pytest.raises(ValueError, match="same clients"):
        judge(Gate(), "global", standing([0.5, 0.5]), standing([0.5]), np.array([1, 1]))


def test_a_decision_is_plain_json() -> None:
    found = verdict(Gate(), [0.6, 0.6], [0.5, 0.5]).as_dict()
    assert found["evidence"]["worst_decile_difference"] == pytest.approx(0.1)
    assert found["verdict"] == "promote"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"confidnce": 0.9}, "gate.confidnce: unknown key 'confidnce'; did you mean 'confidence'?"),
        ({"confidence": 95.0}, "gate.confidence: input should be less than 1, got 95.0"),
        ({"global_metric": "acuracy"}, "gate.global_metric: 'acuracy' is not valid; did you mean 'accuracy'?"),
    ],
)
def test_a_wrong_rule_is_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        validate_section(Gate, values, ("gate",))
    assert str(error.value).startswith(line)
