"""Numbers worked out by hand, or known from printed tables."""

import math

import numpy as np
import pytest

from fedcore.metrics.comparison import (
    band,
    paired_client_difference,
    paired_difference,
    rounds_to_target,
    speed_up,
    student_quantile,
    summarise,
    top_mean,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [
        (0.975, 1, 12.706204736),
        (0.975, 2, 4.302652730),
        (0.975, 3, 3.182446305),
        (0.95, 4, 2.131846786),
        (0.995, 9, 3.249835542),
        (0.975, 30, 2.042272456),
        (0.975, 120, 1.979930405),
        (0.975, 10_000, 1.960201240),
        (0.975, 10_001, 1.960201216),
        (0.975, 1_000_000, 1.959966357),
        (0.5, 7, 0.0),
    ],
)
def test_the_t_quantile_matches_printed_tables(probability: float, degrees: int, expected: float) -> None:
    assert student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-8)
    assert student_quantile(1 - probability, degrees) == pytest.approx(-expected, abs=1e-8)


def test_the_t_quantile_agrees_with_the_closed_forms_of_one_and_two_degrees() -> None:
    """One degree is Cauchy: tan(pi (p - 1/2)). Two: (2p - 1) sqrt(2 / (4 p (1 - p)))."""
    for p in (0.6, 0.9, 0.99, 0.9995):
        assert student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-11)
        assert student_quantile(p, 2) == pytest.approx((2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p))), rel=1e-11)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.975, 0)])
def test_the_t_quantile_refuses_what_does_not_exist(probability: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="must"):
        student_quantile(probability, degrees)


def test_summary_of_three_seeds() -> None:
    """Values .7 .8 .9: mean .8, squared deviations .01 + 0 + .01 = .02, std sqrt(.02 / 2) = .1,
    half width 4.302653 * .1 / sqrt(3) = .248414.
    """
    summary = summarise([0.7, 0.8, 0.9])
    assert summary.mean == pytest.approx(0.8)
    assert summary.std == pytest.approx(0.1)
    assert summary.low == pytest.approx(0.8 - 0.248414, abs=1e-6)
    assert summary.high == pytest.approx(0.8 + 0.248414, abs=1e-6)
    assert summary.count == 3


def test_one_seed_has_no_interval() -> None:
    summary = summarise([0.7])
    assert (summary.mean, summary.std, summary.low, summary.high, summary.count) == (0.7, None, None, None, 1)


@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_a_summary_of_nothing_or_of_nan_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"finite|no values"):
        summarise(values)


def test_paired_difference_uses_common_seeds_only() -> None:
    """Seeds 0 and 2 are common: differences .1 and .3, mean .2, std sqrt(.02) = .141421,
    half width 12.706205 * .141421 / sqrt(2) = 1.270620.
    """
    difference = paired_difference({0: 0.6, 1: 0.9, 2: 0.8}, {0: 0.5, 2: 0.5, 5: 0.1})
    assert difference is not None
    assert difference.count == 2
    assert difference.mean == pytest.approx(0.2)
    assert difference.high is not None
    assert difference.high - difference.mean == pytest.approx(1.2706205, abs=1e-6)
    assert paired_difference({0: 0.5}, {1: 0.5}) is None


def test_client_difference_is_clustered_by_client() -> None:
    """Three clients, two seeds. Differences per client:
    0: .1 and .3 -> .2;  1: .0 and NaN -> .0 (its only pair);  2: -.1 and -.1 -> -.1;  3: no pair, left out.
    Mean .1 / 3 = .033333; deviations .166667, -.033333, -.133333; std sqrt(.046667 / 2) = .152753;
    half width 4.302653 * .152753 / sqrt(3) = .379459: two degrees of freedom, not four as for independent pairs.
    """
    nan = math.nan
    method = np.array([[0.6, 0.5, 0.4, nan], [0.8, nan, 0.4, 0.9]])
    baseline = np.array([[0.5, 0.5, 0.5, 0.3], [0.5, 0.7, 0.5, nan]])
    difference = paired_client_difference(method, baseline)
    assert difference is not None
    assert (difference.summary.count, difference.wins, difference.losses, difference.ties) == (3, 1, 1, 1)
    assert difference.summary.mean == pytest.approx(0.1 / 3)
    assert difference.summary.std == pytest.approx(0.152753, abs=1e-6)
    assert difference.summary.high == pytest.approx(0.1 / 3 + 0.379459, abs=1e-6)


def test_clients_that_are_right_as_often_tie() -> None:
    """Whole numbers of right answers decide what is a tie; of their shares the differences may sum to a rest."""
    numbers = np.random.Generator(np.random.PCG64(0))
    for seeds, examples in ((2, 10), (3, 10), (3, 30), (5, 20)):
        method, baseline = numbers.binomial(examples, 0.7, (2, seeds, 500))
        difference = paired_client_difference(method / examples, baseline / examples)
        more = np.sign(method.sum(0) - baseline.sum(0))
        assert difference is not None
        found = (difference.wins, difference.losses, difference.ties)
        assert found == tuple((more == sign).sum() for sign in (1, -1, 0))


def test_client_difference_without_a_pair_is_none_and_shapes_must_agree() -> None:
    nothing = np.full((2, 3), math.nan)
    assert paired_client_difference(nothing, nothing) is None
    with pytest.raises(ValueError, match="one shape"):
        paired_client_difference(np.zeros((2, 3)), np.zeros((2, 4)))


def test_rounds_to_target_is_the_first_evaluated_round_at_or_above_it() -> None:
    rounds, accuracies = [2, 4, 6, 8], [0.3, 0.6, 0.5, 0.7]
    assert rounds_to_target(rounds, accuracies, 0.6) == 4
    assert rounds_to_target(rounds, accuracies, 0.61) == 8
    assert rounds_to_target(rounds, accuracies, 0.71) is None


def test_speed_up_has_one_decimal_and_needs_both() -> None:
    assert speed_up(30, 8) == 3.8  # 3.75 rounds half to even at one decimal
    assert speed_up(7, 3) == 2.3
    assert speed_up(None, 3) is None
    assert speed_up(7, None) is None


def test_top_mean_takes_the_largest_wherever_they_are() -> None:
    assert top_mean([0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.6]) == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.3) / 5)
    assert top_mean([0.2, 0.4]) == pytest.approx(0.3)


def test_band_is_one_standard_deviation_and_none_where_a_seed_is_not_finite() -> None:
    """Round 1: .2 and .4 -> mean .3, std sqrt(.02) = .141421. Round 2: a NaN."""
    middle, low, high = band([[0.2, 0.5], [0.4, math.nan]])
    assert middle == [pytest.approx(0.3), None]
    assert low == [pytest.approx(0.3 - 0.141421, abs=1e-6), None]
    assert high == [pytest.approx(0.3 + 0.141421, abs=1e-6), None]
    assert band([[0.2]]) == ([0.2], [0.2], [0.2])
