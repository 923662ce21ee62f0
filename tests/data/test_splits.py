from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.data import splits
from fedcore.data.splits import TEST, TRAIN, UNUSED, VALIDATION

SHARES = st.sampled_from([0.01, 0.1, 0.25, 0.5, 0.75, 0.99])


def counts(client: np.ndarray, split: np.ndarray, code: int, total: int) -> np.ndarray:
    return np.bincount(client[split == code], minlength=total)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    num_labels=st.integers(1, 5),
    test=SHARES,
    validation=SHARES | st.just(0.0),
    seed=st.integers(0, 9),
)
def test_split_sizes_are_exact_and_proportional_to_the_labels(
    sizes: list[int], num_labels: int, test: float, validation: float, seed: int
) -> None:
    numbers = np.random.Generator(np.random.PCG64(seed))
    client = numbers.permutation(np.repeat(np.arange(-1, len(sizes)), [3, *sizes]))
    labels = numbers.integers(0, num_labels, len(client))
    split = splits.assign(client, labels, len(sizes), test, validation, seed)
    assert ((split == UNUSED) == (client == -1)).all()
    for c, m in enumerate(sizes):
        mine = split[client == c]
        train, tested, validated = (np.count_nonzero(mine == code) for code in (TRAIN, TEST, VALIDATION))
        floor = 1 if validation > 0 and m >= 3 else 0
        expected = min(max(round(m * test), 1), max(m - 1 - floor, 0))
        assert tested == expected
        rest = m - tested
        assert validated == (min(max(round(rest * validation), floor), max(rest - 1, 0)) if validation else 0)
        assert train == m - tested - validated
        assert m == 0 or train >= 1
        assert m < 2 or tested >= 1
        assert m < 3 or validation == 0 or validated >= 1
        for label in range(num_labels):
            own = np.count_nonzero(labels[client == c] == label)
            got = np.count_nonzero((labels == label) & (client == c) & (split == TEST))
            assert m == 0 or abs(got - own * tested / m) < 1
            left = own - got
            got = np.count_nonzero((labels == label) & (client == c) & (split == VALIDATION))
            assert m == 0 or abs(got - left * validated / rest) < 1


def test_each_row_is_equally_likely_to_be_tested() -> None:
    client = np.repeat([0, 1], [10, 7])
    labels = np.array([0] * 7 + [1] * 2 + [2] + [0, 1, 2, 3, 4, 5, 5])
    draws = [splits.assign(client, labels, 2, 0.3, 0.2, seed) for seed in range(2000)]
    tested = np.mean([split == TEST for split in draws], axis=0)
    np.testing.assert_allclose(tested, np.repeat([3 / 10, 2 / 7], [10, 7]), atol=0.045)
    validated = np.mean([split == VALIDATION for split in draws], axis=0)
    np.testing.assert_allclose(validated, np.repeat([1 / 10, 1 / 7], [10, 7]), atol=0.04)


def test_rows_of_one_label_are_picked_at_random_not_at_a_fixed_distance() -> None:
    client, labels = np.zeros(40, int), np.zeros(40, int)
    picked = {splits.assign(client, labels, 1, 0.25, 0.0, seed).tobytes() for seed in range(20)}
    assert len(picked) == 20  # a fixed distance of 4 would leave 4 choices


def test_a_clients_split_does_not_depend_on_the_other_clients() -> None:
    numbers = np.random.Generator(np.random.PCG64(0))
    labels = numbers.integers(0, 4, 200)
    client = numbers.integers(0, 5, 200)
    merged = np.where(client >= 3, 3, client)  # clients 3 and 4 become one
    before = splits.assign(client, labels, 5, 0.25, 0.1, 0)
    after = splits.assign(merged, labels, 4, 0.25, 0.1, 0)
    np.testing.assert_array_equal(before[client < 3], after[client < 3])
    dropped = splits.assign(np.where(client == 4, -1, client), labels, 5, 0.25, 0.1, 0)
    np.testing.assert_array_equal(before[client < 4], dropped[client < 4])


def test_the_seed_changes_the_split() -> None:
    client, labels = np.zeros(100, int), np.zeros(100, int)
    first, second = (splits.assign(client, labels, 1, 0.25, 0.1, seed) for seed in (0, 1))
    assert (first != second).any()


def test_cutting_validation_leaves_the_given_split_and_its_argument_alone() -> None:
    client = np.repeat([0, 1, 2, 3], [6, 3, 2, 1])
    split = np.array([0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0])
    before = split.copy()
    cut = splits.cut_validation(client, np.zeros(12, int), split, 4, 0.25, 0)
    np.testing.assert_array_equal(split, before)
    np.testing.assert_array_equal(cut == TEST, split == TEST)
    assert counts(client, cut, VALIDATION, 4).tolist() == [1, 1, 0, 0]
    assert splits.cut_validation(client, np.zeros(12, int), split, 4, 0.0, 0).tolist() == before.tolist()
